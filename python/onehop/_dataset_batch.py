"""Batches: rows of a group's buffers, cut into dicts.

Rows are gathered for many small batches at once, in one go a field, and then cut: for records of a
few KiB that is what keeps a batch's cost at a few microseconds.
"""
from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from . import errors
from ._dataset_fields import Plan, Spans, spans, type_bytes
from ._dataset_make import Int64s, Maker, Memory
from ._dataset_source import LACKS, NO_SAMPLE, Indices, Source

__all__ = ["Keys", "Ragged"]

_ALIGN = 16
"""Rows of a list begin at multiples of so many bytes."""


class Keys:
    """The keys of a batch's rows: a list of str that looks each up when it is asked for.

    It has a list's reading half, is equal to a list of the same keys, and prints and pickles as
    one. ``list(keys)`` makes the list. It needs its dataset to be open.
    """

    __slots__ = ("_source", "_samples")

    def __init__(self, source: Source, samples: Indices) -> None:
        self._source, self._samples = source, samples

    @property
    def samples(self) -> Indices:
        """uint64 [B]: the samples' numbers in the dataset, as ``dataset[number]`` takes them."""
        return self._samples

    def __len__(self) -> int:
        return len(self._samples)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._source.key(int(sample)) for sample in self._samples[index]]
        return self._source.key(int(self._samples[index]))

    def __iter__(self) -> Iterator[str]:
        return (self._source.key(sample) for sample in self._samples.tolist())

    def __contains__(self, key: object) -> bool:
        return any(key == one for one in self)

    def index(self, key: str) -> int:
        """The first row of that key. ValueError if there is none."""
        return list(self).index(key)

    def count(self, key: str) -> int:
        """How many rows have that key."""
        return list(self).count(key)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (Keys, list, tuple)):
            return list(self) == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return (list, (list(self),))


class Ragged:
    """Rows of different lengths, one after the other.

    Attributes
    ----------
    values : tensor [N, ...]
        All rows' elements; of plain bytes uint8 [N].
    offsets : int64 tensor [B + 1]
        Row i is ``values[offsets[i]:offsets[i + 1]]``. In the same memory as values.
    counts : numpy int64 [B]
        The rows' lengths, in host memory, so that cutting waits for no device.
    """

    __slots__ = ("values", "offsets", "counts")

    def __init__(self, values: Any, offsets: Any, counts: Int64s) -> None:
        self.values, self.offsets, self.counts = values, offsets, counts

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, index: int) -> Any:
        """One row: a view of values."""
        row = range(len(self))[index]
        first = int(self.counts[:row].sum())
        return self.values[first:first + int(self.counts[row])]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.unbind())

    def unbind(self) -> list[Any]:
        """All rows: views of values."""
        ends = np.cumsum(self.counts)
        return [self.values[end - count:end]
                for end, count in zip(ends.tolist(), self.counts.tolist())]

    def nested(self) -> Any:
        """A ``torch.nested`` tensor of the jagged layout, of the same memory."""
        import torch

        return torch.nested.nested_tensor_from_jagged(self.values, self.offsets)

    def __repr__(self) -> str:
        return f"<onehop.Ragged: {len(self)} rows, values {list(self.values.shape)}>"


class Chunk(NamedTuple):
    """Consecutive batches' rows in a group's buffers.

    Attributes
    ----------
    samples : uint64 [N]
    pad : bool [N] or None
        Rows that repeat a sample to fill a batch up; None: not asked for.
    offsets, nbytes : list of uint64 [N]
        By plan; nbytes is `LACKS` where the sample lacks the field.
    sizes : list of int
        Rows of each batch.
    device, host : Memory or None
    """

    samples: Indices
    pad: npt.NDArray[np.bool_] | None
    offsets: list[Indices]
    nbytes: list[Indices]
    sizes: list[int]
    device: Memory | None
    host: Memory | None


def _edges(sizes: list[int]) -> list[tuple[int, int]]:
    """Where each batch's rows begin and end."""
    ends = np.cumsum(sizes).tolist()
    return list(zip([0, *ends[:-1]], ends))


def without_damaged(chunk: Chunk) -> Chunk:
    """The chunk without rows that were left out for their damage; their batches are smaller."""
    good = chunk.samples != np.uint64(NO_SAMPLE)
    if good.all():
        return chunk
    sizes = [int(good[first:last].sum()) for first, last in _edges(chunk.sizes)]
    return chunk._replace(samples=chunk.samples[good],
                          pad=None if chunk.pad is None else chunk.pad[good],
                          offsets=[column[good] for column in chunk.offsets],
                          nbytes=[column[good] for column in chunk.nbytes], sizes=sizes)


class Cutter:
    """Cuts chunks into batches.

    Parameters
    ----------
    source : Source
    plans : list of Plan
    device, host : Maker
        Of what lies on the device, and of what lies in host memory.

    Raises
    ------
    UnsupportedData
        The framework lacks a field's type.
    """

    def __init__(self, source: Source, plans: list[Plan], device: Maker, host: Maker) -> None:
        self._source, self.plans = source, plans
        self.device_maker, self.host_maker = device, host
        for plan in plans:
            if plan.form != "object" and plan.layout.dtype:
                self.maker(plan).check(plan.layout.dtype)

    def maker(self, plan: Plan) -> Maker:
        """What makes the field's tensors."""
        return self.host_maker if plan.on_host else self.device_maker

    def cut(self, chunk: Chunk) -> list[dict[str, Any]]:
        """The chunk's batches, in order."""
        columns: dict[str, list[Any]] = {}
        for number, plan in enumerate(self.plans):
            self._column(columns, chunk, plan, chunk.offsets[number], chunk.nbytes[number])
        columns["__key__"] = [Keys(self._source, chunk.samples[first:last])
                              for first, last in _edges(chunk.sizes)]
        if chunk.pad is not None:
            columns["__pad__"] = self.device_maker.split(self.device_maker.index(chunk.pad),
                                                        chunk.sizes)
        names = list(columns)
        return [dict(zip(names, row)) for row in zip(*columns.values())]

    def _column(self, columns: dict[str, list[Any]], chunk: Chunk, plan: Plan, offsets: Indices,
                nbytes: Indices) -> None:
        """Adds what batches hold of one field."""
        lacks = nbytes == np.uint64(LACKS) if plan.some_lack else None
        present = None if lacks is None or not lacks.any() else ~lacks
        memory = chunk.host if plan.on_host else chunk.device
        if memory is None:  # nothing of this kind was read: no sample has the field
            memory = Memory(0, 0, None)
        if plan.form == "object":
            columns[plan.name] = self._objects(chunk, plan, memory, offsets, nbytes, lacks)
            return
        maker = self.maker(plan)
        where = spans(self._source, plan, chunk.samples, offsets, nbytes, present)
        if plan.form == "fixed":
            columns[plan.name] = _fixed(maker, memory, plan, where, present, chunk.sizes)
        elif plan.form == "list":
            columns[plan.name] = _lists(maker, memory, plan, where, present, chunk.sizes)
            return
        else:
            self._ragged(columns, maker, memory, plan, where, chunk.sizes)
        if lacks is not None:
            columns[plan.name + "_is_pad"] = maker.split(maker.index(lacks), chunk.sizes)

    def _ragged(self, columns: dict[str, list[Any]], maker: Maker, memory: Memory, plan: Plan,
                where: Spans, sizes: list[int]) -> None:
        dtype, trail = plan.layout.dtype, _trailing(plan)
        unit = type_bytes(dtype, trail)
        counts = where.nbytes // unit if unit else np.zeros(len(where.nbytes), np.int64)
        made: list[tuple[Any, Any]] = []
        for first, last in _edges(sizes):
            some = counts[first:last]
            packed = maker.packed(memory, where.begin[first:last], where.nbytes[first:last], 1)
            values = maker.typed(packed, dtype, (int(some.sum()), *trail))
            offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(some)))
            if plan.form == "padded":
                made.append((maker.padded(values, offsets[:-1], some), maker.index(some)))
            else:
                made.append((Ragged(values, maker.index(offsets), some), None))
        columns[plan.name] = [one for one, _ in made]
        if plan.form == "padded":
            columns[plan.name + "_lengths"] = [lengths for _, lengths in made]

    def _objects(self, chunk: Chunk, plan: Plan, memory: Memory, offsets: Indices, nbytes: Indices,
                 lacks: npt.NDArray[np.bool_] | None) -> list[Any]:
        begin, size = offsets.astype(np.int64), nbytes.astype(np.int64)
        absent = np.zeros(len(begin), np.bool_) if lacks is None else lacks
        made = [None if lacking else object_of(self._source, plan, memory, at, count, int(sample))
                for at, count, lacking, sample in zip(begin.tolist(), size.tolist(),
                                                      absent.tolist(), chunk.samples.tolist())]
        return [made[first:last] for first, last in _edges(chunk.sizes)]


def object_of(source: Source, plan: Plan, memory: Memory, begin: int, nbytes: int,
              sample: int) -> Any:
    """The Python object that a payload in host memory stands for."""
    assert plan.decode is not None
    try:
        return plan.decode(ctypes.string_at(memory.address + begin, nbytes) if nbytes else b"")
    except (ValueError, EOFError) as error:
        raise errors.Malformed(
            f"field {plan.name!r} of sample {source.key(sample)!r} cannot be decoded: {error}",
            f'correct it, or take place={{{plan.name!r}: "host"}} for its bytes') from error


def _trailing(plan: Plan) -> tuple[int, ...]:
    """What follows a row's first dimension."""
    return plan.layout.shape[1:] if plan.layout.is_fixed else plan.layout.shape


def _fixed(maker: Maker, memory: Memory, plan: Plan, where: Spans,
           present: npt.NDArray[np.bool_] | None, sizes: list[int]) -> list[Any]:
    dtype, shape = plan.layout.dtype, plan.layout.shape
    count, nbytes, begin = len(where.begin), type_bytes(dtype, shape), where.begin
    if not nbytes or not count or (present is not None and not present.any()):
        return maker.split(maker.zeros(dtype, (count, *shape)), sizes)
    if present is not None:
        begin = np.where(present, begin, begin[present.argmax()])
    rows = maker.gather(memory, begin, nbytes)
    if present is not None:
        maker.clear(rows, np.flatnonzero(~present))
    return maker.split(maker.typed(rows, dtype, (count, *shape)), sizes)


def _lists(maker: Maker, memory: Memory, plan: Plan, where: Spans,
           present: npt.NDArray[np.bool_] | None, sizes: list[int]) -> list[Any]:
    made: list[Any] = []
    for first, last in _edges(sizes):
        there = slice(first, last) if present is None else first + np.flatnonzero(
            present[first:last])
        rows = loose_rows(maker, memory, plan, where.begin[there], where.nbytes[there],
                          None if where.types is None else where.types[there])
        if present is not None:
            found = iter(rows)
            rows = [next(found) if has else None for has in present[first:last].tolist()]
        made.append(rows)
    return made


def loose_rows(maker: Maker, memory: Memory, plan: Plan, begin: Int64s, nbytes: Int64s,
               types: npt.NDArray[np.uint32] | None) -> list[Any]:
    """Rows one by one, each by its own type, decoded if the plan says so."""
    packed = maker.packed(memory, begin, nbytes, _ALIGN)
    pieces = maker.split(packed, (-(-nbytes // _ALIGN) * _ALIGN).tolist())
    kinds = [0] * len(nbytes) if types is None else types.tolist()
    rows = [_one(maker, plan, piece, count, kind)
            for piece, count, kind in zip(pieces, nbytes.tolist(), kinds)]
    return plan.decode(rows) if plan.decode and rows else rows


def _one(maker: Maker, plan: Plan, piece: Any, nbytes: int, kind: int) -> Any:
    """A row, by its own type; piece has it and what fills it up."""
    one = plan.layout.types.get(kind)
    if one is not None:
        return maker.typed(piece[:nbytes], one.dtype, one.shape)
    if plan.layout.is_fixed:
        return maker.typed(piece[:nbytes], plan.layout.dtype, plan.layout.shape)
    return piece[:nbytes]


def rows_of(batch: dict[str, Any], plans: list[Plan]) -> list[dict[str, Any]]:
    """The batch's samples, each a dict of the fields that it has, and ``__key__``."""
    made = []
    for row, key in enumerate(batch["__key__"]):
        one = {"__key__": key}
        for plan in plans:
            if plan.name + "_is_pad" in batch and bool(batch[plan.name + "_is_pad"][row]):
                continue
            value = batch[plan.name][row]
            if value is None and plan.some_lack:
                continue
            if plan.form == "padded":
                value = value[:int(batch[plan.name + "_lengths"][row])]
            one[plan.name] = value
        made.append(one)
    return made
