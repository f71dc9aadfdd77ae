"""The command line of ``onehop pack``, and what it prints."""
from __future__ import annotations

import argparse
import json
import math
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from .. import errors
from ..packing import PackOptions, Plan, make_plan, pack
from ..shards import ALIGN, PAD
from .input import InputOptions

_LISTED = 10  # names of each sort in the report for people
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _bytes(words: str) -> int:
    found = re.fullmatch(r"(\d+)([KMGT]?)(?:i?B)?", words, re.IGNORECASE)
    if not found or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{words!r} is no size such as 512M or 16G")
    return int(found[1]) * _UNITS[found[2].upper()]


def _count(words: str) -> int:
    if not words.isdecimal() or not int(words):
        raise argparse.ArgumentTypeError(f"{words!r} is no number from 1 on")
    return int(words)


def _alignment(words: str) -> int:
    value = _bytes(words)
    if value & (value - 1) or not 512 <= value <= 2 << 20:
        raise argparse.ArgumentTypeError(f"{words!r} is no power of two from 512 to 2M")
    return value


def _shard_name(words: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]*", words):
        raise argparse.ArgumentTypeError(f"{words!r} is not of letters, digits, - and _")
    return words


def _streams(words: str) -> list[str]:
    return [word for word in words.split(",") if word]


def parser() -> argparse.ArgumentParser:
    """The command line of ``onehop pack``."""
    made = argparse.ArgumentParser(
        prog="onehop pack", usage="onehop pack [options] INPUT... -o DIR",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Packs folders, tars, tables and logs into shards: tar files that every tar "
                    "reader and\nWebDataset reads, with an index that onehop streams by.",
        epilog="A command that was interrupted goes on where it was, if it is given again.\n"
               "Exit status: 0 done; 1 an operation failed; 2 wrong usage; 3 the data is wrong or "
               "unsupported.")
    add = made.add_argument
    add("inputs", nargs="+", metavar="INPUT",
        help="a folder, a tar, a table (Parquet, Arrow) or a log (MCAP, rosbag2, LeRobot)")
    add("-o", "--out", required=True, metavar="DIR", help="the folder for the shards")
    add("--name", type=_shard_name, default="shard", help="of the shards: NAME-000000.tar; shard")
    add("--format", choices=("tar", "arrow"), default="tar",
        help="arrow: IPC files whose buffers begin on pages")
    add("--manifest", metavar="FILE", help="CSV or Parquet: stream, timestamp_ns, path; episode, "
                                           "offset, size, dtype, shape")
    add("--nuscenes", action="store_true", help="the folder is of the nuScenes layout")
    add("--align", choices=sorted(ALIGN), default="sample",
        help="what begins on 4096: each sample (the default), each member, or nothing")
    add("--alignment", type=_alignment, default=4096, metavar="BYTES", help="in place of 4096")
    add("--pad", choices=sorted(PAD), default="gnu",
        help="what fills the gaps: long-name records (the default), pax comments or directories")
    size = made.add_mutually_exclusive_group()
    size.add_argument("--shard-size", type=_bytes, metavar="BYTES",
                      help="of a shard, about; by default a 64th of all, 256M to 16G")
    size.add_argument("--shard-count", type=_count, metavar="N", help="how many shards")
    add("--columns", type=_streams, action="extend", default=[], metavar="STREAM,...",
        help="keep these in chunks even if their records have 4 KiB or more")
    add("--rows", type=_streams, action="extend", default=[], metavar="STREAM,...",
        help="keep each record of these a sample of its own")
    add("--chunk", type=_bytes, default=4 << 20, metavar="BYTES", help="of a chunk, at most; 4M")
    add("--join-small", type=_bytes, nargs="?", const=4096, default=0, metavar="BYTES",
        help="parts of a sample of fewer bytes (4096) share one member, joined.bin; tools other "
             "than onehop do not see them")
    add("--names", choices=("rewrite", "refuse"), default="rewrite",
        help="what becomes of names that are not printable ASCII without spaces")
    add("--time", choices=("header", "log", "publish"), default="header",
        help="of logs: which time is a record's; header")
    add("--video", choices=("encoded", "frames"), default="encoded",
        help="of LeRobot datasets: frames: decode the video; encoded")
    add("--join", choices=("episode",), help="add the streams of all inputs to the episodes of the "
                                             "first, by name; a manifest is named by its CSV")
    add("--clock", default="episode", metavar="episode|start|FILE",
        help="of inputs that are joined: episode: they tell times as the first input does (the "
             "default); start: each begins with the episode; FILE: a CSV (episode, start_ns) says "
             "when by their clock it begins")
    add("--jobs", type=_count, metavar="N",
        help="processes; by default two more than cores, up to 8")
    add("--verify", action="store_true",
        help="read each shard back, by Python's tarfile and by onehop verify")
    add("--overwrite", action="store_true", help="remove what another packing left in DIR")
    add("--dry-run", action="store_true", help="say what would be packed, and write nothing")
    add("--progress", action=argparse.BooleanOptionalAction, default=sys.stderr.isatty(),
        help="show a line of progress; on a terminal it is shown by itself")
    add("--json", action="store_true", help="the report as JSON")
    return made


def _options(words: argparse.Namespace) -> PackOptions:
    both = sorted(set(words.columns) & set(words.rows))
    if both:
        raise errors.InvalidArgument(f"stream {both[0]} is in --columns and in --rows",
                                     "name it in one")
    if words.join_small and words.format == "arrow":
        raise errors.InvalidArgument("--join-small is for tars", "leave it out with --format arrow")
    if words.manifest is not None and words.nuscenes:
        raise errors.InvalidArgument("--manifest and --nuscenes are both given", "give one")
    if words.clock != "episode" and words.join is None:
        raise errors.InvalidArgument("--clock is given without --join", "give --join episode, too")
    inputs = InputOptions(words.manifest, words.nuscenes, frozenset(words.columns),
                          frozenset(words.rows), words.names, time=words.time,
                          video=words.video, join=words.join, clock=words.clock)
    return PackOptions(words.format, words.name, words.align, words.pad, words.alignment, 0,
                       words.shard_size, words.shard_count, words.chunk, words.join_small,
                       words.jobs, words.verify, words.overwrite, inputs)


def _size(nbytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.2f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.2f} TB"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


class _Line:
    """A line of progress, on standard error."""

    def __init__(self) -> None:
        self._begun, self._shown, self._first = time.monotonic(), 0.0, -1

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._first < 0:
            self._first = done
        if now - self._shown < 0.2 and done < total:
            return
        self._shown = now
        rate = (done - self._first) / max(now - self._begun, 1e-9)
        left = f", {math.ceil((total - done) / rate)} s left" if rate > 0 and done < total else ""
        sys.stderr.write(f"\r\x1b[K{_size(done)} of {_size(total)}, {_size(rate)}/s{left}")
        sys.stderr.flush()

    def end(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _milliseconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.3f} ms"


def _notes_lines(notes: dict[str, Any]) -> Iterator[str]:
    for name, stream in notes["streams"].items():
        rate = f"{stream['rate_hz']:.2f} Hz" if stream["rate_hz"] else ""
        skew = (f"skew to {_milliseconds(stream['skew_max_ns'])}, 99 % below "
                f"{_milliseconds(stream['skew_p99_ns'])}" if "skew_max_ns" in stream else "")
        samples = _many(stream["samples"], "sample")
        yield (f"  {name:<20} {stream['records']:>10} records in {samples:<14} "
               f"{_size(stream['bytes']):>10} {rate:>12}  {skew}".rstrip())
    titles = {"renamed": "renamed", "skipped": "left out", "warnings": "warnings"}
    for sort, found in notes["lists"].items():
        yield f"{titles.get(sort, sort)}: {found['count']}"
        for entry in found["first"][:_LISTED]:
            yield "  " + (" -> " if sort == "renamed" else ": ").join(map(_shown, entry))
        if found["count"] > _LISTED:
            yield f"  and {found['count'] - _LISTED} more"


def _shown(name: str) -> str:
    """A name of others, for a line of output."""
    return re.sub(r"[\x00-\x1f\x7f]|[\ud800-\udfff]", lambda bad: repr(bad.group())[1:-1], name)


def _report_lines(report: dict[str, Any]) -> Iterator[str]:
    kept = f", {report['kept']} of them there before" if report["kept"] else ""
    yield (f"packed {_many(report['samples'], 'sample')} of {_many(report['members'], 'member')}, "
           f"{_size(report['payload_bytes'])}, in {_many(len(report['shards']), 'shard')} of "
           f"{_size(report['shard_bytes'])}{kept}, in {report['seconds']:.1f} s")
    yield from _notes_lines(report["notes"])


def _plan_report(plan: Plan) -> dict[str, Any]:
    return {"inputs": plan.head["inputs"],
            "shards": [{"path": shard.path, "nbytes": shard.nbytes, "jobs": len(shard.jobs)}
                       for shard in plan.shards],
            "nbytes": plan.nbytes, "notes": plan.notes.summary()}


def _plan_lines(report: dict[str, Any]) -> Iterator[str]:
    for row in report["inputs"]:
        yield f"{row['kind']} {_shown(row['path'])}: about {_size(row['nbytes'])}"
    shards = report["shards"]
    yield (f"{_many(len(shards), 'shard')}, {shards[0]['path']} first, of about "
           f"{_size(report['nbytes'] / len(shards))}")
    yield from _notes_lines(report["notes"])


def _say(report: dict[str, Any], lines: Iterator[str], as_json: bool) -> None:
    """Prints a report; a reader that went away is told nothing."""
    text = json.dumps(report, indent=1) if as_json else "\n".join(lines)
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        raise errors.IOFailed(f"cannot write to standard output: {error.strerror}",
                              "send it to a place that takes it", error.errno) from error


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main(words: Sequence[str]) -> int:
    """``onehop pack``; returns the exit status. Errors are raised.

    Parameters
    ----------
    words : sequence of str
        What follows ``pack``.
    """
    given = parser().parse_args(words)
    options = _options(given)
    if given.dry_run:
        planned = _plan_report(make_plan(given.inputs, os.path.abspath(given.out), options))
        _say(planned, _plan_lines(planned), given.json)
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    line = _Line() if given.progress else None
    try:
        report = pack(given.inputs, given.out, options, progress=line)
    finally:
        if line is not None:
            line.end()
    _say(report, _report_lines(report), given.json)
    return 0
