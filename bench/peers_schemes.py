"""The loaders that bench/peers.py compares: each at its defaults, and in the best setting found.

A scheme's `load(files, device, options, kept)` returns every tensor by name, usable once the device
is synchronised. `kept` is a dict that lives as long as the process, for what a caller who loads
again would keep. To add a loader: a function here, and a line in `SCHEMES`.

Best settings depend on the files; they were picked by measurement on a machine of 16 cores.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias

import plain

Loaded: TypeAlias = dict[str, Any]
Load: TypeAlias = Callable[[Sequence[str], str, Mapping[str, Any], dict[str, Any]], Loaded]

MIB = 1 << 20


class Setting(NamedTuple):
    """Environment variables and arguments of a scheme."""

    environment: Mapping[str, str] = {}
    options: Mapping[str, Any] = {}

    def words(self) -> str:
        """It as one line; empty for defaults."""
        pairs = [*self.environment.items(), *self.options.items()]
        return ", ".join(f"{name}={value}" for name, value in pairs)


class Scheme(NamedTuple):
    """A way to load.

    Attributes
    ----------
    name : str
    kind : {"ours", "default", "best", "plain"}
    module : str
        What is imported before the clock of a load starts, and inside that of a start-up; with a
        colon, a name is imported from it.
    package : str
        Whose version is reported.
    load : callable
    settings : mapping of str to Setting or None
        By what is loaded: "large", "small", "tiny", "tmpfs"; "large" stands in for those left out.
        None: as the defaults, which have a row of their own.
    """

    name: str
    kind: str
    module: str
    package: str
    load: Load
    settings: Mapping[str, Setting | None] = {"large": Setting()}

    def setting(self, files: str) -> Setting | None:
        """For files of that sort."""
        return self.settings[files] if files in self.settings else self.settings["large"]


def _model(files: Sequence[str]) -> str:
    return files[0] if len(files) == 1 else os.path.dirname(files[0])


def onehop_load(files: Sequence[str], device: str, options: Mapping[str, Any],
                kept: dict[str, Any]) -> Loaded:
    import onehop

    loaded: Any = onehop.load(_model(files), device)
    kept["report"] = loaded.report
    tensors: Loaded = loaded
    return tensors


def onehop_load_file(files: Sequence[str], device: str, options: Mapping[str, Any],
                     kept: dict[str, Any]) -> Loaded:
    import onehop

    loaded: Loaded = {}
    for path in files:
        loaded.update(onehop.load_file(path, device))
    return loaded


def onehop_stream(files: Sequence[str], device: str, options: Mapping[str, Any],
                  kept: dict[str, Any]) -> Loaded:
    import onehop

    stream: Any = onehop.stream
    # They lie in a ring that goes round.
    return {name: tensor.clone() for name, tensor in stream(_model(files), device=device)}


def safetensors_load_file(files: Sequence[str], device: str, options: Mapping[str, Any],
                          kept: dict[str, Any]) -> Loaded:
    from safetensors.torch import load_file

    loaded: Loaded = {}
    for path in files:
        loaded.update(load_file(path, device, **options))
    return loaded


def safetensors_threads(files: Sequence[str], device: str, options: Mapping[str, Any],
                        kept: dict[str, Any]) -> Loaded:
    """One thread a file."""
    from safetensors.torch import load_file

    loaded: Loaded = {}
    with ThreadPoolExecutor(len(files)) as pool:
        for part in pool.map(lambda path: load_file(path, device), files):
            loaded.update(part)
    return loaded


def safetensors_prefetch(files: Sequence[str], device: str, options: Mapping[str, Any],
                         kept: dict[str, Any]) -> Loaded:
    """File after file."""
    from safetensors import safe_open

    loaded: Loaded = {}
    for path in files:
        opened: Any = safe_open(path, framework="pt", device=device)
        with opened as file, file.prefetch(**options) as loader:
            loaded.update(loader)
    return loaded


def fastsafetensors(files: Sequence[str], device: str, options: Mapping[str, Any],
                    kept: dict[str, Any]) -> Loaded:
    """With `reuse` one loader serves every load of the process."""
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    given = dict(options)
    is_reused = given.pop("reuse", False)
    loader = kept.get("loader") or SafeTensorsFileLoader(SingleGroup(), device, **given)
    loader.add_filenames({0: list(files)})
    buffers = loader.copy_files_to_device()
    loaded = {name: buffers.get_tensor(name) for name in loader.get_keys()}
    buffers.close()
    if is_reused:
        loader.reset()
        kept["loader"] = loader
    else:
        loader.close()
    return loaded


def instanttensor(files: Sequence[str], device: str, options: Mapping[str, Any],
                  kept: dict[str, Any]) -> Loaded:
    import instanttensor as package

    given = dict(options)
    if "backend" in given:
        given["backend"] = package._impl.parse_backend(given["backend"])
    with package.safe_open(list(files), framework="pt", device=device, **given) as file:
        return dict(file.tensors())


def runai(files: Sequence[str], device: str, options: Mapping[str, Any],
          kept: dict[str, Any]) -> Loaded:
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_files(list(files), device=device)
        return dict(streamer.get_tensors())


def kvikio(files: Sequence[str], device: str, options: Mapping[str, Any],
           kept: dict[str, Any]) -> Loaded:
    """It knows no tensors: a file's bytes go into one piece of memory, of which views are made."""
    import kvikio as package
    import torch

    loaded: Loaded = {}
    started = []
    for path in files:
        entries = plain.read_header(path)
        begin, end = entries[0].offset, entries[-1].offset + entries[-1].nbytes
        memory = torch.empty(end - begin, dtype=torch.uint8, device=device)
        file = package.CuFile(path, "r")
        target = memory if memory.is_cuda else memory.numpy()
        started.append((file, file.pread(target, end - begin, begin), end - begin))
        loaded.update(plain.views(entries, memory, begin))
    for file, future, nbytes in started:
        count = future.get()
        file.close()
        if count != nbytes:
            raise EOFError(f"{count} of {nbytes} bytes were read")
    return loaded


def plain_mmap(files: Sequence[str], device: str, options: Mapping[str, Any],
               kept: dict[str, Any]) -> Loaded:
    return plain.load_mmap(files, device)


def plain_pinned(files: Sequence[str], device: str, options: Mapping[str, Any],
                 kept: dict[str, Any]) -> Loaded:
    return plain.load_pinned(files, device)


def _instanttensor(**options: Any) -> Setting:
    return Setting({"INSTANTTENSOR_CACHE_BUFFER": "1"}, options)


def _fastsafetensors(bounce_mib: int) -> Setting:
    return Setting({"FASTSAFETENSORS_ODIRECT": "0"},
                   {"nogds": True, "bbuf_size_kb": bounce_mib * 1024, "reuse": True})


def _runai(**environment: str) -> Setting:
    return Setting({"RUNAI_STREAMER_FS_STRATEGY": "sync_buffered",
                    "RUNAI_STREAMER_CONCURRENCY": "16", **environment})


def _kvikio(task_mib: int) -> Setting:
    return Setting({"KVIKIO_COMPAT_MODE": "ON", "KVIKIO_NTHREADS": "16",
                    "KVIKIO_TASK_SIZE": str(task_mib * MIB)})


SCHEMES = [
    Scheme("onehop.load", "ours", "onehop:load", "onehop", onehop_load),
    Scheme("onehop.load_file", "ours", "onehop:load_file", "onehop", onehop_load_file),
    Scheme("onehop.stream", "ours", "onehop:stream", "onehop", onehop_stream),
    Scheme("safetensors", "default", "safetensors.torch", "safetensors", safetensors_load_file),
    Scheme("safetensors, a thread per file", "best", "safetensors.torch", "safetensors",
           safetensors_threads),
    Scheme("safetensors rc", "default", "safetensors.torch", "safetensors",
           safetensors_load_file),
    Scheme("safetensors rc prefetch", "default", "safetensors", "safetensors",
           safetensors_prefetch),
    Scheme("safetensors rc prefetch, best", "best", "safetensors", "safetensors",
           safetensors_prefetch,
           {"large": Setting({}, {"threads": 16}), "tmpfs": None}),
    Scheme("fastsafetensors", "default", "fastsafetensors", "fastsafetensors", fastsafetensors),
    Scheme("fastsafetensors, best", "best", "fastsafetensors", "fastsafetensors", fastsafetensors,
           {"large": _fastsafetensors(128), "tmpfs": _fastsafetensors(64)}),
    Scheme("InstantTensor", "default", "instanttensor", "instanttensor", instanttensor),
    Scheme("InstantTensor, best", "best", "instanttensor", "instanttensor", instanttensor,
           {"large": _instanttensor(backend="BUFFERED", chunk_size=4 * MIB, io_depth=16),
            "small": _instanttensor(backend="MMAP", concurrency=16, io_depth=48),
            "tmpfs": _instanttensor(backend="MMAP", concurrency=16, io_depth=48)}),
    Scheme("Run:ai streamer", "default", "runai_model_streamer", "runai-model-streamer", runai),
    Scheme("Run:ai streamer, best", "best", "runai_model_streamer", "runai-model-streamer", runai,
           {"large": _runai(RUNAI_STREAMER_MEMORY_LIMIT="4000000000"),
            "small": _runai(RUNAI_STREAMER_MEMORY_LIMIT="-1")}),
    Scheme("kvikio and views", "default", "kvikio", "kvikio-cu13", kvikio),
    Scheme("kvikio and views, best", "best", "kvikio", "kvikio-cu13", kvikio,
           {"large": _kvikio(8), "small": _kvikio(16), "tmpfs": _kvikio(4)}),
    Scheme("mmap, a copy per tensor", "plain", "torch", "torch", plain_mmap),
    Scheme("read to pinned, copy", "plain", "torch", "torch", plain_pinned),
]

BY_NAME = {scheme.name: scheme for scheme in SCHEMES}

TUNED = ("INSTANTTENSOR_", "FASTSAFETENSORS_", "RUNAI_STREAMER_", "KVIKIO_", "ONEHOP_")
"""Beginnings of the variables that would move a scheme off its defaults."""


def uses_candidate(scheme: Scheme) -> bool:
    """Whether it needs safetensors' release candidate, which lies in a folder of its own."""
    return scheme.name.startswith("safetensors rc")


def choose(words: str) -> list[Scheme]:
    """The schemes of which one of the words, parted by commas, is the kind or in the name.

    All for no word.

    Raises
    ------
    ValueError
        A word fits none.
    """
    parts = [word.strip().lower() for word in words.split(",") if word.strip()]

    def fits(scheme: Scheme, part: str) -> bool:
        return part == scheme.kind or part in scheme.name.lower()

    for part in parts:
        if not any(fits(scheme, part) for scheme in SCHEMES):
            raise ValueError(f"no scheme is called {part!r}; there are {'; '.join(BY_NAME)}")
    return [scheme for scheme in SCHEMES
            if not parts or any(fits(scheme, part) for part in parts)]
