/* CRC-32C (Castagnoli), as iSCSI, ext4 and the index of a shard have it. */
#ifndef OH_BASE_CRC32C_H
#define OH_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* The CRC of what crc stands for (0: nothing) followed by data. Any thread. */
uint32_t oh_crc32c(uint32_t crc, const void *data, size_t bytes);

/* The CRC of two pieces, one after the other, by the CRC of each and the second's length. */
uint32_t oh_crc32c_join(uint32_t first, uint32_t second, uint64_t second_bytes);

/* oh_crc32c without the processor's instruction; for tests, and for machines that lack it. */
uint32_t oh_crc32c_portable(uint32_t crc, const void *data, size_t bytes);

#endif
