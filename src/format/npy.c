/* The header of a .npy file: magic, version, a length, and a Python dictionary of three entries.
 *
 * What it cannot read for certain is no array to it; nothing here is an error. The dictionary is
 * read as Python's literals are: spaces between tokens, either quote, any order of its keys, each
 * once, a comma behind the last or not. An element type that is a list (records) is not read.
 */
#include "format/npy.h"
#include "base/arith.h"

#include <string.h>

struct text {
	const char *at;
	const char *end;
};

static void
skip_spaces(struct text *text)
{
	while (text->at < text->end && (*text->at == ' ' || *text->at == '\t' || *text->at == '\n'))
		text->at++;
}

/* 1 if that is the next token, which is then behind us. */
static int
take(struct text *text, const char *token)
{
	size_t bytes = strlen(token);
	skip_spaces(text);
	if ((size_t)(text->end - text->at) < bytes || memcmp(text->at, token, bytes) != 0)
		return 0;
	text->at += bytes;
	return 1;
}

/* A string without escapes, between either kind of quotes. */
static int
take_string(struct text *text, struct text *string)
{
	skip_spaces(text);
	if (text->at == text->end || (*text->at != '\'' && *text->at != '"'))
		return 0;
	const char *begin = text->at + 1;
	const char *end = memchr(begin, *text->at, (size_t)(text->end - begin));
	if (!end || memchr(begin, '\\', (size_t)(end - begin)))
		return 0;
	*string = (struct text){begin, end};
	text->at = end + 1;
	return 1;
}

static int
is(const struct text *string, const char *word)
{
	size_t bytes = strlen(word);
	return (size_t)(string->end - string->at) == bytes && memcmp(string->at, word, bytes) == 0;
}

static int
take_number(struct text *text, uint64_t *number)
{
	uint64_t value = 0;
	skip_spaces(text);
	const char *begin = text->at;
	for (; text->at < text->end && *text->at >= '0' && *text->at <= '9'; text->at++)
		if (oh_mul(value, 10, &value) || oh_add(value, (uint64_t)(*text->at - '0'), &value))
			return 0;
	/* Python 2 wrote its long integers so. */
	if (text->at > begin && text->at < text->end && *text->at == 'L')
		text->at++;
	*number = value;
	return text->at > begin;
}

/* NumPy spells the order of bytes even where there is only one: '|'. */
static uint16_t
dtype_of(const struct text *descr)
{
	static const struct {
		const char *descr;
		const char *name;
	} rows[] = {
		{"|b1", "BOOL"}, {"|u1", "U8"},  {"|i1", "I8"},  {"<u2", "U16"}, {"<i2", "I16"},
		{"<u4", "U32"},  {"<i4", "I32"}, {"<u8", "U64"}, {"<i8", "I64"}, {"<f2", "F16"},
		{"<f4", "F32"},  {"<f8", "F64"}, {"<c8", "C64"},
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		if (is(descr, rows[i].descr))
			return oh_shard_dtype_code(rows[i].name);
	return 0;
}

/* (), (3,), (3, 4) or (3, 4,). */
static int
take_shape(struct text *text, struct oh_shard_type *type)
{
	if (!take(text, "("))
		return 0;
	for (type->rank = 0; !take(text, ")");) {
		if (type->rank == OH_SHARD_MAX_RANK ||
		    !take_number(text, &type->shape[type->rank++]))
			return 0;
		int comma = take(text, ",");
		skip_spaces(text);
		if (!comma && (type->rank == 1 || text->at == text->end || *text->at != ')'))
			return 0;
	}
	return 1;
}

enum { DESCR = 1, ORDER = 2, SHAPE = 4, ALL = 7 };

/* One entry; returns which, 0 if it is none that we take. */
static int
take_entry(struct text *text, struct oh_shard_type *type)
{
	struct text key, descr;
	if (!take_string(text, &key) || !take(text, ":"))
		return 0;
	if (is(&key, "descr")) {
		type->dtype = take_string(text, &descr) ? dtype_of(&descr) : 0;
		return type->dtype ? DESCR : 0;
	}
	if (is(&key, "fortran_order"))
		return take(text, "False") ? ORDER : 0;
	return is(&key, "shape") && take_shape(text, type) ? SHAPE : 0;
}

static int
take_dictionary(struct text *text, struct oh_shard_type *type)
{
	int seen = 0, comma = 1;
	if (!take(text, "{"))
		return 0;
	while (!take(text, "}")) {
		int entry = comma ? take_entry(text, type) : 0;
		if (!entry || seen & entry)
			return 0;
		seen |= entry;
		comma = take(text, ",");
	}
	skip_spaces(text);
	return seen == ALL && text->at == text->end;
}

/* Where the array begins, 0 if that is not within have. */
static uint32_t
array_offset(const uint8_t *head, size_t have, uint32_t *begin)
{
	if (have < 12 || memcmp(head, "\x93NUMPY", 6) != 0 || head[6] < 1 || head[6] > 3 || head[7])
		return 0;
	uint64_t bytes = head[8] | (uint64_t)head[9] << 8;
	*begin = 10;
	if (head[6] > 1) {
		bytes |= (uint64_t)head[10] << 16 | (uint64_t)head[11] << 24;
		*begin = 12;
	}
	return bytes <= have - *begin ? *begin + (uint32_t)bytes : 0;
}

int
oh_npy_type(const void *head, size_t have, uint64_t bytes, struct oh_shard_type *type)
{
	struct oh_shard_type found = {0};
	uint32_t begin = 0, offset = array_offset(head, have, &begin);
	uint64_t array;
	if (!offset)
		return 0;
	struct text text = {(const char *)head + begin, (const char *)head + offset};
	if (!take_dictionary(&text, &found) || oh_shard_type_bytes(&found, &array))
		return 0;
	if (bytes < offset || array != bytes - offset)
		return 0;
	found.data_offset = offset;
	*type = found;
	return 1;
}

int
oh_npy_is_field(const char *field, size_t bytes)
{
	if (bytes < 3)
		return 0;
	const char *end = field + bytes - 3;
	return (end[0] | 0x20) == 'n' && (end[1] | 0x20) == 'p' &&
	       (end[2] | 0x20) == 'y' && (bytes == 3 || end[-1] == '.');
}
