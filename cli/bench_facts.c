/* What machine a benchmark ran on: processor, kernel, file system. Unknown facts stay "unknown". */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>

static void
copy_text(char *to, size_t room, const char *from)
{
	snprintf(to, room, "%.*s", (int)strcspn(from, "\n"), from);
}

/* The first value of `key` in /proc/cpuinfo: x86 names the model, others the implementer. */
static int
cpuinfo(char *to, size_t room, const char *key)
{
	char line[512];
	int found = 0;
	FILE *file = fopen("/proc/cpuinfo", "re");
	while (file && !found && fgets(line, sizeof line, file)) {
		char *colon = strchr(line, ':');
		if (strncmp(line, key, strlen(key)) != 0 || !colon || colon[1] == '\0')
			continue;
		copy_text(to, room, colon + 2);
		found = 1;
	}
	if (file)
		fclose(file);
	return found;
}

/* The type of the mount whose device is the path's. A line of mountinfo:
 * id parent major:minor root place options [fields] - type source super-options */
static void
file_system(char *to, size_t room, const char *path)
{
	char line[4096], wanted[32];
	struct stat st;
	if (stat(path, &st) != 0)
		return;
	snprintf(wanted, sizeof wanted, "%u:%u", major(st.st_dev), minor(st.st_dev));
	FILE *file = fopen("/proc/self/mountinfo", "re");
	while (file && fgets(line, sizeof line, file)) {
		char device[32];
		const char *dash = strstr(line, " - ");
		if (!dash || sscanf(line, "%*d %*d %31s", device) != 1 ||
		    strcmp(device, wanted) != 0)
			continue;
		snprintf(to, room, "%.*s", (int)strcspn(dash + 3, " "), dash + 3);
		break;
	}
	if (file)
		fclose(file);
}

void
bench_facts(struct bench_facts *facts, const char *path)
{
	struct utsname name;
	struct sysinfo memory;
	memset(facts, 0, sizeof *facts);
	copy_text(facts->cpu, sizeof facts->cpu, "unknown");
	copy_text(facts->kernel, sizeof facts->kernel, "unknown");
	copy_text(facts->file_system, sizeof facts->file_system, "unknown");
	if (!cpuinfo(facts->cpu, sizeof facts->cpu, "model name"))
		cpuinfo(facts->cpu, sizeof facts->cpu, "CPU implementer");
	if (uname(&name) == 0)
		snprintf(facts->kernel, sizeof facts->kernel, "%.48s %.64s", name.sysname,
			 name.release);
	if (sysinfo(&memory) == 0)
		facts->total_bytes = (uint64_t)memory.totalram * memory.mem_unit;
	file_system(facts->file_system, sizeof facts->file_system, path);
}
