/* The schedule: who does what next.
 *
 * Each worker, and each thread that waits for a transfer, goes round: read slices while there are
 * any, help to touch new memory, look after copies in flight (one thread at a time), else sleep.
 * Free blocks go to the transfer that holds the fewest; slices are taken from the active transfers
 * in turn. A worker that finds a slice wakes one more as long as there are others to take, so that
 * no more threads run than the work needs.
 *
 * Nothing is left to a thread that may be stuck in storage: one that goes off to read wakes another
 * while copies are in flight that nobody looks after.
 *
 * Copies are given to the device by whoever read the last slice of a block, outside the lock. The
 * end of a transfer is found by whoever handles its last event.
 */
#include "runtime/internal.h"

#include "base/arith.h"
#include "base/sys.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define TOUCH_BYTES (UINT64_C(2) << 20)
/* Copies given to the device in one call. */
#define COPY_BATCH 256
/* Transfers whose oldest copy is polled in one round. */
#define POLL_BATCH 16
/* Rounds without success before the poller sleeps between rounds: none if the copy before took as
 * long as the longest sleep. It sleeps a quarter of that at first, then longer and longer, up to a
 * third of what a block of 16 MiB takes on a fast link. */
#define POLL_SPINS 8
#define POLL_SLEEP_NS 20000
#define POLL_SLEEP_MOST_NS 100000
/* A transfer of more slices wakes all workers when it starts. */
#define WAKE_ALL_SLICES 8
/* Reads of unknown residency are judged when they have brought this much: a page cache gives a thread
 * 4 bytes a ns and more, a disk rarely one. */
#define PROBE_BYTES (UINT64_C(2) << 20)
#define PROBE_BYTES_PER_NS 1.5
/* Slices that one reader may hold. */
#define SOURCE_DEPTH 8

/* ------------------------------------------------------------------ what there is to do */

static void
wake_one(struct onehop_runtime *runtime)
{
	if (runtime->idle) {
		pthread_cond_signal(&runtime->work);
		return;
	}
	struct onehop_transfer *first = runtime->active, *t = first;
	do {
		if (t && t->waiters) {
			pthread_cond_broadcast(&t->cond);
			return;
		}
		t = t ? t->next : NULL;
	} while (t != first);
}

static void
note_starving(struct onehop_transfer *transfer)
{
	if (transfer->flow.takeable == 0 && !transfer->starved_since_ns)
		transfer->starved_since_ns = oh_now_ns();
}

static void
note_served(struct onehop_transfer *transfer)
{
	if (!transfer->starved_since_ns)
		return;
	transfer->completion.starved_ns += oh_now_ns() - transfer->starved_since_ns;
	transfer->starved_since_ns = 0;
}

static int
has_free_block(const struct oh_lane *lane)
{
	uint32_t used = lane->made - lane->free_count;
	return lane->free_count && used < oh_pace_blocks(&lane->pace, lane->made);
}

/* The transfer that should get the next free block of its lane. */
static struct onehop_transfer *
most_in_need(struct onehop_runtime *runtime)
{
	struct onehop_transfer *best = NULL, *t = runtime->active;
	if (!t)
		return NULL;
	do {
		if (!t->gated && oh_flow_wants(&t->flow) == OH_FLOW_WANTS_BLOCK) {
			if (!has_free_block(&t->device->lane))
				note_starving(t);
			else if (!best || t->blocks_held < best->blocks_held)
				best = t;
		}
		t = t->next;
	} while (t != runtime->active);
	return best;
}

static uint32_t
take_slot(struct onehop_transfer *transfer)
{
	uint32_t slot = 0;
	while (transfer->maps[slot].used)
		slot++;
	assert(slot < OH_FLOW_MAPS);
	transfer->maps[slot].used = 1;
	return slot;
}

/* Opens windows: all that need no block, and as many others as there are free blocks. */
static void
grant(struct onehop_runtime *runtime)
{
	struct onehop_transfer *t = runtime->active;
	if (!t)
		return;
	do {
		enum oh_flow_want want;
		while (!t->gated && (want = oh_flow_wants(&t->flow)) >= OH_FLOW_WANTS_PLACE)
			oh_flow_open(&t->flow, 0, want == OH_FLOW_WANTS_MAP ? take_slot(t) : 0);
		t = t->next;
	} while (t != runtime->active);
	while ((t = most_in_need(runtime))) {
		struct oh_lane *lane = &t->device->lane;
		note_served(t);
		oh_flow_open(&t->flow, 0, lane->free[--lane->free_count]);
		t->blocks_held++;
	}
}

/* Takes a slice of the transfer, or of any in turn if it is NULL. Returns whose it is, or NULL. */
static struct onehop_transfer *
take_slice(struct onehop_runtime *runtime, struct onehop_transfer *only,
	   struct oh_flow_slice *slice)
{
	struct onehop_transfer *t = only ? only : runtime->active;
	if (!t || !runtime->active)
		return NULL;
	grant(runtime);
	do {
		if (t->state == OH_TRANSFER_RUNNING && oh_flow_take(&t->flow, slice)) {
			t->reading++;
			runtime->active = t->next;
			return t;
		}
		t = t->next;
	} while (!only && t != runtime->active);
	return NULL;
}

/* Slices to read, or mapped windows to start. */
static int
has_work(const struct onehop_transfer *transfer)
{
	return transfer->flow.takeable || transfer->flow.startable;
}

static int
more_slices(struct onehop_runtime *runtime)
{
	struct onehop_transfer *t = runtime->active;
	if (!t)
		return 0;
	do {
		if (has_work(t))
			return 1;
		t = t->next;
	} while (t != runtime->active);
	return 0;
}

/* ------------------------------------------------------------------ how things end */

/* A window is closed: what it held is free. */
static void
release(struct onehop_transfer *transfer, const struct oh_window *window)
{
	struct oh_lane *lane = &transfer->device->lane;
	if (window->mapped) {
		transfer->maps[window->block].used = 0;
	} else if (window->staged) {
		lane->free[lane->free_count++] = window->block;
		transfer->blocks_held--;
	} else {
		return;
	}
	wake_one(transfer->runtime);
}

void
oh_transfer_admit(struct onehop_transfer *transfer)
{
	struct onehop_runtime *runtime = transfer->runtime;
	if (runtime->active) {
		transfer->next = runtime->active;
		transfer->prev = runtime->active->prev;
		transfer->prev->next = transfer;
		transfer->next->prev = transfer;
	} else {
		transfer->next = transfer->prev = transfer;
		runtime->active = transfer;
	}
	transfer->state = OH_TRANSFER_RUNNING;
	runtime->in_flight += transfer->gated != 0;
	grant(runtime);
	/* One after the other is kinder, but at the start each wait counts. */
	if (transfer->plan->plan.read_bytes > WAKE_ALL_SLICES * runtime->slice_bytes)
		pthread_cond_broadcast(&runtime->work);
	else
		wake_one(runtime);
	oh_transfer_check_end(transfer);
}

static void
dismiss(struct onehop_transfer *transfer)
{
	struct onehop_runtime *runtime = transfer->runtime;
	if (transfer->next == transfer) {
		runtime->active = NULL;
		return;
	}
	transfer->prev->next = transfer->next;
	transfer->next->prev = transfer->prev;
	if (runtime->active == transfer)
		runtime->active = transfer->next;
}

void
oh_transfer_stop(struct onehop_transfer *transfer, const struct onehop_error *why)
{
	uint32_t window;
	if (!transfer->error.status) {
		transfer->error = *why;
		transfer->stopped_ns = oh_now_ns();
	}
	oh_flow_stop(&transfer->flow);
	while (oh_flow_reap(&transfer->flow, &window))
		release(transfer, &transfer->flow.windows[window]);
}

static onehop_status
check_files(const struct onehop_transfer *transfer, struct onehop_error *error)
{
	for (uint32_t i = 0; i < transfer->plan->file_count; i++) {
		struct onehop_file *file = transfer->plan->files[i];
		onehop_status status = file->ops->unchanged(file->handle, error);
		if (status)
			return status;
	}
	return ONEHOP_OK;
}

void
oh_transfer_check_end(struct onehop_transfer *transfer)
{
	struct onehop_runtime *runtime = transfer->runtime;
	struct onehop_error error;
	if (transfer->state != OH_TRANSFER_RUNNING || !oh_flow_ended(&transfer->flow) ||
	    transfer->reading || transfer->issuing || transfer->gated)
		return;
	transfer->state = OH_TRANSFER_ENDING;
	dismiss(transfer);
	if (!transfer->error.status) {
		pthread_mutex_unlock(&runtime->lock);
		onehop_status status = check_files(transfer, &error);
		pthread_mutex_lock(&runtime->lock);
		if (status)
			transfer->error = error;
	}
	transfer->completion.total_ns = oh_now_ns() - transfer->started_ns;
	transfer->state = OH_TRANSFER_ENDED;
	pthread_cond_broadcast(&transfer->cond);
	wake_one(runtime);
}

/* ------------------------------------------------------------------ copies */

static uint64_t
since_start(const struct onehop_transfer *transfer)
{
	return oh_max(oh_now_ns() - transfer->started_ns, 1);
}

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
	release(transfer, &transfer->flow.windows[window]);
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

/* With the lock held; released while the driver is called. */
static void
start_copies(struct onehop_transfer *transfer, uint32_t window)
{
	struct onehop_runtime *runtime = transfer->runtime;
	struct onehop_error error;
	uint64_t count = 0;
	int mapped = transfer->flow.windows[window].mapped;
	int at_once = (transfer->device->facts.caps & OH_MEMORY_ADDRESSABLE) != 0;
	uint64_t begun_ns = oh_now_ns();
	transfer->issuing++;
	if (!transfer->completion.first_copy_ns)
		transfer->completion.first_copy_ns = since_start(transfer);
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
	transfer->in_flight[slot] = (struct oh_in_flight){mark_of(transfer, window), begun_ns, window};
	if (oh_flow_all_read(&transfer->flow) && !transfer->issuing && transfer->waiters)
		pthread_cond_broadcast(&transfer->cond);
	if (!runtime->polling)
		wake_one(runtime);
}

/* The oldest copy of a transfer, or its gate, to be asked about outside the lock. It stays while
 * polling is set: only the poller takes copies off and opens gates, and a transfer with either does
 * not end. */
struct probe {
	struct onehop_transfer *transfer;
	struct oh_mark *mark;
	struct onehop_error error;
	onehop_status status;
	uint32_t window;
	int done;
};

static uint32_t
collect(struct onehop_runtime *runtime, struct probe probes[POLL_BATCH])
{
	uint32_t count = 0;
	struct onehop_transfer *t = runtime->active;
	if (!t)
		return 0;
	do {
		if ((t->gated || t->in_flight_count) && count < POLL_BATCH) {
			const struct oh_in_flight *oldest = &t->in_flight[t->in_flight_first];
			probes[count].transfer = t;
			probes[count].window = oldest->window;
			probes[count++].mark = t->gated ? t->gate_mark : oldest->mark;
		}
		t = t->next;
	} while (t != runtime->active);
	/* Those that found no room come first the next time. */
	if (count == POLL_BATCH)
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
	grant(transfer->runtime);
	wake_one(transfer->runtime);
	oh_transfer_check_end(transfer);
}

static void
take_off(struct onehop_transfer *transfer, const struct onehop_error *failure)
{
	const struct oh_in_flight *oldest = &transfer->in_flight[transfer->in_flight_first];
	uint32_t index = oldest->window;
	const struct oh_window *window = &transfer->flow.windows[index];
	if (window->mapped)
		count_pinned(transfer->runtime, -(int64_t)slot_of(transfer, index)->map_bytes);
	else
		oh_pace_copied(&transfer->device->lane.pace, oldest->begun_ns, oh_now_ns(),
			       window->end - window->begin);
	transfer->in_flight_first = (transfer->in_flight_first + 1) % transfer->in_flight_most;
	transfer->in_flight_count--;
	transfer->runtime->in_flight--;
	copy_ended(transfer, index, failure);
}

/* One round over the copies in flight, the lock held but for the driver's calls. 1 if any ended. */
static int
poll_round(struct onehop_runtime *runtime, struct probe *probes, uint32_t count)
{
	int any = 0;
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

/* ------------------------------------------------------------------ slices */

/* A slice that was handed to a reader. */
struct pending {
	struct onehop_transfer *transfer;
	struct oh_flow_slice slice;
	uint64_t begun_ns; /* of a probe */
	int used;
	int again; /* it waits to be handed out once more */
};

struct source {
	struct oh_slice_source base;
	struct onehop_runtime *runtime;
	struct onehop_transfer *only; /* NULL for all */
	uint64_t deadline_ns;
	int (*done)(const struct onehop_transfer *);
	struct pending pending[SOURCE_DEPTH];
	uint32_t agains;
};

static void *
memory_of(const struct onehop_transfer *transfer, const struct oh_flow_slice *slice)
{
	const struct oh_window *window = &transfer->flow.windows[slice->window];
	if (window->staged)
		return transfer->device->lane.blocks[window->block].memory +
		       (slice->at - window->base);
	const struct oh_plan *plan = &transfer->plan->plan;
	const struct oh_piece *piece = &plan->pieces[oh_plan_piece_from(plan, slice->at)];
	uint64_t address = transfer->plan->buffers[piece->buffer]->address + piece->buffer_offset +
			   (slice->at - piece->position);
	return (void *)(uintptr_t)address;
}

static void
fill_slice(struct pending *pending, struct oh_slice *slice)
{
	const struct oh_flow_slice *from = &pending->slice;
	slice->file = pending->transfer->plan->files[from->file]->handle;
	slice->offset = from->offset;
	slice->row_bytes = from->row_bytes;
	slice->rows = from->rows;
	slice->row_stride = from->row_stride;
	slice->memory = memory_of(pending->transfer, from);
	slice->token = pending;
	pending->begun_ns = from->probe ? oh_now_ns() : 0;
	slice->direct = from->direct;
	slice->drop = from->drop;
}

static struct pending *
find_pending(struct source *source, int again)
{
	for (uint32_t i = 0; i < SOURCE_DEPTH; i++)
		if (source->pending[i].used == again && source->pending[i].again == again)
			return &source->pending[i];
	return NULL;
}

/* Has the thread that waits something better to do than to read on? With the lock held. */
static int
is_over(const struct source *source)
{
	if (!source->only)
		return source->runtime->stop || source->runtime->touch != NULL;
	return source->done(source->only) ||
	       (source->deadline_ns != UINT64_MAX && oh_now_ns() >= source->deadline_ns);
}

static int
source_take(struct oh_slice_source *base, struct oh_slice *slice)
{
	struct source *source = (struct source *)base;
	struct onehop_runtime *runtime = source->runtime;
	struct pending *pending;
	if (source->agains) {
		pending = find_pending(source, 1);
		pending->again = 0;
		source->agains--;
		fill_slice(pending, slice);
		return 1;
	}
	pending = find_pending(source, 0);
	if (!pending)
		return 0;
	pthread_mutex_lock(&runtime->lock);
	pending->transfer = is_over(source) ? NULL
					    : take_slice(runtime, source->only, &pending->slice);
	/* This thread may be long: another has to go on with what it leaves. */
	int is_left = more_slices(runtime) || (runtime->in_flight && !runtime->polling);
	if (pending->transfer && is_left)
		wake_one(runtime);
	pthread_mutex_unlock(&runtime->lock);
	if (!pending->transfer)
		return 0;
	pending->used = 1;
	fill_slice(pending, slice);
	return 1;
}

/* The name of what lies at a position, for an error. */
static const char *
name_at(const struct onehop_transfer *transfer, uint64_t position, char text[OH_SHOWN + 16])
{
	const struct oh_plan *plan = &transfer->plan->plan;
	uint64_t part = oh_plan_part_from(plan, position);
	text[0] = '\0';
	if (transfer->plan->names && part < plan->part_count) {
		const char *name = transfer->plan->names[plan->parts[part].extent];
		char shown[OH_SHOWN];
		if (name)
			snprintf(text, OH_SHOWN + 16, "tensor %s: ",
				 oh_show(shown, name, strlen(name)));
	}
	return text;
}

static void
read_error(const struct onehop_transfer *transfer, const struct oh_flow_slice *slice,
	   const struct oh_slice_result *result, struct onehop_error *error)
{
	const struct onehop_file *file = transfer->plan->files[slice->file];
	char name[OH_SHOWN + 16];
	name_at(transfer, oh_min(slice->at + result->bytes, slice->end - 1), name);
	if (result->status == ONEHOP_NO_ROUTE) {
		oh_fail(error, ONEHOP_NO_ROUTE,
			"%s: %sthe route direct is forced, but reading %llu bytes at offset %llu by "
			"O_DIRECT is refused",
			file->path, name, (unsigned long long)slice->bytes,
			(unsigned long long)slice->offset);
		oh_remedy(error, "set route to auto");
		return;
	}
	if (result->status) {
		oh_fail_errno(error, result->os_errno, "%s: %sreading %llu bytes at offset %llu failed",
			      file->path, name, (unsigned long long)slice->bytes,
			      (unsigned long long)slice->offset);
		error->status = result->status;
		return;
	}
	oh_fail(error, ONEHOP_FILE_CHANGED,
		"%s: %struncated while it was read: it ends at or before offset %llu, and had %llu "
		"bytes when it was opened",
		file->path, name, (unsigned long long)slice->offset,
		(unsigned long long)file->facts.bytes);
	oh_remedy(error, "load it again when nothing writes to it");
}

/* With the lock held: the counters of a read that ended. */
static void
count_read(struct onehop_transfer *transfer, const struct oh_slice_result *result)
{
	uint64_t now = since_start(transfer);
	if (!transfer->completion.first_read_ns)
		transfer->completion.first_read_ns = now;
	transfer->completion.last_read_ns = now;
	transfer->completion.read_bytes += result->read_bytes;
}

/* Residency was not known: what reads at a disk's speed was not resident, and the rest of it goes
 * past the page cache. */
static void
judge(struct onehop_transfer *transfer, uint64_t bytes, uint64_t ns)
{
	transfer->probe_bytes += bytes;
	transfer->probe_ns += ns;
	if (transfer->probe_bytes >= PROBE_BYTES &&
	    (double)transfer->probe_bytes < (double)transfer->probe_ns * PROBE_BYTES_PER_NS)
		transfer->flow.go_direct = 1;
}

/* A cancelled transfer waits for reads that are under way. If one takes long, it is the storage that
 * hangs, and the user should know where. */
static void
name_slow_read(struct onehop_transfer *transfer, const struct oh_flow_slice *slice)
{
	uint64_t waited = transfer->stopped_ns ? oh_now_ns() - transfer->stopped_ns : 0;
	const char *path = transfer->plan->files[slice->file]->path;
	if (waited < transfer->runtime->patience_ns || transfer->error.status != ONEHOP_CANCELLED)
		return;
	oh_fail(&transfer->error, ONEHOP_CANCELLED,
		"cancelled; %s: a read at offset %llu took %.1f s to return after that", path,
		(unsigned long long)slice->offset, (double)waited / 1e9);
	oh_remedy(&transfer->error, "look at the storage of that file");
}

static int
may_reroute(const struct onehop_transfer *transfer)
{
	return transfer->runtime->options.route == ONEHOP_AUTO;
}

/* O_DIRECT was refused when it came to reading: the slice is taken again, through the page cache. */
static void
reroute(struct source *source, struct pending *pending)
{
	struct onehop_transfer *transfer = pending->transfer;
	pthread_mutex_lock(&source->runtime->lock);
	oh_flow_direct_refused(&transfer->flow, &pending->slice);
	transfer->completion.reasons |= ONEHOP_REASON_NO_DIRECT;
	pthread_mutex_unlock(&source->runtime->lock);
	pending->again = 1;
	source->agains++;
}

static void
source_give(struct oh_slice_source *base, const struct oh_slice *slice,
	    const struct oh_slice_result *result)
{
	struct source *source = (struct source *)base;
	struct pending *pending = slice->token;
	struct onehop_transfer *transfer = pending->transfer;
	struct onehop_runtime *runtime = source->runtime;
	struct onehop_error error;
	/* What came before a failure does not matter: the transfer ends. */
	int ok = result->status == ONEHOP_OK && result->bytes > 0;
	if (result->status == ONEHOP_NO_ROUTE && may_reroute(transfer)) {
		reroute(source, pending);
		return;
	}
	if (!ok)
		read_error(transfer, &pending->slice, result, &error);
	uint64_t probe_ns = pending->begun_ns ? oh_now_ns() - pending->begun_ns : 0;
	pthread_mutex_lock(&runtime->lock);
	count_read(transfer, result);
	if (pending->begun_ns)
		judge(transfer, result->bytes, probe_ns);
	enum oh_flow_act act = oh_flow_read_ended(&transfer->flow, &pending->slice, result->bytes, ok);
	if (act == OH_FLOW_AGAIN) {
		pthread_mutex_unlock(&runtime->lock);
		pending->again = 1;
		source->agains++;
		return;
	}
	pending->used = 0;
	transfer->reading--;
	name_slow_read(transfer, &pending->slice);
	if (act == OH_FLOW_FREE)
		release(transfer, &transfer->flow.windows[pending->slice.window]);
	if (!ok)
		oh_transfer_stop(transfer, &error);
	if (act == OH_FLOW_COPY)
		start_copies(transfer, pending->slice.window);
	else if (act == OH_FLOW_FREE && transfer->waiters)
		pthread_cond_broadcast(&transfer->cond);
	oh_transfer_check_end(transfer);
	pthread_mutex_unlock(&runtime->lock);
}

static void
source_init(struct source *source, struct onehop_runtime *runtime)
{
	memset(source, 0, sizeof *source);
	source->base.take = source_take;
	source->base.give = source_give;
	source->runtime = runtime;
}

/* ------------------------------------------------------------------ threads */

/* Looks after copies in flight until one ends, or the thread has something better to do: slices to
 * read, or what is_over() says. Returns 0 if there are none, or another thread does it. With the
 * lock held. */
static int
poll_copies(struct onehop_runtime *runtime, const struct source *source)
{
	struct probe probes[POLL_BATCH];
	uint64_t begun_ns = oh_now_ns(), last_ns = runtime->poll_ns;
	struct timespec nap = {0, (long)oh_min(oh_max(last_ns / 4, POLL_SLEEP_NS), POLL_SLEEP_MOST_NS)};
	uint32_t count, spins = last_ns > POLL_SLEEP_MOST_NS ? 0 : POLL_SPINS;
	if (runtime->polling || !(count = collect(runtime, probes)))
		return 0;
	runtime->polling = 1;
	for (uint32_t round = 0; count && !poll_round(runtime, probes, count); round++) {
		if (round >= spins) {
			pthread_mutex_unlock(&runtime->lock);
			oh_sys.nanosleep(&nap, NULL);
			pthread_mutex_lock(&runtime->lock);
			if (nap.tv_nsec < POLL_SLEEP_MOST_NS)
				nap.tv_nsec += POLL_SLEEP_NS;
		}
		int slices = source->only ? has_work(source->only) : more_slices(runtime);
		if (slices || is_over(source))
			break;
		count = collect(runtime, probes);
	}
	runtime->poll_ns = runtime->active ? oh_now_ns() - begun_ns : 0;
	runtime->polling = 0;
	return 1;
}

static void
touch_chunk(struct oh_touch *touch, uint64_t at)
{
	uint64_t end = oh_min(at + TOUCH_BYTES, touch->bytes);
	for (; at < end; at += 4096)
		*(volatile uint8_t *)(touch->memory + at) = 0;
}

/* With the lock held. */
static void
touch_some(struct onehop_runtime *runtime, struct oh_touch *touch)
{
	while (touch->next < touch->bytes) {
		uint64_t at = touch->next;
		touch->next = oh_min(at + TOUCH_BYTES, touch->bytes);
		pthread_mutex_unlock(&runtime->lock);
		touch_chunk(touch, at);
		pthread_mutex_lock(&runtime->lock);
		touch->done += oh_min(TOUCH_BYTES, touch->bytes - at);
		if (touch->done == touch->bytes)
			pthread_cond_broadcast(&runtime->touched);
	}
	if (runtime->touch == touch)
		runtime->touch = NULL;
}

void
oh_touch_help(struct onehop_runtime *runtime, struct oh_touch *touch)
{
	touch_some(runtime, touch);
	while (touch->done < touch->bytes)
		pthread_cond_wait(&runtime->touched, &runtime->lock);
}

/* Starts the copies of a mapped window, if there is one. With the lock held. */
static int
start_mapped(struct onehop_runtime *runtime, struct onehop_transfer *only)
{
	struct onehop_transfer *t = only ? only : runtime->active;
	uint32_t window;
	if (!t || !runtime->active)
		return 0;
	do {
		if (t->state == OH_TRANSFER_RUNNING && oh_flow_take_map(&t->flow, &window)) {
			if (more_slices(runtime))
				wake_one(runtime);
			start_copies(t, window);
			return 1;
		}
		t = t->next;
	} while (!only && t != runtime->active);
	return 0;
}

void *
oh_worker_main(void *argument)
{
	struct onehop_runtime *runtime = argument;
	struct source source;
	source_init(&source, runtime);
	pthread_mutex_lock(&runtime->lock);
	while (!runtime->stop) {
		pthread_mutex_unlock(&runtime->lock);
		oh_storage_local.read(&source.base);
		pthread_mutex_lock(&runtime->lock);
		if (runtime->touch) {
			touch_some(runtime, runtime->touch);
			continue;
		}
		grant(runtime);
		if (runtime->stop || start_mapped(runtime, NULL) || more_slices(runtime) ||
		    poll_copies(runtime, &source))
			continue;
		runtime->idle++;
		pthread_cond_wait(&runtime->work, &runtime->lock);
		runtime->idle--;
	}
	pthread_mutex_unlock(&runtime->lock);
	return NULL;
}

/* Sleeps until something happens to the transfer. 0 if the deadline passed. */
static int
sleep_on(struct onehop_transfer *transfer, uint64_t deadline_ns)
{
	pthread_mutex_t *lock = &transfer->runtime->lock;
	int late = 0;
	transfer->waiters++;
	if (deadline_ns == UINT64_MAX) {
		pthread_cond_wait(&transfer->cond, lock);
	} else {
		struct timespec until = {(time_t)(deadline_ns / 1000000000u),
					 (long)(deadline_ns % 1000000000u)};
		late = pthread_cond_timedwait(&transfer->cond, lock, &until) == ETIMEDOUT;
	}
	transfer->waiters--;
	return !late;
}

int
oh_help(struct onehop_transfer *transfer, uint64_t deadline_ns,
	int (*done)(const struct onehop_transfer *))
{
	struct onehop_runtime *runtime = transfer->runtime;
	struct source source;
	source_init(&source, runtime);
	source.only = transfer;
	source.deadline_ns = deadline_ns;
	source.done = done;
	while (!done(transfer) && (deadline_ns == UINT64_MAX || oh_now_ns() < deadline_ns)) {
		grant(runtime);
		if (start_mapped(runtime, transfer))
			continue;
		if (transfer->state == OH_TRANSFER_RUNNING && transfer->flow.takeable) {
			pthread_mutex_unlock(&runtime->lock);
			oh_storage_local.read(&source.base);
			pthread_mutex_lock(&runtime->lock);
		} else if (!poll_copies(runtime, &source)) {
			sleep_on(transfer, deadline_ns);
		}
	}
	/* What this thread looked after goes on without it. */
	if (runtime->in_flight && !runtime->polling)
		wake_one(runtime);
	return done(transfer);
}
