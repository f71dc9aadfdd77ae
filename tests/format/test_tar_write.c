/* The headers that we write, as our own walker reads them; other readers are in tests/python. */
#include "format/tar.h"
#include "format/tar_write.h"
#include "harness.h"
#include "random.h"

static uint8_t *archive;
static uint64_t archive_bytes;

static void
begin(void)
{
	free(archive);
	archive = NULL;
	archive_bytes = 0;
}

static uint8_t *
more(uint64_t bytes)
{
	archive = realloc(archive, archive_bytes + bytes);
	memset(archive + archive_bytes, 0xAA, bytes);
	archive_bytes += bytes;
	return archive + archive_bytes - bytes;
}

static struct oh_tar_entry
random_entry(struct random *r, char *name)
{
	static const uint32_t alignments[] = {512, 1024, 2048, 4096, 8192, 65536, 1 << 20, 2 << 20};
	struct oh_tar_entry entry = {
		.name = name,
		.name_bytes = (uint32_t)(1 + random_below(r, random_below(r, 2) ? 110 : 1024)),
		.pad = (enum oh_tar_pad)random_below(r, 3),
		.bytes = random_below(r, 3000),
		.mtime = random_below(r, OH_TAR_MTIME_MOST),
		.alignment = alignments[random_below(r, random_below(r, 8) ? 5 : 8)],
	};
	memset(name, 'n', entry.name_bytes);
	return entry;
}

static void
put(const struct oh_tar_entry *entry, uint64_t *offset)
{
	uint64_t at = archive_bytes;
	struct oh_tar_lead lead = oh_tar_lead(entry, at);
	CHECK(lead.bytes <= OH_TAR_HEADERS_MOST && lead.bytes % 512 == 0 && lead.pad < lead.bytes);
	oh_tar_put(entry, at, more(lead.bytes));
	*offset = archive_bytes;
	memset(more(entry->bytes), 'x', entry->bytes);
	memset(more(oh_tar_tail(entry->bytes)), 0, oh_tar_tail(entry->bytes));
}

/* The next member that is no padding. */
static void
next_file(struct oh_tar *tar)
{
	struct onehop_error error = {0};
	enum oh_tar_event event = OH_TAR_MORE;
	while (event == OH_TAR_MORE || (event == OH_TAR_MEMBER && tar->member.type == '5')) {
		uint8_t *copy = malloc(tar->need); /* so that a read past it is seen */
		CHECK(tar->at + tar->need <= archive_bytes);
		memcpy(copy, archive + tar->at, tar->need);
		onehop_status status = oh_tar_next(tar, copy, &event, &error);
		free(copy);
		if (status)
			printf("# %s\n", error.message);
		CHECK_EQ(status, ONEHOP_OK);
		if (event == OH_TAR_MEMBER && tar->member.type == '5')
			CHECK(tar->member.name_bytes == 8 &&
			      memcmp(tar->member.name, "__pad__/", 8) == 0);
	}
	CHECK_EQ(event, OH_TAR_MEMBER);
}

TEST(what_was_put_is_read_and_lies_where_it_was_asked_for)
{
	uint64_t seed = random_seed(11);
	struct random r = random_init(seed);
	printf("# seed %" PRIu64 "\n", seed);
	for (int round = 0; round < 3000 && !test_failed; round++) {
		char name[3][OH_TAR_NAME_MOST];
		struct oh_tar_entry entries[3];
		uint64_t offsets[3];
		struct oh_tar tar;
		begin();
		for (int i = 0; i < 3; i++) {
			entries[i] = random_entry(&r, name[i]);
			put(&entries[i], &offsets[i]);
			CHECK_EQ(offsets[i] % entries[i].alignment, 0);
		}
		memset(more(1024), 0, 1024);
		oh_tar_init(&tar, "x.tar", archive_bytes, archive_bytes);
		for (int i = 0; i < 3 && !test_failed; i++) {
			next_file(&tar);
			CHECK(tar.member.type == '0');
			CHECK_EQ(tar.member.offset, offsets[i]);
			CHECK_EQ(tar.member.bytes, entries[i].bytes);
			CHECK_EQ(tar.member.name_bytes, entries[i].name_bytes);
			CHECK(memcmp(tar.member.name, name[i], entries[i].name_bytes) == 0);
		}
		oh_tar_free(&tar);
	}
	begin();
}

/* Limits that some readers have, held for every gap: see tar_write.c. */
TEST(no_record_is_longer_than_the_shortest_limit_of_a_reader)
{
	char name[OH_TAR_NAME_MOST];
	memset(name, 'n', sizeof name);
	for (uint32_t name_bytes = 1; name_bytes <= 1024; name_bytes += 33)
		for (uint64_t at = 0; at < 65536; at += 512) {
			struct oh_tar_entry entry = {name, name_bytes, OH_TAR_PAD_GNU, 5, 0, 65536};
			struct oh_tar_lead lead = oh_tar_lead(&entry, at);
			uint8_t *bytes = malloc(lead.bytes);
			oh_tar_put(&entry, at, bytes);
			for (uint64_t i = 0; i < lead.bytes; i += 512) {
				uint64_t size = strtoull((char *)bytes + i + 124, NULL, 8);
				if (bytes[i + 156] != 'L')
					continue;
				CHECK(size <= 4095);
				i += (size + 511) / 512 * 512;
			}
			free(bytes);
		}
}

TEST(the_largest_numbers_fit)
{
	struct oh_tar_entry entry = {"n.x", 3, OH_TAR_PAD_GNU, OH_TAR_SIZE_MOST, OH_TAR_MTIME_MOST,
				     512};
	uint8_t header[512];
	CHECK_EQ(oh_tar_lead(&entry, 512).bytes, 512);
	oh_tar_put(&entry, 512, header);
	CHECK(memcmp(header + 124, "77777777777", 12) == 0);
	CHECK(memcmp(header + 136, "77777777777", 12) == 0);
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
