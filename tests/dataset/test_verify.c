/* Shards of the writer against their index: what verify accepts and what it finds, and what index
 * does where there is a trailer. */
#include "../model/files.h"

#include "base/crc32c.h"
#include "format/shard_file.h"

#include <onehop/dataset.h>

static struct onehop_error error;
static char shard[1024], side[1024];

struct bytes {
	uint8_t *at;
	size_t count;
};

static struct bytes
read_file(const char *path)
{
	struct bytes b = {0};
	FILE *file = fopen(path, "rb");
	if (!file)
		return b;
	b.at = malloc(4 << 20);
	b.count = fread(b.at, 1, 4 << 20, file);
	fclose(file);
	return b;
}

static int
is_there(const char *path)
{
	return access(path, F_OK) == 0;
}

static const char npy[] = "\x93NUMPY\1\0\x38\0{'descr': '|u1', 'fortran_order': False, "
			  "'shape': (3,)}\n123";

static struct onehop_part_source
part(const char *field, const void *data, uint64_t bytes)
{
	struct onehop_part_source p;
	onehop_part_source_init(&p);
	p.field = field;
	p.data = data;
	p.bytes = bytes;
	return p;
}

/* Samples of several fields, with times, types and a chunk. */
static onehop_status
add_samples(struct onehop_shard_writer *writer)
{
	static uint8_t noise[70000];
	fill(noise, sizeof noise, "noise", 1);
	for (uint64_t i = 0; i < 20; i++) {
		char key[200];
		struct onehop_sample_source sample;
		struct onehop_part_source parts[4] = {
			part("cam.jpg", noise, 1 + 3457 * i), part("a.npy", npy, sizeof npy - 1),
			part("cls", "7", 1), part("raw", noise, 24)};
		onehop_sample_source_init(&sample);
		snprintf(key, sizeof key, "%.*s/%06d", 1 + 7 * (int)i,
			 "a-long-folder-name-of-several-parts-that-takes-more-than-a-header-has-"
			 "room-for-"
			 "and-so-a-long-name-record-is-written-before-it",
			 (int)i);
		sample.key = key;
		sample.timestamp_ns = 1000 * (int64_t)i;
		sample.episode = "e0";
		sample.stream = i % 2 ? "cam" : NULL;
		sample.rows = i == 5 ? 3 : 1;
		parts[3].dtype = "F32";
		parts[3].rank = 2;
		parts[3].shape[0] = 3;
		parts[3].shape[1] = 2;
		onehop_status status = onehop_shard_writer_add(writer, &sample, parts, 4, &error);
		if (status)
			return status;
	}
	return ONEHOP_OK;
}

static onehop_status
write_shard(uint32_t align, uint32_t pad, uint32_t alignment)
{
	struct onehop_shard_options options;
	struct onehop_shard_writer *writer = NULL;
	onehop_shard_options_init(&options);
	options.align = align;
	options.pad = pad;
	options.alignment_bytes = alignment;
	options.sync = 0;
	onehop_status status = onehop_shard_writer_create(shard, &options, &writer, &error);
	if (!status)
		status = add_samples(writer);
	if (!status)
		status = onehop_shard_writer_finish(writer, NULL, &error);
	onehop_shard_writer_destroy(writer);
	return status;
}

static onehop_status
verify(void)
{
	struct onehop_shard_info info = {.size = sizeof info};
	memset(&error, 0, sizeof error);
	return onehop_shard_verify(shard, &info, &error);
}

/* ------------------------------------------------------------------------------------------- */

TEST(shards_of_all_alignments_and_fillers_are_right_with_side_file_and_without)
{
	static const uint32_t alignments[] = {512, 4096, 65536};
	for (uint32_t align = 0; align < 3; align++)
		for (uint32_t pad = 0; pad < 3; pad++)
			for (size_t i = 0; i < 3; i++) {
				struct onehop_shard_info info = {.size = sizeof info};
				CHECK_EQ(write_shard(align, pad, alignments[i]), ONEHOP_OK);
				CHECK_EQ(verify(), ONEHOP_OK);
				unlink(side);
				CHECK_EQ(onehop_shard_verify(shard, &info, &error), ONEHOP_OK);
				CHECK_EQ(info.samples, 20);
				CHECK_EQ(info.members, 80);
				CHECK_EQ(info.skipped, 0);
				CHECK_EQ(info.has_trailer, 1);
			}
}

TEST(a_trailer_counts_as_an_index_and_is_copied_out_when_asked)
{
	struct onehop_shard_info info = {.size = sizeof info};
	CHECK_EQ(write_shard(2, 0, 4096), ONEHOP_OK);
	struct bytes right = read_file(side);
	unlink(side);
	CHECK_EQ(onehop_shard_index(shard, 1, 0, &info, &error), ONEHOP_OK);
	CHECK_EQ(is_there(side), 0);
	CHECK_EQ(info.samples, 20);
	CHECK_EQ(onehop_shard_index(shard, 1, 1, &info, &error), ONEHOP_OK);
	struct bytes again = read_file(side);
	CHECK_EQ(again.count, right.count);
	CHECK_EQ(memcmp(again.at, right.at, right.count), 0);
	/* Another side file is no match for the trailer. */
	again.at[again.count - 1] ^= 1;
	write_file(side, again.at, again.count - 64);
	CHECK_EQ(onehop_shard_index(shard, 1, 0, &info, &error), ONEHOP_OK);
	free(again.at);
	again = read_file(side);
	CHECK_EQ(again.count, right.count);
	CHECK_EQ(memcmp(again.at, right.at, right.count), 0);
	free(right.at);
	free(again.at);
}

/* ------------------------------------------------------------------------------------------- */
/* Indexes that lie, with every CRC right */

struct lie {
	const char *words;
	uint32_t kind;   /* of the section; 0: the header */
	uint64_t offset; /* in it */
	uint64_t value;
	uint32_t bytes; /* of the value */
};

static void
sum_up(uint8_t *index)
{
	struct oh_shard_header *header = (void *)index;
	struct oh_shard_section *sections = (void *)(header + 1);
	for (uint32_t i = 0; i < header->sections; i++)
		sections[i].crc32c = oh_crc32c(0, index + sections[i].offset, sections[i].bytes);
	header->crc32c = oh_crc32c(0, header, offsetof(struct oh_shard_header, crc32c));
	header->crc32c = oh_crc32c(header->crc32c, sections, header->sections * sizeof *sections);
}

static void
tell(struct bytes index, const struct lie *lie)
{
	struct oh_shard_header *header = (void *)index.at;
	struct oh_shard_section *sections = (void *)(header + 1);
	uint8_t *at = index.at + lie->offset;
	for (uint32_t i = 0; lie->kind && i < header->sections; i++)
		if (sections[i].kind == lie->kind)
			at = index.at + sections[i].offset + lie->offset;
	memcpy(at, &lie->value, lie->bytes);
	sum_up(index.at);
}

#define HEADER(member) 0, offsetof(struct oh_shard_header, member)
#define PART(n, member)                                                                            \
	OH_SECTION_PARTS,                                                                          \
		(n) * sizeof(struct oh_shard_part) + offsetof(struct oh_shard_part, member)
#define TIME(n, member)                                                                            \
	OH_SECTION_TIMES,                                                                          \
		(n) * sizeof(struct oh_shard_time) + offsetof(struct oh_shard_time, member)
#define SAMPLE(n, member)                                                                          \
	OH_SECTION_SAMPLES,                                                                        \
		(n) * sizeof(struct oh_shard_sample) + offsetof(struct oh_shard_sample, member)
#define TYPE(n, member)                                                                            \
	OH_SECTION_TYPES,                                                                          \
		(n) * sizeof(struct oh_shard_type) + offsetof(struct oh_shard_type, member)

TEST(an_index_that_lies_is_found_out)
{
	static const struct lie lies[] = {
		{"the number of files in it", HEADER(members), 81, 8},
		{"a part of sample 0 in the index is wrong", HEADER(tar_end), 512, 8},
		{"the size of the shard", HEADER(shard_bytes), 1 << 30, 8},
		{"past the shard's end at", HEADER(tar_end), 1 << 20, 8},
		{"past the alignment", HEADER(alignment_bytes), 1 << 20, 4},
		{"past the alignment", HEADER(align), 1, 4},
		{"it has a trailer that its index knows nothing of", HEADER(flags), 1, 4},
		{"the offset of its bytes is", PART(7, offset), 512, 8},
		{"its size is 1, and the index says 0", PART(6, bytes), 0, 8},
		{"its bytes have the CRC-32C", PART(79, crc32c), 0x12345678, 4},
		{"in its place the index has field", PART(40, field), 2, 2},
		{"a part of sample 2 in the index is wrong", PART(8, field), 99, 2},
		{"a part of sample 2 in the index is wrong", PART(8, type), 99, 4},
		{"the episode of sample 3", TIME(3, episode), 1, 4},
		{"the stream of sample 3", TIME(3, stream), 1, 4},
		{"the number of rows of sample 3", TIME(3, rows), 0, 4},
		{"the first dimension of its array is 3, and the index says 2", TIME(5, rows), 2,
		 4},
		{"the entry of sample 3 in the index is wrong", SAMPLE(4, first_part), 12, 8},
		{"in its place the index has one of sample", SAMPLE(1, key), 1, 8},
		{"another type or shape than its .npy header", TYPE(0, dtype), 1, 2},
		{"its trailer is of another index", TIME(3, timestamp_ns), 5, 8},
	};
	for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
		CHECK_EQ(write_shard(2, 0, 4096), ONEHOP_OK);
		struct bytes index = read_file(side);
		tell(index, &lies[i]);
		write_file(side, index.at, index.count);
		free(index.at);
		onehop_status status = verify();
		if (status != ONEHOP_MISMATCH && status != ONEHOP_MALFORMED)
			test_fail(__FILE__, __LINE__, "lie %zu (%s): status %d, \"%s\"", i,
				  lies[i].words, status, error.message);
		CHECK_HOLDS(error.message, lies[i].words);
		CHECK(error.remedy[0]);
	}
}

TEST(no_bit_of_a_shard_can_change_unnoticed_but_in_padding)
{
	CHECK_EQ(write_shard(2, 0, 4096), ONEHOP_OK);
	struct bytes right = read_file(shard);
	const struct oh_shard_header *header;
	struct bytes index = read_file(side);
	header = (const void *)index.at;
	const struct oh_shard_section *sections = (const void *)(header + 1);
	const struct oh_shard_part *parts = NULL;
	for (uint32_t i = 0; i < header->sections; i++)
		if (sections[i].kind == OH_SECTION_PARTS)
			parts = (const void *)(index.at + sections[i].offset);
	for (uint64_t i = 0; i < header->parts; i++)
		for (uint64_t at = parts[i].offset - 512; at < parts[i].offset + parts[i].bytes;
		     at += 1 + at % 997) {
			right.at[at] ^= 0x10;
			write_file(shard, right.at, right.count);
			right.at[at] ^= 0x10;
			uint64_t in_header = at - (parts[i].offset - 512);
			if (in_header >= 148 && in_header < 156)
				continue; /* the sum's spelling */
			CHECK(verify() != ONEHOP_OK);
		}
	free(right.at);
	free(index.at);
}

/* ------------------------------------------------------------------------------------------- */
/* Trailers */

/* What tar -r does: it writes a member where the archive ended, and ends it anew. */
TEST(a_shard_that_was_added_to_is_found_out_by_its_trailer)
{
	CHECK_EQ(write_shard(0, 0, 512), ONEHOP_OK);
	struct bytes all = read_file(shard);
	struct oh_shard_trailer trailer;
	memcpy(&trailer, all.at + all.count - sizeof trailer, sizeof trailer);
	/* A copy of the first header, of a file without bytes, and as long an end as there is room.
	 */
	memset(all.at + trailer.tar_end, 0, 512);
	memcpy(all.at + trailer.tar_end, "more.jpg", 8);
	memcpy(all.at + trailer.tar_end + 124, "00000000000", 11);
	all.at[trailer.tar_end + 156] = '0';
	unsigned sum = 8 * ' ';
	for (int i = 0; i < 512; i++)
		sum += all.at[trailer.tar_end + (uint64_t)i];
	snprintf((char *)all.at + trailer.tar_end + 148, 8, "%06o", sum);
	memset(all.at + trailer.tar_end + 512, 0, 1024);
	write_file(shard, all.at, all.count);
	CHECK(verify() != ONEHOP_OK);
	unlink(side);
	CHECK(verify() != ONEHOP_OK);
	CHECK_EQ(onehop_shard_index(shard, 1, 1, NULL, &error), ONEHOP_MISMATCH);
	CHECK_HOLDS(error.message, "it was changed after it was packed");
	CHECK_EQ(is_there(side), 0);
	free(all.at);
}

TEST(a_damaged_trailer_is_data_behind_the_end)
{
	CHECK_EQ(write_shard(2, 0, 4096), ONEHOP_OK);
	struct bytes all = read_file(shard);
	all.at[all.count - 30] ^= 1;
	write_file(shard, all.at, all.count);
	CHECK_EQ(verify(), ONEHOP_MALFORMED);
	unlink(side);
	CHECK_EQ(verify(), ONEHOP_MALFORMED);
	CHECK_HOLDS(error.message, "its trailer, the last 64 bytes, is damaged");
	CHECK_EQ(onehop_shard_index(shard, 1, 0, NULL, &error), ONEHOP_MALFORMED);
	CHECK_HOLDS(error.message, "something that is no archive follows");
	free(all.at);
}

TEST(a_damaged_index_behind_a_good_trailer_is_refused_with_what_to_do)
{
	CHECK_EQ(write_shard(2, 0, 4096), ONEHOP_OK);
	struct bytes all = read_file(shard);
	struct oh_shard_trailer trailer;
	memcpy(&trailer, all.at + all.count - sizeof trailer, sizeof trailer);
	all.at[trailer.index_offset + 40] ^= 1;
	write_file(shard, all.at, all.count);
	unlink(side);
	CHECK_EQ(verify(), ONEHOP_MALFORMED);
	CHECK_EQ(onehop_shard_index(shard, 1, 0, NULL, &error), ONEHOP_MALFORMED);
	CHECK_HOLDS(error.remedy, "truncate -s");
	/* That helps. */
	write_file(shard, all.at, trailer.tar_end + 1024);
	CHECK_EQ(onehop_shard_index(shard, 1, 0, NULL, &error), ONEHOP_OK);
	CHECK_EQ(verify(), ONEHOP_OK);
	free(all.at);
}

TEST(a_trailer_of_another_index_or_of_a_newer_version_is_refused)
{
	for (int newer = 0; newer < 2; newer++) {
		struct oh_shard_trailer trailer;
		CHECK_EQ(write_shard(2, 0, 4096), ONEHOP_OK);
		struct bytes all = read_file(shard);
		memcpy(&trailer, all.at + all.count - sizeof trailer, sizeof trailer);
		trailer.version += (uint32_t)newer;
		trailer.index_crc32c ^= !newer;
		trailer.crc32c = oh_crc32c(0, &trailer, offsetof(struct oh_shard_trailer, crc32c));
		memcpy(all.at + all.count - sizeof trailer, &trailer, sizeof trailer);
		write_file(shard, all.at, all.count);
		free(all.at);
		for (int with_side = 1; with_side >= 0; with_side--) {
			if (!with_side)
				unlink(side);
			CHECK_EQ(verify(), newer ? ONEHOP_UNSUPPORTED_DATA : ONEHOP_MALFORMED);
			CHECK_HOLDS(error.message, newer ? "version 2" : "of another index");
			CHECK(onehop_shard_index(shard, 1, 1, NULL, &error) != ONEHOP_OK);
		}
	}
}

TEST(what_a_caller_gives_is_checked)
{
	struct onehop_shard_info info = {0};
	CHECK_EQ(onehop_shard_index(NULL, 1, 0, NULL, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(onehop_shard_index(shard, 1, 0, &info, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(onehop_shard_verify(NULL, NULL, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(onehop_shard_verify(shard, &info, NULL), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(onehop_shard_verify(scratch("nowhere.tar"), NULL, &error), ONEHOP_NOT_FOUND);
	CHECK_EQ(onehop_shard_verify(scratch_root, NULL, &error), ONEHOP_INVALID_ARGUMENT);
	CHECK_EQ(write_shard(2, 0, 4096), ONEHOP_OK);
	CHECK_EQ(onehop_shard_index(shard, 1, 1, NULL, NULL), ONEHOP_OK);
	CHECK_EQ(onehop_shard_verify(shard, NULL, NULL), ONEHOP_OK);
	/* A caller of an older version gets what it knows. */
	struct onehop_shard_info small = {.size = 24, .shard_bytes = 77};
	CHECK_EQ(onehop_shard_verify(shard, &small, NULL), ONEHOP_OK);
	CHECK_EQ(small.samples, 20);
	CHECK_EQ(small.members, 80);
	CHECK_EQ(small.shard_bytes, 77);
}

int
main(int argc, char **argv)
{
	snprintf(shard, sizeof shard, "%s", scratch("v/a.tar"));
	snprintf(side, sizeof side, "%s", scratch("v/a.tar.onehop"));
	return test_main(argc, argv);
}
