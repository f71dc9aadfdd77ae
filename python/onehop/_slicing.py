"""Indexing of a tensor in a file: which indexes of each dimension are meant, and where they lie.

`parse` turns an index expression into a `Pick`; `runs` turns that into equal rows of the file's
bytes. Pure arithmetic: nothing is read here.
"""
from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple


class Pick(NamedTuple):
    """What an index asks for.

    Attributes
    ----------
    dims : tuple of sequence of int
        For each dimension of the tensor, the indexes that are asked for, in order; a range where
        they are evenly spaced.
    shape : tuple of int
        Of the result: dimensions indexed by an integer are gone, None has added some of 1.
    """

    dims: tuple[Sequence[int], ...]
    shape: tuple[int, ...]


class Rows(NamedTuple):
    """Equal rows of bytes, which make a piece of the result.

    Attributes
    ----------
    offset : int
        Of the first row, from the tensor's begin, in bytes.
    rows, stride : int
        How many, and how far apart in bytes.
    """

    offset: int
    rows: int
    stride: int


def _integer(part: Any) -> int | None:
    """The integer that part is, None if it is none; True and False are masks, not integers."""
    if isinstance(part, bool) or hasattr(part, "shape") and part.shape != ():
        return None
    try:
        return operator.index(part)
    except TypeError:
        return None


def _sequence(part: Any) -> list[int] | None:
    """The integers of a list, or of an array of one dimension; None if part is neither."""
    if not isinstance(part, list):
        if getattr(part, "ndim", None) != 1 or not hasattr(part, "tolist"):
            return None
        part = part.tolist()
    numbers = [_integer(entry) for entry in part]
    return None if None in numbers else [number for number in numbers if number is not None]


def spread(index: Any, rank: int) -> list[Any] | None:
    """The index's parts with Ellipsis written out, so that each dimension has one.

    None if there are more parts than dimensions, or several Ellipses.
    """
    parts = list(index) if isinstance(index, tuple) else [index]
    used = sum(1 for part in parts if part is not None and part is not Ellipsis)
    ellipses = [place for place, part in enumerate(parts) if part is Ellipsis]
    if used > rank or len(ellipses) > 1:
        return None
    place = ellipses[0] if ellipses else len(parts)
    parts[place:place + len(ellipses)] = [slice(None)] * (rank - used)
    return parts


def parse(index: Any, shape: tuple[int, ...]) -> Pick | None:
    """What the index asks for of a tensor of that shape.

    Understands integers, slices with positive steps, Ellipsis, None, and one list or array of
    integers. None for anything else and for what lies outside the shape: the framework itself has
    to be asked then, or has to complain.
    """
    parts = spread(index, len(shape))
    if parts is None:
        return None
    dims: list[Sequence[int]] = []
    result: list[int] = []
    lists = 0
    for part in parts:
        if part is None:
            result.append(1)
            continue
        extent = shape[len(dims)]
        picked, keeps = _pick(part, extent)
        if picked is None:
            return None
        lists += isinstance(picked, list)
        dims.append(picked)
        if keeps:
            result.append(len(picked))
    return Pick(tuple(dims), tuple(result)) if lists < 2 else None


def _pick(part: Any, extent: int) -> tuple[Sequence[int] | None, bool]:
    """The indexes that part asks for, and whether their dimension stays in the result."""
    if isinstance(part, slice):
        try:
            start, stop, step = part.indices(extent)
        except (TypeError, ValueError):
            return None, True
        return (range(start, max(start, stop), step) if step > 0 else None), True
    number = _integer(part)
    if number is not None:
        number += extent if number < 0 else 0
        return (range(number, number + 1) if 0 <= number < extent else None), False
    numbers = _sequence(part)
    if numbers is None or not all(-extent <= number < extent for number in numbers):
        return None, True
    return [number % extent for number in numbers], True


def runs(dims: Sequence[Sequence[int]], shape: Sequence[int], block_elements: int,
         block_bytes: int) -> tuple[int, Iterator[Rows]] | None:
    """Where the picked bytes lie: the bytes of each row, and the rows in the result's order.

    None if elements that share a byte would be torn apart.
    """
    elements = 1
    dim = len(shape) - 1
    # Whole dimensions, and then an unbroken part of one more, make one run.
    while dim >= 0 and dims[dim] == range(shape[dim]):
        elements *= shape[dim]
        dim -= 1
    size, begin = elements, 0
    if dim >= 0 and isinstance(dims[dim], range) and _is_unbroken(dims[dim]):
        size, begin = elements * len(dims[dim]), _first(dims[dim]) * elements
        elements *= shape[dim]
        dim -= 1
    # Elements from one index of each remaining dimension to the next.
    steps = [elements * math.prod(shape[place + 1:dim + 1]) for place in range(dim + 1)]
    if any(count % block_elements for count in (size, begin, *steps)):
        return None

    def in_bytes(count: int) -> int:
        return count // block_elements * block_bytes

    return in_bytes(size), _rows(dims[:dim + 1], [in_bytes(step) for step in steps],
                                 in_bytes(begin))


def _is_unbroken(picked: Sequence[int]) -> bool:
    return isinstance(picked, range) and (picked.step == 1 or len(picked) <= 1)


def _first(picked: Sequence[int]) -> int:
    return picked[0] if picked else 0


def _rows(dims: Sequence[Sequence[int]], steps: Sequence[int], begin: int) -> Iterator[Rows]:
    """Rows over the outer dimensions, the innermost of which is strided where it can be."""
    if dims and isinstance(dims[-1], range):
        inner = dims[-1]
        rows, stride = len(inner), inner.step * steps[-1]
        begin += _first(inner) * steps[-1]
        dims, steps = dims[:-1], steps[:-1]
    else:
        rows, stride = 1, 0
    places = [[index * step for index in picked] for picked, step in zip(dims, steps)]
    for offsets in itertools.product(*places):
        yield Rows(begin + sum(offsets), rows, stride)
