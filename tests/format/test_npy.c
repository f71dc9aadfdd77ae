/* The header of .npy files: which are arrays that an index can tell of. */
#include "format/npy.h"
#include "harness.h"

static struct oh_shard_type type;

/* A file of this version with this dictionary and so many bytes of array: 1 if it has a type. The
 * header is given in memory of its own length. */
static int
has_type(int version, const char *dictionary, uint64_t array)
{
	size_t text = strlen(dictionary), begin = version == 1 ? 10 : 12;
	uint8_t *head = malloc(begin + text);
	memcpy(head, "\x93NUMPY", 6);
	head[6] = (uint8_t)version;
	head[7] = 0;
	head[8] = (uint8_t)text;
	head[9] = (uint8_t)(text >> 8);
	if (version > 1)
		head[10] = head[11] = 0;
	memcpy(head + begin, dictionary, text);
	memset(&type, 0xEE, sizeof type);
	int is = oh_npy_type(head, begin + text, begin + text + array, &type);
	free(head);
	return is;
}

static const char *
shown(int version, const char *dictionary, uint64_t array)
{
	static char out[400];
	uint32_t element;
	size_t to = 0;
	if (!has_type(version, dictionary, array)) {
		struct oh_shard_type untouched;
		memset(&untouched, 0xEE, sizeof untouched);
		return memcmp(&type, &untouched, sizeof type) ? "touched" : "bytes";
	}
	to += (size_t)sprintf(out, "%s", oh_shard_dtype_name(type.dtype, &element));
	for (int i = 0; i < OH_SHARD_MAX_RANK; i++)
		if (i < type.rank)
			to += (size_t)sprintf(out + to, " %lld", (long long)type.shape[i]);
		else if (type.shape[i])
			return "what is not used is not 0";
	sprintf(out + to, " @%d", (int)type.data_offset);
	return out;
}

TEST(headers_as_numpy_writes_them_are_read)
{
	static const char one[] =
		"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }                       "
		"                                   \n";
	CHECK_EQ(sizeof one - 1, 118);
	CHECK_STR(shown(1, one, 48), "F32 3 4 @128");
	CHECK_STR(shown(2, one, 48), "F32 3 4 @130");
	CHECK_STR(shown(3, one, 48), "F32 3 4 @130");
	CHECK_STR(shown(1, "{'descr': '<i8', 'fortran_order': False, 'shape': (), }\n", 8),
		  "I64 @66");
	CHECK_STR(shown(1, "{'descr': '|u1', 'fortran_order': False, 'shape': (7,), }\n", 7),
		  "U8 7 @68");
}

TEST(what_python_reads_as_the_same_is_the_same)
{
	CHECK_STR(shown(1, "{\"shape\":(2,3L,),'fortran_order':False,'descr':\"<f8\"}", 48),
		  "F64 2 3 @63");
	CHECK_STR(shown(1, " { 'shape' : ( 2 ) ,'fortran_order':False,'descr':'<f8'} ", 16),
		  "bytes");
	CHECK_STR(shown(1, "{\t'shape':\n( 2 , ),'fortran_order' :False ,'descr': '<f8' ,} \n", 16),
		  "F64 2 @72");
}

TEST(every_type_that_has_a_name_is_found)
{
	static const char *const rows[][2] = {
		{"|b1", "BOOL"}, {"|u1", "U8"},  {"|i1", "I8"},  {"<u2", "U16"}, {"<i2", "I16"},
		{"<u4", "U32"},  {"<i4", "I32"}, {"<u8", "U64"}, {"<i8", "I64"}, {"<f2", "F16"},
		{"<f4", "F32"},  {"<f8", "F64"}, {"<c8", "C64"},
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		char text[200], want[50];
		uint32_t element;
		oh_shard_dtype_name(oh_shard_dtype_code(rows[i][1]), &element);
		snprintf(text, sizeof text, "{'descr':'%s','fortran_order':False,'shape':(5,)}",
			 rows[i][0]);
		snprintf(want, sizeof want, "%s 5 @%zu", rows[i][1], strlen(text) + 10);
		CHECK_EQ(element, rows[i][0][2] - '0');
		CHECK_STR(shown(1, text, 5 * (uint64_t)element), want);
		CHECK_STR(shown(1, text, 5 * (uint64_t)element + 1), "bytes");
		CHECK_STR(shown(1, text, 5 * (uint64_t)element - 1), "bytes");
	}
}

TEST(arrays_of_no_elements_have_types)
{
	CHECK_STR(shown(1, "{'descr':'<f4','fortran_order':False,'shape':(0,)}", 0), "F32 0 @60");
	CHECK_STR(shown(1,
			"{'descr':'<f4','fortran_order':False,'shape':(9223372036854775807,99,0)}",
			0),
		  "F32 9223372036854775807 99 0 @82");
}

TEST(up_to_eight_dimensions_have_a_type)
{
	CHECK_STR(shown(1, "{'descr':'|u1','fortran_order':False,'shape':(1,1,1,1,1,1,1,2)}", 2),
		  "U8 1 1 1 1 1 1 1 2 @73");
	CHECK_STR(shown(1, "{'descr':'|u1','fortran_order':False,'shape':(1,1,1,1,1,1,1,1,2)}", 2),
		  "bytes");
}

TEST(all_else_is_plain_bytes)
{
	static const char *const texts[] = {
		"{'descr':'>f4','fortran_order':False,'shape':(2,)}",
		"{'descr':'<f4','fortran_order':True,'shape':(2,)}",
		"{'descr':'<f16','fortran_order':False,'shape':(2,)}",
		"{'descr':'|O','fortran_order':False,'shape':(2,)}",
		"{'descr':'<U2','fortran_order':False,'shape':(1,)}",
		"{'descr':'|V2','fortran_order':False,'shape':(4,)}",
		"{'descr':[('a','<f4')],'fortran_order':False,'shape':(2,)}",
		"{'descr':'<f4','fortran_order':False,'shape':(-2,)}",
		"{'descr':'<f4','fortran_order':False,'shape':(2 1)}",
		"{'descr':'<f4','fortran_order':False,'shape':(,2)}",
		"{'descr':'<f4','fortran_order':False,'shape':(2,,1)}",
		"{'descr':'<f4','fortran_order':False,'shape':[2]}",
		"{'descr':'<f4','fortran_order':False,'shape':(2,)",
		"{'descr':'<f4','fortran_order':False,'shape':(2",
		"{'descr':'<f4','fortran_order':False,'shape':(2,)}x",
		"{'descr':'<f4','fortran_order':False}",
		"{'descr':'<f4','shape':(2,)}",
		"{'fortran_order':False,'shape':(2,)}",
		"{'descr':'<f4','fortran_order':False,'shape':(2,),'shape':(2,)}",
		"{'descr':'<f4','fortran_order':False,'shape':(2,),'more':1}",
		"{'descr':'<f4' 'fortran_order':False,'shape':(2,)}",
		"{'descr':'<f4','fortran_order':False,'shape':(18446744073709551618,)}",
		"{'descr':'<f4','fortran_order':False,'shape':(4611686018427387906,)}",
		"{'descr':'<f4','fortran_order':False,'shape':(4294967296,4294967296,2)}",
		"{'descr':'\\x3cf4','fortran_order':False,'shape':(2,)}",
		"{'descr':'<f4','fortran_order':False,'shape':(2,)}}",
		"{}",
		"{",
		"",
		"'",
	};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		CHECK_STR(shown(1, texts[i], 8), "bytes");
	CHECK_STR(shown(4, "{'descr':'<f4','fortran_order':False,'shape':(2,)}", 8), "bytes");
	CHECK_STR(shown(0, "{'descr':'<f4','fortran_order':False,'shape':(2,)}", 8), "bytes");
}

TEST(a_header_that_is_cut_anywhere_is_plain_bytes)
{
	static const char whole[] =
		"\x93NUMPY\1\0\x32\0{'descr':'<f4','fortran_order':False,'shape':(2,)}";
	CHECK_EQ(sizeof whole - 1, 60);
	CHECK_EQ(oh_npy_type(whole, 60, 68, &type), 1);
	for (size_t have = 0; have < 60; have++) {
		uint8_t *part = malloc(have ? have : 1);
		memcpy(part, whole, have);
		int is = oh_npy_type(part, have, 68, &type);
		free(part);
		CHECK_EQ(is, 0);
	}
}

TEST(a_field_is_npy_by_its_end)
{
	static const struct {
		const char *field;
		int is;
	} rows[] = {{"npy", 1},      {"cam.npy", 1}, {"NPY", 1},  {"t.time.NpY", 1}, {"xnpy", 0},
		    {"npy.txt", 0}, {"np", 0},	    {"", 0},	 {".npy", 1},	    {"nqy", 0}};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		CHECK_EQ(oh_npy_is_field(rows[i].field, strlen(rows[i].field)), rows[i].is);
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
