/* Transfers: the public face of the schedule.
 *
 * prepare allocates all that a run needs; start only resets it. A transfer that was started must end
 * before it is started or destroyed again. Its first failure is kept until the next start.
 */
#include "runtime/internal.h"

#include "base/arith.h"
#include "base/give.h"
#include "base/sys.h"
#include "base/thread.h"

#include <stdlib.h>
#include <string.h>

/* Blocks and workers that the plan can use. */
static onehop_status
reserve(struct onehop_plan *plan, uint64_t *blocks, struct onehop_error *error)
{
	struct onehop_runtime *runtime = plan->runtime;
	uint64_t span = plan->plan.staged_span;
	uint64_t slices = plan->plan.read_bytes / runtime->slice_bytes;
	uint64_t most = plan->on_network ? runtime->network_threads_most : runtime->threads_most;
	onehop_status status = oh_workers_start(runtime, oh_max(slices, 1), most, error);
	*blocks = span ? span / runtime->block_bytes + 1 : 0;
	/* Without a block to make it still makes the queue, which mapped windows use. */
	return status ? status : oh_lane_reserve(runtime, plan->device, *blocks, error);
}

/* Only plans with mapped segments need them. */
static onehop_status
make_map_slots(struct onehop_transfer *transfer, struct onehop_error *error)
{
	struct onehop_plan *plan = transfer->plan;
	const struct oh_memory_ops *ops = transfer->device->ops;
	onehop_status status = ONEHOP_OK;
	for (uint64_t i = 0; i < plan->plan.segment_count && !status; i++) {
		const struct oh_segment *segment = &plan->plan.segments[i];
		if (segment->route != ONEHOP_ROUTE_MAPPED)
			continue;
		for (uint32_t k = 0; k < OH_FLOW_MAPS && !status; k++)
			if (!transfer->maps[k].mark)
				status = ops->mark_create(transfer->device->handle,
							  &transfer->maps[k].mark, error);
	}
	return status;
}

static void
destroy_map_slots(struct onehop_transfer *transfer)
{
	for (uint32_t k = 0; k < OH_FLOW_MAPS; k++)
		if (transfer->maps[k].mark)
			transfer->device->ops->mark_destroy(transfer->device->handle,
							    transfer->maps[k].mark);
}

onehop_status
onehop_transfer_prepare(struct onehop_plan *plan, struct onehop_transfer **out,
			struct onehop_error *error)
{
	struct onehop_runtime *runtime = plan->runtime;
	const struct oh_memory_ops *ops = plan->device->ops;
	if (oh_forked(runtime, error))
		return ONEHOP_FORKED;
	uint64_t blocks;
	onehop_status status = reserve(plan, &blocks, error);
	if (status)
		return status;
	uint32_t most = (uint32_t)oh_max(plan->device->lane.most, 1);
	uint32_t in_flight = most + OH_FLOW_MAPS;
	struct onehop_transfer *transfer = calloc(1, sizeof *transfer);
	if (!transfer) {
		status = oh_fail_no_memory(error, sizeof *transfer, "a transfer");
		goto give_up;
	}
	transfer->blocks_wanted = blocks;
	transfer->runtime = runtime;
	transfer->plan = plan;
	transfer->device = plan->device;
	transfer->in_flight_most = in_flight;
	transfer->in_flight = calloc(in_flight, sizeof *transfer->in_flight);
	if (!transfer->in_flight) {
		status = oh_fail_no_memory(error, in_flight * sizeof *transfer->in_flight, "a transfer");
		goto free_transfer;
	}
	/* One window more than blocks, so that a transfer that lacks a block says so. */
	status = oh_flow_init(&transfer->flow, &plan->plan, runtime->block_bytes,
			      runtime->slice_bytes, most + 1, error);
	if (status)
		goto free_in_flight;
	status = ops->queue_create(plan->device->handle, &transfer->gate_queue, error);
	if (status)
		goto free_flow;
	status = ops->mark_create(plan->device->handle, &transfer->gate_mark, error);
	if (status)
		goto destroy_queue;
	status = make_map_slots(transfer, error);
	if (status)
		goto destroy_slots;
	status = oh_cond_init(&transfer->cond, error);
	if (status)
		goto destroy_slots;
	*out = transfer;
	return ONEHOP_OK;
destroy_slots:
	destroy_map_slots(transfer);
	ops->mark_destroy(plan->device->handle, transfer->gate_mark);
destroy_queue:
	ops->queue_destroy(plan->device->handle, transfer->gate_queue);
free_flow:
	oh_flow_free(&transfer->flow);
free_in_flight:
	free(transfer->in_flight);
free_transfer:
	free(transfer);
give_up:
	oh_lane_give_up(runtime, plan->device, blocks);
	return status;
}

void
onehop_start_options_init(struct onehop_start_options *options)
{
	*options = (struct onehop_start_options){.size = sizeof *options};
}

/* The lane's queue is shared, so that it cannot wait for a caller's stream: the host does. A start
 * that was cancelled or failed may have left our own queue waiting for its stream; then another
 * takes its place. */
static onehop_status
close_gate(struct onehop_transfer *transfer, uint64_t stream, struct onehop_error *error)
{
	const struct oh_memory_ops *ops = transfer->device->ops;
	struct oh_device *handle = transfer->device->handle;
	struct oh_queue *fresh;
	onehop_status status;
	if (transfer->gate_used) {
		status = ops->queue_create(handle, &fresh, error);
		if (status)
			return status;
		ops->queue_destroy(handle, transfer->gate_queue);
		transfer->gate_queue = fresh;
	}
	transfer->gate_used = 1;
	status = ops->queue_after(handle, transfer->gate_queue, stream, error);
	if (!status)
		status = ops->copy(handle, transfer->gate_queue, transfer->gate_mark, NULL, 0, error);
	return status;
}

static onehop_status
context_gone(const struct onehop_transfer *transfer, struct onehop_error *error)
{
	oh_fail(error, ONEHOP_DEVICE_LOST,
		"the context of %s that this transfer was prepared in is gone",
		transfer->device->name);
	oh_remedy(error, "allocate and prepare it again");
	return ONEHOP_DEVICE_LOST;
}

static onehop_status
before_start(struct onehop_transfer *transfer, const struct onehop_start_options *options,
	     struct onehop_error *error)
{
	struct oh_rt_device *device = transfer->device;
	if (!device->ops->alive(device->handle))
		return context_gone(transfer, error);
	if (options && options->flags & ~(uint32_t)ONEHOP_START_AFTER_STREAM)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "unknown start flags 0x%x",
			       options->flags);
	if (options && options->flags & ONEHOP_START_AFTER_STREAM)
		return close_gate(transfer, options->after_stream, error);
	return ONEHOP_OK;
}

static int
has_ended(const struct onehop_transfer *transfer)
{
	return transfer->state == OH_TRANSFER_ENDED || transfer->state == OH_TRANSFER_IDLE;
}

onehop_status
onehop_transfer_start(struct onehop_transfer *transfer, const struct onehop_start_options *options,
		      struct onehop_error *error)
{
	struct onehop_runtime *runtime = transfer->runtime;
	if (oh_forked(runtime, error))
		return ONEHOP_FORKED;
	pthread_mutex_lock(&runtime->lock);
	int idle = has_ended(transfer);
	pthread_mutex_unlock(&runtime->lock);
	if (!idle)
		return oh_fail(error, ONEHOP_BUSY, "the transfer runs already");
	onehop_status status = before_start(transfer, options, error);
	if (status)
		return status;
	oh_crowd_enter(transfer);
	pthread_mutex_lock(&runtime->lock);
	if (transfer->device->dead) { /* and its ring may be gone */
		pthread_mutex_unlock(&runtime->lock);
		oh_crowd_exit(transfer);
		return context_gone(transfer, error);
	}
	memset(&transfer->completion, 0, sizeof transfer->completion);
	transfer->probe_bytes = transfer->probe_ns = 0;
	transfer->error.status = ONEHOP_OK;
	transfer->started_ns = oh_now_ns();
	transfer->starved_since_ns = 0;
	transfer->stopped_ns = 0;
	transfer->gated = options && options->flags & ONEHOP_START_AFTER_STREAM;
	oh_flow_reset(&transfer->flow);
	/* Small first windows are for a link that is idle. */
	const struct oh_lane *lane = &transfer->device->lane;
	if (lane->free_count < lane->made)
		transfer->flow.reach = runtime->block_bytes;
	oh_transfer_admit(transfer);
	pthread_mutex_unlock(&runtime->lock);
	return ONEHOP_OK;
}

static uint64_t
deadline(uint64_t timeout_ns)
{
	uint64_t at;
	return oh_add(oh_now_ns(), timeout_ns, &at) ? UINT64_MAX : at;
}

/* The transfer's own failure, handed on. */
static onehop_status
outcome(const struct onehop_transfer *transfer, struct onehop_error *error)
{
	if (transfer->error.status && error)
		*error = transfer->error;
	return transfer->error.status;
}

static int
has_arrival(const struct onehop_transfer *transfer)
{
	return has_ended(transfer) || transfer->flow.arrived_given < transfer->flow.arrived_count;
}

static onehop_status
never_started(struct onehop_error *error)
{
	return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "the transfer was never started");
}

onehop_status
onehop_transfer_arrivals(struct onehop_transfer *transfer, uint64_t timeout_ns, uint64_t *extents,
			 uint64_t capacity, uint64_t *count, struct onehop_error *error)
{
	struct onehop_runtime *runtime = transfer->runtime;
	onehop_status status = ONEHOP_OK;
	uint64_t given = 0;
	if (oh_forked(runtime, error))
		return ONEHOP_FORKED;
	if (!extents || !capacity || !count)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "there is no room for an arrival");
	uint64_t until = deadline(timeout_ns);
	pthread_mutex_lock(&runtime->lock);
	if (transfer->state == OH_TRANSFER_IDLE)
		status = never_started(error);
	else if (!oh_help(transfer, until, has_arrival))
		status = oh_fail(error, ONEHOP_TIMED_OUT, "no extent arrived in time");
	while (!status && given < capacity && oh_flow_next_arrival(&transfer->flow, &extents[given]))
		given++;
	if (!status && !given) {
		status = outcome(transfer, error);
		if (!status)
			status = oh_fail(error, ONEHOP_END, "all extents have arrived");
	}
	int over = has_ended(transfer);
	pthread_mutex_unlock(&runtime->lock);
	if (over)
		oh_crowd_exit(transfer);
	if (!status)
		*count = given;
	return status;
}

onehop_status
onehop_transfer_next(struct onehop_transfer *transfer, uint64_t timeout_ns, uint64_t *extent,
		     struct onehop_error *error)
{
	uint64_t count;
	return onehop_transfer_arrivals(transfer, timeout_ns, extent, 1, &count, error);
}

static void
complete(const struct onehop_transfer *transfer, struct onehop_completion *completion)
{
	struct onehop_completion full = transfer->completion;
	full.reasons |= transfer->plan->plan.reasons;
	full.bytes = transfer->flow.landed;
	uint64_t mapped = oh_min(transfer->flow.mapped_bytes, full.bytes);
	uint64_t direct = oh_min(transfer->flow.direct_bytes, full.bytes - mapped);
	full.route_bytes[ONEHOP_ROUTE_MAPPED] = mapped;
	full.route_bytes[ONEHOP_ROUTE_DIRECT] = direct;
	full.route_bytes[ONEHOP_ROUTE_BUFFERED] = full.bytes - mapped - direct;
	full.ring_bytes = (uint64_t)transfer->device->lane.made *
			  transfer->runtime->block_bytes;
	oh_give(completion, &full, sizeof full);
}

onehop_status
onehop_transfer_wait(struct onehop_transfer *transfer, uint64_t timeout_ns,
		     struct onehop_completion *completion, struct onehop_error *error)
{
	struct onehop_runtime *runtime = transfer->runtime;
	onehop_status status;
	if (oh_forked(runtime, error))
		return ONEHOP_FORKED;
	uint64_t until = deadline(timeout_ns);
	pthread_mutex_lock(&runtime->lock);
	if (transfer->state == OH_TRANSFER_IDLE) {
		status = never_started(error);
	} else if (!oh_help(transfer, until, has_ended)) {
		status = oh_fail(error, ONEHOP_TIMED_OUT, "the transfer has not ended in time");
	} else {
		status = outcome(transfer, error);
		if (completion)
			complete(transfer, completion);
	}
	int over = has_ended(transfer);
	pthread_mutex_unlock(&runtime->lock);
	if (over)
		oh_crowd_exit(transfer);
	return status;
}

void
onehop_transfer_cancel(struct onehop_transfer *transfer)
{
	struct onehop_runtime *runtime = transfer->runtime;
	struct onehop_error why;
	if (oh_forked(runtime, NULL))
		return;
	oh_fail(&why, ONEHOP_CANCELLED, "cancelled");
	pthread_mutex_lock(&runtime->lock);
	if (transfer->state == OH_TRANSFER_RUNNING) {
		oh_transfer_stop(transfer, &why);
		pthread_cond_broadcast(&transfer->cond);
		oh_transfer_check_end(transfer);
	}
	pthread_mutex_unlock(&runtime->lock);
}

onehop_status
onehop_transfer_progress(struct onehop_transfer *transfer, struct onehop_progress *progress)
{
	struct onehop_runtime *runtime = transfer->runtime;
	if (oh_forked(runtime, NULL))
		return ONEHOP_FORKED;
	struct onehop_progress full = {.bytes_total = transfer->plan->plan.bytes};
	pthread_mutex_lock(&runtime->lock);
	full.running = !has_ended(transfer);
	full.bytes_landed = transfer->flow.landed;
	pthread_mutex_unlock(&runtime->lock);
	return oh_give(progress, &full, sizeof full);
}

static int
all_given(const struct onehop_transfer *transfer)
{
	return has_ended(transfer) ||
	       (oh_flow_all_read(&transfer->flow) && transfer->issuing == 0);
}

onehop_status
onehop_transfer_join(struct onehop_transfer *transfer, uint64_t stream, struct onehop_error *error)
{
	struct onehop_runtime *runtime = transfer->runtime;
	struct oh_rt_device *device = transfer->device;
	if (oh_forked(runtime, error))
		return ONEHOP_FORKED;
	pthread_mutex_lock(&runtime->lock);
	onehop_status status = transfer->state == OH_TRANSFER_IDLE ? never_started(error) : ONEHOP_OK;
	if (!status) {
		oh_help(transfer, UINT64_MAX, all_given);
		status = outcome(transfer, error);
	}
	pthread_mutex_unlock(&runtime->lock);
	if (status || !device->lane.queue)
		return status;
	return device->ops->queue_join(device->handle, device->lane.queue, stream, error);
}

void
onehop_transfer_destroy(struct onehop_transfer *transfer)
{
	if (!transfer || oh_forked(transfer->runtime, NULL))
		return;
	struct onehop_runtime *runtime = transfer->runtime;
	onehop_transfer_cancel(transfer);
	pthread_mutex_lock(&runtime->lock);
	oh_help(transfer, UINT64_MAX, has_ended);
	pthread_mutex_unlock(&runtime->lock);
	oh_crowd_exit(transfer);
	destroy_map_slots(transfer);
	transfer->device->ops->mark_destroy(transfer->device->handle, transfer->gate_mark);
	transfer->device->ops->queue_destroy(transfer->device->handle, transfer->gate_queue);
	pthread_cond_destroy(&transfer->cond);
	oh_lane_give_up(runtime, transfer->device, transfer->blocks_wanted);
	oh_flow_free(&transfer->flow);
	free(transfer->in_flight);
	free(transfer);
}
