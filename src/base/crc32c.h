/* CRC-32C (Castagnoli), as iSCSI, ext4 and the index of a shard have it. */
#ifndef OH_BASE_CRC32C_H
#define OH_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* The CRC of what crc stands for (0: nothing) followed by data. Any thread. */
uint32_t oh_crc32c(uint32_t crc, const void *data, size_t bytes);

/* The same without the processor's instruction; for tests, and for machines that lack it. */
uint32_t oh_crc32c_portable(uint32_t crc, const void *data, size_t bytes);

#endif
