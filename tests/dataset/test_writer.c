/* The shard writer: what it refuses, what it takes back, and what others see of it. */
#include "model/files.h"

#include "base/crc32c.h"
#include "base/sys.h"
#include "format/shard.h"

#include <onehop/onehop.h>

#define SHARD "w/a.tar"

static const char *const ends[] = {".tar", ".tar.onehop", ".tar.idx", ".idx"};

struct content {
	uint8_t *bytes;
	size_t count;
};

static struct content
content_of(const char *path)
{
	struct content content = {NULL, 0};
	FILE *file = fopen(path, "rb");
	if (!file)
		return content;
	fseek(file, 0, SEEK_END);
	content.count = (size_t)ftell(file);
	rewind(file);
	content.bytes = malloc(content.count + 8);
	need(fread(content.bytes, 1, content.count, file) == content.count, path);
	fclose(file);
	return content;
}

static int
count_names(const char *path)
{
	int count = -2;
	DIR *names = opendir(path);
	while (names && readdir(names))
		count++;
	if (names)
		closedir(names);
	return count;
}

static struct onehop_shard_writer *
writer_of(const char *name)
{
	struct onehop_shard_writer *writer = NULL;
	struct onehop_error error;
	struct onehop_shard_options options;
	onehop_shard_options_init(&options);
	options.sync = 0;
	if (onehop_shard_writer_create(scratch(name), &options, &writer, &error))
		printf("# %s\n", error.message);
	return writer;
}

static struct onehop_part_source
memory(const char *field, const void *data, uint64_t bytes)
{
	struct onehop_part_source part;
	onehop_part_source_init(&part);
	part.field = field;
	part.data = data;
	part.bytes = bytes;
	return part;
}

static struct onehop_part_source
range(const char *field, const char *path, uint64_t offset, uint64_t bytes)
{
	struct onehop_part_source part = memory(field, NULL, bytes);
	part.path = path;
	part.offset = offset;
	return part;
}

static onehop_status
add(struct onehop_shard_writer *writer, const char *key, const struct onehop_part_source *parts,
    uint64_t count, struct onehop_error *error)
{
	struct onehop_sample_source sample;
	onehop_sample_source_init(&sample);
	sample.key = key;
	return onehop_shard_writer_add(writer, &sample, parts, count, error);
}

static onehop_status
add_one(struct onehop_shard_writer *writer, const char *key, struct onehop_part_source part,
	struct onehop_error *error)
{
	return add(writer, key, &part, 1, error);
}

TEST(options_that_do_not_exist_are_refused)
{
	static const struct {
		size_t at;
		uint32_t value;
		const char *words;
	} wrong[] = {
		{offsetof(struct onehop_shard_options, size), 8, "onehop_shard_options_init"},
		{offsetof(struct onehop_shard_options, align), 3, "align 3"},
		{offsetof(struct onehop_shard_options, pad), 3, "pad 3"},
		{offsetof(struct onehop_shard_options, alignment_bytes), 0, "of 0 bytes"},
		{offsetof(struct onehop_shard_options, alignment_bytes), 256, "of 256 bytes"},
		{offsetof(struct onehop_shard_options, alignment_bytes), 4097, "of 4097 bytes"},
		{offsetof(struct onehop_shard_options, alignment_bytes), 4 << 20, "of 4194304"},
		{offsetof(struct onehop_shard_options, mtime) + 4, 2, "an mtime of 8589934592"},
		{offsetof(struct onehop_shard_options, mtime) + 4, UINT32_MAX, "an mtime of -"},
	};
	scratch(SHARD);
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		struct onehop_shard_writer *writer = NULL;
		struct onehop_shard_options options;
		struct onehop_error error;
		onehop_shard_options_init(&options);
		memcpy((char *)&options + wrong[i].at, &wrong[i].value, sizeof wrong[i].value);
		CHECK_EQ(onehop_shard_writer_create(scratch(SHARD), &options, &writer, &error),
			 ONEHOP_INVALID_ARGUMENT);
		CHECK_HOLDS(error.message, wrong[i].words);
		CHECK(!writer);
	}
	CHECK_EQ(count_names(scratch("w")), 0);
}

TEST(a_path_that_cannot_be_a_shard_is_refused)
{
	struct onehop_shard_writer *writer = NULL;
	struct onehop_error error;
	CHECK_EQ(onehop_shard_writer_create(scratch("w/a.zip"), NULL, &writer, &error),
		 ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "ends in .tar");
	CHECK_EQ(onehop_shard_writer_create(scratch("w/.tar"), NULL, &writer, &error),
		 ONEHOP_INVALID_ARGUMENT);
	scratch("w/folder.tar/x");
	CHECK_EQ(onehop_shard_writer_create(scratch("w/folder.tar"), NULL, &writer, &error),
		 ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(onehop_shard_writer_create("/no/such/folder/a.tar", NULL, &writer, &error),
		 ONEHOP_NOT_FOUND);
	CHECK_HOLDS(error.message, "/no/such/folder/a.tar.partial");
	CHECK_EQ(mkfifo(scratch("w/f.tar.partial"), 0666), 0);
	CHECK(onehop_shard_writer_create(scratch("w/f.tar"), NULL, &writer, &error) != ONEHOP_OK);
	CHECK(!writer);
	scratch_clear("w");
}

TEST(a_name_that_some_reader_takes_otherwise_is_refused)
{
	static const struct {
		const char *key, *field, *words;
	} wrong[] = {
		{"", "x", "empty component"},
		{"/a", "x", "empty component"},
		{"a/", "x", "empty component"},
		{"a//b", "x", "empty component"},
		{"a/../b", "x", "\"..\""},
		{"./b", "x", "\".\""},
		{"a.b", "x", "a dot in its last"},
		{"a b", "x", "a space"},
		{"a\nb", "x", "a space or a control"},
		{"a\x7f", "x", "a space or a control"},
		{"a\xff", "x", "not UTF-8"},
		{"__pad__/a", "x", "WebDataset skips"},
		{"__a", "x__", "WebDataset skips"},
		{"a", "", "is empty"},
		{"a", "x/y", "a slash"},
		{"a", "x y", "a space"},
		{"a", "\xc3\xbc", "not ASCII"},
		{"a", NULL, "NULL"},
	};
	struct onehop_shard_writer *writer = writer_of(SHARD);
	struct onehop_error error;
	CHECK(writer);
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		CHECK_EQ(add_one(writer, wrong[i].key, memory(wrong[i].field, "1", 1), &error),
			 ONEHOP_INVALID_ARGUMENT);
		CHECK_HOLDS(error.message, wrong[i].words);
		CHECK(error.remedy[0]);
	}
	CHECK_EQ(add_one(writer, "v1.0/\xc3\xbc/b", memory("x.tar.gz", "1", 1), &error), ONEHOP_OK);
	onehop_shard_writer_destroy(writer);
	CHECK_EQ(count_names(scratch("w")), 0);
}

TEST(names_are_as_long_as_every_reader_takes_and_no_longer)
{
	char key[1100], field[300];
	struct onehop_shard_writer *writer = writer_of(SHARD);
	struct onehop_error error;
	CHECK(writer);
	memset(field, 'f', sizeof field);
	for (size_t i = 0; i < sizeof key; i++)
		key[i] = i % 200 == 199 ? '/' : 'k';
	key[1023] = '\0'; /* 5 slashes, the last component 23 */
	field[1] = '\0';
	CHECK_EQ(add_one(writer, key, memory(field, "1", 1), &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "1024 bytes");
	key[1022] = '\0';
	CHECK_EQ(add_one(writer, key, memory(field, "1", 1), &error), ONEHOP_OK);
	field[1] = 'f';
	field[253] = '\0';
	CHECK_EQ(add_one(writer, "k", memory(field, "1", 1), &error), ONEHOP_OK);
	CHECK_EQ(add_one(writer, "kk", memory(field, "1", 1), &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "255 bytes");
	CHECK_EQ(onehop_shard_writer_finish(writer, NULL, &error), ONEHOP_OK);
	onehop_shard_writer_destroy(writer);
	CHECK_EQ(onehop_shard_verify(scratch(SHARD), NULL, &error), ONEHOP_OK);
	scratch_clear("w");
}

TEST(what_comes_twice_is_refused)
{
	struct onehop_shard_writer *writer = writer_of(SHARD);
	struct onehop_error error;
	struct onehop_part_source twins[] = {memory("jpg", "1", 1), memory("txt", "1", 1),
					     memory("JPG", "1", 1)};
	CHECK(writer);
	CHECK_EQ(add(writer, "a", twins, 3, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "there twice");
	CHECK_EQ(add(writer, "a", twins, 2, &error), ONEHOP_OK);
	CHECK_EQ(add(writer, "b", twins, 2, &error), ONEHOP_OK);
	CHECK_EQ(add(writer, "a", twins, 1, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "\"a\" is in the shard already");
	CHECK_EQ(add(writer, "c", twins, 1, &error), ONEHOP_OK);
	CHECK_EQ(onehop_shard_writer_finish(writer, NULL, &error), ONEHOP_OK);
	onehop_shard_writer_destroy(writer);
	CHECK_EQ(onehop_shard_verify(scratch(SHARD), NULL, &error), ONEHOP_OK);
	scratch_clear("w");
}

TEST(a_source_that_cannot_be_read_is_named)
{
	struct onehop_shard_writer *writer = writer_of(SHARD);
	struct onehop_error error;
	CHECK(writer);
	write_file(scratch("w/ten"), "0123456789", 10);
	CHECK_EQ(mkfifo(scratch("w/pipe"), 0666), 0);
	CHECK_EQ(add_one(writer, "a", range("x", scratch("w/no"), 0, 1), &error), ONEHOP_NOT_FOUND);
	CHECK_HOLDS(error.message, "w/no: cannot open");
	CHECK_EQ(add_one(writer, "a", range("x", scratch("w"), 0, 1), &error),
		 ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(add_one(writer, "a", range("x", scratch("w/pipe"), 0, 1), &error),
		 ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "no regular file");
	CHECK_EQ(add_one(writer, "a", range("x", scratch("w/ten"), 3, 8), &error),
		 ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "8 bytes from byte 3 on are past its end, it has 10");
	CHECK_EQ(add_one(writer, "a", range("x", scratch("w/ten"), 11, UINT64_MAX), &error),
		 ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(add_one(writer, "a", range("x", scratch("w/ten"), UINT64_MAX, 2), &error),
		 ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(add_one(writer, "a", memory("x", NULL, 1), &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(add_one(writer, "a", memory("x", NULL, 0), &error), ONEHOP_OK);
	CHECK_EQ(add_one(writer, "b", range("x", scratch("w/ten"), 10, UINT64_MAX), &error),
		 ONEHOP_OK);
	onehop_shard_writer_destroy(writer);
	scratch_clear("w");
}

/* A sparse file stands for one that is too large. */
TEST(a_member_of_8_GiB_is_refused)
{
	struct onehop_shard_writer *writer = writer_of(SHARD);
	struct onehop_error error;
	CHECK(writer);
	write_file(scratch("w/large"), "", 0);
	if (truncate(scratch("w/large"), (off_t)1 << 33) < 0) {
		onehop_shard_writer_destroy(writer);
		scratch_clear("w");
		SKIP("no file of 8 GiB can be made here");
	}
	CHECK_EQ(add_one(writer, "a", range("x", scratch("w/large"), 0, UINT64_MAX), &error),
		 ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "a.x: a member of 8589934592 bytes");
	CHECK_EQ(add_one(writer, "a", memory("x", "", UINT64_C(1) << 33), &error),
		 ONEHOP_INVALID_ARGUMENT);
	onehop_shard_writer_destroy(writer);
	scratch_clear("w");
}

/* Some before, some behind the refused ones; payloads larger than the buffer, so that what was written
 * to the file already is taken back, too. */
static void
write_with(const char *name, int refused)
{
	static uint8_t large[3 << 20];
	struct onehop_shard_writer *writer = writer_of(name);
	struct onehop_error error;
	CHECK(writer);
	for (int i = 0; i < 3; i++) {
		char key[8];
		struct onehop_part_source bad[] = {memory("brandnew", large, sizeof large),
						   range("x", scratch("w/no"), 0, 1)};
		snprintf(key, sizeof key, "k%d", i);
		memset(large, 'b', sizeof large);
		if (refused)
			CHECK_EQ(add(writer, key, bad, 2, &error), ONEHOP_NOT_FOUND);
		memset(large, 'a' + i, sizeof large);
		CHECK_EQ(add_one(writer, key, memory("bin", large, (1 << 20) - 5 + i * 400000), &error),
			 ONEHOP_OK);
		if (refused)
			CHECK_EQ(add(writer, "tail", bad, 2, &error), ONEHOP_NOT_FOUND);
	}
	CHECK_EQ(onehop_shard_writer_finish(writer, NULL, &error), ONEHOP_OK);
	onehop_shard_writer_destroy(writer);
}

TEST(a_sample_that_was_refused_leaves_no_trace)
{
	write_with("w/one.tar", 0);
	write_with("w/two.tar", 1);
	for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
		char one[32], two[32];
		snprintf(one, sizeof one, "w/one%s", ends[i]);
		snprintf(two, sizeof two, "w/two%s", ends[i]);
		struct content a = content_of(scratch(one)), b = content_of(scratch(two));
		CHECK(a.bytes && b.bytes && a.count == b.count);
		CHECK(memcmp(a.bytes, b.bytes, a.count) == 0);
		free(a.bytes);
		free(b.bytes);
	}
	scratch_clear("w");
}

/* What a killed writer left is larger than what comes now. */
TEST(a_partial_file_that_was_left_is_written_over)
{
	static uint8_t old[9 << 20];
	memset(old, 0xEE, sizeof old);
	write_with("w/one.tar", 0);
	write_file(scratch("w/two.tar.partial"), old, sizeof old);
	write_file(scratch("w/two.idx.partial"), old, sizeof old);
	write_file(scratch("w/two.tar.onehop.partial"), old, sizeof old);
	write_with("w/two.tar", 0);
	struct content a = content_of(scratch("w/one.tar")), b = content_of(scratch("w/two.tar"));
	CHECK(a.bytes && b.bytes && a.count == b.count);
	CHECK(memcmp(a.bytes, b.bytes, a.count) == 0);
	free(a.bytes);
	free(b.bytes);
	CHECK_EQ(count_names(scratch("w")), 8);
	scratch_clear("w");
}

TEST(a_second_writer_of_one_shard_is_refused_while_the_first_is_there)
{
	struct onehop_shard_writer *first = writer_of(SHARD), *second = NULL;
	struct onehop_error error;
	CHECK(first);
	CHECK_EQ(onehop_shard_writer_create(scratch(SHARD), NULL, &second, &error), ONEHOP_BUSY);
	CHECK_HOLDS(error.message, "another writer");
	CHECK_EQ(add_one(first, "a", memory("x", "1", 1), &error), ONEHOP_OK);
	CHECK_EQ(onehop_shard_writer_finish(first, NULL, &error), ONEHOP_OK);
	onehop_shard_writer_destroy(first);
	CHECK_EQ(onehop_shard_verify(scratch(SHARD), NULL, &error), ONEHOP_OK);
	second = writer_of(SHARD);
	CHECK(second);
	onehop_shard_writer_destroy(second);
	CHECK_EQ(onehop_shard_verify(scratch(SHARD), NULL, &error), ONEHOP_OK);
	CHECK_EQ(count_names(scratch("w")), 4);
	scratch_clear("w");
}

TEST(a_finished_writer_is_good_for_query_and_destroy)
{
	struct onehop_shard_writer *writer = writer_of(SHARD);
	struct onehop_shard_info info = {.size = sizeof info}, again = {.size = sizeof again};
	struct onehop_error error;
	struct stat st;
	CHECK(writer);
	CHECK_EQ(onehop_shard_writer_query(writer, &info), ONEHOP_OK);
	CHECK(info.samples == 0 && info.shard_bytes == 0 && !info.has_trailer);
	CHECK_EQ(add_one(writer, "a", memory("x", "123", 3), &error), ONEHOP_OK);
	CHECK_EQ(onehop_shard_writer_query(writer, &info), ONEHOP_OK);
	CHECK(info.samples == 1 && info.members == 1 && info.payload_bytes == 3);
	CHECK(info.shard_bytes == 4096 + 512 && info.index_bytes > 128);
	CHECK_EQ(onehop_shard_writer_finish(writer, &info, &error), ONEHOP_OK);
	CHECK_EQ(stat(scratch(SHARD), &st), 0);
	CHECK(info.has_trailer && info.shard_bytes == (uint64_t)st.st_size && info.skipped == 0);
	CHECK_EQ(stat(scratch(SHARD ".onehop"), &st), 0);
	CHECK_EQ(info.index_bytes, st.st_size);
	CHECK_EQ(onehop_shard_writer_query(writer, &again), ONEHOP_OK);
	CHECK(memcmp(&info, &again, sizeof info) == 0);
	CHECK_EQ(add_one(writer, "b", memory("x", "123", 3), &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "finished");
	CHECK_EQ(onehop_shard_writer_finish(writer, NULL, &error), ONEHOP_INVALID_ARGUMENT);
	onehop_shard_writer_destroy(writer);
	onehop_shard_writer_destroy(NULL);
	scratch_clear("w");
}

TEST(a_shard_of_nothing_is_one)
{
	struct onehop_shard_writer *writer = writer_of(SHARD);
	struct onehop_error error;
	CHECK(writer);
	CHECK_EQ(onehop_shard_writer_finish(writer, NULL, &error), ONEHOP_OK);
	onehop_shard_writer_destroy(writer);
	struct content index = content_of(scratch(SHARD ".onehop"));
	struct oh_shard_view view;
	CHECK_EQ(oh_shard_open(index.bytes, index.count, "x", &view, &error), ONEHOP_OK);
	CHECK(view.samples == 0 && view.tar_end == 0);
	free(index.bytes);
	scratch_clear("w");
}

/* ---- what the index says */

static const char npy[] = "\x93NUMPY\1\0\x38\0{'descr': '<i2', 'fortran_order': False, "
			  "'shape': (2,)}\n1234";

TEST(types_times_and_checksums_are_in_the_index)
{
	struct onehop_shard_writer *writer = writer_of(SHARD);
	struct onehop_error error;
	struct onehop_sample_source sample;
	struct onehop_part_source parts[3] = {memory("CAM.npy", npy, sizeof npy - 1),
					      memory("raw", "12345678901234567890", 20),
					      memory("txt", "x", 1)};
	CHECK(writer);
	onehop_sample_source_init(&sample);
	sample.key = "a";
	sample.episode = "one";
	sample.stream = "cam0";
	sample.timestamp_ns = -5;
	parts[1].dtype = "F32";
	parts[1].rank = 2;
	parts[1].shape[0] = parts[1].shape[1] = 2;
	parts[1].data_offset = 4;
	parts[2].timestamp_ns = 99;
	CHECK_EQ(onehop_shard_writer_add(writer, &sample, parts, 3, &error), ONEHOP_OK);
	CHECK_EQ(onehop_shard_writer_finish(writer, NULL, &error), ONEHOP_OK);
	onehop_shard_writer_destroy(writer);
	CHECK_EQ(onehop_shard_verify(scratch(SHARD), NULL, &error), ONEHOP_OK);
	struct content index = content_of(scratch(SHARD ".onehop"));
	struct oh_shard_view view;
	const struct oh_shard_type *type;
	uint64_t bytes;
	CHECK_EQ(oh_shard_open(index.bytes, index.count, "x", &view, &error), ONEHOP_OK);
	CHECK_EQ(view.part[0].type, 1);
	CHECK_EQ(oh_shard_type_at(&view, 0, &type, &bytes), ONEHOP_OK);
	CHECK(type->dtype == oh_shard_dtype_code("I16") && type->rank == 1 && bytes == 4);
	CHECK_EQ(oh_shard_type_at(&view, 1, &type, &bytes), ONEHOP_OK);
	CHECK(type->dtype == oh_shard_dtype_code("F32") && type->rank == 2 && bytes == 16);
	CHECK_EQ(type->data_offset, 4);
	CHECK_EQ(view.part[2].type, 0);
	CHECK_EQ(view.part[1].crc32c, onehop_crc32c(0, "12345678901234567890", 20));
	CHECK(view.time[0].timestamp_ns == -5 && view.time[0].rows == 1);
	CHECK(view.part_time[0] == ONEHOP_NO_TIME && view.part_time[2] == 99);
	CHECK(memcmp(view.names, "cam.npy", 7) == 0); /* as webdataset gives it */
	free(index.bytes);
	scratch_clear("w");
}

TEST(an_array_that_does_not_fit_is_refused)
{
	static const struct {
		const char *dtype;
		uint32_t rank, rows;
		uint64_t first, data_offset;
		const char *words;
	} wrong[] = {
		{"float32", 1, 1, 1, 0, "dtype \"float32\""},
		{"F8_E8M0", 1, 1, 1, 0, "dtype \"F8_E8M0\""},
		{"F32", 9, 1, 1, 0, "9 dimensions"},
		{"F32", 1, 1, 1, UINT64_C(1) << 32, "within 4 GiB"},
		{"F32", 1, 1, 6, 0, "does not fit its payload of 20 bytes"},
		{"F32", 1, 1, 5, 1, "does not fit"},
		{"F32", 1, 1, UINT64_MAX, 0, "does not fit"},
		{"F32", 1, 4, 5, 0, "4 rows"},
		{"F32", 0, 4, 5, 0, "4 rows"},
		{"F32", 1, 0, 5, 0, "0 rows"},
	};
	struct onehop_shard_writer *writer = writer_of(SHARD);
	struct onehop_error error;
	CHECK(writer);
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		struct onehop_sample_source sample;
		struct onehop_part_source part = memory("raw", "12345678901234567890", 20);
		onehop_sample_source_init(&sample);
		sample.key = "a";
		sample.rows = wrong[i].rows;
		part.dtype = wrong[i].dtype;
		part.rank = wrong[i].rank;
		part.shape[0] = wrong[i].first;
		part.data_offset = wrong[i].data_offset;
		CHECK_EQ(onehop_shard_writer_add(writer, &sample, &part, 1, &error),
			 ONEHOP_INVALID_ARGUMENT);
		CHECK_HOLDS(error.message, wrong[i].words);
	}
	onehop_shard_writer_destroy(writer);
	CHECK_EQ(count_names(scratch("w")), 0);
}

/* A program of a later version knows more fields at the ends of the structs. */
TEST(structs_of_a_later_version_are_taken)
{
	struct {
		struct onehop_part_source part;
		uint64_t more;
	} later[2];
	struct onehop_shard_writer *writer = writer_of(SHARD);
	struct onehop_error error;
	CHECK(writer);
	for (int i = 0; i < 2; i++) {
		later[i].part = memory(i ? "b" : "a", "12", 2);
		later[i].part.size = sizeof later[i];
		later[i].more = UINT64_MAX;
	}
	CHECK_EQ(add(writer, "k", &later[0].part, 2, &error), ONEHOP_OK);
	later[1].part.size = 16;
	CHECK_EQ(add(writer, "l", &later[0].part, 2, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_HOLDS(error.message, "onehop_part_source_init");
	CHECK_EQ(onehop_shard_writer_finish(writer, NULL, &error), ONEHOP_OK);
	onehop_shard_writer_destroy(writer);
	CHECK_EQ(onehop_shard_verify(scratch(SHARD), NULL, &error), ONEHOP_OK);
	scratch_clear("w");
}

/* ---- random shards, held against their index by the verifier, which was written by itself */

TEST(random_shards_are_verified)
{
	static uint8_t data[200000];
	uint64_t seed = random_seed(21);
	struct random r = random_init(seed);
	printf("# seed %" PRIu64 "\n", seed);
	for (size_t i = 0; i < sizeof data; i++)
		data[i] = (uint8_t)random_next(&r);
	for (int round = 0; round < 60; round++) {
		struct onehop_shard_options options;
		struct onehop_shard_writer *writer;
		struct onehop_shard_info info = {.size = sizeof info};
		struct onehop_error error;
		uint64_t samples = random_below(&r, 40);
		onehop_shard_options_init(&options);
		options.sync = 0;
		options.align = (uint32_t)random_below(&r, 3);
		options.pad = (uint32_t)random_below(&r, 3);
		options.alignment_bytes = 512u << random_below(&r, 9);
		CHECK_EQ(onehop_shard_writer_create(scratch(SHARD), &options, &writer, &error),
			 ONEHOP_OK);
		for (uint64_t i = 0; i < samples; i++) {
			char key[64];
			struct onehop_part_source parts[4];
			uint64_t count = 1 + random_below(&r, 4);
			static const char *const fields[] = {"a", "b.npy", "c.jpg", "d.x.y"};
			snprintf(key, sizeof key, "%0*d", (int)(3 + random_below(&r, 50)), (int)i);
			for (uint64_t k = 0; k < count; k++)
				parts[k] = memory(fields[k], data, random_below(&r, 1 + (random_below(
									&r, 2) ? 9000 : sizeof data)));
			CHECK_EQ(add(writer, key, parts, count, &error), ONEHOP_OK);
		}
		CHECK_EQ(onehop_shard_writer_finish(writer, NULL, &error), ONEHOP_OK);
		onehop_shard_writer_destroy(writer);
		onehop_status status = onehop_shard_verify(scratch(SHARD), &info, &error);
		if (status)
			printf("# %s\n", error.message);
		CHECK_EQ(status, ONEHOP_OK);
		CHECK_EQ(info.samples, samples);
		scratch_clear("w");
	}
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
