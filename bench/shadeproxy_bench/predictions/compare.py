"""Compares measured settings with the rows that ``shadeproxy plan`` predicts for them."""

from collections.abc import Sequence
from statistics import fmean
from typing import Literal

import msgspec

from shadeproxy.plan.grid import CacheSize, Question, Row, make_plan
from shadeproxy.plan.hits import uniform_hits
from shadeproxy.plan.predict import Predictor
from shadeproxy_bench.predictions.runs import LATER, Found, Point

Group = Literal["demand", "prefetch", "prefetch on a full link", "batches by the SDK"]
_FULL = 0.8
"""A link counts as full if it needs at least this share of the computing time to carry the missed bytes."""
_ANNOUNCED_AT = 0.5
"""Share of an epoch after which runs.py announces the next order. The SDK announces it when an epoch
begins.
"""


class Compared(msgspec.Struct, frozen=True):
    """One setting, as measured and as predicted. ``error`` and ``bound_error`` are signed shares of the
    measured time. ``bytes_error``, ``hit_error`` and ``stall_error`` are differences, as shares of all bytes
    read, of all reads, and of the time.
    """

    point: Point
    group: Group
    epoch_s: float
    predicted_s: float
    spread: float
    bound_s: float
    """The bound max(compute, missed bytes / link), which leaves the latency out."""
    bytes_error: float
    hit_error: float
    stall_error: float
    outside: bool

    @property
    def error(self) -> float:
        return self.predicted_s / self.epoch_s - 1

    @property
    def bound_error(self) -> float:
        return self.bound_s / self.epoch_s - 1


class Errors(msgspec.Struct, frozen=True):
    """Errors of the times predicted for several settings, as shares. ``mean`` and ``worst``: absolute errors
    of ``shadeproxy plan``. ``bound_mean`` and ``bound_worst``: absolute errors of the bound. ``spread``: the
    difference between the slowest and the fastest later epoch of a run, as a mean over runs.
    """

    count: int
    mean: float
    worst: float
    bound_mean: float
    bound_worst: float
    spread: float


def predict_row(predictor: Predictor, found: Found, profiled: Point) -> Row:
    """Return the row that ``shadeproxy plan`` predicts for the setting of ``found``."""
    profile, point = predictor.profile, found.point
    size_bytes = found.profile.cache_bytes
    stored_bytes = profile.samples * profile.stored_bytes_per_sample
    further_s = point.latency_s - profiled.latency_s
    question = Question(
        caches=[CacheSize(f"{point.cached:.0%}", min(size_bytes / stored_bytes, 1.0), size_bytes)],
        workers=[point.workers],
        orders=[point.announced],
        epochs=LATER + 1,
        link=point.link_bytes_per_s or None,
        announced_at=_ANNOUNCED_AT if predictor.loader.reads_at_once == 1 else 0.0,
        latency_s=None if further_s == 0 else (profile.first_byte_s or 0.0) + further_s,
    )
    return make_plan(predictor, uniform_hits(profile.policy), question).rows[0]


def compare(predictor: Predictor, found: Found, profiled: Point) -> Compared:
    point, row = found.point, predict_row(predictor, found, profiled)
    read_bytes = predictor.profile.reads_per_epoch * predictor.profile.bytes_per_sample
    compute_s, link = found.first.compute_s, point.link_bytes_per_s
    carried_s = found.bytes_per_epoch / link if link else 0.0
    kept = 1 - found.bytes_per_epoch / read_bytes if point.announced else found.hit_ratio
    group: Group = "demand"
    if point.announced:
        group = "prefetch on a full link" if carried_s >= _FULL * compute_s else "prefetch"
    if predictor.loader.reads_at_once > 1:
        group = "batches by the SDK"
    return Compared(
        point=point,
        group=group,
        epoch_s=found.epoch_s,
        predicted_s=row.epoch_s,
        spread=found.spread,
        bound_s=max(compute_s, carried_s),
        bytes_error=(row.origin_bytes - found.bytes_per_epoch) / read_bytes,
        hit_error=row.hit_ratio - kept,
        stall_error=row.stall_share - found.stall_share,
        outside=row.outside,
    )


def compare_all(grid: Sequence[Found]) -> list[Compared]:
    """Predict all settings but the first from the profile of the first, and compare each with its
    measurement.
    """
    predictor = Predictor(grid[0].profile)
    return [compare(predictor, found, grid[0].point) for found in grid[1:]]


def errors_of(compared: Sequence[Compared]) -> Errors:
    errors, bounds = ([abs(value) for value in of] for of in (
        [one.error for one in compared], [one.bound_error for one in compared]
    ))  # fmt: skip
    return Errors(
        len(compared),
        fmean(errors),
        max(errors),
        fmean(bounds),
        max(bounds),
        fmean(one.spread for one in compared),
    )
