/* The headers of a tar archive whose payloads begin on an alignment. Pure: numbers in, bytes out, the
 * same bytes for the same numbers.
 */
#ifndef OH_FORMAT_TAR_WRITE_H
#define OH_FORMAT_TAR_WRITE_H

#include <stdint.h>

/* A longer name, or a longer part of it between slashes, is one that some reader cannot extract. */
#define OH_TAR_NAME_MOST      1024
#define OH_TAR_COMPONENT_MOST 255

/* More does not fit the header's eleven digits, and what comes instead is not read by all. */
#define OH_TAR_SIZE_MOST  ((UINT64_C(1) << 33) - 1)
#define OH_TAR_MTIME_MOST ((UINT64_C(1) << 33) - 1)

/* The alignment of the archive's end: whole records of tar, and whole pages. */
#define OH_TAR_END_ALIGN 20480

enum oh_tar_pad {
	OH_TAR_PAD_GNU, /* long-name records that repeat the member's name */
	OH_TAR_PAD_PAX, /* extended headers of comments */
	OH_TAR_PAD_DIR, /* directory entries */
};

struct oh_tar_entry {
	const char *name;
	uint32_t name_bytes; /* 1 to OH_TAR_NAME_MOST, without NUL */
	enum oh_tar_pad pad;
	uint64_t bytes;      /* of the payload, at most OH_TAR_SIZE_MOST */
	uint64_t mtime;      /* at most OH_TAR_MTIME_MOST */
	uint32_t alignment;  /* of the payload: a power of two from 512 to 2 MiB */
};

/* The most that the headers of one member take. */
#define OH_TAR_HEADERS_MOST ((2u << 20) + 4096)

/* What goes before a payload whose headers begin at `at`, a multiple of 512: bytes of it, and of those
 * the first `pad` are directory entries that belong to nobody. */
struct oh_tar_lead {
	uint64_t bytes;
	uint64_t pad;
};
struct oh_tar_lead oh_tar_lead(const struct oh_tar_entry *entry, uint64_t at);

/* Writes that. */
void oh_tar_put(const struct oh_tar_entry *entry, uint64_t at, void *to);

/* Zeros that follow a payload, up to the next header. */
static inline uint64_t
oh_tar_tail(uint64_t bytes)
{
	return -bytes & 511;
}

#endif
