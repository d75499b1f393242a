"""A worker answers a sequence of requests on one connection in order, and as the coordinator would."""

import asyncio
import re
from itertools import count

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shadeproxy.api.s3.relay import WorkerProtocol
from tests.support.s3.forwarding import server_before

BIG = bytes(range(256)) * 1200  # Many pages, and more than a socket holds.
PATIENCE_S = 60.0

UPLOAD = b"u" * 70_000
DELETED = b"<Delete><Object><Key>none</Key></Object></Delete>"

REQUESTS = {
    "hit": ("GET", "/{b}/seed", [], b""),
    "big": ("GET", "/{b}/big", [], b""),
    "range": ("GET", "/{b}/big", ["Range: bytes=4000-150000"], b""),
    "beyond": ("GET", "/{b}/seed", ["Range: bytes=900-"], b""),
    "missing": ("GET", "/{b}/nothing", [], b""),
    "unchanged": ("GET", "/{b}/seed", ["If-None-Match: *"], b""),
    "head": ("HEAD", "/{b}/big", [], b""),
    "head behind an empty line": ("\r\nHEAD", "/{b}/big", [], b""),
    "big behind an empty line": ("\r\nGET", "/{b}/big", [], b""),
    "head of nothing": ("HEAD", "/{b}/nothing", [], b""),
    "list": ("GET", "/{b}?list-type=2", [], b""),
    "with a body": ("GET", "/{b}/seed", ["Content-Length: 5"], b"12345"),
    "upload": ("PUT", "/{b}/up", [f"Content-Length: {len(UPLOAD)}"], UPLOAD),
    "empty upload": ("PUT", "/{b}/up", ["Content-Length: 0"], b""),
    "upload that waits": ("PUT", "/{b}/up", ["Content-Length: 3", "Expect: 100-continue"], b"abc"),
    "uploaded": ("GET", "/{b}/up", [], b""),
    "delete": ("DELETE", "/{b}/up", [], b""),
    "delete many": ("POST", "/{b}?delete", [f"Content-Length: {len(DELETED)}"], DELETED),
    "last, not allowed": ("POST", "/{b}/seed", ["Content-Length: 2"], b"no"),
    "preflight": ("OPTIONS", "/{b}/seed", ["Origin: http://a", "Access-Control-Request-Method: GET"], b""),
    "last": ("GET", "/{b}/big", ["Connection: close"], b""),
    "last upload": ("PUT", "/{b}/up", ["Content-Length: 3", "Connection: close"], b"abc"),
}
NAMES = sorted(REQUESTS)


class OnlyHits:
    """The fast lane of a worker that answers hits only, so that the coordinator answers all other
    requests.
    """

    def __init__(self, lane):
        self._lane, self.parse = lane, lane.parse

    def answer(self, raw, sender):
        outcome = self._lane.answer(raw, sender)
        return outcome if isinstance(outcome, bool) else None


@pytest.fixture(params=[False, True], ids=["relays", "forwards"])
async def scene(make_proxy, request):
    """Yield a proxy, and the port of its worker, once for each kind of worker.

    The worker answers hits. It relays all other requests, or it forwards those that a worker may forward.
    """
    proxy = await make_proxy()
    serves, forwards = server_before(proxy) if request.param else (None, None)
    loop, connections = asyncio.get_running_loop(), set()

    async def connect(protocol, _peer):
        await loop.create_connection(lambda: protocol, "127.0.0.1", proxy.port)

    server = await loop.create_server(
        lambda: WorkerProtocol(
            OnlyHits(proxy.lane), connect, connections, keepalive_s=3600.0, forwards=serves
        ),
        "127.0.0.1",
        0,
    )
    yield proxy, server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    for connection in list(connections):
        connection.cut()
    await asyncio.sleep(0.01)
    assert forwards is None or len(forwards) == 0


async def answer_to(method, reader):
    """Return status and body of the next answer, without those parts that differ from answer to answer."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ")[1])
        if status >= 200:
            break
    body = b""
    if not method.endswith("HEAD") and status not in {204, 304}:
        length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
        if length is not None:
            body = await reader.readexactly(int(length[1]))
        else:
            assert b"chunked" in head.lower()
            while size := int(await reader.readline(), 16):
                body += await reader.readexactly(size)
                assert await reader.readline() == b"\r\n"
            assert await reader.readline() == b"\r\n"
    body = re.sub(rb"<(RequestId|HostId|LastModified|Resource|Name|BucketName)>[^<]*<", b"<", body)
    return status, body


async def converse(port, bucket, names, *, pipelined, step):
    """Send the requests ``names``. Return their answers, as far as the connection brings them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    requests = [REQUESTS[name] for name in names]
    sent = [
        "\r\n".join([f"{method} {target.format(b=bucket)} HTTP/1.1", "Host: h", *fields, "", ""]).encode()
        + body
        for method, target, fields, body in requests
    ]

    async def send(data):
        for start in range(0, len(data), step):
            writer.write(data[start : start + step])
            await writer.drain()
            await asyncio.sleep(0)

    answers = []
    sending = asyncio.create_task(send(b"".join(sent) if pipelined else b""))
    try:
        async with asyncio.timeout(PATIENCE_S):
            for (method, *_), data in zip(requests, sent, strict=True):
                if not pipelined:
                    await send(data)
                answers.append(await answer_to(method, reader))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        answers.append(type(error).__name__ if getattr(error, "partial", b"") else "closed")
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.close()
    return answers


@given(
    names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=12),
    pipelined=st.booleans(),
    step=st.sampled_from([1 << 20, 65_536, 50]),
)
@example(names=["upload that waits", *["big"] * 6, "head", "hit"], pipelined=False, step=1 << 20)
@example(names=["big", "upload", "big", "list", "hit", "delete", "big"], pipelined=True, step=65_536)
@example(names=["head behind an empty line", "hit"], pipelined=True, step=1 << 20)
@example(names=["delete many", "unchanged", "big", "last"], pipelined=True, step=50)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
async def test_a_worker_answers_every_sequence_as_the_coordinator_does(scene, names, pipelined, step):
    proxy, worker_port = scene
    # After a request that ends the connection, timing decides which requests are still answered. So requests
    # behind it are not compared.
    ends = next((at for at, name in enumerate(names) if name.startswith("last")), len(names) - 1)
    names = names[: ends + 1]
    both = []
    for port in (proxy.port, worker_port):
        bucket = f"b{next(_buckets):06}"
        proxy.origin.put(bucket, "seed", b"seed")
        proxy.origin.put(bucket, "big", BIG)
        both.append(await converse(port, bucket, names, pipelined=pipelined, step=step))
    assert both[0] == both[1]
    assert len(both[1]) == len(names)


_buckets = count()


async def test_a_worker_ends_the_connection_of_an_http_1_0_client_after_its_last_answer(scene):
    proxy, port = scene
    proxy.origin.put("b", "big", BIG)
    get = b"GET /b/big HTTP/1.0\r\nHost: h\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(get + b"Connection: keep-alive\r\n\r\n" + get + b"\r\n")
    async with asyncio.timeout(PATIENCE_S):
        received = await reader.read()
    writer.close()
    assert received.count(BIG) == 2


@pytest.mark.parametrize("refused", [b"Host: other", b"Content-Length: +1"])
async def test_a_client_that_sends_on_behind_a_refused_head_gets_the_refusal_of_a_worker(scene, refused):
    _, port = scene
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"PUT /b/k HTTP/1.1\r\nHost: h\r\n" + refused + b"\r\n\r\n" + bytes(3_000_000))
    async with asyncio.timeout(PATIENCE_S):
        received = await reader.read()
    writer.close()
    assert received.startswith(b"HTTP/1.1 400 ")
    assert received.endswith(b"</Error>")
