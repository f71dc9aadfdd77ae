"""``onehop sensors``: what a car or a robot records, made up, at any scale.

    onehop sensors -o drive --seconds 10 --format shards
    onehop sensors -o drive --jpeg --size 1920x1080 --format mcap --episodes 20

Eight cameras at 30 Hz, a stereo pair, a depth camera, lidar at 10 Hz (points that vary in number:
x, y, z, intensity, ring, time), touch at 1 kHz, joints at 100 Hz (position, velocity, torque) and
an inertial unit at 200 Hz (quaternion, rates, accelerations). Each has a clock of its own, with
drift, jitter, gaps, and records that share a time. The same words and seed make the same bytes.

Formats: ``files``, a tree with a manifest that ``onehop pack --manifest`` reads; ``mcap``, logs of
ROS 2 messages, in the order in which they were logged; ``shards``, as ``onehop pack`` makes them.
"""
from __future__ import annotations

import argparse
import errno
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from . import _progress, errors
from ._progress import Progress
from ._sensors_data import Content, Sensor, clock, pillow
from ._sensors_out import SHARD_BYTES, Episode, Files, Mcap, Shards, Sink

__all__ = ["Made", "Rig", "main", "make", "parser"]

FORMATS = ("files", "mcap", "shards")
STREAMS = ("cam", "stereo", "depth", "lidar", "touch", "joints", "imu")
FIRST_NS = 1_700_000_000 * 10**9
_SPACE = 1.02
_MOST_PIXELS = 1 << 28
_MOST_TIMES = 10**9


@dataclass(frozen=True)
class Rig:
    """What is made.

    Attributes
    ----------
    seconds : float
        Of an episode.
    episodes : int
    cameras : int
    size : tuple of int
        (width, height) of the cameras, even numbers.
    pixels : {"nv12", "rgb", "jpeg"}
        Of the cameras; jpeg needs Pillow.
    stereo, depth : tuple of int
        (width, height).
    points : int
        Of a sweep of lidar, at most; a sixth fewer at least.
    channels, joints : int
        Of touch, and joints.
    streams : tuple of str
        Those of `STREAMS` that there are.
    seed : int
    """

    seconds: float = 10.0
    episodes: int = 2
    cameras: int = 8
    size: tuple[int, int] = (3840, 2160)
    pixels: str = "nv12"
    stereo: tuple[int, int] = (1280, 720)
    depth: tuple[int, int] = (640, 480)
    points: int = 130_000
    channels: int = 20
    joints: int = 29
    streams: tuple[str, ...] = STREAMS
    seed: int = 0

    def check(self) -> None:
        """Raises InvalidArgument for what cannot be made."""
        for what, most in (("episodes", 10**6), ("cameras", 100), ("points", 1 << 26),
                           ("channels", 10**5), ("joints", 10**4)):
            value = getattr(self, what)
            if not 1 <= value <= most:
                raise errors.InvalidArgument(f"{what} is {value}", f"give 1 to {most}")
        if not 0 < self.seconds * 1000 <= _MOST_TIMES:
            raise errors.InvalidArgument(f"seconds is {self.seconds:g}",
                                         f"give more than 0, and {_MOST_TIMES // 1000} at most; "
                                         "take more episodes for more")
        if not 0 <= self.seed < 1 << 63:
            raise errors.InvalidArgument(f"seed is {self.seed}", "give 0 or more, below 2^63")
        for what, size in (("size", self.size), ("stereo", self.stereo), ("depth", self.depth)):
            if min(size) < 2 or size[0] % 2 or size[1] % 2 or size[0] * size[1] > _MOST_PIXELS:
                raise errors.InvalidArgument(f"{what} is {size[0]}x{size[1]}",
                                             "give WIDTHxHEIGHT in even numbers, and no more than "
                                             f"{_MOST_PIXELS} pixels")
        unknown = [name for name in self.streams if name not in STREAMS]
        if unknown or not self.streams:
            raise errors.InvalidArgument(f"streams are {', '.join(self.streams) or 'none'}",
                                         f"there are {', '.join(STREAMS)}")

    def sensors(self) -> list[Sensor]:
        """The streams, in the order of `STREAMS`."""
        made = []
        for name in STREAMS:
            if name in self.streams:
                made += getattr(self, f"_{name}")()
        return made

    def _cam(self) -> list[Sensor]:
        width, height = self.size
        shape = (height * 3 // 2, width) if self.pixels == "nv12" else (height, width, 3)
        return [Sensor(f"cam{number}", self.pixels, 30, "uint8", shape)
                for number in range(self.cameras)]

    def _stereo(self) -> list[Sensor]:
        width, height = self.stereo
        return [Sensor(f"stereo_{side}", "rgb", 30, "uint8", (height, width, 3))
                for side in ("left", "right")]

    def _depth(self) -> list[Sensor]:
        return [Sensor("depth", "depth", 30, "uint16", (self.depth[1], self.depth[0]))]

    def _lidar(self) -> list[Sensor]:
        return [Sensor("lidar", "lidar", 10, "float32", (self.points, 6), jitter=0.01)]

    def _touch(self) -> list[Sensor]:
        return [Sensor("touch", "touch", 1000, "float32", (self.channels,), jitter=0.1)]

    def _joints(self) -> list[Sensor]:
        return [Sensor("joints", "joints", 100, "float32", (3, self.joints), jitter=0.05)]

    def _imu(self) -> list[Sensor]:
        return [Sensor("imu", "imu", 200, "float32", (10,), jitter=0.05)]

    def nbytes(self) -> int:
        """Of all records, about."""
        return int(self.episodes * self.seconds * sum(sensor.rate * sensor.nbytes
                                                      for sensor in self.sensors()))


@dataclass(frozen=True)
class Made:
    """What came of it.

    Attributes
    ----------
    records, nbytes : int
        Records, and the bytes of those as they were written, without names and indexes.
    seconds : float
        That it took.
    """

    records: int
    nbytes: int
    seconds: float

    def __str__(self) -> str:
        return (f"{self.records} records, {self.nbytes / 1e9:.3g} GB in {self.seconds:.3g} s, "
                f"{self.nbytes / 1e6 / max(self.seconds, 1e-9):.0f} MB/s")


def _episodes(rig: Rig) -> Iterator[Episode]:
    """They begin a minute after each other's end."""
    content, sensors = Content(rig.seed), rig.sensors()
    for number in range(rig.episodes):
        start = FIRST_NS + number * (round(rig.seconds) + 60) * 10**9
        times = {sensor.name: clock(sensor, rig.seed, number, start, rig.seconds)
                 for sensor in sensors}
        yield Episode(number, f"drive-{number:04d}", start, sensors, times, content)


def _check_room(folder: str, rig: Rig) -> None:
    """Raises unless the folder is new or empty, and its disk has room."""
    if os.path.isdir(folder) and os.listdir(folder):
        raise errors.InvalidArgument(f"{folder} holds files already",
                                     "name a folder that is new or empty")
    above = os.path.abspath(folder)
    while not os.path.exists(above):
        above = os.path.dirname(above)
    needed, free = int(rig.nbytes() * _SPACE), shutil.disk_usage(above).free
    if needed > free:
        raise errors.IOFailed(f"{folder} has {free / 1e9:.3g} GB free, and about "
                              f"{needed / 1e9:.3g} GB are to be written",
                              "take fewer --seconds, --episodes or --cameras, a smaller --size, "
                              "or --jpeg", errno.ENOSPC)


def make(folder: str, rig: Rig, form: str = "files", *, single: bool = False,
         shard_bytes: int = SHARD_BYTES, progress: Progress = None) -> Made:
    """Writes a rig's records into a folder.

    Parameters
    ----------
    folder : str
        New or empty.
    rig : Rig
    form : {"files", "mcap", "shards"}
    single : bool
        Of files: small records have a file each, too.
    shard_bytes : int
        Of a shard, about.
    progress : bool or callable
        As of `onehop.load`.

    Raises
    ------
    InvalidArgument
        What cannot be made, or a folder that is not empty.
    Unsupported
        A package is missing.
    IOFailed
        There is no room, or writing failed.
    """
    rig.check()
    if form not in FORMATS:
        raise errors.InvalidArgument(f"format is {form!r}", f"give one of {', '.join(FORMATS)}")
    if rig.pixels == "jpeg":
        pillow()
    _check_room(folder, rig)
    try:
        return _write(_sink(folder, rig, form, single, shard_bytes), rig, progress)
    except OSError as error:
        if isinstance(error, errors.OnehopError):
            raise
        raise errors.IOFailed(f"cannot write in {folder}: {error.strerror or error}",
                              "see that there is room and that the folder may be written",
                              error.errno) from error


def _sink(folder: str, rig: Rig, form: str, single: bool, shard_bytes: int) -> Sink:
    if form == "mcap":
        return Mcap(folder, rig.seed)
    return Files(folder, single) if form == "files" else Shards(folder, shard_bytes)


def _write(sink: Sink, rig: Rig, progress: Progress) -> Made:
    begun, nbytes, records = time.monotonic(), 0, 0
    with _progress.shown(progress, "sensors") as on_turn, sink:
        for episode in _episodes(rig):
            records += sum(len(times) for times in episode.times.values())
            for written in sink.write(episode):
                nbytes += written
                if on_turn:
                    on_turn(nbytes, max(nbytes, rig.nbytes()))
    return Made(records, nbytes, time.monotonic() - begun)


# ---- the command --------------------------------------------------------------------------------


def _size(words: str) -> tuple[int, int]:
    width, _, height = words.partition("x")
    return int(width), int(height)


def _names(words: str) -> tuple[str, ...]:
    return tuple(words.split(","))


def parser() -> argparse.ArgumentParser:
    """The command line of ``onehop sensors``."""
    made = argparse.ArgumentParser(
        prog="onehop sensors", description="Makes what a car or a robot records, at any scale: "
        "cameras, lidar, touch, joints, each with a clock of its own.")
    plain = Rig()
    made.add_argument("-o", "--output", metavar="DIR", required=True, help="new or empty")
    made.add_argument("--format", choices=FORMATS, default="files")
    made.add_argument("--seconds", type=float, default=plain.seconds, help="of an episode (10)")
    made.add_argument("--episodes", type=int, default=plain.episodes, help="(2)")
    made.add_argument("--cameras", type=int, default=plain.cameras, help="(8)")
    made.add_argument("--size", type=_size, default=plain.size, metavar="WxH",
                        help="of the cameras (3840x2160)")
    kind = made.add_mutually_exclusive_group()
    kind.add_argument("--raw", dest="pixels", action="store_const", const="nv12",
                      default=plain.pixels, help="cameras give NV12, as without a word")
    kind.add_argument("--rgb", dest="pixels", action="store_const", const="rgb",
                      help="cameras give RGB of 8 bits")
    kind.add_argument("--jpeg", dest="pixels", action="store_const", const="jpeg",
                      help="cameras give JPEG; needs Pillow")
    made.add_argument("--stereo", type=_size, default=plain.stereo, metavar="WxH",
                        help="of the stereo pair (1280x720)")
    made.add_argument("--depth", type=_size, default=plain.depth, metavar="WxH",
                        help="of the depth camera (640x480)")
    made.add_argument("--points", type=int, default=plain.points, help="of a sweep (130000)")
    made.add_argument("--channels", type=int, default=plain.channels, help="of touch (20)")
    made.add_argument("--joints", type=int, default=plain.joints, help="(29)")
    made.add_argument("--streams", type=_names, default=plain.streams, metavar="LIST",
                        help=f"some of {','.join(STREAMS)}")
    made.add_argument("--seed", type=int, default=plain.seed, help="(0)")
    made.add_argument("--single-files", action="store_true",
                        help="of files: small records have a file each, too")
    made.add_argument("--shard-size", type=int, default=SHARD_BYTES, metavar="BYTES",
                        help="of shards: a new one is begun at so many (16 GiB)")
    return made


def main(words: Sequence[str]) -> int:
    """``onehop sensors``; returns the exit status. Errors are raised.

    Parameters
    ----------
    words : sequence of str
        What follows ``sensors``.
    """
    arguments = parser().parse_args(words)
    rig = Rig(**{name: getattr(arguments, name) for name in Rig.__dataclass_fields__})
    made = make(arguments.output, rig, arguments.format, single=arguments.single_files,
                shard_bytes=arguments.shard_size, progress=sys.stderr.isatty())
    _say(rig.sensors())
    print(f"{arguments.output}: {made}")
    return 0


def _say(sensors: Sequence[Sensor]) -> None:
    for sensor in sensors:
        shape = "x".join(map(str, sensor.shape))
        print(f"{sensor.name:14} {sensor.rate:6g} Hz  {sensor.kind:6} {sensor.dtype} {shape}")
