"""Progress of a load, for people and for callers."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from ._move import OnTurn

Progress: TypeAlias = "bool | None | Callable[[int, int], None]"
"""True: a bar by tqdm where that is installed. A callable: called with bytes landed and of all."""


@contextmanager
def shown(progress: Progress, what: str) -> Iterator[OnTurn | None]:
    """What to call on every turn of a wait, None for nothing; a bar is closed at the end."""
    if progress is None or progress is False:
        yield None
        return
    if callable(progress):
        yield progress
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        yield None
        return
    with tqdm(desc=what, unit="B", unit_scale=True, unit_divisor=1024) as bar:
        def on_turn(landed: int, total: int) -> None:
            bar.total = total
            bar.update(landed - bar.n)

        yield on_turn
