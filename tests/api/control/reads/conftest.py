"""The control listener over a real engine and an in-memory origin. No test may leave a read under way."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
import uvloop
from aiohttp import web

from shadeproxy.api.control.app import make_control_app
from shadeproxy.api.control.context import READY, ControlContext
from shadeproxy.api.control.order_builder import OrderBuilder
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.types import ObjectRef, Source
from shadeproxy.engine.engine import Engine
from shadeproxy.engine.freshness.namespaces import ONLY_OWN, Upstreams
from shadeproxy.engine.rules import Rule
from shadeproxy.engine.storage.page_cache import Medium, PageCache
from shadeproxy.hints.changes import OwnChanges
from shadeproxy.hints.hint_memory import HintMemory
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy.telemetry.stats import Stats
from shadeproxy.tiers.store import SegmentStore
from tests.support.clock import ManualClock
from tests.support.engine import PAGE
from tests.support.frames import Frame, parse_frames
from tests.support.listener_engine import make_engine


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the tests on the product's event loop, because event loops differ in how they write and abort."""
    return {"uvloop": uvloop.new_event_loop}


class Connection:
    """A caller that reads from its connection only when the test calls a method."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(
        self, path: str, body: bytes, kind: str = "application/json", *fields: str, host: str = "localhost"
    ) -> None:
        lines = [f"POST {path} HTTP/1.1", f"Host: {host}", f"Content-Type: {kind}"]
        lines += [f"Content-Length: {len(body)}", *fields, "", ""]
        self.writer.write("\r\n".join(lines).encode() + body)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        raw = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *fields = raw.strip().split("\r\n")
        names = dict(line.lower().split(": ", 1) for line in fields)
        return int(first.split()[1]), names

    async def body(self, fields: dict[str, str]) -> tuple[bytes, bool]:
        """Read the body that follows a head with these fields. Return the body, and whether it came to its
        end.
        """
        if "content-length" in fields:
            return await self.reader.readexactly(int(fields["content-length"])), True
        data = b""
        try:
            while size := int(await self.reader.readline(), 16):
                data += await self.reader.readexactly(size)
                assert await self.reader.readline() == b"\r\n"
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            return data, False
        assert await self.reader.readline() == b"\r\n"
        return data, True

    async def close(self) -> None:
        self.writer.transport.abort()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


@dataclass
class Listener:
    """A control listener, and the parts behind it that tests look at."""

    engine: Engine
    cache: PageCache
    origin: Any
    context: ControlContext
    ledger: Ledger
    port: int
    connections: list[Connection] = field(default_factory=list)

    def put(self, **objects: bytes) -> None:
        for key, body in objects.items():
            self.origin.put("b", key, body)

    async def warm(self, *keys: str) -> None:
        await self.frames([{"bucket": "b", "key": key} for key in keys])
        await self.engine._filling.flights.drain()

    def register(self, *samples: tuple, job: str | None = "train") -> None:
        """Register dataset "data" and, unless ``job`` is None, a job on it.

        Each sample is (key), for a whole object, or (key, offset, length).
        """
        builder = ManifestBuilder("data")
        for key, *place in samples:
            builder.add(ObjectRef("b", key), *place)
        self.context.hints.put_dataset(builder.finish())
        if job is not None:
            self.context.hints.put_job(Job(job, dataset="data"), self.context.clock.now_s())

    async def connect(self) -> Connection:
        connection = Connection(*await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20))
        self.connections.append(connection)
        return connection

    async def call(self, path: str, body: Any, kind: str = "application/json") -> tuple[int, bytes]:
        """Make one call on a new connection. Return its status and its complete body."""
        connection = await self.connect()
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        await connection.ask(path, data, kind)
        status, fields = await connection.head()
        answer, whole = await connection.body(fields)
        assert whole
        return status, answer

    async def refused(self, path: str, body: Any, kind: str = "application/json") -> tuple[int, str]:
        status, answer = await self.call(path, body, kind)
        error = msgspec.json.decode(answer)["error"]
        return status, f"{error['code']} | {error['message']} | {error['hint']}"

    async def frames(self, items: list[dict], **fields: Any) -> list[Frame]:
        status, data = await self.call("/v1/batch", {"items": items, **fields})
        assert status == 200, data
        frames, ended = parse_frames(data)
        assert ended
        return frames

    async def settled(self) -> None:
        """Wait until no read is under way."""
        while not self.engine.idle or self.context.held.taken_bytes:
            await asyncio.sleep(0.01)


MakeListener = Callable[..., Awaitable[Listener]]


@pytest.fixture
async def listen(tmp_path: Path) -> AsyncIterator[MakeListener]:
    made: list[tuple[Listener, web.AppRunner]] = []
    pool = ThreadPoolExecutor(2)
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: problems.append(context))

    async def make(
        *,
        origin: Any = None,
        rules: tuple[Rule, ...] = (),
        ram_bytes: int = 1 << 22,
        held_bytes: int = 1 << 20,
        upstreams: Upstreams = ONLY_OWN,
        on_disk: bool = False,
        **settings: Any,
    ) -> Listener:
        clock, stats, ledger = ManualClock(), Stats(), Ledger(1 << 22)
        tier = SegmentStore("ram", tmp_path / f"ram{len(made)}", ram_bytes, segment_bytes=1 << 22)
        origin = origin if origin is not None else MemoryOrigin(clock=clock, chunk_bytes=1000)
        engine, cache = await make_engine(
            Medium(tier, Source.DISK, load=asyncio.to_thread) if on_disk else Medium(tier, Source.RAM),
            origin,
            rules=rules,
            ledger=ledger,
            stats=stats,
            clock=clock,
            page_size=PAGE,
            upstreams=upstreams,
        )
        order_builder = OrderBuilder(pool)
        hints = HintRegistry(on_lost=order_builder.seek)
        context = ControlContext(
            version="1",
            hints=hints,
            hint_memory=HintMemory(hints),
            changes=OwnChanges(hints, clock),
            order_builder=order_builder,
            stats=stats,
            count_reads=engine.access_log.flush,
            clock=clock,
            pool=pool,
            admin=None,
            list_objects=engine.list_objects,
            resident_pages=cache.resident_pages,
            engine=engine,
            page_size=PAGE,
            readiness=lambda: READY,
            log_levels=None,
            warnings=list,
            doctor=None,
            held=Ledger(held_bytes),
            upstreams=upstreams,
            **settings,
        )
        runner = web.AppRunner(make_control_app(context), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        listener = Listener(engine, cache, origin, context, ledger, runner.addresses[0][1])
        made.append((listener, runner))
        return listener

    with structlog.testing.capture_logs() as lines:
        yield make
        for listener, runner in made:
            for connection in listener.connections:
                await connection.close()
            async with asyncio.timeout(10):
                await listener.settled()
            await runner.cleanup()
            await listener.engine.aclose()
            assert listener.context.held.taken_bytes == 0
            await asyncio.to_thread(listener.cache.close)
        pool.shutdown()
    assert not problems, problems
    assert not [line for line in lines if line["event"] in {"batch failed", "control call failed"}], lines


@pytest.fixture
async def listener(listen: MakeListener) -> Listener:
    return await listen()
