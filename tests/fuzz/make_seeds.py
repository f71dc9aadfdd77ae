#!/usr/bin/env python3
"""Write the fuzzers' seeds: small files, one kind a folder.

usage: make_seeds.py FOLDER       (FOLDER/json, safetensors, gguf, index are written)
"""

import os
import struct
import sys


def entry(name, dtype, shape, begin, end, more=""):
    return f'"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]{more}}}'


def string(text):
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name, kind, raw):
    return string(name) + struct.pack("<I", kind) + raw


def info(name, dims, type_id, offset):
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_id, offset)


def gguf(keys, infos, data, align=32, version=3, first=24, follow=0):
    head = b"GGUF" + struct.pack("<IQQ", version, len(infos), len(keys)) + b"".join(keys) + b"".join(infos)
    head += b"\0" * (-len(head) % align) if infos else b""
    return struct.pack("<BH", first, follow) + head + data


JSON = {
    "object": b'{"a":1,"b":[true,false,null],"c":{"d":"e"}}',
    "numbers": b"[0,-0,1.5,-2e10,3E-2,18446744073709551615,1e400]",
    "escapes": b'["\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\ude00"]',
    "utf8": '["caf\u00e9 \u20ac \U0001f600"]'.encode(),
    "nested": b"[" * 127 + b"]" * 127,
    "too-deep": b"[" * 128 + b"]" * 128,
    "mixed": b'{"a":[{"b":[[]]},{}]}  \n',
    "lone": b'"\\ud800x"',
    "cut": b'{"a":[1,{"b":"c',
}

SAFETENSORS = {
    "empty": (0, "{}"),
    "one": (24, "{" + entry("w", "F32", [2, 3], 0, 24) + "}"),
    "three": (
        41,
        "{"
        + ",".join([entry("c", "I8", [9], 32, 41), entry("a", "F64", [], 0, 8), entry("b", "BF16", [3, 4], 8, 32)])
        + "}   ",
    ),
    "zero": (
        5,
        "{"
        + ",".join([entry("e", "F32", [0], 0, 0), entry("b", "U8", [5], 0, 5), entry("z", "F16", [3, 0, 2], 5, 5)])
        + "}",
    ),
    "narrow": (6, "{" + entry("f", "F4", [2, 3], 0, 3) + "," + entry("g", "F6_E2M3", [4], 3, 6) + "}"),
    "metadata": (
        1,
        '{"__metadata__":{"format":"pt","":"","a\\n":"\\u00e9","format":"np"},' + entry("w", "U8", [1], 0, 1) + "}",
    ),
    "more": (4, "{" + entry("w", "U8", [4], 0, 4, ',"x":{"a":[1,null,"}"]}') + "}"),
    "names": (2, "{" + entry("", "U8", [1], 0, 1) + "," + entry("q\\u0000\\ud83d\\ude00", "U8", [1], 1, 2) + "}"),
    "twice": (2, "{" + entry("w", "U8", [1], 0, 1) + "," + entry("w", "U8", [1], 1, 2) + "}"),
    "hole": (4, "{" + entry("a", "U8", [1], 0, 1) + "," + entry("b", "U8", [1], 3, 4) + "}"),
    "overlap": (4, "{" + entry("a", "U8", [3], 0, 3) + "," + entry("b", "U8", [2], 2, 4) + "}"),
    "wraps": (0, "{" + entry("a", "U8", [4294967296, 4294967296], 0, 0) + "}"),
    "space": (24, "\n\t {\r\n" + entry("w", "F32", [2, 3], 0, 24) + "}"),
    "large": (2**40, "{" + entry("w", "U8", [2**40], 0, 2**40) + "}"),
    "number": (0, '{"__metadata__":{"a":"b","epoch":3}}'),
}

ARCHITECTURE = key("general.architecture", 8, string("llama"))
KINDS = [
    key("u8", 0, b"\1"),
    key("i8", 1, b"\1"),
    key("u16", 2, bytes(2)),
    key("i16", 3, bytes(2)),
    key("u32", 4, bytes(4)),
    key("i32", 5, bytes(4)),
    key("f32", 6, bytes(4)),
    key("bool", 7, b"\1"),
    key("s", 8, string(b"\xff")),
    key("u64", 10, bytes(8)),
    key("i64", 11, bytes(8)),
    key("f64", 12, bytes(8)),
]
GGUF = {
    "empty": gguf([], [], b""),
    "keys": gguf(KINDS, [], b"", first=5),
    "arrays": gguf(
        [
            key("a", 9, struct.pack("<IQ", 8, 2) + string("x") + string("")),
            key("b", 9, struct.pack("<IQ", 7, 2) + b"\0\1"),
            key("c", 9, struct.pack("<IQIQ", 9, 1, 4, 1) + bytes(4)),
        ],
        [],
        b"",
    ),
    "tensors": gguf(
        [ARCHITECTURE],
        [info("a", [4, 2], 0, 0), info("b", [32], 2, 32), info("s", [], 28, 64)],
        bytes(72),
        first=30,
    ),
    "far": gguf([], [info("a", [100], 24, 0)], b"", follow=100),
    "zero": gguf([], [info("z", [4, 0], 0, 0), info("w", [8], 0, 0)], bytes(32)),
    "align": gguf(
        [key("general.alignment", 4, struct.pack("<I", 64))],
        [info("a", [1], 24, 0), info("b", [1], 24, 64)],
        bytes(65),
        align=64,
    ),
    "split": gguf(
        [
            key("split.no", 2, struct.pack("<H", 1)),
            key("split.count", 2, struct.pack("<H", 3)),
            key("split.tensors.count", 5, struct.pack("<i", 6)),
        ],
        [],
        b"",
    ),
    "v2": gguf([ARCHITECTURE], [info("k", [256], 12, 0)], bytes(144), version=2),
    "twice": gguf([key("a", 0, b"\1"), key("a", 0, b"\1")], [], b""),
    "same": gguf([], [info("a", [1], 24, 0), info("a", [1], 24, 32)], bytes(33)),
    "overlap": gguf([], [info("a", [40], 24, 0), info("b", [1], 24, 32)], bytes(64)),
    "big": b"\x18\0\0GGUF" + struct.pack(">IQQ", 3, 0, 0),
}

INDEX = {
    "map": b'{"metadata":{"total_size":12},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors","c":"m-1.safetensors"}}',
    "escape": b'{"weight_map":{"a":"../x.safetensors"}}',
    "inside": b'{"weight_map":{"\\u0061":"d/..x.safetensors"},"x":[{}]}',
    "twice": b'{"weight_map":{"a":"1.safetensors","a":"2.safetensors"}}',
    "list": b'{"weight_map":["a"]}',
    "rules": b'{"*.q_proj.weight":0,"*.o_proj.weight":1,"norm*":null,"x":-1}',
    "empty": b'{"weight_map":{}}',
}


def main(argv):
    if len(argv) != 2:
        print(__doc__.strip().splitlines()[2], file=sys.stderr)
        return 2
    safetensors = {n: struct.pack("<Q", size) + text.encode() for n, (size, text) in SAFETENSORS.items()}
    for kind, seeds in ("json", JSON), ("safetensors", safetensors), ("gguf", GGUF), ("index", INDEX):
        os.makedirs(os.path.join(argv[1], kind), exist_ok=True)
        for name, data in seeds.items():
            with open(os.path.join(argv[1], kind, name), "wb") as f:
                f.write(data)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
