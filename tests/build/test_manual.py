#!/usr/bin/env python3
"""The manual pages say what the command and the library have, and are well formed.

usage: test_manual.py COMMAND      (a built onehop)
"""
import os
import re
import shutil
import subprocess
import sys

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(TREE, "scripts"), os.path.dirname(os.path.abspath(__file__))]

import exports
import options_man
from tap import Skip, case, check, run, same

MAN = os.path.join(TREE, "docs", "man")
IN_PYTHON = {"pack": "_pack/command.py", "sensors": "sensors.py"}
"""Commands of the Python package, and where their words are."""


def page(name):
    with open(os.path.join(MAN, name), encoding="utf-8") as f:
        return f.read()


def help_of(*words):
    return subprocess.run([sys.argv[1], *words, "--help"], check=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, text=True).stdout


def commands():
    """Those that the command's help lists and that have a page of their own."""
    pages = re.findall(r"^onehop-(\w+)\.1$", "\n".join(sorted(os.listdir(MAN))), re.M)
    check(pages, f"no pages in {MAN}")
    return pages


@case
def every_command_of_the_help_has_a_page_and_each_page_a_command():
    listed = set(re.findall(r"^  (\w+) ", help_of(), re.M)) - {"help"}
    same(set(commands()), listed, "commands with a page")
    same(set(re.findall(r"^\.It Cm (\w+)", page("onehop.1"), re.M)) - {"help"}, listed,
         "commands in onehop.1")


@case
def pages_of_commands_in_python_have_their_options():
    for command, module in IN_PYTHON.items():
        with open(os.path.join(TREE, "python", "onehop", module), encoding="utf-8") as f:
            listed = set(re.findall(r'\badd\w*\(\s*(?:"-\w", )?"--([\w-]+)"', f.read())) - {"child"}
        check(len(listed) > 10, f"{module}: {listed}")
        text = page(f"onehop-{command}.1")
        same(set(re.findall(r"^\.It Fl -([\w-]+)", text, re.M)) - {"help"}, listed - {"help"},
             f"options in onehop-{command}.1")


@case
def each_page_has_the_options_of_the_help_with_their_values():
    for command in sorted(set(commands()) - set(IN_PYTHON)):
        listed = set(re.findall(r"^  --([\w-]+)(?: (\S+))? +\S", help_of(command), re.M))
        check(listed, f"onehop {command} --help lists no option")
        text = page(f"onehop-{command}.1")
        same(set(re.findall(r"^\.It Fl -([\w-]+)(?: Ar (\S+))?$", text, re.M)), listed,
             f"options in onehop-{command}.1")


@case
def the_option_table_is_the_library_s():
    text = page("onehop-options.1")
    check(text == options_man.with_table(text, options_man.options(sys.argv[1])),
          "docs/man/onehop-options.1 is old: run scripts/options_man.py build/onehop")


@case
def onehop_3_names_every_function_of_the_headers_and_no_other():
    same(set(re.findall(r"^\.Fn (\w+)", page("onehop.3"), re.M)), exports.declared(TREE),
         "functions in onehop.3")


@case
def every_page_is_well_formed():
    if not shutil.which("mandoc"):
        raise Skip("mandoc is not installed")
    for name in sorted(os.listdir(MAN)):
        if name[-2:] in (".1", ".3"):
            result = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", os.path.join(MAN, name)],
                                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                    stderr=subprocess.STDOUT, text=True)
            check(result.returncode == 0, result.stdout)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    run()
