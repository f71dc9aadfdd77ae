/* What bench/disk measures, and what its files share, some of them with bench/cold.
 *
 * A *way* reads the whole file once, in slices of one size, into a ring of RING_BYTES of memory, as
 * a load does. A *pass* is one reading by one way.
 */
#ifndef BENCH_DISK_H
#define BENCH_DISK_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define RING_BYTES (UINT64_C(64) << 20)
#define SLICE_MAX (UINT64_C(4) << 20)

enum kind {
	KIND_PREAD,    /* O_DIRECT, `flight` threads of pread */
	KIND_URING,    /* O_DIRECT, one thread, io_uring with `flight` reads in it */
	KIND_FIXED,    /* the same, memory and file registered with the ring */
	KIND_BUFFERED, /* through the page cache, whose pages were dropped, `flight` threads */
	KINDS,
};

struct way {
	enum kind kind;
	unsigned flight;
	uint64_t bytes; /* a slice */
};

struct pass {
	double seconds;
	double cpu;     /* CPU seconds of this process, its kernel workers included */
	double machine; /* busy CPU seconds of the whole machine, to 0.01 s */
	double involuntary;
};

struct disk {
	uint64_t bytes; /* of the file, a multiple of SLICE_MAX */
	uint64_t seed;
	const uint8_t *head; /* what it begins with instead of noise */
	uint64_t head_bytes; /* a multiple of 8, SLICE_MAX at most */
	uint8_t *ring;
	uint64_t ring_bytes;
	int fd;        /* buffered */
	int direct_fd; /* O_DIRECT */
};

struct facts {
	char processor[128];
	char kernel[160];
	char place[256];     /* the file system and its device */
	char scheduler[160]; /* the device's queue */
	long cores;
	uint64_t memory;
	uint64_t huge; /* bytes of huge pages that this process has */
	double load;
};

/* What the program says of its words: its own. */
extern const char usage_text[];

/* Says why on stderr and ends the process with 1. */
__attribute__((noreturn, format(printf, 2, 3))) void die(int code, const char *format, ...);

/* Prints the usage and ends the process with 2 unless holds. */
void must(int holds);

/* A word that must be a number of this range. */
unsigned number(const char *text, unsigned min, unsigned max);

/* A file of noise in dir that has no name any more, and a ring of touched memory. head, which may
 * be NULL, has to stay. */
void disk_make(struct disk *disk, const char *dir, uint64_t bytes, const uint8_t *head,
	       uint64_t head_bytes);

/* Whether these are the file's bytes at offset. */
int disk_holds(const struct disk *disk, const uint8_t *memory, uint64_t bytes, uint64_t offset);

/* Drops the file's pages from offset on from the page cache, and makes sure of it. */
void disk_drop(const struct disk *disk, uint64_t offset);

/* Reads the file's first bytes into the page cache, and makes sure of it. Uses the ring. */
void disk_read_in(const struct disk *disk, uint64_t bytes);

/* How many of the pages of bytes [offset, offset + bytes), ends on pages, are in the page cache. */
uint64_t disk_resident(const struct disk *disk, uint64_t offset, uint64_t bytes);

/* A clock that the readers start when all is ready and stop behind the last byte. */
void meter_start(struct pass *pass);
void meter_stop(struct pass *pass);

/* Waits until the machine has been idle for a moment, but not for long. Whether it was. */
int wait_for_calm(void);

/* One pass. With verify each slice's bytes are compared, and the times mean nothing. */
void read_threads(const struct disk *disk, const struct way *way, int verify, struct pass *out);
void read_uring(const struct disk *disk, const struct way *way, int verify, struct pass *out);

/* How this kernel's io_uring was set up: "DEFER_TASKRUN" or what it has instead. */
const char *uring_mode(void);

void facts_find(struct facts *facts, const struct disk *disk);
void facts_print(const struct facts *facts);
/* Members of an object, each with a comma behind it. */
void facts_print_json(const struct facts *facts);

/* "name": "text", without what JSON would have to escape. */
void json_text(const char *name, const char *text);

#endif
