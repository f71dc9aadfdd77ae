"""onehop: model weights from storage into GPU memory, as fast as the link allows.

    import onehop
    tensors = onehop.load("models/llama", device="cuda")     # a dict, with .report
    state = onehop.load_file("model.safetensors", "cuda:0")  # as safetensors.torch.load_file
    with onehop.safe_open("model.safetensors", "pt") as file:
        part = file.get_slice("embed.weight")[:1000]

Importing this package loads neither the C library nor any framework; each comes on first use.
"""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from ._group import RankFailed as RankFailed
    from ._runtime import Option as Option
    from ._runtime import options as options
    from ._runtime import version as version
    from .arrays import Array as Array
    from .dataset import Dataset as Dataset
    from .dataset import Keys as Keys
    from .dataset import Ragged as Ragged
    from .dataset import mix as mix
    from .errors import OnehopError as OnehopError
    from .installing import install as install
    from .installing import installed as installed
    from .installing import uninstall as uninstall
    from .into import StateMismatch as StateMismatch
    from .into import load_into as load_into
    from .loading import Tensors as Tensors
    from .loading import explain as explain
    from .loading import load as load
    from .loading import load_file as load_file
    from .loading import unpin as unpin
    from .model import Item as Item
    from .model import Model as Model
    from .model import Selection as Selection
    from .pipeline import GPUDirectStoragePipeline as GPUDirectStoragePipeline
    from .pretrained import from_pretrained as from_pretrained
    from .reading import GDSModelLoader as GDSModelLoader
    from .reading import load_npy as load_npy
    from .reading import read as read
    from .report import Explanation as Explanation
    from .report import Report as Report
    from .safetensors import safe_open as safe_open
    from .shards import FileRange as FileRange
    from .shards import ShardInfo as ShardInfo
    from .shards import ShardWriter as ShardWriter
    from .shards import index_shard as index_shard
    from .shards import verify_shard as verify_shard
    from .streaming import Stream as Stream
    from .streaming import stream as stream

_HOMES = {
    "_group": ("RankFailed",),
    "_runtime": ("Option", "options", "version"),
    "arrays": ("Array",),
    "dataset": ("Dataset", "Keys", "Ragged", "mix"),
    "errors": ("OnehopError",),
    "installing": ("install", "installed", "uninstall"),
    "into": ("StateMismatch", "load_into"),
    "loading": ("Tensors", "explain", "load", "load_file", "unpin"),
    "model": ("Item", "Model", "Selection"),
    "pipeline": ("GPUDirectStoragePipeline",),
    "pretrained": ("from_pretrained",),
    "reading": ("GDSModelLoader", "load_npy", "read"),
    "report": ("Explanation", "Report"),
    "safetensors": ("safe_open",),
    "shards": ("FileRange", "ShardInfo", "ShardWriter", "index_shard", "verify_shard"),
    "streaming": ("Stream", "stream"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


if not TYPE_CHECKING:  # a checker sees the names above, and no others

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from . import _abi

            return f"{_abi.VERSION_MAJOR}.{_abi.VERSION_MINOR}.{_abi.VERSION_PATCH}"
        if name in _HOMES:
            return importlib.import_module(f".{name}", __name__)
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module 'onehop' has no attribute {name!r}")
        value = getattr(importlib.import_module(f".{home}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
