/* The passes of one way, and what is told of them. */
#ifndef BENCH_DISK_SERIES_H
#define BENCH_DISK_SERIES_H

#include "disk.h"

#define PASSES_MAX 64

struct series {
	struct way way;
	unsigned count;
	struct pass passes[PASSES_MAX];
};

struct spread {
	double min, median, max;
};

enum figure {
	FIGURE_RATE,	   /* GB/s, of 10^9 bytes */
	FIGURE_CPU,	   /* CPU seconds of the process for a GB */
	FIGURE_MACHINE,	   /* the whole machine's */
	FIGURE_CORES,	   /* CPU seconds of the process a second */
	FIGURE_INVOLUNTARY /* involuntary switches for a GB */
};

/* What was measured. */
struct report {
	struct facts facts;
	const char *mode; /* of io_uring */
	uint64_t bytes;	  /* of a pass */
	unsigned passes;  /* all that were timed, and those that began on a busy machine: */
	unsigned restless;
	unsigned series_count, finals_count;
	struct series *series;
	struct series *finals;
	const struct series *base; /* the one of finals that the others are held against */
};

struct spread series_spread(const struct series *series, uint64_t bytes, enum figure figure);

/* Of one series against another, pass by pass. */
struct spread series_against(const struct series *series, const struct series *base, uint64_t bytes,
			     enum figure figure);

/* "pread 8 x 1 MiB" */
const char *way_name(char text[48], const struct way *way);

void report_print(const struct report *report);
void report_print_json(const struct report *report);

#endif
