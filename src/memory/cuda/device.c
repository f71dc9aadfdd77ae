/* CUDA devices: which context is used, whether it is still there, and what is known of the device.
 *
 * The context is the opener's current one if that is on the device, else the primary, retained. It
 * is pushed and popped around each piece of driver work, so that no call leaves anything current
 * and calls may come from any thread. Contexts are never created or reset here.
 *
 * A caller may reset or destroy the context under us. Then streams, events, registrations and
 * allocations of it are gone, and touching their handles is undefined: everything carries the
 * generation of its context, and handles of an older generation are only forgotten.
 */
#include "memory/cuda/device.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* CUDA's word for a context handle that is of no use any more. */
static int
means_gone(oh_cu_result code)
{
	return code == OH_CU_ERROR_INVALID_CONTEXT || code == OH_CU_ERROR_CONTEXT_IS_DESTROYED;
}

/* Is the context that we hold gone? Without cuCtxGetId (before CUDA 12.0) a primary context that
 * somebody reset and then used again passes as the old one. Lock held. */
static int
context_gone(struct oh_device *device)
{
	const struct oh_cuda *cu = device->cu;
	unsigned long long id = 0;
	unsigned int flags, version;
	int active = 1;
	if (!device->context)
		return 1;
	if (device->primary &&
	    cu->primary_state(device->device, &flags, &active) == OH_CU_SUCCESS && !active)
		return 1;
	if (!cu->ctx_id)
		return means_gone(cu->ctx_version(device->context, &version));
	oh_cu_result code = cu->ctx_id(device->context, &id);
	return code == OH_CU_SUCCESS ? id != device->context_id : means_gone(code);
}

/* A reference outlives a reset and has to be given back after it too. Lock held. */
static void
drop_context(struct oh_device *device)
{
	if (device->primary)
		device->cu->primary_release(device->device);
	device->context = NULL;
	device->primary = 0;
}

struct CUctx_st *
oh_cuda_current(struct oh_device *device)
{
	const struct oh_cuda *cu = device->cu;
	struct CUctx_st *current = NULL;
	oh_cu_device on;
	if (cu->ctx_current(&current) != OH_CU_SUCCESS || !current)
		return NULL;
	if (cu->ctx_device(&on) != OH_CU_SUCCESS || on != device->device)
		return NULL;
	return current;
}

/* Lock held, or the device not shared yet. */
static onehop_status
take_context(struct oh_device *device, struct onehop_error *error)
{
	const struct oh_cuda *cu = device->cu;
	struct CUctx_st *current = oh_cuda_current(device), *primary = NULL;
	unsigned long long id = 0;
	unsigned int flags;
	int active = 0;
	oh_cu_result code = OH_CU_SUCCESS;

	/* A current context can only be the primary if that is active; it is not made for asking. */
	if (current && (cu->primary_state(device->device, &flags, &active) != OH_CU_SUCCESS))
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
	device->generation++;
	return ONEHOP_OK;
}

onehop_status
oh_cuda_enter(struct oh_device *device, uint32_t *generation, struct onehop_error *error)
{
	onehop_status status = ONEHOP_OK;
	pthread_mutex_lock(&device->lock);
	if (context_gone(device)) {
		drop_context(device);
		status = take_context(device, error);
	}
	struct CUctx_st *context = device->context;
	*generation = device->generation;
	pthread_mutex_unlock(&device->lock);
	if (status != ONEHOP_OK)
		return status;
	oh_cu_result code = device->cu->ctx_push(context);
	if (code != OH_CU_SUCCESS)
		return oh_cuda_fail(device->cu, error, code,
				    "the CUDA context on cuda:%u cannot be made current",
				    device->ordinal);
	return ONEHOP_OK;
}

oh_cu_result
oh_cuda_enter_old(struct oh_device *device, uint32_t generation)
{
	pthread_mutex_lock(&device->lock);
	struct CUctx_st *context = device->context;
	int good = generation == device->generation && !context_gone(device);
	pthread_mutex_unlock(&device->lock);
	return good ? device->cu->ctx_push(context) : OH_CU_ERROR_CONTEXT_IS_DESTROYED;
}

void
oh_cuda_leave(struct oh_device *device)
{
	struct CUctx_st *popped;
	device->cu->ctx_pop(&popped);
}

onehop_status
oh_cuda_stream(struct oh_device *device, uint32_t generation, struct CUstream_st **stream,
	       struct onehop_error *error)
{
	oh_cu_result code = OH_CU_SUCCESS;
	pthread_mutex_lock(&device->lock);
	if (!device->stream || device->stream_generation != generation) {
		code = device->cu->stream_create(&device->stream, OH_CU_STREAM_NON_BLOCKING);
		if (code != OH_CU_SUCCESS)
			device->stream = NULL;
		device->stream_generation = generation;
	}
	*stream = device->stream;
	pthread_mutex_unlock(&device->lock);
	if (code != OH_CU_SUCCESS)
		return oh_cuda_fail(device->cu, error, code, "no stream on cuda:%u",
				    device->ordinal);
	return ONEHOP_OK;
}

onehop_status
oh_cuda_hold(struct oh_device *device, enum oh_cuda_kind kind, uint64_t address,
	     uint32_t generation, struct onehop_error *error)
{
	struct oh_cuda_holding *holding = malloc(sizeof *holding);
	if (!holding)
		return oh_fail_no_memory(error, sizeof *holding, "a note of device memory");
	*holding = (struct oh_cuda_holding){NULL, address, generation, kind};
	pthread_mutex_lock(&device->lock);
	holding->next = device->holdings;
	device->holdings = holding;
	pthread_mutex_unlock(&device->lock);
	return ONEHOP_OK;
}

/* The latest with that address is at the head: an older one of a context that is gone may have had
 * the same, and goes with it. */
uint32_t
oh_cuda_forget(struct oh_device *device, enum oh_cuda_kind kind, uint64_t address)
{
	uint32_t generation = 0;
	pthread_mutex_lock(&device->lock);
	struct oh_cuda_holding **at = &device->holdings;
	while (*at) {
		struct oh_cuda_holding *holding = *at;
		if (holding->kind != kind || holding->address != address) {
			at = &holding->next;
			continue;
		}
		if (!generation)
			generation = holding->generation;
		*at = holding->next;
		free(holding);
	}
	pthread_mutex_unlock(&device->lock);
	return generation;
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
	oh_cu_result code = cu->device_get(&made->device, (int)ordinal);
	if (code != OH_CU_SUCCESS)
		status = oh_cuda_fail(cu, error, code, "cuda:%u cannot be opened", ordinal);
	else
		status = take_context(made, error);
	if (status != ONEHOP_OK) {
		free(made);
		return status;
	}
	pthread_mutex_init(&made->lock, NULL);
	*device = made;
	return ONEHOP_OK;
}

/* What its owner did not give back goes with the device. */
static void
drop_holdings(struct oh_device *device)
{
	const struct oh_cuda *cu = device->cu;
	while (device->holdings) {
		struct oh_cuda_holding *holding = device->holdings;
		device->holdings = holding->next;
		if (oh_cuda_enter_old(device, holding->generation) == OH_CU_SUCCESS) {
			if (holding->kind == OH_CUDA_PIN)
				cu->host_unregister((void *)(uintptr_t)holding->address);
			else
				cu->mem_free(holding->address);
			oh_cuda_leave(device);
		}
		free(holding);
	}
}

void
oh_cuda_close(struct oh_device *device)
{
	if (!device)
		return;
	if (device->stream &&
	    oh_cuda_enter_old(device, device->stream_generation) == OH_CU_SUCCESS) {
		device->cu->stream_destroy(device->stream);
		oh_cuda_leave(device);
	}
	drop_holdings(device);
	drop_context(device);
	pthread_mutex_destroy(&device->lock);
	free(device);
}

int
oh_cuda_alive(struct oh_device *device)
{
	pthread_mutex_lock(&device->lock);
	int alive = !context_gone(device);
	for (struct oh_cuda_holding *h = device->holdings; h && alive; h = h->next)
		if (h->kind == OH_CUDA_PIN && h->generation != device->generation)
			alive = 0;
	pthread_mutex_unlock(&device->lock);
	return alive;
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
	uint32_t generation;
	oh_cu_result code = cu->device_name(got.name, (int)sizeof got.name - 1, device->device);
	if (code == OH_CU_SUCCESS)
		code = cu->device_memory(&total, device->device);
	if (code == OH_CU_SUCCESS)
		code = cu->device_pci(got.pci, (int)sizeof got.pci - 1, device->device);
	if (code == OH_CU_SUCCESS)
		code = cu->driver_version(&version);
	if (code == OH_CU_SUCCESS) {
		onehop_status status = oh_cuda_enter(device, &generation, error);
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
