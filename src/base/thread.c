/* Threads and conditions: what is easily forgotten of each. It waits for none and joins none. */
#include "base/thread.h"

#include <signal.h>
#include <time.h>

int
oh_thread_start(pthread_t *thread, void *(*run)(void *), void *argument)
{
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int failed = pthread_create(thread, NULL, run, argument);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return failed;
}

onehop_status
oh_cond_init(pthread_cond_t *cond, struct onehop_error *error)
{
	pthread_condattr_t attributes;
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	int failed = pthread_cond_init(cond, &attributes);
	pthread_condattr_destroy(&attributes);
	return failed ? oh_fail_errno(error, failed, "cannot make a condition variable") : ONEHOP_OK;
}
