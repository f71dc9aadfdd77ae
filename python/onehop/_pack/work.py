"""The processes that write shards: each is given one shard's jobs at a time.

Workers are processes and not threads, since the logs of robots are parsed in Python. They die with
the one that started them, whatever ends it, and hold its lock until then.
"""
from __future__ import annotations

import ctypes
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from typing import IO, Any, NamedTuple

from .. import errors
from ..shards import Sample, TarShard
from .input import Item, Job
from .join import join_small
from .notes import Notes
from .rows import in_order

_LENGTH = Struct("<Q")
_TURN_S = 0.1
_PR_SET_PDEATHSIG = 1


class Settings(NamedTuple):
    """How shards are written; all of it decides on their bytes, but for `verify`."""

    format: str
    align: str
    pad: str
    alignment: int
    mtime: int
    chunk_bytes: int
    apart: frozenset[str]
    join_below: int
    verify: bool


class Task(NamedTuple):
    """A shard to be."""

    number: int
    path: str
    jobs: Sequence[Job]


# ---- one shard ----------------------------------------------------------------------------------


def _samples(task: Task, settings: Settings, notes: Notes) -> Iterator[Sample]:
    for job in task.jobs:
        items: Iterable[Item] = job.items(notes)
        if job.log:
            items = in_order(items, notes, chunk_bytes=settings.chunk_bytes, apart=settings.apart)
        for sample in items:
            assert isinstance(sample, Sample)  # only logs have rows
            if sample.parts:
                yield sample
            else:
                notes.skipped(sample.key, "it has no parts")


def _fields(task: Task, settings: Settings) -> set[str]:
    return {part.field for sample in _samples(task, settings, Notes()) for part in sample.parts}


def _open(task: Task, settings: Settings) -> Any:
    if settings.format == "arrow":
        from .arrow import ArrowShard

        return ArrowShard(task.path, _fields(task, settings))
    return TarShard(task.path, settings.align, settings.pad, settings.alignment, settings.mtime)


def write_shard(task: Task, settings: Settings, tell: Callable[[int], None]) -> dict[str, Any]:
    """Writes, publishes and, if it is asked for, checks a shard.

    Parameters
    ----------
    task : Task
    settings : Settings
    tell : callable
        Called now and then with the bytes of payloads so far.

    Returns
    -------
    dict
        ``samples``, ``members``, ``payload_bytes``, ``shard_bytes`` and ``notes``.
    """
    notes, told = Notes(), time.monotonic()
    with _open(task, settings) as shard:
        for sample in _samples(task, settings, notes):
            if settings.join_below:
                sample = join_small(sample, settings.join_below, notes)
            shard.add(sample)
            if sample.stream is not None:
                notes.packed(sample.stream, sample.rows,
                             sum(part.nbytes() for part in sample.parts if not part.joined))
            if time.monotonic() - told > _TURN_S:
                tell(shard.info().payload_bytes)
                told = time.monotonic()
        info = shard.finish()
    if settings.verify and settings.format == "tar":
        from .check import check_shard

        check_shard(task.path)
    return {"samples": info.samples, "members": info.members, "payload_bytes": info.payload_bytes,
            "shard_bytes": info.shard_bytes, "notes": notes.as_json()}


# ---- a worker's side ----------------------------------------------------------------------------


def _send(pipe: IO[bytes], message: object) -> None:
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> Any:
    """The next message; None at the end."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    size = _LENGTH.unpack(head)[0]
    data = pipe.read(size)
    return pickle.loads(data) if len(data) == size else None


def as_ours(error: Exception) -> errors.OnehopError:
    """Any failure as one of ours, which can be sent."""
    if isinstance(error, errors.OnehopError):
        return error
    if isinstance(error, MemoryError):
        return errors.NoMemory("no memory for a record of an input", "use fewer --jobs")
    if isinstance(error, OSError):
        return errors.IOFailed(str(error), "see that the file can be read", error.errno)
    return errors.Malformed(f"an input cannot be read ({type(error).__name__}: {error})",
                            "see that it is whole")


def serve(parent: int) -> None:
    """A worker's life: tasks come by standard input, reports go by standard output.

    Parameters
    ----------
    parent : int
        Its process id; the worker dies with it.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to answer
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what others print is no reply
    requests = sys.stdin.buffer
    settings = _receive(requests)
    while (task := _receive(requests)) is not None:
        try:
            report = write_shard(task, settings, lambda done: _send(replies, ("bytes", done)))
            _send(replies, ("done", report))
        except Exception as error:  # whatever it is, the parent says it
            _send(replies, ("failed", as_ours(error)))


# ---- the parent's side --------------------------------------------------------------------------


_CODE = "import sys; sys.path.insert(0, sys.argv[1]); from onehop._pack.work import serve; " \
        "serve(int(sys.argv[2]))"


def _start(lock: int) -> subprocess.Popen[bytes]:
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return subprocess.Popen([sys.executable, "-c", _CODE, package, str(os.getpid())],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(lock,))


class Workers:
    """Some worker processes. As a context manager they are gone at the end.

    Parameters
    ----------
    count : int
    settings : Settings
    lock : int
        A file descriptor that they keep open.
    """

    def __init__(self, count: int, settings: Settings, lock: int) -> None:
        self._settings = settings
        # By the thread that stays: Linux ends a child with the thread that made it.
        self._processes = [_start(lock) for _ in range(count)]
        self._events: queue.SimpleQueue[tuple[Task | None, str, Any]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for thread in self._threads:
            thread.join()
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except BrokenPipeError:
                        pass

    def run(self, tasks: Iterable[Task], on_turn: Callable[[dict[int, int]], None]
            ) -> Iterator[tuple[Task, dict[str, Any]]]:
        """Hands out the tasks in order, and gives each with its report as it is done.

        Parameters
        ----------
        tasks : iterable of Task
        on_turn : callable
            Called often, with the bytes of the shards that are being written, by number.

        Raises
        ------
        OnehopError
            Of the first that fails.
        """
        waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
        for task in tasks:
            waiting.put(task)
        left = waiting.qsize()
        self._threads = [threading.Thread(target=self._drive, args=(process, waiting), daemon=True)
                         for process in self._processes]
        for thread in self._threads:
            thread.start()
        written: dict[int, int] = {}
        while left:
            on_turn(written)
            try:
                done, kind, value = self._events.get(timeout=_TURN_S)
            except queue.Empty:
                continue
            if kind == "failed" or done is None:
                raise value
            written[done.number] = value if kind == "bytes" else value["payload_bytes"]
            if kind == "done":
                left -= 1
                written.pop(done.number)
                yield done, value

    def _drive(self, process: subprocess.Popen[bytes], waiting: queue.SimpleQueue[Task]) -> None:
        """One worker's thread: gives it a task, and passes on what it says."""
        assert process.stdin is not None and process.stdout is not None
        task = None
        try:
            _send(process.stdin, self._settings)
            while True:
                try:
                    task = waiting.get_nowait()
                except queue.Empty:
                    return
                _send(process.stdin, task)
                kind = "bytes"
                while kind == "bytes":
                    reply = _receive(process.stdout)
                    if reply is None:
                        raise EOFError
                    kind, value = reply
                    self._events.put((task, kind, value))
        except (OSError, EOFError, ValueError):
            process.wait()
            self._events.put((task, "failed", errors.IOFailed(
                f"a process that packs ended with {process.returncode}",
                "see what it printed, or give it more memory by fewer --jobs; the same command "
                "goes on where it was")))
