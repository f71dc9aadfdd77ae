#!/usr/bin/env python3
"""The command with a GPU, which the look-alike driver pretends to be.

usage: test_driver.py ONEHOP ONEHOP_FAULTY FOLDER OLD    (of the look-alike libcuda.so.1, and of an
older one that copies one range a call)
"""
import json
import os
import signal
import subprocess
import sys

from command import FAULTY, ONEHOP, Scratch, crc32, environment, run, safetensors, seeded, sparse, tensor
from tap import Skip, case, check, holds, run as run_cases, same


def driver(folder=sys.argv[3], **more):
    """The environment in which the look-alike driver is found."""
    return environment(LD_LIBRARY_PATH=os.path.abspath(folder), **more)


def no_driver():
    return {k: v for k, v in environment().items() if k != "LD_LIBRARY_PATH"}


def model(folder):
    """A few large tensors and many small ones, some empty."""
    source = seeded()
    tensors = [tensor(source, f"large.{i}", "BF16", [source.randrange(1 << 22)]) for i in range(4)]
    tensors += [tensor(source, f"small.{i}", "F32", [source.randrange(3000)]) for i in range(300)]
    tensors += [tensor(source, "none", "U8", [0])]
    return safetensors(os.path.join(folder, "m.safetensors"), tensors), tensors


@case
def a_gpu_is_the_default_device():
    env = driver()
    with Scratch() as folder:
        path, tensors = model(folder)
        result = run("load", "--json", "--checksum", "crc32", "--verify", path, env=env)
        same((result.code, result.err), (0, ""))
        got = json.loads(result.out)
        same((got["device"], got["verified"]), ("cuda:0", True))
        same([t["crc32"] for t in got["tensors"]], [crc32(t[3]) for t in tensors])
        check(0 < got["peak_pinned_bytes"] <= 128 << 20, got["peak_pinned_bytes"])
        check(got["phases"]["first_copy_ns"] > 0, got["phases"])


@case
def the_gpu_and_the_host_hold_the_same_bytes():
    env = driver()
    with Scratch() as folder:
        path, _ = model(folder)
        plan = os.path.join(folder, "plan.json")
        with open(plan, "w") as file:
            json.dump({"*": 0}, file)
        for words in [], ["--tp", "1/3", "--tp-plan", plan, "--tp-uneven", "split"]:
            got = [json.loads(run("load", "--device", device, "--json", "--checksum", "sha256", path, *words,
                                  env=env).out)["tensors"] for device in ("cuda:0", "host")]
            same(got[0], got[1])


@case
def a_driver_that_refuses_batched_copies_is_worked_around():
    env = driver(FAKE_CUDA_NO_BATCH="1")
    with Scratch() as folder:
        path, tensors = model(folder)
        result = run("load", "--json", "--checksum", "crc32", "--verify", path, env=env)
        same((result.code, result.err), (0, ""))
        same([t["crc32"] for t in json.loads(result.out)["tensors"]], [crc32(t[3]) for t in tensors])


@case
def an_old_driver_is_a_reason_with_a_remedy():
    env = driver(sys.argv[4])
    with Scratch() as folder:
        path, tensors = model(folder)
        got = json.loads(run("load", "--json", "--checksum", "crc32", path, env=env).out)
        same([t["crc32"] for t in got["tensors"]], [crc32(t[3]) for t in tensors])
        same(json.loads(run("version", "--json", env=env).out)["devices"][0]["batch_copy"], False)
        plan = os.path.join(folder, "plan.json")
        with open(plan, "w") as file:
            json.dump({"*": 0}, file)
        result = run("explain", path, "--tp", "0/3", "--tp-plan", plan, "--tp-uneven", "split", env=env)
        holds(result.out, "NO_BATCH_COPY: ")
        holds(result.out, "; use a driver of CUDA 12.8 or newer\n")


@case
def version_names_the_gpu_or_says_why_there_is_none():
    env = driver()
    got = json.loads(run("version", "--json", env=env).out)["devices"]
    check(got and all(d["name"] and d["driver"].startswith("CUDA ") for d in got), got)
    holds(run("version", env=env).out, f"\ncuda:0          {got[0]['name']}, {got[0]['driver']}, PCI ")
    env["FAKE_CUDA_DEVICES"] = "0"
    got = json.loads(run("version", "--json", env=env).out)["devices"]
    check(len(got) == 1 and got[0]["error"] and got[0]["remedy"], got)
    holds(run("version", env=env).out, "\ncuda:0          none: ")


@case
def too_little_device_memory_is_a_failed_operation_with_numbers():
    env = driver(FAKE_CUDA_MEMORY=str(64 << 20))
    with Scratch() as folder:
        path = sparse(os.path.join(folder, "m.safetensors"), "a", 100 << 20)
        for command in "load", "explain":
            result = run(command, "--device", "cuda:0", path, env=env)
            same((result.code, result.out, result.err.count("\n")), (1, "", 1))
            holds(result.err, "cuda:0")


@case
def a_gpu_that_lies_is_found_by_verify():
    env = driver(FAULTY_BYTE="100000")
    with Scratch() as folder:
        path, _ = model(folder)
        result = run("load", "--device", "cuda:0", "--verify", path, command=FAULTY, env=env)
        same((result.code, result.out), (3, ""))
        holds(result.err, "differs: its byte ")


@case
def ctrl_c_cancels_a_load_onto_the_gpu():
    env = driver(FAKE_CUDA_GBPS="0.1")
    with Scratch() as folder:
        path = sparse(os.path.join(folder, "m.safetensors"), "a", 1 << 30)
        child = subprocess.Popen([ONEHOP, "load", "--device", "cuda:0", path], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
        # By now it has its handlers: the driver's library is among its maps.
        while b"libcuda" not in open(f"/proc/{child.pid}/maps", "rb").read() and child.poll() is None:
            pass
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
        same((child.returncode, out, err), (1, b"", b"onehop: cancelled\n"))


@case
def bench_holds_loads_against_the_pinned_copy():
    env = driver()
    with Scratch() as folder:
        result = run("bench", "--device", "cuda:0", "--bytes", "8M", "--tensor-bytes", "512K", "--fresh",
                     "2", "--repeat", "2", "--concurrent", "--json", "--dir", folder, env=env, timeout=250)
        same((result.code, result.err), (0, ""))
        got = json.loads(result.out)
        check(got["ceilings"]["pinned_copy_gb_per_s"] > 0, got["ceilings"])
        check(got["first"]["of_ceiling"] > 0 and got["first"]["phases"]["first_copy_ns"] > 0, got["first"])
        check(0 < got["memory"]["pinned_bytes"] <= 128 << 20, got["memory"])
        same(os.listdir(folder), [], "left behind")


@case
def without_a_driver_the_host_is_the_default():
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"), [tensor(seeded(), "a", "U8", [9])])
        found = json.loads(run("version", "--json", env=no_driver()).out)["devices"]
        if not found[0].get("error"):
            raise Skip("this machine has a GPU")
        same(json.loads(run("load", "--json", path, env=no_driver()).out)["device"], "host")
        result = run("load", "--device", "cuda:0", path, env=no_driver())
        same((result.code, result.out, result.err.count("\n")), (1, "", 1))


if __name__ == "__main__":
    run_cases()
