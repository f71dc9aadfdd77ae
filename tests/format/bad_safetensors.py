"""Cases of one safetensors file, and of files of another kind under its name."""

import json
import struct

from bad_case import WIDTHS, Packed, filler, gguf, member, with_header

PAIR = Packed(("layer.a", "F32", [2, 3]), ("layer.b", "BF16", [5]))
ONE = Packed(("layer.w", "U8", [4]))


def good_safetensors(c):
    c.loads("st-one", ONE.file(), ONE.facts)
    c.loads("st-two", PAIR.file(), PAIR.facts)
    c.loads("st-none", with_header("{}"), {})
    c.loads("st-none-with-metadata", with_header('{"__metadata__":{"format":"pt"}}'), {})
    c.loads("st-metadata-null", with_header('{"__metadata__":null,' + ONE.members[0] + "}", ONE.data), ONE.facts)
    c.loads(
        "st-metadata-last", with_header("{" + ONE.members[0] + ',"__metadata__":{"a":"b"}}', ONE.data), ONE.facts
    )
    c.loads(
        "st-metadata-key-twice",
        with_header('{"__metadata__":{"a":"1","a":"2"},' + ONE.members[0] + "}", ONE.data),
        ONE.facts,
    )
    c.loads(
        "st-metadata-odd-text",
        with_header(
            '{"__metadata__":{"":"","\\u0000":"\\n","x":"{\\"y\\":[1]}"},' + ONE.members[0] + "}", ONE.data
        ),
        ONE.facts,
    )
    for dtype in WIDTHS:
        for shape in ([8], [2, 0, 4], [4, 1, 2]):
            packed = Packed((f"t.{dtype.lower()}", dtype, shape))
            c.loads(f"st-dtype-{dtype.lower()}-{'x'.join(map(str, shape))}", packed.file(), packed.facts)
    scalars = Packed(("s", "F64", []), ("t", "BOOL", []), ("u", "C64", []))
    c.loads("st-scalars", scalars.file(), scalars.facts)
    empties = Packed(("e", "F32", [0]), ("f", "I64", [3, 0]), ("g", "F4", [0, 3]))
    c.loads("st-only-empty", empties.file(), empties.facts)
    mixed = Packed(("e", "F32", [0]), ("x", "U8", [7]), ("f", "F16", [0, 2]), ("y", "F64", [3]), ("g", "U8", [0]))
    c.loads("st-empty-between", mixed.file(), mixed.facts)
    c.loads("st-empty-between-reversed", mixed.file(order=lambda m: m[::-1]), mixed.facts)
    deep = Packed(("deep", "I16", [1] * 40 + [3] + [1] * 40))
    c.loads("st-rank-81", deep.file(), deep.facts)
    c.loads("st-spaces-behind", PAIR.file(after=" " * 100), PAIR.facts)
    c.loads("st-whitespace-around", PAIR.file(before="\r\n \t", after="\t\n\r "), PAIR.facts)
    c.loads(
        "st-whitespace-between",
        with_header(PAIR.header().replace(":", " :\n ").replace(",", "\t, "), PAIR.data),
        PAIR.facts,
    )
    for extra in range(1, 8):
        c.loads(
            f"st-length-{extra}-past-eight", PAIR.file(after=" " * (-len(PAIR.header()) % 8 + extra)), PAIR.facts
        )
    nested = "[" * 125 + "]" * 125
    c.loads(
        "st-extra-nested-125",
        with_header("{" + member("layer.w", "U8", [4], 0, 4, ',"x":' + nested) + "}", ONE.data),
        ONE.facts,
    )
    c.loads(
        "st-extra-twice",
        with_header("{" + member("layer.w", "U8", [4], 0, 4, ',"x":1,"x":{"dtype":3}') + "}", ONE.data),
        ONE.facts,
    )
    for label, name in (
        ("empty", ""),
        ("slash", "../../etc/x"),
        ("quotes", 'a"b\\c'),
        ("control", "a\nb\tc\x01"),
        ("nul", "a\0b"),
        ("emoji", "\U0001f600.w"),
        ("long", "long." * 20000),
        ("like-metadata", "__metadata"),
        ("dtype", "dtype"),
    ):
        named = Packed((name, "I8", [3]))
        c.loads(f"st-name-{label}", named.file(), named.facts)
    accents = Packed(("caf\u00e9", "U8", [1]), ("cafe\u0301", "U8", [1]))
    c.loads("st-names-two-accents", accents.file(), accents.facts)
    odd = Packed(("a", "U8", [3]), ("b", "F64", [2]), ("c", "U8", [1]), ("d", "F32", [3]), ("e", "C64", [1]))
    c.loads("st-unaligned", odd.file(), odd.facts)
    many = Packed(*((f"m.{i}", "U8", [1]) for i in range(3000)))
    c.loads("st-many", many.file(order=lambda m: sorted(m)), many.facts)
    c.loads("st-any-name", ONE.file(), ONE.facts, suffix=".weights")
    c.loads("st-no-suffix", ONE.file(), ONE.facts, suffix="")


def bad_lengths(c):
    body = ONE.file()
    c.fails("st-empty-file", b"", "empty", "0 bytes")
    for size in (1, 7):
        c.fails(f"st-{size}-bytes", body[:size], "truncated", f"only {size} byte")
    c.fails("st-8-bytes", body[:8], "truncated", f"{len(ONE.header())} bytes long", "only 0 follow")
    c.fails("st-cut-in-header", body[:30], "truncated", "only 22 follow", "past the end")
    c.fails("st-length-0", with_header("", b"data"), "length is 0")
    c.fails("st-length-0-alone", with_header(""), "length is 0")
    for power in (32, 48, 62, 63):
        c.fails(f"st-length-2-{power}", with_header("{}", length=2**power), str(2**power), "limit of 100000000")
    c.fails("st-length-all-ones", with_header("{}", length=2**64 - 1), str(2**64 - 1), "limit")
    c.fails("st-length-limit-and-1", with_header("{}", length=100000001), "100000001", "limit")
    c.fails("st-length-limit-past-end", with_header("{}", length=100000000), "100000000 bytes long", "truncated")
    c.fails("st-length-1-short", with_header(ONE.header(), ONE.data, len(ONE.header()) - 1), "byte")
    c.fails(
        "st-length-1-long", with_header(ONE.header(), ONE.data, len(ONE.header()) + 1), "after the end of the JSON"
    )
    c.fails(
        "st-length-big-endian",
        struct.pack(">Q", len(ONE.header())) + ONE.header().encode() + ONE.data,
        "big-endian",
        "byte order",
    )


def bad_text(c):
    plain = ONE.members[0]

    def text(name, header, *words, data=ONE.data):
        c.fails("st-" + name, with_header(header, data), *words)

    text("nul-behind", ONE.header().encode() + b"\0" * 5, "NUL (0x00)", "after the end of the JSON")
    text("nul-before", b"\0" + ONE.header().encode(), "NUL (0x00)", "byte 8")
    text("text-behind", ONE.header() + "x", "'x'", "after the end of the JSON")
    text("two-objects", ONE.header() + "{}", "'{'", "after the end of the JSON")
    text("vertical-tab", ONE.header() + "\v", "0x0b")
    text("byte-order-mark", b"\xef\xbb\xbf" + ONE.header().encode(), "byte order mark")
    text("utf-16", ONE.header().encode("utf-16-le"), "NUL (0x00)")
    text(
        "not-utf8-name", b'{"\xff":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', "byte 10", "0xff is not UTF-8"
    )
    text("not-utf8-overlong", b'{"\xc0\xaf":{}}', "not UTF-8")
    text("not-utf8-surrogate", b'{"\xed\xa0\x80":{}}', "not UTF-8")
    text("not-utf8-cut", b'{"\xe2\x82":{}}', "not UTF-8")
    text("not-utf8-too-high", b'{"\xf4\x90\x80\x80":{}}', "not UTF-8")
    text("not-utf8-outside", b"\xfe", "0xfe is not UTF-8")
    text("not-utf8-metadata", b'{"__metadata__":{"a":"\xe9"}}', "0xe9 is not UTF-8")
    text("lone-surrogate", '{"\\ud800":{}}', "\\ud800", "surrogate")
    text("low-surrogate", '{"\\udc00x":{}}', "\\udc00", "surrogate")
    text("bad-escape", '{"\\x41":{}}', "escape of JSON")
    text("short-escape", '{"\\u00', "hexadecimal")
    text("newline-in-name", '{"a\nb":{}}', "control character 0x0a")
    text("brace-only", "{", "the JSON ends")
    text("cut-in-string", '{"layer', "ends inside a string")
    text("cut-in-entry", plain[:30].join(["{", ""]), "truncated")
    text("array", "[]", "the header is an array")
    text("null", "null", "the header is null")
    text("string", '"' + "x" * 30 + '"', "the header is a string")
    text("comma-last", "{" + plain + ",}", "comma")
    text("comma-missing", "{" + plain + " " + plain + "}", "',' or '}'")
    text("colon-missing", '{"layer.w" {}}', "':'")
    text("key-unquoted", "{layer:{}}", "a key in quotes")
    text("comment", "{/* weights */}", "'/'")
    text("nan", '{"layer.w":{"x":NaN}}', "layer.w", "'N'")
    text("infinity", '{"layer.w":{"x":-Infinity}}', "layer.w", "'I'")
    text("leading-zero", '{"layer.w":{"shape":[04]}}', "layer.w", "begins with a 0")
    text("hex", '{"layer.w":{"shape":[0x4]}}', "layer.w", "'x'")
    text("plus", '{"layer.w":{"shape":[+4]}}', "layer.w", "'+'")
    text("word", '{"layer.w":{"x":trues}}', "layer.w")
    for depth in (126, 200, 1_000_000):
        text(
            f"nested-{depth}",
            "{" + member("layer.w", "U8", [4], 0, 4, ',"x":' + "[" * depth + "]" * depth) + "}",
            "layer.w",
            "nesting is too deep",
            "levels",
        )
    text("nested-objects", '{"layer.w":{"x":' + '{"a":' * 300 + "1" + "}" * 300 + "}}", "nesting is too deep")
    text("nested-open", "[" * 50000, "the header is an array")
    text("nested-in-metadata", '{"__metadata__":' + '{"a":' * 300 + "1" + "}" * 300 + "}", "nesting is too deep")


def bad_entries(c):
    def entry(name, body, *words, data=b""):
        c.fails("st-" + name, with_header('{"layer.w":' + body + "}", data), "layer.w", *words)

    for field in "dtype", "shape", "data_offsets":
        whole = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
        value = json.dumps(whole.pop(field))
        entry(f"{field}-missing", json.dumps(whole), f"{field} is missing", data=b"abcd")
        rest = json.dumps(whole)[1:-1]
        entry(
            f"{field}-twice", f'{{{rest},"{field}":{value},"{field}":{value}}}', f"duplicate {field}", data=b"abcd"
        )
        for kind, other in (("null", "null"), ("object", "{}"), ("true", "true")):
            entry(f"{field}-{kind}", f'{{{rest},"{field}":{other}}}', f"{field} is ", "should be", data=b"abcd")
    for kind, body in (("null", "null"), ("list", '["U8",[4],[0,4]]'), ("number", "4"), ("string", '"U8"')):
        entry(f"entry-{kind}", body, "its entry is", "should be an object", data=b"abcd")
    entry("entry-empty", "{}", "dtype is missing")
    for dtype in "u8", "F8", "FP16", "F128", "C128", "U8 ", "":
        entry(
            f"dtype-{dtype or 'none'}".replace(" ", "-space"),
            json.dumps({"dtype": dtype, "shape": [4], "data_offsets": [0, 4]}),
            f'dtype "{dtype}" is unknown',
            data=b"abcd",
        )
    for label, number, words in (
        ("negative", "-4", "-4 is negative"),
        ("fraction", "4.0", "no plain integer"),
        ("exponent", "4e0", "no plain integer"),
        ("minus-zero", "-0", "-0 is negative"),
        ("2-64", str(2**64), "overflow"),
        ("huge", "9" * 400, "overflow"),
        ("string", '"4"', "is a string"),
        ("null", "null", "is null"),
        ("list", "[4]", "is an array"),
    ):
        entry(
            f"dim-{label}",
            f'{{"dtype":"U8","shape":[{number}],"data_offsets":[0,4]}}',
            "shape: dimension",
            words,
            data=b"abcd",
        )
        entry(
            f"offset-{label}",
            f'{{"dtype":"U8","shape":[4],"data_offsets":[0,{number}]}}',
            "data_offsets: offset",
            words,
            data=b"abcd",
        )
    for count in 0, 1, 3:
        offsets = json.dumps([0, 4, 4][:count])
        entry(
            f"offsets-{count}",
            f'{{"dtype":"U8","shape":[4],"data_offsets":{offsets}}}',
            f"data_offsets holds {count} numbers",
            data=b"abcd",
        )
    entry(
        "offsets-reversed",
        '{"dtype":"U8","shape":[4],"data_offsets":[8,4]}',
        "data_offsets [8, 4]",
        "reversed",
        data=b"abcdefgh",
    )
    for dtype, shape, size, words in (
        ("U8", [5], 4, "takes 5 bytes"),
        ("U8", [3], 4, "takes 3 bytes"),
        ("F32", [], 0, "takes 4 bytes"),
        ("F64", [2, 2], 16, "takes 32 bytes"),
        ("F16", [0], 2, "takes 0 bytes"),
        ("F4", [5], 3, "whole byte"),
        ("F4", [3, 3], 5, "whole byte"),
        ("F6_E2M3", [2], 2, "whole byte"),
        ("F6_E3M2", [3, 3], 7, "whole byte"),
        ("F6_E3M2", [4], 4, "takes 3 bytes"),
    ):
        label = f"size-{dtype.lower()}-{'x'.join(map(str, shape)) or 'scalar'}-{size}"
        entry(
            label,
            json.dumps({"dtype": dtype, "shape": shape, "data_offsets": [0, size]}),
            dtype,
            words,
            data=bytes(size),
        )
    for label, dtype, shape in (
        ("2-32-squared", "U8", [2**32, 2**32]),
        ("2-63-twice", "U8", [2**63, 2]),
        ("before-zero", "U8", [2**63, 2**63, 0]),
        ("bits", "F64", [2**58]),
        ("bits-u8", "U8", [2**61]),
        ("all-ones", "I8", [2**64 - 1] * 3),
    ):
        entry(
            f"overflow-{label}",
            json.dumps({"dtype": dtype, "shape": shape, "data_offsets": [0, 0]}),
            "overflow",
            str(shape[0]),
        )


def bad_places(c):
    def two(name, a, b, size, *words, third=None):
        members = [member("layer.a", "U8", [a[1] - a[0]], *a), member("layer.b", "U8", [b[1] - b[0]], *b)]
        for order in 0, 1:
            c.fails(
                f"st-{name}-{order}",
                with_header("{" + ",".join(members[:: 1 - 2 * order]) + "}", bytes(size)),
                *words,
            )

    two("overlap-by-1", (0, 8), (7, 12), 12, "layer.a", "layer.b", "overlap")
    two("overlap-inside", (0, 12), (4, 8), 12, "layer.a", "layer.b", "overlap")
    two("overlap-same", (0, 8), (0, 8), 8, "layer.a", "layer.b", "overlap")
    two("overlap-same-begin", (0, 8), (0, 4), 8, "layer.a", "layer.b", "overlap")
    two("hole-of-1", (0, 8), (9, 12), 12, "layer.a", "layer.b", "hole", "1 byte ", "belong to no tensor")
    two("hole-of-1000", (0, 8), (1008, 1012), 1012, "layer.b", "hole", "1000 bytes", "belong to no tensor")
    two("hole-first", (4, 8), (8, 12), 12, "layer.a", "hole", "first 4 bytes")
    two("truncated-1", (0, 8), (8, 12), 11, "layer.b", "truncated", "1 byte past the end")
    two("truncated-all", (0, 8), (8, 12), 0, "layer.b", "truncated", "12 bytes past the end")
    two("trailing-1", (0, 8), (8, 12), 13, "1 trailing byte ")
    two("trailing-many", (0, 8), (8, 12), 5012, "5000 trailing bytes")
    c.fails("st-trailing-no-tensor", with_header("{}", b"abc"), "3 trailing bytes")
    c.fails(
        "st-trailing-empty-tensor",
        with_header("{" + member("layer.e", "U8", [0], 0, 0) + "}", b"abc"),
        "3 trailing bytes",
    )
    c.fails(
        "st-empty-inside",
        with_header(
            "{" + member("layer.a", "U8", [8], 0, 8) + "," + member("layer.e", "U8", [0], 4, 4) + "}", bytes(8)
        ),
        "layer.a",
        "layer.e",
        "overlap",
    )
    c.fails("st-empty-far", with_header("{" + member("layer.e", "U8", [0], 4, 4) + "}", b""), "layer.e", "hole")
    c.fails(
        "st-far-end",
        with_header("{" + member("layer.a", "U8", [2**60], 0, 2**60) + "}", b""),
        "layer.a",
        "truncated",
        str(2**60),
    )
    c.fails(
        "st-range-to-the-last-number",
        with_header("{" + member("layer.a", "U8", [4], 2**64 - 5, 2**64 - 1) + "}", bytes(4)),
        "layer.a",
        "hole",
    )
    c.fails(
        "st-name-twice",
        with_header(
            "{" + member("layer.a", "U8", [4], 0, 4) + "," + member("layer.a", "U8", [4], 4, 8) + "}", bytes(8)
        ),
        "duplicate",
        "layer.a",
    )
    c.fails(
        "st-name-twice-same-range",
        with_header(
            "{" + member("layer.a", "U8", [4], 0, 4) + "," + member("layer.a", "U8", [4], 0, 4) + "}", bytes(4)
        ),
        "duplicate",
        "layer.a",
    )
    c.fails(
        "st-name-twice-escaped",
        with_header(
            "{"
            + member("layer.a", "U8", [4], 0, 4)
            + ","
            + member("layer.a", "U8", [4], 4, 8).replace("layer", "\\u006cayer")
            + "}",
            bytes(8),
        ),
        "duplicate",
        "layer.a",
    )
    c.fails(
        "st-name-twice-empty",
        with_header("{" + member("e", "U8", [0], 0, 0) + "," + member("e", "U8", [0], 0, 0) + "}"),
        "duplicate",
        '"e"',
    )


def bad_metadata(c):
    for kind, value in (("number", "3"), ("list", "[]"), ("string", '"pt"'), ("true", "true")):
        c.fails(
            f"st-metadata-{kind}",
            with_header('{"__metadata__":' + value + "}"),
            "__metadata__ is ",
            "should be an object",
        )
    for kind, value in (
        ("number", "3"),
        ("null", "null"),
        ("true", "true"),
        ("list", '["a"]'),
        ("object", '{"a":"b"}'),
    ):
        c.fails(
            f"st-metadata-value-{kind}",
            with_header('{"__metadata__":{"format":"pt","epoch":' + value + "}}"),
            "__metadata__",
            "epoch",
            "should be a string",
        )
    c.fails("st-metadata-twice", with_header('{"__metadata__":{},"__metadata__":{}}'), "duplicate __metadata__")
    c.fails(
        "st-metadata-twice-null", with_header('{"__metadata__":null,"__metadata__":null}'), "duplicate __metadata__"
    )


def other_files(c):
    def both(name, data, *words):
        for suffix in ".safetensors", ".gguf":
            c.fails(f"other-{name}-as{suffix.replace('.', '-')}", data, *words, suffix=suffix)

    both(
        "lfs",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123\n",
        "Git LFS pointer",
        "git lfs pull",
    )
    both("html", b"<!doctype HTML><html><body>Sign in</body></html>", "a web page (HTML)", "download")
    both("html-spaced", b"\r\n\r\n   <html>\n<head></head></html>", "a web page (HTML)")
    both(
        "xml",
        b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code></Error>',
        "an XML document",
    )
    both("json", b'{"error": "Repository not found"}', "JSON text", "Repository")
    both("text", b"Entry not found", "plain text", "Entry not found")
    both("zip", b"PK\x03\x04" + bytes(60), "a zip archive")
    both("pickle", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + bytes(40), "a pickle")
    both("pickle-4", b"\x80\x04\x95" + struct.pack("<Q", 20) + bytes(40), "a pickle")
    both("gzip", b"\x1f\x8b\x08\0\0\0\0\0\x02\x03" + bytes(40), "a gzip archive")
    both("hdf5", b"\x89HDF\r\n\x1a\n" + bytes(40), "an HDF5 file")
    both("numpy", b"\x93NUMPY\x01\0" + bytes(60), "a NumPy array")
    both("tar", b"model/".ljust(257, b"\0") + b"ustar\x0000" + bytes(247), "a tar archive")
    c.fails("other-gguf-as-safetensors", gguf([], []), "a GGUF file", ".gguf")
    c.fails("other-safetensors-as-gguf", ONE.file(), "a safetensors file", suffix=".gguf")
    c.fails("other-noise", filler("noise", 999), "limit", suffix=".safetensors")


def add_to(c):
    good_safetensors(c)
    bad_lengths(c)
    bad_text(c)
    bad_entries(c)
    bad_places(c)
    bad_metadata(c)
    other_files(c)
