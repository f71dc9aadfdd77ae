/* SPDX-License-Identifier: Apache-2.0
 *
 * onehop/model.h: a model's tensors: open, select, lay out, load.
 *
 *   model      the tensors of a safetensors file, a sharded folder or its index, or a GGUF (set)
 *   selection  some of them, whole or one rank's part, and their places in one arena
 *   then       a buffer for the arena, a plan (onehop_model_plan), a transfer
 *
 * onehop_model_load() does all of it in one blocking call.
 */
#ifndef ONEHOP_MODEL_H
#define ONEHOP_MODEL_H

#include <onehop/transfer.h>

#ifdef __cplusplus
extern "C" {
#endif

struct onehop_model;
struct onehop_selection;

/* Dimensions held inside struct onehop_tensor. A tensor of higher rank gives the rest by
 * onehop_model_shape(). */
#define ONEHOP_SHAPE_INLINE 8

struct onehop_tensor {
	uint32_t size;
	uint32_t rank;
	const char *name;      /* UTF-8, ended by a NUL; lives with the model */
	uint64_t name_bytes;   /* a name may hold NULs too */
	const char *dtype;     /* "BF16", "F8_E4M3", "Q4_K", ...: static */
	uint64_t shape[ONEHOP_SHAPE_INLINE]; /* outermost first, row-major */
	uint64_t bytes;
	uint64_t offset;       /* in its file */
	uint32_t file;         /* index for onehop_model_file_at() */
	uint32_t block_elements; /* that share a block: 1; 32 to 256 in GGUF; F4 2, F6 4 */
	uint32_t block_bytes;
	uint32_t reserved;
};

/* Opens a model. Reads headers only. path is
 *   a file    .safetensors or .gguf; a name with another end claims nothing and the bytes decide.
 *             Any part of a split GGUF set (-00001-of-00003.gguf) stands for the set.
 *   an index  *.json: each tensor comes from the file that the map names.
 *   a folder  its model.safetensors.index.json, else its only *.safetensors.index.json, else
 *             model.safetensors, else all *.safetensors, else its GGUF file or set.
 * Fails with NOT_FOUND (a shard or part is missing, too), ACCESS, IO, LIMIT (open files),
 * NO_MEMORY, INVALID_ARGUMENT (a folder that leaves a choice); MALFORMED and UNSUPPORTED_DATA name
 * file, tensor, offset and rule. Blocks. Any thread. */
ONEHOP_API onehop_status onehop_model_open(struct onehop_runtime *runtime, const char *path,
					   struct onehop_model **model, struct onehop_error *error);

/* NULL is allowed. Selections and plans made from it must be gone. */
ONEHOP_API void onehop_model_close(struct onehop_model *model);

/* Pins the page cache of all of the model's files for a GPU and keeps it so: see onehop_file_pin().
 * Loads that are planned afterwards run at the link's rate with hardly any CPU. On failure nothing
 * is pinned that was not before. Blocks. Serial for one model. */
ONEHOP_API onehop_status onehop_model_pin(struct onehop_model *model, const char *device,
					  struct onehop_error *error);
/* Undoes it; plans that were made of the pinned model must be gone. Closing the model does it too. */
ONEHOP_API void onehop_model_unpin(struct onehop_model *model);

struct onehop_model_info {
	uint32_t size;
	uint32_t file_count;
	const char *format;    /* "safetensors" or "gguf" */
	uint64_t tensor_count;
	uint64_t tensor_bytes; /* sum of all tensors' bytes */
	uint64_t file_bytes;   /* sum of all files' sizes */
	uint64_t metadata_count;
	uint64_t note_count;   /* remarks, see onehop_model_note_at() */
	uint64_t open_ns;      /* spent opening files and reading headers */
	uint64_t parse_ns;     /* spent parsing and checking them */
};

/* Fill size first in all of these. OUT_OF_RANGE past the end. Any thread. */
ONEHOP_API onehop_status onehop_model_query(const struct onehop_model *model,
					    struct onehop_model_info *info);
ONEHOP_API onehop_status onehop_model_file_at(const struct onehop_model *model, uint32_t index,
					      struct onehop_file_info *info);

/* The file itself, for extents of the caller's own: it is the model's and lives with it. NULL past
 * the end. */
ONEHOP_API struct onehop_file *onehop_model_file(const struct onehop_model *model, uint32_t index);

/* Tensors in the order of their bytes: file after file, by offset. */
ONEHOP_API onehop_status onehop_model_at(const struct onehop_model *model, uint64_t index,
					 struct onehop_tensor *tensor);
/* Writes dimensions [0, capacity) of the tensor. */
ONEHOP_API onehop_status onehop_model_shape(const struct onehop_model *model, uint64_t index,
					    uint64_t *shape, uint64_t capacity);
/* Index of a tensor by name. NO_SUCH_TENSOR names the nearest one. */
ONEHOP_API onehop_status onehop_model_find(const struct onehop_model *model, const char *name,
					   uint64_t name_bytes, uint64_t *index,
					   struct onehop_error *error);

/* Metadata in the file's order: safetensors' __metadata__ (kind "string"), GGUF's keys. */
struct onehop_metadata {
	uint32_t size;
	uint32_t file;         /* that it stands in: each file of a model has its own */
	const char *key;       /* not ended by a NUL, nor is the text */
	uint64_t key_bytes;
	const char *kind;      /* "string", "u32", "f32", "bool", ..., "array" */
	const char *text;      /* the value as UTF-8; arrays are summed up: "[32000 x string]" */
	uint64_t text_bytes;   /* 0 bytes for an empty string */
};
/* The text of a value that is no string is written into scratch (NUL-ended, at most capacity bytes;
 * 64 are enough). */
ONEHOP_API onehop_status onehop_model_metadata_at(const struct onehop_model *model, uint64_t index,
						  struct onehop_metadata *metadata, char *scratch,
						  uint64_t capacity);

/* A remark that is no error, one sentence: tensors or files that were left out, and why. NULL past
 * the end. */
ONEHOP_API const char *onehop_model_note_at(const struct onehop_model *model, uint64_t index);

/* ------------------------------------------------------------------------------------------- */

/* Which dimension of the tensors that match is split among the ranks of a tensor-parallel group. */
struct onehop_tp_rule {
	const char *pattern;
	int64_t dim; /* negative: not split, each rank has it whole */
};

/* What happens to a dimension that the group does not divide. The innermost dimension of a type
 * with blocks counts in blocks. */
enum onehop_tp_uneven {
	ONEHOP_TP_REFUSE = 0, /* it is an error */
	ONEHOP_TP_SPLIT = 1,  /* the first (dim modulo size) ranks get one more than the others */
};

struct onehop_select_options {
	uint32_t size;
	uint32_t tp_uneven; /* enum onehop_tp_uneven */
	/* Names, or patterns with * (any run), ? (one character), [a-z], [!a-z]; what is a tensor's
	 * name as it stands is no pattern. A tensor that any of them matches is selected; each must
	 * match one at least. count 0: all tensors. */
	const char *const *patterns;
	uint64_t pattern_count;
	/* Tensor-parallel part: rank of size (1 for whole tensors). The first rule that matches
	 * counts; a tensor that none matches is whole on each rank. */
	uint32_t tp_rank;
	uint32_t tp_size;
	const struct onehop_tp_rule *tp_rules;
	uint64_t tp_rule_count;
	/* A JSON file {"pattern": dim, ...} whose rules come after tp_rules; NULL for none. */
	const char *tp_plan_path;
};

ONEHOP_API void onehop_select_options_init(struct onehop_select_options *options);

/* Selects tensors and lays them out. options: NULL for all, whole. Fails with NO_SUCH_TENSOR,
 * INVALID_ARGUMENT (a split that is uneven, cuts a block or byte, or names no dimension), MALFORMED
 * (the plan file). */
ONEHOP_API onehop_status onehop_model_select(struct onehop_model *model,
					     const struct onehop_select_options *options,
					     struct onehop_selection **selection,
					     struct onehop_error *error);
ONEHOP_API void onehop_selection_destroy(struct onehop_selection *selection);

/* One selected tensor, or this rank's part of it. */
struct onehop_item {
	uint32_t size;
	int32_t split_dim;     /* -1 if whole */
	uint64_t tensor;       /* index in the model */
	uint64_t split_begin;  /* first index of split_dim; its extent is in shape */
	uint64_t shape[ONEHOP_SHAPE_INLINE]; /* of the part: the tensor's but for split_dim */
	uint64_t split_extent; /* of split_dim, also beyond the inline shape; 0 if whole */
	uint64_t bytes;
	uint64_t arena_offset; /* where it lies in the arena */
};

struct onehop_selection_info {
	uint32_t size;
	uint32_t arena_alignment; /* of the arena's start, for the items to be aligned */
	uint64_t count;
	uint64_t bytes;       /* sum of the items' bytes */
	uint64_t arena_bytes; /* of the arena, padding included */
};

/* The layout: tensors in the file's order and spacing, each aligned to its element, to 16 bytes at
 * least, and to 256 from 32 KiB up, so that runs of tensors stay one copy. Fill size first. */
ONEHOP_API onehop_status onehop_selection_query(const struct onehop_selection *selection,
						struct onehop_selection_info *info);
ONEHOP_API onehop_status onehop_selection_at(const struct onehop_selection *selection,
					     uint64_t index, struct onehop_item *item);
/* Items [first, first + count), and the tensors that they are of, in one call. Either array may be
 * NULL. Fill the first element's size: the elements are that far apart, and each gets it as its
 * size. Nothing is written on failure: OUT_OF_RANGE past the end, INVALID_ARGUMENT for a size that
 * was not filled. */
ONEHOP_API onehop_status onehop_selection_read(const struct onehop_selection *selection,
					       uint64_t first, uint64_t count,
					       struct onehop_item *items,
					       struct onehop_tensor *tensors);

/* Where an item goes when the caller has memory of his own for each. */
struct onehop_destination {
	struct onehop_buffer *buffer;
	uint64_t offset;
};

/* A plan whose extents are the selection's items, in order, into the arena at arena_offset of the
 * buffer. The model must outlive it. Destroy it with onehop_plan_destroy(). */
ONEHOP_API onehop_status onehop_model_plan(struct onehop_selection *selection,
					   struct onehop_buffer *arena, uint64_t arena_offset,
					   struct onehop_plan **plan, struct onehop_error *error);

/* The same into one destination an item: destinations has as many entries as the selection. */
ONEHOP_API onehop_status onehop_model_plan_into(struct onehop_selection *selection,
						const struct onehop_destination *destinations,
						struct onehop_plan **plan,
						struct onehop_error *error);

/* Loads the whole selection: allocates the arena on the device, plans, transfers, waits. The caller
 * frees the buffer. completion may be NULL; fill its size first. */
ONEHOP_API onehop_status onehop_model_load(struct onehop_selection *selection, const char *device,
					   struct onehop_buffer **arena,
					   struct onehop_completion *completion,
					   struct onehop_error *error);

#ifdef __cplusplus
}
#endif
#endif
