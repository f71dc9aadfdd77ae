/* Reading back: many pieces of a device's memory in flight at once, in pinned places.
 *
 * All copies go through one queue, since the device's engine for this direction serves one after the
 * other anyway; each place has its mark, so that whoever waits for a piece does not wait for those
 * behind it. A thread that waits sleeps between looks: the cores have other work. Places count as
 * staging memory. If they cannot be pinned reading goes on without, and the reason is given.
 */
#include "runtime/buffer.h"
#include "runtime/internal.h"

#include "base/arith.h"
#include "base/sys.h"

#include <assert.h>
#include <stdlib.h>

/* Between two looks at a copy. */
#define NAP_NS 50000
/* What of pinned_limit_bytes places may take: the ring is to have the rest. */
#define LIMIT_PART 4

struct place {
	const uint8_t *memory; /* of the piece: of the place, or where it lies */
	struct oh_mark *mark;
	int copied;            /* the mark tells when it is there */
};

struct oh_readback {
	struct onehop_runtime *runtime;
	struct oh_rt_device *device;
	struct oh_queue *queue;
	struct oh_region *region; /* NULL: nothing is pinned */
	uint8_t *memory;          /* of the places; NULL: none is needed */
	uint64_t piece_bytes;
	uint32_t count;
	uint32_t marks;           /* that were made */
	struct place places[];
};

static int
is_reachable(const struct oh_rt_device *device)
{
	return (device->facts.caps & OH_MEMORY_ADDRESSABLE) != 0;
}

static onehop_status
make_pinned(struct oh_readback *r, uint64_t bytes, struct onehop_error *why)
{
	struct onehop_runtime *runtime = r->runtime;
	uint64_t limit = runtime->options.pinned_limit_bytes;
	if (bytes > limit / LIMIT_PART) {
		oh_fail(why, ONEHOP_LIMIT,
			"%llu bytes to read back into are more than a quarter of pinned_limit_bytes "
			"(%llu)",
			(unsigned long long)bytes, (unsigned long long)limit);
		oh_remedy(why, "raise pinned_limit_bytes");
		return ONEHOP_LIMIT;
	}
	pthread_mutex_lock(&runtime->ring_lock);
	onehop_status status = oh_region_make(runtime, r->device, bytes, &r->region, why);
	pthread_mutex_unlock(&runtime->ring_lock);
	return status;
}

/* The queue, the marks and the memory of the places. */
static onehop_status
make_places(struct oh_readback *r, struct onehop_error *unpinned, struct onehop_error *error)
{
	const struct oh_memory_ops *ops = r->device->ops;
	uint64_t bytes;
	onehop_status status = ops->queue_create(r->device->handle, &r->queue, error);
	for (; r->marks < r->count && !status; r->marks += !status)
		status = ops->mark_create(r->device->handle, &r->places[r->marks].mark, error);
	if (status)
		return status;
	if (oh_mul(r->count, r->piece_bytes, &bytes))
		bytes = UINT64_MAX;
	if (!make_pinned(r, bytes, unpinned))
		r->memory = r->region->memory;
	else
		r->memory = malloc(bytes);
	return r->memory ? ONEHOP_OK : oh_fail_no_memory(error, bytes, "reading back");
}

onehop_status
oh_readback_create(const struct onehop_buffer *buffer, uint32_t places, uint64_t piece_bytes,
		   struct oh_readback **out, struct onehop_error *unpinned,
		   struct onehop_error *error)
{
	struct oh_readback *r = calloc(1, sizeof *r + places * sizeof *r->places);
	onehop_status status = ONEHOP_OK;
	if (!r)
		return oh_fail_no_memory(error, sizeof *r, "reading back");
	r->runtime = buffer->runtime;
	r->device = buffer->device;
	r->piece_bytes = piece_bytes;
	r->count = places;
	if (!is_reachable(r->device))
		status = make_places(r, unpinned, error);
	if (status)
		oh_readback_destroy(r);
	else
		*out = r;
	return status;
}

void
oh_readback_destroy(struct oh_readback *r)
{
	if (!r)
		return;
	/* That waits. */
	if (r->queue)
		r->device->ops->queue_destroy(r->device->handle, r->queue);
	while (r->marks)
		r->device->ops->mark_destroy(r->device->handle, r->places[--r->marks].mark);
	if (r->region)
		oh_region_free(r->runtime, r->device, r->region);
	else
		free(r->memory);
	free(r);
}

onehop_status
oh_readback_start(struct oh_readback *r, uint32_t index, const struct onehop_buffer *buffer,
		  uint64_t offset, uint64_t bytes, struct onehop_error *error)
{
	struct place *place = &r->places[index];
	onehop_status status = oh_buffer_check_range(buffer, offset, bytes, error);
	if (status)
		return status;
	assert(index < r->count);
	place->copied = 0;
	if (is_reachable(buffer->device)) {
		place->memory = (const uint8_t *)(uintptr_t)buffer->address + offset;
		return ONEHOP_OK;
	}
	assert(bytes <= r->piece_bytes && buffer->device == r->device);
	uint8_t *memory = r->memory + index * r->piece_bytes;
	place->memory = memory;
	if (!bytes)
		return ONEHOP_OK;
	status = r->device->ops->copy_out(r->device->handle, r->queue, place->mark,
					  buffer->address + offset, memory, bytes, error);
	place->copied = !status;
	return status;
}

onehop_status
oh_readback_wait(struct oh_readback *r, uint32_t index, const uint8_t **memory,
		 struct onehop_error *error)
{
	static const struct timespec nap = {0, NAP_NS};
	struct place *place = &r->places[index];
	onehop_status status = ONEHOP_OK;
	int done = !place->copied;
	while (!done && !status) {
		status = r->device->ops->poll(r->device->handle, place->mark, &done, error);
		if (!done && !status)
			oh_sys.nanosleep(&nap, NULL);
	}
	place->copied = 0;
	if (!status)
		*memory = place->memory;
	return status;
}
