"""`onehop bench stream`: batches of samples to a device, by onehop and by what people use now.

Each scheme runs in a process of its own, in turn. It is checked first: which samples the batches
hold, and that the words of each add up. Then it is timed: for `--seconds` after a second of
warming up, as fast as batches are taken; then once more with a consumer that takes 80 % of that
rate, whose waiting is its stall. The page cache is warm. The ceiling is what copies of pinned
memory reach, measured in the same run; for the host, what one thread for each core reads from the
page cache.
"""
from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from . import errors

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_MARK = "@stream "
_TIMEOUT_S = 90
_BIN_S = 0.1
_CHECKED_BYTES = 256 << 20
_SCHEMES = ("onehop", "webdataset", "files", "kvikio", "offsets")

Row = dict[str, Any]


def _size(words: str) -> int:
    text = words.upper().removesuffix("IB").removesuffix("B")
    try:
        return int(float(text.rstrip("KMG")) * _UNITS.get(text[-1:], 1))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{words!r} is no size, such as 8G") from None


def _parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    first, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="onehop bench stream", description=first, epilog=rest,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--device", help="cuda:N or cpu; the first GPU if there is one")
    add("--sizes", default="4096,51200,262144,2097152,mixed", metavar="LIST",
        help="of samples: bytes, or mixed (50 KiB to 2 MiB)")
    add("--bytes", type=_size, default=8 << 30, metavar="SIZE", help="of all samples (8G)")
    add("--batch", type=int, default=256)
    add("--seconds", type=float, default=4, help="that each scheme is timed (4)")
    add("--schemes", default=",".join(_SCHEMES), metavar="LIST", help="parts of their names")
    add("--dir", default=tempfile.gettempdir(), help="where the samples are written for the run")
    add("--shards", type=int, default=16)
    add("--json", metavar="FILE", help="write the results there")
    add("--markdown", metavar="FILE", help="write the table there")
    add("--picture", metavar="FILE", help="draw it there (needs matplotlib)")
    add("--draw", metavar="FILE", help="measure nothing: show the results in that file")
    add("--child", help=argparse.SUPPRESS)
    return parser.parse_args(words)


# ---- in a scheme's process


def _tree(pid: int) -> list[int]:
    """The process and those under it."""
    found = [pid]
    for task in _listed(f"/proc/{pid}/task"):
        with suppress(OSError), open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
            for child in file.read().split():
                found += _tree(int(child))
    return found


def _listed(folder: str) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)
    return []


def _fields(path: str) -> dict[str, int]:
    """The `name: number` lines of a file of /proc."""
    with suppress(OSError), open(path, encoding="ascii") as file:
        lines = (line.split() for line in file)
        return {words[0]: int(words[1]) for words in lines
                if len(words) > 1 and words[1].isdecimal()}
    return {}


def _usage() -> dict[str, float]:
    """What this process and its children have used: CPU seconds, reads and writes, switches."""
    found = {"cpu_s": 0.0, "calls": 0.0, "switches": 0.0}
    for pid in _tree(os.getpid()):
        with suppress(OSError), open(f"/proc/{pid}/stat", encoding="ascii") as file:
            words = file.read().rpartition(")")[2].split()
            found["cpu_s"] += (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
        counted = _fields(f"/proc/{pid}/io")
        found["calls"] += counted.get("syscr:", 0) + counted.get("syscw:", 0)
        for task in _listed(f"/proc/{pid}/task"):
            switches = _fields(f"/proc/{pid}/task/{task}/status")
            found["switches"] += (switches.get("voluntary_ctxt_switches:", 0)
                                  + switches.get("nonvoluntary_ctxt_switches:", 0))
    return found


def _rows(batch: Any) -> Sequence[Any]:
    return batch if isinstance(batch, (list, tuple)) else batch.unbind()


def _nbytes(batch: Any) -> int:
    if isinstance(batch, (list, tuple)):
        return sum(row.numel() for row in batch)
    return int(batch.numel())


def _check(batches: Iterator[Any], job: Any) -> None:
    """Raises Mismatch if a sample's words are not what was written, for the first batches."""
    import torch

    checked, limit = 0, min(_CHECKED_BYTES, job.data.nbytes)
    while checked < limit:
        batch = next(batches)
        rows = [row.contiguous().view(torch.int64) for row in _rows(batch)]
        indices = torch.stack([row[0] for row in rows]).cpu().numpy()
        sums = torch.stack([row.sum() for row in rows]).cpu().numpy()
        if len(rows) != job.batch or len(set(indices.tolist())) != len(rows):
            raise errors.Mismatch(f"a batch holds {len(rows)} samples, some of them twice", "")
        if (sums != job.data.sums[indices]).any():
            raise errors.Mismatch("a sample's words do not add up", "")
        checked += _nbytes(batch)


def _nothing() -> None:
    pass


class _Clock:
    """Takes batches, and notes when they came and how long each was waited for."""

    def __init__(self, batches: Iterator[Any], device: str) -> None:
        import torch

        self._batches = batches
        self._kept: list[Any] = []
        synchronize: Any = torch.cuda.synchronize
        self._wait_for_device = synchronize if device.startswith("cuda") else _nothing
        self.stamps: list[tuple[float, float, int, int]] = []

    def run(self, seconds: float, bytes_per_s: float | None = None) -> float:
        """For so long, at most at that rate; returns the seconds, the device's work included."""
        self._wait_for_device()
        begin = now = time.perf_counter()
        taken = 0
        while now - begin < seconds:
            batch = next(self._batches)
            came = time.perf_counter()
            self._kept = [*self._kept[-2:], batch]
            nbytes = _nbytes(batch)
            taken += nbytes
            self.stamps.append((came - begin, came - now, nbytes, len(batch)))
            if bytes_per_s:
                while time.perf_counter() < begin + taken / bytes_per_s:
                    time.sleep(0)
            now = time.perf_counter()
        self._wait_for_device()
        return time.perf_counter() - begin

    def timeline(self) -> list[tuple[float, float]]:
        """GB/s and share of stall, in bins of a tenth of a second."""
        bins: dict[int, list[float]] = {}
        for came, waited, nbytes, _ in self.stamps:
            found = bins.setdefault(int(came / _BIN_S), [0.0, 0.0])
            found[0] += nbytes / _BIN_S / 1e9
            found[1] += waited / _BIN_S
        return [(round(rate, 3), round(min(stall, 1.0), 4))
                for rate, stall in (bins.get(i, (0.0, 0.0)) for i in range(max(bins, default=-1)))]


def _child(words: str) -> int:
    """Runs one scheme and prints what came out."""
    import numpy as np

    from . import _bench_stream_data as data_of
    from . import _bench_stream_schemes as schemes

    told = json.loads(words)
    table = np.load(told["table"])
    data = data_of.Data(told["shards"], told["files"], table["sizes"], table["sums"])
    job = schemes.Job(data, told["device"], told["batch"], told["shuffle"], told["verify"])
    scheme = next(each for each in schemes.SCHEMES if each.name == told["scheme"])
    missing = scheme.missing()
    if missing:
        print(_MARK + json.dumps({"missing": f"{missing} is not installed"}))
        return 0
    begin = time.perf_counter()
    batches = scheme.run(job)
    first = next(batches)
    found: Row = {"first_batch_s": time.perf_counter() - begin, "copies": scheme.copies}
    del first
    _check(batches, job)
    _Clock(batches, job.device).run(1.0)
    clock, before = _Clock(batches, job.device), _usage()
    seconds = clock.run(told["seconds"])
    used = {name: value - before[name] for name, value in _usage().items()}
    nbytes = sum(stamp[2] for stamp in clock.stamps)
    samples = sum(stamp[3] for stamp in clock.stamps)
    found.update(gb_per_s=nbytes / seconds / 1e9, samples_per_s=samples / seconds,
                 cpu_s_per_gb=used["cpu_s"] / nbytes * 1e9, calls_per_sample=used["calls"] / samples,
                 switches_per_sample=used["switches"] / samples, timeline=clock.timeline())
    slow = _Clock(batches, job.device)
    slow_seconds = slow.run(told["seconds"], 0.8 * nbytes / seconds)
    found.update(stall=sum(stamp[1] for stamp in slow.stamps) / slow_seconds,
                 stall_timeline=slow.timeline())
    print("\n" + _MARK + json.dumps(found), flush=True)
    os._exit(0)  # without waiting for the workers of a loader that never ends


# ---- the run


def _read_rate(paths: Sequence[str]) -> float:
    """Bytes a second of reads from the page cache, by one thread for each core."""
    cores, size = len(os.sched_getaffinity(0)), 1 << 20

    def read(worker: int) -> int:
        memory, done = memoryview(bytearray(size)), 0
        for path in paths:
            descriptor = os.open(path, os.O_RDONLY)
            for offset in range(worker * size, os.fstat(descriptor).st_size, cores * size):
                done += os.preadv(descriptor, [memory], offset)
            os.close(descriptor)
        return done

    begin = time.perf_counter()
    with ThreadPoolExecutor(cores) as pool:
        return sum(pool.map(read, range(cores))) / (time.perf_counter() - begin)


def _ceiling(device: str, paths: Sequence[str]) -> float:
    """GB/s that the link, or the page cache, can give."""
    import ctypes

    from . import _library, _runtime

    if not device.startswith("cuda"):
        return max(_read_rate(paths) for _ in range(2)) / 1e9
    rate = ctypes.c_double()
    _library.call("measure_copy", _runtime.get().handle, device.encode(), 16 << 20, 4 << 30,
                  ctypes.byref(rate))
    return rate.value / 1e9


def _run(job: Mapping[str, Any]) -> Row:
    """One scheme's figures, or why there are none."""
    command = [sys.executable, "-m", "onehop", "bench-stream", "--child", json.dumps(job)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=_TIMEOUT_S + 4 * job["seconds"], check=False)
    except subprocess.TimeoutExpired:
        return {"missing": "it did not end in time"}
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            found: Row = json.loads(line.removeprefix(_MARK))
            return found
    return {"missing": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:300]}


def _variants(names: Sequence[str], size: str) -> Iterator[tuple[str, str, str, str]]:
    """Label, scheme, shuffle and verify of what runs for a size."""
    from . import _bench_stream_schemes as schemes

    for scheme in schemes.SCHEMES:
        if not any(name in scheme.name for name in names):
            continue
        if scheme.name != "onehop":
            yield scheme.name, scheme.name, "sample", "none"
            continue
        yield "onehop", "onehop", "sample", "none"
        if size == "4096":
            yield "onehop, block shuffle", "onehop", "block", "none"
        yield "onehop, verify='sample'", "onehop", "sample", "sample"


def _measure(arguments: argparse.Namespace, device: str) -> Row:
    import numpy as np

    from . import _bench_stream_data as data_of

    names = arguments.schemes.split(",")
    found: Row = {"device": device, "batch": arguments.batch, "seconds": arguments.seconds,
                  "cores": len(os.sched_getaffinity(0)), "sizes": []}
    for size in arguments.sizes.split(","):
        folder = tempfile.mkdtemp(prefix="onehop-bench-", dir=arguments.dir)
        try:
            # A file for each record of 4 KiB would be some hundred thousand files a GiB.
            nbytes = min(arguments.bytes, 2 << 30) if size == "4096" else arguments.bytes
            data = data_of.make(folder, size, nbytes, arguments.shards,
                                any(name in "files kvikio" for name in names))
            table = os.path.join(folder, "table.npz")
            np.savez(table, sizes=data.sizes, sums=data.sums)
            result: Row = {"size": size, "bytes": data.nbytes, "samples": len(data.sizes),
                           "rows": [], "ceiling": _ceiling(device, data.shards)}
            found["sizes"].append(result)
            for label, scheme, shuffle, verify in _variants(names, size):
                row = _run({"scheme": scheme, "shuffle": shuffle, "verify": verify,
                            "device": device, "batch": arguments.batch, "table": table,
                            "seconds": arguments.seconds, "shards": data.shards,
                            "files": data.files})
                result["rows"].append({"label": label, **row})
                print(_line(result["rows"][-1], result["ceiling"], size), flush=True)
                _save(found, arguments)
            result["ceiling"] = max(result["ceiling"], _ceiling(device, data.shards))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return found


def _line(row: Row, ceiling: float, size: str) -> str:
    if "missing" in row:
        return f"{size:>8}  {row['label']:<28} -  {row['missing']}"
    return (f"{size:>8}  {row['label']:<28} {row['gb_per_s']:7.2f} GB/s"
            f"  {row['gb_per_s'] / ceiling:5.3f} of {ceiling:.1f}"
            f"  {row['samples_per_s']:10.0f} samples/s  stall {100 * row['stall']:.2f} %")


def _save(found: Row, arguments: argparse.Namespace) -> None:
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


def markdown(found: Row) -> str:
    """The results as tables."""
    lines = []
    for result in found["sizes"]:
        size = result["size"] if result["size"] == "mixed" else f"{int(result['size']):,} bytes"
        lines += [f"Samples: {size}, {result['samples']:,} of them, batch {found['batch']}, to "
                  f"{found['device']}; ceiling {result['ceiling']:.2f} GB/s.", "",
                  "| scheme | GB/s | of the ceiling | samples/s | CPU copies a byte | CPU s/GB "
                  "| reads and writes a sample | switches a sample | stall at 80 % | first batch |",
                  "|---|---|---|---|---|---|---|---|---|---|"]
        for row in sorted(result["rows"], key=lambda row: -row.get("gb_per_s", 0)):
            if "missing" in row:
                lines.append(f"| {row['label']} | {row['missing']} | | | | | | | | |")
                continue
            lines.append(
                f"| {row['label']} | {row['gb_per_s']:.2f} | "
                f"{row['gb_per_s'] / result['ceiling']:.3f} | {row['samples_per_s']:,.0f} | "
                f"{row['copies']} | {row['cpu_s_per_gb']:.2f} | {row['calls_per_sample']:.3f} | "
                f"{row['switches_per_sample']:.3f} | {100 * row['stall']:.2f} % | "
                f"{row['first_batch_s']:.2f} s |")
        lines.append("")
    return "\n".join(lines)


def _draw(found: Row, path: str) -> None:
    """Rates as bars, and each scheme's rate and stall over time for one size."""
    matplotlib: Any = import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot: Any = import_module("matplotlib.pyplot")
    sizes = found["sizes"]
    labels = list(dict.fromkeys(row["label"] for result in sizes for row in result["rows"]))
    colours = dict(zip(labels, pyplot.get_cmap("tab10").colors))
    figure, (bars, rates, stalls) = pyplot.subplots(1, 3, figsize=(16, 5))
    width = 0.8 / max(1, len(labels))
    for place, result in enumerate(sizes):
        for number, label in enumerate(labels):
            share = next((row.get("gb_per_s", 0) / result["ceiling"]
                          for row in result["rows"] if row["label"] == label), 0.0)
            bars.bar(place + (number + 0.5) * width - 0.4, share, width * 0.92,
                     color=colours[label], label=label if place == 0 else None)
    bars.axhline(1, color="black", linewidth=1)
    bars.set_xticks(range(len(sizes)), [result["size"] for result in sizes])
    bars.set(xlabel="bytes of a sample", ylabel="share of the link's ceiling", title="rate")
    shown = sizes[len(sizes) // 2]
    for row in shown["rows"]:
        times = [_BIN_S * i for i in range(len(row.get("timeline", ())))]
        rates.plot(times, [rate for rate, _ in row.get("timeline", ())],
                   color=colours[row["label"]])
        times = [_BIN_S * i for i in range(len(row.get("stall_timeline", ())))]
        stalls.plot(times, [100 * stall for _, stall in row.get("stall_timeline", ())],
                    color=colours[row["label"]])
    rates.axhline(shown["ceiling"], color="black", linewidth=1)
    rates.set(xlabel="seconds", ylabel="GB/s to the device", title=f"samples of {shown['size']}")
    stalls.set(xlabel="seconds", ylabel="% of the time", title="stall of a consumer at 80 %")
    for panel in (bars, rates, stalls):
        panel.grid(alpha=0.3)
    figure.legend(*bars.get_legend_handles_labels(), loc="lower center", ncols=4, frameon=False)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    figure.savefig(path, dpi=120)


def main(words: Sequence[str]) -> int:
    """Runs the command; returns its exit status."""
    arguments = _parse(words)
    if arguments.child:
        return _child(arguments.child)
    if arguments.draw:
        with open(arguments.draw, encoding="utf-8") as file:
            found = json.load(file)
    else:
        import torch

        device = arguments.device or ("cuda:0" if torch.cuda.is_available() else "cpu")
        found = _measure(arguments, device)
    print("\n" + markdown(found))
    if arguments.markdown:
        with open(arguments.markdown, "w", encoding="utf-8") as file:
            file.write(markdown(found))
    if not arguments.picture:
        return 0
    if find_spec("matplotlib") is None:
        print("no picture, since matplotlib is not installed; draw it elsewhere: "
              "onehop bench stream --draw RESULTS.json --picture FILE", file=sys.stderr)
        return 0
    _draw(found, arguments.picture)
    return 0
