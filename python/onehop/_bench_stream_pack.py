"""`onehop bench stream --pack`: `onehop pack` of a folder of files, beside a copy of them.

The copy is `cp -r` and then a sync of its file system; the pack syncs what it writes itself. The
files are in the page cache, and the two take turns.
"""
from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

from . import errors

Row = dict[str, Any]

SIZES = (50 << 10, 2 << 20)
ROUNDS = 3
_FILES_A_FOLDER = 1000
_DAMAGED = "a packed sample is not the file that it was made of"


def make(folder: str, size: int, nbytes: int) -> int:
    """Writes files of noise of one size, of so many bytes together; how many."""
    source, count = np.random.default_rng(1), max(1, nbytes // size)
    for index in range(count):
        part = os.path.join(folder, f"{index // _FILES_A_FOLDER:04}")
        if index % _FILES_A_FOLDER == 0:
            os.makedirs(part)
        with open(os.path.join(part, f"{index:08}.bin"), "wb") as file:
            file.write(source.bytes(size))
    return count


def _timed(*commands: list[str]) -> list[float]:
    """Seconds until each of these commands, which follow each other, has ended; nothing else waits
    to be written when the first begins."""
    os.sync()
    begin, ends = time.perf_counter(), []
    for command in commands:
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              check=False)
        ends.append(time.perf_counter() - begin)
        if done.returncode:
            raise errors.IOFailed(f"{' '.join(command)} failed: {done.stderr.strip()[-300:]}", "")
    return ends


def _check(shards: str, files: str, count: int) -> None:
    """Raises Mismatch if the shards do not hold the files."""
    from .dataset import Dataset

    dataset = Dataset(shards, device="cpu", framework="numpy", batch=1)
    if dataset.samples != count:
        raise errors.Mismatch(f"{dataset.samples} of {count} files were packed", "")
    for index in range(0, count, max(1, count // 100)):
        sample = dataset[index]
        with open(os.path.join(files, str(sample["__key__"]) + ".bin"), "rb") as file:
            if bytes(sample["bin"]) != file.read():
                raise errors.Mismatch(_DAMAGED, "")
    dataset.close()


def measure(folder: str, size: int, nbytes: int) -> Row:
    """Both rates for files of a size.

    Parameters
    ----------
    folder : str
        Exists; what is written there is taken away.
    size, nbytes : int
        Of a file, and of all.

    Returns
    -------
    dict
        size, files; pack, copy, unsynced (GB/s, medians: the latter of cp alone); ratios (pack's
        rate by the synced copy's), ratio (their median).
    """
    files, shards, copy = (os.path.join(folder, name) for name in ("files", "shards", "copy"))
    count = make(files, size, nbytes)
    pack = [sys.executable, "-m", "onehop", "pack", files, "-o", shards]
    times = []
    for turn in range(ROUNDS):
        [packed] = _timed(pack)
        if turn == 0:
            _check(shards, files, count)
        shutil.rmtree(shards)
        copied, synced = _timed(["cp", "-r", files, copy], ["sync", "-f", folder])
        shutil.rmtree(copy)
        times.append((packed, synced, copied))
    shutil.rmtree(files)
    rates = [statistics.median(count * size / seconds / 1e9 for seconds in each)
             for each in zip(*times)]
    ratios = [synced / packed for packed, synced, _ in times]
    return {"size": size, "files": count, "pack": rates[0], "copy": rates[1],
            "unsynced": rates[2], "ratios": ratios, "ratio": statistics.median(ratios)}


def line(row: Row) -> str:
    """The figures in words."""
    return (f"{row['files']:,} files of {row['size']:,} bytes: pack {row['pack']:.2f} GB/s, cp and "
            f"sync {row['copy']:.2f} (cp alone {row['unsynced']:.2f}), ratio {row['ratio']:.3f} ({min(row['ratios']):.3f} to "
            f"{max(row['ratios']):.3f})")
