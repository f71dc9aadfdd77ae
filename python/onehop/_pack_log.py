"""Logs of messages as inputs of ``onehop pack``: what MCAP and rosbag2 have in common.

A log is one episode, and each of its topics a stream. Opening reads the log once, from end to end,
so that every message is known to be whole, and puts down each one's time; a job reads its part
again. Messages of the types of `_ros` become arrays or encoded images; all others stay bytes, and
are listed.

The time of a record is its header's stamp, or when it was logged or published, as asked. Where a
message has no header, or a stamp of 0, it is when it was logged, which is said. A log lies in the
order of logging; records are put in the order of their times, so some are held meanwhile. Rows of a
small stream come in runs of a second at least, which lie where their first row's time is: a job has
the runs that begin in it, and reads them before all else.
"""
from __future__ import annotations

import heapq
import math
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from . import _ros, errors
from ._pack_input import PART_BYTES, InputOptions, Item, Rows, digest_of, need, record_key
from ._pack_names import Cleaner
from ._pack_notes import Notes
from .shards import Part, Sample, npy_part

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

TIMES = ("header", "log", "publish")
_BLOCK_BYTES = 4 << 20
_RUN_NS = 10**9
_ROW_BYTES = 8
_HELD_BYTES = 1 << 30
_BYTES, _ENCODED, _ARRAYS, _ROWS = range(4)
"""How a topic's messages are kept: as bytes, as encoded images, as arrays, as rows of chunks."""


class Topic(NamedTuple):
    """A topic of a log.

    Attributes
    ----------
    name : str
    type : str
        ``"sensor_msgs/msg/Image"``; empty if the log does not tell.
    ext : str
        Of messages that stay bytes: ``"cdr"``, ``"json"``, ...
    has_header : bool
        They begin with a std_msgs/Header.
    """

    name: str
    type: str
    ext: str
    has_header: bool

    @property
    def known(self) -> bool:
        return self.ext == "cdr" and _ros.known(self.type)


class Raw(NamedTuple):
    """A message of a log: its topic by number, when it was logged and published, and its bytes."""

    topic: int
    log_ns: int
    publish_ns: int
    data: bytes


class Log(Protocol):
    """A log that is open.

    Attributes
    ----------
    topics : sequence of Topic
    """

    @property
    def topics(self) -> Sequence[Topic]: ...

    def messages(self, topics: set[int], begin_ns: int | None, end_ns: int | None
                 ) -> Iterator[Raw]:
        """Messages of some topics, from begin_ns on and before end_ns, by time of logging; those
        of a topic always in the same order. Failures are errors of ours."""
        ...


class Source(Protocol):
    """Where a log lies; can be pickled.

    Attributes
    ----------
    path, kind : str
    has_publish : bool
        It tells when messages were published.
    """

    @property
    def path(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def has_publish(self) -> bool: ...

    def digest(self) -> str:
        """Of what lies there, by sizes and times of change."""
        ...

    def open(self, check: bool) -> AbstractContextManager[Log]:
        """check: checksums are looked at, too."""
        ...


def wrong(path: str, topic: Topic, log_ns: int, words: object) -> errors.Malformed:
    """The error for a message that is not what it says."""
    return errors.Malformed(f"{path!r}: the message of {topic.name} ({topic.type}) logged at "
                            f"{log_ns} ns is broken: {words}",
                            "leave the topic out when recording, or mend the log")


def _time(raw: Raw, stamp_ns: int | None, which: str) -> int:
    if which == "header" and stamp_ns:
        return stamp_ns
    return raw.publish_ns if which == "publish" else raw.log_ns


def _stamp(path: str, topic: Topic, raw: Raw) -> int | None:
    """Of the message's header; None where it has none or is not set."""
    if not topic.has_header:
        return None
    try:
        return _ros.stamp(raw.data) or None
    except _ros.Broken as error:
        raise wrong(path, topic, raw.log_ns, error) from error


# ---- looking at a log ---------------------------------------------------------------------------


class _Seen:
    """What the messages of a topic have been so far."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.keep = _ARRAYS if topic.known else _BYTES
        self.why = f"of type {topic.type or 'unknown'}"
        self.type: tuple[Any, tuple[int, ...]] | None = None
        self.uniform = True
        self.unstamped = 0
        self.count = 0

    def look(self, path: str, raw: Raw) -> int:
        """Counts a message, and gives the bytes that it becomes."""
        self.count += 1
        if self.keep == _BYTES:
            return len(raw.data)
        try:
            message = _ros.read(self.topic.type, raw.data)
        except _ros.Unknown as error:
            self.keep, self.why = _BYTES, str(error)
            return len(raw.data)
        except _ros.Broken as error:
            raise wrong(path, self.topic, raw.log_ns, error) from error
        if message.ext != "npy":
            self.keep = _ENCODED
            return len(message.value)
        kind = (message.value.dtype, message.value.shape)
        self.uniform = self.uniform and self.type in (None, kind)
        self.type = kind
        return int(message.value.nbytes)


class _Stream(NamedTuple):
    """How a topic's messages become records."""

    topic: int
    name: str
    keep: int
    dtype: Any                 # of rows and
    shape: tuple[int, ...]     # their shape


@dataclass
class _Table:
    """Messages by record, sorted by the time of what they lie in, and stream."""

    topic: NDArray[numpy.int32]
    seq: NDArray[numpy.int64]      # among the topic's messages, by time of logging
    time_ns: NDArray[numpy.int64]
    log_ns: NDArray[numpy.int64]
    cost: NDArray[numpy.int64]
    ordinal: NDArray[numpy.int64]
    begins: NDArray[numpy.bool_]   # a record of its own, or the first of a run

    def take(self, which: Any) -> _Table:
        """Some of the rows, by a slice or by their numbers."""
        return _Table(self.topic[which], self.seq[which], self.time_ns[which], self.log_ns[which],
                      self.cost[which], self.ordinal[which], self.begins[which])


class LogInput:
    """A log, looked at; see `_pack_input.Input`.

    Parameters
    ----------
    source : Source
    episode : str
        Its name, before it is cleaned.
    options : InputOptions
    """

    def __init__(self, source: Source, episode: str, options: InputOptions) -> None:
        need("numpy", f"packing {source.kind}")
        self.path, self.kind, self.notes = source.path, source.kind, Notes()
        self._source, self._options, self._time = source, options, options.time
        if self._time not in TIMES:
            raise errors.InvalidArgument(f"--time is {self._time!r}",
                                         f"give one of {', '.join(TIMES)}")
        if self._time == "publish" and not source.has_publish:
            raise errors.InvalidArgument(f"{source.path!r} does not tell when messages were "
                                         "published", "give --time header or --time log")
        self._cleaner = Cleaner(options.names, self.notes)
        self._episode = self._cleaner.episode(episode)
        with source.open(True) as log:
            seen, columns = self._scan(log)
        self._streams = [self._stream(number, one) for number, one in enumerate(seen) if one.count]
        self._table, self._logged = self._sorted(columns, len(seen))
        self.nbytes = int(self._table.cost.sum())

    def _scan(self, log: Log) -> tuple[list[_Seen], array[int]]:
        """Topic, time, time of logging and bytes of each message, in the order of logging."""
        seen = [_Seen(topic) for topic in log.topics]
        columns = array("q")
        for raw in log.messages(set(range(len(seen))), None, None):
            one = seen[raw.topic]
            stamp = _stamp(self.path, one.topic, raw)
            one.unstamped += stamp is None
            columns.extend((raw.topic, _time(raw, stamp, self._time), raw.log_ns,
                            one.look(self.path, raw)))
        if not columns:
            raise errors.UnsupportedData(f"{self.path!r} holds no message", "correct the path")
        return seen, columns

    def _stream(self, number: int, seen: _Seen) -> _Stream:
        name = self._cleaner.stream(seen.topic.name.lstrip("/"))
        if seen.keep == _BYTES:
            self.notes.warn(f"topic {seen.topic.name} stays bytes ({name}.{seen.topic.ext}), "
                            f"{seen.why}")
        if seen.unstamped and self._time == "header":
            self.notes.warn(f"{seen.unstamped} of {seen.count} messages of topic "
                            f"{seen.topic.name} have no stamp: their time is that of the log")
        dtype, shape = seen.type or (None, ())
        nbytes = math.prod(shape) * dtype.itemsize if dtype else 0
        uniform = seen.keep == _ARRAYS and seen.uniform and nbytes > 0
        chunked = self._options.chunked(name, nbytes, uniform)
        return _Stream(number, name, _ROWS if chunked else seen.keep, dtype, shape)

    def _sorted(self, columns: array[int], topics: int
                ) -> tuple[_Table, list[NDArray[numpy.int64]]]:
        """The table, and for each topic when its messages were logged, in order."""
        import numpy

        flat = numpy.frombuffer(columns, numpy.int64).reshape(-1, 4)
        topic, time_ns, log_ns = flat[:, 0].astype(numpy.int32), flat[:, 1], flat[:, 2]
        table = _Table(topic, numpy.empty(len(flat), numpy.int64), time_ns, log_ns,
                       flat[:, 3] + PART_BYTES, numpy.empty(len(flat), numpy.int64),
                       numpy.ones(len(flat), bool))
        place, logged = time_ns.copy(), [numpy.zeros(0, numpy.int64)] * topics
        rank = numpy.zeros(topics, numpy.int64)
        for number, stream in enumerate(sorted(self._streams, key=lambda one: one.name)):
            rank[stream.topic] = number
            mine = numpy.flatnonzero(topic == stream.topic)
            logged[stream.topic] = log_ns[mine]
            table.seq[mine] = numpy.arange(len(mine))
            mine = mine[numpy.argsort(time_ns[mine], kind="stable")]
            table.ordinal[mine] = numpy.arange(len(mine))
            if stream.keep == _ROWS:
                table.cost[mine] -= PART_BYTES - _ROW_BYTES
                self._runs(table, mine, place)
        return table.take(numpy.lexsort((table.ordinal, rank[topic], place))), logged

    def _runs(self, table: _Table, mine: NDArray[Any], place: NDArray[numpy.int64]) -> None:
        """Puts a stream's rows, sorted by time, where their run begins: runs of all streams are of
        the same seconds, so that a job that reads one has others to read with it."""
        import numpy

        times = table.time_ns[mine]
        runs = times // _RUN_NS
        begins = numpy.diff(runs, prepend=runs[0] - 1) != 0
        table.begins[mine] = begins
        place[mine] = times[begins][numpy.cumsum(begins) - 1]

    @property
    def streams(self) -> list[str]:
        """Names of the streams."""
        return [stream.name for stream in self._streams]

    def by_episode(self) -> list[tuple[str, LogJob]]:
        """The one episode's name, and a job for it."""
        return [(self._episode, job) for job in self.jobs(1 << 62)]

    def jobs(self, limit: int) -> Sequence[LogJob]:
        """See `_pack_input.Input`."""
        import numpy

        ends = numpy.cumsum(self._table.cost)
        starts = numpy.append(numpy.flatnonzero(self._table.begins), len(ends))
        digest = self._source.digest()
        made, begin = [], 0
        while begin < len(ends):
            before = int(ends[begin - 1]) if begin else 0
            end = int(numpy.searchsorted(ends, before + limit, "right"))
            after = int(numpy.searchsorted(starts, max(end, begin + 1), "right")) - 1
            if starts[after] <= begin:
                after += 1
            end = int(starts[after])
            made.append(self._job(begin, end, int(ends[end - 1]) - before, digest))
            begin = end
        return made

    def _job(self, begin: int, end: int, nbytes: int, digest: str) -> LogJob:
        import numpy

        table = self._table.take(slice(begin, end))
        small = {stream.topic for stream in self._streams if stream.keep == _ROWS}
        rows = numpy.isin(table.topic, list(small))
        return LogJob(self._source, self._episode, self._time, self._part(table.take(rows)),
                      self._part(table.take(~rows)), nbytes,
                      digest_of((digest, self._time, begin, end, *self._streams)))

    def _part(self, table: _Table) -> _Part:
        import numpy

        present = set(numpy.unique(table.topic).tolist())
        first = int(table.log_ns.min(initial=(1 << 63) - 1))
        return _Part(table, {stream.topic: stream for stream in self._streams
                             if stream.topic in present},
                     {topic: int(numpy.searchsorted(self._logged[topic], first))
                      for topic in present}, first, int(table.log_ns.max(initial=0)) + 1)


# ---- a part of it -------------------------------------------------------------------------------


class _Part(NamedTuple):
    """Records of a job: those that are rows, or the others."""

    table: _Table
    streams: dict[int, _Stream]   # by topic
    bases: dict[int, int]         # by topic: messages that were logged before begin_ns
    begin_ns: int
    end_ns: int


@dataclass
class LogJob:
    """Records that follow each other in time; see `_pack_input.Job`."""

    log: ClassVar[bool] = True
    source: Source
    episode: str
    time: str
    rows: _Part
    others: _Part
    nbytes: int
    digest: str = field(repr=False)

    @property
    def name(self) -> str:
        return f"{self.source.path}, logged from {min(self.rows.begin_ns, self.others.begin_ns)} ns"

    def items(self, notes: Notes) -> Iterator[Item]:
        """See `_pack_input.Job`."""
        with self.source.open(False) as log:
            blocks: Iterable[Item] = self._blocks(log, notes)
            samples: Iterable[Item] = self._samples(log, notes)
            yield from heapq.merge(blocks, samples, key=_place)

    def _messages(self, log: Log, part: _Part, notes: Notes) -> Iterator[tuple[int, Raw]]:
        """A part's messages with their places in its table, as they were logged."""
        table = part.table
        places = {topic: _Places(table, topic, part.bases[topic]) for topic in part.streams}
        left = len(table.topic)
        for raw in log.messages(set(part.streams), part.begin_ns, part.end_ns) if left else ():
            at = places[raw.topic].next()
            if at < 0:
                continue
            stamp = _stamp(self.source.path, log.topics[raw.topic], raw)
            if (raw.log_ns != table.log_ns[at]
                    or _time(raw, stamp, self.time) != table.time_ns[at]):
                break
            if stamp is not None:
                notes.skew(part.streams[raw.topic].name, stamp - raw.log_ns)
            yield at, raw
            left -= 1
        if left:
            self._changed()

    def _changed(self) -> None:
        raise errors.FileChanged(f"{self.source.path!r} changed while it was packed",
                                 "pack when nothing writes to it")

    def _read(self, log: Log, raw: Raw) -> _ros.Message:
        topic = log.topics[raw.topic]
        try:
            return _ros.read(topic.type, raw.data)
        except _ros.Broken as error:
            raise wrong(self.source.path, topic, raw.log_ns, error) from error

    def _blocks(self, log: Log, notes: Notes) -> list[Rows]:
        """All rows of the small streams."""
        import numpy

        table, streams = self.rows.table, self.rows.streams
        mine = {topic: numpy.flatnonzero(table.topic == topic) for topic in streams}
        values = {topic: numpy.empty((len(mine[topic]), *stream.shape), stream.dtype)
                  for topic, stream in streams.items()}
        for at, raw in self._messages(log, self.rows, notes):
            value, stream = self._read(log, raw).value, streams[raw.topic]
            if (value.dtype, value.shape) != (stream.dtype, stream.shape):
                self._changed()
            values[raw.topic][table.ordinal[at] - table.ordinal[mine[raw.topic][0]]] = value
        blocks = [block for topic, stream in streams.items()
                  for block in self._cut(stream, mine[topic], values[topic])]
        return sorted(blocks, key=_place)

    def _cut(self, stream: _Stream, mine: NDArray[Any], values: NDArray[Any]) -> Iterator[Rows]:
        """A stream's rows as runs, and these in blocks."""
        import numpy

        table = self.rows.table
        most = max(1, _BLOCK_BYTES // (values[0].nbytes + _ROW_BYTES))
        starts = [*numpy.flatnonzero(table.begins[mine]).tolist(), len(mine)]
        for begin, end in zip(starts, starts[1:]):
            for first in range(begin, end, most):
                last = min(first + most, end)
                yield Rows(self.episode, stream.name, int(table.ordinal[mine[first]]),
                           table.time_ns[mine[first:last]], values[first:last])

    def _samples(self, log: Log, notes: Notes) -> Iterator[Sample]:
        """All other records, by time: those that come early are held."""
        held: dict[int, Raw] = {}
        size = at = 0
        for place, raw in self._messages(log, self.others, notes):
            held[place] = raw
            size += len(raw.data)
            if size > _HELD_BYTES:
                self._too_far(log, len(held), at)
            while at in held:
                ready = held.pop(at)
                size -= len(ready.data)
                yield self._sample(log, ready, at)
                at += 1

    def _too_far(self, log: Log, waiting: int, at: int) -> None:
        table = self.others.table
        raise errors.Limit(
            f"{self.source.path!r}: the message of {log.topics[int(table.topic[at])].name} of "
            f"{table.time_ns[at]} ns was logged at {table.log_ns[at]} ns, so much later than "
            f"{waiting} others that more than {_HELD_BYTES} bytes would have to wait for it",
            "give --time log")

    def _sample(self, log: Log, raw: Raw, at: int) -> Sample:
        table, stream = self.others.table, self.others.streams[raw.topic]
        if stream.keep == _BYTES:
            part = Part(f"{stream.name}.{log.topics[raw.topic].ext}", raw.data)
        else:
            message = self._read(log, raw)
            part = (npy_part(f"{stream.name}.npy", message.value) if message.ext == "npy"
                    else Part(f"{stream.name}.{message.ext}", message.value))
        return Sample(record_key(self.episode, stream.name, int(table.ordinal[at])), (part,),
                      int(table.time_ns[at]), self.episode, stream.name)


class _Places:
    """Where a topic's messages go, as they come one after the other."""

    def __init__(self, table: _Table, topic: int, base: int) -> None:
        import numpy

        mine = numpy.flatnonzero(table.topic == topic)
        seqs = table.seq[mine] - base
        self._at = numpy.full(int(seqs.max()) + 1, -1, numpy.int64)
        self._at[seqs] = mine
        self._next = 0

    def next(self) -> int:
        """The place of the next message; -1 for one that is of another job."""
        here, self._next = self._next, self._next + 1
        return int(self._at[here]) if here < len(self._at) else -1


def _place(item: Item) -> tuple[int, str]:
    if isinstance(item, Rows):
        return int(item.times_ns[0]), item.stream
    return item.timestamp_ns or 0, item.stream or ""


def stem(path: str) -> str:
    """A log's name without its ending, as the name of its episode."""
    return os.path.splitext(os.path.basename(os.path.abspath(path)))[0]
