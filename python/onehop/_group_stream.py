"""What `stream` does with a process group: its groups of tensors are read by all ranks together.

Each group is a load of its own, of which every rank reads a part and gets the rest from the others
(see `_group`); its tensors are then handed out in the order of their bytes. So the ranks have to
take the same tensors, and a bound on device memory counts on each of them for itself. A rank that
has no room fails where all ranks meet, so that all fail.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from . import arenas, errors, loading
from ._runtime import Runtime
from .model import Item, Selection

if TYPE_CHECKING:
    from ._group import Ranks

Meeting = Callable[[], "AbstractContextManager[Ranks | None]"]
"""The ranks, as a context to load in."""


class Landed:
    """In the place of a transfer: all of it has landed."""

    def __init__(self, count: int, nbytes: int) -> None:
        self._count, self._nbytes = count, nbytes
        self._is_told = False

    def landed(self) -> list[int]:
        """All indexes, once; then raises End."""
        if self._is_told:
            raise errors.End("all have landed")
        self._is_told = True
        return list(range(self._count))

    def progress(self) -> tuple[int, int]:
        return self._nbytes, self._nbytes

    def cancel(self) -> None:
        pass


def fill(selection: Selection, items: Sequence[Item], memory: arenas.Memory,
         framework: arenas.Framework, runtime: Runtime, ranks: Ranks) -> list[Any]:
    """Loads a selection into memory with the other ranks.

    Returns
    -------
    list
        A tensor of each item.

    Raises
    ------
    OnehopError
        As `Ranks.fill`.
    """
    placement = loading.Placement(selection, framework, memory=memory, items=items)
    made, _ = ranks.fill(selection, placement, ranks.runtime(runtime, None), None, loading.Phases())
    return list(made.values())
