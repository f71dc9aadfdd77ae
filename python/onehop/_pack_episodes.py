"""``--join episode``: streams of other clocks are added to the episodes of the first input.

Every input tells the times of an episode on the same clock; that of a LeRobot dataset begins at 0
with the episode. Episodes are joined by their names. Episodes that the first input does not have
are left out, and noted; one that another input lacks stays as it is. LeRobot datasets, logs, tables
with a column ``timestamp_ns`` and manifests (named by their CSV, in the folder that they speak of)
can be joined.
"""
from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, cast

from . import errors
from ._pack_input import Input, InputOptions, Item, Job, Rows, digest_of, open_input
from ._pack_manifest import ManifestInput
from ._pack_names import Cleaner
from ._pack_notes import Notes
from ._pack_table import TableInput, _batches, _episodes

_WHOLE = 1 << 62
_ROWS = 1 << 16


class _Joinable(Protocol):
    """An input whose jobs can be had by episode."""

    @property
    def streams(self) -> list[str]: ...

    def by_episode(self) -> Sequence[tuple[str, Job]]: ...


def _streams(opened: Input) -> list[str]:
    if isinstance(opened, ManifestInput):
        return [stream.name for stream in opened._rows.streams]
    if isinstance(opened, TableInput):
        return [column.stream for column in opened._columns]
    return cast(_Joinable, opened).streams


def _by_episode(opened: Input) -> dict[str, list[Job]]:
    """Jobs that together hold an episode, and may hold others."""
    if isinstance(opened, ManifestInput):
        return {job.rows.episodes[job.rows.episode[0]]: [job] for job in opened.jobs(_WHOLE)}
    if isinstance(opened, TableInput) and opened._log:
        return _table_episodes(opened)
    if not hasattr(opened, "by_episode"):
        raise errors.InvalidArgument(
            f"{opened.path!r} is a {opened.kind} without episodes and times", "join LeRobot "
            "datasets, logs, tables with timestamp_ns, and manifests named by their CSV")
    return {episode: [job] for episode, job in cast(_Joinable, opened).by_episode()}


def _table_episodes(opened: TableInput) -> dict[str, list[Job]]:
    made: dict[str, list[Job]] = {}
    cleaner = Cleaner(opened._names, Notes())
    for job in opened.jobs(1):
        if "episode" not in job.meta:
            made.setdefault(opened._episode, []).append(job)
            continue
        for batch in _batches(opened.path, job.groups, ["episode"], _ROWS):
            for episode, _, _ in _episodes(batch, job.episode):
                jobs = made.setdefault(cleaner.episode(episode), [])
                if not jobs or jobs[-1] is not job:
                    jobs.append(job)
    return made


def open_joined(paths: Sequence[str], options: InputOptions) -> JoinInput:
    """Opens inputs and joins them.

    Raises
    ------
    InvalidArgument
        Two have a stream of one name in one episode, or one has no episodes.
    """
    if len(paths) < 2:
        raise errors.InvalidArgument("one input is given, and is to be joined",
                                     "name those that are joined to it, too")
    return JoinInput([_opened(path, replace(options, prefix="")) for path in paths])


def _opened(path: str, options: InputOptions) -> Input:
    if path.endswith(".csv"):
        return open_input(os.path.dirname(os.path.abspath(path)), replace(options, manifest=path))
    return open_input(path, options)


class JoinInput:
    """Several inputs as one; see `_pack_input.Input`.

    Parameters
    ----------
    inputs : sequence of Input
        The first tells which episodes there are.
    """

    kind = "join"

    def __init__(self, inputs: Sequence[Input]) -> None:
        self.path, self._inputs = inputs[0].path, inputs
        self.notes = Notes()
        parts = [_by_episode(opened) for opened in inputs]
        for opened in inputs:
            self.notes.add(opened.notes)
        for opened, jobs in zip(inputs[1:], parts[1:]):
            for episode in jobs:
                if episode not in parts[0]:
                    self.notes.skipped(f"episode {episode} of {opened.path}",
                                       f"{self.path} has none of that name")
        self._jobs: list[JoinJob] = []
        for episode in parts[0]:
            there = [number for number, jobs in enumerate(parts) if episode in jobs]
            _check_streams(episode, [inputs[number] for number in there])
            self._jobs.append(JoinJob(episode, [parts[number][episode] for number in there]))
        self.nbytes = sum(opened.nbytes for opened in inputs)

    def jobs(self, limit: int) -> Sequence[Job]:
        """What belongs to no episode, and an episode each; none of these is cut."""
        others = [job for opened in self._inputs for job in opened.jobs(limit) if not job.log]
        return [*others, *self._jobs]


def _check_streams(episode: str, inputs: Sequence[Input]) -> None:
    """Raises for a stream that two inputs of an episode have."""
    owners: dict[str, str] = {}
    for opened in inputs:
        for stream in _streams(opened):
            if stream in owners:
                raise errors.InvalidArgument(
                    f"stream {stream!r} of episode {episode!r} is in {owners[stream]!r} and in "
                    f"{opened.path!r}", "rename one")
            owners[stream] = opened.path


@dataclass
class JoinJob:
    """An episode of all inputs; see `_pack_input.Job`."""

    log: ClassVar[bool] = True
    episode: str
    parts: list[list[Job]]   # of each input that has it

    @property
    def name(self) -> str:
        return f"episode {self.episode} of " + " with ".join(jobs[0].name for jobs in self.parts)

    @property
    def nbytes(self) -> int:
        return sum(job.nbytes for jobs in self.parts for job in jobs)

    @property
    def digest(self) -> str:
        return digest_of((self.episode, *(job.digest for jobs in self.parts for job in jobs)))

    def items(self, notes: Notes) -> Iterator[Item]:
        """See `_pack_input.Job`."""
        yield from heapq.merge(*(self._own(jobs, notes) for jobs in self.parts), key=_place)

    def _own(self, jobs: list[Job], notes: Notes) -> Iterator[Item]:
        return (item for job in jobs for item in job.items(notes) if item.episode == self.episode)


def _place(item: Item) -> tuple[int, str]:
    if isinstance(item, Rows):
        return int(item.times_ns[0]), item.stream
    return item.timestamp_ns or 0, item.stream or ""
