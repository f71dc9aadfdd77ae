/* Inside the look-alike driver: its state, all under one lock, and the calls between its files. */
#ifndef OH_TESTS_DRIVER_FAKE_H
#define OH_TESTS_DRIVER_FAKE_H

#include "extra.h"

#include <pthread.h>

#ifndef FAKE_CUDA_VERSION
#define FAKE_CUDA_VERSION 13000
#endif

enum { FAKE_DEVICES = 8, FAKE_STACK = 16 };

/* CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and _INVALIDATED. */
enum { FAKE_CAPTURE_UNSUPPORTED = 900, FAKE_CAPTURE_INVALIDATED = 901 };

/* Allocated by cuMemAlloc, from the pool, or a range reserved to map memory into. */
enum fake_kind { FAKE_PLAIN, FAKE_POOL, FAKE_RANGE };

struct fake_memory;

struct fake_map {
	struct fake_map *next;
	struct fake_memory *memory;
	uint64_t offset, bytes;
	int access;
};

struct fake_block {
	struct fake_block *next; /* by offset */
	uint64_t offset, bytes;
	struct CUctx_st *context;
	enum fake_kind kind;
	struct fake_map *maps;
};

/* Memory made by cuMemCreate. */
struct fake_memory {
	struct fake_device *device;
	uint64_t bytes;
	int references; /* the handle, and each mapping */
};

struct fake_device {
	int ordinal;
	int fd;
	char *view;  /* PROT_NONE: the addresses that the program gets */
	char *alias; /* the same memory, to be read and written */
	uint64_t total, used, cursor, span;
	struct fake_block *blocks;
	struct CUctx_st *primary;
	int primary_references;
	oh_cu_result lost;
	uint64_t link_free_ns;
};

struct CUctx_st {
	struct CUctx_st *next;
	struct fake_device *device;
	unsigned long long id;
	int primary;
	int alive;
	struct CUstream_st *legacy, *per_thread;
};

struct fake_registration {
	struct fake_registration *next;
	char *start;
	uint64_t bytes;
	struct CUctx_st *context;
};

struct fake_piece {
	char *device;
	char *host;
	uint64_t bytes;
};

enum fake_op_kind { FAKE_IN, FAKE_OUT, FAKE_SET, FAKE_RECORD, FAKE_WAIT, FAKE_FOLLOW, FAKE_CALL };

/* One recording of an event: waits are for it, whatever the event is used for later. */
struct fake_record {
	int references;
	int done;
};

struct fake_op {
	struct fake_op *next;
	enum fake_op_kind kind;
	struct fake_piece *pieces; /* IN, OUT, SET */
	uint64_t count;
	void *staged;              /* freed after */
	unsigned char value;
	struct fake_record *record; /* RECORD, WAIT: a reference */
	struct CUstream_st *other;  /* FOLLOW */
	uint64_t number;            /* of the other stream's op */
	void (*run)(void *);
	void *data;
};

struct CUstream_st {
	struct CUstream_st *next;
	struct CUctx_st *context;
	unsigned int flags;
	int builtin;   /* the context's own: not counted as held */
	int destroyed; /* by the program: what was given to it still runs */
	int dead;      /* with its context: nothing more runs */
	int captured;  /* 1 + mode */
	struct fake_op *first, **last, *running;
	uint64_t given, done;
};

struct CUevent_st {
	struct CUevent_st *next;
	struct CUctx_st *context;
	int destroyed;
	struct fake_record *record; /* the latest, NULL if there is none */
};

struct fake_state {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* anything: an op given or ended, a context gone */
	int initialized;
	int process;
	int device_count;
	struct fake_device devices[FAKE_DEVICES];
	struct CUctx_st *contexts;   /* all there ever were, so that a stale handle is told */
	struct CUstream_st *streams; /* likewise */
	struct CUevent_st *events;   /* likewise */
	struct fake_registration *registrations;
	unsigned long long next_id;
	int misuses;
	int batch;
	int captures;    /* streams that are captured in the global mode */
	int invalidated; /* these, by a call that another thread may not make then */
	int stopped; /* every call fails for good: nothing is copied any more */
	uint64_t seed, random;
	uint64_t delay_us;
	double bytes_per_ns; /* 0: no limit */
};

extern struct fake_state fake;

/* Counts a call and returns what it has to fail with, else 0. Lock not held. */
oh_cu_result fake_enter(const char *name);
void fake_misuse(const char *what);
uint64_t fake_random(uint64_t below);
uint64_t fake_now_ns(void);

/* With the lock held from here on. The current context, usable; else why not. */
oh_cu_result fake_ready(void);
oh_cu_result fake_current(struct CUctx_st **context);
struct CUctx_st **fake_stack(int **depth);
/* The thread's capture mode: 0 global, 1 thread-local, 2 relaxed. */
unsigned int *fake_capture_mode(void);

struct fake_device *fake_device_of(oh_cu_address address);
struct fake_block *fake_block_of(oh_cu_address address);
/* The block that begins at the address. */
struct fake_block *fake_block_at(oh_cu_address address, enum fake_kind kind);
/* The driver's own view of a range, NULL if it is not wholly allocated. */
char *fake_reach(oh_cu_address address, uint64_t bytes);
oh_cu_result fake_block_make(struct fake_device *device, uint64_t bytes, uint64_t alignment,
			     enum fake_kind kind, struct CUctx_st *context, oh_cu_address *address);
void fake_block_drop(struct fake_device *device, struct fake_block *block);
struct fake_registration *fake_registration_of(const void *memory);

oh_cu_result fake_stream_of(struct CUstream_st *handle, struct CUctx_st *context,
			    struct CUstream_st **stream);
oh_cu_result fake_stream_make(struct CUctx_st *context, unsigned int flags, int builtin,
			      struct CUstream_st **stream);
/* What op holds is the stream's then, also if it fails. */
oh_cu_result fake_give(struct CUstream_st *stream, struct fake_op op);
void fake_record_drop(struct fake_record *record);
/* Waits until all that was given so far has ended or the context is gone. */
oh_cu_result fake_drain(struct CUstream_st *stream);
void fake_drain_context(struct CUctx_st *context);
/* Waits until no stream of the device (NULL: of any) moves bytes. */
void fake_settle(const struct fake_device *device);
/* What streams were given and have not begun moves nothing. */
void fake_void(void);
int fake_source_in_use(const char *start, uint64_t bytes);
/* Ends a context: its streams stop, its memory and registrations go. */
void fake_kill(struct CUctx_st *context);

#define EXPORT __attribute__((visibility("default")))

/* Each function is declared with the type that the back end and the tests call it by. */
#define DECLARE(field, name, suffix, version, arguments)                                           \
	EXPORT oh_cu_result name##suffix arguments;
OH_CUDA_REQUIRED(DECLARE)
OH_CUDA_OPTIONAL(DECLARE)
EXTRA(DECLARE)
#define DECLARE_CONTROL(field, name, arguments, type) EXPORT type name arguments;
FAKE_CONTROLS(DECLARE_CONTROL)

/* The first line of each function: counts the call, and fails it if a test asked for that. */
#define ENTER()                                                                                    \
	do {                                                                                       \
		oh_cu_result injected = fake_enter(__func__);                                      \
		if (injected != OH_CU_SUCCESS)                                                     \
			return injected;                                                           \
		pthread_mutex_lock(&fake.lock);                                                    \
	} while (0)

/* For what takes down: it does so even if it says that it failed, as in the real driver after an
 * error that stays. */
#define ENTER_UNDO()                                                                               \
	oh_cu_result injected = fake_enter(__func__);                                              \
	pthread_mutex_lock(&fake.lock)

#define LEAVE(code)                                                                                \
	do {                                                                                       \
		oh_cu_result leaving = (code);                                                     \
		pthread_mutex_unlock(&fake.lock);                                                  \
		return leaving;                                                                    \
	} while (0)

#define LEAVE_UNDO(code)                                                                           \
	do {                                                                                       \
		oh_cu_result undone = (code);                                                      \
		LEAVE(injected != OH_CU_SUCCESS ? injected : undone);                              \
	} while (0)

#endif
