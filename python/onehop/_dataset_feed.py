"""The library's feed as groups of batches, and the batches that are cut from them."""
from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from ctypes import byref
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _abi, _library, errors
from ._dataset_ahead import Ahead, Consumer, Piece, number_of
from ._dataset_batch import Chunk, Cut, Cutter, without_damaged
from ._dataset_make import Memory
from ._dataset_order import Order
from ._dataset_source import LACKS, Indices, Owned, Source, array_at
from ._move import TURN_NS
from .devices import Device

_CHUNK_ON_DEVICE = 64 << 20
_CHUNK_ON_HOST = 8 << 20
"""Bytes that are gathered at once, where a batch is smaller."""

_CHUNK_ROWS = 16384
"""Rows, likewise: an index of so many is small enough for the driver to take it along."""


class FeedOptions(NamedTuple):
    """How a feed reads.

    Attributes
    ----------
    device : Device
    verify : bool
    skip_damaged : bool
    buffers : int
    ring_bytes : int
        0: as the library thinks best.
    """

    device: Device
    verify: bool
    skip_damaged: bool
    buffers: int
    ring_bytes: int


class Group(NamedTuple):
    """Some of an order's next batches; arrays are the library's, good until its release.

    Attributes
    ----------
    slot : int
    batches : int
    samples : uint64 [rows]
    pad : uint8 [rows]
    offsets, nbytes : uint64 [fields, rows]
    device, host : Memory or None
    """

    slot: int
    batches: int
    samples: Indices
    pad: npt.NDArray[np.uint8]
    offsets: Indices
    nbytes: Indices
    device: Memory | None
    host: Memory | None


class Feed(Owned):
    """An order's batches on their way; see ``onehop/dataset.h``.

    Attributes
    ----------
    cutter : Cutter
    on_host : bool
        Whether what goes to the device goes to host memory.
    handed : int
        Rows of batches that were handed out, since it was set to 0.
    damaged : int
        Rows that were left out of these, likewise.
    waited_ns : int
        That batches were waited for, likewise.
    is_followed : bool
        Whether `follow` was called since it turned to its order.
    has_refused : bool
        Whether an order could not be appended.

    Raises
    ------
    Limit
        A batch is larger than the ring may be.
    NoMemory, NoDeviceMemory, NoDevice
    """

    _end = "feed_destroy"

    def __init__(self, source: Source, order: Order, cutter: Cutter, options: FeedOptions) -> None:
        super().__init__(source)
        self._orders = {0: order}  # by their numbers; used until a later one's group was given
        self.cutter = cutter
        self._is_ahead = self.is_followed = self.has_refused = False
        self._following: Order | None = None
        self._maker: Ahead | None = None
        self._memories: dict[tuple[bool, int], Memory] = {}
        self.on_host = options.device.kind == "cpu"
        row = _abi.FeedOptions()
        _library.run("feed_options_init", byref(row))
        fields = (_abi.FeedField * max(1, len(cutter.plans)))()
        for place, plan in zip(fields, cutter.plans):
            place.field, place.on_host = plan.field.number, int(plan.on_host)
        name = ctypes.create_string_buffer(options.device.name.encode())
        row.device = ctypes.addressof(name)
        row.verify, row.damage = int(options.verify), int(options.skip_damaged)
        row.groups, row.ring_bytes = options.buffers, options.ring_bytes
        row.fields, row.field_count = ctypes.addressof(fields), len(cutter.plans)
        self._last: _abi.FeedInfo | None = None
        self.handed = self.damaged = self.waited_ns = 0
        _library.call("feed_create", source.handle, order.handle, byref(row), byref(self.handle))

    def _append(self, order: Order) -> bool:
        """Goes on with an order behind those that it has; False if its batches are too large."""
        try:
            _library.call("feed_append", self.handle, order.handle)
        except errors.Limit:
            self.has_refused = True
            return False
        self._orders[max(self._orders) + 1] = order
        return True

    def follow(self, order: Order) -> None:
        """Goes on with an order behind the one that it goes by, as soon as the thread that asks for
        groups sees it, so that no pause lies between two epochs."""
        self._following, self.is_followed = order, True

    def turn_to(self, order: Order) -> bool:
        """Whether its next batches are the order's; none of those before is on its way."""
        is_ahead, self._is_ahead = self._is_ahead, False
        self._following, self.is_followed = None, False
        if self.has_refused:
            return False
        return self._orders[max(self._orders)] is order if is_ahead else self._append(order)

    def check(self) -> None:
        """Raises InvalidArgument if it was closed."""
        if not self.handle:
            raise errors.InvalidArgument("the dataset was closed while it was iterated over",
                                         "leave it open until the loop has ended")

    def info(self) -> _abi.FeedInfo:
        """What it has done; of a closed one, until then."""
        if not self.handle:
            return self._last or _abi.FeedInfo()
        row: _abi.FeedInfo = _library.sized(_abi.FeedInfo)
        _library.ask("feed_query", self.handle, byref(row))
        return row

    def close(self) -> None:
        """Ends what is in flight. Again is no error."""
        if not self.stop():
            return  # it is closed when that thread has ended, and with it the last who knows it
        if getattr(self, "handle", None) and self.source.process == os.getpid():
            self._last = self.info()
        self.__dict__.get("_memories", {}).clear()
        super().close()

    def ahead(self, pieces: Iterator[Piece], enter: Callable[[], None]) -> Ahead:
        """Has a thread make pieces of its groups, up to `stop`; nobody else may ask for groups."""
        self._maker = Ahead(pieces, enter)
        self._maker.start()
        return self._maker

    def stop(self) -> bool:
        """Ends that thread; False in the thread itself, which still runs. Again is no error."""
        maker: Ahead | None = getattr(self, "_maker", None)
        if maker is None:
            return True
        if not maker.stop():
            return False
        self._maker = None
        return True

    def _memory(self, handle: int | None, on_host: bool) -> Memory | None:
        if not handle:
            return None
        found = self._memories.get((on_host, handle))
        if found is None:
            cutter = self.cutter
            maker = cutter.host_maker if on_host else cutter.device_maker
            found = self._memories[on_host, handle] = maker.memory(handle)
        return found

    def next(self) -> Group | None:
        """The next group, when its bytes have landed; None after the last.

        Raises
        ------
        Mismatch
            A payload is damaged; names shard, offset and key.
        """
        following, self._following = self._following, None
        if following is not None:
            self._is_ahead = self._append(following)
        row, error = _library.sized(_abi.Group), _abi.Error()
        function = _library.library().onehop_feed_next
        while True:
            status = function(self.handle, TURN_NS, byref(row), byref(error))
            if not status:
                break
            if status == _abi.END:
                return None
            if status != _abi.TIMED_OUT:
                raise errors.from_struct(status, error)
        for number in [one for one in self._orders if one < row.order]:
            del self._orders[number]
        rows, fields = int(row.rows), len(self.cutter.plans)
        return Group(int(row.slot), int(row.batches), array_at(row.samples, (rows,), "<u8"),
                     array_at(row.pad, (rows,), "|u1"),
                     array_at(row.offsets, (fields, rows), "<u8"),
                     array_at(row.bytes, (fields, rows), "<u8"),
                     self._memory(row.device_buffer, False), self._memory(row.host_buffer, True))

    def release(self, group: Group, stream: Any) -> None:
        """Gives a group's buffers back, after what the stream holds; None: now."""
        number = number_of(stream)
        flags = 0 if number is None else _abi.START_AFTER_STREAM
        _library.call("feed_release", self.handle, group.slot, flags, number or 0)


Pads = npt.NDArray[np.bool_] | bool
"""Which rows repeat a sample: True, as the order says; False, batches do not tell."""


def batches(feed: Feed, order: Order, batch: int, pad: Pads, consumer: Consumer,
            on_group: Callable[[int], None] | None = None) -> Iterator[dict[str, Any]]:
    """All batches of an order of the feed's, made ahead. Closing it closes nothing of the feed.

    Parameters
    ----------
    on_group : callable, optional
        Called at the beginning, and before each further group's first batch is handed out, with how
        many batches were.
    """
    if on_group is not None:
        on_group(0)
    consumer.note()
    turn = 0
    try:
        ahead = feed.ahead(_pieces(feed, order, batch, pad, consumer), consumer.enter)
        while True:
            before = ahead.waited_ns
            piece = ahead.take()
            feed.waited_ns += ahead.waited_ns - before
            feed.check()
            if piece is None:
                return
            if on_group is not None and piece.begins_group and turn:
                on_group(turn)
            turn += len(piece.batches)
            feed.damaged += piece.damaged
            while piece.batches:
                feed.check()
                consumer.hand(piece.batches[-1], piece.stream)
                feed.handed += piece.rows.pop()
                yield piece.batches.pop()  # no name here holds it while the consumer has it
    finally:
        feed.stop()


def one_batch(feed: Feed, order: Order, batch: int, consumer: Consumer) -> dict[str, Any]:
    """The only batch of an order of the feed's."""
    consumer.note()
    piece = next(_pieces(feed, order, batch, False, consumer))
    consumer.hand(piece.batches[0], piece.stream)
    return piece.batches[0]


def _pieces(feed: Feed, order: Order, batch: int, pad: Pads, consumer: Consumer
            ) -> Iterator[Piece]:
    """All batches of an order of the feed's, a few at a time."""
    done = turn = 0
    while turn < order.counts.batches:
        group = feed.next()
        if group is None:
            return
        step = _batches_at_once(group, feed.on_host)
        whole = _chunk(group, batch, pad, done)
        cut = Cut(feed.cutter, chunk := without_damaged(whole))
        for first in range(0, group.batches, step):
            last = min(first + step, group.batches)
            consumer.begin()
            made, rows = cut.batches(first, last), chunk.sizes[first:last]
            if last == group.batches:
                feed.release(group, consumer.stream)
            yield Piece(made[::-1], rows[::-1], sum(whole.sizes[first:last]) - sum(rows),
                        first == 0, consumer.stream)
            del made
        done += len(group.samples)
        turn += group.batches


def _batches_at_once(group: Group, on_host: bool) -> int:
    limit = _CHUNK_ON_HOST if on_host else _CHUNK_ON_DEVICE
    sizes = group.nbytes
    total = int(np.where(sizes == np.uint64(LACKS), 0, sizes).sum())
    rows = max(1, len(group.samples))
    return max(1, min(limit * group.batches // max(1, total), _CHUNK_ROWS * group.batches // rows))


def _chunk(group: Group, batch: int, pad: Pads, done: int) -> Chunk:
    """A group's batches; done is how many rows the groups before had."""
    count = len(group.samples)
    sizes = [min(batch, count - at) for at in range(0, count, batch)]
    pads = pad[done:done + count] if isinstance(pad, np.ndarray) else (
        group.pad.astype(np.bool_) if pad else None)
    return Chunk(group.samples.copy(), pads, list(group.offsets), list(group.nbytes), sizes,
                 group.device, group.host)
