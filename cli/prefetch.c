/* onehop prefetch: brings a model's bytes near before they are loaded, as in an init container.
 *
 * Without --to it warms the page cache, where it refuses what cannot fit: pages that push each
 * other out help nobody. With --to it copies the files into a folder. What is printed is what was
 * looked up or read back, not what was asked for.
 */
#include "cli.h"
#include "copy.h"
#include "signals.h"
#include "warm.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct usage prefetch_usage = {
	.name = "prefetch",
	.operands = "PATH",
	.summary = "warm the page cache, or copy a model to local disk",
	.about = "Reads the files of a model so that they lie in the page cache, or, with --to, "
		 "copies\nthem into a folder: each file gets its name when it is whole, the index "
		 "last. An\ninterrupted copy goes on where it stopped.\n",
	.words_min = 1,
	.words_max = 1,
	.option_count = 7,
	.options = {OPT_TO, OPT_FILE_SUMS, OPT_NO_VERIFY, OPT_FORCE, OPT_JSON, OPT_QUIET,
		    OPT_OPTION},
};

/* Files left out that a table names; JSON has them all. */
#define MOST_LEFT_OUT 8

struct prefetch {
	struct request request;
	struct onehop_runtime *runtime;
	struct onehop_model *model;
	struct onehop_runtime_info machine;
	struct files files;
	struct warm warm;
	struct copy copy;
};

static double
rate(uint64_t bytes, uint64_t ns)
{
	return ns ? (double)bytes / (double)ns : 0;
}

/* ------------------------------------------------------------------------------------------- */
/* What both print */

static void
print_bytes(struct out *out, const char *words, uint64_t bytes)
{
	char exact[SIZE_TEXT], about[SIZE_TEXT];
	out_format(out, "%-16s%s (%s)\n", words, grouped(exact, bytes), size_text(about, bytes));
}

static void
print_head(struct out *out, const struct prefetch *prefetch)
{
	const char *path = prefetch->request.words[0];
	struct onehop_model_info info = job_model_info(prefetch->model);
	label(out, "model");
	out_name(out, path, strlen(path));
	out_format(out, "\n%-16s%s, %u file%s\n", "format", info.format, info.file_count,
		   info.file_count == 1 ? "" : "s");
}

static void
print_left_out(struct out *out, const struct files *files)
{
	size_t count = files->all - files->count;
	for (size_t i = 0; i < count && i < MOST_LEFT_OUT; i++) {
		const struct model_file *file = &files->at[files->count + i];
		label(out, "left out");
		out_name(out, file->name, strlen(file->name));
		out_format(out, ": %s\n", file->why);
	}
	if (count > MOST_LEFT_OUT)
		out_format(out, "%-16sand %zu more\n", "left out", count - MOST_LEFT_OUT);
}

static void
json_head(struct json *json, const struct prefetch *prefetch, const char *mode)
{
	json_text(json, "path", prefetch->request.words[0]);
	json_text(json, "mode", mode);
	json_text(json, "format", job_model_info(prefetch->model).format);
	if (prefetch->request.to)
		json_text(json, "to", prefetch->request.to);
}

static void
json_left_out(struct json *json, const struct files *files)
{
	json_open(json, "left_out", '[');
	for (size_t i = files->count; i < files->all; i++) {
		json_open(json, NULL, '{');
		json_text(json, "name", files->at[i].name);
		json_text(json, "why", files->at[i].why);
		json_close(json);
	}
	json_close(json);
}

/* ------------------------------------------------------------------------------------------- */
/* Warming */

static void
print_warm(struct out *out, const struct prefetch *prefetch)
{
	char exact[SIZE_TEXT], time[SIZE_TEXT];
	const struct warm *warm = &prefetch->warm;
	print_head(out, prefetch);
	print_bytes(out, "bytes", prefetch->files.bytes);
	if (warm->known)
		print_bytes(out, "resident before", warm->before);
	else
		out_format(out, "%-16s%s\n", "resident before", "unknown");
	out_format(out, "%-16s%s bytes in %s, %.2f GB/s, %u thread%s\n", "read",
		   grouped(exact, warm->read), time_text(time, warm->ns),
		   rate(warm->read, warm->ns), warm->threads, warm->threads == 1 ? "" : "s");
	if (warm->known)
		print_bytes(out, "resident now", warm->after);
	else
		out_format(out, "%-16s%s\n", "resident now", "unknown");
	print_notes(out, prefetch->model);
}

static void
json_warm(struct out *out, const struct prefetch *prefetch)
{
	struct json json;
	const struct warm *warm = &prefetch->warm;
	json_begin(&json, out);
	json_head(&json, prefetch, "warm");
	json_open(&json, "files", '[');
	for (size_t i = 0; i < prefetch->files.count; i++) {
		const struct model_file *file = &prefetch->files.at[i];
		const struct warm_file *its = &warm->at[i];
		json_open(&json, NULL, '{');
		json_text(&json, "name", file->name);
		json_number(&json, "bytes", (uint64_t)file->st.st_size);
		json_number(&json, "read_bytes", its->read);
		json_bool(&json, "residency_known", its->known);
		if (its->known) {
			json_number(&json, "resident_before_bytes", its->before);
			json_number(&json, "resident_after_bytes", its->after);
		}
		json_close(&json);
	}
	json_close(&json);
	json_number(&json, "bytes", prefetch->files.bytes);
	json_number(&json, "read_bytes", warm->read);
	json_bool(&json, "residency_known", warm->known);
	if (warm->known) {
		json_number(&json, "resident_before_bytes", warm->before);
		json_number(&json, "resident_after_bytes", warm->after);
	}
	json_number(&json, "memory_bytes", prefetch->machine.memory_bytes);
	json_number(&json, "threads", warm->threads);
	json_double(&json, "seconds", (double)warm->ns / 1e9, 9);
	json_double(&json, "gb_per_s", rate(warm->read, warm->ns), 4);
	json_notes(&json, prefetch->model);
	json_end(&json);
}

/* What is resident already (a tmpfs has nothing else) needs no room. */
static onehop_status
check_memory(const struct prefetch *prefetch, struct onehop_error *error)
{
	char wants[SIZE_TEXT], has[SIZE_TEXT];
	uint64_t bytes = prefetch->files.bytes, memory = prefetch->machine.memory_bytes;
	if (bytes <= memory || prefetch->warm.absent == 0 || given(&prefetch->request, OPT_FORCE))
		return ONEHOP_OK;
	fail(error, ONEHOP_LIMIT, 0,
	     "the model has %s (%llu bytes), and %s (%llu bytes) of memory are usable: nothing was "
	     "warmed",
	     size_text(wants, bytes), (unsigned long long)bytes, size_text(has, memory),
	     (unsigned long long)memory);
	return remedy(error, "raise the memory limit, copy it to a local disk with --to, or give "
			     "--force to warm as much as fits");
}

static onehop_status
run_warm(struct prefetch *prefetch, struct out *out, struct onehop_error *error)
{
	const struct request *request = &prefetch->request;
	onehop_status status = warm_look(&prefetch->warm, &prefetch->files, error);
	if (!status)
		status = check_memory(prefetch, error);
	prefetch->warm.threads = crew_threads(prefetch->runtime);
	if (!status)
		status = warm_read(&prefetch->warm, &prefetch->files, given(request, OPT_QUIET),
				   error);
	if (!status && given(request, OPT_JSON))
		json_warm(out, prefetch);
	else if (!status && !given(request, OPT_QUIET))
		print_warm(out, prefetch);
	return status;
}

/* ------------------------------------------------------------------------------------------- */
/* Copying */

static size_t
count_outcome(const struct prefetch *prefetch, enum copy_outcome outcome)
{
	size_t count = 0;
	for (size_t i = 0; i < prefetch->files.count; i++)
		count += prefetch->copy.at[i].outcome == outcome;
	return count;
}

static const char *
outcome_word(enum copy_outcome outcome)
{
	return outcome == COPY_THERE	  ? "already there"
	       : outcome == COPY_RESUMED  ? "resumed"
	       : outcome == COPY_REPLACED ? "replaced"
					  : "copied";
}

/* 1 if each byte in the folder was compared in this run. */
static int
is_verified(const struct copy *copy)
{
	return (copy->verify || copy->written + copy->kept == 0) &&
	       (copy->checksum != CHECKSUM_NONE || copy->there == 0);
}

#define SUM_TEXT 65
static const char *
sum_of(char text[SUM_TEXT], const struct prefetch *prefetch, size_t index)
{
	const struct copied *copied = &prefetch->copy.at[index];
	if (prefetch->copy.checksum == CHECKSUM_CRC32)
		snprintf(text, SUM_TEXT, "%08x", copied->crc32);
	else
		for (size_t i = 0; i < sizeof copied->sha256; i++)
			snprintf(text + 2 * i, 3, "%02x", copied->sha256[i]);
	return text;
}

/* In the form of sha256sum, which can check it. */
static void
print_manifest(struct out *out, const struct prefetch *prefetch)
{
	char text[SUM_TEXT];
	for (size_t i = 0; i < prefetch->files.count; i++) {
		const char *name = prefetch->files.at[i].name;
		out_format(out, "%s  ", sum_of(text, prefetch, i));
		out_name(out, name, strlen(name));
		out_text(out, "\n");
	}
}

static const char *
checksum_word(enum checksum checksum)
{
	return checksum == CHECKSUM_CRC32 ? "crc32" : "sha256";
}

static void
print_copy(struct out *out, const struct prefetch *prefetch)
{
	static const enum copy_outcome outcomes[] = {COPY_DONE, COPY_RESUMED, COPY_REPLACED,
						     COPY_THERE};
	char exact[SIZE_TEXT], time[SIZE_TEXT];
	const struct copy *copy = &prefetch->copy;
	print_head(out, prefetch);
	label(out, "to");
	out_name(out, copy->to, strlen(copy->to));
	out_format(out, "\n%-16s%zu", "files", prefetch->files.count);
	for (size_t i = 0, printed = 0; i < sizeof outcomes / sizeof outcomes[0]; i++) {
		size_t count = count_outcome(prefetch, outcomes[i]);
		if (count)
			out_format(out, "%s%zu %s", printed++ ? ", " : ": ", count,
				   outcome_word(outcomes[i]));
	}
	out_text(out, "\n");
	print_bytes(out, "bytes", prefetch->files.bytes);
	if (copy->there)
		print_bytes(out, "already there", copy->there);
	if (copy->kept)
		print_bytes(out, "kept", copy->kept);
	out_format(out, "%-16s%s bytes in %s, %.2f GB/s, %u thread%s\n", "copied",
		   grouped(exact, copy->written), time_text(time, copy->ns),
		   rate(copy->written, copy->ns), copy->threads, copy->threads == 1 ? "" : "s");
	if (is_verified(copy))
		out_format(out, "%-16s%s\n", "verified", "every byte, read back from the disk");
	else if (copy->verify && copy->written + copy->kept)
		out_format(out, "%-16s%s\n", "verified",
			   "every byte copied, read back from the disk");
	print_left_out(out, &prefetch->files);
	print_notes(out, prefetch->model);
	if (copy->checksum != CHECKSUM_NONE)
		out_format(out, "\n%s of each file\n", checksum_word(copy->checksum));
}

static void
json_copy(struct out *out, const struct prefetch *prefetch)
{
	struct json json;
	char text[SUM_TEXT];
	const struct copy *copy = &prefetch->copy;
	json_begin(&json, out);
	json_head(&json, prefetch, "copy");
	json_open(&json, "files", '[');
	for (size_t i = 0; i < prefetch->files.count; i++) {
		const struct model_file *file = &prefetch->files.at[i];
		json_open(&json, NULL, '{');
		json_text(&json, "name", file->name);
		json_number(&json, "bytes", (uint64_t)file->st.st_size);
		json_text(&json, "outcome", outcome_word(copy->at[i].outcome));
		json_number(&json, "kept_bytes", copy->at[i].kept);
		json_number(&json, "copied_bytes", copy->at[i].written);
		if (copy->checksum != CHECKSUM_NONE)
			json_text(&json, checksum_word(copy->checksum),
				  sum_of(text, prefetch, i));
		json_close(&json);
	}
	json_close(&json);
	json_number(&json, "bytes", prefetch->files.bytes);
	json_number(&json, "already_there_bytes", copy->there);
	json_number(&json, "kept_bytes", copy->kept);
	json_number(&json, "copied_bytes", copy->written);
	json_number(&json, "threads", copy->threads);
	json_double(&json, "seconds", (double)copy->ns / 1e9, 9);
	json_double(&json, "gb_per_s", rate(copy->written, copy->ns), 4);
	json_left_out(&json, &prefetch->files);
	json_notes(&json, prefetch->model);
	json_bool(&json, "verified", is_verified(copy));
	json_end(&json);
}

static onehop_status
run_copy(struct prefetch *prefetch, struct out *out, struct onehop_error *error)
{
	const struct request *request = &prefetch->request;
	struct copy *copy = &prefetch->copy;
	copy->to = request->to;
	copy->checksum = request->checksum;
	copy->verify = !given(request, OPT_NO_VERIFY);
	copy->force = given(request, OPT_FORCE);
	copy->quiet = given(request, OPT_QUIET);
	copy->threads = crew_threads(prefetch->runtime);
	/* A file that grows past a limit is to be an error that says so. */
	signal(SIGXFSZ, SIG_IGN);
	onehop_status status = copy_plan(copy, &prefetch->files, request->words[0], error);
	if (!status)
		status = copy_files(copy, &prefetch->files, error);
	if (status)
		return status;
	if (given(request, OPT_JSON)) {
		json_copy(out, prefetch);
		return ONEHOP_OK;
	}
	if (!copy->quiet)
		print_copy(out, prefetch);
	if (copy->checksum != CHECKSUM_NONE)
		print_manifest(out, prefetch);
	return ONEHOP_OK;
}

/* ------------------------------------------------------------------------------------------- */

static onehop_status
prefetch_and_print(struct prefetch *prefetch, struct out *out, struct onehop_error *error)
{
	const char *path = prefetch->request.words[0];
	int copies = prefetch->request.to != NULL;
	prefetch->machine.size = sizeof prefetch->machine;
	prefetch->copy.folder = -1;
	onehop_status status = onehop_model_open(prefetch->runtime, path, &prefetch->model, error);
	if (status)
		return status;
	status = onehop_runtime_query(prefetch->runtime, &prefetch->machine);
	if (!status)
		status = files_list(&prefetch->files, prefetch->model, path, copies, error);
	if (!status)
		status = copies ? run_copy(prefetch, out, error) : run_warm(prefetch, out, error);
	warm_drop(&prefetch->warm, &prefetch->files);
	copy_drop(&prefetch->copy);
	files_drop(&prefetch->files);
	onehop_model_close(prefetch->model);
	return status;
}

static int
check_options(const struct request *request)
{
	if (!request->to && given(request, OPT_NO_VERIFY))
		return say_usage("give --to", "--no-verify needs --to");
	if (!request->to && given(request, OPT_FILE_SUMS))
		return say_usage("give --to", "--checksum needs --to");
	if (request->to && !request->to[0])
		return say_usage("give a folder", "--to cannot be \"\"");
	return GO_ON;
}

/* What is left behind is worth a word. */
static int
say_end(const struct prefetch *prefetch, const struct onehop_error *error)
{
	if (error->status != ONEHOP_CANCELLED || !prefetch->request.to)
		return say_error(error);
	say("cancelled", "run it again to go on: what is copied stays");
	return EXIT_FAILED;
}

int
cmd_prefetch(struct out *out, int argc, char **argv)
{
	struct prefetch prefetch = {0};
	struct onehop_error error = {0};
	int go = request_parse(&prefetch.request, &prefetch_usage, out, argc, argv);
	if (go != GO_ON)
		return go;
	go = check_options(&prefetch.request);
	if (go == GO_ON) {
		onehop_status status =
			job_runtime(&prefetch.request, &prefetch.runtime, &error);
		if (!status)
			status = prefetch_and_print(&prefetch, out, &error);
		go = status ? say_end(&prefetch, &error) : EXIT_DONE;
	}
	onehop_runtime_destroy(prefetch.runtime);
	request_drop(&prefetch.request);
	return go;
}
