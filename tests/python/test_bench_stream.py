"""onehop bench stream: every scheme that is installed, on the host, on very little data."""
import json
import os
import subprocess
import sys

from package import Scratch, environment, need
from tap import case, check, holds, run, same


def bench(folder, *words):
    """The command's results and what it printed."""
    found = os.path.join(folder, "found.json")
    done = subprocess.run(
        [sys.executable, "-m", "onehop", "bench-stream", "--device", "cpu", "--dir", folder,
         "--json", found, "--markdown", os.path.join(folder, "found.md"), *words],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
    same(done.returncode, 0, done.stderr)
    with open(found, encoding="utf-8") as file:
        return json.load(file), done.stdout


@case
def all_schemes_are_checked_and_have_a_rate():
    need("torch")
    need("webdataset")
    with Scratch() as folder:
        found, words = bench(folder, "--bytes", "4M", "--sizes", "8192", "--shards", "8", "--batch",
                             "4", "--seconds", "0.2", "--schemes", "onehop,webdataset,files,offsets")
        [result] = found["sizes"]
        same([row["label"] for row in result["rows"]],
             ["onehop", "onehop, verify='sample'", "webdataset + DataLoader", "files + DataLoader",
              "offsets, one thread"])
        for row in result["rows"]:
            check("missing" not in row, f"{row['label']}: {row.get('missing')}")
            check(row["gb_per_s"] > 0 and row["cpu_s_per_gb"] >= 0 and 0 <= row["stall"] <= 1, row)
        check(result["ceiling"] > 0, result)
        same(result["samples"], 512)
        holds(words, "| onehop | ")
        same(sorted(os.listdir(folder)), ["found.json", "found.md"])


@case
def samples_of_many_sizes_and_what_is_not_installed():
    need("torch")
    with Scratch() as folder:
        found, _ = bench(folder, "--bytes", "24M", "--sizes", "mixed", "--shards", "2", "--batch",
                         "2", "--seconds", "0.1", "--schemes", "onehop,kvikio")
        rows = {row["label"]: row for row in found["sizes"][0]["rows"]}
        check(rows["onehop"]["gb_per_s"] > 0, rows)
        try:
            import kvikio  # noqa: F401
        except ImportError:
            same(rows["kvikio, one read a file"], {"label": "kvikio, one read a file",
                                                   "missing": "kvikio is not installed"})


@case
def a_scheme_that_gives_other_bytes_has_no_rate():
    need("torch")
    import numpy

    from onehop import _bench_stream, _bench_stream_data, _bench_stream_schemes, errors

    import torch

    data = _bench_stream_data.Data([], "", numpy.full(4, 16), numpy.array([7, 8, 9, 10]))
    job = _bench_stream_schemes.Job(data, "cpu", 2, "sample", "none")
    good = [torch.tensor([[0, 7], [1, 7]]).view(torch.uint8),
            torch.tensor([[2, 7], [3, 7]]).view(torch.uint8)]
    _bench_stream._check(iter(good), job)
    twice = [good[0][[0, 0]]]
    other = [torch.tensor([[0, 7], [1, 6]]).view(torch.uint8)]
    for wrong in (twice, other):
        try:
            _bench_stream._check(iter(wrong), job)
        except errors.Mismatch:
            continue
        raise AssertionError("it was not noticed")


if __name__ == "__main__":
    run()
