"""Batches: rows of a group's buffers, cut into dicts.

Numpy and the device are asked for many batches at once: where rows lie, and which they are, for a
group; for the rows themselves, for a few batches. For records of a few KiB that is what keeps a
batch's cost at a few microseconds.
"""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from . import errors
from ._dataset_fields import Plan, Spans, spans, type_bytes
from ._dataset_make import Int64s, Maker, Memory, Rows
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
    """A group's batches: their rows in its buffers.

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
    """How a dataset's batches are cut.

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
        self.source, self.plans = source, plans
        self.device_maker, self.host_maker = device, host
        for plan in plans:
            if plan.form != "object" and plan.layout.dtype:
                self.maker(plan).check(plan.layout.dtype)

    def maker(self, plan: Plan) -> Maker:
        """What makes the field's tensors."""
        return self.host_maker if plan.on_host else self.device_maker


class _Column:
    """A field's rows in a chunk.

    Attributes
    ----------
    plan : Plan
    maker : Maker
    memory : Memory
    lacks : bool [N] or None
        None: the dataset's samples all have the field.
    present : bool [N] or None
        None: the chunk's do.
    where : Spans
    """

    def __init__(self, cutter: Cutter, chunk: Chunk, number: int) -> None:
        self._source, self._samples = cutter.source, chunk.samples
        self.plan = cutter.plans[number]
        self.maker = cutter.maker(self.plan)
        nbytes = chunk.nbytes[number]
        self.lacks = nbytes == np.uint64(LACKS) if self.plan.some_lack else None
        self.present = None if self.lacks is None or not self.lacks.any() else ~self.lacks
        memory = chunk.host if self.plan.on_host else chunk.device
        # Without a buffer nothing of this kind was read: no sample has the field.
        self.memory = Memory(0, 0, None) if memory is None else memory
        offsets = chunk.offsets[number]
        if self.plan.form == "object":  # of all of the payload
            self.where = Spans(offsets.astype(np.int64), nbytes.astype(np.int64), None)
        else:
            self.where = spans(cutter.source, self.plan, chunk.samples, offsets, nbytes,
                               self.present)

    @cached_property
    def rows(self) -> Rows | None:
        """Of form "fixed"; None: all are zeros, or of no bytes."""
        begin, present = self.where.begin, self.present
        nbytes = type_bytes(self.plan.layout.dtype, self.plan.layout.shape)
        if not nbytes or not len(begin) or (present is not None and not present.any()):
            return None
        if present is not None:
            begin = np.where(present, begin, begin[present.argmax()])
        return self.maker.rows(self.memory, begin, nbytes)

    def key(self, row: int) -> str:
        """The key of a row's sample."""
        return self._source.key(int(self._samples[row]))


class Cut:
    """A chunk, cut a few batches at a time.

    Parameters
    ----------
    cutter : Cutter
    chunk : Chunk
    """

    def __init__(self, cutter: Cutter, chunk: Chunk) -> None:
        self._cutter, self._chunk = cutter, chunk
        self._edges = _edges(chunk.sizes)
        self._columns = [_Column(cutter, chunk, number) for number in range(len(cutter.plans))]

    def batches(self, first: int, last: int) -> list[dict[str, Any]]:
        """Some of the batches, in order."""
        made: dict[str, list[Any]] = {}
        edges, chunk, maker = self._edges[first:last], self._chunk, self._cutter.device_maker
        begin, end = edges[0][0], edges[-1][1]
        sizes = chunk.sizes[first:last]
        for column in self._columns:
            plan = column.plan
            if plan.form == "object":
                made[plan.name] = self._objects(column, edges)
            elif plan.form == "list":
                made[plan.name] = [_list(column, *edge) for edge in edges]
            elif plan.form == "fixed":
                made[plan.name] = column.maker.split(_fixed(column, begin, end), sizes)
            else:
                _add_ragged(made, column, edges)
            if column.lacks is not None and plan.form not in ("object", "list"):
                made[plan.name + "_is_pad"] = column.maker.split(
                    column.maker.index(column.lacks[begin:end]), sizes)
        made["__key__"] = [Keys(self._cutter.source, chunk.samples[begin:end])
                           for begin, end in edges]
        if chunk.pad is not None:
            made["__pad__"] = maker.split(maker.index(chunk.pad[begin:end]), sizes)
        names = list(made)
        return [dict(zip(names, row)) for row in zip(*made.values())]

    def _objects(self, column: _Column, edges: list[tuple[int, int]]) -> list[list[Any]]:
        return [[self._object(column, row) for row in range(*edge)] for edge in edges]

    def _object(self, column: _Column, row: int) -> Any:
        if column.lacks is not None and column.lacks[row]:
            return None
        return object_of(self._cutter.source, column.plan, column.memory,
                         int(column.where.begin[row]), int(column.where.nbytes[row]),
                         int(self._chunk.samples[row]))


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


def _fixed(column: _Column, first: int, last: int) -> Any:
    """[last - first, *shape]: zeros in rows that lack the field."""
    dtype, shape = column.plan.layout.dtype, column.plan.layout.shape
    if column.rows is None or first == last:
        return column.maker.zeros(dtype, (last - first, *shape))
    rows = column.rows.take(first, last)
    if column.present is not None:
        column.maker.clear(rows, np.flatnonzero(~column.present[first:last]))
    return column.maker.typed(rows, dtype, (last - first, *shape))


def _list(column: _Column, first: int, last: int) -> list[Any]:
    """A batch's rows one by one; None where a sample lacks the field."""
    present, where = column.present, column.where
    there = np.arange(first, last)
    if present is not None:
        there = there[present[first:last]]
    rows = loose_rows(column.maker, column.memory, column.plan, where.begin[there],
                      where.nbytes[there], None if where.types is None else where.types[there],
                      lambda row: column.key(int(there[row])))
    if present is None:
        return rows
    found = iter(rows)
    return [next(found) if has else None for has in present[first:last].tolist()]


def _add_ragged(made: dict[str, list[Any]], column: _Column, edges: list[tuple[int, int]]) -> None:
    """Adds a field whose rows' lengths differ, of form "values" or "padded"."""
    plan, maker, where = column.plan, column.maker, column.where
    dtype, trail = plan.layout.dtype, _trailing(plan)
    unit = type_bytes(dtype, trail)
    values, lengths = [], []
    for first, last in edges:
        some = where.nbytes[first:last]
        counts = some // unit if unit else np.zeros(len(some), np.int64)
        packed = maker.packed(column.memory, where.begin[first:last], some, 1)
        rows = maker.typed(packed, dtype, (int(counts.sum()), *trail))
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
        if plan.form == "padded":
            values.append(maker.padded(rows, offsets[:-1], counts))
            lengths.append(maker.index(counts))
        else:
            values.append(Ragged(rows, maker.index(offsets), counts))
    made[plan.name] = values
    if plan.form == "padded":
        made[plan.name + "_lengths"] = lengths


def loose_rows(maker: Maker, memory: Memory, plan: Plan, begin: Int64s, nbytes: Int64s,
               types: npt.NDArray[np.uint32] | None, key: Callable[[int], str]) -> list[Any]:
    """Rows one by one, each by its own type, decoded if the plan says so; key tells whose row it
    is."""
    packed = maker.packed(memory, begin, nbytes, _ALIGN)
    pieces = maker.split(packed, (-(-nbytes // _ALIGN) * _ALIGN).tolist())
    kinds = [0] * len(nbytes) if types is None else types.tolist()
    rows = [_one(maker, plan, piece, count, kind)
            for piece, count, kind in zip(pieces, nbytes.tolist(), kinds)]
    return _decoded(plan, rows, key) if plan.decode and rows else rows


def _decoded(plan: Plan, rows: list[Any], key: Callable[[int], str]) -> list[Any]:
    """What torchvision makes of encoded rows."""
    assert plan.decode is not None
    try:
        made: list[Any] = plan.decode(rows)
    except RuntimeError as error:
        raise errors.Malformed(
            f"field {plan.name!r} of {_broken(plan, rows, key)} cannot be decoded: "
            f"{str(error).splitlines()[0]}",
            "correct it, or leave decode out for its bytes") from error
    return made


def _broken(plan: Plan, rows: list[Any], key: Callable[[int], str]) -> str:
    """Whose row it is, decoding them one by one."""
    assert plan.decode is not None
    for number, row in enumerate(rows):
        try:
            plan.decode([row])
        except RuntimeError:
            return f"sample {key(number)!r}"
    return f"{len(rows)} samples, {key(0)!r} the first,"


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
