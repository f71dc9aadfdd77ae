"""Bytes in motion: buffers, plans, transfers, and the loop that waits for them.

A thread that waits releases the GIL and helps with the work, in turns of 50 ms, so that a signal
handler of Python's runs at once: KeyboardInterrupt cancels the transfer, waits until nothing is in
flight, and goes on. The order of a load is: make a `Transfer` from a `Plan`, `start` it, do what
there is to do meanwhile (make tensor objects), `wait`. `run` does all of it.
"""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from ctypes import byref, c_uint64
from struct import Struct
from typing import Any, NamedTuple, TypeVar
from weakref import WeakSet

from . import _abi, _library, errors
from ._runtime import Runtime
from .model import Selection

TURN_NS = 50_000_000
"""How long a wait stays in the C library before Python looks for signals."""

_ARRIVALS = 256
"""Arrivals asked for in one call."""

T = TypeVar("T")
OnTurn = Callable[[int, int], None]
"""Called with the bytes that have landed and the bytes of all, about every turn."""

_EXTENT = Struct(_abi.FORMATS["onehop_extent"])


class Buffer(_library.Handle):
    """Memory that bytes go to; see ``onehop/buffer.h``.

    Parameters
    ----------
    runtime : Runtime
    device : str
        ``"host"`` or ``"cuda:N"``.
    nbytes : int
    address : int, optional
        Memory of the caller's, which must stay until the buffer is closed. Left out: allocated.

    Raises
    ------
    NoDevice, NoMemory, NoDeviceMemory, InvalidArgument
    """

    _end = "buffer_free"

    def __init__(self, runtime: Runtime, device: str, nbytes: int,
                 address: int | None = None) -> None:
        super().__init__()
        self.device, self.nbytes = device, nbytes
        encoded = device.encode()
        if address is None:
            _library.call("buffer_alloc", runtime.handle, encoded, nbytes, byref(self.handle))
        else:
            _library.call("buffer_wrap", runtime.handle, encoded, address, nbytes,
                          byref(self.handle))

    @property
    def address(self) -> int:
        """Its device or host address; 0 only if it is empty."""
        info = _library.sized(_abi.BufferInfo)
        _library.ask("buffer_query", self.handle, byref(info))
        return int(info.address)

    def read(self, offset: int, nbytes: int) -> bytearray:
        """Copies bytes to host memory and waits. For checks and small reads."""
        copy = bytearray(nbytes)
        if nbytes:
            target = (ctypes.c_char * nbytes).from_buffer(copy)
            _library.call("buffer_read", self.handle, offset, target, nbytes)
        return copy

    def fill(self, offset: int, nbytes: int, value: int) -> None:
        """Sets bytes to value (0 to 255) and waits."""
        _library.call("buffer_fill", self.handle, offset, nbytes, value)


class Extent(NamedTuple):
    """Bytes to move: equal rows of a file, laid one after the other in a buffer.

    Attributes
    ----------
    file : int
        As `Model.file_handle` gives it.
    offset, row_bytes, rows, row_stride : int
        Where the first row begins in the file, its bytes, how many, and how far apart (bytes).
    buffer : Buffer
    buffer_offset : int
    """

    file: int
    offset: int
    row_bytes: int
    rows: int
    row_stride: int
    buffer: Buffer
    buffer_offset: int


class Plan(_library.Handle):
    """What to move, cut into segments with routes. Make it by one of the class methods."""

    _end = "plan_destroy"

    def __init__(self) -> None:
        super().__init__()
        self._keeps: list[Any] = []
        self.transfers: WeakSet[Transfer] = WeakSet()

    def close(self) -> None:
        """Gives it back, and its transfers before it. Again is no error."""
        for transfer in list(getattr(self, "transfers", ())):
            transfer.close()
        super().close()

    @classmethod
    def of_selection(cls, selection: Selection, arena: Buffer, arena_offset: int = 0) -> Plan:
        """The selection's items, in order, into one arena."""
        plan = cls()
        plan._keeps = [selection.model, arena]
        _library.call("model_plan", selection.handle, arena.handle, arena_offset,
                      byref(plan.handle))
        return plan

    @classmethod
    def into(cls, selection: Selection, destinations: Sequence[tuple[Buffer, int]]) -> Plan:
        """The selection's items, in order, each to its buffer and offset."""
        plan = cls()
        plan._keeps = [selection.model, destinations]
        rows = (_abi.Destination * len(destinations))()
        for row, (buffer, offset) in zip(rows, destinations):
            row.buffer, row.offset = buffer.handle, offset
        _library.call("model_plan_into", selection.handle, rows, byref(plan.handle))
        return plan

    @classmethod
    def of_extents(cls, runtime: Runtime, extents: Sequence[Extent], keep: Any = None) -> Plan:
        """Extents of the caller's own. keep: what their files live with, a model."""
        plan = cls()
        plan._keeps = [keep, {extent.buffer for extent in extents}]
        packed = b"".join(
            _EXTENT.pack(e.file, e.offset, e.row_bytes, e.rows, e.row_stride,
                         e.buffer.handle.value or 0, e.buffer_offset, 0) for e in extents)
        rows = (_abi.Extent * len(extents)).from_buffer_copy(packed)
        _library.call("plan_create", runtime.handle, rows, len(extents), byref(plan.handle))
        return plan

    def query(self) -> _abi.PlanInfo:
        """Counts and reasons, in the C library's struct (sizes in bytes)."""
        info: _abi.PlanInfo = _library.sized(_abi.PlanInfo)
        _library.ask("plan_query", self.handle, byref(info))
        return info

    def segments(self) -> Iterator[_abi.Segment]:
        """Each segment, in the order of reading."""
        for index in range(self.query().segments):
            segment: _abi.Segment = _library.sized(_abi.Segment)
            _library.ask("plan_segment_at", self.handle, index, byref(segment))
            yield segment


class Transfer(_library.Handle):
    """A plan in motion; see ``onehop/transfer.h``. Leaving it as a context manager cancels it.

    One thread at a time may use it, but `cancel` and `progress` are for any thread.

    Raises
    ------
    Limit, NoMemory
        Staging memory cannot be had.
    """

    _end = "transfer_destroy"

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self._indexes = (c_uint64 * _ARRIVALS)()
        plan.transfers.add(self)
        _library.call("transfer_prepare", plan.handle, byref(self.handle))

    def start(self, after_stream: int | None = None) -> None:
        """Starts moving bytes and returns.

        Parameters
        ----------
        after_stream : int, optional
            A CUDA stream (0 is the legacy one): the first copy waits for what it holds now.
        """
        options = _abi.StartOptions()
        _library.run("start_options_init", byref(options))
        if after_stream is not None:
            options.flags = _abi.START_AFTER_STREAM
            options.after_stream = after_stream
        _library.call("transfer_start", self.handle, byref(options))

    def landed(self, timeout_ns: int = TURN_NS) -> list[int]:
        """Indexes of extents (items, for a selection's plan) that landed since the last call.

        Returns
        -------
        list of int
            Empty if none has within the time; helps with the work while it waits.

        Raises
        ------
        End
            All were given.
        OnehopError
            The transfer failed.
        """
        error, count = _abi.Error(), c_uint64()
        status = _library.library().onehop_transfer_arrivals(
            self.handle, timeout_ns, self._indexes, len(self._indexes), byref(count), byref(error))
        if status == _abi.TIMED_OUT:
            return []
        if status:
            raise errors.from_struct(status, error)
        return self._indexes[:count.value]

    def wait(self, on_turn: OnTurn | None = None) -> _abi.Completion:
        """Waits until it has ended, in turns, helping with the work.

        Returns
        -------
        Completion
            The C library's struct: bytes by route, reasons, times in nanoseconds.

        Raises
        ------
        OnehopError
            The transfer's first failure.
        """
        completion: _abi.Completion = _library.sized(_abi.Completion)
        error, wait = _abi.Error(), _library.library().onehop_transfer_wait
        while True:
            status = wait(self.handle, TURN_NS, byref(completion), byref(error))
            if status and status != _abi.TIMED_OUT:
                raise errors.from_struct(status, error)
            if on_turn:
                on_turn(*self.progress())
            if not status:
                return completion

    def progress(self) -> tuple[int, int]:
        """Bytes landed, and bytes of all. Any thread."""
        progress = _library.sized(_abi.Progress)
        _library.ask("transfer_progress", self.handle, byref(progress))
        return progress.bytes_landed, progress.bytes_total

    def cancel(self) -> None:
        """Asks it to stop and returns at once. Any thread."""
        _library.run("transfer_cancel", self.handle)


def run(transfer: Transfer, work: Callable[[], T], *, after_stream: int | None = None,
        on_turn: OnTurn | None = None) -> tuple[T, _abi.Completion]:
    """Starts the transfer, does the work while bytes move, waits, and closes it.

    Whatever is raised, KeyboardInterrupt too, nothing is in flight when this returns.

    Returns
    -------
    (T, Completion)
        What work returned, and what the transfer did.
    """
    with transfer:
        transfer.start(after_stream)
        done = work()
        return done, transfer.wait(on_turn)
