/* The layout of an arena: the file's order and, where it can be, the file's spacing.
 *
 * Copies are long where source and destination keep the same distance, so an item stays where the
 * distance of the one before it puts it as long as it is aligned there and the padding is next to
 * nothing: at most 15 bytes, or a 128th of its own. Else it is packed at the next aligned place,
 * and a new distance begins. So padding is at most 15 bytes, or a 128th, for an item under 32 KiB
 * and 255 bytes, or a 128th, for a larger one: under 1 % and 16 bytes an item in all.
 *
 * Elements are at most 8 bytes wide, so 16 bytes align every one. Items of no bytes take no space.
 */
#include "model/layout.h"
#include "base/arith.h"

/* Is place, at or behind the end, good for an item of so many bytes? */
static int
is_good(const struct oh_layout *layout, uint64_t place, uint64_t bytes, uint64_t align)
{
	uint64_t padding = place - layout->end;
	if (place < layout->end || place % align)
		return 0;
	return padding < OH_LAYOUT_SMALL || padding <= bytes / 128;
}

int
oh_layout_place(struct oh_layout *layout, uint64_t file, uint64_t offset, uint64_t bytes, int whole,
		uint64_t *place)
{
	uint64_t align = bytes >= OH_LAYOUT_LARGE ? OH_LAYOUT_ARENA : OH_LAYOUT_SMALL;
	uint64_t at, end;
	if (bytes == 0) {
		*place = oh_align_down(layout->end, OH_LAYOUT_SMALL);
		return 0;
	}
	at = offset + layout->delta; /* modulo 2^64, as delta is */
	if (!whole || !layout->delta_is_set || layout->file != file ||
	    !is_good(layout, at, bytes, align)) {
		if (oh_align_up(layout->end, align, &at))
			return 1;
	}
	if (oh_add(at, bytes, &end))
		return 1;
	layout->end = end;
	layout->file = file;
	layout->delta = at - offset;
	layout->delta_is_set = whole;
	*place = at;
	return 0;
}
