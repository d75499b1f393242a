"""Uploads that follow each other on one connection."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from shadeproxy.api.s3 import FastLane
from shadeproxy.api.s3.connection import MOST_HELD_BYTES
from shadeproxy.origin.memory import MemoryOrigin

PIECE_BYTES = 64 << 10


class Arriving(asyncio.Transport):
    """A client's connection without a socket. The bytes ``left`` arrive while the proxy reads."""

    def __init__(self, proxy, data):
        super().__init__()
        self.left, self.answers, self.reads = memoryview(data), bytearray(), True
        self._protocol = proxy.server()
        self._protocol.connection_made(self)

    def arrive(self):
        """Let up to 32 pieces arrive in one step of the loop, as in uvloop. Return their number of bytes."""
        before = len(self.left)
        for _ in range(32):
            if self.reads and self.left:
                piece, self.left = bytes(self.left[:PIECE_BYTES]), self.left[PIECE_BYTES:]
                self._protocol.data_received(piece)
        return before - len(self.left)

    def write(self, data):
        self.answers += data

    def pause_reading(self):
        self.reads = False

    def resume_reading(self):
        self.reads = True

    def leave(self):
        self._protocol.connection_lost(None)

    def close(self): ...

    def is_closing(self):
        return False

    def get_write_buffer_size(self):
        return 0

    def get_extra_info(self, _name, default=None):
        return default


@pytest.mark.parametrize("first_bytes", [10, 700_000])
async def test_the_body_of_the_next_request_waits_outside_while_an_upload_ends(proxy, first_bytes):
    # A client sends its next upload as soon as it has the answer, which may be before aiohttp has ended.
    uploads = {"one": b"1" * first_bytes, "two": b"2" * (8 << 20)}
    client = Arriving(
        proxy,
        b"".join(
            f"PUT /b/{key} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
            for key, body in uploads.items()
        ),
    )
    most_bytes = 0
    async with asyncio.timeout(60):
        while client.answers.count(b"HTTP/1.1 200 OK") < len(uploads):
            most_bytes = max(most_bytes, client.arrive())
            await asyncio.sleep(0)
    assert most_bytes <= first_bytes + MOST_HELD_BYTES + PIECE_BYTES
    assert {key: proxy.origin.buckets["b"][key].body for key in uploads} == uploads
    client.leave()


class SlowWrites(MemoryOrigin):
    """An origin that answers a write only after ``go`` is set."""

    def __init__(self):
        super().__init__()
        self.go = asyncio.Event()

    @asynccontextmanager
    async def forward(self, request):
        await self.go.wait()
        async with super().forward(request) as answer:
            yield answer


async def test_the_fast_lane_answers_again_after_an_upload_however_long_it_took(make_proxy):
    looked_at = []

    class Noted(FastLane):
        def answer(self, raw, out):
            looked_at.append(raw.partition(b" ")[0])
            return super().answer(raw, out)

    proxy = await make_proxy(origin=SlowWrites(), lane=Noted)
    proxy.origin.put("b", "seed", b"seed")
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    get = b"GET /b/seed HTTP/1.1\r\nHost: h\r\n\r\n"
    writer.write(b"PUT /b/one HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\none" + get)
    await asyncio.sleep(0.1)
    writer.write(get * 40)
    await asyncio.sleep(0.1)
    assert looked_at == [b"PUT"]
    proxy.origin.go.set()
    async with asyncio.timeout(30):
        for body in (b"", *[b"seed"] * 41):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert await reader.readexactly(len(body)) == body
    writer.close()
    assert looked_at == [b"PUT", *[b"GET"] * 41]
