/* The parts of onehop bench. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "cli.h"
#include "job.h"

/* What a child process writes for one load, as it lies in memory: both are the same program. */
struct bench_record {
	struct job_times times;
	uint64_t bytes;
	uint64_t rss_growth;    /* peak RssAnon less its value before open */
	uint64_t pinned_peak;
	uint64_t device_growth; /* device memory taken, the tensors' own included */
};

/* The most records that one child writes. */
#define BENCH_RECORDS 1024

/* Names of what a child does. */
#define CHILD_FIRST "first" /* 1 record: the first load of a process */
#define CHILD_AGAIN "again" /* --repeat whole loads, then as many with everything kept */
#define CHILD_TINY "tiny"   /* 1 record: from making the runtime to the last byte */
#define CHILD_PAIR "pair"   /* --repeat times two records: two equal loads begun together */
#define CHILD_AMID "amid"   /* --repeat records: the third word's load begun amid the second's */

/* A model to measure with. */
struct bench_model {
	char path[4096];
	int made; /* by us: bench_model_drop() removes it */
	uint64_t bytes;
	uint64_t tensor_bytes;
	uint64_t tensors;
};

/* Makes (or, if keep is set, finds) a model of about `bytes` in dir. CANCELLED after Ctrl-C, with
 * nothing left behind. threads: how many write. */
onehop_status bench_model_make(struct bench_model *model, const char *dir, uint64_t bytes,
			       uint64_t tensor_bytes, int keep, unsigned threads, int quiet,
			       struct onehop_error *error);
void bench_model_drop(struct bench_model *model);

/* Facts about this machine, as text. */
struct bench_facts {
	char cpu[128];
	char kernel[128];
	char file_system[64]; /* of the model's place: "ext4", "tmpfs" */
	uint64_t total_bytes; /* memory as the kernel counts it */
};
void bench_facts(struct bench_facts *facts, const char *path);

/* Reading the model's files from the page cache with several threads. */
#define READ_TRIES 16
struct bench_reads {
	unsigned tries;
	unsigned threads[READ_TRIES];
	double rate[READ_TRIES]; /* bytes a second */
	unsigned best;           /* index */
};

/* Into private buffers of 512 KiB, or, if whole is set, into memory as large as the files that
 * onehop_buffer_alloc() gives for the host: then fresh counts allocating it too. */
onehop_status bench_read(struct onehop_runtime *runtime, const struct onehop_model *model,
			 unsigned cores, int whole, int fresh, struct bench_reads *reads,
			 struct onehop_error *error);

/* Loads of one kind. */
struct bench_series {
	size_t count;
	struct bench_record *records; /* room for BENCH_RECORDS */
};

/* Everything that was measured. */
struct bench {
	struct request request;
	struct onehop_runtime *runtime;
	const char *device;
	int is_host;
	struct onehop_device_info device_info;
	struct onehop_runtime_info machine;
	struct bench_facts facts;
	struct bench_model model, small;
	char format[32];
	uint32_t files;
	uint64_t tensors, bytes; /* of the model, as loaded */
	double copy_rate;        /* bytes a second; 0 for the host */
	struct bench_reads reads;      /* into private buffers; for the host into fresh memory */
	struct bench_reads kept_reads; /* for the host: into memory that is there */
	struct bench_series first, again, kept, tiny, pair, amid;
	struct pressure_span pressure; /* over all loads that are timed */
};

/* Runs this program again as `onehop bench-child KIND ...` and adds its records to the series. */
onehop_status bench_run(const struct bench *bench, const char *kind, const char *path,
			const char *second, uint64_t repeat, struct bench_series *series,
			struct onehop_error *error);
/* As `onehop load --verify`: OK if every byte is right. */
onehop_status bench_verify(const struct bench *bench, const char *path,
			   struct onehop_error *error);

void bench_print(struct out *out, const struct bench *bench);
void bench_json(struct out *out, const struct bench *bench);

#endif
