"""Results of the clients of a phase. The clients' process sends them to the run as one line of JSON."""

from collections import Counter

import msgspec
import numpy as np

RIGHT, SLOW_DOWN, TOO_SLOW = "right", "503 SlowDown", "400 RequestTimeout"
REFUSED, CUT, WRONG, HASTY = "refused", "cut off", "wrong bytes", "503 without Retry-After"


class Side(msgspec.Struct):
    """Results of one kind of client. ``outcomes``: number of answers by outcome. The times are those that
    right answers took.
    """

    outcomes: dict[str, int] = {}
    p50_s: float = 0.0
    p99_s: float = 0.0
    rate: float = 0.0
    """Right answers a second."""

    @property
    def total(self) -> int:
        return sum(self.outcomes.values())


class Told(msgspec.Struct):
    """The results of one process of clients. ``sides``: by kind of client. ``notes``: further numbers, which
    belong to no kind of client.
    """

    sides: dict[str, Side] = {}
    notes: dict[str, float] = {}


class Tally:
    """Counts answers of one kind of client, and how long the right answers took."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self._waits_s: list[float] = []

    def right(self, wait_s: float) -> None:
        self.outcomes[RIGHT] += 1
        self._waits_s.append(wait_s)

    def side(self, seconds: float) -> Side:
        waits = np.array(self._waits_s or [0.0])
        return Side(
            dict(self.outcomes),
            float(np.percentile(waits, 50)),
            float(np.percentile(waits, 99)),
            self.outcomes[RIGHT] / seconds,
        )
