"""The parent's side of bench/peers.py: processes, started ahead and run one at a time, and what
their memory does meanwhile."""
from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import peers_schemes
from peers_child import MARK

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
TICK = 0.01
START_TIMEOUT = 120.0


def environment(scheme: peers_schemes.Scheme | None, extra: Mapping[str, str],
                candidate: str | None) -> dict[str, str]:
    """A child's: without anything that would move a scheme off its defaults, and with its own."""
    found = {name: value for name, value in os.environ.items()
             if name == "ONEHOP_LIBRARY" or not name.startswith(peers_schemes.TUNED)}
    paths = [os.path.join(ROOT, "python")]
    if scheme is not None and candidate and peers_schemes.uses_candidate(scheme):
        paths.insert(0, candidate)
    # What the caller names comes before the tree, but for the release candidate.
    before = found.get("PYTHONPATH", "").split(os.pathsep)
    paths = paths[:-1] + [path for path in before if path] + paths[-1:]
    return {**found, "PYTHONPATH": os.pathsep.join(paths), **extra}


def _status(process: int) -> dict[str, int]:
    """Figures of /proc/PID/status, in bytes."""
    found = {}
    with open(f"/proc/{process}/status", encoding="ascii", errors="replace") as file:
        for line in file:
            name, _, rest = line.partition(":")
            if rest.endswith(" kB\n"):
                found[name] = int(rest.split()[0]) * 1024
    return found


def system_used() -> int:
    """Bytes of memory that are not available, pinned memory included, page cache not."""
    found = {}
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, _, rest = line.partition(":")
            found[name] = int(rest.split()[0]) * 1024
    return found["MemTotal"] - found["MemAvailable"]


class HostWatch:
    """How far a process's memory, and all of the machine's, grows."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._base = (self._anonymous(), system_used())
        self.peak = [0, 0]

    def _anonymous(self) -> int:
        return _status(self._process).get("RssAnon", 0)

    def look(self) -> None:
        try:
            now = (self._anonymous(), system_used())
        except OSError:
            return  # it has ended
        self.peak = [max(peak, value - base)
                     for peak, value, base in zip(self.peak, now, self._base)]


class DeviceWatch:
    """How far the use of a GPU grows, by NVIDIA's management library, where that is installed."""

    def __init__(self, uuid: str, base: int | None = None) -> None:
        import pynvml  # type: ignore[import-not-found, import-untyped, unused-ignore]

        self._library = pynvml
        pynvml.nvmlInit()
        name = uuid if uuid.startswith("GPU-") else "GPU-" + uuid
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(name.encode())
        self.base = self._used() if base is None else base
        self.peak = 0

    def _used(self) -> int:
        return int(self._library.nvmlDeviceGetMemoryInfo(self._handle).used)

    def look(self) -> None:
        self.peak = max(self.peak, self._used() - self.base)


def device_watch(uuid: str | None, base: int | None = None) -> DeviceWatch | None:
    """None where it cannot be."""
    if not uuid:
        return None
    try:
        return DeviceWatch(uuid, base)
    except Exception:  # without the library, or without its driver: the column stays empty
        return None


class Child:
    """A process of peers_child.py.

    Parameters
    ----------
    job : mapping
        As peers_child takes it.
    env : mapping of str to str
    """

    def __init__(self, job: Mapping[str, Any], env: Mapping[str, str]) -> None:
        self.job = job
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        words = json.dumps({**job, "started": time.monotonic()})
        self._process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "peers_child.py"), words], env=dict(env),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            start_new_session=True)
        self._rest = b""
        self.failure: str | None = None

    def await_ready(self) -> None:
        """Waits until it has imported what it needs and stands still, or has failed."""
        for event in self.events(START_TIMEOUT):
            if event["event"] == "failed":
                self.failure = event["reason"]
            if event["event"] in ("ready", "failed"):
                return

    @property
    def pid(self) -> int:
        return self._process.pid

    def go_on(self) -> None:
        """Lets it leave where it waits."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, which `events` says

    def events(self, timeout: float, watches: Sequence[Any] = ()) -> Iterator[dict[str, Any]]:
        """What it says, until it says that it is done; the watches look meanwhile.

        It ends with "failed" if the process ends early or takes longer than the timeout, in seconds
        from this call.
        """
        deadline = time.monotonic() + timeout
        assert self._process.stdout is not None
        stream = self._process.stdout.fileno()
        while True:
            while b"\n" in self._rest:
                line, _, self._rest = self._rest.partition(b"\n")
                text = line.decode(errors="replace")
                if text.startswith(MARK):
                    yield json.loads(text[len(MARK):])
            if time.monotonic() > deadline:
                self.kill()
                yield {"event": "failed", "reason": f"took longer than {timeout:.0f} s"}
                return
            ready, _, _ = select.select([stream], [], [], TICK)
            for watch in watches:
                watch.look()
            if ready:
                data = os.read(stream, 1 << 16)
                if not data:
                    yield {"event": "failed", "reason": self._end()}
                    return
                self._rest += data

    def _end(self) -> str:
        """Why it ended without a word."""
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        how = f"signal {-status}" if status < 0 else f"status {status}"
        return f"ended with {how}" + (f": {lines[-1][:300]}" if lines else "")

    def kill(self) -> None:
        """Ends it, and what it started."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.close()

    def close(self) -> None:
        """Waits for its end, and so until its memory is given back."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._errors.close()
