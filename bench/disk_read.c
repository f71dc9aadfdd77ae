/* Passes by threads of pread, and the clock of all passes.
 *
 * Threads take slices in the file's order; thread t of n reads into the ring's slots t, t + n, ...
 * in turn, so that the whole ring is used whatever n is, and no two share a slot.
 */
#include "disk.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define THREADS_MAX 64

struct crew {
	const struct disk *disk;
	const struct way *way;
	int fd;
	int verify;
	pthread_barrier_t ready;
	_Atomic uint64_t next;
};

struct hand {
	struct crew *crew;
	unsigned index;
	pthread_t thread;
};

/* ------------------------------------------------------------------------------------------- */
/* The clock */

static double
now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static double
seconds(struct timeval time)
{
	return (double)time.tv_sec + (double)time.tv_usec * 1e-6;
}

/* Of all cores: what is neither idle nor waiting for a disk. */
static double
machine_busy(void)
{
	unsigned long long user = 0, nice = 0, system = 0, idle, wait, irq = 0, soft = 0;
	FILE *file = fopen("/proc/stat", "re");
	if (!file)
		return 0;
	if (fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle,
		   &wait, &irq, &soft) != 7)
		user = nice = system = irq = soft = 0;
	fclose(file);
	return (double)(user + nice + system + irq + soft) / (double)sysconf(_SC_CLK_TCK);
}

static struct pass
reading(void)
{
	struct rusage usage;
	getrusage(RUSAGE_SELF, &usage);
	return (struct pass){
		.seconds = now(),
		.cpu = seconds(usage.ru_utime) + seconds(usage.ru_stime),
		.machine = machine_busy(),
		.involuntary = (double)usage.ru_nivcsw,
	};
}

/* The order keeps the clock's own work out of the time. */
void
meter_start(struct pass *pass)
{
	*pass = reading();
	pass->seconds = now();
}

void
meter_stop(struct pass *pass)
{
	double end = now();
	struct pass last = reading();
	pass->seconds = end - pass->seconds;
	pass->cpu = last.cpu - pass->cpu;
	pass->machine = last.machine - pass->machine;
	pass->involuntary = last.involuntary - pass->involuntary;
}

int
wait_for_calm(void)
{
	const struct timespec moment = {.tv_nsec = 50000000};
	double give_up = now() + 1;
	do {
		double before = machine_busy();
		nanosleep(&moment, NULL);
		if (machine_busy() - before < 0.015)
			return 1;
	} while (now() < give_up);
	return 0;
}

/* ------------------------------------------------------------------------------------------- */
/* The threads */

static void
read_slice(const struct crew *crew, uint8_t *memory, uint64_t offset)
{
	uint64_t bytes = crew->way->bytes;
	for (uint64_t done = 0; done < bytes;) {
		ssize_t got = pread(crew->fd, memory + done, bytes - done, (off_t)(offset + done));
		if (got <= 0)
			die(got < 0 ? errno : EIO, "cannot read the file");
		done += (uint64_t)got;
	}
	if (crew->verify && !disk_holds(crew->disk, memory, bytes, offset))
		die(EIO, "wrong bytes at offset %llu", (unsigned long long)offset);
}

static void *
work(void *context)
{
	const struct hand *hand = context;
	struct crew *crew = hand->crew;
	uint64_t bytes = crew->way->bytes, slots = crew->disk->ring_bytes / bytes;
	uint64_t slot = hand->index;
	pthread_barrier_wait(&crew->ready);
	for (;;) {
		uint64_t offset = atomic_fetch_add(&crew->next, 1) * bytes;
		if (offset >= crew->disk->bytes)
			return NULL;
		read_slice(crew, crew->disk->ring + slot * bytes, offset);
		slot += crew->way->flight;
		if (slot >= slots)
			slot = hand->index;
	}
}

void
read_threads(const struct disk *disk, const struct way *way, int verify, struct pass *out)
{
	struct hand hands[THREADS_MAX];
	struct crew crew = {.disk = disk, .way = way, .verify = verify};
	crew.fd = way->kind == KIND_BUFFERED ? disk->fd : disk->direct_fd;
	pthread_barrier_init(&crew.ready, NULL, way->flight + 1);
	for (unsigned i = 0; i < way->flight; i++) {
		hands[i] = (struct hand){.crew = &crew, .index = i};
		int code = pthread_create(&hands[i].thread, NULL, work, &hands[i]);
		if (code)
			die(code, "cannot start a thread");
	}
	meter_start(out);
	pthread_barrier_wait(&crew.ready);
	for (unsigned i = 0; i < way->flight; i++)
		pthread_join(hands[i].thread, NULL);
	meter_stop(out);
	pthread_barrier_destroy(&crew.ready);
}
