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
	CHECK_EQ(runs.at[0].bytes, 200);
	CHECK_EQ(place[1] - place[0], 150);
	CHECK_EQ(place[2] - place[0], 160);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(runs.at[i].place % 4096, runs.at[i].offset % 4096);
	CHECK(runs.at[1].place >= runs.at[0].place + 200);
	CHECK(runs.at[1].place < runs.at[0].place + 200 + 4096);
	CHECK_EQ(runs.end, runs.at[2].place + 9);
	free(runs.at);
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
