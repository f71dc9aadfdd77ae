/* Ranges of shards, given in the order of their places there, merged into runs and laid out in a
 * buffer.
 *
 * A run is read from one place to another: ranges that lie near each other, with what is between
 * them. Where that would be much of what crosses a link and ranges of equal bytes follow each
 * other at a constant stride, they are rows of a run instead, which land side by side without it.
 * So that a coincidence does not cut a run in two, a stride counts once several ranges had it.
 *
 * Each run begins at its offset in the shard modulo 4096, and ranges keep theirs; where there may
 * be rows, modulo 64.
 */
#ifndef OH_DATASET_RUNS_H
#define OH_DATASET_RUNS_H

#include <stdint.h>
#include <stdlib.h>

#define OH_RUN_PAGE UINT64_C(4096)
/* Of places of rows, and of runs that begin with less than so many bytes where there may be rows:
 * those that lie side by side are copied as one. */
#define OH_ROW_UNIT UINT64_C(64)
#define OH_RUN_SMALL UINT64_C(32768)
/* Ranges at one stride, from which on it counts. */
#define OH_ROWS_ALIKE 8
/* A gap that is always read over, if runs->gap allows. */
#define OH_ROWS_LEAST_GAP UINT64_C(8192)
/* Further apart they are no rows: an accident rather than what a shard is made of. */
#define OH_ROW_GAP (UINT64_C(1) << 20)

struct oh_run {
	uint64_t shard;
	uint64_t offset;
	uint64_t row_bytes;
	uint64_t rows;
	uint64_t row_stride; /* with one row: of no meaning */
	uint64_t place;      /* in the buffer */
};

struct oh_runs {
	struct oh_run *at;
	uint64_t count;
	uint64_t room;
	uint64_t gap;  /* bytes between two ranges that are read over */
	uint64_t end;  /* of the last run in the buffer; begins as where the first may lie */
	int rows;      /* there may be runs of rows: what lies between costs a link */
	/* The last range: bytes, distance from the one before, and how many since had both. */
	uint64_t shard;
	uint64_t offset;
	uint64_t bytes;
	uint64_t stride;
	uint64_t alike;
	/* Of the last rows that were seen. */
	uint64_t row_bytes;
	uint64_t row_stride;
};

/* Bytes of the buffer. */
static inline uint64_t
oh_run_bytes(const struct oh_run *run)
{
	return run->rows * run->row_bytes;
}

/* Bytes of the shard from the run's first to its last. */
static inline uint64_t
oh_run_span(const struct oh_run *run)
{
	return run->rows > 1 ? (run->rows - 1) * run->row_stride + run->row_bytes : run->row_bytes;
}

/* A run of its own. 1 if there is no memory. */
static inline int
oh_runs_open(struct oh_runs *runs, uint64_t shard, uint64_t offset, uint64_t bytes)
{
	if (runs->count == runs->room) {
		uint64_t room = runs->room ? runs->room * 2 : 256;
		struct oh_run *grown = realloc(runs->at, room * sizeof *grown);
		if (!grown)
			return 1;
		runs->at = grown;
		runs->room = room;
	}
	uint64_t unit = runs->rows && bytes < OH_RUN_SMALL ? OH_ROW_UNIT : OH_RUN_PAGE;
	uint64_t place = runs->end + ((offset - runs->end) & (unit - 1));
	runs->at[runs->count++] = (struct oh_run){shard, offset, bytes, 1, bytes, place};
	runs->end = place + bytes;
	return 0;
}

/* Rows pay where an eighth of what is read would lie between them. */
static inline int
oh_rows_pay(uint64_t bytes, uint64_t stride)
{
	return bytes < stride - stride / 8 && stride - bytes <= OH_ROW_GAP &&
	       (stride - bytes) % OH_ROW_UNIT == 0;
}

/* Looks whether the range continues a stride. 1 if it does, and rows pay. */
static inline int
oh_runs_alike(struct oh_runs *runs, uint64_t shard, uint64_t offset, uint64_t bytes)
{
	uint64_t stride = offset - runs->offset;
	int same = shard == runs->shard && bytes == runs->bytes && bytes > 0;
	if (same && !stride)
		return 0; /* a range that is asked for twice */
	runs->alike = same && stride == runs->stride ? runs->alike + 1 : 0;
	runs->shard = shard;
	runs->offset = offset;
	runs->bytes = bytes;
	runs->stride = stride;
	if (runs->alike < OH_ROWS_ALIKE || !oh_rows_pay(bytes, stride))
		return 0;
	runs->row_bytes = bytes;
	runs->row_stride = stride;
	return 1;
}

/* Is the range the run's next row, or would it be its second? */
static inline int
oh_run_goes_on(const struct oh_runs *runs, const struct oh_run *run, uint64_t shard,
	       uint64_t offset, uint64_t bytes)
{
	if (!bytes || bytes != run->row_bytes || shard != run->shard)
		return 0;
	if (run->rows > 1)
		return offset == run->offset + run->rows * run->row_stride;
	return bytes == runs->row_bytes && offset == run->offset + runs->row_stride;
}

/* What is read over at most to have the range in the last run: where a link is crossed, no more than
 * twice of it, since a small read costs less than much around it. */
static inline uint64_t
oh_runs_gap(const struct oh_runs *runs, uint64_t bytes)
{
	uint64_t most = 2 * bytes > OH_ROWS_LEAST_GAP ? 2 * bytes : OH_ROWS_LEAST_GAP;
	return runs->rows && most < runs->gap ? most : runs->gap;
}

/* As oh_runs_add(), of a range that is no next row. */
static inline int
oh_runs_add_other(struct oh_runs *runs, struct oh_run *last, uint64_t shard, uint64_t offset,
		  uint64_t bytes, uint64_t *place)
{
	int alike = runs->rows && oh_runs_alike(runs, shard, offset, bytes);
	if (last && last->shard == shard && last->rows > 1) {
		uint64_t row = (last->rows - 1) * last->row_stride;
		if (offset == last->offset + row && bytes <= last->row_bytes) {
			*place = runs->end - last->row_bytes;
			return 0;
		}
	} else if (last && last->shard == shard &&
		   offset <= last->offset + last->row_bytes + (alike ? 0 : oh_runs_gap(runs, bytes))) {
		uint64_t reach = offset + bytes - last->offset;
		if (reach > last->row_bytes) {
			last->row_bytes = reach;
			runs->end = last->place + reach;
		}
		*place = last->place + (offset - last->offset);
		return 0;
	}
	if (oh_runs_open(runs, shard, offset, bytes))
		return 1;
	*place = runs->at[runs->count - 1].place;
	return 0;
}

/* Adds a range that begins at or behind the begin of the last one, and gives its place. 1 if there
 * is no memory. */
static inline int
oh_runs_add(struct oh_runs *runs, uint64_t shard, uint64_t offset, uint64_t bytes, uint64_t *place)
{
	struct oh_run *last = runs->count ? &runs->at[runs->count - 1] : NULL;
	if (!last || !oh_run_goes_on(runs, last, shard, offset, bytes))
		return oh_runs_add_other(runs, last, shard, offset, bytes, place);
	if (last->rows++ == 1)
		last->row_stride = runs->row_stride;
	runs->offset = offset;
	*place = runs->end;
	runs->end += bytes;
	return 0;
}

#endif
