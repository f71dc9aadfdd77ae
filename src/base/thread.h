/* Threads and conditions as all of the library wants them. */
#ifndef OH_BASE_THREAD_H
#define OH_BASE_THREAD_H

#include "base/error.h"

#include <pthread.h>

/* Starts a thread that takes no signals: they are the program's business. 0, or an errno. */
int oh_thread_start(pthread_t *thread, void *(*run)(void *), void *argument);

/* A condition whose timed waits go by CLOCK_MONOTONIC. Fails with NO_MEMORY or IO. */
onehop_status oh_cond_init(pthread_cond_t *cond, struct onehop_error *error);

#endif
