/* The GGUF reader: what is refused, and in which words. */
#include "gguf_file.h"

TEST(types_that_are_unknown_or_were_removed_are_named)
{
	static const uint32_t ids[] = {4, 5, 31, 32, 33, 36, 37, 38, 43, 200, UINT32_MAX};
	for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
		char part[64];
		one(1, DIMS(256), ids[i], 0, 2000);
		snprintf(part, sizeof part, "\"blk.w\": type %u is unknown, or was removed",
			 ids[i]);
		REFUSED(UNSUPPORTED_DATA, part);
	}
}

TEST(a_file_cut_anywhere_is_refused)
{
	begin(3, 2, 3);
	key("general.architecture", STRING);
	string("llama");
	key("list", ARRAY);
	number(U16, 4);
	number(3, 8);
	number(0, 6);
	key_number("yes", BOOL, 1, 1);
	info("a", 2, DIMS(2, 2), 0, 0);
	info("b", 1, DIMS(4), 0, 32);
	data(32, 48);
	CHECK_EQ(parse(), ONEHOP_OK);
	const size_t whole = file.size;
	for (size_t cut = 0; cut < whole; cut++) {
		file.size = cut;
		CHECK_EQ(parse_from(cut / 2), ONEHOP_MALFORMED);
		CHECK_HOLDS(error.message, cut ? "truncated" : "empty");
		CHECK_EQ(parse(), ONEHOP_MALFORMED);
	}
}

TEST(the_magic_and_version_are_checked)
{
	begin(1, 0, 0);
	REFUSED(UNSUPPORTED_DATA, "GGUF version 1 is not supported, 2 and 3 are");
	begin(0, 0, 0);
	REFUSED(UNSUPPORTED_DATA, "GGUF version 0");
	begin(4, 0, 0);
	REFUSED(UNSUPPORTED_DATA, "GGUF version 4");
	begin(0x03000000, 0, 0);
	REFUSED(UNSUPPORTED_DATA, "a big-endian GGUF file (version 3 in the other byte order)");
	begin(3, 0, 0);
	memcpy(file.bytes, "tjgg", 4);
	REFUSED(MALFORMED, "the magic is \"tjgg\", should be \"GGUF\": this is a GGJT file");
	memcpy(file.bytes, "GGUf", 4);
	REFUSED(MALFORMED, "the magic is \"GGUf\", should be \"GGUF\"");
	memcpy(file.bytes, "FUGG", 4);
	REFUSED(MALFORMED, "a GGUF file in the other byte order");
	memcpy(file.bytes, "\0\0\0\0", 4);
	REFUSED(MALFORMED, "the magic is \"\\x00\\x00\\x00\\x00\"");
	file.size = 0;
	put("\x02\0\0\0\0\0\0\0{}", 10);
	REFUSED(MALFORMED, "this is a safetensors file, not a GGUF file");
	CHECK_HOLDS(error.remedy, ".safetensors");
	file.size = 0;
	put("version https://git-lfs.github.com/spec/v1\n", 43);
	REFUSED(MALFORMED, "a Git LFS pointer");
}

TEST(counts_are_believed_as_far_as_the_file_can_hold_them)
{
	begin(3, UINT64_C(1) << 40, 0);
	REFUSED(MALFORMED,
		"the tensor count (tensor_count) 1099511627776 reaches past the end of the file");
	begin(3, UINT64_MAX, 0);
	REFUSED(MALFORMED, "18446744073709551615");
	begin(3, 0, UINT64_C(1) << 63);
	REFUSED(MALFORMED, "the key count (metadata_kv_count) 9223372036854775808");
	begin(3, 1, 0);
	REFUSED(MALFORMED, "tensor count");
	begin(3, 0, 1);
	key("a.list", ARRAY);
	number(U8, 4);
	number(UINT64_MAX, 8);
	REFUSED(MALFORMED, "key 0 \"a.list\": the array's length 18446744073709551615 reaches");
	begin(3, 0, 1);
	key("a.text", STRING);
	number(UINT64_C(1) << 33, 8);
	put("abc", 3);
	REFUSED(MALFORMED,
		"\"a.text\": truncated: a string of 8589934592 bytes reaches past the end");
	begin(3, 0, 1);
	number(UINT64_MAX, 8);
	put("abcdefgh", 8);
	REFUSED(MALFORMED, "key 0: truncated: the key of 18446744073709551615 bytes");
	begin(3, 1, 0);
	number(UINT64_MAX - 7, 8);
	number(0, 20);
	REFUSED(MALFORMED, "tensor info 0: truncated: the tensor's name");
}

TEST(keys_are_checked)
{
	begin(3, 0, 1);
	key_number("", U32, 1, 4);
	number(0, 8);
	REFUSED(MALFORMED, "key 0: an empty key");
	begin(3, 0, 2);
	key_number("a.b", U8, 1, 1);
	key_number("a.b", U16, 2, 2);
	REFUSED(MALFORMED, "key 1 \"a.b\": duplicate key");
	begin(3, 0, 1);
	key_number("caf\xE9", U32, 1, 4);
	REFUSED(MALFORMED, "key 0 \"caf\\xe9\": the key is not UTF-8");
	begin(3, 0, 1);
	key_number("a.kind", 13, 1, 8);
	REFUSED(UNSUPPORTED_DATA, "\"a.kind\": the value type 13 is unknown");
	begin(3, 0, 1);
	key_number("a.kind", UINT32_MAX, 1, 8);
	REFUSED(UNSUPPORTED_DATA, "the value type 4294967295 is unknown");
	begin(3, 0, 1);
	key("a.list", ARRAY);
	number(99, 4);
	number(0, 8);
	REFUSED(UNSUPPORTED_DATA, "\"a.list\": the array's element type 99 is unknown");
	begin(3, 0, 1);
	key_number("a.flag", BOOL, 2, 1);
	REFUSED(MALFORMED, "\"a.flag\": a bool is 2, should be 0 or 1");
	begin(3, 0, 1);
	key("a.flags", ARRAY);
	number(BOOL, 4);
	number(3, 8);
	put("\1\0\xFF", 3);
	REFUSED(MALFORMED, "\"a.flags\": a bool is 255");
	file.bytes[file.size - 1] = 1;
	CHECK_EQ(parse(), ONEHOP_OK);
	oh_table_free(&table);
}

TEST(a_wrong_alignment_is_named)
{
	static const uint64_t bad[] = {0, 3, 12, 33, 0xFFFFFFFF};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		char part[64];
		aligned_file(U32, bad[i], 4, 32);
		snprintf(part, sizeof part,
			 "\"general.alignment\": alignment %" PRIu64 " is not a power of two",
			 bad[i]);
		REFUSED(MALFORMED, part);
	}
	aligned_file(U32, UINT64_C(1) << 30, 4, 32);
	REFUSED(UNSUPPORTED_DATA, "alignment 1073741824 is too large");
	aligned_file(U32, 1 << 20, 4, 32);
	REFUSED(MALFORMED, "alignment 1048576");
	aligned_file(I32, 32, 4, 32);
	REFUSED(MALFORMED, "the alignment is of value type 5, should be u32 (4)");
	aligned_file(U64, 32, 8, 32);
	REFUSED(MALFORMED, "should be u32");
	begin(3, 0, 1);
	key("general.alignment", STRING);
	string("32");
	REFUSED(MALFORMED, "\"general.alignment\": the alignment is of value type 8");
}

TEST(dimensions_are_checked)
{
	one(5, DIMS(1, 1, 1, 1, 1), 0, 0, 4);
	REFUSED(UNSUPPORTED_DATA, "\"blk.w\": n_dims is 5, at most 4");
	begin(3, 1, 0);
	string("blk.w");
	number(UINT32_MAX, 4);
	number(0, 20);
	REFUSED(UNSUPPORTED_DATA, "n_dims is 4294967295");
	one(2, DIMS(UINT64_C(1) << 32, UINT64_C(1) << 32), 24, 0, 4);
	REFUSED(MALFORMED, "overflow: the number of elements, up to dimension 1 of 4294967296");
	one(2, DIMS(UINT64_C(1) << 31, UINT64_C(1) << 32), 24, 0, 4);
	REFUSED(MALFORMED, "overflow");
	one(1, DIMS(UINT64_C(1) << 62), 0, 0, 4);
	REFUSED(MALFORMED, "overflow: 4611686018427387904 elements of F32 are too large");
	one(1, DIMS(UINT64_MAX), 24, 0, 4);
	REFUSED(MALFORMED, "dimension 0 is -1, a negative number");
	one(2, DIMS(0, UINT64_C(1) << 63), 24, 0, 4);
	REFUSED(MALFORMED, "dimension 1 is -9223372036854775808, a negative number");
	one(2, DIMS(31, 2), 2, 0, 36);
	REFUSED(MALFORMED, "the first dimension 31 is not a multiple of the block of Q4_0, 32");
	one(0, DIMS(1), 2, 0, 18);
	REFUSED(MALFORMED, "the first dimension 1 is not a multiple");
	one(4, DIMS(INT64_MAX, INT64_MAX, 0, INT64_MAX), 24, 0, 0);
	CHECK_EQ(parse(), ONEHOP_OK);
	CHECK_STR(summary(), "blk.w I8 [9223372036854775807,0,9223372036854775807,"
			     "9223372036854775807] 96+0");
	oh_table_free(&table);
}

TEST(tensors_lie_in_the_file_aligned_and_apart)
{
	one(1, DIMS(8), 0, 0, 31);
	REFUSED(MALFORMED, "\"blk.w\": truncated: 32 bytes at offset 0 of the data");
	one(1, DIMS(8), 0, 32, 32);
	REFUSED(MALFORMED, "truncated: 32 bytes at offset 32");
	one(1, DIMS(8), 0, UINT64_MAX - 31, 32);
	REFUSED(MALFORMED, "truncated: 32 bytes at offset 18446744073709551584");
	one(1, DIMS(1), 0, 16, 64);
	REFUSED(MALFORMED, "offset 16 is not a multiple of the alignment 32");
	begin(3, 2, 0);
	info("blk.a", 1, DIMS(16), 0, 0);
	info("blk.b", 1, DIMS(8), 0, 32);
	data(32, 64);
	REFUSED(MALFORMED, "tensors \"blk.a\" and \"blk.b\" overlap");
	begin(3, 2, 0);
	info("blk.a", 1, DIMS(8), 0, 32);
	info("blk.b", 1, DIMS(8), 0, 32);
	data(32, 64);
	REFUSED(MALFORMED, "overlap");
	begin(3, 2, 0);
	info("blk.a", 1, DIMS(8), 0, 0);
	info("blk.b", 1, DIMS(8), 0, 320);
	data(32, 400);
	CHECK_EQ(parse(), ONEHOP_OK); /* gaps and bytes behind are other readers' business */
	oh_table_free(&table);
}

TEST(tensor_names_are_checked)
{
	char name[80];
	memset(name, 'n', sizeof name);
	begin(3, 2, 0);
	info("blk.same", 1, DIMS(8), 0, 0);
	info("blk.same", 1, DIMS(8), 0, 32);
	data(32, 64);
	REFUSED(MALFORMED, "tensor info 1 \"blk.same\": duplicate name");
	begin(3, 1, 0);
	info("caf\xE9", 1, DIMS(8), 0, 0);
	data(32, 32);
	REFUSED(MALFORMED,
		"tensor info 0 \"caf\\xe9\": the tensor's name is not UTF-8 (byte 0xe9)");
	for (size_t bytes = 63; bytes < 66; bytes++) {
		name[bytes] = '\0';
		begin(3, 1, 0);
		info(name, 1, DIMS(8), 0, 0);
		data(32, 32);
		if (bytes <= 64)
			CHECK_EQ(parse(), ONEHOP_OK);
		else
			REFUSED(MALFORMED, "the tensor's name is 65 bytes long, at most 64");
		name[bytes] = 'n';
	}
	begin(3, 1, 0);
	info("", 1, DIMS(8), 0, 0);
	data(32, 32);
	CHECK_EQ(parse(), ONEHOP_OK);
	oh_table_free(&table);
}

TEST(an_error_is_not_needed)
{
	uint64_t need;
	uint8_t *text = malloc(4);
	memcpy(text, "GGUG", 4);
	CHECK_EQ(oh_gguf_parse("m", text, 4, 4, &table, &need, NULL), ONEHOP_MALFORMED);
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
