#!/usr/bin/env python3
"""Write the fuzzers' seeds: small files, one kind a folder.

usage: make_seeds.py FOLDER       (FOLDER/json, safetensors, gguf, ... are written)
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


def member(name, data=b"", kind=b"0", size=None, magic=b"ustar\x0000", prefix=b""):
    """A header with its right sum, and the blocks of data."""
    size = b"%011o\0" % len(data) if size is None else size
    head = name.ljust(100, b"\0") + b"0000644\0" + bytes(16) + size.ljust(12, b"\0") + b"%011o\0" % 0
    head += b" " * 8 + kind + bytes(100) + magic.ljust(8, b"\0") + bytes(80) + prefix
    head = head.ljust(512, b"\0")
    return head[:148] + b"%06o\0 " % sum(head) + head[156:] + data + bytes(-len(data) % 512)


def record(key, value):
    length = next(n for n in range(len(key) + len(value) + 3, 99) if len(b"%d %s=%s\n" % (n, key, value)) == n)
    return b"%d %s=%s\n" % (length, key, value)


END = bytes(1024)
NPY = b"\x93NUMPY\1\0\x3b\0{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }" + bytes(24)
TAR = {
    "two": b"\0" + member(b"d/0.jpg", b"abc") + member(b"d/0.json") + END,
    "fixed": b"\1" + member(b"d/0.jpg", b"abc") + member(b"d/0.npy", NPY) + END,
    "npy": b"\0" + NPY,
    "long": b"\1" + member(b"././@LongLink", b"x" * 120 + b".jpg\0", b"L", magic=b"ustar  ") + member(b"x", b"y") + END,
    "link": b"\1" + member(b"././@LongLink", b"t" * 120 + b"\0", b"K") + member(b"l", b"", b"2") + END,
    "pax": b"\1" + member(b"p", record(b"path", b"a.jpg") + record(b"size", b"3"), b"x") + member(b"b", b"abc") + END,
    "global": b"\1" + member(b"g", record(b"comment", b"c"), b"g") + member(b"n.b", b"abc", prefix=b"a/b") + END,
    "sparse": b"\1" + member(b"p", record(b"GNU.sparse.major", b"1"), b"x") + member(b"b") + END,
    "base-256": b"\1" + member(b"a.b", b"abc", size=b"\x80" + bytes(10) + b"\3") + END,
    "spaces": b"\1" + member(b"a.b", b"abc", size=b"        3 \0") + member(b"._a.b") + member(b"__x__/a.b") + END,
    "old": b"\1" + member(b"d/", b"", b"\0", magic=b"") + member(b"h", b"", b"1", size=b"00000000777\0") + END,
    "joined": b"\1" + member(b"a.b", b"abc") + END + member(b"c.d", b"abc") + END,
    "trailer": b"\5" + member(b"a.b", b"abc") + END + b"trailer!" * 128,
    "lone": b"\1" + member(b"a.b", b"abc") + bytes(512) + member(b"c.d", b"abc") + END,
    "empty": b"\0" + END,
    "gzip": b"\0\x1f\x8b\x08\0",
}


def shard_index(sections, **changed):
    """An index whose sums a set first bit has made right; changed: header fields by their place."""
    places, at = [], 128 + 32 * len(sections)
    for kind, size, data in sections:
        at += -at % 64
        places.append(struct.pack("<IIQQQ", kind, 0, at, len(data), len(data) // size))
        at += len(data)
    at += -at % 64
    counts = {kind: len(data) // size for kind, size, data in sections}
    head = bytearray(struct.pack("<8s2I6Q4I48x", b"ONEHOPIX", 1, 128, at, 40960, 8192, 2, counts[1] - 1,
                                 counts[3], len(sections), 1, 4096, 2))
    for place, value in changed.items():
        struct.pack_into("<Q", head, int(place[1:]), value)
    out = bytes(head) + b"".join(places)
    for _, _, data in sections:
        out += bytes(-len(out) % 64) + data
    return b"\1" + out + bytes(-len(out) % 64)


SECTIONS = [
    (1, 16, struct.pack("<6Q", 0, 0, 1, 3, 2, 6)),
    (2, 1, b"a/0a/1"),
    (3, 32, struct.pack("<QQIHHII", 4096, 152, 7, 0, 0, 1, 0) + struct.pack("<QQIHHII", 4608, 9, 7, 1, 0, 0, 0)),
    (4, 8, struct.pack("<4I", 0, 3, 3, 4)),
    (5, 1, b"npyjsondrivecam0"),
    (6, 72, struct.pack("<2HI8Q", 12, 2, 128, 3, 2, 0, 0, 0, 0, 0, 0)),
    (7, 24, struct.pack("<qIIIIqIIII", 5, 0, 0, 1, 0, -5, 2**32 - 1, 2**32 - 1, 9, 0)),
    (8, 8, struct.pack("<2I", 7, 5)),
    (9, 8, struct.pack("<2I", 12, 4)),
    (10, 8, struct.pack("<2q", 5, -2**63)),
]
EMPTY = [(1, 16, bytes(16)), (2, 1, b""), (3, 32, b""), (4, 8, b""), (5, 1, b"")]
SHARD = {
    "all": shard_index(SECTIONS),
    "least": shard_index(SECTIONS[:3] + [SECTIONS[3], SECTIONS[4]]),
    "empty": shard_index(EMPTY),
    "unknown": shard_index(EMPTY + [(77, 3, b"abc")]),
    "twice": shard_index(EMPTY + [EMPTY[4]]),
    "newer": shard_index(EMPTY, _8=128 << 32 | 2),
    "sums": b"\0" + shard_index(SECTIONS)[1:],
    "short": shard_index(SECTIONS)[:500],
    "samples": shard_index(SECTIONS, _48=2**64 - 1),
}


def number(value):
    size = next(i for i in range(4) if value < 1 << (8 << i))
    return bytes([size]) + value.to_bytes(1 << size, "little")


def place(value):
    """None: where the extent before ends. "+n", "-n": near that. Else a number."""
    if value is None:
        return b"\0"
    if isinstance(value, str):
        return bytes([64 + int(value) if value[0] == "+" else 128 - int(value)])
    return b"\xff" + number(value)


def extent(offset, to, row_bytes, rows=1, gap=0, file=0, buffer=0, named=False):
    """rows of row_bytes with gap bytes between them."""
    how = 2 * file + 16 * buffer + 64 * named + (128 if rows != 1 else 0)
    strided = number(rows) + number(gap) if rows != 1 else b""
    return bytes([how]) + place(offset) + place(to) + number(row_bytes) + strided


def world(extents, caps=0, modulus=0, forced=0, cache=0, residence=None, few_cores=0, pins_files=0):
    """forced: 1 buffered, 2 mapped, 3 direct. cache: 1 keep, 2 bypass, 3 drop. residence: how, and two bits a chunk."""
    raw = bytes([caps + 4 * modulus + 16 * forced + 64 * cache])
    raw += number(60000) * 2 + b"\0\1" + (number(60000) + b"\2") * 2
    raw += bytes([(residence is not None) + 2 * few_cores + 4 * pins_files]) + b"".join(residence or [])
    return raw + bytes([len(extents)]) + b"".join(extents)


ONE = [extent(0, 0, 5000)]
RUN = [extent(0, 0, 3000), extent(None, None, 200), extent(None, None, 9000), extent(None, "+32", 1)]
GAPS = [extent(8, 0, 100), extent("+60", "+3", 4000, named=True), extent(20000, None, 7000), extent(100, None, 0)]
ROWS = [extent(16, 0, 24, 40, 72), extent(None, None, 3000, 3, 1), extent(None, None, 64, 20, 0)]
FILES = [extent(0, 0, 40000, file=2, buffer=1), extent(0, 0, 300, file=1, buffer=2), extent(0, 100, 20000)]
LARGE = [extent(0, 0, 33000, named=True), extent(33100, 33024, 32000)]
HERE, AWAY = b"\0" * 5, b"\x55" * 5
NO_DIRECT = [b"\0"] * 3
DIRECT = [b"\2"] * 3
COLD = [b"\3" + AWAY] * 3
MIXED = [b"\3" + b"\x44\x11\x21\x86\0", b"\7" + AWAY, b"\1" + b"\xaa" * 5]
SMALL = [extent(97 * i, 64 * ((i * 7) % 24), 60) for i in range(24)]
PLAN = {
    "none": world([]),
    "one": world(ONE),
    "run": world(RUN, caps=2),
    "gaps": world(GAPS, caps=1, modulus=1),
    "rows": world(ROWS, caps=3, modulus=2),
    "files": world(FILES, modulus=3),
    "large": world(LARGE, caps=2, modulus=2, forced=1),
    "small": world(SMALL, caps=3),
    "overlap": world([extent(0, 0, 100), extent(0, "-1", 100)]),
    "past": world([extent(59990, 0, 20, file=1)]),
    "wraps": world([extent(2**55, 2**55, 2**40, 2**40, 2**50)]),
    "twice": world([extent(0, 0, 100), extent(0, 100, 100), extent(50, 200, 100)]),
    "cold": world(LARGE + FILES[:2], residence=COLD),
    "mixed": world(LARGE + [extent(0, 0, 50000, file=1, buffer=1)], residence=MIXED),
    "bypass": world(GAPS, cache=2, residence=DIRECT),
    "forced": world(RUN, forced=3, residence=DIRECT),
    "no-route": world(RUN, forced=3, residence=NO_DIRECT),
    "no-rows": world(ROWS, forced=3, residence=DIRECT),
    "drop": world(ROWS, cache=3, residence=COLD),
    "mapped": world(GAPS, forced=2, pins_files=1),
    "pinned": world(LARGE, residence=[b"\x0b" + AWAY] * 3, pins_files=1),
    "few-cores": world(LARGE + ROWS[:1], residence=MIXED, few_cores=1, pins_files=1),
}

# Low bits: 0 open, 1 take, 2 take a map, 3 read, 4 short read, 5 copy, 7 a fault. The others: which.
MAP, TAKE, READ, SHORT, COPY = b"\2", b"\1", b"\3", b"\x54", b"\5"
ROUND = b"\0" + TAKE * 4 + READ * 2 + SHORT + READ * 4 + COPY
FLOW = {
    "none": world([]) + number(100) + b"\1",
    "in-order": world(ONE) + number(1024) + b"\1" + ROUND * 4,
    "run": world(RUN, caps=2) + number(700) + b"\2" + (b"\0\0" + TAKE * 9 + b"\x2b\x13\3" * 5 + COPY) * 3,
    "gaps": world(GAPS, caps=1, modulus=1) + number(4096) + b"\3" + ROUND * 3,
    "rows": world(ROWS, caps=3, modulus=2) + number(999) + b"\0" + ROUND * 4,
    "files": world(FILES, modulus=3) + number(16383) + b"\2" + ROUND * 3,
    "cold": world(LARGE + FILES[:2], residence=COLD) + number(5000) + b"\2" + ROUND * 3,
    "mixed": world(LARGE + [extent(0, 0, 50000, file=1, buffer=1)], residence=MIXED) + number(4096) + b"\3" + ROUND * 3,
    "bypass": world(GAPS, caps=3, cache=2, residence=DIRECT) + number(4096) + b"\1" + b"\0" + TAKE * 3 + SHORT * 3 + ROUND,
    "refused": world(LARGE, forced=3, residence=DIRECT) + number(4500) + b"\1" + b"\0" + TAKE * 2 + b"\x4f" + ROUND,
    "mapped": world(GAPS, forced=2, pins_files=1) + number(100) + b"\1" + (b"\0\0" + MAP * 2 + COPY) * 3,
    "few-cores": world(LARGE + ROWS[:1], residence=MIXED, few_cores=1, pins_files=1) + number(5000) + b"\1" + (b"\0\0" + MAP + ROUND) * 3,
    "map-fails": world(GAPS, forced=2, pins_files=1) + number(100) + b"\1" + b"\0\0" + MAP + b"\x27\2",
    "slow": world(LARGE, residence=[b"\3" + b"\xaa" * 5] * 3) + number(4096) + b"\3\0" + TAKE * 2 + b"\x67" + ROUND * 3,
    "small": world(SMALL, caps=3) + number(64) + b"\1" + ROUND * 2,
    "read-fails": world(RUN) + number(1000) + b"\1" + b"\0\0" + TAKE * 6 + READ * 2 + b"\7" + READ * 4,
    "copy-fails": world(RUN) + number(8192) + b"\1" + b"\0\0" + TAKE * 3 + READ * 2 + b"\x27" + READ * 2,
    "stopped": world(RUN) + number(1000) + b"\1" + b"\0\0" + TAKE * 6 + READ * 2 + b"\x47" + READ * 4,
}


def options(name, value, variable, config):
    return "\0".join([name, value, variable, config]).encode()


OPTIONS = {
    "set": options("threads", "7", "", ""),
    "auto": options("RING_BYTES", "auto", "BLOCK_BYTES=1MiB", "slice_bytes = 64K"),
    "route": options("route", "buffered", "ROUTE=auto", "route=buffered\n"),
    "near": options("thread", "1", "THREDS=4", "ring_byte = 64MiB"),
    "range": options("slice_bytes", "1", "RANKS_PER_NODE=0", "threads = 1025"),
    "overflow": options("ring_bytes", "18446744073709551616", "RING_BYTES=99999999999999999T", "threads = -1"),
    "comments": options("threads", " 1", "", "# all\n\n  threads = 3  # three\n\tring_bytes=1G\n"),
    "no-equals": options("", "", "=", "threads 3\n"),
    "bytes": options("block_bytes", "4096B", "BLOCK_BYTES=8KiBx", "block_bytes = 0x1000"),
    "nul": options("", "", "", "threads = 2\0 = 3\n"),
    "long-line": options("", "", "", "#" + " " * 1022 + "threads = 3\n"),
    "long": options("x" * 40, "9" * 70, "T" * 300 + "=1", "#" + "x" * 1100 + "\nthreads = 2\n"),
}


def main(argv):
    if len(argv) != 2:
        print(__doc__.strip().splitlines()[2], file=sys.stderr)
        return 2
    safetensors = {n: struct.pack("<Q", size) + text.encode() for n, (size, text) in SAFETENSORS.items()}
    kinds = {"json": JSON, "safetensors": safetensors, "gguf": GGUF, "index": INDEX, "plan": PLAN, "flow": FLOW,
             "options": OPTIONS, "tar": TAR, "shard": SHARD}
    for kind, seeds in kinds.items():
        os.makedirs(os.path.join(argv[1], kind), exist_ok=True)
        for name, data in seeds.items():
            with open(os.path.join(argv[1], kind, name), "wb") as f:
                f.write(data)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
