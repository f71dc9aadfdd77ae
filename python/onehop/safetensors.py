"""`safe_open`: one safetensors file, tensor by tensor, as safetensors' class of that name.

Results and, where programs catch them, exceptions are those of safetensors: what it reports as
SafetensorError is `SafetensorError` here, which is an instance of theirs too once that package is
imported. A slice reads the bytes that it delivers; small gaps between them are read over.
"""
from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from . import _runtime, _slicing, arenas, devices, dtypes, errors
from ._move import Extent, Plan, Transfer, run
from .devices import DeviceInput
from .errors import DataError as SafetensorError
from .loading import Placement, collector_paused, finish, metadata_of
from .model import Item, Model, Path

__all__ = ["SafetensorError", "SafeSlice", "safe_open"]

_BACKENDS = (None, "mmap", "pread")


class _File:
    """An open file and its tensors by name; in a forked child it is opened anew."""

    def __init__(self, path: Path, framework: str, device: devices.Device) -> None:
        self.path = os.path.abspath(os.fsdecode(path))
        self._names: tuple[str, devices.Device] = (framework, device)
        self._open()

    def _open(self) -> None:
        if os.path.isdir(self.path):
            raise errors.IOFailed(f"{self.path} is a folder, and safe_open takes one file",
                                  "use onehop.load for a folder", errno=21)
        self._pid = os.getpid()
        self._runtime = _runtime.get()
        self._framework = arenas.make(*self._names, self._runtime)
        self._model = Model(self.path, self._runtime)
        if self._model.format != "safetensors" or self._model.files != [self.path]:
            raise errors.Malformed(f"{self.path} is not a safetensors file",
                                   "use onehop.load, which takes GGUF files and indexes, too")
        self._items: dict[str, Item] | None = None

    def _here(self) -> None:
        """Makes sure that the file was opened by this process."""
        if self._pid != os.getpid():
            self._open()

    @property
    def framework(self) -> arenas.Framework:
        """What tensors are made by."""
        return self._framework

    @property
    def items(self) -> dict[str, Item]:
        """The tensors by name, in the order of their bytes."""
        self._here()
        if self._items is None:
            with self._model.select() as everything:
                self._items = {item.name: item for item in everything.items()}
        return self._items

    def item(self, name: str) -> Item:
        """The tensor of that name."""
        if not isinstance(name, str):
            raise TypeError(f"argument 'name': {type(name).__name__!r} object is not an instance "
                            "of 'str'")
        found = self.items.get(name)
        if found is None:
            raise errors.NoSuchTensor(f"File does not contain tensor {name}",
                                      "keys() gives the names")
        return found

    def metadata(self) -> dict[str, str] | None:
        """The header's metadata; None if there is none."""
        self._here()
        return metadata_of(self._model.metadata()) or None

    def check(self, item: Item) -> None:
        """Raises for what torch has no type for, as safetensors does."""
        if self._framework.name != "torch" or item.block_elements == 1:
            return
        if item.dtype not in dtypes.TORCH:
            raise errors.UnsupportedData(f"Dtype not understood: {item.dtype}",
                                         "use onehop.load, which gives its raw bytes")
        if item.shape and item.shape[-1] % item.block_elements:
            raise errors.UnsupportedData(
                f"f4_x2 dtype requires that the last dim be divisible by 2 in torch: "
                f"got {list(item.shape)}", "use onehop.load, which gives its raw bytes")

    def read(self, item: Item, shape: tuple[int, ...], row_bytes: int,
             rows: Iterator[_slicing.Rows]) -> Any:
        """A tensor of that shape, made of rows of the item's bytes."""
        pieces = list(rows)
        nbytes = row_bytes * sum(piece.rows for piece in pieces)
        memory = self._framework.allocate(nbytes)
        made = self._framework.tensors(
            [item._replace(shape=shape, nbytes=nbytes, arena_offset=0)], memory, 0)
        if nbytes:
            self._fill(item, memory, row_bytes, pieces)
        return self._framework.finish(made)[0]

    def _fill(self, item: Item, memory: arenas.Memory, row_bytes: int,
              pieces: Sequence[_slicing.Rows]) -> None:
        with ExitStack() as stack:
            buffer = memory.buffer(self._runtime, self._framework.device)
            if memory.owner is not buffer:
                stack.callback(buffer.close)
            file, place, extents = self._model.file_handle(item.file), 0, []
            for offset, count, stride in pieces:
                extents.append(Extent(file, item.file_offset + offset, row_bytes, count,
                                      stride or row_bytes, buffer, place))
                place += row_bytes * count
            plan = Plan.of_extents(self._runtime, extents, keep=self._model)
            stack.callback(plan.close)
            run(Transfer(plan), lambda: None, after_stream=self._framework.stream())

    def whole(self, item: Item) -> Any:
        """The whole tensor."""
        self.check(item)
        rows = iter([_slicing.Rows(0, 1, 0)])
        return self.read(item, item.shape, item.nbytes, rows)

    def everything(self) -> dict[str, Any]:
        """All tensors by name, by one plan."""
        self._here()
        with ExitStack() as stack:
            selection = stack.enter_context(self._model.select())
            placement = Placement(selection, self._framework, "one")
            plan = placement.plan(self._runtime, stack)
            stack.callback(plan.close)

            def work() -> dict[str, Any]:
                with collector_paused():
                    for item in placement.items:
                        self.check(item)
                    names = [item.name for item in placement.items]
                    return dict(zip(names, placement.tensors()))

            made, _ = run(Transfer(plan), work, after_stream=self._framework.stream())
        finish(self._framework, made)
        return made


class SafeSlice:
    """A tensor of a file that is read when it is indexed. `safe_open.get_slice` makes it."""

    __slots__ = ("_file", "_name")

    def __init__(self, file: _File, name: str) -> None:
        self._file = file
        self._name = name

    def get_shape(self) -> list[int]:
        """The shape, in elements."""
        return list(self._file.item(self._name).shape)

    def get_dtype(self) -> str:
        """The dtype as the file spells it: ``"F32"``."""
        return self._file.item(self._name).dtype

    def __getitem__(self, index: Any) -> Any:
        """The part that the index asks for.

        Parameters
        ----------
        index : int, slice, Ellipsis, or a tuple of these; for torch also None, and one list of int
            What else torch's own tensors take is done by reading the whole tensor first.

        Returns
        -------
        tensor
            Contiguous, of the file's framework.

        Raises
        ------
        SafetensorError
            For numpy: the index lies outside the shape, or is of a kind that it does not take.
        IndexError, ValueError, TypeError
            For torch: as torch's own tensors.
        """
        file, item = self._file, self._file.item(self._name)
        file.check(item)
        if file.framework.name != "torch":
            index = _without_bools(index)
            _check_as_safetensors(index, item.shape)
        pick = _slicing.parse(index, item.shape)
        if pick is None:
            _check_as_torch(index, item.shape)
            return file.whole(item)[index]
        found = _slicing.runs(pick.dims, item.shape, item.block_elements, item.block_bytes)
        if found is None:
            raise errors.InvalidArgument(
                f"Error during slicing [{_shown(index)}] with shape {list(item.shape)}: the slice "
                f"of {item.dtype} does not end at a byte boundary",
                f"slice in steps of {item.block_elements} elements")
        return file.read(item, pick.shape, *found)

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle 'onehop.SafeSlice' object")


def _shown(index: Any) -> str:
    """The index as safetensors shows it."""

    def part(one: Any) -> str:
        if isinstance(one, slice):
            ends = ("" if end is None else str(end) for end in (one.start, one.stop))
            return ":".join([*ends, str(one.step)] if one.step not in (None, 1) else ends)
        return "..." if one is Ellipsis else str(one)

    return ", ".join(part(one) for one in (index if isinstance(index, tuple) else (index,)))


def _without_bools(index: Any) -> Any:
    """The index with True and False as the integers that safetensors' own slicer takes them for."""
    if isinstance(index, tuple):
        return tuple(_without_bools(part) for part in index)
    return int(index) if isinstance(index, bool) else index


def _check_as_torch(index: Any, shape: tuple[int, ...]) -> None:
    """Raises as torch does, before anything is read, where the index has no tensors in it."""
    import torch

    parts = index if isinstance(index, tuple) else (index,)
    plain = (int, slice, type(Ellipsis), type(None))
    if all(isinstance(part, plain) and not isinstance(part, bool) for part in parts):
        torch.empty((), device="meta").expand(shape)[index]


def _check_as_safetensors(index: Any, shape: tuple[int, ...]) -> None:
    """Raises as safetensors' own slicer does, which serves numpy."""

    def refuse(words: str) -> errors.InvalidArgument:
        return errors.InvalidArgument(
            f"Error during slicing [{_shown(index)}] with shape {list(shape)}: {words}",
            "keep the index within the shape")

    parts = index if isinstance(index, tuple) else (index,)
    for place, part in enumerate(parts):
        is_index = not isinstance(part, slice) and hasattr(part, "__index__")
        if not (isinstance(part, slice) or part is Ellipsis or is_index):
            raise errors.InvalidArgument(
                f"Unsupported slice index at position {place}: expected slice, int, or ellipsis",
                "read the whole tensor, and index that")
    spread = _slicing.spread(index, len(shape))
    if spread is None:
        raise refuse("more slicing indexes than dimensions in tensor")
    for dim, (part, extent) in enumerate(zip(spread, shape)):
        outside = _outside(part, extent)
        if outside is not None:
            raise refuse(f"index {outside} out of bounds for tensor dimension #{dim} of size "
                         f"{extent}")


def _outside(part: Any, extent: int) -> int | None:
    """An index that part asks for outside of the dimension, None if there is none."""
    if not isinstance(part, slice):
        number = operator.index(part)
        return number if not -extent <= number < extent else None
    step = 1 if part.step is None else operator.index(part.step)
    if step <= 0:
        raise errors.InvalidArgument(f"Slice step must be a positive integer, got {step}",
                                     "read the tensor, and reverse that")
    start = 0 if part.start is None else operator.index(part.start)
    stop = extent if part.stop is None else operator.index(part.stop)
    if start >= extent and extent:
        return start
    return stop - 1 if stop > extent else None


class safe_open:  # noqa: N801 - it stands for safetensors' class of this name
    """Opens a safetensors file, of which tensors are read as they are asked for.

    Parameters
    ----------
    filename : str or path-like
    framework : str
        "pt" or "torch", "np" or "numpy"; "array" for `onehop.Array`.
    device : str, int or torch.device
        "cpu", "cuda", "cuda:1", 1.
    backend : {"mmap", "pread"}, optional
        Accepted, and of no effect: how to read is decided by what the machine shows.

    Raises
    ------
    NotFound, Access, IOFailed
        Of the file.
    SafetensorError
        The header is malformed, or framework, device or backend are none.
    """

    __slots__ = ("_file",)
    _file: _File | None

    def __init__(self, filename: Path, framework: str, device: DeviceInput = "cpu", *,
                 backend: str | None = None) -> None:
        if not isinstance(framework, str):
            raise TypeError(f"argument 'framework': {framework!r} is not an instance of 'str'")
        if backend not in _BACKENDS:
            raise errors.InvalidArgument(f'backend "{backend}" is invalid',
                                         'it is "mmap" or "pread"; both do the same here')
        place = devices.HOST if device is None else devices.parse(device)
        self._file = _File(filename, arenas.choose(framework, place, _runtime.get()), place)

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        # Slices that are left go on to work, and close the file when they are gone.
        self._file = None

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle 'onehop.safe_open' object")

    def _opened(self) -> _File:
        if self._file is None:
            raise errors.InvalidArgument("File is closed", "open it again")
        return self._file

    def keys(self) -> list[str]:
        """The names of the tensors, sorted."""
        return sorted(self._opened().items)

    def offset_keys(self) -> list[str]:
        """The names of the tensors, in the order of their bytes."""
        return list(self._opened().items)

    def metadata(self) -> dict[str, str] | None:
        """The header's metadata; None if it has none."""
        return self._opened().metadata()

    def get_tensor(self, name: str) -> Any:
        """The whole tensor of that name, on the device.

        Raises
        ------
        SafetensorError
            There is none, or the framework has no type for it.
        """
        file = self._opened()
        return file.whole(file.item(name))

    def get_tensors(self) -> dict[str, Any]:
        """All tensors by name, in the order of their bytes, read by one plan."""
        return self._opened().everything()

    def get_slice(self, name: str) -> SafeSlice:
        """The tensor of that name, to be indexed: ``file.get_slice("w")[:, 1000:2000]``."""
        file = self._opened()
        file.item(name)
        return SafeSlice(file, name)
