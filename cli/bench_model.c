/* The model that bench measures with: a safetensors file of random bytes.
 *
 * The 8-byte words of the data are the values of a bijection of their index, so no two are equal
 * and a block in the wrong place cannot go unseen. The file gets its name only when it is whole and
 * on disk: one that an earlier run kept is known by its name and size. Space is checked first.
 */
#include "bench.h"
#include "progress.h"
#include "signals.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define PIECE (UINT64_C(8) << 20)
#define MOST_TENSORS 500000
#define MOST_THREADS 16

struct writer {
	int fd;
	uint64_t header_bytes, bytes;
	_Atomic uint64_t next, done;
	_Atomic unsigned running;
	_Atomic int failed; /* an errno */
};

/* The finisher of splitmix64: each step can be undone, so no two indices give the same word. */
static uint64_t
word_at(uint64_t index)
{
	uint64_t x = index + UINT64_C(0x9E3779B97F4A7C15);
	x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
	return x ^ (x >> 31);
}

static int
write_at(int fd, const char *data, uint64_t bytes, uint64_t offset)
{
	while (bytes > 0) {
		ssize_t wrote = pwrite(fd, data, bytes, (off_t)offset);
		if (wrote < 0 && errno == EINTR)
			continue;
		if (wrote < 0)
			return errno;
		data += wrote;
		bytes -= (uint64_t)wrote;
		offset += (uint64_t)wrote;
	}
	return 0;
}

static void *
write_pieces(void *argument)
{
	struct writer *writer = argument;
	uint64_t *piece = malloc(PIECE);
	if (!piece)
		atomic_store(&writer->failed, ENOMEM);
	while (piece && !atomic_load(&writer->failed) && !signals_caught()) {
		uint64_t at = atomic_fetch_add(&writer->next, PIECE);
		if (at >= writer->bytes)
			break;
		uint64_t bytes = writer->bytes - at < PIECE ? writer->bytes - at : PIECE;
		for (uint64_t i = 0; i < bytes / 8; i++)
			piece[i] = word_at(at / 8 + i);
		int failed = write_at(writer->fd, (const char *)piece, bytes,
				      writer->header_bytes + at);
		if (failed)
			atomic_store(&writer->failed, failed);
		atomic_fetch_add(&writer->done, bytes);
	}
	free(piece);
	atomic_fetch_sub(&writer->running, 1);
	return NULL;
}

static void
watch(struct writer *writer, int quiet)
{
	struct progress progress;
	struct timespec tick = {0, 20000000};
	progress_begin(&progress, "making a model", quiet);
	for (unsigned i = 1; atomic_load(&writer->running) > 0; i++) {
		nanosleep(&tick, NULL);
		if (i % 5 == 0)
			progress_draw(&progress, atomic_load(&writer->done), writer->bytes);
	}
	progress_end(&progress);
}

static void
write_data(struct writer *writer, unsigned wanted, int quiet)
{
	pthread_t threads[MOST_THREADS];
	unsigned started = 0;
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	for (; started < wanted && started < MOST_THREADS; started++) {
		atomic_fetch_add(&writer->running, 1);
		if (pthread_create(&threads[started], NULL, write_pieces, writer) != 0) {
			atomic_fetch_sub(&writer->running, 1);
			break;
		}
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (started == 0) {
		atomic_store(&writer->running, 1);
		write_pieces(writer);
	}
	watch(writer, quiet);
	for (unsigned i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
}

/* The header, its length in front and padded with spaces to 8 bytes as safetensors writes it. */
static char *
make_header(const struct bench_model *model, uint64_t *bytes)
{
	size_t room = 128 * (size_t)model->tensors + 64, used = 8;
	char *text = malloc(room);
	if (!text)
		return NULL;
	used += (size_t)sprintf(text + used, "{\"__metadata__\":{\"made_by\":\"onehop bench\"}");
	for (uint64_t i = 0; i < model->tensors; i++)
		used += (size_t)sprintf(text + used,
					",\"layers.%llu.weight\":{\"dtype\":\"BF16\","
					"\"shape\":[%llu],\"data_offsets\":[%llu,%llu]}",
					(unsigned long long)i,
					(unsigned long long)model->tensor_bytes / 2,
					(unsigned long long)(i * model->tensor_bytes),
					(unsigned long long)((i + 1) * model->tensor_bytes));
	text[used++] = '}';
	while (used % 8)
		text[used++] = ' ';
	uint64_t length = used - 8;
	for (int i = 0; i < 8; i++)
		text[i] = (char)(length >> (8 * i));
	*bytes = used;
	return text;
}

static onehop_status
check_space(const char *dir, uint64_t bytes, struct onehop_error *error)
{
	struct statvfs fs;
	char need[SIZE_TEXT], have[SIZE_TEXT];
	if (statvfs(dir, &fs) != 0)
		return fail(error, errno == ENOENT ? ONEHOP_NOT_FOUND : ONEHOP_IO, errno,
			    "cannot use the folder %.512s", dir);
	uint64_t left = (uint64_t)fs.f_bavail * fs.f_frsize;
	if (left / 16 * 15 > bytes)
		return ONEHOP_OK;
	fail(error, ONEHOP_IO, 0, "%.512s has no room for the model: %s are free, %s needed", dir,
	     size_text(have, left), size_text(need, bytes / 15 * 16));
	snprintf(error->remedy, sizeof error->remedy, "choose another --dir or less --bytes");
	return error->status;
}

static onehop_status
write_model(struct bench_model *model, int fd, const char *path, const char *header,
	    uint64_t header_bytes, unsigned threads, int quiet, struct onehop_error *error)
{
	struct writer writer = {.fd = fd, .header_bytes = header_bytes, .bytes = model->bytes};
	int failed = write_at(fd, header, header_bytes, 0);
	if (!failed) {
		write_data(&writer, threads ? threads : 1, quiet);
		failed = atomic_load(&writer.failed);
	}
	if (signals_caught())
		return fail(error, ONEHOP_CANCELLED, 0, "cancelled");
	/* On disk before anything is measured: writing back would take part of the link. */
	if (!failed && fsync(fd) != 0)
		failed = errno;
	if (failed)
		return fail(error, ONEHOP_IO, failed, "cannot write %.512s", path);
	return ONEHOP_OK;
}

/* Writes it under a name of its own and then gives it its place. */
static onehop_status
make(struct bench_model *model, const char *dir, const char *header, uint64_t header_bytes,
     unsigned threads, int quiet, struct onehop_error *error)
{
	char path[4096];
	int length = snprintf(path, sizeof path, "%s/onehop-bench-XXXXXX.safetensors", dir);
	if (length < 0 || (size_t)length >= sizeof path)
		return fail(error, ONEHOP_INVALID_ARGUMENT, 0, "the folder's name is too long");
	onehop_status status = check_space(dir, header_bytes + model->bytes, error);
	if (status)
		return status;
	int fd = mkostemps(path, (int)strlen(".safetensors"), O_CLOEXEC);
	if (fd < 0)
		return fail(error, ONEHOP_IO, errno, "cannot make a file in %.512s", dir);
	status = write_model(model, fd, path, header, header_bytes, threads, quiet, error);
	close(fd);
	if (!status && model->path[0] && rename(path, model->path) != 0)
		status = fail(error, ONEHOP_IO, errno, "cannot rename %.512s", path);
	if (status)
		unlink(path);
	else if (!model->path[0])
		memcpy(model->path, path, (size_t)length + 1);
	return status;
}

onehop_status
bench_model_make(struct bench_model *model, const char *dir, uint64_t bytes, uint64_t tensor_bytes,
		 int keep, unsigned threads, int quiet, struct onehop_error *error)
{
	struct stat st;
	uint64_t header_bytes = 0;
	memset(model, 0, sizeof *model);
	if (tensor_bytes > bytes)
		tensor_bytes = bytes;
	model->tensor_bytes = tensor_bytes & ~UINT64_C(7);
	model->tensors = bytes / model->tensor_bytes;
	model->bytes = model->tensors * model->tensor_bytes;
	if (model->tensors > MOST_TENSORS)
		return fail(error, ONEHOP_INVALID_ARGUMENT, 0,
			    "%llu tensors are more than bench makes (%d)",
			    (unsigned long long)model->tensors, MOST_TENSORS);
	char *header = make_header(model, &header_bytes);
	if (!header)
		return fail(error, ONEHOP_NO_MEMORY, 0, "no memory for the model's header");
	onehop_status status = ONEHOP_OK;
	int length = keep ? snprintf(model->path, sizeof model->path,
				     "%s/onehop-bench-%llux%llu.safetensors", dir,
				     (unsigned long long)model->tensors,
				     (unsigned long long)model->tensor_bytes)
			  : 0;
	if ((size_t)length >= sizeof model->path)
		status = fail(error, ONEHOP_INVALID_ARGUMENT, 0, "the folder's name is too long");
	else if (!keep || stat(model->path, &st) != 0 ||
		 (uint64_t)st.st_size != header_bytes + model->bytes)
		status = make(model, dir, header, header_bytes, threads, quiet, error);
	free(header);
	model->made = !status && !keep;
	return status;
}

void
bench_model_drop(struct bench_model *model)
{
	if (model->made)
		unlink(model->path);
	model->made = 0;
}
