"""vLLM's load format ``onehop``: ``vllm serve MODEL --load-format onehop``.

`register` is an entry point of the group vllm.general_plugins, which vLLM calls in each of its
processes. The loader is vLLM's default one, which finds (and downloads) the files, knows a model's
secondary weights, and checks that all parameters were loaded; only the iterator over the weights is
another: `onehop.stream` in file order, straight to the device of the model's parameters, with a
bounded share of its memory. Experts of other ranks are not read. Where `onehop.stream` shares the
reading among ranks, it gets the tensor-parallel group.

``--model-loader-extra-config`` takes a JSON object of ``max_device_bytes`` (default: 1 GiB, or
twice the largest tensor) and ``route``.
"""
from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from . import errors
from .installing import warn_if_untested
from .model import Model
from .streaming import stream

FORMAT = "onehop"

Wanted: TypeAlias = "Callable[[str], bool]"

_LOADERS = "vllm.model_executor.model_loader"
_FILTER = "vllm.model_executor.model_loader.ep_weight_filter"
_PARALLEL = "vllm.distributed.parallel_state"

_LEAST_BYTES = 1 << 30
_EXTRA = ("max_device_bytes", "route")


def register() -> None:
    """Registers the load format. Never raises: vLLM would not start for any format.

    Warns
    -----
    UserWarning
        This vLLM is of an untested major version, or has no loader as it is known here.
    """
    try:
        loaders = importlib.import_module(_LOADERS)
        warn_if_untested("vllm")
        loaders.register_model_loader(FORMAT)(_loader_over(loaders.DefaultModelLoader))
    except Exception as error:  # vLLM goes on without the format, and says so when it is asked for
        warnings.warn(f"onehop has no load format for this vLLM: {error}; use a tested version, or "
                      "python -m onehop run", stacklevel=2)


def _loader_over(default: Any) -> Any:
    """The loader's class, over vLLM's DefaultModelLoader."""

    class OnehopModelLoader(default):  # type: ignore[misc]
        """See the module."""

        def __init__(self, load_config: Any) -> None:
            self._extra = _checked(load_config.model_loader_extra_config or {})
            # The default loader looks for the files of the format that it is told.
            known = copy.copy(load_config)
            known.load_format = "safetensors"
            known.model_loader_extra_config = {}
            super().__init__(known)
            self._device: Any = None

        def load_weights(self, model: Any, model_config: Any) -> None:
            """Loads the weights into a model that vLLM has made."""
            self._device = _device_of(model)
            super().load_weights(model, model_config)

        def _get_weights_iterator(self, source: Any) -> Iterator[tuple[str, Any]]:
            folder, files, *_ = self._prepare_weights(
                source.model_or_path, source.subfolder, source.revision, source.fall_back_to_pt,
                source.allow_patterns_overrides)
            experts = getattr(self, "local_expert_ids", None)
            is_wanted = _chooser(experts, getattr(source, "is_unused_weight", None))
            group = _tp_group() if experts is None else None
            for path in _paths(folder, files):
                yield from _weights(path, source.prefix, is_wanted, self._device, group,
                                    **self._extra)

    return OnehopModelLoader


def _checked(extra: Any) -> dict[str, Any]:
    """The extra config, which may hold nothing unknown."""
    unknown = [key for key in extra if key not in _EXTRA]
    if unknown:
        raise errors.UnknownOption(f"model_loader_extra_config holds {', '.join(unknown)}",
                                   f"the load format {FORMAT} knows {' and '.join(_EXTRA)}")
    return dict(extra)


def _device_of(model: Any) -> Any:
    """The device of the model's parameters: the GPU if any is there, though others be offloaded."""
    found = [parameter.device for parameter in model.parameters()]
    for kind in ("cuda", "cpu"):
        for device in found:
            if device.type == kind:
                return device
    return "cuda"


def _chooser(experts: Any, is_unused: Callable[[str], bool] | None) -> Wanted | None:
    """Whether a tensor is to be read, by its name; None if all are."""
    if experts is None and is_unused is None:
        return None
    skip = importlib.import_module(_FILTER).should_skip_weight if experts is not None else None

    def is_wanted(name: str) -> bool:
        return not (skip and skip(name, experts)) and not (is_unused and is_unused(name))

    return is_wanted


def _tp_group() -> Any:
    """torch's process group of the tensor-parallel ranks; None for a single one."""
    try:
        group = importlib.import_module(_PARALLEL).get_tp_group()
    except (ImportError, AttributeError, AssertionError):  # the last: it is not initialised
        return None
    return group.device_group if group.world_size > 1 else None


def _paths(folder: str, files: list[str]) -> list[str]:
    """The folder, if its model is made of just these files: one plan then covers all of them."""
    try:
        with Model(folder) as model:
            is_all = set(model.files) == set(files)
    except errors.OnehopError:
        is_all = False
    return [folder] if is_all else sorted(files)


def _weights(path: str, prefix: str, is_wanted: Wanted | None, device: Any, group: Any,
             max_device_bytes: int | None = None,
             route: str | None = None) -> Iterator[tuple[str, Any]]:
    """Names, with the prefix, and tensors, in file order."""
    handed: set[str] = set()

    def named(pair: tuple[str, Any]) -> tuple[str, Any]:
        handed.add(pair[0])
        return prefix + pair[0], pair[1]

    shared: dict[str, Any] = {"device": device, "order": "file", "framework": "torch",
                              "route": route}
    if group is not None:
        shared["process_group"] = group
    bound = max_device_bytes or _bound(path)
    # map() and `yield from` keep no tensor that the model has let go.
    try:
        yield from map(named, stream(path, tensors=is_wanted, max_device_bytes=bound, **shared))
    except errors.Limit:
        # The model keeps the tensors that it is given, so that no bound can hold: the rest at once.
        def is_left(name: str) -> bool:
            return name not in handed and (is_wanted is None or is_wanted(name))

        yield from map(named, stream(path, tensors=is_left, **shared))


def _bound(path: str) -> int:
    """The default bound on device memory, in bytes."""
    with Model(path) as model, model.select() as everything:
        largest = max((item.nbytes for item in everything.items()), default=0)
    return max(_LEAST_BYTES, 2 * (largest + 512))
