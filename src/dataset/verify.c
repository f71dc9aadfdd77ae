/* onehop_shard_verify(): a shard against its index.
 *
 * The archive is walked by its own headers, as any tar reader does, and every member that belongs
 * to a sample must be the next part of the index: so nothing is lost, added, moved or renamed if it
 * ends well. What the index does not tie to a header (times, streams, the trailer) is held against
 * the rules of docs/format.md.
 */
#include "dataset/indexed.h"
#include "dataset/writer.h"
#include "base/arith.h"
#include "base/give.h"
#include "format/fail.h"
#include "format/npy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct verifying {
	struct oh_walk *walk;
	const struct oh_indexed *indexed;
	const struct oh_shard_view *view;
	uint64_t samples; /* that were begun */
	uint64_t parts;   /* that were seen */
	uint64_t end;     /* of the parts of the sample that was begun */
	uint64_t members;
	const char *key;
	uint64_t key_bytes;
	uint64_t *seen; /* by field: the last sample that had it, counted from 1 */
};

static const char good_copy[] = "get a good copy of the shard, or, if it is whole, make its index "
				"again: onehop index --replace";

/* The member that was met is not what the index says. */
static onehop_status
differ(const struct verifying *v, struct onehop_error *error, const char *what, const char *has,
       uint64_t has_bytes)
{
	const struct oh_tar_member *member = &v->walk->tar.member;
	char name[OH_SHOWN], shown[OH_SHOWN];
	oh_refuse(error, ONEHOP_MISMATCH, v->walk->path, "byte %llu: member %s: %s%s%s",
		  (unsigned long long)member->header,
		  oh_show(name, member->name, member->name_bytes), what, has ? " " : "",
		  has ? oh_show(shown, has, has_bytes) : "");
	oh_remedy(error, good_copy);
	return ONEHOP_MISMATCH;
}

static onehop_status
differ_numbers(const struct verifying *v, struct onehop_error *error, const char *what, uint64_t is,
	       uint64_t says)
{
	char rule[160];
	snprintf(rule, sizeof rule, "%s is %llu, and the index says %llu", what,
		 (unsigned long long)is, (unsigned long long)says);
	return differ(v, error, rule, NULL, 0);
}

/* An entry of the index by itself. */
static onehop_status
malformed(const struct verifying *v, struct onehop_error *error, const char *what, uint64_t number)
{
	oh_refuse(error, ONEHOP_MALFORMED, v->indexed->name,
		  "%s of sample %llu in the index is wrong", what, (unsigned long long)number);
	oh_remedy(error, "make the index again: onehop index --replace");
	return ONEHOP_MALFORMED;
}

/* ------------------------------------------------------------------------------------------- */
/* Parts */

static onehop_status
check_time(const struct verifying *v, uint64_t sample, struct onehop_error *error)
{
	const struct oh_shard_view *view = v->view;
	const struct oh_shard_time *time = view->time ? &view->time[sample] : NULL;
	if (!time)
		return ONEHOP_OK;
	if (time->episode != OH_SHARD_NONE && time->episode >= view->episodes)
		return malformed(v, error, "the episode", sample);
	if (time->stream != OH_SHARD_NONE && time->stream >= view->streams)
		return malformed(v, error, "the stream", sample);
	return time->rows ? ONEHOP_OK : malformed(v, error, "the number of rows", sample);
}

/* Steps to the sample that the next part belongs to. */
static onehop_status
next_sample(struct verifying *v, struct onehop_error *error)
{
	uint64_t first, count;
	if (v->parts < v->end)
		return ONEHOP_OK;
	if (v->samples == v->view->samples)
		return differ(v, error, "it is not in the index", NULL, 0);
	if (oh_shard_sample_at(v->view, v->samples, &first, &count, &v->key, &v->key_bytes) ||
	    first != v->parts || count == 0)
		return malformed(v, error, "the entry", v->samples);
	v->end = first + count;
	return check_time(v, v->samples++, error);
}

static onehop_status
check_names(struct verifying *v, const struct oh_tar_key *key, const struct oh_shard_part *part,
	    struct onehop_error *error)
{
	const struct oh_tar_member *member = &v->walk->tar.member;
	const char *field;
	uint64_t bytes;
	if (key->key_bytes != v->key_bytes || memcmp(member->name, v->key, v->key_bytes) != 0)
		return differ(v, error, "in its place the index has one of sample", v->key,
			      v->key_bytes);
	if (oh_shard_name_at(v->view, &v->view->field[part->field], &field, &bytes))
		return malformed(v, error, "a field's name", v->samples - 1);
	if (key->field_bytes != bytes || strncasecmp(member->name + key->field, field, bytes) != 0)
		return differ(v, error, "in its place the index has field", field, bytes);
	if (v->seen[part->field] == v->samples)
		return differ(v, error, "a field that its sample has already", NULL, 0);
	v->seen[part->field] = v->samples;
	return ONEHOP_OK;
}

/* The member's payload begins where the index's own rule for what it aligns says. */
static onehop_status
check_alignment(const struct verifying *v, struct onehop_error *error)
{
	const struct oh_shard_view *view = v->view;
	uint64_t past = v->walk->tar.member.offset % view->alignment_bytes;
	int is_first = v->parts == view->sample[v->samples - 1].first_part;
	if (past && (view->align == ONEHOP_ALIGN_MEMBER ||
		     (view->align == ONEHOP_ALIGN_SAMPLE && is_first)))
		return differ_numbers(v, error, "what its offset is past the alignment", past, 0);
	return ONEHOP_OK;
}

static onehop_status
check_place(const struct verifying *v, const struct oh_shard_part *part, struct onehop_error *error)
{
	const struct oh_tar_member *member = &v->walk->tar.member;
	if (part->offset != member->offset)
		return differ_numbers(v, error, "the offset of its bytes", member->offset,
				      part->offset);
	if (part->bytes != member->bytes)
		return differ_numbers(v, error, "its size", member->bytes, part->bytes);
	return check_alignment(v, error);
}

/* A type must be one that the bytes can have. Where they are .npy it must be theirs. */
static onehop_status
check_type(const struct verifying *v, const struct oh_shard_part *part, struct onehop_error *error)
{
	uint64_t have = oh_min(part->bytes, OH_NPY_HEAD), data_bytes, bytes;
	const char *field;
	const struct oh_shard_time *time = v->view->time ? &v->view->time[v->samples - 1] : NULL;
	const struct oh_shard_type *type;
	struct oh_shard_type found;
	const uint8_t *head;
	if (!part->type)
		return ONEHOP_OK;
	if (oh_shard_type_at(v->view, part->type - 1, &type, &data_bytes))
		return malformed(v, error, "a type", v->samples - 1);
	if (time && time->rows > 1 && (type->rank == 0 || type->shape[0] != time->rows))
		return differ_numbers(v, error, "the first dimension of its array",
				      type->rank ? type->shape[0] : 0, time->rows);
	if (!have || oh_shard_name_at(v->view, &v->view->field[part->field], &field, &bytes) ||
	    !oh_npy_is_field(field, bytes))
		return ONEHOP_OK;
	onehop_status status = oh_walk_bytes(v->walk, part->offset, have, &head, error);
	if (status || !oh_npy_type(head, have, part->bytes, &found))
		return status;
	if (memcmp(&found, type, sizeof found) != 0)
		return differ(v, error, "the index has another type or shape than its .npy header",
			      NULL, 0);
	return ONEHOP_OK;
}

static onehop_status
check_crc(const struct verifying *v, const struct oh_shard_part *part, struct onehop_error *error)
{
	uint32_t crc;
	char rule[96];
	if (!(v->view->flags & OH_SHARD_CHECKSUMS))
		return ONEHOP_OK;
	onehop_status status = oh_walk_crc32c(v->walk, part->offset, part->bytes, &crc, error);
	if (status || crc == part->crc32c)
		return status;
	snprintf(rule, sizeof rule, "its bytes have the CRC-32C %08x, and the index says %08x", crc,
		 part->crc32c);
	return differ(v, error, rule, NULL, 0);
}

/* A member by this name that is not in the index has parts of its sample in it, which are. */
static int
joins(const struct verifying *v, const struct oh_tar_key *key, const struct oh_shard_part *part)
{
	const struct oh_tar_member *member = &v->walk->tar.member;
	const char *field;
	uint64_t bytes;
	return key->field_bytes == strlen(OH_WRITER_JOINED) &&
	       memcmp(member->name + key->field, OH_WRITER_JOINED, key->field_bytes) == 0 &&
	       oh_shard_name_at(v->view, &v->view->field[part->field], &field, &bytes) == 0 &&
	       (bytes != key->field_bytes || memcmp(field, OH_WRITER_JOINED, bytes) != 0);
}

static onehop_status
check_bytes(struct verifying *v, const struct oh_shard_part *part, struct onehop_error *error)
{
	onehop_status status = check_type(v, part, error);
	if (!status)
		status = check_crc(v, part, error);
	v->parts++;
	return status;
}

static onehop_status
check_joined(struct verifying *v, const struct oh_tar_key *key, struct onehop_error *error)
{
	const struct oh_tar_member *member = &v->walk->tar.member;
	const struct oh_shard_part *part;
	uint64_t first = v->parts, at = member->offset, end = member->offset + member->bytes;
	onehop_status status = check_alignment(v, error);
	if (key->key_bytes != v->key_bytes || memcmp(member->name, v->key, v->key_bytes) != 0)
		return differ(v, error, "in its place the index has one of sample", v->key,
			      v->key_bytes);
	while (!status && v->parts < v->end) {
		if (oh_shard_part_at(v->view, v->parts, &part))
			return malformed(v, error, "a part", v->samples - 1);
		if (part->offset < at || part->offset > end || part->bytes > end - part->offset)
			break;
		if (v->seen[part->field] == v->samples)
			return differ(v, error, "it joins a field twice", NULL, 0);
		v->seen[part->field] = v->samples;
		at = part->offset + part->bytes;
		status = check_bytes(v, part, error);
	}
	if (!status && v->parts == first)
		return differ(v, error, "the index has no part that lies in it", NULL, 0);
	return status;
}

static onehop_status
check_part(struct verifying *v, const struct oh_tar_key *key, struct onehop_error *error)
{
	const struct oh_shard_part *part;
	onehop_status status = next_sample(v, error);
	if (status)
		return status;
	if (oh_shard_part_at(v->view, v->parts, &part))
		return malformed(v, error, "a part", v->samples - 1);
	if (joins(v, key, part))
		return check_joined(v, key, error);
	status = check_names(v, key, part, error);
	if (!status)
		status = check_place(v, part, error);
	return status ? status : check_bytes(v, part, error);
}

/* ------------------------------------------------------------------------------------------- */
/* The whole */

static onehop_status
check_members(struct verifying *v, struct onehop_error *error)
{
	enum oh_tar_event event;
	for (;;) {
		const struct oh_tar_member *member = &v->walk->tar.member;
		struct oh_tar_key key;
		onehop_status status = oh_walk_next(v->walk, &event, error);
		if (status || event == OH_TAR_END)
			return status;
		if (member->type != '0')
			continue;
		v->members++;
		if (oh_tar_split(member->name, member->name_bytes, &key) == OH_TAR_PART)
			status = check_part(v, &key, error);
		if (status)
			return status;
	}
}

static onehop_status
check_end(const struct verifying *v, struct onehop_error *error)
{
	char shown[OH_SHOWN];
	const char *key = v->key;
	uint64_t first, count, bytes = v->key_bytes;
	if (v->parts == v->view->parts && v->samples == v->view->samples)
		return ONEHOP_OK;
	if (v->parts == v->end &&
	    oh_shard_sample_at(v->view, v->samples, &first, &count, &key, &bytes))
		return malformed(v, error, "the entry", v->samples);
	oh_refuse(error, ONEHOP_MISMATCH, v->walk->path,
		  "the archive ends at byte %llu with %llu parts of samples, and the index has "
		  "%llu: the next would be of sample %s",
		  (unsigned long long)v->walk->tar.end_at, (unsigned long long)v->parts,
		  (unsigned long long)v->view->parts, oh_show(shown, key, bytes));
	oh_remedy(error, good_copy);
	return ONEHOP_MISMATCH;
}

static onehop_status
run(struct verifying *v, const struct oh_trailer *trailer, struct onehop_error *error)
{
	onehop_status status;
	v->seen = calloc((uint64_t)v->view->fields + 1, sizeof *v->seen);
	if (!v->seen)
		return oh_fail_no_memory(error, v->view->fields * sizeof *v->seen, "fields");
	oh_walk_begin(v->walk, trailer->begin, (v->view->flags & OH_SHARD_CHECKSUMS) != 0);
	status = check_members(v, error);
	if (!status)
		status = check_end(v, error);
	if (!status)
		status = oh_indexed_counts(v->walk, trailer, v->indexed, v->members, error);
	if (!status)
		status = oh_indexed_keys(v->view, v->walk->path, error);
	free(v->seen);
	return status;
}

static onehop_status
verify_walk(struct oh_walk *walk, struct onehop_shard_info *info, struct onehop_error *error)
{
	struct oh_trailer trailer;
	struct oh_indexed indexed;
	onehop_status status = oh_trailer_find(walk, &trailer, error);
	if (!status)
		status = oh_indexed_side(walk, &indexed, error);
	if (status == ONEHOP_NOT_FOUND)
		status = oh_indexed_trailer(walk, &trailer, &indexed, error);
	if (status)
		return status;
	struct verifying v = {.walk = walk, .indexed = &indexed, .view = &indexed.view};
	status = run(&v, &trailer, error);
	if (!status)
		status = oh_indexed_agree(walk, &trailer, &indexed, error);
	if (!status)
		status = oh_walk_check(walk, error);
	if (!status)
		oh_indexed_info(&indexed, info);
	oh_indexed_free(&indexed);
	return status;
}

onehop_status
onehop_shard_verify(const char *path, struct onehop_shard_info *info, struct onehop_error *error)
{
	struct onehop_shard_info ours = {.size = sizeof ours};
	struct oh_walk walk;
	if (!path || (info && info->size < 8)) {
		oh_fail(error, ONEHOP_INVALID_ARGUMENT, "onehop_shard_verify: %s",
			path ? "info->size is not set" : "path is NULL");
		return ONEHOP_INVALID_ARGUMENT;
	}
	onehop_status status = oh_walk_open(&walk, path, error);
	if (status)
		return status;
	status = verify_walk(&walk, &ours, error);
	oh_walk_close(&walk);
	if (!status && info)
		oh_give(info, &ours, sizeof ours);
	return status;
}
