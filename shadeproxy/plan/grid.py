"""The rows of ``shadeproxy plan``, one for each combination of cache, workers, order and instance; and the
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
"""Error that is assumed if the prediction's own error (``Predictor.error``) is not known."""


class CacheSize(msgspec.Struct, frozen=True):
    """A cache size to try. ``text``: the size as the user wrote it. ``share``: the part of the data that fits
    into it, as the data is stored in a cache.
    """

    text: str
    share: float
    size_bytes: float


class Row(msgspec.Struct, frozen=True):
    """One predicted configuration. Times are in seconds. ``outside``: True if the profile says little about
    this configuration.

    ``origin_bytes``, ``requests``: to the origin, in an epoch after the first. ``run_s``, ``cost``: for all
    epochs; the first one begins with an empty cache. ``meets``: whether the run ends within the deadline,
    with the prediction's own error added.
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
    """The combinations to predict. ``link``: bytes a second to the origin; None: the link is never full.
    ``latency_s``: time until the origin's first byte; None: as measured. ``announced_at``: share of an epoch
    that training has computed when the next order is announced.
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
    """The predicted rows, and the choice among them. ``error``: largest relative error of a prediction
    (``Predictor.error``); None: it is not known, and ``UNKNOWN_ERROR`` was used. ``chosen``: index of the
    cheapest row that meets the deadline. Without prices, it is the row with the smallest cache, and of these
    the one with the fewest workers. None: no row meets the deadline, or no deadline was given.
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
    """Return the index of the cheapest row that meets the deadline; None if no row meets it. Of equally cheap
    rows, take the one with the smallest cache, then the fewest workers.
    """
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
