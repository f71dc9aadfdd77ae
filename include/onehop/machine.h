/* SPDX-License-Identifier: Apache-2.0
 *
 * onehop/machine.h: what held the process up: a CPU quota, waits for I/O and for memory.
 *
 * Counters that only grow: read them before and after a load, and take the difference. It tells a
 * slow machine from a throttled one.
 */
#ifndef ONEHOP_MACHINE_H
#define ONEHOP_MACHINE_H

#include <onehop/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bits of known: which counters could be read. Kernels without PSI lack all but the first; many
 * containers and the root cgroup lack some. */
enum onehop_pressure_known {
	ONEHOP_PRESSURE_THROTTLED = 0x01, /* both counters of throttling */
	ONEHOP_PRESSURE_IO = 0x02,
	ONEHOP_PRESSURE_MEMORY = 0x04,
	ONEHOP_PRESSURE_GROUP_IO = 0x08,
	ONEHOP_PRESSURE_GROUP_MEMORY = 0x10
};

/* In microseconds; what is not known is 0. */
struct onehop_pressure {
	uint32_t size;
	uint32_t known;             /* bits of enum onehop_pressure_known */
	uint64_t throttled_periods; /* in which the quota of the cgroup or of an ancestor ran out */
	uint64_t throttled_us;      /* CPU time waited for because of it, summed over CPUs */
	/* Time in which some task waited (PSI's "some total"), of the whole machine ... */
	uint64_t io_us;
	uint64_t memory_us;
	/* ... and of the innermost cgroup that can be seen, with what is below it. */
	uint64_t group_io_us;
	uint64_t group_memory_us;
};

/* The counters now: about ten small files of /proc and /sys, 100 us. Fill now->size first. What
 * cannot be read is not known, which is no error: fails with INVALID_ARGUMENT (no size) only. Any
 * thread. */
ONEHOP_API onehop_status onehop_machine_pressure(struct onehop_pressure *now);

/* *since = after - before, known where both are; a counter that went back (the process was moved to
 * another cgroup) is not known. since may be before or after. Fill the size of each first. Fails
 * with INVALID_ARGUMENT (no size). Any thread. */
ONEHOP_API onehop_status onehop_machine_pressure_since(const struct onehop_pressure *before,
						       const struct onehop_pressure *after,
						       struct onehop_pressure *since);

#ifdef __cplusplus
}
#endif
#endif
