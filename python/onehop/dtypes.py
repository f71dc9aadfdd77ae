"""Element types: what each framework calls them, and the shape of what it has no name for.

The names are those of the files: safetensors' and ggml's. A type that packs several elements into a
byte, or elements with scales into blocks, has a framework type only where one exists (torch's
``float4_e2m1fn_x2``); else its tensors are raw bytes, uint8, whose last dimension holds the blocks
of the tensor's last dimension one after the other.
"""
from __future__ import annotations

import math
from typing import Any, Final

from . import errors

TORCH: Final[dict[str, str]] = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32",
    "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16",
    "F32": "float32", "F64": "float64", "C64": "complex64", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F4": "float4_e2m1fn_x2",
}
"""torch's attribute, by dtype."""

NUMPY: Final[dict[str, str]] = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32",
    "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16", "F32": "float32",
    "F64": "float64", "C64": "complex64",
}
"""numpy's own attribute, by dtype."""

ML_DTYPES: Final[dict[str, str]] = {
    "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}
"""The attribute of the ml_dtypes package, which adds types to numpy, by dtype."""

_UNSIGNED: Final[dict[int, str]] = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}


def raw_shape(shape: tuple[int, ...], block_elements: int, block_bytes: int) -> tuple[int, ...]:
    """The shape, in bytes, of a tensor whose elements come in blocks.

    The last dimension holds its blocks' bytes; where blocks do not divide it, the result is flat.
    """
    if shape and shape[-1] % block_elements == 0:
        return (*shape[:-1], shape[-1] // block_elements * block_bytes)
    return (math.prod(shape) // block_elements * block_bytes,)


def _no_type(dtype: str, framework: str, remedy: str) -> errors.UnsupportedData:
    return errors.UnsupportedData(f"{framework} has no type for {dtype}", remedy)


def torch_dtype(dtype: str, raw: bool, itemsize: int) -> Any:
    """torch's dtype; with raw, an unsigned integer of the same width for a type that it lacks.

    Raises
    ------
    UnsupportedData
        This version of torch has no such type, and raw is not set.
    """
    import torch

    found = getattr(torch, TORCH.get(dtype, ""), None)
    if found is None and raw:
        found = getattr(torch, _UNSIGNED[itemsize], None)
    if found is None:
        raise _no_type(dtype, f"torch {torch.__version__}",
                       "use a newer torch, or raw=True for its bits as unsigned integers")
    return found


def _ml_dtypes() -> Any:
    """The ml_dtypes package, None where it is not installed."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    return ml_dtypes


def numpy_dtype(dtype: str, raw: bool, itemsize: int) -> Any:
    """numpy's dtype; with raw, an unsigned integer of the same width for a type that it lacks.

    Raises
    ------
    UnsupportedData
        The type needs the ml_dtypes package, which is not installed, and raw is not set.
    """
    import numpy

    if dtype in NUMPY:
        return numpy.dtype(NUMPY[dtype])
    if raw:
        return numpy.dtype(_UNSIGNED[itemsize])
    found = getattr(_ml_dtypes(), ML_DTYPES.get(dtype, ""), None)
    if found is None:
        raise _no_type(dtype, "numpy", "install ml_dtypes, or use raw=True for its bits as "
                                       "unsigned integers")
    return numpy.dtype(found)
