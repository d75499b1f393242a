"""Slow clients of a worker hold few bytes of long hits. All of them get right answers."""

import asyncio
import os
import socket
import ssl

import pytest

from shadeproxy.api.s3 import COMPILED
from shadeproxy.api.s3.held_answers import COUNTED_BYTES, HeldAnswers
from shadeproxy.api.s3.response import WRITE_BYTES
from shadeproxy.engine.index.columns import Share
from tests.support.certificate import write_certificate
from tests.support.s3.answer import until
from tests.support.s3.beside import Beside, serving
from tests.support.s3.lane import pattern, request

SIZE = 3 << 20
MOST = 2 * SIZE + 1000
COUNT = 8


def test_long_answers_wait_for_no_more_than_is_left():
    held = HeldAnswers(10 << 20)
    assert held.longest[0] == 10 << 20
    held.change(4 << 20)
    assert held.longest[0] == 6 << 20
    held.change(8 << 20)
    assert held.longest[0] == WRITE_BYTES, "short hits are always answered"
    held.change(-(12 << 20))
    assert held.longest[0] == 10 << 20


@pytest.fixture
async def worker(make_proxy, tmpfs, monkeypatch):
    """Return the reads of a worker that has "/b/long" in RAM, as one page, and what it counts."""
    share = Share.create()
    proxy = await make_proxy(page_size=4 << 20, ram=tmpfs / "ram", share=share)
    proxy.origin.put("b", "long", pattern(SIZE))
    await proxy.get("/b/long")
    await proxy.engine._filling.flights.drain()
    held = HeldAnswers(MOST)
    beside = Beside(proxy, share, longest=held.longest)
    beside.held = held
    yield beside
    os.close(share.descriptor)


async def slow_client(port, tls):
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    name = None if tls is None else "127.0.0.1"
    return await asyncio.open_connection(sock=sock, ssl=tls, server_hostname=name, limit=4096)


@pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "compiled"])
async def test_slow_clients_hold_few_pages_and_get_all_bytes(worker, compiled, with_tls, tmp_path):
    if compiled and not COMPILED:
        pytest.skip("the lane was not compiled when it was installed")
    context = trusted = None
    if with_tls:
        certificate = write_certificate(tmp_path)
        context, trusted = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), certificate.client_context()
        context.load_cert_chain(certificate.cert, certificate.key)
    held, most = worker.held, 0
    options = {"compiled": compiled, "send_bytes": 1 << 16, "tls": context, "held": held}
    async with serving(worker, **options) as port:
        clients = [await slow_client(port, trusted) for _ in range(COUNT)]
        for _ in range(2):
            for _, writer in clients:
                writer.write(request("/b/long", close=False))
            await until(lambda: held.longest[0] < SIZE)
            for reader, _ in clients:
                head = await reader.readuntil(b"\r\n\r\n")
                assert b"\r\nx-shade-cache: ram\r\n" in head
                most = max(most, held._held_bytes)
                assert await reader.readexactly(SIZE) == pattern(SIZE)
            await until(lambda: held._held_bytes == 0)
        # A client that goes away holds nothing any more.
        clients[0][1].write(request("/b/long", close=False))
        await until(lambda: held._held_bytes)
        for _, writer in clients:
            writer.transport.abort()
        await until(lambda: held._held_bytes == 0)
    # Beside the bodies, there are the heads of answers. Over TLS, what waits of an answer is known only in a
    # later turn of the loop. So one answer more may begin meanwhile, if the machine has nothing else to do.
    assert COUNTED_BYTES < most <= MOST + 1000 + (SIZE if with_tls else 0)
    assert held.longest[0] == MOST
