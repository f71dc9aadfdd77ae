/* SPDX-License-Identifier: Apache-2.0
 *
 * onehop/dataset.h: samples in tar shards, written, indexed, ordered and streamed.
 *
 *   writer   packs samples into one shard, with its index (docs/format.md)
 *   dataset  shards that are indexed: sample n has parts, each a field's bytes in a shard
 *   order    which sample comes when: a function of seed, epoch, rank and world size
 *   fetch    ranges of shards, merged into large reads, into a buffer
 *   feed     fetches of an order's next batches, some always on their way
 */
#ifndef ONEHOP_DATASET_H
#define ONEHOP_DATASET_H

#include <onehop/transfer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- writing -------------------------------------------------------------------------------- */

struct onehop_shard_writer;

enum onehop_align {
	ONEHOP_ALIGN_NONE = 0,   /* as tar has it: 512 */
	ONEHOP_ALIGN_MEMBER = 1, /* each payload */
	ONEHOP_ALIGN_SAMPLE = 2, /* each sample's first payload */
};

/* What fills the gaps before aligned payloads. */
enum onehop_pad {
	ONEHOP_PAD_GNU = 0, /* long-name records: right for every reader */
	ONEHOP_PAD_PAX = 1, /* comments in extended headers: strict POSIX.1-2001 */
	ONEHOP_PAD_DIR = 2, /* directory entries __pad__/: for the plainest readers */
};

/* No timestamp, episode or stream. */
#define ONEHOP_NO_TIME INT64_MIN
#define ONEHOP_NO_NAME UINT32_MAX

struct onehop_shard_options {
	uint32_t size;
	uint32_t align;           /* enum onehop_align; SAMPLE */
	uint32_t pad;             /* enum onehop_pad; GNU */
	uint32_t alignment_bytes; /* a power of two from 512 to 2 MiB; 4096 */
	int64_t mtime;            /* of all members, s; 0, so that equal input makes equal bytes */
	uint32_t sync;            /* 1: on disk before it is published; 1 */
	uint32_t reserved;
};

ONEHOP_API void onehop_shard_options_init(struct onehop_shard_options *options);

/* Begins a shard. It is written as path.partial and published as path by finish; a file that is
 * there already is replaced then, and not before. INVALID_ARGUMENT, ACCESS, IO, NO_MEMORY, BUSY
 * (another writer writes it). */
ONEHOP_API onehop_status onehop_shard_writer_create(const char *path,
						    const struct onehop_shard_options *options,
						    struct onehop_shard_writer **writer,
						    struct onehop_error *error);

/* One part of a sample. Its bytes are in memory (data), or a range of a file (path; bytes of
 * UINT64_MAX: from offset to its end, which must not change meanwhile). */
struct onehop_part_source {
	uint32_t size;
	uint32_t rank;          /* of the array; 0 with a dtype is a scalar */
	const char *field;      /* "cam.jpg": no slash, no NUL, ASCII without spaces */
	const void *data;
	const char *path;       /* NULL: data */
	uint64_t offset;
	uint64_t bytes;
	const char *dtype;      /* "F32", ...; NULL: plain bytes */
	uint64_t shape[8];
	uint64_t data_offset;   /* bytes of the payload before the array */
	int64_t timestamp_ns;   /* ONEHOP_NO_TIME */
	uint32_t joined;        /* 1: no member of its own, but bytes [offset, offset + bytes) of the
				 * last part before it that is not joined; that one is in memory, its
				 * field is "joined.bin", and the index has those that it joins alone */
	uint32_t reserved;
};

struct onehop_sample_source {
	uint32_t size;
	uint32_t rows;          /* 1, or of a chunk */
	const char *key;        /* no dot in its last component */
	const char *episode;    /* NULL: none */
	const char *stream;     /* NULL: none */
	int64_t timestamp_ns;   /* ONEHOP_NO_TIME */
};

ONEHOP_API void onehop_part_source_init(struct onehop_part_source *part);
ONEHOP_API void onehop_sample_source_init(struct onehop_sample_source *sample);

/* Adds a sample. A part of a file that holds .npy (field ends in "npy") and has no dtype gets the
 * type that its header tells, if that is C-ordered and of a type that we name. INVALID_ARGUMENT (a
 * name that breaks the key rule, a field twice, a member of 8 GiB or more), NOT_FOUND, ACCESS, IO,
 * FILE_CHANGED (the source shrank). After a failure of a source nothing of the sample is in the
 * shard and writing may go on; after a failure to write only destroy is allowed. Serial. Blocks. */
ONEHOP_API onehop_status onehop_shard_writer_add(struct onehop_shard_writer *writer,
						 const struct onehop_sample_source *sample,
						 const struct onehop_part_source *parts,
						 uint64_t count, struct onehop_error *error);

struct onehop_shard_info {
	uint32_t size;
	uint32_t has_trailer;
	uint64_t samples;
	uint64_t members;
	uint64_t payload_bytes;
	uint64_t shard_bytes;   /* of the file so far, or when finished */
	uint64_t index_bytes;
	uint64_t skipped;       /* members that are no regular files or have no field (index only) */
	uint64_t apple_doubles; /* of these, "._x" files that macOS made (index only) */
};

/* Fill info->size first. */
ONEHOP_API onehop_status onehop_shard_writer_query(const struct onehop_shard_writer *writer,
						   struct onehop_shard_info *info);

/* Ends the archive, writes trailer, side file and the other readers' indexes, flushes them, and
 * publishes all by rename, the shard last. The writer is then good for query and destroy. info may
 * be NULL. IO (a full disk, too): nothing is published, unless the message says that only the folder
 * could not be flushed. Blocks. */
ONEHOP_API onehop_status onehop_shard_writer_finish(struct onehop_shard_writer *writer,
						    struct onehop_shard_info *info,
						    struct onehop_error *error);

/* Removes what was not published. NULL is allowed. */
ONEHOP_API void onehop_shard_writer_destroy(struct onehop_shard_writer *writer);

/* Makes the index of a tar that others wrote (path.onehop), without changing the tar. Every header
 * is checked: MALFORMED names offset and rule (checksum, cut archive, data after the end,
 * concatenated archives, numbers, a key or a field that comes again); UNSUPPORTED_DATA: sparse
 * members, compressed archives, names that are no UTF-8; LIMIT: more than 65,535 fields; FILE_CHANGED.
 * checksums 0: payloads are not read and have no CRC. replace 0: an index that is there, fits, and has
 * CRCs if they are asked for, is left. Where the shard has a trailer, its index is there, and is what
 * becomes the side file; MISMATCH: the archive was changed behind its back. info may be NULL. Any
 * thread. Blocks. */
ONEHOP_API onehop_status onehop_shard_index(const char *path, uint32_t checksums, uint32_t replace,
					    struct onehop_shard_info *info,
					    struct onehop_error *error);

/* Reads a shard from end to end by its headers alone and holds it against its index: members,
 * offsets, sizes, alignment, types and CRCs. MISMATCH or MALFORMED names the first difference. */
ONEHOP_API onehop_status onehop_shard_verify(const char *path, struct onehop_shard_info *info,
					     struct onehop_error *error);

/* CRC-32C of bytes; crc is what came before (0 at first). Any thread. */
ONEHOP_API uint32_t onehop_crc32c(uint32_t crc, const void *data, uint64_t bytes);

/* ---- reading -------------------------------------------------------------------------------- */

struct onehop_dataset;

/* Opens shards: tar files that have an index, or folders, of which all *.tar are taken in the order
 * of their names. Indexes are mapped, checked by their CRCs, and tied to their shards; payloads are
 * not read. NOT_FOUND (a shard or its index), MALFORMED, MISMATCH (an index of another shard), LIMIT,
 * NO_MEMORY. Blocks. Any thread. */
ONEHOP_API onehop_status onehop_dataset_open(struct onehop_runtime *runtime,
					     const char *const *paths, uint64_t count,
					     struct onehop_dataset **dataset,
					     struct onehop_error *error);

/* Orders, fetches and feeds of it must be gone. NULL is allowed. */
ONEHOP_API void onehop_dataset_close(struct onehop_dataset *dataset);

struct onehop_dataset_info {
	uint32_t size;
	uint32_t has_checksums; /* of every part of every shard */
	uint64_t shards;
	uint64_t samples;
	uint64_t parts;
	uint64_t fields;
	uint64_t episodes;
	uint64_t streams;
	uint64_t payload_bytes;
	uint64_t fingerprint;   /* of all indexes' contents, not of paths */
};

/* Fill size first in all of these. OUT_OF_RANGE past the end; MALFORMED for an index entry that
 * leaves its shard. Any thread. */
ONEHOP_API onehop_status onehop_dataset_query(const struct onehop_dataset *dataset,
					      struct onehop_dataset_info *info);

struct onehop_shard {
	uint32_t size;
	uint32_t alignment_bytes;
	const char *path;
	uint64_t first_sample;
	uint64_t samples;
	uint64_t bytes;
	struct onehop_file *file; /* the dataset's, for extents of the caller's own */
};
ONEHOP_API onehop_status onehop_dataset_shard_at(const struct onehop_dataset *dataset,
						 uint64_t index, struct onehop_shard *shard);

/* Names, not ended by a NUL; they live with the dataset. */
struct onehop_name {
	const char *text;
	uint64_t bytes;
};

/* A field over all shards. Where all its parts are of one dtype and shape, these are given. */
struct onehop_field {
	uint32_t size;
	uint32_t rank;
	struct onehop_name name;
	const char *dtype;      /* NULL: plain bytes, or of several types */
	uint64_t shape[8];
	uint64_t data_offset;
	uint64_t parts;
	uint64_t min_bytes;     /* of its parts' payloads */
	uint64_t max_bytes;
};
ONEHOP_API onehop_status onehop_dataset_field_at(const struct onehop_dataset *dataset,
						 uint64_t index, struct onehop_field *field);
ONEHOP_API onehop_status onehop_dataset_episode_at(const struct onehop_dataset *dataset,
						   uint64_t index, struct onehop_name *name);
ONEHOP_API onehop_status onehop_dataset_stream_at(const struct onehop_dataset *dataset,
						  uint64_t index, struct onehop_name *name);

struct onehop_sample {
	uint32_t size;
	uint32_t parts;
	uint64_t shard;
	struct onehop_name key;
	uint64_t offset;        /* of its first payload, and */
	uint64_t bytes;         /* from there to the end of its last */
	int64_t timestamp_ns;   /* ONEHOP_NO_TIME */
	uint32_t episode;       /* ONEHOP_NO_NAME */
	uint32_t stream;
	uint32_t rows;
	uint32_t reserved;
};
ONEHOP_API onehop_status onehop_dataset_sample_at(const struct onehop_dataset *dataset,
						  uint64_t index, struct onehop_sample *sample);

struct onehop_part {
	uint32_t size;
	uint32_t field;
	uint32_t crc32c;        /* 0 without checksums */
	uint32_t rank;
	uint64_t shard;
	uint64_t offset;        /* of the payload in its shard */
	uint64_t bytes;
	const char *dtype;      /* NULL: plain bytes */
	uint64_t shape[8];
	uint64_t data_offset;
	int64_t timestamp_ns;
};
ONEHOP_API onehop_status onehop_dataset_part_at(const struct onehop_dataset *dataset,
						uint64_t sample, uint64_t index,
						struct onehop_part *part);

/* The same in columns, for count samples at once; any output may be NULL. MALFORMED as above. */
struct onehop_sample_columns {
	uint32_t size;
	uint32_t reserved;
	uint64_t *shard;
	int64_t *timestamp_ns;
	uint32_t *episode;
	uint32_t *stream;
	uint32_t *rows;
};
ONEHOP_API onehop_status onehop_dataset_samples(const struct onehop_dataset *dataset,
						const uint64_t *samples, uint64_t count,
						const struct onehop_sample_columns *columns,
						struct onehop_error *error);

/* Where a field's payload of each sample lies: shard, offset, bytes, CRC; a sample that lacks the
 * field has bytes of UINT64_MAX. type: 0 plain bytes, else an index for onehop_dataset_type_at(),
 * plus 1. Any output may be NULL. */
struct onehop_part_columns {
	uint32_t size;
	uint32_t reserved;
	uint64_t *shard;
	uint64_t *offset;
	uint64_t *bytes;
	uint32_t *crc32c;
	uint32_t *type;
};
ONEHOP_API onehop_status onehop_dataset_parts(const struct onehop_dataset *dataset, uint64_t field,
					      const uint64_t *samples, uint64_t count,
					      const struct onehop_part_columns *columns,
					      struct onehop_error *error);

struct onehop_type {
	uint32_t size;
	uint32_t rank;
	const char *dtype;
	uint64_t shape[8];
	uint64_t data_offset;
};
ONEHOP_API onehop_status onehop_dataset_type_at(const struct onehop_dataset *dataset,
						uint64_t index, struct onehop_type *type);

/* ---- order ---------------------------------------------------------------------------------- */

struct onehop_order;

enum onehop_shuffle {
	ONEHOP_SHUFFLE_NONE = 0,
	ONEHOP_SHUFFLE_SHARD = 1,  /* shards change places */
	ONEHOP_SHUFFLE_BLOCK = 2,  /* blocks of samples that lie side by side do, over all shards */
	ONEHOP_SHUFFLE_SAMPLE = 3, /* and samples, within windows of many blocks */
};

enum onehop_remainder {
	ONEHOP_REMAINDER_DROP = 0,   /* whole batches on all ranks; what is left is dropped */
	ONEHOP_REMAINDER_PAD = 1,    /* the last batches are filled up with samples again, marked */
	ONEHOP_REMAINDER_UNEVEN = 2, /* each sample once; ranks may differ by a batch */
};

/* The order of an epoch is one sequence S of all samples, whatever rank, world, batch and start are.
 * Blocks are put in a random order, the sequence is cut into lanes of equal length, each lane is
 * shuffled within windows, and S takes one sample from each lane in turn. Rank r has the positions
 * that are r modulo world; its batch t is the next `batch` of them. So ranks whose number divides
 * that of the lanes read different parts of the shards, and a world of another size goes on where
 * one ended: at start = the positions that all ranks have consumed. */
struct onehop_order_options {
	uint32_t size;
	uint32_t shuffle;       /* enum onehop_shuffle; SAMPLE */
	uint32_t remainder;     /* enum onehop_remainder; DROP */
	uint32_t rank;          /* 0 */
	uint32_t world;         /* 1 */
	uint32_t lanes;         /* 16 */
	uint64_t seed;          /* 0 */
	uint64_t epoch;         /* 0 */
	uint64_t batch;         /* samples of a rank's batch; 1 */
	uint64_t start;         /* positions of S that were consumed before; 0 */
	uint64_t block_bytes;   /* a block ends before it is larger; 8 MiB */
	uint64_t window_bytes;  /* of all lanes' windows together, by the mean sample; 192 MiB */
	const uint64_t *samples; /* these samples, in this order before shuffling; NULL: all */
	uint64_t sample_count;
};

ONEHOP_API void onehop_order_options_init(struct onehop_order_options *options);

/* samples is copied. INVALID_ARGUMENT, NO_MEMORY. Any thread. */
ONEHOP_API onehop_status onehop_order_create(const struct onehop_dataset *dataset,
					     const struct onehop_order_options *options,
					     struct onehop_order **order, struct onehop_error *error);
ONEHOP_API void onehop_order_destroy(struct onehop_order *order);

struct onehop_order_info {
	uint32_t size;
	uint32_t reserved;
	uint64_t samples;       /* of S, from its beginning */
	uint64_t rows;          /* of this rank, from start on, padded ones included */
	uint64_t batches;       /* of this rank, from start on */
	uint64_t dropped;       /* positions that no rank gets */
	uint64_t padded;        /* rows of all ranks that repeat a sample */
	uint64_t blocks;
};
ONEHOP_API onehop_status onehop_order_query(const struct onehop_order *order,
					    struct onehop_order_info *info);

/* Samples of this rank's rows [first, first + count); pad (may be NULL) is 1 where a sample is
 * repeated to fill up. OUT_OF_RANGE past the end. Any thread. */
ONEHOP_API onehop_status onehop_order_rows(const struct onehop_order *order, uint64_t first,
					   uint64_t count, uint64_t *samples, uint8_t *pad);

/* ---- fetch ---------------------------------------------------------------------------------- */

struct onehop_fetch;

struct onehop_range {
	uint64_t shard;
	uint64_t offset;
	uint64_t bytes;
};

/* Plans ranges into a buffer from buffer_offset on. Ranges that lie within gap_bytes of each other
 * are read as one, those that overlap are read once. placed[i] is where range i begins in the
 * buffer: always at its offset in the shard modulo 4096. *needed (may be NULL) is how many bytes of
 * the buffer are used, from buffer_offset on, also if it is too small for them (LIMIT); with a
 * buffer of NULL nothing is planned and only placed and needed are given. */
ONEHOP_API onehop_status onehop_fetch_create(struct onehop_dataset *dataset,
					     const struct onehop_range *ranges, uint64_t count,
					     uint64_t gap_bytes, struct onehop_buffer *buffer,
					     uint64_t buffer_offset, uint64_t *placed,
					     uint64_t *needed, struct onehop_fetch **fetch,
					     struct onehop_error *error);

/* As the transfer's calls of the same names. wait's errors name shard, offset and key. */
ONEHOP_API onehop_status onehop_fetch_start(struct onehop_fetch *fetch,
					    const struct onehop_start_options *options,
					    struct onehop_error *error);
ONEHOP_API onehop_status onehop_fetch_wait(struct onehop_fetch *fetch, uint64_t timeout_ns,
					   struct onehop_completion *completion,
					   struct onehop_error *error);
ONEHOP_API void onehop_fetch_destroy(struct onehop_fetch *fetch);

/* ---- feed ----------------------------------------------------------------------------------- */

struct onehop_feed;

enum onehop_damage {
	ONEHOP_DAMAGE_REFUSE = 0, /* next fails with MISMATCH, which names shard, offset and key */
	ONEHOP_DAMAGE_SKIP = 1,   /* the row's sample is UINT64_MAX, and it is counted */
};

/* A field that is fed, and where its bytes go. */
struct onehop_feed_field {
	uint32_t field;         /* index in the dataset */
	uint32_t on_host;       /* 0: on the device; 1: in host memory, pinned for a GPU */
};

struct onehop_feed_options {
	uint32_t size;
	uint32_t verify;        /* 1: each payload's CRC is checked where it landed; 0 */
	uint32_t damage;        /* enum onehop_damage */
	uint32_t groups;        /* buffers of each kind: N-fold; 3 */
	const char *device;     /* "host" */
	uint64_t ring_bytes;    /* all buffers together at most; 0: 768 MiB, more if a batch needs it */
	uint64_t gap_bytes;     /* see onehop_fetch_create(); 32 KiB */
	const struct onehop_feed_field *fields;
	uint64_t field_count;   /* 0: all fields, on the device */
	uint32_t flags;         /* enum onehop_start_flags */
	uint32_t reserved;
	uint64_t after_stream;
};

ONEHOP_API void onehop_feed_options_init(struct onehop_feed_options *options);

/* Allocates the buffers and starts the first groups. Host buffers beside a GPU are pinned for it; a
 * child of fork does not have them then. What cannot be pinned works all the same, and
 * onehop_feed_query() says why. The order is used until the feed is gone. LIMIT (a batch is larger than
 * ring_bytes allows, with both figures), NO_MEMORY, NO_DEVICE. */
ONEHOP_API onehop_status onehop_feed_create(struct onehop_dataset *dataset,
					    const struct onehop_order *order,
					    const struct onehop_feed_options *options,
					    struct onehop_feed **feed, struct onehop_error *error);

/* Some of an order's next batches, in one buffer. All pointers are good until its release. */
struct onehop_group {
	uint32_t size;
	uint32_t slot;          /* for release */
	uint64_t first_batch;   /* of this rank, from its order's start */
	uint64_t batches;
	uint64_t rows;
	const uint64_t *samples; /* [rows] */
	const uint8_t *pad;      /* [rows] */
	const uint64_t *offsets; /* [fields][rows]: where the payload lies in its buffer */
	const uint64_t *bytes;   /* [fields][rows]; UINT64_MAX: the sample lacks the field */
	struct onehop_buffer *device_buffer; /* NULL if no field is there */
	struct onehop_buffer *host_buffer;
	uint64_t order;          /* 0: the feed's first; n: the n-th that was appended */
};

/* Goes on with another order after those that it has, so that no pause lies between two epochs. An
 * order is used until a group of a later one was given, or the feed is gone. Also after END. LIMIT
 * (a batch of it does not fit the buffers), NO_MEMORY. Serial with next and release. */
ONEHOP_API onehop_status onehop_feed_append(struct onehop_feed *feed,
					    const struct onehop_order *order,
					    struct onehop_error *error);

/* The next group, when its bytes have landed. END after the last; TIMED_OUT. At most `groups` are
 * out at once: BUSY if none was released. Serial. */
ONEHOP_API onehop_status onehop_feed_next(struct onehop_feed *feed, uint64_t timeout_ns,
					  struct onehop_group *group, struct onehop_error *error);

/* Gives a group's buffers back, to be filled again once what the stream (with
 * ONEHOP_START_AFTER_STREAM in flags) holds now is done. */
ONEHOP_API onehop_status onehop_feed_release(struct onehop_feed *feed, uint32_t slot,
					     uint32_t flags, uint64_t stream,
					     struct onehop_error *error);

struct onehop_feed_info {
	uint32_t size;
	uint32_t groups;
	uint64_t device_bytes;   /* of the buffers */
	uint64_t host_bytes;
	uint64_t payload_bytes;  /* landed */
	uint64_t read_bytes;     /* asked of storage, or copied from a map of it */
	uint64_t rows;
	uint64_t damaged;        /* rows that were skipped */
	uint64_t waited_ns;      /* that next waited for bytes: the consumer's stall */
	uint64_t idle_ns;        /* that no fetch could start, since no group was released */
	uint64_t host_pinned_bytes; /* of host_bytes: pinned for the device, if that is a GPU */
	char unpinned[256];      /* why something that should be pinned is not, and so is slow; or "" */
};
ONEHOP_API onehop_status onehop_feed_query(const struct onehop_feed *feed,
					   struct onehop_feed_info *info);

/* Ends what is in flight. NULL is allowed. */
ONEHOP_API void onehop_feed_destroy(struct onehop_feed *feed);

#ifdef __cplusplus
}
#endif
#endif
