/* safetensors. An input is 8 bytes, how long the data are, then the header; as a whole it is also
 * given to the judge of the length field as a file's head. */
#include "format/safetensors.h"
#include "check.h"

static void
fuzz_length(const uint8_t *data, size_t size)
{
	struct onehop_error error = {0};
	uint64_t length = 0;
	size_t head = size < OH_HEAD_BYTES ? size : OH_HEAD_BYTES;
	uint8_t *copy = copy_of(data, head);
	onehop_status status =
	    oh_safetensors_length("fuzz.safetensors", copy, head, size, &length, &error);
	free(copy);
	if (status)
		check_error(&error, status);
	else
		MUST(length > 0 && length <= size - 8 && length <= OH_SAFETENSORS_MAX_HEADER);
}

/* The data are covered exactly. */
static void
check_cover(const struct oh_table *table, uint64_t file_bytes)
{
	uint64_t end = 8 + table->text_bytes;
	for (uint64_t i = 0; i < table->count; i++) {
		MUST(table->entries[i].begin == end);
		end += table->entries[i].bytes;
	}
	MUST(end == file_bytes);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct onehop_error error = {0};
	struct oh_table table = {0};
	uint64_t bytes;
	fuzz_length(data, size);
	if (size < 9)
		return 0;
	memcpy(&bytes, data, 8);
	bytes &= UINT64_MAX >> 1;
	const uint64_t text_bytes = size - 8, file_bytes = 8 + text_bytes + bytes;
	onehop_status status =
	    oh_safetensors_parse("fuzz.safetensors", copy_of(data + 8, text_bytes), text_bytes,
				 file_bytes, &table, &error);
	if (status) {
		check_error(&error, status);
		MUST(!table.text);
		return 0;
	}
	check_table(&table, file_bytes);
	check_cover(&table, file_bytes);
	oh_table_free(&table);
	return 0;
}
