"""A fill continues to the end of its page after its reader has got a range of the page. A fill without
readers ends.
"""

import asyncio

from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import ObjectRef, Source
from shadeproxy.engine.base import ReadRequest
from shadeproxy.origin.memory import Barrier

BODY = bytes(range(250)) * 16
FIRST = RangeSpec(0, 99)


async def held_at_its_middle(make_bench, **options):
    bench = await make_bench(**options)
    bench.origin.put("b", "k", BODY)
    bench.origin.gate = Barrier()
    return bench


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_page_of_which_a_range_was_read_is_read_to_its_end_and_kept(make_bench):
    bench = await held_at_its_middle(make_bench)
    for _ in range(3):
        assert (await bench.get("k", range=FIRST))[0] == BODY[:100]
    late = asyncio.create_task(bench.get("k", range=RangeSpec(3900, None)))
    await turns()
    bench.origin.gate.release()
    assert await late == (BODY[3900:], Source.COALESCED)
    await bench.settle()
    assert await bench.get("k") == (BODY, Source.RAM)
    assert bench.origin.gets == 1


async def test_who_hangs_up_later_does_not_end_a_fill_that_served_somebody(make_bench):
    bench = await held_at_its_middle(make_bench)
    await bench.get("k", range=FIRST)
    reader = asyncio.create_task(bench.get("k"))
    await turns()
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    bench.origin.gate.release()
    await bench.settle()
    assert await bench.get("k") == (BODY, Source.RAM)
    assert bench.origin.gets == 1


async def test_a_range_reader_that_hangs_up_ends_the_fill(make_bench):
    bench = await held_at_its_middle(make_bench)
    async with bench.engine.open(ReadRequest(ObjectRef("b", "k"), range=FIRST)):
        await bench.origin.gate.reached.wait()
    await turns()
    bench.engine.assert_quiescent()
    assert len(bench.cache.residents) == 0


async def test_a_fill_that_nobody_reads_holds_no_more_than_half_of_the_memory(make_bench):
    bench = await held_at_its_middle(make_bench, budget_bytes=2 * len(BODY) - 1)
    assert (await bench.get("k", range=FIRST))[0] == BODY[:100]
    await turns()
    bench.engine.assert_quiescent()
    assert len(bench.cache.residents) == 0


async def test_a_fill_that_nobody_reads_does_not_go_on_when_it_is_not_to_be_kept(make_bench):
    bench = await held_at_its_middle(make_bench)
    async with bench.engine.writing([ObjectRef("b", "k")]):
        assert (await bench.get("k", range=FIRST))[0] == BODY[:100]
        await turns()
        assert len(bench.engine._filling.flights) == 0


async def test_a_write_ends_a_fill_that_nobody_reads(make_bench):
    bench = await held_at_its_middle(make_bench)
    await bench.get("k", range=FIRST)
    async with bench.engine.writing([ObjectRef("b", "k")]):
        await turns()
        assert len(bench.engine._filling.flights) == 0
        bench.origin.put("b", "k", b"new")
    bench.origin.gate.release()
    assert await bench.get("k") == (b"new", Source.ORIGIN)


async def test_closing_does_not_wait_for_a_fill_that_nobody_reads(make_bench):
    bench = await held_at_its_middle(make_bench)
    await bench.get("k", range=FIRST)
    assert len(bench.engine._filling.flights) == 1
    async with asyncio.timeout(5):
        await bench.engine.aclose()
    await turns()
    bench.engine.assert_quiescent()
