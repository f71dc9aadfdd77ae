"""`install`: puts onehop in the place of safetensors, in programs that know nothing of it.

What is replaced is ``safetensors.safe_open`` and ``safetensors.torch.load_file``, wherever a loaded
module holds them under whatever name (transformers, vLLM and others bind them when they are
imported), and with them the step in which transformers and diffusers move tensors to their devices.
Modules that are imported later find what is in force then. ``safetensors.torch.load``, which takes
bytes that are in memory already, stays as it is.
"""
from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from . import devices
from ._site.onehop_watch import Watch
from .devices import DeviceInput

TESTED: dict[str, tuple[str, ...]] = {
    "safetensors": ("0.8.0",),
    "torch": ("2.13.0",),
    "transformers": ("5.24.0",),
    "diffusers": ("0.42.1",),
    "vllm": ("0.33.0",),
}
"""Versions of other packages that onehop was tested with; tests/compat/versions.toml says how."""

_lock = threading.RLock()
_layers: list[DeviceInput] = []
_swapped: list[tuple[Any, Any]] = []
_methods: list[tuple[type, str, Any, Any]] = []
_warned: set[str] = set()


def warn_if_untested(name: str) -> None:
    """Warns, once, if the package is of a major version that onehop was not tested with."""
    version = str(getattr(sys.modules.get(name), "__version__", ""))
    major = version.partition(".")[0]
    tested = TESTED[name]
    if not major or name in _warned or major in (known.partition(".")[0] for known in tested):
        return
    _warned.add(name)
    warnings.warn(f"onehop was not tested with {name} {version}, but with {', '.join(tested)}; "
                  "compare what it loads, or use a tested version", stacklevel=3)


def _warn_unknown(what: str, version_of: str) -> None:
    version = getattr(sys.modules.get(version_of), "__version__", "of an unknown version")
    warnings.warn(f"{version_of} {version} has no {what} as onehop knows it, so that its tensors "
                  f"come from onehop but do not go to their device by one plan; use {version_of} "
                  f"{', '.join(TESTED[version_of])}", stacklevel=3)


def _rebind(pairs: list[tuple[Any, Any]]) -> None:
    """Puts the second of each pair where any module outside this package holds the first."""
    table = {id(old): new for old, new in pairs}
    for name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or name.partition(".")[0] == __package__:
            continue
        names = vars(module)
        for attribute, value in list(names.items()):
            if id(value) in table:
                names[attribute] = table[id(value)]


def _swap(stock: Any, ours: Any) -> None:
    """Replaces one thing by another until `uninstall`."""
    _swapped.append((stock, ours))
    _rebind([(stock, ours)])


def _swap_method(owner: type, name: str, make: Callable[..., Any]) -> None:
    """Replaces a class method until `uninstall`."""
    stock = vars(owner)[name]
    ours: Any = classmethod(make(stock.__func__))
    _methods.append((owner, name, stock, ours))
    setattr(owner, name, ours)


def _on_safetensors(module: ModuleType) -> None:
    from . import _installed

    warn_if_untested("safetensors")
    _installed.stock_safe_open = module.safe_open
    _swap(module.safe_open, _installed.safe_open)


def _on_safetensors_torch(module: ModuleType) -> None:
    from . import _installed

    warn_if_untested("torch")
    _swap(module.load_file, _installed.load_file)


def _on_transformers(module: ModuleType) -> None:
    from . import _transformers

    warn_if_untested("transformers")
    stock = getattr(module, "spawn_materialize", None)
    ours = _transformers.spawn_materialize(stock) if stock else None
    if ours is None:
        _warn_unknown("spawn_materialize", "transformers")
    else:
        _swap(stock, ours)


def _on_diffusers(module: ModuleType) -> None:
    from . import _diffusers

    warn_if_untested("diffusers")
    mixin = getattr(module, "ModelMixin", object)
    shard = getattr(module, "_load_shard_file", None)
    warmup = getattr(module, "_caching_allocator_warmup", None)
    ours = _diffusers.load_shard_file(shard) if shard else None
    if ours is None or warmup is None or not isinstance(vars(mixin).get("from_pretrained"),
                                                        classmethod):
        _warn_unknown("ModelMixin.from_pretrained", "diffusers")
        return
    _swap(shard, ours)
    _swap(warmup, _diffusers.warm_up(warmup))
    _swap_method(mixin, "from_pretrained", _diffusers.from_pretrained)


_ACTIONS: dict[str, Callable[[ModuleType], None]] = {
    "safetensors": _on_safetensors,
    "safetensors.torch": _on_safetensors_torch,
    "transformers.core_model_loading": _on_transformers,
    "diffusers.models.modeling_utils": _on_diffusers,
}


def _watched(action: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    """The action for a module that is imported later, which may be after `uninstall`."""

    def act(module: ModuleType) -> None:
        with _lock:
            if _layers:
                action(module)

    return act


_watch = Watch({name: _watched(action) for name, action in _ACTIONS.items()})


def _begin() -> None:
    _watch.start()
    for name, action in _ACTIONS.items():
        module = sys.modules.get(name)
        if module is not None:
            action(module)


def _end() -> None:
    _watch.stop()
    _rebind([(ours, stock) for stock, ours in _swapped])
    _swapped.clear()
    for owner, name, stock, ours in reversed(_methods):
        if vars(owner).get(name) is ours:
            setattr(owner, name, stock)
    _methods.clear()


def _set_layers(layers: list[DeviceInput]) -> None:
    """Takes the layers, the last of which counts; begins with the first and ends with the last."""
    from . import _installed

    was_installed = bool(_layers)
    _layers[:] = layers
    _installed.default_place = layers[-1] if layers else devices.HOST
    if layers and not was_installed:
        _begin()
    elif was_installed and not layers:
        _end()


def install(device: DeviceInput = None) -> None:
    """Makes this process load models by onehop; see the module.

    Parameters
    ----------
    device : str, int or torch.device, optional
        Where torch tensors go that a program asks for on the host: "cuda" saves the way through
        host memory where a program loads to the host and moves the model afterwards. Without a
        number it is the device that is current at each request, so that each rank gets its own.
        Left out, the host is the host. What is asked for on a device goes there in any case.

    Raises
    ------
    InvalidArgument
        It names no device.

    Warns
    -----
    UserWarning
        A package is of a major version that onehop was not tested with.

    Notes
    -----
    Once more is counted: it takes as many `uninstall`, and the last device is in force. Any thread;
    it is for the whole process. Child processes: ``python -m onehop run``.
    """
    place = devices.HOST if device is None else device
    devices.parse(place)  # raises if it is none
    with _lock:
        _set_layers([*_layers, place])


def uninstall() -> None:
    """Undoes the last `install`: with the first, every name is bound as it was. Else does nothing.

    Files that are open then, and slices of them, go on to work.
    """
    with _lock:
        if _layers:
            _set_layers(_layers[:-1])


@contextmanager
def installed(device: DeviceInput = None) -> Iterator[None]:
    """``with onehop.installed():`` is `install`, and `uninstall` at the end.

    Parameters
    ----------
    device : str, int or torch.device, optional
        As for `install`.
    """
    install(device)
    try:
        yield
    finally:
        uninstall()
