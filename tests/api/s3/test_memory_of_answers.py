"""An answer of many pages keeps no memory but that of the page that is being sent."""

import asyncio
import weakref
from contextlib import asynccontextmanager

import pytest

from shadeproxy.engine.read.flight import Flight
from shadeproxy.origin.memory import Barrier, MemoryOrigin
from tests.support.s3.answer import until

PAGE = 1 << 16


@pytest.fixture
def buffers(monkeypatch):
    """Return weak references to the buffers of all flights that open from now on."""
    seen = []
    real = Flight.open

    def open_(flight, *told, **options):
        real(flight, *told, **options)
        seen.append(weakref.ref(flight.buffer.obj))

    monkeypatch.setattr(Flight, "open", open_)
    return seen


class HoldingBack(MemoryOrigin):
    """Answers a GET of the first page at once, and a GET of a later page when ``go_on`` is set."""

    def __init__(self):
        super().__init__()
        self.go_on = asyncio.Event()

    @asynccontextmanager
    async def open(self, ref, **options):
        span = options.get("span")
        if span is not None and span.start:
            await self.go_on.wait()
        async with super().open(ref, **options) as reading:
            yield reading


async def test_a_page_that_was_sent_is_gone_while_the_next_is_waited_for(make_proxy, buffers):
    proxy = await make_proxy(origin=HoldingBack(), page_size=PAGE)
    proxy.origin.put("b", "k", b"x" * (PAGE + 100))
    # The gate holds the first page back in its middle. Its bytes are then sent from the flight's buffer, not
    # from a file of the tier.
    gate = proxy.origin.gate = Barrier()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"GET /b/k HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    gate.release()
    assert await reader.readexactly(PAGE) == b"x" * PAGE
    await until(lambda: buffers[0]() is None)
    proxy.origin.go_on.set()
    assert await reader.read() == b"x" * 100
    writer.close()
