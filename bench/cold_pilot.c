/* The plain ways, of which the quickest is what a load is held against: preads by threads with
 * nothing else to do, past the page cache or through it, into host memory.
 */
#include "cold.h"

#include <errno.h>
#include <stdlib.h>

#define WAYS_MAX 64

static const unsigned threads[] = {1, 2, 4, 8, 16, 0};

static unsigned
list_ways(struct series *series)
{
	static const struct {
		enum kind kind;
		unsigned kib;
	} rows[] = {
		{KIND_PREAD, 256},    {KIND_PREAD, 512},     {KIND_PREAD, 1024},
		{KIND_PREAD, 2048},   {KIND_PREAD, 4096},    {KIND_BUFFERED, 256},
		{KIND_BUFFERED, 512}, {KIND_BUFFERED, 4096},
	};
	unsigned count = 0;
	for (size_t row = 0; row < sizeof rows / sizeof *rows; row++)
		for (const unsigned *n = threads; *n; n++)
			series[count++].way = (struct way){rows[row].kind, *n,
							   (uint64_t)rows[row].kib << 10};
	return count;
}

static void
add_pass(const struct disk *disk, const struct request *request, struct series *series)
{
	if (!request->hurry)
		wait_for_calm();
	if (series->way.kind == KIND_BUFFERED && !request->as_found)
		disk_read_in(disk, disk->bytes);
	disk_drop(disk, 0);
	read_threads(disk, &series->way, 0, &series->passes[series->count++]);
}

static double
median_seconds(const struct series *series)
{
	return 1 / series_spread(series, 1, FIGURE_RATE).median;
}

static int
by_median(const void *a, const void *b)
{
	double x = median_seconds(a), y = median_seconds(b);
	return x < y ? -1 : x > y;
}

void
pilot_cold(const struct disk *disk, const struct request *request, unsigned rounds,
	   struct series *finalists)
{
	struct series *ways = calloc(WAYS_MAX, sizeof *ways);
	struct pass unused;
	if (!ways)
		die(ENOMEM, "no memory for the pilot");
	unsigned count = list_ways(ways);
	for (unsigned i = 0; i < count; i++)
		add_pass(disk, request, &ways[i]);
	qsort(ways, count, sizeof *ways, by_median);
	for (unsigned i = 0; i < FINALISTS; i++) {
		finalists[i] = (struct series){.way = ways[i].way};
		disk_drop(disk, 0);
		read_threads(disk, &finalists[i].way, 1, &unused);
	}
	for (unsigned round = 0; round < rounds; round++)
		for (unsigned i = 0; i < FINALISTS; i++)
			add_pass(disk, request, &finalists[(round + i) % FINALISTS]);
	qsort(finalists, FINALISTS, sizeof *finalists, by_median);
	free(ways);
}

struct way
pilot_warm(const struct disk *disk)
{
	static const unsigned kib[] = {256, 512, 1024, 0};
	struct way best = {KIND_BUFFERED, 0, 0};
	struct pass pass;
	double quickest = 0;
	for (int round = 0; round < 3; round++)
		for (const unsigned *size = kib; *size; size++)
			for (const unsigned *n = threads; *n; n++) {
				struct way way = {KIND_BUFFERED, *n, (uint64_t)*size << 10};
				read_threads(disk, &way, 0, &pass);
				if (best.flight == 0 || pass.seconds < quickest) {
					best = way;
					quickest = pass.seconds;
				}
			}
	read_threads(disk, &best, 1, &pass);
	return best;
}
