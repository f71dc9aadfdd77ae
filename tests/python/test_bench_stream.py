"""onehop bench stream: every scheme that is installed, on the host, on very little data."""
import json
import os
import random
import subprocess
import sys

from package import Scratch, environment, need
from tap import Skip, case, check, holds, run, same

PEERS = {"Energon, savable loader": "megatron.energon",
         "NCore itar + DataLoader": "ncore.impl.data.stores",
         "kvikio, one read a file": "kvikio"}


def bench(folder, *words, results=None):
    """The command's results, or those of another file, and what it printed."""
    found = os.path.join(folder, "found.json")
    done = subprocess.run(
        [sys.executable, "-m", "onehop", "bench-stream", "--device", "cpu", "--dir", folder,
         "--json", found, "--markdown", os.path.join(folder, "found.md"), *words],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
    same(done.returncode, 0, done.stderr)
    with open(results or found, encoding="utf-8") as file:
        return json.load(file), done.stdout


@case
def all_schemes_are_checked_and_have_a_rate():
    need("torch")
    need("webdataset")
    with Scratch() as folder:
        found, words = bench(folder, "--bytes", "4M", "--sizes", "8192", "--shards", "8", "--batch",
                             "4", "--seconds", "0.2", "--schemes",
                             "onehop,webdataset,files,offsets")
        [result] = found["sizes"]
        same([row["label"] for row in result["rows"]],
             ["onehop", "onehop, verify='sample'", "webdataset + DataLoader", "files + DataLoader",
              "offsets, one thread"])
        for row in result["rows"]:
            check("missing" not in row, f"{row['label']}: {row.get('missing')}")
            check(row["gb_per_s"] > 0 and row["cpu_s_per_gb"] >= 0 and 0 <= row["stall"] <= 1, row)
            check(0 < row["reached"], row)
            same("waiting" in row, row["label"].startswith("onehop"))
        check(result["ceiling"] > 0, result)
        same(result["samples"], 512)
        holds(words, "| onehop | ")
        same(sorted(os.listdir(folder)), ["found.json", "found.md"])


@case
def samples_of_many_sizes():
    need("torch")
    with Scratch() as folder:
        found, _ = bench(folder, "--bytes", "24M", "--sizes", "mixed", "--shards", "2", "--batch",
                         "2", "--seconds", "0.1", "--schemes", "onehop")
        rows = {row["label"]: row for row in found["sizes"][0]["rows"]}
        check(rows["onehop"]["gb_per_s"] > 0, rows)


@case
def peers_are_measured_where_they_are_and_named_where_they_are_not():
    need("torch")
    with Scratch() as folder:
        found, _ = bench(folder, "--bytes", "8M", "--sizes", "8192", "--shards", "8", "--batch",
                         "4", "--seconds", "0.1", "--schemes", "energon,itar,kvikio")
        rows = {row["label"]: row for row in found["sizes"][0]["rows"]}
        same(sorted(rows), sorted(PEERS))
        for label, module in PEERS.items():
            if installed(module):
                check(rows[label].get("gb_per_s", 0) > 0, rows[label])
            else:
                same(rows[label]["label"], label)
                holds(rows[label]["missing"], "is not installed")


def installed(module):
    """Whether it can be imported, in a process of its own."""
    return not subprocess.run([sys.executable, "-c", f"import {module}"], env=environment(),
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode


@case
def cold_epochs_stand_beside_plain_reads():
    need("torch")
    with Scratch() as folder:
        found, words = bench(folder, "--cold", "--rounds", "2", "--bytes", "8M", "--sizes", "8192",
                             "--shards", "2", "--batch", "4", "--schemes", "onehop,offsets")
        same("sizes" in found, False)
        [result] = found["cold"]
        holds(result["plain"], "buffered, 4 x 4 MiB")
        ours, bypass, offsets = result["rows"]
        same([row["label"] for row in (ours, bypass, offsets)],
             ["onehop", "onehop, cache=bypass", "offsets, one thread"])
        for row in (ours, bypass):
            check("missing" not in row, row)
            same((len(row["ratios"]), len(row["rates"])), (2, 2))
            check(row["read"] >= 1 and row["plain"] > 0 and row["gb_per_s"] > 0, row)
            check(min(row["ratios"]) <= row["ratio"] <= max(row["ratios"]), row)
        check("ratio" not in offsets and offsets["gb_per_s"] > 0, offsets)
        holds(words, "Plain reads of the shards")
        same(sorted(os.listdir(folder)), ["found.json", "found.md"])


@case
def pages_are_counted_until_they_are_dropped():
    need("numpy")
    from onehop import _bench_stream_disk as disk

    with Scratch() as folder:
        paths = [os.path.join(folder, name) for name in ("one", "two", "none")]
        for path, nbytes in zip(paths, (1 << 20, (1 << 20) + 5, 0)):
            with open(path, "wb") as file:
                file.write(random.Random(nbytes).randbytes(nbytes))
        disk.settle(paths)
        page = os.sysconf("SC_PAGE_SIZE")
        same([disk.resident(path) for path in paths], [1 << 20, (1 << 20) + page, 0])
        if disk.drop(paths):
            raise Skip("this file system keeps files in memory")
        with open(paths[1], "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            os.pread(file.fileno(), 10, 8 * page)
        same([disk.resident(path) for path in paths], [0, page, 0])
        for way in disk.usable_ways(paths[0]):
            check(disk.read(paths, way) > 0, way.label)


@case
def packing_stands_beside_a_copy():
    need("torch")
    with Scratch() as folder:
        found, words = bench(folder, "--pack", "--bytes", "4M")
        same([(row["size"], row["files"], len(row["ratios"])) for row in found["pack"]],
             [(51200, 81, 3), (2 << 20, 2, 3)])
        for row in found["pack"]:
            check(row["pack"] > 0 and row["unsynced"] >= row["copy"] > 0, row)
            same(row["ratio"], sorted(row["ratios"])[1])
        holds(words, "| 81 | 51,200 | ")
        same(sorted(os.listdir(folder)), ["found.json", "found.md"])


@case
def a_consumer_says_what_was_next_and_what_of_it_waiting():
    need("torch")
    import torch

    from onehop import _bench_stream_child as child

    waited = iter(range(0, 1000, 2))
    asked = []
    batch = torch.zeros(2, 500, dtype=torch.uint8)
    clock = child.Clock(iter(lambda: batch, None), "cpu", lambda: float(next(waited)))
    clock.slow_down(1000.0, asked.append)
    taken = clock.run(1e-9)
    same((len(clock.stamps), clock.stamps[0][2:]), (1, (1000, 2)))
    check(len(asked) == 1 and 0 <= asked[0] <= 1, f"the consumer was busy for {asked}, not 1 s")
    check(0 <= clock.in_next_s <= taken, clock.stamps)
    same(clock.waited_s, 2.0)
    same(child.Clock(iter([batch]), "cpu").waited_s, None)


@case
def a_batch_counts_for_the_time_since_the_one_before():
    need("torch")
    from onehop import _bench_stream_child as child

    clock = child.Clock(iter(()), "cpu")
    clock.stamps = [(0.2, 0.05, 2 * 10 ** 9, 4), (0.25, 0.0, 10 ** 9, 4), (0.31, 0.01, 0, 4)]
    same(clock.timeline(), [(10.0, 0.0), (10.0, 0.5), (10.0, 0.0)])
    same(child.Clock(iter(()), "cpu").timeline(), [])


@case
def a_picture_is_drawn_of_what_was_found():
    need("torch")
    need("matplotlib")
    with Scratch() as folder:
        found = os.path.join(folder, "in.json")
        row = {"label": "onehop", "gb_per_s": 4.0, "samples_per_s": 1.0, "copies": "1",
               "cpu_s_per_gb": 0.1, "calls_per_sample": 1.0, "switches_per_sample": 1.0,
               "stall": 0.2, "waiting": 0.1, "reached": 0.7, "first_batch_s": 0.1,
               "timeline": [[4.0, 0.1]] * 5, "stall_timeline": [[3.0, 0.2]] * 5,
               "waiting_timeline": [0.1] * 4}
        with open(found, "w", encoding="utf-8") as file:
            json.dump({"device": "cpu", "batch": 4, "sizes": [
                {"size": size, "samples": 9, "ceiling": 5.0,
                 "rows": [row, {"label": "kvikio", "missing": "kvikio is not installed"}]}
                for size in ("51200", "mixed")]}, file)
        picture = os.path.join(folder, "found.png")
        bench(folder, "--draw", found, "--picture", picture, results=found)
        with open(picture, "rb") as file:
            same(file.read(8), b"\x89PNG\r\n\x1a\n")


@case
def a_scheme_that_gives_other_bytes_has_no_rate():
    need("torch")
    import numpy

    from onehop import _bench_stream_child, _bench_stream_data, _bench_stream_schemes, errors

    import torch

    data = _bench_stream_data.Data([], "", numpy.full(4, 16), numpy.array([7, 8, 9, 10]))
    job = _bench_stream_schemes.Job(data, "cpu", 2, "sample", "none")
    good = [torch.tensor([[0, 7], [1, 7]]).view(torch.uint8),
            torch.tensor([[2, 7], [3, 7]]).view(torch.uint8)]
    same(_bench_stream_child.check(iter(good), job, float("inf")), 64)
    same(_bench_stream_child.check(iter(good), job, 1), 32)
    twice = [good[0][[0, 0]]]
    other = [torch.tensor([[0, 7], [1, 6]]).view(torch.uint8)]
    same(_bench_stream_child.check(iter(twice), job, 1, mixes_epochs=True), 32)
    for wrong in (twice, other):
        try:
            _bench_stream_child.check(iter(wrong), job, 1)
        except errors.Mismatch:
            continue
        raise AssertionError("it was not noticed")


if __name__ == "__main__":
    run()
