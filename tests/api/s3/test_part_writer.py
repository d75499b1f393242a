"""Over TLS a long answer takes little memory, and its client gets all of it, however slow it is."""

import asyncio
import socket
import ssl

import pytest

from shadeproxy.api.s3 import handshake, part_writer
from shadeproxy.api.s3.part_writer import CLOSE_S
from shadeproxy.api.s3.relay import WorkerProtocol
from shadeproxy.api.s3.response import KEEPALIVE_S, WRITE_BYTES
from tests.support.certificate import write_certificate
from tests.support.s3.lane import Watched, pattern

SIZE = 3 << 20


@pytest.fixture
async def tls_proxy(make_proxy, compiled, tmpfs, tmp_path):
    """Return a proxy that has the object "k" in RAM, as one page, and a listener with TLS. ``client``:
    connects a client to this listener. The kernel holds few bytes for this client. ``client_socket``: returns
    the blocking socket of another client.
    """
    proxy = await make_proxy(lane=Watched, page_size=4 << 20, ram=tmpfs / "ram", compiled=compiled)
    proxy.origin.put("b", "k", pattern(SIZE))
    await proxy.get("/b/k")
    await proxy.engine._filling.flights.drain()
    assert b"\r\nx-shade-cache: ram\r\n" in await proxy.get("/b/k")
    certificate = write_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.cert, certificate.key)
    bound = socket.create_server(("127.0.0.1", 0))
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)  # The accepted sockets inherit it.
    await proxy.server.accept(bound, context)
    at = bound.getsockname()

    async def client():
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, at)
        return await asyncio.open_connection(
            sock=sock, ssl=certificate.client_context(), server_hostname="127.0.0.1", limit=4096
        )

    async def client_socket():
        plain = await asyncio.to_thread(socket.create_connection, at)
        context = certificate.client_context()
        return await asyncio.to_thread(context.wrap_socket, plain, server_hostname="127.0.0.1")

    proxy.client, proxy.client_socket = client, client_socket
    return proxy


def get(*fields):
    return "\r\n".join(["GET /b/k HTTP/1.1", "Host: h", *fields, "", ""]).encode()


async def body_of(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    return await reader.readexactly(SIZE)


@pytest.mark.parametrize("fields", [(), ("Connection: close",)], ids=["kept", "closed"])
async def test_tls_encrypts_a_long_hit_as_its_client_takes_it(tls_proxy, fields):
    reader, writer = await tls_proxy.client()
    for _ in range(1 if fields else 3):
        writer.write(get(*fields))
        await asyncio.sleep(0.2)
        (connection,) = tls_proxy.server.connections
        # Encrypted bytes that were given to TCP are not counted here.
        assert connection.transport.get_write_buffer_size() > SIZE - 4 * WRITE_BYTES
        async with asyncio.timeout(30):
            assert await body_of(reader) == pattern(SIZE)
    if fields:
        assert await reader.read() == b""
    writer.close()


async def test_a_request_behind_a_long_hit_waits_until_its_client_took_it(tls_proxy):
    reader, writer = await tls_proxy.client()
    writer.write(get() * 3)
    await asyncio.sleep(0.2)
    async with asyncio.timeout(30):
        for _ in range(3):
            assert await body_of(reader) == pattern(SIZE)
    writer.close()


async def test_a_shutdown_waits_for_a_tls_client_that_has_not_taken_its_answer(tls_proxy):
    reader, writer = await tls_proxy.client()
    idle = await tls_proxy.client()
    writer.write(get())
    await asyncio.sleep(0.2)
    ending = asyncio.create_task(tls_proxy.server.shutdown(30.0))
    await asyncio.wait({ending}, timeout=0.3)
    assert not ending.done()
    async with asyncio.timeout(30):
        assert await body_of(reader) == pattern(SIZE)
        assert await ending == 0
    for one in (writer, idle[1]):
        one.transport.abort()


async def test_a_tls_client_has_as_long_for_its_last_bytes_as_for_others(tls_proxy, monkeypatch):
    """The time limit of the event loop would be half a minute."""
    assert CLOSE_S >= 2 * KEEPALIVE_S
    given = []
    loop = asyncio.get_running_loop()

    class Loop:
        def start_tls(self, *args, **options):
            given.append(options["ssl_shutdown_timeout"])
            return loop.start_tls(*args, **options)

        def __getattr__(self, name):
            return getattr(loop, name)

    monkeypatch.setattr(handshake, "CLOSE_S", 0.3)
    monkeypatch.setattr(asyncio, "get_running_loop", Loop)
    _, writer = await tls_proxy.client()
    assert given == [0.3]
    writer.transport.abort()


class Client:
    """A TLS transport of a client that has not taken all bytes of its answer while ``waiting``."""

    def __init__(self):
        self.waiting, self.closed = 1, False

    def get_extra_info(self, name, default=None):
        return object() if name == "sslcontext" else default

    def get_write_buffer_size(self):
        return self.waiting

    def set_write_buffer_limits(self, high):
        del high

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True

    get_protocol = pause_reading = resume_reading = can_write_eof = None


async def test_a_worker_stops_only_when_its_tls_clients_have_all_bytes(monkeypatch):
    monkeypatch.setattr("shadeproxy.api.s3.relay._GOODBYE_S", 0.02)
    others, client = set(), Client()
    connection = WorkerProtocol(None, None, others, keepalive_s=75.0)
    connection.connection_made(client)
    connection.end()
    await asyncio.sleep(0.1)
    assert (client.closed, others) == (True, {connection})
    client.waiting = 0
    async with asyncio.timeout(5):
        while others:
            await asyncio.sleep(0.01)
    connection.connection_lost(None)


async def test_a_client_that_does_not_answer_the_end_of_tls_is_let_go(tls_proxy, monkeypatch):
    """The client has the whole answer. It keeps the connection open, and reads no more."""
    monkeypatch.setattr(part_writer, "GOODBYE_S", 0.2)
    client = await tls_proxy.client_socket()

    def ask():
        client.sendall(b"GET /b/none HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        return client.recv(4096)

    assert (await asyncio.to_thread(ask)).startswith(b"HTTP/1.1 404")
    async with asyncio.timeout(5):
        while tls_proxy.server.connections:
            await asyncio.sleep(0.02)
    client.close()
