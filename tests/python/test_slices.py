"""Slices of tensors in files: random ones against numpy, how much is read, and random tp plans."""
import math
import os
import sys

from package import Scratch, need, raised, safetensors, seeded
from tap import case, check, run, same

import onehop
from onehop import _move, _slicing, errors

COUNT = int(os.environ.get("TEST_SLICES", "1000"))
ROW = 64 << 10


def random_part(source, extent):
    """An index of one dimension that is never out of bounds."""
    kind = source.random()
    if kind < 0.3 and extent:
        return source.randrange(-extent, extent)
    if kind < 0.45:
        return slice(None)
    first, last = sorted(source.choices(range(extent + 1), k=2))
    if extent and first == extent:
        first -= 1
    step = source.choice([None, None, 1, 2, 3, 7])
    return slice(source.choice([None, first]), source.choice([None, last]), step)


def random_index(source, shape):
    """Parts for some leading dimensions, an Ellipsis perhaps, and some trailing ones."""
    leading = source.randrange(len(shape) + 1)
    index = [random_part(source, extent) for extent in shape[:leading]]
    if source.random() < 0.3:
        trailing = source.randrange(len(shape) - leading + 1)
        index.append(Ellipsis)
        index += [random_part(source, extent) for extent in shape[len(shape) - trailing:]]
    return index[0] if len(index) == 1 and source.random() < 0.5 else tuple(index)


class Reads:
    """Counts the bytes that transfers read and deliver: with Reads() as reads."""

    def __enter__(self):
        self.read = self.delivered = 0
        self._wait = _move.Transfer.wait

        def wait(transfer, on_turn=None):
            done = self._wait(transfer, on_turn)
            self.read += done.read_bytes
            self.delivered += done.bytes
            return done

        _move.Transfer.wait = wait
        return self

    def __exit__(self, *_):
        _move.Transfer.wait = self._wait


@case
def random_slices_are_numpys():
    numpy, source = need("numpy"), seeded()
    shapes = ([50], [7, 11], [64, 300], [3, 5, 7], [2, 3, 4, 5], [1, 40, 1, 30], [300, 2000],
              [20, 40, 60])
    with Scratch() as folder:
        arrays = {f"t{i}": numpy.frombuffer(source.randbytes(4 * math.prod(shape)), numpy.uint32)
                  .reshape(shape) for i, shape in enumerate(shapes)}
        path = safetensors(os.path.join(folder, "m.safetensors"),
                           [(name, "U32", list(array.shape), array.tobytes())
                            for name, array in arrays.items()])
        with onehop.safe_open(path, "np") as file, Reads() as reads:
            for _ in range(COUNT):
                name = source.choice(list(arrays))
                index = random_index(source, arrays[name].shape)
                want = arrays[name][index]
                reads.read = reads.delivered = 0
                got = file.get_slice(name)[index]
                same((got.shape, got.tobytes()), (want.shape, want.tobytes()), f"{name}[{index}]")
                same(reads.delivered, want.nbytes, f"delivered of {name}[{index}]")
                check_read(reads.read, want.nbytes, arrays[name], index)
    print(f"# {COUNT} slices")


def check_read(read, wanted, array, index):
    """At most twice what is wanted, or whole rows where rows are under 64 KiB."""
    row_bytes = array.shape[-1] * array.itemsize
    check(read <= 2 * wanted or row_bytes < ROW, f"read {read} for {wanted} of {index}")
    if not wanted:
        same(read, 0)


@case
def torch_slices_of_all_kinds_are_torchs():
    torch, source = need("torch"), seeded()
    with Scratch() as folder:
        whole = torch.arange(3 * 4 * 5, dtype=torch.int32).reshape(3, 4, 5)
        path = safetensors(os.path.join(folder, "m.safetensors"),
                           [("w", "I32", [3, 4, 5], whole.numpy().tobytes())])
        with onehop.safe_open(path, "pt") as file:
            part = file.get_slice("w")
            fixed = [None, True, [0, 2], ([2, 0, 0], slice(1, 3)), (slice(None), [1, -1]),
                     (None, 0, None, slice(1, 2)), torch.tensor([2, 1]), torch.tensor(1),
                     whole[:, 0, 0] > 10, ([0, 1], [1, 2]), (..., None), (..., [0], 1),
                     torch.tensor([[0, 1], [1, 2]]), []]
            for index in fixed + [random_index(source, whole.shape) for _ in range(300)]:
                want, got = whole[index], part[index]
                same(list(got.shape), list(want.shape), f"shape of w[{index}]")
                check(torch.equal(got, want), f"w[{index}]")
                check(got.is_contiguous() or got._base is not None, f"w[{index}]")


@case
def large_rows_are_read_exactly():
    numpy, source = need("numpy"), seeded()
    with Scratch() as folder:
        array = numpy.frombuffer(source.randbytes(16 * (256 << 10)), numpy.uint8).reshape(16, -1)
        path = safetensors(os.path.join(folder, "m.safetensors"),
                           [("w", "U8", list(array.shape), array.tobytes())])
        with onehop.safe_open(path, "np") as file, Reads() as reads:
            part = file.get_slice("w")
            for index in ((slice(None), slice(1000, 20000)), (slice(2, 14, 3), slice(0, 100000)),
                          (slice(None), slice(262000, None)), (slice(None, None, 5),), 3):
                reads.read = 0
                same(part[index].tobytes(), array[index].tobytes(), index)
                check(reads.read <= 2 * array[index].nbytes,
                      f"read {reads.read} of {array[index].nbytes} at {index}")


@case
def packed_types_are_sliced_where_bytes_end():
    torch, source = need("torch"), seeded()
    with Scratch() as folder:
        data = source.randbytes(12)
        path = safetensors(os.path.join(folder, "m.safetensors"), [("w", "F4", [3, 8], data)])
        with onehop.safe_open(path, "pt") as file:
            part = file.get_slice("w")
            got = part[1:, 2:6]
            same((got.dtype, list(got.shape)), (torch.float4_e2m1fn_x2, [2, 2]))
            same(bytes(got.view(torch.uint8).flatten().numpy()), data[5:7] + data[9:11])
            raised(errors.DataError, part.__getitem__, (0, slice(1, 3)))


@case
def what_lies_outside_is_found_before_anything_is_read():
    need("torch")
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"), [("w", "U8", [4, 4], bytes(16))])
        with Reads() as reads:
            with onehop.safe_open(path, "pt") as file:
                raised(IndexError, file.get_slice("w").__getitem__, 4)
                raised(IndexError, file.get_slice("w").__getitem__, (0, 0, 0))
                raised(ValueError, file.get_slice("w").__getitem__, slice(None, None, -1))
            with onehop.safe_open(path, "np") as file:
                raised(errors.DataError, file.get_slice("w").__getitem__, slice(0, 5))
            same(reads.read, 0)


@case
def runs_are_strided_where_they_can_be():
    whole = range(8)
    row_bytes, rows = _slicing.runs((range(1, 3), whole, range(2, 4)), (4, 8, 6), 1, 2)
    same((row_bytes, list(rows)), (4, [(100, 8, 12), (196, 8, 12)]))
    row_bytes, rows = _slicing.runs((range(0, 4, 2), whole, range(6)), (4, 8, 6), 1, 2)
    same((row_bytes, list(rows)), (96, [(0, 2, 192)]))
    same(_slicing.runs((range(1, 4),), (8,), 2, 1), None)


@case
def random_tensor_parallel_plans_join_to_the_whole():
    numpy, source = need("numpy"), seeded()
    with Scratch() as folder:
        for turn in range(20):
            shapes = [[source.randrange(1, 9) for _ in range(source.randrange(1, 4))]
                      for _ in range(6)]
            tensors = [(f"t{i}", "U16", shape, source.randbytes(2 * math.prod(shape)))
                       for i, shape in enumerate(shapes)]
            path = safetensors(os.path.join(folder, f"{turn}.safetensors"), tensors)
            dims = {name: source.randrange(len(shape)) for name, _, shape, _ in tensors
                    if source.random() < 0.8}
            size = source.randrange(1, 5)
            parts = [onehop.load(path, "cpu", framework="numpy", tp=(rank, size), tp_plan=dims,
                                 tp_uneven="split", verify="read") for rank in range(size)]
            for name, _, shape, data in tensors:
                joined = parts[0][name] if name not in dims else numpy.concatenate(
                    [part[name] for part in parts], axis=dims[name])
                same((list(joined.shape), joined.tobytes()), (shape, data), name)


if __name__ == "__main__":
    sys.exit(run())
