"""A model of the shape of Llama 3 70B: 141 GB in 30 files, all of them holes."""
import ctypes
import json
import mmap
import os
import struct
import time

from package import Scratch
from tap import case, check, run, same

from onehop import _runtime
from onehop._move import Buffer, Plan
from onehop.model import Model

HIDDEN, WIDE, LAYERS, WORDS, HEADS = 8192, 28672, 80, 128256, 1024
PLAN = {"*.down_proj.weight": 1, "*.o_proj.weight": 1, "*.gate_proj.weight": 0,
        "*.up_proj.weight": 0, "*.[qkv]_proj.weight": 0, "*embed_tokens.weight": 0,
        "lm_head.weight": 0}


def tensors():
    """Names and shapes, in BF16."""
    yield "model.embed_tokens.weight", (WORDS, HIDDEN)
    for layer in range(LAYERS):
        for name, shape in {
                "input_layernorm": (HIDDEN,), "mlp.down_proj": (HIDDEN, WIDE),
                "mlp.gate_proj": (WIDE, HIDDEN), "mlp.up_proj": (WIDE, HIDDEN),
                "post_attention_layernorm": (HIDDEN,), "self_attn.k_proj": (HEADS, HIDDEN),
                "self_attn.o_proj": (HIDDEN, HIDDEN), "self_attn.q_proj": (HIDDEN, HIDDEN),
                "self_attn.v_proj": (HEADS, HIDDEN)}.items():
            yield f"model.layers.{layer}.{name}.weight", shape
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (WORDS, HIDDEN)


def size(shape):
    return 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)


def write(folder, count=30):
    """The files and their index; bytes of all tensors."""
    rows = list(tensors())
    total = sum(size(shape) for _, shape in rows)
    shards, filled = [[] for _ in range(count)], 0
    for name, shape in rows:
        shards[min(filled * count // total, count - 1)].append((name, shape))
        filled += size(shape)
    places = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{count:05d}.safetensors"
        header, at = {}, 0
        for name, shape in shard:
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size(shape)]}
            at += size(shape)
            places[name] = file
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(folder, file), "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            out.truncate(8 + len(text) + at)
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as out:
        json.dump({"metadata": {"total_size": total}, "weight_map": places}, out)
    return total


class Reserved:
    """Addresses without memory."""

    def __init__(self, nbytes):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.mmap.restype = ctypes.c_void_p
        self.libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                                   ctypes.c_int, ctypes.c_long)
        no_reserve = 0x4000
        self.nbytes = nbytes
        self.address = self.libc.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE,
                                      mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve, -1, 0)
        check(self.address not in (None, ctypes.c_void_p(-1).value), "no addresses to be had")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.libc.munmap(ctypes.c_void_p(self.address), ctypes.c_size_t(self.nbytes))


def parts(folder, rank, ranks):
    """One rank's items, after its load was planned; says how long that took."""
    runtime = _runtime.get()
    begin = time.perf_counter()
    with Model(folder, runtime) as model, \
            model.select(tp=(rank, ranks), tp_plan=PLAN) as selection, \
            Reserved(selection.arena_bytes) as memory:
        buffer = Buffer(runtime, "host", memory.nbytes, address=memory.address)
        plan = Plan.of_selection(selection, buffer)
        took = time.perf_counter() - begin
        print(f"# rank {rank} of {ranks}: {selection.nbytes} bytes, open and plan "
              f"{1e3 * took:.1f} ms")
        items = selection.items()
        plan.close()
        buffer.close()
    return items


@case
def it_opens_and_each_of_four_ranks_has_its_own_part_and_together_all():
    with Scratch() as folder:
        total = write(folder)
        whole = parts(folder, 0, 1)
        same((len(whole), sum(item.nbytes for item in whole)), (723, total))
        ranks = [parts(folder, rank, 4) for rank in range(4)]
        for number, item in enumerate(whole):
            four = [items[number] for items in ranks]
            same({part.name for part in four}, {item.name})
            if "norm" in item.name:
                same([part.shape for part in four], [item.shape] * 4)
                continue
            dim, at = four[0].split_dim, 0
            for part in four:
                same((part.split_dim, part.split_begin), (dim, at), part.name)
                same(part.shape[1 - dim], item.shape[1 - dim])
                at += part.shape[dim]
            same(at, item.shape[dim], item.name)


if __name__ == "__main__":
    run()
