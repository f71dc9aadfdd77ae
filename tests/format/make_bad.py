#!/usr/bin/env python3
"""Write model files, well formed and malformed, each with what a load of it must come to.

usage: make_bad.py FOLDER       (it must be empty or not there; run_bad.py takes a scratch folder)

A case is a Case: its name, the path to load, the exit statuses that are right, the words that standard
error must hold, all of them, and for a load the tensors: {name: (dtype, shape, bytes, crc32)}. The same
files come out on every run.
"""

import os
import sys

import bad_folders
import bad_gguf
import bad_safetensors
from bad_case import LOADED, Cases


def make(folder):
    c = Cases(folder)
    for kind in (bad_safetensors, bad_gguf, bad_folders):
        kind.add_to(c)
    return c.list


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip().splitlines()[2])
    if os.path.isdir(sys.argv[1]) and os.listdir(sys.argv[1]):
        sys.exit(f"{sys.argv[1]} is not empty")
    made = make(os.path.abspath(sys.argv[1]))
    print(f"{len(made)} cases, {sum(case.exits == LOADED for case in made)} to load")
