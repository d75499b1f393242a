"""Connections are counted from their accept on, so peers that make no handshake take no more descriptors than
clients. They are cut off in time.
"""

import asyncio
import socket
import ssl

import pytest

from shadeproxy.api.s3 import S3Server, handshake
from shadeproxy.api.s3.connection_limit import ConnectionLimiter
from shadeproxy.core.clock import SystemClock
from shadeproxy.telemetry.requests import RequestCounts
from tests.support.certificate import write_certificate
from tests.support.s3.answer import split, until

GET = b"GET /b/seed HTTP/1.1\r\nHost: h\r\n\r\n"
MOST = 4


class Listening:
    """A listener with TLS that allows ``MOST`` connections."""

    def __init__(self, proxy, certificate):
        self.counts = RequestCounts()
        self.limiter = ConnectionLimiter(MOST, clock=SystemClock(), counts=self.counts)
        self.server = S3Server(proxy.handler, proxy.lane, limiter=self.limiter)
        self.certificate = certificate
        self.at = ("127.0.0.1", 0)

    async def open(self):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate.cert, self.certificate.key)
        self.at = await self.server.listen("127.0.0.1", 0, context)

    async def client(self):
        return await asyncio.open_connection(*self.at, ssl=self.certificate.client_context())

    async def silent(self, count):
        """Return ``count`` sockets that connect and send nothing, when all are accepted."""
        loop, made = asyncio.get_running_loop(), []
        for _ in range(count):
            sock = socket.socket()
            sock.setblocking(False)
            await loop.sock_connect(sock, self.at)
            made.append(sock)
        return made


@pytest.fixture
async def listening(proxy, tmp_path):
    made = Listening(proxy, write_certificate(tmp_path))
    await made.open()
    yield made
    await made.server.shutdown(1.0)
    await until(lambda: made.limiter.inside == 0)


async def ask(reader, writer):
    writer.write(GET)
    status, fields, _ = split(await reader.readuntil(b"\r\n\r\n"))
    return status, await reader.readexactly(int(fields["content-length"]))


async def test_silent_peers_take_places_and_clients_that_came_before_go_on(listening):
    client = await listening.client()
    assert await ask(*client) == (200, b"seed")
    silent = await listening.silent(MOST - 1)
    await until(lambda: listening.limiter.inside == MOST)
    refused = await listening.client()
    assert (await ask(*refused))[0] == 503
    assert (listening.limiter.inside, listening.limiter.refused) == (MOST, 1)
    assert await ask(*client) == (200, b"seed")
    silent.pop().close()
    await until(lambda: listening.limiter.inside == MOST - 1)
    again = await listening.client()
    assert await ask(*again) == (200, b"seed")
    for _, writer in (client, refused, again):
        writer.close()
    for sock in silent:
        sock.close()


async def test_a_flood_of_silent_peers_takes_few_descriptors(listening):
    """Above the limit, a few peers may make a handshake to get their refusal. The others are closed."""
    loop = asyncio.get_running_loop()
    flood = await listening.silent(MOST + 80)
    await until(lambda: listening.limiter.refused >= 48)
    assert (listening.limiter.inside, listening.limiter.refused) == (MOST, 48)
    for sock in flood[-10:]:
        assert await loop.sock_recv(sock, 1) == b""
    for sock in flood:
        sock.close()
    await until(lambda: listening.limiter.inside == 0)
    client = await listening.client()
    assert await ask(*client) == (200, b"seed")
    client[1].close()


async def test_a_silent_peer_is_cut_off_after_a_time(listening, monkeypatch):
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 0.1)
    silent = await listening.silent(MOST)
    await until(lambda: listening.limiter.inside == MOST)
    await until(lambda: listening.limiter.inside == 0)
    for sock in silent:
        sock.close()


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello"])
async def test_a_handshake_that_fails_gives_its_place_back(listening, data):
    (sock,) = await listening.silent(1)
    await until(lambda: listening.limiter.inside == 1)
    await asyncio.get_running_loop().sock_sendall(sock, data)
    await until(lambda: listening.limiter.inside == 0)
    sock.close()


async def test_a_handshake_that_cannot_begin_gives_its_place_back(listening):
    (handshakes,) = listening.server._handshakes
    handshakes.tls = None
    (sock,) = await listening.silent(1)
    assert await asyncio.get_running_loop().sock_recv(sock, 1) == b""
    await until(lambda: listening.limiter.inside == 0)
    assert not handshakes.under_way
    sock.close()


async def test_a_stop_cuts_handshakes_off(listening):
    silent = await listening.silent(2)
    await until(lambda: listening.limiter.inside == 2)
    async with asyncio.timeout(5):
        await listening.server.shutdown(60.0)
    await until(lambda: listening.limiter.inside == 0)
    for sock in silent:
        assert await asyncio.get_running_loop().sock_recv(sock, 1) == b""
        sock.close()
