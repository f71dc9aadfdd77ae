"""Calls a function as soon as a module of some name has been imported.

Imports nothing itself: it is loaded by every Python that starts below ``python -m onehop run``.
"""
from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Action = Callable[[ModuleType], object]


class _Loader:
    """A module's loader that calls the action when the module's code has run."""

    def __init__(self, loader: Any, action: Action) -> None:
        self._loader = loader
        self._action = action

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        # The module shall not see that it was watched.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._action(module)


class Watch:
    """A finder for sys.meta_path that finds nothing itself and watches what the next ones find.

    Parameters
    ----------
    actions : mapping of str to callable
        By the module's full name. Called in the importing thread, with the finished module.
    """

    def __init__(self, actions: Mapping[str, Action]) -> None:
        self._actions = dict(actions)

    def start(self) -> None:
        """Watches, from now on."""
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Watches no more. Again is no error."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]

    def find_spec(self, name: str, path: Sequence[str] | None = None,
                  target: ModuleType | None = None) -> ModuleSpec | None:
        """The module's spec with a loader that calls the action; None for other modules."""
        action = self._actions.get(name)
        finders = list(sys.meta_path)
        if action is None or self not in finders:
            return None
        # Only those behind this one: another watch in front has asked already.
        for finder in finders[finders.index(self) + 1:]:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, action)  # type: ignore[assignment]
                return spec
        return None
