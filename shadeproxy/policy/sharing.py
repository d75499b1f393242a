"""Shares cache and link among jobs: decides which needs fit, and moves the weights of jobs in eviction and at
the link.

Law: pure functions on columns of shape (n,), one element for each job. A rate is in samples per second.
``need`` is nan where a job has no need. Two models are used. Only the bytes of misses cross the link, so a
job takes rate x bytes per sample x share of misses of the link's bytes per second. A job whose dataset has d
bytes, of which c bytes are in the cache, misses 1 - c / d of its reads, whatever the order.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Rates = NDArray[np.float64]

_ROUNDS = 24  # Steps of the bisection, which leave an error of 1e-7.
_LEFT_TO_OTHERS = 0.5
_OF_OTHERS = 0.3
_LEAST_SHARE = 0.01
_MARGIN, _AHEAD_S = 1.04, 0.75
_FIRST_WEIGHT = 4.0
_MOST_WEIGHT = 8.0
_UP, _DOWN = 1.15, 0.98
_ENOUGH = 1.08
_ALL = 0.985  # A job that has this share of its own rate gains nothing from a larger share of the link.


class Demands(NamedTuple):
    """Demands of jobs on link and cache. ``rate``: the rate of a job if it never waited. ``need``: the rate
    that the job needs. ``sample_bytes``: mean length of a sample. ``data_bytes``: bytes of the job's whole
    dataset.
    """

    rate: Rates
    need: Rates
    sample_bytes: Rates
    data_bytes: Rates


class Room(NamedTuple):
    """The room that jobs share: the link, in bytes per second, and the cache, in bytes."""

    link_bytes_per_s: float
    cache_bytes: float


class Shares(NamedTuple):
    """A division of cache and link. ``fits``: whether all needs can be met and the other jobs still get their
    least share. ``others``: the share of its own rate that each job without a need gets. ``rate``: the rate
    of each job.
    """

    fits: bool
    others: float
    rate: Rates


def solve(demands: Demands, room: Room) -> Shares:
    """Divide link and cache: first the needs are met; then the rest goes to the other jobs, which are all
    slowed down alike.
    """
    needed, rest = _split(demands)
    if _load(demands, needed, room) > room.link_bytes_per_s:
        return Shares(fits=False, others=0.0, rate=needed)
    others = _largest(demands, needed, rest, room)
    return Shares(fits(demands, least_of_others(demands, room), room), others, needed + others * rest)


def least_of_others(demands: Demands, room: Room) -> float:
    """Return the share of its own rate that needs must leave to each job without a need. It is half of the
    share that all jobs would have if none had a need.
    """
    return _LEFT_TO_OTHERS * _largest(demands, np.zeros_like(demands.rate), demands.rate, room)


def fits(demands: Demands, least: float, room: Room) -> bool:
    """Return whether the link can meet all needs, and give each other job the share ``least`` of its own
    rate.
    """
    needed, rest = _split(demands)
    return _load(demands, needed + least * rest, room) <= room.link_bytes_per_s


def most_for(demands: Demands, job: int, least: float, room: Room) -> float:
    """Return the highest need of ``job`` that fits beside the needs of the other jobs; 0 if none fits."""
    low, high = 0.0, float(demands.rate[job])
    for _ in range(_ROUNDS):
        need = demands.need.copy()
        need[job] = middle = (low + high) / 2
        if fits(demands._replace(need=need), least, room):
            low = middle
        else:
            high = middle
    return low


def first_weight(claims: int) -> float:
    """Return the weight with which a job with a need begins, if ``claims`` jobs have one."""
    return min(_FIRST_WEIGHT, _most_weight(claims))


def next_weights(weights: Rates, got: Rates, demands: Demands) -> Rates:
    """Move the weights of jobs in eviction by one step: up for a job that gets less than it needs, slowly
    down for other jobs with a need. A job without a need has weight 1.

    The product of all weights is at most 8. So many jobs with needs together displace the pages of a job
    without a need no further than one such job does.
    """
    has_need = ~np.isnan(demands.need)
    wanted = np.minimum(_ENOUGH * demands.need, _ALL * demands.rate)
    moved = weights * np.where(got < wanted, _UP, _DOWN)
    most = _most_weight(int(has_need.sum()))
    return np.where(has_need, np.clip(moved, 1.0, most), 1.0)


def link_weights(demands: Demands, miss_bytes: Rates) -> Rates:
    """Return the weights by which jobs divide the link, after jobs that are behind their needs have taken
    their part. ``miss_bytes``: measured bytes from the origin for each sample read.

    The weight of a job without a need is the bytes per second that it would read. The weight of a job with a
    need is 0.3 of the mean of those weights, because this job is not behind its need now. If all jobs have
    needs, the weight of each is the bytes that its need takes.
    """
    has_need = ~np.isnan(demands.need)
    asked = demands.rate * miss_bytes
    if has_need.all():
        weights = demands.need * miss_bytes
    else:
        weights = np.where(has_need, _OF_OTHERS * asked[~has_need].mean(), asked)
    total = float(weights.sum())
    return np.maximum(weights, _LEAST_SHARE * total) if total > 0 else np.ones(len(weights))


def is_behind(reads: float, elapsed_s: float, need: float) -> bool:
    """Return whether a job that made ``reads`` in ``elapsed_s`` of an epoch is behind its need. It must be
    0.75 s ahead: it is behind if it has read less than it needs in ``elapsed_s`` + 0.75 s. A margin of 4 %
    allows for errors of measurement.
    """
    return reads < _MARGIN * need * (elapsed_s + _AHEAD_S)


def trains_behind(samples: float, elapsed_s: float, need: float) -> bool:
    """Return whether a job is behind its need, if training has used ``samples`` in ``elapsed_s`` of an epoch.
    Unlike in ``is_behind``, the job need not be ahead, because a job whose need is close to its own speed
    cannot get ahead.
    """
    return samples < _MARGIN * need * elapsed_s


def _most_weight(claims: int) -> float:
    return float(_MOST_WEIGHT ** (1 / max(claims, 1)))


def _split(demands: Demands) -> tuple[Rates, Rates]:
    """Return two columns: the rates that the needs ask for, and the rates that the other jobs would have
    without waits.
    """
    has_need = ~np.isnan(demands.need)
    needed = np.where(has_need, np.minimum(demands.need, demands.rate), 0.0)
    return needed, np.where(has_need, 0.0, demands.rate)


def _largest(demands: Demands, fixed: Rates, scaled: Rates, room: Room) -> float:
    """Return the largest r <= 1 for which the link carries ``fixed`` + r ``scaled``."""
    low, high = 0.0, 1.0
    if _load(demands, fixed + scaled, room) <= room.link_bytes_per_s:
        return 1.0
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        if _load(demands, fixed + middle * scaled, room) <= room.link_bytes_per_s:
            low = middle
        else:
            high = middle
    return low


def _load(demands: Demands, rates: Rates, room: Room) -> float:
    """Return the bytes per second that the link must carry, if the cache holds the data that saves the most
    traffic.
    """
    traffic = rates * demands.sample_bytes
    order = np.argsort(-traffic / np.maximum(demands.data_bytes, 1.0), kind="stable")
    data_bytes = demands.data_bytes[order]
    before = np.cumsum(data_bytes) - data_bytes
    cached = np.clip(room.cache_bytes - before, 0.0, data_bytes)
    return float((traffic[order] * (1 - cached / np.maximum(data_bytes, 1.0))).sum())
