"""Slow clients of pages on a disk, which the kernel drops from its page cache in the middle of an answer.

The event loop must not wait for the disk, and bytes that were damaged meanwhile must not be sent.
"""

import asyncio
import mmap
import os
from dataclasses import replace

import pytest

from shadeproxy.core.types import ObjectRef
from tests.support.engine import HeldIO
from tests.support.s3.lane import Watched, answers, request, talk
from tests.support.s3.slow import connect_narrowly

PAGE = 1 << 19
SIZES = {"one": 500_000, "two": PAGE + 400_000, "many": 2 * PAGE + 200_005}
KEYS = [
    ("one", None),
    ("two", "bytes=100000-920000"),
    ("many", f"bytes={PAGE - 7}-{2 * PAGE + 200_000}"),
    ("many", None),
]
"""Objects and ranges: of one page, of two (sent in slices), and of more (streamed)."""

every_way = pytest.mark.parametrize(("key", "part"), KEYS, ids=lambda value: str(value or "whole"))


@pytest.fixture(params=[False, True], ids=["copied", "sendfile"])
async def proxy(make_proxy, compiled, request, tmp_path):
    proxy = await make_proxy(
        lane=Watched,
        compiled=compiled,
        page_size=PAGE,
        can_wait=True,
        ram=tmp_path / "disk" if request.param else None,
        tier_bytes=16 << 20,
    )
    proxy.bodies = {key: os.urandom(size) for key, size in SIZES.items()}
    for key, body in proxy.bodies.items():
        proxy.origin.put("b", key, body)
    for key, part in KEYS:
        for _ in range(3):
            await talk(proxy.port, asked(key, part), count=1)
    await proxy.engine._filling.flights.drain()
    return proxy


def asked(key, part):
    return request(f"/b/{key}", *([f"Range: {part}"] if part else []), close=False)


def wanted(proxy, key, part):
    body = proxy.bodies[key]
    if part is None:
        return body
    first, last = part.removeprefix("bytes=").split("-")
    return body[int(first) : int(last) + 1]


class Pages:
    """The pages of an object, in the file of the tier."""

    def __init__(self, proxy, key):
        self.tier = proxy.engine.cache.media[0].tier
        now_s = proxy.clock.now_s()
        firsts = range(0, SIZES[key], PAGE)
        self.handles = [proxy.engine.find_handle(ObjectRef("b", key), first, now_s) for first in firsts]

    def let_go(self):
        """Make the kernel drop the pages from its page cache."""
        for handle in self.handles:
            segment, _, _ = self.tier._resolve(handle.location)
            os.fsync(segment.descriptor)
            segment.mapping.madvise(mmap.MADV_DONTNEED)  # The kernel keeps mapped pages.
            os.posix_fadvise(segment.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(segment.descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        if any(self.tier.is_resident(handle.location) for handle in self.handles):
            pytest.skip("this file system keeps what it was told to let go")

    def damage(self):
        """Change bytes in the middle of each page, on the medium."""
        for handle in self.handles:
            segment, _, _ = self.tier._resolve(handle.location)
            for place in range(handle.start + 100_000, handle.stop - 5000, 50_000):
                os.pwrite(segment.descriptor, bytes([handle.window[place] ^ 1]), place)


async def begin(proxy, key, part):
    """Ask on a narrow connection, and take the head. Return reader, writer and the proxy's protocol."""
    reader, writer, server = await connect_narrowly(proxy)
    writer.write(asked(key, part))
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 206" if part else b"HTTP/1.1 200")
    await asyncio.sleep(0.05)  # The socket's buffers are full now.
    return reader, writer, server


async def rest(reader, length):
    """Return up to ``length`` bytes: all that come before the connection ends."""
    got = bytearray()
    try:
        while len(got) < length and (piece := await reader.read(65536)):
            got += piece
    except ConnectionResetError:
        pass
    return bytes(got)


@every_way
async def test_a_page_that_left_the_page_cache_is_read_again_off_the_loop(proxy, key, part):
    expected, pages = wanted(proxy, key, part), Pages(proxy, key)
    reader, writer, _ = await begin(proxy, key, part)
    pages.let_go()
    assert await rest(reader, len(expected)) == expected
    ((_, body),) = answers(await talk(proxy.port, asked(key, part), count=1))
    assert body == expected
    writer.close()


@every_way
async def test_bytes_that_were_damaged_meanwhile_are_not_sent(proxy, key, part):
    expected, pages = wanted(proxy, key, part), Pages(proxy, key)
    reader, writer, server = await begin(proxy, key, part)
    pages.damage()
    pages.let_go()
    got = await rest(reader, len(expected))
    assert expected.startswith(got)
    assert len(got) == len(expected) or server.transport is None, "whole, or broken off"
    ((_, body),) = answers(await talk(proxy.port, asked(key, part), count=1))
    assert body == expected
    writer.close()


@every_way
async def test_the_loop_touches_no_byte_while_the_disk_hangs(proxy, key, part):
    expected, pages = wanted(proxy, key, part), Pages(proxy, key)
    reader, writer, server = await begin(proxy, key, part)
    cache, held = proxy.engine.cache, HeldIO()
    medium, cache.media[0] = cache.media[0], replace(cache.media[0], load=held)
    pages.let_go()
    got = bytearray()
    while not held.waiting.is_set():
        got += await reader.read(4096)
        await asyncio.sleep(0)
    resident = [pages.tier.is_resident(handle.location) for handle in pages.handles]
    assert not all(resident)
    assert (await talk(proxy.port, request("/b/none"), count=1)).startswith(b"HTTP/1.1 404")
    cache.media[0] = medium
    held.go.set()
    assert bytes(got) + await rest(reader, len(expected) - len(got)) == expected
    assert not (server._sender and server._sender.busy)
    writer.close()


@every_way
async def test_a_client_that_leaves_while_its_page_is_read_again_leaves_nothing(proxy, key, part):
    pages = Pages(proxy, key)
    reader, writer, server = await begin(proxy, key, part)
    cache, held = proxy.engine.cache, HeldIO()
    medium, cache.media[0] = cache.media[0], replace(cache.media[0], load=held)
    pages.let_go()
    while not held.waiting.is_set():
        await reader.read(4096)
        await asyncio.sleep(0)
    writer.transport.abort()
    await asyncio.sleep(0.05)
    cache.media[0] = medium
    held.go.set()
    async with asyncio.timeout(5):
        while server.transport is not None:
            await asyncio.sleep(0.01)
    ((_, body),) = answers(await talk(proxy.port, asked(key, part), count=1))
    assert body == wanted(proxy, key, part)


@every_way
async def test_a_page_purged_and_gone_from_the_page_cache_is_never_sent_wrong(proxy, key, part):
    expected, pages = wanted(proxy, key, part), Pages(proxy, key)
    reader, writer, server = await begin(proxy, key, part)
    proxy.engine.cache.drop_object(ObjectRef("b", key), "test")
    pages.let_go()
    got = await rest(reader, len(expected))
    assert expected.startswith(got)
    assert len(got) == len(expected) or server.transport is None
    assert len(got) == len(expected) or key != "many", "a streamed answer goes on from the origin"
    writer.close()


async def test_answers_in_a_row_to_a_client_that_reads_nothing_take_no_copy_of_the_page(proxy):
    """A client asks three times and takes nothing. The head of an answer waits in the transport, and the page
    does not.
    """
    reader, writer, server = await begin(proxy, "one", None)
    writer.write(asked("one", None) * 2)
    await asyncio.sleep(0.05)
    assert server.transport.get_write_buffer_size() < 100_000
    assert await reader.readexactly(SIZES["one"]) == proxy.bodies["one"]
    for _ in range(2):
        await reader.readuntil(b"\r\n\r\n")
        assert server.transport.get_write_buffer_size() < 100_000
        assert await reader.readexactly(SIZES["one"]) == proxy.bodies["one"]
    writer.close()
