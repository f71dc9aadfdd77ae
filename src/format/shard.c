/* The index of a shard, read in place.
 *
 * Opening looks at the header, the directory, the CRC of each section, and the ends that the samples'
 * last entry states; so it costs little more than its CRCs, and of a large index whoever reads it may
 * have most of them already. Entries are judged one by one as they are
 * asked for: what an accessor gives lies inside the section, or the archive, that it points into.
 * Nothing is copied, allocated or kept. Sections lie in the directory's order and do not overlap, so
 * that no index makes us sum its bytes more than once.
 */
#include "base/arith.h"
#include "base/crc32c.h"
#include "format/dtype.h"
#include "format/fail.h"
#include "format/shard_file.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "an index is read where it lies");

/* By code. */
static const char *const dtypes[] = {
	NULL,  "BOOL", "U8",  "I8",   "U16", "I16", "U32", "I32",     "U64",
	"I64", "F16",  "BF16", "F32", "F64", "C64", "F8_E4M3", "F8_E5M2",
};
#define DTYPES (sizeof dtypes / sizeof *dtypes)

const char *
oh_shard_dtype_name(uint16_t code, uint32_t *element_bytes)
{
	if (code == 0 || code >= DTYPES)
		return NULL;
	*element_bytes = oh_dtype_safetensors(dtypes[code], strlen(dtypes[code]))->block_bytes;
	return dtypes[code];
}

uint16_t
oh_shard_dtype_code(const char *name)
{
	for (uint16_t code = 1; name && code < DTYPES; code++)
		if (strcmp(dtypes[code], name) == 0)
			return code;
	return 0;
}

/* ---- opening */

struct opening {
	const unsigned char *bytes;
	uint64_t size;
	const char *name;
	const struct oh_shard_sums *sums;
	struct onehop_error *error;
	const struct oh_shard_header *header;
	const struct oh_shard_section *found[OH_SECTION_KINDS];
};

#define REFUSE(o, ...)                                                                             \
	(oh_refuse((o)->error, ONEHOP_MALFORMED, (o)->name, __VA_ARGS__),                          \
	 oh_remedy((o)->error, "make the index again: onehop index"), ONEHOP_MALFORMED)

static onehop_status
check_version(const struct opening *o)
{
	const struct oh_shard_header *header = o->header;
	if (o->size < sizeof *header)
		return REFUSE(o, "%llu %s are too few for an index, its header has %zu",
			      (unsigned long long)o->size, oh_bytes_word(o->size), sizeof *header);
	if (memcmp(header->magic, OH_SHARD_MAGIC, sizeof header->magic) != 0)
		return REFUSE(o, "not an index: it does not begin with " OH_SHARD_MAGIC);
	if (header->version != OH_SHARD_VERSION) {
		oh_refuse(o->error, ONEHOP_UNSUPPORTED_DATA, o->name,
			  "an index of version %u, this onehop knows version %d", header->version,
			  OH_SHARD_VERSION);
		oh_remedy(o->error, "use a newer onehop, or make the index again: onehop index");
		return ONEHOP_UNSUPPORTED_DATA;
	}
	return ONEHOP_OK;
}

static uint64_t
directory_end(const struct oh_shard_header *header)
{
	return sizeof *header + (uint64_t)header->sections * sizeof(struct oh_shard_section);
}

static onehop_status
check_header(const struct opening *o)
{
	const struct oh_shard_header *header = o->header;
	uint32_t crc;
	if (header->header_bytes != sizeof *header || directory_end(header) > o->size)
		return REFUSE(o, "the header's sizes are wrong (%u bytes, %u sections)",
			      header->header_bytes, header->sections);
	crc = oh_crc32c(0, o->bytes, offsetof(struct oh_shard_header, crc32c));
	crc = oh_crc32c(crc, o->bytes + sizeof *header, directory_end(header) - sizeof *header);
	if (crc != header->crc32c)
		return REFUSE(o, "the checksum of the header and directory is wrong (is %08x, should "
				 "be %08x)",
			      crc, header->crc32c);
	if (header->index_bytes != o->size)
		return REFUSE(o, "the index has %llu bytes, its header says %llu",
			      (unsigned long long)o->size,
			      (unsigned long long)header->index_bytes);
	if (header->tar_end > header->shard_bytes)
		return REFUSE(o, "the archive ends at %llu, past the shard's end at %llu",
			      (unsigned long long)header->tar_end,
			      (unsigned long long)header->shard_bytes);
	if (header->alignment_bytes < 512 ||
	    header->alignment_bytes & (header->alignment_bytes - 1) || header->align > 2)
		return REFUSE(o, "the alignment (%u bytes, kind %u) is none that there is",
			      header->alignment_bytes, header->align);
	return ONEHOP_OK;
}

/* The CRC of a part of the index: of its whole pieces from what is known, of its ends anew. */
static uint32_t
sum_of(const struct opening *o, uint64_t offset, uint64_t bytes)
{
	const struct oh_shard_sums *sums = o->sums;
	uint64_t end = offset + bytes, piece = sums ? sums->piece_bytes : 0, first, past;
	if (!piece)
		return oh_crc32c(0, o->bytes + offset, bytes);
	first = offset / piece + (offset % piece != 0);
	past = end / piece;
	if (first >= past)
		return oh_crc32c(0, o->bytes + offset, bytes);
	uint32_t crc = oh_crc32c(0, o->bytes + offset, first * piece - offset);
	for (uint64_t i = first; i < past; i++)
		crc = oh_crc32c_join(crc, sums->crc32c[i], piece);
	return oh_crc32c(crc, o->bytes + past * piece, end - past * piece);
}

/* A section lies in the index, after the one before it, and is as its CRC says. */
static onehop_status
check_section(const struct opening *o, const struct oh_shard_section *section, uint64_t *end)
{
	uint64_t past;
	uint32_t crc;
	if (section->offset % OH_SHARD_SECTION_ALIGN || section->offset < *end ||
	    oh_add(section->offset, section->bytes, &past) || past > o->size)
		return REFUSE(o, "section %u (%llu bytes at %llu) is not where one can be",
			      section->kind, (unsigned long long)section->bytes,
			      (unsigned long long)section->offset);
	crc = sum_of(o, section->offset, section->bytes);
	if (crc != section->crc32c)
		return REFUSE(o, "the checksum of section %u at byte %llu is wrong (is %08x, should "
				 "be %08x)",
			      section->kind, (unsigned long long)section->offset, crc,
			      section->crc32c);
	*end = past;
	return ONEHOP_OK;
}

static onehop_status
note_section(struct opening *o, const struct oh_shard_section *section)
{
	uint64_t bytes;
	if (section->kind == 0 || section->kind >= OH_SECTION_KINDS)
		return ONEHOP_OK;
	if (o->found[section->kind])
		return REFUSE(o, "section %u is there twice", section->kind);
	if (oh_mul(section->entries, oh_shard_entry[section->kind], &bytes) ||
	    bytes != section->bytes)
		return REFUSE(o, "section %u has %llu bytes, which are not %llu entries of %u",
			      section->kind, (unsigned long long)section->bytes,
			      (unsigned long long)section->entries,
			      oh_shard_entry[section->kind]);
	o->found[section->kind] = section;
	return ONEHOP_OK;
}

static onehop_status
check_sections(struct opening *o)
{
	const struct oh_shard_section *section = (const void *)(o->header + 1);
	uint64_t end = directory_end(o->header);
	onehop_status status = ONEHOP_OK;
	for (uint32_t i = 0; i < o->header->sections && !status; i++) {
		status = check_section(o, section + i, &end);
		if (!status)
			status = note_section(o, section + i);
	}
	for (uint32_t kind = OH_SECTION_SAMPLES; kind <= OH_SECTION_NAMES && !status; kind++)
		if (!o->found[kind])
			status = REFUSE(o, "section %u is not there", kind);
	return status;
}

/* Entries of a section; 0 if it is not there. */
static uint64_t
entries(const struct opening *o, enum oh_shard_kind kind)
{
	return o->found[kind] ? o->found[kind]->entries : 0;
}

/* The counts of the sections agree with the header's and with each other. */
static onehop_status
check_counts(const struct opening *o)
{
	const struct oh_shard_header *header = o->header;
	const struct {
		enum oh_shard_kind kind;
		int optional;
		uint64_t least, most;
	} rules[] = {
		{OH_SECTION_SAMPLES, 0, header->samples + 1, header->samples + 1},
		{OH_SECTION_PARTS, 0, header->parts, header->parts},
		{OH_SECTION_TIMES, 1, header->samples, header->samples},
		{OH_SECTION_PART_TIMES, 1, header->parts, header->parts},
		{OH_SECTION_FIELDS, 0, 0, UINT16_MAX},
		{OH_SECTION_TYPES, 1, 0, UINT32_MAX - 1},
		{OH_SECTION_EPISODES, 1, 0, UINT32_MAX},
		{OH_SECTION_STREAMS, 1, 0, UINT32_MAX},
	};
	if (header->samples == UINT64_MAX)
		return REFUSE(o, "the header counts too many samples");
	for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
		uint64_t count = entries(o, rules[i].kind);
		if (rules[i].optional && !o->found[rules[i].kind])
			continue;
		if (count < rules[i].least || count > rules[i].most)
			return REFUSE(o, "section %u has %llu entries, should have %llu",
				      rules[i].kind, (unsigned long long)count,
				      (unsigned long long)rules[i].most);
	}
	return ONEHOP_OK;
}

static const void *
at(const struct opening *o, enum oh_shard_kind kind)
{
	return o->found[kind] ? o->bytes + o->found[kind]->offset : NULL;
}

static void
fill_view(const struct opening *o, struct oh_shard_view *view)
{
	const struct oh_shard_header *header = o->header;
	*view = (struct oh_shard_view){
		.shard_bytes = header->shard_bytes,
		.tar_end = header->tar_end,
		.members = header->members,
		.samples = header->samples,
		.parts = header->parts,
		.flags = header->flags,
		.alignment_bytes = header->alignment_bytes,
		.align = header->align,
		.fields = (uint32_t)entries(o, OH_SECTION_FIELDS),
		.types = (uint32_t)entries(o, OH_SECTION_TYPES),
		.episodes = (uint32_t)entries(o, OH_SECTION_EPISODES),
		.streams = (uint32_t)entries(o, OH_SECTION_STREAMS),
		.header_crc32c = header->crc32c,
		.sample = at(o, OH_SECTION_SAMPLES),
		.part = at(o, OH_SECTION_PARTS),
		.field = at(o, OH_SECTION_FIELDS),
		.type = at(o, OH_SECTION_TYPES),
		.time = at(o, OH_SECTION_TIMES),
		.part_time = at(o, OH_SECTION_PART_TIMES),
		.episode = at(o, OH_SECTION_EPISODES),
		.stream = at(o, OH_SECTION_STREAMS),
		.keys = at(o, OH_SECTION_KEYS),
		.names = at(o, OH_SECTION_NAMES),
		.key_bytes = entries(o, OH_SECTION_KEYS),
		.name_bytes = entries(o, OH_SECTION_NAMES),
	};
}

/* The last entry of the samples holds the ends. */
static onehop_status
check_ends(const struct opening *o)
{
	const struct oh_shard_sample *sample = at(o, OH_SECTION_SAMPLES);
	const struct oh_shard_sample *last = sample + o->header->samples;
	if (sample->first_part != 0 || sample->key != 0 || last->first_part != o->header->parts ||
	    last->key != entries(o, OH_SECTION_KEYS))
		return REFUSE(o, "the samples do not begin at the first part or end at the last");
	return ONEHOP_OK;
}

onehop_status
oh_shard_open(const void *bytes, uint64_t size, const char *name, struct oh_shard_view *view,
	      struct onehop_error *error)
{
	return oh_shard_open_summed(bytes, size, NULL, name, view, error);
}

onehop_status
oh_shard_open_summed(const void *bytes, uint64_t size, const struct oh_shard_sums *sums,
		     const char *name, struct oh_shard_view *view, struct onehop_error *error)
{
	struct opening o = {bytes, size, name, sums, error, bytes, {NULL}};
	onehop_status status = check_version(&o);
	if (!status)
		status = check_header(&o);
	if (!status)
		status = check_sections(&o);
	if (!status)
		status = check_counts(&o);
	if (!status)
		status = check_ends(&o);
	if (!status)
		fill_view(&o, view);
	return status;
}

/* ---- entries */

onehop_status
oh_shard_sample_at(const struct oh_shard_view *view, uint64_t index, uint64_t *first,
		   uint64_t *count, const char **key, uint64_t *key_bytes)
{
	const struct oh_shard_sample *sample = view->sample + index;
	if (sample[0].first_part >= sample[1].first_part ||
	    sample[1].first_part > view->parts || sample[0].key > sample[1].key ||
	    sample[1].key > view->key_bytes)
		return ONEHOP_MALFORMED;
	*first = sample[0].first_part;
	*count = sample[1].first_part - sample[0].first_part;
	*key = view->keys + sample[0].key;
	*key_bytes = sample[1].key - sample[0].key;
	return ONEHOP_OK;
}

/* The array of a part fits its payload. */
static int
holds_its_array(const struct oh_shard_view *view, const struct oh_shard_part *part)
{
	const struct oh_shard_type *type;
	uint64_t data_bytes, end;
	return part->type <= view->types &&
	       !oh_shard_type_at(view, part->type - 1, &type, &data_bytes) &&
	       !oh_add(type->data_offset, data_bytes, &end) && end <= part->bytes;
}

onehop_status
oh_shard_part_at(const struct oh_shard_view *view, uint64_t index,
		 const struct oh_shard_part **part)
{
	const struct oh_shard_part *entry = view->part + index;
	uint64_t end;
	if (oh_add(entry->offset, entry->bytes, &end) || end > view->tar_end ||
	    entry->field >= view->fields)
		return ONEHOP_MALFORMED;
	if (entry->type && !holds_its_array(view, entry))
		return ONEHOP_MALFORMED;
	*part = entry;
	return ONEHOP_OK;
}

onehop_status
oh_shard_name_at(const struct oh_shard_view *view, const struct oh_shard_name *name,
		 const char **text, uint64_t *bytes)
{
	if ((uint64_t)name->offset + name->bytes > view->name_bytes)
		return ONEHOP_MALFORMED;
	*text = view->names + name->offset;
	*bytes = name->bytes;
	return ONEHOP_OK;
}

onehop_status
oh_shard_trailer_judge(const struct oh_shard_trailer *trailer, uint64_t file_bytes,
		       const char *path, int *found, struct onehop_error *error)
{
	uint64_t end;
	*found = 0;
	if (memcmp(trailer->magic, OH_TRAILER_MAGIC, sizeof trailer->magic) != 0)
		return ONEHOP_OK;
	if (trailer->version != OH_SHARD_VERSION) {
		oh_refuse(error, ONEHOP_UNSUPPORTED_DATA, path,
			  "a trailer of version %u, this onehop knows version %d", trailer->version,
			  OH_SHARD_VERSION);
		oh_remedy(error, "use a newer onehop");
		return ONEHOP_UNSUPPORTED_DATA;
	}
	int is_whole = trailer->crc32c ==
			       oh_crc32c(0, trailer, offsetof(struct oh_shard_trailer, crc32c)) &&
		       !oh_add(trailer->index_offset, trailer->index_bytes, &end) &&
		       end <= file_bytes - sizeof *trailer;
	*found = is_whole ? 1 : -1;
	return ONEHOP_OK;
}

/* ---- is it this shard's? */

static const char anew[] = "make the index again: onehop index --replace";

onehop_status
oh_shard_is_other(const char *path, const char *what, uint64_t is, uint64_t says,
		  struct onehop_error *error)
{
	oh_refuse(error, ONEHOP_MISMATCH, path,
		  "its index is of another shard, or of what this one was: %s is %llu and it says "
		  "%llu",
		  what, (unsigned long long)is, (unsigned long long)says);
	oh_remedy(error, anew);
	return ONEHOP_MISMATCH;
}

onehop_status
oh_shard_fits(const struct oh_shard_view *view, const struct oh_shard_seen *seen,
	      struct onehop_error *error)
{
	static const uint8_t zeros[OH_SHARD_END_BYTES];
	if (seen->bytes != view->shard_bytes)
		return oh_shard_is_other(seen->path, "the size of the shard", seen->bytes,
					 view->shard_bytes, error);
	if (seen->end && memcmp(seen->end, zeros, sizeof zeros) == 0)
		return ONEHOP_OK;
	oh_refuse(error, ONEHOP_MISMATCH, seen->path,
		  "its index is of another shard, or of what this one was: the archive does not end "
		  "at byte %llu, as it says",
		  (unsigned long long)view->tar_end);
	oh_remedy(error, anew);
	return ONEHOP_MISMATCH;
}

onehop_status
oh_shard_agrees(const struct oh_shard_view *view, const struct oh_shard_seen *seen,
		struct onehop_error *error)
{
	int says = (view->flags & OH_SHARD_TRAILER) != 0;
	const char *wrong = NULL;
	if (says && !seen->has_trailer)
		wrong = "its trailer is missing or damaged";
	else if (!says && seen->has_trailer)
		wrong = "it has a trailer that its index knows nothing of";
	else if (says && seen->index_crc32c != view->header_crc32c)
		wrong = "its trailer is of another index";
	else if (says && seen->tar_end != view->tar_end)
		return oh_shard_is_other(seen->path, "the archive's end in its trailer",
					 seen->tar_end, view->tar_end, error);
	if (!wrong)
		return ONEHOP_OK;
	oh_refuse(error, ONEHOP_MISMATCH, seen->path, "%s", wrong);
	oh_remedy(error, anew);
	return ONEHOP_MISMATCH;
}

int
oh_shard_type_bytes(const struct oh_shard_type *type, uint64_t *bytes)
{
	uint32_t element;
	if (!oh_shard_dtype_name(type->dtype, &element) || type->rank > OH_SHARD_MAX_RANK)
		return 1;
	uint64_t product = element;
	for (uint32_t i = 0; i < type->rank; i++)
		if (type->shape[i] == 0)
			product = 0;
	for (uint32_t i = 0; i < type->rank; i++)
		if (oh_mul(product, type->shape[i], &product))
			return 1;
	*bytes = product;
	return 0;
}

onehop_status
oh_shard_type_at(const struct oh_shard_view *view, uint32_t index,
		 const struct oh_shard_type **type, uint64_t *data_bytes)
{
	const struct oh_shard_type *entry = view->type + index;
	if (oh_shard_type_bytes(entry, data_bytes))
		return ONEHOP_MALFORMED;
	*type = entry;
	return ONEHOP_OK;
}
