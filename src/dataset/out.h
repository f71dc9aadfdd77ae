/* A file that is written from its beginning to its end, in large aligned writes, under a name that
 * says that it is not whole.
 */
#ifndef OH_DATASET_OUT_H
#define OH_DATASET_OUT_H

#include "base/error.h"

#include <stdint.h>

/* So many bytes go in one write: they stay in a core's cache from source to file. */
#define OH_OUT_CHUNK (UINT64_C(512) << 10)

struct oh_out {
	const char *path; /* of the file that will be */
	char *partial;    /* and of what is written: path.partial */
	int fd;           /* -1: not open */
	int exists;       /* under its partial name */
	int failed;       /* a write to it did: only drop is allowed */
	unsigned char *buffer;
	uint64_t slack;   /* room in the buffer behind a chunk */
	uint64_t begin;   /* where in the file the buffer begins */
	uint64_t used;
	uint64_t high;    /* the file's bytes so far */
};

/* The first bytes of text, then end, in memory of the caller's; NULL if there is none. */
char *oh_out_name(const char *text, uint64_t bytes, const char *end);

/* Opens the partial file, to be written from its beginning. path must outlive it. slack: the most that oh_out_room() is asked
 * for. BUSY if somebody else writes it. oh_out_drop() in any case. */
onehop_status oh_out_open(struct oh_out *out, const char *path, uint64_t slack,
			  struct onehop_error *error);

/* Where the next byte goes. */
static inline uint64_t
oh_out_at(const struct oh_out *out)
{
	return out->begin + out->used;
}

/* Room for at least `least` bytes, to be written by the caller, who says how many by
 * oh_out_took(). */
onehop_status oh_out_room(struct oh_out *out, uint64_t least, unsigned char **room, uint64_t *bytes,
			  struct onehop_error *error);
static inline void
oh_out_took(struct oh_out *out, uint64_t bytes)
{
	out->used += bytes;
}

onehop_status oh_out_put(struct oh_out *out, const void *data, uint64_t bytes,
			 struct onehop_error *error);
onehop_status oh_out_zeros(struct oh_out *out, uint64_t bytes, struct onehop_error *error);

/* Forgets what was put behind `at`. */
void oh_out_rewind(struct oh_out *out, uint64_t at);

/* Writes over bytes at the file's beginning; nothing is put after it. */
onehop_status oh_out_begin_with(struct oh_out *out, const void *data, uint64_t bytes,
				struct onehop_error *error);

/* What is put so far is in the file and, if sync, on its disk. */
onehop_status oh_out_flush(struct oh_out *out, int sync, struct onehop_error *error);

/* Gives the file its name. */
onehop_status oh_out_publish(struct oh_out *out, struct onehop_error *error);

/* A file system may tell of a failed write only when a descriptor is closed: this closes one, and
 * keeps another for the lock. */
onehop_status oh_out_settle(struct oh_out *out, struct onehop_error *error);

/* Closes it, removes it if it has its partial name, and frees what it holds. */
void oh_out_drop(struct oh_out *out);

#endif
