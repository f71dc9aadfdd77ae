"""Batches that a thread makes ahead of their consumer, and the consumer's stream.

The thread runs an iterator of pieces, each some batches that were cut together, and stays a few
pieces ahead, which bounds their memory. On a GPU it puts its work on the consumer's stream: what it
makes is ordered with what the consumer does there, is freed as the consumer's own tensors are, and
needs no event.
"""
from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

from .devices import Device

_PIECES_AHEAD = 2
"""Pieces that are made beyond the one that is handed out, at most."""

_RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED."""


class Consumer(Protocol):
    """The stream on which batches are used. `begin` is for the thread that makes them, `hand` for
    the consumer's."""

    def note(self) -> None:
        """The stream that is the calling thread's is the consumer's."""

    def enter(self) -> None:
        """The calling thread is to make batches for the consumer's."""

    def begin(self) -> None:
        """Work for the consumer follows."""

    def hand(self, batch: dict[str, Any], stream: Any) -> None:
        """A batch is handed out, whose work was given to that stream."""

    @property
    def stream(self) -> Any:
        """A torch.cuda.Stream: what work was given to since `begin`; None: it is done."""


class HostConsumer:
    """Host memory: what was asked for is done."""

    stream = None

    def note(self) -> None:
        pass

    def enter(self) -> None:
        pass

    def begin(self) -> None:
        pass

    def hand(self, batch: dict[str, Any], stream: Any) -> None:
        pass


class CudaConsumer:
    """torch's current stream, which may be another one from batch to batch."""

    def __init__(self, device: Device) -> None:
        import torch

        self._torch: Any = torch
        self._number = device.number
        self._consumers: Any = None
        self.stream: Any = None

    def _current(self) -> int:
        return int(self._torch._C._cuda_getCurrentRawStream(self._number))

    def note(self) -> None:
        if self._consumers is None or self._current() != self._consumers.cuda_stream:
            self._consumers = self._torch.cuda.current_stream(self._number)

    def enter(self) -> None:
        self._torch.cuda.set_device(self._number)
        # A graph that the consumer captures is not this thread's business.
        with contextlib.suppress(OSError, AttributeError):
            driver = ctypes.CDLL("libcuda.so.1")
            driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(_RELAXED)))

    def begin(self) -> None:
        stream = self._consumers
        if self._current() != stream.cuda_stream:
            self._torch.cuda.set_stream(stream)
        if self.stream is not None and self.stream != stream:
            # A group is given back after what this stream holds: earlier copies belong there too.
            stream.wait_stream(self.stream)
        self.stream = stream

    def hand(self, batch: dict[str, Any], stream: Any) -> None:
        if self._current() == stream.cuda_stream:
            return
        self.note()
        self._consumers.wait_stream(stream)
        for value in _tensors(batch):
            if value.is_cuda:
                value.record_stream(self._consumers)


def number_of(stream: Any) -> int | None:
    """What the library knows a consumer's stream by; None for none."""
    return None if stream is None else int(stream.cuda_stream)


def _tensors(batch: dict[str, Any]) -> Iterator[Any]:
    """The tensors that a batch holds."""
    for value in batch.values():
        for one in value if isinstance(value, list) else (value,):
            for tensor in (one.values, one.offsets) if hasattr(one, "offsets") else (one,):
                if hasattr(tensor, "record_stream"):
                    yield tensor


class Piece(NamedTuple):
    """Batches that were cut together.

    Attributes
    ----------
    batches : list of dict
        The last one first, so that they are taken from the end.
    rows : list of int
        Of each, likewise.
    damaged : int
        Rows that were left out of these.
    begins_group : bool
        Whether they are a group's first.
    stream : torch.cuda.Stream or None
        What their work was given to.
    """

    batches: list[dict[str, Any]]
    rows: list[int]
    damaged: int
    begins_group: bool
    stream: Any


class Ahead:
    """A thread that makes pieces ahead.

    Parameters
    ----------
    pieces : iterator of Piece
        Run by the thread alone, from `start` to `stop`.
    enter : callable
        Called in the thread first.

    Attributes
    ----------
    waited_ns : int
        That `take` waited.
    """

    def __init__(self, pieces: Iterator[Piece], enter: Callable[[], None]) -> None:
        self.waited_ns = 0
        self._process = os.getpid()
        self._desk = _Desk()
        self._thread = threading.Thread(target=_make, name="onehop batches", daemon=True,
                                        args=(pieces, enter, self._desk))

    def start(self) -> None:
        """Starts it. Whatever an interrupt leaves of this, `stop` ends."""
        _running.add(self)
        self._thread.start()

    def take(self) -> Piece | None:
        """The next piece; None after the last, and once it was stopped. Raises what making it
        raised."""
        desk = self._desk
        with desk.changed:
            if not desk.made:
                begin = time.monotonic_ns()
                desk.is_waited_at = True
                while not desk.made:
                    desk.changed.wait()
                desk.is_waited_at = False
                self.waited_ns += time.monotonic_ns() - begin
            # The last word stays.
            made = desk.made.popleft() if isinstance(desk.made[0], Piece) else desk.made[0]
            desk.changed.notify()
        if isinstance(made, BaseException):
            raise made
        return made

    def stop(self) -> bool:
        """Ends the thread, after the piece that it is at. Again is no error.

        Returns
        -------
        bool
            Whether nothing of it runs any more. False in the thread itself, which collects garbage
            as any other does.
        """
        if self._process != os.getpid():
            return True  # a child has no thread of its parent's
        desk, is_own = self._desk, threading.current_thread() is self._thread
        with desk.changed:
            desk.is_open = False
            desk.changed.notify()
            while desk.is_running and not is_own:
                desk.changed.wait()
            if desk.is_running:
                return False
        _running.discard(self)
        if not is_own:
            with contextlib.suppress(RuntimeError):  # it was not started
                self._thread.join()
        return True


class _Desk:
    """Where pieces are put down and taken.

    Attributes
    ----------
    changed : Condition
        Guards the rest.
    made : deque
        Pieces; None or an error after the last.
    is_waited_at : bool
        By the consumer.
    is_open : bool
        Whether pieces are wanted.
    is_running : bool
        Whether the thread is at work.
    """

    def __init__(self) -> None:
        # A signal's handler, or a collection, may stop the thread from within any of this.
        self.changed = threading.Condition(threading.RLock())
        self.made: deque[Piece | BaseException | None] = deque()
        self.is_waited_at = self.is_running = False
        self.is_open = True

    def begin(self) -> bool:
        """Whether the thread is to work at all."""
        with self.changed:
            self.is_running = self.is_open
            if not self.is_open:
                self.made.append(None)
            return self.is_open

    def put(self, piece: Piece) -> None:
        """Puts a piece down, and waits until the next one is wanted.

        A consumer that waits has to have this one first: it could not go on while the next is made,
        since that holds the interpreter's lock.
        """
        with self.changed:
            self.made.append(piece)
            self.changed.notify()
            del piece
            while self.is_open and len(self.made) >= (1 if self.is_waited_at else _PIECES_AHEAD):
                self.changed.wait()

    def end(self, error: BaseException | None) -> None:
        """No piece follows, and the thread does nothing more."""
        with self.changed:
            self.made.append(error)
            self.is_running = False
            self.changed.notify_all()


def _make(pieces: Iterator[Piece], enter: Callable[[], None], desk: _Desk) -> None:
    """The thread."""
    if not desk.begin():
        return
    failure = None
    try:
        enter()
        while desk.is_open:
            piece = next(pieces, None)
            if piece is None:
                break
            desk.put(piece)
            del piece
    except BaseException as error:
        failure = error
    desk.end(failure)


_running: WeakSet[Ahead] = WeakSet()


def _stop_all() -> None:
    """The library may not be in use when the interpreter ends."""
    for ahead in list(_running):
        ahead.stop()


atexit.register(_stop_all)
