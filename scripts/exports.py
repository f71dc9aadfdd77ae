#!/usr/bin/env python3
"""Holds libonehop.so against the public headers. Prints TAP.

usage: exports.py LIBRARY [TREE]

What the library exports is what the headers declare, no more and no less; it needs libc only; and
each header compiles alone, as C11 and as C++17.
"""
import os
import re
import shutil
import subprocess
import sys

# What a program that links libonehop.so brings along: the C library in its parts.
LIBC = re.compile(r"(libc|libpthread|libdl|libm)\.so\.6$|libdl\.so\.2$|libpthread\.so\.0$"
                  r"|ld-linux[-\w]*\.so\.\d$|libc\.musl[-\w]*\.so\.1$")

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
# ONEHOP_API before a name and its arguments, up to the semicolon; not the macro's own definition.
DECLARATION = re.compile(r"^ONEHOP_API\s+([^;{}]*?)\(", re.M | re.S)
NAME = re.compile(r"(\w+)\s*$")


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def headers(tree):
    folder = os.path.join(tree, "include", "onehop")
    return sorted(os.path.join(folder, n) for n in os.listdir(folder) if n.endswith(".h"))


def declared(tree):
    names = set()
    for path in headers(tree):
        with open(path, encoding="utf-8") as f:
            text = COMMENT.sub(" ", f.read())
        names.update(NAME.search(d).group(1) for d in DECLARATION.findall(text))
    return names


def exported(library):
    """Names, without the version's own symbol (an absolute one)."""
    names = set()
    for line in output("nm", "-D", "--defined-only", library).splitlines():
        parts = line.split()
        if parts[-2] != "A":
            names.add(parts[-1].split("@")[0])
    return names


def needed(library):
    text = output("readelf", "-d", library)
    return re.findall(r"\(NEEDED\).*\[(.*)\]", text)


def check_names(tree, library):
    want, have = declared(tree), exported(library)
    wrong = [f"{n} is declared in a header and not exported" for n in sorted(want - have)]
    wrong += [f"{n} is exported and in no header" for n in sorted(have - want)]
    return wrong if want else ["no declaration found in the headers"]


def check_prefix(tree, library):
    return [f"{n} is exported without onehop_" for n in sorted(exported(library))
            if not n.startswith("onehop_")]


def check_needed(tree, library):
    return [f"{n} is needed beyond the C library" for n in needed(library) if not LIBC.match(n)]


def check_headers(tree, compiler, language, standard):
    wrong = []
    for path in headers(tree):
        result = subprocess.run(
            [compiler, "-x", language, f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-pedantic",
             "-I", os.path.join(tree, "include"), "-fsyntax-only", "-"],
            input=f"#include <onehop/{os.path.basename(path)}>\n", text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if result.returncode:
            wrong += [f"{os.path.basename(path)} with {compiler}:"] + result.stdout.splitlines()
    return wrong


def compilers():
    """(language, standard, commands to try, test's name)"""
    cc = os.environ.get("CC", "cc").split()[0]
    cxx = os.environ.get("CXX", "c++").split()[0]
    return [("c", "c11", [cc], "each_header_compiles_alone_as_c11"),
            ("c++", "c++17", [cxx, "g++", "clang++"], "each_header_compiles_alone_as_cxx17")]


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    library = sys.argv[1]
    tree = sys.argv[2] if len(sys.argv) == 3 else \
        os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    results = [("exports_are_the_declarations_of_the_headers", check_names(tree, library), None),
               ("only_onehop_names_are_exported", check_prefix(tree, library), None),
               ("the_library_needs_only_the_c_library", check_needed(tree, library), None)]
    for language, standard, commands, name in compilers():
        found = next((c for c in commands if shutil.which(c)), None)
        if found:
            results.append((name, check_headers(tree, found, language, standard), None))
        else:
            results.append((name, [], f"no compiler called {' or '.join(commands)}"))
    print(f"1..{len(results)}")
    for number, (name, wrong, reason) in enumerate(results, 1):
        for line in wrong:
            print(f"# {line}")
        print(f"{'not ok' if wrong else 'ok'} {number} - {name}" + (f" # SKIP {reason}" if reason else ""))
    return 1 if any(wrong for _, wrong, _ in results) else 0


if __name__ == "__main__":
    sys.exit(main())
