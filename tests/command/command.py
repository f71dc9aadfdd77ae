"""What the tests of the command share: running it, scratch folders, and models made by hand.

usage of each test: test_X.py ONEHOP ONEHOP_FAULTY
"""
import hashlib
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from collections import namedtuple

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build"))

ONEHOP, FAULTY = (os.path.abspath(path) for path in sys.argv[1:3])

Result = namedtuple("Result", "code out err")
SIZES = {"U8": 1, "F8_E4M3": 1, "BF16": 2, "F16": 2, "F32": 4, "I64": 8, "F64": 8}


def environment(**more):
    """Ours without what would change the command's answers, and more."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("ONEHOP_")}
    env.update(TERM="xterm", **more)
    return env


def run(*words, command=None, env=None, stdout=subprocess.PIPE, timeout=100, **more):
    """Runs the command to its end; no terminal anywhere."""
    done = subprocess.run([command or ONEHOP, *words], stdin=subprocess.DEVNULL, stdout=stdout,
                          stderr=subprocess.PIPE, env=env or environment(), timeout=timeout, **more)
    return Result(done.returncode, (done.stdout or b"").decode(), done.stderr.decode())


def loaded(path, *words, **more):
    """The JSON of a load into host memory that has to succeed."""
    result = run("load", "--device", "host", "--json", *words, path, **more)
    if result.code:
        raise AssertionError(f"onehop load: exit {result.code}, {result.err!r}")
    if result.err:
        raise AssertionError(f"onehop load said {result.err!r}")
    return json.loads(result.out)


class Scratch:
    """A folder for one case: with Scratch() as folder."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="onehop-test-")
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path)


def safetensors(path, tensors, metadata=None):
    """Writes [(name, dtype, shape, bytes)], one after the other. Returns the path."""
    header, at = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            file.write(tensor[3])
    return path


def sparse(path, name, size):
    """One U8 tensor of zeros that takes no room on disk."""
    text = json.dumps({name: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + size)
    return path


def noise(source, dtype, shape):
    return source.randbytes(SIZES[dtype] * math.prod(shape))


def tensor(source, name, dtype, shape):
    return name, dtype, shape, noise(source, dtype, shape)


def crc32(data):
    return f"{zlib.crc32(data):08x}"


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def seeded():
    """A source of noise whose seed is printed, or taken from ONEHOP_TEST_SEED."""
    seed = int(os.environ.get("ONEHOP_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"# seed {seed}", flush=True)
    return random.Random(seed)
