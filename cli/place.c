/* The folder that a model is copied to: what is in it already, what is still to do, and whether it
 * fits, all decided before anything is written.
 *
 * A file of the same size and time of writing is taken for the copy that an earlier run made. Any
 * other of that name is somebody's, and is replaced only by --force. The folder must not be in the
 * source: a copy of a copy would follow, and it may be a cache that others rely on.
 */
#include "copy.h"
#include "out.h"
#include "partial.h"
#include "say.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

static onehop_status
no_memory(struct onehop_error *error)
{
	return fail(error, ONEHOP_NO_MEMORY, 0, "no memory for a path");
}

char *
copy_path(const struct copy *copy, const char *name)
{
	size_t bytes = strlen(copy->to) + strlen(name) + 2;
	char *path = malloc(bytes);
	size_t length = strlen(copy->to);
	int slash = length > 0 && copy->to[length - 1] == '/';
	if (path)
		snprintf(path, bytes, "%s%s%s", copy->to, slash ? "" : "/", name);
	return path;
}

/* File systems keep times in units of their own and cut the rest off: nanoseconds, hundreds of
 * them, micro- and milliseconds, one or two seconds. */
static int
is_copied_time(const struct timespec *there, const struct timespec *source)
{
	static const long units[] = {1, 100, 1000, 1000000, 1000000000};
	if (there->tv_nsec == 0 && there->tv_sec == (source->tv_sec & ~(time_t)1))
		return 1;
	for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
		if (there->tv_sec == source->tv_sec &&
		    there->tv_nsec == source->tv_nsec / units[i] * units[i])
			return 1;
	return 0;
}

enum copy_outcome
copy_look(const struct copy *copy, const struct model_file *file, struct stat *there)
{
	if (copy->folder < 0 ||
	    fstatat(copy->folder, file->name, there, AT_SYMLINK_NOFOLLOW) != 0)
		return COPY_TO_DO;
	if (S_ISREG(there->st_mode) && there->st_size == file->st.st_size &&
	    is_copied_time(&there->st_mtim, &file->st.st_mtim))
		return COPY_THERE;
	return COPY_TO_REPLACE;
}

/* ------------------------------------------------------------------------------------------- */
/* Where it is */

/* The part of the path that is there, without the trailing names that are not. malloc'd. */
static char *
existing_part(const char *path)
{
	struct stat st;
	char *part = strdup(path[0] ? path : ".");
	while (part && stat(part, &st) != 0 && errno == ENOENT) {
		size_t bytes = strlen(part);
		while (bytes > 1 && part[bytes - 1] == '/')
			bytes--;
		while (bytes > 0 && part[bytes - 1] != '/')
			bytes--;
		part[bytes] = '\0';
		if (bytes == 0)
			memcpy(part, ".", 2); /* there was a character at least */
	}
	return part;
}

static onehop_status
refuse(struct onehop_error *error, const char *to, const char *why, const char *what)
{
	char shown[SHOWN];
	fail(error, ONEHOP_INVALID_ARGUMENT, 0, "--to cannot be %s: %s",
	     show(shown, to, strlen(to)), why);
	return remedy(error, "%s", what);
}

static int
is_below(const char *path, const char *folder)
{
	size_t bytes = strlen(folder);
	return strncmp(path, folder, bytes) == 0 &&
	       (path[bytes] == '\0' || path[bytes] == '/' || folder[bytes - 1] == '/');
}

/* Names that are not there yet cannot lead back up, or what is checked is not what is made. */
static int
leads_up(const char *path)
{
	for (const char *at = path; (at = strstr(at, "..")); at += 2)
		if ((at == path || at[-1] == '/') && (at[2] == '\0' || at[2] == '/'))
			return 1;
	return 0;
}

static onehop_status
check_place(const struct copy *copy, const char *existing, const char *source,
	    struct onehop_error *error)
{
	struct stat st, from;
	if (stat(existing, &st) != 0)
		return fail_path(error, errno, "look at", existing);
	if (!S_ISDIR(st.st_mode))
		return refuse(error, copy->to, "it is no folder", "give a folder");
	if (strcmp(existing, copy->to) != 0 && leads_up(copy->to))
		return refuse(error, copy->to, "it is not there, and it has \"..\" in it",
			      "make it first, or give it without \"..\"");
	if (stat(source, &from) != 0)
		return fail_path(error, errno, "look at", source);
	if (!S_ISDIR(from.st_mode))
		return ONEHOP_OK;
	char *place = realpath(existing, NULL), *root = realpath(source, NULL);
	onehop_status status = ONEHOP_OK;
	if (!place || !root)
		status = fail_path(error, errno, "look at", place ? source : existing);
	else if (is_below(place, root))
		status = refuse(error, copy->to, "it is in the folder that is copied",
				"give a folder outside of it");
	free(place);
	free(root);
	return status;
}

/* ------------------------------------------------------------------------------------------- */
/* What is to be done */

static onehop_status
refuse_replacing(const struct copy *copy, const struct model_file *file,
		 const struct stat *there, struct onehop_error *error)
{
	char shown[SHOWN], *path = copy_path(copy, file->name);
	if (!path)
		return no_memory(error);
	show(shown, path, strlen(path));
	free(path);
	if (!S_ISREG(there->st_mode))
		fail(error, ONEHOP_IO, 0, "%s is there, and is no regular file", shown);
	else if (there->st_size != file->st.st_size)
		fail(error, ONEHOP_IO, 0, "%s is there, with %lld bytes where the source has %lld",
		     shown, (long long)there->st_size, (long long)file->st.st_size);
	else
		fail(error, ONEHOP_IO, 0, "%s is there, and was written at another time", shown);
	return remedy(error, "choose another folder, or give --force to replace what differs");
}

static onehop_status
plan_file(struct copy *copy, const struct model_file *file, struct copied *copied,
	  struct onehop_error *error)
{
	struct stat there;
	copied->outcome = copy_look(copy, file, &there);
	if (copied->outcome == COPY_TO_DO)
		return ONEHOP_OK;
	if (there.st_dev == file->st.st_dev && there.st_ino == file->st.st_ino)
		return refuse(error, copy->to, "it holds the source itself", "give another folder");
	if (copied->outcome == COPY_THERE)
		return ONEHOP_OK;
	if (!copy->force || S_ISDIR(there.st_mode))
		return refuse_replacing(copy, file, &there, error);
	return ONEHOP_OK;
}

/* Bytes that the disk has to find for the file: what an interrupted run left is there already. */
static uint64_t
needed(const struct copy *copy, const struct model_file *file, uint64_t block)
{
	struct stat st;
	char *part = partial_name(file->name);
	uint64_t bytes = ((uint64_t)file->st.st_size / block + 2) * block; /* its record, too */
	uint64_t has = 0;
	if (part && copy->folder >= 0 &&
	    fstatat(copy->folder, part, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
		has = (uint64_t)st.st_blocks * 512;
	free(part);
	return bytes > has ? bytes - has : 0;
}

static onehop_status
check_room(const struct copy *copy, const struct files *files, const char *existing,
	   struct onehop_error *error)
{
	struct statvfs fs;
	uint64_t sum = 0;
	char shown[SHOWN], has[SIZE_TEXT], wants[SIZE_TEXT], lacks[SIZE_TEXT];
	if (statvfs(existing, &fs) != 0)
		return fail_path(error, errno, "ask for the free space of", existing);
	uint64_t block = fs.f_frsize ? fs.f_frsize : 4096, room = fs.f_bavail * block;
	for (size_t i = 0; i < files->count; i++)
		if (copy->at[i].outcome != COPY_THERE)
			sum += needed(copy, &files->at[i], block);
	/* Some network file systems do not say how large they are. */
	if (fs.f_blocks == 0 || sum <= room)
		return ONEHOP_OK;
	fail(error, ONEHOP_LIMIT, 0,
	     "%s has %s free (%llu bytes), and the copy needs %s (%llu bytes)",
	     show(shown, copy->to, strlen(copy->to)), size_text(has, room),
	     (unsigned long long)room, size_text(wants, sum), (unsigned long long)sum);
	return remedy(error, "free %s there, or choose another folder",
		      size_text(lacks, sum - room));
}

/* ------------------------------------------------------------------------------------------- */
/* Making the folders */

/* All folders of the path, which begins in the folder `at`; those that are there are left alone. */
static onehop_status
make_folders(int at, const char *path, int with_last, struct onehop_error *error)
{
	char *part = strdup(path);
	struct onehop_error ignored; /* one may make folders where one may not read */
	onehop_status status = ONEHOP_OK;
	if (!part)
		return no_memory(error);
	for (size_t i = 1; part[0] && !status; i++) {
		int is_last = part[i] == '\0';
		if (!is_last && part[i] != '/')
			continue;
		if (is_last && !with_last)
			break;
		part[i] = '\0';
		if (mkdirat(at, part, 0777) == 0)
			sync_folder_of(at, part, &ignored);
		else if (errno != EEXIST)
			status = fail_path(error, errno, "make the folder", part);
		if (is_last)
			break;
		part[i] = '/';
	}
	free(part);
	return status;
}

static onehop_status
open_folder(struct copy *copy, struct onehop_error *error)
{
	copy->folder = open(copy->to, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (copy->folder < 0)
		return fail_path(error, errno, "open the folder", copy->to);
	return ONEHOP_OK;
}

/* The folder itself, and those that an index names. */
static onehop_status
make_place(struct copy *copy, const struct files *files, struct onehop_error *error)
{
	onehop_status status = ONEHOP_OK;
	if (copy->folder < 0) {
		status = make_folders(AT_FDCWD, copy->to, 1, error);
		if (!status)
			status = open_folder(copy, error);
	}
	for (size_t i = 0; i < files->count && !status; i++)
		if (strchr(files->at[i].name, '/'))
			status = make_folders(copy->folder, files->at[i].name, 0, error);
	return status;
}

onehop_status
copy_plan(struct copy *copy, const struct files *files, const char *source,
	  struct onehop_error *error)
{
	onehop_status status = ONEHOP_OK;
	char *existing = existing_part(copy->to);
	copy->folder = -1;
	copy->at = calloc(files->count + 1, sizeof *copy->at);
	if (!existing || !copy->at)
		status = no_memory(error);
	if (!status)
		status = check_place(copy, existing, source, error);
	if (!status && strcmp(existing, copy->to) == 0)
		status = open_folder(copy, error);
	for (size_t i = 0; i < files->count && !status; i++)
		status = plan_file(copy, &files->at[i], &copy->at[i], error);
	if (!status)
		status = check_room(copy, files, existing, error);
	if (!status)
		status = make_place(copy, files, error);
	free(existing);
	return status;
}

onehop_status
copy_withdraw(struct copy *copy, const struct files *files, struct onehop_error *error)
{
	onehop_status status = ONEHOP_OK;
	for (size_t i = 0; i < files->count && !status; i++) {
		const struct model_file *file = &files->at[i];
		struct copied *copied = &copy->at[i];
		if (file->kind != FILE_INDEX ||
		    (copied->outcome != COPY_THERE && copied->outcome != COPY_TO_REPLACE))
			continue;
		copied->outcome = COPY_TO_REPLACE;
		if (unlinkat(copy->folder, file->name, 0) == 0)
			status = sync_folder_of(copy->folder, file->name, error);
		else if (errno != ENOENT)
			status = fail_path(error, errno, "remove", file->name);
	}
	return status;
}
