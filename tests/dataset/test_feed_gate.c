/* A feed and the consumer's stream, against the look-alike driver: a buffer that is released behind a
 * stream is filled again only when what the stream held then is done.
 */
#include "../driver/backend.h"

#include "shards.h"

static struct onehop_error error;
/* Enough for whatever ends at all. */
#define SOON UINT64_C(20000000000)

static const struct recipe recipe = {
	.shards = 2, .samples = 100, .fields = 1, .bytes = {4000}};

struct world {
	struct CUctx_st *context;
	struct CUstream_st *stream;
	struct onehop_runtime *runtime;
	struct onehop_dataset *dataset;
	struct onehop_order *order;
	struct onehop_feed *feed;
};

static void
begin_with(struct world *w, const char *name, const struct onehop_feed_options *options)
{
	struct onehop_order_options order;
	const char *folder = make_shards(name, &recipe);
	CHECK_EQ(cu->primary_retain(&w->context, 0), OH_CU_SUCCESS);
	CHECK_EQ(cu->ctx_push(w->context), OH_CU_SUCCESS);
	w->stream = stream_make(OH_CU_STREAM_NON_BLOCKING);
	CHECK(w->stream != NULL);
	CHECK_OK(onehop_runtime_create(NULL, &w->runtime, &error));
	CHECK_OK(onehop_dataset_open(w->runtime, &folder, 1, &w->dataset, &error));
	onehop_order_options_init(&order);
	order.batch = 10;
	CHECK_OK(onehop_order_create(w->dataset, &order, &w->order, &error));
	CHECK_OK(onehop_feed_create(w->dataset, w->order, options, &w->feed, &error));
}

static struct onehop_feed_options
small_feed(void)
{
	struct onehop_feed_options options;
	onehop_feed_options_init(&options);
	options.device = "cuda:0";
	options.groups = 2;
	options.ring_bytes = 256 << 10;
	return options;
}

static void
begin(struct world *w, const char *name)
{
	struct onehop_feed_options options = small_feed();
	begin_with(w, name, &options);
}

static void
end(struct world *w)
{
	struct CUctx_st *popped;
	onehop_feed_destroy(w->feed);
	onehop_order_destroy(w->order);
	onehop_dataset_close(w->dataset);
	onehop_runtime_destroy(w->runtime);
	CHECK_EQ(cu->stream_destroy(w->stream), 0);
	CHECK_EQ(cu->ctx_pop(&popped), 0);
	CHECK_EQ(cu->primary_release(0), 0);
	CHECK_NOTHING_HELD();
}

/* Where a group's payloads are, for after its release. */
struct places {
	struct onehop_buffer *buffer;
	uint64_t rows;
	uint64_t samples[200];
	uint64_t offsets[200];
};

static struct places
places_of(const struct onehop_group *group)
{
	struct places p = {.buffer = group->device_buffer, .rows = group->rows};
	memcpy(p.samples, group->samples, group->rows * sizeof *p.samples);
	memcpy(p.offsets, group->offsets, group->rows * sizeof *p.offsets);
	return p;
}

static void
check_right(const struct places *p)
{
	static uint8_t bytes[4000];
	for (uint64_t row = 0; row < p->rows; row++) {
		CHECK_OK(onehop_buffer_read(p->buffer, p->offsets[row], bytes, sizeof bytes, &error));
		for (uint64_t i = 0; i < sizeof bytes; i++)
			CHECK_EQ(bytes[i], payload(p->samples[row], 0, i));
	}
}

static void
check_group(const struct onehop_group *group)
{
	struct places p = places_of(group);
	check_right(&p);
}

static void
hold(struct world *w, struct gate *gate)
{
	CHECK_EQ(extra.host_func(w->stream, gate_pass, gate), 0);
}

TEST(a_buffer_is_not_filled_again_while_the_stream_still_reads_it)
{
	static struct gate gate = GATE;
	struct world w = {0};
	struct onehop_group first = {.size = sizeof first}, next = {.size = sizeof next};
	begin(&w, "held");
	CHECK_OK(onehop_feed_next(w.feed, SOON, &first, &error));
	struct places held = places_of(&first);
	hold(&w, &gate);
	CHECK_OK(onehop_feed_release(w.feed, first.slot, ONEHOP_START_AFTER_STREAM,
				     handle_of(w.stream), &error));
	/* The other buffer goes round meanwhile, but no group comes past the one that is held. */
	CHECK_OK(onehop_feed_next(w.feed, SOON, &next, &error));
	check_group(&next);
	fake.quiet();
	check_right(&held);
	CHECK_OK(onehop_feed_release(w.feed, next.slot, 0, 0, &error));
	CHECK_EQ(onehop_feed_next(w.feed, 50000000, &next, &error), ONEHOP_TIMED_OUT);
	fake.quiet();
	check_right(&held);
	gate_open(&gate);
	uint64_t groups = 2;
	while (!onehop_feed_next(w.feed, SOON, &next, &error)) {
		check_group(&next);
		groups++;
		CHECK_OK(onehop_feed_release(w.feed, next.slot, ONEHOP_START_AFTER_STREAM,
					     handle_of(w.stream), &error));
	}
	CHECK_EQ(error.status, ONEHOP_END);
	CHECK(groups > 4);
	end(&w);
}

/* The driver gives memory back only when streams are done, so the gate is opened first. */
TEST(a_feed_that_waits_for_a_stream_can_be_destroyed)
{
	static struct gate gate = GATE;
	struct world w = {0};
	struct onehop_group group = {.size = sizeof group};
	begin(&w, "given-up");
	hold(&w, &gate);
	for (int i = 0; i < 2; i++) {
		CHECK_OK(onehop_feed_next(w.feed, SOON, &group, &error));
		CHECK_OK(onehop_feed_release(w.feed, group.slot, ONEHOP_START_AFTER_STREAM,
					     handle_of(w.stream), &error));
	}
	gate_open(&gate);
	onehop_feed_destroy(w.feed);
	w.feed = NULL;
	end(&w);
}

/* All of it, given back at once. */
static uint64_t
drain(struct world *w)
{
	struct onehop_group group = {.size = sizeof group};
	uint64_t groups = 0;
	for (; !onehop_feed_next(w->feed, SOON, &group, &error); groups++)
		if (onehop_feed_release(w->feed, group.slot, 0, 0, &error))
			break;
	return error.status == ONEHOP_END ? groups : 0;
}

/* A group is less than what is read back at once. */
TEST(verifying_reads_each_group_back_by_one_copy)
{
	struct world w = {0};
	struct onehop_feed_options options = small_feed();
	options.verify = 1;
	begin_with(&w, "verified", &options);
	uint64_t before = (uint64_t)fake.calls("cuMemcpyDtoHAsync_v2");
	/* Some groups may have been verified by now. */
	uint64_t groups = drain(&w);
	CHECK(groups > 4);
	CHECK((uint64_t)fake.calls("cuMemcpyDtoHAsync_v2") - before <= groups);
	CHECK((uint64_t)fake.calls("cuMemcpyDtoHAsync_v2") >= groups);
	end(&w);
}

TEST(host_buffers_that_cannot_be_pinned_are_used_all_the_same_and_the_reason_is_kept)
{
	static const struct onehop_feed_field on_host = {0, 1};
	struct world w = {0};
	struct onehop_feed_info info = {.size = sizeof info};
	struct onehop_feed_options options = small_feed();
	options.fields = &on_host;
	options.field_count = 1;
	options.verify = 1;
	fake.fail("cuMemHostRegister_v2:1:2");
	begin_with(&w, "unpinned", &options);
	CHECK_EQ(fake.fail(NULL), 1);
	CHECK(drain(&w) > 4);
	CHECK_OK(onehop_feed_query(w.feed, &info));
	CHECK(info.host_bytes > 0);
	CHECK_EQ(info.host_pinned_bytes, 0);
	CHECK_HOLDS(info.unpinned, "cannot be pinned");
	end(&w);
}

/* Too little is left of the limit for places to read back into: then it is done without. */
TEST(a_limit_on_pinned_memory_slows_verifying_down_and_is_told)
{
	struct world w = {0};
	struct onehop_feed_info info = {.size = sizeof info};
	struct onehop_feed_options options = small_feed();
	options.verify = 1;
	setenv("ONEHOP_PINNED_LIMIT_BYTES", "262144", 1);
	setenv("ONEHOP_BLOCK_BYTES", "65536", 1);
	setenv("ONEHOP_SLICE_BYTES", "65536", 1);
	begin_with(&w, "limited", &options);
	unsetenv("ONEHOP_PINNED_LIMIT_BYTES");
	unsetenv("ONEHOP_BLOCK_BYTES");
	unsetenv("ONEHOP_SLICE_BYTES");
	CHECK(drain(&w) > 4);
	CHECK_OK(onehop_feed_query(w.feed, &info));
	CHECK_HOLDS(info.unpinned, "pinned_limit_bytes");
	end(&w);
}

int
main(int argc, char **argv)
{
	return backend_main(argc, argv);
}
