/* Storage back ends: where bytes live. A reader is pulled: the runtime gives it a source of slices;
 * it takes as many as it can have in flight and hands each in as it ends. */
#ifndef OH_STORAGE_OPS_H
#define OH_STORAGE_OPS_H

#include "base/error.h"

#include <stdint.h>

struct oh_storage_file; /* each back end's own */

struct oh_storage_facts {
	uint64_t bytes;         /* of the file */
	uint64_t preferred_bytes; /* reads of this size or more run well */
	uint32_t alignment;     /* of offset, memory and length of a read; 1 if any will do */
	uint32_t row_gap; /* gaps of a strided read that are no longer are read with its rows */
};

/* One read: rows of row_bytes, row_stride apart in the file, packed into memory. */
struct oh_slice {
	struct oh_storage_file *file;
	uint64_t offset;
	uint64_t row_bytes;
	uint64_t rows;
	uint64_t row_stride;
	void *memory;
	void *token; /* the source's own */
	/* Past the page cache, by whole units of direct()'s alignment: what lies before and behind the
	 * range in its first and last unit is written to before and behind memory too, which is as
	 * far into a unit as the offset is. One row only. */
	uint8_t direct;
	uint8_t drop; /* drop the pages from the page cache behind the read */
};

/* How a slice ended. status NO_ROUTE: the file does not take direct reads after all. bytes counts from its first byte, in packed order; fewer than asked with
 * status OK is a short read, 0 at the end of the file. */
struct oh_slice_result {
	uint64_t bytes;
	uint64_t read_bytes; /* asked of the device, gaps included */
	onehop_status status;
	int os_errno;
};

struct oh_slice_source {
	/* Fills *slice and returns 1, or returns 0 if there is none now. */
	int (*take)(struct oh_slice_source *source, struct oh_slice *slice);
	/* Takes the result in. */
	void (*give)(struct oh_slice_source *source, const struct oh_slice *slice,
		     const struct oh_slice_result *result);
};

struct oh_storage_ops {
	const char *name;
	onehop_status (*open)(const char *path, struct oh_storage_file **file,
			      struct onehop_error *error);
	void (*close)(struct oh_storage_file *file);
	void (*facts)(const struct oh_storage_file *file, struct oh_storage_facts *facts);
	/* Makes direct reads possible, once; gives the alignment of offset, length and memory that they
	 * need, 0 if they are refused. Serial with itself for one file. */
	uint32_t (*direct)(struct oh_storage_file *file);
	/* Maps a range (its offset a multiple of the page) shared and read-only, without touching it;
	 * nobody may read through the map with the CPU (a file that shrinks would kill the process).
	 * unmap undoes it. Any thread. */
	onehop_status (*map)(const struct oh_storage_file *file, uint64_t offset, uint64_t bytes,
			     void **map, struct onehop_error *error);
	void (*unmap)(const struct oh_storage_file *file, void *map, uint64_t bytes);
	/* An open descriptor of the file, for questions about it; -1 if there is none. */
	int (*descriptor)(const struct oh_storage_file *file);
	/* OK if the file is still what open found (device, inode, size, mtime, ctime); FILE_CHANGED
	 * says what changed. */
	onehop_status (*unchanged)(const struct oh_storage_file *file, struct onehop_error *error);
	/* Reads until the source has no slice. */
	void (*read)(struct oh_slice_source *source);
};

extern const struct oh_storage_ops oh_storage_local;

#endif
