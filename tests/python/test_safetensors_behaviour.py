"""The table of safetensors' Python behaviours: each is run against both libraries.

A row is a call. Ours has to give the same value; where theirs raises, ours has to raise something
that the same `except` clause catches. A row may say that ours differs, and why. With TABLE=1 in the
environment the table is printed.
"""
import copy
import itertools
import os
import pathlib
import pickle
import random
import struct
import threading

from package import Scratch, header, need, noise, safetensors
from tap import CASES, case, check, run, same

import onehop



SOURCE = random.Random(20)
MATRIX = noise(SOURCE, "U8", [2, 3, 4])
TENSORS = [
    ("z", "U8", [2, 3, 4], MATRIX), ("b", "BF16", [4], noise(SOURCE, "BF16", [4])),
    ("s", "I32", [], noise(SOURCE, "I32", [])), ("e", "F32", [0, 3], b""),
    ("i", "I64", [3], noise(SOURCE, "I64", [3])), ("f4", "F4", [2, 4], noise(SOURCE, "F4", [2, 4])),
    ("f6", "F6_E2M3", [4], noise(SOURCE, "F6_E2M3", [4])), ("f4odd", "F4", [2, 3], b"abc"),
    ("e2", "I8", [0], b""), ("bool", "BOOL", [5], b"\0\1\1\0\1"),
]
TENSORS += [(name.lower() + "!", name, [3], noise(SOURCE, name, [3]))
            for name in ("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F16",
                         "U16", "I16", "U32", "F64", "U64", "C64")]
PLAIN = [tensor for tensor in TENSORS if not tensor[1].startswith("F6") and tensor[0] != "f4odd"]

ROWS = []
S = slice


class Ours:
    """A row in which ours differs on purpose."""

    def __init__(self, outcome, why):
        self.outcome, self.why = outcome, why


def row(name, call, ours=None):
    """call(library, folder) with library one of Library; ours: an Ours."""
    ROWS.append((name, call, ours))


class Library:
    """One of the two: what tests call of it."""

    def __init__(self, name, safe_open, load_file):
        self.name, self.open, self.load_file = name, safe_open, load_file


def libraries():
    theirs, torch = need("safetensors"), need("safetensors.torch")
    return (Library("theirs", theirs.safe_open, torch.load_file),
            Library("ours", onehop.safe_open, onehop.load_file))


def shown(value):
    """A value in words that can be compared; tensors by dtype, shape and bytes."""
    import numpy
    import torch

    if isinstance(value, torch.Tensor):
        flat = value.contiguous().reshape(-1)
        data = bytes(flat.view(torch.uint8).numpy()) if value.numel() else b""
        return f"torch {value.dtype} {list(value.shape)} {value.device} {data.hex()}"
    if isinstance(value, numpy.ndarray):
        return (f"numpy {value.dtype} {list(value.shape)} {value.tobytes().hex()}"
                f"{'' if value.flags.writeable else ' read-only'}")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {shown(one)}" for key, one in value.items()) + "}"
    return repr(value)


def outcome(call, library, folder):
    """("value", words) or ("raises", exception)."""
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return "value", shown(call(library, folder))
    except Exception as error:  # whatever it is, it is the row's outcome
        return "raises", error


def kind_of(error):
    """The most telling class that a caller of theirs catches: a public one."""
    for cls in type(error).__mro__:
        if cls.__module__ == "builtins" or cls.__name__ == "SafetensorError":
            return cls
    return Exception


def compare(name, theirs, ours, expected):
    if expected is not None:
        caught_as = [cls.__name__ for cls in type(ours[1]).__mro__]
        check(expected.outcome is None or expected.outcome in caught_as,
              f"{name}: ours is {ours[1]!r}")
    elif theirs[0] == "value":
        same(ours, theirs, name)
    else:
        same(ours[0], "raises", f"{name} (theirs: {theirs[1]!r})")
        check(isinstance(ours[1], kind_of(theirs[1])),
              f"{name}: {ours[1]!r} is no {kind_of(theirs[1]).__name__} ({theirs[1]!r})")


def path(folder, name="m"):
    return os.path.join(folder, f"{name}.safetensors")


def write_all(folder):
    safetensors(path(folder), TENSORS, {"format": "pt", "key": "v\u00e4lue"})
    safetensors(path(folder, "plain"), PLAIN)
    safetensors(path(folder, "none"), [])
    safetensors(path(folder, "numpy"), [t for t in PLAIN if t[1] in ("U8", "I32", "F32", "I64")])
    # Theirs gives several empty tensors at one place in any order.
    order = [("b", "U8", [1], b"b"), ("a", "U8", [1], b"a"), ("e", "U8", [0], b"")]
    safetensors(path(folder, "order"), order)
    with open(path(folder), "rb") as file:
        whole = file.read()
    bad = {"empty": b"", "short": b"\1\0\0", "text": b"hello world, no header is here",
           "cut": whole[:-5], "long": whole + b"xyz", "json": struct.pack("<Q", 2) + b"{]",
           "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
           "hole": header([("a", "U8", [4], 4)])[:-1] + b" " + b"12",
           "dtype": header([("a", "U9", [1], 1)]) + b"1"}
    for name, data in bad.items():
        with open(path(folder, name), "wb") as file:
            file.write(data)


# ---- the table


def opened(call, name="m", framework="pt", **more):
    """A row's call on an open file."""
    def run_it(library, folder):
        with library.open(path(folder, name), framework, **more) as file:
            return call(file)
    return run_it


for framework in ("pt", "torch", "pytorch", "np", "numpy"):
    row(f"framework {framework}", opened(lambda f: f.get_tensor("i"), framework=framework))
for framework in ("zz", None, 3):
    row(f"framework {framework}", lambda l, d, fw=framework: l.open(path(d), fw))
row("framework left out", lambda l, d: l.open(path(d)))
row("a path object", lambda l, d: l.open(pathlib.Path(path(d)), "pt").keys())
row("by keywords", lambda l, d: l.open(filename=path(d), framework="pt", device="cpu").keys())
row("device by position", lambda l, d: l.open(path(d), "pt", "cpu").keys())
row("backend by position", lambda l, d: l.open(path(d), "pt", "cpu", "mmap"))
for backend in ("mmap", "pread", "zz"):
    row(f"backend {backend}", opened(lambda f: f.get_tensor("i"), backend=backend))
for device in ("cpu", None, "zz", "meta", -1, 1.5, "cpu:0", "disk"):
    row(f"device {device!r}", opened(lambda f: f.get_tensor("i"), device=device))
row("numpy on a GPU", opened(lambda f: f.get_tensor("i"), framework="np", device="cuda:0"))

row("a number as path", lambda l, d: l.open(3, "pt"), Ours("TypeError", "the same"))
row("no such file", lambda l, d: l.open(path(d, "nothing"), "pt"))
row("load_file: no such file", lambda l, d: l.load_file(path(d, "nothing")))
row("a folder", lambda l, d: l.open(d, "pt"))
for name in ("empty", "short", "text", "cut", "long", "json", "lfs", "hole", "dtype"):
    row(f"malformed: {name}", lambda l, d, n=name: l.open(path(d, n), "pt"))
    row(f"load_file of malformed: {name}", lambda l, d, n=name: l.load_file(path(d, n)))

for framework in ("pt", "np"):
    row(f"{framework}: keys", opened(lambda f: f.keys(), framework=framework))
    row(f"{framework}: offset_keys", opened(lambda f: f.offset_keys(), framework=framework))
    row(f"{framework}: no such tensor", opened(lambda f: f.get_tensor("?"), framework=framework))
    row(f"{framework}: no such slice", opened(lambda f: f.get_slice("?"), framework=framework))
row("metadata", opened(lambda f: sorted(f.metadata().items())))
row("no metadata", opened(lambda f: f.metadata(), "order"))
row("keys in order", opened(lambda f: (f.keys(), f.offset_keys(), list(f.get_tensors())), "order"))
row("a model of nothing", opened(lambda f: (f.keys(), f.get_tensors(), f.metadata()), "none"))
row("a name that is no string", opened(lambda f: f.get_tensor(1)))
row("a slice's name that is no string", opened(lambda f: f.get_slice(None)))
row("get_tensor by keyword", opened(lambda f: f.get_tensor(name="i")))

ML_DTYPES = "theirs fails; ours gives ml_dtypes' type"
RAW = "theirs fails; ours gives the raw bytes"
for name, dtype, shape, data in TENSORS:
    row(f"pt: get_tensor {dtype} {shape}", opened(lambda f, n=name: f.get_tensor(n)))
    new = None
    if dtype == "BF16" or dtype.startswith("F8"):
        new = Ours(None, ML_DTYPES)
    elif dtype == "F4" or dtype.startswith("F6_"):
        new = Ours(None, RAW)
    row(f"np: get_tensor {dtype} {shape}", opened(lambda f, n=name: f.get_tensor(n),
                                                   framework="np"), new)
    row(f"get_slice's shape and dtype {dtype}", opened(
        lambda f, n=name: (f.get_slice(n).get_shape(), f.get_slice(n).get_dtype())))
row("pt: get_tensors", opened(lambda f: f.get_tensors(), "plain"))
row("np: get_tensors", opened(lambda f: f.get_tensors(), "numpy", framework="np"))
row("get_tensors of F6", opened(lambda f: f.get_tensors()))
row("get_tensors of some", opened(lambda f: f.get_tensors(["z"])))
row("load_file", lambda l, d: l.load_file(path(d, "plain")))
row("load_file is a dict", lambda l, d: type(l.load_file(path(d, "plain"))))
row("load_file of a path object", lambda l, d: l.load_file(pathlib.Path(path(d, "order"))))
row("load_file with a backend", lambda l, d: l.load_file(path(d, "order"), backend="pread"))
row("load_file with a device", lambda l, d: l.load_file(path(d, "order"), device="cpu"))
row("load_file of F6", lambda l, d: l.load_file(path(d)))

INDEXES = [
    0, -1, -2, -3, 2, (0, 1), (0, -1, 2), (1, 2, 3), (0, 0, 0, 0), S(None), S(0, 1), S(1, None),
    S(0, 2, 1), S(0, 2, 2), S(None, None, 2), S(None, None, -1), S(None, None, 0), S(1, 1), S(2, 1),
    S(0, 100), S(5, 6), S(2, 3), ..., (..., 0), (0, ...), (0, ..., 1), (..., S(1, 3)), (),
    (S(None), S(1, 2)), (S(None), S(None), S(1, 3)), (S(0, 1), S(0, 2), S(0, 3)), (S(None), 1),
    (S(None), S(None), 1), (0, S(1, 3), S(0, 4, 3)), (S(1, 2), 2), None, (None, 0), (0, None),
    True, [0, 1], [1], ([0], 0), 1.0, "a", (S(0.5, 1),), S(True, None),
    (S(None), S(None), S(None), 0),
]
NEGATIVE = [S(-1, None), S(None, -1), (S(None), S(-2, -1))]
for index in INDEXES + NEGATIVE:
    words = repr(index).replace("slice", "S").replace("None", "-")
    row(f"pt: slice [{words}]", opened(lambda f, i=index: f.get_slice("z")[i]))
    new = None
    if index in NEGATIVE and index is not Ellipsis:
        new = Ours(None, "theirs raises OverflowError; ours gives numpy's result")
    row(f"np: slice [{words}]",
        opened(lambda f, i=index: f.get_slice("z")[i], framework="np"), new)
for index in ((), ..., 0, S(None)):
    row(f"pt: slice of a scalar [{index}]", opened(lambda f, i=index: f.get_slice("s")[i]))
    row(f"np: slice of a scalar [{index}]",
        opened(lambda f, i=index: f.get_slice("s")[i], framework="np"))
    row(f"pt: slice of an empty tensor [{index}]", opened(lambda f, i=index: f.get_slice("e")[i]))
    new = None
    if index in (..., S(None)):
        new = Ours(None, "theirs raises; an empty tensor has an empty slice")
    row(f"np: slice of an empty tensor [{index}]",
        opened(lambda f, i=index: f.get_slice("e")[i], framework="np"), new)
row("pt: slice of BF16", opened(lambda f: f.get_slice("b")[1:3]))
row("pt: slice of BOOL", opened(lambda f: f.get_slice("bool")[1:3]))
row("pt: slice of C64", opened(lambda f: f.get_slice("c64!")[::2]))
row("pt: slice of F4", opened(lambda f: f.get_slice("f4")[:, 2:]),
    Ours(None, "theirs fails; ours gives the packed elements"))
row("pt: slice of F4 within a byte", opened(lambda f: f.get_slice("f4")[:, 1:]),
    Ours("SafetensorError", "theirs fails with RuntimeError"))
row("pt: slice of F6", opened(lambda f: f.get_slice("f6")[:]))


def numpy_index(file, kind):
    import numpy
    return file.get_slice("z")[kind(numpy)]


row("pt: slice by numpy's integers", opened(
    lambda f: numpy_index(f, lambda n: S(n.int64(0), n.int64(1)))))
row("np: slice by numpy's integers", opened(
    lambda f: numpy_index(f, lambda n: n.int64(1)), framework="np"))
row("pt: slice by a tensor", opened(lambda f: f.get_slice("z")[need("torch").tensor([1, 0])]))
row("pt: slice by a mask", opened(
    lambda f: f.get_slice("z")[need("torch").tensor([True, False])]))
row("pt: iterating over a slice", opened(lambda f: [shown(one) for one in f.get_slice("z")]))
row("the length of a slice", opened(lambda f: len(f.get_slice("z"))))


def closed(call):
    """A row's call on a file that is closed."""
    def run_it(library, folder):
        with library.open(path(folder), "pt") as file:
            part, tensor = file.get_slice("z"), file.get_tensor("i")
        return call(file, part, tensor)
    return run_it


for method in ("keys", "offset_keys", "metadata", "get_tensors"):
    row(f"closed: {method}", closed(lambda f, p, t, m=method: getattr(f, m)()))
row("closed: get_tensor", closed(lambda f, p, t: f.get_tensor("z")))
row("closed: get_slice", closed(lambda f, p, t: f.get_slice("z")))
row("closed: a slice from before", closed(lambda f, p, t: p[0]))
row("closed: a slice's shape", closed(lambda f, p, t: (p.get_shape(), p.get_dtype())))
row("closed: a tensor from before", closed(lambda f, p, t: t))
row("closed twice", closed(lambda f, p, t: f.__exit__(None, None, None)))
row("without a with", lambda l, d: l.open(path(d), "pt").get_tensor("z"))
row("an exception leaves the with", lambda l, d: raise_inside(l, d))


def raise_inside(library, folder):
    with library.open(path(folder), "pt"):
        raise ZeroDivisionError


row("pickling a file", lambda l, d: pickle.dumps(l.open(path(d), "pt")))
row("copying a file", lambda l, d: copy.copy(l.open(path(d), "pt")))
row("pickling a slice", opened(lambda f: pickle.dumps(f.get_slice("z"))))
row("iterating over a file", opened(iter))
row("the length of a file", opened(len))
row("`in` a file", opened(lambda f: "z" in f))
row("indexing a file", opened(lambda f: f["z"]))
row("a new attribute", opened(lambda f: setattr(f, "x", 1)))
row("comparing", opened(lambda f: (f == f, hash(f) == hash(f))))


def error_of(library, folder):
    try:
        library.open(path(folder, "text"), "pt")
    except need("safetensors").SafetensorError as error:
        return error


row("pickling an error", lambda l, d: isinstance(
    pickle.loads(pickle.dumps(error_of(l, d))), need("safetensors").SafetensorError))
row("a tensor can be written", opened(lambda f: f.get_tensor("i").add_(1).shape))
row("writing does not change the file", lambda l, d: (
    l.open(path(d), "pt").get_tensor("i").zero_().sum().item(),
    l.open(path(d), "pt").get_tensor("i").tolist())[1])
row("requires_grad", opened(lambda f: f.get_tensor("f64!").requires_grad))


def in_threads(library, folder):
    """What eight threads see that read one file at once."""
    seen, torch = [], need("torch")
    with library.open(path(folder), "pt") as file:
        want = file.get_tensor("z")

        def work():
            for _ in range(20):
                seen.append(torch.equal(file.get_tensor("z"), want))
                seen.append(torch.equal(file.get_slice("z")[1], want[1]))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return len(seen), all(seen)


row("eight threads on one file", in_threads)


def in_a_child(library, folder):
    """What a forked child sees of a file that its parent opened."""
    with library.open(path(folder), "pt") as file:
        want = file.get_tensor("i").tolist()
        child = os.fork()
        if child == 0:
            os._exit(0 if file.get_tensor("i").tolist() == want else 1)
        return os.waitpid(child, 0)[1]


row("a file of the parent in a forked child", in_a_child)


def test_of(group, rows):
    def test():
        theirs, ours = libraries()
        with Scratch() as folder:
            write_all(folder)
            for name, call, expected in rows:
                seen = [outcome(call, library, folder) for library in (theirs, ours)]
                compare(name, *seen, expected)
                if os.environ.get("TABLE"):
                    print("# " + " | ".join([name, *map(brief, seen),
                                             expected.why if expected else ""]))
        print(f"# {len(rows)} behaviours")
    test.__name__ = group
    return case(test)


def brief(seen):
    return f"{kind_of(seen[1]).__name__}" if seen[0] == "raises" else seen[1][:60]


def group_of(name):
    for word, group in (("closed", "closed_handles"), ("slice", "indexing"),
                        ("get_tensor", "tensors"), ("malformed", "malformed_files"),
                        ("load_file", "load_file"), ("pickl", "pickling"), ("copy", "pickling"),
                        ("metadata", "keys_and_metadata"), ("keys", "keys_and_metadata"),
                        ("device", "arguments"), ("framework", "arguments"),
                        ("backend", "arguments")):
        if word in name:
            return group
    return "the_rest"


ROWS.sort(key=lambda entry: group_of(entry[0]))
for _group, _rows in itertools.groupby(ROWS, key=lambda entry: group_of(entry[0])):
    test_of(f"behaviour_of_{_group}", list(_rows))
assert CASES


if __name__ == "__main__":
    run()
