"""The loop over batches: epochs, resuming, worker processes, and what is done to each batch.

`Loop` is what `onehop.Dataset` and its relatives have in common. What it knows of a batch is only
that it is a dict.
"""
from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeVar

from . import errors
from ._dataset_order import Counts

VERSION = 1
"""Of a state."""

L = TypeVar("L", bound="Loop")

_mixed: dict[type[Any], type[Any]] = {}


def _also_torch(kind: type[Any]) -> type[Any]:
    """The class, also derived from torch's IterableDataset where that is imported."""
    base = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", None)
    if not isinstance(base, type):
        return kind
    made = _mixed.get(kind)
    if made is None:
        members = {"__module__": kind.__module__, "__qualname__": kind.__qualname__,
                   "__doc__": kind.__doc__}
        made = _mixed[kind] = type(base)(kind.__name__, (kind, base), members)
    return made


def worker() -> tuple[int, int] | None:
    """(number, how many) in a worker process of torch's DataLoader; else None."""
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    return None if info is None else (int(info.id), int(info.num_workers))


class Share(NamedTuple):
    """Which of a rank's batches are this process's: first, first + step, ...

    Attributes
    ----------
    first, step : int
    """

    first: int
    step: int


class AnyOrder(Protocol):
    """What a loop needs of an order."""

    @property
    def counts(self) -> Counts:
        """How many positions, rows and batches."""


class Cursor:
    """How far an iteration has come.

    Attributes
    ----------
    epoch : int
    consumed : int
        Positions of the epoch's sequence that all ranks have had, as they are in step.
    resumes : bool
        Whether the next loop begins there, and not at the epoch's beginning.
    worker : tuple of int or None
        (number, how many) of the worker process whose place this is.
    """

    def __init__(self, epoch: int, consumed: int, resumes: bool,
                 worker: tuple[int, int] | None = None) -> None:
        self.epoch, self.consumed, self.resumes, self.worker = epoch, consumed, resumes, worker


class Loop:
    """An iterable of batches.

    A class of these gives `_order`, `_batches` and `_identity`.
    """

    def __init__(self, batch: int, epoch: int) -> None:
        self._batch = batch
        self._cursor = Cursor(epoch, 0, False)
        self._stages: list[tuple[str, Callable[[Any], Any]]] = []
        self._length: dict[tuple[int, int], int] = {}

    # torch asks by isinstance whether this is iterated over or indexed.
    __class__ = property(lambda self: _also_torch(type(self)))

    # ---- for a class of these to give

    def _world(self) -> tuple[int, int]:
        raise NotImplementedError

    def _order(self, epoch: int, start: int) -> AnyOrder:
        """The order of an epoch for this rank, from a position on."""
        raise NotImplementedError

    def _batches(self, epoch: int, order: Any, share: Share) -> Iterator[dict[str, Any]]:
        """This process's batches of an epoch's order."""
        raise NotImplementedError

    def _identity(self) -> dict[str, Any]:
        """What a state must fit: fingerprint, seed, policy."""
        raise NotImplementedError

    def _rows(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        """A batch's samples."""
        raise NotImplementedError

    def _check_process(self) -> None:
        """Raises if batches cannot be made in this process."""

    # ---- the loop

    def __iter__(self) -> Iterator[Any]:
        """The batches of the epoch, from its beginning, or from where a loaded state is.

        When the loop has ended the dataset is at the next epoch's beginning.
        """
        self._check_process()
        old = self._cursor
        cursor = Cursor(old.epoch, old.consumed if old.resumes else 0, False, worker())
        share = self._share(old if old.resumes else None)
        self._cursor = cursor
        return self._loop(cursor, share)

    def _share(self, resumed: Cursor | None) -> Share:
        here = worker()
        there = None if resumed is None else resumed.worker
        if there is not None and there != here:
            raise errors.InvalidArgument(
                f"the state is of worker {there[0]} of {there[1]}, and is loaded "
                + ("in no worker" if here is None else f"in worker {here[0]} of {here[1]}"),
                "resume with as many workers, each with its own state")
        if here is None:
            return Share(0, 1)
        return Share(0 if there else here[0], here[1])

    def _loop(self, cursor: Cursor, share: Share) -> Iterator[Any]:
        order = self._order(cursor.epoch, cursor.consumed)
        counts, start, width = order.counts, cursor.consumed, self._batch * self._world()[1]
        turn = share.first
        batches = self._batches(cursor.epoch, order, share)
        try:
            while True:
                batch = next(batches, None)
                if batch is None:
                    break
                turn += share.step
                # In a worker: up to its own next one, for those between are its siblings'.
                cursor.consumed = min(start + turn * width, counts.samples)
                kept, batch = self._staged(batch)
                if kept:
                    # No name here may hold the batch while the consumer has it.
                    box = [batch]
                    del batch
                    yield box.pop()
        finally:
            close = getattr(batches, "close", None)
            if close:
                close()
        cursor.epoch, cursor.consumed = cursor.epoch + 1, 0

    def _staged(self, batch: Any) -> tuple[bool, Any]:
        """Whether the batch is handed out, and what is."""
        for kind, function in self._stages:
            if kind == "map":
                batch = function(batch)
            elif kind == "collate":
                batch = function(self._rows(batch))
            elif not function(batch):
                return False, None
        return True, batch

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch."""
        world = self._world()
        if world not in self._length:
            self._length[world] = self._order(self._cursor.epoch, 0).counts.batches
        return self._length[world]

    def set_epoch(self, epoch: int) -> None:
        """The next loop is over this epoch.

        The epoch that it is at already changes nothing, so that it may be called after
        `load_state_dict` as well. With worker processes call it before each epoch: the copies that
        they have know of it only when they are made.
        """
        if epoch < 0:
            raise errors.InvalidArgument(f"epoch is {epoch}", "count from 0")
        if epoch != self._cursor.epoch:
            self._cursor = Cursor(int(epoch), 0, False)

    @property
    def epoch(self) -> int:
        """The epoch that is iterated over, or that the next loop is over."""
        return self._cursor.epoch

    # ---- resuming

    def state_dict(self) -> dict[str, Any]:
        """Where the newest loop is: after the batch that it handed out last.

        Returns
        -------
        dict
            Small, of JSON's types: version, fingerprint, seed, epoch, consumed (positions of the
            epoch's sequence that all ranks together have had, as they are in step), policy.
        """
        cursor = self._cursor
        state = {"version": VERSION, "epoch": cursor.epoch, "consumed": cursor.consumed,
                 **self._identity()}
        if cursor.worker is not None:
            state["worker"] = list(cursor.worker)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next loop goes on where the state was taken, also with another world size or batch.

        Raises
        ------
        Mismatch
            The state is of another dataset, seed or policy; the first difference is named.
        InvalidArgument
            It is no state.
        """
        _check_state(state, self._identity())
        of_worker = state.get("worker")
        self._cursor = Cursor(int(state["epoch"]), int(state["consumed"]), True,
                              (int(of_worker[0]), int(of_worker[1])) if of_worker else None)

    # ---- what is done to each batch

    def _like(self: L) -> L:
        """A dataset of the same shards and settings, with a place of its own."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._stages = list(self._stages)
        cursor = self._cursor
        made._cursor = Cursor(cursor.epoch, cursor.consumed, cursor.resumes, cursor.worker)
        return made

    def _with(self: L, kind: str, function: Callable[[Any], Any]) -> L:
        made = self._like()
        made._stages.append((kind, function))
        return made

    def map(self: L, function: Callable[[Any], Any]) -> L:
        """The same batches, each as function(batch) makes it. The shards stay open once."""
        return self._with("map", function)

    def filter(self: L, function: Callable[[Any], Any]) -> L:
        """The batches for which function(batch) is true.

        `len` still counts all of them, and ranks may then have different numbers of batches: leave
        samples out by ``samples=`` where that matters.
        """
        return self._with("filter", function)

    def collate(self: L, function: Callable[[list[dict[str, Any]]], Any]) -> L:
        """The batches as function makes them of their samples, as torch's collate_fn does.

        It gets a list of dicts as ``dataset[i]`` gives them. For what a dict of tensors serves as
        well, `map` is many times as fast.
        """
        return self._with("collate", function)

    # ---- its end

    def close(self) -> None:
        """Closes the shards. Again is no error."""
        raise NotImplementedError

    def __enter__(self: L) -> L:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


def _check_state(state: Any, identity: dict[str, Any]) -> None:
    if not isinstance(state, dict) or "version" not in state:
        raise errors.InvalidArgument("what is loaded is no state of a dataset",
                                     "give what state_dict() returned")
    if state["version"] != VERSION:
        raise errors.InvalidArgument(f"the state is of version {state['version']}, and this onehop "
                                     f"knows {VERSION}", "resume with the version that wrote it")
    for name in ("epoch", "consumed"):
        if not isinstance(state.get(name), int) or state[name] < 0:
            raise errors.InvalidArgument(f"the state's {name} is {state.get(name)!r}",
                                         "give what state_dict() returned")
    difference = _difference("", {name: state.get(name) for name in identity}, identity)
    if difference:
        raise errors.Mismatch(f"the state does not fit: {difference}",
                              "resume with the dataset and settings that it was taken with")


def _difference(name: str, theirs: Any, ours: Any) -> str:
    """The first difference in words; empty if there is none."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted({*theirs, *ours}):
            found = _difference(f"{name}.{key}" if name else key, theirs.get(key), ours.get(key))
            if found:
                return found
        return ""
    if isinstance(theirs, tuple):
        theirs = list(theirs)
    return "" if theirs == ours else f"its {name} is {theirs!r}, and this dataset's is {ours!r}"


class Clock:
    """Seconds that loops ran."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._before = 0.0

    def start(self) -> None:
        """A loop begins."""
        self._since = time.monotonic()

    def stop(self) -> None:
        """It has ended."""
        self._before, self._since = self.seconds, None

    @property
    def seconds(self) -> float:
        """So far."""
        running = 0.0 if self._since is None else time.monotonic() - self._since
        return self._before + running
