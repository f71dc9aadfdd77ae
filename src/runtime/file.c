/* Files: the public handle over a storage back end, and exact reads for headers. */
#include "runtime/file.h"

#include "runtime/internal.h"

#include "base/arith.h"
#include "base/give.h"
#include "machine/filesystem.h"

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
	file->map = NULL;
	file->pinned_on = NULL;
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
	onehop_file_unpin(file);
	if (file->map)
		file->ops->unmap(file->handle, file->map, file->facts.bytes);
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

/* Pinned pages cannot be reclaimed: with those of other files they have to fit, though the kernel
 * still counts them as available. With ring_lock held. */
static onehop_status
check_pin_budget(const struct onehop_file *file, struct onehop_error *error)
{
	struct oh_machine machine;
	uint64_t all;
	oh_machine_read(&machine);
	if (!oh_add(file->facts.bytes, file->runtime->file_pinned_bytes, &all) &&
	    all <= machine.memory_bytes)
		return ONEHOP_OK;
	oh_fail(error, ONEHOP_LIMIT,
		"%s: %llu bytes of it cannot be pinned: %llu bytes of memory are usable (MemAvailable, and "
		"the limits of the cgroup), and %llu bytes of files are pinned already",
		file->path, (unsigned long long)file->facts.bytes,
		(unsigned long long)machine.memory_bytes,
		(unsigned long long)file->runtime->file_pinned_bytes);
	oh_remedy(error, "free memory, raise the limit, or load without pinning");
	return ONEHOP_LIMIT;
}

/* Pinning reads what is not resident fault by fault, each a round trip on a network. */
static onehop_status
check_pin_place(const struct onehop_file *file, const struct oh_rt_device *device,
		struct onehop_error *error)
{
	struct oh_filesystem system;
	if (!(device->facts.caps & OH_MEMORY_PINS_FILES)) {
		oh_fail(error, ONEHOP_UNSUPPORTED, "%s: pages of files cannot be pinned for %s",
			file->path, device->name);
		oh_remedy(error, "load without pinning");
		return ONEHOP_UNSUPPORTED;
	}
	oh_filesystem_read(file->ops->descriptor(file->handle), &system);
	if (!(system.flags & OH_FS_NETWORK))
		return ONEHOP_OK;
	oh_fail(error, ONEHOP_UNSUPPORTED,
		"%s: it lies on a network file system, whose pages are not pinned", file->path);
	oh_remedy(error, "copy it to a local disk with onehop prefetch --to, or load without pinning");
	return ONEHOP_UNSUPPORTED;
}

static onehop_status
pin(struct onehop_file *file, struct oh_rt_device *device, struct onehop_error *error)
{
	struct onehop_runtime *runtime = file->runtime;
	if (file->pinned_on)
		return file->pinned_on == device
			       ? ONEHOP_OK
			       : oh_fail(error, ONEHOP_BUSY, "%s is pinned for %s already", file->path,
					 file->pinned_on->name);
	onehop_status status = check_pin_budget(file, error);
	if (!status && !file->map)
		status = file->ops->map(file->handle, 0, file->facts.bytes, &file->map, error);
	if (!status)
		status = device->ops->pin_file(device->handle, file->map, file->facts.bytes, error);
	if (status)
		return status;
	file->pinned_on = device;
	pthread_mutex_lock(&runtime->lock);
	runtime->file_pinned_bytes += file->facts.bytes;
	pthread_mutex_unlock(&runtime->lock);
	return ONEHOP_OK;
}

onehop_status
onehop_file_pin(struct onehop_file *file, const char *name, struct onehop_error *error)
{
	struct onehop_runtime *runtime = file->runtime;
	struct oh_rt_device *device;
	if (oh_forked(runtime, error))
		return ONEHOP_FORKED;
	onehop_status status = oh_device_get(runtime, name, &device, error);
	if (!status)
		status = check_pin_place(file, device, error);
	if (status || !file->facts.bytes)
		return status;
	pthread_mutex_lock(&runtime->ring_lock);
	status = pin(file, device, error);
	pthread_mutex_unlock(&runtime->ring_lock);
	return status;
}

uint32_t
oh_file_direct_alignment(const struct onehop_file *file)
{
	struct oh_filesystem system;
	oh_filesystem_read(file->ops->descriptor(file->handle), &system);
	return oh_max(system.direct_offset_alignment, 1);
}

int
oh_file_is_pinned(const struct onehop_file *file)
{
	return file->pinned_on != NULL;
}

void
onehop_file_unpin(struct onehop_file *file)
{
	struct onehop_runtime *runtime = file->runtime;
	if (oh_forked(runtime, NULL) || !file->pinned_on)
		return;
	pthread_mutex_lock(&runtime->ring_lock);
	file->pinned_on->ops->unpin(file->pinned_on->handle, file->map, file->facts.bytes);
	file->pinned_on = NULL;
	pthread_mutex_lock(&runtime->lock);
	runtime->file_pinned_bytes -= file->facts.bytes;
	pthread_mutex_unlock(&runtime->lock);
	pthread_mutex_unlock(&runtime->ring_lock);
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
