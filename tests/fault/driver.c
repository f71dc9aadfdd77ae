/* Every driver call of a whole load fails: the n-th of each function and the n-th of all, for
 * n = 1, 2, ... until nothing fails, alone and with all later ones; against the look-alike driver.
 *
 * The copies of the look-alike take a random time each (FAKE_CUDA_DELAY_US), so that what follows a
 * failure also follows copies that are late.
 */
#include "fault/load.h"

static char rule[96];
static int keeps = 1, limit_fails;

static void
arm(long number)
{
	char now[128];
	/* The rule counts from 1. */
	snprintf(now, sizeof now, rule, number + 1);
	load_driver.fail(now);
	if (limit_fails)
		fault_arm((struct fault){FAULT_getrlimit, FAULT_FAILS, 0, 1, EPERM, 0});
}

static long
disarm(void)
{
	long also = limit_fails ? fault_disarm().count : 0;
	return load_driver.fail(NULL) + also;
}

/* 2 resource, 3 support (there is no device), 7 driver. */
static const char *
judge(const struct outcome *o)
{
	if (o->status / 100 != 2 && o->status / 100 != 3 && o->status / 100 != 7)
		return "the status is of another kind than the fault";
	return o->error.driver_code ? NULL : "the error has not the driver's code";
}

static void
each(const char *function, const char *how, long least)
{
	char name[128];
	struct injector in = {name, arm, disarm, judge, keeps};
	snprintf(name, sizeof name, "%s%s", function, how);
	snprintf(rule, sizeof rule, "%s:%%ld%s", function, how);
	load_strike_each(&in, least);
}

#define NAME(field, name, suffix, version, arguments) #name #suffix,
static const char *const functions[] = {OH_CUDA_REQUIRED(NAME) OH_CUDA_OPTIONAL(NAME)};

TEST(every_call_of_each_driver_function_fails)
{
	for (size_t i = 0; i < sizeof functions / sizeof functions[0] && !test_failed; i++)
		each(functions[i], "", 0);
}

TEST(every_driver_call_fails)
{
	each("*", "", 100);
}

TEST(every_driver_call_fails_as_a_launch_does)
{
	each("*", ":719", 100);
}

/* That is a device which is lost until it is reset: its runtime is not asked to go on. */
TEST(from_any_driver_call_on_all_fail)
{
	keeps = 0;
	each("*", "+:719", 100);
	keeps = 1;
}

TEST(memory_cannot_be_pinned_and_the_limit_is_not_told)
{
	limit_fails = 1;
	each("cuMemHostRegister_v2", "", 4);
	limit_fails = 0;
}

/* The driver forgets nothing by itself while somebody else holds the context. */
TEST(nothing_is_left_in_a_context_that_stays)
{
	const struct oh_cuda *cu;
	struct CUctx_st *context;
	CHECK_EQ(oh_cuda_load(&cu, NULL), ONEHOP_OK);
	CHECK_EQ(cu->init(0), 0);
	CHECK_EQ(cu->primary_retain(&context, 0), 0);
	load_held.primaries = 1;
	for (size_t i = 0; i < sizeof functions / sizeof functions[0] && !test_failed; i++)
		each(functions[i], ":719", 0);
	load_held.primaries = 0;
	CHECK_EQ(cu->primary_release(0), 0);
	CHECK_STR(load_left(count_descriptors()) ? load_left(count_descriptors()) : "", "");
}

int
main(int argc, char **argv)
{
	load_begin();
	return test_main(argc, argv);
}
