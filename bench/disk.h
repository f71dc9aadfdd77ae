/* What bench/disk measures, and what its files share.
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
	uint8_t *ring;
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

/* Says why on stderr and ends the process with 1. */
__attribute__((noreturn, format(printf, 2, 3))) void die(int code, const char *format, ...);

/* A file of noise in dir that has no name any more, and a ring of touched memory. */
void disk_make(struct disk *disk, const char *dir, uint64_t bytes);

/* Whether these are the file's bytes at offset. */
int disk_holds(const struct disk *disk, const uint8_t *memory, uint64_t bytes, uint64_t offset);

/* Drops the file's pages from the page cache, and makes sure of it. */
void disk_drop(const struct disk *disk);

/* One pass, after its file's pages were dropped. With verify each slice's bytes are compared, and
 * the times mean nothing. */
void disk_pass(const struct disk *disk, const struct way *way, int verify, struct pass *out);

/* A clock that disk_pass's readers start when all is ready and stop behind the last byte. */
void meter_start(struct pass *pass);
void meter_stop(struct pass *pass);

/* Waits until the machine has been idle for a moment, but not for long. Whether it was. */
int wait_for_calm(void);

void read_threads(const struct disk *disk, const struct way *way, int verify, struct pass *out);
void read_uring(const struct disk *disk, const struct way *way, int verify, struct pass *out);

/* How this kernel's io_uring was set up: "DEFER_TASKRUN" or what it has instead. */
const char *uring_mode(void);

void facts_find(struct facts *facts, const struct disk *disk);

#endif
