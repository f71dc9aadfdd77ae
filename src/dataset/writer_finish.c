/* The end of a shard: archive, trailer, side file, the other readers' indexes, and their names.
 *
 * Order of the names: the indexes first, the shard last. So a shard that has its name is whole and has
 * all its indexes, whenever we are killed. What a kill may leave is indexes without a shard, which
 * nobody reads, or new indexes beside an old shard of the same name: the index refuses that one, since
 * the trailer of the old shard, if it has one, does not hold the CRC of the new index. When a step
 * fails, what got its name before is removed, so that the old shard is read by its trailer again. After
 * the shard has its name nothing is taken back: the old one is gone by then.
 */
#include "dataset/writer.h"
#include "base/arith.h"
#include "base/crc32c.h"
#include "base/sys.h"
#include "format/shard_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE UINT64_C(4096)

/* DALI reads words, so the blanks before the number are none to it. */
void
oh_writer_dali_head(char head[OH_DALI_HEAD + 1], uint64_t samples)
{
	snprintf(head, OH_DALI_HEAD + 1, "v1.2 %20llu\n", (unsigned long long)samples);
}

static uint64_t
up(uint64_t value, uint64_t unit)
{
	return (value + unit - 1) / unit * unit;
}

/* ---- writing */

/* Where things lie in the shard's file. */
struct ends {
	uint64_t tar;
	uint64_t index; /* where the trailer's index begins */
	uint64_t file;
};

static struct ends
find_ends(const struct onehop_shard_writer *writer, uint64_t index_bytes)
{
	struct ends ends = {.tar = oh_out_at(&writer->outs[OH_FILE_SHARD])};
	ends.index = up(ends.tar + 1024, OH_TAR_END_ALIGN);
	ends.file = up(ends.index + index_bytes + sizeof(struct oh_shard_trailer), PAGE);
	return ends;
}

/* The index, in memory of the caller's. */
static onehop_status
make_index(const struct onehop_shard_writer *writer, const struct ends *ends, uint64_t bytes,
	   void **index, struct onehop_error *error)
{
	struct oh_shard_facts facts = {
		.shard_bytes = ends->file,
		.tar_end = ends->tar,
		.members = writer->info.members,
		.flags = OH_SHARD_CHECKSUMS | OH_SHARD_TRAILER,
		.alignment_bytes = writer->options.alignment_bytes,
		.align = writer->options.align,
	};
	*index = malloc(bytes);
	if (!*index)
		return oh_fail_no_memory(error, bytes, "a shard's index");
	oh_shard_builder_finish(writer->builder, &facts, *index);
	return ONEHOP_OK;
}

static onehop_status
put_trailer(struct oh_out *out, const struct ends *ends, const void *index, uint64_t bytes,
	    struct onehop_error *error)
{
	const struct oh_shard_header *header = index;
	struct oh_shard_trailer trailer = {
		.version = OH_SHARD_VERSION,
		.index_offset = ends->index,
		.index_bytes = bytes,
		.tar_end = ends->tar,
		.index_crc32c = header->crc32c,
	};
	memcpy(trailer.magic, OH_TRAILER_MAGIC, sizeof trailer.magic);
	trailer.crc32c = oh_crc32c(0, &trailer, offsetof(struct oh_shard_trailer, crc32c));
	onehop_status status = oh_out_zeros(out, ends->index - ends->tar, error);
	if (!status)
		status = oh_out_put(out, index, bytes, error);
	if (!status)
		status = oh_out_zeros(out, ends->file - sizeof trailer - oh_out_at(out), error);
	if (!status)
		status = oh_out_put(out, &trailer, sizeof trailer, error);
	return status;
}

/* All files, whole, under their partial names. */
static onehop_status
write_ends(struct onehop_shard_writer *writer, struct onehop_error *error)
{
	struct oh_out *outs = writer->outs;
	uint64_t bytes = oh_shard_builder_bytes(writer->builder);
	struct ends ends = find_ends(writer, bytes);
	char head[OH_DALI_HEAD + 1];
	void *index;
	onehop_status status = make_index(writer, &ends, bytes, &index, error);
	if (status)
		return status;
	status = put_trailer(&outs[OH_FILE_SHARD], &ends, index, bytes, error);
	if (!status)
		status = oh_out_open(&outs[OH_FILE_INDEX], writer->names[OH_FILE_INDEX], 0, error);
	if (!status)
		status = oh_out_put(&outs[OH_FILE_INDEX], index, bytes, error);
	free(index);
	if (!status)
		status = oh_out_put(&outs[OH_FILE_ENERGON], &ends.tar, sizeof ends.tar, error);
	oh_writer_dali_head(head, writer->info.samples);
	if (!status)
		status = oh_out_flush(&outs[OH_FILE_DALI], 0, error);
	if (!status)
		status = oh_out_begin_with(&outs[OH_FILE_DALI], head, OH_DALI_HEAD, error);
	for (int i = 0; i < OH_FILES && !status; i++)
		status = oh_out_flush(&outs[i], writer->options.sync != 0, error);
	writer->info.index_bytes = bytes;
	writer->info.shard_bytes = ends.file;
	return status;
}

/* ---- publishing */

/* The folder's descriptor, or -1: not every folder that is written may be read. */
static onehop_status
open_folder(const char *path, int *fd, struct onehop_error *error)
{
	const char *slash = strrchr(path, '/');
	onehop_status status = ONEHOP_OK;
	char *folder = slash ? oh_out_name(path, (uint64_t)(slash - path) + 1, "")
			     : oh_out_name(".", 1, "");
	if (!folder)
		return oh_fail_no_memory(error, strlen(path), "a folder's name");
	*fd = oh_sys.open(folder, O_RDONLY | O_CLOEXEC | O_DIRECTORY);
	if (*fd < 0 && errno != EACCES)
		status = oh_fail_errno(error, errno, "%s: cannot open the folder", folder);
	free(folder);
	return status;
}

/* The folder's entries are on its disk. Not all file systems can say so of a folder. */
static onehop_status
sync_folder(int fd, const char *path, struct onehop_error *error)
{
	if (fd < 0 || oh_sys.fsync(fd) == 0 || errno == EINVAL)
		return ONEHOP_OK;
	return oh_fail_errno(error, errno,
			     "%s: it is written and has its name, but the folder cannot be brought to "
			     "its disk",
			     path);
}

static onehop_status
rename_all(struct onehop_shard_writer *writer, struct onehop_error *error)
{
	for (int i = 0; i < OH_FILES; i++) {
		onehop_status status = oh_out_publish(&writer->outs[i], error);
		if (status) {
			while (i-- > 0)
				oh_sys.unlink(writer->names[i]);
			return status;
		}
	}
	return ONEHOP_OK;
}

static onehop_status
publish(struct onehop_shard_writer *writer, struct onehop_error *error)
{
	const char *path = writer->names[OH_FILE_SHARD];
	int folder = -1;
	onehop_status status = ONEHOP_OK;
	for (int i = 0; i < OH_FILES && !status; i++)
		status = oh_out_settle(&writer->outs[i], error);
	if (!status && writer->options.sync)
		status = open_folder(path, &folder, error);
	if (!status)
		status = rename_all(writer, error);
	if (!status)
		status = sync_folder(folder, path, error);
	if (folder >= 0)
		oh_sys.close(folder);
	return status;
}

onehop_status
oh_writer_finish(struct onehop_shard_writer *writer, struct onehop_error *error)
{
	onehop_status status = write_ends(writer, error);
	if (!status)
		status = publish(writer, error);
	if (status)
		return status;
	writer->info.has_trailer = 1;
	for (int i = 0; i < OH_FILES; i++)
		oh_out_drop(&writer->outs[i]);
	return ONEHOP_OK;
}
