"""Loads whole models: `load`, `load_file`, `explain`, and what they return.

One load is one plan over all files of a model. The tensors' memory is allocated before the first
byte is read, tensor objects are made while bytes move, and a failure leaves nothing behind.
"""
from __future__ import annotations

import gc
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

from . import _abi, _progress, _runtime, _verify, arenas, devices, errors, reading, report
from ._move import Buffer, OnTurn, Plan, Transfer, run
from ._progress import Progress
from .devices import DeviceInput
from .model import Item, Metadata, Model, Path, Selection, TpPlan

if TYPE_CHECKING:
    from ._group import Ranks

Chooser: TypeAlias = "str | Iterable[str] | Callable[[str], bool] | None"
"""Names or patterns of tensors, or a function that says yes or no to a name. None: all."""

ARENAS = ("one", "file", "tensor")


class Tensors(dict[str, Any]):
    """The tensors of a load by name, in the order of their bytes.

    Attributes
    ----------
    report : Report
        What the load did.
    metadata : dict of str to str, int, float or bool
        The files' metadata; of a key that several files have, the first file's value.
    info : Mapping of str to Item
        By name: dtype as the file spells it, shape in elements, block, file and place.
    """

    report: report.Report
    metadata: dict[str, Any]
    info: Mapping[str, Item] = {}

    def __repr__(self) -> str:
        return f"<onehop.Tensors: {len(self)} tensors of {self.report.path!r}>"


class Phases:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.begin = time.perf_counter()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - begin

    def total(self) -> float:
        return time.perf_counter() - self.begin

    def opened(self, model: Model) -> None:
        """Notes what the C library says about opening the model."""
        self.seconds.update(open=model.open_seconds, parse=model.parse_seconds)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keeps Python's garbage collector off while many objects are made, none of them garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def select(model: Model, tensors: Chooser, tp: tuple[int, int], tp_plan: TpPlan | None,
           tp_uneven: str) -> Selection | None:
    """The selection that the caller's choice names; None if it names no tensor at all."""
    if tensors is None:
        patterns: list[str] = []
    elif isinstance(tensors, str):
        patterns = [tensors]
    else:
        if callable(tensors):
            with model.select() as everything:
                patterns = [item.name for item in everything.items() if tensors(item.name)]
        else:
            patterns = list(tensors)
        if not patterns:
            return None
    return model.select(patterns, tp=tp, tp_plan=tp_plan, tp_uneven=tp_uneven)


class Placement:
    """Where a selection's items go: memory of a framework's, cut as the caller wants it.

    Parameters
    ----------
    selection : Selection
    framework : Framework
    arena : {"one", "file", "tensor"}
        One piece of memory for all, for each file, or for each tensor.
    memory : Memory, optional
        In place of a new piece for all.
    items : list of Item, optional
        The selection's, where they were read already.
    """

    def __init__(self, selection: Selection, framework: arenas.Framework, arena: str = "one",
                 memory: arenas.Memory | None = None,
                 items: Sequence[Item] | None = None) -> None:
        self._framework = framework
        self._selection = selection
        self._items = items
        self._cuts: list[tuple[int, int, int]] = [(0, selection.arena_bytes, len(selection))]
        if arena != "one":
            self._cuts = list(_cut(self.items, selection.arena_alignment, arena))
        self.memories = [memory] if memory else [framework.allocate(nbytes)
                                                 for _, nbytes, _ in self._cuts]

    @property
    def items(self) -> Sequence[Item]:
        """The selection's items; read when first asked for."""
        if self._items is None:
            self._items = self._selection.items()
        return self._items

    def plan(self, runtime: _runtime.Runtime, stack: ExitStack) -> Plan:
        """The plan that fills the memory. Its buffers are closed with the stack."""
        device = self._framework.device
        buffers = [memory.buffer(runtime, device) for memory in self.memories]
        for buffer, memory in zip(buffers, self.memories):
            if memory.owner is not buffer:
                stack.callback(buffer.close)
        if len(self._cuts) == 1 and self._cuts[0][0] == 0:
            return Plan.of_selection(self._selection, buffers[0])
        return Plan.into(self._selection, list(self._destinations(buffers)))

    def _destinations(self, buffers: Sequence[Buffer]) -> Iterator[tuple[Buffer, int]]:
        items = iter(self.items)
        for (begin, _, count), buffer in zip(self._cuts, buffers):
            for _ in range(count):
                yield buffer, next(items).arena_offset - begin

    def verify(self, runtime: _runtime.Runtime) -> None:
        """Compares all bytes with a read of its own of the files; raises Mismatch."""
        items = iter(self.items)
        with _verify.Reader(self._selection.model) as reader:
            for (begin, _, count), memory in zip(self._cuts, self.memories):
                buffer = memory.buffer(runtime, self._framework.device)
                for _ in range(count):
                    item = next(items)
                    reader.compare(item, buffer, item.arena_offset - begin)

    def tensors(self) -> list[Any]:
        """A tensor of each item."""
        made: list[Any] = []
        for (begin, _, count), memory in zip(self._cuts, self.memories):
            piece = self.items if count == len(self.items) else self.items[len(made):][:count]
            made += self._framework.tensors(piece, memory, begin)
        return made

    def named(self) -> Tensors:
        """The tensors by name, and what the files say of them."""
        names = [item.name for item in self.items]
        found = Tensors(zip(names, self.tensors()))
        found.info = dict(zip(names, self.items))
        return found


def _cut(items: Sequence[Item], alignment: int, arena: str) -> Iterator[tuple[int, int, int]]:
    """Begin in the layout, bytes, and number of items of each piece of memory."""
    first = 0
    for position in range(1, len(items) + 1):
        is_end = position == len(items)
        if not is_end and arena == "file" and items[position].file == items[first].file:
            continue
        last = items[position - 1]
        begin = items[first].arena_offset
        if arena == "file":
            begin = begin // alignment * alignment
        yield begin, last.arena_offset + last.nbytes - begin, position - first
        first = position


def fill(placement: Placement, runtime: _runtime.Runtime, framework: arenas.Framework,
         on_turn: OnTurn | None, phases: Phases) -> tuple[Tensors, _abi.Completion]:
    """Moves the bytes and makes the tensors meanwhile."""

    def work() -> Tensors:
        with phases.phase("tensors"), collector_paused():
            return placement.named()

    with ExitStack() as stack:
        with phases.phase("plan"):
            plan = placement.plan(runtime, stack)
            stack.callback(plan.close)
        with phases.phase("prepare"):
            transfer = Transfer(plan)
        begin = time.perf_counter()
        made, completion = run(transfer, work, after_stream=framework.stream(), on_turn=on_turn)
        phases.seconds["transfer"] = time.perf_counter() - begin
    finish(framework, made)
    return made, completion


def finish(framework: arenas.Framework, tensors: dict[str, Any]) -> None:
    """Makes the tensors what the caller gets, once their bytes have landed."""
    given = list(tensors.values())
    done = framework.finish(given)
    if done is not given:
        tensors.update(zip(tensors, done))


def metadata_of(rows: Sequence[Metadata]) -> dict[str, Any]:
    """Values by key; the first file's where several have the key."""
    found: dict[str, Any] = {}
    for row in rows:
        found.setdefault(row.key, row.value)
    return found


_pinned: dict[tuple[str, str, _runtime.Runtime], Model] = {}
_pinned_lock = threading.Lock()


def _forget_pinned() -> None:
    """In a forked child: what the parent pinned is the parent's."""
    global _pinned_lock
    _pinned_lock = threading.Lock()
    _pinned.clear()


os.register_at_fork(after_in_child=_forget_pinned)


def _open_pinned(path: Path, runtime: _runtime.Runtime, device: devices.Device) -> Model:
    """A model that stays open, with its files' page cache pinned for the device."""
    key = (os.fsdecode(path), device.name, runtime)
    with _pinned_lock:
        kept = _pinned.get(key)
        if kept is None:
            kept = Model(path, runtime)
            kept.pin(device.name)
            _pinned[key] = kept
    return kept


def unpin(path: Path | None = None) -> None:
    """Takes back what ``pin=True`` pinned.

    Parameters
    ----------
    path : path, optional
        As it was given to `load`; all models if left out.
    """
    wanted = None if path is None else os.fsdecode(path)
    with _pinned_lock:
        for key in [key for key in _pinned if wanted in (None, key[0])]:
            # Closed, and so unpinned, when the last load that uses it is over.
            del _pinned[key]


def load(path: Path, device: DeviceInput = None, *, tensors: Chooser = None,
         tp: tuple[int, int] = (0, 1), tp_plan: TpPlan | None = None, tp_uneven: str = "refuse",
         route: str | None = None, verify: str | None = None, progress: Progress = None,
         pin: bool = False, framework: str | None = None, arena: str = "one",
         raw: bool = False, process_group: Any = None) -> Tensors:
    """Loads a model.

    Parameters
    ----------
    path : str, bytes or path-like
        A .safetensors or .gguf file, an index, or a folder: see ``onehop_model_open``.
    device : str, int or torch.device, optional
        "cpu", "cuda", "cuda:1", 1. Left out: the current GPU where the framework can use one, else
        the host.
    tensors : str, iterable of str, or callable, optional
        Names or patterns (``"*.weight"``), each of which must match; or a function of a name that
        returns whether to load it.
    tp : (int, int)
        Rank and size of a tensor-parallel group: only this rank's part of each tensor that tp_plan
        splits is read.
    tp_plan : mapping of str to int or None, or path, optional
        The dimension that is split, by pattern; the first that matches counts. A path names a JSON
        file of the same.
    tp_uneven : {"refuse", "split"}
        What to do where the group does not divide the dimension.
    route : {"buffered", "direct", "mapped"}, optional
        Forces the way that bytes take.
    verify : {"read"}, optional
        Compares every byte on the device with a second, independent read of the file.
    progress : bool or callable, optional
        True: a bar by tqdm where it is installed. A callable gets (bytes landed, bytes of all).
    pin : bool
        Keeps the model open and its page cache pinned for the GPU, so that loading it again runs at
        the link's rate with hardly any CPU. `onehop.unpin` takes it back.
    framework : {"torch", "numpy", "array"}, optional
        What the tensors are. Left out: torch if it is imported, or if the device is a GPU and torch
        can be imported; else numpy; else `onehop.Array`.
    arena : {"one", "file", "tensor"}
        How many pieces of memory: with "tensor" each can be freed by itself.
    raw : bool
        Element types that the framework lacks become unsigned integers of the same width, and all
        packed types raw bytes.
    process_group : torch.distributed.ProcessGroup or True, optional
        Ranks of one machine that all make this same call, True for the default group. Each reads
        its share of the bytes, and the group (NCCL for GPUs, gloo for the host) brings the rest, so
        that all get all tensors. ``.report.read_bytes`` and ``.routes`` tell of this rank's share.
        If one fails, all do within 10 s; after an error the group stays of use, but not after the
        death of a process. It waits for ranks that do not come as long as the group does. To have
        each rank read what is its own and nothing else, use tp and tp_plan without it.

    Returns
    -------
    Tensors
        A dict by name, with ``.report``, ``.metadata`` and ``.info``. Packed types without a
        framework type (F6, GGUF's quantised ones) are uint8, the last dimension counting bytes;
        ``.info[name]`` has the type's name, the shape in elements and the block's size.

    Raises
    ------
    NotFound, Access, IOFailed, FileChanged, Malformed, UnsupportedData
        Of the files.
    NoSuchTensor, InvalidArgument, NoRoute
        Of the call.
    NoDevice, NoMemory, NoDeviceMemory, Limit, DriverError
        Of the machine.
    Mismatch
        Verification failed.
    RankFailed
        Another rank of the process group failed; its error is quoted.
    """
    _check_words(verify, arena)
    runtime = _runtime.get(route=route)
    maker, target = arenas.chosen(framework, device, runtime, raw)
    phases = Phases()
    with _together(process_group, maker, arena) as ranks:
        runtime = ranks.runtime(runtime, route) if ranks else runtime
        model = (_open_pinned(path, runtime, target) if pin else
                 reading.open_model(path, runtime))
        phases.opened(model)
        with phases.phase("select"):
            selection = select(model, tensors, tp, tp_plan, tp_uneven)
        if selection is None:
            return _told(Tensors(), model, maker, target, phases, None, False)
        placement: Placement | None = None
        try:
            with phases.phase("allocate"):
                placement = Placement(selection, maker, arena)
            with _progress.shown(progress, os.path.basename(model.path)) as on_turn:
                made, completion = (
                    ranks.fill(selection, placement, runtime, on_turn, phases) if ranks else
                    fill(placement, runtime, maker, on_turn, phases))
            seconds = phases.total()
            if verify:
                placement.verify(runtime)
            return _told(made, model, maker, target, phases, completion, verify is not None,
                         seconds)
        except BaseException as error:
            if isinstance(error, errors.FileChanged):
                unpin(path)
            # A notebook keeps the error and its frames, which must not keep the memory.
            placement = None
            traceback.clear_frames(error.__traceback__)
            raise


def _together(process_group: Any, maker: arenas.Framework,
              arena: str) -> AbstractContextManager[Ranks | None]:
    """A context to load in: with the ranks of the group, or None for a load by oneself."""
    if process_group is None:
        return nullcontext()
    from . import _group

    return _group.together(process_group, maker, arena)


def _told(made: Tensors, model: Model, maker: arenas.Framework, target: devices.Device,
          phases: Phases, completion: _abi.Completion | None, verified: bool,
          seconds: float | None = None) -> Tensors:
    """The tensors, with a report about them and the files' metadata."""
    done = completion or _abi.Completion()
    made.report = report.summary({
        "path": model.path, "format": model.format, "device": str(target),
        "framework": maker.name, "tensors": len(made), "bytes": done.bytes,
        "read_bytes": done.read_bytes,
        "seconds": phases.total() if seconds is None else seconds,
        "routes": report.routes_of(done), "reasons": report.reasons_of(done.reasons),
        "phases": phases.seconds, "staging_bytes": done.ring_bytes, "verified": verified,
        "notes": model.notes})
    made.metadata = metadata_of(model.metadata())
    return made


def _check_words(verify: str | None, arena: str) -> None:
    if verify not in (None, "read"):
        raise errors.InvalidArgument(f"verify is {verify!r}", 'it is None or "read"')
    if arena not in ARENAS:
        raise errors.InvalidArgument(f"arena is {arena!r}", 'it is "one", "file" or "tensor"')


def explain(path: Path, device: DeviceInput = None, *, tensors: Chooser = None,
            tp: tuple[int, int] = (0, 1), tp_plan: TpPlan | None = None,
            tp_uneven: str = "refuse", route: str | None = None) -> report.Explanation:
    """Says how a load would travel, and why, without reading more than the headers.

    Memory for the tensors is allocated on the device, since a plan needs a place, and given back.

    Parameters
    ----------
    path, device, tensors, tp, tp_plan, tp_uneven, route
        As for `load`; device left out is the first GPU, or the host where there is none.

    Returns
    -------
    Explanation
        Prints well, also in a notebook.

    Raises
    ------
    OnehopError
        As `load` would, but for what only reading shows.
    """
    runtime = _runtime.get(route=route)
    target = arenas.choose_device("array", runtime) if device is None else devices.parse(device)
    model = Model(path, runtime)
    selection = select(model, tensors, tp, tp_plan, tp_uneven)
    if selection is None:
        return report.Explanation(model.path, model.format, str(target), 0, 0, 0, 0, [],
                                  model.notes)
    arena = Buffer(runtime, target.name, selection.arena_bytes)
    plan = Plan.of_selection(selection, arena)
    groups = report.group_segments(plan.segments())
    read_bytes = plan.query().read_bytes
    plan.close()
    arena.close()
    return report.Explanation(model.path, model.format, str(target), len(selection),
                              selection.nbytes, selection.arena_bytes, read_bytes, groups,
                              model.notes)


def load_file(filename: Path, device: DeviceInput = "cpu", *, backend: str | None = None,
              process_group: Any = None) -> dict[str, Any]:
    """Loads a safetensors file into torch tensors, as ``safetensors.torch.load_file`` does.

    Parameters
    ----------
    filename : str or path-like
    device : str, int or torch.device
        "cpu", "cuda", "cuda:1", 1.
    backend : {"mmap", "pread"}, optional
        Accepted, and of no effect: how to read is decided by what the machine shows.
    process_group : torch.distributed.ProcessGroup or True, optional
        Ranks that share the reading: see `load`.

    Returns
    -------
    dict of str to torch.Tensor
        In the order of their bytes.

    Raises
    ------
    NotFound, Access, IOFailed, FileChanged, NoDevice, NoMemory, NoDeviceMemory
    Malformed, UnsupportedData, InvalidArgument
        They are ``safetensors.SafetensorError`` too where that package is imported.
    """
    if process_group is not None:
        return load(filename, device, framework="torch", process_group=process_group)
    from .safetensors import safe_open

    with safe_open(filename, framework="pt", device=device, backend=backend) as file:
        return file.get_tensors()
