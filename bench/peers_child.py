"""One process of bench/peers.py: a fresh interpreter that loads with one scheme, and says how.

Its one argument is the job, as JSON. It writes events to its standard output, each a line of
`MARK` and JSON, and where it says that it waits, it goes on with the next line of its standard
input: so that it starts to measure when nothing else runs, and its memory is looked at from outside
before and while it loads.
"""
from __future__ import annotations

import gc
import importlib
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import peers_files
import peers_schemes
import plain

MARK = "@peers "
SAMPLES = 3
GIB = 1 << 30
MIB = 1 << 20


def say(event: str, **fields: Any) -> None:
    """Tells the parent; on a line of its own, whatever a library has printed."""
    sys.stdout.write(f"\n{MARK}{json.dumps({'event': event, **fields})}\n")
    sys.stdout.flush()


def wait(event: str, **fields: Any) -> None:
    """Tells the parent, and goes on when it says so."""
    say(event, **fields)
    if not sys.stdin.readline():
        os._exit(1)


def words_of(error: BaseException) -> str:
    """An error as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:400]


class Device:
    """What differs between a GPU and the host."""

    def __init__(self, name: str) -> None:
        import torch

        self._torch = torch
        self.name = name
        self.is_cuda = name.startswith("cuda")

    def up(self) -> None:
        """Makes the context, with its first tensor and kernel."""
        if self.is_cuda:
            self._torch.cuda.set_device(self.name)
        self._torch.ones(8, dtype=self._torch.int64, device=self.name).sum().item()
        self.synchronize()

    def synchronize(self) -> None:
        if self.is_cuda:
            self._torch.cuda.synchronize(self.name)

    def used(self) -> int:
        """Bytes of the device that anybody uses; 0 for the host."""
        if not self.is_cuda:
            return 0
        free, total = self._torch.cuda.mem_get_info(self.name)
        return int(total - free)

    def uuid(self) -> str | None:
        """By which the parent finds it."""
        if not self.is_cuda:
            return None
        return str(getattr(self._torch.cuda.get_device_properties(self.name), "uuid", "")) or None

    def torch_memory(self) -> dict[str, int]:
        """Bytes of torch's allocator."""
        if not self.is_cuda:
            return {}
        cuda = self._torch.cuda
        return {"allocated": cuda.memory_allocated(self.name),
                "reserved": cuda.memory_reserved(self.name),
                "most_reserved": cuda.max_memory_reserved(self.name)}


def status_bytes(key: str) -> int:
    """A figure of /proc/self/status."""
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    return 0


def reset_peak() -> None:
    """Begins VmHWM anew."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def sums(tensors: list[Any]) -> list[int]:
    """Of each tensor's bytes as int64, on its device."""
    import torch

    found = [tensor.reshape(-1).view(torch.int64).sum() for tensor in tensors]
    return [int(value) for value in torch.stack(found).cpu().tolist()]


def difference(loaded: Mapping[str, Any], job: Mapping[str, Any]) -> str | None:
    """What is wrong with the tensors; None if every one is right.

    Names, shapes, types, devices and sums of all, and all bytes of a few.
    """
    import torch

    with open(os.path.join(job["folder"], peers_files.EXPECTED), encoding="utf-8") as file:
        expected = json.load(file)
    if len(loaded) != len(expected) or any(name not in loaded for name, _, _ in expected):
        return f"{len(loaded)} tensors, of {len(expected)}, or other names"
    place = torch.device(job["device"])
    for name, shape, _ in expected:
        tensor = loaded[name]
        if list(tensor.shape) != shape or tensor.dtype != torch.bfloat16:
            return f"{name} is {tensor.dtype} {list(tensor.shape)}, not bfloat16 {shape}"
        if tensor.device != place:
            return f"{name} is on {tensor.device}, not on {place}"
    for (name, _, total), found in zip(expected, sums([loaded[row[0]] for row in expected])):
        if found != total:
            return f"{name} has other bytes (sum {found}, should be {total})"
    for path in job["files"][:SAMPLES]:
        entries = plain.read_header(path)
        for entry in (entries[0], entries[-1]):
            with open(path, "rb") as file:
                file.seek(entry.offset)
                data = bytearray(file.read(entry.nbytes))
            right = torch.frombuffer(data, dtype=torch.uint8).to(place)
            if not torch.equal(loaded[entry.name].reshape(-1).view(torch.uint8), right):
                return f"{entry.name} has other bytes"
    return None


def report_of(kept: Mapping[str, Any]) -> dict[str, Any] | None:
    """onehop's own words on its load."""
    report = kept.get("report")
    if report is None:
        return None
    return {"phases": dict(report.phases), "routes": dict(report.routes),
            "seconds": report.seconds, "staging_bytes": report.staging_bytes,
            "reasons": [reason.name for reason in report.reasons]}


class Measured:
    """A scheme, made ready to be timed in this process."""

    def __init__(self, job: Mapping[str, Any], device: Device) -> None:
        self._job = job
        self._device = device
        self._scheme = peers_schemes.BY_NAME[job["scheme"]]
        self.kept: dict[str, Any] = {}

    def load(self) -> tuple[float, Any]:
        """Seconds until all tensors are usable, and the tensors."""
        begin = time.perf_counter()
        loaded = self._scheme.load(self._job["files"], self._device.name, self._job["options"],
                                   self.kept)
        self._device.synchronize()
        return time.perf_counter() - begin, loaded

    def import_package(self) -> float:
        """Seconds."""
        begin = time.perf_counter()
        module, _, name = self._scheme.module.partition(":")
        imported = importlib.import_module(module)
        if name and not hasattr(imported, name):
            raise ImportError(f"{module} has no {name}()")
        return time.perf_counter() - begin

    def version(self) -> str:
        try:
            return importlib.metadata.version(self._scheme.package)
        except importlib.metadata.PackageNotFoundError:
            module = sys.modules.get(self._scheme.package)
            return str(getattr(module, "__version__", ""))


def load_model(job: Mapping[str, Any], device: Device) -> None:
    """The first load of a process, and loads after it."""
    measured = Measured(job, device)
    seconds = measured.import_package()
    say("imported", seconds=seconds, version=measured.version())
    # The collector looks at what the load makes, not at the thousands of objects of the imports:
    # to the good of those who make an object at a time.
    gc.collect()
    gc.freeze()
    used = device.used()
    reset_peak()
    base = status_bytes("VmHWM")
    wait("before", uuid=device.uuid())
    seconds, loaded = measured.load()
    peak = status_bytes("VmHWM") - base
    say("first", seconds=seconds, rss_peak=peak, report=report_of(measured.kept),
        device_used=device.used() - used, **device.torch_memory())
    wrong = difference(loaded, job)
    say("checked", wrong=wrong)
    spent = seconds
    if wrong:
        return
    turns = 0
    while turns < job["repeat"] and spent < job["budget"]:
        del loaded
        seconds, loaded = measured.load()
        spent += seconds
        turns += 1
        say("again", seconds=seconds, report=report_of(measured.kept))
    if turns:
        say("checked", wrong=difference(loaded, job))
    if device.is_cuda and job["watch"] and seconds < 2:
        del loaded
        wait("watched_load")
        _, loaded = measured.load()
        say("watched")


def load_tiny(job: Mapping[str, Any], device: Device) -> None:
    """From the import to the tensors of a small model."""
    measured = Measured(job, device)
    wait("before", uuid=device.uuid())
    begin = time.perf_counter()
    imported = measured.import_package()
    _, loaded = measured.load()
    say("first", seconds=time.perf_counter() - begin, imported=imported)
    say("imported", seconds=imported, version=measured.version())
    say("checked", wrong=difference(loaded, job))


def measure_ceiling(job: Mapping[str, Any], device: Device) -> None:
    """What the link, or on the host a copy in memory, can do at best."""
    import torch

    nbytes = int(job["bytes"])
    wait("before")
    source = torch.empty(nbytes, dtype=torch.uint8, pin_memory=device.is_cuda)
    source.fill_(1)
    target = torch.empty(nbytes, dtype=torch.uint8, device=device.name)
    best = float("inf")
    for _ in range(6):
        device.synchronize()
        begin = time.perf_counter()
        target.copy_(source, non_blocking=True)
        device.synchronize()
        best = min(best, time.perf_counter() - begin)
    say("ceiling", source="torch", rate=nbytes / best)
    del source, target
    if device.is_cuda:
        say("ceiling", source="onehop", rate=_onehop_ceiling(device, nbytes))


def _onehop_ceiling(device: Device, nbytes: int) -> float:
    from ctypes import byref, c_double

    from onehop import _library, _runtime

    rate = c_double()
    _library.call("measure_copy", _runtime.get().handle, device.name.encode(), 16 * MIB,
                  2 * nbytes, byref(rate))
    return rate.value


def first_token(job: Mapping[str, Any], started: float, imported: float) -> None:
    """From the start of the process to the first token."""
    import peers_token

    device = Device(job["device"])
    stages = {"interpreter": imported - started, "torch": time.monotonic() - imported}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        begin = time.monotonic()
        found = work()
        stages[name] = time.monotonic() - begin
        return found

    timed("context", device.up)
    measured = Measured(job, device)
    timed("import", measured.import_package)
    _, loaded = timed("load", measured.load)
    token, digest = timed("token", lambda: peers_token.first_token(
        job["token_bytes"], loaded, device))
    total = time.monotonic() - started
    say("token", seconds=total, stages=stages, token=token, digest=digest,
        version=measured.version())
    say("checked", wrong=difference(loaded, job))


def main() -> None:
    begin = time.monotonic()
    job = json.loads(sys.argv[1])
    try:
        importlib.import_module("torch")
        if job["mode"] == "token":
            first_token(job, job["started"], begin)
        else:
            wait("ready")
            device = Device(job["device"])
            device.up()
            modes = {"load": load_model, "tiny": load_tiny, "ceiling": measure_ceiling}
            modes[job["mode"]](job, device)
        say("done")
    except (ImportError, OSError) as error:
        # A package that is not there, or that this machine cannot link.
        say("failed", reason=words_of(error), absent=isinstance(error, ImportError))
    except BaseException as error:  # whatever it is, the row says so, and the next scheme runs
        say("failed", reason=words_of(error), absent=False)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # what a library does at exit is not measured


if __name__ == "__main__":
    main()
