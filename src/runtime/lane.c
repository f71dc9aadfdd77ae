/* Rings: staging memory, made as needed and kept.
 *
 * A region is anonymous memory with huge pages advised, touched by all workers at once, then pinned
 * in one call: ten times quicker than asking the driver for pinned memory. A child of fork never
 * sees it. Regions go with the device.
 */
#include "runtime/internal.h"

#include "base/arith.h"
#include "base/sys.h"
#include "machine/crowd.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE (UINT64_C(2) << 20)
/* What the rings of all processes may hold together: more does not fit the last-level cache, and
 * costs a quarter of the rate. Measured: docs/performance.md. */
#define TOGETHER_BYTES (UINT64_C(128) << 20)
/* The processes are counted this often. */
#define CROWD_NS 20000000

/* Memory aligned to a huge page. */
static void *
map_aligned(uint64_t bytes)
{
	uint64_t span = bytes + HUGE_PAGE;
	uint8_t *at = oh_sys.mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return NULL;
	uint64_t lead = (HUGE_PAGE - (uintptr_t)at % HUGE_PAGE) % HUGE_PAGE;
	if (lead)
		oh_sys.munmap(at, lead);
	if (span - lead - bytes)
		oh_sys.munmap(at + lead + bytes, span - lead - bytes);
	/* Advice: it works, slower, without. */
	oh_sys.madvise(at + lead, bytes, MADV_HUGEPAGE);
	oh_sys.madvise(at + lead, bytes, MADV_DONTFORK);
	return at + lead;
}

void
oh_touch(struct onehop_runtime *runtime, void *memory, uint64_t bytes)
{
	struct oh_touch work = {.memory = memory, .bytes = bytes};
	pthread_mutex_lock(&runtime->lock);
	if (runtime->idle && bytes > HUGE_PAGE) {
		runtime->touch = &work;
		pthread_cond_broadcast(&runtime->work);
	}
	oh_touch_help(runtime, &work);
	runtime->touch = NULL;
	pthread_mutex_unlock(&runtime->lock);
}

onehop_status
oh_region_make(struct onehop_runtime *runtime, struct oh_rt_device *device, uint64_t bytes,
	       struct oh_region **out, struct onehop_error *error)
{
	onehop_status status;
	struct oh_region *region = calloc(1, sizeof *region);
	if (!region)
		return oh_fail_no_memory(error, sizeof *region, "the ring");
	region->bytes = bytes;
	region->memory = map_aligned(bytes);
	if (!region->memory) {
		status = oh_fail_no_memory(error, bytes, "staging blocks");
		oh_remedy(error, "lower ring_bytes or block_bytes");
		goto free_region;
	}
	oh_touch(runtime, region->memory, bytes);
	if (!(device->facts.caps & OH_MEMORY_ADDRESSABLE)) {
		status = device->ops->pin(device->handle, region->memory, bytes, error);
		if (status)
			goto unmap;
		region->pinned_bytes = bytes;
	}
	pthread_mutex_lock(&runtime->lock);
	runtime->pinned_bytes += region->pinned_bytes;
	runtime->pinned_peak_bytes = oh_max(runtime->pinned_peak_bytes, runtime->pinned_bytes);
	pthread_mutex_unlock(&runtime->lock);
	*out = region;
	return ONEHOP_OK;
unmap:
	oh_sys.munmap(region->memory, bytes);
free_region:
	free(region);
	return status;
}

void
oh_region_free(struct onehop_runtime *runtime, struct oh_rt_device *device,
	       struct oh_region *region)
{
	if (region->pinned_bytes)
		device->ops->unpin(device->handle, region->memory, region->bytes);
	pthread_mutex_lock(&runtime->lock);
	runtime->pinned_bytes -= region->pinned_bytes;
	pthread_mutex_unlock(&runtime->lock);
	oh_sys.munmap(region->memory, region->bytes);
	free(region);
}

static onehop_status
prepare_lane(struct onehop_runtime *runtime, struct oh_rt_device *device,
	     struct onehop_error *error)
{
	struct oh_lane *lane = &device->lane;
	onehop_status status;
	if (lane->most)
		return ONEHOP_OK;
	status = device->ops->queue_create(device->handle, &lane->queue, error);
	if (status)
		return status;
	uint64_t most = oh_max(runtime->ring_bytes / runtime->block_bytes, 1);
	lane->blocks = calloc(most, sizeof *lane->blocks);
	lane->free = calloc(most, sizeof *lane->free);
	if (!lane->blocks || !lane->free) {
		free(lane->blocks);
		free(lane->free);
		device->ops->queue_destroy(device->handle, lane->queue);
		memset(lane, 0, sizeof *lane);
		return oh_fail_no_memory(error, most * sizeof *lane->blocks, "the ring");
	}
	lane->most = (uint32_t)most;
	return ONEHOP_OK;
}

/* How many more blocks the pinned budget allows, and what is used of it. */
static uint64_t
budget(struct onehop_runtime *runtime, const struct oh_rt_device *device, uint64_t *used)
{
	uint64_t limit = runtime->options.pinned_limit_bytes;
	pthread_mutex_lock(&runtime->lock);
	*used = runtime->pinned_bytes;
	pthread_mutex_unlock(&runtime->lock);
	if (device->facts.caps & OH_MEMORY_ADDRESSABLE)
		return UINT64_MAX;
	return (limit > *used ? limit - *used : 0) / runtime->block_bytes;
}

static onehop_status
add_blocks(struct onehop_runtime *runtime, struct oh_rt_device *device, uint32_t count,
	   struct onehop_error *error)
{
	struct oh_lane *lane = &device->lane;
	struct oh_region *region;
	uint64_t block_bytes = runtime->block_bytes;
	struct oh_block *blocks = lane->blocks + lane->made;
	uint32_t marks = 0;
	onehop_status status = oh_region_make(runtime, device, block_bytes * count, &region, error);
	if (status)
		return status;
	for (; marks < count; marks++) {
		blocks[marks].memory = (uint8_t *)region->memory + marks * block_bytes;
		status = device->ops->mark_create(device->handle, &blocks[marks].mark, error);
		if (status)
			goto destroy_marks;
	}
	region->next = lane->regions;
	lane->regions = region;
	pthread_mutex_lock(&runtime->lock);
	for (uint32_t i = 0; i < count; i++)
		lane->free[lane->free_count++] = lane->made + i;
	lane->made += count;
	pthread_mutex_unlock(&runtime->lock);
	return ONEHOP_OK;
destroy_marks:
	while (marks-- > 0)
		device->ops->mark_destroy(device->handle, blocks[marks].mark);
	oh_region_free(runtime, device, region);
	return status;
}

onehop_status
oh_lane_reserve(struct onehop_runtime *runtime, struct oh_rt_device *device, uint64_t want,
		struct onehop_error *error)
{
	struct oh_lane *lane = &device->lane;
	pthread_mutex_lock(&runtime->ring_lock);
	onehop_status status = prepare_lane(runtime, device, error);
	if (status)
		goto unlock;
	uint64_t target = oh_min(lane->wanted + want, lane->most);
	uint64_t missing = target > lane->made ? target - lane->made : 0;
	uint64_t used, count = oh_min(missing, budget(runtime, device, &used));
	if (count)
		status = add_blocks(runtime, device, (uint32_t)count, error);
	else if (missing && lane->made == 0) {
		status = oh_fail(error, ONEHOP_LIMIT,
				 "one staging block of %llu bytes does not fit pinned_limit_bytes (%llu, "
				 "of which %llu are used)",
				 (unsigned long long)runtime->block_bytes,
				 (unsigned long long)runtime->options.pinned_limit_bytes,
				 (unsigned long long)used);
		oh_remedy(error, "raise pinned_limit_bytes or lower block_bytes");
	}
	if (!status)
		lane->wanted += want;
unlock:
	pthread_mutex_unlock(&runtime->ring_lock);
	return status;
}

void
oh_lane_give_up(struct onehop_runtime *runtime, struct oh_rt_device *device, uint64_t want)
{
	pthread_mutex_lock(&runtime->ring_lock);
	/* The ring of a device that was lost is gone already. */
	device->lane.wanted -= oh_min(want, device->lane.wanted);
	pthread_mutex_unlock(&runtime->ring_lock);
}

/* ------------------------------------------------------------------ beside other processes */

/* Above this a name is worth its 10 us. */
static int
is_large(const struct onehop_transfer *transfer)
{
	const struct onehop_runtime *runtime = transfer->runtime;
	const struct onehop_runtime_options *options = &runtime->options;
	return options->ring_bytes == ONEHOP_AUTO && options->ranks_per_node == 1 &&
	       !(transfer->device->facts.caps & OH_MEMORY_ADDRESSABLE) &&
	       transfer->plan->plan.staged_span > runtime->ring_bytes;
}

void
oh_crowd_enter(struct onehop_transfer *transfer)
{
	struct onehop_runtime *runtime = transfer->runtime;
	if (transfer->in_crowd || !is_large(transfer))
		return;
	transfer->in_crowd = 1;
	pthread_mutex_lock(&runtime->ring_lock);
	if (runtime->crowd_users == 0)
		runtime->crowd_fd = oh_crowd_join();
	pthread_mutex_lock(&runtime->lock);
	runtime->crowd_users++;
	oh_crowd_watch(runtime);
	pthread_mutex_unlock(&runtime->lock);
	pthread_mutex_unlock(&runtime->ring_lock);
}

void
oh_crowd_exit(struct onehop_transfer *transfer)
{
	struct onehop_runtime *runtime = transfer->runtime;
	if (!transfer->in_crowd)
		return;
	transfer->in_crowd = 0;
	pthread_mutex_lock(&runtime->ring_lock);
	pthread_mutex_lock(&runtime->lock);
	int last = --runtime->crowd_users == 0;
	if (last)
		runtime->crowd_ns = runtime->crowd = 0;
	pthread_mutex_unlock(&runtime->lock);
	if (last)
		oh_crowd_leave(runtime->crowd_fd);
	pthread_mutex_unlock(&runtime->ring_lock);
}

void
oh_crowd_watch(struct onehop_runtime *runtime)
{
	uint64_t now = oh_now_ns();
	if (!runtime->crowd_users || now - runtime->crowd_ns <= CROWD_NS)
		return;
	runtime->crowd_ns = now;
	pthread_mutex_unlock(&runtime->lock);
	uint32_t count = oh_crowd_count();
	pthread_mutex_lock(&runtime->lock);
	if (runtime->crowd_users)
		runtime->crowd = count;
}

uint32_t
oh_lane_share(const struct onehop_runtime *runtime, const struct oh_lane *lane)
{
	if (runtime->crowd < 2)
		return lane->made;
	uint64_t share = TOGETHER_BYTES / runtime->crowd / runtime->block_bytes;
	return (uint32_t)oh_min(lane->made, oh_max(share, 2));
}

void
oh_lane_close(struct onehop_runtime *runtime, struct oh_rt_device *device)
{
	struct oh_lane *lane = &device->lane;
	assert(lane->free_count == lane->made);
	for (uint32_t i = 0; i < lane->made; i++)
		device->ops->mark_destroy(device->handle, lane->blocks[i].mark);
	if (lane->most)
		device->ops->queue_destroy(device->handle, lane->queue);
	while (lane->regions) {
		struct oh_region *region = lane->regions;
		lane->regions = region->next;
		oh_region_free(runtime, device, region);
	}
	free(lane->blocks);
	free(lane->free);
	memset(lane, 0, sizeof *lane);
}
