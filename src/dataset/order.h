/* The order of an epoch: which sample comes at each position of one sequence S, and which positions a
 * rank gets. Pure: it is told where samples lie, and opens nothing.
 *
 *   list     the samples as they are given: all of the dataset's, or the caller's choice
 *   P        the list with its blocks in their random order
 *   lanes    P cut into pieces whose lengths differ by at most one
 *   windows  runs of a lane within which positions are permuted
 *   S        one from each lane in turn
 */
#ifndef OH_DATASET_ORDER_H
#define OH_DATASET_ORDER_H

#include <onehop/dataset.h>

#include <stddef.h>

/* Where a sample lies: from its first payload to the end of its last. */
struct oh_span {
	uint64_t begin;
	uint64_t end;
	uint64_t shard;
};

/* Gives the spans of entries [first, first + count) of the list. */
typedef void (*oh_order_spans)(const void *context, uint64_t first, uint64_t count,
			       struct oh_span *spans);

/* A run of P that is a run of the list. */
struct oh_order_block {
	uint64_t begin; /* in P */
	uint64_t from;  /* in the list */
};

struct onehop_order {
	uint64_t *samples;             /* the list; NULL: all, in order */
	uint64_t count;                /* of the list, of P and of S */
	struct oh_order_block *blocks; /* [block_count + 1]; NULL: P is the list */
	uint64_t block_count;
	uint64_t *hints;               /* the block that holds position n << hint_shift of P */
	uint32_t hint_shift;
	uint32_t permutes;             /* within windows */
	uint64_t lanes;
	uint64_t lane_least;           /* positions of a lane, and how many lanes have one more */
	uint64_t lane_longer;
	uint64_t window;               /* positions of a lane that change places */
	uint64_t key;                  /* of the windows */
	uint64_t start;                /* in S */
	uint64_t left;                 /* positions from start on */
	uint64_t rank;
	uint64_t world;
	uint64_t batch;
	struct onehop_order_info info;
};

/* Builds the order of options, which are the caller's, checked here. The list has count entries;
 * samples (NULL: entry n is sample n) is copied. INVALID_ARGUMENT, NO_MEMORY. */
onehop_status oh_order_build(const struct onehop_order_options *options, uint64_t count,
			     oh_order_spans spans, const void *context, struct onehop_order **order,
			     struct onehop_error *error);

/* Where the window that a row of this rank lies in ends: the first row behind it, or UINT64_MAX if
 * samples are not shuffled. */
uint64_t oh_order_window_end(const struct onehop_order *order, uint64_t row);

/* The place of x after a permutation of [0, count), x < count. Each key gives another one. */
uint64_t oh_order_permute(uint64_t x, uint64_t count, uint64_t key);

#endif
