/* SPDX-License-Identifier: Apache-2.0
 *
 * onehop/runtime.h: the runtime, which owns worker threads, staging rings and devices.
 *
 * A process may have several runtimes; one is enough. Creating one starts no CUDA: a device is
 * opened when something first names it. Workers are started with the first transfer that needs
 * them, block all signals, and are ended by destroy; a process that exits with transfers in flight
 * does not hang. After fork() every call in the child returns FORKED and destroy releases nothing.
 *
 * Devices are named by text: "host", or "cuda:N" with N as the CUDA driver counts them.
 */
#ifndef ONEHOP_RUNTIME_H
#define ONEHOP_RUNTIME_H

#include <onehop/options.h>
#include <onehop/status.h>

#ifdef __cplusplus
extern "C" {
#endif

struct onehop_runtime;

/* Makes a runtime. options: NULL for all unset. Any thread; reads the environment and the config
 * file. Fails with UNKNOWN_OPTION, OUT_OF_RANGE, NO_MEMORY. Destroy it with
 * onehop_runtime_destroy(), after all that was made from it. */
ONEHOP_API onehop_status onehop_runtime_create(const struct onehop_runtime_options *options,
					       struct onehop_runtime **runtime,
					       struct onehop_error *error);

/* Ends the workers, gives back rings and devices. NULL is allowed. Blocks until the workers have
 * ended. Files, buffers, plans, transfers and models made from it must be gone. */
ONEHOP_API void onehop_runtime_destroy(struct onehop_runtime *runtime);

/* The options as resolved: count, and the index-th with its origin. Fill value->size first.
 * OUT_OF_RANGE past the end. Any thread. */
ONEHOP_API uint32_t onehop_runtime_option_count(const struct onehop_runtime *runtime);
ONEHOP_API onehop_status onehop_runtime_option_at(const struct onehop_runtime *runtime,
						  uint32_t index,
						  struct onehop_option_value *value);

struct onehop_runtime_info {
	uint32_t size;
	uint32_t usable_cores;     /* affinity and cgroup quota, over ranks_per_node */
	uint64_t threads;          /* workers that run or would be started */
	uint64_t ring_bytes;       /* a device, as resolved */
	uint64_t pinned_bytes;     /* staging memory pinned now */
	uint64_t pinned_peak_bytes;
	uint64_t l3_bytes;         /* last-level cache as the system reports it, 0 if it does not */
	uint64_t memory_bytes;     /* usable memory: cgroup limits and MemAvailable */
	uint64_t file_pinned_bytes; /* of files that onehop_file_pin() has pinned now */
	uint64_t buffer_pinned_bytes; /* of host buffers that a feed has pinned now */
};

/* Fill info->size first. Any thread. */
ONEHOP_API onehop_status onehop_runtime_query(struct onehop_runtime *runtime,
					      struct onehop_runtime_info *info);

/* A device as its driver describes it. */
struct onehop_device_info {
	uint32_t size;
	uint32_t pointer_bits;
	char name[128];            /* "NVIDIA H200", "host memory" */
	char uuid[48];             /* "GPU-..." or empty */
	char pci[32];              /* "0000:00:05.0" or empty */
	char driver[64];           /* "CUDA 13.0" or empty */
	uint64_t total_bytes;
	uint64_t free_bytes;       /* as the driver reports it; an allocator may hold more */
	uint32_t batch_copy;       /* 1 if many copies go to the driver in one call */
	uint32_t reserved;
};

/* Number of CUDA devices that the driver shows, 0 without a driver. Never fails. Any thread. */
ONEHOP_API uint32_t onehop_cuda_device_count(struct onehop_runtime *runtime);

/* Opens the device if it is not open yet. Fill info->size first. NO_DEVICE says why there is none. */
ONEHOP_API onehop_status onehop_device_query(struct onehop_runtime *runtime, const char *device,
					     struct onehop_device_info *info,
					     struct onehop_error *error);

#define ONEHOP_VERSION_MAJOR 0
#define ONEHOP_VERSION_MINOR 1
#define ONEHOP_VERSION_PATCH 0

/* Version of the library that runs: "0.1.0". Static. */
ONEHOP_API const char *onehop_version(void);

/* What was compiled in, one "name: value" line each (compiler, storage and memory back ends, C
 * library). Static. */
ONEHOP_API const char *onehop_build_info(void);

#ifdef __cplusplus
}
#endif
#endif
