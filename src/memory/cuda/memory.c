/* Memory of a CUDA device: allocation, whose memory an address is, reading, filling, and pinning
 * host memory for copies.
 *
 * Memory is told apart by the device that the driver names for its address, not by its context:
 * pools and mapped ranges may have none. Nothing is freed or unpinned once the context is gone: by
 * then the driver may have given the address to somebody else. Copies into the device are not here.
 */
#include "memory/cuda/device.h"

#include "base/sys.h"

/* Reading into pageable memory is staged by the driver; smaller pieces hold its stager less. */
#define READ_PIECE ((uint64_t)64 << 20)

static onehop_status
alloc_failed(struct oh_device *device, oh_cu_result code, uint64_t bytes,
	     struct onehop_error *error)
{
	size_t left = 0, total = 0;
	if (code != OH_CU_ERROR_OUT_OF_MEMORY ||
	    device->cu->mem_info(&left, &total) != OH_CU_SUCCESS)
		return oh_cuda_fail(device->cu, error, code, "no %llu bytes on cuda:%u",
				    (unsigned long long)bytes, device->ordinal);
	oh_cuda_fail(device->cu, error, code,
		     "cuda:%u has no room for %llu bytes: %zu of its %zu are free", device->ordinal,
		     (unsigned long long)bytes, left, total);
	oh_remedy(error, "free device memory that this or another process holds, or load less");
	return ONEHOP_NO_DEVICE_MEMORY;
}

onehop_status
oh_cuda_alloc(struct oh_device *device, uint64_t bytes, uint64_t *address,
	      struct onehop_error *error)
{
	oh_cu_address got = 0;
	if (bytes == 0) {
		*address = 0;
		return ONEHOP_OK;
	}
	onehop_status status = oh_cuda_enter(device, error);
	if (status != ONEHOP_OK)
		return status;
	oh_cu_result code = device->cu->mem_alloc(&got, bytes);
	if (code != OH_CU_SUCCESS)
		status = alloc_failed(device, code, bytes, error);
	oh_cuda_leave(device);
	if (status == ONEHOP_OK)
		*address = got;
	return status;
}

void
oh_cuda_free(struct oh_device *device, uint64_t address, uint64_t bytes)
{
	(void)bytes;
	if (!address || !oh_cuda_enter_quietly(device))
		return;
	device->cu->mem_free(address);
	oh_cuda_leave(device);
}

/* INVALID_ARGUMENT unless address is memory of the device. The device is what counts: memory of a
 * pool or a mapping need not belong to a context. */
static onehop_status
check_place(struct oh_device *device, uint64_t address, struct onehop_error *error)
{
	const struct oh_cuda *cu = device->cu;
	unsigned long long at = address;
	unsigned int type = 0;
	int ordinal = -1;
	oh_cu_result code =
		cu->pointer_attribute(&ordinal, OH_CU_POINTER_DEVICE_ORDINAL, address);
	if (code == OH_CU_SUCCESS)
		code = cu->pointer_attribute(&type, OH_CU_POINTER_MEMORY_TYPE, address);
	if (code == OH_CU_ERROR_INVALID_VALUE) {
		oh_fail(error, ONEHOP_INVALID_ARGUMENT, "0x%llx is no memory that CUDA knows", at);
		goto remedy;
	}
	if (code != OH_CU_SUCCESS)
		return oh_cuda_fail(cu, error, code, "CUDA does not say what 0x%llx is", at);
	if (type != OH_CU_MEMORY_DEVICE) {
		oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			"0x%llx is pinned host memory, not memory of cuda:%u", at,
			device->ordinal);
		goto remedy;
	}
	if (ordinal == device->device)
		return ONEHOP_OK;
	oh_fail(error, ONEHOP_INVALID_ARGUMENT, "0x%llx is memory of cuda:%d, not of cuda:%u", at,
		ordinal, device->ordinal);
remedy:
	oh_remedy(error, "pass memory that was allocated on cuda:%u", device->ordinal);
	return ONEHOP_INVALID_ARGUMENT;
}

/* Does an address range that was mapped in pieces hold all of it, without a hole? */
static int
mapped_in_pieces(struct oh_device *device, uint64_t address, uint64_t bytes)
{
	const struct oh_cuda *cu = device->cu;
	oh_cu_address start = 0, base = 0;
	size_t range = 0, size = 0;
	if (cu->pointer_attribute(&start, OH_CU_POINTER_RANGE_START, address) != OH_CU_SUCCESS ||
	    cu->pointer_attribute(&range, OH_CU_POINTER_RANGE_BYTES, address) != OH_CU_SUCCESS)
		return 0;
	if (address < start || address - start > range || range - (address - start) < bytes)
		return 0;
	for (uint64_t last = address + bytes - 1;; address = base + size) {
		if (check_place(device, address, NULL) != ONEHOP_OK ||
		    cu->mem_range(&base, &size, address) != OH_CU_SUCCESS)
			return 0;
		if (address < base || address - base >= size)
			return 0;
		if (last - base < size)
			return 1;
	}
}

/* Nothing is left for the copies to find out: the driver dies of a bad address in a batch. */
static onehop_status
check_range(struct oh_device *device, uint64_t address, uint64_t bytes, struct onehop_error *error)
{
	oh_cu_address base = 0;
	size_t size = 0;
	oh_cu_result code = device->cu->mem_range(&base, &size, address);
	if (code != OH_CU_SUCCESS)
		return oh_cuda_fail(device->cu, error, code,
				    "CUDA does not say how far the memory at 0x%llx goes",
				    (unsigned long long)address);
	if (address >= base && address - base <= size && bytes <= size - (address - base))
		return ONEHOP_OK;
	if (mapped_in_pieces(device, address, bytes))
		return ONEHOP_OK;
	oh_fail(error, ONEHOP_INVALID_ARGUMENT,
		"%llu bytes at 0x%llx end past the allocation that holds them, of %zu bytes at "
		"0x%llx",
		(unsigned long long)bytes, (unsigned long long)address, size, base);
	oh_remedy(error, "pass a range that lies within one allocation of cuda:%u",
		  device->ordinal);
	return ONEHOP_INVALID_ARGUMENT;
}

onehop_status
oh_cuda_check(struct oh_device *device, uint64_t address, uint64_t bytes,
	      struct onehop_error *error)
{
	if (bytes == 0)
		return ONEHOP_OK;
	if (bytes - 1 > UINT64_MAX - address)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "%llu bytes at 0x%llx do not fit into the address space",
			       (unsigned long long)bytes, (unsigned long long)address);
	onehop_status status = oh_cuda_enter(device, error);
	if (status != ONEHOP_OK)
		return status;
	status = check_place(device, address, error);
	if (status == ONEHOP_OK)
		status = check_range(device, address, bytes, error);
	oh_cuda_leave(device);
	return status;
}

onehop_status
oh_cuda_read(struct oh_device *device, uint64_t address, void *destination, uint64_t bytes,
	  struct onehop_error *error)
{
	const struct oh_cuda *cu = device->cu;
	struct CUstream_st *stream = device->stream;
	oh_cu_result code = OH_CU_SUCCESS;
	onehop_status status = oh_cuda_enter(device, error);
	if (status != ONEHOP_OK)
		return status;
	for (uint64_t at = 0; at < bytes && code == OH_CU_SUCCESS;) {
		uint64_t piece = bytes - at < READ_PIECE ? bytes - at : READ_PIECE;
		code = cu->copy_out((char *)destination + at, address + at, piece, stream);
		at += piece;
	}
	/* Also after a failure: what was begun still writes to destination. */
	oh_cu_result ended = cu->stream_sync(stream);
	if (code == OH_CU_SUCCESS)
		code = ended;
	if (code != OH_CU_SUCCESS)
		status = oh_cuda_fail(cu, error, code, "%llu bytes of cuda:%u cannot be read",
				      (unsigned long long)bytes, device->ordinal);
	oh_cuda_leave(device);
	return status;
}

onehop_status
oh_cuda_fill(struct oh_device *device, uint64_t address, uint64_t bytes, uint8_t value,
	  struct onehop_error *error)
{
	const struct oh_cuda *cu = device->cu;
	struct CUstream_st *stream = device->stream;
	if (bytes == 0)
		return ONEHOP_OK;
	onehop_status status = oh_cuda_enter(device, error);
	if (status != ONEHOP_OK)
		return status;
	oh_cu_result code = cu->fill(address, value, bytes, stream);
	if (code == OH_CU_SUCCESS)
		code = cu->stream_sync(stream);
	if (code != OH_CU_SUCCESS)
		status = oh_cuda_fail(cu, error, code, "%llu bytes of cuda:%u cannot be filled",
				      (unsigned long long)bytes, device->ordinal);
	oh_cuda_leave(device);
	return status;
}

/* The driver says OUT_OF_MEMORY both for too little memory and for a limit on locked memory. */
static onehop_status
pin_failed(struct oh_device *device, oh_cu_result code, uint64_t bytes, struct onehop_error *error)
{
	struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
	unsigned long long want = bytes;
	onehop_status status = oh_cuda_fail(device->cu, error, code,
					    "%llu bytes of host memory cannot be pinned", want);
	if (code == OH_CU_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
		status = ONEHOP_INVALID_ARGUMENT;
	if (code == OH_CU_ERROR_OUT_OF_MEMORY) {
		status = ONEHOP_NO_MEMORY;
		oh_remedy(error, "free host memory, or use a smaller ring");
		if (oh_sys.getrlimit(RLIMIT_MEMLOCK, &limit) == 0 &&
		    limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes) {
			status = ONEHOP_LIMIT;
			oh_remedy(error, "raise the limit on locked memory, which is %llu bytes",
				  (unsigned long long)limit.rlim_cur);
		}
	}
	if (error)
		error->status = status;
	return status;
}

static onehop_status
pin(struct oh_device *device, void *memory, uint64_t bytes, unsigned int flags,
    struct onehop_error *error)
{
	if (bytes == 0)
		return ONEHOP_OK;
	onehop_status status = oh_cuda_enter(device, error);
	if (status != ONEHOP_OK)
		return status;
	oh_cu_result code = device->cu->host_register(memory, bytes, flags);
	if (code != OH_CU_SUCCESS)
		status = pin_failed(device, code, bytes, error);
	oh_cuda_leave(device);
	return status;
}

onehop_status
oh_cuda_pin(struct oh_device *device, void *memory, uint64_t bytes, struct onehop_error *error)
{
	return pin(device, memory, bytes, OH_CU_HOST_REGISTER_PORTABLE, error);
}

onehop_status
oh_cuda_pin_file(struct oh_device *device, void *map, uint64_t bytes, struct onehop_error *error)
{
	return pin(device, map, bytes, OH_CU_HOST_REGISTER_PORTABLE | OH_CU_HOST_REGISTER_READ_ONLY,
		   error);
}

int
oh_cuda_pins_files(struct oh_device *device)
{
	int value = 0;
	return device->cu->device_attribute &&
	       device->cu->device_attribute(&value, OH_CU_DEVICE_READ_ONLY_REGISTER,
					    device->device) == OH_CU_SUCCESS &&
	       value;
}

void
oh_cuda_unpin(struct oh_device *device, void *memory, uint64_t bytes)
{
	if (bytes == 0 || !oh_cuda_enter_quietly(device))
		return;
	device->cu->host_unregister(memory);
	oh_cuda_leave(device);
}
