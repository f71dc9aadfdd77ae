"""What bench/peers.py measures: loads, start-ups, cold loads and first tokens, by every scheme."""
from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import peers_files
import peers_parent
import peers_schemes
from peers_parent import Child
from peers_schemes import Scheme

GIB = 1 << 30
SLOW = 1.0
"""Seconds of a first load from which on one process is enough."""

PATIENCE = 4.0
"""Seconds of loads in one process after which it loads no more."""


class Run:
    """All that is measured in one run, kept in a file as it comes.

    Attributes
    ----------
    found : dict
        What --json holds; see `docs` in peers_report.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.begin = time.monotonic()
        self.schemes = peers_schemes.choose(arguments.schemes)
        self.device = "cuda:0" if arguments.device == "cuda" else arguments.device
        self.found: dict[str, Any] = {
            "machine": machine(), "device": self.device, "ceilings": {}, "results": [],
            "tiny": [], "imports": {}, "cold": [], "token": [], "models": []}

    def elapsed(self) -> float:
        return time.monotonic() - self.begin

    def left(self) -> float:
        return float(self.arguments.budget) - self.elapsed()

    def tell(self, words: str) -> None:
        print(f"[{self.elapsed():4.0f} s] {words}", flush=True)

    def is_over(self) -> bool:
        """Whether the time is up, and the grace after it."""
        return self.left() < -60

    def save(self) -> None:
        """Rewrites the file of results, at once."""
        self.found["seconds"] = self.elapsed()
        if self.arguments.json:
            partial = self.arguments.json + ".partial"
            with open(partial, "w", encoding="utf-8") as file:
                json.dump(self.found, file, indent=1)
            os.replace(partial, self.arguments.json)

    def child(self, scheme: Scheme | None, mode: str, model: peers_files.Model | None = None,
              files: str = "large", **more: Any) -> Child:
        """A process that is to load the model with the scheme."""
        job: dict[str, Any] = {"mode": mode, "device": self.device, **more}
        extra: Mapping[str, str] = {}
        if scheme is not None and model is not None:
            setting = scheme.setting(files) or peers_schemes.Setting()
            extra = setting.environment
            job.update(scheme=scheme.name, files=model.files, folder=model.folder,
                       options=dict(setting.options))
        return Child(job, peers_parent.environment(scheme, extra, self.arguments.rc))

    def can_run(self, scheme: Scheme) -> str | None:
        """Why it cannot; None if it can."""
        if peers_schemes.uses_candidate(scheme) and not self.arguments.rc:
            return "no folder with the release candidate was given (--rc)"
        return None

    def ahead(self, children: Sequence[Any]) -> Iterator[Any]:
        """Starts processes some at a time, and gives each when it is its turn.

        Parameters
        ----------
        children : sequence of callables that start a Child
        """
        for first in range(0, len(children), self.arguments.pool):
            batch = [start() for start in children[first:first + self.arguments.pool]]
            try:
                for child in batch:
                    child.await_ready()
                while batch:
                    yield batch.pop(0)
            finally:
                for child in batch:
                    child.kill()


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    found: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "kernel": platform.release(),
                             "python": platform.python_version()}
    with open("/proc/meminfo", encoding="ascii") as file:
        found["memory"] = int(file.readline().split()[1]) * 1024
    tool = shutil.which("nvidia-smi")
    if tool:
        done = subprocess.run([tool, "--query-gpu=name,driver_version", "--format=csv,noheader"],
                              stdout=subprocess.PIPE, text=True, timeout=30, check=False)
        found["gpus"] = done.stdout.strip().splitlines()
    return found


class Listener:
    """Notes in a row what a child says.

    Parameters
    ----------
    child : Child
        Stands ready, or takes no part in that.
    row : dict
    before : callable, optional
        Called when all is ready but the load.
    watch_memory : bool
    """

    def __init__(self, child: Child, row: dict[str, Any], before: Callable[[], Any] | None,
                 watch_memory: bool) -> None:
        self._child = child
        self._row = row
        self._before = before
        self._watch_memory = watch_memory
        self._host: peers_parent.HostWatch | None = None
        self._device: peers_parent.DeviceWatch | None = None
        self._device_base: int | None = None
        self._uuid: str | None = None
        self.watches: list[Any] = []

    def on_before(self, event: dict[str, Any]) -> None:
        if self._before:
            self._before()
        self._uuid = event.get("uuid")
        if self._watch_memory:
            self._host = peers_parent.HostWatch(self._child.pid)
            self.watches.append(self._host)
            probe = peers_parent.device_watch(self._uuid)
            self._device_base = probe.base if probe else None
        self._child.go_on()

    def on_watched_load(self, event: dict[str, Any]) -> None:
        self._device = peers_parent.device_watch(self._uuid, self._device_base)
        if self._device:
            self.watches.append(self._device)
        self._child.go_on()

    def on_watched(self, event: dict[str, Any]) -> None:
        if self._device:
            self._row["device_peak"] = self._device.peak

    def on_imported(self, event: dict[str, Any]) -> None:
        self._row["version"] = event["version"]
        self._row.setdefault("imports", []).append(event["seconds"])

    def on_first(self, event: dict[str, Any]) -> None:
        self._time("first", event)
        if self._host:
            self._host.look()
            self.watches.remove(self._host)
            self._row["memory"] = {
                "anonymous": self._host.peak[0], "system": self._host.peak[1],
                **{name: value for name, value in event.items() if isinstance(value, int)}}

    def on_again(self, event: dict[str, Any]) -> None:
        self._time("again", event)

    def _time(self, kind: str, event: dict[str, Any]) -> None:
        self._row.setdefault(kind, []).append(event["seconds"])
        if event.get("report"):
            self._row.setdefault("reports", {})[kind] = event["report"]

    def on_checked(self, event: dict[str, Any]) -> None:
        self._row["checks"] = self._row.get("checks", 0) + 1
        if event["wrong"]:
            self._row.update(state="differs", reason=event["wrong"])

    def on_ceiling(self, event: dict[str, Any]) -> None:
        self._row[event["source"]] = event["rate"]

    def on_token(self, event: dict[str, Any]) -> None:
        self._row.update(event)

    def on_failed(self, event: dict[str, Any]) -> None:
        state = "absent" if event.get("absent") else "failed"
        self._row.update(state=state, reason=event["reason"])


def finish(child: Child, row: dict[str, Any], timeout: float,
           before: Callable[[], Any] | None = None, watch_memory: bool = False) -> None:
    """Runs a child to its end, and notes in the row what it says.

    Parameters
    ----------
    child : Child
    row : dict
        Its "state" is "ok" still if all went well.
    timeout : float
        Seconds, after which the child is ended.
    before, watch_memory
        As `Listener` takes them.
    """
    listener = Listener(child, row, before, watch_memory)
    if child.failure:
        listener.on_failed({"reason": child.failure})
    else:
        child.go_on()
        for event in child.events(timeout, listener.watches):
            kind = event.pop("event")
            if kind == "done":
                break
            getattr(listener, "on_" + kind)(event)
            if kind == "failed":
                break
    child.close()


def rate_words(row: Mapping[str, Any], ceiling: float | None) -> str:
    """A row's medians for a line of progress."""
    if row["state"] != "ok":
        return f"{row['state']}: {row['reason']}"
    words = []
    for kind in ("first", "again"):
        if row.get(kind):
            rate = row["bytes"] / statistics.median(row[kind])
            share = f" ({rate / ceiling:.2f})" if ceiling else ""
            words.append(f"{kind} {rate / 1e9:.2f} GB/s{share}")
    return ", ".join(words)


def measure_ceiling(run: Run, when: str) -> None:
    """Notes what the link does: the best of torch's copies and onehop's, at begin and end."""
    nbytes = min(GIB, max(run.arguments.bytes, 16 << 20))
    row: dict[str, Any] = {"state": "ok"}
    for child in run.ahead([lambda: run.child(None, "ceiling", bytes=nbytes)]):
        finish(child, row, 60)
    ceilings = run.found["ceilings"]
    ceilings[when] = row
    run.found["ceiling"] = max((each[name] for each in ceilings.values()
                                for name in ("torch", "onehop") if name in each), default=None)
    words = [f"{name} {row[name] / 1e9:.2f} GB/s" for name in ("torch", "onehop") if name in row]
    run.tell("ceiling: " + ", ".join(words + ([row["reason"]] if "reason" in row else [])))
    run.save()


def new_row(scheme: Scheme, loads: peers_files.Model, **more: Any) -> dict[str, Any]:
    return {"scheme": scheme.name, "kind": scheme.kind, "state": "ok", "bytes": loads.nbytes,
            "tensors": loads.tensors, **more}


def measure_loads(run: Run, part: Part, model: peers_files.Model, deadline: float) -> None:
    """First and later loads of a model by every scheme.

    Parameters
    ----------
    run : Run
    part : Part
    model : Model
    deadline : float
        `run.elapsed()` from which on no process is started but those of the first round.
    """
    files = "tmpfs" if peers_files.file_system(model.folder) == "tmpfs" else part.kind
    rows: dict[str, dict[str, Any]] = {}
    for scheme in run.schemes:
        setting = scheme.setting(files)
        if setting is None:
            continue
        row = new_row(scheme, model, model=part.label, setting=setting.words())
        reason = run.can_run(scheme)
        if reason:
            row.update(state="absent", reason=reason)
        rows[scheme.name] = row
        run.found["results"].append(row)
    for turn in range(run.arguments.fresh):
        cached = peers_files.warm(model.files)
        if cached < 1:
            run.tell(f"{part.label}: only {cached:.3f} of the files stays in the page cache")
        starts = [lambda scheme=scheme: run.child(
            scheme, "load", model, files, repeat=run.arguments.repeat, budget=PATIENCE,
            watch=not turn) for scheme in in_turn(run, rows, turn)]
        for child in run.ahead(starts):
            if run.is_over() or (turn and run.elapsed() > deadline):
                child.kill()
                continue
            row = rows[child.job["scheme"]]
            finish(child, row, run.arguments.timeout, watch_memory=not turn)
            run.tell(f"{part.label}: {row['scheme']}: {rate_words(row, run.found['ceiling'])}")
            run.save()
    for row in rows.values():
        if row["state"] == "ok" and not row.get("first"):
            row.update(state="failed", reason="the run's time was up")
    run.save()


def in_turn(run: Run, rows: Mapping[str, Mapping[str, Any]], turn: int) -> list[Scheme]:
    """Who loads in a round, in its order: those who can, and after the first round are not slow."""
    fit = [scheme for scheme in run.schemes if scheme.name in rows
           and rows[scheme.name]["state"] == "ok"
           and (not turn or rows[scheme.name].get("first", [SLOW])[0] < SLOW)]
    shift = turn * 5 % max(1, len(fit))
    return fit[shift:] + fit[:shift]


def measure_tiny(run: Run, model: peers_files.Model) -> None:
    """Start-up: from the import to the tensors of a model of 1 MiB, and imports by themselves."""
    schemes = [scheme for scheme in run.schemes if not run.can_run(scheme)]
    rows = {scheme.name: new_row(scheme, model) for scheme in schemes}
    run.found["tiny"] = list(rows.values())
    for _ in range(run.arguments.fresh):
        starts = [lambda scheme=scheme: run.child(scheme, "tiny", model, "tiny")
                  for scheme in schemes if rows[scheme.name]["state"] == "ok"]
        for child in run.ahead(starts):
            if run.is_over():
                child.kill()
            else:
                finish(child, rows[child.job["scheme"]], run.arguments.timeout)
        run.save()
    for row in rows.values():
        if row["state"] == "ok" and "first" not in row:
            row.update(state="failed", reason="the run's time was up")
        words = f"{1e3 * statistics.median(row['first']):.0f} ms" if row["state"] == "ok" \
            else f"{row['state']}: {row['reason']}"
        run.tell(f"1 MiB from the import on: {row['scheme']}: {words}")
    for module in ("onehop", "safetensors"):
        code = (f"import time; begin = time.perf_counter(); import {module}; "
                "print(time.perf_counter() - begin)")
        done = [subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                               stderr=subprocess.DEVNULL, timeout=60, check=False,
                               env=peers_parent.environment(None, {}, None)) for _ in range(5)]
        seconds = [float(each.stdout) for each in done if each.returncode == 0]
        if seconds:
            run.found["imports"][module] = seconds
            run.tell(f"import {module}, nothing else imported: "
                     f"{1e3 * statistics.median(seconds):.1f} ms")
    run.save()


def measure_cold(run: Run, model: peers_files.Model, deadline: float) -> None:
    """One load a process with nothing in the page cache, each next to one by onehop.load."""
    partner = peers_schemes.BY_NAME["onehop.load"]
    peers = [scheme for scheme in run.schemes if scheme is not partner and not run.can_run(scheme)]
    rows = {peer.name: new_row(peer, model) for peer in peers}
    ours: dict[str, dict[str, Any]] = {peer.name: {"state": "ok"} for peer in peers}
    run.found["cold"] = list(rows.values())
    for turn in range(run.arguments.fresh):
        # What comes first finds the disk rested, or busy; so turns change about.
        order = [(peer, scheme) for peer in peers if rows[peer.name]["state"] == "ok"
                 for scheme in (partner, peer)]
        if turn % 2:
            order.reverse()
        starts = [lambda scheme=scheme: run.child(scheme, "load", model, repeat=0, budget=0,
                                                  watch=False) for _, scheme in order]
        for (peer, scheme), child in zip(order, run.ahead(starts)):
            if run.is_over() or (turn and run.elapsed() > deadline):
                child.kill()
                continue
            row = rows[peer.name]
            finish(child, row if scheme is peer else ours[peer.name], run.arguments.timeout,
                   lambda: peers_files.evict(model.files))
            row["beside"] = ours[peer.name].get("first", [])
            if scheme is peer:
                run.tell(f"cold: {peer.name}: {rate_words(row, None)}")
            run.save()


def measure_token(run: Run, model: peers_files.Model) -> None:
    """From a process's start to the first token. No process is started ahead."""
    peers_files.warm(model.files)
    for scheme in run.schemes:
        if run.can_run(scheme) or run.is_over():
            continue
        row = new_row(scheme, model)
        finish(run.child(scheme, "token", model, token_bytes=run.arguments.token_bytes), row,
               run.arguments.timeout)
        run.found["token"].append(row)
        run.tell(f"first token: {row['scheme']}: " + (
            f"{row['seconds']:.2f} s, of which the load {row['stages']['load']:.2f} s"
            if row["state"] == "ok" else f"{row['state']}: {row['reason']}"))
        run.save()


WEIGHTS = {"large": 3.0, "small": 3.0, "tiny": 1.0, "cold": 4.0, "token": 3.0}
"""What can be measured, and for how much of the time."""


class Part(NamedTuple):
    """What is loaded from where."""

    kind: str
    where: str
    label: str


def plan(arguments: argparse.Namespace) -> list[Part]:
    """The parts of a run: every kind from the first folder, the large model from further ones.

    Raises
    ------
    ValueError
        There is no such kind.
    """
    kinds = [kind for kind in arguments.sizes.split(",") if kind]
    for kind in kinds:
        if kind not in ("large", "small", "tiny"):
            raise ValueError(f"there is no size {kind!r}; there are large, small and tiny")
    first, *others = arguments.where.split(",")
    parts = [Part(kind, first, kind) for kind in kinds]
    parts += [Part("large", other, f"large in {other}") for other in others if "large" in kinds]
    return parts + [Part(kind, first, kind) for kind in ("cold", "token")
                    if getattr(arguments, kind)]


def make_model(run: Run, part: Part, folder: str) -> peers_files.Model:
    """Writes the part's model, and says so."""
    import peers_token

    arguments = run.arguments
    if part.kind == "token":
        model = peers_token.make(folder, peers_token.llama_of(arguments.token_bytes))
    elif part.kind == "cold":
        shapes = peers_files.shapes_of("large", arguments.bytes)
        model = peers_files.make(folder, shapes[:-(-len(shapes) // 3)], 1)
    else:
        count = 1 if part.kind == "tiny" else arguments.files or {"large": 3, "small": 2}[part.kind]
        model = peers_files.make(folder, peers_files.shapes_of(part.kind, arguments.bytes), count)
    system = peers_files.file_system(folder)
    run.found["models"].append({"model": part.label, "bytes": model.nbytes,
                                "tensors": model.tensors, "files": len(model.files),
                                "file_system": system})
    run.tell(f"{part.label}: {model.tensors:,} tensors, {model.nbytes:,} bytes in "
             f"{len(model.files)} files on {system}")
    return model


def measure(run: Run) -> None:
    """Everything that the command line asks for."""
    parts = plan(run.arguments)
    measure_ceiling(run, "begin")
    for number, part in enumerate(parts):
        weights = [WEIGHTS[each.kind] for each in parts[number:]]
        deadline = run.elapsed() + max(0.0, run.left()) * weights[0] / sum(weights)
        with Folder(part.where, run.arguments.keep) as folder:
            model = make_model(run, part, folder)
            if part.kind == "tiny":
                measure_tiny(run, model)
            elif part.kind == "cold":
                measure_cold(run, model, deadline)
            elif part.kind == "token":
                measure_token(run, model)
            else:
                measure_loads(run, part, model, deadline)
    measure_ceiling(run, "end")


class Folder:
    """A folder for a model's files, taken away at the end."""

    def __init__(self, where: str, keep: bool) -> None:
        self._where = where
        self._keep = keep

    def __enter__(self) -> str:
        self.path = tempfile.mkdtemp(prefix="onehop-peers-", dir=self._where)
        return self.path

    def __exit__(self, *_: object) -> None:
        if not self._keep:
            shutil.rmtree(self.path, ignore_errors=True)
