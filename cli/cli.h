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
/* One process of bench's: not for people. */
int cmd_bench_child(struct out *out, int argc, char **argv);

extern const struct usage load_usage, list_usage, explain_usage, options_usage, version_usage,
	bench_usage, prefetch_usage;

/* Shared pieces of what they print. */
void print_shape(struct out *out, const struct shape *shape);
void print_reasons(struct out *out, uint32_t reasons);
void json_shape(struct json *json, const struct shape *shape);
void json_reasons(struct json *json, uint32_t reasons);
void json_phases(struct json *json, const struct job_times *times);
void json_notes(struct json *json, const struct onehop_model *model);
void print_notes(struct out *out, const struct onehop_model *model);
/* The label of a table's line, 16 columns wide. */
void label(struct out *out, const char *text);

#endif
