"""Whether a job reads what it announced: an order that reads contradict is not used.

Law: two shares decide, over about the last thousand reads: of its reads, how many were announced near where
it is; of what it has passed, how much it read. Either below a half, and the order counts for nothing until
both are well above again. 5 % missing and a loader that reads far ahead stay far from that.
"""

_HALF_LIFE = 1024.0
_ENOUGH = 256.0
_DOUBT = 0.5
_TRUST = 0.6
_PROVEN = 32


class Share:
    """How many of the latest events were good ones."""

    def __init__(self) -> None:
        self._good = 0.0
        self._all = 0.0

    def note(self, good: int, bad: int) -> None:
        kept = 0.5 ** ((good + bad) / _HALF_LIFE)
        self._good = self._good * kept + good
        self._all = self._all * kept + good + bad

    def is_above(self, share: float) -> bool:
        """Whether it is, or too little is known."""
        return self._all < _ENOUGH or self._good >= share * self._all


class Truth:
    """What the reads of one job say of its order.

    ``found``: reads that were announced near where the job was; ``surprises``: reads that were not;
    ``missed``: announced samples that were passed unread. All since the proxy heard of the order.
    """

    def __init__(self) -> None:
        self.found = self.surprises = self.missed = 0
        self.believed = True
        self._found_before = 0
        self._reads = Share()
        self._passed = Share()

    @property
    def proven(self) -> bool:
        """Whether reads have confirmed the order: until then it may not displace anything."""
        return self.believed and self.found - self._found_before >= _PROVEN

    def heard(self, found: int, surprises: int) -> None:
        """So many reads were announced, and so many were not."""
        self.found += found
        self.surprises += surprises
        self._reads.note(found, surprises)
        self._judge()

    def passed(self, read: int, missed: int) -> None:
        """So many announced samples were passed, read or not."""
        self.missed += missed
        self._passed.note(read, missed)
        self._judge()

    def forget(self) -> None:
        """Another order: what the shares say is of the old one."""
        self._reads, self._passed = Share(), Share()
        self._found_before = self.found
        self.believed = True

    def _judge(self) -> None:
        bar = _DOUBT if self.believed else _TRUST
        self.believed = self._reads.is_above(bar) and self._passed.is_above(bar)
