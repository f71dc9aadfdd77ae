/* The file system behind an open descriptor.
 *
 * fstatfs tells its type, which one table turns into a name and flags; fstat and fstatfs tell the
 * preferred size of a read, of which the larger counts; statx tells what O_DIRECT asks for, where
 * the kernel knows (6.1 and later, on a few file systems). Numbers that make no sense (a server may
 * send any) are cut to the bounds that the header promises. A block device is named as one: its
 * node lies in a file system in memory, its bytes do not. This does not look at mounts or devices.
 */
#include "machine/filesystem.h"

#include "base/arith.h"
#include "base/sys.h"

#include <fcntl.h>
#include <string.h>

#define ASSUMED_ALIGNMENT 4096u
#define LEAST_IO_BYTES UINT64_C(4096)
#define LEAST_NETWORK_IO_BYTES (UINT64_C(1) << 20)
#define MOST_IO_BYTES (UINT64_C(16) << 20)
/* An alignment above this is no alignment but a mistake. */
#define MOST_ALIGNMENT (1u << 20)

struct row {
	uint32_t type; /* f_type */
	uint32_t flags;
	const char *name;
};

static const struct row table[] = {
	{0x0000ef53, 0, "ext4"},
	{0x58465342, 0, "xfs"},
	{0x9123683e, 0, "btrfs"},
	{0xf2f52010, 0, "f2fs"},
	{0xca451a4e, 0, "bcachefs"},
	{0x2fc12fc1, OH_FS_OWN_CACHE, "zfs"},
	{0x00004d44, 0, "vfat"},
	{0x2011bab0, 0, "exfat"},
	{0x7366746e, 0, "ntfs3"},
	{0x3153464a, 0, "jfs"},
	{0x73717368, 0, "squashfs"},
	{0xe0f5e1e2, 0, "erofs"},
	{0x00009660, 0, "iso9660"},
	{0x01021994, OH_FS_RAM, "tmpfs"},
	{0x858458f6, OH_FS_RAM, "ramfs"},
	{0x958458f6, OH_FS_RAM, "hugetlbfs"},
	{0x794c7630, OH_FS_STACKED | OH_FS_OVERLAY, "overlay"},
	{0x61756673, OH_FS_STACKED, "aufs"},
	{0x0000f15f, 0, "ecryptfs"},
	{0x00006969, OH_FS_NETWORK, "nfs"},
	{0x0bd00bd0, OH_FS_NETWORK, "lustre"},
	{0x65735546, OH_FS_NETWORK | OH_FS_STACKED, "fuse"}, /* and virtiofs */
	{0xff534d42, OH_FS_NETWORK, "cifs"},
	{0xfe534d42, OH_FS_NETWORK, "smb2"},
	{0x0000517b, OH_FS_NETWORK, "smb"},
	{0x00c36400, OH_FS_NETWORK, "ceph"},
	{0x47504653, OH_FS_NETWORK | OH_FS_OWN_CACHE, "gpfs"},
	{0x19830326, OH_FS_NETWORK, "beegfs"},
	{0x01021997, OH_FS_NETWORK, "9p"},
	{0x5346414f, OH_FS_NETWORK, "afs"},
	{0x6b414653, OH_FS_NETWORK, "afs"},
	{0x73757245, OH_FS_NETWORK, "coda"},
	{0x20030528, OH_FS_NETWORK, "orangefs"},
	{0xaad7aaea, OH_FS_NETWORK, "panfs"},
	{0x7461636f, 0, "ocfs2"},
	{0x01161970, 0, "gfs2"},
	{0x786f4256, OH_FS_NETWORK, "vboxsf"},
	{0xbacbacbc, OH_FS_NETWORK, "vmhgfs"},
};

static void
name_by_type(struct oh_filesystem *fs, uint32_t type)
{
	for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
		if (table[i].type == type) {
			fs->name = table[i].name;
			fs->flags = table[i].flags;
		}
	}
}

static uint64_t
sane_io_bytes(uint64_t bytes, uint32_t flags)
{
	bytes = oh_max(bytes, flags & OH_FS_NETWORK ? LEAST_NETWORK_IO_BYTES : LEAST_IO_BYTES);
	bytes = oh_min(bytes, MOST_IO_BYTES);
	return oh_align_down(bytes + LEAST_IO_BYTES - 1, LEAST_IO_BYTES);
}

static int
is_alignment(uint32_t value)
{
	return value && value <= MOST_ALIGNMENT && !(value & (value - 1));
}

static void
read_direct(int fd, struct oh_filesystem *fs)
{
	struct oh_statx st;
	memset(&st, 0, sizeof st);
	if (oh_sys.statx(fd, "", AT_EMPTY_PATH, OH_STATX_DIOALIGN, &st) < 0 ||
	    !(st.mask & OH_STATX_DIOALIGN))
		return;
	uint32_t memory = st.dio_memory_alignment, offset = st.dio_offset_alignment;
	if (!memory || !offset)
		memory = offset = 0;
	else if (!is_alignment(memory) || !is_alignment(offset))
		return;
	fs->direct_memory_alignment = memory;
	fs->direct_offset_alignment = offset;
	fs->flags |= OH_FS_DIRECT_KNOWN;
}

void
oh_filesystem_read(int fd, struct oh_filesystem *fs)
{
	struct stat st;
	struct statfs stfs;
	uint64_t bytes = 0;
	int have_stat = oh_sys.fstat(fd, &st) == 0;
	memset(fs, 0, sizeof *fs);
	fs->name = "unknown";
	fs->direct_memory_alignment = ASSUMED_ALIGNMENT;
	fs->direct_offset_alignment = ASSUMED_ALIGNMENT;
	if (have_stat && st.st_blksize > 0)
		bytes = (uint64_t)st.st_blksize;
	if (have_stat && S_ISBLK(st.st_mode)) {
		fs->name = "block device";
	} else if (oh_sys.fstatfs(fd, &stfs) == 0) {
		name_by_type(fs, (uint32_t)stfs.f_type);
		if (stfs.f_bsize > 0)
			bytes = oh_max(bytes, (uint64_t)stfs.f_bsize);
	}
	fs->io_bytes = sane_io_bytes(bytes, fs->flags);
	read_direct(fd, fs);
}
