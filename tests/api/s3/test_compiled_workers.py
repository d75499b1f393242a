"""The compiled request cache of a worker answers like the one in Python, or leaves the request to it."""

import asyncio
import os

import pytest

from shadeproxy.api.s3 import COMPILED
from shadeproxy.core.clock import boot_time_s
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.base import PageHandle
from shadeproxy.engine.index.columns import Share
from shadeproxy.engine.worker_reads import SharedPageHandle
from tests.support.clock import ManualClock
from tests.support.s3.beside import Beside, serving
from tests.support.s3.clients import CLIENTS
from tests.support.s3.compiled import heads
from tests.support.s3.lane import answers, pattern, request, talk

pytestmark = [
    pytest.mark.skipif(not COMPILED, reason="the lane was not compiled when it was installed"),
    pytest.mark.timeout(60),
]
SIZES = {"k": 4000, "big": 60_000, "a b": 10, "two": 100_000}
BIG = ObjectRef("b", "big")


@pytest.fixture
async def make(make_proxy):
    async def make(**options):
        share = Share.create()
        proxy = await make_proxy(clients=CLIENTS, clock=ManualClock(), page_size=1 << 16, share=share)
        sums = (("x-amz-checksum-crc32", "AAAAAA=="), ("x-amz-meta-a", "b"))
        for key, size in SIZES.items():
            proxy.origin.put("b", key, pattern(size), headers=sums)
            await proxy.get(f"/b/{key.replace(' ', '%20')}")
        await proxy.engine._filling.flights.drain()
        return Beside(proxy, share, **options)

    return make


@pytest.fixture
async def beside(make):
    found = await make()
    found.learn()
    return found


async def test_both_forms_send_and_note_the_same(beside):
    answered = 0
    for raw in heads(beside.proxy):
        said = beside.interpreted(raw)
        assert beside.compiled(raw) == said, raw
        answered += said is not None
        beside.proxy.clock.advance(0.4)
    assert answered == beside.hits.answered
    assert answered > 45
    requests = {is_part: count for _, is_part, count, *_ in beside.hits.take_tallies()}
    assert sum(requests.values()) == answered
    assert set(requests) == {False, True}


async def test_pages_that_moved_or_changed_are_not_sent(beside):
    raw = request("/b/big", close=False)
    assert beside.compiled(raw) is not None
    table = beside.proxy.engine.cache.residents
    (slot,) = table.pages_of(beside.reader.find_handle(BIG, 0, 0.0).object_hash)
    table.stamp[slot] += 1
    assert beside.compiled(raw) is None
    table.stamp[slot] -= 1
    assert beside.compiled(raw) is not None
    handle = beside.reader.find_handle(BIG, 0, 0.0)
    # The place of the page now holds the header of another record, and no stamp shows it.
    for field, value in (
        ("header", b"x" * len(handle.header)),
        ("offset", handle.offset + 4096),
        ("descriptor", -1),
    ):
        kept = getattr(handle, field)
        setattr(handle, field, value)
        assert beside.compiled(raw) is None, field
        setattr(handle, field, kept)
    handle.fresh_until_s = beside.proxy.clock.now_s()
    assert beside.compiled(raw) is None


async def test_a_page_that_moves_during_the_copy_is_not_sent(beside):
    table, raw = beside.proxy.engine.cache.residents, request("/b/big", close=False)
    handle, moved = beside.reader.find_handle(BIG, 0, 0.0), []
    header = handle.header

    class Moving(SharedPageHandle):
        """A page handle whose page moves just before its bytes are read."""

        __slots__ = ()

        @property
        def header(self):
            moved.append(self.slot)
            table.stamp[self.slot] += 1
            return header

    moving = Moving.__new__(Moving)
    for kind in (PageHandle, SharedPageHandle):
        for name in kind.__slots__:
            if name != "header" and hasattr(handle, name):
                setattr(moving, name, getattr(handle, name))
    targets = beside.lane._memory.targets
    targets.put(b"/b/big", targets.get(b"/b/big")._replace(handle=moving))
    assert beside.compiled(raw) is None
    assert moved == [handle.slot]


async def test_a_body_on_a_disk_that_was_damaged_in_a_shared_block_is_not_sent(make):
    beside = await make(can_wait=True)
    beside.learn()
    whole, part = request("/b/k", close=False), request("/b/k", "Range: bytes=3-7", close=False)
    assert beside.compiled(whole) is not None
    assert beside.compiled(whole) == beside.interpreted(whole)
    assert beside.compiled(part) is None  # Only the form in Python checks parts.
    assert beside.interpreted(part) is not None
    handle = beside.reader.find_handle(ObjectRef("b", "k"), 0, 0.0)
    (tier,) = (medium.tier for medium in beside.proxy.engine.cache.media)
    segment, _, _ = tier._resolve(beside.proxy.engine.find_handle(handle.ref, 0, 0.0).location)
    os.pwrite(segment.descriptor, b"\0", handle.offset + handle.start + 3999)
    for raw in (whole, part):
        assert beside.compiled(raw) is None
        assert beside.interpreted(raw) is None


async def test_the_lease_is_judged_at_each_hit(make):
    beside = await make(is_shared_cache=True)
    raw = request("/b/k", close=False)
    beside.learn()
    assert beside.compiled(raw) is None
    beside.share.show_lease(boot_time_s() + 60)
    beside.learn()
    for lease_s in (60, 0, 60, float("-inf")):
        beside.share.show_lease(boot_time_s() + lease_s)
        for each in (raw, request("/b/big", "Range: bytes=3-7", close=False)):
            assert (beside.compiled(each) is not None) is (lease_s == 60)


@pytest.mark.parametrize("compiled", [False, True])
async def test_a_connection_gets_the_answers_of_the_coordinator(beside, compiled):
    async with serving(beside, compiled=compiled) as port:
        for raw in heads(beside.proxy):
            for _ in range(2):
                ours, theirs = [await talk(one, raw, count=1) for one in (port, beside.proxy.port)]
                (status, body), (expected, same) = (answers(one)[0] for one in (ours, theirs))
                assert status.partition(b"\r\n")[0] == expected.partition(b"\r\n")[0]
                assert body == same or b"<RequestId>" in body
        together = b"".join(request(f"/b/{key}", close=False) for key in ("k", "big", "two", "k"))
        for pieces in ((), (1,), (40, 41, 100)):
            found = answers(await talk(port, together, pieces=pieces, count=4))
            assert [len(body) for _, body in found] == [4000, 60_000, 100_000, 4000]


async def test_a_slow_client_gets_all_of_a_long_body(beside):
    async with serving(beside, send_bytes=4096) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        for _ in range(3):
            writer.write(request("/b/big", close=False))
            await asyncio.sleep(0.05)
            writer.write(request("/b/big", close=False) * 4)
            for _ in range(5):
                await reader.readuntil(b"\r\n\r\n")
                assert await reader.readexactly(60_000) == pattern(60_000)
        writer.close()
        await writer.wait_closed()
    assert beside.hits is not beside.lane._shared_hits
    assert beside.lane._shared_hits.answered
