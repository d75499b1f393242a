"""Uploads that follow each other on one connection."""

import asyncio

import pytest

from shadeproxy.api.s3.connection import MOST_HELD_BYTES

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
    assert most_bytes <= 4 * MOST_HELD_BYTES
    assert {key: proxy.origin.buckets["b"][key].body for key in uploads} == uploads
    client.leave()
