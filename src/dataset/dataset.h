/* What the dataset's files share: shards, their indexes, and one numbering of fields, types, episodes
 * and streams over all of them. All entries of all indexes were checked when it was opened, so that
 * nothing here checks again.
 */
#ifndef OH_DATASET_DATASET_H
#define OH_DATASET_DATASET_H

#include "dataset/ids.h"
#include "format/shard.h"

#include <onehop/dataset.h>

/* A field that a shard does not have. */
#define OH_NO_FIELD UINT16_MAX

struct oh_dataset_shard {
	struct onehop_file *file;
	const char *path; /* the file's */
	void *index;      /* its bytes */
	uint64_t index_bytes;
	struct oh_shard_view view;
	/* From the shard's numbers to the dataset's. They may be another shard's too. */
	uint16_t *fields;
	uint32_t *types; /* [types + 1]: plain bytes first */
	uint32_t *episodes;
	uint32_t *streams;
	/* And back, for as many fields as the dataset has. */
	uint16_t *local_fields;
};

/* What the parts of a field have in common. */
struct oh_field_facts {
	uint64_t parts;
	uint64_t bytes; /* of all */
	uint64_t min_bytes;
	uint64_t max_bytes;
	uint32_t type; /* 0: plain bytes */
	uint32_t is_mixed;
};

/* Memory that goes with the dataset. */
struct oh_kept {
	struct oh_kept *next;
	uint64_t bytes[];
};

struct onehop_dataset {
	struct onehop_runtime *runtime;
	struct oh_dataset_shard *shards;
	uint64_t *firsts; /* [shards + 1]: samples before each shard, */
	uint64_t *bases;  /* and bytes: so that a number names a byte of any shard */
	uint32_t *hints;  /* the shard of sample n << hint_shift */
	uint32_t hint_shift;
	uint32_t cores;
	struct oh_ids fields;
	struct oh_ids types; /* struct oh_shard_type, as they lie in the indexes */
	struct oh_ids episodes;
	struct oh_ids streams;
	struct oh_field_facts *facts; /* of each field */
	struct oh_kept *kept;
	struct onehop_dataset_info info;
};

static inline uint64_t
oh_dataset_shard_of(const struct onehop_dataset *dataset, uint64_t sample)
{
	const uint32_t *hint = dataset->hints + (sample >> dataset->hint_shift);
	uint64_t low = hint[0], high = hint[1];
	while (low < high) {
		uint64_t middle = low + (high - low + 1) / 2;
		if (dataset->firsts[middle] <= sample)
			low = middle;
		else
			high = middle - 1;
	}
	return low;
}

/* A sample's parts: [*first, *first + *count) of its shard, which is returned. */
static inline const struct oh_dataset_shard *
oh_dataset_sample(const struct onehop_dataset *dataset, uint64_t sample, uint64_t *shard,
		  const struct oh_shard_part **parts, uint64_t *count)
{
	*shard = oh_dataset_shard_of(dataset, sample);
	const struct oh_dataset_shard *at = &dataset->shards[*shard];
	const struct oh_shard_sample *entry = at->view.sample + (sample - dataset->firsts[*shard]);
	*parts = at->view.part + entry[0].first_part;
	*count = entry[1].first_part - entry[0].first_part;
	return at;
}

/* The key of a sample, for errors and for its struct. */
struct onehop_name oh_dataset_key(const struct onehop_dataset *dataset, uint64_t sample);

/* The sample that a byte of a shard belongs to: the last that begins at or before it. */
uint64_t oh_dataset_sample_with(const struct onehop_dataset *dataset, uint64_t shard,
				uint64_t offset);

/* Zeroed memory that is freed by close; NULL if there is none. */
void *oh_dataset_keep(struct onehop_dataset *dataset, uint64_t bytes);

/* What was found out about a shard on the way. */
struct oh_shard_load {
	struct oh_field_facts *facts; /* of its fields; the caller's to free, also after a failure */
	uint64_t payload_bytes;
};

struct oh_shard_loading {
	struct onehop_runtime *runtime;
	uint64_t index_limit; /* bytes that the index may have */
	uint32_t threads;     /* for one shard */
};

/* load.c: opens one shard: its file, its index, checked, and tied to it. */
onehop_status oh_shard_load(const struct oh_shard_loading *how, const char *path,
			    struct oh_dataset_shard *shard, struct oh_shard_load *load,
			    struct onehop_error *error);
void oh_shard_unload(struct oh_dataset_shard *shard);

/* entries.c: MALFORMED names the first entry of the index that is out of its bounds. */
onehop_status oh_entries_check(const struct oh_dataset_shard *shard, uint32_t threads,
			       struct oh_shard_load *load, struct onehop_error *error);

/* Facts about some parts of a field, and about others. */
void oh_field_facts_add(struct oh_field_facts *all, const struct oh_field_facts *more);

#endif
