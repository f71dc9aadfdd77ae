/* The file system behind an open descriptor, as far as reading from it fast depends on it. */
#ifndef OH_FILESYSTEM_H
#define OH_FILESYSTEM_H

#include <stdint.h>

/* The bytes are on another machine, or behind a server process: few large reads, many at once. */
#define OH_FS_NETWORK 0x01u
/* The file is memory: there is no device to read from. */
#define OH_FS_RAM 0x02u
/* The file may be shown for one that lies below, whose page cache then holds the bytes: overlayfs,
 * aufs, FUSE (pass-through). The cache of the file itself can be empty while every byte is warm. */
#define OH_FS_STACKED 0x04u
/* overlayfs itself; OH_FS_STACKED too. */
#define OH_FS_OVERLAY 0x08u
/* It keeps what it has read in a cache of its own, of which the page cache does not tell (ZFS,
 * GPFS). */
#define OH_FS_OWN_CACHE 0x10u
/* The kernel told the alignments of O_DIRECT; without this flag they are assumed. */
#define OH_FS_DIRECT_KNOWN 0x20u

struct oh_filesystem {
	const char *name; /* "ext4", "nfs", "block device", ...; "unknown". Static text */
	uint32_t flags;   /* OH_FS_* */
	uint64_t io_bytes; /* reads of this size or more run well: a multiple of 4 KiB up to 16 MiB,
			    * and at least 1 MiB on a network */
	uint32_t direct_memory_alignment; /* powers of two; both 0 if O_DIRECT is refused */
	uint32_t direct_offset_alignment;
};

/* Fills *fs. Never fails: what cannot be read is "unknown", 4096 and no flag. Costs three system
 * calls, about 1 us on a local file system; on a network file system one of them may ask the
 * server. Reads no data. Any thread. */
void oh_filesystem_read(int fd, struct oh_filesystem *fs);

#endif
