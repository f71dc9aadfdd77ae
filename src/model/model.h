/* What a model and a selection are inside this room. */
#ifndef OH_MODEL_MODEL_H
#define OH_MODEL_MODEL_H

#include "base/error.h"
#include "base/give.h"
#include "base/sys.h"
#include "format/table.h"
#include "model/lookup.h"

#include <onehop/model.h>

#include <pthread.h>
#include <string.h>

struct oh_model_file {
	struct onehop_file *file;
	struct oh_table table;
	uint64_t bytes;
	uint64_t meta_first; /* metadata members of the files before it */
};

/* A tensor is an entry of a file's table: 8 bytes, however many a model has. */
struct oh_tensor_ref {
	uint32_t file;
	uint32_t entry;
};

struct onehop_model {
	struct onehop_runtime *runtime;
	char *path; /* as given to open */
	const char *format;
	struct oh_model_file *files;
	uint64_t file_count;
	uint64_t file_room;
	struct oh_tensor_ref *tensors; /* by file, then by offset */
	uint64_t tensor_count;
	struct oh_lookup names; /* of tensors; see oh_model_index_names */
	pthread_mutex_t names_lock;
	int has_names;
	char **notes;
	uint64_t note_count;
	uint64_t tensor_bytes;
	uint64_t file_bytes;
	uint64_t meta_count;
	uint64_t open_ns;
	uint64_t parse_ns;
	uint64_t lap; /* while it is opened: begin of the time not yet counted */
};

static inline const struct oh_table *
oh_model_table(const struct onehop_model *model, uint64_t index)
{
	return &model->files[model->tensors[index].file].table;
}

static inline const struct oh_entry *
oh_model_entry(const struct onehop_model *model, uint64_t index)
{
	return &oh_model_table(model, index)->entries[model->tensors[index].entry];
}

/* Counts the time since the last lap into *into, one of open_ns and parse_ns. */
static inline void
oh_model_lap(struct onehop_model *model, uint64_t *into)
{
	uint64_t now = oh_now_ns();
	*into += now - model->lap;
	model->lap = now;
}

/* Makes the table of tensors' names unless it is there. It is made when it is first needed, since a
 * load of everything needs none, or at open where a name may be in two files. Any thread. */
onehop_status oh_model_index_names(const struct onehop_model *model, struct onehop_error *error);

/* NO_SUCH_TENSOR for name, and the nearest name. The names must be indexed. */
onehop_status oh_model_no_such_tensor(const struct onehop_model *model, const char *name,
				      uint64_t bytes, struct onehop_error *error);

/* build.c: what the ways to open a model share. */

/* Which format a file's name claims. */
enum oh_claim { OH_CLAIM_NOTHING, OH_CLAIM_SAFETENSORS, OH_CLAIM_GGUF };

/* Opens the file, reads and parses its header, and appends it to the model's files. */
onehop_status oh_model_add_file(struct onehop_model *model, const char *path, enum oh_claim claim,
				struct onehop_error *error);
/* Makes every entry of every file a tensor. */
onehop_status oh_model_take_all(struct onehop_model *model, struct onehop_error *error);
/* Reads a whole file of at most `most` bytes; what says what it is. *text is malloc'd. */
onehop_status oh_model_read_text(struct onehop_runtime *runtime, const char *path, uint64_t most,
				 const char *what, uint8_t **text, uint64_t *bytes,
				 struct onehop_error *error);
onehop_status oh_model_note(struct onehop_model *model, struct onehop_error *error,
			    const char *format, ...) OH_PRINTF(3, 4);
/* malloc'd: name in the folder that path, a file's, lies in. NULL if there is no memory. */
char *oh_model_beside(const char *path, const char *name, size_t name_bytes);
/* 1 if a file or link of that name is there. */
int oh_model_is_there(const char *path);

/* Names put together for a message: the first three, then how many more. Start with all zero. */
struct oh_name_list {
	char text[448];
	size_t used;
	uint64_t count;
	uint64_t shown;
	int is_cut; /* there are more than count */
};
void oh_name_list_add(struct oh_name_list *list, const char *name, size_t bytes);
/* The text, which is then complete. */
const char *oh_name_list_end(struct oh_name_list *list);

struct oh_folder;

/* index.c: a sharded model by its index. folder: what is in the index's folder, for the note about
 * files that the map does not name; NULL if that is not known. */
onehop_status oh_model_open_index(struct onehop_model *model, const char *path,
				  const struct oh_folder *folder, struct onehop_error *error);

/* split.c: a file, with the other parts if it is one of a split GGUF set. */
onehop_status oh_model_open_file(struct onehop_model *model, const char *path,
				 enum oh_claim claim, struct onehop_error *error);

/* A name that ends in -NNNNN-of-NNNNN and a suffix. */
struct oh_part_name {
	size_t prefix_bytes; /* before -NNNNN */
	uint32_t number;     /* as written; parts of a set count from 1 */
	uint32_t count;
};
/* Returns 1 and fills *part if name is so. */
int oh_part_name_read(const char *name, const char *suffix, struct oh_part_name *part);
/* 1 if both are so and belong to one set. */
int oh_part_name_same_set(const char *a, const char *b, const char *suffix);

#endif
