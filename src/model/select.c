/* Selecting tensors: by names and patterns, whole or one rank's part, each with its place in one
 * arena. A selection is a list in the model's order, so that its bytes are read in the files'
 * order; it is made once and does not change.
 */
#include "model/select.h"
#include "base/arith.h"
#include "format/fail.h"
#include "model/glob.h"
#include "model/layout.h"

#include <stddef.h>
#include <stdlib.h>

void
onehop_select_options_init(struct onehop_select_options *options)
{
	*options = (struct onehop_select_options){.size = sizeof *options, .tp_size = 1};
}

/* The caller's options, checked, as far as they know them, in *options. */
static onehop_status
take_options(const struct onehop_select_options *theirs, struct onehop_select_options *options,
	     struct onehop_error *error)
{
	onehop_select_options_init(options);
	if (!theirs)
		return ONEHOP_OK;
	if (theirs->size < offsetof(struct onehop_select_options, tp_plan_path) + sizeof(char *))
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "the selection's options were not filled by "
			       "onehop_select_options_init(): size is %u",
			       theirs->size);
	memcpy(options, theirs, oh_min(theirs->size, sizeof *options));
	if (!options->tp_size || options->tp_rank >= options->tp_size)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "rank %u of a tensor-parallel group of %u: ranks go from 0 to one "
			       "less than the size",
			       options->tp_rank, options->tp_size);
	if (options->tp_uneven > ONEHOP_TP_SPLIT)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "tp_uneven is %u: it is 0 or 1",
			       options->tp_uneven);
	if ((options->pattern_count && !options->patterns) ||
	    (options->tp_rule_count && !options->tp_rules))
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "the selection's options count patterns or rules that are NULL");
	return ONEHOP_OK;
}

/* Marks what the pattern matches. */
static onehop_status
choose_by(const struct onehop_model *model, const char *pattern, uint8_t *is_chosen,
	  struct onehop_error *error)
{
	uint64_t bytes = strlen(pattern), matches = 0;
	uint64_t exact = oh_lookup_find(&model->names, pattern, bytes);
	char shown[OH_SHOWN];
	if (exact != OH_LOOKUP_NONE) {
		is_chosen[exact] = 1;
		return ONEHOP_OK;
	}
	if (!oh_glob_is_pattern(pattern, bytes))
		return oh_model_no_such_tensor(model, pattern, bytes, error);
	for (uint64_t i = 0; i < model->tensor_count; i++) {
		const struct oh_entry *entry = oh_model_entry(model, i);
		if (!oh_glob_match(pattern, bytes, oh_table_name(oh_model_table(model, i), entry),
				   entry->name_bytes))
			continue;
		is_chosen[i] = 1;
		matches++;
	}
	if (matches)
		return ONEHOP_OK;
	oh_refuse(error, ONEHOP_NO_SUCH_TENSOR, model->path, "no tensor's name matches %s",
		  oh_show(shown, pattern, bytes));
	oh_remedy(error, "list the model to see its names");
	return ONEHOP_NO_SUCH_TENSOR;
}

/* *is_chosen: one byte a tensor, malloc'd; NULL if all are chosen. */
static onehop_status
choose(const struct onehop_model *model, const struct onehop_select_options *options,
       uint8_t **is_chosen, uint64_t *count, struct onehop_error *error)
{
	*is_chosen = NULL;
	*count = model->tensor_count;
	if (!options->pattern_count)
		return ONEHOP_OK;
	onehop_status indexed = oh_model_index_names(model, error);
	if (indexed != ONEHOP_OK)
		return indexed;
	*is_chosen = calloc(model->tensor_count ? model->tensor_count : 1, 1);
	if (!*is_chosen)
		return oh_fail_no_memory(error, model->tensor_count, "a selection");
	for (uint64_t i = 0; i < options->pattern_count; i++) {
		onehop_status status;
		if (!options->patterns[i])
			return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "patterns[%llu] is NULL",
				       (unsigned long long)i);
		status = choose_by(model, options->patterns[i], *is_chosen, error);
		if (status != ONEHOP_OK)
			return status;
	}
	*count = 0;
	for (uint64_t i = 0; i < model->tensor_count; i++)
		*count += (*is_chosen)[i];
	return ONEHOP_OK;
}

static onehop_status
append_part(struct onehop_selection *selection, const struct oh_part *part,
	    struct onehop_error *error)
{
	if (selection->part_count == selection->part_room) {
		uint64_t room = selection->part_room ? 2 * selection->part_room : 64;
		struct oh_part *grown = realloc(selection->parts, room * sizeof *grown);
		if (!grown)
			return oh_fail_no_memory(error, room * sizeof *grown, "the parts");
		selection->parts = grown;
		selection->part_room = room;
	}
	selection->parts[selection->part_count++] = *part;
	return ONEHOP_OK;
}

/* Appends the tensor, or this rank's part of it, behind the last item. */
static onehop_status
append(struct onehop_selection *selection, struct oh_layout *layout, struct oh_tp_rules *rules,
       uint64_t tensor, struct onehop_error *error)
{
	const struct oh_entry *entry = oh_model_entry(selection->model, tensor);
	struct oh_item *item = &selection->items[selection->count];
	uint64_t bytes = entry->bytes;
	struct oh_part part;
	int is_split = 0;
	onehop_status status = ONEHOP_OK;
	if (rules)
		status = oh_tp_part(rules, tensor, &is_split, &part, error);
	if (status == ONEHOP_OK && is_split) {
		status = append_part(selection, &part, error);
		bytes = part.rows * part.row_bytes;
	}
	if (status != ONEHOP_OK)
		return status;
	item->tensor = (uint32_t)tensor;
	item->part = is_split ? (uint32_t)selection->part_count : 0;
	/* The sum of whole tensors fits 64 bits, so this does. */
	selection->bytes += bytes;
	if (oh_layout_place(layout, selection->model->tensors[tensor].file, entry->begin, bytes,
			    bytes == entry->bytes, &item->place))
		return oh_refuse(error, ONEHOP_LIMIT, selection->model->path,
				 "the tensors do not fit one arena of 64-bit addresses");
	selection->count++;
	return ONEHOP_OK;
}

static onehop_status
fill(struct onehop_selection *selection, const struct onehop_select_options *options,
     struct onehop_error *error)
{
	struct onehop_model *model = selection->model;
	struct oh_tp_rules *rules = NULL;
	struct oh_layout layout = {0};
	uint8_t *is_chosen;
	uint64_t count;
	onehop_status status = choose(model, options, &is_chosen, &count, error);
	if (status == ONEHOP_OK)
		status = oh_tp_rules_make(model, options, &rules, error);
	if (status == ONEHOP_OK) {
		selection->items = malloc((count ? count : 1) * sizeof *selection->items);
		if (!selection->items)
			status = oh_fail_no_memory(error, count * sizeof *selection->items,
						   "a selection");
	}
	for (uint64_t i = 0; status == ONEHOP_OK && i < model->tensor_count; i++)
		if (!is_chosen || is_chosen[i])
			status = append(selection, &layout, rules, i, error);
	selection->arena_bytes = layout.end;
	oh_tp_rules_free(rules);
	free(is_chosen);
	return status;
}

onehop_status
onehop_model_select(struct onehop_model *model, const struct onehop_select_options *options,
		    struct onehop_selection **selection, struct onehop_error *error)
{
	struct onehop_select_options own;
	struct onehop_selection *made;
	onehop_status status;
	if (!model || !selection)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "selecting tensors needs a model and a place for the selection");
	status = take_options(options, &own, error);
	if (status != ONEHOP_OK)
		return status;
	made = calloc(1, sizeof *made);
	if (!made)
		return oh_fail_no_memory(error, sizeof *made, "a selection");
	made->model = model;
	status = fill(made, &own, error);
	if (status != ONEHOP_OK) {
		onehop_selection_destroy(made);
		return status;
	}
	*selection = made;
	return ONEHOP_OK;
}

void
onehop_selection_destroy(struct onehop_selection *selection)
{
	if (!selection)
		return;
	free(selection->parts);
	free(selection->items);
	free(selection);
}

onehop_status
onehop_selection_query(const struct onehop_selection *selection, struct onehop_selection_info *info)
{
	struct onehop_selection_info ours;
	if (!selection)
		return ONEHOP_INVALID_ARGUMENT;
	ours = (struct onehop_selection_info){
		.arena_alignment = OH_LAYOUT_ARENA,
		.count = selection->count,
		.bytes = selection->bytes,
		.arena_bytes = selection->arena_bytes,
	};
	return oh_give(info, &ours, sizeof ours);
}

/* The item as this version describes it. index < count. */
static struct onehop_item
describe(const struct onehop_selection *selection, uint64_t index)
{
	const struct oh_item *from = &selection->items[index];
	const struct oh_entry *entry = oh_model_entry(selection->model, from->tensor);
	struct onehop_item ours = {
		.split_dim = -1,
		.tensor = from->tensor,
		.bytes = entry->bytes,
		.arena_offset = from->place,
	};
	oh_table_shape(oh_model_table(selection->model, from->tensor), entry, ours.shape,
		       ONEHOP_SHAPE_INLINE);
	if (from->part) {
		const struct oh_part *part = &selection->parts[from->part - 1];
		ours.split_dim = (int32_t)part->dim;
		ours.split_begin = part->begin;
		ours.split_extent = part->extent;
		ours.bytes = part->rows * part->row_bytes;
		if (part->dim < ONEHOP_SHAPE_INLINE)
			ours.shape[part->dim] = part->extent;
	}
	return ours;
}

onehop_status
onehop_selection_at(const struct onehop_selection *selection, uint64_t index,
		    struct onehop_item *item)
{
	struct onehop_item ours;
	if (!selection)
		return ONEHOP_INVALID_ARGUMENT;
	if (index >= selection->count)
		return ONEHOP_OUT_OF_RANGE;
	ours = describe(selection, index);
	return oh_give(item, &ours, sizeof ours);
}

/* The size that the caller filled; the elements of his array are that far apart. 0 for a NULL. */
static uint32_t
stride_of(const void *array)
{
	uint32_t bytes = 0;
	if (array)
		memcpy(&bytes, array, sizeof bytes);
	return bytes;
}

/* The element at index, with its size filled. */
static void *
element(void *array, uint32_t stride, uint64_t index)
{
	char *at = (char *)array + index * stride;
	memcpy(at, &stride, sizeof stride);
	return at;
}

onehop_status
onehop_selection_read(const struct onehop_selection *selection, uint64_t first, uint64_t count,
		      struct onehop_item *items, struct onehop_tensor *tensors)
{
	/* What oh_give() takes: a size and something after it. */
	const uint32_t least = 2 * sizeof(uint32_t);
	uint32_t item_stride, tensor_stride;
	if (!selection)
		return ONEHOP_INVALID_ARGUMENT;
	if (first > selection->count || count > selection->count - first)
		return ONEHOP_OUT_OF_RANGE;
	if (!count)
		return ONEHOP_OK;
	item_stride = stride_of(items);
	tensor_stride = stride_of(tensors);
	if ((items && item_stride < least) || (tensors && tensor_stride < least))
		return ONEHOP_INVALID_ARGUMENT;
	for (uint64_t i = 0; i < count; i++) {
		if (items) {
			struct onehop_item ours = describe(selection, first + i);
			oh_give(element(items, item_stride, i), &ours, sizeof ours);
		}
		if (tensors)
			onehop_model_at(selection->model, selection->items[first + i].tensor,
					element(tensors, tensor_stride, i));
	}
	return ONEHOP_OK;
}
