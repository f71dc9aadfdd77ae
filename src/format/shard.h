/* The index of a shard (docs/format.md): checked and read in place, or built. Pure: bytes in, bytes
 * out.
 */
#ifndef OH_FORMAT_SHARD_H
#define OH_FORMAT_SHARD_H

#include <stddef.h>
#include <stdint.h>

#include <onehop/status.h>

#define OH_SHARD_NO_TIME INT64_MIN
#define OH_SHARD_NONE UINT32_MAX
#define OH_SHARD_MAX_RANK 8

/* Flags of the header. */
#define OH_SHARD_CHECKSUMS 1
#define OH_SHARD_TRAILER 2

/* As they lie in the file, on a little-endian machine; the build refuses others. */
struct oh_shard_sample {
	uint64_t first_part;
	uint64_t key;
};

struct oh_shard_part {
	uint64_t offset;
	uint64_t bytes;
	uint32_t crc32c;
	uint16_t field;
	uint16_t reserved;
	uint32_t type; /* 0: bytes; n: types[n - 1] */
	uint32_t reserved2;
};

struct oh_shard_name {
	uint32_t offset; /* in names */
	uint32_t bytes;
};

struct oh_shard_type {
	uint16_t dtype;
	uint16_t rank;
	uint32_t data_offset;
	uint64_t shape[OH_SHARD_MAX_RANK];
};

struct oh_shard_time {
	int64_t timestamp_ns;
	uint32_t episode;
	uint32_t stream;
	uint32_t rows;
	uint32_t reserved;
};

/* An index in place: pointers into the bytes that were given. Sections that it lacks are NULL, with
 * counts of 0. */
struct oh_shard_view {
	uint64_t shard_bytes;
	uint64_t tar_end;
	uint64_t members;
	uint64_t samples;
	uint64_t parts;
	uint32_t flags;
	uint32_t alignment_bytes;
	uint32_t align;
	uint32_t fields;
	uint32_t types;
	uint32_t episodes;
	uint32_t streams;
	uint32_t header_crc32c; /* vouches for all sections */
	const struct oh_shard_sample *sample; /* [samples + 1] */
	const struct oh_shard_part *part;
	const struct oh_shard_name *field;
	const struct oh_shard_type *type;
	const struct oh_shard_time *time;     /* [samples] or NULL */
	const int64_t *part_time;             /* [parts] or NULL */
	const struct oh_shard_name *episode;
	const struct oh_shard_name *stream;
	const char *keys;
	const char *names;
	uint64_t key_bytes;
	uint64_t name_bytes;
};

/* Checks header, directory, bounds, alignments and CRCs, and gives the view. bytes must be aligned to
 * 8 and outlive it. name is the file's, for errors. Entries of samples, parts, types and times are
 * not looked at: use the calls below. MALFORMED, UNSUPPORTED_DATA (a newer version). */
onehop_status oh_shard_open(const void *bytes, uint64_t size, const char *name,
			    struct oh_shard_view *view, struct onehop_error *error);

/* CRCs of an index in pieces, as far as they are whole: crc32c[i] is of bytes [i * piece_bytes,
 * (i + 1) * piece_bytes). */
struct oh_shard_sums {
	uint64_t piece_bytes;
	const uint32_t *crc32c;
};

/* The same for bytes that were summed when they were read, by several threads: they are not summed
 * again. */
onehop_status oh_shard_open_summed(const void *bytes, uint64_t size,
				   const struct oh_shard_sums *sums, const char *name,
				   struct oh_shard_view *view, struct onehop_error *error);

/* Entry by entry, checked: MALFORMED if it leaves its bounds. index < samples, parts, ... is the
 * caller's to see to. */
onehop_status oh_shard_sample_at(const struct oh_shard_view *view, uint64_t index, uint64_t *first,
				 uint64_t *count, const char **key, uint64_t *key_bytes);
onehop_status oh_shard_part_at(const struct oh_shard_view *view, uint64_t index,
			       const struct oh_shard_part **part);
onehop_status oh_shard_name_at(const struct oh_shard_view *view, const struct oh_shard_name *name,
			       const char **text, uint64_t *bytes);
/* Rank, dtype and the product of the shape in bytes are in order. */
onehop_status oh_shard_type_at(const struct oh_shard_view *view, uint32_t index,
			       const struct oh_shard_type **type, uint64_t *data_bytes);

/* Bytes of an array of that type; 1 if dtype or rank is none, or they are too many to count. An empty
 * array has none, however long its other sides are. */
int oh_shard_type_bytes(const struct oh_shard_type *type, uint64_t *bytes);

/* dtype code <-> the name that safetensors spells ("F32"); 0 and NULL for what has none. bytes of an
 * element. */
const char *oh_shard_dtype_name(uint16_t code, uint32_t *element_bytes);
uint16_t oh_shard_dtype_code(const char *name);

/* ---- building */

struct oh_shard_builder;

onehop_status oh_shard_builder_create(struct oh_shard_builder **builder);
void oh_shard_builder_destroy(struct oh_shard_builder *builder);

/* Ids by name or content, made when they are new. LIMIT (65,535 fields), NO_MEMORY. */
onehop_status oh_shard_builder_field(struct oh_shard_builder *builder, const char *name,
				     uint64_t bytes, uint16_t *field);
onehop_status oh_shard_builder_type(struct oh_shard_builder *builder,
				    const struct oh_shard_type *type, uint32_t *type_plus_one);
onehop_status oh_shard_builder_episode(struct oh_shard_builder *builder, const char *name,
				       uint64_t bytes, uint32_t *episode);
onehop_status oh_shard_builder_stream(struct oh_shard_builder *builder, const char *name,
				      uint64_t bytes, uint32_t *stream);

/* From here on a key that is there already is INVALID_ARGUMENT for the call below. About 5 bytes more
 * a sample. Before the first sample. */
void oh_shard_builder_refuse_twins(struct oh_shard_builder *builder);

/* A sample, then its parts. time NULL: none. LIMIT: 4 GiB of keys, with the call above. */
onehop_status oh_shard_builder_sample(struct oh_shard_builder *builder, const char *key,
				      uint64_t key_bytes, const struct oh_shard_time *time);
onehop_status oh_shard_builder_part(struct oh_shard_builder *builder,
				    const struct oh_shard_part *part, int64_t timestamp_ns);

uint64_t oh_shard_builder_samples(const struct oh_shard_builder *builder);
uint64_t oh_shard_builder_parts(const struct oh_shard_builder *builder);

/* What the header says of the shard. */
struct oh_shard_facts {
	uint64_t shard_bytes;
	uint64_t tar_end;
	uint64_t members;
	uint32_t flags;
	uint32_t alignment_bytes;
	uint32_t align;
};

/* Bytes that the index will have. */
uint64_t oh_shard_builder_bytes(const struct oh_shard_builder *builder);

/* Writes it: bytes has room for that many, and is aligned to 8. Equal samples and facts make equal
 * bytes. */
void oh_shard_builder_finish(const struct oh_shard_builder *builder,
			     const struct oh_shard_facts *facts, void *bytes);

#endif
