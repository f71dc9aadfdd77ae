/* A JSON pull parser (RFC 8259): no tree, no allocation, no recursion. The caller asks for what it
 * expects; strings are decoded in place; every error holds the byte offset.
 *
 * Strict: UTF-8 without overlong forms and surrogates, no lone surrogate escapes, no control
 * characters in strings, at most OH_JSON_DEPTH levels open at once.
 */
#ifndef OH_FORMAT_JSON_H
#define OH_FORMAT_JSON_H

#include "base/error.h"

/* The reference reader of safetensors refuses to open the 128th level. */
#define OH_JSON_DEPTH 127

/* A decoded string: offset and length in text. */
struct oh_json_string {
	uint32_t at;
	uint32_t bytes;
};

struct oh_json {
	uint8_t *text;
	uint64_t bytes;
	uint64_t at;      /* next byte to look at */
	uint64_t base;    /* added to at in messages: where text begins in its file */
	const char *path; /* for messages */
	struct onehop_error *error;
	uint32_t depth;
	uint32_t fresh; /* a level was just entered: no comma comes before its first value */
	/* What the values belong to, named in every message: a kind ("tensor"), and its decoded
	 * name. kind is NULL for nothing. */
	const char *subject_kind;
	struct oh_json_string subject;
};

enum oh_json_kind {
	OH_JSON_OBJECT,
	OH_JSON_ARRAY,
	OH_JSON_STRING,
	OH_JSON_NUMBER,
	OH_JSON_TRUE,
	OH_JSON_FALSE,
	OH_JSON_NULL,
	OH_JSON_BAD
};

/* bytes is less than 4 GiB. */
void oh_json_init(struct oh_json *json, const char *path, uint8_t *text, uint64_t bytes,
		  uint64_t base, struct onehop_error *error);

/* Kind of the value that comes next (whitespace skipped), OH_JSON_BAD at the end or at a byte that
 * begins no value; consumes nothing. */
enum oh_json_kind oh_json_peek(struct oh_json *json);

/* Fails unless a value of this kind comes next; consumes nothing. what names the value in the
 * message ("data_offsets"). */
onehop_status oh_json_expect(struct oh_json *json, enum oh_json_kind kind, const char *what);

/* Consumes '{' or '['. Then call oh_json_more before each member or element: it returns 1 if there
 * is one (the comma is consumed), 0 after consuming the close, and a negative number on a syntax
 * error, which is then in *error. */
onehop_status oh_json_enter(struct oh_json *json, enum oh_json_kind kind);
int oh_json_more(struct oh_json *json, enum oh_json_kind kind);

/* Consumes a member's key and the colon. */
onehop_status oh_json_key(struct oh_json *json, struct oh_json_string *key);
onehop_status oh_json_string(struct oh_json *json, struct oh_json_string *string, const char *what);
/* A plain non-negative integer: digits only, no sign, fraction or exponent, fits 64 bits. */
onehop_status oh_json_u64(struct oh_json *json, uint64_t *value, const char *what);
/* A whole number, sign allowed. */
onehop_status oh_json_i64(struct oh_json *json, int64_t *value, const char *what);
/* Skips any value, checking it; changes no byte of the text. */
onehop_status oh_json_skip(struct oh_json *json);
/* Only whitespace may follow. */
onehop_status oh_json_end(struct oh_json *json);

/* Writes "PATH: byte OFFSET: SUBJECT: sentence" for a rule broken at text[at]; ONEHOP_MALFORMED. */
onehop_status oh_json_fail(struct oh_json *json, uint64_t at, const char *format, ...)
    OH_PRINTF(3, 4);

static inline int
oh_json_is(const struct oh_json *json, struct oh_json_string string, const char *text, size_t bytes)
{
	return string.bytes == bytes && __builtin_memcmp(json->text + string.at, text, bytes) == 0;
}

#endif
