"""The listener finds the end of a request's body, whatever the pieces in which the bytes arrive."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.api.s3.head import HeadReader
from shadeproxy.api.s3.request_body import CONTINUE, ChunkedCoding, ClientBody, LengthCoding
from shadeproxy.core.errors import BodyIncomplete

NEXT = b"GET / HTTP/1.1\r\n\r\n"


def read(*fields: bytes):
    return HeadReader().read(b"\r\n".join([b"PUT /b/k HTTP/1.1", b"Host: h", *fields, b"", b""]))


def taken(coding, data: bytes, step: int) -> tuple[int, bytes]:
    """Return how many bytes of ``data`` belong to the body, if they arrive ``step`` bytes at a time, and the
    content of the body.
    """
    count, content = 0, []
    for start in range(0, len(data), step):
        piece = data[start : start + step]
        mine = 0 if coding.is_over else coding.take(piece, content)
        count += mine
        if mine < len(piece):
            break
    return count, b"".join(content)


CHUNKED = b"Transfer-Encoding: chunked"
BODIES = [
    (b"Content-Length: 5", b"12345", b"12345"),
    (b"Content-Length: 0", b"", b""),
    (b"X-No: length", b"", b""),
    (CHUNKED, b"5\r\n12345\r\n0\r\n\r\n", b"12345"),
    (CHUNKED, b"A;name=x\r\n0\r\n\r\n56789\r\n0\r\nx-a: b\r\nx-c: d\r\n\r\n", b"0\r\n\r\n56789"),
    (b"transfer-encoding:CHUNKED", b"0\r\n\r\n", b""),
    (CHUNKED, b"00000000000000000005\r\n12345\r\n0000000000000000000\r\n\r\n", b"12345"),
    (CHUNKED, b'5;a="\xe9"\r\n12345\r\n0\r\n\r\n', b"12345"),
]


def coding_of(head):
    return ChunkedCoding() if head.body_bytes is None else LengthCoding(head.body_bytes)


@pytest.mark.parametrize(("field", "body", "content"), BODIES)
@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_the_end_is_found_before_the_next_request(field, body, content, step):
    coding = coding_of(read(field))
    assert taken(coding, body + NEXT, step) == (len(body), content)
    assert coding.is_over
    assert not coding.is_broken


@given(chunks=st.lists(st.binary(min_size=1, max_size=300), max_size=5), step=st.integers(1, 400))
def test_chunks_of_any_content_end_with_the_last_one(chunks, step):
    body = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in chunks) + b"0\r\n\r\n"
    assert taken(ChunkedCoding(), body + NEXT, step) == (len(body), b"".join(chunks))


@pytest.mark.parametrize(
    "body",
    [
        b"zz\r\n",
        b"\r\n",
        b"-5\r\n12345\r\n",
        b"+5\r\n12345\r\n",
        b"5\n12345\r\n",
        b"5\r\n123456\r\n",
        b"5\r\n1234\r\n",
        b"5\r\n12345\n",
        b"5 5\r\n12345\r\n",
        b"1" * 20_000,
        b"1;" + b"x" * 20_000,
        b"0\r\n" + b"x: y\r\n" * 20_000,
        b"0\r\nx: y\n\n",
        b"0\r\nx: y\n\r\n",
        b"0\r\nx\r\n\r\n",
        b"0\r\n x: y\r\n\r\n",
        b"0\r\nx : y\r\n\r\n",
        b"0\r\nx: y\0\r\n\r\n",
        b"0\r\n\n",
    ],
)
@pytest.mark.parametrize("step", [1, 1000])
def test_a_body_with_broken_framing_has_no_end(body, step):
    coding = ChunkedCoding()
    taken(coding, body + NEXT, step)
    assert coding.is_broken
    assert not coding.is_over


class Connection:
    """A client's connection, as the body of its request sees it."""

    def __init__(self):
        self.transport, self.written, self.stopped, self.rest = self, b"", [], None

    def body_full(self, *, full):
        self.stopped.append(full)

    def body_over(self, rest):
        self.rest = rest

    def write(self, data):
        self.written += data

    def is_closing(self):
        return False


def body_of(*fields: bytes):
    connection = Connection()
    return ClientBody(read(*fields), connection), connection


async def test_a_body_waits_for_its_reader_and_stops_the_client_meanwhile():
    body, connection = body_of(b"Content-Length: 1000000")
    assert body.next_now() is None
    arriving = asyncio.create_task(body.next())
    await asyncio.sleep(0)
    piece = b"x" * 250_000
    for _ in range(3):
        body.take(piece)
    assert connection.stopped == [True]
    assert await arriving == piece
    assert connection.stopped == [True]
    assert (body.next_now(), connection.stopped) == (piece, [True])
    assert (body.next_now(), connection.stopped) == (piece, [True, False])
    assert body.next_now() is None
    body.take(piece + b"next")
    assert (body.is_over, body.is_read, connection.rest) == (True, False, b"next")
    assert [body.next_now(), body.next_now(), body.next_now()] == [piece, b"", b""]
    assert (body.is_read, connection.stopped) == (True, [True, False])


async def test_the_reader_of_a_broken_body_gets_what_came_and_then_the_error():
    body, _ = body_of(CHUNKED)
    arriving = asyncio.create_task(body.next())
    await asyncio.sleep(0)
    body.take(b"5\r\nhello\r\nzz\r\n")
    assert await arriving == b"hello"
    for _ in range(2):
        with pytest.raises(BodyIncomplete, match="transfer coding is broken"):
            await body.next()
    assert not body.is_over


async def test_a_client_that_waits_is_invited_unless_all_has_come():
    body, connection = body_of(b"Content-Length: 5", b"Expect: 100-continue")
    assert body.awaits_go
    await body.invite()
    assert (connection.written, body.awaits_go) == (CONTINUE, False)
    assert body_of(b"Content-Length: 0", b"Expect: 100-continue")[0].awaits_go
    assert not body_of(b"Content-Length: 5")[0].awaits_go


async def test_what_is_dropped_takes_no_memory_and_ends_with_the_body():
    body, connection = body_of(b"Content-Length: 1000000")
    body.take(b"x" * 600_000)
    dropping = asyncio.create_task(body.drop())
    await asyncio.sleep(0)
    assert connection.stopped == [True, False]
    assert not body._pieces
    body.take(b"x" * 300_000)
    await asyncio.sleep(0)
    assert connection.stopped == [True, False]
    assert not dropping.done()
    assert not body._pieces
    body.take(b"x" * 100_000 + b"next")
    await dropping
    assert body.is_read
    assert connection.rest == b"next"


async def test_many_small_chunks_are_taken_in_many_turns_of_the_loop():
    """Other clients are served meanwhile, and no more bytes are read from this one."""
    body, connection = body_of(CHUNKED)
    count = 20_000
    data = b"1\r\nx\r\n" * count + b"0\r\n\r\n"
    body.take(data[:-3])
    body.take(data[-3:] + NEXT)
    turns, read = 0, b""
    while not body.is_read:
        assert body.is_over or connection.stopped == [True]
        await asyncio.sleep(0)
        turns += 1
        while piece := body.next_now():
            read += piece
    assert read == b"x" * count
    assert turns >= count // 128
    assert connection.rest == NEXT
