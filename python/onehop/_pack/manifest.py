"""A folder with a manifest: a table that says which bytes of which file are which stream's record.

The manifest is CSV or Parquet with the columns ``stream``, ``timestamp_ns`` and ``path`` (relative
to the folder), and, where they are wanted, ``episode``, ``offset``, ``size``, ``dtype`` and
``shape``. A dtype is spelled as numpy or safetensors does, a shape ``480x640x3``.
"""
from __future__ import annotations

import csv
import math
import os
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from .. import dtypes, errors
from ..shards import FileRange, Part, Sample
from .input import PART_BYTES, InputOptions, Item, Rows, Share, digest_of, need, reading, record_key
from .names import Cleaner
from .notes import Notes
from .runs import TIME_BYTES, cuts, runs

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

_NEEDED = ("stream", "timestamp_ns", "path")
_OTHERS = ("episode", "offset", "size", "dtype", "shape")
_ITEMSIZE = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8,
             "I64": 8, "F16": 2, "BF16": 2, "F32": 4, "F64": 8, "C64": 8, "F8_E4M3": 1,
             "F8_E5M2": 1}
_BY_NUMPY = {theirs: ours for ours, theirs in (*dtypes.NUMPY.items(), *dtypes.ML_DTYPES.items())}


class Type(NamedTuple):
    """What a record's bytes hold; a shape of None is what the size gives, in one dimension."""

    dtype: str
    shape: tuple[int, ...] | None


class Record(NamedTuple):
    """A row of a manifest. A size of None is all to the file's end."""

    episode: str
    stream: str
    timestamp_ns: int
    path: str
    offset: int = 0
    size: int | None = None
    type: Type | None = None


def accepts(path: str, options: InputOptions) -> bool:
    return options.manifest is not None or options.nuscenes


def open_input(path: str, options: InputOptions) -> ManifestInput:
    """Reads the manifest, or makes it from a nuScenes folder."""
    if not os.path.isdir(path):
        raise errors.InvalidArgument(f"{path!r} is no folder",
                                     "a manifest's paths are relative to the folder that is packed")
    if options.manifest is None:
        from .nuscenes import records

        return ManifestInput(path, "nuscenes", path, records(path), options)
    return ManifestInput(path, "manifest", options.manifest, _read(options.manifest), options)


# ---- reading ------------------------------------------------------------------------------------


def _read(path: str) -> Iterator[Record]:
    with reading(path, "the manifest"):
        rows = _parquet(path) if path.endswith((".parquet", ".pq")) else _csv(path)
        for number, row in enumerate(rows, 1):
            try:
                made = _record(row)
            except ValueError as error:
                raise errors.Malformed(f"the manifest {path!r}, row {number}: {error}",
                                       "correct it; docs/guide/sensors.md has the columns"
                                       ) from error
            yield made


def _csv(path: str) -> Iterator[dict[str, Any]]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        try:
            rows = csv.DictReader(file)
            _check_columns(path, rows.fieldnames or ())
            yield from rows
        except (csv.Error, UnicodeDecodeError) as error:
            raise errors.Malformed(f"the manifest {path!r} is no CSV: {error}",
                                   "write it as UTF-8 with commas and a header line") from error


def _parquet(path: str) -> Iterator[dict[str, Any]]:
    parquet = need("pyarrow.parquet", "a manifest in Parquet")
    arrow = need("pyarrow", "a manifest in Parquet")
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            _check_columns(path, names)
            wanted = [name for name in names if name in (*_NEEDED, *_OTHERS)]
            for batch in file.iter_batches(columns=wanted):
                yield from batch.to_pylist()
    except arrow.ArrowException as error:
        raise errors.Malformed(f"the manifest {path!r} is no Parquet: {error}", "make it anew"
                               ) from error


def _check_columns(path: str, names: Sequence[str]) -> None:
    missing = [name for name in _NEEDED if name not in names]
    if missing:
        raise errors.Malformed(f"the manifest {path!r} has no column {', '.join(missing)}",
                               f"it needs {', '.join(_NEEDED)} and may have {', '.join(_OTHERS)}")


def _record(row: dict[str, Any]) -> Record:
    for name in _NEEDED:
        if row.get(name) in (None, ""):
            raise ValueError(f"{name} is empty")
    size = _integer(row, "size", None)
    return Record(str(row.get("episode") or ""), str(row["stream"]),
                  _integer(row, "timestamp_ns", 0, -2 ** 63 + 1) or 0, str(row["path"]),
                  _integer(row, "offset", 0) or 0, size, _type(row.get("dtype"), row.get("shape")))


def _integer(row: dict[str, Any], name: str, fallback: int | None, least: int = 0) -> int | None:
    value = row.get(name)
    if value is None or value == "":
        return fallback
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            raise ValueError(f"{name} is {value!r}, which is no integer") from None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} is {value!r}, which is no integer")
    if not least <= value < 2 ** 63:
        raise ValueError(f"{name} is {value}, which is out of range")
    return value


def _type(dtype: str | None, shape: Any) -> Type | None:
    if not dtype:
        if shape not in (None, "", []):
            raise ValueError("a shape is given without a dtype")
        return None
    name = _BY_NUMPY.get(dtype, dtype.upper())
    if name not in _ITEMSIZE:
        raise ValueError(f"dtype {dtype!r} is not known; known are {', '.join(_ITEMSIZE)}")
    if shape is None or shape == "":
        return Type(name, None)
    if isinstance(shape, str):
        if not re.fullmatch(r"[\[(]?\d+([x,; ]+\d+)*,?[\])]?", shape):
            raise ValueError(f"shape {shape!r} is not written as 480x640x3")
        shape = re.findall(r"\d+", shape)
    dims = tuple(int(dim) for dim in shape)
    if len(dims) > 8 or min(dims, default=0) < 0:
        raise ValueError(f"shape {dims} has more than 8 dimensions or a negative one")
    return Type(name, dims)


# ---- the records, sorted ------------------------------------------------------------------------


class _Stream(NamedTuple):
    """How a stream's records are packed."""

    name: str
    chunked: Type | None   # with its shape
    data_offset: int       # of the array in a record that is chunked


@dataclass
class _Columns:
    """Records, sorted by episode, the time of what they lie in, and stream."""

    root: str
    episodes: list[str]
    streams: list[_Stream]
    types: list[Type | None]
    episode: NDArray[numpy.int32]
    stream: NDArray[numpy.int32]
    type: NDArray[numpy.int32]
    time_ns: NDArray[numpy.int64]
    offset: NDArray[numpy.int64]
    size: NDArray[numpy.int64]
    whole: NDArray[numpy.bool_]      # the size was not given
    ordinal: NDArray[numpy.int64]
    begins: NDArray[numpy.bool_]     # a record of its own, or the first of a run
    paths: list[str]

    def _with(self, which: Any, paths: list[str]) -> _Columns:
        return _Columns(self.root, self.episodes, self.streams, self.types, self.episode[which],
                        self.stream[which], self.type[which], self.time_ns[which],
                        self.offset[which], self.size[which], self.whole[which],
                        self.ordinal[which], self.begins[which], paths)

    def piece(self, begin: int, end: int) -> _Columns:
        """Those from begin on and before end."""
        return self._with(slice(begin, end), self.paths[begin:end])

    def in_order(self, order: NDArray[numpy.int64]) -> _Columns:
        return self._with(order, [self.paths[index] for index in order])


def extension(path: str) -> str:
    """What a record's field is called after the stream: the ends of its file's name that begin with
    a letter, ``pcd.bin`` of ``7__LIDAR__15.02.pcd.bin``; ``bin`` where there is none."""
    found = re.search(r"(?:\.[A-Za-z][^./]*)+$", os.path.basename(path)[1:])
    return found.group()[1:] if found else "bin"


@dataclass
class ManifestJob:
    """Records that follow each other; see `input.Job`."""

    log: ClassVar[bool] = True
    rows: _Columns
    nbytes: int
    stats: dict[str, tuple[int, int]] = field(repr=False)

    @property
    def name(self) -> str:
        rows = self.rows
        return (f"{rows.root}: episode {rows.episodes[rows.episode[0]]}, {rows.time_ns.min()} to "
                f"{rows.time_ns.max()} ns")

    @property
    def digest(self) -> str:
        rows = self.rows
        arrays = (rows.episode, rows.stream, rows.type, rows.time_ns, rows.offset, rows.size,
                  rows.ordinal)
        return digest_of((rows.root, rows.episodes, rows.streams, rows.types,
                          *(column.tobytes() for column in arrays), *rows.paths,
                          *(self.stats[path] for path in rows.paths)))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "stats": {}}  # only the planner asks for digests

    def items(self, notes: Notes) -> Iterator[Item]:
        import numpy

        rows = self.rows
        starts = numpy.flatnonzero(rows.begins).tolist()
        for begin, end in zip(starts, [*starts[1:], len(rows.paths)]):
            stream = rows.streams[rows.stream[begin]]
            if stream.chunked is None:
                yield _sample(rows, begin, stream)
            else:
                yield _rows(rows.piece(begin, end), stream)


def _sample(rows: _Columns, index: int, stream: _Stream) -> Sample:
    """A record as a sample of its own."""
    path, size = rows.paths[index], int(rows.size[index])
    kind, ends = rows.types[rows.type[index]], extension(path)
    episode, time_ns = rows.episodes[rows.episode[index]], int(rows.time_ns[index])
    whole = bool(rows.whole[index])
    place = FileRange(os.path.join(rows.root, path), int(rows.offset[index]),
                      None if whole and kind is None else size)
    part = Part(f"{stream.name}.{ends}", place)
    if kind is not None and not ends.lower().endswith("npy"):
        shape = kind.shape
        if shape is None:
            shape = (size // _ITEMSIZE[kind.dtype],)
        part = part._replace(dtype=kind.dtype, shape=shape)
    return Sample(record_key(episode, stream.name, int(rows.ordinal[index])), (part,), time_ns,
                  episode, stream.name)


def _rows(run: _Columns, stream: _Stream) -> Rows:
    """Reads a run of records."""
    import numpy

    assert stream.chunked is not None and stream.chunked.shape is not None
    name, shape = stream.chunked.dtype, stream.chunked.shape
    count, size = len(run.paths), int(run.size[0])
    payload = numpy.frombuffer(_read_run(run, size), numpy.uint8).reshape(count, size)
    if stream.data_offset:
        _check_heads(run, payload, stream)
    dtype = dtypes.numpy_dtype(name, False, _ITEMSIZE[name])
    values = numpy.ascontiguousarray(payload[:, stream.data_offset:]).view(dtype)
    return Rows(run.episodes[run.episode[0]], stream.name, int(run.ordinal[0]), run.time_ns,
                values.reshape(count, *shape))


def _read_run(run: _Columns, size: int) -> bytearray:
    """The bytes of records of one size; those that follow each other in a file in one read."""
    out = bytearray(len(run.paths) * size)
    view, at = memoryview(out), 0
    while at < len(run.paths):
        path, first = run.paths[at], int(run.offset[at])
        end = at + 1
        while (end < len(run.paths) and run.paths[end] == path
               and run.offset[end] == first + (end - at) * size):
            end += 1
        whole = os.path.join(run.root, path)
        with reading(whole, "cannot read a record"), open(whole, "rb", buffering=0) as file:
            file.seek(first)
            _fill(file, view[at * size:end * size], whole)
        at = end
    return out


def _fill(file: Any, view: memoryview, path: str) -> None:
    filled = 0
    while filled < len(view):
        got = file.readinto(view[filled:])
        if not got:
            raise errors.FileChanged(f"{path!r} became shorter while it was packed",
                                     "pack when nothing writes to it")
        filled += got


def _check_heads(run: _Columns, payload: NDArray[numpy.uint8], stream: _Stream) -> None:
    """All .npy headers are the stream's."""
    heads = payload[:, :stream.data_offset]
    other = (heads != heads[0]).any(axis=1)
    wrong = int(other.argmax())
    if not other.any() and (stream.chunked, stream.data_offset) == _npy_type(
            os.path.join(run.root, run.paths[0]), int(run.offset[0]), int(run.size[0])):
        return
    raise errors.Malformed(
        f"{run.paths[wrong]!r} is of another type or shape than others of stream {stream.name}, "
        "which is kept in chunks", f"give --rows {stream.name}")


# ---- planning -----------------------------------------------------------------------------------


class ManifestInput:
    """Records from any source, in order; see `input.Input`.

    Parameters
    ----------
    root : str
        What paths are relative to.
    kind : str
    source : str
        Of the records, for messages.
    records : iterable of Record
    options : InputOptions
    """

    def __init__(self, root: str, kind: str, source: str, records: Iterator[Record],
                 options: InputOptions) -> None:
        need("numpy", f"packing a {kind}")
        self.path, self.kind, self.notes = os.path.abspath(root), kind, Notes()
        self._source, self._options = source, options
        self._stats: dict[str, tuple[int, int]] = {}
        self._rows = self._in_runs(self._columns(records))
        self._costs = self._cost()
        self.nbytes = int(self._costs.sum())

    def _columns(self, records: Iterator[Record]) -> _Columns:
        import numpy

        cleaner = Cleaner(self._options.names, self.notes)
        episodes, streams = _Names(), _Names()
        types: dict[Type | None, int] = {None: 0}
        numbers = array("q")
        paths: list[str] = []
        for row, record in enumerate(records, 1):
            size = self._check(row, record)
            episode = cleaner.episode(record.episode or os.path.basename(self.path) or "episode")
            numbers.extend((episodes.number(episode), streams.number(cleaner.stream(record.stream)),
                            types.setdefault(record.type, len(types)), record.timestamp_ns,
                            record.offset, size, record.size is None))
            paths.append(record.path)
        if not numbers:
            raise errors.UnsupportedData(f"{self._source!r} names no record", "correct the path")
        table = numpy.frombuffer(numbers, numpy.int64).reshape(len(paths), -1)
        episode_of, stream_of = episodes.ranks()[table[:, 0]], streams.ranks()[table[:, 1]]
        order = numpy.lexsort((stream_of, table[:, 3], episode_of))
        table, episode_of, stream_of = table[order], episode_of[order], stream_of[order]
        made = _Columns(
            self.path, episodes.sorted(), [], list(types), episode_of, stream_of,
            table[:, 2].astype(numpy.int32), table[:, 3].copy(), table[:, 4].copy(),
            table[:, 5].copy(), table[:, 6].astype(bool), _ordinals(episode_of, stream_of),
            numpy.ones(len(paths), bool), [paths[index] for index in order])
        made.streams = [self._stream(made, number, name)
                        for number, name in enumerate(streams.sorted())]
        return made

    def _check(self, row: int, record: Record) -> int:
        """The record's size, after a look at its file."""
        stat = self._stats.get(record.path)
        if stat is None:
            whole = os.path.join(self.path, record.path)
            with reading(whole, f"{self._source!r}, row {row}, names"):
                found = os.stat(whole)
            stat = self._stats[record.path] = (found.st_size, found.st_mtime_ns)
        size = max(stat[0] - record.offset, 0) if record.size is None else record.size
        if record.offset + size > stat[0]:
            self._wrong(row, f"bytes {record.offset} to {record.offset + size} are beyond the end "
                             f"of {record.path!r}, which has {stat[0]}")
        if record.type is not None and not extension(record.path).lower().endswith("npy"):
            item = _ITEMSIZE[record.type.dtype]
            want = None if record.type.shape is None else item * math.prod(record.type.shape)
            if size % item or want not in (None, size):
                self._wrong(row, f"{size} bytes of {record.path!r} are no {record.type.dtype} of "
                                 f"shape {record.type.shape or '[-1]'}")
        return size

    def _wrong(self, row: int, what: str) -> None:
        raise errors.Malformed(f"{self._source!r}, row {row}: {what}", "correct the row")

    def _stream(self, rows: _Columns, number: int, name: str) -> _Stream:
        """Whether the stream is chunked, and as what."""
        import numpy

        mine = numpy.flatnonzero(rows.stream == number)
        sizes, kinds = rows.size[mine], numpy.unique(rows.type[mine])
        if len(kinds) > 1 or sizes.min() != sizes.max():
            made: tuple[Type | None, int] = (None, 0)
        else:
            made = self._one_type(rows, int(mine[0]), rows.types[int(kinds[0])])
        uniform = made[0] is not None
        chunked = self._options.chunked(name, int(sizes.max()) if uniform else 0, uniform)
        return _Stream(name, made[0] if chunked else None, made[1])

    def _one_type(self, rows: _Columns, index: int, kind: Type | None) -> tuple[Type | None, int]:
        """Type and place of the array in records that are all like the one at index."""
        path, size = rows.paths[index], int(rows.size[index])
        if extension(path).lower().endswith("npy"):
            return _npy_type(os.path.join(self.path, path), int(rows.offset[index]), size)
        if kind is not None and kind.shape is None:
            kind = kind._replace(shape=(size // _ITEMSIZE[kind.dtype],))
        return (kind, 0) if size else (None, 0)

    def _in_runs(self, rows: _Columns) -> _Columns:
        """The rows of streams that are chunked, put together."""
        import numpy

        places = rows.time_ns.copy()
        for number, stream in enumerate(rows.streams):
            if stream.chunked is not None:
                mine = numpy.flatnonzero(rows.stream == number)
                size = int(rows.size[mine[0]]) - stream.data_offset
                rows.begins[mine], places[mine] = runs(
                    rows.time_ns[mine], size, self._options.chunk_bytes, rows.episode[mine])
        return rows.in_order(numpy.lexsort((rows.ordinal, rows.stream, places, rows.episode)))

    def _cost(self) -> NDArray[numpy.int64]:
        """Bytes that each record takes, about."""
        import numpy

        apart = numpy.array([stream.chunked is None for stream in self._rows.streams])
        each = numpy.where(apart[self._rows.stream], PART_BYTES, TIME_BYTES)
        made: NDArray[numpy.int64] = self._rows.size + each
        return made

    @property
    def streams(self) -> list[str]:
        """Names of the streams."""
        return [stream.name for stream in self._rows.streams]

    def by_episode(self) -> list[Share]:
        """See `input.Share`."""
        return [Share(job.rows.episodes[job.rows.episode[0]], [job], int(job.rows.time_ns.min()),
                      int(job.rows.time_ns.max())) for job in self.jobs(1 << 62)]

    def jobs(self, limit: int) -> Sequence[ManifestJob]:
        """An episode each, or parts of one that is larger than the limit."""
        import numpy

        made, rows = [], self._rows
        firsts = numpy.flatnonzero(numpy.diff(rows.episode, prepend=-1)).tolist()
        for first, last in zip(firsts, [*firsts[1:], len(rows.paths)]):
            for begin, end, cost in cuts(self._costs[first:last], rows.begins[first:last], limit):
                made.append(ManifestJob(rows.piece(first + begin, first + end), cost, self._stats))
        return made


class _Names:
    """Names by number, as they come, and then by rank."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def sorted(self) -> list[str]:
        return sorted(self._numbers)

    def ranks(self) -> NDArray[numpy.int32]:
        import numpy

        made = numpy.empty(len(self._numbers), numpy.int32)
        for rank, name in enumerate(self.sorted()):
            made[self._numbers[name]] = rank
        return made


def _ordinals(episode: NDArray[numpy.int32], stream: NDArray[numpy.int32]
              ) -> NDArray[numpy.int64]:
    """For each record, how many of its stream and episode come before it."""
    import numpy

    group = episode.astype(numpy.int64) * (int(stream.max()) + 1) + stream
    order = numpy.argsort(group, kind="stable")
    sorted_group = group[order]
    first = numpy.searchsorted(sorted_group, sorted_group)
    made = numpy.empty(len(group), numpy.int64)
    made[order] = numpy.arange(len(group)) - first
    return made


def _npy_type(path: str, offset: int, size: int) -> tuple[Type | None, int]:
    """Type and place of the array in a .npy file; None for what is no plain array."""
    import numpy

    from ..shards import dtype_name

    with reading(path), open(path, "rb") as file:
        file.seek(offset)
        try:
            version = numpy.lib.format.read_magic(file)
            read = {(1, 0): numpy.lib.format.read_array_header_1_0,
                    (2, 0): numpy.lib.format.read_array_header_2_0}[version]
            shape, fortran, dtype = read(file)
        except (ValueError, KeyError):
            return None, 0
        begins = file.tell() - offset
    name = dtype_name(dtype) if dtype.isnative else None
    if name is None or fortran or begins + math.prod(shape) * dtype.itemsize != size:
        return None, 0
    return Type(name, tuple(shape)), begins
