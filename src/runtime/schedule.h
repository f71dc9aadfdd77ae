/* The schedule's parts, and what they ask of each other. Included by them alone.
 *
 *   schedule.c  who gets a block, a place or a slice next; how transfers begin and end
 *   slices.c    what a reader takes and hands in
 *   copies.c    what goes to the device, and when it has got there
 *   work.c      the threads that do it
 *
 * All is called with runtime->lock held unless it says otherwise.
 */
#ifndef OH_RUNTIME_SCHEDULE_H
#define OH_RUNTIME_SCHEDULE_H

#include "runtime/internal.h"

#include "base/arith.h"
#include "base/sys.h"

/* Slices that one reader may hold. */
#define OH_SOURCE_DEPTH 8
/* Transfers whose oldest copy is polled in one round. */
#define OH_POLL_BATCH 16

static inline uint64_t
oh_since_start(const struct onehop_transfer *transfer)
{
	return oh_max(oh_now_ns() - transfer->started_ns, 1);
}

/* schedule.c: wakes a thread that sleeps, if there is one. */
void oh_wake_one(struct onehop_runtime *runtime);
/* Opens windows: all that need no block, and as many others as there are free blocks. */
void oh_grant(struct onehop_runtime *runtime);
/* Takes a slice of the transfer, or of any in turn if it is NULL. Returns whose it is, or NULL. */
struct onehop_transfer *oh_take_slice(struct onehop_runtime *runtime, struct onehop_transfer *only,
				      struct oh_flow_slice *slice);
/* Slices to read, or mapped windows to start. */
int oh_has_work(const struct onehop_transfer *transfer);
int oh_more_slices(struct onehop_runtime *runtime);
/* A window is closed: what it held is free. */
void oh_release(struct onehop_transfer *transfer, const struct oh_window *window);

/* copies.c: gives a window's copies to the device; the lock is released meanwhile. */
void oh_start_copies(struct onehop_transfer *transfer, uint32_t window);

/* The oldest copy of a transfer, or its gate, to be asked about outside the lock. It stays while
 * polling is set: only the poller takes copies off and opens gates, and a transfer with either does
 * not end. */
struct oh_probe {
	struct onehop_transfer *transfer;
	struct oh_mark *mark;
	struct onehop_error error;
	onehop_status status;
	uint32_t window;
	int done;
};

/* The copies to ask about now, and how many. */
uint32_t oh_copies_collect(struct onehop_runtime *runtime, struct oh_probe probes[OH_POLL_BATCH]);
/* One round over them, the lock held but for the driver's calls. 1 if any ended. */
int oh_copies_poll(struct onehop_runtime *runtime, struct oh_probe *probes, uint32_t count);

/* A slice that was handed to a reader. */
struct oh_pending {
	struct onehop_transfer *transfer;
	struct oh_flow_slice slice;
	uint64_t begun_ns; /* of a probe */
	int used;
	int again; /* it waits to be handed out once more */
};

/* slices.c: what a storage reader pulls from. */
struct oh_source {
	struct oh_slice_source base;
	struct onehop_runtime *runtime;
	struct onehop_transfer *only; /* NULL for all */
	uint64_t deadline_ns;
	int (*done)(const struct onehop_transfer *);
	struct oh_pending pending[OH_SOURCE_DEPTH];
	uint32_t agains;
};

void oh_source_init(struct oh_source *source, struct onehop_runtime *runtime);
/* Has the thread that reads something better to do than to read on? */
int oh_source_is_over(const struct oh_source *source);

#endif
