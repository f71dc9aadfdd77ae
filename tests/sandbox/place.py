"""Places like containers: running the command under enter.c, and cgroups.

usage of each test: test_X.py ONEHOP ENTER BUILD DRIVER    (the command, the runner of enter.c, the
build's folder, the folder of the look-alike libcuda.so.1)
"""
import contextlib
import os
import subprocess
import sys
from collections import namedtuple

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "command"), os.path.join(HERE, "..", "build")]

from tap import Skip

ONEHOP, ENTER, BUILD, DRIVER = (os.path.realpath(path) for path in sys.argv[1:5])
CANNOT = 77
USER = 64321  # of nobody else

Result = namedtuple("Result", "code out err")


def inside(path):
    """Where a path of the build is shown in a place with its own mounts."""
    return os.path.join("/tmp/build", os.path.relpath(path, BUILD))


def enter(place, *command, env=None, timeout=50):
    """Runs a command to its end in a place (words for enter.c)."""
    if os.geteuid() != 0:
        raise Skip("only root can build a sandbox")
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("ONEHOP_", "LD_LIBRARY_PATH"))}
    done = subprocess.run([ENTER, *place, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, env={**keep, **(env or {})}, timeout=timeout)
    if done.returncode == CANNOT:
        raise Skip("this machine does not let us: " + done.stderr.decode().strip())
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


def put(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def new_groups():
    """{controller: folder} of new cgroups, of v2 or v1. Skips where they cannot be made."""
    name = f"onehop-test-{os.getpid()}"
    root = "/sys/fs/cgroup"
    if os.path.exists(os.path.join(root, "cgroup.controllers")):
        put(os.path.join(root, "cgroup.subtree_control"), "+cpu +memory")
        folders = dict.fromkeys(("cpu", "memory"), os.path.join(root, name))
    else:
        folders = {kind: os.path.join(root, kind, name) for kind in ("cpu", "memory")}
    for folder in set(folders.values()):
        os.mkdir(folder)
    return folders


@contextlib.contextmanager
def cgroup(cpus, memory):
    """Words for enter.c that join a new cgroup with these limits."""
    if os.geteuid() != 0:
        raise Skip("only root can make a cgroup")
    folders = {}
    try:
        try:
            folders = new_groups()
            cpu, ram = folders["cpu"], folders["memory"]
            if cpu == ram:
                put(os.path.join(cpu, "cpu.max"), f"{cpus * 100000} 100000")
                put(os.path.join(ram, "memory.max"), str(memory))
            else:
                put(os.path.join(cpu, "cpu.cfs_quota_us"), str(cpus * 100000))
                put(os.path.join(ram, "memory.limit_in_bytes"), str(memory))
        except OSError as failure:
            raise Skip(f"no cgroup can be made: {failure}") from failure
        yield [word for folder in sorted(set(folders.values())) for word in ("-g", folder)]
    finally:
        for folder in set(folders.values()):
            os.rmdir(folder)


def out_of_memory_kills(place):
    """How often the kernel killed in the cgroup of the place."""
    for folder in place[1::2]:
        for name in "memory.events", "memory.oom_control":
            path = os.path.join(folder, name)
            if os.path.exists(path):
                with open(path, encoding="utf-8") as file:
                    return dict(line.split() for line in file)["oom_kill"]
    raise AssertionError(f"no count of kills in {place}")
