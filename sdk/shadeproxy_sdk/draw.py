"""Draws the order of an epoch: pure functions from weights to sample ids, seeded, with numpy alone.

Law: the same arguments give the same order on every rank and machine. An order that is drawn for all ranks
together does not depend on the rank. Sources: Khan et al., "SHADE", FAST'23, sections 4.1-4.3; Katharopoulos
& Fleuret, ICML'18, for the correction.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_FIRST_SMOOTHING = 0.01
_SMOOTHING_BOUNDS = (1e-6, 10.0)
"""Bounds of the smoothing. The weight of a sample lies between ln 10 = 2.3 and ln(b + 9), for batches of b
samples. A smoothing above ten would outweigh all differences of weights.
"""


def smooth(mean_loss: float, previous_loss: float | None, smoothing: float | None) -> float:
    """Return SHADE's smoothing ``ls``. Its first value is 0.01 x mean loss. Each later value is the one
    before it times exp((L - L_prev) / L_prev), with the exponent limited to +-1. The result is limited to
    [1e-6, 10]. Without the two limits, a large scale of losses or one very large loss could make all later
    draws uniform, or concentrate them on a few samples.
    """
    if smoothing is None or previous_loss is None:
        value = _FIRST_SMOOTHING * mean_loss
    elif previous_loss > 0:
        change = (mean_loss - previous_loss) / previous_loss
        value = smoothing * math.exp(min(max(change, -1.0), 1.0))
    else:
        value = smoothing
    low, high = _SMOOTHING_BOUNDS
    return min(max(value, low), high)


def probabilities(
    weights: NDArray[np.float32], smoothing: float, *, unknown: float | None = None
) -> NDArray[np.float64]:
    """Return the chance of each sample, float64 (n,), sum 1: proportional to its weight + ``smoothing``. A
    weight that is not known (nan) counts as ``unknown``; if that is None, as the mean of the known weights.

    Weights are logarithms that follow from the order of losses in a batch, and are positive. A negative
    weight from another source counts as zero.
    """
    known = np.isfinite(weights)
    if unknown is None:
        unknown = float(weights[known].mean(dtype=np.float64)) if known.any() else 1.0
    mass = np.maximum(np.where(known, weights, unknown).astype(np.float64), 0.0) + smoothing
    chances: NDArray[np.float64] = mass / mass.sum()
    return chances


def relax(chances: NDArray[np.float64], aggressiveness: float) -> NDArray[np.float64]:
    """Return float64 (n,), sum 1: a mixture of ``chances`` and uniform chances, in which ``chances`` have the
    share ``aggressiveness``.
    """
    return aggressiveness * chances + (1.0 - aggressiveness) / chances.size


def importance_order(
    chances: NDArray[np.float64], length: int, *, coverage_epochs: int, seed: int, epoch: int
) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """Return an order of ``length`` draws for all ranks together, uint32 (length,), and the correction 1 / (N
    p) of each sample, float32 (N,), for N samples.

    A floor ensures that any ``coverage_epochs`` epochs in a row read every sample: one fixed permutation is
    dealt into ``coverage_epochs`` parts, and each epoch reads one part once. The other draws are independent,
    with replacement, from ``chances``. The chance p of a sample in one draw is then p = f / N + (1 - f)
    chance, where f is the part's share of the draws. So the correction is at most 1 / f, and its mean over
    the draws is one. The part does not depend on weights, so the floor holds even if ranks know different
    weights. If ``length`` is 0, all corrections are one.
    """
    samples = chances.size
    part = np.random.default_rng([seed]).permutation(samples)[epoch % coverage_epochs :: coverage_epochs][
        :length
    ]
    generator = np.random.default_rng([seed, epoch])
    places = generator.permutation(length)
    order = np.empty(length, dtype=np.uint32)
    order[places[: part.size]] = part
    order[places[part.size :]] = _draw(chances, generator.random(length - part.size))
    # If ``length`` is 0, no loss has to be corrected, so all corrections are one, as if the part were the
    # whole epoch.
    floor = part.size / length if length else 1.0
    correction = 1.0 / (samples * (floor / samples + (1.0 - floor) * chances))
    return order, correction.astype(np.float32)


class RankShare(NamedTuple):
    """One rank's share of an epoch: the rank reads ``total / ranks`` samples."""

    rank: int
    ranks: int
    total: int


def shade_order(
    chances: NDArray[np.float64],
    resident: NDArray[np.bool_],
    share: RankShare,
    *,
    repeat: int,
    frequent: bool,
    seed: int,
    epoch: int,
) -> NDArray[np.uint32]:
    """Return one rank's order, uint32 (total / ranks,), of PADS, the cache-aware sampling of SHADE. It is
    drawn as published, but reproducible.

    The rank draws a whole epoch from ``chances``, and keeps as many of these draws as it reads. If
    ``frequent``, it keeps the samples drawn most often (equally frequent ones by id), otherwise every
    ``ranks``-th draw. Let h be the share of the kept draws that is cached. Each cached draw occurs ``repeat``
    times, and cached draws are read first: they are repeat x h of the epoch, at most all of it. Draws that
    are not cached fill the rest. There is no floor, so some samples may not be read for many epochs.
    """
    rank, ranks, total = share
    generator = np.random.default_rng([seed, epoch, rank])
    drawn, length = _draw(chances, generator.random(total)), total // ranks
    if frequent:
        times = np.bincount(drawn, minlength=chances.size)[drawn]
        mine = drawn[np.lexsort((drawn, -times))][:length]
    else:
        mine = drawn[rank::ranks]
    cached = resident[mine]
    hits, misses = np.tile(mine[cached], repeat), mine[~cached]
    generator.shuffle(hits)
    generator.shuffle(misses)
    return np.concatenate([hits, misses])[:length].astype(np.uint32)


def _draw(chances: NDArray[np.float64], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return one draw for each of ``uniforms``, numbers from 0 to 1, by inverting the cumulative
    distribution. So nearly equal ``chances`` give nearly equal draws.
    """
    ladder = np.cumsum(chances)
    places = np.searchsorted(ladder, uniforms * ladder[-1], side="right")
    drawn: NDArray[np.int64] = np.minimum(places, chances.size - 1)
    return drawn
