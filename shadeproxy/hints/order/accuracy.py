"""Accuracy of an order: an order that reads contradict is not used.

Law: two shares over about the last thousand reads decide: how many reads were announced near the job's place,
and how many of the places it passed it had read. When either falls below a half, the order counts for nothing
until both are well above again. 5 % missing and a loader that reads far ahead stay far from that.
"""

_HALF_LIFE = 1024.0
_ENOUGH = 256.0
_DOUBT = 0.5
_TRUST = 0.6
_PROVEN = 32


class RecentShare:
    """The share of good events among the latest ones."""

    def __init__(self) -> None:
        self._good = 0.0
        self._all = 0.0

    def note(self, good: int, bad: int) -> None:
        kept = 0.5 ** ((good + bad) / _HALF_LIFE)
        self._good = self._good * kept + good
        self._all = self._all * kept + good + bad

    def is_above(self, share: float) -> bool:
        """Return whether the share is above ``share``, or too little is known."""
        return self._all < _ENOUGH or self._good >= share * self._all


class OrderAccuracy:
    """The accuracy of one job's order.

    ``found``: reads that were announced near where the job was; ``surprises``: reads that were not;
    ``missed``: announced samples that were passed unread. All since the first build of the order.
    """

    def __init__(self) -> None:
        self.found = self.surprises = self.missed = 0
        self.believed = True
        self._found_before = 0
        self._reads = RecentShare()
        self._passed = RecentShare()

    @property
    def proven(self) -> bool:
        """True if reads have confirmed the order, so that the place at which a job left an epoch is known."""
        return self.believed and self.found - self._found_before >= _PROVEN

    def heard(self, found: int, surprises: int) -> None:
        """Count reads that were announced, and reads that were not."""
        self.found += found
        self.surprises += surprises
        self._reads.note(found, surprises)
        self._judge()

    def passed(self, read: int, missed: int) -> None:
        """Count announced samples that the job passed, read or not."""
        self.missed += missed
        self._passed.note(read, missed)
        self._judge()

    def forget(self) -> None:
        """Start the shares again for another order."""
        self._reads, self._passed = RecentShare(), RecentShare()
        self._found_before = self.found
        self.believed = True

    def _judge(self) -> None:
        bar = _DOUBT if self.believed else _TRUST
        self.believed = self._reads.is_above(bar) and self._passed.is_above(bar)
