/* The choice of a route, by residence, cache option and what the file system can do.
 *
 * Resident bytes are read through the page cache, which is the quickest there is. Absent ones too, if
 * all of them together fit in half of the usable memory: then the next load, and other processes that
 * load the same now, find them. If not, they are read past it, or, where O_DIRECT does not work,
 * dropped behind the read. Every better way that was not taken leaves its reason.
 */
#include "engine/way.h"

#include "base/arith.h"

#include <stdlib.h>

/* Residence at an offset, and where the run of the same residence ends, at `end` at the latest. */
static enum oh_residence
residence_at(const struct oh_file_facts *file, uint64_t offset, uint64_t end, uint64_t *run_end)
{
	*run_end = end;
	if (!file->residence)
		return OH_HERE;
	uint64_t chunk = offset / file->chunk_bytes, last = (end - 1) / file->chunk_bytes;
	enum oh_residence here = file->residence[chunk];
	for (uint64_t next = chunk + 1; next <= last; next++) {
		if (file->residence[next] != here) {
			*run_end = next * file->chunk_bytes;
			break;
		}
	}
	return here;
}

/* The bytes of the file that an extent reaches over. */
static uint64_t
span_of(const struct oh_extent *extent)
{
	if (oh_extent_is_plain(extent))
		return oh_extent_bytes(extent);
	return (extent->rows - 1) * extent->row_stride + extent->row_bytes;
}

static uint64_t
absent_bytes(const struct oh_extent *extent, const struct oh_file_facts *file)
{
	uint64_t absent = 0, end = extent->offset + span_of(extent), run_end;
	for (uint64_t at = extent->offset; at < end; at = run_end)
		if (residence_at(file, at, end, &run_end) != OH_HERE)
			absent += run_end - at;
	return oh_min(absent, oh_extent_bytes(extent));
}

static int
can_map(const struct oh_plan_facts *facts, const struct oh_file_facts *file,
	const struct oh_extent *extent)
{
	return facts->memory.caps & OH_MEMORY_PINS_FILES && !file->is_network &&
	       oh_extent_is_plain(extent);
}

static onehop_status
check_forced_map(const struct oh_extent *extent, const struct oh_plan_facts *facts,
		 struct onehop_error *error)
{
	const struct oh_file_facts *file = &facts->files[extent->file];
	if (can_map(facts, file, extent))
		return ONEHOP_OK;
	oh_fail(error, ONEHOP_NO_ROUTE, "%s: the route mapped is forced, but %s", file->path,
		!(facts->memory.caps & OH_MEMORY_PINS_FILES) ? "the device does not pin pages of files"
		: file->is_network ? "it lies on a network file system"
				   : "rows that do not adjoin cannot be copied from a map");
	oh_remedy(error, "set route to auto");
	return ONEHOP_NO_ROUTE;
}

static onehop_status
check_forced_direct(const struct oh_extent *extent, const struct oh_file_facts *file,
		    struct onehop_error *error)
{
	if (!file->direct_alignment) {
		oh_fail(error, ONEHOP_NO_ROUTE,
			"%s: the route direct is forced, but its file system does not take O_DIRECT",
			file->path);
		oh_remedy(error, "set route to auto");
		return ONEHOP_NO_ROUTE;
	}
	if (!oh_extent_is_plain(extent)) {
		oh_fail(error, ONEHOP_NO_ROUTE,
			"%s: the route direct is forced, but rows of %llu bytes, %llu apart, cannot be "
			"read by O_DIRECT",
			file->path, (unsigned long long)extent->row_bytes,
			(unsigned long long)extent->row_stride);
		oh_remedy(error, "set route to auto, or split another dimension");
		return ONEHOP_NO_ROUTE;
	}
	return ONEHOP_OK;
}

onehop_status
oh_ways_decide(const struct oh_extent *extents, uint64_t count, const struct oh_plan_facts *facts,
	       struct oh_ways *ways, struct onehop_error *error)
{
	uint64_t absent = 0;
	for (uint64_t i = 0; i < count; i++) {
		const struct oh_file_facts *file = &facts->files[extents[i].file];
		if (!oh_extent_bytes(&extents[i]))
			continue;
		onehop_status status = ONEHOP_OK;
		if (facts->forced_route == ONEHOP_ROUTE_DIRECT)
			status = check_forced_direct(&extents[i], file, error);
		else if (facts->forced_route == ONEHOP_ROUTE_MAPPED)
			status = check_forced_map(&extents[i], facts, error);
		if (status)
			return status;
		if (file->residence && oh_add(absent, absent_bytes(&extents[i], file), &absent))
			absent = UINT64_MAX;
	}
	ways->facts = facts;
	ways->keep_absent = absent <= facts->memory_bytes / 2;
	return ONEHOP_OK;
}

/* Past the page cache where that works. */
static void
go_direct(const struct oh_extent *extent, const struct oh_file_facts *file, int by_option,
	  struct oh_way *way)
{
	way->drop = 1;
	if (file->is_network && !by_option)
		way->reasons |= ONEHOP_REASON_NETWORK;
	else if (!file->direct_alignment)
		way->reasons |= ONEHOP_REASON_NO_DIRECT;
	else if (!oh_extent_is_plain(extent))
		way->reasons |= ONEHOP_REASON_ROWS;
	else {
		way->route = ONEHOP_ROUTE_DIRECT;
		way->drop = 0;
	}
}

static void
choose(const struct oh_ways *ways, const struct oh_extent *extent, enum oh_residence residence,
       struct oh_way *way)
{
	const struct oh_plan_facts *facts = ways->facts;
	const struct oh_file_facts *file = &facts->files[extent->file];
	if (residence == OH_HERE) {
		if (facts->few_cores && can_map(facts, file, extent)) {
			way->route = ONEHOP_ROUTE_MAPPED;
			way->reasons |= ONEHOP_REASON_FEW_CORES;
		}
		return;
	}
	way->reasons |= residence == OH_AWAY ? ONEHOP_REASON_NOT_RESIDENT
					     : ONEHOP_REASON_RESIDENCY_UNKNOWN;
	if (ways->keep_absent)
		return;
	way->reasons |= ONEHOP_REASON_TOO_LARGE_TO_KEEP;
	go_direct(extent, file, 0, way);
	/* Not known: the first reads will tell. */
	if (residence == OH_NOT_KNOWN && way->route == ONEHOP_ROUTE_DIRECT) {
		way->route = ONEHOP_ROUTE_BUFFERED;
		way->may_direct = 1;
	}
}

struct oh_way
oh_way_of(const struct oh_ways *ways, const struct oh_extent *extent, uint64_t offset, uint64_t end)
{
	const struct oh_plan_facts *facts = ways->facts;
	const struct oh_file_facts *file = &facts->files[extent->file];
	struct oh_way way = {.route = ONEHOP_ROUTE_BUFFERED};
	enum oh_residence residence = residence_at(file, offset, end, &way.end);
	/* Rows are one segment, which goes the way of its first byte. */
	if (!oh_extent_is_plain(extent))
		way.end = end;
	if (file->pinned && oh_extent_is_plain(extent) &&
	    (facts->forced_route == ONEHOP_AUTO || facts->forced_route == ONEHOP_ROUTE_MAPPED)) {
		way.route = ONEHOP_ROUTE_MAPPED;
		way.end = end;
	} else if (facts->forced_route != ONEHOP_AUTO) {
		way.reasons |= ONEHOP_REASON_ROUTE_FORCED;
		way.route = (uint8_t)facts->forced_route;
		way.drop = facts->cache == ONEHOP_CACHE_DROP;
	} else if (facts->cache == ONEHOP_AUTO) {
		choose(ways, extent, residence, &way);
	} else {
		way.reasons |= ONEHOP_REASON_CACHE_OPTION;
		if (residence == OH_AWAY)
			way.reasons |= ONEHOP_REASON_NOT_RESIDENT;
		way.drop = facts->cache == ONEHOP_CACHE_DROP;
		if (facts->cache == ONEHOP_CACHE_BYPASS)
			go_direct(extent, file, 1, &way);
	}
	if (file->pinned && !oh_extent_is_plain(extent))
		way.reasons |= ONEHOP_REASON_ROWS;
	return way;
}
