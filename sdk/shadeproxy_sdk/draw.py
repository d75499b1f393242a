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


def floor_part(samples: int, *, coverage_epochs: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the ids of the samples that ``epoch`` reads whatever their weights are: its part of one fixed
    permutation, which is dealt into ``coverage_epochs`` parts.
    """
    part: NDArray[np.int64] = np.random.default_rng([seed]).permutation(samples)
    return part[epoch % coverage_epochs :: coverage_epochs]


def read_first(permutation: NDArray[np.int64], wanted: NDArray[np.int64], read: int) -> NDArray[np.int64]:
    """Return ``permutation`` with the samples ``wanted`` among its first ``read`` places, as many of them as
    fit there: each one that lies behind changes places with another sample.
    """
    is_wanted = np.zeros(permutation.size, dtype=np.bool_)
    is_wanted[wanted] = True
    found = is_wanted[permutation]
    free, late = np.flatnonzero(~found[:read]), read + np.flatnonzero(found[read:])
    swaps = min(free.size, late.size)
    free, late = free[free.size - swaps :], late[:swaps]
    order = permutation.copy()
    order[free], order[late] = permutation[late], permutation[free]
    return order


def importance_order(
    chances: NDArray[np.float64],
    length: int,
    *,
    read: int | None = None,
    coverage_epochs: int,
    seed: int,
    epoch: int,
) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """Return an order of ``length`` draws for all ranks together, uint32 (length,), and the correction 1 / (N
    p) of each sample, float32 (N,), for N samples. ``read``: how many of the draws are read, the first ones;
    by default all. Loaders with ``drop_last`` leave out the others.

    A floor ensures that any ``coverage_epochs`` epochs in a row read every sample: each epoch reads its
    ``floor_part`` once. The other draws are independent, with replacement, from ``chances``. The chance p of
    a sample in one draw is then p = f / N + (1 - f) chance, where f is the part's share of the draws that are
    read. So the correction is at most 1 / f, and its mean over these draws is one. The part does not depend
    on weights, so the floor holds even if ranks know different weights. If the part has more samples than
    are read, the epoch reads a random choice of them. If nothing is read, all corrections are one.
    """
    samples, read = chances.size, length if read is None else read
    part = floor_part(samples, coverage_epochs=coverage_epochs, seed=seed, epoch=epoch)
    generator = np.random.default_rng([seed, epoch])
    if part.size > read:
        part = generator.permutation(part)[:read]
    places = generator.permutation(read)
    draws = _draw(chances, generator.random(length - part.size))
    order = np.empty(length, dtype=np.uint32)
    order[places[: part.size]] = part
    order[places[part.size :]], order[read:] = np.split(draws, [read - part.size])
    # If nothing is read, no loss has to be corrected, so all corrections are one, as if the part were the
    # whole epoch.
    floor = part.size / read if read else 1.0
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
