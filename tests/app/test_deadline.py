"""Readers get an error in time when the origin hangs, drips or sends without end. No work or memory is left
behind.
"""

import asyncio
import json
import re
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from shadeproxy.app.proxy import Proxy
from shadeproxy.config import Settings
from shadeproxy.core.errors import BodyCutShort, DeadlineExceeded
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.engine import Engine

FIRST_BYTE_S, WINDOW_S = 0.4, 0.6
LIMIT_S = 15.0
LATE = "origin.timeouts.first_byte=5 s"
"""For cases in which the first byte comes: a busy machine must not make it late."""
"""Far more than the configured timeouts, and far less than a read without a timeout would take."""
BODY = bytes(range(256)) * 1024  # One page, sent before it is verified.
ETAG = b'ETag: "0123456789abcdef0123456789abcdef"\r\n'
HEAD = b"HTTP/1.1 200 OK\r\n" + ETAG + b"Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY)

Behave = Callable[[asyncio.StreamWriter, bytes], Awaitable[None]]


async def hang(_writer: asyncio.StreamWriter, _asked: bytes = b"") -> None:
    await asyncio.get_running_loop().create_future()


async def hang_mid_head(writer: asyncio.StreamWriter, _asked: bytes) -> None:
    writer.write(HEAD[:30])
    await hang(writer)


async def drip_head(writer: asyncio.StreamWriter, _asked: bytes) -> None:
    writer.write(HEAD + b"X-Long: ")
    await drip(writer)


async def drip(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


def interim(line: bytes) -> Behave:
    async def talk(writer: asyncio.StreamWriter, _asked: bytes) -> None:
        while True:
            writer.write(line + b"\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.005)

    return talk


async def hang_after_head(writer: asyncio.StreamWriter, asked: bytes) -> None:
    writer.write(head_for(asked))
    await hang(writer)


async def hang_after_first_byte(writer: asyncio.StreamWriter, asked: bytes) -> None:
    writer.write(head_for(asked) + BODY[:1000])
    await hang(writer)


async def drip_body(writer: asyncio.StreamWriter, asked: bytes) -> None:
    writer.write(head_for(asked) + BODY[:1000])
    await drip(writer)


async def answer(writer: asyncio.StreamWriter, asked: bytes) -> None:
    writer.write(head_for(asked))
    if not asked.startswith(b"HEAD"):
        writer.write(BODY)


def head_for(asked: bytes) -> bytes:
    """Return the head of an answer with the whole object, whatever range was asked for."""
    return WHOLE if asked.startswith((b"GET", b"HEAD")) else b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


NO_HEAD = {
    "hang": hang,
    "mid-head": hang_mid_head,
    "drip-head": drip_head,
    "endless-100": interim(b"HTTP/1.1 100 Continue"),
    "endless-103": interim(b"HTTP/1.1 103 Early Hints\r\nLink: </x>"),
}


class Scripted:
    """A server that answers every request by ``behave``. ``open_now``: how many connections are open."""

    def __init__(self) -> None:
        self.behave: Behave = answer
        self.takes_bodies = True
        self.open_now = 0
        self.asked: list[bytes] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.open_now += 1
        gone: asyncio.Task[bytes] | None = None
        try:
            with suppress(asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
                while True:
                    asked = await reader.readuntil(b"\r\n\r\n")
                    self.asked.append(asked)
                    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", asked)
                    if length and self.takes_bodies:
                        await reader.readexactly(int(length[1]))
                    # If the server does not read the body of a request, the body fills the buffers on its
                    # way.
                    taking = reader.read(1) if self.takes_bodies else hang(writer)
                    gone = asyncio.create_task(taking)
                    acting = asyncio.ensure_future(self.behave(writer, asked))
                    await asyncio.wait({gone, acting}, return_when=asyncio.FIRST_COMPLETED)
                    if not acting.done():
                        acting.cancel()
                        break
                    acting.result()
                    gone.cancel()
                    await asyncio.gather(gone, return_exceptions=True)
        finally:
            if gone is not None:
                gone.cancel()
            self.open_now -= 1
            self._tasks.discard(task)
            writer.close()

    async def end(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Case:
    """A proxy in front of a scripted origin."""

    def __init__(self, proxy: Proxy, origin: Scripted) -> None:
        self.proxy, self.origin = proxy, origin

    @property
    def engine(self) -> Engine:
        return self.proxy.reloader.targets.engine

    async def ask(self, kind: str, key: str = "key") -> tuple[int, bytes, bytes]:
        """Return status, head, and the part of the body that came. Status 0: the answer was cut off."""
        if kind == "batch":
            return await self._batch(key)
        method = "HEAD" if kind == "head" else "GET"
        target = "/data?list-type=2" if kind == "list" else f"/data/{key}"
        fields = "Range: bytes=100-199\r\n" if kind == "range" else ""
        return await self._send(
            self.proxy.s3_address, f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n".encode()
        )

    async def _batch(self, key: str) -> tuple[int, bytes, bytes]:
        document = json.dumps({"items": [{"bucket": "data", "key": key}]}).encode()
        head = (
            f"POST /v1/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(document)}\r\n\r\n"
        )
        status, head, body = await self._send(self.proxy.control_address, head.encode() + document)
        return status, head, body

    async def _send(self, address: str, request: bytes) -> tuple[int, bytes, bytes]:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            async with asyncio.timeout(LIMIT_S):
                writer.write(request)
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                except ConnectionError:
                    return 0, b"", b""
                status, length = int(head[9:12]), 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line.partition(b":")[2])
                if request.startswith(b"HEAD"):
                    return status, head, b""
                if b"transfer-encoding: chunked" in head.lower():
                    return status, head, await reader.readuntil(b"0\r\n\r\n")
                try:
                    return status, head, await reader.readexactly(length)
                except (asyncio.IncompleteReadError, ConnectionError):
                    return 0, head, b""
        finally:
            writer.close()

    async def quiet(self) -> None:
        """Wait until no request waits, no page is on its way, and the ledger has all of its memory back."""
        async with asyncio.timeout(LIMIT_S):
            while not self.engine.idle or self._at_the_origin():
                await asyncio.sleep(0.01)
        self.engine.assert_quiescent()

    def _at_the_origin(self) -> int:
        """Return how many slots of the origin and how many connections to it are in use."""
        limited = self.engine._origin._inner._inner._inner._inner
        gets = (limited._inner.page_gets, limited._inner._transport._gets)
        return (
            limited.open_now + limited.forwarded_now + limited.waiting + sum(one.pool.in_use for one in gets)
        )


@pytest.fixture
async def make_case(tmp_path) -> AsyncIterator[Callable[..., Awaitable[Case]]]:
    origin = Scripted()
    server = await asyncio.start_server(origin.serve, "127.0.0.1", 0)
    proxies: list[Proxy] = []

    async def make(*options: str) -> Case:
        settings = Settings.load(
            None,
            [
                "s3.listen=127.0.0.1:0",
                "control.listen=127.0.0.1:0",
                f"origin.endpoint=http://127.0.0.1:{server.sockets[0].getsockname()[1]}",
                "origin.credentials.source=anonymous",
                f"origin.timeouts.first_byte={FIRST_BYTE_S} s",
                f"origin.timeouts.window={WINDOW_S} s",
                f"cache.ram.path={tmp_path}/ram",
                "cache.ram.capacity=64 MiB",
                "cache.disk.capacity=0",
                f"state.path={tmp_path}/state",
                "prefetch.enabled=false",
                *options,
            ],
        )
        proxy = Proxy(settings)
        await proxy.start()
        proxies.append(proxy)
        await asyncio.sleep(0)
        return Case(proxy, origin)

    yield make
    for proxy in proxies:
        await proxy.stop()
    await origin.end()
    server.close()


def status_of_item(body: bytes) -> int:
    """Return the status in the first frame of a batch answer (docs/protocol.md describes frames)."""
    frame = body.partition(b"\r\n")[2]
    return struct.unpack_from("<IH", frame)[1]


@asynccontextmanager
async def leaving_nothing(case: Case) -> AsyncIterator[None]:
    yield
    await case.quiet()


@pytest.mark.parametrize("kind", ["get", "range", "head", "list", "batch"])
@pytest.mark.parametrize("how", NO_HEAD)
async def test_without_a_head_every_read_is_told_to_slow_down(make_case, how, kind):
    case = await make_case()
    case.origin.behave = NO_HEAD[how]
    async with leaving_nothing(case):
        status, head, body = await case.ask(kind)
        if kind == "batch":
            assert (status, status_of_item(body)) == (200, 503)
            assert b"origin" in body
        else:
            assert status == 503
            assert b"Retry-After: 1\r\n" in head
            # Endless interim answers are a bad answer: ServiceUnavailable. A listing is not repeated. Other
            # reads are repeated until the deadline, which may give SlowDown.
            codes = {b"SlowDown"} if kind != "list" or not how.startswith("endless") else set()
            codes |= {b"ServiceUnavailable"} if how.startswith("endless") else set()
            assert kind == "head" or any(b"<Code>%b</Code>" % code in body for code in codes)


@pytest.mark.parametrize("how", [hang_after_head, hang_after_first_byte, drip_body])
@pytest.mark.parametrize("kind", ["get", "range", "list", "batch"])
async def test_a_body_that_stops_or_drips_is_cut_and_frees_what_it_held(make_case, how, kind):
    case = await make_case(*[LATE] * (how is not hang_after_head))
    case.origin.behave = how
    async with leaving_nothing(case):
        status, _, body = await case.ask(kind)
        if kind == "batch":
            assert (status, status_of_item(body)) == (200, 503)
        elif kind == "list" or (how is not hang_after_head and kind == "get"):
            assert status == 0  # The head had been sent.
        else:
            # The origin has sent either all bytes of the range, or none.
            assert status == (503 if how is hang_after_head else 206)


async def test_a_body_held_to_be_verified_has_the_budget_too(make_case):
    case = await make_case()
    small = HEAD + b"x-amz-checksum-crc32: AAAAAA==\r\nContent-Length: 9000\r\n\r\nbegins"

    async def begin(writer, _asked):
        writer.write(small)
        await drip(writer)

    case.origin.behave = begin
    async with leaving_nothing(case):
        for kind in ("get", "range"):
            status, _, body = await case.ask(kind)
            assert status == 503
            assert b"<Code>SlowDown</Code>" in body


def hold_back(case) -> asyncio.Event:
    """Let the scripted origin answer only when the returned event is set."""
    go_on = asyncio.Event()

    async def later(writer: asyncio.StreamWriter, asked: bytes) -> None:
        await go_on.wait()
        await answer(writer, asked)

    case.origin.behave = later
    return go_on


async def test_a_late_reader_of_one_page_leaves_and_the_others_get_it(make_case):
    case = await make_case()
    go_on = hold_back(case)
    async with leaving_nothing(case):
        first = asyncio.create_task(case.ask("get"))
        await asyncio.sleep(FIRST_BYTE_S * 0.7)
        second = asyncio.create_task(case.ask("get"))
        assert (await first)[0] == 503
        go_on.set()
        assert (await second)[::2] == (200, BODY)
        assert sum(asked.startswith(b"GET /data/key") for asked in case.origin.asked) == 1


async def test_readers_that_keep_coming_do_not_keep_a_hung_read_alive(make_case):
    case = await make_case("origin.timeouts.read=1 s", "origin.retry.attempts=2")
    case.origin.behave = hang
    async with leaving_nothing(case):
        readers = []
        for _ in range(12):
            readers.append(asyncio.create_task(case.ask("get")))
            await asyncio.sleep(FIRST_BYTE_S / 2)
        answers = await asyncio.gather(*readers)
        assert {status for status, _, _ in answers} == {503}
    assert sum(asked.startswith(b"GET /data/key") for asked in case.origin.asked) > 1


async def test_a_late_reader_of_one_head_does_not_fail_the_others(make_case):
    case = await make_case()
    go_on = hold_back(case)
    async with leaving_nothing(case):
        first = asyncio.create_task(case.ask("head"))
        await asyncio.sleep(FIRST_BYTE_S * 0.7)
        second = asyncio.create_task(case.ask("head"))
        assert (await first)[0] == 503
        go_on.set()
        assert (await second)[0] == 200


@pytest.mark.parametrize("kind", ["get", "range", "list", "batch"])
async def test_waiting_for_a_slot_is_part_of_the_budget(make_case, kind):
    case = await make_case("origin.max_connections=1")
    case.origin.behave = hang
    async with leaving_nothing(case):
        held = asyncio.create_task(case.ask("list" if kind == "list" else "get", "held"))
        async with asyncio.timeout(LIMIT_S):
            while not case.origin.asked:
                await asyncio.sleep(0.01)
        status, _, body = await case.ask(kind)
        assert (status == 503 and b"SlowDown" in body) or (kind == "batch" and status_of_item(body) == 503)
        await held


async def test_waiting_for_memory_is_part_of_the_budget(make_case):
    case = await make_case()
    ledger = case.engine._ledger
    ledger.taken_bytes += ledger.capacity_bytes
    try:
        for kind in ("get", "range", "batch"):
            status, _, body = await case.ask(kind, kind)
            assert (status == 503 and b"SlowDown" in body) or (
                kind == "batch" and status_of_item(body) == 503
            )
    finally:
        async with asyncio.timeout(LIMIT_S):
            while not case.engine.idle:
                await asyncio.sleep(0.01)
        ledger.give(ledger.capacity_bytes)
    await case.quiet()


async def test_tries_and_the_pauses_between_them_are_part_of_the_budget(make_case):
    case = await make_case("origin.retry.attempts=20", "origin.retry.backoff=1 s")

    async def fail(writer, _asked):
        writer.write(b"HTTP/1.1 500 Broken\r\nContent-Length: 0\r\n\r\n")

    case.origin.behave = fail
    async with leaving_nothing(case):
        for kind in ("get", "head"):
            status, head, _ = await case.ask(kind)
            assert status == 503
            assert b"Retry-After: 1\r\n" in head


async def test_a_client_that_reads_slowly_is_no_slow_origin(make_case):
    case = await make_case("cache.page_size=64 KiB", "cache.inflight=1 MiB")
    body = BODY * 32  # 8 MiB, more than the sockets' buffers hold.

    async def big(writer, asked):
        first, last = 0, len(body) - 1
        _, found, rest = asked.lower().partition(b"range: bytes=")
        if found:
            first, last = (int(one) for one in rest.partition(b"\r\n")[0].split(b"-"))
            last = min(last, len(body) - 1)
        writer.write(
            b"HTTP/1.1 206 Partial\r\n" + ETAG + b"Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
            b"Content-Range: bytes %d-%d/%d\r\nContent-Length: %d\r\n\r\n"
            % (first, last, len(body), last + 1 - first)
            if found
            else HEAD + b"Content-Length: %d\r\n\r\n" % len(body)
        )
        writer.write(body[first : last + 1])

    case.origin.behave = big
    host, _, port = case.proxy.s3_address.rpartition(":")
    for target in ("/data/key", "/data/key?versionId=null"):
        async with leaving_nothing(case):
            reader, writer = await asyncio.open_connection(host, int(port), limit=4096)
            writer.write(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(1.5 * (FIRST_BYTE_S + WINDOW_S))
            async with asyncio.timeout(LIMIT_S):
                assert await reader.readexactly(len(body)) == body
            writer.close()


@pytest.mark.parametrize("how", ["never-read", "never-answered", "drip-head", "drip-body"])
async def test_a_write_that_the_origin_does_not_take_or_answer_ends(make_case, how):
    case = await make_case("origin.timeouts.read=0.5 s")
    size = 32 << 20 if how == "never-read" else 10

    async def behave(writer, asked):
        if how == "never-read":
            await hang(writer)
        if how == "never-answered":
            await hang(writer)
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n"
        writer.write(head + b"X-Long: " if how == "drip-head" else head + b"\r\n")
        await drip(writer)

    case.origin.behave, case.origin.takes_bodies = behave, how != "never-read"
    host, _, port = case.proxy.s3_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"PUT /data/new HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode())
    writer.write(bytes(size))
    async with asyncio.timeout(LIMIT_S):
        if how == "drip-body":
            with suppress(ConnectionError):
                assert len(await reader.read()) < 1000  # The answer is cut, maybe within its head.
        else:
            answer = await reader.read(4096)
            assert answer.startswith(b"HTTP/1.1 500")
            assert b"The origin did not answer, so it may have carried out the request" in answer
    writer.close()
    async with asyncio.timeout(LIMIT_S):
        while case._at_the_origin():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", ["get", "head", "list"])
async def test_an_origin_that_hangs_is_counted_as_one_that_does_not_answer(make_case, kind):
    case = await make_case()
    await case.ask("head")
    case.origin.behave = hang
    async with leaving_nothing(case):
        assert (await case.ask(kind, "other"))[0] == 503
    health = case.engine._origin._health
    assert not health.answering
    assert health.failure.kind == "DeadlineExceeded"


@pytest.mark.parametrize("how", [hang, hang_after_first_byte, drip_body])
async def test_reads_ahead_and_prefetches_are_bounded_too(make_case, how):
    case = await make_case(*[LATE] * (how is not hang))
    case.origin.behave = how
    async with leaving_nothing(case):
        ended = asyncio.get_running_loop().create_future()
        need = next(iter(case.engine.prefetch_port.missing(ObjectRef("data", "key"))))
        case.engine.prefetch_port.begin(need, ended.set_result)
        async with asyncio.timeout(LIMIT_S):
            fetched = await ended
        assert isinstance(fetched.error, DeadlineExceeded if how is hang else BodyCutShort)
