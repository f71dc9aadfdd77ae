"""What the generators of model files share: cases, and the two formats' bytes."""

import json
import os
import random
import struct
import zlib
from collections import namedtuple

Case = namedtuple("Case", "name path exits words tensors")

LOADED, WRONG, NOT_THERE = (0,), (3,), (1, 3)


def filler(name, size):
    return random.Random("filler " + name).randbytes(size)


class Cases:
    def __init__(self, folder):
        self.folder = folder
        self.list = []

    def write(self, path, data):
        path = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(data)

    def add(self, name, path, exits, words=(), tensors=None):
        assert all(case.name != name for case in self.list), name
        words = [words] if isinstance(words, str) else list(words)
        assert exits == LOADED or words, name
        self.list.append(Case(name, os.path.join(self.folder, path), exits, words, tensors))

    def loads(self, name, data, tensors, suffix=".safetensors"):
        self.write(name + suffix, data)
        self.add(name, name + suffix, LOADED, tensors=tensors)

    def fails(self, name, data, *words, suffix=".safetensors"):
        self.write(name + suffix, data)
        self.add(name, name + suffix, WRONG, words)

    def files(self, name, files):
        """A folder of files; dictionaries become JSON."""
        os.makedirs(os.path.join(self.folder, name), exist_ok=True)
        for file, content in files.items():
            self.write(f"{name}/{file}", content if isinstance(content, bytes) else json.dumps(content).encode())


# --- safetensors ----------------------------------------------------------------------------------------

WIDTHS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


def member(name, dtype, shape, begin, end, more=""):
    return (
        f'{json.dumps(name)}:{{"dtype":"{dtype}","shape":{json.dumps(shape)},"data_offsets":[{begin},{end}]{more}}}'
    )


def with_header(header, data=b"", length=None):
    header = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def fact(dtype, shape, data):
    return dtype, shape, len(data), f"{zlib.crc32(data):08x}"


class Packed:
    """Tensors one after another: their members, their data and what is to come out."""

    def __init__(self, *tensors):
        self.members, self.facts, self.data = [], {}, b""
        for name, dtype, shape in tensors:
            elements = 1
            for dim in shape:
                elements *= dim
            data = filler(name + dtype, elements * WIDTHS[dtype] // 8)
            begin = len(self.data)
            self.data += data
            self.members.append(member(name, dtype, shape, begin, len(self.data)))
            self.facts[name] = fact(dtype, shape, data)

    def header(self, before="", after="", order=lambda members: members):
        return before + "{" + ",".join(order(self.members)) + "}" + after

    def file(self, **how):
        return with_header(self.header(**how), self.data)


# --- GGUF -----------------------------------------------------------------------------------------------

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
LETTERS = {
    U8: "B",
    I8: "b",
    U16: "H",
    I16: "h",
    U32: "I",
    I32: "i",
    F32: "f",
    BOOL: "B",
    U64: "Q",
    I64: "q",
    F64: "d",
}
BLOCKS = {
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "Q4_0": (2, 32, 18),
    "Q4_1": (3, 32, 20),
    "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24),
    "Q8_0": (8, 32, 34),
    "Q8_1": (9, 32, 36),
    "Q2_K": (10, 256, 84),
    "Q3_K": (11, 256, 110),
    "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210),
    "Q8_K": (15, 256, 292),
    "IQ2_XXS": (16, 256, 66),
    "IQ2_XS": (17, 256, 74),
    "IQ3_XXS": (18, 256, 98),
    "IQ1_S": (19, 256, 50),
    "IQ4_NL": (20, 32, 18),
    "IQ3_S": (21, 256, 110),
    "IQ2_S": (22, 256, 82),
    "IQ4_XS": (23, 256, 136),
    "I8": (24, 1, 1),
    "I16": (25, 1, 2),
    "I32": (26, 1, 4),
    "I64": (27, 1, 8),
    "F64": (28, 1, 8),
    "IQ1_M": (29, 256, 56),
    "BF16": (30, 1, 2),
    "TQ1_0": (34, 256, 54),
    "TQ2_0": (35, 256, 66),
    "MXFP4": (39, 32, 17),
    "NVFP4": (40, 64, 36),
    "Q1_0": (41, 128, 18),
    "Q2_0": (42, 64, 18),
}


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key, kind, value):
    """A key and its value; bytes stand for themselves."""
    if not isinstance(value, bytes):
        value = text(value) if kind == STRING else struct.pack("<" + LETTERS[kind], value)
    return text(key) + struct.pack("<I", kind) + value


def listing(kind, count, raw):
    return struct.pack("<IQ", kind, count) + raw


def info(name, dims, type_id, offset):
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_id, offset)


def gguf(keys, infos, data=b"", align=32, version=3, counts=None, magic=b"GGUF"):
    tensors, pairs = counts or (len(infos), len(keys))
    head = magic + struct.pack("<IQQ", version, tensors, pairs) + b"".join(keys) + b"".join(infos)
    return (head + bytes(-len(head) % align) if infos else head) + data


def blocks(*tensors, keys=(), align=32, **how):
    """A whole file of tensors (name, type, dims) and what is to come out."""
    infos, facts, data = [], {}, b""
    for name, kind, dims in tensors:
        type_id, elements, size = BLOCKS[kind]
        count = 1
        for dim in dims:
            count *= dim
        raw = filler(name + kind, count // elements * size)
        infos.append(info(name, dims, type_id, len(data)))
        facts[name] = fact(kind, dims[::-1], raw)
        data += raw + bytes(-len(raw) % align)
    return gguf(list(keys), infos, data, align, **how), facts


ARCHITECTURE = pair("general.architecture", STRING, "llama")
