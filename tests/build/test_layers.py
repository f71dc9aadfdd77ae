#!/usr/bin/env python3
"""The layer script finds nothing in the tree, and finds what is planted in a copy of its shape."""
import os
import sys
import tempfile

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(TREE, "scripts"), os.path.dirname(os.path.abspath(__file__))]

import layers
from tap import case, check, holds, run, same

# Files that planted includes may name.
SHAPE = ["include/onehop/status.h", "include/onehop/plan.h", "include/onehop/model.h",
         "src/base/error.h", "src/format/json.h", "src/engine/plan.h", "src/engine/facts.h",
         "src/storage/ops.h", "src/storage/local/local.h", "src/memory/ops.h",
         "src/memory/host/host.h", "src/memory/cuda/driver.h", "src/machine/machine.h",
         "src/runtime/file.h", "src/runtime/buffer.h", "src/runtime/lane.h", "src/model/model.h",
         "src/dataset/dataset.h", "cli/cli.h"]

# A file and an include in it that must be found.
WRONG = [
    ("src/base/x.c", '"format/json.h"'),
    ("src/base/x.c", "<onehop/model.h>"),
    ("src/format/x.c", '"storage/ops.h"'),
    ("src/format/x.c", "<fcntl.h>"),
    ("src/format/x.c", "<onehop/plan.h>"),
    ("src/storage/local/x.c", '"memory/ops.h"'),
    ("src/storage/local/x.c", '"engine/plan.h"'),
    ("src/memory/host/x.c", '"memory/cuda/driver.h"'),
    ("src/memory/host/x.c", '"../cuda/driver.h"'),
    ("src/memory/host/x.c", "<dlfcn.h>"),
    ("src/memory/cuda/x.c", '"storage/local/local.h"'),
    ("src/memory/cuda/x.c", "<cuda.h>"),
    ("src/memory/cuda/x.c", "<cuda_runtime.h>"),
    ("src/machine/x.c", '"memory/ops.h"'),
    ("src/engine/x.c", '"machine/machine.h"'),
    ("src/engine/x.c", "<machine/machine.h>"),
    ("src/engine/x.c", '"memory/host/host.h"'),
    ("src/engine/x.c", "<pthread.h>"),
    ("src/engine/x.c", "<time.h>"),
    ("src/runtime/x.c", '"model/model.h"'),
    ("src/runtime/x.c", "<liburing.h>"),
    ("src/model/x.c", '"engine/plan.h"'),
    ("src/model/x.c", '"runtime/lane.h"'),
    ("src/model/x.c", "<zlib.h>"),
    ("src/model/x.c", '"model.c"'),
    ("src/dataset/x.c", '"model/model.h"'),
    ("src/dataset/x.c", '"runtime/lane.h"'),
    ("src/model/x.c", '"dataset/dataset.h"'),
    ("src/runtime/x.c", '"dataset/dataset.h"'),
    ("src/newroom/x.c", "<stdio.h>"),
    ("cli/x.c", '"base/error.h"'),
    ("cli/x.c", '"../src/engine/plan.h"'),
    ("bench/x.c", '"../cli/cli.h"'),
    ("examples/x.c", '"nowhere.h"'),
    ("include/onehop/x.h", "<cuda.h>"),
    ("include/onehop/x.h", '"../../src/base/error.h"'),
]

# The same for includes that are right.
RIGHT = [
    ("src/base/x.c", "<pthread.h>"),
    ("src/base/x.c", "<onehop/status.h>"),
    ("src/format/x.c", '"base/error.h"'),
    ("src/format/x.c", "<string.h>"),
    ("src/storage/local/x.c", '"local.h"'),
    ("src/storage/local/x.c", '"storage/ops.h"'),
    ("src/memory/cuda/x.c", '"memory/cuda/driver.h"'),
    ("src/memory/cuda/x.c", "<dlfcn.h>"),
    ("src/engine/x.c", '"engine/facts.h"'),
    ("src/engine/x.c", '"memory/ops.h"'),
    ("src/runtime/x.c", '"memory/ops.h"'),
    ("src/runtime/x.c", '"machine/machine.h"'),
    ("src/model/x.c", '"runtime/file.h"'),
    ("src/model/x.c", "<onehop/model.h>"),
    ("src/dataset/x.c", '"format/json.h"'),
    ("src/dataset/x.c", '"runtime/file.h"'),
    ("src/dataset/x.c", '"runtime/buffer.h"'),
    ("cli/x.c", '"cli.h"'),
    ("cli/x.c", "<zlib.h>"),
    ("cli/x.c", "<onehop/model.h>"),
]


def found(path, include):
    """What the script says of a tree with this one include planted."""
    with tempfile.TemporaryDirectory() as tree:
        for name in SHAPE + [path]:
            os.makedirs(os.path.join(tree, os.path.dirname(name)), exist_ok=True)
            with open(os.path.join(tree, name), "w", encoding="utf-8") as f:
                f.write(f"/* */\n#include {include}\n" if name == path else "")
        return layers.check(tree)[0]


@case
def the_tree_keeps_to_its_layers():
    wrong, count = layers.check(TREE)
    check(count > 20, f"only {count} files were looked at")
    check(not wrong, "\n".join(wrong))


@case
def a_planted_include_is_found_with_file_line_and_rule():
    for path, include in WRONG:
        wrong = found(path, include)
        same(len(wrong), 1, f"number of findings for {include} in {path}")
        holds(wrong[0], f"{path}:2: #include {include}: ")


@case
def an_include_that_a_room_may_use_is_not_reported():
    for path, include in RIGHT:
        same(found(path, include), [], f"findings for {include} in {path}")


if __name__ == "__main__":
    run()
