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

static int
looks(const struct onehop_runtime *runtime, uint64_t bytes, uint64_t memory_bytes)
{
	if (runtime->options.look == ONEHOP_LOOK_ALWAYS)
		return 1;
	return runtime->options.route == ONEHOP_AUTO && runtime->options.cache == ONEHOP_AUTO &&
	       bytes > memory_bytes / 2;
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
	uint64_t count = file->facts.bytes / CHUNK_BYTES + 1;
	uint8_t *states = malloc(count);
	if (!states)
		return oh_fail_no_memory(error, count, "the residency of a file");
	oh_residency_map(file->ops->descriptor(file->handle), system, 0, CHUNK_BYTES, states, count);
	for (uint64_t i = 0; i < count; i++)
		states[i] = (uint8_t)residence_of(states[i]);
	facts->residence = states;
	facts->chunk_bytes = CHUNK_BYTES;
	return ONEHOP_OK;
}

onehop_status
oh_file_facts_read(struct onehop_plan *plan, uint64_t bytes, uint64_t memory_bytes,
		   struct oh_file_facts *facts, struct onehop_error *error)
{
	struct onehop_runtime *runtime = plan->runtime;
	int looked = looks(runtime, bytes, memory_bytes), direct = may_go_direct(runtime, looked);
	onehop_status status = ONEHOP_OK;
	for (uint32_t i = 0; i < plan->file_count && !status; i++) {
		struct onehop_file *file = plan->files[i];
		struct oh_filesystem system;
		facts[i] = (struct oh_file_facts){.path = file->path, .storage = file->facts};
		if (!looked && !direct)
			continue;
		oh_filesystem_read(file->ops->descriptor(file->handle), &system);
		facts[i].is_network = (system.flags & OH_FS_NETWORK) != 0;
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
