/* The GGUF reader's second pass: the rules for keys and tensors, and the table.
 *
 * Runs once oh_gguf_walk has found the whole header in the text. A tensor's shape is written over
 * its own info, whose numbers are spent by then. Invariants of a table: entries sorted, inside the
 * file, no byte in two of them. Gaps and bytes behind the last tensor are allowed; values of keys
 * are not judged, but for those that say how the file is read (alignment, split set).
 */
#include "format/gguf_walk.h"
#include "base/arith.h"
#include "base/utf8.h"
#include "format/fail.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ALIGNMENT (UINT32_C(64) << 20)

static onehop_status
check_utf8(struct oh_gguf *r, struct oh_name name, const char *what)
{
	const uint8_t *text = r->text + name.at;
	for (uint64_t at = 0; at < name.bytes;) {
		size_t length = oh_utf8_length(text + at, name.bytes - at);
		if (!length) {
			r->at = name.at + at;
			return oh_gguf_refuse(r, ONEHOP_MALFORMED, "%s is not UTF-8 (byte 0x%02x)",
					      what, text[at]);
		}
		at += length;
	}
	return ONEHOP_OK;
}

static onehop_status
read_alignment(struct oh_gguf *r, uint64_t kind, uint64_t at)
{
	uint64_t value;
	if (kind != OH_META_U32)
		return oh_gguf_refuse(r, ONEHOP_MALFORMED,
				      "the alignment is of value type %llu, should be u32 "
				      "(4)",
				      (unsigned long long)kind);
	value = oh_gguf_number(r, at, 4);
	if (value == 0 || value & (value - 1))
		return oh_gguf_refuse(r, ONEHOP_MALFORMED, "alignment %llu is not a power of two",
				      (unsigned long long)value);
	if (value > MAX_ALIGNMENT)
		return oh_gguf_refuse(r, ONEHOP_UNSUPPORTED_DATA,
				      "alignment %llu is too large, the limit is %u",
				      (unsigned long long)value, MAX_ALIGNMENT);
	r->alignment = (uint32_t)value;
	return ONEHOP_OK;
}

/* An integer of any kind, from 0 to most: writers differ in the kind that they use. */
static onehop_status
read_split(struct oh_gguf *r, uint64_t kind, uint64_t at, uint64_t most, uint64_t *value)
{
	unsigned bytes;
	int is_signed =
	    kind == OH_META_I8 || kind == OH_META_I16 || kind == OH_META_I32 || kind == OH_META_I64;
	if (kind == OH_META_F32 || kind == OH_META_F64 || kind == OH_META_BOOL ||
	    kind == OH_META_STRING || kind == OH_META_ARRAY)
		return oh_gguf_refuse(r, ONEHOP_MALFORMED,
				      "the value is of type %llu, should be an integer",
				      (unsigned long long)kind);
	bytes = oh_gguf_kind_bytes[kind];
	*value = oh_gguf_number(r, at, bytes);
	if (is_signed && *value >> (8 * bytes - 1))
		return oh_gguf_refuse(r, ONEHOP_MALFORMED, "the value is negative");
	if (*value > most)
		return oh_gguf_refuse(r, ONEHOP_MALFORMED, "%llu is too large, at most %llu",
				      (unsigned long long)*value, (unsigned long long)most);
	return ONEHOP_OK;
}

static int
key_is(const struct oh_gguf *r, const char *key)
{
	return strlen(key) == r->name.bytes &&
	       memcmp(r->text + r->name.at, key, r->name.bytes) == 0;
}

/* The keys that say how the file is to be read. */
static onehop_status
read_own_key(struct oh_gguf *r, uint64_t kind, uint64_t at)
{
	uint64_t value = 0;
	onehop_status status = ONEHOP_OK;
	if (key_is(r, "general.alignment"))
		return read_alignment(r, kind, at);
	if (key_is(r, "split.no")) {
		status = read_split(r, kind, at, UINT16_MAX, &value);
		r->split_no = (uint32_t)value;
	} else if (key_is(r, "split.count")) {
		status = read_split(r, kind, at, UINT16_MAX, &value);
		r->split_count = (uint32_t)value;
	} else if (key_is(r, "split.tensors.count")) {
		status = read_split(r, kind, at, UINT32_MAX, &value);
		r->split_tensors = value;
	}
	return status;
}

static struct oh_name
key_name(const uint8_t *text, const void *items, uint64_t index)
{
	uint32_t at = ((const uint32_t *)items)[index];
	uint64_t bytes = 0;
	for (int i = 7; i >= 0; i--)
		bytes = bytes << 8 | text[at + (unsigned)i];
	return (struct oh_name){at + 8, (uint32_t)bytes};
}

static onehop_status
read_key(struct oh_gguf *r, uint64_t index, struct oh_names *names)
{
	uint64_t kind, value, begin = r->at;
	onehop_status status = oh_gguf_key(r, index, &kind, &value);
	assert(!status); /* oh_gguf_walk() has been here */
	r->meta[index] = (uint32_t)begin;
	r->meta[index + 1] = (uint32_t)r->at;
	status = check_utf8(r, r->name, "the key");
	if (status)
		return status;
	if (oh_names_add(names, index) != OH_NAMES_NEW) {
		r->at = begin;
		return oh_gguf_refuse(r, ONEHOP_MALFORMED, "duplicate key: it stands twice");
	}
	begin = r->at;
	r->at = value;
	status = read_own_key(r, kind, value);
	r->at = begin;
	return status;
}

static onehop_status
read_keys(struct oh_gguf *r)
{
	struct oh_names names;
	onehop_status status;
	/* One place more, for where the last one ends. */
	r->meta = malloc((r->key_count + 1) * sizeof *r->meta);
	if (!r->meta)
		return oh_fail_no_memory(r->error, (r->key_count + 1) * sizeof *r->meta,
					 "metadata");
	status = oh_names_init(&names, r->text, r->meta, key_name, r->key_count, r->error);
	if (status)
		return status;
	r->at = r->keys_at;
	for (uint64_t i = 0; i < r->key_count && !status; i++)
		status = read_key(r, i, &names);
	oh_names_free(&names);
	r->part = NULL;
	if (!status && r->split_count && r->split_no >= r->split_count)
		status = oh_gguf_refuse(r, ONEHOP_MALFORMED,
					"split.no is %u, should be less than split.count, "
					"which is %u",
					r->split_no, r->split_count);
	return status;
}

/* --------------------------------------------------------------------------------------------- */

/* Rules for one tensor's numbers; leaves dims in dims, fastest first. */
static onehop_status
check_info(struct oh_gguf *r, const struct oh_gguf_info *info, uint64_t dims[OH_GGUF_MAX_DIMS],
	   const struct oh_dtype *dtype, uint64_t *bytes)
{
	uint64_t elements = 1, row = info->n_dims ? dims[0] : 1;
	int zero = 0;
	for (uint64_t i = 0; i < info->n_dims; i++) {
		if (dims[i] > INT64_MAX)
			return oh_gguf_refuse(r, ONEHOP_MALFORMED,
					      "dimension %llu is %lld, a negative number",
					      (unsigned long long)i, (long long)dims[i]);
		zero |= dims[i] == 0;
	}
	if (row % dtype->block_elements)
		return oh_gguf_refuse(r, ONEHOP_MALFORMED,
				      "the first dimension %llu is not a multiple of the "
				      "block of %s, %u elements",
				      (unsigned long long)row, dtype->name, dtype->block_elements);
	*bytes = 0;
	if (zero)
		return ONEHOP_OK;
	for (uint64_t i = 0; i < info->n_dims; i++)
		if (oh_mul(elements, dims[i], &elements) || elements > INT64_MAX - 1)
			return oh_gguf_refuse(r, ONEHOP_MALFORMED,
					      "overflow: the number of elements, up to "
					      "dimension %llu of %llu, does not fit 63 bits",
					      (unsigned long long)i, (unsigned long long)dims[i]);
	if (oh_mul(elements / dtype->block_elements, dtype->block_bytes, bytes))
		return oh_gguf_refuse(r, ONEHOP_MALFORMED,
				      "overflow: %llu elements of %s are too large for 64 "
				      "bits",
				      (unsigned long long)elements, dtype->name);
	return ONEHOP_OK;
}

/* The tensor lies in the data. One of no bytes may stand where the next would have begun, also
 * where the file ends without padding. */
static onehop_status
check_place(struct oh_gguf *r, uint64_t offset, uint64_t bytes)
{
	uint64_t data = r->file_bytes > r->data_at ? r->file_bytes - r->data_at : 0, end,
		 most = data;
	if (offset % r->alignment)
		return oh_gguf_refuse(r, ONEHOP_MALFORMED,
				      "offset %llu is not a multiple of the alignment %u",
				      (unsigned long long)offset, r->alignment);
	if (bytes == 0 && oh_align_up(data, r->alignment, &most))
		most = data;
	if (!oh_add(offset, bytes, &end) && end <= most)
		return ONEHOP_OK;
	oh_gguf_refuse(r, ONEHOP_MALFORMED,
		       "truncated: %llu %s at offset %llu of the data, which begin at %llu "
		       "(alignment %u), reach past the end of the file of %llu bytes",
		       (unsigned long long)bytes, oh_bytes_word(bytes), (unsigned long long)offset,
		       (unsigned long long)r->data_at, r->alignment,
		       (unsigned long long)r->file_bytes);
	oh_remedy(r->error, "get a complete copy of the file");
	return ONEHOP_MALFORMED;
}

/* The last of the file's dimensions is the outermost. Written from the dimensions' place on, so
 * that the byte behind the name stays free: 12 + 8 n bytes hold n numbers of 63 bits, 9 bytes each.
 */
static uint32_t
write_shape(struct oh_gguf *r, const struct oh_gguf_info *info,
	    const uint64_t dims[OH_GGUF_MAX_DIMS])
{
	const uint64_t begin = info->dims_at + 4;
	uint64_t to = begin;
	for (uint64_t i = info->n_dims; i-- > 0;)
		to += oh_leb128_put(r->text + to, dims[i]);
	assert(to <= begin + 12 + 8 * info->n_dims);
	return (uint32_t)begin;
}

static onehop_status
read_info(struct oh_gguf *r, uint64_t index)
{
	struct oh_entry *entry = &r->entries[index];
	struct oh_gguf_info info = {0};
	uint64_t dims[OH_GGUF_MAX_DIMS] = {0}, end;
	onehop_status status = oh_gguf_next_info(r, index, &info);
	assert(!status); /* oh_gguf_walk() has been here */
	end = r->at;
	r->at = info.dims_at;
	status = check_utf8(r, info.name, "the tensor's name");
	if (status)
		return status;
	entry->dtype = oh_dtype_ggml((uint32_t)info.type);
	if (!entry->dtype)
		return oh_gguf_refuse(r, ONEHOP_UNSUPPORTED_DATA,
				      "type %llu is unknown, or was removed from ggml",
				      (unsigned long long)info.type);
	for (uint64_t i = 0; i < info.n_dims; i++)
		dims[i] = oh_gguf_number(r, info.dims_at + 4 + 8 * i, 8);
	status = check_info(r, &info, dims, entry->dtype, &entry->bytes);
	if (!status)
		status = check_place(r, info.offset, entry->bytes);
	if (status)
		return status;
	entry->begin = oh_min(r->data_at + info.offset, r->file_bytes);
	entry->name = info.name.at;
	entry->name_bytes = info.name.bytes;
	entry->rank = (uint32_t)info.n_dims;
	entry->shape = write_shape(r, &info, dims);
	r->at = end;
	return ONEHOP_OK;
}

static struct oh_name
entry_name(const uint8_t *text, const void *items, uint64_t index)
{
	const struct oh_entry *entry = (const struct oh_entry *)items + index;
	return (struct oh_name){entry->name, entry->name_bytes};
}

static onehop_status
check_names(struct oh_gguf *r)
{
	struct oh_names names;
	onehop_status status =
	    oh_names_init(&names, r->text, r->entries, entry_name, r->tensor_count, r->error);
	if (status)
		return status;
	for (uint64_t i = 0; i < r->tensor_count && !status; i++) {
		if (oh_names_add(&names, i) == OH_NAMES_NEW)
			continue;
		oh_gguf_part(r, "tensor info", i);
		r->at = r->entries[i].name;
		r->name = entry_name(r->text, r->entries, i);
		r->named = 1;
		status = oh_gguf_refuse(r, ONEHOP_MALFORMED, "duplicate name: it stands twice");
	}
	oh_names_free(&names);
	return status;
}

static onehop_status
check_overlap(struct oh_gguf *r)
{
	char a[OH_SHOWN], b[OH_SHOWN];
	oh_table_sort(r->entries, r->tensor_count);
	r->part = NULL;
	for (uint64_t i = 1; i < r->tensor_count; i++) {
		const struct oh_entry *last = &r->entries[i - 1], *entry = &r->entries[i];
		if (entry->begin >= last->begin + last->bytes)
			continue;
		return oh_gguf_refuse(
		    r, ONEHOP_MALFORMED,
		    "tensors %s and %s overlap: bytes %llu to %llu and "
		    "%llu to %llu of the file",
		    oh_show(a, (const char *)r->text + last->name, last->name_bytes),
		    oh_show(b, (const char *)r->text + entry->name, entry->name_bytes),
		    (unsigned long long)last->begin,
		    (unsigned long long)(last->begin + last->bytes),
		    (unsigned long long)entry->begin,
		    (unsigned long long)(entry->begin + entry->bytes));
	}
	return ONEHOP_OK;
}

static onehop_status
read_infos(struct oh_gguf *r)
{
	onehop_status status = ONEHOP_OK;
	if (r->tensor_count == 0)
		return ONEHOP_OK;
	r->entries = malloc(r->tensor_count * sizeof *r->entries);
	if (!r->entries)
		return oh_fail_no_memory(r->error, r->tensor_count * sizeof *r->entries,
					 "the table of tensors");
	oh_align_up(r->infos_end, r->alignment, &r->data_at); /* both are small */
	r->at = r->infos_at;
	for (uint64_t i = 0; i < r->tensor_count && !status; i++)
		status = read_info(r, i);
	if (!status)
		status = check_names(r);
	return status ? status : check_overlap(r);
}

/* The second pass. */
static onehop_status
read_tables(struct oh_gguf *r)
{
	/* The text may reach far into the data: free that before the tables are made. */
	uint8_t *less = realloc(r->text, r->infos_end);
	onehop_status status;
	if (less)
		r->text = less;
	r->have = r->infos_end;
	status = read_keys(r);
	return status ? status : read_infos(r);
}

onehop_status
oh_gguf_parse(const char *path, uint8_t *text, uint64_t have, uint64_t file_bytes,
	      struct oh_table *table, uint64_t *need, struct onehop_error *error)
{
	struct oh_gguf r = {.path = path,
			    .error = error,
			    .text = text,
			    .have = have,
			    .file_bytes = file_bytes,
			    .alignment = 32};
	onehop_status status;
	assert(have <= file_bytes);
	status = oh_gguf_walk(&r);
	*need = r.need;
	if (r.need)
		return ONEHOP_OK;
	if (!status)
		status = read_tables(&r);
	if (status) {
		free(r.entries);
		free(r.meta);
		free(r.text);
		return status;
	}
	memset(table, 0, sizeof *table);
	table->text = r.text;
	table->text_bytes = r.infos_end;
	table->entries = r.entries;
	table->count = r.tensor_count;
	table->meta = r.meta;
	table->meta_count = r.key_count;
	table->is_gguf = 1;
	table->split_no = r.split_no;
	table->split_count = r.split_count;
	table->split_tensors = r.split_tensors;
	return ONEHOP_OK;
}
