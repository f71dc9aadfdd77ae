/* What the runtime's files share. Nothing outside src/runtime includes it.
 *
 * One lock, runtime->lock, guards the schedule: active transfers, their flows, free blocks. It is
 * held for short, never across a system call or driver call. ring_lock serialises the making of
 * devices and blocks, and is taken before lock.
 */
#ifndef OH_RUNTIME_INTERNAL_H
#define OH_RUNTIME_INTERNAL_H

#include "base/error.h"
#include "base/option.h"
#include "engine/flow.h"
#include "engine/plan.h"
#include "machine/machine.h"
#include "memory/ops.h"
#include "storage/ops.h"

#include <onehop/onehop.h>

#include <pthread.h>
#include <stdatomic.h>

/* Room for the options of the table. */
#define OH_OPTIONS_MOST 32

struct oh_block {
	uint8_t *memory;
	struct oh_mark *mark;
};

/* Staging memory made in one go. */
struct oh_region {
	struct oh_region *next;
	void *memory;
	uint64_t bytes;
	uint64_t pinned_bytes; /* 0 where nothing is pinned */
};

/* One way into a device: its ring of blocks, and the one queue that all copies from them go through,
 * since a GPU's copy engine serves a second stream only when the first has run dry. */
struct oh_lane {
	struct oh_queue *queue;
	struct oh_region *regions;
	struct oh_block *blocks; /* most of them, made as needed */
	uint32_t *free; /* a stack of block indices */
	uint32_t most;
	uint32_t made;
	uint32_t free_count;
	uint64_t wanted; /* by all prepared transfers */
};

/* A device that the runtime has opened. One whose context has died stays on the list, dead, for
 * those who still point at it, and another is opened in its place. */
struct oh_rt_device {
	struct oh_rt_device *next;
	const struct oh_memory_ops *ops;
	struct oh_device *handle;
	struct oh_memory_facts facts;
	struct oh_lane lane;
	uint64_t buffer_bytes; /* of buffers that the runtime allocated on it */
	uint32_t ordinal;
	int dead;
	char name[16];
};

struct onehop_file {
	struct onehop_runtime *runtime;
	void *map;                      /* all of it, once it was pinned */
	struct oh_rt_device *pinned_on; /* NULL: it is not pinned */
	const struct oh_storage_ops *ops;
	struct oh_storage_file *handle;
	struct oh_storage_facts facts;
	char path[];
};

struct onehop_buffer {
	struct onehop_runtime *runtime;
	struct oh_rt_device *device;
	uint64_t address;
	uint64_t bytes;
	int owned;
	struct oh_rt_device *pinned_on; /* NULL: it is not pinned */
	atomic_ulong references; /* the owner's, and one an export */
};

struct onehop_plan {
	struct onehop_runtime *runtime;
	struct oh_rt_device *device;
	struct oh_plan plan;
	struct onehop_file **files;
	struct onehop_buffer **buffers;
	const char **names; /* by extent; NULL if none has one */
	uint32_t file_count;
	uint32_t buffer_count;
	uint64_t extent_count;
	int on_network; /* one of its files at least */
};

/* A window whose copies were given to the device. */
struct oh_in_flight {
	struct oh_mark *mark;
	uint32_t window;
};

/* What a mapped window needs: a mark, and a map of its own, since the driver does not pin an address
 * twice. Of a file that is pinned whole it uses that map. */
struct oh_map_slot {
	struct oh_mark *mark;
	void *map;
	uint64_t map_bytes; /* 0: none of its own */
	uint64_t base;      /* address of the file's first byte, if the map went so far */
	int used;
};

enum oh_transfer_state { OH_TRANSFER_IDLE, OH_TRANSFER_RUNNING, OH_TRANSFER_ENDING, OH_TRANSFER_ENDED };

struct onehop_transfer {
	struct onehop_transfer *next; /* in the ring of active transfers */
	struct onehop_transfer *prev;
	struct onehop_runtime *runtime;
	struct onehop_plan *plan;
	struct oh_rt_device *device;
	/* What the first copy waits for, if the caller asked: a queue that waits for the caller's
	 * stream, and a mark in it. While gated is set nothing of the transfer is done. */
	struct oh_queue *gate_queue;
	struct oh_mark *gate_mark;
	int gated;
	int gate_used; /* the queue may still wait for the stream of an earlier start */
	struct oh_flow flow;
	struct oh_map_slot maps[OH_FLOW_MAPS];
	struct oh_in_flight *in_flight; /* a ring of in_flight_most */
	uint32_t in_flight_most;
	uint32_t in_flight_first;
	uint32_t in_flight_count;
	uint64_t blocks_wanted;
	int in_crowd; /* counted in runtime->crowd_users */
	uint32_t blocks_held;
	uint32_t issuing; /* threads that give copies to the device now */
	uint32_t reading; /* threads with a slice of it */
	uint32_t waiters;
	enum oh_transfer_state state;
	pthread_cond_t cond; /* an arrival, work for a waiter, or the end */
	uint64_t probe_bytes; /* read so far where residency is not known, and the time it took */
	uint64_t probe_ns;
	uint64_t started_ns;
	uint64_t stopped_ns; /* when it was cancelled or failed, 0 before */
	uint64_t starved_since_ns; /* 0 while it is not */
	struct onehop_completion completion;
	struct onehop_error error; /* its first failure */
};

/* Memory that many threads touch at once, to have it made quickly. */
struct oh_touch {
	uint8_t *memory;
	uint64_t bytes;
	uint64_t next;
	uint64_t done;
};

struct onehop_runtime {
	atomic_ulong references; /* the owner's, and one an export */
	pthread_mutex_t lock;
	pthread_mutex_t ring_lock;
	pthread_cond_t work;
	pthread_cond_t touched;
	struct onehop_runtime_options options;
	enum oh_option_origin origins[OH_OPTIONS_MOST];
	char (*texts)[3][OH_OPTION_TEXT]; /* value, default, range of each option */
	struct oh_machine machine;
	pid_t pid;
	uint64_t threads_most;
	uint64_t network_threads_most; /* reads of a network file system wait, whatever the cores */
	uint64_t ring_bytes;
	uint64_t block_bytes; /* a multiple of OH_FLOW_BLOCK_ALIGNMENT */
	uint64_t slice_bytes; /* no more than a block */
	pthread_t *threads;
	uint32_t thread_count;
	uint32_t idle; /* workers that wait for work */
	uint32_t in_flight; /* windows that are being copied and closed gates, of all transfers */
	uint64_t poll_ns; /* how long the last look at copies in flight went on; 0: nothing ran since */
	int polling;   /* a thread looks after copies in flight */
	int stop;
	struct oh_rt_device *devices;
	struct onehop_transfer *active; /* any of the ring: the next one to be served */
	struct oh_touch *touch;
	uint64_t patience_ns; /* after a cancel: a read that takes longer to return is named */
	uint64_t pinned_bytes;
	uint64_t pinned_peak_bytes;
	uint64_t file_pinned_bytes; /* by onehop_file_pin */
	uint64_t buffer_pinned_bytes; /* by oh_buffer_pin */
	/* Large transfers that run (changed with both locks held), and the name that tells other
	 * processes so (under ring_lock). */
	uint32_t crowd_users;
	int crowd_fd;
	uint32_t crowd; /* processes that load large models, as last counted */
	uint64_t crowd_ns;
};

/* The next after t in the ring of active transfers, NULL at its end; with `only` there is no other. */
static inline struct onehop_transfer *
oh_active_after(const struct onehop_runtime *runtime, const struct onehop_transfer *only,
		const struct onehop_transfer *t)
{
	return only || t->next == runtime->active ? NULL : t->next;
}

/* 1 in a forked child; then *error says so. */
int oh_forked(const struct onehop_runtime *runtime, struct onehop_error *error);

/* runtime.c: the last reference closes the devices. */
void oh_runtime_hold(struct onehop_runtime *runtime);
void oh_runtime_drop(struct onehop_runtime *runtime);
/* Starts workers until there are want, or most, if that is fewer. most: threads_most or
 * network_threads_most. */
onehop_status oh_workers_start(struct onehop_runtime *runtime, uint64_t want, uint64_t most,
			       struct onehop_error *error);

/* device.c */
onehop_status oh_device_get(struct onehop_runtime *runtime, const char *name,
			    struct oh_rt_device **device, struct onehop_error *error);
/* Gives back the rings; the devices stay. */
void oh_devices_rest(struct onehop_runtime *runtime);
void oh_devices_close(struct onehop_runtime *runtime);
/* The last reference frees. */
void oh_buffer_hold(struct onehop_buffer *buffer);
void oh_buffer_drop(struct onehop_buffer *buffer);
onehop_status oh_buffer_check_range(const struct onehop_buffer *buffer, uint64_t offset,
				    uint64_t bytes, struct onehop_error *error);

/* lane.c: makes blocks until the lane has as many as all transfers want that reserved some and did
 * not give up, or all that the options allow, one at least. */
onehop_status oh_lane_reserve(struct onehop_runtime *runtime, struct oh_rt_device *device,
			      uint64_t want, struct onehop_error *error);
void oh_lane_give_up(struct onehop_runtime *runtime, struct oh_rt_device *device, uint64_t want);
void oh_lane_close(struct onehop_runtime *runtime, struct oh_rt_device *device);
/* Host memory fit for copies, huge pages advised, touched by all workers. */
onehop_status oh_region_make(struct onehop_runtime *runtime, struct oh_rt_device *device,
			     uint64_t bytes, struct oh_region **region,
			     struct onehop_error *error);
void oh_region_free(struct onehop_runtime *runtime, struct oh_rt_device *device,
		    struct oh_region *region);
/* Makes the pages of anonymous memory, by all idle workers. With ring_lock held. */
void oh_touch(struct onehop_runtime *runtime, void *memory, uint64_t bytes);

/* Before and after a run. Large transfers through a ring are counted among the processes of this
 * machine, whose rings share one cache. */
void oh_crowd_enter(struct onehop_transfer *transfer);
void oh_crowd_exit(struct onehop_transfer *transfer);
/* Counts them again, now and then. With the lock held; released while it counts. */
void oh_crowd_watch(struct onehop_runtime *runtime);
/* How many blocks of the lane may be in use. With the lock held. */
uint32_t oh_lane_share(const struct onehop_runtime *runtime, const struct oh_lane *lane);

/* facts.c: 1 if CPUs are too few to fill the link, and the device can do without. */
int oh_few_cores(const struct onehop_plan *plan);
/* Fills one entry a file of the plan, which is for `bytes` bytes. What it allocates
 * (residence) is the caller's to free, also on failure; entries begin zeroed. */
onehop_status oh_file_facts_read(struct onehop_plan *plan, uint64_t bytes, uint64_t memory_bytes,
				 int few_cores, struct oh_file_facts *facts,
				 struct onehop_error *error);

/* schedule.c, with the lock held: the transfer is to run, or to end early. */
void oh_transfer_admit(struct onehop_transfer *transfer);
void oh_transfer_stop(struct onehop_transfer *transfer, const struct onehop_error *why);
/* Ends the transfer if nothing of it is left; may release the lock meanwhile. */
void oh_transfer_check_end(struct onehop_transfer *transfer);

/* work.c */
void *oh_worker_main(void *runtime);
/* Works for the transfer until done(transfer) or the deadline (monotonic ns). Called and returns
 * with the lock held; 1 if done. */
int oh_help(struct onehop_transfer *transfer, uint64_t deadline_ns,
	    int (*done)(const struct onehop_transfer *));
/* With the lock held: touches the chunks that are left, and waits for those that others have. */
void oh_touch_help(struct onehop_runtime *runtime, struct oh_touch *touch);

#endif
