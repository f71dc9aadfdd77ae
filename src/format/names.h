/* A set of names that stand in a text, to find those that stand twice, in linear time. */
#ifndef OH_FORMAT_NAMES_H
#define OH_FORMAT_NAMES_H

#include "base/error.h"

#include <stdint.h>

/* Where the name of items[index] stands. */
struct oh_name {
	uint32_t at;
	uint32_t bytes;
};
typedef struct oh_name oh_name_of(const uint8_t *text, const void *items, uint64_t index);

struct oh_names {
	const uint8_t *text;
	const void *items;
	oh_name_of *name_of;
	uint32_t *slots; /* index + 1 of an item, 0 if free */
	uint64_t capacity;
	uint64_t seed;
};

/* Room for most names (under 4e9): about 5.4 bytes each. */
onehop_status oh_names_init(struct oh_names *names, const uint8_t *text, const void *items,
			    oh_name_of *name_of, uint64_t most, struct onehop_error *error);
void oh_names_free(struct oh_names *names);

#define OH_NAMES_NEW UINT64_MAX

/* Adds items[index], or returns the index of an item with the same name. */
uint64_t oh_names_add(struct oh_names *names, uint64_t index);

#endif
