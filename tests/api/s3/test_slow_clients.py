"""Clients that send a few bytes at a time, or take no bytes: the proxy waits for them, but not for ever."""

import asyncio
import base64
import hashlib
import socket
from xml.etree.ElementTree import fromstring

import pytest

from shadeproxy.api.s3.upload import body as upload_body
from shadeproxy.api.s3.upload.body import GRACE_S, LEAST_BYTES_PER_S, Patience
from shadeproxy.core.ledger import Ledger
from tests.support.s3.answer import split, until
from tests.support.s3.lane import Watched

SIZE = 4 << 20


def test_who_sends_is_waited_for_and_who_sips_is_not():
    steady, sipping = Patience(), Patience()
    for _ in range(1000):
        steady.note(10.0, 10 * LEAST_BYTES_PER_S)
        assert steady.left_s == GRACE_S
    waited_s = 0.0
    while sipping.left_s > 0:
        sipping.note(1.0, 10)
        waited_s += 1.0
    assert GRACE_S <= waited_s < 1.1 * GRACE_S


def test_a_burst_buys_no_more_than_the_grace():
    lazy = Patience()
    lazy.note(0.0, 1 << 30)
    assert lazy.left_s == GRACE_S


_TRAILED = (
    "Content-Length: 200\r\nx-amz-decoded-content-length: 100\r\nx-amz-trailer: x-amz-checksum-crc32\r\n"
    "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER"
)
STOPPED = {
    "length": ("Content-Length: 100", b"only some"),
    "trailer": (_TRAILED, b"64\r\nsome "),
    "continue": ("Content-Length: 100\r\nExpect: 100-continue", b""),
}


@pytest.mark.parametrize("how", STOPPED)
async def test_an_upload_that_stops_is_told_so_and_leaves_nothing(proxy, monkeypatch, how):
    fields, sent = STOPPED[how]
    monkeypatch.setattr(upload_body, "GRACE_S", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(f"PUT /b/new HTTP/1.1\r\nHost: h\r\n{fields}\r\n\r\n".encode() + sent)
    head = await reader.readuntil(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 100"):
        head = await reader.readuntil(b"\r\n\r\n")
    status, answered, _ = split(head)
    body = await reader.readexactly(int(answered["content-length"]))
    writer.close()
    assert (status, answered["connection"]) == (400, "close")
    assert fromstring(body).findtext("Code") == "RequestTimeout"
    assert "within the timeout period" in fromstring(body).findtext("Message")
    assert "new" not in proxy.origin.buckets["b"]
    assert (await proxy.get("/b/seed")).endswith(b"seed")


async def reading_nothing(proxy, data):
    """Return a client that has sent a request and takes no byte of the answer. Its receive buffer
    is small.
    """
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", proxy.port))
    await loop.sock_sendall(client, data)
    return client


@pytest.mark.parametrize("how", ["lent", "copied", "forwarded", "cold"])
async def test_a_client_that_takes_nothing_is_cut_off(make_proxy, compiled, request, how):
    options = {"ram": request.getfixturevalue("tmpfs") / "ram"} if how == "lent" else {}
    options |= {"page_size": SIZE if how == "lent" else 1 << 16, "compiled": compiled}
    proxy = await make_proxy(lane=Watched, **options)
    proxy.origin.put("b", "k", bytes(SIZE - 4096 if how == "lent" else SIZE))
    target = "/b/k?partNumber=1" if how == "forwarded" else "/b/k"
    data = f"GET {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode()
    if how in {"lent", "copied"}:
        for _ in range(2):
            assert (await proxy.get("/b/k")).startswith(b"HTTP/1.1 200")
    proxy.server._keepalive_s = 0.3  # For the next client only: the reads above may take longer.
    client = await reading_nothing(proxy, data)
    await until(lambda: any(event == "answer cut" for event, _ in proxy.log.events))
    why = next(fields["error"] for event, fields in proxy.log.events if event == "answer cut")
    assert why == "the client took nothing for 0.3 s"
    await until(lambda: proxy.engine.readings == 0)
    await until(lambda: not proxy.server.connections)
    with pytest.raises(ConnectionResetError):
        while await asyncio.get_running_loop().sock_recv(client, 1 << 20):
            pass
    client.close()


async def test_a_client_that_takes_little_between_two_looks_goes_on(make_proxy):
    proxy = await make_proxy(lane=Watched, page_size=1 << 16)
    proxy.origin.put("b", "k", bytes(SIZE))
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port, limit=1 << 15)
    writer.write(b"GET /b/k HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    taken = len(await reader.read(1000))
    (connection,) = proxy.server.connections
    while taken < SIZE:
        connection._check()
        taken += len(await reader.readexactly(min(1 << 20, SIZE - taken)))
        before = connection._progress()
        async with asyncio.timeout(30):
            while before is not None and connection._progress() == before and taken < SIZE:
                taken += len(await reader.read(1 << 16))
                await asyncio.sleep(0)
    assert (taken, await reader.read()) == (SIZE, b"")
    writer.close()
    assert all(event != "answer cut" for event, _ in proxy.log.events)


class Waiting:
    """A transport that always has 100 bytes waiting, as if the client took nothing."""

    def __init__(self, transport):
        self._transport = transport

    def __getattr__(self, name):
        return getattr(self._transport, name)

    def get_write_buffer_size(self):
        return 100


async def test_a_client_that_stands_at_the_same_place_of_another_answer_goes_on(make_proxy):
    proxy = await make_proxy(lane=Watched)
    proxy.origin.put("b", "k", b"body")
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    for number in range(4):
        writer.write(b"GET /b/k HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert await reader.readexactly(4) == b"body"
        (connection,) = proxy.server.connections
        if not number:
            connection.transport = Waiting(connection.transport)
        connection._check()
        assert not connection.transport.is_closing()
    connection._check()
    assert [event for event, _ in proxy.log.events].count("answer cut") == 1
    writer.close()


async def test_lists_of_objects_to_delete_share_bounded_memory(make_proxy, monkeypatch):
    """While one list of objects to delete fills the memory for such lists, another list gets 503. Uploads
    have memory of their own.
    """
    proxy = await make_proxy(trailed_budget_bytes=0)
    proxy.origin.put("b", "seed", b"seed")
    monkeypatch.setattr(proxy.handler._forwarder, "_deletes", Ledger(1 << 20, max_wait_s=0.1))
    body = b"<Delete><Object><Key>seed</Key></Object>" + b" " * 400_000 + b"</Delete>"
    digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
    head = f"POST /b?delete HTTP/1.1\r\nHost: h\r\nContent-MD5: {digest}\r\nContent-Length: {len(body)}\r\n"
    data = head.encode() + b"Connection: close\r\n\r\n" + body
    _, slow = await asyncio.open_connection("127.0.0.1", proxy.port)
    slow.write(data[:-1])
    async with asyncio.timeout(5):
        while not proxy.handler.held_bytes:
            await asyncio.sleep(0.01)
    answer = await proxy.raw(data)
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"<Code>SlowDown</Code>" in answer
    assert "seed" in proxy.origin.buckets["b"]
    slow.transport.abort()
    while proxy.handler.held_bytes:
        await asyncio.sleep(0.01)
    assert (await proxy.raw(data)).startswith(b"HTTP/1.1 200")
    assert "seed" not in proxy.origin.buckets["b"]
    assert proxy.handler.held_bytes == 0
