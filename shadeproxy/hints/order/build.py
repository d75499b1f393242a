"""The build of an order tracker's columns, from the announcements and the places that are over.

Law: ``Build.run`` is pure and safe in any thread; its result belongs to the order tracker that takes it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.hints.datasets import Dataset, Ids
from shadeproxy.hints.jobs import Progress
from shadeproxy.hints.order.lookup import Lookup
from shadeproxy.hints.order.sequence import (
    NEVER,
    OrderSequence,
    Parts,
    Places,
    carry,
    move,
    seek,
    sequence_of,
)
from shadeproxy.hints.order.tail import cut

_UNREAD = -NEVER


class OrderColumns(NamedTuple):
    """Columns of an order. next_at: i32[n], earliest place of each sample not over, or NEVER. last_read:
    i32[n], latest place read. done: bool[m], read or passed. page_next: i32[pages], see Lookup.
    """

    sequence: OrderSequence
    done: NDArray[np.bool_]
    next_at: Places
    last_read: Places
    page_next: Places


class Built(NamedTuple):
    """The result of ``Build.run``. ``cursor``: the job's place in it. ``is_elsewhere``: the unannounced
    reads were found at another place. ``stops_at``: as in ``Build``.
    """

    lookup: Lookup
    columns: OrderColumns
    cursor: int
    is_elsewhere: bool = False
    stops_at: int | None = None


@dataclass(frozen=True, slots=True)
class Build:
    """The build of a new order. Call ``run`` in any thread.

    ``back_to``: the epoch with which the job begins again. ``resumed``: the job's place before a restart.
    ``unannounced``: its latest unannounced reads; if they lie within ``near`` places, the job is there.
    ``stops_at``: see Tail.
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

    def run(self) -> Built:
        """Build the order."""
        return self._run()._replace(stops_at=self.stops_at)

    def _run(self) -> Built:
        lookup = self.lookup or Lookup(self.dataset, self.page_size)
        sequence = sequence_of(cut(self.parts, self.stops_at), self.dataset.count, lookup.canonical)
        done, cursor = np.zeros(len(sequence.ids), dtype=np.bool_), 0
        if self.before is not None:
            done = carry(self.before.sequence, self.before.done, sequence)
            cursor = move(self.before.sequence, self.cursor, sequence)
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
    """Return the columns that follow from ``done``."""
    count = lookup.dataset.count
    next_at = np.full(count, NEVER, dtype=np.int32)
    last_read = np.full(count, _UNREAD, dtype=np.int32)
    left = np.flatnonzero(~done)[::-1].astype(np.int32)
    next_at[sequence.ids[left]] = left
    over = np.flatnonzero(done).astype(np.int32)
    last_read[sequence.ids[over]] = over
    return OrderColumns(sequence, done, next_at, last_read, lookup.page_next(next_at))
