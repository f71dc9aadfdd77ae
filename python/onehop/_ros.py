"""A few messages of ROS 2, between their bytes (CDR) and arrays.

==================================  ==============================================================
``sensor_msgs/msg/Image``           [H, W] or [H, W, C] of the encoding's type; nv12 and nv21
                                    [H * 3 / 2, W] uint8; yuv422 and its kin [H, W, 2] uint8
``sensor_msgs/msg/CompressedImage`` bytes as they are: jpg, png, webp, or bin
``sensor_msgs/msg/PointCloud2``     [points, columns]: a field is a column, or as many as its count;
                                    of the fields' type, or of the least float that holds them all
``sensor_msgs/msg/Imu``             [10] float64: orientation x y z w, angular velocity x y z,
                                    linear acceleration x y z; covariances are left out
``sensor_msgs/msg/JointState``      [3, joints] float64: position, velocity, effort; what a message
                                    lacks is NaN
``std_msgs/msg/Float32MultiArray``  [values] float32, without its layout
==================================  ==============================================================

Padding of rows and points is taken out, big-endian values are turned; nothing else is changed.
Every length is checked against the message before it is used.
"""
from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_RULE = "=" * 80 + "\n"
_HEADER = "std_msgs/Header header\n"
_HEADER_DEFINITION = (
    _RULE + "MSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id\n"
    + _RULE + "MSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec\n")
_POINT_FIELD = (_RULE + "MSG: sensor_msgs/PointField\nstring name\nuint32 offset\n"
                "uint8 datatype\nuint32 count\n")
_GEOMETRY = (
    _RULE + "MSG: geometry_msgs/Quaternion\nfloat64 x\nfloat64 y\nfloat64 z\nfloat64 w\n"
    + _RULE + "MSG: geometry_msgs/Vector3\nfloat64 x\nfloat64 y\nfloat64 z\n")
_LAYOUT = (
    _RULE + "MSG: std_msgs/MultiArrayLayout\nstd_msgs/MultiArrayDimension[] dim\n"
    "uint32 data_offset\n"
    + _RULE + "MSG: std_msgs/MultiArrayDimension\nstring label\nuint32 size\nuint32 stride\n")

DEFINITIONS = {
    "sensor_msgs/msg/Image":
        _HEADER + "uint32 height\nuint32 width\nstring encoding\nuint8 is_bigendian\nuint32 step\n"
        "uint8[] data\n" + _HEADER_DEFINITION,
    "sensor_msgs/msg/CompressedImage":
        _HEADER + "string format\nuint8[] data\n" + _HEADER_DEFINITION,
    "sensor_msgs/msg/PointCloud2":
        _HEADER + "uint32 height\nuint32 width\nsensor_msgs/PointField[] fields\n"
        "bool is_bigendian\nuint32 point_step\nuint32 row_step\nuint8[] data\nbool is_dense\n"
        + _HEADER_DEFINITION + _POINT_FIELD,
    "sensor_msgs/msg/Imu":
        _HEADER + "geometry_msgs/Quaternion orientation\nfloat64[9] orientation_covariance\n"
        "geometry_msgs/Vector3 angular_velocity\nfloat64[9] angular_velocity_covariance\n"
        "geometry_msgs/Vector3 linear_acceleration\nfloat64[9] linear_acceleration_covariance\n"
        + _HEADER_DEFINITION + _GEOMETRY,
    "sensor_msgs/msg/JointState":
        _HEADER + "string[] name\nfloat64[] position\nfloat64[] velocity\nfloat64[] effort\n"
        + _HEADER_DEFINITION,
    "std_msgs/msg/Float32MultiArray":
        "std_msgs/MultiArrayLayout layout\nfloat32[] data\n" + _LAYOUT,
}
"""By type: its definition and those that it needs, as logs carry them (``ros2msg``)."""


class Broken(ValueError):
    """A message is not what its type says; the words say what of it, without its name."""


class Unknown(Broken):
    """A message is right, but there is no array for what it holds."""


class Message(NamedTuple):
    """A message, read.

    Attributes
    ----------
    stamp_ns : int or None
        Of its header; None where the type has none.
    value : ndarray, or bytes-like
        May share memory with the message.
    ext : str
        ``"npy"``, or of encoded bytes ``"jpg"``, ...
    columns : tuple of str
        Names of what the last dimension holds, where the message tells.
    """

    stamp_ns: int | None
    value: Any
    ext: str = "npy"
    columns: tuple[str, ...] = ()


# ---- reading


class _Reader:
    """Takes values from CDR one after the other."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = memoryview(data).cast("B")
        if len(self.data) < 4 or self.data[0] != 0 or self.data[1] not in (0, 1):
            raise Broken(f"its first bytes are {bytes(self.data[:4]).hex(' ')}, not those of CDR")
        self.order: Literal["<", ">"] = "<" if self.data[1] else ">"
        self.at = 4

    def _take(self, size: int, align: int) -> int:
        """Where the next size bytes begin; aligned as CDR counts, from after its first four."""
        begin = self.at + (4 - self.at) % align
        if begin + size > len(self.data):
            raise Broken(f"it ends at byte {len(self.data)}, and {size} bytes are due from "
                         f"{begin} on")
        self.at = begin + size
        return begin

    def number(self, code: str) -> int:
        size = struct.calcsize("=" + code)
        return int(struct.unpack_from(self.order + code, self.data, self._take(size, size))[0])

    def text(self) -> str:
        size = self.number("I")
        begin = self._take(size, 1)
        return bytes(self.data[begin:begin + max(size - 1, 0)]).decode("utf-8", "replace")

    def numbers(self, dtype: str, count: int) -> Array:
        kind = np.dtype(dtype).newbyteorder(self.order)
        if not count:
            return np.zeros(0, dtype)
        begin = self._take(count * kind.itemsize, kind.itemsize)
        return np.frombuffer(self.data, kind, count, begin).astype(dtype, copy=False)

    def sequence(self, dtype: str) -> Array:
        return self.numbers(dtype, self.number("I"))

    def count(self, least: int) -> int:
        """How many elements of at least so many bytes follow."""
        count = self.number("I")
        if count * least > len(self.data) - self.at:
            raise Broken(f"it tells of {count} elements, and has {len(self.data) - self.at} bytes "
                         "left")
        return count

    def stamp(self) -> int:
        """A header: its time in ns; the frame is passed over."""
        seconds, part = self.number("i"), self.number("I")
        self.text()
        return seconds * 10**9 + part


_PACKED = {"mono8": ("u1", 1), "mono16": ("u2", 1), "rgb8": ("u1", 3), "bgr8": ("u1", 3),
           "rgba8": ("u1", 4), "bgra8": ("u1", 4), "rgb16": ("u2", 3), "bgr16": ("u2", 3),
           "rgba16": ("u2", 4), "bgra16": ("u2", 4), "yuv422": ("u1", 2), "yuv422_yuy2": ("u1", 2),
           "uyvy": ("u1", 2), "yuyv": ("u1", 2)}
_GENERIC = re.compile(r"(8|16|32|64)(U|S|F)C(\d{1,2})?$")
_BAYER = re.compile(r"bayer_\w{4}(8|16)$")


def _pixel(encoding: str) -> tuple[str, int] | None:
    """(dtype, channels) of an encoding whose pixels lie one after the other."""
    if encoding in _PACKED:
        return _PACKED[encoding]
    if found := _BAYER.match(encoding):
        return f"u{int(found[1]) // 8}", 1
    if found := _GENERIC.match(encoding):
        letter = {"U": "u", "S": "i", "F": "f"}[found[2]]
        if letter + found[1] != "f8":
            return f"{letter}{int(found[1]) // 8}", int(found[3] or 1)
    return None


def _rows(data: Array, height: int, step: int, width: int) -> Array:
    """[height, width] bytes of rows that are step bytes apart; the last may lack its padding."""
    if height and (step < width or len(data) < (height - 1) * step + width):
        raise Broken(f"{height} rows of {width} bytes, {step} apart, do not fit its {len(data)} "
                     "bytes of data")
    if not height or not width:
        return np.zeros((height, width), np.uint8)
    return np.ascontiguousarray(np.lib.stride_tricks.as_strided(data, (height, width), (step, 1)))


def _image(reader: _Reader) -> Message:
    stamp = reader.stamp()
    height, width, encoding = reader.number("I"), reader.number("I"), reader.text()
    big, step, data = reader.number("B"), reader.number("I"), reader.sequence("u1")
    if encoding in ("nv12", "nv21"):
        return Message(stamp, _rows(data, height * 3 // 2, step, width))
    pixel = _pixel(encoding)
    if pixel is None:
        raise Unknown(f"its encoding is {encoding[:40]!r}, which has no array here")
    dtype, channels = pixel
    kind = np.dtype(dtype)
    rows = _rows(data, height, step, width * channels * kind.itemsize)
    shape = (height, width) if channels == 1 else (height, width, channels)
    return Message(stamp, _native(rows.reshape(-1).view(kind).reshape(shape), bool(big)))


def _native(array: Array, big: bool) -> Array:
    return array.byteswap() if big and array.dtype.itemsize > 1 else array


_MAGIC = ((b"\xff\xd8\xff", "jpg"), (b"\x89PNG", "png"), (b"RIFF", "webp"))


def _compressed(reader: _Reader) -> Message:
    stamp = reader.stamp()
    reader.text()
    data = reader.sequence("u1")
    head = data[:4].tobytes()
    return Message(stamp, data.data, next((ext for magic, ext in _MAGIC
                                           if head.startswith(magic)), "bin"))


_MOST_COLUMNS = 4096
_POINT_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 8: "f8"}


class _Column(NamedTuple):
    name: str
    offset: int
    dtype: str
    width: int

    def end(self) -> int:
        return self.offset + self.width * np.dtype(self.dtype).itemsize

    def names(self) -> list[str]:
        return [self.name] if self.width == 1 else [f"{self.name}{i}" for i in range(self.width)]


def _column(reader: _Reader) -> _Column:
    name, offset, kind, count = (reader.text(), reader.number("I"), reader.number("B"),
                                 reader.number("I"))
    if kind not in _POINT_TYPES:
        raise Broken(f"its field {name[:40]!r} is of type {kind}, which is none")
    return _Column(name, offset, _POINT_TYPES[kind], max(count, 1))


def _cloud(reader: _Reader) -> Message:
    stamp = reader.stamp()
    height, width = reader.number("I"), reader.number("I")
    columns = [_column(reader) for _ in range(reader.count(13))]
    big, point_step, row_step = reader.number("B"), reader.number("I"), reader.number("I")
    data = reader.sequence("u1")
    _check_points(columns, point_step, height * width)
    rows = _rows(data, height, row_step if height > 1 else width * point_step, width * point_step)
    points = rows.reshape(height * width, point_step)
    return Message(stamp, _columns(points, columns, bool(big)), columns=tuple(
        name for column in columns for name in column.names()))


def _check_points(columns: Sequence[_Column], point_step: int, points: int) -> None:
    for column in columns:
        if column.end() > point_step:
            raise Broken(f"its field {column.name[:40]!r} ends at byte {column.end()} of a point, "
                         f"which has {point_step}")
    if points and not columns:
        raise Broken(f"it has {points} points and no fields")
    if sum(column.width for column in columns) > _MOST_COLUMNS:
        raise Broken(f"its points have more than {_MOST_COLUMNS} values")


def _columns(points: Array, columns: Sequence[_Column], big: bool) -> Array:
    """[points, columns] of [points, bytes]."""
    kinds = {column.dtype for column in columns}
    kind = np.result_type(*kinds) if kinds else np.dtype(np.float32)
    if len(kinds) == 1 and _side_by_side(columns, points.shape[1]):
        width = points.shape[1] // kind.itemsize
        return _native(points.reshape(-1).view(kind).reshape(len(points), width), big)
    if len(kinds) > 1 and kind.kind != "f":
        kind = np.result_type(kind, np.float32)
    with np.errstate(invalid="ignore"):  # NaNs of any kind stay NaNs
        parts = [_native(np.ascontiguousarray(points[:, column.offset:column.end()])
                         .view(column.dtype), big).astype(kind) for column in columns]
    return np.concatenate(parts, axis=1) if parts else np.zeros((len(points), 0), kind)


def _side_by_side(columns: Sequence[_Column], point_step: int) -> bool:
    """Whether the fields follow each other and fill the point."""
    ends = [0, *(column.end() for column in columns)]
    return [column.offset for column in columns] == ends[:-1] and ends[-1] == point_step


def _imu(reader: _Reader) -> Message:
    stamp = reader.stamp()
    values = reader.numbers("f8", 37)
    return Message(stamp, np.concatenate((values[:4], values[13:16], values[25:28])))


def _joints(reader: _Reader) -> Message:
    stamp = reader.stamp()
    names = [reader.text() for _ in range(reader.count(4))]
    parts = [reader.sequence("f8") for _ in range(3)]
    count = max(len(names), *(len(part) for part in parts))
    for what, part in zip(("positions", "velocities", "efforts"), parts):
        if len(part) not in (0, count):
            raise Broken(f"it has {len(part)} {what} for {count} joints")
    return Message(stamp, np.stack([part if len(part) else np.full(count, np.nan)
                                    for part in parts]), columns=tuple(names))


def _floats(reader: _Reader) -> Message:
    for _ in range(reader.count(12)):
        reader.text(), reader.number("I"), reader.number("I")
    reader.number("I")
    return Message(None, reader.sequence("f4"))


_READERS: dict[str, Callable[[_Reader], Message]] = {
    "sensor_msgs/msg/Image": _image, "sensor_msgs/msg/CompressedImage": _compressed,
    "sensor_msgs/msg/PointCloud2": _cloud, "sensor_msgs/msg/Imu": _imu,
    "sensor_msgs/msg/JointState": _joints, "std_msgs/msg/Float32MultiArray": _floats}


def known(name: str) -> bool:
    """Whether messages of a type, ``"pkg/msg/Type"``, become arrays or images."""
    return name in _READERS


def has_header(name: str, definition: str) -> bool:
    """Whether messages of a type begin with a std_msgs/Header.

    Parameters
    ----------
    name : str
    definition : str
        Of the type, as a log carries it; may be empty for the types of this module.
    """
    if name in DEFINITIONS:
        return DEFINITIONS[name].startswith(_HEADER)
    lines = (line.partition("#")[0].split() for line in definition.splitlines())
    first: list[str] = next((words for words in lines if words), [])
    return first[:1] in (["std_msgs/Header"], ["std_msgs/msg/Header"], ["Header"])


def stamp(data: bytes | memoryview) -> int:
    """The header's time in ns of a message that has_header().

    Raises
    ------
    Broken
    """
    reader = _Reader(data)
    return reader.number("i") * 10**9 + reader.number("I")


def read(name: str, data: bytes | memoryview) -> Message:
    """A message of a known type, from CDR.

    Raises
    ------
    Broken
        It is not what its type says.
    Unknown
        An encoding that has no array.
    """
    return _READERS[name](_Reader(data))


# ---- writing


class _Writer:
    """Puts values after each other as CDR, little-endian."""

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview] = [b"\0\1\0\0"]
        self.size = 0  # after the first four

    def put(self, data: bytes | memoryview, align: int = 1) -> None:
        gap = -self.size % align
        if gap:
            self.parts.append(bytes(gap))
        self.parts.append(data)
        self.size += gap + memoryview(data).nbytes

    def number(self, code: str, value: int) -> None:
        self.put(struct.pack("<" + code, value), struct.calcsize("=" + code))

    def text(self, words: str) -> None:
        data = words.encode() + b"\0"
        self.number("I", len(data))
        self.put(data)

    def sequence(self, values: Array) -> None:
        self.number("I", values.size)
        if values.size:
            self.numbers(values)

    def numbers(self, values: Array) -> None:
        flat = np.ascontiguousarray(values).reshape(-1)
        self.put(flat.view(np.uint8).data, flat.dtype.itemsize)

    def header(self, stamp_ns: int, frame: str) -> None:
        self.number("i", stamp_ns // 10**9)
        self.number("I", stamp_ns % 10**9)
        self.text(frame)

    def done(self) -> bytes:
        return b"".join(self.parts)


def write_image(stamp_ns: int, frame: str, encoding: str, pixels: Array) -> bytes:
    """An Image: pixels [H, W] or [H, W, C] of the encoding's type, of nv12 [H * 3 / 2, W]."""
    writer = _Writer()
    writer.header(stamp_ns, frame)
    height, width = pixels.shape[:2]
    writer.number("I", height * 2 // 3 if encoding == "nv12" else height)
    writer.number("I", width)
    writer.text(encoding)
    writer.number("B", 0)
    writer.number("I", pixels.nbytes // height)
    writer.number("I", pixels.nbytes)
    writer.numbers(pixels.view(np.uint8))
    return writer.done()


def write_compressed(stamp_ns: int, frame: str, kind: str, data: bytes | memoryview) -> bytes:
    """A CompressedImage of an encoded picture."""
    writer = _Writer()
    writer.header(stamp_ns, frame)
    writer.text(kind)
    writer.number("I", memoryview(data).nbytes)
    writer.put(data)
    return writer.done()


def write_cloud(stamp_ns: int, frame: str, names: Sequence[str], points: Array) -> bytes:
    """A PointCloud2 of float32 points [N, columns]."""
    writer = _Writer()
    writer.header(stamp_ns, frame)
    writer.number("I", 1)
    writer.number("I", len(points))
    writer.number("I", len(names))
    for column, name in enumerate(names):
        writer.text(name)
        writer.number("I", 4 * column)
        writer.number("B", 7)
        writer.number("I", 1)
    writer.number("B", 0)
    writer.number("I", 4 * len(names))
    writer.number("I", points.nbytes)
    writer.number("I", points.nbytes)
    writer.numbers(points.view(np.uint8))
    writer.number("B", 1)
    return writer.done()


def write_imu(stamp_ns: int, frame: str, values: Array) -> bytes:
    """An Imu of 10 values, in the order of this module's table."""
    writer = _Writer()
    writer.header(stamp_ns, frame)
    none = np.zeros(9)
    for part in (values[:4], none, values[4:7], none, values[7:10], none):
        writer.numbers(part.astype(np.float64))
    return writer.done()


def write_joints(stamp_ns: int, frame: str, names: Sequence[str], values: Array) -> bytes:
    """A JointState of values [3, joints]."""
    writer = _Writer()
    writer.header(stamp_ns, frame)
    writer.number("I", len(names))
    for name in names:
        writer.text(name)
    for part in values:
        writer.sequence(part.astype(np.float64))
    return writer.done()


def write_floats(values: Array) -> bytes:
    """A Float32MultiArray of one dimension."""
    writer = _Writer()
    writer.number("I", 0)
    writer.number("I", 0)
    writer.sequence(values.astype(np.float32, copy=False))
    return writer.done()
