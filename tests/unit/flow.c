/* The flow, driven by made-up events in every order.
 *
 * A small machine is played: a file whose bytes are a function of their offset, blocks, buffers, and
 * lists of reads and copies under way, which end in any order. A copy takes its bytes from the block
 * only when it ends, so a block that is given out too early shows in the buffer.
 */
#include "engine/flow.h"
#include "harness.h"
#include "random.h"

#define MOST 64
#define MOST_COPIES 16

static uint8_t
file_byte(uint64_t offset)
{
	return (uint8_t)((offset * UINT64_C(2654435761)) >> 13 ^ offset);
}

struct play {
	struct oh_plan plan;
	struct oh_flow flow;
	const struct oh_extent *extents;
	uint64_t extent_count;
	uint8_t *buffer;
	uint64_t buffer_bytes;
	uint8_t *blocks[8];
	uint32_t block_free[8];
	int map_used[OH_FLOW_MAPS];
	uint32_t block_count;
	struct oh_flow_slice reads[MOST];
	uint32_t read_count;
	uint32_t copies[MOST_COPIES];
	uint32_t copy_count;
	uint8_t *arrived;
	uint64_t arrived_count;
	uint64_t events;
	uint64_t block_bytes;
	int short_reads;
	uint64_t direct_reads;
	uint64_t mapped;
	const char *wrong;
};

static int
place_is_right(const struct play *p, const struct oh_extent *e)
{
	for (uint64_t row = 0; row < e->rows; row++)
		for (uint64_t i = 0; i < e->row_bytes; i++)
			if (p->buffer[e->buffer_offset + row * e->row_bytes + i] !=
			    file_byte(e->offset + row * e->row_stride + i))
				return 0;
	return 1;
}

static void
drain_arrivals(struct play *p)
{
	uint64_t extent;
	while (oh_flow_next_arrival(&p->flow, &extent)) {
		if (extent >= p->extent_count || p->arrived[extent]++)
			p->wrong = "an extent arrived twice, or none";
		else if (!place_is_right(p, &p->extents[extent]))
			p->wrong = "an extent arrived before its bytes";
		p->arrived_count++;
	}
}

static uint8_t *
place_of(struct play *p, const struct oh_flow_slice *s)
{
	const struct oh_window *w = &p->flow.windows[s->window];
	if (w->staged)
		return p->blocks[w->block] + (s->at - w->base);
	const struct oh_piece *piece = &p->plan.pieces[oh_plan_piece_from(&p->plan, s->at)];
	return p->buffer + piece->buffer_offset + (s->at - piece->position);
}

/* O_DIRECT reads whole pages: also what lies before the first byte and behind the last. */
static void
do_direct_read(struct play *p, const struct oh_flow_slice *s, uint8_t *to)
{
	const struct oh_window *w = &p->flow.windows[s->window];
	uint64_t lead = s->offset % OH_DIRECT_PAGE;
	uint64_t end = (s->offset + s->bytes + OH_DIRECT_PAGE - 1) / OH_DIRECT_PAGE * OH_DIRECT_PAGE;
	if (s->rows != 1 || !w->staged || (s->at - w->base) % OH_DIRECT_PAGE != lead)
		p->wrong = "a direct read is not aligned";
	for (uint64_t at = s->offset - lead; at < end; at++)
		to[(int64_t)(at - s->offset)] = file_byte(at);
}

static void
do_read(struct play *p, const struct oh_flow_slice *s, uint64_t bytes)
{
	uint8_t *to = place_of(p, s);
	const struct oh_window *w = &p->flow.windows[s->window];
	if (s->direct) {
		do_direct_read(p, s, to);
		p->direct_reads++;
		return;
	}
	if (w->staged && s->at - w->base + s->bytes > p->block_bytes)
		p->wrong = "a slice leaves its block";
	for (uint64_t i = 0; i < bytes; i++)
		to[i] = file_byte(s->offset + i / s->row_bytes * s->row_stride + i % s->row_bytes);
}

static void
give_back(struct play *p, uint32_t index)
{
	const struct oh_window *window = &p->flow.windows[index];
	if (window->mapped)
		p->map_used[window->block] = 0;
	else if (window->staged)
		p->block_free[window->block] = 1;
}

static void
reap(struct play *p)
{
	uint32_t window;
	while (oh_flow_reap(&p->flow, &window))
		give_back(p, window);
}

static void
end_read(struct play *p, uint32_t index, struct random *r, int ok)
{
	struct oh_flow_slice *s = &p->reads[index];
	uint64_t bytes = s->bytes;
	if (s->probe && random_below(r, 40) == 0)
		p->flow.go_direct = 1;
	if (s->direct && random_below(r, 400) == 0) {
		oh_flow_direct_refused(&p->flow, s);
		return;
	}
	if (p->short_reads && bytes > 1 && random_below(r, 3) == 0)
		bytes = 1 + random_below(r, bytes - 1);
	if (ok)
		do_read(p, s, bytes);
	enum oh_flow_act act = oh_flow_read_ended(&p->flow, s, ok ? bytes : 0, ok);
	if (act == OH_FLOW_AGAIN)
		return;
	uint32_t window = s->window;
	*s = p->reads[--p->read_count];
	if (act == OH_FLOW_COPY)
		p->copies[p->copy_count++] = window;
	else if (act == OH_FLOW_FREE)
		give_back(p, window);
	if (!ok)
		reap(p);
}

static void
end_copy(struct play *p, uint32_t index, int ok)
{
	uint32_t window = p->copies[index], block = p->flow.windows[window].block;
	int mapped = p->flow.windows[window].mapped;
	struct oh_flow_copy copies[3];
	uint64_t piece = UINT64_MAX;
	uint32_t count;
	p->copies[index] = p->copies[--p->copy_count];
	while (ok && (count = oh_flow_copies(&p->flow, window, &piece, copies, 3)))
		for (uint32_t i = 0; i < count; i++)
			for (uint64_t at = 0; at < copies[i].bytes; at++)
				p->buffer[copies[i].buffer_offset + at] =
					mapped ? file_byte(copies[i].block_offset + at)
					       : p->blocks[block][copies[i].block_offset + at];
	oh_flow_copy_ended(&p->flow, window, ok);
	give_back(p, window);
	if (!ok)
		reap(p);
}

static int
open_one(struct play *p)
{
	switch (oh_flow_wants(&p->flow)) {
	case OH_FLOW_WANTS_NOTHING:
		return 0;
	case OH_FLOW_WANTS_MAP:
		for (uint32_t slot = 0; slot < OH_FLOW_MAPS; slot++) {
			if (p->map_used[slot])
				continue;
			p->map_used[slot] = 1;
			oh_flow_open(&p->flow, 0, slot);
			return 1;
		}
		p->wrong = "a map is wanted and none is free";
		return 0;
	case OH_FLOW_WANTS_PLACE:
		oh_flow_open(&p->flow, 0, 0);
		return 1;
	case OH_FLOW_WANTS_BLOCK:
		for (uint32_t i = 0; i < p->block_count; i++) {
			if (!p->block_free[i])
				continue;
			p->block_free[i] = 0;
			memset(p->blocks[i], 0xA5, p->block_bytes);
			oh_flow_open(&p->flow, 0, i);
			return 1;
		}
	}
	return 0;
}

/* One event of any kind that can happen now. 0 if none can. */
static int
one_event(struct play *p, struct random *r)
{
	for (int tries = 0; tries < 64; tries++) {
		switch (random_below(r, 5)) {
		case 4:
			if (p->copy_count < MOST_COPIES &&
			    oh_flow_take_map(&p->flow, &p->copies[p->copy_count])) {
				p->copy_count++;
				p->mapped++;
				return 1;
			}
			break;
		case 0:
			if (open_one(p))
				return 1;
			break;
		case 1:
			if (p->read_count < MOST && oh_flow_take(&p->flow, &p->reads[p->read_count])) {
				p->read_count++;
				return 1;
			}
			break;
		case 2:
			if (p->read_count) {
				end_read(p, (uint32_t)random_below(r, p->read_count), r, 1);
				return 1;
			}
			break;
		case 3:
			if (p->copy_count) {
				end_copy(p, (uint32_t)random_below(r, p->copy_count), 1);
				return 1;
			}
			break;
		}
	}
	return 0;
}

enum what { RUN, CANCEL, FAIL_READ, FAIL_COPY };

/* Runs to the end; at event number n does what is asked. Returns the events that it took. */
static uint64_t
run(struct play *p, struct random *r, enum what what, uint64_t n)
{
	int struck = what == RUN;
	oh_flow_reset(&p->flow);
	p->read_count = p->copy_count = 0;
	p->arrived_count = p->events = 0;
	p->wrong = NULL;
	memset(p->arrived, 0, p->extent_count + 1);
	memset(p->buffer, 0xA5, p->buffer_bytes);
	for (uint32_t i = 0; i < p->block_count; i++)
		p->block_free[i] = 1;
	memset(p->map_used, 0, sizeof p->map_used);
	while (!oh_flow_ended(&p->flow) || p->read_count || p->copy_count) {
		if (!struck && p->events >= n) {
			if (what == CANCEL) {
				oh_flow_stop(&p->flow);
				reap(p);
				struck = 1;
			} else if (what == FAIL_READ && p->read_count) {
				end_read(p, 0, r, 0);
				struck = 1;
			} else if (what == FAIL_COPY && p->copy_count) {
				end_copy(p, 0, 0);
				struck = 1;
			}
		}
		if (!one_event(p, r) && !one_event(p, r) && !oh_flow_ended(&p->flow)) {
			p->wrong = "it is stuck";
			break;
		}
		p->events++;
		drain_arrivals(p);
	}
	drain_arrivals(p);
	for (uint32_t i = 0; i < p->block_count; i++)
		if (!p->block_free[i])
			p->wrong = "a block was lost";
	return p->events;
}

static void
play_free(struct play *p)
{
	oh_flow_free(&p->flow);
	oh_plan_free(&p->plan);
	for (uint32_t i = 0; i < p->block_count; i++)
		free(p->blocks[i]);
	free(p->buffer);
	free(p->arrived);
}

static void
play_init(struct play *p, const struct oh_extent *extents, uint64_t count, uint64_t buffer_bytes,
	  int addressable, uint32_t blocks, uint64_t slice, struct random *r)
{
	static uint8_t residence[1024];
	static struct oh_file_facts file = {
		.path = "f", .storage = {.bytes = UINT64_C(1) << 40, .alignment = 1}};
	struct oh_buffer_facts buffer = {4096 + 16, buffer_bytes};
	struct oh_plan_facts facts = {
		.files = &file, .file_count = 1, .buffers = &buffer, .buffer_count = 1,
		.memory = {.caps = OH_MEMORY_BATCH_COPY | (addressable ? OH_MEMORY_ADDRESSABLE : 0),
			   .copy_modulus = 64},
		.forced_route = ONEHOP_AUTO,
		.cache = ONEHOP_AUTO,
		.memory_bytes = 1000,
		.few_cores = r && random_below(r, 2),
	};
	if (!addressable)
		facts.memory.caps |= OH_MEMORY_PINS_FILES;
	file.residence = NULL;
	if (r) {
		file.residence = residence;
		file.chunk_bytes = 8192;
		file.direct_alignment = 4096;
		for (size_t i = 0; i < sizeof residence; i++)
			residence[i] = (uint8_t)random_below(r, 3);
	}
	memset(p, 0, sizeof *p);
	p->extents = extents;
	p->extent_count = count;
	p->buffer_bytes = buffer_bytes;
	p->buffer = malloc(buffer_bytes + 1);
	p->arrived = calloc(count + 1, 1);
	p->block_count = blocks;
	p->block_bytes = 8192;
	for (uint32_t i = 0; i < blocks; i++)
		p->blocks[i] = malloc(p->block_bytes);
	if (oh_plan_build(extents, count, &facts, &p->plan, NULL) ||
	    oh_flow_init(&p->flow, &p->plan, p->block_bytes, slice, blocks, NULL))
		abort();
}

/* A mixture of runs, gaps, empties, rows, small and large ones. Returns the buffer's bytes. */
static uint64_t
random_extents(struct random *r, struct oh_extent *extents, uint64_t count)
{
	uint64_t at = random_below(r, 100), to = 0;
	for (uint64_t i = 0; i < count; i++) {
		struct oh_extent *e = &extents[i];
		memset(e, 0, sizeof *e);
		e->offset = at;
		e->buffer_offset = to;
		e->rows = 1;
		switch (random_below(r, 6)) {
		case 0:
			break;
		case 1:
			e->rows = 1 + random_below(r, 40);
			e->row_bytes = 1 + random_below(r, 900);
			e->row_stride = e->row_bytes + random_below(r, 300);
			break;
		case 2:
			e->row_bytes = 1 + random_below(r, 70000);
			break;
		default:
			e->row_bytes = 1 + random_below(r, 3000);
		}
		if (e->rows == 1)
			e->row_stride = e->row_bytes;
		at += e->rows * e->row_stride;
		to += e->rows * e->row_bytes;
		if (random_below(r, 3) == 0)
			at += random_below(r, 9000);
		if (random_below(r, 3) == 0)
			to += random_below(r, 64);
	}
	/* The order of the list is free. */
	for (uint64_t i = count; i > 1; i--) {
		uint64_t j = random_below(r, i);
		struct oh_extent swap = extents[i - 1];
		extents[i - 1] = extents[j];
		extents[j] = swap;
	}
	return to;
}

static uint64_t direct_reads, mapped; /* of all plays */

static void
random_play(uint64_t seed, int short_reads, enum what what)
{
	struct random r = random_init(seed);
	struct oh_extent extents[40];
	struct play p;
	uint64_t count = random_below(&r, 40), n = 0, events;
	uint64_t bytes = random_extents(&r, extents, count);
	play_init(&p, extents, count, bytes, (int)random_below(&r, 2),
		  1 + (uint32_t)random_below(&r, 5),
		  (seed % 2 ? OH_DIRECT_PAGE : 1) + random_below(&r, 9000), seed % 2 ? &r : NULL);
	p.short_reads = short_reads;
	do {
		events = run(&p, &r, what, n);
		if (p.wrong) {
			test_fail(__FILE__, __LINE__, "seed %llu, event %llu: %s",
				  (unsigned long long)seed, (unsigned long long)n, p.wrong);
			break;
		}
		if (what == RUN && (p.arrived_count != count || p.flow.landed != p.plan.bytes)) {
			test_fail(__FILE__, __LINE__, "seed %llu: %llu of %llu extents arrived",
				  (unsigned long long)seed, (unsigned long long)p.arrived_count,
				  (unsigned long long)count);
			break;
		}
		/* Every event of a short play, some of a long one. */
		n += 1 + events / 200;
	} while (what != RUN && n <= events);
	direct_reads += p.direct_reads;
	mapped += p.mapped;
	play_free(&p);
}

TEST(every_byte_lands_once_whatever_the_order_of_events)
{
	uint64_t seed = random_seed(1);
	direct_reads = mapped = 0;
	for (uint64_t i = 0; i < 300 && !test_failed; i++)
		random_play(seed + i, 0, RUN);
	CHECK(direct_reads > 1000);
	CHECK(mapped > 100);
}

TEST(a_short_read_is_read_on)
{
	uint64_t seed = random_seed(1000);
	for (uint64_t i = 0; i < 300 && !test_failed; i++)
		random_play(seed + i, 1, RUN);
}

TEST(cancelled_at_any_event_it_ends_and_gives_every_block_back)
{
	uint64_t seed = random_seed(2000);
	for (uint64_t i = 0; i < 25 && !test_failed; i++)
		random_play(seed + i, 1, CANCEL);
}

TEST(a_read_that_fails_at_any_event_ends_it_and_gives_every_block_back)
{
	uint64_t seed = random_seed(3000);
	for (uint64_t i = 0; i < 25 && !test_failed; i++)
		random_play(seed + i, 1, FAIL_READ);
}

TEST(a_copy_that_fails_at_any_event_ends_it_and_gives_every_block_back)
{
	uint64_t seed = random_seed(4000);
	for (uint64_t i = 0; i < 25 && !test_failed; i++)
		random_play(seed + i, 0, FAIL_COPY);
}

TEST(the_last_slice_is_taken_too)
{
	/* One byte more than whole blocks and slices. */
	struct oh_extent e = {.row_bytes = 3 * 8192 + 1, .rows = 1, .row_stride = 3 * 8192 + 1};
	struct random r = random_init(5);
	struct play p;
	play_init(&p, &e, 1, e.row_bytes, 0, 2, 1024, NULL);
	run(&p, &r, RUN, 0);
	CHECK(!p.wrong);
	CHECK_EQ(p.flow.landed, 3 * 8192 + 1);
	CHECK_EQ(p.arrived_count, 1);
	play_free(&p);
}

TEST(a_window_is_copied_only_when_all_its_slices_have_ended)
{
	struct oh_extent e = {.row_bytes = 4096, .rows = 1, .row_stride = 4096};
	struct oh_flow_slice a, b, none;
	struct play p;
	play_init(&p, &e, 1, 4096, 0, 1, 2048, NULL);
	oh_flow_reset(&p.flow);
	CHECK_EQ(oh_flow_wants(&p.flow), OH_FLOW_WANTS_BLOCK);
	oh_flow_open(&p.flow, 0, 0);
	CHECK_EQ(oh_flow_wants(&p.flow), OH_FLOW_WANTS_NOTHING);
	CHECK_EQ(oh_flow_take(&p.flow, &a), 1);
	CHECK_EQ(oh_flow_take(&p.flow, &b), 1);
	CHECK_EQ(oh_flow_take(&p.flow, &none), 0);
	CHECK_EQ(oh_flow_read_ended(&p.flow, &b, 2048, 1), OH_FLOW_NOTHING);
	CHECK_EQ(oh_flow_read_ended(&p.flow, &a, 1, 1), OH_FLOW_AGAIN);
	CHECK_EQ(a.offset, 1);
	CHECK_EQ(a.bytes, 2047);
	CHECK_EQ(oh_flow_all_read(&p.flow), 0);
	CHECK_EQ(oh_flow_read_ended(&p.flow, &a, 2047, 1), OH_FLOW_COPY);
	CHECK_EQ(oh_flow_all_read(&p.flow), 1);
	CHECK_EQ(oh_flow_ended(&p.flow), 0);
	CHECK_EQ(p.flow.landed, 0);
	oh_flow_copy_ended(&p.flow, 0, 1);
	CHECK_EQ(oh_flow_ended(&p.flow), 1);
	CHECK_EQ(p.flow.landed, 4096);
	play_free(&p);
}

TEST(slices_of_rows_are_whole_rows_or_parts_of_one)
{
	struct oh_extent e = {.offset = 7, .row_bytes = 1000, .rows = 5, .row_stride = 3000};
	struct oh_flow_slice s;
	struct play p;
	play_init(&p, &e, 1, 5000, 0, 1, 2500, NULL);
	oh_flow_reset(&p.flow);
	p.flow.reach = p.block_bytes;
	oh_flow_open(&p.flow, 0, 0);
	CHECK_EQ(oh_flow_take(&p.flow, &s), 1);
	CHECK_EQ(s.rows, 2);
	CHECK_EQ(s.bytes, 2000);
	CHECK_EQ(s.offset, 7);
	CHECK_EQ(oh_flow_read_ended(&p.flow, &s, 2000, 1), OH_FLOW_AGAIN);
	CHECK_EQ(s.rows, 1);
	CHECK_EQ(s.bytes, 500);
	CHECK_EQ(s.offset, 7 + 2 * 3000);
	CHECK_EQ(oh_flow_read_ended(&p.flow, &s, 500, 1), OH_FLOW_NOTHING);
	CHECK_EQ(oh_flow_take(&p.flow, &s), 1);
	CHECK_EQ(s.offset, 7 + 2 * 3000 + 500);
	CHECK_EQ(s.bytes, 500);
	CHECK_EQ(oh_flow_read_ended(&p.flow, &s, 500, 1), OH_FLOW_AGAIN);
	CHECK_EQ(s.rows, 2);
	CHECK_EQ(s.offset, 7 + 3 * 3000);
	CHECK_EQ(oh_flow_read_ended(&p.flow, &s, 2000, 1), OH_FLOW_COPY);
	oh_flow_copy_ended(&p.flow, s.window, 1);
	play_free(&p);
}

/* Records that lie far apart, and side by side in the buffer. */
static void
scatter(struct oh_extent *extents, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		extents[i] = (struct oh_extent){.offset = i * 8192, .row_bytes = 64, .rows = 1,
						.row_stride = 64, .buffer_offset = i * 64};
}

TEST(small_segments_are_taken_several_at_once_and_copied_as_one)
{
	static struct oh_extent e[128];
	struct oh_flow_slice s;
	struct oh_flow_copy copies[2];
	struct play p;
	uint64_t piece = UINT64_MAX, reads = 0;
	enum oh_flow_act act = OH_FLOW_NOTHING;
	scatter(e, 128);
	play_init(&p, e, 128, 8192, 0, 1, 2048, NULL);
	oh_flow_reset(&p.flow);
	p.flow.reach = p.block_bytes;
	oh_flow_open(&p.flow, 0, 0);
	for (uint64_t takes = 0; takes < 64; takes++) {
		CHECK_EQ(oh_flow_take(&p.flow, &s), 1);
		CHECK_EQ(s.end - s.begin, 128);
		do {
			CHECK_EQ(s.offset, reads * 8192);
			CHECK_EQ(s.at, reads * 64);
			CHECK_EQ(s.bytes, 64);
			act = oh_flow_read_ended(&p.flow, &s, 64, 1);
			reads++;
		} while (act == OH_FLOW_AGAIN);
		CHECK_EQ(reads, (takes + 1) * 2);
	}
	CHECK_EQ(act, OH_FLOW_COPY);
	CHECK_EQ(oh_flow_copies(&p.flow, s.window, &piece, copies, 2), 1);
	CHECK_EQ(copies[0].bytes, 8192);
	oh_flow_copy_ended(&p.flow, s.window, 1);
	CHECK_EQ(p.flow.landed, 8192);
	play_free(&p);
}

TEST(few_segments_are_taken_one_by_one_so_that_many_can_read)
{
	static struct oh_extent e[40];
	struct oh_flow_slice s;
	struct play p;
	scatter(e, 40);
	play_init(&p, e, 40, 8192, 0, 1, 2048, NULL);
	oh_flow_reset(&p.flow);
	p.flow.reach = p.block_bytes;
	oh_flow_open(&p.flow, 0, 0);
	for (uint64_t i = 0; i < 40; i++) {
		CHECK_EQ(oh_flow_take(&p.flow, &s), 1);
		CHECK_EQ(s.end - s.begin, 64);
		CHECK_EQ(oh_flow_read_ended(&p.flow, &s, 64, 1),
			 i < 39 ? OH_FLOW_NOTHING : OH_FLOW_COPY);
	}
	oh_flow_copy_ended(&p.flow, s.window, 1);
	play_free(&p);
}

TEST(the_first_window_is_small_so_that_the_first_copy_starts_early)
{
	struct oh_extent e = {.row_bytes = 1 << 20, .rows = 1, .row_stride = 1 << 20};
	struct play p;
	play_init(&p, &e, 1, 1 << 20, 0, 4, 2048, NULL);
	p.flow.block_bytes = 64 << 10;
	oh_flow_reset(&p.flow);
	for (uint64_t i = 0, at = 0, want = 4096; i < 4; i++, at += want, want *= 2) {
		const struct oh_window *w = &p.flow.windows[oh_flow_open(&p.flow, 0, 0)];
		CHECK_EQ(w->base, at);
		CHECK_EQ(w->end, at + want);
	}
	play_free(&p);
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
