/* The files that make up a model, as onehop prefetch takes them. */
#ifndef CLI_FILES_H
#define CLI_FILES_H

#include <onehop/onehop.h>

#include <stddef.h>
#include <sys/stat.h>

/* In the order in which they are copied: a folder that has its index has everything. */
enum file_kind {
	FILE_BESIDE, /* no part of the model: its configuration, a tokenizer */
	FILE_WEIGHTS,
	FILE_INDEX,
	FILE_LEFT_OUT,
};

struct model_file {
	char *path;
	char *name;      /* where it goes, below the folder that it is copied to */
	const char *why; /* it was left out */
	enum file_kind kind;
	struct stat st;  /* when it was listed, links followed */
};

struct files {
	struct model_file *at; /* sorted by kind, then name */
	size_t count;          /* without those left out, which come behind */
	size_t all;
	size_t room;
	uint64_t bytes; /* of the first `count` */
};

/* Lists the model's files and its index; if beside is set and path is a folder, the other files in
 * it, too. files_drop() in any case. */
onehop_status files_list(struct files *files, const struct onehop_model *model, const char *path,
			 int beside, struct onehop_error *error);
void files_drop(struct files *files);

/* 1 if both are one file that nobody has written to between the two looks. */
int same_identity(const struct stat *a, const struct stat *b);

/* Opens the file for reading. FILE_CHANGED if it is not what it was when it was listed. */
onehop_status file_open(const struct model_file *file, int *fd, struct onehop_error *error);
/* FILE_CHANGED if it, or what its path leads to, is not that any more. */
onehop_status file_check(const struct model_file *file, int fd, struct onehop_error *error);

/* Reads all of it or fails: FILE_CHANGED if the file ends before. path is for the sentence. */
onehop_status read_all(int fd, const char *path, uint64_t offset, char *to, size_t bytes,
		       struct onehop_error *error);

/* Sets what to do about an error; returns its status. */
__attribute__((format(printf, 2, 3))) onehop_status remedy(struct onehop_error *error,
							   const char *format, ...);

/* An open, stat or the like that failed with errno. */
onehop_status fail_path(struct onehop_error *error, int code, const char *what, const char *path);

#endif
