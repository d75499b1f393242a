"""A client that disconnects at a given await, and an origin with many awaits.

Tests can see whether threads of the origin still work.
"""

import asyncio
import itertools
import types
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from shadeproxy.origin.memory import MemoryOrigin


class Hesitant(MemoryOrigin):
    """An origin in memory that lets other tasks run before and after each of its steps."""

    @asynccontextmanager
    async def open(self, ref, **options):
        await asyncio.sleep(0)
        async with super().open(ref, **options) as reading:
            await asyncio.sleep(0)
            yield types.SimpleNamespace(
                **{
                    name: getattr(reading, name)
                    for name in ("meta", "span", "receive", "doubtful", "pass_on", "read_into")
                },
                chunks=_hesitating(reading.chunks),
            )

    @asynccontextmanager
    async def forward(self, request):
        await asyncio.sleep(0)
        async with super().forward(request) as response:
            await asyncio.sleep(0)
            yield replace(response, chunks=_hesitating(response.chunks))
            await asyncio.sleep(0)


async def _hesitating(chunks):
    async for chunk in chunks:
        await asyncio.sleep(0)
        yield chunk


class Cut:
    """Disconnects the client of ``handler`` at the await with number ``at``, or never if that is None."""

    def __init__(self, handler):
        self.handler = handler
        self.at = None
        self.reached = False

    @types.coroutine
    def serve(self, work, transport):
        awaiting = work.__await__()
        go_on = partial(awaiting.send, None)
        for number in itertools.count():
            try:
                future = go_on()
            except StopIteration as ended:
                return ended.value
            if number == self.at:
                self.reached = True
                transport.abort()
                asyncio.current_task().cancel()
            try:
                value = yield future
            except BaseException as error:  # noqa: BLE001 - passed on
                go_on = partial(awaiting.throw, error)
            else:
                go_on = partial(awaiting.send, value)


class Watched(ThreadPoolExecutor):
    """Threads that know whether one of them still runs a call, even if no task waits for the call
    any more.
    """

    def __init__(self):
        super().__init__(4)
        self._calls = []

    def submit(self, *call):
        future = super().submit(*call)
        self._calls.append(future)
        return future

    def are_idle(self):
        self._calls = [call for call in self._calls if not call.done()]
        return not self._calls
