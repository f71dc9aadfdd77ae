/* What this machine offers to this process. */
#ifndef OH_MACHINE_H
#define OH_MACHINE_H

#include <stdint.h>

struct oh_machine {
	uint32_t cores;        /* usable: the least of affinity and cgroup quota, at least 1 */
	uint32_t affinity;     /* CPUs that the process may run on */
	uint32_t quota;        /* of the cgroup in whole CPUs, rounded up; 0 if there is none */
	uint32_t reserved;
	uint64_t l3_bytes;     /* largest cache of CPU 0, 0 if it is not known */
	uint64_t memory_bytes; /* usable: MemAvailable, and over the cgroup and its ancestors
				* max - current + file pages that can be reclaimed */
};

/* Reads /proc and /sys. What cannot be read counts as no limit. Never fails. */
void oh_machine_read(struct oh_machine *machine);

#endif
