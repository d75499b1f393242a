"""Counters of requests that were sent to other nodes, by node and result."""

from enum import StrEnum
from typing import NamedTuple


class RelayEnd(StrEnum):
    """The end of a request to another node."""

    OK = "ok"
    """The node answered."""
    FALLBACK = "fallback"
    """A read got no answer in time, or was not sent because of earlier failures: the origin was read."""
    MISDIRECTED = "misdirected"
    """The node has another view. A read went to the origin, a write was not executed."""
    REFUSED = "refused"
    """The node is stopping, does not accept the signature, or could not be reached for a write."""
    BROKEN = "broken"
    """The answer broke off after it had begun, or the outcome of a write is unknown."""


class RelayRow(NamedTuple):
    """Counts of one node and result. ``bytes``: bytes of the bodies, in both directions."""

    node: str
    result: RelayEnd
    requests: int
    bytes: int
    seconds: float


class RelayCounts:
    """Counts the requests that ``note`` reports. A process has one such object."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, RelayEnd], RelayRow] = {}

    def note(self, node: str, result: RelayEnd, size_bytes: int, seconds: float) -> None:
        row = self._rows.get((node, result)) or RelayRow(node, result, 0, 0, 0.0)
        self._rows[node, result] = RelayRow(
            node, result, row.requests + 1, row.bytes + size_bytes, row.seconds + seconds
        )

    def rows(self) -> list[RelayRow]:
        """Return the counts since the start, ordered by node and result."""
        return [self._rows[key] for key in sorted(self._rows)]
