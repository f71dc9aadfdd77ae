"""What becomes of each field: where its bytes go, and what a batch holds of it.

A field's *form* is what a batch has under its name:

=========  ======================================================================================
``fixed``  one tensor [B, *shape]: all parts have one type, or are plain bytes of one length
``values`` a `Ragged`: the rows one after the other, and where each begins
``padded`` one tensor [B, longest, ...], zeros behind each row, and ``NAME_lengths``
``list``   a list of B tensors, each with its own shape
``object`` a list of B Python objects
=========  ======================================================================================
"""
from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import errors
from ._dataset_source import Field, Source, Type

PLACES = ("device", "host", "object")
RAGGED = ("values", "padded", "list")

ENCODED = frozenset(
    "jpg jpeg png webp gif bmp tif tiff ppm pgm pnm jp2 avif heic mp4 mkv webm avi mov m4v h264 "
    "h265 hevc av1 ts wav flac mp3 ogg opus m4a npz pt pth pkl pickle safetensors gz zst".split())
"""Endings whose payloads stay bytes in host memory, where their decoders want them."""

JPEG = frozenset(("jpg", "jpeg"))


def _load_npy(data: bytes) -> Any:
    return np.load(io.BytesIO(data), allow_pickle=False)


def _text(data: bytes) -> str:
    return data.decode("utf-8")


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("json", "jsn"), json.loads),
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), int),
}
"""How endings become Python objects, as WebDataset has it; others, if asked for, stay bytes."""


class Layout(NamedTuple):
    """What a field's payloads are.

    Attributes
    ----------
    dtype : str
        Of all; "" where they differ.
    shape : tuple of int
        Of all if they are fixed; else what follows the first dimension.
    data_offset : int
        Of all that are fixed, or plain bytes.
    is_fixed : bool
        One type, or plain bytes of one length.
    types : dict of int to Type
        By what `Parts.type` says; empty if all are of one type, or plain bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    data_offset: int
    is_fixed: bool
    types: dict[int, Type]


class Plan(NamedTuple):
    """A field that is asked for.

    Attributes
    ----------
    field : Field
    on_host : bool
    form : str
        See the module.
    layout : Layout
    decode : callable or None
        Of objects: what makes one of bytes. Of a list: what makes the list of decoded rows.
    some_lack : bool
        Whether samples of the dataset lack it.
    """

    field: Field
    on_host: bool
    form: str
    layout: Layout
    decode: Callable[[Any], Any] | None
    some_lack: bool

    @property
    def name(self) -> str:
        """The field's name."""
        return self.field.name


def ending(name: str) -> str:
    """What follows the last dot of a field's name, in small letters."""
    return name.rpartition(".")[2].lower()


def _bytes_layout(field: Field) -> Layout:
    one_length = field.min_bytes == field.max_bytes
    return Layout("U8", (field.max_bytes,) if one_length else (), 0, one_length, {})


def layout_of(source: Source, field: Field) -> Layout:
    """What the payloads of a field are; looks at each part's type where the field has none."""
    if field.dtype:
        return Layout(field.dtype, field.shape, field.data_offset, True, {})
    if not field.parts or not source.has_types:
        return _bytes_layout(field)
    numbers = source.types_of(field)
    if field.parts < source.count:
        numbers = numbers[source.has(field)]
    kinds = [int(kind) for kind in np.unique(numbers)]
    if kinds == [0]:
        return _bytes_layout(field)
    types = {kind: source.type_at(kind - 1) for kind in kinds if kind}
    alike = {(kind.dtype, kind.shape[1:], bool(kind.shape)) for kind in types.values()}
    if len(alike) > 1 or 0 in kinds or not next(iter(alike))[2]:
        return Layout("", (), 0, False, types)
    dtype, shape, _ = alike.pop()
    return Layout(dtype, shape, 0, False, types)


def _chosen(names: Sequence[str] | None, source: Source) -> list[Field]:
    if isinstance(names, str):
        names = (names,)
    if names is None:
        return list(source.fields.values())
    for name in names:
        _check_known(name, source, "fields")
    return [source.fields[name] for name in dict.fromkeys(names)]


def _check_known(name: str, source: Source, what: str) -> None:
    if name not in source.fields:
        some = ", ".join(map(repr, list(source.fields)[:20]))
        raise errors.InvalidArgument(f"{what} names {name!r}, which no sample has",
                                     f"the dataset's fields are {some or 'none'}")


def _checked_choice(what: str, name: str, value: Any, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise errors.InvalidArgument(f"{what} of field {name!r} is {value!r}",
                                     f"it is one of {', '.join(allowed)}")
    return str(value)


def _place(field: Field, layout: Layout) -> str:
    """Where a field goes that nobody has decided on."""
    kind = ending(field.name)
    if layout.dtype != "U8" or layout.types or field.dtype:
        return "device"
    if kind in _DECODERS or kind == "npy":
        return "object"
    return "host" if kind in ENCODED else "device"


def _form(field: Field, layout: Layout, wish: str | None) -> str:
    if wish is None:
        if layout.is_fixed and not (ending(field.name) in ENCODED and not field.dtype):
            return "fixed"
        return "list" if not layout.dtype or ending(field.name) in ENCODED else "values"
    if wish != "list" and (not layout.dtype or (layout.is_fixed and not layout.shape)):
        raise errors.InvalidArgument(
            f"field {field.name!r} holds arrays whose types or shapes differ by more than their "
            f"first dimension, so that ragged={wish!r} is not possible" if not layout.dtype else
            f"field {field.name!r} holds numbers without dimensions, so that ragged={wish!r} is "
            "not possible", f'take ragged={{{field.name!r}: "list"}}')
    return wish


def _decoder(name: str) -> Callable[[bytes], Any]:
    kind = ending(name)
    return _load_npy if kind == "npy" else _DECODERS.get(kind, bytes)


def plan(source: Source, names: Sequence[str] | None, place: Mapping[str, str] | None,
         ragged: Mapping[str, str] | str | None, jpeg: Callable[[Any], Any] | None) -> list[Plan]:
    """What becomes of each field that is asked for.

    Parameters
    ----------
    source : Source
    names : sequence of str, optional
        None: all fields.
    place : mapping, optional
        "device", "host" or "object", by field.
    ragged : mapping or str, optional
        "values", "padded" or "list", by field, or for all that are not of one size.
    jpeg : callable, optional
        What decodes a list of JPEG rows.

    Raises
    ------
    InvalidArgument
        A name that no sample has, or a wish that the field cannot have.
    """
    fields = _chosen(names, source)
    places = dict(place or {})
    ragged_by = dict(ragged) if isinstance(ragged, Mapping) else {}
    for what, given in (("place", places), ("ragged", ragged_by)):
        for name in given:
            _check_known(name, source, what)
    made = []
    for field in fields:
        layout = layout_of(source, field)
        where = _checked_choice("place", field.name, places.get(field.name, _place(field, layout)),
                                PLACES)
        some_lack = field.parts < source.count
        if where == "object":
            made.append(Plan(field, True, "object", layout, _decoder(field.name), some_lack))
            continue
        wish = ragged_by.get(field.name)
        if wish is None and isinstance(ragged, str) and not layout.is_fixed and layout.dtype \
                and ending(field.name) not in ENCODED:
            wish = ragged
        if wish is not None:
            _checked_choice("ragged", field.name, wish, RAGGED)
        form = _form(field, layout, wish)
        decode = jpeg if ending(field.name) in JPEG and form == "list" and where == "host" else None
        made.append(Plan(field, where == "host", form, layout, decode, some_lack))
    if isinstance(ragged, str):
        _checked_choice("ragged", "every", ragged, RAGGED)
    return made


# ---- where rows begin, and how long they are


class Spans(NamedTuple):
    """Rows of a field in a buffer.

    Attributes
    ----------
    begin, nbytes : int64 [N]
        Of each row's array; nbytes is 0 where the sample lacks the field.
    types : uint32 [N] or None
        See `Layout.types`.
    """

    begin: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]
    types: npt.NDArray[np.uint32] | None


def itemsize(dtype: str) -> int:
    """Bytes of an element of one of the index's types."""
    sizes = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2,
             "BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8}
    if dtype not in sizes:
        raise errors.UnsupportedData(f"the index has the type {dtype}, which this version lacks",
                                     "use a newer onehop")
    return sizes[dtype]


def type_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of an array."""
    return itemsize(dtype) * math.prod(shape)


def spans(source: Source, plan: Plan, samples: npt.NDArray[np.uint64],
          offsets: npt.NDArray[np.uint64], nbytes: npt.NDArray[np.uint64],
          present: npt.NDArray[np.bool_] | None) -> Spans:
    """Where each row's array lies, by where its payload does.

    Parameters
    ----------
    samples, offsets, nbytes : uint64 [N]
    present : bool [N] or None
        None: no sample lacks the field.
    """
    layout = plan.layout
    begin = offsets.astype(np.int64)
    size = nbytes.astype(np.int64)
    types = None
    if layout.types:
        types = source.types_of(plan.field, samples)
        known = np.unique(types)
        for kind in known:
            one = layout.types.get(int(kind))
            if one is not None:
                rows = types == kind
                begin[rows] += one.data_offset
                size[rows] = type_bytes(one.dtype, one.shape)
    elif plan.field.dtype:
        begin += layout.data_offset
        size[:] = type_bytes(layout.dtype, layout.shape)
    if present is not None:
        begin[~present] = 0
        size[~present] = 0
    return Spans(begin, size, types)
