/* Memory back ends: where bytes go. One table each; facts are data, and nothing above compares
 * names. Every slot is filled. All calls are made from any thread unless said otherwise; none is
 * left waiting on another thread of ours.
 *
 *   device   one GPU, or the host
 *   queue    an ordered stream of copies
 *   mark     remembers the last copy of one ring block: is it done?
 */
#ifndef OH_MEMORY_OPS_H
#define OH_MEMORY_OPS_H

#include "base/error.h"

#include <onehop/runtime.h>

#include <stdint.h>

/* Capability bits of a device. */
enum oh_memory_caps {
	OH_MEMORY_ADDRESSABLE = 1 << 0, /* storage can write into it directly; copies are memcpy */
	OH_MEMORY_BATCH_COPY = 1 << 1,  /* many copies in one call are cheaper than a loop */
	OH_MEMORY_PINS_FILES = 1 << 2,  /* pin_file works: copies straight from the page cache */
};

struct oh_memory_facts {
	uint32_t caps;
	uint32_t alignment;    /* that alloc gives */
	uint32_t copy_modulus; /* source and destination should agree modulo this; 1 if it is nothing */
	uint32_t reserved;
};

struct oh_copy {
	uint64_t destination; /* device address */
	const void *source;   /* host address, in one registered block */
	uint64_t bytes;
};

struct oh_device; /* each back end's own */
struct oh_queue;
struct oh_mark;

struct oh_memory_ops {
	const char *name; /* "host", "cuda" */

	/* Devices present, 0 without a driver. Never fails. */
	uint32_t (*count)(void);

	/* Opens device ordinal of count. NO_DEVICE and why. The device keeps its context alive until
	 * close. If the caller's current context is on that device it is used, else the primary. */
	onehop_status (*open)(uint32_t ordinal, struct oh_device **device, struct onehop_error *error);
	void (*close)(struct oh_device *device);
	void (*facts)(struct oh_device *device, struct oh_memory_facts *facts);
	/* Fills what it knows; size is set. */
	onehop_status (*describe)(struct oh_device *device, struct onehop_device_info *info,
				  struct onehop_error *error);

	/* 0 bytes gives address 0. NO_DEVICE_MEMORY / NO_MEMORY with the numbers. */
	onehop_status (*alloc)(struct oh_device *device, uint64_t bytes, uint64_t *address,
			       struct onehop_error *error);
	void (*free)(struct oh_device *device, uint64_t address, uint64_t bytes);
	/* Is [address, address + bytes) memory of this device? INVALID_ARGUMENT says what it is. */
	onehop_status (*check)(struct oh_device *device, uint64_t address, uint64_t bytes,
			       struct onehop_error *error);
	/* Waits until done. */
	onehop_status (*read)(struct oh_device *device, uint64_t address, void *destination,
			      uint64_t bytes, struct onehop_error *error);
	onehop_status (*fill)(struct oh_device *device, uint64_t address, uint64_t bytes,
			      uint8_t value, struct onehop_error *error);

	/* Makes host memory fit to be copied from at full rate, and undoes it. */
	onehop_status (*pin)(struct oh_device *device, void *memory, uint64_t bytes,
			     struct onehop_error *error);
	void (*unpin)(struct oh_device *device, void *memory, uint64_t bytes);
	/* The same for pages of a file that is mapped shared and read-only: the page cache itself is
	 * pinned, unpin undoes it. UNSUPPORTED without PINS_FILES. */
	onehop_status (*pin_file)(struct oh_device *device, void *map, uint64_t bytes,
				  struct onehop_error *error);
	/* 1 while what was pinned, marks and queues of this device are still good: 0 once its context
	 * is gone (reset or destroyed by the caller), when they must be made again. */
	int (*alive)(struct oh_device *device);

	onehop_status (*queue_create)(struct oh_device *device, struct oh_queue **queue,
				      struct onehop_error *error);
	void (*queue_destroy)(struct oh_device *device, struct oh_queue *queue);
	/* Copies given to the queue from now on wait for what the caller's stream holds now. */
	onehop_status (*queue_after)(struct oh_device *device, struct oh_queue *queue, uint64_t stream,
				     struct onehop_error *error);
	/* What is given to the caller's stream from now on waits for the copies given so far. */
	onehop_status (*queue_join)(struct oh_device *device, struct oh_queue *queue, uint64_t stream,
				    struct onehop_error *error);

	onehop_status (*mark_create)(struct oh_device *device, struct oh_mark **mark,
				     struct onehop_error *error);
	void (*mark_destroy)(struct oh_device *device, struct oh_mark *mark);

	/* Gives count copies (0 is allowed) to the queue and sets the mark behind them. Does not wait. If it fails,
	 * some of them may be under way: it then waits for them, so that the source is free. */
	onehop_status (*copy)(struct oh_device *device, struct oh_queue *queue, struct oh_mark *mark,
			      const struct oh_copy *copies, uint64_t count,
			      struct onehop_error *error);
	/* The other way: gives one copy from the device to host memory to the queue, which does not wait
	 * for it if the memory is pinned, and sets the mark. If it fails, nothing is under way. */
	onehop_status (*copy_out)(struct oh_device *device, struct oh_queue *queue,
				  struct oh_mark *mark, uint64_t address, void *destination,
				  uint64_t bytes, struct onehop_error *error);
	/* *done is 1 if all copies behind the mark have ended. Does not wait, unless it fails: then it
	 * waits for them. */
	onehop_status (*poll)(struct oh_device *device, struct oh_mark *mark, int *done,
			      struct onehop_error *error);
};

extern const struct oh_memory_ops oh_memory_host;
extern const struct oh_memory_ops oh_memory_cuda;

#endif
