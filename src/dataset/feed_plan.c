/* The next group: how many batches it has.
 *
 * A group is as many batches as its buffers hold by what the last one took, and ends where a window
 * of the shuffle does if that is near, since a whole window is what lies together in the shards. If
 * it turns out larger than the buffers it is made smaller. Nothing is read here.
 */
#include "dataset/feed.h"

#include "base/arith.h"
#include "base/error.h"

#include <string.h>

/* How full a group is planned: sizes vary, and doing it again costs more than this leaves. */
#define FILL 0.96
/* A group that ends with a window has this part of the rows that would fit, at least. */
#define LEAST_PART 2

/* ------------------------------------------------------------------ tables */

void
oh_feed_group_free(struct oh_feed_group *group)
{
	free(group->samples);
	free(group->pad);
	free(group->offsets);
	free(group->bytes);
	free(group->crcs);
	for (int side = 0; side < OH_FEED_SIDES; side++) {
		free(group->cells[side]);
		onehop_fetch_destroy(group->fetches[side]);
	}
	memset(group, 0, sizeof *group);
}

static onehop_status
make_room(struct onehop_feed *feed, struct oh_feed_group *group, uint64_t rows,
	  struct onehop_error *error)
{
	uint64_t fields = feed->field_count, cells;
	if (rows <= group->room)
		return ONEHOP_OK;
	oh_feed_group_free(group);
	rows += rows / 8;
	int failed = oh_mul(rows, fields, &cells) || oh_mul(cells, sizeof *group->offsets, &cells);
	if (!failed) {
		group->samples = malloc(rows * sizeof *group->samples);
		group->pad = malloc(rows);
		group->offsets = malloc(cells);
		group->bytes = malloc(cells);
		failed = !group->samples || !group->pad || !group->offsets || !group->bytes;
	}
	if (!failed && feed->verify) {
		group->crcs = malloc(cells / 2);
		failed = !group->crcs;
	}
	for (int side = 0; side < OH_FEED_SIDES && !failed && feed->verify; side++) {
		group->cells[side] = malloc(cells);
		failed = !group->cells[side];
	}
	if (failed) {
		oh_feed_group_free(group);
		return oh_fail_no_memory(error, rows * fields * 2 * sizeof *group->offsets,
					 "a group of batches");
	}
	group->room = rows;
	return ONEHOP_OK;
}

static onehop_status
make_items(struct oh_feed_plan *plan, uint64_t rows, struct onehop_error *error)
{
	if (rows <= plan->room)
		return ONEHOP_OK;
	free(plan->items);
	plan->room = 0;
	plan->items = malloc((rows + rows / 8) * 2 * sizeof *plan->items);
	if (!plan->items)
		return oh_fail_no_memory(error, rows * 2 * sizeof *plan->items,
					 "a group of batches");
	plan->room = rows + rows / 8;
	return ONEHOP_OK;
}

/* ------------------------------------------------------------------ size */

/* Rows that fit by the estimate, one batch at least. */
static uint64_t
rows_that_fit(const struct onehop_feed *feed, uint64_t left)
{
	uint64_t rows = left;
	for (int side = 0; side < OH_FEED_SIDES; side++) {
		double fit = (double)feed->capacity[side] * FILL / feed->plan.row_bytes[side];
		if (feed->capacity[side] && fit < (double)rows)
			rows = (uint64_t)fit;
	}
	return rows;
}

/* The batches of the next group. */
static uint64_t
choose_batches(const struct onehop_feed *feed)
{
	const struct onehop_order *order = feed->plan.order;
	uint64_t first = feed->plan.next_row, left = order->info.rows - first;
	uint64_t fit = rows_that_fit(feed, left);
	uint64_t end = oh_order_window_end(order, first);
	if (fit == left)
		return left / order->batch + (left % order->batch > 0);
	if (end < first + fit) {
		/* The last window's end that fits: windows are all of the same length. */
		uint64_t length = oh_order_window_end(order, end) - end;
		end += (first + fit - end) / length * length;
		if (end - first >= fit / LEAST_PART)
			fit = end - first;
	}
	return oh_max(fit / order->batch, 1);
}

/* ------------------------------------------------------------------ fitting in */

/* How much too large the layout is: 1 or less if it fits. */
static double
excess(const struct onehop_feed *feed, const struct oh_runs runs[OH_FEED_SIDES])
{
	double most = 0;
	for (int side = 0; side < OH_FEED_SIDES; side++) {
		if (!feed->capacity[side])
			continue;
		double part = (double)runs[side].end / (double)feed->capacity[side];
		most = part > most ? part : most;
	}
	return most;
}

static onehop_status
batch_too_large(const struct onehop_feed *feed, const struct oh_runs runs[OH_FEED_SIDES],
		struct onehop_error *error)
{
	oh_fail(error, ONEHOP_LIMIT,
		"a batch takes %llu bytes on the device and %llu in host memory, and the feed's "
		"buffers have %llu and %llu",
		(unsigned long long)runs[OH_FEED_DEVICE].end,
		(unsigned long long)runs[OH_FEED_HOST].end,
		(unsigned long long)feed->capacity[OH_FEED_DEVICE],
		(unsigned long long)feed->capacity[OH_FEED_HOST]);
	oh_remedy(error, "raise ring_bytes, or take smaller batches");
	return ONEHOP_LIMIT;
}

/* How runs are made: with rows where they pay, judged by the byte before a payload, since that may
 * have none. */
static void
choose_runs(const struct onehop_feed *feed, const struct oh_feed_slot *slot,
	    struct oh_runs runs[OH_FEED_SIDES])
{
	const struct oh_shard_part *parts;
	uint64_t sample, shard, count;
	onehop_order_rows(feed->plan.order, feed->plan.next_row, 1, &sample, NULL);
	oh_dataset_sample(feed->dataset, sample, &shard, &parts, &count);
	for (int side = 0; side < OH_FEED_SIDES; side++) {
		runs[side].gap = feed->gap;
		runs[side].rows = feed->capacity[side] && count &&
				  oh_fetch_is_staged(feed->dataset, shard, parts[0].offset - 1,
						     slot->buffers[side]);
	}
}

/* In a way that takes less of the buffers: without rows, of which the first are read with their gaps
 * whatever these are, then without gaps. 0 if there is none. */
static int
take_less(struct oh_runs runs[OH_FEED_SIDES])
{
	int less = 0;
	for (int side = 0; side < OH_FEED_SIDES; side++) {
		less |= runs[side].rows || runs[side].gap;
		if (!runs[side].rows)
			runs[side].gap = 0;
		runs[side].rows = 0;
	}
	return less;
}

/* Takes rows for so many batches and lays them out; fewer, if they do not fit. Where one batch with
 * all that lies between its payloads is too much, it is read without. */
static onehop_status
fit_in(struct onehop_feed *feed, struct oh_feed_group *group, struct oh_runs runs[OH_FEED_SIDES],
       struct onehop_error *error)
{
	uint64_t batches = choose_batches(feed);
	const struct onehop_order *order = feed->plan.order;
	uint64_t first = feed->plan.next_row, left = order->info.rows - first;
	for (;;) {
		uint64_t rows = oh_min(batches * order->batch, left);
		onehop_status status = make_room(feed, group, rows, error);
		if (!status)
			status = make_items(&feed->plan, rows, error);
		if (status)
			return status;
		group->order = feed->plan.order_number;
		group->first_batch = first / order->batch;
		group->batches = batches;
		group->rows = rows;
		status = oh_feed_lay_out(feed, group, first, runs, error);
		if (status)
			return status;
		double over = excess(feed, runs);
		if (over <= 1)
			return ONEHOP_OK;
		if (batches > 1)
			batches = oh_max(oh_min((uint64_t)((double)batches / over * FILL),
						batches - 1),
					 1);
		else if (!take_less(runs))
			return batch_too_large(feed, runs, error);
	}
}

onehop_status
oh_feed_plan_group(struct onehop_feed *feed, struct oh_feed_group *group,
		   const struct oh_feed_slot *slot, struct onehop_fetch *fetches[OH_FEED_SIDES],
		   struct onehop_error *error)
{
	struct oh_runs runs[OH_FEED_SIDES] = {0};
	choose_runs(feed, slot, runs);
	onehop_status status = fit_in(feed, group, runs, error);
	for (int side = 0; side < OH_FEED_SIDES && !status; side++) {
		if (!feed->capacity[side])
			continue;
		feed->plan.row_bytes[side] =
			(double)(runs[side].end + 1) / (double)group->rows;
		status = oh_fetch_of_runs(feed->dataset, &runs[side], slot->buffers[side],
					  &fetches[side], error);
	}
	for (int side = 0; side < OH_FEED_SIDES; side++)
		free(runs[side].at);
	if (!status)
		feed->plan.next_row += group->rows;
	return status;
}

/* ------------------------------------------------------------------ before the first */

/* Of one batch of any samples, if each payload were a run of its own. */
static uint64_t
most_of_batch(const struct onehop_feed *feed, uint64_t samples, int side)
{
	uint64_t sum = 0, bytes;
	for (uint64_t i = 0; i < feed->field_count; i++) {
		const struct oh_field_facts *facts = &feed->dataset->facts[feed->fields[i]];
		if (feed->sides[i] == side &&
		    (oh_add(facts->max_bytes, OH_RUN_PAGE, &bytes) || oh_add(sum, bytes, &sum)))
			return UINT64_MAX;
	}
	return oh_mul(sum, samples, &bytes) ? UINT64_MAX : bytes;
}

static void
add_sample(const struct onehop_feed *feed, uint64_t sample, uint64_t sums[OH_FEED_SIDES])
{
	const struct oh_shard_part *parts;
	uint64_t number, count;
	const struct oh_dataset_shard *shard =
		oh_dataset_sample(feed->dataset, sample, &number, &parts, &count);
	for (uint64_t i = 0; i < count; i++) {
		uint16_t field = feed->fed[shard->fields[parts[i].field]];
		if (field != OH_NOT_FED)
			sums[feed->sides[field]] += parts[i].bytes + OH_RUN_PAGE;
	}
}

/* The same of the batches that there are: looks at all of them. */
static onehop_status
measure_batches(const struct onehop_feed *feed, const struct onehop_order *order, uint64_t batch,
		uint64_t most[OH_FEED_SIDES], struct onehop_error *error)
{
	uint64_t rows = order->info.rows, count;
	uint64_t *samples = malloc((batch + 1) * sizeof *samples);
	if (!samples)
		return oh_fail_no_memory(error, batch * sizeof *samples, "a batch");
	memset(most, 0, OH_FEED_SIDES * sizeof *most);
	for (uint64_t row = 0; row < rows; row += count) {
		uint64_t sums[OH_FEED_SIDES] = {0};
		count = oh_min(batch, rows - row);
		onehop_order_rows(order, row, count, samples, NULL);
		for (uint64_t i = 0; i < count; i++)
			add_sample(feed, samples[i], sums);
		for (int side = 0; side < OH_FEED_SIDES; side++)
			most[side] = oh_max(most[side], sums[side]);
	}
	free(samples);
	return ONEHOP_OK;
}

/* Paddings are no longer than what lies between two runs, so no buffer needs more than all shards
 * together. */
uint64_t
oh_feed_most_bytes(const struct onehop_dataset *dataset)
{
	return dataset->bases[dataset->info.shards] + dataset->info.shards * OH_RUN_PAGE;
}

onehop_status
oh_feed_batch_bytes(const struct onehop_feed *feed, const struct onehop_order *order,
		    uint64_t batch_bytes[OH_FEED_SIDES], struct onehop_error *error)
{
	uint64_t batch = oh_min(order->batch, order->info.rows);
	onehop_status status = ONEHOP_OK;
	int fits = 1;
	for (int side = 0; side < OH_FEED_SIDES; side++) {
		batch_bytes[side] = most_of_batch(feed, batch, side);
		fits &= batch_bytes[side] <= feed->capacity[side];
	}
	if (!fits)
		status = measure_batches(feed, order, batch, batch_bytes, error);
	for (int side = 0; side < OH_FEED_SIDES; side++)
		batch_bytes[side] = oh_min(batch_bytes[side], oh_feed_most_bytes(feed->dataset));
	return status;
}

/* Each field's mean, and its share of what lies between. */
void
oh_feed_plan_init(struct onehop_feed *feed)
{
	const struct onehop_dataset_info *info = &feed->dataset->info;
	for (int side = 0; side < OH_FEED_SIDES; side++) {
		double bytes = 1;
		for (uint64_t i = 0; i < feed->field_count; i++) {
			const struct oh_field_facts *facts = &feed->dataset->facts[feed->fields[i]];
			if (feed->sides[i] == side)
				bytes += (double)facts->bytes + 1024.0 * (double)facts->parts;
		}
		feed->plan.row_bytes[side] = bytes / (double)oh_max(info->samples, 1);
	}
}

void
oh_feed_plan_free(struct onehop_feed *feed)
{
	free(feed->plan.items);
}
