/* The frame of the parity cases: each runs in a process of its own, prints one line for each thing
 * observed ("case.step: RESULT"), and a crash or a hang is a result too. */
#ifndef OH_TESTS_DRIVER_PARITY_H
#define OH_TESTS_DRIVER_PARITY_H

#include "extra.h"

#include <pthread.h>
#include <stdint.h>

struct parity_case {
	const char *name;
	void (*run)(void);
};

/* The cases of each file, ended by a NULL name. */
extern const struct parity_case parity_contexts[], parity_memory[], parity_order[];

extern struct oh_cuda cu;
extern struct extra extra;

/* Prints the name of a result, or what was seen. */
void say(const char *step, oh_cu_result code);
void saw(const char *step, const char *format, ...) OH_PRINTF(2, 3);

/* Ends the case unless it succeeds: what is not under test. */
#define NEED(call) need((call), #call)
void need(oh_cu_result code, const char *call);

/* A new context on device 0, current. */
struct CUctx_st *context_make(void);
struct CUstream_st *stream_make(unsigned int flags);
struct CUevent_st *event_make(void);
oh_cu_address memory_make(size_t bytes);
/* Page-aligned host memory, filled with value. */
char *host_make(size_t bytes, int value);
char *pinned_make(size_t bytes, int value);
int all_are(const char *memory, size_t bytes, int value);

struct gate {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int open;
};
#define GATE {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0}
void gate_pass(void *gate);
void gate_open(struct gate *gate);

#endif
