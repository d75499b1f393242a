"""One reader reads the new version while another reader still reads the old version."""

import asyncio

from shadeproxy.core.types import ObjectRef, Span
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.rules import Freshness, Rule
from tests.support.engine import PAGE

REF = ObjectRef("b", "k")
SIZE = 2 * PAGE + 1


class Held:
    """An ``open`` at the origin that waits for ``gate`` first."""

    def __init__(self, inner, gate):
        self.inner, self.gate = inner, gate

    async def __aenter__(self):
        await self.gate.wait()
        return await self.inner.__aenter__()

    async def __aexit__(self, *error):
        return await self.inner.__aexit__(*error)


async def test_it_is_not_cut_by_a_flight_that_asks_for_the_old_version(make_bench, monkeypatch):
    bench = await make_bench(rules=(Rule(freshness=Freshness.IMMUTABLE),))
    bench.origin.put("b", "k", b"1" * SIZE)
    await bench.get("k")
    await bench.settle()
    async with bench.engine.open(ReadRequest(REF)) as old:
        async with bench.engine.writing([REF]):
            bench.origin.put("b", "k", b"2" * SIZE)
        new_etag, gate, right = (await bench.origin.head(REF)).etag, asyncio.Event(), bench.origin.open

        def slow_for_the_old(ref, *, if_match=None, **options):
            read = right(ref, if_match=if_match, **options)
            return read if if_match in {None, new_etag} else Held(read, gate)

        async def second_page_of_the_old():
            return [bytes(piece) async for piece in old.body(Span(PAGE, 2 * PAGE))]

        monkeypatch.setattr(bench.origin, "open", slow_for_the_old)
        behind = asyncio.create_task(second_page_of_the_old())
        await asyncio.sleep(0.01)
        ahead = asyncio.create_task(bench.get("k"))
        await asyncio.sleep(0.01)
        gate.set()
        _, (body, _) = await asyncio.gather(behind, ahead, return_exceptions=True)
        assert body == b"2" * SIZE
