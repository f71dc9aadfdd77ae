"""What a load did, and what it would do: `Report` and `Explanation`, for people and programs."""
from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import _abi, _library


@dataclass(frozen=True)
class Reason:
    """Why bytes did not travel in a better way.

    Attributes
    ----------
    name : str
        "NOT_RESIDENT"
    text, remedy : str
        One sentence each, without a final period.
    """

    name: str
    text: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.text}; {self.remedy}"


def reasons_of(bits: int) -> list[Reason]:
    """The reasons of a set of the C library's bits."""
    found = []
    for position in range(32):
        if bits & 1 << position:
            words = (_library.run(f"reason_{part}", 1 << position)
                     for part in ("name", "text", "remedy"))
            found.append(Reason(*(word.decode() for word in words)))
    return found


def route_name(route: int) -> str:
    """The C library's word for a route."""
    found: bytes = _library.run("route_name", route)
    return found.decode()


def size_text(nbytes: int) -> str:
    """Bytes for people: ``"86.6 MiB"``."""
    size = float(nbytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{nbytes} bytes" if unit == "bytes" else f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


def time_text(seconds: float) -> str:
    """A time for people: ``"6.84 ms"``."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def _table(rows: Sequence[tuple[str, str]]) -> str:
    """Rows of a label and words; an empty label goes on with the one above."""
    return "\n".join(f"{label:<12}{words}" for label, words in rows)


def _html_table(rows: Sequence[tuple[str, str]]) -> str:
    import html

    cells = "".join(f"<tr><th style='text-align:left'>{html.escape(label)}</th>"
                    f"<td style='text-align:left'>{html.escape(words)}</td></tr>"
                    for label, words in rows)
    return f"<table>{cells}</table>"


def _reason_rows(reasons: Sequence[Reason]) -> list[tuple[str, str]]:
    return [("reasons" if first else "", str(reason))
            for first, reason in zip([True] + [False] * len(reasons), reasons)]


@dataclass(frozen=True)
class Report:
    """What a load did.

    Attributes
    ----------
    path : str
    format : str
        "safetensors" or "gguf"
    device : str
        "cpu" or "cuda:N"
    framework : str
        "torch", "numpy" or "array"
    tensors : int
        Number of tensors.
    bytes : int
        Of the tensors.
    read_bytes : int
        Read from storage.
    seconds : float
        From the call to the last byte and the last tensor object, verification left out.
    rate : float
        Bytes a second over all of that.
    routes : dict of str to int
        Bytes landed, by route.
    reasons : list of Reason
    phases : dict of str to float
        Seconds by phase, in order: open, parse, select, allocate, plan, prepare, transfer; and
        tensors (making their objects), which overlaps the transfer.
    staging_bytes : int
        Pinned memory that was used.
    verified : bool
        Whether the bytes were compared with the file's.
    notes : list of str
        Remarks about the model: what was left out, and why.
    """

    path: str
    format: str
    device: str
    framework: str
    tensors: int
    bytes: int
    read_bytes: int
    seconds: float
    rate: float
    routes: dict[str, int]
    reasons: list[Reason]
    phases: dict[str, float]
    staging_bytes: int = 0
    verified: bool = False
    notes: list[str] = field(default_factory=list)

    def _rows(self) -> list[tuple[str, str]]:
        phases = ", ".join(f"{name} {time_text(s)}" for name, s in self.phases.items())
        routes = ", ".join(f"{name} {size_text(n)}" for name, n in self.routes.items())
        rows = [("model", f"{self.path} ({self.format})"),
                ("to", f"{self.framework}, {self.device}"),
                ("tensors", f"{self.tensors:,} of {self.bytes:,} bytes "
                            f"({size_text(self.bytes)})"),
                ("time", f"{time_text(self.seconds)}, {self.rate / 1e9:.2f} GB/s"),
                ("route", routes or "none"), ("phases", phases)]
        rows += _reason_rows(self.reasons)
        rows += [("note", note) for note in self.notes]
        if self.verified:
            rows.append(("verified", "every byte, against a read of its own of the file"))
        return rows

    def __str__(self) -> str:
        return _table(self._rows())

    def _repr_html_(self) -> str:
        return _html_table(self._rows())


@dataclass(frozen=True)
class SegmentGroup:
    """Segments of a plan that travel alike.

    Attributes
    ----------
    file : str
    route : str
    staged : bool
        Through the pinned ring; else straight into place.
    segments, read_bytes, pieces : int
        How many segments, the bytes that they read, and the destination ranges that they fill.
    reasons : tuple of Reason
    """

    file: str
    route: str
    staged: bool
    segments: int
    read_bytes: int
    pieces: int
    reasons: tuple[Reason, ...]


@dataclass(frozen=True)
class Explanation:
    """How a load would travel, and why: what `onehop.explain` gives.

    Attributes
    ----------
    path, format, device : str
    tensors, bytes : int
    arena_bytes : int
        On the device, padding included.
    read_bytes : int
        Asked of storage.
    groups : list of SegmentGroup
    notes : list of str
    """

    path: str
    format: str
    device: str
    tensors: int
    bytes: int
    arena_bytes: int
    read_bytes: int
    groups: list[SegmentGroup]
    notes: list[str] = field(default_factory=list)

    def _rows(self) -> list[tuple[str, str]]:
        rows = [("model", f"{self.path} ({self.format})"), ("to", self.device),
                ("tensors", f"{self.tensors:,} of {self.bytes:,} bytes "
                            f"({size_text(self.bytes)})"),
                ("arena", f"{self.arena_bytes:,} bytes, padding included"),
                ("read", f"{self.read_bytes:,} bytes")]
        for group in self.groups:
            way = "through the ring" if group.staged else "straight"
            rows.append((group.route, f"{way}: {group.segments:,} segments, "
                         f"{size_text(group.read_bytes)}, {group.pieces:,} pieces of "
                         f"{os.path.basename(group.file)}"))
            rows += [("", str(reason)) for reason in group.reasons]
        return rows + [("note", note) for note in self.notes]

    def __str__(self) -> str:
        return _table(self._rows())

    def _repr_html_(self) -> str:
        return _html_table(self._rows())


def group_segments(segments: Any) -> list[SegmentGroup]:
    """A plan's segments, summed up by file, route, staging and reasons."""
    sums: dict[tuple[int, int, int, int], list[int]] = {}
    for segment in segments:
        key = (segment.path, segment.route, segment.staged, segment.reasons)
        total = sums.setdefault(key, [0, 0, 0])
        total[0] += 1
        total[1] += segment.rows * segment.row_bytes
        total[2] += segment.pieces
    return [SegmentGroup(_library.text(path), route_name(route), bool(staged), count, nbytes,
                         pieces, tuple(reasons_of(reasons)))
            for (path, route, staged, reasons), (count, nbytes, pieces) in sums.items()]


def routes_of(completion: _abi.Completion) -> dict[str, int]:
    """Bytes by route of those that were taken."""
    return {route_name(route): nbytes
            for route, nbytes in enumerate(completion.route_bytes) if nbytes}


def summary(fields: Mapping[str, Any]) -> Report:
    """A report of the given fields; the rate comes from bytes and seconds."""
    seconds = fields["seconds"]
    return Report(**fields, rate=fields["bytes"] / seconds if seconds > 0 else 0.0)
