/* Checks payloads where they landed.
 *
 * The payloads of a group are cut into pieces that lie side by side in the buffer, and a few threads
 * take them in turn. Host memory is summed in place; a device's is read back, a stretch at a time,
 * into memory of the thread's own, and a payload's sum goes on over stretches.
 */
#include "dataset/feed.h"

#include "base/arith.h"
#include "base/crc32c.h"
#include "base/error.h"
#include "dataset/crew.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* What a thread takes at once, and reads back at once. */
#define PIECE_BYTES   (UINT64_C(4) << 20)
#define STRETCH_BYTES (UINT64_C(4) << 20)
#define MOST_THREADS  8

struct verifying {
	struct onehop_feed *feed;
	struct oh_feed_group *group;
	struct onehop_buffer *buffer;
	const uint8_t *memory;  /* NULL: it has to be read back */
	const uint64_t *cells;
	uint64_t *begins;       /* [pieces + 1]: of each piece in cells */
	atomic_uchar *damaged;  /* by row */
};

/* What a thread has read back. */
struct stretch {
	uint8_t *memory;
	uint64_t begin;
	uint64_t end;
};

static onehop_status
damage(const struct verifying *v, uint64_t cell, uint32_t crc, struct onehop_error *error)
{
	const struct onehop_feed *feed = v->feed;
	const struct oh_feed_group *group = v->group;
	uint64_t row = cell % group->rows, sample = group->samples[row];
	uint32_t field = feed->fields[cell / group->rows];
	char key_shown[OH_SHOWN], field_shown[OH_SHOWN];
	if (feed->damage == ONEHOP_DAMAGE_SKIP) {
		atomic_store(&v->damaged[row], 1);
		return ONEHOP_OK;
	}
	const struct oh_shard_part *parts, *part;
	uint64_t number, count;
	const struct oh_dataset_shard *shard =
		oh_dataset_sample(feed->dataset, sample, &number, &parts, &count);
	for (part = parts; shard->fields[part->field] != field;)
		part++;
	struct onehop_name key = oh_dataset_key(feed->dataset, sample);
	struct onehop_name name = feed->dataset->fields.at[field];
	oh_fail(error, ONEHOP_MISMATCH,
		"%s: sample %s, field %s: the %llu bytes at offset %llu are damaged: their CRC-32C is "
		"%08x, and %08x by the index",
		shard->path, oh_show(key_shown, key.text, key.bytes),
		oh_show(field_shown, name.text, name.bytes), (unsigned long long)part->bytes,
		(unsigned long long)part->offset, crc, part->crc32c);
	oh_remedy(error, "get a good copy of the shard, or have damaged samples skipped");
	return ONEHOP_MISMATCH;
}

/* Bytes from `at` on that are in memory, up to `end`; read back if none is. */
static onehop_status
reach(const struct verifying *v, struct stretch *stretch, uint64_t at, uint64_t end,
      const uint8_t **memory, uint64_t *bytes, struct onehop_error *error)
{
	onehop_status status = ONEHOP_OK;
	if (v->memory) {
		*memory = v->memory + at;
		*bytes = end - at;
		return ONEHOP_OK;
	}
	if (at < stretch->begin || at >= stretch->end) {
		struct onehop_buffer_info info = {.size = sizeof info};
		onehop_buffer_query(v->buffer, &info);
		stretch->begin = at;
		stretch->end = oh_min(at + STRETCH_BYTES, info.bytes);
		status = onehop_buffer_read(v->buffer, at, stretch->memory,
					    stretch->end - stretch->begin, error);
	}
	*memory = stretch->memory + (at - stretch->begin);
	*bytes = oh_min(end, stretch->end) - at;
	return status;
}

static onehop_status
check_cell(const struct verifying *v, struct stretch *stretch, uint64_t cell,
	   struct onehop_error *error)
{
	uint64_t at = v->group->offsets[cell], end = at + v->group->bytes[cell];
	uint32_t crc = 0;
	while (at < end) {
		const uint8_t *memory;
		uint64_t bytes;
		onehop_status status = reach(v, stretch, at, end, &memory, &bytes, error);
		if (status)
			return status;
		crc = oh_crc32c(crc, memory, bytes);
		at += bytes;
	}
	return crc == v->group->crcs[cell] ? ONEHOP_OK : damage(v, cell, crc, error);
}

static onehop_status
check_piece(void *context, uint32_t worker, uint64_t index, struct onehop_error *error)
{
	const struct verifying *v = context;
	struct stretch stretch = {.memory = v->feed->scratch[worker]};
	onehop_status status = ONEHOP_OK;
	for (uint64_t i = v->begins[index]; i < v->begins[index + 1] && !status; i++)
		status = check_cell(v, &stretch, v->cells[i], error);
	return status;
}

static int
make_scratch(struct onehop_feed *feed)
{
	uint32_t threads = (uint32_t)oh_min(feed->dataset->cores, MOST_THREADS);
	if (feed->scratch)
		return 0;
	feed->scratch = calloc(threads, sizeof *feed->scratch);
	if (!feed->scratch)
		return 1;
	for (; feed->scratch_count < threads; feed->scratch_count++) {
		feed->scratch[feed->scratch_count] = malloc(STRETCH_BYTES);
		if (!feed->scratch[feed->scratch_count])
			return 1;
	}
	return 0;
}

/* Cuts a side's cells into pieces; gives how many. */
static uint64_t
cut(const struct oh_feed_group *group, const uint64_t *cells, uint64_t count, uint64_t *begins)
{
	uint64_t pieces = 0, held = PIECE_BYTES;
	for (uint64_t i = 0; i < count; i++) {
		if (held >= PIECE_BYTES) {
			begins[pieces++] = i;
			held = 0;
		}
		held += group->bytes[cells[i]];
	}
	begins[pieces] = count;
	return pieces;
}

static onehop_status
verify_side(struct verifying *v, int side, struct onehop_error *error)
{
	struct onehop_buffer_info info = {.size = sizeof info};
	uint64_t count = v->group->cell_count[side];
	if (!count)
		return ONEHOP_OK;
	onehop_buffer_query(v->buffer, &info);
	v->memory = strcmp(info.device, "host") == 0 ? (const uint8_t *)(uintptr_t)info.address : NULL;
	v->cells = v->group->cells[side];
	v->begins = malloc((count + 2) * sizeof *v->begins);
	if (!v->begins || make_scratch(v->feed)) {
		free(v->begins);
		return oh_fail_no_memory(error, count * sizeof *v->begins, "verifying");
	}
	uint64_t pieces = cut(v->group, v->cells, count, v->begins);
	onehop_status status =
		oh_crew_run(v->feed->scratch_count, pieces, check_piece, v, error);
	free(v->begins);
	return status;
}

/* Nothing of a damaged row is given out. */
static uint64_t
mark_damaged(const struct verifying *v)
{
	struct oh_feed_group *group = v->group;
	uint64_t count = 0;
	for (uint64_t row = 0; row < group->rows; row++) {
		if (!v->damaged[row])
			continue;
		count++;
		group->samples[row] = UINT64_MAX;
		for (uint64_t field = 0; field < v->feed->field_count; field++)
			group->bytes[field * group->rows + row] = UINT64_MAX;
	}
	return count;
}

onehop_status
oh_feed_verify(struct onehop_feed *feed, struct oh_feed_group *group,
	       const struct oh_feed_slot *slot, uint64_t *damaged, struct onehop_error *error)
{
	struct verifying v = {.feed = feed, .group = group};
	onehop_status status = ONEHOP_OK;
	v.damaged = calloc(group->rows + 1, sizeof *v.damaged);
	if (!v.damaged)
		return oh_fail_no_memory(error, group->rows, "verifying");
	for (int side = 0; side < OH_FEED_SIDES && !status; side++) {
		v.buffer = slot->buffers[side];
		status = verify_side(&v, side, error);
	}
	if (!status)
		*damaged = mark_damaged(&v);
	free(v.damaged);
	return status;
}
