"""Which sample comes when: ranks, an epoch's list of samples, and the library's order over it.

All random numbers are functions of seed, epoch and position, the same on every machine.
"""
from __future__ import annotations

import ctypes
import math
import os
import sys
import zlib
from collections.abc import Mapping, Sequence
from ctypes import byref
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from . import _abi, _library, errors
from ._dataset_source import Indices, Owned, Source, address_of, pointer_to

SHUFFLES = {"none": _abi.SHUFFLE_NONE, "shard": _abi.SHUFFLE_SHARD, "block": _abi.SHUFFLE_BLOCK,
            "sample": _abi.SHUFFLE_SAMPLE}
REMAINDERS = {"drop": _abi.REMAINDER_DROP, "pad": _abi.REMAINDER_PAD,
              "uneven": _abi.REMAINDER_UNEVEN}


def world_of(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """(rank, world size) as a caller said, or as torch.distributed or a launcher says.

    Raises
    ------
    InvalidArgument
        One without the other, or a rank outside of the world.
    """
    where = "rank and world_size"
    if rank is None and world_size is None:
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank()), int(distributed.get_world_size())
        where = "RANK and WORLD_SIZE in the environment"
        rank, world_size = _number("RANK"), _number("WORLD_SIZE")
        if rank is None and world_size is None:
            return 0, 1
    if rank is None:
        raise errors.InvalidArgument(f"{where} give a world size of {world_size} and no rank",
                                     "say which rank this process is, so that no two read the same")
    if world_size is None:
        raise errors.InvalidArgument(f"{where} give the rank {rank} and no world size",
                                     "say how many ranks there are")
    if not 0 <= rank < world_size:
        raise errors.InvalidArgument(f"{where} give rank {rank} of {world_size}",
                                     "ranks count from 0 to one less than the world size")
    return rank, world_size


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    if not text:
        return None
    if not text.isdecimal():
        raise errors.InvalidArgument(f"{name} is {text!r} in the environment", "set it to a number")
    return int(text)


# ---- random numbers


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's last step."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def uniform(seed: int, epoch: int, stream: int, count: int) -> npt.NDArray[np.float64]:
    """Numbers from 0 to 1, 1 excluded: entry i is a function of seed, epoch, stream and i."""
    step = 0x9E3779B97F4A7C15
    key = np.zeros(1, np.uint64)
    for word in (seed, epoch, stream):
        key = _mixed(key + np.uint64((word + 1) * step % (1 << 64)))
    numbers = _mixed(key + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(step))
    return (numbers >> np.uint64(11)).astype(np.float64) * 2.0 ** -53


# ---- an epoch's list


class List(NamedTuple):
    """What the library's order is made over.

    Attributes
    ----------
    samples : uint64 [N] or None
        None: all.
    shuffle : int
    seed, epoch : int
    """

    samples: Indices | None
    shuffle: int
    seed: int
    epoch: int


class Sampler(Protocol):
    """What makes the list of each epoch."""

    def list(self, source: Source, epoch: int) -> List:
        """The epoch's."""

    def policy(self) -> dict[str, Any]:
        """What the sequence depends on beside seed and dataset, of JSON's types."""


def digest(array: npt.NDArray[Any]) -> str:
    """A few characters that differ where arrays do."""
    return f"{len(array)}:{zlib.crc32(array.tobytes()):08x}"


class Plain:
    """All samples, or some of them, each once.

    Parameters
    ----------
    shuffle : str
    seed : int
    samples : uint64 [N] or None
    """

    def __init__(self, shuffle: str, seed: int, samples: Indices | None) -> None:
        self.shuffle, self.seed, self.samples = shuffle, seed, samples

    def list(self, source: Source, epoch: int) -> List:
        return List(self.samples, SHUFFLES[self.shuffle], self.seed, epoch)

    def policy(self) -> dict[str, Any]:
        chosen = None if self.samples is None else digest(self.samples)
        return {"shuffle": self.shuffle, "samples": chosen}


class Weighted:
    """Samples drawn with replacement, each draw by the same weights.

    Draw i of an epoch is a function of seed, epoch and i alone. Shuffled they are put in an order
    that storage likes first: each sample's first draw, by their places, then each one's second.

    Parameters
    ----------
    plain : Plain
        Of which samples are drawn.
    weights : float64 [samples of the dataset]
    count : int
        Draws of an epoch.
    """

    def __init__(self, plain: Plain, weights: npt.NDArray[np.float64], count: int) -> None:
        self._plain, self._count = plain, count
        samples = plain.samples
        self._samples = np.arange(len(weights), dtype=np.uint64) if samples is None else samples
        self._sums = np.cumsum(weights[self._samples.astype(np.int64)])
        if not len(self._sums) or not self._sums[-1] > 0:
            raise errors.InvalidArgument("weights are 0 for all samples",
                                         "give some sample a weight above 0")

    def list(self, source: Source, epoch: int) -> List:
        plain = self._plain
        spots = uniform(plain.seed, epoch, 0, self._count) * self._sums[-1]
        drawn = np.searchsorted(self._sums, spots, "right")
        # Rounding may reach the sum of all, behind the last.
        drawn = self._samples[np.minimum(drawn, np.searchsorted(self._sums, self._sums[-1]))]
        if plain.shuffle != "none":
            drawn = in_rounds(drawn)
        return List(drawn, SHUFFLES[plain.shuffle], plain.seed, epoch)

    def policy(self) -> dict[str, Any]:
        return {**self._plain.policy(), "weights": digest(self._sums), "draws": self._count}


def in_rounds(drawn: Indices) -> Indices:
    """The same entries: each one's first, in rising order, then each one's second, and so on."""
    ordered = np.sort(drawn)
    if not len(ordered):
        return ordered
    begins = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    lengths = np.diff(np.append(begins, len(ordered)))
    round_of = np.arange(len(ordered)) - np.repeat(begins, lengths)
    return ordered[np.argsort(round_of, kind="stable")]


def path_ranges(source: Source) -> list[list[tuple[int, int]]]:
    """The samples of each of the source's paths, as runs (first, end)."""
    paths = [os.path.normpath(os.fsdecode(path)) for path in source.paths]
    runs: list[list[tuple[int, int]]] = [[] for _ in paths]
    for shard, first, count in source.shard_table:
        where = os.path.normpath(shard)
        for number, path in enumerate(paths):
            if path in (where, os.path.dirname(where) or "."):
                runs[number].append((first, first + count))
                break
    return runs


def _checked_weights(values: Any, what: str) -> npt.NDArray[np.float64]:
    made = np.asarray(values, np.float64)
    if made.ndim != 1 or not np.isfinite(made).all() or (made < 0).any():
        raise errors.InvalidArgument(f"{what} are not all finite numbers from 0 on",
                                     "give each a number, 0 for what is not to be drawn")
    return made


def weights_of(source: Source, weights: Mapping[Any, float] | Sequence[float] | Any
               ) -> npt.NDArray[np.float64]:
    """float64 [samples]: each sample's weight, by sample, or by the path that it comes from.

    A path's weight is shared by its samples.
    """
    if not isinstance(weights, Mapping):
        made = _checked_weights(weights, "weights")
        if len(made) != source.count:
            raise errors.InvalidArgument(
                f"weights has {len(made)} entries, and the dataset has {source.count} samples",
                "give one for each sample, or a mapping from each path to its weight")
        return made
    names = [os.path.normpath(os.fsdecode(path)) for path in source.paths]
    by_name = {os.path.normpath(os.fsdecode(path)): value for path, value in weights.items()}
    for name in by_name:
        if name not in names:
            raise errors.InvalidArgument(f"weights names {name!r}, which is no path of the dataset",
                                         "give each of its paths a weight")
    for name in names:
        if name not in by_name:
            raise errors.InvalidArgument(f"weights lacks the path {name!r}",
                                         "give each of the dataset's paths a weight, 0 for none")
    made = np.zeros(source.count)
    values = _checked_weights([by_name[name] for name in names], "weights")
    for value, runs in zip(values, path_ranges(source)):
        count = sum(end - first for first, end in runs)
        for first, end in runs:
            made[first:end] = value / count
    return made


class Part(NamedTuple):
    """A dataset of a mix.

    Attributes
    ----------
    sampler : Sampler
    source : Source
        Its own, which says what its samples are.
    first : int
        Where its samples begin among the mix's.
    probability : float
    """

    sampler: Sampler
    source: Source
    first: int
    probability: float


class Mixed:
    """Samples of several datasets by probability.

    Sample k of dataset i has its turn at time (k + u) / p, u being a number from 0 to 1 of its own:
    so up to any time each dataset has given its share, to one sample, in a random order.

    Parameters
    ----------
    parts : list of Part
    seed : int
    stop : "all_exhausted" or "first_exhausted"
    """

    def __init__(self, parts: list[Part], seed: int, stop: str) -> None:
        self._parts, self._seed, self._stop = parts, seed, stop
        self._lengths = [self._length(part) for part in parts]
        turns = [length / part.probability for part, length in zip(parts, self._lengths)]
        until = max(turns) if stop == "all_exhausted" else min(turns)
        self._counts = [max(1, round(until * part.probability)) for part in parts]

    def _length(self, part: Part) -> int:
        samples = part.sampler.list(part.source, 0).samples
        length = part.source.count if samples is None else len(samples)
        if not length:
            raise errors.InvalidArgument("a dataset of the mix has no samples", "leave it out")
        return length

    def _passes(self, source: Source, part: Part, count: int, length: int, epoch: int) -> Indices:
        """The first count samples of a dataset, pass after pass, each in an order of its own."""
        passes, made = -(-count // length), []
        for number in range(passes):
            its = part.sampler.list(part.source, epoch * passes + number)
            samples = (np.arange(part.source.count, dtype=np.uint64) if its.samples is None
                       else its.samples) + np.uint64(part.first)
            with Order(source, its._replace(samples=samples), 1, Turn(0, 1, "uneven", 0)) as order:
                made.append(order.rows(0, min(length, count - number * length))[0])
        return np.concatenate(made)

    def list(self, source: Source, epoch: int) -> List:
        samples, times = [], []
        for number, (part, count, length) in enumerate(zip(self._parts, self._counts,
                                                           self._lengths)):
            samples.append(self._passes(source, part, count, length, epoch))
            jitter = uniform(self._seed, epoch, number, count)
            times.append((np.arange(count) + jitter) / part.probability)
        order = np.argsort(np.concatenate(times), kind="stable")
        return List(np.concatenate(samples)[order], _abi.SHUFFLE_NONE, self._seed, epoch)

    def policy(self) -> dict[str, Any]:
        return {"stop": self._stop,
                "mix": [[part.source.fingerprint, part.probability, part.sampler.policy()]
                        for part in self._parts]}


# ---- the order


class Turn(NamedTuple):
    """Whose batches of the sequence.

    Attributes
    ----------
    rank, world : int
    remainder : str
    start : int
        Positions that were consumed before, by all ranks.
    """

    rank: int
    world: int
    remainder: str
    start: int


class Counts(NamedTuple):
    """What an order has.

    Attributes
    ----------
    samples : int
        Positions of the sequence, from its beginning.
    rows, batches : int
        Of this rank, from start on.
    dropped, padded : int
        Positions that no rank gets; rows of all ranks that repeat a sample.
    """

    samples: int
    rows: int
    batches: int
    dropped: int
    padded: int


class Order(Owned):
    """An epoch's order for one rank; see ``onehop/dataset.h``."""

    _end = "order_destroy"

    def __init__(self, source: Source, its: List, batch: int, turn: Turn) -> None:
        super().__init__(source)
        row = _abi.OrderOptions()
        _library.run("order_options_init", byref(row))
        row.shuffle, row.remainder = its.shuffle, REMAINDERS[turn.remainder]
        row.rank, row.world, row.start = turn.rank, turn.world, turn.start
        row.seed, row.epoch, row.batch = its.seed % (1 << 64), its.epoch, batch
        nothing = np.zeros(1, np.uint64)  # a list of no samples has an address, too
        if its.samples is not None:
            samples = np.ascontiguousarray(its.samples if len(its.samples) else nothing, np.uint64)
            row.samples, row.sample_count = address_of(samples), len(its.samples)
        _library.call("order_create", source.handle, byref(row), byref(self.handle))
        info = _library.sized(_abi.OrderInfo)
        _library.ask("order_query", self.handle, byref(info))
        self.counts = Counts(int(info.samples), int(info.rows), int(info.batches),
                             int(info.dropped), int(info.padded))

    def rows(self, first: int, count: int) -> tuple[Indices, npt.NDArray[np.bool_]]:
        """Samples of this rank's rows, and whether each is repeated to fill up."""
        samples, pad = np.empty(count, np.uint64), np.zeros(count, np.uint8)
        if count:
            _library.ask("order_rows", self.handle, first, count, pointer_to(samples),
                         pad.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)))
        return samples, pad.astype(np.bool_)


def order_constants() -> dict[str, int]:
    """What the library's order depends on beside what callers say."""
    row = _abi.OrderOptions()
    _library.run("order_options_init", byref(row))
    return {"lanes": int(row.lanes), "block_bytes": int(row.block_bytes),
            "window_bytes": int(row.window_bytes)}


def check_probability(value: Any) -> float:
    """A dataset's share of a mix.

    Raises
    ------
    InvalidArgument
        No finite number above 0.
    """
    if not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise errors.InvalidArgument(f"a dataset's probability is {value!r}",
                                     "give a number above 0, and leave out what is not wanted")
    return float(value)
