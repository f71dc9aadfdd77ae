"""Where bytes land, and the tensors that are made of it: one class a framework.

A framework allocates memory in its own way (torch: its caching allocator, so that torch counts it),
names its address for the C library, and makes tensors of pieces of it. Making is separate from
moving, so that it overlaps the transfer: a tensor is good once its bytes have landed.

To add a framework, write the methods of `Framework` and a line in `framework`.
"""
from __future__ import annotations

import ctypes
import importlib.util
import mmap
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

from . import arrays, dtypes, errors
from ._move import Buffer
from ._runtime import Runtime
from .devices import HOST, Device, DeviceInput, parse
from .model import Item

_HUGE_PAGE = 2 << 20


class Memory(NamedTuple):
    """Memory of a framework's.

    Attributes
    ----------
    address : int
        0 if it is empty.
    nbytes : int
    owner : object
        Keeps it; the framework's own type.
    """

    address: int
    nbytes: int
    owner: Any

    def buffer(self, runtime: Runtime, device: Device) -> Buffer:
        """It as the C library's buffer, to be closed before the memory goes."""
        if isinstance(self.owner, Buffer):
            return self.owner
        return Buffer(runtime, device.name, self.nbytes, self.address)


class Framework(Protocol):
    """What a load needs of a framework.

    Attributes
    ----------
    name : str
    device : Device
        Where tensors are made.
    """

    name: str
    device: Device

    def allocate(self, nbytes: int) -> Memory:
        """Memory on the device, aligned to 64 bytes at least; its contents are undefined."""

    def check(self, items: Sequence[Item]) -> None:
        """Raises UnsupportedData for a type that the framework cannot hold."""

    def tensors(self, items: Sequence[Item], memory: Memory, begin: int) -> list[Any]:
        """A tensor of each item; it lies at its arena_offset less begin in the memory."""

    def stream(self) -> int | None:
        """The CUDA stream whose work comes before the first byte; None for none."""

    def finish(self, tensors: list[Any]) -> list[Any]:
        """The tensors as the caller gets them, once their bytes have landed."""


@cache
def _madvise() -> Any:
    function = ctypes.CDLL(None, use_errno=True).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


def advise_huge(address: int, nbytes: int) -> None:
    """Asks for huge pages, which the kernel fills several times faster. Only advice."""
    if nbytes < 2 * _HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    begin = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    _madvise()(begin, end - begin, mmap.MADV_HUGEPAGE)


def _runs(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """The items in runs that lie end to end and differ in no more than their first dimension, so
    that one call cuts a run: eight times as quick as a call or two for each tensor."""
    begin = 0
    for index in range(1, len(items) + 1):
        if index < len(items):
            last, item = items[index - 1], items[index]
            if (last.arena_offset + last.nbytes == item.arena_offset and last.dtype == item.dtype
                    and last.shape[1:] == item.shape[1:] and item.shape and last.shape
                    and item.nbytes and last.nbytes and item.block_elements == 1):
                continue
        yield items[begin:index]
        begin = index


class TorchFramework:
    """torch tensors, each with a storage offset in the memory's one storage, none a view.

    Parameters
    ----------
    device : Device
        What the C library does not know ("mps", "xpu", ...) is loaded to the host and moved.
    raw : bool
        Types that this torch lacks become unsigned integers of the same width.
    """

    name = "torch"

    def __init__(self, device: Device, raw: bool = False) -> None:
        import torch

        self.device = device if device.kind in ("cpu", "cuda") else HOST
        self._goes_to = device
        self._torch = torch
        self._raw = raw
        self._place = torch.device(str(self.device))
        self._types: dict[str, tuple[Any, int] | None] = {}

    def allocate(self, nbytes: int) -> Memory:
        owner = self._torch.empty(nbytes, dtype=self._torch.uint8, device=self._place)
        if self.device is HOST:
            advise_huge(owner.data_ptr(), nbytes)
        return Memory(owner.data_ptr(), nbytes, owner)

    def check(self, items: Sequence[Item]) -> None:
        for item in items:
            if item.dtype not in self._types:
                self._types[item.dtype] = self._type_of(item)

    def _type_of(self, item: Item) -> tuple[Any, int] | None:
        """torch's dtype and its bytes; None for packed types, whose tensors differ in shape."""
        if item.block_elements > 1:
            return None
        return (dtypes.torch_dtype(item.dtype, self._raw, item.block_bytes), item.block_bytes)

    def _packed(self, item: Item) -> tuple[Any, tuple[int, ...]]:
        """Type and shape of a tensor of a packed type."""
        shape = dtypes.raw_shape(item.shape, item.block_elements, item.block_bytes)
        dtype = getattr(self._torch, dtypes.TORCH.get(item.dtype, ""), None)
        if dtype is None or self._raw or len(shape) != len(item.shape):
            dtype = self._torch.uint8
        return dtype, shape

    def tensors(self, items: Sequence[Item], memory: Memory, begin: int) -> list[Any]:
        self.check(items)
        bytes_, storage = memory.owner, memory.owner.untyped_storage()
        empties: dict[Any, Any] = {}
        made: list[Any] = []
        for run in _runs(items):
            item = run[0]
            known, shape, offset = self._types[item.dtype], item.shape, item.arena_offset - begin
            if known:
                dtype, itemsize = known
            else:
                (dtype, shape), itemsize = self._packed(item), 1
            # Neither way makes a view, whose version counter all tensors would share.
            if len(run) > 1:
                end = run[-1].arena_offset + run[-1].nbytes - begin
                rows = bytes_[offset:end].view(dtype).view(-1, *shape[1:])
                made += self._torch.unsafe_split_with_sizes(rows, [one.shape[0] for one in run])
                continue
            empty = empties.get(dtype)
            if empty is None:
                # new_empty() is the quickest way to an empty tensor.
                like: Any = self._torch.empty(0, dtype=dtype, device=self._place)
                empty = empties[dtype] = like.new_empty
            made.append(empty(0).set_(storage, offset // itemsize, shape))
        return made

    def stream(self) -> int | None:
        if self.device.kind != "cuda":
            return None
        return int(self._torch.cuda.current_stream(self._place).cuda_stream)

    def finish(self, tensors: list[Any]) -> list[Any]:
        if self._goes_to.kind == self.device.kind:
            return tensors
        return [tensor.to(str(self._goes_to)) for tensor in tensors]


class NumpyFramework:
    """numpy arrays, views of the memory's one array of bytes.

    Parameters
    ----------
    device : Device
        The host.
    raw : bool
        Types that numpy itself lacks (BF16, F8) become unsigned integers of the same width; else
        the ml_dtypes package names them.

    Raises
    ------
    NoDevice
        The device is not the host.
    """

    name = "numpy"

    def __init__(self, device: Device, raw: bool = False) -> None:
        import numpy

        if device.kind != "cpu":
            raise errors.NoDevice(f"Device {device} is not supported for framework numpy",
                                  'use device="cpu", or framework "torch" or "array"')
        self.device = device
        self._numpy = numpy
        self._raw = raw
        self._types: dict[str, Any] = {}

    def allocate(self, nbytes: int) -> Memory:
        owner = self._numpy.empty(nbytes, dtype=self._numpy.uint8)
        advise_huge(owner.ctypes.data, nbytes)
        return Memory(owner.ctypes.data if nbytes else 0, nbytes, owner)

    def check(self, items: Sequence[Item]) -> None:
        for item in items:
            if item.dtype not in self._types:
                self._types[item.dtype] = None if item.block_elements > 1 else dtypes.numpy_dtype(
                    item.dtype, self._raw, item.block_bytes)

    def tensors(self, items: Sequence[Item], memory: Memory, begin: int) -> list[Any]:
        self.check(items)
        ndarray, owner, types = self._numpy.ndarray, memory.owner, self._types
        made = []
        for item in items:
            dtype, shape = types[item.dtype], item.shape
            if dtype is None:
                dtype = self._numpy.uint8
                shape = dtypes.raw_shape(shape, item.block_elements, item.block_bytes)
            made.append(ndarray(shape, dtype, owner, item.arena_offset - begin))
        return made

    def stream(self) -> int | None:
        return None

    def finish(self, tensors: list[Any]) -> list[Any]:
        return tensors


class ArrayFramework:
    """`onehop.Array` objects, for use without torch and numpy, on any device."""

    name = "array"

    def __init__(self, device: Device, runtime: Runtime) -> None:
        self.device = device
        self._runtime = runtime

    def allocate(self, nbytes: int) -> Memory:
        owner = Buffer(self._runtime, self.device.name, nbytes)
        return Memory(owner.address, nbytes, owner)

    def check(self, items: Sequence[Item]) -> None:
        pass

    def tensors(self, items: Sequence[Item], memory: Memory, begin: int) -> list[Any]:
        return [arrays.Array(memory.owner, item.arena_offset - begin, item.dtype, item.shape,
                             item.nbytes, item.block_elements, item.block_bytes, self.device)
                for item in items]

    def stream(self) -> int | None:
        return None

    def finish(self, tensors: list[Any]) -> list[Any]:
        return tensors


NAMES = {"pt": "torch", "torch": "torch", "pytorch": "torch", "np": "numpy", "numpy": "numpy",
         "array": "array"}
"""What callers may call a framework, and its name here."""


def is_importable(module: str) -> bool:
    """Whether a module is imported or can be."""
    return sys.modules.get(module) is not None or importlib.util.find_spec(module) is not None


def choose(name: str | None, device: Device | None, runtime: Runtime) -> str:
    """The framework for what the caller said.

    Left open it is torch if that is imported already, or if the device is a GPU and torch can be
    imported; else numpy on the host, if that can be imported; else "array". A device that is left
    open too is a GPU where there is one.

    Raises
    ------
    InvalidArgument
        There is none of that name.
    """
    if name is not None:
        if name not in NAMES:
            raise errors.InvalidArgument(f"framework {name} is invalid",
                                         'it is "torch", "numpy" or "array"')
        return NAMES[name]
    on_host = not runtime.cuda_device_count() if device is None else device.kind == "cpu"
    if sys.modules.get("torch") or (not on_host and is_importable("torch")):
        return "torch"
    return "numpy" if on_host and is_importable("numpy") else "array"


def choose_device(framework: str, runtime: Runtime) -> Device:
    """The device for a caller that named none: the current GPU if there is one, else the host."""
    if framework == "torch":
        import torch

        has_cuda = torch.cuda.is_available()
        return Device("cuda", int(torch.cuda.current_device())) if has_cuda else HOST
    if framework == "array" and runtime.cuda_device_count():
        return Device("cuda", 0)
    return HOST


def chosen(name: str | None, device: DeviceInput, runtime: Runtime,
           raw: bool = False) -> tuple[Framework, Device]:
    """What makes the tensors, and where they go, by what a caller said or left open (None)."""
    target = None if device is None else parse(device)
    kind = choose(name, target, runtime)
    target = target or choose_device(kind, runtime)
    return make(kind, target, runtime, raw), target


def make(name: str, device: Device, runtime: Runtime, raw: bool = False) -> Framework:
    """The framework of that name (one of the values of `NAMES`) for a device."""
    if name == "torch":
        return TorchFramework(device, raw)
    if name == "numpy":
        return NumpyFramework(device, raw)
    return ArrayFramework(device, runtime)
