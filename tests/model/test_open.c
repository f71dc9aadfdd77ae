/* What a path is, and what a model holds once it is open. */
#include "opened.h"

#include "base/sys.h"

#include <errno.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

/* ---- one file */

TEST(a_file_opens_with_its_tensors_in_the_order_of_their_bytes)
{
	struct maker maker = {0};
	struct onehop_model *model;
	struct onehop_tensor tensor;
	uint64_t shape[3] = {7, 7, 7};
	st_add(&maker, "z", "F32", "[2,3]", 24);
	st_add(&maker, "empty", "F16", "[0,4]", 0);
	st_add(&maker, "a", "U8", "[]", 1);
	st_write(&maker, scratch("one/m.safetensors"));
	model = open_model(scratch("one/m.safetensors"));
	CHECK(model != NULL);
	CHECK_EQ(info_of(model).tensor_count, 3);
	CHECK_EQ(info_of(model).tensor_bytes, 25);
	CHECK_EQ(info_of(model).file_count, 1);
	CHECK_EQ(info_of(model).note_count, 0);
	CHECK_STR(info_of(model).format, "safetensors");
	CHECK(info_of(model).open_ns > 0 && info_of(model).parse_ns > 0);
	tensor = tensor_at(model, 0);
	CHECK_STR(tensor.name, "z");
	CHECK_EQ(tensor.name_bytes, 1);
	CHECK_STR(tensor.dtype, "F32");
	CHECK_EQ(tensor.rank, 2);
	CHECK_EQ(tensor.shape[0], 2);
	CHECK_EQ(tensor.shape[1], 3);
	CHECK_EQ(tensor.bytes, 24);
	CHECK_STR(tensor_at(model, 1).name, "empty");
	CHECK_STR(tensor_at(model, 2).name, "a");
	CHECK_EQ(tensor_at(model, 2).rank, 0);
	CHECK_EQ(onehop_model_at(model, 3, &tensor), ONEHOP_OUT_OF_RANGE);
	CHECK_EQ(onehop_model_shape(model, 0, shape, 1), ONEHOP_OK);
	CHECK_EQ(shape[0], 2);
	CHECK_EQ(shape[1], 7);
	CHECK_EQ(onehop_model_shape(model, 3, shape, 1), ONEHOP_OUT_OF_RANGE);
	CHECK(holds(model, "z", 0) && holds(model, "a", 0));
	onehop_model_close(model);
}

TEST(structs_of_another_size_are_filled_as_far_as_both_know)
{
	struct onehop_model_info info;
	struct onehop_model *model;
	st_one(scratch("size/m.safetensors"), "w", 4, 0);
	model = open_model(scratch("size/m.safetensors"));
	CHECK(model != NULL);
	memset(&info, 0xEE, sizeof info);
	info.size = 8;
	CHECK_EQ(onehop_model_query(model, &info), ONEHOP_OK);
	CHECK_EQ(info.size, 8);
	CHECK_EQ(info.file_count, 1);
	CHECK(info.tensor_count == UINT64_C(0xEEEEEEEEEEEEEEEE));
	info.size = 0;
	CHECK_EQ(onehop_model_query(model, &info), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(onehop_model_query(model, NULL), ONEHOP_INVALID_ARGUMENT);
	onehop_model_close(model);
}

TEST(dimensions_past_the_inline_ones_are_read_by_shape)
{
	struct maker maker = {0};
	struct onehop_model *model;
	uint64_t shape[12];
	st_add(&maker, "deep", "U8", "[1,1,1,1,1,1,1,1,2,1,300,1]", 600);
	st_write(&maker, scratch("deep.safetensors"));
	model = open_model(scratch("deep.safetensors"));
	CHECK(model != NULL);
	CHECK_EQ(tensor_at(model, 0).rank, 12);
	CHECK_EQ(onehop_model_shape(model, 0, shape, 12), ONEHOP_OK);
	CHECK_EQ(shape[8], 2);
	CHECK_EQ(shape[10], 300);
	CHECK_EQ(shape[11], 1);
	onehop_model_close(model);
}

TEST(a_name_that_claims_nothing_lets_the_bytes_decide)
{
	struct maker maker = {0};
	struct onehop_model *model;
	uint64_t dims[1] = {8};
	gg_add(&maker, "norm", 0, 1, dims, 32);
	gg_write(&maker, scratch("blob/0a1b"));
	st_one(scratch("blob/2c3d"), "w", 4, 0);
	model = open_model(scratch("blob/0a1b"));
	CHECK(model != NULL);
	CHECK_STR(info_of(model).format, "gguf");
	CHECK_STR(tensor_at(model, 0).name, "norm");
	onehop_model_close(model);
	model = open_model(scratch("blob/2c3d"));
	CHECK(model != NULL);
	CHECK_STR(info_of(model).format, "safetensors");
	onehop_model_close(model);
}

TEST(bytes_of_another_format_than_the_name_claims_are_refused)
{
	struct maker maker = {0};
	uint64_t dims[1] = {8};
	gg_add(&maker, "norm", 0, 1, dims, 32);
	gg_write(&maker, scratch("claim/m.safetensors"));
	st_one(scratch("claim/m.gguf"), "w", 4, 0);
	CHECK_EQ(refused(scratch("claim/m.safetensors")) / 100, 5);
	CHECK_HOLDS(error.message, "GGUF");
	CHECK_HOLDS(error.message, "m.safetensors");
	CHECK_EQ(refused(scratch("claim/m.gguf")) / 100, 5);
	CHECK_HOLDS(error.message, "m.gguf");
}

TEST(a_path_that_is_not_there_is_not_found)
{
	CHECK_EQ(refused(scratch("nothing/m.safetensors")), ONEHOP_NOT_FOUND);
	CHECK_HOLDS(error.message, "No such file");
	CHECK_EQ(refused(""), ONEHOP_NOT_FOUND);
}

TEST(a_fifo_is_refused_without_waiting)
{
	const char *path = scratch("fifo.safetensors");
	need(mkfifo(path, 0666) == 0, path);
	CHECK(refused(path) != ONEHOP_OK);
	CHECK_HOLDS(error.message, "fifo.safetensors");
}

TEST(arguments_that_are_null_are_refused)
{
	struct onehop_model *model;
	CHECK_EQ(onehop_model_open(NULL, "x", &model, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(onehop_model_open(runtime(), NULL, &model, NULL), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(onehop_model_open(runtime(), "x", NULL, NULL), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(onehop_model_query(NULL, NULL), ONEHOP_INVALID_ARGUMENT);
	CHECK(onehop_model_note_at(NULL, 0) == NULL);
	onehop_model_close(NULL);
}

/* ---- folders */

TEST(a_folder_with_model_safetensors_is_that_file)
{
	struct onehop_model *model;
	st_one(scratch("single/model.safetensors"), "w", 4, 0);
	st_one(scratch("single/adapter.safetensors"), "lora", 4, 0);
	st_one(scratch("single/.hidden.safetensors"), "w", 4, 1);
	write_text(scratch("single/config.json"), "{}");
	model = open_model(scratch("single"));
	CHECK(model != NULL);
	CHECK_EQ(info_of(model).tensor_count, 1);
	CHECK(holds(model, "w", 0));
	CHECK_EQ(info_of(model).note_count, 1);
	CHECK_HOLDS(onehop_model_note_at(model, 0), "\"adapter.safetensors\"");
	CHECK(onehop_model_note_at(model, 1) == NULL);
	onehop_model_close(model);
	/* A slash at the end changes nothing. */
	model = open_model(scratch("single/"));
	CHECK(model != NULL);
	onehop_model_close(model);
}

TEST(a_folder_of_several_files_is_all_of_them_by_name)
{
	struct onehop_model *model;
	st_one(scratch("several/encoder.safetensors"), "e", 4, 0);
	st_one(scratch("several/decoder.safetensors"), "d", 4, 0);
	model = open_model(scratch("several"));
	CHECK(model != NULL);
	CHECK_EQ(info_of(model).file_count, 2);
	CHECK_STR(tensor_at(model, 0).name, "d");
	CHECK_STR(tensor_at(model, 1).name, "e");
	CHECK_EQ(tensor_at(model, 1).file, 1);
	CHECK(holds(model, "e", 0) && holds(model, "d", 0));
	onehop_model_close(model);
}

TEST(a_name_in_two_files_of_a_folder_is_refused_with_both_files)
{
	st_one(scratch("twice/a.safetensors"), "w", 4, 0);
	st_one(scratch("twice/b.safetensors"), "w", 4, 1);
	CHECK_EQ(refused(scratch("twice")), ONEHOP_MALFORMED);
	CHECK_HOLDS(error.message, "\"w\"");
	CHECK_HOLDS(error.message, "a.safetensors");
	CHECK_HOLDS(error.message, "b.safetensors");
}

TEST(consolidated_files_beside_shards_are_left_out_with_a_note)
{
	struct onehop_model *model;
	st_one(scratch("mistral/model-00001-of-00002.safetensors"), "a", 4, 0);
	st_one(scratch("mistral/model-00002-of-00002.safetensors"), "b", 4, 0);
	st_one(scratch("mistral/consolidated.safetensors"), "layers.0", 4, 0);
	model = open_model(scratch("mistral"));
	CHECK(model != NULL);
	CHECK_EQ(info_of(model).tensor_count, 2);
	CHECK_EQ(info_of(model).note_count, 1);
	CHECK_HOLDS(onehop_model_note_at(model, 0), "\"consolidated.safetensors\"");
	onehop_model_close(model);
}

TEST(shards_without_an_index_must_all_be_there)
{
	st_one(scratch("part/model-00001-of-00003.safetensors"), "a", 4, 0);
	st_one(scratch("part/model-00003-of-00003.safetensors"), "c", 4, 0);
	CHECK_EQ(refused(scratch("part")), ONEHOP_MALFORMED);
	CHECK_HOLDS(error.message, "2 of the 3");
	/* Some writers count from 0. */
	rename(scratch("part/model-00003-of-00003.safetensors"),
	       scratch("part/model-00000-of-00002.safetensors"));
	rename(scratch("part/model-00001-of-00003.safetensors"),
	       scratch("part/model-00001-of-00002.safetensors"));
	CHECK_EQ(refused(scratch("part")), ONEHOP_OK);
}

static DIR *
no_folder(const char *path)
{
	errno = EACCES;
	return NULL;
}

static struct dirent *
no_entry(DIR *folder)
{
	errno = EIO;
	return NULL;
}

TEST(a_folder_that_cannot_be_opened_or_listed_is_named)
{
	struct onehop_model *model;
	struct oh_sys real = oh_sys;
	mkdir(scratch("shut"), 0777);
	st_one(scratch("shut/a.safetensors"), "a", 2, 0);
	oh_sys.opendir = no_folder;
	onehop_status status = onehop_model_open(runtime(), scratch("shut"), &model, &error);
	oh_sys = real;
	CHECK_EQ(status, ONEHOP_ACCESS);
	CHECK_HOLDS(error.message, "shut\": the folder cannot be opened");
	oh_sys.readdir = no_entry;
	status = onehop_model_open(runtime(), scratch("shut"), &model, &error);
	oh_sys = real;
	CHECK_EQ(status, ONEHOP_IO);
	CHECK_HOLDS(error.message, "shut\": the folder cannot be listed");
}

TEST(a_folder_without_weights_says_so)
{
	write_text(scratch("bare/config.json"), "{}");
	need(mkdir(scratch("bare/x.safetensors"), 0777) == 0, "mkdir");
	CHECK_EQ(refused(scratch("bare")), ONEHOP_MALFORMED);
	CHECK_HOLDS(error.message, "holds no .safetensors or .gguf file");
}

/* ---- indexes */

static void
write_sharded(const char *folder)
{
	char path[256];
	static const char *const names[3] = {"emb", "mid", "head"};
	for (int i = 0; i < 3; i++) {
		snprintf(path, sizeof path, "%s/model-%05d-of-00003.safetensors", folder, i + 1);
		st_one(scratch(path), names[i], 4 + (uint32_t)i, 0);
	}
}

static void
write_index(const char *folder, const char *map)
{
	char path[256], text[4096];
	snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
	snprintf(text, sizeof text, "{\"metadata\":{\"total_size\":1e12},\"weight_map\":{%s}}",
		 map);
	write_text(scratch(path), text);
}

#define MAP_OF_THREE                                                                               \
	"\"emb\":\"model-00001-of-00003.safetensors\","                                            \
	"\"head\":\"model-00003-of-00003.safetensors\","                                           \
	"\"mid\":\"model-00002-of-00003.safetensors\""

TEST(an_index_is_opened_by_its_folder_and_by_its_own_path)
{
	const char *const paths[2] = {"sharded", "sharded/model.safetensors.index.json"};
	write_sharded("sharded");
	write_index("sharded", MAP_OF_THREE);
	for (int i = 0; i < 2; i++) {
		struct onehop_model *model = open_model(scratch(paths[i]));
		CHECK(model != NULL);
		CHECK_EQ(info_of(model).file_count, 3);
		CHECK_EQ(info_of(model).note_count, 0);
		CHECK_STR(tensor_at(model, 0).name, "emb");
		CHECK_STR(tensor_at(model, 1).name, "mid");
		CHECK_STR(tensor_at(model, 2).name, "head");
		CHECK(holds(model, "emb", 0) && holds(model, "mid", 0) && holds(model, "head", 0));
		onehop_model_close(model);
	}
}

TEST(an_index_in_the_working_folder_is_opened_by_its_bare_name)
{
	char before[1024];
	struct onehop_model *model;
	need(getcwd(before, sizeof before) != NULL, "getcwd");
	write_sharded("bare-name");
	write_index("bare-name", MAP_OF_THREE);
	need(chdir(scratch("bare-name")) == 0, "chdir");
	model = open_model("model.safetensors.index.json");
	need(chdir(before) == 0, "chdir");
	CHECK(model != NULL);
	CHECK_EQ(info_of(model).tensor_count, 3);
	onehop_model_close(model);
}

TEST(a_tensor_in_two_files_comes_from_the_one_that_the_index_names)
{
	struct onehop_model *model;
	struct maker maker = {.salt = 1};
	st_add(&maker, "emb", "F32", "[4]", 16);
	st_add(&maker, "mid", "F32", "[5]", 20);
	st_write(&maker, scratch("copies/a.safetensors"));
	maker.salt = 2;
	st_add(&maker, "emb", "F32", "[4]", 16);
	st_add(&maker, "mid", "F32", "[5]", 20);
	st_add(&maker, "more", "F32", "[1]", 4);
	st_write(&maker, scratch("copies/b.safetensors"));
	st_one(scratch("copies/c.safetensors"), "adapter", 4, 0);
	write_index("copies", "\"emb\":\"a.safetensors\",\"mid\":\"b.safetensors\"");
	model = open_model(scratch("copies"));
	CHECK(model != NULL);
	CHECK_EQ(info_of(model).tensor_count, 2);
	CHECK(holds(model, "emb", 1) && holds(model, "mid", 2));
	CHECK_EQ(info_of(model).note_count, 3);
	CHECK_HOLDS(onehop_model_note_at(model, 0), "\"a.safetensors\": 1 tensor");
	CHECK_HOLDS(onehop_model_note_at(model, 0), "\"mid\"");
	CHECK_HOLDS(onehop_model_note_at(model, 1), "\"b.safetensors\": 2 tensor");
	CHECK_HOLDS(onehop_model_note_at(model, 1), "\"more\"");
	CHECK_HOLDS(onehop_model_note_at(model, 2), "\"c.safetensors\"");
	onehop_model_close(model);
}

TEST(an_index_may_list_tensors_in_another_order_than_the_files)
{
	const char *const maps[3] = {
		"\"a\":\"1.safetensors\",\"b\":\"1.safetensors\",\"c\":\"2.safetensors\","
		"\"d\":\"1.safetensors\"",
		"\"d\":\"1.safetensors\",\"c\":\"2.safetensors\",\"b\":\"1.safetensors\","
		"\"a\":\"1.safetensors\"",
		"\"b\":\"1.safetensors\",\"a\":\"1.safetensors\",\"d\":\"1.safetensors\","
		"\"c\":\"2.safetensors\""};
	struct maker maker = {.salt = 3};
	st_add(&maker, "a", "F32", "[4]", 16);
	st_add(&maker, "b", "F32", "[5]", 20);
	st_add(&maker, "d", "F32", "[6]", 24);
	st_write(&maker, scratch("orders/1.safetensors"));
	st_one(scratch("orders/2.safetensors"), "c", 4, 3);
	for (int i = 0; i < 3; i++) {
		struct onehop_model *model;
		write_index("orders", maps[i]);
		model = open_model(scratch("orders"));
		CHECK(model != NULL);
		CHECK_EQ(info_of(model).tensor_count, 4);
		CHECK_EQ(info_of(model).note_count, 0);
		for (uint64_t t = 0; t < 4; t++)
			CHECK_EQ(tensor_at(model, t).name[0], "abdc"[t]);
		CHECK(holds(model, "a", 3) && holds(model, "b", 3) && holds(model, "d", 3));
		onehop_model_close(model);
	}
}

TEST(files_that_the_index_names_must_be_there_and_the_missing_are_listed)
{
	write_sharded("gap");
	write_index("gap", MAP_OF_THREE);
	unlink(scratch("gap/model-00002-of-00003.safetensors"));
	CHECK_EQ(refused(scratch("gap")), ONEHOP_NOT_FOUND);
	CHECK_HOLDS(error.message, "\"model-00002-of-00003.safetensors\"");
	CHECK(!strstr(error.message, "00001-of"));
	unlink(scratch("gap/model-00001-of-00003.safetensors"));
	CHECK_EQ(refused(scratch("gap")), ONEHOP_NOT_FOUND);
	CHECK_HOLDS(error.message, "\"model-00001-of-00003.safetensors\", \"model-00002");
}

TEST(a_tensor_that_the_index_promises_must_be_in_its_file)
{
	write_sharded("promise");
	write_index("promise", MAP_OF_THREE ",\"head.bias\":\"model-00003-of-00003.safetensors\"");
	CHECK_EQ(refused(scratch("promise")), ONEHOP_MALFORMED);
	CHECK_HOLDS(error.message, "\"head.bias\"");
	CHECK_HOLDS(error.message, "\"model-00003-of-00003.safetensors\"");
	/* In another file of the map is not in its file. */
	write_index("promise", "\"emb\":\"model-00001-of-00003.safetensors\","
			       "\"mid\":\"model-00001-of-00003.safetensors\","
			       "\"head\":\"model-00002-of-00003.safetensors\"");
	CHECK_EQ(refused(scratch("promise")), ONEHOP_MALFORMED);
	CHECK_HOLDS(error.message, "\"mid\"");
	CHECK_HOLDS(error.message, "1 more");
}

TEST(an_index_that_leaves_its_folder_is_refused)
{
	st_one(scratch("outside.safetensors"), "w", 4, 0);
	write_index("escape", "\"w\":\"../outside.safetensors\"");
	CHECK_EQ(refused(scratch("escape")) / 100, 5);
	CHECK_HOLDS(error.message, "../");
}

TEST(a_shard_of_another_format_is_refused)
{
	struct maker maker = {0};
	uint64_t dims[1] = {8};
	gg_add(&maker, "w", 0, 1, dims, 32);
	gg_write(&maker, scratch("mixed/w.bin"));
	write_index("mixed", "\"w\":\"w.bin\"");
	CHECK_EQ(refused(scratch("mixed")) / 100, 5);
	CHECK_HOLDS(error.message, "w.bin");
}

TEST(of_several_indexes_the_usual_name_counts_and_else_one_must_be_named)
{
	struct onehop_model *model;
	st_one(scratch("variants/x.safetensors"), "x", 4, 0);
	write_text(scratch("variants/model.fp16.safetensors.index.json"),
		   "{\"weight_map\":{\"x\":\"x.safetensors\"}}");
	model = open_model(scratch("variants"));
	CHECK(model != NULL);
	onehop_model_close(model);
	write_text(scratch("variants/model.fp32.safetensors.index.json"),
		   "{\"weight_map\":{\"x\":\"x.safetensors\"}}");
	CHECK_EQ(refused(scratch("variants")), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "\"model.fp16.safetensors.index.json\"");
	CHECK_HOLDS(error.message, "\"model.fp32.safetensors.index.json\"");
	CHECK_EQ(refused(scratch("variants/model.fp32.safetensors.index.json")), ONEHOP_OK);
	write_index("variants", "\"x\":\"x.safetensors\"");
	CHECK_EQ(refused(scratch("variants")), ONEHOP_OK);
}

TEST(links_to_blobs_without_an_end_are_followed)
{
	static const char *const names[3] = {"emb", "mid", "head"};
	struct onehop_model *model;
	for (int i = 0; i < 3; i++) {
		char blob[64], link[128], target[64];
		snprintf(blob, sizeof blob, "hub/blobs/%032d", i);
		snprintf(target, sizeof target, "../../blobs/%032d", i);
		snprintf(link, sizeof link, "hub/snapshots/rev/model-%05d-of-00003.safetensors",
			 i + 1);
		st_one(scratch(blob), names[i], 4, 0);
		need(symlink(target, scratch(link)) == 0, link);
	}
	write_index("hub/blobs", MAP_OF_THREE);
	need(symlink("../../blobs/model.safetensors.index.json",
		     scratch("hub/snapshots/rev/model.safetensors.index.json")) == 0,
	     "symlink");
	model = open_model(scratch("hub/snapshots/rev"));
	CHECK(model != NULL);
	CHECK_EQ(info_of(model).tensor_count, 3);
	CHECK(holds(model, "head", 0));
	onehop_model_close(model);
}

TEST(many_shards_end_in_a_clear_error_where_descriptors_run_out)
{
	struct rlimit limit, low;
	static char map[64 * 1024];
	size_t used = 0;
	char name[64];
	onehop_status status;
	for (int i = 0; i < 100; i++) {
		snprintf(name, sizeof name, "shards/s%03d.safetensors", i);
		st_one(scratch(name), name, 1, 0);
		used += (size_t)snprintf(map + used, sizeof map - used, "%s\"%s\":\"%s\"",
					 i ? "," : "", name, name + 7);
	}
	used = strlen(map);
	memmove(map + 16, map, used + 1);
	memcpy(map, "{\"weight_map\": {", 16);
	strcat(map, "}}");
	write_text(scratch("shards/model.safetensors.index.json"), map);
	CHECK_EQ(refused(scratch("shards")), ONEHOP_OK);
	getrlimit(RLIMIT_NOFILE, &limit);
	low = limit;
	low.rlim_cur = (rlim_t)count_descriptors() + 20;
	setrlimit(RLIMIT_NOFILE, &low);
	status = refused(scratch("shards"));
	setrlimit(RLIMIT_NOFILE, &limit);
	CHECK_EQ(status, ONEHOP_LIMIT);
	CHECK_HOLDS(error.message, "no more files can be opened");
	CHECK_HOLDS(error.remedy, "ulimit");
	CHECK(error.os_errno == EMFILE);
}

/* ---- names */

TEST(a_tensor_is_found_by_its_name)
{
	struct maker maker = {0};
	struct onehop_model *model;
	uint64_t index = 77;
	st_add(&maker, "model.layers.0.weight", "U8", "[1]", 1);
	st_add(&maker, "model.layers.1.weight", "U8", "[1]", 1);
	st_add(&maker, "a\\u0000b", "U8", "[1]", 1);
	st_write(&maker, scratch("find.safetensors"));
	model = open_model(scratch("find.safetensors"));
	CHECK(model != NULL);
	CHECK_EQ(onehop_model_find(model, "model.layers.1.weight", 21, &index, &error), ONEHOP_OK);
	CHECK_EQ(index, 1);
	CHECK_EQ(onehop_model_find(model, "a\0b", 3, &index, &error), ONEHOP_OK);
	CHECK_EQ(index, 2);
	CHECK_EQ(onehop_model_find(model, "a", 1, &index, &error), ONEHOP_NO_SUCH_TENSOR);
	CHECK_EQ(index, 2);
	CHECK_EQ(onehop_model_find(model, "model.layer.1.weight", 20, &index, &error),
		 ONEHOP_NO_SUCH_TENSOR);
	CHECK_HOLDS(error.message, "\"model.layer.1.weight\"");
	CHECK_HOLDS(error.remedy, "\"model.layers.1.weight\"");
	CHECK_EQ(onehop_model_find(model, "layers.0.weight", 15, &index, &error),
		 ONEHOP_NO_SUCH_TENSOR);
	CHECK_HOLDS(error.remedy, "\"model.layers.0.weight\"");
	CHECK_EQ(onehop_model_find(model, "nothing of the kind, nor near it", 32, &index, &error),
		 ONEHOP_NO_SUCH_TENSOR);
	CHECK_STR(error.remedy, "");
	onehop_model_close(model);
}

TEST(names_end_in_a_nul_and_shapes_stay_right)
{
	struct maker maker = {0};
	struct onehop_model *model;
	uint64_t dims[4] = {300, 2, 1, 70000};
	st_add(&maker, "caf\\u00e9", "U8", "[1000000,0]", 0);
	st_add(&maker, "plain", "U8", "[3,129]", 387);
	st_write(&maker, scratch("nul.safetensors"));
	model = open_model(scratch("nul.safetensors"));
	CHECK(model != NULL);
	CHECK_STR(tensor_at(model, 0).name, "caf\xc3\xa9");
	CHECK_EQ(tensor_at(model, 0).shape[0], 1000000);
	CHECK_STR(tensor_at(model, 1).name, "plain");
	CHECK_EQ(tensor_at(model, 1).shape[1], 129);
	onehop_model_close(model);
	gg_key_string(&maker, "general.architecture", "llama");
	gg_add(&maker, "scalar", 24, 0, dims, 1);
	gg_add(&maker, "four", 24, 4, dims, 300 * 2 * 70000);
	gg_write(&maker, scratch("nul.gguf"));
	model = open_model(scratch("nul.gguf"));
	CHECK(model != NULL);
	CHECK_STR(tensor_at(model, 0).name, "scalar");
	CHECK_EQ(tensor_at(model, 0).rank, 0);
	CHECK_STR(tensor_at(model, 1).name, "four");
	CHECK_EQ(tensor_at(model, 1).rank, 4);
	CHECK_EQ(tensor_at(model, 1).shape[0], 70000);
	CHECK_EQ(tensor_at(model, 1).shape[3], 300);
	onehop_model_close(model);
}

static uint64_t
milliseconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

TEST(time_to_open_grows_with_the_number_of_tensors_not_its_square)
{
	struct maker maker = {0};
	struct onehop_model *model;
	uint64_t begin, taken, index;
	char name[96];
	for (int i = 0; i < 150000; i++) {
		snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.up_proj.weight",
			 i / 512, i % 512);
		st_add(&maker, name, "U8", "[1]", 1);
	}
	st_write(&maker, scratch("many.safetensors"));
	begin = milliseconds();
	model = open_model(scratch("many.safetensors"));
	taken = milliseconds() - begin;
	CHECK(model != NULL);
	printf("# 150000 tensors open in %" PRIu64 " ms: read %" PRIu64 " us, parse %" PRIu64
	       " us\n",
	       taken, info_of(model).open_ns / 1000, info_of(model).parse_ns / 1000);
	/* A tenth of it is usual; the square of the number would take minutes. */
	CHECK(taken < 3000);
	CHECK_EQ(onehop_model_find(model, name, strlen(name), &index, NULL), ONEHOP_OK);
	CHECK_EQ(index, 149999);
	begin = milliseconds();
	CHECK_EQ(onehop_model_find(model, "model.layer.1.mlp.experts.7.up_proj.weigth", 42, &index,
				   &error),
		 ONEHOP_NO_SUCH_TENSOR);
	printf("# the nearest of 150000 names in %" PRIu64 " ms\n", milliseconds() - begin);
	CHECK(milliseconds() - begin < 1000);
	onehop_model_close(model);
}

TEST(offsets_past_4_gib_are_right)
{
	const uint64_t hole = (UINT64_C(4) << 30) + 4099;
	struct onehop_model *model;
	struct onehop_tensor tensor;
	char header[256];
	uint64_t length;
	int fd = open(scratch("sparse.safetensors"), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	need(fd >= 0, "open");
	length = (uint64_t)snprintf(
		header, sizeof header,
		"{\"hole\":{\"dtype\":\"U8\",\"shape\":[%" PRIu64 "],\"data_offsets\":[0,%" PRIu64
		"]},\"after\":{\"dtype\":\"U8\",\"shape\":[64],\"data_offsets\":[%" PRIu64
		",%" PRIu64 "]}}",
		hole, hole, hole, hole + 64);
	need(pwrite(fd, &length, 8, 0) == 8, "pwrite");
	need(pwrite(fd, header, length, 8) == (ssize_t)length, "pwrite");
	need(ftruncate(fd, (off_t)(8 + length + hole + 64)) == 0, "ftruncate");
	close(fd);
	model = open_model(scratch("sparse.safetensors"));
	CHECK(model != NULL);
	tensor = tensor_at(model, 1);
	CHECK_STR(tensor.name, "after");
	CHECK_EQ(tensor.offset, 8 + length + hole);
	CHECK_EQ(info_of(model).tensor_bytes, hole + 64);
	onehop_model_close(model);
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
