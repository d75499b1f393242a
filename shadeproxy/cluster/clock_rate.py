"""The rate of this machine's clock, compared with that of the log's server.

A lease is safe only if the clocks of all nodes run at about the same rate: ``SLACK`` in timing.py allows two
clocks to differ by 10 %. A node cannot compare its clock with the clocks of other nodes. But it can compare
its clock with that of the log's server, whose time is in the answer to each beat.
"""

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

MOST_APART = 0.05
"""Largest acceptable difference between 1 and the rate of this machine's clock: 5 %. If the clocks of two
nodes differ from the server's clock by this much in opposite directions, they differ from each other by twice
as much.
"""
_EVERY_S = 10.0
_APART = 6
"""Each reading is compared with the one that came this many readings later. There is a minute between the
two, so one second of latency makes an error of less than 2 %.
"""
_READINGS = 60
_ENOUGH = 12


class Reading(NamedTuple):
    """The times of two clocks at one instant, in seconds. ``own_s``: by this machine's clock, since its boot.
    ``server_s``: by the clock of the log's server, as Unix time.
    """

    own_s: float
    server_s: float


def rate_of(readings: Sequence[Reading]) -> float | None:
    """Return how many seconds pass by this machine's clock in a second of the server's clock; None if there
    are too few readings to tell.

    The result is a median over pairs of readings. A few slow answers do not change a median. A step of the
    server's clock does not change it either, because the step lies between the two readings of only a few
    pairs.
    """
    pairs = list(zip(readings, readings[_APART:], strict=False))
    if len(pairs) < _ENOUGH:
        return None
    return median(
        (late.own_s - early.own_s) / max(late.server_s - early.server_s, 1e-3) for early, late in pairs
    )


class ClockRate:
    """Readings of both clocks in the last ten minutes."""

    def __init__(self) -> None:
        self._readings: deque[Reading] = deque(maxlen=_READINGS)

    def note(self, sent_s: float, answered_s: float, server_s: float) -> None:
        """Note the server's time ``server_s`` from the answer to a call, if the last reading is at least
        ``_EVERY_S`` old. ``sent_s`` and ``answered_s`` are the times of the call and of the answer, in
        seconds since this machine's boot.
        """
        at_s = (sent_s + answered_s) / 2
        if not self._readings or at_s - self._readings[-1].own_s >= _EVERY_S:
            self._readings.append(Reading(at_s, server_s))

    @property
    def rate(self) -> float | None:
        """The rate of this machine's clock, as ``rate_of`` returns it."""
        return rate_of(tuple(self._readings))
