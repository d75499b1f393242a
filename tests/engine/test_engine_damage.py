"""Bodies that break off, are damaged or have a wrong length. The read fails, and nothing is cached."""

import asyncio
import base64
import zlib
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from shadeproxy.core.errors import (
    BodyCutShort,
    BodyDamaged,
)
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import ObjectRef, Source, Span
from shadeproxy.engine.base import ReadRequest
from shadeproxy.origin.memory import Barrier, MemoryOrigin
from shadeproxy.origin.verified import HELD_BYTES, VerifiedOrigin
from shadeproxy_bench.reliability.kit.faulty_origin import Fault, FaultyOrigin

PAGE = 4096
BODY = bytes(range(256)) * 64  # four pages


async def turns():
    for _ in range(20):
        await asyncio.sleep(0)


class CutOrigin(MemoryOrigin):
    """An origin that ends a body too early, without an error."""

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


class TestOfABodyThatIsStillDoubtful:
    """The first half of a whole body with a checksum has come, and its end has not. So the bytes cannot be
    verified yet.
    """

    BODY = bytes(range(256)) * (HELD_BYTES // 256 + 100)
    REF = ObjectRef("b", "k")

    async def started(self, make_bench, fault):
        """Return a bench, and a reader of the whole object that waits for the second half."""
        memory = MemoryOrigin(chunk_bytes=10_000)
        checksum = base64.b64encode(zlib.crc32(self.BODY).to_bytes(4, "big")).decode()
        memory.put("b", "k", self.BODY, headers=(("x-amz-checksum-crc32", checksum),))
        memory.gate = Barrier()
        faulty = FaultyOrigin(memory, script=[fault])
        bench = await make_bench(origin=VerifiedOrigin(faulty), page_size=1 << 20)
        first = asyncio.create_task(bench.get("k"))
        await memory.gate.reached.wait()
        return bench, memory, first

    @pytest.mark.parametrize(
        "wanted",
        [RangeSpec(len(BODY) - 50, None), RangeSpec(None, 50), RangeSpec(0, 99)],
        ids=["beyond", "suffix", "within"],
    )
    async def test_its_length_is_not_believed(self, make_bench, wanted):
        bench, memory, first = await self.started(make_bench, Fault(short_by_bytes=100))

        async def read():
            async with bench.engine.open(ReadRequest(self.REF, range=wanted)) as reading:
                span = wanted.resolve(reading.meta.size)
                pieces = [bytes(piece) async for piece in reading.body(span)]
                return b"".join(pieces), span, reading.meta.size

        part = asyncio.create_task(read())
        await turns()
        memory.gate.release()
        span = wanted.resolve(len(self.BODY))
        assert await part == (self.BODY[span.start : span.stop], span, len(self.BODY))
        with pytest.raises(BodyDamaged):
            await first

    async def test_a_head_asks_the_origin(self, make_bench):
        bench, memory, first = await self.started(make_bench, Fault(short_by_bytes=100))
        meta, source = await bench.engine.stat(ReadRequest(self.REF))
        assert (meta.size, source) == (len(self.BODY), Source.ORIGIN)
        memory.gate.release()
        with pytest.raises(BodyDamaged):
            await first

    async def test_a_part_of_it_is_not_answered_before_the_rest_is_found_right(self, make_bench):
        bench, memory, first = await self.started(make_bench, Fault(flip_bit_at=50))
        part = asyncio.create_task(bench.get("k", range=RangeSpec(0, 99)))
        await turns()
        assert not part.done()
        memory.gate.release()
        assert (await part)[0] == self.BODY[:100]
        with pytest.raises(BodyDamaged):
            await first

    async def test_a_part_of_a_known_object_is_not_answered_before_either(self, make_bench):
        bench, memory, first = await self.started(make_bench, Fault(flip_bit_at=50))
        await bench.engine.stat(ReadRequest(self.REF))
        part = asyncio.create_task(bench.get("k", range=RangeSpec(0, 99)))
        await turns()
        memory.gate.release()
        assert (await part)[0] == self.BODY[:100]
        with pytest.raises(BodyDamaged):
            await first

    async def test_what_stays_damaged_is_an_error_after_two_reads(self, make_bench):
        bench, memory, first = await self.started(make_bench, Fault(flip_bit_at=50))
        bench.origin._inner.enqueue(Fault(flip_bit_at=50))
        part = asyncio.create_task(bench.get("k", range=RangeSpec(0, 99)))
        await turns()
        memory.gate.release()
        with pytest.raises(BodyDamaged):
            await part
        with pytest.raises(BodyDamaged):
            await first
        assert memory.gets == 2

    async def test_a_version_that_was_heard_of_meanwhile_stays(self, make_bench):
        bench, memory, first = await self.started(make_bench, None)
        newer = self.BODY[::-1]
        memory.put("b", "k", newer)
        meta, _ = await bench.engine.stat(ReadRequest(self.REF))
        memory.gate.release()
        assert (await first)[0] == self.BODY
        await bench.settle()
        assert (await bench.engine.stat(ReadRequest(self.REF)))[0] == meta
        assert await bench.get("k") == (newer, Source.ORIGIN)


@pytest.mark.parametrize("checksum", [False, True], ids=["plain", "checked"])
@pytest.mark.parametrize("pages", [1, 2])
@pytest.mark.parametrize("chunk_bytes", [100, PAGE, 10 * PAGE])
async def test_a_length_beyond_the_first_page_is_believed_when_a_byte_of_it_comes(
    make_bench, pages, chunk_bytes, checksum
):
    body = BODY[: pages * PAGE]
    memory = MemoryOrigin(chunk_bytes=chunk_bytes)
    checked = (("x-amz-checksum-crc32", base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()),)
    memory.put("b", "k", body, headers=checked if checksum else ())
    script = [Fault(short_by_bytes=-100)] if pages == 1 else []
    bench = await make_bench(origin=VerifiedOrigin(FaultyOrigin(memory, script=script)), page_size=PAGE)
    got = b""
    with suppress(BodyCutShort, BodyDamaged):
        async with bench.engine.open(ReadRequest(ObjectRef("b", "k"), RangeSpec(0, PAGE - 1))) as reading:
            async for piece in reading.body(Span(0, PAGE)):
                got += piece
    await bench.settle()
    assert body.startswith(got)
    meta, _ = await bench.engine.stat(ReadRequest(ObjectRef("b", "k")))
    assert meta.size == len(body)
    assert (await bench.get("k"))[0] == body


async def test_a_length_that_was_only_announced_is_not_told(make_bench):
    memory = MemoryOrigin()
    memory.put("b", "k", b"x" * 1000)
    memory.gate = Barrier()
    bench = await make_bench(origin=FaultyOrigin(memory, script=[Fault(short_by_bytes=-100)]))
    first = asyncio.create_task(bench.get("k"))
    await memory.gate.reached.wait()
    meta, _ = await bench.engine.stat(ReadRequest(ObjectRef("b", "k")))
    assert meta.size == 1000
    memory.gate.release()
    with pytest.raises(BodyCutShort):
        await first
