"""Stand-ins for vLLM, which is too large to install for a test: `fake` and `from_wheel`.

`fake` makes the few modules that onehop's loader touches, with vLLM's names and parameters (a test
holds them against versions.toml) and the least that they must do. `from_wheel` runs vLLM's own
loading modules out of its wheel, over stand-ins for all that they import. Both are context managers
that leave sys.modules as it was.
"""
import contextlib
import glob
import importlib.machinery
import importlib.util
import json
import os
import re
import sys
import types
import zipfile
from dataclasses import dataclass

LOADER = "vllm.model_executor.model_loader"


@contextlib.contextmanager
def nothing_left():
    """Modules of vLLM's that are imported meanwhile are forgotten."""
    before = dict(sys.modules)
    try:
        yield
    finally:
        for name in set(sys.modules) - set(before):
            if name.partition(".")[0] in ("vllm", "regex"):
                del sys.modules[name]


# ---- the least


def _module(name, **members):
    made = sys.modules[name] = types.ModuleType(name)
    made.__path__ = []
    vars(made).update(members)
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, made)
    return made


class BaseModelLoader:
    def __init__(self, load_config):
        self.load_config = load_config


@dataclass
class _Source:
    model_or_path: str
    revision: str
    subfolder: str = None
    prefix: str = ""
    fall_back_to_pt: bool = True
    allow_patterns_overrides: list = None
    is_unused_weight: object = None


class DefaultModelLoader(BaseModelLoader):
    Source = _Source

    def __init__(self, load_config):
        super().__init__(load_config)
        self.local_expert_ids = None
        if load_config.model_loader_extra_config:
            raise ValueError("unexpected extra config")

    def _prepare_weights(self, model_name_or_path, subfolder, revision, fall_back_to_pt,
                         allow_patterns_overrides):
        if self.load_config.load_format != "safetensors":
            raise ValueError(f"Unknown load_format: {self.load_config.load_format}")
        folder = os.path.join(model_name_or_path, subfolder or "")
        files = glob.glob(os.path.join(folder, (allow_patterns_overrides or ["*.safetensors"])[0]))
        index = os.path.join(folder, "model.safetensors.index.json")
        if os.path.exists(index) and not allow_patterns_overrides:
            with open(index, encoding="utf-8") as file:
                named = set(json.load(file)["weight_map"].values())
            files = [path for path in files if os.path.basename(path) in named]
        return folder, files, True, "model.safetensors.index.json"

    def _get_weights_iterator(self, source):
        raise NotImplementedError

    def get_all_weights(self, model_config, model):
        yield from self._get_weights_iterator(self.Source(
            model_config.model, model_config.revision,
            is_unused_weight=getattr(model, "is_unused_checkpoint_weight", None)))
        for source in getattr(model, "secondary_weights", ()):
            yield from self._get_weights_iterator(source)

    def download_model(self, model_config):
        self._prepare_weights(model_config.model, None, model_config.revision, True, None)

    def load_weights(self, model, model_config):
        loaded = model.load_weights(self.get_all_weights(model_config, model))
        missing = {name for name, _ in model.named_parameters()} - loaded
        if missing:
            raise ValueError(f"Following weights were not initialized from checkpoint: {missing}")


def should_skip_weight(weight_name, local_expert_ids):
    found = re.search(r"\.experts\.(\d+)\.", weight_name)
    return bool(found) and int(found[1]) not in local_expert_ids


_formats = {}


def register_model_loader(load_format):
    def register(loader):
        _formats[load_format] = loader
        return loader

    return register


def get_model_loader(load_config):
    return _formats[load_config.load_format](load_config)


@contextlib.contextmanager
def fake(tp_group=None):
    """vLLM's names. tp_group: what get_tp_group returns; AssertionError for None."""

    def get_tp_group():
        assert tp_group is not None, "tensor model parallel group is not initialized"
        return tp_group

    with nothing_left():
        _formats.clear()
        _module("vllm", __version__="0.33.0")
        _module("vllm.model_executor")
        _module(LOADER, register_model_loader=register_model_loader,
                get_model_loader=get_model_loader, BaseModelLoader=BaseModelLoader,
                DefaultModelLoader=DefaultModelLoader)
        _module(LOADER + ".base_loader", BaseModelLoader=BaseModelLoader)
        _module(LOADER + ".default_loader", DefaultModelLoader=DefaultModelLoader)
        _module(LOADER + ".ep_weight_filter", should_skip_weight=should_skip_weight)
        _module("vllm.distributed")
        _module("vllm.distributed.parallel_state", get_tp_group=get_tp_group)
        yield


# ---- vLLM's own sources


class _Anything:
    """Takes any use: as a decorator it changes nothing, as a base class it is none."""

    def __call__(self, *arguments, **named):
        is_decorated = len(arguments) == 1 and not named and callable(arguments[0]) and not \
            isinstance(arguments[0], _Anything)
        return arguments[0] if is_decorated else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __mro_entries__(self, bases):
        return ()

    def __getitem__(self, index):
        return self

    def __or__(self, other):
        return self

    __ror__ = __or__


class _StandIn(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


_REAL = {LOADER: "vllm/model_executor/model_loader/__init__.py"}
_REAL.update({f"{LOADER}.{name}": f"vllm/model_executor/model_loader/{name}.py"
              for name in ("base_loader", "default_loader", "ep_weight_filter", "weight_utils")})


class _Finder:
    """Finds vLLM's modules: the loading ones in the wheel, and stand-ins for all others."""

    def __init__(self, wheel, own):
        self._wheel = wheel
        self._own = own

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != "vllm":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return (types.ModuleType if spec.name in _REAL else _StandIn)(spec.name)

    def exec_module(self, module):
        name = module.__name__
        if name in _REAL:
            with zipfile.ZipFile(self._wheel) as archive:
                source = archive.read(_REAL[name])
            exec(compile(source, _REAL[name], "exec"), vars(module))
        vars(module).update(self._own.get(name, {}))


@contextlib.contextmanager
def from_wheel(wheel, version):
    """vLLM's loading modules as the wheel has them."""
    def no_group():
        raise AssertionError("tensor model parallel group is not initialized")

    own = {"vllm": {"__version__": version},
           "vllm.distributed.parallel_state": {"get_tp_group": no_group},
           LOADER + ".weight_utils": {"maybe_download_from_modelscope": lambda *_: None}}
    finder = _Finder(wheel, own)
    with nothing_left():
        if importlib.util.find_spec("regex") is None:
            sys.modules["regex"] = re
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
