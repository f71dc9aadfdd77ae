"""Time alignment against a reference by hand: random clocks, every kind of wish, every gap rule.

The reference below goes through all records of a stream for each anchor, in Python's own integers
and fractions. It shares nothing with the package.
"""
import decimal
import os
import sys
from fractions import Fraction

from package import need, raised, seeded
from tap import case, check, holds, run, same

try:
    import numpy as np
except ImportError:
    print("1..0 # SKIP numpy is not installed")
    sys.exit(0)

from onehop import errors, windows  # noqa: E402

COUNT = int(os.environ.get("TEST_WINDOWS", "4000"))


# ---- clocks


def clock(source, count):
    """Times that never fall: a rate with drift and jitter, gaps, duplicates, any start."""
    period = source.choice([1, 3, 1000, 10**6, 33_333_333])
    drift, jitter = source.uniform(0.9, 1.1), source.choice([0, period // 3, 2 * period])
    at = source.choice([0, -10**9, 1_700_000_000 * 10**9, source.randrange(-10**12, 10**12)])
    times = []
    for _ in range(count):
        at += int(period * drift)
        if source.random() < 0.05:
            at += period * source.randrange(2, 50)
        times.append(at + (source.randrange(-jitter, jitter + 1) if jitter else 0))
        if source.random() < 0.1:
            times.append(times[-1])
    return sorted(times), period


def seconds(source, nanoseconds):
    """Seconds in some type that stand for that many ns."""
    exact = decimal.Decimal(nanoseconds).scaleb(-9)
    kind = source.randrange(4)
    if kind == 0:
        return exact
    if kind == 1:
        return Fraction(nanoseconds, 10**9)
    if kind == 2 and abs(nanoseconds) < 10**15:
        return float(exact)
    return nanoseconds // 10**9 if nanoseconds % 10**9 == 0 else exact


# ---- the reference


def nearest(times, moment):
    """(row, skew) or None."""
    best = None
    for row, time in enumerate(times):
        far = abs(time - moment)
        if best is None or far < best[1]:
            best = row, far
    return best


def hold(times, moment):
    best = None
    for row, time in enumerate(times):
        if time <= moment:
            best = row, moment - time
    return best


def linear(times, moment):
    """(lower, upper, weight, skew) or None."""
    lower = hold(times, moment)
    later = [row for row, time in enumerate(times) if time > moment]
    if lower is None:
        return None
    if lower[1] == 0:
        return lower[0], lower[0], Fraction(0), 0
    if not later:
        return None
    below, above = times[lower[0]], times[later[0]]
    return (lower[0], later[0], Fraction(moment - below, above - below),
            min(moment - below, above - moment))


def within(skew, tolerance):
    return tolerance is None or skew <= tolerance


def rows_by(method, times, moments, tolerance):
    """For one anchor: ([(row, upper, weight) or None], the greatest skew or None)."""
    rows, skews = [], []
    for moment in moments:
        found = {"nearest": nearest, "hold": hold, "linear": linear}[method](times, moment)
        if found is None:
            rows.append(None)
            continue
        skews.append(found[-1])
        upper, weight = found[1:3] if method == "linear" else (None, None)
        rows.append((found[0], upper, weight) if within(found[-1], tolerance) else None)
    return rows, max(skews, default=None)


def last(times, moment, count, tolerance):
    before = [row for row, time in enumerate(times) if time <= moment]
    if not before:
        return [None] * count, None
    skew = moment - times[before[-1]]
    rows = [(row, None, None) for row in before[-count:]] if within(skew, tolerance) else []
    return [None] * (count - len(rows)) + rows, skew


def window(times, begin, end):
    return [row for row, time in enumerate(times) if begin <= time < end]


def half_even(exact):
    """A fraction's nearest integer, the even one of two."""
    low = exact.numerator // exact.denominator
    rest = exact - low
    if rest == Fraction(1, 2):
        return low + low % 2
    return low + (rest > Fraction(1, 2))


# ---- wishes


class Wish:
    """A random wish: what to ask of the package, and what the reference says of one anchor."""

    def __init__(self, source, span, period):
        def offset():
            return source.choice([0, source.randrange(-span, span + 1),
                                  period * source.randrange(-5, 6)])

        self.kind = source.choice(["nearest", "list", "last", "window", "rows"])
        self.rows, self.method = None, "nearest"
        self.tolerance = source.choice([None, 0, period // 2, period, 3 * period])
        if self.kind == "nearest":
            self.offsets, self.given = [0], "nearest"
        elif self.kind == "list":
            self.offsets = [offset() for _ in range(source.randrange(1, 6))]
            self.given = [seconds(source, one) for one in self.offsets]
        elif self.kind == "last":
            self.given = source.randrange(1, 9)
        else:
            self.begin = offset()
            self.end = self.begin + 1 + abs(offset())
            self.given = seconds(source, self.begin), seconds(source, self.end)
        if self.kind == "rows":
            self.rows, self.method = source.randrange(1, 9), source.choice(windows.METHODS)
            self.offsets = [self.begin + half_even(Fraction(i * (self.end - self.begin), self.rows))
                            for i in range(self.rows)]

    def spec(self, source, name):
        limit = None if self.tolerance is None else seconds(source, self.tolerance)
        if source.random() < 0.5:
            return windows.parse({name: self.given}, tolerance={name: limit}, method={
                name: self.method}, rows=self.rows)[name]
        return windows.parse({name: self.given}, tolerance=limit, rows=self.rows,
                             method=self.method)[name]

    def expected(self, times, anchor):
        """([(row, upper, weight) or None], skew); of a window its rows, and None."""
        if self.kind == "window":
            return window(times, anchor + self.begin, anchor + self.end), None
        if self.kind == "last":
            return last(times, anchor, self.given, self.tolerance)
        return rows_by(self.method, times, [anchor + one for one in self.offsets], self.tolerance)


def is_gap(wish, rows):
    return not rows if wish.kind == "window" else None in rows


def compare(wish, found, times, anchors):
    for at, anchor in enumerate(anchors):
        rows, skew = wish.expected(times, anchor)
        same(bool(found.gap[at]), is_gap(wish, rows), "gap")
        if wish.kind == "window":
            same(list(range(found.begin[at], found.end[at])), rows, "the slice")
            check(0 <= found.begin[at] <= found.end[at] <= len(times), "a bound is outside")
            continue
        same(int(found.skew_ns[at]), windows.NO_SKEW if skew is None else skew, "skew")
        same([row is None for row in rows], found.is_pad[at].tolist(), "is_pad")
        same([-1 if row is None else row[0] for row in rows], found.index[at].tolist(), "index")
        if wish.method == "linear":
            same([-1 if row is None else row[1] for row in rows], found.upper[at].tolist(), "upper")
            for row, weight in zip(rows, found.weight[at]):
                check(abs(weight - (0 if row is None else row[2])) < 1e-12, f"weight {weight}")
        else:
            check(found.upper is None and found.weight is None, "a weight without linear")


def about(wish, times, anchors):
    return f"{vars(wish)} of {times} at {anchors}"


# ---- cases


@case
def records_are_those_that_the_reference_finds():
    source = seeded()
    kinds = {}
    for _ in range(COUNT):
        times, period = clock(source, source.choice([0, 1, 2, source.randrange(3, 40)]))
        base, _ = clock(source, 12) if not times or source.random() < 0.2 else (times, 0)
        anchors = [source.choice(base) + source.choice([0, 0, 1, -1, source.randrange(
            -3 * period - 1, 3 * period + 2)]) for _ in range(source.randrange(0, 12))]
        wish = Wish(source, 12 * period, period)
        found = windows.align(np.array(anchors, np.int64), windows.Clock(
            np.array(times, np.int64)), wish.spec(source, "s"))
        try:
            compare(wish, found, times, anchors)
        except AssertionError as failure:
            raise AssertionError(f"{failure}\n{about(wish, times, anchors)}") from None
        kinds[wish.kind, wish.method] = kinds.get((wish.kind, wish.method), 0) + 1
    same(len(kinds), 7, "kinds of wishes that were tried")


@case
def surveys_keep_and_refuse_what_the_reference_does():
    source = seeded()
    outcomes = {"skip": 0, "kept": 0, "error": 0}
    for _ in range(COUNT // 8):
        anchors, period = clock(source, source.randrange(0, 12))
        times, wishes, gaps = {}, {}, {}
        for name in ("a", "b", "c")[:source.randrange(1, 4)]:
            times[name] = sorted(time + source.randrange(-period, period + 1) for time in anchors
                                 for _ in range(source.randrange(3)))
            wishes[name] = Wish(source, 2 * period, period)
            gaps[name] = [is_gap(wishes[name], wishes[name].expected(times[name], anchor)[0])
                          for anchor in anchors]
        clocks = {name: windows.Clock(np.array(times[name], np.int64), name)
                  for name in times if times[name] or source.random() < 0.5}
        specs = {name: wish.spec(source, name) for name, wish in wishes.items()}
        at = np.array(anchors, np.int64)
        bad = [any(row) for row in zip(*gaps.values())]
        skipped = windows.survey(at, clocks, specs, gap="skip")
        same(skipped.keep.tolist(), [not one for one in bad], "keep of skip")
        same(skipped.gaps, {name: sum(rows) for name, rows in gaps.items()}, "gaps")
        masked = windows.survey(at, clocks, specs, gap="mask")
        check(masked.keep.all() and len(masked.keep) == len(anchors), "mask left one out")
        if any(bad):
            error = raised(errors.OutOfRange, windows.survey, at, clocks, specs, gap="error",
                           episode="drive-7")
            holds(str(error), "drive-7")
            name = next(name for name, rows in gaps.items() if any(rows))
            holds(str(error), f"{name!r}")
            holds(str(error), f"anchor of {anchors[gaps[name].index(True)]} ns")
        else:
            windows.survey(at, clocks, specs, gap="error")
        outcomes["error"] += any(bad)
        outcomes["skip"] += sum(bad)
        outcomes["kept"] += len(bad) - sum(bad)
    check(min(outcomes.values()) > COUNT // 100, f"one-sided: {outcomes}")


@case
def a_survey_in_parts_is_an_alignment_at_once():
    generator = np.random.default_rng(seeded().randrange(1 << 32))
    anchors = np.sort(generator.integers(-10**12, 10**12, 30_000))
    times = windows.Clock(np.sort(generator.integers(-10**12, 10**12, 100_000)), "s")
    for wish, rows in (("nearest", None), ((-0.2, 0.1), 20), ((-0.02, 0.0), None), (30, None)):
        spec = windows.parse({"s": wish}, rows=rows, tolerance=0.05)["s"]
        whole = windows.align(anchors, times, spec)
        parts = windows.survey(anchors, {"s": times}, {"s": spec}, gap="skip")
        check((parts.keep == ~whole.gap).all(), "keep differs")
        check(0 < parts.gaps["s"] < len(anchors), "all or nothing is a gap")
        if rows or wish != (-0.02, 0.0):
            check((parts.skew_ns["s"] == whole.skew_ns).all(), "skew differs")
        else:
            same(parts.skew_ns, {}, "skew of slices")


@case
def skew_is_summed_up_over_episodes():
    source = seeded()
    for _ in range(300):
        parts = [[source.choice([windows.NO_SKEW, source.randrange(1000)])
                  for _ in range(source.randrange(120))] for _ in range(source.randrange(4))]
        found = windows.skew(np.array(part, np.int64) for part in parts)
        values = sorted(value for part in parts for value in part if value != windows.NO_SKEW)
        same(found.anchors, len(values), "anchors")
        same(found.max_ns, max(values, default=0), "max")
        if values:
            least = min(value for value in values
                        if 100 * sum(other <= value for other in values) >= 99 * len(values))
            same(found.p99_ns, least, "p99")
    same(windows.skew([np.arange(1, 101)]), windows.Skew(100, 100, 99), "skew of 1 to 100")


@case
def seconds_become_nanoseconds_once_and_half_to_even():
    for given, want in ((0.1, 10**8), (0.3, 3 * 10**8), (1.5e-9, 2), (2.5e-9, 2), (-2.5e-9, -2),
                        (5e-10, 0), (3, 3 * 10**9), (Fraction(1, 3), 333_333_333),
                        (decimal.Decimal("0.0000000035"), 4), (np.float32(0.1), 10**8),
                        (np.int8(3), 3 * 10**9), (-0.0, 0), (decimal.Decimal("1e-999999999"), 0),
                        (decimal.Decimal("9223372036.854775807"), 2**63 - 1),
                        (decimal.Decimal("-9223372036.854775808"), -2**63)):
        same(windows.nanoseconds(given), want, f"{given!r} s")
    for bad in (True, "1", None, 1j, [1], np.bool_(True), float("nan"), float("-inf"), 10**5000,
                decimal.Decimal("sNaN"), decimal.Decimal("1e999999999"), 9223372036.854775808,
                decimal.Decimal("9223372036.8547758075"), np.float16("inf")):
        error = raised(errors.InvalidArgument, windows.nanoseconds, bad, "offset 3")
        check(str(error).startswith("offset 3 is ") and len(str(error)) < 250, str(error))


@case
def moments_of_rows_are_rounded_half_to_even():
    spec = windows.parse({"s": (-2.5e-9, 3e-9)}, rows=2)["s"]
    same(spec.offsets, (-2, 0), "-2 and the half of -2 and 3, rounded")
    spec = windows.parse({"s": (-0.5, 0.0)}, rows=3)["s"]
    same(spec.offsets, (-500_000_000, -333_333_333, -166_666_667), "thirds")
    spec = windows.parse({"s": (0, 1e-9)}, rows=4)["s"]
    same(spec.offsets, (0, 0, 0, 1), "quarters of 1 ns")


@case
def wishes_that_are_wrong_are_refused_in_words():
    for streams, named, words in (
            ({"s": (0.1, 0.1)}, {}, "holds no time"), ({"s": (0.2, 0.1)}, {}, "holds no time"),
            ({"s": (0.1,)}, {}, "tuple of 1"), ({"s": (1, 2, 3)}, {}, "tuple of 3"),
            ({"s": []}, {}, "offsets of stream 's' is 0"),
            ({"s": 0}, {}, "is 0; give an int"), ({"s": -3}, {}, "is -3; give an int"),
            ({"s": True}, {}, "by True"), ({"s": 2.0}, {}, "by 2.0"), ({"s": None}, {}, "by None"),
            ({"s": "hold"}, {}, "by 'hold'"), ({"s": 10**12}, {}, "last records"),
            ({"s": ["x"]}, {}, "offset of stream 's'"), ({"s": (0, "x")}, {}, "edge of stream 's'"),
            ({"s": "nearest"}, {"tolerance": -0.1}, "below 0"),
            ({"s": "nearest"}, {"tolerance": "x"}, "tolerance of stream 's'"),
            ({"s": "nearest"}, {"tolerance": {"t": 1}}, "'t', which is not asked for"),
            ({"s": "nearest"}, {"rows": {"s": 3}}, "rows of stream 's'"),
            ({"s": (0, 1)}, {"rows": 0}, "rows of stream 's' is 0"),
            ({"s": (0, 1)}, {"rows": 2.5}, "rows of stream 's' is 2.5"),
            ({"s": (0, 1)}, {"rows": 10**9}, "rows of stream 's'"),
            ({"s": (0, 1)}, {"method": "cubic"}, "'cubic'"),
            ({"s": (0, 1)}, {"method": {"x": "hold"}}, "'x'"),
            (["s"], {}, "no mapping"), ({3: "nearest"}, {}, "no mapping")):
        error = raised(errors.InvalidArgument, windows.parse, streams, **named)
        holds(str(error), words)
        check(error.remedy, f"no remedy: {error}")


@case
def rows_and_method_leave_other_wishes_alone():
    specs = windows.parse({"a": "nearest", "b": (0, 1), "c": [0.0, 1.0], "d": 4}, rows=5,
                          method="linear", tolerance={"a": 0.5})
    same([specs[name].count for name in "abcd"], [1, 5, 2, 4], "counts")
    same([specs[name].method for name in "abc"], ["nearest", "linear", "nearest"], "methods")
    same([specs[name].tolerance for name in "ab"], [500_000_000, None], "tolerances")
    same([specs[name].single for name in "abcd"], [True, False, False, False], "single")
    same(windows.parse({"c": np.array([0.1, 0.2])})["c"].offsets, (10**8, 2 * 10**8), "an array's")


@case
def clocks_that_fall_or_are_no_times_are_refused():
    error = raised(errors.Malformed, windows.Clock, np.array([1, 5, 5, 4], np.int64), "touch", "e1")
    holds(str(error), "stream 'touch' of episode 'e1': record 3 has time 4 ns, before record 2's 5")
    for bad in ([1.5], [[1]], np.array([1], np.int32), np.array(["x"])):
        holds(str(raised(errors.InvalidArgument, windows.Clock, bad, "touch")), "int64")
        spec = windows.parse({"s": 1})["s"]
        raised(errors.InvalidArgument, windows.align, bad, windows.Clock([]), spec)
    holds(str(raised(errors.InvalidArgument, windows.survey, [], {}, {}, gap="drop")), "'drop'")


@case
def times_at_the_ends_of_64_bits_are_right_or_refused():
    low, high = -(1 << 63), (1 << 63) - 1
    times = windows.Clock(np.array([low, low, 0, high], np.int64), "s")
    spec = windows.parse({"s": "nearest"})["s"]
    found = windows.align(np.array([high, low, -1, 1 << 62, low // 2], np.int64), times, spec)
    same(found.index[:, 0].tolist(), [3, 0, 2, 3, 0], "nearest")
    same(found.skew_ns.tolist(), [0, 0, 1, (1 << 62) - 1, 1 << 62], "skew")
    far = windows.Clock(np.array([low], np.int64), "s")
    found = windows.align(np.array([high], np.int64), far, spec)
    same(found.skew_ns.tolist(), [high], "a skew of more than 63 bits")
    spec = windows.parse({"s": (-1, 1)}, rows=2, method="linear")["s"]
    holds(str(raised(errors.OutOfRange, windows.align, np.array([low]), times, spec)), str(low))
    spec = windows.parse({"s": (0, 1)})["s"]
    holds(str(raised(errors.OutOfRange, windows.align, np.array([high]), times, spec)), str(high))


def interpolated(make, read, dtype, source):
    """Random records of the framework's, held against numpy's float64."""
    lower, upper = (np.array([[source.uniform(-5, 5) for _ in range(3)] for _ in range(8)])
                    .reshape(4, 2, 3) for _ in range(2))
    weight = np.array([[source.choice([0.0, source.random()]) for _ in range(2)]
                       for _ in range(4)])
    low, up = make(lower, dtype), make(upper, dtype)
    got = windows.interpolate(low, up, make(weight, None))
    same(got.dtype, low.dtype, "dtype")
    wide_low, wide_up = read(low), read(up)
    want = wide_low + (wide_up - wide_low) * weight[:, :, None]
    limit = 2**-7 if "16" in str(dtype) else 1e-6
    check(np.abs(read(got) - want).max() <= limit * 10, f"{dtype}: off")
    check((read(got)[weight == 0] == wide_low[weight == 0]).all(), "weight 0 is not lower")


@case
def values_between_records_are_interpolated_in_their_own_type():
    source = seeded()
    for dtype in (np.float16, np.float32, np.float64):
        interpolated(lambda value, kind: value.astype(kind or np.float64),
                     lambda value: value.astype(np.float64), dtype, source)
    one = np.array([1.0], np.float32)
    endless = windows.interpolate(one * np.inf, one * np.inf, np.zeros(1))
    same(float(endless[0]), float("inf"), "infinity at weight 0")
    holds(str(raised(errors.UnsupportedData, windows.interpolate, np.arange(3), np.arange(3),
                     np.zeros(3))), "int64 values")


@case
def values_of_torch_are_interpolated_too():
    torch = need("torch")
    source = seeded()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        interpolated(lambda value, kind: torch.tensor(value).to(kind or torch.float64),
                     lambda value: value.to(torch.float64).numpy(), dtype, source)
    raised(errors.UnsupportedData, windows.interpolate, torch.arange(3), torch.arange(3),
           torch.zeros(3))


if __name__ == "__main__":
    run()
