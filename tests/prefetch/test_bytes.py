"""With prefetching, no more bytes are read from the origin than without it, with any policy."""

import asyncio

import numpy as np
import pytest

from shadeproxy.core.types import Source
from shadeproxy.policy.registry import POLICIES
from tests.support.prefetching import Order, whole
from tests.support.purging import purge_under

COUNT, EPOCHS = 60, 3
SIZE, PAGE = 7_900, 16_384
RECORD = 8_192


@pytest.mark.parametrize(
    ("policy", "places", "turns"),
    [
        *((policy, 30, 20) for policy in POLICIES),
        *((policy, 12, 2) for policy in ("default", "lfu", "random")),
    ],
)
async def test_no_page_is_read_twice_for_one_use(make_fetching, policy, places, turns):
    """No page is read twice from the origin for one use. ``turns`` is the number of turns of the event loop
    between two reads: few for a fast reader, many for a slow one.
    """
    fetching = await make_fetching(
        policy=policy, page_size=PAGE, ram_bytes=places * RECORD, segment_bytes=1 << 20, ahead_bytes=1 << 24
    )
    bench, orders = fetching.bench, fetching.orders
    for number in range(COUNT):
        bench.origin.put("b", f"k{number}", bytes(SIZE))
    drawn = np.random.default_rng(3)
    coming = [int(one) for _ in range(EPOCHS) for one in drawn.permutation(COUNT)]
    orders.announce("j", Order(whole(COUNT), coming, rate_per_s=100.0))
    hits = 0
    for number in coming:
        for _ in range(turns):
            await asyncio.sleep(0)
        hits += (await bench.get(f"k{number}"))[1] is not Source.ORIGIN
        orders.read("j")
        bench.clock.advance(0.01)
    await fetching.idle()
    _, _, wasted, _ = fetching.counts()
    assert bench.origin.gets <= len(coming)
    assert wasted == 0
    if policy in {"default", "lru", "fifo", "lfu", "random"}:
        assert hits >= 0.9 * len(coming)


async def test_what_left_unread_is_left_to_its_reader(make_fetching):
    """A page that is evicted unread is left to its reader, and is not fetched again. Another job may have
    caused the eviction, and repeated fetches might never end.
    """
    fetching = await make_fetching()
    bench = fetching.bench
    bench.origin.put("b", "k0", bytes(1000))
    bench.origin.put("b", "k1", bytes(1000))
    fetching.orders.announce("j", Order(whole(2), [0, 1, 0]))
    await fetching.idle()
    assert bench.origin.gets == 2
    for _ in range(5):
        await purge_under(bench.engine, "b", "k0")
        bench.clock.advance(2.0)  # More than a second passes, so the next walk looks up all samples again.
        fetching.orders.changed()
        await fetching.idle()
    assert bench.origin.gets == 2
    assert (await bench.get("k0"))[1] is Source.ORIGIN
    fetching.orders.read("j")
    await purge_under(bench.engine, "b", "k0")
    bench.clock.advance(2.0)
    fetching.orders.changed()
    await fetching.idle()
    assert bench.origin.gets == 4, "the next use is another one"


@pytest.mark.parametrize("places", [8, 40])
async def test_epochs_shorter_than_a_look_is_believed_are_read_once_a_use(make_fetching, places):
    """In epochs shorter than a second, each page is read once for each use. Twenty samples are read in a
    fifth of a second, again and again. So each sample is in the list of coming samples several times.
    """
    fetching = await make_fetching(
        page_size=PAGE, ram_bytes=places * RECORD, segment_bytes=1 << 20, ahead_bytes=1 << 24
    )
    bench, orders, drawn = fetching.bench, fetching.orders, np.random.default_rng(3)
    for number in range(20):
        bench.origin.put("b", f"k{number}", bytes(SIZE))
    coming = [int(one) for _ in range(8) for one in drawn.permutation(20)]
    orders.announce("j", Order(whole(20), coming, rate_per_s=100.0))
    for number in coming:
        for _ in range(20):
            await asyncio.sleep(0)
        await bench.get(f"k{number}")
        orders.read("j")
        bench.clock.advance(0.01)
    await fetching.idle()
    assert bench.origin.gets <= (20 if places >= 20 else len(coming))
    assert fetching.counts()[2] <= 8
