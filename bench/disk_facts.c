/* What machine, kernel, file system and block device bench/disk or bench/cold ran on. Unknown facts
 * stay "unknown".
 */
#include "disk.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>

/* The first line of a file, without the blanks at its end. */
static int
first_line(char *to, size_t room, const char *path)
{
	FILE *file = fopen(path, "re");
	int found = file && fgets(to, (int)room, file);
	size_t end = found ? strlen(to) : 0;
	for (; end > 0 && (to[end - 1] == '\n' || to[end - 1] == ' '); end--)
		to[end - 1] = '\0';
	if (file)
		fclose(file);
	return found;
}

/* The number after "key:" in a file, times its unit of 1,024. */
static uint64_t
kilobytes(const char *path, const char *key)
{
	char line[256];
	unsigned long long value = 0;
	size_t length = strlen(key);
	FILE *file = fopen(path, "re");
	while (file && fgets(line, sizeof line, file))
		if (strncmp(line, key, length) == 0 && line[length] == ':')
			value = strtoull(line + length + 1, NULL, 10);
	if (file)
		fclose(file);
	return value * 1024;
}

static void
processor(char *to, size_t room)
{
	char line[512];
	FILE *file = fopen("/proc/cpuinfo", "re");
	while (file && fgets(line, sizeof line, file)) {
		char *colon = strchr(line, ':');
		if (strncmp(line, "model name", 10) != 0 || !colon)
			continue;
		colon[strcspn(colon, "\n")] = '\0';
		snprintf(to, room, "%s", colon + (colon[1] ? 2 : 1));
		break;
	}
	if (file)
		fclose(file);
}

/* A line of mountinfo: id parent major:minor root place options [fields] - type source more */
static void
place(char *to, size_t room, dev_t device)
{
	char line[4096], wanted[32];
	snprintf(wanted, sizeof wanted, "%u:%u", major(device), minor(device));
	FILE *file = fopen("/proc/self/mountinfo", "re");
	while (file && fgets(line, sizeof line, file)) {
		char found[32], type[64], source[128];
		const char *dash = strstr(line, " - ");
		if (!dash || sscanf(line, "%*d %*d %31s", found) != 1 ||
		    strcmp(found, wanted) != 0 || sscanf(dash + 3, "%63s %127s", type, source) != 2)
			continue;
		snprintf(to, room, "%s on %s", type, source);
		break;
	}
	if (file)
		fclose(file);
}

static void
queue(char *to, size_t room, dev_t device)
{
	static const char *const names[] = {"scheduler", "nr_requests", "max_sectors_kb",
					    "read_ahead_kb"};
	size_t at = 0;
	for (size_t i = 0; i < sizeof names / sizeof *names && at < room; i++) {
		char path[128], line[64];
		snprintf(path, sizeof path, "/sys/dev/block/%u:%u/queue/%s", major(device),
			 minor(device), names[i]);
		if (first_line(line, sizeof line, path))
			at += (size_t)snprintf(to + at, room - at, "%s%s %s", at ? ", " : "",
					       names[i], line);
	}
}

void
facts_find(struct facts *facts, const struct disk *disk)
{
	struct stat st;
	struct utsname name;
	memset(facts, 0, sizeof *facts);
	strcpy(facts->processor, "unknown");
	strcpy(facts->place, "unknown");
	strcpy(facts->scheduler, "unknown");
	processor(facts->processor, sizeof facts->processor);
	if (uname(&name) == 0)
		snprintf(facts->kernel, sizeof facts->kernel, "%s %s", name.release, name.machine);
	if (fstat(disk->fd, &st) == 0) {
		place(facts->place, sizeof facts->place, st.st_dev);
		queue(facts->scheduler, sizeof facts->scheduler, st.st_dev);
	}
	facts->cores = sysconf(_SC_NPROCESSORS_ONLN);
	facts->memory = kilobytes("/proc/meminfo", "MemTotal");
	facts->huge = kilobytes("/proc/self/smaps_rollup", "AnonHugePages");
	if (getloadavg(&facts->load, 1) != 1)
		facts->load = 0;
}

void
facts_print(const struct facts *facts)
{
	printf("processor    %s, %ld cores, %.1f GiB\n", facts->processor, facts->cores,
	       (double)facts->memory / (1 << 30));
	printf("kernel       %s\n", facts->kernel);
	printf("file system  %s\n", facts->place);
	printf("queue        %s\n", facts->scheduler);
	printf("load before  %.2f\n", facts->load);
}

void
json_text(const char *name, const char *text)
{
	printf("\"%s\": \"", name);
	for (; *text; text++)
		if ((unsigned char)*text >= 0x20 && *text != '"' && *text != '\\')
			putchar(*text);
	printf("\", ");
}

void
facts_print_json(const struct facts *facts)
{
	json_text("processor", facts->processor);
	json_text("kernel", facts->kernel);
	json_text("file_system", facts->place);
	json_text("queue", facts->scheduler);
	printf("\"cores\": %ld, \"memory_bytes\": %llu, \"load\": %.2f, ", facts->cores,
	       (unsigned long long)facts->memory, facts->load);
}
