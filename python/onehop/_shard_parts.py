"""Samples and their parts, and how what users have becomes one: arrays, text, numbers, rows."""
from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from . import dtypes, errors

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

MAX_RANK = 8
_TEXT = ("txt", "text", "transcript")
_NUMBER = ("cls", "cls2", "index", "inx", "id")


class FileRange(NamedTuple):
    """Bytes of a file, which the C library copies into the shard.

    Attributes
    ----------
    path : str
    offset : int
        Where they begin.
    size : int or None
        How many; None: all to the file's end.
    """

    path: str
    offset: int = 0
    size: int | None = None


class Part(NamedTuple):
    """One part of a sample as it will lie in the shard.

    Attributes
    ----------
    field : str
        ``"cam.jpg"``: what follows the key and a dot in the member's name.
    source : bytes-like or FileRange
        Its payload.
    dtype : str or None
        ``"F32"``, ...: what the payload holds; None: bytes (a ``.npy`` tells its type itself).
    shape : tuple of int
        Of the array, at most 8 dimensions.
    data_offset : int
        Bytes of the payload before the array.
    timestamp_ns : int or None
        Its own, where it differs from the sample's.
    joined : bool
        It has no member of its own; `source` is its place in the sample's ``joined.bin``, a
        `FileRange` without a path.
    """

    field: str
    source: Any
    dtype: str | None = None
    shape: tuple[int, ...] = ()
    data_offset: int = 0
    timestamp_ns: int | None = None
    joined: bool = False

    def nbytes(self) -> int:
        """Bytes of the payload; the file is asked where the range is open."""
        if not isinstance(self.source, FileRange):
            return memoryview(self.source).nbytes
        if self.source.size is not None:
            return self.source.size
        return max(os.stat(self.source.path).st_size - self.source.offset, 0)


class Sample(NamedTuple):
    """A sample as it will lie in a shard: parts under one key.

    Attributes
    ----------
    key : str
        No dot in its last component.
    parts : sequence of Part
        In the order of their members.
    timestamp_ns : int or None
        Of a chunk: its first row's.
    episode, stream : str or None
    rows : int
        1; of a chunk, how many records it holds.
    """

    key: str
    parts: tuple[Part, ...]
    timestamp_ns: int | None = None
    episode: str | None = None
    stream: str | None = None
    rows: int = 1


def dtype_name(dtype: numpy.dtype[Any]) -> str | None:
    """The files' name of a numpy dtype, None for one that they have no name for."""
    names = _names_by_numpy()
    return names.get(dtype.name)


def _names_by_numpy() -> dict[str, str]:
    return {theirs: ours for ours, theirs in (*dtypes.NUMPY.items(), *dtypes.ML_DTYPES.items())
            if ours not in ("F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0")}


def npy_part(field: str, array: NDArray[Any], timestamp_ns: int | None = None) -> Part:
    """An array as a part that holds a ``.npy`` file.

    Parameters
    ----------
    field : str
        Ends in ``npy``.
    array : ndarray
        Any shape; made contiguous and little-endian if it is not.

    Raises
    ------
    InvalidArgument
        It holds Python objects.
    """
    import numpy

    if array.dtype.hasobject:
        raise errors.InvalidArgument(f"field {field}: the array holds Python objects",
                                     "give numbers, or write them as .json")
    # ascontiguousarray gives an array without dimensions one.
    array = numpy.ascontiguousarray(array).reshape(array.shape)
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    head = _npy_head(array.dtype, array.shape)
    name = dtype_name(array.dtype) if array.ndim <= MAX_RANK else None
    payload = b"".join((head, array.reshape(-1).view(numpy.uint8).data if array.size else b""))
    if name is None:
        return Part(field, payload, timestamp_ns=timestamp_ns)
    return Part(field, payload, name, array.shape, len(head), timestamp_ns)


def _npy_head(dtype: numpy.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The header of a .npy file, version 1.0, as numpy writes it."""
    import io
    import warnings

    import numpy

    with warnings.catch_warnings():  # about the types that ml_dtypes adds
        warnings.simplefilter("ignore")
        described = numpy.lib.format.dtype_to_descr(dtype)
    out = io.BytesIO()
    numpy.lib.format.write_array_header_1_0(
        out, {"descr": described, "fortran_order": False, "shape": shape})
    return out.getvalue()


def _as_bytes(field: str, value: object) -> bytes | None:
    """A value that the extension says how to write, as webdataset does; None for another."""
    kind = field.rpartition(".")[2].lower()
    if kind in ("json", "jsn"):
        return json.dumps(value, ensure_ascii=False).encode()
    if kind in _TEXT and isinstance(value, str):
        return value.encode()
    if kind in _NUMBER and hasattr(value, "__index__"):
        return str(int(value)).encode()
    return None


def make_part(field: str, value: Any, timestamp_ns: int | None = None) -> Part:
    """A part from what a user gives.

    Parameters
    ----------
    field : str
    value : bytes-like, FileRange, path, array, str, int, or what JSON holds
        Arrays (numpy's, or what numpy takes as one) become ``.npy``; the others go by the field's
        extension: json, txt, cls.

    Raises
    ------
    InvalidArgument
        Value and extension do not go together.
    """
    if isinstance(value, (bytes, bytearray, memoryview, FileRange)):
        return Part(field, value, timestamp_ns=timestamp_ns)
    if isinstance(value, os.PathLike):
        return Part(field, FileRange(os.fspath(value)), timestamp_ns=timestamp_ns)
    if field.rpartition(".")[2].lower() == "npy" and hasattr(value, "__array__"):
        import numpy

        return npy_part(field, numpy.asarray(value), timestamp_ns)
    made = _as_bytes(field, value)
    if made is None:
        raise errors.InvalidArgument(
            f"field {field} is given {type(value).__name__}, which its extension has no form for",
            "give bytes, a FileRange, an array for .npy, a str for .txt, an int for .cls, or "
            "anything that JSON holds for .json")
    return Part(field, made, timestamp_ns=timestamp_ns)


def rows_sample(key: str, episode: str | None, stream: str, times_ns: NDArray[numpy.int64],
                values: NDArray[Any]) -> Sample:
    """A chunk: rows of a stream as one sample of two arrays.

    Parameters
    ----------
    key : str
    episode : str or None
    stream : str
        Names the fields: ``stream.npy`` and ``stream.time.npy``.
    times_ns : ndarray, int64 [T]
        Never falling; T is at least 1.
    values : ndarray [T, ...]

    Raises
    ------
    InvalidArgument
        Lengths differ, there is no row, or times fall.
    """
    import numpy

    times = numpy.ascontiguousarray(times_ns, numpy.int64)
    if times.ndim != 1 or values.ndim < 1 or len(times) != len(values) or not len(times):
        raise errors.InvalidArgument(
            f"chunk {key}: times of shape {times.shape} do not go with values of shape "
            f"{values.shape}", "give int64 times [T] and values [T, ...] with T of 1 or more")
    if len(times) > 1 and bool((times[1:] < times[:-1]).any()):
        raise errors.InvalidArgument(f"chunk {key}: its times fall", "sort its rows by time")
    parts = (npy_part(f"{stream}.npy", values), npy_part(f"{stream}.time.npy", times))
    return Sample(key, parts, int(times[0]), episode, stream, len(times))
