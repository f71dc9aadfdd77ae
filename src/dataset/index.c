/* onehop_shard_index(): the index of a tar that others wrote.
 *
 * The archive is walked once and its members become samples as webdataset would group them. Then
 * the finished index is looked through for keys that come twice, and published. What would make an
 * epoch short without a word is an error here. A shard that has a trailer gets that as its side
 * file: it knows times and types that no header tells.
 */
#include "dataset/indexed.h"
#include "base/arith.h"
#include "base/give.h"
#include "base/utf8.h"
#include "format/fail.h"
#include "format/npy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_FIELDS 65536

struct indexing {
	struct oh_walk *walk;
	const char *path;
	int checksums;
	struct oh_shard_builder *builder;
	struct onehop_shard_info info;
	/* The sample that is being gathered. */
	char key[OH_TAR_MOST_NAME];
	uint64_t key_bytes; /* 0: none yet */
	uint64_t begin;     /* of the headers of its first member */
	/* Where each field came last: its member's header, plus 1. */
	uint64_t last[MOST_FIELDS];
};

static onehop_status
refuse_member(const struct indexing *in, onehop_status status, const char *rule, const char *remedy,
	      struct onehop_error *error)
{
	const struct oh_tar_member *member = &in->walk->tar.member;
	char shown[OH_SHOWN];
	oh_refuse(error, status, in->path, "byte %llu: member %s: %s",
		  (unsigned long long)member->header,
		  oh_show(shown, member->name, member->name_bytes), rule);
	oh_remedy(error, "%s", remedy);
	return status;
}

/* What the builder could not take. */
static onehop_status
refuse_built(const struct indexing *in, onehop_status status, struct onehop_error *error)
{
	if (status == ONEHOP_NO_MEMORY)
		return oh_fail_no_memory(error, oh_shard_builder_bytes(in->builder),
					 "the index of a shard");
	return refuse_member(in, status, "more than 65,535 different fields in one shard",
			     "what changes from sample to sample belongs before the first dot of a "
			     "name, as in 000001.cam.jpg",
			     error);
}

/* ------------------------------------------------------------------------------------------- */
/* Members */

static int
is_utf8(const char *text, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes;) {
		size_t length = oh_utf8_length((const unsigned char *)text + at, bytes - at);
		if (!length)
			return 0;
		at += length;
	}
	return 1;
}

/* As webdataset has it, for ASCII. */
static void
make_small(char *field, const char *from, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i++)
		field[i] =
			(char)(from[i] >= 'A' && from[i] <= 'Z' ? from[i] + ('a' - 'A') : from[i]);
}

static onehop_status
take_sample(struct indexing *in, uint64_t key_bytes, struct onehop_error *error)
{
	const struct oh_tar_member *member = &in->walk->tar.member;
	if (in->key_bytes == key_bytes && memcmp(in->key, member->name, key_bytes) == 0)
		return ONEHOP_OK;
	memcpy(in->key, member->name, key_bytes);
	in->key_bytes = key_bytes;
	in->begin = member->begin;
	onehop_status status =
		oh_shard_builder_sample(in->builder, member->name, key_bytes, NULL);
	return status ? refuse_built(in, status, error) : ONEHOP_OK;
}

static onehop_status
take_field(struct indexing *in, const struct oh_tar_key *key, uint16_t *id,
	   struct onehop_error *error)
{
	const struct oh_tar_member *member = &in->walk->tar.member;
	char field[OH_TAR_MOST_NAME], rule[96];
	make_small(field, member->name + key->field, key->field_bytes);
	onehop_status status = oh_shard_builder_field(in->builder, field, key->field_bytes, id);
	if (status)
		return refuse_built(in, status, error);
	if (in->last[*id] > in->begin) {
		snprintf(rule, sizeof rule,
			 "a field that this sample has already, at byte %llu (capitals do not "
			 "count)",
			 (unsigned long long)in->last[*id] - 1);
		return refuse_member(in, ONEHOP_MALFORMED, rule,
				     "rename or leave out one of them", error);
	}
	in->last[*id] = member->header + 1;
	return ONEHOP_OK;
}

/* The type that a .npy header tells. */
static onehop_status
take_type(struct indexing *in, uint32_t *type, struct onehop_error *error)
{
	const struct oh_tar_member *member = &in->walk->tar.member;
	uint64_t have = oh_min(member->bytes, OH_NPY_HEAD);
	struct oh_shard_type found;
	const uint8_t *head;
	if (have == 0 || !oh_npy_is_field(member->name, member->name_bytes))
		return ONEHOP_OK;
	onehop_status status = oh_walk_bytes(in->walk, member->offset, have, &head, error);
	if (status || !oh_npy_type(head, have, member->bytes, &found))
		return status;
	status = oh_shard_builder_type(in->builder, &found, type);
	return status ? refuse_built(in, status, error) : ONEHOP_OK;
}

static onehop_status
take_part(struct indexing *in, const struct oh_tar_key *key, struct onehop_error *error)
{
	const struct oh_tar_member *member = &in->walk->tar.member;
	struct oh_shard_part part = {.offset = member->offset, .bytes = member->bytes};
	if (!is_utf8(member->name, member->name_bytes))
		return refuse_member(in, ONEHOP_UNSUPPORTED_DATA, "its name is no UTF-8",
				     "rename it, or convert the archive's names", error);
	onehop_status status = take_sample(in, key->key_bytes, error);
	if (!status)
		status = take_field(in, key, &part.field, error);
	if (!status)
		status = take_type(in, &part.type, error);
	if (!status && in->checksums)
		status = oh_walk_crc32c(in->walk, part.offset, part.bytes, &part.crc32c, error);
	if (status)
		return status;
	in->info.payload_bytes += part.bytes;
	status = oh_shard_builder_part(in->builder, &part, OH_SHARD_NO_TIME);
	return status ? refuse_built(in, status, error) : ONEHOP_OK;
}

static onehop_status
take_member(struct indexing *in, struct onehop_error *error)
{
	const struct oh_tar_member *member = &in->walk->tar.member;
	struct oh_tar_key key;
	if (member->type != '0') {
		in->info.skipped++;
		return ONEHOP_OK;
	}
	in->info.members++;
	switch (oh_tar_split(member->name, member->name_bytes, &key)) {
	case OH_TAR_PART:
		return take_part(in, &key, error);
	case OH_TAR_APPLE_DOUBLE:
		in->info.apple_doubles++;
		break;
	default:
		break;
	}
	in->info.skipped++;
	return ONEHOP_OK;
}

/* ------------------------------------------------------------------------------------------- */
/* The index */

static onehop_status
take_members(struct indexing *in, struct onehop_error *error)
{
	enum oh_tar_event event;
	onehop_status status;
	oh_walk_begin(in->walk, in->walk->file_bytes, in->checksums);
	for (;;) {
		status = oh_walk_next(in->walk, &event, error);
		if (status || event == OH_TAR_END)
			return status;
		status = take_member(in, error);
		if (status)
			return status;
	}
}

static onehop_status
publish(struct indexing *in, struct onehop_error *error)
{
	uint64_t size = oh_shard_builder_bytes(in->builder);
	const struct oh_shard_facts facts = {
		.shard_bytes = in->walk->file_bytes,
		.tar_end = in->walk->tar.end_at,
		.members = in->info.members,
		.flags = in->checksums ? OH_SHARD_CHECKSUMS : 0,
		.alignment_bytes = OH_TAR_BLOCK,
	};
	struct oh_shard_view view;
	void *bytes = malloc(size);
	if (!bytes)
		return oh_fail_no_memory(error, size, "the index of a shard");
	oh_shard_builder_finish(in->builder, &facts, bytes);
	onehop_status status = oh_shard_open(bytes, size, in->path, &view, error);
	if (!status)
		status = oh_indexed_keys(&view, in->path, error);
	if (!status)
		status = oh_walk_check(in->walk, error);
	if (!status)
		status = oh_indexed_publish(in->path, bytes, size, error);
	free(bytes);
	in->info.samples = oh_shard_builder_samples(in->builder);
	in->info.shard_bytes = facts.shard_bytes;
	in->info.index_bytes = size;
	return status;
}

static onehop_status
make_index(struct oh_walk *walk, int checksums, struct onehop_shard_info *info,
	   struct onehop_error *error)
{
	struct indexing *in = calloc(1, sizeof *in);
	if (!in)
		return oh_fail_no_memory(error, sizeof *in, "a shard's fields");
	in->walk = walk;
	in->path = walk->path;
	in->checksums = checksums;
	onehop_status status = oh_shard_builder_create(&in->builder);
	if (status)
		oh_fail_no_memory(error, 0, "an index");
	if (!status)
		status = take_members(in, error);
	if (!status)
		status = publish(in, error);
	if (!status)
		*info = in->info;
	oh_shard_builder_destroy(in->builder);
	free(in);
	return status;
}

/* ------------------------------------------------------------------------------------------- */
/* What is there already */

/* 1 if the side file, or where there is none the trailer, fits and has what is asked for. */
static int
has_index(struct oh_walk *walk, const struct oh_trailer *trailer, int checksums,
	  struct onehop_shard_info *info)
{
	struct oh_indexed indexed;
	onehop_status status = oh_indexed_side(walk, &indexed, NULL);
	if (status == ONEHOP_NOT_FOUND)
		status = oh_indexed_trailer(walk, trailer, &indexed, NULL);
	if (status)
		return 0;
	int good = !oh_indexed_fits(walk, &indexed, NULL) &&
		   !oh_indexed_agree(walk, trailer, &indexed, NULL) &&
		   (!checksums || indexed.view.flags & OH_SHARD_CHECKSUMS);
	if (good)
		oh_indexed_info(&indexed, info);
	oh_indexed_free(&indexed);
	return good;
}

/* Walks what the trailer speaks of, and gives its index a file of its own. */
static onehop_status
copy_trailer(struct oh_walk *walk, const struct oh_trailer *trailer, struct onehop_shard_info *info,
	     struct onehop_error *error)
{
	struct oh_indexed indexed;
	enum oh_tar_event event = OH_TAR_MORE;
	uint64_t members = 0;
	onehop_status status = oh_indexed_trailer(walk, trailer, &indexed, error);
	if (status / 100 == 5)
		oh_remedy(error,
			  "pack it anew; or, where times and streams are not needed, cut its "
			  "trailer off: truncate -s %llu",
			  (unsigned long long)trailer->tar_end + 2 * OH_TAR_BLOCK);
	if (status)
		return status;
	oh_walk_begin(walk, trailer->begin, 0);
	while (!status && event != OH_TAR_END) {
		status = oh_walk_next(walk, &event, error);
		members += !status && event == OH_TAR_MEMBER && walk->tar.member.type == '0';
	}
	if (!status)
		status = oh_indexed_counts(walk, trailer, &indexed, members, error);
	if (!status)
		status = oh_walk_check(walk, error);
	if (!status)
		status = oh_indexed_publish(walk->path, indexed.bytes, indexed.size, error);
	if (!status)
		oh_indexed_info(&indexed, info);
	oh_indexed_free(&indexed);
	return status;
}

static onehop_status
index_walk(struct oh_walk *walk, int checksums, int replace, struct onehop_shard_info *info,
	   struct onehop_error *error)
{
	struct oh_trailer trailer;
	onehop_status status = oh_trailer_find(walk, &trailer, error);
	if (status || (!replace && has_index(walk, &trailer, checksums, info)))
		return status;
	return trailer.is_there ? copy_trailer(walk, &trailer, info, error)
				: make_index(walk, checksums, info, error);
}

onehop_status
onehop_shard_index(const char *path, uint32_t checksums, uint32_t replace,
		   struct onehop_shard_info *info, struct onehop_error *error)
{
	struct onehop_shard_info ours = {.size = sizeof ours};
	struct oh_walk walk;
	if (!path || (info && info->size < 8)) {
		oh_fail(error, ONEHOP_INVALID_ARGUMENT, "onehop_shard_index: %s",
			path ? "info->size is not set" : "path is NULL");
		return ONEHOP_INVALID_ARGUMENT;
	}
	onehop_status status = oh_walk_open(&walk, path, error);
	if (status)
		return status;
	status = index_walk(&walk, checksums != 0, replace != 0, &ours, error);
	oh_walk_close(&walk);
	if (!status && info)
		oh_give(info, &ours, sizeof ours);
	return status;
}
