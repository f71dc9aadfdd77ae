/* A CUDA device of ours and its context. Used inside the back end only. */
#ifndef OH_MEMORY_CUDA_DEVICE_H
#define OH_MEMORY_CUDA_DEVICE_H

#include "memory/cuda/driver.h"
#include "memory/ops.h"

#include <stdatomic.h>

/* How many copies in one go are given to the driver. */
enum oh_cuda_way { OH_CUDA_LOOP, OH_CUDA_BATCH_12, OH_CUDA_BATCH_13 };

struct oh_device {
	const struct oh_cuda *cu;
	uint32_t ordinal;
	oh_cu_device device;
	struct CUctx_st *context;
	unsigned long long context_id; /* 0 if the driver tells none */
	int primary;                   /* the context is the primary, retained */
	struct CUstream_st *stream;    /* for read and fill */
	atomic_int gone;               /* the context was found gone, for good */
	atomic_int way;                /* enum oh_cuda_way */
};

/* The calling thread's current context if it is on the device and not gone, else NULL. Before
 * enter. */
struct CUctx_st *oh_cuda_current(const struct oh_cuda *cu, oh_cu_device device);

/* Makes the device's context current until leave. DEVICE_LOST if it is gone. */
onehop_status oh_cuda_enter(struct oh_device *device, struct onehop_error *error);
/* The same for undoing things: 1 if entered. */
int oh_cuda_enter_quietly(struct oh_device *device);
void oh_cuda_leave(struct oh_device *device);

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
onehop_status oh_cuda_pin_file(struct oh_device *device, void *map, uint64_t bytes,
			       struct onehop_error *error);
/* Not every GPU's driver pins read-only maps. */
int oh_cuda_pins_files(struct oh_device *device);
void oh_cuda_unpin(struct oh_device *device, void *memory, uint64_t bytes);

#endif
