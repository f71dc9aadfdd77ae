/* An open hash table over names that lie elsewhere. It only grows, and at most half of it is used.
 * Where its hash begins depends on where it lies in memory, so that no file can be made whose names
 * all collide; the numbers do not.
 */
#include "dataset/ids.h"

#include <stdlib.h>
#include <string.h>

static uint64_t
hash(const struct oh_ids *ids, const char *text, uint64_t bytes)
{
	uint64_t h = (bytes ^ (uintptr_t)ids >> 4) * UINT64_C(0x9E3779B97F4A7C15), word;
	for (; bytes >= sizeof word; text += sizeof word, bytes -= sizeof word) {
		memcpy(&word, text, sizeof word);
		h = (h ^ word) * UINT64_C(0xBF58476D1CE4E5B9);
		h ^= h >> 29;
	}
	word = 0;
	memcpy(&word, text, bytes);
	h = (h ^ word) * UINT64_C(0x94D049BB133111EB);
	return h ^ (h >> 32);
}

static int
is(const struct onehop_name *name, const char *text, uint64_t bytes)
{
	return name->bytes == bytes && memcmp(name->text, text, bytes) == 0;
}

static uint64_t
slot_of(const struct oh_ids *ids, const char *text, uint64_t bytes)
{
	uint64_t mask = ids->room * 2 - 1, slot = hash(ids, text, bytes) & mask;
	while (ids->slots[slot] && !is(&ids->at[ids->slots[slot] - 1], text, bytes))
		slot = (slot + 1) & mask;
	return slot;
}

static int
grow(struct oh_ids *ids)
{
	uint64_t room = ids->room ? ids->room * 2 : 16;
	struct onehop_name *at = realloc(ids->at, room * sizeof *at);
	if (at)
		ids->at = at;
	uint32_t *slots = calloc(room * 2, sizeof *slots);
	if (!at || !slots || room > UINT32_MAX) {
		free(slots);
		return 1;
	}
	free(ids->slots);
	ids->slots = slots;
	ids->room = room;
	for (uint64_t i = 0; i < ids->count; i++)
		slots[slot_of(ids, at[i].text, at[i].bytes)] = (uint32_t)i + 1;
	return 0;
}

int
oh_ids_number(struct oh_ids *ids, const char *text, uint64_t bytes, uint32_t *number)
{
	if (ids->count == ids->room && grow(ids))
		return 1;
	uint64_t slot = slot_of(ids, text, bytes);
	if (!ids->slots[slot]) {
		ids->at[ids->count++] = (struct onehop_name){text, bytes};
		ids->slots[slot] = (uint32_t)ids->count;
	}
	*number = ids->slots[slot] - 1;
	return 0;
}

void
oh_ids_free(struct oh_ids *ids)
{
	free(ids->at);
	free(ids->slots);
	memset(ids, 0, sizeof *ids);
}
