/* The ceiling on the reading side: plain pread of the model's files by 1, 2, 4, ... threads.
 *
 * Threads take slices of 512 KiB from one counter, as simple as it can be done, so that a load is
 * held against what the machine gives and not against another design. The best of three passes
 * counts for each number of threads; the very first pass also warms the page cache.
 */
#include "bench.h"
#include "progress.h"
#include "signals.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLICE (UINT64_C(512) << 10)
#define PASSES 3
#define MOST_THREADS 256

struct source {
	int fd;
	uint64_t bytes;
	uint64_t first; /* number of its first slice */
};

struct reader {
	struct source *sources;
	uint32_t count;
	uint64_t slices, bytes;
	char *into; /* NULL: a private buffer each */
	_Atomic uint64_t next;
	_Atomic int failed; /* an errno */
};

static const struct source *
source_of(const struct reader *reader, uint64_t slice)
{
	uint32_t low = 0, high = reader->count;
	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;
		if (reader->sources[middle].first <= slice)
			low = middle;
		else
			high = middle;
	}
	return &reader->sources[low];
}

static int
read_slice(const struct source *source, uint64_t at, char *to)
{
	uint64_t end = source->bytes - at < SLICE ? source->bytes : at + SLICE;
	while (at < end) {
		ssize_t got = pread(source->fd, to, end - at, (off_t)at);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got < 0 ? errno : EIO;
		to += got;
		at += (uint64_t)got;
	}
	return 0;
}

static void *
read_slices(void *argument)
{
	struct reader *reader = argument;
	char *private = reader->into ? NULL : malloc(SLICE);
	if (!reader->into && !private)
		atomic_store(&reader->failed, ENOMEM);
	while (!atomic_load(&reader->failed) && !signals_caught()) {
		uint64_t slice = atomic_fetch_add(&reader->next, 1);
		if (slice >= reader->slices)
			break;
		const struct source *source = source_of(reader, slice);
		/* Slices of all files lie one after the other, the last of each maybe short. */
		char *to = reader->into ? reader->into + slice * SLICE : private;
		int failed = read_slice(source, (slice - source->first) * SLICE, to);
		if (failed)
			atomic_store(&reader->failed, failed);
	}
	free(private);
	return NULL;
}

/* One pass by `wanted` threads, the caller's one of them. */
static void
pass(struct reader *reader, unsigned wanted)
{
	pthread_t threads[MOST_THREADS];
	unsigned started = 0;
	sigset_t all, before;
	atomic_store(&reader->next, 0);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (started + 1 < wanted &&
	       pthread_create(&threads[started], NULL, read_slices, reader) == 0)
		started++;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	read_slices(reader);
	for (unsigned i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
}

/* The best rate of a few passes. */
static onehop_status
measure(struct onehop_runtime *runtime, struct reader *reader, unsigned threads, int whole,
	int fresh, double *rate, struct onehop_error *error)
{
	struct onehop_buffer *buffer = NULL;
	struct onehop_buffer_info info = {.size = sizeof info};
	onehop_status status = ONEHOP_OK;
	double best = 0;
	for (int i = 0; i < PASSES && !status; i++) {
		uint64_t begin = now_ns();
		if (whole && !buffer)
			status = onehop_buffer_alloc(runtime, "host", reader->slices * SLICE,
						     &buffer, error);
		if (!status && whole && onehop_buffer_query(buffer, &info) == ONEHOP_OK)
			reader->into = (char *)(uintptr_t)info.address;
		if (!status)
			pass(reader, threads);
		uint64_t took = now_ns() - begin;
		double now = took ? (double)reader->bytes * 1e9 / (double)took : 0;
		best = now > best ? now : best;
		if (fresh) {
			onehop_buffer_free(buffer);
			buffer = NULL;
		}
		if (signals_caught())
			status = fail(error, ONEHOP_CANCELLED, 0, "cancelled");
		else if (!status && atomic_load(&reader->failed))
			status = fail(error, ONEHOP_IO, atomic_load(&reader->failed),
				      "cannot read the model's files");
	}
	onehop_buffer_free(buffer);
	if (!status)
		*rate = best;
	return status;
}

static void
close_sources(struct reader *reader)
{
	for (uint32_t i = 0; i < reader->count; i++)
		close(reader->sources[i].fd);
	free(reader->sources);
}

static onehop_status
open_sources(struct reader *reader, const struct onehop_model *model, struct onehop_error *error)
{
	uint32_t files = job_model_info(model).file_count;
	reader->sources = calloc(files + 1, sizeof *reader->sources);
	if (!reader->sources)
		return fail(error, ONEHOP_NO_MEMORY, 0, "no memory for the files");
	for (uint32_t i = 0; i < files; i++) {
		struct onehop_file_info info = {.size = sizeof info};
		struct source *source = &reader->sources[i];
		if (onehop_model_file_at(model, i, &info))
			continue;
		source->fd = open(info.path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
		if (source->fd < 0)
			return fail(error, ONEHOP_IO, errno, "cannot open %.512s", info.path);
		source->bytes = info.bytes;
		source->first = reader->slices;
		reader->slices += (info.bytes + SLICE - 1) / SLICE;
		reader->bytes += info.bytes;
		reader->count++;
	}
	return ONEHOP_OK;
}

onehop_status
bench_read(struct onehop_runtime *runtime, const struct onehop_model *model, unsigned cores,
	   int whole, int fresh, struct bench_reads *reads, struct onehop_error *error)
{
	struct reader reader = {0};
	onehop_status status = open_sources(&reader, model, error);
	unsigned most = cores < 1 ? 1 : cores < MOST_THREADS ? cores : MOST_THREADS;
	memset(reads, 0, sizeof *reads);
	for (unsigned threads = 1; !status && reads->tries < READ_TRIES;) {
		double *rate = &reads->rate[reads->tries];
		status = measure(runtime, &reader, threads, whole, fresh, rate, error);
		reads->threads[reads->tries] = threads;
		if (*rate > reads->rate[reads->best])
			reads->best = reads->tries;
		reads->tries++;
		if (threads == most)
			break;
		threads = threads * 2 < most ? threads * 2 : most;
	}
	close_sources(&reader);
	return status;
}
