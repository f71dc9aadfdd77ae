/* Where one item's bytes lie in its file, worked out by the command itself. */
#ifndef CLI_PART_H
#define CLI_PART_H

#include "job.h"

/* Rows of row_bytes, stride apart, from offset on. A whole tensor is one row. */
struct part {
	uint32_t file;
	uint64_t offset;
	uint64_t row_bytes;
	uint64_t stride;
};

/* A file that is open for reading; begin with fd -1. */
struct part_file {
	int fd;
	uint32_t index;
};

/* shape is scratch. NO_MEMORY only. */
onehop_status part_of(const struct job *job, const struct onehop_item *item, struct shape *shape,
		      struct part *part, struct onehop_error *error);

/* Reads bytes [at, at + bytes) of the part. window is scratch of window_bytes. */
onehop_status part_read(const struct job *job, const struct part *part, uint64_t at, void *to,
			uint64_t bytes, struct part_file *file, char *window, size_t window_bytes,
			struct onehop_error *error);

void part_file_close(struct part_file *file);

#endif
