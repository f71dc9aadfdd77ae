"""onehop.load_into and onehop.from_pretrained: as torch's load_state_dict, as transformers' own."""
import json
import os
import pickle

from package import Scratch, need, noise, raised, safetensors, seeded
from tap import Skip, case, check, holds, run, same

import onehop
from onehop import errors
from onehop.into import StateMismatch

# ---- load_into


def network(torch, dtype=None):
    """A module with buffers, tied parameters, an empty one, and one that is a view of another."""

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(5, 7, dtype=dtype)
            self.norm = torch.nn.BatchNorm1d(7, dtype=dtype)
            self.last = torch.nn.Linear(5, 7, bias=False, dtype=dtype)
            self.last.weight = self.first.weight
            self.empty = torch.nn.Parameter(torch.zeros(0, 3, dtype=dtype))
            both = torch.zeros(4, 6, dtype=dtype)
            self.upper = torch.nn.Parameter(both[:2])
            self.lower = torch.nn.Parameter(both[2:])
            self.register_buffer("kept", torch.zeros(3, dtype=torch.int64))
            self.register_buffer("made", torch.full((3,), 7.0), persistent=False)

    return Network()


def saved(folder, torch, model, leave=()):
    """Writes the module's state; tied names once. Returns the path."""
    seen, tensors = set(), []
    names = {"torch.float32": "F32", "torch.float16": "F16", "torch.int64": "I64"}
    for name, tensor in model.state_dict().items():
        if name in leave or (tensor.data_ptr() in seen and tensor.numel()):
            continue
        seen.add(tensor.data_ptr())
        data = bytes(tensor.reshape(-1).view(torch.uint8).numpy()) if tensor.numel() else b""
        tensors.append((name, names[str(tensor.dtype)], list(tensor.shape), data))
    return safetensors(os.path.join(folder, "m.safetensors"), tensors)


def scrambled(torch, model):
    """The module with other values."""
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(torch.randint(-99, 99, tensor.shape))
    return model


def check_alike(torch, got, want):
    for name, tensor in want.state_dict().items():
        check(torch.equal(got.state_dict()[name], tensor), f"{name} differs")


@case
def parameters_and_buffers_are_filled_where_they_are():
    torch = need("torch")
    with Scratch() as folder:
        want = scrambled(torch, network(torch))
        path, got = saved(folder, torch, want), network(torch)
        places = {name: tensor.data_ptr() for name, tensor in got.state_dict().items()}
        result = onehop.load_into(got, path)
        same(str(result), "<All keys matched successfully>")
        same((result.missing_keys, result.unexpected_keys), ([], []))
        check_alike(torch, got, want)
        same({name: tensor.data_ptr() for name, tensor in got.state_dict().items()}, places)
        same(got.made.tolist(), [7.0] * 3)
        check(got.first.weight is got.last.weight and got.first.weight.requires_grad, "untied")


@case
def a_state_dict_and_shards_are_taken_too():
    torch, source = need("torch"), seeded()
    with Scratch() as folder:
        for shard in range(3):
            safetensors(os.path.join(folder, f"{shard}.safetensors"),
                        [(f"{shard}.{i}", "BF16", [33, 9], noise(source, "BF16", [33, 9]))
                         for i in range(5)])
        want = onehop.load(folder, "cpu", framework="torch")
        state = {name: torch.zeros_like(tensor) for name, tensor in want.items()}
        seen = []
        onehop.load_into(state, folder, progress=lambda *bytes_: seen.append(bytes_))
        for name, tensor in want.items():
            check(torch.equal(state[name].view(torch.int16), tensor.view(torch.int16)), name)
        same(seen[-1], (15 * 33 * 18, 15 * 33 * 18))
        # A tensor-parallel part.
        part = {name: torch.zeros(11, 9, dtype=torch.bfloat16) for name in want}
        onehop.load_into(part, folder, tp=(1, 3), tp_plan={"*": 0})
        for name, tensor in want.items():
            check(torch.equal(part[name].view(torch.int16), tensor[11:22].view(torch.int16)), name)


@case
def names_are_those_that_load_state_dict_reports():
    torch = need("torch")
    with Scratch() as folder:
        want = scrambled(torch, network(torch))
        path = saved(folder, torch, want, leave=("norm.bias", "kept"))
        state = {name: torch.zeros_like(tensor) for name, tensor in want.state_dict().items()}
        del state["first.bias"]
        theirs = Holder(torch, state).load_state_dict(onehop.load_file(path), strict=False)
        ours = onehop.load_into(Holder(torch, state), path, strict=False)
        same(type(ours), type(theirs))
        same((ours.missing_keys, ours.unexpected_keys),
             (theirs.missing_keys, theirs.unexpected_keys))
        same(sorted(ours.missing_keys), ["kept", "last.weight", "norm.bias"])
        error = raised(StateMismatch, onehop.load_into, state, path)
        check(isinstance(error, RuntimeError) and isinstance(error, ValueError), "its kinds")
        holds(str(error), "Missing key(s) in state_dict: 'kept', 'norm.bias', 'last.weight'. "
                          "Unexpected key(s) in state_dict: 'first.bias'; name them alike")
        again = pickle.loads(pickle.dumps(error))
        same((type(again), str(again)), (StateMismatch, str(error)))


def Holder(torch, state):
    """A module with these names."""
    root = torch.nn.Module()
    for name, tensor in state.items():
        module, (*path, last) = root, name.split(".")
        for part in path:
            if not hasattr(module, part):
                module.add_module(part, torch.nn.Module())
            module = getattr(module, part)
        module.register_buffer(last, tensor.clone())
    return root


@case
def all_that_does_not_fit_is_said_at_once_and_nothing_moves():
    torch = need("torch")
    with Scratch() as folder:
        want = scrambled(torch, network(torch))
        path, got = saved(folder, torch, want), network(torch)
        got.upper = torch.nn.Parameter(torch.zeros(6, 2))
        got.norm.half()
        before = {name: tensor.clone() for name, tensor in got.state_dict().items()}
        error = raised(RuntimeError, onehop.load_into, got, path, strict=False)
        holds(str(error), "into Network: 5 of 11 tensors do not fit: ")
        holds(str(error), "'upper' is torch.float32 [2, 6] in the file and torch.float32 [6, 2] "
                          "in the target")
        holds(str(error), "'norm.weight' is torch.float32 [7] in the file and torch.float16 [7]")
        got.lower = torch.nn.Parameter(torch.zeros(12, 1))
        holds(str(raised(StateMismatch, onehop.load_into, got, path)), " and 1 more; let the types")
        got.lower = torch.nn.Parameter(torch.zeros(2, 6))
        before["lower"] = got.lower.detach().clone()
        for name, tensor in got.state_dict().items():
            check(torch.equal(tensor, before[name]), f"{name} was written")


@case
def what_bytes_cannot_reach_is_refused_with_a_remedy():
    torch = need("torch")

    def refused(tensor, words):
        holds(str(raised(StateMismatch, onehop.load_into, {"w": tensor}, path)), words)

    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"), [("w", "F32", [4, 4],
                                                                    bytes(64))])
        refused(torch.zeros(4, 4).T[:, :], "'w' is not contiguous (load into a contiguous one")
        refused(torch.zeros(4, 4, device="meta"), "to_empty(device=...)")
        refused(torch.eye(4).to_sparse(), "'w' is a Tensor of tensors")
        lazy = torch.nn.LazyLinear(4, bias=False)
        holds(str(raised(StateMismatch, onehop.load_into, lazy, path,
                         rename={"w": "weight"})), "'weight' has no shape yet")
        holds(str(raised(errors.InvalidArgument, onehop.load_into, [1], path)), "a list")


@case
def names_may_be_mapped_and_left_out():
    torch = need("torch")
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"),
                           [(f"old.{n}", "U8", [1], bytes([i])) for i, n in enumerate("abc")])

        def loaded(rename, **named):
            state = {name: torch.full((1,), 9, dtype=torch.uint8) for name in ("a", "b", "old.c")}
            result = onehop.load_into(state, path, rename=rename, **named)
            return {name: int(tensor) for name, tensor in state.items()}, *result

        same(loaded({"old.a": "a", "old.b": "b"}), ({"a": 0, "b": 1, "old.c": 2}, [], []))
        same(loaded(lambda name: name if name.endswith("c") else name[4:]),
             ({"a": 0, "b": 1, "old.c": 2}, [], []))
        same(loaded({"old.a": None, "old.b": "b"}, strict=False),
             ({"a": 9, "b": 1, "old.c": 2}, ["a"], []))
        same(loaded({"old.a": "x", "old.b": "b"}, strict=False),
             ({"a": 9, "b": 1, "old.c": 2}, ["a"], ["x"]))
        same(loaded(None, tensors="*.c", strict=False)[0], {"a": 9, "b": 9, "old.c": 2})
        holds(str(raised(errors.InvalidArgument, loaded, {"old.a": "b", "old.b": "b"})),
              "'old.b' and 'old.a' both go to 'b'")


@case
def tied_parameters_are_read_once():
    torch = need("torch")
    with Scratch() as folder:
        weight = torch.zeros(4)
        state = {"a": weight, "b": weight, "c": weight.view(2, 2)}
        path = safetensors(os.path.join(folder, "m.safetensors"),
                           [("b", "F32", [4], bytes(15) + b"\x40"),
                            ("a", "F32", [4], bytes(15) + b"\x41")])
        seen = []
        result = onehop.load_into(state, path, strict=False,
                                  progress=lambda *bytes_: seen.append(bytes_))
        same(result.missing_keys, ["c"])
        same((seen[-1], weight.tolist()), ((16, 16), [0.0, 0.0, 0.0, 2.0]))
        # Memory that two different tensors share in part is refused by the plan.
        path = safetensors(path, [("a", "F32", [4], bytes(16)), ("c", "F32", [2, 2], bytes(16))])
        raised(errors.InvalidArgument, onehop.load_into, state, path, strict=False)


@case
def autograd_knows_that_parameters_were_written():
    torch = need("torch")
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"), [("w", "F32", [2], bytes(8))])
        weight = torch.ones(2, requires_grad=True)
        result = (weight * weight).sum()
        onehop.load_into({"w": weight}, path)
        holds(str(raised(RuntimeError, result.backward)), "modified by an inplace operation")
        with torch.inference_mode():
            kept = torch.ones(2)
        onehop.load_into({"w": kept}, path)
        same(kept.tolist(), [0.0, 0.0])


@case
def packed_types_go_into_their_bytes():
    torch = need("torch")
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"),
                           [("a", "F4", [2, 4], b"\1\2\3\4"), ("b", "F4", [2, 4], b"\5\6\7\x08")])
        state = {"a": torch.zeros(2, 2, dtype=torch.uint8),
                 "b": torch.zeros(2, 2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)}
        onehop.load_into(state, path)
        same(state["a"].tolist(), [[1, 2], [3, 4]])
        same(state["b"].view(torch.uint8).tolist(), [[5, 6], [7, 8]])


@case
def parameters_on_a_gpu_are_filled_after_the_current_streams_work():
    torch = need("torch")
    if not torch.cuda.is_available():
        raise Skip("torch sees no GPU")
    with Scratch() as folder:
        want = scrambled(torch, network(torch))
        path, got = saved(folder, torch, want), network(torch).to("cuda")
        got.kept = got.kept.cpu()  # a second device
        side = torch.cuda.Stream()
        begin = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        with torch.cuda.stream(side), torch.no_grad():
            torch.cuda._sleep(200_000_000)
            got.first.weight.fill_(5)
            onehop.load_into(got, path)
        same(torch.cuda.max_memory_allocated(), begin)
        check_alike(torch, got.cpu(), want)


# ---- from_pretrained


def packages():
    """transformers, without its bars, and torch."""
    transformers, torch = need("transformers"), need("torch")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    return transformers, torch


def llama(folder, **options):
    """Saves a tiny Llama; the packages."""
    transformers, torch = packages()
    config = transformers.LlamaConfig(
        vocab_size=99, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        **{"tie_word_embeddings": False, **options})
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(config)
    model.generation_config.temperature = 0.25
    model.generation_config.do_sample = True
    model.save_pretrained(folder, max_shard_size="40KB")
    return transformers, torch


def check_models(torch, got, want):
    """Equal parameters, buffers, settings and results."""
    same(type(got), type(want))
    theirs, ours = (dict([*model.named_parameters(remove_duplicate=False),
                          *model.named_buffers(remove_duplicate=False)]) for model in (want, got))
    same(list(ours), list(theirs))
    for name, tensor in theirs.items():
        same((ours[name].dtype, ours[name].device.type, ours[name].requires_grad),
             (tensor.dtype, "cpu", tensor.requires_grad), name)
        check(torch.equal(ours[name], tensor), f"{name} differs")
        same(type(ours[name]), type(tensor), name)
    same(got.training, False)
    same(got.dtype, want.dtype)
    same(got.config.to_dict(), want.config.to_dict())
    tokens = torch.arange(30).reshape(2, 15)
    with torch.no_grad():
        check(torch.equal(got(tokens)[0], want(tokens)[0]), "results differ")


@case
def a_model_is_what_its_own_from_pretrained_makes():
    with Scratch() as folder:
        transformers, torch = llama(folder)
        check(len([n for n in os.listdir(folder) if n.endswith(".safetensors")]) > 1, "one shard")
        for cls in (transformers.LlamaForCausalLM, transformers.AutoModelForCausalLM):
            got = onehop.from_pretrained(cls, folder, "cpu")
            want = cls.from_pretrained(folder, dtype="auto")
            check_models(torch, got, want)
            same(got.generation_config.to_dict(), want.generation_config.to_dict())
            same(got.generate(torch.tensor([[1, 2]]), max_new_tokens=5, do_sample=False).tolist(),
                 want.generate(torch.tensor([[1, 2]]), max_new_tokens=5,
                               do_sample=False).tolist())
        same(torch.nn.Module.register_parameter.__qualname__, "Module.register_parameter")


@case
def types_are_those_asked_for():
    with Scratch() as folder:
        transformers, torch = llama(folder, dtype="bfloat16")
        cls = transformers.LlamaForCausalLM
        for dtype in ("auto", torch.float16, "float32", torch.bfloat16):
            got = onehop.from_pretrained(cls, folder, "cpu", dtype=dtype)
            check_models(torch, got, cls.from_pretrained(folder, dtype=dtype))
        same(onehop.from_pretrained(cls, folder, "cpu", torch_dtype=torch.float16).dtype,
             torch.float16)


@case
def tied_weights_stay_tied():
    with Scratch() as folder:
        transformers, torch = llama(folder, tie_word_embeddings=True)
        got = onehop.from_pretrained(transformers.LlamaForCausalLM, folder, "cpu")
        check(got.lm_head.weight is got.model.embed_tokens.weight, "untied")
        check_models(torch, got, transformers.LlamaForCausalLM.from_pretrained(folder))
        # Training goes on from there.
        got.train()(torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
        check(got.lm_head.weight.grad is not None, "no gradient")


@case
def parameters_are_not_made_up_before_they_are_read():
    with Scratch() as folder:
        transformers, torch = llama(folder)
        made_up = need("transformers.initialization").TORCH_INIT_FUNCTIONS
        original, calls = made_up["normal_"], []
        made_up["normal_"] = lambda tensor, **_: calls.append(tensor)
        try:
            onehop.from_pretrained(transformers.LlamaForCausalLM, folder, "cpu")
            same(len(calls), 0)
            transformers.LlamaForCausalLM(transformers.LlamaConfig.from_pretrained(folder))
            check(calls, "the class does without, and this case shows nothing")
        finally:
            made_up["normal_"] = original


@case
def each_parameter_has_memory_of_its_own_and_what_does_not_fit_is_named():
    with Scratch() as folder:
        transformers, torch = llama(folder)
        got = onehop.from_pretrained(transformers.LlamaForCausalLM, folder, "cpu")
        for name, parameter in got.named_parameters():
            same(parameter.untyped_storage().nbytes(), parameter.nbytes, name)
            check(not parameter._is_view(), name)
        seen = []
        onehop.from_pretrained(transformers.LlamaModel, folder, "cpu",
                               progress=lambda *turn: seen.append(turn))
        same(seen[-1][0], seen[-1][1])
        config = transformers.LlamaConfig.from_pretrained(folder, intermediate_size=47)
        holds(str(raised(StateMismatch, onehop.from_pretrained, transformers.LlamaForCausalLM,
                         folder, "cpu", config=config)),
              "9 of 30 tensors do not fit LlamaForCausalLM: "
              "'model.layers.0.mlp.gate_proj.weight' is [48, 32] in the file and [47, 32] in the "
              "model; ")


@case
def a_base_model_and_a_head_read_each_others_files():
    with Scratch() as folder:
        transformers, torch = llama(folder)
        check_models(torch, onehop.from_pretrained(transformers.LlamaModel, folder, "cpu"),
                     transformers.LlamaModel.from_pretrained(folder))
        transformers.LlamaModel.from_pretrained(folder).save_pretrained(
            os.path.join(folder, "base"))
        error = raised(StateMismatch, onehop.from_pretrained, transformers.LlamaForCausalLM,
                       os.path.join(folder, "base"), "cpu")
        holds(str(error), "lacks 1 parameters of LlamaForCausalLM: 'lm_head.weight'; use the "
                          "class's own from_pretrained within onehop.installed()")
    with Scratch() as folder:
        transformers, torch = llama(folder, tie_word_embeddings=True)
        base = os.path.join(folder, "base")
        transformers.LlamaModel.from_pretrained(folder).save_pretrained(base)
        check_models(torch, onehop.from_pretrained(transformers.LlamaForCausalLM, base, "cpu"),
                     transformers.LlamaForCausalLM.from_pretrained(base))


@case
def other_kinds_of_models_are_alike_too():
    transformers, torch = packages()
    small = {"vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
             "intermediate_size": 32}
    made = [
        transformers.BertModel(transformers.BertConfig(**small)),
        transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=60, n_embd=24, n_layer=2, n_head=2, n_positions=32)),
        transformers.T5EncoderModel(transformers.T5Config(
            vocab_size=60, d_model=24, d_kv=12, d_ff=32, num_layers=2, num_heads=2)),
        transformers.ViTForImageClassification(transformers.ViTConfig(
            hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            image_size=16, patch_size=4)),
    ]
    for model in made:
        with Scratch() as folder:
            model.save_pretrained(folder)
            for dtype in ("auto", torch.float16):
                got = onehop.from_pretrained(type(model), folder, "cpu", dtype=dtype)
                want = type(model).from_pretrained(folder, dtype=dtype)
                theirs, ours = ({**dict(m.named_buffers()), **m.state_dict()} for m in (want, got))
                same(list(ours), list(theirs))
                for name, tensor in theirs.items():
                    same(ours[name].dtype, tensor.dtype, f"{type(model).__name__} {name}")
                    check(torch.equal(ours[name], tensor), f"{type(model).__name__} {name}")


@case
def old_names_are_read_as_transformers_reads_them():
    transformers, torch = packages()
    with Scratch() as folder:
        config = transformers.BertConfig(vocab_size=60, hidden_size=24, num_hidden_layers=1,
                                         num_attention_heads=2, intermediate_size=32)
        model = transformers.BertModel(config, add_pooling_layer=False)
        config.save_pretrained(folder)
        tensors = []
        for name, tensor in model.state_dict().items():
            name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
            name = name.replace("LayerNorm.bias", "LayerNorm.beta")
            tensors.append(("bert." + name, "F32", list(tensor.shape),
                            tensor.numpy().tobytes()))
        tensors.append(("cls.extra", "F32", [1], bytes(4)))
        safetensors(os.path.join(folder, "model.safetensors"), tensors)
        got = onehop.from_pretrained(transformers.BertModel, folder, "cpu",
                                     add_pooling_layer=False)
        for name, tensor in model.state_dict().items():
            check(torch.equal(got.state_dict()[name], tensor), name)


@case
def what_it_cannot_do_is_said_with_the_way_that_can():
    transformers, _ = packages()
    holds(str(raised(FileNotFoundError, onehop.from_pretrained, transformers.LlamaForCausalLM,
                     "someone/some-model", "cpu")), "snapshot_download")
    with Scratch() as folder:
        llama(folder)
        path = os.path.join(folder, "config.json")
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**config, "quantization_config": {"quant_method": "fp8"}}, file)
        holds(str(raised(errors.Unsupported, onehop.from_pretrained,
                         transformers.LlamaForCausalLM, folder, "cpu")), "onehop.installed()")
    if int(transformers.__version__.split(".")[0]) < 5 or not hasattr(transformers,
                                                                      "MixtralForCausalLM"):
        return
    with Scratch() as folder:
        config = transformers.MixtralConfig(
            vocab_size=60, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, num_local_experts=2)
        transformers.MixtralForCausalLM(config).save_pretrained(folder)
        holds(str(raised(errors.Unsupported, onehop.from_pretrained,
                         transformers.MixtralForCausalLM, folder, "cpu")), "computes parameters")


if __name__ == "__main__":
    run()
