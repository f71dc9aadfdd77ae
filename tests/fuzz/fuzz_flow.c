/* The flow: bytes play storage and device. Windows are opened, slices taken, reads and copies ended
 * in any order, whole, short or failed, and the flow stopped at any point. A copy takes its bytes
 * from the block only when it ends, so a block that is given out too early shows in the buffer.
 * A direct read writes whole pages, as the storage does: what else lies in them is spoilt then.
 *
 * An input is a plan (extents.h), sizes, then one byte an event. After it the play goes on to its
 * end by itself; then the same flow runs once more without a fault.
 */
#include "extents.h"

#include "engine/flow.h"

#define LIMIT (UINT64_C(64) << 10)
#define BLOCKS_MOST 4
#define BLOCK_BYTES UINT64_C(8192)
#define READS_MOST 64

struct play {
	struct world world;
	struct oh_plan plan;
	struct oh_flow flow;
	uint8_t *memory[BUFFERS_MOST];
	uint8_t *blocks[BLOCKS_MOST];
	int block_used[BLOCKS_MOST];
	uint32_t block_count;
	struct oh_flow_slice reads[READS_MOST];
	uint32_t read_count;
	int map_used[OH_FLOW_MAPS];
	uint32_t copies[BLOCKS_MOST + OH_FLOW_MAPS];
	uint32_t copy_count;
	int arrived[EXTENTS_MOST];
	uint64_t arrived_count;
	int failed; /* something failed or it was stopped */
};

static uint8_t
file_byte(uint32_t file, uint64_t offset)
{
	return (uint8_t)((offset * UINT64_C(2654435761) + file) >> 13 ^ offset);
}

static void
check_arrived(const struct play *p, const struct oh_extent *e)
{
	for (uint64_t i = 0; i < e->rows * e->row_bytes; i++)
		MUST(p->memory[e->buffer][e->buffer_offset + i] ==
		     file_byte(e->file, e->offset + i / e->row_bytes * e->row_stride +
						i % e->row_bytes));
}

static void
drain_arrivals(struct play *p)
{
	uint64_t extent;
	while (oh_flow_next_arrival(&p->flow, &extent)) {
		MUST(extent < p->world.count && !p->arrived[extent]++);
		check_arrived(p, &p->world.extents[extent]);
		p->arrived_count++;
	}
}

static void
free_window(struct play *p, uint32_t window)
{
	const struct oh_window *w = &p->flow.windows[window];
	if (w->mapped) {
		MUST(w->block < OH_FLOW_MAPS && p->map_used[w->block]);
		p->map_used[w->block] = 0;
	}
	if (!w->staged)
		return;
	MUST(w->block < p->block_count && p->block_used[w->block]);
	p->block_used[w->block] = 0;
}

static void
reap(struct play *p)
{
	uint32_t window;
	p->failed = 1;
	while (oh_flow_reap(&p->flow, &window))
		free_window(p, window);
}

/* 1 if a window was opened. */
static int
open_one(struct play *p)
{
	enum oh_flow_want want = oh_flow_wants(&p->flow);
	if (want == OH_FLOW_WANTS_NOTHING)
		return 0;
	uint32_t block = 0;
	if (want == OH_FLOW_WANTS_BLOCK) {
		while (block < p->block_count && p->block_used[block])
			block++;
		if (block == p->block_count)
			return 0;
		p->block_used[block] = 1;
		memset(p->blocks[block], 0xA5, BLOCK_BYTES);
	}
	if (want == OH_FLOW_WANTS_MAP) {
		while (p->map_used[block])
			block++;
		MUST(block < OH_FLOW_MAPS);
		p->map_used[block] = 1;
	}
	oh_flow_open(&p->flow, 0, block);
	return 1;
}

/* The copies of a mapped window are under way. */
static int
map_one(struct play *p)
{
	uint32_t window;
	if (!oh_flow_take_map(&p->flow, &window))
		return 0;
	MUST(p->flow.windows[window].mapped);
	MUST(p->copy_count < p->block_count + OH_FLOW_MAPS);
	p->copies[p->copy_count++] = window;
	return 1;
}

static int
take_one(struct play *p)
{
	if (p->read_count == READS_MOST || !oh_flow_take(&p->flow, &p->reads[p->read_count]))
		return 0;
	const struct oh_flow_slice *s = &p->reads[p->read_count++];
	MUST(s->bytes > 0 && s->bytes == s->rows * s->row_bytes);
	MUST(s->begin == s->at && s->at + s->bytes <= s->end);
	MUST(s->end - s->begin <= p->flow.slice_bytes);
	return 1;
}

static uint8_t *
place_of(struct play *p, const struct oh_flow_slice *s)
{
	const struct oh_window *w = &p->flow.windows[s->window];
	MUST(s->at >= w->begin && s->at + s->bytes <= w->end);
	if (w->staged) {
		MUST(s->at - w->base + s->bytes <= BLOCK_BYTES);
		return p->blocks[w->block] + (s->at - w->base);
	}
	const struct oh_piece *piece = &p->plan.pieces[oh_plan_piece_from(&p->plan, s->at)];
	MUST(s->at >= piece->position && s->at + s->bytes <= piece->position + piece->bytes);
	return p->memory[piece->buffer] + piece->buffer_offset + (s->at - piece->position);
}

static void
read_pages(struct play *p, const struct oh_flow_slice *s, uint8_t *to, uint64_t bytes)
{
	const struct oh_window *w = &p->flow.windows[s->window];
	uint64_t lead = s->offset % OH_DIRECT_PAGE;
	uint64_t end = (lead + s->bytes + OH_DIRECT_PAGE - 1) / OH_DIRECT_PAGE * OH_DIRECT_PAGE;
	MUST(w->staged && s->rows == 1);
	MUST((s->at - w->base) % OH_DIRECT_PAGE == lead);
	MUST(s->at - w->base - lead + end <= BLOCK_BYTES);
	if (bytes < s->bytes)
		end = lead + bytes;
	for (uint64_t i = 0; i < end; i++)
		if (s->offset - lead + i < p->world.files[s->file].storage.bytes)
			to[(int64_t)(i - lead)] = file_byte(s->file, s->offset - lead + i);
}

static void
read_bytes(struct play *p, const struct oh_flow_slice *s, uint64_t bytes)
{
	uint8_t *to = place_of(p, s);
	if (s->direct) {
		read_pages(p, s, to, bytes);
		return;
	}
	for (uint64_t i = 0; i < bytes; i++)
		to[i] = file_byte(s->file, s->offset + i / s->row_bytes * s->row_stride +
						   i % s->row_bytes);
}

static void
end_read(struct play *p, uint32_t index, uint64_t bytes, int ok)
{
	struct oh_flow_slice *s = &p->reads[index];
	uint64_t at = s->at;
	if (ok)
		read_bytes(p, s, bytes);
	enum oh_flow_act act = oh_flow_read_ended(&p->flow, s, ok ? bytes : 0, ok);
	if (act == OH_FLOW_AGAIN) {
		/* Or at the next segment, behind what pads it. */
		MUST(s->at >= at + bytes && s->bytes > 0 && s->at + s->bytes <= s->end);
		return;
	}
	uint32_t window = s->window;
	*s = p->reads[--p->read_count];
	if (act == OH_FLOW_COPY) {
		MUST(p->copy_count < p->block_count + OH_FLOW_MAPS);
		p->copies[p->copy_count++] = window;
	} else if (act == OH_FLOW_FREE) {
		free_window(p, window);
	}
	if (!ok)
		reap(p);
}

static void
copy_one(struct play *p, const struct oh_window *w, const struct oh_flow_range *range,
	 const struct oh_flow_copy *copy)
{
	uint8_t *to = p->memory[copy->buffer] + copy->buffer_offset;
	if (!w->mapped) {
		MUST(copy->block_offset + copy->bytes <= BLOCK_BYTES);
		memcpy(to, p->blocks[w->block] + copy->block_offset, copy->bytes);
		return;
	}
	MUST(copy->block_offset >= range->offset);
	MUST(copy->block_offset - range->offset + copy->bytes <= range->bytes);
	MUST(range->offset + range->bytes <= p->world.files[range->file].storage.bytes);
	for (uint64_t i = 0; i < copy->bytes; i++)
		to[i] = file_byte(range->file, copy->block_offset + i);
}

static void
copy_bytes(struct play *p, uint32_t window)
{
	const struct oh_window *w = &p->flow.windows[window];
	struct oh_flow_range range = {0};
	struct oh_flow_copy copies[3];
	uint64_t piece = UINT64_MAX;
	uint32_t count;
	if (w->mapped)
		range = oh_flow_map_range(&p->flow, window);
	while ((count = oh_flow_copies(&p->flow, window, &piece, copies, 3)))
		for (uint32_t i = 0; i < count; i++)
			copy_one(p, w, &range, &copies[i]);
}

static void
end_copy(struct play *p, uint32_t index, int ok)
{
	uint32_t window = p->copies[index];
	p->copies[index] = p->copies[--p->copy_count];
	if (ok)
		copy_bytes(p, window);
	oh_flow_copy_ended(&p->flow, window, ok);
	free_window(p, window);
	if (!ok)
		reap(p);
}

/* O_DIRECT does not work for the slice after all. */
static void
refuse(struct play *p, struct oh_flow_slice *s)
{
	struct oh_flow_slice before = *s;
	if (!s->direct)
		return;
	oh_flow_direct_refused(&p->flow, s);
	MUST(!s->direct && s->at == before.at && s->bytes == before.bytes);
	MUST(s->offset == before.offset && s->end == before.end);
}

/* What the byte asks for, if it can happen now: its low bits say what, the others to which. */
static void
event(struct play *p, uint8_t byte)
{
	uint32_t which = byte >> 3;
	switch (byte & 7) {
	case 0:
		open_one(p);
		break;
	case 1:
		take_one(p);
		break;
	case 2:
		map_one(p);
		break;
	case 3:
		if (p->read_count)
			end_read(p, which % p->read_count, p->reads[which % p->read_count].bytes, 1);
		break;
	case 4:
		if (p->read_count) {
			which %= p->read_count;
			end_read(p, which, 1 + (p->reads[which].bytes - 1) * (byte >> 3) / 32, 1);
		}
		break;
	case 5:
	case 6:
		if (p->copy_count)
			end_copy(p, which % p->copy_count, 1);
		break;
	default:
		/* Faults are rarer. */
		if (which < 4 && p->read_count) {
			end_read(p, which % p->read_count, 0, 0);
		} else if (which < 8 && p->copy_count) {
			end_copy(p, which % p->copy_count, 0);
		} else if (which == 8) {
			oh_flow_stop(&p->flow);
			reap(p);
		} else if (which < 12 && p->read_count) {
			refuse(p, &p->reads[which % p->read_count]);
		} else if (which == 12) {
			/* The first reads were slow. */
			p->flow.go_direct = 1;
		}
	}
	drain_arrivals(p);
}

/* Until nothing can happen any more: then it has ended. */
static void
run_out(struct play *p)
{
	int going = 1;
	while (going) {
		drain_arrivals(p);
		if (p->copy_count) {
			end_copy(p, 0, 1);
		} else if (!map_one(p) && !take_one(p) && !open_one(p)) {
			going = p->read_count > 0;
			if (going)
				end_read(p, p->read_count - 1, p->reads[p->read_count - 1].bytes, 1);
		}
	}
	MUST(oh_flow_ended(&p->flow) && oh_flow_all_read(&p->flow));
	for (uint32_t i = 0; i < p->block_count; i++)
		MUST(!p->block_used[i]);
	for (uint32_t i = 0; i < OH_FLOW_MAPS; i++)
		MUST(!p->map_used[i]);
}

/* Bytes that no extent owns are as they were. */
static void
check_untouched(const struct play *p)
{
	for (uint64_t i = 0; i < p->world.count; i++) {
		const struct oh_extent *e = &p->world.extents[i];
		memset(p->memory[e->buffer] + (e->rows && e->row_bytes ? e->buffer_offset : 0), 0xA5,
		       e->rows * e->row_bytes);
	}
	/* The byte behind it is as they are. */
	for (uint32_t b = 0; b < BUFFERS_MOST; b++)
		MUST(memcmp(p->memory[b], p->memory[b] + 1, p->world.buffers[b].bytes) == 0);
}

static void
begin(struct play *p)
{
	oh_flow_reset(&p->flow);
	memset(p->arrived, 0, sizeof p->arrived);
	p->arrived_count = 0;
	p->failed = 0;
	for (uint32_t b = 0; b < BUFFERS_MOST; b++)
		memset(p->memory[b], 0xA5, p->world.buffers[b].bytes + 1);
}

static void
play(struct play *p, struct input *in)
{
	begin(p);
	while (in->at < in->end)
		event(p, take_byte(in));
	run_out(p);
	check_untouched(p);
	MUST(p->failed || p->arrived_count == p->world.count);
	MUST(p->failed || p->flow.landed == p->plan.bytes);
	begin(p);
	run_out(p);
	check_untouched(p);
	MUST(p->arrived_count == p->world.count && p->flow.landed == p->plan.bytes);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct play p;
	struct input in = {data, data + size};
	memset(&p, 0, sizeof p);
	take_world(&in, &p.world, LIMIT);
	uint64_t slice_bytes = 1 + take_number(&in, 2 * BLOCK_BYTES);
	/* What the options promise to the direct route. */
	for (int i = 0; i < FILES_MOST; i++)
		if (p.world.files[i].direct_alignment && slice_bytes < OH_DIRECT_PAGE)
			slice_bytes += OH_DIRECT_PAGE;
	p.block_count = 1 + take_byte(&in) % BLOCKS_MOST;
	if (oh_plan_build(p.world.extents, p.world.count, &p.world.facts, &p.plan, NULL))
		return 0;
	for (uint32_t i = 0; i < p.block_count; i++)
		MUST((p.blocks[i] = malloc(BLOCK_BYTES)));
	for (uint32_t i = 0; i < BUFFERS_MOST; i++)
		MUST((p.memory[i] = malloc(p.world.buffers[i].bytes + 1)));
	MUST(oh_flow_init(&p.flow, &p.plan, BLOCK_BYTES, slice_bytes, p.block_count, NULL) ==
	     ONEHOP_OK);
	/* A byte a slice would only be long. */
	if (p.plan.bytes / slice_bytes < 4096)
		play(&p, &in);
	oh_flow_free(&p.flow);
	oh_plan_free(&p.plan);
	for (uint32_t i = 0; i < p.block_count; i++)
		free(p.blocks[i]);
	for (uint32_t i = 0; i < BUFFERS_MOST; i++)
		free(p.memory[i]);
	return 0;
}
