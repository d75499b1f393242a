"""Known events: the numbers of the events that were applied, so that no event is applied twice.

The log is not trusted: it may return an old event again. And a proxy sends an event again if it got no answer
the first time. For each node, this module keeps the numbers of the last events of the node's latest start
(its boot). Events of earlier boots are no longer applied.
"""

from collections import deque
from dataclasses import dataclass, field

_KEPT = 1024


@dataclass(slots=True)
class _Known:
    boot: int
    floor: int = 0
    latest: deque[int] = field(default_factory=deque)


class KnownEvents:
    """Knows, for each node, which of the events that the node sent were applied here."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Known] = {}

    def has(self, node: str, boot: int, number: int) -> bool:
        """Return whether this event was noted before, or is too old: it is of an earlier boot, or its number
        is not above one that is no longer kept.
        """
        seen = self._nodes.get(node)
        if seen is None or boot > seen.boot:
            return False
        return boot < seen.boot or number <= seen.floor or number in seen.latest

    def note(self, node: str, boot: int, number: int) -> None:
        """Note that an event was applied."""
        seen = self._nodes.get(node)
        if seen is None or boot > seen.boot:
            seen = self._nodes[node] = _Known(boot)
        seen.latest.append(number)
        if len(seen.latest) > _KEPT:
            seen.floor = max(seen.floor, seen.latest.popleft())

    def export(self) -> tuple[tuple[str, int, int], ...]:
        """Return, for each node, its name, its latest boot and the highest number of its events."""
        return tuple(
            (node, seen.boot, max(seen.latest, default=seen.floor)) for node, seen in self._nodes.items()
        )

    def restore(self, known: tuple[tuple[str, int, int], ...]) -> None:
        """Note the events that a snapshot contains. ``known``: as ``export`` returned it."""
        for node, boot, number in known:
            seen = self._nodes.get(node)
            if seen is None or boot > seen.boot:
                self._nodes[node] = _Known(boot, floor=number)
