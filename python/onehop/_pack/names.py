"""Names in shards: the key rule of WebDataset, and what is done with names that break its peace.

A member's name is key, dot, field; the key ends at the first dot of the last component. Names keep
to printable ASCII without spaces: DALI's index is split at spaces, and tools differ on the rest.
"""
from __future__ import annotations

import re

from .. import errors
from .notes import Notes

_BAD = re.compile(r"[^!-~]")
_RULE = "names in shards are printable ASCII without spaces"


def split(name: str) -> tuple[str, str] | None:
    """(what the key's last component is, field) of a file's name; None if it has no field."""
    stem, dot, field = name.partition(".")
    return (stem, field) if dot and stem and field else None


class Cleaner:
    """Rewrites names, or refuses to, and says so.

    Parameters
    ----------
    mode : {"rewrite", "refuse"}
    notes : Notes
        Where each rewritten name is put down, once.
    """

    def __init__(self, mode: str, notes: Notes) -> None:
        self._mode = mode
        self._notes = notes
        self._made: dict[str, str] = {}    # streams and episodes, by what and old name
        self._owners: dict[str, str] = {}  # which old name has the new one

    def path(self, name: str) -> str:
        """A path or a component of one, with every bad character as ``_``.

        Raises
        ------
        InvalidArgument
            The name is bad, and names are to be refused.
        """
        if not _BAD.search(name):
            return name
        self._refuse(name, _RULE)
        return _BAD.sub("_", name)

    def stream(self, name: str) -> str:
        """A stream's name: no dot, slash or bad character.

        Raises
        ------
        InvalidArgument
            It is empty; it is bad and names are to be refused; or another became the same.
        """
        return self._word("stream", name, re.sub(r"[./]", "_", _BAD.sub("_", name)),
                          f"names of streams have no dot or slash, and {_RULE}")

    def episode(self, name: str) -> str:
        """An episode's name, which is a path; raises as `stream` does."""
        kept = [word for word in _BAD.sub("_", name).split("/") if word not in ("", ".", "..")]
        return self._word("episode", name, "/".join(kept), _RULE)

    def _word(self, what: str, name: str, made: str, rule: str) -> str:
        known = self._made.get(f"{what} {name}")
        if known is not None:
            return known
        if not made:
            raise errors.InvalidArgument(f"{what} {name!r} is no name", "give it one")
        owner = self._owners.setdefault(f"{what} {made}", name)
        if owner != name:
            raise errors.InvalidArgument(
                f"{what} {name!r} and {what} {owner!r} would both be {made!r} in the shards",
                "rename one")
        if made != name:
            self._refuse(name, rule)
            self._notes.renamed(f"{what} {name}", f"{what} {made}")
        self._made[f"{what} {name}"] = made
        return made

    def _refuse(self, name: str, rule: str) -> None:
        if self._mode == "refuse":
            raise errors.InvalidArgument(f"the name {name!r} breaks a rule: {rule}",
                                         "rename it, or let --names rewrite do so")
