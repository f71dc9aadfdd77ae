/* onehop load: a model onto a device, with what happened.
 *
 * Every repeat is a whole load: the model is opened, planned and the transfer prepared anew, into
 * the memory that the first one allocated, as a server that keeps its memory would. With --pin the
 * model is opened, and its page cache pinned, once before the repeats, and stays so over all of
 * them: what that took is told apart from the loads. The times printed are one repeat's, the one
 * whose whole is the median, so that they belong together. The last repeat stays for the checksums;
 * each is verified if --verify is given. What the machine did to the loads is read before the first
 * and after the last.
 */
#include "check.h"
#include "cli.h"

#include <stdlib.h>
#include <string.h>

const struct usage load_usage = {
	.name = "load",
	.operands = "PATH",
	.summary = "load a model's tensors onto a device",
	.about = "Loads the tensors of a .safetensors or .gguf file, of a folder or of a\n"
		 "*.safetensors.index.json into memory of a GPU or of the host, and says how\n"
		 "fast, by which route and why.\n",
	.words_min = 1,
	.words_max = 1,
	.option_count = 12,
	.options = {OPT_DEVICE, OPT_TENSORS, OPT_TP, OPT_TP_PLAN, OPT_TP_UNEVEN, OPT_REPEAT,
		    OPT_PIN, OPT_VERIFY, OPT_CHECKSUM, OPT_JSON, OPT_QUIET, OPT_OPTION},
};

struct load {
	struct request request;
	struct job job;
	struct job_times *times;  /* one a repeat */
	struct job_times *sorted; /* the same by their whole */
	struct job_times once;    /* with --pin: opening and allocating, before the repeats */
	uint64_t pin_ns;
	struct pressure_span pressure; /* over all repeats, checks included */
	struct sums sums;
	struct shape shape;
	int verified;
};

static double
rate(const struct load *load, const struct job_times *times)
{
	return times->whole ? (double)load->job.layout.bytes / (double)times->whole : 0;
}

/* How many cores it kept busy. */
static double
cores(const struct job_times *times)
{
	uint64_t cpu = times->cpu.user + times->cpu.system;
	return times->whole ? (double)cpu / (double)times->whole : 0;
}

static int
by_whole(const void *a, const void *b)
{
	uint64_t x = ((const struct job_times *)a)->whole, y = ((const struct job_times *)b)->whole;
	return x < y ? -1 : x > y;
}

/* The median repeat; of an even number, the slower of the two in the middle. */
static const struct job_times *
typical(const struct load *load)
{
	return &load->sorted[load->request.repeat / 2];
}

static onehop_status
load_once(struct load *load, uint64_t index, struct onehop_error *error)
{
	const struct request *request = &load->request;
	int quiet = given(request, OPT_QUIET), verify = given(request, OPT_VERIFY);
	enum checksum sum = index + 1 == request->repeat ? request->checksum : CHECKSUM_NONE;
	if (given(request, OPT_PIN))
		job_drop_but_model(&load->job);
	else
		job_drop_but_arena(&load->job);
	onehop_status status =
		job_load_measured(&load->job, request->words[0], verify, quiet, error);
	load->times[index] = load->job.times;
	if (!status && (verify || sum != CHECKSUM_NONE))
		status = check(&load->job, sum, verify, quiet, &load->sums, error);
	return status;
}

static onehop_status
load_all(struct load *load, struct onehop_error *error)
{
	const struct request *request = &load->request;
	uint64_t repeat = request->repeat;
	onehop_status status = ONEHOP_OK;
	load->times = calloc(repeat, sizeof *load->times);
	load->sorted = calloc(repeat, sizeof *load->sorted);
	if (!load->times || !load->sorted)
		return fail(error, ONEHOP_NO_MEMORY, 0, "no memory for the repeats' times");
	if (given(request, OPT_PIN)) {
		status = job_pin(&load->job, request->words[0], &load->pin_ns, error);
		load->once = load->job.times;
	}
	pressure_begin(&load->pressure);
	for (uint64_t i = 0; i < repeat && !status; i++)
		status = load_once(load, i, error);
	pressure_end(&load->pressure);
	load->verified = given(request, OPT_VERIFY) && !status;
	memcpy(load->sorted, load->times, repeat * sizeof *load->sorted);
	qsort(load->sorted, repeat, sizeof *load->sorted, by_whole);
	return status;
}

/* ------------------------------------------------------------------------------------------- */
/* As a table */

static void
print_rates(struct out *out, const struct load *load)
{
	char text[SIZE_TEXT];
	const struct job_times *times = typical(load);
	uint64_t repeat = load->request.repeat;
	label(out, "time");
	out_format(out, "%s%s\n", time_text(text, times->whole),
		   repeat > 1 ? " (the median load)" : "");
	label(out, "rate");
	out_format(out, "%.2f GB/s\n", rate(load, times));
	for (uint64_t i = 0; i < repeat && repeat > 1; i++) {
		label(out, i == 0 ? "repeats" : "");
		out_format(out, "%llu: %s, %.2f GB/s\n", (unsigned long long)i + 1,
			   time_text(text, load->times[i].whole), rate(load, &load->times[i]));
	}
	if (repeat > 1) {
		label(out, "min/median/max");
		out_format(out, "%.2f / %.2f / %.2f GB/s\n",
			   rate(load, &load->sorted[repeat - 1]), rate(load, times),
			   rate(load, &load->sorted[0]));
	}
}

static void
print_cpu(struct out *out, const struct job_times *times, uint32_t usable)
{
	char user[SIZE_TEXT], system[SIZE_TEXT];
	label(out, "cpu");
	out_format(out, "%s user, %s system: %.2f cores, %.1f %% of the %u usable\n",
		   time_text(user, times->cpu.user), time_text(system, times->cpu.system),
		   cores(times), 100 * cores(times) / usable, usable);
}

/* What came before the loads. */
static void
print_once(struct out *out, const struct load *load)
{
	char text[SIZE_TEXT];
	label(out, "once before");
	out_format(out, "%-12s%s\n", "open", time_text(text, load->once.open));
	label(out, "");
	out_format(out, "%-12s%s\n", "parse", time_text(text, load->once.parse));
	label(out, "");
	out_format(out, "%-12s%s\n", "allocate", time_text(text, load->once.allocate));
	label(out, "");
	out_format(out, "%-12s%s\n", "pin", time_text(text, load->pin_ns));
}

static void
print_phases(struct out *out, const struct load *load)
{
	char text[SIZE_TEXT];
	const struct job_times *times = typical(load);
	int pinned = given(&load->request, OPT_PIN);
	if (pinned)
		print_once(out, load);
	for (size_t i = 0; i < JOB_PHASES; i++) {
		uint64_t ns = job_phase(times, i);
		label(out, i == 0 ? "phases" : i == JOB_MOMENTS ? "since its start" : "");
		out_format(out, "%-12s%s\n", job_phases[i].words,
			   ns || (i < JOB_MOMENTS && !pinned) ? time_text(text, ns) : "none");
	}
}

static void
print_tensors(struct out *out, struct load *load)
{
	char text[SUM_TEXT];
	out_format(out, "\n%s of each tensor's bytes on %s\n", checksum_name(load->sums.algorithm),
		   load->job.device);
	for (uint64_t i = 0; i < load->job.layout.count; i++) {
		struct onehop_item item = job_item(&load->job, i);
		struct onehop_tensor tensor = job_tensor(load->job.model, item.tensor);
		out_text(out, sum_text(text, &load->sums, i));
		out_text(out, "  ");
		out_name(out, tensor.name, tensor.name_bytes);
		out_text(out, "\n");
	}
}

static void
print_table(struct out *out, struct load *load, const struct onehop_device_info *device,
	    const struct onehop_runtime_info *runtime)
{
	char exact[SIZE_TEXT], about[SIZE_TEXT];
	const struct job *job = &load->job;
	struct onehop_model_info model = job_model_info(job->model);
	label(out, "model");
	out_name(out, load->request.words[0], strlen(load->request.words[0]));
	out_format(out, "\n%-16s%s, %u file%s\n", "format", model.format, model.file_count,
		   model.file_count == 1 ? "" : "s");
	out_format(out, "%-16s%s%s%s\n", "device", job->device, device->name[0] ? ": " : "",
		   device->name);
	out_format(out, "%-16s%s\n", "tensors", grouped(exact, job->layout.count));
	out_format(out, "%-16s%s (%s)\n", "bytes", grouped(exact, job->layout.bytes),
		   size_text(about, job->layout.bytes));
	print_rates(out, load);
	print_cpu(out, typical(load), runtime->usable_cores);
	for (uint32_t i = 0; i < ONEHOP_ROUTE_COUNT; i++)
		if (job->completion.route_bytes[i])
			out_format(out, "%-16s%s: %s bytes\n", "route", onehop_route_name(i),
				   grouped(exact, job->completion.route_bytes[i]));
	print_reasons(out, job->planned.reasons | job->completion.reasons);
	print_phases(out, load);
	out_format(out, "%-16s%s at most\n", "pinned",
		   size_text(about, runtime->pinned_peak_bytes));
	if (given(&load->request, OPT_PIN))
		out_format(out, "%-16s%s bytes (%s) of page cache\n", "pinned files",
			   grouped(exact, runtime->file_pinned_bytes),
			   size_text(about, runtime->file_pinned_bytes));
	print_pressure(out, &load->pressure);
	if (load->verified)
		out_format(out, "%-16s%s\n", "verified",
			   "every byte, against a read of its own of the file");
	print_notes(out, job->model);
	if (load->sums.algorithm != CHECKSUM_NONE)
		print_tensors(out, load);
}

/* ------------------------------------------------------------------------------------------- */
/* As JSON */

static int
json_tensors(struct json *json, struct load *load)
{
	char text[SUM_TEXT];
	const struct job *job = &load->job;
	json_open(json, "tensors", '[');
	for (uint64_t i = 0; i < job->layout.count; i++) {
		struct onehop_item item = job_item(job, i);
		struct onehop_tensor tensor = job_tensor(job->model, item.tensor);
		if (job_shape(job->model, item.tensor, &item, &load->shape))
			return -1;
		json_open(json, NULL, '{');
		json_string(json, "name", tensor.name, tensor.name_bytes);
		json_text(json, "dtype", tensor.dtype);
		json_shape(json, &load->shape);
		json_number(json, "bytes", item.bytes);
		if (item.split_dim >= 0) {
			json_number(json, "split_dim", (uint64_t)item.split_dim);
			json_number(json, "split_begin", item.split_begin);
		}
		if (load->sums.algorithm != CHECKSUM_NONE)
			json_text(json, checksum_name(load->sums.algorithm),
				  sum_text(text, &load->sums, i));
		json_close(json);
	}
	json_close(json);
	return 0;
}

static void
json_cpu(struct json *json, const struct job_times *times, uint32_t usable)
{
	json_open(json, "cpu", '{');
	json_double(json, "user_seconds", (double)times->cpu.user / 1e9, 6);
	json_double(json, "system_seconds", (double)times->cpu.system / 1e9, 6);
	json_double(json, "cores", cores(times), 4);
	json_double(json, "percent_of_usable", 100 * cores(times) / usable, 2);
	json_close(json);
}

static void
json_pin(struct json *json, const struct load *load, const struct onehop_runtime_info *runtime)
{
	if (!given(&load->request, OPT_PIN)) {
		json_null(json, "pin");
		return;
	}
	json_open(json, "pin", '{');
	json_number(json, "file_pinned_bytes", runtime->file_pinned_bytes);
	json_number(json, "open_ns", load->once.open);
	json_number(json, "parse_ns", load->once.parse);
	json_number(json, "allocate_ns", load->once.allocate);
	json_number(json, "pin_ns", load->pin_ns);
	json_close(json);
}

static void
json_times(struct json *json, const struct load *load, uint32_t usable)
{
	const struct job_times *times = typical(load);
	json_double(json, "seconds", (double)times->whole / 1e9, 9);
	json_number(json, "bytes", load->job.layout.bytes);
	json_double(json, "gb_per_s", rate(load, times), 4);
	json_cpu(json, times, usable);
	json_open(json, "routes", '{');
	for (uint32_t i = 0; i < ONEHOP_ROUTE_COUNT; i++)
		json_number(json, onehop_route_name(i), load->job.completion.route_bytes[i]);
	json_close(json);
	json_reasons(json, load->job.planned.reasons | load->job.completion.reasons);
	json_phases(json, times);
}

static int
print_json(struct out *out, struct load *load, const struct onehop_runtime_info *runtime)
{
	struct json json;
	json_begin(&json, out);
	json_text(&json, "path", load->request.words[0]);
	json_text(&json, "device", load->job.device);
	json_text(&json, "format", job_model_info(load->job.model).format);
	if (json_tensors(&json, load))
		return -1;
	json_times(&json, load, runtime->usable_cores);
	json_number(&json, "peak_pinned_bytes", runtime->pinned_peak_bytes);
	json_pin(&json, load, runtime);
	json_open(&json, "repeats", '[');
	for (uint64_t i = 0; i < load->request.repeat; i++) {
		json_open(&json, NULL, '{');
		json_double(&json, "seconds", (double)load->times[i].whole / 1e9, 9);
		json_double(&json, "gb_per_s", rate(load, &load->times[i]), 4);
		json_cpu(&json, &load->times[i], runtime->usable_cores);
		json_close(&json);
	}
	json_close(&json);
	json_pressure(&json, &load->pressure);
	json_notes(&json, load->job.model);
	json_bool(&json, "verified", load->verified);
	json_end(&json);
	return 0;
}

/* ------------------------------------------------------------------------------------------- */

static onehop_status
load_and_print(struct load *load, struct out *out, struct onehop_error *error)
{
	struct onehop_device_info device = {.size = sizeof device};
	struct onehop_runtime_info runtime = {.size = sizeof runtime};
	/* Opening the device, which may start CUDA, is no part of a load. */
	onehop_status status =
		onehop_device_query(load->job.runtime, load->job.device, &device, error);
	if (!status)
		status = load_all(load, error);
	if (!status)
		status = onehop_runtime_query(load->job.runtime, &runtime);
	if (status)
		return status;
	if (given(&load->request, OPT_JSON)) {
		if (print_json(out, load, &runtime))
			status = fail(error, ONEHOP_NO_MEMORY, 0, "no memory for a shape");
	} else if (!given(&load->request, OPT_QUIET)) {
		print_table(out, load, &device, &runtime);
	}
	return status;
}

int
cmd_load(struct out *out, int argc, char **argv)
{
	struct load load = {0};
	struct onehop_error error = {0};
	struct onehop_runtime *runtime = NULL;
	int go = request_parse(&load.request, &load_usage, out, argc, argv);
	if (go != GO_ON)
		return go;
	onehop_status status = job_runtime(&load.request, &runtime, &error);
	if (!status) {
		job_begin(&load.job, runtime, job_device(&load.request, runtime), &load.request);
		status = load_and_print(&load, out, &error);
		job_drop(&load.job);
	}
	onehop_runtime_destroy(runtime);
	sums_drop(&load.sums);
	free(load.shape.dims);
	free(load.times);
	free(load.sorted);
	request_drop(&load.request);
	return status ? say_error(&error) : EXIT_DONE;
}
