"""Announced orders of one job as one sequence: epoch after epoch, with the ids of its ranks interleaved.

Laws: functions are pure and columns never change, so any thread may call them. Ranks train in lock step, so
position p of every rank comes before position p + 1 of any rank. A *place* is an index into the sequence.
Each place has a link to the next place of the same id; eviction needs only this to know the next read. Where
a proxy caches only a share of the objects, its sequence has only places of the share's samples, and each
epoch keeps the index of each place in the whole epoch. Positions always count in the whole order.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.hints import job_state
from shadeproxy.hints.datasets import Scalar

OrderIds = NDArray[np.uint32]
Places = NDArray[np.int32]

NEVER = job_state.NEVER
"""The place of an id that is not announced."""

LEAST_NEAR = 64
_MOST_NEAR = 16_384  # Most places around the cursor that count as near, for each rank.
# Places up to 1 / n of an epoch before or after the cursor count as near: a quarter of the epoch in all. So a
# quarter of the reads match a false order by chance.
_NEAR_SHARE = 8
_MOST = 0.6

Parts = Mapping[int, Mapping[int, OrderIds]]
"""Announced ids by epoch and rank."""


class Epoch(NamedTuple):
    """An announced epoch: its ranks, the number of ids that each rank announced, its first place, and its
    number of distinct ids. kept: the index in the whole epoch of each place, ascending; None if the sequence
    has the whole epoch.
    """

    number: int
    ranks: tuple[int, ...]
    lengths: tuple[int, ...]
    start: int
    distinct: int = 0
    kept: Places | None = None

    @property
    def stop(self) -> int:
        return self.start + (sum(self.lengths) if self.kept is None else len(self.kept))

    def place(self, position: int) -> int:
        """Return the first place at which every rank is at ``position`` or later."""
        before = sum(min(length, position) for length in self.lengths)
        return self.start + (before if self.kept is None else int(np.searchsorted(self.kept, before)))

    def before(self, place: int) -> int:
        """Return how many ids of the whole epoch come before ``place``; at the end, all of them."""
        left = max(place - self.start, 0)
        if self.kept is None or not left:
            return left
        return int(self.kept[left - 1]) + 1 if left < len(self.kept) else sum(self.lengths)


@dataclass(frozen=True, slots=True, eq=False)
class OrderSequence:
    """Columns of a sequence. ids: u32[m] by place; samples with the same bytes all have the first one's id.
    next: i32[m], the next place of the same id, or NEVER.
    """

    ids: OrderIds
    next: Places
    epochs: tuple[Epoch, ...]

    def epoch_at(self, place: int) -> Epoch | None:
        """Return the epoch that contains a place. For a place beyond the end, return the last epoch; for an
        empty sequence, None.
        """
        epoch = None
        for epoch in self.epochs:
            if place < epoch.stop:
                break
        return epoch

    def find(self, number: int) -> Epoch | None:
        """Return the epoch of that number."""
        return next((epoch for epoch in self.epochs if epoch.number == number), None)


def sequence_of(
    parts: Parts, count: int, canonical: OrderIds | None, mine: NDArray[np.bool_] | None = None
) -> OrderSequence:
    """Return the sequence of announced ids, each below ``count``. ``canonical``: u32[count], the id that
    replaces each id; None: no id is replaced. ``mine``: bool[count], the ids to keep; None: all. 1.28 M ids
    take about 50 ms; if many of them repeat, 150 ms.
    """
    epochs: list[Epoch] = []
    merged: list[OrderIds] = []
    start = 0
    for number in sorted(parts):
        ranks = tuple(sorted(rank for rank, ids in parts[number].items() if len(ids)))
        columns = [parts[number][rank] for rank in ranks]
        if columns:
            of_epoch, kept = _merge(columns), None
            if mine is not None:
                kept = np.flatnonzero(mine[of_epoch]).astype(np.int32)
                of_epoch = of_epoch[kept]
            epochs.append(Epoch(number, ranks, tuple(map(len, columns)), start, kept=kept))
            merged.append(of_epoch)
            start = epochs[-1].stop
    ids = np.concatenate(merged) if merged else np.empty(0, dtype=np.uint32)
    if canonical is not None:
        ids = canonical[ids]
    links, distinct = _link(ids, epochs, count)
    counted = (epoch._replace(distinct=many) for epoch, many in zip(epochs, distinct, strict=True))
    return OrderSequence(ids, links, tuple(counted))


def carry(old: OrderSequence, done: NDArray[np.bool_], new: OrderSequence) -> NDArray[np.bool_]:
    """Return which places of ``new`` are done: those done in ``old`` with the same rank, position and id."""
    carried = np.zeros(len(new.ids), dtype=np.bool_)
    for epoch in new.epochs:
        before = old.find(epoch.number)
        if before is None:
            continue
        here, there = (dict(zip(one.ranks, deal(one.lengths), strict=True)) for one in (epoch, before))
        for rank in here.keys() & there.keys():
            mine = _within(new.ids, epoch)[here[rank]]
            theirs = _within(old.ids, before)[there[rank]]
            both = min(len(mine), len(theirs))
            over = _within(done, before)[there[rank]][:both] & (mine[:both] == theirs[:both])
            places = np.arange(epoch.start, epoch.stop)[here[rank]]
            carried[places[:both]] = over
    return carried


def carry_share(
    old: OrderSequence, done: NDArray[np.bool_], new: OrderSequence, cursor: int
) -> NDArray[np.bool_]:
    """Return the result of ``carry`` for sequences of shares of the objects. A place that ``old`` lacks is
    done if it comes before ``cursor``, the job's place in ``new``: another proxy answered the read. For whole
    orders, ``carry`` does the same in a twentieth of the time.
    """
    carried = np.arange(len(new.ids)) < cursor
    for epoch in new.epochs:
        before = old.find(epoch.number)
        if before is None or before.start == before.stop or epoch.start == epoch.stop:
            continue
        mine, theirs = _names(epoch), _names(before)
        order = np.argsort(theirs)
        at = order[np.minimum(np.searchsorted(theirs, mine, sorter=order), len(order) - 1)]
        same = (theirs[at] == mine) & (_within(old.ids, before)[at] == _within(new.ids, epoch))
        _within(carried, epoch)[same] = _within(done, before)[at[same]]
    return carried


def move(old: OrderSequence, place: int, new: OrderSequence) -> int:
    """Return the place in ``new`` that corresponds to ``place`` of ``old``."""
    at = old.epoch_at(place)
    if at is None:
        return 0
    same = new.find(at.number)
    if same is None:
        return next((epoch.start for epoch in new.epochs if epoch.number > at.number), len(new.ids))
    return same.place(position_of(at, place))


def position_of(epoch: Epoch, place: int) -> int:
    """Return the position that every rank of ``epoch`` has reached when the job is at ``place``."""
    left = epoch.before(place)
    position = 0
    ends = sorted(epoch.lengths)
    for passed, end in enumerate(ends):
        ranks = len(ends) - passed
        if left < (end - position) * ranks:
            return position + left // ranks
        left -= (end - position) * ranks
        position = end
    return position


def goes_on(before: OrderSequence, after: OrderSequence) -> bool:
    """Return whether the accuracy that reads have shown for ``before`` also holds for ``after``. It does if
    the two have an epoch in common, or if ``before`` has no epoch.
    """
    numbers = {epoch.number for epoch in before.epochs}
    return not numbers or any(epoch.number in numbers for epoch in after.epochs)


def near_of(epoch: Epoch | None) -> int:
    """Return how many places before, and how many after, a place of ``epoch`` count as near it."""
    if epoch is None:
        return LEAST_NEAR
    # Count distinct ids: if each id is named ten times, a small share of the places has nearly every id.
    return max(LEAST_NEAR, min(epoch.distinct // _NEAR_SHARE, _MOST_NEAR * len(epoch.ranks)))


def shift_of(before: OrderSequence, after: OrderSequence) -> int | None:
    """Return by how much a place of ``before`` is higher than the place of the same announced read in
    ``after``. Return None if the difference may vary. It is the same for all places if ``after`` lacks only
    the first epochs of ``before``, and new epochs come after all others.
    """
    known, new = ([epoch.number for epoch in one.epochs] for one in (before, after))
    both = known[known.index(new[0]) :] if new and new[0] in known else []
    if not both or new[: len(both)] != both:
        return None
    shifts = set()
    for epoch, number in zip(after.epochs, both, strict=False):
        old = before.epochs[known.index(number)]
        same = np.array_equal(_within(before.ids, old), _within(after.ids, epoch))
        shifts.add(old.start - epoch.start if same else None)
    return shifts.pop() if len(shifts) == 1 else None


def seek(sequence: OrderSequence, ids: NDArray[np.int64], count: int, width: int) -> NDArray[np.int64]:
    """Return the places of ``ids`` in the stretch of ``width`` places that holds most of them; no places if
    the stretch holds too few. ``count``: the number of samples; ids are below it.

    The stretch must hold a much larger share of ``ids`` than it would by chance. If epochs are short, it
    holds a large share by chance.
    """
    wanted = np.zeros(count, dtype=np.bool_)
    wanted[ids] = True
    places = np.flatnonzero(wanted[sequence.ids])
    if not len(places):
        return places
    # For each wanted place, count the wanted places in the ``width`` places from it on. This counts an id
    # once, because so short a stretch hardly repeats an id.
    within = np.searchsorted(places, places + width) - np.arange(len(places))
    best = int(within.argmax())
    found = places[best : best + int(within[best])]
    by_chance = min(width / max(epoch.distinct for epoch in sequence.epochs), 1.0)
    most = max(_MOST, (1 + by_chance) / 2)
    enough = len(np.unique(sequence.ids[found])) >= most * np.count_nonzero(wanted)
    return found if enough else found[:0]


def deal(lengths: Many[int]) -> list[slice | NDArray[np.int64]]:
    """Return the places of each rank's ids in an epoch whose ranks have ``lengths`` ids."""
    if len(set(lengths)) <= 1:
        return [slice(rank, None, len(lengths)) for rank in range(len(lengths))]
    order = _order(lengths)
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.arange(len(order))
    return list(np.split(places, np.cumsum(lengths)[:-1]))


def _merge(columns: Many[OrderIds]) -> OrderIds:
    lengths = [len(column) for column in columns]
    if len(columns) == 1:
        return columns[0]
    if len(set(lengths)) == 1:
        return np.stack(columns, axis=1).reshape(-1)
    return np.concatenate(columns)[_order(lengths)]


def _order(lengths: Many[int]) -> NDArray[np.int64]:
    """Return the order that turns ids rank by rank into ids position by position."""
    positions = np.concatenate([np.arange(length, dtype=np.uint32) for length in lengths])
    return _stable_order(positions)


def _names(epoch: Epoch) -> NDArray[np.int64]:
    """Return, for each place of an epoch, a number made of rank and position. It is the same in every share
    of the epoch.
    """
    lengths = np.array(epoch.lengths)
    whole = np.arange(lengths.sum()) if epoch.kept is None else epoch.kept.astype(np.int64)
    if len(set(epoch.lengths)) == 1:
        rank, position = whole % len(lengths), whole // len(lengths)
    else:
        by_rank = _order(epoch.lengths)[whole]
        ends = np.cumsum(lengths)
        rank = np.searchsorted(ends, by_rank, side="right")
        position = by_rank - (ends - lengths)[rank]
    names: NDArray[np.int64] = np.array(epoch.ranks, dtype=np.int64)[rank] << 32 | position
    return names


def _link(ids: OrderIds, epochs: list[Epoch], count: int) -> tuple[Places, list[int]]:
    """Return, for each place, the next place of its id; and the number of distinct ids of each epoch."""
    distinct: list[int] = []
    head = np.full(count, NEVER, dtype=np.int32)
    links = np.empty(len(ids), dtype=np.int32)
    for epoch in reversed(epochs):
        mine = ids[epoch.start : epoch.stop]
        places = np.arange(epoch.start, epoch.stop, dtype=np.int32)
        link = head[mine]
        # If ids repeat, the last assignment stays. Both columns are reversed, so it is the first place.
        head[mine[::-1]] = places[::-1]
        distinct.append(int(np.count_nonzero(head[mine] == places)))
        if distinct[-1] < len(mine):
            order = _stable_order(mine)
            again = np.flatnonzero(mine[order[1:]] == mine[order[:-1]])
            link[order[again]] = places[order[again + 1]]
        links[epoch.start : epoch.stop] = link
    return links, distinct[::-1]


def _stable_order(values: OrderIds) -> NDArray[np.int64]:
    """Return the result of a stable argsort in a third of the time: numpy uses radix sort for 16 bits."""
    order = np.argsort((values & 0xFFFF).astype(np.uint16), kind="stable")
    high = (values >> 16).astype(np.uint16)
    if not high.any():
        return order
    stable: NDArray[np.int64] = order[np.argsort(high[order], kind="stable")]
    return stable


def _within(column: NDArray[Scalar], epoch: Epoch) -> NDArray[Scalar]:
    return column[epoch.start : epoch.stop]
