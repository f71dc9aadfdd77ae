/* CUDA devices: which context is used, whether it is still there, and what is known of the device.
 *
 * The context is the opener's current one if that is on the device, else the primary, retained. It
 * is pushed and popped around each piece of driver work, so that no call leaves anything current
 * and calls may come from any thread. Contexts are never created or reset here. Inside, the thread's
 * capture mode is relaxed: what a program captures into a graph meanwhile, on a stream of its own,
 * has nothing to do with our streams, and would be invalidated by our asking for an event.
 *
 * A caller may reset or destroy the context under us. Then its streams, events, registrations and
 * allocations are gone, and touching their handles is undefined: each call first asks whether the
 * context is still the one that was opened. If it is not, the device is of no more use, says
 * DEVICE_LOST, and can only be closed; its owner opens it again.
 */
#include "memory/cuda/device.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

/* CUDA's words for a context handle that is of no use any more. */
static int
means_gone(oh_cu_result code)
{
	return code == OH_CU_ERROR_INVALID_CONTEXT || code == OH_CU_ERROR_CONTEXT_IS_DESTROYED;
}

/* Asks the driver. Without cuCtxGetId (before CUDA 12.0) a primary context that somebody reset and
 * used again before we looked passes as the old one. */
static int
ask_whether_gone(const struct oh_device *device)
{
	const struct oh_cuda *cu = device->cu;
	unsigned long long id = 0;
	unsigned int flags, version;
	int active = 1;
	if (device->primary &&
	    cu->primary_state(device->device, &flags, &active) == OH_CU_SUCCESS && !active)
		return 1;
	if (!cu->ctx_id)
		return means_gone(cu->ctx_version(device->context, &version));
	oh_cu_result code = cu->ctx_id(device->context, &id);
	return code == OH_CU_SUCCESS ? id != device->context_id : means_gone(code);
}

static int
context_gone(struct oh_device *device)
{
	if (!atomic_load(&device->gone) && ask_whether_gone(device))
		atomic_store(&device->gone, 1);
	return atomic_load(&device->gone);
}

struct CUctx_st *
oh_cuda_current(const struct oh_cuda *cu, oh_cu_device device)
{
	struct CUctx_st *current = NULL;
	unsigned int version;
	oh_cu_device on;
	if (cu->ctx_current(&current) != OH_CU_SUCCESS || !current)
		return NULL;
	if (cu->ctx_device(&on) != OH_CU_SUCCESS || on != device)
		return NULL;
	/* One that was reset or destroyed stays current, and still tells its device. */
	return cu->ctx_version(current, &version) == OH_CU_SUCCESS ? current : NULL;
}

static onehop_status
take_context(struct oh_device *device, struct onehop_error *error)
{
	const struct oh_cuda *cu = device->cu;
	struct CUctx_st *current = oh_cuda_current(cu, device->device), *primary = NULL;
	unsigned long long id = 0;
	unsigned int flags;
	int active = 0;
	oh_cu_result code = OH_CU_SUCCESS;

	/* A current context can be the primary only if that is active; asking must not make it. */
	if (current && cu->primary_state(device->device, &flags, &active) != OH_CU_SUCCESS)
		active = 0;
	if (!current || active) {
		code = cu->primary_retain(&primary, device->device);
		if (code != OH_CU_SUCCESS)
			return oh_cuda_fail(cu, error, code, "no CUDA context on cuda:%u",
					    device->ordinal);
		if (current && primary != current) {
			cu->primary_release(device->device);
			primary = NULL;
		}
	}
	struct CUctx_st *context = primary ? primary : current;
	if (cu->ctx_id)
		code = cu->ctx_id(context, &id);
	if (code != OH_CU_SUCCESS) {
		if (primary)
			cu->primary_release(device->device);
		return oh_cuda_fail(cu, error, code, "the CUDA context on cuda:%u cannot be used",
				    device->ordinal);
	}
	device->context = context;
	device->context_id = id;
	device->primary = primary != NULL;
	return ONEHOP_OK;
}

/* How often the thread has entered, and its capture mode before. */
static _Thread_local struct {
	unsigned int depth;
	unsigned int mode;
	int is_relaxed; /* in place of that mode */
} entered;

static void
relax(const struct oh_cuda *cu)
{
	unsigned int mode = OH_CU_CAPTURE_RELAXED;
	if (entered.depth++ || !cu->capture_mode)
		return;
	entered.is_relaxed = cu->capture_mode(&mode) == OH_CU_SUCCESS;
	entered.mode = mode;
}

static void
unrelax(const struct oh_cuda *cu)
{
	unsigned int mode = entered.mode;
	if (--entered.depth == 0 && entered.is_relaxed)
		cu->capture_mode(&mode);
}

onehop_status
oh_cuda_enter(struct oh_device *device, struct onehop_error *error)
{
	if (context_gone(device)) {
		oh_fail(error, ONEHOP_DEVICE_LOST,
			"the CUDA context that cuda:%u was opened in was reset or destroyed",
			device->ordinal);
		oh_remedy(error, "open the device again; what was in its memory is lost");
		return ONEHOP_DEVICE_LOST;
	}
	oh_cu_result code = device->cu->ctx_push(device->context);
	if (code != OH_CU_SUCCESS)
		return oh_cuda_fail(device->cu, error, code,
				    "the CUDA context on cuda:%u cannot be made current",
				    device->ordinal);
	relax(device->cu);
	return ONEHOP_OK;
}

/* What is taken down in a context is lost if it cannot be entered: that is tried twice. */
int
oh_cuda_enter_quietly(struct oh_device *device)
{
	return oh_cuda_enter(device, NULL) == ONEHOP_OK || oh_cuda_enter(device, NULL) == ONEHOP_OK;
}

void
oh_cuda_leave(struct oh_device *device)
{
	struct CUctx_st *popped;
	unrelax(device->cu);
	device->cu->ctx_pop(&popped);
}

uint32_t
oh_cuda_count(void)
{
	const struct oh_cuda *cu;
	uint32_t count;
	return oh_cuda_start(&cu, &count, NULL) == ONEHOP_OK ? count : 0;
}

static enum oh_cuda_way
best_way(const struct oh_cuda *cu)
{
	if (cu->batch_13)
		return OH_CUDA_BATCH_13;
	return cu->batch_12 ? OH_CUDA_BATCH_12 : OH_CUDA_LOOP;
}

static onehop_status
make_stream(struct oh_device *device, struct onehop_error *error)
{
	onehop_status status = oh_cuda_enter(device, error);
	if (status != ONEHOP_OK)
		return status;
	oh_cu_result code =
		device->cu->stream_create(&device->stream, OH_CU_STREAM_NON_BLOCKING);
	oh_cuda_leave(device);
	if (code != OH_CU_SUCCESS)
		return oh_cuda_fail(device->cu, error, code, "no stream on cuda:%u",
				    device->ordinal);
	return ONEHOP_OK;
}

/* A reference outlives a reset and has to be given back after it too. */
static void
drop_context(struct oh_device *device)
{
	if (device->primary)
		device->cu->primary_release(device->device);
}

onehop_status
oh_cuda_open(uint32_t ordinal, struct oh_device **device, struct onehop_error *error)
{
	const struct oh_cuda *cu;
	uint32_t count;
	onehop_status status = oh_cuda_start(&cu, &count, error);
	if (status != ONEHOP_OK)
		return status;
	if (ordinal >= count)
		return oh_fail(error, ONEHOP_NO_DEVICE,
			       "no device cuda:%u: the driver shows %u device%s", ordinal, count,
			       count == 1 ? "" : "s");

	struct oh_device *made = calloc(1, sizeof *made);
	if (!made)
		return oh_fail_no_memory(error, sizeof *made, "a device");
	made->cu = cu;
	made->ordinal = ordinal;
	atomic_init(&made->way, best_way(cu));
	atomic_init(&made->gone, 0);
	oh_cu_result code = cu->device_get(&made->device, (int)ordinal);
	if (code != OH_CU_SUCCESS) {
		status = oh_cuda_fail(cu, error, code, "cuda:%u cannot be opened", ordinal);
		goto free_device;
	}
	status = take_context(made, error);
	if (status != ONEHOP_OK)
		goto free_device;
	status = make_stream(made, error);
	if (status != ONEHOP_OK)
		goto drop_context;
	*device = made;
	return ONEHOP_OK;

drop_context:
	drop_context(made);
free_device:
	free(made);
	return status;
}

void
oh_cuda_close(struct oh_device *device)
{
	if (!device)
		return;
	if (oh_cuda_enter_quietly(device)) {
		device->cu->stream_destroy(device->stream);
		oh_cuda_leave(device);
	}
	drop_context(device);
	free(device);
}

int
oh_cuda_alive(struct oh_device *device)
{
	return !context_gone(device);
}

static void
describe_uuid(struct oh_device *device, char *text, size_t bytes)
{
	const struct oh_cuda *cu = device->cu;
	unsigned char u[16];
	oh_cu_result code = OH_CU_ERROR_NOT_SUPPORTED;
	if (cu->uuid_v2)
		code = cu->uuid_v2((struct CUuuid_st *)u, device->device);
	else if (cu->uuid)
		code = cu->uuid((struct CUuuid_st *)u, device->device);
	text[0] = '\0';
	if (code == OH_CU_SUCCESS)
		snprintf(text, bytes,
			 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
			 u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11],
			 u[12], u[13], u[14], u[15]);
}

static oh_cu_result
free_memory(struct oh_device *device, uint64_t *free_bytes)
{
	size_t left = 0, total = 0;
	oh_cu_result code = device->cu->mem_info(&left, &total);
	*free_bytes = left;
	return code;
}

onehop_status
oh_cuda_describe(struct oh_device *device, struct onehop_device_info *info,
		 struct onehop_error *error)
{
	const struct oh_cuda *cu = device->cu;
	struct onehop_device_info got = {.size = info->size, .pointer_bits = sizeof(void *) * 8};
	size_t total = 0;
	int version = 0;
	oh_cu_result code = cu->device_name(got.name, (int)sizeof got.name - 1, device->device);
	if (code == OH_CU_SUCCESS)
		code = cu->device_memory(&total, device->device);
	if (code == OH_CU_SUCCESS)
		code = cu->device_pci(got.pci, (int)sizeof got.pci - 1, device->device);
	if (code == OH_CU_SUCCESS)
		code = cu->driver_version(&version);
	if (code == OH_CU_SUCCESS) {
		onehop_status status = oh_cuda_enter(device, error);
		if (status != ONEHOP_OK)
			return status;
		code = free_memory(device, &got.free_bytes);
		oh_cuda_leave(device);
	}
	if (code != OH_CU_SUCCESS)
		return oh_cuda_fail(cu, error, code, "cuda:%u does not describe itself",
				    device->ordinal);
	for (char *c = got.pci; *c; c++)
		*c = (char)tolower((unsigned char)*c);
	describe_uuid(device, got.uuid, sizeof got.uuid);
	snprintf(got.driver, sizeof got.driver, "CUDA %d.%d", version / 1000, version % 1000 / 10);
	got.total_bytes = total;
	got.batch_copy = atomic_load(&device->way) != OH_CUDA_LOOP;
	*info = got;
	return ONEHOP_OK;
}
