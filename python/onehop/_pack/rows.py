"""Rows joined into chunks, and everything put in the order of time.

A chunk is opened by the first of its rows and takes its place in the order there, before all that
comes later, so what comes later is held until the chunk is full. What is held in memory is bounded:
at the bound all chunks are closed as they are. The result is a function of the items alone.
"""
from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .. import errors
from ..shards import FileRange, Sample, npy_part, rows_sample
from .input import CHUNK_BYTES, Item, Rows, record_key
from .notes import Notes

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

HELD_BYTES = 256 << 20
HELD_SAMPLES = 1 << 20
_TIME_BYTES = 8


class _Chunk:
    """Rows of one stream that will be one sample."""

    def __init__(self, rows: Rows) -> None:
        self.episode, self.stream, self.ordinal = rows.episode, rows.stream, rows.ordinal
        self.times: list[NDArray[numpy.int64]] = []
        self.values: list[NDArray[Any]] = []
        self.count = 0
        self.open = True

    def take(self, rows: Rows) -> None:
        self.times.append(rows.times_ns)
        self.values.append(rows.values)
        self.count += len(rows.times_ns)

    def sample(self) -> Sample:
        import numpy

        return rows_sample(record_key(self.episode, self.stream, self.ordinal), self.episode,
                           self.stream, numpy.concatenate(self.times),
                           numpy.concatenate(self.values))


def _row_bytes(rows: Rows) -> int:
    return rows.values.nbytes // len(rows.times_ns) + _TIME_BYTES


def _held_bytes(sample: Sample) -> int:
    """Bytes of payloads that are in memory, not in files."""
    return sum(len(part.source) for part in sample.parts if not isinstance(part.source, FileRange))


class _Order:
    """One episode's items, as samples in order."""

    def __init__(self, chunk_bytes: int, apart: frozenset[str]) -> None:
        self._chunk_bytes = chunk_bytes
        self._apart = apart
        self._heap: list[tuple[int, str, int, _Chunk | Sample]] = []
        self._open: dict[str, _Chunk] = {}
        self._number = 0
        self._held = 0

    def add(self, item: Item) -> Iterator[Sample]:
        """Takes an item, and gives what nothing that may still come can precede."""
        _, time_ns, stream = _place(item)
        if not isinstance(item, Rows):
            self._sample(item)
        elif stream in self._apart:
            for sample in _one_by_one(item):
                self._sample(sample)
        else:
            self._rows(item)
        if self._held > HELD_BYTES or len(self._heap) > HELD_SAMPLES:
            self._close_all()
        yield from self._ready(time_ns)

    def end(self) -> Iterator[Sample]:
        """All that is left."""
        self._close_all()
        yield from self._ready(None)

    def _push(self, time_ns: int, stream: str, entry: _Chunk | Sample) -> None:
        heapq.heappush(self._heap, (time_ns, stream, self._number, entry))
        self._number += 1

    def _sample(self, sample: Sample) -> None:
        _, time_ns, stream = _place(sample)
        self._push(time_ns, stream, sample)
        self._held += _held_bytes(sample)

    def _rows(self, rows: Rows) -> None:
        """Fills the stream's chunk, and begins others where it is full. Rows that fit a chunk are
        in one, so that it lies where they do."""
        each = _row_bytes(rows)
        most = max(self._chunk_bytes // each, 1)
        self._held += each * len(rows.times_ns)
        chunk = self._open.get(rows.stream)
        if chunk is not None and most - chunk.count < len(rows.times_ns) <= most:
            self._close(chunk)
        while len(rows.times_ns):
            chunk = self._open.get(rows.stream)
            if chunk is None:
                chunk = self._open[rows.stream] = _Chunk(rows)
                self._push(int(rows.times_ns[0]), rows.stream, chunk)
            elif chunk.ordinal + chunk.count != rows.ordinal:
                raise errors.Malformed(
                    f"stream {rows.stream} of episode {rows.episode} has no record "
                    f"{chunk.ordinal + chunk.count}", "records are counted without gaps")
            room = most - chunk.count
            chunk.take(Rows(rows.episode, rows.stream, rows.ordinal, rows.times_ns[:room],
                            rows.values[:room]))
            rows = Rows(rows.episode, rows.stream, rows.ordinal + room, rows.times_ns[room:],
                        rows.values[room:])
            if chunk.count == most:
                self._close(chunk)

    def _close(self, chunk: _Chunk) -> None:
        chunk.open = False
        del self._open[chunk.stream]

    def _close_all(self) -> None:
        for chunk in list(self._open.values()):
            self._close(chunk)

    def _ready(self, until: int | None) -> Iterator[Sample]:
        while self._heap:
            time_ns, _, _, entry = self._heap[0]
            if until is not None and time_ns >= until:
                return
            if isinstance(entry, _Chunk):
                if entry.open:
                    return
                sample = entry.sample()
                self._held -= sum(values.nbytes for values in entry.values)
                self._held -= _TIME_BYTES * entry.count
            else:
                sample = entry
                self._held -= _held_bytes(sample)
            heapq.heappop(self._heap)
            yield sample


def _one_by_one(rows: Rows) -> Iterator[Sample]:
    """Rows as samples of one record each."""
    for index, time_ns in enumerate(rows.times_ns.tolist()):
        yield Sample(record_key(rows.episode, rows.stream, rows.ordinal + index),
                     (npy_part(f"{rows.stream}.npy", rows.values[index]),), time_ns, rows.episode,
                     rows.stream)


def _place(item: Item) -> tuple[str, int, str]:
    if isinstance(item, Rows):
        return item.episode, int(item.times_ns[0]), item.stream
    return item.episode or "", item.timestamp_ns or 0, item.stream or ""


class _Spans:
    """First and last time of each episode's streams, for their rates."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], list[int]] = {}

    def count(self, item: Item) -> None:
        episode, first, stream = _place(item)
        last, records = first, 1
        if isinstance(item, Rows):
            last, records = int(item.times_ns[-1]), len(item.times_ns)
        seen = self._seen.setdefault((episode, stream), [0, first, last])
        seen[0] += records
        seen[2] = max(seen[2], last)

    def tell(self, notes: Notes) -> None:
        for (_, stream), (records, first, last) in self._seen.items():
            if stream:
                notes.span(stream, records, first, last)


def in_order(items: Iterable[Item], notes: Notes, *, chunk_bytes: int = CHUNK_BYTES,
             apart: frozenset[str] = frozenset()) -> Iterator[Sample]:
    """A log's items as the samples that are written, in their order.

    Parameters
    ----------
    items : iterable of Sample or Rows
        As `input` wants them.
    notes : Notes
        Records and their spans are counted there.
    chunk_bytes : int
        Of a chunk, at most, unless one row has more.
    apart : frozenset of str
        Streams whose rows become samples of their own.

    Raises
    ------
    Malformed
        Items are not in order, or a record is missing.
    """
    order, spans = _Order(chunk_bytes, apart), _Spans()
    episodes: set[str] = set()
    episode, latest = "", 0
    for item in items:
        named, time_ns, stream = _place(item)
        if named != episode or not episodes:
            yield from order.end()
            if named in episodes:
                raise errors.Malformed(f"episode {named} comes in two places of one input",
                                       "its records come together")
            episodes.add(named)
            episode, latest = named, time_ns
        if time_ns < latest:
            raise errors.Malformed(
                f"a record of stream {stream} of episode {episode} at {time_ns} ns comes after one "
                f"at {latest} ns", "records come sorted by time")
        latest = time_ns
        spans.count(item)
        yield from order.add(item)
    yield from order.end()
    spans.tell(notes)
