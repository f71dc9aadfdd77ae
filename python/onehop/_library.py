"""The C library: where it is, and calls that raise.

It is loaded on first use. A call releases the GIL while it runs.
"""
from __future__ import annotations

import ctypes
import os
import threading
from types import TracebackType
from typing import Any, TypeVar

from . import _abi, errors

H = TypeVar("H", bound="Handle")

_FILE = "libonehop.so"
_lock = threading.Lock()
_loaded: ctypes.CDLL | None = None


def candidates() -> list[str]:
    """Where the library is looked for, in order.

    $ONEHOP_LIBRARY alone if it is set, else beside the package (a wheel keeps it in
    .onehop.mesonpy.libs, next to the package's folder; where a system has a folder of its own for
    compiled files, it went there), else what the system's loader finds.
    """
    given = os.environ.get("ONEHOP_LIBRARY")
    if given:
        return [given]
    folder = os.path.dirname(os.path.abspath(__file__))
    places = (folder, os.path.join(os.path.dirname(folder), ".onehop.mesonpy.libs"))
    found = [path for path in (os.path.join(place, _FILE) for place in places)
             if os.path.exists(path)]
    if not found:
        import sysconfig

        path = os.path.join(sysconfig.get_path("platlib"), ".onehop.mesonpy.libs", _FILE)
        found = [path] if os.path.exists(path) else [_FILE + ".0"]
    return found


def _open() -> ctypes.CDLL:
    path = candidates()[0]
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise errors.NotFound(f"the C library cannot be loaded: {error}",
                              "install onehop again, or let ONEHOP_LIBRARY name libonehop.so"
                              ) from error
    try:
        _abi.bind(library)
    except AttributeError as error:
        raise errors.Unsupported(f"{path} is of another version than the package: {error}",
                                 "install both together, or correct ONEHOP_LIBRARY") from error
    return library


def library() -> ctypes.CDLL:
    """The library, loaded and with its functions' types set."""
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                _loaded = _open()
    return _loaded


def call(name: str, *arguments: Any) -> None:
    """Calls a function whose last argument is a struct onehop_error, and raises what it fills.

    Parameters
    ----------
    name : str
        Without ``onehop_``.
    *arguments
        All but the error.
    """
    error = _abi.Error()
    status = getattr(library(), "onehop_" + name)(*arguments, ctypes.byref(error))
    if status:
        raise errors.from_struct(status, error)


def ask(name: str, *arguments: Any) -> None:
    """Calls a function that gives a status and no detail, and raises by the status."""
    status = getattr(library(), "onehop_" + name)(*arguments)
    if status:
        words = _abi.STATUSES.get(status, ("", f"status {status}", ""))[1]
        raise errors.from_struct(status, _abi.Error(message=f"onehop_{name}: {words}".encode()))


def run(name: str, *arguments: Any) -> Any:
    """Calls a function that cannot fail."""
    return getattr(library(), "onehop_" + name)(*arguments)


def text(address: int | None) -> str:
    """A NUL-ended UTF-8 string of the library's; empty for NULL."""
    return ctypes.string_at(address).decode("utf-8", "replace") if address else ""


def sized(struct: type[Any]) -> Any:
    """A struct of the library's with its size filled, as queries want it."""
    made = struct()
    made.size = ctypes.sizeof(struct)
    return made


class Handle:
    """Something of the C library's; `close` ends it, at the latest when it is collected.

    As a context manager it is closed at the end. A class of these names the function that ends it.
    """

    _end = ""

    def __init__(self) -> None:
        self.handle = ctypes.c_void_p()

    def __enter__(self: H) -> H:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Gives it back. Again is no error."""
        handle = getattr(self, "handle", None)
        if handle:
            self.handle = ctypes.c_void_p()
            run(self._end, handle)


def path_bytes(path: str | bytes | os.PathLike[Any]) -> bytes:
    """A path as the library takes it.

    Raises
    ------
    ValueError
        The path holds a NUL.
    """
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise errors.InvalidArgument("a path holds a NUL byte", "correct the path")
    return encoded
