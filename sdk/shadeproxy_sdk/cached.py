"""Orders that prefer cached samples: pure functions that turn the uniform order of one rank into the order
that the rank reads.

Law: each function rearranges only the samples that were dealt to its rank, so ranks need not agree on what is
cached. Together the ranks read every sample of the uniform epoch ("reorder"), or leave out no more than the
bounds allow ("substitute"). A plan that all ranks share was rejected: every rank would need to see the same
cached samples at the same moment. Source of "substitute": Chen et al., "iCache", HPCA'23.
"""

import numpy as np
from numpy.typing import NDArray

MOST_SUBSTITUTED = 0.3
"""Largest share of the samples of a batch that ``substitute`` may replace."""


def reorder(order: NDArray[np.uint32], resident: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """Return the samples of ``order`` with cached ones earlier: every second sample is cached, until no
    cached one is left.

    Cached and uncached samples alternate, so that reads from the origin begin with the first batch. If more
    than half of the samples are cached, both kinds are spread evenly over the order. Cached samples keep
    their order among themselves, and so do uncached ones. ``resident``: bool by sample id, True if cached.
    """
    cached = resident[order]
    count = int(cached.sum())
    if not count:
        return order.copy()
    places = (np.arange(count) * min(2.0, order.size / count)).astype(np.int64)
    first = np.zeros(order.size, dtype=np.bool_)
    first[places] = True
    mixed = np.empty_like(order)
    mixed[first], mixed[~first] = order[cached], order[~cached]
    return mixed


def substitute(
    order: NDArray[np.uint32],
    resident: NDArray[np.bool_],
    weights: NDArray[np.float32],
    *,
    batch_size: int,
    share: float,
    seed: int,
    epoch: int,
) -> NDArray[np.uint32]:
    """Return ``order`` with uncached samples of low weight replaced by cached samples of high weight, which
    are then read twice.

    Bounds: at most ``share`` of each batch is replaced. A sample is used as a substitute at most once. Its
    two uses are neither in the same batch nor side by side. A sample that is replaced in one epoch is not
    replaced in the next, on any rank, so any two epochs in a row read every sample, except those that
    ``drop_last`` leaves out. ``resident``: by sample id. ``weights``: by sample id; nan counts as the mean.
    """
    known = np.isfinite(weights)
    mean = float(weights[known].mean(dtype=np.float64)) if known.any() else 1.0
    value = np.where(known, weights, mean)
    yielding = ~resident[order] & _turn(resident.size, seed, epoch)[order]
    slots = _slots(value[order], yielding, batch_size=batch_size, share=share)
    ids, first, uses = np.unique(order, return_index=True, return_counts=True)
    usable = first[resident[ids] & (uses == 1)]
    donors = usable[np.lexsort((usable, -value[order[usable]]))][: slots.size]
    slots = slots[: donors.size]
    donors = np.random.default_rng([seed, epoch]).permutation(donors)
    apart = (slots // batch_size != donors // batch_size) & (np.abs(slots - donors) > 1)
    replaced = order.copy()
    replaced[slots[apart]] = order[donors[apart]]
    return replaced


def _turn(samples: int, seed: int, epoch: int) -> NDArray[np.bool_]:
    """Return, by sample id, whether a sample may be replaced in ``epoch``. That is one half of all samples,
    drawn by ``seed``; in the next epoch it is the other half.
    """
    half: NDArray[np.bool_] = (np.random.default_rng([seed]).permutation(samples) + epoch) % 2 == 0
    return half


def _slots(
    values: NDArray[np.float32], yielding: NDArray[np.bool_], *, batch_size: int, share: float
) -> NDArray[np.int64]:
    """Return the positions to replace, those with the smallest ``values`` first. A position is replaced only
    if ``yielding`` is True there, and at most ``share`` of each batch is replaced.
    """
    places = np.flatnonzero(yielding)
    places = places[np.lexsort((places, values[places], places // batch_size))]
    batches = places // batch_size
    rank_in_batch = np.arange(places.size) - np.searchsorted(batches, batches)
    sizes = np.minimum(values.size - batches * batch_size, batch_size)
    # 0.3 x 10 may be rounded to just below 3. With 1e-8 added, its floor is 3 in any case.
    slots = places[rank_in_batch < np.floor(sizes * share + 1e-8)]
    least_first: NDArray[np.int64] = slots[np.lexsort((slots, values[slots]))]
    return least_first
