"""Streams of different rates, brought to one clock: which records belong to which moment.

A set of *anchors*, the times of one stream of an episode, asks of every other stream for the
records that belong to each of them. This module answers with indices of records. It reads no data
and knows one episode at a time, so that nothing reaches across an episode's border.

    specs = parse({"lidar": "nearest", "touch": (-0.5, 0.0), "joints": [-0.1, 0.0], "imu": 50},
                  tolerance=0.06)
    clock = Clock(times, "lidar")                # once per episode and stream
    found = align(anchors, clock, specs["lidar"])  # Records or Slices
    kept = survey(anchors, clocks, specs, gap="skip").keep

What a stream can be asked for, t being the anchor's time:

==================  ==================================================================  ===========
``"nearest"``       the record nearest to t                                             `Records`
``[s, ...]``        for each offset, the record nearest to t + s                        `Records`
``n``               the last n records at or before t, the oldest first                 `Records`
``(a, b)``          all records with t + a <= time < t + b                              `Slices`
``(a, b)``, rows=N  N moments t + a + i (b - a) / N, i from 0, each by a method         `Records`
==================  ==================================================================  ===========

The methods: ``nearest``, the record nearest to the moment; ``hold``, the last at or before it;
``linear``, between the last at or before it and the first after it. All look at the whole episode,
so that nearest and linear may use a record from just outside (a, b).

The rules:

- Seconds become int64 nanoseconds once, half to even, by the shortest decimal that names the
  float: 0.1 is 100,000,000 ns. Moments of rows=N are rounded the same way. All else is exact.
- Of two records as near, the earlier is the nearest; of records of the same time, the first. *At or
  before* takes the last of them. Times of a stream never fall, but may repeat and be negative.
- *Skew* is how far a record is from the moment that it stands for; with linear, the nearer of the
  two. With ``n`` it is the age of the newest. Slices stand for no moment and have none.
- A record is missing where the stream has none (empty, before the first with hold, outside of the
  first and last with linear, fewer than n), and where its skew is greater than the tolerance (with
  ``n``, all n are). Its index is -1 and its mask `is_pad` is True. A slice is one if it is empty.
- ``gap`` says what comes of an anchor for which anything is missing: ``"mask"`` keeps it,
  ``"skip"`` leaves it out, ``"error"`` raises with stream, episode and time.
"""
from __future__ import annotations

import decimal
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from . import errors

__all__ = ["Clock", "Records", "Skew", "Slices", "Spec", "Survey", "align", "interpolate",
           "nanoseconds", "parse", "skew", "survey"]

Seconds: TypeAlias = "int | float | decimal.Decimal | Fraction"
Wish: TypeAlias = "Literal['nearest'] | tuple[Seconds, Seconds] | Sequence[Seconds] | int"
Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

METHODS = ("nearest", "hold", "linear")
GAPS = ("mask", "skip", "error")
MAX_ROWS = 1 << 20
NO_SKEW = -1
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_AT_ONCE = 1 << 18
"""Moments that a survey looks at together: few enough to stay in the cache."""


# ---- what is asked for


@dataclass(frozen=True)
class Spec:
    """What one stream is asked for, in nanoseconds.

    Attributes
    ----------
    stream : str
    kind : "records", "last" or "window"
        By offsets; the last `count`; all from `begin` on and before `end`.
    offsets : int64 [count]
        Of kind records, ns from the anchor.
    begin, end : int
        Of kind window, ns from the anchor.
    count : int
        Records of an anchor; 0 of kind window, which has as many as there are.
    method : "nearest", "hold" or "linear"
        Of kind records.
    tolerance : int or None
        ns; None: any skew will do.
    single : bool
        One record without a dimension of its own: a batch is [B, ...], not [B, 1, ...].
    """

    stream: str
    kind: Literal["records", "last", "window"]
    offsets: tuple[int, ...] = ()
    begin: int = 0
    end: int = 0
    count: int = 0
    method: str = "nearest"
    tolerance: int | None = None
    single: bool = False

    @property
    def reach(self) -> tuple[int, int]:
        """The least and the greatest offset, ns."""
        if self.kind == "window":
            return self.begin, self.end
        return (min(self.offsets), max(self.offsets)) if self.offsets else (0, 0)


def nanoseconds(seconds: Seconds, what: str = "a time") -> int:
    """Seconds as int64 nanoseconds, rounded half to even.

    A float stands for the shortest decimal that names it, so 0.1 is 100,000,000 ns. NumPy's numbers
    are taken as well.

    Raises
    ------
    InvalidArgument
        No number, not finite, or more than 64 bits of nanoseconds.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (numbers.Real, decimal.Decimal)):
        raise errors.InvalidArgument(f"{what} is {_show(seconds)}, which is no number",
                                     "give seconds")
    exact: Any = int(seconds) if isinstance(seconds, numbers.Integral) else seconds
    size = _size(exact)
    if size < 1e-12:
        return 0
    if size < 1e10:  # so that it is short when it is written out
        if not isinstance(exact, (int, Fraction, decimal.Decimal)):
            exact = str(exact)
        rounded = round(Fraction(exact) * 10**9)
        if _LEAST <= rounded <= _MOST:
            return rounded
    raise errors.InvalidArgument(f"{what} is {_show(seconds)} s, which 64 bits of nanoseconds do "
                                 "not hold", "give a finite number of seconds")


def _size(number: Any) -> float:
    try:
        return abs(float(number))
    except (OverflowError, ValueError):  # a huge int, a signaling NaN
        return float("inf")


def _show(value: Any) -> str:
    """repr, of a length to read."""
    try:
        text = repr(value)
    except ValueError:  # an int of thousands of digits
        return "an int of very many digits"
    return text if len(text) <= 80 else text[:77] + "..."


def parse(streams: Mapping[str, Wish], *,
          tolerance: Seconds | Mapping[str, Seconds | None] | None = None,
          rows: int | Mapping[str, int] | None = None,
          method: str | Mapping[str, str] = "nearest") -> dict[str, Spec]:
    """What each stream is asked for, checked.

    Parameters
    ----------
    streams : mapping
        By stream: ``"nearest"``, a tuple (a, b), a list of offsets, or an int (module's table).
        Seconds.
    tolerance : seconds, or a mapping by stream
        None, and a stream that the mapping lacks: any skew will do.
    rows : int, or a mapping by stream
        The moments of each (a, b). An int counts for all of these.
    method : str, or a mapping by stream
        How rows are found: ``"nearest"``, ``"hold"`` or ``"linear"``.

    Raises
    ------
    InvalidArgument
        Names the stream and the rule.
    """
    if not isinstance(streams, Mapping) or not all(isinstance(name, str) for name in streams):
        raise errors.InvalidArgument("streams is no mapping of streams' names",
                                     'give {"lidar": "nearest", "touch": (-0.5, 0.0)}')
    for what, given in (("tolerance", tolerance), ("rows", rows), ("method", method)):
        if isinstance(given, Mapping):
            _known(what, given, streams)
    return {name: _spec(name, wish, _of(tolerance, name, None), _of(rows, name, None),
                        _of(method, name, "nearest"), isinstance(rows, Mapping))
            for name, wish in streams.items()}


def _known(what: str, given: Mapping[str, Any], streams: Mapping[str, Any]) -> None:
    for name in given:
        if name not in streams:
            raise errors.InvalidArgument(f"{what} names stream {name!r}, which is not asked for",
                                         f"the streams are {', '.join(map(repr, streams))}")


def _of(given: Any, name: str, default: Any) -> Any:
    """One stream's part of what may be a mapping by stream."""
    return given.get(name, default) if isinstance(given, Mapping) else given


def _spec(name: str, wish: Any, tolerance: Any, rows: Any, method: Any, rows_of_it: bool) -> Spec:
    limit = None if tolerance is None else nanoseconds(tolerance, f"tolerance of stream {name!r}")
    if limit is not None and limit < 0:
        raise errors.InvalidArgument(f"tolerance of stream {name!r} is {_show(tolerance)}, below 0",
                                     "give seconds, or None for any skew")
    if method not in METHODS:
        raise errors.InvalidArgument(f"method of stream {name!r} is {_show(method)}",
                                     f"give one of {', '.join(METHODS)}")
    if isinstance(wish, tuple):
        return _window(name, wish, limit, rows, method)
    if rows_of_it and rows is not None:
        raise errors.InvalidArgument(f"rows of stream {name!r} is given, which is asked for by "
                                     f"{_show(wish)}", "rows belongs to a tuple (a, b)")
    if isinstance(wish, str):
        if wish != "nearest":
            raise errors.InvalidArgument(f"stream {name!r} is asked for by {_show(wish)}",
                                         _remedy())
        return Spec(name, "records", (0,), count=1, tolerance=limit, single=True)
    if isinstance(wish, numbers.Integral) and not isinstance(wish, bool):
        count = _count(f"the number of last records of stream {name!r}", wish)
        return Spec(name, "last", count=count, method="hold", tolerance=limit)
    return _offsets(name, wish, limit)


def _remedy() -> str:
    return 'give "nearest", a tuple (a, b), a list of offsets in seconds, or an int'


def _count(what: str, given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, numbers.Integral) \
            or not 1 <= int(given) <= MAX_ROWS:
        raise errors.InvalidArgument(f"{what} is {_show(given)}",
                                     f"give an int from 1 to {MAX_ROWS}")
    return int(given)


def _window(name: str, wish: tuple[Any, ...], limit: int | None, rows: Any, method: str) -> Spec:
    if len(wish) != 2:
        raise errors.InvalidArgument(f"stream {name!r} is asked for by a tuple of {len(wish)}",
                                     "a tuple is (a, b): from t + a on, before t + b; offsets are "
                                     "a list")
    begin, end = (nanoseconds(edge, f"an edge of stream {name!r}'s (a, b)") for edge in wish)
    if begin >= end:
        raise errors.InvalidArgument(f"stream {name!r} is asked for by {_show(wish)}, which holds "
                                     "no time",
                                     "(a, b) is from t + a on and before t + b: make a < b")
    if rows is None:
        return Spec(name, "window", begin=begin, end=end, tolerance=limit)
    count = _count(f"rows of stream {name!r}", rows)
    offsets = tuple(begin + round(Fraction(row * (end - begin), count)) for row in range(count))
    return Spec(name, "records", offsets, count=count, method=method, tolerance=limit)


def _offsets(name: str, wish: Any, limit: int | None) -> Spec:
    if isinstance(wish, np.ndarray) and wish.ndim == 1:
        wish = list(wish)
    if not isinstance(wish, list):
        raise errors.InvalidArgument(f"stream {name!r} is asked for by {_show(wish)}", _remedy())
    count = _count(f"the number of offsets of stream {name!r}", len(wish))
    offsets = tuple(nanoseconds(one, f"an offset of stream {name!r}") for one in wish)
    return Spec(name, "records", offsets, count=count, tolerance=limit)


# ---- what is found


class Clock:
    """The times of one stream in one episode, checked.

    Parameters
    ----------
    times : int64 [T]
        Nanoseconds, never falling; kept, not copied. Must not change.
    stream : str
        For errors.
    episode : str
        For errors.

    Raises
    ------
    InvalidArgument
        Not one dimension of int64.
    Malformed
        A time is less than the one before it.
    """

    def __init__(self, times: npt.ArrayLike, stream: str = "", episode: str = "") -> None:
        self.times = _int64s(times, f"times of stream {stream!r}")
        self.stream, self.episode = stream, episode
        fallen = np.flatnonzero(self.times[1:] < self.times[:-1])
        if len(fallen):
            row = int(fallen[0]) + 1
            raise errors.Malformed(
                f"stream {stream!r}{_in(episode)}: record {row} has time {self.times[row]} ns, "
                f"before record {row - 1}'s {self.times[row - 1]} ns", "sort the stream by time")

    def __len__(self) -> int:
        return len(self.times)


def _in(episode: str) -> str:
    return f" of episode {episode!r}" if episode else ""


def _int64s(given: npt.ArrayLike, what: str) -> Int64s:
    array = np.asarray(given)
    if array.ndim == 1 and not array.size:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype != np.int64:
        raise errors.InvalidArgument(f"{what} are {array.dtype} of shape {list(array.shape)}",
                                     "give int64 nanoseconds in one dimension")
    return cast(Int64s, array)


@dataclass(frozen=True)
class Records:
    """A fixed number of records for each of A anchors.

    Attributes
    ----------
    index : int64 [A, N]
        Of the record; of the lower one with linear. -1: missing.
    upper : int64 [A, N] or None
        The other record of linear; the same one where the moment is a record's own.
    weight : float64 [A, N] or None
        Of the upper one, from 0 to 1; `interpolate` applies it.
    is_pad : bool [A, N]
        Missing.
    skew_ns : int64 [A]
        The greatest of the anchor's records, missing by tolerance or not; `NO_SKEW` if the stream
        has none.
    """

    index: Int64s
    upper: Int64s | None
    weight: npt.NDArray[np.float64] | None
    is_pad: Bools
    skew_ns: Int64s

    @property
    def gap(self) -> Bools:
        """[A]: whether anything is missing."""
        return cast(Bools, self.is_pad.any(axis=1))


@dataclass(frozen=True)
class Slices:
    """All records of a window, side by side, for each of A anchors.

    Attributes
    ----------
    begin, end : int64 [A]
        Records begin to end - 1; both are valid as bounds of a slice, also where it is empty.
    is_pad : bool [A]
        Empty.
    """

    begin: Int64s
    end: Int64s
    is_pad: Bools

    @property
    def gap(self) -> Bools:
        """[A]: whether the slice is empty."""
        return self.is_pad


def align(anchors: npt.ArrayLike, clock: Clock, spec: Spec) -> Records | Slices:
    """The records of a stream that belong to each anchor.

    Parameters
    ----------
    anchors : int64 [A]
        Nanoseconds, in any order, of the clock's episode.
    clock : Clock
    spec : Spec
        Of kind window it gives `Slices`, else `Records`.

    Raises
    ------
    InvalidArgument
        anchors are not int64 [A].
    OutOfRange
        An anchor plus an offset leaves 64 bits.
    """
    at = _int64s(anchors, "anchors")
    _check_reach(at, clock, spec)
    if spec.kind == "window":
        begin, end = (np.searchsorted(clock.times, at + edge).astype(np.int64, copy=False)
                      for edge in (spec.begin, spec.end))
        return Slices(begin, end, begin == end)
    if spec.kind == "last":
        return _last(at, clock.times, spec)
    moments = at[:, None] + np.array(spec.offsets, np.int64)
    find = {"nearest": _nearest, "hold": _hold, "linear": _linear}[spec.method]
    return _judged(*find(moments, clock.times), spec.tolerance)


def _check_reach(at: Int64s, clock: Clock, spec: Spec) -> None:
    if not len(at):
        return
    low, high = spec.reach
    for anchor, offset in ((int(at.min()), low), (int(at.max()), high)):
        if not _LEAST <= anchor + offset <= _MOST:
            raise errors.OutOfRange(
                f"stream {clock.stream!r}{_in(clock.episode)}: the anchor at {anchor} ns and its "
                f"offset of {offset} ns leave 64 bits", "check the anchor stream's times")


_Found: TypeAlias = ("tuple[Int64s, Int64s | None, npt.NDArray[np.float64] | None, "
                     "npt.NDArray[np.uint64]]")
"""Index (-1 for none), upper, weight, and the distance, each [A, N]."""


def _apart(later: Int64s, earlier: Int64s) -> npt.NDArray[np.uint64]:
    """later - earlier, which may need all of 64 bits; wraps around where it is negative."""
    return later.view(np.uint64) - earlier.view(np.uint64)


def _hold(moments: Int64s, times: Int64s) -> _Found:
    index = np.searchsorted(times, moments, "right").astype(np.int64, copy=False) - 1
    if not len(times):
        return index, None, None, np.zeros(moments.shape, np.uint64)
    return index, None, None, _apart(moments, times[index])


def _nearest(moments: Int64s, times: Int64s) -> _Found:
    """The earlier of two as near; the first of those with its time."""
    upper = np.searchsorted(times, moments).astype(np.int64, copy=False)
    if not len(times):
        return upper - 1, None, None, np.zeros(moments.shape, np.uint64)
    before, after = np.maximum(upper - 1, 0), np.minimum(upper, len(times) - 1)
    past, ahead = _apart(moments, times[before]), _apart(times[after], moments)
    take_before = (upper > 0) & ((upper == len(times)) | (past <= ahead))
    chosen = np.where(take_before, before, after)
    first = np.searchsorted(times, times[chosen]).astype(np.int64, copy=False)
    return first, None, None, np.where(take_before, past, ahead)


def _linear(moments: Int64s, times: Int64s) -> _Found:
    lower, _, _, past = _hold(moments, times)
    if not len(times):
        return lower, lower, np.zeros(moments.shape), past
    upper = np.where(past == 0, lower, lower + 1)
    inside = (lower >= 0) & (upper < len(times))
    lower, upper = np.where(inside, lower, -1), np.where(inside, upper, -1)
    ahead = _apart(times[upper], moments)
    between = past.astype(np.float64) + ahead.astype(np.float64)
    weight = np.divide(past, between, out=np.zeros(moments.shape), where=inside & (between > 0))
    return lower, upper, weight, np.minimum(past, ahead)


def _judged(index: Int64s, upper: Int64s | None, weight: npt.NDArray[np.float64] | None,
            distance: npt.NDArray[np.uint64], tolerance: int | None) -> Records:
    """Records, of which those beyond the tolerance are missing."""
    there = index >= 0
    capped = np.minimum(distance, np.uint64(_MOST)).astype(np.int64)
    skews = np.where(there, capped, NO_SKEW).max(axis=1, initial=NO_SKEW)
    missing = ~there if tolerance is None else ~there | (capped > tolerance)
    if upper is not None and weight is not None:
        upper, weight = np.where(missing, -1, upper), np.where(missing, 0.0, weight)
    return Records(np.where(missing, -1, index), upper, weight, missing, skews)


def _last(at: Int64s, times: Int64s, spec: Spec) -> Records:
    newest = _judged(*_hold(at[:, None], times), spec.tolerance)
    index = newest.index + np.arange(1 - spec.count, 1)
    missing = index < 0  # of a newest one that is missing, -1, all are
    return Records(np.where(missing, -1, index), None, None, missing, newest.skew_ns)


# ---- which anchors are kept, and how well they fit


@dataclass(frozen=True)
class Survey:
    """How the streams of an episode fit its anchors.

    Attributes
    ----------
    keep : bool [A]
        False: left out, by gap="skip".
    gaps : dict of str to int
        By stream: anchors for which something is missing.
    skew_ns : dict of str to int64 [A]
        By stream, as in `Records`; none for windows without rows. `skew` sums them up.
    """

    keep: Bools
    gaps: dict[str, int]
    skew_ns: dict[str, Int64s]


def survey(anchors: npt.ArrayLike, clocks: Mapping[str, Clock], specs: Mapping[str, Spec], *,
           gap: str = "mask", episode: str = "") -> Survey:
    """Looks at all anchors of an episode, in little memory, and decides which are kept.

    Parameters
    ----------
    anchors : int64 [A]
        Nanoseconds.
    clocks : mapping
        By stream; a stream that it lacks has no record in this episode.
    specs : mapping
        From `parse`.
    gap : "mask", "skip" or "error"
    episode : str
        For errors.

    Raises
    ------
    OutOfRange
        gap="error", and something is missing; names stream, episode and time.
    """
    if gap not in GAPS:
        raise errors.InvalidArgument(f"gap is {gap!r}", f"give one of {', '.join(GAPS)}")
    at = _int64s(anchors, "anchors")
    keep = np.ones(len(at), np.bool_)
    gaps: dict[str, int] = {}
    skews: dict[str, Int64s] = {}
    for name, spec in specs.items():
        clock = clocks.get(name) or Clock(np.zeros(0, np.int64), name, episode)
        missing, skew_ns = _one_stream(at, clock, spec)
        gaps[name] = int(np.count_nonzero(missing))
        if spec.kind != "window":
            skews[name] = skew_ns
        if gap == "error" and gaps[name]:
            _refuse(int(at[np.flatnonzero(missing)[0]]), clock, spec, episode)
        if gap == "skip":
            keep &= ~missing
    return Survey(keep, gaps, skews)


def _one_stream(at: Int64s, clock: Clock, spec: Spec) -> tuple[Bools, Int64s]:
    """[A], [A]: whether anything is missing, and the skew; some anchors at a time."""
    missing, skew_ns = np.zeros(len(at), np.bool_), np.full(len(at), NO_SKEW, np.int64)
    step = max(1, _AT_ONCE // max(1, spec.count))
    for first in range(0, len(at), step):
        part = slice(first, first + step)
        found = align(at[part], clock, spec)
        missing[part] = found.gap
        if isinstance(found, Records):
            skew_ns[part] = found.skew_ns
    return missing, skew_ns


def _refuse(anchor: int, clock: Clock, spec: Spec, episode: str) -> None:
    found = align(np.array([anchor]), clock, spec)
    where = f"stream {spec.stream!r}{_in(episode or clock.episode)}"
    if isinstance(found, Slices):
        why = "has no record in its window"
    elif spec.tolerance is not None and found.skew_ns[0] > spec.tolerance:
        why = (f"has a skew of {found.skew_ns[0] / 1e9:g} s, more than the tolerance of "
               f"{spec.tolerance / 1e9:g} s,")
    else:
        why = f"lacks {int(found.is_pad.sum())} of {spec.count} records"
    raise errors.OutOfRange(f"{where} {why} at the anchor of {anchor} ns",
                            "give gap='skip' or gap='mask', or another tolerance or window")


@dataclass(frozen=True)
class Skew:
    """How far the records of a stream are from the moments that they stand for.

    Attributes
    ----------
    anchors : int
        Anchors that have a record.
    max_ns, p99_ns : int
        The greatest, and the least that 99 of 100 anchors do not exceed; 0 without anchors.
    """

    anchors: int
    max_ns: int
    p99_ns: int


def skew(skew_ns: Iterable[Int64s]) -> Skew:
    """The skew of a stream over episodes: what their surveys say of it."""
    parts = [part[part != NO_SKEW] for part in skew_ns]
    values = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    if not len(values):
        return Skew(0, 0, 0)
    rank = (len(values) * 99 + 99) // 100 - 1
    return Skew(len(values), int(values.max()), int(np.partition(values, rank)[rank]))


# ---- values


def interpolate(lower: Any, upper: Any, weight: Any) -> Any:
    """Values between two records: ``lower + (upper - lower) * weight``, of their own type.

    Parameters
    ----------
    lower, upper : array of floats [..., C...]
        NumPy arrays, or torch tensors of any device: the gathered values of `Records.index` and
        `Records.upper`.
    weight : array of floats [...]
        Of the same framework and device.

    Returns
    -------
    array [..., C...]
        A new one. Where the weight is 0 it is lower, to the bit.

    Raises
    ------
    UnsupportedData
        The values are no floats.
    """
    library = _framework(lower)
    if not _is_float(lower, library):
        raise errors.UnsupportedData(f"linear interpolation is asked of {lower.dtype} values",
                                     "give method='nearest' or 'hold' for streams that are not "
                                     "floats")
    wide = library.promote_types(lower.dtype, library.float32)
    share = _cast(weight, wide).reshape(tuple(weight.shape) + (1,) * (lower.ndim - weight.ndim))
    start = _cast(lower, wide)
    with np.errstate(invalid="ignore"):  # infinities are NaN between, and put right where not
        between = start + (_cast(upper, wide) - start) * share
    return _cast(library.where(share == 0, start, between), lower.dtype)


def _framework(array: Any) -> Any:
    """numpy, or torch for its tensors."""
    if type(array).__module__.partition(".")[0] == "torch":
        import torch

        return torch
    return np


def _is_float(array: Any, library: Any) -> bool:
    if library is np:
        return bool(np.issubdtype(array.dtype, np.floating)) or array.dtype.name == "bfloat16"
    return bool(array.dtype.is_floating_point)


def _cast(array: Any, dtype: Any) -> Any:
    return array.astype(dtype) if hasattr(array, "astype") else array.to(dtype)
