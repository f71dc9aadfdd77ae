/* The CUDA memory back end: copies in order on streams of our own, and the table of its calls.
 *
 * Streams are non-blocking, so nothing waits for the legacy stream or makes it wait unless
 * queue_after and queue_join say so. Many copies go to the driver in one call where it has one:
 * CUDA 13.0's, else 12.8's, else a loop; a driver that has the call but refuses to do it is given
 * the loop from then on. Starting copies allocates nothing. Nothing here picks routes, sizes of
 * blocks or what is copied when.
 */
#include "memory/cuda/device.h"

#include <stdlib.h>

enum {
	ALIGNMENT = 256,    /* that cuMemAlloc promises */
	COPY_MODULUS = 1,   /* source and destination need not agree */
	IN_ONE_BATCH = 256, /* copies: their three arrays are 6 KiB of stack */
};

struct oh_queue {
	struct CUstream_st *stream;
	struct CUevent_st *after;  /* recorded on the caller's stream */
	struct CUevent_st *joined; /* recorded on ours */
	atomic_int used;           /* it was given a copy */
};

struct oh_mark {
	struct CUevent_st *event;
	struct CUstream_st *stream; /* of the copies before it, NULL if there are none */
};

static void
cuda_facts(struct oh_device *device, struct oh_memory_facts *facts)
{
	*facts = (struct oh_memory_facts){.alignment = ALIGNMENT, .copy_modulus = COPY_MODULUS};
	if (atomic_load(&device->way) != OH_CUDA_LOOP)
		facts->caps |= OH_MEMORY_BATCH_COPY;
	if (oh_cuda_pins_files(device))
		facts->caps |= OH_MEMORY_PINS_FILES;
}

static oh_cu_result
event_create(const struct oh_cuda *cu, struct CUevent_st **event)
{
	return cu->event_create(event, OH_CU_EVENT_DISABLE_TIMING);
}

/* Makes the queue's handles. Entered. */
static oh_cu_result
make_handles(const struct oh_cuda *cu, struct oh_queue *queue)
{
	oh_cu_result code = cu->stream_create(&queue->stream, OH_CU_STREAM_NON_BLOCKING);
	if (code != OH_CU_SUCCESS)
		return code;
	code = event_create(cu, &queue->after);
	if (code != OH_CU_SUCCESS)
		goto destroy_stream;
	code = event_create(cu, &queue->joined);
	if (code != OH_CU_SUCCESS)
		goto destroy_after;
	return OH_CU_SUCCESS;

destroy_after:
	cu->event_destroy(queue->after);
destroy_stream:
	cu->stream_destroy(queue->stream);
	return code;
}

static onehop_status
cuda_queue_create(struct oh_device *device, struct oh_queue **queue, struct onehop_error *error)
{
	struct oh_queue *made = calloc(1, sizeof *made);
	if (!made)
		return oh_fail_no_memory(error, sizeof *made, "a copy queue");
	atomic_init(&made->used, 0);
	onehop_status status = oh_cuda_enter(device, error);
	if (status != ONEHOP_OK)
		goto free_queue;
	oh_cu_result code = make_handles(device->cu, made);
	oh_cuda_leave(device);
	if (code != OH_CU_SUCCESS) {
		status = oh_cuda_fail(device->cu, error, code, "no copy stream on cuda:%u",
				      device->ordinal);
		goto free_queue;
	}
	*queue = made;
	return ONEHOP_OK;

free_queue:
	free(made);
	return status;
}

/* Waits for the copies that were given to it, but not for a caller's stream alone, which may stand
 * still: the driver keeps a destroyed stream until it has run dry. */
static void
cuda_queue_destroy(struct oh_device *device, struct oh_queue *queue)
{
	const struct oh_cuda *cu = device->cu;
	if (!queue)
		return;
	if (oh_cuda_enter_quietly(device)) {
		if (atomic_load(&queue->used))
			cu->stream_sync(queue->stream);
		cu->event_destroy(queue->joined);
		cu->event_destroy(queue->after);
		cu->stream_destroy(queue->stream);
		oh_cuda_leave(device);
	}
	free(queue);
}

static onehop_status
cuda_mark_create(struct oh_device *device, struct oh_mark **mark, struct onehop_error *error)
{
	struct oh_mark *made = calloc(1, sizeof *made);
	if (!made)
		return oh_fail_no_memory(error, sizeof *made, "a mark");
	onehop_status status = oh_cuda_enter(device, error);
	if (status != ONEHOP_OK)
		goto free_mark;
	oh_cu_result code = event_create(device->cu, &made->event);
	oh_cuda_leave(device);
	if (code != OH_CU_SUCCESS) {
		status = oh_cuda_fail(device->cu, error, code, "no event on cuda:%u",
				      device->ordinal);
		goto free_mark;
	}
	*mark = made;
	return ONEHOP_OK;

free_mark:
	free(made);
	return status;
}

static void
cuda_mark_destroy(struct oh_device *device, struct oh_mark *mark)
{
	if (!mark)
		return;
	if (oh_cuda_enter_quietly(device)) {
		device->cu->event_destroy(mark->event);
		oh_cuda_leave(device);
	}
	free(mark);
}

/* Handles that mean the legacy stream or the calling thread's own, in the current context. */
static int
is_special(uint64_t stream)
{
	return stream <= 2;
}

/* The context that the caller's stream is of; NULL if that is ours. current is what the caller had
 * current before we entered. */
static oh_cu_result
stream_home(const struct oh_cuda *cu, uint64_t stream, struct CUctx_st *current,
	    struct CUctx_st **home)
{
	struct CUctx_st *ours = NULL, *theirs = current;
	oh_cu_result code = OH_CU_SUCCESS;
	if (!is_special(stream)) {
		theirs = NULL;
		if (cu->stream_context)
			code = cu->stream_context((struct CUstream_st *)(uintptr_t)stream, &theirs);
	}
	if (code == OH_CU_SUCCESS)
		code = cu->ctx_current(&ours);
	*home = theirs == ours ? NULL : theirs;
	return code;
}

static int
is_captured(const struct oh_cuda *cu, struct CUstream_st *stream)
{
	unsigned int status = 0;
	return cu->stream_capture && cu->stream_capture(stream, &status) == OH_CU_SUCCESS &&
	       status != 0;
}

/* An event must be of its stream's context, so one is made there for the purpose; destroying it
 * does not undo the wait. The stream's context is current. */
static oh_cu_result
wait_for_foreign(const struct oh_cuda *cu, struct oh_queue *queue, struct CUstream_st *stream)
{
	struct CUevent_st *event;
	oh_cu_result code = event_create(cu, &event);
	if (code != OH_CU_SUCCESS)
		return code;
	code = cu->event_record(event, stream);
	if (code == OH_CU_SUCCESS)
		code = cu->stream_wait(queue->stream, event, 0);
	cu->event_destroy(event);
	return code;
}

static oh_cu_result
wait_for_own(const struct oh_cuda *cu, struct oh_queue *queue, struct CUstream_st *stream)
{
	oh_cu_result code = cu->event_record(queue->after, stream);
	return code == OH_CU_SUCCESS ? cu->stream_wait(queue->stream, queue->after, 0) : code;
}

/* Orders the queue behind the caller's stream (after), or the stream behind the queue. */
static onehop_status
order(struct oh_device *device, struct oh_queue *queue, uint64_t handle, int after,
      struct onehop_error *error)
{
	const struct oh_cuda *cu = device->cu;
	struct CUstream_st *stream = (struct CUstream_st *)(uintptr_t)handle;
	struct CUctx_st *current = oh_cuda_current(cu, device->device), *home = NULL, *popped;
	onehop_status status = oh_cuda_enter(device, error);
	if (status != ONEHOP_OK)
		return status;
	oh_cu_result code = OH_CU_SUCCESS;
	if (!after)
		code = cu->event_record(queue->joined, queue->stream);
	if (code == OH_CU_SUCCESS)
		code = stream_home(cu, handle, current, &home);
	if (code == OH_CU_SUCCESS && home)
		code = cu->ctx_push(home);
	if (code != OH_CU_SUCCESS)
		goto leave;
	if (is_captured(cu, stream)) {
		status = oh_fail(error, ONEHOP_UNSUPPORTED,
				 "the stream 0x%llx is being captured into a graph, and a transfer "
				 "cannot be part of one",
				 (unsigned long long)handle);
		oh_remedy(error, "end the capture first, or pass another stream");
	} else if (!after) {
		code = cu->stream_wait(stream, queue->joined, 0);
	} else {
		code = home ? wait_for_foreign(cu, queue, stream)
			    : wait_for_own(cu, queue, stream);
	}
	if (home)
		cu->ctx_pop(&popped);
leave:
	if (code != OH_CU_SUCCESS)
		status = oh_cuda_fail(cu, error, code, "the stream 0x%llx cannot be %s on cuda:%u",
				      (unsigned long long)handle,
				      after ? "waited for" : "made to wait", device->ordinal);
	oh_cuda_leave(device);
	return status;
}

static onehop_status
cuda_queue_after(struct oh_device *device, struct oh_queue *queue, uint64_t stream,
		 struct onehop_error *error)
{
	return order(device, queue, stream, 1, error);
}

static onehop_status
cuda_queue_join(struct oh_device *device, struct oh_queue *queue, uint64_t stream,
		struct onehop_error *error)
{
	return order(device, queue, stream, 0, error);
}

struct batch {
	oh_cu_address destination[IN_ONE_BATCH];
	oh_cu_address source[IN_ONE_BATCH];
	size_t bytes[IN_ONE_BATCH];
	size_t count;
};

/* Takes copies into the batch until it is full, leaving out those of 0 bytes, and returns how many
 * were looked at. */
static uint64_t
batch_take(struct batch *batch, const struct oh_copy *copies, uint64_t count)
{
	uint64_t at;
	batch->count = 0;
	for (at = 0; at < count && batch->count < IN_ONE_BATCH; at++) {
		if (copies[at].bytes == 0)
			continue;
		batch->destination[batch->count] = copies[at].destination;
		batch->source[batch->count] = (oh_cu_address)(uintptr_t)copies[at].source;
		batch->bytes[batch->count] = copies[at].bytes;
		batch->count++;
	}
	return at;
}

static oh_cu_result
give_loop(const struct oh_cuda *cu, const struct batch *batch, struct CUstream_st *stream)
{
	oh_cu_result code = OH_CU_SUCCESS;
	for (size_t i = 0; i < batch->count && code == OH_CU_SUCCESS; i++)
		code = cu->copy_in(batch->destination[i],
				   (const void *)(uintptr_t)batch->source[i], batch->bytes[i],
				   stream);
	return code;
}

static oh_cu_result
give_batch(const struct oh_cuda *cu, enum oh_cuda_way way, struct batch *batch,
	   struct CUstream_st *stream)
{
	struct oh_cu_copy_attributes in_order = {.source_order = OH_CU_SOURCE_ORDER_STREAM};
	struct CUmemcpyAttributes_st *attributes = (struct CUmemcpyAttributes_st *)&in_order;
	size_t first = 0, failed = 0;
	if (way == OH_CUDA_BATCH_13)
		return cu->batch_13(batch->destination, batch->source, batch->bytes, batch->count,
				    attributes, &first, 1, stream);
	return cu->batch_12(batch->destination, batch->source, batch->bytes, batch->count,
			    attributes, &first, 1, &failed, stream);
}

static oh_cu_result
give(struct oh_device *device, struct batch *batch, struct CUstream_st *stream)
{
	enum oh_cuda_way way = (enum oh_cuda_way)atomic_load(&device->way);
	if (way == OH_CUDA_LOOP || batch->count < 2)
		return give_loop(device->cu, batch, stream);
	oh_cu_result code = give_batch(device->cu, way, batch, stream);
	if (code != OH_CU_ERROR_NOT_SUPPORTED && code != OH_CU_ERROR_CALL_REQUIRES_NEWER_DRIVER)
		return code;
	atomic_store(&device->way, OH_CUDA_LOOP);
	return give_loop(device->cu, batch, stream);
}

/* Nobody will be told when the copies' source is free again: it is on return. */
static void
settle(struct oh_device *device, struct CUstream_st *stream)
{
	if (!stream || !oh_cuda_enter_quietly(device))
		return;
	device->cu->stream_sync(stream);
	oh_cuda_leave(device);
}

static onehop_status
cuda_copy(struct oh_device *device, struct oh_queue *queue, struct oh_mark *mark,
	  const struct oh_copy *copies, uint64_t count, struct onehop_error *error)
{
	const struct oh_cuda *cu = device->cu;
	oh_cu_result code = OH_CU_SUCCESS;
	struct batch batch;
	onehop_status status = oh_cuda_enter(device, error);
	mark->stream = count ? queue->stream : NULL;
	for (uint64_t at = 0; at < count && status == ONEHOP_OK && code == OH_CU_SUCCESS;) {
		at += batch_take(&batch, copies + at, count - at);
		atomic_store(&queue->used, 1);
		code = give(device, &batch, queue->stream);
	}
	if (status == ONEHOP_OK) {
		if (code == OH_CU_SUCCESS)
			code = cu->event_record(mark->event, queue->stream);
		oh_cuda_leave(device);
	}
	if (code != OH_CU_SUCCESS)
		status = oh_cuda_fail(cu, error, code, "%llu cop%s to cuda:%u failed",
				      (unsigned long long)count, count == 1 ? "y" : "ies",
				      device->ordinal);
	/* Copies of an earlier call may come from the same block. */
	if (status != ONEHOP_OK)
		settle(device, atomic_load(&queue->used) ? queue->stream : NULL);
	return status;
}

static onehop_status
cuda_copy_out(struct oh_device *device, struct oh_queue *queue, struct oh_mark *mark,
	      uint64_t address, void *destination, uint64_t bytes, struct onehop_error *error)
{
	const struct oh_cuda *cu = device->cu;
	onehop_status status = oh_cuda_enter(device, error);
	if (status != ONEHOP_OK)
		return status;
	mark->stream = queue->stream;
	atomic_store(&queue->used, 1);
	oh_cu_result code = cu->copy_out(destination, address, bytes, queue->stream);
	if (code == OH_CU_SUCCESS)
		code = cu->event_record(mark->event, queue->stream);
	oh_cuda_leave(device);
	if (code == OH_CU_SUCCESS)
		return ONEHOP_OK;
	settle(device, queue->stream);
	return oh_cuda_fail(cu, error, code, "%llu bytes of cuda:%u cannot be read",
			    (unsigned long long)bytes, device->ordinal);
}

static onehop_status
cuda_poll(struct oh_device *device, struct oh_mark *mark, int *done, struct onehop_error *error)
{
	const struct oh_cuda *cu = device->cu;
	oh_cu_result code = OH_CU_SUCCESS;
	onehop_status status = oh_cuda_enter(device, error);
	if (status == ONEHOP_OK) {
		code = cu->event_query(mark->event);
		oh_cuda_leave(device);
	}
	if (code != OH_CU_SUCCESS && code != OH_CU_ERROR_NOT_READY)
		status = oh_cuda_fail(cu, error, code, "copies to cuda:%u failed", device->ordinal);
	if (status != ONEHOP_OK)
		settle(device, mark->stream);
	else
		*done = code == OH_CU_SUCCESS;
	return status;
}

const struct oh_memory_ops oh_memory_cuda = {
	.name = "cuda",
	.count = oh_cuda_count,
	.open = oh_cuda_open,
	.close = oh_cuda_close,
	.facts = cuda_facts,
	.describe = oh_cuda_describe,
	.alloc = oh_cuda_alloc,
	.free = oh_cuda_free,
	.check = oh_cuda_check,
	.read = oh_cuda_read,
	.fill = oh_cuda_fill,
	.pin = oh_cuda_pin,
	.pin_file = oh_cuda_pin_file,
	.unpin = oh_cuda_unpin,
	.alive = oh_cuda_alive,
	.queue_create = cuda_queue_create,
	.queue_destroy = cuda_queue_destroy,
	.queue_after = cuda_queue_after,
	.queue_join = cuda_queue_join,
	.mark_create = cuda_mark_create,
	.mark_destroy = cuda_mark_destroy,
	.copy = cuda_copy,
	.copy_out = cuda_copy_out,
	.poll = cuda_poll,
};
