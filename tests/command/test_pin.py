#!/usr/bin/env python3
"""onehop load --pin, CPU use, and what a load says of pressure.

usage: test_pin.py ONEHOP ONEHOP_STAGED FOLDER    (of the look-alike libcuda.so.1; staged.c says what
ONEHOP_STAGED is)
"""
import json
import os
import re
import signal
import subprocess
import sys

from command import FAULTY as STAGED, Scratch, crc32, environment, run, safetensors, seeded, sparse, tensor
from tap import case, check, holds, run as run_cases, same

COUNTERS = ["throttled_periods", "throttled_us", "io_us", "memory_us", "group_io_us", "group_memory_us"]
WHOLE_LOAD = ["open", "close"]


def driver(**more):
    """The environment in which the look-alike driver is found."""
    return environment(LD_LIBRARY_PATH=os.path.abspath(sys.argv[3]), **more)


def pressed(*numbers):
    """The environment of a machine whose counters grow by that much between two readings."""
    return environment(STAGED_PRESSURE=" ".join(map(str, numbers)))


def model(folder):
    source = seeded()
    tensors = [tensor(source, f"t.{i}", "BF16", [source.randrange(1 << 21)]) for i in range(4)]
    tensors += [tensor(source, f"small.{i}", "F32", [source.randrange(3000)]) for i in range(50)]
    return safetensors(os.path.join(folder, "m.safetensors"), tensors), tensors


def lines(path):
    with open(path, encoding="ascii") as file:
        return file.read().split()


@case
def a_pinned_model_is_opened_and_pinned_once_over_all_repeats():
    with Scratch() as folder:
        path, tensors = model(folder)
        log = os.path.join(folder, "log")
        words = ["load", "--device", "cuda:0", "--repeat", "3", "--verify", "--checksum", "crc32", "--json"]
        result = run(*words, "--pin", path, command=STAGED, env=driver(STAGED_LOG=log))
        same((result.code, result.err), (0, ""))
        same(lines(log), ["open", "pin", "unpin", "close"])
        got = json.loads(result.out)
        same([t["crc32"] for t in got["tensors"]], [crc32(t[3]) for t in tensors])
        same((got["verified"], len(got["repeats"])), (True, 3))
        same(got["routes"], {"buffered": 0, "direct": 0, "mapped": got["bytes"]})
        same(got["peak_pinned_bytes"], 0, "staging memory")
        same(list(got["pin"]), ["file_pinned_bytes", "open_ns", "parse_ns", "allocate_ns", "pin_ns"])
        same(got["pin"]["file_pinned_bytes"], os.path.getsize(path))
        check(all(ns > 0 for ns in got["pin"].values()), got["pin"])
        same((got["phases"]["open_ns"], got["phases"]["parse_ns"]), (0, 0))
        os.remove(log)
        result = run(*words, path, command=STAGED, env=driver(STAGED_LOG=log))
        same((result.code, json.loads(result.out)["pin"]), (0, None))
        same(lines(log), WHOLE_LOAD * 3, "without --pin")


@case
def the_table_tells_pinning_apart_from_the_load():
    with Scratch() as folder:
        path, _ = model(folder)
        result = run("load", "--device", "cuda:0", "--pin", path, env=driver())
        same((result.code, result.err), (0, ""))
        time = r"\d\S* (us|ms|s)"
        check(re.search(rf"^once before     open        {time}\n +parse +{time}\n +allocate +{time}\n +pin +{time}\n"
                        rf"phases          open        none\n +parse +none\n +select +{time}$", result.out, re.M),
              result.out)
        size = f"{os.path.getsize(path):,}"
        check(re.search(rf"^pinned files    {size} bytes \(\S+ MiB\) of page cache$", result.out, re.M), result.out)
        out = run("load", "--device", "cuda:0", path, env=driver()).out
        check("pinned files" not in out and "once before" not in out, out)


@case
def parts_and_shards_can_be_pinned():
    source = seeded()
    with Scratch() as folder:
        names = ["a", "b", "c"]
        for i, name in enumerate(names):
            safetensors(os.path.join(folder, f"{name}.safetensors"), [tensor(source, name, "F32", [64, 96 + i])])
        plan = os.path.join(folder, "plan.json")
        with open(plan, "w", encoding="ascii") as file:
            json.dump({"a": 0, "b": 1}, file)
        files = [os.path.join(folder, f"{name}.safetensors") for name in names]
        part = ["--tp", "1/2", "--tp-plan", plan, "--tp-uneven", "split"]
        for words in [], part, ["--tensors", "[ac]"]:
            result = run("load", "--device", "cuda:0", "--pin", "--repeat", "2", "--verify", "--json", *words,
                         folder, env=driver())
            same((result.code, result.err), (0, ""))
            got = json.loads(result.out)
            same((got["verified"], got["pin"]["file_pinned_bytes"]),
                 (True, sum(os.path.getsize(file) for file in files)))


@case
def what_cannot_be_pinned_is_an_error():
    with Scratch() as folder:
        path, _ = model(folder)
        result = run("load", "--device", "host", "--pin", path)
        same((result.code, result.out, result.err.count("\n")), (1, "", 1))
        holds(result.err, "cannot be pinned for host")
        result = run("load", "--device", "cuda:0", "--pin", path,
                     env=driver(FAKE_CUDA_FAIL="cuMemHostRegister_v2:1"))
        same((result.code, result.out, result.err.count("\n")), (1, "", 1))
        same(run("load", "--pin=1", path).err, "onehop: --pin takes no value; leave it away\n")


@case
def room_on_the_device_is_checked_before_anything_is_pinned():
    with Scratch() as folder:
        log = os.path.join(folder, "log")
        path = sparse(os.path.join(folder, "m.safetensors"), "a", 100 << 20)
        result = run("load", "--device", "cuda:0", "--pin", path, command=STAGED,
                     env=driver(STAGED_LOG=log, FAKE_CUDA_MEMORY=str(64 << 20)))
        same((result.code, result.out, result.err.count("\n")), (1, "", 1))
        same(lines(log), ["open", "close"])


@case
def a_load_that_fails_leaves_nothing_pinned():
    with Scratch() as folder:
        log = os.path.join(folder, "log")
        path, _ = model(folder)
        # Nothing of it can be copied in one call, and the first that is copied fails.
        result = run("load", "--device", "cuda:0", "--pin", "--repeat", "3", path, command=STAGED,
                     env=driver(STAGED_LOG=log, FAKE_CUDA_NO_BATCH="1", FAKE_CUDA_FAIL="cuMemcpyHtoDAsync_v2:1+"))
        same((result.code, result.out, result.err.count("\n")), (1, "", 1))
        same(lines(log), ["open", "pin", "unpin", "close"])


@case
def ctrl_c_leaves_nothing_pinned():
    with Scratch() as folder:
        log = os.path.join(folder, "log")
        path = sparse(os.path.join(folder, "m.safetensors"), "a", 1 << 30)
        child = subprocess.Popen([STAGED, "load", "--device", "cuda:0", "--pin", "--repeat", "50", path],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 env=driver(STAGED_LOG=log, FAKE_CUDA_GBPS="0.1"))
        while child.poll() is None and not (os.path.exists(log) and "pin" in lines(log)):
            pass
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
        same((child.returncode, out, err), (1, b"", b"onehop: cancelled\n"))
        same(lines(log), ["open", "pin", "unpin", "close"])


@case
def each_load_tells_its_cpu_use():
    with Scratch() as folder:
        path, _ = model(folder)
        usable = json.loads(run("version", "--json").out)["usable_cores"]
        for device, words in ("host", []), ("host", ["--verify"]), ("cuda:0", []), ("cuda:0", ["--pin"]):
            result = run("load", "--device", device, "--repeat", "3", "--json", *words, path, env=driver())
            same((result.code, result.err), (0, ""))
            got = json.loads(result.out)
            check(got["cpu"] in [repeat["cpu"] for repeat in got["repeats"]], got)
            for repeat in got["repeats"]:
                cpu = repeat["cpu"]
                same(list(cpu), ["user_seconds", "system_seconds", "cores", "percent_of_usable"])
                spent = cpu["user_seconds"] + cpu["system_seconds"]
                check(abs(cpu["cores"] - spent / repeat["seconds"]) < 1e-3, repeat)
                check(abs(cpu["percent_of_usable"] - 100 * cpu["cores"] / usable) < 0.02, repeat)
        out = run("load", "--device", "host", path).out
        check(re.search(rf"^cpu             \S+ \w+ user, \S+ \w+ system: \d+\.\d\d cores, \d+\.\d % of the {usable} "
                        "usable$", out, re.M), out)


@case
def pressure_is_said_with_what_to_do_about_it():
    with Scratch() as folder:
        path, _ = model(folder)
        load = ["load", "--device", "host", path]
        hour = 3600 * 10 ** 6
        out = run(*load, command=STAGED, env=pressed(0x1f, 37, 1200000, hour, hour, hour, hour)).out
        holds(out, "\nthrottled       37 periods, 1.20 s of CPU time waited for (the cgroup's CPU quota); raise the "
              "quota, or let less run beside the load\n")
        for line in (r"I/O pressure    \d+\.\d % of the time some task of the machine waited, \d+\.\d % one of this "
                     "cgroup; onehop prefetch puts into the page cache what is not there yet",
                     r"memory pressure \d+\.\d % of the time some task of the machine waited, \d+\.\d % one of this "
                     "cgroup; free memory or raise the cgroup's limit, so that the page cache can stay"):
            check(re.search(f"^{line}$", out, re.M), out)
        out = run(*load, command=STAGED, env=pressed(0x1f, 1, 1000, 0, 0, 0, hour)).out
        holds(out, "\nthrottled       1 period, 1.00 ms of CPU time waited for ")
        check(re.search(r"^memory pressure \d+\.\d % of the time some task of this cgroup waited; ", out, re.M), out)
        check("I/O pressure" not in out, out)


@case
def no_pressure_is_not_spoken_of():
    with Scratch() as folder:
        path, _ = model(folder)
        for numbers in [0x1f] + [0] * 6, [0] * 7:
            out = run("load", "--device", "host", path, command=STAGED, env=pressed(*numbers)).out
            check("pressure" not in out and "throttled" not in out, out)


@case
def the_object_has_each_counter_and_null_for_what_is_not_known():
    with Scratch() as folder:
        path, _ = model(folder)
        for known, want in [(0x1f, [3, 4, 5, 6, 7, 8]), (0x03, [3, 4, 5, None, None, None]),
                            (0x18, [None] * 4 + [7, 8]), (0, [None] * 6)]:
            result = run("load", "--device", "host", "--json", path, command=STAGED,
                         env=pressed(known, 3, 4, 5, 6, 7, 8))
            same((result.code, result.err), (0, ""))
            got = json.loads(result.out)["pressure"]
            same(list(got), ["seconds"] + COUNTERS)
            same([got[counter] for counter in COUNTERS], want, f"counters of {known:#x}")
            check(got["seconds"] > 0, got)


@case
def version_says_what_can_be_read():
    words = ["CPU throttling", "I/O", "memory", "I/O of the cgroup", "memory of the cgroup"]
    for known in range(32):
        env = pressed(known, 0, 0, 0, 0, 0, 0)
        have = ", ".join(word for bit, word in enumerate(words) if known >> bit & 1)
        lack = ", ".join(word for bit, word in enumerate(words) if not known >> bit & 1)
        parts = [part for part, inside in ((f"readable: {have}", have), (f"not readable: {lack}", lack)) if inside]
        holds(run("version", command=STAGED, env=env).out, f"\npressure        {'; '.join(parts)}\n")
    got = json.loads(run("version", "--json", command=STAGED, env=pressed(0x05, 0, 0, 0, 0, 0, 0)).out)
    same(got["pressure"], dict(zip(COUNTERS, [True, True, False, True, False, False])))


if __name__ == "__main__":
    run_cases()
