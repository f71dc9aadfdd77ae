/* The JSON pull parser: reads a text from front to back, once, as its caller asks.
 *
 * Invariants: at <= bytes; depth is the number of levels that are open; a string is decoded where
 * it stands and never grows, so bytes in front of at may differ from the file's, bytes from at on
 * never do. oh_json_skip keeps the kinds of open levels in bits, so hostile nesting costs no stack.
 * Nothing allocates. Numbers that nobody asks for are checked for form, not for size.
 */
#include "format/json.h"
#include "base/arith.h"
#include "base/utf8.h"
#include "format/fail.h"

#include <assert.h>
#include <endian.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

static const char *const kind_names[] = {"an object", "an array", "a string", "a number",
					 "true",      "false",    "null",     "no value"};

void
oh_json_init(struct oh_json *json, const char *path, uint8_t *text, uint64_t bytes, uint64_t base,
	     struct onehop_error *error)
{
	assert(bytes < UINT32_MAX);
	memset(json, 0, sizeof *json);
	json->path = path;
	json->text = text;
	json->bytes = bytes;
	json->base = base;
	json->error = error;
}

onehop_status
oh_json_fail(struct oh_json *json, uint64_t at, const char *format, ...)
{
	char sentence[512], shown[OH_SHOWN];
	va_list args;
	if (!json->error)
		return ONEHOP_MALFORMED;
	va_start(args, format);
	vsnprintf(sentence, sizeof sentence, format, args);
	va_end(args);
	if (!json->subject_kind)
		return oh_refuse(json->error, ONEHOP_MALFORMED, json->path, "byte %llu: %s",
				 (unsigned long long)(json->base + at), sentence);
	oh_show(shown, (const char *)json->text + json->subject.at, json->subject.bytes);
	return oh_refuse(json->error, ONEHOP_MALFORMED, json->path, "byte %llu: %s %s: %s",
			 (unsigned long long)(json->base + at), json->subject_kind, shown,
			 sentence);
}

static const char *
show_byte(char out[24], uint8_t byte)
{
	if (byte == 0)
		return "NUL (0x00)";
	if (byte < 0x21 || byte >= 0x7F)
		snprintf(out, 24, "byte 0x%02x", byte);
	else
		snprintf(out, 24, "'%c'", byte);
	return out;
}

static onehop_status
not_utf8(struct oh_json *json, uint64_t at)
{
	return oh_json_fail(json, at, "byte 0x%02x is not UTF-8 here, and JSON is UTF-8",
			    json->text[at]);
}

/* The text at json->at is not what it has to be. */
static onehop_status
unexpected(struct oh_json *json, const char *wanted)
{
	char out[24];
	uint64_t at = json->at, left = json->bytes - at;
	if (!left)
		return oh_json_fail(json, at, "the JSON ends where %s should stand: truncated",
				    wanted);
	if (at == 0 && left >= 3 && memcmp(json->text, "\xEF\xBB\xBF", 3) == 0)
		return oh_json_fail(json, at, "a byte order mark (BOM) stands where %s should",
				    wanted);
	if (!oh_utf8_length(json->text + at, left))
		return not_utf8(json, at);
	return oh_json_fail(json, at, "%s stands where %s should", show_byte(out, json->text[at]),
			    wanted);
}

static inline void
skip_space(struct oh_json *json)
{
	const uint8_t *t = json->text;
	uint64_t at = json->at;
	const uint64_t n = json->bytes;
	/* Most bytes are none: one test tells. */
	while (at < n && t[at] <= ' ' &&
	       (t[at] == ' ' || t[at] == '\n' || t[at] == '\t' || t[at] == '\r'))
		at++;
	json->at = at;
}

static __attribute__((noinline)) uint8_t
byte_after_space(struct oh_json *json)
{
	skip_space(json);
	return json->at < json->bytes ? json->text[json->at] : 0;
}

/* Next byte that is no whitespace, 0 at the end (a NUL is no part of JSON either). Mostly there is
 * none to skip. */
static inline uint8_t
next_byte(struct oh_json *json)
{
	if (json->at < json->bytes && json->text[json->at] > ' ')
		return json->text[json->at];
	return byte_after_space(json);
}

enum oh_json_kind
oh_json_peek(struct oh_json *json)
{
	switch (next_byte(json)) {
	case '{':
		return OH_JSON_OBJECT;
	case '[':
		return OH_JSON_ARRAY;
	case '"':
		return OH_JSON_STRING;
	case 't':
		return OH_JSON_TRUE;
	case 'f':
		return OH_JSON_FALSE;
	case 'n':
		return OH_JSON_NULL;
	case '-':
	case '0':
	case '1':
	case '2':
	case '3':
	case '4':
	case '5':
	case '6':
	case '7':
	case '8':
	case '9':
		return OH_JSON_NUMBER;
	default:
		return OH_JSON_BAD;
	}
}

onehop_status
oh_json_expect(struct oh_json *json, enum oh_json_kind kind, const char *what)
{
	enum oh_json_kind is = oh_json_peek(json);
	if (is == kind)
		return ONEHOP_OK;
	if (is == OH_JSON_BAD)
		return unexpected(json, kind_names[kind]);
	return oh_json_fail(json, json->at, "%s is %s, should be %s", what, kind_names[is],
			    kind_names[kind]);
}

onehop_status
oh_json_enter(struct oh_json *json, enum oh_json_kind kind)
{
	onehop_status status = oh_json_expect(json, kind, "the value");
	if (status)
		return status;
	if (json->depth == OH_JSON_DEPTH)
		return oh_json_fail(json, json->at,
				    "nesting is too deep: at most %d levels of objects and arrays",
				    OH_JSON_DEPTH);
	json->at++;
	json->depth++;
	json->fresh = 1;
	return ONEHOP_OK;
}

int
oh_json_more(struct oh_json *json, enum oh_json_kind kind)
{
	const uint8_t close = kind == OH_JSON_OBJECT ? '}' : ']';
	uint32_t fresh = json->fresh;
	uint8_t c = next_byte(json);
	json->fresh = 0;
	if (c == close) {
		assert(json->depth > 0);
		json->at++;
		json->depth--;
		return 0;
	}
	if (fresh)
		return 1;
	if (c != ',') {
		unexpected(json, kind == OH_JSON_OBJECT ? "',' or '}'" : "',' or ']'");
		return -1;
	}
	json->at++;
	if (next_byte(json) == close) {
		oh_json_fail(json, json->at, "a comma stands before the closing '%c'", close);
		return -1;
	}
	return 1;
}

/* Four hex digits at text[at], or -1. */
static int32_t
hex4(const struct oh_json *json, uint64_t at)
{
	int32_t value = 0;
	if (json->bytes - at < 4)
		return -1;
	for (int i = 0; i < 4; i++) {
		uint8_t c = json->text[at + (uint64_t)i];
		int32_t digit = c >= '0' && c <= '9'                 ? c - '0'
				: (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
								     : -1;
		if (digit < 0)
			return -1;
		value = value << 4 | digit;
	}
	return value;
}

static uint32_t
put_utf8(uint8_t out[4], uint32_t point)
{
	if (point < 0x80) {
		out[0] = (uint8_t)point;
		return 1;
	}
	if (point < 0x800) {
		out[0] = (uint8_t)(0xC0 | point >> 6);
		out[1] = (uint8_t)(0x80 | (point & 0x3F));
		return 2;
	}
	if (point < 0x10000) {
		out[0] = (uint8_t)(0xE0 | point >> 12);
		out[1] = (uint8_t)(0x80 | (point >> 6 & 0x3F));
		out[2] = (uint8_t)(0x80 | (point & 0x3F));
		return 3;
	}
	out[0] = (uint8_t)(0xF0 | point >> 18);
	out[1] = (uint8_t)(0x80 | (point >> 12 & 0x3F));
	out[2] = (uint8_t)(0x80 | (point >> 6 & 0x3F));
	out[3] = (uint8_t)(0x80 | (point & 0x3F));
	return 4;
}

/* \uXXXX at *at (of the 'u'), a pair of them above U+FFFF. */
static onehop_status
unicode_escape(struct oh_json *json, uint64_t *at, uint8_t out[4], uint32_t *length)
{
	int32_t high = hex4(json, *at + 1), low;
	if (high < 0)
		return oh_json_fail(json, *at, "\\u needs four hexadecimal digits");
	*at += 5;
	if (high < 0xD800 || high > 0xDFFF) {
		*length = put_utf8(out, (uint32_t)high);
		return ONEHOP_OK;
	}
	low = high < 0xDC00 && json->bytes - *at >= 6 && json->text[*at] == '\\' &&
		      json->text[*at + 1] == 'u'
		  ? hex4(json, *at + 2)
		  : -1;
	if (low < 0xDC00 || low > 0xDFFF)
		return oh_json_fail(json, *at - 6,
				    "\\u%04x is half of a surrogate pair, which is no "
				    "character (not UTF-8)",
				    (unsigned)high);
	*at += 6;
	*length =
	    put_utf8(out, 0x10000 + (((uint32_t)high - 0xD800) << 10) + ((uint32_t)low - 0xDC00));
	return ONEHOP_OK;
}

/* An escape whose backslash is at *at. */
static onehop_status
escape(struct oh_json *json, uint64_t *at, uint8_t out[4], uint32_t *length)
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	char shown[24];
	uint64_t next = *at + 1;
	if (next == json->bytes)
		return oh_json_fail(json, next, "the JSON ends inside a string: truncated");
	uint8_t c = json->text[next];
	if (c == 'u') {
		*at = next;
		return unicode_escape(json, at, out, length);
	}
	const char *known = c ? strchr(from, c) : NULL;
	if (!known)
		return oh_json_fail(json, *at, "a backslash before %s is no escape of JSON",
				    show_byte(shown, c));
	out[0] = (uint8_t)to[known - from];
	*length = 1;
	*at = next + 1;
	return ONEHOP_OK;
}

/* Bit 7 of each byte of word that needs a look: a quote, a backslash, a control character, or one
 * from 0x80 up. Exact for the lowest one; those above it may be set for nothing. */
static inline uint64_t
special_bytes(uint64_t word)
{
	const uint64_t ones = UINT64_C(0x0101010101010101);
	const uint64_t quote = word ^ ones * '"', slash = word ^ ones * '\\';
	return (((word - ones * 0x20) & ~word) | ((quote - ones) & ~quote) |
		((slash - ones) & ~slash) | word) & ones << 7;
}

/* Where the run of plain characters that begins at `at` ends, at n at the latest. */
static inline uint64_t
plain_end(const uint8_t *t, uint64_t at, uint64_t n)
{
	uint64_t word;
	for (; n - at >= sizeof word; at += sizeof word) {
		memcpy(&word, t + at, sizeof word);
		uint64_t special = special_bytes(le64toh(word));
		if (special)
			return at + (uint64_t)__builtin_ctzll(special) / 8;
	}
	while (at < n && t[at] >= 0x20 && t[at] < 0x80 && t[at] != '"' && t[at] != '\\')
		at++;
	return at;
}

/* Reads the string whose quote is at json->at; decodes it in place or only checks it. */
static onehop_status
scan_string(struct oh_json *json, int decode, struct oh_json_string *string)
{
	uint8_t *t = json->text, out[4];
	const uint64_t n = json->bytes, begin = json->at + 1;
	uint64_t at = begin, to = begin;
	for (;;) {
		const uint64_t from = at;
		uint32_t length = 0;
		at = plain_end(t, at, n);
		if (decode && to != from)
			memmove(t + to, t + from, at - from);
		to += at - from;
		if (at == n)
			return oh_json_fail(json, at, "the JSON ends inside a string: truncated");
		if (t[at] == '"')
			break;
		if (t[at] == '\\') {
			onehop_status status = escape(json, &at, out, &length);
			if (status)
				return status;
		} else if (t[at] < 0x20) {
			return oh_json_fail(json, at,
					    "control character 0x%02x in a string must be "
					    "escaped",
					    t[at]);
		} else {
			length = (uint32_t)oh_utf8_length(t + at, n - at);
			if (!length)
				return not_utf8(json, at);
			memcpy(out, t + at, length);
			at += length;
		}
		if (decode)
			memcpy(t + to, out, length);
		to += length;
	}
	json->at = at + 1;
	string->at = (uint32_t)begin;
	string->bytes = (uint32_t)(to - begin);
	return ONEHOP_OK;
}

static onehop_status
scan_key(struct oh_json *json, int decode, struct oh_json_string *key)
{
	onehop_status status;
	if (next_byte(json) != '"')
		return unexpected(json, "a key in quotes");
	status = scan_string(json, decode, key);
	if (status)
		return status;
	if (next_byte(json) != ':')
		return unexpected(json, "':'");
	json->at++;
	return ONEHOP_OK;
}

onehop_status
oh_json_key(struct oh_json *json, struct oh_json_string *key)
{
	return scan_key(json, 1, key);
}

onehop_status
oh_json_string(struct oh_json *json, struct oh_json_string *string, const char *what)
{
	onehop_status status = oh_json_expect(json, OH_JSON_STRING, what);
	return status ? status : scan_string(json, 1, string);
}

static inline int
is_digit(const struct oh_json *json, uint64_t at)
{
	return at < json->bytes && json->text[at] >= '0' && json->text[at] <= '9';
}

/* At least one digit at *at, which is left behind the last. */
static onehop_status
scan_digits(struct oh_json *json, uint64_t *at)
{
	if (!is_digit(json, *at)) {
		json->at = *at;
		return unexpected(json, "a digit");
	}
	while (is_digit(json, *at))
		(*at)++;
	return ONEHOP_OK;
}

/* The number at json->at, which it leaves; *end is behind it. */
static onehop_status
scan_number(struct oh_json *json, uint64_t *end)
{
	const uint8_t *t = json->text;
	uint64_t at = json->at, first;
	onehop_status status;
	if (t[at] == '-')
		at++;
	first = at;
	status = scan_digits(json, &at);
	if (status)
		return status;
	if (t[first] == '0' && at - first > 1)
		return oh_json_fail(json, first,
				    "a number begins with a 0 that stands for nothing");
	if (at < json->bytes && t[at] == '.') {
		at++;
		status = scan_digits(json, &at);
		if (status)
			return status;
	}
	if (at < json->bytes && (t[at] | 32) == 'e') {
		at++;
		if (at < json->bytes && (t[at] == '+' || t[at] == '-'))
			at++;
		status = scan_digits(json, &at);
		if (status)
			return status;
	}
	*end = at;
	return ONEHOP_OK;
}

/* Names what is wrong with a value that is no integer of the kind wanted. */
static onehop_status
bad_integer(struct oh_json *json, const char *what, int sign_allowed)
{
	uint64_t end = 0;
	const char *rule = "does not fit 64 bits (overflow)";
	onehop_status status = oh_json_expect(json, OH_JSON_NUMBER, what);
	if (!status)
		status = scan_number(json, &end);
	if (status)
		return status;
	const char *token = (const char *)json->text + json->at;
	size_t bytes = (size_t)(end - json->at);
	if (memchr(token, '.', bytes) || memchr(token, 'e', bytes) || memchr(token, 'E', bytes))
		rule = "is no plain integer: digits only, no fraction or exponent";
	else if (token[0] == '-' && !sign_allowed)
		rule = "is negative, should be a number from 0 up";
	return oh_json_fail(json, json->at, "%s %.*s%s %s", what, (int)(bytes > 40 ? 40 : bytes),
			    token, bytes > 40 ? "..." : "", rule);
}

/* Digits at *at as a number: 0 if they are a plain integer of 64 bits. */
static int
plain_digits(const struct oh_json *json, uint64_t *at, uint64_t *value)
{
	const uint8_t *t = json->text;
	const uint64_t from = *at, n = json->bytes;
	const uint64_t safe = n - from > 19 ? from + 19 : n; /* 19 digits always fit */
	uint64_t sum = 0, to = from;
	uint8_t digit;
	int wide = 0;
	for (; to < safe && (digit = (uint8_t)(t[to] - '0')) <= 9; to++)
		sum = sum * 10 + digit;
	if (to - from == 19)
		for (; to < n && (digit = (uint8_t)(t[to] - '0')) <= 9; to++)
			wide |= oh_mul(sum, 10, &sum) || oh_add(sum, digit, &sum);
	*at = to;
	*value = sum;
	if (*at == from || wide || (t[from] == '0' && *at - from > 1))
		return -1;
	return *at < json->bytes && (t[*at] == '.' || (t[*at] | 32) == 'e') ? -1 : 0;
}

onehop_status
oh_json_u64(struct oh_json *json, uint64_t *value, const char *what)
{
	uint64_t at, sum;
	next_byte(json);
	at = json->at;
	if (plain_digits(json, &at, &sum))
		return bad_integer(json, what, 0);
	json->at = at;
	*value = sum;
	return ONEHOP_OK;
}

onehop_status
oh_json_i64(struct oh_json *json, int64_t *value, const char *what)
{
	uint64_t at, sum;
	int minus = next_byte(json) == '-';
	at = json->at + (uint64_t)minus;
	if (plain_digits(json, &at, &sum) || sum > (uint64_t)INT64_MAX + (uint64_t)minus)
		return bad_integer(json, what, 1);
	json->at = at;
	*value = minus ? (int64_t)(0 - sum) : (int64_t)sum;
	return ONEHOP_OK;
}

static onehop_status
skip_word(struct oh_json *json, const char *word)
{
	size_t bytes = strlen(word);
	if (json->bytes - json->at < bytes || memcmp(json->text + json->at, word, bytes) != 0)
		return oh_json_fail(json, json->at, "a word that is not true, false or null");
	json->at += bytes;
	return ONEHOP_OK;
}

static onehop_status
skip_scalar(struct oh_json *json, enum oh_json_kind kind)
{
	struct oh_json_string ignored;
	onehop_status status;
	uint64_t end = 0;
	switch (kind) {
	case OH_JSON_STRING:
		return scan_string(json, 0, &ignored);
	case OH_JSON_NUMBER:
		status = scan_number(json, &end);
		if (!status)
			json->at = end;
		return status;
	case OH_JSON_BAD:
		return unexpected(json, "a value");
	default:
		return skip_word(json, kind_names[kind]);
	}
}

onehop_status
oh_json_skip(struct oh_json *json)
{
	/* Which of the open levels are objects: one bit each. */
	uint64_t objects[OH_JSON_DEPTH / 64 + 1] = {0};
	const uint32_t outside = json->depth;
	struct oh_json_string ignored;
	onehop_status status;
	do {
		enum oh_json_kind kind = oh_json_peek(json);
		int more = 0;
		if (kind == OH_JSON_OBJECT || kind == OH_JSON_ARRAY) {
			status = oh_json_enter(json, kind);
			if (status)
				return status;
			uint64_t bit = UINT64_C(1) << (json->depth % 64);
			objects[json->depth / 64] &= ~bit;
			if (kind == OH_JSON_OBJECT)
				objects[json->depth / 64] |= bit;
		} else {
			status = skip_scalar(json, kind);
			if (status)
				return status;
		}
		while (json->depth > outside && !more) {
			int object = objects[json->depth / 64] >> (json->depth % 64) & 1;
			more = oh_json_more(json, object ? OH_JSON_OBJECT : OH_JSON_ARRAY);
			if (more < 0)
				return ONEHOP_MALFORMED;
			if (more && object) {
				status = scan_key(json, 0, &ignored);
				if (status)
					return status;
			}
		}
	} while (json->depth > outside);
	return ONEHOP_OK;
}

onehop_status
oh_json_end(struct oh_json *json)
{
	char out[24];
	skip_space(json);
	if (json->at == json->bytes)
		return ONEHOP_OK;
	return oh_json_fail(json, json->at,
			    "%s after the end of the JSON: only whitespace may "
			    "follow as padding",
			    show_byte(out, json->text[json->at]));
}
