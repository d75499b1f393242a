"""The accuracy of an order, and the unannounced reads, by which a search finds a job that has gone to another
place in its order.

Law: an order that reads contradict is not used. Two shares over about the last thousand reads decide. The
first is the share of reads that were announced near the job's place. The second is the share of passed places
that the job had read. When either falls below a half, the order is not used until both are well above a half
again. If 5 % of the reads are missing, or a loader reads far ahead, the order is still used. Law: a search
that does not find the job delays the next search, so a false order costs next to nothing.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from shadeproxy.hints.datasets import Bits, Ids
from shadeproxy.hints.order.sequence import Epoch, OrderSequence, Places

_HALF_LIFE = 1024.0
_ENOUGH = 256.0
_DOUBT = 0.5
_TRUST = 0.6
_PROVEN = 32


class Match(NamedTuple):
    """The match of reads with an order. ``found``: one bool for each read, True if it was announced near the
    cursor, the job's approximate place. ``others``: number of reads that are surely of the job and were not
    announced there; 0 if the order has no places left. ``again``: number of reads of samples that had just
    been read; such reads neither confirm nor contradict the order. ``chance``: share of reads that would be
    found near the cursor in any order.
    """

    found: Bits | list[bool]
    others: int
    again: int
    chance: float = 0.0


class JobMatch(NamedTuple):
    """Reads of one job, compared with its order. ``certain``: the reads are surely of that job.
    ``heard.found`` says of each read whether the order announced it near the job's place.
    """

    job: str
    certain: bool
    heard: Match


class RecentShare:
    """The share of good events among the latest events."""

    def __init__(self) -> None:
        self._good = 0.0
        self._all = 0.0

    def note(self, good: int, bad: int) -> None:
        kept = 0.5 ** ((good + bad) / _HALF_LIFE)
        self._good = self._good * kept + good
        self._all = self._all * kept + good + bad

    def is_above(self, share: float) -> bool:
        """Return whether the share is above ``share``. Also True while there are too few events to tell."""
        return self._all < _ENOUGH or self._good >= share * self._all


class OrderAccuracy:
    """The accuracy of one job's order.

    ``found``: number of reads that were announced near the job's place. ``surprises``: number of reads that
    were not. ``missed``: number of announced samples that the job passed unread. All three count from the
    first build of the order.
    """

    def __init__(self) -> None:
        self.found = self.surprises = self.missed = 0
        self.believed = True
        self._found_before = 0
        self._reads = RecentShare()
        self._passed = RecentShare()

    @property
    def proven(self) -> bool:
        """True if enough reads have confirmed the order. Then the cursor can be trusted to show where the job
        leaves an epoch.
        """
        return self.believed and self.found - self._found_before >= _PROVEN

    def heard(self, found: int, surprises: int) -> None:
        """Count reads that were announced, and reads that were not."""
        self.found += found
        self.surprises += surprises
        self._reads.note(found, surprises)
        self._judge()

    def passed(self, read: int, missed: int) -> None:
        """Count announced samples that the job passed: how many it had read, and how many not."""
        self.missed += missed
        self._passed.note(read, missed)
        self._judge()

    def forget(self) -> None:
        """Believe a new order, and measure both shares from zero. The totals stay."""
        self._reads, self._passed = RecentShare(), RecentShare()
        self._found_before = self.found
        self.believed = True

    def _judge(self) -> None:
        bar = _DOUBT if self.believed else _TRUST
        self.believed = self._reads.is_above(bar) and self._passed.is_above(bar)


_KEPT = 256
_FIRST_READS = 32
_MOST_OTHERS = 8
# Search only if an epoch is this many times as long as the searched places. In a shorter epoch, reads would
# be found there by chance.
_LEAST_EPOCHS = 3


class UnannouncedReads:
    """The latest unannounced reads of a job."""

    def __init__(self) -> None:
        self._latest: deque[int] = deque(maxlen=_KEPT)
        self._seek_at = _KEPT

    def note(self, samples: Iterable[int]) -> None:
        """Add samples that were read without having been announced."""
        self._latest.extend(samples)

    def are_many(self, accuracy: OrderAccuracy) -> bool:
        """Return whether so many reads were unannounced that the job may be at another place in its order."""
        return not accuracy.believed and accuracy.surprises >= self._seek_at

    def take(self, accuracy: OrderAccuracy, most: int) -> Ids:
        """Return at most ``most`` of the latest unannounced reads, to search for their place in the order.
        The next search waits until twice as many reads were unannounced.
        """
        self._seek_at = 2 * accuracy.surprises
        return np.array(list(self._latest)[-most:], dtype=np.int64)

    def begin(self, sequence: OrderSequence, epoch: Epoch, next_at: Places, near: int) -> Ids | None:
        """Return the latest unannounced reads that are among the first ``near`` places of ``epoch``, the
        epoch after the job's present one. Return None unless nearly all of the latest unannounced reads lie
        there, because only then has the job begun ``epoch``.

        ``next_at``: next place of each sample in the order.
        """
        if len(self._latest) < _FIRST_READS or epoch.distinct < _LEAST_EPOCHS * near:
            return None
        latest = np.array(list(self._latest)[-_FIRST_READS:], dtype=np.int64)
        places = next_at[latest]
        unread = places < epoch.start
        places[unread] = sequence.next[places[unread]]
        first = (places >= epoch.start) & (places < epoch.start + near)
        return latest[first] if np.count_nonzero(first) >= _FIRST_READS - _MOST_OTHERS else None

    def found(self, accuracy: OrderAccuracy) -> None:
        """Forget the reads, because the job has been found by them."""
        self._latest.clear()
        self._seek_at = accuracy.surprises + _KEPT
