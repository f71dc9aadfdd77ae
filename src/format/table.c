/* What the parsers' tables have in common: freeing, shapes, order, metadata.
 *
 * A shape is rank LEB128 numbers in the table's text. Metadata of safetensors is, for each member,
 * the key, a byte 0xFF, the value, a byte 0xFF (0xFF is in no UTF-8); that of GGUF is as in the
 * file, and one place more tells where the last member ends. Entries are trusted here: parsers have
 * checked them.
 */
#include "format/table.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void
oh_table_free(struct oh_table *table)
{
	free(table->meta);
	free(table->entries);
	free(table->text);
	memset(table, 0, sizeof *table);
}

uint32_t
oh_leb128_put(uint8_t *out, uint64_t value)
{
	uint32_t length = 0;
	for (; value >= 0x80; value >>= 7)
		out[length++] = (uint8_t)(value | 0x80);
	out[length++] = (uint8_t)value;
	return length;
}

const uint8_t *
oh_leb128_get(const uint8_t *in, uint64_t *value)
{
	uint64_t sum = 0;
	unsigned shift = 0;
	do {
		sum |= (uint64_t)(*in & 0x7F) << shift;
		shift += 7;
	} while (*in++ & 0x80);
	*value = sum;
	return in;
}

void
oh_table_shape(const struct oh_table *table, const struct oh_entry *entry, uint64_t *shape,
	       uint64_t capacity)
{
	const uint8_t *in = table->text + entry->shape;
	for (uint64_t i = 0; i < entry->rank && i < capacity; i++)
		in = oh_leb128_get(in, &shape[i]);
}

const char *
oh_show_shape(char shown[OH_SHAPE_SHOWN], const uint8_t *leb128, uint32_t rank)
{
	size_t to = 0;
	shown[to++] = '[';
	for (uint32_t i = 0; i < rank; i++) {
		uint64_t dim;
		leb128 = oh_leb128_get(leb128, &dim);
		if (to > OH_SHAPE_SHOWN - 32) {
			memcpy(shown + to, ", ...", 5);
			to += 5;
			break;
		}
		to += (size_t)sprintf(shown + to, "%s%llu", i ? ", " : "", (unsigned long long)dim);
	}
	memcpy(shown + to, "]", 2);
	return shown;
}

/* Names stand in the text in the file's order, so no two entries are equal. */
static inline int
before(const struct oh_entry *a, const struct oh_entry *b)
{
	if (a->begin != b->begin)
		return a->begin < b->begin;
	if (a->bytes != b->bytes)
		return a->bytes < b->bytes;
	return a->name < b->name;
}

/* Lets value sink from the hole at root to its place in the heap of count. */
static void
sift(struct oh_entry *heap, uint64_t root, uint64_t count, struct oh_entry value)
{
	uint64_t child;
	for (; (child = 2 * root + 1) < count; root = child) {
		if (child + 1 < count && before(&heap[child], &heap[child + 1]))
			child++;
		if (!before(&value, &heap[child]))
			break;
		heap[root] = heap[child];
	}
	heap[root] = value;
}

void
oh_table_sort(struct oh_entry *entries, uint64_t count)
{
	uint64_t sorted = 1;
	while (sorted < count && before(&entries[sorted - 1], &entries[sorted]))
		sorted++;
	if (sorted >= count)
		return;
	/* A heap sort: it needs no memory, which a header may have little of. */
	for (uint64_t i = count / 2; i-- > 0;)
		sift(entries, i, count, entries[i]);
	for (uint64_t last = count - 1; last > 0; last--) {
		struct oh_entry value = entries[last];
		entries[last] = entries[0];
		sift(entries, 0, last, value);
	}
}

static uint32_t
span_to_ff(const struct oh_table *table, uint32_t at)
{
	const uint8_t *from = table->text + at;
	const uint8_t *end = memchr(from, 0xFF, table->text_bytes - at);
	assert(end);
	return (uint32_t)(end - from);
}

static uint64_t
get_le(const uint8_t *in, unsigned bytes)
{
	uint64_t value = 0;
	while (bytes-- > 0)
		value = value << 8 | in[bytes];
	return value;
}

static void
gguf_meta_at(const struct oh_table *table, uint64_t index, struct oh_meta *meta)
{
	const uint8_t *text = table->text;
	uint32_t at = table->meta[index] + 8, end = table->meta[index + 1];
	meta->key = at;
	meta->key_bytes = (uint32_t)get_le(text + at - 8, 8);
	at += meta->key_bytes;
	meta->kind = (uint8_t)get_le(text + at, 4);
	at += 4;
	if (meta->kind == OH_META_STRING) {
		at += 8;
	} else if (meta->kind == OH_META_ARRAY) {
		meta->element_kind = (uint8_t)get_le(text + at, 4);
		meta->count = get_le(text + at + 4, 8);
		at += 12;
	}
	meta->value = at;
	meta->value_bytes = end - at;
}

void
oh_table_meta_at(const struct oh_table *table, uint64_t index, struct oh_meta *meta)
{
	assert(index < table->meta_count);
	memset(meta, 0, sizeof *meta);
	if (table->is_gguf) {
		gguf_meta_at(table, index, meta);
		return;
	}
	meta->key = table->meta[index];
	meta->key_bytes = span_to_ff(table, meta->key);
	meta->value = meta->key + meta->key_bytes + 1;
	meta->value_bytes = span_to_ff(table, meta->value);
	meta->kind = OH_META_STRING;
}
