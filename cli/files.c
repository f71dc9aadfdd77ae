/* The files that make up a model.
 *
 * The library says which files hold the tensors. The index is the one that it would take: the path
 * itself, or the folder's model.safetensors.index.json, else its only one. What lies beside them in
 * a folder is taken if it is a regular file, not hidden, and small: a configuration or a tokenizer,
 * and not a second set of weights. Links are followed, their own names stay, so that what a cache
 * of linked blobs holds becomes plain files.
 *
 * Each file's identity is taken here, and compared whenever it was read.
 */
#include "files.h"
#include "job.h"
#include "say.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INDEX_END ".safetensors.index.json"
#define MOST_BESIDE (INT64_C(64) << 20)

onehop_status
remedy(struct onehop_error *error, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(error->remedy, sizeof error->remedy, format, args);
	va_end(args);
	return error->status;
}

onehop_status
fail_path(struct onehop_error *error, int code, const char *what, const char *path)
{
	char shown[SHOWN];
	onehop_status status = code == ENOENT   ? ONEHOP_NOT_FOUND
			       : code == EACCES ? ONEHOP_ACCESS
						: ONEHOP_IO;
	return fail(error, status, code, "cannot %s %s", what, show(shown, path, strlen(path)));
}

static onehop_status
changed(struct onehop_error *error, const char *path)
{
	char shown[SHOWN];
	fail(error, ONEHOP_FILE_CHANGED, 0, "%s changed while it was read",
	     show(shown, path, strlen(path)));
	return remedy(error, "run it again when nothing writes to it");
}

static onehop_status
no_memory(struct onehop_error *error)
{
	return fail(error, ONEHOP_NO_MEMORY, 0, "no memory for the list of files");
}

static int
ends_in(const char *text, const char *end)
{
	size_t bytes = strlen(text), end_bytes = strlen(end);
	return bytes > end_bytes && strcmp(text + bytes - end_bytes, end) == 0;
}

static int
same_time(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

int
same_identity(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
	       same_time(&a->st_mtim, &b->st_mtim) && same_time(&a->st_ctim, &b->st_ctim);
}

/* ------------------------------------------------------------------------------------------- */
/* Listing */

/* Adds a file; path and name are copied. */
static onehop_status
add(struct files *files, const char *path, const char *name, enum file_kind kind,
    struct onehop_error *error)
{
	if (files->all == files->room) {
		size_t room = files->room ? 2 * files->room : 16;
		struct model_file *grown = realloc(files->at, room * sizeof *grown);
		if (!grown)
			return no_memory(error);
		files->at = grown;
		files->room = room;
	}
	struct model_file *file = &files->at[files->all];
	memset(file, 0, sizeof *file);
	file->kind = kind;
	file->path = strdup(path);
	file->name = strdup(name);
	files->all++; /* files_drop() frees what there is of it */
	if (!file->path || !file->name)
		return no_memory(error);
	if (stat(path, &file->st) == 0)
		return ONEHOP_OK;
	if (kind != FILE_BESIDE)
		return fail_path(error, errno, "look at", path);
	file->kind = FILE_LEFT_OUT;
	file->why = "what it links to is not there";
	return ONEHOP_OK;
}

/* The folder's part of path, its slash included; for a folder all of it. malloc'd. */
static char *
folder_of(const char *path, int is_folder)
{
	size_t bytes = strlen(path);
	const char *slash = strrchr(path, '/');
	if (!is_folder)
		bytes = slash ? (size_t)(slash + 1 - path) : 0;
	char *folder = malloc(bytes + 2);
	if (!folder)
		return NULL;
	memcpy(folder, path, bytes);
	if (is_folder && bytes > 0 && path[bytes - 1] != '/')
		folder[bytes++] = '/';
	folder[bytes] = '\0';
	return folder;
}

/* What of path comes behind the folder: an index may name files in folders below its own. */
static const char *
below(const char *path, const char *folder)
{
	const char *slash = strrchr(path, '/'), *name;
	size_t bytes = strlen(folder);
	if (strncmp(path, folder, bytes) != 0)
		return slash ? slash + 1 : path;
	name = path + bytes;
	return name + strspn(name, "/");
}

static onehop_status
add_weights(struct files *files, const struct onehop_model *model, const char *folder,
	    struct onehop_error *error)
{
	uint32_t count = job_model_info(model).file_count;
	for (uint32_t i = 0; i < count; i++) {
		struct onehop_file_info info = {.size = sizeof info};
		if (onehop_model_file_at(model, i, &info) != ONEHOP_OK)
			continue;
		onehop_status status = add(files, info.path, below(info.path, folder),
					   FILE_WEIGHTS, error);
		if (status)
			return status;
		if ((uint64_t)files->at[files->all - 1].st.st_size != info.bytes)
			return changed(error, info.path); /* since its header was read */
	}
	return ONEHOP_OK;
}

static int
is_listed(const struct files *files, const char *name)
{
	for (size_t i = 0; i < files->all; i++)
		if (strcmp(files->at[i].name, name) == 0)
			return 1;
	return 0;
}

static onehop_status
add_named(struct files *files, const char *folder, const char *name, enum file_kind kind,
	  struct onehop_error *error)
{
	size_t bytes = strlen(folder) + strlen(name) + 1;
	char *path = malloc(bytes);
	if (!path)
		return no_memory(error);
	snprintf(path, bytes, "%s%s", folder, name);
	onehop_status status = add(files, path, name, kind, error);
	free(path);
	return status;
}

/* One name of the folder. */
static onehop_status
add_beside(struct files *files, const char *folder, const char *name, struct onehop_error *error)
{
	if (name[0] == '.' || is_listed(files, name))
		return ONEHOP_OK;
	onehop_status status = add_named(files, folder, name, FILE_BESIDE, error);
	if (status)
		return status;
	struct model_file *file = &files->at[files->all - 1];
	if (file->kind == FILE_LEFT_OUT)
		return ONEHOP_OK;
	if (S_ISDIR(file->st.st_mode))
		file->why = "it is a folder";
	else if (!S_ISREG(file->st.st_mode))
		file->why = "it is no regular file";
	else if (file->st.st_size > MOST_BESIDE && !ends_in(name, INDEX_END))
		file->why = "it is larger than 64 MiB and no part of the model";
	else
		return ONEHOP_OK;
	file->kind = FILE_LEFT_OUT;
	return ONEHOP_OK;
}

/* Which of the folder's indexes the model was made by, if any: the usual name, or the only one. */
static void
choose_index(struct files *files)
{
	struct model_file *chosen = NULL;
	for (size_t i = 0; i < files->all; i++) {
		struct model_file *file = &files->at[i];
		if (file->kind != FILE_BESIDE || !ends_in(file->name, INDEX_END))
			continue;
		file->kind = FILE_LEFT_OUT;
		file->why = "it is not the index that the model was opened by";
		if (!chosen || strcmp(file->name, "model" INDEX_END) == 0)
			chosen = file;
	}
	if (chosen)
		chosen->kind = FILE_INDEX;
}

static onehop_status
read_folder(struct files *files, const char *folder, int beside, struct onehop_error *error)
{
	onehop_status status = ONEHOP_OK;
	DIR *stream = opendir(folder);
	if (!stream)
		return fail_path(error, errno, "list", folder);
	while (!status) {
		errno = 0;
		const struct dirent *entry = readdir(stream);
		if (!entry && errno)
			status = fail_path(error, errno, "list", folder);
		if (!entry)
			break;
		if (beside || ends_in(entry->d_name, INDEX_END))
			status = add_beside(files, folder, entry->d_name, error);
	}
	closedir(stream);
	choose_index(files);
	return status;
}

static int
by_kind_and_name(const void *a, const void *b)
{
	const struct model_file *one = a, *other = b;
	if (one->kind != other->kind)
		return one->kind < other->kind ? -1 : 1;
	return strcmp(one->name, other->name);
}

onehop_status
files_list(struct files *files, const struct onehop_model *model, const char *path, int beside,
	   struct onehop_error *error)
{
	struct stat st;
	memset(files, 0, sizeof *files);
	if (stat(path, &st) != 0)
		return fail_path(error, errno, "look at", path);
	int is_folder = S_ISDIR(st.st_mode);
	char *folder = folder_of(path, is_folder);
	if (!folder)
		return no_memory(error);
	onehop_status status = add_weights(files, model, folder, error);
	if (!status && is_folder)
		status = read_folder(files, folder, beside, error);
	else if (!status && ends_in(path, ".json"))
		status = add(files, path, below(path, folder), FILE_INDEX, error);
	free(folder);
	if (status)
		return status;
	qsort(files->at, files->all, sizeof *files->at, by_kind_and_name);
	for (size_t i = 0; i < files->all && files->at[i].kind != FILE_LEFT_OUT; i++) {
		files->bytes += (uint64_t)files->at[i].st.st_size;
		files->count++;
	}
	return ONEHOP_OK;
}

void
files_drop(struct files *files)
{
	for (size_t i = 0; i < files->all; i++) {
		free(files->at[i].path);
		free(files->at[i].name);
	}
	free(files->at);
	memset(files, 0, sizeof *files);
}

/* ------------------------------------------------------------------------------------------- */
/* Reading */

onehop_status
file_open(const struct model_file *file, int *fd, struct onehop_error *error)
{
	/* A FIFO put in the file's place must not be waited for. */
	*fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (*fd < 0)
		return fail_path(error, errno, "open", file->path);
	onehop_status status = file_check(file, *fd, error);
	if (status) {
		close(*fd);
		*fd = -1;
	}
	return status;
}

onehop_status
file_check(const struct model_file *file, int fd, struct onehop_error *error)
{
	struct stat now;
	if (fd >= 0 && fstat(fd, &now) != 0)
		return fail_path(error, errno, "look at", file->path);
	if (fd >= 0 && !same_identity(&now, &file->st))
		return changed(error, file->path);
	if (stat(file->path, &now) != 0)
		return fail_path(error, errno, "look at", file->path);
	if (!same_identity(&now, &file->st))
		return changed(error, file->path);
	return ONEHOP_OK;
}

onehop_status
read_all(int fd, const char *path, uint64_t offset, char *to, size_t bytes,
	 struct onehop_error *error)
{
	char shown[SHOWN];
	while (bytes > 0) {
		ssize_t got = pread(fd, to, bytes, (off_t)offset);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return fail(error, ONEHOP_IO, errno, "cannot read %s at offset %llu",
				    show(shown, path, strlen(path)), (unsigned long long)offset);
		if (got == 0)
			return changed(error, path);
		to += got;
		offset += (uint64_t)got;
		bytes -= (size_t)got;
	}
	return ONEHOP_OK;
}
