/* The command line, parsed: one table of options, of which each command takes some. */
#ifndef CLI_REQUEST_H
#define CLI_REQUEST_H

#include "out.h"

#include <onehop/onehop.h>

enum option_id {
	OPT_DEVICE,
	OPT_TENSORS,
	OPT_TP,
	OPT_TP_PLAN,
	OPT_TP_UNEVEN,
	OPT_REPEAT,
	OPT_PIN,
	OPT_VERIFY,
	OPT_CHECKSUM,
	OPT_METADATA,
	OPT_SEGMENTS,
	OPT_BYTES,
	OPT_TENSOR_BYTES,
	OPT_FRESH,
	OPT_DIR,
	OPT_KEEP,
	OPT_CONCURRENT,
	OPT_TO,
	OPT_FILE_SUMS, /* --checksum too, of files */
	OPT_NO_VERIFY,
	OPT_FORCE,
	OPT_NO_CHECKSUMS,
	OPT_REPLACE,
	OPT_VERIFY_SHARDS, /* --verify too, of shards */
	OPT_SHUFFLE,
	OPT_SEED,
	OPT_BATCH,
	OPT_RANK,
	OPT_FIELD,
	OPT_RING,
	OPT_EPOCHS,
	OPT_SECONDS,
	OPT_VERIFY_SAMPLES, /* --verify too, of samples as they land */
	OPT_JSON,
	OPT_QUIET,
	OPT_OPTION,
	OPT_HELP,
	OPT_COUNT,
};

enum checksum { CHECKSUM_NONE, CHECKSUM_CRC32, CHECKSUM_SHA256 };

/* What a command takes and how its help reads. */
struct usage {
	const char *name;
	const char *operands; /* "PATH", "[PATH]", "" */
	const char *summary;  /* one line, for the list of commands */
	const char *about;    /* paragraphs for its own help */
	int words_min, words_max;
	int option_count;
	enum option_id options[OPT_COUNT]; /* OPT_HELP is understood by all */
};

struct request {
	const char **words;
	int word_count;
	uint64_t given; /* bit 1 << option_id */
	const char *device;
	const char **patterns;
	uint64_t pattern_count;
	uint32_t tp_rank, tp_size, tp_uneven;
	const char *tp_plan;
	uint64_t repeat, fresh;
	uint64_t bytes, tensor_bytes;
	const char *dir, *to;
	uint32_t shuffle; /* enum onehop_shuffle */
	uint32_t rank, world;
	uint64_t seed, batch, ring, epochs, seconds;
	enum checksum checksum;
	const char **option_texts; /* "NAME=VALUE" as given, for a child process */
	int option_count;
	struct onehop_runtime_options options;
};

/* Not an exit status: go on. */
#define GO_ON (-1)

/* Fills *request from the words after the command's name. Returns GO_ON, or the exit status after
 * help was printed or an error said. request_drop() after GO_ON. */
int request_parse(struct request *request, const struct usage *usage, struct out *out, int argc,
		  char **argv);
void request_drop(struct request *request);

static inline int
given(const struct request *request, enum option_id id)
{
	return request->given >> id & 1;
}

/* The name nearest to word, or NULL if none is near. */
const char *nearest(const char *word, const char *const *names, int count);

#endif
