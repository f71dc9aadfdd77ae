/* The rate of copies, and whether it is that of a link of one's own.
 *
 * The queue's busy time is counted: from when a copy was given, or from the end of the one before
 * it, to its end. So a ring that is short of data does not look like a slow link. A false alarm
 * costs nothing: where copies are slow for another reason, half a ring is filled in time too.
 */
#include "engine/pace.h"

/* Slower than the best by this is a link that is shared: of one that is not, stretches differ by a
 * fifth at most, and two processes make it two. */
#define SLOWER 1.7
/* Ends that were noted late make a stretch look slow and the next one quick: one such stretch must
 * not set the mark, and what set it wrongly is forgotten in time. */
#define RISE 1.05
#define FALL 0.999

void
oh_pace_copied(struct oh_pace *pace, uint64_t begun_ns, uint64_t ended_ns, uint64_t bytes)
{
	uint64_t from = begun_ns > pace->ended_ns ? begun_ns : pace->ended_ns;
	if (ended_ns > from)
		pace->busy_ns += ended_ns - from;
	pace->ended_ns = ended_ns;
	pace->bytes += bytes;
	if (pace->bytes < OH_PACE_BYTES || pace->busy_ns == 0)
		return;
	double rate = (double)pace->bytes / (double)pace->busy_ns;
	if (rate > pace->best)
		pace->best = pace->best > 0 && rate > pace->best * RISE ? pace->best * RISE : rate;
	else
		pace->best *= FALL;
	pace->slow = rate * SLOWER < pace->best;
	pace->bytes = pace->busy_ns = 0;
}

uint32_t
oh_pace_blocks(const struct oh_pace *pace, uint32_t blocks)
{
	uint32_t half = (blocks + 1) / 2;
	return pace->slow && blocks > 2 ? (half > 2 ? half : 2) : blocks;
}
