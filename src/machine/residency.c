/* Residency of a file's pages, by cachestat or else mincore.
 *
 * A question is one call from outside: it decides once whether the kernel may be believed and which
 * call to use, then counts or samples its ranges. Invariants: no page of the file is touched, since
 * a read through a map of a file that was cut off is a SIGBUS, and since asking must not warm the
 * cache; the map for mincore is PROT_NONE, so that not even mlockall(MCL_FUTURE) fills it; at most
 * one window of it exists, and none is left behind. A call that fails half way makes its range
 * unknown. It does not follow an overlay to the file below, and does not watch for changes.
 */
#include "machine/residency.h"

#include "base/arith.h"
#include "base/sys.h"
#include "machine/proc.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define WINDOW_BYTES (UINT64_C(256) << 20)
#define CACHESTAT_STRIDE (UINT64_C(4) << 20)
#define MINCORE_STRIDE (UINT64_C(2) << 20)
/* A range is sampled at this many pages or more, if it has them. */
#define LEAST_SAMPLES 4
/* And at this many at most: a sparse file, or a server that says so, may be of 8 EiB. */
#define MOST_SAMPLES 16384
/* Counting page by page takes 0.3 ns a page in large folios, but 30 in folios of one page: no more
 * than this in one call, ... */
#define MOST_COUNTED_BYTES (UINT64_C(256) << 20)
/* ... none when a question has taken this long, and none when this long but where samples
 * disagree. */
#define ALL_COUNTED_NS UINT64_C(4000000)
#define COUNTED_NS UINT64_C(8000000)
/* The user id that stands for all that have none in this user namespace. */
#define UNMAPPED_UID 65534

struct question {
	int fd;
	enum oh_residency_source source;
	uint64_t page;
	uint64_t end;          /* of the file */
	uint64_t start_ns;
	char *window;          /* NULL if there is none */
	uint64_t window_offset;
};

/* Are all user ids of the machine known here? If not, files of different unknown users look as if
 * they had one owner, and CAP_FOWNER does not reach them. */
static int
all_users_known(void)
{
	char text[OH_PROC_BYTES];
	unsigned inside, outside, count;
	return !oh_proc_read("/proc/self/uid_map", text) &&
	       sscanf(text, "%u %u %u", &inside, &outside, &count) == 3 && count == UINT32_MAX;
}

static int
holds_fowner(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3];
	memset(sets, 0, sizeof sets);
	return oh_sys.capget(&header, sets) == 0 &&
	       sets[CAP_TO_INDEX(CAP_FOWNER)].effective & CAP_TO_MASK(CAP_FOWNER);
}

/* Kernels before 5.8 know no AT_EMPTY_PATH here; the file's link in /proc says the same. */
static int
may_write(int fd)
{
	char link[64];
	if (oh_sys.faccessat(fd, "", W_OK, AT_EMPTY_PATH | AT_EACCESS) == 0)
		return 1;
	if (errno != EINVAL && errno != ENOSYS)
		return 0;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	return oh_sys.faccessat(AT_FDCWD, link, W_OK, AT_EACCESS) == 0;
}

/* The kernel's own rule for whom mincore and (since 6.14) cachestat tell the truth. The right to
 * write comes last: on a network file system it asks the server. */
static int
believed(int fd, const struct stat *st)
{
	if (st->st_uid != UNMAPPED_UID || all_users_known())
		if (oh_sys.geteuid() == st->st_uid || holds_fowner())
			return 1;
	return may_write(fd);
}

/* Some sandboxes answer that every page of anything is resident; one that was never touched is
 * not. */
static int
mincore_is_honest(uint64_t page)
{
	unsigned char state = 1;
	void *at = oh_sys.mmap(NULL, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return 0;
	int failed = oh_sys.mincore(at, page, &state);
	oh_sys.munmap(at, page);
	return !failed && !(state & 1);
}

static enum oh_residency_source
pick_source(const struct question *q, const struct oh_filesystem *fs, const struct stat *st)
{
	if (!S_ISREG(st->st_mode) && !S_ISBLK(st->st_mode))
		return OH_RESIDENCY_UNTOLD;
	if (fs->flags & OH_FS_RAM)
		return OH_RESIDENCY_MEMORY;
	if (fs->flags & OH_FS_OWN_CACHE)
		return OH_RESIDENCY_UNTOLD;
	if (!believed(q->fd, st))
		return OH_RESIDENCY_STRANGER;
	if (!(fs->flags & OH_FS_STACKED)) {
		struct oh_cachestat_range first = {.offset = 0, .bytes = q->page};
		struct oh_cachestat counts;
		if (oh_sys.cachestat(q->fd, &first, &counts, 0) == 0)
			return OH_RESIDENCY_CACHESTAT;
		/* EPERM is the kernel's word on this file, or a sandbox's on this call: only the
		 * kernel sees that a descriptor is bad. */
		if (errno == EPERM && oh_sys.cachestat(-1, &first, &counts, 0) < 0 &&
		    errno == EBADF)
			return OH_RESIDENCY_STRANGER;
	}
	return mincore_is_honest(q->page) ? OH_RESIDENCY_MINCORE : OH_RESIDENCY_UNTOLD;
}

static void
begin(struct question *q, int fd, const struct oh_filesystem *fs)
{
	struct stat st;
	memset(q, 0, sizeof *q);
	q->fd = fd;
	q->source = OH_RESIDENCY_UNTOLD;
	q->page = (uint64_t)sysconf(_SC_PAGESIZE);
	q->start_ns = oh_now_ns();
	q->end = INT64_MAX;
	if (oh_sys.fstat(fd, &st) < 0)
		return;
	if (S_ISREG(st.st_mode))
		q->end = st.st_size > 0 ? (uint64_t)st.st_size : 0;
	q->source = pick_source(q, fs, &st);
}

static void
drop_window(struct question *q)
{
	if (q->window)
		oh_sys.munmap(q->window, WINDOW_BYTES);
	q->window = NULL;
}

/* Is the page at offset in the cache? 1, 0, or -1 if the call failed. */
static int
ask_mincore(struct question *q, uint64_t offset)
{
	unsigned char state = 0;
	uint64_t start = oh_align_down(offset, WINDOW_BYTES);
	if (!q->window || q->window_offset != start) {
		drop_window(q);
		void *at = oh_sys.mmap(NULL, WINDOW_BYTES, PROT_NONE, MAP_SHARED, q->fd,
				       (off_t)start);
		if (at == MAP_FAILED)
			return -1;
		q->window = at;
		q->window_offset = start;
	}
	if (oh_sys.mincore(q->window + (offset - start), q->page, &state) < 0)
		return -1;
	return state & 1;
}

static int
ask_cachestat(struct question *q, uint64_t offset)
{
	struct oh_cachestat_range range = {.offset = offset, .bytes = q->page};
	struct oh_cachestat counts;
	if (oh_sys.cachestat(q->fd, &range, &counts, 0) < 0)
		return -1;
	return counts.cached > 0;
}

/* The page of a stretch that stands for it: in each stretch another place, so that a reader's
 * habits (the first page of each tensor, say) do not stand for all. */
static uint64_t
place_in(uint64_t first_page, uint64_t pages)
{
	uint32_t mixed = (uint32_t)first_page * 0x9e3779b9u >> 8;
	return ((uint64_t)mixed * pages) >> 24;
}

/* Samples bytes at offset, both multiples of a page. */
static int
sample(struct question *q, uint64_t offset, uint64_t bytes, uint64_t *resident)
{
	int by_mincore = q->source == OH_RESIDENCY_MINCORE;
	uint64_t stride = by_mincore ? MINCORE_STRIDE : CACHESTAT_STRIDE;
	uint64_t asked = 0, found = 0, stretch;
	stride = oh_min(stride, oh_align_down(bytes / LEAST_SAMPLES, q->page));
	stride = oh_max(stride, oh_align_down(bytes / MOST_SAMPLES, q->page) + q->page);
	for (uint64_t at = 0; at < bytes; at += stretch) {
		stretch = oh_min(stride, bytes - at);
		uint64_t first = (offset + at) / q->page;
		uint64_t page = (first + place_in(first, stretch / q->page)) * q->page;
		int there = by_mincore ? ask_mincore(q, page) : ask_cachestat(q, page);
		if (there < 0)
			return 1;
		asked++;
		found += (uint64_t)there;
	}
	*resident = found == asked ? bytes : bytes / asked * found;
	return 0;
}

static int
count(struct question *q, uint64_t offset, uint64_t bytes, uint64_t *resident)
{
	struct oh_cachestat_range range = {.offset = offset, .bytes = bytes};
	struct oh_cachestat counts;
	if (oh_sys.cachestat(q->fd, &range, &counts, 0) < 0)
		return 1;
	*resident = oh_min(counts.cached, bytes / q->page) * q->page;
	return 0;
}

/* May a range of bytes be counted, up to so long after the question's beginning? */
static int
may_count(const struct question *q, uint64_t bytes, uint64_t within_ns)
{
	return q->source == OH_RESIDENCY_CACHESTAT && bytes <= MOST_COUNTED_BYTES &&
	       oh_now_ns() - q->start_ns < within_ns;
}

static enum oh_residency
state_of(uint64_t resident, uint64_t bytes)
{
	if (bytes - resident <= bytes / 20)
		return OH_RESIDENT;
	return resident <= bytes / 20 ? OH_ABSENT : OH_MIXED;
}

static void
answer(struct question *q, struct oh_residency_range *range)
{
	uint64_t start = oh_min(range->offset, q->end);
	uint64_t bytes = oh_min(range->bytes, q->end - start), whole, resident = 0;
	range->resident_bytes = bytes;
	range->state = OH_RESIDENT;
	if (q->source == OH_RESIDENCY_MEMORY || !bytes)
		return;
	range->resident_bytes = 0;
	range->state = OH_UNKNOWN;
	if (q->source == OH_RESIDENCY_STRANGER || q->source == OH_RESIDENCY_UNTOLD)
		return;
	/* Whole pages from here on. The end is at most 2^63, so that the last page fits. */
	uint64_t first = oh_align_down(start, q->page);
	whole = oh_align_down(start + bytes - first + q->page - 1, q->page);
	int counted = may_count(q, whole, ALL_COUNTED_NS);
	int failed = counted ? count(q, first, whole, &resident)
			     : sample(q, first, whole, &resident);
	/* One sample of four that disagrees may be one page of thousands. */
	if (!failed && !counted && state_of(resident, whole) == OH_MIXED &&
	    may_count(q, whole, COUNTED_NS))
		failed = count(q, first, whole, &resident);
	if (failed)
		return;
	range->state = state_of(resident, whole);
	range->resident_bytes = oh_min(resident, bytes);
}

enum oh_residency_source
oh_residency_ask(int fd, const struct oh_filesystem *fs, struct oh_residency_range *ranges,
		 size_t range_count)
{
	struct question q;
	begin(&q, fd, fs);
	for (size_t i = 0; i < range_count; i++)
		answer(&q, &ranges[i]);
	drop_window(&q);
	return q.source;
}

enum oh_residency_source
oh_residency_map(int fd, const struct oh_filesystem *fs, uint64_t offset, uint64_t chunk_bytes,
		 uint8_t *states, size_t chunks)
{
	struct question q;
	assert(chunk_bytes > 0);
	begin(&q, fd, fs);
	for (size_t i = 0; i < chunks; i++) {
		struct oh_residency_range chunk = {.bytes = chunk_bytes};
		/* What does not fit in 64 bits lies behind any end. */
		if (oh_mul(i, chunk_bytes, &chunk.offset) ||
		    oh_add(chunk.offset, offset, &chunk.offset))
			chunk.offset = UINT64_MAX;
		answer(&q, &chunk);
		states[i] = (uint8_t)chunk.state;
	}
	drop_window(&q);
	return q.source;
}
