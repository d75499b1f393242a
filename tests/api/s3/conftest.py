"""A real engine over an in-memory origin, behind the real listener on loopback.

After each test the engine must be quiescent.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
import uvloop
from botocore.config import Config

from shadeproxy.api.s3 import COMPILED, Authenticator, ClientKey, FastLane, S3Handler, S3Server
from shadeproxy.core.clock import Clock, SystemClock
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.types import Source
from shadeproxy.engine.engine import Engine
from shadeproxy.engine.freshness.namespaces import ONLY_OWN, Upstreams
from shadeproxy.engine.index.columns import Share
from shadeproxy.engine.ownership import Ownership
from shadeproxy.engine.rules import Rule
from shadeproxy.engine.storage.page_cache import Medium, PageCache
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy.telemetry.stats import Stats
from shadeproxy.tiers.store import SegmentStore
from tests.support.clock import ManualClock
from tests.support.engine import PAGE
from tests.support.listener_engine import make_engine
from tests.support.s3.clients import ACCESS, CLIENTS, SECRET
from tests.support.s3.compiled import heads
from tests.support.s3.lane import SIZES, Watched, pattern, talk
from tests.support.s3.lanes import TaskLane


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the tests on the product's event loop, because event loops differ in how they abort a
    connection.
    """
    return {"uvloop": uvloop.new_event_loop}


class Recorder:
    """A ``RequestObserver`` that keeps what it hears of each finished request."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.jobs: list[Any] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def on_request(self, **fields: Any) -> None:
        self.requests.append(fields)
        for count, future in self._waiting:
            if len(self.requests) >= count and not future.done():
                future.set_result(None)

    def on_job(self, job: Any) -> None:
        self.jobs.append(job)

    def wait_for(self, count: int) -> asyncio.Future[None]:
        """Return a future that is done when ``count`` requests have ended."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((count, future))
        return future


class EventLog:
    """A log that keeps its events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def debug(self, event: str, **fields: Any) -> None:
        self.events.append((event, fields))

    exception = warning = debug


@dataclass
class Proxy:
    """A listening proxy, and the parts of it that tests look at."""

    engine: Engine
    origin: Any
    handler: S3Handler
    port: int
    seen: Recorder
    log: EventLog
    lane: Any
    server: S3Server
    clock: Clock
    stats: Stats

    def counted_stats(self) -> Stats:
        """Return the statistics after counting all reads so far."""
        self.engine.access_log.flush()
        return self.stats

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def boto(self, *, secret: str = SECRET, access: str = ACCESS, **config: Any) -> Any:
        """Return a stock boto3 client. Use the client in a thread, because its calls block."""
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=access,
            aws_secret_access_key=secret,
            config=Config(retries={"max_attempts": 1}, **config),
        )

    async def raw(self, data: bytes, *, into: bytearray | None = None) -> bytes:
        """Send bytes on a new connection. Return all bytes that come until the connection is closed.

        The bytes are also added to ``into`` as they come.
        """
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            received = bytearray() if into is None else into
            try:
                while piece := await reader.read(65536):
                    received += piece
            except ConnectionResetError:
                received += b"<reset>"
            return bytes(received)
        finally:
            writer.close()

    async def get(self, target: str, *fields: str, method: str = "GET") -> bytes:
        """Send one request with ``Connection: close``, and return the bytes of the answer."""
        lines = [f"{method} {target} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", "Connection: close", *fields]
        return await self.raw("\r\n".join([*lines, "", ""]).encode())


MakeProxy = Callable[..., Awaitable[Proxy]]


@pytest.fixture
async def make_proxy(tmp_path: Path) -> AsyncIterator[MakeProxy]:
    made: list[tuple[Proxy, PageCache]] = []

    async def make(
        *,
        origin: Any = None,
        engine_of: Callable[[Engine], Any] = lambda engine: engine,
        anonymous: bool = True,
        clients: tuple[ClientKey, ...] = (ClientKey(ACCESS, SECRET),),
        clock: Clock | None = None,
        rules: tuple[Rule, ...] = (),
        base_domains: tuple[str, ...] = ("h", "s3.local"),
        trailed_budget_bytes: int = 1 << 20,
        lane: type[FastLane] = FastLane,
        compiled: bool = False,
        page_size: int = PAGE,
        ram: Path | None = None,
        tier_bytes: int = 1 << 22,
        can_wait: bool = False,
        upstreams: Upstreams = ONLY_OWN,
        ownership: Ownership | None = None,
        share: Share | None = None,
    ) -> Proxy:
        """Make a proxy with these settings:

        ``base_domains``: the host names that tests use; under other names the proxy answers signed requests
            only.
        ``ram``: the directory of the tier; with it, pages may leave by sendfile.
        ``tier_bytes``: the capacity of the tier.
        ``compiled``: whether the compiled request cache answers.
        ``can_wait``: whether a read may have to wait for the medium, as on a disk.
        ``upstreams``: upstreams other than the proxy's own; for them the origin decides which client may
            read.
        ``share``: memory for the page table, which workers read.
        """
        clock = clock or SystemClock()
        stats, ledger = Stats(), Ledger(1 << 24)
        directory = tmp_path / f"ram{len(made)}" if ram is None else ram
        tier = SegmentStore("ram", directory, tier_bytes, segment_bytes=tier_bytes, sendfile=ram is not None)
        origin = origin if origin is not None else MemoryOrigin(clock=clock, chunk_bytes=1000)
        engine, cache = await make_engine(
            Medium(tier, Source.RAM, load=asyncio.to_thread if can_wait else None),
            origin,
            rules=rules,
            ledger=ledger,
            stats=stats,
            clock=clock,
            page_size=page_size,
            upstreams=upstreams,
            ownership=ownership,
            share=share,
        )
        seen, log = Recorder(), EventLog()
        handler = S3Handler(
            engine_of(engine),
            Authenticator(clients, anonymous=anonymous, clock=clock),
            clock=clock,
            observer=seen,
            log=log,
            base_domains=base_domains,
            trailed_budget_bytes=trailed_budget_bytes,
        )
        own = engine.hits if compiled else None
        fast = lane(engine_of(engine), handler, clock=clock, jobs=seen, own=own, pace=handler.pace)
        server = S3Server(handler, fast)
        _, port = await server.listen("127.0.0.1", 0)
        proxy = Proxy(engine, origin, handler, port, seen, log, fast, server, clock, stats)
        made.append((proxy, cache))
        return proxy

    yield make
    for proxy, cache in made:
        await proxy.server.shutdown(1.0)
        await proxy.engine.aclose()
        assert proxy.handler.held_bytes == 0, "a held upload was not given back"
        await asyncio.to_thread(cache.close)


@pytest.fixture(params=[False, True], ids=["interpreted", "compiled"])
def compiled(request: pytest.FixtureRequest) -> bool:
    """Run each test with the interpreted fast lane, and with the compiled lane if it is installed."""
    if request.param and not COMPILED:
        pytest.skip("the lane was not compiled when it was installed")
    return request.param


@pytest.fixture
async def proxy(make_proxy: MakeProxy) -> Proxy:
    """Return a proxy with anonymous access, one client, and an object "seed" in bucket "b"."""
    proxy = await make_proxy()
    proxy.origin.put("b", "seed", b"seed")
    return proxy


@pytest.fixture
async def two(make_proxy, compiled):
    """Yield a warm proxy with two ports: ``port`` of the fast lane, ``task_port`` of tasks."""
    proxy = await make_proxy(lane=Watched, compiled=compiled)
    for name, size in SIZES.items():
        meta = (("Content-Type", "image/png"), ("Content-Encoding", "gzip"), ("x-amz-meta-a", "b c"))
        proxy.origin.put("b", name, pattern(size), headers=meta)
        await proxy.get(f"/b/{name}")
    await proxy.engine._filling.flights.drain()
    other = TaskLane(proxy.engine, proxy.handler, clock=proxy.clock, jobs=proxy.seen)
    server = S3Server(proxy.handler, other)
    _, proxy.task_port = await server.listen("127.0.0.1", 0)
    yield proxy
    await server.shutdown(1.0)


@pytest.fixture(params=["copied", "lent"])
async def warm(make_proxy, tmpfs, request):
    """Return a proxy whose request cache knows a plain client, signed clients, and a few objects.

    If the test module has ``WARM_KEYS``, the request cache knows the objects of these keys only.
    """
    ram = tmpfs / "ram" if request.param == "lent" else None
    proxy = await make_proxy(clients=CLIENTS, clock=ManualClock(), page_size=1 << 16, ram=ram)
    sums = (("x-amz-checksum-crc32", "AAAAAA=="), ("x-amz-meta-a", "b"))
    for key, size in (("k", 4000), ("big", 60_000), ("a b", 10), ("two", 100_000)):
        proxy.origin.put("b", key, pattern(size), headers=sums)
    for raw in heads(proxy, *getattr(request.module, "WARM_KEYS", ())):
        await talk(proxy.port, raw * 3, count=3)
    return proxy
