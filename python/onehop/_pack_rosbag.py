"""rosbag2 recordings as inputs of ``onehop pack``, by the package rosbags."""
from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from . import _ros, errors
from ._pack_input import InputOptions, digest_of, need, reading
from ._pack_log import LogInput, Raw, Topic, stem

METADATA = "metadata.yaml"
_WORD = b"rosbag2_bagfile_information"


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
    """Looks at the recording; see `_pack_log`."""
    if path.endswith(".bag"):
        raise errors.UnsupportedData(f"{path!r} is a bag of ROS 1",
                                     f"convert it: rosbags-convert --src {path} --dst FOLDER")
    if not os.path.isdir(path):
        raise errors.InvalidArgument(f"{path!r} is a part of a rosbag2 recording",
                                     f"name the folder that has its {METADATA}")
    need("rosbags.rosbag2", "packing rosbag2")
    return LogInput(BagSource(os.path.abspath(path)), stem(path), options)


class BagSource(NamedTuple):
    """See `_pack_log.Source`."""

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
            try:
                with _failures(self.path):
                    log = BagLog(self.path, reader)
                yield log
            finally:
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
    """See `_pack_log.Log`."""

    def __init__(self, path: str, reader: Any) -> None:
        self._path, self._reader = path, reader
        self._count = reader.message_count
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

    def messages(self, topics: set[int], begin_ns: int | None, end_ns: int | None
                 ) -> Iterator[Raw]:
        """See `_pack_log.Log`. If all are asked for, they are counted."""
        wanted = [connection for connection in self._reader.connections
                  if self._numbers[connection.topic] in topics]
        count = 0
        with _failures(self._path):
            for connection, log_ns, data in self._reader.messages(wanted, begin_ns, end_ns):
                count += 1
                if not isinstance(log_ns, int) or not isinstance(data, bytes):
                    raise ValueError(f"a message of {connection.topic} has no time, or no bytes")
                yield Raw(self._numbers[connection.topic], log_ns, log_ns, data)
        if begin_ns is None and len(topics) == len(self.topics) and count != self._count:
            raise errors.Malformed(f"{self._path!r} holds {count} messages, and tells of "
                                   f"{self._count}", "mend it: ros2 bag reindex")
