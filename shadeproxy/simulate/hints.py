"""Hints of a trace: the orders and scores of its jobs. A job may read otherwise than its order says.

Laws: pure functions on columns. No read is known before it was announced. A job's place in its order is the
number of reads that it has finished.
"""

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import ConfigError
from shadeproxy.simulate.trace import NO_JOB, Epochs, Ids, JobHints, Positions, Trace

BEFORE, AFTER = 64, 256
"""A read counts as announced if its id is in the order at most BEFORE places before or AFTER places after the
job's place.
"""


class Announce(NamedTuple):
    """The times at which jobs announce their orders. ``epochs``: how many epochs are announced at a time, the
    current one included; 0: none, -1: all.

    ``half``: from the middle of an epoch on, one more epoch is announced. ``own``: the trace itself contains
    the orders and scores to use (``Trace.hints``).
    """

    epochs: int
    half: bool = False
    own: bool = False

    @property
    def any(self) -> bool:
        """True if orders are announced at all."""
        return self.own or self.epochs != 0


_NAMED = {
    "none": Announce(0),
    "epoch": Announce(1),
    "next-half": Announce(1, half=True),
    "all": Announce(-1),
    "trace": Announce(0, own=True),
}


def parse_announce(text: str) -> Announce:
    """Return the ``Announce`` that ``text`` names. Raises ConfigError."""
    if re.fullmatch(r"[1-9]\d{0,4}", text):
        return Announce(int(text))
    if text not in _NAMED:
        raise ConfigError(f"--announce: {text!r} is none of {', '.join(_NAMED)}, and no number of epochs")
    return _NAMED[text]


def require_epochs(trace: Trace, announce: Announce) -> None:
    """Raise ConfigError if the trace lacks what ``announce`` needs: epochs, or hints of its own."""
    if announce.epochs > 0 and trace.epochs is None:
        raise ConfigError("--announce: the trace has no array epochs; only none and all can be announced")
    if announce.own and not trace.hints:
        raise ConfigError("--announce: the trace has no hints of jobs; write none, epoch, next-half or all")


def hints_of(trace: Trace, announce: Announce) -> tuple[JobHints, ...]:
    """Return the hints of each job that gives some. Raises ConfigError as ``require_epochs`` does.

    With ``own`` these are the hints in the trace. Without it, each job announces the reads that it really
    makes, as early as ``announce`` says, and the trace's weights are the scores of every job.
    """
    require_epochs(trace, announce)
    if announce.own:
        return trace.hints
    if not announce.any and trace.weights is None:
        return ()
    job_of = trace.job_of_reads()
    rows = weight_rows(trace)
    return tuple(
        _by_epochs(trace, job, np.flatnonzero(job_of == job), announce, rows)
        for job in np.unique(job_of[job_of != NO_JOB]).tolist()
    )


def weight_rows(trace: Trace) -> dict[int, int]:
    """Map each read at which new weights become known to the row of these weights in ``Trace.weights``."""
    if trace.weights is None or trace.epochs is None:
        return {}
    newest = np.maximum.accumulate(trace.epochs)
    starts = [0, *(np.flatnonzero(np.diff(newest)) + 1).tolist()]
    return {start: int(newest[start]) for start in starts}


def score_updates(trace: Trace, announce: Announce) -> dict[int, list[tuple[int, int, NDArray[np.float32]]]]:
    """Map each read before which scores are posted to those scores. One post has three values: the first id,
    the id after the last one, and the scores of the ids between them.

    The weights of the trace are always posted; the scores of its hints only with ``own``.
    """
    found: dict[int, list[tuple[int, int, NDArray[np.float32]]]] = {}
    if trace.weights is not None:
        for start, row in weight_rows(trace).items():
            found.setdefault(start, []).append((0, trace.objects, trace.weights[row]))
    for hint in trace.hints if announce.own else ():
        if hint.scores is not None and hint.scored_at is not None:
            for at, scores in zip(hint.scored_at.tolist(), hint.scores, strict=True):
                found.setdefault(at, []).append((hint.first, hint.stop, scores))
    return found


class ReadFacts(NamedTuple):
    """The proxy's knowledge at each read of a trace, as columns of shape (n,).

    time_s: f64, seconds since the beginning; one second a read if the trace has no times. job: i16, as
    ``Trace.job_of_reads``. done: i64, how many reads the job has finished, this one included; 0 without a
    job. horizon: i64, how many announced reads of the job come after this read. announced: bool, True if the
    order has the read's id near the job's place. prefix: u16, the prefix group of the object.
    """

    time_s: NDArray[np.float64]
    job: NDArray[np.int16]
    done: NDArray[np.int64]
    horizon: NDArray[np.int64]
    announced: NDArray[np.bool_]
    prefix: NDArray[np.uint16]


def read_facts(trace: Trace, hints: tuple[JobHints, ...]) -> ReadFacts:
    """Return the facts of every read of ``trace``, whose jobs give ``hints``."""
    count, job_of = len(trace.ids), trace.job_of_reads()
    done, horizon = np.zeros(count, np.int64), np.zeros(count, np.int64)
    announced = np.zeros(count, np.bool_)
    for job in np.unique(job_of[job_of != NO_JOB]).tolist():
        mine = np.flatnonzero(job_of == job)
        done[mine] = np.arange(1, len(mine) + 1)
    for hint in hints:
        mine = np.flatnonzero(job_of == hint.job)
        horizon[mine] = np.maximum(hint.known_after(done[mine]) - done[mine], 0)
        announced[mine] = _announced_reads(hint, trace.ids[mine])
    prefixes = np.zeros(trace.objects, np.uint16) if trace.prefixes is None else trace.prefixes
    times = np.arange(count, dtype=np.float64) if trace.times is None else trace.times
    return ReadFacts(times, job_of, done, horizon, announced, prefixes[trace.ids])


def _announced_reads(hint: JobHints, ids: Ids) -> NDArray[np.bool_]:
    """Return which of a job's reads were announced near the job's place. Each place of the order explains at
    most one read.
    """
    known = hint.known_after(np.arange(len(ids)))
    reads = min(len(ids), len(hint.order))
    if np.array_equal(hint.order[:reads], ids[:reads]):
        return np.arange(len(ids)) < known
    places: dict[int, list[int]] = {}
    for place in range(len(hint.order) - 1, -1, -1):
        places.setdefault(int(hint.order[place]), []).append(place)
    found = np.zeros(len(ids), np.bool_)
    for at, (page, end) in enumerate(zip(ids.tolist(), known.tolist(), strict=True)):
        left = places.get(page, [])
        while left and left[-1] < at - BEFORE:
            left.pop()
        if left and left[-1] < min(end, at + AFTER):
            left.pop()
            found[at] = True
    return found


def _by_epochs(trace: Trace, job: int, mine: Positions, announce: Announce, rows: dict[int, int]) -> JobHints:
    since, known = (
        _announced(None if trace.epochs is None else trace.epochs[mine], len(mine), announce)
        if announce.any
        else (np.array([0]), np.array([0]))
    )
    scores = trace.weights
    if scores is not None and list(rows.values()) != list(range(len(scores))):
        scores = scores[list(rows.values())]
    order = trace.ids[mine] if announce.any else trace.ids[:0]
    return JobHints(job, 0, trace.objects, order, since, known, scores, np.array(list(rows), np.int64))


def _announced(epochs: Epochs | None, count: int, announce: Announce) -> tuple[Positions, Positions]:
    """Return two i64 columns: how many reads the job has finished whenever more is announced, and how many
    reads of the order are announced from then on.
    """
    if announce.epochs < 0 or epochs is None:
        return np.array([0]), np.array([count])
    begins = np.concatenate([[0], np.flatnonzero(np.diff(epochs)) + 1, [count]])
    number = np.arange(len(begins) - 1)
    # The first read of an epoch shows that the epoch began.
    since = begins[:-1] + 1
    known = begins[np.minimum(number + announce.epochs, len(number))]
    if announce.half:
        middle = since + (begins[1:] - begins[:-1]) // 2
        more = begins[np.minimum(number + announce.epochs + 1, len(number))]
        since, known = np.stack([since, middle], axis=1).ravel(), np.stack([known, more], axis=1).ravel()
    return np.concatenate([[0], since]), np.concatenate([[0], known])
