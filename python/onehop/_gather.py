"""Tensors of files that stay open, many by one plan, each in memory of its own.

Programs written for safetensors ask for one tensor after the other. `read` moves any number of them
in one transfer; `Ahead` turns a sequence of single requests into few of these.
"""
from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from . import devices, errors
from ._move import Extent, Plan, Transfer, run
from .loading import collector_paused
from .model import Item
from .safetensors import _File as File

_AHEAD_FIRST = 4 << 20
_AHEAD_MOST = 64 << 20


def is_supported(file: File, item: Item) -> bool:
    """Whether the file's framework has a type for the item."""
    try:
        file.check(item)
        file.framework.check([item])
    except errors.DataError:
        return False
    return True


def read(wanted: Sequence[tuple[File, Item]]) -> list[Any]:
    """A tensor of each item, each in memory of its own, by one transfer.

    Parameters
    ----------
    wanted : sequence of (File, Item)
        All files are of one framework and one device.

    Returns
    -------
    list of tensor
        In the order of wanted; each owns its memory, as those of safetensors do.

    Raises
    ------
    OnehopError
        As `onehop.load`.
    """
    if not wanted:
        return []
    framework = wanted[0][0].framework
    for file, item in wanted:
        file.check(item)
    framework.check([item for _, item in wanted])
    runtime = wanted[0][0]._runtime
    with ExitStack() as stack:
        memories = [framework.allocate(item.nbytes) for _, item in wanted]

        def work() -> list[Any]:
            with collector_paused():
                return [framework.tensors([item._replace(arena_offset=0)], memory, 0)[0]
                        for (_, item), memory in zip(wanted, memories)]

        extents = []
        for (file, item), memory in zip(wanted, memories):
            if not item.nbytes:
                continue
            buffer = memory.buffer(runtime, framework.device)
            if memory.owner is not buffer:
                stack.callback(buffer.close)
            extents.append(Extent(file._model.file_handle(item.file), item.file_offset, item.nbytes,
                                  1, item.nbytes, buffer, 0))
        if not extents:
            return framework.finish(work())
        plan = Plan.of_extents(runtime, extents, keep={file._model for file, _ in wanted})
        stack.callback(plan.close)
        made, _ = run(Transfer(plan), work, after_stream=framework.stream())
    return framework.finish(made)


class Ahead:
    """Serves single tensors of a file, and reads ahead where they are asked for in order.

    A tensor that follows the one before it, in the order in which the names were listed, brings
    those behind it along: 4 MiB, then twice as much each time, up to 64 MiB. Each is handed out
    once and then forgotten, so that a program that goes through a file has each byte read once and
    pays for the window beside what it keeps. A jump ends it, and drops what was not asked for.

    Any thread may use it; requests of several threads are served one after the other.

    Parameters
    ----------
    file : File
    """

    def __init__(self, file: File) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._elsewhere: dict[devices.Device, Ahead] = {}
        self._held: dict[str, Any] = {}
        self._window = self._next = 0
        self._names: Sequence[str] = ()
        self._places: dict[str, int] = {}

    @property
    def device(self) -> devices.Device:
        """Where its tensors are made."""
        return self.file._names[1]

    def follow(self, names: Sequence[str]) -> None:
        """Takes this for the order in which tensors will be asked for."""
        with self._lock:
            self._set_order(names)

    def _set_order(self, names: Sequence[str]) -> None:
        self._names = names
        self._places = {name: place for place, name in enumerate(names)}
        self._next = 0

    def on(self, device: devices.Device) -> Ahead:
        """The same file's, with tensors on another device."""
        if device == self.device:
            return self
        with self._lock:
            found = self._elsewhere.get(device)
            if found is None:
                found = Ahead(File(self.file.path, self.file.framework.name, device))
                self._elsewhere[device] = found
            return found

    def take(self, name: str) -> Any:
        """The tensor of that name.

        Raises
        ------
        OnehopError
            As `onehop.safe_open.get_tensor`.
        """
        item = self.file.item(name)
        with self._lock:
            if not self._places:
                self._set_order(sorted(self.file.items))
            if name not in self._held:
                self._held = self._read_from(item)
            self._next = self._places[name] + 1
            return self._held.pop(name)

    def _read_from(self, item: Item) -> dict[str, Any]:
        """The tensor, and those that the window takes in behind it."""
        place = self._places[item.name]
        in_order = place == self._next and place > 0
        self._window = min(max(2 * self._window, _AHEAD_FIRST), _AHEAD_MOST) if in_order else 0
        wanted, nbytes = [item], item.nbytes
        for name in self._names[place + 1:]:
            following = self.file.items[name]
            nbytes += following.nbytes
            if nbytes > self._window or not is_supported(self.file, following):
                break
            wanted.append(following)
        self._held = {}
        tensors = read([(self.file, one) for one in wanted])
        return dict(zip((one.name for one in wanted), tensors))
