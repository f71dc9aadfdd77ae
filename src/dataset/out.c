/* Files in the making.
 *
 * The buffer begins at a multiple of the chunk wherever it can, so that all writes but the last are
 * whole and aligned. Two writers of one file would mix their bytes, and one could publish what the
 * other has not finished: so the partial file is locked, and the lock lasts until it is closed. A lock
 * that is had is worth something only if the name still leads to that file.
 *
 * What a writer that was killed left in the file is written over, and what is too much cut off at the
 * end. A file that was emptied instead would be flushed by ext4 as it is closed.
 */
#include "dataset/out.h"
#include "base/arith.h"
#include "base/sys.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>

static onehop_status
fail(struct oh_out *out, int code, const char *what, struct onehop_error *error)
{
	onehop_status status = oh_fail_errno(error, code, "%s: cannot %s", out->partial, what);
	out->failed = 1;
	if (code == ENOSPC || code == EDQUOT)
		oh_remedy(error, "free room on its file system");
	return status;
}

static onehop_status
busy(const struct oh_out *out, struct onehop_error *error)
{
	oh_fail(error, ONEHOP_BUSY, "%s: another writer writes it", out->partial);
	oh_remedy(error, "wait for it, end it, or write to another name");
	return ONEHOP_BUSY;
}

/* Takes the partial file for this writer alone. File systems without locks are taken as they are. */
static onehop_status
take(struct oh_out *out, struct onehop_error *error)
{
	struct stat ours, named;
	if (oh_sys.flock(out->fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
		return busy(out, error);
	out->exists = 1;
	if (oh_sys.fstat(out->fd, &ours) < 0)
		return fail(out, errno, "look at it", error);
	int moved = oh_sys.stat(out->partial, &named) < 0;
	if (moved && errno != ENOENT)
		return fail(out, errno, "look at it", error);
	out->exists = 0;
	if (moved || ours.st_ino != named.st_ino || ours.st_dev != named.st_dev)
		return busy(out, error);
	if (!S_ISREG(ours.st_mode)) {
		oh_fail(error, ONEHOP_INVALID_ARGUMENT, "%s: no regular file", out->partial);
		oh_remedy(error, "remove it");
		return ONEHOP_INVALID_ARGUMENT;
	}
	out->exists = 1;
	out->high = (uint64_t)ours.st_size;
	return ONEHOP_OK;
}

char *
oh_out_name(const char *text, uint64_t bytes, const char *end)
{
	char *name = malloc(bytes + strlen(end) + 1);
	if (name) {
		memcpy(name, text, bytes);
		strcpy(name + bytes, end);
	}
	return name;
}

onehop_status
oh_out_open(struct oh_out *out, const char *path, uint64_t slack, struct onehop_error *error)
{
	*out = (struct oh_out){.path = path, .fd = -1, .slack = slack};
	out->buffer = malloc(OH_OUT_CHUNK + slack);
	out->partial = oh_out_name(path, strlen(path), ".partial");
	if (!out->buffer || !out->partial)
		return oh_fail_no_memory(error, OH_OUT_CHUNK + slack, "a file that is written");
	out->fd = oh_sys.create(out->partial, O_WRONLY | O_CLOEXEC | O_NONBLOCK, 0666);
	if (out->fd < 0)
		return fail(out, errno, "make it", error);
	return take(out, error);
}

static onehop_status
write_front(struct oh_out *out, uint64_t bytes, struct onehop_error *error)
{
	char what[64];
	int code = oh_pwrite_full(out->fd, out->buffer, bytes, (off_t)out->begin);
	if (code) {
		snprintf(what, sizeof what, "write %llu bytes at %llu", (unsigned long long)bytes,
			 (unsigned long long)out->begin);
		return fail(out, code, what, error);
	}
	out->begin += bytes;
	out->high = oh_max(out->high, out->begin);
	out->used -= bytes;
	memmove(out->buffer, out->buffer + bytes, out->used);
	return ONEHOP_OK;
}

onehop_status
oh_out_room(struct oh_out *out, uint64_t least, unsigned char **room, uint64_t *bytes,
	    struct onehop_error *error)
{
	uint64_t chunk = OH_OUT_CHUNK - out->begin % OH_OUT_CHUNK;
	assert(least <= out->slack || least <= 1);
	while (out->used >= chunk) {
		onehop_status status = write_front(out, chunk, error);
		if (status)
			return status;
		chunk = OH_OUT_CHUNK;
	}
	*room = out->buffer + out->used;
	*bytes = oh_max(chunk - out->used, least);
	return ONEHOP_OK;
}

onehop_status
oh_out_put(struct oh_out *out, const void *data, uint64_t bytes, struct onehop_error *error)
{
	const unsigned char *from = data;
	while (bytes) {
		unsigned char *room;
		uint64_t some;
		onehop_status status = oh_out_room(out, 1, &room, &some, error);
		if (status)
			return status;
		some = oh_min(some, bytes);
		memcpy(room, from, some);
		oh_out_took(out, some);
		from += some;
		bytes -= some;
	}
	return ONEHOP_OK;
}

onehop_status
oh_out_zeros(struct oh_out *out, uint64_t bytes, struct onehop_error *error)
{
	static const unsigned char zeros[4096];
	onehop_status status = ONEHOP_OK;
	while (bytes && !status) {
		uint64_t some = oh_min(bytes, sizeof zeros);
		status = oh_out_put(out, zeros, some, error);
		bytes -= some;
	}
	return status;
}

void
oh_out_rewind(struct oh_out *out, uint64_t at)
{
	assert(at <= oh_out_at(out));
	if (at >= out->begin) {
		out->used = at - out->begin;
		return;
	}
	out->begin = at;
	out->used = 0;
}

onehop_status
oh_out_begin_with(struct oh_out *out, const void *data, uint64_t bytes,
		  struct onehop_error *error)
{
	int code = oh_pwrite_full(out->fd, data, bytes, 0);
	return code ? fail(out, code, "write its beginning", error) : ONEHOP_OK;
}

onehop_status
oh_out_flush(struct oh_out *out, int sync, struct onehop_error *error)
{
	while (out->used) {
		onehop_status status = write_front(out, oh_min(out->used, OH_OUT_CHUNK), error);
		if (status)
			return status;
	}
	if (out->high > out->begin && oh_sys.ftruncate(out->fd, (off_t)out->begin) < 0)
		return fail(out, errno, "cut it", error);
	out->high = out->begin;
	if (sync && oh_sys.fsync(out->fd) < 0)
		return fail(out, errno, "bring it to its disk", error);
	return ONEHOP_OK;
}

onehop_status
oh_out_publish(struct oh_out *out, struct onehop_error *error)
{
	if (oh_sys.rename(out->partial, out->path) < 0)
		return oh_fail_errno(error, errno, "%s: cannot rename it to its final name",
				     out->partial);
	out->exists = 0;
	return ONEHOP_OK;
}

onehop_status
oh_out_settle(struct oh_out *out, struct onehop_error *error)
{
	int fd = out->fd;
	out->fd = oh_sys.dup(fd);
	int code = out->fd < 0 ? errno : 0;
	if (oh_sys.close(fd) < 0 && errno != EINTR && !code)
		code = errno;
	return code ? fail(out, code, "close it", error) : ONEHOP_OK;
}

void
oh_out_drop(struct oh_out *out)
{
	if (out->exists)
		oh_sys.unlink(out->partial);
	if (out->fd >= 0)
		oh_sys.close(out->fd);
	free(out->buffer);
	free(out->partial);
	*out = (struct oh_out){.fd = -1};
}
