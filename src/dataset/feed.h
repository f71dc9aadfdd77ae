/* What the feed's files share.
 *
 * Groups of an order's batches go round: planned by one thread, started when the slot (the buffers)
 * that they go to is free, landed by another, verified by a third if that is asked for, given to the
 * consumer, released by it.
 * Group n goes to slot n modulo slots, and its tables are those of place n modulo places; there are
 * more places than slots, so that planning runs ahead.
 */
#ifndef OH_DATASET_FEED_H
#define OH_DATASET_FEED_H

#include "dataset/dataset.h"
#include "dataset/fetch.h"
#include "dataset/order.h"
#include "dataset/runs.h"
#include "dataset/sort.h"

#include "runtime/buffer.h"

#include <onehop/dataset.h>

#include <pthread.h>

#define OH_NOT_FED UINT16_MAX
#define OH_FEED_MOST_GROUPS 64

/* Where a field's bytes go. */
enum oh_feed_side { OH_FEED_DEVICE, OH_FEED_HOST, OH_FEED_SIDES };

/* A group's tables, kept for those that come after it. */
struct oh_feed_group {
	uint64_t order; /* of the feed's */
	uint64_t first_batch;
	uint64_t rows;
	uint64_t batches;
	uint64_t payload_bytes;
	uint64_t room;     /* rows that the tables have room for */
	uint64_t *samples; /* [rows] */
	uint8_t *pad;      /* [rows] */
	uint64_t *offsets; /* [fields][rows] */
	uint64_t *bytes;   /* [fields][rows] */
	/* For verifying: cells (field * rows + row) of each side in the order of their places. */
	uint32_t *crcs;    /* [fields][rows] */
	uint64_t *cells[OH_FEED_SIDES];
	uint64_t cell_count[OH_FEED_SIDES];
	struct onehop_fetch *fetches[OH_FEED_SIDES]; /* NULL: nothing goes there */
};

struct oh_feed_slot {
	struct onehop_buffer *buffers[OH_FEED_SIDES];
	struct onehop_transfer *gate; /* moves nothing, once the consumer's stream has done its part */
	int busy;                     /* started into, and not released */
	int out;                      /* given, and not released */
	int gated;                    /* the gate was started, and not waited for */
	uint64_t group;               /* that is out */
};

/* What planning works with; the planner's own. */
struct oh_feed_plan {
	const struct onehop_order *order;
	uint64_t order_number;
	uint64_t next_row;
	double row_bytes[OH_FEED_SIDES]; /* of the buffer, as the group before took */
	struct oh_sort_item *items;      /* [2 * room] */
	uint64_t room;
};

struct onehop_feed {
	struct onehop_dataset *dataset;
	pid_t pid;
	uint32_t verify;
	uint32_t damage;
	uint64_t gap;
	uint64_t field_count;
	uint32_t *fields;      /* [field_count]: the dataset's numbers */
	uint8_t *sides;        /* [field_count] */
	uint16_t *fed;         /* by the dataset's number: the index in fields, or OH_NOT_FED */
	uint64_t capacity[OH_FEED_SIDES]; /* bytes of a buffer; 0: no field goes there */
	uint32_t slots;
	uint32_t places;
	struct oh_feed_slot slot[OH_FEED_MOST_GROUPS];
	struct oh_feed_group groups[2 * OH_FEED_MOST_GROUPS]; /* [places] */
	struct onehop_plan *gate_plan;
	struct onehop_buffer *gate_buffer;
	struct oh_feed_plan plan;
	/* For verifying: threads, and two places of the readback for each. */
	uint32_t verify_threads;
	struct oh_readback *readback;

	pthread_mutex_t lock;  /* guards what follows, fetches of groups, and what slots are */
	pthread_cond_t to_planner;
	pthread_cond_t to_lander;
	pthread_cond_t to_verifier;
	pthread_cond_t to_consumer;
	const struct onehop_order **orders;
	uint64_t order_count;
	uint64_t order_room;
	uint64_t planned;      /* groups, from the first on */
	uint64_t started;
	uint64_t ending;       /* groups that have landed but for their last bytes */
	uint64_t landed;
	uint64_t verified;     /* fit to be given: all that landed if nothing is verified */
	uint64_t given;
	uint8_t taken[2 * OH_FEED_MOST_GROUPS]; /* places of groups that are not released */
	int all_planned;       /* of all orders */
	int stop;
	uint64_t failed_at;    /* the group that failed; UINT64_MAX: none */
	struct onehop_error failure;
	uint64_t idle_since_ns;
	struct onehop_feed_info info;
	pthread_t planner;
	pthread_t lander;
	pthread_t verifier;
	uint32_t threads;      /* that run */
};

static inline struct oh_feed_group *
oh_feed_group_at(struct onehop_feed *feed, uint64_t number)
{
	return &feed->groups[number % feed->places];
}

/* feed_make.c: keeps the first reason why something is not pinned. Before there are threads. */
void oh_feed_note_unpinned(struct onehop_feed *feed, const struct onehop_error *why);

/* feed.c: the threads. stop: no transfer is under way waited for afterwards. */
onehop_status oh_feed_start(struct onehop_feed *feed, struct onehop_error *error);
void oh_feed_stop(struct onehop_feed *feed);
/* 1 in a forked child; then *error says so. */
int oh_feed_is_child(const struct onehop_feed *feed, struct onehop_error *error);
/* The slot's next group waits for what the stream holds, if flags say so. */
onehop_status oh_feed_start_gate(struct oh_feed_slot *slot, uint32_t flags, uint64_t stream,
				 struct onehop_error *error);
/* Goes on to the next order that has rows, if one is done. With the lock held. */
void oh_feed_next_order(struct onehop_feed *feed);

/* feed_plan.c. What a buffer can need at most. */
uint64_t oh_feed_most_bytes(const struct onehop_dataset *dataset);
/* A first guess of what a row takes. */
void oh_feed_plan_init(struct onehop_feed *feed);
/* What a batch of an order can take at most, on each side: if that is more than buffers have, after
 * a look at all of them. */
onehop_status oh_feed_batch_bytes(const struct onehop_feed *feed, const struct onehop_order *order,
				  uint64_t batch_bytes[OH_FEED_SIDES], struct onehop_error *error);
/* Plans the next group, for the buffers of a slot. By the planner alone. */
onehop_status oh_feed_plan_group(struct onehop_feed *feed, struct oh_feed_group *group,
				 const struct oh_feed_slot *slot,
				 struct onehop_fetch *fetches[OH_FEED_SIDES],
				 struct onehop_error *error);
/* feed_lay.c: fills the tables of group->rows rows, for which there is room, from first_row of the
 * plan's order on, and gives the runs of each side by their gap and rows: *runs keeps its memory
 * between calls. */
onehop_status oh_feed_lay_out(struct onehop_feed *feed, struct oh_feed_group *group,
			      uint64_t first_row, struct oh_runs runs[OH_FEED_SIDES],
			      struct onehop_error *error);
void oh_feed_plan_free(struct onehop_feed *feed);
void oh_feed_group_free(struct oh_feed_group *group);

/* feed_verify.c. What verifying needs, once there are buffers. */
onehop_status oh_feed_verify_init(struct onehop_feed *feed, struct onehop_error *error);
/* Checks the payloads of a group that has landed in the slot. Rows with damaged ones are refused, or
 * marked and counted in *damaged. By the verifier alone. */
onehop_status oh_feed_verify(struct onehop_feed *feed, struct oh_feed_group *group,
			     const struct oh_feed_slot *slot, uint64_t *damaged,
			     struct onehop_error *error);

#endif
