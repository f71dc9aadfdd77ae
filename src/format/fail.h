/* How the parsers word their errors: "PATH: sentence". */
#ifndef OH_FORMAT_FAIL_H
#define OH_FORMAT_FAIL_H

#include "base/error.h"

#include <stdarg.h>
#include <stdint.h>

/* path is cut at its front if it is long, so that the sentence always fits, and made one line. */
onehop_status oh_refuse(struct onehop_error *error, onehop_status status, const char *path,
			const char *format, ...) OH_PRINTF(4, 5);

/* "byte" or "bytes". */
static inline const char *
oh_bytes_word(uint64_t count)
{
	return count == 1 ? "byte" : "bytes";
}

#endif
