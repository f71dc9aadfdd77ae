/* The first pass over a GGUF header: magic, version, counts, and the extent of every key, value and
 * tensor info.
 *
 * Proves that the header is in the text, believing a count or a length only as far as the file can
 * hold it, so nothing is allocated or read for numbers that lie. Changes no byte: when the text is
 * too short it says how much it needs and can run again. Arrays in arrays cost no stack.
 */
#include "format/gguf_walk.h"
#include "base/arith.h"
#include "format/fail.h"
#include "format/safetensors.h"

#include <stdio.h>
#include <string.h>

#define HEAD_BYTES      24 /* magic, version, two counts */
#define MIN_KEY_BYTES   14 /* length, one letter, kind, value */
#define MIN_INFO_BYTES  24 /* length, no name, n_dims 0, type, offset */
#define MAX_KEY_BYTES   65535
#define MAX_NAME_BYTES  64
#define MAX_ARRAY_DEPTH 16

const uint8_t oh_gguf_kind_bytes[OH_META_KINDS] = {
    [OH_META_U8] = 1,  [OH_META_I8] = 1,  [OH_META_U16] = 2, [OH_META_I16] = 2,
    [OH_META_U32] = 4, [OH_META_I32] = 4, [OH_META_F32] = 4, [OH_META_BOOL] = 1,
    [OH_META_U64] = 8, [OH_META_I64] = 8, [OH_META_F64] = 8,
};

onehop_status
oh_gguf_refuse(struct oh_gguf *r, onehop_status status, const char *format, ...)
{
	char sentence[512], shown[OH_SHOWN] = "";
	va_list args;
	va_start(args, format);
	vsnprintf(sentence, sizeof sentence, format, args);
	va_end(args);
	if (!r->part)
		return oh_refuse(r->error, status, r->path, "%s", sentence);
	if (r->named)
		oh_show(shown, (const char *)r->text + r->name.at, r->name.bytes);
	return oh_refuse(r->error, status, r->path, "byte %llu: %s %llu%s%s: %s",
			 (unsigned long long)r->at, r->part, (unsigned long long)r->number,
			 r->named ? " " : "", shown, sentence);
}

void
oh_gguf_part(struct oh_gguf *r, const char *part, uint64_t number)
{
	r->part = part;
	r->number = number;
	r->named = 0;
}

/* The next bytes are in the text. If they are in the file but not in the text, fails with r->need
 * set and no error. */
static onehop_status
want(struct oh_gguf *r, uint64_t bytes, const char *what)
{
	uint64_t left = r->file_bytes - r->at, end;
	if (bytes > left) {
		oh_gguf_refuse(r, ONEHOP_MALFORMED,
			       "truncated: %s of %llu %s reaches past the end of the "
			       "file, where only %llu remain",
			       what, (unsigned long long)bytes, oh_bytes_word(bytes),
			       (unsigned long long)left);
		oh_remedy(r->error, "get a complete copy of the file");
		return ONEHOP_MALFORMED;
	}
	end = r->at + bytes;
	if (end <= r->have)
		return ONEHOP_OK;
	if (end > OH_GGUF_MAX_HEADER)
		return oh_gguf_refuse(r, ONEHOP_UNSUPPORTED_DATA,
				      "%s of %llu bytes: metadata and tensor infos "
				      "are too large, the limit is %llu bytes",
				      what, (unsigned long long)bytes,
				      (unsigned long long)OH_GGUF_MAX_HEADER);
	/* Read twice as much each time, so that all passes together cost twice the last. */
	r->need = oh_max(end, oh_min(2 * r->have, OH_GGUF_MAX_HEADER));
	r->need = oh_min(r->need, r->file_bytes);
	return OH_GGUF_MORE;
}

uint64_t
oh_gguf_number(const struct oh_gguf *r, uint64_t at, unsigned bytes)
{
	uint64_t value = 0;
	while (bytes-- > 0)
		value = value << 8 | r->text[at + bytes];
	return value;
}

static onehop_status
take(struct oh_gguf *r, unsigned bytes, uint64_t *value, const char *what)
{
	onehop_status status = want(r, bytes, what);
	if (status)
		return status;
	*value = oh_gguf_number(r, r->at, bytes);
	r->at += bytes;
	return ONEHOP_OK;
}

/* u64 length, then so many bytes. */
static onehop_status
take_string(struct oh_gguf *r, struct oh_name *string, uint64_t most, const char *what)
{
	uint64_t bytes;
	onehop_status status = take(r, 8, &bytes, "a string's length");
	if (status)
		return status;
	string->at = (uint32_t)r->at;
	string->bytes = (uint32_t)bytes;
	if (bytes > most && bytes <= r->have - r->at) {
		r->name = *string;
		r->named = 1;
	}
	if (bytes > most && bytes <= r->file_bytes - r->at)
		return oh_gguf_refuse(r, ONEHOP_MALFORMED,
				      "%s is %llu bytes long, at most %llu are allowed", what,
				      (unsigned long long)bytes, (unsigned long long)most);
	status = want(r, bytes, what);
	if (!status)
		r->at += bytes;
	return status;
}

/* A number of things that take at least so many bytes each. */
static onehop_status
check_count(struct oh_gguf *r, uint64_t count, uint64_t least_bytes, const char *what)
{
	uint64_t left = r->file_bytes - r->at;
	if (count <= left / least_bytes)
		return ONEHOP_OK;
	return oh_gguf_refuse(r, ONEHOP_MALFORMED,
			      "%s %llu reaches past the end of the file, where only %llu bytes "
			      "remain: truncated, or the number is wrong",
			      what, (unsigned long long)count, (unsigned long long)left);
}

/* --------------------------------------------------------------------------------------------- */

static onehop_status
check_version(struct oh_gguf *r, uint64_t version)
{
	if (version == 2 || version == 3)
		return ONEHOP_OK;
	if (version != 0 && (version & 0xFFFF) == 0) {
		oh_gguf_refuse(r, ONEHOP_UNSUPPORTED_DATA,
			       "a big-endian GGUF file (version %u in the other byte "
			       "order): only little-endian is supported",
			       __builtin_bswap32((uint32_t)version));
		oh_remedy(r->error, "convert it, for example with gguf_convert_endian.py");
		return ONEHOP_UNSUPPORTED_DATA;
	}
	return oh_gguf_refuse(r, ONEHOP_UNSUPPORTED_DATA,
			      "GGUF version %llu is not supported, 2 and 3 are",
			      (unsigned long long)version);
}

static onehop_status
check_magic(struct oh_gguf *r)
{
	const char *what = oh_sniff(r->text, oh_min(r->have, OH_HEAD_BYTES));
	char shown[OH_SHOWN];
	if (r->file_bytes == 0)
		return oh_gguf_refuse(r, ONEHOP_MALFORMED, "the file is empty (0 bytes)");
	if (r->have >= 4 && memcmp(r->text, "GGUF", 4) == 0)
		return ONEHOP_OK;
	if (r->file_bytes < 4)
		return oh_gguf_refuse(r, ONEHOP_MALFORMED,
				      "truncated: the file has only %llu %s, too short for "
				      "the magic of GGUF",
				      (unsigned long long)r->file_bytes,
				      oh_bytes_word(r->file_bytes));
	oh_show(shown, (const char *)r->text, 4);
	if (what && memcmp(r->text + 2, "gg", 2) != 0 && memcmp(r->text + 2, "GG", 2) != 0)
		return oh_refuse_kind(r->path, r->text, r->have, what, "a GGUF file", r->error);
	return oh_gguf_refuse(r, ONEHOP_MALFORMED,
			      "the magic is %s, should be \"GGUF\": this is %s", shown,
			      what ? what : "not a GGUF file");
}

static onehop_status
read_head(struct oh_gguf *r)
{
	uint64_t version;
	onehop_status status;
	/* The magic is judged by what is there; the rest needs the bytes. */
	if (r->have < 4 && r->have < r->file_bytes)
		return want(r, oh_min(HEAD_BYTES, r->file_bytes), "the head");
	status = check_magic(r);
	if (status)
		return status;
	r->at = 4;
	status = take(r, 4, &version, "the version");
	if (!status)
		status = check_version(r, version);
	if (!status)
		status = take(r, 8, &r->tensor_count, "the tensor count");
	if (!status)
		status = take(r, 8, &r->key_count, "the key count");
	if (!status)
		status = check_count(r, r->tensor_count, MIN_INFO_BYTES,
				     "the tensor count (tensor_count)");
	if (!status)
		status = check_count(r, r->key_count, MIN_KEY_BYTES,
				     "the key count (metadata_kv_count)");
	return status;
}

static onehop_status
check_bools(struct oh_gguf *r, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		if (r->text[r->at + i] <= 1)
			continue;
		return oh_gguf_refuse(r, ONEHOP_MALFORMED, "a bool is %u, should be 0 or 1",
				      r->text[r->at + i]);
	}
	return ONEHOP_OK;
}

static onehop_status
take_kind(struct oh_gguf *r, uint64_t *kind, const char *what)
{
	onehop_status status = take(r, 4, kind, what);
	if (!status && *kind >= OH_META_KINDS)
		return oh_gguf_refuse(r, ONEHOP_UNSUPPORTED_DATA, "%s %llu is unknown", what,
				      (unsigned long long)*kind);
	return status;
}

/* count values of a kind of fixed size. */
static onehop_status
skip_fixed(struct oh_gguf *r, uint64_t kind, uint64_t count)
{
	uint64_t bytes = count * oh_gguf_kind_bytes[kind]; /* count was checked against the file */
	onehop_status status = want(r, bytes, count == 1 ? "a value" : "an array");
	if (!status && kind == OH_META_BOOL)
		status = check_bools(r, count);
	if (!status)
		r->at += bytes;
	return status;
}

static onehop_status
skip_strings(struct oh_gguf *r, uint64_t count)
{
	onehop_status status = ONEHOP_OK;
	struct oh_name ignored;
	while (count-- > 0 && !status)
		status = take_string(r, &ignored, UINT64_MAX, "a string");
	return status;
}

/* An array's kind and count. */
static onehop_status
take_array_head(struct oh_gguf *r, uint64_t *kind, uint64_t *count)
{
	onehop_status status = take_kind(r, kind, "the array's element type");
	uint64_t least;
	if (!status)
		status = take(r, 8, count, "the array's length");
	if (status)
		return status;
	least = *kind == OH_META_STRING  ? 8
		: *kind == OH_META_ARRAY ? 12
					 : oh_gguf_kind_bytes[*kind];
	return check_count(r, *count, least, "the array's length");
}

/* Arrays may hold arrays: left[] counts what is left of each that is open. */
static onehop_status
skip_array(struct oh_gguf *r)
{
	uint64_t left[MAX_ARRAY_DEPTH];
	unsigned depth = 0;
	onehop_status status;
	do {
		uint64_t kind, count;
		status = take_array_head(r, &kind, &count);
		if (status)
			return status;
		if (depth > 0)
			left[depth - 1]--;
		if (kind == OH_META_ARRAY) {
			if (depth == MAX_ARRAY_DEPTH)
				return oh_gguf_refuse(r, ONEHOP_UNSUPPORTED_DATA,
						      "nested arrays (array of "
						      "array) deeper than %d levels",
						      MAX_ARRAY_DEPTH);
			left[depth++] = count;
		} else {
			status = kind == OH_META_STRING ? skip_strings(r, count)
							: skip_fixed(r, kind, count);
			if (status)
				return status;
		}
		while (depth > 0 && left[depth - 1] == 0)
			depth--;
	} while (depth > 0);
	return ONEHOP_OK;
}

/* A key with its value; *kind is the value's and *value where it begins. */
onehop_status
oh_gguf_key(struct oh_gguf *r, uint64_t index, uint64_t *kind, uint64_t *value)
{
	struct oh_name key;
	onehop_status status;
	oh_gguf_part(r, "key", index);
	status = take_string(r, &key, MAX_KEY_BYTES, "the key");
	if (status)
		return status;
	if (key.bytes == 0)
		return oh_gguf_refuse(r, ONEHOP_MALFORMED, "an empty key (length 0)");
	r->name = key;
	r->named = 1;
	status = take_kind(r, kind, "the value type");
	*value = r->at;
	if (status)
		return status;
	if (*kind == OH_META_STRING)
		return skip_strings(r, 1);
	if (*kind == OH_META_ARRAY)
		return skip_array(r);
	return skip_fixed(r, *kind, 1);
}

onehop_status
oh_gguf_next_info(struct oh_gguf *r, uint64_t index, struct oh_gguf_info *info)
{
	onehop_status status;
	oh_gguf_part(r, "tensor info", index);
	status = take_string(r, &info->name, MAX_NAME_BYTES, "the tensor's name");
	if (status)
		return status;
	r->name = info->name;
	r->named = 1;
	info->dims_at = r->at;
	status = take(r, 4, &info->n_dims, "n_dims");
	if (status)
		return status;
	if (info->n_dims > OH_GGUF_MAX_DIMS)
		return oh_gguf_refuse(r, ONEHOP_UNSUPPORTED_DATA,
				      "n_dims is %llu, at most %d dimensions are "
				      "supported",
				      (unsigned long long)info->n_dims, OH_GGUF_MAX_DIMS);
	status = want(r, 8 * info->n_dims, "the list of dimensions");
	if (status)
		return status;
	r->at += 8 * info->n_dims;
	status = take(r, 4, &info->type, "the type");
	return status ? status : take(r, 8, &info->offset, "the offset");
}

/* The first pass. */
onehop_status
oh_gguf_walk(struct oh_gguf *r)
{
	struct oh_gguf_info info;
	uint64_t kind, value;
	onehop_status status = read_head(r);
	r->keys_at = r->at;
	for (uint64_t i = 0; i < r->key_count && !status; i++)
		status = oh_gguf_key(r, i, &kind, &value);
	r->infos_at = r->at;
	for (uint64_t i = 0; i < r->tensor_count && !status; i++)
		status = oh_gguf_next_info(r, i, &info);
	r->infos_end = r->at;
	return status;
}
