"""ThrottledOrigin: bodies share the given bandwidth, and other calls do not wait."""

import asyncio

import pytest

from shadeproxy.core.clock import SystemClock
from shadeproxy.core.types import ObjectRef, Span
from shadeproxy.origin.base import ForwardRequest
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy.origin.throttled import ThrottledOrigin
from tests.support.clock import ManualClock

REF = ObjectRef("b", "k")
BODY = bytes(1000)


def make(clock, bytes_per_s=100.0):
    memory = MemoryOrigin(chunk_bytes=100)
    memory.put("b", "k", BODY)
    return ThrottledOrigin(memory, bytes_per_s=bytes_per_s, clock=clock)


async def read(origin, span=None):
    async with origin.open(REF, span=span) as reading:
        return b"".join([chunk async for chunk in reading.chunks])


async def test_a_body_takes_what_its_bytes_take():
    clock = ManualClock()
    origin, began_s = make(clock), clock.now_s()
    assert await read(origin) == BODY
    assert clock.now_s() - began_s == pytest.approx(10, abs=0.02)
    await read(origin, Span(0, 200))
    assert clock.now_s() - began_s == pytest.approx(12, abs=0.02)


async def test_the_bandwidth_may_change():
    clock = ManualClock()
    origin, began_s = make(clock), clock.now_s()
    origin.bytes_per_s = 50.0
    assert await read(origin) == BODY
    assert clock.now_s() - began_s == pytest.approx(20, abs=0.02)


async def test_a_forwarded_body_takes_as_long():
    clock = ManualClock()
    origin, began_s = make(clock), clock.now_s()
    async with origin.forward(ForwardRequest("GET", REF, "/b/k")) as response:
        body = b"".join([chunk async for chunk in response.chunks])
    assert body == BODY
    assert clock.now_s() - began_s == pytest.approx(10, abs=0.02)


async def test_idle_time_is_not_saved_up():
    clock = ManualClock()
    origin = make(clock)
    clock.advance(1000)
    began_s = clock.now_s()
    await read(origin)
    assert clock.now_s() - began_s == pytest.approx(10, abs=0.02)


async def test_two_readers_share_it():
    """Two readers share the bandwidth. Both wait at least the time for all bytes together. How much longer
    they wait depends on the machine.
    """
    origin, clock = make(SystemClock(), bytes_per_s=20_000.0), SystemClock()
    began_s = clock.monotonic_s()
    await asyncio.gather(read(origin), read(origin))
    assert clock.monotonic_s() - began_s > 0.08


async def test_what_has_no_body_waits_for_nothing():
    clock = ManualClock()
    origin, began_s = make(clock, bytes_per_s=0.001), clock.now_s()
    await origin.head(REF)
    await origin.list_objects("b", "")
    assert clock.now_s() == began_s
