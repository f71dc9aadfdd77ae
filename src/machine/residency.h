/* How much of a file is in the page cache: resident, absent or unknown.
 *
 * The kernel is believed only where it tells the truth: to the owner of a file, to who may write
 * it, and to who holds CAP_FOWNER. To all others mincore says that everything is resident, so their
 * answer is unknown. File systems in memory are resident by nature (pages in swap included); those
 * with a cache of their own are unknown.
 *
 * What costs what (measured on a 2-core virtual machine, kernel 6.18, chunks of 16 MiB):
 * - a question: 1 us for its beginning, 10 us if mincore is used. To a stranger of a file on a
 *   network file system, one round trip for the access check. No data is read and no page touched.
 * - cachestat (kernel 6.5): one call a range, 0.2 us for a chunk that is absent, 1 us for a
 *   resident one in large folios, up to 130 us in folios of one page. So after 4 ms the rest of a
 *   question is sampled, one page in 4 MiB, at 1 to 2 us a chunk; where samples disagree the chunk
 *   is counted until 8 ms have passed. 140 GB: 2 ms absent, about 10 ms resident, 20 ms at the
 *   worst.
 * - mincore where there is no cachestat, or where it looks at the wrong file (overlayfs, FUSE): one
 *   page in 2 MiB, 0.7 us each; 140 GB: 50 ms. It takes 256 MiB of address space, no memory.
 * An answer is an estimate, and old when it is read: pages come and go. Blocks for the system calls
 * above only. Any thread. */
#ifndef OH_RESIDENCY_H
#define OH_RESIDENCY_H

#include "machine/filesystem.h"

#include <stddef.h>
#include <stdint.h>

/* Resident and absent allow for one part in twenty of the other kind, so that the edges of a
 * reader's read-ahead do not count. A range of no bytes (behind the end of the file) is resident:
 * there is nothing to fetch. */
enum oh_residency {
	OH_RESIDENT,
	OH_ABSENT,
	OH_UNKNOWN,
	OH_MIXED /* between the two: ask about smaller ranges, or read it through the cache */
};

/* Where an answer comes from, or why there is none. */
enum oh_residency_source {
	OH_RESIDENCY_MEMORY, /* the file system is in memory */
	OH_RESIDENCY_CACHESTAT,
	OH_RESIDENCY_MINCORE,
	/* unknown: ... */
	OH_RESIDENCY_STRANGER, /* neither the file's owner, nor may write it, nor CAP_FOWNER */
	OH_RESIDENCY_UNTOLD    /* the kernel, the file system or a sandbox does not tell */
};

struct oh_residency_range {
	uint64_t offset; /* in the file */
	uint64_t bytes;
	uint64_t resident_bytes; /* out: estimate, at most bytes; 0 when unknown */
	enum oh_residency state; /* out */
};

/* Fills resident_bytes and state of each range. fd is open for reading, of a regular file or a
 * block device; fs is what oh_filesystem_read said of it. Never fails: what is not known is
 * unknown. */
enum oh_residency_source oh_residency_ask(int fd, const struct oh_filesystem *fs,
					  struct oh_residency_range *ranges, size_t count);

/* The same for count chunks of chunk_bytes (not 0) from offset on, for a planner that cuts a file
 * where its residency changes: states[i] becomes an enum oh_residency. */
enum oh_residency_source oh_residency_map(int fd, const struct oh_filesystem *fs, uint64_t offset,
					  uint64_t chunk_bytes, uint8_t *states, size_t count);

#endif
