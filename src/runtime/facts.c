/* What a plan is told about its files: where their bytes are, and what their file systems can do.
 *
 * Looking costs about 0.1 ms a GB, so it is done only where it can change a route: with cache=auto
 * absent bytes that fit in half of the usable memory go the way of resident ones, and a load of so
 * few bytes needs no look. look=always looks all the same, for reasons that tell.
 */
#include "runtime/internal.h"

#include "base/arith.h"
#include "machine/filesystem.h"
#include "machine/residency.h"

#include <stdlib.h>

/* Finer than this a route is not worth changing. */
#define CHUNK_BYTES (UINT64_C(16) << 20)
/* A sparse file may claim to be of any size. */
#define MOST_CHUNKS 65536
/* From here on copying by CPUs is quicker than pinning the page cache piece by piece, which one
 * thread does in turn with the copies: 17 GB/s in all, measured, where a core copies 6 to 8. */
#define ENOUGH_CORES 3
/* Least of a read past the page cache: docs/performance.md. */
#define DIRECT_SLICE_BYTES (UINT64_C(4) << 20)

/* Does it work here? Found out with a page, so that no load has to fail for it. */
static int
pins(const struct onehop_plan *plan, const struct onehop_file *file)
{
	const struct oh_memory_ops *ops = plan->device->ops;
	uint64_t bytes = oh_min(file->facts.bytes, OH_DIRECT_PAGE);
	void *map;
	if (!bytes || file->ops->map(file->handle, 0, bytes, &map, NULL))
		return 0;
	int pinned = ops->pin_file(plan->device->handle, map, bytes, NULL) == ONEHOP_OK;
	if (pinned)
		ops->unpin(plan->device->handle, map, bytes);
	file->ops->unmap(file->handle, map, bytes);
	return pinned;
}

int
oh_few_cores(const struct onehop_plan *plan)
{
	return plan->runtime->machine.cores < ENOUGH_CORES && plan->file_count &&
	       plan->device->facts.caps & OH_MEMORY_PINS_FILES && pins(plan, plan->files[0]);
}

static int
looks(const struct onehop_plan *plan, uint64_t bytes, uint64_t memory_bytes, int few_cores)
{
	const struct onehop_runtime_options *options = &plan->runtime->options;
	if (options->look == ONEHOP_LOOK_ALWAYS)
		return 1;
	return options->route == ONEHOP_AUTO && options->cache == ONEHOP_AUTO &&
	       (bytes > memory_bytes / 2 || few_cores);
}

/* May a plan of these options go direct? Then the files are opened for it. */
static int
may_go_direct(const struct onehop_runtime *runtime, int looked)
{
	if (runtime->options.route != ONEHOP_AUTO)
		return runtime->options.route == ONEHOP_ROUTE_DIRECT;
	return runtime->options.cache == ONEHOP_CACHE_BYPASS ||
	       (runtime->options.cache == ONEHOP_AUTO && looked);
}

static enum oh_residence
residence_of(uint8_t state)
{
	switch (state) {
	case OH_RESIDENT:
		return OH_HERE;
	case OH_UNKNOWN:
		return OH_NOT_KNOWN;
	default:
		return OH_AWAY;
	}
}

static onehop_status
look(const struct onehop_file *file, const struct oh_filesystem *system,
     struct oh_file_facts *facts, struct onehop_error *error)
{
	uint64_t chunk = CHUNK_BYTES;
	while (file->facts.bytes / chunk > MOST_CHUNKS)
		chunk *= 2;
	uint64_t count = file->facts.bytes / chunk + 1;
	uint8_t *states = malloc(count);
	if (!states)
		return oh_fail_no_memory(error, count, "the residency of a file");
	oh_residency_map(file->ops->descriptor(file->handle), system, 0, chunk, states, count);
	for (uint64_t i = 0; i < count; i++)
		states[i] = (uint8_t)residence_of(states[i]);
	facts->residence = states;
	facts->chunk_bytes = chunk;
	return ONEHOP_OK;
}

onehop_status
oh_file_facts_read(struct onehop_plan *plan, uint64_t bytes, uint64_t memory_bytes, int few_cores,
		   struct oh_file_facts *facts, struct onehop_error *error)
{
	struct onehop_runtime *runtime = plan->runtime;
	int looked = looks(plan, bytes, memory_bytes, few_cores), direct = may_go_direct(runtime, looked);
	onehop_status status = ONEHOP_OK;
	for (uint32_t i = 0; i < plan->file_count && !status; i++) {
		struct onehop_file *file = plan->files[i];
		struct oh_filesystem system;
		facts[i] = (struct oh_file_facts){.path = file->path, .storage = file->facts};
		facts[i].pinned = file->pinned_on && file->pinned_on == plan->device;
		oh_filesystem_read(file->ops->descriptor(file->handle), &system);
		facts[i].is_network = (system.flags & OH_FS_NETWORK) != 0;
		plan->on_network |= facts[i].is_network;
		/* Each read is a round trip, or has no read-ahead. */
		if (runtime->options.slice_bytes == ONEHOP_AUTO) {
			facts[i].least_slice = facts[i].is_network ? system.io_bytes : 0;
			facts[i].least_direct_slice = oh_max(facts[i].least_slice, DIRECT_SLICE_BYTES);
		}
		if (direct && system.direct_offset_alignment &&
		    system.direct_offset_alignment <= OH_DIRECT_PAGE &&
		    system.direct_memory_alignment <= OH_DIRECT_PAGE) {
			pthread_mutex_lock(&runtime->ring_lock);
			facts[i].direct_alignment = file->ops->direct(file->handle);
			pthread_mutex_unlock(&runtime->ring_lock);
		}
		if (looked)
			status = look(file, &system, &facts[i], error);
	}
	return status;
}
