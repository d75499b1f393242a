"""A model of a training loop with a DataLoader: workers read batches, and a consumer takes the batches in
order.

As in torch, batches are dealt to the workers in turn. Each worker reads the samples of its batch one after
another over a connection of its own. A worker may be at most two batches ahead of the consumer. As S3 clients
do, a worker repeats a request that is answered 503 SlowDown. The consumer sleeps instead of computing. The
time for which it waits for batches is its stall.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from shadeproxy_bench.faults import BenchError

PREFETCH_FACTOR = 2
TRIES = 10
PAUSE_S = 1.0
"""The pause after an answer 503 SlowDown, before the request is sent again. It is the proxy's
``Retry-After``.
"""
_OK = (b"HTTP/1.1 200", b"HTTP/1.1 206")
_SLOW_DOWN = b"HTTP/1.1 503"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)

Before = Callable[[int], Awaitable[None]]


class Epoch(NamedTuple):
    """The times of one epoch. ``compute_s``: the length that the epoch would have if the consumer never
    waited for a batch.
    """

    wall_s: float
    stall_s: float
    compute_s: float


class Loader:
    """A training loop that reads from ``address`` by ``workers`` workers. A batch has ``batch`` samples, and
    the loop computes ``rate_per_s`` samples a second.
    """

    def __init__(self, address: tuple[str, int], *, workers: int, batch: int, rate_per_s: float) -> None:
        self._address = address
        self._workers = workers
        self._batch = batch
        self._step_s = batch / rate_per_s

    async def epoch(self, requests: Sequence[bytes], before: Before | None = None) -> Epoch:
        """Read the samples of one epoch by ``requests``, in order, and return the times. ``before(n)`` is
        awaited before batch n is computed.
        """
        batches = [requests[at : at + self._batch] for at in range(0, len(requests), self._batch)]
        done = [asyncio.get_running_loop().create_future() for _ in batches]
        free = [asyncio.Semaphore(PREFETCH_FACTOR) for _ in range(self._workers)]
        began = time.perf_counter()
        workers = [
            asyncio.create_task(
                self._work(batches[first :: self._workers], done[first :: self._workers], room)
            )
            for first, room in enumerate(free)
        ]
        stall_s = 0.0
        try:
            for number, batch in enumerate(done):
                waiting = time.perf_counter()
                await batch
                stall_s += time.perf_counter() - waiting
                free[number % self._workers].release()
                if before is not None:
                    await before(number)
                await asyncio.sleep(self._step_s * len(batches[number]) / self._batch)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        wall_s = time.perf_counter() - began
        return Epoch(wall_s, stall_s, self._step_s * len(requests) / self._batch)

    async def _work(
        self,
        batches: Sequence[Sequence[bytes]],
        done: Sequence["asyncio.Future[None]"],
        room: asyncio.Semaphore,
    ) -> None:
        reader, writer = await asyncio.open_connection(*self._address, limit=1 << 20)
        try:
            for batch, ready in zip(batches, done, strict=True):
                await room.acquire()
                try:
                    for request in batch:
                        await _read(request, reader, writer)
                except (BenchError, OSError, EOFError) as error:
                    ready.set_exception(BenchError(f"a worker of the loader failed: {error}"))
                    return
                ready.set_result(None)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def _read(request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read one sample. Raises BenchError if each of ``TRIES`` tries was answered 503, or if an answer is
    neither an object nor a 503.
    """
    for pause_s in [PAUSE_S] * (TRIES - 1) + [0.0]:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if length is None:
            break
        await reader.readexactly(int(length[1]))
        if head.startswith(_OK):
            return
        if not head.startswith(_SLOW_DOWN):
            break
        await asyncio.sleep(pause_s)
    raise BenchError(f"the loader was answered {head[:80]!r}")
