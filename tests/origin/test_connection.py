"""The number of steps in which an answer arrives. The transport passes on all bytes that it has, as TLS
transports do.
"""

import asyncio

import pytest

from shadeproxy.origin.connection import Connection
from shadeproxy.origin.http1 import BadAnswer
from shadeproxy.origin.receiver import Broken, Dead
from tests.support.decrypted import Decrypted

HEAD = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: %d\r\n\r\n'


class Page:
    """A receiver of one answer."""

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
    for _ in range(2):  # The second answer comes over the same connection.
        transport.turns, page = 0, Page()
        connection.start(b"GET / HTTP/1.1\r\n\r\n", page)
        transport.hand(HEAD % size_bytes + body, connection)
        assert (transport.turns, len(page.arrivals)) == (turns, turns)
        assert page.memory == body
        assert page.complete
        assert sum(page.arrivals) == size_bytes
        assert connection.reusable
        assert connection.failure is None


class Whole(Page):
    """A receiver that takes an answer as a whole, if its status is 200."""

    def __init__(self, size_bytes: int = 4096) -> None:
        super().__init__()
        self.memory = memoryview(bytearray(size_bytes))
        self.answer: bytes | None = None
        self.error: Exception | None = None
        self._stop = 0

    def make_memory(self):
        return self.memory

    def recognised(self, filled):
        data = bytes(self.memory[:filled])
        end = data.find(b"\r\n\r\n") + 4
        if end < 4 or not data.startswith(b"HTTP/1.1 200 "):
            return 0
        self._stop = end + int(data.partition(b"Content-Length: ")[2].partition(b"\r")[0])
        return self._stop if self._stop < len(self.memory) else 0

    def opened(self, head):
        self._stop = 0
        return super().opened(head)

    def arrived(self, count: int = 0) -> None:
        self.arrivals.append(count)

    def received(self):
        self.complete = True
        self.answer = bytes(self.memory[: self._stop]) if self._stop else bytes(self.memory)

    def failed(self, error):
        self.error = error


class Told(Decrypted):
    """A transport that records whether the connection has aborted it."""

    def abort(self) -> None:
        self.aborted = True


def asked(receiver):
    connection = Connection(asyncio.get_running_loop(), lambda _: None)
    transport = Told(tls=False)
    connection.connection_made(transport)
    connection.start_whole(b"GET / HTTP/1.1\r\n\r\n", receiver)
    return connection, transport


BODY = bytes(range(250)) * 4
ANSWER = HEAD % len(BODY) + BODY


@pytest.mark.parametrize("cuts", [(), (len(ANSWER) - 1,), (len(ANSWER) - len(BODY),), (500, 700)])
async def test_a_recognised_answer_arrives_with_its_head_in_the_memory_of_its_receiver(cuts):
    whole = Whole()
    connection, transport = asked(whole)
    for _ in range(2):  # The second answer comes over the same connection.
        start = 0
        for stop in (*cuts, len(ANSWER)):
            assert not whole.complete
            transport.hand(ANSWER[start:stop], connection)
            start = stop
        assert whole.complete
        assert whole.answer == ANSWER
        assert whole.error is None
        assert connection.reusable
        whole = Whole()
        connection.start_whole(b"GET / HTTP/1.1\r\n\r\n", whole)
    assert transport.turns == 2 * (len(cuts) + 1)


@pytest.mark.parametrize("cut", [1, 30, len(ANSWER) - len(BODY) - 1, len(ANSWER) - len(BODY), 900])
@pytest.mark.parametrize("size_bytes", [1000, 4096])
async def test_any_other_answer_goes_the_usual_way(cut, size_bytes):
    """Any answer that is not recognised is received in the usual way. Its head may come in parts, it may be
    longer than the memory, or its status is not 200.
    """
    answer = ANSWER if size_bytes == 1000 else ANSWER.replace(b" 200 ", b" 206 ", 1)
    whole = Whole(size_bytes)
    connection, transport = asked(whole)
    transport.hand(answer[:cut], connection)
    transport.hand(answer[cut:], connection)
    assert whole.complete
    assert whole.answer == BODY
    assert connection.reusable
    later = Page()
    connection.start(b"GET / HTTP/1.1\r\n\r\n", later)
    transport.hand(ANSWER, connection)
    assert later.memory == BODY


@pytest.mark.parametrize("cut", [0, len(ANSWER) - 10])
async def test_more_bytes_than_a_recognised_answer_announced_are_an_error(cut):
    whole = Whole()
    connection, transport = asked(whole)
    if cut:
        transport.hand(ANSWER[:cut], connection)
    transport.hand(ANSWER[cut:] + b"HTTP/1.1 200", connection)
    assert not whole.complete
    assert isinstance(whole.error, BadAnswer)
    assert not connection.reusable
    assert transport.aborted


@pytest.mark.parametrize("came", [0, 10, len(ANSWER) - len(BODY), len(ANSWER) - 1])
async def test_a_connection_that_ends_within_a_recognised_answer_is_an_error(came):
    whole = Whole()
    connection, transport = asked(whole)
    transport.hand(ANSWER[:came], connection)
    connection.eof_received()
    connection.connection_lost(None)
    assert not whole.complete
    assert isinstance(whole.error, Broken if came else Dead)
    assert not connection.reusable


async def test_an_aborted_read_gets_no_more_calls():
    whole = Whole()
    connection, transport = asked(whole)
    transport.hand(ANSWER[:500], connection)
    connection.abort()
    connection.connection_lost(None)
    assert not whole.complete
    assert whole.error is None
