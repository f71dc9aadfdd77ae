"""``python -m onehop run -- COMMAND``: a command whose model loading is done by onehop.

The command itself is not changed: it is given an environment in which every Python that it starts,
at any depth and by any way that keeps the environment (spawn, a shell, torchrun), does
``onehop.install()`` when it imports safetensors. PYTHONPATH names a folder with a sitecustomize
first, and ONEHOP_INSTALL says what to install: 1, or the device that weights asked for on the host
shall go to, or 0 for a child that is to be left alone. A Python that is started with -I, -E or -S
does not look.
"""
from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence

from . import devices, errors

_NOT_EXECUTABLE, _NOT_FOUND, _USAGE = 126, 127, 2


def environment(given: Mapping[str, str], device: str | None = None) -> dict[str, str]:
    """The environment for the command.

    Parameters
    ----------
    given : mapping of str to str
        The present one.
    device : str, optional
        As for `onehop.install`.
    """
    site = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_site")
    before = given.get("PYTHONPATH", "").split(os.pathsep)
    paths = [site, *(path for path in before if path and path != site)]
    return {**given, "PYTHONPATH": os.pathsep.join(paths), "ONEHOP_INSTALL": device or "1"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m onehop run",
        description="Runs a command; Python programs in it, and below it, load models by onehop.")
    parser.add_argument("--device", help="where weights go that are asked for on the host")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    return parser


def run(words: Sequence[str]) -> int:
    """Becomes the command; returns an exit status only where that fails.

    Parameters
    ----------
    words : sequence of str
        ``[--device DEVICE] [--] COMMAND [ARGUMENT ...]``
    """
    parser = _parser()
    arguments = parser.parse_args(words)
    command = arguments.command[arguments.command[:1] == ["--"]:]
    if not command:
        parser.error("no command is given; name one behind --")
    try:
        if arguments.device is not None:
            devices.parse(arguments.device)
        os.execvpe(command[0], command, environment(os.environ, arguments.device))
    except errors.OnehopError as error:
        print(f"onehop: {error}", file=sys.stderr)
        return _USAGE
    except OSError as error:
        print(f"onehop: {command[0]} cannot be run: {error.strerror}; correct its name or its path",
              file=sys.stderr)
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
