"""Odd requests, broken files and odd clients: the fast lane must still answer correctly."""

import asyncio
import base64
import errno
import hashlib
import hmac
import os
from email.utils import formatdate

import pytest

from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.access_records import USE
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy.tiers.segment import Segment
from shadeproxy_bench.reliability.kit.faulty_origin import Fault, FaultyOrigin
from tests.support.engine import PAGE
from tests.support.s3.clients import ACCESS, SECRET
from tests.support.s3.lane import SIZES, answers, request, same, talk
from tests.support.s3.sendfile import SIZE, sendfile_proxy

RANGES = [
    "Range: bytes=0-0",
    "range: bytes=0-0",
    "range:bytes=0-0",
    "RANGE: bytes=0-0",
    "Range: Bytes=0-0",
    "Range: bytes= 0-0",
    "Range:  bytes=0-0",
    "Range: bytes=0-0 ",
]


@pytest.fixture
async def proxy(tmpfs, make_proxy, compiled):
    return await sendfile_proxy(make_proxy, tmpfs, compiled=compiled)


@pytest.mark.parametrize("field", RANGES)
@pytest.mark.parametrize("first", [True, False])
async def test_a_range_is_honoured_however_it_is_written(two, field, first):
    for _ in range(2):
        await talk(two.port, request("/b/page", close=False), count=1)
    fields = ["Host: s3.local", "Connection: close"]
    fields.insert(0 if first else 1, field)
    data = "\r\n".join(["GET /b/page HTTP/1.1", *fields, "", ""]).encode()
    general = same(await talk(two.task_port, data))
    assert general.startswith(b"HTTP/1.1 206")
    for _ in range(3):
        assert same(await talk(two.port, data)) == general


@pytest.mark.parametrize("first", [True, False])
async def test_ranges_of_clients_that_keep_the_connection_come_from_memory(two, first):
    lines = ["Host: s3.local", "User-Agent: x"]
    lines.insert(0 if first else 2, "range: bytes={}-9")
    template = "\r\n".join(["GET /b/page HTTP/1.1", *lines, "", ""])
    await talk(two.port, template.format(1).encode(), count=1)
    before = two.lane.known
    for start in (2, 3):
        ((head, body),) = answers(await talk(two.port, template.format(start).encode(), count=1))
        assert (head[9:12], len(body)) == (b"206", 10 - start)
    assert two.lane.known == before + 2


async def test_every_remembered_range_has_the_head_that_the_general_lane_gives_it(two):
    """Remembered ranges get the same head as in the general lane.

    The ranges cross page edges, reach to the end or beyond it, or count from the end of an object of many
    pages.
    """
    size, edge = SIZES["many"], 2 * PAGE
    values = [
        "0-0",
        "1-",
        f"{edge - 1}-{edge}",
        f"{edge - 7}-{edge + PAGE - 1}",
        f"{size - 2}-{size + 9}",
        "-3",
    ]
    for value in [*values, *values]:
        data = request("/b/many", f"Range: bytes={value}", close=False)
        general = same(await talk(two.task_port, data, count=1))
        assert general.startswith(b"HTTP/1.1 206")
        assert same(await talk(two.port, data, count=1)) == general
    before = two.lane.known
    for value in values:
        await talk(two.port, request("/b/many", f"Range: bytes={value}", close=False), count=1)
    # The request cache remembers a range over a page edge only if its pages can leave by sendfile. Pages of
    # this tier cannot, so three of the ranges are not remembered.
    assert two.lane.known == before + len(values) - 3


@pytest.mark.parametrize("field", [None, "Range: bytes=0-5"])
async def test_a_field_that_holds_what_the_lane_cuts_heads_at_is_only_a_field(two, field):
    """Metadata may hold the texts at which the lane cuts a remembered head.

    These texts stand for the request id, the length and the range.
    """
    meta = (("x-amz-meta-a", "0123456789ABCDEF"), ("x-amz-meta-b", "\x01"), ("x-amz-meta-c", "\x02"))
    two.origin.put("b", "odd", bytes(100), headers=meta)
    data = request("/b/odd", *([field] if field else []), close=False)
    for _ in range(3):
        await talk(two.port, request("/b/odd", close=False), count=1)
    general = same(await talk(two.task_port, data, count=1))
    assert b"x-amz-meta-a: 0123456789ABCDEF" in general
    for _ in range(4):
        assert same(await talk(two.port, data, count=1)) == general


async def test_a_request_signed_with_version_2_leaves_its_connection_alone(two):
    date = formatdate(usegmt=True)
    to_sign = f"GET\n\n\n\nx-amz-date:{date}\n/b/page"
    signature = base64.b64encode(hmac.new(SECRET.encode(), to_sign.encode(), hashlib.sha1).digest()).decode()
    data = request("/b/page", f"x-amz-date: {date}", f"Authorization: AWS {ACCESS}:{signature}", close=False)
    assert [head[9:12] for head, _ in answers(await talk(two.port, data * 2, count=2))] == [b"200", b"200"]


async def test_what_is_remembered_is_bounded_in_bytes(two):
    await talk(two.port, request("/b/page", close=False), count=1)
    long = "x" * 4000
    for number in range(3):
        await talk(two.port, request("/b/page", f"User-Agent: {number}{long}", close=False), count=1)
    assert len(two.lane._memory.plans) == 1


async def test_a_file_that_cannot_be_read_is_no_end_of_an_answer_and_no_next_one(
    proxy, compiled, monkeypatch
):
    sendfile, calls = os.sendfile, []
    # With descriptor -1 the compiled form cannot read the file, and leaves the request to the interpreted
    # form. There the second sendfile fails.
    descriptors = iter([-1] if compiled else [])
    opened = property(lambda self: next(descriptors, vars(self)["descriptor"]))
    monkeypatch.setattr(Segment, "descriptor", opened, raising=False)

    def broken(out, descriptor, offset, count):
        calls.append(count)
        if len(calls) == 2:
            raise OSError(errno.EIO, "I/O error")
        return sendfile(out, descriptor, offset, 10 * PAGE if len(calls) == 1 else count)

    monkeypatch.setattr(os, "sendfile", broken)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(request("/b/k", close=False) * 4)
    received = bytearray()
    try:
        async with asyncio.timeout(5):
            while piece := await reader.read(1 << 20):
                received += piece
    except ConnectionError:
        pass
    writer.close()
    assert received.count(b"HTTP/1.1 200") <= 1
    assert len(received) < SIZE
    assert ("answer cut", {"error": "[Errno 5] I/O error"}) in proxy.log.events


class Closed:
    """A segment file that is closed."""

    descriptor = -1

    def mark_sent(self, start, stop):
        pass


@pytest.mark.parametrize("length", [None, 0, 70_000])
async def test_a_file_that_ends_too_soon_is_no_end_of_an_answer_and_no_next_one(proxy, length):
    """The answer breaks off, and no next answer follows, if the segment file is closed or too short."""
    raw = request("/b/k", close=False)
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port, limit=1 << 22)
        writer.write(raw)
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(SIZE)
        handle = proxy.lane._memory.targets.young[b"/b/k"].handle
        segment = handle.sendable.file
        if length is None:
            handle.sendable = handle.sendable._replace(file=Closed())
        else:
            os.truncate(segment.path, handle.start + length)
        writer.write(raw * 3)
        received = bytearray()
        try:
            while piece := await reader.read(1 << 20):
                received += piece
        except ConnectionError:
            pass
        writer.close()
    os.truncate(segment.path, segment.size_bytes)
    assert received.count(b"HTTP/1.1 200") <= 1
    assert len(received) < SIZE
    ((_, fields),) = [event for event in proxy.log.events if event[0] == "answer cut"]
    assert fields["error"].startswith("[Errno 9]" if length is None else "[Errno 5]")


async def test_an_answer_that_the_origin_breaks_off_is_cut_and_logged(make_proxy):
    inner = MemoryOrigin()
    inner.put("b", "k", bytes(3 * PAGE))
    proxy = await make_proxy(origin=FaultyOrigin(inner, faults=(Fault(cut_after_bytes=100),), rate=1.0))
    with pytest.raises(ConnectionResetError):
        await talk(proxy.port, request("/b/k"))
    ((_, fields),) = [event for event in proxy.log.events if event[0] == "answer cut"]
    assert (fields["path"], fields["operation"]) == ("/b/k", "GetObject")
    assert fields["error"].startswith("BodyCutShort: ")
    assert fields["request_id"]


async def test_shutdown_closes_the_descriptors_that_bodies_left_by(proxy):
    _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(request("/b/k", close=False))
    async with asyncio.timeout(5):
        while not (connections := list(proxy.server.connections)) or connections[0]._sender._direct is None:
            await asyncio.sleep(0.01)
    direct = connections[0]._sender._direct
    await connections[0].shutdown(0.1)
    assert direct.fileno() == -1, "and not when the loop finds time for it"
    writer.close()


async def test_out_of_descriptors_a_body_is_copied(proxy, monkeypatch):
    def refused(_descriptor):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "dup", refused)
    ((_, body),) = answers(await talk(proxy.port, request("/b/k", close=False), count=1))
    assert body == proxy.bodies["k"]


@pytest.mark.parametrize("count", [1, 4])
async def test_a_client_that_shut_its_sending_side_gets_large_answers_whole(proxy, count):
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port, limit=1 << 16)
    writer.write(request("/b/k", close=False) * count)
    writer.write_eof()
    await asyncio.sleep(0.1)
    async with asyncio.timeout(5):
        received = await reader.read(-1)
    writer.close()
    assert [body for _, body in answers(received)] == [proxy.bodies["k"]] * count
    async with asyncio.timeout(5):
        while proxy.server.connections:
            await asyncio.sleep(0.01)


async def test_a_client_that_shut_its_sending_side_gets_a_last_answer_of_a_task(proxy):
    """All 13 requests are answered, although the client has shut its sending side. A task answers the
    last.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port, limit=1 << 16)
    writer.write(request("/b/k", close=False) * 12 + request("/b?location", close=False))
    writer.write_eof()
    await asyncio.sleep(0.1)
    async with asyncio.timeout(5):
        received = await reader.read(-1)
    writer.close()
    assert len(answers(received)) == 13


async def test_reads_are_never_noted_while_bytes_are_lent(proxy, monkeypatch):
    """The access log is not flushed between the lookup of bytes and their sending.

    A flush may promote and evict pages, and the bytes of the reader are not pinned yet.
    """
    access_log = proxy.engine.access_log
    access_log.flush()
    noted = []
    flush = type(access_log)._flush_oldest

    def watched(self, count):
        noted.append(len(self.rows) // USE.itemsize)
        flush(self, count)

    monkeypatch.setattr(type(access_log), "_flush_oldest", watched)
    monkeypatch.setattr(access_log, "most_waiting_bytes", 4 * USE.itemsize)
    handle = proxy.engine.find_handle(ObjectRef("b", "k"), 0, proxy.clock.now_s())
    for _ in range(9):
        assert proxy.engine.take_slices(handle, None, proxy.clock.now_s()) is not None
        assert proxy.engine.take(handle, None, proxy.clock.now_s()) is not None
    assert noted == []
    await asyncio.sleep(0.01)
    assert noted == [18]
