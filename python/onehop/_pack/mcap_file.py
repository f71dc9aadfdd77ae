"""Messages of an MCAP file, one at a time, by the places where they lie.

What others know as reading in the order of time may need all of a file in memory: where it has no
chunks, or where each chunk holds a message of an early time. Here messages come as they lie, each
with its place, and are read again by that. In memory are a message, and chunks that are compressed,
up to a bound. Every length is checked before it is used. A summary is not needed, and not read.
"""
from __future__ import annotations

import os
import struct
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from .. import errors
from .input import need

MAGIC = b"\x89MCAP0\r\n"
_MESSAGE, _CHUNK, _DATA_END, _FOOTER = 0x05, 0x06, 0x0F, 0x02
_HEAD = struct.Struct("<BQ")
_MESSAGE_HEAD = struct.Struct("<HIQQ")
_CHUNK_HEAD = struct.Struct("<QQQII")   # ends with the length of the compression's name
_MOST_NAME = 64
_LARGEST = 1 << 30
"""Bytes of a message, or of a chunk that has to be decompressed."""
_KEPT_BYTES = 256 << 20
"""Of chunks that were decompressed: messages of one time lie in several."""
_PIECE = 1 << 20


class Message(NamedTuple):
    """A message.

    Attributes
    ----------
    channel : int
    log_ns, publish_ns : int
    data : bytes
    block : int
        Where the record of its chunk begins in the file, if that is compressed, else 0.
    at : int
        Where its own record begins: in the chunk, or in the file.
    """

    channel: int
    log_ns: int
    publish_ns: int
    data: bytes
    block: int
    at: int


class McapFile:
    """An MCAP file.

    Parameters
    ----------
    path : str
        For messages.
    file : binary file
        Kept.
    check : bool
        Checksums of chunks are looked at.

    Raises
    ------
    ValueError
        By all methods: what is wrong, without the file's name.
    Limit
        A message or a chunk is too large.
    Unsupported, UnsupportedData
        A chunk is compressed in a way that is not known here.
    """

    def __init__(self, path: str, file: BinaryIO, check: bool) -> None:
        self._path, self._file, self._check = path, file, check
        self._size = os.fstat(file.fileno()).st_size
        self._kept: OrderedDict[int, memoryview] = OrderedDict()
        self._kept_bytes = 0

    def messages(self) -> Iterator[Message]:
        """All messages, as they lie."""
        at = len(MAGIC)
        while True:
            kind, size = self._head(at, self._size)
            if kind in (_DATA_END, _FOOTER):
                return
            if kind == _MESSAGE:
                yield self._message(None, 0, at, size)
            elif kind == _CHUNK:
                yield from self._chunk(at, size)
            at += _HEAD.size + size

    def read(self, block: int, at: int) -> Message:
        """The message of a place."""
        data = self._block(block) if block else None
        kind, size = self._head(at, self._size if data is None else len(data), data)
        if kind != _MESSAGE:
            raise ValueError(f"there is no message at {at}")
        return self._message(data, block, at, size)

    def _chunk(self, block: int, size: int) -> Iterator[Message]:
        head = self._chunk_head(block, size)
        if head.compression:
            data = self._block(block)
            yield from self._within(data, block, 0, len(data))
        else:
            if self._check and head.crc and self._crc(head.begin, head.end) != head.crc:
                raise ValueError(f"the chunk at {block} has another checksum")
            yield from self._within(None, 0, head.begin, head.end)

    def _within(self, data: memoryview | None, block: int, at: int, end: int) -> Iterator[Message]:
        while at < end:
            kind, size = self._head(at, end, data)
            if kind == _MESSAGE:
                yield self._message(data, block, at, size)
            at += _HEAD.size + size

    def _bytes(self, data: memoryview | None, at: int, size: int) -> bytes:
        """Bytes of a chunk, or of the file."""
        if data is None:
            self._file.seek(at)
            found = self._file.read(size)
        else:
            found = bytes(data[at:at + size])
        if len(found) != size:
            raise ValueError(f"it ends within a record at {at}")
        return found

    def _head(self, at: int, end: int, data: memoryview | None = None) -> tuple[int, int]:
        """Kind and length of the record at a place; it ends before `end`."""
        kind, size = _HEAD.unpack(self._bytes(data, at, _HEAD.size))
        if at + _HEAD.size + size > end:
            raise ValueError(f"the record at {at} leaves what holds it")
        return kind, size

    def _message(self, data: memoryview | None, block: int, at: int, size: int) -> Message:
        if size < _MESSAGE_HEAD.size:
            raise ValueError(f"the message at {at} has {size} bytes")
        self._limit(f"message at {at}", size)
        begin = at + _HEAD.size
        head = self._bytes(data, begin, _MESSAGE_HEAD.size)
        channel, _, log_ns, publish_ns = _MESSAGE_HEAD.unpack(head)
        if max(log_ns, publish_ns) >= 1 << 63:
            raise ValueError(f"a time of the message at {at} is of 64 bits without sign")
        body = self._bytes(data, begin + _MESSAGE_HEAD.size, size - _MESSAGE_HEAD.size)
        return Message(channel, log_ns, publish_ns, body, block, at)

    def _limit(self, what: str, size: int) -> None:
        if size > _LARGEST:
            raise errors.Limit(f"{self._path!r}: the {what} has {size} bytes, and would have to be "
                               f"in memory; the most is {_LARGEST}",
                               "write it with smaller chunks: mcap compress --chunk-size 8388608")

    # ---- chunks

    def _chunk_head(self, block: int, size: int) -> _ChunkHead:
        begin = block + _HEAD.size
        if size < _CHUNK_HEAD.size:
            raise ValueError(f"the chunk at {block} has {size} bytes")
        _, _, whole, crc, name = _CHUNK_HEAD.unpack(self._bytes(None, begin, _CHUNK_HEAD.size))
        if name > _MOST_NAME or _CHUNK_HEAD.size + name + 8 > size:
            raise ValueError(f"the chunk at {block} is compressed by what has no name")
        rest = self._bytes(None, begin + _CHUNK_HEAD.size, name + 8)
        first, stored = begin + _CHUNK_HEAD.size + name + 8, int.from_bytes(rest[name:], "little")
        if first + stored > begin + size or (not name and stored != whole):
            raise ValueError(f"the chunk at {block} tells of {stored} bytes and of {whole}, and "
                             f"has {begin + size - first}")
        return _ChunkHead(rest[:name].decode("utf-8", "replace"), whole, crc, first, first + stored)

    def _block(self, block: int) -> memoryview:
        """A chunk, decompressed."""
        found = self._kept.get(block)
        if found is not None:
            self._kept.move_to_end(block)
            return found
        kind, size = self._head(block, self._size)
        if kind != _CHUNK:
            raise ValueError(f"there is no chunk at {block}")
        head = self._chunk_head(block, size)
        self._limit(f"chunk at {block}", max(head.size, head.end - head.begin))
        while self._kept and self._kept_bytes + head.size > _KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1])
        data = decompressed(self._path, head.compression,
                            self._bytes(None, head.begin, head.end - head.begin), head.size)
        if len(data) != head.size or (self._check and head.crc and zlib.crc32(data) != head.crc):
            raise ValueError(f"the chunk at {block} has another length or checksum")
        self._kept[block] = found = memoryview(data)
        self._kept_bytes += len(data)
        return found

    def _crc(self, begin: int, end: int) -> int:
        crc = 0
        for at in range(begin, end, _PIECE):
            crc = zlib.crc32(self._bytes(None, at, min(_PIECE, end - at)), crc)
        return crc


class _ChunkHead(NamedTuple):
    """What a chunk tells of itself, and where its records lie in the file."""

    compression: str
    size: int
    crc: int
    begin: int
    end: int


def decompressed(path: str, how: str, data: bytes, size: int | None = None) -> bytes:
    """What a frame holds; no more is made than is said, whatever the frame says.

    Parameters
    ----------
    path : str
        Of the file, for messages.
    how : {"zstd", "lz4"}
    data : bytes
        A frame.
    size : int or None
        Of the result; what is more is an error, or cut. None: as the frame says.

    Raises
    ------
    ValueError
    UnsupportedData
        Another way.
    """
    if how == "zstd":
        zstandard = need("zstandard", "reading a log that is compressed by zstd")
        told = zstandard.frame_content_size(data)
        most = _LARGEST if size is None else size
        if told > most or (size is not None and told not in (-1, size)):
            raise ValueError(f"zstd makes {told} bytes of what has {most}")
        return _made(zstandard.ZstdDecompressor().decompress(data, max_output_size=most)
                     if most else b"")
    if how == "lz4":
        lz4 = need("lz4.frame", "reading a log that is compressed by lz4")
        most = _LARGEST if size is None else size
        return _made(lz4.LZ4FrameDecompressor().decompress(data, max_length=most))
    raise errors.UnsupportedData(f"{path!r} is compressed by {how[:40]!r}, and not by zstd or lz4",
                                 "write it with one of these, or without")


def _made(data: Any) -> bytes:
    assert isinstance(data, bytes)
    return data
