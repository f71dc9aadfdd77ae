/* What the engine is told about the world: plain structs, no calls. */
#ifndef OH_ENGINE_FACTS_H
#define OH_ENGINE_FACTS_H

#include "memory/ops.h"
#include "storage/ops.h"

#include <onehop/plan.h>

/* Whether a chunk of a file is in the page cache. */
enum oh_residence { OH_HERE, OH_AWAY, OH_NOT_KNOWN };

struct oh_file_facts {
	const char *path; /* for messages */
	struct oh_storage_facts storage;
	const uint8_t *residence; /* one enum oh_residence a chunk; NULL: all of it is here */
	uint64_t chunk_bytes;
	uint32_t direct_alignment; /* of offset, length and memory for O_DIRECT; 0: it is refused */
	uint64_t least_slice;        /* reads of at least this much run well */
	uint64_t least_direct_slice; /* and past the page cache */
	int is_network;
	int pinned; /* all of it is mapped and pinned for the device */
};

struct oh_buffer_facts {
	uint64_t address;
	uint64_t bytes;
};

struct oh_plan_facts {
	const struct oh_file_facts *files;
	uint32_t file_count;
	const struct oh_buffer_facts *buffers;
	uint32_t buffer_count;
	struct oh_memory_facts memory; /* of the one device that all buffers are on */
	uint64_t forced_route;         /* enum onehop_route or ONEHOP_AUTO */
	uint64_t cache;                /* enum onehop_cache or ONEHOP_AUTO */
	uint64_t memory_bytes;         /* usable, for what is worth keeping */
	int few_cores;                 /* too few to fill the link by copying */
};

/* O_DIRECT reads are laid out in units of this, whatever smaller alignment would do. */
#define OH_DIRECT_PAGE UINT64_C(4096)

/* Gaps between extents that are read over rather than skipped, in a staged segment. */
#define OH_PLAN_GAP_BYTES UINT64_C(4096)

/* Below this many bytes a destination on average (or the file's least_slice, if that is more), an
 * addressable device is filled through a staging block too: a read of its own for each would cost
 * more than the copy. */
#define OH_PLAN_IN_PLACE_BYTES (UINT64_C(32) << 10)

#endif
