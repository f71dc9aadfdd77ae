/* Copying a model's files into a folder. */
#ifndef CLI_COPY_H
#define CLI_COPY_H

#include "crew.h"
#include "files.h"
#include "request.h"

enum copy_outcome {
	COPY_TO_DO,
	COPY_TO_REPLACE, /* there is another file of that name */
	COPY_THERE,      /* it is there already, of the same size and time */
	COPY_DONE,
	COPY_RESUMED,
	COPY_REPLACED,
};

/* Of one file. */
struct copied {
	enum copy_outcome outcome;
	uint64_t kept;    /* bytes that an interrupted run had written */
	uint64_t written;
	uint32_t crc32;   /* if checksum asks for it */
	unsigned char sha256[32];
};

struct copy {
	const char *to; /* the folder, as it was given */
	enum checksum checksum;
	int verify, force, quiet;
	unsigned threads;
	struct copied *at; /* as many as there are files */
	uint64_t kept, written, there; /* sums of bytes */
	uint64_t ns;
	int folder; /* its descriptor, -1 before it is there */
};

/* Looks what is to be done and whether it can be, and makes the folder; nothing else is written.
 * source: the path that the files were listed from. copy_drop() in any case. */
onehop_status copy_plan(struct copy *copy, const struct files *files, const char *source,
			struct onehop_error *error);
/* Does it. */
onehop_status copy_files(struct copy *copy, const struct files *files,
			 struct onehop_error *error);
void copy_drop(struct copy *copy);

/* A file's path in the folder. malloc'd, NULL for no memory. */
char *copy_path(const struct copy *copy, const char *name);
/* Takes an index away that is there, before a file that it names is replaced: it will be the last
 * to come again. */
onehop_status copy_withdraw(struct copy *copy, const struct files *files,
			    struct onehop_error *error);
/* What is there now: COPY_TO_DO, COPY_TO_REPLACE or COPY_THERE. */
enum copy_outcome copy_look(const struct copy *copy, const struct model_file *file,
			    struct stat *there);

#endif
