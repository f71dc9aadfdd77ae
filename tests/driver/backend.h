/* What the tests of the CUDA back end share: the tables of the look-alike driver, a gate that holds
 * a stream, and the check that nothing is left behind. */
#ifndef OH_TESTS_DRIVER_BACKEND_H
#define OH_TESTS_DRIVER_BACKEND_H

#include "extra.h"
#include "harness.h"

#include "memory/ops.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>

#define UNUSED __attribute__((unused))

static const struct oh_memory_ops *const ops = &oh_memory_cuda;
static const struct oh_cuda *cu;
static struct extra extra;
static struct fake_controls fake;

/* Without the look-alike driver on the loader's path there is nothing to test with. */
UNUSED static int
backend_main(int argc, char **argv)
{
	struct onehop_error error = {0};
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library || !dlsym(library, "fake_cuda_seed")) {
		printf("1..0 # SKIP the look-alike driver is not on the loader's path\n");
		return 0;
	}
#define LOAD_EXTRA(field, name, suffix, version, arguments)                                        \
	*(void **)&extra.field = dlsym(library, #name #suffix);
	EXTRA(LOAD_EXTRA)
#define LOAD_CONTROL(field, name, arguments, type) *(void **)&fake.field = dlsym(library, #name);
	FAKE_CONTROLS(LOAD_CONTROL)
	if (oh_cuda_load(&cu, &error) != ONEHOP_OK || cu->init(0) != OH_CU_SUCCESS) {
		printf("Bail out! %s\n", error.message);
		return 1;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("# seed %" PRIu64 "\n", fake.seed());
	return test_main(argc, argv);
}

/* Is nothing held any more, and was nothing undefined done? */
#define CHECK_NOTHING_HELD()                                                                       \
	do {                                                                                       \
		struct fake_outstanding still_held;                                                \
		fake.outstanding(&still_held);                                                     \
		CHECK_EQ(still_held.allocations, 0);                                               \
		CHECK_EQ(still_held.registrations, 0);                                             \
		CHECK_EQ(still_held.streams, 0);                                                   \
		CHECK_EQ(still_held.events, 0);                                                    \
		CHECK_EQ(still_held.contexts, 0);                                                  \
		CHECK_EQ(still_held.primaries, 0);                                                 \
		CHECK_EQ(still_held.bytes, 0);                                                     \
		CHECK_EQ(still_held.misuses, 0);                                                   \
	} while (0)

#define CHECK_FAILS(call, want)                                                                    \
	do {                                                                                       \
		error = (struct onehop_error){0};                                                  \
		CHECK_STR(onehop_status_name(call), onehop_status_name(want));                     \
		CHECK_EQ(error.status, want);                                                      \
		CHECK(error.message[0] != '\0');                                                   \
	} while (0)

UNUSED static struct CUctx_st *
current_context(void)
{
	struct CUctx_st *context = NULL;
	cu->ctx_current(&context);
	return context;
}

UNUSED static struct CUstream_st *
stream_make(unsigned int flags)
{
	struct CUstream_st *stream = NULL;
	return cu->stream_create(&stream, flags) == OH_CU_SUCCESS ? stream : NULL;
}

UNUSED static uint64_t
handle_of(struct CUstream_st *stream)
{
	return (uint64_t)(uintptr_t)stream;
}

/* A stream that was given a gate does nothing that follows until the gate is opened. */
struct gate {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int open;
};

UNUSED static void
gate_pass(void *argument)
{
	struct gate *gate = argument;
	pthread_mutex_lock(&gate->lock);
	while (!gate->open)
		pthread_cond_wait(&gate->changed, &gate->lock);
	pthread_mutex_unlock(&gate->lock);
}

UNUSED static void
gate_open(struct gate *gate)
{
	pthread_mutex_lock(&gate->lock);
	gate->open = 1;
	pthread_cond_broadcast(&gate->changed);
	pthread_mutex_unlock(&gate->lock);
}

#define GATE {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0}

/* Polls until the mark's copies have ended or poll fails. */
UNUSED static onehop_status
wait_for(struct oh_device *device, struct oh_mark *mark, struct onehop_error *error)
{
	int done = 0;
	onehop_status status;
	while ((status = ops->poll(device, mark, &done, error)) == ONEHOP_OK && !done)
		sched_yield();
	return status;
}

/* A device with all that one lane has. */
struct lane {
	struct oh_device *device;
	struct oh_queue *queue;
	struct oh_mark *mark;
	char *ring; /* pinned */
	uint64_t ring_bytes;
};

UNUSED static onehop_status
lane_make(struct lane *lane, uint64_t ring_bytes, struct onehop_error *error)
{
	*lane = (struct lane){.ring_bytes = ring_bytes};
	onehop_status status = ops->open(0, &lane->device, error);
	if (status == ONEHOP_OK)
		status = ops->queue_create(lane->device, &lane->queue, error);
	if (status == ONEHOP_OK)
		status = ops->mark_create(lane->device, &lane->mark, error);
	if (status != ONEHOP_OK)
		return status;
	char *ring = aligned_alloc(4096, (ring_bytes + 4095) / 4096 * 4096);
	if (!ring)
		return oh_fail_no_memory(error, ring_bytes, "the ring");
	memset(ring, 0, ring_bytes);
	status = ops->pin(lane->device, ring, ring_bytes, error);
	if (status == ONEHOP_OK)
		lane->ring = ring;
	else
		free(ring);
	return status;
}

/* Also for one that was made in part. */
UNUSED static void
lane_drop(struct lane *lane)
{
	if (!lane->device)
		return;
	if (lane->ring)
		ops->unpin(lane->device, lane->ring, lane->ring_bytes);
	free(lane->ring);
	ops->mark_destroy(lane->device, lane->mark);
	ops->queue_destroy(lane->device, lane->queue);
	ops->close(lane->device);
	*lane = (struct lane){0};
}

/* Bytes that differ from place to place and from one number to the next. */
UNUSED static void
pattern(void *memory, uint64_t bytes, uint64_t number)
{
	unsigned char *to = memory;
	uint64_t x = number * 0x9E3779B97F4A7C15u + 1;
	for (uint64_t i = 0; i < bytes; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		to[i] = (unsigned char)(x >> 32);
	}
}

UNUSED static int
all_are(const void *memory, uint64_t bytes, unsigned char value)
{
	const unsigned char *at = memory;
	for (uint64_t i = 0; i < bytes; i++)
		if (at[i] != value)
			return 0;
	return 1;
}

#endif
