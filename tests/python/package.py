"""What the tests of the Python package share: finding it, scratch folders, models made by hand.

Each test runs with ONEHOP_LIBRARY naming the libonehop.so under test; the package is the tree's.
What is not installed beside it (numpy, torch, safetensors) skips its cases.
"""
import importlib
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PACKAGE = os.path.join(ROOT, "python")
sys.path.insert(0, os.path.join(ROOT, "tests", "build"))
sys.path.insert(0, PACKAGE)
for _name in [name for name in os.environ if name.startswith("ONEHOP_")]:
    if _name != "ONEHOP_LIBRARY":
        del os.environ[_name]

from tap import Skip  # noqa: E402

BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8,
        "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16,
        "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64,
        "U64": 64}


def need(module):
    """The module, or the case is skipped."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise Skip(f"{module} is not installed") from None


def environment(**more):
    """This process's, with the package in the path, and more; None takes a variable out."""
    env = {**os.environ, "PYTHONPATH": PACKAGE, **more}
    return {name: value for name, value in env.items() if value is not None}


def python(code, **more):
    """What the code prints in a process of its own; it must exit with 0."""
    done = subprocess.run([sys.executable, "-c", code], env=environment(**more), timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise AssertionError(f"exit {done.returncode}: {done.stderr}")
    return done.stdout.strip()


class Scratch:
    """A folder for one case: with Scratch() as folder."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="onehop-python-")
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path)


def nbytes(dtype, shape):
    return BITS[dtype] * math.prod(shape) // 8


def noise(source, dtype, shape):
    """Random bytes of a tensor; BOOL holds 0 and 1."""
    data = source.randbytes(nbytes(dtype, shape))
    return bytes(byte & 1 for byte in data) if dtype == "BOOL" else data


def header(entries, metadata=None):
    """A safetensors header for [(name, dtype, shape, bytes)], length included."""
    table, at = {}, 0
    if metadata is not None:
        table["__metadata__"] = metadata
    for name, dtype, shape, size in entries:
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def safetensors(path, tensors, metadata=None):
    """Writes [(name, dtype, shape, bytes)], one after the other. Returns the path."""
    with open(path, "wb") as file:
        file.write(header([(n, d, s, len(b)) for n, d, s, b in tensors], metadata))
        for tensor in tensors:
            file.write(tensor[3])
    return path


def sparse(path, size):
    """One U8 tensor of zeros, `w`, that takes no room on disk. Returns the path."""
    head = header([("w", "U8", [size], size)])
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(len(head) + size)
    return path


def seeded():
    """A source of noise whose seed is printed, or taken from TEST_SEED."""
    seed = int(os.environ.get("TEST_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"# TEST_SEED={seed}", flush=True)
    return random.Random(seed)


def raised(kind, function, *arguments, **named):
    """The exception of that kind that the call raises."""
    try:
        function(*arguments, **named)
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")
