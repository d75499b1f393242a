"""Fixtures: a prefetcher over a real engine, and announced orders that a test changes step by step."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from shadeproxy.prefetch.limits import Limits
from shadeproxy.prefetch.prefetcher import Prefetcher
from tests.support.clock import ManualClock
from tests.support.engine import PAGE, MakeBench, benches
from tests.support.prefetching import FakeOrders, Fetching

MakeFetching = Callable[..., Awaitable[Fetching]]


@pytest.fixture
async def make_bench(tmp_path: Path) -> AsyncIterator[MakeBench]:
    async with benches(tmp_path) as make:
        yield make


@pytest.fixture
async def make_fetching(make_bench) -> AsyncIterator[MakeFetching]:
    running: list[Fetching] = []

    async def make(
        *,
        ahead_bytes: int = 1 << 20,
        fetches: int = 32,
        flying_bytes: int = 1 << 19,
        whole_bytes: int = 0,
        page_size: int = PAGE,
        **kwargs,
    ) -> Fetching:
        orders = FakeOrders()
        limits = Limits(ahead_bytes, lambda: fetches, flying_bytes, whole_bytes)
        clock = ManualClock()
        prefetcher = Prefetcher(
            orders, orders, page_size=page_size, clock=clock, limits=limits, woken=orders.woken
        )
        bench = await make_bench(
            next_uses=orders, page_size=page_size, clock=clock, observer=prefetcher, **kwargs
        )
        prefetcher.start(bench.engine.prefetch_port)
        running.append(Fetching(bench, orders, prefetcher))
        return running[-1]

    yield make
    for one in running:
        await one.prefetcher.aclose()
        assert not one.prefetcher.flying
