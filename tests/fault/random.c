/* Loads with faults picked at random: one or two at once, of system calls, driver calls and
 * allocations, each followed by a load that is right. TEST_SEED repeats a run; LOADS says how many.
 * TEST_DEVICE names the device.
 */
#include "fault/load.h"

#include "fault/allocation.h"

static struct random dice;

/* What the next load has to live with. */
static struct {
	int calls, driver, allocation;
	struct fault fault;
	char rule[32];
	long number;
	int goes_on;
} chosen;

static void
choose_calls(void)
{
	static const int codes[] = {EIO, ENOMEM, EMFILE, EACCES, EINTR, ESTALE};
	struct fault *f = &chosen.fault;
	chosen.calls = 1;
	f->call = (enum fault_call)random_below(&dice, FAULT_CALL_COUNT + 3);
	if (f->call > FAULT_ANY)
		f->call = random_below(&dice, 2) ? FAULT_ANY : FAULT_pread;
	f->how = FAULT_FAILS;
	if (f->call == FAULT_pread && random_below(&dice, 2))
		f->how = (enum fault_how)(FAULT_ONE_BYTE + random_below(&dice, 3));
	f->number = (long)random_below(&dice, f->call == FAULT_ANY ? 200 : 80);
	f->onwards = random_below(&dice, 4) == 0;
	f->code = codes[random_below(&dice, 6)];
	f->elsewhere = (int)random_below(&dice, 2);
	/* EINTR is tried again for as long as it comes. */
	if (f->onwards && f->code == EINTR)
		f->code = EIO;
}

static void
choose(void)
{
	memset(&chosen, 0, sizeof chosen);
	int is_host = strcmp(load_device, "host") == 0;
	for (uint64_t i = 0, count = 1 + random_below(&dice, 2); i < count; i++) {
		switch (random_below(&dice, is_host ? 2 : 3)) {
		case 0:
			choose_calls();
			break;
		case 1:
			chosen.allocation = 1;
			chosen.number = (long)random_below(&dice, 90);
			chosen.goes_on = random_below(&dice, 4) == 0;
			break;
		default:
			chosen.driver = 1;
			snprintf(chosen.rule, sizeof chosen.rule, "*:%d%s",
				 1 + (int)random_below(&dice, 500),
				 random_below(&dice, 4) ? "" : "+:719");
		}
	}
}

static void
arm(long number)
{
	(void)number;
	if (chosen.calls)
		fault_arm(chosen.fault);
	if (chosen.driver)
		load_driver.fail(chosen.rule);
	if (chosen.allocation)
		allocation_arm(chosen.number, chosen.goes_on);
}

static long
disarm(void)
{
	long struck = allocation_disarm() * chosen.allocation;
	if (chosen.calls)
		struck += fault_disarm().count;
	if (chosen.driver)
		struck += load_driver.fail(NULL);
	return struck;
}

static const char *
judge(const struct outcome *o)
{
	int group = o->status / 100;
	return group == 2 || group == 3 || group == 4 || group == 7
		       ? NULL
		       : "the status is of another kind than the faults";
}

TEST(after_random_faults_the_next_load_is_right)
{
	struct injector in = {"random", arm, disarm, judge, 1};
	const char *text = getenv("LOADS");
	long loads = text ? strtol(text, NULL, 10) : 1000, struck, with_faults = 0;
	struct tally tally = {0};
	dice = random_begin();
	for (long i = 0; i < loads; i++) {
		choose();
		/* A device whose calls all fail is lost until it is reset. */
		in.keeps = !strchr(chosen.rule, '+');
		const char *wrong = load_strike(&in, 0, &tally, &struck);
		with_faults += struck > 0;
		if (!wrong)
			continue;
		printf("# calls %d (%s how %d number %ld onwards %d code %d), driver %d (%s), "
		       "allocation %d (number %ld goes on %d)\n",
		       chosen.calls, fault_names[chosen.fault.call], chosen.fault.how,
		       chosen.fault.number, chosen.fault.onwards, chosen.fault.code, chosen.driver,
		       chosen.rule, chosen.allocation, chosen.number, chosen.goes_on);
		test_fail(__FILE__, __LINE__, "load %ld: %s", i, wrong);
		return;
	}
	printf("# %ld loads, %ld of them with faults: %ld faults, %ld loads failed\n", 2 * loads,
	       2 * with_faults, tally.tried, tally.failed);
	CHECK(with_faults > loads / 4);
}

int
main(int argc, char **argv)
{
	load_begin();
	return test_main(argc, argv);
}
