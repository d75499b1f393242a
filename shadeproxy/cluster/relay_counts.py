"""Counters of requests that were sent to other nodes, by node and result."""

from collections.abc import Iterable
from enum import StrEnum
from operator import itemgetter
from typing import NamedTuple


class RelayEnd(StrEnum):
    """The end of a request to another node."""

    OK = "ok"
    """The node answered."""
    FALLBACK = "fallback"
    """A read got no answer in time, or was not sent because earlier reads failed. The origin was read
    instead.
    """
    MISDIRECTED = "misdirected"
    """The node refused, because it has another view. A read went to the origin; a write was not executed."""
    REFUSED = "refused"
    """The node is stopping, does not accept the signature, or could not be reached for a write."""
    BROKEN = "broken"
    """The answer broke off after it had begun, or the outcome of a write is unknown."""


class RelayRow(NamedTuple):
    """Counts of the requests to one node with one result. ``bytes``: bytes of the bodies, in both
    directions.
    """

    node: str
    result: RelayEnd
    requests: int
    bytes: int
    seconds: float


class _Sums:
    """The three sums of a ``RelayRow``, which grow."""

    __slots__ = ("bytes", "requests", "seconds")

    def __init__(self) -> None:
        self.requests = self.bytes = 0
        self.seconds = 0.0


class RelayCounts:
    """Counts requests to other nodes: ``note`` counts those of this process, and ``add`` those of its
    workers. Each process has one such object.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, RelayEnd], _Sums] = {}

    def note(self, node: str, result: RelayEnd, size_bytes: int, seconds: float) -> None:
        sums = self._sums.get((node, result))
        if sums is None:
            sums = self._sums[node, result] = _Sums()
        sums.requests += 1
        sums.bytes += size_bytes
        sums.seconds += seconds

    def add(self, rows: Iterable[RelayRow]) -> None:
        """Add the rows that another process counted."""
        for row in rows:
            sums = self._sums.setdefault((row.node, row.result), _Sums())
            sums.requests += row.requests
            sums.bytes += row.bytes
            sums.seconds += row.seconds

    def take(self) -> list[RelayRow]:
        """Return the counts since the last call, and begin again at zero."""
        rows, self._sums = self.rows(), {}
        return rows

    def rows(self) -> list[RelayRow]:
        """Return the counts since the start, ordered by node and result."""
        return [
            RelayRow(node, result, sums.requests, sums.bytes, sums.seconds)
            for (node, result), sums in sorted(self._sums.items(), key=itemgetter(0))
        ]
