/* From a selection to bytes in memory: its items become a plan's extents, one each and in order, so
 * that an arrival's index is an item's. Everything that moves is the runtime's business.
 */
#include "base/arith.h"
#include "model/select.h"

#include <stdlib.h>

struct onehop_extent
oh_selection_extent(const struct onehop_selection *selection, uint64_t index)
{
	const struct onehop_model *model = selection->model;
	const struct oh_item *item = &selection->items[index];
	const struct oh_entry *entry = oh_model_entry(model, item->tensor);
	struct onehop_extent extent = {
		.file = model->files[model->tensors[item->tensor].file].file,
		.offset = entry->begin,
		.row_bytes = entry->bytes,
		.rows = 1,
		.row_stride = entry->bytes,
		.buffer_offset = item->place,
		.name = oh_table_name(oh_model_table(model, item->tensor), entry),
	};
	if (item->part) {
		const struct oh_part *part = &selection->parts[item->part - 1];
		extent.offset += part->offset;
		extent.row_bytes = part->row_bytes;
		extent.rows = part->rows;
		extent.row_stride = part->row_stride;
	}
	return extent;
}

/* Room for the selection's extents, malloc'd. */
static struct onehop_extent *
make_extents(const struct onehop_selection *selection, struct onehop_error *error)
{
	uint64_t bytes = selection->count * sizeof(struct onehop_extent);
	struct onehop_extent *extents = malloc(bytes ? bytes : 1);
	if (!extents) {
		oh_fail_no_memory(error, bytes, "a plan's extents");
		return NULL;
	}
	for (uint64_t i = 0; i < selection->count; i++)
		extents[i] = oh_selection_extent(selection, i);
	return extents;
}

onehop_status
onehop_model_plan(struct onehop_selection *selection, struct onehop_buffer *arena,
		  uint64_t arena_offset, struct onehop_plan **plan, struct onehop_error *error)
{
	struct onehop_buffer_info info = {.size = sizeof info};
	struct onehop_extent *extents;
	uint64_t end;
	onehop_status status;
	if (!selection || !arena || !plan)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "a plan needs a selection, a buffer and a place for the plan");
	status = onehop_buffer_query(arena, &info);
	if (status != ONEHOP_OK)
		return oh_fail(error, status, "the arena's buffer cannot be used");
	if (oh_add(arena_offset, selection->arena_bytes, &end) || end > info.bytes)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "an arena of %llu bytes at offset %llu does not fit a buffer of "
			       "%llu",
			       (unsigned long long)selection->arena_bytes,
			       (unsigned long long)arena_offset, (unsigned long long)info.bytes);
	extents = make_extents(selection, error);
	if (!extents)
		return ONEHOP_NO_MEMORY;
	for (uint64_t i = 0; i < selection->count; i++) {
		extents[i].buffer = arena;
		extents[i].buffer_offset += arena_offset;
	}
	status = onehop_plan_create(selection->model->runtime, extents, selection->count, plan,
				    error);
	free(extents);
	return status;
}

onehop_status
onehop_model_plan_into(struct onehop_selection *selection,
		       const struct onehop_destination *destinations, struct onehop_plan **plan,
		       struct onehop_error *error)
{
	struct onehop_extent *extents;
	char shown[OH_SHOWN];
	onehop_status status = ONEHOP_OK;
	if (!selection || !plan || (!destinations && selection->count))
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "a plan needs a selection, destinations and a place for the plan");
	extents = make_extents(selection, error);
	if (!extents)
		return ONEHOP_NO_MEMORY;
	for (uint64_t i = 0; i < selection->count && status == ONEHOP_OK; i++) {
		extents[i].buffer = destinations[i].buffer;
		extents[i].buffer_offset = destinations[i].offset;
		if (!destinations[i].buffer)
			status = oh_fail(error, ONEHOP_INVALID_ARGUMENT,
					 "destination %llu, of tensor %s, has no buffer",
					 (unsigned long long)i,
					 oh_show(shown, extents[i].name, strlen(extents[i].name)));
	}
	if (status == ONEHOP_OK)
		status = onehop_plan_create(selection->model->runtime, extents, selection->count,
					    plan, error);
	free(extents);
	return status;
}

onehop_status
onehop_model_load(struct onehop_selection *selection, const char *device,
		  struct onehop_buffer **arena, struct onehop_completion *completion,
		  struct onehop_error *error)
{
	struct onehop_buffer *buffer = NULL;
	struct onehop_plan *plan = NULL;
	struct onehop_transfer *transfer = NULL;
	onehop_status status;
	if (!selection || !device || !arena)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "a load needs a selection, a device and a place for the buffer");
	status = onehop_buffer_alloc(selection->model->runtime, device, selection->arena_bytes,
				     &buffer, error);
	if (status == ONEHOP_OK)
		status = onehop_model_plan(selection, buffer, 0, &plan, error);
	if (status == ONEHOP_OK)
		status = onehop_transfer_prepare(plan, &transfer, error);
	if (status == ONEHOP_OK)
		status = onehop_transfer_start(transfer, NULL, error);
	if (status == ONEHOP_OK)
		status = onehop_transfer_wait(transfer, ONEHOP_FOREVER, completion, error);
	onehop_transfer_destroy(transfer);
	onehop_plan_destroy(plan);
	if (status != ONEHOP_OK) {
		onehop_buffer_free(buffer);
		return status;
	}
	*arena = buffer;
	return ONEHOP_OK;
}
