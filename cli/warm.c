/* Warming the page cache.
 *
 * Pieces that are wholly in it are left alone, so that a second run costs a look; the others are
 * read by plain preads into memory that is thrown away. Nothing is locked there: what the kernel
 * needs elsewhere it takes back, which the second look shows.
 *
 * mincore() tells the truth only to those who own or may write the file; to all others it says that
 * everything is resident, so that there "unknown" is the answer, as it is where a file cannot be
 * mapped. The map is never read through.
 */
#include "warm.h"
#include "say.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* What is mapped at once: whole pieces. */
#define WINDOW (256 * CREW_PIECE)

/* One file that is being read. */
struct reading {
	const struct model_file *file;
	struct warm_file *warm;
	struct crew *crew;
	int fd;
	_Atomic uint64_t read;
};

static int
may_be_told(const struct model_file *file)
{
	return file->st.st_uid == geteuid() ||
	       faccessat(AT_FDCWD, file->path, W_OK, AT_EACCESS) == 0;
}

/* Bytes of the window that are resident; marks its pieces. */
static uint64_t
count_window(const unsigned char *pages, uint64_t bytes, uint64_t page, unsigned char *absent)
{
	uint64_t resident = 0;
	for (uint64_t at = 0; at < bytes; at += page) {
		uint64_t length = bytes - at < page ? bytes - at : page;
		if (pages[at / page] & 1)
			resident += length;
		else
			absent[at / CREW_PIECE] = 1;
	}
	return resident;
}

/* Fills absent, and returns 1 with the resident bytes if they can be told. */
static int
residency(const struct model_file *file, int fd, unsigned char *absent, uint64_t *resident)
{
	uint64_t bytes = (uint64_t)file->st.st_size, page = (uint64_t)sysconf(_SC_PAGESIZE);
	unsigned char *pages = malloc(WINDOW / page);
	int told = pages && may_be_told(file);
	uint64_t sum = 0;
	memset(absent, !told, crew_pieces(bytes));
	for (uint64_t at = 0; told && at < bytes; at += WINDOW) {
		size_t length = bytes - at < WINDOW ? (size_t)(bytes - at) : WINDOW;
		void *map = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, (off_t)at);
		told = map != MAP_FAILED && mincore(map, length, pages) == 0;
		if (told)
			sum += count_window(pages, length, page, absent + at / CREW_PIECE);
		if (map != MAP_FAILED)
			munmap(map, length);
	}
	if (!told)
		memset(absent, 1, crew_pieces(bytes));
	*resident = told ? sum : 0;
	free(pages);
	return told;
}

static uint64_t
absent_bytes(const struct model_file *file, const struct warm_file *warm)
{
	uint64_t bytes = (uint64_t)file->st.st_size, sum = 0;
	size_t length;
	for (uint64_t i = 0; i < crew_pieces(bytes); i++) {
		crew_piece(bytes, i, &length);
		sum += warm->absent[i] ? length : 0;
	}
	return sum;
}

onehop_status
warm_look(struct warm *warm, const struct files *files, struct onehop_error *error)
{
	memset(warm, 0, sizeof *warm);
	warm->known = 1;
	warm->at = calloc(files->count + 1, sizeof *warm->at);
	if (!warm->at)
		return fail(error, ONEHOP_NO_MEMORY, 0, "no memory for the list of files");
	for (size_t i = 0; i < files->count; i++) {
		const struct model_file *file = &files->at[i];
		struct warm_file *its = &warm->at[i];
		int fd;
		its->absent = malloc(crew_pieces((uint64_t)file->st.st_size) + 1);
		if (!its->absent)
			return fail(error, ONEHOP_NO_MEMORY, 0, "no memory for the list of pieces");
		onehop_status status = file_open(file, &fd, error);
		if (status)
			return status;
		its->known = residency(file, fd, its->absent, &its->before);
		close(fd);
		warm->known &= its->known;
		warm->before += its->before;
		warm->absent += absent_bytes(file, its);
	}
	return ONEHOP_OK;
}

static onehop_status
read_piece(void *context, uint64_t piece, char *memory, struct onehop_error *error)
{
	struct reading *reading = context;
	size_t length;
	uint64_t offset = crew_piece((uint64_t)reading->file->st.st_size, piece, &length);
	if (!reading->warm->absent[piece])
		return ONEHOP_OK;
	onehop_status status = read_all(reading->fd, reading->file->path, offset, memory, length,
					error);
	atomic_fetch_add(&reading->read, length);
	atomic_fetch_add(&reading->crew->done, length);
	return status;
}

static onehop_status
read_file(struct crew *crew, const struct model_file *file, struct warm_file *warm,
	  struct onehop_error *error)
{
	struct reading reading = {.file = file, .warm = warm, .crew = crew};
	struct crew_task task = {crew_pieces((uint64_t)file->st.st_size), read_piece, &reading};
	onehop_status status = file_open(file, &reading.fd, error);
	if (status)
		return status;
	status = crew_run(crew, &task, error);
	if (!status)
		status = file_check(file, reading.fd, error);
	close(reading.fd);
	warm->read = atomic_load(&reading.read);
	return status;
}

onehop_status
warm_read(struct warm *warm, const struct files *files, int quiet, struct onehop_error *error)
{
	struct crew crew;
	onehop_status status = ONEHOP_OK;
	crew_begin(&crew, warm->threads, "warming", quiet, warm->absent);
	uint64_t begin = now_ns();
	for (size_t i = 0; i < files->count && !status; i++) {
		status = read_file(&crew, &files->at[i], &warm->at[i], error);
		warm->read += warm->at[i].read;
	}
	warm->ns = now_ns() - begin;
	progress_end(&crew.progress);
	/* Only now, since the later files may have pushed out the first. */
	for (size_t i = 0; i < files->count && !status; i++) {
		int fd;
		status = file_open(&files->at[i], &fd, error);
		if (status)
			break;
		if (!residency(&files->at[i], fd, warm->at[i].absent, &warm->at[i].after))
			warm->known = 0;
		warm->after += warm->at[i].after;
		close(fd);
	}
	return status;
}

void
warm_drop(struct warm *warm, const struct files *files)
{
	for (size_t i = 0; warm->at && i < files->count; i++)
		free(warm->at[i].absent);
	free(warm->at);
}
