/* What bench/cold measures, and what its files share.
 *
 * A *reading* is one load by onehop or one pass by a plain way. Readings come in *pairs*, ours and
 * what it is held against, one right behind the other, the order changing from pair to pair.
 */
#ifndef BENCH_COLD_H
#define BENCH_COLD_H

#include "disk_series.h"

#include <onehop/onehop.h>

#define LOADERS_MAX 8
#define FINALISTS 6

struct request {
	const char *dir, *device;
	uint64_t bytes;
	unsigned pairs, parts, loader_count;
	const char *loaders[LOADERS_MAX];
	int hurry, json, as_found;
};

/* Loads of one runtime, which keeps its threads, its ring and the memory that is loaded into. */
struct loader {
	const char *name; /* its options, "" for none */
	struct onehop_runtime *runtime;
	struct onehop_buffer *memory;
	struct onehop_completion last;
};

struct pairs {
	const char *name;
	unsigned count;
	uint64_t bytes;			     /* of one reading */
	uint64_t direct, buffered, mapped;   /* bytes of ours by route */
	struct pass ours[PASSES_MAX];
	struct pass base[PASSES_MAX];
};

/* The median and an interval that holds the true one with 95 % or more, by order statistics: from
 * the rank-th of the sorted values to the rank-th from above. */
struct estimate {
	double median, low, high;
	unsigned rank; /* 0: too few values for an interval */
};

/* Of ours over base: of rates, else of times. */
struct estimate pairs_ratio(const struct pairs *pairs, int of_rates);

/* Whether the interval is no wider than 0.05 to either side. */
int is_resolved(const struct estimate *estimate);

struct spread pairs_ours(const struct pairs *pairs, enum figure figure);
struct spread pairs_base(const struct pairs *pairs, enum figure figure);

/* The head of a safetensors file of `bytes` bytes: its tensors, of 64 MiB but for the last, are
 * first.N in its first half and second.N in the other. Free it. */
uint8_t *model_head(uint64_t bytes, uint64_t *head_bytes);

/* A runtime with options "name=value,name=value", and memory that is touched: as much as bytes on
 * the device, or the memory of another loader. */
void loader_make(struct loader *loader, const char *options, const char *device, uint64_t bytes,
		 const struct loader *other);
void loader_drop(struct loader *loader);

/* A whole load, from opening the model to the last byte. pattern: of the tensors, or NULL. */
void loader_load(struct loader *loader, const struct disk *disk, const char *pattern,
		 struct pass *out);

/* The same, and every byte compared. */
void loader_verify(struct loader *loader, const struct disk *disk, const char *pattern);

/* Says what it was and ends the process. */
__attribute__((noreturn)) void die_of(const struct onehop_error *error);

/* All that was measured. A part that was not has no pairs. */
struct cold_report {
	struct facts facts;
	const char *device;
	uint64_t bytes; /* of the file */
	unsigned loader_count, readings, restless;
	struct series finalists[FINALISTS];
	struct way warm_way;		 /* flight 0: held against pinned copies instead */
	struct pairs cold[LOADERS_MAX];
	struct pairs half[LOADERS_MAX];
	struct pairs warm;
};

void cold_print_begin(const struct cold_report *report);
void cold_print_cold(const struct cold_report *report);
void cold_print_half(const struct cold_report *report);
void cold_print_warm(const struct cold_report *report);
void cold_print_end(const struct cold_report *report);
void cold_print_json(const struct cold_report *report);

/* The plain ways of reading the cold file: all once, then the quickest rounds times more with
 * their bytes compared before. The first of them is the quickest. */
void pilot_cold(const struct disk *disk, const struct request *request, unsigned rounds,
		struct series *finalists);

/* The quickest plain way of reading the warm file into disk's ring, its bytes compared. */
struct way pilot_warm(const struct disk *disk);

#endif
