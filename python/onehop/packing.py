"""``onehop pack``: files, tables and logs into shards that stream at the link's speed.

The inputs are opened and cut into jobs, the jobs are dealt out to shards by their sizes, and the
shards are written side by side. All of that is a function of the inputs and the options, whatever
the number of processes; so a packing that was killed goes on from its last whole shard and ends
with the same bytes.
"""
from __future__ import annotations

import errno
import glob
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from . import errors
from ._pack.episodes import open_joined
from ._pack.input import Input, InputOptions, Job, digest_of, open_input, reading
from ._pack.notes import Notes
from ._pack.state import State, difference, head
from ._pack.work import Settings, Task, Workers, as_ours

__all__ = ["PackOptions", "pack"]

_JOBS_PER_SHARD = 8
_SHARDS = 64                                # of a large set, by default
_SMALLEST, _LARGEST = 256 << 20, 16 << 30   # what a shard has by default
_MOST_PROCESSES = 8


@dataclass(frozen=True)
class PackOptions:
    """What `pack` can be told.

    Attributes
    ----------
    format : {"tar", "arrow"}
    name : str
        Shards are ``name-000000.tar`` and so on.
    align, pad, alignment, mtime
        As of `ShardWriter`.
    shard_size : int or None
        Bytes of a shard, about. None: a 64th of all, from 256 MiB to 16 GiB.
    shard_count : int or None
        How many shards, in place of a size.
    chunk_bytes : int
        Of a chunk of a high-rate stream, at most.
    join_below : int
        Parts of a sample of fewer bytes share one member; 0: none.
    jobs : int or None
        Processes; None: two more than there are cores, up to 8: they wait for the disk in turn.
    verify : bool
        Each shard is read back, by Python's tarfile and by ``onehop verify``.
    overwrite : bool
        What another packing left in the folder is removed.
    inputs : InputOptions
        What is asked of the inputs.
    """

    format: str = "tar"
    name: str = "shard"
    align: str = "sample"
    pad: str = "gnu"
    alignment: int = 4096
    mtime: int = 0
    shard_size: int | None = None
    shard_count: int | None = None
    chunk_bytes: int = 4 << 20
    join_below: int = 0
    jobs: int | None = None
    verify: bool = False
    overwrite: bool = False
    inputs: InputOptions = field(default_factory=InputOptions)

    def settings(self) -> Settings:
        return Settings(self.format, self.align, self.pad, self.alignment, self.mtime,
                        self.chunk_bytes, self.inputs.rows, self.join_below, self.verify)

    def decisive(self) -> dict[str, Any]:
        """All that the shards' bytes depend on, as JSON."""
        inputs = self.inputs
        return {"format": self.format, "name": self.name, "align": self.align, "pad": self.pad,
                "alignment": self.alignment, "mtime": self.mtime, "shard_size": self.shard_size,
                "shard_count": self.shard_count, "chunk_bytes": self.chunk_bytes,
                "join_below": self.join_below,
                **{name: sorted(value) if isinstance(value, frozenset) else value
                   for name, value in vars(inputs).items()
                   if name not in ("prefix", "chunk_bytes")}}


# ---- planning -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shard:
    """A shard to be."""

    number: int
    path: str
    jobs: list[Job]
    nbytes: int
    digest: str


@dataclass(frozen=True)
class Plan:
    """Inputs, and what becomes of them."""

    inputs: list[Input]
    shards: list[Shard]
    head: dict[str, Any]
    notes: Notes

    @property
    def nbytes(self) -> int:
        return sum(shard.nbytes for shard in self.shards)


def make_plan(paths: Sequence[str], folder: str, options: PackOptions) -> Plan:
    """Opens the inputs and deals their jobs out to shards."""
    notes = Notes()
    try:
        inputs = _open_inputs(paths, replace(options.inputs, chunk_bytes=options.chunk_bytes))
        size = _shard_size(sum(opened.nbytes for opened in inputs), options)
        pieces = [list(opened.jobs(max(size // _JOBS_PER_SHARD, 1))) for opened in inputs]
    except errors.OnehopError:
        raise
    except Exception as error:  # of another package, or of a file that is like none
        raise as_ours(error) from error
    for opened in inputs:
        notes.add(opened.notes)
    jobs = [job for piece in pieces for job in piece]
    count = options.shard_count or max(round(sum(job.nbytes for job in jobs) / size), 1)
    shards = _deal(jobs, count, os.path.join(folder, options.name), options.format)
    if options.shard_count and len(shards) < options.shard_count:
        notes.warn(f"there are {len(shards)} shards instead of {options.shard_count}: the inputs "
                   f"come in {len(jobs)} pieces that are not cut")
    rows = [{"path": opened.path, "kind": opened.kind, "nbytes": opened.nbytes,
             "digest": digest_of(job.digest for job in piece)}
            for opened, piece in zip(inputs, pieces)]
    return Plan(inputs, shards, head(options.decisive(), rows, [
        {"path": os.path.basename(shard.path), "digest": shard.digest, "first": shard.jobs[0].name}
        for shard in shards]), notes)


def _open_inputs(paths: Sequence[str], options: InputOptions) -> list[Input]:
    if not paths:
        raise errors.InvalidArgument("no input is given", "name a folder, a tar or a table")
    if options.join is not None:
        return [open_joined(paths, options)]
    if len(paths) > 1 and (options.manifest is not None or options.nuscenes):
        raise errors.InvalidArgument("several inputs are given with a layout for one",
                                     "pack them one after the other")
    names = [os.path.basename(os.path.abspath(path)) for path in paths]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise errors.InvalidArgument(f"two inputs are called {twice!r}, and samples are named by "
                                     "them", "rename one, or pack a folder that holds both")
    folders = sum(os.path.isdir(path) for path in paths)
    made = []
    for path, name in zip(paths, names):
        prefix = f"{name}/" if folders > 1 and os.path.isdir(path) else ""
        made.append(open_input(path, replace(options, prefix=prefix)))
    return made


def _shard_size(total: int, options: PackOptions) -> int:
    if options.shard_count is not None:
        return max(-(-total // options.shard_count), 1)
    if options.shard_size is not None:
        return options.shard_size
    return min(max(-(-total // _SHARDS), _SMALLEST), _LARGEST)


def _deal(jobs: list[Job], count: int, stem: str, kind: str) -> list[Shard]:
    """Jobs to shards of about one size, in order; a shard that would have none is left out."""
    total = sum(job.nbytes for job in jobs) or 1
    piles: dict[int, list[Job]] = {}
    before = 0
    for job in jobs:
        middle = 2 * before + job.nbytes
        piles.setdefault(min(middle * count // (2 * total), count - 1), []).append(job)
        before += job.nbytes
    return [Shard(number, f"{stem}-{number:06d}.{kind}", pile, sum(job.nbytes for job in pile),
                  digest_of(job.digest for job in pile))
            for number, pile in enumerate(piles.values())]


# ---- the folder ---------------------------------------------------------------------------------


_BESIDE = ("", ".onehop", ".idx")


def _prepare(state: State, plan: Plan, folder: str, options: PackOptions) -> list[Shard]:
    """Makes the folder fit for the plan; returns the shards that are still to be written."""
    found = _shards_in(folder, options.name)
    if options.overwrite and (state.head is None or difference(state.head, plan.head)):
        for path in found:
            os.unlink(path)
        state.begin(plan.head)
    elif state.head is None:
        if found:
            raise errors.InvalidArgument(
                f"{folder!r} holds shards that no packing here made, "
                f"{os.path.basename(found[0])!r} first",
                "give an empty folder or another --name, or --overwrite to remove them")
        state.begin(plan.head)
    else:
        other = difference(state.head, plan.head)
        if other:
            raise errors.InvalidArgument(
                f"{folder!r} holds another packing: {other}",
                "pack as it was begun, into another folder, or with --overwrite")
    for path in glob.glob(f"{glob.escape(os.path.join(folder, options.name))}-*.partial"):
        os.unlink(path)
    return [shard for shard in plan.shards if not _is_done(state, shard)]


def _shards_in(folder: str, name: str) -> list[str]:
    """Files that a packing by that name could have made."""
    pattern = re.compile(re.escape(name) + r"-\d{6,}\.(tar|arrow|idx)(\.onehop|\.idx)?(\.partial)?")
    return sorted(os.path.join(folder, found) for found in os.listdir(folder)
                  if pattern.fullmatch(found))


def _is_done(state: State, shard: Shard) -> bool:
    row = state.finished.get(shard.number)
    if row is None or row.get("digest") != shard.digest:
        return False
    if not shard.path.endswith(".arrow") and not os.path.exists(shard.path + ".onehop"):
        return False
    try:
        return os.path.getsize(shard.path) == row.get("shard_bytes")
    except OSError:
        return False


def _check_space(folder: str, left: list[Shard]) -> None:
    """The disk has room for what is left, as far as it is foreseen."""
    with reading(folder):
        disk = os.statvfs(folder)
    free, need = disk.f_bavail * disk.f_frsize, sum(shard.nbytes for shard in left)
    if need > free:
        raise errors.IOFailed(
            f"{folder!r} has {free} bytes free, and the shards need about {need}",
            "make room, or pack to another disk", errno.ENOSPC)


# ---- packing ------------------------------------------------------------------------------------


def pack(inputs: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str],
         options: PackOptions = PackOptions(), *,
         progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
    """Packs inputs into shards; what ``onehop pack`` does.

    Parameters
    ----------
    inputs : sequence of paths
        Folders, tars, tables, logs.
    out : path
        The folder that the shards go to; made if it is not there. A packing that was begun there is
        gone on with.
    options : PackOptions
    progress : callable or None
        Called with bytes written and of all, about.

    Returns
    -------
    dict
        ``shards``, ``kept`` (that were there already), ``samples``, ``members``, ``payload_bytes``,
        ``shard_bytes``, ``seconds`` and ``notes``: what was renamed, left out or worth a warning,
        and per stream records, rate and skew.

    Raises
    ------
    InvalidArgument
        Of names, or of a folder that holds something else.
    Malformed, UnsupportedData
        Of an input.
    IOFailed
        The disk is full: shards that are published stay, and the same call goes on later.
    Busy
        Another process packs there.
    """
    begun, folder = time.monotonic(), os.path.abspath(os.fspath(out))
    plan = make_plan([os.fspath(path) for path in inputs], folder, options)
    with reading(folder, "cannot make the folder"):
        os.makedirs(folder, exist_ok=True)
    state = State(folder)
    try:
        left = _prepare(state, plan, folder, options)
        _check_space(folder, left)
        kept = len(plan.shards) - len(left)
        try:
            _write(state, plan, left, options, progress)
        finally:
            for path in glob.glob(f"{glob.escape(os.path.join(folder, options.name))}-*.partial"):
                os.unlink(path)
    finally:
        state.remove_if_empty()
        state.close()
    return _report(plan, state, kept, time.monotonic() - begun)


def _write(state: State, plan: Plan, left: list[Shard], options: PackOptions,
           progress: Callable[[int, int], None] | None) -> None:
    if not left:
        return
    before, total = plan.nbytes - sum(shard.nbytes for shard in left), plan.nbytes
    done = [before]
    sizes = {shard.number: shard.nbytes for shard in left}

    def on_turn(written: dict[int, int]) -> None:
        if progress is not None:
            progress(done[0] + sum(min(size, sizes[number]) for number, size in written.items()),
                     total)

    digests = {shard.number: shard.digest for shard in left}
    count = min(options.jobs or min(len(os.sched_getaffinity(0)) + 2, _MOST_PROCESSES), len(left))
    tasks = [Task(shard.number, shard.path, shard.jobs) for shard in left]
    with Workers(count, options.settings(), state.fd) as workers:
        try:
            for task, report in workers.run(tasks, on_turn):
                state.publish(task.number, {"digest": digests[task.number], **report})
                done[0] += sizes[task.number]
        except errors.OnehopError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise errors.IOFailed(
                    error.message, "make room and run the same command: finished shards are kept",
                    error.errno) from None
            raise
    if progress is not None:
        progress(total, total)


def _report(plan: Plan, state: State, kept: int, seconds: float) -> dict[str, Any]:
    notes = Notes()
    notes.add(plan.notes)
    rows = [state.finished[shard.number] for shard in plan.shards]
    for row in rows:
        notes.add(Notes(row["notes"]))
    sums = {name: sum(row[name] for row in rows)
            for name in ("samples", "members", "payload_bytes", "shard_bytes")}
    return {"shards": [shard.path for shard in plan.shards], "kept": kept, **sums,
            "seconds": seconds, "notes": notes.summary()}
