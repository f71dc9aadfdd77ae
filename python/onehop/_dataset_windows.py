"""Moments: a record of one stream, and what others have around its time, as batches.

`onehop.windows` says which records belong to a moment; here they are read, and made into tensors.
"""
from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import errors, windows
from ._dataset_ahead import number_of
from ._dataset_batch import Keys, Ragged, loose_rows, object_of
from ._dataset_checks import Checks
from ._dataset_loop import Loop, Share
from ._dataset_make import Maker, Memory
from ._dataset_order import SHUFFLES, Counts, Order, Plain, Turn
from ._dataset_source import Indices
from ._dataset_table import Fetch, Int64s, Table, table_of
from ._move import Buffer
from .windows import Clock, Records, Slices, Spec

if TYPE_CHECKING:
    from .dataset import Dataset

_KEPT_ENTRIES = 1 << 26
"""Found records that are kept of episodes, so that each is aligned once where memory allows."""

_AT = Spec("", "records", (0,), count=1, single=True)


class Anchors:
    """An epoch's anchors in order, and which of them a rank has: the library's rules over records.

    Attributes
    ----------
    counts : Counts
    """

    def __init__(self, sequence: Int64s, batch: int, turn: Turn) -> None:
        left, step = len(sequence) - turn.start, batch * turn.world
        if left < 0:
            raise errors.InvalidArgument(f"start at {turn.start} of {len(sequence)} anchors: it "
                                         "lies past the end", "give a state of this dataset")
        rest = sequence[turn.start:]
        whole, over = divmod(left, step)
        dropped = padded = 0
        if turn.remainder == "drop":
            rest, dropped = rest[:whole * step], over
        elif turn.remainder == "pad" and over:
            padded = step - over
            rest = np.concatenate((rest, np.resize(rest, padded)))
        self.rows = rest[turn.rank::turn.world]
        self.pad = (np.arange(len(rest)) >= left)[turn.rank::turn.world]
        self.counts = Counts(len(sequence), len(self.rows), -(-len(self.rows) // batch), dropped,
                             padded)


class _Picks(NamedTuple):
    """A stream's records for a batch.

    Attributes
    ----------
    records : int64 [M]
        Numbers in the stream's table; -1: missing.
    shape : tuple of int
        [B] or [B, N]; of windows [M].
    counts : int64 [B] or None
        Of windows: records of each anchor.
    upper : int64 [M] or None
        Of linear.
    weight : float64 [B, N] or None
    is_pad : bool [B] or [B, N]
    """

    records: Int64s
    shape: tuple[int, ...]
    counts: Int64s | None
    upper: Int64s | None
    weight: npt.NDArray[np.float64] | None
    is_pad: npt.NDArray[np.bool_]


class _Wanted(NamedTuple):
    """Records that are read once for a batch: where their bytes lie in the flight's buffer.

    Attributes
    ----------
    records : int64 [U]
        Rising.
    begin, nbytes : int64 [U]
    kinds : uint32 [U]
        Types.
    """

    records: Int64s
    begin: Int64s
    nbytes: Int64s
    kinds: npt.NDArray[np.uint32]


class _Flight:
    """A batch on its way."""

    def __init__(self, anchors: Int64s, pad: npt.NDArray[np.bool_],
                 picks: dict[str, _Picks]) -> None:
        self.anchors, self.pad, self.picks = anchors, pad, picks
        self.fetches: dict[bool, Fetch] = {}
        self.wanted: dict[str, _Wanted] = {}

    def close(self) -> None:
        """Ends what is in flight; its buffers are left."""
        for fetch in self.fetches.values():
            fetch.close()


class Windows(Loop):
    """Batches of moments, of `onehop.Dataset.windows`. Iterates, resumes and maps as a dataset.

    A moment is a record of the stream ``at``, the *anchor*, with what was asked of other streams. A
    batch of B moments is a dict of

    - each stream, ``at`` too (the anchors themselves, or what is asked of it): a tensor [B, ...],
      or [B, N, ...] of N records; all records of a window come as a `Ragged`. Of records that
      differ in shape, or are encoded, or are objects, a list of B, or of B lists, None where one is
      missing.
    - ``"NAME_is_pad"``, bool [B] or [B, N]: the record is missing, and zeros stand for it; of a
      window: it is empty.
    - ``"NAME_time_ns"``, int64 of the same shape (0 where missing; of windows a `Ragged`).
    - ``"__key__"`` (a `Keys`, of the anchors' samples), ``"__time_ns__"`` (int64 [B]),
      ``"__episode__"`` (a list of B str), and with remainder="pad" ``"__pad__"``.

    The order is over anchors, by the dataset's settings. Its streams have one field each. With
    verify="sample" a payload is read as a whole and checked before anything is cut from it, once.

    Attributes
    ----------
    skew : dict of str to onehop.windows.Skew
        How far records are from their moments, over all anchors that are kept or left out.
    gaps : dict of str to int
        Anchors for which something of the stream is missing.
    anchors, left_out : int
        How many there are, and how many gap="skip" left out.
    """

    def __init__(self, dataset: Dataset, at: str, streams: Mapping[str, Any], tolerance: Any,
                 gap: str, rows: Any, method: Any) -> None:
        super().__init__(dataset._batch, dataset._cursor.epoch)
        self._dataset = dataset
        self._specs = windows.parse(streams, tolerance=tolerance, rows=rows, method=method)
        self._wish = [at, repr(self._specs), gap]
        its = dataset._settings.feed
        if its.verify and its.skip_damaged:
            raise errors.Unsupported("windows of a dataset with on_damage='skip' are asked for",
                                     "let damage be an error: a moment has records of several "
                                     "samples, and would lack some")
        if not isinstance(dataset._sampler, Plain):
            raise errors.Unsupported("windows of a mix, or of a dataset with weights, are asked "
                                     "for", "take windows of each dataset")
        source = dataset._source
        columns = source.columns()
        plans = dataset._plans_of_any
        self._tables = {name: table_of(source, name, plans, columns)
                        for name in (at, *self._specs)}
        self._at = self._tables[at]
        self._specs = {at: _AT, **self._specs}
        self._checks = self._begun_checks() if its.verify else {}
        self._found: OrderedDict[int, dict[str, Records | Slices]] = OrderedDict()
        self._clocks: dict[tuple[int, str], Clock] = {}
        self._survey(at, gap)
        self._sequence: tuple[int, Int64s] | None = None

    def _begun_checks(self) -> dict[str, Checks]:
        """For each stream, after a look at its times, which have been read."""
        for table in self._tables.values():
            if table.clock is not None:
                Checks(table.source, table.clock).look(table.sample)
        return {name: Checks(table.source, table.plan.field)
                for name, table in self._tables.items()}

    # ---- which anchors there are

    def _clock(self, episode: int, stream: str) -> Clock:
        found = self._clocks.get((episode, stream))
        if found is None:
            times = self._tables[stream].episode_times(episode)
            found = self._clocks[episode, stream] = Clock(times, stream, self._name(episode))
        return found

    def _name(self, episode: int) -> str:
        names = self._at.source.episodes
        return names[episode] if episode < len(names) else ""

    def _survey(self, at: str, gap: str) -> None:
        asked = {name: spec for name, spec in self._specs.items() if spec is not _AT}
        chosen = self._chosen()
        kept: list[Int64s] = []
        skews: dict[str, list[Int64s]] = {name: [] for name in asked}
        self.gaps = dict.fromkeys(asked, 0)
        for episode in range(len(self._at.first) - 1):
            begin, end = self._at.first[episode:episode + 2].tolist()
            records = np.arange(begin, end)[chosen[begin:end]]
            if not len(records):
                continue
            clocks = {name: self._clock(episode, name) for name in asked}
            found = windows.survey(self._at.times[records], clocks, asked, gap=gap,
                                   episode=self._name(episode))
            kept.append(records[found.keep])
            for name, part in found.skew_ns.items():
                skews[name].append(part)
            for name, count in found.gaps.items():
                self.gaps[name] += count
        self._anchors = np.concatenate(kept) if kept else np.zeros(0, np.int64)
        self.anchors = len(self._anchors)
        self.left_out = int(chosen.sum()) - self.anchors
        self.skew = {name: windows.skew(parts) for name, parts in skews.items()}

    def _chosen(self) -> npt.NDArray[np.bool_]:
        """Which of the anchor stream's records are among the dataset's samples."""
        samples = self._dataset._sampler.list(self._at.source, 0).samples
        if samples is None:
            return np.ones(len(self._at.sample), np.bool_)
        return np.isin(self._at.sample, samples)

    # ---- the loop

    def _world(self) -> tuple[int, int]:
        return self._dataset._world()

    def _check_process(self) -> None:
        self._dataset._check_process()
        self._at.source.check()

    def _order(self, epoch: int, start: int) -> Anchors:
        if self._sequence is None or self._sequence[0] != epoch:
            self._sequence = (epoch, self._shuffled(epoch))
        rank, world = self._world()
        turn = Turn(rank, world, self._dataset._settings.remainder, start)
        return Anchors(self._sequence[1], self._batch, turn)

    def _shuffled(self, epoch: int) -> Int64s:
        """The anchors in the epoch's order: the library's of their samples."""
        source, anchors = self._at.source, self._anchors
        its = self._dataset._sampler.list(source, epoch)
        samples = self._at.sample[anchors]
        by_sample = np.argsort(samples, kind="stable")
        ordered = its._replace(samples=samples[by_sample])
        if its.shuffle == SHUFFLES["none"]:
            return anchors[by_sample]
        with Order(source, ordered, 1, Turn(0, 1, "uneven", 0)) as order:
            sequence, _ = order.rows(0, order.counts.rows)
        # Rows of one chunk come in the order in which its sample comes.
        made = np.empty(len(anchors), np.int64)
        made[np.argsort(sequence, kind="stable")] = anchors[by_sample]
        return made

    def _batches(self, epoch: int, order: Anchors, share: Share) -> Iterator[dict[str, Any]]:
        dataset, source = self._dataset, self._at.source
        cutter = dataset._cutter(source, [table.plan for table in self._tables.values()])
        consumer = dataset._consumer()
        flights: deque[_Flight] = deque()
        spare: dict[bool, list[Buffer]] = {False: [], True: []}
        memories: dict[Buffer, Memory] = {}
        turns = iter(range(share.first, order.counts.batches, share.step))
        try:
            while True:
                while len(flights) < dataset._settings.feed.buffers:
                    turn = next(turns, None)
                    if turn is None:
                        break
                    rows = slice(turn * self._batch, (turn + 1) * self._batch)
                    flight = self._planned(order.rows[rows], order.pad[rows])
                    flights.append(flight)
                    self._launch(flight, spare, memories, number_of(consumer.stream))
                if not flights:
                    return
                flight = flights.popleft()
                for fetch in flight.fetches.values():
                    fetch.wait()
                consumer.note()
                consumer.begin()
                batch = self._cut(flight, cutter, memories)
                flight.close()
                for on_host, fetch in flight.fetches.items():
                    spare[on_host].append(fetch.buffer)
                consumer.hand(batch, consumer.stream)
                box = [batch]
                del batch, flight
                yield box.pop()
        finally:
            memories.clear()
            for flight in flights:
                flight.close()

    def _planned(self, anchors: Int64s, pad: npt.NDArray[np.bool_]) -> _Flight:
        """A batch's records, by what was asked of each stream."""
        episodes = np.searchsorted(self._at.first, anchors, "right") - 1
        groups = [(int(episode), np.flatnonzero(episodes == episode))
                  for episode in np.unique(episodes)]
        found = {episode: self._aligned(episode) for episode, _ in groups}
        picks = {}
        for name, spec in self._specs.items():
            parts = [(rows, anchors[rows] - self._at.first[episode], found[episode][name],
                      int(self._tables[name].first[episode])) for episode, rows in groups]
            if spec.kind == "window":
                picks[name] = _window_picks(len(anchors), parts)
            else:
                picks[name] = _record_picks(len(anchors), spec, parts)
        return _Flight(anchors, pad, picks)

    def _aligned(self, episode: int) -> dict[str, Records | Slices]:
        """What all anchors of an episode find."""
        found = self._found.get(episode)
        if found is None:
            times = self._at.episode_times(episode)
            found = {name: windows.align(times, self._clock(episode, name), spec)
                     for name, spec in self._specs.items() if spec is not _AT}
            if self._specs[self._at.stream] is _AT:
                own = np.arange(len(times))[:, None]
                found[self._at.stream] = Records(own, None, None, np.zeros(own.shape, np.bool_),
                                                 np.zeros(len(times), np.int64))
            self._found[episode] = found
            while len(self._found) > 1 and sum(map(_entries, self._found.values())) > _KEPT_ENTRIES:
                self._found.popitem(last=False)
        else:
            self._found.move_to_end(episode)
        return found

    # ---- reading

    def _launch(self, flight: _Flight, spare: dict[bool, list[Buffer]],
                memories: dict[Buffer, Memory], stream: int | None) -> None:
        """Starts reading what a batch needs."""
        source = self._at.source
        for on_host in (False, True):
            ranges: list[Indices] = []
            names, begin = [], 0
            for name, table in self._tables.items():
                if table.plan.on_host != on_host:
                    continue
                pick = flight.picks[name]
                both = pick.records if pick.upper is None else np.concatenate((pick.records,
                                                                               pick.upper))
                records = np.unique(both[both >= 0])
                if self._checks:
                    self._checks[name].look(table.sample[records])
                shard, offset, nbytes, kinds = table.spots(records)
                run = _runs(shard, offset, nbytes)
                firsts = np.flatnonzero(np.concatenate(([True], run[1:] != run[:-1]))[:len(run)])
                lengths = np.add.reduceat(nbytes, firsts) if len(firsts) else nbytes
                ranges.append(np.stack((shard[firsts], offset[firsts], lengths.astype(np.uint64)),
                                       axis=1))
                names.append((name, records, nbytes, kinds, offset, firsts, run, begin))
                begin += len(firsts)
            if not begin:
                continue
            device = "host" if on_host else self._dataset._settings.feed.device.name
            old = spare[on_host].pop() if spare[on_host] else None
            fetch = flight.fetches[on_host] = Fetch(source, np.concatenate(ranges), device, old)
            if old is not None and fetch.buffer is not old:  # it was too small
                memories.pop(old, None)
                old.close()
            fetch.start(None if on_host else stream)
            for name, records, nbytes, kinds, offset, firsts, run, at in names:
                placed = fetch.placed[at:at + len(firsts)][run] if len(firsts) else run
                inside = (offset - offset[firsts][run]).astype(np.int64) if len(firsts) else run
                flight.wanted[name] = _Wanted(records, placed + inside, nbytes, kinds)

    def _cut(self, flight: _Flight, cutter: Any, memories: dict[Buffer, Memory]) -> dict[str, Any]:
        batch: dict[str, Any] = {}
        nothing = np.zeros(0, np.int64)
        for name, table in self._tables.items():
            maker, on_host = cutter.maker(table.plan), table.plan.on_host
            fetch = flight.fetches.get(on_host)
            memory = Memory(0, 0, None)
            if fetch is not None:
                found = memories.get(fetch.buffer)
                if found is None:
                    found = memories[fetch.buffer] = maker.memory(fetch.buffer.handle.value or 0)
                memory = found
            wanted = flight.wanted.get(name) or _Wanted(nothing, nothing, nothing,
                                                        nothing.astype(np.uint32))
            _add_stream(batch, name, table, maker, memory, flight.picks[name], wanted)
        anchors = flight.anchors
        batch["__key__"] = Keys(self._at.source, self._at.sample[anchors])
        batch["__time_ns__"] = cutter.device_maker.index(self._at.times[anchors])
        episodes = np.searchsorted(self._at.first, anchors, "right") - 1
        batch["__episode__"] = [self._name(episode) for episode in episodes.tolist()]
        if self._dataset._settings.remainder == "pad":
            batch["__pad__"] = cutter.device_maker.index(flight.pad)
        return batch

    # ---- the rest

    def _identity(self) -> dict[str, Any]:
        its = self._dataset._identity()
        return {**its, "policy": {**its["policy"], "windows": self._wish}}

    def _rows(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        return [{name: value[row] for name, value in batch.items()}
                for row in range(len(batch["__key__"]))]

    def __repr__(self) -> str:
        return f"<onehop.Windows: {self.anchors} moments of stream {self._at.stream!r}>"

    def close(self) -> None:
        """Closes the dataset. Again is no error."""
        self._dataset.close()


def _entries(found: dict[str, Records | Slices]) -> int:
    return sum(one.index.size if isinstance(one, Records) else one.begin.size
               for one in found.values())


_Parts = list[tuple[Int64s, Int64s, "Records | Slices", int]]
"""By episode: rows of the batch, their anchors' places in the episode, what was found of the
episode, and where its records begin in the stream's table."""


def _record_picks(count: int, spec: Spec, parts: _Parts) -> _Picks:
    records = np.empty((count, spec.count), np.int64)
    is_pad = np.empty((count, spec.count), np.bool_)
    linear = spec.method == "linear"
    upper = np.empty_like(records) if linear else None
    weight = np.empty(records.shape) if linear else None
    for rows, places, found, first in parts:
        assert isinstance(found, Records)
        index = found.index[places]
        records[rows] = np.where(index < 0, -1, index + first)
        is_pad[rows] = found.is_pad[places]
        if upper is not None and weight is not None:
            assert found.upper is not None and found.weight is not None
            above = found.upper[places]
            upper[rows] = np.where(above < 0, -1, above + first)
            weight[rows] = found.weight[places]
    shape = (count,) if spec.single else (count, spec.count)
    return _Picks(records.reshape(-1), shape, None, None if upper is None else upper.reshape(-1),
                  weight, is_pad.reshape(shape))


def _window_picks(count: int, parts: _Parts) -> _Picks:
    begin, end = np.empty(count, np.int64), np.empty(count, np.int64)
    for rows, places, found, first in parts:
        assert isinstance(found, Slices)
        begin[rows], end[rows] = found.begin[places] + first, found.end[places] + first
    counts = end - begin
    ends = np.cumsum(counts)
    total = int(ends[-1]) if count else 0
    records = np.arange(total) + np.repeat(begin - (ends - counts), counts)
    return _Picks(records, (total,), counts, None, None, counts == 0)


def _runs(shard: Indices, offset: Indices, nbytes: Int64s) -> Int64s:
    """[U]: the number of the run of bytes that lie side by side which each entry is in."""
    if not len(shard):
        return np.zeros(0, np.int64)
    breaks = (shard[1:] != shard[:-1]) | (offset[1:] != offset[:-1] + nbytes[:-1].astype(np.uint64))
    return np.concatenate(([0], np.cumsum(breaks))).astype(np.int64)


def _add_stream(batch: dict[str, Any], name: str, table: Table, maker: Maker, memory: Memory,
                pick: _Picks, wanted: _Wanted) -> None:
    """Adds what a batch has of a stream."""
    there = pick.records >= 0
    times = np.where(there, table.times[np.maximum(pick.records, 0)], 0) if len(table.times) else \
        np.zeros(len(pick.records), np.int64)
    if table.shape is None or table.plan.form == "object":
        batch[name] = _loose(table, maker, memory, pick, wanted)
    else:
        values = _gathered(table, maker, memory, pick.records, wanted, pick.shape)
        if pick.upper is not None and pick.weight is not None:
            above = _gathered(table, maker, memory, pick.upper, wanted, pick.shape)
            values = windows.interpolate(values, above, maker.index(pick.weight))
        batch[name] = values if pick.counts is None else _ragged(maker, values, pick.counts)
    batch[name + "_is_pad"] = maker.index(pick.is_pad)
    stamps = maker.index(times.reshape(pick.shape))
    if pick.counts is not None:
        stamps = _ragged(maker, stamps, pick.counts)
    batch[name + "_time_ns"] = stamps


def _ragged(maker: Maker, values: Any, counts: Int64s) -> Ragged:
    return Ragged(values, maker.index(np.concatenate(([0], np.cumsum(counts)))), counts)


def _gathered(table: Table, maker: Maker, memory: Memory, records: Int64s, wanted: _Wanted,
              shape: tuple[int, ...]) -> Any:
    """[*shape, ...]: records of one shape, zeros where one is missing."""
    dtype, one = table.plan.layout.dtype, table.shape
    assert one is not None
    missing = records < 0
    if missing.all() or not table.row_bytes:
        return maker.zeros(dtype, (*shape, *one))
    which = np.searchsorted(wanted.records, np.where(missing, wanted.records[0], records))
    rows = maker.rows(memory, wanted.begin[which], table.row_bytes).take(0, len(which))
    if missing.any():
        maker.clear(rows, np.flatnonzero(missing))
    return maker.typed(rows, dtype, (*shape, *one))


def _loose(table: Table, maker: Maker, memory: Memory, pick: _Picks, wanted: _Wanted) -> Any:
    """Records that differ in shape, or are encoded, or objects."""
    there = pick.records >= 0
    records = pick.records[there]
    which = np.searchsorted(wanted.records, records)
    begin, nbytes = wanted.begin[which], wanted.nbytes[which]
    rows: list[Any] = [None] * len(pick.records)
    if table.plan.form == "object":
        found = [object_of(table.source, table.plan, memory, at, count, sample)
                 for at, count, sample in zip(begin.tolist(), nbytes.tolist(),
                                              table.sample[records].tolist())]
    else:
        found = loose_rows(maker, memory, table.plan, begin, nbytes, wanted.kinds[which],
                           lambda row: table.source.key(int(table.sample[records[row]])))
    for place, row in zip(np.flatnonzero(there).tolist(), found):
        rows[place] = row
    if pick.counts is not None:
        counts = pick.counts.tolist()
    elif len(pick.shape) == 2:
        counts = [pick.shape[1]] * pick.shape[0]
    else:
        return rows
    ends = np.cumsum(counts).tolist()
    return [rows[end - count:end] for end, count in zip(ends, counts)]


