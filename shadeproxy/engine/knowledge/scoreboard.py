"""Importance scores: for each job one f32 column over the samples of its dataset, nan where unknown.

Laws: a batch is checked whole before its first score is written; scores are finite and >= 0 (losses and
rank weights are; a negative weight has no place in an eviction order); what others see are weights,
normalised so that the mean of a job's known scores is 1. Source: SHADE (FAST'23), section 4.
"""

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import InvalidRequest, UnknownName
from shadeproxy.engine.knowledge.datasets import Groups, Ids

Scores = NDArray[np.float32]
Weights = NDArray[np.float64]

MAX_SCORES = 1 << 18
"""Scores in one call: more would hold the event loop for over 10 ms."""

_CANCELLED = 1e-6


class ScoreColumn:
    """The scores of one job. ``groups`` None: every sample is a group of its own, in sample order."""

    def __init__(self, count: int, groups: Groups | None) -> None:
        self.values: Scores = np.full(count, np.nan, dtype=np.float32)
        self.known = 0
        self._groups = groups
        self._total = 0.0
        self._maxima: Scores | None = None
        self._group_of: NDArray[np.int64] | None = None
        self._stale = 0
        if groups is not None and groups.starts is not None:
            self._group_of = np.empty(count, dtype=np.int64)
            self._group_of[groups.members] = np.repeat(np.arange(len(groups.hashes)), np.diff(groups.starts))

    @property
    def mean(self) -> float:
        """Mean of the known scores; nan when there is none."""
        return self._total / self.known if self.known else float("nan")

    def grow(self, count: int) -> None:
        """Make room for samples up to ``count``, their scores unknown."""
        if count > len(self.values):
            room = np.full(max(count, 2 * len(self.values)), np.nan, dtype=np.float32)
            room[: len(self.values)] = self.values
            self.values = room

    def set(self, ids: Ids, scores: Scores) -> None:
        """Write scores that were checked; of an id that occurs twice the last one counts."""
        # Last writer wins in a scatter, so what a sample of ranks reads back is each id's last place.
        last = np.empty(len(self.values), dtype=np.uint32)
        rank = np.arange(len(ids), dtype=np.uint32)
        last[ids] = rank
        kept = last[ids] == rank
        ids, scores = ids[kept], scores[kept]
        old = self.values[ids]
        was_known = ~np.isnan(old)
        removed = float(np.sum(old[was_known], dtype=np.float64))
        self.values[ids] = scores
        self.known += len(ids) - int(np.count_nonzero(was_known))
        self._total += float(np.sum(scores, dtype=np.float64)) - removed
        if self._total < removed * _CANCELLED:
            # A giant left the sum and took the small ones' digits with it.
            self._total = float(np.nansum(self.values, dtype=np.float64))
        self._raise_maxima(ids, scores)

    def restore(self, values: Scores) -> None:
        """Take over a stored column."""
        self.values = values.astype(np.float32)
        self.known = int(np.count_nonzero(~np.isnan(values)))
        self._total = float(np.nansum(values, dtype=np.float64))
        self._maxima = None

    def weights(self, ids: Ids) -> Weights:
        """Weight of each sample: f64[k], nan where unknown or where the id is -1."""
        return self._normalised(self.values, ids)

    def group_weights(self, groups: Ids) -> Weights:
        """Weight of each group, the largest of its samples': f64[k], nan where unknown or -1."""
        if self._groups is None:
            return self._normalised(self.values, groups)
        if self._group_of is None:
            # u32 has no -1: widen before the strangers are marked.
            samples = self._groups.members[groups].astype(np.int64)
            return self.weights(np.where(groups < 0, -1, samples))
        return self._normalised(self._current_maxima(), groups)

    def _normalised(self, column: Scores, places: Ids) -> Weights:
        if not self.known:
            return np.full(len(places), np.nan)
        found = np.where(places < 0, np.nan, column[places]).astype(np.float64)
        # All scores zero: they say nothing, so each weighs the mean.
        return found / self.mean if self._total > 0 else found + 1.0

    def _raise_maxima(self, ids: Ids, scores: Scores) -> None:
        if self._maxima is None or self._group_of is None:
            return
        np.fmax.at(self._maxima, self._group_of[ids], scores)
        self._stale += len(ids)

    def _current_maxima(self) -> Scores:
        """The groups' largest scores. Rises show at once; falls when 1/64 of the column has changed."""
        assert self._groups is not None
        assert self._groups.starts is not None
        if self._maxima is None or self._stale * 64 >= len(self.values):
            in_order = self.values[self._groups.members]
            self._maxima = np.fmax.reduceat(in_order, self._groups.starts[:-1])
            self._stale = 0
        return self._maxima


def check_scores(scores: list[float] | NDArray[np.floating], count: int, *, what: str) -> Scores:
    """``scores`` as f32[count]. Raises InvalidRequest that names the first bad one."""
    if len(scores) != count:
        raise InvalidRequest(
            f"{count} {what} but {len(scores)} scores", hint=f"send one score for each of the {what}"
        )
    if count > MAX_SCORES:
        raise InvalidRequest(
            f"{count} scores in one call; at most {MAX_SCORES} are taken", hint="send them in pieces"
        )
    with np.errstate(over="ignore"):
        column = np.asarray(scores).astype(np.float32)
    bad = np.flatnonzero(~(np.isfinite(column) & (column >= 0)))
    if len(bad):
        raise InvalidRequest(
            f"scores[{bad[0]}] is {scores[bad[0]]}: a score is a finite 32-bit float >= 0",
            hint="send losses or rank weights; leave out samples that have none",
        )
    return column


def check_ids(ids: list[int] | NDArray[np.integer], count: int, *, dataset: str) -> Ids:
    """``ids`` as i64[k]. Raises UnknownName that names the first one outside 0 .. count-1."""
    column = np.asarray(ids).astype(np.int64) if len(ids) else np.empty(0, dtype=np.int64)
    bad = np.flatnonzero((column < 0) | (column >= count))
    if len(bad):
        raise UnknownName(
            f"ids[{bad[0]}] is {column[bad[0]]}, but {dataset} has {count} samples",
            hint=f"ids are 0 to {count - 1}" if count else "send scores by key",
        )
    return column
