"""Arrow and Parquet tables: each column a part of the row's sample, or a stream of its own.

A table with a column ``timestamp_ns`` and none called ``__key__`` is a log: each column of numbers
is a stream of a high rate, each other column a stream of records. Any other table is samples: a row
each, by the key in ``__key__`` or by the row's number. ``episode`` (and, of samples,
``timestamp_ns`` and ``stream``) is taken for what it is called. Where a value is null, there is no
part.

What a column becomes: bytes and images ``.jpg``, ``.png``, ``.npy`` or ``.bin`` by their first
value, text ``.txt``, integers and booleans ``.cls``, other numbers, lists of numbers and tensors
``.npy``, all else ``.json``. A column that is called like a field ("cam.jpg", "cls") is one.
"""
from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import errors
from ..shards import Part, Sample, make_part, npy_part
from .input import (PART_BYTES, InputOptions, Item, Rows, Share, digest_of, file_digest, need,
                    reading, record_key)
from .names import Cleaner
from .notes import Notes

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

_WHY = "packing a table"
_PARQUET, _ARROW = (".parquet", ".pq"), (".arrow", ".feather", ".ipc")
_BATCH_BYTES = 32 << 20
_ROWS = 1 << 16
_MAGIC = ((b"\xff\xd8\xff", "jpg"), (b"\x89PNG", "png"), (b"\x93NUMPY", "npy"),
          (b"GIF8", "gif"), (b"RIFF", "webp"))
_KNOWN = re.compile(r"(?i)(jpe?g|png|webp|npy|npz|json|txt|text|cls|bin|pcd|ply|mp4|flac|wav)$")
_META = ("__key__", "timestamp_ns", "episode", "stream")


def accepts(path: str, options: InputOptions) -> bool:
    return path.endswith((*_PARQUET, *_ARROW)) and not os.path.isdir(path)


def open_input(path: str, options: InputOptions) -> TableInput:
    """Reads the schema, the sizes of the groups and the episodes."""
    return TableInput(path, options)


class _arrow:
    """with _arrow(path): what pyarrow raises within becomes an error of ours."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._pyarrow = need("pyarrow", _WHY)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: object) -> None:
        if isinstance(error, self._pyarrow.ArrowException) and not isinstance(error, MemoryError):
            raise errors.Malformed(f"{self._path!r} cannot be read: {str(error)[:200]}",
                                   "see that it is whole") from error


# ---- groups of rows, of both kinds of file ------------------------------------------------------


class _Group(NamedTuple):
    rows: int
    nbytes: int


def _groups(path: str) -> tuple[Any, list[_Group]]:
    """(schema, groups of rows) of a file; a file of the streaming kind is one group."""
    with reading(path), _arrow(path):
        if path.endswith(_PARQUET):
            with need("pyarrow.parquet", _WHY).ParquetFile(path) as file:
                groups = [file.metadata.row_group(number)
                          for number in range(file.metadata.num_row_groups)]
                return file.schema_arrow, [_Group(group.num_rows, group.total_byte_size)
                                           for group in groups]
        if not _is_file(path):
            with need("pyarrow.ipc", _WHY).open_stream(path) as stream:
                schema = stream.schema
                rows = sum(batch.num_rows for batch in stream)
            return schema, [_Group(rows, os.path.getsize(path))]
        with need("pyarrow", _WHY).memory_map(path) as source:
            reader = need("pyarrow.ipc", _WHY).open_file(source)
            batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
            return reader.schema, [_Group(batch.num_rows, batch.get_total_buffer_size())
                                   for batch in batches]


def _is_file(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(6) == b"ARROW1"


def _batches(path: str, groups: range, columns: list[str], rows: int) -> Iterator[Any]:
    """Record batches of some groups, each of so many rows or fewer."""
    with reading(path), _arrow(path):
        if path.endswith(_PARQUET):
            with need("pyarrow.parquet", _WHY).ParquetFile(path) as file:
                yield from file.iter_batches(rows, row_groups=list(groups), columns=columns,
                                             use_threads=False)
            return
        ipc = need("pyarrow.ipc", _WHY)
        if _is_file(path):
            with need("pyarrow", _WHY).memory_map(path) as source:
                reader = ipc.open_file(source)
                for number in groups:
                    yield from _cut(reader.get_batch(number).select(columns), rows)
        else:
            with ipc.open_stream(path) as stream:
                for batch in stream:
                    yield from _cut(batch.select(columns), rows)


def _cut(batch: Any, rows: int) -> Iterator[Any]:
    """A batch of an Arrow file, in pieces; pyarrow believes what such a file says of its buffers,
    so it is checked."""
    batch.validate(full=True)
    for begin in range(0, batch.num_rows, rows):
        yield batch.slice(begin, rows)


# ---- columns ------------------------------------------------------------------------------------


class _Column(NamedTuple):
    """What becomes of a column."""

    name: str
    field: str   # of samples; of a log, what follows the stream and a dot
    stream: str  # of a log
    how: str     # "bytes", "image", "numbers", "list" or "value"


def _is_numbers(pyarrow: Any, kind: Any) -> bool:
    """Numbers of one shape a row: scalars, lists of a fixed size, tensors."""
    types = pyarrow.types
    while types.is_fixed_size_list(kind) or isinstance(kind, pyarrow.FixedShapeTensorType):
        kind = kind.value_type
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _how(pyarrow: Any, kind: Any) -> str:
    types = pyarrow.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return "bytes"
    if types.is_struct(kind) and {field.name for field in kind} == {"bytes", "path"}:
        return "image"
    if _is_numbers(pyarrow, kind):
        return "numbers"
    if (types.is_list(kind) or types.is_large_list(kind)) and (
            types.is_integer(kind.value_type) or types.is_floating(kind.value_type)):
        return "list"
    return "value"


def _extension(pyarrow: Any, kind: Any, how: str, first: Any) -> str:
    types = pyarrow.types
    if how in ("bytes", "image"):
        data = first.get("bytes") if isinstance(first, dict) else first
        return next((name for magic, name in _MAGIC if (data or b"").startswith(magic)), "bin")
    if how == "list":
        return "npy"
    if how == "numbers":
        return "cls" if types.is_integer(kind) or types.is_boolean(kind) else "npy"
    return "txt" if types.is_string(kind) or types.is_large_string(kind) else "json"


def _decoded(column: Any) -> Any:
    types = need("pyarrow", _WHY).types
    return column.dictionary_decode() if types.is_dictionary(column.type) else column


def _numbers(column: Any) -> NDArray[Any]:
    """A column of numbers as an array [rows, ...], without a copy where there are no nulls; zeros
    where there are."""
    import numpy

    pyarrow = need("pyarrow", _WHY)
    if isinstance(column.type, pyarrow.FixedShapeTensorType):
        return _numbers(column.storage).reshape(-1, *column.type.shape)
    if not pyarrow.types.is_fixed_size_list(column.type):
        if column.null_count:
            column = column.fill_null(False if pyarrow.types.is_boolean(column.type) else 0)
        return numpy.asarray(column.to_numpy(zero_copy_only=False))
    inner = _numbers(column.flatten())  # of the rows that are no nulls
    inner = inner.reshape(len(column) - column.null_count, column.type.list_size, *inner.shape[1:])
    if not column.null_count:
        return inner
    made = numpy.zeros((len(column), *inner.shape[1:]), inner.dtype)
    made[column.is_valid().to_numpy(zero_copy_only=False)] = inner
    return made


def _plain(value: Any) -> str:
    """What JSON has no form for, as text."""
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


class _Cells:
    """A column of a batch: for each row its payload as a part, or None."""

    def __init__(self, column: _Column, data: Any) -> None:
        self._column = column
        self._data = _decoded(data)
        self._valid = self._data.is_valid().to_numpy(zero_copy_only=False)
        self._numbers = _numbers(self._data) if column.how == "numbers" else None

    def part(self, field: str, row: int) -> Part | None:
        if not self._valid[row]:
            return None
        if self._numbers is not None:
            if field.endswith("npy"):
                import numpy

                return npy_part(field, numpy.asarray(self._numbers[row]))
            value: Any = self._numbers[row].tolist()
        elif self._column.how == "list":
            cell = self._data[row].values
            if cell.null_count == 0 and field.endswith("npy"):
                return npy_part(field, cell.to_numpy(zero_copy_only=False))
            value = cell.to_pylist()
        else:
            value = self._data[row].as_py()
        if self._column.how == "image":
            value = value["bytes"]
        if value is None:
            return None
        if isinstance(value, bytes):
            return Part(field, value)
        if field.rpartition(".")[2].lower() in ("json", "jsn"):
            return Part(field, json.dumps(value, ensure_ascii=False, default=_plain).encode())
        return make_part(field, value)


# ---- jobs ---------------------------------------------------------------------------------------


@dataclass
class TableJob:
    """Some groups of rows; see `input.Job`."""

    path: str
    groups: range
    first_row: int
    columns: list[_Column]
    meta: list[str]
    log: bool
    episode: str         # of rows where the table says none
    names: str           # see InputOptions
    before: tuple[str | None, int]  # the last episode of the jobs before, and its rows up to there
    batch_rows: int
    nbytes: int
    file_digest: str

    @property
    def name(self) -> str:
        return f"{self.path}: row groups {self.groups.start} to {self.groups.stop - 1}"

    @property
    def digest(self) -> str:
        return digest_of((self.file_digest, self.groups, self.columns, self.meta))

    def items(self, notes: Notes) -> Iterator[Item]:
        cleaner, number, (last, before) = Cleaner(self.names, notes), self.first_row, self.before
        names = [*self.meta, *(column.name for column in self.columns)]
        for batch in _batches(self.path, self.groups, names, self.batch_rows):
            for episode, begin, end in _episodes(batch, self.episode):
                before, last = before if episode == last else 0, episode
                piece, made = batch.slice(begin, end - begin), cleaner.episode(episode)
                if self.log:
                    yield from _log_items(self, piece, made, before, number)
                else:
                    yield from _samples(self, piece, made, number)
                number += end - begin
                before += end - begin


def _episodes(batch: Any, fallback: str) -> Iterator[tuple[str, int, int]]:
    """Runs of rows of one episode: its name, first and end."""
    if "episode" not in batch.schema.names:
        if batch.num_rows:
            yield fallback, 0, batch.num_rows
        return
    begin = 0
    for value, rows in groupby(batch.column("episode").to_pylist()):
        end = begin + sum(1 for _ in rows)
        yield fallback if value is None else str(value), begin, end
        begin = end


def _times(path: str, batch: Any, first_row: int) -> NDArray[numpy.int64]:
    """The timestamps of a log's rows."""
    import numpy

    column = batch.column("timestamp_ns")
    if column.null_count:
        raise errors.Malformed(f"{path!r}: timestamp_ns is null in rows {first_row} to "
                               f"{first_row + batch.num_rows - 1}", "take the row out")
    with _arrow(path):
        return numpy.asarray(_nanoseconds(column).to_numpy(zero_copy_only=False))


def _nanoseconds(column: Any) -> Any:
    pyarrow = need("pyarrow", _WHY)
    if pyarrow.types.is_timestamp(column.type):
        column = column.cast(pyarrow.timestamp("ns", column.type.tz))
    return column.cast(pyarrow.int64())


def _log_items(job: TableJob, batch: Any, episode: str, ordinal: int, first_row: int
               ) -> Iterator[Item]:
    """A log's columns: numbers as rows, others as a sample for each value."""
    times = _times(job.path, batch, first_row)
    if bool((times[1:] < times[:-1]).any()):
        raise errors.Malformed(f"{job.path!r}: timestamp_ns falls between rows {first_row} and "
                               f"{first_row + len(times) - 1} of episode {episode}",
                               "sort the table by episode and timestamp_ns")
    others = []
    for column in sorted(job.columns, key=lambda each: each.stream):
        data = batch.column(column.name)
        if column.how != "numbers":
            others.append((column, _Cells(column, data)))
            continue
        if data.null_count:
            raise errors.Malformed(f"{job.path!r}: column {column.name} is null in rows "
                                   f"{first_row} to {first_row + len(times) - 1}",
                                   "put streams of other times into tables of their own")
        yield Rows(episode, column.stream, ordinal, times, _numbers(_decoded(data)))
    for row, time_ns in enumerate(times.tolist() if others else ()):
        for column, cells in others:
            part = cells.part(f"{column.stream}.{column.field}", row)
            if part is not None:
                yield Sample(record_key(episode, column.stream, ordinal + row), (part,), time_ns,
                             episode, column.stream)


def _samples(job: TableJob, batch: Any, episode: str, first_row: int) -> Iterator[Sample]:
    """Rows as samples."""
    cells = [(column.field, _Cells(column, batch.column(column.name))) for column in job.columns]
    meta = {name: batch.column(name) for name in job.meta}
    if "timestamp_ns" in meta:
        with _arrow(job.path):
            meta["timestamp_ns"] = _nanoseconds(meta["timestamp_ns"])
    known = {name: column.to_pylist() for name, column in meta.items()}
    none = [None] * batch.num_rows
    for row in range(batch.num_rows):
        parts = tuple(part for part in (cell.part(field, row) for field, cell in cells)
                      if part is not None)
        key = known.get("__key__", none)[row]
        stream = known.get("stream", none)[row]
        yield Sample(str(key) if key is not None else f"{episode}/{first_row + row:09d}", parts,
                     known.get("timestamp_ns", none)[row], episode if "episode" in meta else None,
                     None if stream is None else str(stream))


# ---- planning -----------------------------------------------------------------------------------


class TableInput:
    """See `input.Input`."""

    kind = "table"

    def __init__(self, path: str, options: InputOptions) -> None:
        need("numpy", _WHY)
        self.path, self.notes = os.path.abspath(path), Notes()
        self._names, self._cleaner = options.names, Cleaner(options.names, self.notes)
        self._file = file_digest(self.path)
        schema, self._groups = _groups(self.path)
        names = schema.names
        if len(set(names)) != len(names):
            raise errors.UnsupportedData(f"{path!r} has two columns of one name", "rename one")
        self._log = "timestamp_ns" in names and "__key__" not in names and "stream" not in names
        self._meta = [name for name in _META if name in names]
        self._columns = self._plan_columns(schema)
        rows = sum(group.rows for group in self._groups)
        if not rows or not self._columns:
            what = "rows" if self._columns else "columns"
            raise errors.UnsupportedData(f"{path!r} has no {what}", "leave it out")
        self._episode = self._cleaner.episode(os.path.basename(self.path).partition(".")[0])
        parts = 0 if self._log else len(self._columns)
        self._costs = [group.nbytes + group.rows * parts * PART_BYTES for group in self._groups]
        self.nbytes = sum(self._costs)

    def _plan_columns(self, schema: Any) -> list[_Column]:
        pyarrow = need("pyarrow", _WHY)
        made, names = [], [name for name in schema.names if name not in self._meta]
        first: dict[str, Any] = next((batch.to_pylist() for batch in _batches(
            self.path, range(min(1, len(self._groups))), names, 1)), [{}])[0]
        for name in names:
            kind = schema.field(name).type
            how = _how(pyarrow, kind)
            ends = _extension(pyarrow, kind, how, first.get(name))
            fielded = "." in name.strip(".") or bool(_KNOWN.match(name))
            field = name if fielded else f"{name}.{ends}"
            stream = self._cleaner.stream(name.partition(".")[0] or name) if self._log else ""
            made.append(_Column(name, ends if self._log else self._field(name, field), stream, how))
        owners: dict[str, str] = {}
        for column in made:
            owner = owners.setdefault((column.stream or column.field).lower(), column.name)
            if owner != column.name:
                raise errors.InvalidArgument(
                    f"columns {owner!r} and {column.name!r} of {self.path!r} would be one "
                    f"{'stream' if self._log else 'field'}", "rename one")
        return made

    def _field(self, name: str, field: str) -> str:
        made = self._cleaner.path(field).replace("/", "_").lstrip(".")
        if made != field:
            self.notes.renamed(f"column {name}", f"field {made}")
        return made

    def jobs(self, limit: int) -> Sequence[TableJob]:
        """Groups of rows; one group is not cut."""
        made: list[TableJob] = []
        first_row, before = 0, _Before(self.path)
        rows = sum(group.rows for group in self._groups)
        batch_rows = max(1, rows * _BATCH_BYTES // max(self.nbytes, 1))
        for number, (group, cost) in enumerate(zip(self._groups, self._costs)):
            if not made or made[-1].nbytes + cost > limit:
                made.append(TableJob(
                    self.path, range(number, number), first_row, self._columns, self._meta,
                    self._log, self._episode, self._names, (before.episode, before.rows),
                    batch_rows, 0, self._file))
            made[-1].groups = range(made[-1].groups.start, number + 1)
            made[-1].nbytes += cost
            first_row += group.rows
            if not self._log or "episode" not in self._meta:
                before.add(self._episode, group.rows)
                continue
            for batch in _batches(self.path, range(number, number + 1), ["episode"], _ROWS):
                for episode, begin, end in _episodes(batch, self._episode):
                    before.add(episode, end - begin)
        return made


    @property
    def streams(self) -> list[str]:
        """Names of the streams."""
        return [column.stream for column in self._columns]

    def by_episode(self) -> list[Share]:
        """See `input.Share`; none of a table without times."""
        made: dict[str, _Spread] = {}
        columns = [name for name in self._meta if name in ("episode", "timestamp_ns")]
        cleaner = Cleaner(self._names, Notes())
        for job in self.jobs(1) if self._log else ():
            row = job.first_row
            for batch in _batches(self.path, job.groups, columns, _ROWS):
                for episode, begin, end in _episodes(batch, self._episode):
                    times = _times(self.path, batch.slice(begin, end - begin), row + begin)
                    made.setdefault(cleaner.episode(episode), _Spread()).take(job, times)
                row += batch.num_rows
        return [Share(episode, spread.jobs, spread.first_ns, spread.last_ns)
                for episode, spread in made.items()]


class _Spread:
    """Where an episode lies."""

    def __init__(self) -> None:
        self.jobs: list[TableJob] = []
        self.first_ns, self.last_ns = (1 << 63) - 1, -(1 << 63)

    def take(self, job: TableJob, times: NDArray[numpy.int64]) -> None:
        """Some of its rows are in a job."""
        if not self.jobs or self.jobs[-1] is not job:
            self.jobs.append(job)
        self.first_ns = min(self.first_ns, int(times.min()))
        self.last_ns = max(self.last_ns, int(times.max()))


class _Before:
    """The episode that the rows so far end in, and how many of them are its."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: set[str] = set()
        self.episode: str | None = None
        self.rows = 0

    def add(self, episode: str, rows: int) -> None:
        if episode != self.episode:
            if episode in self._seen:
                raise errors.Malformed(f"{self._path!r}: episode {episode} comes in two places",
                                       "sort the table by episode and timestamp_ns")
            self._seen.add(episode)
            self.episode, self.rows = episode, 0
        self.rows += rows
