/* The file that bench/disk reads, and the memory it is read into.
 *
 * Each 8-byte word of the file is (its index + 1) times an odd number, plus a seed of this run: no
 * two words are alike, and blocks left by another run do not pass. The file's name is removed as
 * soon as it is open, so that nothing stays behind however the process ends.
 */
#include "disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#define STEP UINT64_C(0x9E3779B97F4A7C15)
#define HUGE_BYTES (UINT64_C(2) << 20)

int
disk_holds(const struct disk *disk, const uint8_t *memory, uint64_t bytes, uint64_t offset)
{
	const uint64_t *word = (const uint64_t *)(const void *)memory;
	uint64_t first = disk->seed + (offset / 8 + 1) * STEP, wrong = 0;
	for (uint64_t i = 0; i < bytes / 8; i++)
		wrong |= word[i] ^ (first + i * STEP);
	return wrong == 0;
}

static void
write_noise(const struct disk *disk)
{
	for (uint64_t offset = 0; offset < disk->bytes; offset += SLICE_MAX) {
		uint64_t *word = (uint64_t *)(void *)disk->ring;
		uint64_t first = disk->seed + (offset / 8 + 1) * STEP;
		for (uint64_t i = 0; i < SLICE_MAX / 8; i++)
			word[i] = first + i * STEP;
		for (uint64_t done = 0; done < SLICE_MAX;) {
			ssize_t put = pwrite(disk->fd, disk->ring + done, SLICE_MAX - done,
					     (off_t)(offset + done));
			if (put <= 0)
				die(errno, "cannot write the file");
			done += (uint64_t)put;
		}
	}
	if (fsync(disk->fd) < 0)
		die(errno, "cannot write the file");
}

/* Huge pages where the kernel gives them, touched. */
static uint8_t *
make_ring(void)
{
	uint8_t *memory = mmap(NULL, RING_BYTES + HUGE_BYTES, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		die(errno, "no memory for the ring");
	memory += (HUGE_BYTES - (uintptr_t)memory % HUGE_BYTES) % HUGE_BYTES;
	madvise(memory, RING_BYTES, MADV_HUGEPAGE);
	memset(memory, 1, RING_BYTES);
	return memory;
}

void
disk_make(struct disk *disk, const char *dir, uint64_t bytes)
{
	char path[4096], link[64];
	if (snprintf(path, sizeof path, "%s/onehop-disk-XXXXXX", dir) >= (int)sizeof path)
		die(ENAMETOOLONG, "%s", dir);
	disk->bytes = bytes;
	disk->ring = make_ring();
	if (getrandom(&disk->seed, sizeof disk->seed, 0) != sizeof disk->seed)
		die(errno, "no random number");
	disk->fd = mkostemp(path, O_CLOEXEC);
	if (disk->fd < 0)
		die(errno, "%s: cannot make a file", dir);
	unlink(path);
	snprintf(link, sizeof link, "/proc/self/fd/%d", disk->fd);
	disk->direct_fd = open(link, O_RDONLY | O_CLOEXEC | O_DIRECT);
	if (disk->direct_fd < 0)
		die(errno, "%s: cannot read past the page cache (O_DIRECT)", dir);
	write_noise(disk);
}

static uint64_t
resident_pages(const struct disk *disk)
{
	size_t pages = disk->bytes / 4096;
	uint64_t resident = 0;
	unsigned char *map = malloc(pages);
	void *file = mmap(NULL, disk->bytes, PROT_READ, MAP_SHARED, disk->fd, 0);
	if (!map || file == MAP_FAILED || mincore(file, disk->bytes, map) < 0)
		die(errno, "cannot see which pages are in memory");
	for (size_t i = 0; i < pages; i++)
		resident += map[i] & 1;
	munmap(file, disk->bytes);
	free(map);
	return resident;
}

/* Advice may leave pages that are being written or looked at: a second try finds them free. */
void
disk_drop(const struct disk *disk)
{
	uint64_t left = 1;
	for (int i = 0; i < 10 && left; i++) {
		if (i > 0 && fsync(disk->fd) < 0)
			die(errno, "cannot write the file");
		int code = posix_fadvise(disk->fd, 0, 0, POSIX_FADV_DONTNEED);
		if (code)
			die(code, "cannot drop the file's pages");
		left = resident_pages(disk);
	}
	if (left > disk->bytes / 4096 / 100)
		die(EBUSY, "%llu of the file's pages cannot be dropped", (unsigned long long)left);
}
