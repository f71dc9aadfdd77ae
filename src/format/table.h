/* What a parsed header is: a table of tensors over the header's own bytes, decoded in place.
 *
 * Names are UTF-8 in the text, unescaped where they stood; the byte behind one is in the text and
 * holds nothing, so that a user of the table may end the name there. Shapes are LEB128 numbers
 * written over their digits, so that a header's table costs less than twice its text whatever it
 * holds. Tensors are sorted by (begin, end, name order in the file).
 */
#ifndef OH_FORMAT_TABLE_H
#define OH_FORMAT_TABLE_H

#include "format/dtype.h"

#include <stddef.h>
#include <stdint.h>

struct oh_entry {
	uint64_t begin; /* of its bytes in the file, absolute */
	uint64_t bytes;
	uint32_t name; /* where its name begins in the text */
	uint32_t name_bytes;
	uint32_t shape; /* where its LEB128 dimensions begin, outermost first */
	uint32_t rank;
	const struct oh_dtype *dtype;
};

/* A metadata member. text[value .. value + value_bytes) is the string, or the raw little-endian
 * value (GGUF) of the given kind; an array's elements follow one another, strings as u64 length and
 * bytes, arrays as u32 kind, u64 count and elements. */
struct oh_meta {
	uint32_t key;
	uint32_t key_bytes;
	uint32_t value;
	uint32_t value_bytes;
	uint8_t kind;         /* enum oh_meta_kind */
	uint8_t element_kind; /* of an array */
	uint64_t count;       /* elements of an array */
};

/* The numbers are GGUF's value types. */
enum oh_meta_kind {
	OH_META_U8,
	OH_META_I8,
	OH_META_U16,
	OH_META_I16,
	OH_META_U32,
	OH_META_I32,
	OH_META_F32,
	OH_META_BOOL,
	OH_META_STRING,
	OH_META_ARRAY,
	OH_META_U64,
	OH_META_I64,
	OH_META_F64,
	OH_META_KINDS
};

struct oh_table {
	uint8_t *text; /* owned */
	uint64_t text_bytes;
	struct oh_entry *entries; /* owned, exactly count */
	uint64_t count;
	uint64_t meta_count;
	/* Where each member begins in the text; what lies there is the format's own business: use
	 * oh_table_meta_at. */
	uint32_t *meta; /* owned */
	int is_gguf;
	/* GGUF only: split.no, split.count, split.tensors.count; count 0 if the file has none. */
	uint32_t split_no;
	uint32_t split_count;
	uint64_t split_tensors;
};

/* Frees what a table owns and clears it. A cleared table is allowed. */
void oh_table_free(struct oh_table *table);

/* Decodes dimensions [0, capacity) of an entry into shape. */
void oh_table_shape(const struct oh_table *table, const struct oh_entry *entry, uint64_t *shape,
		    uint64_t capacity);

/* For the parsers. Writes one LEB128 number and returns its length, at most 10. */
uint32_t oh_leb128_put(uint8_t *out, uint64_t value);

/* For the parsers. Reads one number and returns what is behind it. */
const uint8_t *oh_leb128_get(const uint8_t *in, uint64_t *value);

/* For the parsers: sorts entries by (begin, end, name), in place, in n log n whatever comes in. */
void oh_table_sort(struct oh_entry *entries, uint64_t count);

/* Room for a shape in a message. */
#define OH_SHAPE_SHOWN 128

/* "[4, 8]"; a long one ends in "...". Returns shown. */
const char *oh_show_shape(char shown[OH_SHAPE_SHOWN], const uint8_t *leb128, uint32_t rank);

static inline const char *
oh_table_name(const struct oh_table *table, const struct oh_entry *entry)
{
	return (const char *)table->text + entry->name;
}

/* index < meta_count. A key or string value that is no NUL-ended string: mind the bytes. */
void oh_table_meta_at(const struct oh_table *table, uint64_t index, struct oh_meta *meta);

#endif
