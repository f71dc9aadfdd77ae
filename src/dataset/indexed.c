/* A shard's index where it lies.
 *
 * An index costs its shard at least as many bytes as it has itself, since each of its entries
 * stands for a header: so what a file claims is held against the shard before memory is asked for.
 */
#include "dataset/indexed.h"
#include "base/arith.h"
#include "format/fail.h"
#include "format/names.h"
#include "format/shard_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char anew[] = "make the index again: onehop index --replace";

/* "PATH.onehop", and what more a name has; NULL: no memory. */
static char *
side_name(const char *path, const char *more)
{
	size_t bytes = strlen(path) + sizeof ".onehop" + strlen(more);
	char *name = malloc(bytes);
	if (name)
		snprintf(name, bytes, "%s.onehop%s", path, more);
	return name;
}

/* ------------------------------------------------------------------------------------------- */
/* Reading */

onehop_status
oh_trailer_find(struct oh_walk *walk, struct oh_trailer *trailer, struct onehop_error *error)
{
	struct oh_shard_trailer found;
	const uint8_t *bytes;
	int is_there;
	*trailer = (struct oh_trailer){.begin = walk->file_bytes};
	if (walk->file_bytes % OH_TAR_BLOCK || walk->file_bytes == 0)
		return ONEHOP_OK;
	onehop_status status = oh_walk_bytes(walk, walk->file_bytes - sizeof found, sizeof found,
					     &bytes, error);
	if (status)
		return status;
	memcpy(&found, bytes, sizeof found);
	status = oh_shard_trailer_judge(&found, walk->file_bytes, walk->path, &is_there, error);
	if (is_there > 0)
		*trailer = (struct oh_trailer){found.index_offset, found.index_bytes,
					       found.tar_end, found.index_crc32c, 1, 0};
	trailer->is_damaged = is_there < 0;
	return status;
}

/* Takes indexed->name, whatever comes of it. */
static onehop_status
read_index(int fd, uint64_t offset, uint64_t most, struct oh_indexed *indexed,
	   struct onehop_error *error)
{
	int failed;
	onehop_status status = ONEHOP_OK;
	if (indexed->size > most) {
		status = oh_refuse(error, ONEHOP_MALFORMED, indexed->name,
				   "an index of %llu bytes is too large for its shard",
				   (unsigned long long)indexed->size);
		oh_remedy(error, anew);
		goto out;
	}
	indexed->bytes = malloc(indexed->size + 1);
	if (!indexed->bytes) {
		status = oh_fail_no_memory(error, indexed->size, "an index");
		goto out;
	}
	ssize_t got = oh_pread_full(fd, indexed->bytes, indexed->size, (off_t)offset, &failed);
	if (failed)
		status = oh_fail_errno(error, failed, "%s: cannot read the index", indexed->name);
	else if ((uint64_t)got < indexed->size)
		status = oh_refuse(error, ONEHOP_FILE_CHANGED, indexed->name,
				   "it changed while it was read");
	else
		status = oh_shard_open(indexed->bytes, indexed->size, indexed->name,
				       &indexed->view, error);
out:
	if (status)
		oh_indexed_free(indexed);
	return status;
}

/* The most that an index of this shard can have. */
static uint64_t
most_bytes(const struct oh_walk *walk)
{
	return oh_max(walk->file_bytes, 64u << 10);
}

onehop_status
oh_indexed_side(struct oh_walk *walk, struct oh_indexed *indexed, struct onehop_error *error)
{
	struct stat st;
	onehop_status status;
	memset(indexed, 0, sizeof *indexed);
	indexed->name = side_name(walk->path, "");
	if (!indexed->name)
		return oh_fail_no_memory(error, strlen(walk->path), "a name");
	int fd = oh_sys.open(indexed->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 || oh_sys.fstat(fd, &st) < 0) {
		status = oh_fail_errno(error, errno, "%s: cannot open the index", indexed->name);
		if (status == ONEHOP_NOT_FOUND)
			oh_remedy(error, "make one: onehop index");
		goto drop;
	}
	if (!S_ISREG(st.st_mode)) {
		status = oh_refuse(error, ONEHOP_MALFORMED, indexed->name, "no regular file");
		oh_remedy(error, "remove it, and %s", anew);
		goto drop;
	}
	indexed->size = (uint64_t)st.st_size;
	status = read_index(fd, 0, most_bytes(walk), indexed, error);
	oh_sys.close(fd);
	return status;
drop:
	oh_indexed_free(indexed);
	if (fd >= 0)
		oh_sys.close(fd);
	return status;
}

onehop_status
oh_indexed_trailer(struct oh_walk *walk, const struct oh_trailer *trailer,
		   struct oh_indexed *indexed, struct onehop_error *error)
{
	memset(indexed, 0, sizeof *indexed);
	if (!trailer->is_there) {
		oh_refuse(error, trailer->is_damaged ? ONEHOP_MALFORMED : ONEHOP_NOT_FOUND,
			  walk->path,
			  trailer->is_damaged ? "its trailer, the last 64 bytes, is damaged"
					      : "it has no index, neither in a file beside it nor "
						"in a trailer");
		oh_remedy(error, trailer->is_damaged ? "get a good copy of the shard"
						     : "make one: onehop index");
		return trailer->is_damaged ? ONEHOP_MALFORMED : ONEHOP_NOT_FOUND;
	}
	indexed->name = strdup(walk->path);
	if (!indexed->name)
		return oh_fail_no_memory(error, strlen(walk->path), "a name");
	indexed->size = trailer->bytes;
	onehop_status status =
		read_index(walk->fd, trailer->begin, most_bytes(walk), indexed, error);
	if (status || indexed->view.header_crc32c == trailer->index_crc32c)
		return status;
	oh_indexed_free(indexed);
	oh_refuse(error, ONEHOP_MALFORMED, walk->path,
		  "its trailer is of another index than it has");
	oh_remedy(error, "get a good copy of the shard");
	return ONEHOP_MALFORMED;
}

void
oh_indexed_free(struct oh_indexed *indexed)
{
	free(indexed->name);
	free(indexed->bytes);
	memset(indexed, 0, sizeof *indexed);
}

/* ------------------------------------------------------------------------------------------- */
/* Judging */

onehop_status
oh_indexed_fits(struct oh_walk *walk, const struct oh_indexed *indexed, struct onehop_error *error)
{
	const struct oh_shard_view *view = &indexed->view;
	struct oh_shard_seen seen = {.path = walk->path, .bytes = walk->file_bytes};
	onehop_status status = ONEHOP_OK;
	if (seen.bytes == view->shard_bytes && seen.bytes - view->tar_end >= OH_SHARD_END_BYTES)
		status = oh_walk_bytes(walk, view->tar_end, OH_SHARD_END_BYTES, &seen.end, error);
	return status ? status : oh_shard_fits(view, &seen, error);
}

/* tar -r and its like write where the archive ended and leave the trailer as it is. */
static onehop_status
check_trailer(struct oh_walk *walk, const struct oh_trailer *trailer, struct onehop_error *error)
{
	uint64_t end = walk->tar.end_at;
	if (trailer->tar_end == end && trailer->begin >= end + 2 * OH_TAR_BLOCK)
		return ONEHOP_OK;
	oh_refuse(error, ONEHOP_MISMATCH, walk->path,
		  "it was changed after it was packed: the archive ends at byte %llu, and its "
		  "trailer, from byte %llu on, says at byte %llu",
		  (unsigned long long)end, (unsigned long long)trailer->begin,
		  (unsigned long long)trailer->tar_end);
	oh_remedy(error, "pack it anew");
	return ONEHOP_MISMATCH;
}

onehop_status
oh_indexed_counts(struct oh_walk *walk, const struct oh_trailer *trailer,
		  const struct oh_indexed *indexed, uint64_t members, struct onehop_error *error)
{
	const struct oh_shard_view *view = &indexed->view;
	if (trailer->is_there) {
		onehop_status status = check_trailer(walk, trailer, error);
		if (status)
			return status;
	}
	if (view->shard_bytes != walk->file_bytes)
		return oh_shard_is_other(walk->path, "the size of the shard", walk->file_bytes,
					 view->shard_bytes, error);
	if (view->tar_end != walk->tar.end_at)
		return oh_shard_is_other(walk->path, "the end of the archive", walk->tar.end_at,
					 view->tar_end, error);
	if (view->members != members)
		return oh_shard_is_other(walk->path, "the number of files in it", members,
					 view->members, error);
	return ONEHOP_OK;
}

static struct oh_name
key_of(const uint8_t *text, const void *items, uint64_t index)
{
	const struct oh_shard_sample *sample = (const struct oh_shard_sample *)items + index;
	return (struct oh_name){(uint32_t)sample[0].key, (uint32_t)(sample[1].key - sample[0].key)};
}

static onehop_status
refuse_twice(const struct oh_shard_view *view, uint64_t first, uint64_t second, const char *name,
	     struct onehop_error *error)
{
	const struct oh_shard_sample *a = &view->sample[first], *b = &view->sample[second];
	char shown[OH_SHOWN];
	oh_refuse(error, ONEHOP_MALFORMED, name,
		  "sample %s is there twice, its files begin at byte %llu and, after those of "
		  "other samples, again at byte %llu: it would become two samples",
		  oh_show(shown, view->keys + a->key, a[1].key - a->key),
		  (unsigned long long)view->part[a->first_part].offset - OH_TAR_BLOCK,
		  (unsigned long long)view->part[b->first_part].offset - OH_TAR_BLOCK);
	oh_remedy(error,
		  "pack it anew with the files of each sample side by side: tar --sort=name");
	return ONEHOP_MALFORMED;
}

onehop_status
oh_indexed_keys(const struct oh_shard_view *view, const char *name, struct onehop_error *error)
{
	struct oh_names names;
	onehop_status status;
	if (view->key_bytes > UINT32_MAX || view->samples >= UINT32_MAX - 2) {
		oh_refuse(error, ONEHOP_LIMIT, name, "keys of more than 4 GiB");
		oh_remedy(error, "split the shard");
		return ONEHOP_LIMIT;
	}
	status = oh_names_init(&names, (const uint8_t *)view->keys, view->sample, key_of,
			       view->samples, error);
	for (uint64_t i = 0; !status && i < view->samples; i++) {
		uint64_t first = oh_names_add(&names, i);
		if (first != OH_NAMES_NEW)
			status = refuse_twice(view, first, i, name, error);
	}
	oh_names_free(&names);
	return status;
}

onehop_status
oh_indexed_agree(struct oh_walk *walk, const struct oh_trailer *trailer,
		 const struct oh_indexed *indexed, struct onehop_error *error)
{
	struct oh_shard_seen seen = {.path = walk->path, .has_trailer = trailer->is_there,
				     .tar_end = trailer->tar_end,
				     .index_crc32c = trailer->index_crc32c};
	struct oh_indexed other;
	if (trailer->is_there) {
		onehop_status status = oh_indexed_trailer(walk, trailer, &other, error);
		if (status)
			return status;
		oh_indexed_free(&other);
	}
	return oh_shard_agrees(&indexed->view, &seen, error);
}

void
oh_indexed_info(const struct oh_indexed *indexed, struct onehop_shard_info *info)
{
	const struct oh_shard_view *view = &indexed->view;
	memset(info, 0, sizeof *info);
	info->has_trailer = (view->flags & OH_SHARD_TRAILER) != 0;
	info->samples = view->samples;
	info->members = view->members;
	info->shard_bytes = view->shard_bytes;
	info->index_bytes = indexed->size;
	info->skipped = view->members - oh_min(view->members, view->parts);
	for (uint64_t i = 0; i < view->parts; i++)
		info->payload_bytes += view->part[i].bytes;
}

/* ------------------------------------------------------------------------------------------- */
/* Publishing */

static onehop_status
write_partial(const char *partial, const void *bytes, uint64_t size, struct onehop_error *error)
{
	int fd = oh_sys.create(partial, O_WRONLY | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0)
		return oh_fail_errno(error, errno, "%s: cannot make it", partial);
	int failed = oh_pwrite_full(fd, bytes, size, 0);
	if (!failed && oh_sys.fsync(fd) < 0)
		failed = errno;
	if (oh_sys.close(fd) < 0 && !failed)
		failed = errno;
	if (!failed)
		return ONEHOP_OK;
	onehop_status status = oh_fail_errno(error, failed, "%s: cannot write it", partial);
	if (failed == ENOSPC || failed == EDQUOT)
		oh_remedy(error, "make room for %llu bytes", (unsigned long long)size);
	oh_sys.unlink(partial);
	return status;
}

onehop_status
oh_indexed_publish(const char *path, const void *bytes, uint64_t size, struct onehop_error *error)
{
	/* A name that no other process writes to. */
	char more[64];
	snprintf(more, sizeof more, ".%x-%llx.partial", (unsigned)oh_sys.getpid(),
		 (unsigned long long)oh_now_ns());
	char *side = side_name(path, ""), *partial = side_name(path, more);
	onehop_status status = ONEHOP_OK;
	if (!side || !partial)
		status = oh_fail_no_memory(error, strlen(path), "a name");
	if (!status)
		status = write_partial(partial, bytes, size, error);
	if (!status && oh_sys.rename(partial, side) < 0) {
		status = oh_fail_errno(error, errno, "%s: cannot give the index its name", side);
		oh_sys.unlink(partial);
	}
	free(partial);
	free(side);
	return status;
}
