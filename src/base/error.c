/* Error detail: formatting, shortening, and the classes of errno.
 *
 * Messages are one line of UTF-8: what does not fit is cut between characters and ends in "...".
 * Nothing here allocates or keeps state.
 */
#include "base/error.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Cuts text of capacity bytes, which vsnprintf found too short, at a character's end. */
static void
cut(char *text, size_t capacity)
{
	size_t end = capacity - 4;
	while (end > 0 && ((unsigned char)text[end] & 0xC0) == 0x80)
		end--;
	memcpy(text + end, "...", 4);
}

static void
format_into(char *text, size_t capacity, const char *format, va_list args)
{
	int bytes = vsnprintf(text, capacity, format, args);
	if (bytes >= 0 && (size_t)bytes >= capacity)
		cut(text, capacity);
}

static void
begin(struct onehop_error *error, onehop_status status)
{
	error->status = status;
	error->os_errno = 0;
	error->driver_code = 0;
	error->http_status = 0;
	error->remedy[0] = '\0';
}

onehop_status
oh_fail(struct onehop_error *error, onehop_status status, const char *format, ...)
{
	if (error) {
		va_list args;
		begin(error, status);
		va_start(args, format);
		format_into(error->message, sizeof error->message, format, args);
		va_end(args);
	}
	return status;
}

static onehop_status
errno_status(int code)
{
	switch (code) {
	case ENOENT:
	case ENOTDIR:
		return ONEHOP_NOT_FOUND;
	case EACCES:
	case EPERM:
		return ONEHOP_ACCESS;
	case ENOMEM:
		return ONEHOP_NO_MEMORY;
	default:
		return ONEHOP_IO;
	}
}

onehop_status
oh_fail_errno(struct onehop_error *error, int code, const char *format, ...)
{
	onehop_status status = errno_status(code);
	if (error) {
		char why[96], head[640];
		va_list args;
		va_start(args, format);
		format_into(head, sizeof head, format, args);
		va_end(args);
		/* The GNU strerror_r: it may return a static string. */
		oh_fail(error, status, "%s: %s", head, strerror_r(code, why, sizeof why));
		error->os_errno = code;
	}
	return status;
}

void
oh_remedy(struct onehop_error *error, const char *format, ...)
{
	if (!error)
		return;
	va_list args;
	va_start(args, format);
	format_into(error->remedy, sizeof error->remedy, format, args);
	va_end(args);
}

onehop_status
oh_fail_no_memory(struct onehop_error *error, uint64_t bytes, const char *what)
{
	return oh_fail(error, ONEHOP_NO_MEMORY, "no memory for %s (%llu bytes)", what,
		       (unsigned long long)bytes);
}

/* Writes one character of a name, escaped where it has to be, and returns its length in out (at
 * most 8). *used is the number of name's bytes it stands for. */
static size_t
show_one(char out[8], const unsigned char *name, size_t bytes, size_t *used)
{
	size_t length = oh_utf8_length(name, bytes);
	*used = length ? length : 1;
	if (!length || name[0] < 0x20 || name[0] == 0x7F)
		return (size_t)snprintf(out, 8, "\\x%02x", name[0]);
	if (name[0] == '"' || name[0] == '\\') {
		out[0] = '\\';
		out[1] = (char)name[0];
		return 2;
	}
	/* C1 controls would move a terminal's cursor. */
	if (length == 2 && name[0] == 0xC2 && name[1] < 0xA0)
		return (size_t)snprintf(out, 8, "\\x%02x", name[1]);
	memcpy(out, name, length);
	return length;
}

const char *
oh_show(char shown[OH_SHOWN], const char *name, size_t bytes)
{
	/* Enough of the head, then as much of the tail as begins at a character. */
	const size_t head = 72, tail = 40;
	const unsigned char *from = (const unsigned char *)name;
	size_t at = 0, to = 0, used = 0;
	shown[to++] = '"';
	while (at < bytes) {
		char one[8];
		size_t length = show_one(one, from + at, bytes - at, &used);
		if (to + length > head && bytes - at > tail) {
			memcpy(shown + to, "...", 3);
			to += 3;
			at = bytes - tail / 4;
			while (at < bytes && (from[at] & 0xC0) == 0x80)
				at++;
			for (; at < bytes; at += used) {
				length = show_one(one, from + at, bytes - at, &used);
				memcpy(shown + to, one, length);
				to += length;
			}
			break;
		}
		if (to + length > OH_SHOWN - 6) {
			memcpy(shown + to, "...", 3);
			to += 3;
			break;
		}
		memcpy(shown + to, one, length);
		to += length;
		at += used;
	}
	shown[to++] = '"';
	shown[to] = '\0';
	return shown;
}
