"""Importance scores: for each job one f32 column over the samples of its dataset, nan where unknown.

Laws: a batch is checked completely before its first score is written. Scores are finite and >= 0, as losses
and rank weights are, because eviction cannot use a negative weight. Callers get weights: scores divided by
the mean of the job's known scores. Source: SHADE (FAST'23), section 4.
"""

from dataclasses import dataclass
from math import isnan, nan

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import InvalidRequest
from shadeproxy.hints.datasets import Groups, Ids
from shadeproxy.hints.growing import Space
from shadeproxy.hints.pages import PageIndex

Scores = NDArray[np.float32]
Weights = NDArray[np.float64]

MAX_SCORES = 1 << 18
"""Most scores in one call: more would block the event loop for over 10 ms."""

_CANCELLED = 1e-6


@dataclass(frozen=True, slots=True)
class Batch:
    """Checked scores that are not written yet, by sample ids or by the object hashes of a growing set."""

    space: Space
    scores: Scores
    ids: Ids | None = None
    hashes: list[int] | None = None


class ScoreColumn:
    """The scores of one job over ``count`` samples.

    ``groups`` and ``pages`` come from the job's Dataset. Both are None for a growing set.
    """

    def __init__(self, count: int, groups: Groups | None, pages: PageIndex | None) -> None:
        self.values: Scores = np.full(count, np.nan, dtype=np.float32)
        self.of_run = np.zeros(count, dtype=np.bool_)
        """Samples scored since the present run began: bool[n]."""
        self.position = ""
        """Position in the cluster's log of the latest scores that were applied; "" before the first."""
        self.known = 0
        self.mean = nan
        """Mean of the known scores; nan when there are none."""
        self.factor = 0.0
        """The number by which a score is multiplied to give a weight. It is 0 if all scores are 0, because
        such scores say nothing.
        """
        self._groups = groups
        self._pages = None if pages is None else _PageSums(pages)
        self._total = self._squares = 0.0
        self._drawn_weight: tuple[int, float] | None = None  # The latest result of ``drawn_weight``.

    def copy(self, count: int, *, of_run: bool) -> Scores:
        """Return a copy of the first ``count`` scores. ``of_run``: only scores of the present run."""
        scores = self.values[:count].copy()
        if of_run:
            scores[~self.of_run[:count]] = np.nan
        return scores

    def grow(self, count: int) -> None:
        """Make room for ``count`` samples. The new scores are unknown."""
        if count > len(self.values):
            room = np.full(max(count, 2 * len(self.values)), np.nan, dtype=np.float32)
            room[: len(self.values)] = self.values
            self.of_run = np.append(self.of_run, np.zeros(len(room) - len(self.of_run), dtype=np.bool_))
            self.values = room

    def set(self, ids: Ids, scores: Scores) -> None:
        """Write checked scores. If an id occurs twice, its last score counts."""
        # Numpy keeps the last write to a cell. So write the position of each id, and read back its last
        # position.
        last = np.empty(len(self.values), dtype=np.uint32)
        rank = np.arange(len(ids), dtype=np.uint32)
        last[ids] = rank
        kept = last[ids] == rank
        ids, scores = ids[kept], scores[kept]
        old = self.values[ids]
        was_known = ~np.isnan(old)
        gone, new = old[was_known].astype(np.float64), scores.astype(np.float64)
        removed, removed_squares = float(gone.sum()), float(gone @ gone)
        self.values[ids] = scores
        self.of_run[ids] = True
        self.known += len(ids) - int(np.count_nonzero(was_known))
        self._total += float(new.sum()) - removed
        self._squares += float(new @ new) - removed_squares
        if self._total < removed * _CANCELLED or self._squares < removed_squares * _CANCELLED:
            # A huge score was removed, so the sum holds its rounding errors instead of the small scores.
            self._recount()
        elif self._pages is not None and not self._pages.change(ids, scores, old):
            self._recount()
        else:
            self._sum_up()

    def restore(self, values: Scores, of_run: NDArray[np.bool_] | None = None, position: str = "") -> None:
        """Replace the column by a stored one."""
        self.position = position
        self.values = values.astype(np.float32)
        self.of_run = np.ones(len(values), dtype=np.bool_) if of_run is None else of_run.copy()
        self.known = int(np.count_nonzero(~np.isnan(values)))
        self._recount()

    def weights(self, ids: Ids) -> Weights:
        """Return the weight of each sample: f64[k], nan where unknown or where the id is -1."""
        if not self.known:
            return np.full(len(ids), np.nan)
        found = np.where(ids < 0, np.nan, self.values[ids]).astype(np.float64)
        # Scores that are all zero say nothing, so each sample gets the mean weight.
        return found / self.mean if self._total > 0 else found + 1.0

    def unit_weights(self, units: Ids) -> Weights:
        """Return the weight of each unit: f64[k], nan where all its samples are unknown, or the unit is -1.

        The weight of a page is the sum over its samples; a sample of unknown score counts with the mean
        weight. A page is read whenever one of its samples is drawn, so the sum says how often it is read,
        compared with other pages.
        """
        if self._groups is None:
            return self.weights(units)
        if self._pages is None:
            # A u32 cannot hold -1: widen the column before marking unknown samples.
            samples = self._groups.members[units].astype(np.int64)
            return self.weights(np.where(units < 0, -1, samples))
        if not self.known:
            return np.full(len(units), np.nan)
        total, known, count = self._pages.look(units)
        weights = total / self.mean + (count - known) if self._total > 0 else count
        # A page with a single sample of unknown score gets nan, and the policy ranks it like an unknown
        # object. A page with many samples gets their number even if no score is known: with nan, the policy
        # would rank it as if it had one sample.
        return np.where((count == 0) | ((known == 0) & (count == 1)), np.nan, weights)

    def draw_weights(self, units: Ids) -> Weights:
        """Return the weights of ``unit_weights``, but 1, the mean, for units of unknown weight: f64[k]."""
        weights = self.unit_weights(units)
        weights[np.isnan(weights)] = 1.0
        return weights

    def sample_weights(self, samples: Ids) -> Weights:
        """Return ``draw_weights`` for samples that are objects of their own, at a third of the cost."""
        weights = self.values.take(samples).astype(np.float64)
        if self._total > 0:
            weights *= self.factor
        else:
            weights += 1.0
        if self.known < len(self.values):
            weights[np.isnan(weights)] = 1.0
        return weights

    def draw_weight(self, sample: int) -> float:
        """Return the weight of one sample, 1 if it is unknown; cheaper than ``weights``."""
        score = float(self.values[sample])
        # Computed like ``sample_weights``, to the last bit: one page alone must rank as it does among many.
        unknown = score != score or not self._total > 0  # noqa: PLR0124 (nan)
        return 1.0 if unknown else score * self.factor

    def few_weights(self, samples: list[int]) -> list[float]:
        """Return the results of ``draw_weight`` for a few samples."""
        factor, values = self.factor, self.values.data
        scores = [values[sample] for sample in samples] if factor else [nan] * len(samples)
        return [1.0 if isnan(score) else score * factor for score in scores]

    def drawn_weight(self, count: int) -> float:
        """Return the mean weight of the samples that a job reads if it draws from ``count`` samples with a
        chance in proportion to their weight. If samples are parts of objects, return the mean weight of the
        units that it reads. Return 0 if the scores say nothing.
        """
        if self._drawn_weight is None or self._drawn_weight[0] != count:
            self._drawn_weight = count, self._weight_of_draws(count)
        return self._drawn_weight[1]

    def _weight_of_draws(self, count: int) -> float:
        if not self._total > 0:
            return 0.0
        if self._pages is not None:
            return self._pages.drawn_weight(self.mean)
        return (self._squares / self.mean**2 + count - self.known) / count

    def _recount(self) -> None:
        known = self.values[~np.isnan(self.values)].astype(np.float64)
        self._total, self._squares = float(known.sum()), float(known @ known)
        if self._pages is not None:
            self._pages.recount(self.values)
        self._sum_up()

    def _sum_up(self) -> None:
        """Compute what follows from the sums. Scores come seldom, and are used with every read."""
        self.mean = self._total / self.known if self.known else nan
        self.factor = 1 / self.mean if self._total > 0 else 0.0
        self._drawn_weight = None


class _PageSums:
    """The sum and the count of the known scores of each page."""

    def __init__(self, pages: PageIndex) -> None:
        self._pages = pages
        self._counts = np.diff(pages.starts)
        self._totals = np.zeros(len(pages))
        self._known = np.zeros(len(pages), dtype=np.int64)
        self._moments = self._moments_of(slice(None))

    def change(self, ids: Ids, scores: Scores, old: Scores) -> bool:
        """Change the scores of ``ids`` (unique) from ``old`` (nan: unknown) to ``scores``. Return False if
        all sums must be computed again, because a huge score was removed.

        Otherwise the rounding errors of the f64 differences are small beside the mean.
        """
        units, sample_of = self._pages.units_of(ids)
        changed = np.unique(units)
        before = self._moments_of(changed)
        unknown = np.isnan(old)
        difference = scores.astype(np.float64) - np.where(unknown, 0.0, old)
        np.add.at(self._totals, units, difference[sample_of])
        np.add.at(self._known, units, unknown[sample_of].astype(np.int64))
        self._moments += self._moments_of(changed) - before
        return bool(self._moments[0] >= before[0] * _CANCELLED)

    def drawn_weight(self, mean: float) -> float:
        """Return the mean weight of units drawn by weight. ``mean``: the score of unknown samples."""
        squares, crossed, unknown_squares, totals, unknown = self._moments.tolist()
        weighed = squares / mean**2 + 2 * crossed / mean + unknown_squares
        read = totals / mean + unknown
        return float(weighed / read) if read > 0 else 0.0

    def _moments_of(self, units: Ids | slice) -> Weights:
        """Return five sums over units: f64[5]. With the total score t of a unit, and the number u of its
        unknown samples, these are the sums of t * t, t * u, u * u, t and u.
        """
        totals, unknown = self._totals[units], (self._counts[units] - self._known[units]).astype(np.float64)
        sums = (totals @ totals, totals @ unknown, unknown @ unknown, totals.sum(), unknown.sum())
        return np.array(sums)

    def recount(self, values: Scores) -> None:
        """Compute all sums again from the whole column."""
        if len(self._pages):
            column, begins = values[self._pages.members], self._pages.starts[:-1]
            self._totals = np.add.reduceat(np.nan_to_num(column, nan=0.0).astype(np.float64), begins)
            self._known = np.add.reduceat(~np.isnan(column), begins, dtype=np.int64)
            self._moments = self._moments_of(slice(None))

    def look(self, units: Ids) -> tuple[Weights, Weights, Weights]:
        """Return for each unit the sum of its known scores, their number, and the number of samples; zeros
        for unit -1.
        """
        columns = (self._totals, self._known, self._counts)
        own = [np.where(units < 0, 0.0, column[units]) for column in columns]
        if self._pages.beside is not None:
            beside = np.where(units < 0, -1, self._pages.beside[units])
            own = [
                mine + np.where(beside < 0, 0.0, column[beside])
                for mine, column in zip(own, columns, strict=True)
            ]
        total, known, count = own
        return np.maximum(total, 0.0), known, count


def check_scores(scores: list[float] | NDArray[np.floating], count: int, *, what: str) -> Scores:
    """Return ``scores`` as f32[count]. Raises InvalidRequest that names the first bad score."""
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
    """Return ``ids`` as i64[k]. Raises InvalidRequest that names the first id outside 0 .. count-1."""
    column = np.asarray(ids).astype(np.int64) if len(ids) else np.empty(0, dtype=np.int64)
    bad = np.flatnonzero((column < 0) | (column >= count))
    if len(bad):
        raise InvalidRequest(
            f"ids[{bad[0]}] is {column[bad[0]]}, but {dataset} has {count} samples",
            hint=f"ids are 0 to {count - 1}" if count else "send scores by key",
        )
    return column
