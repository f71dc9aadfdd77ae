/* UTF-8, strict: no overlong forms, no surrogates, nothing above U+10FFFF (RFC 3629). */
#ifndef OH_BASE_UTF8_H
#define OH_BASE_UTF8_H

#include <stddef.h>

/* Length of the character that begins at text, 1 to 4, or 0 if the bytes there are no UTF-8 or the
 * text of bytes ends inside it. */
static inline size_t
oh_utf8_length(const unsigned char *text, size_t bytes)
{
	unsigned char a = bytes ? text[0] : 0xFF;
	if (a < 0x80)
		return 1;
	if (a < 0xC2 || a > 0xF4)
		return 0;
	size_t length = a < 0xE0 ? 2 : a < 0xF0 ? 3 : 4;
	if (bytes < length)
		return 0;
	unsigned char low = a == 0xE0 ? 0xA0 : a == 0xF0 ? 0x90 : 0x80;
	unsigned char high = a == 0xED ? 0x9F : a == 0xF4 ? 0x8F : 0xBF;
	if (text[1] < low || text[1] > high)
		return 0;
	for (size_t i = 2; i < length; i++)
		if ((text[i] & 0xC0) != 0x80)
			return 0;
	return length;
}

#endif
