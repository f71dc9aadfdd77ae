/* A dataset, opened: paths become shards, which are loaded by a few threads and then numbered over.
 *
 * What is the same in many shards (the tables of fields and types, mostly) is kept once. The order
 * of numbers is that of the shards, so that it is the same each time.
 */
#include "dataset/dataset.h"

#include "base/arith.h"
#include "base/error.h"
#include "base/sys.h"
#include "dataset/crew.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* More threads find no more to do than to wait for memory. */
#define MOST_THREADS 8
/* What indexes may take of the memory that is there. */
#define MEMORY_PART 2

/* ------------------------------------------------------------------ paths */

struct paths {
	char **at;
	uint64_t count;
	uint64_t room;
};

static void
free_paths(struct paths *paths)
{
	for (uint64_t i = 0; i < paths->count; i++)
		free(paths->at[i]);
	free(paths->at);
}

/* Adds folder/name, or name alone. */
static int
add_path(struct paths *paths, const char *folder, const char *name)
{
	size_t length = folder ? strlen(folder) : 0, bytes = strlen(name);
	int slash = length && folder[length - 1] != '/';
	if (paths->count == paths->room) {
		uint64_t room = paths->room ? paths->room * 2 : 64;
		char **grown = realloc(paths->at, room * sizeof *grown);
		if (!grown)
			return 1;
		paths->at = grown;
		paths->room = room;
	}
	char *path = malloc(length + (size_t)slash + bytes + 1);
	if (!path)
		return 1;
	if (length)
		memcpy(path, folder, length);
	if (slash)
		path[length] = '/';
	memcpy(path + length + slash, name, bytes + 1);
	paths->at[paths->count++] = path;
	return 0;
}

static int
is_shard(const struct dirent *entry)
{
	size_t length = strlen(entry->d_name);
	return entry->d_name[0] != '.' && entry->d_type != DT_DIR && length > 4 &&
	       strcmp(entry->d_name + length - 4, ".tar") == 0;
}

static int
by_bytes(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static onehop_status
list_folder(DIR *stream, const char *folder, struct paths *paths, struct onehop_error *error)
{
	char shown[OH_SHOWN];
	for (;;) {
		errno = 0;
		const struct dirent *entry = oh_sys.readdir(stream);
		if (!entry && errno)
			return oh_fail_errno(error, errno, "%s: the folder cannot be listed",
					     oh_show(shown, folder, strlen(folder)));
		if (!entry)
			return ONEHOP_OK;
		if (is_shard(entry) && add_path(paths, folder, entry->d_name))
			return oh_fail_no_memory(error, sizeof *entry, "the shards' names");
	}
}

static onehop_status
add_folder(const char *folder, struct paths *paths, struct onehop_error *error)
{
	char shown[OH_SHOWN];
	uint64_t first = paths->count;
	DIR *stream = oh_sys.opendir(folder);
	if (!stream)
		return oh_fail_errno(error, errno, "%s: the folder cannot be opened",
				     oh_show(shown, folder, strlen(folder)));
	onehop_status status = list_folder(stream, folder, paths, error);
	oh_sys.closedir(stream);
	if (status)
		return status;
	if (paths->count == first) {
		oh_fail(error, ONEHOP_NOT_FOUND, "%s: no shard (*.tar) is in this folder",
			oh_show(shown, folder, strlen(folder)));
		oh_remedy(error, "make some: onehop pack");
		return ONEHOP_NOT_FOUND;
	}
	qsort(paths->at + first, paths->count - first, sizeof *paths->at, by_bytes);
	return ONEHOP_OK;
}

static onehop_status
add_paths(const char *const *given, uint64_t count, struct paths *paths,
	  struct onehop_error *error)
{
	char shown[OH_SHOWN];
	onehop_status status = ONEHOP_OK;
	for (uint64_t i = 0; i < count && !status; i++) {
		struct stat st;
		if (!given[i])
			return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "path %llu is NULL",
				       (unsigned long long)i);
		if (oh_sys.stat(given[i], &st) < 0)
			return oh_fail_errno(error, errno, "%s: no such shard or folder",
					     oh_show(shown, given[i], strlen(given[i])));
		if (S_ISDIR(st.st_mode))
			status = add_folder(given[i], paths, error);
		else if (add_path(paths, NULL, given[i]))
			status = oh_fail_no_memory(error, sizeof st, "the shards' names");
	}
	return status;
}

/* ------------------------------------------------------------------ loading */

struct loading {
	struct onehop_dataset *dataset;
	const struct paths *paths;
	struct oh_shard_load *loads;
	uint64_t memory_bytes;
	uint32_t threads; /* for each shard */
	atomic_ullong index_bytes;
};

static onehop_status
load_one(void *context, uint32_t worker, uint64_t index, struct onehop_error *error)
{
	struct loading *loading = context;
	(void)worker;
	struct oh_dataset_shard *shard = &loading->dataset->shards[index];
	uint64_t most = loading->memory_bytes / MEMORY_PART, used = loading->index_bytes;
	struct oh_shard_loading how = {.runtime = loading->dataset->runtime,
				       .index_limit = most - oh_min(used, most),
				       .threads = loading->threads};
	onehop_status status = oh_shard_load(&how, loading->paths->at[index], shard,
					     &loading->loads[index], error);
	atomic_fetch_add(&loading->index_bytes, shard->index_bytes);
	return status;
}

/* ------------------------------------------------------------------ numbering */

void *
oh_dataset_keep(struct onehop_dataset *dataset, uint64_t bytes)
{
	struct oh_kept *kept = calloc(1, sizeof *kept + bytes);
	if (!kept)
		return NULL;
	kept->next = dataset->kept;
	dataset->kept = kept;
	return kept->bytes;
}

/* A table that is the same as that of the shard before is taken from there. */
static int
keep_table(struct onehop_dataset *dataset, const void *table, uint64_t bytes, const void *before,
	   uint64_t before_bytes, void **out)
{
	if (before && bytes == before_bytes && memcmp(table, before, bytes) == 0) {
		*out = (void *)(uintptr_t)before;
		return 0;
	}
	*out = oh_dataset_keep(dataset, bytes);
	if (!*out)
		return 1;
	memcpy(*out, table, bytes);
	return 0;
}

/* Numbers the names of a shard into numbers[]. */
static int
number_names(struct oh_ids *names, const struct oh_shard_view *view,
	     const struct oh_shard_name *own, uint64_t count, uint32_t *numbers)
{
	for (uint64_t i = 0; i < count; i++)
		if (oh_ids_number(names, view->names + own[i].offset, own[i].bytes, &numbers[i]))
			return 1;
	return 0;
}

static int
number_types(struct oh_ids *types, const struct oh_shard_view *view, uint32_t *numbers)
{
	numbers[0] = 0;
	for (uint32_t i = 0; i < view->types; i++) {
		if (oh_ids_number(types, (const char *)&view->type[i], sizeof view->type[i],
				    &numbers[i + 1]))
			return 1;
		numbers[i + 1]++;
	}
	return 0;
}

static int
number_shard(struct onehop_dataset *dataset, struct oh_dataset_shard *shard,
	     const struct oh_dataset_shard *before, uint32_t *numbers, uint16_t *narrow)
{
	const struct oh_shard_view *view = &shard->view, *old = &before->view;
	if (number_names(&dataset->fields, view, view->field, view->fields, numbers))
		return 1;
	for (uint32_t i = 0; i < view->fields; i++)
		narrow[i] = (uint16_t)numbers[i];
	if (keep_table(dataset, narrow, view->fields * sizeof *narrow, before->fields,
		       old->fields * sizeof *narrow, (void **)&shard->fields) ||
	    number_types(&dataset->types, view, numbers) ||
	    keep_table(dataset, numbers, (view->types + UINT64_C(1)) * sizeof *numbers,
		       before->types, (old->types + UINT64_C(1)) * sizeof *numbers,
		       (void **)&shard->types) ||
	    number_names(&dataset->streams, view, view->stream, view->streams, numbers) ||
	    keep_table(dataset, numbers, view->streams * sizeof *numbers, before->streams,
		       old->streams * sizeof *numbers, (void **)&shard->streams) ||
	    number_names(&dataset->episodes, view, view->episode, view->episodes, numbers) ||
	    keep_table(dataset, numbers, view->episodes * sizeof *numbers, before->episodes,
		       old->episodes * sizeof *numbers, (void **)&shard->episodes))
		return 1;
	return 0;
}

/* The longest table of any shard. */
static uint64_t
longest(const struct onehop_dataset *dataset)
{
	uint64_t most = 0;
	for (uint64_t i = 0; i < dataset->info.shards; i++) {
		const struct oh_shard_view *view = &dataset->shards[i].view;
		most = oh_max(most, oh_max(view->fields, view->types + UINT64_C(1)));
		most = oh_max(most, oh_max(view->episodes, view->streams));
	}
	return most;
}

static int
number_all(struct onehop_dataset *dataset)
{
	struct oh_dataset_shard none = {0};
	const struct oh_dataset_shard *before = &none;
	uint64_t most = longest(dataset);
	uint32_t *numbers = malloc((most + 1) * sizeof *numbers);
	uint16_t *narrow = malloc((most + 1) * sizeof *narrow);
	int failed = !numbers || !narrow;
	for (uint64_t i = 0; i < dataset->info.shards && !failed; i++) {
		failed = number_shard(dataset, &dataset->shards[i], before, numbers, narrow);
		before = &dataset->shards[i];
	}
	free(numbers);
	free(narrow);
	return failed;
}

/* From the dataset's fields to each shard's. */
static int
number_back(struct onehop_dataset *dataset)
{
	const struct oh_dataset_shard *before = NULL;
	for (uint64_t i = 0; i < dataset->info.shards; i++) {
		struct oh_dataset_shard *shard = &dataset->shards[i];
		if (before && before->fields == shard->fields &&
		    before->view.fields == shard->view.fields) {
			shard->local_fields = before->local_fields;
			continue;
		}
		shard->local_fields = oh_dataset_keep(dataset, dataset->fields.count *
								       sizeof *shard->local_fields);
		if (!shard->local_fields)
			return 1;
		memset(shard->local_fields, 0xff,
		       dataset->fields.count * sizeof *shard->local_fields);
		for (uint32_t k = 0; k < shard->view.fields; k++)
			shard->local_fields[shard->fields[k]] = (uint16_t)k;
		before = shard;
	}
	return 0;
}

static int
merge_all_facts(struct onehop_dataset *dataset, const struct oh_shard_load *loads)
{
	dataset->facts = calloc(dataset->fields.count + 1, sizeof *dataset->facts);
	for (uint64_t i = 0; dataset->facts && i < dataset->info.shards; i++) {
		const struct oh_dataset_shard *shard = &dataset->shards[i];
		for (uint32_t k = 0; k < shard->view.fields; k++) {
			struct oh_field_facts facts = loads[i].facts[k];
			facts.type = shard->types[facts.type];
			oh_field_facts_add(&dataset->facts[shard->fields[k]], &facts);
		}
	}
	return !dataset->facts;
}

static uint64_t
stir(uint64_t hash, uint64_t value)
{
	hash = (hash ^ value) * UINT64_C(0xBF58476D1CE4E5B9);
	return hash ^ (hash >> 32);
}

static onehop_status
count_all(struct onehop_dataset *dataset, const struct oh_shard_load *loads,
	  struct onehop_error *error)
{
	struct onehop_dataset_info *info = &dataset->info;
	dataset->firsts = calloc(info->shards + 1, sizeof *dataset->firsts);
	dataset->bases = calloc(info->shards + 1, sizeof *dataset->bases);
	if (!dataset->firsts || !dataset->bases)
		return oh_fail_no_memory(error, info->shards * sizeof *dataset->firsts,
					 "the dataset");
	info->has_checksums = 1;
	for (uint64_t i = 0; i < info->shards; i++) {
		const struct oh_shard_view *view = &dataset->shards[i].view;
		info->samples += view->samples;
		info->parts += view->parts;
		info->payload_bytes += loads[i].payload_bytes;
		info->has_checksums &= view->flags & OH_SHARD_CHECKSUMS;
		info->fingerprint = stir(info->fingerprint, view->header_crc32c);
		info->fingerprint = stir(info->fingerprint, view->shard_bytes);
		info->fingerprint = stir(info->fingerprint, view->samples);
		dataset->firsts[i + 1] = info->samples;
		if (oh_add(dataset->bases[i], view->shard_bytes, &dataset->bases[i + 1]))
			return oh_fail(error, ONEHOP_LIMIT,
				       "%s: with it the shards have 2^64 bytes and more",
				       dataset->shards[i].path);
	}
	return ONEHOP_OK;
}

/* Hints are twice as many as shards, or fewer. */
static int
make_hints(struct onehop_dataset *dataset)
{
	uint64_t shards = dataset->info.shards, samples = dataset->info.samples, shard = 0;
	while ((samples >> dataset->hint_shift) > shards * 2)
		dataset->hint_shift++;
	uint64_t hints = (samples >> dataset->hint_shift) + 2;
	dataset->hints = malloc(hints * sizeof *dataset->hints);
	if (!dataset->hints)
		return 1;
	for (uint64_t i = 0; i < hints; i++) {
		uint64_t sample = i << dataset->hint_shift;
		while (shard + 1 < shards && dataset->firsts[shard + 1] <= sample)
			shard++;
		dataset->hints[i] = (uint32_t)shard;
	}
	return 0;
}

static onehop_status
unite(struct onehop_dataset *dataset, const struct oh_shard_load *loads,
      struct onehop_error *error)
{
	struct onehop_dataset_info *info = &dataset->info;
	onehop_status status = count_all(dataset, loads, error);
	if (status)
		return status;
	if (make_hints(dataset) || number_all(dataset))
		return oh_fail_no_memory(error, info->shards * sizeof *dataset->shards,
					 "the dataset");
	if (dataset->fields.count > UINT16_MAX)
		return oh_fail(error, ONEHOP_LIMIT,
			       "the shards have %llu fields together, a dataset has up to %d",
			       (unsigned long long)dataset->fields.count, UINT16_MAX);
	if (number_back(dataset) || merge_all_facts(dataset, loads))
		return oh_fail_no_memory(error, info->shards * sizeof *dataset->shards,
					 "the dataset");
	info->fields = dataset->fields.count;
	info->episodes = dataset->episodes.count;
	info->streams = dataset->streams.count;
	return ONEHOP_OK;
}

/* ------------------------------------------------------------------ */

static onehop_status
load_all(struct onehop_dataset *dataset, const struct paths *paths, struct onehop_error *error)
{
	struct onehop_runtime_info machine = {.size = sizeof machine};
	onehop_status status = onehop_runtime_query(dataset->runtime, &machine);
	if (status)
		return oh_fail(error, status, "the runtime cannot be asked: is this a forked child?");
	struct oh_shard_load *loads = calloc(paths->count + 1, sizeof *loads);
	dataset->shards = calloc(paths->count + 1, sizeof *dataset->shards);
	if (!loads || !dataset->shards) {
		free(loads);
		return oh_fail_no_memory(error, paths->count * sizeof *loads, "the dataset");
	}
	dataset->info.shards = paths->count;
	dataset->cores = (uint32_t)oh_max(machine.usable_cores, 1);
	uint32_t threads = (uint32_t)oh_min(dataset->cores, MOST_THREADS);
	struct loading loading = {.dataset = dataset, .paths = paths, .loads = loads,
				  .memory_bytes = machine.memory_bytes,
				  .threads = (uint32_t)oh_max(threads / paths->count, 1)};
	status = oh_crew_run(threads, paths->count, load_one, &loading, error);
	if (!status)
		status = unite(dataset, loads, error);
	for (uint64_t i = 0; i < paths->count; i++)
		free(loads[i].facts);
	free(loads);
	return status;
}

onehop_status
onehop_dataset_open(struct onehop_runtime *runtime, const char *const *given, uint64_t count,
		    struct onehop_dataset **out, struct onehop_error *error)
{
	struct paths paths = {0};
	if (!runtime || !given || !count || !out)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "runtime, paths or dataset is NULL, or there are no paths");
	struct onehop_dataset *dataset = calloc(1, sizeof *dataset);
	if (!dataset)
		return oh_fail_no_memory(error, sizeof *dataset, "a dataset");
	dataset->runtime = runtime;
	onehop_status status = add_paths(given, count, &paths, error);
	if (!status)
		status = load_all(dataset, &paths, error);
	free_paths(&paths);
	if (status)
		onehop_dataset_close(dataset);
	else
		*out = dataset;
	return status;
}

void
onehop_dataset_close(struct onehop_dataset *dataset)
{
	if (!dataset)
		return;
	for (uint64_t i = 0; i < dataset->info.shards; i++)
		oh_shard_unload(&dataset->shards[i]);
	oh_ids_free(&dataset->fields);
	oh_ids_free(&dataset->types);
	oh_ids_free(&dataset->episodes);
	oh_ids_free(&dataset->streams);
	while (dataset->kept) {
		struct oh_kept *kept = dataset->kept;
		dataset->kept = kept->next;
		free(kept);
	}
	free(dataset->shards);
	free(dataset->firsts);
	free(dataset->bases);
	free(dataset->hints);
	free(dataset->facts);
	free(dataset);
}
