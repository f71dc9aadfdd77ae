/* The one table of every system call that onehop makes. Only tests replace entries. */
#ifndef OH_BASE_SYS_H
#define OH_BASE_SYS_H

#include <dirent.h>
#include <linux/capability.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <time.h>

/* What statx fills, as the kernel lays it out: C libraries know the last fields only since
 * lately. */
struct oh_statx {
	uint32_t mask;
	uint32_t block_bytes;
	uint64_t attributes;
	uint32_t links;
	uint32_t uid;
	uint32_t gid;
	uint16_t mode;
	uint16_t spare_mode;
	uint64_t inode;
	uint64_t bytes;
	uint64_t blocks;
	uint64_t attributes_mask;
	uint64_t times[8];
	uint32_t devices[4];
	uint64_t mount_id;
	uint32_t dio_memory_alignment;
	uint32_t dio_offset_alignment;
	uint64_t spare[12];
};
#define OH_STATX_DIOALIGN 0x2000u

/* What cachestat takes and fills, counts in pages. */
struct oh_cachestat_range {
	uint64_t offset;
	uint64_t bytes;
};
struct oh_cachestat {
	uint64_t cached;
	uint64_t dirty;
	uint64_t writeback;
	uint64_t evicted;
	uint64_t recently_evicted;
};

struct oh_sys {
	int (*open)(const char *path, int flags);
	int (*close)(int fd);
	int (*fstat)(int fd, struct stat *st);
	int (*stat)(const char *path, struct stat *st);
	ssize_t (*pread)(int fd, void *buf, size_t bytes, off_t offset);
	ssize_t (*preadv)(int fd, const struct iovec *pieces, int count, off_t offset);
	void *(*mmap)(void *at, size_t bytes, int prot, int flags, int fd, off_t offset);
	int (*munmap)(void *at, size_t bytes);
	int (*madvise)(void *at, size_t bytes, int advice);
	int (*sched_getaffinity)(pid_t pid, size_t bytes, cpu_set_t *set);
	int (*nanosleep)(const struct timespec *want, struct timespec *left);
	pid_t (*getpid)(void);
	int (*getrlimit)(int resource, struct rlimit *limit);
	int (*fstatfs)(int fd, struct statfs *st);
	int (*statx)(int fd, const char *path, int flags, unsigned mask, struct oh_statx *st);
	int (*faccessat)(int fd, const char *path, int mode, int flags);
	uid_t (*geteuid)(void);
	int (*capget)(struct __user_cap_header_struct *header, struct __user_cap_data_struct *data);
	int (*mincore)(void *at, size_t bytes, unsigned char *pages);
	int (*cachestat)(int fd, const struct oh_cachestat_range *range,
			 struct oh_cachestat *counts, unsigned flags);
	int (*posix_fadvise)(int fd, off_t offset, off_t bytes, int advice);
	int (*clock_gettime)(clockid_t clock, struct timespec *now);
	DIR *(*opendir)(const char *path);
	struct dirent *(*readdir)(DIR *folder);
	int (*closedir)(DIR *folder);
	int (*socket)(int domain, int type, int protocol);
	int (*bind)(int fd, const struct sockaddr *address, socklen_t bytes);
	int (*connect)(int fd, const struct sockaddr *address, socklen_t bytes);
	int (*create)(const char *path, int flags, mode_t mode); /* open with O_CREAT */
	ssize_t (*pwrite)(int fd, const void *buf, size_t bytes, off_t offset);
	int (*fsync)(int fd);
	int (*rename)(const char *from, const char *to);
	int (*unlink)(const char *path);
	int (*ftruncate)(int fd, off_t bytes);
	int (*flock)(int fd, int operation);
	int (*dup)(int fd); /* closed on exec */
};

extern struct oh_sys oh_sys;

/* Reads up to bytes at offset, going on after short reads and EINTR; stops at end of file. Returns
 * the bytes read, or -1 with errno if the first read fails; a later failure is reported through
 * *failed (an errno, else 0). */
ssize_t oh_pread_full(int fd, void *buf, size_t bytes, off_t offset, int *failed);

/* Writes all of bytes at offset, going on after short writes and EINTR. 0, or an errno. */
int oh_pwrite_full(int fd, const void *buf, size_t bytes, off_t offset);

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t oh_now_ns(void);

#endif
