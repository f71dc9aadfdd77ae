"""onehop pack and ShardWriter: what comes out of shards is what went in, whatever happens between.

Shards are read back by Python's tarfile and by the places that the index names, never by what wrote
them. Expected samples are made from the inputs by rules of this file's own.
"""
import csv
import glob
import hashlib
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import time

from package import ROOT, Scratch, environment, need, raised, seeded
from tap import Skip, case, check, holds, run, same

from onehop import _library, errors, packing
from onehop import ShardWriter, FileRange, index_shard, verify_shard
from onehop._pack.input import InputOptions, Rows
from onehop._pack.notes import Notes
from onehop._shard_index import ShardIndex

PACK = [sys.executable, "-m", "onehop", "pack"]


def write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
    return path


def read(path):
    with open(path, "rb") as file:
        return file.read()


def members(path):
    """[(name, offset, bytes)] of a tar's regular files, by tarfile."""
    with tarfile.open(path, "r:") as archive:
        return [(info.name, info.offset_data, archive.extractfile(info).read())
                for info in archive if info.isreg()]


def samples(paths):
    """{key: {field: bytes}} of shards, by tarfile and the key rule; fields in small letters."""
    found = {}
    for path in paths:
        for name, _, data in members(path):
            folder, slash, last = name.rpartition("/")
            stem, _, field = last.partition(".")
            parts = found.setdefault(folder + slash + stem, {})
            check(field.lower() not in parts, f"{name} comes twice")
            parts[field.lower()] = data
    return found


def indexed(paths):
    """[(entry, {field: (member, bytes)})] by the index alone, in order."""
    found = []
    for path in paths:
        data = read(path)
        for entry in ShardIndex(path + ".onehop").entries():
            found.append((entry, {m.part.field: (m, data[m.offset:m.offset + m.size])
                                  for m in entry.members}))
    return found


def array(member, data):
    """The array that a part holds, by the index's type."""
    np = need("numpy")
    dtypes = need("onehop.dtypes")
    part = member.part
    kind = dtypes.numpy_dtype(part.dtype, False, 1)
    count = int(np.prod(part.shape, dtype=np.int64))
    return np.frombuffer(data, kind, count, part.data_offset).reshape(part.shape)


def pack(what, out, **options):
    return packing.pack(what if isinstance(what, list) else [what], out,
                        packing.PackOptions(jobs=2, verify=True, **options))


def command(*words, code=0, **more):
    """Runs the command; returns (standard output, standard error)."""
    done = subprocess.run([*PACK, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=120, env=environment(), **more)
    same(done.returncode, code, f"exit status of {words} ({done.stderr})")
    return done.stdout, done.stderr


def digests(folder, pattern="shard-*"):
    """The content of all shards and indexes of a folder."""
    return {os.path.basename(path): hashlib.sha256(read(path)).hexdigest()
            for path in sorted(glob.glob(os.path.join(folder, pattern)))}


def tree(folder, source, count, most=9000):
    """A folder tree of samples; returns what it holds, {key: {field: bytes}}."""
    made = {}
    for number in range(count):
        key = f"{source.choice(['a', 'b', 'b/c.d', 'a-b'])}/{number:05d}"
        made[key] = {}
        for field in source.sample(["jpg", "json", "cam.left.png", "cls", "npy.bin"], 3):
            data = source.randbytes(source.randrange(most))
            made[key][field] = data
            write(os.path.join(folder, f"{key}.{field}"), data)
    return made


# ---- ShardWriter --------------------------------------------------------------------------------


@case
def a_writer_takes_what_webdataset_takes():
    np = need("numpy")
    with Scratch() as folder:
        path = os.path.join(folder, "one.tar")
        blob = write(os.path.join(folder, "blob"), bytes(range(256)))
        pixels = np.arange(24, dtype=np.uint16).reshape(2, 3, 4)
        with ShardWriter(path) as writer:
            writer.write({"__key__": "d/1", "__url__": "left out", "cam.jpg": b"\xff\xd8",
                          "part.bin": FileRange(blob, 16, 4), "x.npy": pixels, "m.json": {"ä": 1},
                          "y.cls": np.int64(7), "t.txt": "grün"},
                         timestamp_ns=-5, episode="d", stream="cam", part_times_ns={"x.npy": 9})
            check(not os.path.exists(path), "there is a shard before it is finished")
        same(verify_shard(path), writer.finished[0][1])
        (entry, parts), = indexed([path])
        same((entry.key, entry.timestamp_ns, entry.episode, entry.stream, entry.rows),
             ("d/1", -5, "d", "cam", 1))
        same(parts["part.bin"][1], bytes(range(16, 20)))
        same(json.loads(parts["m.json"][1]), {"ä": 1})
        same((parts["y.cls"][1], parts["t.txt"][1].decode()), (b"7", "grün"))
        member, data = parts["x.npy"]
        same(member.part[2:4], ("U16", (2, 3, 4)))
        same(member.part.timestamp_ns, 9)
        check((array(member, data) == pixels).all(), "the array is another")
        check((np.load(write(os.path.join(folder, "x.npy"), data)) == pixels).all(), "not a .npy")
        same(samples([path]), {"d/1": {name: data for name, (_, data) in parts.items()}})


@case
def arrays_of_every_type_come_back():
    np, ml = need("numpy"), need("ml_dtypes")
    source = seeded()
    kinds = ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8",
             ml.bfloat16, ml.float8_e4m3fn, ml.float8_e5m2, ">f4", "c16", "M8[ns]"]
    shapes = [(), (3,), (0, 4), (2, 1, 3), (1,) * 8, (2,) * 9]
    with Scratch() as folder:
        path, given = os.path.join(folder, "t.tar"), {}
        with ShardWriter(path) as writer:
            for number, (kind, shape) in enumerate((k, s) for k in kinds for s in shapes):
                values = np.array(np.frombuffer(source.randbytes(2 ** 9), np.uint8) % 2)
                made = values[:int(np.prod(shape))].reshape(shape).astype(kind)
                given[f"{number:03d}"] = made if number % 2 else np.asfortranarray(made)
                writer.write({"__key__": f"{number:03d}", "a.npy": given[f"{number:03d}"]})
        verify_shard(path)
        for entry, parts in indexed([path]):
            member, data = parts["a.npy"]
            want = given[entry.key]
            if want.dtype.kind in "cM" and want.dtype.name != "complex64" or want.ndim > 8:
                same(member.part.dtype, None, entry.key)
                continue
            got = array(member, data)
            same((got.shape, got.dtype.name), (want.shape, want.dtype.newbyteorder("=").name))
            same(got.tobytes(), want.astype(got.dtype).tobytes(), entry.key)


@case
def a_pattern_cuts_shards_by_count_and_by_size():
    with Scratch() as folder:
        for limit, counts in (({"maxcount": 3}, [3, 3, 1]), ({"maxsize": 40_000}, [3, 3, 1])):
            name = os.path.join(folder, f"{len(os.listdir(folder))}-%04d.tar")
            with ShardWriter(name, start_shard=5, **limit) as writer:
                for number in range(7):
                    writer.write({"__key__": str(number), "bin": bytes(12_000)})
            same([info.samples for _, info in writer.finished], counts, str(limit))
            same([path for path, _ in writer.finished], [name % n for n in (5, 6, 7)])
        raised(errors.InvalidArgument, ShardWriter, os.path.join(folder, "x.tar"), maxcount=1)
        holds(str(raised(errors.InvalidArgument, ShardWriter, os.path.join(folder, "%s%d.tar"))),
              "no pattern")


@case
def a_failure_leaves_no_shard_and_a_refused_sample_leaves_the_others():
    with Scratch() as folder:
        path = os.path.join(folder, "x.tar")

        def broken():
            with ShardWriter(path) as writer:
                writer.write({"__key__": "1", "a.bin": b"1"})
                raise KeyError("the user's")

        raised(KeyError, broken)
        same(os.listdir(folder), [], "files")
        with ShardWriter(path) as writer:
            writer.write({"__key__": "1", "a.bin": b"1"})
            for bad, words in (({"a.bin": b""}, "__key__"), ({"__key__": "a.b", "x": b""}, "dot"),
                               ({"__key__": "2", "a b": b""}, "space"),
                               ({"__key__": "2", "x.npy": 5}, "x.npy"),
                               ({"__key__": "2", "x.bin": "text"}, "no form"),
                               ({"__key__": "1", "x.bin": b""}, "already"),
                               ({"__key__": "2", "x.bin": b"", "y\0": b""}, "NUL")):
                holds(str(raised(errors.InvalidArgument, writer.write, bad)), words)
            raised(FileNotFoundError, writer.write,
                   {"__key__": "2", "a.bin": b"", "b.bin": FileRange(folder + "/none")})
            writer.write({"__key__": "3", "a.bin": b"3"})
        same(samples([path]), {"1": {"a.bin": b"1"}, "3": {"a.bin": b"3"}})
        raised(errors.InvalidArgument, writer.write, {"__key__": "4", "a.bin": b""})


@case
def chunks_are_refused_unless_their_times_rise():
    np = need("numpy")
    with Scratch() as folder, ShardWriter(os.path.join(folder, "c.tar")) as writer:
        for times, values in (([2, 1], [1, 2]), ([], []), ([1, 2], [1])):
            raised(errors.InvalidArgument, writer.write_rows, "e/s/0", "s",
                   np.array(times, np.int64), np.array(values))
        writer.write_rows("e/s/0", "s", np.array([1, 1, 4]), np.ones((3, 2), "f4"), episode="e")
        writer.close()
        (entry, parts), = indexed([os.path.join(folder, "c.tar")])
        same((entry.timestamp_ns, entry.rows, entry.stream, entry.episode), (1, 3, "s", "e"))
        same(array(*parts["s.time.npy"]).tolist(), [1, 1, 4])


@case
def an_index_is_made_for_a_tar_of_others():
    with Scratch() as folder:
        path = os.path.join(folder, "theirs.tar")
        with tarfile.open(path, "w") as archive:
            archive.add(write(os.path.join(folder, "f"), b"12345"), "k/1.txt")
        raised(errors.NotFound, verify_shard, path)
        same((index_shard(path).samples, verify_shard(path).members), (1, 1))
        data = bytearray(read(path))
        data[members(path)[0][1]] ^= 1
        write(path, data)
        raised(errors.Mismatch, verify_shard, path)


# ---- folder trees -------------------------------------------------------------------------------


@case
def a_folder_tree_comes_back_byte_for_byte():
    source = seeded()
    with Scratch() as folder:
        made = tree(os.path.join(folder, "in"), source, 300)
        for number, options in enumerate(({}, {"align": "member", "alignment": 1024},
                                          {"align": "none"}, {"align": "member", "pad": "pax"},
                                          {"pad": "dir"}, {"shard_size": 1 << 17})):
            out = os.path.join(folder, f"out{number}")
            report = pack(os.path.join(folder, "in"), out, **options)
            same(samples(report["shards"]), made, f"samples with {options}")
            by_index = {entry.key: {name: data for name, (_, data) in parts.items()}
                        for entry, parts in indexed(report["shards"])}
            same(by_index, made, f"samples by the index with {options}")
            same((report["samples"], report["members"]), (300, 900))
            same(report["notes"]["lists"], {})
        check(len(report["shards"]) > 3, "the size cut nothing")
        sizes = [os.path.getsize(path) for path in report["shards"]]
        check(max(sizes) < 2 * min(sizes), f"shards are of sizes {sizes}")


@case
def small_parts_share_a_member_and_the_index_has_each():
    np = need("numpy")
    source = seeded()
    with Scratch() as folder:
        root = os.path.join(folder, "in")
        made = tree(root, source, 120)
        values = np.arange(7, dtype=np.float32)
        for number in range(5):
            np.save(os.path.join(root, f"a/{number:05d}.x.npy"), values)
            made.setdefault(f"a/{number:05d}", {})["x.npy"] = read(
                os.path.join(root, f"a/{number:05d}.x.npy"))
        for options in ({}, {"align": "member"}, {"shard_count": 3}):
            report = pack(root, os.path.join(folder, f"out{len(os.listdir(folder))}"),
                          join_below=5000, **options)
            found = {entry.key: {name: data for name, (_, data) in parts.items()}
                     for entry, parts in indexed(report["shards"])}
            same(found, made)
            for key, seen in samples(report["shards"]).items():
                small = {name for name, data in made[key].items() if len(data) < 5000}
                small = small if len(small) > 1 else set()
                same(set(seen), (set(made[key]) - small) | ({"joined.bin"} if small else set()))
                for name in small:
                    check(made[key][name] in seen["joined.bin"], f"{key}.{name} is lost")
            types = [array(*parts["x.npy"]).tolist() for _, parts in indexed(report["shards"])
                     if "x.npy" in parts]
            same(types, [values.tolist()] * 5)
            holds(str(report["notes"]["lists"]["warnings"]), "field cls lies in joined.bin")
        again = pack(report["shards"], os.path.join(folder, "again"))
        same(samples(again["shards"]), made, "parts that are no longer joined")
        path = report["shards"][0]
        data = bytearray(read(path))
        entry, parts = next((e, p) for e, p in indexed([path])
                            if any(m.size and m.offset % 512 for m, _ in p.values()))
        member = next(m for m, _ in parts.values() if m.size and m.offset % 512)
        data[member.offset] ^= 1
        write(path, data)
        raised(errors.Mismatch, verify_shard, path)


@case
def webdataset_sees_the_same_in_the_shards_as_in_the_folder():
    wds = need("webdataset")
    source = seeded()
    with Scratch() as folder:
        root = os.path.join(folder, "in")
        tree(root, source, 40)
        write(os.path.join(root, "UP/1.JPG"), b"large letters")
        plain = os.path.join(folder, "plain.tar")
        subprocess.run(["tar", "--sort=name", "-C", root, "-cf", plain,
                        *sorted(os.listdir(root))], check=True)
        shards = pack(root, os.path.join(folder, "out"), shard_count=3)["shards"]

        def seen(urls):
            return {sample["__key__"]: {name: data for name, data in sample.items()
                                        if not name.startswith("__")}
                    for sample in wds.WebDataset(urls, shardshuffle=False)}

        same(seen(shards), seen([plain]))
        same(len(shards), 3)


@case
def names_are_rewritten_or_refused_and_what_cannot_be_a_part_is_listed():
    with Scratch() as folder:
        root = os.path.join(folder, "in")
        for name in ("a b/0 1.jpg", "a b/0 1.json", "é/x.txt", ".DS_Store", "d/._0.jpg", "noext",
                     "__pycache__/x.txt", "d/0.txt", "22.05.png", "22.06.png"):
            write(os.path.join(root, name), name.encode())
        os.symlink("d/0.txt", os.path.join(root, "link.txt"))
        os.symlink("nowhere", os.path.join(root, "broken.txt"))
        os.symlink("d", os.path.join(root, "folder"))
        os.mkfifo(os.path.join(root, "pipe.txt"))
        report = pack(root, os.path.join(folder, "out"))
        found = samples(report["shards"])
        same(found["a_b/0_1"], {"jpg": b"a b/0 1.jpg", "json": b"a b/0 1.json"})
        same((found["_/x"]["txt"], found["link"]["txt"]), ("é/x.txt".encode(), b"d/0.txt"))
        same(sorted(found["22"]), ["05.png", "06.png"])
        lists = report["notes"]["lists"]
        check(["a b/0 1.jpg", "a_b/0_1.jpg"] in lists["renamed"]["first"], str(lists["renamed"]))
        same({name for name, _ in lists["skipped"]["first"]},
             {".DS_Store", "d/._0.jpg", "noext", "__pycache__", "broken.txt", "folder",
              "pipe.txt"})
        holds(lists["warnings"]["first"][0][0], "ended the key")
        _, said = command(root, "-o", os.path.join(folder, "no"), "--names", "refuse", code=2)
        holds(said, "'0 1'")
        check(not os.path.exists(os.path.join(folder, "no")), "a folder was made")


@case
def names_that_would_fall_together_are_refused():
    for one, other, words in (("a b/1.txt", "a_b/1.txt", "a_b"), ("1 .txt", "1_.txt", "1_"),
                              ("1.JPG", "1.jpg", "jpg"), ("1.a b", "1.a_b", "a_b")):
        with Scratch() as folder:
            write(os.path.join(folder, "in", one), b"1")
            write(os.path.join(folder, "in", other), b"2")
            error = raised(errors.InvalidArgument, pack, os.path.join(folder, "in"),
                           os.path.join(folder, "out"))
            holds(str(error), words)


@case
def folders_keep_apart_and_equal_names_are_refused():
    with Scratch() as folder:
        roots = [os.path.join(folder, name) for name in ("x", "y", "z/x")]
        for root in roots:
            write(os.path.join(root, "1.txt"), root.encode())
        report = pack(roots[:2], os.path.join(folder, "out"))
        same(samples(report["shards"]), {"x/1": {"txt": roots[0].encode()},
                                         "y/1": {"txt": roots[1].encode()}})
        raised(errors.InvalidArgument, pack, [roots[0], roots[2]], os.path.join(folder, "o"))


# ---- logs ---------------------------------------------------------------------------------------


def clock(source, rate, seconds):
    """Times with drift, jitter, a gap and repeats, sorted, from below zero on."""
    at, made = -10 ** 9, []
    while at < seconds * 10 ** 9:
        made.append(at)
        at += int(10 ** 9 / rate * source.uniform(0, 2.1))
        if source.random() < 0.01:
            at += 10 ** 9 // 2
        if source.random() < 0.02:
            made.append(made[-1])
    return made


def log(folder, source):
    """A folder of files and rows of its manifest; (rows, {episode: {stream: [(time, bytes)]}})."""
    rows, want = [], {}
    for episode in ("drive 2", "drive-1"):
        streams = want.setdefault(episode.replace(" ", "_"), {})
        frames = streams["cam_left"] = []
        for number, at in enumerate(clock(source, 20, 3)):
            data = source.randbytes(source.randrange(1, 5000))
            path = f"{episode}/cam/{number}.5.jpg"
            write(os.path.join(folder, path), data)
            frames.append((at, data))
            rows.append({"episode": episode, "stream": "cam.left", "timestamp_ns": at,
                         "path": path})
        sweeps = streams["lidar"] = []
        for number, at in enumerate(clock(source, 10, 3)):
            data = source.randbytes(20 * source.randrange(1, 50))
            path = f"{episode}/lidar/{number}.pcd.bin"
            write(os.path.join(folder, path), b"head" + data + b"tail")
            sweeps.append((at, data))
            rows.append({"episode": episode, "stream": "lidar", "timestamp_ns": at, "path": path,
                         "offset": 4, "size": len(data), "dtype": "float32",
                         "shape": f"{len(data) // 20}x5"})
        touch, blob = [], b""
        for at in clock(source, 300, 3):
            data = source.randbytes(24)
            rows.append({"episode": episode, "stream": "touch", "timestamp_ns": at,
                         "path": f"{episode}/touch.bin", "offset": len(blob), "size": 24,
                         "dtype": "F32", "shape": "2x3"})
            blob += data
            touch.append((at, data))
        streams["touch"] = touch
        write(os.path.join(folder, f"{episode}/touch.bin"), blob)
    source.shuffle(rows)
    return rows, want


def write_csv(path, rows):
    names = ["episode", "stream", "timestamp_ns", "path", "offset", "size", "dtype", "shape"]
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, names)
        table.writeheader()
        table.writerows(rows)
    return path


def unpacked(shards):
    """{episode: {stream: [(time, bytes)]}}, chunks by their rows; times must rise in an episode."""
    found, latest = {}, {}
    for entry, parts in indexed(shards):
        place = (entry.timestamp_ns, entry.stream)
        check(latest.get(entry.episode, place) <= place, f"{entry.key} lies behind {place}")
        latest[entry.episode] = place
        records = found.setdefault(entry.episode, {}).setdefault(entry.stream, [])
        same(entry.key, f"{entry.episode}/{entry.stream}/{len(records):09d}")
        clocked = parts.pop(f"{entry.stream}.time.npy", None)
        (name, (member, data)), = parts.items()
        check(name.startswith(f"{entry.stream}."), f"{entry.key} has field {name}")
        if clocked is None:
            records.append((entry.timestamp_ns, data))
            continue
        times, values = array(*clocked), array(member, data)
        same((len(values), int(times[0])), (entry.rows, entry.timestamp_ns))
        records += [(int(at), row.tobytes()) for at, row in zip(times, values)]
    return found


def in_any_order(log):
    """Records of one time in an order of their own."""
    return {episode: {name: sorted(records) for name, records in streams.items()}
            for episode, streams in log.items()}


@case
def a_manifest_is_packed_in_the_order_of_time():
    need("numpy")
    source = seeded()
    with Scratch() as folder:
        root = os.path.join(folder, "in")
        rows, want = log(root, source)
        manifest = write_csv(os.path.join(folder, "m.csv"), rows)
        for number, options in enumerate(({}, {"shard_count": 4, "chunk_bytes": 4096})):
            report = pack(root, os.path.join(folder, f"out{number}"),
                          inputs=InputOptions(manifest=manifest), **options)
            same(in_any_order(unpacked(report["shards"])), in_any_order(want))
            streams = report["notes"]["streams"]
            same({name: stream["records"] for name, stream in streams.items()},
                 {name: sum(len(streams[name]) for streams in want.values())
                  for name in ("cam_left", "lidar", "touch")})
            check(streams["touch"]["samples"] < streams["touch"]["records"] / 20, "no chunks")
            check(ShardIndex(report["shards"][0] + ".onehop").samples, "an empty shard")
            holds(str(report["notes"]["lists"]["renamed"]["first"]), "cam_left")
        entry, parts = next((e, p) for e, p in indexed(report["shards"]) if e.stream == "lidar")
        (member, data), = parts.values()
        same((member.part.field, member.part.dtype, member.part.shape[1:]),
             ("lidar.pcd.bin", "F32", (5,)))


@case
def streams_are_chunked_or_not_as_asked():
    np = need("numpy")
    with Scratch() as folder:
        rows = []
        for number in range(50):
            for stream, size in (("big", 8192), ("small", 8)):
                path = f"{stream}-{number}.npy"
                np.save(os.path.join(folder, path), np.full(size // 8, number, np.float64))
                rows.append({"stream": stream, "timestamp_ns": number, "path": path})
        manifest = write_csv(os.path.join(folder, "m.csv"), rows)

        def counts(**options):
            out = os.path.join(folder, f"out-{len(os.listdir(folder))}")
            report = pack(folder, out, inputs=InputOptions(manifest=manifest, **options))
            for entry, parts in indexed(report["shards"]):
                values = array(*parts[f"{entry.stream}.npy"])
                times = array(*parts.get(f"{entry.stream}.time.npy", (None, b""))) if (
                    entry.rows > 1) else np.array([entry.timestamp_ns])
                same(values.reshape(len(times), -1)[:, 0].tolist(), times.tolist())
            return {name: stream["samples"]
                    for name, stream in report["notes"]["streams"].items()}

        same(counts(), {"big": 50, "small": 1})
        same(counts(columns=frozenset(["big"])), {"big": 1, "small": 1})
        same(counts(rows=frozenset(["small"])), {"big": 50, "small": 50})
        np.save(os.path.join(folder, "small-7.npy"), np.zeros(1, np.int64))
        error = raised(errors.Malformed, counts)
        holds(str(error), "small-7.npy")
        holds(str(error), "--rows small")
        np.save(os.path.join(folder, "small-7.npy"), np.full(3, 7.0))
        same(counts()["small"], 50)
        raised(errors.InvalidArgument, counts, columns=frozenset(["small"]))


@case
def wrong_manifests_are_refused_by_row():
    with Scratch() as folder:
        write(os.path.join(folder, "f.bin"), bytes(40))
        good = {"stream": "s", "timestamp_ns": 5, "path": "f.bin"}
        manifest = os.path.join(folder, "m.csv")
        for change, words in (({"path": "g.bin"}, "row 2"), ({"timestamp_ns": "x"}, "no integer"),
                              ({"timestamp_ns": ""}, "timestamp_ns is empty"),
                              ({"timestamp_ns": 2 ** 63}, "out of range"),
                              ({"offset": 30, "size": 11}, "beyond the end"),
                              ({"offset": -1}, "out of range"),
                              ({"dtype": "F31"}, "'F31'"), ({"dtype": "F32", "shape": "3"}, "40"),
                              ({"dtype": "F32", "shape": "3y"}, "480x640x3"),
                              ({"shape": "3"}, "without a dtype"), ({"stream": "/"}, None)):
            write_csv(manifest, [good, {**good, **change}])
            options = InputOptions(manifest=manifest)
            if words is None:
                pack(folder, os.path.join(folder, "out"), inputs=options)
                continue
            error = raised(errors.OnehopError, pack, folder, os.path.join(folder, "out"),
                           inputs=options)
            holds(str(error), words)
            holds(str(error), "row 2")
        write(manifest, b"stream,path\na,b\n")
        holds(str(raised(errors.Malformed, pack, folder, os.path.join(folder, "o"),
                         inputs=InputOptions(manifest=manifest))), "no column timestamp_ns")
        write(manifest, b"\xff\xfe\x00")
        raised(errors.Malformed, pack, folder, os.path.join(folder, "o"),
               inputs=InputOptions(manifest=manifest))


@case
def a_manifest_in_parquet_is_that_in_csv():
    arrow, parquet = need("pyarrow"), need("pyarrow.parquet")
    source = seeded()
    with Scratch() as folder:
        root = os.path.join(folder, "in")
        rows, _ = log(root, source)
        shards = []
        for name in ("m.csv", "m.parquet"):
            path = os.path.join(folder, name)
            if name == "m.csv":
                write_csv(path, rows)
            else:
                for row in rows:
                    if "shape" in row:
                        row["shape"] = [int(dim) for dim in row["shape"].split("x")]
                names = ["episode", "stream", "timestamp_ns", "path", "offset", "size", "dtype",
                         "shape"]
                parquet.write_table(arrow.Table.from_pylist(
                    [{name: row.get(name) for name in names} for row in rows]), path)
            pack(root, os.path.join(folder, name + ".out"), inputs=InputOptions(manifest=path))
            shards.append(digests(os.path.join(folder, name + ".out")))
        same(shards[0], shards[1])
        write(path, read(path)[:-9])
        raised(errors.Malformed, pack, root, os.path.join(folder, "o"),
               inputs=InputOptions(manifest=path))


@case
def a_nuscenes_tree_equals_an_independent_decode():
    np = need("numpy")
    source = seeded()
    with Scratch() as folder:
        tables = {"scene": [], "sample": [], "sensor": [], "calibrated_sensor": [],
                  "sample_data": []}
        want = {}
        for channel in ("CAM_FRONT", "LIDAR_TOP", "RADAR_FRONT"):
            tables["sensor"].append({"token": f"s{channel}", "channel": channel, "modality": "x"})
            tables["calibrated_sensor"].append({"token": f"c{channel}",
                                                "sensor_token": f"s{channel}"})
        for scene in ("scene-0061", "scene-0103"):
            tables["scene"].append({"token": f"t{scene}", "name": scene})
            for number in range(8):
                token = f"{scene}{number}"
                tables["sample"].append({"token": token, "scene_token": f"t{scene}"})
                for channel, ends in (("CAM_FRONT", "jpg"), ("LIDAR_TOP", "pcd.bin"),
                                      ("RADAR_FRONT", "pcd")):
                    at = 1532402927647951 + source.randrange(10 ** 7)
                    key = source.choice(("samples", "sweeps"))
                    path = f"{key}/{channel}/n015+0800__{channel}__{at}{number}.{ends}"
                    data = source.randbytes(20 * source.randrange(1, 99))
                    write(os.path.join(folder, path), data)
                    want.setdefault(scene, {}).setdefault(channel, []).append((at * 1000, data))
                    tables["sample_data"].append({
                        "token": path, "sample_token": token, "filename": path, "timestamp": at,
                        "calibrated_sensor_token": f"c{channel}", "is_key_frame": key == "samples"})
        source.shuffle(tables["sample_data"])
        for name, table in tables.items():
            write(os.path.join(folder, "v1.0-mini", f"{name}.json"), json.dumps(table).encode())
        out = os.path.join(folder, "out")
        report = pack(folder, out, inputs=InputOptions(nuscenes=True))
        found = {}
        for entry, parts in indexed(report["shards"]):
            (member, data), = parts.values()
            records = found.setdefault(entry.episode, {}).setdefault(entry.stream, [])
            records.append((entry.timestamp_ns, data))
            if entry.stream == "LIDAR_TOP":
                decoded = np.frombuffer(data, "<f4").reshape(-1, 5)
                same(array(member, data).tobytes(), decoded.tobytes())
                same(member.part.shape, decoded.shape)
        same(in_any_order(found), in_any_order(want))
        tables["sample_data"][3]["sample_token"] = "nobody's"
        write(os.path.join(folder, "v1.0-mini/sample_data.json"),
              json.dumps(tables["sample_data"]).encode())
        raised(errors.Malformed, pack, folder, out, inputs=InputOptions(nuscenes=True))
        for broken in (b"{", b"{}", b"[3]", b'[{"token": 3}]'):
            write(os.path.join(folder, "v1.0-mini/sensor.json"), broken)
            raised(errors.Malformed, pack, folder, out, inputs=InputOptions(nuscenes=True))


def chunk_sizes(pieces, most):
    """Rows of each chunk: a piece that fits a chunk is in one, others fill what there is."""
    made = []
    for piece in pieces:
        if not made or piece <= most < made[-1] + piece:
            made.append(0)
        for _ in range(piece):
            if made[-1] == most:
                made.append(0)
            made[-1] += 1
    return [size for size in made if size]


@case
def rows_are_chunked_like_a_simple_model_says():
    np = need("numpy")
    from onehop._pack.rows import in_order
    source = seeded()
    for trial in range(200):
        streams = {f"s{n}": sorted(source.randrange(60) for _ in range(source.randrange(1, 80)))
                   for n in range(source.randrange(1, 4))}
        items = []
        for name, times in streams.items():
            begin = 0
            while begin < len(times):
                end = min(begin + source.randrange(1, 20), len(times))
                items.append(Rows("e", name, begin, np.array(times[begin:end]),
                                  np.arange(begin, end, dtype=np.int32)))
                begin = end
        items.sort(key=lambda rows: rows.times_ns[0])
        most = source.randrange(1, 30)
        got = list(in_order(items, Notes(), chunk_bytes=12 * most,
                                       apart=frozenset(["s2"])))
        same([(s.timestamp_ns, s.stream) for s in got],
             sorted((s.timestamp_ns, s.stream) for s in got), f"order in trial {trial}")
        for name, times in streams.items():
            mine = [s for s in got if s.stream == name]
            sizes = [1] * len(times) if name == "s2" else chunk_sizes(
                [len(rows.times_ns) for rows in items if rows.stream == name], most)
            begins = np.cumsum([0, *sizes[:-1]]).tolist()
            same([s.rows for s in mine], sizes, "rows")
            same([s.key for s in mine], [f"e/{name}/{at:09d}" for at in begins])
            same([s.timestamp_ns for s in mine], [times[at] for at in begins])
    late = [Rows("e", "s", 0, np.array([5]), np.zeros(1)), Rows("e", "s", 1, np.array([4]),
                                                                np.zeros(1))]
    raised(errors.Malformed, list, in_order(late, Notes()))


@case
def runs_are_cut_like_a_simple_model_says():
    np = need("numpy")
    from onehop._pack.runs import cuts, runs
    source = seeded()
    for trial in range(300):
        count, row_bytes = source.randrange(1, 60), source.choice([0, 8, 100, 492, 993, 5000])
        span = source.choice([0, 10**9, 5 * 10**9])
        episodes = sorted(source.randrange(3) for _ in range(count))
        times = [at for episode in range(3) for at in sorted(
            source.randrange(-span, span + 1) for _ in range(episodes.count(episode)))]
        begins, places = runs(np.array(times), row_bytes, 1000,
                                         np.array(episodes, np.int32))
        most, model = max(1, 1000 // (row_bytes + 8)), []
        for episode, at in zip(episodes, times):
            run = model[-1] if model else None
            if not run or run[0][:2] != (episode, at // 10**9) or len(run) == most:
                run = []
                model.append(run)
            run.append((episode, at // 10**9, at))
        same(np.flatnonzero(begins).tolist(), np.cumsum([0, *map(len, model[:-1])]).tolist(),
             f"runs of trial {trial}")
        same(places.tolist(), [run[0][2] for run in model for _ in run])
        costs, limit = [source.randrange(1, 9) for _ in range(count)], source.randrange(1, 60)
        made, want, at = cuts(np.array(costs), begins, limit), [], 0
        for run in model:
            cost = sum(costs[at:at + len(run)])
            if not want or want[-1][2] + cost > limit:
                want.append([at, at, 0])
            at += len(run)
            want[-1][1:] = at, want[-1][2] + cost
        same([list(one) for one in made], want, f"jobs of trial {trial}")


@case
def a_quick_stream_beside_raw_cameras_makes_a_chunk_of_each_second():
    """Jobs hold a few frames, which must not cut a stream of a thousand rows a second."""
    np = need("numpy")
    source = seeded()
    with Scratch() as folder:
        root, frame, seconds = os.path.join(folder, "in"), 100_000, 4
        begin, rows = source.randrange(10**9), []
        for camera in ("left", "right"):
            write(f"{root}/{camera}.raw", source.randbytes(frame * 30 * seconds))
            rows += [{"stream": camera, "timestamp_ns": begin + number * 10**9 // 30,
                      "path": f"{camera}.raw", "offset": number * frame, "size": frame}
                     for number in range(30 * seconds)]
        touch = np.arange(3000 * seconds, dtype=np.float32).reshape(-1, 3)
        write(f"{root}/touch.bin", touch.tobytes())
        clocked = [begin + number * 10**6 for number in range(1000 * seconds)]
        rows += [{"stream": "touch", "timestamp_ns": at, "path": "touch.bin", "offset": 12 * number,
                  "size": 12, "dtype": "F32", "shape": "3"} for number, at in enumerate(clocked)]
        manifest = write_csv(os.path.join(folder, "m.csv"), rows)
        report = pack(root, os.path.join(folder, "out"), inputs=InputOptions(manifest=manifest),
                      shard_size=4 << 20)
        check(len(report["shards"]) >= 5, f"{len(report['shards'])} shards: nothing was cut")
        chunks = [(entry, parts) for entry, parts in indexed(report["shards"])
                  if entry.stream == "touch"]
        found = [array(*parts["touch.time.npy"]).tolist() for _, parts in chunks]
        want = [[at for at in clocked if at // 10**9 == second]
                for second in range(seconds + 1)]
        same([len(one) for one in found], [len(one) for one in want], "rows of chunks")
        same(found, want, "times of chunks")
        check(np.array_equal(np.concatenate([array(*parts["touch.npy"]) for _, parts in chunks]),
                             touch), "touch")
        unpacked(report["shards"])


# ---- tars and tables ----------------------------------------------------------------------------


@case
def tars_are_packed_anew_with_all_that_is_known_of_them():
    np = need("numpy")
    source = seeded()
    with Scratch() as folder:
        root = os.path.join(folder, "in")
        rows, want = log(root, source)
        first = pack(root, os.path.join(folder, "first"), inputs=InputOptions(
            manifest=write_csv(os.path.join(folder, "m.csv"), rows)))
        theirs = os.path.join(folder, "theirs.tar")
        with tarfile.open(theirs, "w") as archive:
            for number in range(20):
                archive.add(write(os.path.join(folder, "f"), source.randbytes(99)),
                            f"k{number // 2}.{'ab'[number % 2]}.bin")
        before = set(os.listdir(folder))
        second = pack([*first["shards"], theirs], os.path.join(folder, "second"), align="member",
                      shard_count=2)
        same(set(os.listdir(folder)) - before, {"second"}, "files beside the inputs")
        same(samples(second["shards"]), {**samples(first["shards"]), **samples([theirs])})
        known = {entry.key: (entry[2:], {name: member.part for name, (member, _) in parts.items()})
                 for entry, parts in indexed(first["shards"])}
        again = {entry.key: (entry[2:], {name: member.part for name, (member, _) in parts.items()})
                 for entry, parts in indexed(second["shards"])}
        for key, value in known.items():
            same(again[key], value, key)
        same(np.array([member.offset % 4096 for _, parts in indexed(second["shards"])
                       for member, _ in parts.values()]).any(), np.False_)


@case
def damaged_and_compressed_tars_are_refused():
    with Scratch() as folder:
        path = os.path.join(folder, "t.tar")
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
            for number in range(3):
                archive.add(write(os.path.join(folder, "f"), bytes(999)), f"{number}.bin")
        data = read(path)
        for broken in (data[:1800], data[:512 * 3] + bytes(512) + data[512 * 4:],
                       data[:513 * 3] + b"x" + data[513 * 3 + 1:]):
            write(path, broken)
            error = raised(errors.OnehopError, pack, path, os.path.join(folder, "out"))
            holds(str(error), path)
            check(not os.path.exists(os.path.join(folder, "out")), "a folder was made")
        raised(errors.UnsupportedData, pack, write(os.path.join(folder, "t.tar.gz"), b"x"),
               os.path.join(folder, "out"))


@case
def damaged_inputs_are_refused_in_words_or_packed():
    arrow, parquet = need("pyarrow"), need("pyarrow.parquet")
    source = seeded()
    with Scratch() as folder:
        root = os.path.join(folder, "in")
        rows, _ = log(root, source)
        manifest = write_csv(os.path.join(folder, "m.csv"), rows[:40])
        table = arrow.table({"timestamp_ns": list(range(50)), "v": [float(n) for n in range(50)],
                             "s": ["x" * n for n in range(50)]})
        parquet.write_table(table, os.path.join(folder, "t.parquet"))
        with arrow.OSFile(os.path.join(folder, "t.arrow"), "wb") as file:
            with arrow.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
        pack(root, os.path.join(folder, "whole"), inputs=InputOptions(manifest=manifest))
        shard = os.path.join(folder, "whole/shard-000000.tar")
        kinds = {"m.csv": (root, {"manifest": manifest}), "t.parquet": (None, {}),
                 "t.arrow": (None, {}), "whole/shard-000000.tar": (shard, {}),
                 "whole/shard-000000.tar.onehop": (shard, {})}
        refused = 0
        for trial in range(300):
            name = source.choice(list(kinds))
            what, options = kinds[name]
            path = os.path.join(folder, name)
            good = read(path)
            bad = bytearray(good[:source.choice((len(good), source.randrange(len(good))))])
            for _ in range(source.randrange(1, 4)):
                if bad:
                    at = source.choice((source.randrange(len(bad)), len(bad) - 1, 0))
                    bad[max(at - source.randrange(64), 0)] = source.randrange(256)
            write(path, bad)
            try:
                plan = packing.make_plan([what or path], folder, packing.PackOptions(
                    inputs=InputOptions(**options)))
                for job in (job for shard in plan.shards for job in shard.jobs):
                    try:
                        list(job.items(Notes()))
                    except Exception as error:  # as a process that packs does
                        raise need("onehop._pack.work").as_ours(error) from error
            except errors.OnehopError as error:
                refused += 1
                check(str(error), "no words")
            finally:
                write(path, good)
        check(refused > 50, f"only {refused} were refused")


@case
def a_table_of_samples_becomes_parts():
    arrow, parquet, np = need("pyarrow"), need("pyarrow.parquet"), need("numpy")
    source = seeded()
    with Scratch() as folder:
        count = 60
        images = [b"\xff\xd8\xff" + source.randbytes(source.randrange(3000)) for _ in range(count)]
        tensor = np.arange(count * 6, dtype=np.float32).reshape(count, 2, 3)
        table = arrow.table({
            "cam": [None if n == 5 else image for n, image in enumerate(images)],
            "label": list(range(count)), "score": [n / 3 for n in range(count)],
            "caption": [f"ü{n}" for n in range(count)],
            "box": [[float(n)] * (n % 4) for n in range(count)],
            "tags": [{"a": n, "t": None} for n in range(count)],
            "img": [{"bytes": image, "path": None} for image in images],
            "seen": [n % 2 == 0 for n in range(count)],
            "mel": arrow.FixedShapeTensorArray.from_numpy_ndarray(tensor)})
        parquet.write_table(table, os.path.join(folder, "t.parquet"), row_group_size=16)
        with arrow.OSFile(os.path.join(folder, "t.arrow"), "wb") as file:
            with arrow.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table, max_chunksize=16)
        with arrow.OSFile(os.path.join(folder, "t.ipc"), "wb") as file:
            with arrow.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table, max_chunksize=16)
        for name in ("t.parquet", "t.arrow", "t.ipc"):
            report = pack(os.path.join(folder, name), os.path.join(folder, name + ".out"),
                          shard_count=2)
            found = indexed(report["shards"])
            same([entry.key for entry, _ in found], [f"t/{n:09d}" for n in range(count)])
            for n, (_, parts) in enumerate(found):
                same("cam.jpg" in parts, n != 5)
                same(parts["img.jpg"][1], images[n])
                same(parts["label.cls"][1], str(n).encode())
                same(parts["seen.cls"][1], str(int(n % 2 == 0)).encode())
                same(parts["caption.txt"][1].decode(), f"ü{n}")
                same(float(array(*parts["score.npy"])), n / 3)
                same(array(*parts["box.npy"]).tolist(), [float(n)] * (n % 4))
                same(json.loads(parts["tags.json"][1]), {"a": n, "t": None})
                same(array(*parts["mel.npy"]).tolist(), tensor[n].tolist())
        write(os.path.join(folder, "t.parquet"), read(os.path.join(folder, "t.parquet"))[:-20])
        raised(errors.Malformed, pack, os.path.join(folder, "t.parquet"),
               os.path.join(folder, "out"))


@case
def a_table_with_times_becomes_streams():
    arrow, parquet, np = need("pyarrow"), need("pyarrow.parquet"), need("numpy")
    source = seeded()
    with Scratch() as folder:
        count, episodes = 900, []
        for name, size in (("b", 400), ("a", 500)):
            episodes += [name] * size
        times = [10 ** 9 * (n // 3) for n in range(400)] + [7 * n for n in range(500)]
        joints = np.arange(count * 7, dtype=np.float32).reshape(count, 7)
        images = [source.randbytes(50) if n % 30 == 0 else None for n in range(count)]
        table = arrow.table({
            "episode": episodes, "timestamp_ns": arrow.array(times, arrow.timestamp("ns")),
            "joints": arrow.FixedSizeListArray.from_arrays(joints.reshape(-1), 7),
            "force": arrow.array(range(count), arrow.int16()), "cam.bin": images})
        path = os.path.join(folder, "log.parquet")
        parquet.write_table(table, path, row_group_size=128)
        for shards in (1, 3):
            report = pack(path, os.path.join(folder, f"out{shards}"), shard_count=shards)
            rows = {}
            for entry, parts in indexed(report["shards"]):
                if entry.stream == "cam":
                    number = int(entry.key.rpartition("/")[2])
                    number += 400 if entry.episode == "a" else 0
                    (member, data), = parts.values()
                    same((data, entry.timestamp_ns), (images[number], times[number]))
                    rows.setdefault("cam", []).append(number)
                    continue
                at = array(*parts[f"{entry.stream}.time.npy"])
                values = array(*parts[f"{entry.stream}.npy"])
                rows.setdefault((entry.episode, entry.stream), []).extend(
                    zip(at.tolist(), values.tolist()))
            same(sorted(rows.pop("cam")), list(range(0, count, 30)))
            for episode, begin, end in (("b", 0, 400), ("a", 400, 900)):
                same(rows[episode, "joints"], list(zip(times[begin:end],
                                                       joints[begin:end].tolist())))
                same(rows[episode, "force"], list(zip(times[begin:end], range(begin, end))))
        bad = table.set_column(1, "timestamp_ns", arrow.array(times[::-1]))
        parquet.write_table(bad, path)
        holds(str(raised(errors.Malformed, pack, path, os.path.join(folder, "out"))), "falls")
        parquet.write_table(table.take(list(range(0, count, 2)) + list(range(1, count, 2))), path)
        holds(str(raised(errors.Malformed, pack, path, os.path.join(folder, "out"))), "two places")


@case
def arrow_files_are_valid_and_their_buffers_begin_on_pages():
    arrow = need("pyarrow")
    source = seeded()
    with Scratch() as folder:
        made = tree(os.path.join(folder, "in"), source, 200, 200_000)
        report = pack(os.path.join(folder, "in"), os.path.join(folder, "out"), format="arrow",
                      shard_size=20 << 20)
        check(len(report["shards"]) > 1, "one shard")
        found = {}
        for path in report["shards"]:
            with arrow.memory_map(path) as source_map:
                reader = arrow.ipc.open_file(source_map)
                for number in range(reader.num_record_batches):
                    batch = reader.get_batch(number)
                    batch.validate(full=True)
                    for column in batch.columns:
                        for buffer in column.buffers():
                            if buffer is not None and buffer.size:
                                same(buffer.address % 4096, 0, f"address in {path}")
                    for row in batch.to_pylist():
                        found[row["__key__"]] = {name: value for name, value in row.items()
                                                 if "." in name or name in ("jpg", "json", "cls")
                                                 if value is not None}
            with open(path, "rb") as file:
                file.seek(8)
                same(sum(batch.num_rows for batch in arrow.ipc.open_stream(file)),
                     sum(1 for _ in arrow.ipc.open_file(path).read_all().column(0)))
        same(found, made)


# ---- reproducible, resumable --------------------------------------------------------------------


@case
def bytes_are_equal_whatever_the_number_of_processes():
    source = seeded()
    with Scratch() as folder:
        root = os.path.join(folder, "in")
        tree(root, source, 200)
        made = []
        for jobs in (1, 3):
            out = os.path.join(folder, f"out{jobs}")
            command(root, "-o", out, "--jobs", str(jobs), "--shard-size", "200K")
            made.append(digests(out))
        same(made[0], made[1])
        check(len(made[0]) > 12, "hardly any shard")


@case
def a_packing_goes_on_only_as_it_was_begun():
    source = seeded()
    with Scratch() as folder:
        root, out = os.path.join(folder, "in"), os.path.join(folder, "out")
        made = tree(root, source, 50)
        words = [root, "-o", out, "--shard-count", "5", "--json"]
        same(json.loads(command(*words)[0])["kept"], 0)
        first = digests(out)
        os.unlink(os.path.join(out, "shard-000002.tar"))
        write(os.path.join(out, "shard-000003.tar"), b"short")
        os.unlink(os.path.join(out, "shard-000004.tar.onehop"))
        same(json.loads(command(*words)[0])["kept"], 2)
        same(digests(out), first)
        _, said = command(root, "-o", out, "--shard-count", "5", "--align", "member", code=2)
        holds(said, "its align was 'sample' and is 'member' now")
        _, said = command(root, "-o", out, "--shard-count", "4", code=2)
        holds(said, "shard_count")
        name = sorted(glob.glob(os.path.join(root, "b/*")))[0]
        seen = os.stat(name)
        os.utime(name, ns=(seen.st_atime_ns, seen.st_mtime_ns + 1))
        _, said = command(*words, code=2)
        holds(said, f"{root!r} has changed: the first difference is in {root}: ")
        write(name, b"another")
        _, said = command(*words, code=2)
        holds(said, "has changed: it was about")
        same(digests(out), first)
        command(*words, "--overwrite")
        made[name[len(root) + 1:].partition(".")[0]][name.rpartition("/")[2].partition(".")[2]] = (
            b"another")
        same(samples(sorted(glob.glob(os.path.join(out, "*.tar")))), made)
        alien = os.path.join(folder, "alien")
        write(os.path.join(alien, "shard-000007.tar"), b"theirs")
        _, said = command(root, "-o", alien, code=2)
        holds(said, "shard-000007.tar")
        same(sorted(os.listdir(alien)), ["shard-000007.tar"])


def filled(folder):
    """Bytes of all files in a folder."""
    found = 0
    for path in glob.glob(os.path.join(folder, "*")):
        try:
            found += os.path.getsize(path)
        except FileNotFoundError:
            pass  # it got its name meanwhile
    return found


@case
def killed_at_random_moments_it_never_shows_a_broken_shard_and_ends_with_the_same_bytes():
    source = seeded()
    with Scratch() as folder:
        root = os.path.join(folder, "in")
        tree(root, source, 300, 60_000)
        words = [*PACK, root, "--jobs", "2", "--shard-count", "12", "-o"]
        whole = os.path.join(folder, "whole")
        begun = time.monotonic()
        subprocess.run([*words, whole], check=True, env=environment(), stdout=subprocess.DEVNULL)
        seconds, want, total = time.monotonic() - begun, digests(whole), filled(whole)
        killed, finished, out, round_ = 0, 0, "", 0
        while killed < 50:
            if not out:
                round_ += 1
                out = os.path.join(folder, f"out{round_}")
            process = subprocess.Popen([*words, out], env=environment(), stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE)
            if killed % 4 == 0:  # by time: at the beginning, too
                try:
                    process.wait(source.uniform(0, 1) * seconds)
                except subprocess.TimeoutExpired:
                    pass
            else:  # by what is written: a busy machine gets as far
                until = source.uniform(filled(out), total * 1.1)
                while process.poll() is None and filled(out) < until:
                    os.sched_yield()
            if process.poll() is None:
                process.kill()
                killed += 1
            said = process.communicate()[1]
            check(process.returncode in (0, -signal.SIGKILL), f"{process.returncode}: {said}")
            for path in glob.glob(os.path.join(out, "*.tar")):
                verify_shard(path)
            if process.returncode == 0:
                same(digests(out), want, f"bytes after a resume, round {round_}")
                shutil.rmtree(out)
                finished, out = finished + 1, ""
        if out:
            subprocess.run([*words, out], check=True, env=environment(), stdout=subprocess.DEVNULL)
            same(digests(out), want, "bytes after the last resume")
        same(glob.glob(os.path.join(folder, "*/*.partial")), [])
        print(f"# killed {killed} times, {finished} packings finished in between")


@case
def an_interrupt_ends_it_at_once_and_leaves_nothing_half():
    source = seeded()
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 130)):
        with Scratch() as folder:
            root, out = os.path.join(folder, "in"), os.path.join(folder, "out")
            tree(root, source, 60, 4_000_000)
            words = [*PACK, root, "-o", out, "--shard-count", "3", "--jobs", "2"]
            process = subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE,
                                       stdout=subprocess.PIPE, start_new_session=True)
            while process.poll() is None and not glob.glob(os.path.join(out, "*.partial")):
                os.sched_yield()
            os.killpg(process.pid, number)
            said = process.communicate()
            same(process.returncode, code, f"exit status ({said})")
            same(glob.glob(os.path.join(out, "*.partial")), [])
            for path in glob.glob(os.path.join(out, "*.tar")):
                verify_shard(path)
            command(root, "-o", out, "--shard-count", "3", "--verify")


class Small:
    """A file system of few bytes, where we may mount one."""

    def __init__(self, folder, size):
        self.path = os.path.join(folder, "small")
        os.mkdir(self.path)
        self._mount(size)

    def _mount(self, size):
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", self.path],
                              stderr=subprocess.PIPE)
        if done.returncode:
            raise Skip("no tmpfs can be mounted here")

    def __enter__(self):
        return self.path

    def __exit__(self, *_):
        subprocess.run(["umount", self.path], check=True)


@case
def a_full_disk_is_said_and_what_was_finished_is_kept():
    source = seeded()
    with Scratch() as folder:
        root = os.path.join(folder, "in")
        tree(root, source, 60, 100_000)
        options = ["--shard-count", "4", "--jobs", "1"]
        whole = os.path.join(folder, "whole")
        command(root, "-o", whole, *options)
        total = sum(os.path.getsize(path) for path in glob.glob(os.path.join(whole, "*")))
        with Small(folder, total // 2) as small:
            _, said = command(root, "-o", os.path.join(small, "out"), *options, code=1)
            holds(said, "make room")
            holds(said, "free")
            same(os.listdir(os.path.join(small, "out")), [".onehop-pack"], "files after a refusal")
            blocker = write(os.path.join(small, "blocker"), b"")
            # The disk fills while it is packed: what is free is looked at before.
            subprocess.run(["mount", "-o", f"remount,size={total + (8 << 20)}", small], check=True)
            code = ("import os, sys\nfrom onehop import packing\n"
                    "check = packing._check_space\n"
                    "def fill(folder, left):\n    check(folder, left)\n"
                    f"    os.posix_fallocate(os.open({blocker!r}, os.O_RDWR), 0, {8 << 20} + "
                    f"{total // 2})\n"
                    "packing._check_space = fill\n"
                    "from onehop.__main__ import main\nsys.exit(main(sys.argv[1:]))")
            done = subprocess.run([sys.executable, "-c", code, "pack", root, "-o",
                                   os.path.join(small, "out"), *options], env=environment(),
                                  stderr=subprocess.PIPE, text=True, timeout=60)
            same(done.returncode, 1, done.stderr)
            holds(done.stderr, "No space left")
            holds(done.stderr, "finished shards are kept")
            same(glob.glob(os.path.join(small, "out", "*.partial")), [])
            kept = glob.glob(os.path.join(small, "out", "*.tar"))
            check(0 < len(kept) < 4, f"{len(kept)} shards were kept")
            for path in kept:
                verify_shard(path)
            os.unlink(blocker)
            command(root, "-o", os.path.join(small, "out"), *options)
            same(digests(os.path.join(small, "out")), digests(whole))


@case
def a_write_that_fails_leaves_no_shard():
    source = seeded()
    with Scratch() as folder:
        root, out = os.path.join(folder, "in"), os.path.join(folder, "out")
        tree(root, source, 40, 100_000)
        _, said = command(root, "-o", out, code=1, preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_FSIZE, (500_000, 500_000)))
        holds(said, "File too large")
        same(sorted(os.listdir(out)), [".onehop-pack"])
        command(root, "-o", out, "--verify")


@case
def two_packings_do_not_share_a_folder():
    source = seeded()
    with Scratch() as folder:
        root, out = os.path.join(folder, "in"), os.path.join(folder, "out")
        tree(root, source, 5)
        os.makedirs(out)
        state = need("onehop._pack.state").State(out)
        _, said = command(root, "-o", out, code=1)
        holds(said, "another process packs")
        state.close()
        command(root, "-o", out)


# ---- the command --------------------------------------------------------------------------------


@case
def a_dry_run_writes_nothing_and_says_the_plan():
    source = seeded()
    with Scratch() as folder:
        root, out = os.path.join(folder, "in"), os.path.join(folder, "out")
        tree(root, source, 20)
        plan = json.loads(command(root, "-o", out, "--dry-run", "--json", "--shard-count", "2")[0])
        check(not os.path.exists(out), "something was written")
        report = json.loads(command(root, "-o", out, "--json", "--shard-count", "2")[0])
        same([shard["path"] for shard in plan["shards"]], report["shards"])
        said, _ = command(root, "-o", out, "--dry-run")
        holds(said, "1 shard, ")
        text, _ = command(root, "-o", out, "--shard-count", "2", "--progress")
        holds(text, "packed 20 samples of 60 members")


@case
def wrong_words_and_wrong_inputs_have_their_exit_status():
    with Scratch() as folder:
        out = os.path.join(folder, "out")
        write(os.path.join(folder, "in/1.txt"), b"1")
        for words, code in ((["-o", out], 2), ([folder + "/in"], 2),
                            ([folder + "/in", "-o", out, "--align", "x"], 2),
                            ([folder + "/in", "-o", out, "--alignment", "1000"], 2),
                            ([folder + "/in", "-o", out, "--shard-size", "0"], 2),
                            ([folder + "/in", "-o", out, "--columns", "a", "--rows", "a"], 2),
                            ([folder + "/in", "-o", out, "--clock", "start"], 2),
                            ([folder + "/none", "-o", out], 1),
                            ([write(folder + "/x.pdf", b"1"), "-o", out], 3),
                            ([write(folder + "/x.tar", b"1"), "-o", out], 3)):
            _, said = command(*words, code=code)
            check("Traceback" not in said, said)
        os.mkdir(os.path.join(folder, "empty"))
        command(os.path.join(folder, "empty"), "-o", out, code=3)
        check(not os.path.exists(out), "a folder was made")


@case
def the_installed_command_hands_over():
    program = os.path.join(os.path.dirname(os.environ["ONEHOP_LIBRARY"]), "../cli/onehop")
    if not os.path.exists(program):
        raise Skip("the command is not built here")
    with Scratch() as folder:
        write(os.path.join(folder, "in/1.txt"), b"1")
        words = [program, "pack", folder + "/in", "-o", folder + "/out"]
        done = subprocess.run(words, env=environment(ONEHOP_PYTHON=sys.executable),
                              stdout=subprocess.PIPE, text=True, check=True)
        holds(done.stdout, "packed 1 sample of 1 member")
        for more, words_ in (({"PYTHONPATH": None, "ONEHOP_PYTHON": None}, "pip install onehop"),
                             ({"ONEHOP_PYTHON": "/no/python"}, "ONEHOP_PYTHON")):
            done = subprocess.run(words, env=environment(**more), stderr=subprocess.PIPE, text=True,
                                  cwd=folder)
            same(done.returncode, 1)
            holds(done.stderr, words_)


@case
def verify_finds_what_the_index_does_not_say():
    from onehop._pack.check import check_shard
    source = seeded()
    with Scratch() as folder:
        root, out = os.path.join(folder, "in"), os.path.join(folder, "out")
        tree(root, source, 20)
        path, = pack(root, out, align="none")["shards"]  # no long-name records, which repeat names
        data = bytearray(read(path))
        name, offset, _ = next(m for m in members(path) if m[2])
        for at, what in ((offset, "checksum"), (offset - 512, "is")):
            broken = bytearray(data)
            broken[at] ^= 1
            if what == "is":  # a name, with its checksum made right
                header = bytes(broken[offset - 512:offset])
                total = sum(header[:148]) + sum(header[156:]) + 8 * 32
                broken[offset - 364:offset - 356] = b"%06o\0 " % total
            write(path, broken)
            holds(str(raised(errors.Mismatch, check_shard, path)), what)


if __name__ == "__main__":
    _library.library()
    assert struct.calcsize("P") == 8 and os.path.isdir(ROOT)
    run()
