"""What a packing has to say at its end: counted in any process, put together in one.

Notes are kept as what JSON holds, so that they can be sent and written down. Of each sort the first
100 are kept and all are counted.
"""
from __future__ import annotations

import math
from typing import Any

KEPT = 100
_STEPS = 8  # steps of a power of two in which skews are counted


class Notes:
    """Remarks and figures; see `add` and `as_json` for how they travel.

    Attributes
    ----------
    lists : dict of str to [int, list]
        By sort (``"renamed"``, ``"skipped"``, ``"shifted"``, ``"warnings"``): how many, and the
        first of them.
    streams : dict of str to dict
        By stream: ``records``, ``samples``, ``bytes``, ``span_ns`` and ``intervals`` (for the
        rate), and, where there is a second clock, ``skews``, ``skew_max_ns`` and ``skew_steps``.
    """

    def __init__(self, words: dict[str, Any] | None = None) -> None:
        words = words or {}
        self.lists: dict[str, list[Any]] = words.get("lists", {})
        self.streams: dict[str, dict[str, Any]] = words.get("streams", {})

    def as_json(self) -> dict[str, Any]:
        return {"lists": self.lists, "streams": self.streams}

    def _append(self, sort: str, entry: list[str]) -> None:
        counted = self.lists.setdefault(sort, [0, []])
        counted[0] += 1
        if len(counted[1]) < KEPT:
            counted[1].append(entry)

    def renamed(self, old: str, new: str) -> None:
        """A name was rewritten."""
        self._append("renamed", [old, new])

    def skipped(self, name: str, why: str) -> None:
        """Something of the input is left out."""
        self._append("skipped", [name, why])

    def shifted(self, name: str, shift_ns: int) -> None:
        """Times of an input are others than it tells, by that much."""
        self._append("shifted", [name, f"by {shift_ns:+} ns"])

    def warn(self, words: str) -> None:
        """Anything else that people should know: one sentence, said once."""
        if [words] not in self.lists.get("warnings", [0, []])[1]:
            self._append("warnings", [words])

    def _stream(self, stream: str) -> dict[str, Any]:
        return self.streams.setdefault(stream, {"records": 0, "samples": 0, "bytes": 0,
                                                "span_ns": 0, "intervals": 0})

    def packed(self, stream: str, records: int, nbytes: int) -> None:
        """A sample of a stream was written."""
        counted = self._stream(stream)
        counted["records"] += records
        counted["samples"] += 1
        counted["bytes"] += nbytes

    def span(self, stream: str, records: int, first_ns: int, last_ns: int) -> None:
        """So many records, one after the other, lie between two times."""
        counted = self._stream(stream)
        counted["span_ns"] += last_ns - first_ns
        counted["intervals"] += records - 1

    def skew(self, stream: str, skew_ns: int) -> None:
        """A record's timestamp differs by that from what a second clock says."""
        counted = self._stream(stream)
        distance = abs(skew_ns)
        counted["skews"] = counted.get("skews", 0) + 1
        counted["skew_max_ns"] = max(counted.get("skew_max_ns", 0), distance)
        step = str(math.ceil(math.log2(distance) * _STEPS)) if distance else ""
        steps = counted.setdefault("skew_steps", {})
        steps[step] = steps.get(step, 0) + 1

    def add(self, other: Notes) -> None:
        """Adds what another counted."""
        for sort, (count, entries) in other.lists.items():
            mine = self.lists.setdefault(sort, [0, []])
            new = [entry for entry in entries if sort != "warnings" or entry not in mine[1]]
            mine[0] += len(new) if sort == "warnings" else count
            mine[1] += new[:KEPT - len(mine[1])]
        for stream, theirs in other.streams.items():
            ours = self._stream(stream)
            for name, value in theirs.items():
                if name == "skew_max_ns":
                    ours[name] = max(ours.get(name, 0), value)
                elif name == "skew_steps":
                    steps = ours.setdefault(name, {})
                    for step, count in value.items():
                        steps[step] = steps.get(step, 0) + count
                else:
                    ours[name] = ours.get(name, 0) + value

    def summary(self) -> dict[str, Any]:
        """For people and programs: the lists, and per stream rate and skew."""
        return {"lists": {sort: {"count": count, "first": entries}
                          for sort, (count, entries) in sorted(self.lists.items())},
                "streams": {name: _stream_summary(counted)
                            for name, counted in sorted(self.streams.items())}}


def _stream_summary(counted: dict[str, Any]) -> dict[str, Any]:
    """Figures of a stream; the 99th percentile of its skew is right to 9 %."""
    made = {name: counted[name] for name in ("records", "samples", "bytes")}
    made["rate_hz"] = (counted["intervals"] / (counted["span_ns"] / 1e9)
                       if counted["span_ns"] else None)
    if counted.get("skews"):
        made["skew_max_ns"] = counted["skew_max_ns"]
        made["skew_p99_ns"] = min(_percentile(counted["skew_steps"], counted["skews"]),
                                  counted["skew_max_ns"])
    return made


def _percentile(steps: dict[str, int], count: int) -> int:
    """An upper bound of 99 % of the skews."""
    seen = 0
    for step in sorted(steps, key=lambda word: -1 if not word else int(word)):
        seen += steps[step]
        if seen * 100 >= count * 99:
            return 0 if not step else math.ceil(2 ** (int(step) / _STEPS))
    return 0
