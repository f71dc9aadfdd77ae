/* SPDX-License-Identifier: Apache-2.0
 *
 * onehop/pipeline.h: reads of one file into one buffer, a few in flight at a time.
 *
 * A pipeline has places for reads. submit starts a read and takes a place, next waits for the
 * oldest read and frees its place, so that a caller uses one piece while others are on their way:
 *
 *	for (;;) {
 *		while (more && onehop_pipeline_submit(pipeline, &more, NULL, &error) == ONEHOP_OK)
 *			...
 *		if (onehop_pipeline_next(pipeline, ONEHOP_FOREVER, &done, &error) == ONEHOP_END)
 *			break;
 *		...
 *	}
 *
 * Each read is a transfer of its own, by whatever route the file and the device have. File offset,
 * buffer offset and bytes of a read are multiples of the pipeline's alignment. A read across the
 * end of the file, as it was when the file was opened, comes short.
 *
 * Threads: submit, next, query and destroy of one pipeline from one thread at a time (serial);
 * cancel from any thread.
 */
#ifndef ONEHOP_PIPELINE_H
#define ONEHOP_PIPELINE_H

#include <onehop/transfer.h>

#ifdef __cplusplus
extern "C" {
#endif

struct onehop_pipeline;

/* Most places that a pipeline may have. */
#define ONEHOP_PIPELINE_PLACES_MOST 1024

struct onehop_pipeline_options {
	uint32_t size;
	uint32_t places;    /* reads in flight, 1 to ONEHOP_PIPELINE_PLACES_MOST; 2 */
	uint64_t alignment; /* bytes, 1 or more; 4096 */
};

ONEHOP_API void onehop_pipeline_options_init(struct onehop_pipeline_options *options);

/* What direct I/O on the file asks its offsets and lengths to be multiples of, in bytes: a power of
 * two; 4096 where the kernel does not say; 1 where the file system has no direct I/O. Reads do not
 * depend on it: what cannot go direct goes through the page cache. Any thread. */
ONEHOP_API onehop_status onehop_pipeline_alignment(const struct onehop_file *file,
						   uint64_t *alignment, struct onehop_error *error);

/* Makes a pipeline from the file into the buffer; both must outlive it. options: NULL for the
 * defaults. INVALID_ARGUMENT if places or alignment is out of its range, NO_MEMORY. No I/O. Any
 * thread. */
ONEHOP_API onehop_status onehop_pipeline_create(struct onehop_runtime *runtime,
						struct onehop_file *file,
						struct onehop_buffer *buffer,
						const struct onehop_pipeline_options *options,
						struct onehop_pipeline **pipeline,
						struct onehop_error *error);

/* Bytes [file_offset, file_offset + bytes) of the file, to buffer_offset of the buffer. */
struct onehop_read {
	uint64_t tag; /* the caller's; comes back */
	uint64_t file_offset;
	uint64_t buffer_offset;
	uint64_t bytes; /* 0 is allowed */
};

/* Starts a read and returns; the first ones make staging memory, which takes its time. start: NULL,
 * or the stream whose work comes before the first byte. INVALID_ARGUMENT if a value is not aligned,
 * or the range leaves the buffer or overlaps that of a read in flight; BUSY if all places are taken;
 * LIMIT, NO_MEMORY. */
ONEHOP_API onehop_status onehop_pipeline_submit(struct onehop_pipeline *pipeline,
						const struct onehop_read *read,
						const struct onehop_start_options *start,
						struct onehop_error *error);

/* A read that has ended. */
struct onehop_read_done {
	uint32_t size;
	onehop_status status; /* OK, CANCELLED, or why it failed */
	uint64_t tag;
	uint64_t bytes; /* landed: fewer than asked for only at the file's end, or on failure */
};

/* Gives the oldest read once it has ended, and frees its place; on OK its bytes are there for every
 * stream. Fill done->size first. END if none is in flight; TIMED_OUT after timeout_ns nanoseconds
 * (0 looks and returns, ONEHOP_FOREVER waits), and the read goes on; FORKED; INVALID_ARGUMENT if
 * done->size is not filled. Any other status is the read's, and *done and *error say which and why.
 * Helps with the work while it waits. */
ONEHOP_API onehop_status onehop_pipeline_next(struct onehop_pipeline *pipeline, uint64_t timeout_ns,
					      struct onehop_read_done *done,
					      struct onehop_error *error);

/* Asks all reads in flight to stop; returns at once. next gives each of them, those that had not
 * landed as CANCELLED. Reads that are submitted later are not meant. Any thread. */
ONEHOP_API void onehop_pipeline_cancel(struct onehop_pipeline *pipeline);

struct onehop_pipeline_info {
	uint32_t size;
	uint32_t in_flight;    /* reads submitted and not given by next */
	uint64_t reads;        /* given, failed ones too */
	uint64_t bytes;        /* landed, of those */
	uint64_t short_bytes;  /* that those which did not fail asked for behind the file's end */
	uint64_t failed_reads; /* of those; cancelled ones too */
	uint64_t busy_ns;      /* in which one of those at least was on its way */
};

/* Fill info->size first. */
ONEHOP_API onehop_status onehop_pipeline_query(const struct onehop_pipeline *pipeline,
					       struct onehop_pipeline_info *info);

/* Cancels what is in flight and returns when nothing is. NULL is allowed. */
ONEHOP_API void onehop_pipeline_destroy(struct onehop_pipeline *pipeline);

#ifdef __cplusplus
}
#endif
#endif
