"""The ledger of manifests: no share waits for ever, and all bytes come back, however shares end."""

import asyncio
import random

import pytest

from shadeproxy.api.control.manifest_ledger import SMALL_BYTES, ManifestLedger
from shadeproxy.core.errors import Overloaded

MIB = 1 << 20


async def turns(count=3):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_one_share_goes_on_beyond_the_room_and_the_next_one_when_it_ends():
    ledger = ManifestLedger(10 * MIB, max_wait_s=30.0)
    with ledger.share("") as idle:
        await idle.hold(8 * MIB)
        with ledger.share("") as first:
            await first.hold(2 * MIB)
            with ledger.share("") as second:
                waiting = asyncio.create_task(second.hold(2 * MIB))
                await turns()
                assert ledger.waiting == 1
                await first.hold(50 * MIB)
                assert not waiting.done()
                ledger.give(first, first.held_bytes)
                first.held_bytes = 0
                await waiting
    assert ledger.taken_bytes == 0


async def test_clients_wait_in_turn():
    ledger, order = ManifestLedger(MIB, max_wait_s=30.0), []

    async def read(client):
        with ledger.share(client) as share:
            await share.hold(2 * MIB)
            await turns()
            order.append(client)

    await asyncio.gather(*(read(client) for client in ["one", "one", "one", "two"]))
    assert order == ["one", "one", "two", "one"]


async def test_a_share_that_waits_too_long_is_refused_and_the_others_go_on():
    ledger = ManifestLedger(MIB, max_wait_s=0.05)
    with ledger.share("") as first:
        await first.hold(2 * MIB)
        with ledger.share("") as second:
            with pytest.raises(Overloaded, match="send it again later") as refused:
                await second.hold(2 * MIB)
            assert refused.value.retry_after_s == 5
            assert await second.hold(SMALL_BYTES) == SMALL_BYTES
        await first.hold(9 * MIB)
    assert (ledger.taken_bytes, ledger.waiting) == (0, 0)


@pytest.mark.parametrize("seed", range(20))
async def test_shares_that_grow_end_or_are_cancelled_at_random_leave_nothing(seed):
    chance = random.Random(seed)
    ledger, ended = ManifestLedger(10 * MIB, max_wait_s=60.0), []

    async def read(number):
        with ledger.share(f"client{number % 5}") as share:
            size = 0
            for _ in range(chance.randrange(1, 9)):
                size += chance.randrange(4 * MIB)
                assert await share.hold(size) >= size
                await turns(chance.randrange(4))
            ended.append(number)

    tasks = [asyncio.create_task(read(number)) for number in range(60)]
    cancelled = set(chance.sample(range(60), 15))
    for number in cancelled:
        await turns(chance.randrange(6))
        tasks[number].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert set(ended) >= set(range(60)) - cancelled
    assert (ledger.taken_bytes, ledger.waiting) == (0, 0)
