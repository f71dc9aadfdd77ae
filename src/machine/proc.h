/* Small files of /proc and /sys as text, and the cgroups of this process. */
#ifndef OH_MACHINE_PROC_H
#define OH_MACHINE_PROC_H

#include <stdint.h>

#define OH_PROC_BYTES 8192

/* Reads a file's first bytes as text. Returns 0, or 1 if it cannot be read. */
int oh_proc_read(const char *path, char text[OH_PROC_BYTES]);

/* The same for a file of a folder. */
int oh_proc_read_in(const char *folder, const char *file, char text[OH_PROC_BYTES]);

/* The number behind a key at the beginning of a line ("MemAvailable:", "inactive_file "). Returns
 * 0, or 1 if there is none. */
int oh_proc_number(const char *text, const char *key, uint64_t *value);

enum oh_cgroup {
	OH_CGROUP_V2,
	OH_CGROUP_V1_CPU,
	OH_CGROUP_V1_MEMORY
};

/* Calls visit for each folder where a cgroup of this process may be seen: the group itself, then
 * its ancestors up to the mount. In a container the inner ones may not exist. */
void oh_cgroup_each(void (*visit)(void *context, enum oh_cgroup kind, const char *folder),
		    void *context);

#endif
