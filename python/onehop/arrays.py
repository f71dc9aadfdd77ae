"""`Array`: a tensor in memory of the C library's own, for programs without torch.

Other libraries take it without a copy: by DLPack (``numpy.from_dlpack``, ``cupy.from_dlpack``,
``jax.dlpack.from_dlpack``, ``torch.from_dlpack``), by ``__array_interface__`` and
``__cuda_array_interface__`` (``numpy.asarray``, ``cupy.asarray``) for the types that these can
name, and by ``__array__`` for those that the ml_dtypes package adds to numpy. `Array.raw` is for
all others. The memory stays as long as any array, or anything made from one, refers to it.

When a load returns an array its bytes have landed, which every CUDA stream sees: whichever stream a
consumer names, there is nothing that it has to wait for. Work that it still has under way on the
bytes when it drops its last reference is its own to wait for, as with memory of its own.
"""
from __future__ import annotations

from typing import Any

from . import _abi, _dlpack, _library, _runtime, dtypes, errors
from ._dlpack import ExportError
from ._move import Buffer
from .devices import HOST, Device

_TYPESTR = {"BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "U32": "<u4",
            "I32": "<i4", "U64": "<u8", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8",
            "C64": "<c8"}
"""The array interfaces' names, by dtype."""


class Array:
    """A tensor, contiguous and row-major, on the host or on a GPU.

    Attributes
    ----------
    buffer : Buffer
        The memory that it is a piece of, shared with the other tensors of a load.
    offset : int
        Where it begins there, in bytes.
    dtype : str
        As its file spells it: ``"BF16"``, ``"F4"``, ``"Q4_K"``.
    shape : tuple of int
        In elements.
    nbytes : int
    block_elements, block_bytes : int
        Elements that share a block, and its bytes; 1 and the element's size for plain types.
    device : Device
    readonly : bool
        Whether it is handed out for reading only.
    """

    __slots__ = ("buffer", "offset", "dtype", "shape", "nbytes", "block_elements", "block_bytes",
                 "device", "readonly", "__weakref__")

    def __init__(self, buffer: Buffer, offset: int, dtype: str, shape: tuple[int, ...],
                 nbytes: int, block_elements: int, block_bytes: int, device: Device,
                 readonly: bool = False) -> None:
        self.buffer = buffer
        self.offset = offset
        self.dtype = dtype
        self.shape = shape
        self.nbytes = nbytes
        self.block_elements = block_elements
        self.block_bytes = block_bytes
        self.device = device
        self.readonly = readonly

    @property
    def address(self) -> int:
        """Device or host address of the first byte; 0 if the memory is empty."""
        base = self.buffer.address
        return base + self.offset if base else 0

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def raw_shape(self) -> tuple[int, ...]:
        """The shape in bytes: the last dimension holds the bytes of its elements or blocks."""
        return dtypes.raw_shape(self.shape, self.block_elements, self.block_bytes)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array of no dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<onehop.Array {self.dtype} {list(self.shape)} on {self.device}>"

    def tobytes(self) -> bytes:
        """A copy of its bytes in host memory."""
        return bytes(self.buffer.read(self.offset, self.nbytes))

    def _view(self, dtype: str, shape: tuple[int, ...], itemsize: int, readonly: bool) -> Array:
        return Array(self.buffer, self.offset, dtype, shape, self.nbytes, 1, itemsize, self.device,
                     readonly)

    def raw(self) -> Array:
        """Its bits as unsigned integers, in the same memory, for libraries that lack its type.

        Returns
        -------
        Array
            ``"U8"`` to ``"U64"`` of the same shape. Of a type whose elements share blocks (F4, F6,
            GGUF's) ``"U8"`` of `raw_shape`.
        """
        if self.block_elements > 1:
            return self._view("U8", self.raw_shape, 1, self.readonly)
        return self._view(f"U{8 * self.block_bytes}", self.shape, self.block_bytes, self.readonly)

    def as_readonly(self) -> Array:
        """The same memory, handed out for reading only."""
        return Array(self.buffer, self.offset, self.dtype, self.shape, self.nbytes,
                     self.block_elements, self.block_bytes, self.device, readonly=True)

    def _copied(self) -> Array:
        """A copy in host memory."""
        made = Buffer(_runtime.get(), HOST.name, self.nbytes)
        if self.nbytes:
            _library.call("buffer_read", self.buffer.handle, self.offset, made.address, self.nbytes)
        return Array(made, 0, self.dtype, self.shape, self.nbytes, self.block_elements,
                     self.block_bytes, HOST)

    def cpu(self) -> Array:
        """The array in host memory: itself if it is there, else a copy.

        Of work that streams of the caller's still do on the bytes it waits for none.

        Raises
        ------
        NoMemory, Limit, DriverError, DeviceLost
        """
        return self if self.device.kind == "cpu" else self._copied()

    # ---- DLPack

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's type and number of the device: (1, 0) for the host, (2, N) for cuda:N."""
        return _dlpack.device_of(self.device)

    def _source(self, dl_device: tuple[int, int] | None, copy: bool | None) -> Array:
        """What to hand out: this array, or a copy if one is asked for or needed."""
        here = self.__dlpack_device__()
        there = here if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
        if there not in (here, _dlpack.HOST):
            raise ExportError(f"an array on {self.device} cannot be handed out on DLPack's device "
                              f"{there}", "load it there, or take it where it is and move it")
        if there == here and not copy:
            return self
        if there != _dlpack.HOST:
            raise ExportError(f"onehop makes no copies on {self.device}",
                              "take the array without copy=True, and copy it there")
        if copy is False:
            raise ExportError(f"an array on {self.device} is handed out on the host as a copy only",
                              "leave copy out, or take the array where it is")
        return self._copied()

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        """A PyCapsule with the tensor, for ``from_dlpack`` of other libraries.

        Parameters
        ----------
        stream : int, optional
            The consumer's CUDA stream: 1 (the legacy default stream), 2 (the thread's own), a
            CUstream, -1 or None. It has nothing to wait for, see the module.
        max_version : tuple of int, optional
            The newest DLPack that the consumer knows. Without it, or below (1, 0), the capsule has
            the unversioned tensor, which cannot be marked read-only or copied.
        dl_device : tuple of int, optional
            (1, 0) asks for host memory, which means a copy if the array is on a GPU.
        copy : bool, optional
            True for a copy, which is made in host memory only; False for none.

        Returns
        -------
        PyCapsule
            F4 comes as elements of two lanes with half the last dimension, as torch has it, where
            that dimension is even.

        Raises
        ------
        ExportError
            A BufferError: DLPack has no such type, device or flag, or the copy cannot be made.
        InvalidArgument
            The stream is none.
        """
        _dlpack.check_stream(stream, self.device)
        source = self._source(dl_device, copy)
        flags = 0
        if source is not self:
            flags |= _abi.EXPORT_COPIED
        if source.readonly:
            flags |= _abi.EXPORT_READ_ONLY
        if max_version is None or max_version[0] < 1:
            flags |= _abi.EXPORT_OLD
            if source.readonly:
                raise ExportError("DLPack before 1.0 cannot say that an array is read-only",
                                  "pass max_version=(1, 0), or copy=True")
        return _dlpack.capsule(source.buffer, source.offset, source.dtype, source.shape, flags)

    # ---- the array interfaces

    def _interface(self, name: str, kind: str) -> dict[str, Any]:
        if self.device.kind != kind:
            raise AttributeError(f"an array on {self.device} has no {name}")
        typestr = _TYPESTR.get(self.dtype)
        if typestr is None:
            raise AttributeError(f"{name} has no name for {self.dtype}; use DLPack or array.raw()")
        return {"shape": self.shape, "typestr": typestr, "strides": None, "version": 3,
                "data": (self.address if self.nbytes else 0, self.readonly)}

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """numpy's array interface, version 3; absent on a GPU and for types without a name."""
        return self._interface("__array_interface__", "cpu")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA array interface, version 3; absent on the host and for types without a name.

        Its stream is None: there is nothing to wait for.
        """
        return {**self._interface("__cuda_array_interface__", "cuda"), "stream": None}

    def _numpy_dtype(self) -> Any:
        """numpy's type, uint8 for blocks."""
        if self.block_elements > 1:
            return dtypes.numpy_dtype("U8", False, 1)
        try:
            return dtypes.numpy_dtype(self.dtype, False, self.block_bytes)
        except errors.UnsupportedData as error:
            raise errors.UnsupportedData(
                error.message, "install ml_dtypes, or take array.raw(), its bits as unsigned "
                               "integers") from None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """A numpy array of the same memory; of BF16 and F8 by ml_dtypes' types.

        Types whose elements share blocks (F4, F6, GGUF's) are uint8 of `raw_shape`; the array's own
        `dtype` has their name.

        Raises
        ------
        ExportError
            The array is on a GPU.
        UnsupportedData
            ml_dtypes is needed and not installed.
        """
        import numpy

        if self.device.kind != "cpu":
            raise ExportError(f"numpy cannot reach an array on {self.device}",
                              "take array.cpu(), a copy in host memory")
        view = numpy.asarray(self.raw()).view(self._numpy_dtype())
        return numpy.array(view, dtype=dtype, copy=copy)
