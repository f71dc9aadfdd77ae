"""Batches that a thread makes ahead of their consumer.

usage: test_dataset_ahead.py [FOLDER of the look-alike driver]
"""
import gc
import signal
import sys
import threading

from package import Scratch, need, python, raised, seeded
from tap import case, check, holds, run, same

np = need("numpy") if __import__("importlib.util").util.find_spec("numpy") else None
if np is None:
    print("1..0 # SKIP numpy is not installed")
    sys.exit(0)

import dataset_data as data
from onehop import _dataset_ahead, errors
from onehop._dataset_ahead import Ahead, Piece
from onehop.dataset import Dataset


def nothing():
    pass


def piece(number):
    return Piece([{"number": number}], [1], 0, False, None)


def makers():
    """The threads that make batches now."""
    return [one for one in threading.enumerate() if one.name == "onehop batches"]


def ahead_of(pieces, enter=nothing):
    made = Ahead(iter(pieces), enter)
    made.start()
    return made


class Making:
    """Pieces, of which it is known how many were made."""

    def __init__(self, count, failure=None):
        self.made, self.count, self.failure = threading.Semaphore(0), count, failure
        self.total = 0

    def __iter__(self):
        for number in range(self.count):
            self.total += 1
            self.made.release()
            yield piece(number)
        if self.failure:
            raise self.failure


@case
def pieces_come_in_order_and_then_their_end():
    for count in (0, 1, 2, 50):
        ahead = ahead_of(Making(count))
        got = []
        while (one := ahead.take()) is not None:
            got.append(one.batches[0]["number"])
        same(got, list(range(count)))
        same((ahead.take(), ahead.take()), (None, None), "after the end")
        ahead.stop()
        ahead.stop()


@case
def an_error_comes_after_what_was_made_before_it():
    ahead = ahead_of(Making(3, ValueError("the fourth")))
    same([ahead.take().batches[0]["number"] for _ in range(3)], [0, 1, 2])
    for _ in range(2):
        holds(str(raised(ValueError, ahead.take)), "the fourth")
    ahead.stop()
    ahead = ahead_of(Making(3), lambda: 1 // 0)
    raised(ZeroDivisionError, ahead.take)
    ahead.stop()


@case
def only_a_few_are_made_ahead():
    making = Making(1000)
    ahead = ahead_of(making)
    taken = seeded().randrange(1, 20)
    for _ in range(taken):
        ahead.take()
    ahead.stop()  # what it is at is made
    check(making.total <= taken + _dataset_ahead._PIECES_AHEAD + 1,
          f"{making.total} were made for {taken} that were taken")
    left = 0
    while ahead.take() is not None:
        left += 1
    check(taken + left <= making.total, "more than were made")
    same(makers(), [])


@case
def it_is_made_ahead_while_one_is_used():
    making = Making(10)
    ahead = ahead_of(making)
    ahead.take()
    for _ in range(1 + _dataset_ahead._PIECES_AHEAD):
        check(making.made.acquire(timeout=60), "nothing is made while a piece is used")
    ahead.stop()


@case
def no_thread_is_left_of_a_loop():
    with Scratch() as folder:
        data.shards(folder, data.numbered(400, size=2000), 400)
        with Dataset(folder, batch=2, device="cpu", framework="numpy", ring_bytes=1 << 20) as dataset:
            for _ in dataset:
                same(len(makers()), 1)
                break
            same(makers(), [], "after a break")
            same(sum(len(batch["bin"]) for batch in dataset), 400)
            same(makers(), [], "after an epoch")
            loop = iter(dataset)
            next(loop)
            del loop
            gc.collect()
            same(makers(), [], "of a loop that is gone")
            loop = iter(dataset)
            next(loop)
        same(makers(), [], "of a dataset that is closed")
        holds(str(raised(errors.InvalidArgument, lambda: list(loop))), "closed while")


@case
def an_interrupt_ends_a_loop_that_waits():
    with Scratch() as folder:
        data.shards(folder, data.numbered(400, size=2000), 400)
        with Dataset(folder, batch=2, device="cpu", framework="numpy", ring_bytes=1 << 20) as dataset:
            main = threading.main_thread().ident
            waits, goes_on = threading.Event(), threading.Event()

            def late(number):
                waits.set()
                goes_on.wait(60)
                return number

            dataset._plans[0] = dataset._plans[0]._replace(form="object", decode=late)
            timer = threading.Thread(target=lambda: (waits.wait(60), signal.pthread_kill(
                main, signal.SIGINT), goes_on.set()))
            timer.start()
            raised(KeyboardInterrupt, lambda: list(dataset))
            timer.join()
            same(makers(), [])
            dataset._plans[0] = dataset._plans[0]._replace(decode=len)
            same(sum(len(batch["bin"]) for batch in dataset), 400)


@case
def a_program_ends_while_batches_are_made():
    with Scratch() as folder:
        data.shards(folder, data.numbered(4000, size=2000), 4000)
        code = f"""
import onehop
ds = onehop.Dataset({folder!r}, batch=2, device="cpu", framework="numpy", ring_bytes=1 << 20)
loop = iter(ds)
print(len(next(loop)["bin"]))
keep = [loop, next(loop)]
"""
        for end in ("", "raise SystemExit(0)", "import sys; sys.exit()"):
            same(python(code + end), "2")


@case
def a_forked_child_is_not_held_up_by_its_parents_loop():
    with Scratch() as folder:
        data.shards(folder, data.numbered(400, size=2000), 400)
        code = f"""
import os
import onehop
ds = onehop.Dataset({folder!r}, batch=2, device="cpu", framework="numpy", ring_bytes=1 << 20)
loop = iter(ds)
next(loop)
child = os.fork()
if not child:
    other = onehop.Dataset({folder!r}, batch=2, device="cpu", framework="numpy")
    good = sum(len(batch["bin"]) for batch in other) == 400
    del loop
    os._exit(0 if good else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 2 + sum(len(b["bin"]) for b in loop))
"""
        same(python(code), "0 400")


if __name__ == "__main__":
    run()
