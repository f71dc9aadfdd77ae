"""Checksums of payloads of which parts are read.

A payload has one checksum, for all of it. Who reads a few rows of a chunk has it looked at first,
as a whole and once.
"""
from __future__ import annotations

import numpy as np
import numpy.typing as npt

from . import _abi, _library, errors
from ._dataset_source import LACKS, Field, Indices, Source
from ._dataset_table import Fetch, in_pieces

_AT_ONCE = 128 << 20


class Checks:
    """Which payloads of a field have been looked at.

    Parameters
    ----------
    source : Source
        With checksums.
    field : Field
    """

    def __init__(self, source: Source, field: Field) -> None:
        self._source, self._field = source, field
        self._seen = np.zeros(source.count, np.bool_)

    def look(self, samples: Indices) -> None:
        """Reads the payloads of samples that have not been looked at.

        Raises
        ------
        Mismatch
            One is damaged; names shard, key, field and offset.
        """
        new = np.unique(samples)
        new = new[~self._seen[new.astype(np.int64)]]
        if not len(new):
            return
        parts = self._source.parts(self._field, new)
        wanted = np.empty(len(new), np.uint32)
        self._source._fill("dataset_parts", _abi.PartColumns, new, {"crc32c": wanted},
                           (self._field.number,))
        there = (parts.nbytes != np.uint64(LACKS)) & (parts.nbytes != 0)
        ranges = np.stack((parts.shard, parts.offset, parts.nbytes), axis=1)[there]
        found = np.zeros(len(new), np.uint32)
        found[there] = self._sums(ranges)
        wrong = np.flatnonzero((found != wanted) & (parts.nbytes != np.uint64(LACKS)))
        if len(wrong):
            row = int(wrong[0])
            shard = self._source.shard_table[int(parts.shard[row])][0]
            raise errors.Mismatch(
                f"{shard}: sample {self._source.key(int(new[row]))}, field {self._field.name}: the "
                f"{parts.nbytes[row]} bytes at offset {parts.offset[row]} are damaged: their "
                f"CRC-32C is {found[row]:08x}, and {wanted[row]:08x} by the index",
                "get a good copy of the shard")
        self._seen[new.astype(np.int64)] = True

    def _sums(self, ranges: Indices) -> npt.NDArray[np.uint32]:
        """CRC-32C of each range."""
        made = []
        for first, last in in_pieces(ranges[:, 2].astype(np.int64), _AT_ONCE):
            piece = ranges[first:last]
            with Fetch(self._source, piece, "host") as fetch:
                fetch.start()
                fetch.wait()
                base = fetch.buffer.address
                made += [_library.run("crc32c", 0, base + at, count)
                         for at, count in zip(fetch.placed.tolist(), piece[:, 2].tolist())]
            fetch.buffer.close()
        return np.array(made, np.uint32)
