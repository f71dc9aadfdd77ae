/* The look-alike driver's memory functions: allocation, what a pointer is, pinning, and
 * copies.
 *
 * Copies are checked when they are given, as in the real driver: the device's side lies in one
 * allocation, and the host's side is pinned wholly or not at all. A single copy that breaks this is
 * refused; a batch with such a copy ends the process by SIGSEGV. A source that is not pinned is
 * read before the call returns, a pinned one at any time until the copy ends.
 */
#include "fake.h"

#include <unistd.h>
#include <sys/uio.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Pageable sources up to this are staged; larger ones are copied before the call returns. */
#define STAGED_MOST ((size_t)64 << 10)

oh_cu_result
cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	struct CUctx_st *context;
	ENTER();
	oh_cu_result code = fake_current(&context);
	if (code == OH_CU_SUCCESS) {
		*total = context->device->total;
		*free_bytes = context->device->total - context->device->used;
	}
	LEAVE(code);
}

oh_cu_result
cuMemAlloc_v2(oh_cu_address *address, size_t bytes)
{
	struct CUctx_st *context;
	ENTER();
	oh_cu_result code = fake_current(&context);
	if (code == OH_CU_SUCCESS && bytes == 0)
		code = OH_CU_ERROR_INVALID_VALUE;
	if (code == OH_CU_SUCCESS)
		code = fake_block_make(context->device, bytes, 1, FAKE_PLAIN, context, address);
	LEAVE(code);
}

/* Freeing waits for the work under way. */
oh_cu_result
cuMemFree_v2(oh_cu_address address)
{
	struct CUctx_st *context;
	ENTER_UNDO();
	oh_cu_result code = fake_current(&context);
	if (code != OH_CU_SUCCESS || address == 0)
		LEAVE_UNDO(code);
	struct fake_block *block = fake_block_at(address, FAKE_PLAIN);
	if (!block)
		LEAVE_UNDO(OH_CU_ERROR_INVALID_VALUE);
	fake_drain_context(context);
	block = fake_block_at(address, FAKE_PLAIN);
	if (block)
		fake_block_drop(fake_device_of(address), block);
	LEAVE_UNDO(OH_CU_SUCCESS);
}

oh_cu_result
cuMemAllocAsync(oh_cu_address *address, size_t bytes, struct CUstream_st *handle)
{
	struct CUctx_st *context;
	struct CUstream_st *stream;
	ENTER();
	oh_cu_result code = fake_current(&context);
	if (code == OH_CU_SUCCESS)
		code = fake_stream_of(handle, context, &stream);
	if (code == OH_CU_SUCCESS && bytes == 0)
		code = OH_CU_ERROR_INVALID_VALUE;
	if (code == OH_CU_SUCCESS)
		code = fake_block_make(context->device, bytes, 1, FAKE_POOL, context, address);
	LEAVE(code);
}

oh_cu_result
cuMemFreeAsync(oh_cu_address address, struct CUstream_st *handle)
{
	struct CUctx_st *context;
	struct CUstream_st *stream;
	ENTER_UNDO();
	oh_cu_result code = fake_current(&context);
	if (code == OH_CU_SUCCESS)
		code = fake_stream_of(handle, context, &stream);
	if (code != OH_CU_SUCCESS)
		LEAVE_UNDO(code);
	fake_drain(stream);
	struct fake_block *block = fake_block_at(address, FAKE_POOL);
	if (block)
		fake_block_drop(fake_device_of(address), block);
	LEAVE_UNDO(block ? OH_CU_SUCCESS : OH_CU_ERROR_INVALID_VALUE);
}

/* The piece of a reserved range that holds an address, NULL if nothing is mapped there. */
static struct fake_map *
map_of(const struct fake_block *block, uint64_t offset)
{
	struct fake_map *map = block->maps;
	while (map && !(offset >= map->offset && offset - map->offset < map->bytes))
		map = map->next;
	return map;
}

oh_cu_result
cuMemGetAddressRange_v2(oh_cu_address *base, size_t *bytes, oh_cu_address address)
{
	struct CUctx_st *context;
	ENTER();
	oh_cu_result code = fake_current(&context);
	struct fake_block *block = fake_block_of(address);
	struct fake_device *device = fake_device_of(address);
	struct fake_registration *r = fake_registration_of((void *)(uintptr_t)address);
	if (code == OH_CU_SUCCESS && !block && !r)
		code = OH_CU_ERROR_NOT_FOUND;
	if (code != OH_CU_SUCCESS)
		LEAVE(code);
	if (!block) {
		*base = (oh_cu_address)(uintptr_t)r->start;
		*bytes = r->bytes;
		LEAVE(OH_CU_SUCCESS);
	}
	oh_cu_address view = (oh_cu_address)(uintptr_t)device->view;
	struct fake_map *map = map_of(block, address - view);
	if (block->kind == FAKE_RANGE && !map)
		LEAVE(OH_CU_ERROR_NOT_FOUND);
	*base = view + (map ? map->offset : block->offset);
	*bytes = map ? map->bytes : block->bytes;
	LEAVE(OH_CU_SUCCESS);
}

static int
overlaps(const struct fake_registration *r, const char *start, uint64_t bytes)
{
	return r->start < start + bytes && start < r->start + r->bytes;
}

/* Is there memory at all of it? */
static int
is_there(void *memory, size_t bytes)
{
	const uintptr_t page = 4096, start = (uintptr_t)memory / page * page;
	unsigned char resident[64];
	for (uintptr_t at = start; at < (uintptr_t)memory + bytes; at += page * sizeof resident) {
		uintptr_t left = (uintptr_t)memory + bytes - at;
		size_t some = left < page * sizeof resident ? left : page * sizeof resident;
		if (mincore((void *)at, some, resident) != 0)
			return 0;
	}
	return 1;
}

/* Pages of a mapped file behind its end are there for mincore, but cannot be pinned. */
static int
is_readable(char *memory, size_t bytes)
{
	char byte;
	char *ends[] = {memory, memory + bytes - 1};
	for (int i = 0; i < 2; i++) {
		struct iovec here = {&byte, 1}, there = {ends[i], 1};
		if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) < 0 && errno == EFAULT)
			return 0;
	}
	return 1;
}

oh_cu_result
cuMemHostRegister_v2(void *memory, size_t bytes, unsigned int flags)
{
	struct CUctx_st *context;
	ENTER();
	oh_cu_result code = fake_current(&context);
	if (code != OH_CU_SUCCESS)
		LEAVE(code);
	if (!memory || bytes == 0 || flags > 15 ||
	    fake_device_of((oh_cu_address)(uintptr_t)memory) || !is_there(memory, bytes) ||
	    !is_readable(memory, bytes))
		LEAVE(OH_CU_ERROR_INVALID_VALUE);
	for (struct fake_registration *r = fake.registrations; r; r = r->next)
		if (overlaps(r, memory, bytes))
			LEAVE(OH_CU_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	struct fake_registration *made = calloc(1, sizeof *made);
	if (!made)
		LEAVE(OH_CU_ERROR_OUT_OF_MEMORY);
	*made = (struct fake_registration){fake.registrations, memory, bytes, context};
	fake.registrations = made;
	LEAVE(OH_CU_SUCCESS);
}

/* No context need be current. */
oh_cu_result
cuMemHostUnregister(void *memory)
{
	ENTER_UNDO();
	oh_cu_result code = fake_ready();
	if (code == OH_CU_SUCCESS && !memory)
		code = OH_CU_ERROR_INVALID_VALUE;
	if (code != OH_CU_SUCCESS)
		LEAVE_UNDO(code);
	struct fake_registration **at = &fake.registrations;
	while (*at && (*at)->start != memory)
		at = &(*at)->next;
	struct fake_registration *r = *at;
	if (!r)
		LEAVE_UNDO(OH_CU_ERROR_HOST_MEMORY_NOT_REGISTERED);
	if (r->context->device->lost != OH_CU_SUCCESS)
		LEAVE_UNDO(r->context->device->lost);
	if (fake_source_in_use(r->start, r->bytes))
		fake_misuse("memory unregistered with a copy from or to it under way");
	*at = r->next;
	free(r);
	LEAVE_UNDO(OH_CU_SUCCESS);
}

/* What is told about an address, of either kind of memory. */
struct facts {
	struct CUctx_st *context;
	unsigned int type;
	int ordinal;
	oh_cu_address start;
	size_t bytes;
};

static int
facts_of(oh_cu_address address, struct facts *facts)
{
	struct fake_block *block = fake_block_of(address);
	struct fake_device *device = fake_device_of(address);
	struct fake_registration *r = fake_registration_of((void *)(uintptr_t)address);
	if (block) {
		oh_cu_address view = (oh_cu_address)(uintptr_t)device->view;
		if (block->kind == FAKE_RANGE && !map_of(block, address - view))
			return 0;
		*facts = (struct facts){block->kind == FAKE_PLAIN ? block->context : NULL,
					OH_CU_MEMORY_DEVICE, device->ordinal, view + block->offset,
					block->bytes};
		return 1;
	}
	if (!r)
		return 0;
	*facts = (struct facts){r->context, OH_CU_MEMORY_HOST, r->context->device->ordinal,
				(oh_cu_address)(uintptr_t)r->start, r->bytes};
	return 1;
}

oh_cu_result
cuPointerGetAttribute(void *value, unsigned int attribute, oh_cu_address address)
{
	struct facts facts;
	ENTER();
	oh_cu_result code = fake_ready();
	if (code != OH_CU_SUCCESS)
		LEAVE(code);
	if (!facts_of(address, &facts))
		LEAVE(OH_CU_ERROR_INVALID_VALUE);
	switch (attribute) {
	case OH_CU_POINTER_CONTEXT:
		memcpy(value, &facts.context, sizeof facts.context);
		break;
	case OH_CU_POINTER_MEMORY_TYPE:
		memcpy(value, &facts.type, sizeof facts.type);
		break;
	case OH_CU_POINTER_DEVICE_ORDINAL:
		memcpy(value, &facts.ordinal, sizeof facts.ordinal);
		break;
	case OH_CU_POINTER_RANGE_START:
		memcpy(value, &facts.start, sizeof facts.start);
		break;
	case OH_CU_POINTER_RANGE_BYTES:
		memcpy(value, &facts.bytes, sizeof facts.bytes);
		break;
	default:
		LEAVE(OH_CU_ERROR_INVALID_VALUE);
	}
	LEAVE(OH_CU_SUCCESS);
}

/* The host's side of a copy: 1 if pinned, 0 if pageable, -1 if it may not be. */
static int
host_side(const void *memory, uint64_t bytes)
{
	const struct fake_registration *r = fake_registration_of(memory);
	if (!memory || fake_device_of((oh_cu_address)(uintptr_t)memory))
		return -1;
	if (!r)
		return 0;
	return r->bytes - (uint64_t)((const char *)memory - r->start) >= bytes ? 1 : -1;
}

/* The stream of a copy, whose context must be the current one. */
static oh_cu_result
current_stream(struct CUstream_st *handle, struct CUstream_st **stream)
{
	struct CUctx_st *context;
	oh_cu_result code = fake_current(&context);
	if (code == OH_CU_SUCCESS)
		code = fake_stream_of(handle, context, stream);
	if (code == OH_CU_SUCCESS && (*stream)->context != context)
		code = OH_CU_ERROR_INVALID_HANDLE;
	return code;
}

/* The same for single copies, which do without a current context if the stream has one. */
static oh_cu_result
copy_stream(struct CUstream_st *handle, struct CUstream_st **stream)
{
	int *depth;
	fake_stack(&depth);
	if (fake_ready() != OH_CU_SUCCESS || *depth > 0 || (uintptr_t)handle <= 2)
		return current_stream(handle, stream);
	oh_cu_result code = fake_stream_of(handle, NULL, stream);
	return code == OH_CU_SUCCESS ? (*stream)->context->device->lost : code;
}

static oh_cu_result
give_pieces(struct CUstream_st *stream, struct fake_op op)
{
	return op.pieces ? fake_give(stream, op) : OH_CU_ERROR_OUT_OF_MEMORY;
}

static struct fake_piece *
one_piece(char *device, void *host, uint64_t bytes)
{
	struct fake_piece *piece = malloc(sizeof *piece);
	if (piece)
		*piece = (struct fake_piece){device, host, bytes};
	return piece;
}

static void *
stage(const void *source, size_t bytes)
{
	void *staged = malloc(bytes);
	if (staged)
		memcpy(staged, source, bytes);
	return staged;
}

oh_cu_result
cuMemcpyHtoDAsync_v2(oh_cu_address destination, const void *source, size_t bytes,
		     struct CUstream_st *handle)
{
	struct CUstream_st *stream;
	ENTER();
	oh_cu_result code = copy_stream(handle, &stream);
	if (code != OH_CU_SUCCESS || bytes == 0)
		LEAVE(code);
	int pinned = host_side(source, bytes);
	char *device = fake_reach(destination, bytes);
	if (pinned < 0 || !device)
		LEAVE(OH_CU_ERROR_INVALID_VALUE);
	struct fake_op op = {.kind = FAKE_IN, .count = 1};
	if (!pinned && bytes <= STAGED_MOST) {
		op.staged = stage(source, bytes);
		source = op.staged;
	}
	op.pieces = one_piece(device, (void *)(uintptr_t)source, bytes);
	code = give_pieces(stream, op);
	if (code == OH_CU_SUCCESS && !pinned && bytes > STAGED_MOST)
		code = fake_drain(stream);
	LEAVE(code);
}

oh_cu_result
cuMemcpyDtoHAsync_v2(void *destination, oh_cu_address source, size_t bytes,
		     struct CUstream_st *handle)
{
	struct CUstream_st *stream;
	ENTER();
	oh_cu_result code = copy_stream(handle, &stream);
	if (code != OH_CU_SUCCESS || bytes == 0)
		LEAVE(code);
	int pinned = host_side(destination, bytes);
	char *device = fake_reach(source, bytes);
	if (pinned < 0 || !device)
		LEAVE(OH_CU_ERROR_INVALID_VALUE);
	struct fake_op op = {.kind = FAKE_OUT, .count = 1};
	op.pieces = one_piece(device, destination, bytes);
	code = give_pieces(stream, op);
	if (code == OH_CU_SUCCESS && !pinned)
		code = fake_drain(stream);
	LEAVE(code);
}

oh_cu_result
cuMemsetD8Async(oh_cu_address address, unsigned char value, size_t bytes,
		struct CUstream_st *handle)
{
	struct CUstream_st *stream;
	ENTER();
	oh_cu_result code = current_stream(handle, &stream);
	if (code != OH_CU_SUCCESS || bytes == 0)
		LEAVE(code);
	char *device = fake_reach(address, bytes);
	if (!device)
		LEAVE(OH_CU_ERROR_INVALID_VALUE);
	struct fake_op op = {.kind = FAKE_SET, .count = 1, .value = value};
	op.pieces = one_piece(device, NULL, bytes);
	LEAVE(give_pieces(stream, op));
}

#if FAKE_CUDA_VERSION >= 12080
static int
attributes_valid(size_t count, const struct oh_cu_copy_attributes *attributes, const size_t *first,
		 size_t attribute_count)
{
	if (count == 0 || attribute_count == 0 || attribute_count > count || first[0] != 0)
		return 0;
	for (size_t i = 0; i < attribute_count; i++) {
		if (attributes[i].source_order < 1 || attributes[i].source_order > 3)
			return 0;
		if (first[i] >= count || (i > 0 && first[i] <= first[i - 1]))
			return 0;
	}
	return 1;
}

/* The real driver follows a bad pointer of a batch and faults. As that does, this ends the process
 * though the calling thread blocks the signal. */
static void
die_of(const char *what)
{
	sigset_t fault;
	sigemptyset(&fault);
	sigaddset(&fault, SIGSEGV);
	fprintf(stderr, "fake driver: %s in a batch: the real driver dies of it\n", what);
	signal(SIGSEGV, SIG_DFL);
	pthread_sigmask(SIG_UNBLOCK, &fault, NULL);
	raise(SIGSEGV);
}

/* Fills op's pieces; those that are not pinned are read now, into one staging buffer. */
static oh_cu_result
batch_pieces(struct fake_op *op, const oh_cu_address *destinations, const oh_cu_address *sources,
	     const size_t *bytes)
{
	uint64_t to_stage = 0, staged = 0;
	for (uint64_t i = 0; i < op->count; i++) {
		char *host = (char *)(uintptr_t)sources[i];
		char *device = fake_reach(destinations[i], bytes[i]);
		int pinned = host_side(host, bytes[i]);
		if (bytes[i] == 0)
			return OH_CU_ERROR_INVALID_VALUE;
		if (!device)
			die_of("a destination that is not wholly allocated");
		if (pinned < 0)
			die_of("a source that is not wholly pinned host memory");
		op->pieces[i] = (struct fake_piece){device, host, bytes[i]};
		to_stage += pinned ? 0 : bytes[i];
	}
	if (to_stage && !(op->staged = malloc(to_stage)))
		return OH_CU_ERROR_OUT_OF_MEMORY;
	for (uint64_t i = 0; i < op->count && to_stage; i++) {
		if (host_side(op->pieces[i].host, bytes[i]))
			continue;
		char *at = (char *)op->staged + staged;
		memcpy(at, op->pieces[i].host, bytes[i]);
		op->pieces[i].host = at;
		staged += bytes[i];
	}
	return OH_CU_SUCCESS;
}

static oh_cu_result
copy_batch(const oh_cu_address *destinations, const oh_cu_address *sources, const size_t *bytes,
	   size_t count, const struct CUmemcpyAttributes_st *attributes, const size_t *first,
	   size_t attribute_count, struct CUstream_st *handle)
{
	struct CUstream_st *stream;
	if (!fake.batch)
		return OH_CU_ERROR_NOT_SUPPORTED;
	if ((uintptr_t)handle <= 1)
		return OH_CU_ERROR_INVALID_VALUE;
	oh_cu_result code = current_stream(handle, &stream);
	if (code != OH_CU_SUCCESS)
		return code;
	if (!attributes_valid(count, (const struct oh_cu_copy_attributes *)attributes, first,
			      attribute_count))
		return OH_CU_ERROR_INVALID_VALUE;
	struct fake_op op = {.kind = FAKE_IN, .count = count};
	op.pieces = calloc(count, sizeof *op.pieces);
	if (!op.pieces)
		return OH_CU_ERROR_OUT_OF_MEMORY;
	code = batch_pieces(&op, destinations, sources, bytes);
	if (code == OH_CU_SUCCESS)
		return fake_give(stream, op);
	free(op.staged);
	free(op.pieces);
	return code;
}

oh_cu_result
cuMemcpyBatchAsync(oh_cu_address *destinations, oh_cu_address *sources, size_t *bytes, size_t count,
		   struct CUmemcpyAttributes_st *attributes, size_t *first, size_t attribute_count,
		   size_t *failed, struct CUstream_st *handle)
{
	ENTER();
	oh_cu_result code = copy_batch(destinations, sources, bytes, count, attributes, first,
				       attribute_count, handle);
	if (code != OH_CU_SUCCESS && failed)
		*failed = SIZE_MAX;
	LEAVE(code);
}
#endif

#if FAKE_CUDA_VERSION >= 13000
oh_cu_result
cuMemcpyBatchAsync_v2(oh_cu_address *destinations, oh_cu_address *sources, size_t *bytes,
		      size_t count, struct CUmemcpyAttributes_st *attributes, size_t *first,
		      size_t attribute_count, struct CUstream_st *handle)
{
	ENTER();
	LEAVE(copy_batch(destinations, sources, bytes, count, attributes, first, attribute_count,
			 handle));
}
#endif
