"""Samples as Arrow IPC files whose buffers begin on pages.

pyarrow lays buffers 64 bytes apart at most. So the messages are pyarrow's, and their numbers are
made new: every buffer's place in its message, the body's length, and in the footer each block's
place. All of these are fixed-width integers in the flatbuffers, overwritten where they lie. A
reader uses the places that are written; a page-aligned file is as valid as any.

A row is a sample: ``__key__``, ``timestamp_ns``, ``episode``, ``stream``, ``rows``, and a column of
bytes for each field, null where a sample lacks it. Payloads are what a tar would hold.
"""
from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Any, NamedTuple

from .. import errors
from ..shards import Sample, ShardInfo
from .input import need, payload, reading

PAGE = 4096
BATCH_BYTES = 64 << 20
_WHY = "--format arrow"
_MAGIC = b"ARROW1\0\0"
_CONTINUES = b"\xff\xff\xff\xff"
_I32, _I64, _U16, _U32 = Struct("<i"), Struct("<q"), Struct("<H"), Struct("<I")
_PAIR = Struct("<qq")
_BLOCK, _BUFFER = 24, 16  # bytes of the structs Block and Buffer
_BODY_LENGTH, _HEADER, _BUFFERS, _FOOTER_BATCHES = 3, 2, 2, 3  # places of fields in their tables


# ---- flatbuffers, as far as numbers are overwritten ---------------------------------------------


def _field(data: bytearray, table: int, slot: int) -> int:
    """Where a table's field lies; 0 if it is left out."""
    vtable = table - _I32.unpack_from(data, table)[0]
    size = _U16.unpack_from(data, vtable)[0]
    at = 4 + 2 * slot
    offset = _U16.unpack_from(data, vtable + at)[0] if at < size else 0
    return table + offset if offset else 0


def _follow(data: bytearray, at: int) -> int:
    return at + int(_U32.unpack_from(data, at)[0])


def _vector(data: bytearray, table: int, slot: int) -> tuple[int, int]:
    """(where the elements begin, how many) of a vector of structs."""
    place = _field(data, table, slot)
    if not place:
        return 0, 0
    at = _follow(data, place)
    return at + 4, int(_U32.unpack_from(data, at)[0])


class _Message(NamedTuple):
    """A record batch as it will lie in the file, without the body's bytes."""

    metadata: bytes               # with its prefix, padded so that the body begins on a page
    pieces: list[tuple[int, Any]]  # (place in the body, buffer)
    body: int                     # its bytes


def _align(offset: int) -> int:
    return -(-offset // PAGE) * PAGE


def _message(batch: Any, at: int) -> _Message:
    """Lays out a batch whose message begins at a place of the file."""
    ipc = need("pyarrow.ipc", _WHY)
    written = ipc.read_message(batch.serialize())
    metadata, body = bytearray(written.metadata.to_pybytes()), memoryview(written.body)
    root = _follow(metadata, 0)
    header = _follow(metadata, _field(metadata, root, _HEADER))
    first, count = _vector(metadata, header, _BUFFERS)
    pieces, end = [], 0
    for place in range(first, first + count * _BUFFER, _BUFFER):
        offset, size = _PAIR.unpack_from(metadata, place)
        _I64.pack_into(metadata, place, end)
        if size:
            pieces.append((end, body[offset:offset + size]))
        end = _align(end + size)
    length = _field(metadata, root, _BODY_LENGTH)
    if not length:  # a batch without bytes
        if end:
            raise errors.Unsupported("this pyarrow writes messages without a body's length",
                                     "use another version of pyarrow")
    else:
        _I64.pack_into(metadata, length, end)
    total = _align(at + 8 + len(metadata)) - at
    prefix = _CONTINUES + _I32.pack(total - 8)
    return _Message(prefix + bytes(metadata) + bytes(total - 8 - len(metadata)), pieces, end)


def _frame(schema: Any, blocks: list[tuple[int, int, int]]) -> tuple[bytes, bytes]:
    """(what a file begins with, its footer) for a schema and record batches at (place, bytes of
    metadata, bytes of the body)."""
    pyarrow = need("pyarrow", _WHY)
    out = io.BytesIO()
    empty = pyarrow.RecordBatch.from_arrays(
        [pyarrow.array([], field.type) for field in schema], schema=schema)
    with need("pyarrow.ipc", _WHY).new_file(out, schema) as writer:
        for _ in blocks:
            writer.write_batch(empty)
    made = out.getvalue()
    size = _I32.unpack_from(made, len(made) - 10)[0]
    footer = bytearray(made[len(made) - 10 - size:len(made) - 10])
    first, count = _vector(footer, _follow(footer, 0), _FOOTER_BATCHES)
    if count != len(blocks):
        raise errors.Unsupported("this pyarrow writes a footer of another kind",
                                 "use another version of pyarrow")
    for number, (offset, metadata, body) in enumerate(blocks):
        at = first + number * _BLOCK
        _I64.pack_into(footer, at, offset)
        _I32.pack_into(footer, at + 8, metadata)
        _I64.pack_into(footer, at + 16, body)
    begins = 16 + _I32.unpack_from(made, 12)[0]  # magic, continuation, length, schema
    return made[:begins], bytes(footer) + _I32.pack(size) + _MAGIC[:6]


# ---- the file -----------------------------------------------------------------------------------


class ArrowShard:
    """An Arrow file, being written; as `shards.TarShard` to those who fill it.

    Parameters
    ----------
    path : str
    fields : iterable of str
        All fields that samples may have.
    """

    def __init__(self, path: str, fields: Iterable[str]) -> None:
        pyarrow = need("pyarrow", _WHY)
        self._path, self._partial = path, f"{path}.partial"
        self._fields = sorted(fields)
        self._schema = pyarrow.schema(
            [("__key__", pyarrow.string()), ("timestamp_ns", pyarrow.int64()),
             ("episode", pyarrow.string()), ("stream", pyarrow.string()),
             ("rows", pyarrow.int64()),
             *((field, pyarrow.large_binary()) for field in self._fields)])
        self._samples: list[tuple[Sample, dict[str, bytes]]] = []
        self._held = 0
        self._blocks: list[tuple[int, int, int]] = []
        self._counts = (0, 0, 0)  # samples, parts, bytes of payloads
        self._at = 0
        with reading(self._partial, "cannot write"):
            self._file = open(self._partial, "wb", buffering=0)
        self._write(_frame(self._schema, [])[0])

    def __enter__(self) -> ArrowShard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, data: Any) -> None:
        with reading(self._partial, "cannot write"):
            view = memoryview(data)
            while len(view):
                view = view[self._file.write(view):]
        self._at += memoryview(data).nbytes

    def add(self, sample: Sample) -> None:
        """Adds a sample; its payloads are read now."""
        payloads = {part.field: bytes(payload(part)) for part in sample.parts}
        self._samples.append((sample._replace(parts=()), payloads))
        nbytes = sum(map(len, payloads.values()))
        self._held += nbytes
        samples, parts, before = self._counts
        self._counts = (samples + 1, parts + len(payloads), before + nbytes)
        if self._held >= BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        pyarrow = need("pyarrow", _WHY)
        rows = self._samples
        columns = [[sample.key for sample, _ in rows], [sample.timestamp_ns for sample, _ in rows],
                   [sample.episode for sample, _ in rows], [sample.stream for sample, _ in rows],
                   [sample.rows for sample, _ in rows],
                   *([payloads.get(field) for _, payloads in rows] for field in self._fields)]
        batch = pyarrow.RecordBatch.from_arrays(
            [pyarrow.array(column, field.type) for column, field in zip(columns, self._schema)],
            schema=self._schema)
        message = _message(batch, self._at)
        self._blocks.append((self._at, len(message.metadata), message.body))
        self._write(message.metadata)
        begin = self._at
        for place, data in message.pieces:
            self._write(bytes(begin + place - self._at))
            self._write(data)
        self._write(bytes(begin + message.body - self._at))
        self._samples, self._held = [], 0

    def info(self) -> ShardInfo:
        """What it holds so far."""
        return ShardInfo(*self._counts, self._at, 0, 0, False)

    def finish(self) -> ShardInfo:
        """Ends the file and publishes it."""
        if self._samples or not self._blocks:
            self._flush()
        self._write(_CONTINUES + bytes(4))
        self._write(_frame(self._schema, self._blocks)[1])
        with reading(self._partial, "cannot write"):
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._partial, self._path)
            _sync_folder(os.path.dirname(self._path) or ".")
        self._partial = ""
        return self.info()

    def close(self) -> None:
        """Removes what was not published."""
        self._file.close()
        if self._partial:
            try:
                os.unlink(self._partial)
            except FileNotFoundError:
                pass
            self._partial = ""


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
