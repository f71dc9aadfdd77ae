/* The names in a folder that can be a part of a model. */
#ifndef OH_MODEL_FOLDER_H
#define OH_MODEL_FOLDER_H

#include "base/error.h"

#include <stdint.h>

enum oh_folder_kind { OH_FOLDER_SAFETENSORS, OH_FOLDER_GGUF, OH_FOLDER_INDEX, OH_FOLDER_KINDS };

struct oh_folder_names {
	char **at; /* sorted by byte */
	uint64_t count;
	uint64_t room;
};

struct oh_folder {
	struct oh_folder_names names[OH_FOLDER_KINDS];
};

/* Lists the folder: names that end in .safetensors, .gguf or .safetensors.index.json, other folders
 * and hidden names left out. */
onehop_status oh_folder_read(const char *path, struct oh_folder *folder,
			     struct onehop_error *error);
void oh_folder_free(struct oh_folder *folder);

/* 1 if text ends in end and is longer. */
int oh_ends_in(const char *text, const char *end);

#endif
