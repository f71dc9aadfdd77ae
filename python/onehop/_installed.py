"""What stands in safetensors' place while onehop is installed.

The difference to `onehop.safe_open` and `onehop.load_file`: frameworks that this package does not
serve are left to safetensors, "cpu" may mean another device (see `onehop.install`), every tensor
owns its memory (programs save, copy and free parameters one by one), and tensors asked for one
after the other are read ahead.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any

from . import _gather, arenas, devices
from ._gather import Ahead
from .devices import Device, DeviceInput
from .model import Item, Path
from .safetensors import SafeSlice
from .safetensors import safe_open as _safe_open

stock_safe_open: Any = None
"""safetensors' own class, once it was replaced."""

default_place: DeviceInput = devices.HOST
"""Where tensors go that are asked for on the host; "cuda" is what is current at the request."""


class _Redirect:
    """What the host means in a context."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.is_used = False


_redirect: ContextVar[_Redirect | None] = ContextVar("onehop_redirect", default=None)


def host_means() -> Device:
    """Where tensors go that are asked for on the host, here and now."""
    here = _redirect.get()
    if here is None:
        return devices.parse(default_place)
    here.is_used = True
    return here.device


def is_redirected() -> bool:
    """Whether tensors that this context asked for on the host have gone to another place."""
    here = _redirect.get()
    return here is not None and here.is_used


@contextmanager
def host_meaning(device: Device | None) -> Iterator[None]:
    """Tensors that the context asks for on the host go to the device; None changes nothing."""
    if device is None:
        yield
        return
    token = _redirect.set(_Redirect(device))
    try:
        yield
    finally:
        _redirect.reset(token)


def _place(device: DeviceInput, framework: str) -> DeviceInput:
    """The device that a request for that one means."""
    if framework == "torch" and (device is None or devices.parse(device) == devices.HOST):
        return host_means()
    return device


class Slice(SafeSlice):
    """A slice that takes part in reading ahead where the whole tensor is asked for."""

    __slots__ = ("ahead",)

    def __init__(self, ahead: Ahead, name: str) -> None:
        super().__init__(ahead.file, name)
        self.ahead = ahead

    @property
    def item(self) -> Item:
        """The tensor that it is of."""
        return self._file.item(self._name)

    def on(self, device: Device) -> Slice:
        """The same with its result on another device."""
        return Slice(self.ahead.on(device), self._name)

    def __getitem__(self, index: Any) -> Any:
        if index is Ellipsis or (isinstance(index, slice) and index == slice(None)
                                 and self.item.shape):
            return self.ahead.take(self._name)
        return super().__getitem__(index)


class safe_open(_safe_open):  # noqa: N801 - it stands for safetensors' class of this name
    """As `onehop.safe_open`; see the module."""

    __slots__ = ("_ahead",)

    def __new__(cls, filename: Path, framework: str, device: DeviceInput = "cpu",
                **named: Any) -> Any:
        if isinstance(framework, str) and framework not in arenas.NAMES:
            return stock_safe_open(filename, framework, device, **named)
        return super().__new__(cls)

    def __init__(self, filename: Path, framework: str, device: DeviceInput = "cpu", *,
                 backend: str | None = None) -> None:
        kind = arenas.NAMES.get(framework, "") if isinstance(framework, str) else ""
        super().__init__(filename, framework, _place(device, kind), backend=backend)
        self._ahead: Ahead | None = Ahead(self._opened())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._ahead = None
        super().__exit__(kind, error, trace)

    def _reader(self) -> Ahead:
        self._opened()  # raises if it is closed
        assert self._ahead is not None
        return self._ahead

    def keys(self) -> list[str]:
        names = super().keys()
        self._reader().follow(names)
        return names

    def offset_keys(self) -> list[str]:
        names = super().offset_keys()
        self._reader().follow(names)
        return names

    def get_tensor(self, name: str) -> Any:
        return self._reader().take(name)

    def get_tensors(self) -> dict[str, Any]:
        file = self._opened()
        items = file.items
        return dict(zip(items, _gather.read([(file, item) for item in items.values()])))

    def get_slice(self, name: str) -> SafeSlice:
        self._opened().item(name)
        return Slice(self._reader(), name)


def load_file(filename: Path, device: DeviceInput = "cpu", *,
              backend: str | None = None) -> dict[str, Any]:
    """As `onehop.load_file`; see the module."""
    with safe_open(filename, framework="pt", device=device, backend=backend) as file:
        tensors: dict[str, Any] = file.get_tensors()
    return tensors
