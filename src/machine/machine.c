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

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_BYTES 8192

/* Reads a small file as text. Returns 0, or 1 if it cannot be read. */
static int
read_text(const char *path, char text[TEXT_BYTES])
{
	int failed, fd = oh_sys.open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 1;
	ssize_t got = oh_pread_full(fd, text, TEXT_BYTES - 1, 0, &failed);
	oh_sys.close(fd);
	if (got < 0)
		return 1;
	text[got] = '\0';
	return 0;
}

/* The number behind a key at the beginning of a line ("MemAvailable:", "inactive_file "). */
static int
number_after(const char *text, const char *key, uint64_t *value)
{
	size_t length = strlen(key);
	for (const char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (strncmp(line, key, length) == 0) {
			*value = strtoull(line + length, NULL, 10);
			return 0;
		}
	}
	return 1;
}

/* A file of one number; "max" and the like read as no limit. */
static int
read_number(const char *folder, const char *file, uint64_t *value)
{
	char path[PATH_MAX + 64], text[TEXT_BYTES], *end;
	snprintf(path, sizeof path, "%s/%s", folder, file);
	if (read_text(path, text))
		return 1;
	*value = strtoull(text, &end, 10);
	return end == text;
}

static uint64_t
file_pages(const char *folder, const char *active, const char *inactive)
{
	char path[PATH_MAX + 64], text[TEXT_BYTES];
	uint64_t a = 0, b = 0;
	snprintf(path, sizeof path, "%s/memory.stat", folder);
	if (read_text(path, text))
		return 0;
	number_after(text, active, &a);
	number_after(text, inactive, &b);
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
	char path[PATH_MAX], text[TEXT_BYTES];
	unsigned long long quota, period;
	uint64_t max, current;
	snprintf(path, sizeof path, "%s/cpu.max", folder);
	if (!read_text(path, text) && sscanf(text, "%llu %llu", &quota, &period) == 2)
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

/* Calls visit on the cgroup's folder under root and on each ancestor up to root. */
static void
walk(struct oh_machine *machine, const char *root, const char *group,
     void (*visit)(struct oh_machine *, const char *))
{
	char folder[PATH_MAX];
	size_t base = strlen(root);
	if (base + strlen(group) >= sizeof folder)
		return;
	snprintf(folder, sizeof folder, "%s%s", root, group);
	for (;;) {
		visit(machine, folder);
		char *slash = strrchr(folder + base, '/');
		if (!slash)
			return;
		*slash = '\0';
	}
}

/* Does the comma-separated list hold the controller? */
static int
holds(const char *list, const char *controller)
{
	size_t length = strlen(controller);
	for (const char *at = list; (at = strstr(at, controller)); at += length)
		if ((at == list || at[-1] == ',') && (at[length] == ',' || !at[length]))
			return 1;
	return 0;
}

/* Lines of /proc/self/cgroup: "0::/group" (v2), "4:cpu,cpuacct:/group" (v1). */
static void
read_cgroups(struct oh_machine *machine)
{
	char text[TEXT_BYTES], *rest = NULL;
	if (read_text("/proc/self/cgroup", text))
		return;
	for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		char *controllers = strchr(line, ':');
		char *group = controllers ? strchr(controllers + 1, ':') : NULL;
		if (!group)
			continue;
		*group++ = '\0';
		controllers++;
		if (strcmp(group, "/") == 0)
			*group = '\0';
		if (!*controllers) {
			walk(machine, "/sys/fs/cgroup", group, read_v2);
			walk(machine, "/sys/fs/cgroup/unified", group, read_v2);
		}
		if (holds(controllers, "cpu"))
			walk(machine, "/sys/fs/cgroup/cpu", group, read_v1_cpu);
		if (holds(controllers, "memory"))
			walk(machine, "/sys/fs/cgroup/memory", group, read_v1_memory);
	}
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
		char path[128], text[TEXT_BYTES], *end;
		snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
		if (read_text(path, text))
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
	char text[TEXT_BYTES];
	uint64_t kib;
	memset(machine, 0, sizeof *machine);
	machine->affinity = affinity();
	machine->l3_bytes = last_level_cache();
	machine->memory_bytes = UINT64_MAX;
	if (!read_text("/proc/meminfo", text) && !number_after(text, "MemAvailable:", &kib))
		machine->memory_bytes = kib << 10;
	read_cgroups(machine);
	machine->cores = machine->affinity;
	if (machine->quota && machine->quota < machine->cores)
		machine->cores = machine->quota;
}
