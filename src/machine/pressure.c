/* CPU throttling, I/O and memory pressure as counters.
 *
 * Throttling is in cpu.stat of each cgroup that has a quota (v2 throttled_usec, v1 throttled_time
 * in ns): a group's file does not hold its ancestors', so they are summed. Pressure is in PSI
 * files, which kernels without PSI, version 1 groups and many containers lack. What is missing is
 * not known, never an error. No thread watches and nothing is kept between reads.
 */
#include "machine/pressure.h"

#include "machine/proc.h"

#include <stdlib.h>
#include <string.h>

/* "some avg10=0.00 avg60=0.00 avg300=0.00 total=12345", then the same for "full". */
static int
some_total(const char *text, uint64_t *us)
{
	const char *end = strchr(text, '\n'), *total = strstr(text, " total=");
	if (strncmp(text, "some ", 5) != 0 || !total || (end && total > end))
		return 1;
	*us = strtoull(total + strlen(" total="), NULL, 10);
	return 0;
}

/* Reads one PSI file unless its counter is known already. */
static void
read_psi(struct oh_pressure *p, const char *folder, const char *file, uint32_t bit, uint64_t *us)
{
	char text[OH_PROC_BYTES];
	if (!(p->known & bit) && !oh_proc_read_in(folder, file, text) && !some_total(text, us))
		p->known |= bit;
}

static void
add_throttling(struct oh_pressure *p, const char *folder, const char *key, uint64_t per_us)
{
	char text[OH_PROC_BYTES];
	uint64_t periods, waited;
	if (oh_proc_read_in(folder, "cpu.stat", text) ||
	    oh_proc_number(text, "nr_throttled ", &periods) || oh_proc_number(text, key, &waited))
		return;
	p->throttled_periods += periods;
	p->throttled_us += waited / per_us;
	p->known |= OH_PRESSURE_THROTTLED;
}

static void
visit(void *context, enum oh_cgroup kind, const char *folder)
{
	struct oh_pressure *p = context;
	if (kind == OH_CGROUP_V1_CPU)
		add_throttling(p, folder, "throttled_time ", 1000);
	if (kind != OH_CGROUP_V2)
		return;
	add_throttling(p, folder, "throttled_usec ", 1);
	read_psi(p, folder, "io.pressure", OH_PRESSURE_GROUP_IO, &p->group_io_us);
	read_psi(p, folder, "memory.pressure", OH_PRESSURE_GROUP_MEMORY, &p->group_memory_us);
}

void
oh_pressure_read(struct oh_pressure *pressure)
{
	memset(pressure, 0, sizeof *pressure);
	read_psi(pressure, "/proc/pressure", "io", OH_PRESSURE_IO, &pressure->io_us);
	read_psi(pressure, "/proc/pressure", "memory", OH_PRESSURE_MEMORY, &pressure->memory_us);
	oh_cgroup_each(visit, pressure);
}

static void
subtract(struct oh_pressure *out, uint32_t bit, uint64_t before, uint64_t after, uint64_t *since)
{
	if (after < before)
		out->known &= ~bit;
	*since = out->known & bit ? after - before : 0;
}

void
oh_pressure_since(const struct oh_pressure *before, const struct oh_pressure *after,
		  struct oh_pressure *since)
{
	const struct oh_pressure *b = before, *a = after;
	struct oh_pressure out = {.known = b->known & a->known};
	subtract(&out, OH_PRESSURE_THROTTLED, b->throttled_us, a->throttled_us, &out.throttled_us);
	subtract(&out, OH_PRESSURE_THROTTLED, b->throttled_periods, a->throttled_periods,
		 &out.throttled_periods);
	if (!(out.known & OH_PRESSURE_THROTTLED))
		out.throttled_us = 0;
	subtract(&out, OH_PRESSURE_IO, b->io_us, a->io_us, &out.io_us);
	subtract(&out, OH_PRESSURE_MEMORY, b->memory_us, a->memory_us, &out.memory_us);
	subtract(&out, OH_PRESSURE_GROUP_IO, b->group_io_us, a->group_io_us, &out.group_io_us);
	subtract(&out, OH_PRESSURE_GROUP_MEMORY, b->group_memory_us, a->group_memory_us,
		 &out.group_memory_us);
	*since = out;
}
