"""Ranges that are stored parts of pages: the fast lane and a worker answer them as a task does, byte for
byte.
"""

import itertools
import os
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from shadeproxy.api.s3 import COMPILED
from shadeproxy.core.identity import object_hash
from shadeproxy.core.ranges import STORED_PARTS
from shadeproxy.core.types import SHARED, ObjectRef
from shadeproxy.engine.access_records import USE
from shadeproxy.engine.index.columns import Share
from tests.support.clock import ManualClock
from tests.support.purging import purge_under
from tests.support.s3.beside import Beside, serving
from tests.support.s3.compiled import JOB, Both
from tests.support.s3.lane import Watched, answers, request, same, talk
from tests.support.s3.lanes import LANES

pytestmark = pytest.mark.timeout(120)
PAGE = 1 << 20
SIZE = 5 * PAGE + 1234
REF = ObjectRef("b", "k")
EDGE = 3 * PAGE
PARTS = [
    (1000, 30_000),
    (PAGE, PAGE + 60_000),  # The part and its page have the same first byte.
    (2 * PAGE + 7, 2 * PAGE + 8),
    (2 * PAGE + 500_000, 2 * PAGE + 700_000),
    (EDGE - 40_000, EDGE),
    (EDGE, EDGE + 50_000),
    (4 * PAGE + 3, 4 * PAGE + 16_000),
]


def ranged(start, stop, *fields, method="GET"):
    return request("/b/k", f"Range: bytes={start}-{stop - 1}", *fields, method=method, close=False)


@dataclass
class Parts:
    """A proxy, a worker beside it, and the ports of its lanes."""

    proxy: Any
    beside: Beside
    ports: dict[str, int]
    body: bytes = b""

    def put(self, body):
        self.body = body
        self.proxy.origin.put("b", "k", body, headers=(("x-amz-meta-a", "b"),))

    async def store(self, parts=PARTS):
        """Let the object's metadata be known, and store parts of it. No page is resident then."""
        await talk(self.ports["task"], request("/b/k", method="HEAD"))
        for start, stop in parts:
            assert await self.read("task", start, stop) == b"origin"
        assert len(self.resident) == len(parts)

    @property
    def resident(self):
        return self.proxy.engine.cache.residents.pages_of(object_hash(REF))

    async def ask(self, lane, raw):
        ((head, body),) = answers(await talk(self.ports[lane], raw, count=1))
        await self.proxy.engine._filling.flights.drain()
        await self.proxy.engine.cache.drain()
        return head, body

    async def read(self, lane, start, stop, *fields):
        """Read a range, compare its bytes, and return its source."""
        head, body = await self.ask(lane, ranged(start, stop, *fields))
        assert head.startswith(b"HTTP/1.1 206 "), head
        assert b"Content-Range: bytes %d-%d/%d\r\n" % (start, stop - 1, len(self.body)) in head
        assert body == self.body[start:stop], (lane, start, stop)
        return head.partition(b"x-shade-cache: ")[2].partition(b"\r\n")[0]

    @property
    def known(self):
        """Number of requests that the request cache of the fast lane has answered."""
        return self.proxy.lane.known

    @property
    def worked(self):
        """Number of records from which the worker has answered."""
        return len(self.beside.reader.access_log.rows) // USE.itemsize


@pytest.fixture(params=["copied", "lent", "lent, compiled"])
async def parts(make_proxy, tmpfs, tmp_path, request):
    """Return a proxy with an object "k". "fast" is the port of its fast lane, "worker" that of a worker."""
    share, compiled = Share.create(), "compiled" in request.param
    if compiled and not COMPILED:
        pytest.skip("the lane was not compiled when it was installed")
    proxy = await make_proxy(
        lane=Watched,
        compiled=compiled,
        clock=ManualClock(),
        page_size=PAGE,
        tier_bytes=1 << 25,
        ram=tmpfs / "ram" if "lent" in request.param else None,
        share=share,
    )
    beside = Beside(proxy, share)
    async with AsyncExitStack() as stack:
        ports = {
            "task": await stack.enter_async_context(LANES["task"](proxy, tmp_path)),
            "worker": await stack.enter_async_context(serving(beside, compiled=compiled)),
            "fast": proxy.port,
        }
        found = Parts(proxy, beside, ports)
        found.put(os.urandom(SIZE))
        yield found


async def test_parts_are_answered_alike_and_without_a_task(parts):
    await parts.store()
    etag = parts.proxy.origin.buckets["b"]["k"].meta.etag
    asked = 0
    for start, stop in PARTS:
        for last in {stop, start + 1, (start + stop + 1) // 2}:
            for fields in ((), (JOB,), (f"If-Match: {etag}",)):
                raw = ranged(start, last, *fields)
                general = await parts.ask("task", raw)
                assert general[1] == parts.body[start:last]
                for lane in ("fast", "worker"):
                    for _ in range(2):
                        head, body = await parts.ask(lane, raw)
                        assert (same(head), body) == (same(general[0]), general[1]), (lane, start, last)
                asked += 2
    assert parts.known >= asked - 9, "only the first requests of a client are parsed"
    assert parts.proxy.lane.answered == asked
    assert parts.worked == asked
    assert parts.proxy.lane.compiled == (parts.known if COMPILED and parts.proxy.lane.hits else 0)
    assert len(parts.resident) == len(PARTS)


async def test_conditions_on_parts_mean_the_same_in_all_lanes(parts):
    await parts.store(PARTS[:2])
    # The last one asks for the whole object, whose pages are resident then.
    fields = ['If-Match: "x"', 'If-None-Match: "x"', "x-amz-checksum-mode: ENABLED", 'If-Range: "x"']
    for field, method in itertools.product(fields, ["HEAD", "GET"]):
        raw = request("/b/k", "Range: bytes=1000-1999", field, method=method)
        general = [same(await talk(parts.ports["task"], raw)) for _ in range(2)][-1]
        for lane in ("fast", "worker"):
            assert same(await talk(parts.ports[lane], raw)) == general, (lane, field, method)


@pytest.mark.parametrize("lane", ["fast", "worker"])
async def test_more_than_a_part_is_never_answered_by_its_bytes(parts, lane):
    await parts.store()
    for start, stop in PARTS:
        for _ in range(2):
            await parts.read(lane, start, stop)
    before = parts.known, parts.worked
    for start, stop in PARTS[:4]:
        assert await parts.read(lane, start, stop + 1) == b"origin"
    assert (parts.known, parts.worked) == before
    for start, stop in PARTS[:4]:
        assert await parts.read(lane, start, stop + 1) == b"ram"
        assert await parts.read(lane, start, stop) == b"ram"
        head, body = await parts.ask(lane, request("/b/k", f"Range: bytes={start}-", close=False))
        assert body == parts.body[start:]
        assert b"\r\nContent-Length: %d\r\n" % (SIZE - start) in head


@pytest.mark.parametrize("lane", ["fast", "worker"])
async def test_parts_are_answered_after_a_range_far_beyond_the_end(parts, lane):
    """The number of the page in which the range would begin is that of a stored part."""
    await parts.store()
    for start, stop in PARTS:
        far = (STORED_PARTS + start) * PAGE
        head, _ = await parts.ask(lane, ranged(far, far + 1))
        assert head.startswith(b"HTTP/1.1 416 ")
        for _ in range(2):
            assert await parts.read(lane, start, stop) == b"ram"


@pytest.mark.parametrize("lane", ["fast", "worker"])
async def test_a_page_that_comes_later_answers_what_is_longer_than_its_part(parts, lane):
    await parts.store()
    start, stop = PARTS[1]
    for _ in range(3):
        await parts.read(lane, start, stop)
    assert await parts.read("task", PAGE, 2 * PAGE) == b"origin"
    for length in (stop - start, stop - start + 1, PAGE // 2, PAGE):
        assert await parts.read(lane, start, start + length) == b"ram"
    before = parts.known, parts.worked
    for length in (stop - start, stop - start + 1, PAGE // 2, PAGE):
        assert await parts.read(lane, start, start + length) == b"ram"
    after = parts.known, parts.worked
    assert after[lane == "worker"] == before[lane == "worker"] + 4


@pytest.mark.parametrize("lane", ["fast", "worker"])
@pytest.mark.parametrize("change", ["write", "found", "purge", "evicted", "stale", "unchanged"])
async def test_a_part_that_is_gone_is_not_answered(parts, lane, change):
    await parts.store()
    engine, (start, stop) = parts.proxy.engine, PARTS[0]
    for _ in range(3):
        assert await parts.read(lane, start, stop) == b"ram"
    if change == "write":
        async with engine.writing([REF]):
            parts.put(os.urandom(SIZE - 1))
    elif change == "found":
        parts.put(os.urandom(SIZE))
        await engine._versions.check(REF, SHARED)
    elif change == "purge":
        parts.put(os.urandom(SIZE))
        await purge_under(engine, "b", "")
    elif change == "evicted":
        for slot in parts.resident:
            engine.cache.drop(slot, "evicted")
    else:
        engine.distrust()
        if change == "stale":
            parts.put(os.urandom(SIZE))
    before = parts.known, parts.worked
    assert await parts.read(lane, start, stop) == (b"ram" if change == "unchanged" else b"origin")
    assert (parts.known, parts.worked) == before
    for _ in range(3):
        assert await parts.read(lane, start, stop) == b"ram"
    after = parts.known, parts.worked
    assert after[lane == "worker"] >= before[lane == "worker"] + 2


async def test_a_range_from_the_end_is_answered_from_its_part(parts):
    """Its first byte follows from the size, which the lanes know from an earlier range."""
    tail = SIZE - 300
    await parts.store([PARTS[0], (tail, SIZE)])
    raw = request("/b/k", "Range: bytes=-300", close=False)
    general = await parts.ask("task", raw)
    for lane in ("fast", "worker"):
        for _ in range(2):
            await parts.read(lane, *PARTS[0])
        before = parts.known, parts.worked
        for _ in range(3):
            head, body = await parts.ask(lane, raw)
            assert (same(head), body) == (same(general[0]), parts.body[tail:])
        after = parts.known, parts.worked
        assert after[lane == "worker"] == before[lane == "worker"] + 3


async def test_a_range_from_the_end_of_another_size_is_found_by_the_first_page(parts):
    await parts.store([PARTS[0]])
    for lane in ("fast", "worker"):
        for _ in range(2):
            await parts.read(lane, *PARTS[0])
    async with parts.proxy.engine.writing([REF]):
        parts.put(parts.body[: PAGE // 2])
    raw = request("/b/k", "Range: bytes=-300", close=False)
    for _ in range(2):
        await parts.ask("task", request("/b/k", close=False))
    for lane in ("fast", "worker"):
        before = parts.known, parts.worked
        for _ in range(3):
            head, body = await parts.ask(lane, raw)
            assert body == parts.body[-300:]
            assert b"x-shade-cache: ram" in head
        after = parts.known, parts.worked
        assert after[lane == "worker"] == before[lane == "worker"] + 3


async def test_parts_that_meet_at_a_page_s_edge_are_one_answer(parts):
    await parts.store()
    start, stop = EDGE - 40_000, EDGE + 50_000
    answered = {}
    for lane in ("task", "fast", "worker"):
        for _ in range(3):
            head, body = await parts.ask(lane, ranged(start, stop))
            assert body == parts.body[start:stop]
            answered[lane] = same(head)
    assert len(set(answered.values())) == 1
    assert b"x-shade-cache: ram" in answered["task"]
    assert parts.proxy.lane.answered == 3
    assert parts.worked == 6


@pytest.mark.parametrize("parts", ["copied, compiled", "lent, compiled"], indirect=True)
async def test_both_forms_say_the_same_of_parts(parts):
    await parts.store()
    await parts.read("fast", *PARTS[0], JOB)
    both, answered = Both(parts.proxy), 0
    for first, last in PARTS:
        for start in (first, first + 1, EDGE - 1):
            for stop in {start + 1, max(last - 1, start + 1), last, last + 1, EDGE + 50_000, SIZE}:
                if stop > start:
                    raw = ranged(start, stop, JOB)
                    said = both.interpreted(raw)
                    assert both.compiled(raw) == said, (start, stop)
                    answered += said is not None
    assert answered >= 2 * len(PARTS)


@pytest.mark.parametrize("seed", range(3))
async def test_reads_at_random_by_all_lanes_get_the_right_bytes(parts, seed):
    """Ranges of a few first bytes, with evictions, new versions and pages that come between them."""
    rng, engine, lanes = random.Random(seed), parts.proxy.engine, ["fast", "worker", "worker", "fast", "task"]
    starts = [0, 5, PAGE - 30_000, PAGE, PAGE + 9, EDGE - 16_500, EDGE, EDGE + 40_000, SIZE - 50_000]
    await talk(parts.ports["task"], request("/b/k", method="HEAD"))
    sources = []
    for _ in range(150):
        start, what = rng.choice(starts), rng.random()
        length = rng.choice([1, 16_500, 16_500, 30_000, 30_000, 40_000, 70_000])
        sources.append(await parts.read(rng.choice(lanes), start, min(start + length, len(parts.body))))
        if what < 0.02:
            async with engine.writing([REF]):
                parts.put(os.urandom(SIZE))
            await talk(parts.ports["task"], request("/b/k", method="HEAD"))
        elif what < 0.04:
            await parts.read("task", PAGE * rng.randrange(5), PAGE * 5)
        elif what < 0.1 and (slots := parts.resident):
            engine.cache.drop(rng.choice(slots), "evicted")
        elif what < 0.12:
            parts.proxy.clock.advance(2000)
    assert parts.known + parts.worked > 30
    assert sources.count(b"ram") > 60
