"""Known events: the numbers of the events that were applied, so that no event is applied twice.

The log is not trusted: it may return an old event again. And a proxy sends an event again if it got no answer
the first time. For each node and stream, this module keeps the numbers of the last events of the node's
latest start (its boot). In that stream, events of earlier boots are no longer applied. Streams are kept
apart, because a proxy that joins reads them one after the other: it may read the changes that a node sent
after a restart before the scores that the node sent earlier.
"""

from collections import deque
from dataclasses import dataclass, field

import msgspec

from shadeproxy.cluster.log import STREAM

_KEPT = 1024
_EXPORTED = 64
_MOST_SENDERS = 512


class KnownOf(msgspec.Struct, frozen=True, array_like=True):
    """The known events of one node in one stream, as a snapshot has them. ``floor``: all numbers up to this
    one count as known. ``latest``: the known numbers of the last events.
    """

    node: str
    stream: str
    boot: int
    floor: int
    latest: tuple[int, ...]


@dataclass(slots=True)
class _Known:
    boot: int
    floor: int = 0
    latest: deque[int] = field(default_factory=deque)


class KnownEvents:
    """Knows, for each node and stream, which of the events that the node sent were applied here."""

    def __init__(self) -> None:
        self._senders: dict[tuple[str, str], _Known] = {}

    def has(self, node: str, stream: str, boot: int, number: int) -> bool:
        """Return whether this event was noted before, or is too old: it is of an earlier boot, or its number
        is not above one that is no longer kept.
        """
        seen = self._senders.get((node, stream))
        if seen is None or boot > seen.boot:
            return False
        return boot < seen.boot or number <= seen.floor or number in seen.latest

    def note(self, node: str, stream: str, boot: int, number: int) -> None:
        """Note that an event was applied."""
        seen = self._senders.pop((node, stream), None)
        if seen is None or boot > seen.boot:
            seen = _Known(boot)
        self._senders[node, stream] = seen  # So the dict is ordered by time.
        seen.latest.append(number)
        if len(seen.latest) > _KEPT:
            seen.floor = max(seen.floor, seen.latest.popleft())
        if stream != STREAM and len(self._senders) > _MOST_SENDERS:
            # Changes that are applied twice would begin a run twice. Scores that are applied twice change
            # little, and their streams are as many as proxies times jobs.
            eldest = next(sender for sender in self._senders if sender[1] != STREAM)
            del self._senders[eldest]

    def export(self) -> tuple[KnownOf, ...]:
        """Return the known events for a snapshot. Of each node and stream, it has the last numbers one by
        one: an event with a smaller number may come later, because its content was stored first.
        """
        found = []
        for (node, stream), seen in self._senders.items():
            numbers = tuple(seen.latest)
            floor = max(numbers[:-_EXPORTED], default=0)
            found.append(KnownOf(node, stream, seen.boot, max(seen.floor, floor), numbers[-_EXPORTED:]))
        return tuple(found)

    def restore(self, known: tuple[KnownOf, ...]) -> None:
        """Note the events that a snapshot contains. ``known``: as ``export`` returned it."""
        for one in known:
            seen = self._senders.get((one.node, one.stream))
            if seen is None or one.boot > seen.boot:
                self._senders[one.node, one.stream] = _Known(one.boot, one.floor, deque(one.latest))
