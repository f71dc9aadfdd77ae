"""Shards that are open: their samples, parts, fields, streams and episodes, as arrays and names.

A `Source` is shared by the datasets that were made from one another. It belongs to the process that
opened it; `reopened` gives a child its own.
"""
from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from ctypes import byref, c_char_p, c_uint64
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from . import _abi, _library, errors
from ._runtime import Runtime

Indices = npt.NDArray[np.uint64]
Path = str | bytes | os.PathLike[Any]

NO_SAMPLE = (1 << 64) - 1
"""In the place of a sample that was left out for its damage."""

LACKS = (1 << 64) - 1
"""Bytes of a field that the sample lacks."""

AT_ONCE = 1 << 20
"""Samples whose columns are asked for in one call."""


class _At:
    """Memory of the library's, as numpy takes it."""

    __slots__ = ("__array_interface__",)

    def __init__(self, address: int, shape: tuple[int, ...], typestr: str) -> None:
        self.__array_interface__ = {"data": (address, False), "shape": shape, "typestr": typestr,
                                    "version": 3}


def array_at(address: int | None, shape: tuple[int, ...], typestr: str) -> npt.NDArray[Any]:
    """An array over memory of the library's, which must stay while it is used."""
    if not address or 0 in shape:
        return np.zeros(shape, typestr)
    return np.asarray(_At(address, shape, typestr))


def address_of(array: npt.NDArray[Any]) -> int:
    """Where the array's first byte lies."""
    return int(array.ctypes.data)


class Field(NamedTuple):
    """A field over all shards.

    Attributes
    ----------
    name : str
    number : int
        In the dataset.
    dtype : str or None
        Of all its parts, if they are alike; None: plain bytes, or of several types.
    shape : tuple of int
    data_offset : int
        Bytes of a payload before the array.
    parts : int
        Samples that have it.
    min_bytes, max_bytes : int
        Of its parts' payloads.
    """

    name: str
    number: int
    dtype: str | None
    shape: tuple[int, ...]
    data_offset: int
    parts: int
    min_bytes: int
    max_bytes: int


class Type(NamedTuple):
    """The type of a part's array.

    Attributes
    ----------
    dtype : str
    shape : tuple of int
    data_offset : int
    """

    dtype: str
    shape: tuple[int, ...]
    data_offset: int


class Parts(NamedTuple):
    """A field's payloads, one row a sample.

    Attributes
    ----------
    shard, offset, nbytes : uint64 [N]
        nbytes is `LACKS` where the sample lacks the field.
    type : uint32 [N]
        0: plain bytes; n: `Source.type_at` (n - 1).
    """

    shard: Indices
    offset: Indices
    nbytes: Indices
    type: npt.NDArray[np.uint32]


class Columns(NamedTuple):
    """What the index says of samples, one row a sample.

    Attributes
    ----------
    shard : uint64 [N]
    timestamp_ns : int64 [N]
        ``NO_TIME`` for none.
    episode, stream : uint32 [N]
        ``NO_NAME`` for none.
    rows : uint32 [N]
    """

    shard: Indices
    timestamp_ns: npt.NDArray[np.int64]
    episode: npt.NDArray[np.uint32]
    stream: npt.NDArray[np.uint32]
    rows: npt.NDArray[np.uint32]


def _name(name: _abi.Name) -> str:
    return ctypes.string_at(name.text, name.bytes).decode("utf-8", "replace") if name.bytes else ""


class Owned(_library.Handle):
    """What reads from a source, and is closed before it: an order, a feed, a fetch."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source  # open as long as this is
        source.users.add(self)

    def close(self) -> None:
        """Gives it back. Again is no error."""
        source = getattr(self, "source", None)
        if source is not None and source.process != os.getpid():
            self.handle = ctypes.c_void_p()  # the parent's to close
        super().close()


class Source(_library.Handle):
    """Open shards.

    Parameters
    ----------
    runtime : Runtime
    paths : sequence of path-like
        Shards, and folders, of which all ``*.tar`` are taken in the order of their names.

    Raises
    ------
    NotFound
        A shard, or its index.
    Malformed, Mismatch
        An index is damaged, or of another shard.
    """

    _end = "dataset_close"

    def __init__(self, runtime: Runtime, paths: Sequence[Path]) -> None:
        super().__init__()
        self.runtime = runtime
        self.paths = tuple(paths)
        self.process = os.getpid()
        self.users: WeakSet[Owned] = WeakSet()
        self.threads: WeakSet[Any] = WeakSet()
        encoded = [_library.path_bytes(path) for path in self.paths]
        table = (c_char_p * max(1, len(encoded)))(*encoded)
        _library.call("dataset_open", runtime.handle, table, len(encoded), byref(self.handle))
        info = self._asked("dataset_query", _abi.DatasetInfo)
        self.count = int(info.samples)
        self.shards = int(info.shards)
        self.payload_bytes = int(info.payload_bytes)
        self.fingerprint = f"{info.fingerprint:016x}"
        self.has_checksums = bool(info.has_checksums)
        self._counts = {"field": int(info.fields), "episode": int(info.episodes),
                        "stream": int(info.streams)}

    def _asked(self, call: str, struct: type[Any], *arguments: Any) -> Any:
        self.check()
        made = _library.sized(struct) if hasattr(struct, "size") else struct()
        _library.ask(call, self.handle, *arguments, byref(made))
        return made

    def close(self) -> None:
        """Closes it, and what reads from it before. Again is no error."""
        if getattr(self, "process", None) != os.getpid():
            self.handle = ctypes.c_void_p()  # the parent's to close
            return
        for thread in list(self.threads):
            thread.join()
        for user in sorted(self.users, key=lambda user: user._end):
            user.close()  # feeds, then the orders that they go by
        super().close()

    def check(self) -> None:
        """Raises Forked in another process than the one that opened it, and if it is closed."""
        if self.process != os.getpid():
            raise errors.Forked("the dataset was opened by a parent process", "open it again here")
        if not self.handle:
            raise errors.InvalidArgument("the dataset is closed", "open it again")

    def _names(self, kind: str) -> list[str]:
        return [_name(self._asked(f"dataset_{kind}_at", _abi.Name, index))
                for index in range(self._counts[kind])]

    @cached_property
    def fields(self) -> dict[str, Field]:
        """Each field by its name, in the order of the dataset."""
        found = {}
        for index in range(self._counts["field"]):
            row = self._asked("dataset_field_at", _abi.Field, index)
            field = Field(_name(row.name), index, _library.text(row.dtype) or None,
                          tuple(row.shape[:row.rank]), int(row.data_offset), int(row.parts),
                          int(row.min_bytes), int(row.max_bytes))
            found[field.name] = field
        return found

    @cached_property
    def streams(self) -> list[str]:
        """The streams' names, by their numbers."""
        return self._names("stream")

    @cached_property
    def episodes(self) -> list[str]:
        """The episodes' names, by their numbers."""
        return self._names("episode")

    @cached_property
    def has_types(self) -> bool:
        """Whether any part has a type."""
        self.check()
        row = _library.sized(_abi.Type)
        return not _library.run("dataset_type_at", self.handle, 0, byref(row))

    def type_at(self, index: int) -> Type:
        """A type by its number."""
        row = self._asked("dataset_type_at", _abi.Type, index)
        return Type(_library.text(row.dtype), tuple(row.shape[:row.rank]), int(row.data_offset))

    @cached_property
    def shard_table(self) -> list[tuple[str, int, int]]:
        """Path, first sample and number of samples of each shard."""
        table = []
        for index in range(self.shards):
            row = self._asked("dataset_shard_at", _abi.Shard, index)
            table.append((os.fsdecode(ctypes.string_at(row.path)), int(row.first_sample),
                          int(row.samples)))
        return table

    # ---- samples

    def check_sample(self, index: int) -> int:
        """The number of a sample; a negative one counts from the end. IndexError past them."""
        number = index + self.count if index < 0 else index
        if not 0 <= number < self.count:
            raise IndexError(f"sample {index} is asked for, and the dataset has {self.count}")
        return number

    def key(self, sample: int) -> str:
        """The key of a sample."""
        return _name(self._asked("dataset_sample_at", _abi.Sample, sample).key)

    def columns(self, samples: Indices | None = None) -> Columns:
        """Columns of samples; None: of all."""
        count = self.count if samples is None else len(samples)
        made = Columns(np.empty(count, np.uint64), np.empty(count, np.int64),
                       np.empty(count, np.uint32), np.empty(count, np.uint32),
                       np.empty(count, np.uint32))
        columns: dict[str, npt.NDArray[Any]] = {
            "shard": made.shard, "timestamp_ns": made.timestamp_ns, "episode": made.episode,
            "stream": made.stream, "rows": made.rows}
        self._fill("dataset_samples", _abi.SampleColumns, samples, columns, ())
        return made

    def stream_of(self, samples: Indices) -> npt.NDArray[np.uint32]:
        """[N]: the samples' streams."""
        made = np.empty(len(samples), np.uint32)
        self._fill("dataset_samples", _abi.SampleColumns, samples, {"stream": made}, ())
        return made

    def parts(self, field: Field, samples: Indices | None = None) -> Parts:
        """Where a field's payloads of samples lie; None: of all."""
        count = self.count if samples is None else len(samples)
        made = Parts(np.empty(count, np.uint64), np.empty(count, np.uint64),
                     np.empty(count, np.uint64), np.empty(count, np.uint32))
        columns: dict[str, npt.NDArray[Any]] = {"shard": made.shard, "offset": made.offset,
                                                "bytes": made.nbytes, "type": made.type}
        self._fill("dataset_parts", _abi.PartColumns, samples, columns, (field.number,))
        return made

    def types_of(self, field: Field, samples: Indices | None = None) -> npt.NDArray[np.uint32]:
        """[N]: the types of a field's parts, as in `Parts`."""
        count = self.count if samples is None else len(samples)
        made = np.zeros(count, np.uint32)
        self._fill("dataset_parts", _abi.PartColumns, samples, {"type": made}, (field.number,))
        return made

    def has(self, field: Field) -> npt.NDArray[np.bool_]:
        """[samples]: whether a sample has the field."""
        made = np.empty(self.count, np.uint64)
        self._fill("dataset_parts", _abi.PartColumns, None, {"bytes": made}, (field.number,))
        there: npt.NDArray[np.bool_] = made != np.uint64(LACKS)
        return there

    def _fill(self, call: str, struct: type[Any], samples: Indices | None,
              columns: dict[str, npt.NDArray[Any]], leading: tuple[int, ...]) -> None:
        """Fills columns in turns, so that all of many samples need no list of them."""
        count = self.count if samples is None else len(samples)
        for first in range(0, count, AT_ONCE):
            last = min(first + AT_ONCE, count)
            part = (np.arange(first, last, dtype=np.uint64) if samples is None
                    else np.ascontiguousarray(samples[first:last], np.uint64))
            row = _library.sized(struct)
            for name, column in columns.items():
                setattr(row, name, address_of(column[first:last]))
            _library.call(call, self.handle, *leading, pointer_to(part), last - first, byref(row))


def pointer_to(array: npt.NDArray[Any]) -> Any:
    """The array as an argument of type uint64_t *; it must stay for the call."""
    return array.ctypes.data_as(ctypes.POINTER(c_uint64))


class Opened:
    """How a source is opened, so that each process has its own.

    Parameters
    ----------
    open_it : callable
        Without arguments.
    """

    def __init__(self, open_it: Callable[[], Source]) -> None:
        self._open = open_it
        self._source = open_it()

    @property
    def paths(self) -> tuple[Path, ...]:
        """What was opened."""
        return self._source.paths

    def get(self) -> Source:
        """This process's source."""
        if self._source.process != os.getpid():
            self._source = self._open()
        self._source.check()
        return self._source

    def close(self) -> None:
        """Closes it."""
        self._source.close()
