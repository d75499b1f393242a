"""A client goes away while the proxy is at its N-th await. N counts up from 0 until the proxy has no such
await.

The client's connection is aborted and the task that serves it is cancelled, as happens in real life.
Afterwards nothing may be under way. The origin must have either the old object or the whole new one. The
cache must agree with the origin, and the next requests must be served.
"""

import asyncio
import hashlib
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from shadeproxy.api.s3 import S3Handler
from shadeproxy.core.errors import OriginAnswer
from shadeproxy.core.sigv4 import Credentials
from shadeproxy.core.types import SHARED, ObjectRef
from shadeproxy.origin.credentials import StaticCredentials
from shadeproxy.origin.file import FileOrigin
from shadeproxy.origin.s3 import S3Origin
from shadeproxy_bench.reliability.fuzz.forms import aws_chunked
from shadeproxy_bench.reliability.fuzz.http import Request, transfer_chunks
from shadeproxy_bench.reliability.fuzz.signing import seed_of, sign_header
from shadeproxy_bench.reliability.fuzz.target import FixedClock
from tests.support.s3.clients import ACCESS, SECRET
from tests.support.s3.cutting import Cut, Hesitant, Watched
from tests.support.s3.posting import form, presigned

OLD = bytes(range(256)) * 50  # More than three pages.
NEW = b"new" * 5000
KEYS = Credentials(ACCESS, SECRET)
MOST_AWAITS = 300


@dataclass
class Scene:
    """The proxy under test, and its origin.

    ``truth``: the origin itself, without wrappers or a listener.
    ``inner``: the listener in front of the origin, if the proxy reaches it by HTTP.
    ``drafts``: the directory of unfinished objects, if the origin has one.
    ``threads``: the threads that do the origin's file calls, if there are any.
    """

    proxy: object
    truth: object
    cut: Cut
    inner: object = None
    drafts: Path | None = None
    threads: "Watched | None" = None

    async def send(self, wire):
        """Send ``wire`` in pieces. Return all bytes of the answer that came."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.proxy.port)
        received = b""
        with suppress(ConnectionError):
            for start in range(0, len(wire), 4000):
                if not writer.transport.is_closing():
                    writer.write(wire[start : start + 4000])
                # Wait until the proxy has taken the piece, and waits for the next one.
                for _ in range(20):
                    await asyncio.sleep(0)
            while piece := await reader.read(65536):
                received += piece
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        return received

    async def current(self, key):
        """Return the body of the object at the origin, or None if the object does not exist."""
        try:
            async with self.truth.open(ObjectRef("b", key)) as reading:
                return b"".join([chunk async for chunk in reading.chunks])
        except OriginAnswer:
            return None

    async def store(self, key, body):
        """Put an object at the origin without the proxy, and without any await that is counted."""
        async with self.truth.store.draft(ObjectRef("b", key)) as draft:
            await draft.write(body)
            await draft.publish(())

    async def settled(self):
        """Wait until the proxy and the origin serve no request."""
        async with asyncio.timeout(60):
            while not self._is_settled():
                await asyncio.sleep(0.001)

    def _is_settled(self):
        listeners = [self.proxy] if self.inner is None else [self.proxy, self.inner]
        serving = [
            protocol
            for one in listeners
            for protocol in one.server.connections
            if protocol._reading is not None
        ]
        engines = [one.engine for one in listeners]
        # A thread may still publish an object, although no task waits for it.
        writing = self.threads is not None and not self.threads.are_idle()
        return not (serving or writing) and not any(
            engine.readings or len(engine._filling.flights) or engine._ledger.taken_bytes
            for engine in engines
        )


@pytest.fixture(params=["memory", "file", "s3"])
async def scene(request, make_proxy, tmp_path, monkeypatch):
    clock, inner, drafts, threads = FixedClock(), None, None, None
    if request.param == "file":
        bucket = tmp_path / "buckets" / "b"
        drafts = bucket / ".shadeproxy" / "drafts"
        bucket.mkdir(parents=True)
        origin = truth = FileOrigin(tmp_path / "buckets")
        threads = origin.store._pool._threads = Watched()
    else:
        origin = truth = Hesitant(clock=clock, chunk_bytes=1000)
        truth.put("b", "seed", b"")
    if request.param == "s3":
        inner = await make_proxy(origin=truth, clock=clock)
        origin = S3Origin(
            inner.url,
            credentials={SHARED: StaticCredentials(KEYS)},
            addressing="path",
            trailing_checksums="always",
            clock=clock,
        )
    # To an origin behind HTTP, the proxy sends the checksum behind the body. For other origins it holds the
    # whole body until the checksum has come.
    proxy = await make_proxy(
        origin=origin, clock=clock, trailed_budget_bytes=0 if inner is not None else 1 << 20
    )
    cut = Cut(proxy.handler)
    serve, serve_read = S3Handler.serve, S3Handler.serve_read

    async def served(self, port, known=None, **why):
        work = serve(self, port, known, **why)
        return await (cut.serve(work, port._outlet.transport) if self is cut.handler else work)

    async def read(self, port, asked, begun=None):
        work = serve_read(self, port, asked, begun)
        return await (cut.serve(work, port._outlet.transport) if self is cut.handler else work)

    monkeypatch.setattr(S3Handler, "serve", served)
    monkeypatch.setattr(S3Handler, "serve_read", read)
    yield Scene(proxy, truth, cut, inner, drafts, threads)
    cut.at = None
    await origin.aclose()


async def at_every_await(scene, play: Callable, check: Callable, *, least: int) -> None:
    """Send the request that ``play(N)`` returns, and cut its client off at the N-th await, for each N.

    Then call ``check(N, answer)``; the answer is None if the client was cut off. The test fails if the proxy
    has fewer than ``least`` awaits.
    """
    for number in range(MOST_AWAITS):
        scene.cut.at = None
        wire = await play(number)
        ended = scene.proxy.seen.wait_for(len(scene.proxy.seen.requests) + 1)
        scene.cut.at, scene.cut.reached = number, False
        answer = await scene.send(wire)
        await asyncio.wait_for(ended, 60)
        scene.cut.at = None
        await scene.settled()
        await check(number, None if scene.cut.reached else answer)
        if not scene.cut.reached:
            assert number >= least, f"there were only {number} awaits"
            failures = [fields for event, fields in scene.proxy.log.events if event == "s3_request_failed"]
            assert failures == []
            assert scene.proxy.handler.held_bytes == 0
            return
    pytest.fail(f"more than {MOST_AWAITS} awaits")


# ---------------------------------------------------------------------- reads


READS = {
    "whole": (b"", OLD),
    "one page": (b"Range: bytes=5-9\r\n", OLD[5:10]),
    "two pages": (b"Range: bytes=4000-8999\r\n", OLD[4000:9000]),
    "checked first": (b"Cache-Control: no-cache\r\n", OLD),
}


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("form", READS)
async def test_a_read(scene, form, warm):
    field, body = READS[form]

    async def play(number):
        key = f"{form.replace(' ', '-')}{number}"
        await scene.store(key, OLD)
        if warm:
            assert (await scene.proxy.get(f"/b/{key}")).endswith(OLD)
        return b"GET /b/%b HTTP/1.1\r\nHost: h\r\nConnection: close\r\n%b\r\n" % (key.encode(), field)

    async def check(number, answer):
        if answer is not None:
            assert answer.endswith(b"\r\n\r\n" + body)
        for _ in range(2):
            assert (await scene.proxy.get(f"/b/{form.replace(' ', '-')}{number}")).endswith(b"\r\n\r\n" + OLD)

    # A cached object is answered without an await, unless the origin is asked first.
    at_once = warm and form != "checked first"
    await at_every_await(scene, play, check, least=0 if at_once else 1)


# ---------------------------------------------------------------------- writes


def plain(request):
    request.add("Content-Length", str(len(NEW)))
    request.wire = NEW


def signed(request):
    sign_header(request, KEYS, hashlib.sha256(NEW).hexdigest())
    plain(request)


def streamed(*, is_signed, trailing, framed=False):
    def build(request):
        form = "AWS4-HMAC-SHA256-PAYLOAD" if is_signed else "UNSIGNED-PAYLOAD"
        request.add("x-amz-decoded-content-length", str(len(NEW)))
        if trailing:
            request.add("x-amz-trailer", "x-amz-checksum-crc32")
        sign_header(request, KEYS, f"STREAMING-{form}{'-TRAILER' if trailing else ''}")
        pieces = [NEW[start : start + 4000] for start in range(0, len(NEW), 4000)]
        request.wire = aws_chunked(pieces, KEYS if is_signed else None, seed_of(request), trailing=trailing)
        if framed:
            request.add("Transfer-Encoding", "chunked")
            request.wire = transfer_chunks([request.wire])
        else:
            request.add("Content-Length", str(len(request.wire)))

    return build


BODIES = {
    "plain": plain,
    "signed": signed,
    "chunks signed": streamed(is_signed=True, trailing=False),
    "chunks signed with trailer": streamed(is_signed=True, trailing=True),
    "unsigned trailer, no Content-Length": streamed(is_signed=False, trailing=True, framed=True),
}


def asked(method, path):
    """Return a request after which the proxy closes the connection."""
    return Request(method, path, fields=[(b"Host", b"h"), (b"Connection", b"close")])


async def replaced(scene, build, *, least, new: bytes | None = NEW):
    """Cut the client off at every await of the request that ``build(key)`` makes. The request turns OLD into
    ``new``.
    """

    async def play(number):
        key = f"k{number}"
        await scene.store(key, OLD)
        assert (await scene.proxy.get(f"/b/{key}")).endswith(OLD)
        return (await build(key)).render()

    async def check(number, answer):
        key = f"k{number}"
        there = await scene.current(key)
        if answer is not None:
            assert re.match(rb"HTTP/1\.1 20[04]", answer), answer
            assert there == new
        assert there in {OLD, new}, "neither the old nor all of the new"
        for _ in range(2):
            seen = await scene.proxy.get(f"/b/{key}")
            if there is None:
                assert seen.startswith(b"HTTP/1.1 404")
            else:
                assert seen.endswith(b"\r\n\r\n" + there)

    await at_every_await(scene, play, check, least=least)
    await nothing_is_left(scene)


async def nothing_is_left(scene):
    """Check that the origin keeps no hidden part of an upload that ended early."""
    page = await scene.truth.store.scan("b", ".shadeproxy/", "", 1000)
    assert page.entries == ()
    if scene.drafts is not None:
        assert list(scene.drafts.iterdir()) == []


@pytest.mark.parametrize("form", BODIES)
async def test_an_upload(scene, form):
    async def build(key):
        request = asked(b"PUT", f"/b/{key}".encode())
        BODIES[form](request)
        return request

    await replaced(scene, build, least=1)


async def test_a_form_upload(scene):
    async def build(key):
        request = asked(b"POST", b"/b")
        request.wire = form(await asyncio.to_thread(presigned, key=key), NEW)
        request.add("Content-Type", "multipart/form-data; boundary=X")
        request.add("Content-Length", str(len(request.wire)))
        return request

    await replaced(scene, build, least=2)


async def test_a_copy(scene):
    await scene.store("source", NEW)

    async def build(key):
        request = asked(b"PUT", f"/b/{key}".encode())
        request.add("x-amz-copy-source", "/b/source")
        return request

    await replaced(scene, build, least=1)


async def test_a_deletion(scene):
    async def build(key):
        return asked(b"DELETE", f"/b/{key}".encode())

    await replaced(scene, build, least=1, new=None)


async def begun(scene, key):
    """Begin a multipart upload, and return its id."""
    answer = await scene.proxy.get(f"/b/{key}?uploads", method="POST")
    return re.search(rb"<UploadId>(\w+)</UploadId>", answer)[1].decode()


async def test_a_part(scene):
    upload = await begun(scene, "parts")
    etag = hashlib.md5(NEW).hexdigest()

    async def play(number):
        request = asked(b"PUT", b"/b/parts")
        request.parameter("partNumber", str(number + 1))
        request.parameter("uploadId", upload)
        BODIES["chunks signed with trailer"](request)
        return request.render()

    async def check(number, answer):
        listed = await scene.proxy.get(f"/b/parts?uploadId={upload}")
        part = re.search(rb"<PartNumber>%d</PartNumber>.*?<Size>(\d+)</Size>" % (number + 1), listed)
        assert answer is None or (answer.startswith(b"HTTP/1.1 200") and part is not None)
        assert part is None or int(part[1]) == len(NEW), "part of a part"
        if part is not None and not isinstance(scene.truth, FileOrigin):
            assert etag.encode() in part[0]

    await at_every_await(scene, play, check, least=1)
    assert (await scene.proxy.get(f"/b/parts?uploadId={upload}", method="DELETE")).startswith(b"HTTP/1.1 204")
    await nothing_is_left(scene)


async def test_a_completion(scene):
    async def build(key):
        upload = await begun(scene, key)
        parts = ""
        for number, body in ((1, NEW[:9000]), (2, NEW[9000:])):
            request = asked(b"PUT", f"/b/{key}".encode())
            request.parameter("partNumber", str(number))
            request.parameter("uploadId", upload)
            request.add("Content-Length", str(len(body)))
            request.wire = body
            answer = await scene.proxy.raw(request.render())
            etag = re.search(rb"ETag: (\S+)", answer)[1].decode()
            parts += f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
        request = asked(b"POST", f"/b/{key}".encode())
        request.parameter("uploadId", upload)
        request.wire = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        request.add("Content-Length", str(len(request.wire)))
        return request

    async def play(number):
        key = f"k{number}"
        await scene.store(key, OLD)
        assert (await scene.proxy.get(f"/b/{key}")).endswith(OLD)
        return (await build(key)).render()

    async def check(number, answer):
        there = await scene.current(f"k{number}")
        assert there in ({NEW} if answer is not None else {OLD, NEW})
        assert (await scene.proxy.get(f"/b/k{number}")).endswith(b"\r\n\r\n" + there)

    await at_every_await(scene, play, check, least=1)
