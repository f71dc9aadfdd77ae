/* Host memory as a device: one, always there. Copies are memcpy and have ended when copy returns,
 * so queues and marks hold nothing.
 *
 * Memory comes from mmap, zeroed by the kernel as it is touched, with huge pages advised: a load
 * writes all of it. It pins nothing, since nothing but CPUs touches it.
 */
#include "memory/ops.h"

#include "base/arith.h"
#include "base/sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGNMENT 4096u

/* There is one host, with nothing to remember: the handles point here. */
struct oh_device {
	int unused;
};
static struct oh_device the_host;

static uint32_t
host_count(void)
{
	return 1;
}

static onehop_status
host_open(uint32_t ordinal, struct oh_device **device, struct onehop_error *error)
{
	if (ordinal != 0)
		return oh_fail(error, ONEHOP_NO_DEVICE, "there is one host, number 0, not %u", ordinal);
	*device = &the_host;
	return ONEHOP_OK;
}

static void
host_close(struct oh_device *device)
{
	(void)device;
}

static void
host_facts(struct oh_device *device, struct oh_memory_facts *facts)
{
	(void)device;
	*facts = (struct oh_memory_facts){
		.caps = OH_MEMORY_ADDRESSABLE | OH_MEMORY_BATCH_COPY,
		.alignment = ALIGNMENT,
		.copy_modulus = 1,
	};
}

static onehop_status
host_describe(struct oh_device *device, struct onehop_device_info *info, struct onehop_error *error)
{
	(void)device;
	(void)error;
	long pages = sysconf(_SC_PHYS_PAGES), free_pages = sysconf(_SC_AVPHYS_PAGES);
	long page = sysconf(_SC_PAGESIZE);
	strcpy(info->name, "host memory");
	info->pointer_bits = 8 * sizeof(void *);
	info->total_bytes = pages > 0 ? (uint64_t)pages * (uint64_t)page : 0;
	info->free_bytes = free_pages > 0 ? (uint64_t)free_pages * (uint64_t)page : 0;
	info->batch_copy = 1;
	return ONEHOP_OK;
}

static onehop_status
host_alloc(struct oh_device *device, uint64_t bytes, uint64_t *address, struct onehop_error *error)
{
	(void)device;
	if (bytes == 0) {
		*address = 0;
		return ONEHOP_OK;
	}
	void *memory = oh_sys.mmap(NULL, bytes, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED) {
		int code = errno;
		oh_fail(error, ONEHOP_NO_MEMORY, "cannot allocate %llu bytes of host memory",
			(unsigned long long)bytes);
		oh_remedy(error, "free memory, raise the limit, or select fewer tensors");
		if (error)
			error->os_errno = code;
		return ONEHOP_NO_MEMORY;
	}
	/* Only advice: it is as good without. */
	oh_sys.madvise(memory, bytes, MADV_HUGEPAGE);
	*address = (uint64_t)(uintptr_t)memory;
	return ONEHOP_OK;
}

static void
host_free(struct oh_device *device, uint64_t address, uint64_t bytes)
{
	(void)device;
	if (bytes)
		oh_sys.munmap((void *)(uintptr_t)address, bytes);
}

static onehop_status
host_check(struct oh_device *device, uint64_t address, uint64_t bytes, struct onehop_error *error)
{
	uint64_t end;
	(void)device;
	if ((address == 0 && bytes > 0) || oh_add(address, bytes, &end))
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "%llu bytes at address 0x%llx are no host memory",
			       (unsigned long long)bytes, (unsigned long long)address);
	return ONEHOP_OK;
}

static onehop_status
host_read(struct oh_device *device, uint64_t address, void *destination, uint64_t bytes,
	  struct onehop_error *error)
{
	(void)device;
	(void)error;
	if (bytes)
		memcpy(destination, (const void *)(uintptr_t)address, bytes);
	return ONEHOP_OK;
}

static onehop_status
host_fill(struct oh_device *device, uint64_t address, uint64_t bytes, uint8_t value,
	  struct onehop_error *error)
{
	(void)device;
	(void)error;
	if (bytes)
		memset((void *)(uintptr_t)address, value, bytes);
	return ONEHOP_OK;
}

static onehop_status
host_pin(struct oh_device *device, void *memory, uint64_t bytes, struct onehop_error *error)
{
	(void)device;
	(void)memory;
	(void)bytes;
	(void)error;
	return ONEHOP_OK;
}

static onehop_status
host_pin_file(struct oh_device *device, void *map, uint64_t bytes, struct onehop_error *error)
{
	(void)device;
	(void)map;
	(void)bytes;
	return oh_fail(error, ONEHOP_UNSUPPORTED, "pages of files are not pinned for host memory");
}

static void
host_unpin(struct oh_device *device, void *memory, uint64_t bytes)
{
	(void)device;
	(void)memory;
	(void)bytes;
}

static int
host_alive(struct oh_device *device)
{
	(void)device;
	return 1;
}

static onehop_status
host_queue_create(struct oh_device *device, struct oh_queue **queue, struct onehop_error *error)
{
	(void)error;
	*queue = (struct oh_queue *)device;
	return ONEHOP_OK;
}

static void
host_queue_destroy(struct oh_device *device, struct oh_queue *queue)
{
	(void)device;
	(void)queue;
}

/* The host has no streams: a CUDA stream named here would be ignored in silence, so it is refused. */
static onehop_status
host_queue_after(struct oh_device *device, struct oh_queue *queue, uint64_t stream,
		 struct onehop_error *error)
{
	(void)device;
	(void)queue;
	return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
		       "a load to host memory cannot wait for a CUDA stream (0x%llx)",
		       (unsigned long long)stream);
}

static onehop_status
host_queue_join(struct oh_device *device, struct oh_queue *queue, uint64_t stream,
		struct onehop_error *error)
{
	(void)device;
	(void)queue;
	(void)stream;
	(void)error;
	return ONEHOP_OK;
}

static onehop_status
host_mark_create(struct oh_device *device, struct oh_mark **mark, struct onehop_error *error)
{
	(void)error;
	*mark = (struct oh_mark *)device;
	return ONEHOP_OK;
}

static void
host_mark_destroy(struct oh_device *device, struct oh_mark *mark)
{
	(void)device;
	(void)mark;
}

static onehop_status
host_copy(struct oh_device *device, struct oh_queue *queue, struct oh_mark *mark,
	  const struct oh_copy *copies, uint64_t count, struct onehop_error *error)
{
	(void)device;
	(void)queue;
	(void)mark;
	(void)error;
	for (uint64_t i = 0; i < count; i++)
		memcpy((void *)(uintptr_t)copies[i].destination, copies[i].source, copies[i].bytes);
	return ONEHOP_OK;
}

static onehop_status
host_copy_out(struct oh_device *device, struct oh_queue *queue, struct oh_mark *mark,
	      uint64_t address, void *destination, uint64_t bytes, struct onehop_error *error)
{
	(void)queue;
	(void)mark;
	return host_read(device, address, destination, bytes, error);
}

static onehop_status
host_poll(struct oh_device *device, struct oh_mark *mark, int *done, struct onehop_error *error)
{
	(void)device;
	(void)mark;
	(void)error;
	*done = 1;
	return ONEHOP_OK;
}

const struct oh_memory_ops oh_memory_host = {
	.name = "host",
	.count = host_count,
	.open = host_open,
	.close = host_close,
	.facts = host_facts,
	.describe = host_describe,
	.alloc = host_alloc,
	.free = host_free,
	.check = host_check,
	.read = host_read,
	.fill = host_fill,
	.pin = host_pin,
	.pin_file = host_pin_file,
	.unpin = host_unpin,
	.alive = host_alive,
	.queue_create = host_queue_create,
	.queue_destroy = host_queue_destroy,
	.queue_after = host_queue_after,
	.queue_join = host_queue_join,
	.mark_create = host_mark_create,
	.mark_destroy = host_mark_destroy,
	.copy = host_copy,
	.copy_out = host_copy_out,
	.poll = host_poll,
};
