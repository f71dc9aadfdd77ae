/* What held this process up: CPU time refused by a quota, and waits for I/O and memory.
 *
 * Counters that only grow: read them before and after a load, and take the difference. */
#ifndef OH_PRESSURE_H
#define OH_PRESSURE_H

#include <stdint.h>

/* Bits of `known`: which counters could be read; the others are 0. */
#define OH_PRESSURE_THROTTLED 0x01u
#define OH_PRESSURE_IO 0x02u
#define OH_PRESSURE_MEMORY 0x04u
#define OH_PRESSURE_GROUP_IO 0x08u
#define OH_PRESSURE_GROUP_MEMORY 0x10u

struct oh_pressure {
	uint32_t known;
	uint32_t reserved;
	uint64_t throttled_periods; /* in which the quota of the cgroup or of an ancestor ran out */
	uint64_t throttled_us;      /* CPU time waited for because of it, summed over CPUs */
	/* Time in which some task waited (PSI's "some total"), of the whole machine ... */
	uint64_t io_us;
	uint64_t memory_us;
	/* ... and of the innermost cgroup that can be seen, with what is below it. */
	uint64_t group_io_us;
	uint64_t group_memory_us;
};

/* Reads /proc and /sys: about ten small files, 100 us. Never fails. Any thread. */
void oh_pressure_read(struct oh_pressure *pressure);

/* *since = after - before, known where both are. A counter that went back (the process was moved to
 * another cgroup) counts as not known. */
void oh_pressure_since(const struct oh_pressure *before, const struct oh_pressure *after,
		       struct oh_pressure *since);

#endif
