/* A file under its temporary name, `.<name>.onehop-part`, and a record of what is written. */
#ifndef CLI_PARTIAL_H
#define CLI_PARTIAL_H

#include "files.h"
#include "progress.h"

struct partial {
	int folder;       /* descriptor of the folder that names are below; not its own */
	const char *name; /* the final one */
	char *part_name;
	char *path;       /* of the final one, for sentences */
	int fd;           /* locked while it is open */
	uint64_t bytes, pieces;
	struct record *records; /* one a piece */
	int resumed;      /* it was there, of the same source, with a piece at least */
};

/* Checksum of a piece, and the same inverted: zeros are no record. */
struct record {
	uint32_t crc, inverted;
};

/* Opens it, anew or where an interrupted run left it, with room for all of it reserved where the
 * file system can. Waits for another process that writes it. path: of the final name. After a
 * failure there is nothing to close. */
onehop_status partial_open(struct partial *partial, int folder, const char *path,
			   const struct model_file *source, struct progress *progress,
			   struct onehop_error *error);

/* 1 if the record says that the piece was written with this checksum in *crc. */
int partial_has(const struct partial *partial, uint64_t piece, uint32_t *crc);
/* Writes the piece, then its record. Any thread, one a piece. */
onehop_status partial_write(struct partial *partial, uint64_t piece, const char *data,
			    size_t bytes, uint32_t crc, struct onehop_error *error);

/* Waits until all of it is on the disk. If forget is set, asks the kernel to drop its pages, so
 * that it is the disk that is read next. */
onehop_status partial_sync(struct partial *partial, int forget, struct onehop_error *error);

/* Gives it the source's times and mode and its final name. Replaces a file there only if replace is
 * set. On success the descriptor stays open, for reading, until partial_close(). */
onehop_status partial_finish(struct partial *partial, const struct model_file *source, int replace,
			     struct onehop_error *error);

/* Closes it. If keep is 0 and it has not its final name, or nothing was written, it is removed. */
void partial_close(struct partial *partial, int keep);

/* The name `.<name>.onehop-part` beside name. malloc'd, NULL for no memory. */
char *partial_name(const char *name);

/* fsync() of the folder that the name below `folder` lies in. */
onehop_status sync_folder_of(int folder, const char *name, struct onehop_error *error);

#endif
