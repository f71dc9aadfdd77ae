/* How the parsers word their errors: "PATH: sentence".
 *
 * A path is the caller's and may be long or hold anything; a message has room for one line. So the
 * path's front gives way (the file's own name is at its end) and control characters are shown as
 * '?'. What does not fit is cut by oh_fail.
 */
#include "format/fail.h"
#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

#define PATH_SHOWN 300

static void
show_path(char shown[PATH_SHOWN + 4], const char *path)
{
	const unsigned char *from = (const unsigned char *)path;
	size_t bytes = strlen(path), at = 0, to = 0;
	if (bytes > PATH_SHOWN) {
		memcpy(shown, "...", 3);
		to = 3;
		at = bytes - (PATH_SHOWN - 3);
		while (at < bytes && (from[at] & 0xC0) == 0x80)
			at++;
	}
	while (at < bytes) {
		size_t length = oh_utf8_length(from + at, bytes - at);
		int plain = length && from[at] >= 0x20 && from[at] != 0x7F &&
			    !(from[at] == 0xC2 && from[at + 1] < 0xA0);
		if (!length)
			length = 1;
		if (plain) {
			memcpy(shown + to, from + at, length);
			to += length;
		} else {
			shown[to++] = '?';
		}
		at += length;
	}
	shown[to] = '\0';
}

onehop_status
oh_refuse(struct onehop_error *error, onehop_status status, const char *path, const char *format,
	  ...)
{
	char shown[PATH_SHOWN + 4], sentence[768];
	va_list args;
	if (!error)
		return status;
	va_start(args, format);
	vsnprintf(sentence, sizeof sentence, format, args);
	va_end(args);
	show_path(shown, path);
	return oh_fail(error, status, "%s: %s", shown, sentence);
}
