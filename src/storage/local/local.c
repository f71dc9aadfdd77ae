/* Local files by pread: the back end that everything can fall back on.
 *
 * Direct reads go through a second descriptor, opened with O_DIRECT when first asked for, in whole
 * pages.
 *
 * A slice is read by plain preads into its memory. Rows with small gaps between them are read with
 * these, many a system call, since a call costs more than the bytes in between: short ones a chunk at
 * a time, through a buffer on the stack, from which they are packed; others straight to where they
 * go, the gaps to a place that stays in the core's cache. The file's identity is taken at open and
 * compared by unchanged(). No map is made, so a file that shrinks gives a short read and never a
 * SIGBUS.
 */
#include "storage/ops.h"

#include "base/arith.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Rows that begin no more than this apart are short. */
#define SHORT_STRIDE 6144u
#define CHUNK_BYTES 65536u
/* Larger gaps are skipped. */
#define GAP_BYTES 16384u
/* Rows of one call. */
#define CALL_ROWS 128u

/* O_DIRECT reads begin and end on these: no device asks for more. */
#define PAGE 4096u

struct oh_storage_file {
	int fd;
	int direct_fd; /* -1: not opened, or refused */
	struct stat identity;
	char path[];
};

static const char *
kind_of(mode_t mode)
{
	if (S_ISDIR(mode))
		return "a folder";
	if (S_ISFIFO(mode))
		return "a FIFO (pipe)";
	if (S_ISSOCK(mode))
		return "a socket";
	if (S_ISCHR(mode) || S_ISBLK(mode))
		return "a device";
	return "something else";
}

static onehop_status
local_open(const char *path, struct oh_storage_file **out, struct onehop_error *error)
{
	onehop_status status;
	size_t length = strlen(path);
	struct oh_storage_file *file = malloc(sizeof *file + length + 1);
	if (!file)
		return oh_fail_no_memory(error, sizeof *file + length, "a file");
	memcpy(file->path, path, length + 1);
	file->direct_fd = -1;
	/* O_NONBLOCK: opening a FIFO must not wait for a writer. */
	file->fd = oh_sys.open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (file->fd < 0) {
		status = oh_fail_errno(error, errno, "%s: cannot open it", path);
		if (errno == EMFILE || errno == ENFILE)
			oh_remedy(error, "raise the limit on open files (ulimit -n)");
		goto free_file;
	}
	if (oh_sys.fstat(file->fd, &file->identity) < 0) {
		status = oh_fail_errno(error, errno, "%s: cannot look at it", path);
		goto close_fd;
	}
	if (!S_ISREG(file->identity.st_mode)) {
		status = oh_fail(error, ONEHOP_IO, "%s: not a regular file but %s", path,
				 kind_of(file->identity.st_mode));
		oh_remedy(error, "give a file that can be read at any offset");
		goto close_fd;
	}
	*out = file;
	return ONEHOP_OK;
close_fd:
	oh_sys.close(file->fd);
free_file:
	free(file);
	return status;
}

static void
local_close(struct oh_storage_file *file)
{
	if (file->direct_fd >= 0)
		oh_sys.close(file->direct_fd);
	oh_sys.close(file->fd);
	free(file);
}

static void
local_facts(const struct oh_storage_file *file, struct oh_storage_facts *facts)
{
	facts->bytes = (uint64_t)file->identity.st_size;
	facts->preferred_bytes = 512u << 10;
	facts->alignment = 1;
	facts->row_gap = GAP_BYTES;
}

/* Opened through /proc, it is the same file whatever its path names by now; where there is no /proc,
 * the identity is compared. */
static int
open_direct(const struct oh_storage_file *file)
{
	char link[64];
	struct stat now;
	snprintf(link, sizeof link, "/proc/self/fd/%d", file->fd);
	int fd = oh_sys.open(link, O_RDONLY | O_CLOEXEC | O_DIRECT);
	if (fd < 0 && errno == ENOENT)
		fd = oh_sys.open(file->path, O_RDONLY | O_CLOEXEC | O_DIRECT | O_NONBLOCK);
	if (fd < 0)
		return -1;
	if (oh_sys.fstat(fd, &now) == 0 && now.st_ino == file->identity.st_ino &&
	    now.st_dev == file->identity.st_dev)
		return fd;
	oh_sys.close(fd);
	return -1;
}

static uint32_t
local_direct(struct oh_storage_file *file)
{
	if (file->direct_fd < 0)
		file->direct_fd = open_direct(file);
	return file->direct_fd < 0 ? 0 : PAGE;
}

static onehop_status
local_map(const struct oh_storage_file *file, uint64_t offset, uint64_t bytes, void **map,
	  struct onehop_error *error)
{
	void *at = oh_sys.mmap(NULL, bytes, PROT_READ, MAP_SHARED, file->fd, (off_t)offset);
	if (at == MAP_FAILED)
		return oh_fail_errno(error, errno, "%s: cannot map %llu bytes at offset %llu",
				     file->path, (unsigned long long)bytes,
				     (unsigned long long)offset);
	/* A child has no use for it. */
	oh_sys.madvise(at, bytes, MADV_DONTFORK);
	*map = at;
	return ONEHOP_OK;
}

static void
local_unmap(const struct oh_storage_file *file, void *map, uint64_t bytes)
{
	(void)file;
	oh_sys.munmap(map, bytes);
}

static int
local_descriptor(const struct oh_storage_file *file)
{
	return file->fd;
}

static int
same_time(struct timespec a, struct timespec b)
{
	return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

static onehop_status
local_unchanged(const struct oh_storage_file *file, struct onehop_error *error)
{
	const struct stat *was = &file->identity;
	struct stat now;
	onehop_status status;
	if (oh_sys.fstat(file->fd, &now) < 0)
		return oh_fail_errno(error, errno, "%s: cannot look at it again", file->path);
	if (now.st_size != was->st_size)
		status = oh_fail(error, ONEHOP_FILE_CHANGED,
				 "%s: changed while it was read: it had %lld bytes and has %lld",
				 file->path, (long long)was->st_size, (long long)now.st_size);
	else if (now.st_ino != was->st_ino || now.st_dev != was->st_dev ||
		 !same_time(now.st_mtim, was->st_mtim) || !same_time(now.st_ctim, was->st_ctim))
		status = oh_fail(error, ONEHOP_FILE_CHANGED,
				 "%s: changed while it was read: it was written, replaced or removed",
				 file->path);
	else
		return ONEHOP_OK;
	oh_remedy(error, "load it again when nothing writes to it");
	return status;
}

/* Reads bytes at offset; adds to the result. Returns 0 when the slice cannot go on. */
static int
read_plain(const struct oh_slice *slice, void *memory, uint64_t bytes, uint64_t offset,
	   struct oh_slice_result *result)
{
	int failed;
	ssize_t got = oh_pread_full(slice->file->fd, memory, bytes, (off_t)offset, &failed);
	if (got > 0)
		result->read_bytes += (uint64_t)got;
	if (failed) {
		result->status = ONEHOP_IO;
		result->os_errno = failed;
		return 0;
	}
	result->bytes += (uint64_t)got;
	return (uint64_t)got == bytes;
}

/* As many rows as fit the chunk, with the gaps between them. Returns 0 when it cannot go on. */
static int
read_chunk(const struct oh_slice *slice, uint64_t row, uint64_t rows,
	   struct oh_slice_result *result)
{
	uint8_t chunk[CHUNK_BYTES];
	uint64_t span = (rows - 1) * slice->row_stride + slice->row_bytes;
	struct oh_slice_result whole = {0};
	int full = read_plain(slice, chunk, span, slice->offset + row * slice->row_stride, &whole);
	result->read_bytes += whole.read_bytes;
	result->status = whole.status;
	result->os_errno = whole.os_errno;
	for (uint64_t i = 0; i < rows; i++) {
		uint64_t at = i * slice->row_stride;
		if (whole.bytes <= at)
			return 0;
		uint64_t bytes = oh_min(slice->row_bytes, whole.bytes - at);
		memcpy((uint8_t *)slice->memory + (row + i) * slice->row_bytes, chunk + at, bytes);
		result->bytes += bytes;
		if (bytes < slice->row_bytes)
			return 0;
	}
	return full;
}

/* Up to CALL_ROWS rows with the gaps between them, by one call; gives how many are whole. Where the call
 * fails or falls short, whoever reads the next row by itself finds out why. */
static uint64_t
read_scattered(const struct oh_slice *slice, uint64_t row, uint64_t rows,
	       struct oh_slice_result *result)
{
	uint8_t gap[GAP_BYTES];
	struct iovec pieces[2 * CALL_ROWS];
	uint8_t *to = (uint8_t *)slice->memory + row * slice->row_bytes;
	for (uint64_t i = 0; i < rows; i++) {
		pieces[2 * i] = (struct iovec){to + i * slice->row_bytes, slice->row_bytes};
		pieces[2 * i + 1] =
			(struct iovec){gap, slice->row_stride - slice->row_bytes};
	}
	ssize_t got = oh_sys.preadv(slice->file->fd, pieces, (int)(2 * rows - 1),
				    (off_t)(slice->offset + row * slice->row_stride));
	if (got <= 0)
		return 0;
	uint64_t whole = (uint64_t)got / slice->row_stride;
	whole += (uint64_t)got % slice->row_stride >= slice->row_bytes;
	result->read_bytes += (uint64_t)got;
	result->bytes += whole * slice->row_bytes;
	return whole;
}

static void
read_short_rows(const struct oh_slice *slice, struct oh_slice_result *result)
{
	uint64_t fit = (CHUNK_BYTES - slice->row_bytes) / slice->row_stride + 1, rows;
	for (uint64_t row = 0; row < slice->rows; row += rows) {
		rows = oh_min(fit, slice->rows - row);
		if (!read_chunk(slice, row, rows, result))
			return;
	}
}

static void
read_rows(const struct oh_slice *slice, struct oh_slice_result *result)
{
	uint64_t most = slice->row_stride - slice->row_bytes <= GAP_BYTES ? CALL_ROWS : 1;
	for (uint64_t row = 0; row < slice->rows;) {
		uint64_t rows = oh_min(most, slice->rows - row), whole = 0;
		if (rows > 1)
			whole = read_scattered(slice, row, rows, result);
		row += whole;
		if (whole == rows)
			continue;
		uint8_t *to = (uint8_t *)slice->memory + row * slice->row_bytes;
		if (!read_plain(slice, to, slice->row_bytes,
				slice->offset + row * slice->row_stride, result))
			return;
		row++;
	}
}

/* The units that the slice lies in. The last read of a file ends where the file does. A read that
 * falls short within a unit cannot be continued past the page cache: the rest comes through it. */
static void
read_direct(const struct oh_slice *slice, struct oh_slice_result *result)
{
	uint64_t lead = slice->offset % PAGE, span = lead + slice->row_bytes, done = 0;
	uint64_t whole = (span + PAGE - 1) / PAGE * PAGE;
	uint8_t *memory = (uint8_t *)slice->memory - lead;
	ssize_t got = 0;
	while (done < span && done % PAGE == 0) {
		got = oh_sys.pread(slice->file->direct_fd, memory + done, whole - done,
				   (off_t)(slice->offset - lead + done));
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			break;
		done += (uint64_t)got;
	}
	int failed = got < 0 ? errno : 0;
	result->read_bytes += done;
	if (done > lead)
		result->bytes = oh_min(done - lead, slice->row_bytes);
	if (failed) {
		result->status = failed == EINVAL && !done ? ONEHOP_NO_ROUTE : ONEHOP_IO;
		result->os_errno = failed;
	} else if (done < span) {
		uint64_t have = result->bytes;
		read_plain(slice, (uint8_t *)slice->memory + have, slice->row_bytes - have,
			   slice->offset + have, result);
	}
}

/* Only advice: pages that are dirty or in use stay. */
static void
drop_pages(const struct oh_slice *slice)
{
	uint64_t span = (slice->rows - 1) * slice->row_stride + slice->row_bytes;
	oh_sys.posix_fadvise(slice->file->fd, (off_t)slice->offset, (off_t)span, POSIX_FADV_DONTNEED);
}

static void
local_read(struct oh_slice_source *source)
{
	struct oh_slice slice;
	while (source->take(source, &slice)) {
		struct oh_slice_result result = {0};
		if (slice.direct)
			read_direct(&slice, &result);
		else if (slice.rows == 1)
			read_plain(&slice, slice.memory, slice.row_bytes, slice.offset, &result);
		else if (slice.row_stride <= SHORT_STRIDE)
			read_short_rows(&slice, &result);
		else
			read_rows(&slice, &result);
		if (slice.drop && !slice.direct)
			drop_pages(&slice);
		source->give(source, &slice, &result);
	}
}

const struct oh_storage_ops oh_storage_local = {
	.name = "local",
	.open = local_open,
	.close = local_close,
	.facts = local_facts,
	.direct = local_direct,
	.map = local_map,
	.unmap = local_unmap,
	.descriptor = local_descriptor,
	.unchanged = local_unchanged,
	.read = local_read,
};
