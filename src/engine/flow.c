/* The flow of one transfer. See flow.h for the states.
 *
 * Invariants: windows follow each other without overlap along the plan's positions; each byte of a
 * segment is taken once; out is what was taken and has not ended; a part arrives when its remaining
 * count falls to 0, which happens once. It allocates in init only.
 */
#include "engine/flow.h"

#include "base/arith.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

onehop_status
oh_flow_init(struct oh_flow *flow, const struct oh_plan *plan, uint64_t block_bytes,
	     uint64_t slice_bytes, uint32_t windows, struct onehop_error *error)
{
	uint64_t extents = plan->extent_count;
	memset(flow, 0, sizeof *flow);
	flow->plan = plan;
	flow->block_bytes = block_bytes;
	flow->slice_bytes = slice_bytes;
	flow->window_count = windows + OH_FLOW_PLACES + OH_FLOW_MAPS;
	flow->windows = calloc(flow->window_count, sizeof *flow->windows);
	flow->remaining = calloc(extents + 1, sizeof *flow->remaining);
	flow->arrived = calloc(extents + 1, sizeof *flow->arrived);
	if (!flow->windows || !flow->remaining || !flow->arrived) {
		oh_flow_free(flow);
		return oh_fail_no_memory(error, extents * 2 * sizeof *flow->remaining,
					 "the state of a transfer");
	}
	return ONEHOP_OK;
}

void
oh_flow_free(struct oh_flow *flow)
{
	free(flow->windows);
	free(flow->remaining);
	free(flow->arrived);
	memset(flow, 0, sizeof *flow);
}

void
oh_flow_reset(struct oh_flow *flow)
{
	const struct oh_plan *plan = flow->plan;
	assert(flow->open_windows == 0);
	memset(flow->remaining, 0, plan->extent_count * sizeof *flow->remaining);
	for (uint64_t i = 0; i < plan->part_count; i++)
		flow->remaining[plan->parts[i].extent] += plan->parts[i].bytes;
	memcpy(flow->arrived, plan->empty, plan->empty_count * sizeof *plan->empty);
	flow->arrived_count = plan->empty_count;
	flow->arrived_given = 0;
	flow->landed = 0;
	flow->direct_bytes = 0;
	flow->mapped_bytes = 0;
	flow->go_direct = 0;
	flow->no_direct = 0;
	flow->reach = oh_max(flow->block_bytes / OH_FLOW_FIRST_PART, OH_FLOW_BLOCK_ALIGNMENT);
	flow->reach = oh_align_down(flow->reach, OH_FLOW_BLOCK_ALIGNMENT);
	flow->cursor = 0;
	flow->cursor_segment = 0;
	flow->stopped = 0;
}

enum oh_flow_want
oh_flow_wants(const struct oh_flow *flow)
{
	const struct oh_plan *plan = flow->plan;
	if (flow->stopped || flow->cursor_segment == plan->segment_count)
		return OH_FLOW_WANTS_NOTHING;
	const struct oh_segment *segment = &plan->segments[flow->cursor_segment];
	if (segment->route == ONEHOP_ROUTE_MAPPED)
		return flow->maps < OH_FLOW_MAPS ? OH_FLOW_WANTS_MAP : OH_FLOW_WANTS_NOTHING;
	if (!segment->staged)
		return flow->places < OH_FLOW_PLACES ? OH_FLOW_WANTS_PLACE : OH_FLOW_WANTS_NOTHING;
	uint32_t staged = flow->open_windows - flow->places - flow->maps;
	return staged < flow->window_count - OH_FLOW_PLACES - OH_FLOW_MAPS ? OH_FLOW_WANTS_BLOCK
									   : OH_FLOW_WANTS_NOTHING;
}

static uint64_t
segment_end(const struct oh_segment *segment)
{
	return segment->position + segment->bytes;
}

/* Lets window and cursor go through segments, as far as the block reaches. */
static void
stretch_staged(struct oh_flow *flow, struct oh_window *window)
{
	const struct oh_plan *plan = flow->plan;
	uint64_t limit = window->base + flow->reach;
	flow->reach = oh_min(flow->reach * 2, flow->block_bytes);
	while (flow->cursor_segment < plan->segment_count) {
		const struct oh_segment *segment = &plan->segments[flow->cursor_segment];
		if (!segment->staged || segment->position >= limit)
			return;
		window->end = flow->cursor = oh_min(segment_end(segment), limit);
		if (flow->cursor < segment_end(segment))
			return;
		flow->cursor_segment++;
	}
}

/* A window in place stays within one piece, so that its destination is one range. */
static void
stretch_in_place(struct oh_flow *flow, struct oh_window *window)
{
	const struct oh_plan *plan = flow->plan;
	const struct oh_segment *segment = &plan->segments[flow->cursor_segment];
	uint64_t index = oh_plan_piece_from(plan, window->next);
	const struct oh_piece *piece = &plan->pieces[index];
	window->begin = window->next = oh_max(window->next, piece->position);
	window->end = oh_min(piece->position + piece->bytes, window->begin + flow->block_bytes);
	flow->cursor = window->end;
	if (window->end == piece->position + piece->bytes &&
	    index + 1 == segment->first_piece + segment->pieces)
		flow->cursor_segment++;
}

/* Ends where a page of the file does, so that no two windows share one. */
static void
stretch_mapped(struct oh_flow *flow, struct oh_window *window)
{
	const struct oh_segment *segment = &flow->plan->segments[flow->cursor_segment];
	uint64_t offset = segment->offset + (window->begin - segment->position);
	uint64_t most = segment->pinned ? OH_FLOW_PINNED_BYTES : OH_FLOW_MAP_BYTES;
	uint64_t limit = oh_align_down(offset + most, OH_DIRECT_PAGE);
	window->end = oh_min(segment_end(segment), window->begin + (limit - offset));
	flow->cursor = window->end;
	if (window->end == segment_end(segment))
		flow->cursor_segment++;
}

uint32_t
oh_flow_open(struct oh_flow *flow, uint32_t lane, uint32_t block)
{
	const struct oh_segment *segment = &flow->plan->segments[flow->cursor_segment];
	uint32_t index = 0;
	assert(oh_flow_wants(flow) != OH_FLOW_WANTS_NOTHING);
	while (flow->windows[index].state != OH_WINDOW_CLOSED)
		index++;
	struct oh_window *window = &flow->windows[index];
	memset(window, 0, sizeof *window);
	window->begin = window->next = oh_max(flow->cursor, segment->position);
	window->segment = flow->cursor_segment;
	window->staged = segment->staged;
	window->mapped = segment->route == ONEHOP_ROUTE_MAPPED;
	window->lane = lane;
	window->block = block;
	window->state = OH_WINDOW_OPEN;
	if (window->mapped) {
		stretch_mapped(flow, window);
		flow->maps++;
		flow->startable++;
	} else if (window->staged) {
		window->base = oh_align_down(window->begin, OH_FLOW_BLOCK_ALIGNMENT);
		stretch_staged(flow, window);
	} else {
		stretch_in_place(flow, window);
		flow->places++;
	}
	flow->open_windows++;
	flow->takeable += !window->mapped;
	flow->reading++;
	return index;
}

/* Sets the read at hand: as much of [at, end) as one call can ask for. */
static void
aim(const struct oh_flow *flow, struct oh_flow_slice *slice, uint64_t at)
{
	const struct oh_segment *segment = &flow->plan->segments[slice->segment];
	if (at >= segment_end(segment))
		segment = &flow->plan->segments[++slice->segment];
	at = oh_max(at, segment->position);
	uint64_t left = oh_min(slice->end, segment_end(segment)) - at;
	uint64_t inside = at - segment->position;
	slice->at = at;
	slice->file = segment->file;
	slice->direct = !flow->no_direct && (segment->route == ONEHOP_ROUTE_DIRECT ||
					     (segment->may_direct && flow->go_direct));
	slice->drop = segment->drop;
	slice->probe = segment->may_direct && !flow->go_direct;
	slice->row_stride = segment->row_stride;
	if (segment->rows == 1) {
		slice->offset = segment->offset + inside;
		slice->row_bytes = left;
		slice->rows = 1;
	} else {
		uint64_t row = inside / segment->row_bytes, column = inside % segment->row_bytes;
		slice->offset = segment->offset + row * segment->row_stride + column;
		slice->rows = column ? 0 : left / segment->row_bytes;
		slice->row_bytes = segment->row_bytes;
		if (!slice->rows) {
			slice->rows = 1;
			slice->row_bytes = oh_min(left, segment->row_bytes - column);
		}
	}
	slice->bytes = slice->row_bytes * slice->rows;
}

/* The window whose next slice comes first along the plan. */
static uint32_t
oldest_open(const struct oh_flow *flow)
{
	uint32_t best = flow->window_count;
	for (uint32_t i = 0; i < flow->window_count; i++)
		if (flow->windows[i].state == OH_WINDOW_OPEN && !flow->windows[i].mapped &&
		    (best == flow->window_count || flow->windows[i].next < flow->windows[best].next))
			best = i;
	return best;
}

/* Goes on with whole segments, if they are small: taking each by itself costs more than reading it.
 * Together they are a small part of the window, so that there is work for many. Gives the last. */
static uint64_t
stretch_slice(const struct oh_flow *flow, const struct oh_window *window,
	      struct oh_flow_slice *slice)
{
	const struct oh_segment *segments = flow->plan->segments;
	uint64_t most = (window->end - window->begin) / OH_FLOW_LEAST_TAKES;
	uint64_t limit = oh_min(slice->begin + oh_min(flow->slice_bytes, most), window->end);
	uint64_t last = slice->segment;
	while (slice->end == segment_end(&segments[last]) && slice->end < window->end &&
	       segment_end(&segments[last + 1]) <= limit)
		slice->end = segment_end(&segments[++last]);
	return last;
}

int
oh_flow_take(struct oh_flow *flow, struct oh_flow_slice *slice)
{
	const struct oh_plan *plan = flow->plan;
	if (flow->stopped || !flow->takeable)
		return 0;
	uint32_t index = oldest_open(flow);
	struct oh_window *window = &flow->windows[index];
	const struct oh_segment *segment = &plan->segments[window->segment];
	slice->window = index;
	slice->segment = window->segment;
	slice->begin = oh_max(window->next, segment->position);
	slice->end = slice->begin + oh_max(flow->slice_bytes, segment->least_slice);
	/* Whole pages, so that no two reads touch the same one: positions agree with offsets. */
	if (segment->route == ONEHOP_ROUTE_DIRECT || segment->may_direct)
		slice->end = oh_align_down(slice->end, OH_DIRECT_PAGE);
	slice->end = oh_min(oh_min(segment_end(segment), window->end), slice->end);
	if (window->staged)
		window->segment = stretch_slice(flow, window, slice);
	aim(flow, slice, slice->begin);
	window->out += slice->end - slice->begin;
	window->next = slice->end;
	if (slice->end == segment_end(&plan->segments[window->segment]))
		window->segment++;
	if (window->next == window->end) {
		window->state = OH_WINDOW_READING;
		flow->takeable--;
	}
	return 1;
}

/* Bytes [begin, end) have landed: count them off the parts. */
static void
land(struct oh_flow *flow, uint64_t begin, uint64_t end)
{
	const struct oh_plan *plan = flow->plan;
	for (uint64_t i = oh_plan_part_from(plan, begin); i < plan->part_count; i++) {
		const struct oh_part *part = &plan->parts[i];
		if (part->position >= end)
			return;
		uint64_t from = oh_max(begin, part->position);
		uint64_t to = oh_min(end, part->position + part->bytes);
		flow->remaining[part->extent] -= to - from;
		flow->landed += to - from;
		if (flow->remaining[part->extent] == 0)
			flow->arrived[flow->arrived_count++] = part->extent;
	}
}

static void
close_window(struct oh_flow *flow, struct oh_window *window)
{
	if (window->state == OH_WINDOW_OPEN && window->mapped)
		flow->startable--;
	else if (window->state == OH_WINDOW_OPEN)
		flow->takeable--;
	if (window->state != OH_WINDOW_COPYING)
		flow->reading--;
	if (window->mapped)
		flow->maps--;
	else if (!window->staged)
		flow->places--;
	window->state = OH_WINDOW_CLOSED;
	flow->open_windows--;
}

enum oh_flow_act
oh_flow_read_ended(struct oh_flow *flow, struct oh_flow_slice *slice, uint64_t bytes, int ok)
{
	struct oh_window *window = &flow->windows[slice->window];
	assert(bytes <= slice->bytes && (bytes > 0 || !ok));
	if (!ok)
		oh_flow_stop(flow);
	if (slice->direct)
		flow->direct_bytes += bytes;
	if (!flow->stopped && slice->at + bytes < slice->end) {
		aim(flow, slice, slice->at + bytes);
		return OH_FLOW_AGAIN;
	}
	window->out -= slice->end - slice->begin;
	if (window->out > 0 || (!flow->stopped && window->state == OH_WINDOW_OPEN))
		return OH_FLOW_NOTHING;
	if (flow->stopped) {
		close_window(flow, window);
		return OH_FLOW_FREE;
	}
	if (window->staged) {
		window->state = OH_WINDOW_COPYING;
		flow->reading--;
		return OH_FLOW_COPY;
	}
	land(flow, window->begin, window->end);
	close_window(flow, window);
	return OH_FLOW_FREE;
}

int
oh_flow_take_map(struct oh_flow *flow, uint32_t *index)
{
	if (flow->stopped || !flow->startable)
		return 0;
	for (uint32_t i = 0; i < flow->window_count; i++) {
		struct oh_window *window = &flow->windows[i];
		if (window->state != OH_WINDOW_OPEN || !window->mapped)
			continue;
		window->state = OH_WINDOW_COPYING;
		flow->startable--;
		flow->reading--;
		*index = i;
		return 1;
	}
	return 0;
}

struct oh_flow_range
oh_flow_map_range(const struct oh_flow *flow, uint32_t index)
{
	const struct oh_window *window = &flow->windows[index];
	const struct oh_segment *segment = &flow->plan->segments[window->segment];
	return (struct oh_flow_range){
		.offset = segment->offset + (window->begin - segment->position),
		.bytes = window->end - window->begin,
		.file = segment->file,
	};
}

void
oh_flow_direct_refused(struct oh_flow *flow, struct oh_flow_slice *slice)
{
	flow->no_direct = 1;
	aim(flow, slice, slice->at);
}

/* Pieces of several segments may lie side by side on both sides. */
static int
goes_on(const struct oh_flow_copy *last, const struct oh_flow_copy *next)
{
	return last->buffer == next->buffer &&
	       last->block_offset + last->bytes == next->block_offset &&
	       last->buffer_offset + last->bytes == next->buffer_offset;
}

uint32_t
oh_flow_copies(const struct oh_flow *flow, uint32_t index, uint64_t *piece,
	       struct oh_flow_copy *copies, uint32_t capacity)
{
	const struct oh_plan *plan = flow->plan;
	const struct oh_window *window = &flow->windows[index];
	/* Positions to offsets in the block, or in the file. */
	uint64_t base = window->base;
	uint32_t count = 0;
	assert(window->state == OH_WINDOW_COPYING);
	if (window->mapped) {
		struct oh_flow_range range = oh_flow_map_range(flow, index);
		base = window->begin - range.offset;
	}
	if (*piece == UINT64_MAX)
		*piece = oh_plan_piece_from(plan, window->begin);
	for (; count < capacity && *piece < plan->piece_count; ++*piece) {
		const struct oh_piece *p = &plan->pieces[*piece];
		if (p->position >= window->end)
			break;
		uint64_t from = oh_max(window->begin, p->position);
		uint64_t to = oh_min(window->end, p->position + p->bytes);
		struct oh_flow_copy copy = {
			.block_offset = from - base,
			.buffer_offset = p->buffer_offset + (from - p->position),
			.bytes = to - from,
			.buffer = p->buffer,
		};
		if (count && goes_on(&copies[count - 1], &copy))
			copies[count - 1].bytes += copy.bytes;
		else
			copies[count++] = copy;
	}
	return count;
}

void
oh_flow_copy_ended(struct oh_flow *flow, uint32_t index, int ok)
{
	struct oh_window *window = &flow->windows[index];
	assert(window->state == OH_WINDOW_COPYING);
	if (ok)
		land(flow, window->begin, window->end);
	else
		oh_flow_stop(flow);
	if (ok && window->mapped)
		flow->mapped_bytes += window->end - window->begin;
	close_window(flow, window);
}

void
oh_flow_stop(struct oh_flow *flow)
{
	flow->stopped = 1;
}

int
oh_flow_reap(struct oh_flow *flow, uint32_t *window)
{
	assert(flow->stopped);
	for (uint32_t i = 0; i < flow->window_count; i++) {
		if (flow->windows[i].state == OH_WINDOW_OPEN && flow->windows[i].out == 0) {
			close_window(flow, &flow->windows[i]);
			*window = i;
			return 1;
		}
	}
	return 0;
}

int
oh_flow_next_arrival(struct oh_flow *flow, uint64_t *extent)
{
	if (flow->arrived_given == flow->arrived_count)
		return 0;
	*extent = flow->arrived[flow->arrived_given++];
	return 1;
}

int
oh_flow_ended(const struct oh_flow *flow)
{
	return flow->open_windows == 0 &&
	       (flow->stopped || flow->cursor_segment == flow->plan->segment_count);
}

int
oh_flow_all_read(const struct oh_flow *flow)
{
	return flow->reading == 0 &&
	       (flow->stopped || flow->cursor_segment == flow->plan->segment_count);
}
