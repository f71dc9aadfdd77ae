"""A model's tensors: open, select, read the table, lay out.

Thin wrappers of ``onehop/model.h``. `Model` and `Selection` are context managers; what is left open
is closed when it is collected.
"""
from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping, Sequence
from ctypes import byref, c_char_p, c_void_p
from typing import Any, NamedTuple, TypeAlias

from . import _abi, _library, _runtime, errors

Path: TypeAlias = "str | bytes | os.PathLike[Any]"
TpPlan: TypeAlias = "Mapping[str, int | None] | Path"
"""Which dimension is split, by pattern, or the path of a JSON file that says it. None: whole."""

_INLINE = _abi.SHAPE_INLINE


class Item(NamedTuple):
    """One selected tensor, or this rank's part of it.

    Attributes
    ----------
    name : str
        The tensor's.
    dtype : str
        As its format spells it: ``"BF16"``, ``"F8_E4M3"``, ``"Q4_K"``.
    shape : tuple of int
        Of the part, outermost first, in elements; a packed type counts its elements, too.
    nbytes : int
        Of the part.
    arena_offset : int
        Where it lies in an arena of the selection's layout.
    tensor : int
        Its index in the model.
    file : int
        Index of the file that holds it.
    file_offset : int
        Where the whole tensor begins in its file, in bytes.
    block_elements, block_bytes : int
        Elements that share a block, and its bytes: 1 and the element's size but for packed types
        (F4 2 and 1, F6 4 and 3) and GGUF's quantised ones (32 to 256 elements).
    split_dim : int
        The dimension that is split; -1 if the tensor is whole.
    split_begin : int
        First index of split_dim.
    whole_shape : tuple of int
        Of the whole tensor.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    arena_offset: int
    tensor: int
    file: int
    file_offset: int
    block_elements: int
    block_bytes: int
    split_dim: int
    split_begin: int
    whole_shape: tuple[int, ...]


class Metadata(NamedTuple):
    """One member of a file's metadata.

    Attributes
    ----------
    file : int
        Index of the file.
    key : str
    kind : str
        "string", "u32", "f32", "bool", ..., "array".
    value : str, int, float or bool
        An array is summed up as text, ``"[32000 x string]"``.
    """

    file: int
    key: str
    kind: str
    value: str | int | float | bool


class Model(_library.Handle):
    """An open model: its headers are read, its tensors are not.

    Selections of it and plans must be gone when it is closed.

    Parameters
    ----------
    path : str, bytes or path-like
        A .safetensors or .gguf file, an index, or a folder.
    runtime : Runtime, optional
        The process's if left out.

    Raises
    ------
    NotFound, Access, IOFailed, Malformed, UnsupportedData, InvalidArgument, Limit, NoMemory
        See ``onehop_model_open``.
    """

    _end = "model_close"

    def __init__(self, path: Path, runtime: _runtime.Runtime | None = None) -> None:
        super().__init__()
        self.path = os.fsdecode(path)
        self.runtime = runtime or _runtime.get()
        encoded = _library.path_bytes(path)
        _library.call("model_open", self.runtime.handle, encoded, byref(self.handle))
        self._info: _abi.ModelInfo = _library.sized(_abi.ModelInfo)
        _library.ask("model_query", self.handle, byref(self._info))

    def __repr__(self) -> str:
        return f"<onehop.Model {self.path!r}: {self.tensor_count} tensors>"

    @property
    def format(self) -> str:
        """``"safetensors"`` or ``"gguf"``."""
        return _library.text(self._info.format)

    @property
    def tensor_count(self) -> int:
        """Number of tensors."""
        return int(self._info.tensor_count)

    @property
    def file_count(self) -> int:
        """Number of files."""
        return int(self._info.file_count)

    @property
    def tensor_bytes(self) -> int:
        """Sum of all tensors' bytes."""
        return int(self._info.tensor_bytes)

    @property
    def open_seconds(self) -> float:
        """Time spent opening files and reading headers."""
        return float(self._info.open_ns) / 1e9

    @property
    def parse_seconds(self) -> float:
        """Time spent parsing and checking headers."""
        return float(self._info.parse_ns) / 1e9

    @property
    def files(self) -> list[str]:
        """The files' paths, by index."""
        return [self.file_path(index) for index in range(self.file_count)]

    @property
    def notes(self) -> list[str]:
        """Remarks that are no errors, one sentence each: what was left out, and why."""
        return [_library.run("model_note_at", self.handle, i).decode("utf-8", "replace")
                for i in range(self._info.note_count)]

    def file_path(self, index: int) -> str:
        """The path of the file at index, as it was opened."""
        info = _library.sized(_abi.FileInfo)
        _library.ask("model_file_at", self.handle, index, byref(info))
        return os.fsdecode(ctypes.string_at(info.path))

    def file_handle(self, index: int) -> int:
        """struct onehop_file * of the file at index, for extents; it lives with the model."""
        return int(_library.run("model_file", self.handle, index))

    def metadata(self) -> list[Metadata]:
        """All metadata, file after file, in the files' order."""
        return [self._metadata_at(index) for index in range(self._info.metadata_count)]

    def _metadata_at(self, index: int) -> Metadata:
        row = _library.sized(_abi.Metadata)
        scratch = ctypes.create_string_buffer(64)
        _library.ask("model_metadata_at", self.handle, index, byref(row), scratch, len(scratch))
        kind = _library.text(row.kind)
        key = ctypes.string_at(row.key, row.key_bytes).decode("utf-8", "replace")
        words = ctypes.string_at(row.text, row.text_bytes).decode("utf-8", "replace")
        return Metadata(row.file, key, kind, _metadata_value(kind, words))

    def pin(self, device: str) -> None:
        """Pins the files' page cache for a GPU and keeps it so: see ``onehop_model_pin``.

        Raises
        ------
        Limit, Unsupported, NoDevice
        """
        _library.call("model_pin", self.handle, device.encode())

    def unpin(self) -> None:
        """Undoes `pin`."""
        _library.run("model_unpin", self.handle)

    def select(self, patterns: Iterable[str] = (), *, tp: tuple[int, int] = (0, 1),
               tp_plan: TpPlan | None = None, tp_uneven: str = "refuse") -> Selection:
        """Selects tensors and lays them out; see `Selection`."""
        return Selection(self, patterns, tp=tp, tp_plan=tp_plan, tp_uneven=tp_uneven)


def _metadata_value(kind: str, words: str) -> str | int | float | bool:
    if kind in ("string", "array"):
        return words
    if kind == "bool":
        return words == "true"
    return float(words) if kind.startswith("f") else int(words)


def _rules(tp_plan: TpPlan | None) -> tuple[list[tuple[bytes, int]], bytes | None]:
    """The rules given in Python, and the path of the file that holds more."""
    if tp_plan is None:
        return [], None
    if isinstance(tp_plan, Mapping):
        return [(_name_bytes(pattern), -1 if dim is None else dim)
                for pattern, dim in tp_plan.items()], None
    return [], _library.path_bytes(tp_plan)


def _name_bytes(name: str) -> bytes:
    encoded = name.encode("utf-8", "surrogateescape")
    if b"\0" in encoded:
        raise errors.InvalidArgument(f"the name or pattern {name!r} holds a NUL",
                                     "use a pattern with ? in its place")
    return encoded


class Selection(_library.Handle):
    """Some of a model's tensors, whole or one rank's part, and their places in one arena.

    Plans made from it stay good when it is closed.

    Parameters
    ----------
    model : Model
        It must outlive the selection.
    patterns : iterable of str
        Names, or patterns with ``*``, ``?``, ``[a-z]``, ``[!a-z]``. None given: all tensors.
    tp : (int, int)
        Rank and size of the tensor-parallel group.
    tp_plan : mapping of str to int or None, or path
        The dimension that is split, by pattern; the first that matches counts.
    tp_uneven : {"refuse", "split"}
        What happens to a dimension that the group does not divide.

    Raises
    ------
    NoSuchTensor
        A pattern matches nothing.
    InvalidArgument
        A split is uneven, cuts a block, or names no dimension.
    Malformed, NotFound
        Of the plan's file.
    """

    _end = "selection_destroy"

    def __init__(self, model: Model, patterns: Iterable[str] = (), *,
                 tp: tuple[int, int] = (0, 1), tp_plan: TpPlan | None = None,
                 tp_uneven: str = "refuse") -> None:
        super().__init__()
        self.model = model
        rank, size = _check_tp(tp)
        if tp_uneven not in ("refuse", "split"):
            raise errors.InvalidArgument(f"tp_uneven is {tp_uneven!r}",
                                         'it is "refuse" or "split"')
        options = _abi.SelectOptions()
        _library.run("select_options_init", byref(options))
        options.tp_rank, options.tp_size = rank, size
        options.tp_uneven = _abi.TP_SPLIT if tp_uneven == "split" else _abi.TP_REFUSE
        # What the options point at lives until the call is over.
        names = [_name_bytes(pattern) for pattern in patterns]
        rules, plan_path = _rules(tp_plan)
        texts = (c_char_p * len(names))(*names)
        rows = (_abi.TpRule * len(rules))()
        for row, (pattern, dim) in zip(rows, rules):
            row.pattern, row.dim = _address(pattern), dim
        options.patterns, options.pattern_count = ctypes.addressof(texts), len(names)
        options.tp_rules, options.tp_rule_count = ctypes.addressof(rows), len(rules)
        options.tp_plan_path = _address(plan_path)
        _library.call("model_select", model.handle, byref(options), byref(self.handle))
        self._info: _abi.SelectionInfo = _library.sized(_abi.SelectionInfo)
        _library.ask("selection_query", self.handle, byref(self._info))

    def __len__(self) -> int:
        return int(self._info.count)

    @property
    def nbytes(self) -> int:
        """Sum of the items' bytes."""
        return int(self._info.bytes)

    @property
    def arena_bytes(self) -> int:
        """Bytes of an arena for the layout, padding included."""
        return int(self._info.arena_bytes)

    @property
    def arena_alignment(self) -> int:
        """What an arena's start is aligned to, so that each item is, in bytes."""
        return int(self._info.arena_alignment)

    def items(self) -> list[Item]:
        """All items, in the order of their bytes: file after file, by offset."""
        # By columns, each taken out of the structs in one go: a third less than row by row.
        rows = Rows(self)
        item, tensor = rows.item, rows.tensor
        string_at, new = ctypes.string_at, tuple.__new__
        names = [string_at(*word).decode()
                 for word in zip(tensor("name").tolist(), tensor("name_bytes").tolist())]
        types = tensor("dtype").tolist()
        known = {address: _library.text(address) for address in set(types)}
        ranks, splits = tensor("rank").tolist(), item("split_dim").tolist()
        shapes = _shapes(rows.dimensions(_abi.Item), ranks)
        wholes = shapes.copy()
        for index in [index for index, rank in enumerate(ranks) if rank > _INLINE]:
            shapes[index] = wholes[index] = self._long_shape(index, rows, ranks[index])
        if max(splits, default=-1) >= 0:
            extents = item("split_extent").tolist()
            short = _shapes(rows.dimensions(_abi.Tensor), ranks)
            for index in [index for index, dim in enumerate(splits) if dim >= 0]:
                whole = short[index] if ranks[index] <= _INLINE else wholes[index]
                dim, wholes[index] = splits[index], whole
                shapes[index] = (*whole[:dim], extents[index], *whole[dim + 1:])
        return [new(Item, row) for row in zip(
            names, [known[address] for address in types], shapes, item("bytes").tolist(),
            item("arena_offset").tolist(), item("tensor").tolist(), tensor("file").tolist(),
            tensor("offset").tolist(), tensor("block_elements").tolist(),
            tensor("block_bytes").tolist(), splits, item("split_begin").tolist(), wholes)]

    def _long_shape(self, index: int, rows: Rows, rank: int) -> tuple[int, ...]:
        """The shape of a tensor of more dimensions than the structs hold."""
        dims = (ctypes.c_uint64 * rank)()
        _library.ask("model_shape", self.model.handle, rows.item("tensor")[index], dims, rank)
        return tuple(dims)


class Rows:
    """A selection's items and their tensors as the C library's structs, read in one call.

    Parameters
    ----------
    selection : Selection
    """

    def __init__(self, selection: Selection) -> None:
        count = len(selection)
        self.items = bytearray(count * ctypes.sizeof(_abi.Item))
        self.tensors = bytearray(count * ctypes.sizeof(_abi.Tensor))
        if count:
            items = (_abi.Item * count).from_buffer(self.items)
            tensors = (_abi.Tensor * count).from_buffer(self.tensors)
            items[0].size = ctypes.sizeof(_abi.Item)
            tensors[0].size = ctypes.sizeof(_abi.Tensor)
            _library.ask("selection_read", selection.handle, 0, count, items, tensors)

    def item(self, field: str) -> memoryview:
        """A field of struct onehop_item, of all of them."""
        return _column(self.items, _abi.Item, field)

    def tensor(self, field: str) -> memoryview:
        """A field of struct onehop_tensor, of all of them."""
        return _column(self.tensors, _abi.Tensor, field)

    def dimensions(self, struct: type[_abi.Item] | type[_abi.Tensor]) -> list[memoryview]:
        """The shapes of items or tensors, a column for each inline dimension."""
        data = self.items if struct is _abi.Item else self.tensors
        whole, step = memoryview(data).cast("Q"), ctypes.sizeof(struct) // 8
        first = struct.shape.offset // 8
        return [whole[first + dim::step] for dim in range(_INLINE)]


def _column(data: bytearray, struct: type[Any], field: str) -> memoryview:
    """A field of each of many structs."""
    place, step = getattr(struct, field), ctypes.sizeof(struct)
    view = memoryview(data)
    whole: memoryview = (view.cast("Q") if place.size == 8 else
                         view.cast("i") if field == "split_dim" else view.cast("I"))
    return whole[place.offset // place.size::step // place.size]


def _shapes(columns: Sequence[memoryview], ranks: Sequence[int]) -> list[tuple[int, ...]]:
    """Rows of the columns, cut to their ranks."""
    most = min(max(ranks, default=0), _INLINE)
    if not most:
        return [()] * len(ranks)
    rows = list(zip(*(column.tolist() for column in columns[:most])))
    return rows if min(ranks) >= most else [row[:rank] for row, rank in zip(rows, ranks)]


def _check_tp(tp: Sequence[int]) -> tuple[int, int]:
    """Rank and size, which the C library would take modulo 2^32."""
    rank, size = tp
    if not 0 <= rank < size < 2 ** 32:
        raise errors.InvalidArgument(f"tp is {(rank, size)}",
                                     "give (rank, size) with 0 <= rank < size")
    return rank, size


def _address(text: bytes | None) -> int | None:
    """Where the bytes lie, which the caller keeps; None for None."""
    return ctypes.cast(c_char_p(text), c_void_p).value
