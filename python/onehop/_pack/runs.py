"""Runs: rows of a small stream that stay together among the records of others.

Records of an episode lie in the order of time, and jobs are cut by bytes. A stream of small rows
that lay there row by row would be cut wherever a camera beside it fills a job, and each job would
make a chunk of the few rows that it has. So rows come in runs, which take the place of their first
row and are never cut. A run is of one second of the clock, which is the same for all streams: who
reads one has the others to read with it. Of a quick stream it is less: a run fits a chunk.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from .input import Item, Rows

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

RUN_NS = 10**9
TIME_BYTES = 8
"""What a row takes beside its values."""


def place(item: Item) -> tuple[int, str]:
    """Where an item lies within its episode."""
    if isinstance(item, Rows):
        return int(item.times_ns[0]), item.stream
    return item.timestamp_ns or 0, item.stream or ""


def runs(times_ns: NDArray[numpy.int64], row_bytes: int, chunk_bytes: int,
         episodes: NDArray[numpy.int32] | None = None
         ) -> tuple[NDArray[numpy.bool_], NDArray[numpy.int64]]:
    """The runs of a stream's rows.

    Parameters
    ----------
    times_ns : int64 [T]
        Sorted, within each episode.
    row_bytes : int
        Of one.
    chunk_bytes : int
        Of a run at most, unless one row has more.
    episodes : int32 [T] or None
        Numbers of the rows' episodes, each in one place; None: there is one.

    Returns
    -------
    begins : bool [T]
        The row is the first of a run.
    place_ns : int64 [T]
        The time of the first row of its run.
    """
    import numpy

    numbers, seconds = numpy.arange(len(times_ns)), times_ns // RUN_NS
    begins = numpy.ones(len(times_ns), numpy.bool_)
    begins[1:] = seconds[1:] != seconds[:-1]
    if episodes is not None:
        begins[1:] |= episodes[1:] != episodes[:-1]
    first = numpy.maximum.accumulate(numpy.where(begins, numbers, 0))
    begins |= (numbers - first) % max(1, chunk_bytes // (row_bytes + TIME_BYTES)) == 0
    return begins, times_ns[begins][numpy.cumsum(begins) - 1]


def cuts(costs: NDArray[numpy.int64], begins: NDArray[numpy.bool_], limit: int
         ) -> list[tuple[int, int, int]]:
    """Jobs of records that follow each other: of each the first record, the end, and the cost.

    Parameters
    ----------
    costs : int64 [T]
        Of each record.
    begins : bool [T]
        A job may begin with the record.
    limit : int
        What a job costs at most, unless what is not cut costs more.
    """
    import numpy

    ends = numpy.cumsum(costs)
    starts = numpy.append(numpy.flatnonzero(begins), len(ends))
    made, begin, before = [], 0, 0
    while begin < len(ends):
        fits = numpy.searchsorted(ends, before + limit, "right")
        least = numpy.searchsorted(starts, begin, "right")
        end = int(starts[max(numpy.searchsorted(starts, fits, "right") - 1, least)])
        made.append((begin, end, int(ends[end - 1]) - before))
        begin, before = end, int(ends[end - 1])
    return made
