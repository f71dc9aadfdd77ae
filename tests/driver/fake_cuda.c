/* A look-alike libcuda.so.1: the functions of CUDA's driver that onehop and its tests use, with the
 * answers that the real driver gives, for machines without a GPU. tests/driver/parity.c runs
 * against both, and what the real one answered is committed.
 *
 * It refuses what the real one refuses, and dies where that dies (a bad pointer in a batch). What
 * is undefined there (a destroyed stream, memory unregistered under a copy) is counted as misuse,
 * for tests to look at.
 */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

oh_cu_result
cuInit(unsigned int flags)
{
	ENTER();
	if (flags != 0)
		LEAVE(OH_CU_ERROR_INVALID_VALUE);
	if (fake.initialized && fake.process != (int)getpid())
		LEAVE(OH_CU_ERROR_NOT_INITIALIZED);
	if (fake.device_count == 0)
		LEAVE(OH_CU_ERROR_NO_DEVICE);
	fake.process = (int)getpid();
	fake.initialized = 1;
	LEAVE(OH_CU_SUCCESS);
}

oh_cu_result
cuDriverGetVersion(int *version)
{
	ENTER();
	*version = FAKE_CUDA_VERSION;
	LEAVE(OH_CU_SUCCESS);
}

#define NAME_ROW(name, value) {value, "CUDA_" #name},
static const struct {
	oh_cu_result code;
	const char *name;
} names[] = {OH_CU_RESULTS(NAME_ROW){101, "CUDA_ERROR_INVALID_DEVICE"},
	     {708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE"}};

oh_cu_result
cuGetErrorName(oh_cu_result code, const char **name)
{
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		if (names[i].code == code) {
			*name = names[i].name;
			return OH_CU_SUCCESS;
		}
	}
	*name = NULL;
	return OH_CU_ERROR_INVALID_VALUE;
}

oh_cu_result
cuGetErrorString(oh_cu_result code, const char **text)
{
	oh_cu_result found = cuGetErrorName(code, text);
	if (found == OH_CU_SUCCESS)
		*text = "as the look-alike driver puts it";
	return found;
}

oh_cu_result
cuDeviceGetCount(int *count)
{
	ENTER();
	*count = fake.device_count;
	LEAVE(fake_ready());
}

static oh_cu_result
check_device(oh_cu_device device)
{
	oh_cu_result code = fake_ready();
	if (code == OH_CU_SUCCESS && (device < 0 || device >= fake.device_count))
		code = 101;
	return code;
}

oh_cu_result
cuDeviceGet(oh_cu_device *device, int ordinal)
{
	ENTER();
	*device = ordinal;
	LEAVE(check_device(ordinal));
}

oh_cu_result
cuDeviceGetName(char *name, int bytes, oh_cu_device device)
{
	ENTER();
	snprintf(name, (size_t)bytes, "Look-alike GPU");
	LEAVE(check_device(device));
}

oh_cu_result
cuDeviceTotalMem_v2(size_t *bytes, oh_cu_device device)
{
	ENTER();
	oh_cu_result code = check_device(device);
	if (code == OH_CU_SUCCESS)
		*bytes = fake.devices[device].total;
	LEAVE(code);
}

oh_cu_result
cuDeviceGetAttribute(int *value, unsigned int attribute, oh_cu_device device)
{
	ENTER();
	oh_cu_result code = check_device(device);
	if (code == OH_CU_SUCCESS && attribute != OH_CU_DEVICE_READ_ONLY_REGISTER)
		code = OH_CU_ERROR_INVALID_VALUE;
	if (code == OH_CU_SUCCESS)
		*value = 1;
	LEAVE(code);
}

oh_cu_result
cuDeviceGetPCIBusId(char *id, int bytes, oh_cu_device device)
{
	ENTER();
	snprintf(id, (size_t)bytes, "0000:0%X:00.0", device + 10);
	LEAVE(check_device(device));
}

static oh_cu_result
fill_uuid(struct CUuuid_st *uuid, oh_cu_device device)
{
	memset(uuid, 0xAB, 16);
	memset(uuid, device, 1);
	return check_device(device);
}

oh_cu_result
cuDeviceGetUuid(struct CUuuid_st *uuid, oh_cu_device device)
{
	ENTER();
	LEAVE(fill_uuid(uuid, device));
}

oh_cu_result
cuDeviceGetUuid_v2(struct CUuuid_st *uuid, oh_cu_device device)
{
	ENTER();
	LEAVE(fill_uuid(uuid, device));
}

oh_cu_result
cuCtxGetCurrent(struct CUctx_st **context)
{
	int *depth;
	ENTER();
	struct CUctx_st **stack = fake_stack(&depth);
	*context = *depth ? stack[*depth - 1] : NULL;
	LEAVE(fake_ready());
}

oh_cu_result
cuCtxPushCurrent_v2(struct CUctx_st *context)
{
	int *depth;
	ENTER();
	struct CUctx_st **stack = fake_stack(&depth);
	oh_cu_result code = fake_ready();
	if (code == OH_CU_SUCCESS && !context)
		code = OH_CU_ERROR_INVALID_VALUE;
	if (code == OH_CU_SUCCESS && *depth == FAKE_STACK)
		code = OH_CU_ERROR_INVALID_CONTEXT;
	/* One that is gone is made current all the same. */
	if (code == OH_CU_SUCCESS)
		stack[(*depth)++] = context;
	LEAVE(code);
}

oh_cu_result
cuCtxPopCurrent_v2(struct CUctx_st **context)
{
	int *depth;
	ENTER_UNDO();
	struct CUctx_st **stack = fake_stack(&depth);
	oh_cu_result code = fake_ready();
	if (code == OH_CU_SUCCESS && *depth == 0)
		code = OH_CU_ERROR_INVALID_CONTEXT;
	if (code == OH_CU_SUCCESS) {
		(*depth)--;
		if (context)
			*context = stack[*depth];
	}
	LEAVE_UNDO(code);
}

oh_cu_result
cuCtxSetCurrent(struct CUctx_st *context)
{
	int *depth;
	ENTER();
	struct CUctx_st **stack = fake_stack(&depth);
	if (context && !context->alive && !context->primary)
		LEAVE(OH_CU_ERROR_CONTEXT_IS_DESTROYED);
	if (*depth > 0)
		(*depth)--;
	if (context)
		stack[(*depth)++] = context;
	LEAVE(fake_ready());
}

/* Also for a current context that is gone. */
oh_cu_result
cuCtxGetDevice(oh_cu_device *device)
{
	int *depth;
	ENTER();
	struct CUctx_st **stack = fake_stack(&depth);
	oh_cu_result code = fake_ready();
	if (code == OH_CU_SUCCESS && *depth == 0)
		code = OH_CU_ERROR_INVALID_CONTEXT;
	if (code != OH_CU_SUCCESS)
		LEAVE(code);
	*device = stack[*depth - 1]->device->ordinal;
	LEAVE(stack[*depth - 1]->alive ? stack[*depth - 1]->device->lost : OH_CU_SUCCESS);
}

oh_cu_result
cuCtxGetApiVersion(struct CUctx_st *context, unsigned int *version)
{
	ENTER();
	*version = 3020;
	oh_cu_result code = context ? fake_ready() : fake_current(&context);
	if (code == OH_CU_SUCCESS && !context->alive)
		code = OH_CU_ERROR_INVALID_CONTEXT;
	LEAVE(code);
}

#if FAKE_CUDA_VERSION >= 12000
oh_cu_result
cuCtxGetId(struct CUctx_st *context, unsigned long long *id)
{
	ENTER();
	oh_cu_result code = context ? fake_ready() : fake_current(&context);
	if (code == OH_CU_SUCCESS && !context->alive)
		code = OH_CU_ERROR_CONTEXT_IS_DESTROYED;
	if (code == OH_CU_SUCCESS)
		*id = context->id;
	LEAVE(code);
}
#endif

static struct CUctx_st *
make_context(struct fake_device *device, int primary)
{
	struct CUctx_st *made = calloc(1, sizeof *made);
	if (!made)
		return NULL;
	made->device = device;
	made->primary = primary;
	made->next = fake.contexts;
	fake.contexts = made;
	return made;
}

oh_cu_result
cuCtxCreate_v2(struct CUctx_st **context, unsigned int flags, oh_cu_device device)
{
	int *depth;
	(void)flags;
	ENTER();
	struct CUctx_st **stack = fake_stack(&depth);
	oh_cu_result code = check_device(device);
	if (code != OH_CU_SUCCESS)
		LEAVE(code);
	struct CUctx_st *made = make_context(&fake.devices[device], 0);
	if (!made || *depth == FAKE_STACK)
		LEAVE(OH_CU_ERROR_OUT_OF_MEMORY);
	made->id = fake.next_id++;
	made->alive = 1;
	stack[(*depth)++] = made;
	*context = made;
	LEAVE(OH_CU_SUCCESS);
}

oh_cu_result
cuCtxDestroy_v2(struct CUctx_st *context)
{
	int *depth;
	ENTER_UNDO();
	struct CUctx_st **stack = fake_stack(&depth);
	if (!context || context->primary)
		LEAVE_UNDO(OH_CU_ERROR_INVALID_CONTEXT);
	if (!context->alive)
		LEAVE_UNDO(OH_CU_ERROR_CONTEXT_IS_DESTROYED);
	if (*depth && stack[*depth - 1] == context)
		(*depth)--;
	fake_kill(context);
	LEAVE_UNDO(OH_CU_SUCCESS);
}

oh_cu_result
cuDevicePrimaryCtxRetain(struct CUctx_st **context, oh_cu_device device)
{
	ENTER();
	oh_cu_result code = check_device(device);
	if (code != OH_CU_SUCCESS)
		LEAVE(code);
	struct fake_device *on = &fake.devices[device];
	if (!on->primary && !(on->primary = make_context(on, 1)))
		LEAVE(OH_CU_ERROR_OUT_OF_MEMORY);
	if (!on->primary->alive) {
		on->primary->alive = 1;
		on->primary->id = fake.next_id++;
	}
	on->primary_references++;
	*context = on->primary;
	LEAVE(OH_CU_SUCCESS);
}

oh_cu_result
cuDevicePrimaryCtxRelease_v2(oh_cu_device device)
{
	ENTER_UNDO();
	oh_cu_result code = check_device(device);
	if (code != OH_CU_SUCCESS)
		LEAVE_UNDO(code);
	struct fake_device *on = &fake.devices[device];
	if (on->primary_references == 0)
		LEAVE_UNDO(OH_CU_ERROR_INVALID_CONTEXT);
	if (--on->primary_references == 0 && on->primary->alive)
		fake_kill(on->primary);
	LEAVE_UNDO(OH_CU_SUCCESS);
}

oh_cu_result
cuDevicePrimaryCtxReset_v2(oh_cu_device device)
{
	ENTER_UNDO();
	oh_cu_result code = check_device(device);
	if (code == OH_CU_SUCCESS && fake.devices[device].primary &&
	    fake.devices[device].primary->alive)
		fake_kill(fake.devices[device].primary);
	LEAVE_UNDO(code);
}

oh_cu_result
cuDevicePrimaryCtxGetState(oh_cu_device device, unsigned int *flags, int *active)
{
	ENTER();
	oh_cu_result code = check_device(device);
	*flags = 0;
	if (code == OH_CU_SUCCESS)
		*active = fake.devices[device].primary && fake.devices[device].primary->alive;
	LEAVE(code);
}

oh_cu_result
cuStreamCreate(struct CUstream_st **stream, unsigned int flags)
{
	struct CUctx_st *context;
	ENTER();
	oh_cu_result code = fake_current(&context);
	if (code == OH_CU_SUCCESS && flags > 1)
		code = OH_CU_ERROR_INVALID_VALUE;
	if (code == OH_CU_SUCCESS)
		code = fake_stream_make(context, flags, 0, stream);
	LEAVE(code);
}

/* Finds the stream that a handle means in the current context. */
static oh_cu_result
find_stream(struct CUstream_st *handle, struct CUstream_st **stream)
{
	struct CUctx_st *context;
	oh_cu_result code = fake_current(&context);
	return code == OH_CU_SUCCESS ? fake_stream_of(handle, context, stream) : code;
}

oh_cu_result
cuStreamDestroy_v2(struct CUstream_st *handle)
{
	struct CUstream_st *stream;
	ENTER_UNDO();
	if ((uintptr_t)handle <= 2)
		LEAVE_UNDO(OH_CU_ERROR_INVALID_HANDLE);
	oh_cu_result code = find_stream(handle, &stream);
	if (code == OH_CU_SUCCESS) {
		stream->destroyed = 1;
		pthread_cond_broadcast(&fake.changed);
	}
	LEAVE_UNDO(code);
}

oh_cu_result
cuStreamSynchronize(struct CUstream_st *handle)
{
	struct CUstream_st *stream;
	ENTER();
	oh_cu_result code = find_stream(handle, &stream);
	if (code == OH_CU_SUCCESS)
		code = fake_drain(stream);
	LEAVE(code);
}

oh_cu_result
cuStreamQuery(struct CUstream_st *handle)
{
	struct CUstream_st *stream;
	ENTER();
	oh_cu_result code = find_stream(handle, &stream);
	if (code == OH_CU_SUCCESS && stream->done < stream->given)
		code = OH_CU_ERROR_NOT_READY;
	LEAVE(code);
}

oh_cu_result
cuStreamGetCtx(struct CUstream_st *handle, struct CUctx_st **context)
{
	struct CUstream_st *stream;
	ENTER();
	oh_cu_result code = find_stream(handle, &stream);
	if (code == OH_CU_SUCCESS)
		*context = stream->context;
	LEAVE(code);
}

oh_cu_result
cuStreamIsCapturing(struct CUstream_st *handle, unsigned int *status)
{
	struct CUstream_st *stream;
	ENTER();
	oh_cu_result code = find_stream(handle, &stream);
	if (code == OH_CU_SUCCESS)
		*status = (unsigned int)(stream->captured != 0);
	LEAVE(code);
}

oh_cu_result
cuThreadExchangeStreamCaptureMode(unsigned int *mode)
{
	ENTER();
	unsigned int before = *fake_capture_mode();
	*fake_capture_mode() = *mode;
	*mode = before;
	LEAVE(fake_ready());
}

oh_cu_result
cuStreamBeginCapture_v2(struct CUstream_st *handle, unsigned int mode)
{
	struct CUstream_st *stream;
	ENTER();
	oh_cu_result code = find_stream(handle, &stream);
	if (code == OH_CU_SUCCESS) {
		stream->captured = 1 + (int)mode;
		fake.captures += mode == 0;
	}
	LEAVE(code);
}

/* Graphs stay empty: nothing is ever given to a stream that is being captured. */
oh_cu_result
cuStreamEndCapture(struct CUstream_st *handle, struct CUgraph_st **graph)
{
	struct CUstream_st *stream;
	ENTER();
	oh_cu_result code = find_stream(handle, &stream);
	if (code == OH_CU_SUCCESS) {
		int is_global = stream->captured == 1;
		stream->captured = 0;
		*graph = (struct CUgraph_st *)&fake;
		if (is_global && fake.invalidated) {
			*graph = NULL;
			code = (oh_cu_result)FAKE_CAPTURE_INVALIDATED;
		}
		fake.captures -= is_global;
		fake.invalidated &= fake.captures > 0;
	}
	LEAVE(code);
}

oh_cu_result
cuGraphDestroy(struct CUgraph_st *graph)
{
	ENTER_UNDO();
	LEAVE_UNDO(graph ? fake_ready() : OH_CU_ERROR_INVALID_VALUE);
}

oh_cu_result
cuLaunchHostFunc(struct CUstream_st *handle, void (*run)(void *), void *data)
{
	struct CUstream_st *stream;
	ENTER();
	oh_cu_result code = find_stream(handle, &stream);
	if (code == OH_CU_SUCCESS)
		code = fake_give(stream,
				 (struct fake_op){.kind = FAKE_CALL, .run = run, .data = data});
	LEAVE(code);
}

oh_cu_result
cuEventCreate(struct CUevent_st **event, unsigned int flags)
{
	struct CUctx_st *context;
	ENTER();
	oh_cu_result code = fake_current(&context);
	if (code == OH_CU_SUCCESS && flags > 7)
		code = OH_CU_ERROR_INVALID_VALUE;
	if (code != OH_CU_SUCCESS)
		LEAVE(code);
	struct CUevent_st *made = calloc(1, sizeof *made);
	if (!made)
		LEAVE(OH_CU_ERROR_OUT_OF_MEMORY);
	made->context = context;
	made->next = fake.events;
	fake.events = made;
	*event = made;
	LEAVE(OH_CU_SUCCESS);
}

static oh_cu_result
check_event(const struct CUevent_st *event)
{
	oh_cu_result code = fake_ready();
	if (code != OH_CU_SUCCESS)
		return code;
	if (!event)
		return OH_CU_ERROR_INVALID_HANDLE;
	if (event->destroyed) {
		fake_misuse("an event that was destroyed");
		return OH_CU_ERROR_INVALID_HANDLE;
	}
	if (!event->context->alive) {
		fake_misuse("an event of a context that is gone");
		return OH_CU_ERROR_CONTEXT_IS_DESTROYED;
	}
	return event->context->device->lost;
}

oh_cu_result
cuEventDestroy_v2(struct CUevent_st *event)
{
	ENTER_UNDO();
	oh_cu_result code = check_event(event);
	if (event)
		event->destroyed = 1;
	LEAVE_UNDO(code);
}

oh_cu_result
cuEventRecord(struct CUevent_st *event, struct CUstream_st *handle)
{
	struct CUstream_st *stream;
	ENTER();
	oh_cu_result code = check_event(event);
	if (code == OH_CU_SUCCESS)
		code = find_stream(handle, &stream);
	if (code == OH_CU_SUCCESS && stream->context != event->context)
		code = OH_CU_ERROR_INVALID_HANDLE;
	if (code != OH_CU_SUCCESS)
		LEAVE(code);
	struct fake_record *made = calloc(1, sizeof *made);
	if (!made)
		LEAVE(OH_CU_ERROR_OUT_OF_MEMORY);
	made->references = 2;
	fake_record_drop(event->record);
	event->record = made;
	LEAVE(fake_give(stream, (struct fake_op){.kind = FAKE_RECORD, .record = made}));
}

static int
is_pending(const struct CUevent_st *event)
{
	return event->record && !event->record->done;
}

oh_cu_result
cuEventQuery(struct CUevent_st *event)
{
	ENTER();
	oh_cu_result code = check_event(event);
	if (code == OH_CU_SUCCESS && is_pending(event))
		code = OH_CU_ERROR_NOT_READY;
	LEAVE(code);
}

oh_cu_result
cuEventSynchronize(struct CUevent_st *event)
{
	ENTER();
	oh_cu_result code = check_event(event);
	if (code != OH_CU_SUCCESS || !is_pending(event))
		LEAVE(code);
	struct fake_record *record = event->record;
	record->references++;
	while (!record->done)
		pthread_cond_wait(&fake.changed, &fake.lock);
	fake_record_drop(record);
	LEAVE(OH_CU_SUCCESS);
}

oh_cu_result
cuStreamWaitEvent(struct CUstream_st *handle, struct CUevent_st *event, unsigned int flags)
{
	struct CUstream_st *stream;
	ENTER();
	oh_cu_result code = flags ? OH_CU_ERROR_INVALID_VALUE : check_event(event);
	if (code == OH_CU_SUCCESS)
		code = find_stream(handle, &stream);
	if (code != OH_CU_SUCCESS || !is_pending(event))
		LEAVE(code);
	event->record->references++;
	LEAVE(fake_give(stream, (struct fake_op){.kind = FAKE_WAIT, .record = event->record}));
}
