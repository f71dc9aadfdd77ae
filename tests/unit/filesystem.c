/* filesystem: names, flags, sizes and alignments from recorded answers of the kernel, and of the
 * file systems that this machine has. */
#include "base/sys.h"
#include "harness.h"
#include "machine/filesystem.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

/* What the kernel is made to say of any descriptor. */
static struct {
	uint32_t type;
	long block_bytes; /* of fstatfs */
	blksize_t io_bytes; /* of fstat */
	mode_t mode;
	int statfs_errno;
	int statx_errno;
	uint32_t statx_mask;
	uint32_t memory_alignment;
	uint32_t offset_alignment;
} said;

static int
said_fstat(int fd, struct stat *st)
{
	(void)fd;
	memset(st, 0, sizeof *st);
	st->st_mode = said.mode;
	st->st_blksize = said.io_bytes;
	return 0;
}

static int
said_fstatfs(int fd, struct statfs *st)
{
	(void)fd;
	memset(st, 0, sizeof *st);
	/* As a 32-bit kernel would sign it. */
	st->f_type = (int32_t)said.type;
	st->f_bsize = said.block_bytes;
	errno = said.statfs_errno;
	return said.statfs_errno ? -1 : 0;
}

static int
said_statx(int fd, const char *path, int flags, unsigned mask, struct oh_statx *st)
{
	if (fd != 5 || path[0] || flags != AT_EMPTY_PATH || mask != OH_STATX_DIOALIGN) {
		errno = EINVAL;
		return -1;
	}
	st->mask = said.statx_mask;
	st->dio_memory_alignment = said.memory_alignment;
	st->dio_offset_alignment = said.offset_alignment;
	errno = said.statx_errno;
	return said.statx_errno ? -1 : 0;
}

static void
nothing_said(void)
{
	memset(&said, 0, sizeof said);
	said.mode = S_IFREG;
	said.io_bytes = 4096;
	said.block_bytes = 4096;
	said.statx_mask = 0x7ff;
}

static struct oh_filesystem
heard(void)
{
	struct oh_sys saved = oh_sys;
	struct oh_filesystem fs;
	oh_sys.fstat = said_fstat;
	oh_sys.fstatfs = said_fstatfs;
	oh_sys.statx = said_statx;
	oh_filesystem_read(5, &fs);
	oh_sys = saved;
	return fs;
}

TEST(file_systems_are_named_and_flagged_by_their_type)
{
	static const struct {
		uint32_t type;
		const char *name;
		uint32_t flags;
	} want[] = {
		{0xef53, "ext4", 0},
		{0x58465342, "xfs", 0},
		{0x9123683e, "btrfs", 0},
		{0x01021994, "tmpfs", OH_FS_RAM},
		{0x858458f6, "ramfs", OH_FS_RAM},
		{0x958458f6, "hugetlbfs", OH_FS_RAM},
		{0x794c7630, "overlay", OH_FS_STACKED | OH_FS_OVERLAY},
		{0x6969, "nfs", OH_FS_NETWORK},
		{0x65735546, "fuse", OH_FS_NETWORK | OH_FS_STACKED},
		{0x0bd00bd0, "lustre", OH_FS_NETWORK},
		{0xff534d42, "cifs", OH_FS_NETWORK},
		{0xfe534d42, "smb2", OH_FS_NETWORK},
		{0x00c36400, "ceph", OH_FS_NETWORK},
		{0x47504653, "gpfs", OH_FS_NETWORK | OH_FS_OWN_CACHE},
		{0x19830326, "beegfs", OH_FS_NETWORK},
		{0x01021997, "9p", OH_FS_NETWORK},
		{0x2fc12fc1, "zfs", OH_FS_OWN_CACHE},
		{0x12345678, "unknown", 0},
	};
	for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
		nothing_said();
		said.type = want[i].type;
		struct oh_filesystem fs = heard();
		CHECK_STR(fs.name, want[i].name);
		CHECK_EQ(fs.flags, want[i].flags);
	}
}

TEST(the_larger_preferred_size_counts_and_a_network_reads_a_mebibyte_or_more)
{
	nothing_said();
	said.type = 0xef53;
	CHECK_EQ(heard().io_bytes, 4096);
	said.block_bytes = 65536;
	CHECK_EQ(heard().io_bytes, 65536);
	said.io_bytes = 131072;
	CHECK_EQ(heard().io_bytes, 131072);
	said.type = 0x6969;
	CHECK_EQ(heard().io_bytes, 1 << 20);
	said.io_bytes = 4 << 20;
	CHECK_EQ(heard().io_bytes, 4 << 20);
}

TEST(preferred_sizes_without_sense_are_cut_to_bounds)
{
	nothing_said();
	said.block_bytes = -1;
	said.io_bytes = 0;
	CHECK_EQ(heard().io_bytes, 4096);
	said.io_bytes = 5000;
	CHECK_EQ(heard().io_bytes, 8192);
	said.io_bytes = (blksize_t)1 << 40;
	CHECK_EQ(heard().io_bytes, 16 << 20);
	said.type = 0x65735546;
	said.io_bytes = 1;
	CHECK_EQ(heard().io_bytes, 1 << 20);
}

/* As kernel 6.18 answered for a file on ext4 and a disk with sectors of 512 bytes: it gives fields
 * that were not asked for, too. The alignments differ here, so as not to be mixed up. */
TEST(recorded_alignments_of_direct_reads_are_taken_over)
{
	nothing_said();
	said.type = 0xef53;
	said.statx_mask = 0x373f;
	said.memory_alignment = 4;
	said.offset_alignment = 512;
	struct oh_filesystem fs = heard();
	CHECK_EQ(fs.flags, OH_FS_DIRECT_KNOWN);
	CHECK_EQ(fs.direct_memory_alignment, 4);
	CHECK_EQ(fs.direct_offset_alignment, 512);
}

TEST(alignments_of_zero_say_that_direct_reads_are_refused)
{
	nothing_said();
	said.statx_mask = 0x37ff;
	said.memory_alignment = 512;
	struct oh_filesystem fs = heard();
	CHECK_EQ(fs.flags, OH_FS_DIRECT_KNOWN);
	CHECK_EQ(fs.direct_memory_alignment, 0);
	CHECK_EQ(fs.direct_offset_alignment, 0);
}

static void
expect_assumed(const char *why)
{
	struct oh_filesystem fs = heard();
	printf("# %s\n", why);
	CHECK_EQ(fs.flags & OH_FS_DIRECT_KNOWN, 0);
	CHECK_EQ(fs.direct_memory_alignment, 4096);
	CHECK_EQ(fs.direct_offset_alignment, 4096);
}

TEST(alignments_that_are_not_told_or_make_no_sense_are_assumed)
{
	nothing_said();
	said.memory_alignment = said.offset_alignment = 512;
	expect_assumed("not in the mask");
	said.statx_mask = 0x37ff;
	said.statx_errno = ENOSYS;
	expect_assumed("no statx");
	said.statx_errno = 0;
	said.offset_alignment = 12288;
	expect_assumed("no power of two");
	said.offset_alignment = 1u << 31;
	expect_assumed("2 GiB");
}

TEST(a_block_device_is_not_in_memory_though_its_node_is)
{
	nothing_said();
	said.type = 0x01021994;
	said.mode = S_IFBLK;
	struct oh_filesystem fs = heard();
	CHECK_STR(fs.name, "block device");
	CHECK_EQ(fs.flags, 0);
}

TEST(a_file_system_that_does_not_answer_is_unknown)
{
	nothing_said();
	said.type = 0x01021994;
	said.statfs_errno = EIO;
	struct oh_filesystem fs = heard();
	CHECK_STR(fs.name, "unknown");
	CHECK_EQ(fs.flags, 0);
	CHECK_EQ(fs.io_bytes, 4096);
}

TEST(a_bad_descriptor_is_unknown_and_no_failure)
{
	struct oh_filesystem fs;
	oh_filesystem_read(-1, &fs);
	CHECK_STR(fs.name, "unknown");
	CHECK_EQ(fs.flags, 0);
	CHECK_EQ(fs.io_bytes, 4096);
	CHECK_EQ(fs.direct_memory_alignment, 4096);
}

TEST(memory_of_this_machine_is_in_memory)
{
	struct oh_filesystem fs;
	int fd = memfd_create("filesystem", MFD_CLOEXEC);
	CHECK(fd >= 0);
	oh_filesystem_read(fd, &fs);
	close(fd);
	CHECK_STR(fs.name, "tmpfs");
	CHECK(fs.flags & OH_FS_RAM);
}

/* What the kernel says here must be within the bounds that callers rely on, and direct reads laid
 * out by it must work where it says that they do. */
TEST(the_alignments_of_this_machines_files_hold_for_a_direct_read)
{
	struct oh_filesystem fs;
	void *memory = NULL;
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	oh_filesystem_read(fd, &fs);
	close(fd);
	printf("# %s: reads of %" PRIu64 " bytes, O_DIRECT by %u in memory and %u in the file%s\n",
	       fs.name, fs.io_bytes, fs.direct_memory_alignment, fs.direct_offset_alignment,
	       fs.flags & OH_FS_DIRECT_KNOWN ? "" : " (assumed)");
	CHECK(fs.io_bytes >= 4096 && fs.io_bytes <= 16 << 20 && fs.io_bytes % 4096 == 0);
	if (!(fs.flags & OH_FS_DIRECT_KNOWN))
		SKIP("the kernel does not tell the alignments on %s", fs.name);
	if (!fs.direct_memory_alignment)
		SKIP("no O_DIRECT on %s", fs.name);
	fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC | O_DIRECT);
	CHECK(fd >= 0);
	CHECK(posix_memalign(&memory, 1 << 20, 1 << 20) == 0);
	size_t bytes = fs.direct_offset_alignment;
	CHECK(bytes <= 1 << 19 && fs.direct_memory_alignment <= 1 << 19);
	CHECK_EQ(pread(fd, (char *)memory + fs.direct_memory_alignment, bytes, 0), bytes);
	CHECK(memcmp((char *)memory + fs.direct_memory_alignment, "\177ELF", 4) == 0);
	free(memory);
	close(fd);
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
