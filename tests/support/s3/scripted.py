"""A whole proxy in front of an S3 server whose answers follow a script.

The proxy reads by callbacks or by tasks.
"""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shadeproxy.app.opening import PartOpener
from shadeproxy.app.proxy import Proxy
from shadeproxy.config import Settings
from shadeproxy.core.types import ObjectRef, Page
from shadeproxy.engine.engine import Engine
from shadeproxy.origin.callback_reads import CallbackReads
from shadeproxy.origin.limit import LimitedOrigin
from shadeproxy.origin.pool import ConnectionPool

PAGE = 1 << 20
CUT = "cut"
"""A step of an answer: the connection ends here."""
WAIT = "wait"
"""A step of an answer: the rest is sent when the test sets ``go_on``."""
PAUSE = "pause"
"""A step of an answer: the rest comes later, in another arrival."""
Steps = Sequence[bytes | str]
Answer = Steps | dict[str, Steps]
"""The steps of an answer, or the steps for each Range that a request may have ("" for no Range)."""
_PAUSE_S = 0.004
_WARM = (
    b'HTTP/1.1 200 OK\r\nETag: "warm"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n'
    b"Content-Length: 4\r\n\r\nwarm"
)
_BUCKETS = b"<ListAllMyBucketsResult><Buckets/></ListAllMyBucketsResult>"
# Parts of answers that differ from answer to answer.
_IDS = re.compile(rb"<RequestId>[^<]*</RequestId>|<HostId>[^<]*</HostId>|(?<=127\.0\.0\.1):[0-9]+")
_CHANGING = {b"date", b"x-amz-request-id", b"x-amz-id-2", b"age"}


class ScriptedServer:
    """Answers the GETs of each path in the order of the path's script. The last answer is repeated."""

    def __init__(self) -> None:
        self.scripts: dict[str, list[Answer]] = {}
        self.asked: list[tuple[str, ...]] = []
        """Method, path, Range and If-Match of each request, except those for /b/warm."""
        self.fields: list[tuple[str, dict[str, str]]] = []
        """Path and header fields of each request. The names of the fields are in lower case."""
        self.connections = 0
        self.go_on = asyncio.Event()
        self.reached = asyncio.Event()
        """Set when an answer waits for ``go_on``."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection until it ends."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            # uvloop raises RuntimeError for a lost connection.
            gone = (asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError, RuntimeError)
            with suppress(*gone):
                while await self._exchange(reader, writer):
                    pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def end(self) -> None:
        """End every connection."""
        await asyncio.sleep(0)
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("utf-8", "surrogateescape")
        method, path, _ = head.split(" ", 2)
        fields = {
            name.lower(): value
            for name, _, value in (line.partition(": ") for line in head.split("\r\n")[1:])
        }
        self.fields.append((path, fields))
        if length := int(fields.get("content-length", 0)):
            await reader.readexactly(length)
        for step in self._answer(method, path, fields):
            if step == CUT:
                return False
            if step == WAIT:
                self.reached.set()
                await self.go_on.wait()
            elif step == PAUSE:
                await asyncio.sleep(_PAUSE_S)
            else:
                assert isinstance(step, bytes)
                writer.write(step)
                await writer.drain()
        return True

    def _answer(self, method: str, path: str, fields: dict[str, str]) -> Steps:
        if path == "/":
            return [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(_BUCKETS) + _BUCKETS]
        if path == "/b/warm":
            return [_WARM]
        self.asked.append((method, path, fields.get("range", ""), fields.get("if-match", "")))
        if method == "PUT":
            return [b'HTTP/1.1 200 OK\r\nETag: "new"\r\nContent-Length: 0\r\n\r\n']
        script = self.scripts[path if method == "GET" else f"{method} {path}"]
        answer = script.pop(0) if len(script) > 1 else script[0]
        return answer[fields.get("range", "")] if isinstance(answer, dict) else answer


class Answered(NamedTuple):
    """An answer as a client saw it. ``cut``: whether the connection ended before the answer did."""

    status: int
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes
    cut: bool

    def field(self, name: bytes) -> bytes:
        return dict(self.fields).get(name, b"")


class Client:
    """A client's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, address: str, *, receive_bytes: int = 0) -> "Client":
        """Connect to an address. ``receive_bytes``: the size of the socket's receive buffer; 0 for the
        default.
        """
        host, _, port = address.rpartition(":")
        sock = socket.socket()
        sock.setblocking(False)
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        except BaseException:
            sock.close()
            raise
        limit = receive_bytes or 1 << 16
        return cls(*await asyncio.open_connection(sock=sock, limit=limit))

    def ask(self, path: str, *fields: str, method: str = "GET", body: bytes = b"") -> None:
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *fields]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    async def answer(self, *, bodiless: bool = False) -> Answered:
        """Read one answer. Status 0 means that the connection ended before an answer came."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return Answered(0, (), b"", cut=True)
        line, *rest = head[:-4].split(b"\r\n")
        pairs = [(name.lower(), value) for name, _, value in (one.partition(b": ") for one in rest)]
        fields = dict(pairs)
        body, cut = b"", False
        status = int(line.split()[1])
        # The arrivals decide whether a head came in time, so the source that a 503 names may differ.
        changing = _CHANGING | {b"x-shade-cache"} if status == 503 else _CHANGING
        kept = tuple((name, value) for name, value in pairs if name not in changing)
        try:
            if bodiless or status in {204, 304}:
                pass
            elif b"content-length" in fields:
                body = await self.reader.readexactly(int(fields[b"content-length"]))
            elif fields.get(b"transfer-encoding") == b"chunked":
                body = await self._chunked()
            else:
                body = await self.reader.read()
        except asyncio.IncompleteReadError as error:
            body, cut = error.partial, True
        except ConnectionError:
            body, cut = bytes(self.reader._buffer), True  # type: ignore[attr-defined]
        if status >= 300:
            body = _IDS.sub(b"", body)
        return Answered(status, kept, body, cut)

    async def _chunked(self) -> bytes:
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readuntil(b"\r\n")
        return body

    async def get(self, path: str, *fields: str) -> Answered:
        self.ask(path, *fields)
        return await self.answer()

    async def close(self) -> None:
        self.writer.transport.abort()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


@dataclass
class Setup:
    """A proxy in front of a scripted server. ``started``: the path of each callback read that began."""

    proxy: Proxy
    server: ScriptedServer
    engine: Engine
    reads: CallbackReads
    settings: Settings
    by_callbacks: bool
    started: list[str] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)

    @property
    def pool(self) -> ConnectionPool:
        return self.reads.gets.pool

    async def client(self, *, receive_bytes: int = 0) -> Client:
        client = await Client.open(self.proxy.s3_address, receive_bytes=receive_bytes)
        self.clients.append(client)
        return client

    async def warm(self, connections: int = 1) -> None:
        """Open connections to the server, and keep them idle in the pool."""
        pool = self.pool
        taken = []
        assert (await (await self.client()).get("/b/warm")).status == 200
        (peer,) = pool._idle
        while len(taken) < connections:
            taken.append(await pool.take(peer))
        while taken:
            connection = taken.pop()
            connection.exchanges = max(connection.exchanges, 1)
            pool.put_back(connection)

    async def settle(self) -> None:
        """Wait until nothing is under way. Check that no resource is held any more."""
        async with asyncio.timeout(10):
            await self.engine._filling.flights.drain()
            while not self.engine.idle or self.pool.in_use:
                await asyncio.sleep(0.001)
            await self.engine.cache.drain()
        assert isinstance(self.reads.limited, LimitedOrigin)
        assert self.reads.limited.open_now == 0
        self.engine.assert_quiescent()

    async def cached(self, path: str, pages: int = 4) -> dict[str, Any]:
        """Return the ETag and the size of an object's known version, and its cached pages by number."""
        bucket, _, key = path[1:].partition("/")
        ref = ObjectRef(bucket, key)
        known = await self.engine.inspect(ref)
        if known is None:
            return {}
        meta = known[0].meta
        views = {number: self.engine.cache.view_now(Page(ref, meta.etag, number)) for number in range(pages)}
        return {
            "etag": meta.etag,
            "size": meta.size,
            "pages": {number: bytes(view) for number, view in views.items() if view is not None},
        }

    def counted(self) -> dict[str, Any]:
        """Return those statistics that do not depend on time."""
        shown = self.proxy.stats.snapshot()
        gets, errors = shown["origin"]["by_kind"]["get"], shown["origin"]["errors_by_kind"]
        return {
            # If a body was damaged, its bytes are left out: a miss by callbacks counts the last piece of it,
            # and a miss by a task does not.
            "gets": (gets["requests"], 0 if "BodyDamaged" in errors else gets["bytes"]),
            "errors": errors,
            "buckets": shown["buckets"],
            "pages": shown["pages"],
            "retries": shown["origin"]["health"].get("retries"),
        }


@asynccontextmanager
async def set_up(
    directory: Path,
    *,
    by_callbacks: bool,
    config: Path | None = None,
    server: ScriptedServer | None = None,
    **changed: str,
) -> AsyncIterator[Setup]:
    """Start a server, and a proxy in front of it. ``changed``: settings, with "__" in place of each dot."""
    server = server or ScriptedServer()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    overrides = {
        "s3.listen": "127.0.0.1:0",
        "control.listen": "127.0.0.1:0",
        "control.socket": "off",
        "origin.endpoint": f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}",
        "origin.retry.backoff": "1ms",
        "origin.credentials.access_key_env": "ORIGIN_KEY",
        "origin.credentials.secret_key_env": "ORIGIN_SECRET",
        "cache.page_size": "1 MiB",
        "cache.ram.path": str(directory / "ram"),
        "cache.ram.capacity": "64 MiB",
        "cache.disk.capacity": "0",
        "prefetch.enabled": "false",
        "state.path": str(directory / "state"),
    } | {name.replace("__", "."): value for name, value in changed.items()}
    settings = Settings.load(config, [f"{name}={value}" for name, value in overrides.items()])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORIGIN_KEY", "key")
        patch.setenv("ORIGIN_SECRET", "secret")
        made: list[CallbackReads] = []
        build = PartOpener.origin

        async def origin(self: PartOpener, *args: Any, **kwargs: Any) -> Any:
            counted, reads = await build(self, *args, **kwargs)
            assert reads is not None
            made.append(reads)
            return counted, reads if by_callbacks else None

        engines: list[Engine] = []
        open_engine = PartOpener.engine

        async def opened(self: PartOpener, *args: Any, **kwargs: Any) -> Engine:
            engines.append(await open_engine(self, *args, **kwargs))
            return engines[0]

        patch.setattr(PartOpener, "origin", origin)
        patch.setattr(PartOpener, "engine", opened)
        proxy = Proxy(settings)
        await proxy.start()
    (reads,) = made
    setup = Setup(proxy, server, engines[0], reads, settings, by_callbacks)
    begin, take, give_back = reads.start, reads.take, reads.give_back

    def start(wanted: Any, *args: Any) -> Any:
        read = begin(wanted, *args)
        if read is not None:
            setup.started.append(f"/{wanted.ref.bucket}/{wanted.ref.key}")
        return read

    def takes(ref: ObjectRef, *args: Any) -> Any:
        request = take(ref, *args)
        if request is not None:
            setup.started.append(f"/{ref.bucket}/{ref.key}")
        return request

    def gives_back(read: Any) -> None:
        if read.connection is not None:
            setup.started.pop()
        give_back(read)

    reads.start, reads.take, reads.give_back = start, takes, gives_back  # type: ignore[method-assign]
    try:
        yield setup
    finally:
        for client in setup.clients:
            await client.close()
        server.go_on.set()
        await proxy.stop()
        await server.end()
        listening.close()
        await asyncio.sleep(0)
