/* The CUDA driver as we use it: our own declarations and one table of its functions, filled from
 * libcuda.so.1 at run time, so that one binary runs with and without a driver and is built without
 * its header.
 *
 * Types are spelled so that the functions' types are compatible with those of cuda.h (an enum there
 * is an unsigned int here; structs are named by their tags and stay opaque); tests/driver/cuda_h.c
 * compares them. */
#ifndef OH_MEMORY_CUDA_DRIVER_H
#define OH_MEMORY_CUDA_DRIVER_H

#include "base/error.h"

#include <stddef.h>

typedef unsigned int oh_cu_result;
typedef int oh_cu_device;
typedef unsigned long long oh_cu_address;

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUuuid_st;             /* 16 bytes */
struct CUmemcpyAttributes_st; /* struct oh_cu_copy_attributes */

/* X(field, name, suffix, version, arguments): the exported name is name and suffix together, and
 * version is the first CUDA that has it with this signature (1000 * major + 10 * minor). The plain
 * name of a function that has a _v2 is an older ABI. */
#define OH_CUDA_REQUIRED(X)                                                                        \
	X(init, cuInit, , 2000, (unsigned int flags))                                              \
	X(driver_version, cuDriverGetVersion, , 2020, (int *version))                              \
	X(error_name, cuGetErrorName, , 6000, (oh_cu_result code, const char **name))              \
	X(error_string, cuGetErrorString, , 6000, (oh_cu_result code, const char **text))          \
	X(device_count, cuDeviceGetCount, , 2000, (int *count))                                    \
	X(device_get, cuDeviceGet, , 2000, (oh_cu_device *device, int ordinal))                    \
	X(device_name, cuDeviceGetName, , 2000, (char *name, int bytes, oh_cu_device device))      \
	X(device_memory, cuDeviceTotalMem, _v2, 3020, (size_t *bytes, oh_cu_device device))        \
	X(device_pci, cuDeviceGetPCIBusId, , 4010, (char *id, int bytes, oh_cu_device device))     \
	X(ctx_current, cuCtxGetCurrent, , 4000, (struct CUctx_st **context))                       \
	X(ctx_push, cuCtxPushCurrent, _v2, 4000, (struct CUctx_st *context))                       \
	X(ctx_pop, cuCtxPopCurrent, _v2, 4000, (struct CUctx_st **context))                        \
	X(ctx_device, cuCtxGetDevice, , 2000, (oh_cu_device *device))                              \
	X(ctx_version, cuCtxGetApiVersion, , 3020,                                                 \
	  (struct CUctx_st *context, unsigned int *version))                                       \
	X(primary_retain, cuDevicePrimaryCtxRetain, , 7000,                                        \
	  (struct CUctx_st **context, oh_cu_device device))                                        \
	X(primary_release, cuDevicePrimaryCtxRelease, _v2, 11000, (oh_cu_device device))           \
	X(primary_state, cuDevicePrimaryCtxGetState, , 7000,                                       \
	  (oh_cu_device device, unsigned int *flags, int *active))                                 \
	X(mem_info, cuMemGetInfo, _v2, 3020, (size_t *free, size_t *total))                        \
	X(mem_alloc, cuMemAlloc, _v2, 3020, (oh_cu_address *address, size_t bytes))                \
	X(mem_free, cuMemFree, _v2, 3020, (oh_cu_address address))                                 \
	X(mem_range, cuMemGetAddressRange, _v2, 3020,                                              \
	  (oh_cu_address *base, size_t *bytes, oh_cu_address address))                             \
	X(host_register, cuMemHostRegister, _v2, 6050,                                             \
	  (void *memory, size_t bytes, unsigned int flags))                                        \
	X(host_unregister, cuMemHostUnregister, , 4000, (void *memory))                            \
	X(pointer_attribute, cuPointerGetAttribute, , 4000,                                        \
	  (void *value, unsigned int attribute, oh_cu_address address))                            \
	X(copy_in, cuMemcpyHtoDAsync, _v2, 3020,                                                   \
	  (oh_cu_address destination, const void *source, size_t bytes,                            \
	   struct CUstream_st *stream))                                                            \
	X(copy_out, cuMemcpyDtoHAsync, _v2, 3020,                                                  \
	  (void *destination, oh_cu_address source, size_t bytes, struct CUstream_st *stream))     \
	X(fill, cuMemsetD8Async, , 3020,                                                         \
	  (oh_cu_address address, unsigned char value, size_t bytes, struct CUstream_st *stream))  \
	X(stream_create, cuStreamCreate, , 2000,                                                   \
	  (struct CUstream_st **stream, unsigned int flags))                                       \
	X(stream_destroy, cuStreamDestroy, _v2, 4000, (struct CUstream_st *stream))                \
	X(stream_sync, cuStreamSynchronize, , 2000, (struct CUstream_st *stream))                  \
	X(stream_wait, cuStreamWaitEvent, , 3020,                                                  \
	  (struct CUstream_st *stream, struct CUevent_st *event, unsigned int flags))              \
	X(event_create, cuEventCreate, , 2000, (struct CUevent_st **event, unsigned int flags))    \
	X(event_destroy, cuEventDestroy, _v2, 4000, (struct CUevent_st *event))                    \
	X(event_record, cuEventRecord, , 2000,                                                     \
	  (struct CUevent_st *event, struct CUstream_st *stream))                                  \
	X(event_query, cuEventQuery, , 2000, (struct CUevent_st *event))

/* NULL in the table where the driver lacks them. */
#define OH_CUDA_OPTIONAL(X)                                                                        \
	X(device_attribute, cuDeviceGetAttribute, , 2000,                                          \
	  (int *value, unsigned int attribute, oh_cu_device device))                               \
	X(uuid_v2, cuDeviceGetUuid, _v2, 11040, (struct CUuuid_st *uuid, oh_cu_device device))     \
	X(uuid, cuDeviceGetUuid, , 9020, (struct CUuuid_st *uuid, oh_cu_device device))            \
	X(ctx_id, cuCtxGetId, , 12000, (struct CUctx_st *context, unsigned long long *id))         \
	X(stream_context, cuStreamGetCtx, , 9020,                                                  \
	  (struct CUstream_st *stream, struct CUctx_st **context))                                 \
	X(stream_capture, cuStreamIsCapturing, , 10000,                                            \
	  (struct CUstream_st *stream, unsigned int *status))                                      \
	X(capture_mode, cuThreadExchangeStreamCaptureMode, , 10010, (unsigned int *mode))          \
	X(batch_13, cuMemcpyBatchAsync, _v2, 13000,                                                \
	  (oh_cu_address *destinations, oh_cu_address *sources, size_t *bytes, size_t count,       \
	   struct CUmemcpyAttributes_st *attributes, size_t *first, size_t attribute_count,        \
	   struct CUstream_st *stream))                                                            \
	X(batch_12, cuMemcpyBatchAsync, , 12080,                                                   \
	  (oh_cu_address *destinations, oh_cu_address *sources, size_t *bytes, size_t count,       \
	   struct CUmemcpyAttributes_st *attributes, size_t *first, size_t attribute_count,        \
	   size_t *failed, struct CUstream_st *stream))

#define OH_CUDA_FIELD(field, name, suffix, version, arguments) oh_cu_result(*field) arguments;
struct oh_cuda {
	OH_CUDA_REQUIRED(OH_CUDA_FIELD)
	OH_CUDA_OPTIONAL(OH_CUDA_FIELD)
};
#undef OH_CUDA_FIELD

/* CUmemLocation and CUmemcpyAttributes. */
struct oh_cu_location {
	unsigned int type;
	int id;
};
struct oh_cu_copy_attributes {
	unsigned int source_order;
	struct oh_cu_location source_hint;
	struct oh_cu_location destination_hint;
	unsigned int flags;
};

enum oh_cu_constant {
	OH_CU_EVENT_DISABLE_TIMING = 2,
	OH_CU_HOST_REGISTER_PORTABLE = 1,
	OH_CU_HOST_REGISTER_READ_ONLY = 8,
	OH_CU_DEVICE_READ_ONLY_REGISTER = 113,
	OH_CU_MEMORY_HOST = 1,
	OH_CU_MEMORY_DEVICE = 2,
	OH_CU_POINTER_CONTEXT = 1,
	OH_CU_POINTER_MEMORY_TYPE = 2,
	OH_CU_POINTER_DEVICE_ORDINAL = 9,
	OH_CU_POINTER_RANGE_START = 11,
	OH_CU_POINTER_RANGE_BYTES = 12,
	OH_CU_SOURCE_ORDER_STREAM = 1,
	OH_CU_STREAM_NON_BLOCKING = 1,
	OH_CU_CAPTURE_RELAXED = 2,
};

/* X(name, value): the results that something here looks at, and those that mean that the context
 * is of no more use. */
#define OH_CU_RESULTS(X)                                                                           \
	X(SUCCESS, 0)                                                                              \
	X(ERROR_INVALID_VALUE, 1)                                                                  \
	X(ERROR_OUT_OF_MEMORY, 2)                                                                  \
	X(ERROR_NOT_INITIALIZED, 3)                                                                \
	X(ERROR_DEINITIALIZED, 4)                                                                  \
	X(ERROR_CALL_REQUIRES_NEWER_DRIVER, 36)                                                    \
	X(ERROR_DEVICE_UNAVAILABLE, 46)                                                            \
	X(ERROR_NO_DEVICE, 100)                                                                    \
	X(ERROR_INVALID_CONTEXT, 201)                                                              \
	X(ERROR_ECC_UNCORRECTABLE, 214)                                                            \
	X(ERROR_NVLINK_UNCORRECTABLE, 220)                                                         \
	X(ERROR_CONTAINED, 226)                                                                    \
	X(ERROR_INVALID_HANDLE, 400)                                                               \
	X(ERROR_NOT_FOUND, 500)                                                                    \
	X(ERROR_NOT_READY, 600)                                                                    \
	X(ERROR_ILLEGAL_ADDRESS, 700)                                                              \
	X(ERROR_LAUNCH_TIMEOUT, 702)                                                               \
	X(ERROR_CONTEXT_IS_DESTROYED, 709)                                                         \
	X(ERROR_ASSERT, 710)                                                                       \
	X(ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712)                                               \
	X(ERROR_HOST_MEMORY_NOT_REGISTERED, 713)                                                   \
	X(ERROR_HARDWARE_STACK_ERROR, 714)                                                         \
	X(ERROR_ILLEGAL_INSTRUCTION, 715)                                                          \
	X(ERROR_MISALIGNED_ADDRESS, 716)                                                           \
	X(ERROR_INVALID_ADDRESS_SPACE, 717)                                                        \
	X(ERROR_INVALID_PC, 718)                                                                   \
	X(ERROR_LAUNCH_FAILED, 719)                                                                \
	X(ERROR_TENSOR_MEMORY_LEAK, 721)                                                           \
	X(ERROR_NOT_SUPPORTED, 801)                                                                \
	X(ERROR_UNKNOWN, 999)

#define OH_CU_RESULT_ENUM(name, value) OH_CU_##name = value,
enum oh_cu_result_code { OH_CU_RESULTS(OH_CU_RESULT_ENUM) };
#undef OH_CU_RESULT_ENUM

/* The table, loaded by the first call and kept for the process's life. Any thread. NO_DEVICE says
 * what is missing: the library, or a required function. */
onehop_status oh_cuda_load(const struct oh_cuda **cuda, struct onehop_error *error);

/* Loads and starts the driver, and counts its devices. NO_DEVICE if any of it fails. */
onehop_status oh_cuda_start(const struct oh_cuda **cuda, uint32_t *count,
			    struct onehop_error *error);

/* Fills error for a failed driver call: the sentence, then the driver's name for the code and its
 * explanation. Picks DEVICE_LOST, NO_DEVICE_MEMORY or DRIVER by the code. */
onehop_status oh_cuda_fail(const struct oh_cuda *cuda, struct onehop_error *error,
			   oh_cu_result code, const char *format, ...) OH_PRINTF(4, 5);

#endif
