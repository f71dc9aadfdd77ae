/* The rate of copies, by the queue's busy time: from when a copy was given, or from the end of the
 * one before it, to its end. So a ring that is short of data does not look like a slow link.
 */
#include "engine/pace.h"

/* What has to be covered, beside the block that is being filled. */
#define COVER_NS 900000.0

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
	pace->rate = (double)pace->bytes / (double)pace->busy_ns;
	pace->bytes = pace->busy_ns = 0;
}

uint32_t
oh_pace_blocks(const struct oh_pace *pace, uint32_t blocks, uint64_t block_bytes)
{
	double cover = pace->rate * COVER_NS / (double)block_bytes;
	if (pace->rate <= 0 || cover >= blocks)
		return blocks;
	uint32_t want = 1 + (uint32_t)cover + (cover > (uint32_t)cover);
	uint32_t least = want > 2 ? want : 2;
	return least < blocks ? least : blocks;
}
