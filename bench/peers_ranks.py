#!/usr/bin/env python3
"""onehop beside other loaders with a rank for each of several GPUs of one machine.

    bench/peers_ranks.py --ranks 2 --bytes 12G --json ranks.json
    bench/peers_ranks.py --device cpu --bytes 64M

Two parts. In "part", each rank loads its tensor-parallel part: every second tensor is split by its
rows, the others by their columns. In "whole", every rank gets every tensor. The group (NCCL for
GPUs, else gloo) is up before the clock starts, with one small collective of each kind done, since a
communicator takes seconds to make and a server needs one anyway.

"first" is the first load of fresh processes, "again" one after it in the same processes, with
torch's allocator kept: from the moment that the first rank begins until the last one has all its
tensors and its device is synchronised; medians. Rates are bytes of the files over that time, as
shares of the ceiling: the sum of what all links reach at once with copies of pinned memory. Files
are in the page cache. Sums of all tensors and all bytes of some are compared with the files' after
the first and the last load of each process: a scheme that differs, fails or is absent is named with
the reason.
"""
from __future__ import annotations

import argparse
import functools
import gc
import importlib
import importlib.metadata
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias

import peers_child
import peers_files
import peers_parent
import peers_run
import peers_schemes
import plain
from peers import GIB, size
from peers_schemes import MIB, Setting

COLUMNS = 8192
EXPECTED = "parts.json"
PLAN = {"*[02468].mlp.*": 0, "*": 1}
SLOW = 1.5
"""Seconds of a first load from which on one set of processes is enough."""

Loaded: TypeAlias = dict[str, Any]


class Rank(NamedTuple):
    """Where a scheme loads.

    Attributes
    ----------
    group : torch.distributed.ProcessGroup
    rank, size : int
    device : str
    files : list of str
    """

    group: Any
    rank: int
    size: int
    device: str
    files: list[str]

    @property
    def folder(self) -> str:
        return os.path.dirname(self.files[0])


def split_dim(name: str) -> int:
    """The dimension by which a tensor is split."""
    return 0 if int(name.split(".")[2]) % 2 == 0 else 1


def part_of(tensor: Any, name: str, rank: int, ranks: int) -> Any:
    """A view of a rank's part of a tensor or array."""
    dim = split_dim(name)
    extent = tensor.shape[dim] // ranks
    begin = rank * extent
    return tensor[begin:begin + extent] if dim == 0 else tensor[:, begin:begin + extent]


# ---- schemes: load(rank, options) gives tensors by name


def onehop_part(rank: Rank, options: Mapping[str, Any]) -> Loaded:
    import onehop

    return onehop.load(rank.folder, rank.device, tp=(rank.rank, rank.size), tp_plan=PLAN)


def onehop_group(rank: Rank, options: Mapping[str, Any]) -> Loaded:
    import onehop

    return onehop.load(rank.folder, rank.device, process_group=rank.group)


def onehop_alone(rank: Rank, options: Mapping[str, Any]) -> Loaded:
    import onehop

    return onehop.load(rank.folder, rank.device)


def instanttensor_group(rank: Rank, options: Mapping[str, Any]) -> Loaded:
    import instanttensor as package

    given = dict(options)
    if "backend" in given:
        given["backend"] = package._impl.parse_backend(given["backend"])
    with package.safe_open(list(rank.files), framework="pt", device=rank.device,
                           process_group=rank.group, **given) as file:
        return dict(file.tensors())


def instanttensor_part(rank: Rank, options: Mapping[str, Any]) -> Loaded:
    """It knows no parts: they are copied out of the whole tensors, one by one."""
    import instanttensor as package

    given = dict(options)
    if "backend" in given:
        given["backend"] = package._impl.parse_backend(given["backend"])
    with package.safe_open(list(rank.files), framework="pt", device=rank.device,
                           process_group=rank.group, **given) as file:
        return {name: part_of(tensor, name, rank.rank, rank.size).clone()
                for name, tensor in file.tensors()}


def _fastsafetensors(rank: Rank, options: Mapping[str, Any],
                     get: Callable[[Any, str], Any]) -> Loaded:
    from fastsafetensors import SafeTensorsFileLoader

    loader = SafeTensorsFileLoader(rank.group, rank.device, **options)
    loader.add_filenames({number: list(rank.files[number::rank.size])
                          for number in range(rank.size)})
    buffers = loader.copy_files_to_device()
    loaded = {name: get(buffers, name) for name in loader.get_keys()}
    buffers.close()
    loader.close()
    return loaded


def fastsafetensors_group(rank: Rank, options: Mapping[str, Any]) -> Loaded:
    """Each rank reads every so many-th file, and broadcasts its tensors."""
    return _fastsafetensors(rank, options, lambda buffers, name: buffers.get_tensor(name))


def fastsafetensors_part(rank: Rank, options: Mapping[str, Any]) -> Loaded:
    return _fastsafetensors(rank, options,
                            lambda buffers, name: buffers.get_sharded(name, split_dim(name)))


def safetensors_slices(rank: Rank, options: Mapping[str, Any]) -> Loaded:
    """What servers' own loaders do."""
    from safetensors import safe_open

    loaded: Loaded = {}
    for path in rank.files:
        with safe_open(path, framework="pt", device=rank.device) as file:
            for name in file.keys():
                piece = file.get_slice(name)
                dim = split_dim(name)
                extent = piece.get_shape()[dim] // rank.size
                begin = rank.rank * extent
                loaded[name] = (piece[begin:begin + extent] if dim == 0 else
                                piece[:, begin:begin + extent])
    return loaded


class Scheme(NamedTuple):
    """A way to load; `part` says whether each rank gets its part or everything."""

    name: str
    part: str
    module: str
    package: str
    load: Callable[[Rank, Mapping[str, Any]], Loaded]
    setting: Setting = Setting()


_INSTANTTENSOR = Setting({"INSTANTTENSOR_CACHE_BUFFER": "1"},
                         {"backend": "BUFFERED", "chunk_size": 4 * MIB, "io_depth": 16})
_FASTSAFETENSORS = Setting({"FASTSAFETENSORS_ODIRECT": "0"},
                           {"nogds": True, "bbuf_size_kb": 64 * 1024})

SCHEMES = [
    Scheme("onehop tp", "part", "onehop", "onehop", onehop_part),
    Scheme("InstantTensor, then slices", "part", "instanttensor", "instanttensor",
           instanttensor_part, _INSTANTTENSOR),
    Scheme("fastsafetensors get_sharded", "part", "fastsafetensors", "fastsafetensors",
           fastsafetensors_part, _FASTSAFETENSORS),
    Scheme("safetensors get_slice", "part", "safetensors", "safetensors", safetensors_slices),
    Scheme("onehop process_group", "whole", "onehop", "onehop", onehop_group),
    Scheme("InstantTensor process_group", "whole", "instanttensor", "instanttensor",
           instanttensor_group),
    Scheme("InstantTensor process_group, best", "whole", "instanttensor", "instanttensor",
           instanttensor_group, _INSTANTTENSOR),
    Scheme("fastsafetensors with its group", "whole", "fastsafetensors", "fastsafetensors",
           fastsafetensors_group),
    Scheme("fastsafetensors with its group, best", "whole", "fastsafetensors", "fastsafetensors",
           fastsafetensors_group, _FASTSAFETENSORS),
    Scheme("onehop, each rank alone", "whole", "onehop", "onehop", onehop_alone),
]
BY_NAME = {scheme.name: scheme for scheme in SCHEMES}


# ---- a rank's process


def join(job: Mapping[str, Any], device: peers_child.Device) -> Any:
    """The process group, with one small collective of each kind done."""
    import torch
    import torch.distributed as distributed

    distributed.init_process_group("nccl" if device.is_cuda else "gloo",
                                   init_method="file://" + job["store"], rank=job["rank"],
                                   world_size=job["ranks"])
    group: Any = distributed.group.WORLD
    every = torch.zeros(64 * job["ranks"], dtype=torch.uint8, device=device.name)
    mine = every[:64].clone()
    distributed.broadcast(mine, 0)
    list(map(getattr(group, "all_gather_single", None) or group._allgather_base, [every],
             [mine]))[0].wait()
    meet(device)
    return group


def meet(device: peers_child.Device) -> None:
    """Goes on when all ranks are here, and their devices have nothing to do."""
    import torch
    import torch.distributed as distributed

    word = torch.zeros(1, device=device.name)
    distributed.all_reduce(word)
    word.item()
    device.synchronize()


def difference(loaded: Loaded, job: Mapping[str, Any]) -> str | None:
    """What is wrong with the tensors; None if every one is right."""
    if BY_NAME[job["scheme"]].part == "whole":
        return peers_child.difference(loaded, job)
    import torch

    with open(os.path.join(job["folder"], EXPECTED), encoding="utf-8") as file:
        expected = json.load(file)[job["rank"]]
    if loaded.keys() != {name for name, _, _ in expected}:
        return f"{len(loaded)} tensors, of {len(expected)}, or other names"
    place = torch.device(job["device"])
    for name, shape, _ in expected:
        tensor = loaded[name]
        if (list(tensor.shape), tensor.dtype, tensor.device) != (shape, torch.bfloat16, place):
            return f"{name} is {tensor.dtype} {list(tensor.shape)} on {tensor.device}"
    totals = peers_child.sums([loaded[name].contiguous() for name, _, _ in expected])
    for (name, _, total), found in zip(expected, totals):
        if found != total:
            return f"{name} has other bytes (sum {found}, should be {total})"
    for entry in plain.read_header(job["files"][0])[:2]:
        right = torch.from_numpy(mapped(job["files"][0], entry)).view(torch.bfloat16)
        right = part_of(right, entry.name, job["rank"], job["ranks"]).to(place)
        if not torch.equal(loaded[entry.name].view(torch.int16), right.view(torch.int16)):
            return f"{entry.name} has other bytes"
    return None


def mapped(path: str, entry: plain.Entry) -> Any:
    """A tensor's bytes in its file, as an array of int16."""
    import numpy

    return numpy.memmap(path, numpy.int16, "c", entry.offset, entry.shape)


def load_ranks(job: Mapping[str, Any], device: peers_child.Device) -> None:
    """The first load of these processes, and loads after it."""
    scheme = BY_NAME[job["scheme"]]
    importlib.import_module(scheme.module)
    rank = Rank(join(job, device), job["rank"], job["ranks"], device.name, job["files"])
    try:
        version = importlib.metadata.version(scheme.package)
    except importlib.metadata.PackageNotFoundError:
        version = str(getattr(sys.modules[scheme.module], "__version__", ""))
    peers_child.say("joined", version=version)
    gc.collect()
    gc.freeze()
    for turn in range(1 + job["repeat"]):
        meet(device)
        begin = time.monotonic()
        loaded = scheme.load(rank, job["options"])
        device.synchronize()
        end = time.monotonic()
        report = peers_child.report_of({"report": getattr(loaded, "report", None)})
        peers_child.say("loaded", begin=begin, end=end, report=report)
        if turn in (0, job["repeat"]):
            peers_child.say("checked", wrong=difference(loaded, job))
        loaded = {}


def measure_ceiling(job: Mapping[str, Any], device: peers_child.Device) -> None:
    """What this rank's link does while all links are in use."""
    import torch

    join(job, device)
    nbytes = int(job["bytes"])
    source = torch.empty(nbytes, dtype=torch.uint8, pin_memory=device.is_cuda).fill_(1)
    target = torch.empty(nbytes, dtype=torch.uint8, device=device.name)
    for _ in range(5):
        meet(device)
        begin = time.monotonic()
        for _ in range(8):
            target.copy_(source, non_blocking=True)
        device.synchronize()
        peers_child.say("copied", begin=begin, end=time.monotonic(), bytes=8 * nbytes)


def serve(job: Mapping[str, Any]) -> None:
    """A rank's process, as `Process` starts it."""
    try:
        importlib.import_module("torch.distributed")
        peers_child.wait("ready")
        device = peers_child.Device(job["device"])
        device.up()
        (load_ranks if job["scheme"] else measure_ceiling)(job, device)
        peers_child.say("done")
    except (ImportError, OSError) as error:
        peers_child.say("failed", reason=peers_child.words_of(error),
                        absent=isinstance(error, ImportError))
    except BaseException as error:  # whatever it is, the row says so, and the next scheme runs
        peers_child.say("failed", reason=peers_child.words_of(error), absent=False)
    sys.stdout.flush()
    os._exit(0)


# ---- the parent


class Process(peers_parent.Child):
    """A rank's process."""

    def __init__(self, job: Mapping[str, Any], env: Mapping[str, str]) -> None:
        self.job = job
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--serve", json.dumps(job)],
            env=dict(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            start_new_session=True)
        self._rest = b""
        self.failure = None


class Run:
    """All that is measured in one run."""

    def __init__(self, arguments: argparse.Namespace, model: peers_files.Model,
                 folder: str) -> None:
        self.arguments = arguments
        self.model = model
        self.begin = time.monotonic()
        self.stores = os.path.join(folder, "store-")
        self.made = 0
        self.found: dict[str, Any] = {
            "machine": peers_run.machine(), "ranks": arguments.ranks,
            "device": arguments.device, "bytes": model.nbytes, "tensors": model.tensors,
            "files": len(model.files), "ceilings": [], "results": []}

    def tell(self, words: str) -> None:
        print(f"[{time.monotonic() - self.begin:4.0f} s] {words}", flush=True)

    def start(self, scheme: Scheme | None, **more: Any) -> list[Process]:
        """A process for each rank."""
        self.made += 1
        setting = scheme.setting if scheme else Setting()
        env = {**peers_parent.environment(None, setting.environment, None),
               "LOCAL_WORLD_SIZE": str(self.arguments.ranks)}
        job = {"scheme": scheme.name if scheme else "", "ranks": self.arguments.ranks,
               "store": f"{self.stores}{self.made}", "folder": self.model.folder,
               "files": self.model.files, "options": dict(setting.options), **more}
        kind = self.arguments.device
        return [Process({**job, "rank": rank,
                         "device": f"cuda:{rank}" if kind == "cuda" else kind}, env)
                for rank in range(self.arguments.ranks)]

    def ahead(self, starts: Sequence[Callable[[], list[Process]]]) -> Iterator[list[Process]]:
        """Starts processes some at a time, and gives each rank's when it is their turn."""
        most = max(1, self.arguments.pool // self.arguments.ranks)
        for first in range(0, len(starts), most):
            batch = [start() for start in starts[first:first + most]]
            try:
                for processes in batch:
                    for process in processes:
                        process.await_ready()
                while batch:
                    yield batch.pop(0)
            finally:
                for processes in batch:
                    for process in processes:
                        process.kill()

    def save(self) -> None:
        self.found["seconds"] = time.monotonic() - self.begin
        if self.arguments.json:
            with open(self.arguments.json, "w", encoding="utf-8") as file:
                json.dump(self.found, file, indent=1)


def finish(processes: Sequence[Process], timeout: float) -> list[list[dict[str, Any]]]:
    """What each rank says, until all are done. If one fails, all are ended."""

    def follow(process: Process) -> list[dict[str, Any]]:
        heard = []
        for event in process.events(timeout):
            event["at"] = time.monotonic()
            heard.append(event)
            if event["event"] in ("done", "failed"):
                break
        if heard[-1]["event"] == "failed":
            time.sleep(0.5)  # the others may have something to say about it
            for other in processes:
                if other is not process:
                    end(other)
        return heard

    for process in processes:
        process.go_on()
    with ThreadPoolExecutor(len(processes)) as pool:
        found = list(pool.map(follow, processes))
    for process in processes:
        process.close()
    return found


def end(process: Process) -> None:
    """Ends a process that another thread listens to."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def failure(heard: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any] | None:
    """State and reason of a row whose ranks said this; None if all went well."""
    failed = [(event["at"], rank, event) for rank, events in enumerate(heard)
              for event in events if event["event"] == "failed"]
    if failed:
        _, rank, event = min(failed, key=lambda row: row[:2])
        return {"state": "absent" if event.get("absent") else "failed",
                "reason": f"rank {rank}: {event['reason']}"}
    for rank, events in enumerate(heard):
        for event in events:
            if event["event"] == "checked" and event["wrong"]:
                return {"state": "differs", "reason": f"rank {rank}: {event['wrong']}"}
    return None


def spans(heard: Sequence[Sequence[Mapping[str, Any]]], kind: str) -> list[float]:
    """Seconds of each turn: from the first rank's begin to the last one's end."""
    turns = zip(*([event for event in events if event["event"] == kind] for events in heard))
    return [max(event["end"] for event in turn) - min(event["begin"] for event in turn)
            for turn in turns]


def measure_ceilings(run: Run) -> None:
    nbytes = min(GIB, run.model.nbytes)
    for processes in run.ahead([lambda: run.start(None, bytes=nbytes)]):
        heard = finish(processes, 60)
        wrong = failure(heard)
        if wrong:
            raise RuntimeError(f"the ceiling cannot be measured: {wrong['reason']}")
        copied = [event["bytes"] for event in heard[0] if event["event"] == "copied"]
        rates = [run.arguments.ranks * nbytes / seconds
                 for nbytes, seconds in zip(copied, spans(heard, "copied"))]
        run.found["ceilings"].append(max(rates))
        run.found["ceiling"] = max(run.found["ceilings"])
        run.tell(f"ceiling of {run.arguments.ranks} links: {max(rates) / 1e9:.1f} GB/s")
    run.save()


def measure_loads(run: Run) -> None:
    """Loads by every scheme that the command line names."""
    words = [word.strip().lower() for word in run.arguments.schemes.split(",") if word.strip()]
    rows: dict[str, dict[str, Any]] = {
        scheme.name: {"scheme": scheme.name, "part": scheme.part, "state": "ok",
                      "bytes": run.model.nbytes, "setting": scheme.setting.words(),
                      "first": [], "again": []}
        for scheme in SCHEMES
        if not words or any(word in scheme.name.lower() for word in words)}
    run.found["results"] = list(rows.values())
    for turn in range(run.arguments.fresh):
        names = [name for name, row in rows.items() if row["state"] == "ok"
                 and (not turn or row["first"][0] < SLOW)]
        starts = [functools.partial(run.start, BY_NAME[name], repeat=run.arguments.repeat)
                  for name in names[turn:] + names[:turn]]
        for processes in run.ahead(starts):
            row = rows[processes[0].job["scheme"]]
            if turn and time.monotonic() - run.begin > run.arguments.budget:
                for process in processes:
                    process.kill()
                continue
            note(row, finish(processes, run.arguments.timeout))
            run.tell(f"{row['part']}: {row['scheme']}: {words_of(row, run.found['ceiling'])}")
            run.save()


def note(row: dict[str, Any], heard: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Adds to a row what its ranks said."""
    for event in heard[0]:
        if event["event"] == "joined":
            row["version"] = event["version"]
        if event["event"] == "loaded" and event["report"]:
            row["report"] = event["report"]
    wrong = failure(heard)
    if wrong:
        row.update(wrong)
        return
    seconds = spans(heard, "loaded")
    row["first"].append(seconds[0])
    row["again"] += seconds[1:]


def words_of(row: Mapping[str, Any], ceiling: float) -> str:
    """A row's medians."""
    if row["state"] != "ok":
        return f"{row['state']}: {row['reason']}"
    words = []
    for kind in ("first", "again"):
        if row[kind]:
            rate = row["bytes"] / statistics.median(row[kind])
            words.append(f"{kind} {rate / 1e9:6.2f} GB/s ({rate / ceiling:.2f})")
    return ", ".join(words)


def expect_parts(model: peers_files.Model, ranks: int) -> None:
    """Writes name, shape and sum of each rank's part of each tensor beside the files."""
    import numpy

    def rows(path: str, entry: plain.Entry) -> list[list[Any]]:
        whole, found = mapped(path, entry), []
        for rank in range(ranks):
            part = part_of(whole, entry.name, rank, ranks)
            values = part.view(numpy.int64)
            found.append([entry.name, part.shape, int(values.sum())])
        return found

    with ThreadPoolExecutor(min(16, len(os.sched_getaffinity(0)))) as pool:
        found = list(pool.map(lambda pair: rows(*pair), [
            (path, entry) for path in model.files for entry in plain.read_header(path)]))
    with open(os.path.join(model.folder, EXPECTED), "w", encoding="utf-8") as file:
        json.dump(list(zip(*found)), file)


def shapes_of(nbytes: int, ranks: int) -> list[peers_files.Shape]:
    """96 tensors (of 128 MiB in 12 GiB), whose rows and columns the ranks divide."""
    columns = min(COLUMNS, 1 << (nbytes // 96 // 2).bit_length() // 2) // (4 * ranks) * 4 * ranks
    rows = max(ranks, nbytes // 96 // (2 * columns) // ranks * ranks)
    return [peers_files.Shape(f"model.layers.{number}.mlp.up_proj.weight", (rows, columns))
            for number in range(96)]


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    first, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(description=first, epilog=rest,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--ranks", type=int, default=2, metavar="N", help="processes, each with its GPU (2)")
    add("--device", default="cuda", choices=("cuda", "cpu"), help="cpu to try it without GPUs")
    add("--bytes", type=size, default=12 * GIB, metavar="SIZE", help="of the model (12G)")
    add("--where", default=tempfile.gettempdir(), metavar="FOLDER", help="takes the model")
    add("--schemes", default="", metavar="WORDS", help="parts of the names of those to run")
    add("--fresh", type=int, default=3, metavar="N", help="sets of processes per scheme (3)")
    add("--repeat", type=int, default=2, metavar="N", help="loads in each after the first (2)")
    add("--budget", type=float, default=140, metavar="S",
        help="seconds after which only what has had no turn begins (140)")
    add("--timeout", type=float, default=40, metavar="S", help="seconds for a scheme's turn (40)")
    add("--pool", type=int, default=min(24, len(os.sched_getaffinity(0))), metavar="N",
        help="interpreters started ahead (24, or as many as there are cores if fewer)")
    add("--json", metavar="FILE", help="write the results there, as they come")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    arguments = parse(words)
    with peers_run.Folder(arguments.where, False) as folder:
        model = peers_files.make(os.path.join(folder, "model"),
                                 shapes_of(arguments.bytes, arguments.ranks), 4)
        expect_parts(model, arguments.ranks)
        run = Run(arguments, model, folder)
        run.found["cached"] = peers_files.warm(model.files)
        run.tell(f"{model.tensors} tensors, {model.nbytes:,} bytes in {len(model.files)} files, "
                 f"{run.found['cached']:.3f} of them in the page cache")
        try:
            measure_ceilings(run)
            measure_loads(run)
            measure_ceilings(run)
        except (KeyboardInterrupt, RuntimeError) as error:
            run.tell(str(error) or "interrupted")
        run.save()
        for part, title in (("part", "each rank its part"), ("whole", "every rank everything")):
            print(f"\n{title}")
            for row in run.found["results"]:
                if row["part"] == part:
                    print(f"  {row['scheme']:38} {words_of(row, run.found.get('ceiling', 1.0))}")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(json.loads(sys.argv[2]))
    sys.exit(main())
