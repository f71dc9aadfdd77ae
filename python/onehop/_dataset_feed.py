"""The library's feed as groups of batches, and the batches that are cut from them."""
from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from ctypes import byref
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from . import _abi, _library, errors
from ._dataset_batch import Chunk, Cutter, without_damaged
from ._dataset_make import Memory
from ._dataset_order import Order
from ._dataset_source import LACKS, Indices, Owned, Source, array_at
from ._move import TURN_NS
from .devices import Device

_CHUNK_ON_DEVICE = 32 << 20
_CHUNK_ON_HOST = 8 << 20
"""Bytes that are gathered at once, where a batch is smaller."""


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


class Consumer(Protocol):
    """The stream on which batches are used."""

    def begin(self) -> None:
        """Copies of the ring follow."""

    def end(self) -> None:
        """They were given to the stream."""

    def hand(self, batch: dict[str, Any]) -> None:
        """A batch is handed out."""

    @property
    def stream(self) -> int | None:
        """What the ring's buffers have to wait for; None for nothing."""


class HostConsumer:
    """Host memory: what was asked for is done."""

    stream = None

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass

    def hand(self, batch: dict[str, Any]) -> None:
        pass


class CudaConsumer:
    """torch's current stream, which may be another one from batch to batch."""

    def __init__(self, device: Device) -> None:
        import torch

        self._torch: Any = torch
        self._number = device.number
        self._stream = -1
        self._event: Any = None

    def _raw(self) -> int:
        return int(self._torch._C._cuda_getCurrentRawStream(self._number))

    def begin(self) -> None:
        now = self._raw()
        if self._event is not None and now != self._stream:
            # The group is given back after what this stream holds: earlier copies belong there too.
            self._torch.cuda.current_stream(self._number).wait_event(self._event)
        self._stream = now

    def end(self) -> None:
        self._event = self._torch.cuda.Event()
        self._event.record(self._torch.cuda.current_stream(self._number))

    def hand(self, batch: dict[str, Any]) -> None:
        if self._raw() == self._stream:
            return
        current = self._torch.cuda.current_stream(self._number)
        current.wait_event(self._event)
        for value in _tensors(batch):
            if value.is_cuda:
                value.record_stream(current)

    @property
    def stream(self) -> int | None:
        return self._stream


def _tensors(batch: dict[str, Any]) -> Iterator[Any]:
    """The tensors that a batch holds."""
    for value in batch.values():
        for one in value if isinstance(value, list) else (value,):
            for tensor in (one.values, one.offsets) if hasattr(one, "offsets") else (one,):
                if hasattr(tensor, "record_stream"):
                    yield tensor


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
    is_ahead : bool
        Whether an order was appended whose batches are not asked for yet.
    has_refused : bool
        Whether one could not be.

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
        self.is_ahead = self.has_refused = False
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
        self.handed = self.damaged = 0
        _library.call("feed_create", source.handle, order.handle, byref(row), byref(self.handle))

    @property
    def last(self) -> Order:
        """The order that it goes by, or that was appended to it."""
        return self._orders[max(self._orders)]

    def append(self, order: Order) -> bool:
        """Goes on with an order behind those that it has; False if its batches are too large."""
        try:
            _library.call("feed_append", self.handle, order.handle)
        except errors.Limit:
            self.has_refused = True
            return False
        self._orders[max(self._orders) + 1] = order
        self.is_ahead = True
        return True

    def info(self) -> _abi.FeedInfo:
        """What it has done; of a closed one, until then."""
        if not self.handle:
            return self._last or _abi.FeedInfo()
        row: _abi.FeedInfo = _library.sized(_abi.FeedInfo)
        _library.ask("feed_query", self.handle, byref(row))
        return row

    def close(self) -> None:
        """Ends what is in flight. Again is no error."""
        if getattr(self, "handle", None) and self.source.process == os.getpid():
            self._last = self.info()
        self.__dict__.get("_memories", {}).clear()
        super().close()

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
        row, error = _library.sized(_abi.Group), _abi.Error()
        function = _library.library().onehop_feed_next
        while True:
            if not self.handle:
                raise errors.InvalidArgument("the dataset was closed while it was iterated over",
                                             "leave it open until the loop has ended")
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

    def release(self, group: Group, stream: int | None) -> None:
        """Gives a group's buffers back, after what the stream holds."""
        flags = 0 if stream is None else _abi.START_AFTER_STREAM
        _library.call("feed_release", self.handle, group.slot, flags, stream or 0)


Pads = npt.NDArray[np.bool_] | bool
"""Which rows repeat a sample: True, as the order says; False, batches do not tell."""


def batches(feed: Feed, order: Order, batch: int, pad: Pads, consumer: Consumer,
            on_turn: Callable[[int], None] | None = None) -> Iterator[dict[str, Any]]:
    """All batches of an order of the feed's. Closing it closes nothing of the feed.

    Parameters
    ----------
    on_turn : callable, optional
        Called before each group with how many batches were handed out.
    """
    done = turn = 0
    while turn < order.counts.batches:
        if on_turn is not None:
            on_turn(turn)
        group = feed.next()
        if group is None:
            return
        step = _batches_at_once(group, feed.on_host)
        for first in range(0, group.batches, step):
            consumer.begin()
            whole = _chunk(group, first, min(first + step, group.batches), batch, pad, done)
            chunk = without_damaged(whole)
            feed.damaged += len(whole.samples) - len(chunk.samples)
            made = feed.cutter.cut(chunk)
            sizes = chunk.sizes[::-1]
            consumer.end()
            if first + step >= group.batches:
                feed.release(group, consumer.stream)
            made.reverse()
            while made:
                consumer.hand(made[-1])
                feed.handed += sizes.pop()
                yield made.pop()  # no name here holds it while the consumer has it
        done += len(group.samples)
        turn += group.batches


def _batches_at_once(group: Group, on_host: bool) -> int:
    limit = _CHUNK_ON_HOST if on_host else _CHUNK_ON_DEVICE
    sizes = group.nbytes
    total = int(np.where(sizes == np.uint64(LACKS), 0, sizes).sum())
    return max(1, limit * group.batches // max(1, total))


def _chunk(group: Group, first: int, last: int, batch: int, pad: Pads, done: int) -> Chunk:
    """Some of a group's batches; done is how many rows the groups before had."""
    begin, end = first * batch, min(last * batch, len(group.samples))
    sizes = [min(batch, end - at) for at in range(begin, end, batch)]
    rows = slice(begin, end)
    pads = pad[done + begin:done + end] if isinstance(pad, np.ndarray) else (
        group.pad[rows].astype(np.bool_) if pad else None)
    return Chunk(group.samples[rows].copy(), pads, list(group.offsets[:, rows]),
                 list(group.nbytes[:, rows]), sizes, group.device, group.host)
