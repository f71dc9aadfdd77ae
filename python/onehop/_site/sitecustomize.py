"""Runs when a Python starts below ``python -m onehop run``: see onehop/run.py.

Puts onehop in the place of safetensors once that is imported, and does nothing but watch for it
until then. The environment's own sitecustomize, which this file hides, runs afterwards.
"""
from __future__ import annotations

import os
import sys

import onehop_watch  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(_HERE)


def _onehop() -> ModuleType:
    """The package that this file belongs to, which this Python might not find by itself."""
    import importlib.util

    spec = importlib.util.spec_from_file_location(
        "onehop", os.path.join(_PACKAGE, "__init__.py"), submodule_search_locations=[_PACKAGE])
    assert spec is not None and spec.loader is not None
    module = sys.modules["onehop"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _install(_: ModuleType) -> None:
    """Called when safetensors has been imported."""
    onehop = sys.modules.get("onehop") or _onehop()
    chosen = os.environ["ONEHOP_INSTALL"]
    onehop.install(None if chosen == "1" else chosen)


def _run_hidden() -> None:
    """Runs the sitecustomize that Python would have found without this one."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    this = sys.modules.pop(__name__)
    try:
        __import__(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, this)


if os.environ.get("ONEHOP_INSTALL", "0") not in ("", "0") and sys.version_info >= (3, 10):
    onehop_watch.Watch({"safetensors": _install}).start()
_run_hidden()
