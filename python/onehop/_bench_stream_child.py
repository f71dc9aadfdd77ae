"""What runs in a scheme's process, for `onehop bench stream`.

Batches are checked first: which samples they hold, and that the words of each add up. Rates come
from a loop that takes batches as fast as it can; the stall from one whose every batch keeps it busy
for so long that it takes 80 % of that rate. That one is busy as a training loop is: its GPU runs a
kernel of that length behind the batch and it waits for the kernel; on the host it sleeps. It holds
the interpreter's lock in neither, which threads that make batches need.
"""
from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from . import _bench_stream_schemes as schemes
from . import errors

MARK = "@stream "
BIN_S = 0.1
_CHECKED_BYTES = 256 << 20
_PR_SET_TIMERSLACK = 29

Row = dict[str, Any]


# ---- what the processes use


def _tree(pid: int) -> list[int]:
    """The process and those under it."""
    found = [pid]
    for task in _listed(f"/proc/{pid}/task"):
        with suppress(OSError), open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
            for child in file.read().split():
                found += _tree(int(child))
    return found


def _listed(folder: str) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)
    return []


def _fields(path: str) -> dict[str, int]:
    """The `name: number` lines of a file of /proc."""
    with suppress(OSError), open(path, encoding="ascii") as file:
        lines = (line.split() for line in file)
        return {words[0]: int(words[1]) for words in lines
                if len(words) > 1 and words[1].isdecimal()}
    return {}


def _usage() -> dict[str, float]:
    """What this process and its children have used: CPU seconds, reads and writes, switches."""
    found = {"cpu_s": 0.0, "calls": 0.0, "switches": 0.0}
    for pid in _tree(os.getpid()):
        with suppress(OSError), open(f"/proc/{pid}/stat", encoding="ascii") as file:
            words = file.read().rpartition(")")[2].split()
            found["cpu_s"] += (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
        counted = _fields(f"/proc/{pid}/io")
        found["calls"] += counted.get("syscr:", 0) + counted.get("syscw:", 0)
        for task in _listed(f"/proc/{pid}/task"):
            switches = _fields(f"/proc/{pid}/task/{task}/status")
            found["switches"] += (switches.get("voluntary_ctxt_switches:", 0)
                                  + switches.get("nonvoluntary_ctxt_switches:", 0))
    return found


# ---- the samples


def _rows(batch: Any) -> Sequence[Any]:
    return batch if isinstance(batch, (list, tuple)) else batch.unbind()


def _nbytes(batch: Any) -> int:
    if isinstance(batch, (list, tuple)):
        return sum(row.numel() for row in batch)
    return int(batch.numel())


def check(batches: Iterator[Any], job: Any, limit: float, mixes_epochs: bool = False) -> int:
    """Looks at the first batches.

    Parameters
    ----------
    batches : iterator
    job : Job
    limit : float
        Bytes after which it ends.
    mixes_epochs : bool
        Whether a batch may hold a sample twice.

    Returns
    -------
    int
        Bytes of the batches.

    Raises
    ------
    Mismatch
        A sample's words are not what was written, or a batch has not the samples that it should.
    """
    import torch

    checked = 0
    for batch in batches:
        rows = [row.contiguous().view(torch.int64) for row in _rows(batch)]
        indices = torch.stack([row[0] for row in rows]).cpu().numpy()
        sums = torch.stack([row.sum() for row in rows]).cpu().numpy()
        twice = len(rows) - len(set(indices.tolist()))
        if len(rows) != job.batch or (twice and not mixes_epochs):
            raise errors.Mismatch(f"a batch holds {len(rows)} samples, {twice} of them twice", "")
        if (sums != job.data.sums[indices]).any():
            raise errors.Mismatch("a sample's words do not add up", "")
        checked += _nbytes(batch)
        if checked >= limit:
            break
    return checked


def _without_end(epochs: schemes.Epochs) -> schemes.Batches:
    """The batches of all epochs."""
    for epoch in epochs:
        first = next(epoch, None)
        if first is None:
            raise errors.InvalidArgument(
                "an epoch has no batch", "give more bytes, or a smaller batch: each of "
                f"{schemes.WORKERS} worker processes may have to fill one of its own")
        yield first
        del first
        yield from epoch


# ---- consumers


def _nothing() -> None:
    pass


def synchronizer(device: str) -> Callable[[], None]:
    """What waits for all of the device's work."""
    import torch

    synchronize: Any = torch.cuda.synchronize
    return synchronize if device.startswith("cuda") else _nothing


class _HostWork:
    """A consumer that is busy for so many seconds: it sleeps."""

    def __init__(self) -> None:
        # A sleep may otherwise last 50 us longer, which is much of the time of a small batch.
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)

    def __call__(self, seconds: float) -> None:
        time.sleep(seconds)


class _CudaWork:
    """A consumer whose GPU runs a kernel for so many seconds behind what is queued already."""

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        self._event = self._torch.cuda.Event()
        few, many = 200_000, 2_000_000
        self._run(many)
        quick, slow = self._seconds_of(few), self._seconds_of(many)
        self._cycles_a_second = (many - few) / (slow - quick)
        self._start_s = quick - few / self._cycles_a_second

    def _run(self, cycles: int) -> None:
        self._torch.cuda._sleep(cycles)
        self._event.record()
        self._event.synchronize()

    def _seconds_of(self, cycles: int) -> float:
        begin = time.perf_counter()
        for _ in range(20):
            self._run(cycles)
        return (time.perf_counter() - begin) / 20

    def __call__(self, seconds: float) -> None:
        self._run(max(1, int((seconds - self._start_s) * self._cycles_a_second)))


def _work(device: str) -> Callable[[float], None]:
    return _CudaWork() if device.startswith("cuda") else _HostWork()


def _spread(bins: list[float], begin: float, end: float, amount: float) -> None:
    """Adds an amount, evenly over a time, to what bins hold of it a second."""
    for number in range(max(0, int(begin / BIN_S)), min(int(end / BIN_S), len(bins) - 1) + 1):
        inside = min(end, (number + 1) * BIN_S) - max(begin, number * BIN_S)
        bins[number] += amount * max(0.0, inside) / max(end - begin, 1e-9) / BIN_S


class Clock:
    """Takes batches, and notes when they came and how long each was waited for.

    Parameters
    ----------
    batches : iterator
    device : str
    waited : callable, optional
        Seconds that a scheme says its consumer waited, since it began.
    """

    def __init__(self, batches: Iterator[Any], device: str,
                 waited: Callable[[], float] | None = None) -> None:
        self._batches = batches
        self._kept: list[Any] = []
        self._wait_for_device = synchronizer(device)
        self._waited = waited
        self._work: Callable[[float], None] | None = None
        self._bytes_per_s = 1.0
        self.stamps: list[tuple[float, float, int, int]] = []
        self.waits: list[float] = []

    def slow_down(self, bytes_per_s: float, work: Callable[[float], None]) -> None:
        """Each batch is to be followed by work, as long as it takes at that rate."""
        self._bytes_per_s, self._work = bytes_per_s, work

    def run(self, seconds: float) -> float:
        """For so long; returns the seconds, the device's work included."""
        self._wait_for_device()
        self._note_wait()
        begin = now = time.perf_counter()
        while now - begin < seconds:
            batch = next(self._batches)
            came = time.perf_counter()
            self._kept = [*self._kept[-2:], batch]
            nbytes = _nbytes(batch)
            self.stamps.append((came - begin, came - now, nbytes, len(batch)))
            if came - begin >= len(self.waits) * BIN_S:
                self._note_wait()
            if self._work:
                self._work(max(0.0, came + nbytes / self._bytes_per_s - time.perf_counter()))
            now = time.perf_counter()
        self._wait_for_device()
        self._note_wait()
        return time.perf_counter() - begin

    def _note_wait(self) -> None:
        if self._waited:
            self.waits.append(self._waited())

    @property
    def in_next_s(self) -> float:
        return sum(stamp[1] for stamp in self.stamps)

    @property
    def waited_s(self) -> float | None:
        """Of that, what the scheme says was waiting; None: it does not say."""
        return self.waits[-1] - self.waits[0] if self.waits else None

    def timeline(self) -> list[tuple[float, float]]:
        """GB/s and share of time in `next`, in bins of a tenth of a second.

        A batch's bytes count evenly for the time since the one before it came.
        """
        if not self.stamps:
            return []
        rates, waits = ([0.0] * (int(self.stamps[-1][0] / BIN_S) + 1) for _ in range(2))
        before = 0.0
        for came, waited, nbytes, _ in self.stamps:
            _spread(rates, before, came, nbytes / 1e9)
            _spread(waits, came - waited, came, waited)
            before = came
        return [(round(rate, 3), round(min(wait, 1.0), 4))
                for rate, wait in zip(rates[:-1], waits)]

    def waiting(self) -> list[float]:
        """Share of time that was waiting, in such bins."""
        return [round(min((after - before) / BIN_S, 1.0), 4)
                for before, after in zip(self.waits, self.waits[1:-1])]


# ---- the process


def job_of(told: Mapping[str, Any]) -> schemes.Job:
    """The job that a process is told."""
    import numpy as np

    from . import _bench_stream_data as data_of

    table = np.load(told["table"])
    data = data_of.Data(told["shards"], told["files"], table["sizes"], table["sums"])
    return schemes.Job(data, told["device"], told["batch"], told["shuffle"], told["verify"])


def _waited(epochs: schemes.Epochs) -> Callable[[], float] | None:
    """What tells how long a scheme's consumer waited."""
    if not isinstance(epochs, schemes.Onehop):
        return None
    counted = epochs
    return lambda: float(counted.statistics()["stall_s"])


def _measure(scheme: schemes.Scheme, job: schemes.Job, seconds: float) -> Row:
    """A scheme's figures from a warm page cache."""
    begin = time.perf_counter()
    epochs = scheme.run(job)
    batches = _without_end(epochs)
    first = next(batches)
    found: Row = {"first_batch_s": time.perf_counter() - begin, "copies": scheme.copies}
    del first
    check(batches, job, min(_CHECKED_BYTES, job.data.nbytes), scheme.mixes_epochs)
    Clock(batches, job.device).run(1.0)
    clock, before = Clock(batches, job.device), _usage()
    taken_s = clock.run(seconds)
    used = {name: value - before[name] for name, value in _usage().items()}
    nbytes = sum(stamp[2] for stamp in clock.stamps)
    samples = sum(stamp[3] for stamp in clock.stamps)
    found.update(gb_per_s=nbytes / taken_s / 1e9, samples_per_s=samples / taken_s,
                 cpu_s_per_gb=used["cpu_s"] / nbytes * 1e9,
                 calls_per_sample=used["calls"] / samples,
                 switches_per_sample=used["switches"] / samples, timeline=clock.timeline())
    slow = Clock(batches, job.device, _waited(epochs))
    slow.slow_down(0.8 * nbytes / taken_s, _work(job.device))
    slow_s = slow.run(seconds)
    taken = sum(stamp[2] for stamp in slow.stamps)
    found.update(stall=slow.in_next_s / slow_s, stall_timeline=slow.timeline(),
                 reached=taken / slow_s / (nbytes / taken_s))
    if slow.waited_s is not None:
        found.update(waiting=slow.waited_s / slow_s, waiting_timeline=slow.waiting())
    return found


def _answer(found: Row) -> None:
    print("\n" + MARK + json.dumps(found), flush=True)


def _cold(scheme: schemes.Scheme, job: schemes.Job) -> None:
    """Answers each line of the input: "go" by an epoch from cold files, timed; "check" by one that
    is verified."""
    from . import _bench_stream_disk as disk

    os.sync()  # what was just prepared: pages that are still to be written cannot be dropped
    epochs, wait = scheme.run(job), synchronizer(job.device)
    paths = scheme.reads(job)
    for _ in next(epochs):
        pass
    _rest(epochs)
    _answer({"ready": True})
    for line in sys.stdin:
        kept = disk.drop(paths)
        wait()
        begin = time.perf_counter()
        epoch = next(epochs)
        if line.strip() == "check":
            nbytes = check(epoch, job, float("inf"), scheme.mixes_epochs)
        else:
            nbytes = sum(map(_nbytes, epoch))
            wait()
        seconds = time.perf_counter() - begin
        _answer({"seconds": seconds, "bytes": nbytes, "kept": kept, "read": _rest(epochs)})


def _rest(epochs: schemes.Epochs) -> int | None:
    """Lets nothing be read ahead for the epoch after; bytes that were read, if the scheme tells."""
    if not isinstance(epochs, schemes.Onehop):
        return None
    read = int(epochs.statistics()["read_bytes"])
    epochs.begin_anew()
    return read


def main(words: str) -> int:
    """Runs one scheme and prints what came out."""
    told = json.loads(words)
    scheme = next(each for each in schemes.SCHEMES if each.name == told["scheme"])
    missing = scheme.missing()
    if missing:
        _answer({"missing": f"{missing} is not installed"})
        return 0
    job = job_of(told)
    try:
        scheme.prepare(job)
        if told.get("cold"):
            _cold(scheme, job)
        else:
            _answer(_measure(scheme, job, told["seconds"]))
    except Exception as error:
        last = str(error).strip().rpartition("\n")[2]
        _answer({"missing": f"{type(error).__name__}: {last}"[:300]})
    sys.stdout.flush()
    os._exit(0)  # without waiting for the workers of a loader that never ends
