"""The plain ways to load a safetensors file that people write themselves, and reading its header.

`bench/peers.py` compares them with the libraries. They need torch and nothing else.
"""
from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

TYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "U8": "uint8", "I64": "int64"}
"""torch's names of the types that the comparison's files have."""


class Entry(NamedTuple):
    """A tensor in a file.

    Attributes
    ----------
    name, dtype : str
        The dtype by torch's name.
    shape : tuple of int
        In elements.
    offset, nbytes : int
        Its bytes in the file, from the file's beginning.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def read_header(path: str) -> list[Entry]:
    """The file's tensors in the order of their bytes."""
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        table = json.loads(file.read(length))
    table.pop("__metadata__", None)
    entries = [Entry(name, TYPES[row["dtype"]], tuple(row["shape"]),
                     8 + length + row["data_offsets"][0],
                     row["data_offsets"][1] - row["data_offsets"][0])
               for name, row in table.items()]
    return sorted(entries, key=lambda entry: entry.offset)


def views(entries: Sequence[Entry], memory: Any, begin: int) -> dict[str, Any]:
    """Tensors by name, views of a uint8 tensor that holds a file's bytes from `begin` on."""
    import torch

    return {entry.name: memory[entry.offset - begin:entry.offset - begin + entry.nbytes]
            .view(getattr(torch, entry.dtype)).view(entry.shape) for entry in entries}


def load_mmap(files: Sequence[str], device: str) -> dict[str, Any]:
    """Maps each file and copies tensor by tensor, out of memory that is not pinned."""
    import torch

    loaded: dict[str, Any] = {}
    for path in files:
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        for entry in read_header(path):
            dtype: Any = getattr(torch, entry.dtype)
            source = torch.frombuffer(mapped, dtype=dtype, count=prod(entry.shape),
                                      offset=entry.offset).view(entry.shape)
            loaded[entry.name] = source.to(device, copy=True)
    return loaded


def load_pinned(files: Sequence[str], device: str) -> dict[str, Any]:
    """Reads each tensor into one of two pinned buffers, and copies it while the next is read."""
    import torch

    headers = [(path, read_header(path)) for path in files]
    largest = max((entry.nbytes for _, entries in headers for entry in entries), default=0)
    is_cuda = device.startswith("cuda")
    buffers = [torch.empty(largest, dtype=torch.uint8, pin_memory=is_cuda) for _ in range(2)]
    make_event: Any = torch.cuda.Event
    copied = [make_event() for _ in buffers if is_cuda]
    loaded: dict[str, Any] = {}
    for path, entries in headers:
        descriptor = os.open(path, os.O_RDONLY)
        for entry in entries:
            turn = len(loaded) % 2
            if is_cuda:
                copied[turn].synchronize()
            piece = buffers[turn][:entry.nbytes]
            _read(descriptor, memoryview(piece.numpy()), entry.offset)
            tensor = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype), device=device)
            tensor.view(-1).view(torch.uint8).copy_(piece, non_blocking=True)
            if is_cuda:
                copied[turn].record()
            loaded[entry.name] = tensor
        os.close(descriptor)
    return loaded


def _read(descriptor: int, target: memoryview, offset: int) -> None:
    """Fills the target from the file."""
    done = 0
    while done < len(target):
        count = os.preadv(descriptor, [target[done:]], offset + done)
        if not count:
            raise EOFError("the file ends inside a tensor")
        done += count
