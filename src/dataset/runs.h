/* Ranges of shards, given in the order of their places there, merged into runs and laid out in a
 * buffer: each at its offset in the shard modulo 4096.
 */
#ifndef OH_DATASET_RUNS_H
#define OH_DATASET_RUNS_H

#include <stdint.h>
#include <stdlib.h>

#define OH_RUN_PAGE UINT64_C(4096)

struct oh_run {
	uint64_t shard;
	uint64_t offset;
	uint64_t bytes;
	uint64_t place; /* in the buffer */
};

struct oh_runs {
	struct oh_run *at;
	uint64_t count;
	uint64_t room;
	uint64_t gap;  /* bytes between two ranges that are read over */
	uint64_t end;  /* of the last run in the buffer; begins as where the first may lie */
};

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
	uint64_t place = runs->end + ((offset - runs->end) & (OH_RUN_PAGE - 1));
	runs->at[runs->count++] = (struct oh_run){shard, offset, bytes, place};
	runs->end = place + bytes;
	return 0;
}

/* Adds a range that begins at or behind the begin of the last one, and gives its place. 1 if there is
 * no memory. */
static inline int
oh_runs_add(struct oh_runs *runs, uint64_t shard, uint64_t offset, uint64_t bytes, uint64_t *place)
{
	struct oh_run *last = runs->count ? &runs->at[runs->count - 1] : NULL;
	if (last && last->shard == shard && offset <= last->offset + last->bytes + runs->gap) {
		uint64_t reach = offset + bytes - last->offset;
		if (reach > last->bytes) {
			last->bytes = reach;
			runs->end = last->place + reach;
		}
	} else {
		if (oh_runs_open(runs, shard, offset, bytes))
			return 1;
		last = &runs->at[runs->count - 1];
	}
	*place = last->place + (offset - last->offset);
	return 0;
}

#endif
