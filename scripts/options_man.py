#!/usr/bin/env python3
"""Writes the option table of docs/man/onehop-options.1 from the library's own table.

usage: options_man.py [--check] COMMAND [PAGE]

COMMAND is a built onehop, whose `options --json` is the source. With --check nothing is written, and
the exit status is 1 if the page differs.
"""
import argparse
import json
import os
import subprocess
import sys

TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(TREE, "docs", "man", "onehop-options.1")
BEGIN = '.\\" BEGIN of the table: written by scripts/options_man.py\n'
END = '.\\" END of the table\n'


def options(command):
    """The table, whatever this process's environment sets."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("ONEHOP_")}
    result = subprocess.run([command, "options", "--json"], check=True, env=env,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    return json.loads(result.stdout)["options"]


def text(words):
    """Words as a text line of mdoc."""
    words = words.replace("\\", "\\e").replace('"', "\\(dq")
    return "\\&" + words if words[:1] in (".", "'") else words


def sentence(words):
    return text(words[0].upper() + words[1:]) + ("" if words.endswith(".") else ".")


def table(rows):
    lines = [".Bl -tag -width Ds\n"]
    for row in rows:
        unit = "" if row["unit"] == row["name"] else f", in {row['unit']}"
        lines += [f".It Cm {row['name']}\n",
                  sentence(row["doc"]) + "\n",
                  f"Default {text(row['default'])}; allowed {text(row['range'])}{text(unit)}.\n"]
    return "".join(lines + [".El\n"])


def with_table(page, rows):
    head, rest = page.split(BEGIN)
    return head + BEGIN + table(rows) + END + rest.split(END)[1]


def main():
    ap = argparse.ArgumentParser(description="Write the manual page's option table.")
    ap.add_argument("--check", action="store_true")
    ap.add_argument("command", metavar="COMMAND")
    ap.add_argument("page", nargs="?", default=PAGE, metavar="PAGE")
    args = ap.parse_args()
    with open(args.page, encoding="utf-8") as f:
        page = f.read()
    want = with_table(page, options(args.command))
    if args.check:
        return 0 if page == want else 1
    with open(args.page, "w", encoding="utf-8") as f:
        f.write(want)
    return 0


if __name__ == "__main__":
    sys.exit(main())
