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
begin(struct world *w, const char *name)
{
	struct onehop_order_options order;
	struct onehop_feed_options options;
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
	onehop_feed_options_init(&options);
	options.device = "cuda:0";
	options.groups = 2;
	options.ring_bytes = 256 << 10;
	CHECK_OK(onehop_feed_create(w->dataset, w->order, &options, &w->feed, &error));
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

int
main(int argc, char **argv)
{
	return backend_main(argc, argv);
}
