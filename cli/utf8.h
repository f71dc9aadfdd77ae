/* UTF-8, strict: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef CLI_UTF8_H
#define CLI_UTF8_H

#include <stddef.h>

/* Length of the character at `at`, 1 to 4, or 0 if the `left` bytes there do not begin with one. */
static inline size_t
utf8_length(const unsigned char *at, size_t left)
{
	/* By the length: the least value that may be written so. */
	static const unsigned least[5] = {0, 0, 0x80, 0x800, 0x10000};
	if (left == 0)
		return 0;
	if (at[0] < 0x80)
		return 1;
	size_t length = at[0] >= 0xF0 ? 4 : at[0] >= 0xE0 ? 3 : at[0] >= 0xC0 ? 2 : 0;
	if (length == 0 || length > left)
		return 0;
	unsigned value = at[0] & (0xFFu >> (length + 1));
	for (size_t i = 1; i < length; i++) {
		if ((at[i] & 0xC0) != 0x80)
			return 0;
		value = value << 6 | (at[i] & 0x3F);
	}
	if (at[0] >= 0xF8 || value < least[length] || value > 0x10FFFF)
		return 0;
	return value >= 0xD800 && value <= 0xDFFF ? 0 : length;
}

#endif
