/* Checks payloads where they landed.
 *
 * The part of a buffer that has payloads is cut into pieces of equal size, whatever the payloads', and
 * a few threads take them in turn: the next one of a thread is read back from the device while the one
 * before is summed; host memory is summed in place. A payload that lies in several pieces is torn: its
 * sum is joined from theirs at the end. Cells need not come in the order of their places, but then
 * there are more pieces. Which damage is told does not depend on who was quicker: it is that of the
 * first cell.
 */
#include "dataset/feed.h"

#include "base/arith.h"
#include "base/crc32c.h"
#include "base/error.h"
#include "dataset/crew.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* As much as the link to a GPU brings at a good rate, and little beside a core's cache. */
#define PIECE_BYTES  (UINT64_C(1) << 20)
#define MOST_THREADS 16

/* Bytes [begin, end) of the buffer, which cells [first, past) have; the first and the last perhaps in
 * part. */
struct piece {
	uint64_t begin;
	uint64_t end;
	uint64_t first;
	uint64_t past;
	uint32_t head; /* the CRC of the first cell's part, if the cell began before */
	uint32_t tail; /* of the last cell's part, if that begins here and goes on */
};

struct verifying {
	struct onehop_feed *feed;
	struct oh_feed_group *group;
	const struct onehop_buffer *buffer;
	const uint64_t *cells;
	uint64_t cell_count;
	struct piece *pieces;
	uint64_t count;
	uint64_t room;
	atomic_ullong next;     /* piece to be taken */
	pthread_mutex_t lock;   /* guards what follows */
	uint8_t *damaged;       /* by row */
	uint64_t worst;         /* the first damaged one of cells; UINT64_MAX: none */
	uint32_t crc;           /* that it has */
};

static inline uint64_t
begin_of(const struct verifying *v, uint64_t index)
{
	return v->group->offsets[v->cells[index]];
}

static inline uint64_t
end_of(const struct verifying *v, uint64_t index)
{
	return begin_of(v, index) + v->group->bytes[v->cells[index]];
}

/* ------------------------------------------------------------------ pieces */

/* 1 if there is no memory. */
static int
add_piece(struct verifying *v, uint64_t begin, uint64_t first)
{
	if (v->count == v->room) {
		uint64_t room = v->room ? v->room * 2 : 256;
		struct piece *grown = realloc(v->pieces, room * sizeof *grown);
		if (!grown)
			return 1;
		v->pieces = grown;
		v->room = room;
	}
	v->pieces[v->count++] = (struct piece){.begin = begin, .end = begin, .first = first};
	return 0;
}

/* 1 if there is no memory. */
static int
cut(struct verifying *v)
{
	for (uint64_t i = 0; i < v->cell_count; i++) {
		uint64_t begin = begin_of(v, i), end = end_of(v, i);
		struct piece *last = v->count ? &v->pieces[v->count - 1] : NULL;
		if (!last || begin < last->begin || begin >= last->begin + PIECE_BYTES) {
			if (add_piece(v, begin, i))
				return 1;
		}
		for (;;) {
			last = &v->pieces[v->count - 1];
			last->end = oh_max(last->end, oh_min(end, last->begin + PIECE_BYTES));
			last->past = i + 1;
			if (end <= last->begin + PIECE_BYTES)
				break;
			if (add_piece(v, last->begin + PIECE_BYTES, i))
				return 1;
		}
	}
	return 0;
}

/* ------------------------------------------------------------------ sums */

static void
judge(struct verifying *v, uint64_t index, uint32_t crc)
{
	uint64_t cell = v->cells[index];
	if (crc == v->group->crcs[cell])
		return;
	pthread_mutex_lock(&v->lock);
	v->damaged[cell % v->group->rows] = 1;
	if (index < v->worst) {
		v->worst = index;
		v->crc = crc;
	}
	pthread_mutex_unlock(&v->lock);
}

static void
sum_piece(struct verifying *v, struct piece *piece, const uint8_t *memory)
{
	for (uint64_t i = piece->first; i < piece->past; i++) {
		uint64_t begin = oh_max(begin_of(v, i), piece->begin);
		uint64_t end = oh_min(end_of(v, i), piece->end);
		uint32_t crc = oh_crc32c(0, memory + (begin - piece->begin), end - begin);
		if (begin_of(v, i) < piece->begin)
			piece->head = crc;
		else if (end < end_of(v, i))
			piece->tail = crc;
		else
			judge(v, i, crc);
	}
}

/* The cells that lie in several pieces, which follow each other. */
static void
join_torn(struct verifying *v)
{
	uint32_t crc = 0;
	for (uint64_t k = 0; k < v->count; k++) {
		const struct piece *piece = &v->pieces[k];
		uint64_t end = end_of(v, piece->first);
		if (begin_of(v, piece->first) < piece->begin) {
			crc = oh_crc32c_join(crc, piece->head,
					     oh_min(end, piece->end) - piece->begin);
			if (end <= piece->end)
				judge(v, piece->first, crc);
		}
		if (begin_of(v, piece->past - 1) >= piece->begin)
			crc = piece->tail;
	}
}

static onehop_status
start(const struct verifying *v, uint32_t place, uint64_t index, struct onehop_error *error)
{
	const struct piece *piece = &v->pieces[index];
	return oh_readback_start(v->feed->readback, place, v->buffer, piece->begin,
				 piece->end - piece->begin, error);
}

/* Pieces, until there are none: one on its way while one is summed. */
static onehop_status
check_pieces(void *context, uint32_t worker, uint64_t index, struct onehop_error *error)
{
	struct verifying *v = context;
	struct oh_readback *readback = v->feed->readback;
	uint32_t place = 2 * (uint32_t)index;
	uint64_t now = atomic_fetch_add(&v->next, 1);
	onehop_status status = ONEHOP_OK;
	(void)worker;
	if (now < v->count)
		status = start(v, place, now, error);
	while (!status && now < v->count) {
		const uint8_t *memory;
		uint64_t then = atomic_fetch_add(&v->next, 1);
		if (then < v->count)
			status = start(v, place ^ 1, then, error);
		if (!status)
			status = oh_readback_wait(readback, place, &memory, error);
		if (!status)
			sum_piece(v, &v->pieces[now], memory);
		now = then;
		place ^= 1;
	}
	return status;
}

/* ------------------------------------------------------------------ */

static onehop_status
refuse(const struct verifying *v, struct onehop_error *error)
{
	const struct onehop_feed *feed = v->feed;
	const struct oh_feed_group *group = v->group;
	uint64_t cell = v->cells[v->worst], sample = group->samples[cell % group->rows];
	uint32_t field = feed->fields[cell / group->rows];
	char key_shown[OH_SHOWN], field_shown[OH_SHOWN];
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
		(unsigned long long)part->offset, v->crc, part->crc32c);
	oh_remedy(error, "get a good copy of the shard, or have damaged samples skipped");
	return ONEHOP_MISMATCH;
}

static onehop_status
verify_side(struct verifying *v, int side, struct onehop_error *error)
{
	v->cells = v->group->cells[side];
	v->cell_count = v->group->cell_count[side];
	v->count = 0;
	v->worst = UINT64_MAX;
	atomic_store(&v->next, 0);
	if (cut(v))
		return oh_fail_no_memory(error, v->count * sizeof *v->pieces, "verifying");
	uint32_t threads = (uint32_t)oh_min(v->feed->verify_threads, v->count);
	onehop_status status = oh_crew_run(threads, threads, check_pieces, v, error);
	if (status)
		return status;
	join_torn(v);
	if (v->worst != UINT64_MAX && v->feed->damage != ONEHOP_DAMAGE_SKIP)
		return refuse(v, error);
	return ONEHOP_OK;
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
oh_feed_verify_init(struct onehop_feed *feed, struct onehop_error *error)
{
	struct onehop_error unpinned = {0};
	int side = feed->capacity[OH_FEED_DEVICE] ? OH_FEED_DEVICE : OH_FEED_HOST;
	uint64_t most = oh_max(feed->capacity[OH_FEED_DEVICE], feed->capacity[OH_FEED_HOST]);
	uint64_t threads = oh_min(feed->dataset->cores, MOST_THREADS);
	if (!most)
		return ONEHOP_OK;
	feed->verify_threads = (uint32_t)oh_min(threads, most / PIECE_BYTES + 1);
	onehop_status status = oh_readback_create(feed->slot[0].buffers[side],
						  2 * feed->verify_threads,
						  oh_min(PIECE_BYTES, most), &feed->readback,
						  &unpinned, error);
	oh_feed_note_unpinned(feed, &unpinned);
	return status;
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
	pthread_mutex_init(&v.lock, NULL);
	for (int side = 0; side < OH_FEED_SIDES && !status; side++) {
		v.buffer = slot->buffers[side];
		status = verify_side(&v, side, error);
	}
	if (!status)
		*damaged = mark_damaged(&v);
	pthread_mutex_destroy(&v.lock);
	free(v.pieces);
	free(v.damaged);
	return status;
}
