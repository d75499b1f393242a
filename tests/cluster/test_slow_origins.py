"""An origin that needs longer for the first byte than one node waits for another."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from shadeproxy.origin.memory import MemoryOrigin
from tests.support.callback_reads import Reads
from tests.support.relaying import cluster


@pytest.mark.parametrize("form", ["task", "callbacks"])
async def test_the_owner_caches_what_the_near_node_did_not_wait_for(tmp_path, monkeypatch, form):
    """Otherwise no node would ever cache it: each later read would wait in vain again, and ask the origin
    twice.
    """
    origin = MemoryOrigin()
    origin.put("b", "b-x", b"body")
    go_on, reads, inner = asyncio.Event(), Reads(lambda _ref: (b"body", '"e"')), origin.open

    @asynccontextmanager
    async def slow(ref, **options):
        await go_on.wait()
        async with inner(ref, **options) as read:
            yield read

    async with cluster(tmp_path, "a", "b", origin=origin, patience_s=0.05) as (a, b):
        filling = b.engine._filling
        if form == "callbacks":
            b.engine._callback_reads = filling._callback_reads = reads
        else:
            monkeypatch.setattr(filling._filler, "_origin", type("Slow", (), {"open": staticmethod(slow)}))
        first = await a.ask("/b/b-x")
        assert (first.body, first.field(b"x-shade-cache")) == (b"body", b"origin")
        await asyncio.sleep(0.1)
        if form == "callbacks":
            assert not reads.reads[0].over
            reads.reads[0].fetch()
        go_on.set()
        await filling.flights.drain()
        second = await a.ask("/b/b-x")
        assert (second.body, second.field(b"x-shade-node")) == (b"body", b"b")
        assert second.field(b"x-shade-cache") == b"ram"
