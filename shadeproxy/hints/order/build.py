"""Builds the columns of an order tracker, from a job's announcements and from the places that are *over*:
those that the job has read or passed.

A job with a step limit stops reading each epoch at the same position. ``Tail`` finds that position, and the
build leaves the rest of the epoch out. An order is cut only after the job left the rest of an epoch unread.
When the job reads beyond the cut, the order is restored in full. One position holds for all ranks, because
ranks train in lock step. Laws: ``Build.run`` is pure and safe in any thread. Its result belongs to the order
tracker that takes it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.hints.datasets import Bits, Dataset, Ids
from shadeproxy.hints.jobs import Progress
from shadeproxy.hints.order.lookup import Lookup
from shadeproxy.hints.order.sequence import (
    NEVER,
    Epoch,
    OrderIds,
    OrderSequence,
    Parts,
    Places,
    carry,
    carry_share,
    move,
    position_of,
    seek,
    sequence_of,
    shift_of,
)
from shadeproxy.hints.order.share import OwnedShare

_LEAST_READ = 64
_MARGIN_SHARE = 8
_LEAST_MARGIN = 64
_MOST_BY_CHANCE = 0.5


class Tail:
    """Remembers how far one job reads its epochs. ``stops_at``: the position at which it left the last epoch;
    None if it seems to read each epoch to its end.
    """

    def __init__(self) -> None:
        self.stops_at: int | None = None

    def left(self, epoch: Epoch, place: int) -> None:
        """Note that the job has left ``epoch`` at ``place`` and reads a later epoch."""
        position = position_of(epoch, place)
        if position >= _LEAST_READ:
            self.stops_at = position

    def read_to(self, epoch: Epoch, place: int) -> None:
        """Note that the job is at ``place`` of ``epoch``. Drop the cut if the place is beyond it."""
        if (
            self.stops_at is not None
            and position_of(epoch, place) > self.stops_at + _margin(self.stops_at) // 2
        ):
            self.stops_at = None


def cut(parts: Parts, stops_at: int | None) -> dict[int, dict[int, OrderIds]]:
    """Return the part of announced epochs that will be read: each rank's ids up to a little beyond
    ``stops_at``.
    """
    end = None if stops_at is None else stops_at + _margin(stops_at)
    return {epoch: {rank: ids[:end] for rank, ids in ranks.items()} for epoch, ranks in parts.items()}


def _margin(position: int) -> int:
    return max(position // _MARGIN_SHARE, _LEAST_MARGIN)


_UNREAD = -NEVER


class OrderColumns(NamedTuple):
    """Columns of an order. next_at: i32[n], for each sample its earliest place that is not over, or NEVER.
    last_read: i32[n], latest place at which each sample was read. done: bool[m], places that were read or
    passed. page_next: i32[pages], the next place of each page (``Lookup.page_next``). mine: bool[n], the
    samples whose reads this proxy answers; None: all.
    """

    sequence: OrderSequence
    done: NDArray[np.bool_]
    next_at: Places
    last_read: Places
    page_next: Places
    mine: Bits | None = None

    def share_near(self, epoch: Epoch | None, floor: int, cursor: int, near: int) -> float:
        """Return the share of the reads of ``epoch`` that would be found near the cursor in any order. The
        cursor is in that epoch. All places below ``floor`` are over.
        """
        near_done = self.done[floor : cursor + near + 1]
        waiting = len(near_done) - int(np.count_nonzero(near_done))
        return 0.0 if epoch is None else min(waiting / max(epoch.distinct, 1), _MOST_BY_CHANCE)

    def pass_over(self, start: int, stop: int) -> tuple[int, OrderIds]:
        """Mark the places from ``start`` to ``stop`` as over. Return how many were not, and the samples of
        which the next place has changed.
        """
        ids, done = self.sequence.ids[start:stop], self.done[start:stop]
        missed = (stop - start) - int(np.count_nonzero(done))
        late = np.flatnonzero(self.next_at[ids] < stop)
        # If ids repeat, the last assignment stays: the furthest place.
        self.next_at[ids[late]] = self.sequence.next[start:stop][late]
        done[:] = True
        return missed, ids[late]


class Built(NamedTuple):
    """The result of ``Build.run``. ``cursor``: the job's place in the new order. ``is_elsewhere``: True if
    the unannounced reads were found at another place, to which the cursor went. ``stops_at``: the position at
    which each epoch was cut; None if none was. ``is_of_other_share``: True if other proxies may have answered
    reads near the cursor. ``shift``: by how much a place is lower in the new order than in the one before;
    None if the orders differ in content, or the job went back.
    """

    lookup: Lookup
    columns: OrderColumns
    cursor: int
    is_elsewhere: bool = False
    stops_at: int | None = None
    is_of_other_share: bool = False
    shift: int | None = None


@dataclass(frozen=True, slots=True)
class Build:
    """The build of a new order. Call ``run`` in any thread.

    ``back_to``: the epoch from which the job begins again. ``resumed``: the job's place before a restart of
    the proxy. ``unannounced``: the job's latest unannounced reads; if they lie within ``near`` places of each
    other, the job is there. ``stops_at``: the position at which to cut each epoch (``Tail``). ``share``: the
    objects whose samples the order has; None: all objects.
    """

    parts: Parts
    dataset: Dataset
    page_size: int
    lookup: Lookup | None = None
    before: OrderColumns | None = None
    cursor: int = 0
    back_to: int | None = None
    resumed: Progress | None = None
    unannounced: Ids | None = None
    near: int = 0
    stops_at: int | None = None
    share: OwnedShare | None = None

    def run(self) -> Built:
        """Build the order."""
        lookup = self.lookup or Lookup(self.dataset, self.page_size)
        mine = None if self.share is None else self.share.samples(lookup)
        is_other = mine is not None if self.before is None else mine is not self.before.mine
        built = self._run(lookup, mine, is_other=is_other)
        columns = built.columns._replace(mine=mine)
        shift, before = None, None if self.before is None else self.before.sequence
        # If the job goes back, it reads places again that were over: then ``shift`` is None.
        if before is not None and built.cursor >= move(before, self.cursor, columns.sequence):
            shift = shift_of(before, columns.sequence)
        return built._replace(
            columns=columns, stops_at=self.stops_at, is_of_other_share=is_other, shift=shift
        )

    def _run(self, lookup: Lookup, mine: Bits | None, *, is_other: bool) -> Built:
        sequence = sequence_of(cut(self.parts, self.stops_at), self.dataset.count, lookup.canonical, mine)
        done, cursor = np.zeros(len(sequence.ids), dtype=np.bool_), 0
        before = self.before
        if before is not None and len(before.sequence.ids):
            cursor = move(before.sequence, self.cursor, sequence)
            if is_other or mine is not None:
                done = carry_share(before.sequence, before.done, sequence, cursor if is_other else 0)
            else:
                done = carry(before.sequence, before.done, sequence)
        elif self.resumed is not None and (epoch := sequence.find(self.resumed.epoch)) is not None:
            cursor = epoch.place(self.resumed.position)
            done[:cursor] = True
        again = None if self.back_to is None else sequence.find(self.back_to)
        if again is not None and again.start < cursor:
            cursor = again.start
            done[cursor:] = False
        elif self.unannounced is not None and len(found := self._seek(sequence, self.unannounced)):
            done[: found[0]], done[found[0] :] = True, False
            done[found] = True
            return Built(lookup, columns_of(sequence, done, lookup), int(found[len(found) // 2]), True)
        return Built(lookup, columns_of(sequence, done, lookup), cursor)

    def _seek(self, sequence: OrderSequence, unannounced: Ids) -> Ids:
        return seek(sequence, unannounced, self.dataset.count, self.near)


def columns_of(sequence: OrderSequence, done: NDArray[np.bool_], lookup: Lookup) -> OrderColumns:
    """Return the columns of a sequence. ``done``: the places that are over."""
    count = lookup.dataset.count
    next_at = np.full(count, NEVER, dtype=np.int32)
    last_read = np.full(count, _UNREAD, dtype=np.int32)
    left = np.flatnonzero(~done)[::-1].astype(np.int32)
    next_at[sequence.ids[left]] = left
    over = np.flatnonzero(done).astype(np.int32)
    last_read[sequence.ids[over]] = over
    return OrderColumns(sequence, done, next_at, last_read, lookup.page_next(next_at))
