/* How the programs here take their words, and how they end when something is wrong. */
#include "disk.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void
die(int code, const char *format, ...)
{
	va_list args;
	fprintf(stderr, "%s: ", program_invocation_short_name);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, ": %s\n", strerror(code));
	exit(1);
}

void
must(int holds)
{
	if (holds)
		return;
	fputs(usage_text, stderr);
	exit(2);
}

unsigned
number(const char *text, unsigned min, unsigned max)
{
	char *end;
	errno = 0;
	unsigned long value = strtoul(text, &end, 10);
	must(errno == 0 && *text >= '0' && *text <= '9' && *end == '\0' && value >= min &&
	     value <= max);
	return (unsigned)value;
}
