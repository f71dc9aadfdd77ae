/* Listing a folder. Only names are read: what the files are shows when they are opened.
 *
 * A folder's order is the file system's accident, so names are sorted: the same folder gives the
 * same model everywhere.
 */
#include "model/folder.h"

#include "base/sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int
oh_ends_in(const char *text, const char *end)
{
	size_t bytes = strlen(text), end_bytes = strlen(end);
	return bytes > end_bytes && strcmp(text + bytes - end_bytes, end) == 0;
}

static int
kind_of(const struct dirent *entry)
{
	if (entry->d_name[0] == '.' || entry->d_type == DT_DIR)
		return -1;
	if (oh_ends_in(entry->d_name, ".safetensors"))
		return OH_FOLDER_SAFETENSORS;
	if (oh_ends_in(entry->d_name, ".gguf"))
		return OH_FOLDER_GGUF;
	if (oh_ends_in(entry->d_name, ".safetensors.index.json"))
		return OH_FOLDER_INDEX;
	return -1;
}

static int
append(struct oh_folder_names *names, const char *name)
{
	if (names->count == names->room) {
		uint64_t room = names->room ? 2 * names->room : 16;
		char **grown = realloc(names->at, room * sizeof *grown);
		if (!grown)
			return -1;
		names->at = grown;
		names->room = room;
	}
	names->at[names->count] = strdup(name);
	if (!names->at[names->count])
		return -1;
	names->count++;
	return 0;
}

static int
by_bytes(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static onehop_status
read_names(DIR *stream, const char *path, struct oh_folder *folder, struct onehop_error *error)
{
	char shown[OH_SHOWN];
	for (;;) {
		const struct dirent *entry;
		int kind;
		errno = 0;
		entry = oh_sys.readdir(stream);
		if (!entry && errno)
			return oh_fail_errno(error, errno, "%s: the folder cannot be listed",
					     oh_show(shown, path, strlen(path)));
		if (!entry)
			return ONEHOP_OK;
		kind = kind_of(entry);
		if (kind >= 0 && append(&folder->names[kind], entry->d_name))
			return oh_fail_no_memory(error, sizeof *entry, "a folder's names");
	}
}

onehop_status
oh_folder_read(const char *path, struct oh_folder *folder, struct onehop_error *error)
{
	char shown[OH_SHOWN];
	onehop_status status;
	DIR *stream = oh_sys.opendir(path);
	if (!stream)
		return oh_fail_errno(error, errno, "%s: the folder cannot be opened",
				     oh_show(shown, path, strlen(path)));
	memset(folder, 0, sizeof *folder);
	status = read_names(stream, path, folder, error);
	oh_sys.closedir(stream);
	if (status != ONEHOP_OK) {
		oh_folder_free(folder);
		return status;
	}
	for (int kind = 0; kind < OH_FOLDER_KINDS; kind++)
		if (folder->names[kind].count)
			qsort(folder->names[kind].at, folder->names[kind].count,
			      sizeof *folder->names[kind].at, by_bytes);
	return ONEHOP_OK;
}

void
oh_folder_free(struct oh_folder *folder)
{
	for (int kind = 0; kind < OH_FOLDER_KINDS; kind++) {
		for (uint64_t i = 0; i < folder->names[kind].count; i++)
			free(folder->names[kind].at[i]);
		free(folder->names[kind].at);
	}
	memset(folder, 0, sizeof *folder);
}
