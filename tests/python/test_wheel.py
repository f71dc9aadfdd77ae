"""The package as users get it: built by pip in a clean environment, and as `make wheel` makes it.

usage: test_wheel.py [FOLDER of the look-alike driver]

pip fetches what builds them; where it cannot, the cases are skipped.
"""
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

from package import HERE, ROOT, Scratch, environment, safetensors
from tap import Skip, case, check, holds, run, same

sys.path.insert(0, os.path.join(ROOT, "scripts"))
import exports  # noqa: E402

SCRATCH = tempfile.TemporaryDirectory(prefix="onehop-wheel-")
TOOLS = os.path.join(ROOT, "build", "wheel-tools")
SOURCES = ["LICENSE", "README.md", "include", "meson.build", "meson_options.txt", "pyproject.toml",
           "python", "scripts", "src"]
GLIBC = (2, 28)
# What a wheel holds beside the modules of the package, and what pip adds when it installs one.
BESIDE = {".onehop.mesonpy.libs/libonehop.so", "METADATA", "RECORD", "WHEEL", "entry_points.txt",
          "licenses/LICENSE"}
BY_PIP = {"INSTALLER", "REQUESTED", "direct_url.json"}

LOAD = """
import sys
import onehop
tensors = onehop.load(sys.argv[1], "cpu")
print(type(tensors["a"]).__module__, tensors["a"].tobytes(), "numpy" in sys.modules)
"""


def scratch(*parts):
    return os.path.join(SCRATCH.name, *parts)


def clean():
    """This process's environment, without a word of this tree."""
    return environment(PYTHONPATH=None, ONEHOP_LIBRARY=None, PIP_RETRIES="1", PIP_TIMEOUT="20",
                       PIP_DISABLE_PIP_VERSION_CHECK="1")


def said(command, status=0, **kwargs):
    """(exit status, all that was printed); another status than 0 or the given fails."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.STDOUT, errors="replace", timeout=500, **kwargs)
    check(done.returncode in (0, status), f"{command} ended with {done.returncode}: {done.stdout}")
    return done.returncode, done.stdout


def venv(name):
    """Python of a new environment that has pip and nothing else."""
    said([sys.executable, "-m", "venv", scratch(name)], env=clean())
    return scratch(name, "bin", "python")


def copied(tree, name):
    """What the package is built from, with other times: nothing is built in the tree itself."""
    os.mkdir(scratch(name))
    for entry in SOURCES:
        source, target = os.path.join(tree, entry), scratch(name, entry)
        if os.path.isdir(source):
            shutil.copytree(source, target, copy_function=shutil.copy,
                            ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    return scratch(name)


@functools.lru_cache(None)
def sources():
    return copied(ROOT, "tree")


@functools.lru_cache(None)
def built_by_pip():
    """Python of an environment into which `pip install .` put the package."""
    python = venv("by-pip")
    status, words = said([python, "-m", "pip", "install", "."], 1, cwd=sources(), env=clean())
    if re.search(r"Installing \w+ dependencies: finished with status 'error'", words):
        raise Skip("pip cannot fetch meson-python here")
    same(status, 0, f"pip said {words}\nIts status")
    return python


def make_wheel(tree, out):
    """The wheel that the tree's script makes, at a set time."""
    script = os.path.join(tree, "scripts", "wheel.py")
    env = {**clean(), "SOURCE_DATE_EPOCH": "1700000000"}
    status, words = said([sys.executable, script, "--out", out, "--tools", TOOLS], 77, env=env)
    if status:
        raise Skip("pip cannot fetch ziglang, auditwheel and meson-python here")
    found = os.listdir(out)
    same(len(found), 1, f"wheels in {found}")
    return os.path.join(out, found[0])


@functools.lru_cache(None)
def wheel():
    return make_wheel(sources(), scratch("wheel"))


@functools.lru_cache(None)
def unpacked():
    """The wheel's library."""
    with zipfile.ZipFile(wheel()) as archive:
        return archive.extract(".onehop.mesonpy.libs/libonehop.so", scratch("unpacked"))


def described(path):
    with zipfile.ZipFile(path) as archive:
        return [(i.filename, i.CRC, i.date_time, oct(i.external_attr)) for i in archive.infolist()]


def version():
    with open(os.path.join(sources(), "meson.build"), encoding="utf-8") as file:
        return re.search(r"version: '([^']*)'", file.read()).group(1)


def modules():
    """The files of the package's folder."""
    folder = os.path.join(sources(), "python")
    return {os.path.relpath(os.path.join(at, name), folder)
            for at, _, names in os.walk(os.path.join(folder, "onehop")) for name in names}


def plain(names):
    """Paths in a wheel or an environment as they are named above."""
    return {re.sub(r"^onehop-[^/]*\.(data/purelib|dist-info)/", "", name) for name in names
            if not name.endswith("/") and "__pycache__" not in name}


def loads(python):
    """The package that this Python has loads a tensor, with neither numpy nor torch."""
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"), [("a", "U8", [4], b"1hop")])
        words = said([python, "-c", LOAD, path], cwd=folder, env=clean())[1]
        same(words.strip(), "onehop.arrays b'1hop' False")
        words = said([python, "-m", "onehop", "list", path], cwd=folder, env=clean())[1]
        holds(words, "a\tU8\t[4]")
        words = said([python, "-m", "onehop", "version"], cwd=folder, env=clean())[1]
        holds(words, f"onehop {version()}\n")


# ---- as pip builds it


@case
def pip_installs_the_package_from_its_sources():
    loads(built_by_pip())


@case
def the_package_its_library_and_its_licence_are_installed_and_no_more():
    code = ("import importlib.metadata; found = importlib.metadata.distribution('onehop')\n"
            "print(found.version, *found.files)")
    listed = said([built_by_pip(), "-c", code], env=clean(), cwd=SCRATCH.name)[1].split()
    same(listed[0], version())
    same(plain(listed[1:]) ^ (modules() | BESIDE | BY_PIP), set(), "what is missing or too much")


# ---- the wheel for every Linux


@case
def the_wheel_is_for_any_python_and_glibc_2_28():
    tag = f"py3-none-manylinux_{GLIBC[0]}_{GLIBC[1]}_{os.uname().machine}"
    same(os.path.basename(wheel()), f"onehop-{version()}-{tag}.whl")
    with zipfile.ZipFile(wheel()) as archive:
        holds(archive.read(f"onehop-{version()}.dist-info/WHEEL").decode(), f"\nTag: {tag}\n")
        same(plain(archive.namelist()) ^ (modules() | BESIDE), set(), "what is missing or too much")


@case
def auditwheel_agrees_with_the_tag():
    wheel()
    words = said([os.path.join(TOOLS, "bin", "python"), "-m", "auditwheel", "show", wheel()],
                 env=clean())[1]
    tag = re.search(r'consistent with the\s+following platform tag:\s+"(\w+)"', words)
    check(tag, words)
    print(f"# auditwheel: {tag.group(1)}")
    found = re.fullmatch(rf"manylinux_(\d+)_(\d+)_{os.uname().machine}", tag.group(1))
    check(found and tuple(map(int, found.groups())) <= GLIBC, words)


@case
def no_symbol_is_newer_than_the_tag_and_nothing_but_libc_is_needed():
    text = exports.output("readelf", "--version-info", "--wide", unpacked())
    versions = [tuple(map(int, v.split("."))) for v in re.findall(r"Name: GLIBC_([\d.]+)", text)]
    check(versions, text)
    print(f"# largest symbol version: GLIBC_{'.'.join(map(str, max(versions)))}; "
          f"needs {', '.join(exports.needed(unpacked()))}")
    check(max(versions) <= GLIBC, f"{max(versions)} is newer than the tag says")
    same(exports.check_needed(sources(), unpacked()), [])


@case
def the_wheels_library_exports_what_the_headers_declare():
    for check_exports in (exports.check_names, exports.check_prefix):
        same(check_exports(sources(), unpacked()), [])


@case
def no_path_of_the_machine_is_in_the_library():
    with open(unpacked(), "rb") as file:
        data = file.read()
    for path in (ROOT, TOOLS, tempfile.gettempdir() + "/", os.path.expanduser("~/")):
        check(len(path) < 4 or path.encode() not in data, f"{path} is in the library")


@case
def the_same_sources_give_the_same_bytes():
    first, second = wheel(), make_wheel(copied(sources(), "copy"), scratch("again"))
    with open(first, "rb") as one, open(second, "rb") as other:
        check(one.read() == other.read(), f"{described(first)} differs from {described(second)}")


@case
def the_wheel_installs_alone_and_loads():
    path, python = wheel(), venv("of-wheel")
    said([python, "-m", "pip", "install", "--no-index", path], env=clean())
    loads(python)


@case
def the_wheels_library_passes_the_packages_tests():
    env = environment(ONEHOP_LIBRARY=unpacked())
    for name in ("abi", "load"):
        path = os.path.join(HERE, f"test_{name}.py")
        words = said([sys.executable, path, *sys.argv[1:]], env=env)[1]
        done = re.findall(r"^ok \d+ - \w+$", words, re.M)
        check(done, words)
        print(f"# {name}: {len(done)} cases passed")


if __name__ == "__main__":
    run()
