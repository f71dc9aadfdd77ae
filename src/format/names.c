/* A set of names in a text: open addressing with linear probing over indices of items.
 *
 * Invariants: at most three quarters of the slots are taken, so a probe ends. The hash is seeded by
 * where the text lies in memory, so that no file can be made whose names all collide. Results do
 * not depend on the seed. Names are compared as bytes; nothing is copied.
 */
#include "format/names.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

__extension__ typedef unsigned __int128 uint128;

onehop_status
oh_names_init(struct oh_names *names, const uint8_t *text, const void *items, oh_name_of *name_of,
	      uint64_t most, struct onehop_error *error)
{
	assert(most < UINT32_MAX - 1);
	names->text = text;
	names->items = items;
	names->name_of = name_of;
	names->capacity = most + most / 3 + 2;
	names->seed = ((uint64_t)(uintptr_t)text >> 4) * UINT64_C(0x9E3779B97F4A7C15);
	names->slots = calloc(names->capacity, sizeof *names->slots);
	if (!names->slots)
		return oh_fail_no_memory(error, names->capacity * sizeof *names->slots,
					 "the search for duplicate names");
	return ONEHOP_OK;
}

void
oh_names_free(struct oh_names *names)
{
	free(names->slots);
	names->slots = NULL;
}

static inline uint64_t
fold(uint64_t a, uint64_t b)
{
	uint128 product = (uint128)a * b;
	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t
hash(uint64_t seed, const uint8_t *name, uint64_t bytes)
{
	const uint64_t k0 = UINT64_C(0xD6E8FEB86659FD93), k1 = UINT64_C(0xA0761D6478BD642F);
	uint64_t state = seed ^ fold(bytes ^ k0, k1), word;
	while (bytes > 8) {
		memcpy(&word, name, 8);
		state = fold(state ^ word ^ k1, k0 ^ seed);
		name += 8;
		bytes -= 8;
	}
	word = 0;
	memcpy(&word, name, bytes);
	state = fold(state ^ word ^ k1, k0 ^ seed);
	return fold(state, k1);
}

uint64_t
oh_names_add(struct oh_names *names, uint64_t index)
{
	const uint8_t *text = names->text;
	const struct oh_name name = names->name_of(text, names->items, index);
	uint64_t h = hash(names->seed, text + name.at, name.bytes);
	uint64_t slot = (uint64_t)((uint128)h * names->capacity >> 64);
	while (names->slots[slot]) {
		uint64_t other = names->slots[slot] - 1;
		struct oh_name have = names->name_of(text, names->items, other);
		if (have.bytes == name.bytes &&
		    memcmp(text + have.at, text + name.at, name.bytes) == 0)
			return other;
		if (++slot == names->capacity)
			slot = 0;
	}
	names->slots[slot] = (uint32_t)(index + 1);
	return OH_NAMES_NEW;
}
