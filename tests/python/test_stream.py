"""onehop.stream: every tensor once, with the bound kept and no byte changed under a reader.

usage: test_stream.py [FOLDER of the look-alike driver]
"""
import os
import queue
import sys
import threading
import time
import weakref

from package import Scratch, need, noise, python, raised, safetensors, seeded
from tap import Skip, case, check, holds, run, same

import onehop
from onehop import _move, arenas, errors, streaming

KIB = 1024


def numbered(folder, count=40, elements=8 * KIB, name="m.safetensors"):
    """Tensors t0, t1, ... of I32, each full of its number."""
    tensors = [(f"t{i}", "I32", [elements], i.to_bytes(4, "little") * elements)
               for i in range(count)]
    return safetensors(os.path.join(folder, name), tensors)


def number(name):
    return int(name[1:])


class Watched:
    """Counts what a stream's memory takes: with Watched(torch) as watch; watch.most in bytes."""

    def __init__(self, kind=arenas.TorchFramework):
        self.kind, self.most, self.alive = kind, 0, []

    def __enter__(self):
        self.original = self.kind.allocate

        def allocate(framework, nbytes):
            memory = self.original(framework, nbytes)
            self.alive.append((nbytes, self.life(memory.owner)))
            self.most = max(self.most, self.used())
            return memory

        self.kind.allocate = allocate
        return self

    def __exit__(self, *_):
        self.kind.allocate = self.original

    def life(self, owner):
        """A function that says whether the memory is still there."""
        if self.kind is not arenas.TorchFramework:
            life = weakref.ref(owner)
            return lambda: life() is not None
        from torch.multiprocessing.reductions import StorageWeakRef

        life = StorageWeakRef(owner.untyped_storage())
        return lambda: not life.expired()

    def used(self):
        return sum(nbytes for nbytes, is_alive in self.alive if is_alive())


# ---- what comes


@case
def each_tensor_comes_once_with_its_bytes():
    need("torch")
    source = seeded()
    with Scratch() as folder:
        tensors = [(f"t{i}", "U8", [size], noise(source, "U8", [size]))
                   for i, size in enumerate([0, 1, 70000, 300, 5, 200000, 0, 131072, 9] * 5)]
        path = safetensors(os.path.join(folder, "m.safetensors"), tensors)
        want = {name: data for name, _, _, data in tensors}
        for framework in ("torch", "numpy", "array"):
            for bound in (None, 10 << 20, 450000, 1 << 20):
                for order in ("arrival", "file"):
                    got = []
                    for name, tensor in onehop.stream(path, "cpu", order=order,
                                                      max_device_bytes=bound,
                                                      framework=framework):
                        data = tensor.numpy() if framework == "torch" else tensor
                        got.append((name, bytes(data.tobytes())))
                        del tensor, data
                    same(len(got), len(want))
                    check(dict(got) == want, f"{framework} {bound} {order}: bytes differ")
                    if order == "file":
                        same([name for name, _ in got], list(want))


@case
def shards_parts_and_choices_are_those_of_load():
    torch = need("torch")
    source = seeded()
    with Scratch() as folder:
        for shard in range(3):
            tensors = [(f"s{shard}.{i}", "F32", [64, 48], noise(source, "F32", [64, 48]))
                       for i in range(8)]
            safetensors(os.path.join(folder, f"{shard}.safetensors"), tensors, {"k": str(shard)})
        choice = {"tensors": lambda name: name != "s1.3", "tp": (1, 3),
                  "tp_plan": {"*.1": 0, "*": 1}, "tp_uneven": "split"}
        want = onehop.load(folder, "cpu", framework="torch", **choice)
        stream = onehop.stream(folder, "cpu", framework="torch", max_device_bytes=48 * KIB,
                               **choice)
        same((len(stream), stream.metadata, list(stream.info)),
             (23, {"k": "0"}, list(want)))
        got = {name: tensor.clone() for name, tensor in stream}
        for name, tensor in want.items():
            check(torch.equal(tensor.view(torch.int32), got[name].view(torch.int32)), name)
        same(list(onehop.stream(folder, "cpu", tensors=lambda name: False)), [])


@case
def progress_counts_all_bytes():
    with Scratch() as folder:
        seen = []
        for _ in onehop.stream(numbered(folder), "cpu", framework="array",
                               max_device_bytes=256 * KIB,
                               progress=lambda landed, total: seen.append((landed, total))):
            pass
        same(seen[-1], (40 * 32 * KIB, 40 * 32 * KIB))
        check(all(a[0] <= b[0] for a, b in zip(seen, seen[1:])), f"goes back: {seen}")


# ---- the bound


@case
def the_bound_holds_while_tensors_are_let_go():
    need("torch")
    with Scratch() as folder:
        path = numbered(folder)
        for bound in (160 * KIB, 256 * KIB, 1 << 20):
            with Watched() as watch:
                for name, tensor in onehop.stream(path, "cpu", framework="torch",
                                                  max_device_bytes=bound):
                    same(tensor.unique().tolist(), [number(name)])
                check(watch.most <= bound, f"{watch.most} of {bound} bytes")
                check(len(watch.alive) > 1, "one piece of memory")
                # While one group is in use, another is on its way.
                check(watch.most > bound // 2, f"{watch.most} of {bound} bytes only")


@case
def several_groups_are_on_their_way_at_once():
    need("torch")
    with Scratch() as folder:
        stream = onehop.stream(numbered(folder), "cpu", framework="torch",
                               max_device_bytes=256 * KIB)
        with Watched() as watch:
            next(stream)
            same(len(watch.alive), 4)
        stream.close()


@case
def what_is_kept_is_never_overwritten():
    torch, numpy = need("torch"), need("numpy")
    keeps = {
        "a view": lambda tensor: tensor.view(2, -1)[1, 5:9],
        "a reshaped alias": lambda tensor: tensor.detach().view(torch.uint8),
        "a DLPack export": lambda tensor: torch.utils.dlpack.to_dlpack(tensor[8:16]),
        "a numpy array": lambda tensor: tensor[8:16].numpy(),
        "a memoryview": lambda tensor: memoryview(tensor[8:16].numpy()),
        "its storage": lambda tensor: tensor.untyped_storage(),
        "a parameter": lambda tensor: torch.nn.Parameter(tensor, requires_grad=False),
        "a graph": lambda tensor: tensor.double().requires_grad_() * tensor,
    }
    with Scratch() as folder:
        path = numbered(folder)
        for what, keep in keeps.items():
            kept = []
            with Watched() as watch:
                for name, tensor in onehop.stream(path, "cpu", framework="torch", order="file",
                                                  max_device_bytes=512 * KIB):
                    if number(name) in (0, 17):
                        kept.append(keep(tensor))
                    del tensor
                check(watch.most <= 512 * KIB, f"{what}: {watch.most} bytes")
                check(watch.used() > 0, f"{what} kept no memory")
            for want, thing in zip((0, 17), kept):
                same(_number_of(thing, torch, numpy), want, what)


def _number_of(thing, torch, numpy):
    """The number that fills what a case kept."""
    if type(thing).__name__ == "PyCapsule":
        thing = torch.utils.dlpack.from_dlpack(thing)
    if isinstance(thing, torch.UntypedStorage):
        # It holds the group of four that the tensor is in.
        values = torch.empty(0, dtype=torch.int32).set_(thing).unique().tolist()
        return {(0, 1, 2, 3): 0, (16, 17, 18, 19): 17}.get(tuple(values), values)
    if isinstance(thing, torch.Tensor):
        if thing.grad_fn is not None:
            thing, = torch.autograd.grad(thing.sum(), thing.grad_fn.next_functions[0][0].variable)
        if thing.dtype == torch.uint8:
            thing = thing.view(torch.int32)
        thing = thing.numpy()
    values = numpy.unique(numpy.asarray(thing)).tolist()
    return int(values[0]) if len(values) == 1 else values


@case
def an_export_of_an_array_counts():
    numpy = need("numpy")
    with Scratch() as folder:
        kept = []

        def consume():
            for _, tensor in onehop.stream(numbered(folder), "cpu", framework="array",
                                           max_device_bytes=256 * KIB, order="file"):
                kept.append(numpy.from_dlpack(tensor))
                del tensor

        raised(errors.Limit, consume)
        same([numpy.unique(array).tolist() for array in kept], [[i] for i in range(8)])


@case
def keeping_too_much_is_an_error_with_figures():
    need("torch")
    with Scratch() as folder:
        path = numbered(folder)
        for framework in ("torch", "numpy", "array"):
            kept = []

            def consume(framework=framework, kept=kept):
                for _, tensor in onehop.stream(path, "cpu", framework=framework,
                                               max_device_bytes=256 * KIB):
                    kept.append(tensor[:1] if framework != "array" else tensor)
                    del tensor

            error = raised(errors.Limit, consume)
            holds(str(error), "take 262144 of max_device_bytes = 262144, and the next take 65536")
            holds(str(error), "set max_device_bytes to 327680")
            check(isinstance(error, MemoryError), "no MemoryError")
            same(len(kept), 8, f"{framework}: tensors")


@case
def other_threads_may_let_go_later():
    need("torch")
    with Scratch() as folder:
        path, handed, sums = numbered(folder), queue.Queue(), {}
        # Nothing is let go before the stream waits for it.
        is_waiting, sleep = threading.Event(), time.sleep
        streaming.time.sleep = lambda seconds: (is_waiting.set(), sleep(seconds))

        def work():
            is_waiting.wait(60)
            while (got := handed.get()) is not None:
                sums[got[0]] = int(got[1].sum())
                del got

        worker = threading.Thread(target=work)
        worker.start()
        try:
            with Watched() as watch:
                for name, tensor in onehop.stream(path, "cpu", framework="torch",
                                                  max_device_bytes=192 * KIB):
                    handed.put((name, tensor))
                    del tensor
        finally:
            streaming.time.sleep = sleep
            is_waiting.set()
            handed.put(None)
            worker.join()
        same(sums, {f"t{i}": i * 8 * KIB for i in range(40)})
        check(watch.most <= 192 * KIB, f"{watch.most} bytes")


@case
def a_tensor_larger_than_the_bound_is_named():
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"),
                           [("small", "U8", [10], bytes(10)), ("large", "U8", [100000],
                                                               bytes(100000)),
                            ("other", "U8", [70000], bytes(70000))])
        error = raised(errors.InvalidArgument, onehop.stream, path, "cpu", max_device_bytes=65536)
        holds(str(error), "tensor 'large' takes 100000 bytes, and max_device_bytes is 65536; set "
                          "it to 200704 or more")
        # As large as the bound does, if it is let go.
        got = []
        for name, tensor in onehop.stream(path, "cpu", framework="array", max_device_bytes=100000):
            got.append((name, tensor.nbytes))
            del tensor
        same(got, [("small", 10), ("large", 100000), ("other", 70000)])


# ---- how it ends


@case
def leaving_early_cancels_and_frees():
    need("torch")
    with Scratch() as folder:
        path = numbered(folder, elements=256 * KIB)

        def by_break():
            for name, tensor in onehop.stream(path, "cpu", framework="torch",
                                              max_device_bytes=8 << 20):
                return name, tensor

        def by_context():
            with onehop.stream(path, "cpu", framework="torch", max_device_bytes=8 << 20) as stream:
                found = next(stream)
            raised(StopIteration, next, stream)
            stream.close()
            return found

        def by_failure():
            try:
                for found in onehop.stream(path, "cpu", framework="torch"):
                    raise KeyError(found)
            except KeyError as error:
                return error.args[0]

        for way in (by_break, by_context, by_failure):
            closed = []
            close = _move.Transfer.close

            def count(transfer, closed=closed, close=close):
                closed.append(bool(transfer.handle))
                close(transfer)

            _move.Transfer.close = count
            try:
                with Watched() as watch:
                    name, tensor = way()
            finally:
                _move.Transfer.close = close
            check(any(closed), "no transfer was closed")
            same(tensor.unique().tolist(), [number(name)], way.__name__)
            same(watch.used(), tensor.untyped_storage().nbytes(), f"{way.__name__}: bytes")
            del tensor
            same(watch.used(), 0, f"{way.__name__}: bytes")


@case
def a_stream_that_never_began_leaves_nothing():
    need("torch")
    with Scratch() as folder, Watched() as watch:
        stream = onehop.stream(numbered(folder), "cpu", framework="torch")
        holds(repr(stream), "40 tensors of 'm.safetensors'")
        stream.close()
        del stream
        same(watch.alive, [])


@case
def a_file_that_changes_is_an_error_while_iterating():
    with Scratch() as folder:
        path = numbered(folder, count=400)

        def consume():
            for number_, _ in enumerate(onehop.stream(path, "cpu", framework="array",
                                                      max_device_bytes=256 * KIB)):
                if number_ == 3:
                    os.truncate(path, os.path.getsize(path) - 100000)

        raised(errors.OnehopError, consume)


@case
def calls_are_checked_at_once():
    need("numpy")
    with Scratch() as folder:
        path = numbered(folder, count=2)
        holds(str(raised(errors.InvalidArgument, onehop.stream, path, "cpu", order="name")),
              'it is "arrival" or "file"')
        raised(errors.InvalidArgument, onehop.stream, path, "cpu", max_device_bytes=0)
        raised(errors.NoSuchTensor, onehop.stream, path, "cpu", tensors="x")
        raised(errors.NotFound, onehop.stream, os.path.join(folder, "none"), "cpu")
        holds(str(raised(errors.UnsupportedData, onehop.stream, os.path.join(folder, "m.pth"))),
              "torch.load")
        packed = safetensors(os.path.join(folder, "p.safetensors"), [("b", "F4", [8], bytes(4))])
        same([tensor.shape for _, tensor in onehop.stream(packed, "cpu", framework="numpy")],
             [(4,)])


# ---- GPUs


class FakeStream:
    """A CUDA stream whose work is done when is_done says so."""

    def __init__(self, number_, is_done=lambda: True):
        self.cuda_stream, self.is_done, self.events = number_, is_done, 0

    def record_event(self):
        self.events += 1
        return self

    def query(self):
        return self.is_done()


class FakeStreams:
    """torch as if the host were a GPU: its home stream is 7, and current is the current one."""

    def __init__(self, torch):
        self.torch, self.current, self.told = torch, FakeStream(7), {}

    def __enter__(self):
        self.raw = getattr(self.torch._C, "_cuda_getCurrentRawStream", None)
        self.originals = (self.torch.cuda.current_stream, arenas.TorchFramework.stream,
                          _move.Transfer.start)
        self.torch.cuda.current_stream = lambda device: self.current
        self.torch._C._cuda_getCurrentRawStream = lambda number: self.current.cuda_stream
        arenas.TorchFramework.stream = lambda framework: 7
        _move.Transfer.start = lambda transfer, after_stream: self.originals[2](transfer)
        self.torch.Tensor.record_stream = lambda owner, stream: self.told.setdefault(
            int(owner.view(self.torch.int32)[0]), []).append(stream.cuda_stream)
        return self

    def __exit__(self, *_):
        (self.torch.cuda.current_stream, arenas.TorchFramework.stream,
         _move.Transfer.start) = self.originals
        del self.torch.Tensor.record_stream, self.torch._C._cuda_getCurrentRawStream
        if self.raw:
            self.torch._C._cuda_getCurrentRawStream = self.raw


@case
def events_are_recorded_on_each_stream_that_was_current():
    torch = need("torch")
    with Scratch() as folder, FakeStreams(torch) as fake:
        # One tensor a group.
        stream = onehop.stream(numbered(folder, count=8), "cpu", framework="torch", order="file",
                               max_device_bytes=5 * 32 * KIB)
        home, out, away = fake.current, FakeStream(8), FakeStream(9)
        seen = []
        for handed_out, let_go in ((home, home), (out, home), (home, away), (out, away)):
            fake.current = handed_out
            name, tensor = next(stream)
            fake.current = let_go
            del tensor
            fake.current = home
            seen.append((name, home.events, out.events, away.events))
        # Each is looked at when the next is asked for, and so t0 and t2 while 8 is current.
        same(seen, [("t0", 0, 0, 0), ("t1", 0, 1, 0), ("t2", 0, 2, 0), ("t3", 0, 3, 1)])
        fake.current = FakeStream(10)
        stream.close()
        # t3 was not looked at before the end.
        same(fake.told[3], [8, 9, 10])


@case
def memory_is_kept_until_the_events_have_passed():
    torch = need("torch")
    with Scratch() as folder, FakeStreams(torch) as fake, Watched() as watch:
        path, is_done, looks, sleep = numbered(folder), [], [], time.sleep
        side = FakeStream(8, lambda: bool(is_done))

        def wait(seconds):
            """The stream waits; after the third time the kernels are done."""
            looks.append(watch.used())
            if len(looks) % 3 == 0:
                is_done.append(True)

        streaming.time.sleep = wait
        try:
            for name, tensor in onehop.stream(path, "cpu", framework="torch",
                                              max_device_bytes=256 * KIB):
                is_done.clear()
                fake.current = side
                same(tensor.unique().tolist(), [number(name)])
                del tensor
                fake.current = FakeStream(7)
        finally:
            streaming.time.sleep = sleep
        check(looks, "it never waited")
        same(set(looks), {256 * KIB})
        check(watch.most <= 256 * KIB, f"{watch.most} bytes")
        # What was not done at the end the allocator waits for.
        same(sorted(set(sum(fake.told.values(), []))), [8])


@case
def a_bounded_stream_reaches_the_look_alike_gpu():
    driver = sys.argv[1] if len(sys.argv) > 1 else ""
    if not os.path.isdir(driver):
        raise Skip("no folder of the look-alike driver was given")
    code = ("import onehop\n"
            "from onehop import _runtime\n"
            "free = lambda: _runtime.get().query_device('cuda:0').free_bytes\n"
            "first, least, seen = free(), free(), 0\n"
            "for name, tensor in onehop.stream(PATH, 'cuda:0', framework='array', order='file',\n"
            "                                  max_device_bytes=256 << 10):\n"
            "    assert str(tensor.device) == 'cuda:0'\n"
            "    assert tensor.tobytes() == int(name[1:]).to_bytes(4, 'little') * 8192, name\n"
            "    least, seen = min(least, free()), seen + 1\n"
            "    del tensor\n"
            "print(seen, first - least <= 256 << 10, first == free())")
    with Scratch() as folder:
        out = python(f"PATH = {numbered(folder)!r}\n" + code, LD_LIBRARY_PATH=driver)
        same(out, "40 True True")


def gpu():
    torch = need("torch")
    if not torch.cuda.is_available():
        raise Skip("torch sees no GPU")
    return torch


SLEEP = 20_000_000
"""Cycles, of which a GPU has some 1.5e9 a second."""


@case
def a_slow_kernel_queued_before_del_never_sees_a_changed_byte():
    torch = gpu()
    with Scratch() as folder:
        path, ends = numbered(folder, count=60, elements=2 << 20), []
        torch.cuda.synchronize()
        begin = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        for name, tensor in onehop.stream(path, "cuda", max_device_bytes=64 << 20):
            torch.cuda._sleep(SLEEP)
            ends.append((number(name), *tensor.aminmax()))  # takes no memory of a tensor's size
            del tensor
        check(torch.cuda.max_memory_allocated() - begin <= (64 << 20) + (4 << 20),
              f"{torch.cuda.max_memory_allocated() - begin} bytes are more than the bound")
        same([(int(least), int(most)) for _, least, most in ends],
             [(value, value) for value, _, _ in ends])


@case
def a_slow_kernel_on_a_side_stream_never_sees_a_changed_byte():
    torch = gpu()
    with Scratch() as folder:
        path = numbered(folder, count=60, elements=2 << 20)
        side, equal = torch.cuda.Stream(), []

        def use(name, tensor):
            torch.cuda._sleep(SLEEP)
            equal.append((tensor == number(name)).sum())

        # Current where a tensor is let go.
        for name, tensor in onehop.stream(path, "cuda", max_device_bytes=64 << 20):
            with torch.cuda.stream(side):
                use(name, tensor)
                del tensor
            # What the allocator gives to others must not be under the kernel either.
            torch.full((2 << 20,), -1, dtype=torch.int32, device="cuda")
        # Current where a tensor is handed out, of memory allocated on another.
        stream = onehop.stream(path, "cuda", max_device_bytes=64 << 20)
        name, tensor = next(stream)
        while True:
            use(name, tensor)
            del tensor
            with torch.cuda.stream(side):
                name, tensor = next(stream, (None, None))
                if name is None:
                    break
                use(name, tensor)
                equal.pop()
        # Told of as torch wants it.
        for name, tensor in onehop.stream(path, "cuda", max_device_bytes=64 << 20):
            with torch.cuda.stream(side):
                use(name, tensor)
            tensor.record_stream(side)
            del tensor
        torch.cuda.synchronize()
        same([int(one) for one in equal], [2 << 20] * len(equal))
        same(len(equal), 180)


if __name__ == "__main__":
    run()
