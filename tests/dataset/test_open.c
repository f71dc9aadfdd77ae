/* Datasets: what is found in shards and folders, one numbering over all of them, and what is refused.
 */
#include "shards.h"

#include "dataset/dataset.h"
#include "format/shard_file.h"

static struct onehop_error error;
static struct onehop_runtime *runtime;
static struct onehop_dataset *dataset;

static onehop_status
open_paths(const char *const *paths, uint64_t count)
{
	if (!runtime)
		need(onehop_runtime_create(NULL, &runtime, &error) == ONEHOP_OK, "runtime");
	dataset = NULL;
	return onehop_dataset_open(runtime, paths, count, &dataset, &error);
}

static onehop_status
open_path(const char *path)
{
	return open_paths(&path, 1);
}

static void
close_it(void)
{
	onehop_dataset_close(dataset);
	onehop_runtime_destroy(runtime);
	runtime = NULL;
	dataset = NULL;
}

static int
is_name(struct onehop_name name, const char *text)
{
	return name.bytes == strlen(text) && memcmp(name.text, text, name.bytes) == 0;
}

/* ---- what is there */

static void
check_sample(const struct recipe *recipe, uint64_t index)
{
	struct onehop_sample sample = {.size = sizeof sample};
	char key[32];
	CHECK_EQ(onehop_dataset_sample_at(dataset, index, &sample), ONEHOP_OK);
	snprintf(key, sizeof key, "s%06llu", (unsigned long long)index);
	CHECK(is_name(sample.key, key));
	CHECK_EQ(sample.shard, index / recipe->samples);
	CHECK_EQ(sample.timestamp_ns, recipe->episodes ? (int64_t)index * 1000 : ONEHOP_NO_TIME);
	CHECK_EQ(sample.rows, 1);
	CHECK_EQ(sample.stream, ONEHOP_NO_NAME);
	uint64_t end = 0;
	for (uint64_t i = 0; i < sample.parts; i++) {
		struct onehop_part part = {.size = sizeof part};
		CHECK_EQ(onehop_dataset_part_at(dataset, index, i, &part), ONEHOP_OK);
		CHECK_EQ(part.bytes, payload_bytes(recipe, index, part.field));
		CHECK_EQ(part.shard, sample.shard);
		CHECK(i || part.offset == sample.offset);
		CHECK(part.dtype == NULL && part.timestamp_ns == ONEHOP_NO_TIME);
		end = part.offset + part.bytes;
	}
	CHECK_EQ(sample.offset + sample.bytes, end);
	CHECK_EQ(onehop_dataset_part_at(dataset, index, sample.parts, NULL), ONEHOP_OUT_OF_RANGE);
}

static const struct recipe three = {.shards = 3, .samples = 40, .fields = 3, .bytes = {100, 4, 0},
				    .vary = 700, .skip = 5, .episodes = 4};

TEST(a_folder_is_its_shards_in_the_order_of_their_names)
{
	struct onehop_dataset_info info = {.size = sizeof info};
	const char *folder = make_shards("folder", &three);
	char path[1100];
	snprintf(path, sizeof path, "%s/.hidden.tar", folder);
	write_file(path, "x", 1);
	snprintf(path, sizeof path, "%s/notes.txt", folder);
	write_file(path, "x", 1);
	CHECK_EQ(open_path(folder), ONEHOP_OK);
	CHECK_EQ(onehop_dataset_query(dataset, &info), ONEHOP_OK);
	CHECK_EQ(info.shards, 3);
	CHECK_EQ(info.samples, 120);
	CHECK_EQ(info.parts, 120 * 3 - 24);
	CHECK_EQ(info.fields, 3);
	CHECK_EQ(info.episodes, 4);
	CHECK_EQ(info.streams, 0);
	CHECK_EQ(info.has_checksums, 1);
	uint64_t payload_sum = 0;
	for (uint64_t i = 0; i < 120; i++) {
		check_sample(&three, i);
		for (uint64_t field = 0; field < 3; field++)
			if (payload_bytes(&three, i, field) != UINT64_MAX)
				payload_sum += payload_bytes(&three, i, field);
	}
	CHECK_EQ(info.payload_bytes, payload_sum);
	for (uint64_t i = 0; i < 3; i++) {
		struct onehop_shard shard = {.size = sizeof shard};
		CHECK_EQ(onehop_dataset_shard_at(dataset, i, &shard), ONEHOP_OK);
		snprintf(path, sizeof path, "%s/%04llu.tar", folder, (unsigned long long)i);
		CHECK_STR(shard.path, path);
		CHECK_EQ(shard.first_sample, i * 40);
		CHECK_EQ(shard.samples, 40);
	}
	CHECK_EQ(onehop_dataset_shard_at(dataset, 3, NULL), ONEHOP_OUT_OF_RANGE);
	CHECK_EQ(onehop_dataset_sample_at(dataset, 120, NULL), ONEHOP_OUT_OF_RANGE);
	CHECK_EQ(onehop_dataset_field_at(dataset, 3, NULL), ONEHOP_OUT_OF_RANGE);
	close_it();
}

TEST(shards_are_numbered_as_they_are_given_and_the_fingerprint_tells)
{
	struct onehop_dataset_info info = {.size = sizeof info};
	struct onehop_shard shard = {.size = sizeof shard};
	const char *folder = make_shards("given", &three);
	char paths[3][1100];
	const char *order[3] = {paths[2], paths[0], paths[1]};
	uint64_t prints[3];
	for (int i = 0; i < 3; i++)
		snprintf(paths[i], sizeof paths[i], "%s/%04d.tar", folder, i);
	CHECK_EQ(open_path(folder), ONEHOP_OK);
	onehop_dataset_query(dataset, &info);
	prints[0] = info.fingerprint;
	close_it();
	CHECK_EQ(open_paths(order, 3), ONEHOP_OK);
	onehop_dataset_query(dataset, &info);
	prints[1] = info.fingerprint;
	CHECK_EQ(onehop_dataset_shard_at(dataset, 0, &shard), ONEHOP_OK);
	CHECK_STR(shard.path, paths[2]);
	close_it();
	folder = make_shards("elsewhere", &three);
	CHECK_EQ(open_path(folder), ONEHOP_OK);
	onehop_dataset_query(dataset, &info);
	prints[2] = info.fingerprint;
	close_it();
	CHECK(prints[0] != prints[1]);
	CHECK_EQ(prints[0], prints[2]);
}

TEST(fields_tell_what_their_parts_have_in_common)
{
	struct onehop_field field = {.size = sizeof field};
	uint64_t least = UINT64_MAX, most = 0;
	CHECK_EQ(open_path(make_shards("fields", &three)), ONEHOP_OK);
	for (uint64_t i = 0; i < 120; i++) {
		uint64_t bytes = payload_bytes(&three, i, 0);
		least = bytes < least ? bytes : least;
		most = bytes > most ? bytes : most;
	}
	CHECK_EQ(onehop_dataset_field_at(dataset, 0, &field), ONEHOP_OK);
	CHECK(is_name(field.name, "jpg"));
	CHECK_EQ(field.parts, 120);
	CHECK_EQ(field.min_bytes, least);
	CHECK_EQ(field.max_bytes, most);
	CHECK(field.dtype == NULL);
	CHECK_EQ(onehop_dataset_field_at(dataset, 2, &field), ONEHOP_OK);
	CHECK(is_name(field.name, "state.npy"));
	CHECK_EQ(field.parts, 96);
	close_it();
}

TEST(columns_say_what_single_lookups_say)
{
	static uint64_t samples[500], shard[500], offset[500], bytes[500];
	static int64_t times[500];
	static uint32_t episode[500], crc[500], type[500];
	struct onehop_sample_columns of_samples = {.size = sizeof of_samples, .shard = shard,
						   .timestamp_ns = times, .episode = episode};
	struct onehop_part_columns of_parts = {.size = sizeof of_parts, .offset = offset,
					       .bytes = bytes, .crc32c = crc, .type = type};
	struct random r = random_init(5);
	CHECK_EQ(open_path(make_shards("columns", &three)), ONEHOP_OK);
	for (int i = 0; i < 500; i++)
		samples[i] = random_below(&r, 120);
	CHECK_EQ(onehop_dataset_samples(dataset, samples, 500, &of_samples, &error), ONEHOP_OK);
	CHECK_EQ(onehop_dataset_parts(dataset, 2, samples, 500, &of_parts, &error), ONEHOP_OK);
	for (int i = 0; i < 500; i++) {
		struct onehop_sample one = {.size = sizeof one};
		struct onehop_part part = {.size = sizeof part};
		onehop_dataset_sample_at(dataset, samples[i], &one);
		CHECK_EQ(shard[i], one.shard);
		CHECK_EQ(times[i], one.timestamp_ns);
		CHECK_EQ(episode[i], one.episode);
		CHECK_EQ(bytes[i], payload_bytes(&three, samples[i], 2));
		CHECK_EQ(type[i], 0);
		if (bytes[i] == UINT64_MAX)
			continue;
		CHECK_EQ(onehop_dataset_part_at(dataset, samples[i], 2, &part), ONEHOP_OK);
		CHECK_EQ(offset[i], part.offset);
		CHECK_EQ(crc[i], part.crc32c);
	}
	samples[77] = 120;
	CHECK_EQ(onehop_dataset_samples(dataset, samples, 500, &of_samples, &error),
		 ONEHOP_OUT_OF_RANGE);
	CHECK_HOLDS(error.message, "sample 120: the dataset has 120");
	CHECK_EQ(onehop_dataset_parts(dataset, 3, samples, 1, &of_parts, &error),
		 ONEHOP_OUT_OF_RANGE);
	close_it();
}

/* Shards whose fields are numbered differently, and of different types. */
TEST(fields_types_and_episodes_are_united_over_shards)
{
	static const char *const names[2][2] = {{"a", "b"}, {"b", "c"}};
	char path[2][1100];
	const char *paths[2] = {path[0], path[1]};
	for (int s = 0; s < 2; s++) {
		struct oh_shard_builder *builder;
		struct tar tar = {0};
		struct recipe none = {0};
		struct oh_shard_time time = {1, 0, 0, 1, 0};
		snprintf(path[s], sizeof path[s], "%s", scratch(s ? "united1.tar" : "united0.tar"));
		oh_shard_builder_create(&builder);
		oh_shard_builder_episode(builder, s ? "drive" : "other", 5, &time.episode);
		oh_shard_builder_episode(builder, "drive", 5, &time.episode);
		oh_shard_builder_stream(builder, "cam", 3, &time.stream);
		oh_shard_builder_sample(builder, "k", 1, &time);
		for (int f = 0; f < 2; f++) {
			struct oh_shard_type type = {
				.dtype = oh_shard_dtype_code("F32"), .rank = 1,
				.shape = {2 + (s && f == 1)}};
			struct oh_shard_part part = {.bytes = 12};
			part.offset = tar_member(&tar, names[s][f], 1, 1, 12);
			oh_shard_builder_field(builder, names[s][f], 1, &part.field);
			oh_shard_builder_type(builder, &type, &part.type);
			oh_shard_builder_part(builder, &part, 7);
		}
		uint64_t end = tar.count;
		tar_add(&tar, 1024);
		add_index(&tar, builder, &none, end, 2, path[s]);
		write_file(path[s], tar.bytes, tar.count);
		oh_shard_builder_destroy(builder);
		free(tar.bytes);
	}
	CHECK_EQ(open_paths(paths, 2), ONEHOP_OK);
	struct onehop_dataset_info info = {.size = sizeof info};
	struct onehop_field field = {.size = sizeof field};
	struct onehop_part part = {.size = sizeof part};
	struct onehop_sample sample = {.size = sizeof sample};
	struct onehop_type type = {.size = sizeof type};
	struct onehop_name name;
	onehop_dataset_query(dataset, &info);
	CHECK_EQ(info.fields, 3);
	CHECK_EQ(info.episodes, 2);
	CHECK_EQ(info.streams, 1);
	onehop_dataset_field_at(dataset, 1, &field);
	CHECK(is_name(field.name, "b"));
	CHECK_EQ(field.parts, 2);
	CHECK_STR(field.dtype, "F32");
	CHECK_EQ(field.shape[0], 2);
	onehop_dataset_field_at(dataset, 2, &field);
	CHECK_EQ(field.shape[0], 3);
	CHECK_EQ(onehop_dataset_part_at(dataset, 1, 1, &part), ONEHOP_OK);
	CHECK_EQ(part.field, 2);
	CHECK_EQ(part.timestamp_ns, 7);
	CHECK_EQ(part.crc32c, 0);
	CHECK_EQ(onehop_dataset_sample_at(dataset, 1, &sample), ONEHOP_OK);
	CHECK_EQ(onehop_dataset_episode_at(dataset, sample.episode, &name), ONEHOP_OK);
	CHECK(is_name(name, "drive"));
	CHECK_EQ(onehop_dataset_stream_at(dataset, sample.stream, &name), ONEHOP_OK);
	CHECK(is_name(name, "cam"));
	uint64_t samples[2] = {0, 1}, bytes[2];
	uint32_t types[2];
	struct onehop_part_columns columns = {.size = sizeof columns, .bytes = bytes, .type = types};
	CHECK_EQ(onehop_dataset_parts(dataset, 2, samples, 2, &columns, &error), ONEHOP_OK);
	CHECK_EQ(bytes[0], UINT64_MAX);
	CHECK_EQ(bytes[1], 12);
	CHECK_EQ(onehop_dataset_type_at(dataset, types[1] - 1, &type), ONEHOP_OK);
	CHECK_EQ(type.shape[0], 3);
	close_it();
}

TEST(a_trailer_serves_where_there_is_no_side_file)
{
	struct recipe recipe = three;
	recipe.trailer = 1;
	onehop_status status = open_path(make_shards("trailer", &recipe));
	if (status)
		printf("# %s\n", error.message);
	CHECK_EQ(status, ONEHOP_OK);
	for (uint64_t i = 0; i < 120; i++)
		check_sample(&recipe, i);
	close_it();
}

/* ---- what is refused */

static const struct recipe one = {.shards = 1, .samples = 20, .fields = 2, .bytes = {300, 4},
				  .vary = 50, .episodes = 2};

/* A shard and the file of its index, in memory: to be damaged and written again. */
static char shard_path[1100], index_path[1200];
static uint8_t *index_bytes;
static uint64_t index_count;

static void
make_one(const char *folder, const struct recipe *recipe)
{
	snprintf(shard_path, sizeof shard_path, "%s/0000.tar", make_shards(folder, recipe));
	snprintf(index_path, sizeof index_path, "%s.onehop", shard_path);
	FILE *f = fopen(index_path, "r");
	free(index_bytes);
	index_bytes = malloc(1 << 20);
	index_count = f ? fread(index_bytes, 1, 1 << 20, f) : 0;
	if (f)
		fclose(f);
}

static struct oh_shard_section *
section(enum oh_shard_kind kind)
{
	struct oh_shard_header *header = (void *)index_bytes;
	struct oh_shard_section *at = (void *)(header + 1);
	for (uint32_t i = 0; i < header->sections; i++)
		if (at[i].kind == (uint32_t)kind)
			return &at[i];
	need(0, "section");
	return NULL;
}

static void *
entries(enum oh_shard_kind kind)
{
	return index_bytes + section(kind)->offset;
}

/* Writes the index again with right sums. */
static void
write_index(void)
{
	struct oh_shard_header *header = (void *)index_bytes;
	struct oh_shard_section *at = (void *)(header + 1);
	for (uint32_t i = 0; i < header->sections; i++)
		at[i].crc32c = oh_crc32c(0, index_bytes + at[i].offset, at[i].bytes);
	header->crc32c = oh_crc32c(oh_crc32c(0, header, 124), at, header->sections * sizeof *at);
	write_file(index_path, index_bytes, index_count);
}

static void
refused(onehop_status status, const char *holds)
{
	CHECK_EQ(open_path(shard_path), status);
	CHECK(dataset == NULL);
	CHECK_HOLDS(error.message, "0000.tar");
	CHECK_HOLDS(error.message, holds);
	CHECK(error.remedy[0] != '\0');
	close_it();
}

TEST(entries_that_leave_their_bounds_are_refused_although_their_sums_are_right)
{
	struct oh_shard_part *part;
	struct oh_shard_sample *sample;
	make_one("hostile", &one);
	part = entries(OH_SECTION_PARTS);
	part[3].offset = UINT64_MAX - 10;
	write_index();
	refused(ONEHOP_MALFORMED, "entry 3 of its index's parts");
	make_one("hostile", &one);
	part = entries(OH_SECTION_PARTS);
	part[39].bytes = UINT64_MAX;
	write_index();
	refused(ONEHOP_MALFORMED, "entry 39 of its index's parts");
	make_one("hostile", &one);
	part = entries(OH_SECTION_PARTS);
	part[5].offset = part[4].offset;
	write_index();
	refused(ONEHOP_MALFORMED, "entry 5 of its index's parts");
	make_one("hostile", &one);
	part = entries(OH_SECTION_PARTS);
	part[0].field = 2;
	write_index();
	refused(ONEHOP_MALFORMED, "entry 0 of its index's parts");
	make_one("hostile", &one);
	part = entries(OH_SECTION_PARTS);
	part[0].type = 1;
	write_index();
	refused(ONEHOP_MALFORMED, "entry 0 of its index's parts");
	make_one("hostile", &one);
	sample = entries(OH_SECTION_SAMPLES);
	sample[7].first_part = UINT64_MAX;
	write_index();
	refused(ONEHOP_MALFORMED, "of its index's samples");
	make_one("hostile", &one);
	sample = entries(OH_SECTION_SAMPLES);
	sample[7].key = UINT64_MAX;
	write_index();
	refused(ONEHOP_MALFORMED, "of its index's samples");
	make_one("hostile", &one);
	((struct oh_shard_time *)entries(OH_SECTION_TIMES))[19].episode = 2;
	write_index();
	refused(ONEHOP_MALFORMED, "entry 19 of its index's times");
	make_one("hostile", &one);
	((struct oh_shard_name *)entries(OH_SECTION_FIELDS))[1].offset = UINT32_MAX;
	write_index();
	refused(ONEHOP_MALFORMED, "entry 1 of its index's fields");
}

/* Whatever an entry holds, nothing is looked up outside of the index. */
TEST(random_entries_are_refused_or_harmless)
{
	uint64_t seed = random_seed(6);
	struct random r = random_init(seed);
	struct onehop_sample sample = {.size = sizeof sample};
	struct onehop_part part = {.size = sizeof part};
	uint64_t opened = 0;
	for (int i = 0; i < 600; i++) {
		make_one("random", &one);
		struct oh_shard_header *header = (void *)index_bytes;
		uint64_t at = sizeof *header + header->sections * 32;
		for (int k = 0; k < 3; k++) {
			uint64_t byte = at + random_below(&r, index_count - at);
			index_bytes[byte] ^= (uint8_t)(1 << random_below(&r, 8));
		}
		write_index();
		onehop_status status = open_path(shard_path);
		CHECK(status == ONEHOP_OK || status == ONEHOP_MALFORMED);
		for (uint64_t n = 0; !status && n < 20; n++) {
			CHECK_EQ(onehop_dataset_sample_at(dataset, n, &sample), ONEHOP_OK);
			for (uint64_t k = 0; k < sample.parts; k++)
				CHECK_EQ(onehop_dataset_part_at(dataset, n, k, &part), ONEHOP_OK);
		}
		opened += status == ONEHOP_OK;
		close_it();
	}
	CHECK(opened > 0 && opened < 600);
	if (test_failed)
		printf("# TEST_SEED=%llu\n", (unsigned long long)seed);
}

TEST(an_index_of_another_shard_is_refused)
{
	make_one("mismatch", &one);
	FILE *f = fopen(shard_path, "a");
	fputs("more", f);
	fclose(f);
	refused(ONEHOP_MISMATCH, "the size of the shard");
	make_one("mismatch", &one);
	((struct oh_shard_header *)index_bytes)->tar_end -= 512;
	/* The last part now lies past the end, but the blocks there are looked at first. */
	write_index();
	refused(ONEHOP_MISMATCH, "does not end at byte");
	make_one("mismatch", &one);
	((struct oh_shard_header *)index_bytes)->flags |= OH_SHARD_TRAILER;
	write_index();
	refused(ONEHOP_MISMATCH, "its trailer is missing");
}

TEST(damage_is_refused_by_its_sums)
{
	make_one("damage", &one);
	index_bytes[index_count - 1] ^= 1;
	index_bytes[section(OH_SECTION_KEYS)->offset] ^= 1;
	write_file(index_path, index_bytes, index_count);
	refused(ONEHOP_MALFORMED, "checksum of section");
	struct recipe recipe = one;
	recipe.trailer = 1;
	make_one("damaged-trailer", &recipe);
	FILE *f = fopen(shard_path, "r+");
	fseek(f, -30, SEEK_END);
	fputc(1, f);
	fclose(f);
	refused(ONEHOP_MALFORMED, "trailer");
}

/* Read in pieces, by several threads where there are cores. */
TEST(damage_anywhere_in_a_large_index_is_refused_by_its_sums)
{
	static const uint64_t samples = 400000;
	uint64_t seed = random_seed(1);
	struct random r = random_init(seed);
	struct oh_shard_builder *builder;
	need(oh_shard_builder_create(&builder) == ONEHOP_OK, "builder");
	for (uint64_t i = 0; i < samples; i++) {
		struct oh_shard_part part = {.offset = i * 1024 + 512, .bytes = i % 512};
		char key[16];
		snprintf(key, sizeof key, "%07llu", (unsigned long long)i);
		oh_shard_builder_sample(builder, key, 7, NULL);
		oh_shard_builder_field(builder, "bin", 3, &part.field);
		oh_shard_builder_part(builder, &part, OH_SHARD_NO_TIME);
	}
	uint64_t bytes = oh_shard_builder_bytes(builder);
	struct oh_shard_facts facts = {.shard_bytes = samples * 1024 + 1024,
				       .tar_end = samples * 1024, .members = samples,
				       .flags = OH_SHARD_CHECKSUMS, .alignment_bytes = 512};
	free(index_bytes);
	index_bytes = calloc(1, bytes);
	need(index_bytes != NULL && bytes > UINT64_C(20) << 20, "calloc");
	oh_shard_builder_finish(builder, &facts, index_bytes);
	oh_shard_builder_destroy(builder);
	const char *path = scratch("large.tar");
	write_file(path, "", 0);
	need(truncate(path, (off_t)facts.shard_bytes) == 0, path);
	char side[1200];
	snprintf(side, sizeof side, "%s.onehop", path);
	write_file(side, index_bytes, bytes);
	CHECK_EQ(open_path(path), ONEHOP_OK);
	close_it();
	for (int round = 0; round < 12 && !test_failed; round++) {
		static const enum oh_shard_kind kinds[] = {OH_SECTION_SAMPLES, OH_SECTION_PARTS,
							   OH_SECTION_KEYS};
		const struct oh_shard_section *hit = section(kinds[round % 3]);
		uint64_t at = hit->offset + random_below(&r, hit->bytes);
		index_bytes[at] ^= 8;
		write_file(side, index_bytes, bytes);
		CHECK_EQ(open_path(path), ONEHOP_MALFORMED);
		CHECK_HOLDS(error.message, "checksum of section");
		close_it();
		index_bytes[at] ^= 8;
	}
	if (test_failed)
		printf("# TEST_SEED=%llu\n", (unsigned long long)seed);
}

TEST(a_newer_index_beside_an_older_shard_of_one_size_is_refused)
{
	struct recipe recipe = one;
	recipe.trailer = 1;
	make_one("killed", &recipe);
	uint64_t place[2]; /* of the index in the shard, and its bytes */
	FILE *f = fopen(shard_path, "r");
	need(f && !fseek(f, -48, SEEK_END) && fread(place, 8, 2, f) == 2, shard_path);
	need(!fseek(f, (long)place[0], SEEK_SET) && fread(index_bytes, place[1], 1, f) == 1,
	     shard_path);
	fclose(f);
	index_count = place[1];
	/* As a writer leaves it that was killed between its two renames: same size, other payloads. */
	((struct oh_shard_part *)(index_bytes + section(OH_SECTION_PARTS)->offset))->crc32c ^= 1;
	write_index();
	refused(ONEHOP_MISMATCH, "its trailer is of another index");
}

TEST(what_is_not_there_is_said)
{
	struct stat st;
	make_one("none", &one);
	CHECK_EQ(unlink(index_path), 0);
	refused(ONEHOP_NOT_FOUND, "it has no index");
	CHECK_EQ(open_path(scratch("nothing.tar")), ONEHOP_NOT_FOUND);
	CHECK_HOLDS(error.message, "nothing.tar");
	close_it();
	need(mkdir(scratch("empty"), 0755) == 0, "mkdir");
	CHECK_EQ(open_path(scratch("empty")), ONEHOP_NOT_FOUND);
	CHECK_HOLDS(error.message, "no shard (*.tar)");
	close_it();
	CHECK_EQ(open_paths(NULL, 0), ONEHOP_INVALID_ARGUMENT);
	close_it();
	CHECK_EQ(stat(shard_path, &st), 0);
}

/* A file may claim to be of any size. */
TEST(an_index_that_memory_cannot_hold_is_refused_before_it_is_read)
{
	make_one("huge", &one);
	CHECK_EQ(truncate(index_path, INT64_C(1) << 43), 0);
	CHECK_EQ(open_path(shard_path), ONEHOP_LIMIT);
	CHECK_HOLDS(error.message, "0000.tar.onehop");
	close_it();
}

TEST(orders_of_a_dataset_know_its_samples)
{
	struct onehop_order_options options;
	struct onehop_order_info info = {.size = sizeof info};
	struct onehop_order *order;
	uint64_t samples[2] = {5, 120};
	CHECK_EQ(open_path(make_shards("ordered", &three)), ONEHOP_OK);
	CHECK_EQ(onehop_order_create(dataset, NULL, &order, &error), ONEHOP_OK);
	CHECK_EQ(onehop_order_query(order, &info), ONEHOP_OK);
	CHECK_EQ(info.rows, 120);
	CHECK_EQ(info.blocks, 3);
	onehop_order_destroy(order);
	onehop_order_options_init(&options);
	options.samples = samples;
	options.sample_count = 2;
	CHECK_EQ(onehop_order_create(dataset, &options, &order, &error), ONEHOP_OUT_OF_RANGE);
	CHECK_HOLDS(error.message, "sample 120");
	options.sample_count = 0;
	CHECK_EQ(onehop_order_create(dataset, &options, &order, &error), ONEHOP_OK);
	onehop_order_query(order, &info);
	CHECK_EQ(info.samples, 0);
	onehop_order_destroy(order);
	close_it();
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
