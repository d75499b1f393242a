"""Requests that are forwarded: where their bodies end, and what may follow them."""

import asyncio

import pytest

from shadeproxy.api.s3 import pending_forward
from tests.support.s3.lane import answers, request, talk

FRAMED = (
    "Transfer-Encoding: chunked",
    "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER",
    "x-amz-decoded-content-length: 5",
)


def put(key, *fields, body=b"", close=False):
    if body and not any(field.startswith(("Content-Length", "Transfer-Encoding")) for field in fields):
        fields = (*fields, f"Content-Length: {len(body)}")
    return request(f"/b/{key}", *fields, method="PUT", close=close) + body


def statuses(received):
    return [int(head.split()[1]) for head, _ in answers(received)]


@pytest.mark.parametrize("cached", [True, False])
async def test_a_body_that_looks_like_a_request_is_stored(two, cached):
    """The body comes in one piece of its own, as a request of the fast lane would."""
    get = request("/b/page" if cached else "/b/two", close=False)
    for _ in range(3):
        await talk(two.port, request("/b/page", close=False), count=1)
    head = put("new", f"Content-Length: {3 * len(get)}")
    reader, writer = await asyncio.open_connection("127.0.0.1", two.port)
    for piece in (head, get, get, get, get):
        writer.write(piece)
        await asyncio.sleep(0.02)
    received = b""
    while len(answers(received)) < 2:
        received += await reader.read(1 << 16)
    writer.close()
    assert statuses(received) == [200, 200]
    assert two.origin.buckets["b"]["new"].body == get * 3
    assert len(answers(received)[1][1]) == len(two.origin.buckets["b"]["page" if cached else "two"].body)


@pytest.mark.parametrize("first", [b"", b"x" * 1000])
@pytest.mark.parametrize("length", [100_000, 3_000_000])
async def test_a_client_that_is_refused_early_gets_the_answer_while_it_still_sends(two, first, length):
    """The connection ends only when the client has sent all. A reset could take the answer away."""
    reader, writer = await asyncio.open_connection("127.0.0.1", two.port)
    writer.write(put("new", f"Content-Length: {length}", "x-amz-content-sha256: nothing") + first)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"\r\nConnection: close\r\n" in head
    get = request("/b/page", close=False)
    for start in range(len(first), length, 50_000):
        writer.write(b"x" * min(50_000, length - start))
        await writer.drain()
    writer.write(get)
    received = await asyncio.wait_for(reader.read(-1), 5)
    assert received.endswith(b"</Error>")
    assert b"HTTP/1.1" not in received
    writer.close()
    assert "new" not in two.origin.buckets["b"]


async def test_the_rest_of_a_refused_body_is_read_for_a_while_only(two, monkeypatch):
    monkeypatch.setattr(pending_forward, "LINGER_S", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", two.port)
    writer.write(put("new", "Content-Length: 100", "x-amz-content-sha256: nothing"))
    received = await asyncio.wait_for(reader.read(-1), 5)
    writer.close()
    assert statuses(received) == [400]


@pytest.mark.parametrize("body", [b"5\r\nhel", b"5\r\nhello\r\n"])
async def test_broken_chunks_are_refused_when_they_come(two, body):
    """The head and a right part of the body have come before, so the handler waits for the next bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", two.port)
    writer.write(put("new", *FRAMED) + body)
    await asyncio.sleep(0.1)
    writer.write(b"loooo\r\nzz\r\n")
    received = await asyncio.wait_for(reader.read(), 3)
    writer.close()
    assert statuses(received) == [400]
    assert b"\r\nConnection: close\r\n" in received


@pytest.mark.parametrize("announced", [False, True])
async def test_a_trailing_field_becomes_no_field_of_the_next_request(two, announced):
    """A front may send the requests of several clients over one connection."""
    body = b"5\r\nhello\r\n0\r\n\r\n"
    chunked = b"%x\r\n%b\r\n0\r\nx-amz-meta-mark: other\r\n\r\n" % (len(body), body)
    first = put("one", *FRAMED, *(["Trailer: x"] if announced else []), body=chunked)
    reader, writer = await asyncio.open_connection("127.0.0.1", two.port)
    writer.write(first + put("two", body=b"mine"))
    async with asyncio.timeout(5):
        while two.origin.buckets["b"]["one"].body != b"hello":
            await asyncio.sleep(0.01)
        received = await reader.readuntil(b"\r\n\r\n") + await reader.readuntil(b"\r\n\r\n")
    writer.close()
    assert statuses(received) == [200, 200]
    stored = two.origin.buckets["b"]["two"]
    assert stored.body == b"mine"
    assert not any(name == "x-amz-meta-mark" for name, _ in stored.meta.headers)


@pytest.mark.parametrize("count", [31, 32, 100])
async def test_requests_behind_a_chunked_upload_are_answered_however_many_they_are(two, count):
    body = b"5\r\nhello\r\n0\r\n\r\n"
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    reader, writer = await asyncio.open_connection("127.0.0.1", two.port)
    writer.write(put("new", *FRAMED, body=chunked[:4]))
    await asyncio.sleep(0.05)
    writer.write(chunked[4:] + request("/b/one", close=False) * count)
    received = b""
    async with asyncio.timeout(5):
        while len(answers(received)) < count + 1:
            received += await reader.read(1 << 16)
    writer.close()
    assert statuses(received) == [200] * (count + 1)


async def test_an_upload_with_broken_chunks_stores_nothing_and_nothing_follows_it(two):
    get = request("/b/one", close=False)
    data = put("page", *FRAMED) + b"5\r\nhellooo\r\n0\r\n\r\n"
    before = two.origin.buckets["b"]["page"]
    received = await talk(two.port, data + get)
    (status,) = statuses(received)
    assert 400 <= status < 500
    assert two.origin.buckets["b"]["page"] is before


@pytest.mark.parametrize("chunks", [1, 300, 5000])
async def test_a_request_follows_a_body_that_nothing_reads(two, chunks):
    """Many chunks stop the proxy from reading until they are taken. Then it must read the next request."""
    body = b"1\r\nx\r\n" * chunks + b"0\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", two.port)
    received = b""
    async with asyncio.timeout(5):
        for number in range(1, 4):
            two.origin.put("b", f"cold{number}", b"cold")
            writer.write(request(f"/b/cold{number}", "Transfer-Encoding: chunked", close=False) + body)
            while len(answers(received)) < number:
                received += (piece := await reader.read(1 << 16))
                assert piece, "the connection ended"
    writer.close()
    assert answers(received)[2][1] == b"cold"
