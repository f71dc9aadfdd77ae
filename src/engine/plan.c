/* Builds a plan: check, sort, merge, route, place.
 *
 * Extents are taken in the order of their bytes on storage, so that reads run forward. Neighbours on
 * storage become one segment; within it, neighbours in the destination become one piece. Where the
 * device is addressable and the pieces are large, bytes go straight into the destination; else
 * through staging blocks. Positions keep the destination's address modulo what its copies like.
 *
 * It does no I/O and knows no back end.
 */
#include "engine/plan.h"

#include "base/arith.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Segments under this size are not worth padding for the copies' modulus. */
#define WORTH_ALIGNING (UINT64_C(32) << 10)

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

static onehop_status
check_extent(const struct oh_extent *extent, uint64_t index, const struct oh_plan_facts *facts,
	     uint64_t *bytes, struct onehop_error *error)
{
	char shown[OH_SHOWN];
	uint64_t end;
	assert(extent->file < facts->file_count && extent->buffer < facts->buffer_count);
	if (oh_mul(extent->row_bytes, extent->rows, bytes))
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "%s: its size overflows 64 bits",
			       label(shown, extent, index));
	if (*bytes == 0)
		return ONEHOP_OK;
	if (oh_add(extent->buffer_offset, *bytes, &end) ||
	    end > facts->buffers[extent->buffer].bytes)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "%s: %llu bytes at offset %llu do not fit a buffer of %llu",
			       label(shown, extent, index), (unsigned long long)*bytes,
			       (unsigned long long)extent->buffer_offset,
			       (unsigned long long)facts->buffers[extent->buffer].bytes);
	return check_source(extent, index, &facts->files[extent->file], error);
}

/* An extent in the making of a plan. */
struct draft {
	const struct oh_extent *extent;
	uint64_t index;
	uint64_t bytes;
};

static int
compare(uint64_t a, uint64_t b)
{
	return a < b ? -1 : a > b;
}

static int
by_source(const void *a, const void *b)
{
	const struct draft *x = a, *y = b;
	int order = compare(x->extent->file, y->extent->file);
	if (!order)
		order = compare(x->extent->offset, y->extent->offset);
	return order ? order : compare(x->index, y->index);
}

static int
by_destination(const void *a, const void *b)
{
	const struct draft *x = a, *y = b;
	int order = compare(x->extent->buffer, y->extent->buffer);
	if (!order)
		order = compare(x->extent->buffer_offset, y->extent->buffer_offset);
	return order ? order : compare(x->index, y->index);
}

/* Lists mostly come sorted. */
static void
sort(struct draft *drafts, uint64_t count, int (*order)(const void *, const void *))
{
	for (uint64_t i = 1; i < count; i++) {
		if (order(&drafts[i - 1], &drafts[i]) > 0) {
			qsort(drafts, count, sizeof *drafts, order);
			return;
		}
	}
}

static onehop_status
check_overlap(struct draft *drafts, uint64_t count, struct onehop_error *error)
{
	sort(drafts, count, by_destination);
	for (uint64_t i = 1; i < count; i++) {
		const struct oh_extent *a = drafts[i - 1].extent, *b = drafts[i].extent;
		char one[OH_SHOWN], two[OH_SHOWN];
		if (a->buffer == b->buffer &&
		    a->buffer_offset + drafts[i - 1].bytes > b->buffer_offset)
			return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
				       "the destinations of %s and %s overlap at offset %llu of the "
				       "buffer",
				       label(one, a, drafts[i - 1].index),
				       label(two, b, drafts[i].index),
				       (unsigned long long)b->buffer_offset);
	}
	return ONEHOP_OK;
}

/* The state of the merge. */
struct build {
	const struct oh_plan_facts *facts;
	struct oh_plan *plan;
	uint64_t position;
};

static int
is_plain(const struct oh_extent *extent)
{
	return extent->rows == 1 || extent->row_stride == extent->row_bytes;
}

/* Can the extent go on where the segment ends? */
static int
joins(const struct oh_segment *segment, const struct oh_extent *extent)
{
	return segment->rows == 1 && is_plain(extent) && segment->file == extent->file &&
	       extent->offset >= segment->offset + segment->bytes &&
	       extent->offset - (segment->offset + segment->bytes) <= OH_PLAN_GAP_BYTES;
}

static struct oh_segment *
open_segment(struct build *build, const struct draft *draft)
{
	const struct oh_extent *extent = draft->extent;
	struct oh_segment *segment = &build->plan->segments[build->plan->segment_count++];
	uint64_t modulus = build->facts->memory.copy_modulus;
	if (modulus > 1 && draft->bytes >= WORTH_ALIGNING) {
		uint64_t want = build->facts->buffers[extent->buffer].address +
				extent->buffer_offset;
		build->position += (want - build->position) % modulus;
	}
	memset(segment, 0, sizeof *segment);
	segment->position = build->position;
	segment->file = extent->file;
	segment->offset = extent->offset;
	segment->first_piece = build->plan->piece_count;
	segment->row_bytes = is_plain(extent) ? 0 : extent->row_bytes;
	segment->rows = is_plain(extent) ? 1 : extent->rows;
	segment->row_stride = is_plain(extent) ? 0 : extent->row_stride;
	return segment;
}

static void
add_piece(struct build *build, struct oh_segment *segment, const struct draft *draft, uint64_t at)
{
	struct oh_plan *plan = build->plan;
	const struct oh_extent *extent = draft->extent;
	struct oh_piece *last = segment->pieces ? &plan->pieces[plan->piece_count - 1] : NULL;
	if (last && last->buffer == extent->buffer && last->position + last->bytes == at &&
	    last->buffer_offset + last->bytes == extent->buffer_offset) {
		last->bytes += draft->bytes;
		return;
	}
	plan->pieces[plan->piece_count++] = (struct oh_piece){
		.position = at,
		.bytes = draft->bytes,
		.buffer = extent->buffer,
		.buffer_offset = extent->buffer_offset,
	};
	segment->pieces++;
}

static void
add(struct build *build, struct oh_segment **segment, const struct draft *draft)
{
	struct oh_plan *plan = build->plan;
	if (!*segment || !joins(*segment, draft->extent))
		*segment = open_segment(build, draft);
	struct oh_segment *s = *segment;
	uint64_t at = s->position;
	if (s->rows == 1)
		at += draft->extent->offset - s->offset;
	s->bytes = at + draft->bytes - s->position;
	if (s->rows == 1)
		s->row_bytes = s->row_stride = s->bytes;
	build->position = s->position + s->bytes;
	add_piece(build, s, draft, at);
	plan->parts[plan->part_count++] = (struct oh_part){at, draft->bytes, draft->index};
	plan->bytes += draft->bytes;
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

static void
route(struct build *build, struct oh_segment *segment)
{
	struct oh_plan *plan = build->plan;
	uint32_t caps = build->facts->memory.caps;
	uint64_t bytes = piece_bytes(plan, segment);
	segment->route = ONEHOP_ROUTE_BUFFERED;
	segment->staged = 1;
	if (caps & OH_MEMORY_ADDRESSABLE) {
		if (bytes / segment->pieces >= OH_PLAN_IN_PLACE_BYTES || segment->pieces == 1)
			segment->staged = 0;
		else
			segment->reasons |= ONEHOP_REASON_SMALL_PIECES;
	} else if (segment->pieces > 1 && !(caps & OH_MEMORY_BATCH_COPY)) {
		segment->reasons |= ONEHOP_REASON_NO_BATCH_COPY;
	}
	if (build->facts->forced_route != ONEHOP_AUTO)
		segment->reasons |= ONEHOP_REASON_ROUTE_FORCED;
	plan->reasons |= segment->reasons;
	plan->read_bytes += segment->staged ? segment->bytes : bytes;
	if (segment->staged)
		plan->staged_span += segment->bytes;
}

static onehop_status
allocate(struct oh_plan *plan, uint64_t count, uint64_t empty, struct onehop_error *error)
{
	uint64_t room = count ? count : 1;
	memset(plan, 0, sizeof *plan);
	plan->segments = calloc(room, sizeof *plan->segments);
	plan->pieces = calloc(room, sizeof *plan->pieces);
	plan->parts = calloc(room, sizeof *plan->parts);
	plan->empty = calloc(empty ? empty : 1, sizeof *plan->empty);
	if (plan->segments && plan->pieces && plan->parts && plan->empty)
		return ONEHOP_OK;
	oh_plan_free(plan);
	return oh_fail_no_memory(error, room * (sizeof *plan->segments + sizeof *plan->pieces),
				 "the plan");
}

/* Gives back what merging saved; keeps the block where that fails. */
static void *
shrink(void *memory, uint64_t count, size_t each)
{
	void *smaller = realloc(memory, (count ? count : 1) * each);
	return smaller ? smaller : memory;
}

static onehop_status
build_from(struct draft *drafts, uint64_t count, uint64_t used, const struct oh_plan_facts *facts,
	   const struct oh_extent *extents, struct oh_plan *out, struct onehop_error *error)
{
	struct oh_plan plan;
	struct oh_segment *segment = NULL;
	onehop_status status = check_overlap(drafts, used, error);
	if (status)
		return status;
	status = allocate(&plan, used, count - used, error);
	if (status)
		return status;
	struct build build = {.facts = facts, .plan = &plan, .position = 0};
	sort(drafts, used, by_source);
	for (uint64_t i = 0; i < used; i++)
		add(&build, &segment, &drafts[i]);
	for (uint64_t i = 0; i < plan.segment_count; i++)
		route(&build, &plan.segments[i]);
	for (uint64_t i = 0; i < count; i++)
		if (extents[i].row_bytes == 0 || extents[i].rows == 0)
			plan.empty[plan.empty_count++] = i;
	plan.segments = shrink(plan.segments, plan.segment_count, sizeof *plan.segments);
	plan.pieces = shrink(plan.pieces, plan.piece_count, sizeof *plan.pieces);
	*out = plan;
	return ONEHOP_OK;
}

onehop_status
oh_plan_build(const struct oh_extent *extents, uint64_t count, const struct oh_plan_facts *facts,
	      struct oh_plan *plan, struct onehop_error *error)
{
	uint64_t used = 0;
	onehop_status status = ONEHOP_OK;
	struct draft *drafts = calloc(count ? count : 1, sizeof *drafts);
	if (!drafts)
		return oh_fail_no_memory(error, count * sizeof *drafts, "the plan");
	for (uint64_t i = 0; i < count && !status; i++) {
		struct draft draft = {&extents[i], i, 0};
		status = check_extent(&extents[i], i, facts, &draft.bytes, error);
		if (!status && draft.bytes)
			drafts[used++] = draft;
	}
	if (!status)
		status = build_from(drafts, count, used, facts, extents, plan, error);
	free(drafts);
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
