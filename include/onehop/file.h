/* SPDX-License-Identifier: Apache-2.0
 *
 * onehop/file.h: a file as a source of bytes.
 */
#ifndef ONEHOP_FILE_H
#define ONEHOP_FILE_H

#include <onehop/runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

struct onehop_file;

struct onehop_file_info {
	uint32_t size;
	uint32_t reserved;
	const char *path; /* as given to open; lives as long as the file */
	uint64_t bytes;
};

/* Opens a regular file for reading and takes its identity (device, inode, size, mtime, ctime),
 * which every transfer compares again after its last read. Never waits on a FIFO. Fails with
 * NOT_FOUND, ACCESS, IO, INVALID_ARGUMENT (not a regular file). Any thread. */
ONEHOP_API onehop_status onehop_file_open(struct onehop_runtime *runtime, const char *path,
					  struct onehop_file **file, struct onehop_error *error);

/* NULL is allowed. Plans that name the file must be gone. */
ONEHOP_API void onehop_file_close(struct onehop_file *file);

/* Fill info->size first. Any thread. */
ONEHOP_API onehop_status onehop_file_query(const struct onehop_file *file,
					   struct onehop_file_info *info);

#ifdef __cplusplus
}
#endif
#endif
