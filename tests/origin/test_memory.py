"""Parts of MemoryOrigin beyond the protocol that other tests need: counters, recorded reads, refusals and the
gate.
"""

import asyncio

import pytest

from shadeproxy.core.errors import OriginAnswer
from shadeproxy.core.types import SHARED, ObjectRef, Span, Upstream
from shadeproxy.origin.base import ForwardRequest
from shadeproxy.origin.memory import Barrier, MemoryOrigin

REF = ObjectRef("b", "k")


async def test_calls_are_counted_and_recorded():
    origin = MemoryOrigin()
    origin.put("b", "k", b"0123456789", (("x-amz-checksum-crc32", "abc="),))
    async with origin.open(REF, span=Span(2, 4)) as reading:
        assert reading.meta.header("x-amz-checksum-crc32") is None
    assert (await origin.head(REF)).header("x-amz-checksum-crc32") == "abc="
    await origin.list_objects("b", "")
    async with origin.forward(ForwardRequest("GET", REF, "/b/k")) as response:
        assert response.status == 200
    assert (origin.gets, origin.heads, origin.lists, origin.forwards) == (1, 1, 1, 1)
    assert origin.reads == [(REF, Span(2, 4), SHARED)]


async def test_denied_upstreams_are_refused_everywhere():
    origin = MemoryOrigin()
    origin.put("b", "k", b"body")
    stranger = Upstream("stranger")
    origin.denied.add(stranger)
    with pytest.raises(OriginAnswer, match="403 AccessDenied"):
        await origin.head(REF, upstream=stranger)
    with pytest.raises(OriginAnswer, match="403 AccessDenied"):
        async with origin.open(REF, upstream=stranger):
            pass
    async with origin.forward(ForwardRequest("GET", REF, "/b/k", upstream=stranger)) as response:
        assert response.status == 403


async def test_a_gate_holds_bodies_at_their_middle():
    origin = MemoryOrigin(chunk_bytes=2)
    origin.put("b", "k", b"01234567")
    origin.gate = Barrier()
    received = bytearray()

    async def read():
        nonlocal received
        async with origin.open(REF) as reading:
            async for chunk in reading.chunks:
                received += chunk

    task = asyncio.create_task(read())
    await origin.gate.reached.wait()
    assert received == b"0123"
    origin.gate.release()
    await task
    assert received == b"01234567"


@pytest.mark.parametrize("token", ["%D9%A1", "x", "%2Fw=="])
async def test_a_continuation_token_that_is_none_of_ours_is_400(token):
    origin = MemoryOrigin()
    origin.put("b", "k", b"")
    query = f"list-type=2&continuation-token={token}"
    async with origin.forward(ForwardRequest("GET", ObjectRef("b", ""), "/b", query)) as response:
        assert response.status == 400
