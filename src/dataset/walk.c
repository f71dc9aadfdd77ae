/* Walking a tar file.
 *
 * One window of the file is in memory. Where members are small it holds many headers, 1 MiB at a
 * read; where the last payload that was skipped is large, the next read is small, so that of a
 * large archive little more than its headers is read. The window grows for a large record of the
 * archive, to 4 MiB at most. Nothing is mapped: a file that shrinks is an error and no SIGBUS.
 */
#include "dataset/walk.h"
#include "base/arith.h"
#include "base/crc32c.h"
#include "format/fail.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW (1u << 20)
/* What is read behind a skip of more than this: reading on would cost more than another call. */
#define FAR  (256u << 10)
#define NEAR (16u << 10)

static onehop_status
check_kind(const struct oh_walk *walk, struct onehop_error *error)
{
	if (S_ISREG(walk->opened.st_mode))
		return ONEHOP_OK;
	oh_refuse(error, ONEHOP_INVALID_ARGUMENT, walk->path, "%s, not a tar file",
		  S_ISDIR(walk->opened.st_mode) ? "a folder" : "a pipe or device");
	oh_remedy(error, "give a regular file");
	return ONEHOP_INVALID_ARGUMENT;
}

onehop_status
oh_walk_open(struct oh_walk *walk, const char *path, struct onehop_error *error)
{
	onehop_status status = ONEHOP_OK;
	memset(walk, 0, sizeof *walk);
	walk->path = path;
	/* O_NONBLOCK: opening a FIFO must not wait for a writer. */
	walk->fd = oh_sys.open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (walk->fd < 0)
		return oh_fail_errno(error, errno, "%s: cannot open it", path);
	if (oh_sys.fstat(walk->fd, &walk->opened) < 0)
		status = oh_fail_errno(error, errno, "%s: cannot look at it", path);
	else
		status = check_kind(walk, error);
	walk->file_bytes = (uint64_t)walk->opened.st_size;
	if (status)
		oh_walk_close(walk);
	return status;
}

void
oh_walk_close(struct oh_walk *walk)
{
	oh_tar_free(&walk->tar);
	free(walk->window);
	walk->window = NULL;
	oh_sys.close(walk->fd);
}

void
oh_walk_begin(struct oh_walk *walk, uint64_t zeros_end, int all)
{
	oh_tar_init(&walk->tar, walk->path, walk->file_bytes, zeros_end);
	walk->asked = 0;
	/* Only advice. Without the payloads the reads themselves are as long as is good. */
	oh_sys.posix_fadvise(walk->fd, 0, 0, all ? POSIX_FADV_SEQUENTIAL : POSIX_FADV_RANDOM);
}

static onehop_status
refuse_changed(const struct oh_walk *walk, struct onehop_error *error)
{
	oh_refuse(error, ONEHOP_FILE_CHANGED, walk->path, "it changed while it was read");
	oh_remedy(error, "try again when nothing writes to it");
	return ONEHOP_FILE_CHANGED;
}

static onehop_status
fill(struct oh_walk *walk, uint64_t offset, uint64_t bytes, struct onehop_error *error)
{
	int failed;
	walk->have = 0;
	if (bytes > walk->capacity) {
		uint8_t *window = realloc(walk->window, bytes);
		if (!window)
			return oh_fail_no_memory(error, bytes, "a part of a tar file");
		walk->window = window;
		walk->capacity = bytes;
	}
	ssize_t got = oh_pread_full(walk->fd, walk->window, bytes, (off_t)offset, &failed);
	if (failed)
		return oh_fail_errno(error, failed, "%s: cannot read at byte %llu", walk->path,
				     (unsigned long long)offset);
	if ((uint64_t)got < bytes)
		return refuse_changed(walk, error);
	walk->at = offset;
	walk->have = bytes;
	return ONEHOP_OK;
}

onehop_status
oh_walk_bytes(struct oh_walk *walk, uint64_t offset, uint64_t bytes, const uint8_t **out,
	      struct onehop_error *error)
{
	uint64_t skipped = offset - oh_min(walk->asked, offset);
	onehop_status status = ONEHOP_OK;
	walk->asked = offset + bytes;
	if (offset < walk->at || offset + bytes > walk->at + walk->have) {
		uint64_t want = oh_max(bytes, skipped > FAR ? NEAR : WINDOW);
		status = fill(walk, offset, oh_min(want, walk->file_bytes - offset), error);
	}
	if (!status)
		*out = walk->window + (offset - walk->at);
	return status;
}

onehop_status
oh_walk_next(struct oh_walk *walk, enum oh_tar_event *event, struct onehop_error *error)
{
	struct oh_tar *tar = &walk->tar;
	onehop_status status = ONEHOP_OK;
	do {
		static const uint8_t none[1];
		const uint8_t *bytes = none;
		if (tar->need)
			status = oh_walk_bytes(walk, tar->at, tar->need, &bytes, error);
		if (!status)
			status = oh_tar_next(tar, bytes, event, error);
	} while (!status && *event == OH_TAR_MORE);
	return status;
}

onehop_status
oh_walk_crc32c(struct oh_walk *walk, uint64_t offset, uint64_t bytes, uint32_t *crc,
	       struct onehop_error *error)
{
	uint32_t sum = 0;
	while (bytes) {
		const uint8_t *at;
		onehop_status status = oh_walk_bytes(walk, offset, 1, &at, error);
		if (status)
			return status;
		uint64_t now = oh_min(bytes, walk->at + walk->have - offset);
		sum = oh_crc32c(sum, at, now);
		offset += now;
		bytes -= now;
		walk->asked = offset;
	}
	*crc = sum;
	return ONEHOP_OK;
}

onehop_status
oh_walk_check(struct oh_walk *walk, struct onehop_error *error)
{
	struct stat now;
	if (oh_sys.fstat(walk->fd, &now) < 0)
		return oh_fail_errno(error, errno, "%s: cannot look at it", walk->path);
	if (now.st_size != walk->opened.st_size ||
	    now.st_mtim.tv_sec != walk->opened.st_mtim.tv_sec ||
	    now.st_mtim.tv_nsec != walk->opened.st_mtim.tv_nsec)
		return refuse_changed(walk, error);
	return ONEHOP_OK;
}
