/* residency: every answer that the kernel may give, by replaced system calls; then real files of
 * this machine: written, dropped, half read, in memory, another user's, on an overlay. */
#include "base/sys.h"
#include "harness.h"
#include "machine/residency.h"
#include "model/files.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define PAGE UINT64_C(4096)
#define FD 5
/* A question that asks more often has no bound. */
#define MOST_CALLS 100000

static const struct oh_filesystem ext4 = {.name = "ext4"};
static const struct oh_filesystem tmpfs = {.name = "tmpfs", .flags = OH_FS_RAM};
static const struct oh_filesystem zfs = {.name = "zfs", .flags = OH_FS_OWN_CACHE};
static const struct oh_filesystem overlay = {.name = "overlay",
					     .flags = OH_FS_STACKED | OH_FS_OVERLAY};

/* A machine with one file, and what was asked of it. */
static struct world {
	mode_t mode;
	off_t bytes;
	uid_t owner, user;
	int fowner, stat_errno, write_errno, proc_write_errno;
	const char *uid_map; /* NULL: not there */
	int cachestat_errno, stray_errno;
	uint64_t cachestat_fails_from; /* an offset */
	int mincore_errno, mincore_lies, map_errno;
	int (*warm)(uint64_t page);
	uint64_t ns, page_ns; /* the time, and what a page in the cache takes to be counted */
	/* asked */
	uint64_t cachestat_calls, pages_counted, mincore_calls;
	void *at;
	uint64_t at_offset, most_mapped, maps, unmaps;
	int touchable; /* a map that could be read */
} world;

static int
fail_with(int code)
{
	errno = code;
	return code ? -1 : 0;
}

static int
fake_fstat(int fd, struct stat *st)
{
	memset(st, 0, sizeof *st);
	st->st_mode = world.mode;
	st->st_size = world.bytes;
	st->st_uid = world.owner;
	return fail_with(fd == FD ? world.stat_errno : EBADF);
}

static int
fake_open(const char *path, int flags)
{
	(void)flags;
	if (!world.uid_map || strcmp(path, "/proc/self/uid_map") != 0)
		return fail_with(ENOENT);
	int fd = memfd_create("fake", MFD_CLOEXEC);
	return write(fd, world.uid_map, strlen(world.uid_map)) < 0 ? -1 : fd;
}

static int
fake_faccessat(int fd, const char *path, int mode, int flags)
{
	if (mode != W_OK)
		return fail_with(EDOM);
	if (fd == FD && !*path && flags == (AT_EMPTY_PATH | AT_EACCESS))
		return fail_with(world.write_errno);
	if (fd == AT_FDCWD && strcmp(path, "/proc/self/fd/5") == 0 && flags == AT_EACCESS)
		return fail_with(world.proc_write_errno);
	return fail_with(EDOM);
}

static uid_t
fake_geteuid(void)
{
	return world.user;
}

static int
fake_capget(struct __user_cap_header_struct *header, struct __user_cap_data_struct *data)
{
	if (header->version != _LINUX_CAPABILITY_VERSION_3 || header->pid != 0)
		return fail_with(EINVAL);
	/* All that there are, but for the one or the other. */
	data[0].effective = world.fowner ? 1u << 3 : ~(1u << 3);
	data[1].effective = ~0u;
	return 0;
}

static int
fake_cachestat(int fd, const struct oh_cachestat_range *range, struct oh_cachestat *counts,
	       unsigned flags)
{
	world.cachestat_calls++;
	if (world.cachestat_errno == EPERM && fd == -1)
		return fail_with(world.stray_errno);
	if (fd != FD || flags || !range->bytes || range->bytes > 256 * MIB ||
	    world.cachestat_calls > MOST_CALLS)
		return fail_with(EDOM);
	world.ns += 200;
	if (world.cachestat_errno || range->offset >= world.cachestat_fails_from)
		return fail_with(world.cachestat_errno ? world.cachestat_errno : EIO);
	memset(counts, 0, sizeof *counts);
	counts->dirty = counts->evicted = 9;
	uint64_t last = (range->offset + range->bytes - 1) / PAGE;
	for (uint64_t page = range->offset / PAGE; page <= last; page++, world.pages_counted++)
		counts->cached += (uint64_t)world.warm(page);
	world.ns += counts->cached * world.page_ns;
	return 0;
}

static int
fake_clock(clockid_t clock, struct timespec *now)
{
	now->tv_sec = (time_t)(world.ns / 1000000000);
	now->tv_nsec = (long)(world.ns % 1000000000);
	return fail_with(clock == CLOCK_MONOTONIC ? 0 : EINVAL);
}

static void *
fake_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
	world.touchable |= prot != PROT_NONE;
	if (fd < 0)
		return mmap(at, bytes, prot, flags, fd, offset);
	if (world.map_errno || world.at || fd != FD || flags != MAP_SHARED || offset % PAGE) {
		errno = world.map_errno ? world.map_errno : EDOM;
		return MAP_FAILED;
	}
	world.maps++;
	world.most_mapped = bytes > world.most_mapped ? bytes : world.most_mapped;
	world.at_offset = (uint64_t)offset;
	world.at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return world.at;
}

static int
fake_munmap(void *at, size_t bytes)
{
	if (at == world.at) {
		world.at = NULL;
		world.unmaps++;
	}
	return munmap(at, bytes);
}

static int
fake_mincore(void *at, size_t bytes, unsigned char *pages)
{
	world.mincore_calls++;
	if (world.mincore_errno || bytes != PAGE || (uintptr_t)at % PAGE ||
	    world.mincore_calls > MOST_CALLS)
		return fail_with(world.mincore_errno ? world.mincore_errno : EDOM);
	/* The bits above the first have no meaning. */
	*pages = 0xfe;
	if (world.mincore_lies)
		*pages = 0xff;
	else if (world.at)
		*pages |= (unsigned char)world.warm(
			(world.at_offset + (uint64_t)((char *)at - (char *)world.at)) / PAGE);
	return 0;
}

static int
all_warm(uint64_t page)
{
	(void)page;
	return 1;
}

static int
none_warm(uint64_t page)
{
	(void)page;
	return 0;
}

/* Of 64 MiB. */
static int
first_half_warm(uint64_t page)
{
	return page < 32 * MIB / PAGE;
}

static int
one_in_a_gib_cold(uint64_t page)
{
	return page / (16 * MIB / PAGE) % 64 != 5;
}

/* What a reader leaves that looks at the beginning of everything. */
static int
beginnings_warm(uint64_t page)
{
	return page % (2 * MIB / PAGE) == 0;
}

static void
new_world(uint64_t bytes, int (*warm)(uint64_t page))
{
	world = (struct world){.mode = S_IFREG, .bytes = (off_t)bytes, .owner = 1000, .user = 1000,
			       .write_errno = EACCES, .proc_write_errno = EACCES,
			       .cachestat_fails_from = UINT64_MAX, .warm = warm};
}

static struct oh_sys
enter(void)
{
	struct oh_sys saved = oh_sys;
	oh_sys.fstat = fake_fstat;
	oh_sys.open = fake_open;
	oh_sys.faccessat = fake_faccessat;
	oh_sys.geteuid = fake_geteuid;
	oh_sys.capget = fake_capget;
	oh_sys.cachestat = fake_cachestat;
	oh_sys.mmap = fake_mmap;
	oh_sys.munmap = fake_munmap;
	oh_sys.mincore = fake_mincore;
	oh_sys.clock_gettime = fake_clock;
	return saved;
}

static enum oh_residency_source
ask(const struct oh_filesystem *fs, struct oh_residency_range *ranges, size_t count)
{
	struct oh_sys saved = enter();
	enum oh_residency_source source = oh_residency_ask(FD, fs, ranges, count);
	oh_sys = saved;
	return source;
}

static enum oh_residency_source
ask_map(const struct oh_filesystem *fs, uint64_t offset, uint64_t chunk, uint8_t *states, size_t n)
{
	struct oh_sys saved = enter();
	enum oh_residency_source source = oh_residency_map(FD, fs, offset, chunk, states, n);
	oh_sys = saved;
	return source;
}

/* The whole file as one range. */
static struct oh_residency_range
whole(const struct oh_filesystem *fs, enum oh_residency_source *source)
{
	struct oh_residency_range range = {.bytes = UINT64_MAX};
	*source = ask(fs, &range, 1);
	return range;
}

/* Checks source, state and estimate of the whole file, and that nothing stays mapped. */
static void
expect(const struct oh_filesystem *fs, enum oh_residency_source source, enum oh_residency state,
       uint64_t resident_bytes)
{
	enum oh_residency_source got;
	struct oh_residency_range range = whole(fs, &got);
	CHECK_EQ(got, source);
	CHECK_EQ(range.state, state);
	CHECK_EQ(range.resident_bytes, resident_bytes);
	CHECK_EQ(world.maps, world.unmaps);
	CHECK(!world.touchable);
}

TEST(cachestat_tells_resident_absent_and_mixed_to_the_page)
{
	new_world(64 * MIB, all_warm);
	expect(&ext4, OH_RESIDENCY_CACHESTAT, OH_RESIDENT, 64 * MIB);
	new_world(64 * MIB, none_warm);
	expect(&ext4, OH_RESIDENCY_CACHESTAT, OH_ABSENT, 0);
	new_world(64 * MIB, first_half_warm);
	expect(&ext4, OH_RESIDENCY_CACHESTAT, OH_MIXED, 32 * MIB);
	CHECK_EQ(world.mincore_calls, 0);
	CHECK_EQ(world.maps, 0);
}

static int
ninety_five_warm(uint64_t page)
{
	return page >= 5;
}

static int
ninety_four_warm(uint64_t page)
{
	return page >= 6;
}

static int
five_warm(uint64_t page)
{
	return page < 5;
}

static int
six_warm(uint64_t page)
{
	return page < 6;
}

TEST(one_part_in_twenty_does_not_count)
{
	new_world(100 * PAGE, ninety_five_warm);
	expect(&ext4, OH_RESIDENCY_CACHESTAT, OH_RESIDENT, 95 * PAGE);
	new_world(100 * PAGE, ninety_four_warm);
	expect(&ext4, OH_RESIDENCY_CACHESTAT, OH_MIXED, 94 * PAGE);
	new_world(100 * PAGE, five_warm);
	expect(&ext4, OH_RESIDENCY_CACHESTAT, OH_ABSENT, 5 * PAGE);
	new_world(100 * PAGE, six_warm);
	expect(&ext4, OH_RESIDENCY_CACHESTAT, OH_MIXED, 6 * PAGE);
}

TEST(without_cachestat_mincore_tells_through_maps_that_cannot_be_read)
{
	static const int codes[] = {ENOSYS, EOPNOTSUPP, EINVAL};
	for (size_t i = 0; i < 3; i++) {
		new_world(64 * MIB, all_warm);
		world.cachestat_errno = codes[i];
		expect(&ext4, OH_RESIDENCY_MINCORE, OH_RESIDENT, 64 * MIB);
		CHECK_EQ(world.cachestat_calls, 1);
		/* One page in 2 MiB, and the one that shows whether it is honest. */
		CHECK_EQ(world.mincore_calls, 33);
		CHECK_EQ(world.maps, 1);
		new_world(64 * MIB, none_warm);
		world.cachestat_errno = codes[i];
		expect(&ext4, OH_RESIDENCY_MINCORE, OH_ABSENT, 0);
		new_world(64 * MIB, first_half_warm);
		world.cachestat_errno = codes[i];
		expect(&ext4, OH_RESIDENCY_MINCORE, OH_MIXED, 32 * MIB);
	}
}

TEST(a_large_file_is_mapped_in_windows)
{
	new_world(2 * GIB + 5, all_warm);
	world.cachestat_errno = ENOSYS;
	expect(&ext4, OH_RESIDENCY_MINCORE, OH_RESIDENT, 2 * GIB + 5);
	CHECK_EQ(world.most_mapped, 256 * MIB);
	CHECK(world.maps >= 8 && world.maps <= 9);
}

TEST(cachestat_is_never_asked_of_a_file_that_may_stand_for_one_below)
{
	new_world(64 * MIB, first_half_warm);
	expect(&overlay, OH_RESIDENCY_MINCORE, OH_MIXED, 32 * MIB);
	CHECK_EQ(world.cachestat_calls, 0);
}

TEST(a_sandbox_that_forbids_cachestat_is_told_from_a_kernel_that_refuses_the_file)
{
	new_world(64 * MIB, all_warm);
	world.cachestat_errno = EPERM;
	world.stray_errno = EPERM;
	expect(&ext4, OH_RESIDENCY_MINCORE, OH_RESIDENT, 64 * MIB);
	world.stray_errno = EBADF;
	expect(&ext4, OH_RESIDENCY_STRANGER, OH_UNKNOWN, 0);
}

TEST(a_sandbox_that_calls_every_page_resident_is_not_believed)
{
	new_world(64 * MIB, none_warm);
	world.cachestat_errno = ENOSYS;
	world.mincore_lies = 1;
	expect(&ext4, OH_RESIDENCY_UNTOLD, OH_UNKNOWN, 0);
}

TEST(without_both_calls_residency_is_unknown)
{
	new_world(64 * MIB, all_warm);
	world.cachestat_errno = ENOSYS;
	world.mincore_errno = ENOSYS;
	expect(&ext4, OH_RESIDENCY_UNTOLD, OH_UNKNOWN, 0);
}

TEST(a_file_that_cannot_be_mapped_is_unknown)
{
	new_world(64 * MIB, all_warm);
	world.map_errno = ENODEV;
	expect(&overlay, OH_RESIDENCY_MINCORE, OH_UNKNOWN, 0);
}

TEST(a_call_that_fails_half_way_makes_its_range_unknown)
{
	struct oh_residency_range ranges[] = {{.bytes = MIB}, {.offset = MIB, .bytes = MIB}};
	new_world(2 * MIB, all_warm);
	world.cachestat_fails_from = MIB;
	CHECK_EQ(ask(&ext4, ranges, 2), OH_RESIDENCY_CACHESTAT);
	CHECK_EQ(ranges[0].state, OH_RESIDENT);
	CHECK_EQ(ranges[0].resident_bytes, MIB);
	CHECK_EQ(ranges[1].state, OH_UNKNOWN);
	CHECK_EQ(ranges[1].resident_bytes, 0);
}

TEST(files_in_memory_are_resident_and_others_caches_unknown_without_a_question)
{
	new_world(64 * MIB, none_warm);
	world.user = 1001;
	expect(&tmpfs, OH_RESIDENCY_MEMORY, OH_RESIDENT, 64 * MIB);
	expect(&zfs, OH_RESIDENCY_UNTOLD, OH_UNKNOWN, 0);
	CHECK_EQ(world.cachestat_calls + world.mincore_calls + world.maps, 0);
}

TEST(another_users_file_is_unknown_whatever_the_kernel_says)
{
	new_world(64 * MIB, all_warm);
	world.user = 1001;
	expect(&ext4, OH_RESIDENCY_STRANGER, OH_UNKNOWN, 0);
	expect(&overlay, OH_RESIDENCY_STRANGER, OH_UNKNOWN, 0);
	CHECK_EQ(world.cachestat_calls + world.mincore_calls, 0);
}

TEST(the_right_to_write_or_cap_fowner_is_enough)
{
	new_world(64 * MIB, all_warm);
	world.user = 1001;
	world.fowner = 1;
	expect(&ext4, OH_RESIDENCY_CACHESTAT, OH_RESIDENT, 64 * MIB);
	world.fowner = 0;
	world.write_errno = 0;
	expect(&ext4, OH_RESIDENCY_CACHESTAT, OH_RESIDENT, 64 * MIB);
}

TEST(an_old_kernel_is_asked_for_the_right_to_write_through_proc)
{
	static const int codes[] = {EINVAL, ENOSYS};
	for (size_t i = 0; i < 2; i++) {
		new_world(64 * MIB, all_warm);
		world.user = 1001;
		world.write_errno = codes[i];
		expect(&ext4, OH_RESIDENCY_STRANGER, OH_UNKNOWN, 0);
		world.proc_write_errno = 0;
		expect(&ext4, OH_RESIDENCY_CACHESTAT, OH_RESIDENT, 64 * MIB);
	}
	/* A plain no is final. */
	world.write_errno = EROFS;
	expect(&ext4, OH_RESIDENCY_STRANGER, OH_UNKNOWN, 0);
}

TEST(an_owner_without_a_name_here_is_nobodys_equal)
{
	static const char all[] = "         0          0 4294967295\n";
	static const char some[] = "         0     100000      65536\n";
	new_world(64 * MIB, all_warm);
	world.owner = world.user = 65534;
	world.fowner = 1;
	expect(&ext4, OH_RESIDENCY_STRANGER, OH_UNKNOWN, 0);
	world.uid_map = some;
	expect(&ext4, OH_RESIDENCY_STRANGER, OH_UNKNOWN, 0);
	world.uid_map = all;
	expect(&ext4, OH_RESIDENCY_CACHESTAT, OH_RESIDENT, 64 * MIB);
}

TEST(pipes_and_bad_descriptors_are_unknown)
{
	new_world(64 * MIB, all_warm);
	world.mode = S_IFIFO;
	expect(&tmpfs, OH_RESIDENCY_UNTOLD, OH_UNKNOWN, 0);
	world.mode = S_IFREG;
	world.stat_errno = EIO;
	expect(&ext4, OH_RESIDENCY_UNTOLD, OH_UNKNOWN, 0);
}

TEST(ranges_need_no_alignment_and_end_at_the_end_of_the_file)
{
	struct oh_residency_range ranges[] = {
		{.offset = 32 * MIB - 1, .bytes = 1},
		{.offset = 32 * MIB, .bytes = 1},
		{.offset = 100, .bytes = 10},
		{.offset = 32 * MIB - 5000, .bytes = 10000},
		{.offset = 64 * MIB + 1, .bytes = 100},
		{.offset = 64 * MIB + 7, .bytes = 0},
		{.offset = 100 * MIB, .bytes = MIB},
		{.offset = UINT64_MAX, .bytes = UINT64_MAX},
	};
	static const struct {
		enum oh_residency state;
		uint64_t bytes;
	} want[] = {
		{OH_RESIDENT, 1},  {OH_ABSENT, 0},   {OH_RESIDENT, 10}, {OH_MIXED, 8192},
		{OH_ABSENT, 0},    {OH_RESIDENT, 0}, {OH_RESIDENT, 0},  {OH_RESIDENT, 0},
	};
	new_world(64 * MIB + 7, first_half_warm);
	CHECK_EQ(ask(&ext4, ranges, 8), OH_RESIDENCY_CACHESTAT);
	for (size_t i = 0; i < 8; i++) {
		printf("# range %zu\n", i);
		CHECK_EQ(ranges[i].state, want[i].state);
		CHECK_EQ(ranges[i].resident_bytes, want[i].bytes);
	}
}

TEST(a_map_shows_where_residency_changes)
{
	uint8_t states[6];
	for (int by_mincore = 0; by_mincore < 2; by_mincore++) {
		new_world(64 * MIB, first_half_warm);
		CHECK_EQ(ask_map(by_mincore ? &overlay : &ext4, 0, 16 * MIB, states, 6),
			 by_mincore ? OH_RESIDENCY_MINCORE : OH_RESIDENCY_CACHESTAT);
		CHECK_EQ(states[0], OH_RESIDENT);
		CHECK_EQ(states[1], OH_RESIDENT);
		CHECK_EQ(states[2], OH_ABSENT);
		CHECK_EQ(states[3], OH_ABSENT);
		CHECK_EQ(states[4], OH_RESIDENT); /* nothing is there */
		CHECK_EQ(states[5], OH_RESIDENT);
		CHECK_EQ(world.maps, by_mincore);
		CHECK_EQ(world.unmaps, by_mincore);
	}
	CHECK_EQ(ask_map(&ext4, 24 * MIB, 16 * MIB, states, 3), OH_RESIDENCY_CACHESTAT);
	CHECK_EQ(states[0], OH_MIXED);
	CHECK_EQ(states[1], OH_ABSENT);
	CHECK_EQ(states[2], OH_ABSENT);
	/* Chunks that begin behind the last number there is. */
	CHECK_EQ(ask_map(&ext4, 0, UINT64_MAX, states, 3), OH_RESIDENCY_CACHESTAT);
	CHECK_EQ(states[0], OH_MIXED);
	CHECK_EQ(states[1], OH_RESIDENT);
	CHECK_EQ(states[2], OH_RESIDENT);
}

TEST(a_large_resident_file_is_sampled_once_counting_has_cost_enough)
{
	const size_t count = 140 * 64;
	uint8_t *states = malloc(count);
	CHECK(states);
	new_world(140 * GIB, one_in_a_gib_cold);
	world.page_ns = 30;
	CHECK_EQ(ask_map(&ext4, 0, 16 * MIB, states, count), OH_RESIDENCY_CACHESTAT);
	for (size_t i = 0; i < count; i++)
		CHECK_EQ(states[i], i % 64 == 5 ? OH_ABSENT : OH_RESIDENT);
	free(states);
	/* Counted: 4 ms' worth at 30 ns a page; sampled: four pages of each chunk. */
	CHECK(world.pages_counted >= 4000000 / 31);
	CHECK(world.pages_counted <= 4000000 / 30 + 2 * 4096 + 4 * count);
	CHECK(world.ns < 14000000);
}

/* Two pages in a hundred. */
static int
few_cold(uint64_t page)
{
	return page % 50 != 7;
}

TEST(samples_that_disagree_are_counted_while_there_is_time)
{
	const size_t count = 2 * 64;
	uint8_t states[2 * 64];
	new_world(2 * GIB, few_cold);
	CHECK_EQ(ask_map(&ext4, 0, 16 * MIB, states, count), OH_RESIDENCY_CACHESTAT);
	CHECK_EQ(world.cachestat_calls, count + 1);
	/* Nothing is left of the time in which all is counted, but some of the other. */
	new_world(2 * GIB, few_cold);
	world.page_ns = 30;
	CHECK_EQ(ask_map(&ext4, 0, 16 * MIB, states, count), OH_RESIDENCY_CACHESTAT);
	for (size_t i = 0; i < count; i++)
		CHECK_EQ(states[i], OH_RESIDENT);
	CHECK(world.cachestat_calls > 3 * count);
	CHECK(world.ns < 9000000);
}

TEST(an_absent_file_takes_one_call_a_chunk)
{
	uint8_t states[128];
	new_world(2 * GIB, none_warm);
	CHECK_EQ(ask_map(&ext4, 0, 16 * MIB, states, 128), OH_RESIDENCY_CACHESTAT);
	for (size_t i = 0; i < 128; i++)
		CHECK_EQ(states[i], OH_ABSENT);
	CHECK_EQ(world.cachestat_calls, 129);
}

TEST(a_file_of_eight_exbibytes_and_a_device_without_end_take_a_bounded_number_of_calls)
{
	new_world(INT64_MAX, none_warm);
	expect(&ext4, OH_RESIDENCY_CACHESTAT, OH_ABSENT, 0);
	CHECK(world.cachestat_calls <= 16385);
	new_world(INT64_MAX, all_warm);
	expect(&overlay, OH_RESIDENCY_MINCORE, OH_RESIDENT, INT64_MAX);
	CHECK(world.mincore_calls <= 16385);
	new_world(0, none_warm);
	world.mode = S_IFBLK;
	expect(&ext4, OH_RESIDENCY_CACHESTAT, OH_ABSENT, 0);
	CHECK(world.cachestat_calls <= 16385);
}

TEST(the_beginnings_of_stretches_do_not_stand_for_the_rest)
{
	enum oh_residency_source source;
	new_world(4 * GIB, beginnings_warm);
	CHECK_EQ(whole(&ext4, &source).state, OH_ABSENT);
	CHECK_EQ(whole(&overlay, &source).state, OH_ABSENT);
}

/* Real files. */

#define FILE_BYTES (32 * MIB)

static char megabyte[1 << 20];

/* A file of FILE_BYTES, written and synced: all of it in the page cache. */
static int
fresh_file(const char *name)
{
	int fd = open(scratch(name), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	need(fd >= 0, "open");
	memset(megabyte, 0x5a, sizeof megabyte);
	for (uint64_t at = 0; at < FILE_BYTES; at += MIB)
		need(pwrite(fd, megabyte, MIB, (off_t)at) == (ssize_t)MIB, "pwrite");
	need(fsync(fd) == 0, "fsync");
	return fd;
}

static int
drop(int fd)
{
	return posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
}

static enum oh_residency_source
real(int fd, struct oh_residency_range *range)
{
	struct oh_filesystem fs;
	oh_filesystem_read(fd, &fs);
	*range = (struct oh_residency_range){.bytes = UINT64_MAX};
	return oh_residency_ask(fd, &fs, range, 1);
}

/* A reason why real files cannot be tested in the scratch folder; NULL if they can. */
static const char *
no_page_cache(int fd)
{
	struct oh_filesystem fs;
	struct oh_residency_range range;
	oh_filesystem_read(fd, &fs);
	if (fs.flags & OH_FS_RAM)
		return "the scratch folder is in memory";
	if (real(fd, &range) == OH_RESIDENCY_UNTOLD)
		return "the page cache is not told of here";
	return NULL;
}

TEST(a_file_just_written_is_resident_dropped_absent_and_half_read_half)
{
	struct oh_residency_range range;
	struct oh_filesystem fs;
	uint8_t states[32];
	int fd = fresh_file("half");
	const char *reason = no_page_cache(fd);
	if (reason)
		SKIP("%s", reason);
	enum oh_residency_source source = real(fd, &range);
	printf("# source %d\n", source);
	CHECK(source == OH_RESIDENCY_CACHESTAT || source == OH_RESIDENCY_MINCORE);
	CHECK_EQ(range.state, OH_RESIDENT);
	CHECK_EQ(range.resident_bytes, FILE_BYTES);
	CHECK_EQ(drop(fd), 0);
	real(fd, &range);
	CHECK_EQ(range.state, OH_ABSENT);
	/* Without read-ahead, what is read is what becomes resident. */
	CHECK_EQ(posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM), 0);
	for (uint64_t at = 0; at < FILE_BYTES / 2; at += MIB)
		CHECK_EQ(pread(fd, megabyte, MIB, (off_t)at), MIB);
	real(fd, &range);
	CHECK_EQ(range.state, OH_MIXED);
	CHECK(range.resident_bytes >= FILE_BYTES * 2 / 5);
	CHECK(range.resident_bytes <= FILE_BYTES * 3 / 5);
	oh_filesystem_read(fd, &fs);
	CHECK_EQ(oh_residency_map(fd, &fs, 0, MIB, states, 32), source);
	for (int i = 0; i < 32; i++)
		CHECK_EQ(states[i], i < 16 ? OH_RESIDENT : OH_ABSENT);
	close(fd);
}

static int
no_cachestat(int fd, const struct oh_cachestat_range *range, struct oh_cachestat *counts,
	     unsigned flags)
{
	(void)fd, (void)range, (void)counts, (void)flags;
	return fail_with(ENOSYS);
}

TEST(mincore_says_the_same_of_a_real_file)
{
	struct oh_sys saved = oh_sys;
	struct oh_residency_range range[3];
	enum oh_residency_source source[3];
	int fd = fresh_file("mincore");
	const char *reason = no_page_cache(fd);
	if (reason)
		SKIP("%s", reason);
	oh_sys.cachestat = no_cachestat;
	source[0] = real(fd, &range[0]);
	int failed = drop(fd);
	source[1] = real(fd, &range[1]);
	/* The question itself has warmed nothing. */
	source[2] = real(fd, &range[2]);
	oh_sys = saved;
	close(fd);
	CHECK_EQ(failed, 0);
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(source[i], OH_RESIDENCY_MINCORE);
		CHECK_EQ(range[i].state, i ? OH_ABSENT : OH_RESIDENT);
	}
}

TEST(a_file_in_memory_is_resident_by_nature)
{
	struct oh_residency_range range;
	int fd = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0)
		SKIP("/dev/shm: %s", strerror(errno));
	CHECK_EQ(ftruncate(fd, 1 << 20), 0);
	enum oh_residency_source source = real(fd, &range);
	close(fd);
	CHECK_EQ(source, OH_RESIDENCY_MEMORY);
	CHECK_EQ(range.state, OH_RESIDENT);
	CHECK_EQ(range.resident_bytes, 1 << 20);
}

/* Runs body(fd) in a child and returns its exit status, for what changes the process. */
static int
in_child(int (*body)(int fd), int fd)
{
	int status;
	fflush(stdout);
	pid_t child = fork();
	if (child == 0)
		_exit(body(fd));
	if (child < 0 || waitpid(child, &status, 0) < 0)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#define COULD_NOT 99

static int
as_another_user(int fd)
{
	struct oh_residency_range range;
	if (setresgid(1234, 1234, 1234) || setresuid(1234, 1234, 1234))
		return COULD_NOT;
	enum oh_residency_source source = real(fd, &range);
	return (int)source * 10 + (int)range.state;
}

TEST(another_users_real_file_is_unknown_until_it_may_be_written)
{
	struct oh_residency_range range;
	if (geteuid() != 0)
		SKIP("only root can become another user");
	int fd = fresh_file("stranger");
	const char *reason = no_page_cache(fd);
	if (reason)
		SKIP("%s", reason);
	int source = (int)real(fd, &range);
	int got = in_child(as_another_user, fd);
	if (got == COULD_NOT)
		SKIP("no other user can be become here");
	CHECK_EQ(got, OH_RESIDENCY_STRANGER * 10 + OH_UNKNOWN);
	CHECK_EQ(fchmod(fd, 0666), 0);
	CHECK_EQ(in_child(as_another_user, fd), source * 10 + OH_RESIDENT);
	CHECK_EQ(fchmod(fd, 0444), 0);
	CHECK_EQ(in_child(as_another_user, fd), OH_RESIDENCY_STRANGER * 10 + OH_UNKNOWN);
	CHECK_EQ(fchown(fd, 1234, 0), 0);
	CHECK_EQ(in_child(as_another_user, fd), source * 10 + OH_RESIDENT);
	close(fd);
}

/* On an overlay of two read-only layers, in a mount namespace of the child's own. */
static int
on_an_overlay(int below)
{
	char options[2200];
	struct oh_filesystem fs;
	struct oh_residency_range range;
	struct oh_cachestat_range all = {.bytes = FILE_BYTES};
	struct oh_cachestat counts = {0};
	snprintf(options, sizeof options, "lowerdir=%s:%s", scratch("lower"), scratch("empty"));
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("overlay", scratch("merged"), "overlay", MS_RDONLY, options))
		return COULD_NOT;
	int fd = open(scratch("merged/file"), O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 1;
	oh_filesystem_read(fd, &fs);
	if (strcmp(fs.name, "overlay") != 0 || !(fs.flags & OH_FS_OVERLAY))
		return 2;
	if (real(fd, &range) != OH_RESIDENCY_MINCORE || range.state != OH_RESIDENT)
		return 3;
	/* Why cachestat is not asked: it sees none of the pages. */
	if (!oh_sys.cachestat(fd, &all, &counts, 0) && counts.cached)
		return 4;
	if (drop(below) || real(fd, &range) != OH_RESIDENCY_MINCORE || range.state != OH_ABSENT)
		return 5;
	return 0;
}

TEST(a_file_of_an_overlays_lower_layer_is_what_it_is_below)
{
	if (geteuid() != 0)
		SKIP("only root can mount");
	need(scratch("lower/") && scratch("empty/") && scratch("merged/"), "scratch");
	mkdir(scratch("lower"), 0755);
	mkdir(scratch("empty"), 0755);
	mkdir(scratch("merged"), 0755);
	int fd = fresh_file("lower/file");
	const char *reason = no_page_cache(fd);
	if (reason)
		SKIP("%s", reason);
	int got = in_child(on_an_overlay, fd);
	close(fd);
	if (got == COULD_NOT)
		SKIP("no overlay can be mounted here");
	CHECK_EQ(got, 0);
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
