"""onehop.Dataset on a GPU: batches, and the streams that they are used on.

TEST_DEVICE=cuda:0 has the cases of the other test_dataset files that are about bytes run there too.

usage: test_dataset_cuda.py [FOLDER of the look-alike driver]
"""
import importlib.util
import sys

from package import Scratch, seeded
from tap import Skip, case, check, run, same

if any(importlib.util.find_spec(name) is None for name in ("numpy", "torch")):
    print("1..0 # SKIP torch is not installed")
    sys.exit(0)

import dataset_data as data
import numpy as np
from onehop.dataset import Dataset

SLEEP = 2_000_000
"""Cycles of a kernel that does nothing: about a millisecond."""
WORDS = 4096


def gpu():
    """torch, if it has a GPU."""
    import torch

    if not torch.cuda.is_available():
        raise Skip("no CUDA GPU that torch can use")
    return torch


def numbered(folder, count=512):
    """Samples of one number each, many times over."""
    data.shards(folder, [(f"k{n:05}", {"x.npy": np.full(WORDS, n, np.int32), "y.cls": n})
                         for n in range(count)], 100)


def dataset_of(folder, **more):
    # Groups of one batch or two, so that the ring goes round many times.
    return Dataset(folder, device="cuda:0", framework="torch", batch=8, ring_bytes=3 << 19, **more)


class Equal:
    """How many words were what they should be, counted on the device without waiting."""

    def __init__(self, torch):
        self._torch, self._found, self._want = torch, [], 0

    def add(self, batch):
        self._torch.cuda._sleep(SLEEP)
        numbers = self._torch.tensor(batch["y.cls"], dtype=self._torch.int32).cuda(
            non_blocking=True)
        self._found.append((batch["x.npy"] == numbers[:, None]).sum())
        self._want += batch["x.npy"].numel()

    def check(self):
        self._torch.cuda.synchronize()
        same(sum(int(one) for one in self._found), self._want)


@case
def a_slow_kernel_never_sees_a_changed_byte():
    torch = gpu()
    with Scratch() as folder:
        numbered(folder)
        with dataset_of(folder, seed=seeded().randrange(1 << 30)) as dataset:
            equal = Equal(torch)
            for _ in range(3):
                for batch in dataset:
                    equal.add(batch)
                    del batch
            equal.check()


@case
def nor_on_streams_that_change_from_batch_to_batch():
    torch = gpu()
    source = seeded()
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    with Scratch() as folder:
        numbered(folder)
        with dataset_of(folder, seed=source.randrange(1 << 30)) as dataset:
            equal, loop = Equal(torch), iter(dataset)
            while True:
                # It is handed out on one stream, and used on another that waits for that.
                given, used = source.choice(streams), source.choice(streams)
                with torch.cuda.stream(given):
                    batch = next(loop, None)
                if batch is None:
                    break
                used.wait_stream(given)
                with torch.cuda.stream(used):
                    equal.add(batch)
                    batch["x.npy"].record_stream(used)
                del batch
                torch.full((8, WORDS), -1, dtype=torch.int32, device="cuda")
            equal.check()


@case
def a_graph_is_captured_while_batches_are_made():
    torch = gpu()
    with Scratch() as folder:
        numbered(folder)
        with dataset_of(folder) as dataset:
            held = torch.zeros(8, WORDS, dtype=torch.int32, device="cuda")
            (held * 2).sum()
            captured = 0
            for batch in dataset:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    doubled = held * 2
                held.copy_(batch["x.npy"])
                graph.replay()
                check(torch.equal(doubled, batch["x.npy"] * 2), "what the graph gives")
                captured += 1
            same(captured, 64)


@case
def pinned_fields_are_pinned():
    torch = gpu()
    with Scratch() as folder:
        data.shards(folder, [(f"k{n}", {"a.jpg": bytes([n]) * (n + 1), "b.bin": b"12345678"})
                             for n in range(64)], 64)
        with dataset_of(folder, place={"b.bin": "host"}) as dataset:
            for batch in dataset:
                check(all(row.is_pinned() for row in batch["a.jpg"]), "a.jpg is not pinned")
                check(batch["b.bin"].is_pinned() and not batch["b.bin"].is_cuda, "b.bin")
                on_gpu = [row.cuda(non_blocking=True) for row in batch["a.jpg"]]
                torch.cuda.synchronize()
                for row in on_gpu:
                    same(row.tolist(), [len(row) - 1] * len(row))


if __name__ == "__main__":
    run()
