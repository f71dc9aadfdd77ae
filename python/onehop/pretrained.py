"""`from_pretrained`: a transformers model whose parameters are read straight onto the device.

All tensors of the files start on their way to the device, each to memory of its own. Meanwhile the
class builds the model, with its parameters on the meta device and its buffers real, so that what no
file holds (rotary frequencies, position numbers) is what the class computes; then the tensors take
the parameters' places. What the model wants in another type is converted at the end, one by one.
"""
from __future__ import annotations

import copy
import importlib
import os
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar

from . import _progress, _runtime, arenas, devices, errors
from ._move import Transfer, run
from ._progress import Progress
from .devices import Device, DeviceInput
from .into import StateMismatch, form, some
from .loading import Placement
from .model import Item
from .reading import open_model

__all__ = ["from_pretrained"]

T = TypeVar("T")

_STOCK = "use the class's own from_pretrained within onehop.installed()"


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Modules made here have their parameters on the meta device, and real buffers."""
    import torch
    from torch.utils.weak import WeakIdKeyDictionary

    module: Any = torch.nn.Module
    register = module.register_parameter
    made: Any = WeakIdKeyDictionary()

    def on_meta(parameter: Any) -> Any:
        if parameter is None or parameter.device.type == "meta":
            return parameter
        if parameter not in made:
            meta = type(parameter)(parameter.detach().to("meta"), parameter.requires_grad)
            # By this mark transformers leaves out random values, at 0.2 ms a parameter; what it
            # computes for buffers it still does.
            meta.__dict__.update(parameter.__dict__, _is_hf_initialized=True)
            made[parameter] = meta
        return made[parameter]

    def register_on_meta(self: Any, name: str, param: Any) -> None:
        register(self, name, on_meta(param))

    module.register_parameter = register_on_meta
    try:
        yield
    finally:
        module.register_parameter = register


def _config_of(cls: Any, folder: str, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The configuration, and the options that it did not take."""
    given = options.pop("config", None)
    if given is not None and not isinstance(given, (str, os.PathLike)):
        return copy.deepcopy(given), options
    maker = getattr(cls, "config_class", None)
    if maker is None:
        maker = importlib.import_module("transformers").AutoConfig
    config, left = maker.from_pretrained(given or folder, return_unused_kwargs=True, **options)
    left.pop("trust_remote_code", None)
    return config, left


def _refuse_quantised(config: Any) -> None:
    if getattr(config, "quantization_config", None) is not None:
        raise errors.Unsupported(f"the {config.model_type} model is quantised", _STOCK)


def _wanted_dtype(dtype: Any, config: Any, items: Sequence[Item]) -> Any:
    """The type of the parameters: asked for, the configuration's, or the file's first."""
    import torch

    if dtype in (None, "auto"):
        dtype = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    if isinstance(dtype, str):
        dtype = getattr(torch, dtype)
    if dtype is None:
        floats = (form(i)[0][0] for i in items if i.dtype in ("F16", "BF16", "F32", "F64"))
        dtype = next(floats, torch.get_default_dtype())
    return dtype


def _build(cls: Any, config: Any, folder: str, dtype: Any, options: dict[str, Any]) -> Any:
    """The model, with parameters on the meta device, tied, of the types that it wants."""
    setattr(config, "dtype" if hasattr(config, "dtype") else "torch_dtype", dtype)
    config.name_or_path = folder
    make = cls.from_config if hasattr(cls, "from_config") else cls._from_config
    with _parameters_on_meta():
        model = make(config, **options)
        model.tie_weights()
    _keep_wide(model, dtype)
    return model


def _keep_wide(model: Any, dtype: Any) -> None:
    """Sets the type of the parameters that the class keeps in 32 bits."""
    import torch

    kept: set[str] = set()
    if dtype == torch.float16:
        kept |= set(getattr(model, "_keep_in_fp32_modules", None) or ())
    if dtype in (torch.float16, torch.bfloat16):
        kept |= set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    if not kept:
        return
    words = re.compile("|".join(rf"(^|\.){name}($|\.)" for name in sorted(kept)))
    for name, parameter in model.named_parameters():
        if words.search(name):
            parameter.data = parameter.data.to(torch.float32)


# ---- names


def _steps(model: Any) -> list[Any]:
    """What transformers 5 does with the names and values of this model's files, in order."""
    try:
        mapping = importlib.import_module("transformers.conversion_mapping")
    except ImportError:
        return []
    steps = mapping.get_model_conversion_mapping(model)
    # Renaming comes first.
    return sorted(steps, key=lambda step: hasattr(step, "operations"))


def _renamed(name: str, steps: Sequence[Any]) -> str:
    """The name after all steps.

    Raises
    ------
    Unsupported
        One computes values.
    """
    for step in steps:
        renamed, pattern = step.rename_source_key(name)
        if pattern is not None and hasattr(step, "operations"):
            raise errors.Unsupported(
                f"transformers computes parameters from tensors like {name!r}", _STOCK)
        name = renamed
    # What versions before 5 do to old checkpoints.
    return re.sub(r"\bLayerNorm\.beta$", "LayerNorm.bias",
                  re.sub(r"\bLayerNorm\.gamma$", "LayerNorm.weight", name))


def _names(model: Any, items: Sequence[Item]) -> dict[str, str | None]:
    """The model's name for each of the file's; None for what the model has not."""
    state = model.state_dict(keep_vars=True)
    steps = _steps(model)
    prefix = getattr(model, "base_model_prefix", "") + "."
    found: dict[str, str | None] = {}
    for item in items:
        name = _renamed(item.name, steps)
        candidates = (name, prefix + name, name.removeprefix(prefix))
        found[item.name] = next((one for one in candidates if one in state), None)
    return found


def _check_names(model: Any, names: Mapping[str, str | None], folder: str) -> None:
    """Raises if a parameter is in no file, tied ones apart."""
    reached = set(names.values())
    parameters = dict(model.named_parameters(remove_duplicate=False))
    filled = {id(parameters[name]) for name in reached if name in parameters}
    missing = [name for name, parameter in parameters.items() if id(parameter) not in filled]
    if missing:
        raise StateMismatch(
            f"{folder} lacks {len(missing)} parameters of {type(model).__name__}: "
            f"{some([repr(name) for name in missing])}",
            f"{_STOCK}, which makes up what is missing")


# ---- memory


def _reserve(items: Sequence[Item], device: Device) -> None:
    """Has torch's allocator get what the tensors need by one call of the driver, and not by one
    for each, which takes 0.3 ms. Only a matter of time: without room for one piece it does not."""
    import torch

    if device.kind == "cuda":
        # Smaller ones come from pieces of another kind.
        nbytes = sum(-(-item.nbytes // 512) * 512 for item in items if item.nbytes > 1 << 20)
        with suppress(torch.cuda.OutOfMemoryError):
            torch.empty(nbytes, dtype=torch.uint8, device=str(device))


def _by_name(items: Sequence[Item], names: Mapping[str, str | None],
             tensors: Sequence[Any]) -> dict[str, Any]:
    """The items' tensors by the model's names, without those that it has not."""
    found: dict[str, Any] = {}
    for item, tensor in zip(items, tensors):
        name = names[item.name]
        if name in found:
            raise errors.InvalidArgument(f"{item.name!r} is the second tensor for {name!r}", _STOCK)
        if name is not None:
            found[name] = tensor
    return found


def _check_shapes(model: Any, tensors: Mapping[str, Any]) -> None:
    """Raises if a tensor is not of the shape that the model has under that name."""
    state = model.state_dict(keep_vars=True)
    wrong = [f"{name!r} is {list(tensor.shape)} in the file and {list(state[name].shape)} in the "
             "model" for name, tensor in tensors.items() if tensor.shape != state[name].shape]
    if wrong:
        raise StateMismatch(
            f"{len(wrong)} of {len(tensors)} tensors do not fit {type(model).__name__}: "
            f"{some(wrong, '; ')}", "use the class and the configuration that the files are of")


def _materialise(model: Any, device: Device, tensors: Mapping[str, Any]) -> dict[Any, Any]:
    """Puts tensors in the place of parameters, and what is in no file on the device.

    Parameters
    ----------
    tensors : mapping of str to torch.Tensor
        By the model's name; their bytes need not have landed.

    Returns
    -------
    dict
        The new parameters and buffers by what they replace.
    """
    state = model.state_dict(keep_vars=True)
    sources: dict[int, Any] = {}
    for name, tensor in tensors.items():
        sources.setdefault(id(state[name]), tensor)  # the first, of several names that are tied
    made: dict[Any, Any] = {}
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, old in table.items():
                if old is None:
                    continue
                if old not in made:
                    made[old] = _instead(old, device, sources.get(id(old)))
                table[name] = made[old]
    return made


def _instead(old: Any, device: Device, tensor: Any) -> Any:
    """The tensor as a parameter or buffer; without one, a buffer that is in no file, moved."""
    import torch

    if tensor is None:
        return old.to(str(device))
    if not isinstance(old, torch.nn.Parameter):
        return tensor
    parameter: Any = torch.nn.Parameter(tensor, requires_grad=False)
    parameter.__dict__.update(old.__dict__)
    return parameter


def _settle(made: Mapping[Any, Any]) -> None:
    """Gives what replaces something its type, now that the bytes are there."""
    import torch

    for old, new in made.items():
        if new.dtype != old.dtype:
            new.data = new.data.to(old.dtype)
        if isinstance(new, torch.nn.Parameter):
            new.requires_grad_(old.requires_grad)


def _load_generation(model: Any, folder: str) -> None:
    """Its generation settings: of their own file, else of the configuration's."""
    if not (hasattr(model, "can_generate") and model.can_generate()):
        return
    kind = importlib.import_module("transformers").GenerationConfig
    for source in ({}, {"config_file_name": "config.json", "_from_model_config": True}):
        try:
            model.generation_config = kind.from_pretrained(folder, **source)
            return
        except OSError:
            continue


def from_pretrained(cls: Any, path: str | os.PathLike[str], device: DeviceInput = None, *,
                    dtype: Any = None, torch_dtype: Any = None, route: str | None = None,
                    progress: Progress = None, **options: Any) -> Any:
    """Makes a transformers model whose parameters are read straight onto the device.

        model = onehop.from_pretrained(transformers.AutoModelForCausalLM, "models/llama", "cuda")

    Parameters
    ----------
    cls : type
        A class of transformers: a PreTrainedModel or an Auto class.
    path : str or path-like
        A folder with config.json and safetensors files.
    device : str, int or torch.device, optional
        The current GPU if left out, or the host where there is none.
    dtype, torch_dtype : torch.dtype or str, optional
        Of the parameters. "auto" or left out: the configuration's, or the file's.
    route, progress
        As for `onehop.load`.
    **options
        As the class's own from_pretrained takes them: config=, attn_implementation=,
        trust_remote_code=, and settings of the configuration.

    Returns
    -------
    transformers.PreTrainedModel
        In evaluation mode, with its generation settings; weights are tied as the configuration
        says.

    Raises
    ------
    Unsupported
        A quantised model, or one whose parameters transformers computes from the files' tensors:
        use the class's own from_pretrained within `onehop.installed` for these.
    StateMismatch
        The files lack parameters of the model, or shapes differ.
    OnehopError
        As for `onehop.load`.

    Notes
    -----
    What the files hold beyond the model is read, too, and dropped.

    While the model is built, torch's Module.register_parameter is another: build no other modules
    in other threads meanwhile.
    """
    folder = os.fspath(path)
    if not os.path.isdir(folder):
        raise errors.NotFound(f"{folder} is no folder",
                              "give one, as huggingface_hub.snapshot_download returns it", errno=2)
    runtime = _runtime.get(route=route)
    place = (arenas.choose_device("torch", runtime) if device is None else devices.parse(device))
    config, left = _config_of(cls, folder, options)
    _refuse_quantised(config)
    framework = arenas.TorchFramework(place)

    def build(items: Sequence[Item], made: Sequence[Any]) -> tuple[Any, dict[Any, Any]]:
        wanted = _wanted_dtype(dtype or torch_dtype, config, items)
        model = _build(cls, config, folder, wanted, left)
        names = _names(model, items)
        _check_names(model, names, folder)
        tensors = _by_name(items, names, made)
        _check_shapes(model, tensors)
        return model, _materialise(model, framework.device, tensors)

    try:
        model, made = _read(folder, runtime, framework, build, progress)
    except BaseException as error:
        # A notebook keeps the error and its frames, which must not keep the memory.
        traceback.clear_frames(error.__traceback__)
        raise
    _settle(made)
    if place.kind != framework.device.kind:
        model.to(str(place))
    _load_generation(model, folder)
    return model.eval()


def _read(folder: str, runtime: _runtime.Runtime, framework: arenas.TorchFramework,
          build: Callable[[Sequence[Item], Sequence[Any]], T], progress: Progress) -> T:
    """Reads all tensors, each to memory of its own; meanwhile makes something of them.

    Returns
    -------
    T
        What build returned; nothing else refers to the tensors any more.
    """
    with ExitStack() as stack:
        files = stack.enter_context(open_model(folder, runtime))
        selection = stack.enter_context(files.select())
        items = selection.items()
        framework.check(items)
        _reserve(items, framework.device)
        placement = Placement(selection, framework, "tensor")
        plan = placement.plan(runtime, stack)
        stack.callback(plan.close)
        on_turn = stack.enter_context(_progress.shown(progress, os.path.basename(files.path)))
        built, _ = run(Transfer(plan), lambda: build(items, placement.tensors()),
                       after_stream=framework.stream(), on_turn=on_turn)
    return built
