/* The feed: two threads between an order and a consumer, three where payloads are verified.
 *
 * The planner plans groups ahead and starts each when its slot is free; the lander waits for them
 * in turn (and helps with reading meanwhile); the verifier checks one while the next lands. So the
 * consumer's thread neither plans nor reads. A group is started while the one before still has much
 * to land: that keeps the link full between the two; transfers that share ring and workers from
 * beginning to end would all end late.
 *
 * All state is under one lock, which is never held while bytes are moved, planned or verified; the
 * runtime's lock may be taken under it, never the other way. A failure is kept with the number of its
 * group: groups before it are given, and then it is, each time.
 */
#include "dataset/feed.h"

#include "base/arith.h"
#include "base/error.h"
#include "base/give.h"
#include "base/sys.h"
#include "base/thread.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* What a group has left to land when the next one is started: twice what the ring holds and more, so
 * that neither reading nor copying ever runs dry. */
#define LAST_BYTES (UINT64_C(160) << 20)

static int
has_failed(const struct onehop_feed *feed)
{
	return feed->failed_at != UINT64_MAX;
}

/* With the lock held. The first failing group's failure counts. */
static void
fail_at(struct onehop_feed *feed, uint64_t number, const struct onehop_error *error)
{
	if (number >= feed->failed_at)
		return;
	feed->failed_at = number;
	feed->failure = *error;
	pthread_cond_broadcast(&feed->to_planner);
	pthread_cond_broadcast(&feed->to_lander);
	pthread_cond_broadcast(&feed->to_verifier);
	pthread_cond_broadcast(&feed->to_consumer);
}

/* With the lock held, whenever something has begun or ended: is there nothing under way because the
 * consumer holds all buffers? */
static void
note_idle(struct onehop_feed *feed)
{
	int waits = feed->started < feed->planned &&
		    feed->slot[feed->started % feed->slots].busy;
	int idle = feed->started == feed->verified && waits && !feed->stop;
	if (idle && !feed->idle_since_ns)
		feed->idle_since_ns = oh_now_ns();
	if (!idle && feed->idle_since_ns) {
		feed->info.idle_ns += oh_now_ns() - feed->idle_since_ns;
		feed->idle_since_ns = 0;
	}
}

/* ------------------------------------------------------------------ the planner */

void
oh_feed_next_order(struct onehop_feed *feed)
{
	struct oh_feed_plan *plan = &feed->plan;
	while (plan->next_row == plan->order->info.rows &&
	       plan->order_number + 1 < feed->order_count) {
		plan->order = feed->orders[++plan->order_number];
		plan->next_row = 0;
	}
	feed->all_planned = plan->next_row == plan->order->info.rows;
}

static int
can_plan(const struct onehop_feed *feed)
{
	return !feed->all_planned && !has_failed(feed) &&
	       !feed->taken[feed->planned % feed->places];
}

/* With the lock held, released meanwhile. */
static void
plan_next(struct onehop_feed *feed)
{
	struct oh_feed_group *group = oh_feed_group_at(feed, feed->planned);
	const struct oh_feed_slot *slot = &feed->slot[feed->planned % feed->slots];
	struct onehop_fetch *fetches[OH_FEED_SIDES] = {NULL};
	struct onehop_error error = {0};
	pthread_mutex_unlock(&feed->lock);
	onehop_status status = oh_feed_plan_group(feed, group, slot, fetches, &error);
	pthread_mutex_lock(&feed->lock);
	memcpy(group->fetches, fetches, sizeof fetches);
	if (status) {
		fail_at(feed, feed->planned, &error);
		return;
	}
	feed->taken[feed->planned % feed->places] = 1;
	feed->planned++;
	oh_feed_next_order(feed);
	note_idle(feed);
}

static int
can_start(const struct onehop_feed *feed)
{
	return feed->started < feed->planned && feed->started <= feed->ending &&
	       !feed->slot[feed->started % feed->slots].busy;
}

/* Has what the consumer gave its stream ended? 1, or 0 if it has not within the time. With the lock
 * held, released meanwhile. */
static int
pass_gate(struct onehop_feed *feed, uint64_t timeout_ns)
{
	struct oh_feed_slot *slot = &feed->slot[feed->started % feed->slots];
	struct onehop_error error = {0};
	if (!slot->gated)
		return 1;
	pthread_mutex_unlock(&feed->lock);
	onehop_status status = onehop_transfer_wait(slot->gate, timeout_ns, NULL, &error);
	pthread_mutex_lock(&feed->lock);
	if (status == ONEHOP_TIMED_OUT)
		return 0;
	slot->gated = 0;
	if (status && !feed->stop)
		fail_at(feed, feed->started, &error);
	return !status;
}

/* With the lock held, released meanwhile. */
static void
start_next(struct onehop_feed *feed)
{
	struct oh_feed_group *group = oh_feed_group_at(feed, feed->started);
	struct onehop_error error = {0};
	onehop_status status = ONEHOP_OK;
	feed->slot[feed->started % feed->slots].busy = 1;
	pthread_mutex_unlock(&feed->lock);
	for (int side = 0; side < OH_FEED_SIDES && !status; side++)
		if (group->fetches[side])
			status = onehop_fetch_start(group->fetches[side], NULL, &error);
	pthread_mutex_lock(&feed->lock);
	if (status) {
		fail_at(feed, feed->started, &error);
		return;
	}
	feed->started++;
	note_idle(feed);
	pthread_cond_signal(&feed->to_lander);
}

static void *
planner_main(void *argument)
{
	struct onehop_feed *feed = argument;
	pthread_mutex_lock(&feed->lock);
	/* What was planned before a failure is still given. */
	while (!feed->stop && feed->started < feed->failed_at) {
		if (can_start(feed) && pass_gate(feed, can_plan(feed) ? 0 : ONEHOP_FOREVER)) {
			if (!feed->stop)
				start_next(feed);
		} else if (can_plan(feed)) {
			plan_next(feed);
		} else if (!can_start(feed)) {
			pthread_cond_wait(&feed->to_planner, &feed->lock);
		}
	}
	pthread_mutex_unlock(&feed->lock);
	return NULL;
}

/* ------------------------------------------------------------------ the lander */

/* Waits for a side's bytes and lets its fetch go. Outside the lock. */
static onehop_status
land_side(struct onehop_feed *feed, struct oh_feed_group *group, int side, uint64_t *read_bytes,
	  struct onehop_error *error)
{
	struct onehop_completion completion = {.size = sizeof completion};
	struct onehop_fetch *fetch = group->fetches[side];
	if (!fetch)
		return ONEHOP_OK;
	onehop_status status = onehop_fetch_wait(fetch, ONEHOP_FOREVER, &completion, error);
	/* Of mapped files nothing is read, but copied from where it lies. */
	*read_bytes += completion.read_bytes + completion.route_bytes[ONEHOP_ROUTE_MAPPED];
	pthread_mutex_lock(&feed->lock);
	group->fetches[side] = NULL;
	pthread_mutex_unlock(&feed->lock);
	onehop_fetch_destroy(fetch);
	return status;
}

/* With the lock held. */
static void
note_ending(struct onehop_feed *feed)
{
	feed->ending++;
	pthread_cond_signal(&feed->to_planner);
}

/* With the lock held: one more group can be given. */
static void
hand_over(struct onehop_feed *feed)
{
	feed->verified++;
	note_idle(feed);
	pthread_cond_signal(&feed->to_consumer);
}

/* With the lock held, released meanwhile. */
static void
land_next(struct onehop_feed *feed)
{
	struct oh_feed_group *group = oh_feed_group_at(feed, feed->landed);
	struct onehop_error error = {0};
	uint64_t read_bytes = 0;
	onehop_status status = ONEHOP_OK;
	pthread_mutex_unlock(&feed->lock);
	for (int side = 0; side < OH_FEED_SIDES; side++)
		if (group->fetches[side])
			oh_fetch_wait_until(group->fetches[side], LAST_BYTES);
	pthread_mutex_lock(&feed->lock);
	note_ending(feed);
	pthread_mutex_unlock(&feed->lock);
	for (int side = 0; side < OH_FEED_SIDES && !status; side++)
		status = land_side(feed, group, side, &read_bytes, &error);
	pthread_mutex_lock(&feed->lock);
	feed->info.read_bytes += read_bytes;
	if (status) {
		fail_at(feed, feed->landed, &error);
		return;
	}
	feed->info.payload_bytes += group->payload_bytes;
	feed->landed++;
	if (feed->verify)
		pthread_cond_signal(&feed->to_verifier);
	else
		hand_over(feed);
}

static void *
lander_main(void *argument)
{
	struct onehop_feed *feed = argument;
	pthread_mutex_lock(&feed->lock);
	while (!feed->stop && feed->failed_at > feed->landed) {
		if (feed->landed < feed->started)
			land_next(feed);
		else
			pthread_cond_wait(&feed->to_lander, &feed->lock);
	}
	pthread_mutex_unlock(&feed->lock);
	return NULL;
}

/* ------------------------------------------------------------------ the verifier */

/* With the lock held, released meanwhile. */
static void
verify_next(struct onehop_feed *feed)
{
	struct oh_feed_group *group = oh_feed_group_at(feed, feed->verified);
	const struct oh_feed_slot *slot = &feed->slot[feed->verified % feed->slots];
	struct onehop_error error = {0};
	uint64_t damaged = 0;
	pthread_mutex_unlock(&feed->lock);
	onehop_status status = oh_feed_verify(feed, group, slot, &damaged, &error);
	pthread_mutex_lock(&feed->lock);
	if (status) {
		fail_at(feed, feed->verified, &error);
		return;
	}
	feed->info.damaged += damaged;
	hand_over(feed);
}

static void *
verifier_main(void *argument)
{
	struct onehop_feed *feed = argument;
	pthread_mutex_lock(&feed->lock);
	while (!feed->stop && feed->failed_at > feed->verified) {
		if (feed->verified < feed->landed)
			verify_next(feed);
		else
			pthread_cond_wait(&feed->to_verifier, &feed->lock);
	}
	pthread_mutex_unlock(&feed->lock);
	return NULL;
}

/* ------------------------------------------------------------------ the consumer */

int
oh_feed_is_child(const struct onehop_feed *feed, struct onehop_error *error)
{
	if (feed->pid == oh_sys.getpid())
		return 0;
	oh_fail(error, ONEHOP_FORKED, "the feed was made before fork(), and the child has no thread "
				      "of it");
	oh_remedy(error, "make a feed in the child, of a dataset opened there");
	return 1;
}

/* With the lock held: what next says now; BUSY stands for "wait" too, told apart by *waits. */
static onehop_status
look(const struct onehop_feed *feed, int *waits, struct onehop_error *error)
{
	*waits = 0;
	if (feed->given < feed->verified)
		return ONEHOP_OK;
	if (feed->given >= feed->failed_at) {
		if (error)
			*error = feed->failure;
		return feed->failure.status;
	}
	if (feed->all_planned && feed->given == feed->planned)
		return oh_fail(error, ONEHOP_END, "the batches of all orders have been given");
	if (feed->slot[feed->given % feed->slots].out) {
		oh_fail(error, ONEHOP_BUSY, "all %u buffers of the feed are out", feed->slots);
		oh_remedy(error, "release one");
		return ONEHOP_BUSY;
	}
	*waits = 1;
	return ONEHOP_BUSY;
}

static struct timespec
after(uint64_t timeout_ns)
{
	uint64_t at;
	if (oh_add(oh_now_ns(), timeout_ns, &at))
		at = INT64_MAX;
	return (struct timespec){(time_t)(at / 1000000000u), (long)(at % 1000000000u)};
}

/* With the lock held. */
static onehop_status
wait_for_group(struct onehop_feed *feed, uint64_t timeout_ns, struct onehop_error *error)
{
	struct timespec until = after(timeout_ns);
	uint64_t begun_ns = oh_now_ns();
	onehop_status status;
	int waits, late = 0;
	for (;;) {
		status = look(feed, &waits, error);
		if (!waits)
			break;
		if (late || timeout_ns == 0) {
			status = oh_fail(error, ONEHOP_TIMED_OUT, "no group has landed in time");
			break;
		}
		if (timeout_ns == ONEHOP_FOREVER)
			pthread_cond_wait(&feed->to_consumer, &feed->lock);
		else
			late = pthread_cond_timedwait(&feed->to_consumer, &feed->lock, &until) ==
			       ETIMEDOUT;
	}
	feed->info.waited_ns += oh_now_ns() - begun_ns;
	return status;
}

static void
give(struct onehop_feed *feed, struct onehop_group *out)
{
	uint32_t index = (uint32_t)(feed->given % feed->slots);
	struct oh_feed_slot *slot = &feed->slot[index];
	const struct oh_feed_group *group = oh_feed_group_at(feed, feed->given);
	struct onehop_group full = {
		.slot = index,
		.first_batch = group->first_batch,
		.batches = group->batches,
		.rows = group->rows,
		.samples = group->samples,
		.pad = group->pad,
		.offsets = group->offsets,
		.bytes = group->bytes,
		.device_buffer = slot->buffers[OH_FEED_DEVICE],
		.host_buffer = slot->buffers[OH_FEED_HOST],
		.order = group->order,
	};
	slot->out = 1;
	slot->group = feed->given++;
	feed->info.rows += group->rows;
	oh_give(out, &full, sizeof full);
}

onehop_status
onehop_feed_next(struct onehop_feed *feed, uint64_t timeout_ns, struct onehop_group *group,
		 struct onehop_error *error)
{
	if (oh_feed_is_child(feed, error))
		return ONEHOP_FORKED;
	if (!group || group->size < offsetof(struct onehop_group, order))
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT,
			       "group is NULL or its size is not filled in");
	pthread_mutex_lock(&feed->lock);
	onehop_status status = wait_for_group(feed, timeout_ns, error);
	if (!status)
		give(feed, group);
	pthread_mutex_unlock(&feed->lock);
	return status;
}

onehop_status
oh_feed_start_gate(struct oh_feed_slot *slot, uint32_t flags, uint64_t stream,
		   struct onehop_error *error)
{
	struct onehop_start_options options;
	if (!(flags & ONEHOP_START_AFTER_STREAM))
		return ONEHOP_OK;
	onehop_start_options_init(&options);
	options.flags = flags;
	options.after_stream = stream;
	onehop_status status = onehop_transfer_start(slot->gate, &options, error);
	slot->gated = !status;
	return status;
}

onehop_status
onehop_feed_release(struct onehop_feed *feed, uint32_t index, uint32_t flags, uint64_t stream,
		    struct onehop_error *error)
{
	if (oh_feed_is_child(feed, error))
		return ONEHOP_FORKED;
	if (flags & ~(uint32_t)ONEHOP_START_AFTER_STREAM)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "unknown start flags 0x%x", flags);
	pthread_mutex_lock(&feed->lock);
	struct oh_feed_slot *slot = &feed->slot[index < feed->slots ? index : 0];
	onehop_status status;
	if (index >= feed->slots || !slot->out)
		status = oh_fail(error, ONEHOP_INVALID_ARGUMENT,
				 "slot %u holds no group that was given", index);
	else
		status = oh_feed_start_gate(slot, flags, stream, error);
	if (!status) {
		slot->out = slot->busy = 0;
		feed->taken[slot->group % feed->places] = 0;
		note_idle(feed);
		pthread_cond_signal(&feed->to_planner);
	}
	pthread_mutex_unlock(&feed->lock);
	return status;
}

onehop_status
onehop_feed_query(const struct onehop_feed *feed, struct onehop_feed_info *info)
{
	struct onehop_feed *own = (struct onehop_feed *)(uintptr_t)feed;
	if (oh_feed_is_child(feed, NULL))
		return ONEHOP_FORKED;
	pthread_mutex_lock(&own->lock);
	note_idle(own);
	struct onehop_feed_info full = feed->info;
	if (feed->idle_since_ns)
		full.idle_ns += oh_now_ns() - feed->idle_since_ns;
	pthread_mutex_unlock(&own->lock);
	return oh_give(info, &full, sizeof full);
}

/* ------------------------------------------------------------------ beginning and end */

onehop_status
oh_feed_start(struct onehop_feed *feed, struct onehop_error *error)
{
	pthread_t *const threads[] = {&feed->planner, &feed->lander, &feed->verifier};
	static void *(*const mains[])(void *) = {planner_main, lander_main, verifier_main};
	uint32_t count = feed->verify ? 3 : 2;
	int failed = 0;
	while (feed->threads < count && !failed) {
		failed = oh_thread_start(threads[feed->threads], mains[feed->threads], feed);
		feed->threads += !failed;
	}
	if (!failed)
		return ONEHOP_OK;
	oh_fail_errno(error, failed, "cannot start the feed's threads");
	return error ? error->status : ONEHOP_IO;
}

void
oh_feed_stop(struct onehop_feed *feed)
{
	pthread_mutex_lock(&feed->lock);
	feed->stop = 1;
	for (uint32_t i = 0; i < feed->places; i++)
		for (int side = 0; side < OH_FEED_SIDES; side++)
			if (feed->groups[i].fetches[side])
				oh_fetch_cancel(feed->groups[i].fetches[side]);
	for (uint32_t i = 0; i < feed->slots; i++)
		if (feed->slot[i].gate)
			onehop_transfer_cancel(feed->slot[i].gate);
	pthread_cond_broadcast(&feed->to_planner);
	pthread_cond_broadcast(&feed->to_lander);
	pthread_cond_broadcast(&feed->to_verifier);
	pthread_mutex_unlock(&feed->lock);
	if (feed->threads > 0)
		pthread_join(feed->planner, NULL);
	if (feed->threads > 1)
		pthread_join(feed->lander, NULL);
	if (feed->threads > 2)
		pthread_join(feed->verifier, NULL);
}
