/* What goes to the device, and when it has got there.
 *
 * Copies are given to the device by whoever read the last slice of a block, or by whoever takes a
 * mapped window, outside the lock. One thread at a time asks about the oldest copy of each transfer
 * and about closed gates. The pages of a mapped window are let go as soon as its copies have ended.
 */
#include "runtime/schedule.h"

#include <assert.h>

/* Copies given to the device in one call. */
#define COPY_BATCH 256

/* What a mapped window holds. */
static struct oh_map_slot *
slot_of(struct onehop_transfer *transfer, uint32_t index)
{
	const struct oh_window *window = &transfer->flow.windows[index];
	assert(window->mapped);
	return &transfer->maps[window->block];
}

static struct oh_mark *
mark_of(struct onehop_transfer *transfer, uint32_t index)
{
	const struct oh_window *window = &transfer->flow.windows[index];
	return window->mapped ? slot_of(transfer, index)->mark
			      : transfer->device->lane.blocks[window->block].mark;
}

/* The address that the offsets of a window's copies count from: of its block, or of its file. */
static uint64_t
base_of(struct onehop_transfer *transfer, uint32_t index)
{
	const struct oh_window *window = &transfer->flow.windows[index];
	if (window->mapped)
		return slot_of(transfer, index)->base;
	return (uint64_t)(uintptr_t)transfer->device->lane.blocks[window->block].memory;
}

/* Maps and pins what a mapped window copies from, unless its whole file is pinned. Outside the
 * lock. */
static onehop_status
pin_window(struct onehop_transfer *transfer, uint32_t index, struct onehop_error *error)
{
	struct oh_rt_device *device = transfer->device;
	struct oh_flow_range range = oh_flow_map_range(&transfer->flow, index);
	struct oh_map_slot *slot = slot_of(transfer, index);
	struct onehop_file *file = transfer->plan->files[range.file];
	uint64_t begin = oh_align_down(range.offset, OH_DIRECT_PAGE);
	uint64_t bytes = range.offset + range.bytes - begin;
	slot->map_bytes = 0;
	slot->base = (uint64_t)(uintptr_t)file->map;
	if (file->pinned_on == device)
		return ONEHOP_OK;
	onehop_status status = file->ops->map(file->handle, begin, bytes, &slot->map, error);
	if (status)
		return status;
	status = device->ops->pin_file(device->handle, slot->map, bytes, error);
	if (status) {
		file->ops->unmap(file->handle, slot->map, bytes);
		/* A file that shrank has no pages to pin: then that is what went wrong. */
		onehop_status changed = file->ops->unchanged(file->handle, error);
		return changed ? changed : status;
	}
	slot->map_bytes = bytes;
	slot->base = (uint64_t)(uintptr_t)slot->map - begin;
	return ONEHOP_OK;
}

/* Outside the lock; no copy from it is in flight. */
static void
unpin_window(struct onehop_transfer *transfer, uint32_t index)
{
	if (!transfer->flow.windows[index].mapped)
		return;
	const struct oh_map_slot *slot = slot_of(transfer, index);
	if (!slot->map_bytes)
		return;
	struct onehop_file *file =
		transfer->plan->files[oh_flow_map_range(&transfer->flow, index).file];
	transfer->device->ops->unpin(transfer->device->handle, slot->map, slot->map_bytes);
	file->ops->unmap(file->handle, slot->map, slot->map_bytes);
}

/* Gives the window's copies to the device. Outside the lock: the window is this thread's own until
 * its copies are in flight. */
static onehop_status
issue(struct onehop_transfer *transfer, uint32_t window, uint64_t *count,
      struct onehop_error *error)
{
	struct oh_rt_device *device = transfer->device;
	struct oh_mark *mark = mark_of(transfer, window);
	uint64_t base = base_of(transfer, window);
	struct oh_flow_copy from[COPY_BATCH];
	struct oh_copy copies[COPY_BATCH];
	uint64_t piece = UINT64_MAX;
	uint32_t batch;
	*count = 0;
	while ((batch = oh_flow_copies(&transfer->flow, window, &piece, from, COPY_BATCH))) {
		for (uint32_t i = 0; i < batch; i++) {
			const struct onehop_buffer *buffer = transfer->plan->buffers[from[i].buffer];
			copies[i].destination = buffer->address + from[i].buffer_offset;
			copies[i].source = (void *)(uintptr_t)(base + from[i].block_offset);
			copies[i].bytes = from[i].bytes;
		}
		onehop_status status = device->ops->copy(device->handle, device->lane.queue, mark,
							 copies, batch, error);
		if (status)
			return status;
		*count += batch;
	}
	return ONEHOP_OK;
}

/* With the lock held: a window's copies have ended, well or not. */
static void
copy_ended(struct onehop_transfer *transfer, uint32_t window, const struct onehop_error *failure)
{
	oh_flow_copy_ended(&transfer->flow, window, !failure);
	oh_release(transfer, &transfer->flow.windows[window]);
	if (failure)
		oh_transfer_stop(transfer, failure);
	if (transfer->waiters)
		pthread_cond_broadcast(&transfer->cond);
	oh_transfer_check_end(transfer);
}

static void
count_pinned(struct onehop_runtime *runtime, int64_t bytes)
{
	runtime->pinned_bytes += (uint64_t)bytes;
	runtime->pinned_peak_bytes = oh_max(runtime->pinned_peak_bytes, runtime->pinned_bytes);
}

void
oh_start_copies(struct onehop_transfer *transfer, uint32_t window)
{
	struct onehop_runtime *runtime = transfer->runtime;
	struct onehop_error error;
	uint64_t count = 0;
	int mapped = transfer->flow.windows[window].mapped;
	int at_once = (transfer->device->facts.caps & OH_MEMORY_ADDRESSABLE) != 0;
	transfer->issuing++;
	if (!transfer->completion.first_copy_ns)
		transfer->completion.first_copy_ns = oh_since_start(transfer);
	pthread_mutex_unlock(&runtime->lock);
	onehop_status status = mapped ? pin_window(transfer, window, &error) : ONEHOP_OK;
	if (!status) {
		status = issue(transfer, window, &count, &error);
		if (status)
			unpin_window(transfer, window);
	}
	pthread_mutex_lock(&runtime->lock);
	transfer->issuing--;
	transfer->completion.copies += count;
	if (status || at_once) {
		copy_ended(transfer, window, status ? &error : NULL);
		return;
	}
	uint32_t slot = (transfer->in_flight_first + transfer->in_flight_count++) %
			transfer->in_flight_most;
	runtime->in_flight++;
	if (mapped)
		count_pinned(runtime, (int64_t)slot_of(transfer, window)->map_bytes);
	transfer->in_flight[slot] = (struct oh_in_flight){mark_of(transfer, window), window};
	if (oh_flow_all_read(&transfer->flow) && !transfer->issuing && transfer->waiters)
		pthread_cond_broadcast(&transfer->cond);
	if (!runtime->polling)
		oh_wake_one(runtime);
}

uint32_t
oh_copies_collect(struct onehop_runtime *runtime, struct oh_probe probes[OH_POLL_BATCH])
{
	uint32_t count = 0;
	struct onehop_transfer *t = runtime->active;
	for (; t && count < OH_POLL_BATCH; t = oh_active_after(runtime, NULL, t)) {
		const struct oh_in_flight *oldest = &t->in_flight[t->in_flight_first];
		if (!t->gated && !t->in_flight_count)
			continue;
		probes[count].transfer = t;
		probes[count].window = oldest->window;
		probes[count++].mark = t->gated ? t->gate_mark : oldest->mark;
	}
	/* Those that found no room come first the next time. */
	if (count == OH_POLL_BATCH)
		runtime->active = probes[count - 1].transfer->next;
	return count;
}

/* What the caller's stream held has ended, or does not matter any more. */
static void
open_gate(struct onehop_transfer *transfer, int done, const struct onehop_error *failure)
{
	transfer->gated = 0;
	if (done)
		transfer->gate_used = 0;
	transfer->runtime->in_flight--;
	if (failure)
		oh_transfer_stop(transfer, failure);
	oh_grant(transfer->runtime);
	oh_wake_one(transfer->runtime);
	oh_transfer_check_end(transfer);
}

static void
take_off(struct onehop_transfer *transfer, const struct onehop_error *failure)
{
	uint32_t window = transfer->in_flight[transfer->in_flight_first].window;
	if (transfer->flow.windows[window].mapped)
		count_pinned(transfer->runtime, -(int64_t)slot_of(transfer, window)->map_bytes);
	transfer->in_flight_first = (transfer->in_flight_first + 1) % transfer->in_flight_most;
	transfer->in_flight_count--;
	transfer->runtime->in_flight--;
	copy_ended(transfer, window, failure);
}

int
oh_copies_poll(struct onehop_runtime *runtime, struct oh_probe *probes, uint32_t count)
{
	int any = 0;
	oh_crowd_watch(runtime);
	pthread_mutex_unlock(&runtime->lock);
	for (uint32_t i = 0; i < count; i++) {
		struct oh_rt_device *device = probes[i].transfer->device;
		probes[i].done = 0;
		probes[i].status = device->ops->poll(device->handle, probes[i].mark,
						     &probes[i].done, &probes[i].error);
		/* A window's pages are let go before the next takes its slot. */
		if (!probes[i].transfer->gated && (probes[i].done || probes[i].status))
			unpin_window(probes[i].transfer, probes[i].window);
	}
	pthread_mutex_lock(&runtime->lock);
	for (uint32_t i = 0; i < count; i++) {
		struct onehop_transfer *t = probes[i].transfer;
		const struct onehop_error *failure = probes[i].status ? &probes[i].error : NULL;
		if (!probes[i].done && !failure && !(t->gated && t->flow.stopped))
			continue;
		if (t->gated)
			open_gate(t, probes[i].done, failure);
		else
			take_off(t, failure);
		any = 1;
	}
	return any;
}
