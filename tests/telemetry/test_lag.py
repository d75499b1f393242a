import asyncio
import time

from shadeproxy.telemetry.lag import LAG_BOUNDS_S, RECENT_S, LoopLag, watch_loop
from shadeproxy.telemetry.metrics import Metrics
from shadeproxy.telemetry.stats import Stats


def test_nothing_measured_is_no_lag():
    lag = LoopLag()
    assert lag.as_json() == {
        "count": 0,
        "sum": 0.0,
        "max": 0.0,
        "p50": 0.0,
        "p90": 0.0,
        "p99": 0.0,
        "recent_p99": 0.0,
    }


def test_quantiles_are_bounds_of_buckets_and_beyond_them_the_longest():
    lag = LoopLag()
    for _ in range(97):
        lag.observe(0.0004, 1.0)
    for _ in range(3):
        lag.observe(0.3, 1.0)
    assert (lag.quantile_s(0.5), lag.quantile_s(0.97), lag.quantile_s(0.99)) == (0.001, 0.001, 0.5)
    for _ in range(9900):
        lag.observe(7.0, 1.0)
    assert lag.quantile_s(0.99) == lag.max_s == 7.0


def test_what_is_recent_is_forgotten_after_two_minutes_and_the_rest_is_not():
    lag = LoopLag()
    lag.observe(0.3, RECENT_S + 1)
    assert lag.recent_quantile_s(0.99) == 0.5
    lag.observe(0.0, 2 * RECENT_S + 2)
    assert lag.recent_quantile_s(0.99) == 0.5
    lag.observe(0.0, 3 * RECENT_S + 3)
    assert lag.recent_quantile_s(0.99) == LAG_BOUNDS_S[0]
    assert lag.quantile_s(0.99) == 0.5


def test_the_longest_lag_of_a_day_ago_is_not_recent():
    lag = LoopLag()
    lag.observe(100.0, 1.0)
    for minute in range(1440, 1443):
        lag.observe(6.0, minute * 60.0)
    assert lag.recent_quantile_s(0.99) == 6.0
    assert lag.quantile_s(0.99) == 100.0


def test_it_is_a_histogram_of_prometheus_and_in_the_stats():
    stats = Stats()
    stats.loop_lag.observe(0.015, 1.0)
    stats.loop_lag.observe(0.5, 1.0)
    text = Metrics(stats).render().decode()
    for line in (
        'shadeproxy_loop_lag_seconds_bucket{le="0.01"} 0.0',
        'shadeproxy_loop_lag_seconds_bucket{le="0.02"} 1.0',
        'shadeproxy_loop_lag_seconds_bucket{le="+Inf"} 2.0',
        "shadeproxy_loop_lag_seconds_count 2.0",
        "shadeproxy_loop_lag_seconds_sum 0.515",
    ):
        assert line in text
    assert stats.snapshot()["loop_lag_s"]["p99"] == 0.5


async def test_a_loop_that_is_held_is_seen():
    lag = LoopLag()
    watching = asyncio.create_task(watch_loop(lag))
    await asyncio.sleep(0)
    time.sleep(0.3)  # noqa: ASYNC251 - the test blocks the loop on purpose
    while not sum(lag.buckets):
        await asyncio.sleep(0.01)
    watching.cancel()
    assert lag.max_s > 0.2
