"""Hit ratios of caches that were not measured: by a replay of the product's policy on a trace, or in closed
form.

A uniform epoch reads each sample once, in a new order. If a share c of the data fits into the cache, the hit
ratio of the default policy is then c, and that of LRU is c + (1 - c) ln(1 - c). All other cases are
simulated. A long trace is first reduced to the reads of a random sample of its objects, about ``MOST_READS``.
The hit ratio of such a sample is about that of all objects (SHARDS, FAST'15).
"""

from collections.abc import Callable
from dataclasses import replace
from math import log
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from shadeproxy.policy.default import Objective
from shadeproxy.policy.registry import get_policy
from shadeproxy.simulate.hints import Announce, parse_announce
from shadeproxy.simulate.replay import Replay
from shadeproxy.simulate.trace import Trace

MOST_READS = 50_000
HitRatio = Callable[[float, bool], float]
"""The type of a function that returns the hit ratio of a cache. It takes the share of the data that the cache
holds, and whether the order is announced.

With an announced order, only reads of pages that were kept from an earlier epoch count as hits here.
Prefetched samples are hits for training too, but they come from the origin.
"""

_NEXT_HALF = "next-half"
_Column = TypeVar("_Column", bound=NDArray[Any])


def uniform_hits(policy: str) -> HitRatio:
    """Return a function for the hit ratios of uniform epochs, from the second epoch on."""

    def ratio(share: float, _announced: bool) -> float:
        share = min(max(share, 0.0), 1.0)
        if policy != "lru" or share in {0.0, 1.0}:
            return share
        return max(share + (1 - share) * log(1 - share), 0.0)

    return ratio


def simulated_hits(trace: Trace, policy: str, *, objective: Objective = "bytes", seed: int = 0) -> HitRatio:
    """Return a function for the hit ratios of ``policy`` on ``trace``, from each job's second epoch on. The
    function simulates a hit ratio when it is first asked for it, and then remembers it. It simulates no
    announced order of a trace without epochs.
    """
    sampled = sample_objects(trace, MOST_READS, seed)
    counted = sampled.counted()
    known: dict[tuple[float, bool], float] = {}

    def ratio(share: float, announced: bool) -> float:
        asked = (share, announced)
        if asked not in known:
            announce = parse_announce(_NEXT_HALF) if announced and sampled.epochs is not None else Announce(0)
            capacity = round(min(share, 1.0) * sampled.total_bytes)
            hits = (
                np.zeros(len(counted), dtype=np.bool_)
                if not capacity
                else Replay(
                    sampled, get_policy(policy, objective), capacity, announce=announce, seed=seed
                ).run()
            )
            known[asked] = float(hits[counted].mean())
        return known[asked]

    return ratio


def readers(trace: Trace) -> set[str]:
    """Return the names of the jobs that made the reads of a recording; empty if the trace names no jobs."""
    if not trace.job_names:
        return set()
    return {trace.job_names[job] for job in ([0] if trace.jobs is None else np.unique(trace.jobs).tolist())}


def reads_of(trace: Trace, job: str) -> Trace:
    """Return ``trace`` with only the reads of ``job``, which is among ``readers(trace)``, and with only the
    objects that it read.
    """
    if trace.jobs is None:
        return trace
    reads = trace.jobs == trace.job_names.index(job)
    objects = np.zeros(trace.objects, dtype=np.bool_)
    objects[trace.ids[reads]] = True
    return replace(_part(trace, reads, objects), jobs=None, job_names=(job,), stock=() if job else (0,))


def sample_objects(trace: Trace, most_reads: int, seed: int = 0) -> Trace:
    """Return ``trace`` with only a random share of its objects, so that about ``most_reads`` reads remain."""
    if len(trace.ids) <= most_reads:
        return trace
    share = most_reads / len(trace.ids)
    kept = np.random.default_rng(seed).random(trace.objects) < share
    kept[trace.ids[0]] = True  # Keep at least one object.
    return _part(trace, kept[trace.ids], kept)


def _part(trace: Trace, reads: NDArray[np.bool_], objects: NDArray[np.bool_]) -> Trace:
    """Return ``trace`` with only some reads and some objects, among them the objects of these reads."""
    number = np.cumsum(objects) - 1

    def by_read(column: _Column | None) -> _Column | None:
        return None if column is None else cast("_Column", column[reads])

    def by_object(column: _Column | None) -> _Column | None:
        return None if column is None else cast("_Column", column[..., objects])

    return replace(
        trace,
        ids=number[trace.ids[reads]].astype(np.uint32),
        objects=int(objects.sum()),
        sizes=by_object(trace.sizes),
        weights=by_object(trace.weights),
        prefixes=by_object(trace.prefixes),
        jobs=by_read(trace.jobs),
        epochs=by_read(trace.epochs),
        times=by_read(trace.times),
        sources=by_read(trace.sources),
        ranks=by_read(trace.ranks),
        hints=(),
    )
