"""Ways to bring batches of samples to a device, for `onehop bench stream`.

Each is a function of a job that yields batches without end, epoch after epoch, shuffled: a uint8
tensor [batch, bytes] where all samples are of one size, else a list of uint8 tensors; on the job's
device. The peers are used as their documents say, with 8 worker processes where they have workers.
"""
from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from . import _bench_stream_data as data_of
from ._shard_index import ShardIndex, side_path

WORKERS = 8


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
        return bool((self.data.sizes == self.data.sizes[0]).all())


Batches = Iterator[Any]


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
    """

    name: str
    run: Callable[[Job], Batches]
    needs: tuple[str, ...]
    copies: str

    def missing(self) -> str | None:
        """The first module that is not installed."""
        return next((module for module in self.needs if find_spec(module) is None), None)


def onehop(job: Job) -> Batches:
    from .dataset import Dataset

    dataset = Dataset(job.data.shards, device=job.device, batch=job.batch, shuffle=job.shuffle,
                      verify=job.verify, framework="torch")
    for epoch in itertools.count():
        dataset.set_epoch(epoch)
        for batch in dataset:
            rows = batch["bin"]
            yield rows if job.is_fixed else rows.unbind()


def _on_device(batch: Any, device: str) -> Any:
    """A batch of a loader on the device."""
    if isinstance(batch, list):
        return [row.to(device, non_blocking=True) for row in batch]
    return batch.to(device, non_blocking=True)


def _together(rows: list[Any]) -> Any:
    """Rows as one tensor, or as they are if their sizes differ."""
    import torch

    alike = all(len(row) == len(rows[0]) for row in rows)
    return torch.stack(rows) if alike else rows


def _loader(dataset: Any, job: Job, **more: Any) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(dataset, num_workers=WORKERS, pin_memory=job.device.startswith("cuda"),
                      prefetch_factor=2, persistent_workers=True, **more)


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


def files(job: Job) -> Batches:
    loader = _loader(_Files(job.data), job, batch_size=job.batch, shuffle=True, drop_last=True,
                     collate_fn=_together)
    while True:
        for batch in loader:
            yield _on_device(batch, job.device)


def webdataset(job: Job) -> Batches:
    wds: Any = import_module("webdataset")

    def to_tensor(row: tuple[bytes]) -> Any:
        import torch

        return torch.frombuffer(bytearray(row[0]), dtype=torch.uint8)

    dataset = (wds.WebDataset(job.data.shards, shardshuffle=len(job.data.shards), seed=1)
               .shuffle(1000).to_tuple("bin").map(to_tensor)
               .batched(job.batch, collation_fn=_together, partial=False))
    loader = _loader(dataset, job, batch_size=None)
    while True:
        for batch in loader:
            yield _on_device(batch, job.device)


def kvikio(job: Job) -> Batches:
    """One read of each sample's own file, straight into the batch."""
    import torch

    library: Any = import_module("kvikio")

    sizes, order = job.data.sizes, list(range(len(job.data.sizes)))
    source = random.Random(1)
    while True:
        source.shuffle(order)
        for at in range(0, len(order) - job.batch + 1, job.batch):
            chosen = order[at:at + job.batch]
            rows = [torch.empty(int(sizes[i]), dtype=torch.uint8, device=job.device)
                    for i in chosen]
            opened = [library.CuFile(data_of.file_of(job.data.files, i), "r") for i in chosen]
            for future in [file.pread(row) for file, row in zip(opened, rows)]:
                future.get()
            for file in opened:
                file.close()
            yield _together(rows)


def offsets(job: Job) -> Batches:
    """The shards' offsets, a read of each sample into pinned memory by one thread, and a copy:
    what is written by hand."""
    import torch

    located = [(number, entry.members[0].offset, entry.members[0].size)
               for number, path in enumerate(job.data.shards)
               for entry in ShardIndex(side_path(path)).entries()]
    descriptors = [os.open(path, os.O_RDONLY) for path in job.data.shards]
    largest = int(job.data.sizes.max())
    pinned = torch.empty(job.batch, largest, dtype=torch.uint8,
                         pin_memory=job.device.startswith("cuda"))
    source, order = random.Random(1), list(range(len(located)))
    while True:
        source.shuffle(order)
        for at in range(0, len(order) - job.batch + 1, job.batch):
            sizes = []
            for row, index in enumerate(order[at:at + job.batch]):
                shard, offset, nbytes = located[index]
                target: Any = pinned[row, :nbytes].numpy()
                os.preadv(descriptors[shard], [target], offset)
                sizes.append(nbytes)
            rows = pinned.to(job.device, copy=True)
            yield rows if job.is_fixed else [row[:size] for row, size in zip(rows, sizes)]


SCHEMES = (
    Scheme("onehop", onehop, ("torch",), "1: page cache to pinned ring"),
    Scheme("webdataset + DataLoader", webdataset, ("torch", "webdataset"),
           "6: read, tensor, stack, to shared memory, to pinned memory"),
    Scheme("files + DataLoader", files, ("torch",),
           "4: read, stack, to shared memory, to pinned memory"),
    Scheme("kvikio, one read a file", kvikio, ("torch", "kvikio"), "1: page cache to pinned"),
    Scheme("offsets, one thread", offsets, ("torch",), "1: page cache to pinned"),
)
