#!/usr/bin/env python3
"""The scripts that judge: they count what failed, and see what is wrong.

usage: test_scripts.py COMMAND      (a built onehop)
"""
import contextlib
import glob
import io
import os
import sys
import tempfile

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(TREE, "scripts"), os.path.dirname(os.path.abspath(__file__))]

import check as make_check
import demo
from tap import case, check, holds, run, same

SMALL = {"layers": 2, "hidden": 64, "inner": 160, "kv": 16, "words": 500}


def counted(out, result="OK", status=0):
    """(passed, failed, skipped) of a test that printed out and ended so."""
    tally = make_check.Tally()
    test = {"name": "unit - onehop:x", "stdout": out, "result": result, "returncode": status,
            "duration": 1.0}
    with contextlib.redirect_stdout(io.StringIO()):
        make_check.take_test(tally, "gcc", test)
    return tally.counts()


@case
def each_case_of_a_test_counts():
    same(counted("ok 1 - a\nok 2 - b # SKIP no driver\nnot ok 3 - c\n1..3\n", "FAIL", 1), (1, 1, 1))
    same(counted("1..0 # SKIP no driver\n", "SKIP"), (0, 0, 1))


@case
def a_test_that_ends_early_has_failed():
    same(counted("1..3\nok 1 - a\n", "FAIL", 1), (1, 1, 0), "fewer cases than planned")
    same(counted("ok 1 - a\n", "FAIL", -11), (1, 1, 0), "a crash before the plan")
    same(counted("", "FAIL", 127), (0, 1, 0), "no output")
    same(counted("1..1\nok 1 - a\n", "FAIL", 23), (1, 1, 0), "a sanitizer's report at the end")
    same(counted("1..2\nok 1 - a\n", "TIMEOUT", -15), (1, 1, 0), "a test that hangs")


@case
def the_demo_agrees_with_what_was_loaded_and_sees_one_wrong_byte():
    with tempfile.TemporaryDirectory() as folder:
        path = demo.generated(folder, **SMALL)
        shards = glob.glob(os.path.join(path, "*.safetensors"))
        same(len(shards), 4, "shards")
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            right = demo.agree(sys.argv[1], path, "host")
        check(right, said.getvalue())
        want = demo.independent(path)
        holds(said.getvalue(), f"{len(want)} of {len(want)} tensors")
        truth = demo.loaded
        with open(shards[0], "r+b") as f:
            f.seek(-1, os.SEEK_END)
            last = f.read(1)
            f.seek(-1, os.SEEK_END)
            f.write(bytes([last[0] ^ 1]))
        # What is on the device is from before the change.
        demo.loaded = lambda *arguments: want
        try:
            with contextlib.redirect_stdout(said):
                check(not demo.agree(sys.argv[1], path, "host"), "a wrong byte was not seen")
        finally:
            demo.loaded = truth


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    run()
