"""Ways to bring batches of samples to a device, for `onehop bench stream`.

Each is a function of a job that yields epochs without end, and an epoch is an iterator of shuffled
batches: a uint8 tensor [batch, bytes] where all samples are of one size, else a list of uint8
tensors; on the job's device. The peers are used as their documents say, with 8 worker processes
where they have workers.
"""
from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from . import _bench_stream_data as data_of
from ._shard_index import Entry, ShardIndex, side_path

WORKERS = 8
_ENERGON_BUFFER = 100


class Job(NamedTuple):
    """What to stream.

    Attributes
    ----------
    data : Data
    device : str
    batch : int
    shuffle : str
        Of onehop: "block" or "sample".
    verify : str
        Of onehop: "none" or "sample".
    """

    data: data_of.Data
    device: str
    batch: int
    shuffle: str
    verify: str

    @property
    def is_fixed(self) -> bool:
        """Whether all samples are of one size: looks at each."""
        return bool((self.data.sizes == self.data.sizes[0]).all())

    @property
    def folder(self) -> str:
        """Where the shards are."""
        return os.path.dirname(self.data.shards[0])


Batches = Iterator[Any]
Epochs = Iterator[Batches]


def _nothing(job: Job) -> None:
    pass


class Scheme(NamedTuple):
    """A way.

    Attributes
    ----------
    name : str
    run : callable
        Of a job.
    needs : tuple of str
        Modules.
    copies : str
        How often the CPU copies a byte before the device has it: counted in the code that runs.
    prepare : callable
        Of a job: makes what the way reads beside the shards or files. It is not timed.
    reads : callable
        Of a job: the files that hold the samples, as the way reads them.
    mixes_epochs : bool
        Whether a batch may hold samples of two epochs, and so a sample twice.
    """

    name: str
    run: Callable[[Job], Epochs]
    needs: tuple[str, ...]
    copies: str
    prepare: Callable[[Job], None] = _nothing
    reads: Callable[[Job], list[str]] = lambda job: job.data.shards
    mixes_epochs: bool = False

    def missing(self) -> str | None:
        """The first module that is not installed."""
        return next((module for module in self.needs if not _is_installed(module)), None)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it would be in
        return False


class Onehop:
    """Epochs of a `Dataset`, which also knows what its loop waited."""

    def __init__(self, job: Job) -> None:
        self._job, self._is_fixed = job, job.is_fixed
        self._epochs = itertools.count()
        self._dataset = self._open()

    def _open(self) -> Any:
        from .dataset import Dataset

        job = self._job
        return Dataset(job.data.shards, device=job.device, batch=job.batch, shuffle=job.shuffle,
                       verify=job.verify, framework="torch")

    def begin_anew(self) -> None:
        """Nothing is read ahead any more, and statistics begin at 0."""
        self._dataset.close()
        self._dataset = self._open()

    def __iter__(self) -> Onehop:
        return self

    def __next__(self) -> Batches:
        self._dataset.set_epoch(next(self._epochs))
        return self._batches()

    def _batches(self) -> Batches:
        for batch in self._dataset:
            rows = batch["bin"]
            yield rows if self._is_fixed else rows.unbind()

    def statistics(self) -> dict[str, Any]:
        """See `Dataset.statistics`."""
        found: dict[str, Any] = self._dataset.statistics()
        return found


def _on_device(batches: Batches, device: str) -> Batches:
    """Batches of a loader on the device."""
    for batch in batches:
        if isinstance(batch, list):
            yield [row.to(device, non_blocking=True) for row in batch]
        else:
            yield batch.to(device, non_blocking=True)


def _entries(shard: str) -> Iterator[Entry]:
    return ShardIndex(side_path(shard)).entries()


def _tensor(data: bytes) -> Any:
    """The bytes themselves as a tensor, which nobody writes to."""
    import torch

    return torch.frombuffer(data, dtype=torch.uint8)


def _together(rows: list[Any]) -> Any:
    """Rows as one tensor, which a worker makes in shared memory, or as they are if their sizes
    differ."""
    from torch.utils.data import default_collate

    alike = all(len(row) == len(rows[0]) for row in rows)
    return default_collate(rows) if alike else rows


def _loader(dataset: Any, job: Job, **more: Any) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(dataset, num_workers=WORKERS, pin_memory=job.device.startswith("cuda"),
                      prefetch_factor=2, persistent_workers=True, **more)


def _each_sample(job: Job, dataset: Any, **more: Any) -> Epochs:
    """Epochs of a map-style dataset."""
    loader = _loader(dataset, job, batch_size=job.batch, shuffle=True, drop_last=True,
                     collate_fn=_together, **more)
    while True:
        yield _on_device(loader, job.device)


class _Files:
    """A map-style dataset of single files."""

    def __init__(self, data: data_of.Data) -> None:
        self._folder, self._count = data.files, len(data.sizes)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        import numpy as np
        import torch

        return torch.from_numpy(np.fromfile(data_of.file_of(self._folder, index), np.uint8))


def files(job: Job) -> Epochs:
    return _each_sample(job, _Files(job.data))


def _all_files(job: Job) -> list[str]:
    return [data_of.file_of(job.data.files, index) for index in range(len(job.data.sizes))]


def webdataset(job: Job) -> Epochs:
    wds: Any = import_module("webdataset")

    dataset = (wds.WebDataset(job.data.shards, shardshuffle=len(job.data.shards), seed=1)
               .shuffle(1000).to_tuple("bin").map(lambda row: _tensor(row[0]))
               .batched(job.batch, collation_fn=_together, partial=False))
    loader = _loader(dataset, job, batch_size=None)
    while True:
        yield _on_device(loader, job.device)


# ---- Megatron-Energon


def _energon_config(job: Job) -> Path:
    return Path(job.folder, ".nv-meta", "dataset.yaml")


def prepare_energon(job: Job) -> None:
    """The folder `.nv-meta`, as `energon prepare` makes it for crude samples."""
    config = _energon_config(job)
    if config.exists():
        return
    library: Any = import_module("megatron.energon.flavors.webdataset.prepare")
    library.WebdatasetPreparator.prepare_dataset(
        job.folder, [os.path.basename(path) for path in job.data.shards],
        split_parts_ratio=[("train", 1.0)], workers=WORKERS)
    config.write_text("__module__: megatron.energon\n__class__: CrudeWebdataset\n",
                      encoding="ascii")


def _energon_batch(encoder: Any, samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {"__restore_key__": (), "bin": _together([sample["bin"] for sample in samples])}


def energon(job: Job) -> Epochs:
    library: Any = import_module("megatron.energon")

    def cook(sample: Any) -> dict[str, Any]:
        return {**library.basic_sample_keys(sample), "bin": _tensor(sample["bin"])}

    encoder = type("Encoder", (library.DefaultTaskEncoder,), {
        "decoder": None, "cookers": [library.Cooker(library.stateless(cook))],
        "batch": library.stateless(_energon_batch)})
    workers = library.WorkerConfig(rank=0, world_size=1, num_workers=WORKERS)
    dataset = library.get_train_dataset(
        job.folder, worker_config=workers, batch_size=job.batch, batch_drop_last=True,
        shuffle_buffer_size=_ENERGON_BUFFER, max_samples_per_sequence=_ENERGON_BUFFER,
        virtual_epoch_length=len(job.data.sizes) // job.batch, task_encoder=encoder())
    loader = library.get_savable_loader(dataset)
    while True:
        yield _on_device((batch["bin"] for batch in loader), job.device)


# ---- NVIDIA NCore's indexed tars


def _itars(job: Job) -> list[str]:
    return [os.path.join(job.folder, "itar", f"{number:05}.itar")
            for number in range(len(job.data.shards))]


def prepare_itar(job: Job) -> None:
    """As many .itar files as shards, with the same samples."""
    paths = _itars(job)
    if os.path.exists(paths[0]):
        return
    os.makedirs(os.path.dirname(paths[0]))
    store: Any = import_module("ncore.impl.data.stores").IndexedTarStore
    for path, shard in zip(paths, job.data.shards):
        with store(path, mode="w") as out, open(shard, "rb") as file:
            for entry in _entries(shard):
                file.seek(entry.members[0].offset)
                out[entry.key] = file.read(entry.members[0].size)


class _Itar:
    """A map-style dataset of the records of .itar files."""

    def __init__(self, paths: list[str]) -> None:
        store: Any = import_module("ncore.impl.data.stores").IndexedTarStore
        self._stores = [store(path) for path in paths]
        self._records = [(one, key) for one in self._stores for key in one]

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Any:
        store, key = self._records[index]
        return _tensor(store[key])

    def reopen(self) -> None:
        """Files of this process's own, as a store has to be told after a fork."""
        for store in self._stores:
            store.reload_resources()


def _reopen(worker: int) -> None:
    from torch.utils.data import get_worker_info

    info: Any = get_worker_info()
    info.dataset.reopen()


def itar(job: Job) -> Epochs:
    return _each_sample(job, _Itar(_itars(job)), worker_init_fn=_reopen)


# ---- by hand


def kvikio(job: Job) -> Epochs:
    """One read of each sample's own file, straight into the batch."""
    library: Any = import_module("kvikio")
    source, order = random.Random(1), list(range(len(job.data.sizes)))
    while True:
        source.shuffle(order)
        yield _kvikio_epoch(job, library, tuple(order))


def _kvikio_epoch(job: Job, library: Any, order: tuple[int, ...]) -> Batches:
    import torch

    sizes, is_fixed = job.data.sizes, job.is_fixed
    for at in range(0, len(order) - job.batch + 1, job.batch):
        chosen = order[at:at + job.batch]
        rows = [torch.empty(int(sizes[i]), dtype=torch.uint8, device=job.device) for i in chosen]
        opened = [library.CuFile(data_of.file_of(job.data.files, i), "r") for i in chosen]
        for future in [file.pread(row) for file, row in zip(opened, rows)]:
            future.get()
        for file in opened:
            file.close()
        yield torch.stack(rows) if is_fixed else rows


def offsets(job: Job) -> Epochs:
    """The shards' offsets, a read of each sample into pinned memory by one thread, and a copy:
    what is written by hand."""
    import torch

    files = [os.open(path, os.O_RDONLY) for path in job.data.shards]
    located = [(file, entry.members[0].offset, entry.members[0].size)
               for file, path in zip(files, job.data.shards) for entry in _entries(path)]
    pinned = torch.empty(job.batch, int(job.data.sizes.max()), dtype=torch.uint8,
                         pin_memory=job.device.startswith("cuda"))
    source, order = random.Random(1), list(range(len(located)))
    while True:
        source.shuffle(order)
        yield _offsets_epoch(job, located, pinned, tuple(order))


def _offsets_epoch(job: Job, located: list[tuple[int, int, int]], pinned: Any,
                   order: tuple[int, ...]) -> Batches:
    is_fixed = job.is_fixed
    for at in range(0, len(order) - job.batch + 1, job.batch):
        sizes = []
        for row, index in enumerate(order[at:at + job.batch]):
            file, offset, nbytes = located[index]
            target: Any = pinned[row, :nbytes].numpy()
            os.preadv(file, [target], offset)
            sizes.append(nbytes)
        rows = pinned.to(job.device, copy=True)
        yield rows if is_fixed else [row[:size] for row, size in zip(rows, sizes)]


_BY_WORKERS = "read, into shared memory as a batch, to pinned memory"

SCHEMES = (
    Scheme("onehop", Onehop, ("torch",), "1: page cache to pinned ring"),
    Scheme("Energon, savable loader", energon, ("torch", "megatron.energon"), f"3: {_BY_WORKERS}",
           prepare_energon, mixes_epochs=True),
    Scheme("NCore itar + DataLoader", itar, ("torch", "ncore.impl.data.stores", "zarr", "cbor2"),
           f"3: {_BY_WORKERS}", prepare_itar, _itars),
    Scheme("webdataset + DataLoader", webdataset, ("torch", "webdataset"),
           "5: read, joined, cut, into shared memory as a batch, to pinned memory"),
    Scheme("files + DataLoader", files, ("torch",), f"3: {_BY_WORKERS}", reads=_all_files),
    Scheme("kvikio, one read a file", kvikio, ("torch", "kvikio"), "1: page cache to pinned",
           reads=_all_files),
    Scheme("offsets, one thread", offsets, ("torch",), "1: page cache to pinned"),
)
