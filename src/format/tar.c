/* Walking a tar archive.
 *
 * A state for what the bytes at `at` are: a header, a record's body, the second zero block, or what
 * follows the end. A header is judged in the order in which its rules help a person: is it there,
 * is its sum right, is it of a kind that we take, does what it announces lie within the file.
 *
 * Where readers would tell different things of one archive it is refused, not guessed at. Types 1
 * to 6 have no payload whatever their size says, as in POSIX; types that nobody knows have one.
 */
#include "format/tar.h"
#include "base/arith.h"
#include "format/fail.h"
#include "format/tar_pax.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER, BODY, SECOND, TAIL };

/* Where a header has what; POSIX has the prefix, GNU other things in its place. */
enum { AT_NAME = 0, AT_SIZE = 124, AT_SUM = 148, AT_TYPE = 156, AT_MAGIC = 257, AT_PREFIX = 345 };
enum { NAME_BYTES = 100, SIZE_BYTES = 12, SUM_BYTES = 8, PREFIX_BYTES = 155 };

#define TAIL_AT_ONCE (1u << 20)

static const char again[] = "get a good copy of it, or unpack what is left and pack that anew";

/* ------------------------------------------------------------------------------------------- */
/* Blocks and fields */

static int
is_zero(const uint8_t *bytes, uint64_t count)
{
	return count == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0);
}

/* The top bit, then big-endian: GNU's and star's numbers of any size. 1 if it is negative or no
 * file could be so large. */
static int
binary_number(const uint8_t *field, size_t bytes, uint64_t *number)
{
	uint64_t value = field[0] & 0x7F;
	for (size_t i = 1; i < bytes; i++) {
		if (value >> 55)
			return 1;
		value = value << 8 | field[i];
	}
	*number = value;
	return field[0] == 0xFF || value > INT64_MAX;
}

/* Octal digits between spaces, up to a NUL or the field's end; an empty field is 0. 1 if it holds
 * anything else. A field has at most 12 digits: they always fit. */
static int
number_of(const uint8_t *field, size_t bytes, uint64_t *number)
{
	size_t at = 0;
	uint64_t value = 0;
	if (field[0] & 0x80)
		return binary_number(field, bytes, number);
	while (at < bytes && field[at] == ' ')
		at++;
	for (; at < bytes && field[at] >= '0' && field[at] <= '7'; at++)
		value = value << 3 | (uint64_t)(field[at] - '0');
	while (at < bytes && field[at] == ' ')
		at++;
	*number = value;
	return at < bytes && field[at] != '\0';
}

/* The sum of all bytes, those of the sum itself as spaces. Some old tars added signed ones. */
static int
is_sum_right(const uint8_t *block)
{
	int32_t plain = SUM_BYTES * ' ', high = 0;
	uint64_t sum;
	for (int i = 0; i < OH_TAR_BLOCK; i++) {
		plain += block[i];
		high += block[i] >> 7;
	}
	for (int i = AT_SUM; i < AT_SUM + SUM_BYTES; i++) {
		plain -= block[i];
		high -= block[i] >> 7;
	}
	if (number_of(block + AT_SUM, SUM_BYTES, &sum) || sum > INT32_MAX)
		return 0;
	/* A byte with its high bit is 256 less as a signed one. */
	return (int32_t)sum == plain || (int32_t)sum == plain - 256 * high;
}

/* What a compressed file begins with, and what to do about it. */
static const struct packer {
	const char *magic;
	size_t bytes;
	const char *name;
	const char *unpack;
} packers[] = {
	{"\x1F\x8B", 2, "gzip", "gzip -d"},
	{"\x28\xB5\x2F\xFD", 4, "zstd", "zstd -d"},
	{"\xFD" "7zXZ", 6, "xz", "xz -d"},
	{"BZh", 3, "bzip2", "bzip2 -d"},
	{"\x04\x22\x4D\x18", 4, "lz4", "lz4 -d"},
	{"PK\x03\x04", 4, "zip", "unzip"},
};

static onehop_status
refuse_first(const struct oh_tar *tar, const uint8_t *bytes, struct onehop_error *error)
{
	for (size_t i = 0; i < sizeof packers / sizeof *packers; i++) {
		const struct packer *packer = &packers[i];
		if (tar->need < packer->bytes || memcmp(bytes, packer->magic, packer->bytes) != 0)
			continue;
		oh_refuse(error, ONEHOP_UNSUPPORTED_DATA, tar->path,
			  "a file compressed by %s: no member of it can be read by itself",
			  packer->name);
		oh_remedy(error, "decompress it first (%s)", packer->unpack);
		return ONEHOP_UNSUPPORTED_DATA;
	}
	oh_refuse(error, ONEHOP_MALFORMED, tar->path,
		  tar->end == 0 ? "an empty file is no tar archive"
				: "no tar archive: its first 512 bytes are no header");
	oh_remedy(error, "give a tar file, not compressed");
	return ONEHOP_MALFORMED;
}

/* ------------------------------------------------------------------------------------------- */
/* Errors */

static onehop_status
refuse_sum(const struct oh_tar *tar, const uint8_t *block, struct onehop_error *error)
{
	if (tar->at == 0)
		return refuse_first(tar, block, error);
	oh_refuse(error, ONEHOP_MALFORMED, tar->path,
		  "byte %llu: a member's header should be here, and these 512 bytes are none, or "
		  "are damaged: their checksum is wrong",
		  (unsigned long long)tar->at);
	oh_remedy(error, again);
	return ONEHOP_MALFORMED;
}

/* The file ends where a header should be, or the second zero block. */
static onehop_status
refuse_cut(const struct oh_tar *tar, const uint8_t *bytes, struct onehop_error *error)
{
	unsigned long long at = tar->at, end = tar->end;
	if (tar->at == 0)
		return refuse_first(tar, bytes, error);
	if (tar->state == SECOND)
		oh_refuse(error, ONEHOP_MALFORMED, tar->path,
			  "the archive is cut: the second of the two zero blocks that end it "
			  "should be at byte %llu, and the file ends at byte %llu",
			  at, end);
	else if (tar->need == 0 && tar->begin == tar->at)
		oh_refuse(error, ONEHOP_MALFORMED, tar->path,
			  "the archive is cut: the file ends behind a member, at byte %llu, "
			  "without the two zero blocks that end an archive",
			  end);
	else
		oh_refuse(error, ONEHOP_MALFORMED, tar->path,
			  "the archive is cut: a header of 512 bytes should be at byte %llu, and "
			  "the file ends at byte %llu",
			  at, end);
	oh_remedy(error, again);
	return ONEHOP_MALFORMED;
}

static onehop_status
refuse_long(const struct oh_tar *tar, const char *what, uint64_t bytes, struct onehop_error *error)
{
	oh_refuse(error, ONEHOP_MALFORMED, tar->path,
		  "the archive is cut: %s at byte %llu has %llu %s, and the file ends at byte %llu",
		  what, (unsigned long long)tar->at, (unsigned long long)bytes,
		  oh_bytes_word(bytes), (unsigned long long)tar->end);
	oh_remedy(error, again);
	return ONEHOP_MALFORMED;
}

static onehop_status
refuse_kind(const struct oh_tar *tar, char type, struct onehop_error *error)
{
	const char *what = type == 'S'	 ? "a sparse member: its bytes do not lie together"
			   : type == 'M' ? "the rest of a member that began in another volume"
					 : "long names in a form that GNU tar gave up long ago";
	oh_refuse(error, ONEHOP_UNSUPPORTED_DATA, tar->path, "byte %llu: %s",
		  (unsigned long long)tar->at, what);
	oh_remedy(error, "unpack the archive%s, and pack it anew without --sparse",
		  type == 'M' ? " from all its volumes" : "");
	return ONEHOP_UNSUPPORTED_DATA;
}

/* ------------------------------------------------------------------------------------------- */
/* Names */

static int
same_name(const struct oh_tar_name *a, const struct oh_tar_name *b)
{
	return a->bytes == b->bytes && memcmp(a->text, b->text, a->bytes) == 0;
}

static size_t
text_bytes(const uint8_t *field, size_t most)
{
	const uint8_t *end = memchr(field, 0, most);
	return end ? (size_t)(end - field) : most;
}

static void
name_of_header(struct oh_tar *tar, const uint8_t *block)
{
	struct oh_tar_member *member = &tar->member;
	size_t name = text_bytes(block + AT_NAME, NAME_BYTES), prefix = 0;
	if (memcmp(block + AT_MAGIC, "ustar", 6) == 0)
		prefix = text_bytes(block + AT_PREFIX, PREFIX_BYTES);
	memcpy(tar->short_name, block + AT_PREFIX, prefix);
	if (prefix)
		tar->short_name[prefix++] = '/';
	memcpy(tar->short_name + prefix, block + AT_NAME, name);
	member->name = tar->short_name;
	member->name_bytes = prefix + name;
}

static onehop_status
set_name(struct oh_tar *tar, const uint8_t *block, struct onehop_error *error)
{
	const struct oh_tar_name *pax = tar->own.path.text ? &tar->own.path : &tar->all.path;
	const struct oh_tar_name *link = &tar->link, *name = pax->text ? pax : link;
	if (pax->text && link->text && !same_name(pax, link)) {
		oh_refuse(error, ONEHOP_MALFORMED, tar->path,
			  "byte %llu: a member with two names, one at byte %llu and another at "
			  "byte %llu",
			  (unsigned long long)tar->at, (unsigned long long)link->at,
			  (unsigned long long)pax->at);
		oh_remedy(error, again);
		return ONEHOP_MALFORMED;
	}
	if (!name->text) {
		name_of_header(tar, block);
		return ONEHOP_OK;
	}
	tar->member.name = name->text;
	tar->member.name_bytes = name->bytes;
	return ONEHOP_OK;
}

/* The name that GNU's record holds, up to a NUL: what follows may be a filler. */
static onehop_status
take_link(struct oh_tar *tar, const uint8_t *bytes, struct onehop_error *error)
{
	uint64_t most = oh_min(tar->body, OH_TAR_MOST_NAME + 1);
	struct oh_tar_name name = {.bytes = text_bytes(bytes, most), .at = tar->body_at};
	if (name.bytes == 0 || name.bytes > OH_TAR_MOST_NAME) {
		oh_refuse(error, name.bytes ? ONEHOP_UNSUPPORTED_DATA : ONEHOP_MALFORMED, tar->path,
			  "byte %llu: a long name has 1 to %u bytes, and this one has %s",
			  (unsigned long long)tar->body_at, OH_TAR_MOST_NAME,
			  name.bytes ? "more" : "none");
		oh_remedy(error, again);
		return name.bytes ? ONEHOP_UNSUPPORTED_DATA : ONEHOP_MALFORMED;
	}
	return oh_tar_set_name(&tar->link, (const char *)bytes, &name, tar->path, error);
}

static void
drop_name(struct oh_tar_name *name)
{
	free(name->text);
	memset(name, 0, sizeof *name);
}

/* What belonged to the member before. */
static void
drop_own(struct oh_tar *tar)
{
	drop_name(&tar->link);
	drop_name(&tar->own.path);
	tar->own.has_size = 0;
}

/* ------------------------------------------------------------------------------------------- */
/* States */

static void
go_to(struct oh_tar *tar, int state, uint64_t at)
{
	uint64_t most = state == TAIL ? TAIL_AT_ONCE : OH_TAR_BLOCK;
	uint64_t end = state == TAIL ? oh_max(tar->zeros_end, at) : tar->end;
	tar->state = state;
	tar->at = at;
	tar->need = oh_min(most, end - at);
}

/* Where what lies behind bytes at offset begins; 1 if that is past the end. */
static int
next_block(const struct oh_tar *tar, uint64_t offset, uint64_t bytes, uint64_t *next)
{
	return oh_add(offset, bytes, next) || oh_align_up(*next, OH_TAR_BLOCK, next) ||
	       *next > tar->end;
}

/* A record about the next member, or about all that follow: its body comes next. */
static onehop_status
begin_body(struct oh_tar *tar, char type, uint64_t bytes, struct onehop_error *error)
{
	uint64_t next, offset = tar->at + OH_TAR_BLOCK;
	if (next_block(tar, offset, bytes, &next))
		return refuse_long(tar, "the record", bytes, error);
	if (type != 'L' && type != 'K' && bytes > OH_TAR_MOST_PAX) {
		oh_refuse(error, ONEHOP_UNSUPPORTED_DATA, tar->path,
			  "byte %llu: %llu bytes of pax records, and the most that is taken is %u",
			  (unsigned long long)tar->at, (unsigned long long)bytes, OH_TAR_MOST_PAX);
		oh_remedy(error, again);
		return ONEHOP_UNSUPPORTED_DATA;
	}
	tar->body = bytes;
	tar->body_type = type;
	tar->body_at = tar->at;
	tar->state = BODY;
	tar->at = offset;
	/* Of a name only its beginning, of a link's target nothing. */
	tar->need = type == 'K'	  ? 0
		    : type == 'L' ? oh_min(bytes, OH_TAR_MOST_NAME + 1)
				  : bytes;
	return ONEHOP_OK;
}

static onehop_status
take_body(struct oh_tar *tar, const uint8_t *bytes, struct onehop_error *error)
{
	uint64_t next = 0;
	onehop_status status = ONEHOP_OK;
	if (tar->body_type == 'L')
		status = take_link(tar, bytes, error);
	else if (tar->body_type != 'K')
		status = oh_tar_pax_take(tar->body_type == 'g' ? &tar->all : &tar->own, bytes,
					 tar->body, tar->at, tar->body_type == 'g', tar->path,
					 error);
	if (status)
		return status;
	next_block(tar, tar->at, tar->body, &next);
	/* What holds for all belongs to none. */
	if (tar->body_type == 'g' && tar->begin == tar->body_at)
		tar->begin = next;
	go_to(tar, HEADER, next);
	return ONEHOP_OK;
}

static onehop_status
take_member(struct oh_tar *tar, const uint8_t *block, uint64_t size, enum oh_tar_event *event,
	    struct onehop_error *error)
{
	struct oh_tar_member *member = &tar->member;
	uint64_t next;
	char type = (char)block[AT_TYPE], shown[OH_SHOWN], what[OH_SHOWN + 16];
	onehop_status status = set_name(tar, block, error);
	if (status)
		return status;
	/* As it was before there were types. */
	if (type == '\0' && member->name_bytes && member->name[member->name_bytes - 1] == '/')
		type = '5';
	if (type >= '1' && type <= '6')
		size = 0;
	else if (tar->own.has_size || tar->all.has_size)
		size = tar->own.has_size ? tar->own.size : tar->all.size;
	member->begin = tar->begin;
	member->header = tar->at;
	member->offset = tar->at + OH_TAR_BLOCK;
	member->bytes = size;
	member->type = type == '\0' || type == '7' ? '0' : type;
	if (next_block(tar, member->offset, size, &next)) {
		snprintf(what, sizeof what, "member %s",
			 oh_show(shown, member->name, member->name_bytes));
		return refuse_long(tar, what, size, error);
	}
	tar->begin = next;
	go_to(tar, HEADER, next);
	*event = OH_TAR_MEMBER;
	return ONEHOP_OK;
}

static onehop_status
take_header(struct oh_tar *tar, const uint8_t *block, enum oh_tar_event *event,
	    struct onehop_error *error)
{
	uint64_t size;
	if (tar->need < OH_TAR_BLOCK)
		return refuse_cut(tar, block, error);
	if (!is_sum_right(block))
		return refuse_sum(tar, block, error);
	char type = (char)block[AT_TYPE];
	if (type == 'S' || type == 'M' || type == 'N')
		return refuse_kind(tar, type, error);
	if (number_of(block + AT_SIZE, SIZE_BYTES, &size)) {
		oh_refuse(error, ONEHOP_MALFORMED, tar->path,
			  "byte %llu: the size in this header is no octal number, or no file could "
			  "be so large",
			  (unsigned long long)tar->at);
		oh_remedy(error, again);
		return ONEHOP_MALFORMED;
	}
	if (type == 'X')
		type = 'x'; /* Solaris */
	if (type == 'L' || type == 'K' || type == 'x' || type == 'g')
		return begin_body(tar, type, size, error);
	return take_member(tar, block, size, event, error);
}

static onehop_status
take_first_zero(struct oh_tar *tar, struct onehop_error *error)
{
	if (tar->begin != tar->at) {
		oh_refuse(error, ONEHOP_MALFORMED, tar->path,
			  "byte %llu: the archive ends here, and the records from byte %llu on "
			  "belong to a member that never came",
			  (unsigned long long)tar->at, (unsigned long long)tar->begin);
		oh_remedy(error, again);
		return ONEHOP_MALFORMED;
	}
	tar->end_at = tar->at;
	go_to(tar, SECOND, tar->at + OH_TAR_BLOCK);
	return ONEHOP_OK;
}

static onehop_status
take_second_zero(struct oh_tar *tar, const uint8_t *block, enum oh_tar_event *event,
		 struct onehop_error *error)
{
	if (tar->need < OH_TAR_BLOCK)
		return refuse_cut(tar, block, error);
	if (!is_zero(block, OH_TAR_BLOCK)) {
		oh_refuse(error, ONEHOP_MALFORMED, tar->path,
			  "byte %llu: a zero block by itself, and more behind it: many readers "
			  "would stop there and lose the rest",
			  (unsigned long long)tar->end_at);
		oh_remedy(error, "unpack it by tar --ignore-zeros and pack it anew");
		return ONEHOP_MALFORMED;
	}
	go_to(tar, TAIL, tar->at + OH_TAR_BLOCK);
	if (tar->need == 0)
		*event = OH_TAR_END;
	return ONEHOP_OK;
}

/* Nothing but zeros may follow, or a reader that stops at the end loses something. */
static onehop_status
take_tail(struct oh_tar *tar, const uint8_t *bytes, enum oh_tar_event *event,
	  struct onehop_error *error)
{
	uint64_t at = 0;
	while (at < tar->need && is_zero(bytes + at, oh_min(OH_TAR_BLOCK, tar->need - at)))
		at += OH_TAR_BLOCK;
	if (at >= tar->need) {
		go_to(tar, TAIL, tar->at + tar->need);
		if (tar->need == 0)
			*event = OH_TAR_END;
		return ONEHOP_OK;
	}
	int joined = tar->need - at >= OH_TAR_BLOCK && is_sum_right(bytes + at);
	uint64_t from = tar->at + at, follow = tar->zeros_end - from;
	oh_refuse(error, ONEHOP_MALFORMED, tar->path,
		  "the archive ends at byte %llu, and %s from byte %llu on: %llu %s that readers "
		  "would not see",
		  (unsigned long long)tar->end_at,
		  joined ? "another one lies behind it" : "something that is no archive follows",
		  (unsigned long long)from, (unsigned long long)follow, oh_bytes_word(follow));
	if (joined)
		oh_remedy(error, "give each archive a file of its own, or join them by tar "
				 "--concatenate instead of cat");
	else
		oh_remedy(error,
			  "get a good copy, or cut what does not belong there: truncate -s %llu",
			  (unsigned long long)tar->end_at + 2 * OH_TAR_BLOCK);
	return ONEHOP_MALFORMED;
}

void
oh_tar_init(struct oh_tar *tar, const char *path, uint64_t end, uint64_t zeros_end)
{
	memset(tar, 0, sizeof *tar);
	tar->path = path;
	tar->end = end;
	tar->zeros_end = zeros_end;
	go_to(tar, HEADER, 0);
}

void
oh_tar_free(struct oh_tar *tar)
{
	drop_own(tar);
	drop_name(&tar->all.path);
}

onehop_status
oh_tar_next(struct oh_tar *tar, const uint8_t *bytes, enum oh_tar_event *event,
	    struct onehop_error *error)
{
	*event = OH_TAR_MORE;
	switch (tar->state) {
	case BODY:
		return take_body(tar, bytes, error);
	case SECOND:
		return take_second_zero(tar, bytes, event, error);
	case TAIL:
		return take_tail(tar, bytes, event, error);
	default:
		if (tar->begin == tar->at)
			drop_own(tar);
		if (tar->need == OH_TAR_BLOCK && is_zero(bytes, OH_TAR_BLOCK))
			return take_first_zero(tar, error);
		return take_header(tar, bytes, event, error);
	}
}

/* ------------------------------------------------------------------------------------------- */
/* The key rule */

/* "__x__" before a slash or the end, as webdataset's skip_meta has it. */
static int
is_meta(const char *name, uint64_t bytes)
{
	const char *slash = memchr(name, '/', bytes);
	uint64_t first = slash ? (uint64_t)(slash - name) : bytes;
	return first >= 4 && memcmp(name, "__", 2) == 0 && memcmp(name + first - 2, "__", 2) == 0;
}

enum oh_tar_role
oh_tar_split(const char *name, uint64_t bytes, struct oh_tar_key *key)
{
	const char *slash = memrchr(name, '/', bytes);
	const char *base = slash ? slash + 1 : name, *end = name + bytes;
	const char *dot = memchr(base, '.', (size_t)(end - base));
	if (is_meta(name, bytes))
		return OH_TAR_META;
	if (end - base >= 2 && memcmp(base, "._", 2) == 0)
		return OH_TAR_APPLE_DOUBLE;
	if (!dot || dot == base || dot + 1 == end)
		return OH_TAR_NO_FIELD;
	key->key_bytes = (uint64_t)(dot - name);
	key->field = key->key_bytes + 1;
	key->field_bytes = bytes - key->field;
	return OH_TAR_PART;
}
