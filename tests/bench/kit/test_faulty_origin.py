"""FaultyOrigin follows its script. The same seed gives the same faults."""

import asyncio

import pytest

from shadeproxy.core.errors import BodyCutShort, OriginUnavailable
from shadeproxy.core.types import ObjectRef
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy_bench.reliability.kit.faulty_origin import Fault, FaultyOrigin
from tests.support.clock import ManualClock

REF = ObjectRef("b", "k")
BODY = bytes(range(100))


def make(**options):
    memory = MemoryOrigin(chunk_bytes=30)
    memory.put("b", "k", BODY)
    clock = ManualClock()
    return FaultyOrigin(memory, clock=clock, **options), clock


async def read(origin):
    async with origin.open(REF) as reading:
        return [chunk async for chunk in reading.chunks]


async def test_every_call_is_delayed():
    origin, clock = make(delay_s=0.02)
    before = clock.now_s()
    await origin.head(REF)
    await read(origin)
    assert clock.now_s() - before == pytest.approx(0.04)


@pytest.mark.parametrize("at", [0, 1, 30, 99])
async def test_a_cut_body_ends_there_with_an_error(at):
    origin, _ = make(script=[Fault(cut_after_bytes=at)])
    received = b""
    with pytest.raises(BodyCutShort):
        async with origin.open(REF) as reading:
            async for chunk in reading.chunks:
                received += chunk
    assert received == BODY[:at]


async def test_a_stalled_body_waits_until_its_reader_gives_up():
    origin, _ = make(script=[Fault(stall_after_bytes=40)])
    task = asyncio.create_task(read(origin))
    await origin.stalled.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_trickle_gives_small_pieces_slowly():
    origin, clock = make(script=[Fault(trickle_bytes=10, trickle_delay_s=1.0)])
    before = clock.now_s()
    chunks = await read(origin)
    assert b"".join(chunks) == BODY
    assert max(map(len, chunks)) == 10
    assert clock.now_s() - before >= 10


async def test_a_flipped_etag_claims_another_version():
    origin, _ = make(script=[Fault(flip_etag=True), None])
    assert (await origin.head(REF)).etag != (await origin.head(REF)).etag


async def test_one_seed_gives_one_history():
    async def history(seed):
        origin, _ = make(faults=[Fault(error=OriginUnavailable("down"))], rate=0.5, seed=seed)
        failed = []
        for _ in range(40):
            try:
                await origin.head(REF)
            except OriginUnavailable:
                failed.append(True)
            else:
                failed.append(False)
        return failed

    assert await history(7) == await history(7) != await history(8)
    assert 5 < sum(await history(7)) < 35
