#!/usr/bin/env python3
"""Compares what the parity cases observe of the driver that the loader finds (the look-alike) with
what a real driver answered, and prints TAP.

usage: parity_check.py PARITY REAL

REAL is made on a machine with a GPU by running PARITY and keeping its output; lines that begin with
# say where. How a case ended is compared too. A case that either side could not try is skipped.
"""
import subprocess
import sys


def cases(lines):
    """The lines of each case, in order: {name: [line, ...]}."""
    found = {}
    for line in lines:
        line = line.rstrip("\n")
        if line and not line.startswith("#"):
            name = line.split(":")[0].split(".")[0]
            found.setdefault(name, []).append(line)
    return found


def verdict(here, real):
    """(passed, why skipped, lines to show)."""
    if any(line.endswith(": not tried") for line in here + real):
        return True, "not tried on both", []
    if here == real:
        return True, None, []
    shown = []
    for at in range(max(len(here), len(real))):
        look_alike = here[at] if at < len(here) else "(nothing)"
        driver = real[at] if at < len(real) else "(nothing)"
        if look_alike != driver:
            shown += ["look-alike " + look_alike, "real       " + driver]
    return False, None, shown


def main():
    parity, real_path = sys.argv[1], sys.argv[2]
    run = subprocess.run([parity], stdout=subprocess.PIPE, text=True, check=False)
    if run.returncode != 0:
        print(f"Bail out! {parity} ended with {run.returncode}: {run.stdout.strip()}")
        return 1
    here = cases(run.stdout.splitlines())
    with open(real_path, encoding="utf-8") as file:
        real = cases(file)
    names = list(here) + [name for name in real if name not in here]
    failed = 0
    for number, name in enumerate(names, 1):
        passed, skipped, shown = verdict(here.get(name, []), real.get(name, []))
        failed += not passed
        for line in shown:
            print("# " + line)
        print(f"{'ok' if passed else 'not ok'} {number} - {name} answers as the real driver"
              + (f" # SKIP {skipped}" if skipped else ""))
    print(f"1..{len(names)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
