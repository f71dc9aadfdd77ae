/* Faults in system calls: every entry of base/sys.h is replaced by one that counts, and fails,
 * falls short or stands still when a test says so.
 *
 *   fault_install()   once, before any runtime is made
 *   fault_arm()       from now on; fault_disarm() tells what was struck
 *
 * What is failed is plausible: a close that fails has closed, a munmap that fails has unmapped, and
 * getpid, geteuid and clock_gettime do not fail. What a short read did not read is not there.
 * Memory mapped through the table is counted.
 */
#ifndef OH_TESTS_FAULT_FAULT_H
#define OH_TESTS_FAULT_FAULT_H

#include "base/sys.h"

#include "model/files.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

/* X(name, type, parameters, arguments, what it returns when it fails, path, descriptor). */
#define FAULT_PLAIN(X)                                                                             \
	X(open, int, (const char *path, int flags), (path, flags), -1, path, -1)                   \
	X(fstat, int, (int fd, struct stat *st), (fd, st), -1, NULL, fd)                           \
	X(stat, int, (const char *path, struct stat *st), (path, st), -1, path, -1)                \
	X(madvise, int, (void *at, size_t bytes, int advice), (at, bytes, advice), -1, NULL, -1)   \
	X(sched_getaffinity, int, (pid_t pid, size_t bytes, cpu_set_t *set), (pid, bytes, set),    \
	  -1, NULL, -1)                                                                            \
	X(getrlimit, int, (int resource, struct rlimit *limit), (resource, limit), -1, NULL, -1)   \
	X(fstatfs, int, (int fd, struct statfs *st), (fd, st), -1, NULL, fd)                       \
	X(statx, int, (int fd, const char *path, int flags, unsigned mask, struct oh_statx *st),   \
	  (fd, path, flags, mask, st), -1, NULL, fd)                                               \
	X(faccessat, int, (int fd, const char *path, int mode, int flags),                         \
	  (fd, path, mode, flags), -1, NULL, fd)                                                   \
	X(mincore, int, (void *at, size_t bytes, unsigned char *pages), (at, bytes, pages), -1,    \
	  NULL, -1)                                                                                \
	X(opendir, DIR *, (const char *path), (path), NULL, path, -1)                              \
	X(readdir, struct dirent *, (DIR *folder), (folder), NULL, NULL, -1)                       \
	X(socket, int, (int domain, int type, int protocol), (domain, type, protocol), -1, NULL,   \
	  -1)                                                                                      \
	X(bind, int, (int fd, const struct sockaddr *address, socklen_t bytes),                    \
	  (fd, address, bytes), -1, NULL, -1)                                                      \
	X(connect, int, (int fd, const struct sockaddr *address, socklen_t bytes),                 \
	  (fd, address, bytes), -1, NULL, -1)                                                      \
	X(create, int, (const char *path, int flags, mode_t mode), (path, flags, mode), -1, path,  \
	  -1)                                                                                      \
	X(preadv, ssize_t, (int fd, const struct iovec *pieces, int count, off_t offset),          \
	  (fd, pieces, count, offset), -1, NULL, fd)                                               \
	X(fsync, int, (int fd), (fd), -1, NULL, fd)                                                \
	X(rename, int, (const char *from, const char *to), (from, to), -1, to, -1)                 \
	X(unlink, int, (const char *path), (path), -1, path, -1)                                   \
	X(ftruncate, int, (int fd, off_t bytes), (fd, bytes), -1, NULL, fd)                        \
	X(flock, int, (int fd, int operation), (fd, operation), -1, NULL, fd)                      \
	X(dup, int, (int fd), (fd), -1, NULL, fd)
/* Written out below. */
#define FAULT_OTHER(X)                                                                             \
	X(close) X(nanosleep) X(pread) X(mmap) X(munmap) X(posix_fadvise) X(capget) X(cachestat)       \
	X(closedir) X(pwrite)

#define FAULT_PLAIN_NUMBER(name, type, parameters, arguments, failure, path, fd) FAULT_##name,
#define FAULT_OTHER_NUMBER(name) FAULT_##name,
enum fault_call {
	FAULT_PLAIN(FAULT_PLAIN_NUMBER) FAULT_OTHER(FAULT_OTHER_NUMBER) FAULT_CALL_COUNT,
	FAULT_ANY = FAULT_CALL_COUNT
};
#define FAULT_PLAIN_NAME(name, type, parameters, arguments, failure, path, fd) #name,
#define FAULT_OTHER_NAME(name) #name,
static const char *const fault_names[] = {FAULT_PLAIN(FAULT_PLAIN_NAME)
						  FAULT_OTHER(FAULT_OTHER_NAME) "any"};

enum fault_how {
	FAULT_FAILS,     /* with the code */
	FAULT_ONE_BYTE,  /* a read gives one byte */
	FAULT_HALF,      /* a read gives half of what was asked */
	FAULT_ENDS,      /* a read is at the end of the file */
	FAULT_LATE,      /* it stands still until fault_release() */
};

struct fault {
	enum fault_call call; /* FAULT_ANY: all count */
	enum fault_how how;
	long number;          /* 0: the next of that call */
	int onwards;          /* all later ones too */
	int code;             /* errno */
	int elsewhere;        /* an older kernel, and a user to whom the files do not belong */
};

/* What was struck last. */
struct fault_struck {
	long count;
	enum fault_call call;
	int code;
	char path[512]; /* of the file, if it was a call on one */
};

static struct oh_sys fault_real;
static atomic_int fault_is_armed;
static atomic_llong fault_mapped; /* bytes */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct fault fault;
	struct fault_struck struck;
	long seen;
	int held;  /* a late call stands */
	int given; /* it may go on */
} fault_now = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

UNUSED static void
fault_arm(struct fault fault)
{
	pthread_mutex_lock(&fault_now.lock);
	fault_now.fault = fault;
	fault_now.seen = fault_now.held = fault_now.given = 0;
	memset(&fault_now.struck, 0, sizeof fault_now.struck);
	atomic_store(&fault_is_armed, 1);
	pthread_mutex_unlock(&fault_now.lock);
}

UNUSED static struct fault_struck
fault_disarm(void)
{
	pthread_mutex_lock(&fault_now.lock);
	struct fault_struck struck = fault_now.struck;
	atomic_store(&fault_is_armed, 0);
	fault_now.given = 1;
	pthread_cond_broadcast(&fault_now.changed);
	pthread_mutex_unlock(&fault_now.lock);
	return struck;
}

/* Lets a late call go on. */
UNUSED static void
fault_release(void)
{
	pthread_mutex_lock(&fault_now.lock);
	fault_now.given = 1;
	pthread_cond_broadcast(&fault_now.changed);
	pthread_mutex_unlock(&fault_now.lock);
}

/* Nothing here takes so long: what does has hung, and the program ends with what it was at. */
static struct timespec
fault_patience(void)
{
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 120;
	return until;
}

static void
fault_hung(const char *what)
{
	printf("Bail out! hung: %s\n", what);
	fflush(stdout);
	_exit(1);
}

/* Waits until a late call stands, or *ended is set by fault_tell(). 1 if one stands. */
UNUSED static int
fault_wait_held(const int *ended)
{
	struct timespec until = fault_patience();
	pthread_mutex_lock(&fault_now.lock);
	while (!fault_now.held && !*ended)
		if (pthread_cond_timedwait(&fault_now.changed, &fault_now.lock, &until))
			fault_hung("neither is a call late nor does the load end");
	int held = fault_now.held;
	pthread_mutex_unlock(&fault_now.lock);
	return held;
}

UNUSED static void
fault_tell(int *ended)
{
	pthread_mutex_lock(&fault_now.lock);
	*ended = 1;
	pthread_cond_broadcast(&fault_now.changed);
	pthread_mutex_unlock(&fault_now.lock);
}

static void
fault_stand(void)
{
	struct timespec until = fault_patience();
	fault_now.held = 1;
	pthread_cond_broadcast(&fault_now.changed);
	while (!fault_now.given)
		if (pthread_cond_timedwait(&fault_now.changed, &fault_now.lock, &until))
			fault_hung("a late call is never let go on");
}

static void
fault_path(char path[512], const char *given, int fd)
{
	char link[64];
	ssize_t bytes = -1;
	path[0] = '\0';
	if (given)
		snprintf(path, 512, "%s", given);
	if (fd < 0)
		return;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	bytes = readlink(link, path, 511);
	path[bytes > 0 ? bytes : 0] = '\0';
}

/* Counts the call. 1 if it is struck: then *fault is how. */
static int
fault_enter(enum fault_call call, const char *path, int fd, struct fault *fault)
{
	int struck = 0;
	if (!atomic_load(&fault_is_armed))
		return 0;
	pthread_mutex_lock(&fault_now.lock);
	*fault = fault_now.fault;
	if (atomic_load(&fault_is_armed) && (fault->call == FAULT_ANY || fault->call == call)) {
		long number = fault_now.seen++;
		struck = number == fault->number || (fault->onwards && number > fault->number);
	}
	if (struck) {
		fault_now.struck.count++;
		fault_now.struck.call = call;
		fault_now.struck.code = fault->code;
		fault_path(fault_now.struck.path, path, fd);
		if (fault->how == FAULT_LATE)
			fault_stand();
	}
	pthread_mutex_unlock(&fault_now.lock);
	return struck;
}

/* 1 if the call is to fail; errno is set. */
static int
fault_fails(enum fault_call call, const char *path, int fd)
{
	struct fault fault;
	if (!fault_enter(call, path, fd, &fault) || fault.how != FAULT_FAILS)
		return 0;
	errno = fault.code;
	return 1;
}

#define FAULT_PLAIN_CALL(name, type, parameters, arguments, failure, path, fd)                     \
	static type fault_##name parameters                                                        \
	{                                                                                          \
		return fault_fails(FAULT_##name, path, fd) ? (failure) : fault_real.name arguments; \
	}
FAULT_PLAIN(FAULT_PLAIN_CALL)

static int
fault_close(int fd)
{
	struct fault fault;
	int struck = fault_enter(FAULT_close, NULL, fd, &fault) && fault.how == FAULT_FAILS;
	int failed = fault_real.close(fd);
	if (struck)
		errno = fault.code;
	return struck ? -1 : failed;
}

static int
fault_closedir(DIR *folder)
{
	struct fault fault;
	int struck = fault_enter(FAULT_closedir, NULL, -1, &fault) && fault.how == FAULT_FAILS;
	int failed = fault_real.closedir(folder);
	if (struck)
		errno = fault.code;
	return struck ? -1 : failed;
}

/* Interrupted when it has slept nearly all of it. */
static int
fault_nanosleep(const struct timespec *want, struct timespec *left)
{
	struct fault fault;
	int struck = fault_enter(FAULT_nanosleep, NULL, -1, &fault) && fault.how == FAULT_FAILS;
	int failed = fault_real.nanosleep(want, left);
	if (struck)
		errno = fault.code;
	return struck ? -1 : failed;
}

/* This one returns its errno. */
static int
fault_posix_fadvise(int fd, off_t offset, off_t bytes, int advice)
{
	return fault_fails(FAULT_posix_fadvise, NULL, fd)
		       ? errno
		       : fault_real.posix_fadvise(fd, offset, bytes, advice);
}

static int
fault_is_elsewhere(void)
{
	pthread_mutex_lock(&fault_now.lock);
	int elsewhere = atomic_load(&fault_is_armed) && fault_now.fault.elsewhere;
	pthread_mutex_unlock(&fault_now.lock);
	return elsewhere;
}

static int
fault_cachestat(int fd, const struct oh_cachestat_range *range, struct oh_cachestat *counts,
		unsigned flags)
{
	if (fault_fails(FAULT_cachestat, NULL, fd))
		return -1;
	if (!fault_is_elsewhere())
		return fault_real.cachestat(fd, range, counts, flags);
	errno = ENOSYS;
	return -1;
}

static int
fault_capget(struct __user_cap_header_struct *header, struct __user_cap_data_struct *data)
{
	int failed = fault_fails(FAULT_capget, NULL, -1) || fault_real.capget(header, data);
	if (!failed && fault_is_elsewhere())
		memset(data, 0, _LINUX_CAPABILITY_U32S_3 * sizeof *data);
	return failed ? -1 : 0;
}

static uid_t
fault_geteuid(void)
{
	return fault_real.geteuid() + (uid_t)fault_is_elsewhere();
}

static ssize_t
fault_pread(int fd, void *buf, size_t bytes, off_t offset)
{
	struct fault fault;
	if (!fault_enter(FAULT_pread, NULL, fd, &fault))
		return fault_real.pread(fd, buf, bytes, offset);
	if (fault.how == FAULT_FAILS) {
		errno = fault.code;
		return -1;
	}
	if (fault.how == FAULT_ENDS)
		return 0;
	ssize_t got = fault_real.pread(fd, buf, bytes, offset), keep = got;
	if (got > 0 && fault.how == FAULT_ONE_BYTE)
		keep = 1;
	if (got > 0 && fault.how == FAULT_HALF)
		keep = (got + 1) / 2;
	if (keep < got)
		memset((char *)buf + keep, 0xEE, (size_t)(got - keep));
	return keep;
}

/* What a short write did not write is not there. */
static ssize_t
fault_pwrite(int fd, const void *buf, size_t bytes, off_t offset)
{
	struct fault fault;
	if (!fault_enter(FAULT_pwrite, NULL, fd, &fault))
		return fault_real.pwrite(fd, buf, bytes, offset);
	if (fault.how == FAULT_FAILS) {
		errno = fault.code;
		return -1;
	}
	if (fault.how == FAULT_ENDS)
		return 0;
	if (fault.how == FAULT_ONE_BYTE)
		bytes = 1;
	if (fault.how == FAULT_HALF)
		bytes = (bytes + 1) / 2;
	return fault_real.pwrite(fd, buf, bytes, offset);
}

static void *
fault_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
	void *memory = MAP_FAILED;
	if (!fault_fails(FAULT_mmap, NULL, fd))
		memory = fault_real.mmap(at, bytes, prot, flags, fd, offset);
	if (memory != MAP_FAILED)
		atomic_fetch_add(&fault_mapped, (long long)bytes);
	return memory;
}

static int
fault_munmap(void *at, size_t bytes)
{
	struct fault fault;
	int struck = fault_enter(FAULT_munmap, NULL, -1, &fault) && fault.how == FAULT_FAILS;
	int failed = fault_real.munmap(at, bytes);
	if (!failed)
		atomic_fetch_sub(&fault_mapped, (long long)bytes);
	if (struck)
		errno = fault.code;
	return struck ? -1 : failed;
}

UNUSED static void
fault_install(void)
{
	fault_real = oh_sys;
#define FAULT_PLAIN_ENTRY(name, type, parameters, arguments, failure, path, fd)                    \
	oh_sys.name = fault_##name;
#define FAULT_OTHER_ENTRY(name) oh_sys.name = fault_##name;
	FAULT_PLAIN(FAULT_PLAIN_ENTRY)
	FAULT_OTHER(FAULT_OTHER_ENTRY)
	oh_sys.geteuid = fault_geteuid;
}

/* Entries of the table that are not replaced, but for the two that cannot fail. */
UNUSED static int
fault_entries_left(void)
{
	void *real[sizeof(struct oh_sys) / sizeof(void *)], *now[sizeof real / sizeof real[0]];
	int same = 0;
	memcpy(real, &fault_real, sizeof real);
	memcpy(now, &oh_sys, sizeof now);
	for (size_t i = 0; i < sizeof real / sizeof real[0]; i++)
		same += real[i] == now[i];
	return same - (fault_real.getpid == oh_sys.getpid) -
	       (fault_real.clock_gettime == oh_sys.clock_gettime);
}

#endif
