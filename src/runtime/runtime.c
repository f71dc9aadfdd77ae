/* The runtime: made, asked, ended.
 *
 * It resolves options once, reads the machine once, and starts workers only when a transfer is
 * prepared. In a forked child the pid differs: every call says so, and destroy releases nothing,
 * since the threads that hold the locks are not there.
 */
#include "runtime/internal.h"

#include "base/arith.h"
#include "base/give.h"
#include "base/sys.h"
#include "base/thread.h"

#include <stdlib.h>
#include <string.h>

/* 64 MiB in flight fill the link; more leaves the last-level cache and is slower. Copies of 16 MiB
 * run at the link's rate; each smaller one costs a gap of 2 to 3 us. */
#define RING_BYTES (UINT64_C(64) << 20)
#define RING_BYTES_LEAST (UINT64_C(16) << 20)
#define BLOCK_BYTES (UINT64_C(16) << 20)
#define SLICE_BYTES (UINT64_C(512) << 10)
#define MOST_THREADS 31
#define NETWORK_THREADS 15
#define PATIENCE_NS UINT64_C(5000000000)

int
oh_forked(const struct onehop_runtime *runtime, struct onehop_error *error)
{
	if (runtime->pid == oh_sys.getpid())
		return 0;
	oh_fail(error, ONEHOP_FORKED, "this runtime belongs to the parent process");
	oh_remedy(error, "create a runtime after fork");
	return 1;
}

static void
resolve_threads(struct onehop_runtime *runtime)
{
	uint64_t ranks = runtime->options.ranks_per_node;
	uint64_t cores = oh_max(runtime->machine.cores / ranks, 1);
	runtime->machine.cores = (uint32_t)cores;
	runtime->threads_most = runtime->options.threads;
	if (runtime->options.threads == ONEHOP_AUTO)
		runtime->threads_most = oh_min(oh_max(cores - 1, 1), MOST_THREADS);
	runtime->network_threads_most = runtime->threads_most;
	if (runtime->options.threads == ONEHOP_AUTO)
		runtime->network_threads_most =
			oh_max(runtime->threads_most, oh_max(NETWORK_THREADS / ranks, 1));
}

static void
resolve_ring(struct onehop_runtime *runtime)
{
	const struct onehop_runtime_options *options = &runtime->options;
	uint64_t cache = runtime->machine.l3_bytes / 4;
	runtime->ring_bytes = options->ring_bytes;
	runtime->block_bytes = options->block_bytes;
	if (options->ring_bytes == ONEHOP_AUTO) {
		/* The ranks of a node share the last-level cache: half of it is for all their rings,
		 * a quarter for one. */
		uint64_t one = cache ? oh_min(RING_BYTES, cache) : RING_BYTES;
		uint64_t share = oh_align_down(2 * one / options->ranks_per_node,
					       OH_FLOW_BLOCK_ALIGNMENT);
		runtime->ring_bytes = oh_max(oh_min(one, share), RING_BYTES_LEAST);
		if (options->block_bytes != ONEHOP_AUTO)
			runtime->ring_bytes = oh_max(runtime->ring_bytes, 2 * options->block_bytes);
	}
	if (options->block_bytes == ONEHOP_AUTO)
		runtime->block_bytes = oh_align_down(oh_min(runtime->ring_bytes / 4, BLOCK_BYTES),
						     OH_FLOW_BLOCK_ALIGNMENT);
	runtime->slice_bytes = options->slice_bytes == ONEHOP_AUTO ? SLICE_BYTES : options->slice_bytes;
	runtime->slice_bytes = oh_min(runtime->slice_bytes, runtime->block_bytes);
}

static onehop_status
resolve(struct onehop_runtime *runtime, const struct onehop_runtime_options *options,
	struct onehop_error *error)
{
	onehop_status status = oh_options_resolve(options, &runtime->options, runtime->origins, error);
	if (status)
		return status;
	uint64_t block = runtime->options.block_bytes;
	if (block != ONEHOP_AUTO && block % OH_FLOW_BLOCK_ALIGNMENT)
		return oh_fail(error, ONEHOP_OUT_OF_RANGE,
			       "block_bytes is %llu, no multiple of 4096", (unsigned long long)block);
	oh_machine_read(&runtime->machine);
	resolve_threads(runtime);
	resolve_ring(runtime);
	for (uint32_t i = 0; i < oh_option_count; i++) {
		const struct oh_option_row *row = &oh_option_rows[i];
		oh_option_show(row, oh_option_get(&runtime->options, row), runtime->texts[i][0]);
		oh_option_show(row, row->fallback, runtime->texts[i][1]);
		oh_option_range(row, runtime->texts[i][2]);
	}
	return ONEHOP_OK;
}

onehop_status
onehop_runtime_create(const struct onehop_runtime_options *options, struct onehop_runtime **out,
		      struct onehop_error *error)
{
#define ONE_OPTION(name, kind, def, min, max, autos, unit, doc) +1
	_Static_assert(0 ONEHOP_RUNTIME_OPTIONS(ONE_OPTION) <= OH_OPTIONS_MOST, "room for the options");
	if (!out)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "runtime is NULL");
	struct onehop_runtime *runtime = calloc(1, sizeof *runtime);
	if (!runtime)
		return oh_fail_no_memory(error, sizeof *runtime, "a runtime");
	runtime->texts = calloc(oh_option_count, sizeof *runtime->texts);
	if (!runtime->texts) {
		free(runtime);
		return oh_fail_no_memory(error, oh_option_count * sizeof *runtime->texts, "a runtime");
	}
	onehop_status status = resolve(runtime, options, error);
	if (status) {
		free(runtime->texts);
		free(runtime);
		return status;
	}
	atomic_init(&runtime->references, 1);
	runtime->pid = oh_sys.getpid();
	runtime->patience_ns = PATIENCE_NS;
	pthread_mutex_init(&runtime->lock, NULL);
	pthread_mutex_init(&runtime->ring_lock, NULL);
	pthread_cond_init(&runtime->work, NULL);
	pthread_cond_init(&runtime->touched, NULL);
	*out = runtime;
	return ONEHOP_OK;
}

void
oh_runtime_hold(struct onehop_runtime *runtime)
{
	atomic_fetch_add(&runtime->references, 1);
}

void
oh_runtime_drop(struct onehop_runtime *runtime)
{
	if (atomic_fetch_sub(&runtime->references, 1) != 1)
		return;
	oh_devices_close(runtime);
	pthread_cond_destroy(&runtime->touched);
	pthread_cond_destroy(&runtime->work);
	pthread_mutex_destroy(&runtime->ring_lock);
	pthread_mutex_destroy(&runtime->lock);
	free(runtime);
}

void
onehop_runtime_destroy(struct onehop_runtime *runtime)
{
	if (!runtime || oh_forked(runtime, NULL))
		return;
	pthread_mutex_lock(&runtime->lock);
	runtime->stop = 1;
	pthread_cond_broadcast(&runtime->work);
	pthread_mutex_unlock(&runtime->lock);
	for (uint32_t i = 0; i < runtime->thread_count; i++)
		pthread_join(runtime->threads[i], NULL);
	oh_devices_rest(runtime);
	free(runtime->threads);
	free(runtime->texts);
	oh_runtime_drop(runtime);
}

static int
start_one(struct onehop_runtime *runtime)
{
	int failed = oh_thread_start(&runtime->threads[runtime->thread_count], oh_worker_main,
				     runtime);
	if (!failed)
		runtime->thread_count++;
	return failed;
}

onehop_status
oh_workers_start(struct onehop_runtime *runtime, uint64_t want, uint64_t most,
		 struct onehop_error *error)
{
	uint64_t room = runtime->network_threads_most;
	int failed = 0;
	onehop_status status = ONEHOP_OK;
	pthread_mutex_lock(&runtime->ring_lock);
	if (!runtime->threads)
		runtime->threads = calloc(room, sizeof *runtime->threads);
	if (!runtime->threads)
		status = oh_fail_no_memory(error, room * sizeof *runtime->threads, "the workers");
	while (!status && !failed && runtime->thread_count < oh_min(want, most))
		failed = start_one(runtime);
	/* Fewer than wanted will do; none will not. */
	if (failed && runtime->thread_count == 0) {
		oh_fail(error, ONEHOP_LIMIT, "cannot start a worker thread: %s", strerror(failed));
		oh_remedy(error, "raise the limit on processes (ulimit -u)");
		status = ONEHOP_LIMIT;
	}
	pthread_mutex_unlock(&runtime->ring_lock);
	return status;
}

uint32_t
onehop_runtime_option_count(const struct onehop_runtime *runtime)
{
	(void)runtime;
	return oh_option_count;
}

onehop_status
onehop_runtime_option_at(const struct onehop_runtime *runtime, uint32_t index,
			 struct onehop_option_value *value)
{
	static const char *const origins[] = {"default", "config file", "environment", "caller"};
	if (index >= oh_option_count)
		return ONEHOP_OUT_OF_RANGE;
	const struct oh_option_row *row = &oh_option_rows[index];
	struct onehop_option_value full = {
		.name = row->name,
		.value = runtime->texts[index][0],
		.origin = origins[runtime->origins[index]],
		.unit = row->unit,
		.fallback = runtime->texts[index][1],
		.range = runtime->texts[index][2],
		.doc = row->doc,
	};
	return oh_give(value, &full, sizeof full);
}

onehop_status
onehop_runtime_query(struct onehop_runtime *runtime, struct onehop_runtime_info *info)
{
	if (oh_forked(runtime, NULL))
		return ONEHOP_FORKED;
	struct onehop_runtime_info full = {
		.usable_cores = runtime->machine.cores,
		.threads = runtime->threads_most,
		.ring_bytes = runtime->ring_bytes,
		.l3_bytes = runtime->machine.l3_bytes,
		.memory_bytes = runtime->machine.memory_bytes,
	};
	pthread_mutex_lock(&runtime->lock);
	full.pinned_bytes = runtime->pinned_bytes;
	full.pinned_peak_bytes = runtime->pinned_peak_bytes;
	full.file_pinned_bytes = runtime->file_pinned_bytes;
	full.buffer_pinned_bytes = runtime->buffer_pinned_bytes;
	pthread_mutex_unlock(&runtime->lock);
	return oh_give(info, &full, sizeof full);
}

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

const char *
onehop_version(void)
{
	return TEXT(ONEHOP_VERSION_MAJOR) "." TEXT(ONEHOP_VERSION_MINOR) "." TEXT(ONEHOP_VERSION_PATCH);
}

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

const char *
onehop_build_info(void)
{
	return "compiler: " COMPILER "\n"
	       "storage: local (pread)\n"
	       "memory: host, cuda (driver API, found at run time)\n"
	       "formats: safetensors, gguf\n";
}
