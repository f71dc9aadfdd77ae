"""MCAP logs as inputs of ``onehop pack``: what they tell of themselves by the package mcap, their
messages by `mcap_file`."""
from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

from .. import _ros, errors
from .input import InputOptions, file_digest, need, reading
from .log import LogInput, Raw, Topic, stem
from .mcap_file import MAGIC, McapFile, Message

_RECOVER = "make it anew, or mend it: mcap recover"
_ENDINGS = {"cdr": "cdr", "json": "json", "protobuf": "pb", "ros1": "ros1", "cbor": "cbor",
            "msgpack": "msgpack"}


def accepts(path: str, options: InputOptions) -> bool:
    """A file that begins, or is called, as MCAP."""
    if not os.path.isfile(path):
        return False
    with reading(path), open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC or path.endswith(".mcap")


def open_input(path: str, options: InputOptions) -> LogInput:
    """Looks at the log; see `log`."""
    need("mcap.reader", "packing MCAP")
    return LogInput(McapSource(os.path.abspath(path)), stem(path), options)


class McapSource(NamedTuple):
    """See `log.Source`."""

    path: str
    kind: str = "MCAP"
    has_publish: bool = True

    def digest(self) -> str:
        return file_digest(self.path)

    @contextmanager
    def open(self, check: bool) -> Iterator[McapLog]:
        with reading(self.path), open(self.path, "rb") as file:
            with _failures(self.path):
                _check_ends(self.path, file)
                log = McapLog(self.path, file, check)
            yield log


@contextmanager
def _failures(path: str) -> Iterator[None]:
    """What the package raises, as an error of ours; of damaged files it raises all sorts."""
    try:
        yield
    except (OSError, errors.OnehopError):
        raise
    except MemoryError as error:
        raise errors.Malformed(f"{path!r} tells of records larger than memory", _RECOVER) from error
    except Exception as error:
        words = str(error) or type(error).__name__
        raise errors.Malformed(f"{path!r} is no whole MCAP: {words}", _RECOVER) from error


def _check_ends(path: str, file: BinaryIO) -> None:
    size = os.fstat(file.fileno()).st_size
    if size < 2 * len(MAGIC):
        raise errors.Malformed(f"{path!r} has {size} bytes, too few for MCAP", "correct the path")
    file.seek(size - len(MAGIC))
    end = file.read(len(MAGIC))
    file.seek(0)
    if end != MAGIC:
        raise errors.Malformed(f"{path!r} ends with {end.hex(' ')} instead of MCAP's magic: it was "
                               "cut, or recording was not finished", _RECOVER)


class McapLog:
    """See `log.Log`."""

    def __init__(self, path: str, file: BinaryIO, check: bool) -> None:
        self._path, self._file = path, McapFile(path, file, check)
        summary = need("mcap.reader", "packing MCAP").SeekingReader(
            file, record_size_limit=os.fstat(file.fileno()).st_size + 1).get_summary()
        if summary is None or summary.statistics is None:
            raise errors.Malformed(f"{path!r} has no summary with statistics",
                                   "index it: mcap recover")
        self._count = summary.statistics.message_count
        channels = sorted(summary.channels.values(), key=lambda channel: channel.id)
        names = _topics(path, channels, summary.schemas)
        self.topics: Sequence[Topic] = names
        self._numbers = {channel.id: next(number for number, topic in enumerate(names)
                                          if topic.name == channel.topic) for channel in channels}

    def _raw(self, found: Message) -> Raw:
        number = self._numbers.get(found.channel)
        if number is None:
            raise ValueError(f"its summary lacks channel {found.channel}, which the message at "
                             f"{found.at} is of")
        return Raw(number, found.log_ns, found.publish_ns, found.data, found.block, found.at)

    def messages(self) -> Iterator[Raw]:
        """See `log.Log`. They are counted."""
        count = 0
        with _failures(self._path):
            for found in self._file.messages():
                count += 1
                yield self._raw(found)
        if count != self._count:
            raise errors.Malformed(f"{self._path!r} holds {count} messages, and tells of "
                                   f"{self._count}", _RECOVER)

    def read(self, block: int, at: int) -> Raw:
        """See `log.Log`."""
        with _failures(self._path):
            return self._raw(self._file.read(block, at))


def _topics(path: str, channels: Sequence[Any], schemas: dict[int, Any]) -> list[Topic]:
    """Topics by name; several channels may share one."""
    made: dict[str, Topic] = {}
    for channel in channels:
        schema = schemas.get(channel.schema_id)
        kind = schema.name if schema else ""
        if kind.count("/") == 1:
            kind = kind.replace("/", "/msg/")
        ext = _ENDINGS.get(channel.message_encoding, "bin")
        text = schema.data.decode("utf-8", "replace") if schema else ""
        header = ext == "cdr" and _ros.has_header(kind, text)
        topic = Topic(channel.topic, kind, ext, header)
        if made.setdefault(channel.topic, topic) != topic:
            raise errors.UnsupportedData(
                f"{path!r}: topic {channel.topic} has messages of {made[channel.topic].type} and "
                f"of {kind}", "a topic that is packed has one type; filter the log: mcap filter")
    return list(made.values())
