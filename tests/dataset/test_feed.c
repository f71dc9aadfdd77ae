/* The feed, over each device (TEST_DEVICE): every payload of every batch where it is said to be, in
 * the order's order, whatever the buffers' size; and how it ends, fails and is given up.
 */
#include "shards.h"

#include "dataset/dataset.h"
#include "dataset/order.h"

#include <pthread.h>
#include <sys/wait.h>

#define MIB (UINT64_C(1) << 20)

static const char *device;
static struct onehop_error error;

/* A dataset, an order and a feed. */
struct world {
	const struct recipe *recipe;
	const char *folder;
	struct onehop_runtime *runtime;
	struct onehop_dataset *dataset;
	struct onehop_order_options order_options;
	struct onehop_feed_options options;
	struct onehop_order *order;
	struct onehop_feed *feed;
	uint64_t rows; /* that were checked */
};

/* Small: in a short test many groups, windows and blocks. */
static void
begin(struct world *w, const char *name, const struct recipe *recipe)
{
	*w = (struct world){.recipe = recipe, .folder = make_shards(name, recipe)};
	CHECK_OK(onehop_runtime_create(NULL, &w->runtime, &error));
	CHECK_OK(onehop_dataset_open(w->runtime, &w->folder, 1, &w->dataset, &error));
	onehop_order_options_init(&w->order_options);
	w->order_options.batch = 8;
	w->order_options.lanes = 4;
	w->order_options.block_bytes = 32 << 10;
	w->order_options.window_bytes = 256 << 10;
	onehop_feed_options_init(&w->options);
	w->options.device = device;
}

static onehop_status
start(struct world *w)
{
	onehop_status status =
		onehop_order_create(w->dataset, &w->order_options, &w->order, &error);
	return status ? status
		      : onehop_feed_create(w->dataset, w->order, &w->options, &w->feed, &error);
}

static void
end_feed(struct world *w)
{
	onehop_feed_destroy(w->feed);
	onehop_order_destroy(w->order);
	w->feed = NULL;
	w->order = NULL;
	w->rows = 0;
}

static void
end(struct world *w)
{
	end_feed(w);
	onehop_dataset_close(w->dataset);
	onehop_runtime_destroy(w->runtime);
}

/* The field of the group's cell, in the dataset's numbers, and its buffer. */
static uint32_t
field_of(const struct world *w, uint64_t index)
{
	return w->options.field_count ? w->options.fields[index].field : (uint32_t)index;
}

/* What lies in a group's buffers, read back once: all payloads of a side. */
static uint8_t *landed[2];
static uint64_t landed_room[2];

static int
side_of(const struct world *w, uint64_t index)
{
	return w->options.field_count && w->options.fields[index].on_host;
}

static void
read_back(const struct world *w, const struct onehop_group *group, uint64_t fields)
{
	uint64_t ends[2] = {0};
	for (uint64_t cell = 0; cell < fields * group->rows; cell++) {
		int side = side_of(w, cell / group->rows);
		uint64_t end = group->offsets[cell] + group->bytes[cell];
		if (group->bytes[cell] != UINT64_MAX && end > ends[side])
			ends[side] = end;
	}
	for (int side = 0; side < 2; side++) {
		struct onehop_buffer *buffer = side ? group->host_buffer : group->device_buffer;
		if (ends[side] > landed_room[side]) {
			landed[side] = realloc(landed[side], ends[side]);
			need(landed[side] != NULL, "realloc");
			landed_room[side] = ends[side];
		}
		if (ends[side])
			CHECK_OK(onehop_buffer_read(buffer, 0, landed[side], ends[side], &error));
	}
}

static void
check_cell(const struct world *w, const struct onehop_group *group, uint64_t index, uint64_t row)
{
	uint32_t field = field_of(w, index);
	uint64_t cell = index * group->rows + row, sample = group->samples[row];
	uint64_t count = payload_bytes(w->recipe, sample, field);
	CHECK_EQ(group->bytes[cell], count);
	if (count == UINT64_MAX)
		return;
	const uint8_t *bytes = landed[side_of(w, index)] + group->offsets[cell];
	for (uint64_t i = 0; i < count; i++)
		CHECK_EQ(bytes[i], payload(sample, field, i));
}

/* All of a group, held against the order. */
static void
check_group(struct world *w, const struct onehop_order *order, const struct onehop_group *group)
{
	static uint64_t samples[1 << 16];
	static uint8_t pad[1 << 16];
	uint64_t fields = w->options.field_count ? w->options.field_count : w->recipe->fields;
	uint64_t first = group->first_batch * order->batch;
	CHECK(group->rows > 0 && group->rows <= 1 << 16);
	CHECK_OK(onehop_order_rows(order, first, group->rows, samples, pad));
	read_back(w, group, fields);
	for (uint64_t row = 0; row < group->rows && !test_failed; row++) {
		CHECK_EQ(group->samples[row], samples[row]);
		CHECK_EQ(group->pad[row], pad[row]);
		for (uint64_t i = 0; i < fields; i++)
			check_cell(w, group, i, row);
	}
	w->rows += group->rows;
}

/* To the end, one group at a time. */
static void
drain(struct world *w)
{
	struct onehop_group group = {.size = sizeof group};
	onehop_status status;
	uint64_t batch = 0;
	while (!(status = onehop_feed_next(w->feed, ONEHOP_FOREVER, &group, &error))) {
		CHECK_EQ(group.first_batch, batch);
		batch += group.batches;
		check_group(w, w->order, &group);
		CHECK_OK(onehop_feed_release(w->feed, group.slot, 0, 0, &error));
	}
	if (status != ONEHOP_END)
		printf("# %s\n", error.message);
	CHECK_EQ(status, ONEHOP_END);
	CHECK_EQ(w->rows, w->order->info.rows);
	CHECK_EQ(batch, w->order->info.batches);
	CHECK_EQ(onehop_feed_next(w->feed, 0, &group, &error), ONEHOP_END);
}

static const struct recipe plain = {.shards = 4, .samples = 120, .fields = 3,
				    .bytes = {5000, 4, 900}, .vary = 3000, .skip = 9};

TEST(every_payload_of_every_batch_is_where_it_is_said_to_be)
{
	struct world w;
	begin(&w, "plain", &plain);
	for (uint32_t shuffle = 0; shuffle <= ONEHOP_SHUFFLE_SAMPLE && !test_failed; shuffle++) {
		for (uint32_t remainder = 0; remainder <= ONEHOP_REMAINDER_UNEVEN; remainder++) {
			w.order_options.shuffle = shuffle;
			w.order_options.remainder = remainder;
			w.order_options.batch = 7;
			w.order_options.world = 2;
			w.order_options.rank = 1;
			w.options.ring_bytes = MIB;
			CHECK_OK(start(&w));
			drain(&w);
			end_feed(&w);
		}
	}
	end(&w);
}

TEST(buffers_of_any_size_and_number_give_the_same)
{
	static const uint64_t rings[] = {0, 190 << 10, 500 << 10}; /* of each group */
	struct world w;
	begin(&w, "sizes", &plain);
	for (uint32_t groups = 1; groups <= 4; groups++) {
		for (int i = 0; i < 3 && !test_failed; i++) {
			w.options.groups = groups;
			w.options.ring_bytes = rings[i] * groups;
			w.options.gap_bytes = i == 2 ? 0 : 64 << 10;
			CHECK_OK(start(&w));
			drain(&w);
			end_feed(&w);
		}
	}
	end(&w);
}

TEST(chosen_fields_go_to_their_sides)
{
	static const struct onehop_feed_field fields[] = {{2, 1}, {0, 0}};
	struct world w;
	struct onehop_feed_info info = {.size = sizeof info};
	begin(&w, "fields", &plain);
	w.options.fields = fields;
	for (uint64_t count = 1; count <= 2 && !test_failed; count++) {
		w.options.field_count = count;
		w.options.ring_bytes = MIB;
		w.options.verify = 1;
		CHECK_OK(start(&w));
		drain(&w);
		CHECK_OK(onehop_feed_query(w.feed, &info));
		CHECK(info.device_bytes + info.host_bytes <= MIB);
		CHECK(info.host_bytes > 0);
		CHECK_EQ(info.device_bytes > 0, count == 2);
		end_feed(&w);
	}
	end(&w);
}

TEST(epochs_that_are_appended_follow)
{
	struct world w;
	struct onehop_group group = {.size = sizeof group};
	struct onehop_order *orders[4];
	uint64_t rows[4] = {0}, gone = 0;
	begin(&w, "append", &plain);
	w.options.ring_bytes = MIB;
	CHECK_OK(start(&w));
	orders[0] = w.order;
	for (uint64_t epoch = 1; epoch < 4; epoch++) {
		w.order_options.epoch = epoch;
		w.order_options.start = epoch == 2 ? 480 : 0; /* one that is empty */
		CHECK_OK(onehop_order_create(w.dataset, &w.order_options, &orders[epoch], &error));
	}
	CHECK_OK(onehop_feed_append(w.feed, orders[1], &error));
	CHECK_OK(onehop_feed_append(w.feed, orders[2], &error));
	for (int late = 0; late < 2; late++) {
		while (!onehop_feed_next(w.feed, ONEHOP_FOREVER, &group, &error)) {
			CHECK(group.order < 4);
			CHECK_EQ(group.first_batch * 8, rows[group.order]);
			/* Those before it are not needed any more. */
			for (; gone < group.order; gone++) {
				onehop_order_destroy(orders[gone]);
				orders[gone] = NULL;
			}
			check_group(&w, orders[group.order], &group);
			rows[group.order] += group.rows;
			CHECK_OK(onehop_feed_release(w.feed, group.slot, 0, 0, &error));
		}
		CHECK_EQ(error.status, ONEHOP_END);
		/* Also after the end. */
		if (!late)
			CHECK_OK(onehop_feed_append(w.feed, orders[3], &error));
	}
	CHECK_EQ(rows[0], 480);
	CHECK_EQ(rows[1], 480);
	CHECK_EQ(rows[2], 0);
	CHECK_EQ(rows[3], 480);
	CHECK_EQ(gone, 3);
	w.order = orders[3];
	end(&w);
}

TEST(groups_are_given_until_all_buffers_are_out)
{
	struct world w;
	struct onehop_group group[4] = {
		{.size = sizeof *group}, {.size = sizeof *group}, {.size = sizeof *group},
		{.size = sizeof *group}};
	struct onehop_feed_info info = {.size = sizeof info};
	begin(&w, "out", &plain);
	w.options.ring_bytes = 600 << 10;
	CHECK_OK(start(&w));
	for (int i = 0; i < 3; i++)
		CHECK_OK(onehop_feed_next(w.feed, ONEHOP_FOREVER, &group[i], &error));
	CHECK_EQ(onehop_feed_next(w.feed, ONEHOP_FOREVER, &group[3], &error), ONEHOP_BUSY);
	CHECK_HOLDS(error.message, "all 3 buffers");
	/* What is out stays as it is while nothing is released. */
	for (int i = 0; i < 3; i++)
		check_group(&w, w.order, &group[i]);
	CHECK_OK(onehop_feed_release(w.feed, group[1].slot, 0, 0, &error));
	CHECK_EQ(onehop_feed_next(w.feed, ONEHOP_FOREVER, &group[3], &error), ONEHOP_BUSY);
	CHECK_EQ(onehop_feed_release(w.feed, group[1].slot, 0, 0, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(onehop_feed_release(w.feed, 3, 0, 0, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(onehop_feed_release(w.feed, group[0].slot, 8, 0, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_OK(onehop_feed_release(w.feed, group[0].slot, 0, 0, &error));
	for (int i = 0; i < 2; i++) {
		CHECK_OK(onehop_feed_next(w.feed, ONEHOP_FOREVER, &group[3], &error));
		check_group(&w, w.order, &group[3]);
	}
	CHECK_OK(onehop_feed_query(w.feed, &info));
	CHECK(info.idle_ns > 0);
	end(&w);
}

TEST(an_order_of_nothing_ends_at_once)
{
	struct world w;
	struct onehop_group group = {.size = sizeof group};
	begin(&w, "nothing", &plain);
	w.order_options.batch = 481;
	CHECK_OK(start(&w));
	CHECK_EQ(onehop_feed_next(w.feed, ONEHOP_FOREVER, &group, &error), ONEHOP_END);
	end(&w);
}

TEST(payloads_of_no_bytes_are_fed_too)
{
	static const struct recipe empty = {.shards = 1, .samples = 30, .fields = 2, .bytes = {0, 0}};
	struct world w;
	begin(&w, "empty", &empty);
	w.options.verify = 1;
	CHECK_OK(start(&w));
	drain(&w);
	end(&w);
}

TEST(host_buffers_are_pinned_for_a_gpu_and_counted)
{
	static const struct onehop_feed_field fields[] = {{0, 1}, {1, 0}, {2, 1}};
	struct world w;
	struct onehop_feed_info info = {.size = sizeof info};
	struct onehop_runtime_info machine = {.size = sizeof machine};
	begin(&w, "pinned", &plain);
	w.options.fields = fields;
	w.options.field_count = 3;
	w.options.verify = 1;
	CHECK_OK(start(&w));
	CHECK_OK(onehop_feed_query(w.feed, &info));
	CHECK(info.host_bytes > 0);
	CHECK_EQ(info.host_pinned_bytes, strcmp(device, "host") ? info.host_bytes : 0);
	CHECK_STR(info.unpinned, "");
	CHECK_OK(onehop_runtime_query(w.runtime, &machine));
	CHECK_EQ(machine.buffer_pinned_bytes, info.host_pinned_bytes);
	drain(&w);
	end_feed(&w);
	CHECK_OK(onehop_runtime_query(w.runtime, &machine));
	CHECK_EQ(machine.buffer_pinned_bytes, 0);
	end(&w);
}

TEST(a_small_dataset_takes_small_buffers)
{
	struct world w;
	struct onehop_feed_info info = {.size = sizeof info};
	struct onehop_shard shard = {.size = sizeof shard};
	uint64_t all = 0;
	begin(&w, "small", &plain);
	for (uint64_t i = 0; i < 4; i++) {
		CHECK_OK(onehop_dataset_shard_at(w.dataset, i, &shard));
		all += shard.bytes + 4096;
	}
	CHECK_OK(start(&w));
	CHECK_OK(onehop_feed_query(w.feed, &info));
	CHECK_EQ(info.groups, 3);
	CHECK(info.device_bytes <= 3 * all);
	end(&w);
}

TEST(a_batch_that_no_buffer_can_hold_is_refused_with_both_figures)
{
	struct world w;
	begin(&w, "limit", &plain);
	w.order_options.batch = 100;
	w.options.ring_bytes = 600 << 10;
	CHECK_EQ(start(&w), ONEHOP_LIMIT);
	CHECK_HOLDS(error.message, "ring_bytes (614400)");
	CHECK_HOLDS(error.remedy, "raise ring_bytes");
	onehop_order_destroy(w.order);
	/* The buffers of another order are too small as well. */
	w.order_options.batch = 8;
	CHECK_OK(start(&w));
	struct onehop_order *large;
	w.order_options.batch = 100;
	CHECK_OK(onehop_order_create(w.dataset, &w.order_options, &large, &error));
	CHECK_EQ(onehop_feed_append(w.feed, large, &error), ONEHOP_LIMIT);
	drain(&w);
	onehop_order_destroy(large);
	end(&w);
}

/* Many rows are planned in pieces by several threads. */
TEST(groups_of_many_rows_are_right_however_many_threads_plan_them)
{
	static const struct recipe tiny = {.shards = 3, .samples = 14000, .fields = 2,
					   .bytes = {16, 2}, .vary = 9, .skip = 5};
	struct world w;
	begin(&w, "tiny", &tiny);
	w.order_options.lanes = 16;
	w.order_options.window_bytes = 1 << 20;
	for (uint32_t cores = 1; cores <= 16; cores *= 16) {
		w.dataset->cores = cores;
		w.order_options.batch = 100;
		CHECK_OK(start(&w));
		struct onehop_group group = {.size = sizeof group};
		CHECK_OK(onehop_feed_next(w.feed, ONEHOP_FOREVER, &group, &error));
		CHECK(group.rows > 32768);
		CHECK_OK(onehop_feed_release(w.feed, group.slot, 0, 0, &error));
		end_feed(&w);
		CHECK_OK(start(&w));
		drain(&w);
		end_feed(&w);
	}
	end(&w);
}

/* ---- damage */

/* Flips a bit of a payload, whose shard then is as long and as old as before. */
static void
damage(struct world *w, uint64_t sample, uint64_t index)
{
	struct onehop_part part = {.size = sizeof part};
	struct onehop_shard shard = {.size = sizeof shard};
	CHECK_OK(onehop_dataset_part_at(w->dataset, sample, index, &part));
	CHECK_OK(onehop_dataset_shard_at(w->dataset, part.shard, &shard));
	FILE *f = fopen(shard.path, "r+");
	need(f != NULL, "fopen");
	fseek(f, (long)(part.offset + part.bytes - 1), SEEK_SET);
	int byte = fgetc(f);
	fseek(f, -1, SEEK_CUR);
	fputc(byte ^ 4, f);
	fclose(f);
}

static void
reopen(struct world *w)
{
	onehop_dataset_close(w->dataset);
	CHECK_OK(onehop_dataset_open(w->runtime, &w->folder, 1, &w->dataset, &error));
}

TEST(damage_is_refused_with_shard_offset_and_key_after_what_came_before)
{
	struct world w;
	struct onehop_group group = {.size = sizeof group};
	struct onehop_part part = {.size = sizeof part};
	char offset[64];
	onehop_status status;
	begin(&w, "damage", &plain);
	damage(&w, 300, 2);
	reopen(&w);
	w.order_options.shuffle = ONEHOP_SHUFFLE_NONE;
	w.options.verify = 1;
	w.options.ring_bytes = 600 << 10;
	CHECK_OK(start(&w));
	while (!(status = onehop_feed_next(w.feed, ONEHOP_FOREVER, &group, &error))) {
		check_group(&w, w.order, &group);
		CHECK_OK(onehop_feed_release(w.feed, group.slot, 0, 0, &error));
	}
	CHECK_EQ(status, ONEHOP_MISMATCH);
	CHECK(w.rows > 200 && w.rows <= 300);
	CHECK_OK(onehop_dataset_part_at(w.dataset, 300, 2, &part));
	snprintf(offset, sizeof offset, "at offset %llu", (unsigned long long)part.offset);
	CHECK_HOLDS(error.message, "0002.tar");
	CHECK_HOLDS(error.message, "s000300");
	CHECK_HOLDS(error.message, "state.npy");
	CHECK_HOLDS(error.message, offset);
	/* Each time. */
	CHECK_EQ(onehop_feed_next(w.feed, 0, &group, &error), ONEHOP_MISMATCH);
	end(&w);
}

TEST(damaged_samples_are_skipped_and_counted_by_option)
{
	struct world w;
	struct onehop_group group = {.size = sizeof group};
	struct onehop_feed_info info = {.size = sizeof info};
	uint64_t rows = 0, skipped = 0;
	begin(&w, "skip", &plain);
	damage(&w, 7, 0);
	damage(&w, 7, 2);
	damage(&w, 301, 1);
	reopen(&w);
	w.options.verify = 1;
	w.options.damage = ONEHOP_DAMAGE_SKIP;
	w.options.ring_bytes = MIB;
	CHECK_OK(start(&w));
	while (!onehop_feed_next(w.feed, ONEHOP_FOREVER, &group, &error)) {
		read_back(&w, &group, 3);
		for (uint64_t row = 0; row < group.rows; row++) {
			int bad = group.samples[row] == UINT64_MAX;
			CHECK(group.samples[row] != 7 && group.samples[row] != 301);
			for (uint64_t i = 0; i < 3; i++) {
				if (bad)
					CHECK_EQ(group.bytes[i * group.rows + row], UINT64_MAX);
				else
					check_cell(&w, &group, i, row);
			}
			skipped += (uint64_t)bad;
		}
		rows += group.rows;
		CHECK_OK(onehop_feed_release(w.feed, group.slot, 0, 0, &error));
	}
	CHECK_EQ(error.status, ONEHOP_END);
	CHECK_EQ(rows, 480);
	CHECK_EQ(skipped, 2);
	CHECK_OK(onehop_feed_query(w.feed, &info));
	CHECK_EQ(info.damaged, 2);
	CHECK_EQ(info.rows, 480);
	end(&w);
}

/* Payloads that are verified in several pieces by several threads, beside small ones. */
static const struct recipe large = {.shards = 2, .samples = 10, .fields = 3,
				    .bytes = {1500000, 300, 90000}, .vary = 900000};

TEST(payloads_that_are_torn_between_threads_are_verified_whole)
{
	struct world w;
	struct onehop_group group = {.size = sizeof group};
	struct onehop_feed_field fields[3] = {{0, 0}, {1, 1}, {2, 1}};
	begin(&w, "torn", &large);
	w.dataset->cores = 5;
	w.order_options.batch = 4;
	w.options.verify = 1;
	w.options.fields = fields;
	w.options.field_count = 3;
	for (uint32_t on_host = 0; on_host < 2; on_host++) {
		fields[0].on_host = on_host;
		CHECK_OK(start(&w));
		drain(&w);
		end_feed(&w);
	}
	damage(&w, 15, 0);
	damage(&w, 13, 0);
	damage(&w, 14, 1);
	reopen(&w);
	w.dataset->cores = 5;
	w.order_options.shuffle = ONEHOP_SHUFFLE_NONE;
	for (uint32_t round = 0; round < 4; round++) {
		fields[0].on_host = round & 1;
		onehop_status status;
		CHECK_OK(start(&w));
		while (!(status = onehop_feed_next(w.feed, ONEHOP_FOREVER, &group, &error)))
			CHECK_OK(onehop_feed_release(w.feed, group.slot, 0, 0, &error));
		CHECK_EQ(status, ONEHOP_MISMATCH);
		CHECK_HOLDS(error.message, "sample \"s000013\", field \"jpg\"");
		end_feed(&w);
	}
	struct onehop_feed_info info = {.size = sizeof info};
	w.options.damage = ONEHOP_DAMAGE_SKIP;
	CHECK_OK(start(&w));
	while (!onehop_feed_next(w.feed, ONEHOP_FOREVER, &group, &error))
		CHECK_OK(onehop_feed_release(w.feed, group.slot, 0, 0, &error));
	CHECK_OK(onehop_feed_query(w.feed, &info));
	CHECK_EQ(info.damaged, 3);
	end(&w);
}

/* Samples of a list that has them several times lie in a group once. */
TEST(samples_that_are_there_several_times_are_verified_each_time)
{
	static uint64_t list[200];
	struct world w;
	struct onehop_group group = {.size = sizeof group};
	struct onehop_feed_info info = {.size = sizeof info};
	begin(&w, "repeats", &plain);
	for (uint64_t i = 0; i < 200; i++)
		list[i] = 90 + i % 31;
	damage(&w, 100, 0);
	reopen(&w);
	w.order_options.samples = list;
	w.order_options.sample_count = 200;
	w.options.verify = 1;
	w.options.damage = ONEHOP_DAMAGE_SKIP;
	CHECK_OK(start(&w));
	uint64_t rows = 0, skipped = 0;
	while (!onehop_feed_next(w.feed, ONEHOP_FOREVER, &group, &error)) {
		for (uint64_t row = 0; row < group.rows; row++)
			skipped += group.samples[row] == UINT64_MAX;
		rows += group.rows;
		CHECK_OK(onehop_feed_release(w.feed, group.slot, 0, 0, &error));
	}
	CHECK_EQ(error.status, ONEHOP_END);
	CHECK_EQ(rows, 200);
	CHECK_EQ(skipped, 7);
	CHECK_OK(onehop_feed_query(w.feed, &info));
	CHECK_EQ(info.damaged, 7);
	end(&w);
}

TEST(verifying_without_checksums_is_refused)
{
	struct recipe recipe = plain;
	struct world w;
	recipe.no_checksums = 1;
	begin(&w, "unsummed", &recipe);
	w.options.verify = 1;
	CHECK_EQ(start(&w), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "0000.tar");
	CHECK_HOLDS(error.message, "no checksums");
	end(&w);
}

TEST(a_shard_that_shrinks_is_an_error_that_names_the_sample)
{
	struct world w;
	struct onehop_group group = {.size = sizeof group};
	struct onehop_part part = {.size = sizeof part};
	struct onehop_shard shard = {.size = sizeof shard};
	onehop_status status;
	begin(&w, "shrunk", &plain);
	w.order_options.shuffle = ONEHOP_SHUFFLE_NONE;
	w.options.ring_bytes = 600 << 10;
	CHECK_OK(onehop_dataset_part_at(w.dataset, 470, 0, &part));
	CHECK_OK(onehop_dataset_shard_at(w.dataset, part.shard, &shard));
	CHECK_EQ(truncate(shard.path, (off_t)part.offset + 1), 0);
	CHECK_OK(start(&w));
	while (!(status = onehop_feed_next(w.feed, ONEHOP_FOREVER, &group, &error)))
		CHECK_OK(onehop_feed_release(w.feed, group.slot, 0, 0, &error));
	CHECK_EQ(status, ONEHOP_FILE_CHANGED);
	CHECK_HOLDS(error.message, "0003.tar");
	end(&w);
}

/* ---- options, ends */

TEST(options_that_make_no_sense_are_refused)
{
	static const struct onehop_feed_field twice[] = {{1, 0}, {1, 1}}, beyond[] = {{3, 0}};
	struct world w;
	begin(&w, "options", &plain);
	struct onehop_feed_options good = w.options;
	CHECK_OK(onehop_order_create(w.dataset, &w.order_options, &w.order, &error));
#define REFUSED(change, status, holds)                                                             \
	do {                                                                                       \
		struct onehop_feed_options bad = good;                                             \
		change;                                                                            \
		CHECK_EQ(onehop_feed_create(w.dataset, w.order, &bad, &w.feed, &error), status);   \
		CHECK(w.feed == NULL);                                                             \
		CHECK_HOLDS(error.message, holds);                                                 \
	} while (0)
	REFUSED(bad.groups = 0, ONEHOP_INVALID_ARGUMENT, "a feed of 0 groups");
	REFUSED(bad.groups = 65, ONEHOP_INVALID_ARGUMENT, "a feed of 65 groups");
	REFUSED((bad.fields = twice, bad.field_count = 2), ONEHOP_INVALID_ARGUMENT, "named twice");
	REFUSED((bad.fields = beyond, bad.field_count = 1), ONEHOP_OUT_OF_RANGE, "field 3");
	REFUSED(bad.damage = 2, ONEHOP_INVALID_ARGUMENT, "no damage 2");
	REFUSED(bad.flags = 2, ONEHOP_INVALID_ARGUMENT, "start flags 0x2");
	REFUSED(bad.device = "cuda:77", ONEHOP_NO_DEVICE, "");
	REFUSED(bad.device = "tpu", ONEHOP_INVALID_ARGUMENT, "tpu");
	end(&w);
}

TEST(a_stream_to_wait_for_is_taken_on_a_gpu_and_refused_on_the_host)
{
	struct world w;
	struct onehop_group group = {.size = sizeof group};
	int host = strcmp(device, "host") == 0;
	begin(&w, "stream", &plain);
	w.options.ring_bytes = MIB;
	w.options.flags = ONEHOP_START_AFTER_STREAM;
	CHECK_EQ(start(&w), host ? ONEHOP_INVALID_ARGUMENT : ONEHOP_OK);
	if (host) {
		onehop_order_destroy(w.order);
		w.options.flags = 0;
		CHECK_OK(start(&w));
	}
	while (!onehop_feed_next(w.feed, ONEHOP_FOREVER, &group, &error)) {
		check_group(&w, w.order, &group);
		onehop_status status = onehop_feed_release(
			w.feed, group.slot, ONEHOP_START_AFTER_STREAM, 0, &error);
		CHECK_EQ(status, host ? ONEHOP_INVALID_ARGUMENT : ONEHOP_OK);
		if (host)
			CHECK_OK(onehop_feed_release(w.feed, group.slot, 0, 0, &error));
	}
	CHECK_EQ(error.status, ONEHOP_END);
	CHECK_EQ(w.rows, 480);
	end(&w);
}

TEST(a_feed_is_destroyed_at_any_moment)
{
	struct world w;
	struct onehop_group group = {.size = sizeof group};
	uint64_t seed = random_seed(30);
	struct random r = random_init(seed);
	begin(&w, "any", &plain);
	for (int i = 0; i < 60 && !test_failed; i++) {
		w.options.ring_bytes = random_below(&r, 2) ? MIB : 750 << 10;
		w.options.verify = (uint32_t)random_below(&r, 2);
		w.options.groups = 1 + (uint32_t)random_below(&r, 4);
		CHECK_OK(start(&w));
		uint64_t steps = random_below(&r, 6);
		for (uint64_t k = 0; k < steps; k++) {
			uint64_t timeout = random_below(&r, 2) ? 0 : ONEHOP_FOREVER;
			if (!onehop_feed_next(w.feed, timeout, &group, &error) && random_below(&r, 3))
				CHECK_OK(onehop_feed_release(w.feed, group.slot, 0, 0, &error));
		}
		end_feed(&w);
	}
	if (test_failed)
		printf("# TEST_SEED=%llu\n", (unsigned long long)seed);
	end(&w);
}

static void *
ask(void *argument)
{
	struct onehop_feed_info info = {.size = sizeof info};
	uint64_t rows = 0;
	while (rows < 480 && !onehop_feed_query(argument, &info)) {
		if (info.rows < rows)
			return argument; /* they went back */
		rows = info.rows;
	}
	return NULL;
}

TEST(another_thread_may_ask_how_it_goes)
{
	struct world w;
	pthread_t thread;
	void *said = &thread;
	begin(&w, "ask", &plain);
	w.options.ring_bytes = MIB;
	CHECK_OK(start(&w));
	CHECK_EQ(pthread_create(&thread, NULL, ask, w.feed), 0);
	drain(&w);
	pthread_join(thread, &said);
	CHECK(said == NULL);
	end(&w);
}

TEST(a_forked_child_is_told_so)
{
	struct world w;
	struct onehop_group group = {.size = sizeof group};
	int how = 0;
	begin(&w, "fork", &plain);
	CHECK_OK(start(&w));
	pid_t child = fork();
	if (child == 0) {
		int wrong = onehop_feed_next(w.feed, 0, &group, &error) != ONEHOP_FORKED;
		wrong |= onehop_feed_release(w.feed, 0, 0, 0, &error) != ONEHOP_FORKED;
		onehop_feed_destroy(w.feed);
		onehop_dataset_close(w.dataset);
		_exit(wrong);
	}
	CHECK(child > 0 && waitpid(child, &how, 0) == child);
	CHECK_EQ(how, 0);
	drain(&w);
	end(&w);
}

int
main(int argc, char **argv)
{
	device = getenv("TEST_DEVICE");
	if (!device)
		device = "host";
	return test_main(argc, argv);
}
