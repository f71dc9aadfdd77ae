"""What callers of `onehop.Dataset` say, checked and named as the rest takes it.

Each function raises InvalidArgument, or Unsupported, with what is wrong and what to say instead.
"""
from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import _dataset_order, _runtime, arenas, devices, errors
from ._dataset_feed import FeedOptions
from ._dataset_order import Plain, Sampler, Weighted
from ._dataset_source import Indices, Source
from .devices import Device, DeviceInput

Weights = Mapping[Any, float] | Sequence[float] | Any
"""By path, or one for each sample."""


def integer(what: str, value: Any) -> int:
    """An int, numpy's too, that is no bool."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise errors.InvalidArgument(f"{what} is {value!r}", "give an int")
    return int(value)


def positive(what: str, value: Any) -> int:
    """An int from 1 on."""
    if integer(what, value) < 1:
        raise errors.InvalidArgument(f"{what} is {value}", "give an int from 1 on")
    return int(value)


def from_zero(what: str, value: Any) -> int:
    """An int from 0 on."""
    if integer(what, value) < 0:
        raise errors.InvalidArgument(f"{what} is {value}", "count from 0")
    return int(value)


def choice(what: str, value: Any, allowed: Sequence[str] | Mapping[str, Any]) -> str:
    """One of some words."""
    if value not in tuple(allowed):
        raise errors.InvalidArgument(f"{what} is {value!r}", f"it is one of {', '.join(allowed)}")
    return str(value)


def shuffle_of(shuffle: Any) -> str:
    """A level's name; True is "sample"."""
    if shuffle is None or isinstance(shuffle, bool):
        return "sample" if shuffle else "none"
    return choice("shuffle", shuffle, _dataset_order.SHUFFLES)


def feed_options(device: DeviceInput, framework: str | None, verify: str, on_damage: str,
                 ring_bytes: int | None, buffers: int) -> tuple[str, FeedOptions]:
    """The framework's name, and how bytes come."""
    runtime = _runtime.get()
    target = None if device is None else devices.parse(device)
    kind = arenas.choose(framework, target, runtime)
    place: Device = target or arenas.choose_device(kind, runtime)
    if kind == "array" or place.kind not in ("cpu", "cuda") or (kind, place.kind) == ("numpy",
                                                                                    "cuda"):
        raise errors.Unsupported(f"batches on {place} are not made for framework {kind}",
                                 'take framework "torch" on the host or on a CUDA device, or '
                                 '"numpy" on the host')
    skip = choice("on_damage", on_damage, ("error", "skip")) == "skip"
    is_checked = choice("verify", verify, ("none", "sample")) == "sample"
    ring = 0 if ring_bytes is None else positive("ring_bytes", ring_bytes)
    return kind, FeedOptions(place, is_checked, skip, positive("buffers", buffers), ring)


def numbers_of(source: Source, indices: Any) -> Indices:
    """Samples' numbers, checked; negative ones count from the end."""
    made = np.asarray(indices)
    if made.ndim != 1 or (made.size and made.dtype.kind not in "iu"):
        raise errors.InvalidArgument(f"samples' numbers are {made.dtype} of shape {made.shape}",
                                     "give ints in one dimension")
    if made.size and made.dtype.kind == "u" and made.max() >= source.count:
        source.check_sample(int(made.max()))
    made = made.astype(np.int64)
    made = np.where(made < 0, made + source.count, made)
    bad = np.flatnonzero((made < 0) | (made >= source.count))
    if len(bad):
        source.check_sample(int(np.asarray(indices)[bad[0]]))
    return made.astype(np.uint64)


def stream_numbers(source: Source, streams: str | Sequence[str]) -> list[int]:
    """Streams' numbers by their names."""
    names = [streams] if isinstance(streams, str) else list(streams)
    for name in names:
        if name not in source.streams:
            some = ", ".join(map(repr, source.streams[:20]))
            raise errors.InvalidArgument(f"stream names {name!r}, which no sample is of",
                                         f"the dataset's streams are {some or 'none'}")
    return [source.streams.index(name) for name in names]


def refuse_missing(source: Source, mask: Any, has: Mapping[str, Any]) -> None:
    """Raises InvalidArgument if a sample of mask lacks a field; has is by the fields' names."""
    for name, one in has.items():
        lacking = np.flatnonzero(mask & ~one)
        if len(lacking):
            raise errors.InvalidArgument(
                f"sample {source.key(int(lacking[0]))!r} lacks field {name!r}, as do "
                f"{len(lacking) - 1} more", 'take missing="mask" or missing="skip"')


def sampler_of(source: Source, plain: Plain, weights: Weights | None, draws: int | None) -> Sampler:
    """What draws samples, by weights if there are any."""
    if weights is None:
        if draws is not None:
            raise errors.InvalidArgument("draws is given without weights",
                                         "give weights, or leave draws out")
        return plain
    count = source.count if plain.samples is None else len(plain.samples)
    return Weighted(plain, _dataset_order.weights_of(source, weights),
                    count if draws is None else positive("draws", draws))


def jpeg_decoder(framework: str, device: Device) -> Callable[[list[Any]], list[Any]]:
    """What makes pictures of a batch's JPEG rows, on the device."""
    if framework != "torch":
        raise errors.Unsupported('decode="jpeg" is asked for framework numpy',
                                 'take framework="torch"')
    try:
        vision: Any = importlib.import_module("torchvision.io")
    except (ImportError, OSError, RuntimeError) as error:  # the latter of another torch's
        raise errors.Unsupported(f'decode="jpeg" needs torchvision, which cannot be used: {error}',
                                 "install the torchvision of this torch, or leave decode out and "
                                 "decode the bytes yourself") from error
    name = str(device)
    return lambda rows: list(vision.decode_jpeg(rows, vision.ImageReadMode.RGB, device=name))
