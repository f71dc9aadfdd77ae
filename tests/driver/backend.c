/* The CUDA back end against the look-alike driver: memory, copies, and their order with the
 * caller's streams. Contexts and failures are in backend_context.c. */
#include "backend.h"

#include "base/sys.h"

#include <sys/wait.h>
#include <unistd.h>

TEST(a_device_describes_itself)
{
	struct onehop_error error = {0};
	struct onehop_device_info info = {.size = sizeof info};
	struct oh_device *device;
	CHECK(ops->count() >= 2);
	CHECK_OK(ops->open(1, &device, &error));
	CHECK_OK(ops->describe(device, &info, &error));
	CHECK_STR(info.name, "Look-alike GPU");
	CHECK_STR(info.uuid, "GPU-01ababab-abab-abab-abab-abababababab");
	CHECK_STR(info.pci, "0000:0b:00.0");
	CHECK_HOLDS(info.driver, "CUDA 1");
	CHECK_EQ(info.pointer_bits, 64);
	CHECK_EQ(info.size, sizeof info);
	CHECK(info.total_bytes >= (uint64_t)1 << 20 && info.free_bytes == info.total_bytes);
	CHECK_EQ(info.batch_copy, cu->batch_13 || cu->batch_12);
	ops->close(device);
	CHECK_NOTHING_HELD();
}

TEST(a_device_that_is_not_there_is_refused_with_the_number_of_devices)
{
	struct onehop_error error = {0};
	struct oh_device *device = NULL;
	CHECK_FAILS(ops->open(99, &device, &error), ONEHOP_NO_DEVICE);
	CHECK_HOLDS(error.message, "no device cuda:99: the driver shows 2 devices");
	CHECK(!device);
	CHECK_NOTHING_HELD();
}

TEST(memory_is_allocated_checked_and_freed)
{
	struct onehop_error error = {0};
	struct oh_device *device;
	struct oh_memory_facts facts;
	uint64_t at = 1, none = 1;
	CHECK_OK(ops->open(0, &device, &error));
	ops->facts(device, &facts);
	CHECK_OK(ops->alloc(device, 100000, &at, &error));
	CHECK_OK(ops->alloc(device, 0, &none, &error));
	CHECK_EQ(none, 0);
	CHECK(at && at % facts.alignment == 0);
	CHECK_OK(ops->check(device, at, 100000, &error));
	CHECK_OK(ops->check(device, at + 99999, 1, &error));
	CHECK_OK(ops->check(device, at + 5, 0, &error));
	CHECK_FAILS(ops->check(device, at + 1, 100000, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "100000 bytes at 0x");
	CHECK_HOLDS(error.message, "of 100000 bytes");
	CHECK_FAILS(ops->check(device, at, UINT64_MAX, &error), ONEHOP_INVALID_ARGUMENT);
	ops->free(device, at, 100000);
	ops->free(device, none, 0);
	CHECK_FAILS(ops->check(device, at, 1, &error), ONEHOP_INVALID_ARGUMENT);
	ops->close(device);
	CHECK_NOTHING_HELD();
}

TEST(host_memory_is_no_device_memory_pinned_or_not)
{
	struct onehop_error error = {0};
	struct lane lane;
	char local = 0;
	CHECK_OK(lane_make(&lane, 8192, &error));
	CHECK_FAILS(ops->check(lane.device, (uintptr_t)&local, 1, &error),
		    ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "no memory that CUDA knows");
	CHECK_FAILS(ops->check(lane.device, (uintptr_t)lane.ring, 1, &error),
		    ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "pinned host memory");
	CHECK_HOLDS(error.remedy, "cuda:0");
	lane_drop(&lane);
	CHECK_NOTHING_HELD();
}

TEST(memory_of_another_device_is_told_apart)
{
	struct onehop_error error = {0};
	struct oh_device *first, *second;
	uint64_t at;
	CHECK_OK(ops->open(0, &first, &error));
	CHECK_OK(ops->open(1, &second, &error));
	CHECK_OK(ops->alloc(second, 4096, &at, &error));
	CHECK_OK(ops->check(second, at, 4096, &error));
	CHECK_FAILS(ops->check(first, at, 4096, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "is memory of cuda:1, not of cuda:0");
	ops->free(second, at, 4096);
	ops->close(second);
	ops->close(first);
	CHECK_NOTHING_HELD();
}

TEST(memory_of_a_pool_is_good_though_it_has_no_context)
{
	struct onehop_error error = {0};
	struct lane lane;
	oh_cu_address at;
	struct CUctx_st *context = (struct CUctx_st *)&at;
	CHECK_OK(lane_make(&lane, 4096, &error));
	CHECK_EQ(cu->primary_retain(&context, 0), 0);
	CHECK_EQ(cu->ctx_push(context), 0);
	CHECK_EQ(extra.pool_alloc(&at, 4096, NULL), 0);
	CHECK_EQ(cu->pointer_attribute(&context, OH_CU_POINTER_CONTEXT, at), 0);
	CHECK(!context);
	CHECK_OK(ops->check(lane.device, at, 4096, &error));
	CHECK_FAILS(ops->check(lane.device, at, 4097, &error), ONEHOP_INVALID_ARGUMENT);
	struct oh_copy copy = {at, lane.ring, 4096};
	CHECK_OK(ops->copy(lane.device, lane.queue, lane.mark, &copy, 1, &error));
	CHECK_OK(wait_for(lane.device, lane.mark, &error));
	CHECK_EQ(extra.pool_free(at, NULL), 0);
	CHECK_EQ(cu->ctx_pop(&context), 0);
	CHECK_EQ(cu->primary_release(0), 0);
	lane_drop(&lane);
	CHECK_NOTHING_HELD();
}

enum { MAPPED_PIECE = 2 << 20 };

/* Reserves three pieces of address space and maps memory into the first two. */
static void
map_two_of_three(oh_cu_address *at)
{
	struct extra_memory properties = {.type = 1, .location = {1, 0}};
	struct extra_access access = {{1, 0}, 3};
	unsigned long long handle;
	CHECK_EQ(extra.range_reserve(at, 3 * MAPPED_PIECE, 0, 0, 0), 0);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(extra.memory_create(&handle, MAPPED_PIECE,
					     (struct CUmemAllocationProp_st *)&properties, 0),
			 0);
		CHECK_EQ(extra.memory_map(*at + (unsigned)i * MAPPED_PIECE, MAPPED_PIECE, 0,
					  handle, 0),
			 0);
		CHECK_EQ(extra.memory_release(handle), 0);
	}
	CHECK_EQ(extra.memory_access(*at, 2 * MAPPED_PIECE, (struct CUmemAccessDesc_st *)&access,
				     1),
		 0);
}

TEST(memory_that_was_mapped_in_pieces_is_one_range)
{
	struct onehop_error error = {0};
	struct oh_device *device;
	oh_cu_address at = 0;
	CHECK_OK(ops->open(0, &device, &error));
	map_two_of_three(&at);
	CHECK(at);
	CHECK_OK(ops->check(device, at, MAPPED_PIECE, &error));
	CHECK_OK(ops->check(device, at + 100, 2 * MAPPED_PIECE - 100, &error));
	CHECK_FAILS(ops->check(device, at + 100, 2 * MAPPED_PIECE, &error),
		    ONEHOP_INVALID_ARGUMENT);
	CHECK_FAILS(ops->check(device, at + 2 * MAPPED_PIECE, 1, &error),
		    ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(extra.memory_unmap(at, 2 * MAPPED_PIECE), 0);
	CHECK_EQ(extra.range_free(at, 3 * MAPPED_PIECE), 0);
	ops->close(device);
	CHECK_NOTHING_HELD();
}

TEST(too_little_device_memory_is_told_with_the_numbers)
{
	struct onehop_error error = {0};
	struct onehop_device_info info = {.size = sizeof info};
	struct oh_device *device;
	uint64_t at = 77;
	char total[32];
	CHECK_OK(ops->open(0, &device, &error));
	CHECK_OK(ops->describe(device, &info, &error));
	CHECK_FAILS(ops->alloc(device, info.total_bytes + 1, &at, &error),
		    ONEHOP_NO_DEVICE_MEMORY);
	snprintf(total, sizeof total, "its %" PRIu64 " are free", info.total_bytes);
	CHECK_HOLDS(error.message, total);
	CHECK_HOLDS(error.message, "CUDA_ERROR_OUT_OF_MEMORY");
	CHECK_EQ(error.driver_code, OH_CU_ERROR_OUT_OF_MEMORY);
	CHECK(error.remedy[0]);
	CHECK_EQ(at, 77);
	ops->close(device);
	CHECK_NOTHING_HELD();
}

TEST(what_is_filled_is_read_back)
{
	struct onehop_error error = {0};
	struct oh_device *device;
	const uint64_t bytes = 300001;
	char *got = calloc(1, bytes);
	uint64_t at;
	CHECK(got);
	CHECK_OK(ops->open(0, &device, &error));
	CHECK_OK(ops->alloc(device, bytes, &at, &error));
	CHECK_OK(ops->fill(device, at, bytes, 0x5A, &error));
	CHECK_OK(ops->fill(device, at + 7, 1, 0x11, &error));
	CHECK_OK(ops->fill(device, at, 0, 0x22, &error));
	CHECK_OK(ops->read(device, at, got, bytes, &error));
	CHECK(all_are(got, 7, 0x5A) && got[7] == 0x11 && all_are(got + 8, bytes - 8, 0x5A));
	CHECK_FAILS(ops->read(device, at + 1, got, bytes, &error), ONEHOP_DRIVER);
	CHECK_EQ(error.driver_code, OH_CU_ERROR_INVALID_VALUE);
	CHECK_FAILS(ops->fill(device, at + 1, bytes, 0, &error), ONEHOP_DRIVER);
	ops->free(device, at, bytes);
	ops->close(device);
	free(got);
	CHECK_NOTHING_HELD();
}

/* The look-alike itself: without this, code that touches device memory would go unseen. */
TEST(the_cpu_cannot_touch_device_memory)
{
	struct onehop_error error = {0};
	struct oh_device *device;
	uint64_t at;
	int status = 0;
	CHECK_OK(ops->open(0, &device, &error));
	CHECK_OK(ops->alloc(device, 4096, &at, &error));
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		if (!freopen("/dev/null", "w", stderr))
			_exit(0);
		*(volatile char *)(uintptr_t)at = 1;
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
	ops->free(device, at, 4096);
	ops->close(device);
	CHECK_NOTHING_HELD();
}

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

static int
no_limit(int resource, struct rlimit *limit)
{
	(void)resource;
	*limit = (struct rlimit){RLIM_INFINITY, RLIM_INFINITY};
	return 0;
}

static int
small_limit(int resource, struct rlimit *limit)
{
	*limit = (struct rlimit){resource == RLIMIT_MEMLOCK ? 8192 : RLIM_INFINITY, RLIM_INFINITY};
	return 0;
}

TEST(memory_that_cannot_be_pinned_is_told_from_a_limit_on_it)
{
	struct onehop_error error = {0};
	struct oh_device *device;
	struct oh_sys real = oh_sys;
	static char memory[65536];
	CHECK_OK(ops->open(0, &device, &error));
	oh_sys.getrlimit = no_limit;
	fake.fail("cuMemHostRegister_v2:1");
	CHECK_FAILS(ops->pin(device, memory, sizeof memory, &error), ONEHOP_NO_MEMORY);
	CHECK_HOLDS(error.message, "65536 bytes of host memory cannot be pinned");
	oh_sys.getrlimit = small_limit;
	fake.fail("cuMemHostRegister_v2:1");
	CHECK_FAILS(ops->pin(device, memory, sizeof memory, &error), ONEHOP_LIMIT);
	CHECK_HOLDS(error.remedy, "8192 bytes");
	oh_sys = real;
	fake.fail(NULL);
	CHECK_OK(ops->pin(device, memory, 0, &error));
	CHECK_OK(ops->pin(device, memory, sizeof memory, &error));
	CHECK_FAILS(ops->pin(device, memory, sizeof memory, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED");
	ops->unpin(device, memory, 0);
	ops->unpin(device, memory, sizeof memory);
	ops->close(device);
	CHECK_NOTHING_HELD();
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
