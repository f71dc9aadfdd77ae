/* SPDX-License-Identifier: Apache-2.0
 *
 * onehop/transfer.h: a plan in motion.
 *
 * Prepared once, started as often as wanted; start allocates, registers and frees nothing. Progress
 * is made by the runtime's workers, and by a thread inside next or wait. Arrivals and the
 * completion are pulled: nobody calls back.
 *
 * Threads: start, next, wait and destroy of one transfer from one thread at a time (serial); cancel
 * and progress from any thread.
 */
#ifndef ONEHOP_TRANSFER_H
#define ONEHOP_TRANSFER_H

#include <onehop/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

struct onehop_transfer;

/* Time limits in nanoseconds: 0 looks and returns, ONEHOP_FOREVER waits. */
#define ONEHOP_FOREVER UINT64_MAX

/* Makes the ring's blocks that the plan needs, pins them, and allocates all state. Fails with
 * LIMIT or NO_MEMORY. */
ONEHOP_API onehop_status onehop_transfer_prepare(struct onehop_plan *plan,
						 struct onehop_transfer **transfer,
						 struct onehop_error *error);

enum onehop_start_flags {
	/* after_stream is set: the first copy waits for what that stream holds now. A flag,
	 * since 0 is CUDA's legacy stream. */
	ONEHOP_START_AFTER_STREAM = 1 << 0,
};

struct onehop_start_options {
	uint32_t size;
	uint32_t flags;
	uint64_t after_stream; /* CUstream */
};

ONEHOP_API void onehop_start_options_init(struct onehop_start_options *options);

/* Starts moving bytes and returns. options: NULL for none. BUSY if it runs already. */
ONEHOP_API onehop_status onehop_transfer_start(struct onehop_transfer *transfer,
					       const struct onehop_start_options *options,
					       struct onehop_error *error);

/* Gives the index of an extent whose last byte has landed since the last call, each once, empty
 * ones too. END when all were given (then wait returns at once), TIMED_OUT, or the transfer's
 * failure. Helps with the work while it waits. */
ONEHOP_API onehop_status onehop_transfer_next(struct onehop_transfer *transfer,
					      uint64_t timeout_ns, uint64_t *extent,
					      struct onehop_error *error);

/* The same, of all that have arrived, up to capacity of them: *count indices, one at least. */
ONEHOP_API onehop_status onehop_transfer_arrivals(struct onehop_transfer *transfer,
						  uint64_t timeout_ns, uint64_t *extents,
						  uint64_t capacity, uint64_t *count,
						  struct onehop_error *error);

/* One phase's begin, in nanoseconds since start; 0 if it never came. */
struct onehop_completion {
	uint32_t size;
	uint32_t reasons;
	uint64_t bytes;                          /* landed */
	uint64_t read_bytes;                     /* read from storage */
	uint64_t route_bytes[8];                 /* landed, by enum onehop_route */
	uint64_t copies;                         /* destination ranges copied from the ring */
	uint64_t first_read_ns;                  /* first slice read */
	uint64_t first_copy_ns;                  /* first copy given to the device */
	uint64_t last_read_ns;                   /* last slice read */
	uint64_t total_ns;                       /* start to last byte landed */
	uint64_t starved_ns;                     /* time with no free block (the link is the limit) */
	uint64_t ring_bytes;                     /* staging memory used */
};

/* Waits until the transfer has ended, helping with the work. completion may be NULL; fill its size
 * first; it is written on success and on the transfer's failure, not on TIMED_OUT. Returns the
 * transfer's status: OK, CANCELLED, or its first failure with file, offset and name. */
ONEHOP_API onehop_status onehop_transfer_wait(struct onehop_transfer *transfer,
					      uint64_t timeout_ns,
					      struct onehop_completion *completion,
					      struct onehop_error *error);

/* Asks it to stop; returns at once. The transfer ends when no read or copy is in flight: wait for
 * it. No effect on one that does not run. Any thread. */
ONEHOP_API void onehop_transfer_cancel(struct onehop_transfer *transfer);

struct onehop_progress {
	uint32_t size;
	uint32_t running;
	uint64_t bytes_landed;
	uint64_t bytes_total;
};

/* Fill progress->size first. Any thread. */
ONEHOP_API onehop_status onehop_transfer_progress(struct onehop_transfer *transfer,
						  struct onehop_progress *progress);

/* Work given to the CUDA stream after this call sees the transfer's bytes. Waits (helping) until
 * the last copy was given to the device, not until it has landed. No effect on host memory. */
ONEHOP_API onehop_status onehop_transfer_join(struct onehop_transfer *transfer, uint64_t stream,
					      struct onehop_error *error);

/* Cancels it if it runs and returns when no read or copy is in flight. NULL is allowed. */
ONEHOP_API void onehop_transfer_destroy(struct onehop_transfer *transfer);

#ifdef __cplusplus
}
#endif
#endif
