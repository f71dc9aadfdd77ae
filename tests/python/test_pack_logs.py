"""MCAP, rosbag2 and LeRobot inputs of ``onehop pack``, held against a decode by other packages.

The logs are written by mcap-ros2-support and rosbags from random messages; what comes out of the
packer's inputs is compared with what these packages read, message by message. Cases whose packages
are missing are skipped.
"""
import io
import json
import os
import pathlib
import pickle
import sqlite3
import struct
import sys
import tracemalloc
import types

from package import Scratch, need, raised, seeded
from tap import case, check, holds, run, same

try:
    import numpy as np
except ImportError:
    print("1..0 # SKIP numpy is not installed")
    sys.exit(0)

from onehop import errors
from onehop._pack import mcap_file
from onehop._pack import table as tables
from onehop._pack.episodes import open_joined
from onehop._pack.input import InputOptions, Rows, open_input
from onehop._pack.notes import Notes
from onehop._pack.rows import in_order
from onehop.shards import FileRange

START = 1_700_000_000 * 10**9
POINT = np.dtype({"names": ["x", "y", "ring", "t"], "formats": ["<f4", "<f4", "<u2", "<f8"],
                  "offsets": [0, 4, 8, 16], "itemsize": 32})


# ---- messages -----------------------------------------------------------------------------------


class Kinds:
    """Makes messages of rosbags' classes: one method for each topic."""

    def __init__(self, source):
        store = need("rosbags.typesys")
        self.store = store.get_typestore(store.Stores.ROS2_HUMBLE)
        self.source = source
        self.random = np.random.default_rng(source.randrange(1 << 32))

    def type(self, name):
        return self.store.types[name]

    def header(self, stamp):
        time = self.type("builtin_interfaces/msg/Time")(sec=stamp // 10**9, nanosec=stamp % 10**9)
        return self.type("std_msgs/msg/Header")(stamp=time, frame_id="f" * self.source.randrange(9))

    def bytes(self, count):
        return self.random.integers(0, 256, count, np.uint8)

    def image(self, stamp, encoding, height, step, width, big=0):
        return self.type("sensor_msgs/msg/Image")(
            header=self.header(stamp), height=height, width=width, encoding=encoding,
            is_bigendian=big, step=step, data=self.bytes(step * height))

    def cam(self, stamp):
        width = self.source.randrange(1, 9)
        return self.image(stamp, "rgb8", 5, 3 * width + self.source.choice([0, 1, 8]), width)

    def depth(self, stamp):
        return self.image(stamp, "16UC1", 6, 14, 7, self.source.randrange(2))

    def odd(self, stamp):
        return self.image(stamp, "jpegxs", 2, 3, 3)

    def small(self, stamp):
        return self.type("sensor_msgs/msg/CompressedImage")(
            header=self.header(stamp), format="jpeg",
            data=np.concatenate((np.frombuffer(b"\xff\xd8\xff\xe0", np.uint8),
                                 self.bytes(self.source.randrange(50)))))

    def points(self, stamp):
        count = self.source.randrange(0, 20)
        points = np.frombuffer(self.bytes(count * 32).tobytes(), POINT).copy()
        for name in ("x", "y", "t"):
            points[name] = self.random.normal(size=count)
        field = self.type("sensor_msgs/msg/PointField")
        return self.type("sensor_msgs/msg/PointCloud2")(
            header=self.header(stamp), height=1, width=count, fields=[
                field(name=name, offset=POINT.fields[name][1], datatype=kind, count=1)
                for name, kind in (("x", 7), ("y", 7), ("ring", 4), ("t", 8))],
            is_bigendian=False, point_step=32, row_step=32 * count,
            data=points.view(np.uint8).reshape(-1), is_dense=True)

    def imu(self, stamp):
        vector, quaternion = (self.type(f"geometry_msgs/msg/{name}")
                              for name in ("Vector3", "Quaternion"))
        values = self.random.normal(size=10).tolist()
        nine = self.random.normal(size=9)
        return self.type("sensor_msgs/msg/Imu")(
            header=self.header(self.source.choice([stamp, stamp, stamp, 0])),
            orientation=quaternion(*values[:4]), orientation_covariance=nine,
            angular_velocity=vector(*values[4:7]), angular_velocity_covariance=nine + 1,
            linear_acceleration=vector(*values[7:]), linear_acceleration_covariance=nine + 2)

    def joints(self, stamp):
        none = np.zeros(0)
        return self.type("sensor_msgs/msg/JointState")(
            header=self.header(stamp), name=["a", "bcd", "ef"], position=self.random.normal(size=3),
            velocity=self.source.choice([none, self.random.normal(size=3)]),
            effort=self.source.choice([none, self.random.normal(size=3)]))

    def touch(self, stamp):
        layout = self.type("std_msgs/msg/MultiArrayLayout")
        dim = self.type("std_msgs/msg/MultiArrayDimension")
        return self.type("std_msgs/msg/Float32MultiArray")(
            layout=layout(dim=[dim(label="taxel", size=4, stride=4)], data_offset=0),
            data=self.random.normal(size=4).astype(np.float32))

    def status(self, stamp):
        return self.type("std_msgs/msg/String")(data="x" * self.source.randrange(20))

    def pose(self, stamp):
        point, quaternion, pose = (self.type(f"geometry_msgs/msg/{name}")
                                   for name in ("Point", "Quaternion", "Pose"))
        place = pose(position=point(*self.random.normal(size=3).tolist()),
                     orientation=quaternion(0.0, 0.0, 0.0, 1.0))
        return self.type("geometry_msgs/msg/PoseStamped")(header=self.header(stamp), pose=place)


RATES = {"cam": 30, "depth": 15, "odd": 5, "small": 30, "points": 10, "imu": 200, "joints": 100,
         "touch": 500, "status": 3, "pose": 20}
TOPICS = {name: "/" + name for name in RATES} | {"cam": "/cam/image_raw", "small": "/cam/small"}
STREAMS = {name: topic[1:].replace("/", "_") for name, topic in TOPICS.items()}


def messages(kinds, seconds):
    """[(name, logged ns, published ns, message)], by when they were logged."""
    made = []
    for name, rate in RATES.items():
        late = kinds.source.choice([0, 10**6, 200 * 10**6])
        taken = START
        for number in range(int(seconds * rate)):
            if kinds.source.random() < 0.9:  # else it has the stamp of the one before
                taken = START + number * 10**9 // rate + kinds.source.randrange(10**6)
            sent = taken + kinds.source.randrange(late + 1)
            logged = sent + kinds.source.choice([0, 10**5])
            made.append((name, logged, sent, getattr(kinds, name)(taken)))
    return sorted(made, key=lambda one: one[1])


def plain(message):
    """A message of rosbags' as the dicts and lists that mcap-ros2-support writes."""
    if isinstance(message, np.ndarray):
        return message.tobytes() if message.dtype == np.uint8 else message.tolist()
    if isinstance(message, list):
        return [plain(one) for one in message]
    if hasattr(message, "__dataclass_fields__"):
        return {name: plain(getattr(message, name)) for name in message.__dataclass_fields__
                if not name.startswith("__")}
    return message


def write_mcap(path, kinds, made, **named):
    writer_of, mcap = need("mcap_ros2.writer"), need("mcap.writer")
    compression = kinds.source.choice(list(mcap.CompressionType))
    with open(path, "wb") as file:
        writer = writer_of.Writer(file, chunk_size=kinds.source.choice([1, 2000, 100_000]),
                                  compression=compression, **named)
        schemas = {}
        for name, logged, sent, message in made:
            kind = message.__msgtype__
            if kind not in schemas:
                schemas[kind] = writer.register_msgdef(
                    kind, kinds.store.generate_msgdef(kind, ros_version=2)[0])
            writer.write_message(TOPICS[name], schemas[kind], plain(message), logged, sent)
        writer.finish()
    return path


def write_bag(path, kinds, made, plugin, compression="NONE"):
    rosbag2 = need("rosbags.rosbag2")
    writer = rosbag2.Writer(pathlib.Path(path), version=9,
                            storage_plugin=rosbag2.StoragePlugin[plugin])
    if compression != "NONE":
        writer.set_compression(rosbag2.CompressionMode[compression],
                               rosbag2.CompressionFormat.ZSTD)
    with writer:
        connections = {}
        for name, logged, _, message in made:
            kind = message.__msgtype__
            if name not in connections:
                connections[name] = writer.add_connection(TOPICS[name], kind, typestore=kinds.store)
            writer.write(connections[name], logged, kinds.store.serialize_cdr(message, kind))
    return path


# ---- what others read ---------------------------------------------------------------------------


def numbers(*values):
    return np.array(values, np.float64)


def value_of(kind, message, data):
    """What a message becomes, from another package's decode: an array, or bytes."""
    if kind.endswith("CompressedImage"):
        return bytes(message.data)
    if kind.endswith("/Image") and message.encoding in ("rgb8", "16UC1"):
        rows = np.frombuffer(bytes(message.data), np.uint8).reshape(message.height, message.step)
        if message.encoding == "rgb8":
            return rows[:, :3 * message.width].reshape(message.height, message.width, 3)
        return rows.copy().view(">u2" if message.is_bigendian else "<u2").astype(np.uint16)
    if kind.endswith("PointCloud2"):
        points = np.frombuffer(bytes(message.data), POINT)
        return np.stack([points[name].astype(np.float64) for name in POINT.names], axis=1)
    if kind.endswith("/Imu"):
        turn, rate, push = (message.orientation, message.angular_velocity,
                            message.linear_acceleration)
        return numbers(turn.x, turn.y, turn.z, turn.w, rate.x, rate.y, rate.z, push.x, push.y,
                       push.z)
    if kind.endswith("JointState"):
        return np.array([list(part) if len(part) else [np.nan] * len(message.name)
                         for part in (message.position, message.velocity, message.effort)])
    if kind.endswith("Float32MultiArray"):
        return np.array(message.data, np.float32)
    return bytes(data)


def stamp_of(message):
    header = getattr(message, "header", None)
    return header.stamp.sec * 10**9 + header.stamp.nanosec if header else 0


def read_mcap(path):
    """[(topic, logged, published, stamp, value)] by mcap and mcap-ros2-support."""
    reader, decoder = need("mcap.reader"), need("mcap_ros2.decoder")
    with open(path, "rb") as file:
        found = reader.make_reader(file, decoder_factories=[decoder.DecoderFactory()])
        return [(channel.topic, message.log_time, message.publish_time, stamp_of(decoded),
                 value_of(schema.name, decoded, message.data))
                for schema, channel, message, decoded in found.iter_decoded_messages()]


def read_bag(path):
    rosbag2, store = need("rosbags.rosbag2"), need("rosbags.typesys")
    types_of = store.get_typestore(store.Stores.ROS2_HUMBLE)
    made = []
    with rosbag2.Reader(pathlib.Path(path)) as reader:
        for connection, logged, data in reader.messages():
            message = types_of.deserialize_cdr(data, connection.msgtype)
            made.append((connection.topic, logged, logged, stamp_of(message),
                         value_of(connection.msgtype, message, data)))
    return made


# ---- what is packed -----------------------------------------------------------------------------


def payload(part):
    if isinstance(part.source, FileRange):
        with open(part.source.path, "rb") as file:
            return file.read()
    return bytes(part.source)


def packed(opened, limit):
    """{stream: [(time, value, field)]} of all records, by ordinal; and the samples, in order."""
    records, samples = {}, []
    for job in opened.jobs(limit):
        items = pickle.loads(pickle.dumps(job)).items(Notes())
        for sample in in_order(items, Notes(), chunk_bytes=2000) if job.log else items:
            check(not isinstance(sample, Rows), "rows outside of a log")
            samples.append(sample)
            if not job.log:
                continue
            mine = records.setdefault((sample.episode, sample.stream), [])
            same(sample.key, f"{sample.episode}/{sample.stream}/{len(mine):09d}", "key")
            mine += record_of(sample)
    return records, samples


def record_of(sample):
    first = sample.parts[0]
    value = payload(first)
    if first.field.endswith(".npy"):
        value = np.load(io.BytesIO(value))
        if len(sample.parts) == 2:
            same(sample.parts[1].field, f"{sample.stream}.time.npy", "field of times")
            times = np.load(io.BytesIO(payload(sample.parts[1])))
            same(len(times), sample.rows, "rows")
            return [(int(time), row, first.field) for time, row in zip(times, value)]
    return [(sample.timestamp_ns, value, first.field)]


def equal(one, other):
    if isinstance(other, bytes):
        return one == other
    return one.dtype == other.dtype and one.shape == other.shape and \
        np.array_equal(one, other, equal_nan=True)


def compare(records, episode, read, which):
    """Holds packed records against another package's, whose order is that of logging."""
    time_of = {"header": lambda logged, sent, stamp: stamp or logged,
               "log": lambda logged, sent, stamp: logged,
               "publish": lambda logged, sent, stamp: sent}[which]
    for name, topic in TOPICS.items():
        want = sorted(((time_of(logged, sent, stamp), value) for found, logged, sent, stamp, value
                       in read if found == topic), key=lambda one: one[0])
        got = records.pop((episode, STREAMS[name]))
        same(len(got), len(want), f"records of {topic}")
        same([time for time, _, _ in got], [time for time, _ in want], f"times of {topic}")
        for row, ((_, value, _), (_, wanted)) in enumerate(zip(got, want)):
            check(equal(value, wanted), f"{topic}, record {row}: {value!r} is not {wanted!r}")
    same(records, {}, "streams that were not written")


def fields(samples):
    return {part.field for sample in samples for part in sample.parts}


FIELDS = {"cam_image_raw.npy", "depth.npy", "depth.time.npy", "odd.cdr", "cam_small.jpg",
          "points.npy", "imu.npy", "imu.time.npy", "joints.npy", "joints.time.npy", "touch.npy",
          "touch.time.npy", "status.cdr", "pose.cdr"}


# ---- cases --------------------------------------------------------------------------------------


@case
def an_mcap_is_packed_as_its_own_packages_read_it():
    source = seeded()
    for _ in range(3):
        with Scratch() as folder:
            kinds = Kinds(source)
            path = write_mcap(os.path.join(folder, "run.mcap"), kinds, messages(kinds, 1.7))
            read = read_mcap(path)
            for which in ("header", "log", "publish"):
                opened = open_input(path, InputOptions(time=which))
                for limit in (1, source.randrange(1000, 100_000), 1 << 40):
                    records, samples = packed(opened, limit)
                    same(fields(samples), FIELDS, "fields")
                    compare(records, "run", read, which)


@case
def a_rosbag2_is_packed_as_its_own_package_reads_it():
    source = seeded()
    for plugin, compression in (("SQLITE3", "NONE"), ("SQLITE3", "MESSAGE"), ("SQLITE3", "FILE"),
                                ("MCAP", "NONE"), ("MCAP", "STORAGE")):
        with Scratch() as folder:
            kinds = Kinds(source)
            path = write_bag(os.path.join(folder, "bag"), kinds, messages(kinds, 1.7), plugin,
                             compression)
            read = read_bag(path)
            for which in ("header", "log"):
                opened = open_input(path, InputOptions(time=which))
                for limit in (1, source.randrange(1000, 100_000), 1 << 40):
                    records, samples = packed(opened, limit)
                    same(fields(samples), FIELDS, "fields")
                    compare(records, "bag", read, which)
            holds(str(raised(errors.InvalidArgument, open_input, path,
                             InputOptions(time="publish"))), "--time header or --time log")


@case
def what_stays_bytes_or_has_no_stamp_is_listed_and_skews_are_counted():
    with Scratch() as folder:
        kinds = Kinds(seeded())
        made = messages(kinds, 1.0)
        path = write_mcap(os.path.join(folder, "run.mcap"), kinds, made)
        opened = open_input(path, InputOptions())
        words = str(opened.notes.summary())
        for part in ("/status stays bytes (status.cdr), of type std_msgs/msg/String",
                     "/pose stays bytes (pose.cdr)", "/odd stays bytes (odd.cdr), its encoding is",
                     "500 of 500 messages of topic /touch have no stamp",
                     "stream cam/image_raw', 'stream cam_image_raw"):
            holds(words, part)
        zeros = sum(name == "imu" and not stamp_of(message) for name, _, _, message in made)
        holds(words, f"{zeros} of 200 messages of topic /imu have no stamp")
        notes = Notes()
        for job in opened.jobs(10_000):
            list(job.items(notes))
        for name in ("cam", "imu", "pose"):
            skews = [abs(stamp_of(message) - logged) for found, logged, _, message in made
                     if found == name and stamp_of(message)]
            same(notes.streams[STREAMS[name]]["skew_max_ns"], max(skews), f"skew of {name}")
            same(notes.streams[STREAMS[name]]["skews"], len(skews), f"skews of {name}")
        check("touch" not in notes.streams, "touch has a skew without a stamp")


@case
def streams_are_kept_in_chunks_or_apart_as_asked():
    with Scratch() as folder:
        kinds = Kinds(seeded())
        path = write_mcap(os.path.join(folder, "run.mcap"), kinds, messages(kinds, 1.0))
        opened = open_input(path, InputOptions(rows=frozenset(["imu"])))
        _, samples = packed(opened, 1 << 40)
        same(sum(sample.stream == "imu" for sample in samples), 200, "samples of imu")
        check(sum(sample.stream == "joints" for sample in samples) < 50, "joints are in no chunks")
        error = raised(errors.InvalidArgument, open_input, path,
                       InputOptions(columns=frozenset(["points"])))
        holds(str(error), "points")
        nothing = kinds.joints(START)
        nothing.name, nothing.position, nothing.velocity, nothing.effort = [], *[np.zeros(0)] * 3
        path = write_mcap(path, kinds, [("joints", time, time, nothing) for time in (1, 2)])
        _, samples = packed(open_input(path, InputOptions()), 1)
        same(fields(samples), {"joints.npy"}, "fields of records without bytes")


@case
def a_record_that_was_logged_far_too_late_lies_where_it_belongs():
    with Scratch() as folder:
        kinds = Kinds(seeded())
        made = [("pose", START + number, START, kinds.pose(START + number))
                for number in range(2000)]
        made.append(("pose", START + 5000, START, kinds.pose(START - 1)))
        path = write_mcap(os.path.join(folder, "run.mcap"), kinds, made)
        records, _ = packed(open_input(path, InputOptions()), 1 << 40)
        same([time for time, _, _ in records["run", "pose"]],
             [START - 1, *range(START, START + 2000)], "times")
        records, _ = packed(open_input(path, InputOptions(time="log")), 1 << 40)
        same(records["run", "pose"][-1][0], START + 5000, "the last record's time")


LAYOUTS = {"chunks": {"chunk_size": 300_000}, "no chunks": {"use_chunking": False},
           "one chunk": {"chunk_size": 1 << 40}}


def write_large(path, source, count, layout, compression="NONE", early=True):
    """Messages of 100,000 bytes, each beside one of the log's first nanoseconds. Returns all."""
    mcap, made = need("mcap.writer"), []
    with open(path, "wb") as file:
        writer = mcap.Writer(file, compression=mcap.CompressionType[compression],
                             **LAYOUTS[layout])
        writer.start()
        large, small = (writer.register_channel(topic, "json", 0) for topic in ("/a", "/b"))
        for number in range(count):
            made.append(source.randbytes(50_000) + bytes(50_000))
            writer.add_message(large, START + number * 10**7, made[-1], START)
            if early:
                writer.add_message(small, number, b"{}", number)
        writer.finish()
    return made


@case
def a_log_is_never_held_in_memory_however_it_is_written():
    """Where all chunks begin at one time, and where there are none, or one for all."""
    source = seeded()
    kept, mcap_file._KEPT_BYTES = mcap_file._KEPT_BYTES, 2_000_000
    try:
        for layout, compression in (("chunks", "NONE"), ("chunks", "ZSTD"), ("chunks", "LZ4"),
                                    ("no chunks", "NONE"), ("one chunk", "NONE")):
            with Scratch() as folder:
                path = os.path.join(folder, "run.mcap")
                made = write_large(path, source, 200, layout, compression)
                open_input(path, InputOptions())  # modules that are loaded are not counted
                tracemalloc.start()
                opened = open_input(path, InputOptions())
                count = 0
                for job in opened.jobs(1_000_000):
                    for item in job.items(Notes()):
                        if item.stream == "a":
                            check(payload(item.parts[0]) == made[count], f"record {count}")
                            count += 1
                _, peak = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                same(count, 200, "records")
                check(peak < 4_000_000, f"{peak} bytes of {layout}, {compression}, were held")
    finally:
        mcap_file._KEPT_BYTES = kept
        tracemalloc.stop()


@case
def what_would_have_to_be_held_and_is_too_large_is_refused():
    source = seeded()
    largest, mcap_file._LARGEST = mcap_file._LARGEST, 1_000_000
    try:
        with Scratch() as folder:
            path = os.path.join(folder, "run.mcap")
            write_large(path, source, 20, "one chunk", "ZSTD")
            holds(refused(path, errors.Limit), "the chunk at")
            write_large(path, source, 20, "one chunk", "NONE")
            same(refused(path, errors.Limit), "")
            mcap_file._LARGEST = 99_999
            holds(refused(path, errors.Limit), "the message at")
    finally:
        mcap_file._LARGEST = largest
    for how, module in (("zstd", "zstandard"), ("lz4", "lz4.frame")):
        bomb = need(module).compress(bytes(10_000_000))
        check(len(bomb) < 100_000, "it is no bomb")
        tracemalloc.start()
        try:
            made = mcap_file.decompressed("log", how, bomb, 1000)
            check(len(made) <= 1000, f"{how} made {len(made)} bytes of 1000")
        except ValueError as error:
            holds(str(error), "10000000 bytes of what has 1000")
        same(tracemalloc.get_traced_memory()[1] < 5_000_000, True, f"{how} was held")
        tracemalloc.stop()
        small = need(module).compress(b"abc" * 99)
        for size in (297, None):
            same(mcap_file.decompressed("log", how, small, size), b"abc" * 99)
    error = raised(errors.UnsupportedData, mcap_file.decompressed, "run.mcap", "brotli", b"", 1)
    holds(str(error), "run.mcap")


def refused(path, *kinds):
    """Opens and packs; what fails is an error of ours that names the file. Its words, or ""."""
    try:
        packed(open_input(path, InputOptions()), 10_000)
    except kinds as error:
        holds(str(error), os.path.basename(path))
        check(error.remedy, f"no remedy: {error}")
        return str(error)
    return ""


@case
def damaged_mcaps_are_refused_by_name():
    source = seeded()
    kinds = Kinds(source)
    with Scratch() as folder:
        whole = write_mcap(os.path.join(folder, "run.mcap"), kinds, messages(kinds, 0.3))
        with open(whole, "rb") as file:
            data = file.read()
        path = os.path.join(folder, "bad.mcap")
        for _ in range(60):
            with open(path, "wb") as file:
                file.write(data[:source.randrange(16, len(data))])
            holds(refused(path, errors.Malformed), "it was cut, or recording was not finished")
        with open(path, "wb") as file:
            file.write(data[:9])
        holds(refused(path, errors.Malformed), "has 9 bytes")
        count = 0
        for _ in range(200):
            bad = bytearray(data)
            bad[source.randrange(8, len(bad) - 8)] ^= 1 << source.randrange(8)
            with open(path, "wb") as file:
                file.write(bad)
            count += bool(refused(path, errors.OnehopError))
        check(count > 100, f"{count} of 200 flipped bits were noticed")


@case
def an_mcap_that_lacks_messages_is_refused():
    kinds = Kinds(seeded())
    made = messages(kinds, 0.3)
    with Scratch() as folder:
        path = write_mcap(os.path.join(folder, "run.mcap"), kinds, made)
        with open(path, "rb") as file:
            data = file.read()
        topics = len({name for name, *_ in made})
        told = struct.pack("<BQQ", 0x0b, 46 + 10 * topics, len(made))  # the statistics' beginning
        same(data.count(told), 1, "statistics that were found")
        with open(path, "wb") as file:
            file.write(data.replace(told, told[:9] + struct.pack("<Q", len(made) + 1)))
        holds(refused(path, errors.Malformed),
              f"holds {len(made)} messages, and tells of {len(made) + 1}")


@case
def points_of_absurdly_many_values_are_refused():
    kinds = Kinds(seeded())
    with Scratch() as folder:
        cloud = kinds.points(START)
        cloud.fields[0].count = 1 << 28
        cloud.point_step, cloud.width, cloud.data = 1 << 31, 0, np.zeros(0, np.uint8)
        path = write_mcap(os.path.join(folder, "run.mcap"), kinds, [("points", 1, 1, cloud)])
        holds(refused(path, errors.Malformed), "more than 4096 values")


@case
def an_mcap_without_a_summary_is_refused():
    mcap = need("mcap.writer")
    with Scratch() as folder:
        path = os.path.join(folder, "run.mcap")
        with open(path, "wb") as file:
            writer = mcap.Writer(file, index_types=mcap.IndexType.NONE, use_statistics=False,
                                 repeat_channels=False, repeat_schemas=False,
                                 use_summary_offsets=False)
            writer.start()
            channel = writer.register_channel(topic="/a", message_encoding="json", schema_id=0)
            writer.add_message(channel_id=channel, log_time=1, publish_time=1, data=b"{}")
            writer.finish()
        check(refused(path, errors.Malformed), "it was packed")


@case
def messages_that_are_not_what_they_say_are_refused_by_topic_and_time():
    mcap, kinds = need("mcap.writer"), Kinds(seeded())
    for name in ("sensor_msgs/msg/Image", "sensor_msgs/msg/PointCloud2", "sensor_msgs/msg/Imu",
                 "sensor_msgs/msg/JointState", "sensor_msgs/msg/CompressedImage"):
        with Scratch() as folder:
            path = os.path.join(folder, "run.mcap")
            maker = {"Image": kinds.cam, "PointCloud2": kinds.points, "Imu": kinds.imu,
                     "JointState": kinds.joints, "CompressedImage": kinds.small}
            message = maker[name.rpartition("/")[2]](START)
            data = bytes(kinds.store.serialize_cdr(message, name))
            with open(path, "wb") as file:
                writer = mcap.Writer(file)
                writer.start()
                schema = writer.register_schema(name, "ros2msg", kinds.store.generate_msgdef(
                    name, ros_version=2)[0].encode())
                channel = writer.register_channel("/bad", "cdr", schema)
                writer.add_message(channel, 77, data[:kinds.source.randrange(len(data) - 1)], 77)
                writer.finish()
            error = raised(errors.Malformed, open_input, path, InputOptions())
            for part in ("run.mcap", "/bad", name, "logged at 77 ns"):
                holds(str(error), part)


@case
def messages_of_other_encodings_stay_as_they_are():
    mcap = need("mcap.writer")
    with Scratch() as folder:
        path = os.path.join(folder, "run.mcap")
        with open(path, "wb") as file:
            writer = mcap.Writer(file)
            writer.start()
            for topic, encoding in (("/a", "json"), ("/b", "protobuf"), ("/c", "other")):
                channel = writer.register_channel(topic, encoding, 0)
                for time in (5, 5, 3):
                    writer.add_message(channel, time, b'{"v": %d}' % time, time)
            writer.finish()
        records, samples = packed(open_input(path, InputOptions()), 1)
        same(fields(samples), {"a.json", "b.pb", "c.bin"}, "fields")
        same([(time, value) for time, value, _ in records["run", "a"]],
             [(3, b'{"v": 3}'), (5, b'{"v": 5}'), (5, b'{"v": 5}')], "records")


@case
def damaged_rosbags_and_parts_of_them_are_refused():
    kinds = Kinds(seeded())
    with Scratch() as folder:
        path = write_bag(os.path.join(folder, "bag"), kinds, messages(kinds, 0.3), "SQLITE3")
        part = os.path.join(path, "bag.db3")
        with sqlite3.connect(part) as database:
            database.execute("DELETE FROM messages WHERE id = 5")
        database.close()
        holds(refused(path, errors.Malformed), "messages, and tells of")
        error = raised(errors.InvalidArgument, open_input, part, InputOptions())
        holds(str(error), "metadata.yaml")
        with open(part, "r+b") as file:
            file.truncate(os.path.getsize(part) // 2)
        check(refused(path, errors.Malformed), "a cut database was packed")
        old = os.path.join(folder, "old.bag")
        with open(old, "wb") as file:
            file.write(b"#ROSBAG V2.0\n")
        holds(str(raised(errors.UnsupportedData, open_input, old, InputOptions())),
              "rosbags-convert")


# ---- LeRobot ------------------------------------------------------------------------------------


FPS = 30
CAMERA = "observation.images.top"


def encode_video(path, frames):
    """Frames of one grey each, as an mp4; returns nothing."""
    av = need("av")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with av.open(path, "w") as container:
        stream = container.add_stream("mjpeg", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        for grey in frames:
            image = np.full((48, 64, 3), grey, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())


def greys(episode, length):
    return [(40 * episode + 9 * row) % 200 + 20 for row in range(length)]


def write_lerobot(folder, source, lengths, per_file=2, **info):
    """A dataset of version 3, as LeRobot lays it out. Returns what each episode holds."""
    arrow, parquet = need("pyarrow"), need("pyarrow.parquet")
    random = np.random.default_rng(source.randrange(1 << 32))
    episodes, index, made = [], 0, []
    for first in range(0, len(lengths), per_file):
        rows, number, frames = [], first // per_file, []
        for episode in range(first, min(first + per_file, len(lengths))):
            length = lengths[episode]
            values = {"state": random.normal(size=(length, 6)).astype(np.float32),
                      "grid": random.normal(size=(length, 2, 3)),
                      "done": random.random(length) < 0.5,
                      "pictures": [b"\x89PNG" + random.bytes(9) for _ in range(length)]}
            made.append(values)
            begin = len(frames) / FPS
            frames += greys(episode, length)
            episodes.append({
                "episode_index": episode, "tasks": [f"task {episode % 2}"], "length": length,
                "data/chunk_index": 0, "data/file_index": number,
                "dataset_from_index": index, "dataset_to_index": index + length,
                f"videos/{CAMERA}/chunk_index": 0, f"videos/{CAMERA}/file_index": number,
                f"videos/{CAMERA}/from_timestamp": begin,
                f"videos/{CAMERA}/to_timestamp": len(frames) / FPS, "stats/state/mean": [0.0]})
            rows.append(arrow.table({
                "observation.state": arrow.array(list(values["state"]),
                                                 arrow.list_(arrow.float32(), 6)),
                "grid": [row.tolist() for row in values["grid"]], "next.done": values["done"],
                "wrist": [{"bytes": one, "path": None} for one in values["pictures"]],
                "timestamp": (np.arange(length) / FPS).astype(np.float32),
                "frame_index": np.arange(length), "episode_index": np.full(length, episode),
                "index": np.arange(index, index + length), "task_index": np.zeros(length, int)}))
            index += length
        path = f"{folder}/data/chunk-000/file-{number:03d}.parquet"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        parquet.write_table(arrow.concat_tables(rows), path,
                            row_group_size=source.choice([1, 7, 1000]))
        encode_video(f"{folder}/videos/{CAMERA}/chunk-000/file-{number:03d}.mp4", frames)
    write_lerobot_meta(folder, episodes, info)
    return made


def write_lerobot_meta(folder, episodes, info):
    arrow, parquet = need("pyarrow"), need("pyarrow.parquet")
    os.makedirs(f"{folder}/meta/episodes/chunk-000")
    parquet.write_table(arrow.Table.from_pylist(episodes),
                        f"{folder}/meta/episodes/chunk-000/file-000.parquet")
    number = {"dtype": "int64", "shape": [1]}
    features = {"observation.state": {"dtype": "float32", "shape": [6]},
                "grid": {"dtype": "float64", "shape": [2, 3]},
                "next.done": {"dtype": "bool", "shape": [1]},
                "wrist": {"dtype": "image", "shape": [4, 4, 3]},
                CAMERA: {"dtype": "video", "shape": [48, 64, 3]},
                "timestamp": {"dtype": "float32", "shape": [1]}, "frame_index": number,
                "episode_index": number, "index": number, "task_index": number}
    with open(f"{folder}/meta/info.json", "w", encoding="utf-8") as file:
        json.dump({"codebase_version": "v3.0", "fps": FPS, "features": features, **info}, file)


def expected_times(length):
    return [round(row * 10**9 / FPS) for row in range(length)]


def check_lerobot(records, made, lengths):
    for episode, (values, length) in enumerate(zip(made, lengths)):
        name = f"episode_{episode:06d}"
        for stream, want in (("observation_state", values["state"]), ("grid", values["grid"]),
                             ("next_done", values["done"]), ("wrist", values["pictures"]),
                             ("frame_index", np.arange(length))):
            got = records[name, stream]
            same([time for time, _, _ in got], expected_times(length), f"times of {stream}")
            check(all(equal(np.asarray(one), np.asarray(other)) if stream != "wrist"
                      else one == other for (_, one, _), other in zip(got, want)), stream)
        told = json.loads(records[name, "episode"][0][1])
        same((told["length"], told["tasks"]), (length, [f"task {episode % 2}"]), "the episode")


@case
def a_lerobot_dataset_keeps_its_video_and_its_numbers():
    source = seeded()
    with Scratch() as folder:
        lengths = [source.randrange(1, 40) for _ in range(5)]
        made = write_lerobot(folder, source, lengths)
        opened = open_input(folder, InputOptions())
        for limit in (1, 1 << 40):
            records, samples = packed(opened, limit)
            check_lerobot(records, made, lengths)
            files = {sample.key: sample for sample in samples if sample.timestamp_ns is None}
            same(len(files), 4, "files that are packed as they are")
            begin = 0
            for episode, length in enumerate(lengths):
                stream = CAMERA.replace(".", "_")
                told = json.loads(records[f"episode_{episode:06d}", stream][0][1])
                begin = begin if episode % 2 else 0
                same((told["frames"], told["fps"]), (length, FPS), "frames")
                check(abs(told["from_s"] - begin) < 1e-9, f"from_s is {told['from_s']}")
                begin += length / FPS
                video = files[told["video"]].parts[0]
                same(video.field, f"{stream}.mp4", "field of the video")
                with open(f"{folder}/videos/{CAMERA}/chunk-000/file-{episode // 2:03d}.mp4",
                          "rb") as file:
                    same(payload(video), file.read(), "bytes of the video")


@case
def frames_of_a_lerobot_dataset_are_decoded_when_asked_for():
    source = seeded()
    with Scratch() as folder:
        lengths = [source.randrange(1, 40) for _ in range(4)]
        made = write_lerobot(folder, source, lengths)
        records, _ = packed(open_input(folder, InputOptions(video="frames")), 1 << 20)
        check_lerobot(records, made, lengths)
        for episode, length in enumerate(lengths):
            frames = records[f"episode_{episode:06d}", CAMERA.replace(".", "_")]
            same([time for time, _, _ in frames], expected_times(length), "times of frames")
            for (_, frame, _), grey in zip(frames, greys(episode, length)):
                same((frame.shape, frame.dtype), ((48, 64, 3), np.uint8), "a frame")
                check(abs(frame.mean() - grey) < 4, f"a frame of {grey} is {frame.mean()}")
    with Scratch() as folder:
        write_lerobot(folder, source, [5], fps=2 * FPS)  # of which the video has every second
        error = raised(errors.Malformed, lambda: packed(
            open_input(folder, InputOptions(video="frames")), 1 << 20))
        holds(str(error), "no frame at 0.016667 s, which is frame 1 of episode 0")


def touch_manifest(folder, values, begin=-5):
    """100 records of touch in a file, dealt to two of the robot's episodes and to another."""
    os.makedirs(folder)
    values.tofile(os.path.join(folder, "t.bin"))
    path = os.path.join(folder, "touch.csv")
    with open(path, "w", encoding="utf-8") as file:
        file.write("episode,stream,timestamp_ns,path,offset,size,dtype,shape\n")
        for row in range(100):
            name = ("episode_000000", "episode_000002", "other")[row % 3]
            file.write(f"{name},touch,{row * 10**6 + begin},t.bin,{12 * row},12,float32,3\n")
    return path


def force_table(path):
    """A Parquet log of small groups, in which the robot's episodes share some."""
    arrow, parquet = need("pyarrow"), need("pyarrow.parquet")
    names = ["episode_000000"] * 25 + ["episode_000001"] * 14 + ["nowhere"] * 11
    times = [*range(25), *range(14), *range(11)]
    parquet.write_table(arrow.table({
        "episode": names, "timestamp_ns": arrow.array(times, arrow.int64()),
        "force": np.arange(50, dtype=np.float32)}), path, row_group_size=10)
    return path


@case
def streams_of_other_clocks_join_episodes():
    source = seeded()
    with Scratch() as folder:
        lengths = [20, 10, 5]
        robot = os.path.join(folder, "robot")
        made = write_lerobot(robot, source, lengths)
        values = np.arange(300, dtype=np.float32).reshape(100, 3)
        rows_at_once, tables._ROWS = tables._ROWS, 3
        try:
            joined = open_joined(
                [robot, touch_manifest(os.path.join(folder, "touch"), values),
                 force_table(os.path.join(folder, "force.parquet"))], InputOptions())
        finally:
            tables._ROWS = rows_at_once
        records, samples = packed(joined, 1 << 20)
        check_lerobot(records, made, lengths)
        for remainder, name in enumerate(("episode_000000", "episode_000002")):
            got, rows = records[name, "touch"], range(remainder, 100, 3)
            same([time for time, _, _ in got], [row * 10**6 - 5 for row in rows], "times of touch")
            check(all(equal(one, other) for (_, one, _), other in zip(got, values[remainder::3])),
                  "touch")
        for name, first, count in (("episode_000000", 0, 25), ("episode_000001", 25, 14)):
            got = [(time, float(value)) for time, value, _ in records[name, "force"]]
            same(got, [(row, first + row) for row in range(count)], f"force of {name}")
        same({name for name, _ in records}, {f"episode_{row:06d}" for row in range(3)}, "episodes")
        for words in ("episode other of", "episode nowhere of"):
            holds(str(joined.notes.summary()), words)
        timed = [(sample.episode, sample.timestamp_ns) for sample in samples
                 if sample.timestamp_ns is not None]
        same(timed, sorted(timed), "the order")


@case
def a_clock_of_another_origin_is_set_as_it_is_said():
    """Touch by the time since 1970, and episodes that count from 0."""
    source = seeded()
    values = np.arange(300, dtype=np.float32).reshape(100, 3)
    with Scratch() as folder:
        robot, table = os.path.join(folder, "robot"), os.path.join(folder, "clock.csv")
        made, lengths = write_lerobot(robot, source, [20, 10, 5]), [20, 10, 5]
        touch = touch_manifest(os.path.join(folder, "touch"), values, START)

        def touched(clock):
            joined = open_joined([robot, touch], InputOptions(clock=clock))
            records, samples = packed(joined, 1 << 20)
            check_lerobot(records, made, lengths)
            timed = [(sample.episode, sample.timestamp_ns) for sample in samples
                     if sample.timestamp_ns is not None]
            same(timed, sorted(timed), "the order")
            return joined, [[time for time, _, _ in records[f"episode_{number:06d}", "touch"]]
                            for number in (0, 2)]

        def starts(text):
            with open(table, "w", encoding="utf-8") as file:
                file.write(text)
            return table

        for words in ("from 1700000000000000000 to", "is from 0 to 633333333 ns", "--clock start"):
            holds(str(raised(errors.InvalidArgument, touched, "episode")), words)
        joined, times = touched("start")
        rows = [range(remainder, 100, 3) for remainder in (0, 1)]
        same(times, [[(row - mine[0]) * 10**6 for row in mine] for mine in rows])
        told = joined.notes.summary()["lists"]["shifted"]
        same((told["count"], told["first"][1][1]), (2, "by -1700000000001000000 ns"))
        begins = [START - source.randrange(10**8) for _ in rows]
        joined, times = touched(starts(
            f"start_ns,episode\n{begins[0]},episode_000000\n{begins[1]},episode_000002\n"))
        same(times, [[START + row * 10**6 - begin for row in mine]
                     for mine, begin in zip(rows, begins)])
        jobs = joined.jobs(1 << 20)
        other = open_joined([robot, touch], InputOptions(clock="start"))
        same([one.digest == two.digest for one, two in zip(jobs, other.jobs(1 << 20))],
             [True, False, True, False], "digests")
        line = "episode_000000,5\n"
        for text, kind, words in (
                (f"episode,start_ns\n{line}", errors.InvalidArgument, "clocks are not one"),
                (f"episode,start_ns\nepisode_000000,{START}\n", errors.InvalidArgument,
                 "does not say when episode episode_000002"),
                (f"episode,start_ns\n{line}episode_000000,6\n", errors.Malformed, "row 2"),
                (f"episode\n{line}", errors.Malformed, "row 1, has no episode or no"),
                (f"episode,start_ns\n{line}x,{1 << 63}\n", errors.Malformed, "row 2, has no"),
                (f"episode,start_ns\n{line}x,1.5\n", errors.Malformed, "row 2, has no")):
            holds(str(raised(kind, touched, starts(text))), words)
        holds(str(raised(errors.NotFound, touched, table + ".csv")), "--clock names")


@case
def what_cannot_be_joined_is_refused():
    source = seeded()
    with Scratch() as folder:
        write_lerobot(folder, source, [3, 4])
        for paths, words in (([folder], "one input is given"),
                             ([folder, folder], "stream 'observation_state' of episode"),
                             ([folder, folder + "/meta"], "without episodes and times")):
            error = raised(errors.InvalidArgument, open_joined, paths,
                           InputOptions())
            holds(str(error), words)


@case
def lerobot_datasets_that_are_wrong_are_refused_in_words():
    source = seeded()
    for info, kind, words in (
            ({"codebase_version": "v2.1"}, errors.UnsupportedData, "convert_dataset_v21_to_v30"),
            ({"fps": 0}, errors.Malformed, "fps is 0"), ({"fps": True}, errors.Malformed, "fps"),
            ({"features": []}, errors.Malformed, "no features"),
            ({"features": {"a": {"dtype": "float32"}}}, errors.Malformed, "'a' has no shape"),
            ({"features": {"a": {"dtype": "float32", "shape": [1]}}}, errors.Malformed,
             "no column 'a'"),
            ({"features": {"grid": {"dtype": "float64", "shape": [7]}}}, errors.Malformed,
             "for 3 frames of shape [7]"),
            ({"data_path": "../{chunk_index}"}, errors.Malformed, "no path within the dataset"),
            ({"data_path": "{chunk_index:999999d}"}, errors.Malformed, "no path within"),
            ({"data_path": "{robot}"}, errors.Malformed, "has no robot"),
            ({"data_path": "elsewhere"}, errors.NotFound, "elsewhere")):
        with Scratch() as folder:
            write_lerobot(folder, source, [3, 4], **info)
            error = raised(kind, lambda: packed(open_input(folder, InputOptions()), 1 << 20))
            holds(str(error), words)
            check(error.remedy, f"no remedy: {error}")
    with Scratch() as folder:
        write_lerobot(folder, source, [3, 4])
        for cut in ("data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"):
            path = os.path.join(folder, cut)
            with open(path, "rb") as file:
                data = file.read()
            with open(path, "wb") as file:
                file.write(data[:len(data) // 2])
            holds(str(raised(errors.Malformed, lambda: packed(
                open_input(folder, InputOptions()), 1 << 20))), cut)
            with open(path, "wb") as file:
                file.write(data)


@case
def a_package_that_is_missing_is_named():
    with Scratch() as folder:
        path = os.path.join(folder, "run.mcap")
        with open(path, "wb") as file:
            file.write(b"\x89MCAP0\r\n")
        hidden = {name: module for name, module in sys.modules.items()
                  if name.partition(".")[0] == "mcap"}
        for name in hidden:
            del sys.modules[name]
        sys.modules["mcap"] = types.ModuleType("mcap")  # which has no module `reader`
        try:
            error = raised(errors.Unsupported, open_input, path, InputOptions())
        finally:
            del sys.modules["mcap"]
            sys.modules.update(hidden)
        holds(str(error), "pip install mcap")


if __name__ == "__main__":
    run()
