"""In how many arrivals one answer comes, over a transport that gives all that it has, as those of TLS do."""

import asyncio

import pytest

from shadeproxy.origin.connection import Connection
from tests.support.decrypted import Decrypted

HEAD = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: %d\r\n\r\n'


class Page:
    """Receives one answer."""

    def __init__(self) -> None:
        self.memory = bytearray()
        self.arrivals: list[int] = []
        self.complete = False

    def opened(self, head):
        self.memory = bytearray(head.length)
        return memoryview(self.memory), self.arrived

    def arrived(self, count: int) -> None:
        self.arrivals.append(count)

    def received(self) -> None:
        self.complete = True

    def failed(self, error: Exception) -> None:
        raise error


@pytest.mark.parametrize(
    ("tls", "size_bytes", "turns"),
    [(True, 1000, 1), (True, 100_000, 1), (True, 4 << 20, 2), (False, 1000, 1), (False, 100_000, 2)],
)
async def test_an_answer_over_tls_arrives_at_once_if_it_is_no_longer_than_usual(tls, size_bytes, turns):
    connection = Connection(asyncio.get_running_loop(), lambda _: None)
    transport = Decrypted(tls=tls)
    connection.connection_made(transport)
    body = bytes(range(250)) * (size_bytes // 250) + b"x" * (size_bytes % 250)
    for _ in range(2):  # The second answer comes over a kept connection.
        transport.turns, page = 0, Page()
        connection.start(b"GET / HTTP/1.1\r\n\r\n", page)
        transport.hand(HEAD % size_bytes + body, connection)
        assert (transport.turns, len(page.arrivals)) == (turns, turns)
        assert page.memory == body
        assert page.complete
        assert sum(page.arrivals) == size_bytes
        assert connection.reusable
        assert connection.failure is None
