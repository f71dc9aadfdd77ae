/* Walking tar archives: what members there are, and what is refused with which words. */
#include "format/tar.h"
#include "tar_file.h"

static struct tar_file file;
static struct onehop_error error;
static char said[sizeof error.message];

/* What the walk of the first `bytes` bytes found: "begin:header:offset+size type name;..." in
 * blocks of 512 (sizes in bytes), then "|end". Each piece is given in memory of its own length, so
 * that a read past it shows under a sanitizer. */
static char found[1 << 16];

static onehop_status
walk_part(size_t bytes, size_t zeros_end)
{
	struct oh_tar tar;
	enum oh_tar_event event = OH_TAR_MORE;
	onehop_status status = ONEHOP_OK;
	size_t to = 0;
	memset(&error, 0, sizeof error);
	oh_tar_init(&tar, "a.tar", bytes, zeros_end);
	found[0] = '\0';
	while (!status && event != OH_TAR_END) {
		uint8_t *piece = malloc(tar.need ? tar.need : 1);
		if (tar.need)
			memcpy(piece, file.bytes + tar.at, tar.need);
		status = oh_tar_next(&tar, piece, &event, &error);
		free(piece);
		const struct oh_tar_member *m = &tar.member;
		if (!status && event == OH_TAR_MEMBER && to < sizeof found - 400)
			to += (size_t)snprintf(found + to, 400, "%d:%d:%d+%lld %c %.*s;",
					       (int)(m->begin / 512), (int)(m->header / 512),
					       (int)(m->offset / 512), (long long)m->bytes, m->type,
					       (int)(m->name_bytes < 300 ? m->name_bytes : 300),
					       m->name);
		if (!status && event == OH_TAR_END)
			snprintf(found + to, 32, "|%d", (int)(tar.end_at / 512));
	}
	oh_tar_free(&tar);
	snprintf(said, sizeof said, "%s", status ? error.message : "");
	return status;
}

static onehop_status
walk(void)
{
	onehop_status status = walk_part(file.count, file.count);
	tar_clear(&file);
	return status;
}

#define FINDS(want)                                                                                \
	do {                                                                                       \
		walk();                                                                            \
		CHECK_STR(said, "");                                                               \
		CHECK_STR(found, want);                                                            \
	} while (0)

#define REFUSED(status, part)                                                                      \
	do {                                                                                       \
		CHECK_EQ(walk(), status);                                                          \
		CHECK_HOLDS(said, "a.tar: ");                                                      \
		CHECK_HOLDS(said, part);                                                           \
		CHECK(error.remedy[0]);                                                            \
	} while (0)

TEST(members_lie_where_their_headers_say)
{
	tar_member(&file, "a/0.jpg", 1000);
	tar_member(&file, "a/0.json", 0);
	tar_member(&file, "a/1.jpg", 512);
	tar_end(&file);
	FINDS("0:0:1+1000 0 a/0.jpg;3:3:4+0 0 a/0.json;4:4:5+512 0 a/1.jpg;|6");
}

TEST(an_archive_may_have_no_members)
{
	tar_end(&file);
	FINDS("|0");
	tar_record(&file, 'g', pax("comment", "of a commit"));
	tar_end(&file);
	FINDS("|2");
}

TEST(zeros_may_follow_the_end_to_any_byte)
{
	tar_member(&file, "a.b", 1);
	tar_end(&file);
	tar_room(&file, 3 * 1024 * 1024 + 77);
	FINDS("0:0:1+1 0 a.b;|2");
}

TEST(a_trailer_may_lie_behind_the_zeros)
{
	tar_member(&file, "a.b", 1);
	tar_end(&file);
	size_t zeros_end = file.count + 512;
	memset(tar_room(&file, 2048) + 512, 'i', 1536);
	CHECK_EQ(walk_part(file.count, zeros_end), ONEHOP_OK);
	CHECK_EQ(walk_part(file.count, zeros_end + 1), ONEHOP_MALFORMED);
	/* One that begins before the archive ends is for the caller to find out. */
	CHECK_EQ(walk_part(file.count, 512), ONEHOP_OK);
	tar_clear(&file);
}

TEST(kinds_of_regular_files_are_one_kind_and_links_have_no_payload)
{
	static const char types[] = {'\0', '7', '1', '2', '3', '4', '5', '6'};
	for (size_t i = 0; i < sizeof types; i++)
		tar_header(&file, "n", types[i], i < 2 ? 0 : 9999);
	tar_header(&file, "old/", '\0', 77);
	tar_header(&file, "unknown", 'Z', 3);
	tar_body(&file, "abc", 3);
	tar_end(&file);
	FINDS("0:0:1+0 0 n;1:1:2+0 0 n;2:2:3+0 1 n;3:3:4+0 2 n;4:4:5+0 3 n;5:5:6+0 4 n;6:6:7+0 5 n;"
	      "7:7:8+0 6 n;8:8:9+0 5 old/;9:9:10+3 Z unknown;|11");
}

TEST(a_name_is_put_together_from_its_prefix_in_ustar_alone)
{
	static const char hundred[] =
		"0123456789012345678901234567890123456789012345678901234567890123"
		"456789012345678901234567890123456789";
	size_t at = tar_header(&file, hundred, '0', 0);
	memcpy(file.bytes + at + 345, "some/where", 10);
	tar_sum(&file, at);
	at = tar_header(&file, "x", '0', 0);
	memcpy(file.bytes + at + 257, "ustar  ", 8); /* GNU: times lie there */
	memcpy(file.bytes + at + 345, "13777777777", 11);
	tar_sum(&file, at);
	at = tar_header(&file, "y", '0', 0);
	memset(file.bytes + at + 257, 0, 8); /* as before POSIX */
	memcpy(file.bytes + at + 345, "rubbish", 7);
	tar_sum(&file, at);
	tar_end(&file);
	char want[300];
	snprintf(want, sizeof want, "0:0:1+0 0 some/where/%s;1:1:2+0 0 x;2:2:3+0 0 y;|3", hundred);
	FINDS(want);
}

TEST(a_full_prefix_and_a_full_name_make_the_longest_name)
{
	char prefix[156], name[101], want[320];
	memset(prefix, 'p', 155);
	memset(name, 'n', 100);
	prefix[155] = name[100] = '\0';
	size_t at = tar_header(&file, name, '0', 0);
	memcpy(file.bytes + at + 345, prefix, 155);
	tar_sum(&file, at);
	tar_end(&file);
	snprintf(want, sizeof want, "0:0:1+0 0 %s/%s;|1", prefix, name);
	FINDS(want);
}

TEST(a_long_name_holds_for_the_next_member_only)
{
	tar_record(&file, 'L', "a/long/name.jpg");
	tar_member(&file, "a/lo", 5);
	tar_record(&file, 'K', "the target of a link, which is of no use here");
	tar_record(&file, 'L', "another.jpg");
	tar_member(&file, "b", 0);
	tar_member(&file, "short", 0);
	tar_end(&file);
	FINDS("0:2:3+5 0 a/long/name.jpg;4:8:9+0 0 another.jpg;9:9:10+0 0 short;|10");
}

TEST(fillers_of_aligned_shards_are_invisible)
{
	uint8_t filler[2 << 20] = {0};
	char *text = malloc(1 << 21), want[64];
	size_t bytes = 0;
	memcpy(filler, "0.jpg", 5);
	tar_header(&file, "././@LongLink", 'L', sizeof filler);
	tar_body(&file, filler, sizeof filler);
	tar_member(&file, "0.jpg", 1);
	while (bytes < 2000000)
		bytes +=
			(size_t)sprintf(text + bytes, "%s", pax("comment", "...................."));
	tar_header(&file, "pax", 'x', bytes);
	tar_body(&file, text, bytes);
	free(text);
	int header = (int)(file.count / 512);
	tar_member(&file, "1.jpg", 1);
	tar_end(&file);
	snprintf(want, sizeof want, "0:4097:4098+1 0 0.jpg;4099:%d:%d+1 0 1.jpg;|%d", header,
		 header + 1, header + 2);
	FINDS(want);
}

TEST(pax_records_hold_for_the_next_member_only_and_global_ones_for_all)
{
	char text[400];
	snprintf(text, sizeof text, "%s%s%s", pax("mtime", "1.5"), pax("path", "a/pax.jpg"),
		 pax("size", "700"));
	tar_record(&file, 'x', text);
	tar_member(&file, "short", 700);
	memcpy(file.bytes + 1024 + 124, "00000000000", 12);
	tar_sum(&file, 1024);
	tar_record(&file, 'g', pax("path", "all.jpg"));
	tar_member(&file, "b", 0);
	tar_record(&file, 'x', pax("path", "own.jpg"));
	tar_member(&file, "c", 0);
	tar_record(&file, 'g', pax("path", "later.jpg"));
	tar_member(&file, "d", 0);
	tar_end(&file);
	FINDS("0:2:3+700 0 a/pax.jpg;7:7:8+0 0 all.jpg;8:10:11+0 0 own.jpg;13:13:14+0 0 later.jpg;"
	      "|14");
}

TEST(a_pax_size_does_not_give_a_directory_a_payload)
{
	tar_record(&file, 'x', pax("size", "512"));
	tar_header(&file, "d/", '5', 0);
	tar_end(&file);
	FINDS("0:2:3+0 5 d/;|3");
}

TEST(solaris_has_its_own_letter_for_pax_records)
{
	tar_record(&file, 'X', pax("path", "s.jpg"));
	tar_member(&file, "b", 0);
	tar_end(&file);
	FINDS("0:2:3+0 0 s.jpg;|3");
}

TEST(nuls_may_fill_the_last_block_of_records)
{
	const char *text = pax("path", "n.jpg");
	tar_header(&file, "r", 'x', 512);
	tar_body(&file, text, strlen(text));
	tar_member(&file, "b", 0);
	tar_end(&file);
	FINDS("0:2:3+0 0 n.jpg;|3");
}

/* Puts the 12 bytes of a size field in. */
static void
size_field(const char *field)
{
	size_t at = tar_header(&file, "a.b", '0', 0);
	memcpy(file.bytes + at + 124, field, 12);
	tar_sum(&file, at);
	tar_room(&file, 1024);
	tar_end(&file);
}

TEST(sizes_are_read_in_every_form_that_writers_have)
{
	static const char *const forms[] = {
		"00000001750\0", "      1750 \0", "1750\0\0\0\0\0\0\0\0", "000000001750",
		"   1750     ",  "1750\0junk!!",   "\x80\0\0\0\0\0\0\0\0\0\x03\xE8",
	};
	for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
		size_field(forms[i]);
		FINDS("0:0:1+1000 0 a.b;|3");
	}
}

TEST(an_empty_size_is_none)
{
	size_t at = tar_header(&file, "d/", '5', 0);
	memset(file.bytes + at + 124, 0, 12);
	tar_sum(&file, at);
	at = tar_header(&file, "e", '0', 0);
	memset(file.bytes + at + 124, ' ', 12);
	tar_sum(&file, at);
	tar_end(&file);
	FINDS("0:0:1+0 5 d/;1:1:2+0 0 e;|2");
}

TEST(sizes_that_are_no_numbers_or_too_large_are_refused)
{
	static const char *const forms[] = {
		"0000000175x\0",
		"-1\0\0\0\0\0\0\0\0\0\0",
		"17 50\0\0\0\0\0\0\0",
		"0x10\0\0\0\0\0\0\0\0",
		"00000001789\0",
		"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF",
		"\x80\0\0\1\0\0\0\0\0\0\0\0",
		"\x80\0\0\0\x80\0\0\0\0\0\0\0",
		"\xBF\0\0\0\0\0\0\0\0\0\0\1",
	};
	for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
		size_field(forms[i]);
		REFUSED(ONEHOP_MALFORMED, "byte 0: the size in this header is no octal number");
	}
	/* A number, and more than there is. */
	size_field("\x80\0\0\0\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFF");
	REFUSED(ONEHOP_MALFORMED, "cut: member \"a.b\" at byte 0 has 9223372036854775807 bytes");
	size_field("77777777777\0");
	REFUSED(ONEHOP_MALFORMED, "has 8589934591 bytes, and the file ends at byte 2560");
}

TEST(pax_sizes_that_are_no_numbers_are_refused)
{
	static const char *const values[] = {"", "x", "-1", "1.5", "+3", " 3", "3 ", "0x3",
					     "9223372036854775808", "18446744073709551617",
					     "99999999999999999999999999999"};
	for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
		tar_record(&file, 'x', pax("size", values[i]));
		tar_member(&file, "a.b", 0);
		tar_end(&file);
		REFUSED(ONEHOP_MALFORMED, "byte 512: the size in this record");
	}
	tar_record(&file, 'x', pax("size", "9223372036854775807"));
	tar_member(&file, "a.b", 0);
	tar_end(&file);
	REFUSED(ONEHOP_MALFORMED, "member \"a.b\" at byte 1024 has 9223372036854775807 bytes");
}

TEST(pax_records_that_are_none_are_refused)
{
	static const char *const texts[] = {
		"x",	       "10 path=a\nx", "0 a=b\n",	"6a=bc\n", "99 path=abc\n",
		"9 path=ab",   "6 abc\n",      "5 =b\n",	" 6 a=b\n", "-6 a=b\n",
		"06 a=b\n0 ",  "4 a=b\n",      "7 a=b\n",	"18446744073709551622 a=b\n",
		"2 \n",	       "3 \n\n",
	};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		tar_record(&file, 'x', texts[i]);
		tar_member(&file, "a.b", 0);
		tar_end(&file);
		REFUSED(ONEHOP_MALFORMED, "what should be a pax record");
	}
	tar_header(&file, "r", 'x', 8);
	tar_body(&file, "6 a=b\n\0x", 8);
	tar_end(&file);
	REFUSED(ONEHOP_MALFORMED, "byte 518: what should be a pax record");
}

TEST(a_sum_of_signed_bytes_is_taken_and_any_other_is_not)
{
	size_t at = tar_header(&file, "caf\xC3\xA9.jpg", '0', 0);
	int sum = 8 * ' ';
	for (int i = 0; i < 512; i++)
		sum += i >= 148 && i < 156 ? 0 : (int8_t)file.bytes[at + (size_t)i];
	snprintf((char *)file.bytes + at + 148, 8, "%06o", (unsigned)sum);
	tar_end(&file);
	FINDS("0:0:1+0 0 caf\xC3\xA9.jpg;|1");
	tar_member(&file, "a.b", 3);
	at = tar_member(&file, "c.d", 3);
	file.bytes[at + 1]++;
	tar_end(&file);
	REFUSED(ONEHOP_MALFORMED, "byte 1024: a member's header should be here");
	at = tar_header(&file, "a.b", '0', 0);
	memset(file.bytes + at + 148, 0, 8);
	tar_end(&file);
	REFUSED(ONEHOP_MALFORMED, "no tar archive");
}

TEST(each_single_wrong_bit_of_a_header_is_noticed)
{
	int bits = 0;
	for (size_t bit = 0; bit < 512 * 8; bit++) {
		tar_member(&file, "a.b", 3);
		size_t at = tar_member(&file, "c.d", 3);
		tar_end(&file);
		file.bytes[at + bit / 8] ^= (uint8_t)(1 << bit % 8);
		/* In the sum itself a bit may change its spelling alone. */
		if (bit / 8 >= 148 && bit / 8 < 156) {
			walk();
			continue;
		}
		CHECK_EQ(walk(), ONEHOP_MALFORMED);
		CHECK_HOLDS(said, "byte 1024: ");
		bits++;
	}
	CHECK_EQ(bits, 504 * 8);
}

TEST(an_archive_that_is_cut_is_refused_wherever_it_is_cut)
{
	struct tar_file whole = {0};
	tar_record(&whole, 'g', pax("comment", "x"));
	tar_member(&whole, "0.jpg", 1500);
	tar_record(&whole, 'L', "1.long.name.jpg");
	tar_member(&whole, "1.lo", 512);
	tar_record(&whole, 'x', pax("path", "2.pax.jpg"));
	tar_member(&whole, "2", 0);
	tar_end(&whole);
	file = whole;
	CHECK_EQ(walk_part(whole.count, whole.count), ONEHOP_OK);
	for (size_t cut = 0; cut < whole.count; cut++) {
		onehop_status status = walk_part(cut, cut);
		if (status == ONEHOP_MALFORMED &&
		    strstr(said, cut < 512 ? "no tar archive" : "cut"))
			continue;
		test_fail(__FILE__, __LINE__, "cut at %zu: %d, \"%s\"", cut, status, said);
		break;
	}
	tar_clear(&file);
}

TEST(what_a_cut_archive_lacks_is_said)
{
	tar_member(&file, "0.jpg", 1500);
	REFUSED(ONEHOP_MALFORMED,
		"the file ends behind a member, at byte 2048, without the two zero");
	tar_member(&file, "0.jpg", 1500);
	tar_room(&file, 512);
	REFUSED(ONEHOP_MALFORMED,
		"the second of the two zero blocks that end it should be at byte 2560");
	tar_member(&file, "0.jpg", 1500);
	tar_room(&file, 100);
	REFUSED(ONEHOP_MALFORMED,
		"a header of 512 bytes should be at byte 2048, and the file ends at "
		"byte 2148");
	tar_member(&file, "0.jpg", 1500);
	file.count -= 1;
	REFUSED(ONEHOP_MALFORMED,
		"member \"0.jpg\" at byte 0 has 1500 bytes, and the file ends at byte "
		"2047");
	tar_record(&file, 'L', "0.jpg");
	REFUSED(ONEHOP_MALFORMED, "a header of 512 bytes should be at byte 1024");
	tar_header(&file, "r", 'x', 600);
	REFUSED(ONEHOP_MALFORMED, "the record at byte 0 has 600 bytes");
	tar_record(&file, 'L', "0.jpg");
	tar_end(&file);
	REFUSED(ONEHOP_MALFORMED, "the records from byte 0 on belong to a member that never came");
	REFUSED(ONEHOP_MALFORMED, "an empty file is no tar archive");
}

TEST(a_lone_zero_block_is_refused)
{
	tar_member(&file, "0.jpg", 3);
	tar_room(&file, 512);
	tar_member(&file, "1.jpg", 3);
	tar_end(&file);
	REFUSED(ONEHOP_MALFORMED, "byte 1024: a zero block by itself, and more behind it");
	CHECK_HOLDS(error.remedy, "--ignore-zeros");
}

TEST(archives_behind_one_another_are_refused_with_the_bytes_that_would_be_lost)
{
	for (size_t between = 0; between <= 4 << 20; between = between ? between * 4 : 512) {
		char want[200];
		tar_member(&file, "0.jpg", 3);
		tar_end(&file);
		tar_room(&file, between);
		size_t at = file.count;
		tar_member(&file, "1.jpg", 700);
		tar_end(&file);
		snprintf(want, sizeof want,
			 "ends at byte 1024, and another one lies behind it from byte %zu on: 2560 "
			 "bytes",
			 at);
		REFUSED(ONEHOP_MALFORMED, want);
		CHECK_HOLDS(error.remedy, "--concatenate");
	}
	tar_member(&file, "0.jpg", 3);
	tar_end(&file);
	memcpy(tar_room(&file, 700) + 300, "rubbish", 7);
	REFUSED(ONEHOP_MALFORMED,
		"something that is no archive follows from byte 2048 on: 700 bytes");
	CHECK_HOLDS(error.remedy, "truncate -s 2048");
}

TEST(sparse_members_and_parts_of_volumes_are_refused_by_name)
{
	static const char *const sparse[] = {"GNU.sparse.major", "GNU.sparse.map",
					     "GNU.sparse.size", "SCHILY.realsize", "SUN.holesdata"};
	tar_header(&file, "a", 'S', 0);
	tar_end(&file);
	REFUSED(ONEHOP_UNSUPPORTED_DATA, "byte 0: a sparse member");
	for (size_t i = 0; i < sizeof sparse / sizeof *sparse; i++) {
		tar_record(&file, 'x', pax(sparse[i], "1"));
		tar_member(&file, "a", 0);
		tar_end(&file);
		REFUSED(ONEHOP_UNSUPPORTED_DATA, "byte 512: a sparse member");
	}
	tar_header(&file, "a", 'M', 0);
	tar_end(&file);
	REFUSED(ONEHOP_UNSUPPORTED_DATA, "another volume");
	tar_record(&file, 'x', pax("GNU.volume.offset", "7"));
	tar_end(&file);
	REFUSED(ONEHOP_UNSUPPORTED_DATA, "another volume");
	tar_record(&file, 'g', pax("GNU.volume.label", "mine"));
	tar_end(&file);
	FINDS("|2");
	tar_header(&file, "a", 'N', 0);
	tar_end(&file);
	REFUSED(ONEHOP_UNSUPPORTED_DATA, "gave up long ago");
}

TEST(compressed_files_are_refused_with_what_unpacks_them)
{
	static const struct {
		const char *magic;
		size_t bytes;
		const char *name, *unpack;
	} rows[] = {
		{"\x1F\x8B\x08\0", 4, "by gzip", "gzip -d"},
		{"\x28\xB5\x2F\xFD", 4, "by zstd", "zstd -d"},
		{"\xFD" "7zXZ\0", 6, "by xz", "xz -d"},
		{"BZh91AY&SY", 10, "by bzip2", "bzip2 -d"},
		{"\x04\x22\x4D\x18", 4, "by lz4", "lz4 -d"},
		{"PK\x03\x04", 4, "by zip", "unzip"},
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		for (size_t bytes = rows[i].bytes; bytes < 600; bytes += 580) {
			memcpy(tar_room(&file, bytes), rows[i].magic, rows[i].bytes);
			REFUSED(ONEHOP_UNSUPPORTED_DATA, rows[i].name);
			CHECK_HOLDS(error.remedy, rows[i].unpack);
		}
	/* A name is no magic. */
	tar_member(&file, "BZh9.jpg", 0);
	tar_end(&file);
	FINDS("0:0:1+0 0 BZh9.jpg;|1");
}

TEST(what_is_no_tar_is_said)
{
	memset(tar_room(&file, 3000), 'x', 3000);
	REFUSED(ONEHOP_MALFORMED, "no tar archive: its first 512 bytes are no header");
	memset(tar_room(&file, 3), 'x', 3);
	REFUSED(ONEHOP_MALFORMED, "no tar archive");
}

TEST(a_member_with_two_names_or_sizes_is_refused)
{
	char text[300];
	tar_record(&file, 'L', "a.jpg");
	tar_record(&file, 'L', "b.jpg");
	tar_member(&file, "a", 0);
	tar_end(&file);
	REFUSED(ONEHOP_MALFORMED,
		"byte 1024: a member with two names, one here and another at byte 0");
	tar_record(&file, 'L', "a.jpg");
	tar_record(&file, 'x', pax("path", "b.jpg"));
	tar_member(&file, "a", 0);
	tar_end(&file);
	REFUSED(ONEHOP_MALFORMED,
		"byte 2048: a member with two names, one at byte 0 and another at byte "
		"1536");
	snprintf(text, sizeof text, "%s%s", pax("size", "0"), pax("size", "1"));
	tar_record(&file, 'x', text);
	tar_member(&file, "a", 0);
	tar_end(&file);
	REFUSED(ONEHOP_MALFORMED, "a member of two sizes");
	/* The same twice is one. */
	tar_record(&file, 'L', "a.jpg");
	tar_record(&file, 'L', "a.jpg");
	snprintf(text, sizeof text, "%s%s%s", pax("path", "a.jpg"), pax("size", "0"),
		 pax("size", "0"));
	tar_record(&file, 'x', text);
	tar_member(&file, "a", 0);
	tar_end(&file);
	FINDS("0:6:7+0 0 a.jpg;|7");
}

TEST(names_without_a_byte_or_with_a_nul_are_refused)
{
	tar_header(&file, "././@LongLink", 'L', 0);
	tar_member(&file, "a", 0);
	tar_end(&file);
	REFUSED(ONEHOP_MALFORMED, "this one has none");
	tar_record(&file, 'x', pax("path", ""));
	tar_member(&file, "a", 0);
	tar_end(&file);
	REFUSED(ONEHOP_MALFORMED, "byte 512: an empty name");
	tar_header(&file, "r", 'x', 13);
	tar_body(&file, "13 path=a\0bc\n", 13);
	tar_member(&file, "a", 0);
	tar_end(&file);
	REFUSED(ONEHOP_MALFORMED, "byte 512: a NUL in a member's name");
}

TEST(names_and_records_beyond_the_limits_are_refused)
{
	size_t bytes = OH_TAR_MOST_NAME;
	char *name = malloc(bytes + 30);
	memset(name, 'n', bytes + 30);
	tar_header(&file, "l", 'L', bytes);
	tar_body(&file, name, bytes);
	tar_member(&file, "a", 0);
	tar_end(&file);
	CHECK_EQ(walk(), ONEHOP_OK);
	tar_header(&file, "l", 'L', bytes + 1);
	tar_body(&file, name, bytes + 1);
	tar_member(&file, "a", 0);
	tar_end(&file);
	REFUSED(ONEHOP_UNSUPPORTED_DATA, "a long name has 1 to 65536 bytes, and this one has more");
	memcpy(name, "65549 path=", 11);
	name[65548] = '\n';
	tar_header(&file, "p", 'x', 65549);
	tar_body(&file, name, 65549);
	tar_member(&file, "a", 0);
	tar_end(&file);
	REFUSED(ONEHOP_UNSUPPORTED_DATA, "a name of 65537 bytes");
	free(name);
	tar_header(&file, "p", 'x', OH_TAR_MOST_PAX + 1);
	tar_room(&file, OH_TAR_MOST_PAX + 512);
	tar_end(&file);
	REFUSED(ONEHOP_UNSUPPORTED_DATA, "4194305 bytes of pax records");
}

TEST(a_walk_without_an_error_struct_is_fine)
{
	struct oh_tar tar;
	enum oh_tar_event event;
	uint8_t block[512];
	memset(block, 'x', sizeof block);
	oh_tar_init(&tar, "a.tar", 512, 512);
	CHECK_EQ(oh_tar_next(&tar, block, &event, NULL), ONEHOP_MALFORMED);
	oh_tar_free(&tar);
}

/* ------------------------------------------------------------------------------------------- */
/* The key rule */

static const char *
split(const char *name)
{
	static char out[200];
	struct oh_tar_key key;
	switch (oh_tar_split(name, strlen(name), &key)) {
	case OH_TAR_PART:
		snprintf(out, sizeof out, "%.*s|%.*s", (int)key.key_bytes, name,
			 (int)key.field_bytes, name + key.field);
		return out;
	case OH_TAR_META:
		return "meta";
	case OH_TAR_APPLE_DOUBLE:
		return "apple";
	default:
		return "none";
	}
}

TEST(a_key_ends_at_the_first_dot_of_the_last_component)
{
	static const char *const rows[][2] = {
		{"0.jpg", "0|jpg"},
		{"000.cam.left.jpg", "000|cam.left.jpg"},
		{"drive/0007.cam.jpg", "drive/0007|cam.jpg"},
		{"a.b/000.jpg", "a.b/000|jpg"},
		{"./0.jpg", "./0|jpg"},
		{"/0.jpg", "/0|jpg"},
		{"22.05.png", "22|05.png"},
		{"0.JPG", "0|JPG"},
		{"a..b", "a|.b"},
		{"a b.c d", "a b|c d"},
		{"__index__.json", "__index__|json"},
		{"x/__a__/0.jpg", "x/__a__/0|jpg"},
		{"__a_/0.jpg", "__a_/0|jpg"},
		{"__index__", "meta"},
		{"__pad__/1.jpg", "meta"},
		{"____", "meta"},
		{"___", "none"},
		{"._000.jpg", "apple"},
		{"d/._000.jpg", "apple"},
		{"._", "apple"},
		{"d/.DS_Store", "none"},
		{".hidden", "none"},
		{"noext", "none"},
		{"d.e/noext", "none"},
		{"a.", "none"},
		{"a.b/", "none"},
		{".", "none"},
		{"..", "none"},
		{"", "none"},
		{"/", "none"},
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		CHECK_STR(split(rows[i][0]), rows[i][1]);
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
