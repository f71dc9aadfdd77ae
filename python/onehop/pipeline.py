"""`GPUDirectStoragePipeline`: aligned reads, queued, and completed in steps that have a budget.

Without a file it is a model of a pipeline: the rules of alignment, queue and budget, and no bytes.
With ``path=`` the same rules govern reads that the C library does. One thread at a time.
"""
from __future__ import annotations

import sys
import warnings
from fractions import Fraction
from types import TracebackType
from typing import Any, TypeAlias, overload

from . import _abi, _tasks, devices, errors
from ._reads import Reads
from .devices import Device, DeviceInput
from .model import Path

__all__ = ["GPUDirectStoragePipeline"]

Amount: TypeAlias = "float | Fraction"


# Python itself tells the ways of calling apart, and complains of what is none.


def _only_size(size_bytes: Any) -> Any:
    return size_bytes


def _address_and_size(buffer_address: Any, size_bytes: Any) -> tuple[Any, Any]:
    return buffer_address, size_bytes


def _budget_of_bytes(max_bytes_transferred: Any) -> int:
    return int(_amount("max_bytes_transferred", max_bytes_transferred))


def _budget_of_time(transfer_speed_gb_s: Any, elapsed_time_s: Any) -> tuple[int, float]:
    """Bytes, to the nearest, of two halves to the even one; and the time."""
    speed = _amount("transfer_speed_gb_s", transfer_speed_gb_s)
    elapsed = _amount("elapsed_time_s", elapsed_time_s)
    return round(speed * 10 ** 9 * elapsed), float(elapsed)


def _amount(name: str, value: Any) -> int | Fraction:
    """A budget, a speed or a time, exactly as it was given."""
    exact: int | float | Fraction
    try:
        exact = _tasks.whole(name, value)
    except TypeError:
        if _tasks.is_bool(value) or not hasattr(value, "__float__"):
            raise TypeError(f"{name} is a {type(value).__name__}; give a number") from None
        exact = value if isinstance(value, Fraction) else float(value)
    if not 0 <= exact <= sys.float_info.max:
        raise errors.InvalidArgument(f"{name} is {_tasks.shown(exact)}",
                                     "give a finite number of 0 or more")
    return Fraction(exact)


class GPUDirectStoragePipeline:
    """A queue of aligned reads, completed from its head in steps that have a budget.

    Leaving it as a context manager closes it.

    Parameters
    ----------
    gpu_id : int
        The GPU that ``device="cuda"`` means.
    alignment_bytes : int
        What offsets, addresses and sizes have to be multiples of.
    path : str, bytes or path-like, optional
        A file whose bytes are read. Left out: no byte moves, and no GPU is looked for.
    device : str, int or torch.device
        Where memory is made if buffer is left out; a GPU that is named has to be the buffer's.
    buffer : tensor or array, optional
        Contiguous memory that bytes go to, as `onehop.read`'s out: a torch tensor, a numpy array,
        an `onehop.Array`, a bytearray. It must not be resized before the pipeline is closed. Left
        out: the first step makes memory for the whole file, rounded up to the alignment, or for
        what is pending then, if that reaches further; its contents are undefined where nothing
        landed.
    buffers : int
        How many reads may be in flight, 1 to 1024.

    Attributes
    ----------
    gpu_id, alignment : int
    pending_queue, completed_samples : list of dict
        Tasks as `enqueue_read` made them, first come first. They may be edited between calls: taken
        out, put in, moved, and the values of a dict changed. With path= a task that was started
        before is reported with the values that it had then, and one that is taken out is waited for
        and dropped; what the caller put in himself is checked when it starts.

    Raises
    ------
    TypeError
        gpu_id, alignment_bytes or buffers is no integer.
    InvalidArgument
        A ValueError: one of them is out of its range, alignment_bytes is no multiple of the file's
        direct-I/O alignment, or buffer cannot be written to or is on another device.
    NotFound, Access, IOFailed, NoDevice
        Of path and device.
    """

    pending_queue: list[_tasks.Task]
    completed_samples: list[_tasks.Task]

    def __init__(self, gpu_id: int = 0, alignment_bytes: int = 4096, *, path: Path | None = None,
                 device: DeviceInput = "host", buffer: Any = None, buffers: int = 2) -> None:
        self.gpu_id = _tasks.within("gpu_id", gpu_id, 0, _tasks.MOST)
        self.alignment = _tasks.within("alignment_bytes", alignment_bytes, 1, _tasks.MOST)
        places = _tasks.within("buffers", buffers, 1, _abi.PIPELINE_PLACES_MOST)
        self.pending_queue = []
        self.completed_samples = []
        self._end = 0  # of the last task queued
        self._kept: tuple[_tasks.Task, int] | None = None  # the head, and what time steps left it
        self._blocked: Any = None
        self._warned: dict[int, Any] = {}  # tasks, by id
        self._seconds = 0.0
        self._counts = dict.fromkeys(("bytes_enqueued", "bytes_completed", "tasks_completed",
                                      "steps", "steps_without_progress", "short_bytes"), 0)
        self._reads: Reads | None = None
        if path is not None:
            self._reads = Reads(path, self._device(device), buffer, self.alignment, places)
        elif buffer is not None:
            raise errors.InvalidArgument("buffer is given and path is not, so that nothing goes "
                                         "there", "name the file by path=, or leave buffer out")

    def _device(self, device: DeviceInput) -> Device:
        found = Device("cuda", self.gpu_id) if str(device) == "cuda" else devices.parse(device)
        if found.kind not in ("cpu", "cuda"):
            raise errors.InvalidArgument(f"device {device} is one that bytes do not reach",
                                         'name "host" or a CUDA device')
        return found

    def __enter__(self) -> GPUDirectStoragePipeline:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    @property
    def buffer(self) -> Any:
        """What bytes go to: the buffer that was given, or a tensor or array of uint8 of the
        pipeline's own, which asking for it makes; None without path=."""
        return None if self._reads is None else self._reads.owner(self.pending_queue)

    def validate_alignment(self, file_offset: int, buffer_address: int,
                           size_bytes: int) -> tuple[bool, str | None]:
        """Whether a task may be queued, as far as its numbers alone tell.

        Returns
        -------
        (bool, str or None)
            ``(True, None)``; else False, and which field breaks which rule, the first of
            file_offset, buffer_address and size_bytes: each is a multiple of the alignment, from 0
            to 2**63 - 1.

        Raises
        ------
        TypeError
            One of them is no integer. True and False are none.
        """
        given = (file_offset, buffer_address, size_bytes)
        values = [_tasks.whole(field, value) for field, value in zip(_tasks.FIELDS, given)]
        for field, value in zip(_tasks.FIELDS, values):
            reason = _tasks.fault(field, value, self.alignment)
            if reason:
                return False, reason
        return True, None

    @overload
    def enqueue_read(self, sample_id: Any, file_offset: int, size_bytes: int) -> None: ...

    @overload
    def enqueue_read(self, sample_id: Any, file_offset: int, buffer_address: int,
                     size_bytes: int) -> None: ...

    def enqueue_read(self, sample_id: Any, file_offset: int, *places: Any, **named: Any) -> None:
        """Appends a task to pending_queue.

        Parameters
        ----------
        sample_id : object
            Of any type; repeats are allowed.
        file_offset : int
            Bytes.
        buffer_address : int, optional
            Bytes, with path= from the buffer's start on. Left out: where the last task that was
            queued ends, rounded up to the alignment; 0 for the first one.
        size_bytes : int

        Raises
        ------
        TypeError
            A number is no integer.
        InvalidArgument
            A ValueError with the reason that `validate_alignment` gives. With path= also: the range
            leaves the buffer or overlaps that of a pending task, or the pipeline is closed. Nothing
            is queued.
        """
        if len(places) + len(named) < 2:
            address = -(-self._end // self.alignment) * self.alignment
            given = (file_offset, address, _only_size(*places, **named))
        else:
            given = (file_offset, *_address_and_size(*places, **named))
        values = [_tasks.whole(field, value) for field, value in zip(_tasks.FIELDS, given)]
        is_right, reason = self.validate_alignment(*values)
        if not is_right:
            raise errors.InvalidArgument(str(reason))
        _, begin, size = values
        if self._reads is not None:
            self._reads.take(self.pending_queue, begin, size)
        self.pending_queue.append({"sample_id": sample_id, **dict(zip(_tasks.FIELDS, values))})
        self._counts["bytes_enqueued"] += size
        self._end = begin + size

    @overload
    def step_pipeline(self, max_bytes_transferred: Amount) -> list[Any]: ...

    @overload
    def step_pipeline(self, transfer_speed_gb_s: Amount, elapsed_time_s: Amount) -> list[Any]: ...

    def step_pipeline(self, *amounts: Any, **named: Any) -> list[Any]:
        """Completes whole tasks from the head of pending_queue, as many as the budget covers.

        With path= it starts reads, up to `buffers` of them ahead, and waits for those that the
        budget covers; the others go on when it returns.

        Parameters
        ----------
        max_bytes_transferred : int or float
            The budget of this step, in bytes. What is left of it is lost.
        transfer_speed_gb_s, elapsed_time_s : int, float or Fraction
            Instead: the budget is their product in bytes (a GB is 10**9), computed exactly and
            rounded to the nearest byte, of two halves to the even one. What is left of it when the
            queue's head does not fit is that task's, in the next step of this kind, as long as it
            stays at the head.

        Returns
        -------
        list
            The sample_id of each completed task. Empty if the head does not fit, which then blocks
            those behind it: if it does not fit into max_bytes_transferred, `statistics` names it,
            and once a task a RuntimeWarning does.

        Raises
        ------
        TypeError
            An amount is no number, or a task that the caller made has a field that is no integer.
        InvalidArgument
            A ValueError: an amount is negative, infinite or NaN; or a task that the caller made
            breaks a rule, or the pipeline is closed.
        IOFailed, FileChanged, DriverError, NoMemory, NoDeviceMemory
            The read of a task failed.

        A task that fails stays at the head, and the next step tries it again; where others were
        completed before it, they are returned first and the next step raises.
        """
        if len(amounts) + len(named) < 2:
            return self._step(_budget_of_bytes(*amounts, **named), by_time=False)
        budget, seconds = _budget_of_time(*amounts, **named)
        self._seconds += seconds
        return self._step(budget, by_time=True)

    def _step(self, budget: int, by_time: bool) -> list[Any]:
        is_waited_for = bool(self.pending_queue)
        kept = self._kept_bytes()
        self._blocked = None
        self._counts["steps"] += 1
        ids, left = self._complete(budget + kept if by_time else budget)
        self._keep(left if by_time else 0 if ids else kept)
        if is_waited_for and not ids and not (by_time and budget):
            self._counts["steps_without_progress"] += 1
            if not by_time:
                self._block(budget)
        return ids

    def _complete(self, budget: int) -> tuple[list[Any], int]:
        """Moves tasks that fit; their ids, and what is left of the budget.

        What is wrong with a task is raised when it is the first of a step, so that those before it
        are returned.
        """
        queue, reads = self.pending_queue, self._reads
        ids: list[Any] = []
        if reads is not None:
            reads.begin_step(queue)
        try:
            while len(ids) < len(queue):
                sample_id, size = self._look(len(ids))
                if size > budget:
                    break
                self._count(size, size if reads is None else reads.land(queue[len(ids)]))
                ids.append(sample_id)
                budget -= size
        except (TypeError, ValueError, errors.OnehopError):
            if not ids:
                raise
        finally:
            self.completed_samples.extend(queue[:len(ids)])
            del queue[:len(ids)]
        return ids, budget

    def _look(self, at: int) -> tuple[Any, int]:
        """sample_id and size of a pending task."""
        if self._reads is not None:
            return self._reads.look(self.pending_queue, at)
        task = self.pending_queue[at]
        return _tasks.field_of(task, "sample_id"), _tasks.size_of(task)

    def _count(self, size: int, landed: int) -> None:
        self._counts["tasks_completed"] += 1
        self._counts["bytes_completed"] += landed
        self._counts["short_bytes"] += size - landed

    def _kept_bytes(self) -> int:
        """What earlier time steps left for the task at the head."""
        if self._kept is None or not self.pending_queue:
            return 0
        task, kept = self._kept
        return kept if task is self.pending_queue[0] else 0

    def _keep(self, left: int) -> None:
        self._kept = (self.pending_queue[0], left) if self.pending_queue and left else None

    def _block(self, budget: int) -> None:
        """The head is larger than the whole budget."""
        task = self.pending_queue[0]
        self._blocked, size = self._look(0)
        if id(task) in self._warned:
            return
        self._warned = {id(one): one for one in self.pending_queue if id(one) in self._warned}
        self._warned[id(task)] = task
        behind = len(self.pending_queue) - 1
        warnings.warn(
            f"task {_tasks.named(self._blocked)} of {size} bytes does not fit into the {budget} of "
            f"this step, and blocks {behind} behind it; give steps of at least {size} bytes",
            RuntimeWarning, stacklevel=4)

    def statistics(self) -> dict[str, Any]:
        """What was done so far.

        Returns
        -------
        dict
            bytes_enqueued: of tasks queued by `enqueue_read`. bytes_completed: of completed tasks;
            with path= those that landed, which make up the tasks' sizes with short_bytes, those
            asked for behind the end of the file. bytes_in_flight: what time steps have left for the
            head; with path= of tasks that were started and not reported. tasks_pending,
            tasks_completed, steps. steps_without_progress: those that moved nothing though a task
            was pending. seconds: the sum of elapsed_time_s; with path= the time measured in which a
            read at least was in flight. gb_per_s: bytes_completed over seconds, in 10**9; 0.0 while
            seconds is 0. blocked: the sample_id that was too large for the last step's
            max_bytes_transferred, else None.
        """
        counts, reads = self._counts, self._reads
        seconds = self._seconds if reads is None else reads.seconds()
        return {
            "bytes_enqueued": counts["bytes_enqueued"],
            "bytes_completed": counts["bytes_completed"],
            "bytes_in_flight": self._kept_bytes() if reads is None else reads.bytes_in_flight(),
            "tasks_pending": len(self.pending_queue),
            "tasks_completed": counts["tasks_completed"],
            "steps": counts["steps"],
            "steps_without_progress": counts["steps_without_progress"],
            "seconds": seconds,
            "gb_per_s": counts["bytes_completed"] / 1e9 / seconds if seconds else 0.0,
            "short_bytes": counts["short_bytes"],
            "blocked": self._blocked,
        }

    def close(self) -> None:
        """Stops reads in flight, waits until none is, and lets go of file and buffer.

        Again is no error. The lists, `buffer` and `statistics` stay; without path= there is nothing
        to close.
        """
        if self._reads is not None:
            self._reads.close()
