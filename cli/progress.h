/* The bar on a terminal. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdint.h>

struct progress {
	int on;           /* standard error is a terminal */
	int drawn;        /* something is on the line now */
	const char *what; /* "loading" */
	uint64_t begin_ns;
};

void progress_begin(struct progress *progress, const char *what, int quiet);
/* Draws, however often it is called, as it is told: call it about ten times a second. */
void progress_draw(struct progress *progress, uint64_t done, uint64_t total);
/* A line of words instead of a bar. */
void progress_note(struct progress *progress, const char *text);
/* Erases it. */
void progress_end(struct progress *progress);

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t now_ns(void);

#endif
