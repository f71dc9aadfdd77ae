/* What fails in turn: a call or an allocation, the n-th for n = 0, 1, 2, ... until nothing is struck. */
#ifndef FAULT_STRIKE_H
#define FAULT_STRIKE_H

#include "fault/allocation.h"
#include "fault/fault.h"
#include "harness.h"

#include <onehop/status.h>
#include <string.h>

struct strike {
	const char *name;
	struct fault fault; /* or */
	int allocations, onwards;
};

static void
strike_arm(const struct strike *s, long number)
{
	struct fault fault = s->fault;
	fault.number = number;
	if (s->allocations)
		allocation_arm(number, s->onwards);
	else
		fault_arm(fault);
}

/* How many were struck, and of calls the last. */
static struct fault_struck
strike_disarm(const struct strike *s)
{
	struct fault_struck what = {0};
	if (!s->allocations)
		return fault_disarm();
	what.count = allocation_disarm();
	return what;
}

/* NULL, or what is wrong with a failure's error. Its status says what failed: a call, memory, or, if
 * that may be, a lock. */
static const char *
wrong_error(onehop_status status, const struct onehop_error *error, int may_be_busy)
{
	if (error->status != status || !error->message[0] || strpbrk(error->message, "\r\n"))
		return "the error is not in one line";
	if (status / 100 != 4 && status != ONEHOP_NO_MEMORY &&
	    !(status == ONEHOP_BUSY && may_be_busy))
		return "the status does not say what failed";
	return NULL;
}

/* Strikes one after the other while work is done; once() does it, judges, and says how many were
 * struck. At least `least` must be. */
static void
strike_all(const struct strike *s, int work, const char *work_name, long least,
	   long (*once)(const struct strike *s, int work, long number, long *failed))
{
	long number = 0, failed = 0;
	while (once(s, work, number, &failed) && !test_failed)
		number++;
	printf("# %s, %s: %ld struck, %ld failed\n", work_name, s->name, number, failed);
	if (number < least)
		test_fail(__FILE__, __LINE__, "%s: %ld were struck, should be %ld at least",
			  work_name, number, least);
}

#endif
