/* A hash table from names to indexes, 4 bytes a slot: the names stay where they are. */
#ifndef OH_MODEL_LOOKUP_H
#define OH_MODEL_LOOKUP_H

#include "base/error.h"

#include <stdint.h>

#define OH_LOOKUP_NONE UINT64_MAX
#define OH_LOOKUP_MOST (UINT32_MAX - 1)

struct oh_lookup {
	uint32_t *slots; /* index + 1, or 0 */
	uint64_t mask;
	uint64_t key[2];
	const void *owner;
	const char *(*name_at)(const void *owner, uint64_t index, uint64_t *bytes);
};

/* An empty table with room for count names (at most OH_LOOKUP_MOST). */
onehop_status oh_lookup_create(struct oh_lookup *names, uint64_t count, const void *owner,
			      const char *(*name_at)(const void *owner, uint64_t index,
						     uint64_t *bytes),
			      struct onehop_error *error);
void oh_lookup_destroy(struct oh_lookup *names);

/* Adds the name at index. Returns OH_LOOKUP_NONE, or the index that has the same name: then nothing
 * is added. */
uint64_t oh_lookup_add(struct oh_lookup *names, uint64_t index);
uint64_t oh_lookup_find(const struct oh_lookup *names, const char *name, uint64_t bytes);

/* Of the first count names, the one that was most likely meant by name, or OH_LOOKUP_NONE if none
 * is near. Takes some 10 ms at most, however many names there are. */
uint64_t oh_lookup_nearest(const struct oh_lookup *names, uint64_t count, const char *name,
			  uint64_t bytes);

#endif
