/* A GGUF file built piece by piece in memory, and parsed. For the tests of the GGUF reader. */
#ifndef OH_TESTS_GGUF_FILE_H
#define OH_TESTS_GGUF_FILE_H

#include "format/gguf.h"
#include "harness.h"

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 };

/* A file as it is built. */
static struct {
	uint8_t bytes[1 << 16];
	size_t size;
} file;

static struct oh_table table;
static struct onehop_error error;

static inline void
put(const void *bytes, size_t size)
{
	memcpy(file.bytes + file.size, bytes, size);
	file.size += size;
}

static inline void
number(uint64_t value, size_t size)
{
	uint8_t bytes[32] = {0};
	memcpy(bytes, &value, sizeof value);
	put(bytes, size);
}

static inline void
string(const char *text)
{
	number(strlen(text), 8);
	put(text, strlen(text));
}

static inline void
begin(uint32_t version, uint64_t tensors, uint64_t keys)
{
	file.size = 0;
	put("GGUF", 4);
	number(version, 4);
	number(tensors, 8);
	number(keys, 8);
}

static inline void
key(const char *name, uint32_t kind)
{
	string(name);
	number(kind, 4);
}

static inline void
key_number(const char *name, uint32_t kind, uint64_t value, size_t size)
{
	key(name, kind);
	number(value, size);
}

static inline void
info(const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type, uint64_t offset)
{
	string(name);
	number(n_dims, 4);
	for (uint32_t i = 0; i < n_dims; i++)
		number(dims[i], 8);
	number(type, 4);
	number(offset, 8);
}

#define DIMS(...)                                                                                  \
	(const uint64_t[])                                                                         \
	{                                                                                          \
		__VA_ARGS__                                                                        \
	}

/* Pads to align, then so many bytes of data. */
static inline void
data(size_t align, size_t bytes)
{
	while (file.size % align)
		file.bytes[file.size++] = 0;
	memset(file.bytes + file.size, 7, bytes);
	file.size += bytes;
}

/* Parses the file, giving it only first bytes at first, as a reader of a large file would. */
static inline onehop_status
parse_from(uint64_t first)
{
	uint64_t have = first < file.size ? first : file.size, need = 0;
	memset(&error, 0, sizeof error);
	oh_table_free(&table);
	for (;;) {
		uint8_t *text = malloc(have ? have : 1);
		memcpy(text, file.bytes, have);
		onehop_status status =
		    oh_gguf_parse("m.gguf", text, have, file.size, &table, &need, &error);
		if (status || !need)
			return status;
		int same = memcmp(text, file.bytes, have) == 0;
		free(text);
		if (need <= have || need > file.size || !same)
			return -1;
		have = need;
	}
}

static inline onehop_status
parse(void)
{
	return parse_from(file.size);
}

/* "NAME DTYPE [SHAPE] BEGIN+BYTES; ..." */
static inline const char *
summary(void)
{
	static char out[4096];
	size_t to = 0;
	out[0] = '\0';
	for (uint64_t i = 0; i < table.count; i++) {
		const struct oh_entry *e = &table.entries[i];
		uint64_t dims[4];
		oh_table_shape(&table, e, dims, 4);
		to += (size_t)sprintf(out + to, "%s%.*s %s [", i ? "; " : "", (int)e->name_bytes,
				      oh_table_name(&table, e), e->dtype->name);
		for (uint32_t d = 0; d < e->rank; d++)
			to += (size_t)sprintf(out + to, "%s%" PRIu64, d ? "," : "", dims[d]);
		to += (size_t)sprintf(out + to, "] %" PRIu64 "+%" PRIu64, e->begin, e->bytes);
	}
	return out;
}

#define REFUSED(status, part)                                                                      \
	do {                                                                                       \
		CHECK_EQ(parse(), ONEHOP_##status);                                                \
		CHECK_HOLDS(error.message, part);                                                  \
	} while (0)

/* One tensor w and its data. */
static inline void
one(uint32_t n_dims, const uint64_t *dims, uint32_t type, uint64_t offset, size_t bytes)
{
	begin(3, 1, 0);
	info("blk.w", n_dims, dims, type, offset);
	data(32, bytes);
}

static inline void
aligned_file(uint32_t kind, uint64_t alignment, size_t size, size_t real)
{
	begin(3, 2, 1);
	key_number("general.alignment", kind, alignment, size);
	info("a", 1, DIMS(1), 24, 0);
	info("b", 1, DIMS(1), 24, real);
	data(real, real + 1);
}

#endif
