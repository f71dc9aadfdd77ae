"""onehop.GPUDirectStoragePipeline: its rules against a model, and real bytes.

usage: test_pipeline.py [FOLDER of the look-alike driver]
"""
import ctypes
import decimal
import os
import random
import sys
import warnings
from fractions import Fraction

from package import Scratch, need, python, raised, seeded
from tap import Skip, case, check, holds, run, same

import onehop
from onehop import _library, _move, _runtime, errors, reading

PAGE = 4096
KEYS = ["bytes_enqueued", "bytes_completed", "bytes_in_flight", "tasks_pending", "tasks_completed",
        "steps", "steps_without_progress", "seconds", "gb_per_s", "short_bytes", "blocked"]
Pipeline = onehop.GPUDirectStoragePipeline


def misaligned(field, value, alignment=PAGE):
    return f"GDS 对齐违背: {field} ({value}) 未按 {alignment} 字节对齐"


def filled(sizes, **named):
    """A pipeline with tasks 0, 1, ... of these sizes, one after the other."""
    pipeline = Pipeline(**named)
    for number, size in enumerate(sizes):
        pipeline.enqueue_read(number, 0, size)
    return pipeline


def raw(folder, data, name="raw"):
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.write(data)
    return path


# ---- the programs of the text


@case
def alignment_is_checked_as_the_text_says():
    pipeline = Pipeline(gpu_id=0, alignment_bytes=4096)
    same(pipeline.validate_alignment(8192, 16384, 40960), (True, None))
    is_right, reason = pipeline.validate_alignment(8192, 16385, 40960)
    same(is_right, False)
    same(reason, misaligned("buffer_address", 16385))
    pipeline.enqueue_read("a", 8192, 16384, 40960)
    error = raised(ValueError, pipeline.enqueue_read, "b", 8192, 16385, 40960)
    same(str(error), reason)
    check(isinstance(error, onehop.OnehopError), "no OnehopError")
    same(pipeline.pending_queue, [{"sample_id": "a", "file_offset": 8192,
                                   "buffer_address": 16384, "size_bytes": 40960}])


@case
def budgets_complete_tasks_as_the_text_says():
    pipeline = Pipeline(0, 4096)
    same(pipeline.enqueue_read("a", 0, 4096, 20480), None)
    pipeline.enqueue_read("b", 20480, 8192, 20480)
    first, second = pipeline.pending_queue
    same(len(pipeline.pending_queue), 2)
    same(pipeline.step_pipeline(25000), ["a"])
    same(len(pipeline.pending_queue), 1)
    same(pipeline.step_pipeline(max_bytes_transferred=30000), ["b"])
    same(len(pipeline.pending_queue), 0)
    check(pipeline.completed_samples[0] is first and pipeline.completed_samples[1] is second,
          "other dicts")
    same(list(first), ["sample_id", "file_offset", "buffer_address", "size_bytes"])
    same((pipeline.gpu_id, pipeline.alignment, pipeline.buffer), (0, 4096, None))


# ---- rules one by one


@case
def fields_are_checked_in_their_order_and_by_their_range():
    pipeline = Pipeline(alignment_bytes=512)
    least, most = "GDS 范围违背: ", "不在 0 到 9223372036854775807 之间"
    rows = [((1, 2, 3), misaligned("file_offset", 1, 512)),
            ((512, 2, 3), misaligned("buffer_address", 2, 512)),
            ((512, 1024, 3), misaligned("size_bytes", 3, 512)),
            ((-512, 1, 1), f"{least}file_offset (-512) {most}"),
            ((0, 2 ** 63, 1), f"{least}buffer_address ({2 ** 63}) {most}"),
            ((0, 0, -1), f"{least}size_bytes (-1) {most}")]
    for values, reason in rows:
        same(pipeline.validate_alignment(*values), (False, reason))
        same(str(raised(ValueError, pipeline.enqueue_read, "a", *values)), reason)
    same(pipeline.validate_alignment(2 ** 63 - 512, 0, 0), (True, None))
    is_right, reason = pipeline.validate_alignment(0, 0, 10 ** 5000)
    same(is_right, False)
    holds(reason, "size_bytes")
    for wrong in (True, 4096.0, "4096", None, 1j):
        for place in range(3):
            values = [512, 512, 512]
            values[place] = wrong
            raised(TypeError, pipeline.validate_alignment, *values)
            raised(TypeError, pipeline.enqueue_read, "a", *values)
    same((pipeline.pending_queue, pipeline.statistics()["bytes_enqueued"]), ([], 0))


@case
def numpys_integers_are_integers_and_its_bools_are_none():
    numpy = need("numpy")
    pipeline = Pipeline(numpy.int8(0), numpy.uint16(4096))
    pipeline.enqueue_read("a", numpy.int64(4096), numpy.uint64(0), numpy.int32(8192))
    task = pipeline.pending_queue[0]
    same([type(value) for value in task.values()], [str, int, int, int])
    raised(TypeError, pipeline.validate_alignment, numpy.True_, 0, 0)
    raised(TypeError, pipeline.step_pipeline, numpy.False_)
    same(pipeline.step_pipeline(numpy.float32(8192)), ["a"])


@case
def an_address_that_is_left_out_is_the_end_of_the_last_task():
    pipeline = Pipeline()
    thing = object()
    pipeline.enqueue_read(thing, 0, 8192)
    pipeline.enqueue_read(thing, 8192, size_bytes=4096)
    pipeline.enqueue_read("c", 0, 65536, 0)
    pipeline.enqueue_read(sample_id="d", file_offset=0, size_bytes=4096)
    pipeline.enqueue_read("e", 0, size_bytes=4096, buffer_address=0)
    pipeline.enqueue_read("f", 0, 4096, size_bytes=4096)
    same([task["buffer_address"] for task in pipeline.pending_queue],
         [0, 8192, 65536, 65536, 0, 4096])
    check(pipeline.pending_queue[1]["sample_id"] is thing, "another sample_id")
    pipeline.pending_queue.clear()
    pipeline.enqueue_read("g", 0, 4096)
    same(pipeline.pending_queue[0]["buffer_address"], 8192)
    pipeline.alignment = 65536
    pipeline.enqueue_read("h", 0, 65536)
    same(pipeline.pending_queue[1]["buffer_address"], 65536)
    for wrong in ((), (1, 2, 3)):
        raised(TypeError, pipeline.enqueue_read, "a", 0, *wrong)
    raised(TypeError, pipeline.enqueue_read, "a", 0, buffer_address=4096)
    raised(TypeError, pipeline.enqueue_read, "a", 0, 0, size=4096)
    pipeline.enqueue_read("end", 0, 2 ** 63 - 65536, 0)
    pipeline.enqueue_read("beyond", 0, 0)
    pipeline.enqueue_read("last", 0, 65536)
    holds(str(raised(ValueError, pipeline.enqueue_read, "a", 0, 65536)), "buffer_address")


@case
def a_budget_is_a_number_and_nothing_of_it_is_carried_over():
    pipeline = filled([4096, 8192, 4096, 0, 4096])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same(pipeline.step_pipeline(0), [])
        same(pipeline.step_pipeline(4095.99), [])
    same(pipeline.step_pipeline(12287.5), [0])
    same(pipeline.step_pipeline(decimal.Decimal(12288)), [1, 2, 3])
    same(pipeline.step_pipeline(2 ** 200), [4])
    same(pipeline.step_pipeline(1), [])
    for wrong in (float("nan"), float("inf"), -1, -0.5, decimal.Decimal("Infinity"),
                  decimal.Decimal("1e9999"), 10 ** 5000):
        raised(ValueError, pipeline.step_pipeline, wrong)
        raised(ValueError, pipeline.step_pipeline, wrong, 1)
        raised(ValueError, pipeline.step_pipeline, 1, wrong)
    for wrong in (True, "4096", None, 1j, [1]):
        raised(TypeError, pipeline.step_pipeline, wrong)
        raised(TypeError, pipeline.step_pipeline, 1, wrong)
    for wrong in ((), (1, 2, 3)):
        raised(TypeError, pipeline.step_pipeline, *wrong)
    raised(TypeError, pipeline.step_pipeline, transfer_speed_gb_s=1)
    raised(TypeError, pipeline.step_pipeline, 1, max_bytes_transferred=1)
    same(pipeline.statistics()["steps"], 6)


@case
def speed_times_time_is_rounded_once_and_half_to_even():
    rows = [(1, Fraction(4095, 10 ** 9), 4095), (0.1, 0.3, 30000000), (1e-9, 1, 1),
            (Fraction(1, 2), Fraction(1, 10 ** 9), 0), (Fraction(3, 2), Fraction(1, 10 ** 9), 2),
            (Fraction(5, 2), Fraction(1, 10 ** 9), 2), (3, 2 ** -1074, 0), (7e-9, 0.5, 3),
            (6.25, 8, 50 * 10 ** 9), (2 ** 53 + 1, 1, (2 ** 53 + 1) * 10 ** 9)]
    for speed, elapsed, budget in rows:
        pipeline = filled([2 ** 61] * 3, alignment_bytes=1)
        pipeline.step_pipeline(transfer_speed_gb_s=speed, elapsed_time_s=elapsed)
        figures = pipeline.statistics()
        same(figures["bytes_completed"] + figures["bytes_in_flight"], min(budget, 3 * 2 ** 61),
             f"{speed} GB/s for {elapsed} s")


@case
def what_time_leaves_is_the_heads_in_the_next_step_by_time_alone():
    pipeline = filled([4096, 8192, 4096])
    head = dict(pipeline.pending_queue[0])
    same(pipeline.step_pipeline(1, 3e-6), [])
    same(pipeline.pending_queue[0], head)
    same(pipeline.statistics()["bytes_in_flight"], 3000)
    same(pipeline.statistics()["blocked"], None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same(pipeline.step_pipeline(4095), [])
    same(pipeline.step_pipeline(1, 1.096e-6), [0])
    same(pipeline.statistics()["bytes_in_flight"], 0)
    same(pipeline.step_pipeline(1, 8.191e-6), [])
    same(pipeline.step_pipeline(8192), [1])
    same(pipeline.statistics()["bytes_in_flight"], 0)
    same(pipeline.step_pipeline(1, 4.095e-6), [])
    same(pipeline.step_pipeline(1, 1e-6), [2])
    same(pipeline.statistics()["bytes_in_flight"], 0)
    pipeline.enqueue_read("last", 0, 4096)
    same(pipeline.step_pipeline(1, 4.095e-6), [], "what an empty queue leaves is lost")
    figures = pipeline.statistics()
    same(list(figures), KEYS)
    seconds = 3e-6 + 1.096e-6 + 8.191e-6 + 4.095e-6 + 1e-6 + 4.095e-6
    same([figures[key] for key in KEYS],
         [20480, 16384, 4095, 1, 3, 8, 1, seconds, 16384 / 1e9 / seconds, 0, None])


@case
def what_does_not_fit_blocks_is_named_and_warned_of_once():
    pipeline = filled([8192, 4096, 65536, 4096])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            same(pipeline.step_pipeline(8191), [])
            same(pipeline.statistics()["blocked"], 0)
        pipeline.pending_queue.reverse()
        same(pipeline.step_pipeline(4096), [3])
        same(pipeline.statistics()["blocked"], None)
        same(pipeline.step_pipeline(8192), [])
        same(pipeline.statistics()["blocked"], 2)
        pipeline.pending_queue.reverse()
        same(pipeline.step_pipeline(0), [])
        same(pipeline.statistics()["blocked"], 0)
        same(pipeline.statistics()["steps_without_progress"], 5)
    same([warning.category for warning in said], [RuntimeWarning] * 2)
    check(os.path.samefile(said[0].filename, __file__), f"it names {said[0].filename}")
    holds(str(said[0].message), "task 0 of 8192 bytes does not fit into the 8191 of this step, and "
                                "blocks 3 behind it")
    holds(str(said[1].message), "task 2 of 65536 bytes")
    same(pipeline.step_pipeline(10 ** 6), [0, 1, 2])
    same(pipeline.step_pipeline(0), [])
    same(pipeline.statistics()["steps_without_progress"], 5)


@case
def any_object_may_name_a_sample_and_is_named_by_its_type():
    class Strange:
        def __repr__(self):
            raise RuntimeError("no words")

        def __eq__(self, other):
            raise RuntimeError("no comparison")

        __hash__ = None

    thing = Strange()
    pipeline = Pipeline()
    pipeline.enqueue_read(thing, 0, 4096)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        pipeline.step_pipeline(1)
    holds(str(said[0].message), "task of type Strange of 4096 bytes")
    check(pipeline.statistics()["blocked"] is thing and pipeline.step_pipeline(4096)[0] is thing,
          "another sample_id")


@case
def what_callers_put_into_the_lists_is_taken_or_refused_with_a_word():
    pipeline = filled([4096])
    mine = {"sample_id": "mine", "size_bytes": 100}
    pipeline.pending_queue.insert(0, mine)
    same(pipeline.step_pipeline(100), ["mine"])
    check(pipeline.completed_samples[0] is mine, "another dict")
    pipeline.completed_samples = []
    pipeline.pending_queue[0]["size_bytes"] = 10
    same(pipeline.step_pipeline(10), [0])
    rows = [("a string", errors.InvalidArgument, "no sample_id"),
            ({"sample_id": 1}, errors.InvalidArgument, "no size_bytes"),
            ({"sample_id": 1, "size_bytes": 2.0}, TypeError, "size_bytes is a float"),
            ({"sample_id": 1, "size_bytes": -1}, errors.InvalidArgument, "size_bytes (-1)")]
    for task, kind, words in rows:
        pipeline = filled([4096, 4096])
        pipeline.pending_queue.insert(1, task)
        same(pipeline.step_pipeline(10 ** 6), [0])
        for _ in range(2):
            holds(str(raised(kind, pipeline.step_pipeline, 10 ** 6)), words)
        check(pipeline.pending_queue[0] is task, "it is not at the head")
        del pipeline.pending_queue[0]
        same(pipeline.step_pipeline(10 ** 6), [1])


@case
def what_the_constructor_cannot_use_is_refused():
    for named in ({"gpu_id": -1}, {"alignment_bytes": 0}, {"alignment_bytes": -4096},
                  {"alignment_bytes": 2 ** 63}, {"buffers": 0}, {"buffers": 1025},
                  {"buffer": bytearray(8)}):
        raised(errors.InvalidArgument, Pipeline, **named)
    for named in ({"gpu_id": 1.0}, {"alignment_bytes": True}, {"alignment_bytes": "4096"},
                  {"buffers": None}):
        raised(TypeError, Pipeline, **named)
    raised(TypeError, Pipeline, 0, 4096, "a path")


# ---- random calls against a model


class Model:
    """The rules once more: whole numbers, lists, and nothing of the package's.

    capacity: the buffer's bytes where real bytes move, else None.
    """

    def __init__(self, alignment, capacity=None):
        self.alignment, self.capacity = alignment, capacity
        self.queue, self.done = [], []
        self.end, self.carried = 0, (None, 0)
        self.enqueued = self.completed = self.steps = self.idle = 0
        self.blocked, self.warned = None, []

    def enqueue(self, sample, offset, *rest):
        address, size = rest if len(rest) == 2 else (self.end + -self.end % self.alignment, rest[0])
        numbers = (offset, address, size)
        if any(isinstance(n, (bool, float)) for n in numbers):
            return "TypeError"
        for name, n in zip(("file_offset", "buffer_address", "size_bytes"), numbers):
            if n < 0 or n > 9223372036854775807:
                return f"GDS 范围违背: {name} ({n}) 不在 0 到 9223372036854775807 之间"
            if n // self.alignment * self.alignment != n:
                return misaligned(name, n, self.alignment)
        if self.capacity is not None:
            if address + size > self.capacity:
                return "leave the buffer"
            mine = set(range(address // self.alignment, (address + size) // self.alignment))
            for task in self.queue:
                first = task["buffer_address"] // self.alignment
                if mine & set(range(first, first + task["size_bytes"] // self.alignment)):
                    return "overlap"
        self.queue.append({"sample_id": sample, "file_offset": offset, "buffer_address": address,
                           "size_bytes": size})
        self.end = address + size
        self.enqueued += size
        return None

    def by_bytes(self, budget):
        if isinstance(budget, bool):
            return "TypeError"
        if budget != budget or budget < 0 or budget == float("inf"):
            return "ValueError"
        head, given = self.begin()
        while self.queue and self.queue[0]["size_bytes"] <= budget:
            budget -= self.queue[0]["size_bytes"]
            given.append(self.complete())
        if given or not self.queue:
            self.carried = (None, 0)
        if not given and self.queue:
            self.idle += 1
            self.blocked = head["sample_id"]
            if not any(task is head for task in self.warned):
                self.warned.append(head)
        return given

    def by_time(self, speed, elapsed):
        for number in (speed, elapsed):
            if number != number or number < 0 or number == float("inf"):
                return "ValueError"
        above, below = 1, 1
        for number in (speed, elapsed, 1000000000):
            n, d = number.as_integer_ratio()
            above, below = above * n, below * d
        moved, rest = divmod(above, below)
        if 2 * rest > below or (2 * rest == below and moved % 2):
            moved += 1
        _, given = self.begin()
        had, budget = bool(self.queue), moved + self.carried[1]
        while self.queue and self.queue[0]["size_bytes"] <= budget:
            budget -= self.queue[0]["size_bytes"]
            given.append(self.complete())
        self.carried = (self.queue[0], budget) if self.queue else (None, 0)
        if had and not given and not moved:
            self.idle += 1
        return given

    def begin(self):
        self.steps += 1
        self.blocked = None
        head = self.queue[0] if self.queue else None
        if self.carried[0] is not head:
            self.carried = (None, 0)
        return head, []

    def complete(self):
        task = self.queue.pop(0)
        self.done.append(task)
        self.completed += task["size_bytes"]
        return task["sample_id"]

    def in_flight(self):
        return self.carried[1] if self.queue and self.carried[0] is self.queue[0] else 0


class Both:
    """The same calls to a pipeline and to a model; what they say is compared."""

    def __init__(self, pipeline, capacity=None):
        self.pipeline = pipeline
        self.model = Model(pipeline.alignment, capacity)
        self.count = 0

    def outcome(self, function, *arguments):
        try:
            return function(*arguments)
        except TypeError:
            return "TypeError"
        except ValueError as error:
            return str(error)

    def agree(self, got, want, what):
        if isinstance(want, str) and isinstance(got, str) and "TypeError" not in (want, got):
            check(want == "ValueError" or want in got, f"{what}: {got!r}, should be {want!r}")
        else:
            same(got, want, what)

    def enqueue(self, *numbers):
        self.count += 1
        self.agree(self.outcome(self.pipeline.enqueue_read, self.count, *numbers),
                   self.model.enqueue(self.count, *numbers), f"enqueue_read{numbers}")

    def step(self, *amounts):
        want = (self.model.by_bytes if len(amounts) == 1 else self.model.by_time)(*amounts)
        got = self.outcome(self.pipeline.step_pipeline, *amounts)
        self.agree(got, want, f"step_pipeline{amounts}")
        return want if isinstance(want, list) else []

    def edit(self, change):
        for queue in (self.pipeline.pending_queue, self.model.queue):
            change(queue)

    def compare(self):
        pipeline, model = self.pipeline, self.model
        same(pipeline.pending_queue, model.queue, "pending_queue")
        same(pipeline.completed_samples, model.done, "completed_samples")
        figures = pipeline.statistics()
        same([figures[key] for key in ("bytes_enqueued", "tasks_pending", "tasks_completed",
                                       "steps", "steps_without_progress", "blocked")],
             [model.enqueued, len(model.queue), len(model.done), model.steps, model.idle,
              model.blocked], "statistics")
        same(figures["bytes_completed"] + figures["short_bytes"], model.completed, "bytes")
        if model.capacity is None:
            same(figures["bytes_in_flight"], model.in_flight(), "bytes_in_flight")


def random_number(source, alignment):
    """Mostly right for a field."""
    kind = source.randrange(24)
    if kind < 20:
        return source.randrange(8) * alignment
    return [source.randrange(8 * alignment), -alignment, 2 ** 63 - alignment + source.randrange(2),
            source.choice((True, 1.5, 2 ** 63))][kind - 20]


def random_edit(source, queue_length):
    """A change of a list of that length, to be made in two."""
    at, other = source.randrange(queue_length), source.randrange(queue_length)
    size = source.randrange(40000)
    return source.choice((
        lambda queue: queue.pop(at), lambda queue: queue.insert(at, queue.pop(other)),
        lambda queue: queue.reverse(), lambda queue: queue.clear(),
        lambda queue: queue.insert(at, {"sample_id": f"mine {size}", "size_bytes": size}),
        lambda queue: queue[at].update(size_bytes=size)))


def random_calls(source):
    both = Both(Pipeline(0, source.choice((1, 512, 1000, 4096))))
    alignment = both.pipeline.alignment
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(source.randrange(1, 24)):
            kind = source.randrange(10)
            if kind < 5:
                count = source.choice((2, 3, 3))
                both.enqueue(*(random_number(source, alignment) for _ in range(count)))
            elif kind < 7:
                both.step(source.choice((0, 1, alignment, 20000, 40960.5, True, -1, float("nan"),
                                         source.randrange(16 * alignment), float("inf"))))
            elif kind < 9:
                both.step(source.choice((0, 0.1, 6.25, 1, source.random(), -1.0)),
                          source.choice((0, 1e-6, 3e-6, 2 ** -20, source.random() * 1e-5)))
            elif both.pipeline.pending_queue:
                both.edit(random_edit(source, len(both.pipeline.pending_queue)))
            both.compare()
    same(len(said), len(both.model.warned), "warnings")


@case
def ten_thousand_random_sequences_of_calls_agree_with_a_model():
    source = seeded()
    for _ in range(10_000):
        random_calls(source)


def random_reads(source, path, data):
    """The same with real bytes: each reported task's are the file's."""
    capacity, alignment = 24 * PAGE, PAGE
    memory = bytearray(b"\xa5" * capacity)
    with Pipeline(path=path, buffer=memory, buffers=source.choice((1, 2, 3, 7))) as pipeline:
        both = Both(pipeline, capacity)
        for _ in range(source.randrange(1, 40)):
            kind = source.randrange(10)
            if kind < 6:
                both.enqueue(source.randrange(30) * PAGE, source.randrange(25) * PAGE,
                             source.randrange(6) * PAGE)
            elif kind < 9:
                by_time = (1, source.random() * 3e-5)
                reported = both.step(*(by_time if kind == 8 else (source.randrange(12 * PAGE),)))
                for task in both.model.done[len(both.model.done) - len(reported):]:
                    check_bytes(memory, data, task)
            elif pipeline.pending_queue:
                length = len(pipeline.pending_queue)
                at, other = source.randrange(length), source.randrange(length)
                both.edit(source.choice((lambda queue: queue.pop(at), lambda queue: queue.reverse(),
                                         lambda queue: queue.insert(at, queue.pop(other)))))
            both.compare()


def check_bytes(memory, data, task):
    """A task's bytes are the file's, up to its end."""
    want = data[task["file_offset"]:task["file_offset"] + task["size_bytes"]]
    begin = task["buffer_address"]
    check(bytes(memory[begin:begin + len(want)]) == want, f"bytes of {task} differ")


@case
def random_sequences_over_a_file_agree_with_the_model_and_bring_its_bytes():
    source = seeded()
    with Scratch() as folder:
        data = source.randbytes(26 * PAGE + 700)
        path = raw(folder, data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(400):
                random_reads(source, path, data)


# ---- files


@case
def a_file_of_5000_bytes_comes_whole_and_its_last_task_short():
    data = random.Random(1).randbytes(5000)
    with Scratch() as folder:
        path = raw(folder, data)
        with Pipeline(path=path) as pipeline:
            pipeline.enqueue_read("a", 0, 4096)
            pipeline.enqueue_read("b", 4096, 4096)
            same(pipeline.step_pipeline(4096), ["a"])
            same(pipeline.step_pipeline(1, 1), ["b"])
            same(bytes(pipeline.buffer)[:5000], data)
            pipeline.enqueue_read("beyond", 8192, 4096, 4096)
            same(pipeline.step_pipeline(4096), ["beyond"])
            figures = pipeline.statistics()
            same([figures[key] for key in KEYS if key not in ("seconds", "gb_per_s")],
                 [12288, 5000, 0, 0, 3, 3, 0, 7288, None])
            check(figures["seconds"] > 0 and figures["gb_per_s"] > 0, f"{figures}")
        same(bytes(pipeline.buffer)[:5000], data, "what is closed still has its buffer's bytes")
        same(pipeline.statistics(), figures)


@case
def a_file_of_100_mb_comes_whole_through_two_buffers():
    size, piece = 100_000_000, 1 << 20
    source = seeded()
    data = source.randbytes(1 << 20) * (size // (1 << 20) + 1)
    data = b"".join(number.to_bytes(8, "little") + data[8:piece] for number in range(96))[:size]
    with Scratch() as folder:
        path = raw(folder, data)
        memory = bytearray(4 * piece)
        got = []
        with Pipeline(path=path, buffer=memory) as pipeline:
            for number in range(-(-size // piece) + 2):
                if number < -(-size // piece):
                    pipeline.enqueue_read(number, number * piece, number % 4 * piece, piece)
                if number >= 2:
                    same(pipeline.step_pipeline(piece), [number - 2])
                    at = (number - 2) % 4 * piece
                    got.append(bytes(memory[at:at + min(piece, size - (number - 2) * piece)]))
            figures = pipeline.statistics()
        check(b"".join(got) == data, "bytes differ")
        same((figures["bytes_completed"], figures["short_bytes"]),
             (size, -size % piece))
        with Pipeline(path=path, buffers=8) as pipeline:
            for number in range(-(-size // piece)):
                pipeline.enqueue_read(number, number * piece, piece)
            same(pipeline.step_pipeline(size + piece), list(range(-(-size // piece))))
            check(bytes(pipeline.buffer[:size]) == data, "bytes of its own buffer differ")


@case
def bytes_go_into_whatever_memory_the_caller_has():
    torch, numpy = need("torch"), need("numpy")
    data = random.Random(2).randbytes(3 * PAGE)
    with Scratch() as folder:
        path = raw(folder, data)
        array = onehop.read(path, 0, 2 * PAGE, "cpu", framework="array")
        for memory in (torch.zeros(2 * PAGE, dtype=torch.uint8), torch.zeros(PAGE // 8, 4),
                       numpy.zeros((2, PAGE), "u1"), bytearray(2 * PAGE), array,
                       _move.Buffer(_runtime.get(), "host", 2 * PAGE),
                       onehop.read(path, 0, 2 * PAGE, "cpu", framework="array",
                                   route="buffered")):
            with Pipeline(path=path, buffer=memory) as pipeline:
                check(pipeline.buffer is memory, "another buffer")
                pipeline.enqueue_read(1, 2 * PAGE, PAGE, PAGE)
                pipeline.enqueue_read(0, PAGE, 0, PAGE)
                same(pipeline.step_pipeline(2 * PAGE), [1, 0])
            if isinstance(memory, torch.Tensor):
                got = memory.view(torch.uint8).numpy().tobytes()
            elif isinstance(memory, _move.Buffer):
                got = bytes(memory.read(0, 2 * PAGE))
            else:
                got = memory.tobytes() if hasattr(memory, "tobytes") else bytes(memory)
            same(got, data[PAGE:], f"{type(memory)}")
        kept = torch.zeros(PAGE, dtype=torch.uint8)
        version = kept._version
        with Pipeline(path=path, buffer=kept) as pipeline:
            pipeline.enqueue_read(0, 0, PAGE)
            pipeline.step_pipeline(PAGE)
        check(kept._version > version, "torch does not know that it was written")
        memory = bytearray(PAGE)
        with Pipeline(path=path, buffer=memory):
            raised(BufferError, memory.append, 0)
        memory.append(0)


@case
def memory_of_the_pipelines_own_holds_the_file_or_what_is_pending_at_the_first_step():
    data = random.Random(3).randbytes(PAGE + 1)
    with Scratch() as folder:
        path = raw(folder, data)
        for addresses, nbytes in (((0,), 2 * PAGE), ((8 * PAGE, 0), 9 * PAGE)):
            with Pipeline(path=path) as pipeline:
                for address in addresses:
                    pipeline.enqueue_read(address, 0, address, PAGE)
                pipeline.step_pipeline(0, 0)
                same(len(bytes(pipeline.buffer)), nbytes)
                same(pipeline.step_pipeline(10 ** 6), list(addresses))
                holds(str(raised(ValueError, pipeline.enqueue_read, 1, 0, nbytes, PAGE)),
                      f"leave the buffer, which has {nbytes} bytes")
        same(len(bytes(Pipeline(path=raw(folder, b"", "empty")).buffer)), 0)


@case
def what_a_file_or_its_buffer_cannot_take_is_refused():
    with Scratch() as folder:
        path = raw(folder, bytes(3 * PAGE))
        error = raised(FileNotFoundError, Pipeline, path=os.path.join(folder, "none"))
        holds(str(error), "none")
        raised(errors.IOFailed, Pipeline, path=folder)
        holds(str(raised(ValueError, Pipeline, path=path, buffer=bytes(PAGE))),
              "buffer, a bytes, is read-only")
        holds(str(raised(ValueError, Pipeline, path=path, device="mps")), "mps")
        raised(ValueError, Pipeline, path=path, device="nonsense")
        holds(str(raised(ValueError, Pipeline, path=path, device="cuda:0", buffer=bytearray(8))),
              "buffer is on cpu, and cuda:0 is asked for")
        with Pipeline(path=path, buffer=bytearray(4 * PAGE)) as pipeline:
            pipeline.enqueue_read("a", 0, PAGE, 2 * PAGE)
            for address, size in ((0, 2 * PAGE), (2 * PAGE, PAGE), (0, 4 * PAGE)):
                holds(str(raised(ValueError, pipeline.enqueue_read, "b", 0, address, size)),
                      "overlap those of pending task 'a', 4096 to 12288")
            holds(str(raised(ValueError, pipeline.enqueue_read, "b", 0, 4 * PAGE, PAGE)),
                  "leave the buffer, which has 16384 bytes")
            pipeline.enqueue_read("c", 0, 0)  # at the end of the last one
            same([task["sample_id"] for task in pipeline.pending_queue], ["a", "c"])
            same(pipeline.step_pipeline(10 ** 6), ["a", "c"])
            pipeline.enqueue_read("again", 0, 2 * PAGE, 2 * PAGE)
            same(pipeline.step_pipeline(10 ** 6), ["again"])


@case
def an_alignment_that_direct_io_does_not_take_is_refused():
    with Scratch() as folder:
        path = raw(folder, bytes(PAGE))
        found = ctypes.c_uint64()
        file = reading._File(_runtime.get(), path)
        _library.call("pipeline_alignment", file.handle, ctypes.byref(found))
        if found.value == 1:
            raise Skip("this file system has no direct I/O")
        for alignment in (1, found.value // 2, found.value * 3 // 2):
            error = raised(ValueError, Pipeline, alignment_bytes=alignment, path=path)
            holds(str(error), f"direct I/O asks for multiples of {found.value} bytes, and "
                              f"alignment_bytes is {alignment}; give a multiple of {found.value}")
        Pipeline(alignment_bytes=found.value * 3, path=path).close()


@case
def a_task_that_was_started_is_reported_as_it_was_then():
    data = random.Random(4).randbytes(8 * PAGE)
    with Scratch() as folder:
        memory = bytearray(8 * PAGE)
        with Pipeline(path=raw(folder, data), buffer=memory, buffers=2) as pipeline:
            for number in range(4):
                pipeline.enqueue_read(number, number * PAGE, PAGE)
            same(pipeline.step_pipeline(0, 0), [])
            same(pipeline.statistics()["bytes_in_flight"], 2 * PAGE)
            started, later = pipeline.pending_queue[1], pipeline.pending_queue[2]
            for task in (started, later):
                task.update(sample_id="edited", file_offset=7 * PAGE, size_bytes=0)
            started.clear()
            same(pipeline.step_pipeline(2 * PAGE), [0, 1, "edited"])
            same(pipeline.completed_samples[1:], [{}, later])
            same(pipeline.step_pipeline(PAGE), [3])
            same(bytes(memory[:2 * PAGE]), data[:2 * PAGE])
            same(bytes(memory[2 * PAGE:3 * PAGE]), bytes(PAGE))
            same(pipeline.statistics()["bytes_completed"], 3 * PAGE)


@case
def a_task_that_is_taken_out_in_flight_is_waited_for_and_dropped():
    data = random.Random(5).randbytes(8 * PAGE)
    with Scratch() as folder:
        memory = bytearray(4 * PAGE)
        with Pipeline(path=raw(folder, data), buffer=memory, buffers=3) as pipeline:
            for number in range(4):
                pipeline.enqueue_read(number, number * PAGE, PAGE)
            pipeline.step_pipeline(0, 0)
            taken = pipeline.pending_queue.pop(1)
            holds(str(raised(ValueError, pipeline.enqueue_read, "x", 0, 0, 4 * PAGE)), "task 0")
            same(pipeline.statistics()["bytes_in_flight"], 2 * PAGE)
            pipeline.enqueue_read("new", 6 * PAGE, PAGE, PAGE)
            same(pipeline.step_pipeline(10 ** 6), [0, 2, 3, "new"])
            same(bytes(memory), data[:PAGE] + data[6 * PAGE:7 * PAGE] + data[2 * PAGE:4 * PAGE])
            check(all(task is not taken for task in pipeline.completed_samples), "it is reported")
            pipeline.pending_queue.append(taken)
            same(pipeline.step_pipeline(10 ** 6), [1])
            same(bytes(memory[PAGE:2 * PAGE]), data[PAGE:2 * PAGE])
            pipeline.enqueue_read("gone", 0, 0, PAGE)
            pipeline.step_pipeline(0, 0)
            pipeline.pending_queue.clear()
            same((pipeline.step_pipeline(PAGE), pipeline.statistics()["bytes_in_flight"]), ([], 0))


@case
def tasks_of_the_callers_own_are_checked_when_their_turn_comes():
    data = random.Random(6).randbytes(8 * PAGE)

    def task(offset, begin, size):
        return {"sample_id": "mine", "file_offset": offset, "buffer_address": begin,
                "size_bytes": size}

    rows = [(task(1, 0, PAGE), misaligned("file_offset", 1)),
            (task(0, 4 * PAGE, PAGE), "leaves the buffer, which has 16384"),
            (task(0, PAGE, PAGE), "overlap those of task 'b', which is on its way"),
            ({"sample_id": "mine", "size_bytes": 0}, "no file_offset")]
    with Scratch() as folder:
        path = raw(folder, data)
        for mine, words in rows:
            memory = bytearray(4 * PAGE)
            with Pipeline(path=path, buffer=memory) as pipeline:
                pipeline.enqueue_read("a", 0, 0, PAGE)
                pipeline.enqueue_read("b", PAGE, PAGE, PAGE)
                pipeline.step_pipeline(0, 0)
                pipeline.pending_queue.insert(1, mine)
                same(pipeline.step_pipeline(10 ** 6), ["a"])
                holds(str(raised(errors.InvalidArgument, pipeline.step_pipeline, 10 ** 6)), words)
                pipeline.pending_queue.reverse()
                same(pipeline.step_pipeline(PAGE), ["b"])
                same(bytes(memory[:2 * PAGE]), data[:2 * PAGE])
                del pipeline.pending_queue[:]
                pipeline.pending_queue.append(task(7 * PAGE, PAGE, 2 * PAGE))
                same(pipeline.step_pipeline(2 * PAGE), ["mine"])
                same(bytes(memory[PAGE:2 * PAGE]), data[7 * PAGE:])
                same(pipeline.statistics()["short_bytes"], PAGE)


@case
def a_step_does_not_write_over_what_it_reports():
    data = random.Random(10).randbytes(2 * PAGE)
    with Scratch() as folder:
        memory = bytearray(PAGE)
        with Pipeline(path=raw(folder, data), buffer=memory, buffers=2) as pipeline:
            for number in (0, 1, 0):
                pipeline.pending_queue.append({"sample_id": number, "file_offset": number * PAGE,
                                               "buffer_address": 0, "size_bytes": PAGE})
            for number in (0, 1, 0):
                same(pipeline.step_pipeline(3 * PAGE), [number])
                check(bytes(memory) == data[number * PAGE:(number + 1) * PAGE], "bytes differ")


@case
def the_head_is_read_however_many_others_were_started():
    data = random.Random(7).randbytes(64 * PAGE)
    with Scratch() as folder:
        memory = bytearray(64 * PAGE)
        with Pipeline(path=raw(folder, data), buffer=memory, buffers=3) as pipeline:
            for number in range(64):
                pipeline.enqueue_read(number, number * PAGE, PAGE)
            pipeline.step_pipeline(0, 0)
            wanted = []
            while pipeline.pending_queue:
                pipeline.pending_queue.reverse()
                wanted.append(pipeline.pending_queue[0]["sample_id"])
                same(pipeline.step_pipeline(PAGE), wanted[-1:])
            same(sorted(wanted), list(range(64)))
            check(bytes(memory) == data, "bytes differ")


@case
def a_file_that_is_cut_is_an_error_that_leaves_the_task_at_the_head():
    with Scratch() as folder:
        path = raw(folder, bytes(8 * PAGE))
        with Pipeline(path=path, buffer=bytearray(8 * PAGE)) as pipeline:
            for number in range(8):
                pipeline.enqueue_read(number, number * PAGE, PAGE)
            same(pipeline.step_pipeline(PAGE), [0])
            os.truncate(path, PAGE)
            # What was on its way may have landed before, or not.
            done = []
            try:
                for _ in range(8):
                    done += pipeline.step_pipeline(PAGE)
            except errors.FileChanged as error:
                holds(str(error), path)
            check(done in ([], [1], [1, 2]), f"{done}")
            for _ in range(2):
                holds(str(raised(errors.FileChanged, pipeline.step_pipeline, PAGE)), path)
                same(pipeline.pending_queue[0]["sample_id"], len(done) + 1)
            pipeline.pending_queue.clear()
            same(pipeline.step_pipeline(PAGE), [])


@case
def a_closed_pipeline_says_so_and_closes_again():
    with Scratch() as folder:
        path = raw(folder, bytes(64 * PAGE))
        pipeline = Pipeline(path=path, buffers=5)
        for number in range(8):
            pipeline.enqueue_read(number, number * PAGE, PAGE)
        same(pipeline.step_pipeline(PAGE), [0])
        pipeline.close()
        pipeline.close()
        holds(str(raised(ValueError, pipeline.step_pipeline, PAGE)), f"over {path} is closed")
        holds(str(raised(ValueError, pipeline.enqueue_read, 9, 0, PAGE)), "is closed")
        same(pipeline.statistics()["bytes_in_flight"], 0)
        same(len(bytes(pipeline.buffer)), 64 * PAGE)
        never = Pipeline(path=path)
        never.close()
        same(never.buffer, None)
        model = filled([PAGE])
        model.close()
        same(model.step_pipeline(PAGE), [0])


class Interrupted:
    """Lets a function of the library end as if Ctrl-C had come, just before it or just after."""

    def __init__(self, name, before):
        self.name, self.before = "onehop_" + name, before

    def __enter__(self):
        self.real = real = getattr(_library.library(), self.name)

        def function(*arguments):
            if not self.before:
                real(*arguments)
            raise KeyboardInterrupt

        setattr(_library.library(), self.name, function)

    def __exit__(self, *_):
        setattr(_library.library(), self.name, self.real)


@case
def an_interrupt_at_any_point_loses_no_task():
    data = random.Random(8).randbytes(6 * PAGE)
    with Scratch() as folder:
        path = raw(folder, data)
        for name in ("pipeline_submit", "pipeline_next"):
            for before in (True, False):
                for first in (0, PAGE, 3 * PAGE):
                    memory = bytearray(6 * PAGE)
                    with Pipeline(path=path, buffer=memory) as pipeline:
                        for number in range(6):
                            pipeline.enqueue_read(number, number * PAGE, PAGE)
                        got = pipeline.step_pipeline(1, first / 1e9)
                        with Interrupted(name, before):
                            raised(KeyboardInterrupt, pipeline.step_pipeline, 6 * PAGE)
                        for _ in range(3):
                            try:
                                got += pipeline.step_pipeline(6 * PAGE)
                            except errors.Cancelled as error:
                                same((name, before), ("pipeline_submit", True), f"{error}")
                        done = [task["sample_id"] for task in pipeline.completed_samples]
                        same((done, pipeline.pending_queue), (list(range(6)), []))
                        check(bytes(memory) == data, "bytes differ")


@case
def a_forked_child_is_told_so():
    with Scratch() as folder:
        path = raw(folder, bytes(PAGE))
        out = python(f"""
import os, onehop
pipeline = onehop.GPUDirectStoragePipeline(path={path!r})
pipeline.enqueue_read("a", 0, 4096)
pipeline.step_pipeline(0)
child = os.fork()
if not child:
    try:
        pipeline.step_pipeline(4096)
    except onehop.errors.Forked as error:
        pipeline.close()
        os._exit(7)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), pipeline.step_pipeline(4096))
""")
        same(out, "7 ['a']")


@case
def bytes_reach_the_look_alike_gpu():
    driver = sys.argv[1] if len(sys.argv) > 1 else ""
    if not os.path.isdir(driver):
        raise Skip("no folder of the look-alike driver was given")
    data = random.Random(9).randbytes(5 * PAGE + 1)
    with Scratch() as folder:
        path = raw(folder, data)
        out = python(f"""
import onehop
from onehop import arenas
arenas.is_importable = lambda module: False
data = open({path!r}, "rb").read()
for named in ({{"device": "cuda:0"}}, {{"device": "cuda"}}, {{
        "buffer": onehop.read({path!r}, 0, len(data), "cuda:0", framework="array")}}):
    with onehop.GPUDirectStoragePipeline(path={path!r}, **named) as pipeline:
        for number in range(4):
            pipeline.enqueue_read(number, (4 - number) * 4096, 4096)
        done = [pipeline.step_pipeline(8192), pipeline.step_pipeline(8192)]
        got = pipeline.buffer.tobytes()[:4 * 4096]
        want = b"".join(data[at * 4096:(at + 1) * 4096] for at in (4, 3, 2, 1))
        print(pipeline.buffer.device, done, got == want)
try:
    onehop.GPUDirectStoragePipeline(1, path={path!r}, device="cuda", buffer=pipeline.buffer)
except ValueError as error:
    print(error)
try:
    onehop.GPUDirectStoragePipeline(99, path={path!r}, device="cuda").buffer
except onehop.errors.NoDevice as error:
    print("no cuda:99")
""", LD_LIBRARY_PATH=driver)
        lines = ["cuda:0 [[0, 1], [2, 3]] True"] * 3
        lines += ["buffer is on cuda:0, and cuda:1 is asked for; leave device out, or give memory "
                  "there", "no cuda:99"]
        same(out.splitlines(), lines)


if __name__ == "__main__":
    run()
