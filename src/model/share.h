/* One rank's share of a tensor, as rows of bytes in the file. Pure arithmetic. */
#ifndef OH_MODEL_SHARE_H
#define OH_MODEL_SHARE_H

#include <stdint.h>

struct oh_part {
	uint32_t dim;
	uint32_t reserved;
	uint64_t begin;  /* first index of dim */
	uint64_t extent; /* of dim */
	uint64_t offset; /* of the first row, from the tensor's begin */
	uint64_t rows;
	uint64_t row_bytes;
	uint64_t row_stride;
};

struct oh_share {
	uint32_t rank;
	uint32_t size;
	int split_uneven; /* 0: uneven is refused */
};

enum oh_share_fault {
	OH_SHARE_OK,
	OH_SHARE_UNEVEN, /* the ranks do not divide the dimension */
	OH_SHARE_CUTS,   /* a share would end inside a block, or a byte */
};

/* The share of a tensor of bytes, of a type with blocks of block_elements and block_bytes, along
 * the last of its dimensions [0, dims) that are in shape. rank: the tensor's, at least dims. The
 * verdict is the same for each rank of the group. *part is written on OH_SHARE_OK. */
enum oh_share_fault oh_share_part(const struct oh_share *share, const uint64_t *shape,
				  uint32_t dims, uint32_t rank, uint64_t bytes,
				  uint32_t block_elements, uint32_t block_bytes,
				  struct oh_part *part);

#endif
