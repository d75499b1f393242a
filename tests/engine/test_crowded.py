"""More readers than slots at the origin and memory for pages: they wait for both, and never for each other."""

import asyncio

import pytest

from shadeproxy.core.types import Source
from shadeproxy.origin.faulty import FaultyOrigin
from shadeproxy.origin.limit import LimitedOrigin
from shadeproxy.origin.memory import MemoryOrigin

from .conftest import PAGE

BODY = bytes(range(256)) * (6 * PAGE // 256) + b"tail"


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("pages", [2, 4, 8])
async def test_cold_objects_of_many_pages_all_arrive(make_bench, slots, pages):
    """A slot that waits for memory while memory waits for a slot would end in 503 for both after 10 s."""
    memory = MemoryOrigin(chunk_bytes=1000)
    keys = [f"k{number}" for number in range(24)]
    for key in keys:
        memory.put("b", key, key.encode() + BODY)
    slow = FaultyOrigin(memory, delay_s=0.002)
    bench = await make_bench(origin=LimitedOrigin(slow, max_open=slots), budget_bytes=pages * PAGE)
    answers = await asyncio.gather(*(bench.get(key) for key in keys))
    assert answers == [(key.encode() + BODY, Source.ORIGIN) for key in keys]
    await bench.settle()
    assert memory.gets == len(keys) * 7, "each page was asked for once"
