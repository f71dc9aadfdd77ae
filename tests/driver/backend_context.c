/* The CUDA back end against the look-alike driver: which context it uses, what it does when that is
 * gone or the device is lost, every driver call failing in turn, and many threads. */
#include "backend.h"

#include <sys/wait.h>
#include <unistd.h>

/* Everything that a lane does, once. NULL context: none is current. */
static onehop_status
use_lane(struct lane *lane, char got[4096], struct onehop_error *error)
{
	uint64_t at = 0;
	onehop_status status = ops->alloc(lane->device, 4096, &at, error);
	if (status != ONEHOP_OK)
		return status;
	struct oh_copy copies[2] = {{at, lane->ring, 4000}, {at + 4000, lane->ring + 4000, 96}};
	status = ops->check(lane->device, at, 4096, error);
	if (status == ONEHOP_OK)
		status = ops->fill(lane->device, at, 4096, 0, error);
	if (status == ONEHOP_OK)
		status = ops->queue_after(lane->device, lane->queue, 0, error);
	if (status == ONEHOP_OK)
		status = ops->copy(lane->device, lane->queue, lane->mark, copies, 2, error);
	if (status == ONEHOP_OK)
		status = wait_for(lane->device, lane->mark, error);
	if (status == ONEHOP_OK)
		status = ops->queue_join(lane->device, lane->queue, 0, error);
	if (status == ONEHOP_OK)
		status = ops->read(lane->device, at, got, 4096, error);
	ops->free(lane->device, at, 4096);
	return status;
}

#define CHECK_LANE_WORKS(lane)                                                                     \
	do {                                                                                       \
		char works_want[4096], works_got[4096];                                            \
		pattern(works_want, sizeof works_want, 9);                                         \
		memcpy((lane)->ring, works_want, sizeof works_want);                               \
		CHECK_OK(use_lane(lane, works_got, &error));                                       \
		CHECK(memcmp(works_got, works_want, sizeof works_got) == 0);                       \
	} while (0)

TEST(a_thread_without_a_context_has_none_afterwards)
{
	struct onehop_error error = {0};
	struct lane lane;
	CHECK(!current_context());
	CHECK_OK(lane_make(&lane, 4096, &error));
	CHECK(!current_context());
	CHECK_LANE_WORKS(&lane);
	CHECK(ops->alive(lane.device));
	CHECK(!current_context());
	lane_drop(&lane);
	CHECK(!current_context());
	CHECK_NOTHING_HELD();
}

TEST(the_callers_context_on_the_device_is_used_and_stays_current)
{
	struct onehop_error error = {0};
	struct fake_outstanding held;
	struct CUctx_st *context;
	struct lane lane;
	CHECK_EQ(extra.ctx_create(&context, 0, 0), 0);
	CHECK_OK(lane_make(&lane, 4096, &error));
	CHECK_LANE_WORKS(&lane);
	CHECK(current_context() == context);
	fake.outstanding(&held);
	CHECK_EQ(held.primaries, 0);
	lane_drop(&lane);
	CHECK(current_context() == context);
	CHECK_EQ(extra.ctx_destroy(context), 0);
	CHECK(!current_context());
	CHECK_NOTHING_HELD();
}

TEST(a_context_on_another_device_is_left_alone)
{
	struct onehop_error error = {0};
	struct fake_outstanding held;
	struct CUctx_st *context;
	struct lane lane;
	CHECK_EQ(extra.ctx_create(&context, 0, 1), 0);
	CHECK_OK(lane_make(&lane, 4096, &error));
	CHECK_LANE_WORKS(&lane);
	CHECK(current_context() == context);
	fake.outstanding(&held);
	CHECK_EQ(held.primaries, 1);
	lane_drop(&lane);
	CHECK_EQ(extra.ctx_destroy(context), 0);
	CHECK_NOTHING_HELD();
}

TEST(a_primary_context_that_is_current_is_retained)
{
	struct onehop_error error = {0};
	struct CUctx_st *context, *popped;
	struct lane lane;
	CHECK_EQ(cu->primary_retain(&context, 0), 0);
	CHECK_EQ(cu->ctx_push(context), 0);
	CHECK_OK(lane_make(&lane, 4096, &error));
	/* Its owner lets go of it: it stays for us. */
	CHECK_EQ(cu->ctx_pop(&popped), 0);
	CHECK_EQ(cu->primary_release(0), 0);
	CHECK(ops->alive(lane.device));
	CHECK_LANE_WORKS(&lane);
	lane_drop(&lane);
	CHECK_NOTHING_HELD();
}

TEST(a_current_context_is_used_though_the_primary_is_active_too)
{
	struct onehop_error error = {0};
	struct fake_outstanding held;
	struct CUctx_st *primary, *context;
	struct lane lane;
	CHECK_EQ(cu->primary_retain(&primary, 0), 0);
	CHECK_EQ(extra.ctx_create(&context, 0, 0), 0);
	CHECK_OK(lane_make(&lane, 4096, &error));
	fake.outstanding(&held);
	CHECK_EQ(held.primaries, 1);
	CHECK_LANE_WORKS(&lane);
	lane_drop(&lane);
	CHECK_EQ(extra.ctx_destroy(context), 0);
	CHECK_EQ(cu->primary_release(0), 0);
	CHECK_NOTHING_HELD();
}

TEST(nothing_is_left_in_a_context_that_stays)
{
	struct onehop_error error = {0};
	struct fake_outstanding held;
	struct CUctx_st *context;
	struct lane lane;
	CHECK_EQ(cu->primary_retain(&context, 0), 0);
	CHECK_OK(lane_make(&lane, 4096, &error));
	CHECK_LANE_WORKS(&lane);
	lane_drop(&lane);
	fake.outstanding(&held);
	CHECK_EQ(held.primaries, 1);
	CHECK_EQ(held.streams, 0);
	CHECK_EQ(held.events, 0);
	CHECK_EQ(held.allocations, 0);
	CHECK_EQ(held.registrations, 0);
	CHECK_EQ(cu->primary_release(0), 0);
	CHECK_NOTHING_HELD();
}

TEST(a_device_is_opened_twice)
{
	struct onehop_error error = {0};
	struct lane first, second;
	CHECK_OK(lane_make(&first, 4096, &error));
	CHECK_OK(lane_make(&second, 4096, &error));
	CHECK_LANE_WORKS(&first);
	CHECK_LANE_WORKS(&second);
	lane_drop(&first);
	CHECK_LANE_WORKS(&second);
	lane_drop(&second);
	CHECK_NOTHING_HELD();
}

/* A stream of another context than the back end's: the event has to be made there. */
TEST(a_stream_of_another_context_is_waited_for_and_made_to_wait)
{
	struct onehop_error error = {0};
	struct gate gate = GATE;
	struct CUctx_st *context;
	struct lane lane;
	int done = 1;
	uint64_t at;
	CHECK_OK(lane_make(&lane, 4096, &error));
	CHECK_OK(ops->alloc(lane.device, 4096, &at, &error));
	CHECK_EQ(extra.ctx_create(&context, 0, 0), 0);
	struct CUstream_st *stream = stream_make(0);
	struct oh_copy copy = {at, lane.ring, 4096};
	for (int legacy = 0; legacy < 2; legacy++) {
		uint64_t handle = legacy ? 0 : handle_of(stream);
		gate.open = 0;
		CHECK_EQ(extra.host_func(legacy ? NULL : stream, gate_pass, &gate), 0);
		CHECK_OK(ops->queue_after(lane.device, lane.queue, handle, &error));
		CHECK_OK(ops->copy(lane.device, lane.queue, lane.mark, &copy, 1, &error));
		fake.quiet();
		onehop_status polled = ops->poll(lane.device, lane.mark, &done, &error);
		onehop_status joined = ops->queue_join(lane.device, lane.queue, handle, &error);
		gate_open(&gate);
		CHECK_OK(polled);
		CHECK_OK(joined);
		CHECK_EQ(done, 0);
		CHECK_EQ(cu->stream_sync(legacy ? NULL : stream), 0);
		CHECK_OK(ops->poll(lane.device, lane.mark, &done, &error));
		CHECK_EQ(done, 1);
		CHECK(current_context() == context);
	}
	CHECK_EQ(cu->stream_destroy(stream), 0);
	CHECK_EQ(extra.ctx_destroy(context), 0);
	ops->free(lane.device, at, 4096);
	lane_drop(&lane);
	CHECK_NOTHING_HELD();
}

/* Every call on a lane whose context is gone: refused, or nothing, and no stale handle is used. */
static void
check_dead(struct lane *lane)
{
	struct onehop_error error;
	struct onehop_device_info info = {.size = sizeof info};
	struct oh_copy copy = {4096, lane->ring, 16};
	struct oh_queue *queue;
	struct oh_mark *mark;
	char byte;
	int done;
	uint64_t at;
	CHECK(!ops->alive(lane->device));
	CHECK_FAILS(ops->poll(lane->device, lane->mark, &done, &error), ONEHOP_DEVICE_LOST);
	CHECK_HOLDS(error.message, "cuda:0 was opened in was reset or destroyed");
	CHECK_FAILS(ops->copy(lane->device, lane->queue, lane->mark, &copy, 1, &error),
		    ONEHOP_DEVICE_LOST);
	CHECK_FAILS(ops->queue_after(lane->device, lane->queue, 0, &error), ONEHOP_DEVICE_LOST);
	CHECK_FAILS(ops->queue_join(lane->device, lane->queue, 0, &error), ONEHOP_DEVICE_LOST);
	CHECK_FAILS(ops->queue_create(lane->device, &queue, &error), ONEHOP_DEVICE_LOST);
	CHECK_FAILS(ops->mark_create(lane->device, &mark, &error), ONEHOP_DEVICE_LOST);
	CHECK_FAILS(ops->alloc(lane->device, 1, &at, &error), ONEHOP_DEVICE_LOST);
	CHECK_FAILS(ops->check(lane->device, 4096, 1, &error), ONEHOP_DEVICE_LOST);
	CHECK_FAILS(ops->read(lane->device, 4096, &byte, 1, &error), ONEHOP_DEVICE_LOST);
	CHECK_FAILS(ops->fill(lane->device, 4096, 1, 0, &error), ONEHOP_DEVICE_LOST);
	CHECK_FAILS(ops->pin(lane->device, &byte, 1, &error), ONEHOP_DEVICE_LOST);
	CHECK_FAILS(ops->describe(lane->device, &info, &error), ONEHOP_DEVICE_LOST);
	CHECK(!ops->alive(lane->device));
}

/* Resets the device under a lane and, used_again, has somebody else use it at once. */
static void
reset_under(int used_again)
{
	struct onehop_error error = {0};
	struct CUctx_st *context;
	struct lane lane, next;
	uint64_t before;
	CHECK_OK(lane_make(&lane, 4096, &error));
	CHECK_OK(ops->alloc(lane.device, 4096, &before, &error));
	CHECK_LANE_WORKS(&lane);
	CHECK(ops->alive(lane.device));
	CHECK_EQ(extra.primary_reset(0), 0);
	if (used_again)
		CHECK_EQ(cu->primary_retain(&context, 0), 0);
	check_dead(&lane);
	if (test_failed)
		return;
	/* It is not revived by another that is opened, and gives back nothing that is not its own:
	 * somebody may have been given the same addresses since. */
	CHECK_OK(lane_make(&next, 4096, &error));
	CHECK_LANE_WORKS(&next);
	CHECK(!ops->alive(lane.device));
	int frees = fake.calls("cuMemFree_v2"), unpins = fake.calls("cuMemHostUnregister");
	ops->free(lane.device, before, 4096);
	lane_drop(&lane);
	CHECK_EQ(fake.calls("cuMemFree_v2"), frees);
	CHECK_EQ(fake.calls("cuMemHostUnregister"), unpins);
	CHECK(ops->alive(next.device));
	CHECK_LANE_WORKS(&next);
	lane_drop(&next);
	if (used_again)
		CHECK_EQ(cu->primary_release(0), 0);
	CHECK_NOTHING_HELD();
}

TEST(a_device_that_was_reset_is_dead_and_is_opened_again)
{
	reset_under(0);
}

TEST(a_reset_is_noticed_though_the_context_is_used_again)
{
	if (!cu->ctx_id)
		SKIP("a driver older than CUDA 12.0 does not tell contexts apart");
	reset_under(1);
}

TEST(a_destroyed_context_makes_its_device_dead)
{
	struct onehop_error error = {0};
	struct CUctx_st *context;
	struct fake_outstanding held;
	struct lane lane;
	CHECK_EQ(extra.ctx_create(&context, 0, 0), 0);
	CHECK_OK(lane_make(&lane, 4096, &error));
	CHECK_LANE_WORKS(&lane);
	CHECK_EQ(extra.ctx_destroy(context), 0);
	check_dead(&lane);
	lane_drop(&lane);
	CHECK_OK(lane_make(&lane, 4096, &error));
	CHECK_LANE_WORKS(&lane);
	fake.outstanding(&held);
	CHECK_EQ(held.primaries, 1);
	lane_drop(&lane);
	CHECK_NOTHING_HELD();
}

/* It still tells its device, and can be pushed. */
TEST(a_current_context_that_is_gone_is_not_used)
{
	struct onehop_error error = {0};
	struct CUctx_st *context, *popped;
	struct lane lane;
	CHECK_EQ(cu->primary_retain(&context, 0), 0);
	CHECK_EQ(cu->ctx_push(context), 0);
	CHECK_EQ(extra.primary_reset(0), 0);
	CHECK(current_context() == context);
	CHECK_OK(lane_make(&lane, 4096, &error));
	CHECK_LANE_WORKS(&lane);
	lane_drop(&lane);
	CHECK_EQ(cu->ctx_pop(&popped), 0);
	CHECK_EQ(cu->primary_release(0), 0);
	CHECK_EQ(extra.ctx_create(&context, 0, 0), 0);
	CHECK_EQ(cu->ctx_push(context), 0);
	CHECK_EQ(extra.ctx_destroy(context), 0);
	CHECK(current_context() == context);
	CHECK_OK(lane_make(&lane, 4096, &error));
	CHECK_LANE_WORKS(&lane);
	lane_drop(&lane);
	CHECK_EQ(cu->ctx_pop(&popped), 0);
	CHECK_NOTHING_HELD();
}

TEST(a_lost_device_is_told_and_works_again_after_a_reset)
{
	struct onehop_error error = {0};
	struct lane lane;
	struct oh_queue *queue = NULL;
	char got[4096];
	int done = 7;
	uint64_t at = 7;
	CHECK_OK(lane_make(&lane, 4096, &error));
	struct oh_copy copy = {1, lane.ring, 1};
	static const oh_cu_result codes[] = {
		OH_CU_ERROR_ECC_UNCORRECTABLE, OH_CU_ERROR_ILLEGAL_ADDRESS,
		OH_CU_ERROR_LAUNCH_FAILED, OH_CU_ERROR_HARDWARE_STACK_ERROR,
		OH_CU_ERROR_DEVICE_UNAVAILABLE};
	for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
		fake.lose(0, codes[i]);
		CHECK_FAILS(ops->alloc(lane.device, 1, &at, &error), ONEHOP_DEVICE_LOST);
		CHECK_FAILS(ops->copy(lane.device, lane.queue, lane.mark, &copy, 1, &error),
			    ONEHOP_DEVICE_LOST);
		CHECK_FAILS(ops->poll(lane.device, lane.mark, &done, &error), ONEHOP_DEVICE_LOST);
		CHECK_FAILS(ops->read(lane.device, 1, got, 1, &error), ONEHOP_DEVICE_LOST);
		CHECK_FAILS(ops->queue_create(lane.device, &queue, &error), ONEHOP_DEVICE_LOST);
		CHECK_EQ(error.driver_code, codes[i]);
		CHECK(error.remedy[0]);
	}
	CHECK(at == 7 && done == 7 && !queue);
	CHECK_EQ(extra.primary_reset(0), 0);
	CHECK(!ops->alive(lane.device));
	lane_drop(&lane);
	CHECK_OK(lane_make(&lane, 4096, &error));
	CHECK_LANE_WORKS(&lane);
	lane_drop(&lane);
	CHECK_NOTHING_HELD();
}

/* A lane from nothing to nothing; *right tells whether the bytes arrived. */
static onehop_status
whole_life(int *right, struct onehop_error *error)
{
	struct onehop_device_info info = {.size = sizeof info};
	struct lane lane;
	char got[4096] = {0};
	*right = 0;
	onehop_status status = lane_make(&lane, 4096, error);
	if (status == ONEHOP_OK)
		status = ops->describe(lane.device, &info, error);
	if (status == ONEHOP_OK) {
		memset(lane.ring, 0x3C, 4096);
		status = use_lane(&lane, got, error);
		*right = all_are(got, 4096, 0x3C);
	}
	if (status == ONEHOP_OK && !ops->alive(lane.device))
		*right = 0;
	lane_drop(&lane);
	return status;
}

/* With each driver call failing in turn: no leak, no false success, an error with the code. */
static void
fail_each_call(const char *format, int least)
{
	struct onehop_error error;
	int failures = 0, right;
	for (int n = 1;; n++) {
		char rule[64];
		snprintf(rule, sizeof rule, format, n);
		fake.fail(rule);
		error = (struct onehop_error){0};
		onehop_status status = whole_life(&right, &error);
		int failed = fake.fail(NULL);
		CHECK(status != ONEHOP_OK || right);
		CHECK(status == ONEHOP_OK || (error.status == status && error.message[0]));
		CHECK(status == ONEHOP_OK || error.driver_code == 719 ||
		      error.driver_code == OH_CU_ERROR_UNKNOWN ||
		      error.driver_code == OH_CU_ERROR_OUT_OF_MEMORY);
		CHECK(!current_context());
		CHECK_NOTHING_HELD();
		failures += status != ONEHOP_OK;
		if (!failed)
			break;
		CHECK(n < 10000);
	}
	CHECK(failures >= least);
}

TEST(every_driver_call_that_fails_is_told_and_leaves_nothing)
{
	fail_each_call("*:%d", 30);
}

TEST(every_driver_call_that_fails_for_good_is_told_and_leaves_nothing)
{
	fail_each_call("*:%d+:719", 60);
}

enum { THREADS = 4, ROUNDS = 40, BLOCK = 3000 };

struct worker {
	struct oh_device *device;
	char *ring;
	uint64_t memory;
	int number;
	int bad;
};

/* A worker with a queue of its own on a device that all share. */
static void *
work(void *argument)
{
	struct worker *w = argument;
	struct onehop_error error = {0};
	struct oh_queue *queue;
	struct oh_mark *mark;
	char want[BLOCK], got[BLOCK];
	w->bad = 1;
	if (ops->queue_create(w->device, &queue, &error) != ONEHOP_OK ||
	    ops->mark_create(w->device, &mark, &error) != ONEHOP_OK)
		return NULL;
	for (int i = 0; i < ROUNDS; i++) {
		struct oh_copy copies[3] = {{w->memory, w->ring, 1000},
					    {w->memory + 1000, w->ring + 1000, 1},
					    {w->memory + 1001, w->ring + 1001, BLOCK - 1001}};
		pattern(want, BLOCK, (uint64_t)(w->number * ROUNDS + i));
		memcpy(w->ring, want, BLOCK);
		if (ops->copy(w->device, queue, mark, copies, 3, &error) != ONEHOP_OK ||
		    wait_for(w->device, mark, &error) != ONEHOP_OK ||
		    ops->read(w->device, w->memory, got, BLOCK, &error) != ONEHOP_OK ||
		    memcmp(got, want, BLOCK) != 0)
			return NULL;
	}
	ops->mark_destroy(w->device, mark);
	ops->queue_destroy(w->device, queue);
	w->bad = current_context() != NULL;
	return NULL;
}

TEST(many_threads_use_one_device)
{
	struct onehop_error error = {0};
	struct worker workers[THREADS];
	pthread_t threads[THREADS];
	struct oh_device *device;
	static char rings[THREADS][4096];
	uint64_t memory;
	CHECK_OK(ops->open(0, &device, &error));
	CHECK_OK(ops->pin(device, rings, sizeof rings, &error));
	CHECK_OK(ops->alloc(device, THREADS * BLOCK, &memory, &error));
	for (int i = 0; i < THREADS; i++) {
		workers[i] =
			(struct worker){device, rings[i], memory + (uint64_t)i * BLOCK, i, 0};
		CHECK_EQ(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
	}
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(!workers[i].bad);
	ops->free(device, memory, THREADS * BLOCK);
	ops->unpin(device, rings, sizeof rings);
	ops->close(device);
	CHECK_NOTHING_HELD();
}

TEST(in_a_forked_child_the_driver_does_not_start)
{
	struct onehop_error error = {0};
	struct oh_device *device;
	int status;
	CHECK_OK(ops->open(0, &device, &error));
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		struct oh_device *other;
		int refused = ops->count() == 0 &&
			      ops->open(0, &other, &error) == ONEHOP_NO_DEVICE &&
			      error.driver_code == OH_CU_ERROR_NOT_INITIALIZED;
		_exit(refused ? 0 : 1);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	ops->close(device);
	CHECK_NOTHING_HELD();
}

int
main(int argc, char **argv)
{
	return backend_main(argc, argv);
}
