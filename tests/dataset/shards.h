/* Shards for tests, made by hand: a plain ustar and the index beside it, both on the small side.
 *
 *   struct made shards = make_shards("data", &recipe);   a folder of shards, all alike
 *   payload(sample, field, i)                            byte i of a payload, whatever the shard
 */
#ifndef OH_TESTS_DATASET_SHARDS_H
#define OH_TESTS_DATASET_SHARDS_H

#include "../model/files.h"

#include "base/crc32c.h"
#include "format/shard_file.h"

#include <onehop/onehop.h>

#define MOST_FIELDS 4

/* Each sample has one part of each field, of bytes plus up to vary more. */
struct recipe {
	uint64_t shards;
	uint64_t samples; /* of each shard */
	uint64_t fields;
	uint64_t bytes[MOST_FIELDS];
	uint64_t vary;
	uint64_t skip;      /* every so many samples lack their last field; 0: none */
	uint64_t episodes;  /* of each shard; 0: no times */
	int no_checksums;
	int trailer; /* the index is in the shard alone */
	uint64_t align; /* payloads begin on multiples of this, behind zeros; 0: of 512 */
};

static const char *const field_names[MOST_FIELDS] = {"jpg", "cls", "state.npy", "json"};

static uint64_t
stirred(uint64_t x)
{
	x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
	return x ^ (x >> 31);
}

UNUSED static uint8_t
payload(uint64_t sample, uint64_t field, uint64_t i)
{
	uint64_t word = stirred(sample * 64 + field * 16 + (i / 8 + 1) * UINT64_C(0x9E3779B97F4A7C15));
	return (uint8_t)(word >> (8 * (i % 8)));
}

static uint64_t
payload_bytes(const struct recipe *recipe, uint64_t sample, uint64_t field)
{
	uint64_t more = recipe->vary ? stirred(sample * 8 + field + 1) % (recipe->vary + 1) : 0;
	if (recipe->skip && field == recipe->fields - 1 && sample % recipe->skip == 0)
		return UINT64_MAX;
	return recipe->bytes[field] + more;
}

/* ---- a tar that grows in memory */

struct tar {
	uint8_t *bytes;
	uint64_t count;
	uint64_t room;
};

static uint8_t *
tar_add(struct tar *tar, uint64_t bytes)
{
	while (tar->count + bytes > tar->room) {
		tar->room = tar->room ? tar->room * 2 : 1 << 16;
		tar->bytes = realloc(tar->bytes, tar->room);
		need(tar->bytes != NULL, "realloc");
	}
	uint8_t *at = tar->bytes + tar->count;
	memset(at, 0, bytes);
	tar->count += bytes;
	return at;
}

static void
tar_header(struct tar *tar, const char *name, uint64_t bytes)
{
	char *header = (char *)tar_add(tar, 512);
	unsigned sum = 0;
	char octal[32];
	snprintf(header, 100, "%s", name);
	memcpy(header + 100, "0000644", 8);
	memcpy(header + 108, "0000000", 8);
	memcpy(header + 116, "0000000", 8);
	snprintf(octal, sizeof octal, "%011llo", (unsigned long long)bytes);
	memcpy(header + 124, octal, 11);
	memcpy(header + 136, "00000000000", 12);
	memset(header + 148, ' ', 8);
	header[156] = '0';
	memcpy(header + 257, "ustar", 6);
	memcpy(header + 263, "00", 2);
	for (int i = 0; i < 512; i++)
		sum += (uint8_t)header[i];
	snprintf(octal, sizeof octal, "%06o", sum);
	memcpy(header + 148, octal, 7);
}

/* Gives the payload's offset. */
static uint64_t
tar_member(struct tar *tar, const char *name, uint64_t sample, uint64_t field, uint64_t bytes)
{
	tar_header(tar, name, bytes);
	uint64_t offset = tar->count;
	uint8_t *at = tar_add(tar, (bytes + 511) / 512 * 512);
	for (uint64_t i = 0; i < bytes; i++)
		at[i] = payload(sample, field, i);
	return offset;
}

/* ---- shard and index */

static void
add_sample(struct tar *tar, struct oh_shard_builder *builder, const struct recipe *recipe,
	   uint64_t sample)
{
	char key[64], name[96];
	uint32_t episode = 0;
	snprintf(key, sizeof key, "s%06llu", (unsigned long long)sample);
	if (recipe->episodes) {
		snprintf(name, sizeof name, "e%llu",
			 (unsigned long long)(sample % recipe->episodes));
		oh_shard_builder_episode(builder, name, strlen(name), &episode);
	}
	struct oh_shard_time time = {(int64_t)sample * 1000, episode, OH_SHARD_NONE, 1, 0};
	oh_shard_builder_sample(builder, key, strlen(key), recipe->episodes ? &time : NULL);
	for (uint64_t field = 0; field < recipe->fields; field++) {
		uint64_t bytes = payload_bytes(recipe, sample, field);
		struct oh_shard_part part = {.bytes = bytes};
		if (bytes == UINT64_MAX)
			continue;
		while (recipe->align && (tar->count + 512) % recipe->align)
			tar_add(tar, 512);
		snprintf(name, sizeof name, "%s.%s", key, field_names[field]);
		part.offset = tar_member(tar, name, sample, field, bytes);
		part.crc32c = oh_crc32c(0, tar->bytes + part.offset, bytes);
		oh_shard_builder_field(builder, field_names[field], strlen(field_names[field]),
				       &part.field);
		oh_shard_builder_part(builder, &part, OH_SHARD_NO_TIME);
	}
}

/* The index to a side file, or behind the archive. */
static void
add_index(struct tar *tar, struct oh_shard_builder *builder, const struct recipe *recipe,
	  uint64_t tar_end, uint64_t members, const char *path)
{
	uint64_t bytes = oh_shard_builder_bytes(builder);
	uint64_t at = (tar->count + 4095) / 4096 * 4096;
	uint64_t end = recipe->trailer ? (at + bytes + 64 + 4095) / 4096 * 4096 : tar->count;
	void *index = calloc(1, bytes + 8);
	char side[1200];
	struct oh_shard_facts facts = {
		.shard_bytes = end, .tar_end = tar_end, .members = members,
		.flags = (recipe->no_checksums ? 0 : OH_SHARD_CHECKSUMS) |
			 (recipe->trailer ? OH_SHARD_TRAILER : 0),
		.alignment_bytes = 512,
	};
	need(index != NULL, "calloc");
	oh_shard_builder_finish(builder, &facts, index);
	if (recipe->trailer) {
		struct oh_shard_trailer trailer = {.version = 1, .index_offset = at, .index_bytes = bytes,
					  .tar_end = tar_end};
		memcpy(trailer.magic, "ONEHOPTL", 8);
		memcpy(&trailer.index_crc32c, (uint8_t *)index + 124, 4);
		trailer.crc32c = oh_crc32c(0, &trailer, 60);
		tar_add(tar, end - tar->count);
		memcpy(tar->bytes + at, index, bytes);
		memcpy(tar->bytes + end - 64, &trailer, 64);
	} else {
		snprintf(side, sizeof side, "%s.onehop", path);
		write_file(side, index, bytes);
	}
	free(index);
}

/* A shard of samples [first, first + recipe->samples). */
UNUSED static void
make_shard(const char *path, const struct recipe *recipe, uint64_t first)
{
	struct oh_shard_builder *builder;
	struct tar tar = {0};
	need(oh_shard_builder_create(&builder) == ONEHOP_OK, "builder");
	for (uint64_t i = 0; i < recipe->samples; i++)
		add_sample(&tar, builder, recipe, first + i);
	uint64_t tar_end = tar.count, members = oh_shard_builder_parts(builder);
	tar_add(&tar, 1024);
	tar_add(&tar, (20480 - tar.count % 20480) % 20480);
	add_index(&tar, builder, recipe, tar_end, members, path);
	write_file(path, tar.bytes, tar.count);
	oh_shard_builder_destroy(builder);
	free(tar.bytes);
}

/* A folder of them; its path, in the scratch folder. */
UNUSED static const char *
make_shards(const char *folder, const struct recipe *recipe)
{
	static char root[8][1024];
	static unsigned next;
	char *kept = root[next++ % 8], name[200];
	snprintf(name, sizeof name, "%s/x", folder);
	snprintf(kept, sizeof root[0], "%s", scratch(name));
	*strrchr(kept, '/') = '\0';
	for (uint64_t i = 0; i < recipe->shards; i++) {
		char path[1100];
		snprintf(path, sizeof path, "%s/%04llu.tar", kept, (unsigned long long)i);
		make_shard(path, recipe, i * recipe->samples);
	}
	return kept;
}

#endif
