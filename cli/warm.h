/* A model's files and the page cache. */
#ifndef CLI_WARM_H
#define CLI_WARM_H

#include "crew.h"
#include "files.h"

/* Of one file. */
struct warm_file {
	uint64_t before, after; /* bytes in the page cache; nothing unless known is set */
	uint64_t read;
	int known;
	unsigned char *absent; /* one a piece: 1 if a page of it is, or may be, absent */
};

struct warm {
	struct warm_file *at; /* as many as there are files */
	int known;            /* each file's is */
	uint64_t before, after, read; /* sums */
	uint64_t absent;      /* bytes that are, or may be, absent at first */
	uint64_t ns;          /* of reading */
	unsigned threads;
};

/* Looks how much is in the page cache. warm_drop() in any case. */
onehop_status warm_look(struct warm *warm, const struct files *files, struct onehop_error *error);
/* Reads what is not, and looks again. */
onehop_status warm_read(struct warm *warm, const struct files *files, int quiet,
			struct onehop_error *error);
void warm_drop(struct warm *warm, const struct files *files);

#endif
