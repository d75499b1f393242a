"""Next uses by announced orders: the next read of each object, as far as its jobs have announced.

Laws: no read is known before it was announced; every job has its own clock, and its distance in reads becomes
time by the pace measured so far. Time is in reads of all jobs together.
"""

import re
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import ConfigError
from shadeproxy.policy.base import Column
from shadeproxy.simulate.trace import Epochs, Ids, Trace

Positions = NDArray[np.int64]

_PACE_READS = 4096.0
_LEAST_PACE = 1e-6


class Announce(NamedTuple):
    """Timing of orders. ``epochs``: number announced, the current one included; 0 none, -1 all.

    ``half``: one more from the middle of an epoch on.
    """

    epochs: int
    half: bool = False


_NAMED = {
    "none": Announce(0),
    "epoch": Announce(1),
    "next-half": Announce(1, half=True),
    "all": Announce(-1),
}


def parse_announce(text: str) -> Announce:
    """Return the timing named by ``text``. Raises ConfigError."""
    if re.fullmatch(r"[1-9]\d{0,4}", text):
        return Announce(int(text))
    if text not in _NAMED:
        raise ConfigError(f"--announce: {text!r} is none of {', '.join(_NAMED)}, and no number of epochs")
    return _NAMED[text]


def require_epochs(trace: Trace, announce: Announce) -> None:
    """Raise ConfigError when orders come by epochs and the trace has no epochs."""
    if announce.epochs > 0 and trace.epochs is None:
        raise ConfigError("--announce: the trace has no array epochs; only none and all can be announced")


class NextUses:
    """Next uses by time. ``begin`` the blocks of a trace in order, then ask at their reads in order."""

    def __init__(self, trace: Trace, announce: Announce) -> None:
        """Raise ConfigError when orders come by epochs and the trace has no epochs."""
        require_epochs(trace, announce)
        self._ids = trace.ids
        if trace.jobs is None:
            self._job_of = np.zeros(len(trace.ids), dtype=np.intp)
        else:
            self._job_of = np.unique(trace.jobs, return_inverse=True)[1]
        jobs = int(self._job_of.max()) + 1
        self._orders = [_Order(trace, self._job_of == job, announce) for job in range(jobs)]
        self._pace = np.full(jobs, 1.0 / jobs)
        self._start = 0
        self._done = np.zeros((1, jobs), dtype=np.int64)  # reads of each job up to each read of the block

    def begin(self, start: int, stop: int) -> Column:
        """Return, for each of the coming reads ``[start, stop)``, the time until its object is read again."""
        self._measure()
        mine = self._job_of[start:stop, None] == np.arange(len(self._orders))
        self._done = self._done[-1] + np.cumsum(mine, axis=0)
        self._start = start
        ids = self._ids[start:stop]
        return _earliest([
            order.after(ids, done) / pace
            for order, done, pace in zip(self._orders, self._done.T, self._pace.tolist(), strict=True)
        ])  # fmt: skip

    def until(self, ids: NDArray[np.int64], at: int) -> Column:
        """Return the time after read ``at`` until each of ``ids`` is read, inf where it is not announced."""
        done = self._done[at - self._start].tolist()
        return _earliest([
            order.until(ids, count) / pace
            for order, count, pace in zip(self._orders, done, self._pace.tolist(), strict=True)
        ])  # fmt: skip

    def _measure(self) -> None:
        """Update the pace of each job by the finished block."""
        if len(self._orders) > 1 and len(self._done) > 1:
            reads = len(self._done) - 1
            mixture = (self._done[-1] - self._done[0]) / reads
            self._pace += (mixture - self._pace) * (1 - np.exp(-reads / _PACE_READS))
            self._pace = np.maximum(self._pace, _LEAST_PACE)


class _Order:
    """The reads of one job, with positions of its own. ``done``: number of finished reads."""

    def __init__(self, trace: Trace, mine: NDArray[np.bool_], announce: Announce) -> None:
        self._ids: Ids = trace.ids[mine]
        count = self._never = len(self._ids)
        by_id = np.argsort(self._ids, kind="stable")
        sorted_ids = self._ids[by_id]
        again = sorted_ids[1:] == sorted_ids[:-1]
        self._following: Positions = np.full(count, self._never)
        self._following[by_id[:-1][again]] = by_id[1:][again]
        first = np.concatenate([[True], ~again])
        self._next: Positions = np.full(trace.objects, self._never)
        self._next[sorted_ids[first]] = by_id[first]
        self._noted = 0
        self._since, self._known = _announced(
            None if trace.epochs is None else trace.epochs[mine], count, announce
        )

    def after(self, ids: Ids, done: Positions) -> Column:
        """Return for each id, at its own ``done``, the reads until it is read again; inf: not announced.
        ``done`` never falls.
        """
        self._note(int(done[0]))
        upcoming = self._next[ids]
        # Skip reads that this job has done since: usually one step.
        while len(past := np.flatnonzero(upcoming < done)):
            upcoming[past] = self._following[upcoming[past]]
        known = self._known[self._since.searchsorted(done, side="right") - 1]
        return np.where(upcoming < known, upcoming - done + 1.0, np.inf)

    def until(self, ids: NDArray[np.int64], done: int) -> Column:
        """Return for each id the reads until it is read, after ``done`` of them; inf: not announced."""
        self._note(done)
        upcoming = self._next.take(ids)
        known = self._known[int(self._since.searchsorted(done, side="right")) - 1]
        return np.where(upcoming < known, upcoming - (done - 1.0), np.inf)

    def _note(self, done: int) -> None:
        """Update the next uses to the state after ``done`` reads."""
        # With equal ids the last assignment stays.
        self._next[self._ids[self._noted : done]] = self._following[self._noted : done]
        self._noted = done


def _earliest(distances: list[Column]) -> Column:
    return reduce(np.minimum, distances)


def _announced(epochs: Epochs | None, count: int, announce: Announce) -> tuple[Positions, Positions]:
    """Return two i64 columns: numbers of finished reads, and the announced end of reads from each on."""
    if announce.epochs < 0 or epochs is None:
        return np.array([0]), np.array([count])
    begins = np.concatenate([[0], np.flatnonzero(np.diff(epochs)) + 1, [count]])
    number = np.arange(len(begins) - 1)
    # The first read of an epoch shows that it began.
    since = begins[:-1] + 1
    known = begins[np.minimum(number + announce.epochs, len(number))]
    if announce.half:
        middle = since + (begins[1:] - begins[:-1]) // 2
        more = begins[np.minimum(number + announce.epochs + 1, len(number))]
        since, known = np.stack([since, middle], axis=1).ravel(), np.stack([known, more], axis=1).ravel()
    return np.concatenate([[0], since]), np.concatenate([[0], known])
