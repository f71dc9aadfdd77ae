/* How many blocks of a ring are worth filling at once. Pure.
 *
 * A process that has the link to itself needs all of its ring to keep the link busy. Where others
 * share the link, their rings push each other out of the last-level cache, and each of them waits
 * for copies rather than for reads: half of the ring does as well for it, and the cache holds what
 * all of them have in flight. Measured: docs/performance.md.
 */
#ifndef OH_ENGINE_PACE_H
#define OH_ENGINE_PACE_H

#include <stdint.h>

/* Copies are judged by as much as this, so that a clock that is read late does not matter. */
#define OH_PACE_BYTES (UINT64_C(64) << 20)

/* Zeroed to begin with. */
struct oh_pace {
	uint64_t bytes;    /* copied since the last judgement, */
	uint64_t busy_ns;  /* and how long that took */
	uint64_t ended_ns; /* when the last copy had ended */
	double best;       /* bytes a ns, of the quickest stretch so far; 0: none yet */
	int slow;          /* the last stretch was far from that */
};

/* A copy of bytes that was given to the queue at begun_ns had ended at ended_ns. In the order in
 * which they end. */
void oh_pace_copied(struct oh_pace *pace, uint64_t begun_ns, uint64_t ended_ns, uint64_t bytes);

/* How many of `blocks` may be in use. */
uint32_t oh_pace_blocks(const struct oh_pace *pace, uint32_t blocks);

#endif
