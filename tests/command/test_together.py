#!/usr/bin/env python3
"""Processes that load one cold file at once read it from the device about once.

Counted on a quiet disk (ext4 on a loop device over tmpfs, made as root) by the device's own sectors,
and on the disk of the scratch folders by the blocks that the kernel charges to each process.
"""
import contextlib
import json
import os
import shutil
import subprocess

from command import ONEHOP, Scratch, environment, safetensors
from tap import Skip, case, check, run as run_cases, same

MIB = 1 << 20
BYTES = 256 * MIB
TENSORS = 16
MOST = 1.2
NEEDED = 4 * BYTES + 3 * BYTES  # four copies, the page cache, a disk in memory, room

BARRIER = 'read -r _ <&0; exec "$0" load --device host --json "$1" </dev/null'


def cold_model(folder):
    """A model of BYTES that is on the device. It fits in memory four times, or the case is skipped."""
    with open("/proc/meminfo", encoding="ascii") as file:
        available = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    if available < NEEDED:
        raise Skip(f"{available // MIB} MiB of memory are left, {NEEDED // MIB} are needed")
    each = BYTES // TENSORS
    path = safetensors(os.path.join(folder, "m.safetensors"),
                       [(f"t{i}", "U8", [each], os.urandom(each)) for i in range(TENSORS)])
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    return path


def drop(path):
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def load_at_once(path, count, **settings):
    """Starts count loads behind a pipe that opens for all. The bytes charged to them."""
    reader, writer = os.pipe()
    children = [subprocess.Popen(["sh", "-c", BARRIER, ONEHOP, path], stdin=reader,
                                 env=environment(**settings), stdout=subprocess.PIPE) for _ in range(count)]
    os.close(reader)
    os.close(writer)
    charged = 0
    for child in children:
        with child.stdout:
            text = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        same(child.returncode, 0, "exit status")
        same(json.loads(text)["bytes"], BYTES, "bytes")
        charged += usage.ru_inblock * 512
    return charged


def run_tool(*words):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise Skip(f"no quiet disk: {' '.join(words[:2])}: {done.stdout.decode().strip()[:200]}")
    return done.stdout.decode().strip()


@contextlib.contextmanager
def quiet_disk():
    """(folder, the device's name) of ext4 on a loop device over tmpfs."""
    if os.geteuid() != 0:
        raise Skip("a loop device needs root")
    for tool in "losetup", "mkfs.ext4", "mount", "umount":
        if not shutil.which(tool):
            raise Skip(f"there is no {tool}")
    with Scratch() as folder, contextlib.ExitStack() as undo:
        memory, disk = os.path.join(folder, "memory"), os.path.join(folder, "disk")
        os.mkdir(memory)
        os.mkdir(disk)
        run_tool("mount", "-t", "tmpfs", "-o", f"size={BYTES // MIB + 80}M", "onehop-test", memory)
        undo.callback(subprocess.run, ["umount", memory])
        image = os.path.join(memory, "image")
        with open(image, "wb") as file:
            file.truncate(BYTES + 64 * MIB)
        loop = run_tool("losetup", "--find", "--show", "--direct-io=off", image)
        undo.callback(subprocess.run, ["losetup", "-d", loop])
        run_tool("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", loop)
        run_tool("mount", loop, disk)
        undo.callback(subprocess.run, ["umount", disk])
        yield disk, os.path.basename(loop)


def sectors_read(device):
    with open(f"/sys/block/{device}/stat", encoding="ascii") as file:
        return int(file.read().split()[2]) * 512


def judge(count, read):
    print(f"# {count} processes read {read / BYTES:.3f} times the file's bytes", flush=True)
    check(0.95 < read / BYTES < MOST, f"{count} processes read {read} bytes of a file of {BYTES}")


@case
def two_and_four_read_a_quiet_disk_once():
    with quiet_disk() as (folder, device):
        path = cold_model(folder)
        for count in 1, 2, 4:
            drop(path)
            before = sectors_read(device)
            load_at_once(path, count)
            judge(count, sectors_read(device) - before)
        drop(path)
        before = sectors_read(device)
        load_at_once(path, 2, ONEHOP_CACHE="bypass")
        past = (sectors_read(device) - before) / BYTES
        check(past > 1.9, f"two that read past the page cache are counted {past:.3f} times")


@case
def two_and_four_are_charged_once():
    with Scratch() as folder:
        path = cold_model(folder)
        drop(path)
        alone = load_at_once(path, 1)
        if alone < 0.95 * BYTES:
            raise Skip(f"the kernel charges {alone} bytes for a cold file of {BYTES}: no disk, or its "
                       "pages cannot be dropped")
        for count in 2, 4:
            drop(path)
            judge(count, load_at_once(path, count))


if __name__ == "__main__":
    run_cases()
