"""Input of `onehop bench stream`: the same samples as single files and as shards.

Sample i is a run of int64 words: i, then noise. So a consumer that has a batch knows which samples
they are, whatever order they came in, and what the sum of their words must be.
"""
from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .shards import ShardWriter

_NOISE_WORDS = 8 << 20
_FILES_A_FOLDER = 1000


class Data(NamedTuple):
    """Where the samples are.

    Attributes
    ----------
    shards : list of str
    files : str
        Folder of `NNN/NNNNNNNN.bin`; "" if there is none.
    sizes : numpy.ndarray of int64, [samples]
        Bytes.
    sums : numpy.ndarray of int64, [samples]
        Of each sample's words, modulo 2^64.
    """

    shards: list[str]
    files: str
    sizes: Any
    sums: Any

    @property
    def nbytes(self) -> int:
        return int(self.sizes.sum())


def sizes_of(kind: str, nbytes: int, seed: int) -> Any:
    """Bytes of each sample, multiples of 8: all alike ("51200"), or "mixed": 50 KiB to 2 MiB, as
    many in each octave."""
    if kind != "mixed":
        each = int(kind) // 8 * 8
        return np.full(max(1, nbytes // each), each, np.int64)
    source = np.random.default_rng(seed)
    found = np.exp2(source.uniform(np.log2(50 << 10), 21, max(1, nbytes // (300 << 10))))
    found = found.astype(np.int64) // 8 * 8
    return found[:max(1, int(np.searchsorted(np.cumsum(found), nbytes)))]


def _payloads(sizes: Any, seed: int) -> Iterator[Any]:
    """Each sample's words."""
    noise = np.random.default_rng(seed).integers(-2**63, 2**63 - 1, _NOISE_WORDS, np.int64)
    for index, size in enumerate(sizes):
        words = size // 8
        begin = index * 997 % (_NOISE_WORDS - words)
        payload = noise[begin:begin + words].copy()
        payload[0] = index
        yield payload


def file_of(folder: str, index: int) -> str:
    """A sample's own file."""
    return os.path.join(folder, f"{index // _FILES_A_FOLDER:04}", f"{index:08}.bin")


def make(folder: str, kind: str, nbytes: int, shard_count: int, with_files: bool,
         seed: int = 1) -> Data:
    """Writes the samples.

    Parameters
    ----------
    folder : str
        Exists.
    kind : str
        See `sizes_of`.
    nbytes : int
        Of all samples, about.
    shard_count : int
    with_files : bool
        Also each sample in a file of its own.
    """
    sizes = sizes_of(kind, nbytes, seed)
    sums = np.empty(len(sizes), np.int64)
    files = os.path.join(folder, "files") if with_files else ""
    names = [os.path.join(folder, f"shard-{number:05}.tar") for number in range(shard_count)]
    bounds = np.linspace(0, len(sizes), shard_count + 1).astype(int)
    payloads = enumerate(_payloads(sizes, seed))
    for name, begin, end in zip(names, bounds, bounds[1:]):
        with ShardWriter(name) as writer:
            for _ in range(begin, end):
                index, payload = next(payloads)
                sums[index] = payload.sum()
                data = payload.tobytes()
                writer.write({"__key__": f"{index:08}", "bin": data})
                if with_files:
                    path = file_of(files, index)
                    if index % _FILES_A_FOLDER == 0:
                        os.makedirs(os.path.dirname(path), exist_ok=True)
                    with open(path, "wb") as file:
                        file.write(data)
    return Data(names, files, sizes, sums)
