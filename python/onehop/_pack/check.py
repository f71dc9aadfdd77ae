"""A packed shard, read back by those who did not write it: Python's tarfile, then the C library's
verify."""
from __future__ import annotations

import tarfile
from typing import IO

from .. import _abi, _library, errors
from .._shard_index import Member, ShardIndex, side_path
from ..shards import verify_shard
from .join import FIELD as JOINED

_PIECE = 1 << 20


def check_shard(path: str) -> None:
    """Holds what tarfile sees against the index: names, places, sizes, checksums, alignment.

    Raises
    ------
    Mismatch
        The first difference.
    """
    index = ShardIndex(side_path(path))
    with tarfile.open(path, "r:") as archive:
        for entry in index.entries():
            members, first = list(entry.members), True
            while members:
                info = _next_file(archive)
                _require(info is not None, path, index.tar_end, f"is the end, before {entry.key}")
                assert info is not None
                if index.align == _abi.ALIGN_MEMBER or (index.align == _abi.ALIGN_SAMPLE and first):
                    _require(info.offset_data % index.alignment == 0, path, info.offset,
                             f"is not aligned to {index.alignment}")
                first = False
                _check(path, archive, entry.key, info, _taken(info, entry.key, members))
        rest = _next_file(archive)
        _require(rest is None, path, rest.offset if rest else 0, "is not in the index")
    verify_shard(path)


def _taken(info: tarfile.TarInfo, key: str, members: list[Member]) -> list[Member]:
    """Takes the parts that should lie in a member of the archive out of the list."""
    if info.name != f"{key}.{JOINED}" or members[0].part.field == JOINED:
        return [members.pop(0)]
    end = info.offset_data + info.size
    inside = [member for member in members if info.offset_data <= member.offset <= end]
    del members[:len(inside)]
    return inside


def _next_file(archive: tarfile.TarFile) -> tarfile.TarInfo | None:
    while True:
        info = archive.next()
        setattr(archive, "members", [])  # else all are kept
        if info is None or info.isreg():
            return info


def _check(path: str, archive: tarfile.TarFile, key: str, info: tarfile.TarInfo,
           parts: list[Member]) -> None:
    file = archive.extractfile(info)
    assert file is not None  # it is a regular file
    if info.name != f"{key}.{JOINED}":
        member = parts[0]
        name = f"{key}.{member.part.field}"
        same = key + info.name[len(key):].lower()  # the index has fields in small letters
        _require(info.name.startswith(key) and same == name, path, info.offset,
                 f"is {info.name!r}, the index has {name!r}")
        _require((info.offset_data, info.size) == (member.offset, member.size), path, info.offset,
                 f"has {info.size} bytes at {info.offset_data}, the index has {member.size} at "
                 f"{member.offset}")
    _require(bool(parts), path, info.offset, "joins no part of the index")
    for member in parts:
        file.seek(member.offset - info.offset_data)
        _require(_crc(file, member.size) == member.crc32c, path, info.offset,
                 f"has another checksum than the index, in {member.part.field}")


def _crc(file: IO[bytes], size: int) -> int:
    crc = 0
    while data := file.read(min(size, _PIECE)):
        crc = int(_library.run("crc32c", crc, data, len(data)))
        size -= len(data)
    return crc


def _require(fine: bool, path: str, offset: int, what: str) -> None:
    if not fine:
        raise errors.Mismatch(f"{path!r}: the member at {offset} {what}", "pack it again")
