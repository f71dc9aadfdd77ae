/* The ceiling: pinned copies to a device, nothing else in the way.
 *
 * Pieces come from a pinned region and go to a device allocation, both larger than any one cache
 * trick would like; as many are in flight as the region holds.
 */
#include "runtime/internal.h"

#include "base/arith.h"
#include "base/sys.h"

#include <stdlib.h>
#include <string.h>

#define REGION_BYTES (UINT64_C(64) << 20)
#define ROUNDS 3

struct measure {
	struct oh_rt_device *device;
	struct oh_region *region;
	struct oh_queue *queue;
	struct oh_mark *mark;
	uint64_t address;
	uint64_t piece_bytes;
	uint64_t span; /* of the region and the allocation: whole pieces */
};

static onehop_status
wait_for(struct measure *m, struct onehop_error *error)
{
	int done = 0;
	onehop_status status = ONEHOP_OK;
	while (!status && !done)
		status = m->device->ops->poll(m->device->handle, m->mark, &done, error);
	return status;
}

static onehop_status
run(struct measure *m, uint64_t total, double *seconds, struct onehop_error *error)
{
	onehop_status status = ONEHOP_OK;
	uint64_t start = oh_now_ns();
	for (uint64_t done = 0; done < total && !status; done += m->piece_bytes) {
		uint64_t at = done % m->span;
		struct oh_copy copy = {
			.destination = m->address + at,
			.source = (uint8_t *)m->region->memory + at,
			.bytes = m->piece_bytes,
		};
		status = m->device->ops->copy(m->device->handle, m->queue, m->mark, &copy, 1, error);
	}
	if (!status)
		status = wait_for(m, error);
	*seconds = (double)(oh_now_ns() - start) / 1e9;
	return status;
}

static onehop_status
best_of(struct measure *m, uint64_t total, double *bytes_per_s, struct onehop_error *error)
{
	double best = 0, seconds;
	uint64_t pieces = oh_max((total + m->piece_bytes - 1) / m->piece_bytes, 1);
	/* Once for nothing: the first copies of a queue are slower. */
	onehop_status status = run(m, m->span, &seconds, error);
	for (int i = 0; i < ROUNDS && !status; i++) {
		status = run(m, pieces * m->piece_bytes, &seconds, error);
		double rate = (double)(pieces * m->piece_bytes) / seconds;
		best = rate > best ? rate : best;
	}
	if (!status)
		*bytes_per_s = best;
	return status;
}

onehop_status
onehop_measure_copy(struct onehop_runtime *runtime, const char *name, uint64_t piece_bytes,
		    uint64_t total_bytes, double *bytes_per_s, struct onehop_error *error)
{
	struct measure m = {.piece_bytes = piece_bytes};
	if (!runtime || !name || !bytes_per_s || !piece_bytes || !total_bytes)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "an argument is NULL or 0");
	if (oh_forked(runtime, error))
		return ONEHOP_FORKED;
	onehop_status status = oh_device_get(runtime, name, &m.device, error);
	if (status)
		return status;
	const struct oh_memory_ops *ops = m.device->ops;
	struct oh_device *handle = m.device->handle;
	if (m.device->facts.caps & OH_MEMORY_ADDRESSABLE)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "%s has no link to measure", name);
	status = oh_workers_start(runtime, runtime->threads_most, runtime->threads_most,
				  error);
	if (status)
		return status;
	m.span = oh_max(REGION_BYTES / piece_bytes, 2) * piece_bytes;
	status = oh_region_make(runtime, m.device, m.span, &m.region, error);
	if (status)
		return status;
	status = ops->alloc(handle, m.span, &m.address, error);
	if (status)
		goto free_region;
	status = ops->queue_create(handle, &m.queue, error);
	if (status)
		goto free_memory;
	status = ops->mark_create(handle, &m.mark, error);
	if (status)
		goto destroy_queue;
	status = best_of(&m, total_bytes, bytes_per_s, error);
	ops->mark_destroy(handle, m.mark);
destroy_queue:
	ops->queue_destroy(handle, m.queue);
free_memory:
	ops->free(handle, m.address, m.span);
free_region:
	oh_region_free(runtime, m.device, m.region);
	return status;
}
