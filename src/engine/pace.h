/* How many blocks of a ring are worth filling at once. Pure.
 *
 * What is in flight has to cover the time in which threads find that a copy has ended, wake each
 * other and fill a block: so many bytes as the link moves meanwhile. A quick link that this process
 * has to itself takes all of the ring. A slower one, or one that other processes use too, needs less,
 * and then less is better: rings that do not fit the last-level cache together push each other out
 * of it. Measured: docs/performance.md.
 */
#ifndef OH_ENGINE_PACE_H
#define OH_ENGINE_PACE_H

#include <stdint.h>

/* Copies are judged by as much as this, so that an end that is found late does not matter. */
#define OH_PACE_BYTES (UINT64_C(64) << 20)

/* Zeroed to begin with. */
struct oh_pace {
	uint64_t bytes;    /* copied since the last judgement, */
	uint64_t busy_ns;  /* and how long that took */
	uint64_t ended_ns; /* when the last copy had ended */
	double rate;       /* bytes a ns of the last stretch; 0: not known yet */
};

/* A copy of bytes that was given to the queue at begun_ns had ended at ended_ns. In the order in
 * which they end. */
void oh_pace_copied(struct oh_pace *pace, uint64_t begun_ns, uint64_t ended_ns, uint64_t bytes);

/* How many of `blocks` of block_bytes may be in use: two at least, if there are two. */
uint32_t oh_pace_blocks(const struct oh_pace *pace, uint32_t blocks, uint64_t block_bytes);

#endif
