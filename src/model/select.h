/* What a selection is inside this room. */
#ifndef OH_MODEL_SELECT_H
#define OH_MODEL_SELECT_H

#include "model/model.h"
#include "model/share.h"

/* A selected tensor: 16 bytes where it is whole. */
struct oh_item {
	uint32_t tensor;
	uint32_t part; /* index in parts + 1; 0 if it is whole */
	uint64_t place; /* in the arena */
};

struct onehop_selection {
	struct onehop_model *model;
	struct oh_item *items; /* in the model's order */
	uint64_t count;
	struct oh_part *parts; /* of the items that are split */
	uint64_t part_count;
	uint64_t part_room;
	uint64_t bytes;
	uint64_t arena_bytes;
};

/* tp.c: which dimension of a tensor is split. */
struct oh_tp_rules;

/* Reads the options' rules and the plan file's. NULL in *rules if there are none. */
onehop_status oh_tp_rules_make(const struct onehop_model *model,
			       const struct onehop_select_options *options,
			       struct oh_tp_rules **rules, struct onehop_error *error);
void oh_tp_rules_free(struct oh_tp_rules *rules);

/* This rank's part of the tensor by the first rule that matches it. *is_split is 0 if it is whole.
 * rules is not NULL. */
onehop_status oh_tp_part(struct oh_tp_rules *rules, uint64_t tensor, int *is_split,
			 struct oh_part *part, struct onehop_error *error);

/* The item's bytes in its file and place in the buffer, all but the buffer itself. */
struct onehop_extent oh_selection_extent(const struct onehop_selection *selection, uint64_t index);

#endif
