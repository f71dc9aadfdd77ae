/* Opening models in tests: one runtime, and checks of what is in a model. */
#ifndef OH_TESTS_MODEL_OPENED_H
#define OH_TESTS_MODEL_OPENED_H

#include "files.h"

#include <onehop/onehop.h>

static struct onehop_error error;

static struct onehop_runtime *test_runtime;

UNUSED static void
destroy_runtime(void)
{
	onehop_runtime_destroy(test_runtime);
}

UNUSED static struct onehop_runtime *
runtime(void)
{
	if (!test_runtime) {
		need(onehop_runtime_create(NULL, &test_runtime, &error) == ONEHOP_OK,
		     error.message);
		atexit(destroy_runtime);
	}
	return test_runtime;
}

/* NULL, and the error is in `error`, if it does not open. */
UNUSED static struct onehop_model *
open_model(const char *path)
{
	struct onehop_model *model = NULL;
	memset(&error, 0, sizeof error);
	if (onehop_model_open(runtime(), path, &model, &error) != ONEHOP_OK)
		return NULL;
	return model;
}

/* Opens a path that must be refused. Returns the status, or ONEHOP_OK and closes the model. Fails
 * the test if a descriptor is left open. */
UNUSED static onehop_status
refused(const char *path)
{
	int before, after;
	struct onehop_model *model;
	runtime();
	before = count_descriptors();
	model = open_model(path);
	if (model) {
		onehop_model_close(model);
		return ONEHOP_OK;
	}
	after = count_descriptors();
	if (before != after)
		test_fail(__FILE__, __LINE__, "%d descriptors left open", after - before);
	return error.status;
}

UNUSED static struct onehop_model_info
info_of(const struct onehop_model *model)
{
	struct onehop_model_info info = {.size = sizeof info};
	onehop_model_query(model, &info);
	return info;
}

UNUSED static struct onehop_tensor
tensor_at(const struct onehop_model *model, uint64_t index)
{
	struct onehop_tensor tensor = {.size = sizeof tensor};
	if (onehop_model_at(model, index, &tensor) != ONEHOP_OK)
		tensor.name = "(none)";
	return tensor;
}

UNUSED static struct onehop_tensor
tensor_named(const struct onehop_model *model, const char *name)
{
	uint64_t index = UINT64_MAX;
	onehop_model_find(model, name, strlen(name), &index, NULL);
	return tensor_at(model, index);
}

/* The last part of the path of the tensor's file. */
UNUSED static const char *
file_name_of(const struct onehop_model *model, const struct onehop_tensor *tensor)
{
	struct onehop_file_info info = {.size = sizeof info};
	if (onehop_model_file_at(model, tensor->file, &info) != ONEHOP_OK)
		return "(none)";
	return strrchr(info.path, '/') ? strrchr(info.path, '/') + 1 : info.path;
}

/* 1 if the file holds, at the tensor's place, the bytes of its name and salt. */
UNUSED static int
holds(const struct onehop_model *model, const char *name, uint64_t salt)
{
	struct onehop_tensor tensor = tensor_named(model, name);
	struct onehop_file_info info = {.size = sizeof info};
	char *want, *got;
	int fd, same;
	if (!tensor.dtype || onehop_model_file_at(model, tensor.file, &info) != ONEHOP_OK)
		return 0;
	want = malloc(tensor.bytes + 1);
	got = malloc(tensor.bytes + 1);
	fill(want, tensor.bytes, name, salt);
	fd = open(info.path, O_RDONLY | O_CLOEXEC);
	same = pread(fd, got, tensor.bytes, (off_t)tensor.offset) == (ssize_t)tensor.bytes &&
	       memcmp(want, got, tensor.bytes) == 0;
	close(fd);
	free(want);
	free(got);
	return same;
}

#endif
