/* GGUF models: split sets, folders of them, and metadata as text. */
#include "opened.h"

#include <locale.h>

/* One part with two tensors. no counts from 0. */
static void
write_part(const char *path, int no, int count, int tensors)
{
	struct maker maker = {0};
	uint64_t dims[2] = {32, 2};
	char name[64];
	if (no == 0)
		gg_key_string(&maker, "general.architecture", "llama");
	gg_key_u16(&maker, "split.no", (uint16_t)no);
	gg_key_u16(&maker, "split.count", (uint16_t)count);
	gg_key_i32(&maker, "split.tensors.count", tensors);
	snprintf(name, sizeof name, "blk.%d.up", no);
	gg_add(&maker, name, 1, 2, dims, 128);
	snprintf(name, sizeof name, "blk.%d.down", no);
	gg_add(&maker, name, 8, 2, dims, 68);
	gg_write(&maker, scratch(path));
}

static void
write_set(const char *folder)
{
	char path[128];
	for (int i = 0; i < 3; i++) {
		snprintf(path, sizeof path, "%s/toy-%05d-of-00003.gguf", folder, i + 1);
		write_part(path, i, 3, 6);
	}
}

TEST(any_part_of_a_split_set_opens_all_of_it_in_order)
{
	char path[64];
	write_set("split");
	for (int i = 0; i < 4; i++) {
		struct onehop_model *model;
		struct onehop_tensor tensor;
		if (i < 3)
			snprintf(path, sizeof path, "split/toy-%05d-of-00003.gguf", i + 1);
		else
			snprintf(path, sizeof path, "split"); /* and so does the folder */
		model = open_model(scratch(path));
		CHECK(model != NULL);
		CHECK_EQ(info_of(model).file_count, 3);
		CHECK_EQ(info_of(model).tensor_count, 6);
		CHECK_STR(info_of(model).format, "gguf");
		tensor = tensor_at(model, 0);
		CHECK_STR(tensor.name, "blk.0.up");
		CHECK_STR(file_name_of(model, &tensor), "toy-00001-of-00003.gguf");
		tensor = tensor_at(model, 5);
		CHECK_STR(tensor.name, "blk.2.down");
		CHECK_STR(file_name_of(model, &tensor), "toy-00003-of-00003.gguf");
		CHECK_STR(tensor.dtype, "Q8_0");
		CHECK_EQ(tensor.shape[0], 2);
		CHECK_EQ(tensor.shape[1], 32);
		CHECK(holds(model, "blk.1.up", 0) && holds(model, "blk.2.down", 0));
		onehop_model_close(model);
	}
}

TEST(a_missing_part_is_named)
{
	write_set("hole");
	unlink(scratch("hole/toy-00002-of-00003.gguf"));
	CHECK_EQ(refused(scratch("hole/toy-00001-of-00003.gguf")), ONEHOP_NOT_FOUND);
	CHECK_HOLDS(error.message, "\"toy-00002-of-00003.gguf\"");
	CHECK_EQ(refused(scratch("hole")), ONEHOP_NOT_FOUND);
}

TEST(parts_that_do_not_fit_their_names_are_refused)
{
	write_set("wrong");
	write_part("wrong/toy-00002-of-00003.gguf", 2, 3, 6);
	CHECK_EQ(refused(scratch("wrong")), ONEHOP_MALFORMED);
	CHECK_HOLDS(error.message, "toy-00002-of-00003.gguf");
	CHECK_HOLDS(error.message, "split.no is 2");
	write_part("wrong/toy-00002-of-00003.gguf", 1, 4, 6);
	CHECK_EQ(refused(scratch("wrong")), ONEHOP_MALFORMED);
	CHECK_HOLDS(error.message, "split.count is 4");
	CHECK_EQ(refused(scratch("wrong/toy-00002-of-00003.gguf")), ONEHOP_MALFORMED);
	write_part("wrong/toy-00002-of-00003.gguf", 1, 3, 7);
	CHECK_EQ(refused(scratch("wrong")), ONEHOP_MALFORMED);
	CHECK_HOLDS(error.message, "split.tensors.count is 7");
	CHECK_HOLDS(error.message, "hold 6 tensors");
}

TEST(a_part_by_another_name_is_refused_since_the_others_cannot_be_found)
{
	write_part("renamed/part.gguf", 0, 3, 6);
	CHECK_EQ(refused(scratch("renamed/part.gguf")), ONEHOP_MALFORMED);
	CHECK_HOLDS(error.message, "split.count");
	rename(scratch("renamed/part.gguf"), scratch("renamed/blob"));
	CHECK_EQ(refused(scratch("renamed/blob")), ONEHOP_MALFORMED);
}

TEST(a_file_named_like_a_part_but_not_split_is_refused)
{
	struct maker maker = {0};
	uint64_t dims[1] = {8};
	gg_add(&maker, "w", 0, 1, dims, 32);
	gg_write(&maker, scratch("unsplit/m-00001-of-00002.gguf"));
	CHECK_EQ(refused(scratch("unsplit/m-00001-of-00002.gguf")), ONEHOP_MALFORMED);
	CHECK_HOLDS(error.message, "no split.count");
	rename(scratch("unsplit/m-00001-of-00002.gguf"), scratch("unsplit/m-00001-of-00001.gguf"));
	CHECK_EQ(refused(scratch("unsplit")), ONEHOP_OK);
}

TEST(a_name_in_two_parts_is_refused)
{
	struct maker maker = {0};
	uint64_t dims[1] = {8};
	for (uint16_t i = 0; i < 2; i++) {
		gg_key_u16(&maker, "split.no", i);
		gg_key_u16(&maker, "split.count", 2);
		gg_add(&maker, "same", 0, 1, dims, 32);
		gg_write(&maker, scratch(i ? "same/m-00002-of-00002.gguf"
					   : "same/m-00001-of-00002.gguf"));
	}
	CHECK_EQ(refused(scratch("same")), ONEHOP_MALFORMED);
	CHECK_HOLDS(error.message, "\"same\"");
	CHECK_HOLDS(error.message, "m-00001-of-00002.gguf");
	CHECK_HOLDS(error.message, "m-00002-of-00002.gguf");
}

TEST(a_folder_of_unrelated_ggufs_asks_for_one)
{
	struct maker maker = {0};
	uint64_t dims[1] = {8};
	gg_add(&maker, "w", 0, 1, dims, 32);
	gg_write(&maker, scratch("zoo/model-Q4.gguf"));
	CHECK_EQ(refused(scratch("zoo")), ONEHOP_OK);
	gg_add(&maker, "w", 0, 1, dims, 32);
	gg_write(&maker, scratch("zoo/model-Q8.gguf"));
	CHECK_EQ(refused(scratch("zoo")), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "\"model-Q4.gguf\", \"model-Q8.gguf\"");
	/* Safetensors come first. */
	st_one(scratch("zoo/model.safetensors"), "w", 4, 0);
	CHECK_EQ(refused(scratch("zoo")), ONEHOP_OK);
}

/* ---- metadata */

static struct onehop_metadata
metadata_of(const struct onehop_model *model, const char *key, char scratch_text[64])
{
	struct onehop_metadata found = {.size = sizeof found, .kind = "(none)", .text = ""};
	for (uint64_t i = 0; i < info_of(model).metadata_count; i++) {
		struct onehop_metadata one = {.size = sizeof one};
		onehop_model_metadata_at(model, i, &one, scratch_text, 64);
		if (one.key_bytes == strlen(key) && memcmp(one.key, key, one.key_bytes) == 0)
			return one;
	}
	return found;
}

static int
is_text(const struct onehop_metadata *metadata, const char *kind, const char *text)
{
	return strcmp(metadata->kind, kind) == 0 && metadata->text_bytes == strlen(text) &&
	       memcmp(metadata->text, text, metadata->text_bytes) == 0;
}

TEST(every_kind_of_metadata_has_its_text)
{
	struct maker maker = {0};
	struct onehop_model *model;
	struct onehop_metadata metadata;
	char text[64];
	static const struct {
		const char *key;
		uint32_t kind;
		const void *raw;
		size_t width;
		const char *kind_name, *want;
	} rows[] = {
		{"k.u8", 0, "\xc8", 1, "u8", "200"},
		{"k.i8", 1, "\xfd", 1, "i8", "-3"},
		{"k.u16", 2, "\xff\xff", 2, "u16", "65535"},
		{"k.i16", 3, "\xf7\xff", 2, "i16", "-9"},
		{"k.u32", 4, "\xff\xff\xff\xff", 4, "u32", "4294967295"},
		{"k.i32", 5, "\xfb\xff\xff\xff", 4, "i32", "-5"},
		{"k.f32", 6, "\xcd\xcc\xcc\x3d", 4, "f32", "0.1"},
		{"k.yes", 7, "\1", 1, "bool", "true"},
		{"k.no", 7, "\0", 1, "bool", "false"},
		{"k.array", 9, "\4\0\0\0\2\0\0\0\0\0\0\0\1\0\0\0\2\0\0\0", 20, "array",
		 "[2 x u32]"},
		{"k.u64", 10, "\0\0\0\0\0\0\0\x80", 8, "u64", "9223372036854775808"},
		{"k.i64", 11, "\xff\xff\xff\xff\xff\xff\xff\xff", 8, "i64", "-1"},
		{"k.f64", 12, "\x9a\x99\x99\x99\x99\x99\xb9\x3f", 8, "f64", "0.1"},
	};
	gg_key_string(&maker, "k.string", "two words");
	gg_key_string(&maker, "k.empty", "");
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		gg_key(&maker, rows[i].key, rows[i].kind, rows[i].raw, rows[i].width);
	gg_write(&maker, scratch("meta.gguf"));
	model = open_model(scratch("meta.gguf"));
	CHECK(model != NULL);
	CHECK_EQ(info_of(model).metadata_count, 15);
	setlocale(LC_ALL, "de_DE.UTF-8");
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		metadata = metadata_of(model, rows[i].key, text);
		if (!is_text(&metadata, rows[i].kind_name, rows[i].want))
			test_fail(__FILE__, __LINE__, "%s is %s \"%.*s\"", rows[i].key,
				  metadata.kind, (int)metadata.text_bytes, metadata.text);
	}
	setlocale(LC_ALL, "C");
	metadata = metadata_of(model, "k.string", text);
	CHECK(is_text(&metadata, "string", "two words"));
	metadata = metadata_of(model, "k.empty", text);
	CHECK(is_text(&metadata, "string", ""));
	/* Scratch that is too short cuts; none gives no text. */
	CHECK_EQ(onehop_model_metadata_at(model, 2, &metadata, text, 3), ONEHOP_OK);
	CHECK_EQ(metadata.text_bytes, 2);
	CHECK_EQ(onehop_model_metadata_at(model, 2, &metadata, NULL, 0), ONEHOP_OK);
	CHECK_EQ(metadata.text_bytes, 0);
	CHECK_EQ(onehop_model_metadata_at(model, 15, &metadata, text, 64), ONEHOP_OUT_OF_RANGE);
	onehop_model_close(model);
}

TEST(metadata_says_which_file_it_stands_in)
{
	struct maker maker = {0};
	struct onehop_model *model;
	struct onehop_metadata metadata = {.size = sizeof metadata};
	st_member(&maker, "\"__metadata__\":{\"format\":\"pt\",\"note\":\"first\"}");
	st_add(&maker, "a", "U8", "[1]", 1);
	st_write(&maker, scratch("two/a.safetensors"));
	st_one(scratch("two/b.safetensors"), "b", 1, 0);
	st_member(&maker, "\"__metadata__\":{\"format\":\"mlx\"}");
	st_add(&maker, "c", "U8", "[1]", 1);
	st_write(&maker, scratch("two/c.safetensors"));
	model = open_model(scratch("two"));
	CHECK(model != NULL);
	CHECK_EQ(info_of(model).metadata_count, 3);
	CHECK_EQ(onehop_model_metadata_at(model, 1, &metadata, NULL, 0), ONEHOP_OK);
	CHECK_EQ(metadata.file, 0);
	CHECK(is_text(&metadata, "string", "first"));
	CHECK_EQ(onehop_model_metadata_at(model, 2, &metadata, NULL, 0), ONEHOP_OK);
	CHECK_EQ(metadata.file, 2);
	CHECK(is_text(&metadata, "string", "mlx"));
	onehop_model_close(model);
}

TEST(a_header_longer_than_the_first_read_is_read_whole)
{
	struct maker maker = {0};
	struct onehop_model *model;
	uint64_t dims[1] = {8};
	char *array = NULL, key[32];
	size_t bytes = 0;
	put(&array, &bytes, 8, 4);
	put(&array, &bytes, 40000, 8);
	for (int i = 0; i < 40000; i++)
		put_string(&array, &bytes, "token");
	for (int i = 0; i < 3; i++) {
		snprintf(key, sizeof key, "tokenizer.%d", i);
		gg_key(&maker, key, 9, array, bytes);
	}
	free(array);
	gg_add(&maker, "w", 0, 1, dims, 32);
	gg_write(&maker, scratch("long.gguf"));
	model = open_model(scratch("long.gguf"));
	CHECK(model != NULL);
	CHECK_EQ(info_of(model).metadata_count, 3);
	CHECK(holds(model, "w", 0));
	onehop_model_close(model);
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
