/* The reader of a sharded model's index (weight_map: tensor to file), and of the rules file of a
 * tensor-parallel plan.
 *
 * Only weight_map counts: metadata is information and often stale. Files are judged by their text:
 * a name stays inside the index's folder, and nothing here looks at a disk. Invariants: tensors are
 * unique, files are unique, every entry's file is in files. An index may hold no tensor at all.
 */
#include "format/index.h"
#include "format/fail.h"
#include "format/json.h"
#include "format/names.h"
#include "format/safetensors.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* The shortest member of a map with its comma: "":".safetensors", */
#define MIN_MEMBER_TEXT 18

struct reader {
	struct oh_json json;
	struct oh_index *index;
	uint64_t capacity;
};

void
oh_index_free(struct oh_index *index)
{
	free(index->files);
	free(index->entries);
	free(index->text);
	memset(index, 0, sizeof *index);
}

void
oh_rules_free(struct oh_rules *rules)
{
	free(rules->rules);
	free(rules->text);
	memset(rules, 0, sizeof *rules);
}

/* What is no JSON object by its first bytes is called by its name. */
static onehop_status
check_kind(const char *path, const uint8_t *text, uint64_t bytes, const char *wanted,
	   struct onehop_error *error)
{
	const char *what;
	if (bytes == 0)
		return oh_refuse(error, ONEHOP_MALFORMED, path, "the file is empty (0 bytes)");
	if (bytes > OH_INDEX_MAX_BYTES)
		return oh_refuse(error, ONEHOP_UNSUPPORTED_DATA, path,
				 "%llu bytes are too large for %s, the limit is %llu",
				 (unsigned long long)bytes, wanted,
				 (unsigned long long)OH_INDEX_MAX_BYTES);
	what = oh_sniff(text, bytes < OH_HEAD_BYTES ? bytes : OH_HEAD_BYTES);
	if (what && !strstr(what, "text"))
		return oh_refuse_kind(path, text, bytes, what, wanted, error);
	return ONEHOP_OK;
}

/* Why a name does not stay inside the index's folder, or NULL. */
static const char *
file_fault(const char *name, size_t bytes)
{
	static const char ending[] = ".safetensors";
	const size_t end = sizeof ending - 1;
	if (bytes == 0)
		return "is empty";
	if (memchr(name, '\0', bytes))
		return "holds a NUL byte";
	if (name[0] == '/')
		return "is an absolute path, outside the folder of the index";
	for (size_t from = 0, at = 0; at <= bytes; at++) {
		if (at < bytes && name[at] != '/')
			continue;
		if (at - from == 2 && name[from] == '.' && name[from + 1] == '.')
			return "leads outside the folder of the index by \"../\"";
		from = at + 1;
	}
	if (bytes < end || memcmp(name + bytes - end, ending, end) != 0)
		return "does not end in .safetensors";
	return NULL;
}

/* One tensor of the map. For now file and reserved say where the file's name stands. */
static onehop_status
read_member(struct reader *r)
{
	struct oh_json *json = &r->json;
	struct oh_json_string name, file;
	const char *fault;
	char shown[OH_SHOWN];
	onehop_status status = oh_json_key(json, &name);
	if (status)
		return status;
	json->subject_kind = "weight_map: tensor";
	json->subject = name;
	status = oh_json_string(json, &file, "its file");
	if (status)
		return status;
	fault = file_fault((const char *)json->text + file.at, file.bytes);
	if (fault)
		return oh_json_fail(json, file.at, "its file %s %s",
				    oh_show(shown, (const char *)json->text + file.at, file.bytes),
				    fault);
	json->subject_kind = NULL;
	assert(r->index->count < r->capacity);
	r->index->entries[r->index->count++] =
	    (struct oh_index_entry){name.at, name.bytes, file.at, file.bytes};
	return ONEHOP_OK;
}

static onehop_status
read_map(struct reader *r)
{
	struct oh_json *json = &r->json;
	int more;
	onehop_status status = oh_json_expect(json, OH_JSON_OBJECT, "weight_map");
	if (!status)
		status = oh_json_enter(json, OH_JSON_OBJECT);
	if (status)
		return status;
	r->capacity = (json->bytes - json->at) / MIN_MEMBER_TEXT + 1;
	r->index->entries = malloc(r->capacity * sizeof *r->index->entries);
	if (!r->index->entries)
		return oh_fail_no_memory(json->error, r->capacity * sizeof *r->index->entries,
					 "the map of tensors");
	while ((more = oh_json_more(json, OH_JSON_OBJECT)) > 0) {
		status = read_member(r);
		if (status)
			return status;
	}
	return more < 0 ? ONEHOP_MALFORMED : ONEHOP_OK;
}

static onehop_status
read_index(struct reader *r)
{
	struct oh_json *json = &r->json;
	int more;
	onehop_status status = oh_json_expect(json, OH_JSON_OBJECT, "the index");
	if (!status)
		status = oh_json_enter(json, OH_JSON_OBJECT);
	if (status)
		return status;
	while ((more = oh_json_more(json, OH_JSON_OBJECT)) > 0) {
		struct oh_json_string key;
		status = oh_json_key(json, &key);
		if (status)
			return status;
		if (!oh_json_is(json, key, "weight_map", 10))
			status = oh_json_skip(json);
		else if (r->index->entries)
			status =
			    oh_json_fail(json, key.at, "duplicate weight_map: it stands twice");
		else
			status = read_map(r);
		if (status)
			return status;
	}
	if (more < 0)
		return ONEHOP_MALFORMED;
	status = oh_json_end(json);
	if (!status && !r->index->entries)
		status =
		    oh_refuse(json->error, ONEHOP_MALFORMED, json->path,
			      "weight_map is missing, which says which file holds which tensor");
	return status;
}

static struct oh_name
tensor_name(const uint8_t *text, const void *items, uint64_t index)
{
	const struct oh_index_entry *entry = (const struct oh_index_entry *)items + index;
	return (struct oh_name){entry->name, entry->name_bytes};
}

static onehop_status
check_names(struct reader *r)
{
	const struct oh_index *index = r->index;
	struct oh_names names;
	char shown[OH_SHOWN];
	onehop_status status = oh_names_init(&names, r->json.text, index->entries, tensor_name,
					     index->count, r->json.error);
	if (status)
		return status;
	for (uint64_t i = 0; i < index->count && !status; i++) {
		const struct oh_index_entry *entry = &index->entries[i];
		if (oh_names_add(&names, i) == OH_NAMES_NEW)
			continue;
		status = oh_json_fail(
		    &r->json, entry->name,
		    "weight_map: duplicate name: tensor %s "
		    "stands twice",
		    oh_show(shown, (const char *)r->json.text + entry->name, entry->name_bytes));
	}
	oh_names_free(&names);
	return status;
}

static struct oh_name
file_name(const uint8_t *text, const void *items, uint64_t index)
{
	const struct oh_index_file *file = (const struct oh_index_file *)items + index;
	return (struct oh_name){file->name, file->name_bytes};
}

/* Collects the files, and makes each entry's file the number of its own. */
static onehop_status
number_files(struct reader *r)
{
	struct oh_index *index = r->index;
	struct oh_names names;
	onehop_status status;
	/* One more, where each name stands while it is looked for. */
	uint64_t bytes = (index->count + 1) * sizeof *index->files;
	index->files = malloc(bytes);
	if (!index->files)
		return oh_fail_no_memory(r->json.error, bytes, "the list of files");
	status = oh_names_init(&names, r->json.text, index->files, file_name, index->count,
			       r->json.error);
	if (status)
		return status;
	for (uint64_t i = 0; i < index->count; i++) {
		struct oh_index_entry *entry = &index->entries[i];
		index->files[index->file_count] =
		    (struct oh_index_file){entry->file, entry->reserved};
		uint64_t have = oh_names_add(&names, index->file_count);
		if (have == OH_NAMES_NEW)
			have = index->file_count++;
		entry->file = (uint32_t)have;
		entry->reserved = 0;
	}
	oh_names_free(&names);
	struct oh_index_file *less = realloc(index->files, (index->file_count + 1) * sizeof *less);
	if (less)
		index->files = less;
	return ONEHOP_OK;
}

onehop_status
oh_index_parse(const char *path, uint8_t *text, uint64_t text_bytes, struct oh_index *index,
	       struct onehop_error *error)
{
	struct oh_index parsed = {.text = text};
	struct reader r = {.index = &parsed};
	onehop_status status = check_kind(path, text, text_bytes, "an index", error);
	if (!status) {
		oh_json_init(&r.json, path, text, text_bytes, 0, error);
		status = read_index(&r);
	}
	if (!status) {
		struct oh_index_entry *less =
		    realloc(parsed.entries, (parsed.count + 1) * sizeof *less);
		if (less)
			parsed.entries = less;
		status = check_names(&r);
	}
	if (!status)
		status = number_files(&r);
	if (status)
		oh_index_free(&parsed);
	else
		*index = parsed;
	return status;
}

/* --------------------------------------------------------------------------------------------- */

/* Rules are few: twice the room each time that it is full. */
static onehop_status
make_room(struct oh_json *json, struct oh_rules *rules, uint64_t *capacity)
{
	struct oh_rule *more;
	uint64_t wanted = *capacity ? 2 * *capacity : 16;
	if (rules->count < *capacity)
		return ONEHOP_OK;
	more = realloc(rules->rules, wanted * sizeof *more);
	if (!more)
		return oh_fail_no_memory(json->error, wanted * sizeof *more, "rules");
	rules->rules = more;
	*capacity = wanted;
	return ONEHOP_OK;
}

static onehop_status
read_rule(struct oh_json *json, struct oh_rule *rule)
{
	struct oh_json_string pattern;
	onehop_status status = oh_json_key(json, &pattern);
	if (status)
		return status;
	json->subject_kind = "pattern";
	json->subject = pattern;
	if (memchr(json->text + pattern.at, '\0', pattern.bytes))
		return oh_json_fail(json, pattern.at, "a pattern holds no NUL byte");
	rule->pattern = pattern.at;
	rule->pattern_bytes = pattern.bytes;
	if (oh_json_peek(json) == OH_JSON_NULL) {
		rule->dim = -1;
		status = oh_json_skip(json);
	} else {
		status = oh_json_i64(json, &rule->dim, "its dimension");
		if (!status && rule->dim < 0)
			rule->dim = -1;
	}
	json->subject_kind = NULL;
	return status;
}

static onehop_status
read_rules(struct oh_json *json, struct oh_rules *rules)
{
	uint64_t capacity = 0;
	int more;
	onehop_status status = oh_json_expect(json, OH_JSON_OBJECT, "the tensor-parallel plan");
	if (!status)
		status = oh_json_enter(json, OH_JSON_OBJECT);
	if (status)
		return status;
	while ((more = oh_json_more(json, OH_JSON_OBJECT)) > 0) {
		status = make_room(json, rules, &capacity);
		if (!status)
			status = read_rule(json, &rules->rules[rules->count]);
		if (status)
			return status;
		rules->count++;
	}
	return more < 0 ? ONEHOP_MALFORMED : oh_json_end(json);
}

static struct oh_name
rule_name(const uint8_t *text, const void *items, uint64_t index)
{
	const struct oh_rule *rule = (const struct oh_rule *)items + index;
	return (struct oh_name){rule->pattern, rule->pattern_bytes};
}

static onehop_status
check_patterns(struct oh_json *json, const struct oh_rules *rules)
{
	struct oh_names names;
	char shown[OH_SHOWN];
	onehop_status status =
	    oh_names_init(&names, json->text, rules->rules, rule_name, rules->count, json->error);
	if (status)
		return status;
	for (uint64_t i = 0; i < rules->count && !status; i++) {
		const struct oh_rule *rule = &rules->rules[i];
		if (oh_names_add(&names, i) != OH_NAMES_NEW)
			status =
			    oh_json_fail(json, rule->pattern,
					 "duplicate pattern %s: it stands "
					 "twice",
					 oh_show(shown, (const char *)json->text + rule->pattern,
						 rule->pattern_bytes));
	}
	oh_names_free(&names);
	return status;
}

onehop_status
oh_rules_parse(const char *path, uint8_t *text, uint64_t text_bytes, struct oh_rules *rules,
	       struct onehop_error *error)
{
	struct oh_rules parsed = {.text = text};
	struct oh_json json;
	onehop_status status = check_kind(path, text, text_bytes, "a tensor-parallel plan", error);
	if (!status) {
		oh_json_init(&json, path, text, text_bytes, 0, error);
		status = read_rules(&json, &parsed);
	}
	if (!status)
		status = check_patterns(&json, &parsed);
	if (status)
		oh_rules_free(&parsed);
	else
		*rules = parsed;
	return status;
}
