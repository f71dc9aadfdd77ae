/* The table of system calls with the real ones in it, and the helpers that everything uses. */
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* One number on every architecture that we build for; older headers do not name it. */
#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

static int
real_open(const char *path, int flags)
{
	return open(path, flags);
}

static int
real_fstat(int fd, struct stat *st)
{
	return fstat(fd, st);
}

static int
real_stat(const char *path, struct stat *st)
{
	return stat(path, st);
}

/* In glibc the resource is of an enum type. */
static int
real_getrlimit(int resource, struct rlimit *limit)
{
	return getrlimit(resource, limit);
}

/* The C library has no wrapper for these three, or one that knows an older struct. */
static int
real_statx(int fd, const char *path, int flags, unsigned mask, struct oh_statx *st)
{
	_Static_assert(sizeof *st == 256, "the kernel's struct statx");
	return (int)syscall(SYS_statx, fd, path, flags, mask, st);
}

static int
real_capget(struct __user_cap_header_struct *header, struct __user_cap_data_struct *data)
{
	return (int)syscall(SYS_capget, header, data);
}

static int
real_cachestat(int fd, const struct oh_cachestat_range *range, struct oh_cachestat *counts,
	       unsigned flags)
{
	return (int)syscall(SYS_cachestat, fd, range, counts, flags);
}

/* In glibc the address is of a transparent union. */
static int
real_bind(int fd, const struct sockaddr *address, socklen_t bytes)
{
	return bind(fd, address, bytes);
}

static int
real_connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
	return connect(fd, address, bytes);
}

static int
real_create(const char *path, int flags, mode_t mode)
{
	return open(path, flags | O_CREAT, mode);
}

static int
real_dup(int fd)
{
	return fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

struct oh_sys oh_sys = {
	.open = real_open,
	.close = close,
	.fstat = real_fstat,
	.stat = real_stat,
	.pread = pread,
	.preadv = preadv,
	.mmap = mmap,
	.munmap = munmap,
	.madvise = madvise,
	.sched_getaffinity = sched_getaffinity,
	.nanosleep = nanosleep,
	.getpid = getpid,
	.getrlimit = real_getrlimit,
	.fstatfs = fstatfs,
	.statx = real_statx,
	.faccessat = faccessat,
	.geteuid = geteuid,
	.capget = real_capget,
	.mincore = mincore,
	.cachestat = real_cachestat,
	.posix_fadvise = posix_fadvise,
	.clock_gettime = clock_gettime,
	.opendir = opendir,
	.readdir = readdir,
	.closedir = closedir,
	.socket = socket,
	.bind = real_bind,
	.connect = real_connect,
	.create = real_create,
	.pwrite = pwrite,
	.fsync = fsync,
	.rename = rename,
	.unlink = unlink,
	.ftruncate = ftruncate,
	.flock = flock,
	.dup = real_dup,
};

/* Linux moves at most this much in one call. */
#define MOST_IN_ONE_CALL 0x7ffff000u

ssize_t
oh_pread_full(int fd, void *buf, size_t bytes, off_t offset, int *failed)
{
	size_t done = 0;
	*failed = 0;
	while (done < bytes) {
		size_t want = bytes - done < MOST_IN_ONE_CALL ? bytes - done : MOST_IN_ONE_CALL;
		ssize_t got = oh_sys.pread(fd, (char *)buf + done, want, offset + (off_t)done);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0) {
			*failed = errno;
			return done ? (ssize_t)done : -1;
		}
		if (got == 0)
			break;
		done += (size_t)got;
	}
	return (ssize_t)done;
}

int
oh_pwrite_full(int fd, const void *buf, size_t bytes, off_t offset)
{
	for (size_t done = 0; done < bytes;) {
		size_t want = bytes - done < MOST_IN_ONE_CALL ? bytes - done : MOST_IN_ONE_CALL;
		ssize_t put = oh_sys.pwrite(fd, (const char *)buf + done, want,
					    offset + (off_t)done);
		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			return put < 0 ? errno : ENOSPC;
		done += (size_t)put;
	}
	return 0;
}

uint64_t
oh_now_ns(void)
{
	struct timespec now;
	oh_sys.clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
