import asyncio

import pytest

from shadeproxy.core.errors import Overloaded
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.types import Intent


async def test_demand_waits_in_order_and_is_granted():
    ledger = Ledger(100)
    await ledger.take(80, Intent.DEMAND)
    order = []

    async def taker(name, size):
        await ledger.take(size, Intent.DEMAND)
        order.append(name)

    tasks = [asyncio.create_task(taker("big", 60)), asyncio.create_task(taker("small", 10))]
    await asyncio.sleep(0)
    assert ledger.waiting == 2  # the small one does not overtake
    ledger.give(80)
    await asyncio.gather(*tasks)
    assert order == ["big", "small"]
    assert ledger.taken_bytes == 70


async def test_exhausted_for_too_long_is_overload():
    ledger = Ledger(100, max_wait_s=0.01)
    await ledger.take(100, Intent.DEMAND)
    with pytest.raises(Overloaded, match="memory for reads in flight is exhausted; retry later"):
        await ledger.take(1, Intent.DEMAND)
    assert (ledger.taken_bytes, ledger.waiting) == (100, 0)


async def test_prefetch_leaves_room_for_demand_and_never_waits():
    ledger = Ledger(100)
    await ledger.take(50, Intent.PREFETCH)
    with pytest.raises(Overloaded):
        await ledger.take(1, Intent.PREFETCH)
    await ledger.take(50, Intent.DEMAND)


async def test_more_than_the_whole_budget_is_served_alone():
    ledger = Ledger(100)
    await ledger.take(1000, Intent.DEMAND)
    assert not ledger.try_take(1)
    ledger.give(1000)
    assert ledger.try_take(1)


@pytest.mark.parametrize("give_first", [False, True])
async def test_a_waiter_that_is_cancelled_leaves_the_books_balanced(give_first):
    ledger = Ledger(100)
    await ledger.take(100, Intent.DEMAND)
    waiter = asyncio.create_task(ledger.take(40, Intent.DEMAND))
    await asyncio.sleep(0)
    if give_first:
        ledger.give(100)
    waiter.cancel()
    granted = (await asyncio.gather(waiter, return_exceptions=True))[0] is None
    if not give_first:
        ledger.give(100)
    assert ledger.taken_bytes == (40 if granted else 0)
    assert ledger.waiting == 0
