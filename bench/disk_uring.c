/* Passes by io_uring: one thread keeps up to `flight` reads in a ring, and waits for one or more of
 * them at a time.
 *
 * Setting up and registering are outside the time, as a library would keep its ring. The kernel is
 * asked for its cheapest mode first: completions run by the one thread that waits.
 */
#include "disk.h"

#include <errno.h>
#include <liburing.h>
#include <string.h>

struct mode {
	unsigned flags;
	const char *name;
};

static const struct mode modes[] = {
	{IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, "DEFER_TASKRUN"},
	{IORING_SETUP_COOP_TASKRUN, "COOP_TASKRUN"},
	{0, "plain"},
};

#define MODES (sizeof modes / sizeof *modes)
#define SLOTS_MAX (RING_BYTES / (UINT64_C(64) << 10))

struct flight {
	const struct disk *disk;
	const struct way *way;
	struct io_uring uring;
	int verify;
	uint64_t next;		     /* offset of the slice to read next */
	unsigned busy;		     /* reads under way */
	uint32_t first, count;	     /* of the free slots, oldest first */
	uint32_t free[SLOTS_MAX];    /* a queue that goes round */
	uint64_t offsets[SLOTS_MAX]; /* what each busy slot reads */
};

static const struct mode *
set_up(struct io_uring *uring, unsigned entries)
{
	int code = 0;
	for (size_t i = 0; i < MODES; i++) {
		code = io_uring_queue_init(entries, uring, modes[i].flags);
		if (code == 0)
			return &modes[i];
	}
	die(-code, "no io_uring here");
}

const char *
uring_mode(void)
{
	struct io_uring uring;
	const char *name = set_up(&uring, 8)->name;
	io_uring_queue_exit(&uring);
	return name;
}

static void
set_registered(struct flight *flight)
{
	const struct iovec memory = {flight->disk->ring, RING_BYTES};
	int code = io_uring_register_buffers(&flight->uring, &memory, 1);
	if (code < 0)
		die(-code, "cannot register memory with io_uring");
	code = io_uring_register_files(&flight->uring, &flight->disk->direct_fd, 1);
	if (code < 0)
		die(-code, "cannot register the file with io_uring");
}

static uint32_t
slots(const struct flight *flight)
{
	return (uint32_t)(RING_BYTES / flight->way->bytes);
}

/* Asks for the next slice into the slot that has been free for longest. */
static void
ask(struct flight *flight)
{
	uint32_t slot = flight->free[flight->first];
	unsigned bytes = (unsigned)flight->way->bytes;
	uint8_t *memory = flight->disk->ring + slot * flight->way->bytes;
	struct io_uring_sqe *sqe = io_uring_get_sqe(&flight->uring);
	if (!sqe)
		die(EBUSY, "io_uring's queue is full");
	if (flight->way->kind == KIND_FIXED) {
		io_uring_prep_read_fixed(sqe, 0, memory, bytes, flight->next, 0);
		io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
	} else {
		io_uring_prep_read(sqe, flight->disk->direct_fd, memory, bytes, flight->next);
	}
	io_uring_sqe_set_data64(sqe, slot);
	flight->offsets[slot] = flight->next;
	flight->next += bytes;
	flight->first = (flight->first + 1) % slots(flight);
	flight->count--;
	flight->busy++;
}

static void
end_one(struct flight *flight, const struct io_uring_cqe *cqe)
{
	uint32_t slot = (uint32_t)cqe->user_data;
	uint64_t bytes = flight->way->bytes, offset = flight->offsets[slot];
	if (cqe->res < 0)
		die(-cqe->res, "cannot read the file");
	if ((uint64_t)cqe->res != bytes)
		die(EIO, "io_uring read %d of %llu bytes", cqe->res, (unsigned long long)bytes);
	if (flight->verify &&
	    !disk_holds(flight->disk, flight->disk->ring + slot * bytes, bytes, offset))
		die(EIO, "wrong bytes at offset %llu", (unsigned long long)offset);
	flight->free[(flight->first + flight->count) % slots(flight)] = slot;
	flight->count++;
	flight->busy--;
}

static void
fly(struct flight *flight)
{
	while (flight->next < flight->disk->bytes || flight->busy) {
		struct io_uring_cqe *cqe;
		unsigned head, seen = 0;
		while (flight->next < flight->disk->bytes && flight->busy < flight->way->flight)
			ask(flight);
		int code = io_uring_submit_and_wait(&flight->uring, 1);
		if (code < 0 && code != -EINTR)
			die(-code, "io_uring does not go on");
		io_uring_for_each_cqe (&flight->uring, head, cqe) {
			end_one(flight, cqe);
			seen++;
		}
		io_uring_cq_advance(&flight->uring, seen);
	}
}

void
read_uring(const struct disk *disk, const struct way *way, int verify, struct pass *out)
{
	struct flight flight = {.disk = disk, .way = way, .verify = verify};
	flight.count = slots(&flight);
	for (uint32_t i = 0; i < flight.count; i++)
		flight.free[i] = i;
	set_up(&flight.uring, way->flight);
	if (way->kind == KIND_FIXED)
		set_registered(&flight);
	meter_start(out);
	fly(&flight);
	meter_stop(out);
	io_uring_queue_exit(&flight.uring);
}
