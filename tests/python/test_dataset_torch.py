"""onehop.Dataset in torch's loops: DataLoader, worker processes, DDP.

usage: test_dataset_torch.py [FOLDER of the look-alike driver]
"""
import importlib.util
import multiprocessing
import os
import pickle
import sys

from package import Scratch, python, raised, seeded
from tap import case, check, holds, run, same

if any(importlib.util.find_spec(name) is None for name in ("numpy", "torch")):
    print("1..0 # SKIP torch is not installed")
    sys.exit(0)

import dataset_data as data
import numpy as np
import onehop
from onehop import errors
from onehop.dataset import Dataset

COMMON = {"device": "cpu", "framework": "torch"}


def seen(loop):
    return [list(batch["y.cls"]) for batch in loop]


@case
def it_is_an_iterable_dataset_whenever_torch_comes():
    with Scratch() as folder:
        data.shards(folder, data.numbered(8), 8)
        code = f"""
import onehop, sys
before = onehop.Dataset({folder!r}, device="cpu", framework="numpy", batch=2)
assert "torch" not in sys.modules
import torch
after = onehop.Dataset({folder!r}, device="cpu", framework="torch", batch=2)
class Own(onehop.Dataset):
    pass
own = Own({folder!r}, device="cpu", framework="torch", batch=2)
for one in (before, after, own, after.map(len)):
    assert isinstance(one, torch.utils.data.IterableDataset), one
    assert isinstance(one, torch.utils.data.Dataset) and isinstance(one, onehop.Dataset)
    loader = torch.utils.data.DataLoader(one, batch_size=None, num_workers=0)
    assert len(loader) == len(list(loader)) == 4
assert isinstance(own, Own) and not isinstance(after, Own)
assert type(after) is onehop.Dataset
print("all")
"""
        same(python(code), "all")


@case
def a_loader_gives_what_a_loop_gives():
    from torch.utils.data import DataLoader

    with Scratch() as folder:
        data.shards(folder, data.numbered(101), 30)
        for remainder in ("drop", "uneven", "pad"):
            make = lambda: Dataset(folder, batch=4, remainder=remainder, rank=1, world_size=2,
                                   **COMMON)
            loop = list(make())
            want = [list(batch["y.cls"]) for batch in loop]
            ways = [(0, None), (1, "fork"), (3, "fork")]
            for workers, context in ways + [(2, "spawn")] * (remainder == "pad"):
                dataset = make()
                loader = DataLoader(dataset, batch_size=None, num_workers=workers,
                                    multiprocessing_context=context)
                got = list(loader)
                same(seen(got), want, f"{workers} workers, {remainder}")
                same(len(loader), len(want))
                for one, other in zip(got, loop):
                    check((one["bin"] == other["bin"]).all(), "bin")
                    same(list(one["__key__"]), list(other["__key__"]))
                    if remainder == "pad":
                        same(one["__pad__"].tolist(), other["__pad__"].tolist())
                if workers == 3:
                    dataset.set_epoch(1)
                    epoch = make()
                    epoch.set_epoch(1)
                    same(seen(loader), seen(epoch), "the next epoch")


@case
def keys_stay_late_in_a_loader():
    from torch.utils.data import DataLoader

    with Scratch() as folder:
        data.shards(folder, data.numbered(8), 8)
        with Dataset(folder, batch=4, shuffle=None, **COMMON) as dataset:
            batch = next(iter(DataLoader(dataset, batch_size=None)))
            check(isinstance(batch["__key__"], onehop.Keys), type(batch["__key__"]))
            same(batch["__key__"], [f"k{n:06}" for n in range(4)])


@case
def workers_states_are_their_own():
    """As torchdata's StatefulDataLoader asks for them: in each worker, and back into each."""
    with Scratch() as folder:
        data.shards(folder, data.numbered(100), 30)
        whole = seen(Dataset(folder, batch=4, remainder="uneven", **COMMON))
        for rounds in (1, 3):
            got = [in_worker(folder, number, rounds) for number in range(3)]
            turns = [one for row in zip(*(batches for batches, _ in got)) for one in row]
            same(turns, whole[:3 * rounds])
            rest = [in_worker(folder, number, 100, state)[0]
                    for number, (_, state) in enumerate(got)]
            merged = [row[i] for i in range(9) for row in rest if i < len(row)]
            same(merged, whole[3 * rounds:], "after resuming")
        words = raised(errors.InvalidArgument, in_worker, folder, 0, 1, got[1][1])
        holds(str(words), "worker 1 of 3")
        with Dataset(folder, batch=4, remainder="uneven", **COMMON) as dataset:
            dataset.load_state_dict(got[0][1])
            holds(str(raised(errors.InvalidArgument, list, dataset)), "in no worker")


def in_worker(folder, number, rounds, state=None):
    """What worker number of 3 gives in so many rounds, and its state then."""
    import itertools

    from torch.utils.data import _utils

    _utils.worker._worker_info = _utils.worker.WorkerInfo(id=number, num_workers=3, seed=0,
                                                          dataset=None)
    try:
        with Dataset(folder, batch=4, remainder="uneven", **COMMON) as dataset:
            if state:
                dataset.load_state_dict(pickle.loads(pickle.dumps(state)))
            return seen(itertools.islice(iter(dataset), rounds)), dataset.state_dict()
    finally:
        _utils.worker._worker_info = None


@case
def a_gpu_is_refused_in_a_worker_with_the_remedy():
    from torch.utils.data import DataLoader

    with Scratch() as folder:
        data.shards(folder, data.numbered(8), 8)
        dataset = Dataset(folder, batch=4, device="cuda:0", framework="torch")
        loader = DataLoader(dataset, batch_size=None, num_workers=1)
        words = str(raised(Exception, list, loader))
        holds(words, "batches on cuda:0 are asked for in a worker process")
        holds(words, "num_workers=0")


@case
def torch_distributed_says_which_rank_this_is():
    code = """
import os, sys, torch, onehop
import torch.distributed as dist
folder, store = sys.argv[1:] if len(sys.argv) > 2 else {arguments!r}
dataset = onehop.Dataset(folder, batch=4, device="cpu")
assert len(dataset) == 16
dist.init_process_group("gloo", init_method="file://" + store, rank=0, world_size=1)
print(len(dataset))
"""
    with Scratch() as folder:
        data.shards(folder + "/s", data.numbered(64), 64)
        same(python(code.format(arguments=[folder + "/s", folder + "/store"])), "16")


def train(rank, world, folder, store, remainder, results):
    """A rank of a DDP loop: each step ends only when all ranks take it."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    dataset = Dataset(folder, batch=4, remainder=remainder, **COMMON)
    taken = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        for batch in dataset:
            wanted = torch.tensor([[float(n % 2)] for n in batch["y.cls"]])
            loss = (model(batch["id.npy"].float() / 100) - wanted).square()
            if "__pad__" in batch:
                loss = loss[~batch["__pad__"]]
            loss.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            pads = batch.get("__pad__", [False] * 4)
            real = [n for n, pad in zip(batch["y.cls"], pads) if not pad]
            taken.append((epoch, real))
    weights = [one.detach().flatten().tolist() for one in model.parameters()]
    results.put((rank, taken, weights, len(dataset)))
    dist.barrier()
    dist.destroy_process_group()


@case
def a_ddp_loop_of_two_ranks_ends_also_with_uneven_data():
    context = multiprocessing.get_context("spawn")
    with Scratch() as folder:
        for count, remainder in ((37, "drop"), (41, "pad")):
            here = data.shards(os.path.join(folder, f"{count}"), data.numbered(count), 10)
            results = context.Queue()
            store = os.path.join(folder, f"store-{count}-{remainder}")
            ranks = [context.Process(target=train, args=(rank, 2, here, store, remainder, results))
                     for rank in range(2)]
            for one in ranks:
                one.start()
            got = sorted(results.get(timeout=200) for _ in ranks)
            for one in ranks:
                one.join(200)
                same(one.exitcode, 0, "a rank's exit status")
            (_, first, weights, length), (_, second, others, _) = got
            same((len(first), len(second)), (2 * length, 2 * length), "steps")
            same(weights, others, "the ranks' weights")
            for epoch in range(2):
                both = [n for at, row in first + second if at == epoch for n in row]
                same(len(both), len(set(both)), "a sample came twice")
                same(len(both), count if remainder == "pad" else count // 8 * 8)


class FakeStreams:
    """torch.cuda as far as a consumer asks: what each stream was told, in order."""

    def __init__(self):
        self.now, self.log = 7, []
        self._C, self.cuda = self, self

    def _cuda_getCurrentRawStream(self, number):
        same(number, 3, "the device")
        return self.now

    def current_stream(self, number):
        return FakeStream(self, self.now)

    def set_stream(self, stream):
        self.now = stream.number


class FakeStream:
    def __init__(self, streams, number):
        self.streams, self.number = streams, number
        self.cuda_stream = number

    def __eq__(self, other):
        return self.number == other.number

    __hash__ = None

    def wait_stream(self, other):
        self.streams.log.append(("waits", self.number, other.number))


class FakeTensor:
    is_cuda = True

    def __init__(self, log):
        self.log = log

    def record_stream(self, stream):
        self.log.append(("kept for", stream.number))


@case
def batches_are_good_on_whatever_stream_takes_them():
    from onehop._dataset_ahead import CudaConsumer
    from onehop.devices import Device

    streams = FakeStreams()
    consumer = CudaConsumer(Device("cuda", 3))
    consumer._torch = streams
    ragged = onehop.Ragged(FakeTensor(streams.log), FakeTensor(streams.log), np.ones(1, np.int64))
    batch = {"a": FakeTensor(streams.log), "b": ragged, "c": [FakeTensor(streams.log)],
             "d": [None, 5], "__key__": ["k"]}
    consumer.note()
    consumer.begin()
    seven = consumer.stream
    same((seven.number, streams.log), (7, []))
    consumer.hand(batch, seven)
    same(streams.log, [], "words about the same stream")
    streams.now = 8
    consumer.hand(batch, seven)
    same(streams.log, [("waits", 8, 7)] + [("kept for", 8)] * 4)
    del streams.log[:]
    # What is made next, by a thread whose own stream is another, is for stream 8. The ring is given
    # back after that, so it has to come after stream 7's copies.
    streams.now = 0
    consumer.begin()
    same((streams.now, consumer.stream.number, streams.log), (8, 8, [("waits", 8, 7)]))


@case
def tensors_are_torchs_own():
    import torch

    with Scratch() as folder:
        source = seeded()
        samples = [(f"k{n}", {"a.npy": np.frombuffer(source.randbytes(64), np.float32),
                              "b.npy": np.arange(n, dtype=np.int64), "c.jpg": b"12345"})
                   for n in range(20)]
        data.shards(folder, samples, 20)
        with Dataset(folder, batch=5, **COMMON) as dataset:
            one, two = list(dataset)[:2]
            kept = two["a.npy"].clone()
            one["a.npy"].add_(1)  # no view of the other, nor of the ring
            check(torch.equal(two["a.npy"], kept) or kept.isnan().any(), "batches share memory")
            check(not one["a.npy"]._is_view(), "a view")
            same((one["a.npy"].dtype, one["b.npy"].values.dtype, one["b.npy"].offsets.dtype,
                  one["c.jpg"][0].dtype), (torch.float32, torch.int64, torch.int64, torch.uint8))
            one["a.npy"].requires_grad_()
            (one["a.npy"].nan_to_num() ** 2).sum().backward()


if __name__ == "__main__":
    run()
