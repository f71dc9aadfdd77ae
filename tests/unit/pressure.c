/* pressure: throttling and waits from recorded /proc and /sys trees. */
#include "base/sys.h"
#include "harness.h"
#include "machine/pressure.h"

#include <onehop/machine.h>

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

struct fake_file {
	const char *path;
	const char *text;
};

static const struct fake_file *files;

static int
fake_open(const char *path, int flags)
{
	(void)flags;
	for (const struct fake_file *f = files; f->path; f++) {
		if (strcmp(f->path, path) != 0)
			continue;
		int fd = memfd_create("fake", MFD_CLOEXEC);
		if (write(fd, f->text, strlen(f->text)) < 0)
			return -1;
		return fd;
	}
	errno = ENOENT;
	return -1;
}

static struct oh_pressure
pressure_of(const struct fake_file *list)
{
	struct oh_sys saved = oh_sys;
	struct oh_pressure p;
	memset(&p, 0xa5, sizeof p);
	files = list;
	oh_sys.open = fake_open;
	oh_pressure_read(&p);
	oh_sys = saved;
	return p;
}

#define PSI(some, full)                                                                            \
	"some avg10=1.00 avg60=0.25 avg300=0.05 total=" some "\n"                                  \
	"full avg10=0.00 avg60=0.00 avg300=0.00 total=" full "\n"

TEST(without_proc_and_sys_nothing_is_known)
{
	static const struct fake_file none[] = {{NULL, NULL}};
	struct oh_pressure p = pressure_of(none), zero = {0};
	CHECK(memcmp(&p, &zero, sizeof p) == 0);
}

TEST(version_2_throttling_is_summed_over_the_group_and_its_ancestors)
{
	static const struct fake_file v2[] = {
		{"/proc/self/cgroup", "0::/pods/a\n"},
		{"/sys/fs/cgroup/pods/a/cpu.stat",
		 "usage_usec 9\nnr_periods 7\nnr_throttled 3\nthrottled_usec 4500\n"},
		{"/sys/fs/cgroup/pods/cpu.stat", "nr_throttled 2\nthrottled_usec 500\n"},
		{"/sys/fs/cgroup/cpu.stat", "usage_usec 12\n"},
		{NULL, NULL},
	};
	struct oh_pressure p = pressure_of(v2);
	CHECK_EQ(p.known, OH_PRESSURE_THROTTLED);
	CHECK_EQ(p.throttled_periods, 5);
	CHECK_EQ(p.throttled_us, 5000);
}

TEST(version_1_throttling_is_in_nanoseconds)
{
	static const struct fake_file v1[] = {
		{"/proc/self/cgroup", "4:cpu,cpuacct:/c\n"},
		{"/sys/fs/cgroup/cpu/c/cpu.stat",
		 "nr_periods 7\nnr_throttled 3\nthrottled_time 4500000\n"},
		{NULL, NULL},
	};
	struct oh_pressure p = pressure_of(v1);
	CHECK_EQ(p.known, OH_PRESSURE_THROTTLED);
	CHECK_EQ(p.throttled_periods, 3);
	CHECK_EQ(p.throttled_us, 4500);
}

TEST(pressure_is_that_of_the_machine_and_of_the_innermost_group)
{
	static const struct fake_file psi[] = {
		{"/proc/pressure/io", PSI("19187026", "11850729")},
		{"/proc/pressure/memory", PSI("77", "11")},
		{"/proc/self/cgroup", "0::/a/b\n"},
		{"/sys/fs/cgroup/a/io.pressure", PSI("500", "400")},
		{"/sys/fs/cgroup/a/b/io.pressure", PSI("300", "200")},
		{"/sys/fs/cgroup/a/memory.pressure", PSI("20", "10")},
		{NULL, NULL},
	};
	struct oh_pressure p = pressure_of(psi);
	CHECK_EQ(p.known, OH_PRESSURE_IO | OH_PRESSURE_MEMORY | OH_PRESSURE_GROUP_IO |
				  OH_PRESSURE_GROUP_MEMORY);
	CHECK_EQ(p.io_us, 19187026);
	CHECK_EQ(p.memory_us, 77);
	CHECK_EQ(p.group_io_us, 300);
	CHECK_EQ(p.group_memory_us, 20);
}

TEST(pressure_files_that_say_something_else_are_not_known)
{
	static const struct fake_file odd[] = {
		{"/proc/pressure/io", "some avg10=0.00\nfull avg10=0.00 total=5\n"},
		{"/proc/pressure/memory", ""},
		{"/proc/self/cgroup", "no colon\n0:\n0::/g\n"},
		{"/sys/fs/cgroup/g/cpu.stat", "nr_throttled 3\n"},
		{"/sys/fs/cgroup/g/io.pressure", "full avg10=0.00 total=5\n"},
		{NULL, NULL},
	};
	CHECK_EQ(pressure_of(odd).known, 0);
}

TEST(the_difference_is_known_where_both_ends_are)
{
	struct oh_pressure before = {.known = OH_PRESSURE_THROTTLED | OH_PRESSURE_IO,
				     .throttled_periods = 3,
				     .throttled_us = 100,
				     .io_us = 1000};
	struct oh_pressure after = {.known = OH_PRESSURE_THROTTLED | OH_PRESSURE_MEMORY,
				    .throttled_periods = 5,
				    .throttled_us = 250,
				    .memory_us = 9};
	struct oh_pressure since;
	oh_pressure_since(&before, &after, &since);
	CHECK_EQ(since.known, OH_PRESSURE_THROTTLED);
	CHECK_EQ(since.throttled_periods, 2);
	CHECK_EQ(since.throttled_us, 150);
	CHECK_EQ(since.io_us, 0);
	CHECK_EQ(since.memory_us, 0);
}

TEST(a_counter_that_went_back_is_not_known)
{
	struct oh_pressure before = {.known = 0x1f, .throttled_periods = 9, .throttled_us = 1,
				     .group_io_us = 7, .io_us = 1};
	struct oh_pressure after = {.known = 0x1f, .throttled_periods = 2, .throttled_us = 5,
				    .group_io_us = 3, .io_us = 4};
	oh_pressure_since(&before, &after, &after);
	CHECK_EQ(after.known, OH_PRESSURE_IO | OH_PRESSURE_MEMORY | OH_PRESSURE_GROUP_MEMORY);
	CHECK_EQ(after.throttled_periods, 0);
	CHECK_EQ(after.throttled_us, 0);
	CHECK_EQ(after.group_io_us, 0);
	CHECK_EQ(after.io_us, 3);
}

TEST(the_counters_of_this_machine_do_not_go_back)
{
	struct oh_pressure before, after, since;
	oh_pressure_read(&before);
	oh_pressure_read(&after);
	oh_pressure_since(&before, &after, &since);
	printf("# known: %#x\n", before.known);
	CHECK_EQ(since.known, before.known & after.known);
	if (!before.known)
		SKIP("no cpu.stat and no PSI here");
}

/* ------------------------------------------------------------------------------------------- */
/* The public calls */

TEST(the_public_struct_holds_the_same_counters)
{
	static const struct fake_file some[] = {
		{"/proc/pressure/io", PSI("11", "1")},
		{"/proc/pressure/memory", PSI("12", "1")},
		{"/proc/self/cgroup", "0::/a\n"},
		{"/sys/fs/cgroup/a/cpu.stat", "nr_throttled 13\nthrottled_usec 14\n"},
		{"/sys/fs/cgroup/a/io.pressure", PSI("15", "1")},
		{"/sys/fs/cgroup/a/memory.pressure", PSI("16", "1")},
		{NULL, NULL},
	};
	struct oh_sys saved = oh_sys;
	struct onehop_pressure p = {.size = sizeof p};
	files = some;
	oh_sys.open = fake_open;
	onehop_status status = onehop_machine_pressure(&p);
	oh_sys = saved;
	CHECK_EQ(status, ONEHOP_OK);
	CHECK_EQ(p.size, sizeof p);
	CHECK_EQ(p.known, ONEHOP_PRESSURE_THROTTLED | ONEHOP_PRESSURE_IO | ONEHOP_PRESSURE_MEMORY |
				  ONEHOP_PRESSURE_GROUP_IO | ONEHOP_PRESSURE_GROUP_MEMORY);
	CHECK_EQ(p.io_us, 11);
	CHECK_EQ(p.memory_us, 12);
	CHECK_EQ(p.throttled_periods, 13);
	CHECK_EQ(p.throttled_us, 14);
	CHECK_EQ(p.group_io_us, 15);
	CHECK_EQ(p.group_memory_us, 16);
}

TEST(a_pressure_without_its_size_is_refused)
{
	struct onehop_pressure p = {.size = sizeof p}, none = {.size = 0};
	CHECK_EQ(onehop_machine_pressure(NULL), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(onehop_machine_pressure(&none), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(onehop_machine_pressure_since(NULL, &p, &p), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(onehop_machine_pressure_since(&p, &none, &p), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(onehop_machine_pressure_since(&none, &p, &p), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(onehop_machine_pressure_since(&p, &p, &none), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(onehop_machine_pressure_since(&p, &p, NULL), ONEHOP_INVALID_ARGUMENT);
}

TEST(the_public_difference_may_take_the_place_of_either_end)
{
	struct onehop_pressure before = {.size = sizeof before, .known = 0x1f,
					 .throttled_periods = 1, .throttled_us = 2, .io_us = 3,
					 .memory_us = 4, .group_io_us = 5, .group_memory_us = 6};
	struct onehop_pressure after = {.size = sizeof after, .known = 0x0f,
					.throttled_periods = 11, .throttled_us = 22, .io_us = 33,
					.memory_us = 44, .group_io_us = 55, .group_memory_us = 66};
	struct onehop_pressure first = before, last = after;
	CHECK_EQ(onehop_machine_pressure_since(&first, &after, &first), ONEHOP_OK);
	CHECK_EQ(onehop_machine_pressure_since(&before, &last, &last), ONEHOP_OK);
	CHECK(memcmp(&first, &last, sizeof first) == 0);
	CHECK_EQ(first.size, sizeof first);
	CHECK_EQ(first.known, 0x0f);
	CHECK_EQ(first.throttled_periods, 10);
	CHECK_EQ(first.throttled_us, 20);
	CHECK_EQ(first.io_us, 30);
	CHECK_EQ(first.memory_us, 40);
	CHECK_EQ(first.group_io_us, 50);
	CHECK_EQ(first.group_memory_us, 0);
}

/* A caller that was built when there were fewer fields, with something of his own behind them. */
TEST(a_shorter_struct_is_filled_as_far_as_it_goes)
{
	struct onehop_pressure since, before = {.known = 0x1f};
	before.size = offsetof(struct onehop_pressure, memory_us);
	struct onehop_pressure after = before;
	before.io_us = 1;
	after.io_us = 8;
	after.group_io_us = 99;
	memset(&since, 0xa5, sizeof since);
	since.size = before.size;
	CHECK_EQ(onehop_machine_pressure_since(&before, &after, &since), ONEHOP_OK);
	CHECK_EQ(since.size, offsetof(struct onehop_pressure, memory_us));
	CHECK_EQ(since.known, ONEHOP_PRESSURE_THROTTLED | ONEHOP_PRESSURE_IO);
	CHECK_EQ(since.io_us, 7);
	CHECK_EQ(since.memory_us, UINT64_C(0xa5a5a5a5a5a5a5a5));
	CHECK_EQ(since.group_memory_us, UINT64_C(0xa5a5a5a5a5a5a5a5));
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
