/* A pipeline: a ring of places, each with one read in flight, which is a plan of one extent and its
 * transfer. The oldest is given first.
 *
 * The owner's thread alone adds places and takes them away; the lock is for cancel, which looks at
 * them from any thread. It is held for short, and never while a read is started, waited for or
 * destroyed. How bytes travel is the runtime's business; what waits for a place is the caller's.
 */
#include "base/arith.h"
#include "base/error.h"
#include "base/give.h"
#include "base/sys.h"
#include "runtime/file.h"

#include <onehop/pipeline.h>

#include <pthread.h>
#include <stdlib.h>

/* Where the kernel does not tell, as everywhere in this library. */
#define ASSUMED_ALIGNMENT UINT64_C(4096)

struct place {
	struct onehop_read read;
	struct onehop_plan *plan;
	struct onehop_transfer *transfer;
	uint64_t wanted; /* read.bytes, less what lies behind the end of the file */
	uint64_t started_ns;
};

struct onehop_pipeline {
	struct onehop_runtime *runtime;
	struct onehop_file *file;
	struct onehop_buffer *buffer;
	uint64_t alignment;
	uint64_t file_bytes;
	uint64_t buffer_bytes;
	pid_t pid;
	struct onehop_pipeline_info info;
	uint64_t busy_until_ns; /* the latest landing so far */
	pthread_mutex_t lock;   /* guards first, info.in_flight and places */
	uint32_t first;
	uint32_t place_count;
	struct place places[];
};

void
onehop_pipeline_options_init(struct onehop_pipeline_options *options)
{
	*options = (struct onehop_pipeline_options){
		.size = sizeof *options, .places = 2, .alignment = ASSUMED_ALIGNMENT};
}

onehop_status
onehop_pipeline_alignment(const struct onehop_file *file, uint64_t *alignment,
			  struct onehop_error *error)
{
	if (!file || !alignment)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "file or alignment is NULL");
	*alignment = oh_file_direct_alignment(file);
	return ONEHOP_OK;
}

/* The caller's options, checked, in *options. */
static onehop_status
take_options(const struct onehop_pipeline_options *theirs, struct onehop_pipeline_options *options,
	     struct onehop_error *error)
{
	onehop_pipeline_options_init(options);
	if (!theirs)
		return ONEHOP_OK;
	if (theirs->size < sizeof *options)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "the pipeline's options were not filled by "
			       "onehop_pipeline_options_init(): size is %u",
			       theirs->size);
	*options = *theirs;
	if (!options->places || options->places > ONEHOP_PIPELINE_PLACES_MOST)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "a pipeline of %u places: it has 1 to %u", options->places,
			       ONEHOP_PIPELINE_PLACES_MOST);
	if (!options->alignment)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "an alignment of 0 bytes: it is 1 at least");
	return ONEHOP_OK;
}

onehop_status
onehop_pipeline_create(struct onehop_runtime *runtime, struct onehop_file *file,
		       struct onehop_buffer *buffer, const struct onehop_pipeline_options *theirs,
		       struct onehop_pipeline **out, struct onehop_error *error)
{
	struct onehop_pipeline_options options;
	struct onehop_file_info file_info = {.size = sizeof file_info};
	struct onehop_buffer_info buffer_info = {.size = sizeof buffer_info};
	if (!runtime || !file || !buffer || !out)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "runtime, file, buffer or pipeline is NULL");
	onehop_status status = take_options(theirs, &options, error);
	if (status)
		return status;
	onehop_file_query(file, &file_info);
	onehop_buffer_query(buffer, &buffer_info);
	size_t bytes = sizeof(struct onehop_pipeline) + options.places * sizeof(struct place);
	struct onehop_pipeline *pipeline = calloc(1, bytes);
	if (!pipeline)
		return oh_fail_no_memory(error, bytes, "a pipeline");
	pipeline->runtime = runtime;
	pipeline->file = file;
	pipeline->buffer = buffer;
	pipeline->alignment = options.alignment;
	pipeline->file_bytes = file_info.bytes;
	pipeline->buffer_bytes = buffer_info.bytes;
	pipeline->pid = oh_sys.getpid();
	pipeline->place_count = options.places;
	pthread_mutex_init(&pipeline->lock, NULL);
	*out = pipeline;
	return ONEHOP_OK;
}

static int
forked(const struct onehop_pipeline *pipeline, struct onehop_error *error)
{
	if (pipeline->pid == oh_sys.getpid())
		return 0;
	oh_fail(error, ONEHOP_FORKED, "the pipeline belongs to the parent process");
	oh_remedy(error, "make a runtime and a pipeline in the child");
	return 1;
}

/* The index-th place from the oldest on. */
static struct place *
place_at(struct onehop_pipeline *pipeline, uint32_t index)
{
	return &pipeline->places[(pipeline->first + index) % pipeline->place_count];
}

static onehop_status
check_aligned(const struct onehop_pipeline *pipeline, const char *what, uint64_t value,
	      struct onehop_error *error)
{
	if (value % pipeline->alignment == 0)
		return ONEHOP_OK;
	oh_fail(error, ONEHOP_INVALID_ARGUMENT, "%s %llu is not a multiple of the alignment, %llu",
		what, (unsigned long long)value, (unsigned long long)pipeline->alignment);
	oh_remedy(error, "round offsets down and bytes up, and use the part that is wanted");
	return ONEHOP_INVALID_ARGUMENT;
}

static onehop_status
check_range(const struct onehop_pipeline *pipeline, const struct onehop_read *read,
	    struct onehop_error *error)
{
	uint64_t end;
	if (!oh_add(read->buffer_offset, read->bytes, &end) && end <= pipeline->buffer_bytes)
		return ONEHOP_OK;
	oh_fail(error, ONEHOP_INVALID_ARGUMENT,
		"a read of %llu bytes to buffer offset %llu leaves the buffer, which has %llu",
		(unsigned long long)read->bytes, (unsigned long long)read->buffer_offset,
		(unsigned long long)pipeline->buffer_bytes);
	oh_remedy(error, "keep the range within the buffer, or give a larger one");
	return ONEHOP_INVALID_ARGUMENT;
}

static int
overlap(const struct onehop_read *a, const struct onehop_read *b)
{
	return a->bytes && b->bytes && a->buffer_offset < b->buffer_offset + b->bytes &&
	       b->buffer_offset < a->buffer_offset + a->bytes;
}

static onehop_status
check_free(struct onehop_pipeline *pipeline, const struct onehop_read *read,
	   struct onehop_error *error)
{
	for (uint32_t i = 0; i < pipeline->info.in_flight; i++) {
		const struct onehop_read *other = &place_at(pipeline, i)->read;
		if (!overlap(read, other))
			continue;
		oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			"a read of %llu bytes to buffer offset %llu overlaps one in flight, of "
			"%llu bytes to %llu",
			(unsigned long long)read->bytes, (unsigned long long)read->buffer_offset,
			(unsigned long long)other->bytes, (unsigned long long)other->buffer_offset);
		oh_remedy(error, "wait for that one first, or use another part of the buffer");
		return ONEHOP_INVALID_ARGUMENT;
	}
	return ONEHOP_OK;
}

static onehop_status
check_read(struct onehop_pipeline *pipeline, const struct onehop_read *read,
	   struct onehop_error *error)
{
	onehop_status status = check_aligned(pipeline, "file offset", read->file_offset, error);
	if (!status)
		status = check_aligned(pipeline, "buffer offset", read->buffer_offset, error);
	if (!status)
		status = check_aligned(pipeline, "size", read->bytes, error);
	if (!status)
		status = check_range(pipeline, read, error);
	if (!status)
		status = check_free(pipeline, read, error);
	if (!status && pipeline->info.in_flight == pipeline->place_count)
		status = oh_fail(error, ONEHOP_BUSY, "all %u places of the pipeline are taken",
				 pipeline->place_count);
	return status;
}

static void
clear(struct place *place)
{
	onehop_transfer_destroy(place->transfer);
	onehop_plan_destroy(place->plan);
}

/* Fills *place, which is nobody else's yet. */
static onehop_status
start_read(const struct onehop_pipeline *pipeline, struct place *place,
	   const struct onehop_start_options *start, struct onehop_error *error)
{
	uint64_t offset = oh_min(place->read.file_offset, pipeline->file_bytes);
	place->wanted = oh_min(place->read.bytes, pipeline->file_bytes - offset);
	struct onehop_extent extent = {
		.file = pipeline->file,
		.offset = offset,
		.row_bytes = place->wanted,
		.rows = 1,
		.buffer = pipeline->buffer,
		.buffer_offset = place->read.buffer_offset,
	};
	onehop_status status =
		onehop_plan_create(pipeline->runtime, &extent, 1, &place->plan, error);
	if (!status)
		status = onehop_transfer_prepare(place->plan, &place->transfer, error);
	place->started_ns = oh_now_ns();
	if (!status)
		status = onehop_transfer_start(place->transfer, start, error);
	if (status)
		clear(place);
	return status;
}

onehop_status
onehop_pipeline_submit(struct onehop_pipeline *pipeline, const struct onehop_read *read,
		       const struct onehop_start_options *start, struct onehop_error *error)
{
	if (forked(pipeline, error))
		return ONEHOP_FORKED;
	if (!read)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "there is no read to submit");
	onehop_status status = check_read(pipeline, read, error);
	if (status)
		return status;
	struct place place = {.read = *read};
	status = start_read(pipeline, &place, start, error);
	if (status)
		return status;
	pthread_mutex_lock(&pipeline->lock);
	*place_at(pipeline, pipeline->info.in_flight) = place;
	pipeline->info.in_flight++;
	pthread_mutex_unlock(&pipeline->lock);
	return ONEHOP_OK;
}

/* Reads come in the order of their start: what this one adds to the time in which any was on its
 * way lies behind the latest landing so far. */
static void
tally(struct onehop_pipeline *pipeline, const struct place *place,
      const struct onehop_completion *completion, onehop_status status)
{
	struct onehop_pipeline_info *info = &pipeline->info;
	uint64_t begin = oh_max(place->started_ns, pipeline->busy_until_ns);
	uint64_t end = place->started_ns + completion->total_ns;
	info->reads++;
	info->bytes += completion->bytes;
	if (status)
		info->failed_reads++;
	else
		info->short_bytes += place->read.bytes - place->wanted;
	if (end > begin) {
		info->busy_ns += end - begin;
		pipeline->busy_until_ns = end;
	}
}

/* Takes the oldest read out of the ring. */
static struct place
take_oldest(struct onehop_pipeline *pipeline)
{
	pthread_mutex_lock(&pipeline->lock);
	struct place place = *place_at(pipeline, 0);
	pipeline->first = (pipeline->first + 1) % pipeline->place_count;
	pipeline->info.in_flight--;
	pthread_mutex_unlock(&pipeline->lock);
	return place;
}

onehop_status
onehop_pipeline_next(struct onehop_pipeline *pipeline, uint64_t timeout_ns,
		     struct onehop_read_done *done, struct onehop_error *error)
{
	struct onehop_completion completion = {.size = sizeof completion};
	if (forked(pipeline, error))
		return ONEHOP_FORKED;
	if (!done || done->size < sizeof *done)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "done->size is not filled");
	if (!pipeline->info.in_flight)
		return oh_fail(error, ONEHOP_END, "no read is in flight");
	onehop_status status = onehop_transfer_wait(place_at(pipeline, 0)->transfer, timeout_ns,
						    &completion, error);
	if (status == ONEHOP_TIMED_OUT)
		return status;
	struct place place = take_oldest(pipeline);
	tally(pipeline, &place, &completion, status);
	done->status = status;
	done->tag = place.read.tag;
	done->bytes = completion.bytes;
	clear(&place);
	return status;
}

void
onehop_pipeline_cancel(struct onehop_pipeline *pipeline)
{
	if (forked(pipeline, NULL))
		return;
	pthread_mutex_lock(&pipeline->lock);
	for (uint32_t i = 0; i < pipeline->info.in_flight; i++)
		onehop_transfer_cancel(place_at(pipeline, i)->transfer);
	pthread_mutex_unlock(&pipeline->lock);
}

onehop_status
onehop_pipeline_query(const struct onehop_pipeline *pipeline, struct onehop_pipeline_info *info)
{
	return oh_give(info, &pipeline->info, sizeof pipeline->info);
}

void
onehop_pipeline_destroy(struct onehop_pipeline *pipeline)
{
	if (!pipeline || forked(pipeline, NULL))
		return;
	onehop_pipeline_cancel(pipeline);
	while (pipeline->info.in_flight) {
		struct place place = take_oldest(pipeline);
		clear(&place);
	}
	pthread_mutex_destroy(&pipeline->lock);
	free(pipeline);
}
