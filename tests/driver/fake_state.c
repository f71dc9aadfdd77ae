/* The look-alike driver's state: settings, failures on demand, contexts, and device memory.
 *
 * A device's memory is one sparse memory file mapped twice. The program gets addresses of the view
 * that it may not touch (PROT_NONE), so a CPU access to GPU memory faults; the driver works through
 * the other. New memory is not zero, freed memory is given back to the system, and addresses are
 * not given out again soon, so that a stale one is told.
 *
 * Settings come from the environment: FAKE_CUDA_DEVICES, FAKE_CUDA_MEMORY (bytes a device),
 * FAKE_CUDA_SEED, FAKE_CUDA_DELAY_US (most delay of one operation), FAKE_CUDA_GBPS (of one device's
 * link), FAKE_CUDA_NO_BATCH, FAKE_CUDA_FAIL (see extra.h).
 */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { ALIGNMENT = 512, POISON = 0xDB, NAMES = 128 };
#define POISON_MOST ((uint64_t)16 << 20)
#define VIEW_FACTOR 4 /* addresses a byte of memory, so that they last */

struct fake_state fake = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.changed = PTHREAD_COND_INITIALIZER,
	.next_id = 1,
	.batch = 1,
};

static pthread_once_t configured = PTHREAD_ONCE_INIT;

static struct {
	const char *name;
	int calls;
} counts[NAMES];

static struct {
	char name[48];
	long number; /* 0: none */
	int onwards;
	oh_cu_result code; /* 0: what fits the call */
	long seen;
	int failed;
} rule;

uint64_t
fake_now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t
setting(const char *name, uint64_t unset)
{
	const char *text = getenv(name);
	return text && *text ? strtoull(text, NULL, 0) : unset;
}

static void
set_rule(const char *text)
{
	memset(&rule, 0, sizeof rule);
	const char *colon = text ? strchr(text, ':') : NULL;
	if (!colon || (size_t)(colon - text) >= sizeof rule.name)
		return;
	char *end;
	memcpy(rule.name, text, (size_t)(colon - text));
	rule.number = strtol(colon + 1, &end, 10);
	if (*end == '+') {
		rule.onwards = 1;
		end++;
	}
	if (*end == ':')
		rule.code = (oh_cu_result)strtoul(end + 1, NULL, 10);
}

static void
make_device(int ordinal, uint64_t total)
{
	struct fake_device *device = &fake.devices[ordinal];
	device->ordinal = ordinal;
	device->total = total;
	device->span = total * VIEW_FACTOR;
	device->fd = memfd_create("device memory", MFD_CLOEXEC);
	if (device->fd < 0 || ftruncate(device->fd, (off_t)device->span) != 0)
		abort();
	device->view = mmap(NULL, device->span, PROT_NONE, MAP_SHARED | MAP_NORESERVE,
			    device->fd, 0);
	device->alias = mmap(NULL, device->span, PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_NORESERVE, device->fd, 0);
	if (device->view == MAP_FAILED || device->alias == MAP_FAILED)
		abort();
}

static void
hold(void)
{
	pthread_mutex_lock(&fake.lock);
}

static void
let_go(void)
{
	pthread_mutex_unlock(&fake.lock);
}

static void
configure(void)
{
	/* A child of fork() is to be told that nothing works there, not to hang on the lock. */
	pthread_atfork(hold, let_go, let_go);
	const char *gbps = getenv("FAKE_CUDA_GBPS");
	fake.device_count = (int)setting("FAKE_CUDA_DEVICES", 1);
	if (fake.device_count > FAKE_DEVICES)
		fake.device_count = FAKE_DEVICES;
	for (int i = 0; i < fake.device_count; i++)
		make_device(i, setting("FAKE_CUDA_MEMORY", (uint64_t)4 << 30));
	fake.seed = setting("FAKE_CUDA_SEED", fake_now_ns() | 1);
	fake.random = fake.seed ? fake.seed : 1;
	fake.delay_us = setting("FAKE_CUDA_DELAY_US", 100);
	fake.bytes_per_ns = gbps ? strtod(gbps, NULL) : 0;
	fake.batch = !setting("FAKE_CUDA_NO_BATCH", 0);
	set_rule(getenv("FAKE_CUDA_FAIL"));
}

uint64_t
fake_random(uint64_t below)
{
	fake.random ^= fake.random << 13;
	fake.random ^= fake.random >> 7;
	fake.random ^= fake.random << 17;
	return below ? fake.random % below : 0;
}

void
fake_misuse(const char *what)
{
	fake.misuses++;
	fprintf(stderr, "fake driver: misuse: %s\n", what);
}

static oh_cu_result
fitting_code(const char *name)
{
	return strstr(name, "Alloc") || strstr(name, "HostRegister") ? OH_CU_ERROR_OUT_OF_MEMORY
								     : OH_CU_ERROR_UNKNOWN;
}

unsigned int *
fake_capture_mode(void)
{
	static __thread unsigned int mode;
	return &mode;
}

/* What CUDA calls potentially unsafe while a stream is captured in the global mode: a thread may do
 * so only in the relaxed mode. */
static int
breaks_capture(const char *name)
{
	static const char *const unsafe[] = {"cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostRegister_v2",
					     "cuMemHostUnregister", "cuEventQuery",
					     "cuStreamSynchronize"};
	int found = 0;
	for (size_t i = 0; i < sizeof unsafe / sizeof *unsafe; i++)
		found |= strcmp(name, unsafe[i]) == 0;
	return found && fake.captures && *fake_capture_mode() != OH_CU_CAPTURE_RELAXED;
}

oh_cu_result
fake_enter(const char *name)
{
	oh_cu_result code = OH_CU_SUCCESS;
	pthread_once(&configured, configure);
	pthread_mutex_lock(&fake.lock);
	int i = 0;
	while (i < NAMES - 1 && counts[i].name && strcmp(counts[i].name, name) != 0)
		i++;
	counts[i].name = name;
	counts[i].calls++;
	if (rule.number && (rule.name[0] == '*' || strcmp(rule.name, name) == 0)) {
		rule.seen++;
		if (rule.seen == rule.number || (rule.onwards && rule.seen > rule.number)) {
			code = rule.code ? rule.code : fitting_code(name);
			rule.failed++;
		}
		/* Nobody is told of it while bytes still move, and none do afterwards. */
		if (code != OH_CU_SUCCESS && rule.onwards) {
			fake.stopped = 1;
			fake_settle(NULL);
			fake_void();
		}
	}
	if (code == OH_CU_SUCCESS && breaks_capture(name)) {
		fake.invalidated = 1;
		code = (oh_cu_result)FAKE_CAPTURE_UNSUPPORTED;
	}
	pthread_mutex_unlock(&fake.lock);
	return code;
}

struct CUctx_st **
fake_stack(int **depth)
{
	static __thread struct CUctx_st *stack[FAKE_STACK];
	static __thread int used;
	*depth = &used;
	return stack;
}

/* CUDA does not work in a child of fork(). */
oh_cu_result
fake_ready(void)
{
	return fake.initialized && fake.process == (int)getpid() ? OH_CU_SUCCESS
								 : OH_CU_ERROR_NOT_INITIALIZED;
}

oh_cu_result
fake_current(struct CUctx_st **context)
{
	int *depth;
	struct CUctx_st **stack = fake_stack(&depth);
	oh_cu_result code = fake_ready();
	if (code != OH_CU_SUCCESS)
		return code;
	if (*depth == 0 || !stack[*depth - 1])
		return OH_CU_ERROR_INVALID_CONTEXT;
	if (!stack[*depth - 1]->alive)
		return OH_CU_ERROR_CONTEXT_IS_DESTROYED;
	*context = stack[*depth - 1];
	return (*context)->device->lost;
}

struct fake_device *
fake_device_of(oh_cu_address address)
{
	for (int i = 0; i < fake.device_count; i++) {
		oh_cu_address start = (oh_cu_address)(uintptr_t)fake.devices[i].view;
		if (address >= start && address - start < fake.devices[i].span)
			return &fake.devices[i];
	}
	return NULL;
}

struct fake_block *
fake_block_of(oh_cu_address address)
{
	struct fake_device *device = fake_device_of(address);
	if (!device)
		return NULL;
	uint64_t offset = address - (oh_cu_address)(uintptr_t)device->view;
	for (struct fake_block *block = device->blocks; block; block = block->next)
		if (offset >= block->offset && offset - block->offset < block->bytes)
			return block;
	return NULL;
}

struct fake_block *
fake_block_at(oh_cu_address address, enum fake_kind kind)
{
	struct fake_block *block = fake_block_of(address);
	struct fake_device *device = fake_device_of(address);
	if (!block || block->kind != kind)
		return NULL;
	return (oh_cu_address)(uintptr_t)device->view + block->offset == address ? block : NULL;
}

/* Is the whole of a piece of a reserved range mapped and accessible? */
static int
is_mapped(const struct fake_block *block, uint64_t offset, uint64_t bytes)
{
	while (bytes > 0) {
		const struct fake_map *map = block->maps;
		while (map && !(map->access && offset >= map->offset &&
				offset - map->offset < map->bytes))
			map = map->next;
		if (!map)
			return 0;
		uint64_t covered = map->bytes - (offset - map->offset);
		if (covered >= bytes)
			return 1;
		offset += covered;
		bytes -= covered;
	}
	return 1;
}

char *
fake_reach(oh_cu_address address, uint64_t bytes)
{
	struct fake_device *device = fake_device_of(address);
	struct fake_block *block = fake_block_of(address);
	if (!block)
		return NULL;
	uint64_t offset = address - (oh_cu_address)(uintptr_t)device->view;
	if (block->bytes - (offset - block->offset) < bytes)
		return NULL;
	if (block->kind == FAKE_RANGE && !is_mapped(block, offset, bytes))
		return NULL;
	return device->alias + offset;
}

/* Finds room at or after from, and where in the list it belongs. */
static struct fake_block **
find_room(struct fake_device *device, uint64_t from, uint64_t bytes, uint64_t alignment,
	  uint64_t *offset)
{
	struct fake_block **at = &device->blocks;
	uint64_t start = from;
	for (;; at = &(*at)->next) {
		start = (start + alignment - 1) / alignment * alignment;
		if (!*at)
			break;
		if ((*at)->offset + (*at)->bytes <= from)
			continue;
		if ((*at)->offset >= start && (*at)->offset - start >= bytes + ALIGNMENT)
			break;
		/* At least one unit apart, so that a range past the end is not in the next. */
		start = (*at)->offset + (*at)->bytes + ALIGNMENT;
	}
	*offset = start;
	return start <= device->span && device->span - start >= bytes ? at : NULL;
}

oh_cu_result
fake_block_make(struct fake_device *device, uint64_t bytes, uint64_t alignment,
		enum fake_kind kind, struct CUctx_st *context, oh_cu_address *address)
{
	uint64_t offset;
	struct fake_block *block;
	if (kind != FAKE_RANGE && bytes > device->total - device->used)
		return OH_CU_ERROR_OUT_OF_MEMORY;
	if (bytes > device->span)
		return OH_CU_ERROR_OUT_OF_MEMORY;
	if (alignment < ALIGNMENT)
		alignment = ALIGNMENT;
	struct fake_block **at = find_room(device, device->cursor, bytes, alignment, &offset);
	if (!at)
		at = find_room(device, 0, bytes, alignment, &offset);
	if (!at || !(block = calloc(1, sizeof *block)))
		return OH_CU_ERROR_OUT_OF_MEMORY;
	*block = (struct fake_block){*at, offset, bytes, context, kind, NULL};
	*at = block;
	device->cursor = offset + bytes;
	if (kind != FAKE_RANGE) {
		device->used += bytes;
		memset(device->alias + offset, POISON, bytes < POISON_MOST ? bytes : POISON_MOST);
	}
	*address = (oh_cu_address)(uintptr_t)device->view + offset;
	return OH_CU_SUCCESS;
}

void
fake_block_drop(struct fake_device *device, struct fake_block *block)
{
	struct fake_block **at = &device->blocks;
	const uint64_t page = 4096;
	while (*at != block)
		at = &(*at)->next;
	*at = block->next;
	if (block->kind != FAKE_RANGE)
		device->used -= block->bytes;
	uint64_t start = (block->offset + page - 1) / page * page;
	uint64_t end = (block->offset + block->bytes) / page * page;
	if (end > start)
		madvise(device->alias + start, end - start, MADV_REMOVE);
	while (block->maps) {
		struct fake_map *map = block->maps;
		block->maps = map->next;
		free(map);
	}
	free(block);
}

struct fake_registration *
fake_registration_of(const void *memory)
{
	const char *at = memory;
	for (struct fake_registration *r = fake.registrations; r; r = r->next)
		if (at >= r->start && (uint64_t)(at - r->start) < r->bytes)
			return r;
	return NULL;
}

static void
drop_memory_of(struct CUctx_st *context)
{
	struct fake_device *device = context->device;
	struct fake_block *next;
	for (struct fake_block *block = device->blocks; block; block = next) {
		next = block->next;
		if (block->context == context && block->kind != FAKE_RANGE)
			fake_block_drop(device, block);
	}
	struct fake_registration **at = &fake.registrations;
	while (*at) {
		struct fake_registration *r = *at;
		if (r->context != context) {
			at = &r->next;
			continue;
		}
		*at = r->next;
		free(r);
	}
}

/* What belonged to the context belongs to one that is gone: the primary's handle is used again. */
static void
bury(struct CUctx_st *context, struct CUctx_st *gone)
{
	*gone = *context;
	gone->next = fake.contexts;
	fake.contexts = gone;
	for (struct CUstream_st *s = fake.streams; s; s = s->next) {
		if (s->context == context) {
			s->context = gone;
			s->dead = 1;
		}
	}
	for (struct CUevent_st *e = fake.events; e; e = e->next) {
		if (e->context == context) {
			e->context = gone;
			if (e->record)
				e->record->done = 1;
		}
	}
	for (struct fake_block *b = context->device->blocks; b; b = b->next)
		if (b->context == context)
			b->context = gone;
	for (struct fake_registration *r = fake.registrations; r; r = r->next)
		if (r->context == context)
			r->context = gone;
	context->legacy = context->per_thread = NULL;
}

void
fake_kill(struct CUctx_st *context)
{
	struct CUctx_st *gone = calloc(1, sizeof *gone);
	if (!gone)
		abort();
	context->alive = 0;
	bury(context, gone);
	pthread_cond_broadcast(&fake.changed);
	for (struct CUstream_st *s = fake.streams; s; s = s->next)
		while (s->context == gone && s->running)
			pthread_cond_wait(&fake.changed, &fake.lock);
	drop_memory_of(gone);
	context->device->lost = OH_CU_SUCCESS;
	pthread_cond_broadcast(&fake.changed);
}

/* Reads the settings now if no call did so far. */
uint64_t
fake_cuda_seed(void)
{
	pthread_once(&configured, configure);
	return fake.seed;
}

int
fake_cuda_fail(const char *text)
{
	fake_cuda_seed();
	pthread_mutex_lock(&fake.lock);
	int failed = rule.failed;
	fake.stopped = 0;
	set_rule(text);
	pthread_mutex_unlock(&fake.lock);
	return failed;
}

int
fake_cuda_calls(const char *name)
{
	int calls = 0;
	pthread_mutex_lock(&fake.lock);
	for (int i = 0; i < NAMES && counts[i].name; i++)
		if (strcmp(counts[i].name, name) == 0)
			calls = counts[i].calls;
	pthread_mutex_unlock(&fake.lock);
	return calls;
}

void
fake_cuda_outstanding(struct fake_outstanding *held)
{
	memset(held, 0, sizeof *held);
	pthread_mutex_lock(&fake.lock);
	for (int i = 0; i < fake.device_count; i++) {
		held->primaries += fake.devices[i].primary_references;
		held->bytes += fake.devices[i].used;
		for (struct fake_block *b = fake.devices[i].blocks; b; b = b->next)
			held->allocations++;
	}
	for (struct fake_registration *r = fake.registrations; r; r = r->next)
		held->registrations++;
	for (struct CUstream_st *s = fake.streams; s; s = s->next)
		held->streams += !s->builtin && !s->destroyed && !s->dead;
	for (struct CUevent_st *e = fake.events; e; e = e->next)
		held->events += !e->destroyed && e->context->alive;
	for (struct CUctx_st *c = fake.contexts; c; c = c->next)
		held->contexts += c->alive && !c->primary;
	held->misuses = fake.misuses;
	pthread_mutex_unlock(&fake.lock);
}

void
fake_cuda_lose(int device, oh_cu_result code)
{
	pthread_mutex_lock(&fake.lock);
	fake.devices[device].lost = code;
	if (code != OH_CU_SUCCESS)
		fake_settle(&fake.devices[device]);
	pthread_mutex_unlock(&fake.lock);
}

void
fake_cuda_batch(int on)
{
	pthread_mutex_lock(&fake.lock);
	fake.batch = on;
	pthread_mutex_unlock(&fake.lock);
}

void *
fake_cuda_memory(oh_cu_address address)
{
	pthread_mutex_lock(&fake.lock);
	void *memory = fake_reach(address, 1);
	pthread_mutex_unlock(&fake.lock);
	return memory;
}
