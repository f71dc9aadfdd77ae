"""Words between the ranks of one machine, beside their process group.

Each rank has a Unix socket to each other one. Who is ready, who has ended and with which error goes
that way, since a collective says nothing until all take part in it; and a process that dies closes
its sockets, so that the others know at once.
"""
from __future__ import annotations

import hashlib
import json
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import errors

TURN_S = 0.05
"""How long a wait lasts before Python looks for signals."""

_CARD = struct.Struct("=16s8s16s")  # the machine, the socket's name, what a caller has to know
_HELLO = struct.Struct("=16sI")
_CONNECT_S = 8.0
_MOST_CALLS = 4096
_MOST_WORDS = 2000

FINE, STOPPED, TROUBLE, FAILED = range(4)
"""How a rank ended: well; because another one did not; since the process group failed, which the
death of another one may have caused; by an error of its own."""


class Ending(NamedTuple):
    """How a rank's part ended.

    Attributes
    ----------
    issued : int
        Collectives that it has given to the process group.
    grade : int
        `FINE`, `STOPPED`, `TROUBLE` or `FAILED`.
    words : str
        The error.
    """

    issued: int
    grade: int = FINE
    words: str = ""


class _Peer:
    """Another rank, and what it has said."""

    def __init__(self, connection: socket.socket | None) -> None:
        self.connection = connection
        self.ready: str | None = None
        self.ending: Ending | None = None
        self.is_gone = connection is None
        self._rest = b""

    def read(self) -> None:
        """Takes what has come."""
        assert self.connection is not None
        try:
            data = self.connection.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.is_gone = True
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            word = json.loads(line)
            if "ready" in word:
                self.ready = word["ready"]
            else:
                self.ending = Ending(*word["ended"])

    def write(self, line: bytes) -> None:
        """Lines are short: each fits the socket's buffer, or the peer is gone; `read` sees that."""
        if self.connection is None:
            return
        try:
            self.connection.send(line, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except OSError:
            pass


def _machine() -> bytes:
    """Equal where processes reach each other's sockets: one kernel, one network namespace."""
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        kernel = file.read()
    space = os.stat("/proc/self/ns/net")
    return hashlib.sha256(kernel + b"%d %d" % (space.st_dev, space.st_ino)).digest()[:16]


class Peers:
    """The other ranks. For one thread.

    Hand `card` to all ranks and `connect` with theirs; `close` at the end.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._peers: dict[int, _Peer] = {}
        self._by_descriptor: dict[int, _Peer] = {}
        self._poll = select.poll()
        self._secret = secrets.token_bytes(16)
        name = secrets.token_bytes(8)
        self.card = _CARD.pack(_machine(), name, self._secret)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(_address(name))
        self._listener.listen(_MOST_CALLS)
        self._listener.settimeout(TURN_S)

    def connect(self, cards: Sequence[bytes]) -> None:
        """Connects with all ranks, whose cards these are in the order of ranks.

        One that does not answer is gone.

        Raises
        ------
        InvalidArgument
            They are on several machines; every rank raises it.
        """
        known = [_CARD.unpack(card) for card in cards]
        elsewhere = [rank for rank, card in enumerate(known) if card[0] != known[0][0]]
        if elsewhere:
            raise errors.InvalidArgument(
                f"the process group spans machines or network namespaces: rank {elsewhere[0]} is "
                "not with rank 0", "give a group of the ranks of one node, as "
                "torch.distributed.new_subgroups() makes them")
        for rank in range(self.rank):
            self._add(rank, self._call(*known[rank][1:]))
        deadline = time.monotonic() + _CONNECT_S
        while len(self._peers) < len(known) - 1 and time.monotonic() < deadline:
            self._answer()
        for rank in set(range(len(known))) - set(self._peers) - {self.rank}:
            self._add(rank, None)
        self._listener.close()

    def _call(self, name: bytes, secret: bytes) -> socket.socket | None:
        """Connects with a lower rank, which listens as long as it lives; None if it does not."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(_address(name))
            connection.send(_HELLO.pack(secret, self.rank), socket.MSG_NOSIGNAL)
        except OSError:
            connection.close()
            return None
        return connection

    def _answer(self) -> None:
        """Lets a higher rank connect, if one wants to within a turn."""
        try:
            connection, _ = self._listener.accept()
        except TimeoutError:
            return
        connection.settimeout(_CONNECT_S)
        try:
            secret, rank = _HELLO.unpack(connection.recv(_HELLO.size, socket.MSG_WAITALL))
        except (OSError, struct.error):
            secret, rank = b"", 0
        if secrets.compare_digest(secret, self._secret) and rank > self.rank:
            self._add(rank, connection)
        else:
            connection.close()

    def _add(self, rank: int, connection: socket.socket | None) -> None:
        peer = self._peers[rank] = _Peer(connection)
        if connection is not None:
            self._by_descriptor[connection.fileno()] = peer
            self._poll.register(connection, select.POLLIN)

    def close(self) -> None:
        """Hangs up. To ranks that have not heard an `Ending` this one is gone."""
        self._listener.close()
        for peer in self._peers.values():
            if peer.connection is not None:
                peer.connection.close()
        self._by_descriptor.clear()

    def say_ready(self, digest: str) -> None:
        """Tells all what this rank is ready to load."""
        self._say({"ready": digest})

    def say_ended(self, ending: Ending) -> None:
        """Tells all how this rank ended."""
        self._say({"ended": [*ending[:2], ending.words[:_MOST_WORDS]]})

    def _say(self, word: dict[str, Any]) -> None:
        line = json.dumps(word).encode() + b"\n"
        for peer in self._peers.values():
            peer.write(line)

    def listen(self, seconds: float) -> None:
        """Takes what others say; waits so long for a first word."""
        for descriptor, _ in self._poll.poll(seconds * 1e3):
            peer = self._by_descriptor[descriptor]
            peer.read()
            if peer.is_gone:
                self._poll.unregister(descriptor)

    def ready(self) -> dict[int, str]:
        """What ranks are ready to load, as far as they have said so."""
        return {rank: peer.ready for rank, peer in self._peers.items() if peer.ready is not None}

    def endings(self) -> dict[int, Ending]:
        """How ranks ended, as far as they have."""
        return {rank: peer.ending for rank, peer in self._peers.items() if peer.ending is not None}

    def gone(self) -> list[int]:
        """Ranks that hung up without a word."""
        return [rank for rank, peer in self._peers.items() if peer.is_gone and peer.ending is None]

    @property
    def have_trouble(self) -> bool:
        """Whether a rank ended other than well."""
        return bool(self.gone()) or any(e.grade != FINE for e in self.endings().values())

    @property
    def have_ended(self) -> bool:
        """Whether nothing more can come of any rank."""
        return all(peer.ending is not None or peer.is_gone for peer in self._peers.values())


def _address(name: bytes) -> str:
    """Of a Unix socket, without a file."""
    return "\0onehop-" + name.hex()
