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

/* Pins the file's page cache for a GPU and keeps it so: plans made afterwards copy straight from it, at
 * the link's rate and with hardly any CPU. It takes the file's size of memory that cannot be
 * reclaimed, which is checked against the usable memory (LIMIT) but not counted in
 * pinned_limit_bytes; what is not resident is read in first. UNSUPPORTED where the device's driver does not
 * do it (host memory, some GPUs). Once for one device; again is no error. Blocks. Serial for one
 * file. */
ONEHOP_API onehop_status onehop_file_pin(struct onehop_file *file, const char *device,
					 struct onehop_error *error);

/* Undoes it. Plans that were made of the pinned file must be gone. Closing the file does it too. */
ONEHOP_API void onehop_file_unpin(struct onehop_file *file);

/* Fill info->size first. Any thread. */
ONEHOP_API onehop_status onehop_file_query(const struct onehop_file *file,
					   struct onehop_file_info *info);

#ifdef __cplusplus
}
#endif
#endif
