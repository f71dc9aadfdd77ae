/* The file that bench/disk and bench/cold read, and the memory it is read into.
 *
 * Each 8-byte word of the file, behind its head if it has one, is (its index + 1) times an odd
 * number, plus a seed of this run: no two words are alike, and blocks left by another run do not
 * pass. The file's name is removed as soon as it is open, so that nothing stays behind however the
 * process ends.
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
	uint64_t head = offset < disk->head_bytes ? disk->head_bytes - offset : 0, wrong = 0;
	head = head < bytes ? head : bytes;
	if (head && memcmp(memory, disk->head + offset, head) != 0)
		return 0;
	memory += head;
	offset += head;
	bytes -= head;
	const uint64_t *word = (const uint64_t *)(const void *)memory;
	uint64_t first = disk->seed + (offset / 8 + 1) * STEP;
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
		if (offset == 0 && disk->head_bytes)
			memcpy(disk->ring, disk->head, disk->head_bytes);
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
disk_make(struct disk *disk, const char *dir, uint64_t bytes, const uint8_t *head,
	  uint64_t head_bytes)
{
	char path[4096], link[64];
	if (snprintf(path, sizeof path, "%s/onehop-disk-XXXXXX", dir) >= (int)sizeof path)
		die(ENAMETOOLONG, "%s", dir);
	disk->bytes = bytes;
	disk->head = head;
	disk->head_bytes = head_bytes;
	disk->ring = make_ring();
	disk->ring_bytes = RING_BYTES;
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

uint64_t
disk_resident(const struct disk *disk, uint64_t offset, uint64_t bytes)
{
	size_t pages = bytes / 4096;
	uint64_t resident = 0;
	unsigned char *map = malloc(pages);
	void *file = mmap(NULL, bytes, PROT_READ, MAP_SHARED, disk->fd, (off_t)offset);
	if (!map || file == MAP_FAILED || mincore(file, bytes, map) < 0)
		die(errno, "cannot see which pages are in memory");
	for (size_t i = 0; i < pages; i++)
		resident += map[i] & 1;
	munmap(file, bytes);
	free(map);
	return resident;
}

/* Advice may leave pages that are being written or looked at: a second try finds them free. */
void
disk_drop(const struct disk *disk, uint64_t offset)
{
	uint64_t left = 1, bytes = disk->bytes - offset;
	for (int i = 0; i < 10 && left; i++) {
		if (i > 0 && fsync(disk->fd) < 0)
			die(errno, "cannot write the file");
		int code = posix_fadvise(disk->fd, (off_t)offset, 0, POSIX_FADV_DONTNEED);
		if (code)
			die(code, "cannot drop the file's pages");
		left = disk_resident(disk, offset, bytes);
	}
	if (left > bytes / 4096 / 100)
		die(EBUSY, "%llu of the file's pages cannot be dropped", (unsigned long long)left);
}

void
disk_read_in(const struct disk *disk, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes; at += SLICE_MAX)
		if (pread(disk->fd, disk->ring, SLICE_MAX, (off_t)at) != (ssize_t)SLICE_MAX)
			die(errno, "cannot read the file");
	if (bytes > 0 && disk_resident(disk, 0, bytes) < bytes / 4096 / 100 * 99)
		die(EBUSY, "the file does not stay in the page cache");
}
