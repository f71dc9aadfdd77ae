/* Small files of /proc and /sys as text, and the cgroups of this process.
 *
 * Every file may be missing or cut short (containers hide them); nothing is cached, allocated or
 * reported. What a number or a missing file means is the caller's to say.
 */
#include "machine/proc.h"

#include "base/sys.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int
oh_proc_read(const char *path, char text[OH_PROC_BYTES])
{
	int failed, fd = oh_sys.open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 1;
	ssize_t got = oh_pread_full(fd, text, OH_PROC_BYTES - 1, 0, &failed);
	oh_sys.close(fd);
	if (got < 0)
		return 1;
	text[got] = '\0';
	return 0;
}

int
oh_proc_read_in(const char *folder, const char *file, char text[OH_PROC_BYTES])
{
	char path[PATH_MAX + 64];
	snprintf(path, sizeof path, "%s/%s", folder, file);
	return oh_proc_read(path, text);
}

int
oh_proc_number(const char *text, const char *key, uint64_t *value)
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

struct walk {
	void (*visit)(void *context, enum oh_cgroup kind, const char *folder);
	void *context;
};

static void
walk_up(const struct walk *walk, enum oh_cgroup kind, const char *root, const char *group)
{
	char folder[PATH_MAX];
	size_t base = strlen(root);
	int bytes = snprintf(folder, sizeof folder, "%s%s", root, group);
	if (bytes < 0 || (size_t)bytes >= sizeof folder)
		return;
	for (;;) {
		walk->visit(walk->context, kind, folder);
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

/* A line of /proc/self/cgroup: "0::/group" (v2), "4:cpu,cpuacct:/group" (v1). */
static void
read_line(const struct walk *walk, char *line)
{
	char *controllers = strchr(line, ':');
	char *group = controllers ? strchr(controllers + 1, ':') : NULL;
	if (!group)
		return;
	*group++ = '\0';
	controllers++;
	if (strcmp(group, "/") == 0)
		*group = '\0';
	if (!*controllers) {
		walk_up(walk, OH_CGROUP_V2, "/sys/fs/cgroup", group);
		walk_up(walk, OH_CGROUP_V2, "/sys/fs/cgroup/unified", group);
	}
	if (holds(controllers, "cpu"))
		walk_up(walk, OH_CGROUP_V1_CPU, "/sys/fs/cgroup/cpu", group);
	if (holds(controllers, "memory"))
		walk_up(walk, OH_CGROUP_V1_MEMORY, "/sys/fs/cgroup/memory", group);
}

void
oh_cgroup_each(void (*visit)(void *context, enum oh_cgroup kind, const char *folder), void *context)
{
	struct walk walk = {.visit = visit, .context = context};
	char text[OH_PROC_BYTES], *rest = NULL;
	if (oh_proc_read("/proc/self/cgroup", text))
		return;
	for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
		read_line(&walk, line);
}
