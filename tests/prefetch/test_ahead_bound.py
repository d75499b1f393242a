"""Prefetched pages that no reader has read yet take at most a quarter of the tiers, even if prefetch.ahead is
larger.
"""

import pytest

from shadeproxy.core.types import Source
from tests.support.prefetching import Order, whole

SIZE, PAGE, RECORD = 7_900, 16_384, 8_192
PLACES, COUNT = 80, 300


@pytest.fixture
async def fetching(make_fetching):
    made = await make_fetching(
        page_size=PAGE, ram_bytes=PLACES * RECORD, segment_bytes=1 << 20, ahead_bytes=1 << 24
    )
    for number in range(COUNT):
        made.bench.origin.put("b", f"k{number}", bytes(SIZE))
        made.bench.origin.put("b", f"s{number}", bytes(SIZE))
    return made


def ready(fetching):
    """Return the number of prefetched pages that are on their way or still unread."""
    return len(fetching.bench.cache.residents.unread) + fetching.prefetcher.flying


async def test_a_quarter_of_an_empty_cache(fetching):
    fetching.orders.announce("j", Order(whole(COUNT), list(range(COUNT)), rate_per_s=1e5))
    await fetching.idle()
    assert PLACES // 8 < ready(fetching) <= PLACES // 4


async def test_a_quarter_for_all_jobs_together(fetching):
    for job in range(4):
        coming = list(range(50 * job, 50 * job + 50))
        fetching.orders.announce(f"j{job}", Order(whole(COUNT), coming, rate_per_s=1e5))
    await fetching.idle()
    assert PLACES // 8 < ready(fetching) <= PLACES // 4


async def test_what_was_read_makes_room_for_what_comes(fetching):
    bench = fetching.bench
    fetching.orders.announce("j", Order(whole(COUNT), list(range(COUNT)), rate_per_s=100.0))
    hits = 0
    for number in range(COUNT):
        await fetching.idle()
        assert ready(fetching) <= PLACES // 4
        hits += (await bench.get(f"k{number}"))[1] is not Source.ORIGIN
        fetching.orders.read("j")
        bench.clock.advance(0.01)
    assert hits >= COUNT - 2


async def test_what_is_announced_twice_and_was_read_once_lies_ready_no_more(fetching):
    bench, coming = fetching.bench, [*range(10)] * 9
    fetching.orders.announce("j", Order(whole(COUNT), coming, rate_per_s=100.0))
    await fetching.idle()
    for number in coming[:30]:
        await bench.get(f"k{number}")
        fetching.orders.read("j")
    fetching.orders.announce("other", Order(whole(COUNT), list(range(100, 200)), rate_per_s=100.0))
    await fetching.idle()
    assert ready(fetching) > PLACES // 8


async def test_what_was_passed_unread_lies_ready_no_more(fetching):
    """Pages of samples that the job has skipped no longer count as ready. Otherwise a job that skips
    announced samples would fill its share with their pages.
    """
    bench = fetching.bench
    fetching.orders.announce("j", Order(whole(COUNT), list(range(COUNT)), rate_per_s=100.0))
    for number in range(0, COUNT - 20, 10):
        await fetching.idle()
        await bench.get(f"k{number}")
        fetching.orders.read("j", 10)
        bench.clock.advance(0.1)
    await fetching.idle()
    assert bench.cached([f"k{COUNT - 20}", f"k{COUNT - 19}"]) == 2


async def test_one_page_may_always_come_ahead(make_fetching):
    """One page may always be fetched ahead. The cache has room for three pages, and a quarter of them is less
    than a page.
    """
    fetching = await make_fetching(
        page_size=PAGE, ram_bytes=3 * RECORD, segment_bytes=1 << 20, ahead_bytes=1 << 24
    )
    for number in range(9):
        fetching.bench.origin.put("b", f"k{number}", bytes(SIZE))
    fetching.orders.announce("j", Order(whole(9), list(range(9)), rate_per_s=100.0))
    await fetching.idle()
    assert ready(fetching) == 1


async def test_a_stock_clients_fitting_working_set_stays_beside_what_lies_ready(fetching):
    bench = fetching.bench
    stock = [f"s{number}" for number in range(PLACES // 2 + 15)]
    for key in stock * 2:
        await bench.get(key)
        await bench.settle()
    fetching.orders.announce("j", Order(whole(COUNT), list(range(COUNT)), rate_per_s=1e5))
    await fetching.idle()
    assert bench.cached(stock) == len(stock)
