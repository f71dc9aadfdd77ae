#!/usr/bin/env python3
"""Load every file that make_bad.py writes and compare: exit status, words of the error, tensors. TAP.

usage: run_bad.py ONEHOP [NAME ...]     (only cases whose name holds a NAME)
"""

import json
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the source tree stays as it is
import make_bad  # noqa: E402

SECONDS = 60  # a sanitizer is slow


def tensors_of(text):
    """{name: (dtype, shape, bytes, crc32)}, or what is wrong with the output."""
    try:
        listed = json.loads(text)["tensors"]
        found = {t["name"]: (t["dtype"], t["shape"], t["bytes"], t["crc32"]) for t in listed}
    except (ValueError, KeyError, TypeError) as e:
        return f"standard output: {type(e).__name__}: {e}"
    return found if len(found) == len(listed) else "a name is printed twice"


def difference(wanted, found):
    if isinstance(found, str):
        return found
    for name in wanted.keys() | found.keys():
        if wanted.get(name) != found.get(name):
            return f"tensor {name[:60]!r} is {found.get(name)}, should be {wanted.get(name)}"
    return None


def fault(onehop, case):
    """What is wrong with the way the case went, or None."""
    line = [onehop, "load", "--device", "host", "--json", "--checksum", "crc32", case.path]
    env = {k: v for k, v in os.environ.items() if not k.startswith("ONEHOP_")}
    try:
        done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, env=env)
    except subprocess.TimeoutExpired:
        return f"did not end in {SECONDS} seconds"
    said = done.stderr.decode("utf-8", "replace")
    if done.returncode not in case.exits:
        return f"exit {done.returncode}, should be {' or '.join(map(str, case.exits))}: {said.strip()[:300]}"
    if done.returncode == 0:
        return difference(case.tensors, tensors_of(done.stdout))
    if done.stdout:
        return "standard output is not empty"
    # The path must not pass for an explanation.
    words = said.replace(case.path, "")
    missing = [word for word in case.words if word not in words]
    if missing:
        return f"the error lacks {', '.join(map(repr, missing))}: {said.strip()[:400]}"
    if len(said.strip().splitlines()) > 2:
        return f"the error has more than a sentence and a remedy: {said.strip()[:300]}"
    return None


def main(argv):
    if len(argv) < 2:
        print(__doc__.strip().splitlines()[2], file=sys.stderr)
        return 2
    onehop, bad = os.path.abspath(argv[1]), 0
    with tempfile.TemporaryDirectory(prefix="onehop-format-") as folder:
        cases = [c for c in make_bad.make(folder) if len(argv) == 2 or any(part in c.name for part in argv[2:])]
        print(f"1..{len(cases)}")
        for number, case in enumerate(cases, 1):
            wrong = fault(onehop, case)
            if wrong:
                bad += 1
                print("# " + wrong.replace("\n", " "))
            print(f"{'not ok' if wrong else 'ok'} {number} - {case.name}", flush=True)
    return 1 if bad or not cases else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
