"""onehop.Dataset: batches against what tarfile reads of the same shards, for every kind of field.

usage: test_dataset.py [FOLDER of the look-alike driver]
"""
import json
import os
import pickle
import sys

from package import Scratch, need, python, raised, seeded
from tap import Skip, case, check, holds, run, same

np = need("numpy") if __import__("importlib.util").util.find_spec("numpy") else None
if np is None:
    print("1..0 # SKIP numpy is not installed")
    sys.exit(0)

import dataset_data as data
import onehop
from onehop import _dataset_fields, _dataset_make, errors
from onehop.dataset import Dataset, Keys, Ragged
from onehop.devices import HOST


def frameworks():
    """The frameworks that are installed, and have the device."""
    import importlib.util

    if data.DEVICE != "cpu":
        return ["torch"]
    return ["numpy", "torch"] if importlib.util.find_spec("torch") else ["numpy"]


def plain(value):
    """A tensor as a numpy array."""
    return value.cpu().numpy() if hasattr(value, "cpu") else np.asarray(value)


def array(payload):
    """What .npy bytes hold."""
    import io

    return np.load(io.BytesIO(payload))


def varied(source, count):
    """Samples with a field of every kind, some of which some samples lack."""
    made = []
    for index in range(count):
        fields = {
            "fix.bin": source.randbytes(96), "rag.bin": source.randbytes(source.randrange(0, 300)),
            "img.npy": np.frombuffer(source.randbytes(24), np.int16).reshape(3, 4),
            "cloud.npy": np.frombuffer(source.randbytes(16 * source.randrange(0, 9)),
                                       np.float32).reshape(-1, 4),
            "any.npy": (np.arange(index % 5, dtype=np.int32) if index % 2 else
                        np.frombuffer(source.randbytes(8), np.uint8)),
            "number.npy": np.array(index, np.float64), "cam.jpg": source.randbytes(index % 40),
            "meta.json": {"n": index, "words": ["a"] * (index % 3)}, "a.txt": f"text {index} é",
            "y.cls": index % 10, "flags.npy": np.array([index % 2 == 0, True])}
        for name in ("fix.bin", "cloud.npy", "cam.jpg", "meta.json", "img.npy"):
            if source.random() < 0.2:
                del fields[name]
        made.append((f"part{index % 3}/k{index:05}", fields))
    return made


def check_row(batch, row, want):
    """A row of a batch against the payloads of its sample."""
    for name in ("fix.bin", "img.npy", "cloud.npy"):
        same(bool(batch[name + "_is_pad"][row]), name not in want, f"{name}_is_pad")
    fixed = plain(batch["fix.bin"][row]).tobytes()
    same(fixed, want.get("fix.bin", bytes(96)), "fix.bin")
    same(plain(batch["rag.bin"][row]).tobytes(), want["rag.bin"], "rag.bin")
    zeros = np.zeros((3, 4), np.int16)
    image = array(want["img.npy"]) if "img.npy" in want else zeros
    got = plain(batch["img.npy"][row])
    check(got.dtype == image.dtype and (got == image).all(), "img.npy")
    cloud = array(want["cloud.npy"]) if "cloud.npy" in want else np.zeros((0, 4), np.float32)
    got = plain(batch["cloud.npy"][row])
    same((got.dtype, got.shape), (cloud.dtype, cloud.shape), "cloud.npy")
    same(got.tobytes(), cloud.tobytes(), "cloud.npy")
    other, got = array(want["any.npy"]), plain(batch["any.npy"][row])
    same((got.dtype, got.shape, got.tobytes()), (other.dtype, other.shape, other.tobytes()), "any")
    same(float(batch["number.npy"][row]), float(array(want["number.npy"])), "number.npy")
    jpeg = batch["cam.jpg"][row]
    same(None if jpeg is None else plain(jpeg).tobytes(), want.get("cam.jpg"), "cam.jpg")
    same(batch["meta.json"][row], json.loads(want["meta.json"]) if "meta.json" in want else None)
    same(batch["a.txt"][row], want["a.txt"].decode(), "a.txt")
    same(batch["y.cls"][row], int(want["y.cls"]), "y.cls")
    check((plain(batch["flags.npy"][row]) == array(want["flags.npy"])).all(), "flags.npy")


FORMS = {"fix.bin": "fixed", "rag.bin": "values", "img.npy": "fixed", "cloud.npy": "values",
         "any.npy": "list", "number.npy": "fixed", "cam.jpg": "list", "meta.json": "object",
         "a.txt": "object", "y.cls": "object", "flags.npy": "fixed"}


@case
def every_kind_of_field_is_what_tarfile_reads():
    with Scratch() as folder:
        data.shards(folder, varied(seeded(), 300), 70)
        want = data.read(folder)
        for framework in frameworks():
            for shuffle in ("sample", None):
                with Dataset(folder, batch=32, device=data.DEVICE, framework=framework, shuffle=shuffle,
                             remainder="uneven") as dataset:
                    same(dataset.fields, FORMS)
                    seen = []
                    for batch in dataset:
                        keys = list(batch["__key__"])
                        for row, key in enumerate(keys):
                            check_row(batch, row, want[key])
                        seen += keys
                    same(sorted(seen), sorted(want), "the keys")
                    check(shuffle is None or seen != sorted(seen), "the order is not shuffled")


@case
def batches_keep_their_values_when_others_follow():
    with Scratch() as folder:
        data.shards(folder, varied(seeded(), 400), 400)
        want = data.read(folder)
        for framework in frameworks():
            with Dataset(folder, batch=8, device=data.DEVICE, framework=framework,
                         ring_bytes=3 << 19) as dataset:
                for batch in list(dataset):
                    for row, key in enumerate(batch["__key__"]):
                        check_row(batch, row, want[key])


@case
def a_group_is_kept_until_its_last_batch_is_cut():
    """Its batches are cut one by one, as large ones are; others would be written over it at once."""
    from onehop import _dataset_feed

    source, most = seeded(), _dataset_feed._CHUNK_ON_HOST
    with Scratch() as folder:
        samples = [(f"k{n:05}", {"a.bin": n.to_bytes(4, "little") * 5000}) for n in range(1500)]
        data.shards(folder, samples, 500)
        _dataset_feed._CHUNK_ON_HOST = 1
        try:
            with Dataset(folder, batch=4, device="cpu", framework="numpy", buffers=2,
                         ring_bytes=4 << 20, seed=source.randrange(1 << 30)) as dataset:
                for _ in range(3):
                    for batch in dataset:
                        for row, key in enumerate(batch["__key__"]):
                            same(batch["a.bin"][row].tobytes(), samples[int(key[1:])][1]["a.bin"])
        finally:
            _dataset_feed._CHUNK_ON_HOST = most


@case
def ragged_fields_come_as_values_padded_or_lists():
    with Scratch() as folder:
        data.shards(folder, varied(seeded(), 100), 100)
        want = data.read(folder)
        for framework in frameworks():
            common = {"batch": 10, "device": data.DEVICE, "framework": framework}
            with Dataset(folder, fields=["cloud.npy", "rag.bin"], missing="skip", ragged="padded",
                         **common) as dataset:
                for batch in dataset:
                    lengths = plain(batch["cloud.npy_lengths"])
                    longest = lengths.max(initial=0)
                    same(tuple(batch["cloud.npy"].shape), (10, longest, 4))
                    for row, key in enumerate(batch["__key__"]):
                        rows = array(want[key]["cloud.npy"])
                        same(len(rows), lengths[row])
                        got = plain(batch["cloud.npy"][row])
                        same(got[:len(rows)].tobytes(), rows.tobytes())
                        check((got[len(rows):] == 0).all(), "what fills up is not 0")
                check("cloud.npy_is_pad" not in batch, "a mask of what no sample lacks")
            with Dataset(folder, fields=["cloud.npy", "rag.bin", "img.npy"],
                         ragged={"cloud.npy": "list", "img.npy": "values"}, **common) as dataset:
                same(dataset.fields,
                     {"cloud.npy": "list", "rag.bin": "values", "img.npy": "values"})
                for batch in dataset:
                    offsets = plain(batch["img.npy"].offsets)
                    for row, key in enumerate(batch["__key__"]):
                        cloud = batch["cloud.npy"][row]
                        same(cloud is None, "cloud.npy" not in want[key])
                        image = plain(batch["img.npy"].values)[offsets[row]:offsets[row + 1]]
                        same(image.shape, (3 if "img.npy" in want[key] else 0, 4))


@case
def a_ragged_field_gives_its_rows():
    for framework in frameworks():
        with Scratch() as folder:
            rows = [np.arange(n, dtype=np.float32).reshape(-1, 1) for n in (3, 0, 2)]
            data.shards(folder, [(f"k{i}", {"x.npy": one}) for i, one in enumerate(rows)], 9)
            with Dataset(folder, batch=3, device=data.DEVICE, framework=framework,
                         shuffle=None) as dataset:
                field = next(iter(dataset))["x.npy"]
                check(isinstance(field, Ragged) and len(field) == 3, repr(field))
                same(plain(field.offsets).tolist(), [0, 3, 3, 5])
                for got, again, one in zip(field, field.unbind(), rows):
                    check((plain(got) == one).all() and (plain(again) == one).all(), "a row")
                check((plain(field[-1]) == rows[2]).all(), "the last row")
                raised(IndexError, lambda: field[3])
                if framework == "torch":
                    same([list(one.shape) for one in field.nested().unbind()], [[3, 1], [0, 1],
                                                                               [2, 1]])


@case
def place_decides_where_a_field_goes():
    with Scratch() as folder:
        data.shards(folder, varied(seeded(), 60), 60)
        want = data.read(folder)
        place = {"cam.jpg": "device", "fix.bin": "object", "img.npy": "host", "cloud.npy": "object",
                 "y.cls": "host"}
        for framework in frameworks():
            with Dataset(folder, batch=6, device=data.DEVICE, framework=framework, place=place,
                         fields=list(place), ragged={"cam.jpg": "values"}) as dataset:
                for batch in dataset:
                    for row, key in enumerate(batch["__key__"]):
                        its = want[key]
                        same(batch["fix.bin"][row], its.get("fix.bin"))
                        same(plain(batch["cam.jpg"][row]).tobytes(), its.get("cam.jpg", b""))
                        cloud = batch["cloud.npy"][row]
                        same(cloud is None, "cloud.npy" not in its)
                        if cloud is not None:
                            same(cloud.tobytes(), array(its["cloud.npy"]).tobytes(), "cloud.npy")
                        same(plain(batch["y.cls"][row]).tobytes(), its["y.cls"])


@case
def samples_are_read_one_by_one_and_in_any_order():
    source = seeded()
    with Scratch() as folder:
        samples = varied(source, 120)
        data.shards(folder, samples, 50)
        want = data.read(folder)
        for framework in frameworks():
            with Dataset(folder, batch=16, device=data.DEVICE, framework=framework,
                         rank=0, world_size=2) as dataset:
                same(dataset.samples, 120)
                for index in (0, 49, 50, 119, -1, -120):
                    one = dataset[index]
                    key = samples[index][0]
                    same(one["__key__"], key)
                    same(set(one) - {"__key__"}, set(want[key]), "its fields")
                    same(plain(one["rag.bin"]).tobytes(), want[key]["rag.bin"])
                numbers = [source.randrange(-120, 120) for _ in range(40)] + [7, 7, 7]
                for indices in (numbers, np.array(numbers), np.array([3, 4], np.uint8)):
                    batch = dataset.batch(indices)
                    same(list(batch["__key__"]), [samples[int(n)][0] for n in indices])
                    for row, key in enumerate(batch["__key__"]):
                        check_row(batch, row, want[key])
                for bad in (120, -121):
                    holds(str(raised(IndexError, dataset.batch, [0, bad])), f"sample {bad}")
                    raised(IndexError, lambda bad=bad: dataset[bad])
                raised(TypeError, lambda: dataset[1:3])
                raised(errors.InvalidArgument, dataset.batch, [])
                raised(errors.InvalidArgument, dataset.batch, [0.5])


@case
def keys_are_looked_up_late_and_behave_as_a_list():
    with Scratch() as folder:
        data.shards(folder, data.numbered(20), 20)
        with Dataset(folder, batch=5, device="cpu", framework="numpy", shuffle=None) as dataset:
            keys = next(iter(dataset))["__key__"]
            want = [f"k{n:06}" for n in range(5)]
            check(isinstance(keys, Keys), "its type")
            same((len(keys), keys[0], keys[-1], keys[1:3], list(keys)),
                 (5, want[0], want[4], want[1:3], want))
            same((repr(keys), str(keys), keys == want, want == keys, keys != want[1:]),
                 (repr(want), str(want), True, True, True))
            same((want[2] in keys, "other" in keys, keys.index(want[3]), keys.count(want[3])),
                 (True, False, 3, 1))
            again = pickle.loads(pickle.dumps(keys))
            same((type(again), again), (list, want))
            same(keys.samples.tolist(), [0, 1, 2, 3, 4])
            raised(IndexError, lambda: keys[5])
        holds(str(raised(errors.InvalidArgument, lambda: keys[0])), "closed")


@case
def what_lacks_all_fields_that_are_asked_for_is_left_out():
    with Scratch() as folder:
        left, right = {"left.npy": np.arange(3)}, {"right.npy": np.arange(4)}
        samples = [(f"a{n:03}", left if n % 2 else right) for n in range(40)]
        samples += [(f"b{n:03}", {**left, **right}) for n in range(10)]
        data.shards(folder, samples, 50)
        common = {"batch": 1, "device": "cpu", "framework": "numpy"}
        with Dataset(folder, fields=["left.npy"], **common) as dataset:
            same(len(dataset), 30)
            check(all("left.npy_is_pad" not in batch for batch in dataset), "a mask of nothing")
            # What is not in the loop can be asked for all the same.
            same(sorted(dataset[0]), ["__key__"])
        for missing, count in (("mask", 50), ("skip", 10)):
            with Dataset(folder, missing=missing, **common) as dataset:
                same((len(dataset), sum(1 for _ in dataset)), (count, count), missing)
        words = str(raised(errors.InvalidArgument, Dataset, folder, missing="error", **common))
        holds(words, "'a001' lacks field 'right.npy', as do 19 more")
        with Dataset(folder, samples=[1, 3, 41, 3], shuffle=None, **common) as dataset:
            same([key for batch in dataset for key in batch["__key__"]], ["a001", "a003", "b001"])


@case
def what_is_done_to_batches_is_done_in_order():
    with Scratch() as folder:
        data.shards(folder, data.numbered(40), 40)
        with Dataset(folder, batch=4, device="cpu", framework="numpy", shuffle=None) as dataset:
            firsts = dataset.map(lambda batch: batch["y.cls"][0])
            same(list(firsts), list(range(0, 40, 4)))
            same(list(firsts.filter(lambda n: n % 8 == 0).map(str)), ["0", "8", "16", "24", "32"])
            rows = dataset.collate(lambda samples: [(one["__key__"], one["y.cls"])
                                                    for one in samples])
            same(next(iter(rows)), [(f"k{n:06}", n) for n in range(4)])
            same(list(dataset)[0]["y.cls"], [0, 1, 2, 3])
        with Dataset(folder, batch=4, device="cpu", framework="numpy", shuffle=None,
                     collate=lambda samples: len(samples)) as dataset:
            same(list(dataset), [4] * 10)
        holds(str(raised(errors.InvalidArgument, list, firsts)), "closed")


@case
def statistics_count_what_was_done():
    with Scratch() as folder:
        stream = [(f"e/{name}/{n:06}", {f"{name}.npy": np.arange(5)},
                   {"timestamp_ns": n, "episode": "e", "stream": name})
                  for n in range(30) for name in ("cam", "imu")]
        data.shards(folder, stream, 60)
        with Dataset(folder, batch=8, device="cpu", framework="numpy") as dataset:
            same(dataset.statistics()["samples"], 0)
            for count, _ in enumerate(dataset, 1):
                same(dataset.statistics()["samples"], 8 * count)
            got = dataset.statistics()
            same((got["samples"], got["dropped"], got["padded"], got["damaged"]), (56, 4, 0, 0))
            check(got["bytes"] >= 56 * 40 and got["read_bytes"] > 0 and got["seconds"] > 0, got)
            same(set(got["streams"]), {"cam", "imu"})
            total = sum(got["streams"].values())
            check(abs(total - got["samples_per_s"]) < 1e-6 * total, got)
            check(0 <= got["stall"] <= 1 and got["stall_s"] <= got["seconds"], got)
        with Dataset(folder, batch=8, stream="cam", device="cpu", framework="numpy") as dataset:
            same(sum(1 for _ in dataset), 3)
            same(set(dataset.statistics()["streams"]), {"cam"})


@case
def a_damaged_sample_is_refused_with_its_place_or_skipped():
    source = seeded()
    with Scratch() as folder:
        data.shards(folder, data.numbered(100, size=1000), 50)
        path = os.path.join(folder, "s-0001.tar")
        key, where = "k000077", None
        import tarfile
        with tarfile.open(path) as tar:
            for member in tar:
                if member.name == key + ".bin":
                    where = member.offset_data
        with open(path, "r+b") as file:
            file.seek(where + source.randrange(1000))
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes((byte[0] ^ 1,)))
        common = {"batch": 10, "device": "cpu", "framework": "numpy", "verify": "sample"}
        with Dataset(folder, **common) as dataset:
            words = str(raised(errors.Mismatch, list, dataset))
            for part in ("s-0001.tar", str(where), key):
                holds(words, part)
            raised(errors.Mismatch, dataset.batch, [76, 77])
            same(len(dataset.batch([76, 78])["__key__"]), 2)
        with Dataset(folder, on_damage="skip", **common) as dataset:
            sizes, keys = [], []
            for batch in dataset:
                sizes.append(len(batch["__key__"]))
                same((len(batch["bin"]), len(batch["y.cls"])), (sizes[-1], sizes[-1]))
                keys += list(batch["__key__"])
            same((sorted(sizes), len(set(keys)), key in keys), ([9] + [10] * 9, 99, False))
            same(dataset.statistics()["damaged"], 1)
            raised(errors.Mismatch, lambda: dataset[77])
        with Dataset(folder, batch=1, device="cpu", framework="numpy", verify="sample",
                     on_damage="skip", shuffle=None) as dataset:
            sizes = [len(batch["bin"]) for batch in dataset]
            same((len(sizes), sizes[77], sum(sizes)), (100, 0, 99))
        with Dataset(folder, batch=10, device="cpu", framework="numpy") as dataset:
            same(sum(len(batch["__key__"]) for batch in dataset), 100)


@case
def json_that_is_none_is_an_error_with_its_key():
    with Scratch() as folder:
        data.shards(folder, [("good", {"a.json": b"{}"}), ("bad", {"a.json": b"{"})], 9)
        with Dataset(folder, batch=1, device="cpu", framework="numpy", shuffle=None) as dataset:
            words = str(raised(errors.Malformed, list, dataset))
            holds(words, "field 'a.json' of sample 'bad'")
            same(dataset[0]["a.json"], {})


@case
def a_wrong_call_is_refused_by_name():
    with Scratch() as folder:
        data.shards(folder, varied(seeded(), 20), 20)
        common = {"device": "cpu", "framework": "numpy"}
        for words, more in (
                ("batch is 0", {"batch": 0}), ("batch is 'x'", {"batch": "x"}),
                ("epoch is -1", {"epoch": -1}), ("shuffle is 'rows'", {"shuffle": "rows"}),
                ("remainder is 'keep'", {"remainder": "keep"}),
                ("verify is True", {"verify": True}),
                ("on_damage is 'x'", {"on_damage": "x"}), ("missing is 'x'", {"missing": "x"}),
                ("fields names 'nope'", {"fields": ["nope"]}), ("fields is empty", {"fields": []}),
                ("place names 'nope'", {"place": {"nope": "host"}}),
                ("place of field 'y.cls' is 'gpu'", {"place": {"y.cls": "gpu"}}),
                ("ragged names 'nope'", {"ragged": {"nope": "list"}}),
                ("ragged of field 'rag.bin' is 'x'", {"ragged": {"rag.bin": "x"}}),
                ("'any.npy' holds arrays", {"ragged": {"any.npy": "values"}}),
                ("'number.npy' holds numbers", {"ragged": {"number.npy": "padded"}}),
                ("stream names 'cam'", {"stream": "cam"}), ("decode is 'png'", {"decode": "png"}),
                ("rank 2 of 2", {"rank": 2, "world_size": 2}),
                ("and no rank", {"world_size": 2}), ("and no world size", {"rank": 0}),
                ("weights has 3 entries", {"weights": [1, 2, 3]}),
                ("weights are not all finite", {"weights": [-1] * 20}),
                ("weights are 0", {"weights": [0] * 20}), ("draws is given", {"draws": 5}),
                ("names 'elsewhere', which is no path", {"weights": {"elsewhere": 1}}),
                ("weights lacks the path", {"weights": {}}),
                ("buffers is 0", {"buffers": 0}), ("ring_bytes is 0", {"ring_bytes": 0}),
                ("samples' numbers are float64", {"samples": [0.5]})):
            holds(str(raised(errors.InvalidArgument, Dataset, folder, **{**common, **more})), words)
        raised(IndexError, Dataset, folder, samples=[20], **common)
        raised(errors.InvalidArgument, Dataset, [], **common)
        raised(errors.NotFound, Dataset, os.path.join(folder, "none.tar"), **common)
        raised(errors.Unsupported, Dataset, folder, decode="jpeg", **common)
        raised(errors.Unsupported, Dataset, folder, framework="array", device="cpu")
        raised(errors.Unsupported, Dataset, folder, framework="numpy", device="cuda:0")


@case
def the_environment_says_which_rank_this_is():
    with Scratch() as folder:
        data.shards(folder, data.numbered(64), 64)
        code = f"""
import onehop
ds = onehop.Dataset({folder!r}, batch=4, device="cpu", framework="numpy")
print(len(ds), sum(len(b["__key__"]) for b in ds))
"""
        same(python(code, RANK="1", WORLD_SIZE="4"), "4 16")
        same(python(code, RANK=None, WORLD_SIZE=None), "16 64")
        code = f"""
import onehop
try:
    onehop.Dataset({folder!r}, batch=4, device="cpu", framework="numpy")
except onehop.OnehopError as error:
    print(error)
"""
        holds(python(code, RANK=None, WORLD_SIZE="4"), "a world size of 4 and no rank")
        holds(python(code, RANK="x", WORLD_SIZE="4"), "RANK is 'x'")


@case
def numpy_alone_serves_and_importing_imports_no_framework():
    with Scratch() as folder:
        data.shards(folder, data.numbered(8), 8)
        code = f"""
import sys
import onehop
assert "numpy" not in sys.modules
ds = onehop.Dataset({folder!r}, batch=4, device="cpu", framework="numpy")
print(sum(len(b["bin"]) for b in ds), "torch" in sys.modules)
"""
        same(python(code), "8 False")


@case
def closing_ends_everything_and_again_is_no_error():
    with Scratch() as folder:
        data.shards(folder, data.numbered(4000, size=2000), 4000)
        dataset = Dataset(folder, batch=2, device="cpu", framework="numpy", ring_bytes=1 << 20)
        loops = [iter(dataset), iter(dataset)]
        firsts = [next(loop) for loop in loops]
        same(len(firsts[0]["bin"]), 2)
        dataset.close()
        dataset.close()
        holds(str(raised(errors.InvalidArgument, lambda: [*loops[0]])), "closed")
        raised(errors.InvalidArgument, len, dataset)
        raised(errors.InvalidArgument, lambda: dataset[0])
        same(firsts[1]["bin"].shape, (2, 2000))


@case
def a_dataset_of_nothing_has_no_batches():
    with Scratch() as folder:
        data.shard(os.path.join(folder, "none.tar"), [])
        for remainder in ("drop", "pad", "uneven"):
            with Dataset(folder, batch=4, device="cpu", framework="numpy",
                         remainder=remainder) as dataset:
                same((len(dataset), list(dataset), dataset.samples, dataset.epoch), (0, [], 0, 1))


class FakeMemory:
    """A buffer for the makers, of numpy's."""

    def __new__(cls, maker, content):
        flat = np.frombuffer(bytearray(content), np.uint8)
        memory = _dataset_make.Memory(flat.ctypes.data, len(flat), flat)
        if isinstance(maker, _dataset_make.TorchMaker):
            import torch
            memory.flat = memory.by_width[1] = torch.from_numpy(flat)
        return memory


@case
def rows_are_gathered_and_packed_by_every_maker():
    """A GPU's way of packing, too: its calls are torch's, which work on any memory."""
    source = seeded()
    makers = [_dataset_make.NumpyMaker()]
    if "torch" in frameworks():
        makers.append(_dataset_make.TorchMaker(HOST))
        as_on_device = _dataset_make.TorchMaker(HOST)
        for name in ("rows", "packed"):
            setattr(as_on_device, name, as_if_on_device(as_on_device, name))
        makers.append(as_on_device)
    for _ in range(200):
        size = source.choice((4096, 4099, 8192))
        content = source.randbytes(size)
        step = source.choice((1, 2, 4, 8, 64, 512))
        count = source.randrange(1, 20)
        nbytes = source.randrange(1, 200)
        begin = np.array([source.randrange((size - nbytes) // step + 1) * step
                          for _ in range(count)], np.int64)
        lengths = np.array([source.choice((0, 1, 16, source.randrange(nbytes + 1)))
                            for _ in range(count)], np.int64)
        lengths = np.minimum(lengths, size - begin)
        for maker in makers:
            memory = FakeMemory(maker, content)
            rows = maker.rows(memory, begin, nbytes)
            first = source.randrange(count)
            for part in (slice(0, first), slice(first, count)):
                taken = rows.take(part.start, part.stop)
                got = maker.typed(taken, "U8", (part.stop - part.start, nbytes))
                for row, at in zip(plain(got), begin[part]):
                    same(row.tobytes(), content[at:at + nbytes], "a gathered row")
            for align in (1, 16):
                made = plain(maker.packed(memory, begin, lengths, align)).tobytes()
                places = np.cumsum([0, *(-(-lengths // align) * align)])
                same(len(made), places[-1], "bytes of packed rows")
                for at, place, length in zip(begin, places, lengths):
                    same(made[place:place + length], content[at:at + length], "a packed row")
            zeroed = rows.take(0, count)
            maker.clear(zeroed, np.array([count - 1]))
            check((plain(maker.typed(zeroed, "U8", (count, nbytes)))[-1] == 0).all(), "cleared")


def as_if_on_device(maker, name):
    """The maker's method as it goes where memory is a GPU's."""
    def call(*arguments):
        maker._on_host = False
        maker.index = lambda array: maker._torch.from_numpy(np.ascontiguousarray(array))
        try:
            return getattr(_dataset_make.TorchMaker, name)(maker, *arguments)
        finally:
            maker._on_host = True
    return call


@case
def types_that_torch_or_numpy_lack_are_refused():
    same(_dataset_fields.itemsize("BF16"), 2)
    raised(errors.UnsupportedData, _dataset_fields.itemsize, "Q4_K")


@case
def decoders_get_the_rows_that_are_there():
    """By a torchvision that makes a picture of the bytes' sum, so that it need not be installed."""
    torch = need("torch")
    import types

    asked = []

    def decode_jpeg(rows, mode, device):
        if any(int(row[0]) == 255 for row in rows):
            raise RuntimeError("no picture\nbut other bytes")
        asked.append((mode, device, [row.device.type for row in rows]))
        return [torch.full((3, 1, 1), int(row.sum()) % 251, dtype=torch.uint8) for row in rows]

    names = ("torchvision", "torchvision.io")
    before = {name: sys.modules.get(name) for name in names}
    fake = types.SimpleNamespace(decode_jpeg=decode_jpeg,
                                 ImageReadMode=types.SimpleNamespace(RGB="RGB"))
    sys.modules.update(dict.fromkeys(names, fake))
    try:
        with Scratch() as folder:
            pictures = [bytes((n,)) * 10 for n in range(9)]
            samples = [(f"k{n}", {"a.jpg": one, "n.cls": n} if n % 3 else {"n.cls": n})
                       for n, one in enumerate(pictures)]
            data.shards(folder, samples, 9)
            with Dataset(folder, decode="jpeg", batch=3, device="cpu",
                         framework="torch") as dataset:
                for batch in dataset:
                    for got, n in zip(batch["a.jpg"], batch["n.cls"]):
                        same(None if got is None else got.flatten().tolist(),
                             [10 * n % 251] * 3 if n % 3 else None)
            check(all(one == ("RGB", "cpu", ["cpu"] * len(one[2])) for one in asked), asked)
            same(sum(len(one[2]) for one in asked), 6)
            data.shards(folder + "/b", [("good", {"a.jpg": b"1"}), ("none", {"y.cls": 1}),
                                        ("bad", {"a.jpg": b"\xff"})], 9)
            with Dataset(folder + "/b", decode="jpeg", batch=3, device="cpu", framework="torch",
                         shuffle=None) as dataset:
                words = str(raised(errors.Malformed, next, iter(dataset)))
                holds(words, "field 'a.jpg' of sample 'bad' cannot be decoded: no picture;")
    finally:
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


@case
def its_pictures_are_decoded():
    torch = need("torch")
    with Scratch() as folder:
        data.shards(folder, [("k", {"a.jpg": b"no picture"})], 9)
        try:
            from torchvision.io import decode_jpeg, encode_jpeg
        except Exception:  # none, or one of another torch
            words = str(raised(errors.Unsupported, Dataset, folder, decode="jpeg", device="cpu",
                               framework="torch"))
            holds(words, "needs torchvision")
            raise Skip("there is no torchvision of this torch: its lack is named") from None
        pictures = [encode_jpeg(torch.randint(0, 255, (3, 8 + n, 16), dtype=torch.uint8))
                    for n in range(4)]
        data.shards(folder + "/p", [(f"k{n}", {"a.jpg": one.numpy().tobytes()})
                                    for n, one in enumerate(pictures)], 9)
        with Dataset(folder + "/p", decode="jpeg", batch=4, device=data.DEVICE, framework="torch",
                     shuffle=None) as dataset:
            for got, one in zip(next(iter(dataset))["a.jpg"], pictures):
                same(got.device.type, data.DEVICE.partition(":")[0], "where a picture is")
                check(torch.equal(got, decode_jpeg(one, device=data.DEVICE)), "a picture")


if __name__ == "__main__":
    check(onehop.Dataset is Dataset, "its name")
    run()
