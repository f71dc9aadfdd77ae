/* Loads by onehop, as a program makes them: a new model, selection, plan and transfer each time, in
 * a runtime that stays and into memory that stays. The file is opened by its descriptor's name,
 * since its own is gone.
 */
#include "cold.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TENSOR_BYTES (UINT64_C(64) << 20)
#define POISON 0xA5

void
die_of(const struct onehop_error *error)
{
	fprintf(stderr, "cold: %s%s%s\n", error->message, error->remedy[0] ? "; " : "",
		error->remedy);
	exit(1);
}

/* ------------------------------------------------------------------------------------------- */
/* The file's head */

/* The header's text for a head of so many bytes. Its numbers only get shorter as that grows. */
static char *
header_text(uint64_t bytes, uint64_t head_bytes)
{
	char *text = NULL;
	size_t size = 0;
	uint64_t count = bytes / TENSOR_BYTES;
	FILE *file = open_memstream(&text, &size);
	if (!file)
		die(errno, "no memory for the header");
	for (uint64_t i = 0; i < count; i++) {
		uint64_t begin = i * TENSOR_BYTES, end = begin + TENSOR_BYTES;
		end -= i + 1 == count ? head_bytes : 0;
		fprintf(file, "%s\"%s.%llu\":{\"dtype\":\"BF16\",\"shape\":[%llu],\"data_offsets\":"
			"[%llu,%llu]}", i ? "," : "{", i < count / 2 ? "first" : "second",
			(unsigned long long)i, (unsigned long long)(end - begin) / 2,
			(unsigned long long)begin, (unsigned long long)end);
	}
	fputc('}', file);
	if (fclose(file) != 0)
		die(errno, "no memory for the header");
	return text;
}

uint8_t *
model_head(uint64_t bytes, uint64_t *head_bytes)
{
	char *text = header_text(bytes, 0);
	uint64_t length = (strlen(text) + 7) / 8 * 8;
	uint8_t *head = malloc(8 + length);
	if (!head || 8 + length > SLICE_MAX)
		die(ENOMEM, "no memory for the header");
	free(text);
	text = header_text(bytes, 8 + length);
	memcpy(head, &length, 8);
	memset(head + 8, ' ', length);
	memcpy(head + 8, text, strlen(text));
	free(text);
	*head_bytes = 8 + length;
	return head;
}

/* ------------------------------------------------------------------------------------------- */
/* Runtimes */

static void
set_options(struct onehop_runtime_options *options, const char *text)
{
	struct onehop_error error;
	char *copy = strdup(text), *rest = copy;
	if (!copy)
		die(ENOMEM, "no memory for options");
	for (char *name; (name = strsep(&rest, ",")) && *name;) {
		char *value = strchr(name, '=');
		if (!value)
			die(EINVAL, "%s is no NAME=VALUE", name);
		*value++ = '\0';
		if (onehop_runtime_options_set(options, name, value, &error))
			die_of(&error);
	}
	free(copy);
}

void
loader_make(struct loader *loader, const char *text, const char *device, uint64_t bytes,
	    const struct loader *other)
{
	struct onehop_error error;
	struct onehop_runtime_options options;
	struct onehop_buffer_info info = {.size = sizeof info};
	onehop_runtime_options_init(&options);
	set_options(&options, text);
	*loader = (struct loader){.name = text};
	if (onehop_runtime_create(&options, &loader->runtime, &error))
		die_of(&error);
	if (!other) {
		if (onehop_buffer_alloc(loader->runtime, device, bytes, &loader->memory, &error) ||
		    onehop_buffer_fill(loader->memory, 0, bytes, POISON, &error))
			die_of(&error);
		return;
	}
	onehop_buffer_query(other->memory, &info);
	if (onehop_buffer_wrap(loader->runtime, device, info.address, info.bytes, &loader->memory,
			       &error))
		die_of(&error);
}

void
loader_drop(struct loader *loader)
{
	onehop_buffer_free(loader->memory);
	onehop_runtime_destroy(loader->runtime);
}

/* ------------------------------------------------------------------------------------------- */
/* Loads */

struct job {
	struct onehop_model *model;
	struct onehop_selection *selection;
	struct onehop_plan *plan;
	struct onehop_transfer *transfer;
};

static void
job_run(struct job *job, struct loader *loader, const struct disk *disk, const char *pattern)
{
	char path[64];
	struct onehop_error error;
	struct onehop_select_options some;
	onehop_select_options_init(&some);
	some.patterns = &pattern;
	some.pattern_count = pattern != NULL;
	snprintf(path, sizeof path, "/proc/self/fd/%d", disk->fd);
	loader->last = (struct onehop_completion){.size = sizeof loader->last};
	if (onehop_model_open(loader->runtime, path, &job->model, &error) ||
	    onehop_model_select(job->model, &some, &job->selection, &error) ||
	    onehop_model_plan(job->selection, loader->memory, 0, &job->plan, &error) ||
	    onehop_transfer_prepare(job->plan, &job->transfer, &error) ||
	    onehop_transfer_start(job->transfer, NULL, &error) ||
	    onehop_transfer_wait(job->transfer, ONEHOP_FOREVER, &loader->last, &error))
		die_of(&error);
}

static void
job_end(struct job *job)
{
	onehop_transfer_destroy(job->transfer);
	onehop_plan_destroy(job->plan);
	onehop_selection_destroy(job->selection);
	onehop_model_close(job->model);
}

void
loader_load(struct loader *loader, const struct disk *disk, const char *pattern, struct pass *out)
{
	struct job job;
	meter_start(out);
	job_run(&job, loader, disk, pattern);
	meter_stop(out);
	job_end(&job);
}

/* One tensor, piece by piece through the ring. */
static void
compare_item(const struct loader *loader, const struct disk *disk, const struct onehop_item *item,
	     uint64_t offset)
{
	struct onehop_error error;
	for (uint64_t at = 0; at < item->bytes;) {
		uint64_t bytes = item->bytes - at < SLICE_MAX ? item->bytes - at : SLICE_MAX;
		if (onehop_buffer_read(loader->memory, item->arena_offset + at, disk->ring, bytes,
				       &error))
			die_of(&error);
		if (!disk_holds(disk, disk->ring, bytes, offset + at))
			die(EIO, "wrong bytes in a load of %s",
			    *loader->name ? loader->name : "defaults");
		at += bytes;
	}
}

void
loader_verify(struct loader *loader, const struct disk *disk, const char *pattern)
{
	struct job job;
	struct onehop_error error;
	struct onehop_buffer_info memory = {.size = sizeof memory};
	struct onehop_selection_info all = {.size = sizeof all};
	onehop_buffer_query(loader->memory, &memory);
	if (onehop_buffer_fill(loader->memory, 0, memory.bytes, POISON, &error))
		die_of(&error);
	job_run(&job, loader, disk, pattern);
	onehop_selection_query(job.selection, &all);
	if (all.bytes < disk->bytes / 2 - disk->head_bytes)
		die(EIO, "tensors are missing");
	for (uint64_t i = 0; i < all.count; i++) {
		struct onehop_item item = {.size = sizeof item};
		struct onehop_tensor tensor = {.size = sizeof tensor};
		onehop_selection_at(job.selection, i, &item);
		onehop_model_at(job.model, item.tensor, &tensor);
		compare_item(loader, disk, &item, tensor.offset);
	}
	job_end(&job);
}
