"""Writes and reads through the listener of a proxy in a cluster that owns a share of the objects."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from shadeproxy.core.errors import ClusterUnavailable
from shadeproxy.core.types import ObjectRef, Source
from shadeproxy.engine.ownership import Standing
from shadeproxy.engine.rules import Freshness, Rule
from shadeproxy.origin.base import ForwardResponse, Relayed
from tests.support.ownership import SetOwnership
from tests.support.s3.lane import talk
from tests.support.s3.posting import form, post, presigned
from tests.support.s3.watching import put, watched

K, L = ObjectRef("b", "k"), ObjectRef("b", "l")
DELETE_TWO = b"<Delete><Object><Key>k</Key></Object><Object><Key>l</Key></Object></Delete>"
WRITES = {
    "put": put("/b/k", b"x"),
    "delete": put("/b/k", method="DELETE"),
    "tagging": put("/b/k?tagging", b"<Tagging><TagSet/></Tagging>"),
    "copy": put("/b/k", b"", "x-amz-copy-source: /b/seed"),
    "delete-many": put("/b?delete", DELETE_TWO, method="POST"),
    "complete": put("/b/k?uploadId=u", b"<CompleteMultipartUpload/>", method="POST"),
}


@pytest.fixture
async def owned(make_proxy):
    """Return a proxy, its engine, which records writes and forwards, and its ownership."""
    ownership = SetOwnership()
    proxy, engine = await watched(
        make_proxy, ownership=ownership, rules=(Rule(freshness=Freshness.IMMUTABLE),)
    )
    return proxy, engine, ownership


def answered(body=b""):
    """Return the origin's answer to a write, whose body comes in two pieces."""

    async def chunks():
        yield body[:5]
        yield body[5:]

    return ForwardResponse(200, (("Content-Length", str(len(body))),), chunks())


@pytest.mark.parametrize("name", WRITES)
async def test_a_forwarded_write_names_the_objects_that_this_proxy_writes(owned, name):
    proxy, engine, ownership = owned
    engine.answer = answered()
    await proxy.raw(WRITES[name])
    ownership.elsewhere.add(K)
    await proxy.raw(WRITES[name])
    here, elsewhere = engine.requests
    assert (here.here, here.elsewhere) == (None, False)
    if name == "delete-many":
        assert (elsewhere.here, elsewhere.elsewhere) == ({L}, False)
    else:
        assert (elsewhere.here, elsewhere.elsewhere) == (frozenset(), True)


async def test_a_forwarded_form_is_marked_as_a_write_of_another_proxy(owned):
    proxy, engine, ownership = owned
    ownership.elsewhere.add(K)
    engine.answer = answered()
    fields = await asyncio.to_thread(presigned, "s3v4", key="k")
    await post(proxy, form(fields, b"new"))
    (request,) = engine.requests
    assert request.elsewhere


@pytest.mark.parametrize("status", [200, 403])
async def test_an_answer_to_a_form_names_the_proxy_that_executed_it(owned, status):
    proxy, engine, _ = owned
    engine.answer = replace(answered(b"<x/>"), status=status, relayed=Relayed("b", Source.RAM))
    fields = await asyncio.to_thread(presigned, "s3v4", key="k")
    answer = await post(proxy, form(fields, b"new"))
    assert answer.startswith(b"HTTP/1.1 204 " if status == 200 else b"HTTP/1.1 403 ")
    assert b"\r\nx-shade-node: b\r\n" in answer
    assert b"\r\nx-shade-cache: ram\r\n" in answer
    assert proxy.seen.requests[-1]["relayed_to"] == "b"


@pytest.mark.parametrize("name", WRITES)
async def test_a_write_is_refused_unsent_until_the_object_is_this_proxys(owned, name):
    proxy, engine, ownership = owned
    ownership.lost.add(K)
    answer = await proxy.raw(WRITES[name])
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"Retry-After: 1\r\n" in answer
    assert b"<Code>SlowDown</Code>" in answer
    assert "forward" not in engine.events


@pytest.mark.parametrize("name", WRITES)
async def test_no_client_sees_success_of_a_write_whose_lease_has_ended(owned, name):
    proxy, engine, ownership = owned
    inner = engine.forward

    @asynccontextmanager
    async def forward(request):
        async with inner(request) as answer:
            ownership.lost.add(K)
            yield answer

    engine.forward = forward
    engine.answer = answered(b"<Result>written</Result>")
    answer = await proxy.raw(WRITES[name])
    assert engine.events[1] == "forward"
    if name in {"copy", "complete"}:
        # A head with status 200 proves no success of these operations, so the head may have been sent. The
        # body must not come to its end.
        assert b"</Result>" not in answer
    else:
        assert answer.startswith(b"HTTP/1.1 500")
        assert (
            b"<Code>InternalError</Code><Message>the origin answered, but this proxy lost its lease" in answer
        )
    for task in engine.engine._writes._lingering:
        task.cancel()


async def test_a_bucket_is_deleted_when_every_proxy_knows(owned):
    proxy, engine, ownership = owned
    assert (await proxy.raw(put("/other"))).startswith(b"HTTP/1.1 200")
    assert (await proxy.raw(put("/other", method="DELETE"))).startswith(b"HTTP/1.1 204")
    assert ownership.buckets == [("other", "")] * 2
    assert [request.here for request in engine.requests] == [None, None]
    ownership.refusal = ClusterUnavailable("the log does not answer")
    answer = await proxy.raw(put("/other"))
    assert answer.startswith(b"HTTP/1.1 500")
    assert b"the log does not answer" in answer


async def test_reads_of_a_foreign_object_are_forwarded_each_time(owned, compiled):
    proxy, engine, ownership = owned
    for number, standing in enumerate([Standing.OWN, Standing.FOREIGN, Standing.FOREIGN, Standing.CHECK]):
        ownership.set(K, standing)
        proxy.origin.put("b", "k", b"version %d" % number)
        assert (await proxy.get("/b/k")).endswith(b"version %d" % number)
        assert b"Content-Length: 9\r\n" in await proxy.get("/b/k", method="HEAD")
    assert engine.events == ["forward"] * 4


async def test_a_remembered_request_is_answered_no_longer_than_the_lease_lasts(make_proxy, compiled):
    class Counted(SetOwnership):
        asked = 0

        def standing(self, ref):
            self.asked += 1
            return super().standing(ref)

    ownership = Counted()
    proxy = await make_proxy(
        ownership=ownership, compiled=compiled, rules=(Rule(freshness=Freshness.IMMUTABLE),)
    )
    raw = b"GET /b/k HTTP/1.1\r\nHost: h\r\n\r\n"
    proxy.origin.put("b", "k", b"old")
    for _ in range(4):
        assert (await talk(proxy.port, raw, count=1)).endswith(b"old")
        await proxy.engine._filling.flights.drain()
    asked = ownership.asked
    assert (await talk(proxy.port, raw, count=1)).endswith(b"old")
    assert ownership.asked == asked, "a remembered hit asks nothing"
    proxy.origin.put("b", "k", b"new")
    proxy.engine.distrust()
    assert (await talk(proxy.port, raw, count=1)).endswith(b"new")
    ownership.lease_s = 0.0
    proxy.engine.distrust()
    for _ in range(3):
        asked = ownership.asked
        assert (await talk(proxy.port, raw, count=1)).endswith(b"new")
        assert ownership.asked > asked
