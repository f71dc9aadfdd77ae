/* The index's bytes as docs/format.md lays them out; for the reader and the builder of them. */
#ifndef OH_FORMAT_SHARD_FILE_H
#define OH_FORMAT_SHARD_FILE_H

#include "format/shard.h"

#include <stddef.h>

#define OH_SHARD_MAGIC         "ONEHOPIX"
#define OH_SHARD_VERSION       1
#define OH_SHARD_SECTION_ALIGN 64

#define OH_TRAILER_MAGIC "ONEHOPTL"

enum oh_shard_kind {
	OH_SECTION_SAMPLES = 1,
	OH_SECTION_KEYS,
	OH_SECTION_PARTS,
	OH_SECTION_FIELDS,
	OH_SECTION_NAMES,
	OH_SECTION_TYPES,
	OH_SECTION_TIMES,
	OH_SECTION_EPISODES,
	OH_SECTION_STREAMS,
	OH_SECTION_PART_TIMES,
	OH_SECTION_KINDS /* one more than the last */
};

/* Bytes of an entry, by kind. */
static const uint32_t oh_shard_entry[OH_SECTION_KINDS] = {
	0,
	sizeof(struct oh_shard_sample),
	1,
	sizeof(struct oh_shard_part),
	sizeof(struct oh_shard_name),
	1,
	sizeof(struct oh_shard_type),
	sizeof(struct oh_shard_time),
	sizeof(struct oh_shard_name),
	sizeof(struct oh_shard_name),
	sizeof(int64_t),
};

struct oh_shard_header {
	char magic[8];
	uint32_t version;
	uint32_t header_bytes;
	uint64_t index_bytes;
	uint64_t shard_bytes;
	uint64_t tar_end;
	uint64_t members;
	uint64_t samples;
	uint64_t parts;
	uint32_t sections;
	uint32_t flags;
	uint32_t alignment_bytes;
	uint32_t align;
	uint8_t reserved[44];
	uint32_t crc32c; /* of all before it, then the directory */
};

struct oh_shard_section {
	uint32_t kind;
	uint32_t crc32c;
	uint64_t offset;
	uint64_t bytes;
	uint64_t entries;
};

struct oh_shard_trailer {
	char magic[8];
	uint32_t version;
	uint32_t reserved;
	uint64_t index_offset;
	uint64_t index_bytes;
	uint64_t tar_end;
	uint32_t index_crc32c; /* the one in the index's header */
	uint8_t reserved2[16];
	uint32_t crc32c; /* of all before it */
};

/* What the last bytes of a file of file_bytes are: 1 a trailer, -1 one that is damaged, 0 none.
 * UNSUPPORTED_DATA if it is of a newer version; path is the shard's, for that. */
onehop_status oh_shard_trailer_judge(const struct oh_shard_trailer *trailer, uint64_t file_bytes,
				     const char *path, int *found, struct onehop_error *error);

/* What of a shard an index is held against, to see whether it is its own. */
struct oh_shard_seen {
	const char *path;
	uint64_t bytes;
	/* What lies where the index says that the archive ends: OH_SHARD_END_BYTES; NULL: that are
	 * more than there are. */
	const uint8_t *end;
	/* Its trailer says, if it has one. */
	int has_trailer;
	uint64_t tar_end;
	uint32_t index_crc32c;
};

#define OH_SHARD_END_BYTES 1024

/* MISMATCH if the index is of another shard, or of what this one was: by its size and its end. */
onehop_status oh_shard_fits(const struct oh_shard_view *view, const struct oh_shard_seen *seen,
			    struct onehop_error *error);
/* MISMATCH if a trailer is there that the index does not know of, or the other way round, or one of
 * another index: a writer that is killed between its two renames leaves an old shard beside a new
 * index. */
onehop_status oh_shard_agrees(const struct oh_shard_view *view, const struct oh_shard_seen *seen,
			      struct onehop_error *error);
/* The error for an index that says another number than there is. Returns MISMATCH. */
onehop_status oh_shard_is_other(const char *path, const char *what, uint64_t is, uint64_t says,
				struct onehop_error *error);

_Static_assert(sizeof(struct oh_shard_header) == 128, "docs/format.md");
_Static_assert(offsetof(struct oh_shard_header, crc32c) == 124, "docs/format.md");
_Static_assert(sizeof(struct oh_shard_section) == 32, "docs/format.md");
_Static_assert(sizeof(struct oh_shard_trailer) == 64, "docs/format.md");
_Static_assert(sizeof(struct oh_shard_sample) == 16, "docs/format.md");
_Static_assert(sizeof(struct oh_shard_part) == 32, "docs/format.md");
_Static_assert(sizeof(struct oh_shard_name) == 8, "docs/format.md");
_Static_assert(sizeof(struct oh_shard_type) == 72, "docs/format.md");
_Static_assert(sizeof(struct oh_shard_time) == 24, "docs/format.md");

#endif
