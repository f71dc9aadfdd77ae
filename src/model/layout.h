/* Where tensors lie in an arena. A pure function, fed in the order of the file. */
#ifndef OH_MODEL_LAYOUT_H
#define OH_MODEL_LAYOUT_H

#include <stdint.h>

/* Alignment that the arena's start should have, and that items of OH_LAYOUT_LARGE bytes get. */
#define OH_LAYOUT_ARENA 256u
#define OH_LAYOUT_LARGE (UINT64_C(32) << 10)
/* That of smaller ones: no element is wider than 8 bytes. */
#define OH_LAYOUT_SMALL 16u

/* Start with all zero. */
struct oh_layout {
	uint64_t end;     /* of what is placed: the arena's bytes */
	uint64_t file;    /* of the last whole item */
	uint64_t delta;   /* its place less its offset in the file, modulo 2^64 */
	int delta_is_set;
};

/* Places the next item. offset: where it begins in its file. whole: 0 for a part, which keeps no
 * spacing. Returns 1 if the arena would not fit 64 bits, and then changes nothing. */
int oh_layout_place(struct oh_layout *layout, uint64_t file, uint64_t offset, uint64_t bytes,
		    int whole, uint64_t *place);

#endif
