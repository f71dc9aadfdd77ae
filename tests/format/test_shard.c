/* The index of a shard: built, read in place, and refused when anything in it is wrong. */
#include "base/crc32c.h"
#include "format/shard_file.h"
#include "harness.h"
#include "random.h"

#include <stdalign.h>

static const struct oh_shard_facts facts = {
	.shard_bytes = 1 << 20,
	.tar_end = 1 << 19,
	.members = 9,
	.flags = OH_SHARD_CHECKSUMS,
	.alignment_bytes = 4096,
	.align = 2,
};

/* Two samples of an episode, a stream and times; one plain; four parts, one an array. */
static struct oh_shard_builder *
small(void)
{
	struct oh_shard_builder *b;
	struct oh_shard_type type = {12, 2, 128, {3, 4}};
	struct oh_shard_time time = {1000, 0, 0, 1, 0};
	struct oh_shard_part part = {.offset = 4096, .bytes = 128 + 48};
	if (oh_shard_builder_create(&b))
		abort();
	oh_shard_builder_episode(b, "drive", 5, &time.episode);
	oh_shard_builder_stream(b, "cam0", 4, &time.stream);
	oh_shard_builder_sample(b, "a/1", 3, &time);
	oh_shard_builder_field(b, "x.npy", 5, &part.field);
	oh_shard_builder_type(b, &type, &part.type);
	oh_shard_builder_part(b, &part, 5);
	part = (struct oh_shard_part){.offset = 5000, .bytes = 7, .crc32c = 77};
	oh_shard_builder_field(b, "json", 4, &part.field);
	oh_shard_builder_part(b, &part, OH_SHARD_NO_TIME);
	oh_shard_builder_sample(b, "a/2", 3, &time);
	oh_shard_builder_part(b, &part, OH_SHARD_NO_TIME);
	oh_shard_builder_sample(b, "key", 3, NULL);
	oh_shard_builder_part(b, &part, OH_SHARD_NO_TIME);
	return b;
}

static void *
finished(struct oh_shard_builder *b, uint64_t *size)
{
	*size = oh_shard_builder_bytes(b);
	void *bytes = malloc(*size);
	memset(bytes, 0xAA, *size);
	oh_shard_builder_finish(b, &facts, bytes);
	oh_shard_builder_destroy(b);
	return bytes;
}

static struct oh_shard_header *header_of(void *bytes)
{
	return bytes;
}

static struct oh_shard_section *
section_of(void *bytes, uint32_t kind)
{
	struct oh_shard_section *section = (void *)(header_of(bytes) + 1);
	while (section->kind != kind)
		section++;
	return section;
}

/* Makes the checksums true again after a change. */
static void
sign(void *bytes)
{
	struct oh_shard_header *header = bytes;
	struct oh_shard_section *section = (void *)(header + 1);
	for (uint32_t i = 0; i < header->sections; i++)
		if (section[i].offset <= header->index_bytes &&
		    section[i].bytes <= header->index_bytes - section[i].offset)
			section[i].crc32c = oh_crc32c(0, (char *)bytes + section[i].offset,
						      section[i].bytes);
	header->crc32c = oh_crc32c(0, header, 124);
	header->crc32c = oh_crc32c(header->crc32c, section, header->sections * sizeof *section);
}

TEST(what_was_built_is_read)
{
	uint64_t size, first, count, bytes;
	void *index = finished(small(), &size);
	struct oh_shard_view view;
	struct onehop_error error;
	const struct oh_shard_part *part;
	const struct oh_shard_type *type;
	const char *text;
	CHECK_EQ(oh_shard_open(index, size, "x.onehop", &view, &error), ONEHOP_OK);
	CHECK_EQ(view.samples, 3);
	CHECK_EQ(view.parts, 4);
	CHECK_EQ(view.fields, 2);
	CHECK_EQ(view.types, 1);
	CHECK_EQ(view.members, 9);
	CHECK_EQ(view.tar_end, 1 << 19);
	CHECK_EQ(view.alignment_bytes, 4096);
	CHECK_EQ(view.align, 2);
	CHECK_EQ(view.flags, OH_SHARD_CHECKSUMS);
	CHECK_EQ(oh_shard_sample_at(&view, 1, &first, &count, &text, &bytes), ONEHOP_OK);
	CHECK(first == 2 && count == 1 && bytes == 3 && memcmp(text, "a/2", 3) == 0);
	CHECK_EQ(oh_shard_part_at(&view, 0, &part), ONEHOP_OK);
	CHECK(part->offset == 4096 && part->type == 1 && part->field == 0);
	CHECK_EQ(oh_shard_type_at(&view, 0, &type, &bytes), ONEHOP_OK);
	CHECK(bytes == 48 && type->rank == 2 && type->data_offset == 128);
	CHECK_EQ(oh_shard_part_at(&view, 3, &part), ONEHOP_OK);
	CHECK(part->crc32c == 77 && part->field == 1 && part->type == 0);
	CHECK_EQ(oh_shard_name_at(&view, view.field + 1, &text, &bytes), ONEHOP_OK);
	CHECK(bytes == 4 && memcmp(text, "json", 4) == 0);
	CHECK_EQ(oh_shard_name_at(&view, view.stream, &text, &bytes), ONEHOP_OK);
	CHECK(bytes == 4 && memcmp(text, "cam0", 4) == 0);
	CHECK_EQ(oh_shard_name_at(&view, view.episode, &text, &bytes), ONEHOP_OK);
	CHECK(bytes == 5 && memcmp(text, "drive", 5) == 0);
	CHECK(view.time[0].timestamp_ns == 1000 && view.time[2].timestamp_ns == INT64_MIN);
	CHECK(view.time[2].episode == UINT32_MAX && view.time[2].rows == 1);
	CHECK(view.part_time[0] == 5 && view.part_time[1] == INT64_MIN);
	free(index);
}

TEST(equal_samples_make_equal_bytes)
{
	uint64_t size, again;
	void *a = finished(small(), &size), *b = finished(small(), &again);
	CHECK_EQ(size, again);
	CHECK(memcmp(a, b, size) == 0);
	free(a);
	free(b);
}

TEST(an_index_of_nothing_is_one)
{
	struct oh_shard_builder *b;
	struct oh_shard_view view;
	struct onehop_error error;
	uint64_t size;
	CHECK_EQ(oh_shard_builder_create(&b), ONEHOP_OK);
	void *index = finished(b, &size);
	CHECK_EQ(oh_shard_open(index, size, "x", &view, &error), ONEHOP_OK);
	CHECK(view.samples == 0 && view.parts == 0 && !view.time && !view.part_time && !view.type);
	free(index);
}

TEST(a_changed_bit_anywhere_that_counts_is_noticed)
{
	uint64_t size;
	char *index = finished(small(), &size), *copy = malloc(size);
	struct oh_shard_view view;
	struct onehop_error error;
	struct oh_shard_section *section = (void *)(header_of(index) + 1);
	uint64_t checked = sizeof(struct oh_shard_header) +
			   header_of(index)->sections * sizeof *section;
	for (uint64_t bit = 0; bit < 8 * size; bit++) {
		int covered = bit / 8 < checked;
		for (uint32_t i = 0; i < header_of(index)->sections; i++)
			covered |= bit / 8 - section[i].offset < section[i].bytes;
		memcpy(copy, index, size);
		copy[bit / 8] ^= (char)(1 << bit % 8);
		onehop_status status = oh_shard_open(copy, size, "x", &view, &error);
		CHECK_EQ(status != ONEHOP_OK, covered);
	}
	free(index);
	free(copy);
}

/* The CRCs of its whole pieces, as one has them who sums while reading. */
static struct oh_shard_sums
sums_of(const char *bytes, uint64_t size, uint64_t piece, uint32_t *crcs)
{
	for (uint64_t i = 0; i < size / piece; i++)
		crcs[i] = oh_crc32c(0, bytes + i * piece, piece);
	return (struct oh_shard_sums){piece, crcs};
}

TEST(sums_of_pieces_of_any_size_say_what_sums_of_sections_say)
{
	uint64_t size;
	char *index = finished(small(), &size), *copy = malloc(size);
	uint32_t *crcs = malloc(size * sizeof *crcs);
	struct oh_shard_view view;
	struct onehop_error error, summed;
	for (uint64_t piece = 1; piece <= size + 1; piece++) {
		struct oh_shard_sums sums = sums_of(index, size, piece, crcs);
		CHECK_EQ(oh_shard_open_summed(index, size, &sums, "x", &view, &error), ONEHOP_OK);
		for (uint64_t at = piece % 7; at < size; at += 7) {
			memcpy(copy, index, size);
			copy[at] ^= 16;
			sums = sums_of(copy, size, piece, crcs);
			memset(&error, 0, sizeof error);
			memset(&summed, 0, sizeof summed);
			CHECK_EQ(oh_shard_open_summed(copy, size, &sums, "x", &view, &summed),
				 oh_shard_open(copy, size, "x", &view, &error));
			CHECK_STR(summed.message, error.message);
		}
	}
	free(index);
	free(copy);
	free(crcs);
}

TEST(an_index_cut_or_extended_anywhere_is_refused)
{
	uint64_t size;
	char *index = finished(small(), &size);
	struct oh_shard_view view;
	struct onehop_error error;
	for (uint64_t cut = 0; cut < size; cut++) {
		char *copy = malloc(cut + 1); /* so that a read past the end is seen */
		memcpy(copy, index, cut);
		CHECK_EQ(oh_shard_open(copy, cut, "x.onehop", &view, &error), ONEHOP_MALFORMED);
		CHECK_HOLDS(error.message, "x.onehop: ");
		CHECK_HOLDS(error.remedy, "onehop index");
		free(copy);
	}
	index = realloc(index, size + 64);
	CHECK_EQ(oh_shard_open(index, size + 64, "x", &view, &error), ONEHOP_MALFORMED);
	free(index);
}

/* One wrong number each, under true checksums. */
static const struct {
	const char *what;
	uint32_t kind; /* whose directory entry is changed; 0: the header */
	size_t at, bytes;
	uint64_t value;
	onehop_status want;
	const char *words;
} wrong[] = {
	{"magic", 0, 0, 1, 'X', ONEHOP_MALFORMED, "ONEHOPIX"},
	{"version", 0, 8, 4, 2, ONEHOP_UNSUPPORTED_DATA, "version 2"},
	{"header bytes", 0, 12, 4, 64, ONEHOP_MALFORMED, "header's sizes"},
	{"index bytes", 0, 16, 8, 128, ONEHOP_MALFORMED, "its header says 128"},
	{"shard bytes", 0, 24, 8, 512, ONEHOP_MALFORMED, "past the shard's end at 512"},
	{"samples", 0, 48, 8, 4, ONEHOP_MALFORMED, "section 1 has 4 entries, should have 5"},
	{"most samples", 0, 48, 8, UINT64_MAX, ONEHOP_MALFORMED, "too many samples"},
	{"parts", 0, 56, 8, 5, ONEHOP_MALFORMED, "section 3 has 4 entries"},
	{"alignment", 0, 72, 4, 4097, ONEHOP_MALFORMED, "alignment (4097"},
	{"small alignment", 0, 72, 4, 256, ONEHOP_MALFORMED, "alignment (256"},
	{"kind of alignment", 0, 76, 4, 3, ONEHOP_MALFORMED, "kind 3"},
	{"section left out", OH_SECTION_NAMES, 0, 4, 99, ONEHOP_MALFORMED, "section 5 is not there"},
	{"section twice", OH_SECTION_KEYS, 0, 4, 1, ONEHOP_MALFORMED, ""},
	{"same kind twice", OH_SECTION_STREAMS, 0, 4, OH_SECTION_EPISODES, ONEHOP_MALFORMED,
	 "section 8 is there twice"},
	{"section askew", OH_SECTION_PARTS, 8, 8, 513, ONEHOP_MALFORMED, "not where one can be"},
	{"section past the end", OH_SECTION_PARTS, 8, 8, 1 << 20, ONEHOP_MALFORMED, "not where"},
	{"section that overflows", OH_SECTION_PARTS, 16, 8, UINT64_MAX, ONEHOP_MALFORMED, "not where"},
	{"section in the directory", OH_SECTION_SAMPLES, 8, 8, 0, ONEHOP_MALFORMED, "not where"},
	{"entries", OH_SECTION_PARTS, 24, 8, 3, ONEHOP_MALFORMED, "which are not 3 entries of 32"},
	{"times of few", OH_SECTION_TIMES, 0, 4, 10, ONEHOP_MALFORMED, "section 10"},
};

TEST(a_wrong_number_is_named)
{
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		uint64_t size;
		char *index = finished(small(), &size);
		struct oh_shard_view view = {.samples = 12345};
		struct onehop_error error;
		char *at = wrong[i].kind ? (char *)section_of(index, wrong[i].kind) : index;
		memcpy(at + wrong[i].at, &wrong[i].value, wrong[i].bytes);
		sign(index);
		onehop_status status = oh_shard_open(index, size, "x", &view, &error);
		if (status != wrong[i].want)
			printf("# %s\n", wrong[i].what);
		CHECK_EQ(status, wrong[i].want);
		CHECK_HOLDS(error.message, wrong[i].words);
		CHECK_EQ(view.samples, 12345);
		free(index);
	}
}

TEST(sections_of_unknown_kinds_are_left_alone)
{
	uint64_t size;
	char *index = finished(small(), &size);
	struct oh_shard_view view;
	struct onehop_error error;
	section_of(index, OH_SECTION_PART_TIMES)->kind = 4711;
	sign(index);
	CHECK_EQ(oh_shard_open(index, size, "x", &view, &error), ONEHOP_OK);
	CHECK(!view.part_time);
	free(index);
}

static void *
entry_of(char *index, uint32_t kind, uint64_t i)
{
	return index + section_of(index, kind)->offset + i * oh_shard_entry[kind];
}

/* What is wrong in an entry is found when it is asked for. */
TEST(an_entry_that_leaves_its_bounds_is_malformed)
{
	uint64_t size, a, b, bytes;
	const char *text;
	char *index = finished(small(), &size);
	struct oh_shard_view view;
	struct onehop_error error;
	const struct oh_shard_part *part = NULL;
	const struct oh_shard_type *type = NULL;
	struct oh_shard_part *parts = entry_of(index, OH_SECTION_PARTS, 0);
	struct oh_shard_type *types = entry_of(index, OH_SECTION_TYPES, 0), was = *types;
	struct oh_shard_sample *samples = entry_of(index, OH_SECTION_SAMPLES, 0);
	struct oh_shard_name *names = entry_of(index, OH_SECTION_FIELDS, 0);
	CHECK_EQ(oh_shard_open(index, size, "x", &view, &error), ONEHOP_OK);

	parts[0].bytes = facts.tar_end - 4096 + 1;
	CHECK_EQ(oh_shard_part_at(&view, 0, &part), ONEHOP_MALFORMED);
	parts[0].bytes = UINT64_MAX;
	CHECK_EQ(oh_shard_part_at(&view, 0, &part), ONEHOP_MALFORMED);
	parts[0].bytes = 128 + 47; /* the array has 48 */
	CHECK_EQ(oh_shard_part_at(&view, 0, &part), ONEHOP_MALFORMED);
	parts[0].bytes = 128 + 48;
	CHECK_EQ(oh_shard_part_at(&view, 0, &part), ONEHOP_OK);
	parts[0].type = 2;
	CHECK_EQ(oh_shard_part_at(&view, 0, &part), ONEHOP_MALFORMED);
	parts[1].field = 2;
	CHECK_EQ(oh_shard_part_at(&view, 1, &part), ONEHOP_MALFORMED);

	types->dtype = 17;
	CHECK_EQ(oh_shard_type_at(&view, 0, &type, &bytes), ONEHOP_MALFORMED);
	*types = was;
	types->rank = 9;
	CHECK_EQ(oh_shard_type_at(&view, 0, &type, &bytes), ONEHOP_MALFORMED);
	*types = was;
	types->shape[0] = UINT64_C(1) << 61;
	CHECK_EQ(oh_shard_type_at(&view, 0, &type, &bytes), ONEHOP_MALFORMED);
	types->shape[1] = 0;
	CHECK_EQ(oh_shard_type_at(&view, 0, &type, &bytes), ONEHOP_OK);
	CHECK_EQ(bytes, 0);

	samples[1].first_part = 5;
	CHECK_EQ(oh_shard_sample_at(&view, 0, &a, &b, &text, &bytes), ONEHOP_MALFORMED);
	CHECK_EQ(oh_shard_sample_at(&view, 1, &a, &b, &text, &bytes), ONEHOP_MALFORMED);
	samples[1].first_part = 0;
	CHECK_EQ(oh_shard_sample_at(&view, 0, &a, &b, &text, &bytes), ONEHOP_MALFORMED);
	samples[1].first_part = 1;
	samples[1].key = 10;
	CHECK_EQ(oh_shard_sample_at(&view, 0, &a, &b, &text, &bytes), ONEHOP_MALFORMED);
	CHECK_EQ(oh_shard_sample_at(&view, 1, &a, &b, &text, &bytes), ONEHOP_MALFORMED);

	names[1].bytes = 1000;
	CHECK_EQ(oh_shard_name_at(&view, view.field + 1, &text, &bytes), ONEHOP_MALFORMED);
	names[1] = (struct oh_shard_name){UINT32_MAX, UINT32_MAX};
	CHECK_EQ(oh_shard_name_at(&view, view.field + 1, &text, &bytes), ONEHOP_MALFORMED);
	free(index);
}

TEST(dtypes_have_codes_and_bytes)
{
	uint32_t bytes;
	for (uint16_t code = 1; code <= 16; code++) {
		const char *name = oh_shard_dtype_name(code, &bytes);
		CHECK(name && bytes >= 1 && bytes <= 8);
		CHECK_EQ(oh_shard_dtype_code(name), code);
	}
	CHECK_STR(oh_shard_dtype_name(12, &bytes), "F32");
	CHECK_EQ(bytes, 4);
	CHECK(!oh_shard_dtype_name(0, &bytes) && !oh_shard_dtype_name(17, &bytes));
	CHECK_EQ(oh_shard_dtype_code("f32"), 0);
	CHECK_EQ(oh_shard_dtype_code("Q4_0"), 0);
}

TEST(a_thing_that_is_there_keeps_its_id)
{
	struct oh_shard_builder *b;
	struct oh_shard_type type = {12, 1, 0, {0}};
	CHECK_EQ(oh_shard_builder_create(&b), ONEHOP_OK);
	for (int round = 0; round < 2; round++)
		for (uint32_t i = 0; i < 3000; i++) {
			char name[20];
			uint64_t bytes = (uint64_t)sprintf(name, "%u", i);
			uint32_t id;
			uint16_t field;
			type.shape[0] = i;
			CHECK_EQ(oh_shard_builder_episode(b, name, bytes, &id), ONEHOP_OK);
			CHECK_EQ(id, i);
			CHECK_EQ(oh_shard_builder_type(b, &type, &id), ONEHOP_OK);
			CHECK_EQ(id, i + 1);
			CHECK_EQ(oh_shard_builder_field(b, name, bytes, &field), ONEHOP_OK);
			CHECK_EQ(field, i);
		}
	oh_shard_builder_destroy(b);
}

TEST(too_many_fields_are_refused_and_the_rest_goes_on)
{
	struct oh_shard_builder *b;
	uint16_t field = 7;
	char name[20];
	CHECK_EQ(oh_shard_builder_create(&b), ONEHOP_OK);
	for (uint32_t i = 0; i < 65535; i++)
		CHECK_EQ(oh_shard_builder_field(b, name, (uint64_t)sprintf(name, "%u", i), &field),
			 ONEHOP_OK);
	CHECK_EQ(field, 65534);
	CHECK_EQ(oh_shard_builder_field(b, "more", 4, &field), ONEHOP_LIMIT);
	CHECK_EQ(oh_shard_builder_field(b, "more", 4, &field), ONEHOP_LIMIT);
	CHECK_EQ(oh_shard_builder_field(b, "100", 3, &field), ONEHOP_OK);
	CHECK_EQ(field, 100);
	struct oh_shard_view view;
	struct onehop_error error;
	uint64_t size;
	void *index = finished(b, &size);
	CHECK_EQ(oh_shard_open(index, size, "x", &view, &error), ONEHOP_OK);
	CHECK_EQ(view.fields, 65535);
	free(index);
}

TEST(a_key_that_is_there_is_refused_if_that_was_asked_for)
{
	struct oh_shard_builder *b;
	struct oh_shard_part part = {0};
	char key[20];
	CHECK_EQ(oh_shard_builder_create(&b), ONEHOP_OK);
	oh_shard_builder_refuse_twins(b);
	CHECK_EQ(oh_shard_builder_field(b, "x", 1, &part.field), ONEHOP_OK);
	for (uint32_t i = 0; i < 1000; i++) {
		uint64_t bytes = (uint64_t)sprintf(key, "k%u", i);
		CHECK_EQ(oh_shard_builder_sample(b, key, bytes, NULL), ONEHOP_OK);
		CHECK_EQ(oh_shard_builder_part(b, &part, OH_SHARD_NO_TIME), ONEHOP_OK);
		CHECK_EQ(oh_shard_builder_sample(b, key, bytes, NULL), ONEHOP_INVALID_ARGUMENT);
		CHECK_EQ(oh_shard_builder_sample(b, "k0", 2, NULL), ONEHOP_INVALID_ARGUMENT);
	}
	CHECK_EQ(oh_shard_builder_samples(b), 1000);
	CHECK_EQ(oh_shard_builder_parts(b), 1000);
	struct oh_shard_view view;
	struct onehop_error error;
	uint64_t size;
	void *index = finished(b, &size);
	CHECK_EQ(oh_shard_open(index, size, "x", &view, &error), ONEHOP_OK);
	CHECK_EQ(view.samples, 1000);
	free(index);
}

/* Names of all three kinds share a section; random ones come back. */
TEST(random_samples_come_back)
{
	uint64_t seed = random_seed(3);
	struct random r = random_init(seed);
	struct oh_shard_builder *b;
	static struct { uint64_t parts, first; struct oh_shard_time time; char key[24]; } want[2000];
	static struct oh_shard_part part[10000];
	uint64_t parts = 0, size;
	printf("# seed %" PRIu64 "\n", seed);
	CHECK_EQ(oh_shard_builder_create(&b), ONEHOP_OK);
	for (int i = 0; i < 2000; i++) {
		char name[30];
		sprintf(want[i].key, "%" PRIu64 "/%d", random_below(&r, 100000), i);
		want[i].time = (struct oh_shard_time){(int64_t)random_next(&r), 0, 0, 1, 0};
		oh_shard_builder_episode(b, name, (uint64_t)sprintf(name, "e%d", i / 50),
					 &want[i].time.episode);
		oh_shard_builder_stream(b, name, (uint64_t)sprintf(name, "s%d", i % 7),
					&want[i].time.stream);
		want[i].first = parts;
		want[i].parts = 1 + random_below(&r, 5);
		oh_shard_builder_sample(b, want[i].key, strlen(want[i].key), &want[i].time);
		for (uint64_t k = 0; k < want[i].parts; k++, parts++) {
			part[parts] = (struct oh_shard_part){random_below(&r, 1 << 18), 1,
							     (uint32_t)parts, 0, 0, 0, 0};
			oh_shard_builder_field(b, name, (uint64_t)sprintf(name, "f%" PRIu64, k),
					       &part[parts].field);
			oh_shard_builder_part(b, part + parts, OH_SHARD_NO_TIME);
		}
	}
	struct oh_shard_view view;
	struct onehop_error error;
	char *index = finished(b, &size);
	CHECK_EQ(oh_shard_open(index, size, "x", &view, &error), ONEHOP_OK);
	CHECK_EQ(view.parts, parts);
	CHECK(memcmp(view.part, part, parts * sizeof *part) == 0);
	for (int i = 0; i < 2000; i++) {
		uint64_t first, count, bytes;
		const char *text;
		char name[30];
		CHECK_EQ(oh_shard_sample_at(&view, (uint64_t)i, &first, &count, &text, &bytes),
			 ONEHOP_OK);
		CHECK(first == want[i].first && count == want[i].parts);
		CHECK(bytes == strlen(want[i].key) && memcmp(text, want[i].key, bytes) == 0);
		CHECK(memcmp(view.time + i, &want[i].time, sizeof *view.time) == 0);
		CHECK_EQ(oh_shard_name_at(&view, view.stream + view.time[i].stream, &text, &bytes),
			 ONEHOP_OK);
		CHECK(bytes == (uint64_t)sprintf(name, "s%d", i % 7) && !memcmp(text, name, bytes));
	}
	free(index);
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
