"""Bodies that are copied into the socket because they cannot leave by sendfile.

They come from memory, or from the kernel's page cache of a disk.
"""

import mmap
import os

import pytest

from shadeproxy.core.types import ObjectRef
from shadeproxy.tiers.store import SegmentStore
from tests.support.s3.lane import Watched, answers, request, talk
from tests.support.s3.slow import connect_narrowly, hang_up, read_slowly

SIZE = 1_000_000


@pytest.fixture(params=[False, True], ids=["memory", "disk"])
async def proxy(make_proxy, compiled, request):
    proxy = await make_proxy(lane=Watched, compiled=compiled, page_size=1 << 20, can_wait=request.param)
    proxy.bodies = {key: os.urandom(size) for key, size in (("k", SIZE), ("small", 20_000), ("few", 900))}
    for key, body in proxy.bodies.items():
        proxy.origin.put("b", key, body)
        for _ in range(3):
            await talk(proxy.port, asked(key), count=1)
    await talk(proxy.port, asked("k", 0, 10), count=1)
    sendable = proxy.engine.find_handle(ObjectRef("b", "k"), 0, proxy.clock.now_s()).sendable
    assert sendable is None or sendable.file is None
    return proxy


def asked(key, first=None, stop=None):
    fields = [] if first is None else [f"Range: bytes={first}-{stop - 1}"]
    return request(f"/b/{key}", *fields, close=False)


async def test_whole_and_ranged_bodies_come_right_and_from_what_is_known(proxy, compiled):
    before = proxy.lane.known, proxy.lane.compiled
    for first, stop in ((0, 1), (4095, 4097), (5000, 904_999), (0, SIZE)):
        ((head, body),) = answers(await talk(proxy.port, asked("k", first, stop), count=1))
        assert head.startswith(b"HTTP/1.1 206")
        assert body == proxy.bodies["k"][first:stop]
    for key, expected in proxy.bodies.items():
        ((_, body),) = answers(await talk(proxy.port, asked(key), count=1))
        assert body == expected
    assert proxy.lane.known == before[0] + 7
    assert proxy.lane.compiled == before[1] + (7 if compiled else 0)


async def test_a_slow_client_gets_every_byte_in_its_place(proxy):
    keys = ["k", "few", "k", "small", "small", "k", "few"] * 3
    data = b"".join(asked(key) for key in keys)
    assert await read_slowly(proxy.port, data, count=len(keys)) == [proxy.bodies[key] for key in keys]


async def test_a_page_evicted_and_overwritten_while_it_is_sent_arrives_as_it_was(proxy):
    reader, writer, server = await connect_narrowly(proxy)
    writer.write(asked("k"))
    await reader.readuntil(b"\r\n\r\n")
    first = await reader.readexactly(10)
    assert server._sender.busy or server.transport.get_write_buffer_size()
    proxy.engine.cache.drop_object(ObjectRef("b", "k"), "test")
    for number in range(6):  # More than fit into the tier.
        proxy.origin.put("b", f"other{number}", bytes([number]) * SIZE)
        await talk(proxy.port, asked(f"other{number}"), count=1)
    assert first + await reader.readexactly(SIZE - 10) == proxy.bodies["k"]
    writer.close()


async def test_a_client_that_hangs_up_in_the_middle_leaves_nothing(proxy):
    await hang_up(proxy, asked("k") * 8)
    ((_, body),) = answers(await talk(proxy.port, asked("k"), count=1))
    assert body == proxy.bodies["k"]


def let_go(proxy, *, but=()):
    """Make the kernel drop the page of "k" from its page cache, except for the record's bytes in ``but``.

    The test is skipped where the file system keeps these bytes in memory.
    """
    handle = proxy.engine.find_handle(ObjectRef("b", "k"), 0, proxy.clock.now_s())
    segment, offset, _ = proxy.engine.cache.media[0].tier._resolve(handle.location)
    os.fsync(segment.descriptor)
    segment.mapping.madvise(mmap.MADV_DONTNEED)  # The kernel keeps mapped pages.
    os.posix_fadvise(segment.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(segment.descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    for first, stop in but:
        os.pread(segment.descriptor, stop - first, offset + first)
    if handle.tier.is_hot(handle.location):
        pytest.skip("this file system keeps what it was told to let go")
    return segment, offset


@pytest.mark.parametrize("proxy", [True], ids=["disk"], indirect=True)
@pytest.mark.parametrize("but", [(), [(0, 500_000)], [(0, 200_000), (800_000, SIZE + 4096)]])
async def test_a_page_that_left_the_page_cache_is_not_touched_by_the_loop(proxy, but):
    let_go(proxy, but=but)
    known = proxy.lane.known
    ((_, body),) = answers(await talk(proxy.port, asked("k"), count=1))
    assert body == proxy.bodies["k"]
    assert proxy.lane.known == known
    for _ in range(2):  # The page handle is made again, and then remembered.
        await talk(proxy.port, asked("k"), count=1)
    assert proxy.lane.known == known + 1


@pytest.mark.parametrize("proxy", [True], ids=["disk"], indirect=True)
async def test_the_header_of_a_page_that_is_partly_hot_is_not_touched_for_a_slow_client(proxy, monkeypatch):
    reader, writer, _ = await connect_narrowly(proxy)
    await talk(proxy.port, asked("k", 400_000, SIZE), count=1)
    let_go(proxy, but=[(390_000, SIZE + 4096)])
    touched, place = [], SegmentStore._place_of

    def watched(self, location):
        segment, offset, _ = self._resolve(location)
        touched.append(segment.is_resident(offset, 64))
        return place(self, location)

    monkeypatch.setattr(SegmentStore, "_place_of", watched)
    writer.write(asked("k", 400_000, SIZE))
    await reader.readuntil(b"\r\n\r\n")
    assert await reader.readexactly(SIZE - 400_000) == proxy.bodies["k"][400_000:]
    assert touched
    assert all(touched)
    writer.close()


def damage(proxy, key):
    """Change a byte of a page in the kernel's page cache. The same happens if a block is damaged and another
    record in it is read.
    """
    handle = proxy.engine.find_handle(ObjectRef("b", key), 0, proxy.clock.now_s())
    segment, _, _ = proxy.engine.cache.media[0].tier._resolve(handle.location)
    place = handle.stop - 1
    os.pwrite(segment.descriptor, bytes([handle.window[place] ^ 1]), place)


@pytest.mark.parametrize("proxy", [True], ids=["disk"], indirect=True)
@pytest.mark.parametrize("part", [(), (10, 20)], ids=["whole", "part"])
@pytest.mark.parametrize("key", ["few", "small", "k"])
async def test_a_body_that_was_damaged_in_a_shared_block_is_not_sent(proxy, key, part):
    await talk(proxy.port, asked(key, *part), count=1)
    known = proxy.lane.known
    damage(proxy, key)
    ((_, body),) = answers(await talk(proxy.port, asked(key, *part), count=1))
    assert body == proxy.bodies[key][slice(*part) if part else slice(None)]
    assert proxy.lane.known == known
    for _ in range(3):  # The object was fetched again. A handle is made, then kept.
        ((_, body),) = answers(await talk(proxy.port, asked(key), count=1))
        assert body == proxy.bodies[key]
    assert proxy.lane.known > known
