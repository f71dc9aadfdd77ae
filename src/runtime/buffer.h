/* What checks and hosts of decoders need of buffers, beside the public calls. */
#ifndef OH_RUNTIME_BUFFER_H
#define OH_RUNTIME_BUFFER_H

#include <onehop/buffer.h>

/* Pins a buffer of host memory that onehop allocated for copies to and from a device, until it is
 * freed; a child of fork does not see it from then on. Nothing is done for a device that needs no
 * pinning. Blocks while pages are made. Before any other use of the buffer. NO_MEMORY, LIMIT, or
 * what the driver says: the buffer is as good as before, but not pinned. */
onehop_status oh_buffer_pin(struct onehop_buffer *buffer, const char *device,
			    struct onehop_error *error);
int oh_buffer_is_pinned(const struct onehop_buffer *buffer);

/* Reads pieces of buffers of one device back, several at a time, each into a place of its own; what
 * the CPU can reach is not copied. */
struct oh_readback;

/* For buffers on the device of this one. `places` pieces of up to piece_bytes can be on their way.
 * *unpinned (zeroed before) says why the places are not pinned, if they are not and should be: then
 * reading is slow. */
onehop_status oh_readback_create(const struct onehop_buffer *buffer, uint32_t places,
				 uint64_t piece_bytes, struct oh_readback **readback,
				 struct onehop_error *unpinned, struct onehop_error *error);
/* Waits for what is on its way. NULL is allowed. */
void oh_readback_destroy(struct oh_readback *readback);

/* Any thread, each place by one at a time. Reading begins at start, the bytes are at *memory after
 * wait and until the place is started again. Buffers of another device are read only if the CPU can
 * reach them. */
onehop_status oh_readback_start(struct oh_readback *readback, uint32_t place,
				const struct onehop_buffer *buffer, uint64_t offset, uint64_t bytes,
				struct onehop_error *error);
onehop_status oh_readback_wait(struct oh_readback *readback, uint32_t place,
			       const uint8_t **memory, struct onehop_error *error);

#endif
