/* Tar archives, and the .npy headers and names in them. An input is a byte and the file. Bit 0 of
 * the byte: headers are given their right sums, so that what lies behind that check is reached; the
 * byte over 2: so many kilobytes at the end may be a trailer. */
#include "format/npy.h"
#include "format/tar.h"
#include "check.h"

static void
fix_sum(uint8_t *block)
{
	unsigned sum = 0;
	memset(block + 148, ' ', 8);
	for (int i = 0; i < 512; i++)
		sum += block[i];
	snprintf((char *)block + 148, 8, "%06o", sum);
}

static int
is_zero(const uint8_t *bytes, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		if (bytes[i])
			return 0;
	return 1;
}

/* A key and a field are what a name is made of, with a dot between. */
static void
check_name(const struct oh_tar_member *member)
{
	uint8_t *name = copy_of((const uint8_t *)member->name, member->name_bytes);
	struct oh_tar_key key;
	MUST(member->name_bytes <= OH_TAR_MOST_NAME);
	MUST(!memchr(name, 0, member->name_bytes));
	if (oh_tar_split((const char *)name, member->name_bytes, &key) == OH_TAR_PART) {
		MUST(key.key_bytes && key.field_bytes);
		MUST(key.field == key.key_bytes + 1);
		MUST(key.field + key.field_bytes == member->name_bytes);
		MUST(name[key.key_bytes] == '.');
		MUST(!memchr(name + key.field, '/', key.field_bytes));
	}
	free(name);
}

static void
check_npy(const uint8_t *payload, uint64_t bytes)
{
	struct oh_shard_type type;
	uint64_t have = bytes < OH_NPY_HEAD ? bytes : OH_NPY_HEAD, array;
	uint32_t element;
	uint8_t *head = copy_of(payload, have);
	if (oh_npy_type(head, have, bytes, &type)) {
		MUST(oh_shard_dtype_name(type.dtype, &element));
		MUST(type.rank <= OH_SHARD_MAX_RANK);
		array = element;
		for (int i = 0; i < OH_SHARD_MAX_RANK; i++) {
			MUST(i < type.rank || type.shape[i] == 0);
			if (i < type.rank && (array == 0 || type.shape[i] == 0))
				array = 0;
			else if (i < type.rank)
				array *= type.shape[i];
		}
		MUST(type.data_offset + array == bytes);
	}
	free(head);
}

/* Headers come one after the other, and payloads lie behind them, within the file. */
static void
check_member(const struct oh_tar_member *member, uint64_t before, uint64_t size)
{
	MUST(member->begin == before || member->begin > before);
	MUST(member->begin % 512 == 0 && member->header % 512 == 0);
	MUST(member->begin <= member->header);
	MUST(member->offset == member->header + 512);
	MUST(member->offset <= size && member->bytes <= size - member->offset);
	MUST(member->type != 0 && member->type != '7');
	check_name(member);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct onehop_error error = {0};
	struct oh_tar tar;
	enum oh_tar_event event = OH_TAR_MORE;
	onehop_status status = ONEHOP_OK;
	uint64_t before = 0;
	if (size < 1)
		return 0;
	int fix = data[0] & 1;
	uint64_t tail = (uint64_t)(data[0] >> 2) << 10;
	data++;
	size--;
	check_npy(data, size);
	oh_tar_init(&tar, "fuzz.tar", size, tail < size ? size - tail : 0);
	while (!status && event != OH_TAR_END) {
		uint64_t at = tar.at;
		MUST(at <= size && tar.need <= size - at && tar.need <= OH_TAR_MOST_NEED);
		uint8_t *piece = copy_of(data + at, tar.need);
		/* What is a record's body no harm is done to: the walk is only another one. */
		if (fix && tar.need == 512 && !is_zero(piece, 512))
			fix_sum(piece);
		status = oh_tar_next(&tar, piece, &event, &error);
		free(piece);
		if (status || event == OH_TAR_END)
			break;
		MUST(tar.at >= at);
		if (event != OH_TAR_MEMBER)
			continue;
		check_member(&tar.member, before, size);
		check_npy(data + tar.member.offset, tar.member.bytes);
		before = tar.member.offset + tar.member.bytes;
	}
	if (status) {
		check_error(&error, status);
	} else {
		MUST(tar.end_at >= before && tar.end_at + 1024 <= size);
		MUST(is_zero(data + tar.end_at, 1024));
	}
	oh_tar_free(&tar);
	return 0;
}
