/* A model that is open: what it holds, by index and by name. Nothing here reads a file or changes
 * the model, so any number of threads may ask at once.
 */
#include "format/fail.h"
#include "model/model.h"
#include "runtime/file.h"

#include <stdlib.h>

void
onehop_model_close(struct onehop_model *model)
{
	if (!model)
		return;
	for (uint64_t i = 0; i < model->note_count; i++)
		free(model->notes[i]);
	free(model->notes);
	oh_lookup_destroy(&model->names);
	free(model->tensors);
	for (uint64_t f = 0; f < model->file_count; f++) {
		oh_table_free(&model->files[f].table);
		onehop_file_close(model->files[f].file);
	}
	free(model->files);
	free(model->path);
	pthread_mutex_destroy(&model->names_lock);
	free(model);
}

void
onehop_model_unpin(struct onehop_model *model)
{
	for (uint64_t f = 0; model && f < model->file_count; f++)
		onehop_file_unpin(model->files[f].file);
}

onehop_status
onehop_model_pin(struct onehop_model *model, const char *device, struct onehop_error *error)
{
	onehop_status status = ONEHOP_OK;
	if (!model || !device)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "model or device is NULL");
	/* What is pinned already stays so if another file fails: it is marked. */
	uint8_t *before = calloc(model->file_count + 1, 1);
	uint64_t f = 0;
	if (!before)
		return oh_fail_no_memory(error, model->file_count + 1, "a model's files");
	for (; f < model->file_count && status == ONEHOP_OK; f++) {
		before[f] = (uint8_t)oh_file_is_pinned(model->files[f].file);
		status = onehop_file_pin(model->files[f].file, device, error);
	}
	while (status != ONEHOP_OK && f-- > 0)
		if (!before[f])
			onehop_file_unpin(model->files[f].file);
	free(before);
	return status;
}

onehop_status
onehop_model_query(const struct onehop_model *model, struct onehop_model_info *info)
{
	struct onehop_model_info ours;
	if (!model)
		return ONEHOP_INVALID_ARGUMENT;
	ours = (struct onehop_model_info){
		.file_count = (uint32_t)model->file_count,
		.format = model->format,
		.tensor_count = model->tensor_count,
		.tensor_bytes = model->tensor_bytes,
		.file_bytes = model->file_bytes,
		.metadata_count = model->meta_count,
		.note_count = model->note_count,
		.open_ns = model->open_ns,
		.parse_ns = model->parse_ns,
	};
	return oh_give(info, &ours, sizeof ours);
}

onehop_status
onehop_model_file_at(const struct onehop_model *model, uint32_t index,
		     struct onehop_file_info *info)
{
	struct onehop_file_info ours = {.size = sizeof ours};
	if (!model)
		return ONEHOP_INVALID_ARGUMENT;
	if (index >= model->file_count)
		return ONEHOP_OUT_OF_RANGE;
	onehop_file_query(model->files[index].file, &ours);
	return oh_give(info, &ours, sizeof ours);
}

struct onehop_file *
onehop_model_file(const struct onehop_model *model, uint32_t index)
{
	return model && index < model->file_count ? model->files[index].file : NULL;
}

onehop_status
onehop_model_at(const struct onehop_model *model, uint64_t index, struct onehop_tensor *tensor)
{
	struct onehop_tensor ours = {0};
	const struct oh_entry *entry;
	if (!model)
		return ONEHOP_INVALID_ARGUMENT;
	if (index >= model->tensor_count)
		return ONEHOP_OUT_OF_RANGE;
	entry = oh_model_entry(model, index);
	ours.rank = entry->rank;
	ours.name = oh_table_name(oh_model_table(model, index), entry);
	ours.name_bytes = entry->name_bytes;
	ours.dtype = entry->dtype->name;
	ours.bytes = entry->bytes;
	ours.offset = entry->begin;
	ours.file = model->tensors[index].file;
	ours.block_elements = entry->dtype->block_elements;
	ours.block_bytes = entry->dtype->block_bytes;
	oh_table_shape(oh_model_table(model, index), entry, ours.shape, ONEHOP_SHAPE_INLINE);
	return oh_give(tensor, &ours, sizeof ours);
}

onehop_status
onehop_model_shape(const struct onehop_model *model, uint64_t index, uint64_t *shape,
		   uint64_t capacity)
{
	if (!model || (!shape && capacity))
		return ONEHOP_INVALID_ARGUMENT;
	if (index >= model->tensor_count)
		return ONEHOP_OUT_OF_RANGE;
	oh_table_shape(oh_model_table(model, index), oh_model_entry(model, index), shape, capacity);
	return ONEHOP_OK;
}

onehop_status
oh_model_no_such_tensor(const struct onehop_model *model, const char *name, uint64_t bytes,
			struct onehop_error *error)
{
	char shown[OH_SHOWN];
	uint64_t nearest, near_bytes;
	const char *near;
	if (!error)
		return ONEHOP_NO_SUCH_TENSOR;
	oh_refuse(error, ONEHOP_NO_SUCH_TENSOR, model->path, "there is no tensor %s",
		  oh_show(shown, name, bytes));
	nearest = oh_lookup_nearest(&model->names, model->tensor_count, name, bytes);
	if (nearest == OH_LOOKUP_NONE)
		return ONEHOP_NO_SUCH_TENSOR;
	near = model->names.name_at(model, nearest, &near_bytes);
	oh_remedy(error, "the nearest name is %s", oh_show(shown, near, near_bytes));
	return ONEHOP_NO_SUCH_TENSOR;
}

onehop_status
onehop_model_find(const struct onehop_model *model, const char *name, uint64_t name_bytes,
		  uint64_t *index, struct onehop_error *error)
{
	uint64_t found;
	onehop_status status;
	if (!model || !name || !index)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "finding a tensor needs a model, a name and a place for the index");
	status = oh_model_index_names(model, error);
	if (status != ONEHOP_OK)
		return status;
	found = oh_lookup_find(&model->names, name, name_bytes);
	if (found == OH_LOOKUP_NONE)
		return oh_model_no_such_tensor(model, name, name_bytes, error);
	*index = found;
	return ONEHOP_OK;
}

const char *
onehop_model_note_at(const struct onehop_model *model, uint64_t index)
{
	return model && index < model->note_count ? model->notes[index] : NULL;
}
