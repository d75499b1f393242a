"""Makes traces of common workloads: shuffled epochs, draws by importance, several jobs, one of several nodes,
and shards.

Pure: the same arguments give the same trace.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shadeproxy.simulate.trace import Trace, Weights

Draws = Literal["shade", "heavy"]
Orders = list[NDArray[np.uint32]]
"""The ids that one job reads, epoch by epoch."""

_BATCH = 256
_LOSS_NOISE = 0.5
_HEAVY_TAIL = 1.5


def uniform(objects: int, epochs: int, *, seed: int = 0, jobs: int = 1, ranks: int = 1) -> Trace:
    """Return a trace in which each epoch is a new permutation of the objects. Jobs have different seeds and
    the same speed.

    ``ranks``: number of nodes. The trace has the reads of one node, which reads its part of every epoch.
    """
    orders = [shuffled(objects, epochs, seed=seed + job, ranks=ranks) for job in range(jobs)]
    return interleaved(orders, objects)


def importance(
    objects: int, epochs: int, *, seed: int = 0, jobs: int = 1, ranks: int = 1, draws: Draws = "shade"
) -> Trace:
    """Return a trace of draws with replacement, weighted by losses in earlier epochs. The trace contains
    these weights.

    "shade": in each batch, the sample with the j-th smallest loss weighs ln(j + 10) (SHADE, FAST'23).
    "heavy": a sample weighs exp(1.5 loss), so that few samples get most of the draws. A loss is the sample's
    difficulty, normal with deviation 1, plus noise with deviation 1/2. All jobs draw by the weights of the
    first job.
    """
    random = np.random.default_rng(seed)
    difficulty = random.normal(size=objects)
    ranking = np.log(np.arange(_BATCH) + 10)
    weight = np.full(objects, ranking.mean() if draws == "shade" else 1.0)
    orders: list[Orders] = [[] for _ in range(jobs)]
    weights = np.empty((epochs, objects), dtype=np.float32)
    for epoch in range(epochs):
        weights[epoch] = weight
        odds = weight / weight.sum()
        drawn = [random.choice(objects, objects, p=odds).astype(np.uint32) for _ in range(jobs)]
        for job, draw in enumerate(drawn):
            orders[job].append(draw[::ranks])
        for start in range(0, objects, _BATCH):
            batch = drawn[0][start : start + _BATCH]
            loss = difficulty[batch] + _LOSS_NOISE * random.normal(size=len(batch))
            ranks_by_loss = loss.argsort().argsort()
            weight[batch] = ranking[ranks_by_loss] if draws == "shade" else np.exp(_HEAVY_TAIL * loss)
    return replace(interleaved(orders, objects), weights=weights)


def lagged(objects: int, epochs: int, *, seed: int = 0, jobs: int = 4, lag: float = 0.15) -> Trace:
    """Return the trace of a hyperparameter search: all jobs read the same order, and the last job is ``lag``
    of an epoch behind the first one.
    """
    order = shuffled(objects, epochs, seed=seed)
    starts = [objects * lag * job / max(jobs - 1, 1) for job in range(jobs)]
    return interleaved([order] * jobs, objects, starts=starts)


def shards(objects: int, epochs: int, *, seed: int = 0, reads: int = 3, readers: int = 8) -> Trace:
    """Return a trace of reads of records in shards. ``readers`` readers read at the same time, each of them
    other pages, and each page ``reads`` times in a row.
    """
    random = np.random.default_rng(seed)
    order: Orders = []
    for _ in range(epochs):
        pages = np.repeat(random.permutation(objects).astype(np.uint32), reads)
        streams = np.array_split(pages, readers)
        at = np.concatenate([np.arange(len(stream)) for stream in streams])
        order.append(np.concatenate(streams)[np.argsort(at, kind="stable")])
    return interleaved([order], objects)


def shuffled(objects: int, epochs: int, *, seed: int = 0, ranks: int = 1) -> Orders:
    """Return a permutation of the objects for each epoch; with several ranks, the part of it that one rank
    reads.
    """
    random = np.random.default_rng(seed)
    return [random.permutation(objects).astype(np.uint32)[::ranks] for _ in range(epochs)]


def interleaved(
    orders: Sequence[Orders],
    objects: int,
    *,
    rates: Sequence[float] | None = None,
    starts: Sequence[float] | None = None,
    weights: Weights | None = None,
) -> Trace:
    """Return the trace of jobs that read at the same time. ``rates``: how many reads each job makes in a unit
    of time. ``starts``: the time at which each job begins.
    """
    rates, starts = rates or [1.0] * len(orders), starts or [0.0] * len(orders)
    ids, jobs, epochs, times = [], [], [], []
    for job, (order, rate, start) in enumerate(zip(orders, rates, starts, strict=True)):
        lengths = [len(epoch) for epoch in order]
        ids.append(np.concatenate(order).astype(np.uint32))
        jobs.append(np.full(sum(lengths), job, dtype=np.uint8))
        epochs.append(np.repeat(np.arange(len(order), dtype=np.uint16), lengths))
        times.append(start + np.arange(sum(lengths)) / rate)
    when = np.argsort(np.concatenate(times), kind="stable")
    return Trace(
        np.concatenate(ids)[when],
        objects,
        jobs=np.concatenate(jobs)[when] if len(orders) > 1 else None,
        epochs=np.concatenate(epochs)[when],
        weights=weights,
    )
