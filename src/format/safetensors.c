/* The safetensors reader: the header's JSON into a table.
 *
 * Invariants: the table's entries are sorted, cover the data exactly, and lie inside the file;
 * shapes and names stand in the text over their own digits and escapes. Memory: the text, 40 bytes
 * an entry (an entry's text is at least 50), and for a while 5.4 bytes a name; then 9.4 bytes a
 * metadata member (its text is at least 6, and 7 on average once keys differ): under 3 times the
 * text. Metadata is read last for that reason. What is refused is in the functions' names; nothing
 * is corrected.
 */
#include "format/safetensors.h"
#include "base/arith.h"
#include "format/fail.h"
#include "format/json.h"
#include "format/names.h"
#include "format/usual.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* The shortest entry with its comma: "":{"dtype":"U8","shape":[],"data_offsets":[0,0]}, */
#define MIN_ENTRY_TEXT 50

struct reader {
	struct oh_json json;
	const char *path;
	struct onehop_error *error;
	uint64_t data_bytes; /* of the file, behind the header */
	struct oh_entry *entries;
	uint64_t count, capacity;
	uint64_t meta_at; /* where the object of __metadata__ begins; UINT64_MAX if there is none */
	uint32_t *meta;
	uint64_t meta_count;
};

static const char *
show_name(char shown[OH_SHOWN], const struct reader *r, const struct oh_entry *entry)
{
	return oh_show(shown, (const char *)r->json.text + entry->name, entry->name_bytes);
}

static onehop_status
refuse_entry(struct reader *r, const struct oh_entry *entry, const char *rule)
{
	char shown[OH_SHOWN], shape[OH_SHAPE_SHOWN];
	return oh_refuse(r->error, ONEHOP_MALFORMED, r->path,
			 "tensor %s: dtype %s with shape %s: %s", show_name(shown, r, entry),
			 entry->dtype->name,
			 oh_show_shape(shape, r->json.text + entry->shape, entry->rank), rule);
}

/* Each dimension is written over its own digits: d digits hold a number below 10^d, which takes at
 * most d bytes of seven bits. */
static onehop_status
read_shape(struct reader *r, struct oh_entry *entry)
{
	struct oh_json *json = &r->json;
	onehop_status status = oh_json_expect(json, OH_JSON_ARRAY, "shape");
	uint64_t to;
	int more;
	if (!status)
		status = oh_json_enter(json, OH_JSON_ARRAY);
	if (status)
		return status;
	to = json->at;
	entry->shape = (uint32_t)to;
	entry->rank = 0;
	while ((more = oh_json_more(json, OH_JSON_ARRAY)) > 0) {
		uint64_t dim;
		status = oh_json_u64(json, &dim, "shape: dimension");
		if (status)
			return status;
		to += oh_leb128_put(json->text + to, dim);
		assert(to <= json->at);
		entry->rank++;
	}
	return more < 0 ? ONEHOP_MALFORMED : ONEHOP_OK;
}

static onehop_status
read_dtype(struct reader *r, struct oh_entry *entry)
{
	struct oh_json *json = &r->json;
	struct oh_json_string name;
	char shown[OH_SHOWN], dtype[OH_SHOWN];
	onehop_status status = oh_json_string(json, &name, "dtype");
	if (status)
		return status;
	entry->dtype = oh_dtype_safetensors((const char *)json->text + name.at, name.bytes);
	if (entry->dtype)
		return ONEHOP_OK;
	oh_refuse(r->error, ONEHOP_UNSUPPORTED_DATA, r->path, "tensor %s: dtype %s is unknown",
		  show_name(shown, r, entry),
		  oh_show(dtype, (const char *)json->text + name.at, name.bytes));
	return ONEHOP_UNSUPPORTED_DATA;
}

/* Leaves begin relative to the data, and the range's length in bytes. */
static onehop_status
read_offsets(struct reader *r, struct oh_entry *entry)
{
	struct oh_json *json = &r->json;
	uint64_t range[2] = {0, 0};
	onehop_status status = oh_json_expect(json, OH_JSON_ARRAY, "data_offsets");
	uint64_t at = json->at, count = 0;
	int more;
	if (!status)
		status = oh_json_enter(json, OH_JSON_ARRAY);
	if (status)
		return status;
	while ((more = oh_json_more(json, OH_JSON_ARRAY)) > 0) {
		uint64_t value;
		status = oh_json_u64(json, &value, "data_offsets: offset");
		if (status)
			return status;
		if (count < 2)
			range[count] = value;
		count++;
	}
	if (more < 0)
		return ONEHOP_MALFORMED;
	if (count != 2)
		return oh_json_fail(json, at, "data_offsets holds %llu numbers, should be 2",
				    (unsigned long long)count);
	if (range[1] < range[0])
		return oh_json_fail(json, at,
				    "data_offsets [%llu, %llu] are reversed: the end is "
				    "before the begin",
				    (unsigned long long)range[0], (unsigned long long)range[1]);
	entry->begin = range[0];
	entry->bytes = range[1] - range[0];
	return ONEHOP_OK;
}

/* dtype, shape and range belong together. Multiplied from the left, so that an overflow counts even
 * where a later dimension is 0. */
static onehop_status
check_size(struct reader *r, const struct oh_entry *entry)
{
	const struct oh_dtype *dtype = entry->dtype;
	const uint8_t *in = r->json.text + entry->shape;
	uint64_t elements = 1, bits;
	char shown[OH_SHOWN], shape[OH_SHAPE_SHOWN];
	for (uint32_t i = 0; i < entry->rank; i++) {
		uint64_t dim;
		in = oh_leb128_get(in, &dim);
		if (oh_mul(elements, dim, &elements))
			return refuse_entry(r, entry,
					    "overflow: the number of elements does not fit "
					    "64 bits");
	}
	/* The reference counts bits, and so much has to fit. */
	if (oh_mul(elements, dtype->block_bytes * 8 / dtype->block_elements, &bits))
		return refuse_entry(r, entry, "overflow: the number of bits does not fit 64 bits");
	if (bits % 8)
		return refuse_entry(r, entry, "its bits do not add up to a whole byte");
	if (bits / 8 == entry->bytes)
		return ONEHOP_OK;
	oh_refuse(
	    r->error, ONEHOP_MALFORMED, r->path,
	    "tensor %s: dtype %s with shape %s takes %llu bytes, but data_offsets [%llu, %llu] "
	    "span %llu",
	    show_name(shown, r, entry), dtype->name,
	    oh_show_shape(shape, r->json.text + entry->shape, entry->rank),
	    (unsigned long long)(bits / 8), (unsigned long long)entry->begin,
	    (unsigned long long)(entry->begin + entry->bytes), (unsigned long long)entry->bytes);
	return ONEHOP_MALFORMED;
}

enum field { DTYPE, SHAPE, OFFSETS, FIELDS };

static const struct {
	const char *name;
	size_t bytes;
	onehop_status (*read)(struct reader *r, struct oh_entry *entry);
} fields[FIELDS] = {
    [DTYPE] = {"dtype", 5, read_dtype},
    [SHAPE] = {"shape", 5, read_shape},
    [OFFSETS] = {"data_offsets", 12, read_offsets},
};

/* One member of an entry. seen: a bit for each field so far. */
static onehop_status
read_field(struct reader *r, struct oh_entry *entry, unsigned *seen)
{
	struct oh_json *json = &r->json;
	struct oh_json_string key;
	onehop_status status = oh_json_key(json, &key);
	if (status)
		return status;
	for (unsigned i = 0; i < FIELDS; i++) {
		if (!oh_json_is(json, key, fields[i].name, fields[i].bytes))
			continue;
		if (*seen & 1u << i)
			return oh_json_fail(json, key.at,
					    "duplicate %s: it stands twice in one entry",
					    fields[i].name);
		*seen |= 1u << i;
		return fields[i].read(r, entry);
	}
	return oh_json_skip(json);
}

static onehop_status
read_entry(struct reader *r, struct oh_json_string name, struct oh_entry *entry)
{
	struct oh_json *json = &r->json;
	unsigned seen = 0;
	int more;
	onehop_status status;
	json->subject_kind = "tensor";
	json->subject = name;
	status = oh_json_expect(json, OH_JSON_OBJECT, "its entry");
	if (!status)
		status = oh_json_enter(json, OH_JSON_OBJECT);
	if (status)
		return status;
	while ((more = oh_json_more(json, OH_JSON_OBJECT)) > 0) {
		status = read_field(r, entry, &seen);
		if (status)
			return status;
	}
	if (more < 0)
		return ONEHOP_MALFORMED;
	for (unsigned i = 0; i < FIELDS; i++)
		if (!(seen & 1u << i))
			return oh_json_fail(json, json->at - 1, "%s is missing", fields[i].name);
	json->subject_kind = NULL;
	return ONEHOP_OK;
}

static onehop_status
read_tensor(struct reader *r, struct oh_json_string name)
{
	struct oh_json *json = &r->json;
	struct oh_entry entry = {.name = name.at, .name_bytes = name.bytes};
	onehop_status status = ONEHOP_OK;
	oh_json_peek(json);
	if (!oh_usual_entry(json->text, json->at, json->bytes, &entry, &json->at))
		status = read_entry(r, name, &entry);
	if (!status)
		status = check_size(r, &entry);
	if (status)
		return status;
	assert(r->count < r->capacity);
	r->entries[r->count++] = entry;
	return ONEHOP_OK;
}

/* Only looked over here; read_metadata comes last. */
static onehop_status
note_metadata(struct reader *r, struct oh_json_string key, int *seen)
{
	struct oh_json *json = &r->json;
	if (*seen)
		return oh_json_fail(json, key.at, "duplicate __metadata__: it stands twice");
	*seen = 1;
	if (oh_json_peek(json) != OH_JSON_NULL) {
		onehop_status status = oh_json_expect(json, OH_JSON_OBJECT, "__metadata__");
		if (status)
			return status;
		r->meta_at = json->at;
	}
	return oh_json_skip(json);
}

static onehop_status
read_header(struct reader *r)
{
	struct oh_json *json = &r->json;
	int more, metadata_seen = 0;
	onehop_status status = oh_json_expect(json, OH_JSON_OBJECT, "the header");
	if (!status)
		status = oh_json_enter(json, OH_JSON_OBJECT);
	if (status)
		return status;
	while ((more = oh_json_more(json, OH_JSON_OBJECT)) > 0) {
		struct oh_json_string key;
		status = oh_json_key(json, &key);
		if (status)
			return status;
		if (oh_json_is(json, key, "__metadata__", 12))
			status = note_metadata(r, key, &metadata_seen);
		else
			status = read_tensor(r, key);
		if (status)
			return status;
	}
	return more < 0 ? ONEHOP_MALFORMED : oh_json_end(json);
}

/* --------------------------------------------------------------------------------------------- */

static struct oh_name
entry_name(const uint8_t *text, const void *items, uint64_t index)
{
	const struct oh_entry *entry = (const struct oh_entry *)items + index;
	return (struct oh_name){entry->name, entry->name_bytes};
}

static onehop_status
check_names(struct reader *r)
{
	struct oh_names names;
	char shown[OH_SHOWN];
	onehop_status status =
	    oh_names_init(&names, r->json.text, r->entries, entry_name, r->count, r->error);
	if (status)
		return status;
	for (uint64_t i = 0; i < r->count && !status; i++)
		if (oh_names_add(&names, i) != OH_NAMES_NEW)
			status = oh_refuse(r->error, ONEHOP_MALFORMED, r->path,
					   "byte %llu: duplicate name: tensor %s stands twice",
					   (unsigned long long)(r->json.base + r->entries[i].name),
					   show_name(shown, r, &r->entries[i]));
	oh_names_free(&names);
	return status;
}

static onehop_status
refuse_hole(struct reader *r, const struct oh_entry *entry, const struct oh_entry *last,
	    uint64_t end)
{
	char a[OH_SHOWN], b[OH_SHOWN];
	uint64_t bytes = entry->begin - end;
	if (!last)
		return oh_refuse(r->error, ONEHOP_MALFORMED, r->path,
				 "a hole: the first %llu %s of the data, before tensor %s at "
				 "data_offsets %llu, belong to no tensor",
				 (unsigned long long)bytes, oh_bytes_word(bytes),
				 show_name(b, r, entry), (unsigned long long)entry->begin);
	return oh_refuse(
	    r->error, ONEHOP_MALFORMED, r->path,
	    "a hole: %llu %s between tensor %s, which ends at %llu, and tensor %s, which "
	    "begins at %llu, belong to no tensor",
	    (unsigned long long)bytes, oh_bytes_word(bytes), show_name(a, r, last),
	    (unsigned long long)end, show_name(b, r, entry), (unsigned long long)entry->begin);
}

/* Behind the last tensor's end comes the end of the file. */
static onehop_status
check_end(struct reader *r, uint64_t end)
{
	char shown[OH_SHOWN];
	uint64_t over;
	if (end == r->data_bytes)
		return ONEHOP_OK;
	if (end < r->data_bytes) {
		over = r->data_bytes - end;
		return oh_refuse(r->error, ONEHOP_MALFORMED, r->path,
				 "%llu trailing %s after the %s belong to no tensor",
				 (unsigned long long)over, oh_bytes_word(over),
				 r->count ? "last tensor" : "header, which names no tensor,");
	}
	over = end - r->data_bytes;
	oh_refuse(r->error, ONEHOP_MALFORMED, r->path,
		  "truncated: tensor %s ends %llu %s past the end of the file",
		  show_name(shown, r, &r->entries[r->count - 1]), (unsigned long long)over,
		  oh_bytes_word(over));
	oh_remedy(r->error, "get a complete copy of the file");
	return ONEHOP_MALFORMED;
}

/* Sorted, the ranges follow one another from the first byte of the data to the last. */
static onehop_status
check_ranges(struct reader *r)
{
	const struct oh_entry *last = NULL;
	char a[OH_SHOWN], b[OH_SHOWN];
	uint64_t end = 0;
	oh_table_sort(r->entries, r->count);
	for (uint64_t i = 0; i < r->count; i++) {
		const struct oh_entry *entry = &r->entries[i];
		if (entry->begin > end)
			return refuse_hole(r, entry, last, end);
		if (entry->begin < end)
			return oh_refuse(r->error, ONEHOP_MALFORMED, r->path,
					 "tensors %s and %s overlap: data_offsets [%llu, %llu] and "
					 "[%llu, %llu]",
					 show_name(a, r, last), show_name(b, r, entry),
					 (unsigned long long)last->begin, (unsigned long long)end,
					 (unsigned long long)entry->begin,
					 (unsigned long long)(entry->begin + entry->bytes));
		end = entry->begin + entry->bytes;
		last = entry;
	}
	return check_end(r, end);
}

/* --------------------------------------------------------------------------------------------- */

/* Members of the object at meta_at if all are strings; never fewer than read_metadata keeps before
 * it refuses one. */
static uint64_t
count_members(const struct reader *r)
{
	const uint8_t *t = r->json.text;
	uint64_t quotes = 0, depth = 0;
	int inside = 0;
	for (uint64_t at = r->meta_at;; at++) {
		if (t[at] == '"') {
			quotes++;
			inside = !inside;
		} else if (inside) {
			at += t[at] == '\\';
		} else if (t[at] == '{' || t[at] == '[') {
			depth++;
		} else if ((t[at] == '}' || t[at] == ']') && --depth == 0) {
			return quotes / 4;
		}
	}
}

static struct oh_name
meta_key(const uint8_t *text, const void *items, uint64_t index)
{
	uint32_t at = ((const uint32_t *)items)[index];
	const uint8_t *end = rawmemchr(text + at, 0xFF);
	return (struct oh_name){at, (uint32_t)(end - (text + at))};
}

/* Moves a string forward to *to and ends it with 0xFF, which no UTF-8 holds. */
static void
pack(uint8_t *text, struct oh_json_string string, uint64_t *to)
{
	assert(*to <= string.at);
	memmove(text + *to, text + string.at, string.bytes);
	*to += string.bytes;
	text[(*to)++] = 0xFF;
}

/* Keys and values, packed over their own text: a member takes two bytes of ends for its quotes,
 * colon and comma. A key that stands twice keeps its first place and its last value. */
static onehop_status
read_members(struct reader *r, struct oh_names *names)
{
	struct oh_json *json = &r->json;
	uint64_t to = r->meta_at;
	int more;
	onehop_status status;
	json->at = r->meta_at;
	status = oh_json_enter(json, OH_JSON_OBJECT);
	if (status)
		return status;
	while ((more = oh_json_more(json, OH_JSON_OBJECT)) > 0) {
		struct oh_json_string key, value;
		uint32_t at = (uint32_t)to;
		status = oh_json_key(json, &key);
		if (status)
			return status;
		json->subject_kind = "__metadata__ member";
		json->subject = key;
		status = oh_json_string(json, &value, "its value");
		if (status)
			return status;
		json->subject_kind = NULL;
		pack(json->text, key, &to);
		pack(json->text, value, &to);
		r->meta[r->meta_count] = at;
		uint64_t have = oh_names_add(names, r->meta_count);
		if (have == OH_NAMES_NEW)
			r->meta_count++;
		else
			r->meta[have] = at;
	}
	assert(more == 0);
	return ONEHOP_OK;
}

/* An array cut to bytes, NULL if that is none. */
static void *
shrink(void *items, uint64_t bytes)
{
	void *less;
	if (bytes == 0) {
		free(items);
		return NULL;
	}
	less = realloc(items, bytes);
	return less ? less : items;
}

static onehop_status
read_metadata(struct reader *r)
{
	struct oh_names names;
	uint64_t most;
	onehop_status status;
	if (r->meta_at == UINT64_MAX)
		return ONEHOP_OK;
	most = count_members(r);
	r->meta = malloc((most + 1) * sizeof *r->meta); /* never of size 0 */
	if (!r->meta)
		return oh_fail_no_memory(r->error, (most + 1) * sizeof *r->meta, "metadata");
	status = oh_names_init(&names, r->json.text, r->meta, meta_key, most, r->error);
	if (status)
		return status;
	status = read_members(r, &names);
	oh_names_free(&names);
	r->meta = shrink(r->meta, r->meta_count * sizeof *r->meta);
	return status;
}

static onehop_status
read_all(struct reader *r)
{
	onehop_status status;
	r->capacity = r->json.bytes / MIN_ENTRY_TEXT + 1;
	r->entries = malloc(r->capacity * sizeof *r->entries);
	if (!r->entries)
		return oh_fail_no_memory(r->error, r->capacity * sizeof *r->entries,
					 "the table of tensors");
	status = read_header(r);
	if (status)
		return status;
	r->entries = shrink(r->entries, r->count * sizeof *r->entries);
	status = check_names(r);
	if (!status)
		status = check_ranges(r);
	if (!status)
		status = read_metadata(r);
	return status;
}

onehop_status
oh_safetensors_parse(const char *path, uint8_t *text, uint64_t text_bytes, uint64_t file_bytes,
		     struct oh_table *table, struct onehop_error *error)
{
	struct reader r = {.path = path, .error = error, .meta_at = UINT64_MAX};
	onehop_status status;
	assert(text_bytes <= OH_SAFETENSORS_MAX_HEADER && text_bytes <= file_bytes - 8);
	oh_json_init(&r.json, path, text, text_bytes, 8, error);
	r.data_bytes = file_bytes - 8 - text_bytes;
	status = read_all(&r);
	if (status) {
		free(r.meta);
		free(r.entries);
		free(text);
		return status;
	}
	for (uint64_t i = 0; i < r.count; i++)
		r.entries[i].begin += 8 + text_bytes;
	memset(table, 0, sizeof *table);
	table->text = text;
	table->text_bytes = text_bytes;
	table->entries = r.entries;
	table->count = r.count;
	table->meta = r.meta;
	table->meta_count = r.meta_count;
	return ONEHOP_OK;
}
