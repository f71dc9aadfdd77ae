/* The order of an epoch, as a function of options and of where samples lie.
 *
 * What is kept is the blocks in their new order, 16 bytes each, and hints to find the block of a
 * position at once; all else is computed when it is asked for, so that any row of any rank costs the
 * same. Random numbers come from counters, by integer arithmetic alone: an order is the same on every
 * machine, and changes only with the options and the samples. It reads no file and keeps no state
 * between calls.
 */
#include "dataset/order.h"

#include "base/arith.h"
#include "base/error.h"
#include "base/give.h"

#include <stdlib.h>
#include <string.h>

/* Batches of more samples are a mistake, and would overflow with the world size. */
#define MOST_BATCH (UINT64_C(1) << 31)
/* Spans that are asked for at once. */
#define SPANS 512

/* ------------------------------------------------------------------ random numbers */

#define GOLDEN UINT64_C(0x9E3779B97F4A7C15)

/* SplitMix64's output function. */
static inline uint64_t
mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
	return x ^ (x >> 31);
}

/* The n-th number of a key's sequence. */
static inline uint64_t
number(uint64_t key, uint64_t n)
{
	return mix(key + (n + 1) * GOLDEN);
}

static inline uint64_t
below(uint64_t random, uint64_t limit)
{
	return (uint64_t)((unsigned __int128)random * limit >> 64);
}

/* A permutation of [0, count): steps that can each be undone, modulo the next power of two. What lands
 * outside goes round again, which keeps it a permutation. */
#define ROUNDS 4
struct permutation {
	uint64_t count;
	uint64_t mask;
	uint32_t shift;
	uint64_t add[ROUNDS];
	uint64_t times[ROUNDS]; /* odd */
};

static void
make_permutation(struct permutation *p, uint64_t count, uint64_t key)
{
	uint32_t bits = count > 1 ? 64 - (uint32_t)__builtin_clzll(count - 1) : 1;
	uint64_t times = mix(key ^ GOLDEN);
	p->count = count;
	p->mask = bits == 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1;
	p->shift = bits / 2 + bits % 2;
	for (uint32_t round = 0; round < ROUNDS; round++) {
		p->add[round] = key >> (16 * round);
		p->times[round] = times >> (15 * round) | 1;
	}
}

static inline uint64_t
permute(const struct permutation *p, uint64_t x)
{
	do {
		for (uint32_t round = 0; round < ROUNDS; round++) {
			x = (x + p->add[round]) * p->times[round] & p->mask;
			x ^= x >> p->shift;
		}
	} while (x >= p->count);
	return x;
}

uint64_t
oh_order_permute(uint64_t x, uint64_t count, uint64_t key)
{
	struct permutation p;
	make_permutation(&p, count, key);
	return permute(&p, x);
}

/* ------------------------------------------------------------------ blocks */

struct cutting {
	struct onehop_order *order;
	uint64_t room;
	uint64_t most;       /* bytes of a block */
	int by_shard;        /* a block is all that lies in one shard */
	struct oh_span last;
	uint64_t begin;      /* of the block's first payload */
	uint64_t bytes;      /* of all samples */
};

/* The block's entry holds its first place in the list and, until they are shuffled, its length. */
static int
open_block(struct cutting *c, uint64_t from)
{
	struct onehop_order *order = c->order;
	if (order->block_count == c->room) {
		uint64_t room = c->room ? c->room * 2 : 1024;
		struct oh_order_block *grown =
			realloc(order->blocks, (room + 1) * sizeof *order->blocks);
		if (!grown)
			return 1;
		order->blocks = grown;
		c->room = room;
	}
	order->blocks[order->block_count++] = (struct oh_order_block){0, from};
	return 0;
}

static int
goes_on(const struct cutting *c, const struct oh_span *span)
{
	if (!c->order->block_count || span->shard != c->last.shard)
		return 0;
	return c->by_shard || (span->begin >= c->last.begin && span->end - c->begin <= c->most);
}

static int
cut(struct cutting *c, oh_order_spans spans, const void *context)
{
	struct oh_span some[SPANS];
	struct onehop_order *order = c->order;
	for (uint64_t first = 0; first < order->count; first += SPANS) {
		uint64_t count = oh_min(SPANS, order->count - first);
		spans(context, first, count, some);
		for (uint64_t i = 0; i < count; i++) {
			if (!goes_on(c, &some[i])) {
				if (open_block(c, first + i))
					return 1;
				c->begin = some[i].begin;
			}
			order->blocks[order->block_count - 1].begin++;
			c->last = some[i];
			c->bytes += some[i].end - some[i].begin;
		}
	}
	return 0;
}

static void
shuffle(struct onehop_order *order, uint64_t key)
{
	for (uint64_t i = order->block_count; i > 1; i--) {
		uint64_t other = below(number(key, i), i);
		struct oh_order_block block = order->blocks[i - 1];
		order->blocks[i - 1] = order->blocks[other];
		order->blocks[other] = block;
	}
}

/* Lengths become places in P. */
static void
place(struct onehop_order *order)
{
	uint64_t begin = 0;
	for (uint64_t i = 0; i < order->block_count; i++) {
		uint64_t length = order->blocks[i].begin;
		order->blocks[i].begin = begin;
		begin += length;
	}
	order->blocks[order->block_count] = (struct oh_order_block){begin, 0};
}

/* No more than one for two blocks, so that they take little. */
static int
make_hints(struct onehop_order *order)
{
	uint64_t block = 0;
	while ((order->count >> order->hint_shift) > order->block_count / 2 + 64)
		order->hint_shift++;
	uint64_t hints = (order->count >> order->hint_shift) + 2;
	order->hints = malloc(hints * sizeof *order->hints);
	if (!order->hints)
		return 1;
	for (uint64_t i = 0; i < hints; i++) {
		uint64_t position = i << order->hint_shift;
		while (block + 1 < order->block_count && order->blocks[block + 1].begin <= position)
			block++;
		order->hints[i] = block;
	}
	return 0;
}

/* From a position of P to the place in the list. */
static inline uint64_t
listed(const struct onehop_order *order, uint64_t position)
{
	const struct oh_order_block *blocks = order->blocks;
	const uint64_t *hint = order->hints + (position >> order->hint_shift);
	uint64_t low = hint[0], high = hint[1];
	while (low < high) {
		uint64_t middle = low + (high - low + 1) / 2;
		if (blocks[middle].begin <= position)
			low = middle;
		else
			high = middle - 1;
	}
	return blocks[low].from + (position - blocks[low].begin);
}

/* ------------------------------------------------------------------ building */

void
onehop_order_options_init(struct onehop_order_options *options)
{
	*options = (struct onehop_order_options){
		.size = sizeof *options,
		.shuffle = ONEHOP_SHUFFLE_SAMPLE,
		.remainder = ONEHOP_REMAINDER_DROP,
		.world = 1,
		.lanes = 16,
		.batch = 1,
		.block_bytes = UINT64_C(8) << 20,
		.window_bytes = UINT64_C(192) << 20,
	};
}

static onehop_status
check_options(const struct onehop_order_options *options, uint64_t count,
	      struct onehop_error *error)
{
	if (options->shuffle > ONEHOP_SHUFFLE_SAMPLE || options->remainder > ONEHOP_REMAINDER_UNEVEN)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "there is no shuffle %u or no remainder %u", options->shuffle,
			       options->remainder);
	if (options->world == 0 || options->rank >= options->world)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "rank %u of %u: ranks count from 0, and a world has one at least",
			       options->rank, options->world);
	if (options->batch == 0 || options->batch > MOST_BATCH)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "a batch of %llu samples: it has 1 to %llu",
			       (unsigned long long)options->batch, (unsigned long long)MOST_BATCH);
	if (options->lanes == 0)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "no lanes: give 1 at least");
	if (options->start > count)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "start at %llu of %llu samples: it lies past the end",
			       (unsigned long long)options->start, (unsigned long long)count);
	return ONEHOP_OK;
}

/* How many rows and batches this rank has, and what becomes of the rest. */
static void
count_rows(struct onehop_order *order, const struct onehop_order_options *options)
{
	struct onehop_order_info *info = &order->info;
	uint64_t step = order->batch * order->world, left = order->left;
	uint64_t whole = left / step, over = left % step;
	info->samples = order->count;
	info->blocks = order->blocks ? order->block_count : order->count > 0;
	info->batches = whole;
	info->rows = whole * order->batch;
	switch (options->remainder) {
	case ONEHOP_REMAINDER_DROP:
		info->dropped = over;
		break;
	case ONEHOP_REMAINDER_PAD:
		if (over) {
			info->batches++;
			info->rows += order->batch;
			info->padded = step - over;
		}
		break;
	default:
		info->rows = left / order->world + (order->rank < left % order->world);
		info->batches = info->rows / order->batch + (info->rows % order->batch > 0);
	}
}

static onehop_status
arrange(struct onehop_order *order, const struct onehop_order_options *options,
	oh_order_spans spans, const void *context, struct onehop_error *error)
{
	struct cutting c = {.order = order, .most = options->block_bytes,
			    .by_shard = options->shuffle == ONEHOP_SHUFFLE_SHARD};
	uint64_t key = mix(mix(options->seed + GOLDEN) ^ (options->epoch + 1) * GOLDEN);
	order->lanes = 1;
	if (options->shuffle != ONEHOP_SHUFFLE_NONE && order->count) {
		if (cut(&c, spans, context))
			return oh_fail_no_memory(error, c.room * sizeof *order->blocks, "the order");
		shuffle(order, number(key, 1));
		place(order);
		if (make_hints(order))
			return oh_fail_no_memory(error, order->block_count * sizeof *order->hints,
						 "the order");
		order->lanes = options->lanes;
	}
	order->lane_least = order->count / order->lanes;
	order->lane_longer = order->count % order->lanes;
	order->permutes = options->shuffle == ONEHOP_SHUFFLE_SAMPLE;
	order->key = number(key, 2);
	order->window = UINT64_MAX;
	if (order->permutes && order->count) {
		uint64_t mean = oh_max(c.bytes / order->count, 1);
		order->window = oh_max(options->window_bytes / mean / order->lanes, 1);
		order->window = oh_min(order->window, order->lane_least + 1);
	}
	return ONEHOP_OK;
}

onehop_status
oh_order_build(const struct onehop_order_options *options, uint64_t count, oh_order_spans spans,
	       const void *context, struct onehop_order **out, struct onehop_error *error)
{
	onehop_status status = check_options(options, count, error);
	if (status)
		return status;
	struct onehop_order *order = calloc(1, sizeof *order);
	if (!order)
		return oh_fail_no_memory(error, sizeof *order, "the order");
	order->count = count;
	order->start = options->start;
	order->left = count - options->start;
	order->rank = options->rank;
	order->world = options->world;
	order->batch = options->batch;
	if (options->samples && count) {
		order->samples = malloc(count * sizeof *order->samples);
		if (order->samples)
			memcpy(order->samples, options->samples, count * sizeof *order->samples);
		else
			status = oh_fail_no_memory(error, count * sizeof *order->samples,
						   "the order");
	}
	if (!status)
		status = arrange(order, options, spans, context, error);
	if (status) {
		onehop_order_destroy(order);
		return status;
	}
	count_rows(order, options);
	*out = order;
	return ONEHOP_OK;
}

void
onehop_order_destroy(struct onehop_order *order)
{
	if (!order)
		return;
	free(order->samples);
	free(order->blocks);
	free(order->hints);
	free(order);
}

onehop_status
onehop_order_query(const struct onehop_order *order, struct onehop_order_info *info)
{
	return oh_give(info, &order->info, sizeof order->info);
}

/* ------------------------------------------------------------------ rows */

/* A position of S: which lane, and where in it. */
struct walk {
	uint64_t lane;
	uint64_t at;
	uint64_t window;
	uint64_t inside; /* of the window */
};

static void
seek(const struct onehop_order *order, uint64_t position, struct walk *walk)
{
	walk->lane = position % order->lanes;
	walk->at = position / order->lanes;
	walk->window = walk->at / order->window;
	walk->inside = walk->at % order->window;
}

/* Goes `lanes` lanes and `rounds` rounds on: a world's step. */
static inline void
step(const struct onehop_order *order, struct walk *walk, uint64_t lanes, uint64_t rounds)
{
	walk->lane += lanes;
	if (walk->lane >= order->lanes) {
		walk->lane -= order->lanes;
		rounds++;
	}
	walk->at += rounds;
	walk->inside += rounds;
	if (walk->inside >= order->window) {
		walk->window += walk->inside / order->window;
		walk->inside %= order->window;
	}
}

/* The permutations of the windows that rows lie in just now, one a lane mostly. */
#define WINDOWS 64
struct windows {
	struct {
		uint64_t lane;
		uint64_t window;
		struct permutation permutation;
	} at[WINDOWS];
};

static const struct permutation *
window_of(const struct onehop_order *order, const struct walk *walk, struct windows *windows)
{
	uint64_t lane = walk->lane, length = order->lane_least + (lane < order->lane_longer);
	uint64_t begin = walk->at - walk->inside, slot = lane % WINDOWS;
	struct permutation *p = &windows->at[slot].permutation;
	if (p->count && windows->at[slot].lane == lane && windows->at[slot].window == walk->window)
		return p;
	windows->at[slot].lane = lane;
	windows->at[slot].window = walk->window;
	make_permutation(p, oh_min(order->window, length - begin),
			 number(order->key, walk->window * order->lanes + lane));
	return p;
}

/* The sample at a position of S. */
static inline uint64_t
sample_at(const struct onehop_order *order, const struct walk *walk, struct windows *windows)
{
	uint64_t at = walk->at;
	if (order->permutes)
		at = at - walk->inside + permute(window_of(order, walk, windows), walk->inside);
	at += walk->lane * order->lane_least + oh_min(walk->lane, order->lane_longer);
	if (order->blocks)
		at = listed(order, at);
	return order->samples ? order->samples[at] : at;
}

/* Samples at count positions, a world's step apart. */
static void
fill(const struct onehop_order *order, uint64_t position, uint64_t count, uint64_t *samples)
{
	uint64_t lanes = order->world % order->lanes, rounds = order->world / order->lanes;
	struct windows windows;
	struct walk walk;
	for (int i = 0; i < WINDOWS; i++)
		windows.at[i].permutation.count = 0;
	seek(order, position, &walk);
	for (uint64_t i = 0; i < count; i++) {
		samples[i] = sample_at(order, &walk, &windows);
		step(order, &walk, lanes, rounds);
	}
}

onehop_status
onehop_order_rows(const struct onehop_order *order, uint64_t first, uint64_t count,
		  uint64_t *samples, uint8_t *pad)
{
	uint64_t end, own;
	if (oh_add(first, count, &end) || end > order->info.rows)
		return ONEHOP_OUT_OF_RANGE;
	/* Rows that repeat nothing. */
	own = order->left / order->world + (order->rank < order->left % order->world);
	own = own > first ? oh_min(own - first, count) : 0;
	if (own)
		fill(order, order->start + order->rank + first * order->world, own, samples);
	for (uint64_t i = own; i < count; i++) {
		uint64_t position = order->rank + (first + i) * order->world - order->left;
		fill(order, order->start + position % order->left, 1, &samples[i]);
	}
	if (pad) {
		memset(pad, 0, own);
		memset(pad + own, 1, count - own);
	}
	return ONEHOP_OK;
}

uint64_t
oh_order_window_end(const struct onehop_order *order, uint64_t row)
{
	uint64_t span, end, first = order->start + order->rank;
	if (!order->permutes || oh_mul(order->window, order->lanes, &span))
		return UINT64_MAX;
	uint64_t position = first + row * order->world;
	end = (position / span + 1) * span;
	return (end - first + order->world - 1) / order->world;
}
