/* Ranges: sorted, merged, placed and fetched. */
#include "shards.h"

#include "dataset/dataset.h"
#include "dataset/fetch.h"
#include "dataset/sort.h"

static struct onehop_error error;
static struct onehop_runtime *runtime;
static struct onehop_dataset *dataset;
static const struct recipe recipe = {
	.shards = 3, .samples = 50, .fields = 2, .bytes = {3000, 10}, .vary = 4000};

static void
open_shards(void)
{
	const char *folder = make_shards("fetch", &recipe);
	CHECK_EQ(onehop_runtime_create(NULL, &runtime, &error), ONEHOP_OK);
	CHECK_EQ(onehop_dataset_open(runtime, &folder, 1, &dataset, &error), ONEHOP_OK);
}

static void
close_shards(void)
{
	onehop_dataset_close(dataset);
	onehop_runtime_destroy(runtime);
	dataset = NULL;
}

/* ---- sort */

static int
by_key(const void *a, const void *b)
{
	const struct oh_sort_item *x = a, *y = b;
	if (x->key != y->key)
		return x->key < y->key ? -1 : 1;
	return x->index < y->index ? -1 : x->index > y->index;
}

TEST(items_are_sorted_and_equal_ones_keep_their_order)
{
	static struct oh_sort_item items[2 * 5000], want[5000];
	uint64_t seed = random_seed(1);
	struct random r = random_init(seed);
	for (int round = 0; round < 200; round++) {
		uint64_t count = random_below(&r, 5000), bits = random_below(&r, 65);
		uint64_t base = random_next(&r) >> 1;
		for (uint64_t i = 0; i < count; i++) {
			uint64_t key = bits ? random_next(&r) >> (64 - bits) : 0;
			items[i] = (struct oh_sort_item){bits < 63 ? base + key : key, i};
		}
		memcpy(want, items, count * sizeof *items);
		qsort(want, count, sizeof *want, by_key);
		const struct oh_sort_item *got = oh_sort(items, items + 5000, count);
		if (memcmp(got, want, count * sizeof *got) != 0)
			printf("# TEST_SEED=%llu, round %d\n", (unsigned long long)seed, round);
		CHECK(memcmp(got, want, count * sizeof *got) == 0);
	}
}

/* ---- runs */

TEST(ranges_within_the_gap_are_one_run_and_keep_their_place_in_a_page)
{
	struct oh_runs runs = {.gap = 100};
	uint64_t place[5];
	CHECK_EQ(oh_runs_add(&runs, 0, 5000, 50, &place[0]), 0);
	CHECK_EQ(oh_runs_add(&runs, 0, 5150, 50, &place[1]), 0); /* a gap of 100 */
	CHECK_EQ(oh_runs_add(&runs, 0, 5160, 10, &place[2]), 0); /* inside */
	CHECK_EQ(oh_runs_add(&runs, 0, 5301, 9, &place[3]), 0);  /* of 101 */
	CHECK_EQ(oh_runs_add(&runs, 1, 5301, 9, &place[4]), 0);  /* another shard */
	CHECK_EQ(runs.count, 3);
	CHECK_EQ(runs.at[0].row_bytes, 200);
	CHECK_EQ(place[1] - place[0], 150);
	CHECK_EQ(place[2] - place[0], 160);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(runs.at[i].place % 4096, runs.at[i].offset % 4096);
	CHECK(runs.at[1].place >= runs.at[0].place + 200);
	CHECK(runs.at[1].place < runs.at[0].place + 200 + 4096);
	CHECK_EQ(runs.end, runs.at[2].place + 9);
	free(runs.at);
}

/* Ranges of a recipe: count of bytes each, stride apart from an offset on. */
static void
add_ranges(struct oh_runs *runs, uint64_t offset, uint64_t count, uint64_t bytes, uint64_t stride,
	   uint64_t *places)
{
	for (uint64_t i = 0; i < count; i++)
		CHECK_EQ(oh_runs_add(runs, 0, offset + i * stride, bytes, &places[i]), 0);
}

TEST(equal_ranges_at_a_stride_are_rows_that_land_side_by_side)
{
	struct oh_runs runs = {.gap = 32 << 10, .rows = 1};
	uint64_t places[300], again;
	add_ranges(&runs, 4096, 100, 4096, 8192, places);
	/* The first ones are read with their gaps: a stride has to be seen. */
	CHECK_EQ(runs.count, 2);
	CHECK_EQ(runs.at[0].rows, 1);
	CHECK_EQ(runs.at[1].rows, 100 - OH_ROWS_ALIKE - 1);
	CHECK_EQ(runs.at[1].row_bytes, 4096);
	CHECK_EQ(runs.at[1].row_stride, 8192);
	CHECK_EQ(oh_run_span(&runs.at[1]), (runs.at[1].rows - 1) * 8192 + 4096);
	for (uint64_t i = OH_ROWS_ALIKE + 2; i < 100; i++)
		CHECK_EQ(places[i] - places[i - 1], 4096);
	/* The last one once more. */
	CHECK_EQ(oh_runs_add(&runs, 0, 4096 + 99 * 8192, 4096, &again), 0);
	CHECK_EQ(again, places[99]);
	/* After a hole it is known at once. */
	add_ranges(&runs, 4 << 20, 100, 4096, 8192, places);
	CHECK_EQ(runs.count, 3);
	CHECK_EQ(runs.at[2].rows, 100);
	CHECK_EQ(runs.end, runs.at[2].place + 100 * 4096);
	free(runs.at);
}

TEST(what_rows_would_not_make_smaller_or_would_misplace_is_read_with_its_gaps)
{
	static const struct {
		uint64_t bytes, stride;
	} each[] = {{4096, 4608}, {4096, 4096}, {1000, 1536}, {51200, 53248}, {0, 512}};
	for (size_t k = 0; k < sizeof each / sizeof each[0]; k++) {
		struct oh_runs runs = {.gap = 8 << 20, .rows = 1};
		uint64_t places[50];
		add_ranges(&runs, 512, 50, each[k].bytes, each[k].stride, places);
		CHECK_EQ(runs.count, 1);
		CHECK_EQ(runs.at[0].rows, 1);
		CHECK_EQ(runs.at[0].row_bytes, 49 * each[k].stride + each[k].bytes);
		free(runs.at);
	}
	/* Nor are there rows from one end of a shard to the other. */
	struct oh_runs far = {.rows = 1};
	uint64_t places[50];
	add_ranges(&far, 512, 50, 64, 4 << 20, places);
	CHECK_EQ(far.count, 50);
	free(far.at);
}

TEST(fields_that_lie_side_by_side_are_one_run_whatever_their_strides)
{
	struct oh_runs runs = {.gap = 32 << 10, .rows = 1};
	uint64_t place;
	for (uint64_t i = 0; i < 100; i++) {
		CHECK_EQ(oh_runs_add(&runs, 0, i * 27648 + 4096, 4096, &place), 0);
		CHECK_EQ(oh_runs_add(&runs, 0, i * 27648 + 12288, 64, &place), 0);
		/* So few alike say nothing. */
		for (uint64_t k = 16; k < 16 + OH_ROWS_ALIKE; k++)
			CHECK_EQ(oh_runs_add(&runs, 0, i * 27648 + k * 1024, 512, &place), 0);
	}
	CHECK_EQ(runs.count, 1);
	free(runs.at);
}

TEST(much_is_not_read_over_for_little_where_a_link_is_crossed)
{
	static const struct {
		uint64_t bytes, gap, limit;
		int rows;
		uint64_t runs;
	} each[] = {{64, 8192, 32768, 1, 1},     {64, 8193, 32768, 1, 2},  {64, 8193, 32768, 0, 1},
		    {8192, 16384, 32768, 1, 1},  {8192, 16385, 32768, 1, 2},
		    {51200, 32768, 32768, 1, 1}, {51200, 32769, 32768, 1, 2}, {64, 513, 512, 1, 2}};
	for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) {
		struct oh_runs runs = {.gap = each[i].limit, .rows = each[i].rows};
		uint64_t place;
		CHECK_EQ(oh_runs_add(&runs, 0, 512, each[i].bytes, &place), 0);
		CHECK_EQ(oh_runs_add(&runs, 0, 512 + each[i].bytes + each[i].gap, each[i].bytes,
				     &place),
			 0);
		CHECK_EQ(runs.count, each[i].runs);
		free(runs.at);
	}
}

/* Where the bytes of the range would come from. 0: from elsewhere. */
static int
holds_range(const struct oh_runs *runs, uint64_t shard, uint64_t offset, uint64_t bytes,
	    uint64_t place)
{
	for (uint64_t i = 0; i < runs->count; i++) {
		const struct oh_run *run = &runs->at[i];
		uint64_t at = place - run->place, row = run->row_bytes ? at / run->row_bytes : 0;
		if (place < run->place || at + bytes > oh_run_bytes(run))
			continue;
		if (run->rows == 1)
			row = 0;
		return run->shard == shard &&
		       offset == run->offset + row * run->row_stride + (at - row * run->row_bytes) &&
		       at - row * run->row_bytes + bytes <= run->row_bytes;
	}
	return 0;
}

TEST(random_ranges_are_in_a_run_at_their_place_and_no_two_runs_overlap)
{
	uint64_t seed = random_seed(5), with_rows = 0;
	struct random r = random_init(seed);
	for (int round = 0; round < 3000 && !test_failed; round++) {
		struct oh_runs runs = {.gap = random_below(&r, 3) * 5000, .rows = 1,
				       .end = random_below(&r, 9000)};
		uint64_t first = runs.end, offset = 0, end = runs.end;
		struct { uint64_t shard, offset, bytes, place; } ranges_of[200];
		uint64_t count = 1 + random_below(&r, 200), unit = UINT64_C(64) << random_below(&r, 7);
		uint64_t bytes = unit, stride = unit * 2, shard = 0;
		for (uint64_t i = 0; i < count; i++) {
			uint64_t dice = random_below(&r, 40);
			if (dice == 0)
				bytes = random_below(&r, 3) * unit;
			else if (dice == 1)
				stride = random_below(&r, 5) * unit + random_below(&r, 2) * 7;
			else if (dice == 2)
				offset += random_below(&r, 100000);
			else if (dice == 3 && shard < 3)
				shard++, offset = 0;
			ranges_of[i].shard = shard;
			ranges_of[i].offset = offset;
			ranges_of[i].bytes = bytes;
			CHECK_EQ(oh_runs_add(&runs, shard, offset, bytes, &ranges_of[i].place), 0);
			offset += stride;
		}
		for (uint64_t i = 0; i < runs.count; i++) {
			CHECK(runs.at[i].place >= end);
			CHECK_EQ(runs.at[i].place % 64, runs.at[i].offset % 64);
			end = runs.at[i].place + oh_run_bytes(&runs.at[i]);
			with_rows += runs.at[i].rows > 1;
		}
		CHECK_EQ(end, runs.count ? runs.end : first);
		for (uint64_t i = 0; i < count; i++) {
			CHECK_EQ(ranges_of[i].place % 64, ranges_of[i].offset % 64);
			if (ranges_of[i].bytes)
				CHECK(holds_range(&runs, ranges_of[i].shard, ranges_of[i].offset,
						  ranges_of[i].bytes, ranges_of[i].place));
		}
		free(runs.at);
	}
	if (test_failed)
		printf("# TEST_SEED=%llu\n", (unsigned long long)seed);
	CHECK(with_rows > 300);
}

/* ---- fetches */

#define MOST_RANGES 400
static struct onehop_range ranges[MOST_RANGES];
static uint64_t sample_of[MOST_RANGES], placed[MOST_RANGES];
static uint32_t field_of[MOST_RANGES];

static void
pick_ranges(struct random *r, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		struct onehop_part part = {.size = sizeof part};
		sample_of[i] = random_below(r, 150);
		CHECK_EQ(onehop_dataset_part_at(dataset, sample_of[i], random_below(r, 2), &part),
			 ONEHOP_OK);
		field_of[i] = part.field;
		ranges[i] = (struct onehop_range){part.shard, part.offset, part.bytes};
	}
}

static void
check_landed(struct onehop_buffer *buffer, uint64_t count)
{
	static uint8_t bytes[8192];
	for (uint64_t i = 0; i < count; i++) {
		CHECK_EQ(placed[i] % 4096, ranges[i].offset % 4096);
		CHECK_EQ(onehop_buffer_read(buffer, placed[i], bytes, ranges[i].bytes, &error),
			 ONEHOP_OK);
		for (uint64_t k = 0; k < ranges[i].bytes; k++)
			CHECK_EQ(bytes[k], payload(sample_of[i], field_of[i], k));
	}
}

TEST(random_ranges_land_where_they_were_placed)
{
	static const uint64_t gaps[] = {0, 600, 5000, UINT64_MAX};
	struct onehop_buffer *buffer;
	uint64_t seed = random_seed(2);
	struct random r = random_init(seed);
	open_shards();
	CHECK_EQ(onehop_buffer_alloc(runtime, "host", 8 << 20, &buffer, &error), ONEHOP_OK);
	for (int round = 0; round < 40 && !test_failed; round++) {
		struct onehop_completion completion = {.size = sizeof completion};
		struct onehop_fetch *fetch;
		uint64_t count = random_below(&r, MOST_RANGES), needed = 0;
		pick_ranges(&r, count);
		CHECK_EQ(onehop_fetch_create(dataset, ranges, count, gaps[round % 4], buffer, 12345,
					     placed, &needed, &fetch, &error),
			 ONEHOP_OK);
		CHECK(needed <= (8 << 20) - 12345);
		for (int again = 0; again < 2; again++) {
			onehop_buffer_fill(buffer, 0, 8 << 20, 0xA5, NULL);
			CHECK_EQ(onehop_fetch_start(fetch, NULL, &error), ONEHOP_OK);
			CHECK_EQ(onehop_fetch_wait(fetch, ONEHOP_FOREVER, &completion, &error),
				 ONEHOP_OK);
			check_landed(buffer, count);
		}
		CHECK(completion.bytes <= needed);
		onehop_fetch_destroy(fetch);
	}
	if (test_failed)
		printf("# TEST_SEED=%llu\n", (unsigned long long)seed);
	onehop_buffer_free(buffer);
	close_shards();
}

TEST(what_a_fetch_needs_is_told_without_a_buffer_and_when_it_is_too_small)
{
	struct onehop_buffer *buffer;
	struct onehop_fetch *fetch = NULL;
	struct random r = random_init(3);
	uint64_t needed = 0, again = 0;
	open_shards();
	pick_ranges(&r, 100);
	CHECK_EQ(onehop_fetch_create(dataset, ranges, 100, 0, NULL, 0, placed, &needed, NULL, &error),
		 ONEHOP_OK);
	CHECK(needed > 100000);
	CHECK_EQ(onehop_buffer_alloc(runtime, "host", needed - 1, &buffer, &error), ONEHOP_OK);
	CHECK_EQ(onehop_fetch_create(dataset, ranges, 100, 0, buffer, 0, placed, &again, &fetch,
				     &error),
		 ONEHOP_LIMIT);
	CHECK(fetch == NULL);
	CHECK_EQ(again, needed);
	CHECK_HOLDS(error.message, "bytes of a buffer");
	onehop_buffer_free(buffer);
	CHECK_EQ(onehop_buffer_alloc(runtime, "host", needed, &buffer, &error), ONEHOP_OK);
	CHECK_EQ(onehop_fetch_create(dataset, ranges, 100, 0, buffer, 0, placed, &again, &fetch,
				     &error),
		 ONEHOP_OK);
	onehop_fetch_destroy(fetch);
	onehop_buffer_free(buffer);
	close_shards();
}

TEST(ranges_outside_of_their_shard_are_refused_by_name)
{
	struct onehop_fetch *fetch = NULL;
	open_shards();
	ranges[0] = (struct onehop_range){3, 0, 1};
	CHECK_EQ(onehop_fetch_create(dataset, ranges, 1, 0, NULL, 0, placed, NULL, &fetch, &error),
		 ONEHOP_OUT_OF_RANGE);
	CHECK_HOLDS(error.message, "shard 3, and the dataset has 3");
	ranges[0] = (struct onehop_range){2, UINT64_MAX, 2};
	CHECK_EQ(onehop_fetch_create(dataset, ranges, 1, 0, NULL, 0, placed, NULL, &fetch, &error),
		 ONEHOP_OUT_OF_RANGE);
	CHECK_HOLDS(error.message, "0002.tar: range 0");
	close_shards();
}

TEST(a_shard_that_was_cut_is_an_error_that_names_the_sample)
{
	struct onehop_buffer *buffer;
	struct onehop_fetch *fetch;
	struct onehop_part part = {.size = sizeof part};
	struct onehop_shard shard = {.size = sizeof shard};
	open_shards();
	CHECK_EQ(onehop_dataset_part_at(dataset, 120, 0, &part), ONEHOP_OK);
	CHECK_EQ(onehop_dataset_shard_at(dataset, part.shard, &shard), ONEHOP_OK);
	CHECK_EQ(onehop_buffer_alloc(runtime, "host", 1 << 20, &buffer, &error), ONEHOP_OK);
	ranges[0] = (struct onehop_range){part.shard, 512, part.offset + part.bytes - 512};
	CHECK_EQ(onehop_fetch_create(dataset, ranges, 1, 0, buffer, 0, placed, NULL, &fetch, &error),
		 ONEHOP_OK);
	CHECK_EQ(truncate(shard.path, (off_t)part.offset + 5), 0);
	CHECK_EQ(onehop_fetch_start(fetch, NULL, &error), ONEHOP_OK);
	CHECK_EQ(onehop_fetch_wait(fetch, ONEHOP_FOREVER, NULL, &error), ONEHOP_FILE_CHANGED);
	CHECK_HOLDS(error.message, "0002.tar");
	CHECK_HOLDS(error.message, "s000120");
	onehop_fetch_destroy(fetch);
	onehop_buffer_free(buffer);
	close_shards();
}

TEST(many_small_ranges_in_any_order_are_merged)
{
	static struct onehop_range many[65536];
	static uint64_t places[65536];
	struct random r = random_init(4);
	uint64_t needed, size;
	open_shards();
	size = dataset->shards[0].view.shard_bytes;
	for (int i = 0; i < 65536; i++)
		many[i] = (struct onehop_range){random_below(&r, 3), random_below(&r, size - 16), 16};
	CHECK_EQ(onehop_fetch_create(dataset, many, 65536, 4096, NULL, 0, places, &needed, NULL,
				     &error),
		 ONEHOP_OK);
	/* All of each shard but its ends, once. */
	CHECK(needed <= 3 * size);
	close_shards();
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
