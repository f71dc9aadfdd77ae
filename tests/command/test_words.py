#!/usr/bin/env python3
"""The command line: help, wrong words, exit status, and standard output that cannot be written."""
import json
import os
import re
import subprocess
import sys

from command import ONEHOP, Scratch, environment, run, safetensors, seeded, tensor
from tap import case, check, holds, run as run_cases, same

COMMANDS = ["load", "list", "explain", "prefetch", "index", "pack", "sensors", "stream", "bench",
            "options", "version"]
IN_PYTHON = ["pack", "sensors"]
"""Their words are the Python package's."""


def refused(words, code, sentence, **more):
    """The whole of what is said, and nothing on standard output."""
    result = run(*words, **more)
    same(result.err, f"onehop: {sentence}\n", "standard error")
    same(result.code, code, "exit status")
    same(result.out, "", "standard output")


@case
def no_command_is_wrong_usage():
    refused([], 2, "no command is given; see onehop help")


@case
def an_unknown_command_is_answered_with_the_nearest():
    refused(["lod"], 2, 'unknown command "lod"; did you mean load?')
    refused(["explian"], 2, 'unknown command "explian"; did you mean explain?')
    refused(["quux"], 2, 'unknown command "quux"; see onehop help')


@case
def an_unknown_option_is_answered_with_the_nearest():
    refused(["load", "--devise", "host", "x"], 2, 'unknown option "--devise"; did you mean --device?')
    refused(["list", "--jsn", "x"], 2, 'unknown option "--jsn"; did you mean --json?')
    refused(["list", "--zzzzzzzzz", "x"], 2, 'unknown option "--zzzzzzzzz"; see onehop list --help')
    refused(["list", "-j", "x"], 2, 'unknown option "-j"; see onehop list --help')


@case
def another_command_s_option_is_unknown():
    result = run("list", "--verify", "x")
    same((result.code, result.out), (2, ""))
    holds(result.err, 'unknown option "--verify"')


@case
def wrong_values_are_refused_with_what_is_right():
    load = ["load", "x"]
    refused(load + ["--device"], 2, "--device needs a value: cuda:N|host; see --help")
    refused(load + ["--verify=1"], 2, "--verify takes no value; leave it away")
    refused(load + ["--repeat", "0"], 2, '--repeat cannot be "0"; give a number from 1 to 10000')
    refused(load + ["--repeat", "3x"], 2, '--repeat cannot be "3x"; give a number from 1 to 10000')
    refused(load + ["--repeat", ""], 2, '--repeat cannot be ""; give a number from 1 to 10000')
    refused(load + ["--checksum", "md5"], 2, '--checksum cannot be "md5"; give crc32 or sha256')
    refused(load + ["--checksum", "crc23"], 2, '--checksum cannot be "crc23"; did you mean crc32?')
    for tp in "2/2", "1", "1/", "/2", "-1/2", "0/2x", "a/b", "0/0":
        refused(load + [f"--tp={tp}", "--tp-plan", "x"], 2,
                f'--tp cannot be "{tp}"; give RANK/SIZE with RANK from 0 to SIZE - 1, as 0/2')
    refused(load + ["--option", "threads"], 2,
            '--option cannot be "threads"; give NAME=VALUE, as threads=4')
    refused(["bench", "--bytes", "1Q"], 2, '--bytes cannot be "1Q"; give a number from 1024 to '
            "17592186044416, with K, M, G or T if you like")


@case
def tensor_parallel_options_belong_together():
    refused(["load", "x", "--tp", "0/2"], 2, "--tp and --tp-plan belong together; give both")
    refused(["load", "x", "--tp-plan", "f"], 2, "--tp and --tp-plan belong together; give both")
    refused(["load", "x", "--tp-uneven", "split"], 2,
            "--tp-uneven needs --tp; give --tp and --tp-plan")


@case
def words_are_counted():
    refused(["load"], 2, "onehop load needs PATH; see --help")
    refused(["load", "a", "b"], 2, 'onehop load takes no further argument: "b"; see --help')
    refused(["version", "b"], 2, 'onehop version takes no further argument: "b"; see --help')
    refused(["load", "a", "\x1b[2J\n"], 2,
            'onehop load takes no further argument: "\\x1b[2J\\x0a"; see --help')


@case
def an_unknown_runtime_option_is_answered_with_the_nearest():
    result = run("load", "x", "--option", "thread=3")
    same((result.code, result.out, result.err.count("\n")), (2, "", 1))
    holds(result.err, "threads")
    result = run("load", "x", "--option", "threads=0")
    same((result.code, result.out), (2, ""))


@case
def help_goes_to_standard_output_and_names_every_command():
    for words in ["help"], ["--help"], ["-h"]:
        result = run(*words)
        same((result.code, result.err), (0, ""))
        same(re.findall(r"^  (\w+) ", result.out, re.M), COMMANDS + ["help"])


@case
def every_command_explains_itself():
    for command in COMMANDS:
        if command in IN_PYTHON:
            continue
        result = run(command, "--help")
        same((result.code, result.err), (0, ""), command)
        check(result.out.startswith(f"usage: onehop {command} [options]"), result.out)
        holds(result.out, "--json")
        same(run("help", command).out, result.out)
        same(run(command, "-h").out, result.out)
        check(all(len(line) <= 100 for line in result.out.splitlines()), "a line is too long")


@case
def commands_in_python_say_what_they_lack():
    for command in IN_PYTHON:
        result = run(command, "--help", env=environment(ONEHOP_PYTHON="/no/python"))
        same((result.code, result.out), (1, ""), command)
        same(result.err, f"onehop: {command} is done in Python, and \"/no/python\" cannot be run: "
             "No such file or directory; install Python 3.10 or later, or let ONEHOP_PYTHON name "
             "it\n")
        result = run(command, "--help", env=environment(ONEHOP_PYTHON=sys.executable,
                                                        PYTHONPATH="", PYTHONNOUSERSITE="1"))
        holds(result.err, f"onehop: {command} is done by the Python package onehop, which ")
        same((result.code, result.out), (1, ""), command)


@case
def help_wins_over_words_that_are_missing():
    same(run("load", "--help").code, 0)
    refused(["help", "lood"], 2, 'unknown command "lood"; did you mean load?')


@case
def the_version_is_one_line():
    result = run("--version")
    check(re.fullmatch(r"onehop \d+\.\d+\.\d+\n", result.out), result.out)
    same((result.code, result.err), (0, ""))


@case
def version_says_what_is_compiled_in_and_what_was_found():
    result = run("version")
    same((result.code, result.err), (0, ""))
    for part in "compiled in\n", "found here\n", "storage: ", "memory: ", "usable, ", "worker threads":
        holds(result.out, part)
    facts = json.loads(run("version", "--json").out)
    same("onehop " + facts["version"] + "\n", run("--version").out)
    same(facts["usable_cores"] >= 1 and facts["memory_bytes"] > 0, True)
    check(all(re.match(r"[\w ]+: \S", line) for line in facts["build"]), facts["build"])
    for device in facts["devices"]:
        check(device.get("error") or device["name"], device)
        check(not device.get("error") or device["remedy"], "no remedy for a missing device")


@case
def a_word_after_two_dashes_is_a_path():
    with Scratch() as folder:
        safetensors(os.path.join(folder, "--json"), [tensor(seeded(), "a", "U8", [3])])
        result = run("list", "--", "--json", cwd=folder)
        same((result.code, result.err), (0, ""))
        check(result.out.startswith("name  dtype"), result.out)


@case
def a_missing_file_is_a_failed_operation():
    with Scratch() as folder:
        for command in ["load", "--device", "host"], ["list"], ["explain", "--device", "host"]:
            result = run(*command, os.path.join(folder, "none.safetensors"))
            same((result.code, result.out, result.err.count("\n")), (1, "", 1))
            holds(result.err, "No such file")


@case
def malformed_data_has_its_own_exit_status():
    with Scratch() as folder:
        path = os.path.join(folder, "a.safetensors")
        with open(path, "wb") as file:
            file.write(b"\x08\0\0\0\0\0\0\0{\"a\":{}")
        for command in ["load", "--device", "host", "--json"], ["list", "--json"], ["explain"]:
            result = run(*command, path)
            same((result.code, result.out, result.err.count("\n")), (3, "", 1))
            check(result.err.startswith("onehop: "), result.err)


@case
def a_pipe_in_a_file_s_place_is_not_waited_for():
    with Scratch() as folder:
        path = os.path.join(folder, "a.safetensors")
        os.mkfifo(path)
        result = run("load", "--device", "host", path, timeout=20)
        check(result.code in (1, 2) and result.err, result)


@case
def a_device_that_is_not_there_is_a_failed_operation():
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "a.safetensors"), [])
        result = run("load", "--device", "cuda:77", path)
        same((result.code, result.out, result.err.count("\n")), (1, "", 1))
        result = run("load", "--device", "gpu", path)
        same((result.code, result.out, result.err.count("\n")), (2, "", 1))


@case
def a_full_disk_under_standard_output_is_said_once():
    with Scratch() as folder, open("/dev/full", "wb") as full:
        source = seeded()
        path = safetensors(os.path.join(folder, "a.safetensors"),
                           [tensor(source, f"t{i}", "U8", [1]) for i in range(3000)])
        for words in ["list", path], ["list", "--json", path], ["help"], ["options"]:
            result = run(*words, stdout=full)
            same(result.code, 1, "exit status")
            same(result.err, "onehop: cannot write to standard output: No space left on device; "
                             "send it to a place that takes it\n")


@case
def a_reader_that_goes_away_is_told_nothing():
    with Scratch() as folder:
        source = seeded()
        path = safetensors(os.path.join(folder, "a.safetensors"),
                           [tensor(source, f"tensor.{i}", "U8", [1]) for i in range(20000)])
        read, write = os.pipe()
        os.close(read)
        result = run("list", path, stdout=write)
        os.close(write)
        same((result.code, result.err), (1, ""))


@case
def closed_standard_descriptors_are_not_given_to_files():
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "a.safetensors"),
                           [tensor(seeded(), "a", "U8", [5])])
        with open(path, "rb") as file:
            before = file.read()
        script = f'exec "{ONEHOP}" list "{path}" <&- >&-'
        result = subprocess.run(["sh", "-c", script], stderr=subprocess.PIPE, env=environment(),
                                timeout=60)
        same(result.returncode, 1)
        holds(result.stderr.decode(), "cannot write to standard output: Bad file descriptor")
        script = f'exec "{ONEHOP}" list nothing.safetensors <&- >&- 2>&-'
        same(subprocess.run(["sh", "-c", script], env=environment(), timeout=60).returncode, 1)
        with open(path, "rb") as file:
            same(file.read(), before)


if __name__ == "__main__":
    run_cases()
