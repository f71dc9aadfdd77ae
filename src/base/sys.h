/* The one table of every system call that onehop makes. Only tests replace entries. */
#ifndef OH_BASE_SYS_H
#define OH_BASE_SYS_H

#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

struct oh_sys {
	int (*open)(const char *path, int flags);
	int (*close)(int fd);
	int (*fstat)(int fd, struct stat *st);
	int (*stat)(const char *path, struct stat *st);
	ssize_t (*pread)(int fd, void *buf, size_t bytes, off_t offset);
	void *(*mmap)(void *at, size_t bytes, int prot, int flags, int fd, off_t offset);
	int (*munmap)(void *at, size_t bytes);
	int (*madvise)(void *at, size_t bytes, int advice);
	int (*sched_getaffinity)(pid_t pid, size_t bytes, cpu_set_t *set);
	int (*nanosleep)(const struct timespec *want, struct timespec *left);
	pid_t (*getpid)(void);
	int (*getrlimit)(int resource, struct rlimit *limit);
};

extern struct oh_sys oh_sys;

/* Reads up to bytes at offset, going on after short reads and EINTR; stops at end of file. Returns
 * the bytes read, or -1 with errno if the first read fails; a later failure is reported through
 * *failed (an errno, else 0). */
ssize_t oh_pread_full(int fd, void *buf, size_t bytes, off_t offset, int *failed);

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t oh_now_ns(void);

#endif
