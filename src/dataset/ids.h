/* Names numbered in the order of their first use. The bytes are not copied: they must outlive it. */
#ifndef OH_DATASET_IDS_H
#define OH_DATASET_IDS_H

#include <onehop/dataset.h>

struct oh_ids {
	struct onehop_name *at;
	uint64_t count;
	uint64_t room;
	uint32_t *slots; /* a hash table of number + 1, twice as long as room */
};

/* The number of a name, a new one if it has none yet. 1 if there is no memory. */
int oh_ids_number(struct oh_ids *ids, const char *text, uint64_t bytes, uint32_t *number);
void oh_ids_free(struct oh_ids *ids);

#endif
