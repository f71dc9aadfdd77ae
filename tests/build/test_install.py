#!/usr/bin/env python3
"""Installs into an empty folder and builds a program outside the tree against what lies there.

usage: test_install.py BUILDDIR      (a built one; its prefix stays as it is)
"""
import json
import os
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from tap import case, check, holds, run, same

STAGE = tempfile.TemporaryDirectory()


def introspect(what):
    return json.loads(output(["meson", "introspect", sys.argv[1], what]))


def output(command, **kwargs):
    """Standard output; a failure holds all that was said."""
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            stdin=subprocess.DEVNULL, **kwargs)
    check(result.returncode == 0,
          f"{shlex.join(command)} ended with {result.returncode}: {result.stdout}{result.stderr}")
    return result.stdout


def option(name):
    return next(o["value"] for o in introspect("--buildoptions") if o["name"] == name)


def place(*parts):
    """A path under the prefix, where it was installed."""
    return os.path.join(STAGE.name, option("prefix").lstrip("/"), *parts)


def pkg_config(*arguments):
    env = dict(os.environ, PKG_CONFIG_PATH=place(option("libdir"), "pkgconfig"),
               PKG_CONFIG_SYSROOT_DIR=STAGE.name)
    return output(["pkg-config", *arguments, "onehop"], env=env)


def write_model(path):
    data = bytes(range(256)) * 2
    tensors = {"a": {"dtype": "F32", "shape": [8, 8], "data_offsets": [0, 256]},
               "b": {"dtype": "BF16", "shape": [128], "data_offsets": [256, 512]}}
    header = json.dumps(tensors).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + data)
    return len(data)


@case
def install_puts_headers_library_command_and_pages_in_place():
    output(["meson", "install", "-C", sys.argv[1], "--no-rebuild", "--destdir", STAGE.name])
    headers = os.listdir(os.path.join(TREE, "include", "onehop"))
    want = {n for n in headers if n.endswith(".h")}
    same(set(os.listdir(place("include", "onehop"))), want, "installed headers")
    lib = place(option("libdir"))
    for name in ["libonehop.so", "libonehop.so.0", "pkgconfig/onehop.pc"]:
        check(os.path.exists(os.path.join(lib, name)), f"no {name} in {lib}")
    pages = {n for n in os.listdir(os.path.join(TREE, "docs", "man")) if n[-2:] in (".1", ".3")}
    check(pages, "no manual pages in docs/man")
    for page in pages:
        section = "man" + page[-1]
        check(os.path.exists(place("share", "man", section, page)), f"no {page} in {section}")


@case
def the_installed_command_finds_its_library():
    env = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    version = introspect("--projectinfo")["version"]
    holds(output([place("bin", "onehop"), "version"], env=env), version)


@case
def pkg_config_gives_version_and_flags():
    same(pkg_config("--modversion").strip(), introspect("--projectinfo")["version"], "version")
    holds(pkg_config("--libs"), "-lonehop")


@case
def an_example_outside_the_tree_builds_against_it_and_loads_a_model():
    with tempfile.TemporaryDirectory() as outside:
        source = shutil.copy(os.path.join(TREE, "examples", "load_model.c"), outside)
        program, model = os.path.join(outside, "load"), os.path.join(outside, "m.safetensors")
        size = write_model(model)
        flags = shlex.split(pkg_config("--cflags", "--libs"))
        compiler = shlex.split(os.environ.get("CC", "cc"))
        output([*compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", source, "-o", program, *flags])
        env = dict(os.environ, LD_LIBRARY_PATH=place(option("libdir")))
        holds(output([program, model], env=env), f"{size} bytes on ")


@case
def the_example_is_under_40_lines():
    with open(os.path.join(TREE, "examples", "load_model.c"), encoding="utf-8") as f:
        lines = len(f.readlines())
    check(lines < 40, f"{lines} lines")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    run()
