/* Files: the public handle over a storage back end, and exact reads for headers. */
#include "runtime/file.h"

#include "runtime/internal.h"

#include "base/give.h"

#include <stdlib.h>
#include <string.h>

onehop_status
onehop_file_open(struct onehop_runtime *runtime, const char *path, struct onehop_file **out,
		 struct onehop_error *error)
{
	if (!runtime || !path || !out)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "runtime, path or file is NULL");
	if (oh_forked(runtime, error))
		return ONEHOP_FORKED;
	size_t length = strlen(path);
	struct onehop_file *file = malloc(sizeof *file + length + 1);
	if (!file)
		return oh_fail_no_memory(error, sizeof *file + length, "a file");
	file->runtime = runtime;
	file->ops = &oh_storage_local;
	memcpy(file->path, path, length + 1);
	onehop_status status = file->ops->open(path, &file->handle, error);
	if (status) {
		free(file);
		return status;
	}
	file->ops->facts(file->handle, &file->facts);
	*out = file;
	return ONEHOP_OK;
}

void
onehop_file_close(struct onehop_file *file)
{
	if (!file || oh_forked(file->runtime, NULL))
		return;
	file->ops->close(file->handle);
	free(file);
}

onehop_status
onehop_file_query(const struct onehop_file *file, struct onehop_file_info *info)
{
	struct onehop_file_info full = {.path = file->path,
					.bytes = file->facts.bytes};
	return oh_give(info, &full, sizeof full);
}

/* A source of one slice. */
struct single {
	struct oh_slice_source source;
	struct oh_slice slice;
	struct oh_slice_result result;
	int taken;
};

static int
single_take(struct oh_slice_source *source, struct oh_slice *slice)
{
	struct single *single = (struct single *)source;
	if (single->taken)
		return 0;
	single->taken = 1;
	*slice = single->slice;
	return 1;
}

static void
single_give(struct oh_slice_source *source, const struct oh_slice *slice,
	    const struct oh_slice_result *result)
{
	(void)slice;
	((struct single *)source)->result = *result;
}

onehop_status
oh_file_pread(struct onehop_file *file, void *memory, uint64_t bytes, uint64_t offset,
	      struct onehop_error *error)
{
	for (uint64_t done = 0; done < bytes;) {
		struct single single = {
			.source = {single_take, single_give},
			.slice = {.file = file->handle, .offset = offset + done,
				  .row_bytes = bytes - done, .rows = 1,
				  .memory = (uint8_t *)memory + done},
		};
		file->ops->read(&single.source);
		if (single.result.status)
			return oh_fail_errno(error, single.result.os_errno,
					     "%s: reading %llu bytes at offset %llu failed", file->path,
					     (unsigned long long)(bytes - done),
					     (unsigned long long)(offset + done));
		if (single.result.bytes == 0) {
			oh_fail(error, ONEHOP_FILE_CHANGED,
				"%s: truncated while it was read: it ends at offset %llu, before %llu "
				"more bytes that were there",
				file->path, (unsigned long long)(offset + done),
				(unsigned long long)(bytes - done));
			oh_remedy(error, "load it again when nothing writes to it");
			return ONEHOP_FILE_CHANGED;
		}
		done += single.result.bytes;
	}
	return ONEHOP_OK;
}
