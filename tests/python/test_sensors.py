"""``onehop sensors``: equal seeds make equal bytes, and the three formats hold the same records."""
import io
import os
import pickle
import subprocess
import sys
import tarfile
import zlib

from package import Scratch, environment, need, raised, seeded
from tap import case, check, holds, run, same

try:
    import numpy as np
except ImportError:
    print("1..0 # SKIP numpy is not installed")
    sys.exit(0)

from onehop import _sensors_data, errors, sensors
from onehop._pack.input import InputOptions, open_input
from onehop._pack.notes import Notes
from onehop._pack.rows import in_order
from onehop.shards import FileRange, verify_shard

SMALL = {"seconds": 1.2, "episodes": 2, "cameras": 2, "size": (64, 48), "stereo": (32, 24),
         "depth": (20, 10), "points": 500, "channels": 5, "joints": 4}
STREAMS = {"cam0", "cam1", "stereo_left", "stereo_right", "depth", "lidar", "touch", "joints",
           "imu"}


def files(folder):
    """{path: bytes} of a tree."""
    made = {}
    for where, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(where, name), "rb") as file:
                made[os.path.relpath(os.path.join(where, name), folder)] = file.read()
    return made


def payload(part):
    if not isinstance(part.source, FileRange):
        return bytes(part.source)
    with open(part.source.path, "rb") as file:
        file.seek(part.source.offset)
        return file.read() if part.source.size is None else file.read(part.source.size)


def rows(stream, parts, time):
    """[(time, value)] of a sample's parts, {field: bytes}."""
    value = parts.get(f"{stream}.npy")
    if value is None:
        return [(time, parts[f"{stream}.jpg"])]
    array = np.load(io.BytesIO(value))
    times = parts.get(f"{stream}.time.npy")
    return [(time, array)] if times is None else list(zip(np.load(io.BytesIO(times)).tolist(),
                                                          array))


def packed(opened):
    """{(episode, stream): [(time, value)]} of an input of onehop pack."""
    made = {}
    for job in opened.jobs(1 << 16):
        for sample in in_order(pickle.loads(pickle.dumps(job)).items(Notes()), Notes()):
            made.setdefault((sample.episode, sample.stream), []).extend(rows(
                sample.stream, {part.field: payload(part) for part in sample.parts},
                sample.timestamp_ns))
    return made


def from_manifest(folder):
    return packed(open_input(folder, InputOptions(manifest=os.path.join(folder, "manifest.csv"))))


def same_records(got, want, but=()):
    """but: streams whose times differ."""
    same(set(got), set(want), "episodes and streams")
    for name, records in want.items():
        same(len(got[name]), len(records), f"records of {name}")
        for (time, value), (other, wanted) in zip(got[name], records):
            check(name[1] in but or time == other, f"{name}: {time} ns is not {other} ns")
            check(value == wanted if isinstance(wanted, bytes) else np.array_equal(value, wanted),
                  f"a record of {name} differs")


@case
def equal_seeds_make_equal_bytes_and_others_make_others():
    for form in ("files", "mcap"):
        if form == "mcap":
            need("mcap.writer")
        with Scratch() as folder:
            made = []
            for number, seed in enumerate((3, 3, 4)):
                path = os.path.join(folder, str(number))
                sensors.make(path, sensors.Rig(**SMALL, seed=seed), form)
                made.append(files(path))
            check(made[0] == made[1], f"two of one seed differ as {form}")
            check(made[0] != made[2], f"two of two seeds are equal as {form}")
            check(not [name for name in made[0] if name.endswith(".partial")], "a partial is left")


@case
def files_and_their_manifest_hold_every_record_in_order():
    with Scratch() as folder:
        done = sensors.make(folder, sensors.Rig(**SMALL), "files")
        with open(os.path.join(folder, "manifest.csv"), encoding="utf-8") as file:
            lines = [line.split(",") for line in file.read().splitlines()[1:]]
        same(len(lines), done.records, "rows of the manifest")
        same(sum(int(line[5]) for line in lines), done.nbytes, "bytes")
        order = [(line[0], int(line[2]), line[1]) for line in lines]
        same(order, sorted(order), "order")
        records = from_manifest(folder)
        same({stream for _, stream in records}, STREAMS, "streams")
        same(sum(len(one) for one in records.values()), done.records, "records")
        shapes = {"cam0": (72, 64), "stereo_left": (24, 32, 3), "depth": (10, 20),
                  "touch": (5,), "joints": (3, 4), "imu": (10,)}
        for stream, shape in shapes.items():
            same(records["drive-0001", stream][0][1].shape, shape, f"shape of {stream}")
        points = {len(value) for _, value in records["drive-0000", "lidar"]}
        check(len(points) > 5 and min(points) >= 400 and max(points) <= 500, f"points {points}")


@case
def small_records_have_files_of_their_own_when_asked():
    with Scratch() as folder:
        one, other = os.path.join(folder, "a"), os.path.join(folder, "b")
        sensors.make(one, sensors.Rig(**SMALL), "files")
        done = sensors.make(other, sensors.Rig(**SMALL), "files", single=True)
        same(len(files(other)), done.records + 1, "files")
        same_records(from_manifest(other), from_manifest(one))


@case
def mcap_logs_hold_the_same_records():
    need("mcap.reader")
    with Scratch() as folder:
        tree, logs = os.path.join(folder, "tree"), os.path.join(folder, "logs")
        sensors.make(tree, sensors.Rig(**SMALL, pixels="rgb"), "files")
        sensors.make(logs, sensors.Rig(**SMALL, pixels="rgb"), "mcap")
        records = {}
        for name in sorted(os.listdir(logs)):
            records.update(packed(open_input(os.path.join(logs, name), InputOptions())))
        same_records(records, from_manifest(tree), but=("touch",))


@case
def shards_hold_the_same_records():
    with Scratch() as folder:
        tree, shards = os.path.join(folder, "tree"), os.path.join(folder, "shards")
        sensors.make(tree, sensors.Rig(**SMALL), "files")
        done = sensors.make(shards, sensors.Rig(**SMALL), "shards", shard_bytes=1 << 20)
        names = sorted(name for name in os.listdir(shards) if name.endswith(".tar"))
        check(len(names) > 1, "one shard")
        records = {}
        for name in names:
            path = os.path.join(shards, name)
            verify_shard(path)
            with tarfile.open(path) as tar:
                members = [(member.name, tar.extractfile(member).read()) for member in tar
                           if member.isfile()]
            samples = {}
            for member, data in members:
                key, _, field = member.partition(".")
                samples.setdefault(key, {})[field] = data
            for key, parts in samples.items():
                episode, stream, ordinal = key.split("/")
                mine = records.setdefault((episode, stream), [])
                same(int(ordinal), len(mine), "ordinal")
                mine += [value for _, value in rows(stream, parts, None)]
        want = from_manifest(tree)
        same(sum(len(one) for one in records.values()), done.records, "records")
        for name, values in records.items():
            check(all(np.array_equal(value, wanted) for value, (_, wanted)
                      in zip(values, want[name])), f"records of {name}")


@case
def jpegs_are_pictures_that_tell_their_record():
    image = need("PIL.Image")
    with Scratch() as folder:
        sensors.make(folder, sensors.Rig(**{**SMALL, "pixels": "jpeg", "streams": ("cam",)}))
        pictures = {path: data for path, data in files(folder).items() if path.endswith(".jpg")}
        same(len(set(pictures.values())), len(pictures), "pictures that differ")
        for path, data in pictures.items():
            with image.open(io.BytesIO(data)) as picture:
                picture.load()
                same((picture.format, picture.size), ("JPEG", (64, 48)), path)
                episode, stream, ordinal = path.removesuffix(".jpg").split("/")
                same(picture.info["comment"].decode(),
                     f"{int(episode[-4:])}/{stream}/{int(ordinal)}", "comment")


@case
def clocks_drift_jitter_miss_and_repeat_but_never_fall():
    source = seeded()
    sensor = _sensors_data.Sensor("touch", "touch", 1000, "float32", (4,), jitter=0.1, gaps=0.5)
    slopes, gaps, twins = set(), 0, 0
    for episode in range(10):
        times = _sensors_data.clock(sensor, source.randrange(1 << 30), episode, -10**9, 20.0)
        steps = np.diff(times)
        check(times.dtype == np.int64 and (steps >= 0).all(), "times fall")
        check(-10**9 <= times[0] < -10**9 + 2 * 10**6, f"the first is at {times[0]}")
        check(abs(times[-1] - 19 * 10**9) < 10**8, f"the last is at {times[-1]}")
        check(0.97 < len(times) / 20_000 <= 1, f"{len(times)} records in 20 s")
        gaps += int((steps > 2.2e6).sum())
        twins += int((steps == 0).sum())
        plain = steps[(steps > 0) & (steps < 1.9e6)]
        check(5e4 < plain.std() < 3e5, f"steps vary by {plain.std()} ns")
        slopes.add(round(float(np.median(steps))))
    for episode in range(2000):  # a phase near 0 and a jitter below it are rare
        first = _sensors_data.clock(sensor, 1, episode, 50, 0.01)[0]
        check(50 <= first, f"episode {episode} begins at 50, and its first record is of {first}")
    check(gaps > 20 and twins > 50, f"{gaps} gaps, {twins} records with their neighbour's time")
    check(len(slopes) > 3, "all clocks are of one rate")


@case
def records_are_not_compressible_to_nothing_and_differ():
    content = _sensors_data.Content(1)
    for kind, dtype, shape in (("nv12", "uint8", (720, 640)), ("rgb", "uint8", (480, 640, 3)),
                               ("depth", "uint16", (480, 640)), ("lidar", "float32", (9000, 6))):
        sensor = _sensors_data.Sensor(kind, kind, 30, dtype, shape)
        seen = set()
        for ordinal in range(40):
            data = content.record(sensor, 0, ordinal).tobytes()
            seen.add(data)
        check(len(zlib.compress(data, 1)) > 0.4 * len(data), f"{kind} compresses well")
        same(len(seen), 40, f"records of {kind} that differ")


@case
def what_cannot_be_made_is_refused_before_anything_is_written():
    with Scratch() as folder:
        path = os.path.join(folder, "new", "deep")
        for rig, words in (({"seconds": 0}, "seconds is 0"), ({"seconds": float("nan")}, "seconds"),
                           ({"episodes": 0}, "episodes is 0"), ({"cameras": 0}, "cameras is 0"),
                           ({"size": (63, 48)}, "63x48"), ({"size": (10**6, 10**6)}, "size is"),
                           ({"points": 0}, "points"), ({"streams": ("radar",)}, "radar"),
                           ({"streams": ()}, "none"), ({"seed": -1}, "seed is -1")):
            error = raised(errors.InvalidArgument, sensors.make, path,
                           sensors.Rig(**{**SMALL, **rig}))
            holds(str(error), words)
            check(error.remedy, f"no remedy: {error}")
        error = raised(errors.IOFailed, sensors.make, path, sensors.Rig(seconds=10**6, episodes=99))
        holds(str(error), "GB free")
        holds(str(raised(errors.InvalidArgument, sensors.make, path, sensors.Rig(**SMALL), "zip")),
              "'zip'")
        check(not os.path.exists(os.path.dirname(path)), "a folder was made")
        holds(str(raised(errors.InvalidArgument, sensors.make, os.path.dirname(os.path.abspath(
            __file__)), sensors.Rig(**SMALL))), "holds files already")


@case
def the_command_makes_what_it_is_told():
    with Scratch() as folder:
        path = os.path.join(folder, "out")
        done = subprocess.run(
            [sys.executable, "-m", "onehop", "sensors", "-o", path, "--seconds", "0.5",
             "--episodes", "1", "--cameras", "1", "--size", "32x32", "--streams", "cam,imu",
             "--seed", "5"], env=environment(), timeout=120, capture_output=True, text=True)
        same((done.returncode, done.stderr), (0, ""), "what it ends with")
        holds(done.stdout, "cam0")
        same({stream for _, stream in from_manifest(path)}, {"cam0", "imu"}, "streams")
        done = subprocess.run([sys.executable, "-m", "onehop", "sensors", "-o", path],
                              env=environment(), timeout=120, capture_output=True, text=True)
        same(done.returncode, 2, "exit status")
        holds(done.stderr, "holds files already")


if __name__ == "__main__":
    run()
