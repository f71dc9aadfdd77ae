"""DLPack capsules: pieces of a buffer that other libraries take without a copy.

The tensor in a capsule is made by the C library (``onehop/dlpack.h``), and so are its deleter and
the capsule's destructor: they keep and free the memory by a count of their own, on whatever thread,
with or without the GIL, while the interpreter ends and after it has.
"""
from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_uint32, c_uint64, c_void_p, py_object
from functools import cache
from typing import Any, ClassVar, NamedTuple

from . import _abi, _library, errors
from ._move import Buffer
from .devices import Device

HOST = (_abi.DL_CPU, 0)
"""What ``__dlpack_device__`` is for host memory."""


class ExportError(errors.OnehopError, BufferError):
    """An array cannot be handed out in the way that was asked for."""

    status: ClassVar[int] = _abi.UNSUPPORTED

    def __reduce__(self) -> tuple[Any, ...]:
        return (ExportError, (self.message, self.remedy))


class _Calls(NamedTuple):
    """What capsules are made with: functions of our own types, and addresses in the C library."""

    new: Any
    names: dict[int, int]
    destructor: int


@cache
def _calls() -> _Calls:
    library = _library.library()
    new = ctypes.PYFUNCTYPE(py_object, c_void_p, c_void_p, c_void_p)(
        ("PyCapsule_New", ctypes.pythonapi))
    # The address is wanted, not a copy of the text: a capsule does not keep its name alive.
    name = ctypes.CFUNCTYPE(c_void_p, c_uint32)(("onehop_export_capsule_name", library))
    destructor = ctypes.cast(library.onehop_export_capsule_destroy, c_void_p).value
    assert destructor
    return _Calls(new, {flags: name(flags) for flags in (0, _abi.EXPORT_OLD)}, destructor)


def device_of(device: Device) -> tuple[int, int]:
    """A device as DLPack counts: its type and number."""
    return (_abi.DL_CUDA, device.number) if device.kind == "cuda" else HOST


def check_stream(stream: Any, device: Device) -> None:
    """Raises InvalidArgument unless stream is what a consumer may pass for a device."""
    if stream is None or (isinstance(stream, int) and stream == -1):
        return
    if device.kind != "cuda":
        raise errors.InvalidArgument(f"stream {stream} is given for an array in host memory",
                                     "pass None")
    if not isinstance(stream, int) or stream <= 0:
        raise errors.InvalidArgument(
            f"stream {stream} is none that DLPack knows",
            "pass 1 for the legacy default stream, 2 for the thread's own, a CUstream, -1 or None")


def _make(buffer: Buffer, offset: int, dtype: str, shape: Sequence[int], flags: int) -> int:
    """Address of a new managed tensor."""
    managed = c_void_p()
    dimensions = (c_uint64 * len(shape))(*shape)
    try:
        _library.call("buffer_export", buffer.handle, offset, dtype.encode(), dimensions,
                      len(shape), flags, byref(managed))
    except errors.UnsupportedData as error:
        raise ExportError(error.message, "hand out array.raw(), its bits as unsigned integers"
                          ) from None
    assert managed.value
    return managed.value


def capsule(buffer: Buffer, offset: int, dtype: str, shape: Sequence[int], flags: int) -> Any:
    """A PyCapsule with a tensor that keeps the buffer's memory.

    Parameters
    ----------
    buffer : Buffer
    offset : int
        Where the tensor begins in it, in bytes.
    dtype : str
        As a file spells it.
    shape : sequence of int
        In elements.
    flags : int
        ``EXPORT_*`` of the C library.

    Returns
    -------
    PyCapsule
        Named ``"dltensor_versioned"``, or ``"dltensor"`` with EXPORT_OLD.

    Raises
    ------
    ExportError
        DLPack has no such type.
    Forked
        The buffer is of a parent process.
    """
    calls = _calls()
    managed = _make(buffer, offset, dtype, shape, flags)
    try:
        return calls.new(managed, calls.names[flags & _abi.EXPORT_OLD], calls.destructor)
    except BaseException:
        struct = _abi.DlManagedOld if flags & _abi.EXPORT_OLD else _abi.DlManaged
        ctypes.CFUNCTYPE(None, c_void_p)(struct.from_address(managed).deleter)(managed)
        raise
