/* Which way the bytes of a file go, and why not a better one. Pure. */
#ifndef OH_ENGINE_WAY_H
#define OH_ENGINE_WAY_H

#include "engine/plan.h"

/* What all extents together decide. */
struct oh_ways {
	const struct oh_plan_facts *facts;
	int keep_absent; /* what is not resident is worth its place in the page cache */
};

/* How one run of a file goes: its bytes from the one asked about to end. */
struct oh_way {
	uint64_t end;
	uint32_t reasons;
	uint8_t route;
	uint8_t drop;
	uint8_t may_direct; /* where it reads at a disk's speed, it would better go direct */
};

/* Fails with NO_ROUTE where a forced route cannot work for one of the extents. */
onehop_status oh_ways_decide(const struct oh_extent *extents, uint64_t count,
			     const struct oh_plan_facts *facts, struct oh_ways *ways,
			     struct onehop_error *error);

/* The way of bytes [offset, end) of the extent, or of as many as go one way. */
struct oh_way oh_way_of(const struct oh_ways *ways, const struct oh_extent *extent, uint64_t offset,
			uint64_t end);

/* Rows that do not adjoin are read one by one. */
static inline int
oh_extent_is_plain(const struct oh_extent *extent)
{
	return extent->rows == 1 || extent->row_stride == extent->row_bytes;
}

static inline uint64_t
oh_extent_bytes(const struct oh_extent *extent)
{
	return extent->row_bytes * extent->rows;
}

#endif
