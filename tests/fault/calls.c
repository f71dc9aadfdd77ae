/* Every system call of a whole load fails, falls short or is late: the n-th of each kind and the
 * n-th of all, for n = 0, 1, 2, ... until nothing is struck.
 *
 * A load that fails says so with a status of its cause and, if it was a call on one of its files,
 * with that file's name and the errno. Nothing is left behind; the same runtime and the next one
 * load right. TEST_DEVICE names the device.
 */
#include "fault/load.h"

static struct fault strike_with;
static int is_elsewhere;
static struct fault_struck struck;

static void
arm(long number)
{
	struct fault fault = strike_with;
	fault.number = number;
	fault_arm(fault);
}

static long
disarm(void)
{
	struct fault_struck now = fault_disarm();
	if (now.count)
		struck = now;
	return now.count;
}

static int
is_file_call(enum fault_call call)
{
	return call == FAULT_open || call == FAULT_fstat || call == FAULT_stat || call == FAULT_pread;
}

/* What the fault was, is what the error says. */
static const char *
judge(const struct outcome *o)
{
	if (strike_with.how == FAULT_ONE_BYTE || strike_with.how == FAULT_HALF)
		return "a short read is no failure";
	if (strike_with.code == EINTR && struck.call == FAULT_pread)
		return "a read that was interrupted is no failure";
	if (o->status / 100 != 2 && o->status / 100 != 4)
		return "the status is of another kind than the fault";
	if (!is_file_call(struck.call))
		return NULL;
	/* Where many were struck, any of them may have been the first to be told of. */
	const char *base = strrchr(strike_with.onwards ? load_path : struck.path, '/');
	if (!base || !strstr(o->error.message, base + 1))
		return "the message does not name the file";
	if (strike_with.how == FAULT_FAILS && o->error.os_errno != strike_with.code)
		return "the error has not the call's errno";
	return NULL;
}

static void
each(enum fault_call call, enum fault_how how, int code, int onwards, long least)
{
	char name[128];
	struct injector in = {name, arm, disarm, judge, 1};
	snprintf(name, sizeof name, "%s %s%s", fault_names[call],
		 how == FAULT_FAILS ? strerror(code) : how == FAULT_ENDS ? "ends" : "is short",
		 onwards ? " and all later ones" : "");
	strike_with = (struct fault){call, how, 0, onwards, code, is_elsewhere};
	load_strike_each(&in, least);
}

static void
each_code(enum fault_call call, const int *codes, long least)
{
	for (; *codes && !test_failed; codes++)
		each(call, FAULT_FAILS, *codes, 0, least);
}

TEST(the_table_has_no_entry_that_cannot_be_made_to_fail)
{
	CHECK_EQ(fault_entries_left(), 0);
}

TEST(a_load_without_a_fault_is_right)
{
	struct onehop_runtime *runtime = NULL;
	struct outcome outcome;
	load_with(&runtime, load_got, &outcome);
	onehop_runtime_destroy(runtime);
	CHECK_STR(load_wrong(&outcome) ? load_wrong(&outcome) : "", "");
	CHECK_STR(load_left(count_descriptors()) ? load_left(count_descriptors()) : "", "");
}

TEST(every_open_fails)
{
	static const int codes[] = {EIO, ENOMEM, EMFILE, EACCES, EINTR, ESTALE, 0};
	each_code(FAULT_open, codes, 8);
}

TEST(every_close_fails)
{
	static const int codes[] = {EIO, EINTR, 0};
	each_code(FAULT_close, codes, 8);
}

TEST(every_stat_fails)
{
	static const int codes[] = {EIO, ENOMEM, EACCES, ESTALE, 0};
	each_code(FAULT_stat, codes, 1);
	if (!test_failed)
		each_code(FAULT_fstat, codes, 4);
}

TEST(every_read_fails)
{
	static const int codes[] = {EIO, ENOMEM, EACCES, EINTR, ESTALE, 0};
	each_code(FAULT_pread, codes, 20);
}

TEST(every_read_is_short)
{
	each(FAULT_pread, FAULT_ONE_BYTE, 0, 0, 20);
	if (!test_failed)
		each(FAULT_pread, FAULT_HALF, 0, 0, 20);
}

TEST(all_reads_are_short)
{
	each(FAULT_pread, FAULT_HALF, 0, 1, 20);
}

TEST(the_file_ends_at_every_read)
{
	each(FAULT_pread, FAULT_ENDS, 0, 0, 20);
	if (!test_failed)
		each(FAULT_pread, FAULT_ENDS, 0, 1, 20);
}

TEST(every_mapping_fails)
{
	static const int codes[] = {ENOMEM, 0};
	each_code(FAULT_mmap, codes, 2);
	if (!test_failed)
		each_code(FAULT_munmap, codes, 2);
}

TEST(all_advice_fails)
{
	static const int codes[] = {ENOMEM, EINVAL, EIO, 0};
	each_code(FAULT_madvise, codes, 2);
}

TEST(what_is_asked_of_the_machine_fails)
{
	static const int refused[] = {EINVAL, EPERM, 0}, broken[] = {EINTR, 0};
	each_code(FAULT_sched_getaffinity, refused, 1);
	if (!test_failed)
		each_code(FAULT_getrlimit, refused, 0);
	if (!test_failed)
		each_code(FAULT_nanosleep, broken, 0);
}

static void
each_question(int elsewhere)
{
	static const int codes[] = {EIO, ENOSYS, EPERM, ESTALE, 0};
	static const enum fault_call calls[] = {FAULT_fstatfs,	FAULT_statx,   FAULT_faccessat,
						FAULT_capget,	FAULT_mincore, FAULT_cachestat,
						FAULT_posix_fadvise, FAULT_preadv};
	is_elsewhere = elsewhere;
	for (size_t i = 0; i < sizeof calls / sizeof calls[0] && !test_failed; i++)
		each_code(calls[i], codes, 0);
	is_elsewhere = 0;
}

TEST(what_is_asked_of_the_file_system_fails)
{
	each_question(0);
}

TEST(what_is_asked_of_the_file_system_fails_on_an_older_kernel_for_another_user)
{
	each_question(1);
}

TEST(every_call_of_any_kind_fails)
{
	static const int codes[] = {EIO, ENOMEM, EINTR, 0};
	each_code(FAULT_ANY, codes, 60);
}

/* Not EINTR: that is tried again for as long as it comes. */
TEST(from_any_call_on_all_fail)
{
	static const int codes[] = {EIO, EMFILE, 0};
	for (int i = 0; codes[i] && !test_failed; i++)
		each(FAULT_ANY, FAULT_FAILS, codes[i], 1, 60);
}

/* ------------------------------------------------------------------ late */

struct late {
	struct outcome outcome;
	int ended;
};

static void *
load_late(void *argument)
{
	static uint8_t got[LOAD_ARENA];
	struct late *late = argument;
	struct onehop_runtime *runtime = NULL;
	load_with(&runtime, got, &late->outcome);
	onehop_runtime_destroy(runtime);
	fault_tell(&late->ended);
	return NULL;
}

/* While the n-th call of one runtime stands still, another runtime comes and goes. */
static void
late_each(enum fault_call call, long least)
{
	struct onehop_runtime *runtime;
	static struct outcome other;
	struct fault_struck last = {0};
	long tried = 0;
	do {
		static struct late late;
		pthread_t thread;
		int descriptors = count_descriptors();
		memset(&late, 0, sizeof late);
		fault_arm((struct fault){call, FAULT_LATE, tried, 0, 0, 0});
		CHECK_EQ(pthread_create(&thread, NULL, load_late, &late), 0);
		if (fault_wait_held(&late.ended)) {
			runtime = NULL;
			load_with(&runtime, load_got, &other);
			onehop_runtime_destroy(runtime);
			CHECK_STR(load_wrong(&other) ? load_wrong(&other) : "", "");
			CHECK(!late.ended);
		}
		fault_release();
		CHECK_EQ(pthread_join(thread, NULL), 0);
		last = fault_disarm();
		tried += last.count;
		CHECK_STR(load_wrong(&late.outcome) ? load_wrong(&late.outcome) : "", "");
		const char *left = load_left(descriptors);
		CHECK_STR(left ? left : "", "");
	} while (last.count);
	printf("# late %s: %ld\n", fault_names[call], tried);
	CHECK(tried >= least);
}

TEST(while_any_call_is_late_another_runtime_loads)
{
	late_each(FAULT_ANY, 60);
}

/* Loads with the runtime that all share. */
struct sharing {
	struct onehop_runtime *runtime;
	struct outcome outcome;
	uint8_t got[LOAD_ARENA];
};

static void *
load_shared(void *argument)
{
	struct sharing *sharing = argument;
	load_with(&sharing->runtime, sharing->got, &sharing->outcome);
	/* The first to end lets the late one go on. */
	fault_release();
	return NULL;
}

/* Two loads of one runtime; the n-th read stands still until one of them has ended. More than one
 * block is made for what is buffered: it does not matter that the late read keeps one. */
TEST(a_late_read_holds_up_no_other_load_of_the_runtime)
{
	static struct sharing sharings[2];
	struct fault_struck last = {0};
	struct onehop_error failed;
	long n = 0;
	do {
		pthread_t threads[2];
		struct onehop_runtime *runtime;
		load_route = "buffered";
		onehop_status made = load_runtime(&runtime, &failed);
		load_route = getenv("TEST_ROUTE");
		CHECK_EQ(made, ONEHOP_OK);
		fault_arm((struct fault){FAULT_pread, FAULT_LATE, n++, 0, 0, 0});
		for (int i = 0; i < 2; i++) {
			sharings[i].runtime = runtime;
			CHECK_EQ(pthread_create(&threads[i], NULL, load_shared, &sharings[i]), 0);
		}
		for (int i = 0; i < 2; i++)
			CHECK_EQ(pthread_join(threads[i], NULL), 0);
		last = fault_disarm();
		onehop_runtime_destroy(runtime);
		for (int i = 0; i < 2; i++) {
			const char *wrong = load_wrong(&sharings[i].outcome);
			CHECK_STR(wrong ? wrong : "", "");
		}
	} while (last.count);
	printf("# late reads: %ld\n", n - 1);
	CHECK(n > 40);
}

int
main(int argc, char **argv)
{
	load_begin();
	return test_main(argc, argv);
}
