"""vLLM's load format onehop: names and signatures of the wheel, and the loader at work.

The loader runs over a small fake that has vLLM's names, and over vLLM's own sources out of its
wheel where there is one: VLLM_WHEEL names it (`pip download vllm --no-deps`).
"""
import contextlib
import glob
import inspect
import json
import os
import sys
import types
import warnings

from package import ROOT, Scratch, need, raised
from tap import Skip, case, check, holds, run, same

sys.path.insert(0, os.path.join(ROOT, "tests", "compat"))

import signatures  # noqa: E402
import versions  # noqa: E402
import vllm_modules  # noqa: E402

from onehop import errors, installing  # noqa: E402


def tables():
    try:
        return versions.tables()
    except ImportError:
        raise Skip("this Python has no tomllib") from None


def wheel():
    """The path of vLLM's wheel, or the case is skipped."""
    found = os.environ.get("VLLM_WHEEL") or next(iter(sorted(
        glob.glob(os.path.join(ROOT, "build", "compat", "vllm-*.whl")))), "")
    if not os.path.exists(found):
        raise Skip("VLLM_WHEEL names no wheel of vllm")
    return found


def wheels_version(path):
    return signatures.version_of(path)


# ---- names


@case
def the_packages_versions_are_those_of_versions_toml():
    same({name: list(known) for name, known in installing.TESTED.items()},
         {name: table["versions"] for name, table in tables().items()})


@case
def the_wheel_has_the_names_and_parameters_that_are_used():
    path, uses = wheel(), tables()["vllm"]["uses"]
    print(f"# {os.path.basename(path)}")
    for file, names in uses.items():
        found = signatures.in_wheel(path, file)
        for name, wanted in names.items():
            check(name in found, f"{file} has no {name}")
            if wanted != "a name":
                same(found[name], wanted, f"{file}: {name}")


@case
def the_fake_has_the_parameters_of_the_wheel():
    uses, compared = tables()["vllm"]["uses"], 0
    for names in uses.values():
        for name, wanted in names.items():
            found = vllm_modules
            for part in name.split("."):
                found = getattr(found, part, None)
            if wanted == "a name" or not inspect.isfunction(found):
                continue
            same(list(inspect.signature(found).parameters), wanted, name)
            compared += 1
    check(compared >= 9, f"only {compared} functions were compared")


@case
def the_entry_point_names_the_function_that_registers():
    try:
        import tomllib
    except ImportError:
        raise Skip("this Python has no tomllib") from None
    from onehop import _vllm

    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
        points = tomllib.load(file)["project"]["entry-points"]["vllm.general_plugins"]
    module, _, name = points["onehop"].partition(":")
    check(getattr(sys.modules[module], name) is _vllm.register, "it names another")


# ---- the loader


def model_folder(folder, shards=2):
    """A checkpoint of two layers in shards with an index; the tensors by name."""
    torch, save_file = need("torch"), need("safetensors.torch").save_file
    torch.manual_seed(7)
    tensors, places = {}, {}
    for layer in range(2):
        for part in ("q", "k", "v"):
            tensors[f"layers.{layer}.{part}.weight"] = torch.randn(16, 16)
        for expert in range(4):
            tensors[f"layers.{layer}.experts.{expert}.w.weight"] = torch.randn(8, 16)
    names = list(tensors)
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        save_file(part, os.path.join(folder, file))
        places.update(dict.fromkeys(part, file))
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
        json.dump({"metadata": {}, "weight_map": places}, file)
    return tensors


def toy_model(torch, keeps_all=False):
    """A model in vLLM's manner: q, k and v are one parameter, and load_weights fills it."""

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = torch.nn.Parameter(torch.zeros(48, 16), requires_grad=False)
            self.experts = torch.nn.Parameter(torch.zeros(4, 8, 16), requires_grad=False)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([Layer(), Layer()])
            self.seen = []

        def load_weights(self, weights):
            loaded = set()
            for name, tensor in list(weights) if keeps_all else weights:
                self.seen.append(name)
                parts = name.removeprefix("more.").split(".")
                layer = self.layers[int(parts[1])]
                if parts[2] == "experts":
                    layer.experts.data[int(parts[3])].copy_(tensor)
                    loaded.add(f"layers.{parts[1]}.experts")
                else:
                    at = 16 * "qkv".index(parts[2])
                    layer.qkv.data[at:at + 16].copy_(tensor)
                    loaded.add(f"layers.{parts[1]}.qkv")
            return loaded

    return Model()


def configs(folder, **extra):
    """vLLM's LoadConfig and ModelConfig, as far as the loader looks at them."""
    load = types.SimpleNamespace(
        load_format="onehop", model_loader_extra_config=extra, download_dir=None,
        ignore_patterns=[], use_tqdm_on_load=False, safetensors_load_strategy=None, device=None)
    return load, types.SimpleNamespace(model=folder, revision=None, quantization=None, is_moe=False,
                                       multimodal_config=None, model_weights=None)


def check_filled(torch, model, tensors):
    for name, tensor in tensors.items():
        _, layer, part, *rest = name.split(".")
        found = model.layers[int(layer)]
        if part == "experts":
            found = found.experts[int(rest[0])]
        else:
            at = 16 * "qkv".index(part)
            found = found.qkv[at:at + 16]
        check(torch.equal(found, tensor), f"{name} differs")


def loader_of(load_config):
    """What vLLM makes for the load format, once the plugin was called."""
    from onehop import _vllm

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _vllm.register()
        _vllm.register()  # vLLM may call it again
    return sys.modules[vllm_modules.LOADER].get_model_loader(load_config)


def check_loader():
    """All that the loader does, over whatever vllm is imported."""
    torch = need("torch")
    with Scratch() as folder:
        tensors = model_folder(folder)
        load, config = configs(folder)
        loader = loader_of(load)
        check(isinstance(loader, sys.modules[vllm_modules.LOADER].BaseModelLoader), "its base")
        same(load.load_format, "onehop", "the caller's config")
        loader.download_model(config)
        model = toy_model(torch)
        loader.load_weights(model, config)
        check_filled(torch, model, tensors)
        same(sorted(model.seen), sorted(tensors), "each tensor once")

        loader = loader_of(load)
        loader.local_expert_ids = {1}
        model = toy_model(torch)
        loader.load_weights(model, config)
        same(sorted(model.seen), sorted(name for name in tensors if "experts" not in name
                                        or ".1." in name.partition("experts")[2]))

        model = toy_model(torch)
        model.is_unused_checkpoint_weight = lambda name: ".experts.3." in name
        loader_of(load).load_weights(model, config)
        check(not any(".experts.3." in name for name in model.seen), "an unused tensor was read")

        # Tensors that a model keeps leave no room for others; it gets them all the same.
        load, _ = configs(folder, max_device_bytes=8192)
        model = toy_model(torch, keeps_all=True)
        loader_of(load).load_weights(model, config)
        check_filled(torch, model, tensors)

        with Scratch() as other:
            more = model_folder(other, shards=3)
            os.remove(os.path.join(other, "model.safetensors.index.json"))
            load, _ = configs(folder, route="buffered")
            loader = loader_of(load)
            model = toy_model(torch)
            model.secondary_weights = [type(loader).Source(
                other, None, prefix="more.", allow_patterns_overrides=["*-00002-*"])]
            loader.load_weights(model, config)
            same(len([name for name in model.seen if name.startswith("more.")]),
                 len(list(more)[1::3]))

        load, _ = configs(folder, threads=3)
        holds(str(raised(errors.UnknownOption, loader_of, load)), "threads")


@case
def the_loader_fills_a_model_over_the_fake():
    with vllm_modules.fake():
        check_loader()


@case
def the_loader_fills_a_model_over_the_wheels_own_sources():
    need("torch")
    need("transformers")
    path = wheel()
    with vllm_modules.from_wheel(path, wheels_version(path)):
        check_loader()


@case
def the_tensor_parallel_group_is_passed_where_stream_takes_one():
    from onehop import _vllm

    torch = need("torch")
    group = types.SimpleNamespace(world_size=2, device_group="the group")
    given, stock = [], _vllm.stream

    def stream(path, device=None, *, process_group=None, **named):
        given.append(process_group)
        return stock(path, device, **named)

    with Scratch() as folder, vllm_modules.fake(group), contextlib.ExitStack() as stack:
        stack.callback(setattr, _vllm, "stream", stock)
        _vllm.stream = stream
        tensors = model_folder(folder)
        load, config = configs(folder)
        model = toy_model(torch)
        loader_of(load).load_weights(model, config)
        check_filled(torch, model, tensors)
        same(given, ["the group"])
        group.world_size = 1
        loader_of(load).load_weights(model, config)
        # Ranks that read different experts cannot share the reading.
        group.world_size = 2
        loader = loader_of(load)
        loader.local_expert_ids = {0}
        loader.load_weights(model, config)
        same(given[1:], [None, None])


@case
def a_vllm_without_the_loader_starts_all_the_same():
    from onehop import _vllm

    with vllm_modules.fake():
        del sys.modules[vllm_modules.LOADER].DefaultModelLoader
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            _vllm.register()
        same(len(caught), 1)
        holds(str(caught[0].message), "DefaultModelLoader")
    with vllm_modules.nothing_left():
        if "vllm" not in sys.modules and not any(os.path.isdir(os.path.join(path, "vllm"))
                                                 for path in sys.path):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                _vllm.register()
            same(len(caught), 1)


if __name__ == "__main__":
    run()
