/* The order of an epoch: each sample once, equal steps on all ranks, resumed by any world, and the
 * same for good. Pure: samples lie where the test says.
 */
#include "harness.h"
#include "random.h"

#include "dataset/order.h"

/* Shards of `per` samples of `bytes` each. */
struct world {
	uint64_t per;
	uint64_t bytes;
	const uint64_t *samples; /* the list; NULL: all */
};

static void
spans(const void *context, uint64_t first, uint64_t count, struct oh_span *out)
{
	const struct world *w = context;
	for (uint64_t i = 0; i < count; i++) {
		uint64_t sample = w->samples ? w->samples[first + i] : first + i;
		out[i].shard = sample / w->per;
		out[i].begin = 512 + sample % w->per * (w->bytes + 512);
		out[i].end = out[i].begin + w->bytes;
	}
}

static struct onehop_order_options
options_of(uint32_t shuffle)
{
	struct onehop_order_options options;
	onehop_order_options_init(&options);
	options.shuffle = shuffle;
	options.block_bytes = 10000;
	options.window_bytes = 40000;
	return options;
}

static struct onehop_order *
build(const struct onehop_order_options *options, uint64_t count)
{
	static const struct world w = {100, 1000, NULL};
	struct world own = w;
	struct onehop_order *order = NULL;
	struct onehop_error error;
	own.samples = options->samples;
	if (oh_order_build(options, count, spans, &own, &order, &error))
		printf("# %s\n", error.message);
	return order;
}

/* All rows of an order into samples; how many. */
static uint64_t
rows_of(const struct onehop_order *order, uint64_t *samples, uint8_t *pad)
{
	uint64_t rows = order->info.rows;
	return onehop_order_rows(order, 0, rows, samples, pad) ? UINT64_MAX : rows;
}

/* ---- each sample once */

#define MOST 3000
static uint32_t seen[MOST];
static uint64_t samples[2 * MOST + 256 * 16];
static uint8_t pad[2 * MOST + 256 * 16];

static void
one_world(uint32_t shuffle, uint32_t remainder, uint64_t n, uint32_t world, uint64_t batch)
{
	uint64_t batches = UINT64_MAX, dropped = 0, padded = 0, marked = 0, once = 0, twice = 0;
	memset(seen, 0, sizeof seen);
	for (uint32_t rank = 0; rank < world; rank++) {
		struct onehop_order_options options = options_of(shuffle);
		options.remainder = remainder;
		options.rank = rank;
		options.world = world;
		options.batch = batch;
		options.seed = n * 31 + world;
		struct onehop_order *order = build(&options, n);
		CHECK(order != NULL);
		struct onehop_order_info info = {.size = sizeof info};
		onehop_order_query(order, &info);
		uint64_t rows = rows_of(order, samples, pad);
		CHECK_EQ(rows, info.rows);
		CHECK_EQ(info.samples, n);
		CHECK_EQ(info.batches, (rows + batch - 1) / batch);
		if (remainder != ONEHOP_REMAINDER_UNEVEN) {
			CHECK(batches == UINT64_MAX || batches == info.batches);
			CHECK_EQ(rows, info.batches * batch);
		} else {
			CHECK_EQ(rows, n / world + (rank < n % world));
		}
		batches = info.batches;
		dropped = info.dropped;
		padded = info.padded;
		for (uint64_t i = 0; i < rows; i++) {
			CHECK(samples[i] < n);
			marked += pad[i];
			seen[samples[i]] += !pad[i];
		}
		onehop_order_destroy(order);
	}
	for (uint64_t i = 0; i < n; i++) {
		once += seen[i] == 1;
		twice += seen[i] > 1;
	}
	CHECK_EQ(twice, 0);
	CHECK_EQ(n - once, dropped);
	CHECK_EQ(marked, padded);
	CHECK(remainder == ONEHOP_REMAINDER_DROP || dropped == 0);
	CHECK(remainder == ONEHOP_REMAINDER_PAD || padded == 0);
}

TEST(every_world_and_batch_gives_each_sample_once)
{
	static const uint64_t counts[] = {0, 1, 7, 16, 255, 1000};
	for (uint32_t shuffle = 0; shuffle <= ONEHOP_SHUFFLE_SAMPLE; shuffle++)
		for (uint32_t remainder = 0; remainder <= ONEHOP_REMAINDER_UNEVEN; remainder++)
			for (uint32_t world = 1; world <= 16; world++)
				for (uint64_t batch = 1; batch <= 16; batch++)
					for (int i = 0; i < 6 && !test_failed; i++)
						one_world(shuffle, remainder, counts[i], world,
							  batch);
}

TEST(what_pads_repeats_the_remaining_sequence_from_its_beginning)
{
	struct onehop_order_options options = options_of(ONEHOP_SHUFFLE_SAMPLE);
	options.remainder = ONEHOP_REMAINDER_UNEVEN;
	options.start = 90;
	struct onehop_order *whole = build(&options, 100);
	CHECK(whole != NULL);
	CHECK_EQ(rows_of(whole, samples, NULL), 10);
	options.remainder = ONEHOP_REMAINDER_PAD;
	options.batch = 64;
	struct onehop_order *padded = build(&options, 100);
	CHECK(padded != NULL);
	CHECK_EQ(rows_of(padded, samples + 10, pad), 64);
	for (int i = 0; i < 64; i++) {
		CHECK_EQ(samples[10 + i], samples[i % 10]);
		CHECK_EQ(pad[i], i >= 10);
	}
	onehop_order_destroy(whole);
	onehop_order_destroy(padded);
}

/* ---- seeds, epochs, resuming */

static uint64_t
differing(uint64_t count, const uint64_t *a, const uint64_t *b)
{
	uint64_t differ = 0;
	for (uint64_t i = 0; i < count; i++)
		differ += a[i] != b[i];
	return differ;
}

TEST(epochs_and_seeds_differ_and_each_repeats)
{
	static uint64_t first[1000], other[1000];
	for (uint32_t shuffle = ONEHOP_SHUFFLE_SHARD; shuffle <= ONEHOP_SHUFFLE_SAMPLE; shuffle++) {
		for (int i = 0; i < 4; i++) {
			struct onehop_order_options options = options_of(shuffle);
			options.seed = i == 1 ? 5 : 4;
			options.epoch = i == 2 ? 1 : 0;
			struct onehop_order *order = build(&options, 1000);
			CHECK(order != NULL);
			CHECK_EQ(rows_of(order, i ? other : first, NULL), 1000);
			onehop_order_destroy(order);
			if (i == 3)
				CHECK_EQ(differing(1000, first, other), 0);
			else if (i)
				CHECK(differing(1000, first, other) > 500);
		}
	}
}

static void
resume_once(struct random *r)
{
	static uint64_t whole[MOST];
	uint64_t n = 1 + random_below(r, MOST), consumed = 0, got = 0;
	struct onehop_order_options options = options_of((uint32_t)random_below(r, 4));
	options.seed = random_next(r);
	options.epoch = random_below(r, 5);
	options.remainder = ONEHOP_REMAINDER_UNEVEN;
	struct onehop_order *order = build(&options, n);
	CHECK(order != NULL);
	CHECK_EQ(rows_of(order, whole, NULL), n);
	onehop_order_destroy(order);
	/* A world that stops after some steps, then another that goes on. */
	uint32_t worlds[2] = {1 + (uint32_t)random_below(r, 16), 1 + (uint32_t)random_below(r, 16)};
	options.batch = 1 + random_below(r, 16);
	uint64_t most = n / (worlds[0] * options.batch);
	uint64_t steps = most ? random_below(r, most + 1) : 0;
	for (int part = 0; part < 2; part++) {
		options.world = worlds[part];
		options.start = consumed;
		if (part)
			options.batch = 1 + random_below(r, 16);
		for (uint32_t rank = 0; rank < worlds[part]; rank++) {
			options.rank = rank;
			order = build(&options, n);
			CHECK(order != NULL);
			uint64_t rows = part ? order->info.rows : steps * options.batch;
			CHECK(onehop_order_rows(order, 0, rows, samples, NULL) == ONEHOP_OK);
			for (uint64_t i = 0; i < rows; i++)
				CHECK_EQ(samples[i], whole[consumed + rank + i * worlds[part]]);
			got += rows;
			onehop_order_destroy(order);
		}
		consumed = part ? consumed : steps * options.batch * worlds[0];
	}
	CHECK_EQ(got, n);
}

TEST(a_thousand_random_resumes_give_the_exact_rest)
{
	uint64_t seed = random_seed(20);
	struct random r = random_init(seed);
	for (int i = 0; i < 1000 && !test_failed; i++)
		resume_once(&r);
	if (test_failed)
		printf("# TEST_SEED=%llu\n", (unsigned long long)seed);
}

TEST(any_rows_are_the_same_however_they_are_asked_for)
{
	static uint64_t whole[MOST];
	uint64_t seed = random_seed(21);
	struct random r = random_init(seed);
	struct onehop_order_options options = options_of(ONEHOP_SHUFFLE_SAMPLE);
	options.world = 3;
	options.lanes = 70;
	options.remainder = ONEHOP_REMAINDER_PAD;
	options.batch = 50;
	struct onehop_order *order = build(&options, MOST);
	CHECK(order != NULL);
	uint64_t rows = rows_of(order, whole, NULL);
	for (int i = 0; i < 2000; i++) {
		uint64_t first = random_below(&r, rows), count = random_below(&r, rows - first + 1);
		CHECK(onehop_order_rows(order, first, count, samples, pad) == ONEHOP_OK);
		CHECK_EQ(differing(count, samples, whole + first), 0);
	}
	CHECK_EQ(onehop_order_rows(order, rows, 1, samples, pad), ONEHOP_OUT_OF_RANGE);
	CHECK_EQ(onehop_order_rows(order, UINT64_MAX, 2, samples, pad), ONEHOP_OUT_OF_RANGE);
	onehop_order_destroy(order);
}

/* ---- what it is made of */

TEST(no_shuffle_is_the_list_itself)
{
	uint64_t list[] = {5, 3, 3, 999, 0};
	struct onehop_order_options options = options_of(ONEHOP_SHUFFLE_NONE);
	struct onehop_order *order = build(&options, 1000);
	CHECK(order != NULL);
	CHECK_EQ(rows_of(order, samples, NULL), 1000);
	for (uint64_t i = 0; i < 1000; i++)
		CHECK_EQ(samples[i], i);
	onehop_order_destroy(order);
	options.samples = list;
	options.sample_count = 5;
	order = build(&options, 5);
	CHECK(order != NULL);
	memset(list, 0, sizeof list); /* it was copied */
	CHECK_EQ(rows_of(order, samples, NULL), 5);
	CHECK_EQ(samples[0], 5);
	CHECK_EQ(samples[2], 3);
	CHECK_EQ(samples[3], 999);
	onehop_order_destroy(order);
}

TEST(a_list_keeps_its_repeats_when_it_is_shuffled)
{
	static uint64_t list[MOST];
	memset(seen, 0, sizeof seen);
	for (uint64_t i = 0; i < MOST; i++)
		seen[list[i] = i / 3]++;
	struct onehop_order_options options = options_of(ONEHOP_SHUFFLE_SAMPLE);
	options.samples = list;
	options.sample_count = MOST;
	struct onehop_order *order = build(&options, MOST);
	CHECK(order != NULL);
	CHECK_EQ(rows_of(order, samples, NULL), MOST);
	CHECK(differing(MOST, samples, list) > MOST / 2);
	for (uint64_t i = 0; i < MOST; i++)
		seen[samples[i]]--;
	for (uint64_t i = 0; i < MOST; i++)
		CHECK_EQ(seen[i], 0);
	onehop_order_destroy(order);
}

/* With one lane the blocks lie in S one behind the other. */
TEST(blocks_hold_what_lies_side_by_side_and_no_more_than_their_bytes)
{
	struct onehop_order_options options = options_of(ONEHOP_SHUFFLE_BLOCK);
	options.lanes = 1;
	struct onehop_order *order = build(&options, 1000);
	CHECK(order != NULL);
	CHECK_EQ(rows_of(order, samples, NULL), 1000);
	/* 10,000 bytes hold 6 samples of 1,000, 512 apart; a shard has 100: 16 blocks and one of 4. */
	CHECK_EQ(order->info.blocks, 10 * 17);
	uint64_t runs = 1;
	for (uint64_t i = 1; i < 1000; i++) {
		int side_by_side = samples[i] == samples[i - 1] + 1;
		CHECK(side_by_side || samples[i] % 100 % 6 == 0);
		runs += !side_by_side;
	}
	CHECK(runs > 150 && runs <= 170);
	onehop_order_destroy(order);
}

TEST(shards_change_places_whole)
{
	struct onehop_order_options options = options_of(ONEHOP_SHUFFLE_SHARD);
	options.lanes = 1;
	struct onehop_order *order = build(&options, 1000);
	CHECK(order != NULL);
	CHECK_EQ(rows_of(order, samples, NULL), 1000);
	CHECK_EQ(order->info.blocks, 10);
	int moved = 0;
	for (uint64_t i = 0; i < 1000; i++) {
		CHECK_EQ(samples[i] % 100, i % 100);
		moved |= samples[i] != i;
	}
	CHECK(moved);
	onehop_order_destroy(order);
}

/* Which of the blocks (of 6 samples) a rank touches. */
static void
touch(uint32_t rank, uint32_t world, uint8_t blocks[170])
{
	struct onehop_order_options options = options_of(ONEHOP_SHUFFLE_SAMPLE);
	options.rank = rank;
	options.world = world;
	struct onehop_order *order = build(&options, 1000);
	CHECK(order != NULL);
	uint64_t rows = rows_of(order, samples, NULL);
	memset(blocks, 0, 170);
	for (uint64_t i = 0; i < rows; i++)
		blocks[samples[i] / 100 * 17 + samples[i] % 100 / 6] = 1;
	onehop_order_destroy(order);
}

TEST(ranks_that_divide_the_lanes_read_different_blocks)
{
	uint8_t blocks[4][170];
	for (uint32_t rank = 0; rank < 4; rank++)
		touch(rank, 4, blocks[rank]);
	int shared = 0, touched = 0;
	for (int i = 0; i < 170; i++) {
		int ranks = blocks[0][i] + blocks[1][i] + blocks[2][i] + blocks[3][i];
		touched += ranks > 0;
		shared += ranks > 1;
	}
	CHECK_EQ(touched, 170);
	/* Only where one lane ends and the next begins. */
	CHECK(shared <= 15);
}

TEST(samples_leave_their_block_but_not_their_window)
{
	struct onehop_order_options options = options_of(ONEHOP_SHUFFLE_SAMPLE);
	options.lanes = 2;
	options.block_bytes = 4000;
	options.window_bytes = 40000; /* 20 samples of each lane */
	struct onehop_order *order = build(&options, 1000);
	CHECK(order != NULL);
	CHECK_EQ(order->window, 20);
	CHECK_EQ(oh_order_window_end(order, 0), 40);
	CHECK_EQ(oh_order_window_end(order, 39), 40);
	CHECK_EQ(oh_order_window_end(order, 40), 80);
	options.shuffle = ONEHOP_SHUFFLE_BLOCK;
	struct onehop_order *unmixed = build(&options, 1000);
	CHECK(unmixed != NULL);
	static uint64_t before[1000];
	rows_of(order, samples, NULL);
	rows_of(unmixed, before, NULL);
	uint64_t moved = 0;
	for (uint64_t i = 0; i < 1000; i++) {
		uint64_t k = i / 40 * 40, end = k + 40;
		while (k < end && before[k] != samples[i])
			k++;
		CHECK(k < end);          /* the same window */
		CHECK_EQ(k % 2, i % 2);  /* and lane */
		moved += k != i;
	}
	CHECK(moved > 900);
	onehop_order_destroy(order);
	onehop_order_destroy(unmixed);
}

TEST(permutations_are_permutations_and_about_uniform)
{
	static uint32_t hits[9][9];
	for (uint64_t count = 1; count <= 9; count++) {
		memset(hits, 0, sizeof hits);
		for (uint64_t key = 0; key < 20000; key++) {
			uint64_t mixed = key * UINT64_C(0x9E3779B97F4A7C15);
			uint32_t taken = 0;
			for (uint64_t x = 0; x < count; x++) {
				uint64_t y = oh_order_permute(x, count, mixed);
				CHECK(y < count && !(taken >> y & 1));
				taken |= UINT32_C(1) << y;
				hits[x][y]++;
			}
		}
		for (uint64_t x = 0; x < count; x++)
			for (uint64_t y = 0; y < count; y++)
				CHECK(hits[x][y] * count > 17000 && hits[x][y] * count < 23000);
	}
	static uint8_t taken[5000];
	for (uint64_t x = 0; x < 5000; x++)
		taken[oh_order_permute(x, 5000, 77)]++;
	for (uint64_t x = 0; x < 5000; x++)
		CHECK_EQ(taken[x], 1);
}

/* Whoever changes the order changes what a resumed run trains on. */
TEST(the_order_never_changes_by_accident)
{
	static const uint64_t golden[4][8] = {
		{7, 107, 207, 307, 407, 507, 607, 707},
		{841, 696, 950, 208, 866, 121, 975, 233},
		{485, 368, 576, 158, 246, 789, 653, 895},
		{678, 832, 557, 360, 987, 272, 265, 541},
	};
	for (uint32_t shuffle = 0; shuffle <= ONEHOP_SHUFFLE_SAMPLE; shuffle++) {
		struct onehop_order_options options = options_of(shuffle);
		options.seed = 42;
		options.window_bytes = 400000;
		options.epoch = 3;
		struct onehop_order *order = build(&options, 1000);
		CHECK(order != NULL);
		rows_of(order, samples, NULL);
		for (int i = 0; i < 8; i++)
			CHECK_EQ(samples[100 * i + 7], golden[shuffle][i]);
		onehop_order_destroy(order);
	}
}

/* ---- what is refused */

static void
refused(struct onehop_order_options options, const char *holds)
{
	static const struct world w = {100, 1000, NULL};
	struct onehop_order *order = NULL;
	struct onehop_error error;
	CHECK_EQ(oh_order_build(&options, 10, spans, &w, &order, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK(order == NULL);
	CHECK_HOLDS(error.message, holds);
}

TEST(options_that_make_no_sense_are_refused)
{
	struct onehop_order_options good = options_of(ONEHOP_SHUFFLE_SAMPLE), bad;
	bad = good;
	bad.rank = bad.world = 2;
	refused(bad, "rank 2 of 2");
	bad = good;
	bad.world = 0;
	refused(bad, "rank 0 of 0");
	bad = good;
	bad.batch = 0;
	refused(bad, "a batch of 0");
	bad = good;
	bad.batch = UINT64_MAX;
	refused(bad, "a batch of");
	bad = good;
	bad.start = 11;
	refused(bad, "start at 11 of 10");
	bad = good;
	bad.lanes = 0;
	refused(bad, "no lanes");
	bad = good;
	bad.shuffle = 4;
	refused(bad, "no shuffle 4");
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
