/* The safetensors reader: what loads and as what, what is refused and in which words. */
#include "format/safetensors.h"
#include "harness.h"

static struct oh_table table;
static struct onehop_error error;
static char said[sizeof error.message];

/* Parses a header of so many bytes before data bytes of data. The table is left in table. */
static onehop_status
parse_bytes(const void *header, size_t bytes, uint64_t data)
{
	uint8_t *text = malloc(bytes ? bytes : 1);
	memcpy(text, header, bytes);
	memset(&error, 0, sizeof error);
	oh_table_free(&table);
	onehop_status status =
	    oh_safetensors_parse("m.safetensors", text, bytes, 8 + bytes + data, &table, &error);
	snprintf(said, sizeof said, "%s", status ? error.message : "");
	return status;
}

static onehop_status
parse(const char *header, uint64_t data)
{
	return parse_bytes(header, strlen(header), data);
}

/* The same with so much space behind it that the short cut for usual entries is taken. */
static onehop_status
parse_roomy(const char *header, uint64_t data)
{
	static char roomy[1 << 16];
	snprintf(roomy, sizeof roomy, "%s%512s", header, "");
	return parse(roomy, data);
}

/* "NAME DTYPE [SHAPE] OFFSET+BYTES; ..." of table, offsets from the data's begin. */
static const char *
summary(void)
{
	static char out[4096];
	size_t to = 0;
	out[0] = '\0';
	for (uint64_t i = 0; i < table.count; i++) {
		const struct oh_entry *e = &table.entries[i];
		uint64_t dims[16];
		oh_table_shape(&table, e, dims, 16);
		to += (size_t)sprintf(out + to, "%s%.*s %s [", i ? "; " : "", (int)e->name_bytes,
				      oh_table_name(&table, e), e->dtype->name);
		for (uint32_t d = 0; d < e->rank && d < 16; d++)
			to += (size_t)sprintf(out + to, "%s%" PRIu64, d ? "," : "", dims[d]);
		to += (size_t)sprintf(out + to, "] %" PRIu64 "+%" PRIu64,
				      e->begin - 8 - table.text_bytes, e->bytes);
	}
	return out;
}

#define LOADS(header, data, want)                                                                  \
	do {                                                                                       \
		parse(header, data);                                                               \
		CHECK_STR(said, "");                                                               \
		CHECK_STR(summary(), want);                                                        \
		parse_roomy(header, data);                                                         \
		CHECK_STR(said, "");                                                               \
		CHECK_STR(summary(), want);                                                        \
		oh_table_free(&table);                                                             \
	} while (0)

#define REFUSED(header, data, part)                                                                \
	do {                                                                                       \
		CHECK_EQ(parse(header, data), ONEHOP_MALFORMED);                                   \
		CHECK_HOLDS(said, part);                                                           \
	} while (0)

/* One tensor w. */
#define W(dtype, shape, begin, end)                                                                \
	"{\"w\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end   \
	"]}}"
/* One member. */
#define T(name, dtype, shape, begin, end)                                                          \
	"\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin      \
	"," #end "]}"

TEST(no_tensors_are_a_model)
{
	LOADS("{}", 0, "");
	LOADS("{}      ", 0, "");
	LOADS("{}\r \t\n", 0, "");
	LOADS("\t\n{}\r ", 0, "");
	LOADS("{\"__metadata__\":{}}", 0, "");
	LOADS("{\"__metadata__\":null}", 0, "");
}

TEST(a_tensor_has_name_dtype_shape_and_place)
{
	LOADS(W("F32", "[2,3]", 0, 24), 24, "w F32 [2,3] 0+24");
	LOADS(W("F32", "[]", 0, 4), 4, "w F32 [] 0+4");
	LOADS(W("I32", "[2,0]", 0, 0), 0, "w I32 [2,0] 0+0");
	LOADS(W("U8", "[300,70000,1]", 0, 21000000), 21000000, "w U8 [300,70000,1] 0+21000000");
	LOADS(
	    " { \"w\" : { \"data_offsets\" : [ 0 , 8 ] , \"shape\" : [ 4 ] , \"dtype\" : \"BF16\" "
	    "} } ",
	    8, "w BF16 [4] 0+8");
}

TEST(entries_are_sorted_by_their_place)
{
	LOADS("{" T("c", "U8", "[9]", 6, 15) "," T("a", "U8", "[2]", 0, 2) "," T("b", "U8", "[4]",
										 2, 6) "}",
	      15, "a U8 [2] 0+2; b U8 [4] 2+4; c U8 [9] 6+9");
}

TEST(a_thousand_entries_in_any_order_are_sorted)
{
	enum { COUNT = 1000 };
	static char header[COUNT * 80];
	unsigned order[COUNT], seed = 12345;
	size_t to = 0;
	for (unsigned i = 0; i < COUNT; i++)
		order[i] = i;
	for (unsigned i = COUNT - 1; i > 0; i--) {
		seed = seed * 1103515245 + 12345;
		unsigned j = (seed >> 8) % (i + 1), swap = order[i];
		order[i] = order[j];
		order[j] = swap;
	}
	header[to++] = '{';
	for (unsigned i = 0; i < COUNT; i++)
		to += (size_t)sprintf(header + to,
				      "%s\"t%u\":{\"dtype\":\"U8\",\"shape\":[2],"
				      "\"data_offsets\":[%u,%u]}",
				      i ? "," : "", order[i], 2 * order[i], 2 * order[i] + 2);
	header[to++] = '}';
	CHECK_EQ(parse_bytes(header, to, 2 * COUNT), ONEHOP_OK);
	CHECK_EQ(table.count, COUNT);
	for (unsigned i = 0; i < COUNT; i++) {
		char name[16];
		int bytes = sprintf(name, "t%u", i);
		CHECK_EQ(table.entries[i].begin, 8 + to + 2 * i);
		CHECK_EQ(table.entries[i].name_bytes, bytes);
		CHECK(memcmp(oh_table_name(&table, &table.entries[i]), name, (size_t)bytes) == 0);
	}
	oh_table_free(&table);
}

TEST(every_dtype_has_its_size)
{
	static const struct {
		const char *name;
		unsigned bits;
	} dtypes[] = {
	    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
	    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
	    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
	    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
	    {"I64", 64},        {"U64", 64},
	};
	CHECK_EQ(sizeof dtypes / sizeof *dtypes, 22);
	for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
		char header[200];
		snprintf(header, sizeof header,
			 "{\"w\":{\"dtype\":\"%s\",\"shape\":[2,4],\"data_offsets\":[0,%u]}}",
			 dtypes[i].name, dtypes[i].bits);
		CHECK_EQ(parse(header, dtypes[i].bits), ONEHOP_OK);
		CHECK_STR(table.entries[0].dtype->name, dtypes[i].name);
		CHECK_EQ(table.entries[0].dtype->block_bytes * 8,
			 table.entries[0].dtype->block_elements * dtypes[i].bits);
		oh_table_free(&table);
	}
}

TEST(an_unknown_dtype_is_named)
{
	static const char *const names[] = {"f32", "F31", "", "F8", "C128", "F", "F320", "bf16"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		char header[200], part[64];
		snprintf(header, sizeof header,
			 "{\"w\":{\"dtype\":\"%s\",\"shape\":[1],\"data_offsets\":[0,4]}}",
			 names[i]);
		snprintf(part, sizeof part, "tensor \"w\": dtype \"%s\" is unknown", names[i]);
		CHECK_EQ(parse(header, 4), ONEHOP_UNSUPPORTED_DATA);
		CHECK_HOLDS(said, part);
	}
}

TEST(tensors_of_no_bytes_share_a_place)
{
	LOADS("{" T("e1", "F32", "[0]", 0, 0) "," T("b", "U8", "[5]", 0, 5) "," T(
		  "e2", "F16", "[3,0,2]", 5, 5) "," T("e3", "I64", "[0,7]", 5, 5) "}",
	      5, "e1 F32 [0] 0+0; b U8 [5] 0+5; e2 F16 [3,0,2] 5+0; e3 I64 [0,7] 5+0");
	LOADS("{" T("b", "U8", "[5]", 0, 5) "," T("z", "F4", "[0,4]", 0, 0) "}", 5,
	      "z F4 [0,4] 0+0; b U8 [5] 0+5");
	REFUSED("{" T("b", "U8", "[5]", 0, 5) "," T("z", "U8", "[0]", 3, 3) "}", 5,
		"tensors \"b\" and \"z\" overlap");
	REFUSED("{" T("b", "U8", "[5]", 0, 5) "," T("z", "U8", "[0]", 6, 6) "}", 5,
		"1 byte between tensor \"b\", which ends at 5, and tensor \"z\"");
}

TEST(members_that_nobody_knows_are_skipped)
{
	LOADS(
	    "{\"w\":{\"x\":{\"a\":[1,null,true,-2.5e3,\"}\"]},\"dtype\":\"U8\",\"shape\":[4],\"y\":"
	    "[[]],\"data_offsets\":[0,4],\"x\":1,\"x\":2}}",
	    4, "w U8 [4] 0+4");
	REFUSED("{\"w\":{\"x\":tru,\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4,
		"tensor \"w\": a word that is not");
}

TEST(names_are_any_string)
{
	LOADS("{" T("", "U8", "[1]", 0, 1) "," T("/abs/../x", "U8", "[1]", 1, 2) "," T(
		  "q\\\"\\\\\\u00e9\\ud83d\\ude00", "U8", "[1]", 2, 3) "}",
	      3, " U8 [1] 0+1; /abs/../x U8 [1] 1+1; q\"\\\xC3\xA9\xF0\x9F\x98\x80 U8 [1] 2+1");
	CHECK_EQ(parse("{" T("a\\u0000b", "U8", "[1]", 0, 1) "}", 1), ONEHOP_OK);
	CHECK_EQ(table.entries[0].name_bytes, 3);
	CHECK(memcmp(oh_table_name(&table, table.entries), "a\0b", 3) == 0);
	oh_table_free(&table);
	/* Two spellings of one accent are two names. */
	LOADS("{" T("\\u00e9", "U8", "[1]", 0, 1) "," T("e\\u0301", "U8", "[1]", 1, 2) "}", 2,
	      "\xC3\xA9 U8 [1] 0+1; e\xCC\x81 U8 [1] 1+1");
}

TEST(a_name_that_stands_twice_is_refused)
{
	REFUSED("{" T("w", "U8", "[1]", 0, 1) "," T("w", "U8", "[1]", 1, 2) "}", 2,
		"byte 62: duplicate name: tensor \"w\" stands twice");
	REFUSED("{" T("w", "U8", "[1]", 0, 1) "," T("w", "U8", "[1]", 0, 1) "}", 1,
		"duplicate name");
	REFUSED("{" T("w", "U8", "[0]", 0, 0) "," T("\\u0077", "U8", "[0]", 0, 0) "}", 0,
		"duplicate name: tensor \"w\"");
	REFUSED("{" T("", "U8", "[0]", 0, 0) "," T("", "U8", "[0]", 0, 0) "}", 0,
		"duplicate name: tensor \"\"");
}

TEST(a_field_that_stands_twice_is_refused)
{
	REFUSED("{\"w\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
		0, "tensor \"w\": duplicate dtype");
	REFUSED("{\"w\":{\"dtype\":\"U8\",\"shape\":[0],\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
		"tensor \"w\": duplicate shape");
	REFUSED("{\"w\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"data_offsets\":[0,"
		"0]}}",
		0, "tensor \"w\": duplicate data_offsets");
}

TEST(a_field_that_is_missing_is_named)
{
	REFUSED("{\"w\":{}}", 0, "tensor \"w\": dtype is missing");
	REFUSED("{\"w\":{\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
		"tensor \"w\": dtype is missing");
	REFUSED("{\"w\":{\"dtype\":\"U8\",\"data_offsets\":[0,0]}}", 0,
		"tensor \"w\": shape is missing");
	REFUSED("{\"w\":{\"dtype\":\"U8\",\"shape\":[0]}}", 0,
		"tensor \"w\": data_offsets is missing");
	REFUSED("{\"w\":{\"DTYPE\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
		"dtype is missing");
}

TEST(a_field_of_another_kind_is_named)
{
	REFUSED("{\"w\":{\"dtype\":3}}", 0, "tensor \"w\": dtype is a number, should be a string");
	REFUSED("{\"w\":{\"shape\":3}}", 0, "shape is a number, should be an array");
	REFUSED("{\"w\":{\"shape\":null}}", 0, "shape is null, should be an array");
	REFUSED("{\"w\":{\"shape\":[\"2\"]}}", 0,
		"shape: dimension is a string, should be a number");
	REFUSED("{\"w\":{\"shape\":[-1]}}", 0, "shape: dimension -1 is negative");
	REFUSED("{\"w\":{\"shape\":[2.0]}}", 0, "shape: dimension 2.0 is no plain integer");
	REFUSED("{\"w\":{\"shape\":[1e3]}}", 0, "shape: dimension 1e3 is no plain integer");
	REFUSED("{\"w\":{\"shape\":[[2]]}}", 0, "shape: dimension is an array");
	REFUSED("{\"w\":{\"shape\":[18446744073709551616]}}", 0, "does not fit 64 bits (overflow)");
	REFUSED("{\"w\":{\"data_offsets\":{}}}", 0,
		"data_offsets is an object, should be an array");
	REFUSED("{\"w\":{\"data_offsets\":[]}}", 0, "data_offsets holds 0 numbers, should be 2");
	REFUSED("{\"w\":{\"data_offsets\":[0]}}", 0, "data_offsets holds 1 numbers, should be 2");
	REFUSED("{\"w\":{\"data_offsets\":[0,1,2]}}", 0,
		"data_offsets holds 3 numbers, should be 2");
	REFUSED("{\"w\":{\"data_offsets\":[-16,0]}}", 0, "data_offsets: offset -16 is negative");
	REFUSED("{\"w\":{\"data_offsets\":[0,-0]}}", 0, "data_offsets: offset -0 is negative");
	REFUSED("{\"w\":{\"data_offsets\":[0,4.0]}}", 0, "data_offsets: offset 4.0 is no plain");
	REFUSED("{\"w\":{\"data_offsets\":[16,8]}}", 0, "data_offsets [16, 8] are reversed");
	REFUSED("{\"w\":[\"U8\",[0],[0,0]]}", 0, "tensor \"w\": its entry is an array");
	REFUSED("{\"w\":null}", 0, "tensor \"w\": its entry is null, should be an object");
	REFUSED("[]", 0, "byte 8: the header is an array, should be an object");
	REFUSED("null", 0, "the header is null");
	REFUSED("\"{}\"", 0, "the header is a string");
}

TEST(text_that_is_no_json_is_refused)
{
	REFUSED("{", 0, "byte 9: the JSON ends");
	REFUSED("{}{}", 0, "byte 10: '{' after the end of the JSON");
	CHECK_EQ(parse_bytes("{}\0\0", 4, 0), ONEHOP_MALFORMED);
	CHECK_HOLDS(said, "NUL (0x00) after the end of the JSON");
	CHECK_EQ(parse_bytes("\xFF", 1, 0), ONEHOP_MALFORMED);
	CHECK_HOLDS(said, "UTF-8");
	REFUSED("{\"caf\xE9\":{}}", 0, "byte 13: byte 0xe9 is not UTF-8");
	REFUSED("{\"\\ud800\":{}}", 0, "half of a surrogate pair");
	REFUSED("{" T("w", "U8", "[1]", 0, 1) ",}", 1, "a comma stands before the closing '}'");
	REFUSED("{" T("w", "U8", "[1]", 0, 1) " " T("v", "U8", "[1]", 1, 2) "}", 2,
		"'\"' stands where ',' or '}' should");
}

TEST(shape_and_dtype_and_range_agree)
{
	REFUSED(
	    W("U8", "[4,5]", 16, 32), 32,
	    "tensor \"w\": dtype U8 with shape [4, 5] takes 20 bytes, but data_offsets [16, 32] "
	    "span 16");
	REFUSED(W("I32", "[2,2]", 0, 4), 4, "takes 16 bytes");
	REFUSED(W("F32", "[]", 0, 0), 0, "dtype F32 with shape [] takes 4 bytes");
	REFUSED(W("U8", "[0]", 0, 1), 1, "takes 0 bytes");
	LOADS(W("F4", "[3,2]", 0, 3), 3, "w F4 [3,2] 0+3");
	LOADS(W("F6_E2M3", "[4]", 0, 3), 3, "w F6_E2M3 [4] 0+3");
	LOADS(W("F4", "[0,3]", 0, 0), 0, "w F4 [0,3] 0+0");
	REFUSED(W("F4", "[3]", 0, 2), 2,
		"F4 with shape [3]: its bits do not add up to a whole byte");
	REFUSED(W("F4", "[]", 0, 1), 1, "whole byte");
	REFUSED(W("F6_E3M2", "[2]", 0, 2), 2, "whole byte");
}

TEST(an_element_count_that_overflows_is_refused)
{
	REFUSED(W("U8", "[4294967296,4294967296]", 0, 0), 0,
		"shape [4294967296, 4294967296]: overflow");
	REFUSED(W("I32", "[2,18446744073709551614]", 0, 16), 16,
		"overflow: the number of elements");
	REFUSED(W("I32", "[2,9223372036854775807]", 0, 16), 16, "overflow: the number of bits");
	REFUSED(W("U8", "[4611686018427387904]", 0, 0), 0, "overflow: the number of bits");
	/* From the left: a 0 saves what comes after it, not what comes before. */
	REFUSED(W("U8", "[9223372036854775808,9223372036854775808,0]", 0, 0), 0, "overflow");
	LOADS(W("U8", "[0,9223372036854775808,18446744073709551615]", 0, 0), 0,
	      "w U8 [0,9223372036854775808,18446744073709551615] 0+0");
	REFUSED(W("U8", "[2305843009213693951]", 0, 2305843009213693951), 0,
		"truncated: tensor \"w\" ends 2305843009213693951 bytes past the end of the file");
}

TEST(the_data_are_covered_exactly)
{
	REFUSED(
	    "{" T("a", "U8", "[4]", 0, 4) "," T("b", "U8", "[4]", 6, 10) "}", 10,
	    "a hole: 2 bytes between tensor \"a\", which ends at 4, and tensor \"b\", which begins "
	    "at 6, belong to no tensor");
	REFUSED(W("U8", "[4]", 2, 6), 6,
		"a hole: the first 2 bytes of the data, before tensor \"w\"");
	REFUSED("{" T("a", "U8", "[4]", 0, 4) "," T("b", "U8", "[4]", 3, 7) "}", 7,
		"tensors \"a\" and \"b\" overlap: data_offsets [0, 4] and [3, 7]");
	REFUSED("{" T("a", "U8", "[4]", 0, 4) "," T("b", "U8", "[4]", 0, 4) "}", 4,
		"tensors \"a\" and \"b\" overlap");
	REFUSED("{" T("a", "U8", "[8]", 0, 8) "," T("b", "U8", "[2]", 2, 4) "}", 8, "overlap");
	REFUSED(W("U8", "[4]", 0, 4), 3,
		"truncated: tensor \"w\" ends 1 byte past the end of the file");
	REFUSED(W("U8", "[4]", 0, 4), 5, "1 trailing byte after the last tensor");
	REFUSED(W("U8", "[4]", 0, 4), 9, "5 trailing bytes after the last tensor");
	REFUSED("{}", 3, "3 trailing bytes after the header, which names no tensor");
}

/* "key=value;..." */
static const char *
metadata(void)
{
	static char out[1024];
	size_t to = 0;
	out[0] = '\0';
	for (uint64_t i = 0; i < table.meta_count; i++) {
		struct oh_meta m;
		oh_table_meta_at(&table, i, &m);
		if (m.kind != OH_META_STRING)
			return "a kind that is no string";
		to += (size_t)sprintf(out + to, "%.*s=%.*s;", (int)m.key_bytes, table.text + m.key,
				      (int)m.value_bytes, table.text + m.value);
	}
	return out;
}

TEST(metadata_are_given_as_they_stand)
{
	CHECK_EQ(
	    parse("{\"__metadata__\":{\"format\":\"pt\",\"\":\"\",\"a\\n\":\"\\u00e9 \\\"x\\\"\", "
		  "\"z\" : \"{\\\"k\\\": [1]}\"}," T("w", "U8", "[1]", 0, 1) "}",
		  1),
	    ONEHOP_OK);
	CHECK_STR(metadata(), "format=pt;=;a\n=\xC3\xA9 \"x\";z={\"k\": [1]};");
	CHECK_STR(summary(), "w U8 [1] 0+1");
	oh_table_free(&table);
	/* Behind the tensors too, and a tensor's name may look like it. */
	CHECK_EQ(
	    parse("{" T("__metadata", "U8", "[1]", 0, 1) ",\"__metadata__\":{\"k\":\"v\"}}", 1),
	    ONEHOP_OK);
	CHECK_STR(metadata(), "k=v;");
	oh_table_free(&table);
	/* The same key in escapes is the same key. */
	CHECK_EQ(parse("{\"\\u005f_metadata__\":{\"k\":\"v\"}}", 0), ONEHOP_OK);
	CHECK_STR(metadata(), "k=v;");
	oh_table_free(&table);
}

TEST(of_a_metadata_key_that_stands_twice_the_last_value_counts)
{
	CHECK_EQ(
	    parse("{\"__metadata__\":{\"a\":\"1\",\"b\":\"2\",\"a\":\"3\",\"\\u0061\":\"4\"}}", 0),
	    ONEHOP_OK);
	CHECK_STR(metadata(), "a=4;b=2;");
	oh_table_free(&table);
}

TEST(metadata_of_another_kind_are_refused)
{
	REFUSED("{\"__metadata__\":3}", 0, "__metadata__ is a number, should be an object");
	REFUSED("{\"__metadata__\":[]}", 0, "__metadata__ is an array, should be an object");
	REFUSED("{\"__metadata__\":\"x\"}", 0, "__metadata__ is a string, should be an object");
	REFUSED("{\"__metadata__\":{\"a\":\"b\",\"epoch\":3}}", 0,
		"__metadata__ member \"epoch\": its value is a number, should be a string");
	REFUSED("{\"__metadata__\":{\"a\":null}}", 0, "member \"a\": its value is null");
	REFUSED("{\"__metadata__\":{\"a\":{\"b\":\"c\",\"d\":\"e\"}}}", 0,
		"its value is an object");
	REFUSED("{\"__metadata__\":{\"a\":\"b\",\"c\":[\"d\"]}}", 0,
		"member \"c\": its value is an array");
	REFUSED("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "duplicate __metadata__");
	REFUSED("{\"__metadata__\":null,\"__metadata__\":{}}", 0, "duplicate __metadata__");
	REFUSED("{\"__metadata__\":{\"a\":\"\xFF\"}}", 0, "UTF-8");
	REFUSED("{\"__metadata__\":{\"a\" \"b\"}}", 0, "stands where ':'");
}

/* The length field of a file with these first bytes and so many in all. */
static onehop_status
length_of(const void *head, size_t bytes, uint64_t file_bytes, uint64_t *length)
{
	uint8_t *copy = calloc(1, bytes ? bytes : 1);
	memcpy(copy, head, bytes);
	memset(&error, 0, sizeof error);
	onehop_status status = oh_safetensors_length("m", copy, bytes, file_bytes, length, &error);
	free(copy);
	return status;
}

#define LENGTH_REFUSED(head, bytes, file_bytes, part)                                              \
	do {                                                                                       \
		uint64_t length_out = 77;                                                          \
		CHECK(length_of(head, bytes, file_bytes, &length_out) / 100 == 5);                 \
		CHECK_EQ(length_out, 77);                                                          \
		CHECK_HOLDS(error.message, part);                                                  \
	} while (0)

TEST(the_length_field_is_believed_within_limit_and_file)
{
	uint64_t length = 0;
	CHECK_EQ(length_of("\x02\0\0\0\0\0\0\0{}", 10, 10, &length), ONEHOP_OK);
	CHECK_EQ(length, 2);
	CHECK_EQ(length_of("\0\xE1\xF5\x05\0\0\0\0{", 9, 100000008, &length), ONEHOP_OK);
	CHECK_EQ(length, 100000000);
	/* Bytes that begin other formats are believable lengths too. */
	CHECK_EQ(length_of("\x1F\x8B\x08\0\0\0\0\0{}", 10, 600000, &length), ONEHOP_OK);
	CHECK_EQ(length, 0x88B1F);
	CHECK_EQ(length_of("\x80\x02\0\0\0\0\0\0{}", 10, 648, &length), ONEHOP_OK);
	CHECK_EQ(length_of("  \0\0\0\0\0\0\n{}", 11, 9000, &length), ONEHOP_OK);
}

TEST(a_wrong_length_field_is_told_by_its_number)
{
	LENGTH_REFUSED("", 0, 0, "the file is empty (0 bytes)");
	LENGTH_REFUSED("\x3C\0\0", 3, 3,
		       "truncated: the file has only 3 bytes, too short for the 8");
	LENGTH_REFUSED("abcdefg", 7, 7, "only 7 bytes");
	LENGTH_REFUSED("\x3C\0\0\0\0\0\0\0", 8, 8,
		       "the header is 60 bytes long, and only 0 follow");
	LENGTH_REFUSED("\0\0\0\0\0\0\0\0{}", 10, 10, "the header length is 0");
	LENGTH_REFUSED("\x0F\x27\0\0\0\0\0\0{}", 10, 90,
		       "the header is 9999 bytes long, and only 82");
	LENGTH_REFUSED("\x01\xE1\xF5\x05\0\0\0\0{}", 10, 200000000,
		       "100000001 bytes, more than the limit of 100000000");
	LENGTH_REFUSED("\x01\xE1\xF5\x05\0\0\0\0{}", 10, 10,
		       "limit of 100000000, and past the end");
	LENGTH_REFUSED("\0\0\0\0\0\0\0\x80{}", 10, 10, "9223372036854775808");
	LENGTH_REFUSED("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF{}", 10, 10, "18446744073709551615");
	LENGTH_REFUSED("\x3C\0\0\0\0\xFF\xFF\xFF{", 9, 80, "more than the limit");
	LENGTH_REFUSED("\0\0\0\0\0\0\0\x02{}", 10, 10, "big-endian byte order");
}

TEST(other_files_are_called_by_their_name)
{
	static const struct {
		const char *head;
		size_t bytes;
		const char *part, *remedy;
	} cases[] = {
	    {"version https://git-lfs.github.com/spec/v1\noid sha256:", 54, "a Git LFS pointer",
	     "git lfs pull"},
	    {"<!DOCTYPE html>\n<html>", 22, "a web page (HTML)", "download the file again"},
	    {"\n  <HTML lang=en>", 17, "a web page (HTML)", "logged in"},
	    {"\xEF\xBB\xBF<html>", 9, "a web page (HTML)", "download"},
	    {"<?xml version=\"1.0\"?><Error>", 28, "an XML document", "download"},
	    {"{\"error\":\"Repository not found\"}", 32, "JSON text", "download"},
	    {"Entry not found", 15, "plain text", "download"},
	    {"PK\x03\x04\x14\0\0\0\0\0", 10, "a zip archive", "convert"},
	    {"GGUF\x03\0\0\0\0\0\0\0", 12, "a GGUF file", ".gguf"},
	    {"\x80\x02\x8A\x0Al\xFC\x9C\x46\xF9", 9, "a pickle", "convert"},
	    {"\x80\x04\x95\x10\0\0\0\0\0\0\0", 11, "a pickle", "convert"},
	    {"\x1F\x8B\x08\0\0\0\0\0\x02\x03", 10, "a gzip archive", "unpack"},
	    {"\x89HDF\r\n\x1A\n\0\0", 10, "an HDF5 file", "convert"},
	    {"\x93NUMPY\x01\0v\0", 10, "a NumPy array", "convert"},
	    {"\x28\xB5\x2F\xFD\x04\x00\0\0\0\0", 10, "a zstd archive", "unpack"},
	    {"tjgg\x03\0\0\0\0\0", 10, "a GGJT file", ""},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		LENGTH_REFUSED(cases[i].head, cases[i].bytes, 1000, cases[i].part);
		CHECK_HOLDS(error.message, "not a safetensors file");
		CHECK_HOLDS(error.remedy, cases[i].remedy);
	}
}

TEST(a_tar_is_known_by_its_block)
{
	uint8_t head[512] = "model/weights";
	memcpy(head + 257, "ustar", 5);
	LENGTH_REFUSED(head, sizeof head, 4096, "a tar archive");
}

TEST(each_part_of_a_file_cut_anywhere_is_refused)
{
	static const char header[] =
	    "{\"__metadata__\":{\"format\":\"pt\"},\"w\\u00e9\":{\"dtype\":\"F32\",\"shape\":[2,3],"
	    "\"data_offsets\":[0,24]},\"v\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[24,25]"
	    "}}";
	const size_t bytes = sizeof header - 1;
	CHECK_EQ(parse_bytes(header, bytes, 25), ONEHOP_OK);
	oh_table_free(&table);
	for (size_t cut = 0; cut < bytes; cut++) {
		CHECK_EQ(parse_bytes(header, cut, 25), ONEHOP_MALFORMED);
		CHECK(error.message[0]);
	}
	for (uint64_t data = 0; data < 60; data++)
		CHECK_EQ(parse_bytes(header, bytes, data),
			 data == 25 ? ONEHOP_OK : ONEHOP_MALFORMED);
	oh_table_free(&table);
}

TEST(an_error_is_not_needed)
{
	uint8_t *text = malloc(3);
	memcpy(text, "{}x", 3);
	CHECK_EQ(oh_safetensors_parse("m", text, 3, 11, &table, NULL), ONEHOP_MALFORMED);
}

TEST(what_is_almost_spelled_as_usual_is_judged_like_anything_else)
{
	static const struct {
		const char *header, *part;
	} refused[] = {
	    {W("F32", "[02]", 0, 8), "stands for nothing"},
	    {W("F32", "[2,]", 0, 8), "comma"},
	    {W("F32", "[,2]", 0, 8), "byte"},
	    {W("F32", "[2 3]", 0, 24), "','"},
	    {W("F32", "[-2]", 0, 8), "negative"},
	    {W("F32", "[99999999999999999999]", 0, 8), "overflow"},
	    {W("F32", "[2]", 8, 0), "reversed"},
	    {W("F32", "[2]", 0, 9), "span"},
	    {W("f32", "[2]", 0, 8), "unknown"},
	    {W("F32", "[2.0]", 0, 8), "integer"},
	    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]}}", "3 numbers"},
	    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", "1 numbers"},
	    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"shape\":[2]}}",
	     "duplicate"},
	};
	for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
		CHECK(parse_roomy(refused[i].header, 8) != ONEHOP_OK);
		CHECK_HOLDS(said, refused[i].part);
	}
	LOADS(W("F32", "[1, 1, 1, 1, 1, 1, 1, 1, 2]", 0, 8), 8, "w F32 [1,1,1,1,1,1,1,1,2] 0+8");
	LOADS("{\"w\": {\"dtype\": \"F32\", \"shape\": [2, 1], \"data_offsets\": [0, 8]}}", 8,
	      "w F32 [2,1] 0+8");
	LOADS("{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":[1]}}", 8,
	      "w F32 [2] 0+8");
	LOADS(W("U8", "[1000000000000000000,0]", 0, 0), 0, "w U8 [1000000000000000000,0] 0+0");
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
