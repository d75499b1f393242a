"""LimitedOrigin: the limit, the order of waiters, and that readers who leave lose no slot."""

import asyncio
from functools import partial

import pytest

from shadeproxy.core.errors import OriginAnswer, Overloaded
from shadeproxy.core.tracing import CLIENT
from shadeproxy.core.types import Intent, ObjectRef
from shadeproxy.origin.base import ForwardRequest
from shadeproxy.origin.limit import AT_CLIENTS_PACE, LimitedOrigin
from shadeproxy.origin.memory import MemoryOrigin

REF = ObjectRef("b", "k")


def limited_to(max_open, **options):
    memory = MemoryOrigin()
    memory.put("b", "k", b"body")
    return LimitedOrigin(memory, max_open=max_open, **options)


@pytest.fixture
def limited():
    return limited_to(1)


async def hold(limited, order, name, intent, leave):
    async with limited.open(REF, intent=intent):
        order.append(name)
        await leave.wait()


def begin_read(limited, order, leave, client, *, paced):
    async def run():
        CLIENT.set(client)
        AT_CLIENTS_PACE.set(paced)
        await hold(limited, order, client, Intent.DEMAND, leave)

    return asyncio.create_task(run())


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


async def test_reads_get_their_slots_in_order(limited):
    order, leave = [], asyncio.Event()
    names = ["first", "second", "third", "fourth", "fifth"]
    tasks = []
    for name in names:
        tasks.append(asyncio.create_task(hold(limited, order, name, Intent.DEMAND, leave)))
        await settle()
    assert (order, limited.open_now, limited.waiting) == (["first"], 1, 4)
    leave.set()
    await asyncio.gather(*tasks)
    assert order == names
    assert (limited.open_now, limited.waiting) == (0, 0)


@pytest.mark.parametrize("grant_first", [False, True])
async def test_a_cancelled_waiter_leaves_no_trace(limited, grant_first):
    order, leave = [], asyncio.Event()
    first = asyncio.create_task(hold(limited, order, "first", Intent.DEMAND, leave))
    await settle()
    given_up = asyncio.create_task(hold(limited, order, "given up", Intent.DEMAND, leave))
    last = asyncio.create_task(hold(limited, order, "last", Intent.DEMAND, leave))
    await settle()
    if grant_first:
        # The waiter gets the slot and is cancelled in the same turn of the event loop.
        first.cancel()
        await asyncio.sleep(0)
    given_up.cancel()
    leave.set()
    await asyncio.gather(first, given_up, last, return_exceptions=True)
    assert order[0] == "first"
    assert order[-1] == "last"
    assert (limited.open_now, limited.waiting) == (0, 0)


async def test_a_failed_open_gives_its_slot_back(limited):
    for _ in range(3):
        with pytest.raises(OriginAnswer):
            async with limited.open(ObjectRef("b", "missing")):
                pass
    assert limited.open_now == 0


async def test_the_wait_for_a_slot_ends_and_leaves_no_trace():
    limited = limited_to(1, max_wait_s=0.02)
    async with limited.open(REF):
        with pytest.raises(
            Overloaded, match=r"all 1 reads .* taken for 0\.02 s.*; .*raise origin\.max_connec"
        ):
            async with limited.open(REF):
                pass
        assert (limited.open_now, limited.waiting) == (1, 0)
    async with limited.open(REF):
        assert limited.open_now == 1
    assert limited.open_now == 0


async def test_prefetch_leaves_one_slot_in_eight_and_never_waits():
    limited = limited_to(8)
    order, leave = [], asyncio.Event()
    held = [asyncio.create_task(hold(limited, order, n, Intent.PREFETCH, leave)) for n in range(7)]
    await settle()
    assert limited.open_now == 7
    with pytest.raises(Overloaded, match="no read of the origin is to spare for prefetching"):
        async with limited.open(REF, intent=Intent.PREFETCH):
            pass
    async with limited.open(REF):
        assert (limited.open_now, limited.waiting) == (8, 0)
    leave.set()
    await asyncio.gather(*held)
    assert limited.open_now == 0


async def test_another_limit_counts_at_once_and_ends_nothing_that_is_open():
    limited = limited_to(2)
    order, leave = [], [asyncio.Event() for _ in range(8)]
    tasks = [
        asyncio.create_task(hold(limited, order, n, Intent.DEMAND, event)) for n, event in enumerate(leave)
    ]
    await settle()
    assert order == [0, 1]
    limited.resize(4)
    await settle()
    assert order == [0, 1, 2, 3]
    limited.resize(1)
    for n in range(3):
        leave[n].set()
        await settle()
    assert (order, limited.open_now, limited.waiting) == ([0, 1, 2, 3], 1, 4)
    assert limited.take_now() is None
    leave[3].set()
    await settle()
    assert order == [0, 1, 2, 3, 4]
    for event in leave:
        event.set()
    await asyncio.gather(*tasks)
    assert (limited.open_now, limited.waiting) == (0, 0)


async def test_another_limit_counts_for_forwards_and_for_what_one_client_may_have_of_them():
    limited = limited_to(1)
    entered, leave = [], asyncio.Event()
    greedy = [forwarded(limited, entered, leave, "greedy") for _ in range(10)]
    await settle()
    assert entered == ["greedy"]
    limited.resize(8)
    await settle()
    assert entered == ["greedy"] * 6
    assert limited.prefetched == 7
    leave.set()
    await asyncio.gather(*greedy)
    assert limited.forwarded_now == 0


async def test_clients_take_turns_however_many_reads_each_has_waiting(limited):
    order, leave = [], asyncio.Event()
    tasks = [asyncio.create_task(hold(limited, order, "first", Intent.DEMAND, leave))]
    await settle()
    for client, reads in [("greedy", 6), ("modest", 2)]:
        inside = CLIENT.set(client)
        tasks += [
            asyncio.create_task(hold(limited, order, client, Intent.DEMAND, leave)) for _ in range(reads)
        ]
        CLIENT.reset(inside)
        await settle()
    leave.set()
    await asyncio.gather(*tasks)
    assert order[1:5] == ["greedy", "modest", "greedy", "modest"]
    assert (limited.open_now, limited.waiting) == (0, 0)


def forwarded(limited, entered, leave, client):
    async def run():
        CLIENT.set(client)
        request = ForwardRequest(method="HEAD", ref=REF, raw_path="/b/k", raw_query="", headers=())
        async with limited.forward(request) as answer:
            entered.append(client)
            await leave.wait()
            return answer.status

    return asyncio.create_task(run())


async def test_one_client_never_has_all_forwards_however_long_they_last():
    limited = limited_to(4)
    entered, leave = [], asyncio.Event()
    greedy = [forwarded(limited, entered, leave, "greedy") for _ in range(10)]
    await settle()
    assert (entered, limited.forwarded_now) == (["greedy"] * 3, 3)
    modest = forwarded(limited, entered, leave, "modest")
    await settle()
    assert entered[3:] == ["modest"]
    assert limited.open_now == 0, "reads have slots of their own"
    leave.set()
    assert await asyncio.gather(modest, *greedy) == [200] * 11
    assert limited.forwarded_now == 0


async def test_the_wait_of_a_forward_ends_too():
    limited = limited_to(1, max_wait_s=0.02)
    entered, leave = [], asyncio.Event()
    first = forwarded(limited, entered, leave, "a")
    await settle()
    with pytest.raises(Overloaded, match=r"all 1 uploads and other forwarded requests were taken"):
        await forwarded(limited, entered, leave, "b")
    leave.set()
    await first


async def test_one_client_never_has_all_reads_at_its_pace_but_all_fills():
    limited = limited_to(4)
    order, leave = [], asyncio.Event()

    reading = partial(begin_read, limited, order, leave)
    fills = [reading("single", paced=False) for _ in range(4)]
    await settle()
    assert limited.open_now == 4
    leave.set()
    await asyncio.gather(*fills)
    leave.clear()
    greedy = [reading("greedy", paced=True) for _ in range(10)]
    await settle()
    assert (limited.open_now, limited.waiting) == (3, 7)
    modest = reading("modest", paced=False)
    await settle()
    assert order[-1] == "modest"
    leave.set()
    await asyncio.gather(modest, *greedy)
    assert (limited.open_now, limited.waiting) == (0, 0)


async def test_slow_clients_of_many_addresses_leave_slots_to_fills():
    """They read at their own pace, each as slowly as it likes."""
    limited, order, leave = limited_to(16), [], asyncio.Event()
    reading = partial(begin_read, limited, order, leave)
    slow = [reading(f"slow {number}", paced=True) for number in range(20)]
    await settle()
    fill = reading("fill", paced=False)
    await settle()
    assert order[-1] == "fill"
    leave.set()
    await asyncio.gather(fill, *slow)
    assert (limited.open_now, limited.waiting) == (0, 0)
