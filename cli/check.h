/* Checksums of what lies on the device, and its comparison with the files. */
#ifndef CLI_CHECK_H
#define CLI_CHECK_H

#include "job.h"

struct sums {
	enum checksum algorithm;
	uint32_t *crc32;            /* one an item */
	unsigned char (*sha256)[32]; /* one an item */
};

/* Reads every item of a loaded job back from the device, once, with several threads. Fills *sums if
 * the algorithm is not NONE (sums_drop() in any case), and compares with a read of its own of the
 * files if verify is set: MISMATCH names the first tensor and byte that differ. CANCELLED after
 * Ctrl-C. */
onehop_status check(const struct job *job, enum checksum algorithm, int verify, int quiet,
		    struct sums *sums, struct onehop_error *error);
void sums_drop(struct sums *sums);

/* "crc32", "sha256", "". */
const char *checksum_name(enum checksum algorithm);

/* The index-th item's sum in hexadecimal digits. */
#define SUM_TEXT 65
const char *sum_text(char text[SUM_TEXT], const struct sums *sums, uint64_t index);

#endif
