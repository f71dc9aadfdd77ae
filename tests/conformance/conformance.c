/* The same cases over every pair of storage and memory: what the runtime promises whatever is plugged
 * in. TEST_DEVICE names the device; a new back end adds one row to meson.build.
 *
 * System calls are replaced through base/sys.h before a runtime is made and put back after it is
 * gone, so no thread sees the table change.
 */
#include "base/sys.h"
#include "harness.h"
#include "random.h"

#include <onehop/onehop.h>

#include "runtime/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

static const char *device;
static char folder[] = "/tmp/onehop-conformance-XXXXXX";
static struct onehop_error error;

static int
on_host(void)
{
	return strcmp(device, "host") == 0;
}

/* What a read may take more at each end: pages, where the rows of meson.build have O_DIRECT used. */
static uint64_t
whole_pages(void)
{
	const char *cache = getenv("ONEHOP_CACHE");
	return cache && strcmp(cache, "bypass") == 0 ? 4096 : 0;
}

static uint8_t
byte_at(uint64_t offset)
{
	uint64_t word = (offset / 8 + 1) * UINT64_C(0x9E3779B97F4A7C15);
	return (uint8_t)(word >> (8 * (offset % 8)));
}

static const char *
make_file(const char *name, uint64_t bytes)
{
	static char path[200];
	uint8_t chunk[65536];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	FILE *f = fopen(path, "w");
	for (uint64_t at = 0; f && at < bytes; at += sizeof chunk) {
		uint64_t n = bytes - at < sizeof chunk ? bytes - at : sizeof chunk;
		for (uint64_t i = 0; i < n; i++)
			chunk[i] = byte_at(at + i);
		fwrite(chunk, 1, n, f);
	}
	if (!f || fclose(f))
		abort();
	return path;
}

/* A runtime, a file and a buffer, which most cases begin with. */
struct world {
	struct onehop_runtime *runtime;
	struct onehop_file *file;
	struct onehop_buffer *buffer;
	struct onehop_plan *plan;
	struct onehop_transfer *transfer;
	struct onehop_extent *extents;
	uint64_t count;
	uint64_t file_bytes;
	uint64_t buffer_bytes;
};

static struct onehop_runtime *
make_runtime(uint64_t threads, uint64_t ring, uint64_t block, uint64_t slice)
{
	struct onehop_runtime_options options;
	struct onehop_runtime *runtime = NULL;
	onehop_runtime_options_init(&options);
	options.threads = threads;
	options.ring_bytes = ring;
	options.block_bytes = block;
	options.slice_bytes = slice;
	if (onehop_runtime_create(&options, &runtime, &error))
		test_fail(__FILE__, __LINE__, "%s", error.message);
	return runtime;
}

/* threads 3, a ring of 4 blocks of 64 KiB, slices of 16 KiB: small, so that all of it is used. */
static int
begin(struct world *w, const char *name, uint64_t file_bytes, uint64_t buffer_bytes)
{
	memset(w, 0, sizeof *w);
	w->file_bytes = file_bytes;
	w->buffer_bytes = buffer_bytes;
	w->runtime = make_runtime(3, 256 << 10, 64 << 10, 16 << 10);
	if (onehop_file_open(w->runtime, make_file(name, file_bytes), &w->file, &error) ||
	    onehop_buffer_alloc(w->runtime, device, buffer_bytes, &w->buffer, &error) ||
	    onehop_buffer_fill(w->buffer, 0, buffer_bytes, 0xA5, &error)) {
		test_fail(__FILE__, __LINE__, "%s", error.message);
		return 0;
	}
	return 1;
}

static void
end(struct world *w)
{
	onehop_transfer_destroy(w->transfer);
	onehop_plan_destroy(w->plan);
	onehop_buffer_free(w->buffer);
	onehop_file_close(w->file);
	onehop_runtime_destroy(w->runtime);
	free(w->extents);
}

static int
prepare(struct world *w)
{
	if (onehop_plan_create(w->runtime, w->extents, w->count, &w->plan, &error) ||
	    onehop_transfer_prepare(w->plan, &w->transfer, &error)) {
		test_fail(__FILE__, __LINE__, "%s", error.message);
		return 0;
	}
	return 1;
}

static void
one_extent(struct world *w, uint64_t offset, uint64_t bytes, uint64_t to)
{
	w->extents = calloc(1, sizeof *w->extents);
	w->extents[0] = (struct onehop_extent){w->file, offset, bytes, 1, 0, w->buffer, to, "the.tensor"};
	w->count = 1;
}

/* Are the extents' bytes there, and is everything else as it was filled? NULL if so. */
static const char *
wrong_bytes(const struct world *w)
{
	uint8_t *got = malloc(w->buffer_bytes + 1), *owned = calloc(w->buffer_bytes + 1, 1);
	const char *wrong = NULL;
	if (onehop_buffer_read(w->buffer, 0, got, w->buffer_bytes, &error))
		wrong = error.message;
	for (uint64_t e = 0; e < w->count && !wrong; e++) {
		const struct onehop_extent *x = &w->extents[e];
		for (uint64_t i = 0; i < x->rows * x->row_bytes && !wrong; i++) {
			uint64_t at = x->offset + i / x->row_bytes * x->row_stride + i % x->row_bytes;
			owned[x->buffer_offset + i] = 1;
			if (got[x->buffer_offset + i] != byte_at(at))
				wrong = "a byte of an extent is wrong";
		}
	}
	for (uint64_t i = 0; i < w->buffer_bytes && !wrong; i++)
		if (!owned[i] && got[i] != 0xA5)
			wrong = "a byte outside the extents was written";
	free(got);
	free(owned);
	return wrong;
}

#define CHECK_BYTES(w)                                                                             \
	do {                                                                                       \
		const char *test_wrong = wrong_bytes(w);                                           \
		if (test_wrong) {                                                                  \
			test_fail(__FILE__, __LINE__, "%s", test_wrong);                           \
			return;                                                                    \
		}                                                                                  \
	} while (0)

TEST(a_range_of_any_size_and_offset_lands_byte_for_byte)
{
	static const uint64_t sizes[] = {0, 1, 7, 4095, 4096, 16384, 65535, 65536, 65537, 300001, MIB};
	static const uint64_t offsets[] = {0, 1, 511, 4096, 70001};
	for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
		for (size_t o = 0; o < sizeof offsets / sizeof offsets[0]; o++) {
			struct world w;
			struct onehop_completion c = {.size = sizeof c};
			CHECK(begin(&w, "ranges", 2 * MIB, MIB + 64));
			one_extent(&w, offsets[o], sizes[s], o);
			CHECK(prepare(&w));
			CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
			CHECK_OK(onehop_transfer_wait(w.transfer, ONEHOP_FOREVER, &c, &error));
			CHECK_EQ(c.bytes, sizes[s]);
			uint64_t mapped = c.route_bytes[ONEHOP_ROUTE_MAPPED];
			CHECK(c.read_bytes + mapped >= sizes[s] &&
			      c.read_bytes + mapped <= sizes[s] + 2 * whole_pages());
			CHECK_EQ(c.route_bytes[ONEHOP_ROUTE_BUFFERED] +
					 c.route_bytes[ONEHOP_ROUTE_DIRECT] + mapped,
				 sizes[s]);
			CHECK_BYTES(&w);
			end(&w);
		}
	}
}

/* Ranges, rows, empties; scattered. The order of the list is that of the buffer. */
static void
random_extents(struct world *w, struct random *r, uint64_t count)
{
	uint64_t to = 0;
	w->extents = calloc(count + 1, sizeof *w->extents);
	for (w->count = 0; w->count < count; w->count++) {
		struct onehop_extent *x = &w->extents[w->count];
		uint64_t rows = random_below(r, 4) ? 1 : 1 + random_below(r, 200);
		uint64_t row = random_below(r, rows > 1 ? 6000 : 100000);
		uint64_t stride = row + random_below(r, 5000);
		uint64_t span = rows * stride;
		if (span >= w->file_bytes || to + rows * row > w->buffer_bytes)
			return;
		*x = (struct onehop_extent){w->file, random_below(r, w->file_bytes - span), row, rows,
					    stride, w->buffer, to, NULL};
		to += rows * row + random_below(r, 100);
	}
}

TEST(ranges_and_rows_in_any_order_land_byte_for_byte_again_and_again)
{
	uint64_t seed = random_seed(1);
	for (uint64_t round = 0; round < 12; round++) {
		struct random r = random_init(seed + round);
		struct world w;
		printf("# seed %llu\n", (unsigned long long)(seed + round));
		CHECK(begin(&w, "rows", 3 * MIB, 3 * MIB));
		random_extents(&w, &r, 100);
		CHECK(prepare(&w));
		for (int again = 0; again < 3; again++) {
			CHECK_OK(onehop_buffer_fill(w.buffer, 0, w.buffer_bytes, 0xA5, &error));
			CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
			CHECK_OK(onehop_transfer_wait(w.transfer, ONEHOP_FOREVER, NULL, &error));
			CHECK_BYTES(&w);
		}
		end(&w);
	}
}

static void
small_extents(struct world *w, uint64_t count)
{
	w->extents = calloc(count, sizeof *w->extents);
	w->count = count;
	for (uint64_t i = 0; i < count; i++)
		w->extents[i] = (struct onehop_extent){w->file, i * 100, 100, 1, 0, w->buffer,
						       (count - 1 - i) * 112, NULL};
}

TEST(thousands_of_small_scattered_destinations_land_through_few_reads)
{
	struct world w;
	struct onehop_completion c = {.size = sizeof c};
	CHECK(begin(&w, "small", 500000, 5000 * 112));
	small_extents(&w, 5000);
	CHECK(prepare(&w));
	CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
	CHECK_OK(onehop_transfer_wait(w.transfer, ONEHOP_FOREVER, &c, &error));
	CHECK_BYTES(&w);
	uint64_t taken = c.read_bytes + c.route_bytes[ONEHOP_ROUTE_MAPPED];
	CHECK(taken >= 500000 && taken <= 500000 + 64 * whole_pages());
	CHECK(c.copies >= 5000);
	end(&w);
}

TEST(every_extent_arrives_once_with_its_bytes_and_then_it_is_the_end)
{
	struct world w;
	uint8_t seen[64] = {0};
	uint64_t extent;
	onehop_status status;
	CHECK(begin(&w, "arrivals", 2 * MIB, 2 * MIB));
	w.extents = calloc(64, sizeof *w.extents);
	w.count = 64;
	for (uint64_t i = 0; i < 64; i++)
		w.extents[i] = (struct onehop_extent){w.file, i * 30000, i % 9 ? 30000 : 0, 1, 0, w.buffer,
						      i * 30016, NULL};
	CHECK(prepare(&w));
	CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
	while (!(status = onehop_transfer_next(w.transfer, ONEHOP_FOREVER, &extent, &error))) {
		uint8_t got[16];
		CHECK(extent < 64 && !seen[extent]);
		seen[extent] = 1;
		if (!w.extents[extent].row_bytes)
			continue;
		CHECK_OK(onehop_buffer_read(w.buffer, extent * 30016 + 29990, got, 10, &error));
		for (int i = 0; i < 10; i++)
			CHECK_EQ(got[i], byte_at(extent * 30000 + 29990 + (uint64_t)i));
	}
	CHECK_EQ(status, ONEHOP_END);
	for (int i = 0; i < 64; i++)
		CHECK(seen[i]);
	CHECK_OK(onehop_transfer_wait(w.transfer, 0, NULL, &error));
	end(&w);
}

TEST(arrivals_come_as_many_at_once_as_there_is_room_for)
{
	struct world w;
	uint8_t seen[64] = {0};
	uint64_t extents[10], count = 0, all = 0;
	onehop_status status;
	CHECK(begin(&w, "arrivals", 2 * MIB, 2 * MIB));
	small_extents(&w, 64);
	CHECK(prepare(&w));
	CHECK_EQ(onehop_transfer_arrivals(w.transfer, 0, extents, 10, &count, &error),
		 ONEHOP_INVALID_ARGUMENT);
	CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
	CHECK_EQ(onehop_transfer_arrivals(w.transfer, 0, extents, 0, &count, &error),
		 ONEHOP_INVALID_ARGUMENT);
	CHECK_OK(onehop_transfer_wait(w.transfer, ONEHOP_FOREVER, NULL, &error));
	while (!(status = onehop_transfer_arrivals(w.transfer, 0, extents, 10, &count, &error))) {
		CHECK_EQ(count, all < 60 ? 10 : 4);
		for (uint64_t i = 0; i < count; i++) {
			CHECK(extents[i] < 64 && !seen[extents[i]]);
			seen[extents[i]] = 1;
		}
		all += count;
	}
	CHECK_EQ(status, ONEHOP_END);
	CHECK_EQ(all, 64);
	end(&w);
}

/* ------------------------------------------------------------------ reads that are held back */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t open;    /* for the reads */
	pthread_cond_t arrived; /* for the test */
	int held;    /* reads wait while it is set */
	int waiting; /* reads that do */
	uint64_t beyond; /* reads at offsets from here on are held */
} gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0};

static ssize_t
gated_pread(int fd, void *buf, size_t bytes, off_t offset)
{
	pthread_mutex_lock(&gate.lock);
	while (gate.held && (uint64_t)offset >= gate.beyond) {
		gate.waiting++;
		pthread_cond_signal(&gate.arrived);
		pthread_cond_wait(&gate.open, &gate.lock);
		gate.waiting--;
	}
	pthread_mutex_unlock(&gate.lock);
	return pread(fd, buf, bytes, offset);
}

static void
gate_set(int held, uint64_t beyond)
{
	pthread_mutex_lock(&gate.lock);
	gate.held = held;
	gate.beyond = beyond;
	pthread_cond_broadcast(&gate.open);
	pthread_mutex_unlock(&gate.lock);
}

static void
gate_wait_for_reader(void)
{
	pthread_mutex_lock(&gate.lock);
	while (!gate.waiting)
		pthread_cond_wait(&gate.arrived, &gate.lock);
	pthread_mutex_unlock(&gate.lock);
}

static struct oh_sys real;

static int
begin_gated(struct world *w, const char *name, uint64_t beyond)
{
	real = oh_sys;
	oh_sys.pread = gated_pread;
	gate_set(0, 0);
	if (!begin(w, name, 2 * MIB, 2 * MIB))
		return 0;
	one_extent(w, 0, 2 * MIB, 0);
	gate_set(1, beyond);
	return prepare(w);
}

static void
end_gated(struct world *w)
{
	end(w);
	oh_sys = real;
}

TEST(a_time_limit_is_kept_and_a_running_transfer_is_busy)
{
	struct world w;
	uint64_t extent;
	struct onehop_progress p = {.size = sizeof p};
	CHECK(begin_gated(&w, "slow", 0));
	CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
	gate_wait_for_reader();
	CHECK_EQ(onehop_transfer_wait(w.transfer, 0, NULL, &error), ONEHOP_TIMED_OUT);
	CHECK_EQ(onehop_transfer_next(w.transfer, 0, &extent, &error), ONEHOP_TIMED_OUT);
	CHECK_EQ(onehop_transfer_start(w.transfer, NULL, &error), ONEHOP_BUSY);
	CHECK_OK(onehop_transfer_progress(w.transfer, &p));
	CHECK_EQ(p.running, 1);
	CHECK_EQ(p.bytes_landed, 0);
	CHECK_EQ(p.bytes_total, 2 * MIB);
	gate_set(0, 0);
	CHECK_OK(onehop_transfer_wait(w.transfer, ONEHOP_FOREVER, NULL, &error));
	CHECK_OK(onehop_transfer_progress(w.transfer, &p));
	CHECK_EQ(p.running, 0);
	CHECK_EQ(p.bytes_landed, 2 * MIB);
	CHECK_BYTES(&w);
	end_gated(&w);
}

TEST(workers_go_on_while_nobody_waits)
{
	struct world w;
	struct onehop_progress p = {.size = sizeof p, .running = 1};
	CHECK(begin(&w, "alone", 2 * MIB, 2 * MIB));
	one_extent(&w, 0, 2 * MIB, 0);
	CHECK(prepare(&w));
	CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
	do {
		sched_yield();
		CHECK_OK(onehop_transfer_progress(w.transfer, &p));
	} while (p.running);
	CHECK_OK(onehop_transfer_wait(w.transfer, 0, NULL, &error));
	CHECK_BYTES(&w);
	end(&w);
}

TEST(a_cancelled_transfer_ends_and_the_next_one_works)
{
	struct world w;
	uint64_t extent;
	CHECK(begin_gated(&w, "cancel", 100000));
	CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
	gate_wait_for_reader();
	onehop_transfer_cancel(w.transfer);
	gate_set(0, 0);
	CHECK_EQ(onehop_transfer_wait(w.transfer, ONEHOP_FOREVER, NULL, &error), ONEHOP_CANCELLED);
	CHECK_EQ(onehop_transfer_next(w.transfer, 0, &extent, &error), ONEHOP_CANCELLED);
	CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
	CHECK_OK(onehop_transfer_wait(w.transfer, ONEHOP_FOREVER, NULL, &error));
	CHECK_BYTES(&w);
	onehop_transfer_cancel(w.transfer);
	CHECK_OK(onehop_transfer_wait(w.transfer, 0, NULL, &error));
	end_gated(&w);
}

TEST(a_cancel_that_waits_long_for_a_read_names_the_file)
{
	struct world w;
	CHECK(begin_gated(&w, "stuck", 100000));
	w.runtime->patience_ns = 1;
	CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
	gate_wait_for_reader();
	onehop_transfer_cancel(w.transfer);
	gate_set(0, 0);
	CHECK_EQ(onehop_transfer_wait(w.transfer, ONEHOP_FOREVER, NULL, &error), ONEHOP_CANCELLED);
	CHECK_HOLDS(error.message, "/stuck: a read at offset");
	end_gated(&w);
}

static void *
open_gate(void *unused)
{
	(void)unused;
	gate_set(0, 0);
	return NULL;
}

TEST(destroy_of_a_running_transfer_waits_for_its_reads)
{
	struct world w;
	pthread_t opener;
	CHECK(begin_gated(&w, "destroy", 100000));
	CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
	gate_wait_for_reader();
	CHECK_EQ(pthread_create(&opener, NULL, open_gate, NULL), 0);
	onehop_transfer_destroy(w.transfer);
	w.transfer = NULL;
	pthread_join(opener, NULL);
	end_gated(&w);
}

TEST(a_file_that_shrinks_is_an_error_that_names_file_tensor_and_offset)
{
	struct world w;
	char path[200];
	CHECK(begin_gated(&w, "shrinks", 100000));
	snprintf(path, sizeof path, "%s/shrinks", folder);
	CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
	gate_wait_for_reader();
	CHECK_EQ(truncate(path, 50000), 0);
	gate_set(0, 0);
	CHECK_EQ(onehop_transfer_wait(w.transfer, ONEHOP_FOREVER, NULL, &error), ONEHOP_FILE_CHANGED);
	CHECK_HOLDS(error.message, path);
	CHECK_HOLDS(error.message, "the.tensor");
	CHECK_HOLDS(error.message, "offset");
	CHECK(error.remedy[0]);
	end_gated(&w);
}

TEST(a_file_that_is_written_or_removed_meanwhile_is_an_error_though_every_read_succeeded)
{
	for (int removed = 0; removed < 2; removed++) {
		struct world w;
		char path[200];
		snprintf(path, sizeof path, "%s/written", folder);
		CHECK(begin_gated(&w, "written", 100000));
		CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
		gate_wait_for_reader();
		if (removed) {
			CHECK_EQ(unlink(path), 0);
		} else {
			int fd = open(path, O_WRONLY);
			struct timespec times[2] = {{0, UTIME_NOW}, {1000, 0}};
			CHECK_EQ(pwrite(fd, "x", 1, 0), 1);
			CHECK_EQ(futimens(fd, times), 0);
			close(fd);
		}
		gate_set(0, 0);
		CHECK_EQ(onehop_transfer_wait(w.transfer, ONEHOP_FOREVER, NULL, &error),
			 ONEHOP_FILE_CHANGED);
		CHECK_HOLDS(error.message, path);
		end_gated(&w);
	}
}

TEST(a_small_transfer_that_begins_amid_a_large_one_overtakes_it)
{
	struct world big;
	struct onehop_extent small;
	struct onehop_buffer *buffer;
	struct onehop_plan *plan;
	struct onehop_transfer *transfer;
	struct onehop_file *other;
	struct onehop_progress p = {.size = sizeof p};
	/* The large one's reads are held from its first block on; the small one reads below that. */
	CHECK(begin_gated(&big, "big", 200000));
	CHECK_OK(onehop_file_open(big.runtime, make_file("tiny", 100000), &other, &error));
	CHECK_OK(onehop_buffer_alloc(big.runtime, device, 100000, &buffer, &error));
	small = (struct onehop_extent){other, 0, 100000, 1, 0, buffer, 0, NULL};
	CHECK_OK(onehop_plan_create(big.runtime, &small, 1, &plan, &error));
	CHECK_OK(onehop_transfer_prepare(plan, &transfer, &error));
	CHECK_OK(onehop_transfer_start(transfer, NULL, &error));
	CHECK_OK(onehop_transfer_start(big.transfer, NULL, &error));
	CHECK_OK(onehop_transfer_wait(transfer, ONEHOP_FOREVER, NULL, &error));
	CHECK_OK(onehop_transfer_progress(big.transfer, &p));
	CHECK_EQ(p.running, 1);
	gate_set(0, 0);
	CHECK_OK(onehop_transfer_wait(big.transfer, ONEHOP_FOREVER, NULL, &error));
	CHECK_BYTES(&big);
	onehop_transfer_destroy(transfer);
	onehop_plan_destroy(plan);
	onehop_buffer_free(buffer);
	onehop_file_close(other);
	end_gated(&big);
}

/* ------------------------------------------------------------------ reads that misbehave */

static int bad_reads;
static int bad_at;

static ssize_t
failing_pread(int fd, void *buf, size_t bytes, off_t offset)
{
	if (__atomic_fetch_add(&bad_reads, 1, __ATOMIC_RELAXED) == bad_at) {
		errno = EIO;
		return -1;
	}
	return pread(fd, buf, bytes, offset);
}

TEST(the_nth_read_fails_for_every_n_and_the_next_load_works)
{
	int failed = 1;
	for (bad_at = 0; failed; bad_at++) {
		struct world w;
		real = oh_sys;
		bad_reads = -1000000;
		oh_sys.pread = failing_pread;
		CHECK(begin(&w, "eio", 600000, 600000));
		one_extent(&w, 0, 600000, 0);
		CHECK(prepare(&w));
		__atomic_store_n(&bad_reads, 0, __ATOMIC_RELAXED);
		CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
		failed = onehop_transfer_wait(w.transfer, ONEHOP_FOREVER, NULL, &error) != ONEHOP_OK;
		if (failed) {
			CHECK_EQ(error.status, ONEHOP_IO);
			CHECK_EQ(error.os_errno, EIO);
			CHECK_HOLDS(error.message, "/eio: tensor \"the.tensor\": reading");
			CHECK_HOLDS(error.message, "Input/output error");
			__atomic_store_n(&bad_reads, 1000000, __ATOMIC_RELAXED);
			CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
			CHECK_OK(onehop_transfer_wait(w.transfer, ONEHOP_FOREVER, NULL, &error));
		}
		CHECK_BYTES(&w);
		end_gated(&w);
	}
	/* 600,000 bytes are 37 slices of 16 KiB at least. */
	CHECK(bad_at > 36);
}

static ssize_t
short_pread(int fd, void *buf, size_t bytes, off_t offset)
{
	return pread(fd, buf, bytes > 3 ? bytes / 2 + (size_t)offset % 3 : bytes, offset);
}

TEST(short_reads_lose_nothing)
{
	struct world w;
	struct random r = random_init(random_seed(77));
	real = oh_sys;
	oh_sys.pread = short_pread;
	CHECK(begin(&w, "short", MIB, MIB));
	random_extents(&w, &r, 60);
	CHECK(prepare(&w));
	CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
	CHECK_OK(onehop_transfer_wait(w.transfer, ONEHOP_FOREVER, NULL, &error));
	CHECK_BYTES(&w);
	end_gated(&w);
}

/* ------------------------------------------------------------------ residency that is not known */

/* Time that passes only in reads. */
static uint64_t played_ns;
static uint64_t read_ns; /* that a read takes */

static int
played_clock(clockid_t clock, struct timespec *now)
{
	uint64_t ns = __atomic_load_n(&played_ns, __ATOMIC_RELAXED) + 1;
	(void)clock;
	*now = (struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
	return 0;
}

static ssize_t
timed_pread(int fd, void *buf, size_t bytes, off_t offset)
{
	__atomic_add_fetch(&played_ns, read_ns, __ATOMIC_RELAXED);
	return pread(fd, buf, bytes, offset);
}

static uid_t
another_user(void)
{
	return 12345;
}

static int
no_capability(struct __user_cap_header_struct *header, struct __user_cap_data_struct *data)
{
	(void)header;
	(void)data;
	errno = EPERM;
	return -1;
}

static int
no_access(int fd, const char *path, int mode, int flags)
{
	(void)fd;
	(void)path;
	(void)mode;
	(void)flags;
	errno = EACCES;
	return -1;
}

/* A machine with 1 MiB of memory left. */
static int
small_memory_open(const char *path, int flags)
{
	static const char text[] = "MemAvailable: 1024 kB\n";
	if (strcmp(path, "/proc/meminfo") != 0)
		return open(path, flags);
	int fd = memfd_create("meminfo", MFD_CLOEXEC);
	return write(fd, text, sizeof text - 1) < 0 ? -1 : fd;
}

TEST(what_may_be_resident_or_not_goes_past_the_page_cache_once_it_reads_at_a_disks_speed)
{
	if (whole_pages() || getenv("ONEHOP_CACHE"))
		SKIP("the cache option decides, not residency");
	for (int slow = 0; slow <= 1; slow++) {
		struct world w;
		struct onehop_completion c = {.size = sizeof c};
		real = oh_sys;
		make_file("unknown", 8 * MIB);
		oh_sys.open = small_memory_open;
		oh_sys.geteuid = another_user;
		oh_sys.capget = no_capability;
		oh_sys.faccessat = no_access;
		oh_sys.pread = timed_pread;
		oh_sys.clock_gettime = played_clock;
		read_ns = slow ? 1000000 : 1000;
		memset(&w, 0, sizeof w);
		w.buffer_bytes = 8 * MIB;
		w.runtime = make_runtime(2, 256 << 10, 64 << 10, 64 << 10);
		char path[200];
		snprintf(path, sizeof path, "%s/unknown", folder);
		CHECK_OK(onehop_file_open(w.runtime, path, &w.file, &error));
		CHECK_OK(onehop_buffer_alloc(w.runtime, device, 8 * MIB, &w.buffer, &error));
		one_extent(&w, 0, 8 * MIB, 0);
		CHECK(prepare(&w));
		CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
		CHECK_OK(onehop_transfer_wait(w.transfer, ONEHOP_FOREVER, &c, &error));
		CHECK_BYTES(&w);
		end(&w);
		oh_sys = real;
		if (!(c.reasons & ONEHOP_REASON_RESIDENCY_UNKNOWN))
			SKIP("the file system of %s tells residency to everybody", folder);
		CHECK_EQ(c.route_bytes[ONEHOP_ROUTE_DIRECT] > 0, slow);
		CHECK_EQ(c.route_bytes[ONEHOP_ROUTE_DIRECT] + c.route_bytes[ONEHOP_ROUTE_BUFFERED], 8 * MIB);
	}
}

/* ------------------------------------------------------------------ the page cache itself, pinned */

TEST(a_pinned_file_is_copied_from_its_page_cache_without_a_read)
{
	struct world w;
	struct onehop_completion c = {.size = sizeof c};
	struct onehop_runtime_info info = {.size = sizeof info};
	real = oh_sys;
	oh_sys.pread = failing_pread;
	bad_at = -1;
	CHECK(begin(&w, "pinned", 3 * MIB + 77, 3 * MIB));
	onehop_status status = onehop_file_pin(w.file, device, &error);
	if (on_host()) {
		CHECK_EQ(status, ONEHOP_UNSUPPORTED);
		end_gated(&w);
		return;
	}
	CHECK_OK(status);
	CHECK_OK(onehop_file_pin(w.file, device, &error));
	CHECK_OK(onehop_runtime_query(w.runtime, &info));
	CHECK_EQ(info.file_pinned_bytes, 3 * MIB + 77);
	one_extent(&w, 77, 3 * MIB, 0);
	CHECK(prepare(&w));
	__atomic_store_n(&bad_at, bad_reads, __ATOMIC_RELAXED); /* the next read would fail */
	for (int again = 0; again < 3; again++) {
		CHECK_OK(onehop_buffer_fill(w.buffer, 0, w.buffer_bytes, 0xA5, &error));
		CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
		status = onehop_transfer_wait(w.transfer, ONEHOP_FOREVER, &c, &error);
		if (getenv("ONEHOP_CACHE") == NULL && getenv("ONEHOP_ROUTE"))
			break; /* another route is forced: then the reads fail */
		CHECK_OK(status);
		CHECK_EQ(c.route_bytes[ONEHOP_ROUTE_MAPPED], 3 * MIB);
		CHECK_EQ(c.read_bytes, 0);
		CHECK_BYTES(&w);
	}
	onehop_transfer_destroy(w.transfer);
	onehop_plan_destroy(w.plan);
	w.transfer = NULL;
	w.plan = NULL;
	onehop_file_unpin(w.file);
	CHECK_OK(onehop_runtime_query(w.runtime, &info));
	CHECK_EQ(info.file_pinned_bytes, 0);
	end_gated(&w);
}

TEST(on_few_cores_resident_bytes_are_copied_from_pinned_windows_that_are_let_go)
{
	struct world w;
	struct onehop_completion c = {.size = sizeof c};
	struct onehop_runtime_info info = {.size = sizeof info};
	if (on_host() || getenv("ONEHOP_CACHE") || getenv("ONEHOP_ROUTE"))
		SKIP("only for a GPU, and where no option decides the route");
	CHECK(begin(&w, "mapped", 70 * MIB, 70 * MIB));
	w.runtime->machine.cores = 2;
	one_extent(&w, 5, 70 * MIB - 5, 100);
	w.extents[0].row_bytes -= 100;
	CHECK(prepare(&w));
	CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
	CHECK_OK(onehop_transfer_wait(w.transfer, ONEHOP_FOREVER, &c, &error));
	CHECK_BYTES(&w);
	CHECK_EQ(c.route_bytes[ONEHOP_ROUTE_MAPPED], 70 * MIB - 105);
	CHECK(c.reasons & ONEHOP_REASON_FEW_CORES);
	CHECK_OK(onehop_runtime_query(w.runtime, &info));
	CHECK_EQ(info.pinned_bytes, 0);
	CHECK(info.pinned_peak_bytes > 0 && info.pinned_peak_bytes <= 65 * MIB);
	end(&w);
}

/* ------------------------------------------------------------------ many at once, fork, limits */

struct loader {
	pthread_t thread;
	struct world w;
	struct onehop_error error;
	int failed;
};

static void *
load_one(void *argument)
{
	struct loader *l = argument;
	for (int i = 0; i < 5 && !l->failed; i++)
		l->failed = onehop_transfer_start(l->w.transfer, NULL, &l->error) ||
			    onehop_transfer_wait(l->w.transfer, ONEHOP_FOREVER, NULL, &l->error);
	return NULL;
}

TEST(many_threads_load_at_once_from_one_runtime)
{
	enum { THREADS = 16 };
	static struct loader loaders[THREADS];
	struct world first;
	CHECK(begin(&first, "many", MIB, MIB));
	for (int i = 0; i < THREADS; i++) {
		struct loader *l = &loaders[i];
		memset(l, 0, sizeof *l);
		l->w.runtime = first.runtime;
		l->w.file = first.file;
		l->w.buffer_bytes = 300000;
		CHECK_OK(onehop_buffer_alloc(first.runtime, device, 300000, &l->w.buffer, &error));
		one_extent(&l->w, (uint64_t)i * 10007, 300000, 0);
		CHECK(prepare(&l->w));
	}
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_create(&loaders[i].thread, NULL, load_one, &loaders[i]), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(loaders[i].thread, NULL);
	for (int i = 0; i < THREADS; i++) {
		struct loader *l = &loaders[i];
		if (l->failed)
			test_fail(__FILE__, __LINE__, "%s", l->error.message);
		CHECK_BYTES(&l->w);
		onehop_transfer_destroy(l->w.transfer);
		onehop_plan_destroy(l->w.plan);
		onehop_buffer_free(l->w.buffer);
		free(l->w.extents);
	}
	end(&first);
}

TEST(a_second_runtime_in_the_process_is_independent)
{
	struct world a, b;
	CHECK(begin(&a, "one", MIB, MIB));
	CHECK(begin(&b, "two", MIB, MIB));
	one_extent(&a, 0, MIB, 0);
	one_extent(&b, 0, MIB, 0);
	CHECK(prepare(&a) && prepare(&b));
	CHECK_OK(onehop_transfer_start(a.transfer, NULL, &error));
	CHECK_OK(onehop_transfer_start(b.transfer, NULL, &error));
	CHECK_OK(onehop_transfer_wait(b.transfer, ONEHOP_FOREVER, NULL, &error));
	CHECK_OK(onehop_transfer_wait(a.transfer, ONEHOP_FOREVER, NULL, &error));
	CHECK_BYTES(&a);
	CHECK_BYTES(&b);
	end(&b);
	end(&a);
}

TEST(in_a_forked_child_every_call_says_so_and_the_parent_goes_on)
{
	struct world w;
	int status;
	CHECK(begin_gated(&w, "fork", 100000));
	CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
	gate_wait_for_reader();
	pid_t child = fork();
	if (child == 0) {
		uint64_t extent;
		struct onehop_file *file;
		int right = onehop_transfer_wait(w.transfer, 0, NULL, &error) == ONEHOP_FORKED &&
			    onehop_transfer_next(w.transfer, 0, &extent, &error) == ONEHOP_FORKED &&
			    onehop_transfer_start(w.transfer, NULL, &error) == ONEHOP_FORKED &&
			    onehop_file_open(w.runtime, "x", &file, &error) == ONEHOP_FORKED &&
			    onehop_buffer_fill(w.buffer, 0, 1, 0, &error) == ONEHOP_FORKED &&
			    strstr(error.message, "parent");
		onehop_transfer_cancel(w.transfer);
		onehop_transfer_destroy(w.transfer);
		onehop_plan_destroy(w.plan);
		onehop_buffer_free(w.buffer);
		onehop_file_close(w.file);
		onehop_runtime_destroy(w.runtime);
		_exit(right ? 0 : 1);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	gate_set(0, 0);
	CHECK_OK(onehop_transfer_wait(w.transfer, ONEHOP_FOREVER, NULL, &error));
	CHECK_BYTES(&w);
	end_gated(&w);
}

/* What this program does when TEST_EXIT is set: a driver that the parent has started would not
 * start again in a mere fork. */
static void
exit_in_the_middle(void)
{
	struct world w;
	if (!begin_gated(&w, "exit", 100000) || onehop_transfer_start(w.transfer, NULL, &error))
		_exit(1);
	gate_wait_for_reader();
	exit(7);
}

TEST(a_process_that_exits_in_the_middle_of_a_load_does_not_hang)
{
	int status;
	pid_t child = fork();
	if (child == 0) {
		setenv("TEST_EXIT", folder, 1);
		execl("/proc/self/exe", "conformance", (char *)NULL);
		_exit(1);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK(WIFEXITED(status));
	CHECK_EQ(WEXITSTATUS(status), 7);
}

TEST(a_small_load_makes_one_block_and_a_large_one_no_more_than_the_ring)
{
	struct world w;
	struct onehop_runtime_info info = {.size = sizeof info};
	uint64_t pinned = on_host() ? 0 : 1;
	CHECK(begin(&w, "blocks", 2 * MIB, 2 * MIB));
	one_extent(&w, 0, 5000, 0);
	CHECK(prepare(&w));
	CHECK_OK(onehop_runtime_query(w.runtime, &info));
	CHECK_EQ(info.pinned_bytes, pinned * (64 << 10));
	onehop_transfer_destroy(w.transfer);
	onehop_plan_destroy(w.plan);
	w.extents[0].row_bytes = 2 * MIB;
	CHECK(prepare(&w));
	CHECK_OK(onehop_runtime_query(w.runtime, &info));
	CHECK_EQ(info.pinned_bytes, pinned * (256 << 10));
	CHECK_EQ(info.pinned_peak_bytes, pinned * (256 << 10));
	CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
	CHECK_OK(onehop_transfer_wait(w.transfer, ONEHOP_FOREVER, NULL, &error));
	CHECK_BYTES(&w);
	end(&w);
}

TEST(the_pinned_budget_makes_the_ring_smaller_and_then_refuses)
{
	struct onehop_runtime_options options;
	struct world w = {0};
	if (on_host())
		SKIP("nothing is pinned for host memory");
	onehop_runtime_options_init(&options);
	options.threads = 2;
	options.ring_bytes = 1 << 20;
	options.block_bytes = 64 << 10;
	options.slice_bytes = 16 << 10;
	options.pinned_limit_bytes = 130 << 10;
	CHECK_OK(onehop_runtime_create(&options, &w.runtime, &error));
	CHECK_OK(onehop_file_open(w.runtime, make_file("budget", MIB), &w.file, &error));
	CHECK_OK(onehop_buffer_alloc(w.runtime, device, MIB, &w.buffer, &error));
	w.buffer_bytes = MIB;
	one_extent(&w, 0, MIB, 0);
	CHECK(prepare(&w));
	struct onehop_runtime_info info = {.size = sizeof info};
	CHECK_OK(onehop_runtime_query(w.runtime, &info));
	CHECK_EQ(info.pinned_bytes, 128 << 10);
	CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
	CHECK_OK(onehop_transfer_wait(w.transfer, ONEHOP_FOREVER, NULL, &error));
	CHECK_BYTES(&w);
	end(&w);
	options.pinned_limit_bytes = 65536;
	options.block_bytes = 128 << 10;
	memset(&w, 0, sizeof w);
	CHECK_OK(onehop_runtime_create(&options, &w.runtime, &error));
	CHECK_OK(onehop_file_open(w.runtime, make_file("budget", MIB), &w.file, &error));
	CHECK_OK(onehop_buffer_alloc(w.runtime, device, MIB, &w.buffer, &error));
	one_extent(&w, 0, MIB, 0);
	CHECK_OK(onehop_plan_create(w.runtime, w.extents, 1, &w.plan, &error));
	CHECK_EQ(onehop_transfer_prepare(w.plan, &w.transfer, &error), ONEHOP_LIMIT);
	CHECK_HOLDS(error.message, "pinned_limit_bytes");
	end(&w);
}

TEST(transfers_that_are_prepared_side_by_side_have_a_block_each)
{
	struct world w;
	struct onehop_transfer *second;
	struct onehop_runtime_info info = {.size = sizeof info};
	if (on_host())
		SKIP("nothing is pinned for host memory");
	CHECK(begin(&w, "side", MIB, MIB));
	one_extent(&w, 0, 4096, 0);
	CHECK(prepare(&w));
	CHECK_OK(onehop_transfer_prepare(w.plan, &second, &error));
	CHECK_OK(onehop_runtime_query(w.runtime, &info));
	CHECK_EQ(info.pinned_bytes, 2 * (64 << 10));
	onehop_transfer_destroy(second);
	CHECK_OK(onehop_transfer_prepare(w.plan, &second, &error));
	CHECK_OK(onehop_runtime_query(w.runtime, &info));
	CHECK_EQ(info.pinned_bytes, 2 * (64 << 10));
	onehop_transfer_destroy(second);
	end(&w);
}

TEST(buffers_stay_within_their_budget_and_give_it_back)
{
	struct onehop_runtime_options options;
	struct onehop_runtime *runtime;
	struct onehop_buffer *first, *second;
	onehop_runtime_options_init(&options);
	options.buffer_limit_bytes = 3 * MIB;
	CHECK_OK(onehop_runtime_create(&options, &runtime, &error));
	CHECK_OK(onehop_buffer_alloc(runtime, device, 2 * MIB, &first, &error));
	CHECK_EQ(onehop_buffer_alloc(runtime, device, MIB + 1, &second, &error), ONEHOP_LIMIT);
	CHECK_HOLDS(error.message, "buffer_limit_bytes (3145728, of which 2097152 are used)");
	CHECK_EQ(onehop_buffer_alloc(runtime, device, UINT64_MAX, &second, &error), ONEHOP_LIMIT);
	CHECK_OK(onehop_buffer_alloc(runtime, device, MIB, &second, &error));
	onehop_buffer_free(first);
	CHECK_OK(onehop_buffer_alloc(runtime, device, 2 * MIB, &first, &error));
	onehop_buffer_free(first);
	onehop_buffer_free(second);
	onehop_runtime_destroy(runtime);
}

TEST(one_thread_and_one_block_are_enough)
{
	struct world w = {.buffer_bytes = 300000};
	w.runtime = make_runtime(1, 65536, 65536, 4096);
	CHECK_OK(onehop_file_open(w.runtime, make_file("one", 300000), &w.file, &error));
	CHECK_OK(onehop_buffer_alloc(w.runtime, device, 300000, &w.buffer, &error));
	one_extent(&w, 0, 300000, 0);
	CHECK(prepare(&w));
	CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
	CHECK_OK(onehop_transfer_wait(w.transfer, ONEHOP_FOREVER, NULL, &error));
	CHECK_BYTES(&w);
	end(&w);
}

TEST(the_callers_memory_is_used_where_it_lies)
{
	struct world w;
	struct onehop_buffer *own;
	struct onehop_buffer_info info = {.size = sizeof info};
	CHECK(begin(&w, "own", MIB, MIB));
	own = w.buffer;
	CHECK_OK(onehop_buffer_query(own, &info));
	CHECK_EQ(info.owned, 1);
	CHECK_STR(info.device, device);
	CHECK_OK(onehop_buffer_wrap(w.runtime, device, info.address + 1000, 500000, &w.buffer, &error));
	w.buffer_bytes = 500000;
	one_extent(&w, 3, 499990, 5);
	CHECK(prepare(&w));
	CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
	CHECK_OK(onehop_transfer_wait(w.transfer, ONEHOP_FOREVER, NULL, &error));
	CHECK_BYTES(&w);
	end(&(struct world){.transfer = w.transfer, .plan = w.plan, .buffer = w.buffer});
	onehop_buffer_free(own);
	onehop_file_close(w.file);
	onehop_runtime_destroy(w.runtime);
	free(w.extents);
}

TEST(ranges_outside_a_buffer_and_memory_that_is_none_are_refused)
{
	struct world w;
	uint8_t byte;
	struct onehop_buffer *none;
	CHECK(begin(&w, "outside", 100, 100));
	CHECK_EQ(onehop_buffer_read(w.buffer, 100, &byte, 1, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(onehop_buffer_read(w.buffer, UINT64_MAX, &byte, 2, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(onehop_buffer_fill(w.buffer, 0, 101, 0, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(onehop_buffer_fill(w.buffer, 0, 1, 256, &error), ONEHOP_OUT_OF_RANGE);
	CHECK_EQ(onehop_buffer_wrap(w.runtime, device, 0, 100, &none, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(onehop_buffer_wrap(w.runtime, "gpu", 4096, 100, &none, &error),
		 ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.remedy, "cuda:N");
	CHECK_EQ(onehop_buffer_alloc(w.runtime, device, UINT64_C(1) << 60, &none, &error),
		 on_host() ? ONEHOP_NO_MEMORY : ONEHOP_NO_DEVICE_MEMORY);
	CHECK_HOLDS(error.message, "1152921504606846976");
	end(&w);
}

TEST(a_transfer_that_was_never_started_cannot_be_waited_for)
{
	struct world w;
	uint64_t extent;
	CHECK(begin(&w, "idle", 100, 100));
	one_extent(&w, 0, 100, 0);
	CHECK(prepare(&w));
	CHECK_EQ(onehop_transfer_wait(w.transfer, 0, NULL, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(onehop_transfer_next(w.transfer, 0, &extent, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(onehop_transfer_join(w.transfer, 0, &error), ONEHOP_INVALID_ARGUMENT);
	onehop_transfer_cancel(w.transfer);
	end(&w);
}

TEST(a_plan_of_nothing_ends_at_once)
{
	struct world w;
	uint64_t extent;
	CHECK(begin(&w, "nothing", 100, 100));
	CHECK(prepare(&w));
	CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
	CHECK_EQ(onehop_transfer_next(w.transfer, ONEHOP_FOREVER, &extent, &error), ONEHOP_END);
	CHECK_OK(onehop_transfer_wait(w.transfer, ONEHOP_FOREVER, NULL, &error));
	end(&w);
}

TEST(join_and_after_stream_order_a_load_with_the_callers_stream)
{
	struct world w;
	struct onehop_start_options after;
	onehop_start_options_init(&after);
	after.flags = ONEHOP_START_AFTER_STREAM;
	CHECK(begin(&w, "streams", MIB, MIB));
	one_extent(&w, 0, MIB, 0);
	CHECK(prepare(&w));
	onehop_status status = onehop_transfer_start(w.transfer, &after, &error);
	if (on_host()) {
		CHECK_EQ(status, ONEHOP_INVALID_ARGUMENT);
		CHECK_OK(onehop_transfer_start(w.transfer, NULL, &error));
	} else {
		CHECK_OK(status);
	}
	CHECK_OK(onehop_transfer_join(w.transfer, 0, &error));
	CHECK_OK(onehop_transfer_wait(w.transfer, ONEHOP_FOREVER, NULL, &error));
	CHECK_BYTES(&w);
	end(&w);
}

int
main(int argc, char **argv)
{
	device = getenv("TEST_DEVICE");
	if (!device)
		device = "host";
	if (getenv("TEST_EXIT")) {
		snprintf(folder, sizeof folder, "%s", getenv("TEST_EXIT"));
		exit_in_the_middle();
	}
	if (!mkdtemp(folder))
		return 1;
	int result = test_main(argc, argv);
	char command[300];
	snprintf(command, sizeof command, "rm -rf %s", folder);
	return system(command) ? 1 : result;
}
