/* The layout of a group: its rows' samples, and where each payload goes in the buffers.
 *
 * Rows are walked in the order of their samples, so that ranges come sorted. A large group is walked
 * in pieces by a few threads, each laying out its own part of the samples from 0 on; the parts are
 * then put one behind the other, by multiples of a page, so that each run keeps its place modulo
 * 4096. Samples on both sides of a seam are two runs where they could be one.
 */
#include "dataset/feed.h"

#include "base/arith.h"
#include "base/error.h"
#include "dataset/crew.h"

#include <string.h>

/* Rows that are worth a piece of their own, and how many pieces there are at most. */
#define PIECE_ROWS  8192
#define MOST_PIECES 4

struct piece {
	uint64_t begin; /* of the group's rows, or of its items */
	uint64_t end;
	struct oh_runs runs[OH_FEED_SIDES];
	uint64_t base[OH_FEED_SIDES]; /* where its part begins in the buffer */
	uint64_t payload_bytes;
	/* The shard of the sample at hand: its number, and its samples. */
	const struct oh_dataset_shard *shard;
	uint64_t shard_number;
	uint64_t first_sample;
	uint64_t end_sample;
};

struct laying {
	struct onehop_feed *feed;
	struct oh_feed_group *group;
	uint64_t first_row;
	struct oh_sort_item *items; /* by sample, once they are sorted */
	uint32_t count;
	struct piece pieces[MOST_PIECES];
};

/* ------------------------------------------------------------------ rows */

/* Which samples the rows of a piece have. */
static onehop_status
take_rows(void *context, uint32_t worker, uint64_t index, struct onehop_error *error)
{
	struct laying *l = context;
	const struct piece *piece = &l->pieces[index];
	struct oh_feed_group *group = l->group;
	uint64_t begin = piece->begin, count = piece->end - begin;
	(void)worker, (void)error;
	onehop_order_rows(l->feed->plan.order, l->first_row + begin, count, group->samples + begin,
			  group->pad + begin);
	for (uint64_t row = begin; row < piece->end; row++)
		l->items[row] = (struct oh_sort_item){group->samples[row], row};
	for (uint64_t field = 0; field < l->feed->field_count; field++) {
		uint64_t cell = field * group->rows + begin;
		memset(group->bytes + cell, 0xff, count * sizeof *group->bytes);
		memset(group->offsets + cell, 0, count * sizeof *group->offsets);
	}
	return ONEHOP_OK;
}

/* ------------------------------------------------------------------ payloads */

static void
enter_shard(const struct onehop_dataset *dataset, uint64_t sample, struct piece *piece)
{
	piece->shard_number = oh_dataset_shard_of(dataset, sample);
	piece->shard = &dataset->shards[piece->shard_number];
	piece->first_sample = dataset->firsts[piece->shard_number];
	piece->end_sample = dataset->firsts[piece->shard_number + 1];
}

/* 1 if there is no memory. */
static inline int
lay_part(const struct onehop_feed *feed, struct oh_feed_group *group, uint64_t cell, int side,
	 const struct oh_shard_part *part, struct piece *piece)
{
	if (oh_runs_add(&piece->runs[side], piece->shard_number, part->offset, part->bytes,
			&group->offsets[cell]))
		return 1;
	group->bytes[cell] = part->bytes;
	piece->payload_bytes += part->bytes;
	if (feed->verify) {
		group->crcs[cell] = part->crc32c;
		group->cells[side][group->cell_count[side]++] = cell;
	}
	return 0;
}

/* The parts of a row that are fed. The first part of a field counts. */
static inline int
lay_row(const struct onehop_feed *feed, struct oh_feed_group *group, uint64_t sample, uint64_t row,
	struct piece *piece)
{
	if (sample >= piece->end_sample || sample < piece->first_sample)
		enter_shard(feed->dataset, sample, piece);
	const struct oh_shard_view *view = &piece->shard->view;
	const struct oh_shard_sample *entry = view->sample + (sample - piece->first_sample);
	for (uint64_t i = entry[0].first_part; i < entry[1].first_part; i++) {
		const struct oh_shard_part *part = &view->part[i];
		uint16_t field = feed->fed[piece->shard->fields[part->field]];
		if (field == OH_NOT_FED)
			continue;
		uint64_t cell = field * group->rows + row;
		if (group->bytes[cell] == UINT64_MAX &&
		    lay_part(feed, group, cell, feed->sides[field], part, piece))
			return 1;
	}
	return 0;
}

static onehop_status
lay_piece(void *context, uint32_t worker, uint64_t index, struct onehop_error *error)
{
	struct laying *l = context;
	struct piece *piece = &l->pieces[index];
	(void)worker;
	for (uint64_t i = piece->begin; i < piece->end; i++)
		if (lay_row(l->feed, l->group, l->items[i].key, l->items[i].index, piece))
			return oh_fail_no_memory(error, sizeof(struct oh_run), "a group of batches");
	return ONEHOP_OK;
}

/* Moves the places of a piece's payloads to where its part begins. */
static onehop_status
move_piece(void *context, uint32_t worker, uint64_t index, struct onehop_error *error)
{
	struct laying *l = context;
	const struct piece *piece = &l->pieces[index];
	struct oh_feed_group *group = l->group;
	(void)worker, (void)error;
	for (uint64_t field = 0; field < l->feed->field_count && index; field++) {
		uint64_t base = piece->base[l->feed->sides[field]];
		uint64_t *offsets = group->offsets + field * group->rows;
		const uint64_t *bytes = group->bytes + field * group->rows;
		for (uint64_t i = piece->begin; i < piece->end; i++) {
			uint64_t row = l->items[i].index;
			offsets[row] += bytes[row] == UINT64_MAX ? 0 : base;
		}
	}
	return ONEHOP_OK;
}

/* Puts the pieces' runs of a side one behind the other. 1 if there is no memory. */
static int
join_runs(struct laying *l, int side, struct oh_runs *runs)
{
	uint64_t count = 0, end = 0;
	for (uint32_t i = 0; i < l->count; i++)
		count += l->pieces[i].runs[side].count;
	if (count > runs->room) {
		free(runs->at);
		runs->room = 0;
		runs->at = malloc(count * sizeof *runs->at);
		if (!runs->at)
			return 1;
		runs->room = count;
	}
	runs->count = 0;
	for (uint32_t i = 0; i < l->count; i++) {
		struct piece *piece = &l->pieces[i];
		const struct oh_runs *own = &piece->runs[side];
		piece->base[side] = oh_align_down(end + OH_RUN_PAGE - 1, OH_RUN_PAGE);
		for (uint64_t k = 0; k < own->count; k++) {
			runs->at[runs->count] = own->at[k];
			runs->at[runs->count++].place += piece->base[side];
		}
		end = piece->base[side] + own->end;
	}
	runs->end = end;
	return 0;
}

/* ------------------------------------------------------------------ */

/* The cells that verifying needs are kept in one list, so then there is one piece. */
static void
cut(struct laying *l, const struct oh_runs runs[OH_FEED_SIDES])
{
	uint64_t rows = l->group->rows, count = oh_min(rows / PIECE_ROWS, l->feed->dataset->cores / 4);
	l->count = l->feed->verify ? 1 : (uint32_t)oh_max(oh_min(count, MOST_PIECES), 1);
	memset(l->pieces, 0, sizeof l->pieces);
	for (uint32_t i = 0; i < l->count; i++) {
		l->pieces[i].begin = rows * i / l->count;
		l->pieces[i].end = rows * (i + 1) / l->count;
		for (int side = 0; side < OH_FEED_SIDES; side++) {
			l->pieces[i].runs[side].gap = runs[side].gap;
			l->pieces[i].runs[side].rows = runs[side].rows;
		}
	}
}

onehop_status
oh_feed_lay_out(struct onehop_feed *feed, struct oh_feed_group *group, uint64_t first_row,
		struct oh_runs runs[OH_FEED_SIDES], struct onehop_error *error)
{
	struct laying l = {.feed = feed, .group = group, .first_row = first_row,
			   .items = feed->plan.items};
	cut(&l, runs);
	memset(group->cell_count, 0, sizeof group->cell_count);
	onehop_status status = oh_crew_run(l.count, l.count, take_rows, &l, error);
	l.items = oh_sort(l.items, l.items + feed->plan.room, group->rows);
	if (!status)
		status = oh_crew_run(l.count, l.count, lay_piece, &l, error);
	group->payload_bytes = 0;
	for (uint32_t i = 0; i < l.count; i++)
		group->payload_bytes += l.pieces[i].payload_bytes;
	for (int side = 0; side < OH_FEED_SIDES && !status; side++)
		if (join_runs(&l, side, &runs[side]))
			status = oh_fail_no_memory(error, sizeof(struct oh_run),
						   "a group of batches");
	if (!status && l.count > 1)
		status = oh_crew_run(l.count, l.count, move_piece, &l, error);
	for (uint32_t i = 0; i < l.count; i++)
		for (int side = 0; side < OH_FEED_SIDES; side++)
			free(l.pieces[i].runs[side].at);
	return status;
}
