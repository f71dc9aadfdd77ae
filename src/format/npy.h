/* The header of a .npy file (NumPy's format, versions 1 to 3). Pure: bytes in, type out. */
#ifndef OH_FORMAT_NPY_H
#define OH_FORMAT_NPY_H

#include "format/shard.h"

/* Give it the payload's first bytes, so many or all there are. A header that is longer is not
 * looked at: NumPy's have 128 bytes. */
#define OH_NPY_HEAD 4096

/* 1 and the type, if a payload of bytes that begins with head[0, have) is an array in C order, of
 * at most 8 dimensions, of little-endian elements that docs/format.md names, and is as long as they
 * are together. Else 0, and *type is left alone: such a payload is plain bytes. */
int oh_npy_type(const void *head, size_t have, uint64_t bytes, struct oh_shard_type *type);

/* 1 if a field's name says that it holds such a file: "npy", or something that ends in ".npy",
 * with small letters or capitals. */
int oh_npy_is_field(const char *field, size_t bytes);

#endif
