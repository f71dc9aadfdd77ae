/* onehop index: indexes for shards that others wrote, or a look at whether an index still fits.
 *
 * Shards are independent: each is done by one thread, and one that is bad does not keep the others
 * from being done. What went wrong is said at the end, a line for each, in the shards' order.
 */
#include "cli.h"
#include "crew.h"
#include "files.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct usage index_usage = {
	.name = "index",
	.operands = "PATH...",
	.summary = "make the indexes of tar shards, or verify them",
	.about = "Makes the index of each shard (NAME.tar.onehop beside NAME.tar), without\n"
		 "changing the shard. PATH is a tar file, or a folder, of which all *.tar are\n"
		 "taken. Every header is checked, and what would make an epoch short is an\n"
		 "error. An index that is there and fits is left.\n",
	.words_min = 1,
	.words_max = INT_MAX,
	.option_count = 6,
	.options = {OPT_NO_CHECKSUMS, OPT_REPLACE, OPT_VERIFY_SHARDS, OPT_JSON, OPT_QUIET,
		    OPT_OPTION},
};

enum outcome { OUTCOME_NONE, OUTCOME_INDEXED, OUTCOME_THERE, OUTCOME_VERIFIED, OUTCOME_FAILED };
static const char *const outcome_words[] = {"none", "indexed", "already there", "verified",
					    "failed"};

struct shard {
	char *path;
	uint64_t bytes;
	enum outcome outcome;
	struct onehop_shard_info info;
	struct onehop_error error; /* of one that failed */
};

struct indexing {
	struct request request;
	struct onehop_runtime *runtime;
	struct shard *shards;
	size_t count, room;
	size_t outcomes[OUTCOME_FAILED + 1];
	struct onehop_shard_info sum; /* of those that did not fail */
	uint64_t read;                /* their payloads, and headers */
	uint64_t ns;
	struct crew crew;
};

/* ------------------------------------------------------------------------------------------- */
/* Which shards */

static onehop_status
add_shard(struct indexing *indexing, const char *folder, const char *name,
	  struct onehop_error *error)
{
	struct stat st;
	if (indexing->count == indexing->room) {
		size_t room = indexing->room ? 2 * indexing->room : 16;
		struct shard *shards = realloc(indexing->shards, room * sizeof *shards);
		if (!shards)
			return fail(error, ONEHOP_NO_MEMORY, 0, "no memory for the list of shards");
		indexing->shards = shards;
		indexing->room = room;
	}
	struct shard *shard = &indexing->shards[indexing->count];
	memset(shard, 0, sizeof *shard);
	if (asprintf(&shard->path, "%s%s%s", folder, folder[0] ? "/" : "", name) < 0)
		return fail(error, ONEHOP_NO_MEMORY, 0, "no memory for the list of shards");
	indexing->count++;
	if (stat(shard->path, &st) == 0)
		shard->bytes = (uint64_t)st.st_size;
	return ONEHOP_OK;
}

static int
is_shard(const char *name)
{
	size_t bytes = strlen(name);
	return name[0] != '.' && bytes > 4 && strcmp(name + bytes - 4, ".tar") == 0;
}

static int
by_path(const void *a, const void *b)
{
	return strcmp(((const struct shard *)a)->path, ((const struct shard *)b)->path);
}

static onehop_status
add_folder(struct indexing *indexing, const char *path, struct onehop_error *error)
{
	char shown[SHOWN];
	size_t first = indexing->count;
	struct dirent *entry;
	onehop_status status = ONEHOP_OK;
	DIR *folder = opendir(path);
	if (!folder)
		return fail_path(error, errno, "list", path);
	while (!status && (errno = 0, entry = readdir(folder)))
		if (is_shard(entry->d_name))
			status = add_shard(indexing, path, entry->d_name, error);
	if (!status && errno)
		status = fail_path(error, errno, "list", path);
	closedir(folder);
	if (status)
		return status;
	if (indexing->count == first) {
		fail(error, ONEHOP_NOT_FOUND, 0, "%s: no *.tar is in this folder",
		     show(shown, path, strlen(path)));
		return remedy(error, "give a folder of shards, or the shards");
	}
	qsort(indexing->shards + first, indexing->count - first, sizeof *indexing->shards, by_path);
	return ONEHOP_OK;
}

static onehop_status
list_shards(struct indexing *indexing, struct onehop_error *error)
{
	onehop_status status = ONEHOP_OK;
	for (int i = 0; i < indexing->request.word_count && !status; i++) {
		const char *path = indexing->request.words[i];
		struct stat st;
		if (stat(path, &st) != 0)
			status = fail_path(error, errno, "find", path);
		else if (S_ISDIR(st.st_mode))
			status = add_folder(indexing, path, error);
		else
			status = add_shard(indexing, "", path, error);
	}
	return status;
}

/* ------------------------------------------------------------------------------------------- */
/* The work */

/* What stands where the index will be, zeros if nothing does: a rename puts another file there. */
static struct stat
side_file(const struct shard *shard)
{
	struct stat st;
	char *path;
	memset(&st, 0, sizeof st);
	if (asprintf(&path, "%s.onehop", shard->path) < 0)
		return st;
	if (stat(path, &st) != 0)
		memset(&st, 0, sizeof st);
	free(path);
	return st;
}

static enum outcome
make(const struct request *request, struct shard *shard)
{
	struct stat before = side_file(shard), after;
	if (onehop_shard_index(shard->path, !given(request, OPT_NO_CHECKSUMS),
			       given(request, OPT_REPLACE), &shard->info, &shard->error))
		return OUTCOME_FAILED;
	after = side_file(shard);
	return same_identity(&before, &after) ? OUTCOME_THERE : OUTCOME_INDEXED;
}

/* A bad shard is that shard's affair. */
static onehop_status
do_shard(void *context, uint64_t piece, char *memory, struct onehop_error *error)
{
	struct indexing *indexing = context;
	struct shard *shard = &indexing->shards[piece];
	(void)memory, (void)error;
	shard->info.size = sizeof shard->info;
	if (!given(&indexing->request, OPT_VERIFY_SHARDS))
		shard->outcome = make(&indexing->request, shard);
	else if (onehop_shard_verify(shard->path, &shard->info, &shard->error))
		shard->outcome = OUTCOME_FAILED;
	else
		shard->outcome = OUTCOME_VERIFIED;
	atomic_fetch_add(&indexing->crew.done, shard->bytes);
	return ONEHOP_OK;
}

static void
add_up(struct indexing *indexing)
{
	struct onehop_shard_info *sum = &indexing->sum;
	for (size_t i = 0; i < indexing->count; i++) {
		const struct shard *shard = &indexing->shards[i];
		const struct onehop_shard_info *info = &shard->info;
		indexing->outcomes[shard->outcome]++;
		if (shard->outcome == OUTCOME_FAILED)
			continue;
		sum->samples += info->samples;
		sum->members += info->members;
		sum->payload_bytes += info->payload_bytes;
		sum->shard_bytes += info->shard_bytes;
		sum->index_bytes += info->index_bytes;
		sum->skipped += info->skipped;
		sum->apple_doubles += info->apple_doubles;
		if (shard->outcome != OUTCOME_THERE)
			indexing->read += info->shard_bytes;
	}
}

static onehop_status
do_shards(struct indexing *indexing, struct onehop_error *error)
{
	const char *what = given(&indexing->request, OPT_VERIFY_SHARDS) ? "verifying" : "indexing";
	struct crew_task task = {indexing->count, do_shard, indexing};
	unsigned threads = crew_threads(indexing->runtime);
	uint64_t total = 0;
	for (size_t i = 0; i < indexing->count; i++)
		total += indexing->shards[i].bytes;
	crew_begin(&indexing->crew, threads < task.count ? threads : (unsigned)task.count, what,
		   given(&indexing->request, OPT_QUIET), total);
	uint64_t begin = now_ns();
	onehop_status status = crew_run(&indexing->crew, &task, error);
	indexing->ns = now_ns() - begin;
	progress_end(&indexing->crew.progress);
	if (!status)
		add_up(indexing);
	return status;
}

/* ------------------------------------------------------------------------------------------- */
/* What is printed */

/* GB/s, where all bytes were read. */
static double
rate(const struct indexing *indexing)
{
	if (given(&indexing->request, OPT_NO_CHECKSUMS) || !indexing->ns)
		return 0;
	return (double)indexing->read / (double)indexing->ns;
}

static void
print_bytes(struct out *out, const char *words, uint64_t bytes)
{
	char exact[SIZE_TEXT], about[SIZE_TEXT];
	label(out, words);
	out_format(out, "%s (%s)\n", grouped(exact, bytes), size_text(about, bytes));
}

static void
print_outcomes(struct out *out, const struct indexing *indexing)
{
	int printed = 0;
	label(out, "shards");
	out_format(out, "%zu", indexing->count);
	for (int i = OUTCOME_INDEXED; i <= OUTCOME_FAILED; i++)
		if (indexing->outcomes[i])
			out_format(out, "%s%zu %s", printed++ ? ", " : ": ", indexing->outcomes[i],
				   outcome_words[i]);
	out_text(out, "\n");
}

static void
print_skipped(struct out *out, const struct onehop_shard_info *sum)
{
	char text[SIZE_TEXT];
	if (!sum->skipped)
		return;
	label(out, "left out");
	out_format(out, "%s member%s that %s no part of a sample", grouped(text, sum->skipped),
		   sum->skipped == 1 ? "" : "s", sum->skipped == 1 ? "is" : "are");
	if (sum->apple_doubles)
		out_format(out, ", %s of them what macOS puts beside files (._NAME)",
			   grouped(text, sum->apple_doubles));
	out_text(out, "\n");
}

static void
print_table(struct out *out, const struct indexing *indexing)
{
	char text[SIZE_TEXT];
	const struct onehop_shard_info *sum = &indexing->sum;
	unsigned threads = indexing->crew.threads;
	print_outcomes(out, indexing);
	label(out, "samples");
	out_format(out, "%s, of %s files\n", grouped(text, sum->samples),
		   grouped((char[SIZE_TEXT]){0}, sum->members));
	print_bytes(out, "bytes", sum->payload_bytes);
	print_bytes(out, "index", sum->index_bytes);
	print_skipped(out, sum);
	label(out, "time");
	out_text(out, time_text(text, indexing->ns));
	if (rate(indexing) > 0)
		out_format(out, ", %.2f GB/s", rate(indexing));
	out_format(out, ", %u thread%s\n", threads, threads == 1 ? "" : "s");
}

static void
json_info(struct json *json, const struct onehop_shard_info *info)
{
	json_number(json, "samples", info->samples);
	json_number(json, "members", info->members);
	json_number(json, "payload_bytes", info->payload_bytes);
	json_number(json, "shard_bytes", info->shard_bytes);
	json_number(json, "index_bytes", info->index_bytes);
	json_number(json, "skipped", info->skipped);
	json_number(json, "apple_doubles", info->apple_doubles);
}

static void
json_shard(struct json *json, const struct shard *shard)
{
	json_open(json, NULL, '{');
	json_text(json, "path", shard->path);
	json_text(json, "outcome", outcome_words[shard->outcome]);
	if (shard->outcome == OUTCOME_FAILED) {
		json_text(json, "status", onehop_status_name(shard->error.status));
		json_text(json, "message", shard->error.message);
		json_text(json, "remedy", shard->error.remedy);
	} else {
		json_info(json, &shard->info);
		json_bool(json, "has_trailer", (int)shard->info.has_trailer);
	}
	json_close(json);
}

static void
json_all(struct out *out, const struct indexing *indexing)
{
	struct json json;
	json_begin(&json, out);
	json_open(&json, "shards", '[');
	for (size_t i = 0; i < indexing->count; i++)
		json_shard(&json, &indexing->shards[i]);
	json_close(&json);
	json_info(&json, &indexing->sum);
	json_number(&json, "failed", indexing->outcomes[OUTCOME_FAILED]);
	json_number(&json, "threads", indexing->crew.threads);
	json_double(&json, "seconds", (double)indexing->ns / 1e9, 9);
	json_double(&json, "gb_per_s", rate(indexing), 4);
	json_end(&json);
}

/* Says what failed. Returns the exit status of the first. */
static int
say_failed(const struct indexing *indexing)
{
	int exit_status = EXIT_DONE;
	for (size_t i = 0; i < indexing->count; i++) {
		if (indexing->shards[i].outcome != OUTCOME_FAILED)
			continue;
		int its = say_error(&indexing->shards[i].error);
		if (exit_status == EXIT_DONE)
			exit_status = its;
	}
	return exit_status;
}

/* ------------------------------------------------------------------------------------------- */

static int
check_options(const struct request *request)
{
	if (!given(request, OPT_VERIFY_SHARDS))
		return GO_ON;
	if (given(request, OPT_REPLACE))
		return say_usage("give one of them", "--verify makes no index, --replace does");
	if (given(request, OPT_NO_CHECKSUMS))
		return say_usage("leave it away", "--verify compares the checksums that there are");
	return GO_ON;
}

static int
run(struct indexing *indexing, struct out *out)
{
	struct onehop_error error = {0};
	const struct request *request = &indexing->request;
	onehop_status status = job_runtime(request, &indexing->runtime, &error);
	if (!status)
		status = list_shards(indexing, &error);
	if (!status)
		status = do_shards(indexing, &error);
	if (status)
		return say_error(&error);
	if (given(request, OPT_JSON))
		json_all(out, indexing);
	else if (!given(request, OPT_QUIET) &&
		 indexing->outcomes[OUTCOME_FAILED] < indexing->count)
		print_table(out, indexing);
	return say_failed(indexing);
}

int
cmd_index(struct out *out, int argc, char **argv)
{
	struct indexing indexing = {0};
	/* A file that grows past a limit is to be an error that says so. */
	signal(SIGXFSZ, SIG_IGN);
	int go = request_parse(&indexing.request, &index_usage, out, argc, argv);
	if (go != GO_ON)
		return go;
	go = check_options(&indexing.request);
	if (go == GO_ON)
		go = run(&indexing, out);
	for (size_t i = 0; i < indexing.count; i++)
		free(indexing.shards[i].path);
	free(indexing.shards);
	onehop_runtime_destroy(indexing.runtime);
	request_drop(&indexing.request);
	return go;
}
