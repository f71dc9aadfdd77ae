#!/usr/bin/env python3
"""onehop prefetch: warming, and copies that are whole or not there, whatever happens meanwhile."""
import ctypes
import json
import mmap
import os
import pty
import re
import shutil
import stat
import struct
import subprocess
import tempfile

from command import (FAULTY, ONEHOP, Scratch, crc32, environment, run, safetensors, seeded, sha256,
                     sparse, tensor)
from tap import Skip, case, check, holds, run as run_cases, same

PIECE = 4 << 20
HEADERS = 256 << 10
INDEX = "model.safetensors.index.json"
SHARDS = [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)]
WARM = ["path", "mode", "format", "files", "bytes", "read_bytes", "residency_known",
        "resident_before_bytes", "resident_after_bytes", "memory_bytes", "threads", "seconds", "gb_per_s",
        "notes"]
COPY = ["path", "mode", "format", "to", "files", "bytes", "already_there_bytes", "kept_bytes",
        "copied_bytes", "threads", "seconds", "gb_per_s", "left_out", "notes", "verified"]


class Quick(Scratch):
    """A scratch folder in memory if there is one: for the cases that run a copy hundreds of times."""

    def __enter__(self):
        memory = "/dev/shm"
        self.path = tempfile.mkdtemp(prefix="onehop-test-", dir=memory if os.access(memory, os.W_OK) else None)
        return self.path


def done(*words, **more):
    """The JSON of a prefetch that has to succeed."""
    result = run("prefetch", "--json", *words, **more)
    if result.code or result.err:
        raise AssertionError(f"onehop prefetch: exit {result.code}, {result.err!r}")
    return json.loads(result.out)


def failed(code, *words, **more):
    """What one says that has to fail: one line, and nothing on standard output."""
    result = run("prefetch", *words, **more)
    same((result.code, result.out, result.err.count("\n")), (code, "", 1), f"answer {result.err!r}")
    return result.err


def faulty(what, *words, **more):
    """A run on a machine that fails so."""
    return run("prefetch", *words, command=FAULTY, env=environment(FAULTY_COPY=what, **more))


def read(path):
    with open(path, "rb") as file:
        return file.read()


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)
    return path


def one(source, folder, size=3 * PIECE + 12345, name="m.safetensors"):
    """A file of several pieces."""
    return safetensors(os.path.join(folder, name), [tensor(source, "a", "U8", [size])])


def sharded(source, folder, sizes=(2 * PIECE + 7, 900, PIECE + 1)):
    """A folder of three shards, its index, and what lies beside them."""
    os.makedirs(folder, exist_ok=True)
    for i, name in enumerate(SHARDS):
        safetensors(os.path.join(folder, name), [tensor(source, f"t{i}", "U8", [sizes[i]])])
    index = {"weight_map": {f"t{i}": name for i, name in enumerate(SHARDS)}}
    write(os.path.join(folder, INDEX), json.dumps(index).encode())
    write(os.path.join(folder, "config.json"), b'{"a": %d}' % source.randrange(10 ** 9))
    write(os.path.join(folder, "tokenizer.model"), source.randbytes(70000))
    return folder


def listing(folder):
    """{name: bytes} of all files below the folder."""
    return {os.path.relpath(os.path.join(path, name), folder): read(os.path.join(path, name))
            for path, _, names in os.walk(folder) for name in names}


def parts(folder):
    return sorted(name for name in listing(folder) if name.endswith(".onehop-part"))


def whole(folder):
    """The files that have their final name."""
    return {name: data for name, data in listing(folder).items() if not name.endswith(".onehop-part")}


def same_files(got, want):
    same(sorted(got), sorted(want), "files")
    for name in want:
        check(got[name] == want[name], f"{name} has other bytes")


def resident_pages(path):
    """(pages in the page cache, all pages), as mincore() has it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]
    size = os.path.getsize(path)
    pages = (ctypes.c_ubyte * ((size + mmap.PAGESIZE - 1) // mmap.PAGESIZE))()
    fd = os.open(path, os.O_RDONLY)
    at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    os.close(fd)
    check(libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), pages) == 0, "mincore failed")
    libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
    return sum(page & 1 for page in pages), len(pages)


def forget(*paths):
    """Takes files out of the page cache."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
        if resident_pages(path)[0]:
            raise Skip("the file system of the scratch folder keeps its pages in memory")


# --------------------------------------------------------------------------------------------------
# warming


@case
def a_cold_model_is_warm_afterwards_and_the_second_run_reads_nothing():
    with Scratch() as folder:
        model = sharded(seeded(), os.path.join(folder, "m"))
        files = SHARDS + [INDEX]
        paths = [os.path.join(model, name) for name in files]
        size = sum(map(os.path.getsize, paths))
        forget(*paths)
        got = done(model)
        same(list(got), WARM)
        same((got["mode"], got["format"], got["path"]), ("warm", "safetensors", model))
        same((got["bytes"], got["resident_after_bytes"]), (size, size))
        # Opening the model has read its headers and its index.
        check(got["resident_before_bytes"] < HEADERS and size - HEADERS < got["read_bytes"] <= size, got)
        same([file["name"] for file in got["files"]], files)
        same(list(got["files"][0]), ["name", "bytes", "read_bytes", "residency_known",
                                     "resident_before_bytes", "resident_after_bytes"])
        for path in paths:
            same(*resident_pages(path), path)
        got = done(model)
        same((got["read_bytes"], got["resident_before_bytes"]), (0, size))


@case
def only_what_is_absent_is_read():
    with Scratch() as folder:
        path = one(seeded(), folder)
        size = os.path.getsize(path)
        forget(path)
        with open(path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            file.seek(PIECE)
            check(len(file.read(PIECE)) == PIECE, "a short read")
        got = done(path)
        same(got["read_bytes"], size - PIECE)
        check(PIECE <= got["resident_before_bytes"] < PIECE + HEADERS, got)
        same(*resident_pages(path))


@case
def the_table_says_how_much_how_fast_and_what_was_there():
    with Scratch() as folder:
        path = one(seeded(), folder, 100000)
        result = run("prefetch", path)
        same((result.code, result.err), (0, ""))
        size = f"{os.path.getsize(path):,}"
        for line in (rf"model           {re.escape(path)}", "format          safetensors, 1 file",
                     rf"bytes           {size} \(97\.7 KiB\)", r"resident before \S+ \(.*\)",
                     r"read            \S+ bytes in \S+ \w+, \d+\.\d\d GB/s, \d+ threads?",
                     rf"resident now    {size} \(97\.7 KiB\)"):
            check(re.search(f"^{line}$", result.out, re.M), (line, result.out))
        same(run("prefetch", "--quiet", path), (0, "", ""))


@case
def what_does_not_fit_in_memory_is_not_warmed_unless_forced():
    with Scratch() as folder:
        path = one(seeded(), folder, 3 * PIECE)
        size = os.path.getsize(path)
        forget(path)
        for extra in [], ["--json"], ["--quiet"]:
            err = failed(1, path, *extra, command=FAULTY, env=environment(FAULTY_MEMORY="5000000"))
            same(err, f"onehop: the model has 12.0 MiB ({size} bytes), and 4.77 MiB (5000000 bytes) of memory "
                      "are usable: nothing was warmed; raise the memory limit, copy it to a local disk with "
                      "--to, or give --force to warm as much as fits\n")
        check(resident_pages(path)[0] * mmap.PAGESIZE < HEADERS, "it was warmed")
        got = done(path, "--force", command=FAULTY, env=environment(FAULTY_MEMORY="5000000"))
        same((got["read_bytes"], got["memory_bytes"]), (size, 5000000))
        # What is there already needs no room.
        same(done(path, command=FAULTY, env=environment(FAULTY_MEMORY="5000000"))["read_bytes"], 0)


@case
def more_than_this_machine_has_is_refused():
    with Scratch() as folder:
        memory = json.loads(run("version", "--json").out)["memory_bytes"]
        path = sparse(os.path.join(folder, "m.safetensors"), "a", 2 * memory)
        holds(failed(1, path), "of memory are usable: nothing was warmed; ")


@case
def another_user_s_file_has_an_unknown_residency():
    if os.geteuid() != 0:
        raise Skip("needs root, to become another user")
    with Scratch() as folder:
        os.chmod(folder, 0o755)
        path = one(seeded(), folder)
        if subprocess.run([ONEHOP, "--version"], user=65534, group=65534, extra_groups=[],
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
            raise Skip("another user cannot run the command where it lies")
        who = dict(user=65534, group=65534, extra_groups=[])
        got = done(path, **who)
        same((got["residency_known"], got["files"][0]["residency_known"]), (False, False))
        check("resident_before_bytes" not in got, "a figure that is not known")
        same(got["read_bytes"], os.path.getsize(path))
        out = run("prefetch", path, **who).out
        holds(out, "resident before unknown\n")
        holds(out, "resident now    unknown\n")


@case
def an_empty_model_warms_and_copies():
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"), [])
        same(done(path)["bytes"], os.path.getsize(path))
        got = done(path, "--to", os.path.join(folder, "to"))
        same((got["verified"], got["copied_bytes"]), (True, os.path.getsize(path)))


@case
def a_file_that_cannot_be_read_is_named():
    with Scratch() as folder:
        path = one(seeded(), folder)
        forget(path)
        result = faulty("eio:2", path)
        same((result.code, result.out, result.err.count("\n")), (1, "", 1))
        check(re.fullmatch(rf'onehop: cannot read "{path}" at offset \d+: Input/output error\n', result.err),
              result.err)


# --------------------------------------------------------------------------------------------------
# copies


@case
def a_file_is_copied_with_its_time_and_mode():
    with Scratch() as folder:
        path = one(seeded(), folder)
        os.chmod(path, 0o440)
        os.utime(path, ns=(1, 1234567890123456789))
        to = os.path.join(folder, "a", "b", "to")
        got = done(path, "--to", to)
        same(list(got), COPY)
        same(got["files"], [{"name": "m.safetensors", "bytes": os.path.getsize(path), "outcome": "copied",
                             "kept_bytes": 0, "copied_bytes": os.path.getsize(path)}])
        same((got["mode"], got["to"], got["verified"], got["left_out"]), ("copy", to, True, []))
        same_files(listing(to), {"m.safetensors": read(path)})
        there = os.stat(os.path.join(to, "m.safetensors"))
        same((there.st_mtime_ns, stat.S_IMODE(there.st_mode) & ~0o440), (1234567890123456789, 0))


@case
def a_second_run_skips_what_is_there():
    with Scratch() as folder:
        model, to = sharded(seeded(), os.path.join(folder, "m")), os.path.join(folder, "to")
        done(model, "--to", to)
        before = {name: os.stat(os.path.join(to, name)) for name in listing(to)}
        os.remove(os.path.join(to, SHARDS[1]))
        got = done(model, "--to", to)
        same([f["outcome"] for f in got["files"]], ["already there"] * 3 + ["copied"] + ["already there"] * 2)
        same((got["copied_bytes"], got["verified"]), (os.path.getsize(os.path.join(model, SHARDS[1])), False))
        for name, was in before.items():
            if name != SHARDS[1]:
                now = os.stat(os.path.join(to, name))
                same((now.st_ino, now.st_ctime_ns), (was.st_ino, was.st_ctime_ns), name)
        same_files(listing(to), listing(model))


@case
def a_folder_is_copied_without_what_does_not_belong():
    with Scratch() as folder:
        model, to = sharded(seeded(), os.path.join(folder, "m")), os.path.join(folder, "to")
        want = listing(model)
        write(os.path.join(model, ".hidden"), b"x")
        os.mkdir(os.path.join(model, "below"))
        write(os.path.join(model, "below", "file"), b"x")
        with open(os.path.join(model, "large.bin"), "wb") as file:
            file.truncate((64 << 20) + 1)
        os.symlink("nowhere", os.path.join(model, "dangling"))
        os.mkfifo(os.path.join(model, "pipe"))
        write(os.path.join(model, "other.safetensors.index.json"), b"{}")
        got = done(model, "--to", to)
        same_files(listing(to), want)
        same([file["name"] for file in got["files"]],
             ["config.json", "tokenizer.model"] + SHARDS + [INDEX], "order")
        same({file["name"]: file["why"] for file in got["left_out"]},
             {"below": "it is a folder", "dangling": "what it links to is not there",
              "large.bin": "it is larger than 64 MiB and no part of the model",
              "other.safetensors.index.json": "it is not the index that the model was opened by",
              "pipe": "it is no regular file"})
        holds(run("prefetch", model, "--to", to).out, "\nleft out        below: it is a folder\n")
        same(run("load", "--device", "host", "--verify", "--quiet", to).code, 0)


@case
def an_index_s_path_copies_its_shards_and_their_folders():
    source = seeded()
    with Scratch() as folder:
        model, to = os.path.join(folder, "m"), os.path.join(folder, "to")
        os.makedirs(os.path.join(model, "deep", "er"))
        one(source, os.path.join(model, "deep", "er"), 5000, "s.safetensors")
        write(os.path.join(model, "notes.txt"), b"x")
        index = write(os.path.join(model, INDEX),
                      json.dumps({"weight_map": {"a": "deep/er/s.safetensors"}}).encode())
        got = done(index, "--to", to)
        same([file["name"] for file in got["files"]], ["deep/er/s.safetensors", INDEX])
        same_files(listing(to), {name: data for name, data in listing(model).items() if name != "notes.txt"})
        same(run("load", "--device", "host", "--verify", "--quiet", to).code, 0)
        same(done(index)["bytes"], sum(map(len, listing(to).values())))


@case
def links_into_a_cache_of_blobs_become_files():
    with Scratch() as folder:
        plain, blobs = sharded(seeded(), os.path.join(folder, "m")), os.path.join(folder, "blobs")
        links, to = os.path.join(folder, "snapshots", "main"), os.path.join(folder, "to")
        want = listing(plain)
        os.makedirs(links)
        os.mkdir(blobs)
        for name, data in want.items():
            write(os.path.join(blobs, sha256(data)), data)
            os.symlink(os.path.join("..", "..", "blobs", sha256(data)), os.path.join(links, name))
        same(done(links, "--to", to)["verified"], True)
        same_files(listing(to), want)
        check(not any(os.path.islink(os.path.join(to, name)) for name in want), "a link was copied as a link")
        # A linked file on its own, too.
        done(os.path.join(links, SHARDS[1]), "--to", os.path.join(folder, "one"))
        same_files(listing(os.path.join(folder, "one")), {SHARDS[1]: want[SHARDS[1]]})


def gguf_part(number, count, name, data):
    def text(words):
        return struct.pack("<Q", len(words)) + words.encode()
    keys = (text("split.no") + struct.pack("<IH", 2, number) + text("split.count") + struct.pack("<IH", 2, count) +
            text("split.tensors.count") + struct.pack("<Ii", 5, count))
    info = text(name) + struct.pack("<IQIQ", 1, len(data), 24, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 3) + keys + info
    return head + bytes(-len(head) % 32) + data


@case
def any_part_of_a_split_gguf_copies_the_set():
    source = seeded()
    with Scratch() as folder:
        want = {f"m-{i + 1:05}-of-00003.gguf": gguf_part(i, 3, f"t{i}", source.randbytes(PIECE * i + 64))
                for i in range(3)}
        for name, data in want.items():
            write(os.path.join(folder, name), data)
        to = os.path.join(folder, "to")
        got = done(os.path.join(folder, "m-00002-of-00003.gguf"), "--to", to)
        same((got["format"], len(got["files"])), ("gguf", 3))
        same_files(listing(to), want)
        same(run("load", "--device", "host", "--verify", "--quiet", to).code, 0)


@case
def checksums_are_those_of_python_and_of_sha256sum():
    with Quick() as folder:
        model, to = sharded(seeded(), os.path.join(folder, "m")), os.path.join(folder, "to")
        want = listing(model)
        for name, function in ("crc32", crc32), ("sha256", sha256):
            for _ in "copied", "already there":
                got = done(model, "--to", to, "--checksum", name)
                same({file["name"]: file[name] for file in got["files"]},
                     {file: function(data) for file, data in want.items()})
                same(got["verified"], True)
            shutil.rmtree(to)
        result = run("prefetch", model, "--to", to, "--checksum", "sha256", "--quiet")
        same((result.code, result.err), (0, ""))
        same(sorted(result.out.splitlines()), sorted(f"{sha256(data)}  {name}" for name, data in want.items()))
        if shutil.which("sha256sum"):
            subprocess.run(["sha256sum", "--check", "--strict", "--quiet"], cwd=to, check=True,
                           input=result.out.encode())
        table = run("prefetch", model, "--to", to, "--checksum", "sha256").out
        holds(table, "\nsha256 of each file\n" + result.out)


@case
def what_is_there_is_compared_only_with_checksum():
    with Scratch() as folder:
        model, to = sharded(seeded(), os.path.join(folder, "m")), os.path.join(folder, "to")
        done(model, "--to", to)
        bad, times = os.path.join(to, SHARDS[0]), os.stat(os.path.join(to, SHARDS[0]))
        with open(bad, "r+b") as file:
            file.seek(PIECE + 5)
            byte = file.read(1)
            file.seek(PIECE + 5)
            file.write(bytes([byte[0] ^ 1]))
        os.utime(bad, ns=(times.st_atime_ns, times.st_mtime_ns))
        same(done(model, "--to", to)["verified"], False)
        same(failed(3, model, "--to", to, "--checksum", "crc32"),
             f'onehop: "{bad}" differs from its source in bytes {PIECE} to {2 * PIECE - 1}; remove it, or give '
             "--force to replace it\n")
        got = done(model, "--to", to, "--checksum", "crc32", "--force")
        outcomes = {file["name"]: file["outcome"] for file in got["files"]}
        same((outcomes[SHARDS[0]], outcomes[SHARDS[2]], outcomes[INDEX]), ("replaced", "already there", "replaced"))
        same_files(listing(to), listing(model))


# --------------------------------------------------------------------------------------------------
# refusals


@case
def a_place_that_is_none_is_refused_and_nothing_made():
    with Quick() as folder:
        model, source = sharded(seeded(), os.path.join(folder, "m")), os.path.join(folder, "m", SHARDS[0])
        before = listing(folder)
        link = os.path.join(folder, "link")
        os.symlink(model, link)
        for path, to, words in [
                (model, model, "it is in the folder that is copied"),
                (model, os.path.join(model, "a", "b"), "it is in the folder that is copied"),
                (model, os.path.join(link, "a"), "it is in the folder that is copied"),
                (link, os.path.join(model, "a"), "it is in the folder that is copied"),
                (model, os.path.join(folder, "none", "..", "m", "a"), 'it is not there, and it has ".." in it'),
                (model, source, "it is no folder"),
                (source, source, "it is no folder"),
                (source, model, "it holds the source itself"),
                (source, link, "it holds the source itself"),
                (os.path.join(model, INDEX), model, "it holds the source itself")]:
            holds(failed(2, path, "--to", to), f'onehop: --to cannot be "{to}": {words}; ')
            holds(failed(2, path, "--to", to, "--force"), words)
        same(listing(folder), before)
        same(sorted(os.listdir(folder)), ["link", "m"])
        # A folder whose name only begins like the source's is none of it.
        done(model, "--to", model + "2")
        same_files(listing(model + "2"), listing(model))
        for words, sentence in [(["--no-verify"], "--no-verify needs --to; give --to"),
                                (["--checksum", "crc32"], "--checksum needs --to; give --to"),
                                (["--to", ""], '--to cannot be ""; give a folder')]:
            same(failed(2, model, *words), f"onehop: {sentence}\n")


@case
def somebody_s_file_is_replaced_only_by_force():
    source = seeded()
    with Scratch() as folder:
        path, to = one(source, folder, 1000), os.path.join(folder, "to")
        os.mkdir(to)
        there = write(os.path.join(to, "m.safetensors"), b"somebody's")
        size = os.path.getsize(path)
        same(failed(1, path, "--to", to),
             f'onehop: "{there}" is there, with 10 bytes where the source has {size}; choose another folder, or '
             "give --force to replace what differs\n")
        write(there, bytes(size))
        holds(failed(1, path, "--to", to), "is there, and was written at another time")
        os.remove(there)
        target = write(os.path.join(folder, "target"), b"linked to")
        os.symlink(target, there)
        holds(failed(1, path, "--to", to), "is there, and is no regular file")
        got = done(path, "--to", to, "--force")
        same(got["files"][0]["outcome"], "replaced")
        same((read(there), read(target), os.path.islink(there)), (read(path), b"linked to", False))
        os.remove(there)
        os.mkdir(there)
        holds(failed(1, path, "--to", to, "--force"), "is there, and is no regular file")


@case
def a_temporary_name_that_is_taken_is_not_written_through():
    with Scratch() as folder:
        path, to = one(seeded(), folder, 1000), os.path.join(folder, "to")
        os.mkdir(to)
        precious = write(os.path.join(folder, "precious"), b"precious")
        part = os.path.join(to, ".m.safetensors.onehop-part")
        os.symlink(precious, part)
        holds(failed(1, path, "--to", to), "cannot make a temporary file for")
        os.remove(part)
        os.link(precious, part)
        holds(failed(1, path, "--to", to), "is taken by something else; remove it")
        os.remove(part)
        os.mkfifo(part)
        holds(failed(1, path, "--to", to, timeout=20), "is taken by something else; remove it")
        check(stat.S_ISFIFO(os.lstat(part).st_mode), "the pipe is gone")
        same(read(precious), b"precious")


@case
def a_model_that_is_none_is_not_copied():
    with Scratch() as folder:
        path = write(os.path.join(folder, "m.safetensors"), b"\x08\0\0\0\0\0\0\0{\"a\":{}")
        failed(3, path, "--to", os.path.join(folder, "to"))
        failed(1, os.path.join(folder, "none"), "--to", os.path.join(folder, "to"))
        same(os.listdir(folder), ["m.safetensors"])


# --------------------------------------------------------------------------------------------------
# interruptions


def moments(what, *words, first=1, **more):
    """Runs with the fault at the first call, the second, ..., until one is not reached any more."""
    number = first
    while True:
        result = faulty(f"{what}:{number}", *words, **more)
        yield number, result
        number += 1


@case
def twenty_kills_at_random_moments_lose_nothing():
    source = seeded()
    with Scratch() as folder:
        model = sharded(source, os.path.join(folder, "m"), sizes=(3 * PIECE + 7, 900, 2 * PIECE + 1))
        want, to, kills, rounds = listing(model), os.path.join(folder, "to"), 0, 0
        while kills < 20:
            result = faulty(f"kill:{source.randrange(1, 60)}", model, "--to", to)
            check(result.code in (-9, 0), result)
            kills += result.code == -9
            have = whole(to) if os.path.isdir(to) else {}
            for name, data in have.items():
                check(data == want[name], f"{name} has its name and not its bytes")
            check(INDEX not in have or len(have) == len(want), "an index without its files")
            if result.code == 0:
                same_files(listing(to), want)
                shutil.rmtree(to)
                rounds += 1
        same(done(model, "--to", to)["mode"], "copy")
        same_files(listing(to), want)
        print(f"# {kills} kills, {rounds + 1} whole copies")


@case
def a_kill_at_every_moment_loses_nothing():
    with Quick() as folder:
        model = sharded(seeded(), os.path.join(folder, "m"), sizes=(PIECE + 7, 90, 100))
        want, tried = listing(model), 0
        for number, result in moments("kill", model, "--to", os.path.join(folder, "to")):
            to = os.path.join(folder, "to")
            for name, data in whole(to).items():
                check(data == want[name], f"call {number}: {name} has its name and not its bytes")
            done(model, "--to", to)
            same_files(listing(to), want)
            shutil.rmtree(to)
            tried += 1
            if result.code == 0:
                break
        check(tried > 30, f"only {tried} moments")


@case
def an_interrupted_copy_goes_on_where_it_stopped():
    with Scratch() as folder:
        path, to = one(seeded(), folder, 8 * PIECE), os.path.join(folder, "to")
        words = [path, "--to", to, "--option", "threads=1"]
        result = faulty("int:14", *words)
        same((result.code, result.out, result.err),
             (1, "", "onehop: cancelled; run it again to go on: what is copied stays\n"))
        same(list(listing(to)), [".m.safetensors.onehop-part"])
        got = done(*words)
        check(got["files"][0]["outcome"] == "resumed" and PIECE <= got["kept_bytes"] < 8 * PIECE, got)
        same(got["kept_bytes"] + got["copied_bytes"], os.path.getsize(path))
        same_files(listing(to), {"m.safetensors": read(path)})
        out = run("prefetch", path, "--to", to).out
        holds(out, "1 already there")


@case
def a_temporary_file_is_believed_only_where_its_bytes_agree():
    with Scratch() as folder:
        path, to = one(seeded(), folder, 8 * PIECE), os.path.join(folder, "to")
        part = os.path.join(to, ".m.safetensors.onehop-part")
        words = [path, "--to", to, "--option", "threads=1"]
        faulty("int:14", *words)
        interrupted = read(part)
        with open(part, "r+b") as file:
            file.seek(99)
            byte = file.read(1)
            file.seek(99)
            file.write(bytes([byte[0] ^ 4]))
        kept = done(*words)["kept_bytes"]
        same_files(listing(to), {"m.safetensors": read(path)})
        # The same without the wrong byte keeps one piece more.
        for damage, more in [(lambda data: data, PIECE), (lambda data: data[:-8], -kept),
                             (lambda data: data[:100], -kept), (lambda data: b"", -kept),
                             (lambda data: bytes(len(data)), -kept)]:
            os.remove(os.path.join(to, "m.safetensors"))
            write(part, damage(interrupted))
            same(done(*words)["kept_bytes"], kept + more)
            same_files(listing(to), {"m.safetensors": read(path)})


@case
def another_source_starts_over():
    source = seeded()
    with Scratch() as folder:
        path, to = one(source, folder, 8 * PIECE), os.path.join(folder, "to")
        words = [path, "--to", to, "--option", "threads=1"]
        faulty("int:14", *words)
        times = os.stat(path)
        one(source, folder, 8 * PIECE)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # the ctime tells them apart
        same(done(*words)["kept_bytes"], 0)
        same_files(listing(to), {"m.safetensors": read(path)})


@case
def a_disk_that_fills_up_leaves_no_half_file():
    with Quick() as folder:
        model = sharded(seeded(), os.path.join(folder, "m"), sizes=(PIECE + 7, 90, 100))
        to, want, tried = os.path.join(folder, "to"), listing(model), 0
        for number, result in moments("full", model, "--to", to):
            if result.code == 0:
                break
            same((result.code, result.out, result.err.count("\n")), (1, "", 1), f"call {number}")
            holds(result.err, "No space left on device; free space there, or choose another folder\n")
            for name, data in listing(to).items():
                check(data == want.get(name), f"call {number}: {name} has not its bytes, or no business there")
            check(INDEX not in listing(to), "an index without its files")
            shutil.rmtree(to)
            tried += 1
        check(tried > 15, f"only {tried} moments")
        same_files(listing(to), want)


def mounted(folder, size):
    """A small tmpfs at the folder, or a skip."""
    os.mkdir(folder)
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder],
                                           stderr=subprocess.DEVNULL).returncode:
        os.rmdir(folder)
        raise Skip("needs the right to mount a small tmpfs")
    return folder


@case
def a_disk_that_is_too_small_is_found_before_anything_is_written():
    with Scratch() as folder:
        path, to = one(seeded(), folder, 3 * PIECE), mounted(os.path.join(folder, "to"), "8M")
        try:
            err = failed(1, path, "--to", os.path.join(to, "a"))
            check(re.fullmatch(rf'onehop: "{to}/a" has 8\.00 MiB free \(8388608 bytes\), and the copy needs 12\.0 MiB '
                               r"\(\d+ bytes\); free 4\.\d\d MiB there, or choose another folder\n", err), err)
            same(os.listdir(to), [])
            # The same disk, whose size is not known: it is full in the middle.
            result = run("prefetch", path, "--to", to, command=FAULTY, env=environment(FAULTY_ROOM="1"))
            same((result.code, result.out, result.err.count("\n")), (1, "", 1))
            holds(result.err, "No space left on device; free space there")
            same(os.listdir(to), [])
            # What an interrupted run has written there already is not needed again.
            small = one(seeded(), folder, 6 << 20, "s.safetensors")
            faulty("int:6", small, "--to", to, "--option", "threads=1")
            same(parts(to), [".s.safetensors.onehop-part"])
            same(done(small, "--to", to)["files"][0]["outcome"], "resumed")
        finally:
            subprocess.run(["umount", to], check=True)


@case
def a_call_that_fails_at_any_moment_fails_the_run_and_the_next_is_right():
    with Quick() as folder:
        model = sharded(seeded(), os.path.join(folder, "m"), sizes=(PIECE + 7, 90, 100))
        to, want, tried = os.path.join(folder, "to"), listing(model), 0
        for number, result in moments("eio", model, "--to", to):
            same(result.err.count("\n"), 1 if result.code else 0, f"call {number}: {result}")
            if result.code:
                same((result.code, result.out), (1, ""), f"call {number}")
                holds(result.err, ": Input/output error")
            for name, data in whole(to).items():
                check(data == want[name], f"call {number}: {name} has its name and not its bytes")
            done(model, "--to", to)
            same_files(listing(to), want)
            shutil.rmtree(to)
            tried += 1
            if result.code == 0 and tried > 70:
                break
        check(tried > 30, f"only {tried} moments")


@case
def short_reads_and_writes_are_completed():
    with Scratch() as folder:
        path, to = one(seeded(), folder), os.path.join(folder, "to")
        result = faulty("short:1", path, "--to", to, "--quiet")
        same(result, (0, "", ""))
        same_files(listing(to), {"m.safetensors": read(path)})


@case
def a_disk_that_lies_is_found_unless_nobody_looks():
    with Scratch() as folder:
        path, to = one(seeded(), folder), os.path.join(folder, "to")
        result = faulty("flip:1", path, "--to", to)
        same((result.code, result.out, result.err.count("\n")), (3, "", 1))
        check(re.match(rf'onehop: "{to}/m\.safetensors" differs from its source in bytes \d+ to \d+; run it again',
                       result.err), result.err)
        same(os.listdir(to), [])
        same(faulty("flip:1", path, "--to", to, "--no-verify", "--quiet"), (0, "", ""))
        check(read(os.path.join(to, "m.safetensors")) != read(path), "the fault had no effect")


@case
def a_source_that_changes_meanwhile_gets_no_name():
    with Scratch() as folder:
        model, to = sharded(seeded(), os.path.join(folder, "m")), os.path.join(folder, "to")
        for name in SHARDS[0], SHARDS[2]:
            path = os.path.join(model, name)
            before = os.stat(path)
            result = faulty("append:45", model, "--to", to, FAULTY_FILE=path)
            same((result.code, result.out, result.err),
                 (1, "", f'onehop: "{path}" changed while it was read; run it again when nothing writes to it\n'))
            check(INDEX not in listing(to), "an index although its files changed")
            same(parts(to), [])
            os.truncate(path, before.st_size)
            shutil.rmtree(to)


@case
def a_new_version_is_copied_by_force_and_no_index_stands_between():
    source = seeded()
    with Quick() as folder:
        model, to = sharded(source, os.path.join(folder, "m"), sizes=(70, 90, 100)), os.path.join(folder, "to")
        done(model, "--to", to)
        old, saved = listing(to), os.path.join(folder, "saved")
        shutil.copytree(to, saved)
        sharded(source, model, sizes=(70, 91, 100))
        want = listing(model)
        failed(1, model, "--to", to)
        same_files(listing(to), old)
        tried = 0
        for number, result in moments("kill", model, "--to", to, "--force"):
            if INDEX in whole(to):
                check(whole(to) in (old, want), f"call {number}: an index and files of two versions")
            done(model, "--to", to, "--force")
            same_files(listing(to), want)
            shutil.rmtree(to)
            shutil.copytree(saved, to)
            tried += 1
            if result.code == 0:
                break
        check(tried > 30, f"only {tried} moments")


@case
def two_at_once_do_not_disturb_each_other():
    with Scratch() as folder:
        model = sharded(seeded(), os.path.join(folder, "m"), sizes=(5 * PIECE, 90, 2 * PIECE))
        to, want = os.path.join(folder, "to"), listing(model)
        for _ in range(3):
            children = [subprocess.Popen([FAULTY, "prefetch", "--json", model, "--to", to],
                                         env=environment(FAULTY_COPY="slow:1"), stdin=subprocess.DEVNULL,
                                         stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
            answers = [child.communicate(timeout=100) for child in children]
            same([(child.returncode, err) for child, (_, err) in zip(children, answers)], [(0, b"")] * 3)
            same(sum(json.loads(out)["copied_bytes"] for out, _ in answers), sum(map(len, want.values())))
            same_files(listing(to), want)
            shutil.rmtree(to)


@case
def a_terminal_gets_a_bar_and_a_pipe_none():
    with Scratch() as folder:
        path = one(seeded(), folder, 10 * PIECE)
        env = environment(FAULTY_COPY="slow:1")
        for words, what in [(["--to", os.path.join(folder, "to")], "copying"), ([], "warming")]:
            forget(path)
            master, slave = pty.openpty()
            child = subprocess.Popen([FAULTY, "prefetch", "--option", "threads=1", path, *words], env=env,
                                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=slave)
            os.close(slave)
            text = b""
            try:
                while piece := os.read(master, 65536):
                    text += piece
            except OSError:  # the other end is closed
                pass
            os.close(master)
            same(child.wait(60), 0)
            check(re.match(rb"\r" + what.encode() + rb" \[[#.]{24}\] +\d+ %  \S+ \w+ of 40\.0 MiB  ", text), text[:200])
            check(text.endswith(b"\r\x1b[K"), "the bar was not erased")
        same(run("prefetch", path, "--to", os.path.join(folder, "to2"), command=FAULTY, env=env).err, "")


if __name__ == "__main__":
    run_cases()
