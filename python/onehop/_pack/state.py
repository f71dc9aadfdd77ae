"""What a packing remembers in its folder, so that it can go on after it was killed.

One file, ``.onehop-pack``: a line of JSON that names inputs, options and the digest of each shard's
content, then a line for each shard that is published. Lines are only ever appended; one that is cut
is as if it were not there, and its shard is made once more. The file is locked while it is packed,
by all processes that pack.
"""
from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping
from typing import Any

from .. import errors
from .input import reading

NAME = ".onehop-pack"
_VERSION = 1
_PATIENCE_S = 2.0


def head(options: Mapping[str, Any], inputs: list[dict[str, Any]], shards: list[dict[str, Any]]
         ) -> dict[str, Any]:
    """What names a packing.

    Parameters
    ----------
    options : mapping
        All that shards depend on.
    inputs : list of dict
        ``path``, ``kind``, ``nbytes`` and ``digest`` of each.
    shards : list of dict
        ``path``, ``digest`` and ``first`` (the name of its first job) of each.
    """
    return {"version": _VERSION, "options": dict(options), "inputs": inputs, "shards": shards}


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """The first difference between two packings, as a clause; None if they are one."""
    if old.get("version") != new["version"]:
        return f"it was begun by another version ({old.get('version')})"
    for name, value in new["options"].items():
        before = old["options"].get(name)
        if before != value:
            return f"its {name} was {before!r} and is {value!r} now"
    paths = [[row["path"] for row in one["inputs"]] for one in (old, new)]
    if paths[0] != paths[1]:
        return f"its inputs were {', '.join(paths[0])} and are {', '.join(paths[1])} now"
    for before, now in zip(old["inputs"], new["inputs"]):
        if before != now:
            return f"{now['path']!r} has changed: {_change(old, new, before, now)}"
    return None


def _change(old: Mapping[str, Any], new: Mapping[str, Any], before: Mapping[str, Any],
            now: Mapping[str, Any]) -> str:
    if before["nbytes"] != now["nbytes"]:
        return f"it was about {before['nbytes']} bytes and is {now['nbytes']} now"
    for then, here in zip(old["shards"], new["shards"]):
        if then != here:
            return f"the first difference is in {here['first']}"
    return "its content is another"


def _lock(fd: int) -> None:
    """Locks a file; those of a packing that was killed may need a moment to be gone."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
        except OSError:
            return  # a file system without locks


class State:
    """The file, locked.

    Parameters
    ----------
    folder : str
        Where the shards go.

    Attributes
    ----------
    fd : int
        Of the lock; processes that inherit it keep the folder locked.
    head : dict or None
        Of the packing that was begun here.
    finished : dict of int to dict
        What was written down of each shard that was published.

    Raises
    ------
    Busy
        Another process packs there.
    """

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, NAME)
        with reading(self._path, "cannot write"):
            self.fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock(self.fd)
        except BlockingIOError:
            os.close(self.fd)
            raise errors.Busy(f"another process packs into {folder!r}",
                              "wait for it, or give another folder") from None
        self.head: dict[str, Any] | None = None
        self.finished: dict[int, dict[str, Any]] = {}
        self._whole = True
        self._read()

    def _read(self) -> None:
        with open(self._path, "rb") as file:
            for line in file:
                try:
                    row = json.loads(line)
                except ValueError:
                    row = None
                if not line.endswith(b"\n") or not isinstance(row, dict):
                    self._whole = False  # whatever follows is appended to a line of its own
                elif self.head is None:
                    self.head = row
                elif isinstance(row.get("shard"), int):
                    self.finished[row["shard"]] = row
        if self.head is not None and not {"options", "inputs", "shards"} <= self.head.keys():
            self.head = None

    def begin(self, new: Mapping[str, Any]) -> None:
        """Forgets what was there and writes down a packing."""
        os.ftruncate(self.fd, 0)
        self.head, self.finished, self._whole = dict(new), {}, True
        self._append(new)

    def publish(self, number: int, row: Mapping[str, Any]) -> None:
        """Writes down that a shard is published."""
        made = {"shard": number, **row}
        self._append(made)
        self.finished[number] = made

    def _append(self, row: Mapping[str, Any]) -> None:
        line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
        if not self._whole:
            line, self._whole = b"\n" + line, True
        os.lseek(self.fd, 0, os.SEEK_END)
        while line:
            line = line[os.write(self.fd, line):]

    def close(self) -> None:
        """Unlocks. Again is no error."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def remove_if_empty(self) -> None:
        """Removes the file if nothing was begun."""
        if self.head is None and os.path.getsize(self._path) == 0:
            os.unlink(self._path)
