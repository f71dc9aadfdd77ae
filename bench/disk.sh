#!/bin/sh
# Runs bench/disk or bench/cold on a quiet disk (a loop device over tmpfs, ext4 on it; needs root)
# and on the disk under $TMPDIR. The quiet disk and all files are removed however this ends.
#
# usage: bench/disk.sh PROGRAM [--mib N] [its other options, but not --dir]
set -eu

[ $# -ge 1 ] || { sed -n 's/^# usage/usage/p' "$0" >&2; exit 2; }
program=$1
shift

mib=1024 want=
for word; do
	[ "$want" = mib ] && mib=$word
	case $word in --mib) want=mib ;; --mib=*) mib=${word#*=} want= ;; *) want= ;; esac
done
case $mib in '' | *[!0-9]*) echo "disk.sh: --mib takes a number" >&2; exit 2 ;; esac

work=$(mktemp -d "${TMPDIR:-/tmp}/onehop-quiet-XXXXXX")
loop=
clean_up() {
	trap '' INT TERM HUP
	umount "$work/disk" 2>/dev/null || :
	[ -z "$loop" ] || losetup -d "$loop" || :
	umount "$work/tmpfs" 2>/dev/null || :
	rmdir "$work/disk" "$work/tmpfs" 2>/dev/null || :
	rmdir "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# The image is written, so that no page of it is made during a measurement. No journal, no work that
# the file system would put off.
make_quiet() {
	mkdir "$work/tmpfs" "$work/disk"
	mount -t tmpfs -o size=$((mib + mib / 16 + 96))M onehop-quiet "$work/tmpfs"
	dd if=/dev/zero of="$work/tmpfs/image" bs=1M count=$((mib + mib / 16 + 64)) status=none
	loop=$(losetup --find --show --direct-io=off "$work/tmpfs/image")
	mkfs.ext4 -q -F -m 0 -O ^has_journal -E lazy_itable_init=0,nodiscard "$loop"
	mount "$loop" "$work/disk"
}

why=
[ "$(id -u)" = 0 ] || why="it needs root"
for tool in losetup mkfs.ext4 mount; do
	command -v $tool >/dev/null || why="there is no $tool"
done
[ -n "$why" ] || [ -e /dev/loop-control ] || why="there are no loop devices"
if [ -n "$why" ]; then
	echo "disk.sh: no quiet disk: $why" >&2
else
	echo "disk.sh: a loop device over tmpfs" >&2
	make_quiet
	"$program" --dir "$work/disk" "$@"
	echo
fi
echo "disk.sh: ${TMPDIR:-/tmp}" >&2
"$program" --dir "${TMPDIR:-/tmp}" "$@"
