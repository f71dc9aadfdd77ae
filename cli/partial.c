/* A file under its temporary name.
 *
 * Behind the place of its bytes lies a record: which source it is a copy of (size, times) and, for
 * each piece that is written, the checksum. An interrupted copy goes on from there: a piece counts
 * only if what is read back has the checksum recorded, so that nothing has to be believed that a
 * crash may have lost, and the source is not read again for it. A record of another source, or no
 * record, means starting over. The record is cut off before the file gets its final name.
 *
 * The file is locked by whoever writes it, and the lock counts only while the temporary name still
 * leads to it: else the other process has given it its final name, and it must not be touched.
 */
#include "partial.h"
#include "crew.h"
#include "say.h"
#include "signals.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

#define PREFIX "."
#define SUFFIX ".onehop-part"

/* Which source it is a copy of. Its device and inode are left out: both may be other ones after a
 * network volume was mounted again. */
struct head {
	char magic[16];
	uint64_t bytes, piece_bytes;
	int64_t mtime_s, mtime_ns, ctime_s, ctime_ns;
	uint64_t crc; /* of all above */
};

static void
head_of(struct head *head, const struct stat *st)
{
	memset(head, 0, sizeof *head);
	memcpy(head->magic, "onehop part v1\n", sizeof head->magic);
	head->bytes = (uint64_t)st->st_size;
	head->piece_bytes = CREW_PIECE;
	head->mtime_s = st->st_mtim.tv_sec;
	head->mtime_ns = st->st_mtim.tv_nsec;
	head->ctime_s = st->st_ctim.tv_sec;
	head->ctime_ns = st->st_ctim.tv_nsec;
	head->crc = crc32_z(0, (const Bytef *)head, offsetof(struct head, crc));
}

/* The record begins on a page of its own. */
static uint64_t
head_at(const struct partial *partial)
{
	return (partial->bytes + 4095) & ~UINT64_C(4095);
}

static uint64_t
records_at(const struct partial *partial)
{
	return head_at(partial) + sizeof(struct head);
}

char *
partial_name(const char *name)
{
	const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name;
	size_t bytes = strlen(name) + sizeof PREFIX + sizeof SUFFIX;
	char *part = malloc(bytes);
	if (part)
		snprintf(part, bytes, "%.*s" PREFIX "%s" SUFFIX, (int)(base - name), name, base);
	return part;
}

static onehop_status
fail_part(const struct partial *partial, int code, const char *what, struct onehop_error *error)
{
	fail_path(error, code, what, partial->path);
	if (code == ENOSPC || code == EDQUOT)
		remedy(error, "free space there, or choose another folder");
	else if (code == EFBIG)
		remedy(error, "choose a folder whose file system takes files so large");
	return error->status;
}

/* ------------------------------------------------------------------------------------------- */
/* Opening */

static onehop_status
check_plain(const struct partial *partial, const struct stat *st, struct onehop_error *error)
{
	char shown[SHOWN];
	if (S_ISREG(st->st_mode) && st->st_nlink <= 1)
		return ONEHOP_OK;
	fail(error, ONEHOP_IO, 0, "the temporary name %s is taken by something else",
	     show(shown, partial->part_name, strlen(partial->part_name)));
	return remedy(error, "remove it, or choose another folder");
}

/* 1 if the descriptor is locked and the temporary name still leads to it; 0: try again; -1: the
 * lock is another process's. */
static int
lock(const struct partial *partial, const struct stat *st)
{
	struct stat named;
	/* A file system without locks has none to wait for. */
	if (flock(partial->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
		return -1;
	return fstatat(partial->folder, partial->part_name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
	       named.st_dev == st->st_dev && named.st_ino == st->st_ino;
}

static onehop_status
open_locked(struct partial *partial, mode_t mode, struct progress *progress,
	    struct onehop_error *error)
{
	const struct timespec tick = {0, 50000000};
	for (;;) {
		struct stat st;
		partial->fd = openat(partial->folder, partial->part_name,
				     O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
				     (mode & 0777) | 0600);
		if (partial->fd < 0)
			return fail_part(partial, errno, "make a temporary file for", error);
		onehop_status status = ONEHOP_OK;
		int locked = 0;
		if (fstat(partial->fd, &st) != 0)
			status = fail_part(partial, errno, "look at", error);
		else
			status = check_plain(partial, &st, error);
		if (!status)
			locked = lock(partial, &st);
		if (!status && locked == 1)
			return ONEHOP_OK;
		close(partial->fd);
		partial->fd = -1;
		if (!status && signals_caught())
			status = fail(error, ONEHOP_CANCELLED, 0, "cancelled");
		if (status)
			return status;
		if (locked < 0) {
			progress_note(progress, "waiting for another onehop that copies this file");
			nanosleep(&tick, NULL);
		}
	}
}

/* 1 if the file has a whole record of this source, which is then read. */
static int
read_record(struct partial *partial, const struct head *want)
{
	struct head head;
	size_t bytes = (size_t)partial->pieces * sizeof *partial->records;
	struct onehop_error ignored;
	int is_same = read_all(partial->fd, partial->path, head_at(partial), (char *)&head,
			       sizeof head, &ignored) == ONEHOP_OK &&
		      memcmp(&head, want, sizeof head) == 0 &&
		      read_all(partial->fd, partial->path, records_at(partial),
			       (char *)partial->records, bytes, &ignored) == ONEHOP_OK;
	if (!is_same)
		memset(partial->records, 0, bytes);
	return is_same;
}

static onehop_status
write_all(const struct partial *partial, uint64_t offset, const void *data, size_t bytes,
	  struct onehop_error *error)
{
	const char *from = data;
	while (bytes > 0) {
		ssize_t wrote = pwrite(partial->fd, from, bytes, (off_t)offset);
		if (wrote < 0 && errno == EINTR)
			continue;
		if (wrote <= 0)
			return fail_part(partial, wrote ? errno : ENOSPC, "write", error);
		from += wrote;
		offset += (uint64_t)wrote;
		bytes -= (size_t)wrote;
	}
	return ONEHOP_OK;
}

/* Room for all of it at once, so that a disk which is too full says so before the work. */
static onehop_status
reserve(const struct partial *partial, uint64_t bytes, struct onehop_error *error)
{
	int code;
	do
		code = fallocate(partial->fd, 0, 0, (off_t)bytes) == 0 ? 0 : errno;
	while (code == EINTR && !signals_caught());
	if (code == EINTR)
		return fail(error, ONEHOP_CANCELLED, 0, "cancelled");
	if (code == ENOSPC || code == EDQUOT || code == EFBIG || code == EIO)
		return fail_part(partial, code, "write", error);
	return ONEHOP_OK; /* others: the file system cannot reserve */
}

static onehop_status
start_over(struct partial *partial, const struct head *head, struct onehop_error *error)
{
	uint64_t all = records_at(partial) + partial->pieces * sizeof *partial->records;
	if (ftruncate(partial->fd, 0) != 0 || ftruncate(partial->fd, (off_t)all) != 0)
		return fail_part(partial, errno, "write", error);
	onehop_status status = reserve(partial, all, error);
	return status ? status : write_all(partial, head_at(partial), head, sizeof *head, error);
}

onehop_status
partial_open(struct partial *partial, int folder, const char *path,
	     const struct model_file *source, struct progress *progress,
	     struct onehop_error *error)
{
	struct head head;
	memset(partial, 0, sizeof *partial);
	partial->folder = folder;
	partial->name = source->name;
	partial->fd = -1;
	partial->bytes = (uint64_t)source->st.st_size;
	partial->pieces = crew_pieces(partial->bytes);
	partial->path = strdup(path);
	partial->part_name = partial_name(source->name);
	partial->records = calloc(partial->pieces + 1, sizeof *partial->records);
	onehop_status status = ONEHOP_OK;
	if (!partial->path || !partial->part_name || !partial->records)
		status = fail(error, ONEHOP_NO_MEMORY, 0, "no memory for a temporary file");
	if (!status)
		status = open_locked(partial, source->st.st_mode, progress, error);
	head_of(&head, &source->st);
	if (!status && !read_record(partial, &head))
		status = start_over(partial, &head, error);
	for (uint64_t i = 0; i < partial->pieces && !status; i++) {
		uint32_t crc;
		partial->resumed |= partial_has(partial, i, &crc);
	}
	if (status)
		partial_close(partial, 0);
	return status;
}

/* ------------------------------------------------------------------------------------------- */

int
partial_has(const struct partial *partial, uint64_t piece, uint32_t *crc)
{
	*crc = partial->records[piece].crc;
	return partial->records[piece].inverted == ~*crc;
}

onehop_status
partial_write(struct partial *partial, uint64_t piece, const char *data, size_t bytes,
	      uint32_t crc, struct onehop_error *error)
{
	struct record *record = &partial->records[piece];
	onehop_status status = write_all(partial, piece * CREW_PIECE, data, bytes, error);
	if (status)
		return status;
	record->crc = crc;
	record->inverted = ~crc;
	return write_all(partial, records_at(partial) + piece * sizeof *record, record,
			 sizeof *record, error);
}

onehop_status
partial_sync(struct partial *partial, int forget, struct onehop_error *error)
{
	if (fdatasync(partial->fd) != 0)
		return fail_part(partial, errno, "write", error);
	if (forget)
		posix_fadvise(partial->fd, 0, 0, POSIX_FADV_DONTNEED);
	return ONEHOP_OK;
}

static void
copy_attributes(const struct partial *partial, const struct stat *source)
{
	struct stat st;
	struct timespec times[2] = {source->st_atim, source->st_mtim};
	/* As the umask left it, and no more than the source has. Both are refused by some file
	 * systems, which then go without. */
	if (fstat(partial->fd, &st) == 0 && (st.st_mode & ~source->st_mode & 0777) != 0)
		(void)!fchmod(partial->fd, st.st_mode & source->st_mode & 0777);
	futimens(partial->fd, times);
}

static int
rename_part(const struct partial *partial, int replace)
{
	if (!replace && renameat2(partial->folder, partial->part_name, partial->folder,
				  partial->name, RENAME_NOREPLACE) == 0)
		return 0;
	if (!replace && errno != EINVAL && errno != ENOSYS)
		return -1;
	return renameat(partial->folder, partial->part_name, partial->folder, partial->name);
}

onehop_status
sync_folder_of(int folder, const char *name, struct onehop_error *error)
{
	const char *slash = strrchr(name, '/');
	char *above = slash ? strndup(name, (size_t)(slash + 1 - name)) : strdup(".");
	if (!above)
		return fail(error, ONEHOP_NO_MEMORY, 0, "no memory for a path");
	int fd = openat(folder, above, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int code = fd < 0 ? errno : 0;
	free(above);
	/* EINVAL: a file system whose folders cannot be synced. */
	if (!code && fsync(fd) != 0 && errno != EINVAL)
		code = errno;
	if (fd >= 0)
		close(fd);
	return code ? fail_path(error, code, "write the folder of", name) : ONEHOP_OK;
}

onehop_status
partial_finish(struct partial *partial, const struct model_file *source, int replace,
	       struct onehop_error *error)
{
	if (ftruncate(partial->fd, (off_t)partial->bytes) != 0)
		return fail_part(partial, errno, "write", error);
	copy_attributes(partial, &source->st);
	if (fsync(partial->fd) != 0)
		return fail_part(partial, errno, "write", error);
	if (rename_part(partial, replace) != 0)
		return fail_part(partial, errno, "give its name to", error);
	free(partial->part_name);
	partial->part_name = NULL;
	return sync_folder_of(partial->folder, partial->name, error);
}

void
partial_close(struct partial *partial, int keep)
{
	uint64_t written = 0;
	uint32_t crc;
	for (uint64_t i = 0; partial->records && i < partial->pieces; i++)
		written += (uint64_t)partial_has(partial, i, &crc);
	if (partial->fd >= 0 && partial->part_name && (!keep || !written))
		unlinkat(partial->folder, partial->part_name, 0);
	if (partial->fd >= 0)
		close(partial->fd);
	free(partial->part_name);
	free(partial->path);
	free(partial->records);
	memset(partial, 0, sizeof *partial);
	partial->fd = -1;
}
