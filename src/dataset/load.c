/* One shard, opened: its file, its index in memory, checked (entries.c) and tied to each other.
 *
 * The index is read, not mapped: a file map that is cut off under its reader is a SIGBUS. A large one
 * is read by several threads, which so make its memory, and sum each piece while it is in their caches.
 * Payloads are not read.
 */
#include "dataset/dataset.h"

#include "base/arith.h"
#include "base/crc32c.h"
#include "base/sys.h"
#include "dataset/crew.h"
#include "format/fail.h"
#include "format/shard_file.h"
#include "runtime/file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* From here on memory comes in huge pages. */
#define LARGE_BYTES (UINT64_C(4) << 20)
/* What one thread takes: huge pages of its own. And what it reads and then sums at once. */
#define SHARE_BYTES (UINT64_C(16) << 20)
#define PIECE_BYTES (UINT64_C(1) << 20)

static void *
get_memory(uint64_t bytes)
{
	if (bytes < LARGE_BYTES)
		return malloc(oh_max(bytes, 1));
	void *memory = oh_sys.mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
				   -1, 0);
	if (memory == MAP_FAILED)
		return NULL;
	oh_sys.madvise(memory, bytes, MADV_HUGEPAGE);
	return memory;
}

static void
free_memory(void *memory, uint64_t bytes)
{
	if (bytes < LARGE_BYTES)
		free(memory);
	else if (memory)
		oh_sys.munmap(memory, bytes);
}

static uint64_t
size_of(const struct onehop_file *file)
{
	struct onehop_file_info info = {.size = sizeof info};
	onehop_file_query(file, &info);
	return info.bytes;
}

struct reading {
	struct onehop_file *file;
	uint8_t *memory;
	uint64_t offset;
	uint64_t bytes;
	uint32_t *sums; /* by piece */
};

static onehop_status
read_share(void *context, uint32_t worker, uint64_t index, struct onehop_error *error)
{
	const struct reading *r = context;
	uint64_t at = index * SHARE_BYTES, end = oh_min(at + SHARE_BYTES, r->bytes);
	onehop_status status = ONEHOP_OK;
	(void)worker;
	for (; at < end && !status; at += PIECE_BYTES) {
		uint64_t bytes = oh_min(PIECE_BYTES, end - at);
		status = oh_file_pread(r->file, r->memory + at, bytes, r->offset + at, error);
		if (!status)
			r->sums[at / PIECE_BYTES] = oh_crc32c(0, r->memory + at, bytes);
	}
	return status;
}

/* Reads bytes [offset, offset + bytes) of file as the shard's index. */
static onehop_status
read_index(struct onehop_file *file, const char *path, uint64_t offset, uint64_t bytes,
	   const struct oh_shard_loading *how, struct oh_dataset_shard *shard,
	   struct onehop_error *error)
{
	uint64_t limit = how->index_limit;
	if (bytes > limit) {
		oh_refuse(error, ONEHOP_LIMIT, path,
			  "an index of %llu bytes: %llu are left of the memory that may be used",
			  (unsigned long long)bytes, (unsigned long long)limit);
		oh_remedy(error, "open fewer shards, or on a machine with more memory");
		return ONEHOP_LIMIT;
	}
	struct reading reading = {file, get_memory(bytes), offset, bytes,
				  malloc((bytes / PIECE_BYTES + 1) * sizeof *reading.sums)};
	struct oh_shard_sums sums = {PIECE_BYTES, reading.sums};
	onehop_status status = ONEHOP_OK;
	if (!reading.memory || !reading.sums)
		status = oh_fail_no_memory(error, bytes, "a shard's index");
	if (!status)
		status = oh_crew_run(how->threads, (bytes + SHARE_BYTES - 1) / SHARE_BYTES,
				     read_share, &reading, error);
	if (!status)
		status = oh_shard_open_summed(reading.memory, bytes, &sums, path, &shard->view,
					      error);
	free(reading.sums);
	if (status) {
		free_memory(reading.memory, bytes);
		return status;
	}
	shard->index = reading.memory;
	shard->index_bytes = bytes;
	return ONEHOP_OK;
}

/* The last 64 bytes of the shard; *found is 0 if they are no trailer. */
static onehop_status
read_trailer(const struct oh_dataset_shard *shard, struct oh_shard_trailer *trailer, int *found,
	     struct onehop_error *error)
{
	uint64_t bytes = size_of(shard->file);
	*found = 0;
	if (bytes < sizeof *trailer)
		return ONEHOP_OK;
	onehop_status status = oh_file_pread(shard->file, trailer, sizeof *trailer,
					     bytes - sizeof *trailer, error);
	if (!status)
		status = oh_shard_trailer_judge(trailer, bytes, shard->path, found, error);
	if (*found == 0 || (*found > 0 && trailer->tar_end <= trailer->index_offset))
		return status;
	oh_refuse(error, ONEHOP_MALFORMED, shard->path,
		  "the trailer in its last 64 bytes is damaged");
	oh_remedy(error, "get a good copy, or make an index beside it: onehop index");
	return ONEHOP_MALFORMED;
}

static onehop_status
use_trailer(struct oh_dataset_shard *shard, const struct oh_shard_loading *how,
	    struct onehop_error *error)
{
	struct oh_shard_trailer trailer;
	int found;
	onehop_status status = read_trailer(shard, &trailer, &found, error);
	if (status)
		return status;
	if (found)
		return read_index(shard->file, shard->path, trailer.index_offset,
				  trailer.index_bytes, how, shard, error);
	oh_refuse(error, ONEHOP_NOT_FOUND, shard->path,
		  "it has no index: there is no file of its name with .onehop behind it, and no "
		  "trailer in it");
	oh_remedy(error, "make one: onehop index");
	return ONEHOP_NOT_FOUND;
}

/* The side file, where there is one, else the trailer. */
static onehop_status
find_index(const struct oh_shard_loading *how, struct oh_dataset_shard *shard,
	   struct onehop_error *error)
{
	struct onehop_file *file;
	size_t length = strlen(shard->path);
	char *side = malloc(length + sizeof ".onehop");
	if (!side)
		return oh_fail_no_memory(error, length, "a path");
	memcpy(side, shard->path, length);
	memcpy(side + length, ".onehop", sizeof ".onehop");
	onehop_status status = onehop_file_open(how->runtime, side, &file, error);
	if (status == ONEHOP_NOT_FOUND) {
		status = use_trailer(shard, how, error);
	} else if (!status) {
		status = read_index(file, side, 0, size_of(file), how, shard, error);
		onehop_file_close(file);
	}
	free(side);
	return status;
}

/* ------------------------------------------------------------------ tied to its shard */

/* The shard is as its index says. A trailer that the index does not speak of is not looked for. */
static onehop_status
tie(const struct oh_dataset_shard *shard, struct onehop_error *error)
{
	const struct oh_shard_view *view = &shard->view;
	struct oh_shard_seen seen = {.path = shard->path, .bytes = size_of(shard->file)};
	struct oh_shard_trailer trailer;
	uint8_t end[OH_SHARD_END_BYTES];
	onehop_status status = ONEHOP_OK;
	if (seen.bytes == view->shard_bytes && seen.bytes - view->tar_end >= sizeof end) {
		status = oh_file_pread(shard->file, end, sizeof end, view->tar_end, error);
		seen.end = end;
	}
	if (!status)
		status = oh_shard_fits(view, &seen, error);
	if (status || !(view->flags & OH_SHARD_TRAILER))
		return status;
	status = read_trailer(shard, &trailer, &seen.has_trailer, error);
	if (!status && seen.has_trailer) {
		seen.tar_end = trailer.tar_end;
		seen.index_crc32c = trailer.index_crc32c;
	}
	return status ? status : oh_shard_agrees(view, &seen, error);
}

/* ------------------------------------------------------------------ */

onehop_status
oh_shard_load(const struct oh_shard_loading *how, const char *path,
	      struct oh_dataset_shard *shard, struct oh_shard_load *load,
	      struct onehop_error *error)
{
	struct onehop_file_info info = {.size = sizeof info};
	onehop_status status = onehop_file_open(how->runtime, path, &shard->file, error);
	if (status)
		return status;
	onehop_file_query(shard->file, &info);
	shard->path = info.path;
	status = find_index(how, shard, error);
	if (!status)
		status = tie(shard, error);
	if (!status)
		status = oh_entries_check(shard, how->threads, load, error);
	return status;
}

void
oh_shard_unload(struct oh_dataset_shard *shard)
{
	if (shard->index)
		free_memory(shard->index, shard->index_bytes);
	onehop_file_close(shard->file);
}
