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
from typing import Any

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
        self.rates: dict[str, list[float]] = {}

    def elapsed(self) -> float:
        return time.monotonic() - self.begin

    def left(self) -> float:
        return float(self.arguments.budget) - self.elapsed()

    def tell(self, words: str) -> None:
        print(f"[{self.elapsed():4.0f} s] {words}", flush=True)

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
    """Notes what the link does."""
    nbytes = min(GIB, max(run.arguments.bytes, 16 << 20))
    row: dict[str, Any] = {"state": "ok"}
    for child in run.ahead([lambda: run.child(None, "ceiling", bytes=nbytes)]):
        finish(child, row, 60)
    run.found["ceilings"][when] = row
    rates = [value for name in ("torch", "onehop")
             for each in run.found["ceilings"].values() for value in [each.get(name)] if value]
    run.found["ceiling"] = max(rates, default=None)
    run.tell("ceiling: " + ", ".join(f"{name} {value / 1e9:.2f} GB/s" if name != "state" else ""
                                     for name, value in row.items() if name in ("torch", "onehop"))
             + (f" {row['reason']}" if "reason" in row else ""))
    run.save()


def new_row(scheme: Scheme, loads: peers_files.Model, **more: Any) -> dict[str, Any]:
    return {"scheme": scheme.name, "kind": scheme.kind, "state": "ok", "bytes": loads.nbytes,
            "tensors": loads.tensors, **more}


def measure_loads(run: Run, model: peers_files.Model, label: str, files: str,
                  deadline: float) -> None:
    """First and later loads of a model by every scheme.

    Parameters
    ----------
    run : Run
    model : Model
    label : str
        What the table is called.
    files : str
        What settings go by.
    deadline : float
        `run.elapsed()` from which on no round begins but the first.
    """
    rows: dict[str, dict[str, Any]] = {}
    chosen = []
    for scheme in run.schemes:
        setting = scheme.setting(files)
        if setting is None:
            continue
        row = new_row(scheme, model, model=label, setting=setting.words())
        rows[scheme.name] = row
        run.found["results"].append(row)
        reason = run.can_run(scheme)
        if reason:
            row.update(state="absent", reason=reason)
        else:
            chosen.append(scheme)
    for turn in range(run.arguments.fresh):
        cached = peers_files.warm(model.files)
        if cached < 1:
            run.tell(f"{label}: only {cached:.3f} of the files stays in the page cache")
        eligible = [scheme for scheme in chosen if rows[scheme.name]["state"] == "ok"
                    and (not turn or rows[scheme.name]["first"][0] < SLOW)]
        order = eligible[turn * 5 % max(1, len(eligible)):] + \
            eligible[:turn * 5 % max(1, len(eligible))]
        starts = [lambda scheme=scheme: run.child(
            scheme, "load", model, files, repeat=run.arguments.repeat, budget=PATIENCE,
            watch=not turn) for scheme in order]
        for child in run.ahead(starts):
            if (turn and run.elapsed() > deadline) or run.left() < -60:
                child.kill()
                continue
            row = rows[child.job["scheme"]]
            finish(child, row, run.arguments.timeout, watch_memory=not turn)
            run.tell(f"{label}: {row['scheme']}: {rate_words(row, run.found.get('ceiling'))}")
            run.save()
        if run.elapsed() > deadline:
            break
    for row in rows.values():
        if row["state"] == "ok" and not row.get("first"):
            row.update(state="failed", reason="the run's time was up")
    run.save()


def measure_tiny(run: Run, model: peers_files.Model) -> None:
    """Start-up: from the import to the tensors of a model of 1 MiB, and imports by themselves."""
    schemes = [scheme for scheme in run.schemes if not run.can_run(scheme)]
    rows = {scheme.name: new_row(scheme, model) for scheme in schemes}
    run.found["tiny"] = list(rows.values())
    for _ in range(run.arguments.fresh):
        starts = [lambda scheme=scheme: run.child(scheme, "tiny", model, "tiny")
                  for scheme in schemes if rows[scheme.name]["state"] == "ok"]
        for child in run.ahead(starts):
            finish(child, rows[child.job["scheme"]], run.arguments.timeout)
        run.save()
    for row in rows.values():
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


def measure_cold(run: Run, model: peers_files.Model) -> None:
    """One load a process with nothing in the page cache, each right after one by onehop.load."""
    partner = peers_schemes.BY_NAME["onehop.load"]
    schemes = [scheme for scheme in run.schemes
               if scheme.name != partner.name and not run.can_run(scheme)]
    rows = {scheme.name: new_row(scheme, model, beside=[]) for scheme in schemes}
    run.found["cold"] = list(rows.values())
    for turn in range(run.arguments.fresh):
        pairs = [pair for scheme in (schemes if turn % 2 == 0 else schemes[::-1])
                 if rows[scheme.name]["state"] == "ok"
                 for pair in ((partner, scheme) if turn % 2 == 0 else (scheme, partner))]
        beside: dict[str, Any] = {}
        starts = [lambda scheme=scheme: run.child(scheme, "load", model, repeat=0, budget=0,
                                                  watch=False) for scheme in pairs]
        for place, child in enumerate(run.ahead(starts)):
            peer = pairs[place - place % 2 + (1 if turn % 2 == 0 else 0)]
            row = rows[peer.name]
            is_partner = child.job["scheme"] == partner.name
            target = {"state": "ok", "bytes": model.nbytes} if is_partner else row
            finish(child, target, run.arguments.timeout, lambda: peers_files.evict(model.files))
            if is_partner:
                beside[peer.name] = target.get("first", [None])[-1]
            if place % 2 and row["state"] == "ok":
                row["beside"].append(beside.get(peer.name))
                run.tell(f"cold: {peer.name}: {rate_words(row, None)}, onehop.load beside it "
                         f"{model.nbytes / 1e9 / (row['beside'][-1] or float('inf')):.2f} GB/s")
            run.save()


def measure_token(run: Run, folder: str) -> None:
    """From a process's start to the first token."""
    import peers_token

    llama = peers_token.llama_of(run.arguments.token_bytes)
    model = peers_token.make(folder, llama)
    run.tell(f"decoder of {model.nbytes:,} bytes, {llama.layers} layers")
    run.found["models"].append(describe(model, "decoder"))
    peers_files.warm(model.files)
    for scheme in run.schemes:
        if run.can_run(scheme) or run.left() < -120:
            continue
        row = new_row(scheme, model)
        finish(run.child(scheme, "token", model, shape=list(llama)), row, run.arguments.timeout)
        run.found["token"].append(row)
        run.tell(f"first token: {row['scheme']}: " + (
            f"{row['seconds']:.2f} s, of which the load {row['stages']['load']:.2f} s"
            if row["state"] == "ok" else f"{row['state']}: {row['reason']}"))
        run.save()


def describe(model: peers_files.Model, label: str) -> dict[str, Any]:
    return {"model": label, "bytes": model.nbytes, "tensors": model.tensors,
            "files": len(model.files), "file_system": peers_files.file_system(model.folder)}


def plan(arguments: argparse.Namespace) -> list[tuple[str, str, float]]:
    """What is loaded from where: a kind of model, a folder, and a weight for the time it may take.

    The first folder takes every kind, further ones the large model only.
    """
    weights = {"large": 3.0, "small": 3.0, "tiny": 1.0}
    kinds = [kind for kind in arguments.sizes.split(",") if kind]
    for kind in kinds:
        if kind not in weights:
            raise ValueError(f"there is no size {kind!r}; there are large, small and tiny")
    first, *others = arguments.where.split(",")
    found = [(kind, first, weights[kind]) for kind in kinds]
    return found + [("large", other, 2.0) for other in others if "large" in kinds]


def measure(run: Run) -> None:
    """Everything that the command line asks for."""
    arguments = run.arguments
    parts = plan(arguments)
    measure_ceiling(run, "begin")
    for number, (kind, where, weight) in enumerate(parts):
        share = weight / sum(part[2] for part in parts[number:])
        deadline = run.elapsed() + max(0.0, run.left()) * share
        with Folder(where, arguments.keep) as folder:
            shapes = peers_files.shapes_of(kind, arguments.bytes)
            count = 1 if kind == "tiny" else arguments.files or {"large": 3, "small": 2}[kind]
            model = peers_files.make(folder, shapes, count)
            system = peers_files.file_system(folder)
            label = kind if where == parts[0][1] else f"{kind} on {system}"
            run.found["models"].append(describe(model, label))
            run.tell(f"{label}: {model.tensors:,} tensors, {model.nbytes:,} bytes in "
                     f"{len(model.files)} files on {system}")
            if kind == "tiny":
                measure_tiny(run, model)
            else:
                measure_loads(run, model, label, "tmpfs" if system == "tmpfs" else kind, deadline)
            if arguments.cold and kind == "large" and system != "tmpfs":
                cut = model._replace(files=model.files[:1])
                measure_cold(run, _only_first(cut))
    if arguments.token:
        with Folder(arguments.where.split(",")[0], arguments.keep) as folder:
            measure_token(run, folder)
    measure_ceiling(run, "end")


def _only_first(model: peers_files.Model) -> peers_files.Model:
    """A model of one file of a larger one, in a folder of its own."""
    import plain

    folder = os.path.join(model.folder, "first")
    os.makedirs(folder)
    path = os.path.join(folder, "model.safetensors")
    os.link(model.files[0], path)
    entries = plain.read_header(path)
    names = {entry.name for entry in entries}
    with open(os.path.join(model.folder, peers_files.EXPECTED), encoding="utf-8") as file:
        expected = [row for row in json.load(file) if row[0] in names]
    with open(os.path.join(folder, peers_files.EXPECTED), "w", encoding="utf-8") as file:
        json.dump(expected, file)
    return peers_files.Model(folder, [path], sum(entry.nbytes for entry in entries), len(entries))


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
