/* What the tests that go through the public API share: a caller with a CUDA context and a stream of
 * its own, a file, a runtime with a small ring, and loads of parts of the file onto cuda:0. */
#ifndef OH_TESTS_DRIVER_WORLD_H
#define OH_TESTS_DRIVER_WORLD_H

#include "backend.h"

#include "base/sys.h"

#include <onehop/onehop.h>

#include <unistd.h>

#define KIB ((uint64_t)1 << 10)
#define BLOCK (64 * KIB)
#define SLICE (16 * KIB)
#define JOB_BYTES (8 * BLOCK + 1000) /* twice the ring, and more */
#define FILE_BYTES (4 * JOB_BYTES)
/* Enough for whatever ends at all, so that a hang is a failure with a name. */
#define SOON ((uint64_t)20000000000u)
#define UNTOUCHED 0xEE

static struct onehop_error error;
static char folder[] = "/tmp/onehop-driver-XXXXXX";
static char path[sizeof folder + 16];
static char content[FILE_BYTES];

struct world {
	struct CUctx_st *context; /* the primary, current in the test's thread */
	struct CUstream_st *stream;
	struct onehop_runtime *runtime;
	struct onehop_file *file;
};

/* One load of a part of the file into a buffer of its own. */
struct job {
	struct onehop_buffer *buffer;
	struct onehop_plan *plan;
	struct onehop_transfer *transfer;
	uint64_t offset, bytes;
	uint64_t address;
	const char *memory; /* where the driver sees it */
};

/* The call's status, and that it left the thread's current context as it was. */
#define CHECK_CALL(call, want)                                                                     \
	do {                                                                                       \
		struct CUctx_st *context_before = current_context();                               \
		onehop_status call_status = (call), call_want = (want);                            \
		if (call_status != call_want) {                                                    \
			test_fail(__FILE__, __LINE__, "%s is %s, should be %s: %s", #call,         \
				  onehop_status_name(call_status), onehop_status_name(call_want),  \
				  call_status ? error.message : "");                               \
			return;                                                                    \
		}                                                                                  \
		CHECK(current_context() == context_before);                                        \
	} while (0)

UNUSED static int
runtime_make(struct world *w, uint64_t threads)
{
	struct onehop_runtime_options options;
	onehop_runtime_options_init(&options);
	options.threads = threads;
	options.ring_bytes = 4 * BLOCK;
	options.block_bytes = BLOCK;
	options.slice_bytes = SLICE;
	return onehop_runtime_create(&options, &w->runtime, &error) == ONEHOP_OK &&
	       onehop_file_open(w->runtime, path, &w->file, &error) == ONEHOP_OK;
}

UNUSED static void
runtime_drop(struct world *w)
{
	onehop_file_close(w->file);
	onehop_runtime_destroy(w->runtime);
}

UNUSED static int
world_make(struct world *w, uint64_t threads)
{
	*w = (struct world){0};
	if (cu->primary_retain(&w->context, 0) != OH_CU_SUCCESS ||
	    cu->ctx_push(w->context) != OH_CU_SUCCESS)
		return 0;
	w->stream = stream_make(OH_CU_STREAM_NON_BLOCKING);
	return w->stream && runtime_make(w, threads);
}

/* Ends the test: nothing may be left. */
UNUSED static void
world_drop(struct world *w)
{
	struct CUctx_st *popped;
	runtime_drop(w);
	CHECK_EQ(cu->stream_destroy(w->stream), 0);
	CHECK_EQ(cu->ctx_pop(&popped), 0);
	CHECK(popped == w->context);
	CHECK_EQ(cu->primary_release(0), 0);
	CHECK_NOTHING_HELD();
}

UNUSED static onehop_status
job_make(struct world *w, struct job *job, const char *device, uint64_t offset, uint64_t bytes)
{
	struct onehop_buffer_info info = {.size = sizeof info};
	*job = (struct job){.offset = offset, .bytes = bytes};
	onehop_status status =
		onehop_buffer_alloc(w->runtime, device, bytes, &job->buffer, &error);
	if (status == ONEHOP_OK)
		status = onehop_buffer_fill(job->buffer, 0, bytes, UNTOUCHED, &error);
	if (status != ONEHOP_OK)
		return status;
	struct onehop_extent extent = {w->file, offset, bytes, 1, 0, job->buffer, 0, "the.tensor"};
	status = onehop_plan_create(w->runtime, &extent, 1, &job->plan, &error);
	if (status == ONEHOP_OK)
		status = onehop_transfer_prepare(job->plan, &job->transfer, &error);
	onehop_buffer_query(job->buffer, &info);
	job->address = info.address;
	job->memory = fake.memory(info.address);
	return status;
}

/* Also of one that was made in part. */
UNUSED static void
job_drop(struct job *job)
{
	onehop_transfer_destroy(job->transfer);
	onehop_plan_destroy(job->plan);
	onehop_buffer_free(job->buffer);
	*job = (struct job){0};
}

UNUSED static onehop_status
job_start(struct job *job)
{
	return onehop_transfer_start(job->transfer, NULL, &error);
}

UNUSED static onehop_status
job_start_after(struct job *job, struct CUstream_st *stream)
{
	struct onehop_start_options options;
	onehop_start_options_init(&options);
	options.flags = ONEHOP_START_AFTER_STREAM;
	options.after_stream = handle_of(stream);
	return onehop_transfer_start(job->transfer, &options, &error);
}

UNUSED static onehop_status
job_end(struct job *job)
{
	return onehop_transfer_wait(job->transfer, SOON, NULL, &error);
}

/* Did all of it land? As the library reads it back. */
UNUSED static int
job_is_right(struct job *job)
{
	static char got[FILE_BYTES];
	return onehop_buffer_read(job->buffer, 0, got, job->bytes, &error) == ONEHOP_OK &&
	       memcmp(got, content + job->offset, job->bytes) == 0;
}

UNUSED static int
world_main(int argc, char **argv)
{
	char command[sizeof folder + 16];
	if (!mkdtemp(folder))
		return 1;
	snprintf(path, sizeof path, "%s/file", folder);
	pattern(content, sizeof content, 1);
	FILE *file = fopen(path, "w");
	if (!file || fwrite(content, 1, sizeof content, file) != sizeof content || fclose(file))
		return 1;
	int result = backend_main(argc, argv);
	snprintf(command, sizeof command, "rm -rf %s", folder);
	return system(command) ? 1 : result;
}

#endif
