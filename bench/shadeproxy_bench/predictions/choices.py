"""Choices under a deadline: the real time and cost of the chosen configuration, compared with those of the
best configuration.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from shadeproxy.plan.grid import CacheSize, Question, Row, choose, make_plan
from shadeproxy.plan.hits import uniform_hits
from shadeproxy.plan.predict import Predictor
from shadeproxy.plan.prices import CachePrices, Instance, OriginPrices, Prices, cost
from shadeproxy_bench.predictions.runs import SAMPLE_BYTES, SAMPLES, Found, Point

PRICES = Prices(
    # Each machine is named by the number of workers for which it has processors. Bigger machines and a bigger
    # cache cost more than the time that they save, so the cheapest run is a slow one.
    instances={"4": Instance(per_hour=0.5), "8": Instance(per_hour=1.5), "16": Instance(per_hour=4.0)},
    date="made up: 10 $ an hour for a cache of all the data",
    origin=OriginPrices(per_1000_requests=0.0004, per_gib=0.01),
    cache=CachePrices(per_gib_hour=10.0 / (SAMPLES * SAMPLE_BYTES / (1 << 30))),
)
EPOCHS = 30
_DEADLINES = 16
_FIRST, _LAST = 1.1, 0.95
"""The shortest deadline as a multiple of the fastest run's time, and the longest as a share of the slowest
run's.
"""


class Choice(msgspec.Struct, frozen=True):
    """A choice under one deadline. ``regret``: the real cost of the chosen configuration, divided by the cost
    of the cheapest configuration that meets the deadline, minus 1. ``late``: whether the real run of the
    chosen one is late. Both are None if nothing was chosen.
    """

    deadline_s: float
    regret: float | None
    late: bool | None


class Choices(msgspec.Struct, frozen=True):
    """The choices of ``shadeproxy plan`` under all deadlines, and the choices of two simple rules: always the
    cheapest configuration, and always the biggest.
    """

    configurations: int
    plan: list[Choice]
    cheapest: list[Choice]
    biggest: list[Choice]


def choose_all(grid: Sequence[Found]) -> Choices:
    """Choose for several deadlines among the configurations with the profiled latency and without a link.
    Then choose once more, only among those of these configurations that have no announced order.
    """
    predictor, profiled = Predictor(grid[0].profile), grid[0].point
    able = [
        found
        for found in grid
        if found.point.latency_s == profiled.latency_s and not found.point.link_bytes_per_s
    ]
    choices = Choices(len(able), [], [], [])
    for some in (able, [found for found in able if not found.point.announced]):
        _choose(predictor, some, choices)
    return choices


def _choose(predictor: Predictor, able: Sequence[Found], choices: Choices) -> None:
    """Choose for each deadline among ``able``, and add the choices to ``choices``."""
    real_s = [_run_s(found) for found in able]
    real = [_cost(found, run_s) for found, run_s in zip(able, real_s, strict=True)]
    free = _rows(predictor, able, None)
    cheapest = min(range(len(able)), key=lambda number: _total(free[number]))
    biggest = max(range(len(able)), key=lambda number: _size(able[number].point))
    for deadline_s in np.geomspace(_FIRST * min(real_s), _LAST * max(real_s), _DEADLINES).tolist():
        best = min(paid for paid, run_s in zip(real, real_s, strict=True) if run_s <= deadline_s)
        chosen = choose(_rows(predictor, able, deadline_s))
        kept = [(chosen, choices.plan), (cheapest, choices.cheapest), (biggest, choices.biggest)]
        for number, into in kept:
            into.append(
                Choice(deadline_s, None, None)
                if number is None
                else Choice(deadline_s, real[number] / best - 1, real_s[number] > deadline_s)
            )


def _size(point: Point) -> tuple[float, int, bool]:
    return point.cached, point.workers, point.announced


def _rows(predictor: Predictor, able: Sequence[Found], deadline_s: float | None) -> list[Row]:
    profile = predictor.profile
    stored_bytes = profile.samples * profile.stored_bytes_per_sample
    rows = []
    for found in able:
        size_bytes = found.point.cached * SAMPLES * SAMPLE_BYTES
        question = Question(
            caches=[CacheSize("", min(size_bytes / stored_bytes, 1.0), size_bytes)],
            workers=[found.point.workers],
            orders=[found.point.announced],
            epochs=EPOCHS,
            prices=PRICES,
            instances=[str(found.point.workers)],
            deadline_s=deadline_s,
        )
        rows += make_plan(predictor, uniform_hits(profile.policy), question).rows
    return rows


def _total(row: Row) -> float:
    assert row.cost is not None, "prices are given"
    return row.cost.total


def _run_s(found: Found) -> float:
    return found.first.wall_s + (EPOCHS - 1) * found.epoch_s


def _cost(found: Found, run_s: float) -> float:
    sent_bytes = SAMPLES * SAMPLE_BYTES + (EPOCHS - 1) * found.bytes_per_epoch
    return cost(
        PRICES,
        str(found.point.workers),
        run_s=run_s,
        cache_bytes=found.point.cached * SAMPLES * SAMPLE_BYTES,
        requests=sent_bytes / SAMPLE_BYTES,
        origin_bytes=sent_bytes,
        world_size=1,
    ).total
