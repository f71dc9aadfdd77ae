/* JSON on top of the writer.
 *
 * What comes out is always valid: strings are UTF-8 (bytes that are none become U+FFFD, which only
 * paths can hold), numbers are finite or null, brackets match (asserted at the end). It checks no
 * duplicate keys: they are constants of ours.
 */
#include "out.h"
#include "utf8.h"

#include <assert.h>
#include <math.h>
#include <string.h>

void
json_begin(struct json *json, struct out *out)
{
	memset(json, 0, sizeof *json);
	json->out = out;
	json_open(json, NULL, '{');
}

static void
quoted(struct out *out, const char *text, size_t bytes)
{
	const unsigned char *at = (const unsigned char *)text;
	size_t plain = 0; /* bytes before i that are not written yet */
	out_raw(out, "\"", 1);
	for (size_t i = 0; i < bytes;) {
		size_t length = utf8_length(at + i, bytes - i);
		int escape = at[i] < 0x20 || at[i] == 0x7F || at[i] == '"' || at[i] == '\\';
		if (length && !escape) {
			plain += length;
			i += length;
			continue;
		}
		out_raw(out, text + i - plain, plain);
		plain = 0;
		if (!length)
			out_text(out, "\\ufffd");
		else if (at[i] == '"' || at[i] == '\\')
			out_format(out, "\\%c", at[i]);
		else
			out_format(out, "\\u%04x", at[i]);
		i++;
	}
	out_raw(out, text + bytes - plain, plain);
	out_raw(out, "\"", 1);
}

/* What comes before a value: a comma, a new line where one belongs, the key. */
static void
lead(struct json *json, const char *key, int is_object)
{
	unsigned depth = json->depth;
	if (depth == 0)
		return;
	int line = depth == 1 || (depth == 2 && json->open[1] == '[' && is_object);
	json->lines[depth - 1] |= line;
	if (json->many[depth - 1])
		out_text(json->out, line ? "," : ", ");
	if (line)
		out_text(json->out, depth == 1 ? "\n  " : "\n    ");
	json->many[depth - 1] = 1;
	assert((json->open[depth - 1] == '{') == (key != NULL));
	if (key) {
		quoted(json->out, key, strlen(key));
		out_text(json->out, ": ");
	}
}

void
json_open(struct json *json, const char *key, char bracket)
{
	lead(json, key, bracket == '{');
	assert(json->depth < sizeof json->open);
	json->open[json->depth] = bracket;
	json->many[json->depth] = 0;
	json->lines[json->depth] = 0;
	json->depth++;
	out_raw(json->out, &bracket, 1);
}

void
json_close(struct json *json)
{
	assert(json->depth > 0);
	json->depth--;
	if (json->lines[json->depth])
		out_text(json->out, json->depth == 0 ? "\n" : "\n  ");
	out_text(json->out, json->open[json->depth] == '{' ? "}" : "]");
}

void
json_string(struct json *json, const char *key, const char *text, size_t bytes)
{
	lead(json, key, 0);
	quoted(json->out, text, bytes);
}

void
json_text(struct json *json, const char *key, const char *text)
{
	json_string(json, key, text, strlen(text));
}

void
json_number(struct json *json, const char *key, uint64_t number)
{
	lead(json, key, 0);
	out_number(json->out, number);
}

void
json_double(struct json *json, const char *key, double number, int decimals)
{
	lead(json, key, 0);
	if (isfinite(number))
		out_format(json->out, "%.*f", decimals, number);
	else
		out_text(json->out, "null");
}

void
json_bool(struct json *json, const char *key, int value)
{
	lead(json, key, 0);
	out_text(json->out, value ? "true" : "false");
}

void
json_end(struct json *json)
{
	json_close(json);
	assert(json->depth == 0);
	out_text(json->out, "\n");
}
