/* A crew: each thread takes the next piece until there is none, or one before it has failed. The
 * failure that is kept is that of the lowest piece, so that it does not depend on who was quicker.
 */
#include "dataset/crew.h"

#include "base/thread.h"

#include <stdatomic.h>
#include <string.h>

#define MOST_THREADS 32

struct crew {
	oh_crew_work work;
	void *context;
	uint64_t count;
	atomic_ullong next;
	atomic_uint workers;
	atomic_ullong failed; /* the lowest piece that failed; count if none did */
	pthread_mutex_t lock; /* guards status and error */
	onehop_status status;
	struct onehop_error error;
};

static void
keep_failure(struct crew *crew, uint64_t index, onehop_status status,
	     const struct onehop_error *error)
{
	pthread_mutex_lock(&crew->lock);
	if (index < atomic_load(&crew->failed)) {
		atomic_store(&crew->failed, index);
		crew->status = status;
		crew->error = *error;
	}
	pthread_mutex_unlock(&crew->lock);
}

static void *
join_in(void *argument)
{
	struct crew *crew = argument;
	uint32_t worker = atomic_fetch_add(&crew->workers, 1);
	struct onehop_error error;
	for (;;) {
		uint64_t index = atomic_fetch_add(&crew->next, 1);
		if (index >= crew->count || index > atomic_load(&crew->failed))
			return NULL;
		memset(&error, 0, sizeof error);
		onehop_status status = crew->work(crew->context, worker, index, &error);
		if (status)
			keep_failure(crew, index, status, &error);
	}
}

onehop_status
oh_crew_run(uint32_t threads, uint64_t count, oh_crew_work work, void *context,
	    struct onehop_error *error)
{
	struct crew crew = {.work = work, .context = context, .count = count};
	pthread_t others[MOST_THREADS];
	uint32_t hired = 0;
	atomic_store(&crew.failed, count);
	pthread_mutex_init(&crew.lock, NULL);
	if (threads > MOST_THREADS)
		threads = MOST_THREADS;
	if (threads > count)
		threads = (uint32_t)count;
	while (hired + 1 < threads && oh_thread_start(&others[hired], join_in, &crew) == 0)
		hired++;
	join_in(&crew);
	while (hired > 0)
		pthread_join(others[--hired], NULL);
	pthread_mutex_destroy(&crew.lock);
	if (crew.status && error)
		*error = crew.error;
	return crew.status;
}
