"""The records of a stream: when each was, and where its bytes lie.

A stream's record is a sample of its own, or, where the samples have a field ``NAME.time.npy``, a
row of a chunk (see ``docs/format.md``). Records are numbered by episode, then by time.
"""
from __future__ import annotations

import ctypes
from ctypes import byref
from functools import cached_property


import numpy as np
import numpy.typing as npt

from . import _abi, _library, errors
from ._dataset_fields import Plan, type_bytes
from ._dataset_source import (Columns, Field, Indices, Owned, Source, address_of, array_at,
                              pointer_to)
from ._move import TURN_NS, Buffer

Int64s = npt.NDArray[np.int64]

NO_TIME = -(1 << 63)
GAP_BYTES = 64 << 10
"""Ranges so near to each other are read as one."""

_TIMES_AT_ONCE = 128 << 20


class Fetch(Owned):
    """Ranges of shards on their way into a buffer; see ``onehop/dataset.h``.

    Parameters
    ----------
    source : Source
    ranges : uint64 [N, 3]
        Shard, offset, bytes.
    device : str
    old : Buffer, optional
        Used again if it is large enough.

    Attributes
    ----------
    buffer : Buffer
    placed : int64 [N]
        Where each range begins in it.
    """

    _end = "fetch_destroy"

    def __init__(self, source: Source, ranges: Indices, device: str,
                 old: Buffer | None = None) -> None:
        super().__init__(source)
        ranges = np.ascontiguousarray(ranges, np.uint64)
        placed, needed = np.zeros(len(ranges), np.uint64), ctypes.c_uint64()
        rows = ctypes.cast(address_of(ranges), ctypes.POINTER(_abi.Range))
        common = (source.handle, rows, len(ranges), GAP_BYTES)
        _library.call("fetch_create", *common, None, 0, pointer_to(placed), byref(needed),
                      byref(self.handle))
        nbytes = int(needed.value)
        if old is not None and old.nbytes >= nbytes:
            self.buffer = old
        else:
            # A little more, so that the next of about this size fits.
            self.buffer = Buffer(source.runtime, device, -(-nbytes * 5 // 4 >> 16) + 1 << 16)
        _library.call("fetch_create", *common, self.buffer.handle, 0, pointer_to(placed),
                      byref(needed), byref(self.handle))
        self.placed = placed.astype(np.int64)

    def start(self, after_stream: int | None = None) -> None:
        """Starts moving bytes; the first copy waits for what the stream holds now."""
        options = _abi.StartOptions()
        _library.run("start_options_init", byref(options))
        if after_stream is not None:
            options.flags, options.after_stream = _abi.START_AFTER_STREAM, after_stream
        _library.call("fetch_start", self.handle, byref(options))

    def wait(self) -> _abi.Completion:
        """Waits until all bytes have landed.

        Raises
        ------
        OnehopError
            The first failure; names shard, offset and key.
        """
        completion: _abi.Completion = _library.sized(_abi.Completion)
        error, wait = _abi.Error(), _library.library().onehop_fetch_wait
        while True:
            if not self.handle:
                raise errors.InvalidArgument("the dataset was closed while it was iterated over",
                                             "leave it open until the loop has ended")
            status = wait(self.handle, TURN_NS, byref(completion), byref(error))
            if status and status != _abi.TIMED_OUT:
                raise errors.from_struct(status, error)
            if not status:
                return completion


class Table:
    """A stream's records.

    Parameters
    ----------
    source : Source
    stream : str
    number : int
        Of the stream.
    plan : Plan
        Of its field.
    clock : Field or None
        Its field of times, where records are rows of chunks.
    columns : Columns
        Of all samples.

    Attributes
    ----------
    times : int64 [R]
        ns.
    sample : uint64 [R]
        The sample that each record is, or is a row of.
    row : int64 [R]
    clock : Field or None
    first : int64 [episodes + 1]
        Where each episode's records begin; the one behind the last is of samples without episode.

    Raises
    ------
    Malformed
        A sample has no time, or a chunk's times are not what its rows say.
    """

    def __init__(self, source: Source, stream: str, number: int, plan: Plan, clock: Field | None,
                 columns: Columns) -> None:
        self.source, self.stream, self.plan, self.clock = source, stream, plan, clock
        samples = np.flatnonzero((columns.stream == number) & source.has(plan.field))
        episode = np.minimum(columns.episode[samples], len(source.episodes)).astype(np.int64)
        stamp = columns.timestamp_ns[samples]
        if (stamp == NO_TIME).any():
            sample = int(samples[(stamp == NO_TIME).argmax()])
            raise errors.Malformed(f"sample {source.key(sample)!r} of stream {stream!r} has no "
                                   "time", "pack it with timestamps")
        order = np.lexsort((samples, stamp, episode))
        chosen: Indices = samples[order].astype(np.uint64)
        episode, stamp = episode[order], stamp[order]
        if clock is None:
            counts: Int64s = np.ones(len(chosen), np.int64)
            self.times = stamp.astype(np.int64)
        else:
            counts = columns.rows[samples[order]].astype(np.int64)
            self.times = self._read_times(clock, chosen, counts)
        self.sample: Indices = np.repeat(chosen, counts)
        ends = np.cumsum(counts)
        self.row = np.arange(len(self.sample)) - np.repeat(ends - counts, counts)
        by_episode = np.bincount(episode, weights=counts, minlength=len(source.episodes) + 1)
        self.first = np.concatenate(([0], np.cumsum(by_episode))).astype(np.int64)

    def episode_times(self, episode: int) -> Int64s:
        """The times of an episode's records."""
        return self.times[self.first[episode]:self.first[episode + 1]]

    def _read_times(self, clock: Field, samples: Indices, counts: Int64s) -> Int64s:
        """The times of all chunks' rows."""
        parts = self.source.parts(clock, samples)
        offsets = parts.offset.copy()
        for kind in np.unique(parts.type).tolist():
            which = parts.type == kind
            its = self.source.type_at(kind - 1) if kind else None
            if its is None or its.dtype != "I64" or len(its.shape) != 1 \
                    or (counts[which] != its.shape[0]).any():
                bad = int(samples[which.argmax()])
                raise errors.Malformed(
                    f"field {clock.name!r} of sample {self.source.key(bad)!r} is not int64 with "
                    "one time for each of the chunk's rows", "pack the stream again")
            offsets[which] += np.uint64(its.data_offset)
        made, nbytes = [], counts * 8
        for first, last in in_pieces(nbytes, _TIMES_AT_ONCE):
            ranges = np.stack((parts.shard[first:last], offsets[first:last],
                               nbytes[first:last].astype(np.uint64)), axis=1)
            made += self._fetched(ranges)
        return np.concatenate(made) if made else np.zeros(0, np.int64)

    def _fetched(self, ranges: Indices) -> list[Int64s]:
        with Fetch(self.source, ranges, "host") as fetch:
            fetch.start()
            fetch.wait()
            memory = array_at(fetch.buffer.address, (fetch.buffer.nbytes,), "|u1")
            made = [memory[at:at + count].copy().view(np.int64)
                    for at, count in zip(fetch.placed.tolist(), ranges[:, 2].tolist())]
        fetch.buffer.close()
        return made

    # ---- where records lie

    @cached_property
    def _samples(self) -> Indices:
        return np.unique(self.sample)

    @cached_property
    def _spots(self) -> tuple[Indices, Indices, Int64s, npt.NDArray[np.uint32]]:
        """Of each of `_samples`: shard, offset of the array, bytes of the array, type."""
        plan, layout = self.plan, self.plan.layout
        parts = self.source.parts(plan.field, self._samples)
        offset, nbytes = parts.offset.copy(), parts.nbytes.astype(np.int64)
        if plan.form == "object":
            return parts.shard, offset, nbytes, parts.type
        if plan.field.dtype:
            offset += np.uint64(layout.data_offset)
            nbytes[:] = type_bytes(layout.dtype, layout.shape)
        for kind, its in layout.types.items():
            which = parts.type == kind
            offset[which] += np.uint64(its.data_offset)
            nbytes[which] = type_bytes(its.dtype, its.shape)
        return parts.shard, offset, nbytes, parts.type

    @property
    def shape(self) -> tuple[int, ...] | None:
        """A record's shape; None where records differ."""
        layout = self.plan.layout
        if self.clock is not None:
            return layout.shape[1:] if layout.is_fixed else layout.shape if layout.dtype else None
        return layout.shape if self.plan.form == "fixed" else None

    @property
    def row_bytes(self) -> int:
        """Of a record of a fixed shape."""
        assert self.shape is not None
        return type_bytes(self.plan.layout.dtype, self.shape)

    def spots(self, records: Int64s) -> tuple[Indices, Indices, Int64s, npt.NDArray[np.uint32]]:
        """Where records lie: shard, offset, bytes, type, [N] each."""
        which = np.searchsorted(self._samples, self.sample[records])
        shard, offset, nbytes, kinds = self._spots
        shard, offset, nbytes, kinds = shard[which], offset[which], nbytes[which], kinds[which]
        if self.clock is not None:
            offset += (self.row[records] * self.row_bytes).astype(np.uint64)
            nbytes = np.full(len(records), self.row_bytes, np.int64)
        return shard, offset, nbytes, kinds


def in_pieces(nbytes: Int64s, most: int) -> list[tuple[int, int]]:
    """Runs of entries whose bytes are about so many at most."""
    if not len(nbytes):
        return []
    piece = np.cumsum(nbytes) // most
    begins = np.flatnonzero(np.concatenate(([True], piece[1:] != piece[:-1]))).tolist()
    return list(zip(begins, [*begins[1:], len(nbytes)]))


def table_of(source: Source, stream: str, plans: list[Plan], columns: Columns) -> Table:
    """A stream's table, by its one field among those that were asked for.

    Raises
    ------
    InvalidArgument
        There is no such stream, or it has another number of fields than one.
    """
    if stream not in source.streams:
        some = ", ".join(map(repr, source.streams[:20]))
        raise errors.InvalidArgument(f"there is no stream {stream!r}",
                                     f"the dataset's streams are {some or 'none'}")
    # Fields are in small letters.
    begin = f"{stream}.".lower()
    clock = source.fields.get(f"{begin}time.npy")
    found = [plan for plan in plans if plan.name.startswith(begin) and
             plan.name != f"{begin}time.npy"]
    if len(found) != 1:
        names = ", ".join(repr(plan.name) for plan in found)
        raise errors.InvalidArgument(
            f"stream {stream!r} has {len(found)} of the fields that are asked for: "
            f"{names or 'none'}", "let fields= of the dataset name one field of each stream")
    table = Table(source, stream, source.streams.index(stream), found[0], clock, columns)
    if clock is not None and (table.shape is None or found[0].form == "object"):
        raise errors.UnsupportedData(
            f"field {found[0].name!r} holds chunks whose rows differ in type or shape",
            "pack the stream again, with records of one shape")
    return table



