"""The events of a run. The report of a violation shows the events before it."""

import time
from collections import deque
from typing import NamedTuple

_MOST = 20_000
_BEFORE_S = 40.0
_FAULT = -1


class _Event(NamedTuple):
    at_s: float
    number: int
    text: str


class Journal:
    """The last events: faults, and the writes and reads of each object."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._events: deque[_Event] = deque(maxlen=_MOST)

    def now_s(self) -> float:
        """Return the seconds since the run began."""
        return time.monotonic() - self._began_s

    def fault(self, text: str) -> None:
        self._events.append(_Event(self.now_s(), _FAULT, text))

    def note(self, number: int, text: str) -> None:
        """Record an event of object ``number``."""
        self._events.append(_Event(self.now_s(), number, text))

    def before(self, number: int) -> list[str]:
        """Return the events of the last seconds, a line each: all faults, and the events of object
        ``number``.
        """
        least_s = self.now_s() - _BEFORE_S
        return [
            f"{one.at_s:9.3f}  {'FAULT  ' * (one.number == _FAULT)}{one.text}"
            for one in self._events
            if one.at_s >= least_s and one.number in {number, _FAULT}
        ]
