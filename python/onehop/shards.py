"""Writing shards: samples into tar files that every tar reader reads, each with its index.

    with onehop.ShardWriter("out/drive-%06d.tar", maxsize=16 << 30) as writer:
        for number, (image, points) in enumerate(frames):
            writer.write({"__key__": f"{number:09d}", "cam.jpg": image, "lidar.npy": points,
                          "meta.json": {"weather": "rain"}, "cls": 3})

``docs/format.md`` says what is written. A shard is published by its last step: until then, and
after any failure, there is nothing by its name.
"""
from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from ctypes import byref
from dataclasses import dataclass
from struct import Struct
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from . import _abi, _library, errors
from ._shard_parts import MAX_RANK, FileRange, Part, Sample
from ._shard_parts import dtype_name as dtype_name
from ._shard_parts import make_part as make_part
from ._shard_parts import npy_part as npy_part
from ._shard_parts import rows_sample as rows_sample

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

__all__ = ["FileRange", "Part", "Sample", "ShardInfo", "ShardWriter", "index_shard",
           "verify_shard"]

ALIGN = {"none": _abi.ALIGN_NONE, "member": _abi.ALIGN_MEMBER, "sample": _abi.ALIGN_SAMPLE}
PAD = {"gnu": _abi.PAD_GNU, "pax": _abi.PAD_PAX, "dir": _abi.PAD_DIR}

_PART = Struct(_abi.FORMATS["onehop_part_source"])
_SAMPLE = Struct(_abi.FORMATS["onehop_sample_source"])
_NO_DIMS = (0,) * MAX_RANK
_TO_END = 2 ** 64 - 1
_INT64 = range(-2 ** 63 + 1, 2 ** 63)


@dataclass(frozen=True)
class ShardInfo:
    """What a shard holds.

    Attributes
    ----------
    samples, members : int
    payload_bytes, shard_bytes, index_bytes : int
        Of payloads alone, of the shard's file and of its index.
    skipped : int
        Members that are no regular files or have no field; of `index_shard` only.
    has_trailer : bool
        The index lies in the shard, too.
    """

    samples: int
    members: int
    payload_bytes: int
    shard_bytes: int
    index_bytes: int
    skipped: int
    has_trailer: bool


def _info(struct: _abi.ShardInfo) -> ShardInfo:
    return ShardInfo(struct.samples, struct.members, struct.payload_bytes, struct.shard_bytes,
                     struct.index_bytes, struct.skipped, bool(struct.has_trailer))


def index_shard(path: str | os.PathLike[str], *, checksums: bool = True,
                replace: bool = False) -> ShardInfo:
    """Makes the index of a tar that others wrote, beside it; the tar is not changed.

    Parameters
    ----------
    path : path
        The tar; its index will be ``path`` + ``.onehop``.
    checksums : bool
        Payloads are read once for the checksums that ``verify="sample"`` needs.
    replace : bool
        An index that is there is made anew even if it fits.

    Raises
    ------
    Malformed
        The archive is damaged, cut or concatenated; the message names offset and rule.
    UnsupportedData
        It is compressed, or has sparse members.
    NotFound, Access, IOFailed
    """
    info = _library.sized(_abi.ShardInfo)
    _library.call("shard_index", _library.path_bytes(path), int(checksums), int(replace),
                  byref(info))
    return _info(info)


def verify_shard(path: str | os.PathLike[str]) -> ShardInfo:
    """Reads a shard from end to end and holds it against its index.

    Raises
    ------
    Mismatch, Malformed
        The first difference: of members, offsets, sizes, alignment, types or checksums.
    NotFound, Access, IOFailed
    """
    info = _library.sized(_abi.ShardInfo)
    _library.call("shard_verify", _library.path_bytes(path), byref(info))
    return _info(info)


# ---- one shard ----------------------------------------------------------------------------------


class _Texts:
    """NUL-ended copies of names that come again and again, and their addresses."""

    def __init__(self) -> None:
        self._kept: dict[str | None, tuple[bytes, int]] = {None: (b"", 0)}

    def address(self, text: str | None) -> int:
        found = self._kept.get(text)
        if found is None:
            assert text is not None
            encoded = text.encode("utf-8", "surrogateescape")
            found = self._kept[text] = (encoded, _bytes_address(encoded))
        return found[1]


def _bytes_address(data: bytes) -> int:
    """Where a bytes object's bytes lie, as long as it lives; a NUL follows them."""
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0


def _where(source: Any) -> tuple[Any, int, int]:
    """(what keeps it alive, address, bytes) of anything with the buffer protocol."""
    if not isinstance(source, bytes):
        view = memoryview(source)
        if view.contiguous and not view.readonly and view.nbytes:
            held = (ctypes.c_char * view.nbytes).from_buffer(view.cast("B"))
            return held, ctypes.addressof(held), view.nbytes
        source = view.tobytes()
    return source, _bytes_address(source), len(source)


def _no_nul(text: str, what: str) -> str:
    if "\0" in text:
        raise errors.InvalidArgument(f"{what} {text!r} holds a NUL", "take it out")
    return text


class TarShard(_library.Handle):
    """One shard, being written: the C library's writer, of which this is a thin handle.

    Parameters
    ----------
    path : path
        Of the shard to be.
    align, pad, alignment, mtime
        As of `ShardWriter`.
    """

    _end = "shard_writer_destroy"

    def __init__(self, path: str | os.PathLike[str], align: str = "sample", pad: str = "gnu",
                 alignment: int = 4096, mtime: int = 0) -> None:
        super().__init__()
        options = _abi.ShardOptions()
        _library.run("shard_options_init", byref(options))
        options.align, options.pad = _choice(align, ALIGN, "align"), _choice(pad, PAD, "pad")
        if not 0 <= alignment < 2 ** 32:
            raise errors.InvalidArgument(f"alignment is {alignment}",
                                         "it is a power of two from 512 to 2097152")
        options.alignment_bytes, options.mtime = alignment, mtime
        self._texts = _Texts()
        self._room: Any = (_abi.PartSource * 0)()
        _library.call("shard_writer_create", _library.path_bytes(path), byref(options),
                      byref(self.handle))

    def add(self, sample: Sample) -> None:
        """Adds a sample.

        Raises
        ------
        InvalidArgument
            A name breaks the key rule, comes twice, or a member has 8 GiB or more.
        NotFound, Access, FileChanged, IOFailed
        """
        parts = sample.parts
        if len(parts) > len(self._room):
            self._room = (_abi.PartSource * len(parts))()
        kept = [self._pack(index, part) for index, part in enumerate(parts)]
        key = _no_nul(sample.key, "the key").encode("utf-8", "surrogateescape")
        head = _abi.SampleSource.from_buffer_copy(_SAMPLE.pack(
            _SAMPLE.size, sample.rows, _bytes_address(key), self._texts.address(sample.episode),
            self._texts.address(sample.stream), _time(sample.timestamp_ns)))
        _library.call("shard_writer_add", self.handle, byref(head), self._room, len(parts))
        del kept

    def _pack(self, index: int, part: Part) -> Any:
        """Fills the struct of a part; what is returned must live until the call is over."""
        source, path, offset = part.source, 0, 0
        if type(source) is FileRange:
            held: Any = _library.path_bytes(source.path)
            path, offset, address = _bytes_address(held), source.offset, 0
            if part.joined:
                path = 0
            nbytes = _TO_END if source.size is None else source.size
        else:
            held, address, nbytes = _where(source)
        rank = len(part.shape)
        dims = part.shape + _NO_DIMS[rank:] if rank else _NO_DIMS
        if rank > MAX_RANK:
            raise errors.InvalidArgument(f"field {part.field} has {rank} dimensions",
                                         "an array has at most 8")
        _PART.pack_into(
            self._room, index * _PART.size, _PART.size, rank,
            self._texts.address(_no_nul(part.field, "the field")), address, path, offset, nbytes,
            self._texts.address(part.dtype), *dims, part.data_offset, _time(part.timestamp_ns),
            part.joined, 0)
        return held

    def info(self) -> ShardInfo:
        """What it holds so far."""
        info = _library.sized(_abi.ShardInfo)
        _library.ask("shard_writer_query", self.handle, byref(info))
        return _info(info)

    def finish(self) -> ShardInfo:
        """Ends the shard and publishes it with its index; then only `close` is left.

        Raises
        ------
        IOFailed
            Of a full disk, too; nothing is published.
        """
        info = _library.sized(_abi.ShardInfo)
        _library.call("shard_writer_finish", self.handle, byref(info))
        return _info(info)


def _time(timestamp_ns: int | None) -> int:
    if timestamp_ns is None:
        return _abi.NO_TIME
    if timestamp_ns not in _INT64:
        raise errors.InvalidArgument(f"the timestamp {timestamp_ns} is out of range",
                                     "nanoseconds fit 64 bits with sign")
    return int(timestamp_ns)


def _choice(value: str, known: Mapping[str, int], what: str) -> int:
    if value not in known:
        raise errors.InvalidArgument(f"{what} is {value!r}", f"it is one of {', '.join(known)}")
    return known[value]


# ---- several ------------------------------------------------------------------------------------


SampleDict: TypeAlias = "Mapping[str, Any]"


class ShardWriter:
    """Writes samples into one shard, or into several of limited size.

    Parameters
    ----------
    path : path
        ``"one.tar"``; with a ``%06d`` or the like in it as many shards as the limits cut.
    align : {"sample", "member", "none"}
        What begins on a multiple of `alignment`: each sample's first payload, each payload, or
        nothing (tar's 512).
    pad : {"gnu", "pax", "dir"}
        What fills the gaps: see ``docs/guide/sensors.md``.
    alignment : int
        Bytes; a power of two from 512 to 2 MiB.
    mtime : int
        Of all members, in seconds; 0 so that equal samples make equal shards.
    maxcount, maxsize : int or None
        A new shard is begun when the present one has so many samples, or bytes. Only with a
        pattern; then the default is 100,000 samples and 3 GB, as webdataset has it.
    start_shard : int
        The first shard's number.

    Attributes
    ----------
    finished : list of (str, ShardInfo)
        The shards that are published.

    Notes
    -----
    At the end of a ``with`` block the last shard is finished; if the block is left by an exception,
    it is removed. One thread at a time.

    Raises
    ------
    InvalidArgument
        Of options that do not exist or limits without a pattern.
    NotFound, Access, IOFailed
    """

    def __init__(self, path: str | os.PathLike[str], *, align: str = "sample", pad: str = "gnu",
                 alignment: int = 4096, mtime: int = 0, maxcount: int | None = None,
                 maxsize: int | None = None, start_shard: int = 0) -> None:
        self._path = os.fspath(path)
        self._several = "%" in os.path.basename(self._path)
        if not self._several and (maxcount is not None or maxsize is not None):
            raise errors.InvalidArgument(
                f"{self._path!r} names one shard, and a limit was given",
                'name several by a pattern, "name-%06d.tar"')
        for name, limit in (("maxcount", maxcount), ("maxsize", maxsize)):
            if limit is not None and limit < 1:
                raise errors.InvalidArgument(f"{name} is {limit}", "it is at least 1")
        self._maxcount = 100_000 if maxcount is None and maxsize is None else maxcount
        self._maxsize = 3_000_000_000 if maxcount is None and maxsize is None else maxsize
        self._options = (align, pad, alignment, mtime)
        self._number = start_shard
        self._shard: TarShard | None = None
        self._count = 0
        self.finished: list[tuple[str, ShardInfo]] = []
        self._closed = False
        self._shard = self._begin()

    def _name(self) -> str:
        if not self._several:
            return self._path
        try:
            return self._path % self._number
        except (TypeError, ValueError) as error:
            raise errors.InvalidArgument(f"{self._path!r} is no pattern for one number: {error}",
                                         'write "name-%06d.tar", and %% for a percent sign'
                                         ) from error

    def _begin(self) -> TarShard:
        self._current = self._name()
        self._count = 0
        return TarShard(self._current, *self._options)

    def _finish(self) -> None:
        shard, self._shard = self._shard, None
        if shard is not None:
            with shard:
                self.finished.append((self._current, shard.finish()))
            self._number += 1

    def _ready(self) -> TarShard:
        """The shard that the next sample goes into."""
        if self._closed:
            raise errors.InvalidArgument("the writer is closed", "make another")
        if self._shard is not None and self._several and self._count and (
                (self._maxcount is not None and self._count >= self._maxcount)
                or (self._maxsize is not None
                    and self._shard.info().shard_bytes >= self._maxsize)):
            self._finish()
        if self._shard is None:
            self._shard = self._begin()
        return self._shard

    def write(self, sample: SampleDict, *, timestamp_ns: int | None = None,
              episode: str | None = None, stream: str | None = None,
              part_times_ns: Mapping[str, int] | None = None) -> None:
        """Writes a sample.

        Parameters
        ----------
        sample : mapping
            ``__key__`` and, by field, what `make_part` takes: bytes, a `FileRange` or path, an
            array for ``.npy``, a str for ``.txt``, an int for ``.cls``, anything for ``.json``.
            Other names that begin with two underscores are left out, as webdataset does.
        timestamp_ns : int or None
        episode, stream : str or None
        part_times_ns : mapping of str to int or None
            Timestamps of single fields.

        Raises
        ------
        InvalidArgument
            The key or a field breaks the rule, or a value does not go with its extension.
        NotFound, Access, FileChanged, IOFailed
        """
        key = sample.get("__key__")
        if not isinstance(key, str):
            raise errors.InvalidArgument("the sample has no __key__ that is a str",
                                         'give one: {"__key__": "a/0001", ...}')
        times = part_times_ns or {}
        parts = tuple(make_part(field, value, times.get(field))
                      for field, value in sample.items() if not field.startswith("__"))
        self.add(Sample(key, parts, timestamp_ns, episode, stream))

    def write_rows(self, key: str, stream: str, times_ns: NDArray[numpy.int64],
                   values: NDArray[Any], *, episode: str | None = None) -> None:
        """Writes records of a high-rate stream as one chunk.

        Parameters
        ----------
        key : str
        stream : str
            Its name, without dots; the fields are ``stream.npy`` and ``stream.time.npy``.
        times_ns : ndarray, int64 [T]
            Never falling; the first is the sample's timestamp.
        values : ndarray [T, ...]
        episode : str or None

        Raises
        ------
        InvalidArgument
        IOFailed
        """
        import numpy

        self.add(rows_sample(key, episode, stream, times_ns, numpy.asarray(values)))

    def add(self, sample: Sample) -> None:
        """Writes a `Sample` whose parts are made already."""
        self._ready().add(sample)
        self._count += 1

    def close(self) -> None:
        """Finishes the shard. Again is no error."""
        if not self._closed:
            self._closed = True
            self._finish()

    def discard(self) -> None:
        """Removes the shard that is being written; those that are finished stay."""
        self._closed = True
        shard, self._shard = self._shard, None
        if shard is not None:
            shard.close()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()
