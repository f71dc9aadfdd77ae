#!/usr/bin/env python3
"""onehop bench on a small model in host memory."""
import json
import os
import re
import signal
import subprocess
import time

from command import FAULTY, ONEHOP, Scratch, environment, run, safetensors, seeded, tensor
from tap import case, check, holds, run as run_cases, same

SMALL = ["bench", "--device", "host", "--bytes", "8M", "--tensor-bytes", "1M", "--fresh", "2",
         "--repeat", "3"]


def spread(values):
    return 0 < values["min"] <= values["median"] <= values["max"]


@case
def loads_stand_beside_the_ceilings_of_the_run():
    with Scratch() as folder:
        result = run(*SMALL, "--json", "--concurrent", "--dir", folder)
        same((result.code, result.err), (0, ""))
        got = json.loads(result.out)
        same(list(got), ["version", "machine", "model", "ceilings", "first", "again_anew", "again_kept",
                         "memory", "tiny_seconds", "concurrent", "pressure"])
        model = got["model"]
        same((model["bytes"], model["tensors"], model["verified"]), (8 << 20, 8, True))
        for kind, loads in ("first", 2), ("again_anew", 3), ("again_kept", 3):
            same(got[kind]["loads"], loads)
            check(spread(got[kind]["gb_per_s"]) and got[kind]["of_ceiling"] > 0, got[kind])
        for kind in "pread_fresh", "pread_kept":
            check(all(t["gb_per_s"] > 0 for t in got["ceilings"][kind]), got["ceilings"])
            same(got["ceilings"][kind][0]["threads"], 1)
        check(spread(got["tiny_seconds"]), got["tiny_seconds"])
        check(0 <= got["concurrent"]["pair_apart_percent"] <= 100, got["concurrent"])
        check(got["machine"]["usable_cores"] >= 1 and got["machine"]["kernel"], got["machine"])
        same(os.listdir(folder), [], "left behind")


@case
def the_table_names_machine_model_and_ratios():
    with Scratch() as folder:
        result = run(*SMALL, "--dir", folder)
        same((result.code, result.err), (0, ""))
        for part in ("processor ", "kernel ", "device          host", "8.00 MiB in 8 tensors, 1 file; page "
                     "cache warm; every byte verified\n", "phases of the median first load", "RssAnon, growth"):
            holds(result.out, part)
        for kind in "first of a process", "again, memory kept", "again, memory freed and allocated anew":
            check(re.search(rf"^{kind}( +\d+\.\d\d){{3}} +\d\.\d\d\d$", result.out, re.M), result.out)
        same(os.listdir(folder), [], "left behind")


@case
def a_kept_model_is_used_again():
    with Scratch() as folder:
        words = [*SMALL, "--keep", "--json", "--dir", folder]
        first = json.loads(run(*words).out)["model"]["path"]
        same(os.listdir(folder), [os.path.basename(first)])
        made = os.stat(first)
        same(json.loads(run(*words).out)["model"]["path"], first)
        same((os.stat(first).st_ino, os.stat(first).st_mtime_ns), (made.st_ino, made.st_mtime_ns))
        same(os.listdir(folder), [os.path.basename(first)])


@case
def every_word_of_a_made_model_differs():
    with Scratch() as folder:
        run(*SMALL, "--keep", "--dir", folder)
        with open(os.path.join(folder, os.listdir(folder)[0]), "rb") as file:
            data = file.read()[-(8 << 20):]
        words = {data[i:i + 8] for i in range(0, len(data), 8)}
        same(len(words), 1 << 20)


@case
def a_model_of_the_caller_s_is_measured_and_left_alone():
    source = seeded()
    with Scratch() as folder, Scratch() as tmp:
        path = safetensors(os.path.join(folder, "-m.safetensors"),
                           [tensor(source, "a", "U8", [3 << 20]), tensor(source, "b", "F32", [77])])
        before = os.stat(path)
        result = run("bench", "--device", "host", "--fresh", "1", "--repeat", "1", "--json", "--",
                     "-m.safetensors", cwd=folder, env=environment(TMPDIR=tmp))
        same((result.code, result.err), (0, ""))
        same(json.loads(result.out)["model"]["bytes"], (3 << 20) + 308)
        same(os.stat(path).st_mtime_ns, before.st_mtime_ns)
        same((os.listdir(folder), os.listdir(tmp)), (["-m.safetensors"], []))


@case
def no_rate_is_printed_for_bytes_that_are_wrong():
    with Scratch() as folder:
        result = run(*SMALL, "--dir", folder, command=FAULTY, env=environment(FAULTY_BYTE="5000000"))
        same((result.code, result.out), (3, ""))
        check(re.fullmatch(r"onehop: tensor .* differs: its byte .*\n", result.err), result.err)
        same(os.listdir(folder), [], "left behind")


@case
def a_place_without_room_is_refused_before_anything_is_written():
    with Scratch() as folder:
        result = run("bench", "--device", "host", "--bytes", "16T", "--tensor-bytes", "1T", "--dir",
                     folder)
        same((result.code, result.out, result.err.count("\n")), (1, "", 1))
        check(re.search(r"has no room for the model: .* are free, .* needed; choose another --dir or "
                        r"less --bytes", result.err), result.err)
        same(os.listdir(folder), [])
        result = run("bench", "--device", "host", "--dir", os.path.join(folder, "none"))
        same((result.code, result.out, result.err.count("\n")), (1, "", 1))


@case
def words_that_contradict_are_refused():
    result = run("bench", "--bytes", "1M", "x.safetensors")
    same((result.code, result.out), (2, ""))
    holds(result.err, "--bytes, --tensor-bytes and --keep are for a model that bench makes")
    same(run("bench", "--repeat", "600").code, 2)
    same(run("bench", "--device", "host", "--bytes", "8G", "--tensor-bytes", "1K").code, 2)


@case
def ctrl_c_removes_what_was_made():
    for number in signal.SIGINT, signal.SIGTERM:
        with Scratch() as folder:
            child = subprocess.Popen([ONEHOP, "bench", "--device", "host", "--bytes", "64M", "--repeat",
                                      "500", "--fresh", "1000", "--dir", folder],
                                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE, env=environment())
            end = time.monotonic() + 60
            while not os.listdir(folder) and time.monotonic() < end:
                pass
            child.send_signal(number)
            out, err = child.communicate(timeout=60)
            same((child.returncode, out, err), (1, b"", b"onehop: cancelled\n"))
            same(os.listdir(folder), [], "left behind")


if __name__ == "__main__":
    run_cases()
