/* GGUF versions 2 and 3, little-endian. Format: ggml's docs/gguf.md and its reference reader. */
#ifndef OH_FORMAT_GGUF_H
#define OH_FORMAT_GGUF_H

#include "base/error.h"
#include "format/table.h"

/* Most bytes of metadata and tensor infos that are read. */
#define OH_GGUF_MAX_HEADER (UINT64_C(256) << 20)

/* Parses the first have bytes at text of a file of file_bytes. If the header is longer than have,
 * but can be within the file, returns ONEHOP_OK with *need set to a number of bytes greater than
 * have (at most OH_GGUF_MAX_HEADER and file_bytes), *table untouched, and text still the caller's:
 * read that much and call again. Else *need is 0 and text (malloc'd) is taken: owned by the table
 * on success, freed on failure. */
onehop_status oh_gguf_parse(const char *path, uint8_t *text, uint64_t have, uint64_t file_bytes,
			    struct oh_table *table, uint64_t *need, struct onehop_error *error);

#endif
