"""What went wrong, as exceptions.

Each status of the C library has a class here that derives from `OnehopError` and from the exception
of Python's that fits, so that both ``except onehop.OnehopError`` and ``except FileNotFoundError``
work. ``str(error)`` is one sentence that names the file, the tensor or the offset and the rule, and
after a semicolon what to do about it. Errors can be pickled.

Where the safetensors package is imported, errors about data and arguments are instances of
``safetensors.SafetensorError`` too, so that code which catches that goes on to work.
"""
from __future__ import annotations

import sys
from typing import Any, ClassVar

from . import _abi

__all__ = [
    "Access", "Busy", "Cancelled", "DataError", "DeviceLost", "DriverError", "End", "FileChanged",
    "Forked", "InvalidArgument", "IOFailed", "Limit", "Malformed", "Mismatch", "NoDevice",
    "NoDeviceMemory", "NoMemory", "NoRoute", "NoSuchTensor", "NotFound", "OnehopError",
    "OutOfRange", "TimedOut", "UnknownOption", "Unsupported", "UnsupportedData",
]


class OnehopError(Exception):
    """Base of all errors of this package.

    Parameters
    ----------
    message : str
        One sentence without a final period.
    remedy : str
        What to do about it, a clause without a final period; empty if there is nothing to say.
    errno : int or None
        Of the failed system call.
    driver_code : int or None
        CUresult of the failed driver call.

    Attributes
    ----------
    status : int
        The C library's status, see ``include/onehop/status.h``.
    name : str
        Its name, ``"NOT_FOUND"``.
    """

    status: ClassVar[int] = 0
    message: str
    remedy: str
    errno: int | None
    driver_code: int | None

    def __init__(self, message: str, remedy: str = "", errno: int | None = None,
                 driver_code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.errno = errno
        self.driver_code = driver_code

    @property
    def name(self) -> str:
        """The status's name, ``"NOT_FOUND"``."""
        return _abi.STATUSES[self.status][0] if self.status in _abi.STATUSES else "UNKNOWN"

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restore, (self.status, self.message, self.remedy, self.errno, self.driver_code))


class DataError(OnehopError):
    """An error that safetensors would report as its SafetensorError."""

    def __new__(cls, *arguments: Any, **named: Any) -> DataError:
        return super().__new__(_also_safetensors(cls), *arguments, **named)


_mixed: dict[type[DataError], type[DataError]] = {}


def _also_safetensors(cls: type[DataError]) -> type[DataError]:
    """The class, also derived from safetensors.SafetensorError where that is imported."""
    theirs = getattr(sys.modules.get("safetensors"), "SafetensorError", None)
    if not isinstance(theirs, type) or issubclass(cls, theirs):
        return cls
    made = _mixed.get(cls)
    if made is None or not issubclass(made, theirs):
        members = {"__module__": cls.__module__, "__qualname__": cls.__qualname__,
                   "__doc__": cls.__doc__}
        made = _mixed[cls] = type(cls.__name__, (cls, theirs), members)
    return made


class InvalidArgument(DataError, ValueError):
    """The call is wrong."""

    status = _abi.INVALID_ARGUMENT


class UnknownOption(OnehopError, ValueError):
    """No option has that name; the remedy names the nearest."""

    status = _abi.UNKNOWN_OPTION


class OutOfRange(OnehopError, ValueError):
    """A value lies outside its range."""

    status = _abi.OUT_OF_RANGE


class NoSuchTensor(DataError, KeyError):
    """The model has no such tensor; the remedy names the nearest."""

    status = _abi.NO_SUCH_TENSOR


class NoMemory(OnehopError, MemoryError):
    """Host memory does not suffice."""

    status = _abi.NO_MEMORY


class NoDeviceMemory(OnehopError, MemoryError):
    """The device's memory does not suffice."""

    status = _abi.NO_DEVICE_MEMORY


class Limit(OnehopError, MemoryError):
    """A limit of the system or of an option is reached."""

    status = _abi.LIMIT


class Unsupported(DataError, NotImplementedError):
    """This machine or this build cannot do it."""

    status = _abi.UNSUPPORTED


class NoDevice(DataError, RuntimeError):
    """There is no such device; the message says why."""

    status = _abi.NO_DEVICE


class NoRoute(OnehopError, RuntimeError):
    """A route was forced that cannot work here."""

    status = _abi.NO_ROUTE


class IOFailed(OnehopError, OSError):
    """The operating system failed a read."""

    status = _abi.IO


class NotFound(OnehopError, FileNotFoundError):
    """No file of that name."""

    status = _abi.NOT_FOUND


class Access(OnehopError, PermissionError):
    """The file may not be read."""

    status = _abi.ACCESS


class FileChanged(OnehopError, OSError):
    """The file changed while it was read."""

    status = _abi.FILE_CHANGED


class Malformed(DataError, ValueError):
    """The file breaks a rule of its format."""

    status = _abi.MALFORMED


class UnsupportedData(DataError, ValueError):
    """The file holds what this version does not know, or what the framework has no type for."""

    status = _abi.UNSUPPORTED_DATA


class Mismatch(DataError, ValueError):
    """Bytes in memory differ from the file's."""

    status = _abi.MISMATCH


class Busy(OnehopError, RuntimeError):
    """The object is in use."""

    status = _abi.BUSY


class Cancelled(OnehopError, InterruptedError):
    """The transfer was cancelled."""

    status = _abi.CANCELLED


class TimedOut(OnehopError, TimeoutError):
    """A time limit passed."""

    status = _abi.TIMED_OUT


class Forked(OnehopError, RuntimeError):
    """The object belongs to the parent process."""

    status = _abi.FORKED


class End(OnehopError, StopIteration):
    """There is nothing more."""

    status = _abi.END


class DriverError(OnehopError, RuntimeError):
    """The device's driver failed."""

    status = _abi.DRIVER


class DeviceLost(OnehopError, RuntimeError):
    """The device is lost; only a new process can use it again."""

    status = _abi.DEVICE_LOST


CLASSES: dict[int, type[OnehopError]] = {
    cls.status: cls
    for cls in (InvalidArgument, UnknownOption, OutOfRange, NoSuchTensor, NoMemory, NoDeviceMemory,
                Limit, Unsupported, NoDevice, NoRoute, IOFailed, NotFound, Access, FileChanged,
                Malformed, UnsupportedData, Mismatch, Busy, Cancelled, TimedOut, Forked, End,
                DriverError, DeviceLost)
}
"""The class of each status."""


def _restore(status: int, message: str, remedy: str, errno: int | None,
             driver_code: int | None) -> OnehopError:
    """An error of the status's class: what pickle calls."""
    return CLASSES.get(status, OnehopError)(message, remedy, errno, driver_code)


def from_struct(status: int, error: _abi.Error) -> OnehopError:
    """The exception for a status and what the C library wrote about it."""
    message = error.message.decode("utf-8", "replace")
    if not message:
        message = _abi.STATUSES[status][1] if status in _abi.STATUSES else f"status {status}"
    return _restore(status, message, error.remedy.decode("utf-8", "replace"),
                    error.os_errno or None, error.driver_code or None)
