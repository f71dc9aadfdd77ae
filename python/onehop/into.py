"""`load_into`: a model's bytes straight into parameters that exist.

Names, types and shapes are compared for all tensors before the first byte moves. There is no second
copy of the model on the device: the C library writes where the parameters are.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, TypeAlias

from . import _progress, _runtime, devices, dtypes, errors, loading
from ._move import Buffer, Plan, Transfer
from ._progress import Progress
from .devices import Device
from .loading import Chooser
from .model import Item, Model, Path, TpPlan
from .reading import open_model

__all__ = ["StateMismatch", "load_into"]

Rename: TypeAlias = "Mapping[str, str | None] | Callable[[str], str | None] | None"
"""From a file's names to the target's; None as a result leaves the tensor out."""

_SHOWN = 5


class StateMismatch(errors.InvalidArgument, RuntimeError):
    """A model does not fit into the target; a RuntimeError, as torch's load_state_dict raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        return StateMismatch, (self.message, self.remedy)


class _Pair(NamedTuple):
    """An item of the model and the tensor that it goes to, by the target's name.

    place is what it has in common with tensors that it is tied to.
    """

    item: Item
    name: str
    tensor: Any
    place: Any


def some(words: Sequence[str], separator: str = ", ") -> str:
    """The first few, and how many more there are."""
    more = len(words) - _SHOWN
    return separator.join(words[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _state_of(target: Any) -> dict[str, Any]:
    """The target's tensors by name, the parameters themselves."""
    state = target.state_dict(keep_vars=True) if hasattr(target, "state_dict") else target
    if not isinstance(state, Mapping):
        raise errors.InvalidArgument(f"the target is a {type(target).__name__}",
                                     "give a torch.nn.Module or a dict of tensors")
    return dict(state)


def _renamed(rename: Rename, name: str) -> str | None:
    if rename is None:
        return name
    return rename(name) if callable(rename) else rename.get(name, name)


def _place(tensor: Any) -> Any:
    """What two names of tied parameters have in common."""
    import torch
    from torch.nn.parameter import is_lazy

    is_plain = tensor.layout == torch.strided and tensor.device.type != "meta"
    if not is_plain or is_lazy(tensor) or not tensor.numel():
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


class _Matching:
    """Which tensor of the model goes where.

    Attributes
    ----------
    pairs : list of _Pair
        Of tied parameters, too, each.
    missing, unexpected : list of str
        Names of the target that the model lacks, and the other way round. A name that is tied to
        one that the model has is not missing.
    """

    def __init__(self, items: Sequence[Item], state: dict[str, Any], rename: Rename) -> None:
        import torch

        self.pairs: list[_Pair] = []
        self.unexpected: list[str] = []
        sources: dict[str, str] = {}
        for item in items:
            name = _renamed(rename, item.name)
            if name is None:
                continue
            if name in sources:
                raise errors.InvalidArgument(
                    f"{item.name!r} and {sources[name]!r} both go to {name!r}", "correct rename")
            tensor = state.get(name)
            if not isinstance(tensor, torch.Tensor):
                self.unexpected.append(name)
                continue
            sources[name] = item.name
            self.pairs.append(_Pair(item, name, tensor, _place(tensor)))
        reached = {pair.place for pair in self.pairs}
        self.missing = [name for name, tensor in state.items() if name not in sources and not
                        (isinstance(tensor, torch.Tensor) and _place(tensor) in reached)]

    def distinct(self) -> list[_Pair]:
        """The pairs without those whose memory an earlier one fills."""
        first: dict[Any, _Pair] = {}
        for pair in self.pairs:
            first.setdefault(pair.place, pair)
        return list(first.values())


def form(item: Item) -> tuple[list[Any], tuple[int, ...]]:
    """torch's dtypes that hold the item, and the shape."""
    import torch

    if item.block_elements == 1:
        return [dtypes.torch_dtype(item.dtype, False, item.block_bytes)], item.shape
    shape = dtypes.raw_shape(item.shape, item.block_elements, item.block_bytes)
    own = getattr(torch, dtypes.TORCH.get(item.dtype, ""), torch.uint8)
    return [own, torch.uint8], shape


def _obstacle(tensor: Any) -> str | None:
    """Why bytes cannot go into the tensor; None if they can."""
    import torch
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    if is_traceable_wrapper_subclass(tensor) or tensor.layout != torch.strided:
        return f"is a {type(tensor).__name__} of tensors (load into those)"
    if tensor.device.type == "meta":
        return ("is on the meta device (call to_empty(device=...) first, or use "
                "onehop.from_pretrained)")
    if tensor.device.type not in ("cpu", "cuda"):
        return f"is on {tensor.device}, which bytes do not reach (load to the host, and copy_)"
    if not tensor.is_contiguous():
        return "is not contiguous (load into a contiguous one, and copy_)"
    return None


def _misfit(pair: _Pair) -> str | None:
    """What is wrong with a pair; None if it fits."""
    from torch.nn.parameter import is_lazy

    if is_lazy(pair.tensor):
        return f"{pair.name!r} has no shape yet (run the module once)"
    wanted, shape = form(pair.item)
    tensor = pair.tensor
    if tensor.dtype not in wanted or tuple(tensor.shape) != shape:
        return (f"{pair.name!r} is {wanted[0]} {list(shape)} in the file and {tensor.dtype} "
                f"{list(tensor.shape)} in the target")
    obstacle = _obstacle(tensor)
    return f"{pair.name!r} {obstacle}" if obstacle else None


def _check(matching: _Matching, what: str, strict: bool) -> None:
    """Raises StateMismatch, once for all that is wrong."""
    found = []
    misfits = [words for pair in matching.pairs if (words := _misfit(pair))]
    if misfits:
        found.append(f"{len(misfits)} of {len(matching.pairs)} tensors do not fit: "
                     f"{some(misfits, '; ')}")
    if strict and matching.missing:
        found.append("Missing key(s) in state_dict: "
                     f"{some([repr(name) for name in matching.missing])}")
    if strict and matching.unexpected:
        found.append("Unexpected key(s) in state_dict: "
                     f"{some([repr(name) for name in matching.unexpected])}")
    if not found:
        return
    remedy = ("let the types and shapes agree" if misfits else
              "name them alike by rename=, or let them be by strict=False")
    raise StateMismatch(f"Error(s) in loading {what}: {'. '.join(found)}", remedy)


class _Destinations:
    """Wraps the tensors' storages, each once, as the C library's buffers."""

    def __init__(self, runtime: _runtime.Runtime, device: Device) -> None:
        self._runtime, self._device = runtime, device
        self._buffers: dict[int, Buffer] = {}

    def of(self, tensor: Any) -> tuple[Buffer, int]:
        """The buffer, and where the tensor lies in it."""
        address = nbytes = 0
        if tensor.numel():
            storage = tensor.untyped_storage()
            address, nbytes = storage.data_ptr(), storage.nbytes()
        buffer = self._buffers.get(address)
        if buffer is None:
            buffer = Buffer(self._runtime, self._device.name, nbytes, address)
            self._buffers[address] = buffer
        return buffer, tensor.data_ptr() - address if nbytes else 0

    def close(self) -> None:
        """Gives the buffers back, once the plan is gone."""
        for buffer in self._buffers.values():
            buffer.close()


def _stream(device: Device) -> int | None:
    """The current CUDA stream, whose work comes before the first byte."""
    if device.kind != "cuda":
        return None
    import torch

    return int(torch.cuda.current_stream(str(device)).cuda_stream)


def _move(model: Model, pairs: Sequence[_Pair], choice: dict[str, Any],
          progress: Progress) -> None:
    """Moves all bytes: one plan for each device, all at once."""
    import torch

    if not pairs:
        return
    torch.autograd.graph.increment_version([pair.tensor for pair in pairs])
    by_device: dict[Any, dict[str, _Pair]] = {}
    for pair in pairs:
        by_device.setdefault(pair.tensor.device, {})[pair.item.name] = pair
    with ExitStack() as stack:
        transfers = []
        for place, wanted in by_device.items():
            device = devices.parse(place)
            destinations = _Destinations(model.runtime, device)
            stack.callback(destinations.close)
            selection = stack.enter_context(model.select(list(wanted), **choice))
            with loading.collector_paused():
                places = [destinations.of(wanted[i.name].tensor) for i in selection.items()]
            plan = Plan.into(selection, places)
            stack.callback(plan.close)
            transfers.append(stack.enter_context(Transfer(plan)))
            transfers[-1].start(_stream(device))
        on_turn = stack.enter_context(
            _progress.shown(progress, os.path.basename(model.path)))

        def on_any_turn(_: int, __: int) -> None:
            if on_turn:
                landed, total = zip(*(transfer.progress() for transfer in transfers))
                on_turn(sum(landed), sum(total))

        for transfer in transfers:
            transfer.wait(on_any_turn)


def load_into(target: Any, path: Path, *, rename: Rename = None, strict: bool = True,
              tensors: Chooser = None, tp: tuple[int, int] = (0, 1),
              tp_plan: TpPlan | None = None, tp_uneven: str = "refuse", route: str | None = None,
              progress: Progress = None) -> Any:
    """Loads a model into torch parameters that exist, with no second copy of it on the device.

    Parameters
    ----------
    target : torch.nn.Module or mapping of str to torch.Tensor
        A module's parameters and persistent buffers, or a state_dict; on the host, on GPUs, or on
        several of them. Tied parameters are filled once. Hooks of the module's load_state_dict are
        not run.
    path : path
        As for `onehop.load`.
    rename : mapping of str to str, or callable, optional
        From the file's names to the target's. What a mapping lacks keeps its name; None as a result
        leaves the tensor out.
    strict : bool
        Whether missing and unexpected names are an error.
    tensors, tp, tp_plan, tp_uneven, route, progress
        As for `onehop.load`; they speak of the file's names.

    Returns
    -------
    (missing_keys, unexpected_keys)
        The named tuple of torch's load_state_dict, in the target's names.

    Raises
    ------
    StateMismatch
        A ValueError and RuntimeError that lists the first few tensors whose dtype or shape differs,
        that are not contiguous or on the meta device, and, if strict, missing and unexpected names.
        No byte was moved.
    OnehopError
        As for `onehop.load`. If reading fails, the parameters hold a mixture of old and new.

    Notes
    -----
    Work that the current stream holds goes first; when this returns, every stream sees the new
    values. As for any write in place, a graph that has saved a parameter for its backward pass
    refuses to run it.
    """
    from torch.nn.modules.module import _IncompatibleKeys

    runtime = _runtime.get(route=route)
    state = _state_of(target)
    model = open_model(path, runtime)
    selection = loading.select(model, tensors, tp, tp_plan, tp_uneven)
    items = [] if selection is None else selection.items()
    with loading.collector_paused():
        matching = _Matching(items, state, rename)
        _check(matching, f"{model.path} into {type(target).__name__}", strict)
    choice = {"tp": tp, "tp_plan": tp_plan, "tp_uneven": tp_uneven}
    _move(model, matching.distinct(), choice, progress)
    return _IncompatibleKeys(matching.missing, matching.unexpected)
