"""The rows of ``shadeproxy plan``, one for each combination of cache, workers, order and instance, and the
choice of the cheapest row that meets a deadline.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import msgspec

from shadeproxy.plan.hits import HitRatio
from shadeproxy.plan.predict import Bound, Predictor, Setting
from shadeproxy.plan.prices import Cost, Prices, cost

UNKNOWN_ERROR = 0.1
"""Error that is assumed if the prediction's error is not known (``Predictor.error``)."""


class CacheSize(msgspec.Struct, frozen=True):
    """A cache to try. ``text``: its size as the user wrote it. ``share``: the share of the data that it
    holds, as the data is stored in a cache.
    """

    text: str
    share: float
    size_bytes: float


class Row(msgspec.Struct, frozen=True):
    """One predicted configuration. Times are in seconds. ``outside``: the profile says little about it.
    ``origin_bytes``, ``requests``: for an epoch after the first. ``run_s``, ``cost``: for all epochs; the
    first one begins with an empty cache. ``meets``: whether the run ends within the deadline, with ``error``
    added to its time.
    """

    cache: str
    cache_bytes: float
    workers: int
    announced: bool
    instance: str
    hit_ratio: float
    epoch_s: float
    error: float
    stall_share: float
    origin_bytes: float
    requests: float
    run_s: float
    bound_by: Bound
    bounds: dict[Bound, float]
    outside: bool
    cost: Cost | None = None
    meets: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The combinations to predict: each of ``caches`` with each of ``workers``, ``orders`` and ``instances``.
    ``link``: bytes a second from the origin; None: the link is never full. ``latency_s``: time until the
    origin's first byte; None: as measured. ``announced_at``: see ``Setting``.
    """

    caches: Sequence[CacheSize]
    workers: Sequence[int]
    orders: Sequence[bool]
    epochs: int
    link: float | None = None
    latency_s: float | None = None
    announced_at: float = 0.0
    prices: Prices | None = None
    instances: Sequence[str] = ("",)
    deadline_s: float | None = None


class Plan(msgspec.Struct, frozen=True):
    """The answer to a question. ``error``: see ``Predictor.error``; None: it is not known, and
    ``UNKNOWN_ERROR`` was used. ``chosen``: index of the cheapest row that meets the deadline. Without prices,
    it is the row with the smallest cache, and of several such rows the one with the fewest workers. None: no
    row meets the deadline, or no deadline was given.
    """

    job: str
    rows: list[Row]
    error: float | None
    chosen: int | None
    currency: str = ""
    prices_of: str = ""


def make_plan(
    predictor: Predictor,
    hit_ratio: HitRatio,
    question: Question,
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Predict a row for each combination. Before each row, ``progress`` is called with the size of its
    cache.
    """
    rows = []
    combinations = product(question.caches, question.workers, question.orders, question.instances)
    for combination in combinations:
        progress(combination[0].text)
        rows.append(_row(predictor, hit_ratio, question, combination))
    prices = question.prices
    return Plan(
        predictor.profile.job,
        rows,
        predictor.error,
        choose(rows),
        prices.currency if prices else "",
        prices.date if prices else "",
    )


def choose(rows: Sequence[Row]) -> int | None:
    """Return the index of the cheapest row that meets the deadline; None if no row does."""
    able = [number for number, row in enumerate(rows) if row.meets]

    def price(number: int) -> tuple[float, float, int]:
        row = rows[number]
        return (row.cost.total if row.cost else 0.0, row.cache_bytes, row.workers)

    return min(able, key=price, default=None)


def _row(
    predictor: Predictor,
    hit_ratio: HitRatio,
    question: Question,
    combination: tuple[CacheSize, int, bool, str],
) -> Row:
    cache, workers, announced, instance = combination
    prices = question.prices
    speed = prices.instances[instance].speed if prices else 1.0
    setting = Setting(
        workers,
        announced,
        cache.size_bytes,
        question.link,
        question.latency_s,
        speed,
        question.announced_at,
    )
    later = predictor.predict(setting, hit_ratio(cache.share, announced))
    first = predictor.predict(setting, 0.0, first=True)
    run_s = first.epoch_s + later.epoch_s * (question.epochs - 1)
    error = UNKNOWN_ERROR if predictor.error is None else predictor.error
    paid = None
    if prices:
        paid = cost(
            prices,
            instance,
            run_s=run_s,
            cache_bytes=cache.size_bytes,
            requests=first.requests + later.requests * (question.epochs - 1),
            origin_bytes=first.origin_bytes + later.origin_bytes * (question.epochs - 1),
            world_size=predictor.profile.world_size,
        )
    deadline_s = question.deadline_s
    return Row(
        cache=cache.text,
        cache_bytes=cache.size_bytes,
        workers=workers,
        announced=announced,
        instance=instance,
        hit_ratio=later.hit_ratio,
        epoch_s=later.epoch_s,
        error=error,
        stall_share=later.stall_share,
        origin_bytes=later.origin_bytes,
        requests=later.requests,
        run_s=run_s,
        bound_by=later.bound_by,
        bounds=later.bounds,
        outside=predictor.is_outside(setting),
        cost=paid,
        meets=None if deadline_s is None else run_s * (1 + error) <= deadline_s,
    )
