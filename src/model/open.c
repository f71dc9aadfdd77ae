/* What a path is: a file, an index, or a folder, and of a folder's files which make the model.
 *
 * A name that ends in .safetensors or .gguf claims that format; any other name claims nothing and
 * the bytes decide. In a folder an index comes before single files, safetensors before GGUF, and
 * what is left out is noted. Where a choice would be a guess, it is refused and the names given.
 *
 * A model is complete or not made at all: names are unique, and the sums of its sizes fit 64 bits.
 */
#include "base/arith.h"
#include "format/fail.h"
#include "model/folder.h"
#include "model/glob.h"
#include "model/model.h"

#include <errno.h>
#include <stdlib.h>

#define SAFETENSORS ".safetensors"
#define GGUF ".gguf"
#define WHOLE "model.safetensors"
#define INDEX "model.safetensors.index.json"

static int
has_name(const struct oh_folder_names *names, const char *name)
{
	for (uint64_t i = 0; i < names->count; i++)
		if (strcmp(names->at[i], name) == 0)
			return 1;
	return 0;
}

/* A folder and what is in it, while a model is made of it. */
struct opening {
	struct onehop_model *model;
	const char *path;
	struct oh_folder folder;
};

/* malloc'd: the path of a name in the folder. */
static char *
path_of(const struct opening *opening, const char *name, struct onehop_error *error)
{
	size_t bytes = strlen(opening->path), name_bytes = strlen(name);
	char *path = malloc(bytes + 1 + name_bytes + 1);
	if (!path) {
		oh_fail_no_memory(error, bytes + name_bytes, "a path");
		return NULL;
	}
	memcpy(path, opening->path, bytes);
	if (bytes && path[bytes - 1] != '/')
		path[bytes++] = '/';
	memcpy(path + bytes, name, name_bytes + 1);
	return path;
}

static onehop_status
refuse_choice(const struct opening *opening, const struct oh_folder_names *names, const char *what,
	      struct onehop_error *error)
{
	struct oh_name_list list = {{0}, 0, 0, 0, 0};
	for (uint64_t i = 0; i < names->count; i++)
		oh_name_list_add(&list, names->at[i], strlen(names->at[i]));
	oh_refuse(error, ONEHOP_INVALID_ARGUMENT, opening->path, "the folder holds several %s: %s",
		  what, oh_name_list_end(&list));
	oh_remedy(error, "give the path of the one to load");
	return ONEHOP_INVALID_ARGUMENT;
}

/* Notes the names of a kind but for taken (NULL for none). */
static onehop_status
note_left_out(struct opening *opening, enum oh_folder_kind kind, const char *taken,
	      struct onehop_error *error)
{
	const struct oh_folder_names *names = &opening->folder.names[kind];
	struct oh_name_list list = {{0}, 0, 0, 0, 0};
	for (uint64_t i = 0; i < names->count; i++)
		if (!taken || strcmp(names->at[i], taken) != 0)
			oh_name_list_add(&list, names->at[i], strlen(names->at[i]));
	if (!list.count)
		return ONEHOP_OK;
	return oh_model_note(opening->model, error, "%llu %s of the folder left out: %s",
			     (unsigned long long)list.count,
			     list.count == 1 ? "file is" : "files are", oh_name_list_end(&list));
}

static onehop_status
open_named(struct opening *opening, const char *name, enum oh_claim claim,
	   struct onehop_error *error)
{
	char *path = path_of(opening, name, error);
	onehop_status status;
	if (!path)
		return ONEHOP_NO_MEMORY;
	status = oh_model_open_file(opening->model, path, claim, error);
	free(path);
	return status;
}

static onehop_status
open_indexed(struct opening *opening, const char *name, struct onehop_error *error)
{
	char *path = path_of(opening, name, error);
	onehop_status status;
	if (!path)
		return ONEHOP_NO_MEMORY;
	status = oh_model_open_index(opening->model, path, &opening->folder, error);
	free(path);
	if (status != ONEHOP_OK)
		return status;
	return note_left_out(opening, OH_FOLDER_GGUF, NULL, error);
}

/* A run of names model-00001-of-00003.safetensors begins at names[first]: are all of them there?
 * *next is behind it. Only their number is looked at, since some writers count from 0. */
static onehop_status
check_run(const struct opening *opening, const struct oh_folder_names *names, uint64_t first,
	  uint64_t *next, struct onehop_error *error)
{
	struct oh_part_name part;
	char shown[OH_SHOWN];
	*next = first + 1;
	if (!oh_part_name_read(names->at[first], SAFETENSORS, &part))
		return ONEHOP_OK;
	while (*next < names->count &&
	       oh_part_name_same_set(names->at[first], names->at[*next], SAFETENSORS))
		++*next;
	if (*next - first >= part.count)
		return ONEHOP_OK;
	oh_refuse(error, ONEHOP_MALFORMED, opening->path,
		  "the folder has no index and holds %llu of the %u files that belong with %s, the "
		  "others are missing",
		  (unsigned long long)(*next - first), part.count,
		  oh_show(shown, names->at[first], strlen(names->at[first])));
	oh_remedy(error, "get the missing files, or give the path of one file to load it alone");
	return ONEHOP_MALFORMED;
}

/* All safetensors files of a folder without an index. Some models carry their weights twice, as
 * shards and as consolidated*.safetensors: then the shards are taken. */
static onehop_status
open_all(struct opening *opening, struct onehop_error *error)
{
	static const char shards[] = "model-*-of-*.safetensors";
	static const char doubles[] = "consolidated*.safetensors";
	const struct oh_folder_names *names = &opening->folder.names[OH_FOLDER_SAFETENSORS];
	struct oh_name_list left = {{0}, 0, 0, 0, 0};
	onehop_status status = ONEHOP_OK;
	int has_shards = 0;
	for (uint64_t i = 0; i < names->count && !has_shards; i++)
		has_shards = oh_glob_match(shards, strlen(shards), names->at[i],
					   strlen(names->at[i]));
	for (uint64_t i = 0, next; status == ONEHOP_OK && i < names->count; i = next)
		status = check_run(opening, names, i, &next, error);
	for (uint64_t i = 0; status == ONEHOP_OK && i < names->count; i++) {
		char *path;
		if (has_shards && oh_glob_match(doubles, strlen(doubles), names->at[i],
						strlen(names->at[i]))) {
			oh_name_list_add(&left, names->at[i], strlen(names->at[i]));
			continue;
		}
		path = path_of(opening, names->at[i], error);
		if (!path)
			return ONEHOP_NO_MEMORY;
		status = oh_model_add_file(opening->model, path, OH_CLAIM_SAFETENSORS, error);
		free(path);
	}
	if (status != ONEHOP_OK || !left.count)
		return status;
	return oh_model_note(opening->model, error,
			     "the folder holds shards and consolidated files; the shards are taken "
			     "and these left out: %s",
			     oh_name_list_end(&left));
}

static onehop_status
open_ggufs(struct opening *opening, struct onehop_error *error)
{
	const struct oh_folder_names *names = &opening->folder.names[OH_FOLDER_GGUF];
	for (uint64_t i = 1; i < names->count; i++)
		if (!oh_part_name_same_set(names->at[0], names->at[i], GGUF))
			return refuse_choice(opening, names, ".gguf files that are not one set",
					     error);
	return open_named(opening, names->at[0], OH_CLAIM_GGUF, error);
}

static onehop_status
open_listed(struct opening *opening, struct onehop_error *error)
{
	const struct oh_folder_names *weights = &opening->folder.names[OH_FOLDER_SAFETENSORS];
	const struct oh_folder_names *indexes = &opening->folder.names[OH_FOLDER_INDEX];
	onehop_status status;
	if (has_name(indexes, INDEX))
		return open_indexed(opening, INDEX, error);
	if (indexes->count > 1)
		return refuse_choice(opening, indexes, "indexes", error);
	if (indexes->count == 1)
		return open_indexed(opening, indexes->at[0], error);
	if (weights->count) {
		int is_whole = has_name(weights, WHOLE);
		status = is_whole ? open_named(opening, WHOLE, OH_CLAIM_SAFETENSORS, error)
				  : open_all(opening, error);
		if (status == ONEHOP_OK && is_whole)
			status = note_left_out(opening, OH_FOLDER_SAFETENSORS, WHOLE, error);
		if (status == ONEHOP_OK)
			status = note_left_out(opening, OH_FOLDER_GGUF, NULL, error);
		return status;
	}
	if (opening->folder.names[OH_FOLDER_GGUF].count)
		return open_ggufs(opening, error);
	oh_refuse(error, ONEHOP_MALFORMED, opening->path,
		  "the folder holds no .safetensors or .gguf file");
	oh_remedy(error, "give the folder or the file that the weights are in");
	return ONEHOP_MALFORMED;
}

static onehop_status
open_folder(struct onehop_model *model, const char *path, struct onehop_error *error)
{
	struct opening opening = {.model = model, .path = path};
	onehop_status status = oh_folder_read(path, &opening.folder, error);
	oh_model_lap(model, &model->open_ns);
	if (status != ONEHOP_OK)
		return status;
	status = open_listed(&opening, error);
	oh_folder_free(&opening.folder);
	return status;
}

/* An index by its own path. Its folder is listed for a note, no more: it need not be readable. */
static onehop_status
open_index_file(struct onehop_model *model, const char *path, struct onehop_error *error)
{
	struct oh_folder folder;
	char *parent = oh_model_beside(path, ".", 1);
	onehop_status status;
	int is_listed;
	if (!parent)
		return oh_fail_no_memory(error, strlen(path), "a path");
	is_listed = oh_folder_read(parent, &folder, NULL) == ONEHOP_OK;
	free(parent);
	status = oh_model_open_index(model, path, is_listed ? &folder : NULL, error);
	if (is_listed)
		oh_folder_free(&folder);
	return status;
}

static onehop_status
open_path(struct onehop_model *model, const char *path, struct onehop_error *error)
{
	struct stat st;
	char shown[OH_SHOWN];
	enum oh_claim claim = OH_CLAIM_NOTHING;
	if (oh_sys.stat(path, &st) != 0)
		return oh_fail_errno(error, errno, "%s cannot be opened",
				     oh_show(shown, path, strlen(path)));
	if (S_ISDIR(st.st_mode))
		return open_folder(model, path, error);
	if (oh_ends_in(path, ".json"))
		return open_index_file(model, path, error);
	if (oh_ends_in(path, SAFETENSORS))
		claim = OH_CLAIM_SAFETENSORS;
	else if (oh_ends_in(path, GGUF))
		claim = OH_CLAIM_GGUF;
	return oh_model_open_file(model, path, claim, error);
}

static const char *
tensor_name(const void *owner, uint64_t index, uint64_t *bytes)
{
	const struct onehop_model *model = owner;
	const struct oh_entry *entry = oh_model_entry(model, index);
	*bytes = entry->name_bytes;
	return oh_table_name(oh_model_table(model, index), entry);
}

static onehop_status
fail_twice(const struct onehop_model *model, uint64_t first, uint64_t second,
	   struct onehop_error *error)
{
	struct onehop_file_info a = {.size = sizeof a}, b = {.size = sizeof b};
	char name[OH_SHOWN], shown[OH_SHOWN];
	const char *base;
	uint64_t bytes;
	const char *text = tensor_name(model, first, &bytes);
	onehop_file_query(model->files[model->tensors[first].file].file, &a);
	onehop_file_query(model->files[model->tensors[second].file].file, &b);
	base = strrchr(a.path, '/') ? strrchr(a.path, '/') + 1 : a.path;
	oh_refuse(error, ONEHOP_MALFORMED, b.path, "duplicate tensor %s: it is in %s too",
		  oh_show(name, text, bytes), oh_show(shown, base, strlen(base)));
	oh_remedy(error, "an index would say which one counts; or give the path of one file");
	return ONEHOP_MALFORMED;
}

/* Ends each tensor's name with a NUL, for callers that print it. The byte behind a name is its
 * closing quote, or the number of dimensions, and parsed already. */
static void
end_names(struct onehop_model *model)
{
	for (uint64_t i = 0; i < model->tensor_count; i++) {
		const struct oh_entry *entry = oh_model_entry(model, i);
		oh_model_table(model, i)->text[entry->name + entry->name_bytes] = '\0';
	}
}

static onehop_status
index_names(struct onehop_model *model, struct onehop_error *error)
{
	onehop_status status;
	if (model->has_names)
		return ONEHOP_OK;
	if (model->tensor_count > OH_LOOKUP_MOST)
		return oh_refuse(error, ONEHOP_LIMIT, model->path, "more than %u tensors",
				 OH_LOOKUP_MOST);
	status = oh_lookup_create(&model->names, model->tensor_count, model, tensor_name, error);
	for (uint64_t i = 0; status == ONEHOP_OK && i < model->tensor_count; i++) {
		uint64_t first = oh_lookup_add(&model->names, i);
		if (first != OH_LOOKUP_NONE)
			status = fail_twice(model, first, i, error);
	}
	model->has_names = status == ONEHOP_OK;
	return status;
}

onehop_status
oh_model_index_names(const struct onehop_model *model, struct onehop_error *error)
{
	/* A model looks the same with the table and without. */
	struct onehop_model *own = (struct onehop_model *)(uintptr_t)model;
	pthread_mutex_lock(&own->names_lock);
	onehop_status status = index_names(own, error);
	pthread_mutex_unlock(&own->names_lock);
	return status;
}

static onehop_status
add_up(struct onehop_model *model, struct onehop_error *error)
{
	int overflow = 0;
	for (uint64_t f = 0; f < model->file_count; f++) {
		model->files[f].meta_first = model->meta_count;
		model->meta_count += model->files[f].table.meta_count;
		overflow |= oh_add(model->file_bytes, model->files[f].bytes, &model->file_bytes);
	}
	for (uint64_t i = 0; i < model->tensor_count; i++)
		overflow |= oh_add(model->tensor_bytes, oh_model_entry(model, i)->bytes,
				   &model->tensor_bytes);
	if (overflow)
		return oh_refuse(error, ONEHOP_UNSUPPORTED_DATA, model->path,
				 "the sizes of the files do not fit 64 bits together");
	return ONEHOP_OK;
}

static onehop_status
build(struct onehop_model *model, const char *path, struct onehop_error *error)
{
	onehop_status status;
	model->lap = oh_now_ns();
	model->path = strdup(path);
	if (!model->path)
		return oh_fail_no_memory(error, strlen(path) + 1, "a path");
	status = open_path(model, path, error);
	oh_model_lap(model, &model->open_ns);
	if (status == ONEHOP_OK && !model->tensors) {
		status = oh_model_take_all(model, error);
		if (status == ONEHOP_OK && model->file_count > 1)
			status = index_names(model, error);
	}
	if (status == ONEHOP_OK)
		status = add_up(model, error);
	if (status == ONEHOP_OK)
		end_names(model);
	oh_model_lap(model, &model->parse_ns);
	return status;
}

onehop_status
onehop_model_open(struct onehop_runtime *runtime, const char *path, struct onehop_model **model,
		  struct onehop_error *error)
{
	struct onehop_model *made;
	onehop_status status;
	if (!runtime || !path || !model)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "opening a model needs a runtime, a path and a place for the model");
	made = calloc(1, sizeof *made);
	if (!made)
		return oh_fail_no_memory(error, sizeof *made, "a model");
	made->runtime = runtime;
	made->format = "safetensors";
	pthread_mutex_init(&made->names_lock, NULL);
	status = build(made, path, error);
	if (status != ONEHOP_OK) {
		onehop_model_close(made);
		return status;
	}
	*model = made;
	return ONEHOP_OK;
}
