/* What may be in a shard: names that every tar reader extracts and every index of ours can hold.
 *
 * A key's last component has no dot, since a member's name is cut at its first one. No name has a
 * space or a control character, since DALI's index is split at spaces; none is absolute, or has "." or
 * ".." or an empty component, which tar readers change or refuse.
 */
#include "dataset/writer.h"
#include "base/arith.h"
#include "base/utf8.h"
#include "format/tar.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT_MOST (2u << 20)

void
onehop_shard_options_init(struct onehop_shard_options *options)
{
	*options = (struct onehop_shard_options){
		.size = sizeof *options,
		.align = ONEHOP_ALIGN_SAMPLE,
		.pad = ONEHOP_PAD_GNU,
		.alignment_bytes = 4096,
		.sync = 1,
	};
}

void
onehop_part_source_init(struct onehop_part_source *part)
{
	*part = (struct onehop_part_source){.size = sizeof *part, .timestamp_ns = ONEHOP_NO_TIME};
}

void
onehop_sample_source_init(struct onehop_sample_source *sample)
{
	*sample = (struct onehop_sample_source){
		.size = sizeof *sample, .rows = 1, .timestamp_ns = ONEHOP_NO_TIME};
}

static onehop_status
unfilled(const char *what, const char *by, uint32_t size, struct onehop_error *error)
{
	return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "%s not filled by %s(): size is %u", what, by,
		       size);
}

onehop_status
oh_writer_take_options(const struct onehop_shard_options *theirs,
		       struct onehop_shard_options *options, struct onehop_error *error)
{
	onehop_shard_options_init(options);
	if (!theirs)
		return ONEHOP_OK;
	if (theirs->size < sizeof *options)
		return unfilled("the shard's options were", "onehop_shard_options_init",
				theirs->size, error);
	*options = *theirs;
	if (options->align > ONEHOP_ALIGN_SAMPLE || options->pad > ONEHOP_PAD_DIR)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "align %u and pad %u: both are 0, 1 or 2", options->align,
			       options->pad);
	if (options->align != ONEHOP_ALIGN_NONE &&
	    (options->alignment_bytes < 512 || options->alignment_bytes > ALIGNMENT_MOST ||
	     options->alignment_bytes & (options->alignment_bytes - 1)))
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "an alignment of %u bytes: it is a power of two from 512 to %u",
			       options->alignment_bytes, ALIGNMENT_MOST);
	if (options->align == ONEHOP_ALIGN_NONE)
		options->alignment_bytes = 512;
	if (options->mtime < 0 || (uint64_t)options->mtime > OH_TAR_MTIME_MOST)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "an mtime of %lld s: it is 0 to %llu", (long long)options->mtime,
			       (unsigned long long)OH_TAR_MTIME_MOST);
	return ONEHOP_OK;
}

/* ---- names */

static onehop_status
bad_name(const char *what, const char *name, const char *rule, const char *remedy,
	 struct onehop_error *error)
{
	char shown[OH_SHOWN];
	oh_fail(error, ONEHOP_INVALID_ARGUMENT, "%s %s %s", what,
		oh_show(shown, name, strlen(name)), rule);
	oh_remedy(error, "%s", remedy);
	return ONEHOP_INVALID_ARGUMENT;
}

/* The rule that one component of a key breaks, or NULL. */
static const char *
component_rule(const char *at, size_t bytes, int is_last)
{
	if (bytes == 0)
		return "has an empty component";
	if (bytes > OH_TAR_COMPONENT_MOST)
		return "has a component of more than 255 bytes";
	if (is_last)
		return memchr(at, '.', bytes) ? "has a dot in its last component" : NULL;
	if ((bytes == 1 && at[0] == '.') || (bytes == 2 && memcmp(at, "..", 2) == 0))
		return "has a component that is \".\" or \"..\"";
	return NULL;
}

static const char *
characters_rule(const char *name, size_t bytes)
{
	for (size_t at = 0, length; at < bytes; at += length) {
		unsigned char c = (unsigned char)name[at];
		length = oh_utf8_length((const unsigned char *)name + at, bytes - at);
		if (!length)
			return "is not UTF-8";
		if (c <= ' ' || c == 0x7F)
			return "has a space or a control character in it";
	}
	return NULL;
}

static onehop_status
check_key(const char *key, struct onehop_error *error)
{
	const char *rule = NULL;
	size_t bytes = strlen(key);
	if (bytes > OH_TAR_NAME_MOST)
		rule = "has more than 1024 bytes";
	for (const char *at = key; !rule;) {
		const char *slash = strchr(at, '/');
		rule = component_rule(at, slash ? (size_t)(slash - at) : strlen(at), !slash);
		if (!slash)
			break;
		at = slash + 1;
	}
	if (!rule)
		rule = characters_rule(key, bytes);
	if (rule)
		return bad_name("the key", key, rule,
				"rename it: every tar reader and WebDataset must read it alike",
				error);
	return ONEHOP_OK;
}

static onehop_status
check_field(const char *field, struct onehop_error *error)
{
	const char *rule = NULL;
	if (!*field)
		rule = "is empty";
	for (const char *c = field; *c && !rule; c++)
		if (*c <= ' ' || *c >= 0x7F || *c == '/')
			rule = "has a character in it that is a slash, a space or not ASCII";
	if (rule)
		return bad_name("the field", field, rule, "rename it", error);
	return ONEHOP_OK;
}

/* The whole name is neither too long nor one that readers skip. */
static onehop_status
check_member(const char *key, const char *field, struct onehop_error *error)
{
	char name[OH_TAR_NAME_MOST + 1];
	struct oh_tar_key cut;
	const char *slash = strrchr(key, '/'), *last = slash ? slash + 1 : key;
	size_t key_bytes = strlen(key), bytes = key_bytes + 1 + strlen(field);
	if (bytes > OH_TAR_NAME_MOST)
		return bad_name("the member of key", key,
				"has a name of more than 1024 bytes with its field", "shorten them",
				error);
	if (bytes - (size_t)(last - key) > OH_TAR_COMPONENT_MOST)
		return bad_name("the member of key", key,
				"has a last component of more than 255 bytes with its field",
				"shorten them", error);
	memcpy(name, key, key_bytes);
	name[key_bytes] = '.';
	memcpy(name + key_bytes + 1, field, bytes - key_bytes - 1);
	if (oh_tar_split(name, bytes, &cut) != OH_TAR_PART || cut.key_bytes != key_bytes)
		return bad_name("the key", key, "is one that WebDataset skips, with its field",
				"rename it", error);
	return ONEHOP_OK;
}

static char
small(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

void
oh_writer_name(const char *key, const char *field, struct oh_member_name *name)
{
	size_t key_bytes = strlen(key);
	name->field_bytes = (uint32_t)strlen(field);
	name->bytes = (uint32_t)key_bytes + 1 + name->field_bytes;
	memcpy(name->text, key, key_bytes);
	name->text[key_bytes] = '.';
	memcpy(name->text + key_bytes + 1, field, name->field_bytes + 1);
	name->field = name->text + key_bytes + 1;
	for (uint32_t i = 0; i <= name->field_bytes; i++)
		name->small[i] = small(field[i]);
}

/* ---- a sample and its parts */

onehop_status
oh_writer_take_sample(const struct onehop_sample_source *theirs,
		      struct onehop_sample_source *sample, struct onehop_error *error)
{
	if (theirs->size < sizeof *sample)
		return unfilled("the sample was", "onehop_sample_source_init", theirs->size, error);
	*sample = *theirs;
	if (!sample->key)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "a sample's key is NULL");
	if (!sample->rows)
		return bad_name("the sample", sample->key, "has 0 rows", "give it 1, or of a chunk",
				error);
	if (sample->episode && characters_rule(sample->episode, strlen(sample->episode)))
		return bad_name("the episode", sample->episode,
				characters_rule(sample->episode, strlen(sample->episode)),
				"rename it", error);
	if (sample->stream && characters_rule(sample->stream, strlen(sample->stream)))
		return bad_name("the stream", sample->stream,
				characters_rule(sample->stream, strlen(sample->stream)), "rename it",
				error);
	return check_key(sample->key, error);
}

/* What a part says of its array, as far as that can be wrong without its payload. */
static onehop_status
take_type(const struct onehop_sample_source *sample, struct oh_new_part *part,
	  struct onehop_error *error)
{
	const struct onehop_part_source *source = &part->source;
	part->has_type = 0;
	if (!source->dtype)
		return ONEHOP_OK;
	part->type = (struct oh_shard_type){
		.dtype = oh_shard_dtype_code(source->dtype),
		.rank = (uint16_t)source->rank,
		.data_offset = (uint32_t)source->data_offset,
	};
	if (!part->type.dtype)
		return bad_name("the dtype", source->dtype, "is none that a shard's arrays can have",
				"name it as safetensors does (\"F32\"), or store plain bytes", error);
	if (source->rank > OH_SHARD_MAX_RANK || source->data_offset > UINT32_MAX)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "%s.%s: an array of %u dimensions that begins at byte %llu: at most 8, "
			       "within 4 GiB",
			       sample->key, source->field, source->rank,
			       (unsigned long long)source->data_offset);
	memcpy(part->type.shape, source->shape, source->rank * sizeof *source->shape);
	part->has_type = 1;
	return ONEHOP_OK;
}

static onehop_status
check_part(const struct onehop_sample_source *sample, struct oh_new_part *part,
	   struct onehop_error *error)
{
	const struct onehop_part_source *source = &part->source;
	if (!source->field)
		return bad_name("a field of the sample", sample->key, "is NULL", "name it", error);
	if (!source->path && !source->data && source->bytes && !source->joined)
		return bad_name("the field", source->field, "has neither data nor a path",
				"give it one", error);
	onehop_status status = check_field(source->field, error);
	if (!status)
		status = check_member(sample->key, source->field, error);
	if (!status)
		status = take_type(sample, part, error);
	return status;
}

static int
compare_fields(const void *a, const void *b)
{
	const char *left = *(const char *const *)a, *right = *(const char *const *)b;
	while (*left && small(*left) == small(*right)) {
		left++;
		right++;
	}
	return small(*left) - small(*right);
}

static onehop_status
check_twins(const struct onehop_sample_source *sample, const struct oh_new_part *parts,
	    uint64_t count, struct onehop_error *error)
{
	onehop_status status = ONEHOP_OK;
	const char **fields = malloc(count * sizeof *fields);
	if (!fields)
		return oh_fail_no_memory(error, count * sizeof *fields, "a sample's fields");
	for (uint64_t i = 0; i < count; i++)
		fields[i] = parts[i].source.field;
	qsort(fields, count, sizeof *fields, compare_fields);
	for (uint64_t i = 1; i < count && !status; i++)
		if (compare_fields(fields + i - 1, fields + i) == 0)
			status = bad_name("the field", fields[i],
					  "is there twice (readers take capitals as small letters)",
					  "rename one", error);
	free(fields);
	return status;
}

/* A joined part's bytes come behind those of the one before it, in a part that is in memory. */
static onehop_status
check_joined(struct oh_new_part *parts, uint64_t index, struct onehop_error *error)
{
	const struct onehop_part_source *part = &parts[index].source;
	uint64_t joiner = index, begin, end;
	while (joiner > 0 && parts[joiner].source.joined)
		joiner--;
	const struct onehop_part_source *in = &parts[joiner].source;
	begin = joiner + 1 < index ? parts[index - 1].source.offset + parts[index - 1].source.bytes : 0;
	if (joiner == index || in->path || in->dtype || strcmp(in->field, OH_WRITER_JOINED) != 0 ||
	    part->path || part->data || part->offset < begin ||
	    oh_add(part->offset, part->bytes, &end) || end > in->bytes)
		return bad_name("the joined field", part->field,
				"has no place in the sample's " OH_WRITER_JOINED,
				"give that part first, in memory, and the places in it in order", error);
	parts[joiner].joins = 1;
	return ONEHOP_OK;
}

onehop_status
oh_writer_take_parts(const struct onehop_sample_source *sample,
		     const struct onehop_part_source *theirs, uint64_t count,
		     struct oh_new_part *parts, struct onehop_error *error)
{
	const unsigned char *at = (const unsigned char *)theirs;
	for (uint64_t i = 0; i < count; i++, at += theirs->size) {
		const struct onehop_part_source *source = (const void *)at;
		if (source->size < sizeof *source || source->size != theirs->size)
			return unfilled("a part was", "onehop_part_source_init", source->size,
					error);
		parts[i].source = *source;
		parts[i].joins = 0;
		onehop_status status = check_part(sample, parts + i, error);
		if (!status && source->joined)
			status = check_joined(parts, i, error);
		if (status)
			return status;
	}
	return count > 1 ? check_twins(sample, parts, count, error) : ONEHOP_OK;
}
