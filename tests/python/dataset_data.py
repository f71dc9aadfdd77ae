"""Shards for the tests of onehop.Dataset: written by the C library's writer, read by tarfile."""
import ctypes
import io
import json
import os
import tarfile
from ctypes import byref

import numpy as np

from onehop import _abi, _library

DEVICE = os.environ.get("TEST_DEVICE", "cpu")
"""Where batches go in the cases that are about their bytes: "cuda:0" where there is a GPU."""

ITEM = {"<f4": "F32", "<f8": "F64", "<i8": "I64", "<i4": "I32", "<i2": "I16", "|u1": "U8",
        "|b1": "BOOL", "<u2": "U16", "<f2": "F16"}


def npy(array):
    """The array as the bytes of an .npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def payload(field, value):
    """What a field's file holds of a value."""
    if isinstance(value, np.ndarray):
        return npy(value) if field.endswith("npy") else value.tobytes()
    if isinstance(value, bytes):
        return value
    return (json.dumps(value) if field.endswith("json") else str(value)).encode()


def part_of(field, value, keep):
    """A struct onehop_part_source of a value; what it points to is kept in keep."""
    row, data = _abi.PartSource(), payload(field, value)
    _library.run("part_source_init", byref(row))
    texts = [ctypes.create_string_buffer(field.encode()),
             ctypes.create_string_buffer(data, len(data))]
    keep += texts
    row.field, row.data = map(ctypes.addressof, texts)
    row.bytes = len(data)
    if isinstance(value, np.ndarray):
        dtype = ctypes.create_string_buffer(ITEM[value.dtype.str].encode())
        keep.append(dtype)
        row.dtype, row.rank = ctypes.addressof(dtype), value.ndim
        row.shape[:value.ndim] = value.shape
        row.data_offset = len(data) - value.nbytes
    return row


def shard(path, samples):
    """Writes [(key, {field: value}, {timestamp_ns, episode, stream, rows} or nothing)]."""
    writer, options = ctypes.c_void_p(), _abi.ShardOptions()
    _library.run("shard_options_init", byref(options))
    options.sync = 0
    _library.call("shard_writer_create", os.fsencode(path), byref(options), byref(writer))
    try:
        for key, fields, *more in samples:
            keep, row = [ctypes.create_string_buffer(key.encode())], _abi.SampleSource()
            _library.run("sample_source_init", byref(row))
            row.key = ctypes.addressof(keep[0])
            for name, value in (more[0] if more else {}).items():
                if isinstance(value, str):
                    keep.append(ctypes.create_string_buffer(value.encode()))
                    value = ctypes.addressof(keep[-1])
                setattr(row, name, value)
            parts = [part_of(field, value, keep) for field, value in fields.items()]
            table = (_abi.PartSource * max(1, len(parts)))(*parts)
            _library.call("shard_writer_add", writer, byref(row), table, len(parts))
        _library.call("shard_writer_finish", writer, None)
    finally:
        _library.run("shard_writer_destroy", writer)
    return path


def shards(folder, samples, each, name="s"):
    """Writes samples into shards of so many each; returns the folder."""
    os.makedirs(folder, exist_ok=True)
    for number, first in enumerate(range(0, len(samples), each)):
        shard(os.path.join(folder, f"{name}-{number:04}.tar"), samples[first:first + each])
    return folder


def read(folder):
    """By key, what tarfile reads of all shards of a folder: {field: bytes}."""
    found = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".tar"):
            with tarfile.open(os.path.join(folder, name)) as tar:
                for member in tar:
                    if member.isfile():
                        head, _, base = member.name.rpartition("/")
                        stem, _, field = base.partition(".")
                        key = f"{head}/{stem}" if head else stem
                        found.setdefault(key, {})[field] = tar.extractfile(member).read()
    return found


def numbered(count, size=64, first=0):
    """Samples of a record full of its number, an npy with it, and a class."""
    return [(f"k{index:06}", {"bin": np.full(size, index % 251, np.uint8).tobytes(),
                              "id.npy": np.array([index, -index], np.int64), "y.cls": index})
            for index in range(first, first + count)]
