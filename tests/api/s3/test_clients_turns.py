"""The client to which the fair queue charges a request: its proven name, or else its address."""

import asyncio
import secrets
import socket
from contextlib import asynccontextmanager
from functools import partial

import pytest

from shadeproxy.api.s3.head import HeadReader
from shadeproxy.api.s3.relay import WorkerProtocol
from shadeproxy.api.s3.relay_connection import dial
from shadeproxy.core.tracing import CLIENT
from shadeproxy.origin.memory import MemoryOrigin
from tests.support.s3.clients import ACCESS
from tests.support.s3.posting import form, post, presigned


class Noting(MemoryOrigin):
    """An origin that records the client to which each request is charged."""

    def __init__(self) -> None:
        super().__init__()
        self.clients: list[str] = []

    def open(self, ref, **options):
        self.clients.append(CLIENT.get())
        return super().open(ref, **options)

    def forward(self, request):
        self.clients.append(CLIENT.get())
        return super().forward(request)


@pytest.fixture
async def proxy(make_proxy):
    proxy = await make_proxy(origin=Noting())
    for key in ("one", "two", "three"):
        proxy.origin.put("b", key, key.encode())
    return proxy


def read(s3, key):
    return s3.get_object(Bucket="b", Key=key)["Body"].read()


async def test_a_signed_read_and_a_signed_write_count_for_their_key(proxy):
    s3 = proxy.boto()
    await asyncio.to_thread(read, s3, "one")
    await asyncio.to_thread(s3.put_object, Bucket="b", Key="new", Body=b"body")
    assert proxy.origin.clients == [ACCESS, ACCESS]


async def test_a_form_counts_for_who_signed_its_policy(proxy):
    fields = await asyncio.to_thread(presigned)
    assert (await post(proxy, form(fields))).startswith(b"HTTP/1.1 204")
    assert (await post(proxy, form({"key": "unsigned"}))).startswith(b"HTTP/1.1 403")
    assert proxy.origin.clients == [ACCESS]


async def test_a_name_that_nobody_proved_counts_for_nothing(proxy):
    unknown = proxy.boto(access="somebody-else")
    await asyncio.to_thread(read, unknown, "one")
    await proxy.get("/b/two")
    await proxy.get("/b?versioning")
    assert proxy.origin.clients == ["127.0.0.1"] * 3


async def test_who_was_asked_for_does_not_stay_on_the_connection(proxy):
    """Unsigned requests are not charged to the signer of an earlier request on the same connection."""
    await asyncio.to_thread(read, proxy.boto(), "one")
    lines = (
        "GET /b/two HTTP/1.1\r\nHost: h\r\n\r\nGET /b/three HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    )
    assert (await proxy.raw(lines.encode())).count(b"200 OK") == 2
    assert proxy.origin.clients == [ACCESS, "127.0.0.1", "127.0.0.1"]


class Misses:
    """A fast lane that has no hits."""

    parse = HeadReader().read

    def answer(self, _raw, _sender):
        return None


@asynccontextmanager
async def relaying(proxy):
    """Yield the port of a worker that relays everything to ``proxy``."""
    name = f"\0test-{secrets.token_hex(8)}"
    link = socket.socket(socket.AF_UNIX)
    link.bind(name)
    await proxy.server.accept(link)
    open_ones = set()
    server = await asyncio.get_running_loop().create_server(
        lambda: WorkerProtocol(Misses(), partial(dial, name), open_ones, keepalive_s=60.0), "127.0.0.1", 0
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for one in list(open_ones):
            one.cut()


@pytest.mark.parametrize("lines", ["GET /b/{} HTTP/1.1", "PUT /b/{} HTTP/1.1\r\nContent-Length: 0"])
async def test_what_a_reader_process_passes_on_counts_for_the_address_of_its_client(proxy, lines):
    proxy.origin.put("b", "four", b"four")
    keys = {"127.0.0.1": ("one", "two"), "127.0.0.2": ("three", "four")}
    async with relaying(proxy) as port:
        for address, asked in keys.items():
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
            for key in asked:
                writer.write(f"{lines.format(key)}\r\nHost: h\r\n\r\n".encode())
                assert b" 200 OK\r\n" in await reader.readuntil(b"\r\n\r\n")
                if lines.startswith("GET"):
                    await reader.readexactly(len(key))
            writer.close()
            await writer.wait_closed()
    assert proxy.origin.clients == ["127.0.0.1"] * 2 + ["127.0.0.2"] * 2
