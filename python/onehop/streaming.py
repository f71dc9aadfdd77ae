"""`stream`: tensors one by one as they land, if wanted with device memory for a few at a time only.

With a bound the tensors travel in groups of consecutive ones. Each group gets memory of its own
from the framework's allocator, which takes it back when nothing refers to it any more; the bound is
on the sum of what is in use. So memory is never written while anything can still read it:

- While a tensor, a view or an export of one is left, its storage is, and nobody else gets it.
- Work that a consumer queued on the stream that the memory was allocated on comes first: torch
  gives the memory to that stream's later work only, and the next group's first copy waits for what
  the stream holds when the group begins (``after_stream``).
- Other streams that were seen to use it (current when a tensor was handed out or let go): the
  memory is kept until an event on each of them, recorded when nothing referred to it any more, has
  passed; where the stream ends before that, the allocator is told of them by ``record_stream``.

Counting references decides only when the next group may begin, and when events are recorded.
"""
from __future__ import annotations

import gc
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from ctypes import byref
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _abi, _library, _progress, _runtime, arenas, errors, loading
from ._move import Buffer, OnTurn, Plan, Transfer
from ._progress import Progress
from ._runtime import Runtime
from .devices import DeviceInput
from .loading import Chooser
from .model import Item, Model, Path, Selection, TpPlan
from .reading import open_model

if TYPE_CHECKING:
    from ._group import Ranks
    from ._group_stream import Landed, Meeting

__all__ = ["Stream", "stream"]

_SHARES = 4
"""A bound is shared by so many groups: some are read while others are in use."""

_GRAIN = 512
"""What torch's allocator rounds to, in bytes."""

_PATIENCE_S = 60.0
"""How long other threads may take to let tensors go."""


class _Consumers:
    """The CUDA streams that were current where a group's tensors were handed out or let go.

    A view may outlive its tensor: so the stream counts, too, that is current where the memory is
    found unused.
    """

    def __init__(self, framework: arenas.Framework) -> None:
        self._home = framework.stream()
        self._device = framework.device
        self._streams: dict[int, Any] = {}
        self._events: list[Any] | None = None

    def note(self, _: Any = None) -> None:
        """Notes the current stream, if it is another than the memory's own."""
        if self._home is None:
            return
        import torch

        # The number alone costs a tenth of the object.
        if torch._C._cuda_getCurrentRawStream(self._device.number) != self._home:
            current = torch.cuda.current_stream(str(self._device))
            self._streams[int(current.cuda_stream)] = current

    def watch(self, tensor: Any) -> weakref.ref[Any] | None:
        """Notes the stream that is current when the tensor object goes, while the result lives."""
        return None if self._home is None else weakref.ref(tensor, self.note)

    def have_passed(self) -> bool:
        """Whether all have done what they held when this was asked first."""
        if self._events is None:
            self.note()
            self._events = [used.record_event() for used in self._streams.values()]
        return all(event.query() for event in self._events)

    def tell(self, owner: Any) -> None:
        """Has the allocator wait for all of them before anybody gets the memory."""
        if self._events is None:
            self.note()
        elif self.have_passed():
            return
        for used in self._streams.values():
            owner.record_stream(used)


class _Lease:
    """A group's memory, as long as somebody uses it."""

    def __init__(self, framework: arenas.Framework, nbytes: int) -> None:
        self.nbytes = nbytes
        self.memory = framework.allocate(nbytes)
        self.consumers = _Consumers(framework)
        self.watches: list[weakref.ref[Any] | None] = []
        # Held, so that it counts alike each time.
        self._storage = self.memory.owner.untyped_storage() if framework.name == "torch" else None
        self._unused = self._references()

    def _references(self) -> int:
        """References to the memory that can be told, our own among them."""
        owner = self.memory.owner
        if self._storage is None:
            exports = 0
            if isinstance(owner, Buffer):
                info = _library.sized(_abi.BufferInfo)
                _library.ask("buffer_query", owner.handle, byref(info))
                exports = info.exports
            return sys.getrefcount(owner) + exports
        import torch

        tensors: int = torch._C._storage_Use_Count(self._storage._cdata)
        return tensors + sys.getrefcount(self._storage)

    @property
    def is_used(self) -> bool:
        """Whether anything but this refers to the memory."""
        return self._references() > self._unused

    @property
    def is_free(self) -> bool:
        """Whether nothing refers to the memory, and no other stream's work may."""
        return not self.is_used and self.consumers.have_passed()

    def end(self) -> None:
        """Leaves the memory to whoever uses it, and then to the allocator."""
        if self._storage is not None:
            self.consumers.tell(self.memory.owner)
        self.watches.clear()
        del self.memory, self._storage


class _Group:
    """Consecutive tensors that travel together.

    Parameters
    ----------
    selection : Selection
    nbytes : int
        What its memory takes.
    items : list of Item, optional
        The selection's, where they were read already.
    """

    def __init__(self, selection: Selection, nbytes: int,
                 items: Sequence[Item] | None = None) -> None:
        self.selection = selection
        self.nbytes = nbytes
        self._items = items

    @property
    def items(self) -> Sequence[Item]:
        """The selection's items."""
        return self.selection.items() if self._items is None else self._items


class _Flight:
    """A group on its way. `close` it: then nothing is in flight, and the lease is left."""

    transfer: Transfer | Landed

    def __init__(self, group: _Group, framework: arenas.Framework, runtime: Runtime,
                 ranks: Ranks | None = None) -> None:
        self.lease = _Lease(framework, group.nbytes)
        self._framework = framework
        items = group.items
        self._names = [item.name for item in items]
        try:
            if ranks is None:
                self._start(group, items, runtime)
            else:
                self._fill(group, items, runtime, ranks)
        except BaseException:
            self.close()
            raise

    def _start(self, group: _Group, items: Sequence[Item], runtime: Runtime) -> None:
        memory, framework = self.lease.memory, self._framework
        self._buffer = memory.buffer(runtime, framework.device)
        self._is_wrapped = self._buffer is not memory.owner
        self._plan = Plan.of_selection(group.selection, self._buffer)
        self.transfer = transfer = Transfer(self._plan)
        transfer.start(framework.stream())
        with loading.collector_paused():
            self._tensors = dict(enumerate(framework.tensors(items, memory, 0)))

    def _fill(self, group: _Group, items: Sequence[Item], runtime: Runtime,
              ranks: Ranks) -> None:
        """With the other ranks, to the last byte."""
        from . import _group_stream

        made = _group_stream.fill(group.selection, items, self.lease.memory,
                                  self._framework, runtime, ranks)
        self._tensors = dict(enumerate(made))
        self.transfer = _group_stream.Landed(len(made), group.selection.nbytes)

    def close(self) -> None:
        """Cancels it if it runs."""
        plan = getattr(self, "_plan", None)
        if plan is not None:
            plan.close()
            del self._plan, plan
        self.__dict__.pop("transfer", None)
        self.__dict__.pop("_tensors", None)
        buffer = self.__dict__.pop("_buffer", None)
        if buffer is not None and self._is_wrapped:
            buffer.close()

    def take(self, index: int) -> tuple[str, Any]:
        """Name and tensor of an item; nothing here refers to it any more."""
        lease, tensor = self.lease, self._tensors.pop(index)
        lease.consumers.note()
        lease.watches.append(lease.consumers.watch(tensor))
        return self._names[index], self._framework.finish([tensor])[0]


class _Budget:
    """Bytes that may be in use, and the leases that use them."""

    def __init__(self, nbytes: int | None) -> None:
        self.nbytes = nbytes
        self.used = 0
        self._kept: list[_Lease] = []

    def has_room(self, nbytes: int) -> bool:
        """Whether so many bytes may be taken, once what nobody uses is given back."""
        for lease in [lease for lease in self._kept if lease.is_free]:
            self._kept.remove(lease)
            self.used -= lease.nbytes
            lease.end()
        return self.nbytes is None or self.used + nbytes <= self.nbytes

    def take(self, nbytes: int) -> None:
        """Counts bytes as used, until their lease is found unused."""
        self.used += nbytes

    def keep(self, lease: _Lease) -> None:
        """A lease whose tensors were all handed out."""
        self._kept.append(lease)

    def wait(self, nbytes: int) -> None:
        """Waits until there is room, where other threads may make it.

        Raises
        ------
        Limit
            There will be none.
        """
        gc.collect()
        until = time.monotonic() + (_PATIENCE_S if threading.active_count() > 1 else 0)
        while not self.has_room(nbytes):
            # What only streams use, or threads may use, comes free by itself.
            if all(lease.is_used for lease in self._kept) and time.monotonic() >= until:
                raise errors.Limit(
                    f"tensors that are still in use take {self.used} of max_device_bytes = "
                    f"{self.nbytes}, and the next take {nbytes}",
                    "let each tensor go before asking for the next (del it at the end of the "
                    f"loop's body), or set max_device_bytes to {self.used + nbytes}")
            time.sleep(0.001)

    def end(self) -> None:
        """Leaves all memory to whoever uses it."""
        for lease in self._kept:
            lease.end()
        self._kept.clear()


class _Pipeline:
    """Groups in the order of their bytes: waiting, on their way, landed."""

    def __init__(self, groups: Sequence[_Group], framework: arenas.Framework, runtime: Runtime,
                 budget: int | None, meeting: Meeting | None) -> None:
        self._waiting = deque(groups)
        self._flying: deque[_Flight] = deque()
        self._framework, self._runtime = framework, runtime
        self._budget = _Budget(budget)
        self._meeting = meeting
        self._landed = 0

    def launch(self) -> None:
        """Starts groups as long as there is room; shared ones wait for their turn."""
        while self._waiting and not self._meeting and self._budget.has_room(self._waiting[0].nbytes):
            group = self._waiting.popleft()
            self._flying.append(_Flight(group, self._framework, self._runtime))
            self._budget.take(group.nbytes)

    def next(self) -> _Flight | None:
        """The group to hand out next; None after the last."""
        if self._meeting and self._waiting:
            self._share(self._waiting.popleft(), self._meeting)
        self.launch()
        if not self._flying and self._waiting:
            self._budget.wait(self._waiting[0].nbytes)
            self.launch()
        return self._flying[0] if self._flying else None

    def _share(self, group: _Group, meeting: Meeting) -> None:
        """Loads a group with the other ranks. What fails here fails on all of them."""
        with meeting() as ranks:
            if not self._budget.has_room(group.nbytes):
                self._budget.wait(group.nbytes)
            flight = _Flight(group, self._framework, self._runtime, ranks)
            self._flying.append(flight)
            self._budget.take(group.nbytes)

    def landed(self, flight: _Flight) -> None:
        """The first group was handed out."""
        self._landed += flight.transfer.progress()[0]
        self._flying.popleft()
        flight.close()
        self._budget.keep(flight.lease)

    def progress(self) -> int:
        """Bytes that have landed."""
        return self._landed + sum(flight.transfer.progress()[0] for flight in self._flying)

    def close(self) -> None:
        """Cancels what is on its way and waits until nothing is."""
        for flight in self._flying:
            flight.transfer.cancel()
        for flight in self._flying:
            flight.close()
            flight.lease.end()
        self._flying.clear()
        self._budget.end()


class Stream(Iterator[tuple[str, Any]]):
    """What `stream` returns: an iterator of (name, tensor), and a context manager.

    Reading begins with the first `next`. Leaving the context, `close`, and letting go of the
    iterator cancel what is on its way; tensors that were handed out stay good. For one thread at a
    time.

    Attributes
    ----------
    info : Mapping of str to Item
        By name: dtype as the file spells it, shape in elements, block, file and place.
    metadata : dict of str to str, int, float or bool
        The files' metadata.
    nbytes : int
        Of all tensors.
    """

    info: Mapping[str, Item]

    def __init__(self, model: Model, items: Sequence[Item], groups: Sequence[_Group],
                 framework: arenas.Framework, budget: int | None, order: str,
                 progress: Progress, meeting: Meeting | None) -> None:
        self.info = {item.name: item for item in items}
        self.metadata = loading.metadata_of(model.metadata())
        self.nbytes = sum(item.nbytes for item in items)
        self._title = os.path.basename(model.path)
        self._turns = _turns(_Pipeline(groups, framework, model.runtime, budget, meeting), order,
                             progress, self._title, self.nbytes)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> tuple[str, Any]:
        return next(self._turns)

    def __len__(self) -> int:
        """How many tensors there are in all."""
        return len(self.info)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<onehop.Stream: {len(self)} tensors of {self._title!r}>"

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Cancels what is on its way. Again is no error."""
        self._turns.close()


def _turns(pipeline: _Pipeline, order: str, progress: Progress, title: str,
           nbytes: int) -> Generator[tuple[str, Any], None, None]:
    """A generator of all tensors, that cleans up however it ends."""
    try:
        with _progress.shown(progress, title) as on_turn:
            while (flight := pipeline.next()) is not None:
                for index in _landings(flight, pipeline, order, on_turn, nbytes):
                    # No name here may hold the tensor while the consumer has it.
                    yield flight.take(index)
                pipeline.landed(flight)
            if on_turn:
                on_turn(pipeline.progress(), nbytes)
    finally:
        pipeline.close()


def _landings(flight: _Flight, pipeline: _Pipeline, order: str, on_turn: OnTurn | None,
              nbytes: int) -> Iterator[int]:
    """Indexes of a group's items that have landed; meanwhile other groups are started."""
    early: set[int] = set()
    following = 0
    while True:
        try:
            landed = flight.transfer.landed()
        except errors.End:
            return
        pipeline.launch()
        if on_turn:
            on_turn(pipeline.progress(), nbytes)
        if order == "arrival":
            yield from landed
            continue
        early.update(landed)
        while following in early:
            early.remove(following)
            yield following
            following += 1


def _cut(items: Sequence[Item], nbytes: int) -> Iterator[list[Item]]:
    """Runs of consecutive items whose place in the layout takes no more than so many bytes."""
    run: list[Item] = []
    for item in items:
        if run and item.arena_offset + item.nbytes - run[0].arena_offset > nbytes:
            yield run
            run = []
        run.append(item)
    if run:
        yield run


def _groups(selection: Selection, items: Sequence[Item], budget: int | None,
            tp: tuple[int, int], tp_plan: TpPlan | None, tp_uneven: str) -> list[_Group]:
    """The selection in groups, of which several fit into the budget.

    Raises
    ------
    InvalidArgument
        A tensor does not fit.
    """
    if budget is None or _rounded(selection.arena_bytes) <= budget:
        return [_Group(selection, selection.arena_bytes, items)]
    # One size for all groups but those of one large tensor, so that the allocator can give the
    # same memory again.
    share = budget // _SHARES // _GRAIN * _GRAIN
    largest = max(items, key=lambda item: item.nbytes)
    if largest.nbytes > budget:
        raise errors.InvalidArgument(
            f"tensor {largest.name!r} takes {largest.nbytes} bytes, and max_device_bytes is "
            f"{budget}", f"set it to {2 * _rounded(largest.nbytes)} or more")
    found = []
    for run in _cut(items, share):
        part = selection.model.select([item.name for item in run], tp=tp, tp_plan=tp_plan,
                                      tp_uneven=tp_uneven)
        found.append(_Group(part, share if part.arena_bytes <= share else
                            min(_rounded(part.arena_bytes), budget)))
    return found


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _GRAIN) * _GRAIN


def stream(path: Path, device: DeviceInput = None, *, tensors: Chooser = None,
           tp: tuple[int, int] = (0, 1), tp_plan: TpPlan | None = None, tp_uneven: str = "refuse",
           order: str = "arrival", max_device_bytes: int | None = None,
           framework: str | None = None, raw: bool = False, route: str | None = None,
           progress: Progress = None, process_group: Any = None) -> Stream:
    """Yields (name, tensor) as each tensor lands.

        for name, tensor in onehop.stream("models/llama", "cuda", max_device_bytes=2 << 30):
            parameters[name].copy_(tensor)
            del tensor

    Parameters
    ----------
    path, device, tensors, tp, tp_plan, tp_uneven, framework, raw, route, progress
        As for `onehop.load`.
    order : {"arrival", "file"}
        "file": in the order of their bytes, file after file. "arrival": as they land; with
        max_device_bytes, within each group of consecutive tensors.
    max_device_bytes : int, optional
        The most that tensors in use may take, counting those under way. Memory of a tensor counts
        until its last reference (a view, an export by DLPack) is gone, with that of its
        neighbours. Twice the largest tensor, or four times for full speed, is a good bound. Left
        out: all tensors share one piece of memory.
    process_group : torch.distributed.ProcessGroup or True, optional
        Ranks of one machine that all make this same call and take the same tensors: see `load`.
        Each reads its share of the bytes. Tensors come in the order of the file, a part of
        max_device_bytes at a time; between the parts the ranks wait for each other.

    Returns
    -------
    Stream
        An iterator, and a context manager. For torch on a GPU a tensor may be used on the stream
        that is current when it is handed out, or when it is let go, without more ado: work queued
        there sees its bytes, however late it runs. Another stream has to be told of by
        ``tensor.record_stream``, as with any tensor.

    Raises
    ------
    InvalidArgument
        A tensor does not fit into max_device_bytes; the message names it.
    Limit
        While iterating: what the consumer keeps leaves no room for the next tensors.
    OnehopError
        As for `onehop.load`: of the call at once, of reading while iterating.
    """
    if order not in ("arrival", "file"):
        raise errors.InvalidArgument(f"order is {order!r}", 'it is "arrival" or "file"')
    if max_device_bytes is not None and max_device_bytes < _GRAIN * _SHARES * 2:
        raise errors.InvalidArgument(f"max_device_bytes is {max_device_bytes}",
                                     f"give {_GRAIN * _SHARES * 2} bytes at least")
    runtime = _runtime.get(route=route)
    maker, _ = arenas.chosen(framework, device, runtime, raw)
    meeting: Meeting | None = None
    if process_group is not None:
        from . import _group

        meeting = partial(_group.together, process_group, maker, "one")
    items: list[Item] = []
    groups: list[_Group] = []
    # With other ranks, so that what one of them cannot open fails on all.
    with meeting() if meeting else nullcontext():
        model = open_model(path, runtime)
        selection = loading.select(model, tensors, tp, tp_plan, tp_uneven)
        if selection is not None:
            items = selection.items()
            maker.check(items)
            groups = _groups(selection, items, max_device_bytes, tp, tp_plan, tp_uneven)
    return Stream(model, items, groups, maker, max_device_bytes, order, progress, meeting)
