/* A CUDA device of ours: its context, and what we hold in it. Used inside the back end only. */
#ifndef OH_MEMORY_CUDA_DEVICE_H
#define OH_MEMORY_CUDA_DEVICE_H

#include "memory/cuda/driver.h"
#include "memory/ops.h"

#include <pthread.h>
#include <stdatomic.h>

/* How many copies in one go are given to the driver. */
enum oh_cuda_way { OH_CUDA_LOOP, OH_CUDA_BATCH_12, OH_CUDA_BATCH_13 };

enum oh_cuda_kind { OH_CUDA_ALLOCATION, OH_CUDA_PIN };

/* Memory that lives and dies with the context of one generation. */
struct oh_cuda_holding {
	struct oh_cuda_holding *next;
	uint64_t address;
	uint32_t generation;
	enum oh_cuda_kind kind;
};

struct oh_device {
	const struct oh_cuda *cu;
	uint32_t ordinal;
	oh_cu_device device;
	atomic_int way; /* enum oh_cuda_way */
	pthread_mutex_t lock; /* over all below */
	/* The context, retained if it is the primary. If it is gone, the next call that needs one
	 * takes another, and the generation goes up: handles of an older one are dead. */
	struct CUctx_st *context;
	unsigned long long context_id; /* 0 if the driver tells none */
	int primary;
	uint32_t generation;
	/* For read and fill; made when first needed. */
	struct CUstream_st *stream;
	uint32_t stream_generation;
	struct oh_cuda_holding *holdings;
};

/* The calling thread's current context if it is on the device, else NULL. Before enter. */
struct CUctx_st *oh_cuda_current(struct oh_device *device);

/* Makes the device's context current until oh_cuda_leave, and tells its generation. A context that
 * is gone is replaced. */
onehop_status oh_cuda_enter(struct oh_device *device, uint32_t *generation,
			    struct onehop_error *error);
/* The same for what was made in the context of that generation, which is not replaced:
 * CONTEXT_IS_DESTROYED if it is gone. */
oh_cu_result oh_cuda_enter_old(struct oh_device *device, uint32_t generation);
void oh_cuda_leave(struct oh_device *device);

/* The stream for read and fill. Between enter and leave. */
onehop_status oh_cuda_stream(struct oh_device *device, uint32_t generation,
			     struct CUstream_st **stream, struct onehop_error *error);

/* Remembers memory that was allocated or pinned; forget returns its generation, 0 if unknown. */
onehop_status oh_cuda_hold(struct oh_device *device, enum oh_cuda_kind kind, uint64_t address,
			   uint32_t generation, struct onehop_error *error);
uint32_t oh_cuda_forget(struct oh_device *device, enum oh_cuda_kind kind, uint64_t address);

/* Slots of the ops table. */
uint32_t oh_cuda_count(void);
onehop_status oh_cuda_open(uint32_t ordinal, struct oh_device **device,
			   struct onehop_error *error);
void oh_cuda_close(struct oh_device *device);
int oh_cuda_alive(struct oh_device *device);
onehop_status oh_cuda_describe(struct oh_device *device, struct onehop_device_info *info,
			       struct onehop_error *error);
onehop_status oh_cuda_alloc(struct oh_device *device, uint64_t bytes, uint64_t *address,
			    struct onehop_error *error);
void oh_cuda_free(struct oh_device *device, uint64_t address, uint64_t bytes);
onehop_status oh_cuda_check(struct oh_device *device, uint64_t address, uint64_t bytes,
			    struct onehop_error *error);
onehop_status oh_cuda_read(struct oh_device *device, uint64_t address, void *destination,
			   uint64_t bytes, struct onehop_error *error);
onehop_status oh_cuda_fill(struct oh_device *device, uint64_t address, uint64_t bytes,
			   uint8_t value, struct onehop_error *error);
onehop_status oh_cuda_pin(struct oh_device *device, void *memory, uint64_t bytes,
			  struct onehop_error *error);
void oh_cuda_unpin(struct oh_device *device, void *memory, uint64_t bytes);

#endif
