/* Walking a GGUF header's bytes: what gguf.c and gguf_walk.c share. Nothing outside includes it. */
#ifndef OH_FORMAT_GGUF_WALK_H
#define OH_FORMAT_GGUF_WALK_H

#include "format/gguf.h"
#include "format/names.h"

#define OH_GGUF_MAX_DIMS 4

struct oh_gguf {
	const char *path;
	struct onehop_error *error;
	uint8_t *text;
	uint64_t have, file_bytes;
	uint64_t at;
	uint64_t need; /* not 0: the text ends before the header does, read so much */
	/* What is being read, for messages: "key", "tensor info" or the header, its number, and its
	 * name where that is known. */
	const char *part;
	uint64_t number;
	struct oh_name name;
	int named;

	uint64_t tensor_count, key_count;
	uint64_t keys_at, infos_at, infos_end;
	uint32_t alignment;
	uint32_t split_no, split_count;
	uint64_t split_tensors;
	uint64_t data_at; /* where tensor data begin */
	uint32_t *meta;
	struct oh_entry *entries;
};

struct oh_gguf_info {
	struct oh_name name;
	uint64_t n_dims;
	uint64_t dims_at; /* of the n_dims field, which the shape is written over */
	uint64_t type;
	uint64_t offset;
};

/* Bytes of a value of a kind of fixed size; 0 for strings and arrays. */
extern const uint8_t oh_gguf_kind_bytes[OH_META_KINDS];

/* Not a status that a caller sees: the text ends before the header does, and need is set. */
#define OH_GGUF_MORE (-1)

/* "PATH: byte OFFSET: key 3 "general.name": sentence", less what is not known. */
onehop_status oh_gguf_refuse(struct oh_gguf *r, onehop_status status, const char *format, ...)
    OH_PRINTF(3, 4);

/* Says what is read from here on, for messages. NULL for nothing. */
void oh_gguf_part(struct oh_gguf *r, const char *part, uint64_t number);

/* A little-endian number that is known to be there. */
uint64_t oh_gguf_number(const struct oh_gguf *r, uint64_t at, unsigned bytes);

/* Walks the whole header, from the magic on, and sets counts and places. ONEHOP_OK means that all
 * of it is in the text. */
onehop_status oh_gguf_walk(struct oh_gguf *r);

/* Walks the key, or tensor info, at r->at, and r->at to its end. *kind is that of the key's value
 * and *value where that begins. They cannot fail where oh_gguf_walk has been. */
onehop_status oh_gguf_key(struct oh_gguf *r, uint64_t index, uint64_t *kind, uint64_t *value);
onehop_status oh_gguf_next_info(struct oh_gguf *r, uint64_t index, struct oh_gguf_info *info);

#endif
