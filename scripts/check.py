#!/usr/bin/env python3
"""`make check`: everything that is tested, and one line at the end that says how it went.

usage: check.py [--only PART]...

The parts, in order:
  release  build as `make` does it; warnings are errors
  gcc      build with gcc, warnings are errors; every test of `meson test`
  clang    build with clang, fuzzers included; warnings are errors
  asan     build with AddressSanitizer and UndefinedBehaviorSanitizer; every test
  tsan     build with ThreadSanitizer; the suites that run threads
  planted  bugs put in on purpose, each of which a named test must find
  corpus   the public corpus of model files, where it lies beside the tree; with gcc and with asan

Each TAP case of each build counts as one, each build as one. Failures are printed as they come and
again at the end, skips with their reasons at the end. The last line is
  N passed, N failed, N skipped
and the exit status is 1 if anything failed.
"""
import argparse
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import time

TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(TREE, "build")
CORPUS = os.path.join(os.path.dirname(TREE), "shared", "corpus")
CORES = len(os.sched_getaffinity(0))

# The tests of the Python package run in it; scripts/setup makes it.
PYTHON = os.path.join(BUILD, "python", "bin", "python")

# Threads run in these; elsewhere ThreadSanitizer would only cost time.
THREADED = ["conformance", "driver", "dataset"]

# What each build is made with: compiler, meson options.
BUILDS = {
    "release": ("gcc", ["--werror", "-Dbuildtype=release", "-Db_ndebug=true", "-Dtests=false"]),
    "gcc": ("gcc", ["--werror", "-Dbuildtype=debugoptimized"]),
    "clang": ("clang", ["--werror", "-Dbuildtype=debugoptimized", "-Dfuzzers=true"]),
    # With sanitizers gcc warns of paths that cannot be.
    "asan": ("gcc", ["-Dbuildtype=debugoptimized", "-Db_sanitize=address,undefined",
                     "-Db_lundef=false"]),
    "tsan": ("gcc", ["-Dbuildtype=debugoptimized", "-Db_sanitize=thread", "-Db_lundef=false"]),
}

TESTED = ["gcc", "asan", "tsan"]

ENVIRONMENT = {
    "ASAN_OPTIONS": "halt_on_error=1:abort_on_error=1:detect_leaks=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "halt_on_error=1:abort_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}

LINE = re.compile(r"^(ok|not ok)\b\s*(\d+)?\s*-?\s*(.*?)\s*(?:#\s*(SKIP|TODO)\b\s*(.*))?$", re.I)
PLAN = re.compile(r"^1\.\.(\d+)\s*(?:#\s*SKIP\b\s*(.*))?$", re.I)


class Tally:
    """What passed, failed and was skipped so far."""

    def __init__(self):
        self.passed, self.failures, self.skips = 0, [], {}

    def ok(self, count=1):
        self.passed += count

    def fail(self, name, text=""):
        self.failures.append((name, text))
        print(f"FAILED {name}")
        for line in text.rstrip().splitlines():
            print(f"    {line}")

    def skip(self, build, name, reason):
        self.skips.setdefault((name, reason or "no reason given"), []).append(build)

    def counts(self):
        skipped = sum(len(builds) for builds in self.skips.values())
        return self.passed, len(self.failures), skipped

    def summary(self):
        for (name, reason), builds in sorted(self.skips.items()):
            print(f"skipped {name} ({', '.join(builds)}): {reason}")
        if self.failures:
            print(f"\n{len(self.failures)} failed:")
            for name, _ in self.failures:
                print(f"  {name}")
        print("%d passed, %d failed, %d skipped" % self.counts(), flush=True)


def run(command, **kwargs):
    """(exit status, all that was printed)"""
    result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, errors="replace", cwd=TREE, **kwargs)
    return result.returncode, result.stdout


def part(tally, title, function, *arguments):
    """Runs one part and says in a line what it came to. Gives what the function gives."""
    before, begin = tally.counts(), time.monotonic()
    print(f"== {title}", flush=True)
    given = function(tally, *arguments)
    passed, failed, skipped = (now - then for now, then in zip(tally.counts(), before))
    print(f"   {passed} passed, {failed} failed, {skipped} skipped in {time.monotonic() - begin:.1f} s",
          flush=True)
    return given


# --------------------------------------------------------------------------------------------------
# builds


def folder(build):
    return os.path.join(BUILD, f"check-{build}")


def configure(build):
    """Sets the folder up unless it was set up with these very options. (status, output)"""
    compiler, options = BUILDS[build]
    if os.path.exists(PYTHON):
        options = [*options, f"-Dpython={PYTHON}"]
    path, want = folder(build), json.dumps([compiler, options])
    stamp = os.path.join(path, "options")
    if os.path.exists(stamp) and open(stamp, encoding="utf-8").read() == want:
        return 0, ""
    shutil.rmtree(path, ignore_errors=True)
    cxx = {"gcc": "g++", "clang": "clang++"}[compiler]
    status, said = run(["meson", "setup", path, *options],
                       env=dict(os.environ, CC=compiler, CXX=cxx))
    if not status:
        with open(stamp, "w", encoding="utf-8") as f:
            f.write(want)
    return status, said


def compile_all(tally, build):
    """1 if all of it was built."""
    status, said = configure(build)
    if not status:
        status, said = run(["ninja", "-C", folder(build), "-k", "20"])
    if status:
        kept = [line for line in said.splitlines() if not re.match(r"\[\d+/\d+\]", line)]
        tally.fail(f"{build}: build", "\n".join(kept[-120:]))
        return 0
    tally.ok()
    return 1


# --------------------------------------------------------------------------------------------------
# tests


def without_randomisation():
    """A wrapper under which ThreadSanitizer finds the addresses it wants, if there is one."""
    command = ["setarch", os.uname().machine, "-R"]
    if shutil.which("setarch") and run(command + ["true"])[0] == 0:
        return ["--wrapper", " ".join(command)]
    return []


def take_tap(tally, build, name, text):
    """Counts the cases of one test's output; gives (cases that failed, cases missing)."""
    seen = failed = 0
    planned, notes = None, []
    for line in text.splitlines():
        plan, result = PLAN.match(line), LINE.match(line)
        if plan:
            planned = int(plan.group(1))
            if planned == 0:
                tally.skip(build, name, plan.group(2))
        elif not result:
            notes.append(line)
            continue
        else:
            seen += 1
            failed += take_case(tally, build, name, result, notes)
        notes = []
    return failed, 1 if planned is None or seen < planned else 0


def take_case(tally, build, name, result, notes):
    case = f"{name}: {result.group(3) or result.group(2)}"
    if (result.group(4) or "").upper() == "SKIP":
        tally.skip(build, case, result.group(5))
    elif result.group(1).lower() == "ok":
        tally.ok()
    else:
        tally.fail(f"{build}: {case}", "\n".join(notes[-60:]))
        return 1
    return 0


def short_name(test):
    """suite/name: meson writes it in several ways."""
    return re.sub(r" - | / ", "/", test["name"]).replace("onehop:", "")


def take_test(tally, build, test):
    """One line of meson's log. What ended badly without a case to say so is a failure of its own."""
    name = short_name(test)
    out, err = test.get("stdout", ""), test.get("stderr", "")
    failed, missing = take_tap(tally, build, name, out)
    if test["result"] == "TIMEOUT":
        tally.fail(f"{build}: {name}", f"did not end in {test['duration']:.0f} s\n{(out + err)[-4000:]}")
    elif missing or (not failed and test["result"] not in ("OK", "SKIP")):
        tally.fail(f"{build}: {name}",
                   f"{test['result']}, exit status {test['returncode']}\n{(out + err)[-6000:]}")
    elif failed and err:
        print("\n".join("    " + line for line in err.splitlines()[-60:]))


def suites_of(build):
    """Suites of the build's tests, as they are named in meson.build."""
    status, said = run(["meson", "introspect", folder(build), "--tests"])
    tests = json.loads(said) if not status else []
    return {suite.split(":")[-1] for test in tests for suite in test["suite"]}


def run_tests(tally, build, only=None, wrapper=()):
    # A wrapper's name becomes part of the log's.
    logs = os.path.join(glob.escape(folder(build)), "meson-logs", "testlog*.json")
    for log in glob.glob(logs):
        os.remove(log)
    suites = [word for suite in only or [] for word in ("--suite", suite)]
    status, said = run(["meson", "test", "-C", folder(build), "--no-rebuild", "--quiet",
                        "--num-processes", str(CORES), *suites, *wrapper],
                       env=dict(os.environ, **ENVIRONMENT))
    tests = []
    for log in glob.glob(logs):
        with open(log, encoding="utf-8") as f:
            tests += [json.loads(line) for line in f]
    for test in tests:
        take_test(tally, build, test)
    if not tests:
        tally.fail(f"{build}: meson test", "it ran no test\n" + said[-4000:])
    tests.sort(key=lambda test: -test["duration"])
    print("   slowest: " + ", ".join(f"{short_name(t)} {t['duration']:.1f} s" for t in tests[:4]))


def run_threads(tally, build):
    suites = sorted(set(THREADED) & suites_of(build))
    if suites:
        run_tests(tally, build, suites, without_randomisation())
    else:
        tally.fail(f"{build}: suites", "there is no suite called " + " or ".join(THREADED))


# --------------------------------------------------------------------------------------------------
# what is no meson test


def planted(tally):
    status, said = run([sys.executable, os.path.join(TREE, "scripts", "planted_bugs.py")])
    for line in said.splitlines():
        if line.startswith("# ") and " fails: " in line:
            print("   " + line[2:])
    failed, missing = take_tap(tally, "planted", "planted bugs", said)
    if missing or (status and not failed):
        tally.fail("planted bugs", said[-4000:])


def make_corpus(tally, target):
    """1 if the corpus lies in target."""
    maker = os.path.join(CORPUS, "make_corpus.py")
    if not os.path.exists(maker):
        tally.skip("corpus", "public corpus", "no ../shared/corpus beside the tree")
    elif sys.version_info < (3, 11):
        tally.skip("corpus", "public corpus", "its maker needs Python 3.11")
    else:
        status, said = run([sys.executable, maker, target])
        if not status:
            return 1
        tally.fail("public corpus", said[-2000:])
    return 0


def run_corpus(tally, build, target):
    """Each file of the corpus is a case."""
    limits = ["--address-space", "0", "--timeout", "60"] if build == "asan" else []
    status, said = run([sys.executable, os.path.join(CORPUS, "run_corpus.py"), *limits,
                        os.path.join(folder(build), "cli", "onehop"), target],
                       env=dict(os.environ, **ENVIRONMENT))
    last = said.splitlines()[-1] if said.strip() else ""
    print(f"   {build}: {last}")
    for name, reason in re.findall(r"^skip (.*?): (.*)$", said, re.M):
        tally.skip(build, f"corpus: {name}", reason)
    right = re.match(r"corpus: (\d+) of (\d+) right", last)
    if right:
        tally.ok(int(right.group(1)))
    lines = said.splitlines()
    failures = [i for i, line in enumerate(lines) if line.startswith("FAIL ")]
    for i in failures:
        tally.fail(f"{build}: corpus: {lines[i][5:]}", lines[i + 1] if i + 1 < len(lines) else "")
    if not right or (status and not failures):
        tally.fail(f"{build}: corpus", said[-2000:])


def corpus(tally, builds):
    target = os.path.join(BUILD, "corpus")
    if make_corpus(tally, target):
        for build in builds:
            run_corpus(tally, build, target)


# --------------------------------------------------------------------------------------------------


def check(tally, wanted):
    built = []
    for build in BUILDS:
        if build not in wanted:
            continue
        if part(tally, f"{build}: build", compile_all, build):
            built.append(build)
        if build not in built or build not in TESTED:
            continue
        part(tally, f"{build}: tests", run_threads if build == "tsan" else run_tests, build)
    if "planted" in wanted:
        part(tally, "planted bugs", planted)
    if "corpus" in wanted:
        part(tally, "corpus", corpus, [b for b in ("gcc", "asan") if b in built])


def main():
    parts = [*BUILDS, "planted", "corpus"]
    ap = argparse.ArgumentParser(description="Build and test everything.")
    ap.add_argument("--only", action="append", choices=parts, metavar="PART",
                    help="one of " + ", ".join(parts) + "; may be repeated")
    args = ap.parse_args()
    begin, tally = time.monotonic(), Tally()
    check(tally, args.only or parts)
    print(f"\n{time.monotonic() - begin:.0f} s on {CORES} cores")
    tally.summary()
    return 1 if tally.failures or not tally.passed else 0


if __name__ == "__main__":
    sys.exit(main())
