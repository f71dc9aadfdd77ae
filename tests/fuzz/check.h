/* What must hold of whatever a parser lets through. A fault aborts: it is the fuzzer's to report.
 */
#ifndef OH_TESTS_FUZZ_CHECK_H
#define OH_TESTS_FUZZ_CHECK_H

#include "base/error.h"
#include "base/utf8.h"
#include "format/table.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__,          \
				#condition);                                                       \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

/* A copy of exactly so many bytes, so that a read past the end is seen. */
static inline uint8_t *
copy_of(const uint8_t *data, size_t size)
{
	uint8_t *copy = malloc(size ? size : 1);
	MUST(copy);
	if (size)
		memcpy(copy, data, size);
	return copy;
}

static inline void
check_utf8(const uint8_t *text, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes;) {
		size_t length = oh_utf8_length(text + at, bytes - at);
		MUST(length);
		at += length;
	}
}

/* One line of UTF-8. */
static inline void
check_line(const char *text, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		MUST((unsigned char)text[i] >= 0x20);
	check_utf8((const uint8_t *)text, bytes);
}

/* One sentence, and what to do about it. */
static inline void
check_message(const struct onehop_error *error, onehop_status status)
{
	size_t bytes = strnlen(error->message, sizeof error->message);
	size_t remedy_bytes = strnlen(error->remedy, sizeof error->remedy);
	MUST(error->status == status);
	MUST(bytes > 0 && bytes < sizeof error->message && remedy_bytes < sizeof error->remedy);
	check_line(error->message, bytes);
	check_line(error->remedy, remedy_bytes);
}

/* Of data that are wrong. */
static inline void
check_error(const struct onehop_error *error, onehop_status status)
{
	MUST(status / 100 == 5);
	check_message(error, status);
}

/* The dimensions' product is the size. */
static inline void
check_shape(const struct oh_table *table, const struct oh_entry *entry)
{
	uint64_t *shape = malloc((entry->rank + 1) * sizeof *shape), elements = 1;
	MUST(shape);
	oh_table_shape(table, entry, shape, entry->rank);
	for (uint32_t i = 0; i < entry->rank; i++)
		if (shape[i] == 0)
			elements = 0;
	for (uint32_t i = 0; i < entry->rank && elements; i++)
		MUST(!__builtin_mul_overflow(elements, shape[i], &elements));
	MUST(elements % entry->dtype->block_elements == 0);
	MUST(elements / entry->dtype->block_elements * entry->dtype->block_bytes == entry->bytes);
	free(shape);
}

static inline void
check_table(const struct oh_table *table, uint64_t file_bytes)
{
	uint64_t end = 0;
	for (uint64_t i = 0; i < table->count; i++) {
		const struct oh_entry *entry = &table->entries[i];
		MUST(entry->dtype && entry->dtype->name);
		MUST((uint64_t)entry->name + entry->name_bytes <= table->text_bytes);
		MUST((uint64_t)entry->shape + entry->rank <= table->text_bytes);
		check_utf8(table->text + entry->name, entry->name_bytes);
		/* Names may be ended by their owner: that changes nothing else. */
		MUST((uint64_t)entry->name + entry->name_bytes < table->text_bytes);
		table->text[entry->name + entry->name_bytes] = '\0';
		MUST(entry->begin >= end);
		MUST(entry->begin <= file_bytes && entry->bytes <= file_bytes - entry->begin);
		end = entry->begin + entry->bytes;
	}
	for (uint64_t i = 0; i < table->count; i++)
		check_shape(table, &table->entries[i]);
	for (uint64_t i = 0; i < table->meta_count; i++) {
		struct oh_meta meta;
		oh_table_meta_at(table, i, &meta);
		MUST(meta.kind < OH_META_KINDS);
		MUST((uint64_t)meta.key + meta.key_bytes <= table->text_bytes);
		MUST((uint64_t)meta.value + meta.value_bytes <= table->text_bytes);
		check_utf8(table->text + meta.key, meta.key_bytes);
	}
}

#endif
