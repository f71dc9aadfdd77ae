/* onehop stream: a dataset's epochs, timed, beside the link's ceiling.
 *
 * First every payload of the fields that are streamed is moved to the device once and held against
 * its CRC; only then are epochs timed: no rate is printed for bytes that were not checked. The
 * ceiling is measured in the same run. Epochs follow each other in one feed, so that nothing lies
 * between them; the consumer gives each group back at once.
 */
#include "cli.h"
#include "progress.h"
#include "signals.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct usage stream_usage = {
	.name = "stream",
	.operands = "DATASET...",
	.summary = "stream a dataset's samples to a device, and say how fast",
	.about = "Streams the samples of tar shards that have an index (see onehop index) onto the\n"
		 "device, shuffled, epoch after epoch. DATASET is a shard or a folder of them. Each\n"
		 "payload is checked by its CRC once before epochs are timed.\n",
	.words_min = 1,
	.words_max = INT_MAX,
	.option_count = 13,
	.options = {OPT_DEVICE, OPT_BATCH, OPT_SHUFFLE, OPT_SEED, OPT_RANK, OPT_FIELD, OPT_RING,
		    OPT_EPOCHS, OPT_SECONDS, OPT_VERIFY_SAMPLES, OPT_JSON, OPT_QUIET, OPT_OPTION},
};

#define COPY_PIECE (UINT64_C(16) << 20)
#define COPY_TOTAL (UINT64_C(4) << 30)
/* How long one wait may last. */
#define TICK_NS UINT64_C(100000000)

struct streaming {
	struct request request;
	struct onehop_runtime *runtime;
	const char *device;
	struct onehop_dataset *dataset;
	struct onehop_dataset_info info;
	struct onehop_feed_field *fields;
	uint64_t field_count;
	struct onehop_order **orders; /* of the epochs that were begun */
	uint64_t order_count;
	struct progress progress;
	/* What came out. */
	double ceiling;        /* bytes a second; 0 for the host */
	uint64_t verified;     /* bytes */
	struct onehop_order_info order;
	struct onehop_feed_info feed;
	uint64_t epochs;
	uint64_t ns;
	uint64_t first_ns;     /* until the first group was there */
	struct pressure_span pressure;
};

/* ------------------------------------------------------------------------------------------- */
/* What to stream */

static onehop_status
add_field(struct streaming *s, const char *name, struct onehop_error *error)
{
	struct onehop_field field = {.size = sizeof field};
	char shown[SHOWN];
	for (uint64_t i = 0; onehop_dataset_field_at(s->dataset, i, &field) == ONEHOP_OK; i++) {
		if (field.name.bytes != strlen(name) ||
		    memcmp(field.name.text, name, field.name.bytes) != 0)
			continue;
		s->fields[s->field_count++].field = (uint32_t)i;
		return ONEHOP_OK;
	}
	return fail(error, ONEHOP_INVALID_ARGUMENT, 0, "the dataset has no field %s",
		    show(shown, name, strlen(name)));
}

static onehop_status
open_dataset(struct streaming *s, struct onehop_error *error)
{
	const struct request *request = &s->request;
	onehop_status status = job_runtime(request, &s->runtime, error);
	if (status)
		return status;
	s->device = job_device(request, s->runtime);
	status = onehop_dataset_open(s->runtime, request->words, (uint64_t)request->word_count,
				     &s->dataset, error);
	if (status)
		return status;
	s->info.size = sizeof s->info;
	onehop_dataset_query(s->dataset, &s->info);
	s->fields = calloc(request->pattern_count + 1, sizeof *s->fields);
	if (!s->fields)
		return fail(error, ONEHOP_NO_MEMORY, 0, "no memory for the fields' names");
	for (uint64_t i = 0; i < request->pattern_count && !status; i++)
		status = add_field(s, request->patterns[i], error);
	return status;
}

static onehop_status
make_feed(struct streaming *s, const struct onehop_order *order, int verify,
	  struct onehop_feed **feed, struct onehop_error *error)
{
	struct onehop_feed_options options;
	onehop_feed_options_init(&options);
	options.device = s->device;
	options.verify = (uint32_t)verify;
	options.ring_bytes = s->request.ring;
	options.fields = s->fields;
	options.field_count = s->field_count;
	return onehop_feed_create(s->dataset, order, &options, feed, error);
}

/* ------------------------------------------------------------------------------------------- */
/* Streaming */

/* The next group, taken and given back. CANCELLED after Ctrl-C, END at the end. */
static onehop_status
pass_group(struct streaming *s, struct onehop_feed *feed, struct onehop_group *group,
	   struct onehop_error *error)
{
	onehop_status status;
	do {
		if (signals_caught())
			return fail(error, ONEHOP_CANCELLED, 0, "cancelled");
		status = onehop_feed_next(feed, TICK_NS, group, error);
	} while (status == ONEHOP_TIMED_OUT);
	if (!status)
		status = onehop_feed_release(feed, group->slot, 0, 0, error);
	s->feed.size = sizeof s->feed;
	onehop_feed_query(feed, &s->feed);
	return status;
}

/* Every payload, once, in the order of the shards. */
static onehop_status
verify(struct streaming *s, struct onehop_error *error)
{
	struct onehop_order_options options;
	struct onehop_group group = {.size = sizeof group};
	struct onehop_order *order;
	struct onehop_feed *feed;
	onehop_order_options_init(&options);
	options.shuffle = ONEHOP_SHUFFLE_NONE;
	options.remainder = ONEHOP_REMAINDER_UNEVEN;
	onehop_status status = onehop_order_create(s->dataset, &options, &order, error);
	if (status)
		return status;
	status = make_feed(s, order, 1, &feed, error);
	if (!status) {
		progress_begin(&s->progress, "verifying", given(&s->request, OPT_QUIET));
		while (!(status = pass_group(s, feed, &group, error)))
			progress_draw(&s->progress, s->feed.payload_bytes, s->info.payload_bytes);
		progress_end(&s->progress);
		s->verified = s->feed.payload_bytes;
		onehop_feed_destroy(feed);
	}
	onehop_order_destroy(order);
	return status == ONEHOP_END ? ONEHOP_OK : status;
}

/* The order of one more epoch. */
static onehop_status
next_order(struct streaming *s, struct onehop_order **order, struct onehop_error *error)
{
	const struct request *request = &s->request;
	struct onehop_order_options options;
	struct onehop_order **grown =
		realloc(s->orders, (s->order_count + 1) * sizeof *s->orders);
	if (!grown)
		return fail(error, ONEHOP_NO_MEMORY, 0, "no memory for the epochs' orders");
	s->orders = grown;
	onehop_order_options_init(&options);
	options.shuffle = request->shuffle;
	options.seed = request->seed;
	options.batch = request->batch;
	options.rank = request->rank;
	options.world = request->world;
	options.epoch = s->order_count;
	onehop_status status = onehop_order_create(s->dataset, &options, order, error);
	if (!status)
		s->orders[s->order_count++] = *order;
	return status;
}

static int
wants_more(const struct streaming *s, uint64_t begun_ns)
{
	if (!given(&s->request, OPT_SECONDS))
		return s->order_count < s->request.epochs;
	return (now_ns() - begun_ns) / 1000000000u < s->request.seconds;
}

/* One feed over all epochs: each is appended when the one before has begun. */
static onehop_status
run_epochs(struct streaming *s, struct onehop_feed *feed, uint64_t begun_ns,
	   struct onehop_error *error)
{
	struct onehop_group group = {.size = sizeof group};
	struct onehop_order *order;
	onehop_status status;
	while (!(status = pass_group(s, feed, &group, error))) {
		if (!s->first_ns)
			s->first_ns = now_ns() - begun_ns;
		if (group.order + 1 < s->order_count || !wants_more(s, begun_ns))
			continue;
		status = next_order(s, &order, error);
		if (!status)
			status = onehop_feed_append(feed, order, error);
		if (status)
			return status;
	}
	return status == ONEHOP_END ? ONEHOP_OK : status;
}

static onehop_status
stream(struct streaming *s, struct onehop_error *error)
{
	struct onehop_order *order;
	struct onehop_feed *feed;
	onehop_status status = next_order(s, &order, error);
	if (status)
		return status;
	s->order.size = sizeof s->order;
	onehop_order_query(order, &s->order);
	if (!s->order.rows)
		return fail(error, ONEHOP_INVALID_ARGUMENT, 0,
			    "%llu samples are no whole batch of %llu for each of %u ranks",
			    (unsigned long long)s->info.samples,
			    (unsigned long long)s->request.batch, s->request.world);
	pressure_begin(&s->pressure);
	uint64_t begun_ns = now_ns();
	status = make_feed(s, order, given(&s->request, OPT_VERIFY_SAMPLES), &feed, error);
	if (!status) {
		status = run_epochs(s, feed, begun_ns, error);
		s->ns = now_ns() - begun_ns;
		onehop_feed_destroy(feed);
	}
	s->epochs = s->order_count;
	pressure_end(&s->pressure);
	return status;
}

static onehop_status
measure(struct streaming *s, struct onehop_error *error)
{
	onehop_status status = open_dataset(s, error);
	if (!status && !s->info.has_checksums) {
		status = fail(error, ONEHOP_INVALID_ARGUMENT, 0,
			      "not all shards have checksums, and no rate is given for bytes that "
			      "were not checked");
		snprintf(error->remedy, sizeof error->remedy,
			 "make their indexes again with checksums: onehop index --replace");
	}
	if (!status && strcmp(s->device, "host") != 0)
		status = onehop_measure_copy(s->runtime, s->device, COPY_PIECE, COPY_TOTAL,
					     &s->ceiling, error);
	if (!status)
		status = verify(s, error);
	return status ? status : stream(s, error);
}

/* ------------------------------------------------------------------------------------------- */
/* Output */

static double
rate(const struct streaming *s)
{
	return s->ns ? (double)s->feed.payload_bytes / (double)s->ns : 0;
}

static double
part(uint64_t of, uint64_t all)
{
	return all ? (double)of / (double)all : 0;
}

static void
print_fields(struct out *out, const struct streaming *s)
{
	struct onehop_field field = {.size = sizeof field};
	char least[SIZE_TEXT], most[SIZE_TEXT];
	for (uint64_t i = 0; i < s->info.fields; i++) {
		onehop_dataset_field_at(s->dataset, i, &field);
		label(out, i ? "" : "fields");
		out_name(out, field.name.text, field.name.bytes);
		out_format(out, "  %s", field.dtype ? field.dtype : "bytes");
		for (uint32_t k = 0; field.dtype && k < field.rank; k++)
			out_format(out, "%s%llu%s", k ? ", " : " [",
				   (unsigned long long)field.shape[k],
				   k + 1 == field.rank ? "]" : "");
		out_format(out, "  %s to %s\n", size_text(least, field.min_bytes),
			   size_text(most, field.max_bytes));
	}
}

static void
print(struct out *out, const struct streaming *s)
{
	static const char *const levels[] = {"none", "shard", "block", "sample"};
	char number[SIZE_TEXT], size[SIZE_TEXT], time[SIZE_TEXT];
	label(out, "dataset");
	out_format(out, "%s samples in %llu shards, %s\n", grouped(number, s->info.samples),
		   (unsigned long long)s->info.shards, size_text(size, s->info.payload_bytes));
	print_fields(out, s);
	label(out, "order");
	out_format(out, "shuffle %s, seed %llu, batches of %llu, rank %u of %u\n",
		   levels[s->request.shuffle], (unsigned long long)s->request.seed,
		   (unsigned long long)s->request.batch, s->request.rank, s->request.world);
	label(out, "verified");
	out_format(out, "%s by their CRC-32C, on %s\n", size_text(size, s->verified), s->device);
	if (s->ceiling > 0) {
		label(out, "ceiling");
		out_format(out, "%.2f GB/s, pinned copy\n", s->ceiling / 1e9);
	}
	label(out, "stream");
	out_format(out, "%.2f GB/s", rate(s));
	if (s->ceiling > 0)
		out_format(out, ", %.3f of the ceiling", rate(s) * 1e9 / s->ceiling);
	out_format(out, "; %s samples/s",
		   grouped(number, (uint64_t)((double)s->feed.rows * 1e9 / (double)s->ns)));
	out_format(out, "%s\n", given(&s->request, OPT_VERIFY_SAMPLES) ? ", verified" : "");
	label(out, "");
	out_format(out, "%llu epoch%s in %s; the first batch after ",
		   (unsigned long long)s->epochs, s->epochs == 1 ? "" : "s",
		   time_text(time, s->ns));
	out_format(out, "%s\n", time_text(time, s->first_ns));
	label(out, "read");
	out_format(out, "%.3f bytes for each byte of payload\n",
		   part(s->feed.read_bytes, s->feed.payload_bytes));
	label(out, "waited");
	out_format(out, "%.1f %% of the time for bytes; the feed %.1f %% for a free buffer\n",
		   100 * part(s->feed.waited_ns, s->ns), 100 * part(s->feed.idle_ns, s->ns));
	label(out, "buffers");
	out_format(out, "%s in %u groups\n",
		   size_text(size, s->feed.device_bytes + s->feed.host_bytes), s->feed.groups);
	if (s->feed.unpinned[0]) {
		label(out, "unpinned");
		out_format(out, "%s\n", s->feed.unpinned);
	}
	print_pressure(out, &s->pressure);
}

static void
print_json(struct out *out, const struct streaming *s)
{
	struct json json;
	json_begin(&json, out);
	json_text(&json, "device", s->device);
	json_number(&json, "shards", s->info.shards);
	json_number(&json, "samples", s->info.samples);
	json_number(&json, "payload_bytes", s->info.payload_bytes);
	json_number(&json, "verified_bytes", s->verified);
	json_number(&json, "batch", s->request.batch);
	json_number(&json, "batches", s->order.batches);
	json_number(&json, "epochs", s->epochs);
	json_number(&json, "ns", s->ns);
	json_number(&json, "first_batch_ns", s->first_ns);
	if (s->ceiling > 0)
		json_double(&json, "ceiling_gb_per_s", s->ceiling / 1e9, 3);
	else
		json_null(&json, "ceiling_gb_per_s");
	json_double(&json, "gb_per_s", rate(s), 3);
	if (s->ceiling > 0)
		json_double(&json, "of_ceiling", rate(s) * 1e9 / s->ceiling, 4);
	else
		json_null(&json, "of_ceiling");
	json_double(&json, "samples_per_s", (double)s->feed.rows * 1e9 / (double)s->ns, 1);
	json_bool(&json, "verified_while_timed", given(&s->request, OPT_VERIFY_SAMPLES));
	json_number(&json, "streamed_bytes", s->feed.payload_bytes);
	json_number(&json, "read_bytes", s->feed.read_bytes);
	json_number(&json, "waited_ns", s->feed.waited_ns);
	json_number(&json, "idle_ns", s->feed.idle_ns);
	json_number(&json, "device_buffer_bytes", s->feed.device_bytes);
	json_number(&json, "host_buffer_bytes", s->feed.host_bytes);
	json_number(&json, "host_pinned_bytes", s->feed.host_pinned_bytes);
	json_string(&json, "unpinned", s->feed.unpinned, strlen(s->feed.unpinned));
	json_pressure(&json, &s->pressure);
	json_end(&json);
}

static void
drop(struct streaming *s)
{
	for (uint64_t i = 0; i < s->order_count; i++)
		onehop_order_destroy(s->orders[i]);
	free(s->orders);
	free(s->fields);
	onehop_dataset_close(s->dataset);
	onehop_runtime_destroy(s->runtime);
	request_drop(&s->request);
}

int
cmd_stream(struct out *out, int argc, char **argv)
{
	struct streaming s = {0};
	struct onehop_error error = {0};
	int go = request_parse(&s.request, &stream_usage, out, argc, argv);
	if (go != GO_ON)
		return go;
	onehop_status status = measure(&s, &error);
	if (!status && given(&s.request, OPT_JSON))
		print_json(out, &s);
	else if (!status)
		print(out, &s);
	drop(&s);
	return status ? say_error(&error) : EXIT_DONE;
}
