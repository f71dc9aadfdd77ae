/* The state of one transfer: no thread, no clock, no call out. Events go in (a slice ended, a copy
 * ended, stop), actions come out (do this slice, start this window's copies, give this block back,
 * extent E arrived). Worker threads drive it under a lock; tests drive it with made-up events.
 *
 * The plan's positions are cut into windows as blocks come free. A staged window lives in one block
 * of a lane's ring: its slices are read into it by any number of workers, and when the last has
 * ended, its pieces are copied to the device; the block is free when the copies have ended. A window
 * in place has no block: its slices are read straight into the destination.
 *
 *   closed -> open (slices to take) -> reading (all taken) -> copying (staged only) -> closed
 *
 * After oh_flow_stop() no slice and no window is given out any more, and a window whose last slice
 * ends is given back without a copy.
 *
 * A mapped window is read by nobody: its bytes are copied from the page cache. It is open until its
 * copies are started, and its "block" is whatever number the caller gave it.
 */
#ifndef OH_ENGINE_FLOW_H
#define OH_ENGINE_FLOW_H

#include "engine/plan.h"

/* Windows in place that are open at once. */
#define OH_FLOW_PLACES 16
/* Mapped windows that are open at once, and their bytes; of a file that is pinned whole a window is
 * larger, since each end costs a thread's attention. */
#define OH_FLOW_MAPS 4
#define OH_FLOW_MAP_BYTES (UINT64_C(16) << 20)
#define OH_FLOW_PINNED_BYTES (UINT64_C(64) << 20)
/* The first window fills this part of a block, each next one twice as much, so that the first copy
 * starts early. */
#define OH_FLOW_FIRST_PART 16
/* Segments are taken together only so far that a window is taken in so many parts. */
#define OH_FLOW_LEAST_TAKES 64
/* Blocks are aligned to this, and positions keep their place modulo it. */
#define OH_FLOW_BLOCK_ALIGNMENT UINT64_C(4096)

struct oh_window {
	uint64_t base;  /* position of the block's first byte, at or before begin */
	uint64_t begin; /* positions [begin, end) are the window's own */
	uint64_t end;
	uint64_t next; /* position to take from */
	uint64_t out;  /* bytes that are being read */
	uint64_t segment; /* that next is in, or the first behind it */
	uint32_t lane;
	uint32_t block;
	uint8_t state; /* enum oh_window_state */
	uint8_t staged;
	uint8_t mapped;
};

enum oh_window_state { OH_WINDOW_CLOSED, OH_WINDOW_OPEN, OH_WINDOW_READING, OH_WINDOW_COPYING };

struct oh_flow {
	const struct oh_plan *plan;
	uint64_t slice_bytes;
	uint64_t block_bytes;
	struct oh_window *windows;
	uint32_t window_count;
	uint32_t open_windows; /* not closed */
	uint32_t places;       /* of those, in place */
	uint32_t maps;         /* of those, mapped */
	uint32_t takeable;     /* in state OPEN, not mapped */
	uint32_t startable;    /* in state OPEN, mapped */
	uint32_t reading;      /* in state OPEN or READING */
	uint64_t reach;        /* of the next staged window, in bytes */
	uint64_t cursor;       /* position that the next window begins with */
	uint64_t cursor_segment;
	uint64_t *remaining;   /* bytes of each extent that have not landed */
	uint64_t *arrived;     /* extents, in order of arrival */
	uint64_t arrived_count;
	uint64_t arrived_given;
	uint64_t landed;
	uint64_t direct_bytes; /* read by O_DIRECT, small gaps included */
	uint64_t mapped_bytes; /* copied from maps, small gaps included */
	int stopped;
	int go_direct; /* what may go direct does, from now on */
	int no_direct; /* O_DIRECT was refused after all: what is left goes through the page cache */
};

/* What the next window needs. */
enum oh_flow_want {
	OH_FLOW_WANTS_NOTHING, /* none is left, or too many are open */
	OH_FLOW_WANTS_BLOCK,
	OH_FLOW_WANTS_PLACE, /* no block: open it at once */
	OH_FLOW_WANTS_MAP,   /* a number below OH_FLOW_MAPS that no open window has */
};

/* What is read by one worker: between begin and end lies what was taken, of one segment or of several
 * small ones; the read at hand is bytes long from at. */
struct oh_flow_slice {
	uint32_t window;
	uint32_t file;
	uint64_t at;
	uint64_t bytes;
	uint64_t begin;
	uint64_t end;
	uint64_t offset; /* in the file */
	uint64_t row_bytes;
	uint64_t rows;
	uint64_t row_stride;
	uint64_t segment; /* of the read at hand */
	uint8_t direct;
	uint8_t drop;
	uint8_t probe; /* its time tells whether the segment should go direct */
};

enum oh_flow_act {
	OH_FLOW_NOTHING,
	OH_FLOW_AGAIN,  /* the slice now says what remains: do it */
	OH_FLOW_COPY,   /* start the window's copies */
	OH_FLOW_FREE,   /* the window is closed: its block is free */
};

/* A copy from a block, or from the map of a file, to a buffer. */
struct oh_flow_copy {
	uint64_t block_offset; /* of a mapped window: in the file */
	uint64_t buffer_offset;
	uint64_t bytes;
	uint32_t buffer;
};

/* Allocates for windows staged windows at once. block_bytes: a multiple of the block alignment. */
onehop_status oh_flow_init(struct oh_flow *flow, const struct oh_plan *plan, uint64_t block_bytes,
			   uint64_t slice_bytes, uint32_t windows, struct onehop_error *error);
void oh_flow_free(struct oh_flow *flow);

/* To the beginning. No window may be open. Extents of no bytes arrive now. */
void oh_flow_reset(struct oh_flow *flow);

enum oh_flow_want oh_flow_wants(const struct oh_flow *flow);

/* Opens the next window, in block of lane if it wants one, and returns its index. */
uint32_t oh_flow_open(struct oh_flow *flow, uint32_t lane, uint32_t block);

/* Takes the next slice of the oldest open window: 1, or 0 if there is none now. */
int oh_flow_take(struct oh_flow *flow, struct oh_flow_slice *slice);

/* Takes an open mapped window, whose copies are now to be started: 1, or 0 if there is none. */
int oh_flow_take_map(struct oh_flow *flow, uint32_t *window);

/* The bytes of the file that a mapped window copies. */
struct oh_flow_range {
	uint64_t offset;
	uint64_t bytes;
	uint32_t file;
};
struct oh_flow_range oh_flow_map_range(const struct oh_flow *flow, uint32_t window);

/* The read at hand ended with bytes of it in place; ok 0: it failed, or ended with no byte. */
enum oh_flow_act oh_flow_read_ended(struct oh_flow *flow, struct oh_flow_slice *slice,
				    uint64_t bytes, int ok);

/* O_DIRECT was refused for the read at hand: *slice now asks for the same bytes through the page
 * cache, and so do all slices from now on. */
void oh_flow_direct_refused(struct oh_flow *flow, struct oh_flow_slice *slice);

/* Copies of a window in state COPYING: fills up to capacity and returns how many. *piece begins as
 * UINT64_MAX and keeps the place between calls; 0 when all were given. */
uint32_t oh_flow_copies(const struct oh_flow *flow, uint32_t window, uint64_t *piece,
			struct oh_flow_copy *copies, uint32_t capacity);

/* All copies of the window have ended (ok), or could not be done. The window is closed. */
void oh_flow_copy_ended(struct oh_flow *flow, uint32_t window, int ok);

/* Gives nothing out any more. Then call oh_flow_reap until it returns 0: each 1 is a window that
 * nobody reads, now closed. */
void oh_flow_stop(struct oh_flow *flow);
int oh_flow_reap(struct oh_flow *flow, uint32_t *window);

/* The next extent that arrived: 1, or 0 if none is waiting. */
int oh_flow_next_arrival(struct oh_flow *flow, uint64_t *extent);

/* 1 when no window is open and none will be. */
int oh_flow_ended(const struct oh_flow *flow);

/* 1 when every slice has ended: what remains is copies. */
int oh_flow_all_read(const struct oh_flow *flow);

#endif
