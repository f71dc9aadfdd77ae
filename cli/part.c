/* The independent read that --verify compares with.
 *
 * It takes a tensor's path, offset, shape and block size from the model, and works out the rows of
 * a tensor-parallel part anew: nothing of the plan or the layout is used, so that a fault there
 * cannot hide itself. Narrow rows are picked from windows of the file, since a call a row would
 * take hours.
 */
#include "part.h"
#include "say.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* Rows at least this wide are read one by one. */
#define WIDE_ROW (256u << 10)

onehop_status
part_of(const struct job *job, const struct onehop_item *item, struct shape *shape,
	struct part *part, struct onehop_error *error)
{
	struct onehop_tensor tensor = job_tensor(job->model, item->tensor);
	part->file = tensor.file;
	part->offset = tensor.offset;
	part->row_bytes = item->bytes;
	part->stride = item->bytes;
	if (item->split_dim < 0)
		return ONEHOP_OK;
	if (job_shape(job->model, item->tensor, NULL, shape))
		return fail(error, ONEHOP_NO_MEMORY, 0, "no memory for a shape");
	uint64_t dim = (uint64_t)item->split_dim, inner = 1;
	for (uint64_t i = dim + 1; i < shape->rank; i++)
		inner *= shape->dims[i];
	/* Elements to bytes: exact, since a split never cuts a block. */
	uint64_t per = tensor.block_elements, block = tensor.block_bytes;
	part->offset += item->split_begin * inner / per * block;
	part->row_bytes = item->split_extent * inner / per * block;
	part->stride = shape->dims[dim] * inner / per * block;
	return ONEHOP_OK;
}

static onehop_status
open_file(const struct job *job, uint32_t index, struct part_file *file, const char **path,
	  struct onehop_error *error)
{
	struct onehop_file_info info = {.size = sizeof info};
	onehop_status status = onehop_model_file_at(job->model, index, &info);
	assert(status == ONEHOP_OK);
	*path = info.path;
	if (file->fd >= 0 && file->index == index)
		return ONEHOP_OK;
	part_file_close(file);
	/* A FIFO put in the file's place must not be waited for. */
	file->fd = open(info.path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (file->fd < 0) {
		status = errno == ENOENT ? ONEHOP_NOT_FOUND : ONEHOP_IO;
		return fail(error, status, errno, "cannot open %.512s", info.path);
	}
	file->index = index;
	return ONEHOP_OK;
}

static onehop_status
read_full(int fd, const char *path, uint64_t offset, char *to, uint64_t bytes,
	  struct onehop_error *error)
{
	while (bytes > 0) {
		size_t want = bytes < (1u << 30) ? (size_t)bytes : 1u << 30;
		ssize_t got = pread(fd, to, want, (off_t)offset);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return fail(error, ONEHOP_IO, errno, "cannot read %.512s at offset %llu",
				    path, (unsigned long long)offset);
		if (got == 0)
			return fail(error, ONEHOP_MISMATCH, 0,
				    "%.512s ends at offset %llu now, inside a tensor", path,
				    (unsigned long long)offset);
		to += got;
		offset += (uint64_t)got;
		bytes -= (uint64_t)got;
	}
	return ONEHOP_OK;
}

/* As many whole rows from row on as one window holds, at most `rows`; the number in *done. */
static onehop_status
read_window(int fd, const char *path, const struct part *part, uint64_t row, uint64_t rows,
	    char *to, char *window, size_t window_bytes, uint64_t *done,
	    struct onehop_error *error)
{
	uint64_t fit = (window_bytes - part->row_bytes) / part->stride + 1;
	if (fit > rows)
		fit = rows;
	uint64_t span = (fit - 1) * part->stride + part->row_bytes;
	onehop_status status = read_full(fd, path, part->offset + row * part->stride, window, span,
					 error);
	if (status)
		return status;
	for (uint64_t i = 0; i < fit; i++)
		memcpy(to + i * part->row_bytes, window + i * part->stride, part->row_bytes);
	*done = fit;
	return ONEHOP_OK;
}

onehop_status
part_read(const struct job *job, const struct part *part, uint64_t at, void *destination,
	  uint64_t bytes, struct part_file *file, char *window, size_t window_bytes,
	  struct onehop_error *error)
{
	const char *path;
	char *to = destination;
	onehop_status status = open_file(job, part->file, file, &path, error);
	while (!status && bytes > 0) {
		uint64_t row = at / part->row_bytes, column = at % part->row_bytes, took;
		if (column == 0 && bytes >= part->row_bytes && part->row_bytes < WIDE_ROW) {
			uint64_t rows = bytes / part->row_bytes;
			status = read_window(file->fd, path, part, row, rows, to, window,
					     window_bytes, &rows, error);
			took = status ? 0 : rows * part->row_bytes;
		} else {
			took = part->row_bytes - column;
			if (took > bytes)
				took = bytes;
			status = read_full(file->fd, path,
					   part->offset + row * part->stride + column, to, took,
					   error);
		}
		to += took;
		at += took;
		bytes -= took;
	}
	return status;
}

void
part_file_close(struct part_file *file)
{
	if (file->fd >= 0)
		close(file->fd);
	file->fd = -1;
}
