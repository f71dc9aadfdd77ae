/* model.safetensors.index.json, and the {"pattern": dim} file of a tensor-parallel plan. */
#ifndef OH_FORMAT_INDEX_H
#define OH_FORMAT_INDEX_H

#include "base/error.h"

#include <stdint.h>

struct oh_index_entry {
	uint32_t name; /* in text, decoded */
	uint32_t name_bytes;
	uint32_t file; /* index into files */
	uint32_t reserved;
};

struct oh_index_file {
	uint32_t name; /* in text, decoded; no NUL inside; relative, no "..", judged by its text */
	uint32_t name_bytes;
};

struct oh_index {
	uint8_t *text;                  /* owned */
	struct oh_index_entry *entries; /* in the file's order; names are unique */
	uint64_t count;
	struct oh_index_file *files; /* in order of first use, unique */
	uint64_t file_count;
};

#define OH_INDEX_MAX_BYTES (UINT64_C(256) << 20)

/* Takes text (malloc'd) as oh_safetensors_parse does. More than OH_INDEX_MAX_BYTES are refused. */
onehop_status oh_index_parse(const char *path, uint8_t *text, uint64_t text_bytes,
			     struct oh_index *index, struct onehop_error *error);
void oh_index_free(struct oh_index *index);

struct oh_rule {
	uint32_t pattern; /* in text, decoded; no NUL inside */
	uint32_t pattern_bytes;
	int64_t dim; /* -1 for null or a negative number */
};

struct oh_rules {
	uint8_t *text;         /* owned */
	struct oh_rule *rules; /* in the file's order; patterns are unique */
	uint64_t count;
};

onehop_status oh_rules_parse(const char *path, uint8_t *text, uint64_t text_bytes,
			     struct oh_rules *rules, struct onehop_error *error);
void oh_rules_free(struct oh_rules *rules);

#endif
