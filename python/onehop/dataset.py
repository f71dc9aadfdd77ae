"""`Dataset`: samples of tar shards as batches on a device, and `mix`, several datasets in one loop.

    dataset = onehop.Dataset("shards/", device="cuda", batch=256)
    for epoch in range(3):
        dataset.set_epoch(epoch)
        for batch in dataset:                # {"image.npy": tensor [256, ...], "__key__": [...]}
            step(batch["image.npy"])

The library's threads read ahead into a ring on the device, so that no worker processes are needed.
What a batch holds is its own: it may be kept.
"""
from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import _dataset_feed, _dataset_fields, _dataset_order, _runtime, errors
from . import _dataset_wishes as wishes
from ._dataset_ahead import Consumer, CudaConsumer, HostConsumer
from ._dataset_batch import Cutter, Keys, Ragged, rows_of
from ._dataset_feed import Feed, FeedOptions
from ._dataset_fields import Plan
from ._dataset_loop import Clock, Loop, Share, worker
from ._dataset_make import Maker, NumpyMaker, TorchMaker
from ._dataset_order import List, Mixed, Order, Part, Plain, Turn
from ._dataset_source import Indices, Opened, Path, Source
from ._dataset_wishes import Weights
from .devices import HOST, DeviceInput

if TYPE_CHECKING:
    from ._dataset_windows import Windows
    from .windows import Seconds, Wish

__all__ = ["Dataset", "Keys", "Ragged", "mix"]

_MADE_AT_ONCE = 1 << 14
"""An order over so few samples is made in less than a millisecond."""


class _Settings(NamedTuple):
    """What callers said, checked.

    Attributes
    ----------
    framework : "torch" or "numpy"
    feed : FeedOptions
    batch : int
    remainder : str
    rank, world_size : int or None
        None: as torch.distributed or the environment says, each time.
    seed : int
    """

    framework: str
    feed: FeedOptions
    batch: int
    remainder: str
    rank: int | None
    world_size: int | None
    seed: int


_SUMS = ("payload_bytes", "read_bytes")


def _sums_of(feed: Feed) -> dict[str, int]:
    info = feed.info()
    return {**{name: int(getattr(info, name)) for name in _SUMS}, "damaged": feed.damaged,
            "waited_ns": feed.waited_ns}


class _NextOrder:
    """An order that a thread makes while batches of the one before are used."""

    def __init__(self, source: Source, key: Any, make: Callable[[], Order]) -> None:
        self.key = key
        self._make: Callable[[], Order] | None = make
        self._order: Order | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        source.threads.add(self)
        self._thread.start()

    def _run(self) -> None:
        # What fails here is made again, and fails, where it is needed.
        with contextlib.suppress(errors.OnehopError, MemoryError):
            assert self._make is not None
            self._order = self._make()
        self._make = None  # it refers to the dataset, which is not to wait for a collection

    def join(self) -> None:
        """Waits for it."""
        self._thread.join()

    @property
    def is_ready(self) -> bool:
        """Whether waiting takes no time."""
        return not self._thread.is_alive()

    def order(self) -> Order | None:
        """It, when it is made; None if that failed."""
        self._thread.join()
        return self._order


class _Totals:
    """What an object's loops have done."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.sums = dict.fromkeys((*_SUMS, "damaged", "waited_ns"), 0)
        self.handed = 0
        self.streams: dict[int, int] = {}
        self.dropped = self.padded = 0
        self.live: tuple[Feed, Order] | None = None
        self._before = dict.fromkeys(self.sums, 0)

    def begin(self, feed: Feed, order: Order) -> None:
        """A loop begins."""
        self.live = (feed, order)
        feed.handed = feed.damaged = feed.waited_ns = 0
        self._before = _sums_of(feed)
        self.clock.start()

    def end(self, source: Source) -> None:
        """It has ended; its feed may be closed."""
        self.clock.stop()
        self.sums, self.handed, self.streams = self.now(source)
        self.live = None

    def now(self, source: Source) -> tuple[dict[str, int], int, dict[int, int]]:
        """Sums, samples handed out, and these by stream, with those of a loop that runs."""
        sums, streams = dict(self.sums), dict(self.streams)
        if self.live is None:
            return sums, self.handed, streams
        feed, order = self.live
        for name, value in _sums_of(feed).items():
            sums[name] += value - self._before[name]
        if source.streams and order.handle:
            samples, _ = order.rows(0, feed.handed)
            numbers, counts = np.unique(source.stream_of(samples), return_counts=True)
            for number, count in zip(numbers.tolist(), counts.tolist()):
                streams[number] = streams.get(number, 0) + count
        return sums, self.handed + feed.handed, streams


class Dataset(Loop):
    """Samples of tar shards as batches; an ``IterableDataset`` of torch's where torch is imported.

    A sample is what the shards' members of one key make: each member is a *field*, named by what
    follows the first dot (``"image.jpg"``, ``"label.cls"``). A batch is a dict of the fields, of
    ``"__key__"`` (the samples' keys, a `Keys`), and with remainder="pad" of ``"__pad__"`` (bool
    [B]: True in rows that repeat a sample). By its type and ending a field is

    - a tensor [B, *shape] on the device, where its parts have one type (npy, or typed by the
      index), or are plain bytes of one length (uint8),
    - a `Ragged` on the device where lengths differ (or as ``ragged`` says),
    - a list of B uint8 tensors in host memory, pinned for a GPU, where it is encoded (jpg, jpeg,
      png, webp, mp4 and others),
    - a list of B Python objects where it is json, txt or cls.

    Where samples lack a field, its rows are zeros (in lists None), and ``"NAME_is_pad"`` (bool [B])
    is True there. Samples that lack all of the fields that are asked for are left out.

    In a DataLoader of torch's take ``batch_size=None`` and ``num_workers=0``. With workers, on the
    host only, each makes every Wth batch: order and batches are the same as without. Loaders that
    split a dataset over ranks themselves would do so again: pass what they prepare another way.

    Parameters
    ----------
    paths : path-like, or sequence of these
        Shards that have an index (`onehop index` makes it), or folders, of which all ``*.tar`` are
        taken in the order of their names.
    device : str, int or torch.device, optional
        "cpu", "cuda", "cuda:1". Left out: the current GPU where torch has one, else the host.
    batch : int
        Samples of a batch of this rank.
    fields : sequence of str, optional
        Left out: all. What is not asked for is not read, but for what lies in between.
    stream : str or sequence of str, optional
        Only samples of these streams, of data that `onehop pack` made of a log.
    samples : array of int, optional
        Only these samples, by their numbers: a part to train on, say. They are put in rising order.
    shuffle : "sample", "block", "shard", None, or bool
        Shards change places; or blocks of 8 MiB of samples that lie side by side, over all shards;
        or these and samples within windows of 192 MiB. True is "sample", False is None: the order
        of the shards. It is a function of seed and epoch.
    seed : int
    epoch : int
        Of the first loop. Each loop that ends is followed by the next epoch's.
    rank, world_size : int, optional
        Which part of each epoch is this process's. Left out: as torch.distributed says where it is
        initialised, else by RANK and WORLD_SIZE in the environment, else all.
    remainder : "drop", "pad" or "uneven"
        What comes of the last samples, which make no whole batch on all ranks: they are left out;
        or batches are filled up with samples again, marked in ``"__pad__"``; or each sample comes
        once, and the ranks' numbers of batches may differ by one, which DDP does not bear.
    missing : "mask", "skip" or "error"
        What comes of samples that lack some of the fields: see above; or they are left out; or an
        error says which is the first.
    weights : mapping, or array of float, optional
        Samples are drawn with replacement: a mapping has a weight for each of the paths, which its
        samples share; an array one for each sample of the dataset.
    draws : int, optional
        With weights: samples of an epoch. Left out: as many as the dataset has.
    place : mapping, optional
        By field: "device", "host" (pinned for a GPU) or "object". Objects are bytes where their
        ending is not known.
    ragged : mapping, or str, optional
        By field, or for all that are not of one size: "values" (a `Ragged`), "padded" (one tensor
        [B, longest, ...] with ``"NAME_lengths"``, int64 [B]), or "list" (one tensor a row).
    decode : "jpeg", optional
        JPEG fields are decoded by torchvision, on the device: a list of uint8 [3, H, W].
    verify : "none" or "sample"
        "sample": the CRC-32C of each payload is checked. An index is always checked.
    on_damage : "error" or "skip"
        A payload whose CRC differs is an error with shard, offset and key; or its row is left out
        of its batch, and counted. A batch that loses all rows is still handed out, so that ranks
        stay in step.
    ring_bytes : int, optional
        The most that the buffers take in which bytes arrive. Left out: 768 MiB, more if batches are
        larger, less for less data. Batches, which a thread cuts from these ahead of the loop, take
        192 MiB more on a GPU and 24 MiB on the host, or three batches where those are larger.
    buffers : int
        So many groups of batches are in the ring: one is used while others fill.
    collate : callable, optional
        See `collate`.
    framework : "torch" or "numpy", optional
        Left out: torch where it is imported, or for a GPU; else numpy.

    Attributes
    ----------
    epoch : int

    Raises
    ------
    NotFound
        A shard, or its index; the remedy names the command.
    Malformed, Mismatch
        An index is damaged, or of another shard.
    InvalidArgument
        A wish that cannot be had, or ranks that do not fit.
    UnsupportedData
        The framework lacks a field's type.
    """

    def __init__(self, paths: Path | Sequence[Path], *, device: DeviceInput = None, batch: int = 1,
                 fields: Sequence[str] | None = None, stream: str | Sequence[str] | None = None,
                 samples: Any = None, shuffle: str | bool | None = "sample", seed: int = 0,
                 epoch: int = 0, rank: int | None = None, world_size: int | None = None,
                 remainder: str = "drop", missing: str = "mask", weights: Weights | None = None,
                 draws: int | None = None, place: Mapping[str, str] | None = None,
                 ragged: Mapping[str, str] | str | None = None, decode: str | None = None,
                 verify: str = "none", on_damage: str = "error", ring_bytes: int | None = None,
                 buffers: int = 3, collate: Callable[[list[dict[str, Any]]], Any] | None = None,
                 framework: str | None = None) -> None:
        arguments = {name: value for name, value in locals().items()
                     if name not in ("self", "__class__")}
        super().__init__(wishes.positive("batch", batch), wishes.from_zero("epoch", epoch))
        self._made_by: tuple[Callable[..., Dataset], dict[str, Any]] = (type(self), arguments)
        several = (paths,) if isinstance(paths, (str, bytes, os.PathLike)) else tuple(paths)
        if not several:
            raise errors.InvalidArgument("paths is empty", "name shards, or a folder of them")
        options = wishes.feed_options(device, framework, verify, on_damage, ring_bytes, buffers)
        self._settings = _Settings(
            *options, batch, wishes.choice("remainder", remainder, _dataset_order.REMAINDERS),
            rank, world_size, wishes.integer("seed", seed))
        _dataset_order.world_of(rank, world_size)
        self._open(several)
        plain = Plain(wishes.shuffle_of(shuffle), seed, None)
        self._choose(fields, place, ragged, decode)
        missing = wishes.choice("missing", missing, ("mask", "skip", "error"))
        plain.samples = self._select(stream, samples, missing)
        self._sampler = wishes.sampler_of(self._source, plain, weights, draws)
        if collate is not None:
            self._stages.append(("collate", collate))

    # ---- making it

    def _open(self, paths: Sequence[Path]) -> None:
        self._opened = Opened(lambda: Source(_runtime.get(), paths))
        self._orders: dict[Any, Order] = {}
        self._ahead: _NextOrder | None = None
        self._kept: Feed | None = None
        self._totals = _Totals()
        if self._settings.feed.verify and not self._source.has_checksums:
            raise errors.InvalidArgument(
                "verify='sample' is asked for, and the index of a shard has no checksums",
                "make it anew: onehop index --replace")

    def _choose(self, fields: Sequence[str] | None, place: Mapping[str, str] | None,
                ragged: Mapping[str, str] | str | None, decode: str | None) -> None:
        jpeg = None
        if decode is not None:
            wishes.choice("decode", decode, ("jpeg",))
            jpeg = wishes.jpeg_decoder(self._settings.framework, self._settings.feed.device)
        self._wishes = (place, ragged, decode)
        self._plans_of_any = self._plans = _dataset_fields.plan(self._source, fields, place, ragged,
                                                                jpeg)
        if not self._plans and self._source.count:
            raise errors.InvalidArgument("fields is empty", "ask for one field at least")
        self._cutter(self._source, self._plans)  # refuses types that the framework lacks

    def _select(self, stream: str | Sequence[str] | None, samples: Any,
                missing: str) -> Indices | None:
        """The samples that are asked for; None for all. Plans learn what these lack."""
        source = self._source
        all_lack = all(plan.some_lack for plan in self._plans)
        if samples is None and stream is None and missing == "mask" and not all_lack:
            return None
        mask = np.ones(source.count, np.bool_)
        if samples is not None:
            mask[:] = False
            mask[wishes.numbers_of(source, samples).astype(np.int64)] = True
        if stream is not None:
            mask &= np.isin(source.columns().stream, wishes.stream_numbers(source, stream))
        has = {plan.name: source.has(plan.field) for plan in self._plans if plan.some_lack}
        if missing == "skip":
            for one in has.values():
                mask &= one
        elif missing == "error":
            wishes.refuse_missing(source, mask, has)
        elif has and all_lack:
            mask &= np.logical_or.reduce(list(has.values()))
        self._plans = [plan._replace(some_lack=plan.some_lack and not has[plan.name][mask].all())
                       for plan in self._plans]
        return None if mask.all() else np.flatnonzero(mask).astype(np.uint64)

    def _cutter(self, source: Source, plans: list[Plan]) -> Cutter:
        device = self._settings.feed.device
        if self._settings.framework == "numpy":
            maker: Maker = NumpyMaker()
            return Cutter(source, plans, maker, maker)
        return Cutter(source, plans, TorchMaker(device), TorchMaker(HOST, device.kind == "cuda"))

    @property
    def _source(self) -> Source:
        return self._opened.get()

    def __reduce__(self) -> tuple[Any, ...]:
        make, arguments = self._made_by
        cursor = self._cursor
        return (_made_again, (make, arguments, self._stages, cursor.epoch, cursor.consumed,
                              cursor.resumes))

    def __repr__(self) -> str:
        where = ", ".join(os.fsdecode(path) for path in self._opened.paths[:3])
        return (f"<onehop.Dataset: {self.samples} samples of {where}, batches of {self._batch} on "
                f"{self._settings.feed.device}>")

    # ---- what there is

    @property
    def samples(self) -> int:
        """Samples in the shards, chosen or not: what an index of ``dataset[i]`` may be below."""
        return self._source.count

    @property
    def fields(self) -> dict[str, str]:
        """What a batch holds of each field: "fixed", "values", "padded", "list" or "object"."""
        return {plan.name: plan.form for plan in self._plans}

    @property
    def streams(self) -> list[str]:
        """The streams of packed logs."""
        return list(self._source.streams)

    def key(self, index: int) -> str:
        """The key of a sample."""
        return self._source.key(self._source.check_sample(index))

    # ---- the loop

    def _world(self) -> tuple[int, int]:
        return _dataset_order.world_of(self._settings.rank, self._settings.world_size)

    def _check_process(self) -> None:
        device = self._settings.feed.device
        if device.kind == "cuda" and worker() is not None:
            raise errors.InvalidArgument(
                f"batches on {device} are asked for in a worker process of a DataLoader",
                'take num_workers=0, since the library reads ahead by threads of its own; or '
                'device="cpu"')

    def _key(self, epoch: int, start: int) -> tuple[int, ...]:
        """What an order is of."""
        return (self._source.process, epoch, start, *self._world())

    def _order(self, epoch: int, start: int) -> Order:
        key, ahead = self._key(epoch, start), self._ahead
        found = self._orders.get(key)
        if found is None and ahead is not None and ahead.key == key:
            found, self._ahead = ahead.order(), None
        if found is None or not found.handle:
            found = self._make_order(self._source, key)
        self._orders = {key: found}  # the last one's memory comes free
        return found

    def _make_order(self, source: Source, key: tuple[int, ...]) -> Order:
        _, epoch, start, rank, world = key
        turn = Turn(rank, world, self._settings.remainder, start)
        return Order(source, self._sampler.list(source, epoch), self._batch, turn)

    def _batches(self, epoch: int, order: Order, share: Share) -> Iterator[dict[str, Any]]:
        pad: Any = self._settings.remainder == "pad"
        source, totals, following = self._source, self._totals, None
        totals.dropped, totals.padded = order.counts.dropped, order.counts.padded
        if share == Share(0, 1):
            following = functools.partial(self._follow, source, self._key(epoch + 1, 0), order)
        else:
            order, pad = self._part_of(order, share, pad)
        if not order.counts.batches:
            return
        feed = self._feed_of(source, order)
        is_done = False
        totals.begin(feed, order)
        try:
            on_group = functools.partial(following, feed) if following else None
            yield from _dataset_feed.batches(feed, order, self._batch, pad, self._consumer(),
                                             on_group)
            is_done = True
        finally:
            totals.end(source)
            if self._kept is not None:
                self._kept.close()
            self._kept = feed
            if not is_done or following is None:
                self._drop_feed()

    def _feed_of(self, source: Source, order: Order) -> Feed:
        """A feed that gives the order's batches next: the last loop's, if it can."""
        feed, self._kept = self._kept, None
        if feed is not None and feed.source is source and feed.handle and feed.turn_to(order):
            return feed
        if feed is not None:
            feed.close()
        return Feed(source, order, self._cutter(source, self._plans), self._settings.feed)

    def _drop_feed(self) -> None:
        if self._kept is not None:
            self._kept.close()
        self._kept = None

    def _follow(self, source: Source, key: tuple[int, ...], order: Order, feed: Feed,
                turn: int) -> None:
        """Lets a feed go on with the next epoch's order, as soon as that is made.

        It is begun in the middle of the epoch, or at once if it takes no time.
        """
        if feed.is_followed or feed.has_refused:
            return
        if order.counts.samples <= _MADE_AT_ONCE:
            following = self._orders.get(key) or self._make_order(source, key)
        elif 2 * turn < order.counts.batches:
            return
        else:
            if self._ahead is None or self._ahead.key != key:
                self._ahead = _NextOrder(source, key, lambda: self._make_order(source, key))
            if not self._ahead.is_ready:
                return
            made = self._ahead.order()
            if made is None:
                return
            following = made
        feed.follow(following)
        self._orders[key] = following

    def _part_of(self, order: Order, share: Share, with_pad: bool) -> tuple[Order, Any]:
        """An order of every so manieth batch of an order, and what `batches` takes of its pads."""
        samples, pad = order.rows(0, order.counts.rows)
        edges = range(share.first * self._batch, len(samples), share.step * self._batch)
        which = [np.arange(at, min(at + self._batch, len(samples))) for at in edges]
        rows = np.concatenate(which) if which else np.zeros(0, np.int64)
        its = List(samples[rows], _dataset_order.SHUFFLES["none"], 0, 0)
        made = Order(self._source, its, self._batch, Turn(0, 1, "uneven", 0))
        return made, pad[rows] if with_pad else False

    def _like(self) -> Any:
        made = super()._like()
        made._totals, made._kept, made._ahead = _Totals(), None, None
        return made

    def _consumer(self) -> Consumer:
        device = self._settings.feed.device
        return CudaConsumer(device) if device.kind == "cuda" else HostConsumer()

    def _identity(self) -> dict[str, Any]:
        policy = {**self._sampler.policy(), **_dataset_order.order_constants()}
        return {"fingerprint": self._source.fingerprint, "seed": self._settings.seed,
                "policy": policy}

    def _rows(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        return rows_of(batch, self._plans)

    # ---- samples one by one

    def batch(self, indices: Any) -> dict[str, Any]:
        """A batch of the caller's own choice, read now.

        Parameters
        ----------
        indices : sequence or array of int [B]
            Samples by their numbers in the dataset; negative ones count from its end; repeats are
            allowed.

        Returns
        -------
        dict
            As in a loop, but before `map`, `filter` and `collate`.

        Raises
        ------
        IndexError
            There is no such sample.
        """
        self._check_process()
        source = self._source
        samples = wishes.numbers_of(source, indices)
        if not len(samples):
            raise errors.InvalidArgument("indices is empty", "ask for one sample at least")
        its = List(samples, _dataset_order.SHUFFLES["none"], 0, 0)
        options = self._settings.feed._replace(buffers=1)
        cutter = self._cutter(source, self._plans_of_any)
        with Order(source, its, len(samples), Turn(0, 1, "uneven", 0)) as order, \
                Feed(source, order, cutter, options) as feed:
            return _dataset_feed.one_batch(feed, order, len(samples), self._consumer())

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One sample by its number: a dict of the fields that it has, and ``"__key__"``, str."""
        if not isinstance(index, (int, np.integer)):
            raise TypeError(f"a sample's number is an int, not {type(index).__name__}; "
                            "batch(indices) reads several")
        rows = rows_of(self.batch([self._source.check_sample(int(index))]), self._plans_of_any)
        if not rows:
            raise errors.Mismatch(f"sample {self.key(int(index))!r} is damaged", "pack it again")
        return rows[0]

    def windows(self, at: str, streams: Mapping[str, Wish], *,
                tolerance: Seconds | Mapping[str, Seconds | None] | None = None,
                gap: str = "mask", rows: int | Mapping[str, int] | None = None,
                method: str | Mapping[str, str] = "nearest") -> Windows:
        """Batches of moments: a record of one stream, and what other streams have around its time.

        See `onehop.windows` for what a stream can be asked for.
        """
        from ._dataset_windows import Windows

        return Windows(self, at, streams, tolerance, gap, rows, method)

    # ---- how it goes, and its end

    def statistics(self) -> dict[str, Any]:
        """What this object's loops have done so far.

        Returns
        -------
        dict
            seconds (that loops ran), bytes, gb_per_s (1e9 bytes; of payloads), samples,
            samples_per_s, stall_s (that a loop waited for a batch), stall (its share of seconds),
            read_bytes, over_read (read_bytes by bytes), damaged (rows left out), dropped and padded
            (of the newest epoch, all ranks), streams (samples per second, by stream).
        """
        sums, samples, by_stream = self._totals.now(self._source)
        seconds = self._totals.clock.seconds
        per_second = 1 / seconds if seconds else 0.0
        names = self._source.streams
        streams = {names[number]: count * per_second for number, count in sorted(by_stream.items())
                   if number < len(names)}
        payload = sums["payload_bytes"]
        return {"seconds": seconds, "bytes": payload, "gb_per_s": payload / 1e9 * per_second,
                "samples": samples, "samples_per_s": samples * per_second,
                "stall_s": sums["waited_ns"] / 1e9, "stall": sums["waited_ns"] / 1e9 * per_second,
                "read_bytes": sums["read_bytes"],
                "over_read": sums["read_bytes"] / payload if payload else 0.0,
                "damaged": sums["damaged"], "dropped": self._totals.dropped,
                "padded": self._totals.padded, "streams": streams}

    def close(self) -> None:
        """Closes the shards, also for what `map` and its like made of this. Again is no error."""
        opened = getattr(self, "_opened", None)
        if opened is not None:
            opened.close()


def _made_again(make: Callable[..., Dataset], arguments: dict[str, Any], stages: list[Any],
                epoch: int, consumed: int, resumes: bool) -> Dataset:
    """A dataset as it was pickled."""
    from ._dataset_loop import Cursor

    made = make(**arguments)
    made._stages = stages
    made._cursor = Cursor(epoch, consumed, resumes)
    return made


# ---- several datasets


class _Mix(Dataset):
    """What `mix` makes."""

    def __init__(self, datasets: Sequence[tuple[Dataset, float]], seed: int, stop: str,
                 batch: int | None) -> None:
        first = datasets[0][0]
        size = first._batch if batch is None else wishes.positive("batch", batch)
        Loop.__init__(self, size, 0)
        self._made_by = (functools.partial(_Mix), {"datasets": list(datasets), "seed": seed,
                                                  "stop": stop, "batch": batch})
        self._settings = first._settings._replace(batch=size, seed=wishes.integer("seed", seed))
        paths = [path for one, _ in datasets for path in one._source.paths]
        self._open(paths)
        names = dict.fromkeys(plan.name for one, _ in datasets for plan in one._plans)
        places = {name: place for one, _ in reversed(datasets)
                  for name, place in (one._wishes[0] or {}).items()}
        self._choose(list(names), places, first._wishes[1], first._wishes[2])
        parts, begin = [], 0
        for one, probability in datasets:
            _check_alike(first, one)
            parts.append(Part(one._sampler, one._source, begin, probability))
            begin += one._source.count
        self._sampler = Mixed(parts, seed, stop)


def _check_alike(first: Dataset, other: Dataset) -> None:
    for name in ("framework", "remainder", "rank", "world_size"):
        ours, theirs = getattr(first._settings, name), getattr(other._settings, name)
        if ours != theirs:
            raise errors.InvalidArgument(
                f"the datasets of a mix differ in {name}: {ours!r} and {theirs!r}",
                "make them alike")
    if first._settings.feed.device != other._settings.feed.device:
        raise errors.InvalidArgument("the datasets of a mix are on different devices",
                                     "make them alike")


def mix(datasets: Mapping[Dataset, float], *, seed: int = 0, stop: str = "all_exhausted",
        batch: int | None = None) -> Dataset:
    """Batches whose samples come from several datasets by probability.

        both = onehop.mix({driving: 0.7, parking: 0.3})

    Each dataset gives its samples in its own order, one after the other, and has its turns at
    random but in proportion: at any position of the epoch it has given its share, to a sample. What
    is to be done to batches (`map`, `collate`) is told to the mix.

    Parameters
    ----------
    datasets : mapping of Dataset to float
        Shares, of any sum. Device, framework, ranks and remainder have to be alike.
    seed : int
        Of the turns.
    stop : "all_exhausted" or "first_exhausted"
        An epoch ends when each dataset has given all its samples once, where those that were done
        before begin again in another order; or when the first has.
    batch : int, optional
        Left out: the first dataset's.

    Returns
    -------
    Dataset
        Its samples are those of the datasets, one after the other, and its fields those of all. It
        opens the shards itself.

    Raises
    ------
    InvalidArgument
        A share is not above 0, or the datasets differ in what has to be alike.
    """
    pairs = [(one, _dataset_order.check_probability(share)) for one, share in datasets.items()]
    if not pairs:
        raise errors.InvalidArgument("a mix of no datasets is asked for", "give one at least")
    wishes.choice("stop", stop, ("all_exhausted", "first_exhausted"))
    total = sum(share for _, share in pairs)
    return _Mix([(one, share / total) for one, share in pairs], seed, stop, batch)
