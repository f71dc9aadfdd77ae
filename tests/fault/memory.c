/* Every allocation of a whole load fails, and every start of a thread: the n-th for n = 0, 1, 2,
 * ... until nothing fails, alone and with all later ones. TEST_DEVICE names the device.
 */
#include "fault/load.h"

#include "fault/allocation.h"

static int goes_on;

static void
arm(long number)
{
	allocation_arm(number, goes_on);
}

static long
disarm(void)
{
	return allocation_disarm();
}

/* A thread that cannot be started is a limit. */
static const char *
judge(const struct outcome *o)
{
	return o->status == ONEHOP_NO_MEMORY || o->status == ONEHOP_LIMIT
		       ? NULL
		       : "the status does not say that memory is short";
}

TEST(every_allocation_fails)
{
	static const struct injector in = {"allocation", arm, disarm, judge, 1};
	goes_on = 0;
	load_strike_each(&in, 40);
}

TEST(from_any_allocation_on_all_fail)
{
	static const struct injector in = {"allocation and all later ones", arm, disarm, judge, 1};
	goes_on = 1;
	load_strike_each(&in, 40);
}

int
main(int argc, char **argv)
{
	load_begin();
	return test_main(argc, argv);
}
