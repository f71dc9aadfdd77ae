"""A shard's index in Python, as ``docs/format.md`` has it: for packing, where no dataset is open.

Sections are checked against their checksums when the index is opened; nothing else of the C library
is used.
"""
from __future__ import annotations

import os
from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

from . import _library, errors
from .shards import Part

NO_TIME = -2 ** 63
NO_NAME = 2 ** 32 - 1
_HEADER = Struct("<8sIIQQQQQQIIII44xI")
_ENTRY = Struct("<IIQQQ")
_SAMPLE, _PART, _NAME = Struct("<QQ"), Struct("<QQIHHII"), Struct("<II")
_TYPE, _TIME, _PART_TIME = Struct("<HHI8Q"), Struct("<qIIII"), Struct("<q")
_DTYPES = (None, "BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F16", "BF16", "F32",
           "F64", "C64", "F8_E4M3", "F8_E5M2")
_SAMPLES, _KEYS, _PARTS, _FIELDS, _NAMES, _TYPES, _TIMES, _EPISODES, _STREAMS, _PART_TIMES = range(
    1, 11)


class Member(NamedTuple):
    """A part as the index has it: `part.source` is None."""

    part: Part
    offset: int
    size: int
    crc32c: int


class Entry(NamedTuple):
    """A sample as the index has it."""

    key: str
    members: tuple[Member, ...]
    timestamp_ns: int | None
    episode: str | None
    stream: str | None
    rows: int


def _crc(data: Any) -> int:
    whole = bytes(data)
    return int(_library.run("crc32c", 0, whole, len(whole)))


class ShardIndex:
    """An index, read and checked.

    Parameters
    ----------
    path : str
        Of the index file.

    Attributes
    ----------
    shard_bytes, tar_end, member_count, samples, flags, alignment, align : int
        As in the header.

    Raises
    ------
    Malformed
        A checksum or a bound is wrong.
    UnsupportedData
        Of another version.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        with open(path, "rb") as file:
            self._data = memoryview(file.read())
        try:
            self._open()
        except (IndexError, ValueError, KeyError, StructError) as error:
            raise self._malformed(str(error)) from error

    def _malformed(self, what: str) -> errors.Malformed:
        return errors.Malformed(f"the index {self._path!r} is damaged: {what}",
                                "make it anew with onehop index --replace")

    def _open(self) -> None:
        if len(self._data) < _HEADER.size:
            raise ValueError("it is cut")
        (magic, version, head, nbytes, self.shard_bytes, self.tar_end, self.member_count,
         self.samples, _, sections, self.flags, self.alignment, self.align, crc
         ) = _HEADER.unpack_from(self._data)
        if magic != b"ONEHOPIX" or head != _HEADER.size or nbytes != len(self._data):
            raise ValueError("its header is none, or it is cut")
        if version != 1:
            raise errors.UnsupportedData(f"the index {self._path!r} is of version {version}",
                                         "update onehop, or make it anew with onehop index")
        directory = self._data[head:head + sections * _ENTRY.size]
        if _crc(bytes(self._data[:_HEADER.size - 4]) + bytes(directory)) != crc:
            raise ValueError("the header's checksum is another")
        self._sections: dict[int, memoryview] = {}
        for kind, want, offset, size, _ in _ENTRY.iter_unpack(directory):
            section = self._data[offset:offset + size]
            if len(section) != size or _crc(section) != want:
                raise ValueError(f"the checksum of section {kind} is another")
            self._sections[kind] = section
        self.fields = self._texts(_FIELDS)
        self._episodes, self._streams = self._texts(_EPISODES), self._texts(_STREAMS)
        self._types = [(_DTYPES[row[0]], tuple(row[3:3 + row[1]]), row[2])
                       for row in _TYPE.iter_unpack(self._sections.get(_TYPES, b""))]

    def _texts(self, kind: int) -> list[str]:
        names = self._sections[_NAMES]
        return [bytes(names[at:at + size]).decode()
                for at, size in _NAME.iter_unpack(self._sections.get(kind, b""))]

    def entries(self, begin: int = 0, end: int | None = None) -> Iterator[Entry]:
        """Samples in the shard's order, all or those from begin up to end."""
        try:
            for number in range(begin, self.samples if end is None else end):
                yield self._entry(number)
        except (IndexError, ValueError, StructError) as error:
            raise self._malformed(str(error)) from error

    def _entry(self, number: int) -> Entry:
        samples, times = self._sections[_SAMPLES], self._sections.get(_TIMES)
        first, key = _SAMPLE.unpack_from(samples, number * _SAMPLE.size)
        end, key_end = _SAMPLE.unpack_from(samples, (number + 1) * _SAMPLE.size)
        name = bytes(self._sections[_KEYS][key:key_end]).decode()
        members = tuple(self._member(index) for index in range(first, end))
        if times is None:
            return Entry(name, members, None, None, None, 1)
        time_ns, episode, stream, rows, _ = _TIME.unpack_from(times, number * _TIME.size)
        return Entry(name, members, None if time_ns == NO_TIME else time_ns,
                     None if episode == NO_NAME else self._episodes[episode],
                     None if stream == NO_NAME else self._streams[stream], rows)

    def _member(self, index: int) -> Member:
        offset, size, crc, field, _, kind, _ = _PART.unpack_from(self._sections[_PARTS],
                                                                 index * _PART.size)
        if offset + size > self.shard_bytes:
            raise ValueError(f"part {index} leaves the shard")
        dtype, shape, begins = self._types[kind - 1] if kind else (None, (), 0)
        times = self._sections.get(_PART_TIMES)
        time_ns = NO_TIME if times is None else _PART_TIME.unpack_from(times, 8 * index)[0]
        return Member(Part(self.fields[field], None, dtype, shape, begins,
                           None if time_ns == NO_TIME else time_ns), offset, size, crc)


def side_path(shard: str) -> str:
    """Where a shard's index lies."""
    return f"{os.fspath(shard)}.onehop"
