/* Errors for people.
 *
 * One sentence and what to do about it, on one line, in one write, so that lines of several
 * processes do not mix. A standard error that cannot be written to is ignored.
 */
#include "say.h"
#include "utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void
say(const char *sentence, const char *remedy)
{
	char line[1200];
	int has = remedy && remedy[0];
	int bytes = snprintf(line, sizeof line - 1, "onehop: %s%s%s", sentence, has ? "; " : "",
			     has ? remedy : "");
	size_t used = (size_t)bytes < sizeof line - 1 ? (size_t)bytes : sizeof line - 2;
	line[used++] = '\n';
	ssize_t wrote = write(STDERR_FILENO, line, used);
	(void)wrote;
}

int
say_usage(const char *remedy, const char *format, ...)
{
	char sentence[768];
	va_list args;
	va_start(args, format);
	vsnprintf(sentence, sizeof sentence, format, args);
	va_end(args);
	say(sentence, remedy);
	return EXIT_USAGE;
}

int
say_error(const struct onehop_error *error)
{
	if (error->status == ONEHOP_CANCELLED) {
		say("cancelled", NULL);
		return EXIT_FAILED;
	}
	if (error->message[0])
		say(error->message, error->remedy);
	return error->status / 100 == 1 ? EXIT_USAGE : error->status / 100 == 5 ? EXIT_DATA
										 : EXIT_FAILED;
}

onehop_status
fail(struct onehop_error *error, onehop_status status, int code, const char *format, ...)
{
	size_t used;
	char why[96];
	va_list args;
	memset(error, 0, sizeof *error);
	error->status = status;
	error->os_errno = code;
	va_start(args, format);
	vsnprintf(error->message, sizeof error->message, format, args);
	va_end(args);
	used = strlen(error->message);
	if (code)
		snprintf(error->message + used, sizeof error->message - used, ": %s",
			 strerror_r(code, why, sizeof why));
	return status;
}

const char *
show(char shown[SHOWN], const char *text, size_t bytes)
{
	const unsigned char *at = (const unsigned char *)text;
	size_t to = 0, length;
	shown[to++] = '"';
	for (size_t i = 0; i < bytes; i += length) {
		if (to > SHOWN - 12) {
			memcpy(shown + to, "...", 3);
			to += 3;
			break;
		}
		length = utf8_length(at + i, bytes - i);
		int control = at[i] < 0x20 || at[i] == 0x7F ||
			      (length == 2 && at[i] == 0xC2 && at[i + 1] < 0xA0);
		if (length && !control) {
			memcpy(shown + to, text + i, length);
			to += length;
			continue;
		}
		length = 1;
		to += (size_t)snprintf(shown + to, 5, "\\x%02x", at[i]);
	}
	shown[to++] = '"';
	shown[to] = '\0';
	return shown;
}
