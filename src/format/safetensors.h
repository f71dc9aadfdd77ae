/* safetensors: u64 little-endian header length N, N bytes of JSON, then the tensors' bytes.
 * Format: the safetensors README and its reference parser. Pure: bytes in, table out. */
#ifndef OH_FORMAT_SAFETENSORS_H
#define OH_FORMAT_SAFETENSORS_H

#include "base/error.h"
#include "format/table.h"

#define OH_SAFETENSORS_MAX_HEADER UINT64_C(100000000)

/* Bytes of a file's beginning that oh_safetensors_length and oh_sniff look at, fewer if the file is
 * shorter. */
#define OH_HEAD_BYTES 512

/* Judges the length field. head: the file's first bytes, head_bytes of them (OH_HEAD_BYTES or the
 * whole file if shorter). path is for messages. On success *header_bytes is N. Where the bytes
 * look like something else (Git LFS pointer, HTML, zip, GGUF, ...), the error names what they are.
 */
onehop_status oh_safetensors_length(const char *path, const uint8_t *head, uint64_t head_bytes,
				    uint64_t file_bytes, uint64_t *header_bytes,
				    struct onehop_error *error);

/* Parses the header of text_bytes (at most OH_SAFETENSORS_MAX_HEADER, at most file_bytes - 8) at
 * text (malloc'd, not the 8 length bytes) of a file of file_bytes. Takes text: on success the table
 * owns it, on failure it is freed. Memory at the peak, text included, is under 3 times text_bytes.
 */
onehop_status oh_safetensors_parse(const char *path, uint8_t *text, uint64_t text_bytes,
				   uint64_t file_bytes, struct oh_table *table,
				   struct onehop_error *error);

/* What the first bytes of a file are: "a safetensors file", "a GGUF file", "a Git LFS pointer",
 * "a web page (HTML)", "a zip archive ...", "plain text", ...; NULL if they look like nothing
 * known. A safetensors file is one whose length field is believable and followed by a '{'. */
const char *oh_sniff(const uint8_t *head, uint64_t head_bytes);

/* Says that the file is not wanted but, by oh_sniff, what; with a remedy that fits. */
onehop_status oh_refuse_kind(const char *path, const uint8_t *head, uint64_t head_bytes,
			     const char *what, const char *wanted, struct onehop_error *error);

#endif
