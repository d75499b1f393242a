"""Bodies that break off, are damaged or lie about their length: an error, and never kept."""

import base64
import zlib
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from shadeproxy.core.errors import (
    BodyCutShort,
    BodyDamaged,
)
from shadeproxy.core.types import ObjectRef, Source, Span
from shadeproxy.engine.base import ReadRequest
from shadeproxy.origin.faulty import Fault, FaultyOrigin
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy.origin.verified import HELD_BYTES, VerifiedOrigin

PAGE = 4096
BODY = bytes(range(256)) * 64  # four pages


class CutOrigin(MemoryOrigin):
    """Ends a body early, without a word."""

    cut_at = 1000

    def open(self, ref, **kwargs):
        origin = super()

        @asynccontextmanager
        async def cut():
            async with origin.open(ref, **kwargs) as read:

                async def chunks():
                    left = self.cut_at
                    async for chunk in read.chunks:
                        yield chunk[:left]
                        left -= len(chunk)
                        if left <= 0:
                            return

                yield replace(read, chunks=chunks())

        return cut()


async def test_a_body_cut_short_is_an_error_and_is_never_kept(make_bench):
    bench = await make_bench(origin=CutOrigin())
    bench.origin.put("b", "k", b"x" * 3000)
    got = b""
    with pytest.raises(BodyCutShort):
        async with bench.engine.open(ReadRequest(ObjectRef("b", "k"))) as reading:
            async for piece in reading.body(Span(0, 3000)):
                got += piece
    assert got == b"x" * 1000
    assert len(bench.cache.residents) == 0
    bench.origin.cut_at = 10**9
    assert await bench.get("k") == (b"x" * 3000, Source.ORIGIN)


@pytest.mark.parametrize("fault", [Fault(flip_bit_at=5), Fault(short_by_bytes=100)], ids=["flip", "short"])
async def test_a_damaged_body_and_its_length_are_not_kept(make_bench, fault):
    body = bytes(range(256)) * (HELD_BYTES // 256 + 100)
    memory = MemoryOrigin(chunk_bytes=10_000)
    checksum = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
    memory.put("b", "k", body, headers=(("x-amz-checksum-crc32", checksum),))
    faulty = FaultyOrigin(memory, script=[fault])
    bench = await make_bench(origin=VerifiedOrigin(faulty), page_size=1 << 20)
    got = b""
    with pytest.raises(BodyDamaged):
        async with bench.engine.open(ReadRequest(ObjectRef("b", "k"))) as reading:
            async for piece in reading.body(Span(0, reading.meta.size)):
                got += piece
    assert len(got) < len(body) - 100
    await bench.settle()
    assert len(bench.cache.residents) == 0
    meta, _ = await bench.engine.stat(ReadRequest(ObjectRef("b", "k")))
    assert meta.size == len(body)
    assert await bench.get("k") == (body, Source.ORIGIN)
    assert (await bench.get("k"))[1] is Source.RAM


async def test_a_length_that_was_not_kept_is_not_remembered(make_bench):
    memory = MemoryOrigin()
    memory.put("b", "k", b"")
    bench = await make_bench(origin=FaultyOrigin(memory, script=[Fault(short_by_bytes=-100)]))
    with pytest.raises(BodyCutShort):
        await bench.get("k")
    meta, _ = await bench.engine.stat(ReadRequest(ObjectRef("b", "k")))
    assert meta.size == 0
    assert (await bench.get("k"))[0] == b""
