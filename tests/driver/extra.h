/* Driver functions that only the tests use, in the manner of memory/cuda/driver.h, and what the
 * look-alike driver exports besides CUDA's functions. */
#ifndef OH_TESTS_DRIVER_EXTRA_H
#define OH_TESTS_DRIVER_EXTRA_H

#include "memory/cuda/driver.h"

#include <stdint.h>

struct CUgraph_st;
struct CUmemAllocationProp_st; /* struct extra_memory */
struct CUmemAccessDesc_st;     /* struct extra_access */

#define EXTRA(X)                                                                                   \
	X(ctx_create, cuCtxCreate, _v2, 3020,                                                      \
	  (struct CUctx_st **context, unsigned int flags, oh_cu_device device))                    \
	X(ctx_destroy, cuCtxDestroy, _v2, 4000, (struct CUctx_st *context))                        \
	X(ctx_set, cuCtxSetCurrent, , 4000, (struct CUctx_st *context))                            \
	X(primary_reset, cuDevicePrimaryCtxReset, _v2, 11000, (oh_cu_device device))               \
	X(stream_query, cuStreamQuery, , 2000, (struct CUstream_st *stream))                       \
	X(event_sync, cuEventSynchronize, , 2000, (struct CUevent_st *event))                      \
	X(host_func, cuLaunchHostFunc, , 10000,                                                    \
	  (struct CUstream_st *stream, void (*run)(void *), void *data))                           \
	X(capture_begin, cuStreamBeginCapture, _v2, 10010,                                         \
	  (struct CUstream_st *stream, unsigned int mode))                                         \
	X(capture_end, cuStreamEndCapture, , 10000,                                                \
	  (struct CUstream_st *stream, struct CUgraph_st **graph))                                 \
	X(graph_destroy, cuGraphDestroy, , 10000, (struct CUgraph_st *graph))                      \
	X(pool_alloc, cuMemAllocAsync, , 11020,                                                    \
	  (oh_cu_address *address, size_t bytes, struct CUstream_st *stream))                      \
	X(pool_free, cuMemFreeAsync, , 11020,                                                      \
	  (oh_cu_address address, struct CUstream_st *stream))                                     \
	X(range_reserve, cuMemAddressReserve, , 10020,                                             \
	  (oh_cu_address *address, size_t bytes, size_t alignment, oh_cu_address wanted,           \
	   unsigned long long flags))                                                              \
	X(range_free, cuMemAddressFree, , 10020, (oh_cu_address address, size_t bytes))            \
	X(memory_create, cuMemCreate, , 10020,                                                     \
	  (unsigned long long *handle, size_t bytes,                                               \
	   const struct CUmemAllocationProp_st *properties, unsigned long long flags))             \
	X(memory_release, cuMemRelease, , 10020, (unsigned long long handle))                      \
	X(memory_map, cuMemMap, , 10020,                                                           \
	  (oh_cu_address address, size_t bytes, size_t offset, unsigned long long handle,          \
	   unsigned long long flags))                                                              \
	X(memory_unmap, cuMemUnmap, , 10020, (oh_cu_address address, size_t bytes))                \
	X(memory_access, cuMemSetAccess, , 10020,                                                  \
	  (oh_cu_address address, size_t bytes, const struct CUmemAccessDesc_st *access,           \
	   size_t count))

#define EXTRA_FIELD(field, name, suffix, version, arguments) oh_cu_result(*field) arguments;
struct extra {
	EXTRA(EXTRA_FIELD)
};
#undef EXTRA_FIELD

/* CUmemAllocationProp and CUmemAccessDesc. */
struct extra_memory {
	unsigned int type;    /* 1: pinned to the device */
	unsigned int handles;
	struct oh_cu_location location; /* type 1: device */
	void *unused;
	unsigned char flags[8];
};
struct extra_access {
	struct oh_cu_location location;
	unsigned int flags; /* 3: read and write */
};

/* What the program still holds in the look-alike driver. */
struct fake_outstanding {
	int allocations;
	int registrations;
	int streams;
	int events;
	int contexts;         /* made by cuCtxCreate */
	int primaries;        /* references to primary contexts */
	uint64_t bytes;
	/* Uses that are undefined in CUDA: a handle that was destroyed or whose context is gone,
	 * memory unregistered with a copy from it under way. */
	int misuses;
};

/* X(field, name, arguments, type): exported by the look-alike alone.
 *   fail         "NAME:N[+][:CODE]" makes the N-th call from now on of NAME ("*": of any) fail, and
 *                with + all later ones; NULL or "": none. A failing call that takes something down
 *                does so all the same. Returns how many calls were failed since the last fail().
 *   calls        how often a function was called
 *   outstanding  counts what is held now
 *   lose         from now on every call in a context of the device fails with code, until reset
 *   batch        0: the batch calls answer NOT_SUPPORTED
 *   quiet        waits until no stream can go on: each has nothing to do, waits for another, or is
 *                in a function of the program's
 *   memory       where the driver itself sees device memory, NULL if the address is not allocated
 *   seed         of the random delays */
#define FAKE_CONTROLS(X)                                                                           \
	X(fail, fake_cuda_fail, (const char *rule), int)                                           \
	X(calls, fake_cuda_calls, (const char *name), int)                                         \
	X(outstanding, fake_cuda_outstanding, (struct fake_outstanding * counts), void)            \
	X(lose, fake_cuda_lose, (int device, oh_cu_result code), void)                             \
	X(batch, fake_cuda_batch, (int on), void)                                                  \
	X(quiet, fake_cuda_quiet, (void), void)                                                    \
	X(memory, fake_cuda_memory, (oh_cu_address address), void *)                               \
	X(seed, fake_cuda_seed, (void), uint64_t)

#define FAKE_FIELD(field, name, arguments, type) type(*field) arguments;
struct fake_controls {
	FAKE_CONTROLS(FAKE_FIELD)
};
#undef FAKE_FIELD

#endif
