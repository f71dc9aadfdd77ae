"""Verification: every byte on the device against an independent read of the file."""
from __future__ import annotations

import math
import os
from collections.abc import Iterator
from types import TracebackType

from . import errors
from ._move import Buffer
from .model import Item, Model

_PIECE = 16 << 20


def file_rows(item: Item) -> Iterator[tuple[int, int]]:
    """Offset and bytes, in its file, of each contiguous run of the item's bytes."""
    if item.split_dim < 0:
        yield item.file_offset, item.nbytes
        return
    dim, whole = item.split_dim, item.whole_shape

    def inner(extent: int) -> int:
        """Bytes of that many indexes of the split dimension and all inside them."""
        elements = extent * math.prod(whole[dim + 1:])
        return elements // item.block_elements * item.block_bytes

    stride, row_bytes = inner(whole[dim]), inner(item.shape[dim])
    begin = item.file_offset + inner(item.split_begin)
    for row in range(math.prod(whole[:dim])):
        yield begin + row * stride, row_bytes


class Reader:
    """Reads a model's files by itself, and compares."""

    def __init__(self, model: Model) -> None:
        self._paths = model.files
        self._open: dict[int, int] = {}

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)

    def _descriptor(self, file: int) -> int:
        if file not in self._open:
            self._open[file] = os.open(self._paths[file], os.O_RDONLY | os.O_CLOEXEC)
        return self._open[file]

    def _read(self, file: int, offset: int, nbytes: int) -> bytearray:
        data = bytearray(nbytes)
        view, done = memoryview(data), 0
        while done < nbytes:
            got = os.preadv(self._descriptor(file), [view[done:]], offset + done)
            if not got:
                raise errors.Mismatch(f"{self._paths[file]}: ends at byte {offset + done}",
                                      "load it again once nothing writes to it")
            done += got
        return data

    def compare(self, item: Item, buffer: Buffer, place: int) -> None:
        """Compares the item's bytes, which lie at place in the buffer.

        Raises
        ------
        Mismatch
            It names the tensor.
        """
        for offset, nbytes in file_rows(item):
            for first in range(0, nbytes, _PIECE):
                count = min(_PIECE, nbytes - first)
                want = self._read(item.file, offset + first, count)
                if buffer.read(place + first, count) != want:
                    raise errors.Mismatch(
                        f"{self._paths[item.file]}: tensor {item.name!r} differs from the file "
                        f"within bytes {offset + first} to {offset + first + count}",
                        "load it again; if that repeats, look for failing memory")
            place += nbytes
