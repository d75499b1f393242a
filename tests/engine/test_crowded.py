"""More readers than slots and memory can serve. Readers wait for both, and there is no deadlock."""

import asyncio

import pytest

from shadeproxy.core.types import ObjectRef, Source, Span
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.read.flight import PIECE_BYTES
from shadeproxy.origin.limit import LimitedOrigin
from shadeproxy.origin.memory import Barrier, MemoryOrigin
from shadeproxy.origin.retry import RetryingOrigin, RetryRule
from shadeproxy_bench.reliability.kit.faulty_origin import Fault, FaultyOrigin
from tests.support.engine import PAGE

BODY = bytes(range(256)) * (6 * PAGE // 256) + b"tail"


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("pages", [2, 4, 8])
async def test_cold_objects_of_many_pages_all_arrive(make_bench, slots, pages):
    """Cold objects of many pages all arrive, even with few slots and little memory. If readers held slots
    while they waited for memory, and memory while they waited for slots, all would get a 503 after 10 s.
    """
    memory = MemoryOrigin(chunk_bytes=1000)
    keys = [f"k{number}" for number in range(24)]
    for key in keys:
        memory.put("b", key, key.encode() + BODY)
    slow = FaultyOrigin(memory, delay_s=0.002)
    bench = await make_bench(origin=LimitedOrigin(slow, max_open=slots), budget_bytes=pages * PAGE)
    answers = await asyncio.gather(*(bench.get(key) for key in keys))
    assert answers == [(key.encode() + BODY, Source.ORIGIN) for key in keys]
    await bench.settle()
    assert memory.gets == len(keys) * 7, "each page was asked for once"


@pytest.mark.parametrize("slots", [1, 2, 4])
async def test_cold_objects_whose_bodies_break_off_all_arrive(make_bench, slots):
    """If broken bodies gave up their slots, and kept their memory, other reads would take the slots and wait
    for that memory; all would get a 503 after 10 s.
    """
    memory, keys = MemoryOrigin(chunk_bytes=1000), [f"k{number}" for number in range(24)]
    for key in keys:
        memory.put("b", key, key.encode() + BODY[: PAGE // 2])
    breaking = FaultyOrigin(memory, delay_s=0.002, script=[Fault(cut_after_bytes=1000)] * 12)
    limited = LimitedOrigin(breaking, max_open=slots)
    rule = RetryRule(attempts=13, base_delay_s=0.01, max_delay_s=0.01)
    bench = await make_bench(origin=RetryingOrigin(limited, rule=rule), budget_bytes=PAGE)
    async with asyncio.timeout(5):
        answers = await asyncio.gather(*(bench.get(key) for key in keys))
    assert answers == [(key.encode() + BODY[: PAGE // 2], Source.ORIGIN) for key in keys]
    assert limited.open_now == 0


async def test_a_last_piece_that_is_passed_on_keeps_the_memory_of_its_page_counted(make_bench):
    """While a client takes the last bytes of a page that was not stored, its connection keeps the memory of
    the whole page. So the budget counts this memory until the reader asks for more, or leaves.
    """
    bench = await make_bench(page_size=PAGE, ram_bytes=PAGE // 2, budget_bytes=8 * PAGE)
    bench.origin.put("b", "k", BODY[: 2 * PAGE])
    async with bench.engine.open(ReadRequest(ObjectRef("b", "k"))) as reading:
        body, taken = reading.body(Span(0, 2 * PAGE)), 0
        while taken < PAGE:
            taken += len(await anext(body))
        await bench.settle()
        assert bench.ledger.taken_bytes == 2 * PAGE, "the first page, and the second one, which is read ahead"
        while taken < 2 * PAGE:
            taken += len(await anext(body))
        assert bench.ledger.taken_bytes == PAGE
    await bench.settle()
    assert bench.ledger.taken_bytes == 0


async def test_paused_readers_keep_no_whole_pages_beside_the_budget(make_bench):
    """Paused readers do not hold many whole pages that the budget no longer counts. A piece keeps the memory
    of its whole page. Once the page is stored, the budget does not count this memory.
    """
    page, budget = 1 << 20, 8 << 20
    bench = await make_bench(page_size=page, ram_bytes=1 << 27, budget_bytes=budget, segment_bytes=1 << 24)
    held, paused = [], []
    for number in range(64):
        bench.origin.put("b", f"k{number}", bytes([number]) * page)
        # The reader gets its first piece before the page is complete and stored.
        gate = bench.origin.gate = Barrier()
        context = bench.engine.open(ReadRequest(ObjectRef("b", f"k{number}")))
        reading = await context.__aenter__()
        body = reading.body(Span(0, page))
        held.append(await anext(body))
        gate.release()
        paused.append((context, body))
        await bench.settle()
    # Leave out pieces whose memory has a base. They lie in a mapped segment file, which belongs to the tier.
    own = [piece.obj for piece in held if getattr(piece.obj, "base", None) is None]
    assert len(own) > 32
    alive = {id(one): memoryview(one).nbytes for one in own}
    assert sum(alive.values()) <= budget + budget // 2 + 64 * PIECE_BYTES
    assert [piece[0] for piece in held] == list(range(64))
    rest = [b"".join([bytes(piece) async for piece in body]) for _, body in paused]
    assert [bytes(piece) + more for piece, more in zip(held, rest, strict=True)] == [
        bytes([number]) * page for number in range(64)
    ]
    for context, _ in paused:
        await context.__aexit__(None, None, None)
