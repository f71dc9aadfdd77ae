/* Usable cores, memory and cache, as this process may use them.
 *
 * Cores: the least of the affinity mask and the CPU quota of the cgroup and its ancestors (v2
 * cpu.max, v1 cpu.cfs_quota_us). Memory: the least of MemAvailable and, over the same cgroups, of
 * limit - usage + reclaimable file pages. Every file may be missing (containers hide them): that is
 * no limit. Nothing is cached and nothing fails.
 */
#include "machine/machine.h"

#include "base/arith.h"
#include "base/sys.h"
#include "machine/proc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A file of one number; "max" and the like read as no limit. */
static int
read_number(const char *folder, const char *file, uint64_t *value)
{
	char text[OH_PROC_BYTES], *end;
	if (oh_proc_read_in(folder, file, text))
		return 1;
	*value = strtoull(text, &end, 10);
	return end == text;
}

static uint64_t
file_pages(const char *folder, const char *active, const char *inactive)
{
	char text[OH_PROC_BYTES];
	uint64_t a = 0, b = 0;
	if (oh_proc_read_in(folder, "memory.stat", text))
		return 0;
	oh_proc_number(text, active, &a);
	oh_proc_number(text, inactive, &b);
	return a + b;
}

static void
limit_cores(struct oh_machine *machine, uint64_t quota, uint64_t period)
{
	uint64_t cpus = period ? (quota + period - 1) / period : 0;
	if (cpus && cpus < UINT32_MAX && (!machine->quota || cpus < machine->quota))
		machine->quota = (uint32_t)cpus;
}

static void
limit_memory(struct oh_machine *machine, uint64_t max, uint64_t current, uint64_t reclaimable)
{
	uint64_t used = current > reclaimable ? current - reclaimable : 0;
	uint64_t left = max > used ? max - used : 0;
	machine->memory_bytes = oh_min(machine->memory_bytes, left);
}

static void
read_v2(struct oh_machine *machine, const char *folder)
{
	char text[OH_PROC_BYTES];
	unsigned long long quota, period;
	uint64_t max, current;
	if (!oh_proc_read_in(folder, "cpu.max", text) &&
	    sscanf(text, "%llu %llu", &quota, &period) == 2)
		limit_cores(machine, quota, period);
	if (!read_number(folder, "memory.max", &max) &&
	    !read_number(folder, "memory.current", &current))
		limit_memory(machine, max, current,
			     file_pages(folder, "active_file ", "inactive_file "));
}

static void
read_v1_cpu(struct oh_machine *machine, const char *folder)
{
	uint64_t quota, period;
	/* No limit is written as -1, which reads as a huge number. */
	if (!read_number(folder, "cpu.cfs_quota_us", &quota) && quota < INT64_MAX &&
	    !read_number(folder, "cpu.cfs_period_us", &period))
		limit_cores(machine, quota, period);
}

static void
read_v1_memory(struct oh_machine *machine, const char *folder)
{
	uint64_t max, current;
	if (!read_number(folder, "memory.limit_in_bytes", &max) &&
	    !read_number(folder, "memory.usage_in_bytes", &current))
		limit_memory(machine, max, current,
			     file_pages(folder, "total_active_file ", "total_inactive_file "));
}

static void
visit(void *context, enum oh_cgroup kind, const char *folder)
{
	struct oh_machine *machine = context;
	if (kind == OH_CGROUP_V2)
		read_v2(machine, folder);
	else if (kind == OH_CGROUP_V1_CPU)
		read_v1_cpu(machine, folder);
	else
		read_v1_memory(machine, folder);
}

static uint32_t
affinity(void)
{
	/* Room for 16,384 CPUs: the call fails if the kernel knows of more than the mask holds. */
	cpu_set_t sets[16];
	uint32_t count = 0;
	memset(sets, 0, sizeof sets);
	if (oh_sys.sched_getaffinity(0, sizeof sets, sets) < 0)
		return 1;
	for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++)
		count += (uint32_t)CPU_COUNT(&sets[i]);
	return count ? count : 1;
}

/* "32768K" and the like. The last level is the largest. */
static uint64_t
last_level_cache(void)
{
	uint64_t most = 0;
	for (int i = 0; i < 8; i++) {
		char path[128], text[OH_PROC_BYTES], *end;
		snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
		if (oh_proc_read(path, text))
			break;
		uint64_t bytes = strtoull(text, &end, 10);
		bytes <<= *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
		most = oh_max(most, bytes);
	}
	return most;
}

void
oh_machine_read(struct oh_machine *machine)
{
	char text[OH_PROC_BYTES];
	uint64_t kib;
	memset(machine, 0, sizeof *machine);
	machine->affinity = affinity();
	machine->l3_bytes = last_level_cache();
	machine->memory_bytes = UINT64_MAX;
	if (!oh_proc_read("/proc/meminfo", text) && !oh_proc_number(text, "MemAvailable:", &kib))
		machine->memory_bytes = kib << 10;
	oh_cgroup_each(visit, machine);
	machine->cores = machine->affinity;
	if (machine->quota && machine->quota < machine->cores)
		machine->cores = machine->quota;
}
