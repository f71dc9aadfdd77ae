/* Names: the table that finds a tensor by its name, and the guess at what a wrong name meant.
 *
 * Names come from files, so the hash is keyed (SipHash-1-3 with a key of the process's own): nobody
 * can prepare names that all fall into one slot. The table is at most half full and never grows.
 * The guess is bounded in work, not in quality: it stops looking when its budget is spent.
 */
#include "model/lookup.h"
#include "base/sys.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

static uint64_t
rotate(uint64_t value, int by)
{
	return value << by | value >> (64 - by);
}

static void
sip_round(uint64_t v[4])
{
	v[0] += v[1];
	v[1] = rotate(v[1], 13) ^ v[0];
	v[0] = rotate(v[0], 32);
	v[2] += v[3];
	v[3] = rotate(v[3], 16) ^ v[2];
	v[0] += v[3];
	v[3] = rotate(v[3], 21) ^ v[0];
	v[2] += v[1];
	v[1] = rotate(v[1], 17) ^ v[2];
	v[2] = rotate(v[2], 32);
}

static uint64_t
sip_hash(const uint64_t key[2], const char *name, uint64_t bytes)
{
	uint64_t v[4] = {
		key[0] ^ UINT64_C(0x736f6d6570736575), key[1] ^ UINT64_C(0x646f72616e646f6d),
		key[0] ^ UINT64_C(0x6c7967656e657261), key[1] ^ UINT64_C(0x7465646279746573)};
	uint64_t last = bytes << 56, word;
	for (; bytes >= sizeof word; bytes -= sizeof word, name += sizeof word) {
		memcpy(&word, name, sizeof word);
		v[3] ^= word;
		sip_round(v);
		v[0] ^= word;
	}
	word = 0;
	memcpy(&word, name, bytes);
	last |= word;
	v[3] ^= last;
	sip_round(v);
	v[0] ^= last;
	v[2] ^= 0xff;
	for (int i = 0; i < 3; i++)
		sip_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* The kernel gives each process 16 random bytes; the clock tells tables apart. */
static void
make_key(uint64_t key[2])
{
	const void *random = (const void *)getauxval(AT_RANDOM);
	key[0] = key[1] = 0;
	if (random)
		memcpy(key, random, 2 * sizeof *key);
	key[0] ^= oh_now_ns();
}

onehop_status
oh_lookup_create(struct oh_lookup *names, uint64_t count, const void *owner,
		const char *(*name_at)(const void *owner, uint64_t index, uint64_t *bytes),
		struct onehop_error *error)
{
	uint64_t slots = 8;
	assert(count <= OH_LOOKUP_MOST);
	while (slots < 2 * count)
		slots *= 2;
	names->slots = calloc(slots, sizeof *names->slots);
	if (!names->slots)
		return oh_fail_no_memory(error, slots * sizeof *names->slots, "the table of names");
	names->mask = slots - 1;
	names->owner = owner;
	names->name_at = name_at;
	make_key(names->key);
	return ONEHOP_OK;
}

void
oh_lookup_destroy(struct oh_lookup *names)
{
	free(names->slots);
	names->slots = NULL;
}

/* The slot that holds the name, or the empty one where it belongs. */
static uint32_t *
slot_of(const struct oh_lookup *names, const char *name, uint64_t bytes)
{
	uint64_t at = sip_hash(names->key, name, bytes) & names->mask;
	for (; names->slots[at]; at = (at + 1) & names->mask) {
		uint64_t other_bytes;
		const char *other =
			names->name_at(names->owner, names->slots[at] - 1, &other_bytes);
		if (other_bytes == bytes && memcmp(other, name, bytes) == 0)
			break;
	}
	return &names->slots[at];
}

uint64_t
oh_lookup_add(struct oh_lookup *names, uint64_t index)
{
	uint64_t bytes;
	const char *name = names->name_at(names->owner, index, &bytes);
	uint32_t *slot = slot_of(names, name, bytes);
	if (*slot)
		return *slot - 1;
	*slot = (uint32_t)index + 1;
	return OH_LOOKUP_NONE;
}

uint64_t
oh_lookup_find(const struct oh_lookup *names, const char *name, uint64_t bytes)
{
	uint32_t slot = *slot_of(names, name, bytes);
	return slot ? slot - 1 : OH_LOOKUP_NONE;
}

/* ------------------------------------------------------------------------------------------- */

/* Longer names are not compared letter by letter. */
#define LONGEST 256
/* Cells of the distance tables that one guess may fill, and names that it may look at. */
#define CELLS_MOST 4000000
#define NAMES_MOST 500000

/* Edit distance of a and b (both at most LONGEST) if it is under limit, else limit. Only the band
 * of the table that can stay under limit is filled. */
static uint32_t
distance(const char *a, uint32_t a_bytes, const char *b, uint32_t b_bytes, uint32_t limit,
	 uint64_t *cells)
{
	uint32_t row[LONGEST + 2];
	for (uint32_t j = 0; j <= b_bytes; j++)
		row[j] = j < limit ? j : limit;
	for (uint32_t i = 1; i <= a_bytes; i++) {
		uint32_t from = i > limit ? i - limit : 1;
		uint32_t to = i + limit < b_bytes ? i + limit : b_bytes;
		uint32_t corner = row[from - 1], least;
		row[from - 1] = least = from == 1 && i < limit ? i : limit;
		for (uint32_t j = from; j <= to; j++) {
			/* Cells outside the band of the row above are worth limit, or more. */
			uint32_t best = corner + (a[i - 1] != b[j - 1]);
			corner = row[j];
			if (row[j] + 1 < best)
				best = row[j] + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			row[j] = best < limit ? best : limit;
			if (row[j] < least)
				least = row[j];
		}
		*cells += to - from + 1;
		if (least >= limit)
			return limit;
	}
	return row[b_bytes];
}

static int
ends_with(const char *name, uint64_t bytes, const char *end, uint64_t end_bytes)
{
	return end_bytes && end_bytes <= bytes &&
	       memcmp(name + bytes - end_bytes, end, end_bytes) == 0;
}

uint64_t
oh_lookup_nearest(const struct oh_lookup *names, uint64_t count, const char *name, uint64_t bytes)
{
	uint64_t nearest = OH_LOOKUP_NONE, tail = OH_LOOKUP_NONE, cells = 0;
	uint32_t limit = (uint32_t)(bytes < 32 ? 2 + bytes / 4 : 10);
	if (bytes > LONGEST || bytes == 0)
		return OH_LOOKUP_NONE;
	for (uint64_t i = 0; i < count && i < NAMES_MOST && cells < CELLS_MOST && limit > 1; i++) {
		uint64_t other_bytes;
		const char *other = names->name_at(names->owner, i, &other_bytes);
		/* A prefix too many or too few ("model.") is a usual mistake of another kind. */
		if (tail == OH_LOOKUP_NONE && (ends_with(other, other_bytes, name, bytes) ||
					      ends_with(name, bytes, other, other_bytes)))
			tail = i;
		if (other_bytes > LONGEST || other_bytes + limit <= bytes ||
		    bytes + limit <= other_bytes)
			continue;
		uint32_t far = distance(name, (uint32_t)bytes, other, (uint32_t)other_bytes, limit,
					&cells);
		if (far < limit) {
			limit = far;
			nearest = i;
		}
	}
	return nearest != OH_LOOKUP_NONE && (limit <= 3 || tail == OH_LOOKUP_NONE) ? nearest : tail;
}
