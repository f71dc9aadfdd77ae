/* onehop bench: the machine's ceilings and the load beside them, in one run.
 *
 * Order: make or take a model, warm the page cache and measure the ceilings, verify every byte of
 * one load, and only then time loads in processes of their own: no rate is printed for bytes that
 * were not verified. Whatever was made is removed in the end, also after a failure or Ctrl-C.
 */
#include "bench.h"
#include "progress.h"
#include "signals.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct usage bench_usage = {
	.name = "bench",
	.operands = "[PATH]",
	.summary = "measure the machine's ceilings and loads beside them",
	.about = "Makes a safetensors model of random bytes (or takes PATH), reads it into the\n"
		 "page cache, measures what the link and the page cache can do, verifies a load\n"
		 "byte by byte, and times loads: the first of a fresh process and the next ones.\n"
		 "onehop bench stream does the like for datasets, beside other loaders: see\n"
		 "onehop bench stream --help.\n",
	.words_min = 0,
	.words_max = 1,
	.option_count = 11,
	.options = {OPT_DEVICE, OPT_BYTES, OPT_TENSOR_BYTES, OPT_REPEAT, OPT_FRESH, OPT_DIR,
		    OPT_KEEP, OPT_CONCURRENT, OPT_JSON, OPT_QUIET, OPT_OPTION},
};

#define DEFAULT_BYTES (UINT64_C(12) << 30)
#define DEFAULT_TENSOR_BYTES (UINT64_C(128) << 20)
#define DEFAULT_TIMES 9
#define SMALL_BYTES (UINT64_C(1) << 20)
#define COPY_PIECE (UINT64_C(16) << 20)
#define COPY_TOTAL (UINT64_C(4) << 30)

static const char *
folder(const struct request *request)
{
	const char *tmp = getenv("TMPDIR");
	if (request->dir)
		return request->dir;
	return tmp && tmp[0] ? tmp : "/tmp";
}

/* Two loads at once must fit on the device, and the page cache holds the model while it lies in
 * host memory too. */
static uint64_t
default_bytes(const struct bench *bench)
{
	uint64_t bytes = DEFAULT_BYTES, quarter = bench->machine.memory_bytes / 4;
	if (quarter && quarter < bytes)
		bytes = quarter;
	if (!bench->is_host && bench->device_info.free_bytes / 4 < bytes)
		bytes = bench->device_info.free_bytes / 4;
	bytes -= bytes % (UINT64_C(1) << 20);
	return bytes < SMALL_BYTES ? SMALL_BYTES : bytes;
}

static onehop_status
find_device(struct bench *bench, struct onehop_error *error)
{
	onehop_status status = job_runtime(&bench->request, &bench->runtime, error);
	if (status)
		return status;
	bench->device = job_device(&bench->request, bench->runtime);
	bench->is_host = strcmp(bench->device, "host") == 0;
	bench->device_info.size = sizeof bench->device_info;
	bench->machine.size = sizeof bench->machine;
	onehop_runtime_query(bench->runtime, &bench->machine);
	return onehop_device_query(bench->runtime, bench->device, &bench->device_info, error);
}

static onehop_status
make_models(struct bench *bench, struct onehop_error *error)
{
	const struct request *request = &bench->request;
	const char *dir = folder(request);
	unsigned cores = bench->machine.usable_cores;
	int quiet = given(request, OPT_QUIET);
	onehop_status status = ONEHOP_OK;
	if (request->word_count == 0)
		status = bench_model_make(
			&bench->model, dir,
			given(request, OPT_BYTES) ? request->bytes : default_bytes(bench),
			given(request, OPT_TENSOR_BYTES) ? request->tensor_bytes
							 : DEFAULT_TENSOR_BYTES,
			given(request, OPT_KEEP), cores, quiet, error);
	else
		snprintf(bench->model.path, sizeof bench->model.path, "%s", request->words[0]);
	if (!status)
		status = bench_model_make(&bench->small, dir, SMALL_BYTES, SMALL_BYTES / 4, 0,
					  cores, 1, error);
	bench_facts(&bench->facts, bench->model.path);
	return status;
}

static onehop_status
measure_reads(struct bench *bench, const struct onehop_model *model, struct onehop_error *error)
{
	unsigned cores = bench->machine.usable_cores;
	onehop_status status = bench_read(bench->runtime, model, cores, bench->is_host,
					  bench->is_host, &bench->reads, error);
	if (!status && bench->is_host)
		status = bench_read(bench->runtime, model, cores, 1, 0, &bench->kept_reads, error);
	return status;
}

/* What the model is, and the ceilings on it. The first pass over it warms the page cache. */
static onehop_status
measure_ceilings(struct bench *bench, struct onehop_error *error)
{
	struct job job;
	job_begin(&job, bench->runtime, bench->device, &bench->request);
	onehop_status status = job_open(&job, bench->model.path, error);
	if (!status) {
		struct onehop_model_info info = job_model_info(job.model);
		snprintf(bench->format, sizeof bench->format, "%s", info.format);
		bench->files = info.file_count;
		bench->tensors = job.layout.count;
		bench->bytes = job.layout.bytes;
		status = measure_reads(bench, job.model, error);
	}
	job_drop(&job);
	if (!status && !bench->is_host)
		status = onehop_measure_copy(bench->runtime, bench->device, COPY_PIECE, COPY_TOTAL,
					     &bench->copy_rate, error);
	return status;
}

/* The kept loads follow the whole ones in what the child wrote. */
static onehop_status
measure_again(struct bench *bench, uint64_t repeat, struct onehop_error *error)
{
	struct bench_series *again = &bench->again, *kept = &bench->kept;
	onehop_status status =
		bench_run(bench, CHILD_AGAIN, bench->model.path, NULL, repeat, again, error);
	if (status)
		return status;
	kept->records = calloc(BENCH_RECORDS, sizeof kept->records[0]);
	if (!kept->records)
		return fail(error, ONEHOP_NO_MEMORY, 0, "no memory for the benchmark's records");
	kept->count = again->count / 2;
	again->count -= kept->count;
	memcpy(kept->records, again->records + again->count,
	       kept->count * sizeof kept->records[0]);
	return ONEHOP_OK;
}

static onehop_status
measure_loads(struct bench *bench, struct progress *progress, struct onehop_error *error)
{
	const struct request *request = &bench->request;
	uint64_t fresh = given(request, OPT_FRESH) ? request->fresh : DEFAULT_TIMES;
	uint64_t repeat = given(request, OPT_REPEAT) ? request->repeat : DEFAULT_TIMES;
	const char *path = bench->model.path, *small = bench->small.path;
	onehop_status status = ONEHOP_OK;
	progress_note(progress, "first loads of fresh processes");
	for (uint64_t i = 0; i < fresh && !status; i++)
		status = bench_run(bench, CHILD_FIRST, path, NULL, 1, &bench->first, error);
	progress_note(progress, "loads again");
	if (!status)
		status = measure_again(bench, repeat, error);
	progress_note(progress, "a model of 1 MiB");
	for (uint64_t i = 0; i < fresh && !status; i++)
		status = bench_run(bench, CHILD_TINY, small, NULL, 1, &bench->tiny, error);
	if (status || !given(request, OPT_CONCURRENT))
		return status;
	progress_note(progress, "two loads at once");
	status = bench_run(bench, CHILD_PAIR, path, NULL, repeat, &bench->pair, error);
	if (!status)
		status = bench_run(bench, CHILD_AMID, path, small, repeat, &bench->amid, error);
	return status;
}

static onehop_status
measure_all(struct bench *bench, struct onehop_error *error)
{
	struct progress progress;
	onehop_status status = find_device(bench, error);
	if (!status)
		status = make_models(bench, error);
	progress_begin(&progress, "", given(&bench->request, OPT_QUIET));
	progress_note(&progress, "ceilings");
	if (!status)
		status = measure_ceilings(bench, error);
	/* The children get the device and the cores to themselves. */
	onehop_runtime_destroy(bench->runtime);
	bench->runtime = NULL;
	progress_note(&progress, "verifying");
	if (!status)
		status = bench_verify(bench, bench->model.path, error);
	if (!status)
		status = bench_verify(bench, bench->small.path, error);
	pressure_begin(&bench->pressure);
	if (!status)
		status = measure_loads(bench, &progress, error);
	pressure_end(&bench->pressure);
	progress_end(&progress);
	return status;
}

static int
check_request(const struct request *request)
{
	if (request->word_count && (given(request, OPT_BYTES) || given(request, OPT_TENSOR_BYTES) ||
				    given(request, OPT_KEEP)))
		return say_usage("leave out PATH or these options",
				 "--bytes, --tensor-bytes and --keep are for a model that bench "
				 "makes");
	if (given(request, OPT_REPEAT) && request->repeat > BENCH_RECORDS / 2)
		return say_usage("give less", "bench repeats a load at most %d times",
				 BENCH_RECORDS / 2);
	return GO_ON;
}

static void
drop(struct bench *bench)
{
	struct bench_series *all[] = {&bench->first, &bench->again, &bench->kept,
				      &bench->tiny, &bench->pair, &bench->amid};
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		free(all[i]->records);
	bench_model_drop(&bench->small);
	bench_model_drop(&bench->model);
	request_drop(&bench->request);
	free(bench);
}

int
cmd_bench(struct out *out, int argc, char **argv)
{
	struct onehop_error error = {0};
	if (argc && strcmp(argv[0], "stream") == 0)
		return bench_stream(argc - 1, argv + 1);
	struct bench *bench = calloc(1, sizeof *bench);
	if (!bench) {
		say("no memory for the benchmark", NULL);
		return EXIT_FAILED;
	}
	int go = request_parse(&bench->request, &bench_usage, out, argc, argv);
	if (go != GO_ON) {
		free(bench);
		return go;
	}
	go = check_request(&bench->request);
	if (go == GO_ON) {
		onehop_status status = measure_all(bench, &error);
		if (!status && given(&bench->request, OPT_JSON))
			bench_json(out, bench);
		else if (!status)
			bench_print(out, bench);
		go = status ? say_error(&error) : EXIT_DONE;
	}
	drop(bench);
	return go;
}
