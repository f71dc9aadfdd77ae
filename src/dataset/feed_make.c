/* Making a feed: its options, the sizes of its buffers, its gates; and taking it apart.
 *
 * All memory that depends on the data is bounded here: the buffers by ring_bytes, or by the largest
 * batch if that is more and the caller left the size to us. What fails half way is taken apart by
 * destroy.
 */
#include "dataset/feed.h"

#include "base/arith.h"
#include "base/error.h"
#include "base/sys.h"
#include "base/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_RING_BYTES (UINT64_C(768) << 20)
/* Groups that are planned beyond those that have buffers. */
#define AHEAD 2

void
onehop_feed_options_init(struct onehop_feed_options *options)
{
	*options = (struct onehop_feed_options){
		.size = sizeof *options,
		.groups = 3,
		.device = "host",
		.gap_bytes = UINT64_C(32) << 10,
	};
}

static onehop_status
check_options(const struct onehop_dataset *dataset, const struct onehop_feed_options *options,
	      struct onehop_error *error)
{
	char shown[OH_SHOWN];
	if (options->groups == 0 || options->groups > OH_FEED_MOST_GROUPS)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "a feed of %u groups: it has 1 to %d", options->groups,
			       OH_FEED_MOST_GROUPS);
	if (options->flags & ~(uint32_t)ONEHOP_START_AFTER_STREAM)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "unknown start flags 0x%x",
			       options->flags);
	if (options->damage > ONEHOP_DAMAGE_SKIP || options->verify > 1)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "there is no damage %u or no verify %u", options->damage,
			       options->verify);
	if (!options->device || (options->field_count && !options->fields))
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "device or fields is NULL");
	for (uint64_t i = 0; i < options->field_count; i++)
		if (options->fields[i].field >= dataset->info.fields)
			return oh_fail(error, ONEHOP_OUT_OF_RANGE,
				       "field %u: the dataset has %llu", options->fields[i].field,
				       (unsigned long long)dataset->info.fields);
	for (uint64_t i = 0; options->verify && i < dataset->info.shards; i++) {
		const struct oh_dataset_shard *shard = &dataset->shards[i];
		if (shard->view.flags & OH_SHARD_CHECKSUMS)
			continue;
		oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			"%s: its index has no checksums to verify with",
			oh_show(shown, shard->path, strlen(shard->path)));
		oh_remedy(error, "make the index again with checksums: onehop index");
		return ONEHOP_INVALID_ARGUMENT;
	}
	return ONEHOP_OK;
}

/* Which fields go where. */
static onehop_status
take_fields(struct onehop_feed *feed, const struct onehop_feed_options *options,
	    struct onehop_error *error)
{
	uint64_t all = feed->dataset->info.fields;
	uint64_t count = options->field_count ? options->field_count : all;
	feed->field_count = count;
	feed->fields = malloc((count + 1) * sizeof *feed->fields);
	feed->sides = malloc(count + 1);
	feed->fed = malloc((all + 1) * sizeof *feed->fed);
	if (!feed->fields || !feed->sides || !feed->fed)
		return oh_fail_no_memory(error, count * sizeof *feed->fields, "the feed");
	memset(feed->fed, 0xff, all * sizeof *feed->fed);
	for (uint64_t i = 0; i < count; i++) {
		uint32_t field = options->field_count ? options->fields[i].field : (uint32_t)i;
		int host = options->field_count && options->fields[i].on_host;
		if (feed->fed[field] != OH_NOT_FED)
			return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "field %u is named twice",
				       field);
		feed->fields[i] = field;
		feed->sides[i] = host ? OH_FEED_HOST : OH_FEED_DEVICE;
		feed->fed[field] = (uint16_t)i;
	}
	return ONEHOP_OK;
}

/* Shares out the ring by what the fields of each side have. */
static void
share_out(struct onehop_feed *feed, uint64_t each)
{
	double bytes[OH_FEED_SIDES] = {0};
	uint64_t most = oh_feed_most_bytes(feed->dataset);
	for (uint64_t i = 0; i < feed->field_count; i++) {
		const struct oh_field_facts *facts = &feed->dataset->facts[feed->fields[i]];
		bytes[feed->sides[i]] += (double)facts->bytes + 1024.0 * (double)facts->parts + 1;
	}
	double sum = bytes[OH_FEED_DEVICE] + bytes[OH_FEED_HOST];
	for (int side = 0; side < OH_FEED_SIDES; side++)
		if (bytes[side] > 0)
			feed->capacity[side] = oh_max(
				oh_min((uint64_t)((double)each * (bytes[side] / sum)), most), 1);
}

static onehop_status
batch_too_large(const uint64_t batch[OH_FEED_SIDES], uint64_t ring, uint32_t slots,
		struct onehop_error *error)
{
	oh_fail(error, ONEHOP_LIMIT,
		"a batch takes up to %llu bytes, and ring_bytes (%llu) leaves %llu for each of %u "
		"groups",
		(unsigned long long)(batch[OH_FEED_DEVICE] + batch[OH_FEED_HOST]),
		(unsigned long long)ring, (unsigned long long)(ring / slots), slots);
	oh_remedy(error, "raise ring_bytes, or take smaller batches or fewer groups");
	return ONEHOP_LIMIT;
}

/* How large each side's buffers are. */
static onehop_status
size_buffers(struct onehop_feed *feed, const struct onehop_order *order, uint64_t ring_bytes,
	     struct onehop_error *error)
{
	uint64_t ring = ring_bytes ? ring_bytes : DEFAULT_RING_BYTES;
	uint64_t each = ring / feed->slots, batch[OH_FEED_SIDES], both;
	share_out(feed, each);
	oh_feed_plan_init(feed);
	onehop_status status = oh_feed_batch_bytes(feed, order, batch, error);
	if (status)
		return status;
	if (oh_add(batch[OH_FEED_DEVICE], batch[OH_FEED_HOST], &both))
		both = UINT64_MAX;
	int is_short = batch[OH_FEED_DEVICE] > feed->capacity[OH_FEED_DEVICE] ||
		       batch[OH_FEED_HOST] > feed->capacity[OH_FEED_HOST];
	if (is_short && ring_bytes && both > each)
		return batch_too_large(batch, ring, feed->slots, error);
	for (int side = 0; is_short && side < OH_FEED_SIDES; side++) {
		/* One side takes what it must, the other what is left. */
		uint64_t left = each - oh_min(each, batch[!side]);
		uint64_t want = oh_min(feed->capacity[side], left);
		if (feed->capacity[side])
			feed->capacity[side] = oh_max(batch[side], want);
	}
	return ONEHOP_OK;
}

/* With the lock held, or before there are threads. */
static onehop_status
add_order(struct onehop_feed *feed, const struct onehop_order *order, struct onehop_error *error)
{
	if (feed->order_count == feed->order_room) {
		uint64_t room = feed->order_room ? feed->order_room * 2 : 4;
		const struct onehop_order **grown =
			realloc(feed->orders, room * sizeof *feed->orders);
		if (!grown)
			return oh_fail_no_memory(error, room * sizeof *grown, "the feed's orders");
		feed->orders = grown;
		feed->order_room = room;
	}
	feed->orders[feed->order_count++] = order;
	if (feed->order_count == 1)
		feed->plan.order = order;
	if (feed->all_planned || feed->order_count == 1)
		oh_feed_next_order(feed);
	return ONEHOP_OK;
}

onehop_status
onehop_feed_append(struct onehop_feed *feed, const struct onehop_order *order,
		   struct onehop_error *error)
{
	uint64_t batch[OH_FEED_SIDES];
	if (oh_feed_is_child(feed, error))
		return ONEHOP_FORKED;
	if (!order)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "order is NULL");
	onehop_status status = oh_feed_batch_bytes(feed, order, batch, error);
	if (status)
		return status;
	for (int side = 0; side < OH_FEED_SIDES; side++) {
		if (batch[side] <= feed->capacity[side])
			continue;
		oh_fail(error, ONEHOP_LIMIT,
			"a batch of the appended order takes up to %llu bytes, and the feed's "
			"buffers have %llu",
			(unsigned long long)batch[side], (unsigned long long)feed->capacity[side]);
		oh_remedy(error, "make a new feed for it");
		return ONEHOP_LIMIT;
	}
	pthread_mutex_lock(&feed->lock);
	status = add_order(feed, order, error);
	pthread_cond_signal(&feed->to_planner);
	pthread_mutex_unlock(&feed->lock);
	return status;
}

void
oh_feed_note_unpinned(struct onehop_feed *feed, const struct onehop_error *why)
{
	char *text = feed->info.unpinned;
	if (why->status && !*text)
		snprintf(text, sizeof feed->info.unpinned, "%.160s%s%.90s", why->message,
			 why->remedy[0] ? "; " : "", why->remedy);
}

/* Decoders copy from there. After one that could not be pinned the others are not tried. */
static void
pin_host(struct onehop_feed *feed, struct onehop_buffer *buffer, const char *device)
{
	struct onehop_error error = {0};
	if (feed->info.unpinned[0])
		return;
	if (oh_buffer_pin(buffer, device, &error))
		oh_feed_note_unpinned(feed, &error);
	else if (oh_buffer_is_pinned(buffer))
		feed->info.host_pinned_bytes += feed->capacity[OH_FEED_HOST];
}

static onehop_status
make_buffers(struct onehop_feed *feed, const char *device, struct onehop_error *error)
{
	struct onehop_runtime *runtime = feed->dataset->runtime;
	onehop_status status = ONEHOP_OK;
	for (uint32_t i = 0; i < feed->slots; i++) {
		for (int side = 0; side < OH_FEED_SIDES && !status; side++) {
			uint64_t bytes = feed->capacity[side];
			const char *name = side == OH_FEED_HOST ? "host" : device;
			if (!bytes)
				continue;
			status = onehop_buffer_alloc(runtime, name, bytes,
						     &feed->slot[i].buffers[side], error);
			if (!status && side == OH_FEED_HOST)
				pin_host(feed, feed->slot[i].buffers[side], device);
		}
	}
	feed->info.device_bytes = feed->capacity[OH_FEED_DEVICE] * feed->slots;
	feed->info.host_bytes = feed->capacity[OH_FEED_HOST] * feed->slots;
	return status;
}

/* Gates are transfers of nothing to the device, which wait for a stream. */
static onehop_status
make_gates(struct onehop_feed *feed, const char *device, struct onehop_error *error)
{
	struct onehop_runtime *runtime = feed->dataset->runtime;
	onehop_status status =
		onehop_buffer_alloc(runtime, device, 0, &feed->gate_buffer, error);
	if (status)
		return status;
	struct onehop_extent nothing = {.file = feed->dataset->shards[0].file,
					.rows = 1,
					.buffer = feed->gate_buffer};
	status = onehop_plan_create(runtime, &nothing, 1, &feed->gate_plan, error);
	for (uint32_t i = 0; i < feed->slots && !status; i++)
		status = onehop_transfer_prepare(feed->gate_plan, &feed->slot[i].gate, error);
	return status;
}

static onehop_status
build(struct onehop_feed *feed, const struct onehop_order *order,
      const struct onehop_feed_options *options, struct onehop_error *error)
{
	onehop_status status = take_fields(feed, options, error);
	if (!status)
		status = size_buffers(feed, order, options->ring_bytes, error);
	if (!status)
		status = add_order(feed, order, error);
	if (!status)
		status = make_buffers(feed, options->device, error);
	if (!status)
		status = make_gates(feed, options->device, error);
	if (!status && feed->verify)
		status = oh_feed_verify_init(feed, error);
	for (uint32_t i = 0; i < feed->slots && !status; i++)
		status = oh_feed_start_gate(&feed->slot[i], options->flags, options->after_stream,
					    error);
	if (!status)
		status = oh_feed_start(feed, error);
	return status;
}

onehop_status
onehop_feed_create(struct onehop_dataset *dataset, const struct onehop_order *order,
		   const struct onehop_feed_options *theirs, struct onehop_feed **out,
		   struct onehop_error *error)
{
	struct onehop_feed_options options;
	if (!dataset || !order || !out)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "dataset, order or feed is NULL");
	onehop_feed_options_init(&options);
	if (theirs)
		memcpy(&options, theirs, oh_min(sizeof options, theirs->size));
	onehop_status status = check_options(dataset, &options, error);
	if (status)
		return status;
	struct onehop_feed *feed = calloc(1, sizeof *feed);
	if (!feed)
		return oh_fail_no_memory(error, sizeof *feed, "a feed");
	feed->dataset = dataset;
	feed->pid = oh_sys.getpid();
	feed->verify = options.verify;
	feed->damage = options.damage;
	feed->gap = oh_min(options.gap_bytes, UINT32_MAX);
	feed->slots = feed->info.groups = options.groups;
	feed->places = feed->slots + AHEAD;
	feed->failed_at = UINT64_MAX;
	pthread_mutex_init(&feed->lock, NULL);
	/* Without attributes that ask for much these cannot fail. */
	status = oh_cond_init(&feed->to_planner, error);
	if (!status)
		status = oh_cond_init(&feed->to_lander, error);
	if (!status)
		status = oh_cond_init(&feed->to_verifier, error);
	if (!status)
		status = oh_cond_init(&feed->to_consumer, error);
	if (!status)
		status = build(feed, order, &options, error);
	if (status)
		onehop_feed_destroy(feed);
	else
		*out = feed;
	return status;
}

void
onehop_feed_destroy(struct onehop_feed *feed)
{
	if (!feed || oh_feed_is_child(feed, NULL))
		return;
	oh_feed_stop(feed);
	oh_readback_destroy(feed->readback);
	for (uint32_t i = 0; i < feed->places; i++)
		oh_feed_group_free(&feed->groups[i]);
	for (uint32_t i = 0; i < feed->slots; i++) {
		onehop_transfer_destroy(feed->slot[i].gate);
		for (int side = 0; side < OH_FEED_SIDES; side++)
			onehop_buffer_free(feed->slot[i].buffers[side]);
	}
	onehop_plan_destroy(feed->gate_plan);
	onehop_buffer_free(feed->gate_buffer);
	oh_feed_plan_free(feed);
	free(feed->orders);
	free(feed->fields);
	free(feed->sides);
	free(feed->fed);
	pthread_cond_destroy(&feed->to_planner);
	pthread_cond_destroy(&feed->to_lander);
	pthread_cond_destroy(&feed->to_verifier);
	pthread_cond_destroy(&feed->to_consumer);
	pthread_mutex_destroy(&feed->lock);
	free(feed);
}
