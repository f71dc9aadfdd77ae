/* Whole loads by onehop of a file that is cold, half in the page cache, or warm, each beside what
 * it could be at best, pair by pair:
 *
 *   cold  against the quickest plain way of reading that disk, which a pilot finds: preads of
 *         several sizes by several threads, past the page cache or through it. It ends in host
 *         memory.
 *   half  the first half resident, the other not, against the sum of two loads of one half each.
 *   warm  against plain preads into the same memory, or for a GPU against copies of pinned memory.
 *
 * Before a reading the file is read in and dropped, so that the page cache takes again the memory
 * that it had: what was free for longer may be with the host of a virtual machine, and to get it
 * back costs several times what reading does. --as-found leaves that out.
 *
 * A load begins with opening the model and ends with the last byte; the runtime and the memory stay
 * and were used before. Pages are dropped before each cold reading, and looked for. The order
 * changes from pair to pair. All loads are verified before a rate is printed. It is no part of the
 * library, whose public headers are all that it needs.
 */
#include "cold.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PILOT_ROUNDS 5
#define COPY_PIECE (UINT64_C(16) << 20)

enum part { PART_COLD = 1, PART_HALF = 2, PART_WARM = 4 };

struct bench {
	struct request request;
	struct disk disk;
	struct loader loaders[LOADERS_MAX];
	struct cold_report report;
};

const char usage_text[] =
	"usage: cold [--dir DIR] [--mib N] [--pairs N] [--device NAME]\n"
	"            [--with NAME=VALUE[,...]]... [--only PART]... [--as-found] [--hurry]\n"
	"            [--json]\n"
	"  --dir DIR      where the file is made: $TMPDIR, else /tmp\n"
	"  --mib N        its size, a multiple of 128 (1024)\n"
	"  --pairs N      of each kind (12)\n"
	"  --device NAME  where loads go: host or cuda:N (host)\n"
	"  --with ...     loads with these options beside those with none; again for more\n"
	"                 (cache=bypass, and route=buffered)\n"
	"  --only PART    cold, half or warm; again for more (all)\n"
	"  --as-found     let the page cache take whatever memory is free\n"
	"  --hurry        do not wait for moments in which the machine is idle\n"
	"  --json         machine-readable\n";

/* ------------------------------------------------------------------------------------------- */
/* The command line */

static unsigned
part(const char *name)
{
	static const char *const names[] = {"cold", "half", "warm"};
	for (unsigned i = 0; i < 3; i++)
		if (strcmp(name, names[i]) == 0)
			return 1U << i;
	must(0);
	return 0;
}

static void
read_word(struct request *request, int option)
{
	switch (option) {
	case 'd':
		request->dir = optarg;
		break;
	case 'm':
		request->bytes = (uint64_t)number(optarg, 128, 1 << 20) << 20;
		break;
	case 'p':
		request->pairs = number(optarg, 1, PASSES_MAX);
		break;
	case 'D':
		request->device = optarg;
		break;
	case 'w':
		must(request->loader_count < LOADERS_MAX);
		request->loaders[request->loader_count++] = optarg;
		break;
	case 'o':
		request->parts |= part(optarg);
		break;
	case 'h':
		request->hurry = 1;
		break;
	case 'f':
		request->as_found = 1;
		break;
	case 'j':
		request->json = 1;
		break;
	default:
		must(0);
	}
}

static void
read_words(struct request *request, int argc, char **argv)
{
	static const struct option options[] = {
		{"dir", required_argument, NULL, 'd'},	  {"mib", required_argument, NULL, 'm'},
		{"pairs", required_argument, NULL, 'p'},  {"device", required_argument, NULL, 'D'},
		{"with", required_argument, NULL, 'w'},	  {"only", required_argument, NULL, 'o'},
		{"hurry", no_argument, NULL, 'h'},	  {"json", no_argument, NULL, 'j'},
		{"as-found", no_argument, NULL, 'f'},	  {NULL, 0, NULL, 0},
	};
	const char *temporary = getenv("TMPDIR");
	*request = (struct request){.dir = temporary && *temporary ? temporary : "/tmp",
				    .device = "host",
				    .bytes = UINT64_C(1) << 30,
				    .pairs = 12,
				    .loader_count = 1,
				    .loaders = {"", "cache=bypass", "route=buffered"}};
	for (int c; (c = getopt_long(argc, argv, "", options, NULL)) >= 0;)
		read_word(request, c);
	must(optind == argc && request->bytes % (UINT64_C(128) << 20) == 0);
	request->loader_count = request->loader_count == 1 ? 3 : request->loader_count;
	request->parts = request->parts ? request->parts : PART_COLD | PART_HALF | PART_WARM;
}

/* ------------------------------------------------------------------------------------------- */
/* The page cache as it has to be */

/* Right before a reading: so much of the file's beginning is resident, and nothing behind it, where
 * the kernel has read ahead. */
static void
settle(struct bench *bench, uint64_t resident)
{
	const struct disk *disk = &bench->disk;
	bench->report.readings++;
	if (!bench->request.hurry)
		bench->report.restless += !wait_for_calm();
	disk_read_in(disk, bench->request.as_found ? resident : disk->bytes);
	if (resident < disk->bytes)
		disk_drop(disk, resident);
}

/* ------------------------------------------------------------------------------------------- */
/* Readings */

static void
count_routes(struct pairs *pairs, const struct loader *loader)
{
	pairs->direct += loader->last.route_bytes[ONEHOP_ROUTE_DIRECT];
	pairs->buffered += loader->last.route_bytes[ONEHOP_ROUTE_BUFFERED];
	pairs->mapped += loader->last.route_bytes[ONEHOP_ROUTE_MAPPED];
}

static void
cold_load(struct bench *bench, struct loader *loader, struct pairs *pairs)
{
	settle(bench, 0);
	loader_load(loader, &bench->disk, NULL, &pairs->ours[pairs->count]);
	count_routes(pairs, loader);
}

static void
cold_plain(struct bench *bench, struct pairs *pairs)
{
	settle(bench, 0);
	read_threads(&bench->disk, &bench->report.finalists[0].way, 0,
		     &pairs->base[pairs->count]);
}

static void
cold_pair(struct bench *bench, struct loader *loader, struct pairs *pairs)
{
	int plain_first = pairs->count % 2;
	if (plain_first)
		cold_plain(bench, pairs);
	cold_load(bench, loader, pairs);
	if (!plain_first)
		cold_plain(bench, pairs);
	pairs->count++;
}

static void
half_load(struct bench *bench, struct loader *loader, const char *pattern, struct pass *out)
{
	settle(bench, bench->disk.bytes / 2);
	loader_load(loader, &bench->disk, pattern, out);
}

static void
half_parts(struct bench *bench, struct loader *loader, struct pass *sum)
{
	struct pass second;
	half_load(bench, loader, "first.*", sum);
	half_load(bench, loader, "second.*", &second);
	sum->seconds += second.seconds;
	sum->cpu += second.cpu;
	sum->machine += second.machine;
	sum->involuntary += second.involuntary;
}

static void
half_pair(struct bench *bench, struct loader *loader, struct pairs *pairs)
{
	int parts_first = pairs->count % 2;
	if (parts_first)
		half_parts(bench, loader, &pairs->base[pairs->count]);
	half_load(bench, loader, NULL, &pairs->ours[pairs->count]);
	count_routes(pairs, loader);
	if (!parts_first)
		half_parts(bench, loader, &pairs->base[pairs->count]);
	pairs->count++;
}

/* With no plain way: the time that copies of pinned memory would take. */
static void
warm_plain(struct bench *bench, const struct disk *into, struct pass *out)
{
	struct onehop_error error;
	double rate = 0;
	settle(bench, bench->disk.bytes);
	if (bench->report.warm_way.flight) {
		read_threads(into, &bench->report.warm_way, 0, out);
		return;
	}
	if (onehop_measure_copy(bench->loaders[0].runtime, bench->request.device, COPY_PIECE,
				bench->disk.bytes, &rate, &error))
		die_of(&error);
	*out = (struct pass){.seconds = (double)bench->disk.bytes / rate};
}

static void
warm_pair(struct bench *bench, const struct disk *into, struct pairs *pairs)
{
	int plain_first = pairs->count % 2;
	if (plain_first)
		warm_plain(bench, into, &pairs->base[pairs->count]);
	settle(bench, bench->disk.bytes);
	loader_load(&bench->loaders[0], &bench->disk, NULL, &pairs->ours[pairs->count]);
	count_routes(pairs, &bench->loaders[0]);
	if (!plain_first)
		warm_plain(bench, into, &pairs->base[pairs->count]);
	pairs->count++;
}

/* ------------------------------------------------------------------------------------------- */
/* The parts */

static void
begin_pairs(const struct bench *bench, struct pairs *all)
{
	for (unsigned i = 0; i < bench->request.loader_count; i++) {
		all[i].name = bench->request.loaders[i];
		all[i].bytes = bench->disk.bytes;
	}
}

static void
measure_cold(struct bench *bench)
{
	struct pairs *all = bench->report.cold;
	pilot_cold(&bench->disk, &bench->request, PILOT_ROUNDS, bench->report.finalists);
	begin_pairs(bench, all);
	for (unsigned round = 0; round < bench->request.pairs; round++)
		for (unsigned i = 0; i < bench->request.loader_count; i++)
			cold_pair(bench, &bench->loaders[i], &all[i]);
	if (!bench->request.json)
		cold_print_cold(&bench->report);
}

static void
measure_half(struct bench *bench)
{
	struct pairs *all = bench->report.half;
	begin_pairs(bench, all);
	for (unsigned round = 0; round < bench->request.pairs; round++)
		for (unsigned i = 0; i < bench->request.loader_count; i++)
			half_pair(bench, &bench->loaders[i], &all[i]);
	if (!bench->request.json)
		cold_print_half(&bench->report);
}

/* The plain way on the host is into the memory that is loaded into. */
static void
measure_warm(struct bench *bench)
{
	struct pairs *pairs = &bench->report.warm;
	struct disk into = bench->disk;
	struct onehop_buffer_info memory = {.size = sizeof memory};
	disk_read_in(&bench->disk, bench->disk.bytes);
	if (strcmp(bench->request.device, "host") == 0) {
		onehop_buffer_query(bench->loaders[0].memory, &memory);
		into.ring = (uint8_t *)(uintptr_t)memory.address;
		into.ring_bytes = memory.bytes;
		bench->report.warm_way = pilot_warm(&into);
	}
	pairs->name = "";
	pairs->bytes = bench->disk.bytes;
	for (unsigned round = 0; round < bench->request.pairs; round++)
		warm_pair(bench, &into, pairs);
	if (!bench->request.json)
		cold_print_warm(&bench->report);
}

/* Cold, half and warm, whole and halves: each that is going to be timed. */
static void
verify(struct bench *bench)
{
	for (unsigned i = 0; i < bench->request.loader_count; i++) {
		struct loader *loader = &bench->loaders[i];
		disk_drop(&bench->disk, 0);
		loader_verify(loader, &bench->disk, NULL);
		if (bench->request.parts & PART_HALF) {
			settle(bench, bench->disk.bytes / 2);
			loader_verify(loader, &bench->disk, NULL);
			settle(bench, bench->disk.bytes / 2);
			loader_verify(loader, &bench->disk, "first.*");
			loader_verify(loader, &bench->disk, "second.*");
		}
	}
	if (bench->request.parts & PART_WARM) {
		disk_read_in(&bench->disk, bench->disk.bytes);
		loader_verify(&bench->loaders[0], &bench->disk, NULL);
	}
}

static void
measure(struct bench *bench)
{
	const struct request *request = &bench->request;
	struct cold_report *report = &bench->report;
	report->bytes = bench->disk.bytes;
	report->device = request->device;
	report->loader_count = request->loader_count;
	facts_find(&report->facts, &bench->disk);
	verify(bench);
	if (!request->json)
		cold_print_begin(report);
	if (request->parts & PART_COLD)
		measure_cold(bench);
	if (request->parts & PART_HALF)
		measure_half(bench);
	if (request->parts & PART_WARM)
		measure_warm(bench);
	if (request->json)
		cold_print_json(report);
	else
		cold_print_end(report);
}

int
main(int argc, char **argv)
{
	struct bench *bench = calloc(1, sizeof *bench);
	uint64_t head_bytes;
	if (!bench)
		die(ENOMEM, "no memory for the figures");
	read_words(&bench->request, argc, argv);
	uint8_t *head = model_head(bench->request.bytes, &head_bytes);
	for (unsigned i = 0; i < bench->request.loader_count; i++)
		loader_make(&bench->loaders[i], bench->request.loaders[i], bench->request.device,
			    bench->request.bytes, i ? &bench->loaders[0] : NULL);
	disk_make(&bench->disk, bench->request.dir, bench->request.bytes, head, head_bytes);
	measure(bench);
	for (unsigned i = bench->request.loader_count; i-- > 0;)
		loader_drop(&bench->loaders[i]);
	free(head);
	free(bench);
	return fflush(stdout) == 0 && !ferror(stdout) ? 0 : 1;
}
