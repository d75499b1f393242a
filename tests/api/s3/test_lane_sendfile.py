"""Bodies that leave the RAM tier by sendfile, to clients of which some are slow."""

import asyncio
import os

import pytest

from shadeproxy.core.types import ObjectRef
from shadeproxy.tiers.segment import Segment
from tests.support.s3.lane import answers, request, talk
from tests.support.s3.sendfile import RANGE, SIZE, sendfile_proxy
from tests.support.s3.slow import connect_narrowly, hang_up, read_slowly


@pytest.fixture
async def proxy(tmpfs, make_proxy, compiled):
    return await sendfile_proxy(make_proxy, tmpfs, compiled=compiled)


@pytest.fixture
def files(monkeypatch):
    """Return the segments from which bytes were sent: each time, both forms ask for a segment's
    descriptor.
    """
    asked = []
    opened = property(lambda self: asked.append(self) or vars(self)["descriptor"])
    monkeypatch.setattr(Segment, "descriptor", opened, raising=False)
    return asked


async def test_whole_and_ranged_bodies_come_right_and_from_the_file(proxy, compiled, files, monkeypatch):
    lent = []
    sendfile = os.sendfile
    monkeypatch.setattr(os, "sendfile", lambda *args: lent.append(args[3]) or sendfile(*args))
    before = proxy.lane.known
    for _ in range(3):
        ((_, body),) = answers(await talk(proxy.port, request("/b/k", close=False), count=1))
        assert body == proxy.bodies["k"]
        data = request("/b/k", f"Range: {RANGE}", close=False)
        ((head, body),) = answers(await talk(proxy.port, data, count=1))
        assert head.startswith(b"HTTP/1.1 206")
        assert body == proxy.bodies["k"][5000:905000]
    assert proxy.lane.known == before + 6
    assert len(files) >= 6
    assert compiled or 900_000 in lent, "the range without a copied byte"


async def add_many(proxy):
    """Add an object of two and a half pages to the origin and the cache, and have its ranges remembered."""
    proxy.bodies["many"] = os.urandom(2_600_000)
    proxy.origin.put("b", "many", proxy.bodies["many"])
    for _ in range(3):
        await talk(proxy.port, request("/b/many", close=False), count=1)
    for first in (0, 1 << 20, 2 << 20):  # After these, ranges from any page are remembered.
        data = request("/b/many", f"Range: bytes={first}-{first + 99}", close=False)
        await talk(proxy.port, data, count=1)


async def test_a_range_over_two_pages_comes_right_from_both_files_and_is_one_read(proxy, files):
    await add_many(proxy)
    edge, seen = 1 << 20, proxy.lane.known
    counted = proxy.counted_stats().snapshot()["totals"]["requests"]
    spans = [
        (edge - 500_000, edge + 500_000),
        (edge - 100_000, edge + 7),  # 7 bytes of the second page are copied, not sent by sendfile.
        (2 * edge - 900_001, 2 * edge + 400_003),
        (2 * edge - 300_000, 2_600_000),
    ]
    for first, stop in [*spans, *spans]:
        files.clear()
        data = request("/b/many", f"Range: bytes={first}-{stop - 1}", close=False)
        ((head, body),) = answers(await talk(proxy.port, data, count=1))
        assert head.startswith(b"HTTP/1.1 206")
        assert f"Content-Range: bytes {first}-{stop - 1}/2600000".encode() in head
        assert body == proxy.bodies["many"][first:stop]
        assert files, "from the file"
    assert proxy.lane.known == seen + 2 * len(spans)
    reads = proxy.counted_stats().snapshot()["totals"]["requests"] - counted
    assert reads == 2 * len(spans), "not two for two pages"


async def test_ranges_over_two_pages_to_a_slow_client_keep_their_order(proxy):
    await add_many(proxy)
    edge = 1 << 20
    spans = [(edge - 40_000 * turn, edge + 70_000 * turn) for turn in range(1, 9)] * 2
    ranges = [f"Range: bytes={first}-{stop - 1}" for first, stop in spans]
    data = b"".join(request("/b/many", one, close=False) for one in ranges)
    got = await read_slowly(proxy.port, data, count=len(spans))
    assert got == [proxy.bodies["many"][first:stop] for first, stop in spans]


async def test_pipelined_requests_to_a_slow_client_keep_their_order(proxy):
    keys = ["k", "small", "k", "small", "small", "k"] * 3
    data = b"".join(request(f"/b/{key}", close=False) for key in keys)
    assert await read_slowly(proxy.port, data, count=len(keys)) == [proxy.bodies[key] for key in keys]


@pytest.mark.parametrize("narrow", [False, True], ids=["in the kernel", "yet to be sent"])
async def test_a_page_evicted_and_overwritten_while_it_is_sent_arrives_as_it_was(proxy, narrow):
    if narrow:
        reader, writer, server = await connect_narrowly(proxy)
    else:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port, limit=1 << 16)
    writer.write(request("/b/k", close=False))
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"x-shade-cache: ram" in head
    assert not narrow or server._sender.busy
    proxy.engine.cache.drop_object(ObjectRef("b", "k"), "test")
    for number in range(6):  # More than fit into the tier.
        proxy.origin.put("b", f"other{number}", bytes([number]) * SIZE)
        await talk(proxy.port, request(f"/b/other{number}", close=False), count=1)
    assert await reader.readexactly(SIZE) == proxy.bodies["k"]
    writer.close()


async def test_a_range_that_is_sent_after_another_of_its_page_arrives_as_it_was(proxy):
    body = proxy.bodies["ranges"] = os.urandom(SIZE)
    proxy.origin.put("b", "ranges", body)
    for data in (request("/b/ranges", close=False), *[ranged(0, 100_000)] * 4):
        await talk(proxy.port, data, count=1)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port, limit=1 << 16)
    writer.write(ranged(200_000, SIZE))
    assert b"x-shade-cache: ram" in await reader.readuntil(b"\r\n\r\n")
    proxy.engine.cache.drop_object(ObjectRef("b", "ranges"), "test")
    for number in range(6):  # More than fit into the tier.
        proxy.origin.put("b", f"other{number}", bytes([number]) * SIZE)
        await talk(proxy.port, request(f"/b/other{number}", close=False), count=1)
    assert await reader.readexactly(SIZE - 200_000) == body[200_000:]
    writer.close()


def ranged(first, stop):
    return request("/b/ranges", f"Range: bytes={first}-{stop - 1}", close=False)


async def test_a_client_that_hangs_up_in_the_middle_leaves_nothing(proxy):
    await hang_up(proxy, request("/b/k", close=False) * 8)
    ((_, body),) = answers(await talk(proxy.port, request("/b/k", close=False), count=1))
    assert body == proxy.bodies["k"]


async def test_shutdown_waits_for_a_file_that_is_being_sent(proxy):
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port, limit=1 << 16)
    writer.write(request("/b/k", close=False) * 6)
    await asyncio.sleep(0.05)
    (connection,) = proxy.server.connections
    assert connection._busy
    ending = asyncio.create_task(proxy.server.shutdown(1.0))
    received = bytearray()
    while piece := await reader.read(1 << 20):
        received += piece
    await ending
    writer.close()
    bodies = [body for _, body in answers(bytes(received))]
    assert bodies
    assert set(bodies) == {proxy.bodies["k"]}
