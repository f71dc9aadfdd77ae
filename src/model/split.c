/* Split GGUF: one model in files <prefix>-00001-of-00003.gguf and so on, each with a header and
 * data of its own. Any part's path opens the whole set.
 *
 * The name says where the other parts are, the header (split.no, split.count, split.tensors.count)
 * says what they are, and the two have to agree: half a model is not a model, so a set with a part
 * missing, exchanged or from another set is refused. Where nothing says "split", the file is whole.
 */
#include "format/fail.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>

#define SUFFIX ".gguf"
/* -NNNNN-of-NNNNN */
#define NUMBERS_BYTES 15
/* Missing parts that are looked for before the count is left open. */
#define MISSING_MOST 1000

static int
five_digits(const char *text, uint32_t *value)
{
	*value = 0;
	for (int i = 0; i < 5; i++) {
		if (text[i] < '0' || text[i] > '9')
			return 0;
		*value = 10 * *value + (uint32_t)(text[i] - '0');
	}
	return 1;
}

int
oh_part_name_read(const char *name, const char *suffix, struct oh_part_name *part)
{
	size_t bytes = strlen(name), suffix_bytes = strlen(suffix);
	const char *numbers;
	if (bytes < NUMBERS_BYTES + suffix_bytes ||
	    strcmp(name + bytes - suffix_bytes, suffix) != 0)
		return 0;
	part->prefix_bytes = bytes - suffix_bytes - NUMBERS_BYTES;
	numbers = name + part->prefix_bytes;
	return numbers[0] == '-' && five_digits(numbers + 1, &part->number) &&
	       memcmp(numbers + 6, "-of-", 4) == 0 && five_digits(numbers + 10, &part->count);
}

int
oh_part_name_same_set(const char *a, const char *b, const char *suffix)
{
	struct oh_part_name first, second;
	return oh_part_name_read(a, suffix, &first) && oh_part_name_read(b, suffix, &second) &&
	       first.count == second.count && first.prefix_bytes == second.prefix_bytes &&
	       memcmp(a, b, first.prefix_bytes) == 0;
}

/* Writes the path of part number of the set that path, whose name is of that form, belongs to. The
 * paths have the same length, so there is room in a copy of path. */
static void
write_part_path(char *path, const struct oh_part_name *part, uint32_t number)
{
	char digits[8];
	snprintf(digits, sizeof digits, "%05u", number % 100000u);
	memcpy(path + part->prefix_bytes + 1, digits, 5);
}

static const char *
base_name(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

static onehop_status
check_all_there(char *path, const struct oh_part_name *part, struct onehop_error *error)
{
	struct oh_name_list missing = {{0}, 0, 0, 0, 0};
	for (uint32_t i = 1; i <= part->count; i++) {
		write_part_path(path, part, i);
		if (oh_model_is_there(path))
			continue;
		oh_name_list_add(&missing, base_name(path), strlen(base_name(path)));
		if (missing.count == MISSING_MOST) {
			missing.is_cut = 1;
			break;
		}
	}
	write_part_path(path, part, part->number);
	if (!missing.count)
		return ONEHOP_OK;
	oh_refuse(error, ONEHOP_NOT_FOUND, path,
		  "this is part %u of %u, and the set is not complete: missing %s", part->number,
		  part->count, oh_name_list_end(&missing));
	oh_remedy(error, "put all parts into one folder");
	return ONEHOP_NOT_FOUND;
}

/* Is the file at index of the model part number of count? */
static onehop_status
check_part(const struct onehop_model *model, uint64_t index, const char *path, uint32_t number,
	   uint32_t count, struct onehop_error *error)
{
	const struct oh_table *table = &model->files[index].table;
	if (table->split_count == count && table->split_no == number - 1)
		return ONEHOP_OK;
	if (!table->split_count)
		oh_refuse(error, ONEHOP_MALFORMED, path,
			  "the name says part %u of %u, but the header has no split.count", number,
			  count);
	else
		oh_refuse(error, ONEHOP_MALFORMED, path,
			  "the name says part %u of %u, but split.no is %u (the first is 0) and "
			  "split.count is %u",
			  number, count, table->split_no, table->split_count);
	oh_remedy(error, "give the file the name that it was made with");
	return ONEHOP_MALFORMED;
}

static onehop_status
check_tensor_count(const struct onehop_model *model, struct onehop_error *error)
{
	uint64_t count = 0;
	for (uint64_t f = 0; f < model->file_count; f++)
		count += model->files[f].table.count;
	for (uint64_t f = 0; f < model->file_count; f++) {
		struct onehop_file_info info = {.size = sizeof info};
		uint64_t said = model->files[f].table.split_tensors;
		if (said == count || !said)
			continue;
		onehop_file_query(model->files[f].file, &info);
		return oh_refuse(error, ONEHOP_MALFORMED, info.path,
				 "split.tensors.count is %llu, but the parts hold %llu tensors",
				 (unsigned long long)said, (unsigned long long)count);
	}
	return ONEHOP_OK;
}

/* Adds the parts around the one that is the model's only file, whose path is path (writable). */
static onehop_status
add_others(struct onehop_model *model, char *path, const struct oh_part_name *part,
	   struct onehop_error *error)
{
	struct oh_model_file given;
	for (uint32_t i = 1; i <= part->count; i++) {
		onehop_status status;
		if (i == part->number)
			continue;
		write_part_path(path, part, i);
		status = oh_model_add_file(model, path, OH_CLAIM_GGUF, error);
		if (status == ONEHOP_OK)
			status = check_part(model, model->file_count - 1, path, i, part->count,
					    error);
		if (status != ONEHOP_OK)
			return status;
	}
	/* The one that was there first goes to its place. */
	given = model->files[0];
	memmove(model->files, model->files + 1, (part->number - 1) * sizeof *model->files);
	model->files[part->number - 1] = given;
	return ONEHOP_OK;
}

/* Adds the other parts of the set that the model's only file is part of by its header or name. */
static onehop_status
complete_set(struct onehop_model *model, char *path, struct onehop_error *error)
{
	struct oh_part_name part;
	uint32_t count = model->files[0].table.split_count;
	onehop_status status;
	if (!oh_part_name_read(path, SUFFIX, &part) || part.number < 1 ||
	    part.number > part.count) {
		if (count <= 1)
			return ONEHOP_OK;
		oh_refuse(error, ONEHOP_MALFORMED, path,
			  "this is one of %u parts (split.count), but its name does not end in "
			  "-NNNNN-of-%05u.gguf, so the others cannot be found",
			  count, count);
		oh_remedy(error, "give the file the name that it was made with");
		return ONEHOP_MALFORMED;
	}
	if (part.count == 1 && count <= 1)
		return ONEHOP_OK;
	status = check_part(model, 0, path, part.number, part.count, error);
	if (status == ONEHOP_OK)
		status = check_all_there(path, &part, error);
	if (status == ONEHOP_OK)
		status = add_others(model, path, &part, error);
	if (status == ONEHOP_OK)
		status = check_tensor_count(model, error);
	return status;
}

onehop_status
oh_model_open_file(struct onehop_model *model, const char *path, enum oh_claim claim,
		   struct onehop_error *error)
{
	char *own;
	onehop_status status = oh_model_add_file(model, path, claim, error);
	if (status != ONEHOP_OK || !model->files[0].table.is_gguf)
		return status;
	own = strdup(path);
	if (!own)
		return oh_fail_no_memory(error, strlen(path) + 1, "a path");
	status = complete_set(model, own, error);
	free(own);
	return status;
}
