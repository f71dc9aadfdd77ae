"""diffusers' loading while onehop is installed: each file by one plan, straight to the device.

diffusers loads every file to the host and moves its tensors afterwards, by the device map. Where
the map names a single device, "the host" is made to mean that device while such a load runs, so
that what moves the tensors finds them in place. A map of several devices is left as it is:
diffusers divides the model among them only after it has loaded it.
"""
from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from . import devices, errors
from ._installed import host_meaning, is_redirected
from .devices import Device

_AUTOMATIC = ("auto", "balanced", "balanced_low_0", "sequential")


def single_device(device_map: Any) -> Device | None:
    """The device that the map puts everything on; None for the host, several, or none named yet."""
    if isinstance(device_map, Mapping):
        named = {str(device): device for device in device_map.values()}
        if len(named) != 1:
            return None
        device_map = next(iter(named.values()))
    if device_map is None or device_map == "disk" or device_map in _AUTOMATIC:
        return None
    try:
        found = devices.parse(device_map)
    except errors.InvalidArgument:
        return None
    return None if found == devices.HOST else found


def from_pretrained(stock: Callable[..., Any]) -> Callable[..., Any]:
    """What takes the place of the function of ModelMixin.from_pretrained."""

    @functools.wraps(stock)
    def from_pretrained(cls: type, *arguments: Any, **named: Any) -> Any:
        with host_meaning(single_device(named.get("device_map"))):
            return stock(cls, *arguments, **named)

    return from_pretrained


def load_shard_file(stock: Callable[..., Any]) -> Callable[..., Any] | None:
    """What takes the place of _load_shard_file, which may run in a thread of its own.

    None if theirs is another function.
    """
    signature = inspect.signature(stock)
    if "device_map" not in signature.parameters:
        return None

    @functools.wraps(stock)
    def load_shard_file(*arguments: Any, **named: Any) -> Any:
        given = signature.bind(*arguments, **named).arguments
        with host_meaning(single_device(given.get("device_map"))):
            return stock(*arguments, **named)

    return load_shard_file


def warm_up(stock: Callable[..., Any]) -> Callable[..., Any]:
    """What takes the place of _caching_allocator_warmup.

    It makes room for the weights, which would be room for a second copy of those that are there.
    """

    @functools.wraps(stock)
    def warm_up(*arguments: Any, **named: Any) -> Any:
        return None if is_redirected() else stock(*arguments, **named)

    return warm_up
