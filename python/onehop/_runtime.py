"""The process's runtimes: worker threads, staging memory and open devices.

One is made on first use and kept until the process ends. A call that overrides an option gets a
second one with that option, kept as well. A forked child makes its own: what it inherited has no
threads.
"""
from __future__ import annotations

import os
import threading
from ctypes import byref, c_void_p
from typing import NamedTuple

from . import _abi, _library

OptionInput = str | int
"""An option as text, as the environment takes it (``"64MiB"``, ``"auto"``), or as a number."""


class Option(NamedTuple):
    """One option as it is in force.

    Attributes
    ----------
    value : str
        In the form that the environment takes.
    origin : str
        "caller", "environment", "config file" or "default".
    unit, fallback, range, doc : str
        Its unit, its default, the values that it takes, and what it does.
    """

    value: str
    origin: str
    unit: str
    fallback: str
    range: str
    doc: str


class Runtime:
    """A runtime of the C library. Never destroyed: objects made from it may outlive any caller.

    Attributes
    ----------
    handle : ctypes.c_void_p
        struct onehop_runtime *
    """

    def __init__(self, values: dict[str, OptionInput]) -> None:
        fields = _abi.RuntimeOptions()
        _library.run("runtime_options_init", byref(fields))
        for name, value in values.items():
            _library.call("runtime_options_set", byref(fields), name.encode(), str(value).encode())
        self.handle = c_void_p()
        _library.call("runtime_create", byref(fields), byref(self.handle))

    def options(self) -> dict[str, Option]:
        """Each option by name."""
        found = {}
        for index in range(_library.run("runtime_option_count", self.handle)):
            row = _library.sized(_abi.OptionValue)
            _library.ask("runtime_option_at", self.handle, index, byref(row))
            texts = (row.value, row.origin, row.unit, row.fallback, row.range, row.doc)
            found[_library.text(row.name)] = Option(*map(_library.text, texts))
        return found

    def query(self) -> _abi.RuntimeInfo:
        """Threads, memory and cores, in the C library's struct (sizes in bytes)."""
        info: _abi.RuntimeInfo = _library.sized(_abi.RuntimeInfo)
        _library.ask("runtime_query", self.handle, byref(info))
        return info

    def cuda_device_count(self) -> int:
        """How many GPUs the CUDA driver shows; 0 without a driver."""
        return int(_library.run("cuda_device_count", self.handle))

    def query_device(self, name: str) -> _abi.DeviceInfo:
        """The device called ``"host"`` or ``"cuda:N"``; it is opened.

        Raises
        ------
        NoDevice
            There is none; the message says why.
        """
        info: _abi.DeviceInfo = _library.sized(_abi.DeviceInfo)
        _library.call("device_query", self.handle, name.encode(), byref(info))
        return info

    def destroy(self) -> None:
        """Ends it. Nothing that was made from it may be left."""
        _library.run("runtime_destroy", self.handle)
        self.handle = c_void_p()


_lock = threading.Lock()
_values: dict[str, OptionInput] = {}
_made: dict[tuple[tuple[str, OptionInput], ...], Runtime] = {}


def _forget() -> None:
    """In a forked child: the parent's runtimes are of no use, and the lock may be held."""
    global _lock
    _lock = threading.Lock()
    _made.clear()


os.register_at_fork(after_in_child=_forget)


def _make(values: dict[str, OptionInput]) -> Runtime:
    """A new runtime; the ranks of a node that a launcher announces share its cores and cache."""
    made = Runtime(values)
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    if not ranks.isdecimal() or int(ranks) < 2:
        return made
    if made.options()["ranks_per_node"].origin != "default":
        return made
    made.destroy()
    return Runtime({**values, "ranks_per_node": int(ranks)})


def get(**overrides: OptionInput | None) -> Runtime:
    """The process's runtime, or one with some options overridden. None overrides nothing.

    Raises
    ------
    UnknownOption, OutOfRange
        Of an option, wherever it was set.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    values = {**_values, **given}
    key = tuple(sorted(values.items()))
    with _lock:
        found = _made.get(key)
        if found is None:
            found = _made[key] = _make(values)
        return found


def options(**values: OptionInput | None) -> dict[str, Option]:
    """Sets options for the loads that follow, and gives all that are then in force.

    Parameters
    ----------
    **values : str, int or None
        By name; see ``onehop options`` or the keys of the result. Text as the environment takes it
        (``ring_bytes="64MiB"``, ``route="direct"``), or a number. None takes a setting back, so
        that the environment, the config file or the default decides again.

    Returns
    -------
    dict of str to Option

    Raises
    ------
    UnknownOption, OutOfRange
        Nothing is changed then.
    """
    kept = {name: value for name, value in {**_values, **values}.items() if value is not None}
    with _lock:
        key = tuple(sorted(kept.items()))
        if key not in _made:
            _made[key] = _make(kept)
        _values.clear()
        _values.update(kept)
        return _made[key].options()


def version() -> str:
    """The C library's version, ``"0.1.0"``."""
    found: bytes = _library.run("version")
    return found.decode()


__all__ = ["Option", "OptionInput", "Runtime", "get", "options", "version"]
