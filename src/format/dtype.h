/* Element types of both formats, each as a block of elements and its bytes. Pure tables. */
#ifndef OH_FORMAT_DTYPE_H
#define OH_FORMAT_DTYPE_H

#include <stddef.h>
#include <stdint.h>

struct oh_dtype {
	const char *name;        /* "BF16", "Q4_K": as the file or ggml spells it, in capitals */
	uint32_t block_elements; /* elements that share a block; F4 2, F6 4, 1 for whole bytes */
	uint32_t block_bytes;
};

/* NULL for a name that is no safetensors dtype (case matters). */
const struct oh_dtype *oh_dtype_safetensors(const char *name, size_t bytes);

/* NULL for an id that is unknown or was removed from ggml. */
const struct oh_dtype *oh_dtype_ggml(uint32_t id);

#endif
