"""The origin needs longer for the first byte than one node waits for another node."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from shadeproxy.cluster.view import NodeFacts
from shadeproxy.origin.memory import MemoryOrigin
from tests.support.callback_reads import Reads
from tests.support.relaying import cluster, listening
from tests.support.s3.scripted import CUT, WAIT, ScriptedServer

INTERIM = b"HTTP/1.1 102 Processing\r\n\r\n"
WHOLE = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 10\r\n\r\nfrom peers'


class HeldOrigin(MemoryOrigin):
    """An origin that answers no request for keys that begin with "b-x" until ``go_on`` is set. It counts
    these requests.
    """

    def __init__(self):
        super().__init__()
        self.go_on = asyncio.Event()
        self.asked = 0
        for key in ("b-x", "b-x2", "b-warm"):
            self.put("b", key, b"body")

    async def _wait(self, ref):
        if ref.key.startswith("b-x"):
            self.asked += 1
            await self.go_on.wait()

    @asynccontextmanager
    async def open(self, ref, **options):
        await self._wait(ref)
        async with super().open(ref, **options) as read:
            yield read

    async def head(self, ref, **options):
        await self._wait(ref)
        return await super().head(ref, **options)

    @asynccontextmanager
    async def forward(self, request):
        await self._wait(request.ref)
        async with super().forward(request) as answer:
            yield answer


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("near", ["task", "callbacks"])
@pytest.mark.parametrize("owner", ["task", "callbacks"])
async def test_an_owner_that_waits_for_its_origin_is_waited_for(tmp_path, near, owner, method):
    """A node waits for an owner that waits for its origin. The origin is read once, and the owner does not
    count as failing.
    """
    origin, reads = HeldOrigin(), Reads(lambda _ref: (b"body", '"e"'))
    async with cluster(
        tmp_path, "a", "b", origin=origin, patience_s=0.2, interim_every_s=0.05, fast=near == "callbacks"
    ) as (a, b):
        for _ in range(3):
            assert (await a.ask("/b/b-warm")).status == 200
        if owner == "callbacks":
            b.engine._callback_reads = b.engine._filling._callback_reads = reads
        client = await a.client()
        client.ask("/b/b-x", method=method)
        await asyncio.sleep(0.7)
        if reads.reads:
            reads.reads[0].fetch()
        origin.go_on.set()
        answer = await client.answer(bodiless=method == "HEAD")
        assert (answer.status, answer.body) == (200, b"body" if method == "GET" else b"")
        assert answer.field(b"x-shade-node") == b"b"
        assert origin.asked + len(reads.reads) == 1
        assert a.results() == {"ok": 4}
        (peer,) = a.peers._peers.values()
        assert not peer._failed_s
        assert peer.state.p99_s < 0.2, "the origin's time is not the node's"


async def test_clients_get_no_interim_answers(tmp_path):
    """Clients get no interim answers, because some clients cannot read them."""
    origin = HeldOrigin()
    async with cluster(tmp_path, "a", "b", origin=origin, patience_s=0.2, interim_every_s=0.02) as (a, b):
        for node, path in ((a, "/b/b-x"), (b, "/b/b-x2")):
            client = await node.client()
            client.ask(path)
            await asyncio.sleep(0.2)
            origin.go_on.set()
            assert (await client.reader.readline()).startswith(b"HTTP/1.1 200")
            origin.go_on.clear()


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("steps", [[INTERIM, WAIT, WHOLE], [INTERIM * 20, WAIT, WHOLE], [INTERIM, CUT]])
async def test_a_node_that_gives_signs_and_then_hangs_is_given_up(tmp_path, steps, fast):
    server, origin = ScriptedServer(), MemoryOrigin()
    origin.put("b", "b-x", b"body")
    server.scripts = {"/b/b-x": [[WHOLE], [WHOLE], [WHOLE], steps]}
    async with (
        listening(server.serve) as address,
        cluster(tmp_path, "a", origin=origin, patience_s=0.2, fast=fast) as (a,),
    ):
        a.view.facts["b"] = NodeFacts(node="b", weight=1.0, peer=address)
        for _ in range(3):
            assert (await a.ask("/b/b-x")).body == b"from peers"
        answer = await asyncio.wait_for(a.ask("/b/b-x"), 10)
        assert (answer.body, answer.field(b"x-shade-cache")) == (b"body", b"origin")
        assert a.results() == {"ok": 3, "fallback": 1}
        (peer,) = a.peers._peers.values()
        assert peer._failed_s, "it counts for the breaker"
        server.go_on.set()
        await server.end()


@pytest.mark.parametrize("form", ["task", "callbacks"])
async def test_the_owner_caches_what_the_near_node_did_not_wait_for(tmp_path, monkeypatch, form):
    """The owner caches an object although the asking node did not wait for it. Otherwise no node would ever
    cache the object. Each later read would wait in vain, and ask the origin twice.
    """
    origin = MemoryOrigin()
    origin.put("b", "b-x", b"body")
    go_on, reads, inner = asyncio.Event(), Reads(lambda _ref: (b"body", '"e"')), origin.open

    @asynccontextmanager
    async def slow(ref, **options):
        await go_on.wait()
        async with inner(ref, **options) as read:
            yield read

    # The patience is long enough for the request to reach the owner, also on a busy machine.
    async with cluster(tmp_path, "a", "b", origin=origin, patience_s=0.5) as (a, b):
        filling = b.engine._filling
        if form == "callbacks":
            b.engine._callback_reads = filling._callback_reads = reads
        else:
            monkeypatch.setattr(filling.filler, "_origin", type("Slow", (), {"open": staticmethod(slow)}))
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
