"""The settings that are run: first the profiled setting, then the settings that are predicted from its
profile.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from shadeproxy_bench.predictions.runs import Found, Point, run_point

PROFILED = Point(cached=0.2, workers=8, announced=False, latency_s=0.1)
_AT_ONCE = 2
"""Number of settings that run at the same time. A setting waits nearly all its time, and needs a tenth of a
core.
"""
_ORDERS = (False, True)


def points(*, quick: bool) -> list[Point]:
    """Return the profiled setting, and then those that differ from it in cache, workers, order, latency or
    link.
    """
    latency_s = PROFILED.latency_s
    caches = (0.2, 0.5, 1.0) if quick else (0.05, 0.2, 0.5, 0.8, 1.0)
    workers = (8, 16) if quick else (4, 8, 16)
    found = [Point(one, many, order, latency_s) for many in workers for order in _ORDERS for one in caches]
    if not quick:
        found += [Point(one, 8, order, far) for far in (0.05, 0.2) for order in _ORDERS for one in (0.2, 0.5)]
    links = (2e6,) if quick else (1e6, 2e6)
    found += [
        Point(one, 8, order, latency_s, link) for link in links for order in _ORDERS for one in (0.2, 0.5)
    ]
    return [PROFILED, *(point for point in found if point != PROFILED)]


def run_all(wanted: Sequence[Point]) -> Iterator[Found]:
    """Run the settings, ``_AT_ONCE`` at a time, and yield their measurements in the order of the settings."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            yield from pool.map(run_point, wanted)
        finally:
            pool.shutdown(cancel_futures=True)


@cache
def measured_grid(*, quick: bool) -> tuple[Found, ...]:
    """Run all of ``points``, and return their measurements. The settings run only once in this process."""
    return tuple(run_all(points(quick=quick)))
