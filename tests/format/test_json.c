/* The JSON pull parser: what it takes, what it refuses and where, and what it leaves alone. */
#include "format/json.h"
#include "harness.h"

struct text {
	struct oh_json json;
	struct onehop_error error;
	uint8_t
	    *copy; /* of exactly the text's bytes, so that a sanitizer sees a read past the end */
};

static void
open_bytes(struct text *t, const char *text, size_t bytes)
{
	memset(t, 0, sizeof *t);
	t->copy = malloc(bytes ? bytes : 1);
	memcpy(t->copy, text, bytes);
	oh_json_init(&t->json, "file.json", t->copy, bytes, 8, &t->error);
}

static void
open_text(struct text *t, const char *text)
{
	open_bytes(t, text, strlen(text));
}

/* Skips one value and the end. Returns the status; the message is in said. */
static char said[sizeof((struct onehop_error *)0)->message];

static onehop_status
skip_bytes(const char *text, size_t bytes)
{
	struct text t;
	open_bytes(&t, text, bytes);
	onehop_status status = oh_json_skip(&t.json);
	if (!status)
		status = oh_json_end(&t.json);
	snprintf(said, sizeof said, "%s", t.error.message);
	if (memcmp(t.copy, text, bytes) != 0)
		status = -1;
	free(t.copy);
	return status;
}

static onehop_status
skip(const char *text)
{
	return skip_bytes(text, strlen(text));
}

/* Decodes one string. */
static onehop_status
decode(const char *text, char out[64], size_t *bytes)
{
	struct text t;
	struct oh_json_string string;
	open_text(&t, text);
	onehop_status status = oh_json_string(&t.json, &string, "it");
	if (!status) {
		memcpy(out, t.copy + string.at, string.bytes);
		out[string.bytes] = '\0';
		*bytes = string.bytes;
		status = oh_json_end(&t.json);
	}
	snprintf(said, sizeof said, "%s", t.error.message);
	free(t.copy);
	return status;
}

TEST(values_of_every_kind_are_skipped)
{
	static const char *const good[] = {
	    "{}",
	    "[]",
	    "\"\"",
	    "0",
	    "-0",
	    "1",
	    "-12",
	    "1.5",
	    "0.0e0",
	    "1e9",
	    "1E+9",
	    "2.5e-3",
	    "true",
	    "false",
	    "null",
	    " \t\r\n{ \"a\" : [ 1 , 2 ] } \n",
	    "[[],{},[{}]]",
	    "{\"a\":{\"b\":[null,true,{\"c\":\"d\"}]},\"e\":0}",
	    "[1,[2,[3,[4]]],5]",
	    "\"\\u0000\\ud83d\\ude00\\\\\\\"\\/\\b\\f\\n\\r\\t\"",
	    "\"\xC3\xA9\xF0\x9F\x98\x80\"",
	    "1e400",
	    "123456789012345678901234567890",
	};
	for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
		onehop_status status = skip(good[i]);
		if (status)
			test_fail(__FILE__, __LINE__, "%s: %s", good[i], said);
	}
}

TEST(text_that_is_no_json_is_refused_with_its_offset)
{
	static const struct {
		const char *text, *part;
	} bad[] = {
	    {"", "byte 8: the JSON ends where a value"},
	    {"   ", "byte 11: the JSON ends"},
	    {"{", "byte 9: the JSON ends"},
	    {"[", "byte 9: the JSON ends"},
	    {"[1", "byte 10: the JSON ends where ',' or ']'"},
	    {"[1,", "byte 11: the JSON ends"},
	    {"[1,]", "byte 11: a comma stands before the closing ']'"},
	    {"{\"a\":1,}", "byte 15: a comma stands before the closing '}'"},
	    {"[1 2]", "byte 11: '2' stands where ',' or ']'"},
	    {"[1}", "byte 10: '}' stands where"},
	    {"{\"a\":1]", "byte 14: ']' stands where"},
	    {"{\"a\"}", "byte 12: '}' stands where ':'"},
	    {"{\"a\":}", "byte 13: '}' stands where a value"},
	    {"{a:1}", "byte 9: 'a' stands where a key in quotes"},
	    {"{1:1}", "byte 9: '1' stands where a key in quotes"},
	    {"{'a':1}", "byte 9: ''' stands"},
	    {"{,}", "byte 9: ',' stands"},
	    {"[,]", "byte 9: ',' stands"},
	    {"1 1", "byte 10: '1' after the end of the JSON"},
	    {"{}}", "byte 10: '}' after the end"},
	    {"{}x", "byte 10: 'x' after the end"},
	    {"tru", "byte 8: a word that is not true, false or null"},
	    {"nul", "a word that is not"},
	    {"falsy", "a word that is not"},
	    {"True", "byte 8: 'T' stands where a value"},
	    {"NaN", "byte 8: 'N' stands"},
	    {"Infinity", "byte 8: 'I' stands"},
	    {"-", "byte 9: the JSON ends where a digit"},
	    {"-x", "byte 9: 'x' stands where a digit"},
	    {"-Infinity", "byte 9: 'I' stands where a digit"},
	    {"+1", "byte 8: '+' stands"},
	    {".5", "byte 8: '.' stands"},
	    {"1.", "byte 10: the JSON ends where a digit"},
	    {"1.e3", "byte 10: 'e' stands where a digit"},
	    {"1e", "byte 10: the JSON ends where a digit"},
	    {"1e+", "byte 11: the JSON ends where a digit"},
	    {"01", "byte 8: a number begins with a 0"},
	    {"-01", "byte 9: a number begins with a 0"},
	    {"0x10", "byte 9: 'x' after the end"},
	    {"\"a", "byte 10: the JSON ends inside a string: truncated"},
	    {"\"a\\", "byte 11: the JSON ends inside a string"},
	    {"\"\\u12", "\\u needs four hexadecimal digits"},
	    {"\"\\u12G4\"", "\\u needs four hexadecimal digits"},
	    {"\"\\x41\"", "byte 9: a backslash before 'x'"},
	    {"\"a\nb\"", "byte 10: control character 0x0a"},
	    {"\"\x1F\"", "byte 9: control character 0x1f"},
	    {"\"\\ud800\"", "byte 9: \\ud800 is half of a surrogate pair"},
	    {"\"\\ud800x\"", "half of a surrogate pair"},
	    {"\"\\ud800\\n\"", "half of a surrogate pair"},
	    {"\"\\ud800\\ud800\"", "half of a surrogate pair"},
	    {"\"\\udc00\"", "half of a surrogate pair"},
	    {"\"\\udc00\\ud800\"", "half of a surrogate pair"},
	    {"\"\\ud83d\\u", "half of a surrogate pair"},
	    {"\"\xE9\"", "byte 9: byte 0xe9 is not UTF-8"},
	    {"\"\xC0\x80\"", "is not UTF-8"},
	    {"\"\xE0\x80\x80\"", "is not UTF-8"},
	    {"\"\xED\xA0\x80\"", "is not UTF-8"},
	    {"\"\xF4\x90\x80\x80\"", "is not UTF-8"},
	    {"\"\xF8\x88\x80\x80\x80\"", "is not UTF-8"},
	    {"\"\x80\"", "is not UTF-8"},
	    {"\"\xC3", "is not UTF-8"},
	    {"\xFF", "byte 8: byte 0xff is not UTF-8"},
	    {"[1,\xFE]", "byte 11: byte 0xfe is not UTF-8"},
	    {"\xEF\xBB\xBF{}", "byte order mark"},
	    {"{} // note", "byte 11: '/' after the end"},
	    {"/* */ {}", "byte 8: '/' stands"},
	    {"\v{}", "byte 8: byte 0x0b stands"},
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		onehop_status status = skip(bad[i].text);
		if (status != ONEHOP_MALFORMED || !strstr(said, bad[i].part))
			test_fail(__FILE__, __LINE__, "%s: status %d, \"%s\" should hold \"%s\"",
				  bad[i].text, status, said, bad[i].part);
	}
}

TEST(a_nul_is_no_whitespace_and_ends_nothing)
{
	CHECK_EQ(skip_bytes("{}\0", 3), ONEHOP_MALFORMED);
	CHECK_HOLDS(said, "byte 10: NUL (0x00) after the end");
	CHECK_EQ(skip_bytes("\0{}", 3), ONEHOP_MALFORMED);
	CHECK_EQ(skip_bytes("\"a\0b\"", 5), ONEHOP_MALFORMED);
	CHECK_HOLDS(said, "control character 0x00");
	CHECK_EQ(skip_bytes("\"\\\0\"", 4), ONEHOP_MALFORMED);
	CHECK_HOLDS(said, "a backslash before NUL");
}

/* depth levels, the outermost an array, the others objects or arrays; in text of 1200 bytes. */
static void
nest(char *text, int depth, int is_object)
{
	size_t at = 0;
	text[at++] = '[';
	for (int i = 1; i < depth; i++) {
		memcpy(text + at, is_object ? "{\"\":" : "[", is_object ? 4 : 1);
		at += is_object ? 4 : 1;
	}
	text[at++] = '0';
	for (int i = 1; i < depth; i++)
		text[at++] = is_object ? '}' : ']';
	memcpy(text + at, "]", 2);
}

TEST(levels_are_open_up_to_the_limit_of_the_reference_and_no_deeper)
{
	char text[1200];
	for (int depth = 125; depth <= 130; depth++) {
		for (int is_object = 0; is_object < 2; is_object++) {
			nest(text, depth, is_object);
			onehop_status status = skip(text);
			CHECK_EQ(status, depth <= 127 ? ONEHOP_OK : ONEHOP_MALFORMED);
			if (status)
				CHECK_HOLDS(said, "nesting is too deep");
		}
	}
}

TEST(a_million_levels_cost_no_stack)
{
	const size_t levels = 1000000;
	char *text = malloc(levels);
	memset(text, '[', levels);
	onehop_status status = skip_bytes(text, levels);
	free(text);
	CHECK_EQ(status, ONEHOP_MALFORMED);
	CHECK_HOLDS(said, "byte 135: nesting is too deep");
}

TEST(levels_close_again)
{
	/* Many siblings at the limit: depth goes down as levels close. */
	char text[4096], *to = text;
	for (int i = 0; i < 126; i++)
		*to++ = '[';
	for (int i = 0; i < 500; i++)
		to += sprintf(to, "%s[]", i ? "," : "");
	for (int i = 0; i < 126; i++)
		*to++ = ']';
	*to = '\0';
	CHECK_EQ(skip(text), ONEHOP_OK);
}

TEST(strings_are_decoded_in_place)
{
	static const struct {
		const char *text, *want;
		size_t bytes;
	} cases[] = {
	    {"\"\"", "", 0},
	    {"\"plain\"", "plain", 5},
	    {"\"a\\\"b\\\\c\\/d\"", "a\"b\\c/d", 7},
	    {"\"\\b\\f\\n\\r\\t\"", "\b\f\n\r\t", 5},
	    {"\"\\u0041\\u00e9\\u20AC\"", "A\xC3\xA9\xE2\x82\xAC", 6},
	    {"\"x\\ud83d\\uDE00y\"", "x\xF0\x9F\x98\x80y", 6},
	    {"\"\\uDBFF\\uDFFF\"", "\xF4\x8F\xBF\xBF", 4},
	    {"\"\\ud800\\udc00\"", "\xF0\x90\x80\x80", 4},
	    {"\"\\u0000\"", "\0", 1},
	    {"\"\\uFFFF\\u07ff\\u0800\"", "\xEF\xBF\xBF\xDF\xBF\xE0\xA0\x80", 8},
	    {"\"\\nafter the escape \xC3\xA9 more\"", "\nafter the escape \xC3\xA9 more", 25},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char out[64];
		size_t bytes = 0;
		CHECK_EQ(decode(cases[i].text, out, &bytes), ONEHOP_OK);
		CHECK_EQ(bytes, cases[i].bytes);
		CHECK(memcmp(out, cases[i].want, bytes) == 0);
	}
}

TEST(integers_are_plain_digits_of_64_bits)
{
	static const struct {
		const char *text;
		uint64_t want;
	} good[] = {{"0", 0}, {"7", 7}, {" 18446744073709551615", UINT64_MAX}, {"100", 100}};
	static const struct {
		const char *text, *part;
	} bad[] = {
	    {"18446744073709551616", "n 18446744073709551616 does not fit 64 bits (overflow)"},
	    {"99999999999999999999999", "does not fit 64 bits"},
	    {"-1", "n -1 is negative"},
	    {"-0", "n -0 is negative"},
	    {"1.0", "n 1.0 is no plain integer"},
	    {"1e3", "n 1e3 is no plain integer"},
	    {"1E3", "is no plain integer"},
	    {"01", "a number begins with a 0"},
	    {"00", "a number begins with a 0"},
	    {"\"1\"", "n is a string, should be a number"},
	    {"true", "n is true, should be a number"},
	    {"null", "n is null, should be a number"},
	    {"[1]", "n is an array, should be a number"},
	    {"{}", "n is an object, should be a number"},
	    {"", "the JSON ends where a number"},
	    {"x", "'x' stands where a number"},
	};
	struct text t;
	for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
		uint64_t value = 1;
		open_text(&t, good[i].text);
		onehop_status status = oh_json_u64(&t.json, &value, "n");
		free(t.copy);
		CHECK_EQ(status, ONEHOP_OK);
		CHECK(value == good[i].want);
	}
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		uint64_t value = 1;
		open_text(&t, bad[i].text);
		onehop_status status = oh_json_u64(&t.json, &value, "n");
		free(t.copy);
		CHECK_EQ(status, ONEHOP_MALFORMED);
		CHECK_EQ(value, 1);
		CHECK_HOLDS(t.error.message, bad[i].part);
	}
}

TEST(signed_integers_reach_both_ends)
{
	static const struct {
		const char *text;
		int64_t want;
		int bad;
	} cases[] = {
	    {"0", 0, 0},
	    {"-0", 0, 0},
	    {"-1", -1, 0},
	    {"9223372036854775807", INT64_MAX, 0},
	    {"-9223372036854775808", INT64_MIN, 0},
	    {"9223372036854775808", 0, 1},
	    {"-9223372036854775809", 0, 1},
	    {"-", 0, 1},
	    {"--1", 0, 1},
	    {"1.5", 0, 1},
	    {"-01", 0, 1},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct text t;
		int64_t value = 77;
		open_text(&t, cases[i].text);
		onehop_status status = oh_json_i64(&t.json, &value, "n");
		free(t.copy);
		CHECK_EQ(status, cases[i].bad ? ONEHOP_MALFORMED : ONEHOP_OK);
		CHECK_EQ(value, cases[i].bad ? 77 : cases[i].want);
	}
}

TEST(members_and_elements_are_pulled_one_by_one)
{
	struct text t;
	struct oh_json_string key;
	uint64_t sum = 0, value;
	int more;
	open_text(&t, "{\"a\":[1,2,3],\"b\":[],\"c\":[40]}");
	CHECK_EQ(oh_json_enter(&t.json, OH_JSON_OBJECT), ONEHOP_OK);
	while ((more = oh_json_more(&t.json, OH_JSON_OBJECT)) > 0) {
		CHECK_EQ(oh_json_key(&t.json, &key), ONEHOP_OK);
		CHECK_EQ(key.bytes, 1);
		CHECK_EQ(oh_json_enter(&t.json, OH_JSON_ARRAY), ONEHOP_OK);
		while ((more = oh_json_more(&t.json, OH_JSON_ARRAY)) > 0) {
			CHECK_EQ(oh_json_u64(&t.json, &value, "n"), ONEHOP_OK);
			sum += value;
		}
		CHECK_EQ(more, 0);
	}
	CHECK_EQ(more, 0);
	CHECK_EQ(t.json.depth, 0);
	CHECK_EQ(oh_json_end(&t.json), ONEHOP_OK);
	CHECK_EQ(sum, 46);
	free(t.copy);
}

TEST(a_subject_is_named_in_every_message)
{
	struct text t;
	open_text(&t, "\"blk\\n\" x");
	CHECK_EQ(oh_json_string(&t.json, &t.json.subject, "it"), ONEHOP_OK);
	t.json.subject_kind = "tensor";
	CHECK_EQ(oh_json_skip(&t.json), ONEHOP_MALFORMED);
	CHECK_STR(t.error.message,
		  "file.json: byte 16: tensor \"blk\\x0a\": 'x' stands where a value "
		  "should");
	free(t.copy);
}

TEST(a_long_path_does_not_push_the_rule_out_of_the_message)
{
	static char path[2000];
	struct text t;
	memset(path, 'd', sizeof path - 1);
	memcpy(path + sizeof path - 8, "/x.json", 7);
	open_text(&t, "{");
	t.json.path = path;
	CHECK_EQ(oh_json_skip(&t.json), ONEHOP_MALFORMED);
	CHECK_HOLDS(t.error.message, "/x.json: byte 9: the JSON ends");
	t.json.path = "new\nline\x1b[m\xFF.json";
	t.json.at = t.json.bytes;
	CHECK_EQ(oh_json_skip(&t.json), ONEHOP_MALFORMED);
	CHECK_HOLDS(t.error.message, "new?line?[m?.json: byte 9");
	free(t.copy);
}

TEST(an_error_is_not_needed)
{
	struct text t;
	open_text(&t, "[");
	t.json.error = NULL;
	CHECK_EQ(oh_json_skip(&t.json), ONEHOP_MALFORMED);
	free(t.copy);
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
