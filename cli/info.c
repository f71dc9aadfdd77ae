/* onehop options and onehop version: what is set, what was compiled in and what was found. */
#include "cli.h"

#include <stdio.h>
#include <string.h>

const struct usage options_usage = {
	.name = "options",
	.operands = "",
	.summary = "list the runtime's options and where each value comes from",
	.about = "Lists each option of the runtime. A value comes from the first of: --option,\n"
		 "the environment (ONEHOP_ and the name in capitals), the file that ONEHOP_CONFIG\n"
		 "names (\"name = value\" lines), the default.\n",
	.option_count = 2,
	.options = {OPT_JSON, OPT_OPTION},
};

const struct usage version_usage = {
	.name = "version",
	.operands = "",
	.summary = "say what is compiled in and what was found on this machine",
	.about = "Prints the version, what was compiled in, and what the machine offers.\n",
	.option_count = 2,
	.options = {OPT_JSON, OPT_OPTION},
};

/* ------------------------------------------------------------------------------------------- */

static void
json_option(struct json *json, const struct onehop_option_value *option)
{
	json_open(json, NULL, '{');
	json_text(json, "name", option->name);
	json_text(json, "value", option->value);
	json_text(json, "origin", option->origin);
	json_text(json, "default", option->fallback);
	json_text(json, "range", option->range);
	json_text(json, "unit", option->unit);
	json_text(json, "doc", option->doc);
	json_close(json);
}

static void
print_option(struct out *out, const struct onehop_option_value *option)
{
	out_format(out, "%s = %s\n", option->name, option->value);
	out_format(out, "    origin: %s; default: %s; range: %s; unit: %s\n", option->origin,
		   option->fallback, option->range, option->unit);
	out_format(out, "    %s\n", option->doc);
}

static void
print_options(struct out *out, struct onehop_runtime *runtime, int as_json)
{
	struct json json;
	uint32_t count = onehop_runtime_option_count(runtime);
	if (as_json) {
		json_begin(&json, out);
		json_open(&json, "options", '[');
	}
	for (uint32_t i = 0; i < count; i++) {
		struct onehop_option_value option = {.size = sizeof option};
		if (onehop_runtime_option_at(runtime, i, &option))
			continue;
		if (as_json)
			json_option(&json, &option);
		else
			print_option(out, &option);
	}
	if (as_json) {
		json_close(&json);
		json_end(&json);
	}
}

/* A command that needs a runtime and no more. */
static int
with_runtime(const struct usage *usage, struct out *out, int argc, char **argv,
	     void (*print)(struct out *out, struct onehop_runtime *runtime, int as_json))
{
	struct request request;
	struct onehop_error error = {0};
	struct onehop_runtime *runtime = NULL;
	int go = request_parse(&request, usage, out, argc, argv);
	if (go != GO_ON)
		return go;
	onehop_status status = job_runtime(&request, &runtime, &error);
	if (!status)
		print(out, runtime, given(&request, OPT_JSON));
	onehop_runtime_destroy(runtime);
	request_drop(&request);
	return status ? say_error(&error) : EXIT_DONE;
}

int
cmd_options(struct out *out, int argc, char **argv)
{
	return with_runtime(&options_usage, out, argc, argv, print_options);
}

/* ------------------------------------------------------------------------------------------- */

/* error is NULL for a device that can be used. */
static void
json_device(struct json *json, const char *name, const struct onehop_device_info *info,
	    const struct onehop_error *error)
{
	json_open(json, NULL, '{');
	json_text(json, "device", name);
	if (error) {
		json_text(json, "error", error->message);
		json_text(json, "remedy", error->remedy);
	} else {
		json_text(json, "name", info->name);
		json_text(json, "uuid", info->uuid);
		json_text(json, "pci", info->pci);
		json_text(json, "driver", info->driver);
		json_number(json, "total_bytes", info->total_bytes);
		json_number(json, "free_bytes", info->free_bytes);
		json_bool(json, "batch_copy", info->batch_copy != 0);
	}
	json_close(json);
}

static void
print_device(struct out *out, const char *name, const struct onehop_device_info *info,
	     const struct onehop_error *error)
{
	char total[SIZE_TEXT], left[SIZE_TEXT];
	label(out, name);
	if (error) {
		out_text(out, "none: ");
		out_text(out, error->message);
		out_text(out, error->remedy[0] ? "; " : "");
		out_text(out, error->remedy);
		out_text(out, "\n");
		return;
	}
	out_format(out, "%s, %s, PCI %s, %s\n", info->name, info->driver, info->pci, info->uuid);
	label(out, "");
	out_format(out, "%s of memory, %s of it free; %s\n", size_text(total, info->total_bytes),
		   size_text(left, info->free_bytes),
		   info->batch_copy ? "many copies in one call" : "one call a copy");
}

/* As lines of a table, or into the list that is open in json if that is not NULL. */
static void
print_devices(struct out *out, struct json *json, struct onehop_runtime *runtime)
{
	char name[32];
	uint32_t count = onehop_cuda_device_count(runtime);
	/* With none, asking for the first one says why. */
	for (uint32_t i = 0; i < (count ? count : 1); i++) {
		struct onehop_device_info info = {.size = sizeof info};
		struct onehop_error error = {0};
		snprintf(name, sizeof name, "cuda:%u", i);
		int missing = onehop_device_query(runtime, name, &info, &error) != ONEHOP_OK;
		if (json)
			json_device(json, name, &info, missing ? &error : NULL);
		else
			print_device(out, name, &info, missing ? &error : NULL);
	}
}

static void
version_json(struct out *out, struct onehop_runtime *runtime,
	     const struct onehop_runtime_info *found)
{
	struct json json;
	const char *line = onehop_build_info();
	json_begin(&json, out);
	json_text(&json, "version", onehop_version());
	json_open(&json, "build", '[');
	while (*line) {
		size_t bytes = strcspn(line, "\n");
		json_string(&json, NULL, line, bytes);
		line += bytes + (line[bytes] != '\0');
	}
	json_close(&json);
	json_number(&json, "usable_cores", found->usable_cores);
	json_number(&json, "threads", found->threads);
	json_number(&json, "ring_bytes", found->ring_bytes);
	json_number(&json, "memory_bytes", found->memory_bytes);
	json_number(&json, "l3_bytes", found->l3_bytes);
	json_pressure_known(&json);
	json_open(&json, "devices", '[');
	print_devices(out, &json, runtime);
	json_close(&json);
	json_end(&json);
}

static void
version(struct out *out, struct onehop_runtime *runtime, int as_json)
{
	char text[SIZE_TEXT];
	struct onehop_runtime_info found = {.size = sizeof found};
	onehop_runtime_query(runtime, &found);
	if (as_json) {
		version_json(out, runtime, &found);
		return;
	}
	const char *build = onehop_build_info();
	size_t bytes = strlen(build);
	out_format(out, "onehop %s\n\ncompiled in\n", onehop_version());
	out_text(out, build);
	out_text(out, bytes && build[bytes - 1] == '\n' ? "\nfound here\n" : "\n\nfound here\n");
	out_format(out, "%-16s%u usable, %llu worker threads\n", "cores", found.usable_cores,
		   (unsigned long long)found.threads);
	out_format(out, "%-16s%s usable\n", "memory", size_text(text, found.memory_bytes));
	out_format(out, "%-16s%s\n", "ring", size_text(text, found.ring_bytes));
	out_format(out, "%-16s%s\n", "L3 cache",
		   found.l3_bytes ? size_text(text, found.l3_bytes)
				  : "not known: /sys does not tell, so the ring is not fitted to it");
	print_pressure_known(out);
	print_devices(out, NULL, runtime);
}

int
cmd_version(struct out *out, int argc, char **argv)
{
	return with_runtime(&version_usage, out, argc, argv, version);
}
