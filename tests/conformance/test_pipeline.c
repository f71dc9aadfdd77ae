/* onehop/pipeline.h over the device that TEST_DEVICE names: what lands where and in which order,
 * and what is refused, cut short, cancelled and counted. Where reads have to be held or to fail,
 * base/sys.h is replaced before a runtime is made and put back after it is gone.
 */
#include "base/arith.h"
#include "base/sys.h"
#include "harness.h"
#include "random.h"

#include <onehop/pipeline.h>

#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE UINT64_C(4096)
#define FILE_BYTES (64 * PAGE + 904)
#define BUFFER_BYTES (32 * PAGE)
#define UNTOUCHED 0xA5

static const char *device;
static char path[] = "/tmp/onehop-pipeline-XXXXXX";
static struct onehop_error error;
static struct oh_sys real;

static uint8_t
byte_at(uint64_t offset)
{
	uint64_t word = (offset / 8 + 1) * UINT64_C(0x9E3779B97F4A7C15);
	return (uint8_t)(word >> (8 * (offset % 8)));
}

static int
make_file(void)
{
	FILE *f = fopen(path, "w");
	for (uint64_t at = 0; f && at < FILE_BYTES; at++)
		fputc(byte_at(at), f);
	return !f || fclose(f);
}

struct world {
	struct onehop_runtime *runtime;
	struct onehop_file *file;
	struct onehop_buffer *buffer;
	struct onehop_pipeline *pipeline;
	uint8_t expected[BUFFER_BYTES]; /* what the buffer has to hold */
};

static int
begin(struct world *w, uint32_t places, uint64_t alignment)
{
	struct onehop_pipeline_options options;
	memset(w, 0, sizeof *w);
	memset(w->expected, UNTOUCHED, sizeof w->expected);
	onehop_pipeline_options_init(&options);
	options.places = places;
	options.alignment = alignment;
	if (make_file() || onehop_runtime_create(NULL, &w->runtime, &error) ||
	    onehop_file_open(w->runtime, path, &w->file, &error) ||
	    onehop_buffer_alloc(w->runtime, device, BUFFER_BYTES, &w->buffer, &error) ||
	    onehop_buffer_fill(w->buffer, 0, BUFFER_BYTES, UNTOUCHED, &error) ||
	    onehop_pipeline_create(w->runtime, w->file, w->buffer, &options, &w->pipeline,
				   &error)) {
		test_fail(__FILE__, __LINE__, "%s", error.message);
		return 0;
	}
	return 1;
}

static void
end(struct world *w)
{
	onehop_pipeline_destroy(w->pipeline);
	onehop_buffer_free(w->buffer);
	onehop_file_close(w->file);
	onehop_runtime_destroy(w->runtime);
}

static onehop_status
submit(struct world *w, uint64_t tag, uint64_t from, uint64_t to, uint64_t bytes)
{
	struct onehop_read read = {tag, from, to, bytes};
	return onehop_pipeline_submit(w->pipeline, &read, NULL, &error);
}

static onehop_status
next(struct world *w, uint64_t timeout_ns, struct onehop_read_done *done)
{
	*done = (struct onehop_read_done){.size = sizeof *done};
	return onehop_pipeline_next(w->pipeline, timeout_ns, done, &error);
}

/* What a read of the whole file's bytes leaves in the buffer; returns how many land. */
static uint64_t
expect(struct world *w, uint64_t from, uint64_t to, uint64_t bytes)
{
	uint64_t landed = 0;
	for (; landed < bytes && from + landed < FILE_BYTES; landed++)
		w->expected[to + landed] = byte_at(from + landed);
	return landed;
}

static int
buffer_is_as_expected(struct world *w)
{
	static uint8_t got[BUFFER_BYTES];
	return !onehop_buffer_read(w->buffer, 0, got, BUFFER_BYTES, &error) &&
	       !memcmp(got, w->expected, BUFFER_BYTES);
}

TEST(reads_land_byte_for_byte_and_are_given_oldest_first)
{
	struct world w;
	struct onehop_read_done done;
	CHECK(begin(&w, 3, PAGE));
	CHECK_OK(submit(&w, 70, 8 * PAGE, 0, 4 * PAGE));
	CHECK_OK(submit(&w, 71, 0, 10 * PAGE, PAGE));
	CHECK_OK(submit(&w, 70, PAGE, 4 * PAGE, 6 * PAGE));
	expect(&w, 8 * PAGE, 0, 4 * PAGE);
	expect(&w, 0, 10 * PAGE, PAGE);
	expect(&w, PAGE, 4 * PAGE, 6 * PAGE);
	static const uint64_t tags[] = {70, 71, 70}, bytes[] = {4 * PAGE, PAGE, 6 * PAGE};
	for (int i = 0; i < 3; i++) {
		CHECK_OK(next(&w, ONEHOP_FOREVER, &done));
		CHECK_EQ(done.status, ONEHOP_OK);
		CHECK_EQ(done.tag, tags[i]);
		CHECK_EQ(done.bytes, bytes[i]);
	}
	CHECK_EQ(next(&w, ONEHOP_FOREVER, &done), ONEHOP_END);
	CHECK(buffer_is_as_expected(&w));
	end(&w);
}

/* One read at random that fits beside those in flight; 0 if it was refused, as it had to be. */
static int
submit_random(struct world *w, struct random *r, uint64_t alignment,
	      const struct onehop_read *flying, uint32_t count, struct onehop_read *read)
{
	uint64_t units = BUFFER_BYTES / alignment, to = random_below(r, units);
	*read = (struct onehop_read){
		.tag = random_next(r),
		.file_offset = random_below(r, FILE_BYTES / alignment + 4) * alignment,
		.buffer_offset = to * alignment,
		.bytes = random_below(r, oh_min(units - to, 40) + 1) * alignment,
	};
	int free = 1;
	for (uint32_t i = 0; i < count; i++)
		free &= !read->bytes || !flying[i].bytes ||
			read->buffer_offset >= flying[i].buffer_offset + flying[i].bytes ||
			flying[i].buffer_offset >= read->buffer_offset + read->bytes;
	onehop_status status = onehop_pipeline_submit(w->pipeline, read, NULL, &error);
	if (status != (free ? ONEHOP_OK : ONEHOP_INVALID_ARGUMENT))
		test_fail(__FILE__, __LINE__, "status %d, free %d: %s", status, free,
			  error.message);
	return status == ONEHOP_OK;
}

/* Takes the oldest of those in flight away. */
static void
forget_oldest(struct onehop_read *flying, uint32_t *count)
{
	memmove(flying, flying + 1, --*count * sizeof *flying);
}

/* What was cancelled may have landed in part: zeros there, and in what is expected. */
static onehop_status
wipe(struct world *w, const struct onehop_read *read)
{
	memset(w->expected + read->buffer_offset, 0, read->bytes);
	return onehop_buffer_fill(w->buffer, read->buffer_offset, read->bytes, 0, &error);
}

TEST(random_reads_leave_in_the_buffer_what_a_plain_copy_would)
{
	uint64_t seed = random_seed(11);
	static const uint64_t alignments[] = {1, 512, PAGE};
	for (uint64_t round = 0; round < 9; round++) {
		struct random r = random_init(seed + round);
		struct onehop_read flying[5];
		struct onehop_read_done done;
		struct world w;
		uint32_t places = 1 + (uint32_t)random_below(&r, 5), count = 0;
		uint64_t alignment = alignments[round % 3];
		printf("# seed %llu\n", (unsigned long long)(seed + round));
		CHECK(begin(&w, places, alignment));
		for (int i = 0; i < 60 && !test_failed; i++) {
			if (count < places &&
			    submit_random(&w, &r, alignment, flying, count, &flying[count]))
				count++;
			if (!count || (count < places && random_below(&r, 2)))
				continue;
			CHECK_OK(next(&w, ONEHOP_FOREVER, &done));
			CHECK(done.tag == flying[0].tag);
			CHECK_EQ(done.bytes, expect(&w, flying[0].file_offset,
						    flying[0].buffer_offset, flying[0].bytes));
			forget_oldest(flying, &count);
		}
		onehop_pipeline_cancel(w.pipeline);
		while (count) {
			onehop_status status = next(&w, ONEHOP_FOREVER, &done);
			CHECK(!status || status == ONEHOP_CANCELLED);
			CHECK(done.tag == flying[0].tag);
			CHECK_OK(wipe(&w, &flying[0]));
			forget_oldest(flying, &count);
		}
		CHECK(buffer_is_as_expected(&w));
		end(&w);
	}
}

TEST(a_read_across_the_end_of_the_file_comes_short_and_is_counted)
{
	struct world w;
	struct onehop_read_done done;
	struct onehop_pipeline_info info = {.size = sizeof info};
	CHECK(begin(&w, 4, PAGE));
	CHECK_OK(submit(&w, 1, 63 * PAGE, 0, 4 * PAGE));
	CHECK_OK(submit(&w, 2, 65 * PAGE, 4 * PAGE, PAGE));
	CHECK_OK(submit(&w, 3, UINT64_MAX - PAGE + 1, 5 * PAGE, 2 * PAGE));
	CHECK_OK(submit(&w, 4, 0, 8 * PAGE, 0));
	expect(&w, 63 * PAGE, 0, 4 * PAGE);
	static const uint64_t bytes[] = {PAGE + 904, 0, 0, 0};
	for (int i = 0; i < 4; i++) {
		CHECK_OK(next(&w, ONEHOP_FOREVER, &done));
		CHECK_EQ(done.tag, i + 1);
		CHECK_EQ(done.bytes, bytes[i]);
	}
	CHECK(buffer_is_as_expected(&w));
	CHECK_OK(onehop_pipeline_query(w.pipeline, &info));
	CHECK_EQ(info.reads, 4);
	CHECK_EQ(info.bytes, PAGE + 904);
	CHECK_EQ(info.short_bytes, 6 * PAGE - 904);
	CHECK_EQ(info.failed_reads, 0);
	CHECK_EQ(info.in_flight, 0);
	end(&w);
}

TEST(what_breaks_a_rule_is_refused_and_takes_no_place)
{
	struct world w;
	struct onehop_read_done done;
	CHECK(begin(&w, 1, PAGE));
	CHECK_EQ(submit(&w, 1, 1, 0, PAGE), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "file offset 1 is not a multiple of the alignment, 4096");
	CHECK_EQ(submit(&w, 1, 0, 512, PAGE), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "buffer offset 512");
	CHECK_EQ(submit(&w, 1, 0, 0, 5000), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "size 5000");
	CHECK_EQ(submit(&w, 1, 0, BUFFER_BYTES, PAGE), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "leaves the buffer, which has 131072");
	CHECK_EQ(submit(&w, 1, 0, UINT64_MAX - PAGE + 1, 2 * PAGE), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "leaves the buffer");
	CHECK_EQ(onehop_pipeline_submit(w.pipeline, NULL, NULL, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(next(&w, 0, &done), ONEHOP_END);
	CHECK_OK(submit(&w, 1, 0, BUFFER_BYTES - PAGE, PAGE));
	CHECK_OK(next(&w, ONEHOP_FOREVER, &done));
	done.size = 8;
	CHECK_EQ(onehop_pipeline_next(w.pipeline, 0, &done, &error), ONEHOP_INVALID_ARGUMENT);
	end(&w);
}

TEST(options_outside_their_range_are_refused)
{
	struct world w;
	struct onehop_pipeline *made = NULL;
	struct onehop_pipeline_options options;
	CHECK(begin(&w, 1, 1));
	static const uint32_t places[] = {0, ONEHOP_PIPELINE_PLACES_MOST + 1, UINT32_MAX};
	for (int i = 0; i < 3; i++) {
		onehop_pipeline_options_init(&options);
		options.places = places[i];
		CHECK_EQ(onehop_pipeline_create(w.runtime, w.file, w.buffer, &options, &made,
						&error),
			 ONEHOP_INVALID_ARGUMENT);
		CHECK_HOLDS(error.message, "it has 1 to 1024");
	}
	onehop_pipeline_options_init(&options);
	options.alignment = 0;
	CHECK_EQ(onehop_pipeline_create(w.runtime, w.file, w.buffer, &options, &made, &error),
		 ONEHOP_INVALID_ARGUMENT);
	options.size = 4;
	CHECK_EQ(onehop_pipeline_create(w.runtime, w.file, w.buffer, &options, &made, &error),
		 ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "onehop_pipeline_options_init()");
	CHECK_EQ(onehop_pipeline_create(w.runtime, w.file, NULL, NULL, &made, &error),
		 ONEHOP_INVALID_ARGUMENT);
	CHECK(!made);
	CHECK_OK(onehop_pipeline_create(w.runtime, w.file, w.buffer, NULL, &made, &error));
	onehop_pipeline_destroy(made);
	onehop_pipeline_destroy(NULL);
	end(&w);
}

/* What statx tells of direct I/O: nothing, or an alignment. */
static int told;
static uint32_t told_alignment;

static int
telling_statx(int fd, const char *name, int flags, unsigned mask, struct oh_statx *st)
{
	if (told < 0) {
		errno = ENOSYS;
		return -1;
	}
	memset(st, 0, sizeof *st);
	st->mask = told ? OH_STATX_DIOALIGN : 0;
	st->dio_memory_alignment = st->dio_offset_alignment = told_alignment;
	return 0;
}

TEST(the_alignment_of_direct_io_is_what_the_kernel_tells_else_a_page)
{
	static const struct {
		int told;
		uint32_t tells;
		uint64_t alignment;
	} rows[] = {{-1, 0, PAGE},   {0, 512, PAGE},	    {1, 512, 512},  {1, 65536, 65536},
		    {1, 1000, PAGE}, {1, 1u << 31, PAGE}, {1, 0, 1}};
	struct world w;
	uint64_t alignment = 0;
	real = oh_sys;
	oh_sys.statx = telling_statx;
	CHECK(begin(&w, 1, 1));
	for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
		told = rows[i].told;
		told_alignment = rows[i].tells;
		CHECK_OK(onehop_pipeline_alignment(w.file, &alignment, &error));
		CHECK_EQ(alignment, rows[i].alignment);
	}
	CHECK_EQ(onehop_pipeline_alignment(NULL, &alignment, &error), ONEHOP_INVALID_ARGUMENT);
	end(&w);
	oh_sys = real;
}

/* ------------------------------------------------------------------ reads that are held back */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t open;    /* for the reads */
	pthread_cond_t arrived; /* for the test */
	int held;
	int waiting;
} gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};

static ssize_t
gated_pread(int fd, void *buf, size_t bytes, off_t offset)
{
	pthread_mutex_lock(&gate.lock);
	while (gate.held) {
		gate.waiting++;
		pthread_cond_signal(&gate.arrived);
		pthread_cond_wait(&gate.open, &gate.lock);
		gate.waiting--;
	}
	pthread_mutex_unlock(&gate.lock);
	return pread(fd, buf, bytes, offset);
}

static void
gate_set(int held)
{
	pthread_mutex_lock(&gate.lock);
	gate.held = held;
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

static int
begin_gated(struct world *w, uint32_t places)
{
	real = oh_sys;
	oh_sys.pread = gated_pread;
	gate_set(0);
	if (!begin(w, places, PAGE))
		return 0;
	gate_set(1);
	return 1;
}

static void
end_gated(struct world *w)
{
	end(w);
	oh_sys = real;
}

TEST(reads_in_flight_hold_their_places_and_their_ranges)
{
	struct world w;
	struct onehop_read_done done;
	struct onehop_pipeline_info info = {.size = sizeof info};
	CHECK(begin_gated(&w, 2));
	CHECK_OK(submit(&w, 1, 0, 0, 2 * PAGE));
	CHECK_EQ(submit(&w, 2, 0, PAGE, PAGE), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "overlaps one in flight, of 8192 bytes to 0");
	CHECK_OK(submit(&w, 2, 0, PAGE, 0));
	CHECK_EQ(submit(&w, 3, 0, 2 * PAGE, PAGE), ONEHOP_BUSY);
	CHECK_HOLDS(error.message, "all 2 places");
	CHECK_EQ(next(&w, 0, &done), ONEHOP_TIMED_OUT);
	CHECK_OK(onehop_pipeline_query(w.pipeline, &info));
	CHECK_EQ(info.in_flight, 2);
	CHECK_EQ(info.reads, 0);
	gate_set(0);
	CHECK_OK(next(&w, ONEHOP_FOREVER, &done));
	CHECK_EQ(done.bytes, 2 * PAGE);
	CHECK_OK(submit(&w, 3, 4 * PAGE, PAGE, PAGE));
	CHECK_OK(next(&w, ONEHOP_FOREVER, &done));
	CHECK_OK(next(&w, ONEHOP_FOREVER, &done));
	CHECK_EQ(done.tag, 3);
	expect(&w, 0, 0, 2 * PAGE);
	expect(&w, 4 * PAGE, PAGE, PAGE);
	CHECK(buffer_is_as_expected(&w));
	end_gated(&w);
}

static void *
cancel_once_it_reads(void *pipeline)
{
	gate_wait_for_reader();
	onehop_pipeline_cancel(pipeline);
	gate_set(0);
	return NULL;
}

TEST(a_cancel_from_another_thread_ends_what_is_in_flight_and_nothing_later)
{
	struct world w;
	struct onehop_read_done done;
	struct onehop_pipeline_info info = {.size = sizeof info};
	pthread_t thread;
	CHECK(begin_gated(&w, 3));
	CHECK_OK(submit(&w, 1, 0, 0, 8 * PAGE));
	CHECK_OK(submit(&w, 2, 0, 8 * PAGE, 8 * PAGE));
	CHECK_EQ(pthread_create(&thread, NULL, cancel_once_it_reads, w.pipeline), 0);
	CHECK_EQ(next(&w, ONEHOP_FOREVER, &done), ONEHOP_CANCELLED);
	CHECK_EQ(done.tag, 1);
	CHECK_EQ(done.status, ONEHOP_CANCELLED);
	CHECK_EQ(next(&w, ONEHOP_FOREVER, &done), ONEHOP_CANCELLED);
	CHECK_EQ(done.tag, 2);
	pthread_join(thread, NULL);
	CHECK_OK(onehop_buffer_fill(w.buffer, 0, BUFFER_BYTES, UNTOUCHED, &error));
	CHECK_OK(submit(&w, 3, 4 * PAGE, 8 * PAGE, PAGE));
	CHECK_OK(next(&w, ONEHOP_FOREVER, &done));
	expect(&w, 4 * PAGE, 8 * PAGE, PAGE);
	CHECK(buffer_is_as_expected(&w));
	CHECK_OK(onehop_pipeline_query(w.pipeline, &info));
	CHECK_EQ(info.reads, 3);
	CHECK_EQ(info.failed_reads, 2);
	end_gated(&w);
}

static void *
open_the_gate(void *nothing)
{
	gate_set(0);
	return nothing;
}

TEST(destroy_waits_for_what_is_in_flight)
{
	struct world w;
	pthread_t thread;
	CHECK(begin_gated(&w, 2));
	CHECK_OK(submit(&w, 1, 0, 0, 8 * PAGE));
	CHECK_OK(submit(&w, 2, 0, 8 * PAGE, 8 * PAGE));
	gate_wait_for_reader();
	CHECK_EQ(pthread_create(&thread, NULL, open_the_gate, NULL), 0);
	end_gated(&w);
	pthread_join(thread, NULL);
	CHECK_EQ(gate.waiting, 0);
}

TEST(time_in_which_reads_overlap_counts_once)
{
	struct world w;
	struct onehop_read_done done;
	struct onehop_pipeline_info info = {.size = sizeof info};
	CHECK(begin_gated(&w, 8));
	uint64_t begin_ns = oh_now_ns();
	for (uint64_t i = 0; i < 8; i++)
		CHECK_OK(submit(&w, i, i * PAGE, i * PAGE, PAGE));
	uint64_t submitted_ns = oh_now_ns();
	gate_wait_for_reader();
	while (oh_now_ns() - submitted_ns <= 2 * (submitted_ns - begin_ns))
		; /* so that eight times the time in flight is more than all there was */
	gate_set(0);
	for (uint64_t i = 0; i < 8; i++)
		CHECK_OK(next(&w, ONEHOP_FOREVER, &done));
	uint64_t wall_ns = oh_now_ns() - begin_ns;
	CHECK_OK(onehop_pipeline_query(w.pipeline, &info));
	CHECK(info.busy_ns && info.busy_ns <= wall_ns);
	uint64_t before = info.busy_ns;
	CHECK_OK(submit(&w, 9, 0, 0, PAGE));
	CHECK_OK(next(&w, ONEHOP_FOREVER, &done));
	CHECK_OK(onehop_pipeline_query(w.pipeline, &info));
	CHECK(info.busy_ns > before && info.busy_ns <= oh_now_ns() - begin_ns);
	end_gated(&w);
}

/* ------------------------------------------------------------------ faults */

TEST(a_file_that_shrank_fails_each_read_which_is_named)
{
	struct world w;
	struct onehop_read_done done;
	struct onehop_pipeline_info info = {.size = sizeof info};
	CHECK(begin(&w, 2, PAGE));
	CHECK_EQ(truncate(path, (off_t)(2 * PAGE)), 0);
	CHECK_OK(submit(&w, 5, 0, 0, 4 * PAGE));
	CHECK_OK(submit(&w, 6, 0, 4 * PAGE, PAGE));
	CHECK_EQ(next(&w, ONEHOP_FOREVER, &done), ONEHOP_FILE_CHANGED);
	CHECK_EQ(done.tag, 5);
	CHECK_HOLDS(error.message, path);
	CHECK_EQ(next(&w, ONEHOP_FOREVER, &done), ONEHOP_FILE_CHANGED);
	CHECK_EQ(done.tag, 6);
	CHECK_EQ(next(&w, 0, &done), ONEHOP_END);
	CHECK_OK(onehop_pipeline_query(w.pipeline, &info));
	CHECK_EQ(info.failed_reads, 2);
	CHECK_EQ(info.short_bytes, 0);
	end(&w);
}

static ssize_t
failing_pread(int fd, void *buf, size_t bytes, off_t offset)
{
	if (offset == (off_t)(16 * PAGE)) {
		errno = EIO;
		return -1;
	}
	return pread(fd, buf, bytes, offset);
}

TEST(a_read_that_fails_leaves_those_beside_it_alone)
{
	struct world w;
	struct onehop_read_done done;
	real = oh_sys;
	oh_sys.pread = failing_pread;
	CHECK(begin(&w, 3, PAGE));
	CHECK_OK(submit(&w, 1, 0, 0, PAGE));
	CHECK_OK(submit(&w, 2, 16 * PAGE, PAGE, PAGE));
	CHECK_OK(submit(&w, 3, PAGE, 2 * PAGE, PAGE));
	CHECK_OK(next(&w, ONEHOP_FOREVER, &done));
	CHECK_EQ(next(&w, ONEHOP_FOREVER, &done), ONEHOP_IO);
	CHECK_EQ(done.tag, 2);
	CHECK_HOLDS(error.message, "offset 65536");
	CHECK_OK(next(&w, ONEHOP_FOREVER, &done));
	expect(&w, 0, 0, PAGE);
	expect(&w, PAGE, 2 * PAGE, PAGE);
	CHECK(buffer_is_as_expected(&w));
	end(&w);
	oh_sys = real;
}

TEST(in_a_forked_child_every_call_says_so)
{
	struct world w;
	struct onehop_read_done done;
	int status = -1;
	CHECK(begin(&w, 2, PAGE));
	CHECK_OK(submit(&w, 1, 0, 0, PAGE));
	pid_t child = fork();
	if (!child) {
		int wrong = submit(&w, 2, 0, PAGE, PAGE) != ONEHOP_FORKED;
		wrong |= next(&w, 0, &done) != ONEHOP_FORKED;
		onehop_pipeline_cancel(w.pipeline);
		onehop_pipeline_destroy(w.pipeline);
		_exit(wrong);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	CHECK_OK(next(&w, ONEHOP_FOREVER, &done));
	end(&w);
}

int
main(int argc, char **argv)
{
	device = getenv("TEST_DEVICE");
	if (!device)
		device = "host";
	int fd = mkstemp(path);
	if (fd < 0 || close(fd))
		return 1;
	int result = test_main(argc, argv);
	unlink(path);
	return result;
}
