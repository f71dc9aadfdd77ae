/* Devices by name, and buffers on them.
 *
 * A device is opened when it is first named and kept until the runtime goes. Before each use that
 * would rely on its context, alive() is asked: a dead one is set aside and another is opened.
 */
#include "runtime/buffer.h"
#include "runtime/internal.h"

#include "base/arith.h"
#include "base/give.h"
#include "base/sys.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Not worth a look at the machine. */
#define ALWAYS_FITS (UINT64_C(16) << 20)

/* The one list of memory back ends. */
static const struct oh_memory_ops *const back_ends[] = {&oh_memory_host, &oh_memory_cuda};

/* "host", "cuda:3"; "cuda" is cuda:0. */
static onehop_status
parse(const char *name, const struct oh_memory_ops **ops, uint32_t *ordinal,
      struct onehop_error *error)
{
	char shown[OH_SHOWN];
	for (size_t i = 0; i < sizeof back_ends / sizeof back_ends[0]; i++) {
		size_t length = strlen(back_ends[i]->name);
		if (strncmp(name, back_ends[i]->name, length) != 0)
			continue;
		const char *rest = name + length;
		*ops = back_ends[i];
		*ordinal = 0;
		if (!*rest)
			return ONEHOP_OK;
		if (*rest == ':' && isdigit((unsigned char)rest[1]) && strlen(rest) <= 5 &&
		    !rest[1 + strspn(rest + 1, "0123456789")]) {
			*ordinal = (uint32_t)strtoul(rest + 1, NULL, 10);
			return ONEHOP_OK;
		}
	}
	oh_fail(error, ONEHOP_INVALID_ARGUMENT, "%s is no device", oh_show(shown, name, strlen(name)));
	oh_remedy(error, "give host or cuda:N");
	return ONEHOP_INVALID_ARGUMENT;
}

static onehop_status
open_device(struct onehop_runtime *runtime, const struct oh_memory_ops *ops, uint32_t ordinal,
	    struct oh_rt_device **out, struct onehop_error *error)
{
	struct oh_rt_device *device = calloc(1, sizeof *device);
	if (!device)
		return oh_fail_no_memory(error, sizeof *device, "a device");
	onehop_status status = ops->open(ordinal, &device->handle, error);
	if (status) {
		free(device);
		return status;
	}
	device->ops = ops;
	device->ordinal = ordinal;
	ops->facts(device->handle, &device->facts);
	if (ops == &oh_memory_host)
		snprintf(device->name, sizeof device->name, "%s", ops->name);
	else
		snprintf(device->name, sizeof device->name, "%s:%u", ops->name, ordinal);
	device->next = runtime->devices;
	runtime->devices = device;
	*out = device;
	return ONEHOP_OK;
}

static int
has_transfers(const struct onehop_runtime *runtime, const struct oh_rt_device *device)
{
	const struct onehop_transfer *t = runtime->active;
	while (t && t->device != device)
		t = oh_active_after(runtime, NULL, t);
	return t != NULL;
}

/* Its context is gone, and with it all that was pinned and allocated. The ring goes now, unless a
 * transfer is still on its way to find out. */
static void
bury(struct onehop_runtime *runtime, struct oh_rt_device *device)
{
	pthread_mutex_lock(&runtime->lock);
	int unused = !has_transfers(runtime, device);
	device->dead = 1;
	pthread_mutex_unlock(&runtime->lock);
	if (unused)
		oh_lane_close(runtime, device);
}

onehop_status
oh_device_get(struct onehop_runtime *runtime, const char *name, struct oh_rt_device **out,
	      struct onehop_error *error)
{
	const struct oh_memory_ops *ops;
	uint32_t ordinal;
	onehop_status status = parse(name, &ops, &ordinal, error);
	if (status)
		return status;
	pthread_mutex_lock(&runtime->ring_lock);
	struct oh_rt_device *device = runtime->devices;
	for (; device; device = device->next) {
		if (device->ops != ops || device->ordinal != ordinal || device->dead)
			continue;
		if (ops->alive(device->handle))
			break;
		bury(runtime, device);
	}
	if (!device)
		status = open_device(runtime, ops, ordinal, &device, error);
	pthread_mutex_unlock(&runtime->ring_lock);
	if (!status)
		*out = device;
	return status;
}

void
oh_devices_rest(struct onehop_runtime *runtime)
{
	for (struct oh_rt_device *device = runtime->devices; device; device = device->next)
		oh_lane_close(runtime, device);
}

void
oh_devices_close(struct onehop_runtime *runtime)
{
	while (runtime->devices) {
		struct oh_rt_device *device = runtime->devices;
		runtime->devices = device->next;
		device->ops->close(device->handle);
		free(device);
	}
}

uint32_t
onehop_cuda_device_count(struct onehop_runtime *runtime)
{
	return oh_forked(runtime, NULL) ? 0 : oh_memory_cuda.count();
}

onehop_status
onehop_device_query(struct onehop_runtime *runtime, const char *name,
		    struct onehop_device_info *info, struct onehop_error *error)
{
	struct onehop_device_info full = {0};
	struct oh_rt_device *device;
	if (oh_forked(runtime, error))
		return ONEHOP_FORKED;
	onehop_status status = oh_device_get(runtime, name, &device, error);
	if (!status)
		status = device->ops->describe(device->handle, &full, error);
	if (status)
		return status;
	return oh_give(info, &full, sizeof full);
}

static onehop_status
make_buffer(struct onehop_runtime *runtime, const char *name, uint64_t bytes,
	    struct onehop_buffer **out, struct onehop_error *error)
{
	struct oh_rt_device *device;
	if (!runtime || !name || !out)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "runtime, device or buffer is NULL");
	if (oh_forked(runtime, error))
		return ONEHOP_FORKED;
	onehop_status status = oh_device_get(runtime, name, &device, error);
	if (status)
		return status;
	struct onehop_buffer *buffer = calloc(1, sizeof *buffer);
	if (!buffer)
		return oh_fail_no_memory(error, sizeof *buffer, "a buffer");
	buffer->runtime = runtime;
	buffer->device = device;
	buffer->bytes = bytes;
	atomic_init(&buffer->references, 1);
	*out = buffer;
	return ONEHOP_OK;
}

/* Host memory is promised before it is there: what does not fit would end in the kernel's
 * out-of-memory killer. */
static onehop_status
check_host_budget(const struct oh_rt_device *device, uint64_t bytes, struct onehop_error *error)
{
	struct oh_machine machine;
	if (!(device->facts.caps & OH_MEMORY_ADDRESSABLE) || bytes < ALWAYS_FITS)
		return ONEHOP_OK;
	oh_machine_read(&machine);
	if (bytes <= machine.memory_bytes)
		return ONEHOP_OK;
	oh_fail(error, ONEHOP_NO_MEMORY,
		"%llu bytes do not fit in host memory: %llu are usable (MemAvailable, and the limits of "
		"the cgroup)",
		(unsigned long long)bytes, (unsigned long long)machine.memory_bytes);
	oh_remedy(error, "free memory, raise the limit, or select fewer tensors");
	return ONEHOP_NO_MEMORY;
}

/* Takes bytes out of the device's budget, or fails. */
static onehop_status
charge(struct onehop_runtime *runtime, struct oh_rt_device *device, uint64_t bytes,
       struct onehop_error *error)
{
	uint64_t limit = runtime->options.buffer_limit_bytes, all;
	pthread_mutex_lock(&runtime->lock);
	uint64_t used = device->buffer_bytes;
	int fits = !oh_add(used, bytes, &all) && all <= limit;
	if (fits)
		device->buffer_bytes = all;
	pthread_mutex_unlock(&runtime->lock);
	if (fits)
		return ONEHOP_OK;
	oh_fail(error, ONEHOP_LIMIT,
		"a buffer of %llu bytes on %s does not fit buffer_limit_bytes (%llu, of which %llu are "
		"used)",
		(unsigned long long)bytes, device->name, (unsigned long long)limit,
		(unsigned long long)used);
	oh_remedy(error, "raise buffer_limit_bytes, free buffers or select fewer tensors");
	return ONEHOP_LIMIT;
}

static void
discharge(const struct onehop_buffer *buffer)
{
	pthread_mutex_lock(&buffer->runtime->lock);
	buffer->device->buffer_bytes -= buffer->bytes;
	pthread_mutex_unlock(&buffer->runtime->lock);
}

onehop_status
onehop_buffer_alloc(struct onehop_runtime *runtime, const char *device, uint64_t bytes,
		    struct onehop_buffer **out, struct onehop_error *error)
{
	struct onehop_buffer *buffer = NULL;
	onehop_status status = make_buffer(runtime, device, bytes, &buffer, error);
	if (status)
		return status;
	status = charge(runtime, buffer->device, bytes, error);
	if (status)
		goto free_buffer;
	status = check_host_budget(buffer->device, bytes, error);
	if (!status)
		status = buffer->device->ops->alloc(buffer->device->handle, bytes, &buffer->address, error);
	if (status)
		goto discharge;
	buffer->owned = 1;
	*out = buffer;
	return ONEHOP_OK;
discharge:
	discharge(buffer);
free_buffer:
	free(buffer);
	return status;
}

onehop_status
onehop_buffer_wrap(struct onehop_runtime *runtime, const char *device, uint64_t address,
		   uint64_t bytes, struct onehop_buffer **out, struct onehop_error *error)
{
	struct onehop_buffer *buffer = NULL;
	onehop_status status = make_buffer(runtime, device, bytes, &buffer, error);
	if (status)
		return status;
	if (bytes)
		status = buffer->device->ops->check(buffer->device->handle, address, bytes, error);
	if (status) {
		free(buffer);
		return status;
	}
	buffer->address = address;
	*out = buffer;
	return ONEHOP_OK;
}

static void
count_pinned(struct onehop_buffer *buffer, struct oh_rt_device *device)
{
	struct onehop_runtime *runtime = buffer->runtime;
	pthread_mutex_lock(&runtime->lock);
	runtime->buffer_pinned_bytes += device ? buffer->bytes : -buffer->bytes;
	pthread_mutex_unlock(&runtime->lock);
	buffer->pinned_on = device;
}

onehop_status
oh_buffer_pin(struct onehop_buffer *buffer, const char *name, struct onehop_error *error)
{
	struct onehop_runtime *runtime = buffer->runtime;
	void *memory = (void *)(uintptr_t)buffer->address;
	struct oh_rt_device *device;
	onehop_status status = oh_device_get(runtime, name, &device, error);
	if (status || !buffer->bytes || (device->facts.caps & OH_MEMORY_ADDRESSABLE))
		return status;
	assert(buffer->owned && !buffer->pinned_on &&
	       (buffer->device->facts.caps & OH_MEMORY_ADDRESSABLE));
	pthread_mutex_lock(&runtime->ring_lock);
	oh_touch(runtime, memory, buffer->bytes);
	status = device->ops->pin(device->handle, memory, buffer->bytes, error);
	pthread_mutex_unlock(&runtime->ring_lock);
	if (status)
		return status;
	/* After a fork whoever writes first would get a new page, and the device keep the old one. */
	oh_sys.madvise(memory, buffer->bytes, MADV_DONTFORK);
	count_pinned(buffer, device);
	return ONEHOP_OK;
}

int
oh_buffer_is_pinned(const struct onehop_buffer *buffer)
{
	return buffer->pinned_on != NULL;
}

static void
unpin(struct onehop_buffer *buffer)
{
	struct oh_rt_device *device = buffer->pinned_on;
	if (!device)
		return;
	device->ops->unpin(device->handle, (void *)(uintptr_t)buffer->address, buffer->bytes);
	count_pinned(buffer, NULL);
}

void
oh_buffer_hold(struct onehop_buffer *buffer)
{
	atomic_fetch_add(&buffer->references, 1);
}

void
oh_buffer_drop(struct onehop_buffer *buffer)
{
	if (atomic_fetch_sub(&buffer->references, 1) != 1)
		return;
	unpin(buffer);
	if (buffer->owned) {
		buffer->device->ops->free(buffer->device->handle, buffer->address, buffer->bytes);
		discharge(buffer);
	}
	free(buffer);
}

void
onehop_buffer_free(struct onehop_buffer *buffer)
{
	if (buffer && !oh_forked(buffer->runtime, NULL))
		oh_buffer_drop(buffer);
}

onehop_status
onehop_buffer_query(const struct onehop_buffer *buffer, struct onehop_buffer_info *info)
{
	struct onehop_buffer_info full = {
		.owned = (uint32_t)buffer->owned,
		.address = buffer->address,
		.bytes = buffer->bytes,
		.device = buffer->device->name,
		.exports = atomic_load(&buffer->references) - 1,
	};
	return oh_give(info, &full, sizeof full);
}

onehop_status
oh_buffer_check_range(const struct onehop_buffer *buffer, uint64_t offset, uint64_t bytes,
		      struct onehop_error *error)
{
	uint64_t end;
	if (oh_forked(buffer->runtime, error))
		return ONEHOP_FORKED;
	if (oh_add(offset, bytes, &end) || end > buffer->bytes)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "%llu bytes at offset %llu lie outside a buffer of %llu",
			       (unsigned long long)bytes, (unsigned long long)offset,
			       (unsigned long long)buffer->bytes);
	return ONEHOP_OK;
}

onehop_status
onehop_buffer_read(struct onehop_buffer *buffer, uint64_t offset, void *destination, uint64_t bytes,
		   struct onehop_error *error)
{
	onehop_status status = oh_buffer_check_range(buffer, offset, bytes, error);
	if (status || bytes == 0)
		return status;
	return buffer->device->ops->read(buffer->device->handle, buffer->address + offset, destination,
					 bytes, error);
}

onehop_status
onehop_buffer_fill(struct onehop_buffer *buffer, uint64_t offset, uint64_t bytes, uint32_t value,
		   struct onehop_error *error)
{
	onehop_status status = oh_buffer_check_range(buffer, offset, bytes, error);
	if (status || bytes == 0)
		return status;
	if (value > 255)
		return oh_fail(error, ONEHOP_OUT_OF_RANGE, "a fill value is 0 to 255, not %u", value);
	return buffer->device->ops->fill(buffer->device->handle, buffer->address + offset, bytes,
					 (uint8_t)value, error);
}
