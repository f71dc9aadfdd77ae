/* The threads, and what each does next.
 *
 * Each worker, and each thread that waits for a transfer, goes round: read slices while there are
 * any, help to touch new memory, look after copies in flight (one thread at a time), else sleep. A
 * worker that finds a slice wakes one more as long as there are others to take, so that no more
 * threads run than the work needs.
 *
 * Nothing is left to a thread that may be stuck in storage: one that goes off to read wakes another
 * while copies are in flight that nobody looks after.
 */
#include "runtime/schedule.h"

#include <errno.h>

#define TOUCH_BYTES (UINT64_C(2) << 20)
/* Rounds without success before the poller sleeps between rounds: none if the copy before took as
 * long as the longest sleep. It sleeps a quarter of that at first, then longer and longer, up to a
 * third of what a block of 16 MiB takes on a fast link. */
#define POLL_SPINS 8
#define POLL_SLEEP_NS 20000
#define POLL_SLEEP_MOST_NS 100000

/* Looks after copies in flight until one ends, or the thread has something better to do: slices to
 * read, or what oh_source_is_over() says. Returns 0 if there are none, or another thread does it.
 * With the lock held. */
static int
poll_copies(struct onehop_runtime *runtime, const struct oh_source *source)
{
	struct oh_probe probes[OH_POLL_BATCH];
	uint64_t begun_ns = oh_now_ns(), last_ns = runtime->poll_ns;
	struct timespec nap = {0, (long)oh_min(oh_max(last_ns / 4, POLL_SLEEP_NS), POLL_SLEEP_MOST_NS)};
	uint32_t count, spins = last_ns > POLL_SLEEP_MOST_NS ? 0 : POLL_SPINS;
	if (runtime->polling || !(count = oh_copies_collect(runtime, probes)))
		return 0;
	runtime->polling = 1;
	for (uint32_t round = 0; count && !oh_copies_poll(runtime, probes, count); round++) {
		if (round >= spins) {
			pthread_mutex_unlock(&runtime->lock);
			oh_sys.nanosleep(&nap, NULL);
			pthread_mutex_lock(&runtime->lock);
			if (nap.tv_nsec < POLL_SLEEP_MOST_NS)
				nap.tv_nsec += POLL_SLEEP_NS;
		}
		int slices = source->only ? oh_has_work(source->only) : oh_more_slices(runtime);
		if (slices || oh_source_is_over(source))
			break;
		count = oh_copies_collect(runtime, probes);
	}
	runtime->poll_ns = runtime->active ? oh_now_ns() - begun_ns : 0;
	runtime->polling = 0;
	return 1;
}

static void
touch_chunk(struct oh_touch *touch, uint64_t at)
{
	uint64_t end = oh_min(at + TOUCH_BYTES, touch->bytes);
	for (; at < end; at += 4096)
		*(volatile uint8_t *)(touch->memory + at) = 0;
}

/* With the lock held. */
static void
touch_some(struct onehop_runtime *runtime, struct oh_touch *touch)
{
	while (touch->next < touch->bytes) {
		uint64_t at = touch->next;
		touch->next = oh_min(at + TOUCH_BYTES, touch->bytes);
		pthread_mutex_unlock(&runtime->lock);
		touch_chunk(touch, at);
		pthread_mutex_lock(&runtime->lock);
		touch->done += oh_min(TOUCH_BYTES, touch->bytes - at);
		if (touch->done == touch->bytes)
			pthread_cond_broadcast(&runtime->touched);
	}
	if (runtime->touch == touch)
		runtime->touch = NULL;
}

void
oh_touch_help(struct onehop_runtime *runtime, struct oh_touch *touch)
{
	touch_some(runtime, touch);
	while (touch->done < touch->bytes)
		pthread_cond_wait(&runtime->touched, &runtime->lock);
}

/* Starts the copies of a mapped window, if there is one. With the lock held. */
static int
start_mapped(struct onehop_runtime *runtime, struct onehop_transfer *only)
{
	struct onehop_transfer *t = only ? only : runtime->active;
	uint32_t window;
	for (; t; t = oh_active_after(runtime, only, t)) {
		if (t->state == OH_TRANSFER_RUNNING && oh_flow_take_map(&t->flow, &window)) {
			if (oh_more_slices(runtime))
				oh_wake_one(runtime);
			oh_start_copies(t, window);
			return 1;
		}
	}
	return 0;
}

void *
oh_worker_main(void *argument)
{
	struct onehop_runtime *runtime = argument;
	struct oh_source source;
	oh_source_init(&source, runtime);
	pthread_mutex_lock(&runtime->lock);
	while (!runtime->stop) {
		pthread_mutex_unlock(&runtime->lock);
		oh_storage_local.read(&source.base);
		pthread_mutex_lock(&runtime->lock);
		if (runtime->touch) {
			touch_some(runtime, runtime->touch);
			continue;
		}
		oh_grant(runtime);
		if (runtime->stop || start_mapped(runtime, NULL) || oh_more_slices(runtime) ||
		    poll_copies(runtime, &source))
			continue;
		runtime->idle++;
		pthread_cond_wait(&runtime->work, &runtime->lock);
		runtime->idle--;
	}
	pthread_mutex_unlock(&runtime->lock);
	return NULL;
}

/* Sleeps until something happens to the transfer. 0 if the deadline passed. */
static int
sleep_on(struct onehop_transfer *transfer, uint64_t deadline_ns)
{
	pthread_mutex_t *lock = &transfer->runtime->lock;
	int late = 0;
	transfer->waiters++;
	if (deadline_ns == UINT64_MAX) {
		pthread_cond_wait(&transfer->cond, lock);
	} else {
		struct timespec until = {(time_t)(deadline_ns / 1000000000u),
					 (long)(deadline_ns % 1000000000u)};
		late = pthread_cond_timedwait(&transfer->cond, lock, &until) == ETIMEDOUT;
	}
	transfer->waiters--;
	return !late;
}

int
oh_help(struct onehop_transfer *transfer, uint64_t deadline_ns,
	int (*done)(const struct onehop_transfer *))
{
	struct onehop_runtime *runtime = transfer->runtime;
	struct oh_source source;
	oh_source_init(&source, runtime);
	source.only = transfer;
	source.deadline_ns = deadline_ns;
	source.done = done;
	while (!done(transfer) && (deadline_ns == UINT64_MAX || oh_now_ns() < deadline_ns)) {
		oh_grant(runtime);
		if (start_mapped(runtime, transfer))
			continue;
		if (transfer->state == OH_TRANSFER_RUNNING && transfer->flow.takeable) {
			pthread_mutex_unlock(&runtime->lock);
			oh_storage_local.read(&source.base);
			pthread_mutex_lock(&runtime->lock);
		} else if (!poll_copies(runtime, &source)) {
			sleep_on(transfer, deadline_ns);
		}
	}
	/* What this thread looked after goes on without it. */
	if (runtime->in_flight && !runtime->polling)
		oh_wake_one(runtime);
	return done(transfer);
}
