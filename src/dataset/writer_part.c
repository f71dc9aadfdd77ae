/* One member of the archive: its headers, its payload from memory or a file, and what that is.
 *
 * The payload goes through the buffer of the shard's file once, and its CRC is taken there while it is
 * in the processor's cache. Its size stands in the header before it is read: a source that turns out
 * to be shorter fails, and the caller rewinds.
 */
#include "dataset/writer.h"
#include "base/arith.h"
#include "base/crc32c.h"
#include "base/sys.h"
#include "format/npy.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

/* Where a payload comes from. */
struct source {
	const struct onehop_part_source *part;
	int fd;         /* -1: memory */
	uint64_t bytes;
	unsigned char head[OH_NPY_HEAD]; /* its first bytes, for a type */
	size_t have;
};

static onehop_status
too_large(const struct oh_member_name *name, uint64_t bytes, struct onehop_error *error)
{
	oh_fail(error, ONEHOP_INVALID_ARGUMENT,
		"%s: a member of %llu bytes: it must be smaller than 8 GiB, which is what every tar "
		"reader takes",
		name->text, (unsigned long long)bytes);
	oh_remedy(error, "split it into several fields or samples");
	return ONEHOP_INVALID_ARGUMENT;
}

/* Which bytes of a file of `all` bytes are meant. */
static onehop_status
take_range(struct source *source, const struct stat *st, struct onehop_error *error)
{
	const struct onehop_part_source *part = source->part;
	uint64_t all = (uint64_t)st->st_size, end;
	if (!S_ISREG(st->st_mode))
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "%s: no regular file", part->path);
	source->bytes = part->bytes;
	if (part->bytes == UINT64_MAX && part->offset <= all)
		source->bytes = all - part->offset;
	if (oh_add(part->offset, source->bytes, &end) || end > all)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "%s: %llu bytes from byte %llu on are past its end, it has %llu",
			       part->path, (unsigned long long)source->bytes,
			       (unsigned long long)part->offset, (unsigned long long)all);
	return ONEHOP_OK;
}

static onehop_status
open_source(struct source *source, const struct onehop_part_source *part,
	    struct onehop_error *error)
{
	struct stat st;
	onehop_status status;
	source->part = part;
	source->fd = -1;
	source->have = 0;
	source->bytes = part->bytes;
	if (!part->path)
		return ONEHOP_OK;
	source->fd = oh_sys.open(part->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (source->fd < 0)
		return oh_fail_errno(error, errno, "%s: cannot open it", part->path);
	if (oh_sys.fstat(source->fd, &st) < 0)
		status = oh_fail_errno(error, errno, "%s: cannot look at it", part->path);
	else
		status = take_range(source, &st, error);
	if (status)
		oh_sys.close(source->fd);
	return status;
}

static void
close_source(struct source *source)
{
	if (source->fd >= 0)
		oh_sys.close(source->fd);
}

/* Puts bytes [done, done + bytes) of the source at `to`. */
static onehop_status
read_source(const struct source *source, uint64_t done, unsigned char *to, uint64_t bytes,
	    struct onehop_error *error)
{
	const struct onehop_part_source *part = source->part;
	int failed;
	if (source->fd < 0) {
		memcpy(to, (const unsigned char *)part->data + done, bytes);
		return ONEHOP_OK;
	}
	ssize_t got = oh_pread_full(source->fd, to, bytes, (off_t)(part->offset + done), &failed);
	if (failed)
		return oh_fail_errno(error, failed, "%s: cannot read it at byte %llu", part->path,
				     (unsigned long long)(part->offset + done));
	if ((uint64_t)got == bytes)
		return ONEHOP_OK;
	oh_fail(error, ONEHOP_FILE_CHANGED, "%s: it became shorter while it was packed", part->path);
	oh_remedy(error, "pack files that nobody writes");
	return ONEHOP_FILE_CHANGED;
}

static void
note_head(struct source *source, const unsigned char *bytes, uint64_t count)
{
	uint64_t some = oh_min(count, sizeof source->head - source->have);
	memcpy(source->head + source->have, bytes, some);
	source->have += some;
}

static onehop_status
put_payload(struct oh_out *out, struct source *source, uint32_t *crc, struct onehop_error *error)
{
	*crc = 0;
	for (uint64_t done = 0; done < source->bytes;) {
		unsigned char *room;
		uint64_t some;
		onehop_status status = oh_out_room(out, 1, &room, &some, error);
		if (status)
			return status;
		some = oh_min(some, source->bytes - done);
		status = read_source(source, done, room, some, error);
		if (status)
			return status;
		*crc = oh_crc32c(*crc, room, some);
		note_head(source, room, some);
		oh_out_took(out, some);
		done += some;
	}
	return oh_out_zeros(out, oh_tar_tail(source->bytes), error);
}

static onehop_status
put_headers(struct onehop_shard_writer *writer, const struct oh_tar_entry *entry, uint64_t *header,
	    struct onehop_error *error)
{
	struct oh_out *out = &writer->outs[OH_FILE_SHARD];
	struct oh_tar_lead lead = oh_tar_lead(entry, oh_out_at(out));
	unsigned char *room;
	uint64_t bytes;
	onehop_status status = oh_out_room(out, lead.bytes, &room, &bytes, error);
	if (status)
		return status;
	*header = oh_out_at(out) + lead.pad;
	oh_tar_put(entry, oh_out_at(out), room);
	oh_out_took(out, lead.bytes);
	return ONEHOP_OK;
}

/* The part's array lies in its payload, and has the rows that its sample says. */
static onehop_status
check_type(const struct onehop_sample_source *sample, const struct oh_member_name *name,
	   const struct oh_new_part *part, struct onehop_error *error)
{
	const struct oh_shard_type *type;
	const struct oh_shard_view view = {.type = &part->type, .types = 1};
	uint64_t bytes, end;
	if (oh_shard_type_at(&view, 0, &type, &bytes) ||
	    oh_add(part->type.data_offset, bytes, &end) || end > part->entry.bytes)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "%s: its array does not fit its payload of %llu bytes (dtype %s, %u "
			       "dimensions, from byte %u on)",
			       name->text, (unsigned long long)part->entry.bytes,
			       part->source.dtype, part->type.rank, part->type.data_offset);
	if (sample->rows > 1 && (part->type.rank == 0 || part->type.shape[0] != sample->rows))
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "%s: its array has not the %u rows of its chunk", name->text,
			       sample->rows);
	return ONEHOP_OK;
}

static onehop_status
find_type(const struct onehop_sample_source *sample, const struct oh_member_name *name,
	  const struct source *source, struct oh_new_part *part, struct onehop_error *error)
{
	if (!part->has_type && oh_npy_is_field(name->small, name->field_bytes))
		part->has_type = oh_npy_type(source->head, source->have, source->bytes,
					     &part->type);
	return part->has_type ? check_type(sample, name, part, error) : ONEHOP_OK;
}

onehop_status
oh_writer_join_part(const struct onehop_sample_source *sample, const struct oh_member_name *name,
		    const struct oh_new_part *joiner, struct oh_new_part *part,
		    struct onehop_error *error)
{
	const struct onehop_part_source *of = &part->source;
	const unsigned char *data = (const unsigned char *)joiner->source.data + of->offset;
	struct source source = {.part = of, .fd = -1, .bytes = of->bytes};
	note_head(&source, data, of->bytes);
	part->entry = (struct oh_shard_part){.offset = joiner->entry.offset + of->offset,
					     .bytes = of->bytes,
					     .crc32c = oh_crc32c(0, data, of->bytes)};
	return find_type(sample, name, &source, part, error);
}

onehop_status
oh_writer_put_part(struct onehop_shard_writer *writer, const struct onehop_sample_source *sample,
		   const struct oh_member_name *name, uint32_t alignment, struct oh_new_part *part,
		   uint64_t *header, struct onehop_error *error)
{
	struct oh_out *out = &writer->outs[OH_FILE_SHARD];
	struct source source;
	struct oh_tar_entry entry = {
		.name = name->text,
		.name_bytes = name->bytes,
		.pad = (enum oh_tar_pad)writer->options.pad,
		.mtime = (uint64_t)writer->options.mtime,
		.alignment = alignment,
	};
	onehop_status status = open_source(&source, &part->source, error);
	if (status)
		return status;
	if (source.bytes > OH_TAR_SIZE_MOST)
		status = too_large(name, source.bytes, error);
	entry.bytes = source.bytes;
	if (!status)
		status = put_headers(writer, &entry, header, error);
	part->entry = (struct oh_shard_part){.offset = oh_out_at(out), .bytes = source.bytes};
	if (!status)
		status = put_payload(out, &source, &part->entry.crc32c, error);
	close_source(&source);
	if (!status)
		status = find_type(sample, name, &source, part, error);
	return status;
}
