"""Cases of GGUF files, alone and in sets."""

import struct

from bad_case import (
    ARRAY,
    BLOCKS,
    BOOL,
    F32,
    I32,
    LETTERS,
    LOADED,
    NOT_THERE,
    STRING,
    U8,
    U16,
    U32,
    U64,
    WRONG,
    ARCHITECTURE,
    blocks,
    fact,
    filler,
    gguf,
    info,
    listing,
    pair,
    text,
)


def good_gguf(c):
    def loads(name, data, facts):
        c.loads("gg-" + name, data, facts, suffix=".gguf")

    for kind, (_, elements, _) in BLOCKS.items():
        loads(f"type-{kind.lower()}", *blocks(("blk.w", kind, [2 * elements, 3]), ("blk.v", kind, [elements])))
    loads("minimum", gguf([], []), {})
    loads("version-2", *blocks(("blk.w", "F32", [3]), version=2))
    loads("scalar", *blocks(("s", "F32", []), ("t", "I8", [])))
    loads("four-dims", *blocks(("blk.w", "F16", [2, 3, 4, 5])))
    for align in 1, 2, 8, 16, 64, 256, 4096:
        loads(
            f"alignment-{align}",
            *blocks(("a", "I8", [3]), ("b", "I8", [5]), align=align, keys=[pair("general.alignment", U32, align)]),
        )
    zero, facts = blocks(("z", "F32", [4, 0]), ("q", "Q4_K", [0, 5]), ("w", "F32", [2]), ("y", "I8", [0]))
    loads("zero-dims", zero, facts)
    data, facts = blocks(("a", "I8", [32]), ("b", "I8", [5]))
    loads("last-not-padded", data[:-27], facts)
    loads("bytes-behind", data + b"more", facts)
    kinds = [pair(f"k.{kind}", kind, 1) for kind in LETTERS] + [pair("k.s", STRING, text(b"\xff\xfe not UTF-8"))]
    loads("kinds", *blocks(("w", "F32", [1]), keys=kinds))
    arrays = [
        pair(f"a.{kind}", ARRAY, listing(kind, 2, 2 * struct.pack("<" + letter, 1)))
        for kind, letter in LETTERS.items()
    ]
    arrays.append(pair("a.s", ARRAY, listing(STRING, 3, text("x") + text("") + text(b"\xff"))))
    arrays.append(pair("a.none", ARRAY, listing(STRING, 0, b"")))
    loads("arrays", *blocks(("w", "F32", [1]), keys=arrays))
    tokens = listing(STRING, 40000, b"".join(text(f"token{i}") for i in range(40000)))
    loads(
        "many-tokens", *blocks(("w", "F32", [1]), keys=[ARCHITECTURE, pair("tokenizer.ggml.tokens", ARRAY, tokens)])
    )
    loads("many-tensors", *blocks(*((f"t{i}", "I8", [1]) for i in range(2000))))
    data = filler("x", 96)
    infos = [info("c", [32], 24, 64), info("a", [32], 24, 0), info("b", [32], 24, 32)]
    loads(
        "any-order",
        gguf([], infos, data),
        {n: fact("I8", [32], data[o : o + 32]) for n, o in zip("abc", (0, 32, 64))},
    )
    infos = [info("a", [4], 24, 0), info("b", [4], 24, 64)]
    loads("gap", gguf([], infos, data), {"a": fact("I8", [4], data[:4]), "b": fact("I8", [4], data[64:68])})
    whole, facts = blocks(("w", "F32", [3]))
    c.loads("gg-any-name", whole, facts, suffix=".model")
    loads("name-64-bytes", *blocks(("n" * 64, "F32", [3])))
    loads("name-empty", *blocks(("", "F32", [3])))


def bad_gguf(c):
    def fails(name, data, *words):
        c.fails("gg-" + name, data, *words, suffix=".gguf")

    def keys(name, raw, *words, count=1):
        fails(name, gguf([raw], [], counts=(0, count)), *words)

    def infos(name, *rows, data=bytes(256), words):
        fails(name, gguf([ARCHITECTURE], [info(*row) for row in rows], data), *words)

    good, _ = blocks(("blk.a", "F32", [8]), ("blk.b", "F32", [8]), keys=[ARCHITECTURE])
    fails("empty-file", b"", "empty", "0 bytes")
    for size in 1, 3, 4, 7, 12, 23:
        fails(f"cut-{size}", good[:size], "truncated")
    for size in 30, 45, 60, 62:
        fails(f"cut-{size}", good[:size], "past the end of the file", "truncated")
    fails("cut-in-name", good[:75], "tensor info", "truncated")
    fails("cut-in-last-info", good[:130], "tensor info 1", "blk.b", "truncated")
    fails("cut-in-padding", good[:145], "blk.a", "truncated")
    fails("cut-in-data", good[:-1], "blk.b", "truncated", "past the end")
    for magic in b"GGUf", b"\0\0\0\0", b"gguf":
        fails(f"magic-{magic.hex()}", magic + good[4:], "magic", "GGUF")
    fails("magic-ggjt", b"tjgg" + good[4:], "magic", "tjgg")
    for version in 0, 1, 4, 99:
        fails(f"version-{version}", gguf([], [], version=version), f"version {version} is not supported")
    fails("big-endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian", "byte order")
    fails("big-endian-2", b"GGUF" + struct.pack(">IQQ", 2, 1, 1), "big-endian", "version 2")
    for power in (20, 40, 63):
        fails(
            f"tensors-2-{power}", gguf([], [], counts=(2**power, 0)), "tensor count", str(2**power), "past the end"
        )
        fails(f"keys-2-{power}", gguf([], [], counts=(0, 2**power)), "key count", str(2**power), "past the end")
    keys("key-empty", pair("", U32, 1), "key 0", "empty")
    keys("key-long", text("k" * 65536) + struct.pack("<IB", U8, 1), "65536 bytes", "65535")
    keys("key-not-utf8", pair(b"a\xff", U32, 1), "key 0", "not UTF-8")
    keys("key-twice", pair("a.b", U8, 1) + pair("a.b", STRING, "x"), "a.b", "duplicate", count=2)
    keys("key-past-end", struct.pack("<Q", 2**40) + b"abcdef", "key 0", str(2**40), "past the end")
    for kind in 13, 255, 2**32 - 1:
        keys(f"kind-{kind}", text("a.b") + struct.pack("<IQ", kind, 0), "a.b", f"value type {kind} is unknown")
        keys(
            f"element-{kind}",
            text("a.b") + struct.pack("<IIQ", ARRAY, kind, 0),
            "a.b",
            f"element type {kind} is unknown",
        )
    for value in 2, 128, 255:
        keys(f"bool-{value}", pair("a.b", BOOL, value), "a.b", f"a bool is {value}")
        keys(
            f"bool-in-array-{value}",
            pair("a.b", ARRAY, listing(BOOL, 3, bytes([0, 1, value]))),
            "a.b",
            f"a bool is {value}",
        )
    for power in (12, 33, 63):
        keys(
            f"string-2-{power}",
            pair("a.b", STRING, struct.pack("<Q", 2**power) + b"abc"),
            "a.b",
            str(2**power),
            "past the end",
        )
        keys(
            f"array-2-{power}",
            pair("a.b", ARRAY, listing(U8, 2**power, b"abc")),
            "a.b",
            str(2**power),
            "past the end",
        )
        keys(
            f"strings-2-{power}",
            pair("a.b", ARRAY, listing(STRING, 2**power, text("x"))),
            "a.b",
            str(2**power),
            "past the end",
        )
    keys("array-wraps", pair("a.b", ARRAY, listing(U64, 2**61 + 1, bytes(8))), "a.b", "past the end")
    keys(
        "arrays-deep",
        text("a.b") + struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * 1000 + listing(U8, 0, b""),
        "a.b",
        "nested",
        "array of array",
    )
    for align in 0, 3, 24, 33, 2**32 - 1:
        keys(
            f"alignment-{align}",
            pair("general.alignment", U32, align),
            "general.alignment",
            f"alignment {align}",
            "power of two",
        )
    keys("alignment-2-31", pair("general.alignment", U32, 2**31), "general.alignment", str(2**31), "too large")
    for kind in U8, U16, I32, U64, F32:
        keys(f"alignment-kind-{kind}", pair("general.alignment", kind, 32), "general.alignment", "should be u32")
    keys("alignment-string", pair("general.alignment", STRING, "32"), "general.alignment", "should be u32")
    fails(
        "alignment-past-end",
        gguf([pair("general.alignment", U32, 2**20)], [info("blk.a", [4], 24, 0)], bytes(64)),
        "blk.a",
        "alignment 1048576",
    )
    for dims in 5, 9, 100:
        infos(f"dims-{dims}", ("blk.a", [1] * dims, 0, 0), words=["blk.a", f"n_dims is {dims}", "at most 4"])
    fails(
        "dims-2-31",
        gguf([], [text("blk.a") + struct.pack("<I", 2**31) + bytes(64)]),
        "blk.a",
        "n_dims is 2147483648",
    )
    infos("dim-negative", ("blk.a", [2**64 - 5], 24, 0), words=["blk.a", "-5", "negative"])
    infos("dim-negative-2", ("blk.a", [0, 2**63], 24, 0), words=["blk.a", "negative"])
    infos("product-2-64", ("blk.a", [2**32, 2**32], 24, 0), words=["blk.a", "overflow", "4294967296"])
    infos("product-2-63", ("blk.a", [2**31, 2**32], 24, 0), words=["blk.a", "overflow"])
    infos("product-of-4", ("blk.a", [2**20] * 4, 24, 0), words=["blk.a", "overflow"])
    infos("bytes-overflow", ("blk.a", [2**62], 28, 0), words=["blk.a", "overflow", "F64"])
    for type_id in 4, 5, 31, 32, 33, 36, 37, 38, 43, 2**32 - 1:
        infos(f"type-{type_id}", ("blk.a", [256], type_id, 0), words=["blk.a", f"type {type_id} is unknown"])
    for kind, row in (("Q4_0", 31), ("Q4_0", 33), ("Q6_K", 128), ("NVFP4", 32), ("Q1_0", 64)):
        infos(
            f"row-{kind.lower()}-{row}",
            ("blk.a", [row, 2], BLOCKS[kind][0], 0),
            words=["blk.a", kind, "multiple of the block"],
        )
    infos("row-scalar", ("blk.a", [], 8, 0), words=["blk.a", "multiple of the block"])
    infos("offset-1", ("blk.a", [8], 0, 1), words=["blk.a", "offset 1", "alignment 32"])
    infos(
        "offset-16",
        ("blk.a", [4], 0, 0),
        ("blk.b", [4], 0, 16),
        words=["blk.b", "offset 16", "multiple of the alignment"],
    )
    infos("offset-at-end", ("blk.a", [8], 0, 256), words=["blk.a", "truncated", "past the end"])
    infos("offset-far", ("blk.a", [8], 0, 2**63), words=["blk.a", "truncated", str(2**63)])
    infos("offset-wraps", ("blk.a", [64], 24, 2**64 - 32), words=["blk.a", "truncated"])
    infos("offset-far-empty", ("blk.a", [0], 0, 2**20), words=["blk.a", "past the end"])
    infos("overlap", ("blk.a", [16], 0, 0), ("blk.b", [8], 0, 32), words=["blk.a", "blk.b", "overlap"])
    infos("overlap-same", ("blk.a", [8], 0, 32), ("blk.b", [8], 0, 32), words=["blk.a", "blk.b", "overlap"])
    infos("overlap-inside", ("blk.b", [8], 0, 64), ("blk.a", [64], 0, 0), words=["blk.a", "blk.b", "overlap"])
    infos("name-twice", ("blk.a", [8], 0, 0), ("blk.a", [8], 0, 32), words=["blk.a", "duplicate"])
    infos("name-not-utf8", (b"blk.\xc3", [8], 0, 0), words=["not UTF-8"])
    infos("name-65-bytes", ("n" * 65, [8], 0, 0), words=["65 bytes", "at most 64", "nnnn"])
    fails(
        "name-past-end",
        gguf([], [struct.pack("<Q", 2**50) + bytes(60)]),
        "tensor info 0",
        str(2**50),
        "past the end",
    )


def splits(c):
    def part(number, count, total, tensor, **keys):
        given = {"split.no": (U16, number), "split.count": (U16, count), "split.tensors.count": (I32, total)} | keys
        return blocks((tensor, "F16", [4]), keys=[pair(k, *v) for k, v in given.items() if v])

    def split(name, files, exits, words=(), facts=None, path="m-00001-of-00003.gguf"):
        c.files("split-" + name, files)
        c.add("split-" + name, f"split-{name}/{path}", exits, words, facts)

    parts, facts = {}, {}
    for i, tensor in enumerate(("blk.a", "blk.b", "blk.c")):
        parts[f"m-{i + 1:05d}-of-00003.gguf"], more = part(i, 3, 3, tensor)
        facts |= more
    second = "m-00002-of-00003.gguf"

    def changed(*args, **keys):
        return parts | {second: part(*args, **keys)[0]}

    split("whole", parts, LOADED, facts=facts)
    split("from-second", parts, LOADED, facts=facts, path=second)
    split("folder", parts, LOADED, facts=facts, path="")
    split("missing", {k: v for k, v in parts.items() if k != second}, NOT_THERE, [second])
    split("missing-two", dict(list(parts.items())[:1]), NOT_THERE, [second, "m-00003-of-00003.gguf"])
    split("wrong-number", changed(2, 3, 3, "blk.b"), WRONG, ["split.no is 2"])
    split("wrong-count", changed(1, 4, 3, "blk.b"), WRONG, ["split.count is 4"])
    split("not-a-part", parts | {second: blocks(("blk.b", "F16", [4]))[0]}, WRONG, ["split.count"])
    split("wrong-total", changed(1, 3, 9, "blk.b"), WRONG, ["split.tensors.count is 9", "3 tensors"])
    split("tensor-twice", changed(1, 3, 3, "blk.a"), WRONG, ["duplicate", "blk.a"])
    split("number-past-count", changed(3, 3, 3, "blk.b"), WRONG, ["split.no is 3", "split.count"])
    split(
        "count-string",
        changed(1, 3, 3, "blk.b", **{"split.count": (STRING, "3")}),
        WRONG,
        ["split.count", "integer"],
    )
    split("total-negative", changed(1, 3, -3, "blk.b"), WRONG, ["split.tensors.count", "negative"])
    split("part-cut", parts | {second: parts[second][:-25]}, NOT_THERE, ["blk.b", "truncated"])
    split(
        "renamed", {"model.gguf": parts["m-00001-of-00003.gguf"]}, WRONG, ["split.count", "name"], path="model.gguf"
    )


def add_to(c):
    good_gguf(c)
    bad_gguf(c)
    splits(c)
