"""CPU and throughput of the miss path: cold objects of 100 KB, 32 at a time, from an origin 20 ms away.

The origin is a process of its own that answers each GET after the delay. Rounds of four ways to read
alternate (A B C D A B C D). "stored": through the engine, with room in its RAM tier, so that every page is
written. "replacing" and "ranked": through the engine with a full tier, under LRU and under the default
policy, which ranks each page against resident pages. "direct": with the origin client alone. The CPU time is
that of this process, and each figure is the median of the rounds.

Run: ``python bench/miss.py``
"""

import asyncio
import multiprocessing
import platform
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import numpy as np
import uvloop
from numpy.typing import NDArray

from shadeproxy.core.clock import SystemClock
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.sigv4 import Credentials
from shadeproxy.core.types import SHARED, ObjectRef, Source, Span
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.engine import Engine
from shadeproxy.engine.rules import Rules
from shadeproxy.engine.storage.medium import Medium
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.origin.base import Origin
from shadeproxy.origin.counted import CountedOrigin
from shadeproxy.origin.credentials import StaticCredentials
from shadeproxy.origin.limit import LimitedOrigin
from shadeproxy.origin.retry import RetryingOrigin
from shadeproxy.origin.s3 import S3Origin
from shadeproxy.policy.registry import get_policy
from shadeproxy.telemetry.stats import Stats
from shadeproxy.tiers.store import SegmentStore

Get = Callable[[str], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a round: ``gets`` objects of ``body_bytes`` are read, ``in_flight`` of them at a time."""

    body_bytes: int = 100_000
    in_flight: int = 32
    gets: int = 800
    rounds: int = 7


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one way to read: CPU per object and objects a second, as medians over the rounds."""

    cpu_us: float
    gets_per_s: float


class DelayedServer(asyncio.Protocol):
    """Answers each request with an object, or with the range of it that the request asks for. The answer
    leaves ``delay_s`` after the head of the request is complete.
    """

    def __init__(self, body: bytes, delay_s: float) -> None:
        self._body = body
        self._delay_s = delay_s
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            asyncio.get_running_loop().call_later(self._delay_s, self._answer, head)

    def _answer(self, head: bytes) -> None:
        body, status = memoryview(self._body), b"200 OK"
        _, asked, rest = head.lower().partition(b"\r\nrange: bytes=")
        if asked:
            first, _, last = rest.partition(b"\r\n")[0].partition(b"-")
            start, stop = int(first), min(int(last) + 1, len(body))
            status = b"206 Partial Content\r\nContent-Range: bytes %d-%d/%d" % (start, stop - 1, len(body))
            body = body[start:stop]
        self._transport.writelines(
            [
                b'HTTP/1.1 %s\r\nETag: "0123456789abcdef0123456789abcdef"\r\nContent-Type: image/jpeg\r\n'
                b"Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nx-amz-request-id: 1\r\nServer: static\r\n"
                b"Accept-Ranges: bytes\r\nContent-Length: %d\r\n\r\n" % (status, len(body)),
                body,
            ]
        )


def serve(ready: Connection, body_bytes: int, delay_s: float) -> None:
    """Send the port through ``ready`` once the server listens. Serve until this process is terminated."""

    async def run() -> None:
        factory = partial(DelayedServer, bytes(body_bytes), delay_s)
        server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(run())


@contextmanager
def delayed_origin(body_bytes: int, delay_s: float = 0.020) -> Iterator[str]:
    """Run an origin in a process of its own, and yield its endpoint."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=serve, args=(theirs, body_bytes, delay_s), daemon=True
    )
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.terminate()
        process.join()


class NoWeights:
    """Weights for an engine without hints: the weight of every page is unknown."""

    def weights_of(
        self, object_hashes: NDArray[np.uint64], _numbers: NDArray[np.uint32]
    ) -> NDArray[np.float64]:
        return np.full(len(object_hashes), np.nan)


def s3_origin(endpoint: str) -> S3Origin:
    return S3Origin(endpoint, credentials={SHARED: StaticCredentials(Credentials("AKID", "secret"))})


def wrapped(origin: Origin, stats: Stats) -> Origin:
    """Return ``origin`` inside the wrappers that the proxy uses."""
    clock = SystemClock()
    limited = LimitedOrigin(origin, max_open=256)
    return CountedOrigin(RetryingOrigin(limited, clock=clock), stats=stats, clock=clock)


@asynccontextmanager
async def opened_engine(
    origin: Origin, capacity_bytes: int, *, policy: str = "default", page_size: int = 4 << 20
) -> AsyncIterator[Engine]:
    """Open an engine with an empty RAM tier of ``capacity_bytes``, and close it afterwards."""
    stats, ledger, clock = Stats(), Ledger(256 << 20), SystemClock()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        tier = SegmentStore("ram", Path(folder), capacity_bytes)
        cache = PageCache(
            [Medium(tier, Source.RAM)],
            policy=get_policy(policy),
            weights=NoWeights(),
            stats=stats,
            ledger=ledger,
        )
        cache.recover()
        engine = Engine(
            wrapped(origin, stats),
            cache,
            rules=Rules([]),
            ledger=ledger,
            stats=stats,
            clock=clock,
            page_size=page_size,
        )
        yield engine
        await engine.aclose()
        cache.close()


async def read_engine(engine: Engine, key: str) -> int:
    """Read a whole object as a listener does; return the number of bytes received."""
    received = 0
    async with engine.open(ReadRequest(ObjectRef("bucket", key))) as reading:
        async for piece in reading.body(Span(0, reading.meta.size)):
            received += len(piece)
    return received


async def read_origin(origin: Origin, key: str) -> int:
    """Read a whole object with the origin client alone; return the number of bytes received."""
    async with origin.open(ObjectRef("bucket", key)) as reading:
        return sum([len(chunk) async for chunk in reading.chunks])


async def cost_of(get: Get, load: Load, numbers: Iterator[int]) -> Cost:
    """Measure one round of GETs. Each GET reads an object that was never read before."""
    keys = iter([f"train/images/{next(numbers):08d}.jpg" for _ in range(load.gets)])

    async def worker() -> None:
        for key in keys:
            assert await get(key) == load.body_bytes

    started, started_cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(worker() for _ in range(load.in_flight)))
    used_s, cpu_s = time.perf_counter() - started, time.process_time() - started_cpu
    return Cost(cpu_s / load.gets * 1e6, load.gets / used_s)


async def interleaved(ways: dict[str, Get], load: Load) -> dict[str, Cost]:
    """Run rounds of every way in turn. The first turn is not counted, because it warms connections and
    caches.
    """
    numbers = count()
    samples: dict[str, list[Cost]] = {name: [] for name in ways}
    for turn in range(load.rounds + 1):
        for name, get in ways.items():
            cost = await cost_of(get, load, numbers)
            if turn:
                samples[name].append(cost)
    return {
        name: Cost(
            statistics.median(cost.cpu_us for cost in costs),
            statistics.median(cost.gets_per_s for cost in costs),
        )
        for name, costs in samples.items()
    }


async def measure(endpoint: str, load: Load) -> dict[str, Cost]:
    """Return what a miss costs in each way: "stored", "replacing", "ranked" and "direct"."""
    origin = s3_origin(endpoint)
    room = (load.rounds + 2) * load.gets * (load.body_bytes + 8192)
    async with (
        opened_engine(origin, room) as empty,
        opened_engine(origin, 64 << 20, policy="lru") as replacing,
        opened_engine(origin, 64 << 20) as full,
    ):
        ways: dict[str, Get] = {
            "stored": partial(read_engine, empty),
            "replacing": partial(read_engine, replacing),
            "ranked": partial(read_engine, full),
            "direct": partial(read_origin, origin),
        }
        costs = await interleaved(ways, load)
    await origin.aclose()
    return costs


def main() -> None:
    load = Load()
    with delayed_origin(load.body_bytes) as endpoint:
        costs = uvloop.run(measure(endpoint, load))
    cores = multiprocessing.cpu_count()
    print(f"machine: {platform.machine()}, {cores} CPUs, Python {platform.python_version()}")
    print("way          CPU us/object   objects/s   throughput / direct")
    for name, cost in costs.items():
        ratio = cost.gets_per_s / costs["direct"].gets_per_s
        print(f"{name:12} {cost.cpu_us:13.0f} {cost.gets_per_s:11.0f} {ratio:21.3f}")


if __name__ == "__main__":
    main()
