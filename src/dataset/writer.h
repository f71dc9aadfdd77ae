/* What the files of the shard writer share. */
#ifndef OH_DATASET_WRITER_H
#define OH_DATASET_WRITER_H

#include "dataset/out.h"
#include "format/shard.h"
#include "format/tar_write.h"

#include <onehop/dataset.h>

/* The files of a shard, in the order in which they get their names. */
enum oh_writer_file {
	OH_FILE_DALI,    /* NAME.idx */
	OH_FILE_ENERGON, /* NAME.tar.idx */
	OH_FILE_INDEX,   /* NAME.tar.onehop */
	OH_FILE_SHARD,   /* NAME.tar */
	OH_FILES
};

/* The field of a member that joins parts. */
#define OH_WRITER_JOINED "joined.bin"

/* A part of the sample that is being added. */
struct oh_new_part {
	struct onehop_part_source source; /* of our version */
	struct oh_shard_part entry;       /* but for its field and type */
	struct oh_shard_type type;
	int has_type;
	int joins; /* a member that is no part: those that follow lie in it */
};

enum oh_writer_state { OH_WRITER_OPEN, OH_WRITER_FAILED, OH_WRITER_FINISHED };

struct onehop_shard_writer {
	struct onehop_shard_options options; /* of our version, checked */
	enum oh_writer_state state;
	char *names[OH_FILES];
	struct oh_out outs[OH_FILES];
	struct oh_shard_builder *builder;
	struct oh_new_part *parts; /* kept from sample to sample */
	uint64_t parts_room;
	struct onehop_shard_info info;
};

/* A member's name: KEY.FIELD, and the field in small letters, as webdataset gives it. */
struct oh_member_name {
	char text[OH_TAR_NAME_MOST + 1];
	uint32_t bytes;
	const char *field; /* its end */
	char small[OH_TAR_NAME_MOST + 1];
	uint32_t field_bytes;
};

/* ---- writer_check.c: what a caller gives, of whatever version, into ours, checked */

onehop_status oh_writer_take_options(const struct onehop_shard_options *theirs,
				     struct onehop_shard_options *options,
				     struct onehop_error *error);
onehop_status oh_writer_take_sample(const struct onehop_sample_source *theirs,
				    struct onehop_sample_source *sample,
				    struct onehop_error *error);
/* Fills parts[0, count).source. */
onehop_status oh_writer_take_parts(const struct onehop_sample_source *sample,
				   const struct onehop_part_source *theirs, uint64_t count,
				   struct oh_new_part *parts, struct onehop_error *error);

/* Of a key and field that were checked. */
void oh_writer_name(const char *key, const char *field, struct oh_member_name *name);

/* ---- writer_part.c */

/* Writes a member: headers, payload, zeros; and fills the rest of part. alignment: of its payload.
 * *header is where its own headers begin. After a failure the shard's file is to be rewound. */
onehop_status oh_writer_put_part(struct onehop_shard_writer *writer,
				 const struct onehop_sample_source *sample,
				 const struct oh_member_name *name, uint32_t alignment,
				 struct oh_new_part *part, uint64_t *header,
				 struct onehop_error *error);

/* Fills the rest of a part whose bytes lie in the payload of joiner, which was put. */
onehop_status oh_writer_join_part(const struct onehop_sample_source *sample,
				  const struct oh_member_name *name,
				  const struct oh_new_part *joiner, struct oh_new_part *part,
				  struct onehop_error *error);

/* ---- writer_finish.c */

/* Ends the archive, writes the indexes, and gives all files their names. */
onehop_status oh_writer_finish(struct onehop_shard_writer *writer, struct onehop_error *error);

/* The first line of DALI's index: of the same length for any number of samples. */
#define OH_DALI_HEAD 26
void oh_writer_dali_head(char head[OH_DALI_HEAD + 1], uint64_t samples);

#endif
