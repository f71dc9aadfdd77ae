/* SPDX-License-Identifier: Apache-2.0
 *
 * onehop/buffer.h: memory that bytes go to, on a GPU or in the host.
 */
#ifndef ONEHOP_BUFFER_H
#define ONEHOP_BUFFER_H

#include <onehop/runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

struct onehop_buffer;

struct onehop_buffer_info {
	uint32_t size;
	uint32_t owned;     /* 1 if onehop allocated it */
	uint64_t address;   /* device or host address; 0 only if bytes is 0 */
	uint64_t bytes;
	const char *device; /* "cuda:0", "host"; lives as long as the buffer */
	uint64_t exports;   /* tensors made by onehop_buffer_export() that live */
};

/* Allocates bytes on the device; its start is aligned to 256 bytes at least. The allocation is the
 * check that there is room: NO_DEVICE_MEMORY or NO_MEMORY give the numbers. 0 bytes is allowed. The
 * contents are undefined. On CUDA the caller's current context is used if it is on that device,
 * else the primary one; it is never left current. Any thread. */
ONEHOP_API onehop_status onehop_buffer_alloc(struct onehop_runtime *runtime, const char *device,
					     uint64_t bytes, struct onehop_buffer **buffer,
					     struct onehop_error *error);

/* Uses memory of the caller's, which must stay until the buffer is freed. A CUDA address is checked
 * to lie on the device. Any thread. */
ONEHOP_API onehop_status onehop_buffer_wrap(struct onehop_runtime *runtime, const char *device,
					    uint64_t address, uint64_t bytes,
					    struct onehop_buffer **buffer,
					    struct onehop_error *error);

/* Gives the memory back if onehop allocated it, once the last tensor that was exported from it is
 * gone. NULL is allowed. Transfers into it must be gone. */
ONEHOP_API void onehop_buffer_free(struct onehop_buffer *buffer);

/* Fill info->size first. Any thread. */
ONEHOP_API onehop_status onehop_buffer_query(const struct onehop_buffer *buffer,
					     struct onehop_buffer_info *info);

/* Copies bytes [offset, offset + bytes) of the buffer to host memory and waits. For checks and
 * small reads: it is not the fast path out. Any thread. */
ONEHOP_API onehop_status onehop_buffer_read(struct onehop_buffer *buffer, uint64_t offset,
					    void *destination, uint64_t bytes,
					    struct onehop_error *error);

/* Sets bytes [offset, offset + bytes) to value (0 to 255) and waits. Any thread. */
ONEHOP_API onehop_status onehop_buffer_fill(struct onehop_buffer *buffer, uint64_t offset,
					    uint64_t bytes, uint32_t value,
					    struct onehop_error *error);

#ifdef __cplusplus
}
#endif
#endif
