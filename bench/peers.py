#!/usr/bin/env python3
"""onehop beside other loaders: the same files, on one machine, in one run.

    bench/peers.py --device cuda:0 --json peers.json --picture peers.png
    bench/peers.py --hurry --schemes onehop,instanttensor
    bench/peers.py --draw peers.json --picture peers.png

Each row of the tables is one scheme: a loader at its defaults, or in the best setting found.
"first" is the first load of a fresh process, whose interpreter has imported torch and the loader
and made the CUDA context: from the call until every tensor is on the device and the device is
synchronised; the median of --fresh processes. "again" is a load after it in the same process, with
torch's allocator kept: the median of all of them. Rates are shares of what copies of pinned memory
reach. Files are in the page cache, which is checked. Each tensor of each first and each last load
is compared with what was written (a 64-bit sum of its bytes, on the device; all bytes of a few): a
scheme that differs, fails or is absent is named with the reason, and has no place.

Schemes take turns, in rotating order. Interpreters are started ahead, some at a time, and wait
without CUDA until it is their turn, so that nothing but the load runs while it is timed.

Other parts: --cold evicts the files first, and runs onehop.load next to each scheme, since a disk's
rate wanders; --token takes the time from a process's start to the first token of a small decoder.
"""
from __future__ import annotations

import argparse
import compileall
import importlib.util
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import peers_parent
import peers_report
import peers_run

GIB = 1 << 30
CORES = len(os.sched_getaffinity(0))
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size(words: str) -> int:
    """Bytes, from a number with K, M or G behind it."""
    text = words.upper().removesuffix("IB").removesuffix("B")
    unit = UNITS.get(text[-1:], 1)
    try:
        return int(float(text.rstrip("KMG")) * unit)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{words!r} is no size, such as 12G") from None


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    first, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(description=first, epilog=rest,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--device", default="cuda:0", help="cuda:N, or cpu to try it without a GPU")
    add("--sizes", default="large,small,tiny", help="which models (all three)")
    add("--bytes", type=size, default=12 * GIB, metavar="SIZE",
        help="of the large model (12G); the small one has two thirds")
    add("--files", type=int, default=0, metavar="N", help="of a model (3 and 2)")
    add("--where", default=tempfile.gettempdir() + ",/dev/shm", metavar="FOLDERS",
        help="the first takes every model, others the large one")
    add("--schemes", default="", metavar="WORDS", help="parts of the names of those to run")
    add("--rc", metavar="FOLDER", help="where safetensors' release candidate is installed")
    add("--fresh", type=int, default=3, metavar="N", help="processes per scheme (3)")
    add("--repeat", type=int, default=2, metavar="N", help="loads in each after the first (2)")
    add("--cold", action="store_true", help="also with nothing in the page cache")
    add("--token", action="store_true", help="also the time to a first token")
    add("--token-bytes", type=size, default=4 * GIB, metavar="SIZE", help="of the decoder (4G)")
    add("--hurry", action="store_true", help="2 GiB, one folder, one process a scheme")
    add("--budget", type=float, default=330, metavar="S", help="seconds for all of it (330)")
    add("--timeout", type=float, default=45, metavar="S", help="seconds for a process (45)")
    add("--pool", type=int, default=20 if CORES >= 8 else CORES, metavar="N",
        help="interpreters started ahead (20, or as many as there are cores if under 8)")
    add("--keep", action="store_true", help="keep the models")
    add("--json", metavar="FILE", help="write the results there, as they come")
    add("--markdown", metavar="FILE", help="write the tables there as Markdown")
    add("--picture", metavar="FILE", help="draw them there (needs matplotlib)")
    add("--draw", metavar="FILE", help="measure nothing: show the results in that file")
    arguments = parser.parse_args(words)
    if arguments.hurry:
        arguments.fresh = arguments.repeat = 1
        arguments.where = arguments.where.partition(",")[0]
        arguments.bytes = min(arguments.bytes, 2 * GIB)
        arguments.token_bytes = min(arguments.token_bytes, GIB)
    return arguments


def show(found: Mapping[str, Any], arguments: argparse.Namespace) -> None:
    """Prints the tables, and writes them where the command line says."""
    print("\n" + peers_report.text(found), flush=True)
    if arguments.markdown:
        with open(arguments.markdown, "w", encoding="utf-8") as file:
            file.write(peers_report.markdown(found))
    if not arguments.picture:
        return
    if importlib.util.find_spec("matplotlib") is None:
        print("no picture, since matplotlib is not installed; draw it elsewhere: "
              "bench/peers.py --draw RESULTS.json --picture FILE", file=sys.stderr)
    else:
        peers_report.draw(found, arguments.picture)


def main(words: Sequence[str] | None = None) -> int:
    arguments = parse(words)
    if arguments.draw:
        with open(arguments.draw, encoding="utf-8") as file:
            show(json.load(file), arguments)
        return 0
    try:
        run = peers_run.Run(arguments)
        peers_run.plan(arguments)
    except ValueError as error:
        print(f"peers.py: {error}", file=sys.stderr)
        return 2
    # As pip leaves the packages that it installs.
    compileall.compile_dir(os.path.join(peers_parent.ROOT, "python"), quiet=2)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is found is shown then, too
    try:
        peers_run.measure(run)
    except KeyboardInterrupt:
        run.tell("interrupted")
    run.save()
    show(run.found, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
