/* Versioned structs: filling a caller's that may be of another version than ours. */
#ifndef OH_BASE_GIVE_H
#define OH_BASE_GIVE_H

#include <onehop/status.h>

#include <stdint.h>
#include <string.h>

/* Writes ours, of our_bytes, over *theirs: as much as both have. Both begin with a uint32_t size, which
 * the caller has set and keeps. INVALID_ARGUMENT if it has not, or theirs is NULL. */
static inline onehop_status
oh_give(void *theirs, const void *ours, uint32_t our_bytes)
{
	uint32_t bytes;
	if (!theirs)
		return ONEHOP_INVALID_ARGUMENT;
	memcpy(&bytes, theirs, sizeof bytes);
	if (bytes < 2 * sizeof bytes)
		return ONEHOP_INVALID_ARGUMENT;
	if (bytes > our_bytes)
		bytes = our_bytes;
	memcpy((char *)theirs + sizeof bytes, (const char *)ours + sizeof bytes,
	       bytes - sizeof bytes);
	return ONEHOP_OK;
}

#endif
