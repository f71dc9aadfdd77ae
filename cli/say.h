/* What goes to standard error, and the exit status that belongs to it. */
#ifndef CLI_SAY_H
#define CLI_SAY_H

#include <onehop/status.h>

#include <stddef.h>

enum exit_status {
	EXIT_DONE = 0,
	EXIT_FAILED = 1, /* I/O, device, memory, a limit, unsupported, cancelled */
	EXIT_USAGE = 2,
	EXIT_DATA = 3, /* malformed, of an unsupported kind, or it fails verification */
};

/* "onehop: SENTENCE; REMEDY" and a line end, in one write. remedy may be NULL or empty. */
void say(const char *sentence, const char *remedy);

/* The same for a wrong command line. Returns EXIT_USAGE. */
__attribute__((format(printf, 2, 3))) int say_usage(const char *remedy, const char *format, ...);

/* The same for an error of the library's, unless it has no sentence; returns its exit status. */
int say_error(const struct onehop_error *error);

/* Fills *error as the library would; returns status. The code is an errno or 0. */
__attribute__((format(printf, 4, 5))) onehop_status
fail(struct onehop_error *error, onehop_status status, int code, const char *format, ...);

/* Text between quotes for a sentence, escaped and shortened. Returns shown. */
#define SHOWN 160
const char *show(char shown[SHOWN], const char *text, size_t bytes);

#endif
