/* machine: cores and memory from recorded /proc and /sys trees, through a root prefix. */
#include "base/sys.h"
#include "harness.h"
#include "machine/machine.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

struct fake_file {
	const char *path;
	const char *text;
};

static const struct fake_file *files;
static uint32_t cpus;

static int
fake_open(const char *path, int flags)
{
	for (const struct fake_file *f = files; f->path; f++) {
		if (strcmp(f->path, path) != 0)
			continue;
		int fd = memfd_create("fake", MFD_CLOEXEC);
		if (write(fd, f->text, strlen(f->text)) < 0)
			return -1;
		return fd;
	}
	(void)flags;
	errno = ENOENT;
	return -1;
}

static int
fake_affinity(pid_t pid, size_t bytes, cpu_set_t *set)
{
	(void)pid;
	for (uint32_t i = 0; i < cpus; i++)
		CPU_SET_S(i, bytes, set);
	return 0;
}

static struct oh_machine
machine_of(const struct fake_file *list, uint32_t count)
{
	struct oh_sys saved = oh_sys;
	struct oh_machine machine;
	files = list;
	cpus = count;
	oh_sys.open = fake_open;
	oh_sys.sched_getaffinity = fake_affinity;
	oh_machine_read(&machine);
	oh_sys = saved;
	return machine;
}

TEST(without_proc_and_sys_affinity_is_the_only_limit)
{
	static const struct fake_file none[] = {{NULL, NULL}};
	struct oh_machine m = machine_of(none, 12);
	CHECK_EQ(m.cores, 12);
	CHECK_EQ(m.l3_bytes, 0);
	CHECK(m.memory_bytes == UINT64_MAX);
}

TEST(a_quota_of_any_ancestor_counts_rounded_up)
{
	static const struct fake_file v2[] = {
		{"/proc/self/cgroup", "0::/pods/a/b\n"},
		{"/sys/fs/cgroup/pods/a/b/cpu.max", "max 100000\n"},
		{"/sys/fs/cgroup/pods/a/cpu.max", "250000 100000\n"},
		{"/sys/fs/cgroup/pods/cpu.max", "800000 100000\n"},
		{NULL, NULL},
	};
	CHECK_EQ(machine_of(v2, 16).cores, 3);
	CHECK_EQ(machine_of(v2, 2).cores, 2);
}

TEST(a_version_1_quota_counts_and_minus_one_is_none)
{
	static const struct fake_file v1[] = {
		{"/proc/self/cgroup", "3:memory:/m\n4:cpu,cpuacct:/c\n"},
		{"/sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "150000\n"},
		{"/sys/fs/cgroup/cpu/c/cpu.cfs_period_us", "100000\n"},
		{"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"},
		{"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"},
		{"/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "1000000\n"},
		{"/sys/fs/cgroup/memory/m/memory.usage_in_bytes", "700000\n"},
		{"/sys/fs/cgroup/memory/m/memory.stat",
		 "total_inactive_file 100000\ntotal_active_file 50000\n"},
		{NULL, NULL},
	};
	struct oh_machine m = machine_of(v1, 16);
	CHECK_EQ(m.cores, 2);
	CHECK_EQ(m.memory_bytes, 450000);
}

TEST(memory_is_the_least_of_available_and_every_ancestors_rest_with_its_file_pages)
{
	static const struct fake_file v2[] = {
		{"/proc/meminfo", "MemTotal: 900 kB\nMemFree: 1 kB\nMemAvailable:    500 kB\n"},
		{"/proc/self/cgroup", "0::/a/b\n"},
		{"/sys/fs/cgroup/a/b/memory.max", "max\n"},
		{"/sys/fs/cgroup/a/b/memory.current", "1\n"},
		{"/sys/fs/cgroup/a/memory.max", "400000\n"},
		{"/sys/fs/cgroup/a/memory.current", "350000\n"},
		{"/sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 40000\nactive_file 10000\n"},
		{NULL, NULL},
	};
	CHECK_EQ(machine_of(v2, 1).memory_bytes, 100000);
}

TEST(the_last_level_cache_is_the_largest)
{
	static const struct fake_file caches[] = {
		{"/sys/devices/system/cpu/cpu0/cache/index0/size", "48K\n"},
		{"/sys/devices/system/cpu/cpu0/cache/index1/size", "2048K\n"},
		{"/sys/devices/system/cpu/cpu0/cache/index2/size", "300M\n"},
		{NULL, NULL},
	};
	CHECK_EQ(machine_of(caches, 1).l3_bytes, 300 << 20);
}

TEST(a_root_group_is_read_at_the_mount)
{
	static const struct fake_file root[] = {
		{"/proc/self/cgroup", "0::/\n"},
		{"/sys/fs/cgroup/cpu.max", "100000 100000\n"},
		{NULL, NULL},
	};
	CHECK_EQ(machine_of(root, 8).cores, 1);
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
