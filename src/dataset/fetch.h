/* Fetches for the feed: of runs that are laid out already. */
#ifndef OH_DATASET_FETCH_H
#define OH_DATASET_FETCH_H

#include "dataset/runs.h"

#include <onehop/dataset.h>

/* Plans runs into the buffer and prepares the transfer. The runs are taken over: *runs is empty
 * afterwards, whatever is returned. */
onehop_status oh_fetch_of_runs(struct onehop_dataset *dataset, struct oh_runs *runs,
			       struct onehop_buffer *buffer, struct onehop_fetch **fetch,
			       struct onehop_error *error);

/* Would a byte of a shard travel to the buffer from the page cache through a block of the ring? Then
 * what lies between ranges costs the link, and rows are worth a CPU's time. */
int oh_fetch_is_staged(const struct onehop_dataset *dataset, uint64_t shard, uint64_t offset,
		       struct onehop_buffer *buffer);

/* Waits, helping, until no more than so many bytes are still to land, or it has ended. As serial as
 * wait is. */
void oh_fetch_wait_until(struct onehop_fetch *fetch, uint64_t bytes_left);

/* Asks it to stop. Any thread. */
void oh_fetch_cancel(struct onehop_fetch *fetch);

#endif
