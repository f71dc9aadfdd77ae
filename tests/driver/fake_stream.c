/* The look-alike driver's streams: one thread each, that does what the stream was given in order.
 *
 * Copies are as late as CUDA allows: a copy reads its source at a random time after it was given
 * and before it ends, the copies of a batch in any order. So a source that is changed or unmapped
 * too early shows as wrong bytes, a fault, or a race.
 *
 * The lock is held except while bytes move, a delay runs or the program's function is called.
 */
#include "fake.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static void
sleep_ns(uint64_t ns)
{
	struct timespec want = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
	while (nanosleep(&want, &want) != 0)
		;
}

/* Books time on the device's link and returns when the copy may end. */
static uint64_t
book_link(struct fake_device *device, uint64_t bytes)
{
	if (fake.bytes_per_ns <= 0)
		return 0;
	uint64_t now = fake_now_ns();
	if (device->link_free_ns < now)
		device->link_free_ns = now;
	device->link_free_ns += (uint64_t)((double)bytes / fake.bytes_per_ns);
	return device->link_free_ns;
}

static void
move(const struct fake_op *op, const struct fake_piece *piece)
{
	if (op->kind == FAKE_IN)
		memcpy(piece->device, piece->host, piece->bytes);
	else if (op->kind == FAKE_OUT)
		memcpy(piece->host, piece->device, piece->bytes);
	else
		memset(piece->device, op->value, piece->bytes);
}

static void
run_pieces(struct CUstream_st *stream, const struct fake_op *op)
{
	uint64_t bytes = 0, first = fake_random(op->count);
	uint64_t before = fake.delay_us ? fake_random(fake.delay_us) * 1000 : 0;
	for (uint64_t i = 0; i < op->count; i++)
		bytes += op->pieces[i].bytes;
	uint64_t end = op->kind == FAKE_SET ? 0 : book_link(stream->context->device, bytes);
	pthread_mutex_unlock(&fake.lock);
	if (before)
		sleep_ns(before);
	uint64_t now = fake_now_ns();
	if (end > now)
		sleep_ns(end - now);
	for (uint64_t i = 0; i < op->count; i++)
		move(op, &op->pieces[(first + i) % op->count]);
	pthread_mutex_lock(&fake.lock);
}

/* May a waiting op go on? */
static int
is_due(const struct CUstream_st *stream, const struct fake_op *op)
{
	if (stream->dead)
		return 1;
	if (op->kind == FAKE_WAIT)
		return op->record->done;
	return op->other->done >= op->number || op->other->dead;
}

/* A lost device moves nothing; the rest of what streams do is bookkeeping. */
static int
is_idle(const struct CUstream_st *stream, const struct fake_op *op)
{
	int moves = op->kind == FAKE_IN || op->kind == FAKE_OUT || op->kind == FAKE_SET;
	return moves && (fake.stopped || stream->context->device->lost != OH_CU_SUCCESS);
}

static void
run_op(struct CUstream_st *stream, struct fake_op *op)
{
	if (is_idle(stream, op))
		return;
	switch (op->kind) {
	case FAKE_IN:
	case FAKE_OUT:
	case FAKE_SET:
		run_pieces(stream, op);
		break;
	case FAKE_RECORD:
		op->record->done = 1;
		break;
	case FAKE_WAIT:
	case FAKE_FOLLOW:
		while (!is_due(stream, op))
			pthread_cond_wait(&fake.changed, &fake.lock);
		break;
	case FAKE_CALL:
		pthread_mutex_unlock(&fake.lock);
		op->run(op->data);
		pthread_mutex_lock(&fake.lock);
		break;
	}
}

void
fake_record_drop(struct fake_record *record)
{
	if (record && --record->references == 0)
		free(record);
}

static void
drop_holdings(struct fake_op *op)
{
	/* Nobody waits for a stream that is gone. */
	if (op->kind == FAKE_RECORD)
		op->record->done = 1;
	fake_record_drop(op->record);
	free(op->pieces);
	free(op->staged);
}

static void
free_op(struct fake_op *op)
{
	drop_holdings(op);
	free(op);
}

static void *
stream_thread(void *argument)
{
	struct CUstream_st *stream = argument;
	pthread_mutex_lock(&fake.lock);
	while (!stream->dead && !(stream->destroyed && !stream->first)) {
		struct fake_op *op = stream->first;
		if (!op) {
			pthread_cond_wait(&fake.changed, &fake.lock);
			continue;
		}
		stream->first = op->next;
		if (!stream->first)
			stream->last = &stream->first;
		stream->running = op;
		pthread_cond_broadcast(&fake.changed);
		run_op(stream, op);
		stream->running = NULL;
		stream->done++;
		free_op(op);
		pthread_cond_broadcast(&fake.changed);
	}
	while (stream->first) {
		struct fake_op *op = stream->first;
		stream->first = op->next;
		free_op(op);
	}
	pthread_cond_broadcast(&fake.changed);
	pthread_mutex_unlock(&fake.lock);
	return NULL;
}

oh_cu_result
fake_stream_make(struct CUctx_st *context, unsigned int flags, int builtin,
		 struct CUstream_st **stream)
{
	pthread_t thread;
	pthread_attr_t detached;
	struct CUstream_st *made = calloc(1, sizeof *made);
	if (!made)
		return OH_CU_ERROR_OUT_OF_MEMORY;
	made->context = context;
	made->flags = flags;
	made->builtin = builtin;
	made->last = &made->first;
	made->next = fake.streams;
	fake.streams = made;
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	int failed = pthread_create(&thread, &detached, stream_thread, made);
	pthread_attr_destroy(&detached);
	if (failed) {
		made->dead = 1;
		return OH_CU_ERROR_OUT_OF_MEMORY;
	}
	*stream = made;
	return OH_CU_SUCCESS;
}

oh_cu_result
fake_stream_of(struct CUstream_st *handle, struct CUctx_st *context, struct CUstream_st **stream)
{
	uintptr_t number = (uintptr_t)handle;
	if (number <= 2) {
		struct CUstream_st **own = number == 2 ? &context->per_thread : &context->legacy;
		oh_cu_result code = OH_CU_SUCCESS;
		if (!*own)
			code = fake_stream_make(context, 0, 1, own);
		*stream = *own;
		return code;
	}
	if (handle->destroyed) {
		fake_misuse("a stream that was destroyed");
		return OH_CU_ERROR_INVALID_HANDLE;
	}
	if (!handle->context->alive) {
		fake_misuse("a stream of a context that is gone");
		return OH_CU_ERROR_CONTEXT_IS_DESTROYED;
	}
	*stream = handle;
	return OH_CU_SUCCESS;
}

static oh_cu_result
append(struct CUstream_st *stream, struct fake_op op)
{
	struct fake_op *given = malloc(sizeof *given);
	if (!given) {
		drop_holdings(&op);
		return OH_CU_ERROR_OUT_OF_MEMORY;
	}
	*given = op;
	given->next = NULL;
	*stream->last = given;
	stream->last = &given->next;
	stream->given++;
	pthread_cond_broadcast(&fake.changed);
	return OH_CU_SUCCESS;
}

static oh_cu_result
follow(struct CUstream_st *stream, struct CUstream_st *other)
{
	if (!other || other == stream || other->done == other->given)
		return OH_CU_SUCCESS;
	return append(stream, (struct fake_op){.kind = FAKE_FOLLOW,
					       .other = other,
					       .number = other->given});
}

/* The legacy stream and the blocking streams of its context wait for each other. */
oh_cu_result
fake_give(struct CUstream_st *stream, struct fake_op op)
{
	struct CUctx_st *context = stream->context;
	oh_cu_result code = OH_CU_SUCCESS;
	if (stream == context->legacy) {
		for (struct CUstream_st *s = fake.streams; s && code == OH_CU_SUCCESS; s = s->next)
			if (s->context == context && !s->flags)
				code = follow(stream, s);
	} else if (!stream->flags) {
		code = follow(stream, context->legacy);
	}
	if (code != OH_CU_SUCCESS) {
		drop_holdings(&op);
		return code;
	}
	return append(stream, op);
}

oh_cu_result
fake_drain(struct CUstream_st *stream)
{
	uint64_t until = stream->given;
	while (stream->done < until && !stream->dead)
		pthread_cond_wait(&fake.changed, &fake.lock);
	return stream->dead ? OH_CU_ERROR_CONTEXT_IS_DESTROYED : stream->context->device->lost;
}

void
fake_drain_context(struct CUctx_st *context)
{
	for (struct CUstream_st *s = fake.streams; s; s = s->next)
		if (s->context == context)
			fake_drain(s);
}

static int
op_uses(const struct fake_op *op, const char *start, uint64_t bytes)
{
	if (op->kind != FAKE_IN && op->kind != FAKE_OUT)
		return 0;
	for (uint64_t i = 0; i < op->count; i++)
		if (op->pieces[i].host < start + bytes &&
		    start < op->pieces[i].host + op->pieces[i].bytes)
			return 1;
	return 0;
}

static int
can_go_on(const struct CUstream_st *stream)
{
	const struct fake_op *op = stream->running;
	if (stream->dead)
		return 0;
	if (!op)
		return stream->first != NULL;
	if (op->kind == FAKE_WAIT || op->kind == FAKE_FOLLOW)
		return is_due(stream, op);
	return op->kind != FAKE_CALL;
}

void
fake_cuda_quiet(void)
{
	struct CUstream_st *stream;
	pthread_mutex_lock(&fake.lock);
	for (;;) {
		for (stream = fake.streams; stream && !can_go_on(stream); stream = stream->next)
			;
		if (!stream)
			break;
		pthread_cond_wait(&fake.changed, &fake.lock);
	}
	pthread_mutex_unlock(&fake.lock);
}

void
fake_settle(const struct fake_device *device)
{
	for (struct CUstream_st *s = fake.streams; s; s = s->next)
		while ((!device || s->context->device == device) && s->running &&
		       s->running->pieces)
			pthread_cond_wait(&fake.changed, &fake.lock);
}

void
fake_void(void)
{
	for (struct CUstream_st *s = fake.streams; s; s = s->next)
		for (struct fake_op *op = s->first; op; op = op->next)
			op->count = 0;
}

int
fake_source_in_use(const char *start, uint64_t bytes)
{
	for (struct CUstream_st *s = fake.streams; s; s = s->next) {
		if (s->running && op_uses(s->running, start, bytes))
			return 1;
		for (struct fake_op *op = s->first; op; op = op->next)
			if (op_uses(op, start, bytes))
				return 1;
	}
	return 0;
}
