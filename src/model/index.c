/* A sharded model by its index: the map says which file holds which tensor, and it is believed to
 * the letter. A tensor comes from the file that the map names and from no other; what else the
 * files hold is noted; what the map promises and the files lack is an error, since weights that
 * were never loaded show only in what the model says.
 *
 * Shards are opened by the names that the map gives, links followed. metadata.total_size is not
 * looked at: it is often stale.
 */
#include "format/index.h"
#include "base/arith.h"
#include "format/fail.h"
#include "model/folder.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>

/* Missing files that are looked for before the count is left open. */
#define MISSING_MOST 1000

struct sharded {
	struct onehop_model *model;
	const char *path;
	struct oh_index index;
	uint32_t *order; /* the index's files by name: the model's file i is order[i] */
	uint32_t *place; /* and the other way */
	uint32_t *listed; /* the index's entries by file, as they stand within each */
	uint64_t *begin;  /* of each of the index's files in listed; the last is the count */
	struct oh_lookup map; /* of the index's entries; made when a file's order is another */
	uint8_t *is_taken; /* an entry whose tensor was found */
};

static const char *
file_name(const struct oh_index *index, uint64_t file)
{
	return (const char *)index->text + index->files[file].name;
}

static int
compare(const char *a, uint64_t a_bytes, const char *b, uint64_t b_bytes)
{
	int order = memcmp(a, b, oh_min(a_bytes, b_bytes));
	return order ? order : (a_bytes > b_bytes) - (a_bytes < b_bytes);
}

static int
by_name(const void *a, const void *b, void *arg)
{
	const struct oh_index *index = arg;
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return compare(file_name(index, x), index->files[x].name_bytes, file_name(index, y),
		       index->files[y].name_bytes);
}

/* The index's map is sorted by tensor, so that its first uses of the files are in no order. */
static onehop_status
order_files(struct sharded *sharded, struct onehop_error *error)
{
	uint64_t count = sharded->index.file_count;
	sharded->order = malloc((count ? count : 1) * sizeof *sharded->order);
	sharded->place = malloc((count ? count : 1) * sizeof *sharded->place);
	if (!sharded->order || !sharded->place)
		return oh_fail_no_memory(error, count * sizeof *sharded->order, "the files");
	for (uint64_t i = 0; i < count; i++)
		sharded->order[i] = (uint32_t)i;
	qsort_r(sharded->order, count, sizeof *sharded->order, by_name, &sharded->index);
	for (uint64_t i = 0; i < count; i++)
		sharded->place[sharded->order[i]] = (uint32_t)i;
	return ONEHOP_OK;
}

/* Path of the model's i-th file, malloc'd. */
static char *
shard_path(const struct sharded *sharded, uint64_t i)
{
	uint32_t file = sharded->order[i];
	return oh_model_beside(sharded->path, file_name(&sharded->index, file),
			       sharded->index.files[file].name_bytes);
}

static onehop_status
check_files_there(const struct sharded *sharded, struct onehop_error *error)
{
	struct oh_name_list missing = {{0}, 0, 0, 0, 0};
	for (uint64_t i = 0; i < sharded->index.file_count && !missing.is_cut; i++) {
		char *path = shard_path(sharded, i);
		uint32_t file = sharded->order[i];
		if (!path)
			return oh_fail_no_memory(error, strlen(sharded->path), "a path");
		if (!oh_model_is_there(path)) {
			oh_name_list_add(&missing, file_name(&sharded->index, file),
					 sharded->index.files[file].name_bytes);
			missing.is_cut = missing.count == MISSING_MOST;
		}
		free(path);
	}
	if (!missing.count)
		return ONEHOP_OK;
	oh_refuse(error, ONEHOP_NOT_FOUND, sharded->path,
		  "files that the index names are missing: %s", oh_name_list_end(&missing));
	oh_remedy(error, "get the missing files; the download may not have ended");
	return ONEHOP_NOT_FOUND;
}

static onehop_status
add_files(struct sharded *sharded, struct onehop_error *error)
{
	for (uint64_t i = 0; i < sharded->index.file_count; i++) {
		char *path = shard_path(sharded, i);
		onehop_status status;
		if (!path)
			return oh_fail_no_memory(error, strlen(sharded->path), "a path");
		status = oh_model_add_file(sharded->model, path, OH_CLAIM_SAFETENSORS, error);
		free(path);
		if (status != ONEHOP_OK)
			return status;
	}
	return ONEHOP_OK;
}

static const char *
entry_name(const void *owner, uint64_t at, uint64_t *bytes)
{
	const struct oh_index *index = owner;
	*bytes = index->entries[at].name_bytes;
	return (const char *)index->text + index->entries[at].name;
}

/* Sorts the entries by file, keeping their order. */
static void
list_entries(struct sharded *sharded)
{
	const struct oh_index *index = &sharded->index;
	uint64_t *begin = sharded->begin;
	for (uint64_t i = 0; i < index->count; i++)
		begin[index->entries[i].file + 1]++;
	for (uint64_t file = 0; file < index->file_count; file++)
		begin[file + 1] += begin[file];
	for (uint64_t i = 0; i < index->count; i++)
		sharded->listed[begin[index->entries[i].file]++] = (uint32_t)i;
	for (uint64_t file = index->file_count; file > 0; file--)
		begin[file] = begin[file - 1];
	begin[0] = 0;
}

static onehop_status
prepare_map(struct sharded *sharded, struct onehop_error *error)
{
	uint64_t count = sharded->index.count;
	if (count > OH_LOOKUP_MOST)
		return oh_refuse(error, ONEHOP_LIMIT, sharded->path,
				 "the index maps more than %u tensors", OH_LOOKUP_MOST);
	sharded->listed = malloc((count ? count : 1) * sizeof *sharded->listed);
	sharded->begin = calloc(sharded->index.file_count + 1, sizeof *sharded->begin);
	sharded->is_taken = calloc(count ? count : 1, 1);
	sharded->model->tensors = malloc((count ? count : 1) * sizeof(struct oh_tensor_ref));
	if (!sharded->listed || !sharded->begin || !sharded->is_taken || !sharded->model->tensors)
		return oh_fail_no_memory(error, count * sizeof(struct oh_tensor_ref),
					 "the tensors");
	list_entries(sharded);
	return ONEHOP_OK;
}

static onehop_status
make_map(struct sharded *sharded, struct onehop_error *error)
{
	onehop_status status = oh_lookup_create(&sharded->map, sharded->index.count,
						&sharded->index, entry_name, error);
	for (uint64_t i = 0; status == ONEHOP_OK && i < sharded->index.count; i++)
		oh_lookup_add(&sharded->map, i);
	return status;
}

/* The entry of a tensor's name, or OH_LOOKUP_NONE. *next is the one that is expected: index and files
 * mostly have their tensors in one order, and then no table of names is made. */
static onehop_status
find_entry(struct sharded *sharded, const char *name, uint64_t bytes, uint64_t *next, uint64_t end,
	   uint64_t *found, struct onehop_error *error)
{
	onehop_status status = ONEHOP_OK;
	if (*next < end) {
		uint64_t at = sharded->listed[*next], have_bytes;
		const char *have = entry_name(&sharded->index, at, &have_bytes);
		if (have_bytes == bytes && memcmp(have, name, bytes) == 0) {
			++*next;
			*found = at;
			return ONEHOP_OK;
		}
	}
	if (!sharded->map.slots)
		status = make_map(sharded, error);
	if (status == ONEHOP_OK)
		*found = oh_lookup_find(&sharded->map, name, bytes);
	return status;
}

/* Takes the tensors that the map assigns to the model's i-th file, and notes the others. */
static onehop_status
take_from(struct sharded *sharded, uint64_t i, struct onehop_error *error)
{
	struct onehop_model *model = sharded->model;
	const struct oh_table *table = &model->files[i].table;
	const struct oh_index_file *file = &sharded->index.files[sharded->order[i]];
	struct oh_name_list extra = {{0}, 0, 0, 0, 0};
	char shown[OH_SHOWN];
	uint64_t next = sharded->begin[sharded->order[i]], end = sharded->begin[sharded->order[i] + 1];
	for (uint64_t e = 0; e < table->count; e++) {
		const char *name = oh_table_name(table, &table->entries[e]);
		uint32_t bytes = table->entries[e].name_bytes;
		uint64_t at;
		onehop_status status = find_entry(sharded, name, bytes, &next, end, &at, error);
		if (status != ONEHOP_OK)
			return status;
		if (at == OH_LOOKUP_NONE ||
		    sharded->place[sharded->index.entries[at].file] != i) {
			oh_name_list_add(&extra, name, bytes);
			continue;
		}
		sharded->is_taken[at] = 1;
		model->tensors[model->tensor_count++] =
			(struct oh_tensor_ref){(uint32_t)i, (uint32_t)e};
	}
	if (!extra.count)
		return ONEHOP_OK;
	return oh_model_note(model, error,
			     "%s: %llu %s left out, since the index does not map %s to this file: "
			     "%s",
			     oh_show(shown, (const char *)sharded->index.text + file->name,
				     file->name_bytes),
			     (unsigned long long)extra.count,
			     extra.count == 1 ? "tensor is" : "tensors are",
			     extra.count == 1 ? "it" : "them", oh_name_list_end(&extra));
}

static onehop_status
fail_missing(const struct sharded *sharded, struct onehop_error *error)
{
	const struct oh_index *index = &sharded->index;
	char tensor[OH_SHOWN], file[OH_SHOWN], others[64] = "";
	uint64_t more = index->count - sharded->model->tensor_count - 1, at = 0, bytes;
	const char *name;
	while (sharded->is_taken[at])
		at++;
	name = entry_name(index, at, &bytes);
	if (more)
		snprintf(others, sizeof others, ", and %llu more such tensor%s",
			 (unsigned long long)more, more == 1 ? "" : "s");
	oh_refuse(error, ONEHOP_MALFORMED, sharded->path,
		  "the index maps tensor %s to file %s, which does not hold it%s",
		  oh_show(tensor, name, bytes),
		  oh_show(file, file_name(index, index->entries[at].file),
			  index->files[index->entries[at].file].name_bytes),
		  others);
	oh_remedy(error, "get index and files of the same revision");
	return ONEHOP_MALFORMED;
}

static int
is_mapped(const struct sharded *sharded, const char *name)
{
	const struct oh_index *index = &sharded->index;
	uint64_t low = 0, high = index->file_count;
	while (low < high) {
		uint64_t middle = low + (high - low) / 2;
		uint32_t file = sharded->order[middle];
		int order = compare(file_name(index, file), index->files[file].name_bytes, name,
				    strlen(name));
		if (order == 0)
			return 1;
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return 0;
}

static onehop_status
note_unmapped_files(struct sharded *sharded, const struct oh_folder *folder,
		    struct onehop_error *error)
{
	const struct oh_folder_names *names = &folder->names[OH_FOLDER_SAFETENSORS];
	struct oh_name_list list = {{0}, 0, 0, 0, 0};
	for (uint64_t i = 0; i < names->count; i++)
		if (!is_mapped(sharded, names->at[i]))
			oh_name_list_add(&list, names->at[i], strlen(names->at[i]));
	if (!list.count)
		return ONEHOP_OK;
	return oh_model_note(sharded->model, error,
			     "%llu %s beside the index left out, since its map does not name %s: "
			     "%s",
			     (unsigned long long)list.count,
			     list.count == 1 ? "file is" : "files are",
			     list.count == 1 ? "it" : "them", oh_name_list_end(&list));
}

static onehop_status
open_sharded(struct sharded *sharded, const struct oh_folder *folder, struct onehop_error *error)
{
	struct onehop_model *model = sharded->model;
	onehop_status status = order_files(sharded, error);
	if (status == ONEHOP_OK)
		status = check_files_there(sharded, error);
	if (status == ONEHOP_OK)
		status = add_files(sharded, error);
	if (status == ONEHOP_OK)
		status = prepare_map(sharded, error);
	for (uint64_t i = 0; status == ONEHOP_OK && i < model->file_count; i++)
		status = take_from(sharded, i, error);
	if (status == ONEHOP_OK && model->tensor_count < sharded->index.count)
		status = fail_missing(sharded, error);
	if (status == ONEHOP_OK && folder)
		status = note_unmapped_files(sharded, folder, error);
	return status;
}

onehop_status
oh_model_open_index(struct onehop_model *model, const char *path, const struct oh_folder *folder,
		    struct onehop_error *error)
{
	struct sharded sharded = {.model = model, .path = path};
	uint8_t *text;
	uint64_t bytes;
	onehop_status status = oh_model_read_text(model->runtime, path, OH_INDEX_MAX_BYTES,
						  "an index", &text, &bytes, error);
	oh_model_lap(model, &model->open_ns);
	if (status != ONEHOP_OK)
		return status;
	status = oh_index_parse(path, text, bytes, &sharded.index, error);
	oh_model_lap(model, &model->parse_ns);
	if (status != ONEHOP_OK)
		return status;
	status = open_sharded(&sharded, folder, error);
	oh_lookup_destroy(&sharded.map);
	free(sharded.is_taken);
	free(sharded.listed);
	free(sharded.begin);
	free(sharded.place);
	free(sharded.order);
	oh_index_free(&sharded.index);
	return status;
}
