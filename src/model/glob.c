/* Patterns over names. Written here rather than taken from fnmatch(), which needs NUL-ended text
 * and reads characters by the locale: names may hold any character and are UTF-8 wherever they are.
 *
 * No recursion: only the last star is ever tried again, which is enough for globs and bounds the
 * work by the product of the lengths. Bytes that are no UTF-8 count as one character each.
 */
#include "model/glob.h"
#include "base/utf8.h"

#include <stdint.h>
#include <string.h>

int
oh_glob_is_pattern(const char *pattern, size_t bytes)
{
	return memchr(pattern, '*', bytes) || memchr(pattern, '?', bytes) ||
	       memchr(pattern, '[', bytes);
}

/* Takes one character from *at: its bytes as a number, which orders characters as their code points
 * do. *at is before end. */
static uint32_t
take(const char **at, const char *end)
{
	const unsigned char *text = (const unsigned char *)*at;
	size_t length = oh_utf8_length(text, (size_t)(end - *at));
	uint32_t code = 0;
	if (!length)
		length = 1;
	for (size_t i = 0; i < length; i++)
		code = code << 8 | text[i];
	*at += length;
	return code;
}

/* The end of the set that begins with the [ at `at`: the place behind its ], or NULL. */
static const char *
set_end(const char *at, const char *end)
{
	at++;
	if (at < end && (*at == '!' || *at == '^'))
		at++;
	if (at < end)
		at++; /* a ] here is a member */
	at = at < end ? memchr(at, ']', (size_t)(end - at)) : NULL;
	return at ? at + 1 : NULL;
}

/* Is the character in the set between at, its [, and end, behind its ]? */
static int
in_set(const char *at, const char *end, uint32_t code)
{
	int negated, found = 0;
	at++;
	end--;
	negated = *at == '!' || *at == '^';
	at += negated;
	while (at < end) {
		uint32_t low = take(&at, end), high = low;
		if (end - at >= 2 && *at == '-') {
			at++;
			high = take(&at, end);
		}
		found |= low <= code && code <= high;
	}
	return found != negated;
}

/* Matches one character of the name against one element of the pattern, no star, and moves past
 * both. Returns 0 if it does not match. */
static int
step(const char **pattern, const char *pattern_end, const char **name, const char *name_end)
{
	uint32_t code = take(name, name_end);
	if (**pattern == '?') {
		++*pattern;
		return 1;
	}
	if (**pattern == '[') {
		const char *set = *pattern, *end = set_end(set, pattern_end);
		if (end) {
			*pattern = end;
			return in_set(set, end, code);
		}
	}
	return take(pattern, pattern_end) == code;
}

int
oh_glob_match(const char *pattern, size_t pattern_bytes, const char *name, size_t name_bytes)
{
	const char *pattern_end = pattern + pattern_bytes, *name_end = name + name_bytes;
	const char *star = NULL, *retry = NULL;
	for (;;) {
		if (pattern < pattern_end && *pattern == '*') {
			star = ++pattern;
			retry = name;
			continue;
		}
		if (pattern == pattern_end && name == name_end)
			return 1;
		if (pattern < pattern_end && name < name_end &&
		    step(&pattern, pattern_end, &name, name_end))
			continue;
		if (!star || retry == name_end)
			return 0;
		/* The star takes one character more. */
		take(&retry, name_end);
		pattern = star;
		name = retry;
	}
}
