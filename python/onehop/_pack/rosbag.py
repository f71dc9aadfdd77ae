"""rosbag2 recordings as inputs of ``onehop pack``: opened by the package rosbags, and read from the
files that it names, by place."""
from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

from .. import _ros, errors
from .input import InputOptions, digest_of, need, reading
from .log import LogInput, Raw, Topic, stem
from .mcap_file import McapFile, Message, decompressed

METADATA = "metadata.yaml"
_WORD = b"rosbag2_bagfile_information"
_FILE_BIT = 48
"""From here on, a block has the number of its file."""


def accepts(path: str, options: InputOptions) -> bool:
    """A folder with the metadata of a recording, or a file that belongs to one."""
    if not os.path.isdir(path):
        return path.endswith((".db3", ".bag"))
    metadata = os.path.join(path, METADATA)
    if not os.path.isfile(metadata):
        return False
    with reading(metadata), open(metadata, "rb") as file:
        return _WORD in file.read(4096)


def open_input(path: str, options: InputOptions) -> LogInput:
    """Looks at the recording; see `log`."""
    if path.endswith(".bag"):
        raise errors.UnsupportedData(f"{path!r} is a bag of ROS 1",
                                     f"convert it: rosbags-convert --src {path} --dst FOLDER")
    if not os.path.isdir(path):
        raise errors.InvalidArgument(f"{path!r} is a part of a rosbag2 recording",
                                     f"name the folder that has its {METADATA}")
    need("rosbags.rosbag2", "packing rosbag2")
    return LogInput(BagSource(os.path.abspath(path)), stem(path), options)


class BagSource(NamedTuple):
    """See `log.Source`."""

    path: str
    kind: str = "rosbag2"
    has_publish: bool = False

    def digest(self) -> str:
        with reading(self.path):
            files = sorted(os.scandir(self.path), key=lambda entry: entry.name)
            return digest_of(word for entry in files for word in (
                entry.path, entry.stat().st_size, entry.stat().st_mtime_ns))

    @contextmanager
    def open(self, check: bool) -> Iterator[BagLog]:
        with reading(self.path):
            with _failures(self.path):
                reader = need("rosbags.rosbag2", "packing rosbag2").Reader(Path(self.path))
                reader.open()
            log = None
            try:
                with _failures(self.path):
                    log = BagLog(self.path, reader, check)
                yield log
            finally:
                if log is not None:
                    log.close()
                reader.close()


@contextmanager
def _failures(path: str) -> Iterator[None]:
    """What the package raises, as an error of ours; of damaged files it raises all sorts."""
    try:
        yield
    except (errors.OnehopError, OSError):
        raise
    except MemoryError as error:
        raise errors.Malformed(f"{path!r} tells of records larger than memory", "make it anew"
                               ) from error
    except Exception as error:
        words = str(error) or type(error).__name__
        raise errors.Malformed(f"{path!r} is no whole rosbag2: {words}",
                               "make it anew, or mend it: ros2 bag reindex") from error


class BagLog:
    """See `log.Log`. What the package opened is read by what is in its files: the package
    gives messages by time alone, not by place."""

    def __init__(self, path: str, reader: Any, check: bool) -> None:
        self._path, self._count = path, reader.message_count
        self.topics: list[Topic] = []
        self._numbers: dict[str, int] = {}
        for connection in reader.connections:
            text = connection.msgdef.data
            ext = connection.ext.serialization_format or "cdr"
            topic = Topic(connection.topic, connection.msgtype, ext,
                          ext == "cdr" and _ros.has_header(connection.msgtype, text))
            number = self._numbers.setdefault(connection.topic, len(self.topics))
            if number == len(self.topics):
                self.topics.append(topic)
            elif self.topics[number] != topic:
                raise errors.UnsupportedData(
                    f"{path!r}: topic {topic.name} has messages of {self.topics[number].type} and "
                    f"of {topic.type}", "a topic that is packed has one type")
        by_message = reader.compression_mode == "message"
        self._files = [self._file(storage, by_message, check)
                       for storage in getattr(reader, "storage", reader).storages]

    def _file(self, storage: Any, by_message: bool, check: bool) -> _Messages:
        numbers = {connection.id: self._numbers[connection.topic]
                   for connection in storage.connections if connection.topic in self._numbers}
        kind = _Mcap if hasattr(storage, "chunks") else _Sqlite
        return kind(str(storage.path), numbers, by_message, check)

    def close(self) -> None:
        """Closes its files."""
        for file in self._files:
            file.close()

    def messages(self) -> Iterator[Raw]:
        """See `log.Log`. They are counted."""
        count = 0
        with _failures(self._path):
            for number, file in enumerate(self._files):
                for raw in file.messages():
                    count += 1
                    yield raw._replace(block=raw.block | number << _FILE_BIT)
        if count != self._count:
            raise errors.Malformed(f"{self._path!r} holds {count} messages, and tells of "
                                   f"{self._count}", "mend it: ros2 bag reindex")

    def read(self, block: int, at: int) -> Raw:
        """See `log.Log`."""
        with _failures(self._path):
            file = self._files[block >> _FILE_BIT]
            return file.read(block & (1 << _FILE_BIT) - 1, at)._replace(block=block)


class _Messages(Protocol):
    """A file of a recording; topics are numbered as the recording's."""

    def messages(self) -> Iterator[Raw]: ...

    def read(self, block: int, at: int) -> Raw: ...

    def close(self) -> None: ...


class _Mcap:
    """A file by the storage plugin mcap; see `_Messages`."""

    def __init__(self, path: str, numbers: dict[int, int], by_message: bool, check: bool) -> None:
        self._path, self._numbers, self._by_message = path, numbers, by_message
        self._data = open(path, "rb")
        self._file = McapFile(path, self._data, check)

    def close(self) -> None:
        self._data.close()

    def messages(self) -> Iterator[Raw]:
        for found in self._file.messages():
            yield self._raw(found)

    def read(self, block: int, at: int) -> Raw:
        return self._raw(self._file.read(block, at))

    def _raw(self, found: Message) -> Raw:
        number, data = self._numbers.get(found.channel), found.data
        if number is None:
            raise ValueError(f"the metadata lack channel {found.channel} of {self._path!r}")
        if self._by_message:
            data = decompressed(self._path, "zstd", data)
        return Raw(number, found.log_ns, found.log_ns, data, found.block, found.at)


class _Sqlite:
    """A file by the storage plugin sqlite3: `at` is a row's number; see `_Messages`."""

    _COLUMNS = "SELECT rowid, topic_id, timestamp, data FROM messages"

    def __init__(self, path: str, numbers: dict[int, int], by_message: bool, check: bool) -> None:
        self._path, self._numbers, self._by_message = path, numbers, by_message
        self._base = sqlite3.connect(f"file:{quote(path)}?immutable=1", uri=True)

    def close(self) -> None:
        self._base.close()

    def messages(self) -> Iterator[Raw]:
        for row in self._base.execute(f"{self._COLUMNS} ORDER BY rowid"):
            yield self._raw(*row)

    def read(self, block: int, at: int) -> Raw:
        for row in self._base.execute(f"{self._COLUMNS} WHERE rowid = ?", (at,)):
            return self._raw(*row)
        raise ValueError(f"{self._path!r} has no message {at}")

    def _raw(self, at: int, topic: object, log_ns: object, data: object) -> Raw:
        number = self._numbers.get(topic) if isinstance(topic, int) else None
        if number is None or not isinstance(log_ns, int) or not isinstance(data, bytes):
            raise ValueError(f"message {at} of {self._path!r} has no topic, time or bytes")
        if self._by_message:
            data = decompressed(self._path, "zstd", data)
        return Raw(number, log_ns, log_ns, data, 0, at)
