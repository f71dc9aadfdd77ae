/* Transfers and the caller's streams, through the public API against the look-alike driver: what
 * ONEHOP_START_AFTER_STREAM holds back and what it does not, and what a stream sees after a join.
 *
 * A stream is held by a function of the program's in it that waits for a gate; the delays of copies
 * are long (FAKE_CUDA_DELAY_US in meson.build), so that a wait that is missing shows. No call may
 * change the caller's current context, and nothing may be held at the end of a test.
 */
#include "world.h"

#include <time.h>

static void
hold(struct gate *gate, struct CUstream_st *stream)
{
	*gate = (struct gate)GATE;
	CHECK_EQ(extra.host_func(stream, gate_pass, gate), 0);
}

/* Nothing of it has been moved, nor will be while its stream is held. */
static void
check_waits(struct job *job)
{
	struct onehop_progress progress = {.size = sizeof progress};
	uint64_t extent;
	fake.quiet();
	CHECK_CALL(onehop_transfer_wait(job->transfer, 0, NULL, &error), ONEHOP_TIMED_OUT);
	CHECK_CALL(onehop_transfer_next(job->transfer, 0, &extent, &error), ONEHOP_TIMED_OUT);
	CHECK_CALL(onehop_transfer_progress(job->transfer, &progress), ONEHOP_OK);
	CHECK_EQ(progress.running, 1);
	CHECK_EQ(progress.bytes_landed, 0);
	CHECK_EQ(progress.bytes_total, job->bytes);
	CHECK(all_are(job->memory, job->bytes, UNTOUCHED));
}

/* A load runs to its end, however often. */
static void
check_runs(struct job *job, int times)
{
	for (int i = 0; i < times; i++) {
		CHECK_CALL(onehop_buffer_fill(job->buffer, 0, job->bytes, i, &error), ONEHOP_OK);
		CHECK_CALL(job_start(job), ONEHOP_OK);
		CHECK_CALL(job_end(job), ONEHOP_OK);
		CHECK(job_is_right(job));
	}
}

/* A load behind a stream that is held, and two others meanwhile. */
static void
waits_for(struct world *w, struct CUstream_st *stream)
{
	static struct gate gate;
	struct job held, other;
	struct onehop_completion completion = {.size = sizeof completion};
	CHECK_CALL(job_make(w, &held, "cuda:0", 0, JOB_BYTES), ONEHOP_OK);
	CHECK_CALL(job_make(w, &other, "cuda:0", JOB_BYTES, JOB_BYTES), ONEHOP_OK);
	hold(&gate, stream);
	CHECK_CALL(job_start_after(&held, stream), ONEHOP_OK);
	check_runs(&other, 2);
	check_waits(&held);
	gate_open(&gate);
	CHECK_CALL(onehop_transfer_wait(held.transfer, SOON, &completion, &error), ONEHOP_OK);
	CHECK_EQ(completion.bytes, JOB_BYTES);
	CHECK(job_is_right(&held));
	CHECK_EQ(cu->stream_sync(stream), 0);
	job_drop(&other);
	job_drop(&held);
}

/* Runs a case with each kind of stream that a caller may have: not blocking, blocking, the legacy
 * stream, the thread's own by its handle, and one of another context on the device. */
static void
with_each_stream(void (*run)(struct world *, struct CUstream_st *))
{
	struct CUctx_st *foreign, *popped;
	struct world w;
	CHECK(world_make(&w, 3));
	struct CUstream_st *blocking = stream_make(0);
	CHECK_EQ(extra.ctx_create(&foreign, 0, 0), 0);
	struct CUstream_st *theirs = stream_make(0);
	CHECK_EQ(cu->ctx_pop(&popped), 0);
	struct CUstream_st *const streams[] = {w.stream, blocking, NULL, (struct CUstream_st *)2,
					       theirs};
	for (size_t i = 0; i < sizeof streams / sizeof streams[0] && !test_failed; i++)
		run(&w, streams[i]);
	if (test_failed)
		return;
	CHECK_EQ(cu->stream_destroy(blocking), 0);
	CHECK_EQ(extra.ctx_destroy(foreign), 0);
	world_drop(&w);
}

TEST(a_transfer_moves_nothing_while_its_stream_is_held_and_others_run)
{
	with_each_stream(waits_for);
}

TEST(a_transfer_without_the_flag_does_not_wait_for_any_stream)
{
	static struct gate own, legacy;
	struct world w;
	struct job job;
	CHECK(world_make(&w, 3));
	CHECK_CALL(job_make(&w, &job, "cuda:0", 0, JOB_BYTES), ONEHOP_OK);
	hold(&own, w.stream);
	hold(&legacy, NULL);
	check_runs(&job, 2);
	gate_open(&own);
	gate_open(&legacy);
	CHECK_EQ(cu->stream_sync(w.stream), 0);
	CHECK_EQ(cu->stream_sync(NULL), 0);
	job_drop(&job);
	world_drop(&w);
}

TEST(a_transfer_that_is_cancelled_while_it_waits_ends_though_the_stream_is_held)
{
	for (int waits = 0; waits < 2; waits++) {
		static struct gate gate;
		struct world w;
		struct job job;
		CHECK(world_make(&w, 3));
		CHECK_CALL(job_make(&w, &job, "cuda:0", 0, JOB_BYTES), ONEHOP_OK);
		hold(&gate, w.stream);
		CHECK_CALL(job_start_after(&job, w.stream), ONEHOP_OK);
		if (waits) {
			onehop_transfer_cancel(job.transfer);
			CHECK_CALL(job_end(&job), ONEHOP_CANCELLED);
			CHECK(all_are(job.memory, job.bytes, UNTOUCHED));
		}
		onehop_transfer_destroy(job.transfer);
		CHECK_EQ(extra.stream_query(w.stream), OH_CU_ERROR_NOT_READY);
		job.transfer = NULL;
		gate_open(&gate);
		CHECK_EQ(cu->stream_sync(w.stream), 0);
		CHECK(all_are(job.memory, job.bytes, UNTOUCHED));
		job_drop(&job);
		world_drop(&w);
	}
}

TEST(a_transfer_waits_for_the_stream_of_each_start)
{
	static struct gate gates[2];
	struct world w;
	struct job job;
	CHECK(world_make(&w, 3));
	struct CUstream_st *streams[2] = {w.stream, stream_make(0)};
	CHECK_CALL(job_make(&w, &job, "cuda:0", 0, JOB_BYTES), ONEHOP_OK);
	for (int i = 0; i < 4; i++) {
		CHECK_CALL(onehop_buffer_fill(job.buffer, 0, job.bytes, UNTOUCHED, &error),
			   ONEHOP_OK);
		hold(&gates[i % 2], streams[i % 2]);
		CHECK_CALL(job_start_after(&job, streams[i % 2]), ONEHOP_OK);
		CHECK_CALL(job_start(&job), ONEHOP_BUSY);
		check_waits(&job);
		gate_open(&gates[i % 2]);
		CHECK_CALL(job_end(&job), ONEHOP_OK);
		CHECK(job_is_right(&job));
		CHECK_EQ(cu->stream_sync(streams[i % 2]), 0);
	}
	check_runs(&job, 1);
	CHECK_EQ(cu->stream_destroy(streams[1]), 0);
	job_drop(&job);
	world_drop(&w);
}

TEST(a_start_after_a_cancelled_one_does_not_wait_for_the_first_ones_stream)
{
	static struct gate gate;
	struct world w;
	struct job job;
	CHECK(world_make(&w, 3));
	struct CUstream_st *free_stream = stream_make(0);
	CHECK_CALL(job_make(&w, &job, "cuda:0", 0, JOB_BYTES), ONEHOP_OK);
	hold(&gate, w.stream);
	for (int i = 0; i < 2; i++) {
		CHECK_CALL(job_start_after(&job, w.stream), ONEHOP_OK);
		onehop_transfer_cancel(job.transfer);
		CHECK_CALL(job_end(&job), ONEHOP_CANCELLED);
	}
	CHECK_CALL(job_start_after(&job, free_stream), ONEHOP_OK);
	onehop_status status = job_end(&job);
	gate_open(&gate);
	CHECK_CALL(status, ONEHOP_OK);
	CHECK(job_is_right(&job));
	CHECK_EQ(cu->stream_sync(w.stream), 0);
	CHECK_EQ(cu->stream_destroy(free_stream), 0);
	job_drop(&job);
	world_drop(&w);
}

TEST(a_start_that_fails_behind_a_held_stream_says_so_at_once)
{
	static struct gate gate;
	struct world w;
	struct job job;
	CHECK(world_make(&w, 3));
	CHECK_CALL(job_make(&w, &job, "cuda:0", 0, JOB_BYTES), ONEHOP_OK);
	hold(&gate, w.stream);
	for (int n = 1; n <= 2; n++) {
		char rule[32];
		snprintf(rule, sizeof rule, "cuEventRecord:%d", n);
		fake.fail(rule);
		CHECK_CALL(job_start_after(&job, w.stream), ONEHOP_DRIVER);
		CHECK_EQ(fake.fail(NULL), 1);
		CHECK_EQ(error.driver_code, OH_CU_ERROR_UNKNOWN);
	}
	CHECK_EQ(extra.stream_query(w.stream), OH_CU_ERROR_NOT_READY);
	check_runs(&job, 1);
	gate_open(&gate);
	CHECK_EQ(cu->stream_sync(w.stream), 0);
	job_drop(&job);
	world_drop(&w);
}

TEST(more_transfers_wait_than_are_looked_at_in_one_go_and_another_runs)
{
	enum { HELD = 20 };
	static struct gate gate;
	static struct job held[HELD];
	struct world w;
	struct job job;
	CHECK(world_make(&w, 2));
	for (uint64_t i = 0; i < HELD; i++)
		CHECK_CALL(job_make(&w, &held[i], "cuda:0", i * 1000, 1000), ONEHOP_OK);
	CHECK_CALL(job_make(&w, &job, "cuda:0", 0, JOB_BYTES), ONEHOP_OK);
	hold(&gate, w.stream);
	for (int i = 0; i < HELD; i++)
		CHECK_CALL(job_start_after(&held[i], w.stream), ONEHOP_OK);
	CHECK_CALL(job_start(&job), ONEHOP_OK);
	onehop_status status = job_end(&job);
	for (int i = 0; i < HELD && !test_failed; i++)
		check_waits(&held[i]);
	gate_open(&gate);
	CHECK_CALL(status, ONEHOP_OK);
	CHECK(job_is_right(&job));
	for (int i = 0; i < HELD; i++) {
		CHECK_CALL(job_end(&held[i]), ONEHOP_OK);
		CHECK(job_is_right(&held[i]));
		job_drop(&held[i]);
	}
	CHECK_EQ(cu->stream_sync(w.stream), 0);
	job_drop(&job);
	world_drop(&w);
}

/* ------------------------------------------------------------------ reads that are held */

static struct {
	struct gate gate;
	pthread_cond_t arrived;
	int waiting;       /* reads that the gate holds */
	uint64_t beyond;   /* of the file; those from there on are held */
	pthread_t opener;  /* opens the gate when it naps between looks at what is in flight */
	int opener_known;
} reads = {.gate = GATE, .arrived = PTHREAD_COND_INITIALIZER};

static struct oh_sys real;

static ssize_t
held_pread(int fd, void *buffer, size_t bytes, off_t offset)
{
	pthread_mutex_lock(&reads.gate.lock);
	reads.waiting++;
	pthread_cond_signal(&reads.arrived);
	while (!reads.gate.open && (uint64_t)offset >= reads.beyond)
		pthread_cond_wait(&reads.gate.changed, &reads.gate.lock);
	reads.waiting--;
	pthread_mutex_unlock(&reads.gate.lock);
	return pread(fd, buffer, bytes, offset);
}

static int
opening_nanosleep(const struct timespec *want, struct timespec *left)
{
	if (reads.opener_known && pthread_equal(pthread_self(), reads.opener))
		gate_open(&reads.gate);
	return nanosleep(want, left);
}

/* A world whose reads can be held. */
static int
world_make_holding(struct world *w, uint64_t threads)
{
	real = oh_sys;
	reads.gate.open = 1;
	reads.opener_known = 0;
	oh_sys.pread = held_pread;
	oh_sys.nanosleep = opening_nanosleep;
	return world_make(w, threads);
}

static void
world_drop_holding(struct world *w)
{
	world_drop(w);
	oh_sys = real;
}

/* Reads of the file from beyond on wait until the gate is opened. */
static void
hold_reads(uint64_t beyond)
{
	pthread_mutex_lock(&reads.gate.lock);
	reads.gate.open = 0;
	reads.beyond = beyond;
	pthread_mutex_unlock(&reads.gate.lock);
}

/* From now on they wait until this thread naps, looking after what others wait for. */
static void
open_reads_at_nap(void)
{
	reads.opener = pthread_self();
	reads.opener_known = 1;
}

static void
wait_for_held_reads(int count)
{
	pthread_mutex_lock(&reads.gate.lock);
	while (reads.waiting < count)
		pthread_cond_wait(&reads.arrived, &reads.gate.lock);
	pthread_mutex_unlock(&reads.gate.lock);
}

/* The only worker reads the last of one load, to host memory, and the thread that waits for it
 * looks after the other's stream meanwhile. */
TEST(a_wait_ends_with_its_transfer_while_another_waits_for_a_held_stream)
{
	static struct gate gate;
	struct world w;
	struct job held, job;
	CHECK(world_make_holding(&w, 1));
	CHECK_CALL(job_make(&w, &held, "cuda:0", 0, JOB_BYTES), ONEHOP_OK);
	CHECK_CALL(job_make(&w, &job, "host", 0, 1000), ONEHOP_OK);
	hold(&gate, w.stream);
	hold_reads(0);
	CHECK_CALL(job_start_after(&held, w.stream), ONEHOP_OK);
	CHECK_CALL(job_start(&job), ONEHOP_OK);
	wait_for_held_reads(1);
	open_reads_at_nap();
	time_t begun = time(NULL);
	onehop_status status = job_end(&job);
	int late = (uint64_t)(time(NULL) - begun) * 1000000000u >= SOON / 2;
	gate_open(&reads.gate);
	gate_open(&gate);
	CHECK_CALL(status, ONEHOP_OK);
	CHECK(!late);
	CHECK(job_is_right(&job));
	CHECK_CALL(job_end(&held), ONEHOP_OK);
	CHECK(job_is_right(&held));
	CHECK_EQ(cu->stream_sync(w.stream), 0);
	job_drop(&job);
	job_drop(&held);
	world_drop_holding(&w);
}

/* As above, but the thread has a time limit, after which it looks after nothing any more. */
TEST(a_wait_that_times_out_leaves_the_copies_in_flight_to_another_thread)
{
	static struct gate gate;
	struct onehop_progress progress = {.size = sizeof progress, .running = 1};
	struct world w;
	struct job held, job;
	CHECK(world_make_holding(&w, 1));
	CHECK_CALL(job_make(&w, &held, "cuda:0", 0, BLOCK), ONEHOP_OK);
	CHECK_CALL(job_make(&w, &job, "host", 0, 1000), ONEHOP_OK);
	hold(&gate, w.stream);
	hold_reads(0);
	CHECK_CALL(job_start_after(&held, w.stream), ONEHOP_OK);
	CHECK_CALL(job_start(&job), ONEHOP_OK);
	wait_for_held_reads(1);
	open_reads_at_nap();
	CHECK_CALL(onehop_transfer_wait(held.transfer, 100000000, NULL, &error), ONEHOP_TIMED_OUT);
	gate_open(&gate);
	time_t begun = time(NULL);
	while (progress.running) {
		CHECK_CALL(onehop_transfer_progress(held.transfer, &progress), ONEHOP_OK);
		CHECK((uint64_t)(time(NULL) - begun) * 1000000000u < SOON);
		sched_yield();
	}
	CHECK(job_is_right(&held));
	CHECK_CALL(job_end(&job), ONEHOP_OK);
	CHECK_EQ(cu->stream_sync(w.stream), 0);
	job_drop(&job);
	job_drop(&held);
	world_drop_holding(&w);
}

/* ------------------------------------------------------------------ join */

/* What work that was given to a stream sees of a load. */
struct witness {
	const struct job *job;
	int right;
};

static void
look(void *argument)
{
	struct witness *witness = argument;
	const struct job *job = witness->job;
	witness->right = memcmp(job->memory, content + job->offset, job->bytes) == 0;
}

/* Gives the stream work that looks at the load's bytes, and checks what it saw. */
static void
check_sees(struct job *job, struct CUstream_st *stream)
{
	struct witness witness = {job, 0};
	char *got = calloc(1, job->bytes);
	CHECK(got);
	CHECK_EQ(cu->host_register(got, job->bytes, OH_CU_HOST_REGISTER_PORTABLE), 0);
	CHECK_EQ(extra.host_func(stream, look, &witness), 0);
	CHECK_EQ(cu->copy_out(got, job->address, job->bytes, stream), 0);
	CHECK_EQ(cu->stream_sync(stream), 0);
	CHECK(witness.right);
	CHECK(memcmp(got, content + job->offset, job->bytes) == 0);
	CHECK_EQ(cu->host_unregister(got), 0);
	free(got);
}

/* As often as makes it likely that a missing order shows. */
static void
join_orders(struct world *w, struct CUstream_st *stream)
{
	struct CUctx_st *theirs = w->context, *popped;
	struct job job;
	CHECK_CALL(job_make(w, &job, "cuda:0", 0, JOB_BYTES), ONEHOP_OK);
	if ((uintptr_t)stream > 2)
		CHECK_EQ(cu->stream_context(stream, &theirs), 0);
	for (int i = 0; i < 3; i++) {
		CHECK_CALL(onehop_buffer_fill(job.buffer, 0, job.bytes, UNTOUCHED, &error),
			   ONEHOP_OK);
		CHECK_CALL(job_start(&job), ONEHOP_OK);
		CHECK_CALL(onehop_transfer_join(job.transfer, handle_of(stream), &error),
			   ONEHOP_OK);
		CHECK_EQ(cu->ctx_push(theirs), 0);
		check_sees(&job, stream);
		CHECK_EQ(cu->ctx_pop(&popped), 0);
		CHECK_CALL(job_end(&job), ONEHOP_OK);
	}
	/* After its end it may be joined too. */
	CHECK_CALL(onehop_transfer_join(job.transfer, handle_of(stream), &error), ONEHOP_OK);
	job_drop(&job);
}

TEST(work_given_to_a_stream_after_a_join_sees_the_bytes)
{
	with_each_stream(join_orders);
}

TEST(a_join_does_not_wait_for_what_another_transfer_waits_for)
{
	static struct gate gate;
	struct world w;
	struct job held, reading, job;
	CHECK(world_make_holding(&w, 3));
	struct CUstream_st *other = stream_make(0);
	CHECK_CALL(job_make(&w, &held, "cuda:0", 0, JOB_BYTES), ONEHOP_OK);
	CHECK_CALL(job_make(&w, &reading, "cuda:0", FILE_BYTES - JOB_BYTES, 1000), ONEHOP_OK);
	CHECK_CALL(job_make(&w, &job, "cuda:0", JOB_BYTES, JOB_BYTES), ONEHOP_OK);
	/* One waits for a held stream, one for the last part of the file. */
	hold(&gate, other);
	hold_reads(FILE_BYTES - JOB_BYTES);
	CHECK_CALL(job_start_after(&held, other), ONEHOP_OK);
	CHECK_CALL(job_start(&reading), ONEHOP_OK);
	wait_for_held_reads(1);
	CHECK_CALL(job_start(&job), ONEHOP_OK);
	CHECK_CALL(onehop_transfer_join(job.transfer, handle_of(w.stream), &error), ONEHOP_OK);
	check_sees(&job, w.stream);
	check_waits(&held);
	CHECK_CALL(onehop_transfer_wait(reading.transfer, 0, NULL, &error), ONEHOP_TIMED_OUT);
	gate_open(&gate);
	gate_open(&reads.gate);
	CHECK_CALL(job_end(&held), ONEHOP_OK);
	CHECK_CALL(job_end(&reading), ONEHOP_OK);
	CHECK_CALL(job_end(&job), ONEHOP_OK);
	CHECK(job_is_right(&held) && job_is_right(&reading));
	CHECK_EQ(cu->stream_sync(other), 0);
	CHECK_EQ(cu->stream_destroy(other), 0);
	job_drop(&held);
	job_drop(&reading);
	job_drop(&job);
	world_drop_holding(&w);
}

static void *
open_when_quiet(void *gate)
{
	fake.quiet();
	gate_open(gate);
	return NULL;
}

TEST(a_join_of_a_transfer_that_waits_for_a_stream_waits_with_it)
{
	static struct gate gate;
	struct world w;
	struct job job;
	pthread_t opener;
	CHECK(world_make(&w, 3));
	struct CUstream_st *other = stream_make(0);
	CHECK_CALL(job_make(&w, &job, "cuda:0", 0, JOB_BYTES), ONEHOP_OK);
	hold(&gate, other);
	CHECK_CALL(job_start_after(&job, other), ONEHOP_OK);
	CHECK_EQ(pthread_create(&opener, NULL, open_when_quiet, &gate), 0);
	CHECK_CALL(onehop_transfer_join(job.transfer, handle_of(w.stream), &error), ONEHOP_OK);
	check_sees(&job, w.stream);
	CHECK_EQ(pthread_join(opener, NULL), 0);
	CHECK_CALL(job_end(&job), ONEHOP_OK);
	CHECK_EQ(cu->stream_sync(other), 0);
	CHECK_EQ(cu->stream_destroy(other), 0);
	job_drop(&job);
	world_drop(&w);
}

TEST(a_join_of_a_cancelled_transfer_says_that_it_was_cancelled)
{
	static struct gate gate;
	struct world w;
	struct job job;
	CHECK(world_make(&w, 3));
	CHECK_CALL(job_make(&w, &job, "cuda:0", 0, JOB_BYTES), ONEHOP_OK);
	hold(&gate, w.stream);
	CHECK_CALL(job_start_after(&job, w.stream), ONEHOP_OK);
	onehop_transfer_cancel(job.transfer);
	CHECK_CALL(onehop_transfer_join(job.transfer, 0, &error), ONEHOP_CANCELLED);
	gate_open(&gate);
	CHECK_EQ(cu->stream_sync(w.stream), 0);
	job_drop(&job);
	world_drop(&w);
}

int
main(int argc, char **argv)
{
	return world_main(argc, argv);
}
