/* The index of a shard, built: columns that grow, then one pass that lays them out.
 *
 * Each section grows in the layout that it has in the file. Fields, episodes, streams and types are
 * sets: a thing that is there already keeps its id. A call that fails leaves the builder as it was.
 * Nothing here is checked against the shard; that is for readers, who trust nobody.
 */
#include "base/arith.h"
#include "base/crc32c.h"
#include "format/names.h"
#include "format/shard_file.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Of one set: the three that share *names* then stay within its offsets of 32 bits. */
#define TEXT_MOST (UINT32_C(1) << 30)

/* Entries of one size, in one piece of memory. */
struct column {
	void *data;
	uint64_t count, capacity;
};

/* To find things by what they hold. It grows with them. */
struct finder {
	struct oh_names names;
	uint64_t most; /* that names has room for */
};

/* Things of any size, each once. */
struct set {
	struct column text;  /* of char: one thing after the other */
	struct column items; /* of struct oh_shard_name */
	struct finder finder;
};

struct oh_shard_builder {
	struct column samples, keys, parts, times, part_times;
	struct set fields, episodes, streams, types;
	struct finder finder; /* of keys */
	int has_times, has_part_times, refuses_twins;
};

/* Makes room for more entries. */
static onehop_status
reserve(struct column *column, uint64_t more, size_t entry)
{
	uint64_t need, bytes, capacity;
	void *data;
	if (oh_add(column->count, more, &need))
		return ONEHOP_NO_MEMORY;
	if (need <= column->capacity)
		return ONEHOP_OK;
	capacity = oh_max(need + need / 2, 64);
	if (oh_mul(capacity, entry, &bytes))
		return ONEHOP_NO_MEMORY;
	data = realloc(column->data, bytes);
	if (!data)
		return ONEHOP_NO_MEMORY;
	column->data = data;
	column->capacity = capacity;
	return ONEHOP_OK;
}

/* There is room for them. */
static void
append(struct column *column, const void *entries, uint64_t count, size_t entry)
{
	if (count)
		memcpy((char *)column->data + column->count * entry, entries, count * entry);
	column->count += count;
}

static struct oh_name
item_name(const uint8_t *text, const void *items, uint64_t index)
{
	const struct oh_shard_name *item = (const struct oh_shard_name *)items + index;
	return (struct oh_name){item->offset, item->bytes};
}

static struct oh_name
sample_name(const uint8_t *text, const void *items, uint64_t index)
{
	const struct oh_shard_sample *sample = (const struct oh_shard_sample *)items + index;
	return (struct oh_name){(uint32_t)sample->key, (uint32_t)(sample[1].key - sample->key)};
}

static void
free_finder(struct finder *finder)
{
	oh_names_free(&finder->names);
	finder->most = 0;
}

/* Looks for the last of count items among those before it, which were all added. *known is
 * OH_NAMES_NEW, or its twin's index. */
static onehop_status
find(struct finder *finder, const struct column *text, const void *items, oh_name_of *name_of,
     uint64_t count, uint64_t *known)
{
	if (count > finder->most) {
		struct oh_names names;
		uint64_t most = oh_max(2 * count, 64);
		if (oh_names_init(&names, text->data, items, name_of, most, NULL))
			return ONEHOP_NO_MEMORY;
		for (uint64_t i = 0; i + 1 < count; i++)
			oh_names_add(&names, i);
		free_finder(finder);
		finder->names = names;
		finder->most = most;
	}
	finder->names.text = text->data;
	finder->names.items = items;
	*known = oh_names_add(&finder->names, count - 1);
	return ONEHOP_OK;
}

static void
drop_last(struct set *set)
{
	const struct oh_shard_name *items = set->items.data;
	set->items.count--;
	set->text.count = items[set->items.count].offset;
}

/* The thing's id, new or not. LIMIT: limit are there already, or too much text. */
static onehop_status
intern(struct set *set, const void *thing, uint64_t bytes, uint64_t limit, uint32_t *id)
{
	uint64_t at = set->text.count, end, known;
	struct oh_shard_name item = {(uint32_t)at, (uint32_t)bytes};
	if (oh_add(at, bytes, &end) || end > TEXT_MOST)
		return ONEHOP_LIMIT;
	if (reserve(&set->text, bytes, 1) || reserve(&set->items, 1, sizeof item))
		return ONEHOP_NO_MEMORY;
	append(&set->text, thing, bytes, 1);
	append(&set->items, &item, 1, sizeof item);
	if (find(&set->finder, &set->text, set->items.data, item_name, set->items.count, &known)) {
		drop_last(set);
		return ONEHOP_NO_MEMORY;
	}
	if (known == OH_NAMES_NEW && set->items.count <= limit) {
		*id = (uint32_t)(set->items.count - 1);
		return ONEHOP_OK;
	}
	drop_last(set);
	if (known == OH_NAMES_NEW) {
		free_finder(&set->finder); /* it knows the one too many */
		return ONEHOP_LIMIT;
	}
	*id = (uint32_t)known;
	return ONEHOP_OK;
}

static void
free_set(struct set *set)
{
	free(set->text.data);
	free(set->items.data);
	free_finder(&set->finder);
}

onehop_status
oh_shard_builder_create(struct oh_shard_builder **builder)
{
	struct oh_shard_builder *b = calloc(1, sizeof *b);
	if (!b)
		return ONEHOP_NO_MEMORY;
	*builder = b;
	return ONEHOP_OK;
}

void
oh_shard_builder_destroy(struct oh_shard_builder *b)
{
	if (!b)
		return;
	free(b->samples.data);
	free(b->keys.data);
	free(b->parts.data);
	free(b->times.data);
	free(b->part_times.data);
	free_finder(&b->finder);
	free_set(&b->fields);
	free_set(&b->episodes);
	free_set(&b->streams);
	free_set(&b->types);
	free(b);
}

onehop_status
oh_shard_builder_field(struct oh_shard_builder *b, const char *name, uint64_t bytes,
		       uint16_t *field)
{
	uint32_t id;
	onehop_status status = intern(&b->fields, name, bytes, UINT16_MAX, &id);
	if (!status)
		*field = (uint16_t)id;
	return status;
}

onehop_status
oh_shard_builder_type(struct oh_shard_builder *b, const struct oh_shard_type *type,
		      uint32_t *type_plus_one)
{
	uint32_t id;
	onehop_status status = intern(&b->types, type, sizeof *type, UINT32_MAX - 1, &id);
	if (!status)
		*type_plus_one = id + 1;
	return status;
}

onehop_status
oh_shard_builder_episode(struct oh_shard_builder *b, const char *name, uint64_t bytes,
			 uint32_t *episode)
{
	return intern(&b->episodes, name, bytes, OH_SHARD_NONE, episode);
}

onehop_status
oh_shard_builder_stream(struct oh_shard_builder *b, const char *name, uint64_t bytes,
			uint32_t *stream)
{
	return intern(&b->streams, name, bytes, OH_SHARD_NONE, stream);
}

void
oh_shard_builder_refuse_twins(struct oh_shard_builder *b)
{
	assert(b->samples.count == 0);
	b->refuses_twins = 1;
}

/* Whether the last sample's key is one that was there; what follows it holds the key's end. */
static onehop_status
check_twin(struct oh_shard_builder *b)
{
	uint64_t known;
	if (b->keys.count > UINT32_MAX)
		return ONEHOP_LIMIT;
	if (find(&b->finder, &b->keys, b->samples.data, sample_name, b->samples.count, &known))
		return ONEHOP_NO_MEMORY;
	return known == OH_NAMES_NEW ? ONEHOP_OK : ONEHOP_INVALID_ARGUMENT;
}

onehop_status
oh_shard_builder_sample(struct oh_shard_builder *b, const char *key, uint64_t key_bytes,
			const struct oh_shard_time *time)
{
	const struct oh_shard_time none = {OH_SHARD_NO_TIME, OH_SHARD_NONE, OH_SHARD_NONE, 1, 0};
	const struct oh_shard_sample sample[2] = {{b->parts.count, b->keys.count},
						  {0, b->keys.count + key_bytes}};
	onehop_status status = ONEHOP_OK;
	if (reserve(&b->samples, 2, sizeof *sample) || reserve(&b->keys, key_bytes, 1) ||
	    reserve(&b->times, 1, sizeof none))
		return ONEHOP_NO_MEMORY;
	append(&b->samples, sample, 2, sizeof *sample);
	b->samples.count--;
	append(&b->keys, key, key_bytes, 1);
	if (b->refuses_twins)
		status = check_twin(b);
	if (status) {
		b->samples.count--;
		b->keys.count -= key_bytes;
		return status;
	}
	append(&b->times, time ? time : &none, 1, sizeof none);
	b->has_times |= time != NULL;
	return ONEHOP_OK;
}

onehop_status
oh_shard_builder_part(struct oh_shard_builder *b, const struct oh_shard_part *part,
		      int64_t timestamp_ns)
{
	assert(b->samples.count > 0);
	if (reserve(&b->parts, 1, sizeof *part) ||
	    reserve(&b->part_times, 1, sizeof timestamp_ns))
		return ONEHOP_NO_MEMORY;
	append(&b->parts, part, 1, sizeof *part);
	append(&b->part_times, &timestamp_ns, 1, sizeof timestamp_ns);
	b->has_part_times |= timestamp_ns != OH_SHARD_NO_TIME;
	return ONEHOP_OK;
}

uint64_t
oh_shard_builder_samples(const struct oh_shard_builder *b)
{
	return b->samples.count;
}

uint64_t
oh_shard_builder_parts(const struct oh_shard_builder *b)
{
	return b->parts.count;
}

/* ---- laying out */

/* What the file will hold, section by section in the order of their kinds; entries of 0 and no
 * `always`: left out. */
struct layout {
	struct oh_shard_section sections[OH_SECTION_KINDS - 1];
	uint32_t count;
	uint64_t bytes;
};

static uint64_t
up(uint64_t at)
{
	return (at + OH_SHARD_SECTION_ALIGN - 1) & ~(uint64_t)(OH_SHARD_SECTION_ALIGN - 1);
}

static uint64_t
section_entries(const struct oh_shard_builder *b, uint32_t kind)
{
	switch (kind) {
	case OH_SECTION_SAMPLES:
		return b->samples.count + 1;
	case OH_SECTION_KEYS:
		return b->keys.count;
	case OH_SECTION_PARTS:
		return b->parts.count;
	case OH_SECTION_FIELDS:
		return b->fields.items.count;
	case OH_SECTION_NAMES:
		return b->fields.text.count + b->episodes.text.count + b->streams.text.count;
	case OH_SECTION_TYPES:
		return b->types.items.count;
	case OH_SECTION_TIMES:
		return b->has_times ? b->samples.count : 0;
	case OH_SECTION_EPISODES:
		return b->episodes.items.count;
	case OH_SECTION_STREAMS:
		return b->streams.items.count;
	default:
		return b->has_part_times ? b->parts.count : 0;
	}
}

static void
lay_out(const struct oh_shard_builder *b, struct layout *layout)
{
	uint64_t at;
	layout->count = 0;
	for (uint32_t kind = 1; kind < OH_SECTION_KINDS; kind++) {
		uint64_t entries = section_entries(b, kind);
		if (entries || kind <= OH_SECTION_NAMES)
			layout->sections[layout->count++] = (struct oh_shard_section){
				.kind = kind,
				.bytes = entries * oh_shard_entry[kind],
				.entries = entries,
			};
	}
	at = sizeof(struct oh_shard_header) + layout->count * sizeof(struct oh_shard_section);
	for (uint32_t i = 0; i < layout->count; i++) {
		layout->sections[i].offset = up(at);
		at = layout->sections[i].offset + layout->sections[i].bytes;
	}
	layout->bytes = up(at);
}

uint64_t
oh_shard_builder_bytes(const struct oh_shard_builder *b)
{
	struct layout layout;
	lay_out(b, &layout);
	return layout.bytes;
}

static unsigned char *
put(unsigned char *to, const struct column *column, size_t entry)
{
	uint64_t bytes = column->count * entry;
	if (bytes)
		memcpy(to, column->data, bytes);
	return to + bytes;
}

static void
put_items(unsigned char *to, const struct set *set, uint64_t names_before)
{
	const struct oh_shard_name *items = set->items.data;
	for (uint64_t i = 0; i < set->items.count; i++) {
		struct oh_shard_name item = items[i];
		item.offset += (uint32_t)names_before;
		memcpy(to + i * sizeof item, &item, sizeof item);
	}
}

static void
put_section(const struct oh_shard_builder *b, uint32_t kind, unsigned char *to)
{
	const struct oh_shard_sample end = {b->parts.count, b->keys.count};
	switch (kind) {
	case OH_SECTION_SAMPLES:
		to = put(to, &b->samples, sizeof end);
		memcpy(to, &end, sizeof end);
		break;
	case OH_SECTION_KEYS:
		put(to, &b->keys, 1);
		break;
	case OH_SECTION_PARTS:
		put(to, &b->parts, sizeof(struct oh_shard_part));
		break;
	case OH_SECTION_FIELDS:
		put_items(to, &b->fields, 0);
		break;
	case OH_SECTION_NAMES:
		to = put(to, &b->fields.text, 1);
		to = put(to, &b->episodes.text, 1);
		put(to, &b->streams.text, 1);
		break;
	case OH_SECTION_TYPES:
		put(to, &b->types.text, 1);
		break;
	case OH_SECTION_TIMES:
		put(to, &b->times, sizeof(struct oh_shard_time));
		break;
	case OH_SECTION_EPISODES:
		put_items(to, &b->episodes, b->fields.text.count);
		break;
	case OH_SECTION_STREAMS:
		put_items(to, &b->streams, b->fields.text.count + b->episodes.text.count);
		break;
	default:
		put(to, &b->part_times, sizeof(int64_t));
	}
}

/* The sections, with zeros before, between and behind them, and their CRCs. */
static void
write_sections(const struct oh_shard_builder *b, struct layout *layout, unsigned char *bytes)
{
	uint64_t at = sizeof(struct oh_shard_header) +
		      layout->count * sizeof(struct oh_shard_section);
	for (uint32_t i = 0; i < layout->count; i++) {
		struct oh_shard_section *section = layout->sections + i;
		memset(bytes + at, 0, section->offset - at);
		put_section(b, section->kind, bytes + section->offset);
		section->crc32c = oh_crc32c(0, bytes + section->offset, section->bytes);
		at = section->offset + section->bytes;
	}
	memset(bytes + at, 0, layout->bytes - at);
}

void
oh_shard_builder_finish(const struct oh_shard_builder *b, const struct oh_shard_facts *facts,
			void *bytes)
{
	struct layout layout;
	struct oh_shard_header header = {
		.version = OH_SHARD_VERSION,
		.header_bytes = sizeof header,
		.shard_bytes = facts->shard_bytes,
		.tar_end = facts->tar_end,
		.members = facts->members,
		.samples = b->samples.count,
		.parts = b->parts.count,
		.flags = facts->flags,
		.alignment_bytes = facts->alignment_bytes,
		.align = facts->align,
	};
	memcpy(header.magic, OH_SHARD_MAGIC, sizeof header.magic);
	lay_out(b, &layout);
	write_sections(b, &layout, bytes);
	header.index_bytes = layout.bytes;
	header.sections = layout.count;
	header.crc32c = oh_crc32c(0, &header, offsetof(struct oh_shard_header, crc32c));
	header.crc32c = oh_crc32c(header.crc32c, layout.sections,
				  layout.count * sizeof *layout.sections);
	memcpy(bytes, &header, sizeof header);
	memcpy((unsigned char *)bytes + sizeof header, layout.sections,
	       layout.count * sizeof *layout.sections);
}
