/* onehop list: what is in a model, from its headers alone.
 *
 * Two passes over the tensors: the first finds the widths of the columns, so that nothing is kept
 * for each of them.
 */
#include "cli.h"
#include "signals.h"

#include <stdlib.h>
#include <string.h>

const struct usage list_usage = {
	.name = "list",
	.operands = "PATH",
	.summary = "list a model's tensors",
	.about = "Lists name, dtype, shape, bytes, file and offset of the tensors of a model, in\n"
		 "the order of their bytes. Reads headers only.\n",
	.words_min = 1,
	.words_max = 1,
	.option_count = 4,
	.options = {OPT_TENSORS, OPT_METADATA, OPT_JSON, OPT_OPTION},
};

/* The widest name that the other columns still line up behind. */
#define NAME_COLUMNS 72

struct list {
	struct request request;
	struct job job;
	struct shape shape;
	struct onehop_model_info model;
	size_t name_columns, dtype_columns, shape_columns, bytes_columns, offset_columns;
};

static size_t
digits(uint64_t number)
{
	size_t count = 1;
	while (number /= 10)
		count++;
	return count;
}

static size_t
shape_columns(const struct shape *shape)
{
	size_t columns = 2 + (shape->rank ? shape->rank - 1 : 0);
	for (uint64_t i = 0; i < shape->rank; i++)
		columns += digits(shape->dims[i]);
	return columns;
}

static void
widen(size_t *columns, size_t to)
{
	if (to > *columns)
		*columns = to;
}

static onehop_status
measure(struct list *list, struct onehop_error *error)
{
	for (uint64_t i = 0; i < list->job.layout.count; i++) {
		uint64_t index = job_item(&list->job, i).tensor;
		struct onehop_tensor tensor = job_tensor(list->job.model, index);
		size_t columns = name_columns(tensor.name, tensor.name_bytes);
		if (job_shape(list->job.model, index, NULL, &list->shape))
			return fail(error, ONEHOP_NO_MEMORY, 0, "no memory for a shape");
		widen(&list->name_columns, columns < NAME_COLUMNS ? columns : NAME_COLUMNS);
		widen(&list->dtype_columns, strlen(tensor.dtype));
		widen(&list->shape_columns, shape_columns(&list->shape));
		widen(&list->bytes_columns, digits(tensor.bytes));
		widen(&list->offset_columns, digits(tensor.offset));
	}
	return ONEHOP_OK;
}

static void
pad(struct out *out, size_t columns, size_t used)
{
	out_spaces(out, used < columns ? columns - used : 0);
}

static void
right(struct out *out, size_t columns, uint64_t number)
{
	pad(out, columns, digits(number));
	out_number(out, number);
	out_spaces(out, 2);
}

static void
print_row(struct out *out, const struct list *list, const struct onehop_tensor *tensor)
{
	struct onehop_file_info file = {.size = sizeof file};
	out_name(out, tensor->name, tensor->name_bytes);
	pad(out, list->name_columns + 2, name_columns(tensor->name, tensor->name_bytes));
	out_text(out, tensor->dtype);
	pad(out, list->dtype_columns + 2, strlen(tensor->dtype));
	print_shape(out, &list->shape);
	pad(out, list->shape_columns + 2, shape_columns(&list->shape));
	right(out, list->bytes_columns, tensor->bytes);
	right(out, list->offset_columns, tensor->offset);
	if (onehop_model_file_at(list->job.model, tensor->file, &file) == ONEHOP_OK) {
		const char *slash = strrchr(file.path, '/');
		const char *base = slash && slash[1] ? slash + 1 : file.path;
		out_name(out, base, strlen(base));
	}
	out_text(out, "\n");
}

static void
print_head(struct out *out, const struct list *list)
{
	static const char name[] = "name", dtype[] = "dtype", shape[] = "shape", bytes[] = "bytes",
			  offset[] = "offset";
	out_text(out, name);
	pad(out, list->name_columns + 2, strlen(name));
	out_text(out, dtype);
	pad(out, list->dtype_columns + 2, strlen(dtype));
	out_text(out, shape);
	pad(out, list->shape_columns + 2, strlen(shape));
	pad(out, list->bytes_columns, strlen(bytes));
	out_text(out, bytes);
	pad(out, list->offset_columns + 2, strlen(offset));
	out_text(out, offset);
	out_text(out, "  file\n");
}

/* One metadata entry; scratch holds the text of a value that is no string. */
#define SCRATCH 256
static struct onehop_metadata
metadata_at(const struct list *list, uint64_t index, char scratch[SCRATCH])
{
	struct onehop_metadata metadata = {
		.size = sizeof metadata, .key = "", .kind = "", .text = ""};
	onehop_model_metadata_at(list->job.model, index, &metadata, scratch, SCRATCH);
	return metadata;
}

static void
print_metadata(struct out *out, const struct list *list)
{
	char scratch[SCRATCH];
	out_text(out, "\nmetadata\n");
	for (uint64_t i = 0; i < list->model.metadata_count; i++) {
		struct onehop_metadata metadata = metadata_at(list, i, scratch);
		out_name(out, metadata.key, metadata.key_bytes);
		out_format(out, " (%s): ", metadata.kind);
		out_name(out, metadata.text, metadata.text_bytes);
		out_text(out, "\n");
	}
}

static onehop_status
print_table(struct out *out, struct list *list, struct onehop_error *error)
{
	char exact[SIZE_TEXT], about[SIZE_TEXT];
	list->name_columns = 4;
	list->dtype_columns = 5;
	list->shape_columns = 5;
	list->bytes_columns = 5;
	list->offset_columns = 6;
	onehop_status status = measure(list, error);
	if (status)
		return status;
	print_head(out, list);
	for (uint64_t i = 0; i < list->job.layout.count && !signals_caught(); i++) {
		uint64_t index = job_item(&list->job, i).tensor;
		struct onehop_tensor tensor = job_tensor(list->job.model, index);
		job_shape(list->job.model, index, NULL, &list->shape); /* there is room already */
		print_row(out, list, &tensor);
	}
	out_format(out, "\n%-16s%s, %u file%s of %s\n", "format", list->model.format,
		   list->model.file_count, list->model.file_count == 1 ? "" : "s",
		   size_text(about, list->model.file_bytes));
	out_format(out, "%-16s%s\n", "tensors", grouped(exact, list->job.layout.count));
	out_format(out, "%-16s%s (%s)\n", "bytes", grouped(exact, list->job.layout.bytes),
		   size_text(about, list->job.layout.bytes));
	print_notes(out, list->job.model);
	if (given(&list->request, OPT_METADATA))
		print_metadata(out, list);
	return ONEHOP_OK;
}

/* ------------------------------------------------------------------------------------------- */

static onehop_status
json_tensors(struct json *json, struct list *list, struct onehop_error *error)
{
	json_open(json, "tensors", '[');
	for (uint64_t i = 0; i < list->job.layout.count && !signals_caught(); i++) {
		uint64_t index = job_item(&list->job, i).tensor;
		struct onehop_tensor tensor = job_tensor(list->job.model, index);
		if (job_shape(list->job.model, index, NULL, &list->shape))
			return fail(error, ONEHOP_NO_MEMORY, 0, "no memory for a shape");
		json_open(json, NULL, '{');
		json_string(json, "name", tensor.name, tensor.name_bytes);
		json_text(json, "dtype", tensor.dtype);
		json_shape(json, &list->shape);
		json_number(json, "bytes", tensor.bytes);
		json_number(json, "file", tensor.file);
		json_number(json, "offset", tensor.offset);
		json_close(json);
	}
	json_close(json);
	return ONEHOP_OK;
}

static void
json_files(struct json *json, const struct list *list)
{
	json_open(json, "files", '[');
	for (uint32_t i = 0; i < list->model.file_count; i++) {
		struct onehop_file_info file = {.size = sizeof file};
		if (onehop_model_file_at(list->job.model, i, &file))
			continue;
		json_open(json, NULL, '{');
		json_text(json, "path", file.path);
		json_number(json, "bytes", file.bytes);
		json_close(json);
	}
	json_close(json);
}

static void
json_metadata(struct json *json, const struct list *list)
{
	char scratch[SCRATCH];
	json_open(json, "metadata", '[');
	for (uint64_t i = 0; i < list->model.metadata_count; i++) {
		struct onehop_metadata metadata = metadata_at(list, i, scratch);
		json_open(json, NULL, '{');
		json_string(json, "key", metadata.key, metadata.key_bytes);
		json_text(json, "kind", metadata.kind);
		json_string(json, "value", metadata.text, metadata.text_bytes);
		json_close(json);
	}
	json_close(json);
}

static onehop_status
print_json(struct out *out, struct list *list, struct onehop_error *error)
{
	struct json json;
	json_begin(&json, out);
	json_text(&json, "path", list->request.words[0]);
	json_text(&json, "format", list->model.format);
	json_files(&json, list);
	onehop_status status = json_tensors(&json, list, error);
	if (status)
		return status;
	json_number(&json, "tensor_count", list->job.layout.count);
	json_number(&json, "tensor_bytes", list->job.layout.bytes);
	json_number(&json, "file_bytes", list->model.file_bytes);
	if (given(&list->request, OPT_METADATA))
		json_metadata(&json, list);
	json_notes(&json, list->job.model);
	json_end(&json);
	return ONEHOP_OK;
}

int
cmd_list(struct out *out, int argc, char **argv)
{
	struct list list = {0};
	struct onehop_error error = {0};
	struct onehop_runtime *runtime = NULL;
	int go = request_parse(&list.request, &list_usage, out, argc, argv);
	if (go != GO_ON)
		return go;
	onehop_status status = job_runtime(&list.request, &runtime, &error);
	if (!status) {
		job_begin(&list.job, runtime, NULL, &list.request);
		status = job_open(&list.job, list.request.words[0], &error);
		if (!status) {
			list.model = job_model_info(list.job.model);
			status = given(&list.request, OPT_JSON) ? print_json(out, &list, &error)
								: print_table(out, &list, &error);
		}
		if (!status && signals_caught())
			status = fail(&error, ONEHOP_CANCELLED, 0, "cancelled");
		job_drop(&list.job);
	}
	onehop_runtime_destroy(runtime);
	free(list.shape.dims);
	request_drop(&list.request);
	return status ? say_error(&error) : EXIT_DONE;
}
