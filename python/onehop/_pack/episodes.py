"""``--join episode``: streams of other clocks are added to the episodes of the first input.

Episodes are joined by their names. Episodes that the first input does not have are left out, and
noted; one that another input lacks stays as it is. LeRobot datasets, logs, tables with a column
``timestamp_ns`` and manifests (named by their CSV, in the folder that they speak of) can be joined.

The first input's clock is the episode's; that of a LeRobot dataset begins at 0 with each episode,
and nothing in the dataset says when that was by any other clock. So a joined input tells times by
the episode's clock, or it is said how its own is set: to begin with the episode, or by a file that
names the moment. An input that lies far outside of an episode is refused: nothing would be near.
"""
from __future__ import annotations

import csv
import heapq
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Protocol, cast

from .. import errors
from .input import Input, InputOptions, Item, Job, Rows, Share, digest_of, open_input, reading
from .names import Cleaner
from .notes import Notes
from .runs import place

_APART_NS = 10**9
"""How far from an episode an input may begin or end that tells times by its clock."""
_COLUMNS = ("episode", "start_ns")


class _Joinable(Protocol):
    """An input whose jobs can be had by episode."""

    @property
    def path(self) -> str: ...

    @property
    def streams(self) -> list[str]: ...

    def by_episode(self) -> Sequence[Share]: ...


def _by_episode(opened: Input) -> dict[str, Share]:
    shares = cast(_Joinable, opened).by_episode() if hasattr(opened, "by_episode") else ()
    if not shares:
        raise errors.InvalidArgument(
            f"{opened.path!r} is a {opened.kind} without episodes and times", "join LeRobot "
            "datasets, logs, tables with timestamp_ns, and manifests named by their CSV")
    return {share.episode: share for share in shares}


# ---- clocks -------------------------------------------------------------------------------------


def _starts(path: str) -> dict[str, int]:
    """When each episode begins, by the clock of those that are joined, ns."""
    made: dict[str, int] = {}
    cleaner = Cleaner("rewrite", Notes())
    with reading(path, "--clock names"), open(path, encoding="utf-8-sig", newline="") as file:
        try:
            rows = list(csv.DictReader(file))
        except (csv.Error, UnicodeDecodeError) as error:
            raise errors.Malformed(f"{path!r} is no CSV: {error}", "write it as UTF-8 with commas "
                                   "and a header line") from error
    for number, row in enumerate(rows, 1):
        episode, start = (row.get(name) or "" for name in _COLUMNS)
        if not episode or not _is_time(start):
            raise errors.Malformed(f"{path!r}, row {number}, has no episode or no start_ns",
                                   "give it the columns episode and start_ns, ns as an integer")
        if made.setdefault(cleaner.episode(episode), int(start)) != int(start):
            raise errors.Malformed(f"{path!r}, row {number}: episode {episode} begins twice",
                                   "take a row out")
    return made


def _is_time(word: str) -> bool:
    try:
        return len(word) < 30 and -(1 << 63) < int(word) < 1 << 63
    except ValueError:
        return False


class _Clock(NamedTuple):
    """How the clocks of joined inputs are set.

    Attributes
    ----------
    how : str
        See `InputOptions.clock`.
    starts : mapping of str to int
        By episode, of a file.
    """

    how: str
    starts: Mapping[str, int]

    def shift(self, path: str, share: Share, episode: Share) -> int:
        """What is added to the times of an input's share of an episode, ns.

        Parameters
        ----------
        path : str
            Of the input.
        share : Share
            Its own.
        episode : Share
            The first input's.
        """
        if self.how == "start":
            shift = episode.first_ns - share.first_ns
        elif self.how == "episode":
            shift = 0
        elif share.episode in self.starts:
            shift = episode.first_ns - self.starts[share.episode]
        else:
            raise errors.InvalidArgument(f"{self.how!r} does not say when episode {share.episode} "
                                         f"of {path!r} begins", "add it")
        first, last = share.first_ns + shift, share.last_ns + shift
        if first > episode.last_ns + _APART_NS or last < episode.first_ns - _APART_NS:
            raise errors.InvalidArgument(
                f"{path!r} has episode {share.episode} from {first} to {last} ns, and the episode "
                f"is from {episode.first_ns} to {episode.last_ns} ns: their clocks are not one",
                "give --clock start if both begin at once, or --clock FILE that says when it "
                "begins")
        if not -(1 << 63) < first <= last < 1 << 63:
            raise errors.OutOfRange(f"{path!r}: times of episode {share.episode} leave 64 bits",
                                    "correct them")
        return shift


# ---- inputs -------------------------------------------------------------------------------------


def open_joined(paths: Sequence[str], options: InputOptions) -> JoinInput:
    """Opens inputs and joins them.

    Raises
    ------
    InvalidArgument
        Two have a stream of one name in one episode, one has no episodes, or their clocks differ.
    """
    if len(paths) < 2:
        raise errors.InvalidArgument("one input is given, and is to be joined",
                                     "name those that are joined to it, too")
    starts = {} if options.clock in ("episode", "start") else _starts(options.clock)
    return JoinInput([_opened(path, replace(options, prefix="")) for path in paths],
                     _Clock(options.clock, starts))


def _opened(path: str, options: InputOptions) -> Input:
    if path.endswith(".csv"):
        return open_input(os.path.dirname(os.path.abspath(path)), replace(options, manifest=path))
    return open_input(path, options)


class JoinInput:
    """Several inputs as one; see `input.Input`.

    Parameters
    ----------
    inputs : sequence of Input
        The first tells which episodes there are.
    clock : _Clock
    """

    kind = "join"

    def __init__(self, inputs: Sequence[Input], clock: _Clock) -> None:
        self.path, self._inputs = inputs[0].path, inputs
        self.notes = Notes()
        shares = [_by_episode(opened) for opened in inputs]
        for opened in inputs:
            self.notes.add(opened.notes)
        for opened, mine in zip(inputs[1:], shares[1:]):
            for episode in mine:
                if episode not in shares[0]:
                    self.notes.skipped(f"episode {episode} of {opened.path}",
                                       f"{self.path} has none of that name")
        self._jobs = [self._joined(episode, shares, clock) for episode in shares[0]]
        self.nbytes = sum(opened.nbytes for opened in inputs)

    def _joined(self, episode: str, shares: Sequence[dict[str, Share]], clock: _Clock) -> JoinJob:
        there = [(opened, mine[episode]) for opened, mine in zip(self._inputs, shares)
                 if episode in mine]
        _check_streams(episode, [opened for opened, _ in there])
        shifts = [0]
        for opened, share in there[1:]:
            shifts.append(clock.shift(opened.path, share, there[0][1]))
            if shifts[-1]:
                self.notes.shifted(f"times of episode {episode} of {opened.path}", shifts[-1])
        return JoinJob(episode, [list(share.jobs) for _, share in there], shifts)

    def jobs(self, limit: int) -> Sequence[Job]:
        """What belongs to no episode, and an episode each; none of these is cut."""
        others = [job for opened in self._inputs for job in opened.jobs(limit) if not job.log]
        return [*others, *self._jobs]


def _check_streams(episode: str, inputs: Sequence[Input]) -> None:
    """Raises for a stream that two inputs of an episode have."""
    owners: dict[str, str] = {}
    for opened in inputs:
        for stream in cast(_Joinable, opened).streams:
            if stream in owners:
                raise errors.InvalidArgument(
                    f"stream {stream!r} of episode {episode!r} is in {owners[stream]!r} and in "
                    f"{opened.path!r}", "rename one")
            owners[stream] = opened.path


@dataclass
class JoinJob:
    """An episode of all inputs; see `input.Job`."""

    log: ClassVar[bool] = True
    episode: str
    parts: list[list[Job]]   # of each input that has it
    shifts: list[int]        # what is added to its times, ns

    @property
    def name(self) -> str:
        return f"episode {self.episode} of " + " with ".join(jobs[0].name for jobs in self.parts)

    @property
    def nbytes(self) -> int:
        return sum(job.nbytes for jobs in self.parts for job in jobs)

    @property
    def digest(self) -> str:
        return digest_of((self.episode, *self.shifts,
                          *(job.digest for jobs in self.parts for job in jobs)))

    def items(self, notes: Notes) -> Iterator[Item]:
        """See `input.Job`."""
        yield from heapq.merge(*(self._own(jobs, shift, notes)
                                 for jobs, shift in zip(self.parts, self.shifts)), key=place)

    def _own(self, jobs: list[Job], shift: int, notes: Notes) -> Iterator[Item]:
        return (_shifted(item, shift) for job in jobs for item in job.items(notes)
                if item.episode == self.episode)


def _shifted(item: Item, shift: int) -> Item:
    """An item with other times."""
    if not shift:
        return item
    if isinstance(item, Rows):
        return item._replace(times_ns=item.times_ns + shift)
    return item._replace(timestamp_ns=(item.timestamp_ns or 0) + shift)
