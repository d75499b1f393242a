"""RetryingOrigin: the calls that it repeats, the time that it waits, and that a resumed body continues the
same version.
"""

import asyncio
import random

import pytest

from shadeproxy.core.errors import (
    BodyCutShort,
    ObjectChanged,
    OriginAnswer,
    OriginError,
    OriginThrottled,
    OriginUnavailable,
)
from shadeproxy.core.types import ObjectRef, Span
from shadeproxy.origin.base import ForwardRequest
from shadeproxy.origin.limit import LimitedOrigin
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy.origin.retry import RetryingOrigin, RetryRule
from shadeproxy_bench.reliability.kit.faulty_origin import Fault, FaultyOrigin
from tests.support.clock import ManualClock

REF = ObjectRef("b", "k")
BODY = bytes(range(256)) * 1000
DOWN = Fault(error=OriginUnavailable("down"))


@pytest.fixture
def memory():
    memory = MemoryOrigin(chunk_bytes=10_000)
    memory.put("b", "k", BODY)
    return memory


@pytest.fixture
def faulty(memory):
    return FaultyOrigin(memory, clock=ManualClock())


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def retrying(faulty, clock):
    return RetryingOrigin(faulty, rule=RetryRule(attempts=3), clock=clock, rng=random.Random(1))


async def read(origin, span=None):
    async with origin.open(REF, span=span) as reading:
        return b"".join([chunk async for chunk in reading.chunks])


async def test_head_list_and_open_are_repeated(retrying, faulty):
    faulty.enqueue(DOWN, DOWN)
    assert (await retrying.head(REF)).size == len(BODY)
    faulty.enqueue(DOWN)
    assert len((await retrying.list_objects("b", "")).entries) == 1
    faulty.enqueue(DOWN, DOWN)
    assert await read(retrying) == BODY
    assert faulty.calls == 8


@pytest.mark.parametrize("size", [0, 5000])
async def test_a_body_that_is_shorter_than_it_was_said_to_be_is_cut_short(retrying, faulty, memory, size):
    """A body that is shorter than stated raises BodyCutShort. The rest cannot be read, and the origin answers
    416 to the request for it. The client asked for the whole object, so it must not get this 416.
    """
    memory.put("b", "k", BODY[:size])
    faulty.enqueue(Fault(short_by_bytes=-10))
    with pytest.raises(BodyCutShort):
        async with retrying.open(REF) as reading:
            await reading.read_into(memoryview(bytearray(size + 10)), lambda _: None)


async def test_attempts_end(retrying, faulty):
    faulty.enqueue(DOWN, DOWN, DOWN)
    with pytest.raises(OriginUnavailable, match="down"):
        await retrying.head(REF)
    assert faulty.calls == 3


async def test_final_answers_and_forwards_are_not_repeated(retrying, faulty):
    faulty.enqueue(Fault(error=OriginAnswer(403, "AccessDenied")))
    with pytest.raises(OriginAnswer):
        await retrying.head(REF)
    faulty.enqueue(DOWN)
    with pytest.raises(OriginUnavailable):
        async with retrying.forward(ForwardRequest("GET", REF, "/b/k")):
            pass
    assert faulty.calls == 2


@pytest.mark.parametrize("span", [None, Span(1000, 200_000)])
async def test_a_body_that_breaks_off_goes_on_where_it_stopped(retrying, faulty, memory, span):
    faulty.enqueue(Fault(cut_after_bytes=25_000), Fault(cut_after_bytes=0))
    start, stop = span or Span(0, len(BODY))
    assert await read(retrying, span) == BODY[start:stop]
    assert [asked for _, asked, _ in memory.reads] == [
        span,
        Span(start + 25_000, stop),
        Span(start + 25_000, stop),
    ]


@pytest.fixture
def limited(faulty, clock):
    """Return a limit of one slot. ``limited.taken``: how many slots were taken at each wait of a retry."""
    limited, sleep = LimitedOrigin(faulty, max_open=1), clock.sleep
    limited.taken = []

    async def record(seconds):
        limited.taken.append(limited.open_now)
        await sleep(seconds)

    clock.sleep = record
    return limited


async def test_a_broken_body_keeps_its_slot_until_its_end(limited, faulty, clock):
    """Its reader holds memory. Reads that hold all slots may wait for that memory."""
    faulty.enqueue(Fault(cut_after_bytes=25_000), DOWN, DOWN, None)
    rule = RetryRule(attempts=4)
    assert await read(RetryingOrigin(limited, rule=rule, clock=clock)) == BODY
    assert limited.taken == [1, 1, 1]
    assert limited.open_now == 0


async def test_a_read_without_an_answer_leaves_its_slot_to_others(limited, faulty, clock):
    faulty.enqueue(DOWN, DOWN)
    assert await read(RetryingOrigin(limited, clock=clock)) == BODY
    assert limited.taken == [0, 0]
    assert limited.open_now == 0


@pytest.mark.parametrize("then", [Fault(cut_after_bytes=10), DOWN])
async def test_a_read_that_fails_for_good_leaves_no_slot(limited, faulty, clock, then):
    faulty.enqueue(Fault(cut_after_bytes=10), then, then, then)
    with pytest.raises(OriginError):
        await read(RetryingOrigin(limited, clock=clock))
    assert limited.open_now == 0


async def test_a_reader_that_leaves_during_the_wait_leaves_no_slot(limited, faulty, clock):
    faulty.enqueue(Fault(cut_after_bytes=10))
    waiting = asyncio.Event()

    async def wait(_seconds):
        waiting.set()
        await asyncio.Event().wait()

    clock.sleep = wait
    reader = asyncio.create_task(read(RetryingOrigin(limited, clock=clock)))
    await waiting.wait()
    assert limited.open_now == 1
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    assert limited.open_now == 0


async def test_a_body_that_keeps_breaking_off_is_an_error(retrying, faulty):
    faulty.enqueue(*[Fault(cut_after_bytes=10)] * 3)
    with pytest.raises(BodyCutShort):
        await read(retrying)


async def test_a_resumed_body_is_never_a_mix_of_versions(retrying, faulty, memory):
    faulty.enqueue(Fault(cut_after_bytes=25_000))
    with pytest.raises(ObjectChanged):
        async with retrying.open(REF) as reading:
            async for _ in reading.chunks:
                memory.put("b", "k", BODY[::-1])


async def test_waits_grow_and_are_bounded(memory, clock):
    waits = []
    sleep = clock.sleep

    async def record(seconds):
        waits.append(seconds)
        await sleep(seconds)

    clock.sleep = record
    faulty = FaultyOrigin(memory, script=[DOWN] * 9, clock=ManualClock())
    rule = RetryRule(attempts=10, base_delay_s=0.1, max_delay_s=1.0)

    class Longest(random.Random):
        def random(self):
            return 1.0

    await RetryingOrigin(faulty, rule=rule, clock=clock, rng=Longest()).head(REF)
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1, 1, 1, 1, 1])


async def test_retry_after_is_honoured_in_full(retrying, faulty, clock):
    faulty.enqueue(Fault(error=OriginThrottled("slow down", retry_after_s=4.0)))
    before = clock.now_s()
    await retrying.head(REF)
    assert clock.now_s() - before >= 4.0


async def test_a_retry_after_beyond_the_limit_goes_to_the_client_at_once(retrying, faulty, clock):
    faulty.enqueue(Fault(error=OriginThrottled("slow down", retry_after_s=60.0)))
    before = clock.now_s()
    with pytest.raises(OriginThrottled) as raised:
        await retrying.head(REF)
    assert (raised.value.retry_after_s, clock.now_s()) == (60.0, before)
