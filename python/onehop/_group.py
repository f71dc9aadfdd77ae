"""Ranks of one machine that share the reading of a model: each reads its part, and the process
group brings the rest.

All ranks lay out the same arena. It is cut into stripes, and a stripe into equal parts, one a rank,
in the order of ranks. A rank runs one transfer of its own parts; as soon as its part of the next
stripe has landed, it gives the group an all-gather of the stripe, in place (NCCL, whose links work
both ways at once), or a broadcast of each part (gloo, whose all-gather copies more). So the parts
travel between devices while the next are read, all ranks issue the same collectives in the same
order, and no memory is needed but the arena.

An arrival means that the bytes are in the arena: the copy's event has passed, and the host has seen
it. Whatever is given to any stream after that sees them, so NCCL's stream needs no other order.

If a rank fails, it says so to the others by `_peers`. All stop reading; they issue, with whatever
is in memory, the collectives that any of them has issued, so that none waits for ever and the group
stays of use; then all raise. If a process is gone, what was issued cannot end: it is left behind
with its memory, and an NCCL group is aborted.
"""
from __future__ import annotations

import ctypes
import hashlib
import math
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from itertools import islice
from os import stat
from types import TracebackType
from typing import Any, NamedTuple

from . import _abi, _runtime, arenas, errors, loading
from ._move import Buffer, Extent, OnTurn, Plan, Transfer
from ._peers import FAILED, FINE, STOPPED, TROUBLE, TURN_S, Ending, Peers
from .model import Item, Rows, Selection

__all__ = ["RankFailed"]

_GRAIN = 64
"""Parts begin at multiples of so many bytes."""

_PART = 32 << 20
"""Bytes of a rank's part of a stripe."""

_AHEAD = 8
"""Collectives that may be under way at once."""

_PATIENCE_S = 8.0
"""How long ranks wait for each other once one has failed."""

_PAUSE_S, _LONGEST_PAUSE_S = 50e-6, 500e-6

_left_behind: list[Any] = []
"""Collectives that cannot end, with the memory that they may still write to."""


class RankFailed(errors.OnehopError, RuntimeError):
    """Another rank failed, so that this one did too.

    Attributes
    ----------
    rank : int
        Of the process group.
    """

    def __init__(self, rank: int, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.rank = rank

    @property
    def name(self) -> str:
        return "RANK_FAILED"

    def __reduce__(self) -> tuple[Any, ...]:
        return RankFailed, (self.rank, self.message, self.remedy)


class _Stopped(Exception):
    """Another rank failed; which one `Ranks.__exit__` says."""


class Run(NamedTuple):
    """Equal rows of a file that lie one after the other in the arena; in bytes.

    Attributes
    ----------
    file : int
        Index of the file.
    offset, row_bytes, rows, row_stride : int
        As in `Extent`.
    place : int
        Where the first row lies in the arena.
    """

    file: int
    offset: int
    row_bytes: int
    rows: int
    row_stride: int
    place: int

    @property
    def end(self) -> int:
        """Where the last row ends in the arena."""
        return self.place + self.row_bytes * self.rows

    def cut(self, begin: int, end: int) -> Iterator[Run]:
        """What of it lies in [begin, end) of the arena: part of a row, whole rows, part of one."""
        at, end = max(begin - self.place, 0), min(end, self.end) - self.place
        while at < end:
            row, inside = divmod(at, self.row_bytes)
            rows, nbytes = (end - at) // self.row_bytes, self.row_bytes
            if inside or not rows:
                rows, nbytes = 1, min(self.row_bytes - inside, end - at)
            yield Run(self.file, self.offset + row * self.row_stride + inside, nbytes, rows,
                      self.row_stride if rows > 1 else nbytes, self.place + at)
            at += rows * nbytes


class Table:
    """A selection's items as columns, read without an object for each.

    Parameters
    ----------
    selection : Selection
    """

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._rows = Rows(selection)

    def digest(self) -> str:
        """Equal on ranks that load the same tensors of the same files into the same places."""
        digest = hashlib.sha256(self._rows.items)
        for field in ("rank", "offset", "file", "block_elements", "block_bytes"):
            digest.update(self._rows.tensor(field).tobytes())
        words = zip(self._rows.tensor("name").tolist(), self._rows.tensor("name_bytes").tolist())
        digest.update(b"\0".join([ctypes.string_at(*word) for word in words]))
        types = self._rows.tensor("dtype").tolist()
        known = {address: ctypes.string_at(address) for address in set(types)}
        digest.update(b"\0".join([known[address] for address in types]))
        for path in self._selection.model.files:
            found = stat(path)
            digest.update(b"%d %d;" % (found.st_size, found.st_mtime_ns))
        return digest.hexdigest()

    def runs(self) -> list[Run]:
        """The items' bytes, in the order of the arena; what adjoins in file and arena is one run.

        Padding between tensors that is the same in both belongs to the run.
        """
        found: list[Run] = []
        splits = self._rows.item("split_dim").tolist()
        items = self._selection.items() if max(splits, default=-1) >= 0 else []
        rows = zip(splits, *(column.tolist() for column in (
            self._rows.tensor("file"), self._rows.tensor("offset"), self._rows.item("bytes"),
            self._rows.item("arena_offset"))))
        begin: tuple[int, int, int] | None = None  # file, offset and place of the run under way
        end = 0
        for index, (split, file, offset, nbytes, place) in enumerate(rows):
            if not nbytes:
                continue
            if split < 0 and begin and file == begin[0] and place - offset == begin[2] - begin[1]:
                end = offset + nbytes
                continue
            if begin:
                found.append(_plain(*begin, end))
            begin, end = (file, offset, place), offset + nbytes
            if split >= 0:
                found.append(_rows(items[index]))
                begin = None
        if begin:
            found.append(_plain(*begin, end))
        return found


def _plain(file: int, offset: int, place: int, end: int) -> Run:
    return Run(file, offset, end - offset, 1, end - offset, place)


def _rows(item: Item) -> Run:
    """Where a part of a tensor lies."""
    dim, whole = item.split_dim, item.whole_shape

    def nbytes(extent: int) -> int:
        """Of so many indexes of the split dimension."""
        elements = extent * math.prod(whole[dim + 1:])
        return elements // item.block_elements * item.block_bytes

    return Run(item.file, item.file_offset + nbytes(item.split_begin), nbytes(item.shape[dim]),
               math.prod(whole[:dim]), nbytes(whole[dim]), item.arena_offset)


@dataclass(frozen=True)
class Stripes:
    """How an arena is shared.

    Attributes
    ----------
    rank, size : int
        This rank, and how many there are.
    nbytes : int
        Of the arena.
    stripe : int
        Bytes of a stripe, but for the last; a multiple of size times `_GRAIN`.
    """

    rank: int
    size: int
    nbytes: int
    stripe: int

    @property
    def shared(self) -> int:
        """Bytes in stripes. What is behind them, less than size times `_GRAIN`, everybody reads."""
        return self.nbytes // (self.size * _GRAIN) * (self.size * _GRAIN)

    @property
    def count(self) -> int:
        return -(-self.shared // self.stripe)

    def whole(self, index: int) -> tuple[int, int]:
        """Begin and end of a stripe."""
        begin = index * self.stripe
        return begin, min(begin + self.stripe, self.shared)

    def part(self, index: int, rank: int) -> tuple[int, int]:
        """Begin and end of a rank's part of it."""
        begin, end = self.whole(index)
        share = (end - begin) // self.size
        return begin + rank * share, begin + (rank + 1) * share

    def parts(self) -> Iterator[tuple[int, int]]:
        """What this rank reads: its part of each stripe, and what all read."""
        for index in range(self.count):
            yield self.part(index, self.rank)
        yield self.shared, self.nbytes

    def own(self, runs: Sequence[Run]) -> Iterator[tuple[int, Run]]:
        """What this rank reads, each with its stripe's index, or `count` for what all read."""
        begins, ends = [run.place for run in runs], [run.end for run in runs]
        for index, (begin, end) in enumerate(self.parts()):
            for run in islice(runs, bisect_right(ends, begin), bisect_left(begins, end)):
                for piece in run.cut(begin, end):
                    yield index, piece


class _Arena:
    """An arena that is filled by all ranks, by one collective after the other.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup
    memory : torch.Tensor
        Of uint8.
    stripes : Stripes
    by_gather : bool
        Whether a collective is a stripe's all-gather, or a part's broadcast.

    Attributes
    ----------
    is_broken : bool
        Whether a collective failed.
    """

    def __init__(self, group: Any, memory: Any, stripes: Stripes, by_gather: bool) -> None:
        self.stripes = stripes
        self.is_broken = False
        self._group = group
        self._memory = memory
        self._by_gather = by_gather
        self._call = _all_gather(group) if by_gather else group.broadcast
        self._count = stripes.count * (1 if by_gather else stripes.size)
        self._works: list[Any] = []  # of each that was issued; None once it was let go
        self._done = 0

    @property
    def issued(self) -> int:
        """Collectives given to the group."""
        return len(self._works)

    @property
    def is_issued(self) -> bool:
        """Whether nothing is left to issue."""
        return self.issued == self._count

    @property
    def is_done(self) -> bool:
        """Whether everything is on all ranks."""
        return self._done == self._count

    @property
    def is_full(self) -> bool:
        """Whether as many collectives are under way as may be."""
        return self.issued - self._done >= _AHEAD

    def may_issue(self, missing: Sequence[int]) -> bool:
        """Whether the next collective may be issued.

        Parameters
        ----------
        missing : sequence of int
            By stripe: how much of this rank's part has not landed.
        """
        if self.is_issued or self.is_full:
            return False
        if self._by_gather:
            return not missing[self.issued]
        stripe, source = divmod(self.issued, self.stripes.size)
        return source != self.stripes.rank or not missing[stripe]

    @property
    def nbytes(self) -> int:
        """Bytes that are on all ranks."""
        if self.is_done:
            return self.stripes.nbytes
        return self.stripes.shared * self._done // self._count

    def _piece(self, begin: int, end: int) -> Any:
        return self._memory[begin:end]

    def _arguments(self) -> tuple[Any, Any]:
        """Of the next collective."""
        stripes = self.stripes
        if self._by_gather:
            own = stripes.part(self.issued, stripes.rank)
            return self._piece(*stripes.whole(self.issued)), self._piece(*own)
        index, source = divmod(self.issued, stripes.size)
        return self._piece(*stripes.part(index, source)), source

    def issue(self) -> None:
        """Gives the group the next collective.

        One call of C makes the collective and keeps its work, so that no signal handler of Python's
        comes between: an interrupted rank knows what it has issued.
        """
        first, second = self._arguments()
        try:
            self._works.extend(map(self._call, [first], [second]))
        except RuntimeError:
            self.is_broken = True
            raise

    def reap(self) -> bool:
        """Ends collectives that are over, and has the current stream wait for them.

        Returns
        -------
        bool
            Whether there were any.
        """
        before = self._done
        while self._done < self.issued and self._works[self._done].is_completed():
            try:
                self._works[self._done].wait()
            except RuntimeError:
                self.is_broken = True
                raise
            self._done += 1
            self._works[self._done - 1] = None
        return self._done > before

    def level(self, count: int, deadline: float) -> None:
        """Issues collectives up to so many, whatever they hold, and waits until all are over."""
        while self.issued < count:
            self.issue()
        while self._done < self.issued and time.monotonic() < deadline:
            if not self.reap():
                time.sleep(_LONGEST_PAUSE_S)

    def leave(self) -> bool:
        """Leaves behind what cannot end; whether there was any, so that the group is lost."""
        if self._done == self.issued:
            return False
        _left_behind.append((self._works, self._memory))
        if self._memory.is_cuda:
            _abort(self._group)
        return True


def _all_gather(group: Any) -> Any:
    """The group's all-gather into one tensor, under the name that this torch has for it."""
    return getattr(group, "all_gather_single", None) or group._allgather_base


def _abort(group: Any) -> None:
    """Ends an NCCL group's kernels, which would go on waiting and keep the device busy."""

    def abort() -> None:
        # Older ones have none, and gloo cannot; the group's own timeout is left then.
        with suppress(AttributeError, RuntimeError):
            group.abort()

    thread = threading.Thread(target=abort, daemon=True)
    thread.start()
    thread.join(2)


def together(process_group: Any, framework: arenas.Framework,
             arena: str) -> AbstractContextManager[Ranks | None]:
    """The ranks that share a load, as a context to load in; None in it for a group of one.

    Parameters
    ----------
    process_group : torch.distributed.ProcessGroup or True
        True: the default group.
    framework : Framework
        torch's.
    arena : str
        As `onehop.load` takes it.

    Raises
    ------
    InvalidArgument
        The group cannot share such a load.
    """
    if framework.name != "torch":
        raise errors.InvalidArgument(f"process_group is for torch, not for {framework.name}",
                                     'use framework="torch"')
    import torch.distributed as distributed

    if arena != "one":
        raise errors.InvalidArgument(f'with process_group, arena cannot be "{arena}"',
                                     'use arena="one"')
    if not distributed.is_available() or not distributed.is_initialized():
        raise errors.InvalidArgument("torch.distributed has no process group",
                                     "call torch.distributed.init_process_group() first")
    group: Any = distributed.group.WORLD if process_group is True else process_group
    if not isinstance(group, distributed.ProcessGroup):
        raise errors.InvalidArgument(f"process_group is {group!r}",
                                     "give a group that this rank is in, or True")
    if group.size() == 1:
        return nullcontext()
    words = distributed.get_backend_config(group)
    backends = dict(pair.split(":") for pair in words.split(","))
    kind = framework.device.kind
    if kind not in backends:
        raise errors.InvalidArgument(
            f"the process group ({words}) cannot share {kind} memory",
            "load to its device, or give a group of another backend: nccl for cuda, gloo for cpu")
    return Ranks(group, framework, backends[kind] == "nccl")


class Ranks(AbstractContextManager["Ranks"]):
    """This rank among those that share a load. What is raised inside is told to all.

    Leaving it waits until all ranks have ended, and raises `RankFailed` if another one failed.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup
    framework : Framework
    by_gather : bool
        As `_Arena` takes it.

    Attributes
    ----------
    rank, size : int
    """

    def __init__(self, group: Any, framework: arenas.Framework, by_gather: bool) -> None:
        self.rank, self.size = int(group.rank()), int(group.size())
        self._group = group
        self._framework = framework
        self._by_gather = by_gather
        self._arena: _Arena | None = None
        self._peers = Peers(self.rank)

    def __enter__(self) -> Ranks:
        try:
            self._peers.connect(self._cards())
        except BaseException:
            self._peers.close()
            raise
        return self

    def _cards(self) -> list[bytes]:
        """All ranks' cards, by the process group; waits for them as long as the group does."""
        import torch

        mine = torch.frombuffer(bytearray(self._peers.card), dtype=torch.uint8)
        mine = mine.to(str(self._framework.device))
        every = mine.new_empty(self.size * len(mine))
        work = _all_gather(self._group)(every, mine)
        try:
            pause = _PAUSE_S
            while not work.is_completed():
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            work.wait()
        except BaseException:
            _left_behind.append((work, every, mine))
            raise
        data = bytes(every.tolist())
        return [data[at:at + len(mine)] for at in range(0, len(data), len(mine))]

    def runtime(self, found: _runtime.Runtime, route: str | None) -> _runtime.Runtime:
        """A runtime that leaves the other ranks their share of the cores, if found does not."""
        if found.options()["ranks_per_node"].origin != "default":
            return found
        return _runtime.get(route=route, ranks_per_node=self.size)

    def fill(self, selection: Selection, placement: loading.Placement, runtime: _runtime.Runtime,
             on_turn: OnTurn | None,
             phases: loading.Phases) -> tuple[loading.Tensors, _abi.Completion]:
        """Moves the bytes with the other ranks, and makes the tensors meanwhile.

        Returns
        -------
        (Tensors, Completion)
            The tensors by name; the C library's struct, whose bytes are all tensors' and whose
            other figures are of what this rank read.
        """
        framework, memory = self._framework, placement.memories[0]
        with ExitStack() as stack:
            with phases.phase("plan"):
                table = Table(selection)
                stripes = Stripes(self.rank, self.size, selection.arena_bytes, _PART * self.size)
                arena = self._arena = _Arena(self._group, memory.owner, stripes, self._by_gather)
                buffer = memory.buffer(runtime, framework.device)
                stack.callback(buffer.close)
                own = list(stripes.own(table.runs()))
                plan = _plan(own, selection, runtime, buffer)
                stack.callback(plan.close)
            with phases.phase("prepare"):
                transfer = Transfer(plan)
            digest = table.digest()
            self._peers.say_ready(digest)
            begin = time.perf_counter()
            with transfer:
                # What this rank reads goes into its own memory, whatever the others load.
                transfer.start(framework.stream())
                with phases.phase("tensors"), loading.collector_paused():
                    made = placement.named()
                with phases.phase("agree"):
                    self._agree(digest)
                self._exchange(arena, transfer, [index for index, _ in own], on_turn)
                completion = transfer.wait()
            phases.seconds["transfer"] = time.perf_counter() - begin
        completion.bytes = selection.nbytes
        loading.finish(framework, made)
        return made, completion

    def _agree(self, digest: str) -> None:
        """Waits until all have said what they load.

        Raises
        ------
        InvalidArgument
            One loads something else.
        """
        while len(self._peers.ready()) < self.size - 1:
            self._listen(TURN_S)
            unready = self._peers.endings().keys() - self._peers.ready().keys()
            if unready:
                raise self._differs(min(unready))
        for rank, theirs in sorted(self._peers.ready().items()):
            if theirs != digest:
                raise self._differs(rank)

    def _differs(self, rank: int) -> errors.InvalidArgument:
        return errors.InvalidArgument(
            f"rank {rank} of the process group loads other tensors or files than rank {self.rank}",
            "give all ranks the same files, tensors and tp; to load each rank's part, leave out "
            "process_group")

    def _listen(self, seconds: float) -> None:
        """Hears what other ranks say, and stops if one has failed."""
        self._peers.listen(seconds)
        if self._peers.have_trouble:
            raise _Stopped

    def _exchange(self, arena: _Arena, transfer: Transfer, stripe_of: Sequence[int],
                  on_turn: OnTurn | None) -> None:
        """Issues each stripe once this rank's part has landed, until all are everywhere.

        Parameters
        ----------
        arena : _Arena
        transfer : Transfer
        stripe_of : sequence of int
            By extent of the transfer.
        on_turn : callable or None
        """
        missing = [0] * (arena.stripes.count + 1)
        for index in stripe_of:
            missing[index] += 1
        left, pause = len(stripe_of), _PAUSE_S
        while not arena.is_done or left:
            moved = arena.reap()
            while arena.may_issue(missing):
                arena.issue()
                moved = True
            self._listen(0)
            if on_turn:
                on_turn(arena.nbytes, arena.stripes.nbytes)
            if left and not arena.is_full:
                for index in transfer.landed():
                    missing[stripe_of[index]] -= 1
                    left -= 1
            elif not moved:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
                continue
            pause = _PAUSE_S

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        is_lost = False
        grade = self._grade(error)
        try:
            self._conclude(grade, error)
        finally:
            if self._arena:
                is_lost = self._arena.leave()
            self._peers.close()
        cause = self._cause(grade, is_lost or bool(self._peers.gone()))
        if cause:
            raise cause from (None if grade == STOPPED else error)

    def _grade(self, error: BaseException | None) -> int:
        if error is None:
            return FINE
        if isinstance(error, _Stopped):
            return STOPPED
        return TROUBLE if self._arena and self._arena.is_broken else FAILED

    def _conclude(self, grade: int, error: BaseException | None) -> None:
        """Tells the others how this rank ended, hears how they did; brings the group in step."""
        arena, peers = self._arena, self._peers
        peers.say_ended(Ending(arena.issued if arena else 0, grade, _words(error)))
        deadline = time.monotonic() + _PATIENCE_S if error else math.inf
        while not peers.have_ended and time.monotonic() < deadline:
            peers.listen(TURN_S)
            if peers.have_trouble:
                deadline = min(deadline, time.monotonic() + _PATIENCE_S)
        endings = peers.endings().values()
        if arena and peers.have_ended and not peers.gone() and not arena.is_broken:
            with suppress(RuntimeError):  # the group's own failure; the error under way says more
                arena.level(max(ending.issued for ending in endings), deadline)

    def _cause(self, grade: int, is_lost: bool) -> RankFailed | None:
        """The failure of another rank that this one's comes from; None if it is its own.

        An error counts before a death, and a death before what the group said of it.
        """
        remedy = "see to it there" + (", and make a new process group" if is_lost else "")
        endings = sorted(self._peers.endings().items())
        failed = [(rank, ending.words) for rank, ending in endings if ending.grade == FAILED]
        failed += [(rank, "its process ended, or left the load") for rank in self._peers.gone()]
        if grade in (FINE, STOPPED):
            failed += [(rank, ending.words) for rank, ending in endings if ending.grade == TROUBLE]
        if grade == FAILED or not failed:
            return None
        rank, words = failed[0]
        return RankFailed(rank, f"rank {rank} of the process group failed: {words}", remedy)


def _plan(own: Sequence[tuple[int, Run]], selection: Selection, runtime: _runtime.Runtime,
          buffer: Buffer) -> Plan:
    files = [selection.model.file_handle(index) for index in range(selection.model.file_count)]
    return Plan.of_extents(runtime, [
        Extent(files[run.file], run.offset, run.row_bytes, run.rows, run.row_stride, buffer,
               run.place) for _, run in own], keep=selection.model)


def _words(error: BaseException | None) -> str:
    if error is None:
        return ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
