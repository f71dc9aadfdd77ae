/* A shard's index where it lies: the side file, or the trailer behind the archive. */
#ifndef OH_DATASET_INDEXED_H
#define OH_DATASET_INDEXED_H

#include "dataset/walk.h"
#include "format/shard.h"

#include <onehop/dataset.h>

struct oh_indexed {
	char *name;  /* of the file that it is in: PATH.onehop, or PATH itself */
	void *bytes;
	uint64_t size;
	struct oh_shard_view view;
};

/* Where the trailer's index begins and ends, and what the trailer says of the archive. begin is the
 * shard's end if it has no trailer. */
struct oh_trailer {
	uint64_t begin;
	uint64_t bytes;
	uint64_t tar_end;
	uint32_t index_crc32c;
	int is_there;
	int is_damaged; /* and so not there: what lies there is data behind the archive's end */
};

/* Looks for a trailer. UNSUPPORTED_DATA: one of a newer version. */
onehop_status oh_trailer_find(struct oh_walk *walk, struct oh_trailer *trailer,
			      struct onehop_error *error);

/* Reads and checks what lies in the side file, or behind a trailer that is there. NOT_FOUND: there
 * is none; MALFORMED, UNSUPPORTED_DATA as oh_shard_open(). What it says of entries is not looked
 * at, and neither is whether it fits. oh_indexed_free() after success. */
onehop_status oh_indexed_side(struct oh_walk *walk, struct oh_indexed *indexed,
			      struct onehop_error *error);
onehop_status oh_indexed_trailer(struct oh_walk *walk, const struct oh_trailer *trailer,
				 struct oh_indexed *indexed, struct onehop_error *error);
void oh_indexed_free(struct oh_indexed *indexed);

/* MISMATCH if the index is one of another shard, or of one that was changed: by size and end. */
onehop_status oh_indexed_fits(struct oh_walk *walk, const struct oh_indexed *indexed,
			      struct onehop_error *error);

/* MISMATCH if the archive, walked to its end, has not the end or the number of regular files that
 * the index says; or if a trailer is there and speaks of another end, or is not where it may be. */
onehop_status oh_indexed_counts(struct oh_walk *walk, const struct oh_trailer *trailer,
				const struct oh_indexed *indexed, uint64_t members,
				struct onehop_error *error);

/* MALFORMED if two samples have one key. name is the shard's. The entries have been checked. */
onehop_status oh_indexed_keys(const struct oh_shard_view *view, const char *name,
			      struct onehop_error *error);

/* MISMATCH if there is a trailer that the index knows nothing of, or one with another index, or
 * none though the index knows of one. After a kill between the two renames of a writer an old shard
 * may lie beside a new index. */
onehop_status oh_indexed_agree(struct oh_walk *walk, const struct oh_trailer *trailer,
			       const struct oh_indexed *indexed, struct onehop_error *error);

/* What an index tells about its shard; `skipped` counts regular files only. */
void oh_indexed_info(const struct oh_indexed *indexed, struct onehop_shard_info *info);

/* Writes bytes as the side file of path: whole, and on the disk, or not at all. */
onehop_status oh_indexed_publish(const char *path, const void *bytes, uint64_t size,
				 struct onehop_error *error);

#endif
