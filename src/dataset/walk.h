/* Walking a tar file: format/tar with reads under it. */
#ifndef OH_DATASET_WALK_H
#define OH_DATASET_WALK_H

#include "base/sys.h"
#include "format/tar.h"

struct oh_walk {
	const char *path;
	struct oh_tar tar;
	uint64_t file_bytes;
	/* Its own. */
	int fd;
	struct stat opened;
	uint8_t *window; /* bytes [at, at + have) of the file */
	uint64_t at;
	uint64_t have;
	uint64_t capacity;
	uint64_t asked; /* the end of what was asked for last */
};

/* Opens a regular file. path must outlive it. NOT_FOUND, ACCESS, IO, INVALID_ARGUMENT (a folder, a
 * pipe). oh_walk_close() after success. */
onehop_status oh_walk_open(struct oh_walk *walk, const char *path, struct onehop_error *error);
void oh_walk_close(struct oh_walk *walk);

/* Begins at the first header; zeros_end as in oh_tar_init(). once, before oh_walk_next().
 * all: payloads will be read, too. */
void oh_walk_begin(struct oh_walk *walk, uint64_t zeros_end, int all);

/* The next member, or the end: MEMBER or END. */
onehop_status oh_walk_next(struct oh_walk *walk, enum oh_tar_event *event,
			   struct onehop_error *error);

/* Bytes of the file, which has them, OH_TAR_MOST_NEED at most; good until the next call. */
onehop_status oh_walk_bytes(struct oh_walk *walk, uint64_t offset, uint64_t bytes,
			    const uint8_t **out, struct onehop_error *error);

/* The CRC-32C of as many as you like. */
onehop_status oh_walk_crc32c(struct oh_walk *walk, uint64_t offset, uint64_t bytes, uint32_t *crc,
			     struct onehop_error *error);

/* FILE_CHANGED if the file is not what it was when it was opened. */
onehop_status oh_walk_check(struct oh_walk *walk, struct onehop_error *error);

#endif
