"""LeRobot datasets (version 3) as inputs of ``onehop pack``, by the package pyarrow.

An episode stays one: ``episode_000012``. Every feature is a stream, and a frame's time is its
number divided by the dataset's rate, counted from the episode's start. Numbers become rows of
chunks or arrays, pictures in the tables stay PNG or JPEG.

Video stays as it is: a file is one sample, ``videos/STREAM/chunk-000/file-000`` with the field
``STREAM.mp4``, and each episode has a sample of stream STREAM that says which part of which file is
its own (``STREAM.json``). With ``video="frames"`` every frame is decoded, by the package av, and is
an array [H, W, 3] of uint8.

What the episode's task is is told by a sample of stream ``episode``; ``meta/lerobot`` holds the
dataset's info and statistics.
"""
from __future__ import annotations

import heapq
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from .. import errors
from ..shards import FileRange, Part, Sample, npy_part
from .input import (PART_BYTES, InputOptions, Item, Rows, Share, digest_of, file_digest, need,
                    reading, record_key)
from .names import Cleaner
from .notes import Notes
from .runs import place

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

INFO, STATS, EPISODES = "meta/info.json", "meta/stats.json", "meta/episodes"
_DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
_IMPLIED = ("timestamp", "episode_index")
_TOLERANCE = 1e-4
"""Seconds that LeRobot lets a timestamp differ from its frame's."""
_MOST_FRAMES = 10**6 * 3600
_MOST_SECONDS = 1e9
_BLOCK_BYTES = 4 << 20
_WHY = "packing a LeRobot dataset"
VIDEO = ("encoded", "frames")


def accepts(path: str, options: InputOptions) -> bool:
    """A folder with LeRobot's info."""
    info = os.path.join(path, INFO)
    if not os.path.isfile(info):
        return False
    with reading(info), open(info, "rb") as file:
        return b'"codebase_version"' in file.read(1 << 20)


def open_input(path: str, options: InputOptions) -> LeRobotInput:
    """Reads the dataset's tables of episodes."""
    need("pyarrow.parquet", _WHY)
    if options.video not in VIDEO:
        raise errors.InvalidArgument(f"--video is {options.video!r}",
                                     f"give one of {', '.join(VIDEO)}")
    if options.video == "frames":
        need("av", "decoding video")
    return LeRobotInput(os.path.abspath(path), options)


class _Feature(NamedTuple):
    """A feature of the dataset, as a stream."""

    name: str
    stream: str
    kind: str                  # "rows", "arrays", "image" or "video"
    shape: tuple[int, ...]     # of a frame's value


class _Video(NamedTuple):
    """An episode's part of a video file."""

    path: str    # relative to the root
    begin_s: float
    end_s: float


class _Episode(NamedTuple):
    """An episode, and where it lies."""

    name: str
    number: int
    length: int
    path: str    # of its table, relative to the root
    row: int     # its first, in the table
    videos: dict[str, _Video]
    tasks: list[str]


def _broken(path: str, words: object) -> errors.Malformed:
    return errors.Malformed(f"{path!r}: {words}", "make the dataset anew, or correct it")


class _foreign:
    """with _foreign(path, "Parquet"): what another package says of a file becomes an error of ours.

    Files that are damaged make these packages raise all sorts of exceptions.
    """

    def __init__(self, path: str, what: str) -> None:
        self._path, self._what = path, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, errors.OnehopError):
            raise _broken(self._path, f"no {self._what}: {str(error) or type(error).__name__}"
                          ) from error


# ---- the tables ---------------------------------------------------------------------------------


def _info(root: str) -> dict[str, Any]:
    path = os.path.join(root, INFO)
    with reading(path), open(path, "rb") as file:
        try:
            info = json.loads(file.read())
        except (ValueError, RecursionError) as error:
            raise _broken(path, f"no JSON: {error}") from error
    if not isinstance(info, dict) or not isinstance(info.get("features"), dict):
        raise _broken(path, "it has no features")
    version = str(info.get("codebase_version"))
    if not version.startswith("v3"):
        raise errors.UnsupportedData(
            f"{root!r} is a LeRobot dataset of version {version[:20]}", "bring it to version 3: "
            "python -m lerobot.datasets.v30.convert_dataset_v21_to_v30 --repo-id=ITS_ID")
    return info


def _rate(root: str, info: dict[str, Any]) -> Fraction:
    fps = info.get("fps")
    if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 0.5 <= fps <= 1e6:
        raise _broken(os.path.join(root, INFO), f"fps is {fps!r}, no rate")
    return Fraction(str(fps))


def _filled(root: str, template: object, **names: object) -> str:
    """A path of the dataset's by its pattern; it may not leave the folder."""
    def value(found: re.Match[str]) -> str:
        if found[1] not in names:
            raise _broken(os.path.join(root, INFO), f"{template!r} has no {found[1]}")
        return format(names[found[1]], found[2] or "")

    path = re.sub(r"\{(\w+)(?::(0\dd))?\}", value, str(template))
    if os.path.isabs(path) or ".." in path.split("/") or "{" in path:
        raise _broken(os.path.join(root, INFO), f"{template!r} is no path within the dataset")
    return path


def _episode_rows(root: str) -> Iterator[dict[str, Any]]:
    """Rows of the tables of episodes, without statistics."""
    parquet = need("pyarrow.parquet", _WHY)
    folder = os.path.join(root, EPISODES)
    with reading(folder):
        paths = sorted(os.path.join(where, name) for where, _, names in os.walk(folder)
                       for name in names if name.endswith(".parquet"))
    for path in paths:
        rows: list[dict[str, Any]] = []
        with reading(path), open(path, "rb") as data, _foreign(path, "Parquet"):
            file = parquet.ParquetFile(data)
            wanted = [name for name in file.schema_arrow.names if not name.startswith("stats/")]
            for batch in file.iter_batches(columns=wanted):
                rows += batch.to_pylist()
        yield from rows


def _number(row: dict[str, Any], name: str, root: str) -> Any:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise _broken(os.path.join(root, EPISODES), f"{name} of an episode is {value!r}")
    return value


class LeRobotInput:
    """A dataset, opened; see `input.Input`."""

    kind = "LeRobot"

    def __init__(self, path: str, options: InputOptions) -> None:
        self.path, self.notes, self._options = path, Notes(), options
        self._cleaner = Cleaner(options.names, self.notes)
        self._info = _info(path)
        self._rate = _rate(path, self._info)
        self._features = [feature for name, told in self._info["features"].items()
                          if name not in _IMPLIED and (feature := self._feature(name, told))]
        self._about = "episode"
        while any(feature.stream == self._about for feature in self._features):
            self._about += "_"
        self._episodes = self._read_episodes()
        self._sizes = self._look()
        self._rows: dict[str, int] = {}
        for episode in self._episodes:
            self._rows[episode.path] = self._rows.get(episode.path, 0) + episode.length
        self.nbytes = sum(self._cost(episode) for episode in self._episodes) + sum(
            self._sizes[path][0] + PART_BYTES for path in self._videos_of())

    def _feature(self, name: str, told: Any) -> _Feature | None:
        """The feature as a stream; None if it is left out, which is noted."""
        path = os.path.join(self.path, INFO)
        shape = told.get("shape") if isinstance(told, dict) else None
        if not isinstance(shape, list) or not all(
                isinstance(dim, int) and 0 < dim < 1 << 31 for dim in shape) or len(shape) > 7:
            raise _broken(path, f"feature {name!r} has no shape")
        stream, dtype = self._cleaner.stream(name), str(told.get("dtype"))
        if dtype in ("image", "video"):
            return _Feature(name, stream, dtype, tuple(shape))
        size = _itemsize(dtype)
        if size is None:
            self.notes.skipped(f"feature {name}", f"of type {dtype[:40]}, which has no array")
            return None
        dims = () if shape == [1] else tuple(shape)
        nbytes = size
        for dim in dims:
            nbytes *= dim
        chunked = self._options.chunked(stream, nbytes, True)
        return _Feature(name, stream, "rows" if chunked else "arrays", dims)

    def _read_episodes(self) -> list[_Episode]:
        rows = sorted(_episode_rows(self.path), key=lambda row: int(
            _number(row, "episode_index", self.path)))
        if not rows:
            raise errors.UnsupportedData(f"{self.path!r} has no episode", "correct the path")
        width = max(6, len(str(rows[-1]["episode_index"])))
        used: dict[str, int] = {}
        made: list[_Episode] = []
        for row in rows:
            index, length = int(row["episode_index"]), int(_number(row, "length", self.path))
            if made and made[-1].number == index:
                raise _broken(os.path.join(self.path, EPISODES), f"episode {index} is there twice")
            path = _filled(self.path, self._info.get("data_path", _DATA_PATH),
                           **self._place(row, "data"))
            made.append(_Episode(self._cleaner.episode(f"{self._options.prefix}episode_"
                                                       f"{index:0{width}d}"),
                                 index, length, path, used.get(path, 0), self._videos(row),
                                 [str(task) for task in row.get("tasks") or ()]))
            used[path] = used.get(path, 0) + length
        return made

    def _place(self, row: dict[str, Any], what: str) -> dict[str, int]:
        return {name: int(_number(row, f"{what}/{name}", self.path))
                for name in ("chunk_index", "file_index")}

    def _videos(self, row: dict[str, Any]) -> dict[str, _Video]:
        made = {}
        for feature in self._features:
            if feature.kind == "video":
                what = f"videos/{feature.name}"
                path = _filled(self.path, self._info.get("video_path") or _VIDEO_PATH,
                               video_key=feature.name, **self._place(row, what))
                made[feature.name] = _Video(path, *(
                    float(_number(row, f"{what}/{end}_timestamp", self.path))
                    for end in ("from", "to")))
        return made

    def _look(self) -> dict[str, tuple[int, int]]:
        """Sizes and times of change of all files."""
        made = {}
        for episode in self._episodes:
            for path in (episode.path, *(video.path for video in episode.videos.values())):
                if path not in made:
                    whole = os.path.join(self.path, path)
                    with reading(whole, f"episode {episode.number} of a LeRobot dataset"):
                        found = os.stat(whole)
                    made[path] = (found.st_size, found.st_mtime_ns)
        return made

    def _cost(self, episode: _Episode) -> int:
        """Bytes of an episode, about; a part of a video is told by a small sample."""
        frames = self._options.video == "frames"
        rows = max(self._rows[episode.path], 1)
        nbytes = self._sizes[episode.path][0] * episode.length // rows + 2 * PART_BYTES
        for feature in self._features:
            if feature.kind == "video" and frames:
                pixels = 1
                for dim in feature.shape:
                    pixels *= dim
                nbytes += episode.length * (pixels + PART_BYTES)
            elif feature.kind != "rows":
                nbytes += episode.length * PART_BYTES
        return nbytes

    @property
    def streams(self) -> list[str]:
        """Names of the streams."""
        return [*(feature.stream for feature in self._features), self._about]

    def by_episode(self) -> list[Share]:
        """See `input.Share`. Times are those of the rate, from 0 in each episode."""
        return [Share(job.episodes[0].name, [job], 0,
                      round(max(job.episodes[0].length - 1, 0) * 10**9 / self._rate))
                for job in self._episode_jobs(1)]

    def jobs(self, limit: int) -> Sequence[FilesJob | LeRobotJob]:
        """The files that stay as they are, and episodes, some together; none of these is cut. See
        `input.Input`."""
        return [*self._file_jobs(limit), *self._episode_jobs(limit)]

    def _file_jobs(self, limit: int) -> list[FilesJob]:
        made = [FilesJob(self.path)]
        made[0].take("meta/lerobot", [(name, path) for name, path in (
            ("info.json", INFO), ("stats.json", STATS)) if self._is_there(path)])
        for path, stream in self._videos_of().items():
            if made[-1].nbytes + self._sizes[path][0] > limit:
                made.append(FilesJob(self.path))
            made[-1].take(_video_key(stream, path), [(f"{stream}.mp4", path)])
        return made

    def _is_there(self, path: str) -> bool:
        return os.path.isfile(os.path.join(self.path, path))

    def _videos_of(self) -> dict[str, str]:
        """By video file that is packed: its stream."""
        if self._options.video == "frames":
            return {}
        return {episode.videos[feature.name].path: feature.stream
                for feature in self._features if feature.kind == "video"
                for episode in self._episodes}

    def _episode_jobs(self, limit: int) -> list[LeRobotJob]:
        made: list[LeRobotJob] = []
        for episode in self._episodes:
            cost = self._cost(episode)
            if not made or made[-1].nbytes + cost > limit:
                made.append(LeRobotJob(self.path, self._rate, self._features,
                                       self._options.video == "frames", self._about))
            made[-1].take(episode, cost, self._sizes)
        return made


def _itemsize(dtype: str) -> int | None:
    """Bytes of a number of a feature's type; None for what is none."""
    found = re.fullmatch(r"(?:u?int|float)(8|16|32|64)", dtype)
    if found and dtype != "float8":
        return int(found[1]) // 8
    return 1 if dtype == "bool" else None


# ---- a part of it -------------------------------------------------------------------------------


@dataclass
class FilesJob:
    """Files of a dataset that are packed as they are; see `input.Job`."""

    log: ClassVar[bool] = False
    root: str
    samples: list[tuple[str, list[tuple[str, str]]]] = field(default_factory=list)
    nbytes: int = 0
    digest: str = ""

    def take(self, key: str, files: list[tuple[str, str]]) -> None:
        """Adds a sample of files, by their fields."""
        self.samples.append((key, files))
        for name, path in files:
            whole = os.path.join(self.root, path)
            self.nbytes += os.stat(whole).st_size + PART_BYTES
            self.digest = digest_of((self.digest, key, name, file_digest(whole)))

    @property
    def name(self) -> str:
        return f"{self.root}: {self.samples[0][0]} to {self.samples[-1][0]}"

    def items(self, notes: Notes) -> Iterator[Item]:
        """See `input.Job`."""
        for key, files in self.samples:
            yield Sample(key, tuple(Part(name, FileRange(os.path.join(self.root, path)))
                                    for name, path in files))


@dataclass
class LeRobotJob:
    """Some episodes; see `input.Job`."""

    log: ClassVar[bool] = True
    root: str
    rate: Fraction
    features: list[_Feature]
    frames: bool
    about: str     # the stream that tells of an episode
    episodes: list[_Episode] = field(default_factory=list)
    nbytes: int = 0
    digest: str = ""

    def take(self, episode: _Episode, cost: int, sizes: dict[str, tuple[int, int]]) -> None:
        """Adds an episode."""
        self.episodes.append(episode)
        self.nbytes += cost
        used = [episode.path, *(video.path for video in episode.videos.values())]
        self.digest = digest_of((self.root, self.digest, self.rate, self.frames, *self.features,
                                 *episode, *(sizes[path] for path in used)))

    @property
    def name(self) -> str:
        return f"{self.root}: {self.episodes[0].name} to {self.episodes[-1].name}"

    def items(self, notes: Notes) -> Iterator[Item]:
        """See `input.Job`."""
        for episode in self.episodes:
            table = _Table(self, episode)
            times = self._times(table, notes)
            parts: list[Iterable[Item]] = [[self._told(episode)]]
            parts += [self._stream(feature, episode, table, times) for feature in self.features]
            yield from heapq.merge(*parts, key=place)

    def _told(self, episode: _Episode) -> Sample:
        words = {"episode_index": episode.number, "length": episode.length, "tasks": episode.tasks}
        return _json_sample(episode, self.about, words)

    def _times(self, table: _Table, notes: Notes) -> NDArray[numpy.int64]:
        """[T]: frames by the rate; what the table says only where that is too far off."""
        import numpy

        period = 10**9 / self.rate
        frames = table.array("frame_index", ())
        if frames.dtype.kind not in "iu" or not ((frames >= 0) & (frames <= _MOST_FRAMES)).all():
            raise _broken(table.path, f"frame_index of episode {table.index} is no frame's number")
        made = numpy.array([round(frame * period) for frame in frames.tolist()], numpy.int64)
        if "timestamp" in table.names:
            told = table.array("timestamp", ()).astype(numpy.float64)
            if not (numpy.abs(told) < _MOST_SECONDS).all():
                raise _broken(table.path, f"timestamp of episode {table.index} is no time")
            limit = _TOLERANCE + 1e-6 * made.max(initial=0) / 1e9
            if numpy.abs(told - made / 1e9).max(initial=0) > limit:
                notes.warn(f"timestamps of {self.root} are not those of its rate, and are taken as "
                           "they are")
                made = numpy.rint(told * 1e9).astype(numpy.int64)
        if (numpy.diff(made) < 0).any():
            raise _broken(table.path, f"times of episode {table.index} fall")
        return made

    def _stream(self, feature: _Feature, episode: _Episode, table: _Table,
                times: NDArray[numpy.int64]) -> Iterable[Item]:
        if feature.kind == "video":
            if self.frames:
                return self._decoded(feature, episode, times)
            return [self._part_of(feature, episode)]
        if feature.kind == "image":
            return self._images(feature, episode, table, times)
        values = table.array(feature.name, feature.shape)
        if feature.kind == "arrays":
            return (_sample(episode, feature, row, times, npy_part(f"{feature.stream}.npy", value))
                    for row, value in enumerate(values))
        each = max(1, _BLOCK_BYTES // (values[:1].nbytes + 8))
        return [Rows(episode.name, feature.stream, row, times[row:row + each],
                     values[row:row + each]) for row in range(0, len(values), each)]

    def _part_of(self, feature: _Feature, episode: _Episode) -> Sample:
        video = episode.videos[feature.name]
        return _json_sample(episode, feature.stream, {
            "video": _video_key(feature.stream, video.path), "from_s": video.begin_s,
            "to_s": video.end_s, "fps": float(self.rate), "frames": episode.length})

    def _images(self, feature: _Feature, episode: _Episode, table: _Table,
                times: NDArray[numpy.int64]) -> Iterator[Sample]:
        for row, data in enumerate(table.images(feature.name)):
            ext = "jpg" if data.startswith(b"\xff\xd8") else "png"
            yield _sample(episode, feature, row, times, Part(f"{feature.stream}.{ext}", data))

    def _decoded(self, feature: _Feature, episode: _Episode, times: NDArray[numpy.int64]
                 ) -> Iterator[Sample]:
        video = episode.videos[feature.name]
        path = os.path.join(self.root, video.path)
        begin = Fraction(video.begin_s)
        frames = _frames(path, video.begin_s - float(1 / self.rate) / 2)
        for row in range(episode.length):
            found = next(frames, None)
            due = float(begin + row / self.rate)
            if found is None or abs(found[0] - due) > float(1 / self.rate) / 2:
                raise _broken(path, f"it has no frame at {due:.6f} s, which is frame {row} of "
                                    f"episode {episode.number}")
            yield _sample(episode, feature, row, times, npy_part(f"{feature.stream}.npy", found[1]))


def _video_key(stream: str, path: str) -> str:
    """``videos/STREAM/chunk-000/file-000``: the key of a file's sample."""
    ends = re.sub(r"[^!-~]|\.", "_", "/".join(path.removesuffix(".mp4").split("/")[-2:]))
    return f"videos/{stream}/{ends}"


def _json_sample(episode: _Episode, stream: str, words: dict[str, Any]) -> Sample:
    part = Part(f"{stream}.json", json.dumps(words, ensure_ascii=False).encode())
    return Sample(record_key(episode.name, stream, 0), (part,), 0, episode.name, stream)


def _sample(episode: _Episode, feature: _Feature, row: int, times: NDArray[numpy.int64],
            part: Part) -> Sample:
    return Sample(record_key(episode.name, feature.stream, row), (part,), int(times[row]),
                  episode.name, feature.stream)


class _Table:
    """An episode's rows of a table of data."""

    def __init__(self, job: LeRobotJob, episode: _Episode) -> None:
        parquet = need("pyarrow.parquet", _WHY)
        self.path, self.index = os.path.join(job.root, episode.path), episode.number
        with reading(self.path), open(self.path, "rb") as data, _foreign(self.path, "Parquet"):
            self._rows = _rows_of(parquet.ParquetFile(data), episode.row, episode.length)
        self.names: list[str] = self._rows.column_names
        mine = self.array("episode_index", ())
        if len(mine) != episode.length or (mine != episode.number).any():
            raise _broken(self.path, f"rows {episode.row} to {episode.row + episode.length} are "
                                     f"not those of episode {episode.number}")

    def _column(self, name: str) -> Any:
        if name not in self.names:
            raise _broken(self.path, f"it has no column {name!r}")
        column = self._rows.column(name)
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        return getattr(column, "storage", column)

    def array(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """A column of numbers, [T, *shape]."""
        with _foreign(self.path, "Parquet"):
            column = self._column(name)
            while hasattr(column.type, "value_type") and column.null_count == 0:
                column = column.flatten()
            missing, made = column.null_count, column.to_numpy(zero_copy_only=False)
        if missing:
            raise _broken(self.path, f"column {name!r} of episode {self.index} has values missing")
        count = self._rows.num_rows
        for dim in shape:
            count *= dim
        if made.size != count or made.dtype.kind not in "iufb":
            raise _broken(self.path, f"column {name!r} of episode {self.index} has {made.size} "
                                     f"values of {made.dtype}, for {self._rows.num_rows} frames of "
                                     f"shape {list(shape)}")
        shaped: NDArray[Any] = made.reshape(self._rows.num_rows, *shape)
        return shaped

    def images(self, name: str) -> Iterator[bytes]:
        """A column of pictures."""
        with _foreign(self.path, "Parquet"):
            values = self._column(name).to_pylist()
        for row, data in enumerate(values):
            data = data.get("bytes") if isinstance(data, dict) else data
            if not isinstance(data, bytes):
                raise _broken(self.path, f"frame {row} of episode {self.index} has no bytes in "
                                         f"{name!r}")
            yield data


def _rows_of(file: Any, first: int, count: int) -> Any:
    """Rows of a Parquet file, from the groups that hold them."""
    groups: list[int] = []
    begin, skip = 0, 0
    for number in range(file.metadata.num_row_groups):
        end = begin + file.metadata.row_group(number).num_rows
        if begin < first + count and end > first:
            skip = skip if groups else first - begin
            groups.append(number)
        begin = end
    return file.read_row_groups(groups).slice(skip, count)


def _frames(path: str, begin_s: float) -> Iterator[tuple[float, NDArray[Any]]]:
    """Frames of a video from a time on: their times in seconds, and RGB [H, W, 3]."""
    av = need("av", "decoding video")
    with reading(path), open(path, "rb") as file, _foreign(path, "video"):
        with av.open(file) as container:
            stream = container.streams.video[0]
            container.seek(max(0, int(begin_s / stream.time_base)), stream=stream)
            for frame in container.decode(stream):
                if frame.time is not None and frame.time >= begin_s:
                    yield frame.time, frame.to_ndarray(format="rgb24")
