/* Builds a plan: check, sort, merge, route, place.
 *
 * Extents are taken in the order of their bytes on storage, so that reads run forward. Neighbours on
 * storage become one segment; within it, neighbours in the destination become one piece. Where the
 * device is addressable and the pieces are large, bytes go straight into the destination; else
 * through staging blocks. Positions keep the destination's address modulo what its copies like.
 *
 * It does no I/O and knows no back end.
 */
#include "engine/way.h"

#include "base/arith.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Segments under this size are not worth padding for the copies' modulus. */
#define WORTH_ALIGNING (UINT64_C(32) << 10)
/* Leaves room for padding. */
#define MOST_BYTES (UINT64_C(1) << 62)

static const char *
label(char shown[OH_SHOWN], const struct oh_extent *extent, uint64_t index)
{
	if (extent->name) {
		char name[OH_SHOWN];
		snprintf(shown, OH_SHOWN, "tensor %.*s", OH_SHOWN - 8,
			 oh_show(name, extent->name, strlen(extent->name)));
	} else {
		snprintf(shown, OH_SHOWN, "extent %llu", (unsigned long long)index);
	}
	return shown;
}

static onehop_status
check_source(const struct oh_extent *extent, uint64_t index, const struct oh_file_facts *file,
	     struct onehop_error *error)
{
	char shown[OH_SHOWN];
	uint64_t last = 0, end = 0;
	if (extent->rows > 1 && extent->row_stride < extent->row_bytes)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "%s: rows of %llu bytes cannot be %llu bytes apart",
			       label(shown, extent, index), (unsigned long long)extent->row_bytes,
			       (unsigned long long)extent->row_stride);
	if (oh_mul(extent->rows > 1 ? extent->rows - 1 : 0, extent->row_stride, &last) ||
	    oh_add(last, extent->row_bytes, &end) || oh_add(end, extent->offset, &end) ||
	    end > file->storage.bytes)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "%s: %s lies past the end of the file (%llu rows of %llu bytes from "
			       "offset %llu, and the file has %llu bytes)",
			       file->path, label(shown, extent, index),
			       (unsigned long long)extent->rows,
			       (unsigned long long)extent->row_bytes,
			       (unsigned long long)extent->offset,
			       (unsigned long long)file->storage.bytes);
	return ONEHOP_OK;
}

/* Adds the extent's bytes to the plan's, *total: positions of the plan must not overflow. */
static onehop_status
check_extent(const struct oh_extent *extent, uint64_t index, const struct oh_plan_facts *facts,
	     uint64_t *total, struct onehop_error *error)
{
	char shown[OH_SHOWN];
	uint64_t bytes, end;
	assert(extent->file < facts->file_count && extent->buffer < facts->buffer_count);
	if (oh_mul(extent->row_bytes, extent->rows, &bytes))
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "%s: its size overflows 64 bits",
			       label(shown, extent, index));
	if (bytes == 0)
		return ONEHOP_OK;
	if (oh_add(extent->buffer_offset, bytes, &end) ||
	    end > facts->buffers[extent->buffer].bytes)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "%s: %llu bytes at offset %llu do not fit a buffer of %llu",
			       label(shown, extent, index), (unsigned long long)bytes,
			       (unsigned long long)extent->buffer_offset,
			       (unsigned long long)facts->buffers[extent->buffer].bytes);
	if (oh_add(*total, bytes, total) || *total > MOST_BYTES) {
		oh_fail(error, ONEHOP_INVALID_ARGUMENT, "%s: with it the plan has over 2^62 bytes",
			label(shown, extent, index));
		oh_remedy(error, "make more plans of it");
		return ONEHOP_INVALID_ARGUMENT;
	}
	return check_source(extent, index, &facts->files[extent->file], error);
}

static int
compare(uint64_t a, uint64_t b)
{
	return a < b ? -1 : a > b;
}

static int
by_source(const struct oh_extent *a, const struct oh_extent *b)
{
	int order = compare(a->file, b->file);
	return order ? order : compare(a->offset, b->offset);
}

static int
by_destination(const struct oh_extent *a, const struct oh_extent *b)
{
	int order = compare(a->buffer, b->buffer);
	return order ? order : compare(a->buffer_offset, b->buffer_offset);
}

/* The extents in some order. Lists mostly come sorted, and then there is no list of indices. */
struct order {
	const struct oh_extent *extents;
	uint64_t *indices; /* NULL: as they come */
	uint64_t count;
};

static uint64_t
nth(const struct order *order, uint64_t i)
{
	return order->indices ? order->indices[i] : i;
}

/* What qsort_r's comparison needs. */
struct sorting {
	const struct oh_extent *extents;
	int (*compare)(const struct oh_extent *, const struct oh_extent *);
};

static int
compare_indices(const void *a, const void *b, void *context)
{
	const struct sorting *sorting = context;
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	int order = sorting->compare(&sorting->extents[x], &sorting->extents[y]);
	return order ? order : compare(x, y);
}

static onehop_status
sort(struct order *order, const struct oh_extent *extents, uint64_t count,
     int (*by)(const struct oh_extent *, const struct oh_extent *), struct onehop_error *error)
{
	struct sorting sorting = {extents, by};
	uint64_t sorted = 1;
	*order = (struct order){extents, NULL, count};
	while (sorted < count && by(&extents[sorted - 1], &extents[sorted]) <= 0)
		sorted++;
	if (sorted >= count)
		return ONEHOP_OK;
	order->indices = malloc(count * sizeof *order->indices);
	if (!order->indices)
		return oh_fail_no_memory(error, count * sizeof *order->indices, "the plan");
	for (uint64_t i = 0; i < count; i++)
		order->indices[i] = i;
	qsort_r(order->indices, count, sizeof *order->indices, compare_indices, &sorting);
	return ONEHOP_OK;
}

static onehop_status
check_overlap(const struct oh_extent *extents, uint64_t count, struct onehop_error *error)
{
	struct order order;
	const struct oh_extent *last = NULL;
	onehop_status status = sort(&order, extents, count, by_destination, error);
	for (uint64_t i = 0; i < count && !status; i++) {
		const struct oh_extent *extent = &extents[nth(&order, i)];
		char one[OH_SHOWN], two[OH_SHOWN];
		if (!oh_extent_bytes(extent))
			continue;
		if (last && last->buffer == extent->buffer &&
		    last->buffer_offset + oh_extent_bytes(last) > extent->buffer_offset)
			status = oh_fail(error, ONEHOP_INVALID_ARGUMENT,
					 "the destinations of %s and %s overlap at offset %llu of the "
					 "buffer",
					 label(one, last, (uint64_t)(last - extents)),
					 label(two, extent, (uint64_t)(extent - extents)),
					 (unsigned long long)extent->buffer_offset);
		last = extent;
	}
	free(order.indices);
	return status;
}

/* The state of the merge. Segments and pieces grow as they come: mostly there are few. */
struct build {
	const struct oh_plan_facts *facts;
	struct oh_ways ways;
	struct oh_plan *plan;
	uint64_t position;
	uint64_t segment_room;
	uint64_t piece_room;
	uint64_t part_room;
};

/* Makes room for one more. 1 if there is no memory. */
static int
grow(void **array, uint64_t count, uint64_t *room, size_t each)
{
	if (count < *room)
		return 0;
	uint64_t more = *room ? *room * 2 : 16;
	void *grown = realloc(*array, more * each);
	if (!grown)
		return 1;
	*array = grown;
	*room = more;
	return 0;
}

/* Can the extent go on where the segment ends? Rows only with the next row. */
static int
joins(const struct oh_segment *segment, const struct oh_extent *extent, const struct oh_way *way)
{
	if (segment->file != extent->file || segment->route != way->route ||
	    segment->drop != way->drop || segment->may_direct != way->may_direct ||
	    segment->reasons != way->reasons)
		return 0;
	if (!oh_extent_is_plain(extent))
		return segment->rows > 1 && segment->row_bytes == extent->row_bytes &&
		       segment->row_stride == extent->row_stride &&
		       extent->offset == segment->offset + segment->rows * segment->row_stride;
	return segment->rows == 1 && extent->offset >= segment->offset + segment->bytes &&
	       extent->offset - (segment->offset + segment->bytes) <= OH_PLAN_GAP_BYTES;
}

/* O_DIRECT reads whole pages, also those that the segment only begins or ends in: nothing else may
 * lie in them, and positions agree with file offsets within them. */
static void
place_direct(struct build *build, uint64_t offset)
{
	build->position = oh_align_down(build->position + OH_DIRECT_PAGE - 1, OH_DIRECT_PAGE) +
			  offset % OH_DIRECT_PAGE;
}

static int
takes_pages(const struct oh_segment *segment)
{
	return segment->route == ONEHOP_ROUTE_DIRECT || segment->may_direct;
}

static void
place_buffered(struct build *build, const struct oh_extent *extent)
{
	uint64_t modulus = build->facts->memory.copy_modulus;
	uint64_t want = build->facts->buffers[extent->buffer].address + extent->buffer_offset;
	struct oh_plan *plan = build->plan;
	if (plan->segment_count && takes_pages(&plan->segments[plan->segment_count - 1]))
		build->position = oh_align_down(build->position + OH_DIRECT_PAGE - 1, OH_DIRECT_PAGE);
	if (modulus > 1 && oh_extent_bytes(extent) >= WORTH_ALIGNING)
		build->position += (want - build->position) % modulus;
}

static int
open_segment(struct build *build, const struct oh_extent *extent, const struct oh_way *way)
{
	struct oh_plan *plan = build->plan;
	const struct oh_file_facts *file = &build->facts->files[extent->file];
	if (grow((void **)&plan->segments, plan->segment_count, &build->segment_room,
		 sizeof *plan->segments))
		return 1;
	if (way->route == ONEHOP_ROUTE_DIRECT || way->may_direct)
		place_direct(build, extent->offset);
	else
		place_buffered(build, extent);
	int plain = oh_extent_is_plain(extent);
	plan->segments[plan->segment_count++] = (struct oh_segment){
		.position = build->position,
		.file = extent->file,
		.offset = extent->offset,
		.first_piece = plan->piece_count,
		.least_slice = way->route == ONEHOP_ROUTE_DIRECT ? file->least_direct_slice
								 : file->least_slice,
		.row_bytes = plain ? 0 : extent->row_bytes,
		.rows = plain ? 1 : extent->rows,
		.row_stride = plain ? 0 : extent->row_stride,
		.route = way->route,
		.drop = way->drop,
		.may_direct = way->may_direct,
		.pinned = way->route == ONEHOP_ROUTE_MAPPED && file->pinned,
		.reasons = way->reasons,
	};
	return 0;
}

static int
add_piece(struct build *build, struct oh_segment *segment, const struct oh_extent *extent,
	  uint64_t at)
{
	struct oh_plan *plan = build->plan;
	struct oh_piece *last = segment->pieces ? &plan->pieces[plan->piece_count - 1] : NULL;
	if (last && last->buffer == extent->buffer && last->position + last->bytes == at &&
	    last->buffer_offset + last->bytes == extent->buffer_offset) {
		last->bytes += oh_extent_bytes(extent);
		return 0;
	}
	if (grow((void **)&plan->pieces, plan->piece_count, &build->piece_room,
		 sizeof *plan->pieces))
		return 1;
	plan->pieces[plan->piece_count++] = (struct oh_piece){
		.position = at,
		.bytes = oh_extent_bytes(extent),
		.buffer = extent->buffer,
		.buffer_offset = extent->buffer_offset,
	};
	segment->pieces++;
	return 0;
}

/* There is room. */
static void
add_part(struct oh_plan *plan, uint64_t at, uint64_t bytes, uint64_t index)
{
	struct oh_part *last = plan->part_count ? &plan->parts[plan->part_count - 1] : NULL;
	if (last && last->extent == index && last->position + last->bytes == at)
		last->bytes += bytes;
	else
		plan->parts[plan->part_count++] = (struct oh_part){at, bytes, index};
}

/* Adds an extent, or what of it goes one way. 1 if there is no memory. */
static int
add_run(struct build *build, const struct oh_extent *extent, uint64_t index,
	const struct oh_way *way)
{
	struct oh_plan *plan = build->plan;
	uint64_t bytes = oh_extent_bytes(extent);
	struct oh_segment *s = plan->segment_count ? &plan->segments[plan->segment_count - 1] : NULL;
	if (grow((void **)&plan->parts, plan->part_count, &build->part_room, sizeof *plan->parts))
		return 1;
	if (!s || !joins(s, extent, way)) {
		if (open_segment(build, extent, way))
			return 1;
		s = &plan->segments[plan->segment_count - 1];
	}
	uint64_t at = s->position + (s->rows == 1 ? extent->offset - s->offset : s->bytes);
	s->bytes = at + bytes - s->position;
	if (s->rows == 1)
		s->row_bytes = s->row_stride = s->bytes;
	else
		s->rows = s->bytes / s->row_bytes;
	build->position = s->position + s->bytes;
	add_part(plan, at, bytes, index);
	plan->bytes += bytes;
	return add_piece(build, s, extent, at);
}

static int
add(struct build *build, const struct oh_extent *extent, uint64_t index)
{
	uint64_t end = extent->offset + oh_extent_bytes(extent);
	struct oh_extent run = *extent;
	for (uint64_t at = extent->offset; at < end; at = run.offset + run.row_bytes) {
		struct oh_way way = oh_way_of(&build->ways, extent, at, end);
		if (!oh_extent_is_plain(extent))
			return add_run(build, extent, index, &way);
		run.offset = at;
		run.rows = 1;
		run.row_bytes = run.row_stride = way.end - at;
		run.buffer_offset = extent->buffer_offset + (at - extent->offset);
		if (add_run(build, &run, index, &way))
			return 1;
	}
	return 0;
}

/* Bytes of the pieces alone, without the gaps between them. */
static uint64_t
piece_bytes(const struct oh_plan *plan, const struct oh_segment *segment)
{
	uint64_t bytes = 0;
	for (uint64_t i = 0; i < segment->pieces; i++)
		bytes += plan->pieces[segment->first_piece + i].bytes;
	return bytes;
}

/* Bytes between rows that are read over with them, at most. */
static uint64_t
gap_bytes(const struct oh_segment *segment, const struct oh_storage_facts *storage)
{
	uint64_t gap = segment->row_stride - segment->row_bytes;
	return segment->rows == 1 || gap > storage->row_gap ? 0 : (segment->rows - 1) * gap;
}

/* Through a block of the ring, or straight into the destination? */
static void
stage(struct build *build, struct oh_segment *segment)
{
	struct oh_plan *plan = build->plan;
	uint32_t caps = build->facts->memory.caps;
	uint64_t bytes = piece_bytes(plan, segment);
	uint64_t least = oh_max(build->facts->files[segment->file].least_slice, OH_PLAN_IN_PLACE_BYTES);
	int large = segment->pieces == 1 || bytes / segment->pieces >= least;
	segment->staged = segment->route != ONEHOP_ROUTE_MAPPED;
	if (!(caps & OH_MEMORY_ADDRESSABLE)) {
		if (segment->pieces > 1 && !(caps & OH_MEMORY_BATCH_COPY))
			segment->reasons |= ONEHOP_REASON_NO_BATCH_COPY;
	} else if (!takes_pages(segment)) {
		segment->staged = !large;
		segment->reasons |= large ? 0 : ONEHOP_REASON_SMALL_PIECES;
	}
	plan->reasons |= segment->reasons;
	plan->read_bytes += segment->staged ? segment->bytes : bytes;
	plan->read_bytes += gap_bytes(segment, &build->facts->files[segment->file].storage);
	if (segment->staged)
		plan->staged_span += segment->bytes;
}

static onehop_status
merge(struct build *build, const struct order *order, uint64_t empty, struct onehop_error *error)
{
	struct oh_plan *plan = build->plan;
	plan->extent_count = order->count;
	plan->empty = malloc((empty + 1) * sizeof *plan->empty);
	/* Mostly one part an extent. */
	plan->parts = malloc((order->count + 1) * sizeof *plan->parts);
	build->part_room = order->count + 1;
	int failed = !plan->empty || !plan->parts;
	for (uint64_t i = 0; i < order->count && !failed; i++) {
		uint64_t index = nth(order, i);
		if (oh_extent_bytes(&order->extents[index]))
			failed = add(build, &order->extents[index], index);
	}
	if (failed)
		return oh_fail_no_memory(error, order->count * sizeof *plan->parts, "the plan");
	for (uint64_t i = 0; i < plan->segment_count; i++)
		stage(build, &plan->segments[i]);
	for (uint64_t i = 0; i < order->count; i++)
		if (!oh_extent_bytes(&order->extents[i]))
			plan->empty[plan->empty_count++] = i;
	return ONEHOP_OK;
}

onehop_status
oh_plan_build(const struct oh_extent *extents, uint64_t count, const struct oh_plan_facts *facts,
	      struct oh_plan *out, struct onehop_error *error)
{
	struct oh_plan plan = {0};
	struct build build = {.facts = facts, .plan = &plan};
	struct order order;
	uint64_t empty = 0, total = 0;
	onehop_status status = ONEHOP_OK;
	for (uint64_t i = 0; i < count && !status; i++) {
		status = check_extent(&extents[i], i, facts, &total, error);
		empty += !status && !oh_extent_bytes(&extents[i]);
	}
	if (!status)
		status = check_overlap(extents, count, error);
	if (!status)
		status = oh_ways_decide(extents, count, facts, &build.ways, error);
	if (!status)
		status = sort(&order, extents, count, by_source, error);
	if (status)
		return status;
	status = merge(&build, &order, empty, error);
	free(order.indices);
	if (status)
		oh_plan_free(&plan);
	else
		*out = plan;
	return status;
}

void
oh_plan_free(struct oh_plan *plan)
{
	free(plan->segments);
	free(plan->pieces);
	free(plan->parts);
	free(plan->empty);
	memset(plan, 0, sizeof *plan);
}

/* First index whose end lies behind the position. All three arrays begin with position, bytes. */
#define SEARCH(array, count, position)                                                             \
	uint64_t low = 0, high = (count);                                                          \
	while (low < high) {                                                                       \
		uint64_t middle = low + (high - low) / 2;                                          \
		if ((array)[middle].position + (array)[middle].bytes <= (position))                \
			low = middle + 1;                                                          \
		else                                                                               \
			high = middle;                                                             \
	}                                                                                          \
	return low

uint64_t
oh_plan_segment_from(const struct oh_plan *plan, uint64_t position)
{
	SEARCH(plan->segments, plan->segment_count, position);
}

uint64_t
oh_plan_piece_from(const struct oh_plan *plan, uint64_t position)
{
	SEARCH(plan->pieces, plan->piece_count, position);
}

uint64_t
oh_plan_part_from(const struct oh_plan *plan, uint64_t position)
{
	SEARCH(plan->parts, plan->part_count, position);
}
