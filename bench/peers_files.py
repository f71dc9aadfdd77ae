"""The models that bench/peers.py loads: random bytes, and what a right load of them gives."""
from __future__ import annotations

import ctypes
import json
import mmap
import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any, NamedTuple

MIB = 1 << 20
PAGE = mmap.PAGESIZE
WRITERS = 4
EXPECTED = "expected.json"


class Shape(NamedTuple):
    """A tensor to be made, of BF16."""

    name: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return 2 * prod(self.shape)


class Model(NamedTuple):
    """A model on disk.

    Attributes
    ----------
    folder : str
        Holds `EXPECTED` beside the files: [name, shape, sum] of each tensor, the sum over its bytes
        as little-endian int64, modulo 2**64.
    files : list of str
    nbytes : int
        Of the tensors.
    tensors : int
    """

    folder: str
    files: list[str]
    nbytes: int
    tensors: int


def equal_shapes(nbytes: int, tensor_bytes: int, columns: int) -> list[Shape]:
    """As many tensors of tensor_bytes as nbytes holds, one at least."""
    rows = max(1, tensor_bytes // 2 // columns)
    count = max(1, nbytes // (2 * rows * columns))
    return [Shape(f"model.layers.{number}.mlp.up_proj.weight", (rows, columns))
            for number in range(count)]


def shapes_of(kind: str, nbytes: int) -> list[Shape]:
    """The tensors of a model that is "large" (96, of 128 MiB in 12 GiB), "small" or "tiny".

    Parameters
    ----------
    kind : str
    nbytes : int
        Of the large one. The small one has two thirds of it, in tensors of 512 KiB.
    """
    if kind == "large":
        return equal_shapes(nbytes, nbytes // 96 // PAGE * PAGE, 2048)
    if kind == "small":
        return equal_shapes(nbytes * 2 // 3, MIB // 2, 512)
    return equal_shapes(MIB, MIB // 8, 512)


def noise(nbytes: int) -> Any:
    """Random int64, always the same."""
    import numpy

    return numpy.random.default_rng(1).integers(-2**63, 2**63 - 1, size=nbytes // 8,
                                                dtype=numpy.int64)


def make(folder: str, shapes: Sequence[Shape], file_count: int, block: Any = None) -> Model:
    """Writes a model, index included, and waits until it is on storage.

    A tensor's bytes are a piece of one random block; no two pieces begin at the same place, so that
    bytes of another tensor, or shifted ones, give another sum.

    Parameters
    ----------
    folder : str
        Is made.
    shapes : sequence of Shape
        Sizes that are multiples of 8 bytes.
    file_count : int
    block : array of int64, optional
        What bytes are taken from; random ones if left out.
    """
    import numpy

    os.makedirs(folder, exist_ok=True)
    largest = max(shape.nbytes for shape in shapes)
    step = max(8, min(MIB // 4, 256 * MIB // len(shapes)) // 8 * 8)
    need = largest + step * len(shapes)
    block = noise(need) if block is None else numpy.resize(block, need // 8)
    totals = numpy.concatenate([numpy.zeros(1, numpy.int64), numpy.cumsum(block)])
    source = memoryview(block).cast("B")
    expected, weight_map, files = [], {}, []
    per_file = -(-len(shapes) // file_count)
    for number, first in enumerate(range(0, len(shapes), per_file), 1):
        name = f"model-{number:05d}-of-{-(-len(shapes) // per_file):05d}.safetensors"
        part = shapes[first:first + per_file]
        begins = [(first + index) * step for index in range(len(part))]
        _write_file(os.path.join(folder, name), part, begins, source)
        files.append(os.path.join(folder, name))
        for shape, begin in zip(part, begins):
            weight_map[shape.name] = name
            total = int(totals[(begin + shape.nbytes) // 8]) - int(totals[begin // 8])
            expected.append([shape.name, shape.shape, (total + 2**63) % 2**64 - 2**63])
    _write_json(os.path.join(folder, "model.safetensors.index.json"), {"weight_map": weight_map})
    _write_json(os.path.join(folder, EXPECTED), expected)
    return Model(folder, files, sum(shape.nbytes for shape in shapes), len(shapes))


def _write_json(path: str, value: Any) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file)


def _write_file(path: str, shapes: Sequence[Shape], begins: Sequence[int],
                source: memoryview) -> None:
    table: dict[str, dict[str, Any]] = {}
    end = 0
    for shape in shapes:
        table[shape.name] = {"dtype": "BF16", "shape": shape.shape,
                             "data_offsets": [end, end + shape.nbytes]}
        end += shape.nbytes
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    head = struct.pack("<Q", len(text)) + text
    descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o644)
    try:
        os.pwrite(descriptor, head, 0)

        def write(worker: int) -> None:
            for shape, begin in list(zip(shapes, begins))[worker::WRITERS]:
                offset = len(head) + table[shape.name]["data_offsets"][0]
                _write_all(descriptor, source[begin:begin + shape.nbytes], offset)

        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(write, range(WRITERS)))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, piece: memoryview, offset: int) -> None:
    while piece:
        count = os.pwrite(descriptor, piece, offset)
        piece, offset = piece[count:], offset + count


def cached_share(path: str) -> float:
    """How much of a file is in the page cache, of 1."""
    size = os.path.getsize(path)
    library = ctypes.CDLL(None, use_errno=True)
    library.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as held:
        states = ctypes.create_string_buffer(-(-size // PAGE) + 1)
        pin = ctypes.c_char.from_buffer(held)
        failed = library.mincore(ctypes.addressof(pin), size, states)
        del pin
        if failed:
            raise OSError(ctypes.get_errno(), "mincore", path)
    pages = states.raw[:-1]  # less the buffer's closing NUL
    return pages.translate(_IN_CORE).count(1) / len(pages)


_IN_CORE = bytes(state & 1 for state in range(256))


def warm(files: Sequence[str]) -> float:
    """Reads all into the page cache; the share that is there then.

    What was written just now is read too: on tmpfs the first to read it does so at half the rate.
    """
    for path in files:
        with open(path, "rb", buffering=0) as file:
            while file.read(16 * MIB):
                pass
    return min(cached_share(path) for path in files)


def evict(files: Sequence[str]) -> float:
    """Takes files out of the page cache; the share that is there still."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    return max(cached_share(path) for path in files)


def file_system(path: str) -> str:
    """The type of the file system that a path is on."""
    best, kind = "", "unknown"
    real = os.path.realpath(path)
    with open("/proc/mounts", encoding="utf-8") as mounts:
        for line in mounts:
            _, point, found, *_ = line.split()
            inside = real == point or real.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best):
                best, kind = point, found
    return kind
