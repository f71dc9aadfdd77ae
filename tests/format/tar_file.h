/* Tar archives for tests, put together block by block, with every field open to lies. */
#ifndef OH_TESTS_FORMAT_TAR_FILE_H
#define OH_TESTS_FORMAT_TAR_FILE_H

#include "harness.h"

#include <stdint.h>
#include <stdlib.h>

#define UNUSED __attribute__((unused))

struct tar_file {
	uint8_t *bytes;
	size_t count;
};

static inline uint8_t *
tar_room(struct tar_file *t, size_t bytes)
{
	t->bytes = realloc(t->bytes, t->count + bytes);
	memset(t->bytes + t->count, 0, bytes);
	t->count += bytes;
	return t->bytes + t->count - bytes;
}

static inline void
tar_clear(struct tar_file *t)
{
	free(t->bytes);
	memset(t, 0, sizeof *t);
}

/* Writes the sum of the header at offset `at`, as most do: six digits, NUL, space. */
static inline void
tar_sum(struct tar_file *t, size_t at)
{
	unsigned sum = 0;
	memset(t->bytes + at + 148, ' ', 8);
	for (size_t i = 0; i < 512; i++)
		sum += t->bytes[at + i];
	snprintf((char *)t->bytes + at + 148, 8, "%06o", sum);
}

/* A ustar header; returns its offset. */
static inline size_t
tar_header(struct tar_file *t, const char *name, char type, unsigned long long size)
{
	size_t at = t->count;
	char *header = (char *)tar_room(t, 512), digits[32];
	memcpy(header, name, strnlen(name, 100));
	memcpy(header + 100, "0000644", 8);
	snprintf(digits, sizeof digits, "%011llo", size);
	memcpy(header + 124, digits, 12);
	header[156] = type;
	memcpy(header + 257, "ustar\00000", 8);
	tar_sum(t, at);
	return at;
}

UNUSED static void
tar_body(struct tar_file *t, const void *bytes, size_t count)
{
	uint8_t *at = tar_room(t, (count + 511) / 512 * 512);
	if (count)
		memcpy(at, bytes, count);
}

/* A regular file of so many bytes; returns its header's offset. */
UNUSED static size_t
tar_member(struct tar_file *t, const char *name, size_t bytes)
{
	size_t at = tar_header(t, name, '0', bytes);
	memset(tar_room(t, (bytes + 511) / 512 * 512), 'x', bytes);
	return at;
}

/* A record: 'L' with a NUL behind it, 'x' or 'g' as it is. */
UNUSED static size_t
tar_record(struct tar_file *t, char type, const char *text)
{
	size_t bytes = strlen(text) + (type == 'L' || type == 'K');
	size_t at = tar_header(t, "record", type, bytes);
	tar_body(t, text, bytes);
	return at;
}

UNUSED static void
tar_end(struct tar_file *t)
{
	tar_room(t, 1024);
}

/* "LENGTH KEY=VALUE\n" */
UNUSED static const char *
pax(const char *key, const char *value)
{
	static char text[8][300];
	static unsigned next;
	char *out = text[next++ % 8];
	size_t most = strlen(key) + strlen(value) + 3, bytes = most + 1;
	while ((size_t)snprintf(out, 300, "%zu %s=%s\n", bytes, key, value) != bytes)
		bytes++;
	return out;
}

#endif
