/* Copying a model's files into a folder, each of which has its final name only once it is whole.
 *
 * Pieces are read, summed up (CRC-32), written and recorded by several threads. Then the file goes
 * to the disk, and what the disk gives back is compared with the sums; only then is it renamed. The
 * bytes pass through our memory, and not by copy_file_range(), since the sum of the source would
 * cost a second read of it.
 *
 * The weights come before their index, and all sources are looked at once more before that is
 * copied, so that a folder with an index holds one version of a model. A failed run leaves finished
 * files and, unless it is of no use, the temporary one that the next run goes on with.
 */
#include "copy.h"
#include "partial.h"
#include "say.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

/* One file under way. */
struct copying {
	const struct model_file *file;
	struct partial *partial; /* NULL where only sums are compared */
	struct crew *crew;
	const char *path; /* of the copy */
	int source, target;
	uint32_t *sums; /* one a piece */
	EVP_MD_CTX *digest;
	_Atomic uint64_t kept, written;
};

static uint64_t
size_of(const struct model_file *file)
{
	return (uint64_t)file->st.st_size;
}

/* ------------------------------------------------------------------------------------------- */
/* What is done with a piece */

static uint32_t
sum(const char *data, size_t bytes)
{
	return (uint32_t)crc32_z(0, (const Bytef *)data, bytes);
}

/* 1 if the piece is there from an earlier run and is what it was. */
static int
is_kept(struct copying *copying, uint64_t piece, uint64_t offset, size_t length, char *memory)
{
	struct onehop_error ignored;
	return partial_has(copying->partial, piece, &copying->sums[piece]) &&
	       read_all(copying->target, copying->path, offset, memory, length, &ignored) ==
		       ONEHOP_OK &&
	       sum(memory, length) == copying->sums[piece];
}

static onehop_status
copy_piece(void *context, uint64_t piece, char *memory, struct onehop_error *error)
{
	struct copying *copying = context;
	size_t length;
	uint64_t offset = crew_piece(size_of(copying->file), piece, &length);
	onehop_status status = ONEHOP_OK;
	if (is_kept(copying, piece, offset, length, memory)) {
		atomic_fetch_add(&copying->kept, length);
	} else {
		status = read_all(copying->source, copying->file->path, offset, memory, length,
				  error);
		copying->sums[piece] = status ? 0 : sum(memory, length);
		if (!status)
			status = partial_write(copying->partial, piece, memory, length,
					       copying->sums[piece], error);
		atomic_fetch_add(&copying->written, length);
	}
	atomic_fetch_add(&copying->crew->done, length);
	return status;
}

/* The sum of a piece of the source alone. */
static onehop_status
sum_piece(void *context, uint64_t piece, char *memory, struct onehop_error *error)
{
	struct copying *copying = context;
	size_t length;
	uint64_t offset = crew_piece(size_of(copying->file), piece, &length);
	onehop_status status = read_all(copying->source, copying->file->path, offset, memory,
					length, error);
	copying->sums[piece] = status ? 0 : sum(memory, length);
	return status;
}

static onehop_status
differs(const struct copying *copying, uint64_t offset, size_t length, struct onehop_error *error)
{
	char shown[SHOWN];
	fail(error, ONEHOP_MISMATCH, 0, "%s differs from its source in bytes %llu to %llu",
	     show(shown, copying->path, strlen(copying->path)), (unsigned long long)offset,
	     (unsigned long long)(offset + length - 1));
	if (copying->partial)
		return remedy(error, "run it again; if it differs again, do not use this disk");
	return remedy(error, "remove it, or give --force to replace it");
}

static onehop_status
verify_piece(void *context, uint64_t piece, char *memory, struct onehop_error *error)
{
	struct copying *copying = context;
	size_t length;
	uint64_t offset = crew_piece(size_of(copying->file), piece, &length);
	onehop_status status = read_all(copying->target, copying->path, offset, memory, length,
					error);
	if (!status && sum(memory, length) != copying->sums[piece])
		status = differs(copying, offset, length, error);
	atomic_fetch_add(&copying->crew->done, length);
	return status;
}

/* One after the other. */
static onehop_status
digest_piece(void *context, uint64_t piece, char *memory, struct onehop_error *error)
{
	struct copying *copying = context;
	size_t length;
	uint64_t offset = crew_piece(size_of(copying->file), piece, &length);
	onehop_status status = read_all(copying->target, copying->path, offset, memory, length,
					error);
	if (!status && EVP_DigestUpdate(copying->digest, memory, length) != 1)
		status = fail(error, ONEHOP_UNSUPPORTED, 0, "SHA-256 failed");
	atomic_fetch_add(&copying->crew->done, length);
	return status;
}

/* ------------------------------------------------------------------------------------------- */
/* What is done with a file */

/* One task over all pieces with a bar of its own. */
static onehop_status
pass(const struct copy *copy, struct copying *copying, const char *what, unsigned threads,
     onehop_status (*work)(void *, uint64_t, char *, struct onehop_error *),
     struct onehop_error *error)
{
	struct crew crew, *before = copying->crew;
	struct crew_task task = {crew_pieces(size_of(copying->file)), work, copying};
	crew_begin(&crew, threads, what, copy->quiet, size_of(copying->file));
	copying->crew = &crew;
	onehop_status status = crew_run(&crew, &task, error);
	progress_end(&crew.progress);
	copying->crew = before;
	return status;
}

static onehop_status
sha256(const struct copy *copy, struct copying *copying, struct copied *copied,
       struct onehop_error *error)
{
	onehop_status status = ONEHOP_OK;
	copying->digest = EVP_MD_CTX_new();
	if (!copying->digest || EVP_DigestInit_ex(copying->digest, EVP_sha256(), NULL) != 1)
		status = fail(error, ONEHOP_UNSUPPORTED, 0, "OpenSSL has no SHA-256 here");
	if (!status)
		status = pass(copy, copying, "summing up", 1, digest_piece, error);
	if (!status && EVP_DigestFinal_ex(copying->digest, copied->sha256, NULL) != 1)
		status = fail(error, ONEHOP_UNSUPPORTED, 0, "SHA-256 failed");
	EVP_MD_CTX_free(copying->digest);
	copying->digest = NULL;
	return status;
}

/* The checksum of the whole that was asked for. A CRC comes from those of the pieces. */
static onehop_status
sum_up(const struct copy *copy, struct copying *copying, struct copied *copied,
       struct onehop_error *error)
{
	uint64_t bytes = size_of(copying->file);
	if (copy->checksum == CHECKSUM_SHA256)
		return sha256(copy, copying, copied, error);
	copied->crc32 = 0;
	for (uint64_t i = 0; i < crew_pieces(bytes); i++) {
		size_t length;
		crew_piece(bytes, i, &length);
		copied->crc32 = (uint32_t)crc32_combine(copied->crc32, copying->sums[i],
							(z_off_t)length);
	}
	return ONEHOP_OK;
}

/* A file that is there: compared with its source if checksums were asked for. */
static onehop_status
check_there(const struct copy *copy, struct copying *copying, struct copied *copied,
	    struct onehop_error *error)
{
	copying->target = openat(copy->folder, copying->file->name,
				 O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (copying->target < 0)
		return fail_path(error, errno, "open", copying->path);
	onehop_status status = pass(copy, copying, "checking", copy->threads, sum_piece, error);
	if (!status)
		status = file_check(copying->file, copying->source, error);
	if (!status)
		status = pass(copy, copying, "checking", copy->threads, verify_piece, error);
	if (!status)
		status = sum_up(copy, copying, copied, error);
	close(copying->target);
	return status;
}

/* From the source to the disk, compared, but not yet under its name. */
static onehop_status
fill(const struct copy *copy, struct copying *copying, struct copied *copied,
     struct onehop_error *error)
{
	struct crew_task task = {copying->partial->pieces, copy_piece, copying};
	copying->target = copying->partial->fd;
	onehop_status status = crew_run(copying->crew, &task, error);
	copied->kept = atomic_load(&copying->kept);
	copied->written = atomic_load(&copying->written);
	progress_end(&copying->crew->progress);
	if (!status)
		status = file_check(copying->file, copying->source, error);
	if (!status)
		status = partial_sync(copying->partial, copy->verify, error);
	if (!status && copy->verify)
		status = pass(copy, copying, "checking", copy->threads, verify_piece, error);
	if (!status && copy->checksum != CHECKSUM_NONE)
		status = sum_up(copy, copying, copied, error);
	return status;
}

/* A temporary file is worth keeping unless its bytes are wrong or the disk is full of it. */
static int
is_of_use(const struct onehop_error *error)
{
	return error->status != ONEHOP_FILE_CHANGED && error->status != ONEHOP_MISMATCH &&
	       error->os_errno != ENOSPC && error->os_errno != EDQUOT;
}

static onehop_status
copy_one(const struct copy *copy, struct copying *copying, struct copied *copied,
	 struct onehop_error *error)
{
	struct partial partial;
	struct stat there;
	int replace = copied->outcome == COPY_TO_REPLACE;
	onehop_status status = partial_open(&partial, copy->folder, copying->path, copying->file,
					    &copying->crew->progress, error);
	if (status)
		return status;
	/* Another process may have ended it while this one waited. */
	if (copy_look(copy, copying->file, &there) == COPY_THERE && !replace) {
		partial_close(&partial, 0);
		copied->outcome = COPY_THERE;
		if (copy->checksum == CHECKSUM_NONE)
			return ONEHOP_OK;
		return check_there(copy, copying, copied, error);
	}
	copying->partial = &partial;
	status = fill(copy, copying, copied, error);
	if (!status)
		status = partial_finish(&partial, copying->file, replace, error);
	if (!status)
		copied->outcome = replace	   ? COPY_REPLACED
				  : copied->kept ? COPY_RESUMED
						 : COPY_DONE;
	partial_close(&partial, status && is_of_use(error));
	return status;
}

static onehop_status
copy_file(struct copy *copy, struct crew *crew, const struct files *files, size_t index,
	  struct onehop_error *error)
{
	const struct model_file *file = &files->at[index];
	struct copied *copied = &copy->at[index];
	struct copying copying = {.file = file, .crew = crew};
	int is_there = copied->outcome == COPY_THERE;
	if (is_there && copy->checksum == CHECKSUM_NONE)
		return ONEHOP_OK;
	char *path = copy_path(copy, file->name);
	copying.path = path;
	copying.sums = calloc(crew_pieces(size_of(file)) + 1, sizeof *copying.sums);
	onehop_status status = ONEHOP_OK;
	if (!path || !copying.sums)
		status = fail(error, ONEHOP_NO_MEMORY, 0, "no memory for a file's checksums");
	if (!status)
		status = file_open(file, &copying.source, error);
	if (!status) {
		status = is_there ? check_there(copy, &copying, copied, error) : ONEHOP_OK;
		/* With --force, a file of the same size and time that differs is made anew. */
		if (is_there && status == ONEHOP_MISMATCH && copy->force) {
			copied->outcome = COPY_TO_REPLACE;
			is_there = 0;
			status = copy_withdraw(copy, files, error);
		}
		if (!status && !is_there)
			status = copy_one(copy, &copying, copied, error);
		close(copying.source);
	}
	free(copying.sums);
	free(path);
	return status;
}

/* ------------------------------------------------------------------------------------------- */

/* No source may be another one than at the beginning. */
static onehop_status
check_sources(const struct files *files, struct onehop_error *error)
{
	onehop_status status = ONEHOP_OK;
	for (size_t i = 0; i < files->count && !status; i++)
		status = file_check(&files->at[i], -1, error);
	return status;
}

/* All of them in their order. */
static onehop_status
copy_all(struct copy *copy, struct crew *crew, const struct files *files,
	 struct onehop_error *error)
{
	onehop_status status = ONEHOP_OK;
	for (size_t i = 0; i < files->count && !status; i++) {
		if (copy->at[i].outcome == COPY_TO_REPLACE && files->at[i].kind != FILE_INDEX)
			status = copy_withdraw(copy, files, error);
		if (!status && files->at[i].kind == FILE_INDEX)
			status = check_sources(files, error);
		if (!status)
			status = copy_file(copy, crew, files, i, error);
	}
	return status ? status : check_sources(files, error);
}

onehop_status
copy_files(struct copy *copy, const struct files *files, struct onehop_error *error)
{
	struct crew crew;
	uint64_t begin = now_ns(), total = 0;
	for (size_t i = 0; i < files->count; i++)
		total += copy->at[i].outcome == COPY_THERE ? 0 : size_of(&files->at[i]);
	crew_begin(&crew, copy->threads, "copying", copy->quiet, total);
	onehop_status status = copy_all(copy, &crew, files, error);
	progress_end(&crew.progress);
	copy->ns = now_ns() - begin;
	for (size_t i = 0; i < files->count; i++) {
		copy->kept += copy->at[i].kept;
		copy->written += copy->at[i].written;
		if (copy->at[i].outcome == COPY_THERE)
			copy->there += size_of(&files->at[i]);
	}
	return status;
}

void
copy_drop(struct copy *copy)
{
	if (copy->folder >= 0)
		close(copy->folder);
	free(copy->at);
	copy->at = NULL;
	copy->folder = -1;
}
