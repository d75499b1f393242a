"""A few exact checks of an object are under way at a time, and no reader waits for an earlier one."""

import asyncio

import pytest

from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.freshness import exact_checks
from shadeproxy.engine.freshness.exact_checks import ExactChecks
from shadeproxy.engine.rules import Freshness, Rule
from shadeproxy.origin.memory import MemoryOrigin


class HeldHeads(MemoryOrigin):
    """An origin that answers each HEAD with the version at its arrival, when a test releases it."""

    def __init__(self):
        super().__init__()
        self.held = []

    async def head(self, ref, **options):
        meta = await super().head(ref, **options)
        self.held.append(released := asyncio.Event())
        await released.wait()
        return meta


@pytest.fixture
async def bench(make_bench):
    bench = await make_bench(origin=HeldHeads(), rules=(Rule(freshness=Freshness.REVALIDATE),))
    bench.origin.put("b", "k", b"0")
    return bench


async def readers(bench, count):
    """Begin ``count`` reads, each in a turn of its own."""
    begun = []
    for _ in range(count):
        begun.append(asyncio.create_task(bench.engine.stat(ReadRequest(ObjectRef("b", "k")))))
        for _ in range(5):
            await asyncio.sleep(0)
    return begun


async def test_reads_that_come_while_a_few_checks_are_under_way_share_the_next_one(bench):
    early = await readers(bench, 4)
    late = await readers(bench, 50)
    assert bench.origin.heads == 4
    bench.origin.put("b", "k", b"1" * 10)
    bench.origin.held[1].set()
    await early[1]
    for _ in range(5):
        await asyncio.sleep(0)
    assert bench.origin.heads == 5
    bench.origin.put("b", "k", b"2" * 20)
    last = await readers(bench, 3)
    for released in bench.origin.held:
        released.set()
    await asyncio.sleep(0.01)
    bench.origin.held[-1].set()
    sizes = [{meta.size for meta, _ in await asyncio.gather(*some)} for some in (early, late, last)]
    assert sizes == [{1}, {10}, {20}]
    assert bench.origin.heads == 6
    assert bench.engine.idle
    assert not bench.engine._versions._revalidator._exact._by_kind


async def test_answers_that_do_not_come_hold_up_a_later_check_for_a_moment_only(bench, monkeypatch):
    monkeypatch.setattr(exact_checks, "_LONGEST_WAIT_S", 0.01)
    stuck = await readers(bench, 4)
    (late,) = await readers(bench, 1)
    while len(bench.origin.held) < 5:
        await asyncio.sleep(0.001)
    bench.origin.held[4].set()
    assert (await late)[0].size == 1
    for released in bench.origin.held:
        released.set()
    await asyncio.gather(*stuck)


async def test_checks_that_are_cancelled_leave_nothing():
    checks = ExactChecks()

    async def send(held):
        async with checks.sending("k"):
            await held.wait()

    checks.begin("k")
    assert [checks.number("k"), checks.number("other")] == [1, 1]
    sending = asyncio.create_task(send(asyncio.Event()))
    await asyncio.sleep(0)
    assert checks.number("k") == 2
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    checks.end("k")
    assert checks.number("k") == 1
