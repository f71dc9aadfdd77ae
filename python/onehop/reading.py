"""Bytes of any file onto a device: `read`, `load_npy`, `GDSModelLoader`.

The file is opened by the C library, which compares its identity after the last read. What the bytes
go to is memory of a framework's, or the caller's own (`read`'s ``out=``).
"""
from __future__ import annotations

import ast
import ctypes
import math
import os
import re
import sys
from collections.abc import Sequence
from ctypes import byref
from typing import Any, NamedTuple

from . import _abi, _library, _progress, _runtime, arenas, arrays, devices, dtypes, errors
from ._move import Buffer, Extent, Plan, Transfer, run
from ._progress import Progress
from ._runtime import Runtime
from .devices import Device, DeviceInput
from .model import Item, Model, Path

__all__ = ["GDSModelLoader", "load_npy", "read"]

_PICKLES = (".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth")
_LEGACY_STREAM = 0
"""CUDA's legacy stream, which follows the work of all streams that are not non-blocking."""


def refuse_pickle(path: Path) -> None:
    """Raises for a pickle of torch's, by its name, and for a folder that holds nothing better.

    Raises
    ------
    UnsupportedData
        The remedy is the command that converts it.
    """
    name = os.fsdecode(path)
    if os.path.isdir(name):
        kinds = {os.path.splitext(entry)[1] for entry in os.listdir(name)}
        if kinds & {".safetensors", ".gguf"}:
            return
        found = sorted(entry for entry in os.listdir(name) if entry.endswith((".bin", ".pth")))
        if not found:
            return
        name = os.path.join(name, found[0])
    stem, ending = os.path.splitext(name)
    if ending.lower() not in _PICKLES:
        return
    command = ("python -c 'import sys, torch; from safetensors.torch import save_file; "
               "save_file({k: v.clone(memory_format=torch.contiguous_format) for k, v in "
               'torch.load(sys.argv[1], "cpu", weights_only=True).items()}, sys.argv[2])\' '
               f"{name} {stem}.safetensors")
    raise errors.UnsupportedData(f"{name} is a pickle, which is a program rather than data",
                                 f"convert it once: {command}")


def open_model(path: Path, runtime: Runtime) -> Model:
    """The model at path; a pickle is refused with the command that converts it."""
    refuse_pickle(path)
    return Model(path, runtime)


class _File(_library.Handle):
    """A file of any kind, open for transfers."""

    _end = "file_close"

    def __init__(self, runtime: Runtime, path: Path) -> None:
        super().__init__()
        self.runtime, self.path = runtime, os.fsdecode(path)
        _library.call("file_open", runtime.handle, _library.path_bytes(path), byref(self.handle))
        info = _library.sized(_abi.FileInfo)
        _library.ask("file_query", self.handle, byref(info))
        self.nbytes = int(info.bytes)

    def check_range(self, offset: int, nbytes: int, what: str) -> None:
        """Raises unless the file has that range."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise errors.InvalidArgument(
                f"{self.path}: {what} takes {nbytes} bytes from {offset} on, and the file has "
                f"{self.nbytes}", "keep the range within the file")

    def move(self, offset: int, nbytes: int, buffer: Buffer, place: int, stream: int | None,
             progress: Progress = None) -> None:
        """Fills the buffer from place on; when this returns, every stream sees the bytes."""
        if not nbytes:
            return
        extent = Extent(self.handle.value or 0, offset, nbytes, 1, nbytes, buffer, place)
        plan = Plan.of_extents(self.runtime, [extent], keep=self)
        try:
            with _progress.shown(progress, os.path.basename(self.path)) as on_turn:
                run(Transfer(plan), lambda: None, after_stream=stream, on_turn=on_turn)
        finally:
            plan.close()

    def tensor(self, item: Item, framework: arenas.Framework, progress: Progress = None) -> Any:
        """A tensor of the framework's, of the item's bytes, which begin at its file_offset."""
        framework.check([item])
        memory = framework.allocate(item.nbytes)
        made = framework.tensors([item], memory, 0)
        buffer = memory.buffer(self.runtime, framework.device)
        try:
            self.move(item.file_offset, item.nbytes, buffer, 0, framework.stream(), progress)
        finally:
            if memory.owner is not buffer:
                buffer.close()
        return framework.finish(made)[0]


def _item(name: str, dtype: str, shape: tuple[int, ...], nbytes: int, offset: int,
          block_elements: int, block_bytes: int) -> Item:
    """A whole tensor at an offset of its file."""
    return Item(name, dtype, shape, nbytes, 0, 0, 0, offset, block_elements, block_bytes, -1, 0,
                shape)


# ---- memory of the caller's


class _Target(NamedTuple):
    """Memory that the caller gave.

    Attributes
    ----------
    buffer : Buffer or None
        Where it is the library's own; else address counts.
    begin : int
        Offset in the buffer, or the address.
    nbytes : int
    device : Device
    stream : int or None
        The stream whose work comes before the first byte.
    keep : object
        What the memory lives with.
    """

    buffer: Buffer | None
    begin: int
    nbytes: int
    device: Device
    stream: int | None
    keep: Any = None


def _cannot(out: Any, why: str) -> errors.InvalidArgument:
    return errors.InvalidArgument(f"out, a {type(out).__name__}, {why}",
                                  "give contiguous memory that may be written")


def _target(out: Any) -> _Target:
    """The memory of a tensor or array of any library's."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(out, torch.Tensor):
        return _of_torch(out, torch)
    if isinstance(out, arrays.Array):
        stream = None if out.device.kind == "cpu" else _LEGACY_STREAM
        return _Target(out.buffer, out.offset, out.nbytes, out.device, stream)
    for attribute in ("__cuda_array_interface__", "__array_interface__"):
        interface = getattr(out, attribute, None)
        if interface is not None:
            return _of_interface(out, interface, on_gpu="cuda" in attribute)
    if hasattr(out, "__dlpack__"):
        return _of_dlpack(out)
    return _of_bytes(out)


def _of_torch(out: Any, torch: Any) -> _Target:
    if out.layout != torch.strided or not out.is_contiguous():
        raise _cannot(out, "is not contiguous")
    if out.device.type not in ("cpu", "cuda"):
        raise _cannot(out, f"is on {out.device}, which bytes do not reach")
    device, stream = devices.parse(out.device), None
    if device.kind == "cuda":
        stream = int(torch.cuda.current_stream(out.device).cuda_stream)
    torch.autograd.graph.increment_version(out)
    return _Target(None, out.data_ptr(), out.numel() * out.element_size(), device, stream)


def _of_interface(out: Any, interface: dict[str, Any], on_gpu: bool) -> _Target:
    """By numpy's array interface, or its like for GPUs."""
    address, is_read_only = interface["data"]
    shape, itemsize = interface["shape"], int(re.sub(r"\D", "", interface["typestr"]))
    if is_read_only:
        raise _cannot(out, "is read-only")
    if not _is_row_major(shape, interface.get("strides"), itemsize):
        raise _cannot(out, "is not contiguous")
    nbytes = math.prod(shape) * itemsize
    if not on_gpu:
        return _Target(None, address, nbytes, devices.HOST, None)
    return _Target(None, address, nbytes, _device_at(address), interface.get("stream")
                   or _LEGACY_STREAM)


def _is_row_major(shape: Sequence[int], strides: Sequence[int] | None, step: int) -> bool:
    """Whether elements that are so far apart lie one after the other; dimensions of 1 are free."""
    if strides is None or 0 in shape:
        return True
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


def _device_at(address: int) -> Device:
    """The GPU that the address lies on; the C library checks it, so that asking is trying."""
    if not address:
        return Device("cuda", 0)
    runtime, refusal = _runtime.get(), None
    for number in range(runtime.cuda_device_count()):
        try:
            Buffer(runtime, f"cuda:{number}", 1, address).close()
            return Device("cuda", number)
        except errors.OnehopError as error:
            refusal = error
    raise errors.InvalidArgument(f"no GPU has memory at {address:#x}",
                                 "give an array that is on a GPU") from refusal


def _of_bytes(out: Any) -> _Target:
    """By the buffer protocol: bytearray, memoryview, mmap, array."""
    try:
        view = memoryview(out)
    except TypeError:
        raise _cannot(out, "names no memory by any of the known protocols") from None
    if view.readonly:
        raise _cannot(out, "is read-only")
    if not view.c_contiguous:
        raise _cannot(out, "is not contiguous")
    if not view.nbytes:
        return _Target(None, 0, 0, devices.HOST, None)
    first = ctypes.c_char.from_buffer(view.cast("B"))
    return _Target(None, ctypes.addressof(first), view.nbytes, devices.HOST, None, first)


def _of_dlpack(out: Any) -> _Target:
    """By DLPack, without a copy."""
    kind, number = out.__dlpack_device__()
    if kind not in (_abi.DL_CPU, _abi.DL_CUDA):
        raise _cannot(out, f"is on a device of DLPack's type {int(kind)}, which bytes do not reach")
    on_gpu = kind == _abi.DL_CUDA
    # 1 is the legacy stream: what is under way on the array's own comes before the first byte.
    stream = 1 if on_gpu else None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    try:
        capsule = out.__dlpack__(stream=stream, max_version=(1, 0))
        managed = _abi.DlManaged.from_address(pointer(capsule, b"dltensor_versioned"))
    except (TypeError, ValueError):
        raise _cannot(out, "speaks a DLPack from before version 1.0, which cannot say whether it "
                           "may be written") from None
    if managed.flags & (_abi.EXPORT_READ_ONLY | _abi.EXPORT_COPIED):
        raise _cannot(out, "is read-only")
    tensor = managed.tensor
    shape, strides = ((ctypes.c_int64 * tensor.ndim).from_address(address) if address else ()
                      for address in (tensor.shape, tensor.strides))
    if not _is_row_major(list(shape), list(strides) or None, 1):
        raise _cannot(out, "is not contiguous")
    nbytes = math.prod(shape) * (tensor.bits * tensor.lanes) // 8
    return _Target(None, (tensor.data or 0) + tensor.byte_offset, nbytes,
                   Device("cuda", int(number)) if on_gpu else devices.HOST,
                   _LEGACY_STREAM if on_gpu else None, capsule)


def _fill(file: _File, offset: int, nbytes: int, target: _Target, progress: Progress) -> None:
    if target.buffer is not None:
        file.move(offset, nbytes, target.buffer, target.begin, target.stream, progress)
        return
    buffer = Buffer(file.runtime, target.device.name, target.nbytes, target.begin)
    try:
        file.move(offset, nbytes, buffer, 0, target.stream, progress)
    finally:
        buffer.close()


def read(path: Path, offset: int = 0, nbytes: int | None = None, device: DeviceInput = None, *,
         out: Any = None, framework: str | None = None, route: str | None = None,
         progress: Progress = None) -> Any:
    """Reads bytes of a file, of whatever kind, onto a device.

    Parameters
    ----------
    path : str, bytes or path-like
    offset : int
        Where to begin, in bytes. Any.
    nbytes : int, optional
        How many. Left out: as many as out holds, or all that follow.
    device : str, int or torch.device, optional
        "cpu", "cuda", "cuda:1", 1. Left out: out's, or the current GPU where the framework can use
        one, else the host.
    out : tensor or array, optional
        Contiguous memory of exactly nbytes bytes, of any shape and element type, on any device: a
        torch tensor, an `onehop.Array`, or what has ``__cuda_array_interface__``,
        ``__array_interface__``, DLPack or the buffer protocol.
    framework : {"torch", "numpy", "array"}, optional
        What to make, without out; chosen as by `onehop.load`.
    route : {"buffered", "direct", "mapped"}, optional
        Forces the way that bytes take.
    progress : bool or callable, optional
        As for `onehop.load`.

    Returns
    -------
    tensor or array
        out; else uint8 of shape (nbytes,).

    Raises
    ------
    InvalidArgument
        The range leaves the file, or out is of another size or device, is not contiguous, or
        read-only. No byte was moved.
    NotFound, Access, IOFailed, FileChanged, NoDevice, NoDeviceMemory, NoMemory
    """
    runtime = _runtime.get(route=route)
    file = _File(runtime, path)
    if out is None:
        count = file.nbytes - offset if nbytes is None else nbytes
        file.check_range(offset, count, "read")
        return file.tensor(_item("", "U8", (count,), count, offset, 1, 1),
                           arenas.chosen(framework, device, runtime)[0], progress)
    target = _target(out)
    count = target.nbytes if nbytes is None else nbytes
    if count != target.nbytes:
        raise errors.InvalidArgument(f"out holds {target.nbytes} bytes, and {count} are asked for",
                                     "give memory of that size")
    if device is not None and devices.parse(device) != target.device:
        raise errors.InvalidArgument(f"out is on {target.device}, and {device} is asked for",
                                     "leave device out, or give memory there")
    file.check_range(offset, count, "read")
    _fill(file, offset, count, target, progress)
    return out


# ---- .npy

_NPY_MAGIC = b"\x93NUMPY"
_NPY_HEADER_MOST = 1 << 20
_NPY_TYPES = {"b1": "BOOL", "i1": "I8", "u1": "U8", "i2": "I16", "u2": "U16", "i4": "I32",
              "u4": "U32", "i8": "I64", "u8": "U64", "f2": "F16", "f4": "F32", "f8": "F64",
              "c8": "C64"}


class _Npy(NamedTuple):
    """What the header of a .npy file says: dtype is the name that files of tensors use."""

    dtype: str
    itemsize: int
    shape: tuple[int, ...]
    is_fortran: bool
    data_offset: int


def _malformed_npy(path: str, rule: str) -> errors.Malformed:
    return errors.Malformed(f"{path} is not a .npy file: {rule}", "write it by numpy.save")


def _npy_text(path: str) -> tuple[str, int]:
    """The header's text, and where the data begins."""
    with open(path, "rb") as file:
        start = file.read(8)
        if start[:6] != _NPY_MAGIC or len(start) < 8:
            raise _malformed_npy(path, "it does not begin with \\x93NUMPY")
        version = (start[6], start[7])
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise errors.UnsupportedData(
                f"{path} is of version {version[0]}.{version[1]} of the .npy format",
                "versions 1.0, 2.0 and 3.0 are read")
        width = 2 if version == (1, 0) else 4
        count = file.read(width)
        length = int.from_bytes(count, "little")
        if len(count) < width or length > _NPY_HEADER_MOST:
            raise _malformed_npy(path, f"its header has {length} bytes")
        text = file.read(length)
    if len(text) < length:
        raise _malformed_npy(path, f"it ends within the header's {length} bytes")
    try:
        return text.decode("utf-8" if version == (3, 0) else "latin-1"), 8 + width + length
    except UnicodeDecodeError as error:
        raise _malformed_npy(path, "its header is not UTF-8") from error


def _npy_header(path: str) -> _Npy:
    """The header, parsed and checked."""
    text, data_offset = _npy_text(path)
    try:
        fields = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise _malformed_npy(path, "its header is not a Python literal") from error
    if not isinstance(fields, dict) or set(fields) != {"descr", "fortran_order", "shape"}:
        raise _malformed_npy(path, "its header is not a dict of descr, fortran_order and shape")
    shape, is_fortran = fields["shape"], fields["fortran_order"]
    if not isinstance(is_fortran, bool):
        raise _malformed_npy(path, "fortran_order is neither True nor False")
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise _malformed_npy(path, f"its shape is {shape!r}")
    dtype, itemsize = _npy_type(path, fields["descr"])
    return _Npy(dtype, itemsize, shape, is_fortran and len(shape) > 1, data_offset)


def _npy_type(path: str, descr: object) -> tuple[str, int]:
    """The dtype's name and its bytes."""
    if not isinstance(descr, str):
        raise errors.UnsupportedData(f"{path} holds records: {descr!r}",
                                     "save each field as an array of its own")
    found = re.fullmatch(r"([<>=|])([a-zA-Z])(\d*)(\[\w+\])?", descr)
    if found is None:
        raise _malformed_npy(path, f"its descr is {descr!r}")
    order, kind, width = found[1], found[2], found[3]
    if kind == "O":
        raise errors.UnsupportedData(f"{path} holds pickled objects, which are programs",
                                     "save arrays of numbers, with allow_pickle=False")
    if order == ">":
        raise errors.UnsupportedData(
            f"{path} is big-endian ({descr})",
            f"save it again: numpy.save(path, numpy.load(path).astype('<{kind}{width}'))")
    dtype = _NPY_TYPES.get(kind + width)
    if dtype is None:
        remedy = "save one of the number types of up to 8 bytes"
        if kind == "V":
            remedy = "save its bits, .view(numpy.uint16) for two bytes, and view them back"
        raise errors.UnsupportedData(f"{path} holds elements of type {descr!r}", remedy)
    return dtype, int(width)


def load_npy(path: Path, device: DeviceInput = None, *, framework: str | None = None,
             route: str | None = None, progress: Progress = None) -> Any:
    """Loads the array of a .npy file.

    Parameters
    ----------
    path : str, bytes or path-like
        Of version 1, 2 or 3 of the format, with elements of a plain little-endian number type. What
        follows the array in the file is ignored, as by numpy.
    device, framework, route, progress
        As for `read`.

    Returns
    -------
    tensor or array
        Of the file's shape and type. An array in Fortran's order is a transposed view of contiguous
        memory.

    Raises
    ------
    Malformed
        The header breaks a rule, or the file ends too early.
    UnsupportedData
        Pickled objects, records, big-endian or long types; for `onehop.Array`, Fortran's order. The
        remedy says how to save it.
    NotFound, Access, IOFailed, FileChanged, NoDevice, NoDeviceMemory, NoMemory
    """
    runtime = _runtime.get(route=route)
    file = _File(runtime, path)
    head = _npy_header(file.path)
    nbytes = math.prod(head.shape) * head.itemsize
    if head.data_offset + nbytes > file.nbytes:
        raise _malformed_npy(file.path, f"its array takes {nbytes} bytes from {head.data_offset} "
                                        f"on, and the file has {file.nbytes}")
    maker, _ = arenas.chosen(framework, device, runtime)
    if head.is_fortran and maker.name == "array":
        raise errors.UnsupportedData(f"{file.path} is in Fortran's order, which onehop.Array lacks",
                                     "load it as torch or numpy, or save it in C's order")
    shape = head.shape[::-1] if head.is_fortran else head.shape
    made = file.tensor(_item("", head.dtype, shape, nbytes, head.data_offset, 1, head.itemsize),
                       maker, progress)
    if not head.is_fortran:
        return made
    axes = tuple(reversed(range(len(shape))))
    return made.permute(axes) if maker.name == "torch" else made.transpose(axes)


# ---- one tensor of a folder of files

_BLOCKS = {"F4": (2, 1), "F6_E2M3": (4, 3), "F6_E3M2": (4, 3)}
"""Elements and bytes of what packed types share."""

_NAMES = {spelling: dtype for table in (dtypes.ML_DTYPES, dtypes.NUMPY, dtypes.TORCH)
          for dtype, spelling in table.items()}


def _dtype_name(spec: Any) -> str:
    """A dtype's name in files, from that, a framework's name for it, or its object."""
    text = spec if isinstance(spec, str) else str(
        getattr(spec, "name", None) or getattr(spec, "__name__", spec))
    text = text.removeprefix("torch.")
    if text in dtypes.TORCH or text in _BLOCKS:
        return text
    if text not in _NAMES:
        raise errors.InvalidArgument(f"dtype {spec} is unknown",
                                     'give one as "F16", "float16" or torch.float16')
    return _NAMES[text]


def _block(dtype: str) -> tuple[int, int]:
    """Elements and bytes of the smallest piece of a type: 1 and its width but for packed types."""
    if dtype in _BLOCKS:
        return _BLOCKS[dtype]
    digits = re.search(r"\d+", dtype)
    return 1, int(digits[0]) // 8 if digits else 1


class GDSModelLoader:
    """Loads single tensors of the files of a folder.

    Parameters
    ----------
    model_dir : str or path-like
    device : str, int or torch.device
        Where they go: "cuda", "cuda:1", 1, "cpu".
    framework : {"torch", "numpy", "array"}, optional
        What they are; chosen as by `onehop.load`.
    route : {"buffered", "direct", "mapped"}, optional
        Forces the way that bytes take.

    Raises
    ------
    NotFound
        There is no such folder.
    """

    def __init__(self, model_dir: str | os.PathLike[str], device: DeviceInput = "cuda", *,
                 framework: str | None = None, route: str | None = None) -> None:
        self.model_dir = os.fspath(model_dir)
        if not os.path.isdir(self.model_dir):
            raise errors.NotFound(f"{self.model_dir} is no folder", "correct model_dir", errno=2)
        self.device = devices.parse(device)
        self._framework, self._route = framework, route

    def load_tensor_to_gpu(self, filename: str, tensor_name: str, offset: int | None = None,
                           size: int | None = None, shape: Sequence[int] | None = None,
                           dtype: Any = None) -> Any:
        """Loads one tensor.

        Parameters
        ----------
        filename : str
            In the folder. Any file if offset, shape and dtype are given; else a .safetensors or
            .gguf file, whose header says what is left out.
        tensor_name : str
        offset : int, optional
            Where the tensor begins in the file, in bytes. Any.
        size : int, optional
            Its bytes.
        shape : sequence of int, optional
            In elements.
        dtype : str, torch.dtype or numpy.dtype, optional

        Returns
        -------
        tensor or array

        Raises
        ------
        InvalidArgument
            A ValueError: size is not what shape and dtype take, the range leaves the file, or the
            dtype is unknown.
        UnsupportedData
            The file is a pickle; the remedy is the command that converts it.
        NoSuchTensor, NotFound, Access, IOFailed, FileChanged, Malformed
        """
        path = os.path.join(self.model_dir, filename)
        refuse_pickle(path)
        runtime = _runtime.get(route=self._route)
        if offset is None or shape is None or dtype is None:
            found = _find(path, tensor_name, runtime)
            offset = found.file_offset if offset is None else offset
            size = found.nbytes if size is None else size
            whole = found.shape if shape is None else tuple(shape)
            name = found.dtype if dtype is None else _dtype_name(dtype)
            block = (found.block_elements, found.block_bytes) if dtype is None else _block(name)
        else:
            whole, name = tuple(shape), _dtype_name(dtype)
            block = _block(name)
        if any(extent < 0 for extent in whole):
            raise errors.InvalidArgument(f"shape is {list(whole)}", "give no negative extents")
        wanted = -(-math.prod(whole) * block[1] // block[0])
        if size is not None and size != wanted:
            raise errors.InvalidArgument(
                f"{tensor_name}: size is {size} bytes, and shape {list(whole)} of {name} takes "
                f"{wanted}", "correct one of them, or leave size out")
        file = _File(runtime, path)
        file.check_range(offset, wanted, tensor_name)
        return file.tensor(_item(tensor_name, name, whole, wanted, offset, *block),
                           arenas.chosen(self._framework, self.device, runtime)[0])


def _find(path: str, name: str, runtime: Runtime) -> Item:
    """The tensor of that name in the file's header."""
    with Model(path, runtime) as model, model.select([name]) as selection:
        item = selection.items()[0]
        if item.name != name or model.file_path(item.file) != path:
            raise errors.NoSuchTensor(f"{path} has no tensor {name!r}", "correct the name")
        return item
