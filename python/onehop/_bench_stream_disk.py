"""Files out of the page cache, and plain reads of them, for `onehop bench stream --cold`."""
from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import NamedTuple

import numpy as np

PIECE = 4 << 20
"""Bytes of a plain read."""

_PROT_NONE, _MAP_SHARED, _FAILED = 0, 1, 2 ** 64 - 1


class Way(NamedTuple):
    """How a disk is read plainly.

    Attributes
    ----------
    threads : int
    is_direct : bool
        By O_DIRECT.
    """

    threads: int
    is_direct: bool

    @property
    def label(self) -> str:
        return f"{'O_DIRECT' if self.is_direct else 'buffered'}, {self.threads} x 4 MiB"


WAYS = (Way(1, True), Way(4, True), Way(16, True), Way(4, False))


@contextmanager
def _opened(path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def resident(path: str) -> int:
    """Bytes of a file's pages that are in the page cache, by mincore of a map that nothing can
    touch."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_size_t
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                          ctypes.c_int, ctypes.c_long]
    libc.mincore.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_char_p]
    libc.munmap.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    with _opened(path) as descriptor:
        nbytes = os.fstat(descriptor).st_size
        if not nbytes:
            return 0
        pages = -(-nbytes // mmap.PAGESIZE)
        at = libc.mmap(None, nbytes, _PROT_NONE, _MAP_SHARED, descriptor, 0)
    if at == _FAILED:
        raise OSError(ctypes.get_errno(), f"mmap of {path}: {os.strerror(ctypes.get_errno())}")
    states = ctypes.create_string_buffer(pages)
    failed = libc.mincore(at, nbytes, states)
    number = ctypes.get_errno()
    libc.munmap(at, nbytes)
    if failed:
        raise OSError(number, f"mincore of {path}: {os.strerror(number)}")
    return int((np.frombuffer(states.raw, np.uint8, pages) & 1).sum()) * mmap.PAGESIZE


def drop(paths: Sequence[str]) -> int:
    """Takes files out of the page cache, which are on the disk already.

    Returns
    -------
    int
        Bytes that stayed there.
    """
    for path in paths:
        with _opened(path) as descriptor:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return sum(map(resident, paths))


def settle(paths: Sequence[str]) -> None:
    """Puts files on the disk, since pages that are still to be written cannot be dropped."""
    for path in paths:
        with _opened(path) as descriptor:
            os.fsync(descriptor)


def read(paths: Sequence[str], way: Way) -> float:
    """Seconds that reading the files takes, each thread the next 4 MiB."""
    flags = os.O_RDONLY | (os.O_DIRECT if way.is_direct else 0)
    descriptors = [os.open(path, flags) for path in paths]
    pieces = iter([(descriptor, offset) for descriptor in descriptors
                   for offset in range(0, os.fstat(descriptor).st_size, PIECE)])

    def work(_: int) -> None:
        with mmap.mmap(-1, PIECE) as memory:
            memory[:] = bytes(PIECE)
            # A list's iterator gives each item once, whoever asks.
            for descriptor, offset in pieces:
                os.preadv(descriptor, [memory], offset)

    try:
        with ThreadPoolExecutor(way.threads) as pool:
            begin = time.perf_counter()
            list(pool.map(work, range(way.threads)))
            return time.perf_counter() - begin
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def usable_ways(path: str) -> list[Way]:
    """Those that a file allows: some file systems have no O_DIRECT."""
    with suppress(OSError), _opened(path, os.O_RDONLY | os.O_DIRECT):
        return list(WAYS)
    return [way for way in WAYS if not way.is_direct]
