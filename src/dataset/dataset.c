/* What is in a dataset, sample by sample and in columns, and the order of an epoch over it.
 *
 * All is looked up in the indexes in place. Nothing changes after opening, so any thread may ask.
 */
#include "dataset/dataset.h"

#include "base/arith.h"
#include "base/error.h"
#include "base/give.h"
#include "dataset/order.h"

#include <string.h>

_Static_assert(ONEHOP_NO_TIME == OH_SHARD_NO_TIME && ONEHOP_NO_NAME == OH_SHARD_NONE, "as in files");

onehop_status
onehop_dataset_query(const struct onehop_dataset *dataset, struct onehop_dataset_info *info)
{
	return oh_give(info, &dataset->info, sizeof dataset->info);
}

onehop_status
onehop_dataset_shard_at(const struct onehop_dataset *dataset, uint64_t index,
			struct onehop_shard *out)
{
	if (index >= dataset->info.shards)
		return ONEHOP_OUT_OF_RANGE;
	const struct oh_dataset_shard *shard = &dataset->shards[index];
	struct onehop_shard full = {
		.alignment_bytes = shard->view.alignment_bytes,
		.path = shard->path,
		.first_sample = dataset->firsts[index],
		.samples = shard->view.samples,
		.bytes = shard->view.shard_bytes,
		.file = shard->file,
	};
	return oh_give(out, &full, sizeof full);
}

/* A type as the public structs spell it. */
static void
tell_type(const struct oh_shard_type *type, struct onehop_type *out)
{
	uint32_t element;
	out->rank = type->rank;
	out->dtype = oh_shard_dtype_name(type->dtype, &element);
	out->data_offset = type->data_offset;
	memcpy(out->shape, type->shape, type->rank * sizeof *out->shape);
}

onehop_status
onehop_dataset_type_at(const struct onehop_dataset *dataset, uint64_t index,
		       struct onehop_type *out)
{
	struct onehop_type full = {0};
	if (index >= dataset->types.count)
		return ONEHOP_OUT_OF_RANGE;
	tell_type((const void *)dataset->types.at[index].text, &full);
	return oh_give(out, &full, sizeof full);
}

onehop_status
onehop_dataset_field_at(const struct onehop_dataset *dataset, uint64_t index,
			struct onehop_field *out)
{
	if (index >= dataset->fields.count)
		return ONEHOP_OUT_OF_RANGE;
	const struct oh_field_facts *facts = &dataset->facts[index];
	struct onehop_type type = {0};
	if (facts->type && !facts->is_mixed)
		tell_type((const void *)dataset->types.at[facts->type - 1].text, &type);
	struct onehop_field full = {
		.rank = type.rank,
		.name = dataset->fields.at[index],
		.dtype = type.dtype,
		.data_offset = type.data_offset,
		.parts = facts->parts,
		.min_bytes = facts->min_bytes,
		.max_bytes = facts->max_bytes,
	};
	memcpy(full.shape, type.shape, sizeof full.shape);
	return oh_give(out, &full, sizeof full);
}

static onehop_status
tell_name(const struct oh_ids *names, uint64_t index, struct onehop_name *out)
{
	if (index >= names->count)
		return ONEHOP_OUT_OF_RANGE;
	*out = names->at[index];
	return ONEHOP_OK;
}

onehop_status
onehop_dataset_episode_at(const struct onehop_dataset *dataset, uint64_t index,
			  struct onehop_name *name)
{
	return tell_name(&dataset->episodes, index, name);
}

onehop_status
onehop_dataset_stream_at(const struct onehop_dataset *dataset, uint64_t index,
			 struct onehop_name *name)
{
	return tell_name(&dataset->streams, index, name);
}

/* ------------------------------------------------------------------ samples */

struct onehop_name
oh_dataset_key(const struct onehop_dataset *dataset, uint64_t sample)
{
	uint64_t shard = oh_dataset_shard_of(dataset, sample);
	const struct oh_shard_view *view = &dataset->shards[shard].view;
	const struct oh_shard_sample *entry = view->sample + (sample - dataset->firsts[shard]);
	return (struct onehop_name){view->keys + entry[0].key, entry[1].key - entry[0].key};
}

uint64_t
oh_dataset_sample_with(const struct onehop_dataset *dataset, uint64_t shard, uint64_t offset)
{
	const struct oh_shard_view *view = &dataset->shards[shard].view;
	uint64_t low = 0, high = view->samples ? view->samples - 1 : 0;
	while (low < high) {
		uint64_t middle = low + (high - low + 1) / 2;
		if (view->part[view->sample[middle].first_part].offset <= offset)
			low = middle;
		else
			high = middle - 1;
	}
	return dataset->firsts[shard] + low;
}

/* When a sample was taken, in the dataset's numbers. */
static struct oh_shard_time
time_of(const struct oh_dataset_shard *shard, uint64_t index)
{
	struct oh_shard_time time = {OH_SHARD_NO_TIME, OH_SHARD_NONE, OH_SHARD_NONE, 1, 0};
	if (!shard->view.time)
		return time;
	time = shard->view.time[index];
	if (time.episode != OH_SHARD_NONE)
		time.episode = shard->episodes[time.episode];
	if (time.stream != OH_SHARD_NONE)
		time.stream = shard->streams[time.stream];
	return time;
}

onehop_status
onehop_dataset_sample_at(const struct onehop_dataset *dataset, uint64_t index,
			 struct onehop_sample *out)
{
	const struct oh_shard_part *parts;
	uint64_t number, count;
	if (index >= dataset->info.samples)
		return ONEHOP_OUT_OF_RANGE;
	const struct oh_dataset_shard *shard =
		oh_dataset_sample(dataset, index, &number, &parts, &count);
	struct oh_shard_time time = time_of(shard, index - dataset->firsts[number]);
	const struct oh_shard_part *last = parts + count - 1;
	struct onehop_sample full = {
		.parts = (uint32_t)count,
		.shard = number,
		.key = oh_dataset_key(dataset, index),
		.offset = parts->offset,
		.bytes = last->offset + last->bytes - parts->offset,
		.timestamp_ns = time.timestamp_ns,
		.episode = time.episode,
		.stream = time.stream,
		.rows = time.rows,
	};
	return oh_give(out, &full, sizeof full);
}

onehop_status
onehop_dataset_part_at(const struct onehop_dataset *dataset, uint64_t sample, uint64_t index,
		       struct onehop_part *out)
{
	const struct oh_shard_part *parts;
	uint64_t number, count;
	struct onehop_type type = {0};
	if (sample >= dataset->info.samples)
		return ONEHOP_OUT_OF_RANGE;
	const struct oh_dataset_shard *shard =
		oh_dataset_sample(dataset, sample, &number, &parts, &count);
	if (index >= count)
		return ONEHOP_OUT_OF_RANGE;
	const struct oh_shard_part *part = parts + index;
	const int64_t *times = shard->view.part_time;
	if (part->type)
		tell_type(&shard->view.type[part->type - 1], &type);
	struct onehop_part full = {
		.field = shard->fields[part->field],
		.crc32c = shard->view.flags & OH_SHARD_CHECKSUMS ? part->crc32c : 0,
		.rank = type.rank,
		.shard = number,
		.offset = part->offset,
		.bytes = part->bytes,
		.dtype = type.dtype,
		.data_offset = type.data_offset,
		.timestamp_ns = times ? times[part - shard->view.part] : ONEHOP_NO_TIME,
	};
	memcpy(full.shape, type.shape, sizeof full.shape);
	return oh_give(out, &full, sizeof full);
}

/* ------------------------------------------------------------------ columns */

static onehop_status
past_the_end(const struct onehop_dataset *dataset, uint64_t sample, struct onehop_error *error)
{
	return oh_fail(error, ONEHOP_OUT_OF_RANGE, "sample %llu: the dataset has %llu",
		       (unsigned long long)sample, (unsigned long long)dataset->info.samples);
}

/* The caller's struct, of whatever version, as ours. */
#define TAKE(ours, theirs)                                                                         \
	do {                                                                                       \
		memset(&(ours), 0, sizeof(ours));                                                  \
		memcpy(&(ours), (theirs), oh_min(sizeof(ours), (theirs)->size));                   \
	} while (0)

onehop_status
onehop_dataset_samples(const struct onehop_dataset *dataset, const uint64_t *samples,
		       uint64_t count, const struct onehop_sample_columns *columns,
		       struct onehop_error *error)
{
	struct onehop_sample_columns to;
	TAKE(to, columns);
	for (uint64_t i = 0; i < count; i++)
		if (samples[i] >= dataset->info.samples)
			return past_the_end(dataset, samples[i], error);
	for (uint64_t i = 0; i < count; i++) {
		uint64_t shard = oh_dataset_shard_of(dataset, samples[i]);
		struct oh_shard_time time = time_of(&dataset->shards[shard],
						    samples[i] - dataset->firsts[shard]);
		if (to.shard)
			to.shard[i] = shard;
		if (to.timestamp_ns)
			to.timestamp_ns[i] = time.timestamp_ns;
		if (to.episode)
			to.episode[i] = time.episode;
		if (to.stream)
			to.stream[i] = time.stream;
		if (to.rows)
			to.rows[i] = time.rows;
	}
	return ONEHOP_OK;
}

static const struct oh_shard_part *
find_part(const struct oh_shard_part *parts, uint64_t count, uint16_t field)
{
	for (uint64_t i = 0; i < count; i++)
		if (parts[i].field == field)
			return &parts[i];
	return NULL;
}

onehop_status
onehop_dataset_parts(const struct onehop_dataset *dataset, uint64_t field, const uint64_t *samples,
		     uint64_t count, const struct onehop_part_columns *columns,
		     struct onehop_error *error)
{
	struct onehop_part_columns to;
	TAKE(to, columns);
	if (field >= dataset->fields.count)
		return oh_fail(error, ONEHOP_OUT_OF_RANGE, "field %llu: the dataset has %llu",
			       (unsigned long long)field,
			       (unsigned long long)dataset->fields.count);
	for (uint64_t i = 0; i < count; i++)
		if (samples[i] >= dataset->info.samples)
			return past_the_end(dataset, samples[i], error);
	for (uint64_t i = 0; i < count; i++) {
		const struct oh_shard_part *parts;
		uint64_t number, held;
		const struct oh_dataset_shard *shard =
			oh_dataset_sample(dataset, samples[i], &number, &parts, &held);
		const struct oh_shard_part *part =
			find_part(parts, held, shard->local_fields[field]);
		int summed = (shard->view.flags & OH_SHARD_CHECKSUMS) != 0;
		if (to.shard)
			to.shard[i] = number;
		if (to.offset)
			to.offset[i] = part ? part->offset : 0;
		if (to.bytes)
			to.bytes[i] = part ? part->bytes : UINT64_MAX;
		if (to.crc32c)
			to.crc32c[i] = part && summed ? part->crc32c : 0;
		if (to.type)
			to.type[i] = part ? shard->types[part->type] : 0;
	}
	return ONEHOP_OK;
}

/* ------------------------------------------------------------------ order */

struct listing {
	const struct onehop_dataset *dataset;
	const uint64_t *samples;
};

static void
give_spans(const void *context, uint64_t first, uint64_t count, struct oh_span *spans)
{
	const struct listing *listing = context;
	for (uint64_t i = 0; i < count; i++) {
		const struct oh_shard_part *parts;
		uint64_t held;
		uint64_t sample = listing->samples ? listing->samples[first + i] : first + i;
		oh_dataset_sample(listing->dataset, sample, &spans[i].shard, &parts, &held);
		spans[i].begin = parts->offset;
		spans[i].end = parts[held - 1].offset + parts[held - 1].bytes;
	}
}

onehop_status
onehop_order_create(const struct onehop_dataset *dataset,
		    const struct onehop_order_options *theirs, struct onehop_order **order,
		    struct onehop_error *error)
{
	struct onehop_order_options options;
	if (!dataset || !order)
		return oh_fail(error, ONEHOP_INVALID_ARGUMENT, "dataset or order is NULL");
	onehop_order_options_init(&options);
	if (theirs)
		memcpy(&options, theirs, oh_min(sizeof options, theirs->size));
	uint64_t count = options.samples ? options.sample_count : dataset->info.samples;
	for (uint64_t i = 0; options.samples && i < count; i++)
		if (options.samples[i] >= dataset->info.samples)
			return past_the_end(dataset, options.samples[i], error);
	struct listing listing = {dataset, options.samples};
	return oh_order_build(&options, count, give_spans, &listing, order, error);
}
