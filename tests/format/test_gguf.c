/* The GGUF reader: what loads, and as what. */
#include "gguf_file.h"

TEST(the_smallest_file_has_24_bytes)
{
	begin(3, 0, 0);
	CHECK_EQ(file.size, 24);
	CHECK_EQ(parse(), ONEHOP_OK);
	CHECK_EQ(table.count + table.meta_count, 0);
	CHECK(table.is_gguf);
	for (size_t cut = 0; cut < 24; cut++) {
		file.size = cut;
		REFUSED(MALFORMED, cut ? "truncated" : "empty");
	}
	oh_table_free(&table);
}

TEST(dimensions_are_given_outermost_first)
{
	begin(3, 3, 0);
	info("a", 3, DIMS(4, 3, 2), 0, 0);
	info("b", 1, DIMS(7), 1, 96);
	info("scalar", 0, DIMS(0), 28, 128);
	data(32, 136);
	CHECK_EQ(parse(), ONEHOP_OK);
	CHECK_STR(summary(), "a F32 [2,3,4] 160+96; b F16 [7] 256+14; scalar F64 [] 288+8");
	oh_table_free(&table);
}

TEST(tensors_are_sorted_by_their_place)
{
	begin(2, 3, 0);
	info("c", 1, DIMS(3), 24, 64);
	info("a", 1, DIMS(3), 24, 0);
	info("b", 1, DIMS(3), 24, 32);
	data(32, 67);
	CHECK_EQ(parse(), ONEHOP_OK);
	CHECK_STR(summary(), "a I8 [3] 128+3; b I8 [3] 160+3; c I8 [3] 192+3");
	oh_table_free(&table);
}

TEST(every_type_has_its_block)
{
	static const struct {
		uint32_t id, block, bytes;
		const char *name;
	} types[] = {
	    {0, 1, 4, "F32"},         {1, 1, 2, "F16"},         {2, 32, 18, "Q4_0"},
	    {3, 32, 20, "Q4_1"},      {6, 32, 22, "Q5_0"},      {7, 32, 24, "Q5_1"},
	    {8, 32, 34, "Q8_0"},      {9, 32, 36, "Q8_1"},      {10, 256, 84, "Q2_K"},
	    {11, 256, 110, "Q3_K"},   {12, 256, 144, "Q4_K"},   {13, 256, 176, "Q5_K"},
	    {14, 256, 210, "Q6_K"},   {15, 256, 292, "Q8_K"},   {16, 256, 66, "IQ2_XXS"},
	    {17, 256, 74, "IQ2_XS"},  {18, 256, 98, "IQ3_XXS"}, {19, 256, 50, "IQ1_S"},
	    {20, 32, 18, "IQ4_NL"},   {21, 256, 110, "IQ3_S"},  {22, 256, 82, "IQ2_S"},
	    {23, 256, 136, "IQ4_XS"}, {24, 1, 1, "I8"},         {25, 1, 2, "I16"},
	    {26, 1, 4, "I32"},        {27, 1, 8, "I64"},        {28, 1, 8, "F64"},
	    {29, 256, 56, "IQ1_M"},   {30, 1, 2, "BF16"},       {34, 256, 54, "TQ1_0"},
	    {35, 256, 66, "TQ2_0"},   {39, 32, 17, "MXFP4"},    {40, 64, 36, "NVFP4"},
	    {41, 128, 18, "Q1_0"},    {42, 64, 18, "Q2_0"},
	};
	for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
		char want[64];
		one(2, DIMS(2 * types[i].block, 3), types[i].id, 0, 6 * types[i].bytes);
		CHECK_EQ(parse(), ONEHOP_OK);
		snprintf(want, sizeof want, "blk.w %s [3,%u] 96+%u", types[i].name,
			 2 * types[i].block, 6 * types[i].bytes);
		CHECK_STR(summary(), want);
		if (types[i].block == 1)
			continue;
		one(2, DIMS(types[i].block / 2, 4), types[i].id, 0, 6 * types[i].bytes);
		REFUSED(MALFORMED, "tensor info 0 \"blk.w\": the first dimension");
		CHECK_HOLDS(error.message, "is not a multiple of the block of");
	}
	oh_table_free(&table);
}

TEST(metadata_of_every_kind_are_found)
{
	struct oh_meta m;
	begin(3, 0, 15);
	key_number("u8", U8, 200, 1);
	key_number("i8", I8, 0xFD, 1);
	key_number("u16", U16, 9, 2);
	key_number("i16", I16, 9, 2);
	key_number("u32", U32, 9, 4);
	key_number("i32", I32, 9, 4);
	key_number("f32", F32, 9, 4);
	key_number("yes", BOOL, 1, 1);
	key("text", STRING);
	string("caf\xE9"); /* a value need not be UTF-8 */
	key("none", STRING);
	string("");
	key_number("u64", U64, UINT64_C(1) << 63, 8);
	key_number("i64", I64, 9, 8);
	key_number("f64", F64, 9, 8);
	key("list", ARRAY);
	number(STRING, 4);
	number(2, 8);
	string("<s>");
	string("");
	key("empty", ARRAY);
	number(U32, 4);
	number(0, 8);
	CHECK_EQ(parse(), ONEHOP_OK);
	CHECK_EQ(table.meta_count, 15);
	oh_table_meta_at(&table, 0, &m);
	CHECK(m.kind == OH_META_U8 && m.key_bytes == 2 && m.value_bytes == 1);
	CHECK_EQ(table.text[m.value], 200);
	oh_table_meta_at(&table, 8, &m);
	CHECK(m.kind == OH_META_STRING && m.value_bytes == 4);
	CHECK(memcmp(table.text + m.value, "caf\xE9", 4) == 0);
	oh_table_meta_at(&table, 9, &m);
	CHECK(m.kind == OH_META_STRING && m.value_bytes == 0);
	oh_table_meta_at(&table, 10, &m);
	CHECK(m.kind == OH_META_U64 && m.value_bytes == 8 && table.text[m.value + 7] == 0x80);
	oh_table_meta_at(&table, 13, &m);
	CHECK(m.kind == OH_META_ARRAY && m.element_kind == OH_META_STRING && m.count == 2);
	CHECK_EQ(m.value_bytes, 19);
	oh_table_meta_at(&table, 14, &m);
	CHECK(m.kind == OH_META_ARRAY && m.element_kind == OH_META_U32 && m.count == 0);
	CHECK_EQ(m.value_bytes, 0);
	CHECK(memcmp(table.text + m.key, "empty", m.key_bytes) == 0);
	oh_table_free(&table);
}

TEST(a_long_header_is_asked_for_piece_by_piece)
{
	for (uint64_t first = 0; first < 200; first += 7) {
		begin(3, 2, 2);
		key("tokens", ARRAY);
		number(STRING, 4);
		number(500, 8);
		for (int i = 0; i < 500; i++)
			string("token");
		key_number("n", U32, 1, 4);
		info("a", 1, DIMS(4), 0, 0);
		info("b", 1, DIMS(4), 0, 32);
		data(32, 48);
		CHECK_EQ(parse_from(first), ONEHOP_OK);
		CHECK_EQ(table.count, 2);
		CHECK_EQ(table.meta_count, 2);
		CHECK_EQ(table.entries[1].begin + 16, file.size);
	}
	oh_table_free(&table);
}

TEST(a_key_may_be_long)
{
	static char name[60001];
	begin(3, 0, 1);
	memset(name, 'k', sizeof name);
	name[60000] = '\0';
	key_number(name, U8, 1, 1);
	CHECK_EQ(parse(), ONEHOP_OK);
	oh_table_free(&table);
}

/* An array of one array of one ... of so many levels. */
static void
nested(int levels)
{
	begin(3, 0, 1);
	key("a.rows", ARRAY);
	for (int i = 0; i < levels; i++) {
		number(ARRAY, 4);
		number(1, 8);
	}
	number(U8, 4);
	number(2, 8);
	number(0, 2);
}

TEST(arrays_of_arrays_are_taken_to_a_depth)
{
	struct oh_meta m;
	nested(1);
	CHECK_EQ(parse(), ONEHOP_OK);
	oh_table_meta_at(&table, 0, &m);
	CHECK(m.kind == OH_META_ARRAY && m.element_kind == OH_META_ARRAY && m.count == 1);
	CHECK_EQ(m.value_bytes, 14);
	nested(16);
	CHECK_EQ(parse(), ONEHOP_OK);
	nested(17);
	REFUSED(UNSUPPORTED_DATA,
		"\"a.rows\": nested arrays (array of array) deeper than 16 levels");
	nested(5000);
	REFUSED(UNSUPPORTED_DATA, "nested arrays");
	begin(3, 0, 2);
	key("a.rows", ARRAY);
	number(ARRAY, 4);
	number(3, 8);
	for (int i = 0; i < 2; i++) {
		number(STRING, 4);
		number(1, 8);
		string("x");
	}
	number(ARRAY, 4);
	number(0, 8);
	key_number("after", U8, 3, 1);
	CHECK_EQ(parse(), ONEHOP_OK);
	oh_table_meta_at(&table, 1, &m);
	CHECK(memcmp(table.text + m.key, "after", 5) == 0);
	oh_table_free(&table);
}

TEST(the_alignment_moves_data_and_tensors)
{
	static const uint64_t good[] = {1, 2, 8, 64, 4096};
	for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
		aligned_file(U32, good[i], 4, good[i]);
		CHECK_EQ(parse(), ONEHOP_OK);
		CHECK_EQ(table.entries[0].begin % good[i], 0);
		CHECK_EQ(table.entries[1].begin, table.entries[0].begin + good[i]);
	}
	oh_table_free(&table);
}

TEST(a_dimension_may_be_zero)
{
	begin(3, 4, 0);
	info("z0", 2, DIMS(4, 0), 0, 0);
	info("z1", 1, DIMS(0), 2, 0);
	info("w", 1, DIMS(8), 0, 0);
	info("z2", 1, DIMS(0), 0, 32);
	data(32, 32);
	CHECK_EQ(parse(), ONEHOP_OK);
	CHECK_STR(summary(), "z0 F32 [0,4] 192+0; z1 Q4_0 [0] 192+0; w F32 [8] 192+32; "
			     "z2 F32 [0] 224+0");
	/* With nothing but such tensors, nor any padding behind the last. */
	begin(3, 1, 0);
	info("z", 1, DIMS(0), 0, 0);
	CHECK_EQ(parse(), ONEHOP_OK);
	CHECK_EQ(table.entries[0].begin, file.size);
	begin(3, 2, 0);
	info("w", 1, DIMS(5), 24, 0);
	info("z", 1, DIMS(0), 24, 32);
	data(32, 5);
	CHECK_EQ(parse(), ONEHOP_OK);
	CHECK_EQ(table.entries[1].begin, file.size);
	begin(3, 1, 0);
	info("z", 1, DIMS(0), 0, 3200);
	data(32, 32);
	REFUSED(MALFORMED, "past the end of the file");
	oh_table_free(&table);
}

TEST(a_part_of_a_set_says_which_it_is)
{
	begin(3, 0, 3);
	key_number("split.no", U16, 2, 2);
	key_number("split.count", U16, 3, 2);
	key_number("split.tensors.count", I32, 70000, 4);
	CHECK_EQ(parse(), ONEHOP_OK);
	CHECK(table.split_no == 2 && table.split_count == 3 && table.split_tensors == 70000);
	begin(3, 0, 2);
	key_number("split.no", U16, 3, 2);
	key_number("split.count", U16, 3, 2);
	REFUSED(MALFORMED, "split.no is 3, should be less than split.count, which is 3");
	begin(3, 0, 1);
	key("split.count", STRING);
	string("3");
	REFUSED(MALFORMED, "\"split.count\": the value is of type 8, should be an integer");
	begin(3, 0, 1);
	key_number("split.tensors.count", I32, 0xFFFFFFFF, 4);
	REFUSED(MALFORMED, "\"split.tensors.count\": the value is negative");
	begin(3, 0, 1);
	key_number("split.count", U32, 70000, 4);
	REFUSED(MALFORMED, "70000 is too large, at most 65535");
	oh_table_free(&table);
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
