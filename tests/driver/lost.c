/* A device that is lost, or whose context is reset or destroyed by its owner, in the middle of a
 * load or between two calls: through the public API against the look-alike driver. Each time the
 * error is DEVICE_LOST with a sentence, all can be destroyed, and a new load works where it can.
 */
#include "world.h"

/* The result is DEVICE_LOST and error says so in words. */
#define CHECK_TELLS_LOST(result)                                                                   \
	do {                                                                                       \
		CHECK_CALL(result, ONEHOP_DEVICE_LOST);                                            \
		CHECK_EQ(error.status, ONEHOP_DEVICE_LOST);                                        \
		CHECK_HOLDS(error.message, "cuda:0");                                              \
		CHECK(error.remedy[0]);                                                            \
	} while (0)

#define CHECK_LOST(call)                                                                           \
	do {                                                                                       \
		error = (struct onehop_error){0};                                                  \
		CHECK_TELLS_LOST(call);                                                            \
	} while (0)

/* A new load of its own. */
static void
check_new_load(struct world *w)
{
	struct job job;
	CHECK_CALL(job_make(w, &job, "cuda:0", 1234, JOB_BYTES), ONEHOP_OK);
	CHECK_CALL(job_start(&job), ONEHOP_OK);
	CHECK_CALL(job_end(&job), ONEHOP_OK);
	CHECK(job_is_right(&job));
	job_drop(&job);
}

/* A device that is lost stays so until it is reset. */
static void
check_nothing_works(struct world *w, struct job *job)
{
	struct job other;
	char byte;
	CHECK_LOST(onehop_buffer_read(job->buffer, 0, &byte, 1, &error));
	CHECK_LOST(onehop_buffer_fill(job->buffer, 0, 1, 0, &error));
	CHECK_LOST(job_make(w, &other, "cuda:0", 0, BLOCK));
	job_drop(&other);
	onehop_status status = job_start(job);
	if (status == ONEHOP_OK)
		status = job_end(job);
	CHECK_TELLS_LOST(status);
}

/* ------------------------------------------------------------------ at the n-th read */

static struct {
	pthread_mutex_t lock;
	long until; /* reads before it happens; below 0 it is over, or never comes */
	void (*happen)(void);
} event = {PTHREAD_MUTEX_INITIALIZER, -1, NULL};

static ssize_t
eventful_pread(int fd, void *buffer, size_t bytes, off_t offset)
{
	pthread_mutex_lock(&event.lock);
	if (event.until-- == 0)
		event.happen();
	pthread_mutex_unlock(&event.lock);
	return pread(fd, buffer, bytes, offset);
}

static void
at_read(long number, void (*happen)(void))
{
	pthread_mutex_lock(&event.lock);
	event.until = number;
	event.happen = happen;
	pthread_mutex_unlock(&event.lock);
}

/* Did it happen? */
static int
has_happened(void)
{
	pthread_mutex_lock(&event.lock);
	int happened = event.until < 0;
	pthread_mutex_unlock(&event.lock);
	return happened;
}

static const oh_cu_result codes[] = {OH_CU_ERROR_ECC_UNCORRECTABLE, OH_CU_ERROR_ILLEGAL_ADDRESS,
				     OH_CU_ERROR_LAUNCH_FAILED, OH_CU_ERROR_DEVICE_UNAVAILABLE};
static oh_cu_result lost_with;

static void
lose(void)
{
	fake.lose(0, lost_with);
}

/* Without a context of the test's, so that the runtime's end gives back all. */
static void
lose_at(long number, int *happened)
{
	struct world w = {0};
	struct job job, other;
	struct oh_sys real = oh_sys;
	oh_sys.pread = eventful_pread;
	CHECK(runtime_make(&w, 3));
	CHECK_CALL(job_make(&w, &job, "cuda:0", 0, JOB_BYTES), ONEHOP_OK);
	CHECK_CALL(job_make(&w, &other, "cuda:0", JOB_BYTES, JOB_BYTES), ONEHOP_OK);
	lost_with = codes[(size_t)number % (sizeof codes / sizeof codes[0])];
	at_read(number, lose);
	CHECK_CALL(job_start(&job), ONEHOP_OK);
	CHECK_CALL(job_start(&other), ONEHOP_OK);
	onehop_status first = job_end(&job);
	if (first != ONEHOP_OK) {
		CHECK_TELLS_LOST(first);
		CHECK_EQ(error.driver_code, (int)lost_with);
	}
	onehop_status second = job_end(&other);
	if (second != ONEHOP_OK)
		CHECK_TELLS_LOST(second);
	*happened = has_happened();
	/* Whatever is read after it cannot land. */
	if (*happened) {
		CHECK(first != ONEHOP_OK || second != ONEHOP_OK);
		check_nothing_works(&w, &other);
	} else {
		CHECK(first == ONEHOP_OK && second == ONEHOP_OK);
		CHECK(job_is_right(&job) && job_is_right(&other));
	}
	at_read(-1, NULL);
	job_drop(&job);
	job_drop(&other);
	runtime_drop(&w);
	oh_sys = real;
	CHECK(!current_context());
	CHECK_NOTHING_HELD();
}

TEST(a_device_that_is_lost_at_the_nth_read_ends_the_loads_and_leaves_nothing)
{
	long number = 0;
	for (int happened = 1; happened && !test_failed; number++)
		lose_at(number, &happened);
	/* Two loads of 525,288 bytes are 66 slices of 16 KiB. */
	CHECK(number > 60);
}

TEST(a_device_that_was_lost_works_again_after_a_reset)
{
	struct world w = {0};
	struct job job;
	struct oh_sys real = oh_sys;
	oh_sys.pread = eventful_pread;
	CHECK(runtime_make(&w, 3));
	CHECK_CALL(job_make(&w, &job, "cuda:0", 0, JOB_BYTES), ONEHOP_OK);
	lost_with = OH_CU_ERROR_ILLEGAL_ADDRESS;
	at_read(20, lose);
	CHECK_CALL(job_start(&job), ONEHOP_OK);
	CHECK_LOST(job_end(&job));
	check_nothing_works(&w, &job);
	CHECK_EQ(extra.primary_reset(0), 0);
	CHECK_LOST(job_start(&job));
	check_new_load(&w);
	CHECK_LOST(job_start(&job));
	job_drop(&job);
	check_new_load(&w);
	runtime_drop(&w);
	oh_sys = real;
	CHECK_NOTHING_HELD();
}

/* The only worker resets the context between two of its own calls: the driver knows no other way to
 * take a context away from under a call than an undefined one. */
static void
reset(void)
{
	extra.primary_reset(0);
}

static void
reset_at(long number, int *happened)
{
	struct onehop_progress progress = {.size = sizeof progress, .running = 1};
	struct world w = {0};
	struct job job;
	struct oh_sys real = oh_sys;
	oh_sys.pread = eventful_pread;
	CHECK(runtime_make(&w, 1));
	CHECK_CALL(job_make(&w, &job, "cuda:0", 0, JOB_BYTES), ONEHOP_OK);
	at_read(number, reset);
	CHECK_CALL(job_start(&job), ONEHOP_OK);
	while (progress.running) {
		CHECK_CALL(onehop_transfer_progress(job.transfer, &progress), ONEHOP_OK);
		sched_yield();
	}
	*happened = has_happened();
	if (*happened) {
		CHECK_LOST(onehop_transfer_wait(job.transfer, 0, NULL, &error));
		CHECK_LOST(job_start(&job));
		check_new_load(&w);
	} else {
		CHECK_CALL(onehop_transfer_wait(job.transfer, 0, NULL, &error), ONEHOP_OK);
		CHECK(job_is_right(&job));
	}
	at_read(-1, NULL);
	job_drop(&job);
	runtime_drop(&w);
	oh_sys = real;
	CHECK_NOTHING_HELD();
}

TEST(a_context_that_is_reset_at_the_nth_read_ends_the_load_and_the_next_one_works)
{
	long number = 0;
	for (int happened = 1; happened && !test_failed; number++)
		reset_at(number, &happened);
	/* 525,288 bytes are 33 slices of 16 KiB. */
	CHECK(number > 30);
}

/* ------------------------------------------------------------------ between prepare and start */

static void *
destroy_it(void *context)
{
	extra.ctx_destroy(context);
	return NULL;
}

/* What a caller may have current while its context goes. */
enum caller { NONE, PRIMARY, OWN, OWN_GONE_ELSEWHERE };

static struct CUctx_st *
caller_context(enum caller caller)
{
	struct CUctx_st *context = NULL;
	if (caller == PRIMARY && cu->primary_retain(&context, 0) == OH_CU_SUCCESS)
		cu->ctx_push(context);
	if (caller >= OWN)
		extra.ctx_create(&context, 0, 0);
	return context;
}

static void
take_away(enum caller caller, struct CUctx_st *context)
{
	pthread_t thread;
	if (caller <= PRIMARY) {
		CHECK_EQ(extra.primary_reset(0), 0);
	} else if (caller == OWN) {
		CHECK_EQ(extra.ctx_destroy(context), 0);
	} else {
		CHECK_EQ(pthread_create(&thread, NULL, destroy_it, context), 0);
		CHECK_EQ(pthread_join(thread, NULL), 0);
		CHECK(current_context() == context);
	}
}

static void
gone_between_prepare_and_start(enum caller caller)
{
	struct CUctx_st *context = caller_context(caller), *popped;
	struct world w = {0};
	struct job never, once, late = {0};
	char byte;
	CHECK(!context == (caller == NONE));
	CHECK(runtime_make(&w, 3));
	CHECK_CALL(job_make(&w, &never, "cuda:0", 0, JOB_BYTES), ONEHOP_OK);
	CHECK_CALL(job_make(&w, &once, "cuda:0", 0, JOB_BYTES), ONEHOP_OK);
	CHECK_CALL(job_make(&w, &late, "cuda:0", 0, JOB_BYTES), ONEHOP_OK);
	onehop_transfer_destroy(late.transfer);
	late.transfer = NULL;
	CHECK_CALL(job_start(&once), ONEHOP_OK);
	CHECK_CALL(job_end(&once), ONEHOP_OK);
	take_away(caller, context);
	CHECK_LOST(job_start(&never));
	CHECK_HOLDS(error.message, "is gone");
	CHECK_LOST(job_start_after(&once, NULL));
	CHECK_LOST(onehop_transfer_prepare(late.plan, &late.transfer, &error));
	CHECK_LOST(onehop_buffer_read(once.buffer, 0, &byte, 1, &error));
	check_new_load(&w);
	/* The old ones are no better for it. */
	CHECK_LOST(job_start(&never));
	CHECK_LOST(job_start(&once));
	CHECK_LOST(onehop_transfer_prepare(late.plan, &late.transfer, &error));
	job_drop(&once);
	job_drop(&late);
	check_new_load(&w);
	job_drop(&never);
	runtime_drop(&w);
	if (caller == PRIMARY || caller == OWN_GONE_ELSEWHERE)
		CHECK_EQ(cu->ctx_pop(&popped), 0);
	if (caller == PRIMARY)
		CHECK_EQ(cu->primary_release(0), 0);
	CHECK(!current_context());
	CHECK_NOTHING_HELD();
}

TEST(a_reset_between_prepare_and_start_is_told_and_a_new_load_works)
{
	gone_between_prepare_and_start(NONE);
}

TEST(a_reset_of_the_context_that_is_current_is_told_and_a_new_load_works)
{
	gone_between_prepare_and_start(PRIMARY);
}

TEST(a_context_that_its_caller_destroyed_is_told_and_a_new_load_works)
{
	gone_between_prepare_and_start(OWN);
}

TEST(a_context_that_another_thread_destroyed_is_told_and_a_new_load_works)
{
	gone_between_prepare_and_start(OWN_GONE_ELSEWHERE);
}

/* ------------------------------------------------------------------ while it waits */

TEST(a_device_that_is_lost_while_a_transfer_waits_for_a_held_stream_ends_it)
{
	static struct gate gate = GATE;
	struct world w;
	struct job job;
	CHECK(world_make(&w, 3));
	CHECK_CALL(job_make(&w, &job, "cuda:0", 0, JOB_BYTES), ONEHOP_OK);
	CHECK_EQ(extra.host_func(w.stream, gate_pass, &gate), 0);
	CHECK_CALL(job_start_after(&job, w.stream), ONEHOP_OK);
	fake.lose(0, OH_CU_ERROR_LAUNCH_FAILED);
	CHECK_LOST(job_end(&job));
	CHECK_LOST(onehop_transfer_join(job.transfer, 0, &error));
	job_drop(&job);
	runtime_drop(&w);
	gate_open(&gate);
	CHECK_EQ(extra.primary_reset(0), 0);
	CHECK_EQ(cu->ctx_pop(&w.context), 0);
	CHECK_EQ(cu->primary_release(0), 0);
	CHECK_NOTHING_HELD();
}

int
main(int argc, char **argv)
{
	return world_main(argc, argv);
}
