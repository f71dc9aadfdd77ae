/* Who gets what next: blocks, places and slices; how transfers begin and end.
 *
 * Free blocks go to the transfer that holds the fewest; slices are taken from the active transfers
 * in turn. Where several processes load at once, less of the ring is used (lane.c). The end of a
 * transfer is found by whoever handles its last event.
 */
#include "runtime/schedule.h"

#include <assert.h>

/* A transfer of more slices wakes all workers when it starts. */
#define WAKE_ALL_SLICES 8

void
oh_wake_one(struct onehop_runtime *runtime)
{
	if (runtime->idle) {
		pthread_cond_signal(&runtime->work);
		return;
	}
	for (struct onehop_transfer *t = runtime->active; t; t = oh_active_after(runtime, NULL, t)) {
		if (t->waiters) {
			pthread_cond_broadcast(&t->cond);
			return;
		}
	}
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
has_free_block(const struct onehop_transfer *transfer)
{
	const struct oh_lane *lane = &transfer->device->lane;
	return lane->free_count &&
	       lane->made - lane->free_count < oh_lane_share(transfer->runtime, lane);
}

/* The transfer that should get the next free block of its lane. */
static struct onehop_transfer *
most_in_need(struct onehop_runtime *runtime)
{
	struct onehop_transfer *best = NULL;
	for (struct onehop_transfer *t = runtime->active; t; t = oh_active_after(runtime, NULL, t)) {
		if (t->gated || oh_flow_wants(&t->flow) != OH_FLOW_WANTS_BLOCK)
			continue;
		if (!has_free_block(t))
			note_starving(t);
		else if (!best || t->blocks_held < best->blocks_held)
			best = t;
	}
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

void
oh_grant(struct onehop_runtime *runtime)
{
	struct onehop_transfer *t;
	for (t = runtime->active; t; t = oh_active_after(runtime, NULL, t)) {
		enum oh_flow_want want;
		while (!t->gated && (want = oh_flow_wants(&t->flow)) >= OH_FLOW_WANTS_PLACE)
			oh_flow_open(&t->flow, 0, want == OH_FLOW_WANTS_MAP ? take_slot(t) : 0);
	}
	while ((t = most_in_need(runtime))) {
		struct oh_lane *lane = &t->device->lane;
		note_served(t);
		oh_flow_open(&t->flow, 0, lane->free[--lane->free_count]);
		t->blocks_held++;
	}
}

struct onehop_transfer *
oh_take_slice(struct onehop_runtime *runtime, struct onehop_transfer *only,
	      struct oh_flow_slice *slice)
{
	struct onehop_transfer *t = only ? only : runtime->active;
	oh_grant(runtime);
	for (; t; t = oh_active_after(runtime, only, t)) {
		if (t->state == OH_TRANSFER_RUNNING && oh_flow_take(&t->flow, slice)) {
			t->reading++;
			runtime->active = t->next;
			return t;
		}
	}
	return NULL;
}

int
oh_has_work(const struct onehop_transfer *transfer)
{
	return transfer->flow.takeable || transfer->flow.startable;
}

int
oh_more_slices(struct onehop_runtime *runtime)
{
	struct onehop_transfer *t = runtime->active;
	while (t && !oh_has_work(t))
		t = oh_active_after(runtime, NULL, t);
	return t != NULL;
}

void
oh_release(struct onehop_transfer *transfer, const struct oh_window *window)
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
	oh_wake_one(transfer->runtime);
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
	oh_grant(runtime);
	/* One after the other is kinder, but at the start each wait counts. */
	if (transfer->plan->plan.read_bytes > WAKE_ALL_SLICES * runtime->slice_bytes)
		pthread_cond_broadcast(&runtime->work);
	else
		oh_wake_one(runtime);
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
		oh_release(transfer, &transfer->flow.windows[window]);
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
	oh_wake_one(runtime);
}
