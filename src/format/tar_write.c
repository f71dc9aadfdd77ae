/* The headers of a member: fillers, a record for a long name, and the ustar header.
 *
 * The gap before an aligned payload is filled by what no reader shows: a long-name record (GNU) that
 * repeats the member's own name and has NULs behind it, or an extended header (pax) whose records are
 * comments. Both need two blocks. So a gap of one block is a directory entry, which readers do show;
 * so is each block with OH_TAR_PAD_DIR. busybox refuses long-name records of more than 4095 bytes, and
 * libarchive extended headers of more than 1 MiB: a larger gap is filled by several, each of which
 * belongs to a directory entry but for the last.
 *
 * A name of more than 100 bytes has a record of its own that says it, and the filler is then part of
 * that record. Nothing is ever sparse, and no number needs more than its octal digits.
 *
 * Comments are dots in records of at most 512 bytes: long runs of digits take some versions of Python
 * milliseconds a member.
 */
#include "format/tar_write.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define BLOCK      512u
#define SHORT_NAME 100

/* Their headers counted in. */
#define LINK_MOST 4096u
#define PAX_MOST  (512u << 10)

#define PAD_NAME "__pad__/"

static const struct oh_tar_entry pad_entry = {.name = PAD_NAME, .name_bytes = sizeof PAD_NAME - 1};

static uint64_t
blocks(uint64_t bytes)
{
	return (bytes + BLOCK - 1) & ~(uint64_t)(BLOCK - 1);
}

static int
has_long_name(const struct oh_tar_entry *entry)
{
	return entry->name_bytes > SHORT_NAME;
}

/* ---- records and headers */

/* Octal digits, as many as the field has room for with a NUL. */
static void
put_number(unsigned char *field, size_t room, uint64_t value)
{
	for (size_t i = room - 1; i-- > 0; value >>= 3)
		field[i] = (unsigned char)('0' + (value & 7));
	assert(value == 0);
}

/* The sum counts its own field as spaces. */
static void
put_sum(unsigned char *header)
{
	unsigned sum = 0;
	memset(header + 148, ' ', 8);
	for (unsigned i = 0; i < BLOCK; i++)
		sum += header[i];
	put_number(header + 148, 7, sum);
	header[154] = '\0';
}

static unsigned char *
put_header(unsigned char *to, const char *name, uint64_t name_bytes, char type, uint64_t bytes,
	   uint64_t mtime)
{
	memset(to, 0, BLOCK);
	memcpy(to, name, name_bytes < SHORT_NAME ? name_bytes : SHORT_NAME);
	put_number(to + 100, 8, type == '5' ? 0755 : 0644);
	put_number(to + 108, 8, 0);
	put_number(to + 116, 8, 0);
	put_number(to + 124, 12, bytes);
	put_number(to + 136, 12, mtime);
	to[156] = (unsigned char)type;
	memcpy(to + 257, "ustar\0" "00", 8);
	put_number(to + 329, 8, 0);
	put_number(to + 337, 8, 0);
	put_sum(to);
	return to + BLOCK;
}

static unsigned
digits(uint64_t value)
{
	unsigned count = 1;
	for (; value >= 10; value /= 10)
		count++;
	return count;
}

/* Bytes of the pax record "LENGTH KEY=VALUE\n", its length counted in. */
static uint64_t
pax_record_bytes(uint64_t key_bytes, uint64_t value_bytes)
{
	uint64_t rest = 1 + key_bytes + 1 + value_bytes + 1;
	uint64_t whole = rest + digits(rest);
	return rest + digits(whole);
}

#define COMMENT       "comment"
#define COMMENT_LEAST 13 /* one byte of comment; none would be an order to forget the key */

static unsigned char *
put_comment(unsigned char *to, uint64_t bytes)
{
	unsigned char *end = to + bytes;
	to += sprintf((char *)to, "%u " COMMENT "=", (unsigned)bytes);
	memset(to, '.', (size_t)(end - to) - 1);
	end[-1] = '\n';
	return end;
}

/* Records that fill room, but for a rest that no comment fits in. Returns how much they fill. */
static uint64_t
put_pax(unsigned char *to, const struct oh_tar_entry *entry, uint64_t room)
{
	unsigned char *at = to, *end = to + room;
	if (has_long_name(entry)) {
		uint64_t bytes = pax_record_bytes(4, entry->name_bytes);
		at += sprintf((char *)at, "%u path=", (unsigned)bytes);
		memcpy(at, entry->name, entry->name_bytes);
		at += entry->name_bytes;
		*at++ = '\n';
	}
	while (end - at >= COMMENT_LEAST)
		at = put_comment(at, end - at < 512 ? (uint64_t)(end - at) : 512);
	memset(at, 0, (size_t)(end - at));
	return (uint64_t)(at - to);
}

/* A header and a body that fill `bytes`, and belong to the entry whose header follows. */
static unsigned char *
put_record(unsigned char *to, const struct oh_tar_entry *entry, enum oh_tar_pad pad,
	   uint64_t mtime, uint64_t bytes)
{
	static const char link[] = "././@LongLink", pax[] = "PaxHeaders/x";
	uint64_t body = bytes - BLOCK;
	if (pad == OH_TAR_PAD_PAX) {
		uint64_t filled = put_pax(to + BLOCK, entry, body);
		put_header(to, pax, sizeof pax - 1, 'x', filled, mtime);
	} else {
		memcpy(to + BLOCK, entry->name, entry->name_bytes);
		memset(to + BLOCK + entry->name_bytes, 0, body - entry->name_bytes);
		put_header(to, link, sizeof link - 1, 'L', body, mtime);
	}
	return to + bytes;
}

/* ---- what goes where */

/* The bytes before a payload: first `pad` that belong to nobody, then `record`, then the header. */
struct plan {
	uint64_t pad;
	uint64_t record;
};

/* A record that says a long name; 0 for a short one. */
static uint64_t
name_record(const struct oh_tar_entry *entry)
{
	if (!has_long_name(entry))
		return 0;
	if (entry->pad == OH_TAR_PAD_PAX)
		return BLOCK + blocks(pax_record_bytes(4, entry->name_bytes));
	return BLOCK + blocks(entry->name_bytes + 1);
}

static uint64_t
record_most(const struct oh_tar_entry *entry)
{
	return entry->pad == OH_TAR_PAD_PAX ? PAX_MOST : LINK_MOST;
}

static struct plan
make_plan(const struct oh_tar_entry *entry, uint64_t at)
{
	struct plan plan = {0, name_record(entry)};
	uint64_t gap = -(at + plan.record + BLOCK) & (entry->alignment - 1);
	assert(at % BLOCK == 0);
	if (entry->pad == OH_TAR_PAD_DIR)
		plan.pad = gap;
	else if (plan.record + gap > record_most(entry))
		plan.pad = plan.record + gap - record_most(entry);
	if (plan.record == 0 && gap - plan.pad == BLOCK)
		plan.pad += BLOCK;
	plan.record += gap - plan.pad;
	return plan;
}

struct oh_tar_lead
oh_tar_lead(const struct oh_tar_entry *entry, uint64_t at)
{
	struct plan plan = make_plan(entry, at);
	return (struct oh_tar_lead){plan.pad + plan.record + BLOCK, plan.pad};
}

/* A directory entry, with a record of its own where it is to fill more than a block. */
static unsigned char *
put_dir(unsigned char *to, const struct oh_tar_entry *entry, uint64_t room, uint64_t *filled)
{
	uint64_t record = room - BLOCK;
	if (record > record_most(entry))
		record = record_most(entry);
	if (record == BLOCK || entry->pad == OH_TAR_PAD_DIR)
		record = 0;
	*filled = record + BLOCK;
	if (record)
		to = put_record(to, &pad_entry, entry->pad, entry->mtime, record);
	return put_header(to, PAD_NAME, sizeof PAD_NAME - 1, '5', 0, entry->mtime);
}

void
oh_tar_put(const struct oh_tar_entry *entry, uint64_t at, void *to)
{
	struct plan plan = make_plan(entry, at);
	unsigned char *out = to;
	for (uint64_t left = plan.pad, filled; left; left -= filled)
		out = put_dir(out, entry, left, &filled);
	if (plan.record)
		out = put_record(out, entry, entry->pad, entry->mtime, plan.record);
	put_header(out, entry->name, entry->name_bytes, '0', entry->bytes, entry->mtime);
}
