/* Extents and facts out of a fuzzer's bytes, for the planner and the flow. Each number is a byte
 * that says how large it is, then so many bytes; zeros where the input has ended. */
#ifndef OH_TESTS_FUZZ_EXTENTS_H
#define OH_TESTS_FUZZ_EXTENTS_H

#include "check.h"

#include "engine/plan.h"

#define EXTENTS_MOST 48
#define FILES_MOST 3
#define BUFFERS_MOST 3
#define CHUNKS 16 /* of the largest file */

struct input {
	const uint8_t *at;
	const uint8_t *end;
};

static inline uint8_t
take_byte(struct input *in)
{
	return in->at < in->end ? *in->at++ : 0;
}

/* Below the limit: 1 byte, 2, 4 or 8. */
static inline uint64_t
take_number(struct input *in, uint64_t limit)
{
	uint64_t value = 0;
	int bytes = 1 << (take_byte(in) & 3);
	for (int i = 0; i < bytes; i++)
		value |= (uint64_t)take_byte(in) << (8 * i);
	return value % limit;
}

/* An extent's place, mostly near the end of the one before. */
static inline uint64_t
take_place(struct input *in, uint64_t last_end, uint64_t limit)
{
	uint8_t how = take_byte(in);
	if (how < 128)
		return last_end + (how & 64 ? how & 63 : 0);
	if (how < 160)
		return last_end - (how & 31);
	return take_number(in, limit);
}

static inline void
take_extent(struct input *in, const struct oh_extent *last, uint64_t limit, struct oh_extent *e)
{
	uint8_t how = take_byte(in);
	memset(e, 0, sizeof *e);
	e->file = how & 1 ? last->file : how / 2 % FILES_MOST;
	e->buffer = how & 8 ? last->buffer : how / 16 % BUFFERS_MOST;
	e->offset = take_place(in, last->offset + (last->rows ? last->rows - 1 : 0) *
					    last->row_stride + last->row_bytes, limit);
	e->buffer_offset = take_place(in, last->buffer_offset + last->rows * last->row_bytes, limit);
	e->row_bytes = take_number(in, limit);
	e->rows = 1;
	e->row_stride = e->row_bytes;
	if (how & 128) {
		e->rows = take_number(in, limit);
		e->row_stride = e->row_bytes + take_number(in, limit);
	}
	e->name = how & 64 ? "a\n\xff\"tensor" : NULL;
}

struct world {
	struct oh_extent extents[EXTENTS_MOST];
	uint64_t count;
	struct oh_file_facts files[FILES_MOST];
	uint8_t residence[FILES_MOST][CHUNKS + 1];
	struct oh_buffer_facts buffers[BUFFERS_MOST];
	struct oh_plan_facts facts;
};

/* Where its bytes are, and whether O_DIRECT works: a byte, then two bits a chunk. */
static inline void
take_residence(struct input *in, struct world *w, int file, uint64_t limit)
{
	struct oh_file_facts *facts = &w->files[file];
	uint8_t how = take_byte(in), states = 0;
	facts->chunk_bytes = limit / CHUNKS;
	facts->direct_alignment = how & 2 ? 4096 : 0;
	facts->is_network = (how & 4) != 0;
	facts->pinned = (how & 8) != 0 && w->facts.memory.caps & OH_MEMORY_PINS_FILES;
	if (!(how & 1))
		return;
	for (int i = 0; i <= CHUNKS; i++, states >>= 2) {
		if (i % 4 == 0)
			states = take_byte(in);
		w->residence[file][i] = (uint8_t)((states & 3) % 3);
	}
	facts->residence = w->residence[file];
}

static inline void
take_facts(struct input *in, struct world *w, uint64_t limit)
{
	static const uint64_t routes[4] = {ONEHOP_AUTO, ONEHOP_ROUTE_BUFFERED,
					   ONEHOP_ROUTE_MAPPED, ONEHOP_ROUTE_DIRECT};
	static const uint64_t caches[4] = {ONEHOP_AUTO, ONEHOP_CACHE_KEEP, ONEHOP_CACHE_BYPASS,
					   ONEHOP_CACHE_DROP};
	static const char *const paths[FILES_MOST] = {"a", "b", "c"};
	static const uint32_t moduli[4] = {1, 64, 256, 4096};
	uint8_t how = take_byte(in);
	memset(w, 0, sizeof *w);
	for (int i = 0; i < FILES_MOST; i++) {
		w->files[i].path = paths[i];
		w->files[i].storage.alignment = 1;
		w->files[i].storage.bytes = i ? take_number(in, limit) : limit;
	}
	for (int i = 0; i < BUFFERS_MOST; i++) {
		w->buffers[i].bytes = i ? take_number(in, limit) : limit;
		w->buffers[i].address = 4096 + 16 * take_byte(in);
	}
	w->facts = (struct oh_plan_facts){
		.files = w->files,
		.file_count = FILES_MOST,
		.buffers = w->buffers,
		.buffer_count = BUFFERS_MOST,
		.memory = {.caps = how & 3, .alignment = 256, .copy_modulus = moduli[how / 4 % 4]},
		.forced_route = routes[how / 16 % 4],
		.cache = caches[how / 64],
		.memory_bytes = limit / 8,
	};
	how = take_byte(in);
	w->facts.few_cores = (how & 2) != 0;
	/* A device that pins files is not addressable. */
	if (how & 4)
		w->facts.memory.caps = OH_MEMORY_BATCH_COPY | OH_MEMORY_PINS_FILES;
	/* Mostly all of it is here, and nothing is said about O_DIRECT. */
	if (how & 1)
		for (int i = 0; i < FILES_MOST; i++)
			take_residence(in, w, i, limit);
}

/* No file or buffer is larger than the limit. */
static inline void
take_world(struct input *in, struct world *w, uint64_t limit)
{
	static const struct oh_extent none;
	take_facts(in, w, limit);
	uint64_t count = take_byte(in) % (EXTENTS_MOST + 1);
	for (; w->count < count; w->count++)
		take_extent(in, w->count ? &w->extents[w->count - 1] : &none, limit,
			    &w->extents[w->count]);
}

#endif
