"""Client CPU per 100 KB GET from an S3 server: S3Origin.open against aiobotocore's get_object.

The server is a process of its own that answers every GET with the same bytes. Both clients read with 16
requests in flight on one uvloop. Their rounds alternate (A B A B). Each figure is the median over the rounds
of the client process's CPU time per GET.

Run: ``python bench/origin_get.py``
"""

import asyncio
import multiprocessing
import platform
import statistics
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import cast

import uvloop
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from shadeproxy.core.sigv4 import Credentials
from shadeproxy.core.types import SHARED, ObjectRef
from shadeproxy.origin.credentials import StaticCredentials
from shadeproxy.origin.s3 import S3Origin

BODY_BYTES = 100_000
IN_FLIGHT = 16
GETS = 800
ROUNDS = 9

Get = Callable[[str], Awaitable[int]]


class StaticServer(asyncio.Protocol):
    """Answers each complete request head with the same object."""

    ANSWER = (
        b'HTTP/1.1 200 OK\r\nETag: "0123456789abcdef0123456789abcdef"\r\nContent-Type: image/jpeg\r\n'
        b"Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nx-amz-request-id: 1\r\nServer: static\r\n"
        b"Accept-Ranges: bytes\r\nContent-Length: %d\r\n\r\n%s" % (BODY_BYTES, bytes(BODY_BYTES))
    )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            _, _, self._received = self._received.partition(b"\r\n\r\n")
            self._transport.write(self.ANSWER)


def serve(ready: Connection) -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(StaticServer, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(run())


async def cpu_per_get(get: Get) -> float:
    """Return microseconds of CPU per GET, with IN_FLIGHT GETs at a time."""
    keys = iter([f"train/images/{number:08d}.jpg" for number in range(GETS)])

    async def worker() -> None:
        for key in keys:
            assert await get(key) == BODY_BYTES

    started = time.process_time()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return (time.process_time() - started) / GETS * 1e6


async def measure(endpoint: str) -> tuple[float, float]:
    origin = S3Origin(endpoint, credentials={SHARED: StaticCredentials(Credentials("AKID", "secret"))})

    async def lean(key: str) -> int:
        async with origin.open(ObjectRef("bucket", key)) as reading:
            return sum([len(chunk) async for chunk in reading.chunks])

    client = get_session().create_client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="AKID",
        aws_secret_access_key="secret",
        config=AioConfig(max_pool_connections=IN_FLIGHT, s3={"addressing_style": "path"}),
    )
    async with client as s3:

        async def full(key: str) -> int:
            answer = await s3.get_object(Bucket="bucket", Key=key)
            async with answer["Body"] as body:
                return len(await body.read())

        samples: dict[str, list[float]] = {"lean": [], "full": []}
        for turn in range(ROUNDS + 1):
            for name, get in (("lean", lean), ("full", full)):
                cost = await cpu_per_get(get)
                if turn:  # the first turn warms connections and caches, and is not counted
                    samples[name].append(cost)
    await origin.aclose()
    return statistics.median(samples["lean"]), statistics.median(samples["full"])


def main() -> None:
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    try:
        lean, full = uvloop.run(measure(f"http://127.0.0.1:{ours.recv()}"))
    finally:
        server.terminate()
    cores = multiprocessing.cpu_count()
    print(f"machine: {platform.machine()}, {cores} CPUs, Python {platform.python_version()}")
    print(f"S3Origin.open            {lean:7.0f} us of CPU per 100 KB GET")
    print(f"aiobotocore get_object   {full:7.0f} us of CPU per 100 KB GET")
    print(f"ratio                    {lean / full:7.3f}")


if __name__ == "__main__":
    main()
