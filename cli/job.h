/* One load, step by step and timed: what load, explain and bench share. */
#ifndef CLI_JOB_H
#define CLI_JOB_H

#include "request.h"

/* CPU time of the process, in nanoseconds. */
struct job_cpu {
	uint64_t user, system;
};

/* Nanoseconds. first_read and what follows are moments since the transfer's start; the others are
 * durations. whole is from before the model was opened to the last byte, less what was done for
 * checks only. */
struct job_times {
	uint64_t open, parse, select, allocate, plan, prepare;
	uint64_t first_read, first_copy, last_read, last_byte;
	uint64_t whole;
	struct job_cpu cpu; /* over the whole; job_load_measured() alone fills it */
};

/* The phases by name, in order; from the JOB_MOMENTS-th on they are moments. */
#define JOB_PHASES 10
#define JOB_MOMENTS 6
struct job_phase {
	const char *key;   /* "first_read_ns" */
	const char *words; /* "first read" */
	size_t offset;     /* in struct job_times */
};
extern const struct job_phase job_phases[JOB_PHASES];
uint64_t job_phase(const struct job_times *times, size_t index);

struct job {
	struct onehop_runtime *runtime; /* not the job's own */
	const char *device;
	const struct request *request;
	struct onehop_model *model;
	struct onehop_selection *selection;
	struct onehop_buffer *arena;
	uint64_t arena_bytes;
	struct onehop_plan *plan;
	struct onehop_transfer *transfer;
	struct onehop_selection_info layout;
	struct onehop_plan_info planned;
	struct onehop_completion completion;
	struct job_times times;
	struct job_cpu aside; /* what checks alone have cost so far */
};

/* A runtime as the request wants it. */
onehop_status job_runtime(const struct request *request, struct onehop_runtime **runtime,
			  struct onehop_error *error);

/* The request's device, or cuda:0 if there is one, else host. */
const char *job_device(const struct request *request, struct onehop_runtime *runtime);

void job_begin(struct job *job, struct onehop_runtime *runtime, const char *device,
	       const struct request *request);

/* The steps, in this order; what a step made before is made anew. Each adds to times. */
/* The model and the selection; a model that is open already stays (see job_drop_but_model()). */
onehop_status job_open(struct job *job, const char *path, struct onehop_error *error);
/* The arena, filled with a byte that stands out if poison is set (not timed). One that is there and
 * of the right size is kept. */
onehop_status job_allocate(struct job *job, int poison, struct onehop_error *error);
onehop_status job_plan(struct job *job, struct onehop_error *error);
onehop_status job_prepare(struct job *job, struct onehop_error *error);
/* Starts it and waits, with a bar unless quiet; ends with CANCELLED after Ctrl-C. */
onehop_status job_move(struct job *job, int quiet, struct onehop_error *error);

/* All steps. */
onehop_status job_load(struct job *job, const char *path, int poison, int quiet,
		       struct onehop_error *error);
/* The same, and what the process spent on it: two more system calls, outside of the timed part. */
onehop_status job_load_measured(struct job *job, const char *path, int poison, int quiet,
				struct onehop_error *error);

/* What comes once, before loads from pinned page cache: the model and its arena, which is the check
 * that there is room on the device, and then the pinning, which took *pin_ns and is in no sum of
 * times. job_drop_but_model() goes between the loads that follow. */
onehop_status job_pin(struct job *job, const char *path, uint64_t *pin_ns,
		      struct onehop_error *error);

/* Gives back all that the steps made, pinned pages too; the times stay. */
void job_drop(struct job *job);
/* All but the arena. */
void job_drop_but_arena(struct job *job);
/* All but the arena and the model, pinned as it may be. */
void job_drop_but_model(struct job *job);

/* What the getters of a model and its selection say; an index that is in range cannot fail. */
struct onehop_model_info job_model_info(const struct onehop_model *model);
struct onehop_tensor job_tensor(const struct onehop_model *model, uint64_t index);
struct onehop_item job_item(const struct job *job, uint64_t index);

/* Room for a shape of any rank. Give it a zeroed one and free shape->dims in the end. */
struct shape {
	uint64_t *dims;
	uint64_t rank;
	uint64_t room;
};
/* The shape of a tensor, or of the rank's part of it if item is not NULL. -1 for no memory. */
int job_shape(const struct onehop_model *model, uint64_t tensor, const struct onehop_item *item,
	      struct shape *shape);

#endif
