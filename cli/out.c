/* The writer behind every table.
 *
 * Bytes gather in one buffer and go out when it is full, so that 150,000 rows cost a few hundred
 * writes. The first failed write is remembered and everything after it dropped: main() says so once
 * at the end. Nothing here allocates.
 */
#include "out.h"
#include "utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void
out_begin(struct out *out, int fd)
{
	out->fd = fd;
	out->failed = 0;
	out->used = 0;
}

void
out_flush(struct out *out)
{
	size_t done = 0;
	while (done < out->used && !out->failed) {
		ssize_t wrote = write(out->fd, out->data + done, out->used - done);
		if (wrote >= 0)
			done += (size_t)wrote;
		else if (errno != EINTR)
			out->failed = errno;
	}
	out->used = 0;
}

void
out_raw(struct out *out, const char *text, size_t bytes)
{
	while (bytes > 0) {
		size_t room = sizeof out->data - out->used;
		size_t part = bytes < room ? bytes : room;
		memcpy(out->data + out->used, text, part);
		out->used += part;
		text += part;
		bytes -= part;
		if (out->used == sizeof out->data)
			out_flush(out);
	}
}

void
out_text(struct out *out, const char *text)
{
	out_raw(out, text, strlen(text));
}

void
out_spaces(struct out *out, size_t count)
{
	static const char spaces[] = "                                ";
	for (; count > sizeof spaces - 1; count -= sizeof spaces - 1)
		out_raw(out, spaces, sizeof spaces - 1);
	out_raw(out, spaces, count);
}

void
out_format(struct out *out, const char *format, ...)
{
	char text[1024];
	va_list args;
	va_start(args, format);
	int bytes = vsnprintf(text, sizeof text, format, args);
	va_end(args);
	if (bytes > 0)
		out_raw(out, text, (size_t)bytes < sizeof text ? (size_t)bytes : sizeof text - 1);
}

void
out_number(struct out *out, uint64_t number)
{
	char text[20];
	size_t at = sizeof text;
	do
		text[--at] = (char)('0' + number % 10);
	while (number /= 10);
	out_raw(out, text + at, sizeof text - at);
}

/* Characters that would turn the direction of a line on a terminal or break it: U+200E, U+200F,
 * U+2028 to U+202E, U+2066 to U+2069. All are three bytes. */
static int
turns_text(const unsigned char *at)
{
	if (at[0] != 0xE2)
		return 0;
	if (at[1] == 0x80)
		return at[2] == 0x8E || at[2] == 0x8F || (at[2] >= 0xA8 && at[2] <= 0xAE);
	return at[1] == 0x81 && at[2] >= 0xA6 && at[2] <= 0xA9;
}

/* The bytes at `at` that stand for themselves (0 if the first must be escaped), and in *escape how
 * many must be escaped together then. */
static size_t
plain_length(const unsigned char *at, size_t left, size_t *escape)
{
	size_t length = utf8_length(at, left);
	*escape = length ? length : 1;
	if (!length || at[0] < 0x20 || at[0] == 0x7F || at[0] == '\\')
		return 0;
	if (length == 2 && at[0] == 0xC2 && at[1] < 0xA0)
		return 0;
	return length == 3 && turns_text(at) ? 0 : length;
}

void
out_name(struct out *out, const char *name, size_t bytes)
{
	const unsigned char *at = (const unsigned char *)name;
	size_t escape;
	for (size_t i = 0; i < bytes;) {
		size_t length = plain_length(at + i, bytes - i, &escape);
		if (length) {
			out_raw(out, name + i, length);
			i += length;
			continue;
		}
		for (; escape > 0; escape--, i++)
			out_format(out, at[i] == '\\' ? "\\\\" : "\\x%02x", at[i]);
	}
}

size_t
name_columns(const char *name, size_t bytes)
{
	const unsigned char *at = (const unsigned char *)name;
	size_t columns = 0, escape;
	for (size_t i = 0; i < bytes;) {
		size_t length = plain_length(at + i, bytes - i, &escape);
		columns += length ? 1 : at[i] == '\\' ? 2 : 4 * escape;
		i += length ? length : escape;
	}
	return columns;
}

const char *
size_text(char text[SIZE_TEXT], uint64_t bytes)
{
	static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double value = (double)bytes / 1024;
	size_t unit = 0;
	if (bytes < 1024) {
		snprintf(text, SIZE_TEXT, "%u byte%s", (unsigned)bytes, bytes == 1 ? "" : "s");
		return text;
	}
	for (; value >= 1024 && unit < 5; unit++)
		value /= 1024;
	snprintf(text, SIZE_TEXT, "%.*f %s", value < 10 ? 2 : value < 100 ? 1 : 0, value,
		 units[unit]);
	return text;
}

const char *
grouped(char text[SIZE_TEXT], uint64_t number)
{
	char digits[24];
	int count = snprintf(digits, sizeof digits, "%llu", (unsigned long long)number);
	size_t to = 0;
	for (int i = 0; i < count; i++) {
		if (i > 0 && (count - i) % 3 == 0)
			text[to++] = ',';
		text[to++] = digits[i];
	}
	text[to] = '\0';
	return text;
}

const char *
time_text(char text[SIZE_TEXT], uint64_t ns)
{
	double value = (double)ns / 1e3;
	const char *unit = "us";
	if (value >= 1e6) {
		value /= 1e6;
		unit = "s";
	} else if (value >= 1e3) {
		value /= 1e3;
		unit = "ms";
	}
	snprintf(text, SIZE_TEXT, "%.*f %s", value < 10 ? 2 : value < 100 ? 1 : 0, value, unit);
	return text;
}
