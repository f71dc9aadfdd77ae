/* A fetch: ranges of shards, sorted, merged, laid out, and moved by one transfer.
 *
 * Small ranges are what a dataset is read by and what storage and link like least: those that lie
 * near each other are moved as one run, with the bytes between them. The engine does the moving; a
 * fetch adds to its errors which sample was hit, by reading the runs again until one fails.
 */
#include "dataset/fetch.h"

#include "base/arith.h"
#include "base/error.h"
#include "dataset/dataset.h"
#include "dataset/sort.h"
#include "runtime/file.h"

#include <string.h>

/* Runs are given to the engine in extents of so much, which it merges again, so that there is an
 * arrival for each. */
#define EXTENT_BYTES (UINT64_C(4) << 20)
/* Arrivals that are taken at once. */
#define ARRIVALS 64
/* What is read at once to find out where reading fails. */
#define LOOK_BYTES (UINT64_C(256) << 10)
/* Rows further apart are looked at one by one. */
#define LOOK_GAP (UINT64_C(32) << 10)

struct onehop_fetch {
	struct onehop_dataset *dataset;
	struct onehop_plan *plan;
	struct onehop_transfer *transfer;
	struct oh_run *runs; /* what went wrong is looked for here */
	uint64_t run_count;
};

/* ------------------------------------------------------------------ layout */

static onehop_status
check_ranges(const struct onehop_dataset *dataset, const struct onehop_range *ranges,
	     uint64_t count, struct onehop_error *error)
{
	for (uint64_t i = 0; i < count; i++) {
		const struct onehop_range *range = &ranges[i];
		uint64_t end;
		if (range->shard >= dataset->info.shards)
			return oh_fail(error, ONEHOP_OUT_OF_RANGE,
				       "range %llu: shard %llu, and the dataset has %llu",
				       (unsigned long long)i, (unsigned long long)range->shard,
				       (unsigned long long)dataset->info.shards);
		const struct oh_dataset_shard *shard = &dataset->shards[range->shard];
		if (oh_add(range->offset, range->bytes, &end) || end > shard->view.shard_bytes)
			return oh_fail(error, ONEHOP_OUT_OF_RANGE,
				       "%s: range %llu (%llu bytes at offset %llu) lies past the "
				       "shard's end at %llu",
				       shard->path, (unsigned long long)i,
				       (unsigned long long)range->bytes,
				       (unsigned long long)range->offset,
				       (unsigned long long)shard->view.shard_bytes);
	}
	return ONEHOP_OK;
}

/* Lays the ranges out behind runs->end. */
static onehop_status
lay_out(const struct onehop_dataset *dataset, const struct onehop_range *ranges, uint64_t count,
	struct oh_runs *runs, uint64_t *placed, struct onehop_error *error)
{
	struct oh_sort_item *items = malloc((2 * count + 1) * sizeof *items), *sorted;
	int failed = !items;
	for (uint64_t i = 0; i < count && !failed; i++)
		items[i] = (struct oh_sort_item){dataset->bases[ranges[i].shard] + ranges[i].offset,
						 i};
	sorted = failed ? NULL : oh_sort(items, items + count, count);
	for (uint64_t i = 0; i < count && !failed; i++) {
		const struct onehop_range *range = &ranges[sorted[i].index];
		failed = oh_runs_add(runs, range->shard, range->offset, range->bytes,
				     &placed[sorted[i].index]);
	}
	free(items);
	return failed ? oh_fail_no_memory(error, count * 2 * sizeof *items, "a fetch") : ONEHOP_OK;
}

/* ------------------------------------------------------------------ making */

/* Whole rows. */
static uint64_t
extent_bytes(const struct oh_run *run)
{
	return run->rows == 1 ? EXTENT_BYTES
			      : oh_max(EXTENT_BYTES / run->row_bytes, 1) * run->row_bytes;
}

static uint64_t
count_extents(const struct onehop_fetch *fetch)
{
	uint64_t count = 0;
	for (uint64_t i = 0; i < fetch->run_count; i++)
		count += oh_run_bytes(&fetch->runs[i]) / extent_bytes(&fetch->runs[i]) + 1;
	return count;
}

/* One run's extents from there on; gives how many. */
static uint64_t
cut_run(const struct onehop_dataset *dataset, const struct oh_run *run,
	struct onehop_buffer *buffer, struct onehop_extent *extents)
{
	uint64_t bytes = oh_run_bytes(run), step = extent_bytes(run), count = 0;
	for (uint64_t at = 0; at < bytes; at += step) {
		uint64_t here = oh_min(step, bytes - at), plain = run->rows == 1;
		extents[count++] = (struct onehop_extent){
			.file = dataset->shards[run->shard].file,
			.offset = run->offset +
				  (plain ? at : at / run->row_bytes * run->row_stride),
			.row_bytes = plain ? here : run->row_bytes,
			.rows = plain ? 1 : here / run->row_bytes,
			.row_stride = run->row_stride,
			.buffer = buffer,
			.buffer_offset = run->place + at,
		};
	}
	return count;
}

static onehop_status
make_plan(struct onehop_fetch *fetch, struct onehop_buffer *buffer, struct onehop_error *error)
{
	const struct onehop_dataset *dataset = fetch->dataset;
	uint64_t room = count_extents(fetch), count = 0;
	struct onehop_extent *extents = malloc((room + 1) * sizeof *extents);
	if (!extents)
		return oh_fail_no_memory(error, room * sizeof *extents, "a fetch");
	for (uint64_t i = 0; i < fetch->run_count; i++)
		count += cut_run(dataset, &fetch->runs[i], buffer, extents + count);
	/* An empty plan would not know its device. */
	if (!count)
		extents[count++] = (struct onehop_extent){
			.file = dataset->shards[0].file, .rows = 1, .buffer = buffer};
	onehop_status status =
		onehop_plan_create(dataset->runtime, extents, count, &fetch->plan, error);
	free(extents);
	return status;
}

onehop_status
oh_fetch_of_runs(struct onehop_dataset *dataset, struct oh_runs *runs,
		 struct onehop_buffer *buffer, struct onehop_fetch **out,
		 struct onehop_error *error)
{
	struct onehop_fetch *fetch = calloc(1, sizeof *fetch);
	if (!fetch) {
		free(runs->at);
		memset(runs, 0, sizeof *runs);
		return oh_fail_no_memory(error, sizeof *fetch, "a fetch");
	}
	fetch->dataset = dataset;
	fetch->runs = runs->at;
	fetch->run_count = runs->count;
	memset(runs, 0, sizeof *runs);
	onehop_status status = make_plan(fetch, buffer, error);
	if (!status)
		status = onehop_transfer_prepare(fetch->plan, &fetch->transfer, error);
	if (status)
		onehop_fetch_destroy(fetch);
	else
		*out = fetch;
	return status;
}

int
oh_fetch_is_staged(const struct onehop_dataset *dataset, uint64_t shard, uint64_t offset,
		   struct onehop_buffer *buffer)
{
	struct onehop_extent extent = {.file = dataset->shards[shard].file, .offset = offset,
				       .row_bytes = 1, .rows = 1, .buffer = buffer};
	struct onehop_segment segment = {.size = sizeof segment};
	struct onehop_plan *plan;
	if (onehop_plan_create(dataset->runtime, &extent, 1, &plan, NULL))
		return 0;
	onehop_status status = onehop_plan_segment_at(plan, 0, &segment);
	onehop_plan_destroy(plan);
	return !status && segment.staged && segment.route == ONEHOP_ROUTE_BUFFERED;
}

static onehop_status
too_small(uint64_t needed, uint64_t buffer_offset, uint64_t room, struct onehop_error *error)
{
	oh_fail(error, ONEHOP_LIMIT,
		"the ranges take %llu bytes of a buffer, and from offset %llu on it has %llu",
		(unsigned long long)needed, (unsigned long long)buffer_offset,
		(unsigned long long)room);
	oh_remedy(error, "give a larger buffer, or fetch fewer at once");
	return ONEHOP_LIMIT;
}

onehop_status
onehop_fetch_create(struct onehop_dataset *dataset, const struct onehop_range *ranges,
		    uint64_t count, uint64_t gap_bytes, struct onehop_buffer *buffer,
		    uint64_t buffer_offset, uint64_t *placed, uint64_t *needed,
		    struct onehop_fetch **fetch, struct onehop_error *error)
{
	struct oh_runs runs = {.gap = oh_min(gap_bytes, UINT32_MAX), .end = buffer_offset};
	struct onehop_buffer_info info = {.size = sizeof info};
	if (!dataset || (count && (!ranges || !placed)) || (buffer && !fetch))
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "dataset, ranges, placed or fetch is NULL");
	onehop_status status = check_ranges(dataset, ranges, count, error);
	if (!status)
		status = lay_out(dataset, ranges, count, &runs, placed, error);
	uint64_t used = runs.end - buffer_offset;
	if (!status && needed)
		*needed = used;
	if (status || !buffer) {
		free(runs.at);
		return status;
	}
	onehop_buffer_query(buffer, &info);
	uint64_t room = info.bytes - oh_min(buffer_offset, info.bytes);
	if (used > room) {
		free(runs.at);
		return too_small(used, buffer_offset, room, error);
	}
	return oh_fetch_of_runs(dataset, &runs, buffer, fetch, error);
}

void
onehop_fetch_destroy(struct onehop_fetch *fetch)
{
	if (!fetch)
		return;
	onehop_transfer_destroy(fetch->transfer);
	onehop_plan_destroy(fetch->plan);
	free(fetch->runs);
	free(fetch);
}

/* ------------------------------------------------------------------ going */

onehop_status
onehop_fetch_start(struct onehop_fetch *fetch, const struct onehop_start_options *options,
		   struct onehop_error *error)
{
	return onehop_transfer_start(fetch->transfer, options, error);
}

void
oh_fetch_cancel(struct onehop_fetch *fetch)
{
	onehop_transfer_cancel(fetch->transfer);
}

void
oh_fetch_wait_until(struct onehop_fetch *fetch, uint64_t bytes_left)
{
	struct onehop_progress progress = {.size = sizeof progress};
	uint64_t arrivals[ARRIVALS], count;
	do {
		onehop_transfer_progress(fetch->transfer, &progress);
	} while (progress.running && progress.bytes_total - progress.bytes_landed > bytes_left &&
		 !onehop_transfer_arrivals(fetch->transfer, ONEHOP_FOREVER, arrivals, ARRIVALS,
					   &count, NULL));
}

/* Where in a range reading fails: 1, with what it says, or 0 if all of it can be read now. */
static int
look_at(struct onehop_file *file, uint64_t at, uint64_t bytes_left, void *scratch, uint64_t *offset,
	struct onehop_error *error)
{
	uint64_t step = LOOK_BYTES, end = at + bytes_left;
	while (at < end) {
		uint64_t bytes = oh_min(step, end - at);
		if (!oh_file_pread(file, scratch, bytes, at, error)) {
			at += bytes;
		} else if (step > 1) {
			step = oh_max(step / 16, 1); /* again, in smaller steps */
		} else {
			*offset = at;
			return 1;
		}
	}
	return 0;
}

/* The same of a run; small gaps between rows may have been read too. */
static int
look_for_failure(const struct onehop_fetch *fetch, const struct oh_run *run, void *scratch,
		 uint64_t *offset, struct onehop_error *error)
{
	struct onehop_file *file = fetch->dataset->shards[run->shard].file;
	if (run->rows == 1 || run->row_stride - run->row_bytes <= LOOK_GAP)
		return look_at(file, run->offset, oh_run_span(run), scratch, offset, error);
	for (uint64_t row = 0; row < run->rows; row++)
		if (look_at(file, run->offset + row * run->row_stride, run->row_bytes, scratch,
			    offset, error))
			return 1;
	return 0;
}

/* Says which sample was hit. What cannot be found again stays as the engine put it. */
static void
name_sample(const struct onehop_fetch *fetch, struct onehop_error *error)
{
	struct onehop_error found;
	char shown[OH_SHOWN];
	uint64_t offset;
	void *scratch = malloc(LOOK_BYTES);
	for (uint64_t i = 0; scratch && i < fetch->run_count; i++) {
		const struct oh_run *run = &fetch->runs[i];
		if (!look_for_failure(fetch, run, scratch, &offset, &found))
			continue;
		struct onehop_name key = oh_dataset_key(
			fetch->dataset, oh_dataset_sample_with(fetch->dataset, run->shard, offset));
		*error = found;
		oh_fail(error, found.status, "%s (sample %s)", found.message,
			oh_show(shown, key.text, key.bytes));
		error->os_errno = found.os_errno;
		memcpy(error->remedy, found.remedy, sizeof error->remedy);
		break;
	}
	free(scratch);
}

onehop_status
onehop_fetch_wait(struct onehop_fetch *fetch, uint64_t timeout_ns,
		  struct onehop_completion *completion, struct onehop_error *error)
{
	onehop_status status =
		onehop_transfer_wait(fetch->transfer, timeout_ns, completion, error);
	if (error && (status == ONEHOP_IO || status == ONEHOP_FILE_CHANGED))
		name_sample(fetch, error);
	return error && error->status && status ? error->status : status;
}
