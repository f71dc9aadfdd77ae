"""Cases of folders, indexes and the hub's cache."""

import json
import os

from bad_case import LOADED, NOT_THERE, WRONG, Packed, blocks, gguf

INDEX = "model.safetensors.index.json"
EMB, MID, TOP = (Packed(t) for t in (("emb", "F32", [4, 2]), ("mid", "I8", [5]), ("top", "BF16", [3])))
SHARDS = {"s-1.safetensors": EMB.file(), "s-2.safetensors": MID.file(), "s-3.safetensors": TOP.file()}
MAP = {"emb": "s-1.safetensors", "mid": "s-2.safetensors", "top": "s-3.safetensors"}
ALL = EMB.facts | MID.facts | TOP.facts


def indexes(c):
    def index(name, files, exits, words=(), facts=None, path=""):
        c.files("ix-" + name, files)
        c.add("ix-" + name, f"ix-{name}{path}", exits, words, facts)

    def loads(name, weight_map, facts, files=SHARDS, **more):
        index(name, files | {INDEX: {"weight_map": weight_map} | more}, LOADED, facts=facts)

    def fails(name, content, *words, files=SHARDS, exits=WRONG):
        index(name, files | {INDEX: content}, exits, words)

    loads("whole", MAP, ALL, metadata={"total_size": 43})
    loads("no-metadata", MAP, ALL)
    for label, metadata in (
        ("null", None),
        ("list", [1]),
        ("float", {"total_size": 4.5e1}),
        ("wrong", {"total_size": -1}),
    ):
        loads(f"metadata-{label}", MAP, ALL, metadata=metadata)
    index("by-path", SHARDS | {INDEX: {"weight_map": MAP}}, LOADED, facts=ALL, path="/" + INDEX)
    index("other-name", SHARDS | {"diffusion.safetensors.index.json": {"weight_map": MAP}}, LOADED, facts=ALL)
    loads("part", {"emb": "s-1.safetensors"}, EMB.facts)
    loads("extra-file", MAP, ALL, files=SHARDS | {"consolidated.safetensors": Packed(("emb", "F32", [9])).file()})
    loads("broken-file-not-named", MAP, ALL, files=SHARDS | {"other.safetensors": b"broken"})
    old, new = Packed(("emb", "F32", [4, 2]), ("mid", "I8", [6])), Packed(("mid", "I8", [5]))
    loads(
        "two-copies",
        {"emb": "a.safetensors", "mid": "b.safetensors"},
        Packed(("emb", "F32", [4, 2])).facts | new.facts,
        files={"a.safetensors": old.file(), "b.safetensors": new.file()},
    )
    loads(
        "sub-folder",
        {"emb": "sub/s-1.safetensors", "mid": "./s-2.safetensors"},
        EMB.facts | MID.facts,
        files={"sub/s-1.safetensors": EMB.file(), "s-2.safetensors": MID.file()},
    )
    loads("dots-in-name", {"emb": "..s-1..safetensors"}, EMB.facts, files={"..s-1..safetensors": EMB.file()})

    def mapped(file):
        return {"weight_map": MAP | {"top": file}}

    c.write("outside.safetensors", TOP.file())
    fails("escape", mapped("../outside.safetensors"), "top", "../outside.safetensors", "outside")
    fails("escape-inside", mapped("x/../s-3.safetensors"), "top", "outside")
    fails("escape-twice", mapped("x/../../outside.safetensors"), "top", "outside")
    fails("absolute", mapped(os.path.join(c.folder, "outside.safetensors")), "top", "absolute")
    fails("nul", mapped("s-3.safetensors\0.safetensors"), "top", "NUL")
    fails("empty-file-name", mapped(""), "top", "is empty")
    fails("not-safetensors", mapped("s-3.bin"), "top", "does not end in .safetensors")
    fails("number", mapped(3), "top", "is a number", "should be a string")
    fails("null", mapped(None), "top", "is null")
    fails("list-of-files", mapped(["s-3.safetensors"]), "top", "is an array")
    fails("no-map", {"metadata": {}}, "weight_map is missing")
    fails("map-inside-metadata", {"metadata": {"weight_map": MAP}}, "weight_map is missing")
    for label, value in (("null", None), ("string", "s-1.safetensors"), ("list", [MAP]), ("number", 1)):
        fails(f"map-{label}", {"weight_map": value}, "weight_map is ", "should be an object")
    fails("map-twice", b'{"weight_map":{"emb":"s-1.safetensors"},"weight_map":{}}', "duplicate weight_map")
    fails("tensor-twice", b'{"weight_map":{"emb":"s-1.safetensors","emb":"s-2.safetensors"}}', "duplicate", "emb")
    fails("list", [MAP], "the index is an array")
    fails("empty", b"", "empty")
    fails("cut", json.dumps({"weight_map": MAP}).encode()[:-2], "truncated")
    fails("behind", json.dumps({"weight_map": MAP}).encode() + b"}", "after the end of the JSON")
    fails("not-utf8", b'{"weight_map":{"\xff":"s-1.safetensors"}}', "not UTF-8")
    fails("lfs", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer")
    fails("html", b"<html>404</html>", "a web page (HTML)")
    fails("deep", b'{"metadata":' + b"[" * 10000, "nesting is too deep")
    fails("file-missing", mapped("s-4.safetensors"), "s-4.safetensors", exits=NOT_THERE)
    fails("tensor-missing", {"weight_map": MAP | {"bias": "s-1.safetensors"}}, "bias", "s-1.safetensors")
    fails("shard-cut", {"weight_map": MAP}, "truncated", "top", files=SHARDS | {"s-3.safetensors": TOP.file()[:-1]})
    fails(
        "shard-lfs",
        {"weight_map": MAP},
        "Git LFS pointer",
        files=SHARDS | {"s-3.safetensors": b"version https://git-lfs.github.com/spec/v1\n"},
    )
    fails("shard-gguf", {"weight_map": MAP}, "a GGUF file", files=SHARDS | {"s-3.safetensors": gguf([], [])})
    hub(c)


def hub(c):
    """The hub's cache: files of a snapshot are links to blobs without a suffix."""

    def cache(name, missing=()):
        root = f"hub-{name}/models--me--toy"
        os.makedirs(os.path.join(c.folder, root, "snapshots/abc"))
        for number, (file, data) in enumerate((SHARDS | {INDEX: json.dumps({"weight_map": MAP}).encode()}).items()):
            if file not in missing:
                c.write(f"{root}/blobs/{number:064x}", data)
            os.symlink(f"../../blobs/{number:064x}", os.path.join(c.folder, root, "snapshots/abc", file))
        return f"{root}/snapshots/abc"

    path = cache("whole")
    c.add("hub-folder", path, LOADED, tensors=ALL)
    c.add("hub-index", f"{path}/{INDEX}", LOADED, tensors=ALL)
    c.add("hub-shard", f"{path}/s-2.safetensors", LOADED, tensors=MID.facts)
    c.add("hub-blob", f"{path}/../../blobs/{0:064x}", LOADED, tensors=EMB.facts)
    c.add("hub-blob-missing", cache("cut", ["s-2.safetensors"]), NOT_THERE, ["s-2.safetensors"])
    c.add("hub-index-missing", cache("no-index", [INDEX]), NOT_THERE, [INDEX])


def folders(c):
    def folder(name, files, exits, words=(), facts=None):
        c.files("dir-" + name, files)
        c.add("dir-" + name, "dir-" + name, exits, words, facts)

    folder("one", {"model.safetensors": EMB.file(), "config.json": {}, "README.md": b"#"}, LOADED, facts=EMB.facts)
    folder(
        "several", {"x.safetensors": EMB.file(), "y.safetensors": MID.file()}, LOADED, facts=EMB.facts | MID.facts
    )
    folder("one-of-another-name", {"weights.safetensors": TOP.file()}, LOADED, facts=TOP.facts)
    folder("duplicate", {"x.safetensors": EMB.file(), "y.safetensors": EMB.file()}, WRONG, ["duplicate", "emb"])
    folder("empty", {}, NOT_THERE, ["holds no"])
    folder("no-model", {"config.json": {}, "pytorch_model.bin": b"PK\3\4"}, NOT_THERE, ["holds no"])
    folder("broken", {"model.safetensors": b"\1"}, WRONG, ["truncated", "only 1 byte"])
    folder(
        "broken-one-of-two",
        {"x.safetensors": EMB.file(), "y.safetensors": MID.file() + b"x"},
        WRONG,
        ["1 trailing byte"],
    )
    data, facts = blocks(("w", "Q8_0", [64]))
    folder("gguf", {"w.gguf": data, "config.json": {}}, LOADED, facts=facts)
    c.add("no-such-file", "nowhere/model.safetensors", NOT_THERE, ["No such file"])
    c.add("no-such-folder", "nowhere", NOT_THERE, ["No such file"])


def add_to(c):
    indexes(c)
    folders(c)
