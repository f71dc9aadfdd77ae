/* Radix sort from the lowest digit, over the bits in which keys differ from the least of them. */
#include "dataset/sort.h"

#include <string.h>

#define DIGIT_BITS 11
#define DIGITS     (1u << DIGIT_BITS)

static uint64_t
digit_of(const struct oh_sort_item *item, uint64_t least, uint32_t shift)
{
	return (item->key - least) >> shift & (DIGITS - 1);
}

/* One pass: stable, by one digit. */
static void
spread(const struct oh_sort_item *from, struct oh_sort_item *to, uint64_t count, uint64_t least,
       uint32_t shift)
{
	uint64_t places[DIGITS], place = 0;
	memset(places, 0, sizeof places);
	for (uint64_t i = 0; i < count; i++)
		places[digit_of(&from[i], least, shift)]++;
	for (uint32_t digit = 0; digit < DIGITS; digit++) {
		uint64_t held = places[digit];
		places[digit] = place;
		place += held;
	}
	for (uint64_t i = 0; i < count; i++)
		to[places[digit_of(&from[i], least, shift)]++] = from[i];
}

struct oh_sort_item *
oh_sort(struct oh_sort_item *items, struct oh_sort_item *scratch, uint64_t count)
{
	uint64_t least = UINT64_MAX, most = 0, last = 0;
	int sorted = 1;
	for (uint64_t i = 0; i < count; i++) {
		uint64_t key = items[i].key;
		least = key < least ? key : least;
		most = key > most ? key : most;
		sorted &= key >= last;
		last = key;
	}
	if (sorted)
		return items;
	for (uint32_t shift = 0; shift < 64 && (most - least) >> shift; shift += DIGIT_BITS) {
		spread(items, scratch, count, least, shift);
		struct oh_sort_item *swap = items;
		items = scratch;
		scratch = swap;
	}
	return items;
}
