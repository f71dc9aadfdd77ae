"""What made-up sensors see: clocks, pictures, depth, sweeps and signals, all by seed.

Everything is a function of seed, episode, stream and ordinal, so that any record can be made alone
and twice. Pictures are places of a large texture of waves and noise, and sweeps are turns of one
sweep: noise is made once and used again with shifts, since making is to be faster than writing.
"""
from __future__ import annotations

import io
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from . import errors

Array = npt.NDArray[Any]

SHIFTS = (64, 256)
"""Rows and columns by which the texture is larger than a picture; even."""
NOISE_ROWS = 65_521
JPEGS = 12
LIDAR_COLUMNS = ("x", "y", "z", "intensity", "ring", "time")


@dataclass(frozen=True)
class Sensor:
    """A stream of a made-up rig.

    Attributes
    ----------
    name : str
    kind : str
        ``"nv12"``, ``"rgb"``, ``"jpeg"``, ``"depth"``, ``"lidar"``, ``"touch"``, ``"joints"`` or
        ``"imu"``.
    rate : float
        Hz.
    dtype : str
        NumPy's.
    shape : tuple of int
        Of a record; of a sweep, the most points; of a JPEG, of the picture.
    drift : float
        The most that its clock's rate is off, as a share.
    jitter : float
        Standard deviation of a time, in periods.
    gaps : float
        Gaps of some periods, a second.
    twins : float
        Share of records that have the time of the one before.
    """

    name: str
    kind: str
    rate: float
    dtype: str
    shape: tuple[int, ...]
    drift: float = 1e-4
    jitter: float = 0.03
    gaps: float = 0.1
    twins: float = 0.001

    @property
    def small(self) -> bool:
        """Records are small, of one size and many."""
        return self.kind in ("touch", "joints", "imu")

    @cached_property
    def nbytes(self) -> int:
        """Of a record at most; of a JPEG, a guess."""
        count = int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize
        return count // 8 if self.kind == "jpeg" else count


def source(seed: int, *words: object) -> np.random.Generator:
    """Random numbers that belong to these words."""
    return np.random.default_rng([seed, zlib.crc32(repr(words).encode())])


def clock(sensor: Sensor, seed: int, episode: int, start_ns: int,
          seconds: float) -> npt.NDArray[np.int64]:
    """Times of a stream's records in an episode, int64 ns, never falling.

    The clock begins at a phase of its own, runs off by its drift, jitters, misses some periods in a
    row now and then, and gives some records their neighbour's time.
    """
    random = source(seed, "clock", episode, sensor.name)
    period = 1e9 / sensor.rate * (1 + random.uniform(-sensor.drift, sensor.drift))
    count = max(1, round(seconds * sensor.rate))
    jitter = np.clip(random.normal(0, sensor.jitter, count), -0.45, 0.45)
    times = (random.uniform(0, period) + (np.arange(count) + jitter) * period).astype(np.int64)
    np.maximum(times, 0, out=times)  # none comes before the episode
    keep = np.ones(count, bool)
    for begin in random.integers(0, count, random.poisson(sensor.gaps * seconds)):
        keep[begin + 1:begin + 1 + random.integers(2, 12)] = False
    times = np.sort(times[keep])
    twins = 1 + np.flatnonzero(random.random(len(times) - 1) < sensor.twins)
    times[twins] = times[twins - 1]
    return np.sort(times) + start_ns


class Content:
    """The records of a rig.

    Parameters
    ----------
    seed : int
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._made: dict[tuple[object, ...], Any] = {}

    def record(self, sensor: Sensor, episode: int, ordinal: int) -> Array | bytes:
        """One record of a stream that is not small: an array, good until the next call, or a JPEG.
        """
        place = zlib.crc32(f"{episode}/{sensor.name}".encode()) + ordinal * 7919
        if sensor.kind == "jpeg":
            return self._jpeg(sensor, place, f"{episode}/{sensor.name}/{ordinal}")
        if sensor.kind == "lidar":
            return self._sweep(sensor, place)
        return self._picture(sensor, place)

    def rows(self, sensor: Sensor, first: int, times_ns: npt.NDArray[np.int64],
             start_ns: int) -> Array:
        """Records of a small stream from an ordinal on, [T, ...]: waves of the time, and noise."""
        noise = self._cached(("noise", sensor.shape), lambda: self._noise(sensor))
        values = noise[(first + np.arange(len(times_ns))) % NOISE_ROWS]
        phases = np.arange(values[0].size, dtype=np.float32).reshape(sensor.shape)
        since = ((times_ns - start_ns) / 1e9).astype(np.float32)
        values += np.sin(since.reshape(-1, *(1,) * len(sensor.shape)) * 2 + phases)
        return np.asarray(values, sensor.dtype)

    def _cached(self, name: tuple[object, ...], make: Any) -> Any:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def _noise(self, sensor: Sensor) -> Array:
        random = source(self._seed, "noise", sensor.shape)
        return random.normal(0, 0.1, (NOISE_ROWS, *sensor.shape)).astype(np.float32)

    def _waves(self, dtype: str, shape: tuple[int, ...], mean: float, wave: float,
               noise: int) -> Array:
        """A texture, larger than the shape by `SHIFTS`."""
        random = source(self._seed, "waves", dtype, shape)
        height, width = shape[0] + SHIFTS[0], shape[1] + SHIFTS[1]
        rows = np.sin(np.arange(height, dtype=np.float32) / 61)[:, None]
        smooth = mean + wave * (rows + np.sin(np.arange(width, dtype=np.float32) / 97))
        made: Array = random.integers(0, noise, (height, width, *shape[2:]), dtype)
        made += np.asarray(smooth, dtype).reshape(height, width, *(1,) * (len(shape) - 2))
        return made

    def _texture(self, kind: str, dtype: str, shape: tuple[int, ...]) -> Array:
        mean, wave, noise = (3000.0, 1000.0, 200) if kind == "depth" else (110.0, 50.0, 24)
        made: Array = self._cached((kind, shape), lambda: self._waves(dtype, shape, mean, wave,
                                                                      noise))
        return made

    def _picture(self, sensor: Sensor, place: int) -> Array:
        down, right = place % (SHIFTS[0] // 2) * 2, place // 32 % (SHIFTS[1] // 2) * 2
        made: Array = self._cached(("picture", sensor.shape, sensor.dtype),
                                   lambda: np.empty(sensor.shape, sensor.dtype))
        height, width = sensor.shape[:2]
        if sensor.kind == "nv12":
            height = height * 2 // 3
            colour = self._texture("colour", sensor.dtype, (height // 2, width))
            made[height:] = colour[down // 2:down // 2 + height // 2, right:right + width]
        texture = self._texture(sensor.kind, sensor.dtype, (height, width, *sensor.shape[2:]))
        made[:height] = texture[down:down + height, right:right + width]
        return made

    def _sweep(self, sensor: Sensor, place: int) -> Array:
        """A turn of the same sweep, of a number of points of its own, from a little elsewhere."""
        whole: Array = self._cached(("sweep", sensor.shape), lambda: self._scan(sensor))
        points = len(whole) - place * 31 % max(1, len(whole) // 6)
        turn = place % len(whole)
        rest = max(0, turn + points - len(whole))
        made = np.concatenate((whole[turn:turn + points], whole[:rest]))
        made[:, :2] += np.float32(place % 1000 * 0.01)
        return made

    def _scan(self, sensor: Sensor) -> Array:
        random = source(self._seed, "sweep", sensor.shape)
        count, rings = sensor.shape[0], 128
        turn = np.linspace(0, 2 * np.pi, count, endpoint=False, dtype=np.float32)
        ring = np.arange(count) % rings
        far = (5 + 60 * random.random(count) ** 2).astype(np.float32)
        up = ((ring / rings - 0.6) * 0.7).astype(np.float32)
        return np.stack((far * np.cos(turn), far * np.sin(turn), far * np.sin(up),
                         random.integers(0, 256, count).astype(np.float32), ring,
                         turn / np.float32(2 * np.pi) * np.float32(1 / sensor.rate)),
                        axis=1).astype(sensor.dtype)

    def _jpeg(self, sensor: Sensor, place: int, name: str) -> bytes:
        """One of a few pictures, with a comment that tells the record."""
        variants: list[bytes] = self._cached(("jpeg", sensor.shape), lambda: self._encoded(sensor))
        data = variants[place % len(variants)]
        words = name.encode()
        comment = b"\xff\xfe" + (len(words) + 2).to_bytes(2, "big") + words
        return b"".join((data[:2], comment, data[2:]))

    def _encoded(self, sensor: Sensor) -> list[bytes]:
        image = pillow()
        pixels = Sensor(sensor.name, "rgb", sensor.rate, sensor.dtype, sensor.shape)
        made = []
        for number in range(JPEGS):
            file = io.BytesIO()
            image.fromarray(self._picture(pixels, number * 7919)).save(file, "JPEG", quality=85)
            made.append(file.getvalue())
        return made


def pillow() -> Any:
    """PIL.Image.

    Raises
    ------
    Unsupported
        It is not installed.
    """
    try:
        from PIL import Image
    except ImportError:
        raise errors.Unsupported("JPEG pictures are made by Pillow, which is not installed",
                                 "pip install pillow, or take --raw") from None
    return Image
