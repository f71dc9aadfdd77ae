/* SPDX-License-Identifier: Apache-2.0
 *
 * onehop/plan.h: what to move, cut into segments, each with its route and the reasons for it.
 */
#ifndef ONEHOP_PLAN_H
#define ONEHOP_PLAN_H

#include <onehop/buffer.h>
#include <onehop/file.h>

#ifdef __cplusplus
extern "C" {
#endif

struct onehop_plan;

/* Bytes to move: rows of row_bytes each, row_stride apart in the file (rows = 1 for a plain range;
 * row_stride is then ignored), laid one after the other in the buffer. */
struct onehop_extent {
	struct onehop_file *file;
	uint64_t offset; /* of the first row in the file */
	uint64_t row_bytes;
	uint64_t rows;
	uint64_t row_stride; /* at least row_bytes */
	struct onehop_buffer *buffer;
	uint64_t buffer_offset;
	const char *name; /* for error messages; NULL or a string that outlives the plan */
};

/* Why a segment does not travel in a better way: one bit each. X(name, bit, text, remedy) */
#define ONEHOP_REASON_LIST(X)                                                                      \
	X(SMALL_PIECES, 0,                                                                         \
	  "its destinations are small and do not adjoin, so they go through a staging block "      \
	  "rather than be read into one by one",                                                   \
	  "none is needed; where the destinations are yours, let them adjoin in the file's order") \
	X(NO_BATCH_COPY, 1,                                                                        \
	  "the driver has no batched copy, so each scattered destination costs a call of its own", \
	  "use a driver of CUDA 12.8 or newer")                                                    \
	X(ROUTE_FORCED, 2, "the route was forced by option", "set route to auto")                  \
	X(NOT_RESIDENT, 3, "it is not in the page cache, so storage sets the pace",                \
	  "load it again soon, or warm it with onehop prefetch")                                   \
	X(TOO_LARGE_TO_KEEP, 4,                                                                    \
	  "what is not in the page cache is more than half of the usable memory, so it is not "    \
	  "kept there",                                                                            \
	  "set cache to keep, or give the process more memory")                                    \
	X(RESIDENCY_UNKNOWN, 5,                                                                    \
	  "whether it is in the page cache cannot be told, so it is read through it",              \
	  "own the file or be allowed to write it, or set cache")                                  \
	X(NO_DIRECT, 6, "its file system does not take O_DIRECT, so it is read through the page "  \
	  "cache",                                                                                 \
	  "move it to a file system that does, or set cache to keep")                              \
	X(ROWS, 7, "it is read in rows, which neither O_DIRECT nor a pinned file serves",          \
	  "load whole tensors, or split another dimension")                                        \
	X(NETWORK, 8, "it lies on a network file system, where O_DIRECT is used only by option",   \
	  "set route to direct")                                                                   \
	X(CACHE_OPTION, 9, "the cache option decides", "set cache to auto")                        \
	X(FEW_CORES, 10,                                                                           \
	  "with so few cores the page cache is pinned for the GPU piece by piece rather than "     \
	  "copied by CPUs",                                                                        \
	  "none is needed; more cores would copy faster")
#define ONEHOP_REASON_ENUM(name, bit, text, remedy) ONEHOP_REASON_##name = 1 << bit,
enum onehop_reason { ONEHOP_REASON_LIST(ONEHOP_REASON_ENUM) };
#undef ONEHOP_REASON_ENUM

/* A run of the plan that is read as one. */
struct onehop_segment {
	uint32_t size;
	uint32_t route;   /* enum onehop_route */
	uint32_t reasons; /* bits of enum onehop_reason */
	uint32_t staged;  /* 1: through the ring; 0: read straight into the destination */
	const char *path;
	uint64_t offset;
	uint64_t row_bytes;
	uint64_t rows;
	uint64_t row_stride;
	uint64_t pieces; /* destination ranges; 1 when one copy moves all */
};

struct onehop_plan_info {
	uint32_t size;
	uint32_t reasons; /* all segments' bits */
	uint64_t bytes;   /* delivered */
	uint64_t read_bytes;   /* asked of storage, at most; more where small gaps are read over */
	uint64_t segments;
	uint64_t pieces;
	uint64_t extents;
};

/* Sorts, merges and cuts the extents and picks routes. All buffers must be on one device. The
 * extents are copied; files, buffers and names must outlive the plan. INVALID_ARGUMENT names the
 * extent whose range leaves its file or buffer, or the two whose destinations overlap; NO_ROUTE if a
 * forced route cannot work. No I/O. Any thread. */
ONEHOP_API onehop_status onehop_plan_create(struct onehop_runtime *runtime,
					    const struct onehop_extent *extents, uint64_t count,
					    struct onehop_plan **plan, struct onehop_error *error);

/* NULL is allowed. Transfers made from it must be gone. */
ONEHOP_API void onehop_plan_destroy(struct onehop_plan *plan);

/* Fill size first. OUT_OF_RANGE past the end. Any thread. */
ONEHOP_API onehop_status onehop_plan_query(const struct onehop_plan *plan,
					   struct onehop_plan_info *info);
ONEHOP_API onehop_status onehop_plan_segment_at(const struct onehop_plan *plan, uint64_t index,
						struct onehop_segment *segment);

/* Words for one reason bit and for a route; static; "unknown" for anything else. */
ONEHOP_API const char *onehop_reason_name(uint32_t reason);
ONEHOP_API const char *onehop_reason_text(uint32_t reason);
ONEHOP_API const char *onehop_reason_remedy(uint32_t reason);
ONEHOP_API const char *onehop_route_name(uint32_t route);

#ifdef __cplusplus
}
#endif
#endif
