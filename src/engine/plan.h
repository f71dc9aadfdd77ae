/* The plan: extents sorted, merged and cut into segments, each with its route. A pure function of
 * extents and facts.
 *
 * A plan lays all that is to be read on one line of positions, the order in which it is read.
 * Segments (runs of a file), pieces (runs of a destination) and parts (extents) are each sorted by
 * position. A range of positions is what fits into a block of a ring; positions that no segment
 * covers are padding, never read.
 */
#ifndef OH_ENGINE_PLAN_H
#define OH_ENGINE_PLAN_H

#include "engine/facts.h"

struct oh_extent {
	uint32_t file;
	uint32_t buffer;
	uint64_t offset;
	uint64_t row_bytes;
	uint64_t rows;
	uint64_t row_stride;
	uint64_t buffer_offset;
	const char *name;
};

struct oh_segment {
	uint64_t position;
	uint64_t bytes; /* row_bytes x rows */
	uint64_t offset;
	uint64_t row_bytes;
	uint64_t rows;
	uint64_t row_stride;
	uint64_t first_piece;
	uint64_t pieces;
	uint64_t least_slice;
	uint32_t file;
	uint32_t reasons;
	uint8_t route;
	uint8_t staged;
	uint8_t drop; /* its pages are dropped behind the read */
	uint8_t pinned; /* mapped: its file is pinned whole, so that windows cost nothing to open */
	uint8_t may_direct; /* laid out for O_DIRECT too, in case its first reads are slow */
};

struct oh_piece {
	uint64_t position;
	uint64_t bytes;
	uint64_t buffer_offset;
	uint32_t buffer;
};

/* An extent, or as much of it as goes one way. */
struct oh_part {
	uint64_t position;
	uint64_t bytes;
	uint64_t extent; /* index in the caller's list */
};

struct oh_plan {
	struct oh_segment *segments;
	struct oh_piece *pieces;
	struct oh_part *parts;
	uint64_t *empty; /* extents of no bytes */
	uint64_t segment_count;
	uint64_t piece_count;
	uint64_t part_count;
	uint64_t empty_count;
	uint64_t extent_count;
	uint64_t bytes;      /* delivered: the sum of the parts */
	uint64_t read_bytes; /* the sum of the segments that are staged, of the pieces that are not */
	uint64_t staged_span; /* positions of the staged segments, padding included */
	uint32_t reasons;
};

/* Fails with INVALID_ARGUMENT, NO_ROUTE or NO_MEMORY; then *plan is untouched. */
onehop_status oh_plan_build(const struct oh_extent *extents, uint64_t count,
			    const struct oh_plan_facts *facts, struct oh_plan *plan,
			    struct onehop_error *error);
void oh_plan_free(struct oh_plan *plan);

/* Index of the segment, piece or part that holds the position, or the first one behind it; the
 * count if there is none. */
uint64_t oh_plan_segment_from(const struct oh_plan *plan, uint64_t position);
uint64_t oh_plan_piece_from(const struct oh_plan *plan, uint64_t position);
uint64_t oh_plan_part_from(const struct oh_plan *plan, uint64_t position);

#endif
