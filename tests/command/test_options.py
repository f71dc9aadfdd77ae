#!/usr/bin/env python3
"""Where each option's value comes from: --option, the environment, the config file, the default."""
import json
import os

from command import Scratch, environment, run
from tap import case, check, holds, run as run_cases, same


def options(*words, **env):
    result = run("options", "--json", *words, env=environment(**env))
    same((result.code, result.err), (0, ""))
    return {row["name"]: row for row in json.loads(result.out)["options"]}


def value(row):
    return row["value"], row["origin"]


@case
def every_option_says_what_it_is():
    rows = options()
    check({"threads", "ring_bytes", "route"} <= rows.keys(), rows.keys())
    for row in rows.values():
        same(row["origin"], "default", row["name"])
        check(all(row[key] for key in ("value", "default", "range", "unit", "doc")), row)
    text = run("options").out
    for name, row in rows.items():
        holds(text, f"{name} = {row['value']}\n")
        holds(text, row["doc"])


@case
def the_environment_is_taken_over_the_default():
    same(value(options(ONEHOP_THREADS="3")["threads"]), ("3", "environment"))
    same(value(options(ONEHOP_BLOCK_BYTES="4MiB")["block_bytes"]), ("4MiB", "environment"))


@case
def the_caller_is_taken_over_the_environment_and_the_file():
    with Scratch() as folder:
        path = os.path.join(folder, "config")
        with open(path, "w") as file:
            file.write("# ours\nthreads = 2\nslice_bytes = 64K # small\n\nranks_per_node=2\n")
        rows = options("--option", "threads=5", ONEHOP_CONFIG=path, ONEHOP_THREADS="4",
                       ONEHOP_RANKS_PER_NODE="3")
        same(value(rows["threads"]), ("5", "caller"))
        same(value(rows["ranks_per_node"]), ("3", "environment"))
        same(value(rows["slice_bytes"]), ("64KiB", "config file"))
        same(rows["block_bytes"]["origin"], "default")


@case
def an_unknown_variable_is_wrong_usage_and_names_the_nearest():
    for command in ["options"], ["version"], ["load", "--device", "host", "x"]:
        result = run(*command, env=environment(ONEHOP_THREDS="3"))
        same((result.code, result.out, result.err.count("\n")), (2, "", 1))
        holds(result.err, "THREDS")
        holds(result.err.lower(), "threads")


@case
def an_unknown_name_in_the_config_file_is_wrong_usage():
    with Scratch() as folder:
        path = os.path.join(folder, "config")
        with open(path, "w") as file:
            file.write("thread = 2\n")
        result = run("options", env=environment(ONEHOP_CONFIG=path))
        same((result.code, result.out), (2, ""))
        holds(result.err, "threads")
        result = run("options", env=environment(ONEHOP_CONFIG=os.path.join(folder, "none")))
        check(result.code in (1, 2) and result.err.count("\n") == 1, result)


@case
def values_out_of_range_are_wrong_usage():
    for text in "0", "1025", "-1", "many", "":
        result = run("options", env=environment(ONEHOP_THREADS=text))
        same((result.code, result.out, result.err.count("\n")), (2, "", 1), text)
        holds(result.err.lower(), "threads")


if __name__ == "__main__":
    run_cases()
