/* The shard writer: samples go into the archive one after the other, and into three indexes.
 *
 * Invariant: between two calls the archive, DALI's and Energon's index and the builder hold the same
 * samples. A sample that cannot be read or is refused is taken back everywhere, by rewinding; the
 * builder, which cannot be, comes last. A write that failed, or memory that ran out in the middle of
 * the builder, leaves a writer that can only be destroyed.
 *
 * Equal samples and options make equal bytes: nothing here looks at a clock, a user or a file's times.
 */
#include "dataset/writer.h"
#include "base/crc32c.h"
#include "base/give.h"
#include "base/sys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t
onehop_crc32c(uint32_t crc, const void *data, uint64_t bytes)
{
	return oh_crc32c(crc, data, bytes);
}

/* ---- creating */

/* NAME.tar makes all names; a folder of that name would be found out only at the end. */
static onehop_status
check_path(const char *path, struct onehop_error *error)
{
	const char *slash = strrchr(path, '/'), *last = slash ? slash + 1 : path;
	size_t bytes = strlen(last);
	struct stat st;
	if (bytes <= 4 || strcmp(last + bytes - 4, ".tar") != 0) {
		oh_fail(error, ONEHOP_INVALID_ARGUMENT, "%s: a shard's name ends in .tar", path);
		oh_remedy(error, "name it NAME.tar; its indexes will lie beside it");
		return ONEHOP_INVALID_ARGUMENT;
	}
	if (oh_sys.stat(path, &st) == 0 && !S_ISREG(st.st_mode))
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "%s: it is there and no regular file", path);
	return ONEHOP_OK;
}

static onehop_status
make_names(struct onehop_shard_writer *writer, const char *path, struct onehop_error *error)
{
	static const char *const suffixes[OH_FILES] = {".idx", ".tar.idx", ".tar.onehop", ".tar"};
	uint64_t stem = strlen(path) - 4;
	for (int i = 0; i < OH_FILES; i++) {
		writer->names[i] = oh_out_name(path, stem, suffixes[i]);
		if (!writer->names[i])
			return oh_fail_no_memory(error, stem, "a shard's names");
	}
	return ONEHOP_OK;
}

static onehop_status
begin(struct onehop_shard_writer *writer, struct onehop_error *error)
{
	char head[OH_DALI_HEAD + 1];
	onehop_status status = oh_shard_builder_create(&writer->builder);
	if (status)
		return oh_fail_no_memory(error, sizeof(void *), "a shard's index");
	oh_shard_builder_refuse_twins(writer->builder);
	/* The shard's file first: its lock is for all of them. */
	status = oh_out_open(&writer->outs[OH_FILE_SHARD], writer->names[OH_FILE_SHARD],
			     OH_TAR_HEADERS_MOST, error);
	if (!status)
		status = oh_out_open(&writer->outs[OH_FILE_DALI], writer->names[OH_FILE_DALI], 0,
				     error);
	if (!status)
		status = oh_out_open(&writer->outs[OH_FILE_ENERGON],
				     writer->names[OH_FILE_ENERGON], 0, error);
	oh_writer_dali_head(head, 0);
	if (!status)
		status = oh_out_put(&writer->outs[OH_FILE_DALI], head, OH_DALI_HEAD, error);
	return status;
}

onehop_status
onehop_shard_writer_create(const char *path, const struct onehop_shard_options *theirs,
			   struct onehop_shard_writer **out, struct onehop_error *error)
{
	struct onehop_shard_options options;
	if (!path || !out)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "path or writer is NULL");
	onehop_status status = oh_writer_take_options(theirs, &options, error);
	if (!status)
		status = check_path(path, error);
	if (status)
		return status;
	struct onehop_shard_writer *writer = calloc(1, sizeof *writer);
	if (!writer)
		return oh_fail_no_memory(error, sizeof *writer, "a shard's writer");
	writer->options = options;
	writer->info.size = sizeof writer->info;
	for (int i = 0; i < OH_FILES; i++)
		writer->outs[i].fd = -1;
	status = make_names(writer, path, error);
	if (!status)
		status = begin(writer, error);
	if (status) {
		onehop_shard_writer_destroy(writer);
		return status;
	}
	*out = writer;
	return ONEHOP_OK;
}

void
onehop_shard_writer_destroy(struct onehop_shard_writer *writer)
{
	if (!writer)
		return;
	/* The shard's file last, for its lock. */
	for (int i = 0; i < OH_FILES; i++)
		oh_out_drop(&writer->outs[i]);
	for (int i = 0; i < OH_FILES; i++)
		free(writer->names[i]);
	oh_shard_builder_destroy(writer->builder);
	free(writer->parts);
	free(writer);
}

/* ---- adding */

static onehop_status
refuse_state(const struct onehop_shard_writer *writer, struct onehop_error *error)
{
	const char *path = writer->names[OH_FILE_SHARD];
	if (writer->state == OH_WRITER_FINISHED)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "%s: the shard is finished", path);
	oh_fail(error, ONEHOP_IO, "%s: a write failed before, this shard cannot be finished", path);
	oh_remedy(error, "destroy its writer, and write it anew");
	return ONEHOP_IO;
}

static onehop_status
make_room(struct onehop_shard_writer *writer, uint64_t count, struct onehop_error *error)
{
	struct oh_new_part *parts;
	if (count <= writer->parts_room)
		return ONEHOP_OK;
	if (count > UINT16_MAX)
		return oh_fail(error, ONEHOP_LIMIT, "a sample of %llu parts: at most %u",
			       (unsigned long long)count, UINT16_MAX);
	parts = realloc(writer->parts, count * sizeof *parts);
	if (!parts)
		return oh_fail_no_memory(error, count * sizeof *parts, "a sample's parts");
	writer->parts = parts;
	writer->parts_room = count;
	return ONEHOP_OK;
}

/* " FIELD OFFSET BYTES NAME", for DALI. */
static onehop_status
put_dali(struct onehop_shard_writer *writer, const struct oh_member_name *name,
	 const struct oh_new_part *part, int is_first, struct onehop_error *error)
{
	char text[2 * OH_TAR_NAME_MOST + 64];
	int bytes = snprintf(text, sizeof text, "%s%s %llu %llu %s", is_first ? "" : " ",
			     name->field, (unsigned long long)part->entry.offset,
			     (unsigned long long)part->entry.bytes, name->text);
	return oh_out_put(&writer->outs[OH_FILE_DALI], text, (uint64_t)bytes, error);
}

static uint32_t
alignment_of(const struct onehop_shard_writer *writer, uint64_t part)
{
	int aligned = writer->options.align == ONEHOP_ALIGN_MEMBER ||
		      (writer->options.align == ONEHOP_ALIGN_SAMPLE && part == 0);
	return aligned ? writer->options.alignment_bytes : 512;
}

static onehop_status
put_parts(struct onehop_shard_writer *writer, const struct onehop_sample_source *sample,
	  uint64_t count, struct onehop_error *error)
{
	struct oh_member_name name;
	const struct oh_new_part *joiner = NULL;
	uint64_t header;
	onehop_status status = ONEHOP_OK;
	for (uint64_t i = 0; i < count && !status; i++) {
		struct oh_new_part *part = writer->parts + i;
		oh_writer_name(sample->key, part->source.field, &name);
		if (part->source.joined) {
			status = oh_writer_join_part(sample, &name, joiner, part, error);
			continue;
		}
		joiner = part;
		status = oh_writer_put_part(writer, sample, &name, alignment_of(writer, i), part,
					    &header, error);
		if (!status && i == 0)
			status = oh_out_put(&writer->outs[OH_FILE_ENERGON], &header, sizeof header,
					    error);
		if (!status)
			status = put_dali(writer, &name, part, i == 0, error);
	}
	if (!status)
		status = oh_out_put(&writer->outs[OH_FILE_DALI], "\n", 1, error);
	return status;
}

/* Ids for the parts' names and types: what can fail without a trace that readers see. */
static onehop_status
intern_parts(struct onehop_shard_writer *writer, const struct onehop_sample_source *sample,
	     uint64_t count)
{
	struct oh_member_name name;
	onehop_status status = ONEHOP_OK;
	for (uint64_t i = 0; i < count && !status; i++) {
		struct oh_new_part *part = writer->parts + i;
		if (part->joins)
			continue;
		oh_writer_name(sample->key, part->source.field, &name);
		status = oh_shard_builder_field(writer->builder, name.small, name.field_bytes,
						&part->entry.field);
		if (!status && part->has_type)
			status = oh_shard_builder_type(writer->builder, &part->type,
						       &part->entry.type);
	}
	return status;
}

static onehop_status
add_sample(struct onehop_shard_writer *writer, const struct onehop_sample_source *sample)
{
	struct oh_shard_time time = {sample->timestamp_ns, OH_SHARD_NONE, OH_SHARD_NONE,
				     sample->rows, 0};
	int plain = sample->timestamp_ns == ONEHOP_NO_TIME && !sample->episode && !sample->stream &&
		    sample->rows == 1;
	onehop_status status = ONEHOP_OK;
	if (sample->episode)
		status = oh_shard_builder_episode(writer->builder, sample->episode,
						  strlen(sample->episode), &time.episode);
	if (!status && sample->stream)
		status = oh_shard_builder_stream(writer->builder, sample->stream,
						 strlen(sample->stream), &time.stream);
	if (!status)
		status = oh_shard_builder_sample(writer->builder, sample->key, strlen(sample->key),
						 plain ? NULL : &time);
	return status;
}

static onehop_status
index_sample(struct onehop_shard_writer *writer, const struct onehop_sample_source *sample,
	     uint64_t count)
{
	onehop_status status = intern_parts(writer, sample, count);
	if (!status)
		status = add_sample(writer, sample);
	if (status)
		return status;
	for (uint64_t i = 0; i < count && !status; i++)
		if (!writer->parts[i].joins)
			status = oh_shard_builder_part(writer->builder, &writer->parts[i].entry,
						       writer->parts[i].source.timestamp_ns);
	if (status)
		writer->state = OH_WRITER_FAILED; /* a sample with too few parts */
	return status;
}

static onehop_status
word_index_failure(const struct onehop_shard_writer *writer,
		   const struct onehop_sample_source *sample, onehop_status status,
		   struct onehop_error *error)
{
	char shown[OH_SHOWN];
	const char *path = writer->names[OH_FILE_SHARD];
	oh_show(shown, sample->key, strlen(sample->key));
	if (status == ONEHOP_INVALID_ARGUMENT) {
		oh_fail(error, status, "%s: the key %s is in the shard already", path, shown);
		oh_remedy(error, "give each sample a key of its own");
	} else if (status == ONEHOP_LIMIT) {
		oh_fail(error, status,
			"%s: with sample %s the shard has too many fields (65,535 at most) or too "
			"much text of names (1 GiB a kind) or keys (4 GiB)",
			path, shown);
		oh_remedy(error, "begin another shard");
	} else {
		oh_fail(error, status, "no memory for the index of %s", path);
	}
	return status;
}

static int
a_write_failed(const struct onehop_shard_writer *writer)
{
	for (int i = 0; i < OH_FILES; i++)
		if (writer->outs[i].failed)
			return 1;
	return 0;
}

static onehop_status
add(struct onehop_shard_writer *writer, const struct onehop_sample_source *sample, uint64_t count,
    struct onehop_error *error)
{
	uint64_t at[OH_FILES];
	for (int i = 0; i < OH_FILES; i++)
		at[i] = oh_out_at(&writer->outs[i]);
	onehop_status status = put_parts(writer, sample, count, error);
	if (!status) {
		status = index_sample(writer, sample, count);
		if (status)
			word_index_failure(writer, sample, status, error);
	}
	if (status && a_write_failed(writer))
		writer->state = OH_WRITER_FAILED;
	for (int i = 0; i < OH_FILES && status; i++)
		oh_out_rewind(&writer->outs[i], at[i]);
	return status;
}

onehop_status
onehop_shard_writer_add(struct onehop_shard_writer *writer,
			const struct onehop_sample_source *their_sample,
			const struct onehop_part_source *their_parts, uint64_t count,
			struct onehop_error *error)
{
	struct onehop_sample_source sample;
	if (!writer || !their_sample || !their_parts || !count)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "writer, sample or parts is NULL, or there is no part");
	if (writer->state != OH_WRITER_OPEN)
		return refuse_state(writer, error);
	onehop_status status = oh_writer_take_sample(their_sample, &sample, error);
	if (!status)
		status = make_room(writer, count, error);
	if (!status)
		status = oh_writer_take_parts(&sample, their_parts, count, writer->parts, error);
	if (!status)
		status = add(writer, &sample, count, error);
	if (status)
		return status;
	writer->info.samples++;
	for (uint64_t i = 0; i < count; i++) {
		const struct oh_new_part *part = writer->parts + i;
		writer->info.members += !part->source.joined;
		writer->info.payload_bytes += part->joins ? 0 : part->entry.bytes;
	}
	return ONEHOP_OK;
}

/* ---- the end */

onehop_status
onehop_shard_writer_query(const struct onehop_shard_writer *writer, struct onehop_shard_info *info)
{
	if (!writer)
		return ONEHOP_INVALID_ARGUMENT;
	struct onehop_shard_info ours = writer->info;
	if (writer->state != OH_WRITER_FINISHED) {
		ours.shard_bytes = oh_out_at(&writer->outs[OH_FILE_SHARD]);
		ours.index_bytes = oh_shard_builder_bytes(writer->builder);
	}
	return oh_give(info, &ours, sizeof ours);
}

onehop_status
onehop_shard_writer_finish(struct onehop_shard_writer *writer, struct onehop_shard_info *info,
			   struct onehop_error *error)
{
	if (!writer)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "writer is NULL");
	if (writer->state != OH_WRITER_OPEN)
		return refuse_state(writer, error);
	onehop_status status = oh_writer_finish(writer, error);
	writer->state = status ? OH_WRITER_FAILED : OH_WRITER_FINISHED;
	if (!status && info)
		status = onehop_shard_writer_query(writer, info);
	return status;
}
