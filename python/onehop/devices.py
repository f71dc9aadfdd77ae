"""Devices as callers name them: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``1``, ``torch.device``."""
from __future__ import annotations

import sys
from typing import Any, NamedTuple, TypeAlias

from . import errors

DeviceInput: TypeAlias = Any
"""str, int (a CUDA device), torch.device, or None."""

_TORCH_ONLY = ("mps", "xpu", "npu", "mlu", "musa", "hpu")


class Device(NamedTuple):
    """A device.

    Attributes
    ----------
    kind : str
        "cpu" (host memory), "cuda", or another of torch's kinds, which bytes reach by way of the
        host.
    number : int
        Of a CUDA device as the driver counts; 0 for the host.
    """

    kind: str
    number: int = 0

    @property
    def name(self) -> str:
        """As the C library names it; the host for what it does not know."""
        return f"cuda:{self.number}" if self.kind == "cuda" else "host"

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.number}"


HOST = Device("cpu")


def current_cuda() -> Device:
    """torch's current CUDA device where torch has one in use, else the first."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return Device("cuda", int(torch.cuda.current_device()))
    return Device("cuda", 0)


def _invalid(spec: DeviceInput) -> errors.InvalidArgument:
    return errors.InvalidArgument(f"device {spec} is invalid",
                                  'name one as "cpu", "cuda", "cuda:1" or 1')


def parse(spec: DeviceInput) -> Device:
    """The device that spec names. It need not be there.

    Parameters
    ----------
    spec : str, int or torch.device
        "host" is "cpu". "cuda" is the current CUDA device. An integer counts CUDA devices.

    Raises
    ------
    InvalidArgument
        It names none.
    """
    if isinstance(spec, Device):
        return spec
    if isinstance(spec, int):
        if spec < 0:
            raise _invalid(spec)
        return Device("cuda", int(spec))
    if not isinstance(spec, str):
        kind = getattr(spec, "type", None)
        if not isinstance(kind, str):
            raise _invalid(spec)
        index = getattr(spec, "index", None)
        spec = kind if index is None or kind == "cpu" else f"{kind}:{index}"
    kind, colon, number = spec.partition(":")
    if kind in ("cpu", "host") and not colon:
        return HOST
    if kind not in ("cuda", *_TORCH_ONLY) or (colon and not number.isdecimal()):
        raise _invalid(spec)
    if kind == "cuda" and not colon:
        return current_cuda()
    return Device(kind, int(number or 0))
