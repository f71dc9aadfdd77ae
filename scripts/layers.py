#!/usr/bin/env python3
"""Who may include whom: the table below, held against every #include in the tree.

usage: layers.py [TREE]

Prints each include that the table does not allow, with its rule, and ends with 1 if there is one.
tests/ is not held to the table: a test may include anything.
"""
import os
import re
import sys
from collections import namedtuple

# allow: rooms of ours (see ROOMS), headers of ours under src/, and public headers.
# pure: only C headers that do no I/O, start no thread and read no clock.
Rule = namedtuple("Rule", "rooms headers public pure words")

ALL_PUBLIC = None
OPS = ["storage/ops.h", "memory/ops.h"]

RULES = {
    "base": Rule([], [], ["status", "options"], False,
        "base uses libc only, and of ours onehop/status.h and onehop/options.h"),
    "format": Rule(["base"], [], ["status"], True,
        "format is pure: base and onehop/status.h, no I/O of any kind"),
    "storage": Rule(["base"], ["storage/ops.h"], ["status", "options", "runtime"], False,
        "a storage back end uses base and its own ops header: not engine, not memory, not a sibling"),
    "memory": Rule(["base"], ["memory/ops.h"], ["status", "options", "runtime"], False,
        "a memory back end uses base and its own ops header: not engine, not storage, not a sibling"),
    "machine": Rule(["base"], [], ["status", "options", "runtime"], False,
        "machine uses base: not engine, not a back end"),
    "engine": Rule(["base"], OPS, ["status", "options", "plan"], True,
        "engine uses base and the ops headers: no thread, clock, file, back end or machine"),
    "runtime": Rule(["base", "machine", "engine", "storage", "memory"], [], ALL_PUBLIC, False,
        "runtime uses base, machine, engine and every back end: not model and above"),
    "model": Rule(["base", "format"], ["runtime/file.h"], ALL_PUBLIC, False,
        "model uses the public headers, base, format and runtime/file.h"),
    "dataset": Rule(["base", "format"], ["runtime/file.h", "runtime/buffer.h"], ALL_PUBLIC, False,
        "dataset uses the public headers, base, format, runtime/file.h and runtime/buffer.h"),
    "public": Rule([], [], ALL_PUBLIC, False,
        "a public header includes public headers and nothing else of ours"),
    "user": Rule([], [], ALL_PUBLIC, False,
        "cli, bench and examples use the public headers only"),
}

# C headers that a pure room may use. stdio.h is for snprintf.
PURE = {"assert.h", "ctype.h", "endian.h", "errno.h", "inttypes.h", "limits.h", "stdarg.h", "stdbool.h",
        "stddef.h", "stdint.h", "stdio.h", "stdlib.h", "string.h"}

# Headers of others, and where they may be named.
VENDOR = [
    (re.compile(r"(cuda|cufile|nvml|nvrtc|driver_types|cudnn|nccl)\w*\.h$"), [],
     "CUDA and cuFile are reached by dlopen, with declarations of our own"),
    (re.compile(r"liburing.*\.h$"), ["bench/"], "liburing belongs to bench, which measures it"),
    (re.compile(r"(hwloc|numa|libaio)\b.*\.h$|curl/"), [],
     "no header of another library in the tree"),
    (re.compile(r"dlfcn\.h$"), ["src/memory/cuda/"], "dlopen belongs to src/memory/cuda"),
    (re.compile(r"zlib\.h$|openssl/"), ["cli/"], "zlib and OpenSSL belong to the command"),
]

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)?')
ROOTS = ["include", "src", "cli", "bench", "examples"]


def sources(tree):
    for root in ROOTS:
        for folder, folders, names in os.walk(os.path.join(tree, root)):
            folders.sort()
            for name in sorted(names):
                if name.endswith((".c", ".h")):
                    yield os.path.relpath(os.path.join(folder, name), tree)


def room_of(path):
    parts = path.split("/")
    if parts[0] == "src":
        return parts[1] if len(parts) > 2 and parts[1] in RULES else None
    return "public" if parts[0] == "include" else "user"


def backend_of(path):
    """src/memory/cuda/driver.c belongs to back end memory/cuda."""
    parts = path.split("/")
    if parts[0] == "src" and parts[1] in ("memory", "storage") and len(parts) > 3:
        return "/".join(parts[1:3])
    return None


def resolve(tree, path, name):
    """The file that an include names, relative to the tree; None if it is none of ours."""
    for base in (os.path.dirname(path), "src", "include"):
        found = os.path.normpath(os.path.join(base, name))
        if os.path.exists(os.path.join(tree, found)):
            return found
    return None


def judge_public(path, name, rule):
    stem = name[len("onehop/"):-len(".h")]
    return None if rule.public is None or stem in rule.public else rule.words


def judge_own(path, target, rule):
    """May path include target, a file of ours?"""
    parts = target.split("/")
    if parts[0] == "include":
        return judge_public(path, "/".join(parts[1:]), rule)
    room = room_of(path)
    if room == "user":
        return None if parts[0] == path.split("/")[0] else rule.words
    if parts[0] != "src":
        return rule.words
    theirs, header = room_of(target), "/".join(parts[1:])
    if header in rule.headers or theirs in rule.rooms:
        return None
    if theirs != room:
        return rule.words
    mine, other = backend_of(path), backend_of(target)
    return rule.words if other and mine != other else None


def judge(tree, path, quoted, angled):
    """The rule that an include breaks, or None."""
    room = room_of(path)
    if room is None:
        return "a file in src/ belongs to one of the rooms: " + ", ".join(list(RULES)[:-2])
    rule, name = RULES[room], quoted or angled
    if name is None:
        return "an include names its file"
    if not name.endswith(".h"):
        return "only headers are included"
    for pattern, places, words in VENDOR:
        if pattern.match(name):
            return None if any(path.startswith(p) for p in places) else words
    if name.startswith("onehop/"):
        return judge_public(path, name, rule)
    target = resolve(tree, path if quoted else "src/", name)
    if target:
        return judge_own(path, target, rule)
    if quoted:
        return "a quoted include names a file in this tree"
    return rule.words if rule.pure and name not in PURE else None


def check(tree):
    """All includes that break a rule, as sentences; and the number of files looked at."""
    wrong, count = [], 0
    for path in sources(tree):
        count += 1
        with open(os.path.join(tree, path), encoding="utf-8") as f:
            for number, line in enumerate(f, 1):
                match = INCLUDE.match(line)
                words = match and judge(tree, path, *match.groups())
                if words:
                    wrong.append(f"{path}:{number}: {line.strip()}: {words}")
    return wrong, count


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    tree = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(here)
    wrong, count = check(tree)
    for sentence in wrong:
        print(sentence)
    print(f"layers: {count} files, {len(wrong)} wrong includes")
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())
