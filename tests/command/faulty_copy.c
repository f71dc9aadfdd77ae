/* A machine that fails, for `onehop-faulty-copy`: the command, linked with --wrap of the calls that
 * onehop prefetch makes on files.
 *
 * FAULTY_COPY=WHAT:N does something at the N-th of these calls, counted from 1 over all threads:
 *   kill    ends the process, a write half done
 *   int     sends SIGINT, and goes on once it has arrived
 *   full    no room for this write or any after it
 *   eio     this call fails
 *   short   from here on a read or write moves half of what it should
 *   flip    the next write of 4 KiB or more has one bit wrong
 *   append  one byte is added to the file that FAULTY_FILE names
 *   slow    from here on each call takes 20 ms longer
 * FAULTY_ROOM: statvfs() sees a disk without limit. FAULTY_MEMORY=N: so many bytes are usable.
 */
#include "../../cli/signals.h"

#include <onehop/onehop.h>

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

/* Visible, since the sanitizers' libraries call them, too, as the linker sees it. */
#define WRAP(type, name, ...)                                                                      \
	type __real_##name(__VA_ARGS__);                                                           \
	ONEHOP_API type __wrap_##name(__VA_ARGS__);                                                \
	type __wrap_##name(__VA_ARGS__)

static _Atomic unsigned long moment;
static _Atomic int flipped;

enum when { NOT_YET, NOW, SINCE };

/* What is to be done at this call, and whether its moment is now or was before. */
static const char *
fault(enum when *when)
{
	static const struct timespec tick = {0, 20000000};
	const char *text = getenv("FAULTY_COPY"), *colon = text ? strchr(text, ':') : NULL;
	unsigned long now = atomic_fetch_add(&moment, 1) + 1;
	unsigned long at = colon ? strtoul(colon + 1, NULL, 10) : 0;
	*when = !at || now < at ? NOT_YET : now == at ? NOW : SINCE;
	if (!text || *when == NOT_YET)
		return "";
	if (strncmp(text, "slow", 4) == 0)
		nanosleep(&tick, NULL);
	if (*when == NOW && strncmp(text, "int", 3) == 0) {
		kill(getpid(), SIGINT);
		while (!signals_caught()) /* another thread takes it */
			sched_yield();
	}
	if (*when == NOW && strncmp(text, "append", 6) == 0) {
		int fd = open(getenv("FAULTY_FILE"), O_WRONLY | O_APPEND);
		if (fd < 0 || write(fd, "x", 1) != 1 || close(fd) != 0)
			abort();
	}
	return text;
}

static int
is(const char *text, const char *what)
{
	return strncmp(text, what, strlen(what)) == 0;
}

/* For calls that only fail or are the last. */
static int
fails(void)
{
	enum when when;
	const char *text = fault(&when);
	if (when == NOW && is(text, "kill"))
		raise(SIGKILL);
	if (when != NOW || !is(text, "eio"))
		return 0;
	errno = EIO;
	return 1;
}

WRAP(ssize_t, pread64, int fd, void *to, size_t bytes, off64_t offset)
{
	enum when when;
	const char *text = fault(&when);
	if (when == NOW && is(text, "kill"))
		raise(SIGKILL);
	if (when == NOW && is(text, "eio")) {
		errno = EIO;
		return -1;
	}
	if (when != NOT_YET && is(text, "short"))
		bytes = bytes / 2 + bytes % 2;
	return __real_pread64(fd, to, bytes, offset);
}

static ssize_t write_flipped(int fd, const void *from, size_t bytes, off64_t offset);

WRAP(ssize_t, pwrite64, int fd, const void *from, size_t bytes, off64_t offset)
{
	enum when when;
	const char *text = fault(&when);
	if (when != NOT_YET && is(text, "flip") && bytes >= 4096 && !atomic_exchange(&flipped, 1))
		return write_flipped(fd, from, bytes, offset);
	if ((when != NOT_YET && is(text, "short")) || (when == NOW && is(text, "kill")))
		bytes = bytes / 2 + bytes % 2;
	if ((when == NOW && is(text, "eio")) || (when != NOT_YET && is(text, "full"))) {
		errno = is(text, "eio") ? EIO : ENOSPC;
		return -1;
	}
	ssize_t wrote = __real_pwrite64(fd, from, bytes, offset);
	if (when == NOW && is(text, "kill"))
		raise(SIGKILL);
	return wrote;
}

static ssize_t
write_flipped(int fd, const void *from, size_t bytes, off64_t offset)
{
	char *wrong = malloc(bytes);
	if (!wrong)
		abort();
	memcpy(wrong, from, bytes);
	wrong[bytes / 2] ^= 0x10;
	ssize_t wrote = __real_pwrite64(fd, wrong, bytes, offset);
	free(wrong);
	return wrote;
}

WRAP(int, fallocate64, int fd, int mode, off64_t offset, off64_t bytes)
{
	enum when when;
	const char *text = fault(&when);
	if (when == NOW && is(text, "kill"))
		raise(SIGKILL);
	if ((when == NOW && is(text, "eio")) || (when != NOT_YET && is(text, "full"))) {
		errno = is(text, "eio") ? EIO : ENOSPC;
		return -1;
	}
	return __real_fallocate64(fd, mode, offset, bytes);
}

WRAP(int, fdatasync, int fd)
{
	return fails() ? -1 : __real_fdatasync(fd);
}

WRAP(int, fsync, int fd)
{
	return fails() ? -1 : __real_fsync(fd);
}

WRAP(int, ftruncate64, int fd, off64_t bytes)
{
	return fails() ? -1 : __real_ftruncate64(fd, bytes);
}

WRAP(int, renameat2, int from_at, const char *from, int to_at, const char *to, unsigned flags)
{
	return fails() ? -1 : __real_renameat2(from_at, from, to_at, to, flags);
}

WRAP(int, renameat, int from_at, const char *from, int to_at, const char *to)
{
	return fails() ? -1 : __real_renameat(from_at, from, to_at, to);
}

WRAP(int, unlinkat, int at, const char *path, int flags)
{
	return fails() ? -1 : __real_unlinkat(at, path, flags);
}

WRAP(int, statvfs64, const char *path, struct statvfs64 *fs)
{
	int code = __real_statvfs64(path, fs);
	if (code == 0 && getenv("FAULTY_ROOM"))
		fs->f_bavail = UINT64_C(1) << 40;
	return code;
}

WRAP(onehop_status, onehop_runtime_query, struct onehop_runtime *runtime,
     struct onehop_runtime_info *info)
{
	const char *bytes = getenv("FAULTY_MEMORY");
	onehop_status status = __real_onehop_runtime_query(runtime, info);
	if (!status && bytes)
		info->memory_bytes = strtoull(bytes, NULL, 10);
	return status;
}
