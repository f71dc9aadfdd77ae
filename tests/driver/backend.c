/* The CUDA back end against the look-alike driver: copies, and their order with the caller's
 * streams. Memory is in backend_memory.c, contexts and failures in backend_context.c. */
#include "backend.h"

enum { PIECES = 700, PIECE_MOST = 900 };

/* Copies many pieces of odd sizes, some of none, in one go, to places in another order. */
static void
copy_many(struct lane *lane)
{
	struct onehop_error error = {0};
	static struct oh_copy copies[PIECES];
	static char want[PIECES * PIECE_MOST], got[PIECES * PIECE_MOST];
	uint64_t from = 0, at;
	CHECK_OK(ops->alloc(lane->device, sizeof want, &at, &error));
	CHECK_OK(ops->fill(lane->device, at, sizeof want, 0xEE, &error));
	memset(want, 0xEE, sizeof want);
	pattern(lane->ring, lane->ring_bytes, 7);
	for (int i = 0; i < PIECES; i++) {
		uint64_t bytes = i % 50 == 3 ? 0 : (uint64_t)(i * 37 % PIECE_MOST);
		uint64_t to = (uint64_t)(PIECES - 1 - i) * PIECE_MOST;
		copies[i] = (struct oh_copy){at + to, lane->ring + from, bytes};
		memcpy(want + to, lane->ring + from, bytes);
		from += bytes;
	}
	CHECK(from <= lane->ring_bytes);
	CHECK_OK(ops->copy(lane->device, lane->queue, lane->mark, copies, PIECES, &error));
	CHECK_OK(wait_for(lane->device, lane->mark, &error));
	CHECK_OK(ops->read(lane->device, at, got, sizeof got, &error));
	CHECK(memcmp(got, want, sizeof got) == 0);
	ops->free(lane->device, at, sizeof want);
}

static int
batch_calls(void)
{
	return fake.calls("cuMemcpyBatchAsync_v2") + fake.calls("cuMemcpyBatchAsync");
}

TEST(many_copies_arrive_in_few_calls_where_the_driver_has_one)
{
	struct onehop_error error = {0};
	struct oh_memory_facts facts;
	struct lane lane;
	int has_batch = cu->batch_13 || cu->batch_12;
	CHECK_OK(lane_make(&lane, PIECES * PIECE_MOST, &error));
	ops->facts(lane.device, &facts);
	CHECK_EQ(!!(facts.caps & OH_MEMORY_BATCH_COPY), has_batch);
	CHECK(!(facts.caps & OH_MEMORY_ADDRESSABLE));
	int batches = batch_calls(), singles = fake.calls("cuMemcpyHtoDAsync_v2");
	copy_many(&lane);
	CHECK_EQ(batch_calls() - batches, has_batch ? 3 : 0);
	if (has_batch)
		CHECK_EQ(fake.calls("cuMemcpyHtoDAsync_v2"), singles);
	lane_drop(&lane);
	CHECK_NOTHING_HELD();
}

TEST(a_driver_that_refuses_batches_is_given_single_copies)
{
	struct onehop_error error = {0};
	struct oh_memory_facts facts;
	struct lane lane;
	CHECK_OK(lane_make(&lane, PIECES * PIECE_MOST, &error));
	fake.batch(0);
	copy_many(&lane);
	int batches = batch_calls();
	copy_many(&lane);
	CHECK_EQ(batch_calls(), batches);
	ops->facts(lane.device, &facts);
	CHECK(!(facts.caps & OH_MEMORY_BATCH_COPY));
	fake.batch(1);
	lane_drop(&lane);
	CHECK_NOTHING_HELD();
}

TEST(no_copies_set_the_mark_all_the_same)
{
	struct onehop_error error = {0};
	struct lane lane;
	CHECK_OK(lane_make(&lane, 4096, &error));
	CHECK_OK(ops->copy(lane.device, lane.queue, lane.mark, NULL, 0, &error));
	CHECK_OK(wait_for(lane.device, lane.mark, &error));
	lane_drop(&lane);
	CHECK_NOTHING_HELD();
}

/* Read while the queue holds them back, what was copied out is what was there at last. */
TEST(what_is_copied_out_is_there_when_its_mark_says_so)
{
	struct onehop_error error = {0};
	struct lane lane;
	struct oh_mark *marks[8];
	uint64_t at;
	CHECK_OK(lane_make(&lane, 8 << 16, &error));
	CHECK_OK(ops->alloc(lane.device, 8 << 16, &at, &error));
	for (int i = 0; i < 8; i++) {
		CHECK_OK(ops->mark_create(lane.device, &marks[i], &error));
		CHECK_OK(ops->fill(lane.device, at + ((uint64_t)i << 16), 1 << 16, (uint8_t)(i + 1),
				   &error));
	}
	for (int round = 0; round < 5; round++) {
		memset(lane.ring, 0, 8 << 16);
		for (int i = 0; i < 8; i++)
			CHECK_OK(ops->copy_out(lane.device, lane.queue, marks[i],
					       at + ((uint64_t)i << 16), lane.ring + (i << 16),
					       1 << 16, &error));
		for (int i = 0; i < 8; i++) {
			CHECK_OK(wait_for(lane.device, marks[i], &error));
			CHECK(all_are(lane.ring + (i << 16), 1 << 16, (unsigned char)(i + 1)));
		}
	}
	CHECK_FAILS(ops->copy_out(lane.device, lane.queue, marks[0], at + (8 << 16) - 1, lane.ring,
				  2, &error),
		    ONEHOP_DRIVER);
	CHECK_HOLDS(error.message, "2 bytes of cuda:0 cannot be read");
	for (int i = 0; i < 8; i++)
		ops->mark_destroy(lane.device, marks[i]);
	ops->free(lane.device, at, 8 << 16);
	lane_drop(&lane);
	CHECK_NOTHING_HELD();
}

TEST(blocks_used_again_after_their_mark_lose_nothing)
{
	enum { BLOCKS = 4, BLOCK = 4096, ROUNDS = 200 };
	struct onehop_error error = {0};
	static char want[ROUNDS][BLOCK], got[ROUNDS][BLOCK];
	struct oh_mark *marks[BLOCKS];
	struct lane lane;
	uint64_t at;
	CHECK_OK(lane_make(&lane, BLOCKS * BLOCK, &error));
	CHECK_OK(ops->alloc(lane.device, sizeof want, &at, &error));
	for (int i = 0; i < BLOCKS; i++)
		CHECK_OK(ops->mark_create(lane.device, &marks[i], &error));
	for (int i = 0; i < ROUNDS; i++) {
		char *block = lane.ring + i % BLOCKS * BLOCK;
		struct oh_copy copies[2] = {
			{at + (uint64_t)i * BLOCK, block, 1000},
			{at + (uint64_t)i * BLOCK + 1000, block + 1000, BLOCK - 1000}};
		CHECK_OK(wait_for(lane.device, marks[i % BLOCKS], &error));
		pattern(block, BLOCK, (uint64_t)i);
		memcpy(want[i], block, BLOCK);
		CHECK_OK(ops->copy(lane.device, lane.queue, marks[i % BLOCKS], copies, 2, &error));
	}
	for (int i = 0; i < BLOCKS; i++) {
		CHECK_OK(wait_for(lane.device, marks[i], &error));
		ops->mark_destroy(lane.device, marks[i]);
	}
	CHECK_OK(ops->read(lane.device, at, got, sizeof got, &error));
	CHECK(memcmp(got, want, sizeof got) == 0);
	ops->free(lane.device, at, sizeof want);
	lane_drop(&lane);
	CHECK_NOTHING_HELD();
}

/* Holds copies behind a gate on the caller's stream; the source is read only after it opens, which
 * is also what makes a block that is used too early show. */
static void
after_waits(struct CUctx_st *context, struct CUstream_st *stream)
{
	struct onehop_error error = {0};
	struct gate gate = GATE;
	struct lane lane;
	char got[4096];
	int done = 1;
	uint64_t at;
	CHECK_OK(lane_make(&lane, sizeof got, &error));
	CHECK_OK(ops->alloc(lane.device, sizeof got, &at, &error));
	struct oh_copy copy = {at, lane.ring, sizeof got};
	memset(lane.ring, 1, sizeof got);
	CHECK_EQ(extra.host_func(stream, gate_pass, &gate), 0);
	CHECK_OK(ops->queue_after(lane.device, lane.queue, handle_of(stream), &error));
	CHECK(current_context() == context);
	CHECK_OK(ops->copy(lane.device, lane.queue, lane.mark, &copy, 1, &error));
	fake.quiet();
	onehop_status polled = ops->poll(lane.device, lane.mark, &done, &error);
	memset(lane.ring, 2, sizeof got);
	gate_open(&gate);
	CHECK_OK(polled);
	CHECK_EQ(done, 0);
	CHECK_OK(wait_for(lane.device, lane.mark, &error));
	CHECK_OK(ops->read(lane.device, at, got, sizeof got, &error));
	CHECK(all_are(got, sizeof got, 2));
	CHECK_EQ(cu->stream_sync(stream), 0);
	ops->free(lane.device, at, sizeof got);
	lane_drop(&lane);
}

/* The caller's stream reads the bytes after it was joined, while the copies are held back. */
static void
join_orders(struct CUctx_st *context, struct CUstream_st *stream)
{
	struct onehop_error error = {0};
	struct gate gate = GATE;
	struct lane lane;
	char *got = malloc(4096);
	struct CUstream_st *held = stream_make(OH_CU_STREAM_NON_BLOCKING);
	uint64_t at;
	CHECK(got && held);
	CHECK_OK(lane_make(&lane, 4096, &error));
	CHECK_OK(ops->alloc(lane.device, 4096, &at, &error));
	CHECK_OK(ops->pin(lane.device, got, 4096, &error));
	struct oh_copy copy = {at, lane.ring, 4096};
	memset(lane.ring, 3, 4096);
	CHECK_EQ(extra.host_func(held, gate_pass, &gate), 0);
	CHECK_OK(ops->queue_after(lane.device, lane.queue, handle_of(held), &error));
	CHECK_OK(ops->copy(lane.device, lane.queue, lane.mark, &copy, 1, &error));
	CHECK_OK(ops->queue_join(lane.device, lane.queue, handle_of(stream), &error));
	CHECK(current_context() == context);
	CHECK_EQ(cu->copy_out(got, at, 4096, stream), 0);
	fake.quiet();
	oh_cu_result pending = extra.stream_query(stream);
	gate_open(&gate);
	CHECK_EQ(pending, OH_CU_ERROR_NOT_READY);
	CHECK_EQ(cu->stream_sync(stream), 0);
	CHECK(all_are(got, 4096, 3));
	CHECK_OK(wait_for(lane.device, lane.mark, &error));
	CHECK_EQ(cu->stream_destroy(held), 0);
	ops->unpin(lane.device, got, 4096);
	ops->free(lane.device, at, 4096);
	lane_drop(&lane);
	free(got);
}

/* Runs a case with the primary context current, as a framework has it. */
static void
with_primary(unsigned int flags, int legacy, void (*run)(struct CUctx_st *, struct CUstream_st *))
{
	struct CUctx_st *context, *popped;
	CHECK_EQ(cu->primary_retain(&context, 0), 0);
	CHECK_EQ(cu->ctx_push(context), 0);
	struct CUstream_st *stream = legacy ? NULL : stream_make(flags);
	run(context, stream);
	if (stream)
		CHECK_EQ(cu->stream_destroy(stream), 0);
	CHECK_EQ(cu->ctx_pop(&popped), 0);
	CHECK(popped == context);
	CHECK_EQ(cu->primary_release(0), 0);
	if (!test_failed)
		CHECK_NOTHING_HELD();
}

TEST(copies_wait_for_the_callers_stream)
{
	with_primary(0, 0, after_waits);
	with_primary(OH_CU_STREAM_NON_BLOCKING, 0, after_waits);
}

TEST(copies_wait_for_the_legacy_stream_when_told_to)
{
	with_primary(0, 1, after_waits);
}

TEST(the_callers_stream_sees_the_bytes_after_a_join)
{
	with_primary(0, 0, join_orders);
	with_primary(OH_CU_STREAM_NON_BLOCKING, 0, join_orders);
}

TEST(the_legacy_stream_sees_the_bytes_after_a_join)
{
	with_primary(0, 1, join_orders);
}

TEST(copies_do_not_wait_for_the_legacy_stream_unless_told_to)
{
	struct onehop_error error = {0};
	struct gate gate = GATE;
	struct lane lane;
	struct CUctx_st *context;
	int done = 0;
	uint64_t at;
	CHECK_OK(lane_make(&lane, 4096, &error));
	CHECK_OK(ops->alloc(lane.device, 4096, &at, &error));
	CHECK_EQ(cu->primary_retain(&context, 0), 0);
	CHECK_EQ(cu->ctx_push(context), 0);
	CHECK_EQ(extra.host_func(NULL, gate_pass, &gate), 0);
	struct oh_copy copy = {at, lane.ring, 4096};
	CHECK_OK(ops->copy(lane.device, lane.queue, lane.mark, &copy, 1, &error));
	fake.quiet();
	onehop_status polled = ops->poll(lane.device, lane.mark, &done, &error);
	gate_open(&gate);
	CHECK_OK(polled);
	CHECK_EQ(done, 1);
	CHECK_EQ(cu->stream_sync(NULL), 0);
	CHECK_EQ(cu->ctx_pop(&context), 0);
	CHECK_EQ(cu->primary_release(0), 0);
	ops->free(lane.device, at, 4096);
	lane_drop(&lane);
	CHECK_NOTHING_HELD();
}

static void
capture_refused(struct CUctx_st *context, struct CUstream_st *stream)
{
	struct onehop_error error = {0};
	struct CUgraph_st *graph;
	struct lane lane;
	(void)context;
	CHECK_OK(lane_make(&lane, 4096, &error));
	CHECK_EQ(extra.capture_begin(stream, 2), 0);
	CHECK_FAILS(ops->queue_after(lane.device, lane.queue, handle_of(stream), &error),
		    ONEHOP_UNSUPPORTED);
	CHECK_HOLDS(error.message, "captured into a graph");
	CHECK_FAILS(ops->queue_join(lane.device, lane.queue, handle_of(stream), &error),
		    ONEHOP_UNSUPPORTED);
	CHECK_EQ(extra.capture_end(stream, &graph), 0);
	CHECK_EQ(extra.graph_destroy(graph), 0);
	CHECK_OK(ops->queue_after(lane.device, lane.queue, handle_of(stream), &error));
	lane_drop(&lane);
}

TEST(a_stream_that_is_being_captured_is_refused)
{
	with_primary(0, 0, capture_refused);
}

/* In the global mode, any thread's asking for an event would invalidate it. */
static void
capture_left_alone(struct CUctx_st *context, struct CUstream_st *stream)
{
	struct onehop_error error = {0};
	struct CUgraph_st *graph;
	struct lane lane;
	unsigned int mode = 1;
	(void)context;
	CHECK_EQ(cu->capture_mode(&mode), 0);
	CHECK_EQ(mode, 0);
	CHECK_EQ(extra.capture_begin(stream, 0), 0);
	CHECK_OK(lane_make(&lane, PIECES * PIECE_MOST, &error));
	copy_many(&lane);
	lane_drop(&lane);
	CHECK_EQ(cu->capture_mode(&mode), 0);
	CHECK_EQ(mode, 1); /* as the thread had it */
	CHECK_EQ(extra.capture_end(stream, &graph), 0);
	CHECK_EQ(extra.graph_destroy(graph), 0);
}

TEST(a_stream_that_is_captured_is_left_alone_by_work_on_others)
{
	if (cu->capture_mode)
		with_primary(0, 0, capture_left_alone);
}

/* Nothing was copied through it, so there is nothing to wait for. */
static void
queue_goes(struct CUctx_st *context, struct CUstream_st *stream)
{
	struct onehop_error error = {0};
	struct gate gate = GATE;
	struct oh_device *device;
	struct oh_queue *queue;
	struct oh_mark *mark;
	(void)context;
	CHECK_OK(ops->open(0, &device, &error));
	CHECK_OK(ops->queue_create(device, &queue, &error));
	CHECK_OK(ops->mark_create(device, &mark, &error));
	CHECK_EQ(extra.host_func(stream, gate_pass, &gate), 0);
	CHECK_OK(ops->queue_after(device, queue, handle_of(stream), &error));
	CHECK_OK(ops->copy(device, queue, mark, NULL, 0, &error));
	ops->mark_destroy(device, mark);
	ops->queue_destroy(device, queue);
	CHECK_EQ(extra.stream_query(stream), OH_CU_ERROR_NOT_READY);
	gate_open(&gate);
	CHECK_EQ(cu->stream_sync(stream), 0);
	ops->close(device);
}

TEST(a_queue_that_waits_for_a_held_stream_goes_at_once)
{
	with_primary(0, 0, queue_goes);
}

/* The last of the copies fails; the others are under way, and their source is used again. */
TEST(a_copy_that_fails_leaves_its_source_free)
{
	struct onehop_error error = {0};
	struct lane lane;
	static char got[65536];
	uint64_t at;
	CHECK_OK(lane_make(&lane, sizeof got, &error));
	CHECK_OK(ops->alloc(lane.device, sizeof got, &at, &error));
	struct oh_copy copies[3] = {{at, lane.ring, 32768},
				    {at + 32768, lane.ring + 32768, 32768},
				    {at + 65535, lane.ring, 2}};
	fake.batch(0);
	for (int i = 0; i < 20; i++) {
		memset(lane.ring, i, sizeof got);
		CHECK_FAILS(ops->copy(lane.device, lane.queue, lane.mark, copies, 3, &error),
			    ONEHOP_DRIVER);
		CHECK_EQ(error.driver_code, OH_CU_ERROR_INVALID_VALUE);
		CHECK_HOLDS(error.message, "3 copies to cuda:0 failed");
		memset(lane.ring, 0x77, sizeof got);
		CHECK_OK(ops->read(lane.device, at, got, sizeof got, &error));
		CHECK(all_are(got, sizeof got, (unsigned char)i));
	}
	fake.batch(1);
	ops->free(lane.device, at, sizeof got);
	lane_drop(&lane);
	CHECK_NOTHING_HELD();
}

int
main(int argc, char **argv)
{
	return backend_main(argc, argv);
}
