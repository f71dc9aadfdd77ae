/* Every entry of an index, checked once, when its dataset is opened; and what the parts of each field
 * have in common, since they pass by here.
 *
 * After this, parts rise along the index and lie before the archive's end, and every number is in its
 * bounds, so that lookups need no check. A large index is checked in pieces by several threads; the
 * failure that is told is that of the first wrong entry of its section's first piece that has one.
 */
#include "dataset/dataset.h"

#include "base/arith.h"
#include "dataset/crew.h"
#include "format/fail.h"

#include <stdlib.h>

/* Samples, or parts, that are worth a piece of their own. */
#define PIECE_ENTRIES (UINT64_C(256) << 10)
#define MOST_PIECES   8

struct checking {
	const struct oh_dataset_shard *shard;
	uint64_t *least; /* bytes of a payload that each type needs; [0] is of plain bytes */
	uint64_t pieces;
	struct oh_shard_load loads[MOST_PIECES];
};

static onehop_status
bad_entry(const struct oh_dataset_shard *shard, struct onehop_error *error, const char *what,
	  uint64_t index)
{
	oh_refuse(error, ONEHOP_MALFORMED, shard->path, "entry %llu of its index's %s is wrong",
		  (unsigned long long)index, what);
	oh_remedy(error, "make the index again: onehop index");
	return ONEHOP_MALFORMED;
}

static onehop_status
check_types(const struct oh_dataset_shard *shard, uint64_t *least, struct onehop_error *error)
{
	const struct oh_shard_type *type;
	least[0] = 0;
	for (uint32_t i = 0; i < shard->view.types; i++) {
		uint64_t bytes;
		if (oh_shard_type_at(&shard->view, i, &type, &bytes) ||
		    oh_add(bytes, type->data_offset, &least[i + 1]))
			return bad_entry(shard, error, "types", i);
	}
	return ONEHOP_OK;
}

static onehop_status
check_names(const struct oh_dataset_shard *shard, const struct oh_shard_name *names,
	    uint64_t count, const char *what, struct onehop_error *error)
{
	const char *text;
	uint64_t bytes;
	for (uint64_t i = 0; i < count; i++)
		if (oh_shard_name_at(&shard->view, &names[i], &text, &bytes))
			return bad_entry(shard, error, what, i);
	return ONEHOP_OK;
}

/* ------------------------------------------------------------------ in pieces */

static onehop_status
check_samples(const struct oh_dataset_shard *shard, uint64_t begin, uint64_t end,
	      struct onehop_error *error)
{
	const struct oh_shard_view *view = &shard->view;
	for (uint64_t i = begin; i < end; i++) {
		const struct oh_shard_sample *sample = &view->sample[i];
		if (sample[1].first_part <= sample->first_part || sample[1].key < sample->key)
			return bad_entry(shard, error, "samples", i);
	}
	for (uint64_t i = begin; view->time && i < end; i++) {
		const struct oh_shard_time *time = &view->time[i];
		if ((time->episode != OH_SHARD_NONE && time->episode >= view->episodes) ||
		    (time->stream != OH_SHARD_NONE && time->stream >= view->streams))
			return bad_entry(shard, error, "times", i);
	}
	return ONEHOP_OK;
}

static inline void
count_part(const struct oh_shard_part *part, struct oh_field_facts *facts)
{
	if (!facts->parts++) {
		facts->min_bytes = facts->max_bytes = part->bytes;
		facts->type = part->type;
	}
	facts->bytes += part->bytes;
	facts->min_bytes = oh_min(facts->min_bytes, part->bytes);
	facts->max_bytes = oh_max(facts->max_bytes, part->bytes);
	facts->is_mixed |= facts->type != part->type;
}

static onehop_status
check_parts(const struct checking *c, uint64_t begin, uint64_t end, struct oh_shard_load *load,
	    struct onehop_error *error)
{
	const struct oh_shard_view *view = &c->shard->view;
	/* Of a part that is wrong itself it does not matter where it ends. */
	uint64_t last = begin ? view->part[begin - 1].offset + view->part[begin - 1].bytes : 0;
	for (uint64_t i = begin; i < end; i++) {
		const struct oh_shard_part *part = &view->part[i];
		if (part->offset < last || part->offset > view->tar_end ||
		    part->bytes > view->tar_end - part->offset || part->field >= view->fields ||
		    part->type > view->types || part->bytes < c->least[part->type])
			return bad_entry(c->shard, error, "parts", i);
		last = part->offset + part->bytes;
		load->payload_bytes += part->bytes;
		count_part(part, &load->facts[part->field]);
	}
	return ONEHOP_OK;
}

static onehop_status
check_piece(void *context, uint32_t worker, uint64_t index, struct onehop_error *error)
{
	struct checking *c = context;
	const struct oh_shard_view *view = &c->shard->view;
	struct oh_shard_load *load = &c->loads[index];
	(void)worker;
	load->facts = calloc(view->fields + 1u, sizeof *load->facts);
	if (!load->facts)
		return oh_fail_no_memory(error, view->fields * sizeof *load->facts,
					 "a shard's fields");
	onehop_status status = check_samples(c->shard, view->samples * index / c->pieces,
					     view->samples * (index + 1) / c->pieces, error);
	if (status)
		return status;
	return check_parts(c, view->parts * index / c->pieces,
			   view->parts * (index + 1) / c->pieces, load, error);
}

/* ------------------------------------------------------------------ */

void
oh_field_facts_add(struct oh_field_facts *all, const struct oh_field_facts *more)
{
	if (!more->parts)
		return;
	if (!all->parts) {
		*all = *more;
		return;
	}
	all->parts += more->parts;
	all->bytes += more->bytes;
	all->min_bytes = oh_min(all->min_bytes, more->min_bytes);
	all->max_bytes = oh_max(all->max_bytes, more->max_bytes);
	all->is_mixed |= more->is_mixed || all->type != more->type;
}

/* The first piece takes the others' facts. */
static void
add_up(struct checking *c, struct oh_shard_load *load)
{
	*load = c->loads[0];
	for (uint64_t i = 1; i < c->pieces; i++) {
		load->payload_bytes += c->loads[i].payload_bytes;
		for (uint32_t k = 0; k < c->shard->view.fields; k++)
			oh_field_facts_add(&load->facts[k], &c->loads[i].facts[k]);
	}
	c->loads[0].facts = NULL;
}

static onehop_status
check_tables(const struct checking *c, struct onehop_error *error)
{
	const struct oh_dataset_shard *shard = c->shard;
	const struct oh_shard_view *view = &shard->view;
	onehop_status status = check_names(shard, view->field, view->fields, "fields", error);
	if (!status)
		status = check_names(shard, view->episode, view->episodes, "episodes", error);
	if (!status)
		status = check_names(shard, view->stream, view->streams, "streams", error);
	return status ? status : check_types(shard, c->least, error);
}

onehop_status
oh_entries_check(const struct oh_dataset_shard *shard, uint32_t threads, struct oh_shard_load *load,
		 struct onehop_error *error)
{
	const struct oh_shard_view *view = &shard->view;
	struct checking c = {.shard = shard};
	c.pieces = oh_min(oh_min(threads, MOST_PIECES), view->parts / PIECE_ENTRIES);
	c.pieces = oh_max(c.pieces, 1);
	c.least = malloc((view->types + UINT64_C(1)) * sizeof *c.least);
	if (!c.least)
		return oh_fail_no_memory(error, view->types * sizeof *c.least, "a shard's types");
	onehop_status status = check_tables(&c, error);
	if (!status)
		status = oh_crew_run(threads, c.pieces, check_piece, &c, error);
	if (!status)
		add_up(&c, load);
	for (uint64_t i = 0; i < c.pieces; i++)
		free(c.loads[i].facts);
	free(c.least);
	return status;
}
