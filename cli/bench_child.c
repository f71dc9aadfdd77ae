/* One process of onehop bench.
 *
 * It makes its runtime and opens the device before any clock starts, does what its first word says,
 * and writes a record a load to standard output, as bytes. It dies with its parent. A sampler reads
 * RssAnon every 5 ms; its own stack is there before the first sample.
 */
#include "bench.h"
#include "check.h"
#include "progress.h"
#include "signals.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static const struct usage child_usage = {
	.name = "bench-child",
	.operands = "KIND PATH [PATH]",
	.about = "A part of onehop bench.\n",
	.words_min = 2,
	.words_max = 3,
	.option_count = 3,
	.options = {OPT_DEVICE, OPT_REPEAT, OPT_OPTION},
};

struct child {
	struct request request;
	struct onehop_runtime *runtime;
	struct out *out;
};

/* ------------------------------------------------------------------------------------------- */
/* Memory */

struct sampler {
	pthread_t thread;
	int fd;
	uint64_t before;
	_Atomic uint64_t peak;
	_Atomic int stop;
};

/* RssAnon in bytes, 0 if it cannot be told. */
static uint64_t
rss_anon(int fd)
{
	char text[4096];
	ssize_t got = pread(fd, text, sizeof text - 1, 0);
	if (got <= 0)
		return 0;
	text[got] = '\0';
	const char *line = strstr(text, "RssAnon:");
	return line ? strtoull(line + strlen("RssAnon:"), NULL, 10) * 1024 : 0;
}

static void *
sample(void *argument)
{
	struct sampler *sampler = argument;
	struct timespec tick = {0, 5000000};
	while (!atomic_load(&sampler->stop)) {
		uint64_t now = rss_anon(sampler->fd);
		if (now > atomic_load(&sampler->peak))
			atomic_store(&sampler->peak, now);
		nanosleep(&tick, NULL);
	}
	return NULL;
}

static int
sampler_begin(struct sampler *sampler)
{
	sigset_t all, before;
	memset(sampler, 0, sizeof *sampler);
	sampler->fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
	if (sampler->fd < 0)
		return -1;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int failed = pthread_create(&sampler->thread, NULL, sample, sampler);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (failed) {
		close(sampler->fd);
		return -1;
	}
	/* The thread's own pages are there once it has taken a sample. */
	while (atomic_load(&sampler->peak) == 0)
		sched_yield();
	sampler->before = rss_anon(sampler->fd);
	return 0;
}

static uint64_t
sampler_end(struct sampler *sampler)
{
	uint64_t last = rss_anon(sampler->fd), peak;
	atomic_store(&sampler->stop, 1);
	pthread_join(sampler->thread, NULL);
	close(sampler->fd);
	peak = atomic_load(&sampler->peak);
	peak = last > peak ? last : peak;
	return peak > sampler->before ? peak - sampler->before : 0;
}

static uint64_t
device_free_bytes(struct child *child)
{
	struct onehop_device_info info = {.size = sizeof info};
	struct onehop_error error;
	return onehop_device_query(child->runtime, child->request.device, &info, &error)
		       ? 0
		       : info.free_bytes;
}

static uint64_t
pinned_peak(struct onehop_runtime *runtime)
{
	struct onehop_runtime_info info = {.size = sizeof info};
	return onehop_runtime_query(runtime, &info) ? 0 : info.pinned_peak_bytes;
}

static void
put(struct child *child, const struct job *job, const struct bench_record *memory)
{
	struct bench_record record = {0};
	if (memory)
		record = *memory;
	record.times = job->times;
	record.bytes = job->layout.bytes;
	out_raw(child->out, (const char *)&record, sizeof record);
}

/* ------------------------------------------------------------------------------------------- */
/* The kinds */

static onehop_status
first(struct child *child, struct onehop_error *error)
{
	struct job job;
	struct sampler sampler;
	struct bench_record memory = {0};
	uint64_t before = device_free_bytes(child), after;
	job_begin(&job, child->runtime, child->request.device, &child->request);
	int sampled = sampler_begin(&sampler) == 0;
	onehop_status status = job_load(&job, child->request.words[1], 0, 1, error);
	memory.rss_growth = sampled ? sampler_end(&sampler) : 0;
	memory.pinned_peak = pinned_peak(child->runtime);
	after = device_free_bytes(child);
	memory.device_growth = before > after ? before - after : 0;
	if (!status)
		put(child, &job, &memory);
	job_drop(&job);
	return status;
}

static onehop_status
again(struct child *child, struct onehop_error *error)
{
	struct job job;
	uint64_t repeat = child->request.repeat;
	job_begin(&job, child->runtime, child->request.device, &child->request);
	onehop_status status = job_load(&job, child->request.words[1], 0, 1, error);
	for (uint64_t i = 0; i < repeat && !status; i++) {
		job_drop(&job);
		status = job_load(&job, child->request.words[1], 0, 1, error);
		if (!status)
			put(child, &job, NULL);
	}
	for (uint64_t i = 0; i < repeat && !status; i++) {
		job_drop_but_arena(&job);
		status = job_load(&job, child->request.words[1], 0, 1, error);
		if (!status)
			put(child, &job, NULL);
	}
	job_drop(&job);
	return status;
}

/* From making a runtime on, while another one holds the CUDA context. */
static onehop_status
tiny(struct child *child, struct onehop_error *error)
{
	struct job job;
	struct onehop_runtime *runtime = NULL;
	uint64_t begin = now_ns();
	onehop_status status = job_runtime(&child->request, &runtime, error);
	if (status)
		return status;
	job_begin(&job, runtime, child->request.device, &child->request);
	status = job_load(&job, child->request.words[1], 0, 1, error);
	job.times.whole = now_ns() - begin;
	if (!status)
		put(child, &job, NULL);
	job_drop(&job);
	onehop_runtime_destroy(runtime);
	return status;
}

/* Everything up to the transfer's start. */
static onehop_status
ready(struct child *child, struct job *job, const char *path, struct onehop_error *error)
{
	job_begin(job, child->runtime, child->request.device, &child->request);
	onehop_status status = job_open(job, path, error);
	if (!status)
		status = job_allocate(job, 1, error);
	if (!status)
		status = job_plan(job, error);
	if (!status)
		status = job_prepare(job, error);
	return status;
}

struct mover {
	struct job *job;
	onehop_status status;
	struct onehop_error error;
};

static void *
wait_for(void *argument)
{
	struct mover *mover = argument;
	struct job *job = mover->job;
	job->completion.size = sizeof job->completion;
	mover->status = onehop_transfer_wait(job->transfer, ONEHOP_FOREVER, &job->completion,
					     &mover->error);
	return NULL;
}

/* Starts both at once, each with a waiting thread of its own; whole becomes each one's end. */
static onehop_status
move_two(struct job jobs[2], struct onehop_error *error)
{
	struct mover movers[2] = {{.job = &jobs[0]}, {.job = &jobs[1]}};
	uint64_t begin = now_ns(), started[2];
	pthread_t thread;
	for (int i = 0; i < 2; i++) {
		started[i] = now_ns() - begin;
		onehop_status status = onehop_transfer_start(jobs[i].transfer, NULL, error);
		if (status)
			return status;
	}
	int failed = pthread_create(&thread, NULL, wait_for, &movers[1]);
	wait_for(&movers[0]);
	if (failed)
		wait_for(&movers[1]);
	else
		pthread_join(thread, NULL);
	for (int i = 0; i < 2; i++) {
		if (movers[i].status) {
			*error = movers[i].error;
			return movers[i].status;
		}
		jobs[i].times.whole = started[i] + jobs[i].completion.total_ns;
	}
	return ONEHOP_OK;
}

static onehop_status
pair(struct child *child, struct onehop_error *error)
{
	struct job jobs[2];
	struct sums none;
	const char *path = child->request.words[1];
	memset(jobs, 0, sizeof jobs);
	onehop_status status = ready(child, &jobs[0], path, error);
	if (!status)
		status = ready(child, &jobs[1], path, error);
	for (uint64_t i = 0; i < child->request.repeat && !status && !signals_caught(); i++) {
		status = move_two(jobs, error);
		for (int j = 0; j < 2 && !status; j++) {
			if (i == 0)
				status = check(&jobs[j], CHECKSUM_NONE, 1, 1, &none, error);
			if (!status)
				put(child, &jobs[j], NULL);
		}
	}
	job_drop(&jobs[1]);
	job_drop(&jobs[0]);
	return status;
}

/* Waits until a quarter of the large one has landed; 0 if it ended before. */
static int
under_way(struct onehop_transfer *transfer)
{
	struct onehop_progress now = {.size = sizeof now};
	struct timespec tick = {0, 100000};
	for (;;) {
		if (onehop_transfer_progress(transfer, &now) || !now.running)
			return 0;
		if (now.bytes_landed >= now.bytes_total / 4)
			return 1;
		nanosleep(&tick, NULL);
	}
}

/* small's completion stays as it was if the large one ended too early for it to be started. */
static onehop_status
one_amid(struct child *child, struct job *large, struct job *small, struct onehop_error *error)
{
	pthread_t thread;
	struct mover mover = {.job = large};
	onehop_status status = onehop_transfer_start(large->transfer, NULL, error);
	if (status)
		return status;
	if (pthread_create(&thread, NULL, wait_for, &mover) != 0)
		return fail(error, ONEHOP_NO_MEMORY, 0, "no memory for a thread");
	if (under_way(large->transfer)) {
		memset(&small->times, 0, sizeof small->times);
		status = job_move(small, 1, error);
		struct onehop_progress now = {.size = sizeof now};
		/* It counts only if the large one was still on its way. */
		if (!status && !onehop_transfer_progress(large->transfer, &now) && now.running)
			put(child, small, NULL);
	}
	pthread_join(thread, NULL);
	if (!status && mover.status) {
		*error = mover.error;
		status = mover.status;
	}
	return status;
}

static onehop_status
amid(struct child *child, struct onehop_error *error)
{
	struct job large, small;
	struct sums none;
	memset(&small, 0, sizeof small);
	onehop_status status = ready(child, &large, child->request.words[1], error);
	if (!status)
		status = ready(child, &small, child->request.words[2], error);
	for (uint64_t i = 0; i < child->request.repeat && !status && !signals_caught(); i++) {
		status = one_amid(child, &large, &small, error);
		if (!status && i == 0 && small.completion.bytes > 0)
			status = check(&small, CHECKSUM_NONE, 1, 1, &none, error);
	}
	job_drop(&small);
	job_drop(&large);
	return status;
}

/* ------------------------------------------------------------------------------------------- */

static onehop_status
run(struct child *child, struct onehop_error *error)
{
	const char *kind = child->request.words[0];
	struct onehop_device_info device = {.size = sizeof device};
	onehop_status status = job_runtime(&child->request, &child->runtime, error);
	if (status)
		return status;
	child->request.device = job_device(&child->request, child->runtime);
	status = onehop_device_query(child->runtime, child->request.device, &device, error);
	if (status)
		return status;
	if (strcmp(kind, CHILD_FIRST) == 0)
		return first(child, error);
	if (strcmp(kind, CHILD_AGAIN) == 0)
		return again(child, error);
	if (strcmp(kind, CHILD_TINY) == 0)
		return tiny(child, error);
	if (strcmp(kind, CHILD_PAIR) == 0)
		return pair(child, error);
	if (strcmp(kind, CHILD_AMID) == 0 && child->request.word_count == 3)
		return amid(child, error);
	return fail(error, ONEHOP_INVALID_ARGUMENT, 0, "bench-child is a part of onehop bench");
}

int
cmd_bench_child(struct out *out, int argc, char **argv)
{
	struct child child = {.out = out};
	struct onehop_error error = {0};
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	int go = request_parse(&child.request, &child_usage, out, argc, argv);
	if (go != GO_ON)
		return go;
	onehop_status status = run(&child, &error);
	onehop_runtime_destroy(child.runtime);
	request_drop(&child.request);
	/* The parent says that it was cancelled. */
	if (status == ONEHOP_CANCELLED)
		return EXIT_FAILED;
	return status ? say_error(&error) : EXIT_DONE;
}
