"""`onehop bench stream --cold`: an epoch whose shards, or files, are not in the page cache.

Each scheme has a process of its own, which has gone through an epoch already; so what is timed is
neither its start nor that of its workers. Before each timed epoch the process drops from the page
cache what the scheme reads. The disk's best plain rate comes from reads of the same shards, which
take turns with onehop's epochs.
"""
from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from . import _bench_stream_disk as disk
from ._bench_stream_child import MARK, Row

TIMEOUT_S = 300
_PEER_EPOCHS = 2

Told = tuple[Mapping[str, Any], Mapping[str, str]]
"""What a process is told, and its environment variables."""


class Failed(Exception):
    """A scheme's process gave no answer; says why."""


class Process:
    """A scheme that waits for "go" and "check".

    Parameters
    ----------
    job : mapping
        What the process is told.
    more : mapping
        Of environment variables.
    """

    def __init__(self, job: Mapping[str, Any], more: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "onehop", "bench-stream", "--child",
                   json.dumps({**job, "cold": True})]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env={**os.environ, **more}, start_new_session=True)

    def answer(self) -> Row:
        """The next answer; raises Failed."""
        output: Any = self._process.stdout
        late = threading.Timer(TIMEOUT_S, self._kill)
        late.start()
        try:
            for line in output:
                if line.startswith(MARK):
                    found: Row = json.loads(line.removeprefix(MARK))
                    if "missing" in found:
                        raise Failed(found["missing"])
                    return found
        finally:
            late.cancel()
        raise Failed("it did not end in time, or ended early")

    def ask(self, word: str) -> Row:
        """Says a word; the answer."""
        given: Any = self._process.stdin
        try:
            given.write(word + "\n")
            given.flush()
        except BrokenPipeError:
            raise Failed("it ended early") from None
        return self.answer()

    def _kill(self) -> None:
        """Ends the process, and what it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._kill()


class Contest:
    """Epochs of onehop, and plain readings of the same shards, in turn.

    Each round has one of each; who begins moves on from round to round, since a disk may be slower
    to whoever comes after a busy time. The best plain way is that whose median is.

    Parameters
    ----------
    jobs : mapping
        By label: what a process is told, and its environment variables.
    shards : sequence of str
    rounds : int
    """

    def __init__(self, jobs: Mapping[str, Told], shards: Sequence[str], rounds: int) -> None:
        self.rows: list[Row] = []
        self._processes: dict[str, Process] = {}
        self._epochs: dict[str, list[Row]] = {label: [] for label in jobs}
        ways = disk.usable_ways(shards[0])
        rates: dict[disk.Way, list[float]] = {way: [] for way in ways}
        with ExitStack() as stack:
            for label, told in jobs.items():
                self._processes[label] = stack.enter_context(Process(*told))
                self._listen(label)
            for turn in range(rounds):
                members: list[str | disk.Way] = [*self._processes, *ways]
                at = 2 * turn % len(members)
                for member in members[at:] + members[:at]:
                    if isinstance(member, str):
                        self._listen(member, "go")
                    else:
                        rates[member].append(_plain_rate(shards, member))
            for label in list(self._processes):
                self._listen(label, "check")
        self.plain = {way.label: statistics.median(found) for way, found in rates.items()}
        best = max(rates.values(), key=statistics.median)
        self.rows += [_beside(label, self._epochs[label], best) for label in self._processes]

    def _listen(self, label: str, word: str | None = None) -> None:
        """Keeps what a process answers; one that fails has its row and is out."""
        process = self._processes[label]
        try:
            found = process.ask(word) if word else process.answer()
            if word == "go":
                self._epochs[label].append(found)
        except Failed as error:
            self.rows.append({"label": label, "missing": str(error)})
            del self._processes[label]


def _plain_rate(shards: Sequence[str], way: disk.Way) -> float:
    """GB/s, from a cold page cache."""
    disk.drop(shards)
    return sum(map(os.path.getsize, shards)) / disk.read(shards, way) / 1e9


def _row(label: str, epochs: Sequence[Row]) -> Row:
    """Rates of a scheme's epochs; says so if they were not cold."""
    rates = [epoch["bytes"] / epoch["seconds"] / 1e9 for epoch in epochs]
    kept = max(epoch["kept"] for epoch in epochs)
    if kept:
        print(f"onehop bench stream: {kept} bytes stayed in the page cache before {label}: its "
              "rate is not that of a cold file", file=sys.stderr)
    return {"label": label, "gb_per_s": statistics.median(rates), "rates": rates, "kept": kept}


def _beside(label: str, epochs: Sequence[Row], plain: Sequence[float]) -> Row:
    """The same beside the plain readings of the same rounds."""
    row = _row(label, epochs)
    ratios = [rate / other for rate, other in zip(row["rates"], plain)]
    return {**row, "plain": statistics.median(plain), "ratios": ratios,
            "ratio": statistics.median(ratios),
            "read": statistics.median(epoch["read"] / epoch["bytes"] for epoch in epochs)}


def peer(told: Told, label: str) -> Row:
    """A scheme's cold epochs: gb_per_s (median), rates, kept (bytes that stayed in the page cache,
    at most); or missing: why there are none."""
    with Process(*told) as process:
        try:
            process.answer()
            epochs = [process.ask("go") for _ in range(_PEER_EPOCHS)]
            process.ask("check")
        except Failed as error:
            return {"label": label, "missing": str(error)}
    return _row(label, epochs)


def line(row: Row, size: str) -> str:
    """A scheme's figures in words."""
    if "missing" in row:
        return f"{size:>8}  {row['label']:<28} -  {row['missing']}"
    words = f"{size:>8}  {row['label']:<28} {row['gb_per_s']:7.2f} GB/s cold"
    if "ratio" in row:
        words += (f"  {row['ratio']:.3f} ({min(row['ratios']):.3f} to {max(row['ratios']):.3f}) of "
                  f"plain reads' {row['plain']:.2f}; read {row['read']:.3f} bytes a byte")
    return words
