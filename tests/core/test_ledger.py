import asyncio
import time

import pytest

from shadeproxy.core.errors import Overloaded
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.tracing import CLIENT
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
    assert ledger.waiting == 2  # The small request waits too, because it must not overtake the large one.
    ledger.give(80)
    await asyncio.gather(*tasks)
    assert order == ["big", "small"]
    assert ledger.taken_bytes == 70


async def test_missing_bytes_are_those_that_waiting_tasks_still_need():
    ledger = Ledger(100)
    await ledger.take(80, Intent.DEMAND)
    assert ledger.missing_bytes == 0
    tasks = [asyncio.create_task(ledger.take(size, Intent.DEMAND)) for size in (60, 30)]
    await asyncio.sleep(0)
    assert ledger.missing_bytes == 70
    tasks[1].cancel()
    await asyncio.wait({tasks[1]})
    assert ledger.missing_bytes == 40
    ledger.give(40)
    await tasks[0]
    assert (ledger.missing_bytes, ledger.taken_bytes) == (0, 100)


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


async def test_granted_in_the_turn_that_times_out_is_granted():
    ledger = Ledger(100, max_wait_s=0.01)
    await ledger.take(100, Intent.DEMAND)
    waiter = asyncio.create_task(ledger.take(60, Intent.DEMAND))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.009, ledger.give, 100)
    time.sleep(0.02)  # noqa: ASYNC251 - blocks the loop, so that both timers are due in one turn
    await waiter
    assert (ledger.taken_bytes, ledger.waiting) == (60, 0)


async def test_who_times_out_makes_way_for_those_behind():
    ledger = Ledger(100, max_wait_s=0.01)
    await ledger.take(50, Intent.DEMAND)
    big = asyncio.create_task(ledger.take(80, Intent.DEMAND))
    await asyncio.sleep(0.005)
    small = asyncio.create_task(ledger.take(10, Intent.DEMAND))
    with pytest.raises(Overloaded):
        await big
    await small
    assert (ledger.taken_bytes, ledger.waiting) == (60, 0)


async def test_cancelled_before_the_grant_leaves_the_queue():
    ledger = Ledger(100)
    await ledger.take(100, Intent.DEMAND)
    waiter = asyncio.create_task(ledger.take(40, Intent.DEMAND))
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.wait({waiter})
    assert waiter.cancelled()
    assert ledger.waiting == 0
    ledger.give(100)
    assert ledger.taken_bytes == 0


@pytest.mark.parametrize("give_first", [False, True])
async def test_cancelled_in_the_turn_of_the_grant_hands_the_bytes_on(give_first):
    ledger = Ledger(100)
    await ledger.take(100, Intent.DEMAND)
    waiter = asyncio.create_task(ledger.take(40, Intent.DEMAND))
    behind = asyncio.create_task(ledger.take(70, Intent.DEMAND))
    await asyncio.sleep(0)
    if give_first:
        ledger.give(100)
        waiter.cancel()
    else:
        waiter.cancel()
        ledger.give(100)
    await behind
    assert waiter.cancelled()
    assert (ledger.taken_bytes, ledger.waiting) == (70, 0)


async def test_clients_take_turns_at_the_bytes():
    ledger = Ledger(100)
    await ledger.take(100, Intent.DEMAND)
    order = []

    async def taker(client):
        CLIENT.set(client)
        await ledger.take(50, Intent.DEMAND)
        order.append(client)
        ledger.give(50)

    tasks = [asyncio.create_task(taker(client)) for client in ["greedy"] * 5 + ["modest"] * 2]
    await asyncio.sleep(0)
    ledger.give(100)
    await asyncio.gather(*tasks)
    assert order[:4] == ["greedy", "modest", "greedy", "modest"]
    assert (ledger.taken_bytes, ledger.waiting) == (0, 0)
