"""``--join-small``: small parts of a sample share one member, not a header each.

They lie one after the other in ``KEY.joined.bin``, each from a multiple of 64. The index has them
by their own fields; other tools see the one member.
"""
from __future__ import annotations

from .. import errors
from ..shards import FileRange, Part, Sample
from .input import payload
from .notes import Notes

FIELD = "joined.bin"
_ALIGNMENT = 64


def join_small(sample: Sample, below: int, notes: Notes) -> Sample:
    """The sample with its parts of fewer than `below` bytes joined, if there are two or more.

    Raises
    ------
    InvalidArgument
        It has a field by the name that joined parts have.
    """
    if any(part.field.lower() == FIELD for part in sample.parts):
        raise errors.InvalidArgument(f"sample {sample.key} has a field {FIELD}, which is what "
                                     "joined parts are called", "rename it, or do not join")
    small = [part for part in sample.parts if part.nbytes() < below]
    if len(small) < 2:
        return sample
    blob, places = bytearray(), []
    for part in small:
        blob += bytes(-len(blob) % _ALIGNMENT)
        data = payload(part)
        places.append(part._replace(source=FileRange("", len(blob), len(data)), joined=True))
        blob += data
        notes.warn(f"field {part.field} lies in {FIELD} where it is small: tools other than "
                   "onehop do not see it there")
    others = [part for part in sample.parts if part not in small]
    return sample._replace(parts=(*others, Part(FIELD, bytes(blob)), *places))
