/* The planner: extents and facts into a plan. What is refused and what is not is judged here once
 * more, the slow way; of a plan, every byte of every extent comes from its place in the file and
 * goes to its place in the buffer exactly once.
 *
 * An input is numbers, see extents.h.
 */
#include "extents.h"

/* So that 48 extents cannot overflow 64 bits together: no file system has larger files. */
#define LIMIT (UINT64_C(1) << 56)

typedef unsigned __int128 wide;

static int
is_inside(const struct oh_extent *e, const struct oh_plan_facts *facts)
{
	wide bytes = (wide)e->rows * e->row_bytes;
	if (bytes > UINT64_MAX)
		return 0;
	if (!bytes)
		return 1;
	if (e->rows > 1 && e->row_stride < e->row_bytes)
		return 0;
	return e->buffer_offset + bytes <= facts->buffers[e->buffer].bytes &&
	       (wide)(e->rows - 1) * e->row_stride + e->row_bytes + e->offset <=
		       facts->files[e->file].storage.bytes;
}

static uint64_t
bytes_of(const struct oh_extent *e)
{
	return e->rows * e->row_bytes;
}

static int
overlap(const struct oh_extent *a, const struct oh_extent *b)
{
	return a->buffer == b->buffer && bytes_of(a) && bytes_of(b) &&
	       a->buffer_offset < b->buffer_offset + bytes_of(b) &&
	       b->buffer_offset < a->buffer_offset + bytes_of(a);
}

static int
is_good(const struct world *w)
{
	for (uint64_t i = 0; i < w->count; i++)
		if (!is_inside(&w->extents[i], &w->facts))
			return 0;
	for (uint64_t i = 0; i < w->count; i++)
		for (uint64_t j = 0; j < i; j++)
			if (overlap(&w->extents[i], &w->extents[j]))
				return 0;
	return 1;
}

/* Where byte number `at` of the extent lies in its file. */
static uint64_t
source_of(const struct oh_extent *e, uint64_t at)
{
	return e->offset + at / e->row_bytes * e->row_stride + at % e->row_bytes;
}

static void
check_segments(const struct oh_plan *plan, const struct world *w)
{
	uint64_t end = 0, pieces = 0;
	uint32_t reasons = 0;
	for (uint64_t i = 0; i < plan->segment_count; i++) {
		const struct oh_segment *s = &plan->segments[i];
		MUST(s->file < FILES_MOST && s->route < ONEHOP_ROUTE_COUNT);
		MUST(s->rows > 0 && s->row_bytes > 0 && s->bytes == s->rows * s->row_bytes);
		MUST((wide)(s->rows - 1) * s->row_stride + s->row_bytes + s->offset <=
		     w->files[s->file].storage.bytes);
		MUST(s->position >= end);
		end = s->position + s->bytes;
		MUST(s->first_piece == pieces && s->pieces > 0);
		pieces += s->pieces;
		reasons |= s->reasons;
	}
	MUST(pieces == plan->piece_count && reasons == plan->reasons);
}

/* Pieces lie in their segments and buffers, in order. */
static void
check_pieces(const struct oh_plan *plan, const struct world *w)
{
	uint64_t end = 0, read = 0;
	for (uint64_t i = 0; i < plan->segment_count; i++) {
		const struct oh_segment *s = &plan->segments[i];
		for (uint64_t j = s->first_piece; j < s->first_piece + s->pieces; j++) {
			const struct oh_piece *p = &plan->pieces[j];
			MUST(p->bytes > 0 && p->position >= end && p->position >= s->position);
			end = p->position + p->bytes;
			MUST(end <= s->position + s->bytes);
			MUST(p->buffer < BUFFERS_MOST);
			MUST((wide)p->buffer_offset + p->bytes <= w->buffers[p->buffer].bytes);
			read += s->staged ? 0 : p->bytes;
		}
		read += s->staged ? s->bytes : 0;
	}
	MUST(read == plan->read_bytes);
}

/* Bytes at a position come from and go to where their extent says. Returns how many, of as many as
 * are asked about; *first is which of the extent's bytes lies there. */
static uint64_t
check_bytes(const struct oh_plan *plan, const struct oh_extent *e, uint64_t position,
	    uint64_t bytes, uint64_t *first)
{
	uint64_t p = 0, s = 0;
	while (p < plan->piece_count &&
	       plan->pieces[p].position + plan->pieces[p].bytes <= position)
		p++;
	while (s < plan->segment_count &&
	       plan->segments[s].position + plan->segments[s].bytes <= position)
		s++;
	MUST(p < plan->piece_count && s < plan->segment_count);
	MUST(oh_plan_piece_from(plan, position) == p && oh_plan_segment_from(plan, position) == s);
	const struct oh_piece *piece = &plan->pieces[p];
	const struct oh_segment *segment = &plan->segments[s];
	uint64_t in_piece = position - piece->position, in_segment = position - segment->position;
	MUST(position >= piece->position && position >= segment->position);
	MUST(piece->buffer == e->buffer && segment->file == e->file);
	MUST(piece->buffer_offset + in_piece >= e->buffer_offset);
	*first = piece->buffer_offset + in_piece - e->buffer_offset;
	int rows = e->rows > 1 && e->row_stride != e->row_bytes;
	MUST(rows == (segment->rows > 1) && *first < bytes_of(e));
	MUST(!rows || (segment->row_bytes == e->row_bytes && segment->row_stride == e->row_stride));
	MUST(source_of(e, *first) == segment->offset + in_segment / segment->row_bytes *
							       segment->row_stride +
					     in_segment % segment->row_bytes);
	uint64_t left = piece->bytes - in_piece, segment_left = segment->bytes - in_segment;
	left = left < segment_left ? left : segment_left;
	return left < bytes ? left : bytes;
}

/* The part's bytes follow each other in its extent, though it may lie in several pieces. Returns
 * which of the extent's bytes is its first. */
static uint64_t
check_part(const struct oh_plan *plan, const struct world *w, const struct oh_part *part)
{
	MUST(part->extent < w->count && part->bytes > 0);
	const struct oh_extent *e = &w->extents[part->extent];
	uint64_t begin = 0, first;
	for (uint64_t at = 0; at < part->bytes;) {
		uint64_t bytes = check_bytes(plan, e, part->position + at, part->bytes - at, &first);
		begin = at ? begin : first;
		MUST(first == begin + at);
		at += bytes;
	}
	MUST(begin + part->bytes <= bytes_of(e));
	return begin;
}

/* The parts of each extent follow each other from its first byte to its last. */
static void
check_parts(const struct oh_plan *plan, const struct world *w)
{
	uint64_t covered[EXTENTS_MOST] = {0}, end = 0, bytes = 0;
	for (uint64_t i = 0; i < plan->part_count; i++) {
		const struct oh_part *part = &plan->parts[i];
		MUST(part->position >= end);
		end = part->position + part->bytes;
		MUST(check_part(plan, w, part) == covered[part->extent]);
		covered[part->extent] += part->bytes;
		bytes += part->bytes;
		MUST(oh_plan_part_from(plan, part->position) == i);
		MUST(oh_plan_part_from(plan, end - 1) == i);
	}
	for (uint64_t i = 0; i < w->count; i++)
		MUST(covered[i] == bytes_of(&w->extents[i]));
	MUST(bytes == plan->bytes);
}

static void
check_empty(const struct oh_plan *plan, const struct world *w)
{
	int seen[EXTENTS_MOST] = {0};
	for (uint64_t i = 0; i < plan->empty_count; i++) {
		MUST(plan->empty[i] < w->count && !seen[plan->empty[i]]++);
		MUST(bytes_of(&w->extents[plan->empty[i]]) == 0);
	}
	for (uint64_t i = 0; i < w->count; i++)
		MUST(seen[i] == (bytes_of(&w->extents[i]) == 0));
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, data + size};
	struct onehop_error error = {0};
	struct oh_plan plan, before;
	struct world w;
	take_world(&in, &w, LIMIT);
	/* Exactly so many, so that a look past the end is seen. */
	struct oh_extent *extents =
		(struct oh_extent *)copy_of((const uint8_t *)w.extents, w.count * sizeof w.extents[0]);
	memset(&plan, 0xA5, sizeof plan);
	before = plan;
	onehop_status status = oh_plan_build(extents, w.count, &w.facts, &plan, &error);
	free(extents);
	if (status) {
		MUST(status == ONEHOP_INVALID_ARGUMENT || status == ONEHOP_NO_ROUTE);
		MUST(status == ONEHOP_NO_ROUTE || !is_good(&w));
		MUST(status != ONEHOP_NO_ROUTE || w.facts.forced_route != ONEHOP_AUTO);
		check_message(&error, status);
		MUST(memcmp(&plan, &before, sizeof plan) == 0);
		return 0;
	}
	MUST(is_good(&w));
	check_segments(&plan, &w);
	check_pieces(&plan, &w);
	check_parts(&plan, &w);
	check_empty(&plan, &w);
	oh_plan_free(&plan);
	return 0;
}
