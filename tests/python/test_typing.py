"""The package's types, as mypy sees them: in the package, and in a program that uses it."""
import importlib.util
import os
import subprocess
import sys

from package import PACKAGE, ROOT, Scratch, environment
from tap import Skip, case, check, run, same

RIGHT = """
import onehop

def load(path: str) -> int:
    tensors: onehop.Tensors = onehop.load(path, "cpu", tp=(0, 2))
    report: onehop.Report = tensors.report
    with onehop.safe_open(path, "np") as file:
        names: list[str] = list(file.keys())
    return len(names) + len(str(report))
"""
# Each of these lines is an error.
WRONG = """
import onehop
onehop.load(3.5)
onehop.lode("m")
onehop.load("m", tp="0/2")
onehop.load("m", sharp=True)
number: int = onehop.load("m").report
"""


def mypy(*arguments, folder):
    """(exit status, what was printed); folder holds the cache."""
    for module in ("mypy", "torch", "numpy", "ml_dtypes"):
        if importlib.util.find_spec(module) is None:
            raise Skip(f"{module} is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir",
         os.path.join(folder, "cache"), "--config-file", os.path.join(ROOT, "pyproject.toml"),
         *arguments], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=500, env=environment(PYTHONPATH=None))
    return done.returncode, done.stdout


@case
def the_package_is_strictly_typed_and_so_are_its_users():
    with Scratch() as folder:
        status, words = mypy(os.path.join(PACKAGE, "onehop"), folder=folder)
        check(status == 0 and not words, words)
        programs = [os.path.join(folder, name) for name in ("right.py", "wrong.py")]
        for path, text in zip(programs, (RIGHT, WRONG)):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        same(mypy(programs[0], folder=folder), (0, ""), "what mypy says of a right program")
        words = mypy(programs[1], folder=folder)[1]
        for number, line in enumerate(WRONG.splitlines(), 1):
            found = f"wrong.py:{number}: error:" in words
            check(found == (number > 2), f"line {number}, {line!r}: mypy says\n{words}")


if __name__ == "__main__":
    run()
