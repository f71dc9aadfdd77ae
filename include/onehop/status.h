/* SPDX-License-Identifier: Apache-2.0
 *
 * onehop/status.h: how every call says what happened.
 *
 * Every call that can fail returns an onehop_status, 0 on success, and takes a pointer to a
 * struct onehop_error of the caller's (NULL is allowed) that it fills only on failure. Nothing is
 * kept in thread-local storage. Outputs are written only on success.
 *
 * Codes are grouped by what the caller has to do about them; status / 100 is the group:
 *   1 usage      the call is wrong: correct it
 *   2 resource   memory, device memory or a limit is short: free or raise it
 *   3 support    the machine or this build cannot do it: take another way
 *   4 I/O        the operating system failed the transfer: look at the file and its storage
 *   5 data       the bytes are wrong or of an unknown kind: get a good copy
 *   6 state      not now, or not any more
 *   7 driver     the device's driver failed
 */
#ifndef ONEHOP_STATUS_H
#define ONEHOP_STATUS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ONEHOP_API __attribute__((visibility("default")))
#else
#define ONEHOP_API
#endif

/* One row a status: X(name, value, text, Python exception). */
#define ONEHOP_STATUS_LIST(X)                                                                      \
	X(OK, 0, "success", "None")                                                                \
	X(INVALID_ARGUMENT, 101, "invalid argument", "ValueError")                                 \
	X(UNKNOWN_OPTION, 102, "unknown option", "ValueError")                                     \
	X(OUT_OF_RANGE, 103, "value out of range", "ValueError")                                   \
	X(NO_SUCH_TENSOR, 104, "no such tensor", "KeyError")                                       \
	X(NO_MEMORY, 201, "out of host memory", "MemoryError")                                     \
	X(NO_DEVICE_MEMORY, 202, "out of device memory", "MemoryError")                            \
	X(LIMIT, 203, "a limit is reached", "MemoryError")                                         \
	X(UNSUPPORTED, 301, "not supported here", "NotImplementedError")                           \
	X(NO_DEVICE, 302, "no such device", "RuntimeError")                                        \
	X(NO_ROUTE, 303, "the forced route cannot work", "RuntimeError")                           \
	X(IO, 401, "I/O error", "OSError")                                                         \
	X(NOT_FOUND, 402, "no such file", "FileNotFoundError")                                     \
	X(ACCESS, 403, "permission denied", "PermissionError")                                     \
	X(FILE_CHANGED, 404, "the file changed while it was read", "OSError")                      \
	X(MALFORMED, 501, "malformed data", "ValueError")                                          \
	X(UNSUPPORTED_DATA, 502, "data of an unsupported kind", "ValueError")                      \
	X(MISMATCH, 503, "the bytes differ", "ValueError")                                         \
	X(BUSY, 601, "busy", "RuntimeError")                                                       \
	X(CANCELLED, 602, "cancelled", "InterruptedError")                                         \
	X(TIMED_OUT, 603, "timed out", "TimeoutError")                                             \
	X(FORKED, 604, "used in a forked child", "RuntimeError")                                   \
	X(END, 605, "nothing more", "StopIteration")                                               \
	X(DRIVER, 701, "device driver error", "RuntimeError")                                      \
	X(DEVICE_LOST, 702, "the device is lost", "RuntimeError")

#define ONEHOP_STATUS_ENUM(name, value, text, exception) ONEHOP_##name = value,
enum onehop_status_code { ONEHOP_STATUS_LIST(ONEHOP_STATUS_ENUM) };
#undef ONEHOP_STATUS_ENUM

typedef int32_t onehop_status;

/* What went wrong, in words for a person. The layout is fixed for good. */
struct onehop_error {
	onehop_status status;
	int32_t os_errno;    /* errno of the failed system call, 0 if none */
	int32_t driver_code; /* CUresult of the failed driver call, 0 if none */
	int32_t http_status; /* 0 if none */
	/* One sentence without a final period: file, tensor or offset, and the rule. UTF-8, one
	 * line; long names are shortened. */
	char message[768];
	/* What to do about it, a clause without a final period; empty if there is nothing to say. */
	char remedy[240];
};

/* The status's name without its prefix ("NO_MEMORY"), its text ("out of host memory"), and the
 * Python exception it becomes. Static strings; "UNKNOWN" etc. for a number that is no status. Any
 * thread. */
ONEHOP_API const char *onehop_status_name(onehop_status status);
ONEHOP_API const char *onehop_status_text(onehop_status status);
ONEHOP_API const char *onehop_status_exception(onehop_status status);

#ifdef __cplusplus
}
#endif
#endif
