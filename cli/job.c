/* One load, step by step.
 *
 * Each step measures itself; whole is their sum, so that filling the arena with poison, drawing and
 * printing stay out of it. Whatever a job holds, job_drop() gives back in reverse order, also after
 * a step failed.
 */
#include "job.h"
#include "progress.h"
#include "say.h"
#include "signals.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define POISON 0xA5
/* How long one wait may last: how often the bar is drawn and Ctrl-C looked for. */
#define TICK_NS UINT64_C(100000000)

#define PHASE(name, words) {#name "_ns", words, offsetof(struct job_times, name)}
const struct job_phase job_phases[JOB_PHASES] = {
	PHASE(open, "open"),
	PHASE(parse, "parse"),
	PHASE(select, "select"),
	PHASE(allocate, "allocate"),
	PHASE(plan, "plan"),
	PHASE(prepare, "prepare"),
	PHASE(first_read, "first read"),
	PHASE(first_copy, "first copy"),
	PHASE(last_read, "last read"),
	PHASE(last_byte, "last byte"),
};

uint64_t
job_phase(const struct job_times *times, size_t index)
{
	return *(const uint64_t *)((const char *)times + job_phases[index].offset);
}

onehop_status
job_runtime(const struct request *request, struct onehop_runtime **runtime,
	    struct onehop_error *error)
{
	return onehop_runtime_create(&request->options, runtime, error);
}

const char *
job_device(const struct request *request, struct onehop_runtime *runtime)
{
	if (request->device)
		return request->device;
	return onehop_cuda_device_count(runtime) > 0 ? "cuda:0" : "host";
}

void
job_begin(struct job *job, struct onehop_runtime *runtime, const char *device,
	  const struct request *request)
{
	memset(job, 0, sizeof *job);
	job->runtime = runtime;
	job->device = device;
	job->request = request;
}

static uint64_t
lap(struct job *job, uint64_t begin, uint64_t *phase)
{
	uint64_t took = now_ns() - begin;
	if (phase)
		*phase = took;
	job->times.whole += took;
	return took;
}

static uint64_t
timeval_ns(struct timeval time)
{
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_usec * 1000u;
}

static struct job_cpu
cpu_now(void)
{
	struct rusage usage;
	int failed = getrusage(RUSAGE_SELF, &usage);
	assert(failed == 0);
	(void)failed;
	return (struct job_cpu){timeval_ns(usage.ru_utime), timeval_ns(usage.ru_stime)};
}

/* Adds what was spent since then to *sum. */
static void
cpu_add(struct job_cpu *sum, struct job_cpu then)
{
	struct job_cpu now = cpu_now();
	sum->user += now.user - then.user;
	sum->system += now.system - then.system;
}

static onehop_status
cancelled(struct onehop_error *error)
{
	return fail(error, ONEHOP_CANCELLED, 0, "cancelled");
}

static onehop_status
select_tensors(struct job *job, struct onehop_error *error)
{
	const struct request *request = job->request;
	struct onehop_select_options options;
	onehop_select_options_init(&options);
	options.patterns = request->patterns;
	options.pattern_count = request->pattern_count;
	options.tp_rank = request->tp_rank;
	options.tp_size = request->tp_size;
	options.tp_uneven = request->tp_uneven;
	options.tp_plan_path = request->tp_plan;
	onehop_status status =
		onehop_model_select(job->model, &options, &job->selection, error);
	if (status)
		return status;
	job->layout.size = sizeof job->layout;
	status = onehop_selection_query(job->selection, &job->layout);
	assert(status == ONEHOP_OK);
	return ONEHOP_OK;
}

static onehop_status
open_model(struct job *job, const char *path, struct onehop_error *error)
{
	uint64_t begin = now_ns();
	onehop_status status = onehop_model_open(job->runtime, path, &job->model, error);
	if (status)
		return status;
	struct onehop_model_info info = job_model_info(job->model);
	/* Parsing is told apart by the library; the rest of the call is opening. */
	uint64_t took = lap(job, begin, NULL);
	job->times.parse = info.parse_ns < took ? info.parse_ns : took;
	job->times.open = took - job->times.parse;
	return ONEHOP_OK;
}

onehop_status
job_open(struct job *job, const char *path, struct onehop_error *error)
{
	onehop_status status = job->model ? ONEHOP_OK : open_model(job, path, error);
	if (status)
		return status;
	uint64_t begin = now_ns();
	status = select_tensors(job, error);
	if (status)
		return status;
	lap(job, begin, &job->times.select);
	return signals_caught() ? cancelled(error) : ONEHOP_OK;
}

onehop_status
job_allocate(struct job *job, int poison, struct onehop_error *error)
{
	uint64_t begin = now_ns(), bytes = job->layout.arena_bytes;
	onehop_status status = ONEHOP_OK;
	if (job->arena && job->arena_bytes != bytes) {
		onehop_buffer_free(job->arena);
		job->arena = NULL;
	}
	if (!job->arena)
		status = onehop_buffer_alloc(job->runtime, job->device, bytes, &job->arena, error);
	if (status)
		return status;
	job->arena_bytes = bytes;
	lap(job, begin, &job->times.allocate);
	if (poison) {
		struct job_cpu before = cpu_now();
		status = onehop_buffer_fill(job->arena, 0, bytes, POISON, error);
		cpu_add(&job->aside, before);
	}
	return status;
}

onehop_status
job_plan(struct job *job, struct onehop_error *error)
{
	uint64_t begin = now_ns();
	onehop_status status =
		onehop_model_plan(job->selection, job->arena, 0, &job->plan, error);
	if (status)
		return status;
	lap(job, begin, &job->times.plan);
	job->planned.size = sizeof job->planned;
	status = onehop_plan_query(job->plan, &job->planned);
	assert(status == ONEHOP_OK);
	return ONEHOP_OK;
}

onehop_status
job_prepare(struct job *job, struct onehop_error *error)
{
	uint64_t begin = now_ns();
	onehop_status status = onehop_transfer_prepare(job->plan, &job->transfer, error);
	if (status)
		return status;
	lap(job, begin, &job->times.prepare);
	return ONEHOP_OK;
}

static void
draw(struct progress *progress, struct onehop_transfer *transfer)
{
	struct onehop_progress now = {.size = sizeof now};
	if (progress->on && onehop_transfer_progress(transfer, &now) == ONEHOP_OK)
		progress_draw(progress, now.bytes_landed, now.bytes_total);
}

onehop_status
job_move(struct job *job, int quiet, struct onehop_error *error)
{
	struct progress progress;
	struct job_times *times = &job->times;
	progress_begin(&progress, "loading", quiet);
	uint64_t begin = now_ns();
	onehop_status status = onehop_transfer_start(job->transfer, NULL, error);
	if (status)
		return status;
	do {
		if (signals_caught())
			onehop_transfer_cancel(job->transfer);
		job->completion.size = sizeof job->completion;
		status = onehop_transfer_wait(job->transfer, TICK_NS, &job->completion, error);
		if (status == ONEHOP_TIMED_OUT)
			draw(&progress, job->transfer);
	} while (status == ONEHOP_TIMED_OUT);
	lap(job, begin, NULL);
	progress_end(&progress);
	times->first_read = job->completion.first_read_ns;
	times->first_copy = job->completion.first_copy_ns;
	times->last_read = job->completion.last_read_ns;
	times->last_byte = job->completion.total_ns;
	return status == ONEHOP_OK && signals_caught() ? cancelled(error) : status;
}

onehop_status
job_load(struct job *job, const char *path, int poison, int quiet, struct onehop_error *error)
{
	memset(&job->times, 0, sizeof job->times);
	onehop_status status = job_open(job, path, error);
	if (!status)
		status = job_allocate(job, poison, error);
	if (!status)
		status = job_plan(job, error);
	if (!status)
		status = job_prepare(job, error);
	if (!status)
		status = job_move(job, quiet, error);
	return status;
}

onehop_status
job_load_measured(struct job *job, const char *path, int poison, int quiet,
		  struct onehop_error *error)
{
	struct job_cpu before = cpu_now(), spent = {0};
	memset(&job->aside, 0, sizeof job->aside);
	onehop_status status = job_load(job, path, poison, quiet, error);
	cpu_add(&spent, before);
	job->times.cpu.user = spent.user - job->aside.user;
	job->times.cpu.system = spent.system - job->aside.system;
	return status;
}

onehop_status
job_pin(struct job *job, const char *path, uint64_t *pin_ns, struct onehop_error *error)
{
	onehop_status status = job_open(job, path, error);
	if (!status)
		status = job_allocate(job, 0, error);
	if (status)
		return status;
	uint64_t begin = now_ns();
	status = onehop_model_pin(job->model, job->device, error);
	if (status)
		return status;
	*pin_ns = now_ns() - begin;
	/* Pinning cannot be cut short. */
	return signals_caught() ? cancelled(error) : ONEHOP_OK;
}

void
job_drop_but_model(struct job *job)
{
	onehop_transfer_destroy(job->transfer);
	onehop_plan_destroy(job->plan);
	onehop_selection_destroy(job->selection);
	job->transfer = NULL;
	job->plan = NULL;
	job->selection = NULL;
}

void
job_drop_but_arena(struct job *job)
{
	job_drop_but_model(job);
	onehop_model_unpin(job->model);
	onehop_model_close(job->model);
	job->model = NULL;
}

void
job_drop(struct job *job)
{
	job_drop_but_arena(job);
	onehop_buffer_free(job->arena);
	job->arena = NULL;
}

/* ------------------------------------------------------------------------------------------- */

struct onehop_model_info
job_model_info(const struct onehop_model *model)
{
	struct onehop_model_info info = {.size = sizeof info};
	onehop_status status = onehop_model_query(model, &info);
	assert(status == ONEHOP_OK);
	(void)status;
	return info;
}

struct onehop_tensor
job_tensor(const struct onehop_model *model, uint64_t index)
{
	struct onehop_tensor tensor = {.size = sizeof tensor};
	onehop_status status = onehop_model_at(model, index, &tensor);
	assert(status == ONEHOP_OK);
	(void)status;
	return tensor;
}

struct onehop_item
job_item(const struct job *job, uint64_t index)
{
	struct onehop_item item = {.size = sizeof item};
	onehop_status status = onehop_selection_at(job->selection, index, &item);
	assert(status == ONEHOP_OK);
	(void)status;
	return item;
}

int
job_shape(const struct onehop_model *model, uint64_t index, const struct onehop_item *item,
	  struct shape *shape)
{
	struct onehop_tensor tensor = job_tensor(model, index);
	if (!shape->dims || tensor.rank > shape->room) {
		uint64_t room = tensor.rank < 16 ? 16 : tensor.rank;
		uint64_t *dims = realloc(shape->dims, room * sizeof *dims);
		if (!dims)
			return -1;
		shape->dims = dims;
		shape->room = room;
	}
	shape->rank = tensor.rank;
	if (tensor.rank > ONEHOP_SHAPE_INLINE)
		onehop_model_shape(model, index, shape->dims, tensor.rank);
	else
		memcpy(shape->dims, tensor.shape, tensor.rank * sizeof tensor.shape[0]);
	if (item && item->split_dim >= 0)
		shape->dims[item->split_dim] = item->split_extent;
	return 0;
}
