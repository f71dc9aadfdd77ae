/* Keys with what they belong to, sorted by counting: a few passes over them, whatever their order. */
#ifndef OH_DATASET_SORT_H
#define OH_DATASET_SORT_H

#include <stdint.h>

struct oh_sort_item {
	uint64_t key;
	uint64_t index;
};

/* Equal keys keep their order. scratch has room for as many. Returns where the result is: items or
 * scratch. */
struct oh_sort_item *oh_sort(struct oh_sort_item *items, struct oh_sort_item *scratch,
			     uint64_t count);

#endif
