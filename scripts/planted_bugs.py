#!/usr/bin/env python3
"""Tests of the tests: each bug in tests/planted makes the case that it names fail. Prints TAP.

usage: planted_bugs.py [--build FOLDER] [PATCH...]

A patch is a unified diff against the tree (-p1), under a head of its own:

    What: a block is filled again before its copy has ended
    Test: unit/flow                  suite and name of the test, as make check prints them
    Case: a_block_is_filled_again_only_after_its_copy

A copy of the tree is built once as it is, where every named case must pass; then each patch is
applied, what changed is built, and its case must fail: by its own check, by a signal, or by not
ending in time. The copy is then as before.
"""
import argparse
import filecmp
import json
import os
import re
import shutil
import subprocess
import sys

TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEAD = re.compile(r"^(What|Test|Case):\s*(.+?)\s*$", re.M)
PARTS = ["meson.build", "meson_options.txt", "include", "src", "cli", "bench", "examples", "docs",
         "scripts", "tests"]
TIME_LIMIT = 60


class Failure(Exception):
    """What went wrong, in words."""


class Bug:
    def __init__(self, path):
        self.path = path
        self.name = os.path.splitext(os.path.basename(path))[0]
        with open(path, encoding="utf-8") as f:
            head = dict(HEAD.findall(re.split(r"^(?:diff|---) ", f.read(), maxsplit=1, flags=re.M)[0]))
        for field in ("What", "Test", "Case"):
            if field not in head:
                raise Failure(f"{path} has no line '{field}:' above its diff")
        self.what, self.test, self.case = head["What"], head["Test"], head["Case"]


def run(command, what, **kwargs):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            stdin=subprocess.DEVNULL, errors="replace", **kwargs)
    if result.returncode:
        raise Failure(f"{what} failed\n{result.stdout[-4000:]}")
    return result.stdout


def files_under(root, part):
    path = os.path.join(root, part)
    if os.path.isfile(path):
        return [part]
    return [os.path.relpath(os.path.join(folder, name), root)
            for folder, folders, names in os.walk(path) for name in names
            if "__pycache__" not in folder]


def mirror(copy):
    """Makes copy like the tree. Only what differs is written, so that only that is built again."""
    for part in PARTS:
        want = set(files_under(TREE, part))
        for name in set(files_under(copy, part)) - want:
            os.remove(os.path.join(copy, name))
        for name in want:
            source, target = os.path.join(TREE, name), os.path.join(copy, name)
            if not os.path.exists(target) or not filecmp.cmp(source, target, shallow=False):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copyfile(source, target)
                shutil.copymode(source, target)


class Place:
    """A copy of the tree and its build."""

    def __init__(self, folder):
        self.source, self.build = os.path.join(folder, "source"), os.path.join(folder, "build")
        os.makedirs(self.source, exist_ok=True)
        mirror(self.source)
        if not os.path.exists(os.path.join(self.build, "build.ninja")):
            run(["meson", "setup", self.build, self.source, "-Dbuildtype=debugoptimized"],
                "meson setup")
        # A changed meson.build makes it anew; without this the tests' list could be an old one.
        run(["ninja", "-C", self.build, "build.ninja"], "meson")
        self.tests = {f"{suite.split(':')[-1]}/{test['name']}": test
                      for test in self.introspect("--tests") for suite in test["suite"]}
        self.files = {t["id"]: t["filename"] for t in self.introspect("--targets")}

    def introspect(self, what):
        return json.loads(run(["meson", "introspect", self.build, what], "meson introspect"))

    def needed(self, bug):
        """What is built for the bug's test: the program and what it was declared to depend on."""
        if bug.test not in self.tests:
            raise Failure(f"{bug.path} names the test {bug.test}, which there is not")
        test = self.tests[bug.test]
        return {test["cmd"][0]}.union(*(self.files[i] for i in test["depends"]))

    def make(self, bugs):
        paths = set().union(*(self.needed(bug) for bug in bugs))
        run(["ninja", "-C", self.build, *sorted(os.path.relpath(p, self.build) for p in paths)],
            "the build")

    def outcome(self, bug):
        """None if the bug's case passes, else in what way it fails."""
        test = self.tests[bug.test]
        command = [*test["cmd"], bug.case]
        env = dict(os.environ, **test["env"])
        try:
            result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                    stdin=subprocess.DEVNULL, text=True, errors="replace", env=env,
                                    cwd=test.get("workdir") or self.build, timeout=TIME_LIMIT)
        except subprocess.TimeoutExpired:
            return f"it did not end in {TIME_LIMIT} s"
        return judge(result, bug)


def judge(result, bug):
    line = re.search(rf"^(ok|not ok) \d+ - {re.escape(bug.case)}\b(.*)$", result.stdout, re.M)
    if result.returncode < 0:
        return f"it ended by signal {-result.returncode}"
    if not line:
        raise Failure(f"the test {bug.test} printed no line for {bug.case}\n{result.stdout[-2000:]}")
    if "# SKIP" in line.group(2):
        raise Failure(f"{bug.case} was skipped:{line.group(2)}")
    if line.group(1) == "ok":
        return None
    said = re.findall(r"^# (.*)$", result.stdout, re.M)
    return said[-1] if said else "not ok"


def try_bug(place, bug):
    try:
        run(["patch", "-p1", "--batch", "--no-backup-if-mismatch", "-d", place.source, "-i",
             os.path.abspath(bug.path)], f"applying {bug.path}")
        place.make([bug])
        outcome = place.outcome(bug)
        if outcome is None:
            raise Failure(f"{bug.what}: and {bug.test}, {bug.case}, passes all the same")
        print(f"# {bug.what}: {bug.test}, {bug.case} fails: {outcome}")
    finally:
        mirror(place.source)


def healthy(place, bugs):
    place.make(bugs)
    for bug in bugs:
        outcome = place.outcome(bug)
        if outcome:
            raise Failure(f"{bug.test}, {bug.case} fails without the bug: {outcome}")


def report(number, name, function, *arguments):
    try:
        function(*arguments)
    except Failure as failure:
        for line in str(failure).splitlines():
            print(f"# {line}")
        print(f"not ok {number} - {name}", flush=True)
        return 1
    print(f"ok {number} - {name}", flush=True)
    return 0


def main():
    ap = argparse.ArgumentParser(description="Check that each planted bug fails the case it names.")
    ap.add_argument("--build", default=os.path.join(TREE, "build", "planted"), metavar="FOLDER")
    ap.add_argument("patches", nargs="*", metavar="PATCH")
    args = ap.parse_args()
    folder = os.path.join(TREE, "tests", "planted")
    patches = args.patches or sorted(os.path.join(folder, n) for n in os.listdir(folder)
                                     if n.endswith(".patch"))
    if not patches:
        print("1..0\nBail out! no patch in tests/planted")
        return 1
    print(f"1..{len(patches) + 1}")
    try:
        bugs = [Bug(p) for p in patches]
        place = Place(args.build)
    except Failure as failure:
        print(f"Bail out! {failure}")
        return 1
    bad = report(1, "the_named_cases_pass_without_the_bugs", healthy, place, bugs)
    for number, bug in enumerate(bugs, 2):
        bad += report(number, bug.name, try_bug, place, bug)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
