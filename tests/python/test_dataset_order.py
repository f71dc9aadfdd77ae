"""onehop.Dataset: which samples come when. Ranks, epochs, resuming, weights and mixes.

usage: test_dataset_order.py [FOLDER of the look-alike driver]
"""
import collections
import importlib.util
import itertools
import json
import os
import pickle
import subprocess
import sys

from package import Scratch, environment, raised, seeded
from tap import case, check, holds, run, same

if importlib.util.find_spec("numpy") is None:
    print("1..0 # SKIP numpy is not installed")
    sys.exit(0)

import dataset_data as data
import numpy as np
import onehop
from onehop import errors
from onehop.dataset import Dataset

COMMON = {"device": "cpu", "framework": "numpy", "fields": ["y.cls"]}


def seen(dataset):
    """The classes, which are the samples' numbers, of each batch of a loop."""
    return [list(batch["y.cls"]) for batch in dataset]


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


def interleaved(ranks):
    """The samples of all ranks' batches in the order of the sequence."""
    made = []
    for turn in itertools.zip_longest(*ranks, fillvalue=[]):
        made += [one for row in itertools.zip_longest(*turn) for one in row if one is not None]
    return made


@case
def ranks_share_an_epoch_as_remainder_says():
    with Scratch() as folder:
        for count in (1, 37, 96):
            here = data.shards(os.path.join(folder, str(count)), data.numbered(count), 11)
            for world in range(1, 17):
                for batch in (1, 2, 3, 5, 7, 8, 13, 16):
                    check_split(here, count, world, batch)


def check_split(folder, count, world, batch):
    step = world * batch
    for remainder in ("drop", "pad", "uneven"):
        ranks, pads, lengths, dropped, padded = [], 0, [], 0, 0
        for rank in range(world):
            with Dataset(folder, batch=batch, rank=rank, world_size=world, remainder=remainder,
                         **COMMON) as dataset:
                ranks.append([])
                for one in dataset:
                    ranks[-1].append(one["y.cls"])
                    if remainder == "pad":
                        pads += int(one["__pad__"].sum())
                        real = [n for n, pad in zip(one["y.cls"], one["__pad__"]) if not pad]
                        ranks[-1][-1] = real
                        same(len(one["y.cls"]), batch, "rows")
                lengths.append(len(dataset))
                same(len(ranks[-1]), lengths[-1], "len()")
                totals = dataset.statistics()
                dropped, padded = totals["dropped"], totals["padded"]
        everything = flat(map(flat, ranks))
        same(len(set(everything)), len(everything), "a sample came twice")
        what = f"N {count}, world {world}, batch {batch}, {remainder}"
        if remainder == "drop":
            same((len(everything), set(lengths)), (count // step * step, {count // step}), what)
            same(dropped, count - len(everything), what)
        else:
            same(sorted(everything), list(range(count)), what)
        if remainder == "pad":
            same(set(lengths), {-(-count // step)}, what)
            same(padded, pads, what)
            same(pads, -count % step, what)
        if remainder == "uneven":
            check(max(lengths) - min(lengths) <= 1, what)


@case
def all_worlds_and_batches_go_through_one_sequence():
    with Scratch() as folder:
        data.shards(folder, data.numbered(96), 20)
        for shuffle in ("sample", "block", "shard", None):
            with Dataset(folder, shuffle=shuffle, **COMMON) as dataset:
                whole = flat(seen(dataset))
            same(sorted(whole), list(range(96)))
            check((shuffle is None) == (whole == sorted(whole)), f"shuffle {shuffle}")
            for world, batch in ((2, 3), (3, 4), (4, 1), (16, 2)):
                ranks = []
                for rank in range(world):
                    with Dataset(folder, batch=batch, rank=rank, world_size=world, shuffle=shuffle,
                                 **COMMON) as dataset:
                        ranks.append(seen(dataset))
                same(interleaved(ranks), whole, f"shuffle {shuffle}, world {world}")


@case
def epochs_differ_and_seeds_repeat():
    with Scratch() as folder:
        data.shards(folder, data.numbered(60), 20)
        with Dataset(folder, batch=4, **COMMON) as dataset:
            epochs = [flat(seen(dataset)) for _ in range(3)]
            same(dataset.epoch, 3)
            check(len(set(map(tuple, epochs))) == 3, "epochs are alike")
            for epoch in (2, 0, 1):
                dataset.set_epoch(epoch)
                same(flat(seen(dataset)), epochs[epoch])
            next(iter(dataset))
            same(flat(seen(dataset)), flat(seen(Dataset(folder, batch=4, epoch=2, **COMMON))))
        with Dataset(folder, batch=4, seed=1, **COMMON) as dataset:
            check(flat(seen(dataset)) != epochs[0], "seeds are alike")
        with Dataset(folder, batch=4, seed=(1 << 64) - 1, **COMMON) as dataset:
            same(len(seen(dataset)), 15)
        raised(errors.InvalidArgument, Dataset(folder, **COMMON).set_epoch, -1)


@case
def a_thousand_loops_that_stop_anywhere_go_on_exactly():
    """Each time by another world and batch; after some by another object, or pickled."""
    source = seeded()
    with Scratch() as folder:
        counts = (50, 97)
        whole = {}
        for count in counts:
            here = data.shards(os.path.join(folder, str(count)), data.numbered(count), 13)
            for shuffle in ("sample", "block"):
                with Dataset(here, shuffle=shuffle, epoch=5, **COMMON) as dataset:
                    whole[count, shuffle] = flat(seen(dataset))
        for _ in range(1000):
            count, shuffle = source.choice(counts), source.choice(("sample", "block"))
            here = os.path.join(folder, str(count))
            got, state = [], None
            while state is None or state["epoch"] == 5:
                world, batch = source.randrange(1, 5), source.randrange(1, 6)
                stop, states, ranks = source.randrange(0, 30), [], []
                for rank in range(world):
                    with Dataset(here, batch=batch, rank=rank, world_size=world, shuffle=shuffle,
                                 remainder="pad", epoch=5, **COMMON) as dataset:
                        if state is not None:
                            dataset.load_state_dict(json.loads(json.dumps(state)))
                        ranks.append([])
                        for one in itertools.islice(dataset, stop):
                            ranks[-1].append([n for n, pad in zip(one["y.cls"], one["__pad__"])
                                              if not pad])
                        if stop > len(ranks[-1]):  # the loop was seen to end
                            same(dataset.epoch, 6)
                        states.append(dataset.state_dict())
                check(all(one == states[0] for one in states), "ranks disagree")
                check(len(json.dumps(states[0])) < 400, "the state is long")
                state = states[0]
                got += interleaved(ranks)
            same(got, whole[count, shuffle])


@case
def a_state_is_where_the_loop_is_also_at_the_epochs_ends():
    with Scratch() as folder:
        data.shards(folder, data.numbered(40), 40)
        with Dataset(folder, batch=10, **COMMON) as dataset:
            epochs = [seen(dataset) for _ in range(3)]
        with Dataset(folder, batch=10, **COMMON) as dataset:
            same(dataset.state_dict()["consumed"], 0)
            states = []
            for batch in dataset:
                states.append(dataset.state_dict())
            same([state["consumed"] for state in states], [10, 20, 30, 40])
            states.append(dataset.state_dict())
            same((states[-1]["epoch"], states[-1]["consumed"]), (1, 0))
        for number, state in enumerate(states):
            with Dataset(folder, batch=10, **COMMON) as dataset:
                for _ in range(2):  # again makes no difference
                    dataset.load_state_dict(state)
                    same(dataset.state_dict(), state)
                    dataset.set_epoch(state["epoch"])
                    same(dataset.state_dict(), state)
                rest = epochs[0][number + 1:] if number < 4 else epochs[1]
                same(seen(dataset), rest, "the rest of the epoch")
                same(seen(dataset), epochs[1 if number < 4 else 2], "the epoch behind it")
            with Dataset(folder, batch=10, **COMMON) as dataset:
                dataset.load_state_dict(state)
                dataset.set_epoch(2)
                same(seen(dataset), epochs[2], "another epoch")
                # A loaded state is of one loop; the next begins at the beginning.
                dataset.load_state_dict(states[1])
                for _ in dataset:
                    break
                same(seen(dataset), epochs[0])


@case
def resuming_twice_in_one_epoch_is_exact():
    with Scratch() as folder:
        data.shards(folder, data.numbered(40), 40)
        with Dataset(folder, batch=5, **COMMON) as dataset:
            whole = seen(dataset)
        got, state = [], None
        for _ in range(4):
            with Dataset(folder, batch=5, **COMMON) as dataset:
                if state:
                    dataset.load_state_dict(state)
                got += list(itertools.islice(({**b}["y.cls"] for b in dataset), 2))
                state = dataset.state_dict()
        same(got, whole)


@case
def one_feed_serves_all_epochs_that_follow_each_other():
    from onehop import _dataset_feed, dataset as module

    with Scratch() as folder:
        data.shards(folder, data.numbered(600, size=3000), 200)
        named = {**COMMON, "fields": ["y.cls", "bin"], "batch": 20}
        epochs = []
        for epoch in range(6):  # of a feed each
            with Dataset(folder, epoch=epoch, **named) as dataset:
                epochs.append(seen(dataset))
        made, kind, most = [], _dataset_feed.Feed, module._MADE_AT_ONCE
        for at_once, ring in ((most, None), (most, 2_000_000), (0, 2_000_000), (0, None)):
            module._MADE_AT_ONCE = at_once
            module.Feed = lambda *rest: made.append(kind(*rest)) or made[-1]
            try:
                with Dataset(folder, ring_bytes=ring, **named) as dataset:
                    made.clear()
                    same([seen(dataset) for _ in range(4)], epochs[:4])
                    same(len(made), 1, f"feeds, by a ring of {ring}")
                    same(seen(dataset.map(lambda batch: batch)), epochs[4], "of a copy")
                    same(len(made), 2, "feeds")
                    next(iter(dataset))
                    same(seen(dataset), epochs[4], "after a loop that was left")
                    dataset.set_epoch(5)
                    same(seen(dataset), epochs[5])
                    dataset.set_epoch(2)
                    same(seen(dataset), epochs[2], "after another epoch was begun ahead")
                    state = {**dataset.state_dict(), "consumed": 100}
                    dataset.load_state_dict(state)
                    same(seen(dataset), epochs[3][5:])
                    same([len(dataset), seen(dataset)], [30, epochs[4]])
                    same(dataset.statistics()["samples"], 600 * 8 + 20 + 500)
            finally:
                module.Feed, module._MADE_AT_ONCE = kind, most


@case
def a_pickled_dataset_is_where_it_was():
    with Scratch() as folder:
        data.shards(folder, data.numbered(40), 40)
        with Dataset(folder, batch=5, epoch=2, **COMMON) as dataset:
            whole = seen(dataset)
            dataset.set_epoch(2)
            dataset.load_state_dict({**dataset.state_dict(), "consumed": 15})
            with pickle.loads(pickle.dumps(dataset)) as again:
                same((again.epoch, seen(again)), (2, whole[3:]))


@case
def another_dataset_or_policy_is_refused_with_the_difference():
    with Scratch() as folder:
        here, there = (data.shards(os.path.join(folder, name), data.numbered(count), 20)
                       for name, count in (("a", 40), ("b", 41)))
        same_bytes = data.shards(os.path.join(folder, "c"), data.numbered(40), 20)
        with Dataset(here, **COMMON) as dataset:
            state = dataset.state_dict()
        for words, path, more in (("its fingerprint is", there, {}),
                                  ("its seed is 0", here, {"seed": 1}),
                                  ("its policy.shuffle is 'sample'", here, {"shuffle": "block"}),
                                  ("its policy.samples is None", here, {"samples": [1, 2, 3]}),
                                  ("its policy.draws is None", here, {"weights": [1.0] * 40})):
            with Dataset(path, **{**COMMON, **more}) as dataset:
                holds(str(raised(errors.Mismatch, dataset.load_state_dict, state)), words)
        with Dataset(same_bytes, **COMMON) as dataset:
            dataset.load_state_dict(state)
            for bad, words in (({}, "no state"), (5, "no state"),
                               ({**state, "version": 2}, "version 2"),
                               ({**state, "consumed": -1}, "consumed is -1"),
                               ({**state, "epoch": None}, "epoch is None")):
                holds(str(raised(errors.InvalidArgument, dataset.load_state_dict, bad)), words)
            dataset.load_state_dict({**state, "consumed": 41})
            raised(errors.InvalidArgument, list, dataset)


CHILD = """
import json, os, sys
import onehop
folder, state_path, keys_path = sys.argv[1:]
ds = onehop.Dataset(folder, batch=3, device="cpu", framework="numpy", fields=["y.cls"], epoch=1)
if os.path.exists(state_path):
    state, length = json.load(open(state_path))
    ds.load_state_dict(state)
    os.truncate(keys_path, length)
print("begun", flush=True)
with open(keys_path, "ab", buffering=0) as keys:
    for batch in ds:
        keys.write("".join(f"{n}\\n" for n in batch["y.cls"]).encode())
        # Keys and state belong together: what was consumed behind the state is taken back.
        with open(state_path + ".new", "w") as file:
            json.dump([ds.state_dict(), keys.tell()], file)
        os.replace(state_path + ".new", state_path)
        print("batch", flush=True)
print("done", flush=True)
"""


@case
def killed_processes_go_on_exactly():
    source = seeded()
    with Scratch() as folder:
        shards = data.shards(os.path.join(folder, "s"), data.numbered(300), 100)
        with Dataset(shards, batch=3, epoch=1, **COMMON) as dataset:
            whole = flat(seen(dataset))
        state, keys = os.path.join(folder, "state"), os.path.join(folder, "keys")
        for kills in range(21):
            child = subprocess.Popen([sys.executable, "-c", CHILD, shards, state, keys],
                                     stdout=subprocess.PIPE, env=environment())
            same(child.stdout.readline(), b"begun\n")
            if kills == 20:
                same((child.stdout.read().split()[-1], child.wait(120)), (b"done", 0))
            for _ in range(source.randrange(6)):
                child.stdout.readline()
            child.kill()  # wherever it is after so many batches
            child.wait(120)
            child.stdout.close()
        with open(keys, encoding="ascii") as file:
            same([int(line) for line in file], whole)


@case
def what_is_drawn_often_does_not_come_in_a_row():
    from onehop._dataset_order import in_rounds

    drawn = np.array([3, 1, 3, 3, 2, 1], np.uint64)
    same(in_rounds(drawn).tolist(), [1, 2, 3, 1, 3, 3])
    same(in_rounds(drawn[:0]).tolist(), [])
    with Scratch() as folder:
        data.shards(folder, data.numbered(5), 5)
        with Dataset(folder, weights=[1, 2, 3, 4, 5], draws=100, **COMMON) as dataset:
            drawn = dataset._sampler.list(dataset._source, 0).samples
            same(in_rounds(drawn).tolist(), drawn.tolist())
            same(sorted(drawn[:5]), [0, 1, 2, 3, 4])


@case
def weights_draw_with_replacement_as_often_as_they_say():
    with Scratch() as folder:
        big = data.shards(os.path.join(folder, "big"), data.numbered(900), 300)
        small = data.shards(os.path.join(folder, "small"), data.numbered(10, first=900), 10)
        for weights in ({big: 1, small: 3}, np.repeat([1 / 900, 3 / 10], [900, 10])):
            with Dataset([big, small], batch=4, weights=weights, draws=8000, **COMMON) as dataset:
                same(len(dataset), 2000)
                drawn = flat(seen(dataset))
                of_small = sum(n >= 900 for n in drawn)
                # 8000 draws at 3/4: the standard deviation is 39.
                check(5760 < of_small < 6240, f"{of_small} of 8000 are of the small one")
                least = min(collections.Counter(n for n in drawn if n >= 900).values())
                check(least > 450, f"{least} of about 600")
                check(drawn != flat(seen(dataset)), "epochs are alike")
                dataset.set_epoch(0)
                same(flat(seen(dataset)), drawn)
                # Neighbours differ, though the small one's samples come often.
                twice = sum(a == b for a, b in itertools.pairwise(drawn))
                check(twice < 1500, f"{twice} of 8000 follow themselves")
        with Dataset([big, small], weights={big: 0, small: 1}, shuffle=None, **COMMON) as dataset:
            drawn = flat(seen(dataset))
            same((len(drawn), min(drawn) >= 900), (910, True))
        with Dataset([big, small], samples=range(895, 905), weights=np.arange(910), draws=500,
                     **COMMON) as dataset:
            check(set(flat(seen(dataset))) <= set(range(895, 905)), "samples are not kept to")
        with Dataset([big, small], batch=7, weights={big: 1, small: 1}, **COMMON) as dataset:
            whole = seen(dataset)
            dataset.set_epoch(0)
            for _ in zip(range(20), dataset):
                pass
            state = dataset.state_dict()
        with Dataset([big, small], batch=7, weights={big: 1, small: 1}, **COMMON) as dataset:
            dataset.load_state_dict(state)
            same(seen(dataset), whole[20:])


@case
def a_mix_gives_each_dataset_its_share_at_any_time():
    with Scratch() as folder:
        paths = [data.shards(os.path.join(folder, name), data.numbered(count, first=first), 60)
                 for name, count, first in (("a", 300, 0), ("b", 100, 300), ("c", 50, 400))]
        datasets = [Dataset(path, batch=5, **COMMON) for path in paths]
        shares = (0.5, 0.3, 0.2)
        for stop, length in (("all_exhausted", 600), ("first_exhausted", 250)):
            mixed = onehop.mix(dict(zip(datasets, shares)), stop=stop, seed=3)
            check(abs(len(mixed) * 5 - length) <= 10, f"{len(mixed)} batches, {stop}")
            epochs = [flat(seen(mixed)) for _ in range(2)]
            for drawn in epochs:
                same(len(drawn), len(mixed) * 5)
                kinds = np.searchsorted([300, 400], drawn, "right")
                for kind, share in enumerate(shares):
                    so_far = np.cumsum(kinds == kind) - share * np.arange(1, len(drawn) + 1)
                    check(abs(so_far).max() < 3.5, f"{stop}: {kind} is {abs(so_far).max()} off")
            check(epochs[0] != epochs[1], "epochs are alike")
            times = collections.Counter(epochs[0])
            if stop == "all_exhausted":
                check(set(range(295)) <= {*times, *range(295)} and
                      sum(n < 300 for n in times) >= 295, "the largest is not whole")
                check(sum(n >= 400 for n in times) == 50, "the smallest is not whole")
            else:
                check(max(times.values()) <= 2 and sum(v > 1 for v in times.values()) <= 1, "twice")
            mixed.set_epoch(1)
            got, state = [], None
            for step in (7, 11, 1000):
                again = onehop.mix(dict(zip(datasets, shares)), stop=stop, seed=3)
                again.set_epoch(1)
                if state:
                    again.load_state_dict(state)
                got += flat(list(b["y.cls"]) for b in itertools.islice(again, step))
                state = again.state_dict()
            same(got, epochs[1])
            other = onehop.mix({datasets[0]: 0.5, datasets[1]: 0.5}, stop=stop, seed=3)
            raised(errors.Mismatch, other.load_state_dict, mixed.state_dict())
            ranks = []
            for rank in range(2):
                parts = {Dataset(path, batch=5, rank=rank, world_size=2, **COMMON): share
                         for path, share in zip(paths, shares)}
                ranks.append(seen(onehop.mix(parts, stop=stop, seed=3)))
            same(interleaved(ranks), epochs[0][:len(ranks[0]) * 10], "of two ranks")
            with pickle.loads(pickle.dumps(mixed)) as again:
                same(flat(seen(again)), epochs[1], "pickled")


@case
def a_mix_that_cannot_be_is_refused():
    with Scratch() as folder:
        data.shards(folder, data.numbered(10), 10)
        one, two = Dataset(folder, **COMMON), Dataset(folder, remainder="pad", **COMMON)
        for words, arguments, named in (
                ("no datasets", ({},), {}), ("probability is 0", ({one: 0},), {}),
                ("probability is nan", ({one: float("nan")},), {}),
                ("differ in remainder", ({one: 1, two: 1},), {}),
                ("stop is 'never'", ({one: 1},), {"stop": "never"}),
                ("batch is 0", ({one: 1},), {"batch": 0})):
            holds(str(raised(errors.InvalidArgument, onehop.mix, *arguments, **named)), words)


if __name__ == "__main__":
    run()
