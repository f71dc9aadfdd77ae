/* Walking a tar archive: blocks in, members out. Pure: the caller reads.
 *
 *	oh_tar_init(&tar, path, end, end);
 *	for (;;) {
 *		give it tar.need bytes that lie at tar.at: oh_tar_next(&tar, bytes, &event, &error)
 *		on OH_TAR_MEMBER look at tar.member; what is in it is good until the next call
 *	}
 *	oh_tar_free(&tar);
 *
 * It reads ustar, pax, GNU and v7 archives, and is strict where readers would differ: it names the
 * first rule that is broken and never ends early. What it refuses as MALFORMED: a header whose sum
 * is wrong, numbers that are none or overflow, an archive that is cut (within a header, a payload,
 * or before the two zero blocks that end it), a lone zero block, anything but zeros behind the end,
 * a member with two names. As UNSUPPORTED_DATA: compressed files, sparse members, parts of archives
 * over several volumes, names in a form that GNU tar gave up long ago.
 */
#ifndef OH_FORMAT_TAR_H
#define OH_FORMAT_TAR_H

#include "base/error.h"

#include <stdint.h>

#define OH_TAR_BLOCK 512

/* A member's name may have so many bytes; a header of pax records so many, fillers of aligned
 * shards included. Nothing is allocated but names. */
#define OH_TAR_MOST_NAME (64u << 10)
#define OH_TAR_MOST_PAX (4u << 20)

/* The most that it asks for at once. */
#define OH_TAR_MOST_NEED OH_TAR_MOST_PAX

struct oh_tar_member {
	const char *name;    /* not ended by a NUL; any bytes but NUL */
	uint64_t name_bytes;
	uint64_t begin;      /* of its first header, records that belong to it included */
	uint64_t header;     /* of its own header */
	uint64_t offset;     /* of its payload */
	uint64_t bytes;      /* of it; 0 for what has none */
	char type;           /* '0' for all kinds of regular files, else as in the header */
};

enum oh_tar_event {
	OH_TAR_MORE,   /* nothing yet */
	OH_TAR_MEMBER, /* tar.member */
	OH_TAR_END,    /* the archive is whole, and only zeros follow as far as they should */
};

/* A name from a record, and where it was. */
struct oh_tar_name {
	char *text; /* owned; NULL: none */
	uint64_t bytes;
	uint64_t at;
};

/* What pax records said. */
struct oh_tar_pax {
	struct oh_tar_name path;
	uint64_t size;
	uint64_t size_at;
	int has_size;
};

struct oh_tar {
	/* For the caller. */
	uint64_t at;
	uint64_t need;
	uint64_t end_at; /* of the two zero blocks, from OH_TAR_END on */
	struct oh_tar_member member;
	/* Its own. */
	const char *path;
	uint64_t end;
	uint64_t zeros_end;
	uint64_t begin;   /* where the headers of the next member begin */
	uint64_t body;    /* bytes of the record that is being read */
	uint64_t body_at; /* of that record's header */
	int state;
	char body_type;
	struct oh_tar_name link; /* of a GNU long-name record */
	struct oh_tar_pax own;   /* of the next member */
	struct oh_tar_pax all;   /* of all that follow */
	char short_name[257];    /* prefix, slash, name */
};

/* end: the bytes of the file; only zeros may lie between the end of the archive and zeros_end,
 * which is where a trailer begins, or end again. path is for messages and must outlive it. */
void oh_tar_init(struct oh_tar *tar, const char *path, uint64_t end, uint64_t zeros_end);
void oh_tar_free(struct oh_tar *tar);

/* bytes: the tar.need bytes at tar.at, which never pass the end. After a failure or OH_TAR_END only
 * oh_tar_free is allowed. MALFORMED, UNSUPPORTED_DATA, NO_MEMORY. */
onehop_status oh_tar_next(struct oh_tar *tar, const uint8_t *bytes, enum oh_tar_event *event,
			  struct onehop_error *error);

/* How a name belongs to a sample: all up to the first dot of its last component is the sample's
 * key, what follows that dot the field, so that "drive/0007.cam.jpg" is field "cam.jpg" of sample
 * "drive/0007". */
enum oh_tar_role {
	OH_TAR_PART,         /* key and field are there */
	OH_TAR_META,         /* "__x__" or what lies below it: skipped, as webdataset does */
	OH_TAR_APPLE_DOUBLE, /* "._x": what macOS puts beside each file of its own */
	OH_TAR_NO_FIELD,     /* no dot, or nothing before it (".DS_Store") */
};

struct oh_tar_key {
	uint64_t key_bytes;   /* the key is the name's first so many bytes */
	uint64_t field;       /* where the field begins; it is the rest, with capitals of ASCII */
	uint64_t field_bytes; /* to be made small, as webdataset does */
};

/* *key is written if it is a PART. */
enum oh_tar_role oh_tar_split(const char *name, uint64_t bytes, struct oh_tar_key *key);

#endif
