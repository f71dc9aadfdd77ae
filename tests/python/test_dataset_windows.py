"""onehop.Dataset.windows: batches of moments against a reference that looks at every record.

usage: test_dataset_windows.py [FOLDER of the look-alike driver]
"""
import bisect
import importlib.util
import itertools
import json
import os
import sys
from fractions import Fraction

from package import Scratch, raised, seeded
from tap import case, check, holds, run, same

if importlib.util.find_spec("numpy") is None:
    print("1..0 # SKIP numpy is not installed")
    sys.exit(0)

import dataset_data as data
import numpy as np
from onehop import errors
from onehop.dataset import Dataset

FRAMEWORKS = ["numpy", "torch"] if importlib.util.find_spec("torch") else ["numpy"]
if data.DEVICE != "cpu":
    FRAMEWORKS = ["torch"]


def plain(value):
    return value.cpu().numpy() if hasattr(value, "cpu") else np.asarray(value)


class Log:
    """A drive of several episodes, as it was: by episode and stream [(time, record)]."""

    def __init__(self, source, episodes=3):
        self.source, self.records = source, {}
        for episode in range(episodes):
            start = source.randrange(-10**12, 10**12)
            for stream, period, count in (("cam", 33_333_333, 40), ("lidar", 100_000_000, 14),
                                          ("touch", 1_000_000, 1500), ("imu", 10_000_000, 140),
                                          ("label", 200_000_000, 7)):
                if stream == "lidar" and episode == 1:
                    continue  # an episode that lacks a stream
                self.records[f"e{episode}", stream] = self.clock(stream, start, period, count)

    def clock(self, stream, start, period, count):
        """Times with jitter, drift, gaps and repeats, and a record for each."""
        at, made = start + self.source.randrange(period), []
        for number in range(count):
            at += int(period * self.source.uniform(0.6, 1.4))
            if self.source.random() < 0.02:
                at += period * 5
            if made and self.source.random() < 0.03:
                at = made[-1][0]
            made.append((at, self.record(stream, number)))
        return made

    def record(self, stream, number):
        source = self.source
        if stream == "cam":
            return source.randbytes(source.randrange(1, 50))
        if stream == "lidar":
            return np.frombuffer(source.randbytes(16 * source.randrange(1, 6)),
                                 np.uint8).reshape(-1, 16)
        if stream == "label":
            return {"number": number}
        width = {"touch": 6, "imu": 3}[stream]
        return np.array([source.uniform(-9, 9) for _ in range(width)], np.float32)

    def samples(self):
        """As they are packed: sorted by time in an episode, fast streams in chunks."""
        made = []
        for (episode, stream), rows in self.records.items():
            ending = {"cam": "jpg", "label": "json"}.get(stream, "npy")
            size = {"touch": 100, "imu": 33}.get(stream, 1)
            for first in range(0, len(rows), size):
                part = rows[first:first + size]
                if stream in ("touch", "imu"):
                    fields = {f"{stream}.npy": np.stack([record for _, record in part]),
                              f"{stream}.time.npy": np.array([at for at, _ in part], np.int64)}
                else:
                    fields = {f"{stream}.{ending}": part[0][1]}
                made.append((f"{episode}/{stream}/{first:06}", fields,
                             {"timestamp_ns": part[0][0], "episode": episode, "stream": stream,
                              "rows": len(part)}))
        made.sort(key=lambda one: (one[2]["episode"], one[2]["timestamp_ns"], one[2]["stream"]))
        return made


def nearest(rows, moment):
    """The nearest record's number; of two as near, and of repeats, the earliest."""
    return min(range(len(rows)), key=lambda i: (abs(rows[i][0] - moment), rows[i][0], i),
               default=None)


def held(rows, moment):
    """The last at or before the moment."""
    found = bisect.bisect_right([at for at, _ in rows], moment) - 1
    return found if found >= 0 else None


def within(rows, number, moment, tolerance):
    if number is None or (tolerance is not None and abs(rows[number][0] - moment) > tolerance):
        return None
    return number


def ns(seconds):
    return round(Fraction(str(seconds)) * 10**9)


def folder_of(folder, log):
    return data.shards(os.path.join(folder, "log"), log.samples(), 60)


def anchor_of(batch, row, log, stream):
    """The anchor's time, episode and place in its stream."""
    episode, at = batch["__episode__"][row], int(plain(batch["__time_ns__"])[row])
    return at, episode, log.records.get((episode, stream), [])


def check_record(batch, name, row, column, rows, number, zero):
    """One record of a batch against the one that it is to be; None: missing."""
    place = (row,) if column is None else (row, column)
    same(bool(plain(batch[name + "_is_pad"])[place]), number is None, f"{name}_is_pad at {place}")
    same(int(plain(batch[name + "_time_ns"])[place]), rows[number][0] if number is not None else 0)
    value = batch[name]
    for index in place if isinstance(value, list) else (place,):
        value = value[index]
    want = rows[number][1] if number is not None else zero
    if want is None or isinstance(want, dict):
        same(value, want, name)
    else:
        got = plain(value)
        want = np.frombuffer(want, np.uint8) if isinstance(want, bytes) else want
        same((got.shape, got.tobytes()), (want.shape, want.tobytes()), f"{name} at {place}")


@case
def each_kind_of_wish_is_what_the_reference_finds():
    source = seeded()
    with Scratch() as folder:
        log = Log(source)
        shards = folder_of(folder, log)
        anchors = sum(len(rows) for (_, stream), rows in log.records.items() if stream == "cam")
        for framework in FRAMEWORKS:
            with Dataset(shards, batch=7, device=data.DEVICE, framework=framework,
                         remainder="uneven") as dataset:
                found = dataset.windows(
                    "cam", {"lidar": "nearest", "touch": (-0.05, 0.0), "imu": 5,
                            "label": [-0.2, 0.0, 0.3]},
                    tolerance={"lidar": 0.06, "label": 0.15})
                same(found.anchors, anchors)
                seen, whole = [], 0
                for batch in found:
                    touch = batch["touch"]
                    offsets = plain(touch.offsets)
                    for row in range(len(batch["__key__"])):
                        at, episode, cam = anchor_of(batch, row, log, "cam")
                        seen.append((episode, batch["__key__"][row]))
                        own = int(batch["__key__"][row].rpartition("/")[2])
                        check_record(batch, "cam", row, None, cam, own, None)
                        lidar = log.records.get((episode, "lidar"), [])
                        check_record(batch, "lidar", row, None, lidar,
                                     within(lidar, nearest(lidar, at), at, ns(0.06)), None)
                        rows = log.records[episode, "touch"]
                        wanted = [one for t, one in rows if at - ns(0.05) <= t < at]
                        got = plain(touch.values)[offsets[row]:offsets[row + 1]]
                        same(got.tobytes(), b"".join(one.tobytes() for one in wanted), "touch")
                        same(bool(plain(batch["touch_is_pad"])[row]), not wanted)
                        whole += len(wanted)
                        imu = log.records[episode, "imu"]
                        last = held(imu, at)
                        for column in range(5):
                            number = None if last is None or last - 4 + column < 0 \
                                else last - 4 + column
                            check_record(batch, "imu", row, column, imu, number,
                                         np.zeros(3, np.float32))
                        label = log.records[episode, "label"]
                        for column, offset in enumerate((-0.2, 0.0, 0.3)):
                            moment = at + ns(offset)
                            number = within(label, nearest(label, moment), moment, ns(0.15))
                            check_record(batch, "label", row, column, label, number, None)
                same(len(seen), anchors)
                same(len(set(seen)), anchors, "an anchor came twice")
                check(whole > 1000, "the windows are empty")


@case
def rows_of_a_window_are_found_by_each_method():
    source = seeded()
    with Scratch() as folder:
        log = Log(source, 2)
        shards = folder_of(folder, log)
        for framework, method in itertools.product(FRAMEWORKS, ("nearest", "hold", "linear")):
            with Dataset(shards, batch=8, device=data.DEVICE, framework=framework) as dataset:
                for batch in dataset.windows("cam", {"imu": (-0.1, 0.05)}, rows=6, method=method,
                                             tolerance=0.02):
                    same(tuple(batch["imu"].shape), (8, 6, 3))
                    for row, column in itertools.product(range(8), range(6)):
                        at, episode, _ = anchor_of(batch, row, log, "cam")
                        imu = log.records[episode, "imu"]
                        moment = at - ns(0.1) + round(Fraction(column * ns(0.15), 6))
                        check_row(batch, row, column, imu, moment, method)


def check_row(batch, row, column, imu, moment, method):
    limit = ns(0.02)
    if method != "linear":
        number = nearest(imu, moment) if method == "nearest" else held(imu, moment)
        check_record(batch, "imu", row, column, imu, within(imu, number, moment, limit),
                     np.zeros(3, np.float32))
        return
    low = held(imu, moment)
    high = low if low is not None and imu[low][0] == moment else None if low is None else low + 1
    missing = high is None or high >= len(imu) or \
        min(moment - imu[low][0], imu[high][0] - moment) > limit
    same(bool(plain(batch["imu_is_pad"])[row, column]), missing, "imu_is_pad")
    want = np.zeros(3)
    if not missing:
        span = imu[high][0] - imu[low][0]
        share = (moment - imu[low][0]) / span if span else 0.0
        want = imu[low][1] + (imu[high][1].astype(np.float64) - imu[low][1]) * share
    check(np.allclose(plain(batch["imu"])[row, column], want, atol=1e-5), "imu between two")


@case
def anchors_of_a_fast_stream_are_rows_of_its_chunks():
    source = seeded()
    with Scratch() as folder:
        log = Log(source, 2)
        shards = folder_of(folder, log)
        for shuffle in ("sample", None):
            with Dataset(shards, batch=20, device="cpu", framework="numpy", shuffle=shuffle,
                         remainder="pad") as dataset:
                seen = []
                for batch in dataset.windows("imu", {"touch": "nearest"}):
                    for row, pad in enumerate(batch["__pad__"]):
                        at, episode, _ = anchor_of(batch, row, log, "imu")
                        if not pad:
                            seen.append((episode, at, batch["imu"][row].tobytes()))
                        touch = log.records[episode, "touch"]
                        check_record(batch, "touch", row, None, touch, nearest(touch, at), None)
                whole = [(episode, at, one.tobytes()) for episode in ("e0", "e1")
                         for at, one in log.records[episode, "imu"]]
                same(sorted(seen), sorted(whole))
                check(shuffle is None or seen != whole, "the order is not shuffled")


@case
def more_of_the_anchors_stream_can_be_asked_for():
    """Pictures before and after each, or the last rows up to each."""
    source = seeded()
    with Scratch() as folder:
        log = Log(source)
        shards = folder_of(folder, log)
        for framework in FRAMEWORKS:
            with Dataset(shards, batch=8, device=data.DEVICE, framework=framework,
                         remainder="uneven") as dataset:
                found = dataset.windows("cam", {"cam": [-0.1, 0.0], "imu": 1}, tolerance=0.04)
                gaps = rows = 0
                for batch in found:
                    for row in range(len(batch["__key__"])):
                        at, episode, cam = anchor_of(batch, row, log, "cam")
                        same(cam[int(batch["__key__"][row].rpartition("/")[2])][0], at)
                        numbers = [within(cam, nearest(cam, at + offset), at + offset, ns(0.04))
                                   for offset in (-ns(0.1), 0)]
                        for column, number in enumerate(numbers):
                            check_record(batch, "cam", row, column, cam, number, None)
                        gaps, rows = gaps + (None in numbers), rows + 1
                same((found.gaps["cam"], rows), (gaps, 120))
                check(0 < gaps < 120, f"{gaps} gaps")
                check(0 < found.skew["cam"].max_ns, "no skew")
                skipped = dataset.windows("cam", {"cam": [-0.1, 0.0]}, tolerance=0.04, gap="skip")
                same((skipped.anchors, skipped.left_out), (120 - gaps, gaps))
                for batch in dataset.windows("imu", {"imu": 3}):
                    for row in range(len(batch["__key__"])):
                        at, episode, imu = anchor_of(batch, row, log, "imu")
                        last = held(imu, at)
                        for column in range(3):
                            number = last - 2 + column
                            check_record(batch, "imu", row, column, imu,
                                         None if number < 0 else number, np.zeros(3, np.float32))


@case
def a_damaged_payload_is_refused_before_anything_is_cut_from_it():
    source = seeded()
    with Scratch() as folder:
        log = Log(source, 2)
        shards = folder_of(folder, log)
        common = {"batch": 5, "device": data.DEVICE, "framework": FRAMEWORKS[0], "shuffle": None,
                  "remainder": "uneven"}
        wish = {"imu": (-0.05, 0.05), "label": "nearest"}

        def look(verify):
            with Dataset(shards, verify=verify, **common) as dataset:
                return [(plain(batch["imu"].values).tobytes(), batch["label"],
                         [plain(one).tobytes() for one in batch["cam"]])
                        for batch in dataset.windows("cam", wish)]

        whole = look("none")
        check(look("sample") == whole, "what is verified is something else")
        path = next(os.path.join(shards, name) for name in sorted(os.listdir(shards))
                    if name.endswith(".tar"))
        with open(path, "rb") as file:
            good = file.read()
        for words, part in (("field imu.npy", log.records["e0", "imu"][2][1].tobytes()),
                            ("field imu.time.npy", np.array(
                                [at for at, _ in log.records["e0", "imu"][1:4]]).tobytes()),
                            ("field cam.jpg", next(one for _, one in log.records["e0", "cam"]
                                                   if len(one) > 8 and one in good)),
                            ("field label.json", b'"number"')):
            place = good.find(part)
            check(place >= 0, f"{words}: the bytes are not in the first shard")
            place += source.randrange(len(part))
            bad = bytearray(good)
            bad[place] ^= 1 << source.randrange(2)
            with open(path, "wb") as file:
                file.write(bad)
            error = raised(errors.Mismatch, look, "sample")
            for word in (words, os.path.basename(path), "sample e0/", "CRC-32C", "at offset"):
                holds(str(error), word)
        with open(path, "wb") as file:
            file.write(good)
        check(look("sample") == whole, "the good copy is something else")


@case
def gaps_are_masked_skipped_or_refused():
    source = seeded()
    with Scratch() as folder:
        log = Log(source)
        shards = folder_of(folder, log)
        with Dataset(shards, batch=1, device="cpu", framework="numpy") as dataset:
            fits = 0
            for (episode, stream), rows in log.records.items():
                lidar = log.records.get((episode, "lidar"), [])
                if stream == "cam":
                    fits += sum(within(lidar, nearest(lidar, at), at, ns(0.05)) is not None
                                for at, _ in rows)
            wish = {"streams": {"lidar": "nearest"}, "tolerance": 0.05}
            skipped = dataset.windows("cam", gap="skip", **wish)
            same((skipped.anchors, len(skipped), skipped.left_out), (fits, fits, 120 - fits))
            check(not any(batch["lidar_is_pad"][0] for batch in skipped), "a gap was not skipped")
            masked = dataset.windows("cam", **wish)
            same(sum(bool(batch["lidar_is_pad"][0]) for batch in masked), 120 - fits)
            same(masked.gaps, {"lidar": 120 - fits})
            check(masked.skew["lidar"].max_ns >= masked.skew["lidar"].p99_ns > 0, masked.skew)
            words = str(raised(errors.OutOfRange, dataset.windows, "cam", gap="error", **wish))
            holds(words, "stream 'lidar' of episode 'e")


@case
def moments_resume_and_are_shared_by_ranks():
    source = seeded()
    with Scratch() as folder:
        log = Log(source, 2)
        shards = folder_of(folder, log)

        def make(rank=0, world=1, batch=4):
            dataset = Dataset(shards, batch=batch, rank=rank, world_size=world, device="cpu",
                              framework="numpy")
            return dataset.windows("cam", {"imu": 2})

        def keys(loop, most=None):
            return [list(batch["__key__"]) for batch in itertools.islice(loop, most)]

        whole = keys(make())
        same(len(make()), len(whole))
        ranks = [keys(make(rank, 2, 2)) for rank in range(2)]
        merged = [one for pair in zip(*ranks) for row in zip(*pair) for one in row]
        same(merged, [one for batch in whole for one in batch])
        first = make()
        begun = keys(first, 5)
        state = json.loads(json.dumps(first.state_dict()))
        second = make(0, 2, 2)
        second.load_state_dict(state)
        other = make(1, 2, 2)
        other.load_state_dict(state)
        rest = [one for pair in zip(keys(second), keys(other)) for row in zip(*pair) for one in row]
        same(begun + [rest[i:i + 4] for i in range(0, len(rest), 4)], whole)
        same(second.epoch, 1)
        check(keys(second) != ranks[0], "epochs are alike")
        wider = make()._dataset.windows("cam", {"imu": 3})
        holds(str(raised(errors.Mismatch, wider.load_state_dict, state)), "its policy.windows is")
        same(list(make().map(lambda batch: len(batch["__key__"]))), [4] * len(whole))
        samples = next(iter(make().collate(list)))
        same((len(samples), samples[0]["imu"].shape), (4, (2, 3)))


@case
def a_wish_that_cannot_be_had_is_refused():
    source = seeded()
    with Scratch() as folder:
        log = Log(source, 1)
        shards = folder_of(folder, log)
        common = {"device": "cpu", "framework": "numpy"}
        with Dataset(shards, **common) as dataset:
            for words, arguments in (
                    ("no stream 'radar'", ("cam", {"radar": "nearest"})),
                    ("no stream 'radar'", ("radar", {"cam": "nearest"})),
                    ("which holds no time", ("cam", {"imu": (0.1, 0.1)}))):
                holds(str(raised(errors.InvalidArgument, dataset.windows, *arguments)), words)
            window = dataset.windows("cam", {"touch": (-0.1, 0.1)}, rows=4, method="linear")
            same(next(iter(window))["touch"].shape, (1, 4, 6))
        with Dataset(shards, verify="sample", on_damage="skip", **common) as dataset:
            holds(str(raised(errors.Unsupported, dataset.windows, "cam", {"imu": 1})), "on_damage")
        with Dataset(shards, weights={shards: 1.0}, **common) as dataset:
            holds(str(raised(errors.Unsupported, dataset.windows, "cam", {"imu": 1})), "weights")
        with Dataset(shards, fields=["cam.jpg"], **common) as dataset:
            holds(str(raised(errors.InvalidArgument, dataset.windows, "cam", {"imu": 1})),
                  "has 0 of the fields")
        plain_shards = data.shards(os.path.join(folder, "plain"), data.numbered(5), 5)
        with Dataset(plain_shards, **common) as dataset:
            holds(str(raised(errors.InvalidArgument, dataset.windows, "cam", {"imu": 1})),
                  "streams are none")


if __name__ == "__main__":
    run()
