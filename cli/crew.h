/* Threads that do the pieces of one job side by side. */
#ifndef CLI_CREW_H
#define CLI_CREW_H

#include "progress.h"

#include <onehop/onehop.h>

#include <stddef.h>

/* One piece of a file, and the memory that each thread has. */
#define CREW_PIECE (UINT64_C(4) << 20)

struct crew {
	unsigned threads;
	struct progress progress;
	uint64_t total; /* bytes that the bar counts to */
	_Atomic uint64_t done;
};

/* What is done once for each of `count` pieces, in any order, but begun in theirs; with one thread
 * strictly one after the other. It fails by filling *error. */
struct crew_task {
	uint64_t count;
	onehop_status (*work)(void *context, uint64_t piece, char *memory,
			      struct onehop_error *error);
	void *context;
};

/* As many threads as the runtime's option says if it was set, else the usable cores, 8 at most. */
unsigned crew_threads(struct onehop_runtime *runtime);

void crew_begin(struct crew *crew, unsigned threads, const char *what, int quiet, uint64_t total);

/* Returns when no thread is at work any more; draws meanwhile. The first failure, or CANCELLED
 * after Ctrl-C. */
onehop_status crew_run(struct crew *crew, const struct crew_task *task,
		       struct onehop_error *error);

/* The piece-th piece of so many bytes: its offset, and its length in *length. */
uint64_t crew_piece(uint64_t bytes, uint64_t piece, size_t *length);
uint64_t crew_pieces(uint64_t bytes);

#endif
