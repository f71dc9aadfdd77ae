/* Finding the CUDA driver: loads libcuda.so.1 from where the loader looks for it, fills the table
 * of functions once, and puts the driver's errors into words.
 *
 * Names are the exported ones, each with the signature of its row; cuGetProcAddress is not needed
 * for that. The library stays loaded: CUDA cannot be unloaded while anything may use it. Whether it
 * was found is decided once in a process; whether it starts (cuInit) is asked each time, since that
 * can change.
 */
#include "memory/cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define LIBRARY "libcuda.so.1"

struct row {
	const char *name;
	size_t offset;
	int required;
	int version;
};

#define ROW_REQUIRED(field, name, suffix, version, arguments)                                      \
	{#name #suffix, offsetof(struct oh_cuda, field), 1, version},
#define ROW_OPTIONAL(field, name, suffix, version, arguments)                                      \
	{#name #suffix, offsetof(struct oh_cuda, field), 0, version},
static const struct row rows[] = {OH_CUDA_REQUIRED(ROW_REQUIRED) OH_CUDA_OPTIONAL(ROW_OPTIONAL)};

/* Written under the once, only read after it. */
static struct {
	pthread_once_t once;
	struct oh_cuda table;
	struct onehop_error error;
} driver = {.once = PTHREAD_ONCE_INIT};

static onehop_status
fill_table(void *library, struct oh_cuda *table, struct onehop_error *error)
{
	for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
		void *symbol = dlsym(library, rows[i].name);
		if (!symbol && rows[i].required) {
			oh_fail(error, ONEHOP_NO_DEVICE,
				LIBRARY " has no %s, which CUDA %d.%d and later have", rows[i].name,
				rows[i].version / 1000, rows[i].version % 1000 / 10);
			oh_remedy(error,
				  "install a newer NVIDIA driver, or use the device \"host\"");
			return ONEHOP_NO_DEVICE;
		}
		memcpy((char *)table + rows[i].offset, &symbol, sizeof symbol);
	}
	return ONEHOP_OK;
}

static void
load_once(void)
{
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		const char *why = dlerror();
		oh_fail(&driver.error, ONEHOP_NO_DEVICE, "no NVIDIA driver: %s",
			why ? why : LIBRARY " cannot be loaded");
		oh_remedy(&driver.error, "install the NVIDIA driver, or use the device \"host\"");
		return;
	}
	if (fill_table(library, &driver.table, &driver.error) != ONEHOP_OK)
		dlclose(library);
}

onehop_status
oh_cuda_load(const struct oh_cuda **cuda, struct onehop_error *error)
{
	pthread_once(&driver.once, load_once);
	if (driver.error.status != ONEHOP_OK) {
		if (error)
			*error = driver.error;
		return driver.error.status;
	}
	*cuda = &driver.table;
	return ONEHOP_OK;
}

onehop_status
oh_cuda_start(const struct oh_cuda **cuda, uint32_t *count, struct onehop_error *error)
{
	const struct oh_cuda *cu;
	int devices = 0;
	onehop_status status = oh_cuda_load(&cu, error);
	if (status != ONEHOP_OK)
		return status;
	oh_cu_result code = cu->init(0);
	if (code == OH_CU_SUCCESS)
		code = cu->device_count(&devices);
	if (code != OH_CU_SUCCESS) {
		oh_cuda_fail(cu, error, code, "the NVIDIA driver does not start");
		if (error)
			error->status = ONEHOP_NO_DEVICE;
		oh_remedy(error, "see whether nvidia-smi works, or use the device \"host\"");
		return ONEHOP_NO_DEVICE;
	}
	*cuda = cu;
	*count = devices > 0 ? (uint32_t)devices : 0;
	return ONEHOP_OK;
}

/* What the caller has to do about a code. */
static onehop_status
status_of(oh_cu_result code)
{
	switch (code) {
	case OH_CU_ERROR_OUT_OF_MEMORY:
		return ONEHOP_NO_DEVICE_MEMORY;
	/* After these every call of the context fails, or there is no context any more. */
	case OH_CU_ERROR_DEINITIALIZED:
	case OH_CU_ERROR_DEVICE_UNAVAILABLE:
	case OH_CU_ERROR_INVALID_CONTEXT:
	case OH_CU_ERROR_ECC_UNCORRECTABLE:
	case OH_CU_ERROR_NVLINK_UNCORRECTABLE:
	case OH_CU_ERROR_CONTAINED:
	case OH_CU_ERROR_ILLEGAL_ADDRESS:
	case OH_CU_ERROR_LAUNCH_TIMEOUT:
	case OH_CU_ERROR_CONTEXT_IS_DESTROYED:
	case OH_CU_ERROR_ASSERT:
	case OH_CU_ERROR_HARDWARE_STACK_ERROR:
	case OH_CU_ERROR_ILLEGAL_INSTRUCTION:
	case OH_CU_ERROR_MISALIGNED_ADDRESS:
	case OH_CU_ERROR_INVALID_ADDRESS_SPACE:
	case OH_CU_ERROR_INVALID_PC:
	case OH_CU_ERROR_LAUNCH_FAILED:
	case OH_CU_ERROR_TENSOR_MEMORY_LEAK:
		return ONEHOP_DEVICE_LOST;
	default:
		return ONEHOP_DRIVER;
	}
}

onehop_status
oh_cuda_fail(const struct oh_cuda *cuda, struct onehop_error *error, oh_cu_result code,
	     const char *format, ...)
{
	const char *name = NULL, *text = NULL;
	char what[512], number[32];
	va_list args;
	onehop_status status = status_of(code);
	if (!error)
		return status;
	va_start(args, format);
	vsnprintf(what, sizeof what, format, args);
	va_end(args);
	/* Both set NULL for a code that this driver does not know. */
	if (cuda->error_name(code, &name) != OH_CU_SUCCESS || !name) {
		snprintf(number, sizeof number, "CUDA error %u", code);
		name = number;
	}
	if (cuda->error_string(code, &text) != OH_CU_SUCCESS || !text)
		text = "no explanation";
	oh_fail(error, status, "%s: %s (%s)", what, name, text);
	error->driver_code = (int32_t)code;
	if (status == ONEHOP_DEVICE_LOST)
		oh_remedy(error, "reset the device or end the process, then start again");
	return status;
}
