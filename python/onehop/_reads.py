"""The bytes of a pipeline's tasks: reads in flight, and the memory that they go to.

`Reads` knows which tasks were started, with what values, and what has landed of them. Tasks are
told apart as objects: callers may edit the queue, and the dicts in it, between calls. The C library
does the reads (``onehop/pipeline.h``), a few at a time, and gives the oldest first. One thread at a
time; a signal's exception in the midst of a wait leaves all as it was.
"""
from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterator
from ctypes import byref, c_uint64
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _abi, _library, _runtime, _tasks, arenas, devices, errors, reading
from ._move import TURN_NS, Buffer
from .devices import Device
from .model import Path


class Places:
    """Ranges of the buffer, apart from one another, to find out whether another would meet one."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def meet(self, begin: int, end: int) -> bool:
        at = bisect_right(self._ends, begin)
        return begin < end and at < len(self._ends) and self._begins[at] < end

    def add(self, begin: int, end: int) -> None:
        if begin < end and not self.meet(begin, end):
            at = bisect_right(self._begins, begin)
            self._begins.insert(at, begin)
            self._ends.insert(at, end)

    def discard(self, begin: int, end: int) -> None:
        at = bisect_right(self._begins, begin) - 1
        if at >= 0 and (self._begins[at], self._ends[at]) == (begin, end):
            del self._begins[at], self._ends[at]


@dataclass
class Started:
    """A task whose read was started, with the values that it had then.

    landed and error are None as long as the read is in flight.
    """

    task: _tasks.Task
    sample_id: Any
    begin: int
    size: int
    tag: int
    landed: int | None = None
    error: errors.OnehopError | None = None

    @property
    def end(self) -> int:
        return self.begin + self.size


class Memory(NamedTuple):
    """What bytes go to: the caller's object or ours, and the same memory as the C library's."""

    owner: Any
    buffer: Buffer
    is_wrapped: bool  # buffer is a handle on memory of another's
    stream: int | None
    keep: Any

    def stream_now(self) -> int | None:
        """The stream whose work comes before the first byte of a read."""
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(self.owner, torch.Tensor):
            return self.stream
        return reading._target(self.owner).stream  # which also tells torch of the write


class _Pipeline(_library.Handle):
    """The C library's, with what it must not outlive."""

    _end = "pipeline_destroy"

    def __init__(self, file: reading._File, memory: Memory, alignment: int, places: int) -> None:
        super().__init__()
        self.file, self.memory = file, memory
        options = _abi.PipelineOptions()
        _library.run("pipeline_options_init", byref(options))
        options.places, options.alignment = places, alignment
        _library.call("pipeline_create", file.runtime.handle, file.handle, memory.buffer.handle,
                      byref(options), byref(self.handle))

    def submit(self, tag: int, file_offset: int, begin: int, size: int) -> None:
        read = _abi.Read(tag, file_offset, begin, size)
        stream, start = self.memory.stream_now(), None
        if stream is not None:
            options = _abi.StartOptions()
            _library.run("start_options_init", byref(options))
            options.flags, options.after_stream = _abi.START_AFTER_STREAM, stream
            start = byref(options)
        _library.call("pipeline_submit", self.handle, byref(read), start)

    def query(self) -> _abi.PipelineInfo:
        info: _abi.PipelineInfo = _library.sized(_abi.PipelineInfo)
        _library.ask("pipeline_query", self.handle, byref(info))
        return info


def _memory_of(memory: Any, device: Device, runtime: _runtime.Runtime) -> Memory:
    """Memory of the caller's."""
    if isinstance(memory, Buffer):
        at = devices.parse(memory.device)
        target = reading._Target(memory, 0, memory.nbytes, at,
                                 reading._LEGACY_STREAM if at.kind == "cuda" else None)
    else:
        try:
            target = reading._target(memory)
        except errors.InvalidArgument as error:
            words = error.message
            raise errors.InvalidArgument("buffer" + words.removeprefix("out")
                                         if words.startswith("out,") else words,
                                         error.remedy) from None
    if device.kind == "cuda" and target.device != device:
        raise errors.InvalidArgument(f"buffer is on {target.device}, and {device} is asked for",
                                     "leave device out, or give memory there")
    # The library's own may be of another runtime: what counts is where it lies.
    begin = target.begin + (target.buffer.address if target.buffer else 0)
    buffer = Buffer(runtime, target.device.name, target.nbytes, begin)
    return Memory(memory, buffer, True, target.stream, target)


def _new_memory(nbytes: int, device: Device, runtime: _runtime.Runtime) -> Memory:
    """Memory of ours, as a tensor or array of the framework that a load would choose."""
    framework, _ = arenas.chosen(None, device, runtime)
    memory = framework.allocate(nbytes)
    item = reading._item("", "U8", (nbytes,), nbytes, 0, 1, 1)
    owner = framework.finish(framework.tensors([item], memory, 0))[0]
    buffer = memory.buffer(runtime, framework.device)
    return Memory(owner, buffer, buffer is not memory.owner, framework.stream(), memory)


class Reads:
    """The tasks of one file that were started and not yet reported.

    Parameters
    ----------
    path : path
    device : Device
        Where memory is made, without a buffer.
    buffer : tensor, array or None
    alignment : int
    most : int
        Reads in flight.
    """

    def __init__(self, path: Path, device: Device, buffer: Any, alignment: int,
                 most: int) -> None:
        runtime = _runtime.get()
        self._file = reading._File(runtime, path)
        self._device, self._alignment, self._most = device, alignment, most
        self._check_alignment()
        self._memory = None if buffer is None else _memory_of(buffer, device, runtime)
        self._owner = buffer
        self._pipeline: _Pipeline | None = None
        self._is_closed = False
        self._places = Places()    # of pending tasks that were queued
        self._reported = Places()  # of tasks that this step reports: the caller has not seen them
        self._started: dict[int, Started] = {}  # by the task's id
        self._flying: dict[int, Started] = {}   # by tag
        self._tags = 0
        self._done: _abi.ReadDone = _library.sized(_abi.ReadDone)
        self._error = _abi.Error()
        self._busy_ns = 0

    def _check_alignment(self) -> None:
        found = c_uint64()
        _library.call("pipeline_alignment", self._file.handle, byref(found))
        if self._alignment % found.value:
            raise errors.InvalidArgument(
                f"{self._file.path}: direct I/O asks for multiples of {found.value} bytes, and "
                f"alignment_bytes is {self._alignment}", f"give a multiple of {found.value}")

    def _check_open(self) -> None:
        if self._is_closed:
            raise errors.InvalidArgument(f"the pipeline over {self._file.path} is closed",
                                         "make another one")

    # -- memory

    def memory(self, queue: list[Any]) -> Memory:
        """What bytes go to; made at the first need, for the whole file and all that is pending."""
        if self._memory is None:
            file_end = -(-self._file.nbytes // self._alignment) * self._alignment
            nbytes = max([file_end, *(_tasks.range_of(task)[1] for task in queue)])
            self._memory = _new_memory(nbytes, self._device, self._file.runtime)
            self._owner = self._memory.owner
        return self._memory

    def owner(self, queue: list[Any]) -> Any:
        """That memory as the caller knows it; it stays when the pipeline is closed."""
        if self._owner is None and not self._is_closed:
            self.memory(queue)
        return self._owner

    def _ranges(self, queue: list[Any]) -> Iterator[tuple[Any, int, int]]:
        """Each pending task and where its bytes go, or went when it was started."""
        for task in queue:
            started = self._started.get(id(task))
            yield (task, started.begin, started.end) if started else (task, *_tasks.range_of(task))

    def take(self, queue: list[Any], begin: int, size: int) -> None:
        """Takes a range for a task to be queued, or raises InvalidArgument."""
        self._check_open()
        self.forget_removed(queue)
        end = begin + size
        if self._memory is not None and end > self._memory.buffer.nbytes:
            raise errors.InvalidArgument(
                f"buffer_address {begin} and size_bytes {size} leave the buffer, which has "
                f"{self._memory.buffer.nbytes} bytes", "keep tasks within it, or give a larger one")
        if self._places.meet(begin, end):
            fresh = Places()
            for task, other, other_end in self._ranges(queue):
                if begin < other_end and other < end and other < other_end:
                    sample_id = _tasks.named(_tasks.field_of(task, "sample_id"))
                    raise errors.InvalidArgument(
                        f"bytes {begin} to {end} of the buffer overlap those of pending task "
                        f"{sample_id}, {other} to {other_end}",
                        "complete that one first, or use another part of the buffer")
                fresh.add(other, other_end)
            self._places = fresh
        self._places.add(begin, end)

    # -- reads

    def begin_step(self, queue: list[Any]) -> None:
        self._reported = Places()
        self.forget_removed(queue)

    def forget_removed(self, queue: list[Any]) -> None:
        """Waits for tasks that were started and that the caller has taken out, and drops them."""
        if self._started.keys() <= {id(task) for task in queue[:len(self._started)]}:
            return
        present = {id(task) for task in queue}
        for key, started in list(self._started.items()):
            if key not in present:
                self._wait(started)
                self._drop(started)
                self._places.discard(started.begin, started.end)

    def look(self, queue: list[Any], at: int) -> tuple[Any, int]:
        """Starts the task at that place if it is not, and some behind it.

        Returns
        -------
        (object, int)
            Its sample_id and size, as they were when it was started.
        """
        self._check_open()
        started = self._started.get(id(queue[at])) or self._start(queue, at)
        for later in range(at + 1, min(at + self._most, len(queue))):
            if len(self._started) >= self._most:
                break
            if id(queue[later]) not in self._started:
                try:
                    self._start(queue, later)
                except (TypeError, ValueError, errors.OnehopError):
                    break  # and is raised when its turn comes
        return started.sample_id, started.size

    def land(self, task: Any) -> int:
        """Waits for a task that was started, and gives the bytes that landed.

        Raises
        ------
        OnehopError
            The read failed. The task counts as not started.
        """
        started = self._started[id(task)]
        self._wait(started)
        self._drop(started)
        if started.error is not None:
            raise started.error
        self._places.discard(started.begin, started.end)
        self._reported.add(started.begin, started.end)
        return started.landed or 0

    def _start(self, queue: list[Any], at: int) -> Started:
        task = queue[at]
        values = [_tasks.whole(field, _tasks.field_of(task, field)) for field in _tasks.FIELDS]
        for field, value in zip(_tasks.FIELDS, values):
            reason = _tasks.fault(field, value, self._alignment)
            if reason:
                raise errors.InvalidArgument(reason)
        offset, begin, size = values
        self._check_free(begin, begin + size)
        if self._pipeline is None:
            self._pipeline = _Pipeline(self._file, self.memory(queue), self._alignment, self._most)
        while len(self._flying) >= self._most:
            self._collect()
        self._tags += 1
        started = Started(task, _tasks.field_of(task, "sample_id"), begin, size, self._tags)
        # Known before it flies, so that no signal leaves a read that nobody knows.
        self._started[id(task)] = self._flying[started.tag] = started
        try:
            self._pipeline.submit(started.tag, offset, begin, size)
        except errors.OnehopError:
            del self._flying[started.tag]
            self._drop(started)
            raise
        return started

    def _check_free(self, begin: int, end: int) -> None:
        """Of use for tasks of the caller's own: those queued by `take` are apart."""
        what = "a task that this step reports" if self._reported.meet(begin, end) else ""
        for other in self._started.values():
            if begin < other.end and other.begin < end and begin < end and other.size:
                what = f"task {_tasks.named(other.sample_id)}, which is on its way"
        if what:
            raise errors.InvalidArgument(
                f"bytes {begin} to {end} of the buffer overlap those of {what}",
                "put it behind that one in pending_queue, or use another part of the buffer")

    def _drop(self, started: Started) -> None:
        self._started.pop(id(started.task), None)

    def _wait(self, started: Started) -> None:
        while started.tag in self._flying:
            self._collect()

    def _collect(self) -> None:
        """Takes in the oldest read in flight, or waits a turn for it."""
        assert self._pipeline is not None
        if not self._done.tag:
            status = _library.library().onehop_pipeline_next(
                self._pipeline.handle, TURN_NS, byref(self._done), byref(self._error))
            if status == _abi.FORKED:
                raise errors.from_struct(status, self._error)
            if status == _abi.END:
                self._never_flew()
        # A signal's exception may leave all this to the next call.
        started = self._flying.get(self._done.tag)
        if started is not None:
            if self._done.status:
                started.error = errors.from_struct(self._done.status, self._error)
            started.landed = int(self._done.bytes)
            del self._flying[started.tag]
        self._done.tag = 0

    def _never_flew(self) -> None:
        """A signal came before they were submitted."""
        for started in list(self._flying.values()):
            started.error = errors.Cancelled("the read was interrupted before it began",
                                             "go on: the next step starts it again")
        self._flying.clear()

    # -- the end

    def bytes_in_flight(self) -> int:
        return sum(started.size for started in self._started.values())

    def seconds(self) -> float:
        """Time in which a read at least was on its way."""
        if self._pipeline is not None:
            self._busy_ns = int(self._pipeline.query().busy_ns)
        return self._busy_ns / 1e9

    def close(self) -> None:
        """Cancels what is in flight, waits for that, and lets go of file and memory."""
        self._is_closed = True
        self.seconds()
        if self._pipeline is not None:
            self._pipeline.close()
        if self._memory is not None and self._memory.is_wrapped:
            self._memory.buffer.close()
        self._file.close()
        self._pipeline = self._memory = None
        self._started.clear()
        self._flying.clear()
