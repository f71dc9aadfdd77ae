/* How best to read a file past the page cache: threads of pread or io_uring, how many at a time and
 * how much each. What src/storage/local does for route `direct` rests on these figures.
 *
 * A file of noise is made in --dir. Every way reads it once with its bytes compared; no rate is
 * printed before all have passed. Then come --rounds rounds of all ways, and --finals rounds of the
 * quickest of each kind and size; within a round the ways take turns and each round begins at
 * another one, so that a drift of the disk meets all alike. The file's pages are dropped before
 * each pass, which waits up to 1 s for a moment in which nobody else uses the machine.
 *
 * It is no part of the library and needs liburing, which the library does not.
 */
#include "disk_series.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define WAYS_MAX 128
#define SIZES 4
#define FINALS_MAX (SIZES * KINDS)

struct request {
	const char *dir;
	uint64_t bytes;
	unsigned rounds, finals;
	int hurry;
	int json;
};

const char usage_text[] =
	"usage: disk [--dir DIR] [--mib N] [--rounds N] [--finals N] [--hurry] [--json]\n"
	"  --dir DIR    where the file is made: $TMPDIR, else /tmp\n"
	"  --mib N      its size, a multiple of 64 (1024)\n"
	"  --rounds N   passes of each way (3)\n"
	"  --finals N   passes of the quickest of each kind and size, 0 for none (9)\n"
	"  --hurry      do not wait for moments in which the machine is idle\n"
	"  --json       machine-readable\n";

static struct request
read_words(int argc, char **argv)
{
	static const struct option options[] = {
		{"dir", required_argument, NULL, 'd'},	  {"mib", required_argument, NULL, 'm'},
		{"rounds", required_argument, NULL, 'r'}, {"finals", required_argument, NULL, 'f'},
		{"hurry", no_argument, NULL, 'h'},	  {"json", no_argument, NULL, 'j'},
		{NULL, 0, NULL, 0},
	};
	const char *temporary = getenv("TMPDIR");
	struct request request = {.dir = temporary && *temporary ? temporary : "/tmp",
				  .bytes = UINT64_C(1) << 30,
				  .rounds = 3,
				  .finals = 9};
	for (int c; (c = getopt_long(argc, argv, "", options, NULL)) >= 0;) {
		must(c != '?');
		if (c == 'd')
			request.dir = optarg;
		else if (c == 'm')
			request.bytes = (uint64_t)number(optarg, 64, 1 << 20) << 20;
		else if (c == 'r')
			request.rounds = number(optarg, 1, PASSES_MAX);
		else if (c == 'f')
			request.finals = number(optarg, 0, PASSES_MAX);
		else if (c == 'h')
			request.hurry = 1;
		else
			request.json = 1;
	}
	must(optind == argc && request.bytes % RING_BYTES == 0);
	return request;
}

/* What would not fit the ring at once is left out. */
static unsigned
list_ways(struct series *series)
{
	static const unsigned threads[] = {1, 2, 4, 8, 16, 0}, depths[] = {8, 16, 32, 64, 0};
	static const unsigned kib[SIZES] = {256, 512, 1024, 4096};
	unsigned count = 0;
	for (int kind = 0; kind < KINDS; kind++) {
		int ring = kind == KIND_URING || kind == KIND_FIXED;
		for (size_t size = 0; size < SIZES; size++) {
			uint64_t bytes = (uint64_t)kib[size] << 10;
			for (const unsigned *n = ring ? depths : threads; *n; n++)
				if (*n * bytes <= RING_BYTES)
					series[count++].way =
						(struct way){(enum kind)kind, *n, bytes};
		}
	}
	return count;
}

/* The times mean nothing with verify. */
static void
one_pass(const struct disk *disk, const struct way *way, int verify, struct pass *out)
{
	disk_drop(disk, 0);
	if (way->kind == KIND_URING || way->kind == KIND_FIXED)
		read_uring(disk, way, verify, out);
	else
		read_threads(disk, way, verify, out);
}

static void
verify(const struct disk *disk, const struct series *series, unsigned count)
{
	struct pass pass;
	for (unsigned i = 0; i < count; i++) {
		memset(disk->ring, 0, RING_BYTES);
		one_pass(disk, &series[i].way, 1, &pass);
	}
}

static void
take_turns(const struct disk *disk, int hurry, struct report *report, struct series *series,
	   unsigned count, unsigned rounds)
{
	for (unsigned round = 0; round < rounds; round++) {
		unsigned begin = round * count / rounds;
		for (unsigned i = 0; i < count; i++) {
			struct series *one = &series[(begin + i) % count];
			report->restless += !hurry && !wait_for_calm();
			report->passes++;
			one_pass(disk, &one->way, 0, &one->passes[one->count++]);
		}
	}
}

/* The quickest way of each kind at each size. */
static void
choose(struct report *report)
{
	const struct series *end = report->series + report->series_count;
	for (const struct series *one = report->series; one < end;) {
		const struct way *way = &one->way, *quick = way;
		double rate = 0;
		for (; one < end && one->way.kind == way->kind && one->way.bytes == way->bytes;
		     one++) {
			double its = series_spread(one, report->bytes, FIGURE_RATE).median;
			if (its > rate) {
				quick = &one->way;
				rate = its;
			}
		}
		report->finals[report->finals_count++].way = *quick;
	}
}

/* The quickest pread of the finals: what the others are held against. */
static const struct series *
best_pread(const struct report *report)
{
	const struct series *best = &report->finals[0];
	double rate = 0;
	for (unsigned i = 0; i < report->finals_count; i++) {
		const struct series *one = &report->finals[i];
		double its = series_spread(one, report->bytes, FIGURE_RATE).median;
		if (one->way.kind == KIND_PREAD && its > rate) {
			best = one;
			rate = its;
		}
	}
	return best;
}

static void
measure(const struct disk *disk, const struct request *request, struct report *report)
{
	report->bytes = disk->bytes;
	report->mode = uring_mode();
	report->series_count = list_ways(report->series);
	facts_find(&report->facts, disk);
	verify(disk, report->series, report->series_count);
	take_turns(disk, request->hurry, report, report->series, report->series_count,
		   request->rounds);
	if (request->finals == 0)
		return;
	choose(report);
	take_turns(disk, request->hurry, report, report->finals, report->finals_count,
		   request->finals);
	report->base = best_pread(report);
}

int
main(int argc, char **argv)
{
	struct disk disk;
	struct request request = read_words(argc, argv);
	struct report report = {
		.series = calloc(WAYS_MAX, sizeof *report.series),
		.finals = calloc(FINALS_MAX, sizeof *report.finals),
	};
	if (!report.series || !report.finals)
		die(ENOMEM, "no memory for the figures");
	disk_make(&disk, request.dir, request.bytes, NULL, 0);
	measure(&disk, &request, &report);
	if (request.json)
		report_print_json(&report);
	else
		report_print(&report);
	free(report.series);
	free(report.finals);
	return fflush(stdout) == 0 && !ferror(stdout) ? 0 : 1;
}
