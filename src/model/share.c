/* Tensor-parallel shares. A tensor is rows x extent x inner elements, where extent is the dimension
 * that is split; a rank's share is the same run of each row.
 *
 * The innermost dimension of a type with blocks (GGUF's, and F4 and F6, which share bytes) is dealt
 * out in blocks. Every boundary between ranks has to be the end of a block, so all ranks of a group
 * come to the same verdict. A parser has checked that the tensor's bytes follow from its shape.
 */
#include "model/share.h"
#include "base/arith.h"

#include <assert.h>
#include <string.h>

/* The first of count units that a rank has, and how many. */
static void
deal(const struct oh_share *share, uint64_t count, uint64_t *begin, uint64_t *extent)
{
	uint64_t each = count / share->size, more = count % share->size;
	*begin = share->rank * each + oh_min(share->rank, more);
	*extent = each + (share->rank < more);
}

/* Do all boundaries lie on blocks, if a unit is unit_elements of a row? */
static int
cuts(const struct oh_share *share, uint64_t count, uint64_t unit_elements, uint32_t block_elements)
{
	uint64_t each = count / share->size, more = count % share->size;
	if (count == 1) /* one rank has all of it, the others nothing */
		return 0;
	/* The whole fits 64 bits, so these products do. */
	if (more && (each + 1) * unit_elements % block_elements)
		return 1;
	return each && each * unit_elements % block_elements != 0;
}

enum oh_share_fault
oh_share_part(const struct oh_share *share, const uint64_t *shape, uint32_t dims, uint32_t rank,
	      uint64_t bytes, uint32_t block_elements, uint32_t block_bytes, struct oh_part *part)
{
	uint64_t whole = shape[dims - 1], unit = 1, count = whole, elements, rows = 1, inner;
	assert(dims >= 1 && dims <= rank && share->rank < share->size);
	if (dims == rank && block_elements > 1) {
		unit = block_elements;
		count = whole / unit;
		if (whole % unit && share->size > 1)
			return OH_SHARE_CUTS;
	}
	if (count % share->size && !share->split_uneven)
		return OH_SHARE_UNEVEN;
	memset(part, 0, sizeof *part);
	part->dim = dims - 1;
	part->rows = 1;
	part->extent = whole;
	if (share->size > 1) {
		deal(share, count, &part->begin, &part->extent);
		part->begin *= unit;
		part->extent *= unit;
	}
	if (bytes == 0) /* with a 0 among the dimensions the product of the others means nothing */
		return OH_SHARE_OK;
	elements = bytes / block_bytes * block_elements;
	for (uint32_t i = 0; i + 1 < dims; i++)
		rows *= shape[i];
	inner = elements / rows / whole;
	if (share->size > 1 && cuts(share, count, unit * inner, block_elements))
		return OH_SHARE_CUTS;
	if (part->extent == whole) {
		part->row_bytes = part->row_stride = bytes;
	} else if (part->extent) {
		part->rows = rows;
		part->offset = part->begin * inner / block_elements * block_bytes;
		part->row_bytes = part->extent * inner / block_elements * block_bytes;
		part->row_stride = bytes / rows;
	}
	return OH_SHARE_OK;
}
