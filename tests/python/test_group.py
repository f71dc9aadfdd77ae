"""onehop.load with process_group: ranks share the reading, and fail together.

usage: test_group.py [FOLDER of the look-alike driver]

Ranks are processes of this file, joined by gloo. One session of them runs many scenarios one after
the other in the same group, so that each shows that the one before left the group in order. The
group's own timeout is far longer than a case may take: it never is what ends a wait.
"""
import functools
import hashlib
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import time

from package import (ROOT, Scratch, environment, header, need, nbytes, noise, raised, safetensors,
                     seeded)
from tap import Skip, case, check, holds, run, same

import onehop
from onehop import _group, _peers, errors

PART = 128 << 10
"""Bytes of a rank's part in these tests, so that small models have many stripes. Gaps between parts
have to be larger than those that a plan reads over."""

PATIENCE_S = 100


# ---- in a rank


def digest(tensors):
    """Of all names, types, shapes and bytes."""
    import torch

    found = hashlib.sha256()
    for name, tensor in tensors.items():
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():
            found.update(tensor.contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes())
    return found.hexdigest()


def attempt(path, **named):
    """What a load gives, or what it raises."""
    named.setdefault("process_group", True)
    begin = time.monotonic()
    try:
        tensors = onehop.load(path, DEVICE, **named)
    except BaseException as error:
        return {"error": type(error).__name__, "words": str(error),
                "rank": getattr(error, "rank", None), "seconds": time.monotonic() - begin}
    report = tensors.report
    return {"digest": digest(tensors), "bytes": report.bytes, "read_bytes": report.read_bytes,
            "names": len(tensors)}


class patched:
    """An attribute replaced: with patched(owner, name, lambda old: new)."""

    def __init__(self, owner, name, make):
        self.owner, self.name, self.make = owner, name, make

    def __enter__(self):
        self.old = getattr(self.owner, self.name)
        setattr(self.owner, self.name, self.make(self.old))

    def __exit__(self, *_):
        setattr(self.owner, self.name, self.old)


def on_call(number, act):
    """For `patched`: acts before the call of that number, from 0."""
    def make(old):
        calls = iter(range(1 << 30))

        def new(*arguments, **named):
            if next(calls) == number:
                act()
            return old(*arguments, **named)
        return new
    return make


def after_call(number, act):
    """For `patched`: acts after the call of that number."""
    def make(old):
        calls = iter(range(1 << 30))

        def new(*arguments, **named):
            found = old(*arguments, **named)
            if next(calls) == number:
                act()
            return found
        return new
    return make


def fails(error):
    def act():
        raise error
    return act


def only(rank, owner, name, make):
    """`patched` in one rank, nothing in others."""
    return patched(owner, name, make if RANK == rank else lambda old: old)


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def whole(folder):
    return attempt(os.path.join(folder, "model"))


def by_gather(folder):
    """As with NCCL: an all-gather a stripe."""
    def make(old):
        return lambda self, group, framework, _: old(self, group, framework, True)
    with patched(_group.Ranks, "__init__", make):
        return whole(folder)


def some(folder):
    return attempt(os.path.join(folder, "model"), tensors=["a.*", "*.odd"], verify="read")


def rows(folder):
    """The same tensor-parallel part on all ranks."""
    return attempt(os.path.join(folder, "model"), tp=(1, 3), tp_plan={"*.wide": 1, "*.tall": 0},
                   verify="read")


def one_file(folder):
    tensors = onehop.load_file(os.path.join(folder, "tiny.safetensors"), process_group=True)
    return {"digest": digest(tensors), "report": tensors.report.bytes}


def nothing(folder):
    return attempt(os.path.join(folder, "model"), tensors=lambda name: False)


def progress(folder):
    seen = []
    attempt(os.path.join(folder, "model"), progress=lambda *pair: seen.append(pair))
    return {"rises": seen == sorted(seen), "last": seen[-1]}


def options(folder):
    """How many ranks the runtime that reads knows of."""
    found = []

    def make(old):
        def new(self, *arguments, **named):
            runtime = old(self, *arguments, **named)
            found.append(runtime.options()["ranks_per_node"].value)
            return runtime
        return new
    with patched(_group.Ranks, "runtime", make):
        whole(folder)
    return {"ranks": found}


def missing(folder):
    return attempt(os.path.join(folder, "model" if RANK != 1 else "none"))


def other_tensors(folder):
    return attempt(os.path.join(folder, "model"), tensors=["a.*"] if RANK == 1 else None)


def other_names(folder):
    """The same layout, other names and bytes."""
    return attempt(os.path.join(folder, "renamed" if RANK == 1 else "model"))


def none_of_it(folder):
    return attempt(os.path.join(folder, "model"),
                   tensors=(lambda name: False) if RANK == 1 else None)


def own_part(folder):
    return attempt(os.path.join(folder, "model"), tp=(RANK, SIZE), tp_plan={"*.wide": 1})


def no_memory(folder):
    error = errors.NoMemory("there is none")
    with only(1, onehop.arenas.TorchFramework, "allocate", on_call(0, fails(error))):
        return whole(folder)


def cut_short(folder):
    """The file of rank 1 ends early, once all are ready."""
    path = os.path.join(folder, f"copy-{RANK}.safetensors")

    def act():
        os.truncate(path, os.path.getsize(path) // 2)

    with only(1, _group.Transfer, "start", on_call(0, act)):
        return attempt(path)


def in_the_middle(folder):
    with only(1, _group._Arena, "may_issue", on_call(3, fails(ValueError("an error of a test")))):
        return whole(folder)


def in_the_middle_by_gather(folder):
    with only(1, _group._Arena, "may_issue", on_call(3, fails(ValueError("an error of a test")))):
        return by_gather(folder)


def late(folder):
    """All is there, and then one finds it wrong."""
    error = errors.Mismatch("it differs")
    with only(1, onehop.loading.Placement, "verify", on_call(0, fails(error))):
        return attempt(os.path.join(folder, "model"), verify="read")


def two_at_once(folder):
    with only(0, _group._Arena, "may_issue", on_call(2, fails(ValueError("the first")))), \
            only(2, _group._Arena, "may_issue", on_call(4, fails(ValueError("the second")))):
        return whole(folder)


def interrupted_while_ready(folder):
    with only(1, _group.Ranks, "_agree", on_call(0, interrupt)):
        return whole(folder)


def interrupted_while_issuing(folder):
    with only(1, _group._Arena, "issue", after_call(3, interrupt)):
        return whole(folder)


def interrupted_while_reading(folder):
    with only(1, _group.Transfer, "landed", on_call(0, interrupt)):
        return whole(folder)


def interrupted_at_the_end(folder):
    with only(1, onehop.loading.Placement, "verify", on_call(0, interrupt)):
        return attempt(os.path.join(folder, "model"), verify="read")


def killed(folder):
    with only(1, _group._Arena, "may_issue", on_call(3, die)):
        return whole(folder)


def killed_by_gather(folder):
    with only(1, _group._Arena, "may_issue", on_call(3, die)):
        return by_gather(folder)


def killed_and_on(folder):
    """The device is of use still."""
    import torch

    found = killed(folder)
    torch.cuda.synchronize()
    return found


def killed_while_others_get_ready(folder):
    with only(1, _group.Ranks, "_agree", on_call(0, die)):
        return whole(folder)


def streamed(folder):
    """With a bound, so that the ranks meet several times."""
    stream = onehop.stream(os.path.join(folder, "model"), DEVICE, process_group=True,
                           max_device_bytes=4 << 20)
    tensors = {name: tensor.clone() for name, tensor in stream}
    return {"digest": digest(tensors), "names": len(tensors)}


def stream_of(folder, name="model", keep=False):
    """A bounded stream whose tensors are kept or not; the error it ends with."""
    kept = []
    try:
        for pair in onehop.stream(os.path.join(folder, name), DEVICE, process_group=True,
                                  max_device_bytes=4 << 20):
            kept.append(pair if keep else pair[0])
            del pair
    except BaseException as error:
        return {"error": type(error).__name__, "words": str(error),
                "rank": getattr(error, "rank", None)}
    return {"names": len(kept)}


def stream_of_none(folder):
    return stream_of(folder, "model" if RANK != 1 else "none")


def stream_that_is_kept(folder):
    return stream_of(folder, keep=RANK == 1)


def stream_in_the_middle(folder):
    with only(1, _group._Arena, "may_issue", on_call(3, fails(ValueError("an error of a test")))):
        return stream_of(folder)


def pairs(folder):
    """Two groups of two load two models at the same time."""
    import torch.distributed as distributed

    groups = [distributed.new_group([0, 1]), distributed.new_group([2, 3])]
    mine, other = groups if RANK < 2 else reversed(groups)
    name = "model" if RANK < 2 else "renamed"
    return {**attempt(os.path.join(folder, name), process_group=mine),
            "other": attempt(os.path.join(folder, name), process_group=other),
            "alone": attempt(os.path.join(folder, name),
                             process_group=[distributed.new_group([rank])
                                            for rank in range(SIZE)][RANK])}


def unlike(folder):
    """What a group cannot do."""
    path = os.path.join(folder, "model")
    return {"arena": attempt(path, arena="file"), "framework": attempt(path, framework="array"),
            "group": attempt(path, process_group="gloo")}


def elsewhere(folder):
    def make(old):
        return lambda: old() if RANK != 1 else bytes(16)
    with patched(_peers, "_machine", make):
        return whole(folder)


def serve(backend, store, rank, size, folder, names):
    """A rank: runs the scenarios of those names, and prints what each gives as a line of JSON."""
    global RANK, SIZE, DEVICE
    RANK, SIZE, DEVICE = rank, size, "cpu" if backend == "gloo" else f"cuda:{rank}"
    from datetime import timedelta

    import torch
    import torch.distributed as distributed

    import onehop.arenas
    import onehop.loading

    torch.set_num_threads(1)
    _group._PART = PART
    if backend == "nccl":
        torch.cuda.set_device(rank)
    distributed.init_process_group(backend, init_method="file://" + store, rank=rank,
                                   world_size=size, timeout=timedelta(seconds=2 * PATIENCE_S))
    for name in names:
        print(json.dumps(globals()[name](folder)), flush=True)
    os._exit(0)  # a group that lost a rank would wait for it here


# ---- beside the ranks


def make_models(folder):
    """model: a folder of two files; renamed: the same with other names; copy-R: one file each."""
    source = random.Random(5)
    shapes = [("wide", "BF16", [16, 3, 96]), ("tall", "F32", [96, 40]), ("odd", "U8", [8191]),
              ("none", "F32", [0, 3]), ("scalar", "F64", []), ("large", "F16", [1500, 1001])]
    for kind, words in (("model", "ab"), ("renamed", "xy")):
        os.mkdir(os.path.join(folder, kind))
        for part in words:
            tensors = [(f"{part}.{name}", *rest, noise(source, *rest)) for name, *rest in shapes]
            at = words.index(part) + 1
            safetensors(os.path.join(folder, kind, f"model-0000{at}-of-00002.safetensors"),
                        tensors)
    for rank in range(4):
        path = os.path.join(folder, f"copy-{rank}.safetensors")
        safetensors(path, [("w", "U8", [1 << 20], random.Random(6).randbytes(1 << 20))])
        os.utime(path, (1, 1))
    safetensors(os.path.join(folder, "tiny.safetensors"), [("t", "U8", [3], b"abc")])


def session(size, *names, ends=(), backend="gloo", **more):
    """What each rank prints for each scenario: [rank][name].

    ends: ranks that are killed; more: environment variables.
    """
    need("torch")
    with Scratch() as folder:
        make_models(folder)
        store = tempfile.mktemp(dir=folder)
        command = [sys.executable, os.path.abspath(__file__), "rank", backend, store]
        ranks = [subprocess.Popen([*command, str(rank), str(size), folder, *names],
                                  env=environment(GLOO_SOCKET_IFNAME="lo", LOCAL_WORLD_SIZE=None,
                                                  **more),
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                 for rank in range(size)]
        try:
            said = [process.communicate(timeout=PATIENCE_S) for process in ranks]
        except subprocess.TimeoutExpired:
            for process in ranks:
                process.kill()
            raise AssertionError(f"hung after {[p.communicate() for p in ranks]}") from None
        finally:
            for process in ranks:
                process.kill()
                process.wait()
    found = []
    for rank, (process, (out, err)) in enumerate(zip(ranks, said)):
        same(process.returncode, -signal.SIGKILL if rank in ends else 0, f"rank {rank}: {err}")
        lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        found.append(dict(zip(names, lines)))
        if rank not in ends:
            same(len(lines), len(names), f"rank {rank}: {err}")
    return found


def alone(name, **named):
    """What a load by oneself gives: its digest, and the bytes of the tensors."""
    with Scratch() as folder:
        make_models(folder)
        tensors = onehop.load(os.path.join(folder, name), "cpu", framework="torch", **named)
        return digest(tensors), tensors.report.bytes


def well(session_of, name, want):
    """All ranks have what a load alone gives, and read their share each."""
    size = len(session_of)
    for rank, found in enumerate(session_of):
        check("error" not in found[name], f"{name}, rank {rank}: {found[name]}")
        same((found[name]["digest"], found[name]["bytes"]), want, f"{name}, rank {rank}")
    total = sum(found[name]["read_bytes"] for found in session_of)
    check(want[1] <= total <= 1.1 * want[1] + 4096, f"{name}: {total} of {want[1]} bytes were read")
    for found in session_of:
        check(found[name]["read_bytes"] < want[1] / size + 2 * PART + 4096, f"{name}: {found}")


def ill(session_of, name, culprit, kind, words):
    """The culprit has its own error, and all others one that quotes it."""
    for rank, found in enumerate(session_of):
        got = found[name]
        if rank == culprit:
            same(got["error"], kind, f"{name}, rank {rank}")
            holds(got["words"], words)
            continue
        same((got["error"], got["rank"]), ("RankFailed", culprit), f"{name}, rank {rank}: {got}")
        holds(got["words"], f"rank {culprit} of the process group failed: {kind}")
        holds(got["words"], words)


GOOD = ("whole", "by_gather", "streamed", "some", "rows", "one_file", "nothing", "progress", "options",
        "unlike")
BAD = {"missing": ("NotFound", "none"), "no_memory": ("NoMemory", "there is none"),
       "in_the_middle": ("ValueError", "an error of a test"),
       "in_the_middle_by_gather": ("ValueError", "an error of a test"),
       "late": ("Mismatch", "it differs"),
       "stream_of_none": ("NotFound", "none"),
       "stream_that_is_kept": ("Limit", "max_device_bytes"),
       "stream_in_the_middle": ("ValueError", "an error of a test"),
       "interrupted_while_ready": ("KeyboardInterrupt", ""),
       "interrupted_while_issuing": ("KeyboardInterrupt", ""),
       "interrupted_while_reading": ("KeyboardInterrupt", ""),
       "interrupted_at_the_end": ("KeyboardInterrupt", "")}
UNLIKE = ("other_tensors", "other_names", "none_of_it", "own_part")


@functools.cache
def two():
    return session(2, *GOOD)


@functools.cache
def three():
    """Each failure is followed by the next scenario in the same group, and all by a good load."""
    return session(3, "whole", *BAD, *UNLIKE, "elsewhere", "two_at_once", "cut_short",
                   "whole_again", "by_gather", "streamed")


def whole_again(folder):
    return whole(folder)


@case
def two_ranks_have_all_bytes_and_read_half_of_them_each():
    found = two()
    for name in ("whole", "by_gather"):
        well(found, name, alone("model"))
    well(found, "some", alone("model", tensors=["a.*", "*.odd"]))


@case
def a_stream_is_shared_part_by_part():
    for found in (*two(), *three()):
        if "streamed" in found:
            same((found["streamed"]["digest"], found["streamed"]["names"]),
                 (alone("model")[0], 12))


@case
def parts_that_are_rows_are_shared_too():
    well(two(), "rows", alone("model", tp=(1, 3), tp_plan={"*.wide": 1, "*.tall": 0}))


@case
def less_than_a_part_and_nothing_at_all():
    for found in two():
        same(found["one_file"]["report"], 3)
        same(found["nothing"]["names"], 0)
    same(len({found["one_file"]["digest"] for found in two()}), 1)


@case
def progress_counts_all_bytes():
    for found in two():
        check(found["progress"]["rises"], found)
        done, total = found["progress"]["last"]
        same(done, total)
        check(total >= alone("model")[1], found)


@case
def the_ranks_share_cores_without_a_launcher():
    for found in two():
        same(found["options"]["ranks"], ["2"])


@case
def what_a_group_cannot_do_is_refused_at_once():
    for found in two():
        for name, words in (("arena", 'use arena="one"'), ("framework", 'use framework="torch"'),
                            ("group", "give a group that this rank is in")):
            same(found["unlike"][name]["error"], "InvalidArgument")
            holds(found["unlike"][name]["words"], words)


@case
def without_a_group_the_error_says_how_to_make_one():
    need("torch")
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"), [("a", "U8", [1], b"a")])
        error = raised(errors.InvalidArgument, onehop.load, path, "cpu", process_group=True)
        holds(str(error), "init_process_group")


@case
def three_ranks_have_all_bytes():
    for name in ("whole", "whole_again", "by_gather"):
        well(three(), name, alone("model"))


@case
def if_one_rank_fails_all_do_and_its_error_is_quoted():
    for name, (kind, words) in BAD.items():
        ill(three(), name, 1, kind, words)


@case
def a_file_that_ends_early_on_one_rank():
    got = three()[1]["cut_short"]
    check(got["error"] in ("FileChanged", "IOFailed"), got)
    ill(three(), "cut_short", 1, got["error"], "copy-1.safetensors")


@case
def ranks_that_load_different_things_are_told():
    for name in UNLIKE:
        kinds = [found[name]["error"] for found in three()]
        check(set(kinds) <= {"InvalidArgument", "RankFailed"}, kinds)
        check("InvalidArgument" in kinds, kinds)
        for found in three():
            holds(found[name]["words"], "other tensors or files than rank")


@case
def two_failures_at_once_are_each_ranks_own():
    ends = [found["two_at_once"] for found in three()]
    for rank, (got, words) in enumerate(zip(ends, ("the first", "", "the second"))):
        if got["error"] == "ValueError":
            same(got["words"], words)
            continue
        same(got["error"], "RankFailed", f"rank {rank}")
        check(got["rank"] in (0, 2) and got["rank"] != rank, got)
        same(ends[got["rank"]]["error"], "ValueError")


@case
def ranks_on_several_machines_are_refused():
    for found in three():
        same(found["elsewhere"]["error"], "InvalidArgument")
        holds(found["elsewhere"]["words"], "rank 1 is not with rank 0")


@case
def if_one_process_dies_the_others_fail():
    for name in ("killed", "killed_by_gather", "killed_while_others_get_ready"):
        found = session(3, name, ends=(1,))
        for rank in (0, 2):
            got = found[rank][name]
            same((got["error"], got["rank"]), ("RankFailed", 1), f"{name}, rank {rank}: {got}")
            holds(got["words"], "rank 1 of the process group failed: its process ended")
            print(f"# {name}: rank {rank} after {got['seconds']:.2f} s")


@case
def groups_within_a_job_share_by_themselves():
    found = session(4, "pairs")
    for rank, got in enumerate(one["pairs"] for one in found):
        want = alone("model" if rank < 2 else "renamed")
        same((got["digest"], got["bytes"]), want)
        check(got["read_bytes"] < 0.6 * want[1], got)
        same(got["other"]["error"], "InvalidArgument")
        same((got["alone"]["digest"], got["alone"]["read_bytes"] >= want[1]), (want[0], True))


# ---- beside other loaders


@case
def the_comparison_runs_with_two_ranks_on_the_host():
    need("torch")
    need("numpy")
    program = os.path.join(ROOT, "bench", "peers_ranks.py")
    with Scratch() as folder:
        path = os.path.join(folder, "found.json")
        done = subprocess.run(
            [sys.executable, program, "--device", "cpu", "--bytes", "8M", "--fresh", "1",
             "--repeat", "1", "--schemes", "onehop", "--where", folder, "--json", path],
            env=environment(GLOO_SOCKET_IFNAME="lo"), timeout=PATIENCE_S, check=True,
            stdout=subprocess.PIPE, text=True)
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        rows = {row["scheme"]: row for row in found["results"]}
        same([(row["state"], len(row["first"]), len(row["again"])) for row in rows.values()],
             [("ok", 1, 1)] * 3, done.stdout)
        for name, share in (("onehop tp", 2), ("onehop process_group", 2),
                            ("onehop, each rank alone", 1)):
            check(name in rows and name in done.stdout, rows)
            read = sum(rows[name]["report"]["routes"].values())
            check(read <= found["bytes"] / share * 1.01, f"{name} read {read} bytes a rank")
        check(found["ceiling"] > 0, found)


# ---- on GPUs


def need_gpus():
    torch = need("torch")
    if torch.cuda.device_count() < 2:
        raise Skip("there are no two GPUs")


@case
def two_gpus_have_all_bytes_and_fail_together():
    need_gpus()
    found = session(2, "whole", *BAD, *UNLIKE, "whole_again", "some", backend="nccl")
    for name in ("whole", "whole_again"):
        well(found, name, alone("model"))
    well(found, "some", alone("model", tensors=["a.*", "*.odd"]))
    for name, (kind, words) in BAD.items():
        ill(found, name, 1, kind, words)


@case
def if_the_process_of_one_gpu_dies_the_other_fails_and_its_gpu_is_free():
    need_gpus()
    for name in ("killed_and_on", "killed_while_others_get_ready"):
        got = session(2, name, ends=(1,), backend="nccl")[0][name]
        same((got["error"], got["rank"]), ("RankFailed", 1), got)
        print(f"# {name}: after {got['seconds']:.2f} s")


# ---- how an arena is shared


def random_runs(source):
    """Runs as a layout has them, with the bytes of their file."""
    found, place, offset = [], 0, 0
    for _ in range(source.randrange(1, 12)):
        place += source.randrange(40)
        offset += source.randrange(40)
        rows, row_bytes = source.choice([1, 1, 1, 5, 40]), source.randrange(1, 900)
        stride = row_bytes if rows == 1 else row_bytes + source.randrange(50)
        found.append(_group.Run(0, offset, row_bytes, rows, stride, place))
        place, offset = found[-1].end, offset + rows * stride
    return found, place, source.randbytes(offset)


def lay(pieces, arena, data):
    for piece in pieces:
        for row in range(piece.rows):
            at = piece.offset + row * piece.row_stride
            place = piece.place + row * piece.row_bytes
            arena[place:place + piece.row_bytes] = data[at:at + piece.row_bytes]


@case
def all_ranks_parts_make_the_whole():
    source = seeded()
    for _ in range(300):
        runs, nbytes_, data = random_runs(source)
        want, got = bytearray(nbytes_), bytearray(nbytes_)
        lay(runs, want, data)
        size, count = source.randrange(1, 6), 0
        stripe = size * 64 * source.randrange(1, 9)
        for rank in range(size):
            stripes = _group.Stripes(rank, size, nbytes_, stripe)
            own = list(stripes.own(runs))
            same([index for index, _ in own], sorted(index for index, _ in own))
            for index, piece in own:
                begin, end = list(stripes.parts())[index]
                check(begin <= piece.place and piece.end <= end, f"{piece} is not in its part")
                check(piece.rows == 1 or piece.row_stride >= piece.row_bytes, f"{piece}")
                if index < stripes.count:
                    count += piece.end - piece.place
            lay([piece for _, piece in own], got, data)
        check(got == want, f"{size} ranks, {runs}")
        behind = sum(piece.end - piece.place for index, piece in own if index == stripes.count)
        same(count + behind, sum(run.end - run.place for run in runs), "bytes read by one rank")
        check(stripes.nbytes - stripes.shared < size * 64, "what all read")


@case
def the_table_says_what_items_say():
    with Scratch() as folder:
        tensors = [("a", "F32", [8], bytes(32)), ("b", "BF16", [2, 4], bytes(16)),
                   ("c", "U8", [40000], bytes(40000))]
        path = safetensors(os.path.join(folder, "m.safetensors"), tensors)
        head = len(header([(n, d, s, nbytes(d, s)) for n, d, s, _ in tensors]))
        with onehop.Model(path) as model, model.select() as selection:
            items = selection.items()
            (first, *others) = _group.Table(selection).runs()
            same((first.file, first.offset, first.rows, first.place), (0, head, 1, 0))
            same(sum(one.row_bytes for one in (first, *others)) >= 40048, True)
            same(max(one.end for one in (first, *others)), items[-1].arena_offset + 40000)


@case
def rank_failures_can_be_pickled():
    error = pickle.loads(pickle.dumps(onehop.RankFailed(3, "rank 3 failed", "see to it")))
    same((type(error), error.rank, str(error)), (onehop.RankFailed, 3, "rank 3 failed; see to it"))
    check(isinstance(error, onehop.OnehopError), "it is no OnehopError")


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        serve(*sys.argv[2:4], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6], sys.argv[7:])
    run()
