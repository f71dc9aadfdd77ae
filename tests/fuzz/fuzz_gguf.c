/* GGUF. An input is a byte, of how many bytes the first look is, two bytes, how many bytes follow
 * what is here, then the file. Looking piece by piece and at once must come to the same end. */
#include "format/gguf.h"
#include "check.h"

/* Returns the status of reading the file from first bytes on; the input has size bytes of it. */
static onehop_status
parse(const uint8_t *data, size_t size, uint64_t file_bytes, uint64_t first, struct oh_table *table,
      struct onehop_error *error)
{
	uint64_t have = first < size ? first : size, need = 0;
	for (;;) {
		uint8_t *text = copy_of(data, have);
		onehop_status status =
		    oh_gguf_parse("fuzz.gguf", text, have, file_bytes, table, &need, error);
		if (status || !need)
			return status;
		MUST(need > have && need <= file_bytes && need <= OH_GGUF_MAX_HEADER);
		MUST(!table->text);
		MUST(memcmp(text, data, have) == 0);
		free(text);
		if (need > size) {
			/* What follows is not here: as if reading it failed. */
			error->status = 0;
			return -1;
		}
		have = need;
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct onehop_error error = {0}, other = {0};
	struct oh_table table = {0}, whole = {0};
	if (size < 3)
		return 0;
	const uint64_t first = data[0], file_bytes = size - 3 + (data[1] | (uint64_t)data[2] << 8);
	data += 3;
	size -= 3;
	onehop_status status = parse(data, size, file_bytes, first, &table, &error);
	onehop_status at_once = parse(data, size, file_bytes, size, &whole, &other);
	if (!status) {
		MUST(!at_once);
		MUST(table.count == whole.count && table.meta_count == whole.meta_count);
		MUST(table.text_bytes == whole.text_bytes);
		MUST(memcmp(table.text, whole.text, table.text_bytes) == 0);
		check_table(&table, file_bytes);
	} else if (status > 0) {
		check_error(&error, status);
	}
	if (status > 0 && at_once > 0 && first >= 4)
		MUST(status == at_once);
	oh_table_free(&table);
	oh_table_free(&whole);
	return 0;
}
