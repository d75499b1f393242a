"""The subjects of the conformance suite: every kind of origin, behind the same few calls."""

import asyncio
import os
import socket
import ssl
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest
import uvloop
from moto.server import ThreadedMotoServer

from shadeproxy.core.sigv4 import UNSIGNED_PAYLOAD, Credentials
from shadeproxy.core.types import SHARED, Headers, ObjectMeta, ObjectRef, Span
from shadeproxy.origin.base import ForwardRequest, Origin
from shadeproxy.origin.credentials import StaticCredentials
from shadeproxy.origin.delayed import DelayedOrigin
from shadeproxy.origin.file import FileOrigin
from shadeproxy.origin.limit import LimitedOrigin
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy.origin.otel_origin import CountedAttempts, OtelOrigin
from shadeproxy.origin.pool import Timeouts
from shadeproxy.origin.retry import RetryingOrigin
from shadeproxy.origin.s3 import S3Origin
from shadeproxy.origin.throttled import ThrottledOrigin
from shadeproxy.origin.verified import VerifiedOrigin
from shadeproxy_bench.reliability.kit.faulty_origin import FaultyOrigin
from tests.support.certificate import write_certificate
from tests.support.clock import ManualClock
from tests.support.otel import PlainTracer
from tests.support.rgw import Rgw, run_rgw


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the event loops for a test: the loop of asyncio, and for code that uses transports itself also
    the product's loop.
    """
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if item.path.name in {
        "test_page_gets.py",
        "test_s3transport.py",
        "test_upload_connection.py",
        "test_upload_ends.py",
    }:
        loops["uvloop"] = uvloop.new_event_loop
    return loops


@dataclass
class Answer:
    status: int
    headers: Headers
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    @property
    def text(self) -> str:
        return self.body.decode()


@dataclass
class Subject:
    """An origin under test, with the few calls that most tests need."""

    origin: Origin
    kind: str
    bucket: str = field(default_factory=lambda: f"test-{uuid.uuid4().hex[:12]}")

    def ref(self, key: str) -> ObjectRef:
        return ObjectRef(self.bucket, key)

    async def call(
        self,
        method: str,
        key: str = "",
        query: str = "",
        *,
        headers: Headers = (),
        body: bytes | None = None,
        payload_hash: str = UNSIGNED_PAYLOAD,
        bucket: str | None = None,
    ) -> Answer:
        bucket = self.bucket if bucket is None else bucket
        raw_path = f"/{bucket}" + (f"/{quote(key, safe='/-_.~')}" if key else "")
        request = ForwardRequest(
            method,
            ObjectRef(bucket, key),
            raw_path,
            query,
            headers,
            None if body is None else _pieces(body),
            None if body is None else len(body),
            payload_hash,
        )
        async with self.origin.forward(request) as response:
            received = b"".join([chunk async for chunk in response.chunks])
            return Answer(response.status, response.headers, received)

    async def put(self, key: str, body: bytes, headers: Headers = ()) -> str:
        """Store an object, and return its ETag."""
        answer = await self.call("PUT", key, headers=headers, body=body)
        assert answer.status == 200, answer
        etag = answer.header("ETag")
        assert etag is not None
        return etag

    async def read(self, key: str, span: Span | None = None) -> tuple[ObjectMeta, Span, bytes]:
        async with self.origin.open(self.ref(key), span=span) as reading:
            return reading.meta, reading.span, b"".join([chunk async for chunk in reading.chunks])


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    half = len(body) // 2
    for piece in (body[:half], body[half:]):
        if piece:
            yield piece


@pytest.fixture(scope="session")
def rgw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rgw]:
    """Run a real S3 server for the parameter "rgw"."""
    yield from run_rgw(tmp_path_factory.mktemp("rgw"))


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def s3_origin(endpoint: str, key: tuple[str, str] = ("testing", "testing"), **options: object) -> S3Origin:
    credentials = {SHARED: StaticCredentials(Credentials(*key))}
    return S3Origin(endpoint, credentials=credentials, **options)


@pytest.fixture
def new_s3_origin() -> Callable[..., S3Origin]:
    return s3_origin


KINDS = [
    "memory",
    "file",
    "moto",
    "limited",
    "retrying",
    "verified",
    "delayed",
    "faulty",
    "throttled",
    "spanned",
    pytest.param("rgw", marks=pytest.mark.rgw),
]


@pytest.fixture(params=KINDS)
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    """Yield an origin of each kind, with an empty bucket."""
    made: dict[str, Callable[[], Origin]] = {
        "memory": MemoryOrigin,
        "file": lambda: FileOrigin(tmp_path, threads=4),
        "moto": lambda: s3_origin(request.getfixturevalue("moto_endpoint")),
        "limited": lambda: LimitedOrigin(MemoryOrigin(), max_open=2),
        "retrying": lambda: RetryingOrigin(MemoryOrigin(), clock=ManualClock()),
        "verified": lambda: VerifiedOrigin(MemoryOrigin()),
        "delayed": lambda: DelayedOrigin(MemoryOrigin(), delay_s=0.02, clock=ManualClock()),
        "faulty": lambda: FaultyOrigin(MemoryOrigin(), delay_s=0.02, clock=ManualClock()),
        "throttled": lambda: ThrottledOrigin(MemoryOrigin(), bytes_per_s=1e6, clock=ManualClock()),
        "spanned": lambda: OtelOrigin(CountedAttempts(MemoryOrigin()), PlainTracer(), ManualClock()),
        "rgw": lambda: _rgw_origin(request),
    }
    subject = Subject(made[request.param](), request.param)
    created = await subject.call("PUT")
    assert created.status == 200, created
    yield subject
    await subject.origin.aclose()


def _rgw_origin(request: pytest.FixtureRequest) -> S3Origin:
    server = request.getfixturevalue("rgw")
    return s3_origin(server.endpoint, server.main)


@pytest.fixture
def has_attributes(tmp_path: Path) -> bool:
    """Return whether files in ``tmp_path`` can have extended attributes. FileOrigin stores metadata
    in them.
    """
    probe = tmp_path / ".probe"
    probe.touch()
    try:
        os.setxattr(probe, "user.probe", b"")
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return write_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["plain", "tls"])
def forwarding(request, certificate, new_s3_origin):
    """Return a context that runs a server. It calls ``serve`` for each connection, with the number of earlier
    ones, and yields an origin and the list of the server's connections.
    """
    context, options = None, {}
    if request.param == "tls":
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate.cert, certificate.key)
        options = {"ca_file": str(certificate.authority)}

    @asynccontextmanager
    async def forwarding(serve, *, read_s=0.8, receive_bytes=None):
        """``receive_bytes``: the size of the buffer in which the server's kernel receives."""
        tasks = []

        async def began(reader, writer):
            tasks.append(asyncio.current_task())
            try:
                with suppress(asyncio.IncompleteReadError, ConnectionError):
                    await serve(reader, writer, len(tasks) - 1)
            finally:
                writer.transport.abort()

        listening = socket.create_server(("127.0.0.1", 0))
        if receive_bytes is not None:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        server = await asyncio.start_server(began, sock=listening, ssl=context)
        url = f"http{'s' if context else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        origin = new_s3_origin(url, timeouts=Timeouts(read_s=read_s), **options)
        try:
            async with aclosing(origin):
                yield origin, tasks
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    return forwarding
