#!/usr/bin/env python3
"""Loads from a file system that is slow, that fails, and that stops: each read takes 4 ms, any
number at once, and brings 1 MiB at most.
"""
import errno
import json
import mmap
import os
import re
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from mount import DRIVER, Mount

from command import ONEHOP, Scratch, crc32, environment, loaded, run, safetensors, seeded, sparse, tensor
from tap import case, check, holds, run as run_cases, same

# How a program's reads become requests: each one as it is, or the kernel's, with its read-ahead.
PLAIN, CACHED = [], ["-c", "-a", "60"]
# Most that may be asked of the server, against what has to come.
MOST = 1.05
# Least of the rate of plain preads.
LEAST = 0.9


def mixed(source):
    """A few large tensors, one in columns for a part of a group, and many small ones."""
    tensors = [tensor(source, f"large.{i}", "BF16", [source.randrange(1 << 20, 1 << 21)]) for i in range(4)]
    tensors += [tensor(source, "wide", "F32", [512, 2048])]
    tensors += [tensor(source, f"small.{i}", "F32", [source.randrange(3000)]) for i in range(500)]
    return tensors


def gpu():
    """The environment in which the look-alike driver is found."""
    return environment(LD_LIBRARY_PATH=DRIVER)


def load(mount, *words, env=None, cores=None):
    """The JSON of a load that has to succeed."""
    result = run("load", "--json", *words, mount / "m.safetensors", env=env, timeout=50,
                 preexec_fn=cores and (lambda: os.sched_setaffinity(0, cores)))
    same((result.code, result.err), (0, ""))
    return json.loads(result.out)


def refused(mount, *words):
    """The message of a load that has to fail as an operation."""
    result = run("load", "--device", "host", *words, mount / "m.safetensors", timeout=50)
    same((result.code, result.out, result.err.count("\n")), (1, "", 1))
    holds(result.err, "m.safetensors: ")
    return result.err


@case
def the_server_counts_right_and_holds_nobody_up():
    with Scratch() as folder:
        data = seeded().randbytes(8 << 20)
        with open(os.path.join(folder, "file"), "wb") as file:
            file.write(data)
        with Mount(folder, "-d", "100000") as mount:
            file = os.open(mount / "file", os.O_RDONLY)
            with ThreadPoolExecutor(64) as pool:
                begin = time.monotonic()
                parts = list(pool.map(lambda i: os.pread(file, 1 << 17, i << 17), range(64)))
                took = time.monotonic() - begin
            os.close(file)
            got = mount.stats()
            same(b"".join(parts) == data, True, "bytes served right")
            same((got["reads"], got["bytes"], got["largest"]), (64, len(data), 1 << 17))
            check(got["most"] > 32, got)
            check(took < 32 * 0.1, f"64 reads of 100 ms took {took:.1f} s: one waited for the other")
            same(os.listdir(mount.path), ["file"])


@case
def every_byte_arrives_from_a_slow_server():
    with Scratch() as folder:
        tensors = mixed(seeded())
        safetensors(os.path.join(folder, "m.safetensors"), tensors)
        for words in PLAIN, CACHED:
            for device, env in ("host", None), ("cuda:0", gpu()):
                with Mount(folder, *words) as mount:
                    got = load(mount, "--device", device, "--checksum", "crc32", "--verify", env=env)
                    same([t["crc32"] for t in got["tensors"]], [crc32(t[3]) for t in tensors])
                    # No page is fetched by a fault, and none behind the server's back.
                    same([name for name, bytes_ in got["routes"].items() if bytes_], ["buffered"])


@case
def more_reads_are_under_way_than_there_are_cores():
    with Scratch() as folder:
        tensors = [tensor(seeded(), f"large.{i}", "U8", [6 << 20]) for i in range(8)]
        tensors += [tensor(seeded(), f"small.{i}", "U8", [100000]) for i in range(160)]
        safetensors(os.path.join(folder, "m.safetensors"), tensors)
        for device, env in ("host", None), ("cuda:0", gpu()):
            with Mount(folder) as mount:
                load(mount, "--device", device, "--verify", env=env,
                     cores={min(os.sched_getaffinity(0))})
                got = mount.stats()
                check(got["most"] >= 12, got)
                # Small tensors do not cost a request each.
                check(got["reads"] < 2 * 150, got)


@case
def its_pages_are_not_pinned():
    with Scratch() as folder:
        safetensors(os.path.join(folder, "m.safetensors"), mixed(seeded()))
        with Mount(folder, *CACHED) as mount:
            result = run("load", "--pin", "--device", "cuda:0", mount / "m.safetensors", env=gpu(),
                         timeout=50)
            same((result.code, result.out), (1, ""))
            holds(result.err, "it lies on a network file system, whose pages are not pinned")


@case
def no_more_is_read_than_the_file_has():
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"), mixed(seeded()))
        size = os.path.getsize(path)
        for words in PLAIN, CACHED:
            for device, env in ("host", None), ("cuda:0", gpu()):
                with Mount(folder, *words) as mount:
                    load(mount, "--device", device, env=env)
                    got = mount.stats()
                    print(f"# {device}, {words}: {got['bytes'] / size:.4f} of the file, {got}")
                    check(size <= got["bytes"] <= MOST * size, (size, got))


@case
def what_the_kernel_keeps_is_not_asked_for_again_and_not_mapped():
    with Scratch() as folder:
        sparse(os.path.join(folder, "m.safetensors"), "a", 64 << 20)
        with Mount(folder, *CACHED) as mount:
            load(mount, "--device", "cuda:0", env=gpu())
            reads = []
            # The kernel may also let go of some of it.
            while len(reads) < 5 and 0 not in reads:
                mount.control("reset")
                got = load(mount, "--device", "cuda:0", env=gpu())
                same([name for name, bytes_ in got["routes"].items() if bytes_], ["buffered"])
                reads.append(mount.stats()["reads"])
            same(reads[-1], 0, f"reads, {reads}")


@case
def for_a_part_of_the_rows_only_these_are_read():
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"),
                           [tensor(seeded(), f"t.{i}", "F32", [4, 1 << 20]) for i in range(2)])
        plan = os.path.join(folder, "plan.json")
        with open(plan, "w") as file:
            json.dump({"*": 0}, file)
        with Mount(folder) as mount:
            load(mount, "--device", "host", "--tp", "1/4", "--tp-plan", plan)
            part, got = os.path.getsize(path) / 4, mount.stats()
            check(0.99 * part < got["bytes"] <= MOST * part, (part, got))


@case
def for_a_part_of_the_columns_no_byte_is_read_twice():
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"),
                           [tensor(seeded(), "wide", "F32", [1024, 2048])])
        plan = os.path.join(folder, "plan.json")
        with open(plan, "w") as file:
            json.dump({"*": 1}, file)
        for words in PLAIN, CACHED:
            with Mount(folder, *words) as mount:
                load(mount, "--device", "host", "--tp", "1/4", "--tp-plan", plan)
                size, got = os.path.getsize(path), mount.stats()
                check(got["bytes"] <= MOST * size, (size, got))


@case
def explain_knows_it_as_a_network_file_system():
    with open("/proc/meminfo") as file:
        available = int(re.search(r"^MemAvailable: +(\d+)", file.read(), re.M).group(1)) << 10
    with Scratch() as folder:
        # Too large to keep: only then would a local file be read past the page cache.
        sparse(os.path.join(folder, "m.safetensors"), "a", available * 3 // 4)
        with Mount(folder, *CACHED) as mount:
            result = run("explain", "--device", "host", mount / "m.safetensors")
            same((result.code, result.err), (0, ""))
            holds(result.out, "\nreason          NETWORK: it lies on a network file system")
            check(mount.stats()["bytes"] < 1 << 20, mount.stats())
        result = run("explain", "--device", "host", os.path.join(folder, "m.safetensors"))
        check("NETWORK" not in result.out, result.out)


def plain(path, threads, piece=1 << 20):
    """Bytes a second of threads that each take the next piece of the file, into fresh memory as a
    load has it."""
    file = os.open(path, os.O_RDONLY)
    size = os.fstat(file).st_size
    begin, lock = time.monotonic(), threading.Lock()
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    offsets = iter(range(0, size, piece))

    def work():
        while True:
            with lock:
                offset = next(offsets, None)
            if offset is None:
                return
            with memoryview(memory)[offset:offset + piece] as part:
                os.preadv(file, [part], offset)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    took = time.monotonic() - begin
    memory.close()
    os.close(file)
    return size / took


def rates(folder, words, *options):
    """(the command's, that of as many plain preads at once, how many) of one round, from the opened
    file on. Rounds until the first is LEAST of the second, six at most: others may use this machine
    too."""
    for _ in range(6):
        with Mount(folder, *words) as mount:
            got = load(mount, "--device", "host", *options)
            ours = got["bytes"] / got["phases"]["last_byte_ns"] * 1e9
            threads = mount.stats()["most"]
        with Mount(folder, *words) as mount:
            theirs = plain(mount / "m.safetensors", threads)
        if ours >= LEAST * theirs:
            break
    return ours, theirs, threads


@case
def the_rate_is_that_of_as_many_plain_preads():
    with Scratch() as folder:
        sparse(os.path.join(folder, "m.safetensors"), "a", 384 << 20)
        for words, *options in ([],), (["-d", "20000"], "--option", "threads=7"):
            ours, theirs, threads = rates(folder, words, *options)
            said = (f"{threads} at once: {ours / 1e6:.0f} MB/s, plain preads {theirs / 1e6:.0f} MB/s: "
                    f"{ours / theirs:.3f}")
            print("# " + said)
            check(ours >= LEAST * theirs, said)


@case
def reads_are_as_large_as_the_server_takes():
    size = 64 << 20
    with Scratch() as folder:
        sparse(os.path.join(folder, "m.safetensors"), "a", size)
        for device, env in ("host", None), ("cuda:0", gpu()):
            with Mount(folder) as mount:
                load(mount, "--device", device, env=env)
                got = mount.stats()
                check(got["largest"] == 1 << 20 and got["reads"] <= 1.2 * size / got["largest"] + 4,
                      (device, got))


@case
def a_read_that_fails_names_file_tensor_and_offset():
    with Scratch() as folder:
        safetensors(os.path.join(folder, "m.safetensors"), [tensor(seeded(), "the one", "U8", [16 << 20])])
        for words in PLAIN, CACHED:
            for number, said in (errno.EIO, "Input/output error"), (errno.ESTALE, "Stale file handle"):
                with Mount(folder, *words) as mount:
                    mount.control("fail", number, 9)
                    message = refused(mount)
                    holds(message, '"the one"')
                    holds(message, said)
                    bytes_, offset = map(int, re.search(r"reading (\d+) bytes at offset (\d+) ", message).groups())
                    hit = mount.stats()["hit"]
                    check(offset < hit[1] + hit[2] and hit[1] < offset + bytes_, (message, hit))
                    mount.control("reset")
                    same(load(mount, "--device", "host", "--verify")["verified"], True)


@case
def a_header_that_cannot_be_read_names_file_and_offset():
    with Scratch() as folder:
        safetensors(os.path.join(folder, "m.safetensors"), [tensor(seeded(), "a", "U8", [1 << 20])])
        for at in 1, 2:
            with Mount(folder) as mount:
                mount.control("fail", errno.ESTALE, at)
                message, hit = refused(mount), mount.stats()["hit"]
                holds(message, f" at offset {hit[1]} failed: Stale file handle")


@case
def a_file_that_shrinks_is_truncated():
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"), [tensor(seeded(), "a", "U8", [16 << 20])])
        for words in PLAIN, CACHED:
            for left, at in (10 << 20, 9), ((16 << 20) + 7, 9), (0, 9), (1, 1), (20, 1):
                with Mount(folder, *words) as mount:
                    mount.control("cut", left, at)
                    message = refused(mount)
                    check("truncated while it was read: it ends at " in message
                          or f"it had {os.path.getsize(path)} bytes and has {left}" in message, message)


@case
def a_file_that_is_written_to_has_changed():
    with Scratch() as folder:
        safetensors(os.path.join(folder, "m.safetensors"), [tensor(seeded(), "a", "U8", [16 << 20])])
        with Mount(folder) as mount:
            mount.control("touch", 8)
            holds(refused(mount), "changed while it was read: it was written, replaced or removed")


def stalled(mount):
    """A load onto the host whose reads all wait: the server has stopped."""
    mount.control("stop", 5)
    child = subprocess.Popen([ONEHOP, "load", "--device", "host", mount / "m.safetensors"],
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             env=environment())
    while not mount.stats()["held"] and child.poll() is None:
        pass
    return child


@case
def ctrl_c_ends_a_load_once_a_stopped_server_goes_on():
    with Scratch() as folder:
        sparse(os.path.join(folder, "m.safetensors"), "a", 64 << 20)
        for words in PLAIN, CACHED:
            with Mount(folder, *words) as mount:
                child = stalled(mount)
                try:
                    child.send_signal(signal.SIGINT)
                    same(child.poll(), None, "exit status while the server stands still")
                    mount.control("go")
                    out, err = child.communicate(timeout=20)
                finally:
                    child.kill()
                same((child.returncode, out, err), (1, b"", b"onehop: cancelled\n"))


@case
def a_load_outlives_a_server_that_stops_for_a_while():
    with Scratch() as folder:
        sparse(os.path.join(folder, "m.safetensors"), "a", 16 << 20)
        with Mount(folder) as mount:
            child = stalled(mount)
            try:
                mount.control("go")
                _, err = child.communicate(timeout=20)
            finally:
                child.kill()
            same((child.returncode, err), (0, b""))


@case
def a_server_that_dies_is_a_failed_operation():
    with Scratch() as folder:
        sparse(os.path.join(folder, "m.safetensors"), "a", 64 << 20)
        with Mount(folder) as mount:
            child = stalled(mount)
            mount.server.kill()
            out, err = child.communicate(timeout=20)
            same((child.returncode, out), (1, b""))
            holds(err.decode(), "m.safetensors: ")


if __name__ == "__main__":
    run_cases()
