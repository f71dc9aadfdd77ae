"""Where made-up records go: a folder tree with a manifest, MCAP logs of ROS 2, or shards."""
from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TextIO

import numpy as np
import numpy.typing as npt

from . import _ros
from ._pack.input import need, record_key
from ._sensors_data import LIDAR_COLUMNS, Array, Content, Sensor, source
from .shards import Part, Sample, ShardWriter, npy_part, rows_sample

Times = npt.NDArray[np.int64]
MANIFEST = "manifest.csv"
SHARD_BYTES = 16 << 30
_COLUMNS = ("episode", "stream", "timestamp_ns", "path", "offset", "size", "dtype", "shape")
_ROWS = 4096
"""Small records that are made at once."""
_LATENCY_NS = {"nv12": 20_000_000, "rgb": 20_000_000, "jpeg": 35_000_000, "depth": 25_000_000,
               "lidar": 60_000_000}
"""From a record's time to when it is logged, in the mean; 1 ms for the others."""


class Episode(NamedTuple):
    """Some seconds of all sensors.

    Attributes
    ----------
    number : int
    name : str
    start_ns : int
    sensors : sequence of Sensor
    times : dict of str to int64 [T]
        By sensor.
    content : Content
    """

    number: int
    name: str
    start_ns: int
    sensors: Sequence[Sensor]
    times: dict[str, Times]
    content: Content

    def rows(self, sensor: Sensor, first: int, end: int) -> Array:
        """Records of a small stream, [end - first, ...]."""
        return self.content.rows(sensor, first, self.times[sensor.name][first:end], self.start_ns)

    def in_order(self, times: Callable[[Sensor], Times]) -> Iterator[tuple[Sensor, int]]:
        """(sensor, ordinal), sorted by those times and the sensor's name."""
        sensors = sorted(self.sensors, key=lambda sensor: sensor.name)
        columns = [times(sensor) for sensor in sensors]
        every = np.concatenate(columns)
        which = np.repeat(np.arange(len(sensors)), [len(column) for column in columns])
        rows = np.concatenate([np.arange(len(column)) for column in columns])
        for index in np.lexsort((rows, which, every)).tolist():
            yield sensors[which[index]], int(rows[index])


class Sink(Protocol):
    """Takes episodes; a with block around all of them ends what is written."""

    def __enter__(self) -> Sink: ...

    def __exit__(self, *what: object) -> None: ...

    def write(self, episode: Episode) -> Iterator[int]:
        """Writes an episode, and gives the bytes of each step."""
        ...


# ---- files --------------------------------------------------------------------------------------


class Files:
    """A file for each record, ``EPISODE/STREAM/ORDINAL.ext``, and the manifest.

    Small records lie one after the other in ``EPISODE/STREAM.bin``, unless each is to have a file.

    Parameters
    ----------
    folder : str
    single : bool
        Small records have a file each.
    """

    def __init__(self, folder: str, single: bool) -> None:
        self._folder, self._single = folder, single
        self._end = ExitStack()

    def __enter__(self) -> Files:
        os.makedirs(self._folder, exist_ok=True)
        self._partial = os.path.join(self._folder, MANIFEST + ".partial")
        self._file: TextIO = self._end.enter_context(
            open(self._partial, "w", newline="", encoding="utf-8"))
        self._manifest = csv.writer(self._file, lineterminator="\n")
        self._manifest.writerow(_COLUMNS)
        return self

    def __exit__(self, kind: object = None, *what: object) -> None:
        self._end.close()
        if kind is None:
            os.replace(self._partial, os.path.join(self._folder, MANIFEST))

    def write(self, episode: Episode) -> Iterator[int]:
        """See `Sink`."""
        whole = [sensor for sensor in episode.sensors if sensor.small and not self._single]
        for sensor in episode.sensors:
            if sensor not in whole:
                os.makedirs(os.path.join(self._folder, episode.name, sensor.name), exist_ok=True)
        os.makedirs(os.path.join(self._folder, episode.name), exist_ok=True)
        for sensor in whole:
            yield from self._strip(episode, sensor)
        for sensor, ordinal in episode.in_order(lambda one: episode.times[one.name]):
            if sensor in whole:
                self._strip_row(episode, sensor, ordinal)
            else:
                yield self._record(episode, sensor, ordinal)

    def _strip(self, episode: Episode, sensor: Sensor) -> Iterator[int]:
        """All small records of a stream, in one file."""
        with open(os.path.join(self._folder, episode.name, sensor.name + ".bin"), "wb") as file:
            count = len(episode.times[sensor.name])
            for first in range(0, count, _ROWS):
                yield file.write(episode.rows(sensor, first, min(first + _ROWS, count)).data)

    def _row(self, episode: Episode, sensor: Sensor, ordinal: int, *rest: object) -> None:
        self._manifest.writerow((episode.name, sensor.name,
                                 int(episode.times[sensor.name][ordinal]), *rest))

    def _strip_row(self, episode: Episode, sensor: Sensor, ordinal: int) -> None:
        self._row(episode, sensor, ordinal, f"{episode.name}/{sensor.name}.bin",
                  ordinal * sensor.nbytes, sensor.nbytes, sensor.dtype,
                  "x".join(map(str, sensor.shape)))

    def _record(self, episode: Episode, sensor: Sensor, ordinal: int) -> int:
        if sensor.small:
            value: Any = episode.rows(sensor, ordinal, ordinal + 1)[0]
        else:
            value = episode.content.record(sensor, episode.number, ordinal)
        encoded = isinstance(value, bytes)
        head = b"" if encoded else _npy_head(value.dtype.str, value.shape)
        size = len(head) + memoryview(value).nbytes
        path = f"{episode.name}/{sensor.name}/{ordinal:06d}.{'jpg' if encoded else 'npy'}"
        with open(os.path.join(self._folder, path), "wb", buffering=0) as file:
            for part in (head, value):
                _write(file, part)
        self._row(episode, sensor, ordinal, path, 0, size, "", "")
        return size


def _write(file: io.FileIO, data: Any) -> None:
    view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
    while view:
        view = view[file.write(view) or 0:]


@lru_cache(None)
def _npy_head(dtype: str, shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


# ---- shards -------------------------------------------------------------------------------------


class Shards:
    """Shards of samples by (time, stream), small streams in chunks of about a second.

    Parameters
    ----------
    folder : str
    shard_bytes : int
        A new shard is begun at so many bytes.
    """

    def __init__(self, folder: str, shard_bytes: int = SHARD_BYTES) -> None:
        self._folder, self._bytes = folder, shard_bytes

    def __enter__(self) -> Shards:
        os.makedirs(self._folder, exist_ok=True)
        self._writer = ShardWriter(os.path.join(self._folder, "sensors-%06d.tar"),
                                   maxsize=self._bytes)
        return self

    def __exit__(self, *what: Any) -> None:
        self._writer.__exit__(*what)

    def write(self, episode: Episode) -> Iterator[int]:
        """See `Sink`."""
        for sensor, ordinal in episode.in_order(lambda one: _chunk_times(episode, one)):
            sample = (_chunk(episode, sensor, ordinal) if sensor.small
                      else _sample(episode, sensor, ordinal))
            self._writer.add(sample)
            yield sum(part.nbytes() for part in sample.parts)


def _chunk_rows(sensor: Sensor) -> int:
    return max(1, round(sensor.rate))


def _chunk_times(episode: Episode, sensor: Sensor) -> Times:
    times = episode.times[sensor.name]
    return times[::_chunk_rows(sensor)] if sensor.small else times


def _chunk(episode: Episode, sensor: Sensor, number: int) -> Sample:
    first = number * _chunk_rows(sensor)
    times = episode.times[sensor.name][first:first + _chunk_rows(sensor)]
    return rows_sample(record_key(episode.name, sensor.name, first), episode.name, sensor.name,
                       times, episode.rows(sensor, first, first + len(times)))


def _sample(episode: Episode, sensor: Sensor, ordinal: int) -> Sample:
    value = episode.content.record(sensor, episode.number, ordinal)
    part = (Part(f"{sensor.name}.jpg", value) if isinstance(value, bytes)
            else npy_part(f"{sensor.name}.npy", value))
    return Sample(record_key(episode.name, sensor.name, ordinal), (part,),
                  int(episode.times[sensor.name][ordinal]), episode.name, sensor.name)


# ---- MCAP ---------------------------------------------------------------------------------------


_TYPES = {"nv12": "Image", "rgb": "Image", "depth": "Image", "jpeg": "CompressedImage",
          "lidar": "PointCloud2", "joints": "JointState", "imu": "Imu"}


def _ros_type(sensor: Sensor) -> str:
    if sensor.kind == "touch":
        return "std_msgs/msg/Float32MultiArray"
    return f"sensor_msgs/msg/{_TYPES[sensor.kind]}"


def _message(sensor: Sensor, time_ns: int, value: Any) -> bytes:
    """A record as CDR."""
    name, kind = sensor.name, sensor.kind
    if kind == "touch":
        return _ros.write_floats(value)
    if kind == "imu":
        return _ros.write_imu(time_ns, name, value)
    if kind == "joints":
        return _ros.write_joints(time_ns, name, [f"joint{i}" for i in range(value.shape[1])], value)
    if kind == "lidar":
        return _ros.write_cloud(time_ns, name, LIDAR_COLUMNS, value)
    if kind == "jpeg":
        return _ros.write_compressed(time_ns, name, "jpeg", value)
    encoding = {"nv12": "nv12", "rgb": "rgb8", "depth": "16UC1"}[kind]
    return _ros.write_image(time_ns, name, encoding, value)


class Mcap:
    """A log for each episode, ``EPISODE.mcap``: a topic for each stream, in the order of logging.

    A record is logged some time after it was taken, which its header has; touch has no header.

    Parameters
    ----------
    folder : str
    seed : int
        Of the delays.
    """

    def __init__(self, folder: str, seed: int) -> None:
        self._folder, self._seed = folder, seed
        self._mcap = need("mcap.writer", "writing MCAP logs")

    def __enter__(self) -> Mcap:
        os.makedirs(self._folder, exist_ok=True)
        return self

    def __exit__(self, *what: object) -> None:
        pass

    def _logged(self, episode: Episode, sensor: Sensor) -> Times:
        """When each record is logged."""
        times = episode.times[sensor.name]
        mean = _LATENCY_NS.get(sensor.kind, 1_000_000)
        random = source(self._seed, "latency", episode.number, sensor.name)
        delays = mean // 2 + random.exponential(mean / 2, len(times)).astype(np.int64)
        return np.maximum.accumulate(times + delays)

    def write(self, episode: Episode) -> Iterator[int]:
        """See `Sink`."""
        path = os.path.join(self._folder, episode.name + ".mcap")
        with open(path + ".partial", "wb") as file:
            writer = self._mcap.Writer(file, chunk_size=4 << 20,
                                       compression=self._mcap.CompressionType.NONE)
            writer.start(profile="ros2", library="onehop sensors")
            yield from self._messages(writer, episode)
            writer.finish()
        os.replace(path + ".partial", path)

    def _messages(self, writer: Any, episode: Episode) -> Iterator[int]:
        channels = _channels(writer, episode.sensors)
        logged = {sensor.name: self._logged(episode, sensor) for sensor in episode.sensors}
        blocks = {sensor.name: _Block(episode, sensor) for sensor in episode.sensors
                  if sensor.small}
        for sensor, ordinal in episode.in_order(lambda one: logged[one.name]):
            value = (blocks[sensor.name].row(ordinal) if sensor.small
                     else episode.content.record(sensor, episode.number, ordinal))
            time_ns = int(episode.times[sensor.name][ordinal])
            data = _message(sensor, time_ns, value)
            writer.add_message(channel_id=channels[sensor.name], data=data, sequence=ordinal,
                               log_time=int(logged[sensor.name][ordinal]), publish_time=time_ns)
            yield len(data)


class _Block:
    """The last small records that were made, some at a time."""

    def __init__(self, episode: Episode, sensor: Sensor) -> None:
        self._episode, self._sensor = episode, sensor
        self._first, self._rows = 0, np.zeros(0)

    def row(self, ordinal: int) -> Array:
        if not self._first <= ordinal < self._first + len(self._rows):
            self._first = ordinal - ordinal % _ROWS
            self._rows = self._episode.rows(self._sensor, self._first, self._first + _ROWS)
        row: Array = self._rows[ordinal - self._first]
        return row


def _channels(writer: Any, sensors: Sequence[Sensor]) -> dict[str, int]:
    """Topics, and the types that they need."""
    schemas: dict[str, int] = {}
    channels = {}
    for sensor in sensors:
        name = _ros_type(sensor)
        if name not in schemas:
            schemas[name] = writer.register_schema(
                name=name, encoding="ros2msg", data=_ros.DEFINITIONS[name].encode())
        channels[sensor.name] = writer.register_channel(
            topic="/" + sensor.name, message_encoding="cdr", schema_id=schemas[name])
    return channels


