/* The commands. Each gets the words after its name and returns an exit status. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "job.h"
#include "say.h"

int cmd_load(struct out *out, int argc, char **argv);
int cmd_list(struct out *out, int argc, char **argv);
int cmd_explain(struct out *out, int argc, char **argv);
int cmd_options(struct out *out, int argc, char **argv);
int cmd_version(struct out *out, int argc, char **argv);
int cmd_bench(struct out *out, int argc, char **argv);
int cmd_prefetch(struct out *out, int argc, char **argv);
int cmd_index(struct out *out, int argc, char **argv);
int cmd_stream(struct out *out, int argc, char **argv);
/* In Python. */
int cmd_pack(struct out *out, int argc, char **argv);
int cmd_sensors(struct out *out, int argc, char **argv);
/* One process of bench's: not for people. */
int cmd_bench_child(struct out *out, int argc, char **argv);

/* onehop bench stream: becomes Python. */
int bench_stream(int argc, char **argv);

extern const struct usage load_usage, list_usage, explain_usage, options_usage, version_usage,
	bench_usage, prefetch_usage, index_usage, pack_usage, sensors_usage, stream_usage;

/* Shared pieces of what they print. */
void print_shape(struct out *out, const struct shape *shape);
void print_reasons(struct out *out, uint32_t reasons);
void json_shape(struct json *json, const struct shape *shape);
void json_reasons(struct json *json, uint32_t reasons);
void json_phases(struct json *json, const struct job_times *times);
void json_notes(struct json *json, const struct onehop_model *model);
void print_notes(struct out *out, const struct onehop_model *model);
/* null, where nothing is known. */
void json_null(struct json *json, const char *key);

/* What the machine did to a span of time, see onehop/machine.h. */
struct pressure_span {
	uint64_t ns;                  /* how long it was; between begin and end, when it began */
	struct onehop_pressure since; /* between begin and end, the counters at its beginning */
};
void pressure_begin(struct pressure_span *span);
void pressure_end(struct pressure_span *span);
/* A line each for what is worth saying, with what to do about it; often none. */
void print_pressure(struct out *out, const struct pressure_span *span);
void json_pressure(struct json *json, const struct pressure_span *span);
/* Which of the counters can be read on this machine. */
void print_pressure_known(struct out *out);
void json_pressure_known(struct json *json);

/* The label of a table's line, 16 columns wide. */
void label(struct out *out, const char *text);

#endif
