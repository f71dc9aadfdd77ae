/* Exact reads of a file's bytes, for headers. */
#ifndef OH_RUNTIME_FILE_H
#define OH_RUNTIME_FILE_H

#include <onehop/file.h>

/* Reads bytes [offset, offset + bytes) into memory: all of them or an error that names file and
 * offset. Blocks. Any thread. */
onehop_status oh_file_pread(struct onehop_file *file, void *memory, uint64_t bytes, uint64_t offset,
			    struct onehop_error *error);

/* What offsets and lengths of O_DIRECT reads have to be multiples of: 1 where the file takes none,
 * 4096 where the kernel is silent. */
uint32_t oh_file_direct_alignment(const struct onehop_file *file);

/* Is it pinned by onehop_file_pin()? */
int oh_file_is_pinned(const struct onehop_file *file);

#endif
