"""Page GETs on both event loops, plain and over TLS. The answers have every form, and connections end at any
point.
"""

import asyncio
import datetime as dt
import ipaddress
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from shadeproxy.core.deadline import ReadBounds
from shadeproxy.core.errors import BodyCutShort, OriginAnswer, OriginError, OriginUnavailable
from shadeproxy.core.types import ObjectRef, Span
from shadeproxy.origin.base import OriginRead
from shadeproxy.origin.limit import LimitedOrigin
from shadeproxy.origin.pool import Timeouts
from shadeproxy.origin.retry import RetryingOrigin
from tests.support.clock import ManualClock

REF = ObjectRef("bucket", "key")
BODY = bytes(range(256)) * 1000
HEAD = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: %d\r\n\r\n'
SHORT = HEAD % 10 + b"0123456789"
CUT = b"<cut>"  # In an answer: the server ends the connection here.
WAIT = b"<wait>"  # In an answer: the server stops sending here, and keeps the connection.


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    pem, private = folder / "cert.pem", folder / "key.pem"
    pem.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return pem, private


class Script:
    """A server that sends its scripted answers in order, on whichever connection the requests come."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.connections = 0
        self.asked = asyncio.Event()
        self.piece_bytes = 1 << 20
        self._tasks: set[asyncio.Task] = set()

    async def end(self) -> None:
        """End every connection."""
        await asyncio.sleep(0)  # Let the tasks of accepted connections begin first.
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._tasks.add(asyncio.current_task())
        with suppress(asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.asked.set()
                answer = self.answers.pop(0)
                kept, cut, _ = answer.partition(CUT)
                kept, wait, _ = kept.partition(WAIT)
                for at in range(0, len(kept), self.piece_bytes):
                    writer.write(kept[at : at + self.piece_bytes])
                    await writer.drain()
                if cut:
                    break
                if wait:
                    await reader.read()
        writer.close()


@pytest.fixture(params=["plain", "tls"])
async def serving(request, certificate, new_s3_origin) -> AsyncIterator[Callable]:
    """Yield a function that starts a server with scripted answers. The function yields an origin that reads
    from this server, and the script.
    """
    pem, private = certificate
    context = None
    if request.param == "tls":
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pem, private)

    @asynccontextmanager
    async def serve(*answers, **options):
        script = Script(*answers)
        server = await asyncio.start_server(script.serve, "127.0.0.1", 0, ssl=context)
        scheme = "https" if context else "http"
        endpoint = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        origin = new_s3_origin(endpoint, ca_file=str(pem) if context else None, **options)
        try:
            yield origin, script
        finally:
            pool = origin.page_gets.pool
            assert pool.in_use == 0
            await origin.aclose()
            async with asyncio.timeout(5):
                while pool.open_now:
                    await asyncio.sleep(0.005)
            await script.end()
            server.close()

    return serve


async def into(reading: OriginRead, size: int) -> bytes:
    buffer = bytearray(size)
    arrivals: list[int] = []
    await reading.read_into(memoryview(buffer), arrivals.append)
    assert sum(arrivals) == size
    return bytes(buffer)


async def whole(origin, ref=REF) -> bytes:
    async with origin.open(ref) as reading:
        return await into(reading, reading.span.length)


async def test_a_buffer_that_is_longer_than_the_rest_of_the_body_is_not_filled_in_part(serving):
    async with serving(SHORT) as (origin, _), origin.open(REF) as reading:
        assert await into(reading, 6) == b"012345"
        with pytest.raises(BodyCutShort):
            await reading.read_into(memoryview(bytearray(6)), lambda _count: None)


@pytest.mark.parametrize("body", [b"", b"x", BODY, BODY * 20], ids=["empty", "byte", "256K", "5M"])
async def test_a_body_lands_in_the_buffer_and_the_connection_serves_the_next(serving, body):
    async with serving(*[HEAD % len(body) + body] * 3, SHORT) as (origin, script):
        assert await whole(origin) == body
        async with origin.open(REF) as reading:
            assert b"".join([chunk async for chunk in reading.chunks]) == body
        async with origin.open(REF) as reading:
            half = len(body) // 2
            assert await into(reading, half) == body[:half]
            rest = b"".join([chunk async for chunk in reading.chunks])
            assert rest == body[half:]
        assert await whole(origin) == b"0123456789"
        assert script.connections == 1


async def test_a_head_that_arrives_bit_by_bit_after_an_interim_one(serving):
    async with serving(b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + SHORT) as (origin, script):
        script.piece_bytes = 1
        assert await whole(origin) == b"0123456789"


async def test_a_head_longer_than_the_first_buffer(serving):
    answer = SHORT.replace(b"ETag", b"x-amz-meta-long: " + b"v" * 30_000 + b"\r\nETag")
    async with serving(answer, SHORT) as (origin, script):
        async with origin.open(REF) as reading:
            assert len(reading.meta.header("x-amz-meta-long")) == 30_000
            assert await into(reading, 10) == b"0123456789"
        assert await whole(origin) == b"0123456789"
        assert script.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"garbage\r\n\r\n",
        HEAD % 10 + b"0123456789 and more",
        SHORT.replace(b"ETag", b"Transfer-Encoding: chunked\r\nETag"),
        SHORT.replace(b"ETag", b" folded: x\r\nETag"),
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"v" * 70_000,
        b"HTTP/1.1 200" + CUT,
        CUT,
    ],
    ids=["garbage", "surplus", "both-framings", "folded", "upgrade", "endless-head", "half-head", "nothing"],
)
async def test_an_answer_that_is_none_ends_the_connection(serving, answer):
    async with serving(answer, SHORT) as (origin, script):
        with pytest.raises(OriginUnavailable, match="the connection failed"):
            await whole(origin)
        assert await whole(origin) == b"0123456789"
        assert script.connections == 2


async def test_surplus_after_a_body_that_came_in_pieces_ends_the_connection(serving):
    async with serving(HEAD % len(BODY) + BODY + b"surplus", SHORT) as (origin, script):
        with suppress(OriginError):  # The body may be complete before the surplus is seen.
            assert await whole(origin) == BODY
        await asyncio.sleep(0.05)
        assert await whole(origin) == b"0123456789"
        assert script.connections == 2


@pytest.mark.parametrize("by_chunks", [False, True])
async def test_a_body_cut_short_raises_after_what_came(serving, by_chunks):
    async with serving(HEAD % len(BODY) + BODY[:9000] + CUT) as (origin, _):
        buffer, arrivals = bytearray(len(BODY)), []
        with pytest.raises(BodyCutShort, match="broke off"):
            async with origin.open(REF) as reading:
                if by_chunks:
                    async for chunk in reading.chunks:
                        buffer[sum(arrivals) : sum(arrivals) + len(chunk)] = chunk
                        arrivals.append(len(chunk))
                else:
                    await reading.read_into(memoryview(buffer), arrivals.append)
        assert sum(arrivals) == 9000
        assert bytes(buffer[:9000]) == BODY[:9000]


@pytest.mark.parametrize("answer", [WAIT, b"HTTP/1.1 200 OK\r\n" + WAIT, HEAD % 10 + b"01" + WAIT])
async def test_silence_ends_with_the_read_timeout(serving, answer):
    async with serving(answer, timeouts=Timeouts(read_s=0.1)) as (origin, _):
        with pytest.raises((OriginUnavailable, BodyCutShort), match=r"timed out|TimeoutError"):
            await whole(origin)


async def test_a_reader_that_takes_its_time_is_not_the_origins_silence(serving):
    answer = HEAD % len(BODY) + BODY
    async with serving(answer, timeouts=Timeouts(read_s=1.0)) as (origin, _), origin.open(REF) as reading:
        received = await anext(reading.chunks)
        await asyncio.sleep(1.7)
        async for chunk in reading.chunks:
            received += chunk
        assert received == BODY


@pytest.mark.parametrize("death", [CUT, SHORT + CUT])
async def test_a_kept_connection_that_died_is_replaced_once(serving, death):
    # The server ends the connection instead of an answer, or after the previous answer.
    answers = [SHORT, death] if death == CUT else [death]
    async with serving(*answers, SHORT) as (origin, script):
        assert await whole(origin) == b"0123456789"
        assert await whole(origin) == b"0123456789"
        assert script.connections == 2


async def test_a_fresh_connection_that_dies_too_is_an_error(serving):
    async with serving(SHORT, CUT, CUT, SHORT) as (origin, script):
        await whole(origin)
        with pytest.raises(OriginUnavailable, match="failed: the origin ended it within an answer"):
            await whole(origin)
        assert script.connections == 2


async def test_an_error_document_is_read_chunked_or_to_the_end(serving):
    document = b"<Error><Code>NoSuchKey</Code><Message>gone</Message></Error>"
    chunked = b"HTTP/1.1 404 X\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (
        len(document),
        document,
    )
    async with serving(chunked, chunked, b"HTTP/1.1 404 X\r\n\r\n" + document + CUT) as (origin, script):
        for _ in range(3):
            with pytest.raises(OriginAnswer, match="404 NoSuchKey: gone"):
                await whole(origin)
        assert script.connections == 1


async def test_leaving_early_closes_the_connection(serving):
    big = HEAD % len(BODY) + BODY
    async with serving(big, big, SHORT) as (origin, script):
        async with origin.open(REF):
            pass
        async with origin.open(REF) as reading:
            await anext(reading.chunks)
        assert await whole(origin) == b"0123456789"
        assert script.connections == 3


@pytest.mark.parametrize("turns", range(0, 24, 2))
async def test_cancelled_at_any_await_no_connection_stays_in_use(serving, turns):
    big = HEAD % len(BODY) + BODY
    async with serving(big, big, big) as (origin, _):
        task = asyncio.create_task(whole(origin))
        for _ in range(turns):
            await asyncio.sleep(0.001 if turns > 12 else 0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            assert await task == BODY
        assert origin.page_gets.pool.in_use == 0
        assert await whole(origin) == BODY


async def test_a_cancelled_receive_never_writes_into_the_buffer_again(serving):
    async with serving(HEAD % len(BODY) + BODY[:20_000] + WAIT) as (origin, _):
        buffer, half = bytearray(len(BODY)), asyncio.Event()

        async def receive():
            async with origin.open(REF) as reading:
                await reading.read_into(memoryview(buffer), lambda _count: half.set())

        task = asyncio.create_task(receive())
        await half.wait()
        task.cancel()
        await asyncio.wait({task})
        del task  # The task's traceback holds the frames that hold the buffer.
        buffer.clear()  # This raises BufferError if a view could still write into the buffer.


async def test_connections_are_limited_and_handed_on(serving):
    async with serving(*[SHORT] * 12, max_connections=2) as (origin, script):
        assert await asyncio.gather(*(whole(origin) for _ in range(12))) == [b"0123456789"] * 12
        assert script.connections == 2


async def test_the_wait_for_a_connection_ends(serving):
    timeouts = Timeouts(pool_s=0.05)
    async with serving(HEAD % 10 + WAIT, SHORT, max_connections=1, timeouts=timeouts) as (origin, script):
        holder = asyncio.create_task(whole(origin))
        await script.asked.wait()
        with pytest.raises(
            OriginUnavailable, match=r"no connection in time; .*raise origin\.max_connections"
        ):
            await whole(origin)
        waiter = asyncio.create_task(whole(origin))
        await asyncio.sleep(0)
        holder.cancel()
        assert await waiter == b"0123456789"
        await asyncio.wait({holder})


async def test_a_server_without_tls_is_not_blamed_on_its_certificate(new_s3_origin):
    async def refuse(reader, writer):
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        origin = new_s3_origin(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        for call in (lambda: whole(origin), origin.probe):
            with pytest.raises(
                OriginUnavailable, match=r"speaks no TLS there; write http:// in origin"
            ) as told:
                await call()
            assert "certificate" not in str(told.value)
        await origin.aclose()


async def test_an_untrusted_certificate_names_the_setting(certificate, new_s3_origin):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    script = Script()
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0, ssl=context)
    origin = new_s3_origin(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    with pytest.raises(OriginUnavailable, match=r"certificate was not accepted: .*; set origin\.ca_file"):
        await whole(origin)
    assert origin.page_gets.pool.open_now == 0
    await origin.aclose()
    await script.end()
    server.close()


async def test_a_range_is_received_straight_and_a_slice_by_copy(serving):
    ranged = b'HTTP/1.1 206 P\r\nETag: "e"\r\nContent-Range: bytes 3-5/10\r\nContent-Length: 3\r\n\r\n345'
    async with serving(ranged, SHORT) as (origin, _):
        for straight in (True, False):
            async with origin.open(REF, span=Span(3, 6)) as reading:
                assert (reading.receive is not None) is straight
                assert await into(reading, 3) == b"345"


async def test_a_buffer_longer_than_the_span_is_refused(serving):
    async with serving(SHORT) as (origin, _):
        with pytest.raises(BodyCutShort, match="10 bytes where 11 were expected"):
            async with origin.open(REF) as reading:
                await into(reading, 11)


async def test_who_left_reads_no_more_of_a_connection_that_serves_the_next(serving):
    async with serving(SHORT, SHORT, SHORT) as (origin, _):
        async with origin.open(REF) as left_early:
            pass
        async with origin.open(REF) as read_whole:
            assert await into(read_whole, 10) == b"0123456789"
        async with origin.open(REF) as following:
            with pytest.raises(BodyCutShort):
                await anext(left_early.chunks)
            for reading in (left_early, read_whole):
                with pytest.raises(BodyCutShort):
                    await into(reading, 10)
            assert await into(following, 10) == b"0123456789"


@pytest.mark.parametrize("way", ["pieces", "buffer"])
async def test_who_left_does_not_go_on_with_another_request(serving, way):
    async with serving(SHORT, SHORT) as (origin, _):
        limited = LimitedOrigin(origin, max_open=1)
        async with RetryingOrigin(limited, clock=ManualClock()).open(REF) as reading:
            pass
        with pytest.raises(BodyCutShort):
            await (anext(reading.chunks) if way == "pieces" else into(reading, 10))
        assert limited.open_now == 0


@pytest.mark.parametrize("interim", [b"HTTP/1.1 100 Continue", b"HTTP/1.1 103 Early\r\nLink: x"])
async def test_interim_answers_without_end_are_a_bad_answer(serving, interim):
    flood = interim + b"\r\n\r\n"
    async with serving(flood * 16 + SHORT, flood * 17 + SHORT) as (origin, _):
        assert await whole(origin) == b"0123456789"
        with pytest.raises(OriginUnavailable, match="BadAnswer"):
            await whole(origin)


@asynccontextmanager
async def dripping(start: bytes) -> AsyncIterator[str]:
    """Yield the URL of a server that answers with ``start``. After that it sends one byte now and then."""
    tasks: set[asyncio.Task] = set()

    async def serve(reader, writer):
        tasks.add(asyncio.current_task())
        with suppress(asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(start)
            while not writer.is_closing():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.02)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    server.close()
    await asyncio.sleep(0)  # Transports close in the next turn of the event loop.


@pytest.mark.parametrize("part", ["head", "body"])
async def test_what_drips_does_not_hold_a_connection(new_s3_origin, part):
    start = b"HTTP/1.1 200 OK\r\nX-Long: " if part == "head" else HEAD % 100_000
    timeouts = Timeouts(read_s=0.3 if part == "head" else 30.0, bounds=ReadBounds(window_s=0.3))
    async with dripping(start) as url, asyncio.timeout(10):
        origin = new_s3_origin(url, timeouts=timeouts)
        with pytest.raises(OriginUnavailable if part == "head" else BodyCutShort):
            await whole(origin)
        assert origin.page_gets.pool.in_use == 0
        await origin.aclose()


async def test_a_drip_that_its_reader_does_not_wait_for_is_not_measured(serving):
    bounds = ReadBounds(window_s=0.1)
    options = {"timeouts": Timeouts(read_s=0.1, bounds=bounds)}
    async with serving(HEAD % len(BODY * 20) + BODY * 20, **options) as (origin, _):
        async with origin.open(REF) as reading:
            received = b""
            async for chunk in reading.chunks:
                if len(received) < 300_000:
                    await asyncio.sleep(0.15)
                received += chunk
        assert received == BODY * 20


async def test_a_connection_without_a_request_is_closed_in_time(serving):
    async with serving(SHORT, SHORT, timeouts=Timeouts(idle_s=0.05)) as (origin, script):
        pool = origin.page_gets.pool
        await whole(origin)
        async with asyncio.timeout(10):
            while pool.open_now:
                await asyncio.sleep(0.05)
        await whole(origin)
        assert script.connections == 2


async def test_a_connection_that_the_server_closed_meanwhile_is_not_used_again(serving):
    async with serving(SHORT, SHORT) as (origin, script):
        pool = origin.page_gets.pool
        await whole(origin)
        await script.end()
        async with asyncio.timeout(10):
            while pool.open_now:
                await asyncio.sleep(0.005)
        assert await whole(origin) == b"0123456789"
        assert script.connections == 2
