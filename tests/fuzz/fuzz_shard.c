/* The index of a shard. An input is a byte and the index. Bit 0 of the byte: the checksums are made
 * right, so that what lies behind them is reached. */
#include "base/crc32c.h"
#include "format/shard_file.h"
#include "check.h"

static void
fix_sums(uint8_t *index, uint64_t size)
{
	struct oh_shard_header header;
	struct oh_shard_section section;
	uint64_t directory;
	if (size < sizeof header)
		return;
	memcpy(&header, index, sizeof header);
	directory = (uint64_t)header.sections * sizeof section;
	if (directory > size - sizeof header)
		return;
	for (uint64_t at = sizeof header; at < sizeof header + directory; at += sizeof section) {
		memcpy(&section, index + at, sizeof section);
		if (section.offset > size || section.bytes > size - section.offset ||
		    section.offset < sizeof header + directory)
			continue;
		section.crc32c = oh_crc32c(0, index + section.offset, section.bytes);
		memcpy(index + at, &section, sizeof section);
	}
	header.crc32c = oh_crc32c(0, &header, offsetof(struct oh_shard_header, crc32c));
	header.crc32c = oh_crc32c(header.crc32c, index + sizeof header, directory);
	memcpy(index, &header, sizeof header);
}

static const uint8_t *first, *last; /* of the index, and behind it */

static void
check_inside(const void *at, uint64_t bytes)
{
	const uint8_t *from = at;
	MUST(from >= first && from <= last && bytes <= (uint64_t)(last - from));
}

static void
check_names(const struct oh_shard_view *view, const struct oh_shard_name *names, uint32_t count)
{
	const char *text;
	uint64_t bytes;
	for (uint32_t i = 0; i < count; i++)
		if (!oh_shard_name_at(view, names + i, &text, &bytes))
			check_inside(text, bytes);
}

static void
check_samples(const struct oh_shard_view *view)
{
	uint64_t begin, count, bytes;
	const char *key;
	for (uint64_t i = 0; i < view->samples; i++) {
		if (view->time)
			check_inside(view->time + i, sizeof *view->time);
		if (oh_shard_sample_at(view, i, &begin, &count, &key, &bytes))
			continue;
		MUST(count > 0 && begin < view->parts && count <= view->parts - begin);
		check_inside(key, bytes);
	}
}

static void
check_types(const struct oh_shard_view *view)
{
	const struct oh_shard_type *type;
	uint64_t bytes;
	uint32_t element;
	for (uint32_t i = 0; i < view->types; i++)
		if (!oh_shard_type_at(view, i, &type, &bytes)) {
			check_inside(type, sizeof *type);
			MUST(oh_shard_dtype_name(type->dtype, &element));
			MUST(type->rank <= OH_SHARD_MAX_RANK && bytes % element == 0);
		}
}

static void
check_parts(const struct oh_shard_view *view)
{
	const struct oh_shard_part *part;
	const struct oh_shard_type *type;
	uint64_t bytes;
	for (uint64_t i = 0; i < view->parts; i++) {
		if (view->part_time)
			check_inside(view->part_time + i, sizeof *view->part_time);
		if (oh_shard_part_at(view, i, &part))
			continue;
		check_inside(part, sizeof *part);
		MUST(part->field < view->fields && part->type <= view->types);
		MUST(part->offset <= view->tar_end && part->bytes <= view->tar_end - part->offset);
		if (!part->type)
			continue;
		MUST(!oh_shard_type_at(view, part->type - 1, &type, &bytes));
		MUST(type->data_offset <= part->bytes && bytes <= part->bytes - type->data_offset);
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct onehop_error error = {0};
	struct oh_shard_view view;
	if (size < 1)
		return 0;
	uint8_t *index = copy_of(data + 1, size - 1);
	if (data[0] & 1)
		fix_sums(index, size - 1);
	onehop_status status = oh_shard_open(index, size - 1, "fuzz.onehop", &view, &error);
	first = index;
	last = index + size - 1;
	if (status) {
		check_error(&error, status);
	} else {
		MUST(view.tar_end <= view.shard_bytes);
		check_inside(view.sample, (view.samples + 1) * sizeof *view.sample);
		check_inside(view.part, view.parts * sizeof *view.part);
		check_names(&view, view.field, view.fields);
		check_names(&view, view.episode, view.episodes);
		check_names(&view, view.stream, view.streams);
		check_samples(&view);
		check_types(&view);
		check_parts(&view);
	}
	free(index);
	return 0;
}
