"""``python -m onehop``: the command, as far as the package brings it.

``load``, ``explain``, ``list``, ``pack``, ``sensors`` and ``version`` are done here, over the C
library that the package carries; everything else is handed to the ``onehop`` command of a full
installation.
"""
from __future__ import annotations

import argparse
import importlib
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

from . import errors

STATUS_FAILED, STATUS_USAGE, STATUS_DATA = 1, 2, 3


def _parse_device(words: str) -> str | int:
    return int(words) if words.isdecimal() else words


def _parse_tp(words: str) -> tuple[int, int]:
    rank, _, size = words.partition("/")
    return int(rank), int(size)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="a file, an index or a folder")
    parser.add_argument("--device", type=_parse_device, help="cpu, cuda, cuda:N")
    parser.add_argument("--tensors", action="append", metavar="PATTERN",
                        help="names or patterns; again for more")
    parser.add_argument("--tp", type=_parse_tp, default=(0, 1), metavar="RANK/SIZE")
    parser.add_argument("--tp-plan", metavar="FILE", help="JSON of patterns and dimensions")
    parser.add_argument("--route", help="force one route")


def _load(arguments: argparse.Namespace) -> int:
    from .loading import load

    loaded = load(arguments.path, arguments.device, tensors=arguments.tensors, tp=arguments.tp,
                  tp_plan=arguments.tp_plan, route=arguments.route, framework="array",
                  verify="read" if arguments.verify else None, progress=sys.stderr.isatty())
    print(loaded.report)
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    from .loading import explain

    print(explain(arguments.path, arguments.device, tensors=arguments.tensors, tp=arguments.tp,
                  tp_plan=arguments.tp_plan, route=arguments.route))
    return 0


def _list(arguments: argparse.Namespace) -> int:
    from .model import Model

    with Model(arguments.path) as model, model.select(arguments.tensors or ()) as selection:
        for item in selection.items():
            shape = ",".join(map(str, item.shape))
            print(f"{item.name}\t{item.dtype}\t[{shape}]\t{item.nbytes}")
    return 0


def _version(arguments: argparse.Namespace) -> int:
    from . import _library, _runtime

    print(f"onehop {_runtime.version()}")
    print(_library.run("build_info").decode().rstrip())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m onehop", description="Moves model weights into GPU memory.",
        epilog="run -- COMMAND runs a command with its model loading done by onehop; pack and "
               "sensors make shards, see pack --help. Other commands are those of the onehop "
               "program, where that is installed.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, action, words in (("load", _load, "load a model, and say how it went"),
                                ("explain", _explain, "say how a load would travel, and why")):
        command = commands.add_parser(name, help=words, description=words)
        _common(command)
        if name == "load":
            command.add_argument("--verify", action="store_true",
                                 help="compare every byte with a second read of the file")
        command.set_defaults(action=action)
    command = commands.add_parser("list", help="its tensors: name, dtype, shape, bytes")
    command.add_argument("path", metavar="PATH")
    command.add_argument("--tensors", action="append", metavar="PATTERN")
    command.set_defaults(action=_list)
    commands.add_parser("version", help="what runs").set_defaults(action=_version)
    return parser


_VERBS = {"pack": "_pack.command", "sensors": "sensors", "bench-stream": "_bench_stream"}
"""Commands of a module each, which defines ``main(words) -> int`` and raises its errors."""


def _run_verb(words: Sequence[str]) -> int:
    """A command of a module."""
    try:
        module = importlib.import_module(f".{_VERBS[words[0]]}", __package__)
        return int(module.main(words[1:]))
    except ModuleNotFoundError as error:
        name = error.name or "a module"
        if name.partition(".")[0] == __package__:
            raise
        print(f"onehop: {words[0]} needs {name}, which is not installed; pip install {name}",
              file=sys.stderr)
        return STATUS_FAILED


def _runner() -> ModuleType | None:
    """The module that serves ``run``; it defines ``run(arguments) -> int``."""
    try:
        return importlib.import_module(".run", __package__)
    except ModuleNotFoundError:
        return None


def _hand_over(words: Sequence[str]) -> int:
    """Becomes the installed command."""
    program = shutil.which("onehop")
    if program is None:
        print(f"python -m onehop: {words[0]} is done by the onehop program, which is not here; "
              "build and install it from the source", file=sys.stderr)
        return STATUS_USAGE
    os.execv(program, [program, *words])


def _status(error: errors.OnehopError) -> int:
    """The exit status of the onehop command for the error's group."""
    group = error.status // 100
    return {1: STATUS_USAGE, 5: STATUS_DATA}.get(group, STATUS_FAILED)


def _guarded(action: Callable[[], int]) -> int:
    """The action's exit status, or that of its error, which is said."""
    try:
        return action()
    except errors.OnehopError as error:
        print(f"onehop: {error}", file=sys.stderr)
        return _status(error)
    except KeyboardInterrupt:
        return 130


def main(words: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit status."""
    words = list(sys.argv[1:] if words is None else words)
    if words[:1] == ["run"]:
        runner = _runner()
        if runner is not None:
            return int(runner.run(words[1:]))
    if words and words[0] in _VERBS:
        return _guarded(lambda: _run_verb(words))
    known = ("load", "explain", "list", "version")
    if words and not words[0].startswith("-") and words[0] not in known:
        return _hand_over(words)
    arguments = _parser().parse_args(words)
    return _guarded(lambda: int(arguments.action(arguments)))


if __name__ == "__main__":
    sys.exit(main())
