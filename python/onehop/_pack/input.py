"""What an input of ``onehop pack`` is: the protocol between those who read and the packer.

An **input** is opened from one path. Opening looks at names, sizes and tables, not at payloads. It
then yields **jobs**: each an independent piece of the output with an estimate of its bytes, which
must not depend on anything but the input's content and the options. Jobs lie one after the other in
the output; the packer groups them into shards, sends them to other processes (a job is pickled) and
asks each for its **items**, once. The same job gives the same items every time.

An item is a `Sample`, or `Rows`: records of a high-rate stream, which the packer joins into chunks.
A job is a **log** or it is not. Items of a log all have an episode, a stream and a timestamp; those
of an episode come together and sorted by timestamp, `Rows` by their first row's; the packer checks
that, and sorts what has one timestamp by stream. An episode's jobs follow each other in time. Items
of other jobs are samples, which stay in the order they come in.

Names that the input makes: key ``record_key(episode, stream, ordinal)``, where the ordinal counts
the stream's records in the episode from 0, over all jobs; field ``stream.ext``; stream and episode
names by `names`, which says what was rewritten.

A kind of input is a module with two functions, whose name is in `KINDS`::

    def accepts(path: str, options: InputOptions) -> bool   # by name and a look at the path
    def open_input(path: str, options: InputOptions) -> Input

Failures are `OnehopError`s that name file, offset or record, the rule and the remedy; an exception
of another package is turned into one by whoever called that package.
"""
from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from .. import errors
from ..shards import FileRange, Part, Sample
from .notes import Notes

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

KINDS = ("manifest", "mcap", "rosbag", "lerobot", "tar", "table", "tree")
"""Modules of this package, asked in this order; the last takes any folder."""

SMALL_RECORD = 4096
"""Records of fewer bytes, all of one type and shape, are kept in chunks unless asked otherwise."""

CHUNK_BYTES = 4 << 20
"""What a chunk of a high-rate stream has, at most, unless asked otherwise."""

PART_BYTES = 1024
"""What a part takes in a shard beside its payload, about."""


class Rows(NamedTuple):
    """Records of a high-rate stream, all of one dtype and shape; about 4 MiB of them at most.
    They are kept in one chunk if they fit.

    Attributes
    ----------
    episode, stream : str
    ordinal : int
        Of the first, among the stream's records in the episode.
    times_ns : ndarray, int64 [T]
        Never falling; T is at least 1.
    values : ndarray [T, ...]
    """

    episode: str
    stream: str
    ordinal: int
    times_ns: NDArray[numpy.int64]
    values: NDArray[Any]


Item: TypeAlias = "Sample | Rows"


class Job(Protocol):
    """A piece of an input that becomes a run of samples in one shard. It can be pickled.

    Attributes
    ----------
    name : str
        For messages: ``"drive-07, records 1000 to 1999"``.
    nbytes : int
        About: of payloads, and `PART_BYTES` for each part.
    log : bool
    digest : str
        Of what the content hangs on: paths, sizes and times of change of its files, or better; see
        `digest_of`. A packing goes on only if all digests are as they were.
    """

    @property
    def name(self) -> str: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def log(self) -> bool: ...

    @property
    def digest(self) -> str: ...

    def items(self, notes: Notes) -> Iterator[Item]:
        """The items, in order. What is worth saying goes to notes; called in another process."""
        ...


class Input(Protocol):
    """An input, opened.

    Attributes
    ----------
    path : str
    kind : str
        ``"folder"``, ``"tar"``, ...: for messages, and part of what a packing remembers.
    nbytes : int
        Of all jobs, about.
    notes : Notes
        What opening found: names that were rewritten, files that are left out.
    """

    @property
    def path(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def notes(self) -> Notes: ...

    def jobs(self, limit: int) -> Sequence[Job]:
        """All jobs, in the order of the output, each of no more than `limit` bytes where the input
        can be cut. A function of content, options and limit."""
        ...


class Share(NamedTuple):
    """What an input has of an episode, for ``--join episode``.

    An input that can be joined has two members more: ``streams``, the names of all its streams, and
    ``by_episode()``, which gives a sequence of these.

    Attributes
    ----------
    episode : str
    jobs : sequence of Job
        Together they hold the episode, in the order of time, and may hold others.
    first_ns, last_ns : int
        Times of its first and last record.
    """

    episode: str
    jobs: Sequence[Job]
    first_ns: int
    last_ns: int


@dataclass(frozen=True)
class InputOptions:
    """What the command line asks of inputs.

    Attributes
    ----------
    manifest : str or None
        A CSV or Parquet file that says what lies in the (one) folder.
    nuscenes : bool
        The folder is of that layout.
    columns, rows : frozenset of str
        Streams that are to be kept in chunks, or one sample per record, whatever their size.
    names : {"rewrite", "refuse"}
        What becomes of names that break the rules.
    chunk_bytes : int
        Of a chunk, at most: `PackOptions` says it.
    prefix : str
        What sample keys of a folder begin with; so that those of several folders differ.
    time : {"header", "log", "publish"}
        Of logs: which time is a record's.
    video : {"encoded", "frames"}
        Of LeRobot datasets: whether video is decoded.
    join : {"episode"} or None
        Inputs become one: `episodes`.
    clock : str
        Of inputs that are joined to the first: ``"episode"``, they tell times by its clock;
        ``"start"``, their clocks are set so that each begins with the episode; or a CSV file that
        says when by their clock each episode begins.
    """

    manifest: str | None = None
    nuscenes: bool = False
    columns: frozenset[str] = frozenset()
    rows: frozenset[str] = frozenset()
    names: str = "rewrite"
    chunk_bytes: int = CHUNK_BYTES
    prefix: str = ""
    time: str = "header"
    video: str = "encoded"
    join: str | None = None
    clock: str = "episode"

    def chunked(self, stream: str, record_bytes: int, uniform: bool) -> bool:
        """Whether a stream is kept in chunks.

        Parameters
        ----------
        stream : str
        record_bytes : int
            Of its largest record.
        uniform : bool
            All its records are of one dtype and shape, which are known.

        Raises
        ------
        InvalidArgument
            It was asked for, and cannot be.
        """
        if stream in self.rows:
            return False
        if stream in self.columns and not uniform:
            raise errors.InvalidArgument(
                f"stream {stream} cannot be kept in chunks: its records are not of one dtype and "
                "shape", f"leave {stream} out of --columns, or give dtype and shape")
        return uniform and (stream in self.columns or record_bytes < SMALL_RECORD)


def record_key(episode: str, stream: str, ordinal: int) -> str:
    """The key of a stream's record, or of a chunk by its first row's ordinal."""
    return f"{episode}/{stream}/{ordinal:09d}"


def digest_of(words: Iterable[object]) -> str:
    """A digest of a sequence of things, by their text; 32 hexadecimal digits."""
    made = hashlib.blake2b(digest_size=16)
    for word in words:
        text = word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogateescape")
        made.update(b"%d:" % len(text))
        made.update(text)
    return made.hexdigest()


def file_digest(path: str) -> str:
    """The digest of a file by path, size and time of change.

    Raises
    ------
    NotFound, Access, IOFailed
    """
    with reading(path):
        found = os.stat(path)
    return digest_of((path, found.st_size, found.st_mtime_ns))


class reading:
    """with reading(path): an OSError within becomes an error of ours that names the path."""

    def __init__(self, path: str, what: str = "") -> None:
        self._path = path
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: object) -> None:
        if not isinstance(error, OSError) or isinstance(error, errors.OnehopError):
            return
        words = f"{self._what}{': ' if self._what else ''}{self._path!r}: {error.strerror or error}"
        made: type[errors.OnehopError] = errors.IOFailed
        if isinstance(error, FileNotFoundError):
            made = errors.NotFound
        elif isinstance(error, PermissionError):
            made = errors.Access
        raise made(words, "correct the path, or see that the file is there and can be read",
                   error.errno) from error


def payload(part: Part) -> Any:
    """The bytes of a part, read if they lie in a file.

    Raises
    ------
    NotFound, Access, IOFailed, FileChanged
    """
    source = part.source
    if not isinstance(source, FileRange):
        return source
    with reading(source.path, "cannot read"), open(source.path, "rb") as file:
        file.seek(source.offset)
        data = file.read(-1 if source.size is None else source.size)
    if source.size is not None and len(data) != source.size:
        raise errors.FileChanged(f"{source.path!r} became shorter while it was packed",
                                 "pack when nothing writes to it")
    return data


def need(module: str, why: str) -> Any:
    """A package that only some inputs need.

    Raises
    ------
    Unsupported
        It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise errors.Unsupported(f"{why} needs the package {name}, which is not installed here",
                                 f"pip install {name}") from error


def open_input(path: str, options: InputOptions) -> Input:
    """Opens an input by the first kind that accepts its path.

    Raises
    ------
    NotFound
        There is nothing by that name.
    UnsupportedData
        No kind takes it.
    """
    with reading(path, "cannot pack"):
        os.stat(path)
    for name in KINDS:
        kind = importlib.import_module(f".{name}", __package__)
        if kind.accepts(path, options):
            opened: Input = kind.open_input(path, options)
            return opened
    raise errors.UnsupportedData(
        f"{path!r} is of no kind that can be packed",
        "give a folder, a .tar, an Arrow or Parquet file, an MCAP, a rosbag2 or a LeRobot dataset")
