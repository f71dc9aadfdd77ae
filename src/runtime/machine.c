/* The machine's counters for callers: the public struct over machine/pressure.h.
 *
 * It needs no runtime, keeps nothing and starts nothing. A caller's struct may be older or newer
 * than ours: what it lacks is not known.
 */
#include <onehop/machine.h>

#include "base/give.h"
#include "machine/pressure.h"

#include <stddef.h>
#include <string.h>

/* One set of bits under two names. */
_Static_assert((int)ONEHOP_PRESSURE_THROTTLED == (int)OH_PRESSURE_THROTTLED, "bits differ");
_Static_assert((int)ONEHOP_PRESSURE_IO == (int)OH_PRESSURE_IO, "bits differ");
_Static_assert((int)ONEHOP_PRESSURE_MEMORY == (int)OH_PRESSURE_MEMORY, "bits differ");
_Static_assert((int)ONEHOP_PRESSURE_GROUP_IO == (int)OH_PRESSURE_GROUP_IO, "bits differ");
_Static_assert((int)ONEHOP_PRESSURE_GROUP_MEMORY == (int)OH_PRESSURE_GROUP_MEMORY, "bits differ");

static struct onehop_pressure
to_public(const struct oh_pressure *p)
{
	return (struct onehop_pressure){
		.size = sizeof(struct onehop_pressure),
		.known = p->known,
		.throttled_periods = p->throttled_periods,
		.throttled_us = p->throttled_us,
		.io_us = p->io_us,
		.memory_us = p->memory_us,
		.group_io_us = p->group_io_us,
		.group_memory_us = p->group_memory_us,
	};
}

/* What a caller's struct holds of ours. Returns 0, or 1 if it has no size. */
static int
take(const struct onehop_pressure *theirs, struct oh_pressure *out)
{
	static const struct {
		uint32_t bit;
		uint32_t end; /* of the last field that the bit speaks of */
	} fields[] = {
#define FIELD(bit, last) {bit, offsetof(struct onehop_pressure, last) + sizeof(uint64_t)}
		FIELD(OH_PRESSURE_THROTTLED, throttled_us),
		FIELD(OH_PRESSURE_IO, io_us),
		FIELD(OH_PRESSURE_MEMORY, memory_us),
		FIELD(OH_PRESSURE_GROUP_IO, group_io_us),
		FIELD(OH_PRESSURE_GROUP_MEMORY, group_memory_us),
#undef FIELD
	};
	struct onehop_pressure ours = {0};
	if (!theirs || theirs->size < offsetof(struct onehop_pressure, throttled_periods))
		return 1;
	memcpy(&ours, theirs, theirs->size < sizeof ours ? theirs->size : sizeof ours);
	*out = (struct oh_pressure){
		.throttled_periods = ours.throttled_periods,
		.throttled_us = ours.throttled_us,
		.io_us = ours.io_us,
		.memory_us = ours.memory_us,
		.group_io_us = ours.group_io_us,
		.group_memory_us = ours.group_memory_us,
	};
	for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
		if (theirs->size >= fields[i].end)
			out->known |= ours.known & fields[i].bit;
	return 0;
}

onehop_status
onehop_machine_pressure(struct onehop_pressure *now)
{
	struct oh_pressure read;
	oh_pressure_read(&read);
	struct onehop_pressure ours = to_public(&read);
	return oh_give(now, &ours, sizeof ours);
}

onehop_status
onehop_machine_pressure_since(const struct onehop_pressure *before,
			      const struct onehop_pressure *after, struct onehop_pressure *since)
{
	struct oh_pressure first, last, difference;
	if (take(before, &first) || take(after, &last))
		return ONEHOP_INVALID_ARGUMENT;
	oh_pressure_since(&first, &last, &difference);
	struct onehop_pressure ours = to_public(&difference);
	return oh_give(since, &ours, sizeof ours);
}
