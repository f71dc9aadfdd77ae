/* Error detail: the first function that decides on an error writes it, those above pass it on. */
#ifndef OH_BASE_ERROR_H
#define OH_BASE_ERROR_H

#include <onehop/status.h>

#include <stddef.h>

#define OH_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* Fills *error (NULL is allowed) and returns status. The message is one sentence without a final
 * period; what does not fit is cut at a character and ends in "...". Clears errno, driver code and
 * remedy. */
onehop_status oh_fail(struct onehop_error *error, onehop_status status, const char *format, ...)
	OH_PRINTF(3, 4);

/* The same for a failed system call: picks NOT_FOUND, ACCESS, NO_MEMORY or IO by code (an errno)
 * and appends ": strerror". */
onehop_status oh_fail_errno(struct onehop_error *error, int code, const char *format, ...)
	OH_PRINTF(3, 4);

/* The clause that says what to do about it. Call it after oh_fail. */
void oh_remedy(struct onehop_error *error, const char *format, ...) OH_PRINTF(2, 3);

onehop_status oh_fail_no_memory(struct onehop_error *error, uint64_t bytes, const char *what);

/* Room for a shown name. */
#define OH_SHOWN 128

/* Writes name between quotes into shown for use in a message: control characters, quotes,
 * backslashes and bytes that are no UTF-8 as escapes, a long one shortened in the middle. Returns
 * shown. */
const char *oh_show(char shown[OH_SHOWN], const char *name, size_t bytes);

#endif
