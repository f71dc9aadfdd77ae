/* What the ways to open a model share: reading a file's header into the model, small text files,
 * notes, and lists of names for messages.
 *
 * Invariants: a file is in the model's list with its table, or not at all; a header is read through
 * the same descriptor that transfers use later, so both see one file. Nothing here decides what a
 * path means (open.c) or which tensors count (index.c).
 */
#include "base/arith.h"
#include "format/fail.h"
#include "format/gguf.h"
#include "format/safetensors.h"
#include "model/model.h"
#include "runtime/file.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* The first read of a GGUF header, whose length nothing tells. */
#define GGUF_FIRST_READ (UINT64_C(64) << 10)

/* Opens a file and says when it is the number of open files that is in the way. */
static onehop_status
open_file(struct onehop_model *model, const char *path, struct onehop_file **file,
	  struct onehop_error *error)
{
	struct onehop_error own;
	onehop_status status = onehop_file_open(model->runtime, path, file, &own);
	if (status == ONEHOP_OK)
		return status;
	if (own.os_errno != EMFILE && own.os_errno != ENFILE) {
		if (error)
			*error = own;
		return status;
	}
	oh_refuse(error, ONEHOP_LIMIT, path,
		  "no more files can be opened, %llu of the model's are open already",
		  (unsigned long long)model->file_count);
	oh_remedy(error, "raise the limit on open files (ulimit -n)");
	if (error)
		error->os_errno = own.os_errno;
	return ONEHOP_LIMIT;
}

static onehop_status
read_safetensors(struct onehop_model *model, struct onehop_file *file, const char *path,
		 uint64_t file_bytes, const uint8_t *head, uint64_t head_bytes,
		 struct oh_table *table, struct onehop_error *error)
{
	uint64_t bytes;
	uint8_t *text;
	onehop_status status =
		oh_safetensors_length(path, head, head_bytes, file_bytes, &bytes, error);
	if (status != ONEHOP_OK)
		return status;
	text = malloc(bytes ? bytes : 1);
	if (!text)
		return oh_fail_no_memory(error, bytes, "a safetensors header");
	status = oh_file_pread(file, text, bytes, sizeof(uint64_t), error);
	oh_model_lap(model, &model->open_ns);
	if (status != ONEHOP_OK) {
		free(text);
		return status;
	}
	status = oh_safetensors_parse(path, text, bytes, file_bytes, table, error);
	oh_model_lap(model, &model->parse_ns);
	return status;
}

/* Makes text, of have bytes, want bytes long. On failure text is freed. */
static onehop_status
read_more(struct onehop_file *file, uint8_t **text, uint64_t have, uint64_t want,
	  struct onehop_error *error)
{
	uint8_t *grown = realloc(*text, want ? want : 1);
	onehop_status status;
	if (!grown) {
		free(*text);
		return oh_fail_no_memory(error, want, "a GGUF header");
	}
	*text = grown;
	status = oh_file_pread(file, grown + have, want - have, have, error);
	if (status != ONEHOP_OK)
		free(grown);
	return status;
}

static onehop_status
read_gguf(struct onehop_model *model, struct onehop_file *file, const char *path,
	  uint64_t file_bytes, struct oh_table *table, struct onehop_error *error)
{
	const uint64_t most = oh_min(file_bytes, OH_GGUF_MAX_HEADER);
	uint64_t have = 0, need = oh_min(most, GGUF_FIRST_READ);
	uint8_t *text = NULL;
	onehop_status status;
	do {
		/* Twice as much each time, so that all parses together cost two. */
		uint64_t want = oh_min(most, oh_max(need, 2 * have));
		assert(want > have || most == 0);
		status = read_more(file, &text, have, want, error);
		oh_model_lap(model, &model->open_ns);
		if (status != ONEHOP_OK)
			return status;
		have = want;
		status = oh_gguf_parse(path, text, have, file_bytes, table, &need, error);
		oh_model_lap(model, &model->parse_ns);
	} while (status == ONEHOP_OK && need);
	return status;
}

static onehop_status
read_header(struct onehop_model *model, struct onehop_file *file, const char *path,
	    uint64_t file_bytes, enum oh_claim claim, struct oh_table *table,
	    struct onehop_error *error)
{
	uint8_t head[OH_HEAD_BYTES];
	uint64_t head_bytes = oh_min(file_bytes, sizeof head);
	onehop_status status = oh_file_pread(file, head, head_bytes, 0, error);
	if (status != ONEHOP_OK)
		return status;
	if (claim == OH_CLAIM_NOTHING && head_bytes >= 4 && memcmp(head, "GGUF", 4) == 0)
		claim = OH_CLAIM_GGUF;
	if (claim == OH_CLAIM_GGUF)
		return read_gguf(model, file, path, file_bytes, table, error);
	return read_safetensors(model, file, path, file_bytes, head, head_bytes, table, error);
}

static onehop_status
grow_files(struct onehop_model *model, struct onehop_error *error)
{
	uint64_t room = model->file_room ? 2 * model->file_room : 4;
	struct oh_model_file *files;
	if (model->file_count < model->file_room)
		return ONEHOP_OK;
	files = realloc(model->files, room * sizeof *files);
	if (!files)
		return oh_fail_no_memory(error, room * sizeof *files, "the list of files");
	model->files = files;
	model->file_room = room;
	return ONEHOP_OK;
}

onehop_status
oh_model_add_file(struct onehop_model *model, const char *path, enum oh_claim claim,
		  struct onehop_error *error)
{
	struct oh_model_file added = {0};
	struct onehop_file_info info = {.size = sizeof info};
	onehop_status status = grow_files(model, error);
	if (status != ONEHOP_OK)
		return status;
	status = open_file(model, path, &added.file, error);
	if (status != ONEHOP_OK)
		return status;
	status = onehop_file_query(added.file, &info);
	assert(status == ONEHOP_OK);
	added.bytes = info.bytes;
	status = read_header(model, added.file, path, info.bytes, claim, &added.table, error);
	if (status != ONEHOP_OK) {
		onehop_file_close(added.file);
		return status;
	}
	model->files[model->file_count++] = added;
	model->format = added.table.is_gguf ? "gguf" : "safetensors";
	return ONEHOP_OK;
}

onehop_status
oh_model_take_all(struct onehop_model *model, struct onehop_error *error)
{
	uint64_t count = 0, at = 0;
	for (uint64_t f = 0; f < model->file_count; f++)
		count += model->files[f].table.count;
	model->tensors = malloc((count ? count : 1) * sizeof *model->tensors);
	if (!model->tensors)
		return oh_fail_no_memory(error, count * sizeof *model->tensors, "the tensors");
	for (uint64_t f = 0; f < model->file_count; f++)
		for (uint64_t e = 0; e < model->files[f].table.count; e++)
			model->tensors[at++] = (struct oh_tensor_ref){(uint32_t)f, (uint32_t)e};
	model->tensor_count = count;
	return ONEHOP_OK;
}

onehop_status
oh_model_read_text(struct onehop_runtime *runtime, const char *path, uint64_t most,
		   const char *what, uint8_t **text, uint64_t *bytes, struct onehop_error *error)
{
	struct onehop_file_info info = {.size = sizeof info};
	struct onehop_file *file;
	uint8_t *read = NULL;
	onehop_status status = onehop_file_open(runtime, path, &file, error);
	if (status != ONEHOP_OK)
		return status;
	status = onehop_file_query(file, &info);
	assert(status == ONEHOP_OK);
	if (info.bytes > most) {
		status = oh_refuse(error, ONEHOP_UNSUPPORTED_DATA, path,
				   "%s of %llu bytes is longer than the %llu that are read", what,
				   (unsigned long long)info.bytes, (unsigned long long)most);
		goto close;
	}
	read = malloc(info.bytes ? info.bytes : 1);
	if (!read) {
		status = oh_fail_no_memory(error, info.bytes, what);
		goto close;
	}
	status = oh_file_pread(file, read, info.bytes, 0, error);
	if (status != ONEHOP_OK) {
		free(read);
		goto close;
	}
	*text = read;
	*bytes = info.bytes;
close:
	onehop_file_close(file);
	return status;
}

onehop_status
oh_model_note(struct onehop_model *model, struct onehop_error *error, const char *format, ...)
{
	char **notes = realloc(model->notes, (model->note_count + 1) * sizeof *notes), *note;
	va_list args;
	int bytes;
	if (!notes)
		return oh_fail_no_memory(error, sizeof *notes, "a note");
	model->notes = notes;
	va_start(args, format);
	bytes = vasprintf(&note, format, args);
	va_end(args);
	if (bytes < 0)
		return oh_fail_no_memory(error, sizeof *notes, "a note");
	notes[model->note_count++] = note;
	return ONEHOP_OK;
}

char *
oh_model_beside(const char *path, const char *name, size_t name_bytes)
{
	const char *slash = strrchr(path, '/');
	size_t folder = slash ? (size_t)(slash - path) + 1 : 0;
	char *joined = malloc(folder + name_bytes + 1);
	if (!joined)
		return NULL;
	memcpy(joined, path, folder);
	memcpy(joined + folder, name, name_bytes);
	joined[folder + name_bytes] = '\0';
	return joined;
}

int
oh_model_is_there(const char *path)
{
	struct stat st;
	/* Other errors are for the open to tell. */
	return oh_sys.stat(path, &st) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

/* Names that are shown; the others are only counted. */
#define NAMES_SHOWN 3

void
oh_name_list_add(struct oh_name_list *list, const char *name, size_t bytes)
{
	char shown[OH_SHOWN];
	list->count++;
	if (list->shown == NAMES_SHOWN)
		return;
	list->used += (size_t)snprintf(list->text + list->used, sizeof list->text - list->used,
				       "%s%s", list->shown ? ", " : "",
				       oh_show(shown, name, bytes));
	list->shown++;
}

const char *
oh_name_list_end(struct oh_name_list *list)
{
	if (list->is_cut)
		snprintf(list->text + list->used, sizeof list->text - list->used, " and more");
	else if (list->count > list->shown)
		snprintf(list->text + list->used, sizeof list->text - list->used, " and %llu more",
			 (unsigned long long)(list->count - list->shown));
	return list->text;
}
