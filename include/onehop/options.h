/* SPDX-License-Identifier: Apache-2.0
 *
 * onehop/options.h: the options of a runtime.
 *
 * ONEHOP_RUNTIME_OPTIONS below is the one table: struct fields, defaults, the ONEHOP_* variables of
 * the environment (the name in capitals), the config file, `onehop options` and the manual page all
 * come from it. A value is taken from the first of: the field that the caller set, the environment,
 * the config file (the file that ONEHOP_CONFIG names, "name = value" lines, # comments), the table.
 * The environment is read once, when a runtime is created. An unknown ONEHOP_* variable or name in
 * the file is an error that names the nearest option.
 *
 * Sizes are bytes; in text they take the suffixes K, M, G, T or KiB, MiB, GiB, TiB, all powers of
 * 1024. Enumerated values are given by name in text and by number in the struct.
 */
#ifndef ONEHOP_OPTIONS_H
#define ONEHOP_OPTIONS_H

#include <onehop/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* In a field: the caller did not set it. */
#define ONEHOP_UNSET UINT64_MAX
/* In a field whose row allows it: chosen from what the machine offers. In text: "auto". */
#define ONEHOP_AUTO (UINT64_MAX - 1)

/* How a segment travels from storage to its destination. */
#define ONEHOP_ROUTE_LIST(X)                                                                       \
	X(BUFFERED, 0, "buffered", "page cache to the destination, by way of a pinned ring for "   \
				   "a GPU")                                                        \
	X(DIRECT, 1, "direct", "O_DIRECT into the ring, past the page cache")                      \
	X(MAPPED, 2, "mapped", "from the page cache itself, pinned for the GPU: no copy by a CPU")
#define ONEHOP_ROUTE_ENUM(name, value, text, doc) ONEHOP_ROUTE_##name = value,
enum onehop_route { ONEHOP_ROUTE_LIST(ONEHOP_ROUTE_ENUM) ONEHOP_ROUTE_COUNT };
#undef ONEHOP_ROUTE_ENUM

/* What a load does with the page cache. */
#define ONEHOP_CACHE_LIST(X)                                                                       \
	X(KEEP, 0, "keep", "read through it and leave the pages there")                            \
	X(BYPASS, 1, "bypass", "read past it wherever O_DIRECT works")                             \
	X(DROP, 2, "drop", "read through it and drop the pages behind the read")
#define ONEHOP_CACHE_ENUM(name, value, text, doc) ONEHOP_CACHE_##name = value,
enum onehop_cache { ONEHOP_CACHE_LIST(ONEHOP_CACHE_ENUM) ONEHOP_CACHE_COUNT };
#undef ONEHOP_CACHE_ENUM

/* When a plan looks which pages of its files are in the page cache. */
#define ONEHOP_LOOK_LIST(X)                                                                        \
	X(ALWAYS, 0, "always", "each plan looks, so that its reasons tell")
#define ONEHOP_LOOK_ENUM(name, value, text, doc) ONEHOP_LOOK_##name = value,
enum onehop_look { ONEHOP_LOOK_LIST(ONEHOP_LOOK_ENUM) ONEHOP_LOOK_COUNT };
#undef ONEHOP_LOOK_ENUM

/* X(name, kind, default, minimum, maximum, auto allowed, unit, doc)
 * kind: COUNT, BYTES, ROUTE, CACHE or LOOK; a default of ONEHOP_AUTO is decided at run time. */
#define ONEHOP_RUNTIME_OPTIONS(X)                                                                  \
	X(threads, COUNT, ONEHOP_AUTO, 1, 1024, 1, "threads",                                      \
	  "worker threads; auto: the usable cores (affinity and cgroup quota) divided by "         \
	  "ranks_per_node, less the one that waits, at least 1 and at most 31; for files on a "    \
	  "network file system 15 over ranks_per_node at least")                                   \
	X(ranks_per_node, COUNT, 1, 1, 4096, 0, "processes",                                       \
	  "processes of the same job on this machine, which share cores and cache")                \
	X(ring_bytes, BYTES, ONEHOP_AUTO, 65536, UINT64_C(1) << 40, 1, "bytes",                    \
	  "pinned staging memory a device; auto: 64 MiB, but no more than a quarter of the "       \
	  "last-level cache where that is known; by the ranks_per_node twice that together, and "  \
	  "16 MiB at least each; "                                                                 \
	  "while other processes load too, no more of it is used than makes 128 MiB for all")      \
	X(block_bytes, BYTES, ONEHOP_AUTO, 4096, UINT64_C(1) << 30, 1, "bytes",                    \
	  "one block of the ring, which is one copy to the device; auto: a quarter of the ring, "  \
	  "16 MiB at most")                                                                        \
	X(slice_bytes, BYTES, ONEHOP_AUTO, 4096, UINT64_C(1) << 30, 1, "bytes",                    \
	  "one read; many threads fill the slices of one block; auto: 512 KiB, but 4 MiB past "    \
	  "the page cache, and what a network file system asks for")                               \
	X(pinned_limit_bytes, BYTES, UINT64_C(128) << 20, 65536, UINT64_C(1) << 44, 0, "bytes",    \
	  "most staging memory that the runtime may have pinned, all devices together")            \
	X(buffer_limit_bytes, BYTES, ONEHOP_AUTO, 0, UINT64_C(1) << 50, 1, "bytes",                \
	  "most memory that buffers may take on one device, host memory counting as one; a load "  \
	  "that needs more fails before it starts; auto: what the device and the cgroup have")     \
	X(route, ROUTE, ONEHOP_AUTO, 0, ONEHOP_ROUTE_COUNT - 1, 1, "route",                        \
	  "force one route; a forced route that cannot work is an error")                          \
	X(cache, CACHE, ONEHOP_AUTO, 0, ONEHOP_CACHE_COUNT - 1, 1, "policy",                             \
	  "what to do with the page cache: keep, bypass, drop; auto: resident pages are used, "    \
	  "absent ones are kept if they fit in half of the usable memory, else read past it, or "  \
	  "dropped behind the read where O_DIRECT does not work")                                  \
	X(look, LOOK, ONEHOP_AUTO, 0, ONEHOP_LOOK_COUNT - 1, 1, "policy",                                \
	  "look which bytes are in the page cache before loading; always, or auto: only where it " \
	  "decides the route, since it takes some milliseconds a GB")

/* Fill with onehop_runtime_options_init(), then set fields. */
struct onehop_runtime_options {
	uint32_t size; /* sizeof(struct onehop_runtime_options) as the caller knew it */
	uint32_t reserved;
#define ONEHOP_OPTION_FIELD(name, kind, def, min, max, autos, unit, doc) uint64_t name;
	ONEHOP_RUNTIME_OPTIONS(ONEHOP_OPTION_FIELD)
#undef ONEHOP_OPTION_FIELD
};

/* Marks every field as unset. Any thread, never fails. */
ONEHOP_API void onehop_runtime_options_init(struct onehop_runtime_options *options);

/* Sets the field called `name` from text, as the environment would ("64MiB", "auto", "buffered").
 * UNKNOWN_OPTION names the nearest option; OUT_OF_RANGE gives the range. */
ONEHOP_API onehop_status onehop_runtime_options_set(struct onehop_runtime_options *options,
						    const char *name, const char *value,
						    struct onehop_error *error);

/* One resolved option of a runtime, for people. Strings live as long as the runtime. */
struct onehop_option_value {
	uint32_t size;
	uint32_t reserved;
	const char *name;
	const char *value;  /* as text, in the form that the environment takes */
	const char *origin; /* "caller", "environment", "config file" or "default" */
	const char *unit;
	const char *fallback; /* the table's default, as text */
	const char *range;    /* the values allowed, as text */
	const char *doc;
};

#ifdef __cplusplus
}
#endif
#endif
