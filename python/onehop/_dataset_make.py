"""Rows of a group's buffer as tensors of their own: one class a framework.

Nothing that is made here refers to the buffer, which is filled again. On a GPU the copies are work
of the stream that is current when they are asked for.
"""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from . import _abi, _library, dtypes
from ._dataset_fields import itemsize
from ._dataset_source import array_at
from ._move import Buffer
from .arrays import Array
from .devices import Device

Int64s = npt.NDArray[np.int64]

_WIDTHS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}


def lowest_bit(number: int) -> int:
    """The greatest power of two that divides a number that is not 0."""
    return number & -number


class Memory:
    """A buffer of the library's, as long as it is there.

    Attributes
    ----------
    address, nbytes : int
    flat : tensor or array
        All of it, uint8.
    by_width : dict of int to tensor or array
        The same as integers of 1 to 8 bytes, made as asked for.
    """

    def __init__(self, address: int, nbytes: int, flat: Any) -> None:
        self.address, self.nbytes, self.flat = address, nbytes, flat
        self.by_width: dict[int, Any] = {1: flat}


class BufferRef(Buffer):
    """A buffer that is another's to free."""

    def __init__(self, handle: int) -> None:
        self.handle = ctypes.c_void_p(handle)
        info = _library.sized(_abi.BufferInfo)
        _library.ask("buffer_query", self.handle, ctypes.byref(info))
        self.nbytes = int(info.bytes)

    def close(self) -> None:
        """Leaves it."""
        self.handle = ctypes.c_void_p()


class Rows(Protocol):
    """Rows of a buffer, all of one length."""

    def take(self, first: int, last: int) -> Any:
        """[last - first, ...] of integers: some of them, one after the other."""


class Maker(Protocol):
    """What makes rows of one memory's: a GPU's, or the host's."""

    def memory(self, handle: int) -> Memory:
        """A buffer of the library's."""

    def check(self, dtype: str) -> None:
        """Raises UnsupportedData for a type that the framework cannot hold."""

    def rows(self, memory: Memory, begin: Int64s, nbytes: int) -> Rows:
        """Rows of nbytes bytes (not 0), N > 0, to be taken some at a time."""

    def packed(self, memory: Memory, begin: Int64s, nbytes: Int64s, align: int) -> Any:
        """uint8 [M]: rows one after the other, each from a multiple of align."""

    def typed(self, rows: Any, dtype: str, shape: Sequence[int]) -> Any:
        """The same bytes as an array of that type and shape."""

    def zeros(self, dtype: str, shape: Sequence[int]) -> Any:
        """An array of zeros."""

    def clear(self, rows: Any, which: Int64s) -> None:
        """Sets rows to 0."""

    def split(self, rows: Any, sizes: list[int]) -> list[Any]:
        """The array in pieces along the first dimension."""

    def index(self, array: npt.NDArray[Any]) -> Any:
        """A small array of numbers or bools, brought to the memory."""

    def padded(self, values: Any, begin: Int64s, counts: Int64s) -> Any:
        """[B, longest, ...] of rows begin to begin + count of values, zeros behind them."""


def _width(together: int, end: int, memory: Memory) -> int:
    """Bytes of the widest integer that all rows are made of: together are their places and lengths,
    end is where the last one ends."""
    width = lowest_bit(together | 8)
    return width if end <= memory.nbytes // width * width else 1


def _strides(begin: Int64s, width: int) -> int:
    """What divides all rows' places, so that they are rows of one matrix, in integers."""
    together = int(np.bitwise_or.reduce(begin))
    return (lowest_bit(together) if together else 4096) // width


class NumpyMaker:
    """numpy arrays in host memory."""

    def __init__(self) -> None:
        self._types: dict[str, Any] = {}

    def memory(self, handle: int) -> Memory:
        ref = BufferRef(handle)
        return Memory(ref.address, ref.nbytes, array_at(ref.address, (ref.nbytes,), "|u1"))

    def check(self, dtype: str) -> None:
        if dtype not in self._types:
            self._types[dtype] = dtypes.numpy_dtype(dtype, False, itemsize(dtype))

    def rows(self, memory: Memory, begin: Int64s, nbytes: int) -> Rows:
        return _HostRows(memory, begin, nbytes)

    def packed(self, memory: Memory, begin: Int64s, nbytes: Int64s, align: int) -> Any:
        places, total = _places(nbytes, align)
        made = np.empty(total, np.uint8)
        _move_rows(made.ctypes.data, places, memory.address, begin, nbytes)
        return made

    def typed(self, rows: Any, dtype: str, shape: Sequence[int]) -> Any:
        self.check(dtype)
        return rows.reshape(-1).view(self._types[dtype]).reshape(shape)

    def zeros(self, dtype: str, shape: Sequence[int]) -> Any:
        self.check(dtype)
        return np.zeros(shape, self._types[dtype])

    def clear(self, rows: Any, which: Int64s) -> None:
        rows[which] = 0

    def split(self, rows: Any, sizes: list[int]) -> list[Any]:
        made, first = [], 0
        for size in sizes:
            made.append(rows[first:first + size])
            first += size
        return made

    def index(self, array: npt.NDArray[Any]) -> Any:
        return array

    def padded(self, values: Any, begin: Int64s, counts: Int64s) -> Any:
        longest = int(counts.max(initial=0))
        made = np.zeros((len(counts), longest, *values.shape[1:]), values.dtype)
        for row, (first, count) in enumerate(zip(begin.tolist(), counts.tolist())):
            made[row, :count] = values[first:first + count]
        return made


class _HostRows:
    """[N, nbytes]: rows of host memory, in memory of numpy's."""

    def __init__(self, memory: Memory, begin: Int64s, nbytes: int) -> None:
        step = _strides(begin, 1)
        count = (memory.nbytes - nbytes) // step + 1
        whole = array_at(memory.address, (memory.nbytes,), "|u1")
        # One element a row: numpy moves each by one memmove.
        self._matrix: npt.NDArray[Any] = np.ndarray((count,), f"V{nbytes}", whole, 0, (step,))
        self._which, self._nbytes = begin // step, nbytes

    def take(self, first: int, last: int) -> npt.NDArray[np.uint8]:
        which = self._which[first:last]
        return self._matrix[which].view(np.uint8).reshape(len(which), self._nbytes)


class _TorchHostRows:
    """The same as tensors; torch would wake threads of its own for it."""

    def __init__(self, rows: _HostRows, from_numpy: Callable[[Any], Any]) -> None:
        self._rows, self._from_numpy = rows, from_numpy

    def take(self, first: int, last: int) -> Any:
        return self._from_numpy(self._rows.take(first, last))


class _PinnedRows:
    """The same in pinned memory."""

    def __init__(self, maker: TorchMaker, memory: Memory, begin: Int64s, nbytes: int) -> None:
        self._maker, self._memory, self._begin, self._nbytes = maker, memory, begin, nbytes

    def take(self, first: int, last: int) -> Any:
        begin = self._begin[first:last]
        sizes = np.full(len(begin), self._nbytes)
        return self._maker.packed(self._memory, begin, sizes, 1).view(-1, self._nbytes)


class _DeviceRows:
    """Rows of a matrix on a GPU; which they are is brought there as they are taken, in 32 bits where
    they fit."""

    def __init__(self, matrix: Any, which: Int64s, index: Callable[[npt.NDArray[Any]], Any]) -> None:
        fits = int(which.max()) < 1 << 31
        self._which: npt.NDArray[Any] = which.astype(np.int32) if fits else which
        self._matrix, self._index = matrix, index

    def take(self, first: int, last: int) -> Any:
        return self._matrix.index_select(0, self._index(self._which[first:last]))


def _places(nbytes: Int64s, align: int) -> tuple[Int64s, int]:
    """Where rows begin that lie one after the other, each from a multiple of align; and the end."""
    taken = -(-nbytes // align) * align
    ends = np.cumsum(taken)
    return ends - taken, int(ends[-1]) if len(ends) else 0


def _move_rows(to: int, places: Int64s, memory: int, begin: Int64s, nbytes: Int64s) -> None:
    memmove = ctypes.memmove
    for place, first, count in zip(places.tolist(), begin.tolist(), nbytes.tolist()):
        memmove(to + place, memory + first, count)


class TorchMaker:
    """torch tensors.

    Parameters
    ----------
    device : Device
        Where the memory is.
    pinned : bool
        In host memory: whether tensors are made in pinned memory, for copies to a GPU.
    """

    def __init__(self, device: Device, pinned: bool = False) -> None:
        import torch

        self._torch: Any = torch
        self._on_host = device.kind == "cpu"
        self._pinned = pinned
        self._device = device
        self._place = torch.device(str(device))
        self._types: dict[str, Any] = {}

    def memory(self, handle: int) -> Memory:
        ref = BufferRef(handle)
        if not ref.nbytes:
            return Memory(0, 0, self._torch.empty(0, dtype=self._torch.uint8, device=self._place))
        if self._on_host:
            flat = self._torch.from_numpy(array_at(ref.address, (ref.nbytes,), "|u1"))
        else:
            whole = Array(ref, 0, "U8", (ref.nbytes,), ref.nbytes, 1, 1, self._device)
            flat = self._torch.from_dlpack(whole)
        return Memory(ref.address, ref.nbytes, flat)

    def check(self, dtype: str) -> None:
        if dtype not in self._types:
            self._types[dtype] = dtypes.torch_dtype(dtype, False, itemsize(dtype))

    def _wide(self, memory: Memory, width: int) -> Any:
        found = memory.by_width.get(width)
        if found is None:
            kind = getattr(self._torch, _WIDTHS[width])
            found = memory.flat[:memory.nbytes // width * width].view(kind)
            memory.by_width[width] = found
        return found

    def _empty(self, shape: Sequence[int], dtype: Any) -> Any:
        return self._torch.empty(shape, dtype=dtype, device=self._place, pin_memory=self._pinned)

    def rows(self, memory: Memory, begin: Int64s, nbytes: int) -> Rows:
        if self._pinned:
            return _PinnedRows(self, memory, begin, nbytes)
        if self._on_host:
            return _TorchHostRows(_HostRows(memory, begin, nbytes), self._torch.from_numpy)
        together = int(np.bitwise_or.reduce(begin)) | nbytes
        width = _width(together, int(begin.max()) + nbytes, memory)
        step, wide = _strides(begin, width), self._wide(memory, width)
        columns = nbytes // width
        matrix = wide.as_strided(((wide.numel() - columns) // step + 1, columns), (step, 1))
        return _DeviceRows(matrix, begin // (step * width), self.index)

    def packed(self, memory: Memory, begin: Int64s, nbytes: Int64s, align: int) -> Any:
        places, total = _places(nbytes, align)
        if self._on_host:
            made = self._empty((total,), self._torch.uint8)
            _move_rows(made.data_ptr(), places, memory.address, begin, nbytes)
            return made
        if not total:
            return self._empty((0,), self._torch.uint8)
        taken = -(-nbytes // align) * align
        if int((begin + taken).max()) > memory.nbytes:
            pieces = self._pieces_and_fill(memory, begin, nbytes, taken)
        else:
            pieces = self._pieces(memory, begin, taken)
        made = pieces[0].clone() if len(pieces) == 1 else self._torch.cat(pieces)
        return made.view(self._torch.uint8)

    def _pieces_and_fill(self, memory: Memory, begin: Int64s, nbytes: Int64s,
                         taken: Int64s) -> list[Any]:
        """As `_pieces`, of rows of which one cannot be taken longer than it is."""
        fill, made = memory.flat.new_zeros(int((taken - nbytes).max())), []
        for at, many, whole in zip(begin.tolist(), nbytes.tolist(), taken.tolist()):
            made += [memory.flat[at:at + many], fill[:whole - many]]
        return made

    def _pieces(self, memory: Memory, begin: Int64s, nbytes: Int64s) -> list[Any]:
        """Views of the memory; those of no bytes are left out."""
        some = nbytes > 0
        begin, nbytes = begin[some], nbytes[some]
        together = int(np.bitwise_or.reduce(begin | nbytes))
        width = _width(together, int((begin + nbytes).max()), memory)
        wide, first, count = self._wide(memory, width), begin // width, nbytes // width
        order = np.argsort(first, kind="stable")
        sorted_first, sorted_count = first[order], count[order]
        ends = sorted_first + sorted_count
        if (sorted_first[1:] < ends[:-1]).any():  # a sample that is there twice
            narrow = wide.narrow
            return [narrow(0, at, many) for at, many in zip(first.tolist(), count.tolist())]
        # One call cuts all: a piece costs a third of what a slice does.
        cuts = np.empty(2 * len(first) + 1, np.int64)
        cuts[1::2] = sorted_count
        cuts[0] = sorted_first[0]
        cuts[2:-1:2] = sorted_first[1:] - ends[:-1]
        cuts[-1] = wide.numel() - ends[-1]
        cut = self._torch.split_with_sizes(wide, cuts.tolist())[1::2]
        made: list[Any] = [None] * len(first)
        for place, piece in zip(order.tolist(), cut):
            made[place] = piece
        return made

    def typed(self, rows: Any, dtype: str, shape: Sequence[int]) -> Any:
        self.check(dtype)
        return rows.reshape(-1).view(self._types[dtype]).view(*shape) if len(shape) else \
            rows.reshape(-1).view(self._types[dtype]).reshape(())

    def zeros(self, dtype: str, shape: Sequence[int]) -> Any:
        self.check(dtype)
        return self._torch.zeros(shape, dtype=self._types[dtype], device=self._place,
                                 pin_memory=self._pinned)

    def clear(self, rows: Any, which: Int64s) -> None:
        rows.index_fill_(0, self.index(which), 0)

    def split(self, rows: Any, sizes: list[int]) -> list[Any]:
        # What it makes are no views, whose version counter all would share.
        return list(self._torch.unsafe_split_with_sizes(rows, sizes))

    def index(self, array: npt.NDArray[Any]) -> Any:
        made = self._torch.from_numpy(np.ascontiguousarray(array))
        # The driver takes what is not pinned along in its own memory. Pinning it first costs more,
        # and such a copy waits for those of the link that were given before.
        return made if self._on_host else made.to(self._place, non_blocking=True)

    def padded(self, values: Any, begin: Int64s, counts: Int64s) -> Any:
        torch, longest = self._torch, int(counts.max(initial=0))
        shape = (len(counts), longest, *values.shape[1:])
        if not values.shape[0] or not longest:
            return torch.zeros(shape, dtype=values.dtype, device=values.device)
        steps = np.arange(longest, dtype=np.int64)
        outside = steps >= counts[:, None]
        which = np.where(outside, 0, begin[:, None] + steps)
        made = values.index_select(0, self.index(which.reshape(-1)))
        hidden = self.index(outside.reshape(-1))
        hidden = hidden.view(-1, *(1,) * (values.dim() - 1))
        return made.masked_fill_(hidden, 0).view(shape)
