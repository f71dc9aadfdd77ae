"""transformers' loading while onehop is installed: all shards by one plan, straight to the devices.

transformers opens all shards on the host, takes a slice of each tensor, and hands each slice with
its device and its dtype to worker threads, which read it and move it. `Collector` stands between:
it only notes what is asked for, and gives a future for it. When the first future is asked for its
tensor, all is noted, and one plan over all shards brings every tensor to its device (one plan a
device, if they are several), so that what comes after moves nothing. Exactly the tensors that the
model wants are read, each byte once, and the peak of memory is the model itself, since each tensor
has memory of its own from the start.

Tensors that have to be cast, or that others are made of (experts that are merged), are kept out of
that plan, since they are there twice for a while: they are read when their turn comes, 256 MiB at a
time, and given back as they are used up. Parts of a tensor-parallel plan, and tensors that
transformers itself wants one after the other (offloading, quantising), are read by themselves,
straight to the device.

A transformers without the function that this takes the place of still gets its tensors from onehop,
one after the other, read ahead (`_gather.Ahead`), on the device that it opens its files for.
"""
from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any
from weakref import WeakKeyDictionary

from . import _gather, devices, dtypes, errors
from ._installed import Slice, host_means
from .devices import Device

_BATCH_BYTES = 256 << 20


class _Promise(Future[Any]):
    """A tensor that its collector reads when it is asked for.

    Parameters
    ----------
    collector : Collector
    source : Slice
        Of the whole tensor, on the device where it is wanted.
    dtype : torch.dtype or None
        What it is cast to.
    """

    def __init__(self, collector: Collector, source: Slice, dtype: Any) -> None:
        super().__init__()
        self._collector = collector
        self.source = source
        self._dtype = dtype

    def result(self, timeout: float | None = None) -> Any:
        """The tensor. It is read here and now, so that there is nothing to time out."""
        if not self.done():
            self._collector.read_for(self)
        return super().result(timeout)

    def keep(self, tensor: Any) -> None:
        """Takes the tensor as it was read."""
        self.set_result(tensor if self._dtype is None else tensor.to(dtype=self._dtype))


class Collector:
    """The tensors that one load asks for; see the module. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._group_of: dict[_Promise, list[_Promise]] = {}
        self._kept: list[_Promise] = []
        self._batch: list[_Promise] = []
        self._batch_bytes = 0

    def add(self, source: Slice, dtype: Any, is_part: bool) -> Future[Any]:
        """Notes a tensor. is_part: another one will be made of it."""
        promise, item = _Promise(self, source, dtype), source.item
        is_as_stored = dtype is None or str(dtype) == f"torch.{dtypes.TORCH.get(item.dtype)}"
        with self._lock:
            if is_as_stored and not is_part:
                group = self._kept
            else:
                if self._batch_bytes + item.nbytes > _BATCH_BYTES:
                    self._batch, self._batch_bytes = [], 0
                self._batch_bytes += item.nbytes
                group = self._batch
            group.append(promise)
            self._group_of[promise] = group
        return promise

    def read_for(self, promise: _Promise) -> None:
        """Reads the tensor, and all of its group."""
        with self._lock:
            group = self._group_of.get(promise, [])
            by_device: dict[Device, list[_Promise]] = {}
            for one in group:
                if one.done():  # by a call that failed at another device
                    continue
                by_device.setdefault(one.source.ahead.device, []).append(one)
            for promises in by_device.values():
                tensors = _gather.read([(one.source.ahead.file, one.source.item)
                                        for one in promises])
                for one in reversed(promises):
                    one.keep(tensors.pop())
                    del self._group_of[one]
            group.clear()


_COMMON = ["thread_pool", "tensor", "device", "dtype"]
_LATER = {"sharding_op", "tensor_idx"}


def spawn_materialize(stock: Callable[..., Any]) -> Callable[..., Any] | None:
    """What takes the place of transformers' function of that name; None if theirs is another one.

    It gives a future where it gets a pool of threads, as theirs does, and else a callable.
    """
    names = list(inspect.signature(stock).parameters)
    if names[:4] != _COMMON or not set(names[4:]) <= _LATER:
        return None
    collectors: WeakKeyDictionary[Any, Collector] = WeakKeyDictionary()

    @functools.wraps(stock)
    def spawn_materialize(thread_pool: Any, tensor: Any, device: Any = None, dtype: Any = None,
                          *more: Any, **named: Any) -> Any:
        if isinstance(tensor, Slice):
            given = {**dict(zip(names[4:], more)), **named}
            tensor, device = _moved(tensor, device)
            if thread_pool is not None and given.get("sharding_op") is None:
                collector = collectors.setdefault(thread_pool, Collector())
                return collector.add(tensor, dtype, given.get("tensor_idx") is not None)
        return stock(thread_pool, tensor, device, dtype, *more, **named)

    return spawn_materialize


def _moved(source: Slice, device: Any) -> tuple[Slice, Any]:
    """The slice with its result on the device, and the device, which "cpu" may only stand for."""
    if device is None:
        return source, None
    try:
        wanted = devices.parse(device)
    except errors.InvalidArgument:
        return source, device  # one that only torch knows: it moves the tensor there itself
    if wanted == devices.HOST and host_means() != devices.HOST:
        wanted = host_means()
        device = str(wanted)
    return source.on(wanted), device
