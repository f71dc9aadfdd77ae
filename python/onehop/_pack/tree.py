"""A folder tree of samples, as WebDataset has them: files that share a key are a sample.

The folder is walked once, directory by directory in the order of their names. What is kept of a
file is its name alone, in one string for each directory and job, so that millions of files are a
few hundred megabytes.
"""
from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import ClassVar, NamedTuple

from .. import errors
from ..shards import FileRange, Part, Sample
from .input import PART_BYTES, InputOptions, Item, digest_of, reading
from .names import Cleaner, split
from .notes import Notes


def accepts(path: str, options: InputOptions) -> bool:
    """Any folder."""
    return os.path.isdir(path)


def open_input(path: str, options: InputOptions) -> TreeInput:
    """Walks the folder."""
    opened = TreeInput(path, options)
    if not opened.files:
        shards = any(name.endswith(".tar") for name in os.listdir(path))
        raise errors.UnsupportedData(
            f"the folder {path!r} holds no files of samples, NAME.EXTENSION",
            f"name the tars: {path}/*.tar" if shards else "correct the path")
    return opened


class _Found(NamedTuple):
    """A file of a directory that is a part of a sample."""

    key: str    # last component
    field: str
    name: str
    size: int
    mtime_ns: int


class _Folder(NamedTuple):
    """A directory's files, sorted by key and field, in little memory."""

    folder: str  # relative to the root, "" for itself
    prefix: str  # of its samples' keys, as it will be
    names: str   # joined by slashes
    sizes: array[int]
    mtimes_ns: array[int]

    def samples(self) -> Iterator[tuple[list[str], int, list[int]]]:
        """For each sample: its files' names, what it takes, and their sizes and times of change."""
        rows = zip(self.names.split("/"), self.sizes, self.mtimes_ns)
        for _, group in groupby(rows, key=lambda row: row[0].partition(".")[0]):
            files = list(group)
            yield ([row[0] for row in files], sum(row[1] + PART_BYTES for row in files),
                   [number for row in files for number in row[1:]])


class _Run(NamedTuple):
    """Samples that lie side by side in one directory."""

    folder: str
    prefix: str
    names: str

    def samples(self, root: str, cleaner: Cleaner) -> Iterator[Sample]:
        found = ((*_split(name), name) for name in self.names.split("/"))
        for stem, files in groupby(found, key=lambda file: file[0]):
            parts = tuple(
                Part(cleaner.path(kind), FileRange(os.path.join(root, self.folder, name)))
                for _, kind, name in files)
            yield Sample(self.prefix + cleaner.path(stem), parts)


def _split(name: str) -> tuple[str, str]:
    made = split(name)
    assert made is not None  # others were left out by the walk
    return made


@dataclass
class TreeJob:
    """Some of a tree's samples; see `input.Job`."""

    log: ClassVar[bool] = False
    root: str
    runs: list[_Run] = field(default_factory=list)
    nbytes: int = 0
    digest: str = ""

    @property
    def name(self) -> str:
        first, last = self.runs[0], self.runs[-1]
        return (f"{self.root}: {os.path.join(first.folder, first.names.partition('/')[0])} to "
                f"{os.path.join(last.folder, last.names.rpartition('/')[2])}")

    def items(self, notes: Notes) -> Iterator[Item]:
        cleaner = Cleaner("rewrite", notes)  # names were refused, and reported, by the walk
        for run in self.runs:
            yield from run.samples(self.root, cleaner)


class TreeInput:
    """See `input.Input`."""

    kind = "folder"

    def __init__(self, path: str, options: InputOptions) -> None:
        self.path = os.path.abspath(path)
        self.notes = Notes()
        self.nbytes = 0
        self.files = 0
        self._prefix = options.prefix
        self._cleaner = Cleaner(options.names, self.notes)
        self._folders: list[_Folder] = []
        self._taken: dict[str, str] = {}
        self._walk()

    def _walk(self) -> None:
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            with reading(os.path.join(self.path, folder)):
                found, below = self._list(folder)
            waiting += [os.path.join(folder, name) for name in sorted(below, reverse=True)]
            if found:
                self._check(folder, found)
                self._folders.append(_Folder(
                    folder, self._key_prefix(folder), "/".join(file.name for file in found),
                    array("q", (file.size for file in found)),
                    array("q", (file.mtime_ns for file in found))))

    def _list(self, folder: str) -> tuple[list[_Found], list[str]]:
        found, below = [], []
        with os.scandir(os.path.join(self.path, folder)) as entries:
            for entry in entries:
                why = _why_not(entry)
                if why is None and entry.is_dir(follow_symlinks=False):
                    below.append(entry.name)
                elif why is None:
                    seen = entry.stat()
                    found.append(_Found(*_split(entry.name), entry.name, seen.st_size,
                                        seen.st_mtime_ns))
                else:
                    self.notes.skipped(os.path.join(folder, entry.name), why)
        return sorted(found), below

    def _key_prefix(self, folder: str) -> str:
        """What the keys of a directory's samples begin with."""
        if not folder:
            return self._prefix
        made = self._cleaner.path(folder)
        owner = self._taken.setdefault(made, folder)
        if owner != folder:
            raise errors.InvalidArgument(
                f"the folders {folder!r} and {owner!r} of {self.path!r} would both be {made!r} in "
                "the shards", "rename one")
        return f"{self._prefix}{made}/"

    def _check(self, folder: str, found: list[_Found]) -> None:
        """Looks at what the files' names become, and counts them."""
        keys: dict[str, str] = {}
        fields: dict[tuple[str, str], str] = {}
        for file in found:
            key, kind = self._cleaner.path(file.key), self._cleaner.path(file.field)
            if keys.setdefault(key, file.key) != file.key:
                self._collide(folder, f"keys {file.key!r} and {keys[key]!r}", key)
            other = fields.setdefault((key, kind.lower()), file.name)
            if other != file.name:
                self._collide(folder, f"files {file.name!r} and {other!r}",
                              f"field {kind.lower()} of one sample to WebDataset")
            self._say(folder, file, key, kind)
            self.nbytes += file.size + PART_BYTES
        self.files += len(found)

    def _say(self, folder: str, file: _Found, key: str, kind: str) -> None:
        if (key, kind) != (file.key, file.field) or not folder.isascii() or " " in folder:
            self.notes.renamed(os.path.join(folder, file.name),
                               f"{self._cleaner.path(folder)}{'/' if folder else ''}{key}.{kind}")
        if kind[0].isdigit() and "." in kind:
            self.notes.warn(f"fields such as {kind} (of {os.path.join(folder, file.name)}) begin "
                            "with a digit: a dot in a file's name ended the key, so files that "
                            "were meant to be samples of their own may be parts of one")

    def _collide(self, folder: str, which: str, what: str) -> None:
        raise errors.InvalidArgument(
            f"in {os.path.join(self.path, folder)!r} the {which} would both be {what!r}",
            "rename one")

    def jobs(self, limit: int) -> Sequence[TreeJob]:
        """See `input.Input`."""
        made: list[TreeJob] = []
        for folder in self._folders:
            names: list[str] = []
            facts = array("q")
            for files, size, numbers in folder.samples():
                if not made or made[-1].nbytes + size > limit:
                    _close(made, folder, names, facts)
                    names, facts = [], array("q")
                    made.append(TreeJob(self.path))
                names += files
                facts.extend(numbers)
                made[-1].nbytes += size
            _close(made, folder, names, facts)
        return made


def _close(made: list[TreeJob], folder: _Folder, names: list[str], facts: array[int]) -> None:
    """Puts what was gathered of a folder into the last job."""
    if names:
        job, joined = made[-1], "/".join(names)
        job.runs.append(_Run(folder.folder, folder.prefix, joined))
        job.digest = digest_of((job.digest, folder.folder, joined, facts.tobytes()))


def _why_not(entry: os.DirEntry[str]) -> str | None:
    """Why an entry is left out; None for a directory to walk and a file to pack."""
    name = entry.name
    if name.startswith("."):
        return "hidden"
    if entry.is_symlink() and not entry.is_file():
        return "a link to a folder, or to nothing"
    if name.startswith("__") and name.endswith("__"):
        return "names such as __this__ are not read by WebDataset"
    if entry.is_dir(follow_symlinks=False):
        return None
    if not entry.is_file():
        return "no regular file"
    if split(name) is None:
        return "no extension, so no field"
    return None
