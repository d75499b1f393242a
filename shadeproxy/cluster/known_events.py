"""Known events: the numbers of the events that were applied, so that no event counts twice.

The log is not trusted: it may return an old event again. And a proxy sends an event twice if the answer to
the first time was lost. For each node, the numbers of its last events are kept for its latest start (boot).
Events of earlier boots are no longer applied.
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
    """Knows, for each node, which of its events were applied."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Known] = {}

    def has(self, node: str, boot: int, number: int) -> bool:
        """Return whether an event was seen before, or is of an earlier boot than an event that was."""
        seen = self._nodes.get(node)
        if seen is None or boot > seen.boot:
            return False
        return boot < seen.boot or number <= seen.floor or number in seen.latest

    def note(self, node: str, boot: int, number: int) -> None:
        """Note an event that was not seen before."""
        seen = self._nodes.get(node)
        if seen is None or boot > seen.boot:
            seen = self._nodes[node] = _Known(boot)
        seen.latest.append(number)
        if len(seen.latest) > _KEPT:
            seen.floor = max(seen.floor, seen.latest.popleft())

    def export(self) -> tuple[tuple[str, int, int], ...]:
        """Return node, boot and highest number of each node's events."""
        return tuple(
            (node, seen.boot, max(seen.latest, default=seen.floor)) for node, seen in self._nodes.items()
        )

    def restore(self, known: tuple[tuple[str, int, int], ...]) -> None:
        """Note the events that are part of a snapshot."""
        for node, boot, number in known:
            seen = self._nodes.get(node)
            if seen is None or boot > seen.boot:
                self._nodes[node] = _Known(boot, floor=number)
