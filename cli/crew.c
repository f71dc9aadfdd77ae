/* Threads that do the pieces of one job side by side.
 *
 * A thread claims the next piece until there is none, something failed, or Ctrl-C came; a claim is
 * always finished, so that when crew_run() returns nobody touches what the pieces belong to. A job
 * of one piece is done by the caller. The calling thread draws and takes the signals; threads that
 * cannot be started are done without, as long as there is one.
 */
#include "crew.h"
#include "say.h"
#include "signals.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* More of them only take turns at the same disk. */
#define MOST_BY_ITSELF 8
#define MOST 64

struct shift {
	const struct crew_task *task;
	pthread_mutex_t lock; /* of all below */
	pthread_cond_t ended;
	uint64_t next;
	unsigned running;
	int stop;
	struct onehop_error error; /* status 0: none so far */
};

/* The value of the runtime's threads option if anybody set it, else 0. */
static unsigned
threads_set(struct onehop_runtime *runtime)
{
	uint32_t count = onehop_runtime_option_count(runtime);
	for (uint32_t i = 0; i < count; i++) {
		struct onehop_option_value value = {.size = sizeof value};
		if (onehop_runtime_option_at(runtime, i, &value) != ONEHOP_OK ||
		    strcmp(value.name, "threads") != 0 || strcmp(value.origin, "default") == 0)
			continue;
		unsigned long threads = strtoul(value.value, NULL, 10); /* 0 for "auto" */
		return threads < MOST ? (unsigned)threads : MOST;
	}
	return 0;
}

unsigned
crew_threads(struct onehop_runtime *runtime)
{
	struct onehop_runtime_info info = {.size = sizeof info};
	unsigned threads = threads_set(runtime);
	if (threads)
		return threads;
	if (onehop_runtime_query(runtime, &info) != ONEHOP_OK || info.usable_cores < 1)
		return 1;
	return info.usable_cores < MOST_BY_ITSELF ? info.usable_cores : MOST_BY_ITSELF;
}

void
crew_begin(struct crew *crew, unsigned threads, const char *what, int quiet, uint64_t total)
{
	crew->threads = threads;
	crew->total = total;
	atomic_init(&crew->done, 0);
	progress_begin(&crew->progress, what, quiet);
}

uint64_t
crew_pieces(uint64_t bytes)
{
	return bytes / CREW_PIECE + (bytes % CREW_PIECE != 0);
}

uint64_t
crew_piece(uint64_t bytes, uint64_t piece, size_t *length)
{
	uint64_t offset = piece * CREW_PIECE;
	*length = (size_t)(bytes - offset < CREW_PIECE ? bytes - offset : CREW_PIECE);
	return offset;
}

/* ------------------------------------------------------------------------------------------- */

static int
claim(struct shift *shift, uint64_t *piece)
{
	pthread_mutex_lock(&shift->lock);
	int found = !shift->stop && shift->next < shift->task->count;
	if (found)
		*piece = shift->next++;
	pthread_mutex_unlock(&shift->lock);
	return found;
}

static void
stop(struct shift *shift, const struct onehop_error *error)
{
	pthread_mutex_lock(&shift->lock);
	shift->stop = 1;
	if (!shift->error.status)
		shift->error = *error;
	pthread_mutex_unlock(&shift->lock);
}

static void
do_pieces(struct shift *shift)
{
	uint64_t piece;
	char *memory = NULL;
	struct onehop_error error = {0};
	onehop_status status = ONEHOP_OK;
	/* By whole pages, so that the kernel copies from page to page. */
	if (posix_memalign((void **)&memory, 4096, CREW_PIECE) != 0)
		status = fail(&error, ONEHOP_NO_MEMORY, 0, "no memory for a piece of 4 MiB");
	while (!status && claim(shift, &piece))
		status = signals_caught()
				 ? fail(&error, ONEHOP_CANCELLED, 0, "cancelled")
				 : shift->task->work(shift->task->context, piece, memory, &error);
	if (status)
		stop(shift, &error);
	free(memory);
}

static void *
thread_main(void *argument)
{
	struct shift *shift = argument;
	do_pieces(shift);
	pthread_mutex_lock(&shift->lock);
	shift->running--;
	pthread_cond_signal(&shift->ended);
	pthread_mutex_unlock(&shift->lock);
	return NULL;
}

/* Starts up to `wanted` threads, with all signals left to the calling one. Returns their number. */
static unsigned
start(struct shift *shift, pthread_t threads[MOST], unsigned wanted)
{
	unsigned started = 0;
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_mutex_lock(&shift->lock);
	while (started < wanted &&
	       pthread_create(&threads[started], NULL, thread_main, shift) == 0)
		started++;
	shift->running = started;
	pthread_mutex_unlock(&shift->lock);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return started;
}

static void
watch(struct crew *crew, struct shift *shift)
{
	pthread_mutex_lock(&shift->lock);
	while (shift->running > 0) {
		struct timespec until;
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_nsec += 100000000;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
		if (pthread_cond_timedwait(&shift->ended, &shift->lock, &until) != ETIMEDOUT)
			continue;
		pthread_mutex_unlock(&shift->lock);
		progress_draw(&crew->progress, atomic_load(&crew->done), crew->total);
		pthread_mutex_lock(&shift->lock);
	}
	pthread_mutex_unlock(&shift->lock);
}

onehop_status
crew_run(struct crew *crew, const struct crew_task *task, struct onehop_error *error)
{
	pthread_t threads[MOST];
	struct shift shift = {.task = task};
	uint64_t wanted = crew->threads < task->count ? crew->threads : task->count;
	unsigned started = 0;
	pthread_condattr_t clock;
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&shift.ended, &clock);
	pthread_mutex_init(&shift.lock, NULL);
	if (task->count > 1)
		started = start(&shift, threads, wanted < MOST ? (unsigned)wanted : MOST);
	if (started == 0 && task->count > 0)
		do_pieces(&shift);
	watch(crew, &shift);
	for (unsigned i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	pthread_mutex_destroy(&shift.lock);
	pthread_cond_destroy(&shift.ended);
	pthread_condattr_destroy(&clock);
	if (shift.error.status)
		*error = shift.error;
	return shift.error.status;
}
