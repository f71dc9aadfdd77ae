#!/usr/bin/env python3
"""The command where little is allowed: no io_uring, no /sys, a read-only root, an unprivileged user,
64 KiB of locked memory, a cgroup of 2 CPUs and 1 GiB; and where a limit is too low for the work.
"""
import contextlib
import json
import os
import re

from place import BUILD, DRIVER, ONEHOP, USER, cgroup, enter, inside, out_of_memory_kills

from command import Scratch, crc32, safetensors, seeded, sparse, tensor
from tap import Skip, case, check, holds, run as run_cases, same

GIB = 1 << 30
CONFINED = ["-m", "-u", str(USER), "-s", "-l", f"memlock={64 << 10}"]


@contextlib.contextmanager
def limited(cpus, memory):
    """The same as cgroup(), or no cgroup with a note why."""
    with contextlib.ExitStack() as stack:
        try:
            words = stack.enter_context(cgroup(cpus, memory))
        except Skip as reason:
            print(f"# without a cgroup: {reason}")
            words = []
        yield words


@contextlib.contextmanager
def open_scratch():
    """A folder that every user may look into."""
    with Scratch() as folder:
        os.chmod(folder, 0o755)
        yield folder


@contextlib.contextmanager
def container(folder):
    """Words for enter.c: the strict container, in which the folder is /tmp/model."""
    with limited(2, GIB) as group:
        yield [*group, *CONFINED, "-b", f"build={BUILD}", "-b", f"model={folder}"]


def model(folder):
    """A few large tensors and many small ones: a hundred MiB or so."""
    source = seeded()
    tensors = [tensor(source, f"large.{i}", "BF16", [source.randrange(1 << 23, 1 << 24)]) for i in range(4)]
    tensors += [tensor(source, f"small.{i}", "F32", [source.randrange(3000)]) for i in range(300)]
    return safetensors(os.path.join(folder, "m.safetensors"), tensors), tensors


def shards(folder, count):
    """A model in many files. Gives its tensors."""
    source, tensors, index = seeded(), [], {}
    for i in range(count):
        one, name = tensor(source, f"t.{i}", "U8", [10000 + i]), f"m-{i:02}.safetensors"
        safetensors(os.path.join(folder, name), [one])
        tensors.append(one)
        index[one[0]] = name
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {}, "weight_map": index}, file)
    return tensors


def right(result, tensors):
    """The object of a load whose bytes have to be right."""
    same((result.code, result.err), (0, ""))
    got = json.loads(result.out)
    same([t["crc32"] for t in got["tensors"]], [crc32(t[3]) for t in tensors])
    same(got["verified"], True)
    return got


def refused(result):
    """The message of a failed operation: one line, and nothing printed."""
    same((result.code, result.out, result.err.count("\n")), (1, "", 1))
    return result.err


LOAD = ["load", "--json", "--checksum", "crc32", "--verify"]


@case
def a_load_in_a_container_is_right():
    with open_scratch() as folder:
        _, tensors = model(folder)
        with container(folder) as place:
            got = right(enter(place, inside(ONEHOP), *LOAD, "/tmp/model/m.safetensors"), tensors)
            same(got["device"], "host")


@case
def a_load_to_a_gpu_in_a_container_is_right():
    with open_scratch() as folder:
        _, tensors = model(folder)
        with container(folder) as place:
            env = {"LD_LIBRARY_PATH": inside(DRIVER)}
            got = right(enter(place, inside(ONEHOP), *LOAD, "/tmp/model/m.safetensors", env=env), tensors)
            same(got["device"], "cuda:0")
            check(0 < got["peak_pinned_bytes"] <= 128 << 20, got["peak_pinned_bytes"])


@case
def two_gib_of_address_space_will_do():
    with open_scratch() as folder:
        _, tensors = model(folder)
        with container(folder) as place:
            right(enter([*place, "-l", f"as={2 * GIB}"], inside(ONEHOP), *LOAD, "/tmp/model/m.safetensors"),
                  tensors)


@case
def each_cache_option_works_in_a_container():
    with open_scratch() as folder:
        _, tensors = model(folder)
        with container(folder) as place:
            for choice in "keep", "bypass", "drop":
                right(enter(place, inside(ONEHOP), *LOAD, "--option", f"cache={choice}",
                            "/tmp/model/m.safetensors"), tensors)


@case
def version_in_a_container_says_what_is_not_known():
    with open_scratch() as folder, container(folder) as place:
        result = enter(place, inside(ONEHOP), "version")
        same((result.code, result.err), (0, ""))
        check(re.search(r"^L3 cache +not known", result.out, re.M), result.out)
        got = json.loads(enter(place, inside(ONEHOP), "version", "--json").out)
        same(got["l3_bytes"], 0)
        check(got["usable_cores"] >= 1 and got["memory_bytes"] > 0, got)


@case
def explain_in_a_container_says_what_is_not_known():
    with open_scratch() as folder:
        model(folder)
        with container(folder) as place:
            result = enter(place, inside(ONEHOP), "explain", "--option", "look=always",
                           "/tmp/model/m.safetensors")
            same((result.code, result.err), (0, ""))
            # Another user's file: the kernel would say that all of it is resident.
            holds(result.out, "\nreason          RESIDENCY_UNKNOWN: ")


@case
def too_few_open_files_name_the_limit():
    with open_scratch() as folder:
        tensors = shards(folder, 40)
        message = refused(enter(["-l", "nofile=16"], ONEHOP, *LOAD, folder))
        holds(message, "ulimit -n")
        right(enter(["-l", "nofile=64"], ONEHOP, *LOAD, folder), tensors)


@case
def too_few_threads_are_fewer_workers_or_an_error_that_names_the_limit():
    with open_scratch() as folder:
        path, tensors = model(folder)
        # The command itself is one.
        for most in 1, 2, 3, 5:
            place = ["-u", str(USER), "-l", f"nproc={most}", "-m", "-b", f"build={BUILD}", "-b",
                     f"model={folder}"]
            result = enter(place, inside(ONEHOP), *LOAD, "--option", "threads=8", "/tmp/model/m.safetensors")
            if most == 1 and result.code:
                holds(refused(result), "ulimit -u")
            else:
                right(result, tensors)


@case
def an_address_space_too_small_is_an_error_with_the_number():
    with open_scratch() as folder:
        path = sparse(os.path.join(folder, "m.safetensors"), "a", 3 * GIB)
        holds(refused(enter(["-l", f"as={2 * GIB}"], ONEHOP, "load", "--device", "host", path)), str(3 * GIB))


@case
def a_quota_is_the_number_of_cores():
    with cgroup(1, GIB) as group:
        got = json.loads(enter(group, ONEHOP, "version", "--json").out)
        same(got["usable_cores"], 1)
        check(got["memory_bytes"] <= GIB, got)


@case
def more_than_the_cgroup_allows_is_refused_before_it_starts():
    size, most = 300 << 20, 256 << 20
    with open_scratch() as folder, cgroup(2, most) as group:
        path = sparse(os.path.join(folder, "m.safetensors"), "a", size)
        message = refused(enter(group, ONEHOP, "load", "--device", "host", path))
        wanted, usable = map(int, re.findall(r"\d{7,}", message)[:2])
        check(wanted >= size and usable <= most, message)
        same(out_of_memory_kills(group), "0")


@case
def what_fits_the_cgroup_loads_although_the_page_cache_is_full():
    with open_scratch() as folder, cgroup(2, 256 << 20) as group:
        # Not sparse: its pages are the cgroup's until they are taken back.
        path = safetensors(os.path.join(folder, "m.safetensors"),
                           [("a", "U8", [200 << 20], b"onehop!\n" * (25 << 20))])
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)
        for _ in range(2):
            result = enter(group, ONEHOP, "load", "--device", "host", "--verify", path)
            same((result.code, result.err), (0, ""))
        same(out_of_memory_kills(group), "0")


if __name__ == "__main__":
    run_cases()
