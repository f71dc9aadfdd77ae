"""Tar files of samples, packed anew: WebDataset shards, and shards of onehop with all they know.

A tar is read by its index: the one beside it, if that fits, else one that the C library makes,
every header checked, in a folder of its own, since nothing is written beside an input. So a damaged
tar is refused and never ends early. Payloads are copied by the C library.
"""
from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from .. import errors
from .._shard_index import Entry, ShardIndex, side_path
from ..shards import FileRange, Sample, index_shard
from .input import PART_BYTES, InputOptions, Item, digest_of, file_digest
from .names import Cleaner
from .notes import Notes

_COMPRESSED = (".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz", ".tar.lz4")


def accepts(path: str, options: InputOptions) -> bool:
    return path.endswith((".tar", *_COMPRESSED)) and not os.path.isdir(path)


def open_input(path: str, options: InputOptions) -> TarInput:
    """Reads or makes the index."""
    if path.endswith(_COMPRESSED):
        raise errors.UnsupportedData(f"{path!r} is compressed: its members have no place of their "
                                     "own", "unpack it to .tar first")
    return TarInput(path, options)


def _fitting(path: str) -> ShardIndex | None:
    """The index beside a tar, if it can be its."""
    side = side_path(path)
    if not os.path.exists(side):
        return None
    try:
        index = ShardIndex(side)
    except (errors.Malformed, errors.UnsupportedData):
        return None
    if index.shard_bytes != os.path.getsize(path):
        return None
    with open(path, "rb") as file:
        file.seek(index.tar_end)
        return index if file.read(1024) == bytes(1024) else None


def _made(path: str, notes: Notes) -> ShardIndex:
    """An index that is made for this packing."""
    with tempfile.TemporaryDirectory(prefix="onehop-pack-") as folder:
        link = os.path.join(folder, os.path.basename(path))
        os.symlink(path, link)
        try:
            info = index_shard(link, checksums=False)
        except errors.OnehopError as error:
            raise type(error)(error.message.replace(link, path), error.remedy.replace(link, path),
                              error.errno) from None
        if info.skipped:
            notes.skipped(path, f"{info.skipped} members that are no files, or have no field")
        return ShardIndex(side_path(link))


@lru_cache(maxsize=1)
def _index_of(path: str) -> ShardIndex:
    return _fitting(path) or _made(path, Notes())


@dataclass
class TarJob:
    """Samples that follow each other; see `input.Job`."""

    log: ClassVar[bool] = False
    path: str
    file_digest: str
    begin: int
    end: int
    nbytes: int

    @property
    def name(self) -> str:
        return f"{self.path}: samples {self.begin} to {self.end - 1}"

    @property
    def digest(self) -> str:
        return digest_of((self.file_digest, self.begin, self.end))

    def items(self, notes: Notes) -> Iterator[Item]:
        cleaner = Cleaner("rewrite", notes)
        for entry in _index_of(self.path).entries(self.begin, self.end):
            yield _sample(self.path, entry, cleaner)


class TarInput:
    """See `input.Input`."""

    kind = "tar"

    def __init__(self, path: str, options: InputOptions) -> None:
        self.path = os.path.abspath(path)
        self.notes = Notes()
        self._file = file_digest(self.path)
        index, cleaner = _fitting(self.path) or _made(self.path, self.notes), Cleaner(
            options.names, self.notes)
        if not index.samples:
            raise errors.UnsupportedData(f"{path!r} holds no samples", "correct the path")
        for field in index.fields:
            if cleaner.path(field) != field:
                self.notes.renamed(f"field {field}", f"field {cleaner.path(field)}")
        self._costs = array("q")
        for entry in index.entries():
            self._costs.append(sum(member.size + PART_BYTES for member in entry.members))
            if cleaner.path(entry.key) != entry.key:
                self.notes.renamed(entry.key, cleaner.path(entry.key))
        self.nbytes = sum(self._costs)

    def jobs(self, limit: int) -> Sequence[TarJob]:
        """See `input.Input`."""
        made: list[TarJob] = []
        for number, size in enumerate(self._costs):
            if not made or made[-1].nbytes + size > limit:
                made.append(TarJob(self.path, self._file, number, number, 0))
            made[-1].end = number + 1
            made[-1].nbytes += size
        return made


def _sample(path: str, entry: Entry, cleaner: Cleaner) -> Sample:
    parts = tuple(member.part._replace(field=cleaner.path(member.part.field),
                                       source=FileRange(path, member.offset, member.size))
                  for member in entry.members)
    return Sample(cleaner.path(entry.key), parts, entry.timestamp_ns, entry.episode, entry.stream,
                  entry.rows)
