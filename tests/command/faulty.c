/* A device that lies, for `onehop-faulty`: the command, linked with --wrap=onehop_buffer_read.
 *
 * FAULTY_BYTE names a byte of the buffer, and whatever reads over it gets one bit of it wrong. It
 * is what --verify and the benchmark's verification are there for.
 */
#include <onehop/onehop.h>

#include <stdlib.h>

onehop_status __real_onehop_buffer_read(struct onehop_buffer *buffer, uint64_t offset,
					void *destination, uint64_t bytes,
					struct onehop_error *error);
onehop_status __wrap_onehop_buffer_read(struct onehop_buffer *buffer, uint64_t offset,
					void *destination, uint64_t bytes,
					struct onehop_error *error);

onehop_status
__wrap_onehop_buffer_read(struct onehop_buffer *buffer, uint64_t offset, void *destination,
			  uint64_t bytes, struct onehop_error *error)
{
	const char *text = getenv("FAULTY_BYTE");
	onehop_status status =
		__real_onehop_buffer_read(buffer, offset, destination, bytes, error);
	uint64_t bad = text ? strtoull(text, NULL, 10) : 0;
	if (!status && text && bad >= offset && bad - offset < bytes)
		((unsigned char *)destination)[bad - offset] ^= 0x10;
	return status;
}
