"""For whom a request counts where clients take turns: a proven name, else the address."""

import asyncio

import pytest

from shadeproxy.core.tracing import CLIENT
from shadeproxy.origin.memory import MemoryOrigin

from .conftest import ACCESS


class Noting(MemoryOrigin):
    """Keeps for whom it was asked."""

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


async def test_a_name_that_nobody_proved_counts_for_nothing(proxy):
    unknown = proxy.boto(access="somebody-else")
    await asyncio.to_thread(read, unknown, "one")
    await proxy.get("/b/two")
    await proxy.get("/b?versioning")
    assert proxy.origin.clients == ["127.0.0.1"] * 3


async def test_who_was_asked_for_does_not_stay_on_the_connection(proxy):
    """Two requests of one connection: the second is nobody's just because the first was somebody's."""
    await asyncio.to_thread(read, proxy.boto(), "one")
    lines = (
        "GET /b/two HTTP/1.1\r\nHost: h\r\n\r\nGET /b/three HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    )
    assert (await proxy.raw(lines.encode())).count(b"200 OK") == 2
    assert proxy.origin.clients == [ACCESS, "127.0.0.1", "127.0.0.1"]
