"""Logs of messages as inputs of ``onehop pack``: what MCAP and rosbag2 have in common.

A log is one episode, and each of its topics a stream. Opening reads the log once, as it lies, so
that every message is known to be whole, and puts down each one's time and place, some 40 bytes; a
job reads its messages again by their places. So a log is packed in the order of its records' times,
however it was written, and never held. Messages of the types of `onehop._ros` become arrays or
encoded images; all others stay bytes, and are listed.

The time of a record is its header's stamp, or when it was logged or published, as asked. Where a
message has no header, or a stamp of 0, it is when it was logged, which is said. Rows of a small
stream come in runs: a job has the runs that begin in it, and reads them before all else, as they
lie in the log, which is once through it for all of these streams.
"""
from __future__ import annotations

import math
import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from .. import _ros, errors
from ..shards import Part, Sample, npy_part
from .input import PART_BYTES, InputOptions, Item, Rows, Share, digest_of, need, record_key
from .names import Cleaner
from .notes import Notes
from .runs import TIME_BYTES, cuts, runs

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

TIMES = ("header", "log", "publish")
_JOB_BYTES = 256 << 20
"""Of a job at most: its rows are held in memory."""
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
    """A message of a log: its topic by number, when it was logged and published, and its bytes; and
    its place, by two numbers, which rise as messages lie."""

    topic: int
    log_ns: int
    publish_ns: int
    data: bytes
    block: int
    at: int


class Log(Protocol):
    """A log that is open.

    Attributes
    ----------
    topics : sequence of Topic
    """

    @property
    def topics(self) -> Sequence[Topic]: ...

    def messages(self) -> Iterator[Raw]:
        """All messages, as they lie. Failures are errors of ours."""
        ...

    def read(self, block: int, at: int) -> Raw:
        """The message of a place; it is quick for those that lie close together."""
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

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize if self.dtype else 0


@dataclass
class _Table:
    """Messages by record, sorted by the time of what they lie in, and stream."""

    topic: NDArray[numpy.int32]
    time_ns: NDArray[numpy.int64]
    cost: NDArray[numpy.int64]
    block: NDArray[numpy.int64]
    at: NDArray[numpy.int64]
    ordinal: NDArray[numpy.int64]
    begins: NDArray[numpy.bool_]   # a record of its own, or the first of a run

    def take(self, which: Any) -> _Table:
        """Some of the rows, by a slice or by their numbers."""
        return _Table(self.topic[which], self.time_ns[which], self.cost[which], self.block[which],
                      self.at[which], self.ordinal[which], self.begins[which])


class _Columns:
    """What is put down of each message, as they lie."""

    def __init__(self) -> None:
        self.topic = array("i")
        self.time_ns, self.cost, self.block, self.at = (array("q") for _ in range(4))

    def add(self, raw: Raw, time_ns: int, cost: int) -> None:
        self.topic.append(raw.topic)
        self.time_ns.append(time_ns)
        self.cost.append(cost)
        self.block.append(raw.block)
        self.at.append(raw.at)

    def table(self) -> _Table:
        import numpy

        time_ns, cost, block, at = (numpy.frombuffer(column, numpy.int64) for column in (
            self.time_ns, self.cost, self.block, self.at))
        return _Table(numpy.frombuffer(self.topic, numpy.int32), time_ns, cost, block, at,
                      numpy.empty(len(at), numpy.int64), numpy.ones(len(at), bool))


class LogInput:
    """A log, looked at; see `input.Input`.

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
        self._table = self._sorted(columns.table())
        self.nbytes = int(self._table.cost.sum())

    def _scan(self, log: Log) -> tuple[list[_Seen], _Columns]:
        """Looks at each message."""
        seen = [_Seen(topic) for topic in log.topics]
        columns = _Columns()
        for raw in log.messages():
            one = seen[raw.topic]
            stamp = _stamp(self.path, one.topic, raw)
            one.unstamped += stamp is None
            columns.add(raw, _time(raw, stamp, self._time), one.look(self.path, raw) + PART_BYTES)
        if not columns.topic:
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
        made = _Stream(number, name, seen.keep, *(seen.type or (None, ())))
        uniform = seen.keep == _ARRAYS and seen.uniform and made.row_bytes > 0
        chunked = self._options.chunked(name, made.row_bytes, uniform)
        return made._replace(keep=_ROWS) if chunked else made

    def _sorted(self, table: _Table) -> _Table:
        """The table in order; ordinals and runs are filled in."""
        import numpy

        places = table.time_ns.copy()
        rank = numpy.zeros(int(table.topic.max()) + 1, numpy.int32)
        for number, stream in enumerate(sorted(self._streams, key=lambda one: one.name)):
            rank[stream.topic] = number
            mine = numpy.flatnonzero(table.topic == stream.topic)
            mine = mine[numpy.argsort(table.time_ns[mine], kind="stable")]
            table.ordinal[mine] = numpy.arange(len(mine))
            if stream.keep == _ROWS:
                table.begins[mine], places[mine] = runs(
                    table.time_ns[mine], stream.row_bytes, self._options.chunk_bytes)
        made = table.take(numpy.lexsort((table.ordinal, rank[table.topic], places)))
        for stream in self._streams:
            if stream.keep == _ROWS:
                made.cost[made.topic == stream.topic] += TIME_BYTES - PART_BYTES
        return made

    @property
    def streams(self) -> list[str]:
        """Names of the streams."""
        return [stream.name for stream in self._streams]

    def by_episode(self) -> list[Share]:
        """See `input.Share`: the log is one episode."""
        return [Share(self._episode, self.jobs(_JOB_BYTES), int(self._table.time_ns.min()),
                      int(self._table.time_ns.max()))]

    def jobs(self, limit: int) -> Sequence[LogJob]:
        """See `input.Input`."""
        digest, table = self._source.digest(), self._table
        return [LogJob(self._source, self._episode, self._time, table.take(slice(begin, end)),
                       self._streams, nbytes,
                       digest_of((digest, self._time, begin, end, *self._streams)))
                for begin, end, nbytes in cuts(table.cost, table.begins, min(limit, _JOB_BYTES))]


# ---- a part of it -------------------------------------------------------------------------------


@dataclass
class LogJob:
    """Records that follow each other in time; see `input.Job`."""

    log: ClassVar[bool] = True
    source: Source
    episode: str
    time: str
    table: _Table
    streams: list[_Stream]
    nbytes: int
    digest: str = field(repr=False)

    @property
    def name(self) -> str:
        return f"{self.source.path}, from {self.table.time_ns.min()} ns"

    def items(self, notes: Notes) -> Iterator[Item]:
        """See `input.Job`."""
        import numpy

        streams = {stream.topic: stream for stream in self.streams}
        table, starts = self.table, numpy.flatnonzero(self.table.begins).tolist()
        with self.source.open(False) as log:
            rows = self._rows(log, notes)
            for begin, end in zip(starts, [*starts[1:], len(table.topic)]):
                stream, ordinal = streams[int(table.topic[begin])], int(table.ordinal[begin])
                if stream.keep == _ROWS:
                    first, values = rows[stream.topic]
                    values = values[ordinal - first:ordinal - first + end - begin]
                    yield Rows(self.episode, stream.name, ordinal, table.time_ns[begin:end], values)
                else:
                    yield self._sample(log, stream, begin, notes)

    def _message(self, log: Log, stream: _Stream, index: int, notes: Notes) -> Raw:
        """The message of a record."""
        table = self.table
        raw = log.read(int(table.block[index]), int(table.at[index]))
        stamp = _stamp(self.source.path, log.topics[raw.topic], raw)
        if (raw.topic, _time(raw, stamp, self.time)) != (stream.topic, table.time_ns[index]):
            self._changed()
        if stamp is not None:
            notes.skew(stream.name, stamp - raw.log_ns)
        return raw

    def _changed(self) -> None:
        raise errors.FileChanged(f"{self.source.path!r} changed while it was packed",
                                 "pack when nothing writes to it")

    def _read(self, log: Log, raw: Raw) -> _ros.Message:
        topic = log.topics[raw.topic]
        try:
            return _ros.read(topic.type, raw.data)
        except _ros.Broken as error:
            raise wrong(self.source.path, topic, raw.log_ns, error) from error

    def _rows(self, log: Log, notes: Notes) -> dict[int, tuple[int, NDArray[Any]]]:
        """By topic of the small streams: the first row's ordinal, and all rows."""
        import numpy

        table = self.table
        made: dict[int, tuple[int, NDArray[Any]]] = {}
        small = {stream.topic: stream for stream in self.streams if stream.keep == _ROWS}
        for topic, stream in small.items():
            mine = table.ordinal[table.topic == topic]
            if len(mine):
                made[topic] = int(mine[0]), numpy.empty((len(mine), *stream.shape), stream.dtype)
        which = numpy.flatnonzero(numpy.isin(table.topic, list(made)))
        for index in which[numpy.lexsort((table.at[which], table.block[which]))].tolist():
            stream = small[int(table.topic[index])]
            value = self._read(log, self._message(log, stream, index, notes)).value
            if (value.dtype, value.shape) != (stream.dtype, stream.shape):
                self._changed()
            first, values = made[stream.topic]
            values[int(table.ordinal[index]) - first] = value
        return made

    def _sample(self, log: Log, stream: _Stream, index: int, notes: Notes) -> Sample:
        raw = self._message(log, stream, index, notes)
        if stream.keep == _BYTES:
            part = Part(f"{stream.name}.{log.topics[raw.topic].ext}", raw.data)
        else:
            message = self._read(log, raw)
            part = (npy_part(f"{stream.name}.npy", message.value) if message.ext == "npy"
                    else Part(f"{stream.name}.{message.ext}", message.value))
        return Sample(record_key(self.episode, stream.name, int(self.table.ordinal[index])),
                      (part,), int(self.table.time_ns[index]), self.episode, stream.name)


def stem(path: str) -> str:
    """A log's name without its ending, as the name of its episode."""
    return os.path.splitext(os.path.basename(os.path.abspath(path)))[0]
