"""`onehop bench stream`: batches of samples to a device, by onehop and by what people use now.

Each scheme runs in a process of its own, in turn. It is checked first: which samples the batches
hold, and that the words of each add up. Then it is timed: for `--seconds` after a second of
warming up, as fast as batches are taken; then once more with a consumer that takes 80 % of that
rate, whose time in `next` is its stall. The page cache is warm. The ceiling is what copies of
pinned memory reach, measured in the same run; for the host, what one thread for each core reads
from the page cache.

With `--cold` it is timed instead how long an epoch takes whose files are not in the page cache,
beside plain reads of the same shards in the same run. With `--pack`, how long `onehop pack` takes
for a folder of files, beside a copy of it.
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
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, NamedTuple

from . import _bench_stream_report as report
from ._bench_stream_child import MARK, Row

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_TIMEOUT_S = 150
_PACKED_BYTES = 2 << 30
_SCHEMES = ("onehop", "energon", "itar", "webdataset", "files", "kvikio", "offsets")


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
    add("--schemes", default=",".join(_SCHEMES), metavar="LIST",
        help="parts of their names, of any case")
    add("--dir", default=tempfile.gettempdir(), help="where the samples are written for the run")
    add("--shards", type=int, default=16)
    add("--cold", action="store_true", help="epochs whose files are not in the page cache")
    add("--rounds", type=int, default=5, help="of --cold: epochs of onehop and plain reads (5)")
    add("--pack", action="store_true", help="onehop pack of a folder, beside cp -r")
    add("--json", metavar="FILE", help="write the results there")
    add("--markdown", metavar="FILE", help="write the table there")
    add("--picture", metavar="FILE", help="draw it there (needs matplotlib)")
    add("--draw", metavar="FILE", help="measure nothing: show the results in that file")
    add("--child", help=argparse.SUPPRESS)
    return parser.parse_args(words)


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
        if line.startswith(MARK):
            found: Row = json.loads(line.removeprefix(MARK))
            return found
    return {"missing": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:300]}


class _Variant(NamedTuple):
    """A scheme, and how it is asked."""

    label: str
    scheme: str
    shuffle: str = "sample"
    verify: str = "none"
    environment: Mapping[str, str] = {}


def _chosen(names: Sequence[str]) -> list[str]:
    """The names of schemes that hold one of these."""
    from . import _bench_stream_schemes as schemes

    return [scheme.name for scheme in schemes.SCHEMES
            if any(name.lower() in scheme.name.lower() for name in names)]


def _variants(names: Sequence[str], size: str) -> Iterator[_Variant]:
    """What runs for a size from a warm page cache."""
    for scheme in _chosen(names):
        yield _Variant(scheme, scheme)
        if scheme == "onehop":
            if size == "4096":
                yield _Variant("onehop, block shuffle", scheme, shuffle="block")
            yield _Variant("onehop, verify='sample'", scheme, verify="sample")


def _cold_variants(names: Sequence[str]) -> Iterator[_Variant]:
    for scheme in _chosen(names):
        yield _Variant(scheme, scheme)
        if scheme == "onehop":
            yield _Variant("onehop, cache=bypass", scheme, environment={"ONEHOP_CACHE": "bypass"})


@contextmanager
def _folder(arguments: argparse.Namespace) -> Iterator[str]:
    path = tempfile.mkdtemp(prefix="onehop-bench-", dir=arguments.dir)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _data(arguments: argparse.Namespace, size: str, folder: str) -> tuple[Any, Row, Row]:
    """Writes samples of a size: them, what each process is told of them, and how many they are."""
    import numpy as np

    from . import _bench_stream_data as data_of

    # A file for each record of 4 KiB would be some hundred thousand files a GiB.
    nbytes = min(arguments.bytes, 2 << 30) if size == "4096" else arguments.bytes
    with_files = any(name.startswith(("files", "kvikio"))
                     for name in _chosen(arguments.schemes.split(",")))
    data = data_of.make(folder, size, nbytes, arguments.shards, with_files)
    table = os.path.join(folder, "table.npz")
    np.savez(table, sizes=data.sizes, sums=data.sums)
    job = {"batch": arguments.batch, "table": table, "seconds": arguments.seconds,
           "shards": data.shards, "files": data.files}
    return data, job, {"size": size, "bytes": data.nbytes, "samples": len(data.sizes), "rows": []}


def _job(job: Row, variant: _Variant, device: str) -> Row:
    return {**job, "scheme": variant.scheme, "shuffle": variant.shuffle, "verify": variant.verify,
            "device": device}


def _measure(arguments: argparse.Namespace, found: Row) -> None:
    """Every scheme from a warm page cache."""
    found["sizes"], device = [], found["device"]
    for size in arguments.sizes.split(","):
        with _folder(arguments) as folder:
            data, job, result = _data(arguments, size, folder)
            result["ceiling"] = _ceiling(device, data.shards)
            found["sizes"].append(result)
            for variant in _variants(arguments.schemes.split(","), size):
                row = {"label": variant.label, **_run(_job(job, variant, device))}
                result["rows"].append(row)
                print(report.line(row, result["ceiling"], size), flush=True)
                _save(found, arguments)
            result["ceiling"] = max(result["ceiling"], _ceiling(device, data.shards))


def _measure_cold(arguments: argparse.Namespace, found: Row) -> None:
    """Every scheme from a cold one."""
    from . import _bench_stream_cold as cold
    from . import _bench_stream_disk as disk

    found["cold"] = []
    for size in arguments.sizes.split(","):
        with _folder(arguments) as folder:
            data, job, result = _data(arguments, size, folder)
            os.sync()
            disk.settle(data.shards)
            variants = list(_cold_variants(arguments.schemes.split(",")))
            told = {each.label: (_job(job, each, found["device"]), each.environment)
                    for each in variants}
            ours = {each.label: told.pop(each.label) for each in variants
                    if each.scheme == "onehop"}
            contest = cold.Contest(ours, data.shards, max(1, arguments.rounds))
            result.update(plain=contest.plain, rows=contest.rows)
            found["cold"].append(result)
            print("\n".join(cold.line(row, size) for row in contest.rows), flush=True)
            for label, one in told.items():
                result["rows"].append(cold.peer(one, label))
                print(cold.line(result["rows"][-1], size), flush=True)
                _save(found, arguments)


def _measure_packing(arguments: argparse.Namespace, found: Row) -> None:
    from . import _bench_stream_pack as pack

    found["pack"] = []
    for size in pack.SIZES:
        with _folder(arguments) as folder:
            row = pack.measure(folder, size, min(arguments.bytes, _PACKED_BYTES))
        found["pack"].append(row)
        print(pack.line(row), flush=True)
        _save(found, arguments)


def _save(found: Row, arguments: argparse.Namespace) -> None:
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


def _found(arguments: argparse.Namespace) -> Row:
    """What is measured, or was."""
    if arguments.draw:
        with open(arguments.draw, encoding="utf-8") as file:
            earlier: Row = json.load(file)
        return earlier
    import torch

    found = {"device": arguments.device or ("cuda:0" if torch.cuda.is_available() else "cpu"),
             "batch": arguments.batch, "seconds": arguments.seconds,
             "cores": len(os.sched_getaffinity(0))}
    if arguments.cold:
        _measure_cold(arguments, found)
    if arguments.pack:
        _measure_packing(arguments, found)
    if not (arguments.cold or arguments.pack):
        _measure(arguments, found)
    _save(found, arguments)
    return found


def main(words: Sequence[str]) -> int:
    """Runs the command; returns its exit status."""
    arguments = _parse(words)
    if arguments.child:
        from ._bench_stream_child import main as child

        return child(arguments.child)
    found = _found(arguments)
    print("\n" + report.markdown(found))
    if arguments.markdown:
        with open(arguments.markdown, "w", encoding="utf-8") as file:
            file.write(report.markdown(found))
    if not arguments.picture or "sizes" not in found:
        return 0
    if find_spec("matplotlib") is None:
        print("no picture, since matplotlib is not installed; draw it elsewhere: "
              "onehop bench stream --draw RESULTS.json --picture FILE", file=sys.stderr)
        return 0
    report.draw(found, arguments.picture)
    return 0
